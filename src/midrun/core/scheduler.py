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
    Advance,
    Because,
    CallModel,
    CallTool,
    CheckCall,
    ControlChild,
    Judge,
    Order,
    Park,
    Passed,
    Release,
    RunHost,
    Settle,
    Undo,
    WakeAt,
)
from midrun.core.ids import Micros, call_id, child_id, later
from midrun.core.retries import failure
from midrun.core.state import Call, Hold, Stage, State
from midrun.core.step_boundary import crossing
from midrun.core.stops import deadline, unjudged
from midrun.core.undo import next_cleanup, to_release
from midrun.core.values import TERMINAL, Phase, Purpose

KEEP = 8
"""How many of the newest messages stay in the prompt when the history is condensed."""

HELD: Final = frozenset({Phase.PAUSING, Phase.PAUSED})
GIVEN_UP: Final = frozenset({Stage.SEALED, Stage.ABORTED, Stage.UNKNOWN})


def plan(state: State) -> tuple[Order, ...]:
    """Return the effects to perform now; an empty tuple means wait for calls in flight.

    A call in flight is not planned again. Its abort is planned until the call ends; the worker
    ignores the abort of a call that it has aborted already.
    """
    return tuple(orders(state))


def orders(state: State) -> Iterator[Order]:
    """Yield the effects of `plan_effects` lazily; `start_call` stops at the first match."""
    match state.phase:
        case Phase.RUNNING:
            return _running(state)
        case Phase.PAUSING:
            return _stopping(state, state.hold or Hold())
        case Phase.CANCELLING:
            return _cancelling(state)
        case Phase.HALTED:
            return _halted(state)
        case Phase.QUEUED | Phase.PAUSED | Phase.WAITING | Phase.FAILED:
            return iter(())
        case Phase.CANCELLED | Phase.COMPLETED:
            return iter(())
        case _:
            assert_never(state.phase)


def wake_at(state: State) -> Micros | None:
    """Return the time of the run's next timer, or None."""
    if state.phase is Phase.HALTED or state.phase in TERMINAL:
        return None
    hold, stop = state.hold, state.stop
    # Most states have no timer, and this function is called often.
    if not (state.open_asks or state.pending or hold or stop):
        return None
    asks = (state.asks[n - 1] for n in state.open_asks)
    times = [ask.expires for ask in asks if ask.expires and ask.ask_kind != "child"]
    times += [p.due for p in state.pending if p.due is not None]
    if hold and hold.until and hold.why == "user" and state.phase in HELD:
        times.append(hold.until)
    if state.phase is Phase.RUNNING and state.leased and (limit := deadline(stop)):
        times.append(later(state.at, max(0, limit - state.worked)))
    return min(times, default=None)


# ── running ───────────────────────────────────────────────────────────────────────────────


def _running(state: State) -> Iterator[Order]:
    # The order matters. Aborts come first, because a redirect waits until nothing is in
    # flight. Boundary entries come before starts, because they may close the calls that would
    # be started, or open asks for them.
    if state.in_flight:
        yield from _cuts(state)
    if crossing(state, state.at):
        yield Advance()
        return
    if state.open and (state.wheel or not state.redirects) and failure(state) is None:
        yield from _starts(state)
    # Not at a boundary: something is in flight, or a start was planned above. The worker also
    # needs the next timer, which may fire before a call ends.
    if state.in_flight or state.cleaning or _startable(state):
        if (wake := wake_at(state)) is not None:
            yield WakeAt(at=wake)
        return
    yield _at_boundary(state)


def _cuts(state: State) -> Iterator[Order]:
    """Abort model calls that have not seen a redirect; abort tools only for when="now"."""
    now = not state.wheel and any(p.when == "now" for p in state.redirects)
    for number in state.in_flight:
        call = state.calls[number - 1]
        if now or (call.call_kind == "model" and call.seen < state.cut):
            yield _abort(state, number, "redirected")


def _starts(state: State) -> Iterator[Order]:
    for number in state.at_hand:
        call = state.calls[number - 1]
        if call.unsure and not call.error and call.traits.check:
            yield CheckCall(call=call.id)
        elif may_start(call) and call.call_kind == "model":
            yield from _thinks_again(state, call)
        elif may_start(call):
            yield _start(state, call)


def _thinks_again(state: State, call: Call) -> Iterator[Order]:
    """Retry a model call, but first end child runs whose call was given up.

    A person may have given up a child while the model call was in flight. A new step waits for
    the end of such a child, so a retry of the model call waits, too. The child is ended only
    when nothing is in flight: an approved call may have started meanwhile.
    """
    if state.cleaning:
        return
    left = left_behind(state)
    if left is None:
        yield _start(state, call)
    elif not state.in_flight:
        yield left


def may_start(call: Call) -> bool:
    """Tell whether the call is proposed or must be retried."""
    return call.again or call.stage is Stage.PROPOSED


