"""`plan`: what the driver must do now. It looks at the state and at nothing else."""

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
"""How many of the newest messages a condensed history keeps word for word."""

HELD: Final = frozenset({Phase.PAUSING, Phase.PAUSED})
GIVEN_UP: Final = frozenset({Stage.SEALED, Stage.ABORTED, Stage.UNKNOWN})


def plan(state: State) -> tuple[Order, ...]:
    """Return what must be done now; nothing means: wait for what is in flight.

    Orders for calls already in flight are not repeated, except aborts: a driver that has
    aborted a call waits for it to end.
    """
    return tuple(orders(state))


def orders(state: State) -> Iterator[Order]:
    """Return the same one by one: the gate looks no further than the call it is asked for."""
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
    """Return when the run must be looked at although nothing happens, if ever."""
    if state.phase is Phase.HALTED or state.phase in TERMINAL:
        return None
    hold, stop = state.hold, state.stop
    if not (state.open_asks or state.pending or hold or stop):  # nearly every look
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
    if state.in_flight:
        yield from _cuts(state)
    if crossing(state, state.at):
        yield Advance()
        return
    if state.open and (state.wheel or not state.redirects) and failure(state) is None:
        yield from _starts(state)
    if state.in_flight or state.cleaning or _startable(state):
        if (wake := wake_at(state)) is not None:
            yield WakeAt(at=wake)
        return
    yield _at_boundary(state)


def _cuts(state: State) -> Iterator[Order]:
    """Close model calls that have not heard of a new course; tools only if it says *now*."""
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
    """Ask the model once more, after what a new step waits for: no child is left behind.

    A person may have given one up while the call was out. It is ended when nothing is in
    flight: a call that somebody approved meanwhile may be.
    """
    if state.cleaning:
        return
    left = left_behind(state)
    if left is None:
        yield _start(state, call)
    elif not state.in_flight:
        yield left


def may_start(call: Call) -> bool:
    """Tell whether the call waits for nothing but the door."""
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
    """Nothing is in flight, nothing can be started, nothing waits to be taken up."""
    if failure(state) is not None or state.wheel:
        return Settle()  # failed, or back with the person at the wheel
    # With an answer, an approval may still be out: the run waits for it before it ends.
    waits = bool(state.open) or (state.answer is not None and bool(state.open_asks))
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
    """Return the end of a child run that nobody attends to any more, if there is one.

    Its call was given up, by a redirect say: it must not go on for a plan that is gone. One
    that has failed rests by itself. What came last goes first, as in every clean-up.
    """
    last: Call | None = None
    for number in state.effects:
        call = state.calls[number - 1]
        if call.call_kind != "child" or call.unclosed or call.stage not in GIVEN_UP:
            continue
        # What cannot be ended is tried no more than anything else, and listed at the end.
        tried = call.release.attempts >= state.started.undo_attempts
        if to_release(call) and not tried and (last is None or call.closed > last.closed):
            last = call
    return None if last is None else Release(call=last.id, after=last.release.retry_at)


def next_call(state: State) -> Order:
    """Return the order that goes on thinking: the host, a condensed history, or the model."""
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
    """Pausing: close model streams, let tools finish unless they can stop where they are."""
    for number in state.in_flight:
        call = state.calls[number - 1]
        if call.call_kind == "child":
            child = child_id(state.run, call.id)
            yield ControlChild(call=call.id, child=child, control="pause", now=hold.now)
        elif hold.now or call.call_kind == "model" or call.progress is not None:
            yield AbortCall(call=call.id, because="paused")
    if not state.in_flight and not state.cleaning:
        yield Settle()
    elif (wake := wake_at(state)) is not None:
        yield WakeAt(at=wake)


def _halted(state: State) -> Iterator[Order]:
    """Halted: abort what is in flight, then let go."""
    for number in state.in_flight:
        yield _abort(state, number, "halted")
    if not state.in_flight and state.leased and not state.cleaning:
        yield Park()


def _cancelling(state: State) -> Iterator[Order]:
    """Abort what is in flight, children first; then undo and release; then the report."""
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
    call = state.calls[number - 1]
    if call.call_kind != "child":
        return AbortCall(call=call.id, because=because)
    child = child_id(state.run, call.id)
    control: Passed = "halt" if because == "halted" else "cancel"
    undo = state.cancel.undo if state.cancel else "in_flight"
    return ControlChild(call=call.id, child=child, control=control, now=True, undo=undo)
