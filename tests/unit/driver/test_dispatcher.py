"""The call dispatcher: start and end of calls, abort and grace, shutdown, progress."""

import gc
import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from bench.durable_step import count_calls
from midrun import NOT_DONE, Agent, Call, tool
from midrun.agents.builtin_tools import PLAN_TOOL
from midrun.core.driver_inputs import (
    CloseCall,
    CloseCleanup,
    DriverInput,
    FailRun,
    RecordStopVerdict,
    SaveProgress,
    SetPlan,
    SettleCall,
)
from midrun.core.entries import (
    CallAborted,
    CallDone,
    CallFailed,
    CallStarted,
    CallUnknown,
    Entry,
    UndoDone,
    UndoFailed,
    UndoUnknown,
)
from midrun.core.ids import CallId, Epoch
from midrun.core.scheduler import AbortCall, AbortReason, EvaluateStopCondition
from midrun.core.values import Json
from midrun.core.values import RequestedCall as RequestedUse
from midrun.driver import dispatcher as dispatcher_module
from midrun.driver.notifications import Wakeup
from midrun.driver.stop_conditions import StopContext
from midrun.driver.subprocess import zygote_client
from midrun.driver.user_code import InFlightCall
from midrun.errors import StaleEpoch
from midrun.models import ScriptedModel, Use
from midrun.stops import Custom
from midrun.testing.controllable_tools import ControllableTools
from midrun.testing.scenario import RUN
from tests.unit.driver.driver_context import (
    CALL,
    LONG_GRACE,
    SHORT_GRACE,
    Dispatch,
    DriverParts,
    UnstoppableTool,
    let_others_run,
    make_agent,
    wait_until,
)
from tests.unit.driver.subprocess.blocking_tools import hold, undo_at_gate
from tests.unit.driver.subprocess.process_calls import GatedCall

# ── start and end ─────────────────────────────────────────────────────────────────────────


async def test_the_outcome_of_a_call_is_submitted_and_wakes_the_run_loop(
    tools: ControllableTools, dispatch: Dispatch
) -> None:
    test = dispatch(make_agent(*tools.tools()))
    test.start_tools(Use("quick", name="a"))
    await test.wakeup.wait()
    done = CallDone(call=CALL, result="a done")
    assert test.list_inputs() == [CloseCall(epoch=Epoch(1), outcome=done)]


def find_calls() -> set[int]:
    """Return the identities of the calls in memory."""
    return {id(each) for each in gc.get_objects() if isinstance(each, InFlightCall)}


async def test_a_call_that_has_ended_is_freed_without_the_garbage_collector(
    tools: ControllableTools, dispatch: Dispatch
) -> None:
    """Cycles in each call would make the collector run thirty times as often."""
    test = dispatch(make_agent(*tools.tools()))
    gc.collect()
    gc.disable()
    try:
        earlier = find_calls()  # of other tests
        test.start_tools(Use("quick", name="a"))
        assert len(find_calls() - earlier) == 1
        await test.wakeup.wait()
        test.dispatcher.remove_inputs(1, frozenset())
        await let_others_run()
        assert not find_calls() - earlier
    finally:
        gc.enable()


async def test_calls_run_in_parallel(tools: ControllableTools, dispatch: Dispatch) -> None:
    """The second ends first, and its outcome comes first."""
    test = dispatch(make_agent(*tools.tools()))
    test.start_tools(Use("slow", name="a"), Use("slow", name="b"))
    await tools.start("a").wait()
    await tools.start("b").wait()
    tools.gate("b").set()
    await test.wait_for_inputs(1)
    tools.gate("a").set()
    ends = await test.wait_for_inputs(2)
    assert [end.outcome.call for end in ends if isinstance(end, CloseCall)] == ["c3", "c2"]


