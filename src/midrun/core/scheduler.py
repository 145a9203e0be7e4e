"""Compute the effects that a worker must perform next.

`plan_effects(state)` depends on the state alone. A worker that has just replayed the journal
gets the same effects as one that never stopped, so recovery needs no code of its own.

One generator per phase yields the effects:

- running: abort outdated calls, append boundary entries, start calls, else end the step;
- pausing: abort the calls that can stop, wait for the others, then settle;
- halted: abort every call in flight, then release the lease;
- cancelling: abort every call, then undo and release one at a time, then settle.

No other phase has effects. `find_wake_time` returns the time of a run's next timer.
"""

from collections.abc import Iterator
from typing import Final, assert_never

from midrun.core.effects import (
    AbortCall,
    AbortReason,
    Advance,
    CallModel,
    CallTool,
    CheckCall,
    ChildControl,
    ControlChild,
    DriverEffect,
    EvaluateStopCondition,
    GiveBackLease,
    Release,
    RunHost,
    Settle,
    Undo,
    WakeAt,
)
from midrun.core.ids import Micros, add_micros, make_call_id, make_child_id
from midrun.core.retries import find_failure
from midrun.core.state import Call, CallStage, PauseState, State
from midrun.core.step_boundary import boundary_entries, has_unblocked_call
from midrun.core.stops import find_unevaluated_custom, get_work_limit_micros
from midrun.core.undo import find_next_cleanup, is_release_due
from midrun.core.values import TERMINAL_PHASES, CallPurpose, Phase

CONDENSE_KEEP_MESSAGES = 8
"""The number of newest messages that stay in the prompt when the history is condensed."""

PAUSE_PHASES: Final = frozenset({Phase.PAUSING, Phase.PAUSED})
GIVEN_UP_STAGES: Final = frozenset({CallStage.SEALED, CallStage.ABORTED, CallStage.UNKNOWN})


def plan_effects(state: State) -> tuple[DriverEffect, ...]:
    """Return the effects to perform now; an empty tuple means wait for calls in flight.

    A call in flight is not planned again. Its abort is planned until the call ends; the worker
    ignores the abort of a call that it has aborted already.
    """
    return tuple(iter_effects(state))


def iter_effects(state: State) -> Iterator[DriverEffect]:
    """Yield the effects of `plan_effects` lazily; `start_call` stops at the first match."""
    match state.phase:
        case Phase.RUNNING:
            return _plan_running(state)
        case Phase.PAUSING:
            return _plan_pausing(state, state.pause or PauseState())
        case Phase.CANCELLING:
            return _plan_cancelling(state)
        case Phase.HALTED:
            return _plan_halted(state)
        case Phase.QUEUED | Phase.PAUSED | Phase.WAITING | Phase.FAILED:
            return iter(())
        case Phase.CANCELLED | Phase.COMPLETED:
            return iter(())
        case _:
            assert_never(state.phase)


def find_wake_time(state: State) -> Micros | None:
    """Return the time of the run's next timer, or None."""
    if state.phase is Phase.HALTED or state.phase in TERMINAL_PHASES:
        return None
    hold, stop = state.pause, state.stop
    # Most states have no timer, and this function is called often.
    if not (state.open_asks or state.pending or hold or stop):
        return None
    asks = (state.asks[n - 1] for n in state.open_asks)
    times = [ask.expires for ask in asks if ask.expires and ask.ask_kind != "child"]
    times += [p.due_at for p in state.pending if p.due_at is not None]
    if hold and hold.ends_at and hold.reason == "user" and state.phase in PAUSE_PHASES:
        times.append(hold.ends_at)
    if (
        state.phase is Phase.RUNNING
        and state.is_leased
        and (limit := get_work_limit_micros(stop))
    ):
        times.append(add_micros(state.at, max(0, limit - state.worked_micros)))
    return min(times, default=None)


# ── running ───────────────────────────────────────────────────────────────────────────────


