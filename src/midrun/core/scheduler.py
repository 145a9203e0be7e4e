"""Compute what follows from the state of a run: the next entries, and the work to run.

Two functions, both of the state alone (and of the time). A worker that has just replayed the
journal gets the same results as one that never stopped, so recovery needs no code of its own.

- `advance(state, now, …)` returns the entries that follow from the journal without any new
  input: boundary entries, starts of calls and of undos, the end of a phase. The worker appends
  them, applies them to the state, and asks again until there are none.
- `list_effects(state)` returns the work that needs no entry of its own: aborts of calls in
  flight, controls for child runs, checks of unknown calls, custom stop conditions.

By phase:

- running: abort outdated calls, append boundary entries, start calls, else end the step;
- pausing: abort the calls that can stop, wait for the others, then pause;
- halted: abort every call in flight, then release the lease;
- cancelling: abort every call, then undo and release one at a time, then end.

Nothing follows in any other phase. `find_wake_time` returns the time of a run's next timer,
`find_retry_time` the time at which a failed attempt may be repeated.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, TypeAlias, assert_never, dataclass_transform

from msgspec import Struct, field
from msgspec.structs import replace

from midrun.core.entries import (
    CallStarted,
    Entry,
    LeaseReleased,
    MessageClosed,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunWaiting,
    RunWoken,
    UndoStarted,
)
from midrun.core.ids import (
    CallId,
    Micros,
    RunId,
    Seq,
    add_micros,
    make_call_id,
    make_child_id,
)
from midrun.core.journaled_text import seal_call
from midrun.core.retries import find_failure
from midrun.core.state import CallStage, CallState, PauseState, State
from midrun.core.step_boundary import (
    has_unblocked_call,
    list_boundary_entries,
    make_cancel_entries,
    make_stop_entry,
)
from midrun.core.stops import (
    Stop,
    completes_run,
    find_met_call_cap,
    find_met_stop,
    find_overdrawn_cap,
    find_unevaluated_custom,
    get_work_limit_micros,
    has_spend_cap,
)
from midrun.core.transcript import CONDENSE_KEEP_MESSAGES
from midrun.core.undo import find_next_cleanup, find_orphaned_child
from midrun.core.values import (
    NO_SPEND,
    TERMINAL_PHASES,
    CallPurpose,
    CleanupAction,
    Phase,
    Spend,
    UndoSet,
    WorkKind,
)

PAUSE_PHASES: Final = frozenset({Phase.PAUSING, Phase.PAUSED})

Reserve: TypeAlias = Callable[[State, CallPurpose], Spend | RunFailed]
"""Return the spend to reserve for the next model call, or the failure of its estimate.

It is called only if the run has a cap on tokens or cost.
"""

MayStart: TypeAlias = Callable[[CallState | None, WorkKind], bool]
"""Tell whether the worker lets a call, undo or release start now; None is a new model call. It
may hold a call back that is suspected of crashing the process; see `driver.suspect_calls`."""


def reserve_nothing(_: State, __: CallPurpose) -> Spend:
    """Reserve no spend; the default of `advance`."""
    return NO_SPEND


def start_all(_: CallState | None, __: WorkKind) -> bool:
    """Let everything start; the default of `advance`."""
    return True


# ── effects: work that a worker must run now, and that needs no entry of its own ──────────
#
# The driver carries them out and reports the results as driver inputs. Starts of calls and
# undos are not effects: they are entries, and the call is made after the append.

AbortReason = Literal["paused", "redirected", "cancelled", "halted"]
"""The reason to abort a call in flight."""

ChildControl = Literal["pause", "cancel", "halt"]
"""A control that a parent run passes on to its child run."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class _DriverEffectBase(Struct, frozen=True, kw_only=True, gc=False):
    """Base of all effects."""


class CheckCall(_DriverEffectBase, kw_only=True):
    """Run the tool's check to find out whether an unknown call took effect."""

    call: CallId


class EvaluateStopCondition(_DriverEffectBase, kw_only=True):
    """Evaluate the custom stop condition of this name; send `RecordStopVerdict`."""

    name: str


