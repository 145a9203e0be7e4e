"""Promise 5: cancel cleans up.

What was in flight is undone, or everything that can be if that is wanted, the latest first.
What is held is released however the run ends. An undo is tried again under one key until it
works or is given up by name, and goes on after a crash. The report says what is left of the
work, as the world sees it, and the partial work is saved.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio
import pytest

from midrun import Agent, Call, ControlRefused, Midrun, Run, tool
from midrun.core.entries import (
    ResidueAccepted,
    RunCancelled,
    UndoFailed,
    UndoGaveUp,
    UndoStarted,
    UndoUnknown,
)
from midrun.models import ScriptedModel
from tests.scenarios.promises.crashing import LATER, child
from tests.scenarios.promises.drafts import ATTEMPTS, Drafts, hasty, names
from tests.scenarios.promises.seen import entries, true
from tests.scenarios.promises.world import World
from tests.support.store_choice import kept_at
from tests.unit.runs.conftest import Opener
from tests.unit.runs.stage import ControllableTools, Use

# ── the undo set, and its order ───────────────────────────────────────────────────────────


async def test_what_came_last_is_undone_first_by_the_order_in_which_it_ended(
    opened: Opener,
) -> None:
    """Not by the order in which it was asked for, or begun."""
    drafts = Drafts()
    step: list[str | Use] = [Use("dictate", name=name) for name in "abc"]
    midrun = await opened(drafts.agent(step, Use("slow", name="x")))
    run = await midrun.start("actor", "go")
    for name in "abc":
        await drafts.stage.start(name).wait()
    for name in ("b", "c", "a"):
        drafts.stage.gate(name).set()
        await true(partial(drafts.stage.completed.__contains__, name))
    await drafts.stage.start("x").wait()
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert drafts.stage.undone == ["a", "c", "b"]


async def test_finished_work_is_kept_unless_somebody_wants_it_undone(opened: Opener) -> None:
    """By default a cancel undoes what it interrupts; what was in flight brings no result."""
    drafts = Drafts()
    midrun = await opened(drafts.agent(Use("write", name="done"), Use("dictate", name="half")))
    run = await midrun.start("actor", "go")
    await drafts.stage.start("half").wait()
    await run.cancel()
    await run.until("cancelled")
    assert [(name, result) for name, _, result in drafts.tries] == [("half", None)]
    report = await run.report()
    assert names(report.done) == ["done"]
    assert names(report.undone) == ["half"]


async def test_an_undo_is_given_what_its_call_was_given_and_returned(opened: Opener) -> None:
    """It has to know what to take back."""
    drafts = Drafts()
    midrun = await opened(drafts.agent(Use("write", name="a"), Use("slow", name="x")))
    run = await midrun.start("actor", "go")
    await drafts.stage.start("x").wait()
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert [(name, result) for name, _, result in drafts.tries] == [("a", "a written")]


# ── what is held ──────────────────────────────────────────────────────────────────────────


async def completed(run: Run, stage: ControllableTools) -> None:
    """Let the run come to its end."""
    stage.gate("x").set()
    await run.until("completed")


async def cancelled(run: Run, _: ControllableTools) -> None:
    """Cancel the run, and keep its work."""
    await run.cancel()
    await run.until("cancelled")


async def cancelled_while_paused(run: Run, _: ControllableTools) -> None:
    """Cancel the run when nobody drives it."""
    await run.pause(now=True)
    await run.until("paused")
    await run.cancel()
    await run.until("cancelled")


@pytest.mark.parametrize("end", [completed, cancelled, cancelled_while_paused])
async def test_what_is_held_is_released_however_the_run_ends(
    opened: Opener, end: Callable[[Run, ControllableTools], Awaitable[None]]
) -> None:
    """The latest first, each once."""
    stage = ControllableTools()
    script = (Use("lock", name="1"), Use("lock", name="2"), Use("slow", name="x"), "Done.")
    midrun = await opened(stage.agent(*script))
    run = await midrun.start("actor", "go")
    await stage.start("x").wait()
    assert stage.released == []
    await end(run, stage)
    assert stage.released == ["2", "1"]
    assert not (await run.report()).still_held


async def test_a_failed_run_holds_on_until_it_ends(opened: Opener) -> None:
    """It can be resumed, so it has not ended; cancelled then, it releases."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(Use("lock", name="1")))
    run = await midrun.start("actor", "go")
    await run.until("failed")
    assert stage.released == []
    await run.cancel()
    await run.until("cancelled")
    assert stage.released == ["1"]


