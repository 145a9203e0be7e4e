"""Every journal that a test makes through `Midrun` is verified when its store is closed.

A test that spoils journals on purpose says so: `@pytest.mark.spoils_journals`. What was
verified up to some entry is looked at again only once there is more of it.
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import anyio
import pytest

from midrun.core.ids import RunId
from midrun.errors import StoreError
from midrun.ports.store import RunQuery, Store
from midrun.runs import midrun as opening
from midrun.runs.midrun import Midrun
from midrun.runs.verification import verify_run
from midrun.stores.urls import open_store

PATIENCE: Final = 60
"""Seconds after which a store that does not answer is let go: it has tests of its own."""

PROBLEMS: Final[list[str]] = []
"""What is wrong with the journals of the test that is running."""

_SEEN: Final[dict[RunId, int]] = {}
_LEAVE: Final = Midrun.__aexit__


@pytest.fixture(autouse=True)
def journals_are_sound(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a journal which breaks a promise."""
    yield
    found = tuple(PROBLEMS)
    PROBLEMS.clear()
    _SEEN.clear()
    if request.node.get_closest_marker("spoils_journals") is None:
        assert not found, "\n".join(found)


async def look(store: Store) -> None:
    """Verify what the store holds, and keep what is wrong with it."""
    with anyio.CancelScope(shield=True), anyio.move_on_after(PATIENCE):
        try:
            for row in (await store.list_runs(RunQuery(limit=1000))).items:
                if _SEEN.get(row.run, 0) < row.seq:
                    _SEEN[row.run] = row.seq
                    verdict = await verify_run(store, row.run)
                    PROBLEMS.extend([] if verdict else [str(verdict)])
        except StoreError:
            return  # it is closed, full or broken, which a test wanted


async def _opened(*args: object, **options: object) -> Store:
    """Open a store that is looked into before it is closed."""
    store: Store = await open_store(*args, **options)  # type: ignore[arg-type]  # as they came
    _PATCH.setattr(store, "close", _looking(store.close, store))
    return store


def _looking(
    close: Callable[[], Awaitable[None]], store: Store
) -> Callable[[], Awaitable[None]]:
    async def look_and_close() -> None:
        try:
            await look(store)
        finally:
            await close()

    return look_and_close


async def _left(self: Midrun, *error: object) -> bool | None:
    """Leave a `Midrun`; a store that somebody lent it stays open, and is looked into now."""
    lent = self._store_option
    try:
        return await _LEAVE(self, *error)  # type: ignore[arg-type]  # as they came
    finally:
        if not isinstance(lent, str):
            await look(lent)


_PATCH: Final = pytest.MonkeyPatch()
_PATCH.setattr(opening, "open_store", _opened)
_PATCH.setattr(Midrun, "__aexit__", _left)