class AbortCall(_DriverEffectBase, kw_only=True):
    """Stop a call in flight: close the stream, cancel the task, or kill the process."""

    call: CallId
    reason: AbortReason


class ControlChild(_DriverEffectBase, kw_only=True):
    """Pass a control of this run on to the child run of a call in flight."""

    call: CallId
    child: RunId
    control: ChildControl
    now: bool = False
    undo: UndoSet = "in_flight"


class RunProgram(_DriverEffectBase, kw_only=True):
    """Run the program of a hosted agent; its calls come back as `ProposeCall`.

    The loop of a hosted agent is code of the user, which makes its model and tool calls through
    the driver (`driver.program_runner`). The effect is listed for as long as the program must
    run: while it computes, and while it waits for its calls. It ends with `FinishHostedAgent`.
    """


DriverEffect = AbortCall | CheckCall | ControlChild | EvaluateStopCondition | RunProgram


# ── the entries that follow ───────────────────────────────────────────────────────────────


def advance(
    state: State,
    now: Micros,
    reserve: Reserve = reserve_nothing,
    may_start: MayStart = start_all,
    *,
    unjournaled_work: bool = False,
) -> tuple[Entry, ...]:
    """Return the next entries that follow from the journal alone; () if there are none.

    `unjournaled_work` says that the worker still runs a check, a custom stop condition or the
    program of a hosted agent. The journal does not show those; the run does not come to rest
    before they have ended.

    The entries must be appended directly after `state.seq`, all or none, by the holder of the
    lease. Apply them and call again: the result may make others follow. That ends, because
    each result moves the run forward.

    A start depends on the same state as the append: if a control was appended in between, the
    append conflicts, and the worker asks again on the state with the control.
    """
    if not state.is_leased:
        return ()
    # The usual case, after every start: a running run waits for its calls. A boundary needs the
    # end of all of them, and no other call is open that could start or could need an ask.
    is_running = state.phase is Phase.RUNNING
    if is_running and state.in_flight and len(state.in_flight) == len(state.open_calls):
        return ()
    now = Micros(max(now, state.at))  # the times in a journal never decrease
    is_busy = bool(unjournaled_work or state.in_flight or state.cleanup_in_flight)
    match state.phase:
        case Phase.RUNNING:
            return _advance_running(state, now, reserve, may_start, is_busy=is_busy)
        case Phase.PAUSING:
            return () if is_busy else _make_pause_entries(state)
        case Phase.CANCELLING:
            return () if is_busy else _advance_cancelling(state, now, may_start)
        case Phase.HALTED:
            # A halt leaves the run unfinished. The lease is given back, so that after the lift
            # any worker can continue; this one may be gone by then.
            return () if is_busy else (LeaseReleased(why="halted"),)
        case Phase.QUEUED | Phase.PAUSED | Phase.WAITING | Phase.FAILED:
            return ()
        case Phase.CANCELLED | Phase.COMPLETED:
            return ()
        case _:
            assert_never(state.phase)


def _has_call_in_flight(state: State) -> bool:
    """Tell whether a call, undo or release is in flight."""
    return bool(state.in_flight) or state.cleanup_in_flight is not None


def _advance_running(
    state: State,
    now: Micros,
    reserve: Reserve,
    may_start: MayStart,
    *,
    is_busy: bool,
) -> tuple[Entry, ...]:
    calls = state.active_calls if state.open_calls else ()
    failure = find_failure(state, calls)
    if failure is not None:
        # The run fails only when nothing is in flight. Its end would end the lease, and the
        # outcomes of the calls beside the failed one could not be journaled any more.
        return () if is_busy else (failure,)
    # Boundary entries come before starts, because they may close the calls that would be
    # started, or open asks for them.
    if entries := list_boundary_entries(state, calls, now):
        return entries
    if state.open_calls:
        if (not state.pending or _may_make_calls(state)) and (
            entries := _start_open_calls(state, calls, now, reserve, may_start)
        ):
            return entries
        # A call is in flight, waits for the time of its retry, or is held back by a check or by
        # `may_start`. Its end, or a timer, wakes the worker; until then this is no boundary.
        if has_unblocked_call(state, calls):
            return ()
    # Not at a boundary while something is in flight.
    return () if is_busy else _advance_boundary(state, now, reserve, may_start)


