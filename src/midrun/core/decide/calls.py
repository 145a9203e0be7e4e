"""Decide on calls: leases, starts, outcomes, late results, undo.

`start_call` is the gate that every model, tool and child call passes. A worker may make a call
only after `CallStarted` is appended. The check and the append apply to the same state, so a
control that was journaled first always wins.
"""

from msgspec.structs import replace

from midrun.core.decide.lifecycle import add_wakeup
from midrun.core.driver_inputs import (
    CloseCall,
    CloseUndo,
    ProposeCall,
    ReportLateResult,
    SaveProgress,
    SetPlan,
    SettleCall,
    StartCall,
    StartUndo,
    TakeLease,
)
from midrun.core.effects import CallModel, CallTool, Release, Undo
from midrun.core.entries import (
    AskClosed,
    CallDone,
    CallFailed,
    CallProposed,
    CallSealed,
    CallSettled,
    CallStarted,
    CallUnknown,
    Entry,
    HistoryCondensed,
    LateResult,
    LeaseTaken,
    PlanMade,
    ProgressSaved,
    UndoStarted,
    UndoUnknown,
)
from midrun.core.evolve.calls import can_settle_late
from midrun.core.ids import Epoch, Micros, Seq, make_ask_id, make_call_id, parse_call_number
from midrun.core.retries import CHECK_DENIALS_MAX
from midrun.core.scheduler import CONDENSE_KEEP_MESSAGES, iter_effects
from midrun.core.state import CallStage, State
from midrun.core.step_boundary import make_approval_ask, make_stop_entry, needs_approval
from midrun.core.stops import find_met_call_cap, find_met_stop, find_overdrawn_cap
from midrun.core.transitions import DecideFunctions, NoChange, Refused, Verdict, accept
from midrun.core.values import NO_SPEND


def take_lease(state: State, driver_input: TakeLease, _: Micros) -> Verdict:
    """Take the lease; mark the calls of the previous worker as unknown."""
    if driver_input.held_by_other:
        return Refused(reason="leased")
    # The fingerprint is journaled only when the agent's version changed.
    same = driver_input.agent_fingerprint == state.agent_fingerprint
    taken = LeaseTaken(
        epoch=Epoch(state.epoch + 1),
        holder=driver_input.holder,
        agent_fingerprint="" if same else driver_input.agent_fingerprint,
    )
    return accept(taken, *close_orphans(state))


def close_orphans(state: State) -> tuple[Entry, ...]:
    """Close every call and undo that the previous worker left in flight."""
    lost: tuple[Entry, ...] = tuple(CallUnknown(call=make_call_id(n)) for n in state.in_flight)
    if state.cleanup_in_flight is None:
        return lost
    number, action = state.cleanup_in_flight
    return (*lost, UndoUnknown(call=make_call_id(number), action=action))


def start_call(state: State, driver_input: StartCall, now: Micros) -> Verdict:
    """Start a call if the scheduler plans it and the caps allow it."""
    effect = _find_start_effect(state, driver_input.call)
    if effect is None:
        return Refused(reason=_explain_refused_start(state, driver_input.call, now))
    # `seen_seq` is the newest entry that the worker knew when it built the prompt or the
    # arguments. If a control is newer than that, the call would ignore the control.
    if not state.last_control_seq <= driver_input.seen_seq <= state.seq:
        return Refused(reason="unseen_control", seq=state.last_control_seq)
    call = state.find_call(driver_input.call)
    # The scheduler decided with `state.at`; the approval may have expired since. Ask again.
    if call is not None and needs_approval(state, call, now):
        return accept(make_approval_ask(call, make_ask_id(len(state.asks) + 1), now))
    if call is None:
        hit = find_met_stop(state.stop, state.meter_with_time, driver_input.reserved)
    else:
        # The step of this call has begun, so caps on steps do not apply. Caps on money and
        # tokens apply to every attempt. Caps on tool calls apply to the first attempt only,
        # because a retry is not counted again. A call that a person makes after taking over
        # is counted, but caps on tool calls do not stop it.
        hit = find_overdrawn_cap(state.stop, state.meter, driver_input.reserved)
        if hit is None and not call.attempt and not call.requested_by_operator:
            hit = find_met_call_cap(state.stop, state.meter_with_time)
    if hit is not None:
        return accept(make_stop_entry(hit))
    return accept(
        CallStarted(
            call=driver_input.call,
            call_kind="model" if call is None else call.call_kind,
            attempt=1 if call is None else call.attempt + 1,
            seen=driver_input.seen_seq,
            purpose=effect.purpose if isinstance(effect, CallModel) else "step",
            # msgspec omits a default by identity. Use the singleton, so that an empty
            # reservation is not written to the journal.
            reserved=NO_SPEND if driver_input.reserved == NO_SPEND else driver_input.reserved,
            approval=None if call is None else call.approval,
        )
    )


def _find_start_effect(state: State, call_id: str) -> CallModel | CallTool | None:
    for effect in iter_effects(state):
        if isinstance(effect, (CallModel, CallTool)) and effect.call == call_id:
            return effect
    return None


def _explain_refused_start(state: State, call_id: str, now: Micros) -> str:
    call = state.find_call(call_id)
    if call is None:
        return (
            "not_next" if parse_call_number(call_id) == len(state.calls) + 1 else "no_such_call"
        )
    if call.stage is not CallStage.PROPOSED and not call.must_retry:
        return f"call_{call.stage}"
    if state.pending_redirects:
        return "redirected"
    return "not_approved" if needs_approval(state, call, now) else "not_next"


