"""Outcomes that cannot be stored as they are, replies of a faulty provider, and undo hooks."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import anyio
import pytest

from midrun import Agent, Call, Completed, Failed, Run, tool
from midrun.agents.signature import Function
from midrun.core.entries import CallDone, CallSettled, RunCancelled, UndoFailed, UndoStarted
from midrun.core.values import Reply, Spend
from midrun.driver.model_calls import REPLY_MAX_CALLS
from midrun.errors import OutcomeUnknown
from midrun.models import ScriptedModel, Use
from midrun.ports.model import Finished, Piece, Prompt, Unpriced
from midrun.stops import MaxTokens
from midrun.testing.controllable_tools import ControllableTools
from tests.support.run_journal import read_entries, wait_for_entry
from tests.unit.runs.conftest import OpenMidrun


class PieceModel(Unpriced):
    """A model that streams the given pieces in every call; `again` is set by the second."""

    name = "pieces"

    def __init__(self, *pieces: Piece | Finished) -> None:
        self._pieces = pieces
        self.calls = 0
        self.again = anyio.Event()

    @asynccontextmanager
    async def stream(self, _: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        self.calls += 1
        if self.calls > 1:
            self.again.set()

        async def stream_pieces() -> AsyncIterator[Piece | Finished]:
            for piece in self._pieces:
                yield piece

        yield stream_pieces()


async def test_a_call_whose_result_is_too_large_is_done_with_a_description(
    opened: OpenMidrun,
) -> None:
    """The call took effect. The run continues."""

    @tool
    async def read_log() -> str:
        """Return 5 MB of text, which is 10 MB as JSON."""
        return "\n" * 5_000_000

    model = ScriptedModel([Use("read_log"), "Done."])
    midrun = await opened(Agent("actor", model=model, tools=[read_log]))
    run = await midrun.start("actor", "go")
    assert isinstance(await run.result(), Completed)
    done = [entry for entry in await read_entries(run, CallDone) if entry.encoding_error]
    assert len(done) == 1


async def test_the_result_of_a_check_that_is_too_large_is_shortened(opened: OpenMidrun) -> None:
    """The call counts as done. The run continues."""

    async def check(_: Call, __: object) -> str:
        return "\n" * 5_000_000

    @tool(check=check)
    async def act() -> str:
        """Act, and lose the reply."""
        raise OutcomeUnknown("the line was cut")

    midrun = await opened(Agent("a", model=ScriptedModel([Use("act"), "Done."]), tools=[act]))
    run = await midrun.start("a", "go")
    assert isinstance(await run.result(), Completed)
    (settled,) = await read_entries(run, CallSettled)
    assert settled.happened
    assert len(str(settled.result)) < 10_000


async def test_a_reply_that_cannot_be_stored_fails_the_run(
    opened: OpenMidrun,
) -> None:
    """The reply has an unpaired surrogate. The failed run can still be cancelled."""
    model = PieceModel(Finished(reply=Reply(text="\ud83d")))
    midrun = await opened(Agent("actor", model=model))
    run = await midrun.start("actor", "go")
    assert isinstance(await run.result(), Failed)
    await run.cancel()
    await run.until("cancelled")


async def test_a_stream_without_an_end_is_retried_with_a_backoff(opened: OpenMidrun) -> None:
    """Each attempt costs money, so the retries must not follow each other at once."""
    model = PieceModel(Piece(kind="text", text="Hm"))
    midrun = await opened(Agent("actor", model=model))
    run = await midrun.start("actor", "go")
    await model.again.wait()
    await run.cancel()
    await run.until("cancelled")
    assert model.calls < 10


async def test_a_negative_usage_report_is_ignored(opened: OpenMidrun) -> None:
    tools = ControllableTools()
    spent = Spend(tokens=-50)
    model = PieceModel(Finished(reply=Reply(text="Hm", uses=()), spent=spent))
    midrun = await opened(Agent("actor", model=model, tools=tools.tools()))
    run = await midrun.start("actor", "go", stop=MaxTokens(10))
    await run.result()
    assert (await run.view()).usage.tokens >= 0


async def test_a_reply_with_too_many_calls_is_cut_to_the_limit(
    opened: OpenMidrun,
) -> None:
    """The model is told how many calls were left out."""
    made: list[int] = []

    @tool
    async def count(n: int) -> int:
        """Count."""
        made.append(n)
        return n

    many = [Use("count", n=n) for n in range(REPLY_MAX_CALLS + 50)]
    model = ScriptedModel([many, "Done."])
    run = await (await opened(Agent("actor", model=model, tools=[count]))).start("actor", "go")
    assert isinstance(await run.result(), Completed)
    assert sorted(made) == list(range(REPLY_MAX_CALLS))
    asked = (await read_entries(run, CallDone))[0].reply
    assert asked is not None
    assert "nor were 49 more" in asked.uses[-1].refused


# ── undo hooks ────────────────────────────────────────────────────────────────────────────


GRACE = timedelta(seconds=1)


class CallableUndo:
    """An undo that is an object with an async `__call__`."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, _: Call, __: object, ___: object) -> None:
        self.calls += 1