async def test_an_error_of_a_tool_fails_its_call(dispatch: Dispatch) -> None:
    @tool
    async def book() -> str:
        raise ValueError("no such hotel")

    test = dispatch(make_agent(book))
    test.start_tools(Use("book"))
    assert await test.wait_for_outcome() == CallFailed(
        call=CALL, error="ValueError: no such hotel"
    )


async def test_a_tool_that_returns_the_verdict_of_a_check_fails(dispatch: Dispatch) -> None:
    """It says itself that nothing was done, so it is not stopped midway."""

    @tool(read_only=True)
    async def find() -> object:
        return NOT_DONE

    test = dispatch(make_agent(find))
    test.start_tools(Use("find"))
    assert isinstance(await test.wait_for_outcome(), CallFailed)


async def test_no_call_is_made_under_a_lease_that_has_lapsed(
    parts: DriverParts, tools: ControllableTools, dispatch: Dispatch
) -> None:
    """The process gives up all its leases, and the next worker closes the call as unknown."""
    test = dispatch(make_agent(*tools.tools()))
    parts.boot_s += 3600
    test.start_tools(Use("quick", name="a"))
    await wait_until(lambda: parts.lapses == 1)
    await let_others_run()
    assert tools.called == []
    assert test.list_inputs() == []


BUG = "RuntimeError: a bug"


@pytest.mark.parametrize(
    ("operation", "read_only", "expected"),
    [
        ("call", True, CloseCall(epoch=Epoch(1), outcome=CallFailed(call=CALL, error=BUG))),
        ("call", False, CloseCall(epoch=Epoch(1), outcome=CallUnknown(call=CALL))),
        ("check", False, FailRun(epoch=Epoch(1), error=BUG, code="check_failed")),
        ("undo", False, CloseCleanup(epoch=Epoch(1), outcome=UndoFailed(call=CALL, error=BUG))),
    ],
)
async def test_a_bug_of_midrun_ends_one_call_and_not_the_worker(
    dispatch: Dispatch,
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
    read_only: bool,
    expected: DriverInput,
) -> None:
    """The outcome says no more than is known: a call that may have acted is unknown."""

    async def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    for name in ("call_tool", "run_check", "run_cleanup"):
        monkeypatch.setattr(dispatcher_module, name, fail)
    test = dispatch(make_agent(tool(_do_nothing, name="act", read_only=read_only)))
    test.start_tools(Use("act"))
    inputs = await test.wait_for_inputs()
    if operation != "call":
        test.dispatcher.pending_inputs.clear()
        test.start_undo() if operation == "undo" else test.check()
        inputs = await test.wait_for_inputs()
    assert inputs == [expected]


async def _do_nothing() -> None:
    """Do nothing."""


async def test_secrets_are_redacted_before_an_outcome_is_submitted(dispatch: Dispatch) -> None:
    secret = "hunter2-and-then-some"

    @tool
    async def sign_up() -> dict[str, Json]:
        return {"password": secret, "user": "ada"}

    test = dispatch(make_agent(sign_up))
    test.start_tools(Use("sign_up"))
    done = await test.wait_for_outcome()
    assert isinstance(done, CallDone)
    assert isinstance(done.result, dict)
    assert done.result["user"] == "ada"
    assert secret not in str(done)


async def test_a_tool_gets_the_secrets_that_its_journaled_arguments_only_stand_for(
    parts: DriverParts, dispatch: Dispatch
) -> None:
    secret, received = "hunter2-and-then-some", []
    placeholder = parts.context.secret_registry.get_run(RUN).redact(secret)

    @tool
    async def sign_in(password: str) -> None:
        received.append(password)

    test = dispatch(make_agent(sign_in))
    test.start_tools(Use("sign_in", password=placeholder))
    await test.wait_for_outcome()
    assert received == [secret]


async def test_a_reply_that_cannot_be_stored_fails_the_call(dispatch: Dispatch) -> None:
    """The text has half of an emoji."""
    test = dispatch(Agent("actor", model=ScriptedModel(["\ud83d"])))
    test.start_model()
    failed = await test.wait_for_outcome()
    assert isinstance(failed, CallFailed)
    assert failed.code == "model_error"


