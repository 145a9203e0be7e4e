"""User code that raises, blocks or cancels tasks ends its own call and nothing else.

Asyncio lets any code cancel any task. A cancellation that a tool, a model or a stop condition
leaves behind on its task must not end other runs, and no waiter may wait for ever.
"""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import anyio
import pytest
from anyio.lowlevel import checkpoint

from midrun import Agent, Call, Cancelled, Completed, Failed, Midrun, Tool, pause_here, tool
from midrun.core.entries import CallAborted, CallDone, CallFailed, CallUnknown, LateResult
from midrun.errors import EngineLost
from midrun.models import ScriptedModel, Use
from midrun.ports.model import Finished, Piece, Prompt
from midrun.stops import Custom, MaxSteps
from midrun.stores.memory import MemoryStore
from midrun.testing.controllable_tools import ControllableTools
from tests.support.run_journal import TIMEOUT_S, read_entries, read_journal
from tests.unit.runs.conftest import OpenMidrun


def cancel_current_task() -> None:
    """Cancel the current task, as a timer does that fires too late."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


@tool
async def cancel_and_return() -> str:
    """Leave a cancellation behind, and return."""
    cancel_current_task()
    return "counted"


@tool
async def cancel_and_raise() -> str:
    """Leave a cancellation behind, and raise."""
    cancel_current_task()
    raise ValueError("its own")


@tool
async def cancel_and_await() -> str:
    """Be cancelled at its own next await."""
    cancel_current_task()
    await checkpoint()
    return "never"


async def _undo_post(_: Call, __: object, ___: object) -> None:
    cancel_current_task()


@tool(undo=_undo_post)
async def publish() -> str:
    """Publish; the undo leaves a cancellation behind."""
    return "posted"


def stop_and_cancel(_: object) -> bool:
    """Leave a cancellation behind, and return True."""
    cancel_current_task()
    return True


class CancellingModel(ScriptedModel):
    """A model whose connection leaves a cancellation behind when it is closed."""

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        """Stream the turn, then cancel the task."""
        async with super().stream(prompt) as pieces:
            yield pieces
        cancel_current_task()


CALLS = [
    (cancel_and_return, "counted"),
    (cancel_and_raise, "its own"),
    (cancel_and_await, "CancelledError"),
]


@pytest.mark.parametrize(("call", "text"), CALLS, ids=lambda call: getattr(call, "name", None))
async def test_a_cancellation_that_a_tool_leaves_behind_ends_nothing_else(
    opened: OpenMidrun, call: Tool, text: str
) -> None:
    """The outcome of the call counts; its run and the other run continue."""
    midrun = await opened(
        Agent("actor", model=ScriptedModel([Use(call.name), "Done."]), tools=[call]),
        Agent("other", model=ScriptedModel(["Fine."])),
    )
    run = await midrun.start("actor", "go")
    assert isinstance(await run.result(), Completed)
    outcomes = [e for e in await read_journal(run) if isinstance(e, CallDone | CallFailed)]
    assert text in str(outcomes[1])
    assert isinstance(await (await midrun.start("other", "go")).result(), Completed)


async def test_a_cancellation_that_a_model_leaves_behind_ends_nothing_else(
    opened: OpenMidrun,
) -> None:
    """A provider's library may cancel the task that it runs in."""
    midrun = await opened(
        Agent(
            "actor",
            model=CancellingModel([Use("cancel_and_return"), "Done."]),
            tools=[cancel_and_return],
        )
    )
    for _ in range(2):
        assert isinstance(await (await midrun.start("actor", "go")).result(), Completed)


async def test_a_cancellation_that_an_undo_leaves_behind_ends_nothing_else(
    opened: OpenMidrun,
) -> None:
    """The call is reported as undone."""
    model = ScriptedModel([Use("publish"), Use("wait"), "Done."])
    waiting = anyio.Event()

    @tool
    async def wait() -> None:
        """Wait to be stopped."""
        waiting.set()
        await anyio.sleep_forever()

    midrun = await opened(Agent("actor", model=model, tools=[publish, wait]))
    run = await midrun.start("actor", "go")
    await waiting.wait()
    await run.cancel(undo="all")
    ended = await run.result()
    assert isinstance(ended, Cancelled)
    assert len(ended.report.undone) == 1


async def test_a_cancellation_that_a_stop_condition_leaves_behind_ends_nothing_else(
    opened: OpenMidrun,
) -> None:
    """Its verdict counts."""
    stop = Custom(stop_and_cancel, then="complete")
    midrun = await opened(Agent("actor", model=ScriptedModel(["Hm."] * 2), stop=stop))
    run = await midrun.start("actor", "go")
    assert isinstance(await run.result(), Completed)
    other = await midrun.start("actor", "go", stop=MaxSteps(9))
    assert isinstance(await other.result(), Completed)


