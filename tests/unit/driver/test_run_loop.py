"""The run loop: lease, conflicts, controls that wake it, halts, store failures, its end."""

from collections.abc import Sequence
from datetime import timedelta

import anyio
import pytest

from midrun import Agent, Call, File, OutcomeUnknown, pause_here, tool
from midrun.codec import snapshot as snapshots
from midrun.core.controls import Cancel, Control, ForcePause, Pause, Say
from midrun.core.entries import (
    AskOpened,
    CallAborted,
    CallDone,
    CallFailed,
    CallStarted,
    CallUnknown,
    CapReached,
    LateResult,
    LeaseReleased,
    LeaseTaken,
    ProgressSaved,
    Record,
    RunCancelled,
    RunFailed,
    RunHalted,
)
from midrun.core.ids import RunId, Seq
from midrun.core.stops import MaxTime, MaxTokens
from midrun.core.transcript import Transcript
from midrun.core.values import Phase
from midrun.driver.dispatcher import LATE_START_S
from midrun.driver.journal_writer import load_run_state, load_run_to_drive
from midrun.driver.run_loop import RunLoop
from midrun.errors import (
    NoRoom,
    StaleEpoch,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreUnreachable,
)
from midrun.models import ScriptedModel, Use
from midrun.ports.store import HaltRecord
from midrun.stops import Custom
from midrun.testing.controllable_tools import ControllableTools
from midrun.testing.scenario import RUN
from tests.unit.driver.driver_context import (
    LONG_GRACE,
    SHORT_GRACE,
    DriverParts,
    ModelWithFaults,
    let_others_run,
    raise_error,
    wait_until,
)


async def test_a_run_is_driven_to_its_end(parts: DriverParts, tools: ControllableTools) -> None:
    """The first call starts in the append that takes the lease; the last one gives it back."""
    loop = await parts.create_loop(tools.agent(Use("quick", name="a"), "Done."))
    await loop.run()
    kinds = await parts.read_kinds()
    assert kinds[:3] == ["RunStarted", "LeaseTaken", "CallStarted"]
    assert kinds[-1] == "RunCompleted"
    assert tools.completed == ["a"]
    assert loop.state == await load_run_state(parts.store, RUN)
    assert (await parts.store.get_row(RUN)).holder == ""


# ── the lease ─────────────────────────────────────────────────────────────────────────────


async def test_a_run_that_another_live_worker_holds_is_left_alone(
    parts: DriverParts, slow_agent: Agent
) -> None:
    loop = await parts.create_loop(slow_agent)
    await parts.take_lease_elsewhere()
    before = await parts.read_entries()
    await loop.run()
    assert await parts.read_entries() == before


async def test_a_run_that_is_paused_is_not_taken(parts: DriverParts, slow_agent: Agent) -> None:
    loop = await parts.create_loop(slow_agent)
    await parts.send(Pause(), loop)
    await loop.run()
    assert LeaseTaken not in {type(entry) for entry in await parts.read_entries()}


async def test_a_limit_that_is_reached_leaves_the_run_queued(
    parts: DriverParts, slow_agent: Agent
) -> None:
    other = RunId("run_2")
    await parts.create_loop(slow_agent, other)
    await parts.take_lease_elsewhere(other)
    parts.limits = {"all": 1}
    loop = await parts.create_loop(slow_agent)
    with pytest.raises(NoRoom):
        await loop.run()
    assert await parts.read_kinds() == ["RunStarted"]
    assert parts.heartbeat._lease_count == 0


async def test_the_heartbeat_counts_the_lease_while_the_loop_runs(
    parts: DriverParts, tools: ControllableTools, slow_agent: Agent
) -> None:
    _, returned = await parts.start_loop(slow_agent)
    await tools.start("a").wait()
    assert parts.heartbeat._lease_count == 1
    tools.gate("a").set()
    await returned.wait()
    assert parts.heartbeat._lease_count == 0


async def test_an_append_after_the_lease_was_lost_ends_the_loop(
    parts: DriverParts, tools: ControllableTools, slow_agent: Agent
) -> None:
    """The store refuses the old epoch. The result that could not be appended comes late."""
    _, returned = await parts.start_loop(slow_agent)
    await tools.start("a").wait()
    await parts.take_lease_elsewhere()
    tools.gate("a").set()
    await returned.wait()
    assert (await parts.wait_for_entry(LateResult)).result == "a done"
    records = await parts.store.read(RUN)
    taken = [record.seq for record in records if isinstance(record.entry, LeaseTaken)]
    assert {record.epoch for record in records if record.seq > taken[1]} <= {None, 2}