async def test_what_cannot_be_released_does_not_hold_up_a_completion_for_ever(
    path: Path,
) -> None:
    """After its attempts it is reported as still held; the answer is not lost over it."""
    tries: list[str] = []

    async def unlock(call: Call, args: dict[str, str], result: object) -> None:
        del args, result
        tries.append(call.key)
        raise OSError("no connection")

    @tool(release=unlock)
    async def lock(name: str) -> str:
        """Hold something."""
        return f"{name} locked"

    agent = Agent("actor", model=ScriptedModel([Use("lock", name="t"), "Done."]), tools=[lock])
    with anyio.fail_after(60):
        async with Midrun(kept_at(path), agents=[agent], outside=hasty()) as midrun:
            run = await midrun.start("actor", "go")
            await run.until("completed")
            assert len(tries) == ATTEMPTS
            assert len(set(tries)) == 1
            report = await run.report()
            assert names(report.still_held) == ["t"]
            assert not report.clean
            assert await midrun.verify(run.id)


# ── trying again ──────────────────────────────────────────────────────────────────────────


async def test_an_undo_is_tried_again_under_the_same_key(path: Path) -> None:
    """Each attempt is an entry; the one before it waits its turn out."""
    drafts = Drafts()
    drafts.fails["a"] = 2
    agent = drafts.agent(Use("write", name="a"), Use("write", name="b"), Use("slow", name="x"))
    with anyio.fail_after(60):
        async with Midrun(kept_at(path), agents=[agent], outside=hasty()) as midrun:
            run = await midrun.start("actor", "go")
            await drafts.stage.start("x").wait()
            await run.cancel(undo="all")
            await run.until("cancelled")
            assert [name for name, _, _ in drafts.tries] == ["b", "a", "a", "a"]
            keys = {name: key for name, key, _ in drafts.tries}
            assert {key for name, key, _ in drafts.tries if name == "a"} == {keys["a"]}
            assert keys["a"] != keys["b"]
            starts = [s.attempt for s in await entries(run, UndoStarted)]
            assert starts == [1, 1, 2, 3]
            assert drafts.stage.undone == ["b", "a"]
            assert (await run.report()).clean
            assert await midrun.verify(run.id)


async def test_an_undo_has_a_key_of_its_own(opened: Opener) -> None:
    """A far end that knows keys must not take the undo for a repetition of the call."""
    drafts = Drafts()
    midrun = await opened(drafts.agent(Use("write", name="a"), Use("slow", name="x")))
    run = await midrun.start("actor", "go")
    await drafts.stage.start("x").wait()
    await run.cancel(undo="all")
    await run.until("cancelled")
    ((_, key, _),) = drafts.tries
    assert key != drafts.call_keys["a"]


async def test_a_failed_undo_waits_before_it_is_tried_again(opened: Opener) -> None:
    """Longer each time; with a real clock, for once."""
    drafts = Drafts()
    drafts.fails["a"] = 1
    midrun = await opened(drafts.agent(Use("write", name="a"), Use("slow", name="x")))
    run = await midrun.start("actor", "go")
    await drafts.stage.start("x").wait()
    await run.cancel(undo="all")
    await run.until("cancelled")
    (failed,) = await entries(run, UndoFailed)
    at = [r.at for r in await midrun.store.read(run.id) if isinstance(r.entry, UndoStarted)]
    assert failed.retry_at is not None
    assert at[0] < failed.retry_at <= at[1]