async def test_the_second_of_two_plan_calls_builds_on_the_plan_of_the_first(
    dispatch: Dispatch,
) -> None:
    """Both start from the same journal, in which the first plan is not yet."""
    test = dispatch(make_agent(PLAN_TOOL))
    test.start_tools(
        Use("plan", items=["search", "book"]),
        Use("plan", marks={"1": "done"}),
        Use("plan", marks={"7": "done"}),
    )
    inputs = await test.wait_for_inputs(5)
    plans = [made.items for made in inputs if isinstance(made, SetPlan)]
    assert [[item.state for item in plan] for plan in plans] == [
        ["queued", "queued"],
        ["done", "queued"],
    ]
    failed = CallFailed(call=CallId("c4"), error="the plan has 2 items, and no item 7")
    assert inputs[-1] == CloseCall(epoch=Epoch(1), outcome=failed)


# ── hooks and stop conditions ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize("happened", [True, False])
async def test_a_check_does_not_run_beside_itself(dispatch: Dispatch, happened: bool) -> None:
    """It runs again if it is planned again after its end."""
    gate, checks = anyio.Event(), []

    async def check(_: Call, args: Json) -> object:
        checks.append(args)
        await gate.wait()
        return "found" if happened else NOT_DONE

    test = dispatch(make_agent(tool(_do_nothing, name="act", check=check)))
    test.scenario = test.scenario.replies(test.agent.complete_use(RequestedUse(tool="act")))
    test.scenario = test.scenario.starts("c2").after(CallUnknown(call=CALL))
    test.check()
    await wait_until(lambda: checks == [{}])
    test.check()
    gate.set()
    result = "found" if happened else None
    settled = SettleCall(epoch=Epoch(1), call=CALL, happened=happened, result=result)
    assert await test.wait_for_inputs() == [settled]
    assert checks == [{}]
    test.check()
    assert await test.wait_for_inputs(2) == [settled, settled]
    assert checks == [{}, {}]


async def test_an_undo_is_run_with_the_arguments_and_the_result_of_its_call(
    dispatch: Dispatch,
) -> None:
    received = []

    async def delete(_: Call, args: Json, result: Json) -> None:
        received.append((args, result))

    async def write(name: str) -> str:
        """Write a draft."""
        return f"draft of {name}"

    test = dispatch(make_agent(tool(write, undo=delete)))
    test.start_tools(Use("write", name="a"))
    done = await test.wait_for_outcome()
    test.dispatcher.pending_inputs.clear()
    test.scenario = test.scenario.after(done)
    test.start_undo()
    assert await test.wait_for_outcome() == UndoDone(call=CALL)
    assert received == [({"name": "a"}, "draft of a")]


async def test_an_undo_cannot_save_progress(dispatch: Dispatch) -> None:
    async def delete(call: Call, _: Json, __: Json) -> None:
        await call.save({"page": 1})

    test = dispatch(make_agent(tool(_do_nothing, name="act", undo=delete)))
    test.start_tools(Use("act"))
    await test.wait_for_outcome()
    test.dispatcher.pending_inputs.clear()
    test.start_undo()
    failed = await test.wait_for_outcome()
    assert isinstance(failed, UndoFailed)
    assert "cannot save progress" in failed.error


EVALUATIONS: list[int] = []


def has_seen_enough(context: StopContext) -> bool:
    """Stop after the first step."""
    EVALUATIONS.append(context.steps)
    return True


def raise_in_stop(_: StopContext) -> bool:
    """Raise."""
    raise ValueError("no verdict")