def _start(state: State, call: Call) -> Order:
    if call.call_kind == "model":
        return CallModel(call=call.id, purpose=call.purpose, after=call.retry_at)
    child = child_id(state.run, call.id) if call.call_kind == "child" else None
    return CallTool(call=call.id, child=child)


def _startable(state: State) -> bool:
    if not state.open or failure(state) is not None:
        return False
    return any(not state.waits(state.calls[n - 1]) for n in state.at_hand)


def _at_boundary(state: State) -> Order:
    """Return the one effect that follows when nothing is in flight or startable."""
    if failure(state) is not None or state.wheel:
        return Settle()  # the run fails, or pauses again for the person who has taken over
    # The agent may have its answer while a non-blocking approval is still open. The run waits
    # for that approval before it ends.
    waits = bool(state.open) or (state.answer is not None and bool(state.open_asks))
    # Before the run waits or starts a new step, end child runs that were given up. At the end
    # of the run the ordinary cleanup below covers them.
    if (waits or state.answer is None) and (left := left_behind(state)) is not None:
        return left
    if waits:
        return Settle()
    if state.answer is None:
        return next_call(state)
    if (cleanup := next_cleanup(state)) is not None:
        call, _ = cleanup
        return Release(call=call.id, after=call.release.retry_at)
    return Settle()


def left_behind(state: State) -> Order | None:
    """Return the effect that ends a child run whose call was given up, or None.

    A redirect, for example, seals the call of a child, but the child run would go on working
    for the old plan. A child that has failed does not go on by itself and is left alone. The
    child whose call closed last is ended first, as in every cleanup.
    """
    last: Call | None = None
    for number in state.effects:
        call = state.calls[number - 1]
        if call.call_kind != "child" or call.unclosed or call.stage not in GIVEN_UP:
            continue
        # A child that cannot be ended gets the same number of attempts as any release. At the
        # end of the run it is listed as residue.
        tried = call.release.attempts >= state.started.undo_attempts
        if to_release(call) and not tried and (last is None or call.closed > last.closed):
            last = call
    return None if last is None else Release(call=last.id, after=last.release.retry_at)


def next_call(state: State) -> Order:
    """Return the effect that continues the agent.

    A custom stop condition is evaluated first. Then a hosted agent runs, or the model is
    called. The model call condenses the history if the last prompt was larger than the window
    and there are messages to condense.
    """
    if name := unjudged(state.stop, state.meter):
        return Judge(name=name)
    if state.started.hosted:
        return RunHost()
    full = 0 < state.started.window < state.window
    condensable = len(state.messages) - state.condensed > KEEP
    purpose: Purpose = "condense" if full and condensable else "step"
    return CallModel(call=call_id(len(state.calls) + 1), purpose=purpose)


# ── stopping ──────────────────────────────────────────────────────────────────────────────


def _stopping(state: State, hold: Hold) -> Iterator[Order]:
    """Stop for a pause: abort model calls; let tools finish unless they saved progress."""
    for number in state.in_flight:
        call = state.calls[number - 1]
        if call.call_kind == "child":
            child = child_id(state.run, call.id)
            yield ControlChild(call=call.id, child=child, control="pause", now=hold.now)
        elif hold.now or call.call_kind == "model" or call.progress is not None:
            yield AbortCall(call=call.id, because="paused")
    # An undo or a release in flight is not interrupted by a pause.
    if not state.in_flight and not state.cleaning:
        yield Settle()
    elif (wake := wake_at(state)) is not None:
        yield WakeAt(at=wake)


def _halted(state: State) -> Iterator[Order]:
    """Abort every call in flight, then release the lease."""
    for number in state.in_flight:
        yield _abort(state, number, "halted")
    if not state.in_flight and state.leased and not state.cleaning:
        yield Park()


def _cancelling(state: State) -> Iterator[Order]:
    """Abort every call in flight, then undo and release in order, then settle."""
    for number in state.in_flight:
        yield _abort(state, number, "cancelled")
    if state.in_flight or state.cleaning:
        return
    if crossing(state, state.at):
        yield Advance()
        return
    cleanup = next_cleanup(state)
    if cleanup is None:
        yield Settle()
        return
    call, action = cleanup
    after = call.cleanup(action).retry_at
    order = Undo if action == "undo" else Release
    yield order(call=call.id, after=after)


def _abort(state: State, number: int, because: Because) -> Order:
    # A child run has its own journal and perhaps another worker. It is stopped by a control in
    # that journal, not by an abort of the call that waits for it.
    call = state.calls[number - 1]
    if call.call_kind != "child":
        return AbortCall(call=call.id, because=because)
    child = child_id(state.run, call.id)
    control: Passed = "halt" if because == "halted" else "cancel"
    undo = state.cancel.undo if state.cancel else "in_flight"
    return ControlChild(call=call.id, child=child, control=control, now=True, undo=undo)
