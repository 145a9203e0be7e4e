"""An undo may be written in many ways: it is run, or the report does not say that it was."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

import anyio
import pytest

from midrun import Agent, Call, Run, tool
from midrun.agents.signature import Function
from midrun.core.entries import RunCancelled, UndoFailed, UndoStarted
from midrun.models import ScriptedModel, Use
from tests.scenarios.promises.seen import entries, recorded
from tests.unit.runs.conftest import Opener

GRACE = timedelta(seconds=1)


class Later:
    """An undo that is an object: called as an async function."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, _: Call, __: object, ___: object) -> None:
        """Take it back."""
        self.calls += 1


def iter_nothing() -> Iterator[int]:
    """Be a body that only runs if somebody asks for its first item."""
    yield 1


async def hidden_generator(_: Call, __: object, ___: object) -> object:
    """Look like a function, and return a body that has not run."""
    return iter_nothing()


async def saves(call: Call, _: object, __: object) -> None:
    """Save progress where there is none."""
    await call.save({"half": True})


async def _cancelled(opened: Opener, undo: Function, limit: timedelta | None = None) -> Run:
    """Return a run that is cancelled in the middle of a call that is undone with `undo`."""
    at_work = anyio.Event()

    @tool(undo=undo, timeout=limit)
    async def act() -> None:
        """Act, until it is stopped."""
        at_work.set()
        await anyio.sleep_forever()

    model = ScriptedModel([Use("act")])
    midrun = await opened(Agent("a", model=model, tools=[act], grace=GRACE))
    run = await midrun.start("a", "go")
    await at_work.wait()
    await run.cancel()
    return run


async def test_an_undo_that_is_an_object_is_awaited(opened: Opener) -> None:
    """However it is written, it is called the way it asks to be."""
    undo = Later()
    run = await _cancelled(opened, undo)
    await run.until("cancelled")
    assert (len((await run.report()).undone), undo.calls) == (1, 1)


@pytest.mark.parametrize(
    ("undo", "why"),
    [
        (hidden_generator, "it returned a generator"),
        (lambda *_: iter_nothing(), "it returned a generator"),
        (saves, "cannot save progress in an undo"),
    ],
    ids=["async", "blocking", "saves"],
)
async def test_what_has_not_run_is_not_called_undone(
    opened: Opener, undo: Function, why: str
) -> None:
    """A body behind a `yield` has undone nothing, whatever it looks like."""
    run = await _cancelled(opened, undo)
    assert why in (await recorded(run, UndoFailed)).error
    assert not (await run.report()).undone


async def test_an_undo_that_swallows_its_cancellation_is_given_up_and_listed(
    opened: Opener,
) -> None:
    """It may still be at work, so it is not made again, and the report is not clean."""
    began, gate = anyio.Event(), anyio.Event()

    async def deaf(_: Call, __: object, ___: object) -> None:
        began.set()
        while not gate.is_set():
            with suppress(asyncio.CancelledError):
                await gate.wait()

    run = await _cancelled(opened, deaf, limit=timedelta(seconds=1))
    try:
        await began.wait()
        assert not (await run.report()).clean
        await run.until("cancelled")
        report = await run.report()
        assert [deed.tool for deed in report.not_undone] == ["act"]
        assert "did not stop" in report.not_undone[0].note
        assert not report.clean
        assert len(await entries(run, UndoStarted)) == 1
        (ended,) = await entries(run, RunCancelled)
        assert [left.action for left in ended.residue] == ["undo"]
    finally:
        gate.set()