async def test_an_undo_that_never_works_is_given_up_by_name_and_the_others_go_on(
    path: Path,
) -> None:
    """Then somebody mends the world, and an operator has it tried again."""
    drafts = Drafts()
    drafts.fails["b"] = ATTEMPTS
    turns = [Use("write", name=name) for name in "abc"]
    agent = drafts.agent(*turns, Use("slow", name="x"))
    with anyio.fail_after(60):
        async with Midrun(kept_at(path), agents=[agent], outside=hasty()) as midrun:
            run = await midrun.start("actor", "go")
            await drafts.stage.start("x").wait()
            await run.cancel(undo="all")
            await run.until("cancelled")
            assert [name for name, _, _ in drafts.tries] == ["c", *"b" * ATTEMPTS, "a"]
            (given_up,) = await entries(run, UndoGaveUp)
            (ended,) = await entries(run, RunCancelled)
            assert [left.call for left in ended.residue] == [given_up.call]
            report = await run.report()
            assert names(report.undone) == ["c", "a"]  # as it was undone
            assert names(report.not_undone) == ["b"]
            assert "cannot reach b" in report.not_undone[0].note
            assert not report.clean
            receipt = await run.retry_undo(actor="operator:olga")
            assert receipt.phase == "cancelling"
            await run.until("cancelled")
            assert drafts.stage.undone == ["c", "a", "b"]
            assert (await run.report()).clean
            assert len({key for name, key, _ in drafts.tries if name == "b"}) == 1
            with pytest.raises(ControlRefused, match="no_residue"):
                await run.retry_undo(actor="operator:olga")
            assert await midrun.verify(run.id)


async def test_somebody_can_take_the_residue_as_it_is(path: Path) -> None:
    """That is on the record, and does not make the report say that it was undone."""
    drafts = Drafts()
    drafts.fails["a"] = ATTEMPTS
    agent = drafts.agent(Use("write", name="a"), Use("slow", name="x"))
    with anyio.fail_after(60):
        async with Midrun(kept_at(path), agents=[agent], outside=hasty()) as midrun:
            run = await midrun.start("actor", "go")
            await drafts.stage.start("x").wait()
            with pytest.raises(ControlRefused, match="no_residue"):
                await run.accept_residue(actor="operator:olga")
            await run.cancel(undo="all")
            await run.until("cancelled")
            assert (await midrun.store.get_row(run.id)).head.attention
            await run.accept_residue(actor="operator:olga", reason="it is a draft")
            (accepted,) = await entries(run, ResidueAccepted)
            assert (accepted.by, accepted.reason) == ("olga", "it is a draft")
            assert not (await midrun.store.get_row(run.id)).head.attention
            assert names((await run.report()).not_undone) == ["a"]
            with pytest.raises(ControlRefused, match="no_residue"):
                await run.accept_residue(actor="operator:olga")


# ── after a crash ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("point", ["discard:before", "discard:after"])
async def test_an_undo_that_was_cut_short_by_a_crash_is_made_again_under_its_key(
    path: Path, tmp_path: Path, opened: Opener, point: str
) -> None:
    """At least once: whether the first attempt took effect, the key tells the far end."""
    world = World(tmp_path)
    with child("cancel", path, tmp_path, "drafts", point) as talk:
        run_id = talk.hear()
        talk.kill()
    assert (await (await opened()).get(run_id)).id == run_id
    agents = [world.agent("drafts")]
    async with Midrun(kept_at(path), agents=agents, outside=LATER) as midrun:
        run = await midrun.get(run_id)
        await run.until("cancelled")
        assert len(await entries(run, UndoUnknown)) == 1
        assert [start.attempt for start in await entries(run, UndoStarted)] == [1, 2, 1]
        assert (await run.report()).clean
    twice = point == "discard:after"
    told = [line for line in world.told() if line.startswith("discard")]
    assert told == ["discard 2"] * (1 + twice) + ["discard 1"]
    assert (
        len(
            {
                key
                for line, key in zip(world.told(), world.keys(), strict=True)
                if line == "discard 2"
            }
        )
        == 1
    )


async def test_a_cancel_that_nobody_drives_is_cleaned_up_by_whoever_comes(
    path: Path, opened: Opener
) -> None:
    """Asked for by a process that knows no agent, of a run that rests."""
    stage = ControllableTools()
    agent = stage.agent(Use("draft", name="a"), Use("lock", name="t"), Use("slow", name="x"))
    async with Midrun(kept_at(path), agents=[agent]) as first:
        run = await first.start("actor", "go")
        await stage.start("x").wait()
        await run.pause(now=True)
        await run.until("paused")
    looking = await opened()
    found = await looking.get(run.id)
    assert (await found.cancel(undo="all")).phase == "cancelling"
    assert stage.undone == []
    await opened(agent)
    await found.until("cancelled")
    assert (stage.undone, stage.released) == (["a"], ["t"])