async def test_a_call_with_a_stray_cancellation_on_its_task_can_be_stopped() -> None:
    """AnyIO must not mistake the stray cancellation for the stop, or the reverse."""
    started = anyio.Event()

    @tool
    async def stubborn() -> None:
        """Survive one cancellation of its own, and wait."""
        cancel_current_task()
        with suppress(asyncio.CancelledError):
            await checkpoint()
        started.set()
        await anyio.sleep_forever()

    model = ScriptedModel([Use("stubborn"), "Done."])
    with anyio.fail_after(TIMEOUT_S):
        async with Midrun(
            "memory://", agents=[Agent("a", model=model, tools=[stubborn])]
        ) as mid:
            run = await mid.start("a", "go")
            await started.wait()
            await run.cancel()
            assert isinstance(await run.result(), Cancelled)
            again = await mid.start("a", "go")
            await again.cancel()
            assert isinstance(await again.result(), Cancelled)


async def test_a_cancelled_worker_task_ends_midrun_with_an_error() -> None:
    """The body of `async with` does not wait for a worker that is gone; a new one continues."""
    store = MemoryStore()
    agent = Agent("actor", model=ScriptedModel(["Done."]))
    with anyio.fail_after(TIMEOUT_S):
        with pytest.raises(EngineLost, match="Open the store again"):
            await _cancel_sweep(Midrun(store, agents=[agent]))
        async with Midrun(store, agents=[agent]) as again:
            assert isinstance(await (await again.start("actor", "go")).result(), Completed)


async def _cancel_sweep(midrun: Midrun) -> None:
    """Open `midrun`, and cancel the sweep task of its worker."""
    async with midrun:
        for task in asyncio.all_tasks():
            if "LocalWorker._sweep" in repr(task):
                task.cancel()
        await anyio.sleep_forever()


async def test_a_tool_that_does_not_stop_after_its_timeout_is_abandoned(
    opened: OpenMidrun,
) -> None:
    """Its outcome is unknown until its late result settles the ask."""
    gate = anyio.Event()

    @tool(timeout=timedelta(milliseconds=10))
    async def swallow() -> str:
        """Wait for the gate, and swallow every cancellation."""
        while not gate.is_set():
            with suppress(asyncio.CancelledError):
                await gate.wait()
        return "sent"

    model, grace = ScriptedModel([Use("swallow"), "Done."]), timedelta(milliseconds=50)
    midrun = await opened(Agent("actor", model=model, tools=[swallow], grace=grace))
    run = await midrun.start("actor", "go")
    try:
        await run.until("waiting")
        assert [unknown.why for unknown in await read_entries(run, CallUnknown)] == [
            "not_responding"
        ]
    finally:
        gate.set()
    await run.until("completed")
    assert [late.result for late in await read_entries(run, LateResult)] == ["sent"]


async def test_a_tool_that_raises_another_error_when_stopped_is_aborted(
    opened: OpenMidrun,
) -> None:
    """It may have taken effect, so a later cancel undoes it."""
    posted, undone = anyio.Event(), anyio.Event()

    async def undo_post(_: Call, __: object, ___: object) -> None:
        undone.set()

    @tool(undo=undo_post)
    async def post() -> None:
        """Take effect, wait for a reply, and say that the connection broke."""
        posted.set()
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError as error:
            raise ConnectionError("the connection is closed") from error

    midrun = await opened(Agent("actor", model=ScriptedModel([Use("post")]), tools=[post]))
    run = await midrun.start("actor", "go")
    await posted.wait()
    await run.pause(now=True)
    await run.until("paused")
    assert len(await read_entries(run, CallAborted)) == 1
    await run.cancel(undo="all")
    ended = await run.result()
    assert isinstance(ended, Cancelled)
    assert undone.is_set()
    assert len(ended.report.undone) == 1


async def test_a_large_result_that_a_stopped_tool_returns_within_its_grace_is_stored(
    opened: OpenMidrun,
) -> None:
    """A large result is encoded in many turns of the event loop; the stop must not end that."""
    started = anyio.Event()

    @tool
    async def collect() -> list[int]:
        """Return the rows collected so far when it is stopped."""
        started.set()
        with suppress(asyncio.CancelledError):
            await anyio.sleep_forever()
        return list(range(100_000))

    model = ScriptedModel([Use("collect"), "Done."])
    midrun = await opened(Agent("actor", model=model, tools=[collect]))
    run = await midrun.start("actor", "go")
    await started.wait()
    await run.pause(now=True)
    await run.until("paused")
    done = (await read_entries(run, CallDone))[-1]  # the first one is the model's
    assert done.result == list(range(100_000))