def close_call(state: State, driver_input: CloseCall, _: Micros) -> Verdict:
    """Record the outcome of a call in flight."""
    outcome = driver_input.outcome
    call = state.find_call(outcome.call)
    if call is None or call.stage is not CallStage.STARTED:
        return Refused(reason="not_in_flight")
    if call.purpose == "condense" and isinstance(outcome, CallDone) and outcome.reply:
        if not outcome.reply.text.strip():
            # An empty summary must not replace the history. Record a transient failure, so
            # that the call is retried.
            failed = CallFailed(call=call.id, error="the summary was empty", transient=True)
            return accept(replace(failed, spent=outcome.spent))
        # The newest messages stay word for word, and `upto` never moves back.
        upto = max(state.condensed_count, len(state.messages) - CONDENSE_KEEP_MESSAGES)
        summary = HistoryCondensed(call=call.id, message_count=upto, summary=outcome.reply.text)
        return accept(outcome, summary)
    return accept(outcome)


def report_late_result(state: State, driver_input: ReportLateResult, _: Micros) -> Verdict:
    """Record a result from a fenced worker; it can only settle an unknown outcome."""
    result = driver_input.result
    call = state.find_call(result.call)
    # The worker is fenced and its input is not checked against a lease. Accept only a result
    # for an attempt and an epoch that this journal knows.
    if call is None or not 0 < result.attempt <= call.attempt or result.epoch > state.epoch:
        return Refused(reason="no_such_call")
    if call.late_attempt >= result.attempt or call.stage is CallStage.DONE:
        return NoChange(name="already_known", seq=call.closed_seq)
    entries: tuple[Entry, ...] = (
        LateResult(
            call=result.call, attempt=result.attempt, epoch=result.epoch, result=result.result
        ),
    )
    if can_settle_late(state, call, result.attempt):
        # The result answers "did the call take effect?", so the ask is obsolete.
        entries += tuple(
            AskClosed(ask=ask.id, why="evidence")
            for n in state.open_asks
            if (ask := state.asks[n - 1]).call == call.id
        )
    return accept(*add_wakeup(state, entries, "evidence"))


def save_progress(state: State, driver_input: SaveProgress, _: Micros) -> Verdict:
    """Record the progress of a long call."""
    call = state.find_call(driver_input.call)
    if call is None or call.stage is not CallStage.STARTED:
        return Refused(reason="not_in_flight")
    return accept(ProgressSaved(call=call.id, progress=driver_input.progress))


def propose_call(state: State, driver_input: ProposeCall, _: Micros) -> Verdict:
    """Propose a call of a hosted agent; `start_call` checks it like any call."""
    if state.taken_over_by:
        return Refused(reason="taken_over", by=state.taken_over_by)
    return accept(CallProposed(use=driver_input.use))


def set_plan(_: State, driver_input: SetPlan, __: Micros) -> Verdict:
    """Record the agent's plan."""
    return accept(PlanMade(items=driver_input.items))


def settle_call(state: State, driver_input: SettleCall, _: Micros) -> Verdict:
    """Record whether the tool's check found that an unknown call happened.

    After `CHECK_DENIALS_MAX` denials the call is sealed: without a limit, a call that always
    dies before it takes effect would be made for ever.
    """
    call = state.find_call(driver_input.call)
    if call is None or not call.needs_settling or not call.is_open:
        return Refused(reason="not_unknown")
    settled = CallSettled(
        call=call.id,
        happened=driver_input.happened,
        result=driver_input.result,
        by=f"check:{call.use.tool}",
    )
    denials = call.check_denials + (not driver_input.happened)
    if driver_input.happened or denials < CHECK_DENIALS_MAX:
        return accept(settled)
    why = f"not executed: tried {denials} times, and each time its check found nothing done"
    return accept(settled, CallSealed(call=call.id, why=why))


def start_undo(state: State, driver_input: StartUndo, _: Micros) -> Verdict:
    """Start an undo or a release if it is the next in order."""
    if state.in_flight or state.cleanup_in_flight:
        return Refused(reason="in_flight")
    wanted = (driver_input.call, driver_input.action)
    cleanups = (one for one in iter_effects(state) if isinstance(one, Undo | Release))
    call = state.find_call(driver_input.call)
    if call is None or wanted not in [(cleanup.call, cleanup.action) for cleanup in cleanups]:
        return Refused(reason="not_next")
    attempt = call.get_cleanup(driver_input.action).attempts + 1
    return accept(UndoStarted(call=call.id, action=driver_input.action, attempt=attempt))


def close_undo(state: State, driver_input: CloseUndo, _: Micros) -> Verdict:
    """Record the outcome of an undo or a release."""
    outcome = driver_input.outcome
    if state.cleanup_in_flight != (parse_call_number(outcome.call), outcome.action):
        return Refused(reason="not_in_flight", seq=Seq(state.seq))
    return accept(outcome)


DECIDE_FUNCTIONS: DecideFunctions = {
    TakeLease: take_lease,
    StartCall: start_call,
    CloseCall: close_call,
    ReportLateResult: report_late_result,
    SaveProgress: save_progress,
    ProposeCall: propose_call,
    SetPlan: set_plan,
    SettleCall: settle_call,
    StartUndo: start_undo,
    CloseUndo: close_undo,
}