def iter_nothing() -> Iterator[int]:
    """Yield one item; the body runs only when it is iterated."""
    yield 1


async def return_generator(_: Call, __: object, ___: object) -> object:
    """Return a generator whose body has not run."""
    return iter_nothing()


async def save_progress(call: Call, _: object, __: object) -> None:
    """Save progress, which an undo cannot."""
    await call.save({"half": True})


async def _cancel_midway(
    opened: OpenMidrun, undo: Function, limit: timedelta | None = None
) -> Run:
    """Cancel a run in the middle of a call that is undone with `undo`, and return the run."""
    called = anyio.Event()

    @tool(undo=undo, timeout=limit)
    async def act() -> None:
        """Run until it is stopped."""
        called.set()
        await anyio.sleep_forever()

    model = ScriptedModel([Use("act")])
    midrun = await opened(Agent("a", model=model, tools=[act], grace=GRACE))
    run = await midrun.start("a", "go")
    await called.wait()
    await run.cancel()
    return run


async def test_an_undo_that_is_an_object_is_awaited(opened: OpenMidrun) -> None:
    undo = CallableUndo()
    run = await _cancel_midway(opened, undo)
    await run.until("cancelled")
    assert (len((await run.report()).undone), undo.calls) == (1, 1)


@pytest.mark.parametrize(
    ("undo", "error"),
    [
        (return_generator, "it returned a generator"),
        (lambda *_: iter_nothing(), "it returned a generator"),
        (save_progress, "cannot save progress in an undo"),
    ],
    ids=["async", "blocking", "saves"],
)
async def test_an_undo_that_has_not_run_to_its_end_is_not_reported_as_undone(
    opened: OpenMidrun, undo: Function, error: str
) -> None:
    """A generator that was only returned has undone nothing."""
    run = await _cancel_midway(opened, undo)
    assert error in (await wait_for_entry(run, UndoFailed)).error
    assert not (await run.report()).undone


@pytest.mark.slow
async def test_an_undo_that_swallows_its_cancellation_is_abandoned_and_listed_as_residue(
    opened: OpenMidrun,
) -> None:
    """It may still run, so it is not retried, and the report is not clean."""
    began, gate = anyio.Event(), anyio.Event()

    async def swallow_cancellation(_: Call, __: object, ___: object) -> None:
        began.set()
        while not gate.is_set():
            with suppress(asyncio.CancelledError):
                await gate.wait()

    run = await _cancel_midway(opened, swallow_cancellation, limit=timedelta(seconds=1))
    try:
        await began.wait()
        assert not (await run.report()).clean
        await run.until("cancelled")
        report = await run.report()
        assert [call.tool for call in report.not_undone] == ["act"]
        assert "did not stop" in report.not_undone[0].note
        assert not report.clean
        assert len(await read_entries(run, UndoStarted)) == 1
        (cancelled,) = await read_entries(run, RunCancelled)
        assert [left.action for left in cancelled.residue] == ["undo"]
    finally:
        gate.set()


async def test_a_coroutine_that_an_undo_only_returns_is_not_reported_as_undone(
    opened: OpenMidrun,
) -> None:
    """A blocking hook returned it, and it was never awaited."""
    tools = ControllableTools()

    async def undo_later() -> None:
        tools.undone.append("never")

    @tool(undo=lambda call, args, result: undo_later())  # noqa: ARG005 - as it is called
    async def put(call: Call) -> str:
        """Put."""
        tools.start("put").set()
        await tools.gate("put").wait()
        return call.key

    model = ScriptedModel([Use("put")])
    midrun = await opened(Agent("actor", model=model, tools=[put]))
    run = await midrun.start("actor", "go")
    await tools.start("put").wait()
    await run.cancel()
    await run.until("cancelling", "cancelled")
    assert not (await run.report()).undone
    assert tools.undone == []
