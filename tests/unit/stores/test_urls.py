"""Opening a store by its URL."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from midrun.errors import Misconfigured
from midrun.stores.memory import MemoryStore
from midrun.stores.sqlite.store import SqliteStore
from midrun.stores.urls import open_store


@pytest.mark.parametrize("tail", ["runs.db", "with%20space.db"])
async def test_a_path_after_three_slashes_is_relative_and_after_four_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tail: str
) -> None:
    """SQLAlchemy reads such a URL in the same way."""
    monkeypatch.chdir(tmp_path)
    name = tail.replace("%20", " ")
    for url in (f"sqlite:///{tail}", f"sqlite:///{tmp_path}/{tail}"):
        store = await open_store(url)
        assert isinstance(store, SqliteStore)
        assert store.path == tmp_path / name
        await store.close()


def list_open_files() -> str:
    found: list[str] = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since, by another thread
            found.append(str(link.readlink()))
    return "\n".join(found)


async def test_a_cancelled_open_leaves_no_file_open(tmp_path: Path) -> None:
    """`Task.cancel()` arrives at each await in turn, as from a timeout or Ctrl-C."""
    file = tmp_path / "runs.db"
    for turns in range(20):
        opening = asyncio.ensure_future(open_store(f"sqlite:///{file}"))  # noqa: TID251 - the test needs Task.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        with suppress(asyncio.CancelledError):
            await (await opening).close()
    assert str(file) not in list_open_files()


async def test_the_memory_url_opens_a_memory_store() -> None:
    assert isinstance(await open_store("memory://"), MemoryStore)


@pytest.mark.parametrize("url", ["", "runs.db", "mysql://x", "sqlite://", "sqlite://host/x"])
async def test_an_invalid_url_is_refused_with_an_example_of_a_valid_one(url: str) -> None:
    """A plain path must not silently open another file."""
    with pytest.raises(Misconfigured, match=r"store must be .*sqlite:///path"):
        await open_store(url)


async def test_an_invalid_url_is_refused_without_its_password() -> None:
    with pytest.raises(Misconfigured) as refused:
        await open_store("mysql://ada:secret@host/runs")
    assert "secret" not in str(refused.value)