async def test_the_loop_stops_its_calls_when_it_reads_that_another_worker_has_the_lease(
    parts: DriverParts, tools: ControllableTools, slow_agent: Agent
) -> None:
    loop, returned = await parts.start_loop(slow_agent)
    await tools.start("a").wait()
    await parts.take_lease_elsewhere()
    before = await parts.read_entries()
    loop.journal_grew(Seq(len(before)))
    await returned.wait()
    await wait_until(lambda: tools.stopped == ["a"])
    assert await parts.read_entries() == before


async def test_fence_stops_the_calls_and_appends_nothing(
    parts: DriverParts, tools: ControllableTools, slow_agent: Agent
) -> None:
    loop, returned = await parts.start_loop(slow_agent)
    await tools.start("a").wait()
    before = await parts.read_entries()
    loop.fence()
    await returned.wait()
    await wait_until(lambda: tools.stopped == ["a"])
    await let_others_run()
    assert await parts.read_entries() == before


async def test_fence_stops_the_calls_although_an_append_hangs(
    parts: DriverParts, tools: ControllableTools
) -> None:
    """Another worker may take the run before the store replies."""
    agent = tools.agent([Use("slow", name="a"), Use("slow", name="b")], grace=LONG_GRACE)
    loop, returned = await parts.start_loop(agent)
    await tools.start("a").wait()
    await tools.start("b").wait()
    reached, allowed = parts.store.hold(CallDone)
    tools.gate("a").set()
    await reached.wait()
    loop.fence()
    await wait_until(lambda: tools.stopped == ["b"])
    allowed.set()
    await returned.wait()
    assert (await parts.read_kinds())[-1] == "CallDone"


async def test_a_call_whose_start_is_being_appended_is_not_made_after_fence(
    parts: DriverParts, tools: ControllableTools, slow_agent: Agent
) -> None:
    """The journal has it as started; the next lease closes it as unknown."""
    loop = await parts.create_loop(slow_agent)

    async def fence() -> None:
        loop.fence()

    parts.store.before(CallDone, fence)  # the same append starts the tool
    await loop.run()
    await let_others_run()
    assert len(await parts.find_entries(CallStarted)) == 2
    assert tools.called == []


async def test_a_worker_that_stands_down_gives_the_lease_back(
    parts: DriverParts, tools: ControllableTools
) -> None:
    """A call that is safe to repeat is stopped at once: the next worker makes it again."""
    agent = tools.agent(Use("read", name="a"), "Done.", grace=LONG_GRACE)
    loop, returned = await parts.start_loop(agent)
    await tools.start("a").wait()
    loop.stand_down("shutdown")
    await returned.wait()
    assert tools.stopped == ["a"]
    assert (await parts.find_entries(LeaseReleased))[0].why == "shutdown"
    assert (await parts.store.get_row(RUN)).holder == ""


async def test_a_worker_that_stands_down_lets_an_unsafe_call_finish_and_starts_no_other(
    parts: DriverParts, tools: ControllableTools, slow_agent: Agent
) -> None:
    loop, returned = await parts.start_loop(slow_agent)
    await tools.start("a").wait()
    loop.stand_down("shutdown")
    await let_others_run()
    assert tools.stopped == []
    tools.gate("a").set()
    await returned.wait()
    assert (await parts.read_kinds())[-2:] == ["CallDone", "LeaseReleased"]
    assert len(await parts.find_entries(CallStarted)) == 2


# ── the journal ───────────────────────────────────────────────────────────────────────────


async def test_a_tool_is_called_only_after_its_start_is_in_the_journal(
    parts: DriverParts, tools: ControllableTools, slow_agent: Agent
) -> None:
    reached, allowed = parts.store.hold(CallDone)  # the same append starts the tool
    await parts.start_loop(slow_agent)
    await reached.wait()
    await let_others_run()
    assert tools.called == []
    allowed.set()
    await tools.start("a").wait()
    assert len(await parts.find_entries(CallStarted)) == 2


