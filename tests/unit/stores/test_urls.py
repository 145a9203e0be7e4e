"""Stores by their addresses."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from midrun.errors import StoreUnreachable
from midrun.stores.memory import MemoryStore
from midrun.stores.sqlite.store import SqliteStore
from midrun.stores.urls import open_store


@pytest.mark.parametrize("tail", ["runs.db", "with%20space.db"])
async def test_a_path_after_three_slashes_is_relative_and_after_four_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tail: str
) -> None:
    """As with every other tool that takes such an address."""
    monkeypatch.chdir(tmp_path)
    name = tail.replace("%20", " ")
    for url in (f"sqlite:///{tail}", f"sqlite:///{tmp_path}/{tail}"):
        store = await open_store(url)
        assert isinstance(store, SqliteStore)
        assert store.path == tmp_path / name
        await store.close()


def _open_files() -> str:
    found: list[str] = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since, by another thread
            found.append(str(link.readlink()))
    return "\n".join(found)


async def test_opening_that_is_cancelled_leaves_nothing_open(tmp_path: Path) -> None:
    """By asyncio itself, as its timeouts and Ctrl-C do, wherever it had come to."""
    file = tmp_path / "runs.db"
    for moments in range(20):
        opening = asyncio.ensure_future(open_store(f"sqlite:///{file}"))  # noqa: TID251 - no scope of ours cancels it
        for _ in range(moments):
            await asyncio.sleep(0)
        opening.cancel()
        with suppress(asyncio.CancelledError):
            await (await opening).close()
    assert str(file) not in _open_files()


async def test_memory_is_a_store_too() -> None:
    """For scripts and tests."""
    assert isinstance(await open_store("memory://"), MemoryStore)


@pytest.mark.parametrize("url", ["", "runs.db", "mysql://x", "sqlite://", "sqlite://host/x"])
async def test_an_address_that_means_nothing_says_what_does(url: str) -> None:
    """Not silently another file."""
    with pytest.raises(StoreUnreachable, match="sqlite:///path"):
        await open_store(url)