async def test_a_stop_condition_is_not_evaluated_beside_itself(dispatch: Dispatch) -> None:
    """It is evaluated again if it is planned again after its verdict."""
    EVALUATIONS.clear()
    stop = Custom(has_seen_enough)
    test = dispatch(Agent("actor", model=ScriptedModel(["Done."]), stop=stop))
    effect = EvaluateStopCondition(name=stop.fn)
    test.dispatcher.apply([effect], test.scenario.state)
    test.dispatcher.apply([effect], test.scenario.state)
    await let_others_run()
    verdict = RecordStopVerdict(epoch=Epoch(1), name=stop.fn, met=True)
    assert test.list_inputs() == [verdict]
    assert EVALUATIONS == [0]
    test.dispatcher.apply([effect], test.scenario.state)
    assert await test.wait_for_inputs(2) == [verdict, verdict]


@pytest.mark.parametrize("declared", [raise_in_stop, has_seen_enough])
async def test_a_stop_condition_that_raises_or_is_not_declared_fails_the_run(
    dispatch: Dispatch, declared: Callable[[StopContext], bool]
) -> None:
    """A name that the agent does not declare may come from a foreign journal: no import."""
    EVALUATIONS.clear()
    test = dispatch(Agent("actor", model=ScriptedModel(["Done."]), stop=Custom(declared)))
    effect = EvaluateStopCondition(name=Custom(raise_in_stop).fn)
    test.dispatcher.apply([effect], test.scenario.state)
    (failed,) = await test.wait_for_inputs()
    assert isinstance(failed, FailRun)
    assert failed.code == "stop_failed"
    is_declared = declared is raise_in_stop
    assert ("ValueError: no verdict" if is_declared else "Cannot call it") in failed.error


# ── abort and grace ───────────────────────────────────────────────────────────────────────


async def test_an_aborted_call_has_its_grace_to_clean_up(dispatch: Dispatch) -> None:
    """The same abort in every iteration of the run loop does not interrupt the cleanup."""
    called, cleaning, gate, cleaned = anyio.Event(), anyio.Event(), anyio.Event(), []

    @tool
    async def upload() -> None:
        called.set()
        try:
            await anyio.sleep_forever()
        finally:
            cleaning.set()
            await gate.wait()
            cleaned.append("upload")

    test = dispatch(make_agent(upload))
    test.start_tools(Use("upload"))
    await called.wait()
    test.abort("paused")
    await cleaning.wait()
    test.abort("paused")
    await let_others_run()
    assert test.list_inputs() == []
    gate.set()
    assert await test.wait_for_outcome() == CallAborted(call=CALL)
    assert cleaned == ["upload"]


def count_grace_watchers() -> int:
    return sum("_watch_grace" in str(task.name) for task in anyio.get_running_tasks())


async def test_one_task_watches_the_grace_until_the_call_has_stopped(
    tools: ControllableTools, dispatch: Dispatch
) -> None:
    test = dispatch(make_agent(*tools.tools()))
    test.start_tools(Use("read", name="a"))
    await tools.start("a").wait()
    test.abort("cancelled")
    test.abort("cancelled")
    test.dispatcher.begin_shutdown()
    assert count_grace_watchers() == 1
    assert await test.wait_for_outcome() == CallAborted(call=CALL)
    await wait_until(lambda: count_grace_watchers() == 0)


@pytest.mark.parametrize("turns", range(8))
async def test_a_call_that_ends_in_the_turn_in_which_its_grace_ends_ends_once(
    parts: DriverParts, dispatch: Dispatch, turns: int
) -> None:
    """Cleanup of the tool blocks the event loop until the grace is over, then returns."""
    grace = timedelta(milliseconds=20)
    called, second_half = anyio.Event(), anyio.Event()

    @tool
    async def upload() -> str:
        with anyio.CancelScope(shield=True):
            called.set()
            await second_half.wait()
            grace_end = anyio.current_time() + grace.total_seconds()
            while anyio.current_time() < grace_end:
                pass
            await let_others_run(turns)
        return "uploaded"

    test = dispatch(make_agent(upload, grace=grace))
    test.start_tools(Use("upload"))
    await called.wait()
    with parts.live_output.watch(RUN, Wakeup()) as deltas:
        test.abort("cancelled")
        await wait_until(lambda: [delta.kind for delta in deltas] == ["not_responding"])
    second_half.set()
    outcome = await test.wait_for_outcome()
    await let_others_run()
    assert len(test.list_inputs()) == 1
    assert outcome in [
        CallDone(call=CALL, result="uploaded"),
        CallUnknown(call=CALL, why="not_responding"),
    ]