async def test_a_pause_that_is_appended_before_the_start_of_a_call_prevents_the_start(
    parts: DriverParts, tools: ControllableTools, slow_agent: Agent
) -> None:
    """The append of the start conflicts, and the loop decides again on what it reads.

    The loop gets no notification of the pause.
    """
    loop = await parts.create_loop(slow_agent)
    parts.store.before(CallDone, lambda: parts.send(Pause()))
    await loop.run()
    assert loop.state.phase is Phase.PAUSED
    assert tools.called == []
    kinds = await parts.read_kinds()
    assert kinds.index("PauseRequested") < kinds.index("CallDone") < kinds.index("RunPaused")


async def test_a_conflict_while_the_lease_is_taken_is_tried_again(
    parts: DriverParts, tools: ControllableTools
) -> None:
    loop = await parts.create_loop(tools.agent("Done.", "Done again."))
    parts.store.before(LeaseTaken, lambda: parts.send(Say(text="hello", urgency="later")))
    await loop.run()
    kinds = await parts.read_kinds()
    assert kinds[:3] == ["RunStarted", "MessageReceived", "LeaseTaken"]
    assert kinds.count("LeaseTaken") == 1
    assert kinds[-1] == "RunCompleted"


async def test_the_state_has_the_time_that_the_store_has_stamped(
    parts: DriverParts, tools: ControllableTools, slow_agent: Agent
) -> None:
    parts.store.before(LeaseTaken, lambda: parts.move_clock(5))
    loop, _ = await parts.start_loop(slow_agent)
    await tools.start("a").wait()
    assert loop.state == await load_run_state(parts.store, RUN)


async def test_a_notification_of_an_entry_that_does_not_exist_does_no_harm(
    parts: DriverParts, tools: ControllableTools, slow_agent: Agent
) -> None:
    """The loop is behind until it has read the journal, which has its true end."""
    loop, returned = await parts.start_loop(slow_agent)
    await tools.start("a").wait()
    is_behind = []
    for seq in (loop.state.seq, loop.state.seq + 5):
        loop.journal_grew(Seq(seq))
        is_behind.append(loop.is_behind)
    assert is_behind == [False, True]
    await wait_until(lambda: not loop.is_behind)
    tools.gate("a").set()
    await returned.wait()
    assert loop.state.phase is Phase.COMPLETED


@pytest.mark.parametrize(("last_snapshot", "is_due"), [(0, True), (4, False)])
async def test_a_snapshot_is_saved_when_the_journal_has_grown_enough(
    parts: DriverParts,
    tools: ControllableTools,
    monkeypatch: pytest.MonkeyPatch,
    last_snapshot: int,
    is_due: bool,
) -> None:
    monkeypatch.setattr(snapshots, "SNAPSHOT_MIN_ENTRIES", 4)
    agent = tools.agent(Use("quick", name="a"), "Done.")
    loop = await parts.create_loop(agent, snapshot_seq=Seq(last_snapshot))
    await loop.run()
    state, snapshot_seq = await load_run_to_drive(parts.store, RUN)
    assert (state, snapshot_seq >= 4) == (loop.state, is_due)


async def test_subscribers_are_notified_when_the_phase_has_changed(
    parts: DriverParts, tools: ControllableTools
) -> None:
    """The loop notifies after it has set its state, which waiters in this process look at."""
    loop = await parts.create_loop(tools.agent("Done."))
    notifier = parts.context.change_notifier
    with notifier.subscribe(RUN, lambda: loop.state.phase is Phase.COMPLETED) as wakeup:
        await loop.run()
        await wakeup.wait()


# ── controls, halts and timers ────────────────────────────────────────────────────────────


async def test_a_control_that_arrives_while_the_loop_waits_wakes_it(
    parts: DriverParts, tools: ControllableTools, slow_agent: Agent
) -> None:
    loop, returned = await parts.start_loop(slow_agent)
    await tools.start("a").wait()
    await parts.send(Cancel(), loop)
    await returned.wait()
    assert tools.stopped == ["a"]
    assert loop.state.phase is Phase.CANCELLED
    assert [entry.call for entry in await parts.find_entries(CallAborted)] == ["c2"]


async def test_a_halt_stops_the_call_in_flight_and_gives_the_lease_back(
    parts: DriverParts, tools: ControllableTools, slow_agent: Agent
) -> None:
    loop, returned = await parts.start_loop(slow_agent)
    await tools.start("a").wait()
    loop.halt_set("all", "op", "drill")
    await returned.wait()
    halted = await parts.wait_for_entry(RunHalted)
    assert (halted.scope, halted.by, halted.reason) == ("all", "op", "drill")
    assert tools.stopped == ["a"]
    assert (await parts.find_entries(LeaseReleased))[0].why == "halted"
    assert (await parts.store.get_row(RUN)).holder == ""