async def test_a_tool_that_raises_another_error_at_its_timeout_is_aborted(
    opened: OpenMidrun,
) -> None:
    """*Failed* would mean that the call had no effect, which is not known."""

    @tool(timeout=timedelta(milliseconds=10))
    async def post() -> None:
        """Wait for a reply, and say that the connection broke."""
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError as error:
            raise ConnectionError("the connection is closed") from error

    model = ScriptedModel([Use("post"), "Done."])
    midrun = await opened(Agent("actor", model=model, tools=[post]))
    run = await midrun.start("actor", "go")
    assert isinstance(await run.result(), Completed)
    assert [end.final for end in await read_entries(run, CallAborted)] == [True]


@tool
async def raise_keyboard_interrupt() -> None:
    """Raise the error of Ctrl-C without a signal."""
    raise KeyboardInterrupt


@tool
async def receive_sigint() -> None:
    """Receive the signal of Ctrl-C twice."""
    for _ in range(2):
        signal.raise_signal(signal.SIGINT)


async def _run_tool(called: Tool) -> str:
    model = ScriptedModel([Use(called.name), "Done."])
    async with Midrun("memory://", agents=[Agent("a", model=model, tools=[called])]) as mid:
        return str(await (await mid.start("a", "go")).result())


def test_a_keyboard_interrupt_that_a_tool_raises_ends_its_call_and_nothing_else() -> None:
    """Without a signal it is not Ctrl-C."""
    assert "completed" in asyncio.run(_run_tool(raise_keyboard_interrupt))


def test_ctrl_c_in_the_middle_of_a_tool_ends_the_process() -> None:
    """The first SIGINT cancels the main task; the second must not become a result."""
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(_run_tool(receive_sigint))
    remaining = [thread for thread in threading.enumerate() if thread not in before]
    for thread in remaining:
        thread.join(TIMEOUT_S)
    assert not any(
        thread.is_alive() for thread in remaining
    )  # they would keep the process alive


# ── exceptions and blocked threads ────────────────────────────────────────────────────────


class UnusualError(BaseException):
    """An error that is not an `Exception`."""


def ask_person(_: object) -> bool:
    """Ask a person, which neither a stop condition nor `approve` can."""
    pause_here("May I?")


async def raise_cancelled(_: object) -> bool:
    """Raise as if a task that it awaits was cancelled."""
    raise asyncio.CancelledError


@pytest.mark.parametrize("stop", [ask_person, raise_cancelled])
async def test_a_stop_condition_that_raises_fails_only_its_run(
    opened: OpenMidrun, stop: object
) -> None:
    tools = ControllableTools()
    condition = Custom(stop)  # type: ignore[arg-type]  # it is a condition
    agent = tools.agent(Use("slow", name="a"), "Done.", stop=condition)
    midrun = await opened(agent)
    other = await midrun.start("actor", "other", stop=MaxSteps(9))
    await tools.start("a").wait()
    run = await midrun.start("actor", "go")
    assert isinstance(await run.result(), Failed)
    tools.gate("a").set()
    assert isinstance(await other.result(), Completed)


async def test_an_unusual_error_of_a_tool_ends_only_its_call(opened: OpenMidrun) -> None:
    """A `BaseException`, a `KeyboardInterrupt` in a thread, and a question in `approve`."""

    @tool
    async def unusual() -> None:
        """Raise an error that is not an `Exception`."""
        raise UnusualError

    @tool(approve=ask_person)
    async def gated() -> None:
        """Be gated by a function that asks a question."""

    @tool(in_process=True)
    def interrupted() -> None:
        """Raise the error of Ctrl-C in a thread, where Python never raises it."""
        raise KeyboardInterrupt

    model = ScriptedModel([[Use("unusual"), Use("gated"), Use("interrupted")], "Done."])
    midrun = await opened(Agent("actor", model=model, tools=[unusual, gated, interrupted]))
    run = await midrun.start("actor", "go")
    assert isinstance(await run.result(), Completed)


async def test_many_blocked_threads_do_not_delay_other_runs(opened: OpenMidrun) -> None:
    """Neither the store nor another run uses the same pool of threads."""
    gate, tools = threading.Event(), ControllableTools()

    @tool(in_process=True)
    def block() -> None:
        """Block until the test opens the gate."""
        gate.wait()

    blocked = Agent("blocked", model=ScriptedModel([Use("block"), "Ok."]), tools=[block])
    midrun = await opened(blocked, tools.agent(Use("quick", name="a"), "Done."))
    try:
        for n in range(45):
            await midrun.start("blocked", f"{n}")
        run = await midrun.start("actor", "go")
        assert isinstance(await run.result(), Completed)
        assert len((await midrun.runs(limit=100)).items) == 46
    finally:
        gate.set()
