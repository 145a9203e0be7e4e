"""Cancellations that are not midrun's: asyncio lets any code cancel any task.

What a tool, a model or a condition leaves on its task must not end anything but itself. Where
others have ended midrun's own tasks, nobody is left waiting.
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

from midrun import Agent, Call, Cancelled, Completed, Midrun, Tool, tool
from midrun.core.entries import CallAborted, CallDone, CallFailed, CallUnknown, LateResult
from midrun.errors import EngineLost
from midrun.models import ScriptedModel, Use
from midrun.ports.model import Finished, Piece, Prompt
from midrun.stops import Custom, MaxSteps
from midrun.stores.memory import MemoryStore
from tests.scenarios.promises.seen import PATIENCE, entries, journal
from tests.unit.runs.conftest import Opener


def strike() -> None:
    """Do what a timer does that fires too late: cancel the task that is at work."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


@tool
async def returns() -> str:
    """Leave a cancellation behind, and return."""
    strike()
    return "counted"


@tool
async def fails() -> str:
    """Leave a cancellation behind, and raise."""
    strike()
    raise ValueError("its own")


@tool
async def is_hit() -> str:
    """Be cancelled at an await of its own."""
    strike()
    await checkpoint()
    return "never"


async def _take_back(_: Call, __: object, ___: object) -> None:
    strike()


@tool(undo=_take_back)
async def posts() -> str:
    """Do something that is taken back by a function that leaves a cancellation."""
    return "posted"


def is_enough(_: object) -> bool:
    """Leave a cancellation behind, and decide."""
    strike()
    return True


class Struck(ScriptedModel):
    """A model whose connection leaves a cancellation behind when it is closed."""

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        """Play on."""
        async with super().stream(prompt) as pieces:
            yield pieces
        strike()


CALLS = [(returns, "counted"), (fails, "its own"), (is_hit, "CancelledError")]


@pytest.mark.parametrize(("struck", "heard"), CALLS, ids=lambda one: getattr(one, "name", None))
async def test_what_a_tool_leaves_on_its_task_ends_nothing_else(
    opened: Opener, struck: Tool, heard: str
) -> None:
    """Its outcome counts, its run goes on, and so does the run beside it."""
    midrun = await opened(
        Agent("actor", model=ScriptedModel([Use(struck.name), "Done."]), tools=[struck]),
        Agent("other", model=ScriptedModel(["Fine."])),
    )
    run = await midrun.start("actor", "go")
    assert isinstance(await run.result(), Completed)
    ends = [one for one in await journal(run) if isinstance(one, CallDone | CallFailed)]
    assert heard in str(ends[1])
    assert isinstance(await (await midrun.start("other", "go")).result(), Completed)


async def test_what_a_model_leaves_on_its_task_ends_nothing_else(opened: Opener) -> None:
    """A library of a provider cancels the task that it runs in, say."""
    midrun = await opened(
        Agent("actor", model=Struck([Use("returns"), "Done."]), tools=[returns])
    )
    for _ in range(2):
        assert isinstance(await (await midrun.start("actor", "go")).result(), Completed)


async def test_what_an_undo_leaves_on_its_task_ends_nothing_else(opened: Opener) -> None:
    """It is undone, and the report says so."""
    model = ScriptedModel([Use("posts"), Use("waits"), "Done."])
    waiting = anyio.Event()

    @tool
    async def waits() -> None:
        """Wait to be stopped."""
        waiting.set()
        await anyio.sleep_forever()

    midrun = await opened(Agent("actor", model=model, tools=[posts, waits]))
    run = await midrun.start("actor", "go")
    await waiting.wait()
    await run.cancel(undo="all")
    ended = await run.result()
    assert isinstance(ended, Cancelled)
    assert len(ended.report.undone) == 1


async def test_what_a_condition_leaves_on_its_task_ends_nothing_else(opened: Opener) -> None:
    """It is met, and the run pauses."""
    stop = Custom(is_enough, then="complete")
    midrun = await opened(Agent("actor", model=ScriptedModel(["Hm."] * 2), stop=stop))
    run = await midrun.start("actor", "go")
    assert isinstance(await run.result(), Completed)
    other = await midrun.start("actor", "go", stop=MaxSteps(9))
    assert isinstance(await other.result(), Completed)