async def test_a_halt_in_the_store_is_honoured_before_a_call_starts(
    parts: DriverParts, tools: ControllableTools, slow_agent: Agent
) -> None:
    """The store refuses the append with the start; the loop has no notification of the halt."""
    halt = HaltRecord(scope="all", by="op")
    parts.store.before(CallDone, lambda: parts.store.set_halt(halt))
    loop = await parts.create_loop(slow_agent)
    await loop.run()
    assert loop.state.phase is Phase.HALTED
    assert tools.called == []
    assert len(await parts.find_entries(CallDone)) == 1, "the reply of the model is kept"


async def test_a_run_that_is_halted_before_it_is_taken_records_the_halt_without_a_lease(
    parts: DriverParts, slow_agent: Agent
) -> None:
    loop = await parts.create_loop(slow_agent)
    await parts.store.set_halt(HaltRecord(scope="all", by="op"))
    await loop.run()
    assert await parts.read_kinds() == ["RunStarted", "RunHalted"]


async def test_a_halt_that_is_set_during_an_append_is_recorded_by_the_next(
    parts: DriverParts, tools: ControllableTools, slow_agent: Agent
) -> None:
    loop = await parts.create_loop(slow_agent)

    async def set_halt() -> None:
        loop.halt_set("all", "op")

    parts.store.before(CallDone, set_halt)
    await loop.run()
    assert loop.state.phase is Phase.HALTED
    assert len(await parts.find_entries(RunHalted)) == 1
    assert tools.completed == []


async def test_a_timer_that_is_due_is_appended_while_a_call_is_in_flight(
    parts: DriverParts, tools: ControllableTools
) -> None:
    agent = tools.agent(Use("slow", name="a"), "Done.", stop=MaxTime(seconds=10))
    parts.store.after(CallDone, lambda: parts.move_clock(11))
    _, returned = await parts.start_loop(agent)
    await parts.wait_for_entry(CapReached)
    assert tools.completed == []
    tools.gate("a").set()
    await returned.wait()
    assert (await parts.read_kinds())[-1] == "RunPaused"


# ── outcomes of calls ─────────────────────────────────────────────────────────────────────


async def test_the_retry_of_a_model_call_waits_for_its_time(parts: DriverParts) -> None:
    """A wakeup before that time does not start it."""
    agent = Agent("actor", model=ModelWithFaults("Done.", fails=True))
    loop, returned = await parts.start_loop(agent)
    failed = await parts.wait_for_entry(CallFailed)
    assert failed.retry_at is not None
    await parts.send(Say(text="hello", urgency="later"), loop)
    await wait_until(lambda: not loop.is_behind)
    await let_others_run()
    assert len(await parts.find_entries(CallStarted)) == 1
    parts.clock.move(60)
    await parts.send(Say(text="hello again", urgency="later"), loop)
    await parts.wait_for_entry(CallStarted, 2)
    await returned.wait()


async def test_an_error_of_the_models_own_estimate_fails_the_run(parts: DriverParts) -> None:
    model = ModelWithFaults("Done.", reserve_raises=True)
    loop = await parts.create_loop(Agent("actor", model=model, stop=MaxTokens(100)))
    await loop.run()
    failed = await parts.wait_for_entry(RunFailed)
    assert (failed.code, failed.error) == ("model_error", "ValueError: no estimate")
    assert await parts.find_entries(CallStarted) == []


async def test_a_result_whose_append_conflicts_is_appended_once(
    parts: DriverParts, tools: ControllableTools, slow_agent: Agent
) -> None:
    _, returned = await parts.start_loop(slow_agent)
    await tools.start("a").wait()
    parts.store.before(CallDone, lambda: parts.send(Say(text="hello", urgency="later")))
    tools.gate("a").set()
    await returned.wait()
    calls = [done.call for done in await parts.find_entries(CallDone)]
    assert calls == ["c1", "c2", "c3"]
    assert tools.called == ["a"]