def _may_make_calls(state: State) -> bool:
    # A redirect seals the open calls, so none of them is started before it is applied. The
    # person who has taken over makes calls of their own; redirects wait for the hand-back.
    return bool(state.taken_over_by) or not state.pending_redirects


def _start_open_calls(
    state: State,
    active_calls: Sequence[CallState],
    now: Micros,
    reserve: Reserve,
    may_start: MayStart,
) -> tuple[Entry, ...]:
    """Start the open calls that can start now; one at a time if each may meet a cap.

    Without a stop condition the start of one tool call does not depend on that of another. All
    calls of a reply start together then: to ask again after each of them takes a time that
    grows with the square of their number.
    """
    started: list[Entry] = []
    speaker = state.run_started if state.speaker is None else state.speaker
    has_limits = bool(speaker.max_parallel)
    for call in active_calls:
        has_limits = has_limits or call.use.traits.sequential
    for call in active_calls:
        if started and call.call_kind == "model":
            break  # it depends on the calls in flight, so it is decided on the next state
        if has_limits and is_startable(call) and not _has_room_for(state, call):
            break  # later calls of the reply do not overtake it
        entries = _start_open_call(state, call, now, reserve, may_start)
        if not entries:
            continue
        if state.stop is not None or has_limits or not isinstance(entries[0], CallStarted):
            return (*started, *entries)
        # `seen` is the entry before it, as if it had been decided after the others.
        seen = Seq(state.seq + len(started))
        started.append(replace(entries[0], seen=seen) if started else entries[0])
    return tuple(started)


def _has_room_for(state: State, call: CallState) -> bool:
    """Tell whether `call` may run beside the tool calls in flight.

    Calls start in the order of the reply. A call that waits for a person is passed over: it is
    not startable.
    """
    if call.call_kind == "model":
        return True
    others = [state.calls[number - 1] for number in state.in_flight]
    others = [other for other in others if other.call_kind != "model"]
    # A sequential call waits for all others, and all others wait for it.
    if others and (call.traits.sequential or any(o.traits.sequential for o in others)):
        return False
    limit = state.speaker_settings.max_parallel
    return not limit or len(others) < limit


def _start_open_call(
    state: State, call: CallState, now: Micros, reserve: Reserve, may_start: MayStart
) -> tuple[Entry, ...]:
    """Return the entries that start an open call; () if it cannot start now."""
    # A call in stage PROPOSED can start; only others are looked at in detail.
    if call.stage is not CallStage.PROPOSED and (not call.must_retry or _needs_check(call)):
        return ()
    if call.call_kind != "model":
        return _start_call(state, call, "step", NO_SPEND) if may_start(call, "call") else ()
    # A person may have given up a child run while the model call was in flight. A new step
    # waits for the end of such a child, so a retry of the model call waits, too. The child is
    # ended only when nothing is in flight: an approved call may have started meanwhile.
    if state.cleanup_in_flight:
        return ()
    orphan = find_orphaned_child(state)
    if orphan is not None:
        if state.in_flight:
            return ()
        return _start_cleanup(orphan, "release", now, may_start)
    if (call.retry_at or 0) > now or not may_start(call, "call"):
        return ()
    # A hosted program proposes its model calls. The first attempt begins a step, and custom
    # conditions are evaluated before each step; see `list_effects`.
    if not call.attempt and find_unevaluated_custom(state.stop, state.meter):
        return ()
    return _start_model(state, call, call.purpose, reserve)


def is_startable(call: CallState) -> bool:
    """Tell whether the call is proposed or must be retried."""
    return call.must_retry or call.stage is CallStage.PROPOSED


def _needs_check(call: CallState) -> bool:
    return call.needs_settling and not call.error and call.traits.check


