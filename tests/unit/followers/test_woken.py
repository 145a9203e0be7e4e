"""What happens while a follower is being told is told at once, not when all is looked at."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.abc import TaskGroup

from midrun import Midrun
from midrun.core.ids import RunId, Seq
from midrun.followers import following
from midrun.followers import worker as module
from midrun.followers.worker import FollowerWorker, PendingRun
from midrun.ports.follower_cursors import FollowerCursor
from midrun.stores.cursors import MemoryFollowerCursors
from midrun.testing.store_suite.cursors import COMPLETED_HEAD, append_in_phase
from midrun.testing.store_suite.fixtures import RUN, create_run


class Listener:
    """A follower that keeps what it is told, and says when it was."""

    name = "listener"
    attempts = 1

    def __init__(self) -> None:
        self.told: list[Seq] = []
        self.knows = {Seq(1): anyio.Event(), Seq(2): anyio.Event()}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Need nothing."""
        yield

    async def deliver(self, followed: PendingRun) -> FollowerCursor:
        """Keep it."""
        self.told.append(followed.row.seq)
        self.knows[followed.row.seq].set()
        return FollowerCursor(run=followed.run, seq=followed.row.seq)


@pytest.mark.spoils_journals
async def test_a_run_that_grows_when_it_has_just_been_looked_at_is_told_of_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The news of it come while it is still being told of: they must not be lost on that."""
    monkeypatch.setattr(module, "SCAN_INTERVAL_S", 3600.0)
    listener, looked, looks = Listener(), anyio.Event(), FollowerWorker._fill_queues
    marked = MemoryFollowerCursors.get_cursor

    async def look(trail: FollowerWorker, tasks: TaskGroup) -> None:
        heard = RUN in trail._changed
        await looks(trail, tasks)
        if heard and listener.told:
            looked.set()

    async def late(marks: MemoryFollowerCursors, follower: str, run: RunId) -> FollowerCursor:
        """Let the run grow after its row was read, and its news be taken."""
        found = await marked(marks, follower, run)
        if found.seq == 1 and not looked.is_set():
            await append_in_phase(midrun.store, RUN, 1)
            await looked.wait()
        return found

    monkeypatch.setattr(FollowerWorker, "_fill_queues", look)
    monkeypatch.setattr(MemoryFollowerCursors, "get_cursor", late)
    with anyio.fail_after(60):
        async with Midrun("memory://") as midrun, following(midrun, listener):
            await create_run(midrun.store, RUN, head=COMPLETED_HEAD)
            await listener.knows[Seq(2)].wait()
    assert listener.told == [1, 2]