async def test_a_question_that_a_cancel_has_overtaken_closes_its_call_as_aborted(
    parts: DriverParts,
) -> None:
    """Without that the journal would wait for the end of a call that is over."""

    @tool
    async def choose() -> str:
        pause_here("Which one?")

    agent = Agent("actor", model=ScriptedModel([Use("choose"), "Done."]), tools=[choose])
    parts.store.before(AskOpened, lambda: parts.send(Cancel()))
    loop = await parts.create_loop(agent)
    await loop.run()
    assert await parts.find_entries(AskOpened) == []
    assert [entry.call for entry in await parts.find_entries(CallAborted)] == ["c2"]
    assert len(await parts.find_entries(RunCancelled)) == 1


async def test_save_returns_when_the_progress_is_in_the_journal(parts: DriverParts) -> None:
    """An input leaves the dispatcher's list when it is in the journal."""
    journaled: list[int] = []

    @tool
    async def crawl(call: Call) -> None:
        await call.save({"page": 1})
        assert loop._dispatcher.pending_inputs == []
        journaled.append(len(await parts.find_entries(ProgressSaved)))

    agent = Agent("actor", model=ScriptedModel([Use("crawl"), "Done."]), tools=[crawl])
    parts.store.before(ProgressSaved, raise_error(StoreBusy("memory", 1.0)))
    loop = await parts.create_loop(agent)
    await loop.run()
    assert journaled == [1]


async def test_save_raises_in_a_call_that_the_journal_has_closed(parts: DriverParts) -> None:
    """A forced pause closes the call as unknown while its progress waits for the append."""
    refused = anyio.Event()

    @tool
    async def crawl(call: Call) -> None:
        with pytest.raises(StaleEpoch):
            await call.save({"page": 1})
        refused.set()

    async def force_pause() -> None:
        await parts.send(Pause())
        await parts.send(ForcePause())

    agent = Agent("actor", model=ScriptedModel([Use("crawl"), "Done."]), tools=[crawl])
    parts.store.before(ProgressSaved, force_pause)
    loop = await parts.create_loop(agent)
    await loop.run()
    await refused.wait()
    assert await parts.find_entries(ProgressSaved) == []
    assert (await parts.find_entries(CallUnknown))[0].why == "forced"


@pytest.mark.parametrize("late", [True, False])
async def test_a_late_start_is_not_made_if_the_lease_has_ended_meanwhile(
    parts: DriverParts, late: bool
) -> None:
    """The event loop is blocked after the start is journaled, and a person forces a pause."""
    made: list[str] = []

    @tool
    async def order() -> str:
        made.append("order")
        return "ordered"

    async def force_pause() -> None:
        await parts.send(Pause())
        await parts.send(ForcePause(), loop)
        if late:
            parts.boot_s += LATE_START_S

    async def wait_for_tool_call() -> None:
        parts.store.after(CallStarted, force_pause)

    agent = Agent("actor", model=ScriptedModel([Use("order"), "Done."]), tools=[order])
    parts.store.after(CallStarted, wait_for_tool_call)  # the first call is the model's
    loop = await parts.create_loop(agent)
    await loop.run()
    await let_others_run()
    assert made == ([] if late else ["order"])
    assert (await parts.find_entries(CallUnknown))[0].why == "forced"


async def test_save_raises_in_a_call_that_was_abandoned_after_its_grace(
    parts: DriverParts,
) -> None:
    """The loop still holds the lease: the undo of another call keeps the cancel going."""
    waits, save_now, refused, undo_now = (anyio.Event() for _ in range(4))

    @tool
    async def crawl(call: Call) -> str:
        with anyio.CancelScope(shield=True):
            waits.set()
            await save_now.wait()
            with pytest.raises(StaleEpoch):
                await call.save({"page": 1})
            refused.set()
        return "crawled"

    async def reverse(_: Call, __: object, ___: object) -> None:
        save_now.set()
        await undo_now.wait()

    @tool(undo=reverse)
    async def book() -> str:
        return "booked"

    model = ScriptedModel([[Use("book"), Use("crawl")], "Done."])
    agent = Agent("actor", model=model, tools=[crawl, book], grace=SHORT_GRACE)
    loop, returned = await parts.start_loop(agent)
    await waits.wait()
    await parts.wait_for_entry(CallDone, 2)
    await parts.send(Cancel(undo="all"), loop)
    await refused.wait()
    undo_now.set()
    await returned.wait()
    assert (await parts.find_entries(CallUnknown))[0].why == "not_responding"
    assert await parts.find_entries(ProgressSaved) == []
    assert loop.state.phase is Phase.CANCELLED