def _start_model(
    state: State, call: CallState | None, purpose: CallPurpose, reserve: Reserve
) -> tuple[Entry, ...]:
    """Start a new model call, or repeat `call`; fail the run if it cannot be estimated."""
    if state.stop is None or not has_spend_cap(state.stop):
        return _start_call(state, call, purpose, NO_SPEND)
    reserved = reserve(state, purpose)
    if isinstance(reserved, RunFailed):
        return () if _has_call_in_flight(state) else (reserved,)
    # msgspec omits a default by identity. Use the singleton, so that an empty reservation is
    # not written to the journal.
    return _start_call(state, call, purpose, reserved if reserved != NO_SPEND else NO_SPEND)


def _start_call(
    state: State, call: CallState | None, purpose: CallPurpose, reserved: Spend
) -> tuple[Entry, ...]:
    """Start a call if the caps allow it, else return the entry of the cap.

    This is the gate that every model, tool and child call passes: a worker may make a call
    only after `CallStarted` is appended.
    """
    # A new model call begins a step. One of a hosted program has been proposed before.
    if call is None or (call.call_kind == "model" and not call.attempt):
        hit = find_met_stop(state.stop, state.meter_with_time, reserved) if state.stop else None
        started = CallStarted(
            call=make_call_id(state.calls.size + 1) if call is None else call.id,
            call_kind="model",
            attempt=1,
            seen=state.seq,
            purpose=purpose,
            reserved=reserved,
        )
        if hit is None:
            return (started,)
        # A hosted program has proposed calls that are not made any more if the run completes.
        return (*_seal_proposed_calls(state, hit), make_stop_entry(hit))
    # The step of this call has begun, so caps on steps do not apply. Caps on money and tokens
    # apply to every attempt. Caps on tool calls apply to the first attempt only, because a
    # retry is not counted again. A call that a person makes after taking over is counted, but
    # caps on tool calls do not stop it.
    if state.stop is not None:
        hit = find_overdrawn_cap(state.stop, state.meter, reserved)
        if hit is None and not call.attempt and not call.requested_by_operator:
            hit = find_met_call_cap(state.stop, state.meter_with_time)
        if hit is not None:
            return (make_stop_entry(hit),)
    started = CallStarted(
        call=call.id,
        call_kind=call.call_kind,
        attempt=call.attempt + 1,
        seen=state.seq,
        purpose=purpose,
        reserved=reserved,
        approval=call.approval,
    )
    return (started,)


def _seal_proposed_calls(state: State, hit: Stop) -> Iterator[Entry]:
    if completes_run(hit):
        calls = (state.calls[number - 1] for number in state.open_calls)
        yield from (seal_call(c, "the run has stopped") for c in calls if is_startable(c))


def _start_cleanup(
    call: CallState, action: CleanupAction, now: Micros, may_start: MayStart
) -> tuple[Entry, ...]:
    """Return the entry that starts an undo or a release; () if it must wait."""
    cleanup = call.get_cleanup(action)
    if (cleanup.retry_at or 0) > now or not may_start(call, action):
        return ()
    return (UndoStarted(call=call.id, action=action, attempt=cleanup.attempts + 1),)


def _advance_boundary(
    state: State, now: Micros, reserve: Reserve, may_start: MayStart
) -> tuple[Entry, ...]:
    """Return the entries that follow when nothing is in flight or can be started."""
    if state.taken_over_by:
        return (RunPaused(why="taken_over"),)  # until the person makes the next call
    # The agent may have its answer while a non-blocking approval is still open. The run waits
    # for that approval before it ends.
    waits = bool(state.open_calls) or (state.answer is not None and bool(state.open_asks))
    # Before the run waits or starts a new step, end child runs that were given up. At the end
    # of the run the ordinary cleanup below covers them.
    if waits or state.answer is None:
        orphan = find_orphaned_child(state) if state.cleanup_calls.size else None
        if orphan is not None:
            return _start_cleanup(orphan, "release", now, may_start)
    if waits:
        return (RunWaiting(),)
    if state.answer is None:
        stop = state.stop
        if state.run_started.hosted or (stop and find_unevaluated_custom(stop, state.meter)):
            return ()  # see `list_effects`
        if not may_start(None, "call"):
            return ()
        return _start_model(state, None, _choose_purpose(state), reserve)
    if (cleanup := find_next_cleanup(state)) is not None:
        call, _ = cleanup  # without a cancel there are only releases
        return _start_cleanup(call, "release", now, may_start)
    # A message that is scheduled for later can no longer reach the agent. Return its text.
    late = (MessageClosed(message=p.seq, why="returned", text=p.text) for p in state.pending)
    # The agent may have answered messages after its task. The output is the answer to the task,
    # not its last words.
    if state.main_answer is None:
        return (*late, RunCompleted(output=state.answer or "", value=state.answer_value))
    return (*late, RunCompleted(output=state.main_answer, value=state.main_value))