async def test_a_call_that_returns_after_its_abort_is_done(dispatch: Dispatch) -> None:
    stubborn = UnstoppableTool()
    test = dispatch(make_agent(stubborn.tool))
    test.start_tools(Use("unstoppable"))
    await stubborn.called.wait()
    test.abort("cancelled")
    stubborn.gate.set()
    assert await test.wait_for_outcome() == CallDone(call=CALL, result="done after all")


async def test_a_model_call_that_is_aborted_has_the_text_so_far(
    parts: DriverParts, dispatch: Dispatch
) -> None:
    model = ScriptedModel(["Hello world."], chunk_delay=3600.0)
    test = dispatch(Agent("actor", model=model, grace=LONG_GRACE))
    with parts.live_output.watch(RUN, Wakeup()) as deltas:
        test.start_model()
        await wait_until(lambda: [delta.text for delta in deltas] == ["Hello "])
    effect = AbortCall(call=CallId("c1"), reason="paused")
    test.dispatcher.apply([effect], test.scenario.state)
    outcome = await test.wait_for_outcome()
    assert outcome == CallAborted(call=CallId("c1"), text="Hello ")


@pytest.mark.parametrize("reason", ["paused", "redirected", "halted"])
async def test_a_run_that_stops_waits_for_a_call_that_does_not_respond(
    parts: DriverParts, dispatch: Dispatch, reason: AbortReason
) -> None:
    """It is shown as not responding. A cancel then starts a grace of its own."""
    stubborn = UnstoppableTool()
    test = dispatch(make_agent(stubborn.tool, grace=SHORT_GRACE))
    test.start_tools(Use("unstoppable"))
    await stubborn.called.wait()
    with parts.live_output.watch(RUN, Wakeup()) as deltas:
        test.abort(reason)
        await wait_until(lambda: [delta.kind for delta in deltas] == ["not_responding"])
        grace_end = anyio.current_time() + SHORT_GRACE.total_seconds()
        await wait_until(lambda: anyio.current_time() > grace_end)
        await let_others_run()
        assert test.list_inputs() == []
        test.abort("cancelled")
        unknown = CallUnknown(call=CALL, why="not_responding")
        assert await test.wait_for_outcome() == unknown
    stubborn.gate.set()


@pytest.mark.parametrize(
    ("read_only", "outcome"),
    [
        (False, CallUnknown(call=CALL, why="not_responding")),
        (True, CallFailed(call=CALL, error="timed out after 0.001 s")),
    ],
)
async def test_a_call_that_outlives_its_timeout_and_its_grace_is_abandoned(
    dispatch: Dispatch, read_only: bool, outcome: Entry
) -> None:
    """No control has asked for its end."""
    timeout = timedelta(milliseconds=1)
    stubborn = UnstoppableTool(timeout=timeout, read_only=read_only)
    test = dispatch(make_agent(stubborn.tool, grace=SHORT_GRACE))
    test.start_tools(Use("unstoppable"))
    assert await test.wait_for_outcome() == outcome
    stubborn.gate.set()


async def test_a_timeout_that_ends_after_a_pause_abandons_a_call_that_does_not_stop(
    dispatch: Dispatch,
) -> None:
    """The pause alone would wait for the call for ever."""
    stubborn = UnstoppableTool(timeout=timedelta(milliseconds=100))
    test = dispatch(make_agent(stubborn.tool, grace=SHORT_GRACE))
    test.start_tools(Use("unstoppable"))
    await stubborn.called.wait()
    test.abort("paused")
    unknown = CallUnknown(call=CALL, why="not_responding")
    assert await test.wait_for_outcome() == unknown
    stubborn.gate.set()


