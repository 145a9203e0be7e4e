"""Decide on calls: leases, starts, outcomes, late results, undo.

`start_call` is the gate that every model, tool and child call passes. A worker may make a call
only after `CallStarted` is appended. The check and the append apply to the same state, so a
control that was journaled first always wins.
"""

from msgspec.structs import replace

from midrun.core.decide.shared import waking
from midrun.core.decision import Already, Refused, Rulings, Verdict, accept
from midrun.core.driver_inputs import (
    Close,
    CloseUndo,
    Late,
    Propose,
    SaveProgress,
    SetPlan,
    SettleCall,
    Start,
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
from midrun.core.evolve.calls import settles
from midrun.core.ids import Epoch, Micros, Seq, ask_id, call_id, number_of
from midrun.core.retries import DENIALS
from midrun.core.scheduler import KEEP, orders
from midrun.core.state import Stage, State
from midrun.core.step_boundary import approval, needs_approval, stopped_by
from midrun.core.stops import met, met_by_calls, overdraws
from midrun.core.values import NOTHING


def take_lease(state: State, evidence: TakeLease, _: Micros) -> Verdict:
    """Take the lease; mark the calls of the previous worker as unknown."""
    if evidence.held:
        return Refused(reason="leased")
    # The fingerprint is journaled only when the agent's version changed.
    same = evidence.agent_print == state.agent_print
    taken = LeaseTaken(
        epoch=Epoch(state.epoch + 1),
        holder=evidence.holder,
        agent_print="" if same else evidence.agent_print,
    )
    return accept(taken, *orphans(state))


def orphans(state: State) -> tuple[Entry, ...]:
    """Close every call and undo that the previous worker left in flight."""
    lost: tuple[Entry, ...] = tuple(CallUnknown(call=call_id(n)) for n in state.in_flight)
    if state.cleaning is None:
        return lost
    number, action = state.cleaning
    return (*lost, UndoUnknown(call=call_id(number), action=action))


def start(state: State, evidence: Start, now: Micros) -> Verdict:
    """Start a call if the scheduler plans it and the caps allow it."""
    order = _ordered(state, evidence.call)
    if order is None:
        return Refused(reason=_why_not(state, evidence.call, now))
    # `seen_seq` is the newest entry that the worker knew when it built the prompt or the
    # arguments. If a control is newer than that, the call would ignore the control.
    if not state.controls <= evidence.seen <= state.seq:
        return Refused(reason="unseen_control", seq=state.controls)
    call = state.call(evidence.call)
    # The scheduler decided with `state.at`; the approval may have expired since. Ask again.
    if call is not None and needs_approval(state, call, now):
        return accept(approval(call, ask_id(len(state.asks) + 1), now))
    if call is None:
        hit = met(state.stop, state.metered, evidence.reserve)
    else:
        # The step of this call has begun, so caps on steps do not apply. Caps on money and
        # tokens apply to every attempt. Caps on tool calls apply to the first attempt only,
        # because a retry is not counted again. A call that a person makes after taking over
        # is counted, but caps on tool calls do not stop it.
        hit = overdraws(state.stop, state.meter, evidence.reserve)
        if hit is None and not call.attempt and not call.by_hand:
            hit = met_by_calls(state.stop, state.metered)
    if hit is not None:
        return accept(stopped_by(hit))
    return accept(
        CallStarted(
            call=evidence.call,
            call_kind="model" if call is None else call.call_kind,
            attempt=1 if call is None else call.attempt + 1,
            seen=evidence.seen,
            purpose=order.purpose if isinstance(order, CallModel) else "step",
            # msgspec omits a default by identity. Use the singleton, so that an empty
            # reservation is not written to the journal.
            reserved=NOTHING if evidence.reserve == NOTHING else evidence.reserve,
            approval=None if call is None else call.approval,
        )
    )


def _ordered(state: State, call: str) -> CallModel | CallTool | None:
    for order in orders(state):
        if isinstance(order, (CallModel, CallTool)) and order.call == call:
            return order
    return None


def _why_not(state: State, call_: str, now: Micros) -> str:
    call = state.call(call_)
    if call is None:
        return "not_next" if number_of(call_) == len(state.calls) + 1 else "no_such_call"
    if call.stage is not Stage.PROPOSED and not call.again:
        return f"call_{call.stage}"
    if state.redirects:
        return "redirected"
    return "not_approved" if needs_approval(state, call, now) else "not_next"


def close(state: State, evidence: Close, _: Micros) -> Verdict:
    """Record the outcome of a call in flight."""
    outcome = evidence.outcome
    call = state.call(outcome.call)
    if call is None or call.stage is not Stage.STARTED:
        return Refused(reason="not_in_flight")
    if call.purpose == "condense" and isinstance(outcome, CallDone) and outcome.reply:
        if not outcome.reply.text.strip():
            # An empty summary must not replace the history. Record a transient failure, so
            # that the call is retried.
            failed = CallFailed(call=call.id, error="the summary was empty", transient=True)
            return accept(replace(failed, spent=outcome.spent))
        # The newest messages stay word for word, and `upto` never moves back.
        upto = max(state.condensed, len(state.messages) - KEEP)
        summary = HistoryCondensed(call=call.id, upto=upto, summary=outcome.reply.text)
        return accept(outcome, summary)
    return accept(outcome)


def late(state: State, evidence: Late, _: Micros) -> Verdict:
    """Record a result from a fenced worker; it can only settle an unknown outcome."""
    result = evidence.result
    call = state.call(result.call)
    # The worker is fenced and its input is not checked against a lease. Accept only a result
    # for an attempt and an epoch that this journal knows.
    if call is None or not 0 < result.attempt <= call.attempt or result.epoch > state.epoch:
        return Refused(reason="no_such_call")
    if call.late >= result.attempt or call.stage is Stage.DONE:
        return Already(name="already_known", seq=call.closed)
    entries: tuple[Entry, ...] = (
        LateResult(
            call=result.call, attempt=result.attempt, epoch=result.epoch, result=result.result
        ),
    )
    if settles(state, call, result.attempt):
        # The result answers "did the call take effect?", so the ask is obsolete.
        entries += tuple(
            AskClosed(ask=ask.id, why="evidence")
            for n in state.open_asks
            if (ask := state.asks[n - 1]).call == call.id
        )
    return accept(*waking(state, entries, "evidence"))


def save_progress(state: State, evidence: SaveProgress, _: Micros) -> Verdict:
    """Record the progress of a long call."""
    call = state.call(evidence.call)
    if call is None or call.stage is not Stage.STARTED:
        return Refused(reason="not_in_flight")
    return accept(ProgressSaved(call=call.id, progress=evidence.progress))


def propose(state: State, evidence: Propose, _: Micros) -> Verdict:
    """Propose a call of a hosted agent; `start_call` checks it like any call."""
    if state.wheel:
        return Refused(reason="taken_over", by=state.wheel)
    return accept(CallProposed(use=evidence.use))


def set_plan(_: State, evidence: SetPlan, __: Micros) -> Verdict:
    """Record the agent's plan."""
    return accept(PlanMade(items=evidence.items))


def settle_call(state: State, evidence: SettleCall, _: Micros) -> Verdict:
    """Record whether the tool's check found that an unknown call happened.

    After `CHECK_DENIALS_MAX` denials the call is sealed: without a limit, a call that always
    dies before it takes effect would be made for ever.
    """
    call = state.call(evidence.call)
    if call is None or not call.unsure or not call.unclosed:
        return Refused(reason="not_unknown")
    settled = CallSettled(
        call=call.id,
        happened=evidence.happened,
        result=evidence.result,
        by=f"check:{call.use.tool}",
    )
    denials = call.denials + (not evidence.happened)
    if evidence.happened or denials < DENIALS:
        return accept(settled)
    why = f"not executed: tried {denials} times, and each time its check found nothing done"
    return accept(settled, CallSealed(call=call.id, why=why))


def start_undo(state: State, evidence: StartUndo, _: Micros) -> Verdict:
    """Start an undo or a release if it is the next in order."""
    if state.in_flight or state.cleaning:
        return Refused(reason="in_flight")
    wanted = (evidence.call, evidence.action)
    cleanups = (order for order in orders(state) if isinstance(order, Undo | Release))
    call = state.call(evidence.call)
    if call is None or wanted not in [(order.call, order.action) for order in cleanups]:
        return Refused(reason="not_next")
    attempt = call.cleanup(evidence.action).attempts + 1
    return accept(UndoStarted(call=call.id, action=evidence.action, attempt=attempt))


def close_undo(state: State, evidence: CloseUndo, _: Micros) -> Verdict:
    """Record the outcome of an undo or a release."""
    outcome = evidence.outcome
    if state.cleaning != (number_of(outcome.call), outcome.action):
        return Refused(reason="not_in_flight", seq=Seq(state.seq))
    return accept(outcome)


RULINGS: Rulings = {
    TakeLease: take_lease,
    Start: start,
    Close: close,
    Late: late,
    SaveProgress: save_progress,
    Propose: propose,
    SetPlan: set_plan,
    SettleCall: settle_call,
    StartUndo: start_undo,
    CloseUndo: close_undo,
}