# ── checks and stop conditions, which the journal does not show ───────────────────────────


class SlowHook:
    """User code that starts, ignores its first cancellation, and ends when it is told to."""

    def __init__(self) -> None:
        self.started, self.may_end, self.ended = anyio.Event(), anyio.Event(), anyio.Event()

    async def run(self) -> bool:
        self.started.set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await self.may_end.wait()
            self.ended.set()
        return False


slow_condition = SlowHook()


async def evaluate_slow_condition(_: object) -> bool:
    """Evaluate `slow_condition`."""
    return await slow_condition.run()


async def start_with_slow_hook(
    parts: DriverParts, monkeypatch: pytest.MonkeyPatch, hook_kind: str, grace: timedelta
) -> tuple[RunLoop, anyio.Event, SlowHook]:
    """Drive a run until its check or its stop condition runs."""
    hook = SlowHook()
    monkeypatch.setitem(globals(), "slow_condition", hook)

    async def check(_: Call, __: object) -> bool:
        return await hook.run()

    @tool(check=check)
    async def pay() -> str:
        raise OutcomeUnknown("the connection was reset")

    stop = Custom(evaluate_slow_condition) if hook_kind == "stop condition" else None
    model = ScriptedModel([Use("pay"), "Done."])
    loop, returned = await parts.start_loop(
        Agent("actor", model=model, tools=[pay], stop=stop, grace=grace)
    )
    await hook.started.wait()
    return loop, returned, hook


@pytest.mark.parametrize("control", [Pause(), Cancel()], ids=["pause", "cancel"])
@pytest.mark.parametrize("hook_kind", ["check", "stop condition"])
async def test_a_run_comes_to_rest_only_after_its_checks_and_stop_conditions_have_ended(
    parts: DriverParts, monkeypatch: pytest.MonkeyPatch, hook_kind: str, control: Control
) -> None:
    """It never says paused, or cancelled, while user code runs."""
    loop, returned, hook = await start_with_slow_hook(
        parts, monkeypatch, hook_kind, grace=LONG_GRACE
    )
    await parts.send(control, loop)
    await wait_until(lambda: loop.state.phase in (Phase.PAUSING, Phase.CANCELLING))
    await let_others_run()
    assert loop.state.phase in (Phase.PAUSING, Phase.CANCELLING)
    hook.may_end.set()
    await returned.wait()
    assert hook.ended.is_set()
    assert loop.state.phase in (Phase.PAUSED, Phase.CANCELLED)


@pytest.mark.parametrize("ending", ["cancel", "stand down"])
@pytest.mark.parametrize("hook_kind", ["check", "stop condition"])
async def test_a_check_or_stop_condition_that_never_ends_does_not_hold_up_an_end(
    parts: DriverParts, monkeypatch: pytest.MonkeyPatch, hook_kind: str, ending: str
) -> None:
    """The run waits for the grace only."""
    loop, returned, hook = await start_with_slow_hook(
        parts, monkeypatch, hook_kind, grace=SHORT_GRACE
    )
    if ending == "cancel":
        await parts.send(Cancel(), loop)
    else:
        loop.stand_down("shutdown")
    await returned.wait()
    assert not hook.ended.is_set()
    assert not loop.state.is_leased
    hook.may_end.set()
    await hook.ended.wait()