async def test_an_undo_that_does_not_stop_at_shutdown_is_unknown(dispatch: Dispatch) -> None:
    called, gate = anyio.Event(), anyio.Event()

    async def delete(_: Call, __: Json, ___: Json) -> None:
        with anyio.CancelScope(shield=True):
            called.set()
            await gate.wait()

    test = dispatch(make_agent(tool(_do_nothing, name="act", undo=delete), grace=SHORT_GRACE))
    test.start_tools(Use("act"))
    await test.wait_for_outcome()
    test.dispatcher.pending_inputs.clear()
    test.start_undo()
    await called.wait()
    test.dispatcher.begin_shutdown()
    assert await test.wait_for_outcome() == UndoUnknown(call=CALL)
    gate.set()


@pytest.mark.parametrize("raises", [False, True])
async def test_shutdown_stops_an_undo_at_once(dispatch: Dispatch, raises: bool) -> None:
    """The next worker runs it again. It may turn its cancellation into an error."""
    called = anyio.Event()

    async def delete(_: Call, __: Json, ___: Json) -> None:
        called.set()
        try:
            await anyio.sleep_forever()
        finally:
            if raises:
                raise ConnectionError("connection closed")

    test = dispatch(make_agent(tool(_do_nothing, name="act", undo=delete)))
    test.start_tools(Use("act"))
    await test.wait_for_outcome()
    test.dispatcher.pending_inputs.clear()
    test.start_undo()
    await called.wait()
    test.dispatcher.begin_shutdown()
    assert await test.wait_for_outcome() == UndoUnknown(call=CALL)


