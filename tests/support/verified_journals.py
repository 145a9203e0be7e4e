"""Verify every journal that a test writes through `Midrun`, when its store is closed.

A test that damages journals on purpose has the mark `@pytest.mark.spoils_journals`. A journal
is verified again only if it has new entries.
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import anyio
import pytest

from midrun.core.ids import RunId
from midrun.errors import StoreError
from midrun.ports.store import RunQuery, Store
from midrun.runs import midrun as runs_midrun
from midrun.runs.midrun import Midrun
from midrun.runs.verification import verify_run
from midrun.stores.urls import open_store

VERIFY_TIMEOUT_S: Final = 60
"""A store that does not answer in time is not verified; other tests cover that case."""

VIOLATIONS: Final[list[str]] = []
"""The violations in the journals of the current test."""

_VERIFIED_SEQS: Final[dict[RunId, int]] = {}
_MIDRUN_EXIT: Final = Midrun.__aexit__


@pytest.fixture(autouse=True)
def journals_are_sound(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves an invalid journal."""
    yield
    found = tuple(VIOLATIONS)
    VIOLATIONS.clear()
    _VERIFIED_SEQS.clear()
    if request.node.get_closest_marker("spoils_journals") is None:
        assert not found, "\n".join(found)


async def verify_store(store: Store) -> None:
    """Verify all journals of the store, and add the violations to `PROBLEMS`."""
    with anyio.CancelScope(shield=True), anyio.move_on_after(VERIFY_TIMEOUT_S):
        try:
            for row in (await store.list_runs(RunQuery(limit=1000))).items:
                if _VERIFIED_SEQS.get(row.run, 0) < row.seq:
                    _VERIFIED_SEQS[row.run] = row.seq
                    verdict = await verify_run(store, row.run)
                    VIOLATIONS.extend([] if verdict else [str(verdict)])
        except StoreError:
            return  # the test has closed, filled or damaged the store


async def _open_verified_store(*args: object, **options: object) -> Store:
    """Open a store that is verified before it is closed."""
    store: Store = await open_store(*args, **options)  # type: ignore[arg-type]  # passed through
    _PATCH.setattr(store, "close", _verify_before(store.close, store))
    return store


def _verify_before(
    close: Callable[[], Awaitable[None]], store: Store
) -> Callable[[], Awaitable[None]]:
    async def verify_and_close() -> None:
        try:
            await verify_store(store)
        finally:
            await close()

    return verify_and_close


async def _exit_and_verify(self: Midrun, *error: object) -> bool | None:
    """Exit a `Midrun`; a store that the test passed in stays open and is verified now."""
    store = self._store_option
    try:
        return await _MIDRUN_EXIT(self, *error)  # type: ignore[arg-type]  # passed through
    finally:
        if not isinstance(store, str):
            await verify_store(store)


_PATCH: Final = pytest.MonkeyPatch()
_PATCH.setattr(runs_midrun, "open_store", _open_verified_store)
_PATCH.setattr(Midrun, "__aexit__", _exit_and_verify)