async def test_a_call_that_is_stopped_while_one_is_left_on_its_task_is_stopped() -> None:
    """AnyIO does not take the two for one: the stop is carried out, and nothing else ends."""
    started = anyio.Event()

    @tool
    async def stubborn() -> None:
        """Survive one cancellation of its own, and wait."""
        strike()
        with suppress(asyncio.CancelledError):
            await checkpoint()
        started.set()
        await anyio.sleep_forever()

    model = ScriptedModel([Use("stubborn"), "Done."])
    with anyio.fail_after(PATIENCE):
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


async def test_nobody_waits_on_in_an_engine_whose_tasks_were_cancelled() -> None:
    """The block is left with an error that says why, and the runs go on elsewhere."""
    store = MemoryStore()
    agent = Agent("actor", model=ScriptedModel(["Done."]))
    with anyio.fail_after(PATIENCE):
        with pytest.raises(EngineLost, match="Open the store again"):
            await _lose(Midrun(store, agents=[agent]))
        async with Midrun(store, agents=[agent]) as again:
            assert isinstance(await (await again.start("actor", "go")).result(), Completed)


async def _lose(midrun: Midrun) -> None:
    """Open it, and have a task of its engine cancelled."""
    async with midrun:
        for task in asyncio.all_tasks():
            if "LocalWorker._sweep" in repr(task):
                task.cancel()
        await anyio.sleep_forever()


async def test_a_tool_that_does_not_stop_when_its_time_is_up_is_given_up(
    opened: Opener,
) -> None:
    """Its outcome is unknown, a person is asked, and the late result is the answer."""
    gate = anyio.Event()

    @tool(timeout=timedelta(milliseconds=10))
    async def deaf() -> str:
        """Wait for the gate, whatever is raised meanwhile."""
        while not gate.is_set():
            with suppress(asyncio.CancelledError):
                await gate.wait()
        return "sent"

    model, grace = ScriptedModel([Use("deaf"), "Done."]), timedelta(milliseconds=50)
    midrun = await opened(Agent("actor", model=model, tools=[deaf], grace=grace))
    run = await midrun.start("actor", "go")
    try:
        await run.until("waiting")
        assert [lost.why for lost in await entries(run, CallUnknown)] == ["not_responding"]
    finally:
        gate.set()
    await run.until("completed")
    assert [late.result for late in await entries(run, LateResult)] == ["sent"]


async def test_a_tool_that_makes_another_error_of_its_stop_was_stopped_midway(
    opened: Opener,
) -> None:
    """It counts as one that may have taken effect, so that a later cancel undoes it."""
    posted, undone = anyio.Event(), anyio.Event()

    async def take_back(_: Call, __: object, ___: object) -> None:
        undone.set()

    @tool(undo=take_back)
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
    assert len(await entries(run, CallAborted)) == 1
    await run.cancel(undo="all")
    ended = await run.result()
    assert isinstance(ended, Cancelled)
    assert undone.is_set()
    assert len(ended.report.undone) == 1


async def test_a_large_result_that_a_stopped_tool_returns_within_its_grace_is_kept(
    opened: Opener,
) -> None:
    """A large result is checked in many turns of the loop; the stop must not end the check."""
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
    done = (await entries(run, CallDone))[-1]  # the first one is the model's
    assert done.result == list(range(100_000))


async def test_a_tool_that_makes_another_error_of_its_timeout_was_stopped_midway(
    opened: Opener,
) -> None:
    """A tool that acts is not told as failed, which would mean that it did nothing."""

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
    assert [end.final for end in await entries(run, CallAborted)] == [True]


@tool
async def presses_ctrl_c() -> None:
    """Raise the error of Ctrl-C without a signal."""
    raise KeyboardInterrupt


@tool
async def is_interrupted() -> None:
    """Be at work when the signal of Ctrl-C comes, a second time."""
    for _ in range(2):
        signal.raise_signal(signal.SIGINT)


async def _play(struck: Tool) -> str:
    model = ScriptedModel([Use(struck.name), "Done."])
    async with Midrun("memory://", agents=[Agent("a", model=model, tools=[struck])]) as mid:
        return str(await (await mid.start("a", "go")).result())


def test_a_keyboard_interrupt_that_a_tool_raises_ends_its_call_and_nothing_else() -> None:
    """It is no Ctrl-C: no signal came."""
    assert "completed" in asyncio.run(_play(presses_ctrl_c))


def test_ctrl_c_in_the_middle_of_a_tool_ends_the_process() -> None:
    """The first asks the main task to leave; the second is no result of the tool."""
    before = set(threading.enumerate())
    # A shell starts background jobs with SIGINT ignored, and Python then raises nothing.
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(_play(is_interrupted))
    finally:
        signal.signal(signal.SIGINT, inherited)
    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in left)  # they would keep the process alive