async def test_a_killed_process_whose_end_is_not_seen_is_unknown(
    parts: DriverParts,
    dispatch: Dispatch,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its zygote is frozen and reports nothing. A paused run must not call it stopped."""
    monkeypatch.setattr(zygote_client, "KILL_TIMEOUT_S", 0.05)
    middle = GatedCall(tmp_path)
    async with parts.context.zygote:
        test = dispatch(make_agent(hold, grace=SHORT_GRACE))
        test.start_tools(Use("hold", **middle.args))
        await middle.fifo.read_numbers()
        (process,) = parts.context.zygote._processes.values()
        os.kill(process._process.pid, signal.SIGSTOP)
        test.abort("paused")
        outcome = await test.wait_for_outcome()
        os.kill(process._process.pid, signal.SIGCONT)
    assert outcome == CallUnknown(call=CALL, why="not_responding")


async def test_shutdown_stops_an_undo_in_a_process(
    parts: DriverParts, dispatch: Dispatch, tmp_path: Path
) -> None:
    """SIGTERM ends the process without an answer; that is no failure of the undo."""

    async def act(begun: str, gate: str, effect: str) -> None:
        """Do nothing."""

    middle = GatedCall(tmp_path)
    async with parts.context.zygote:
        test = dispatch(make_agent(tool(act, undo=undo_at_gate)))
        test.start_tools(Use("act", **middle.args))
        await test.wait_for_outcome()
        test.dispatcher.pending_inputs.clear()
        test.start_undo()
        await middle.fifo.read_numbers()
        test.dispatcher.begin_shutdown()
        assert await test.wait_for_outcome() == UndoUnknown(call=CALL)
    assert not middle.effect.exists()


@pytest.mark.parametrize("reason", ["paused", "redirected", "halted"])
async def test_shutdown_of_a_run_that_stops_starts_one_grace(
    dispatch: Dispatch, reason: AbortReason
) -> None:
    """Each iteration of the run loop asks for both stops; the shutdown has the last word."""
    stubborn = UnstoppableTool(read_only=True)
    test = dispatch(make_agent(stubborn.tool))
    test.start_tools(Use("unstoppable"))
    await stubborn.called.wait()
    for _ in range(3):
        test.dispatcher.begin_shutdown()
        test.abort(reason)
    watchers = count_grace_watchers()
    stubborn.gate.set()
    await test.wait_for_outcome()
    assert watchers == 1


async def test_shutdown_stops_an_unsafe_call_after_its_grace(
    tools: ControllableTools, dispatch: Dispatch
) -> None:
    test = dispatch(make_agent(*tools.tools(), grace=SHORT_GRACE))
    test.start_tools(Use("slow", name="a"))
    await tools.start("a").wait()
    test.dispatcher.begin_shutdown()
    test.dispatcher.begin_shutdown()
    assert await test.wait_for_outcome() == CallAborted(call=CALL)
    assert tools.stopped == ["a"]


async def test_shutdown_stops_a_call_that_is_safe_to_repeat_at_once(
    tools: ControllableTools, dispatch: Dispatch
) -> None:
    test = dispatch(make_agent(*tools.tools(), grace=LONG_GRACE))
    test.start_tools(Use("read", name="a"))
    await tools.start("a").wait()
    test.dispatcher.begin_shutdown()
    assert await test.wait_for_outcome() == CallAborted(call=CALL)


# ── progress and the end of the lease ─────────────────────────────────────────────────────


@pytest.mark.parametrize("is_durable", [True, False])
async def test_save_waits_until_the_run_loop_has_appended_or_refused_the_progress(
    dispatch: Dispatch, is_durable: bool
) -> None:
    saves: list[str] = []

    @tool
    async def crawl(call: Call) -> None:
        try:
            await call.save({"page": 1, "password": "hunter2-and-then-some"})
            saves.append("saved")
        except StaleEpoch:
            saves.append("refused")

    test = dispatch(make_agent(crawl))
    test.start_tools(Use("crawl"))
    (saved,) = await test.wait_for_inputs()
    assert isinstance(saved, SaveProgress)
    assert "hunter2" not in str(saved)
    await let_others_run()
    assert saves == []
    waiter = test.dispatcher.pending_inputs.pop().save_waiter
    assert waiter is not None
    waiter.is_durable = is_durable
    waiter.done.set()
    assert isinstance(await test.wait_for_outcome(), CallDone)
    assert saves == (["saved"] if is_durable else ["refused"])


async def test_close_stops_all_calls_and_submits_nothing_more(
    tools: ControllableTools, dispatch: Dispatch
) -> None:
    saves: list[str] = []

    @tool
    async def crawl(call: Call) -> None:
        try:
            await call.save({"page": 1})
        except StaleEpoch:
            saves.append("refused")

    test = dispatch(make_agent(crawl, *tools.tools()))
    test.start_tools(Use("slow", name="a"), Use("crawl"))
    await tools.start("a").wait()
    await test.wait_for_inputs(1)
    test.dispatcher.close()
    await wait_until(lambda: tools.stopped == ["a"] and saves == ["refused"])
    test.dispatcher.start([_make_started("c2")], test.scenario.state)
    await let_others_run()
    assert tools.called == ["a"], "a closed dispatcher starts no call"
    assert test.list_inputs() == []


def _make_started(call: str) -> CallStarted:
    return CallStarted(call=CallId(call), call_kind="tool", attempt=1, seen=0)  # type: ignore[arg-type]  # a seq


STEP_MAX_CALLS = 470
"""Python calls in a durable step: a model call, a tool call, and two commits in SQLite."""


def test_a_durable_step_makes_few_python_calls() -> None:
    """A feature that a run does not use costs its steps nothing.

    The count does not depend on the speed of the machine. `python -m bench durable_step` shows
    it by package.
    """
    assert count_calls().quietest_step <= STEP_MAX_CALLS