# ── a store that fails ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "error",
    [
        StoreBusy("memory", 1.0),
        StoreFull("memory"),
        StoreUnreachable("memory", "the connection was reset"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_the_loop_appends_again_after_the_store_could_not(
    parts: DriverParts, tools: ControllableTools, error: StoreError
) -> None:
    """The result is kept, and each call is made once."""
    called_meanwhile: list[str] = []

    async def fail() -> None:
        called_meanwhile.extend(tools.called)
        raise error

    parts.store.before(CallDone, fail)
    parts.store.before(CallDone, fail)
    loop = await parts.create_loop(tools.agent(Use("quick", name="a"), "Done."))
    await loop.run()
    assert called_meanwhile == []
    assert tools.called == ["a"]
    assert [done.call for done in await parts.find_entries(CallDone)] == ["c1", "c2", "c3"]


async def test_a_read_that_fails_does_not_stop_the_call_in_flight(
    parts: DriverParts,
    tools: ControllableTools,
    slow_agent: Agent,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, returned = await parts.start_loop(slow_agent)
    await tools.start("a").wait()
    read = parts.store.read
    failures: list[StoreError] = [StoreBusy("memory", 1.0), StoreUnreachable("memory", "reset")]

    async def read_or_fail(run: RunId, *, after: Seq) -> Sequence[Record]:
        if failures:
            raise failures.pop()
        return await read(run, after=after)

    monkeypatch.setattr(parts.store, "read", read_or_fail)
    loop.journal_grew(Seq(loop.state.seq + 1))
    await wait_until(lambda: not failures and not loop.is_behind)
    tools.gate("a").set()
    await returned.wait()
    assert loop.state.phase is Phase.COMPLETED
    assert tools.called == ["a"]


async def test_a_control_that_is_announced_during_a_read_is_not_overlooked(
    parts: DriverParts,
    tools: ControllableTools,
    slow_agent: Agent,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The read does not return it, and the loop expects a later entry that does not exist."""
    loop, returned = await parts.start_loop(slow_agent)
    await tools.start("a").wait()
    read = parts.store.read

    async def read_before_pause(run: RunId, *, after: Seq) -> Sequence[Record]:
        monkeypatch.setattr(parts.store, "read", read)
        records = await read(run, after=after)
        await parts.send(Pause(now=True), loop)
        return records

    monkeypatch.setattr(parts.store, "read", read_before_pause)
    loop.journal_grew(Seq(loop.state.seq + 5))
    await returned.wait()
    assert loop.state.phase is Phase.PAUSED


async def test_calls_start_although_the_reply_of_the_store_was_lost(
    parts: DriverParts, tools: ControllableTools
) -> None:
    """The batch is in the journal, with the tool as started: the loop makes that call."""
    lost = StoreUnreachable("memory", "the connection was reset")
    parts.store.after(CallDone, raise_error(lost))
    loop = await parts.create_loop(tools.agent(Use("quick", name="a"), "Done."))
    await loop.run()
    assert tools.called == ["a"]
    assert [entry.call for entry in await parts.find_entries(CallStarted)] == ["c1", "c2", "c3"]


async def test_a_lease_whose_reply_was_lost_is_taken_again(parts: DriverParts) -> None:
    """The model call of the first lease is not made, as its epoch is unknown here."""
    prompts: list[int] = []

    def reply(messages: Transcript) -> str:
        prompts.append(len(messages))
        return "Done."

    lost = StoreUnreachable("memory", "the connection was reset")
    parts.store.after(LeaseTaken, raise_error(lost))
    loop = await parts.create_loop(Agent("actor", model=ScriptedModel(reply)))
    await loop.run()
    assert [taken.epoch for taken in await parts.find_entries(LeaseTaken)] == [1, 2]
    assert loop.state.phase is Phase.COMPLETED
    assert prompts == [1]


async def test_an_error_of_the_store_that_is_not_temporary_ends_the_loop_and_its_calls(
    parts: DriverParts, tools: ControllableTools
) -> None:
    agent = tools.agent([Use("slow", name="a"), Use("slow", name="b")], grace=LONG_GRACE)
    loop, failed = await parts.create_loop(agent), anyio.Event()

    async def run() -> None:
        with pytest.raises(StoreDamaged):
            await loop.run()
        failed.set()

    parts.tasks.start_soon(run)
    await tools.start("a").wait()
    await tools.start("b").wait()
    parts.store.before(CallDone, raise_error(StoreDamaged("memory", "a torn page")))
    tools.gate("a").set()
    await failed.wait()
    await wait_until(lambda: tools.stopped == ["b"])
    assert parts.heartbeat._lease_count == 0


async def test_the_files_of_a_run_are_in_memory_only_while_it_is_driven(
    parts: DriverParts,
) -> None:
    @tool
    async def draw() -> File:
        """Draw a chart."""
        return File("a.png", "image/png", b"PNG")

    def reply(_: Transcript) -> str:
        cached.extend(key for _, key in parts.context.file_cache)
        return "Done."

    cached: list[str] = []
    model = ScriptedModel([Use("draw"), Use("draw"), reply])
    loop = await parts.create_loop(Agent("actor", model=model, tools=[draw]))
    await loop.run()
    assert cached == [File("a.png", "image/png", b"PNG").ref.hash]
    assert not parts.context.file_cache