def _plan_running(state: State) -> Iterator[DriverEffect]:
    # The order matters. Aborts come first, because a redirect waits until nothing is in
    # flight. Boundary entries come before starts, because they may close the calls that would
    # be started, or open asks for them.
    if state.in_flight:
        yield from _plan_redirect_aborts(state)
    if boundary_entries(state, state.at):
        yield Advance()
        return
    if (
        state.open_calls
        and (state.taken_over_by or not state.pending_redirects)
        and find_failure(state) is None
    ):
        yield from _plan_starts(state)
    # Not at a boundary: something is in flight, or a start was planned above. The worker also
    # needs the next timer, which may fire before a call ends.
    if state.in_flight or state.cleanup_in_flight or _has_startable_call(state):
        if (wake := find_wake_time(state)) is not None:
            yield WakeAt(at=wake)
        return
    yield _plan_boundary(state)


def _plan_redirect_aborts(state: State) -> Iterator[DriverEffect]:
    """Abort model calls that have not seen a redirect; abort tools only for when="now"."""
    now = not state.taken_over_by and any(p.timing == "now" for p in state.pending_redirects)
    for number in state.in_flight:
        call = state.calls[number - 1]
        if now or (call.call_kind == "model" and call.seen_seq < state.prompt_outdated_seq):
            yield _make_abort_effect(state, number, "redirected")


def _plan_starts(state: State) -> Iterator[DriverEffect]:
    for number in state.active_calls:
        call = state.calls[number - 1]
        if call.needs_settling and not call.error and call.traits.check:
            yield CheckCall(call=call.id)
        elif may_start(call) and call.call_kind == "model":
            yield from _plan_model_retry(state, call)
        elif may_start(call):
            yield _make_start_effect(state, call)


def _plan_model_retry(state: State, call: Call) -> Iterator[DriverEffect]:
    """Retry a model call, but first end child runs whose call was given up.

    A person may have given up a child while the model call was in flight. A new step waits for
    the end of such a child, so a retry of the model call waits, too. The child is ended only
    when nothing is in flight: an approved call may have started meanwhile.
    """
    if state.cleanup_in_flight:
        return
    left = orphaned_child_cleanup(state)
    if left is None:
        yield _make_start_effect(state, call)
    elif not state.in_flight:
        yield left


def may_start(call: Call) -> bool:
    """Tell whether the call is proposed or must be retried."""
    return call.must_retry or call.stage is CallStage.PROPOSED


def _make_start_effect(state: State, call: Call) -> DriverEffect:
    if call.call_kind == "model":
        return CallModel(call=call.id, purpose=call.purpose, not_before=call.retry_at)
    child = make_child_id(state.run, call.id) if call.call_kind == "child" else None
    return CallTool(call=call.id, child=child)


def _has_startable_call(state: State) -> bool:
    return find_failure(state) is None and has_unblocked_call(state)


def _plan_boundary(state: State) -> DriverEffect:
    """Return the one effect that follows when nothing is in flight or startable."""
    if find_failure(state) is not None or state.taken_over_by:
        return Settle()  # the run fails, or pauses again for the person who has taken over
    # The agent may have its answer while a non-blocking approval is still open. The run waits
    # for that approval before it ends.
    waits = bool(state.open_calls) or (state.answer is not None and bool(state.open_asks))
    # Before the run waits or starts a new step, end child runs that were given up. At the end
    # of the run the ordinary cleanup below covers them.
    if (waits or state.answer is None) and (left := orphaned_child_cleanup(state)) is not None:
        return left
    if waits:
        return Settle()
    if state.answer is None:
        return plan_next_call(state)
    if (cleanup := find_next_cleanup(state)) is not None:
        call, _ = cleanup
        return Release(call=call.id, not_before=call.release.retry_at)
    return Settle()


