"""The file under a store that is open: taken away, or another put in its place.

SQLite would go on writing to what has no name any more. Whoever is told that something is kept
must find it there.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from midrun.errors import StoreUnreachable
from midrun.stores.sqlite.store import SqliteStore
from midrun.testing.store_suite.fixtures import RUN, append_message, create_run

Deed = Callable[[Path], object]


def remove(path: Path) -> None:
    """Remove the file, as a cleaner of old files does."""
    path.unlink()


def remove_log(path: Path) -> None:
    """Remove what looks like a left-over beside it."""
    Path(f"{path}-wal").unlink()


def remove_folder(path: Path) -> None:
    """Remove the whole folder."""
    shutil.rmtree(path.parent)


def put_copy(path: Path) -> None:
    """Put a copy in its place, as an editor, or a restored backup, does."""
    shutil.copy(path, path.with_suffix(".copy"))
    path.with_suffix(".copy").replace(path)


@pytest.mark.parametrize("deed", [remove, remove_log, remove_folder, put_copy])
async def test_nothing_is_said_to_be_kept_in_a_file_that_nobody_will_find(
    tmp_path: Path, deed: Deed
) -> None:
    """By name, and again for as long as it is so."""
    path = tmp_path / "folder" / "runs.db"
    path.parent.mkdir()
    store = SqliteStore(path)
    await create_run(store)
    deed(path)
    for _ in range(2):
        with pytest.raises(StoreUnreachable, match="while it was in use"):
            await append_message(store, RUN, 1)
    await store.close()


async def test_a_file_that_is_put_back_is_as_good_as_before(tmp_path: Path) -> None:
    """A disk that was unmounted for a moment; what was refused was not written."""
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    await create_run(store)
    path.rename(tmp_path / "aside")
    with pytest.raises(StoreUnreachable):
        await append_message(store, RUN, 1, "refused")
    (tmp_path / "aside").rename(path)
    assert (await append_message(store, RUN, 1, "kept")).seq == 2
    await store.close()
    again = SqliteStore(path)
    assert [record.seq for record in await again.read(RUN)] == [1, 2]
    await again.close()


async def test_a_file_may_be_opened_by_a_link(tmp_path: Path) -> None:
    """Its log is beside the file, not beside the link."""
    path, link = tmp_path / "disk" / "runs.db", tmp_path / "runs.db"
    path.parent.mkdir()
    link.symlink_to(path)
    store = SqliteStore(path)
    await create_run(store)
    await store.close()
    store = SqliteStore(link)
    assert (await append_message(store, RUN, 1)).seq == 2
    path.rename(tmp_path / "aside")
    with pytest.raises(StoreUnreachable, match="while it was in use"):
        await append_message(store, RUN, 2)
    await store.close()
