"""Children when something else goes wrong: the store, the process, two people at once."""

from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from midrun import Completed, Midrun
from midrun.core.entries import CallFailed, StoodDown
from midrun.core.ids import RunId
from midrun.core.values import Phase
from midrun.driver.in_flight_call import InFlightCall
from midrun.errors import StoreBusy, StoreError, StoreFull, StoreUnreachable
from midrun.models import Use
from midrun.ports.store import RunRow, Snapshot
from midrun.stores.sqlite.store import SqliteStore
from tests.scenarios.conversation.workshop import Workshop, child_of, delegating
from tests.scenarios.promises.seen import engine, entries, true
from tests.unit.runs.conftest import Opener

PATIENCE = 60


class Moody(SqliteStore):
    """A store that cannot be read for a moment when a child is looked at."""

    def __init__(self, path: Path, trouble: StoreError) -> None:
        super().__init__(path)
        self.troubles = [trouble]

    async def get_row(self, run: RunId) -> RunRow:
        """Return the run's row, or raise what the test wants, once."""
        found = await super().get_row(run)
        if found.head.parent and self.troubles:
            raise self.troubles.pop()
        return found


@pytest.mark.parametrize(
    "trouble",
    [StoreBusy("runs.db", 1.0), StoreFull("runs.db"), StoreUnreachable("runs.db", "gone")],
    ids=lambda trouble: trouble.code,
)
async def test_a_store_that_cannot_be_read_for_a_moment_does_not_make_a_child_fail(
    tmp_path: Path, trouble: StoreError
) -> None:
    """Told that it had failed, an agent would have the same work done twice."""
    shop = Workshop()
    aide = shop.agent(Use("quick", name="x"), "Done.", name="aide")
    agent = delegating(aide, turns=[Use("aide", task="Do"), "All done."])
    moody = Moody(tmp_path / "runs.db", trouble)
    with anyio.fail_after(PATIENCE):
        async with Midrun(moody, agents=[agent]) as midrun:
            run = await midrun.start("parent", "go")
            outcome = await run.result()
            assert isinstance(outcome, Completed), str(outcome)
            assert not await entries(run, CallFailed)
            assert shop.completed == ["x"]
            assert not moody.troubles
    await moody.close()


async def test_a_process_is_left_soon_while_a_pausing_parent_waits_for_its_child(
    tmp_path: Path,
) -> None:
    """Nobody here brings the child to its pause any more: it is waited for elsewhere."""
    shop, grace = Workshop(), timedelta(milliseconds=50)
    aide = shop.agent(Use("slow", name="x"), "Done.", name="aide", grace=grace)
    agent = delegating(aide, turns=[Use("aide", task="Do"), "All done."])
    with anyio.fail_after(PATIENCE):
        async with Midrun(f"sqlite:///{tmp_path}/runs.db", agents=[agent]) as midrun:
            run = await midrun.start("parent", "go")
            await shop.start("x").wait()
            await run.pause()
            await (await child_of(midrun, run)).until("pausing")
        async with Midrun(f"sqlite:///{tmp_path}/runs.db") as midrun:
            run = await midrun.get(run.id)
            assert len(await entries(run, StoodDown)) == 1, "its lease was given back"
        shop.open_all_gates()
        async with Midrun(f"sqlite:///{tmp_path}/runs.db", agents=[agent]) as midrun:
            await (await midrun.get(run.id)).until("paused")


async def test_a_second_pause_reaches_a_child_that_somebody_let_go_on(opened: Opener) -> None:
    """The first was withdrawn, on both; the second is another one."""
    shop = Workshop()
    aide = shop.agent(Use("slow", name="x"), Use("slow", name="y"), "Done.", name="aide")
    midrun = await opened(delegating(aide, turns=[Use("aide", task="Do"), "All done."]))
    run = await midrun.start("parent", "go")
    await shop.start("x").wait()
    child = await child_of(midrun, run)
    await run.pause(actor="ada")
    await child.until("pausing")
    await run.resume(actor="ada")
    await child.resume(actor="bob")
    assert (await child.view()).phase == "running"
    await run.pause(actor="ada")
    await child.until("pausing")
    shop.gate("x").set()
    await run.until("paused")
    assert (await child.view()).phase == "paused"
    assert shop.called == ["x"]
    shop.open_all_gates()
    await run.resume()
    await shop.start("y").wait()
    shop.gate("y").set()
    await run.until("completed")
    assert shop.completed == ["x", "y"]


async def test_a_pause_that_is_withdrawn_lets_its_child_go_on(opened: Opener) -> None:
    """Wherever that was by then: nothing of it is made again."""
    shop = Workshop()
    aide = shop.agent(Use("slow", name="x"), "Done.", name="aide")
    midrun = await opened(delegating(aide, turns=[Use("aide", task="Do"), "All done."]))
    run = await midrun.start("parent", "go")
    await shop.start("x").wait()
    child = await child_of(midrun, run)
    await run.pause()
    await child.until("pausing")
    await run.resume()
    shop.gate("x").set()
    await run.until("completed")
    assert shop.called == ["x"]


class Slow(SqliteStore):
    """A store that says late that a child is paused, and takes its time to say more."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.says_paused = False
        self.says_more = anyio.Event()
        self.looked_at = anyio.Event()
        self._paused = RunId("")

    async def get_row(self, run: RunId) -> RunRow:
        """Return the run's row."""
        late = not self.says_paused
        found = await super().get_row(run)
        if found.head.parent and found.head.phase is Phase.PAUSED:
            if late:
                head = replace(found.head, phase=Phase.PAUSING)
                return replace(found, head=head, holder="somebody")
            self._paused = run
        return found

    async def load_snapshot(self, run: RunId) -> Snapshot | None:
        """Return the run's snapshot."""
        if run == self._paused and not self.looked_at.is_set():
            self.looked_at.set()
            await self.says_more.wait()
        return await super().load_snapshot(run)


async def test_a_pause_withdrawn_while_its_paused_child_is_looked_at_lets_that_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks had seen it paused with its parent, and would wait for nobody."""
    shop, let_go = Workshop(), anyio.Event()
    forget = InFlightCall.forget_pause

    def told(flight: InFlightCall) -> bool:
        if withdrawn := forget(flight):
            let_go.set()
        return withdrawn

    monkeypatch.setattr(InFlightCall, "forget_pause", told)
    aide = shop.agent(Use("slow", name="x"), "Done.", name="aide")
    agent = delegating(aide, turns=[Use("aide", task="Do"), "All done."])
    slow = Slow(tmp_path / "runs.db")
    with anyio.fail_after(PATIENCE):
        async with Midrun(slow, agents=[agent]) as midrun:
            run = await midrun.start("parent", "go")
            await shop.start("x").wait()
            await run.pause()
            child = await child_of(midrun, run)
            await child.until("pausing")
            shop.gate("x").set()
            await child.until("paused")
            await true(
                lambda: child.id not in engine(midrun)._active_runs
            )  # nor has more to tell
            slow.says_paused = True
            midrun._service.change_notifier.notify(
                RunId(child.id)
            )  # a reason to look once more
            await slow.looked_at.wait()
            await run.resume()
            await let_go.wait()
            slow.says_more.set()
            await run.until("completed")
            assert shop.called == ["x"]
    await slow.close()
