"""An operator can halt everything, from any process, and lifting it leaves nobody behind.

A latch is set by a process that need not know the agents. It is on record who did so and why.
"""

from pathlib import Path

import anyio
import pytest

from midrun import ControlRefused
from midrun.core.entries import RunHalted, RunLifted
from midrun.models import Use
from tests.scenarios.promises.processes import elsewhere
from tests.scenarios.promises.seen import entries
from tests.unit.runs.conftest import Opener
from tests.unit.runs.stage import ControllableTools

OPERATOR = "operator:olga"


# ── other processes ───────────────────────────────────────────────────────────────────────


async def test_a_latch_set_in_another_process_reaches_the_call(
    opened: Opener, path: Path
) -> None:
    """Out of band: the process that sets it knows none of the agents."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    assert await elsewhere("halt", path, "all", "smoke in the server room")
    await run.until("halted")
    (halted,) = await entries(run, RunHalted)
    assert (halted.by, halted.reason) == ("olga", "smoke in the server room")
    assert stage.completed == []
    await midrun.lift(actor=OPERATOR)
    await run.until("completed")


async def test_it_holds_in_every_process_and_lifting_it_anywhere_lifts_it(
    opened: Opener,
) -> None:
    """Also in one that was opened afterwards."""
    first, second = ControllableTools(), ControllableTools()
    one = await opened(first.agent(Use("slow", name="a"), "Done.", name="one"))
    two = await opened(second.agent(Use("slow", name="b"), "Done.", name="two"))
    runs = [await one.start("one", "go"), await two.start("two", "go")]
    await first.start("a").wait()
    await second.start("b").wait()
    await one.halt("stop", actor=OPERATOR)
    for run in runs:
        await run.until("halted")
    third = await opened(ControllableTools().agent("Done.", name="three"))
    late = await third.start("three", "go")
    await late.until("halted")
    await third.lift(actor=OPERATOR)
    for run in (*runs, late):
        await run.until("completed")
    assert (first.called, second.called) == (["a"], ["b"])


# ── on record ─────────────────────────────────────────────────────────────────────────────


async def test_who_halted_and_lifted_and_why_is_on_record(opened: Opener) -> None:
    """In the journal of each run that it held."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    await midrun.halt("too hot", scope="agent:actor", actor=OPERATOR)
    await run.until("halted")
    await midrun.lift(scope="agent:actor", actor="operator:omar")
    await run.until("completed")
    (halted,) = await entries(run, RunHalted)
    assert (halted.by, halted.role) == ("olga", "operator")
    assert (halted.reason, halted.scope) == ("too hot", "agent:actor")
    (lifted,) = await entries(run, RunLifted)
    assert (lifted.by, lifted.role) == ("omar", "operator")


async def test_under_a_latch_controls_are_refused_by_name(opened: Opener) -> None:
    """All but cancel, which an operator's latch does not take from anybody."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    await midrun.halt("stop", actor=OPERATOR)
    await run.until("halted")
    for control in (run.pause, run.resume):
        with pytest.raises(ControlRefused) as refused:
            await control(actor="ada")
        assert (refused.value.reason, refused.value.by) == ("is_halted", "olga")
        assert "cancel" in refused.value.allowed
    await run.cancel(actor="ada")
    await midrun.lift(actor=OPERATOR)
    await run.until("cancelled")


async def test_a_latch_that_is_lifted_at_once_leaves_no_run_behind(opened: Opener) -> None:
    """Whoever meets it late must not hold a run that nobody will ever lift."""
    stage = ControllableTools()
    names = [f"r{n}" for n in range(8)]
    agents = [stage.agent(Use("slow", name=name), "Done.", name=name) for name in names]
    driving = await opened(*agents)
    operating = await opened()
    runs = [await driving.start(name, "go") for name in names]
    for name in names:
        await stage.start(name).wait()
    for _ in range(3):
        await operating.halt("stop", actor=OPERATOR)
        await operating.lift(actor=OPERATOR)
    for name in names:
        stage.gate(name).set()
    for run in runs:
        await run.until("completed")


async def test_a_latch_that_is_met_after_it_was_lifted_holds_nothing(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, with the bad luck made certain: it is lifted between looking and telling."""
    stage = ControllableTools()
    driving = await opened(stage.agent(Use("slow", name="a"), "Done."))
    operating = await opened()
    run = await driving.start("actor", "go")
    await stage.start("a").wait()
    looked, lifted = anyio.Event(), anyio.Event()
    halts = driving.store.list_halts

    async def slowly() -> object:
        found = await halts()
        looked.set()
        await lifted.wait()
        return found

    monkeypatch.setattr(driving.store, "list_halts", slowly)
    await operating.halt("stop", actor=OPERATOR)
    await looked.wait()
    await operating.lift(actor=OPERATOR)
    lifted.set()
    stage.gate("a").set()
    with anyio.fail_after(60):
        await run.until("completed")


async def test_a_process_that_dies_while_it_lifts_leaves_no_run_behind(opened: Opener) -> None:
    """The latch is gone, and its runs have not heard of it: whoever drives them finds out."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    await midrun.halt("stop", actor=OPERATOR)
    await run.until("halted")
    await midrun.store.remove_halt("all")  # and it is killed before it tells anybody
    with anyio.fail_after(60):
        await run.until("completed")


async def test_lifting_what_does_not_hold_says_so(opened: Opener) -> None:
    """And changes nothing."""
    midrun = await opened(ControllableTools().agent("Done."))
    assert not await midrun.lift(scope="agent:actor", actor=OPERATOR)