def _choose_purpose(state: State) -> CallPurpose:
    """Condense if the last prompt exceeded the window and there is enough to condense."""
    speaker = state.run_started if state.speaker is None else state.speaker
    full = 0 < speaker.window < state.prompt_tokens
    condensable = state.messages.size - state.condensed_count > CONDENSE_KEEP_MESSAGES
    return "condense" if full and condensable else "step"


def _make_pause_entries(state: State) -> tuple[Entry, ...]:
    """Pause the run; wake it at once if a redirect came after the pause request."""
    # A redirect that came after the pause request is an instruction to continue. Without the
    # second entry the run would stay paused with the instruction unread. A pause at a cap, or
    # by a person who has taken over, is not ended by it.
    pause = state.pause or PauseState()
    paused: tuple[Entry, ...] = (RunPaused(why=pause.reason),)
    if pause.reason == "user" and any(p.seq > pause.seq for p in state.pending_redirects):
        return (*paused, RunWoken(why="redirected"))
    return paused


def _advance_cancelling(state: State, now: Micros, may_start: MayStart) -> tuple[Entry, ...]:
    """Return the entries that undo, release or give up the next effect, or end the run."""
    # In a run that is being cancelled, these only give up cleanups that cannot succeed.
    if entries := list_boundary_entries(state, (), now):
        return entries
    # One cleanup at a time, the newest effect first: an older effect may be the base of a newer
    # one. The worker may be killed between `UndoStarted` and its end. Then the next lease
    # closes the attempt as unknown, and the same cleanup is returned here again: all its
    # attempts have the same idempotency key.
    cleanup = find_next_cleanup(state)
    if cleanup is None:
        return make_cancel_entries(state)
    call, action = cleanup
    return _start_cleanup(call, action, now, may_start)


# ── the work to run ───────────────────────────────────────────────────────────────────────


def list_effects(state: State) -> tuple[DriverEffect, ...]:
    """Return the work that must run now and needs no entry of its own.

    `state` is one from which nothing follows any more; see `advance`. The abort of a call is
    returned until the call ends; the worker ignores the abort of a call that it has aborted
    already.
    """
    match state.phase:
        case Phase.RUNNING:
            # Nothing more follows while all open calls are in flight, except an abort.
            waits = state.in_flight and len(state.in_flight) == len(state.open_calls)
            # Most runs have never been redirected.
            redirected = state.pending or state.prompt_outdated_seq
            effects = _list_redirect_aborts(state) if redirected and state.in_flight else ()
            if not waits:
                effects = (*effects, *_list_running_effects(state))
            if state.run_started.hosted and _wants_program(state):
                effects = (*effects, RunProgram())
            return effects
        case Phase.PAUSING:
            return tuple(_list_pausing_effects(state, state.pause or PauseState()))
        case Phase.CANCELLING:
            return tuple(_make_abort_effect(state, n, "cancelled") for n in state.in_flight)
        case Phase.HALTED:
            return tuple(_make_abort_effect(state, n, "halted") for n in state.in_flight)
        case Phase.QUEUED | Phase.PAUSED | Phase.WAITING | Phase.FAILED:
            return ()
        case Phase.CANCELLED | Phase.COMPLETED:
            return ()
        case _:
            assert_never(state.phase)


def _list_running_effects(state: State) -> Iterator[DriverEffect]:
    if find_failure(state, state.active_calls) is not None:
        return
    if state.open_calls:
        if _may_make_calls(state):
            calls = state.active_calls
            yield from (CheckCall(call=call.id) for call in calls if _needs_check(call))
        if not state.run_started.hosted:
            return
    if _has_call_in_flight(state) or state.answer is not None or state.taken_over_by:
        return
    # At a boundary without an answer: the agent continues. Before its next model call, a
    # custom stop condition is evaluated. A hosted program may have proposed that call already.
    name = find_unevaluated_custom(state.stop, state.meter)
    if name and find_orphaned_child(state) is None:
        yield EvaluateStopCondition(name=name)