def orphaned_child_cleanup(state: State) -> DriverEffect | None:
    """Return the effect that ends a child run whose call was given up, or None.

    A redirect, for example, seals the call of a child, but the child run would go on working
    for the old plan. A child that has failed does not go on by itself and is left alone. The
    child whose call closed last is ended first, as in every cleanup.
    """
    last: Call | None = None
    for number in state.cleanup_calls:
        call = state.calls[number - 1]
        if call.call_kind != "child" or call.is_open or call.stage not in GIVEN_UP_STAGES:
            continue
        # A child that cannot be ended gets the same number of attempts as any release. At the
        # end of the run it is listed as residue.
        tried = call.release.attempts >= state.run_started.undo_attempts
        if (
            is_release_due(call)
            and not tried
            and (last is None or call.closed_seq > last.closed_seq)
        ):
            last = call
    return None if last is None else Release(call=last.id, not_before=last.release.retry_at)


def plan_next_call(state: State) -> DriverEffect:
    """Return the effect that continues the agent.

    A custom stop condition is evaluated first. Then a hosted agent runs, or the model is
    called. The model call condenses the history if the last prompt was larger than the window
    and there are messages to condense.
    """
    if name := find_unevaluated_custom(state.stop, state.meter):
        return EvaluateStopCondition(name=name)
    if state.run_started.hosted:
        return RunHost()
    full = 0 < state.run_started.window < state.prompt_tokens
    condensable = len(state.messages) - state.condensed_count > CONDENSE_KEEP_MESSAGES
    purpose: CallPurpose = "condense" if full and condensable else "step"
    return CallModel(call=make_call_id(len(state.calls) + 1), purpose=purpose)


# ── stopping ──────────────────────────────────────────────────────────────────────────────


def _plan_pausing(state: State, pause: PauseState) -> Iterator[DriverEffect]:
    """Stop for a pause: abort model calls; let tools finish unless they saved progress."""
    for number in state.in_flight:
        call = state.calls[number - 1]
        if call.call_kind == "child":
            child = make_child_id(state.run, call.id)
            yield ControlChild(call=call.id, child=child, control="pause", now=pause.now)
        elif pause.now or call.call_kind == "model" or call.progress is not None:
            yield AbortCall(call=call.id, reason="paused")
    # An undo or a release in flight is not interrupted by a pause.
    if not state.in_flight and not state.cleanup_in_flight:
        yield Settle()
    elif (wake := find_wake_time(state)) is not None:
        yield WakeAt(at=wake)


def _plan_halted(state: State) -> Iterator[DriverEffect]:
    """Abort every call in flight, then release the lease."""
    for number in state.in_flight:
        yield _make_abort_effect(state, number, "halted")
    if not state.in_flight and state.is_leased and not state.cleanup_in_flight:
        yield GiveBackLease()


def _plan_cancelling(state: State) -> Iterator[DriverEffect]:
    """Abort every call in flight, then undo and release in order, then settle."""
    for number in state.in_flight:
        yield _make_abort_effect(state, number, "cancelled")
    if state.in_flight or state.cleanup_in_flight:
        return
    if boundary_entries(state, state.at):
        yield Advance()
        return
    cleanup = find_next_cleanup(state)
    if cleanup is None:
        yield Settle()
        return
    call, action = cleanup
    not_before = call.get_cleanup(action).retry_at
    effect = Undo if action == "undo" else Release
    yield effect(call=call.id, not_before=not_before)


def _make_abort_effect(state: State, number: int, reason: AbortReason) -> DriverEffect:
    # A child run has its own journal and perhaps another worker. It is stopped by a control in
    # that journal, not by an abort of the call that waits for it.
    call = state.calls[number - 1]
    if call.call_kind != "child":
        return AbortCall(call=call.id, reason=reason)
    child = make_child_id(state.run, call.id)
    control: ChildControl = "halt" if reason == "halted" else "cancel"
    undo = state.cancel_request.undo if state.cancel_request else "in_flight"
    return ControlChild(call=call.id, child=child, control=control, now=True, undo=undo)