def _wants_program(state: State) -> bool:
    """Tell whether the hosted program must run: it computes, or waits for its calls.

    Before the run comes to rest, the program is stopped. It continues from the journal later:
    it is run again from its start, and its finished calls are answered from the journal.
    """
    if state.answer is not None or state.taken_over_by:
        return False
    calls = state.active_calls
    if find_failure(state, calls) is not None:
        return False
    return (
        _has_call_in_flight(state) or not state.open_calls or has_unblocked_call(state, calls)
    )


def _list_redirect_aborts(state: State) -> tuple[DriverEffect, ...]:
    # A redirect waits until nothing is in flight. It aborts model calls that have not seen it;
    # tools are aborted only for when="now".
    now = not state.taken_over_by and any(p.timing == "now" for p in state.pending_redirects)
    aborts: list[DriverEffect] = []
    for number in state.in_flight:
        call = state.calls[number - 1]
        if now or (call.call_kind == "model" and call.seen_seq < state.prompt_outdated_seq):
            aborts.append(_make_abort_effect(state, number, "redirected"))
    return tuple(aborts)


def _list_pausing_effects(state: State, pause: PauseState) -> Iterator[DriverEffect]:
    """Stop for a pause: abort model calls; let tools finish unless they saved progress.

    An undo or a release in flight is not interrupted by a pause.
    """
    for number in state.in_flight:
        call = state.calls[number - 1]
        if call.call_kind == "child":
            child = make_child_id(state.run, call.id)
            yield ControlChild(call=call.id, child=child, control="pause", now=pause.now)
        elif pause.now or call.call_kind == "model" or call.progress is not None:
            yield AbortCall(call=call.id, reason="paused")


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


# ── times ─────────────────────────────────────────────────────────────────────────────────


def find_wake_time(state: State) -> Micros | None:
    """Return the time of the run's next timer, at which `Wake` is due; or None."""
    if state.phase is Phase.HALTED or state.phase in TERMINAL_PHASES:
        return None
    pause, stop = state.pause, state.stop
    # Most states have no timer, and this function is called often.
    if not (state.open_asks or state.pending or pause or stop):
        return None
    asks = (state.asks[n - 1] for n in state.open_asks)
    times = [ask.expires for ask in asks if ask.expires and ask.ask_kind != "child"]
    times += [p.due_at for p in state.pending if p.due_at is not None]
    if pause and pause.ends_at and pause.reason == "user" and state.phase in PAUSE_PHASES:
        times.append(pause.ends_at)
    if (
        state.phase is Phase.RUNNING
        and state.is_leased
        and (limit := get_work_limit_micros(stop))
    ):
        # `worked_micros` is the time worked up to the last entry, at `state.at`. From there on
        # the time runs, as the run has a lease and works; a run that rests does not use it up.
        times.append(add_micros(state.at, max(0, limit - state.worked_micros)))
    return min(times, default=None)


def find_retry_time(state: State, now: Micros) -> Micros | None:
    """Return the earliest time after `now` at which a failed attempt is repeated, or None."""
    if state.phase not in (Phase.RUNNING, Phase.CANCELLING):
        return None
    if state.in_flight and len(state.in_flight) == len(state.open_calls):
        return None  # nothing else is open
    calls = state.active_calls
    times = [call.retry_at for call in calls if is_startable(call) and call.retry_at]
    if not _has_call_in_flight(state) and state.cleanup_calls:
        orphan = find_orphaned_child(state)
        times += [orphan.release.retry_at] if orphan and orphan.release.retry_at else []
        if (cleanup := find_next_cleanup(state)) is not None:
            call, action = cleanup
            retry_at = call.get_cleanup(action).retry_at
            times += [retry_at] if retry_at else []
    # Times that have passed are left out: see `Session._end_turn`.
    return min((time for time in times if time > now), default=None)
