"""Fold controls: pause, resume, caps, redirect, cancel, halt.

`State.pause` is the requested or active pause, `State.pending` holds redirects and messages
that wait for a boundary, and `State.cancel_request` is the cancel request.
"""

from msgspec.structs import replace

from midrun.core.entries import (
    CancelRequested,
    CapRaised,
    CapReached,
    PauseRequested,
    PauseWithdrawn,
    RedirectApplied,
    RedirectClosed,
    RedirectRequested,
    RequestNoted,
    ResidueAccepted,
    RunCancelled,
    RunHalted,
    RunLifted,
    RunPaused,
    RunResumed,
    StopEvaluated,
    StopReached,
    UndoRetried,
)
from midrun.core.ids import CallId, Seq
from midrun.core.retries import reset_deaths
from midrun.core.state import (
    CallStage,
    CallState,
    Cleanup,
    EvolveFunctions,
    PauseState,
    PendingText,
    State,
)
from midrun.core.stops import Meter, raise_caps
from midrun.core.values import Message, Phase
from midrun.errors import JournalCorrupt


def pause_requested(state: State, entry: PauseRequested) -> State:
    """Set the requested pause; a second request never turns `now` off."""
    before = state.pause or PauseState()
    is_cap = entry.why == "cap"
    pause = PauseState(
        reason=entry.why,
        now=entry.now or before.now,
        # A pause at a cap stays one: the run may not resume until that cap is raised.
        cap_name=before.cap_name if is_cap else "",
        condition=before.condition if is_cap else "",
        ends_at=entry.until,
        seq=state.seq,
        by=entry.by,
    )
    return replace(state, pause=pause)


def pause_withdrawn(state: State, _: PauseWithdrawn) -> State:
    """Drop the requested pause; the run continues."""
    return replace(state, pause=None, meter=_reset_conditions(state.meter))


def run_paused(state: State, entry: RunPaused) -> State:
    """Release the lease; the run is paused."""
    pause = state.pause or PauseState(seq=state.seq)
    return replace(state, is_leased=False, pause=replace(pause, reason=entry.why))


def run_resumed(state: State, entry: RunResumed) -> State:
    """End the pause or the failure; queue an instruction as a redirect."""
    state = reset_deaths(
        replace(
            state,
            pause=None,
            error=None,
            invalid_outputs=0 if state.error else state.invalid_outputs,
            tool_retries={} if state.error else state.tool_retries,
            meter=_reset_conditions(state.meter),
        )
    )
    if not entry.instruction:
        return state
    # From here on an instruction and a redirect are the same. `prompt_outdated_seq` marks the
    # model calls that started before this entry as outdated.
    waiting = PendingText(
        seq=state.seq,
        kind="redirect",
        text=entry.instruction,
        by=entry.by,
        files=entry.files,
    )
    state = state.with_files(entry.files)
    return _void_approvals(
        replace(state, pending=(*state.pending, waiting), prompt_outdated_seq=state.seq)
    )


def _reset_conditions(meter: Meter) -> Meter:
    """Clear the inputs of stop conditions that have no cap to raise.

    Such a condition (a text mention, repeated calls, a custom function) would be met again by
    the same input, and the run would pause again at once. The verdicts are set to False for
    this boundary; the next step evaluates the functions again.
    """
    verdicts = dict.fromkeys(meter.custom_verdicts, False)
    return replace(meter, last_text="", recent_calls=(), custom_verdicts=verdicts)


def cap_raised(state: State, entry: CapRaised) -> State:
    """Raise the caps; a pause at one of them becomes an ordinary pause."""
    # A resume is refused while `cap_name` is set. When the cap is raised the pause remains,
    # because raising a cap alone does not continue the run.
    pause = state.pause
    if pause is not None and pause.cap_name in entry.caps:
        pause = replace(pause, reason="user", cap_name="")
    stop = raise_caps(state.stop, entry.caps) if state.stop else None
    return replace(state, stop=stop, pause=pause)


def cap_reached(state: State, entry: CapReached) -> State:
    """Request a pause at the cap."""
    condition = "" if entry.cap else entry.stop
    pause = PauseState(reason="cap", cap_name=entry.cap, condition=condition, seq=state.seq)
    return replace(state, pause=pause)


def stop_reached(state: State, _: StopReached) -> State:
    """Take the agent's last text as the answer: a stop condition ends the run."""
    return replace(state, answer=state.meter.last_text, answer_value=None)


def stop_evaluated(state: State, entry: StopEvaluated) -> State:
    """Store the verdict of a custom condition until the next step."""
    verdicts = state.meter.custom_verdicts | {entry.name: entry.met}
    return replace(state, meter=replace(state.meter, custom_verdicts=verdicts))


def redirect_requested(state: State, entry: RedirectRequested) -> State:
    """Queue the instruction; model calls that have not seen it will be aborted."""
    waiting = PendingText(
        seq=state.seq,
        kind="redirect",
        text=entry.text,
        by=entry.by,
        timing=entry.when,
        files=entry.files,
    )
    state = state.with_files(entry.files)
    return _void_approvals(
        replace(state, pending=(*state.pending, waiting), prompt_outdated_seq=state.seq)
    )


def _void_approvals(state: State) -> State:
    """Void unused approvals: they were given under the old instruction."""
    for number in state.open_and_parked_calls:
        call = state.calls[number - 1]
        # A started call has used its approval; the entry of its start refers to it.
        if call.approval is not None and call.stage is not CallStage.STARTED:
            state = state.with_call(replace(call, approval=None))
    return state


def redirect_applied(state: State, entry: RedirectApplied) -> State:
    """Add the instruction to the conversation; discard any answer given before it."""
    state, waiting = remove_pending(state, entry.redirect)
    state = replace(
        state,
        answer=None,
        main_answer=None,
        pending_final=CallId(""),
        instruction=waiting.text,
        invalid_outputs=0,
        tool_retries={},
    )
    return state.with_messages(
        Message(
            role="user",
            text=waiting.text,
            by=waiting.by,
            kind="instruction",
            files=waiting.files,
        )
    )


def redirect_closed(state: State, entry: RedirectClosed) -> State:
    """Remove the instruction from the pending ones."""
    return remove_pending(state, entry.redirect)[0]


def remove_pending(state: State, seq: Seq) -> tuple[State, PendingText]:
    """Remove the pending redirect or message with this seq; return both.

    Raises:
        JournalCorrupt: no pending redirect or message has this seq.
    """
    waiting = next((p for p in state.pending if p.seq == seq), None)
    if waiting is None:
        raise JournalCorrupt(
            state.run, state.seq, f"there is no pending redirect or message {seq}"
        )
    return replace(state, pending=tuple(p for p in state.pending if p is not waiting)), waiting


def cancel_requested(state: State, entry: CancelRequested) -> State:
    """Start the cancel: put unfinished calls into the undo set.

    Such a call belongs to the undo set however it ends, even if a later result says that it is
    done. For a child run, `in_undo_set` means that this cancel still has to end the child.
    """
    # Only calls in flight and calls with a cleanup can belong to the undo set. A scan of all
    # calls would make the cost grow with the length of the run.
    for number in {*state.in_flight, *state.cleanup_calls}:
        call = state.calls[number - 1]
        if (unfinished := _is_unfinished(call)) is not call.in_undo_set:
            state = state.with_call(replace(call, in_undo_set=unfinished))
    # A halted run stays halted. Its cancel takes effect when the halt is lifted.
    then = Phase.CANCELLING if state.phase is Phase.HALTED else None
    state = replace(
        state, cancel_request=entry, cancel_seq=state.seq, cancel_requested_at=state.at
    )
    return replace(state, pause=None, phase_after_halt=then, residue_accepted=False)


def _is_unfinished(call: CallState) -> bool:
    """Tell whether the call is in flight, or ended without a certain outcome."""
    # A call that is done is certain, unless an earlier cancel has put it into the undo set. It
    # stays there until it is undone: a retry of failed undos, and a cancel by the parent run,
    # depend on it.
    if call.stage in {CallStage.STARTED, CallStage.DONE}:
        return call.stage is CallStage.STARTED or call.in_undo_set
    # If the end of the child is under way or done, an earlier cause ordered it, for example a
    # redirect. This cancel does not have to end the child again.
    if call.call_kind == "child":
        return call.attempt > 0 and call.release.stage not in {"started", "done"}
    return call.may_have_effect


def run_cancelled(state: State, entry: RunCancelled) -> State:
    """End the run; store the residue and the partial output."""
    # `has_ended` stays set if the run is cancelled once more, to retry undos: its output is
    # final.
    return replace(
        state, is_leased=False, has_ended=True, residue=entry.residue, output=entry.partial
    )


def undo_retried(state: State, _: UndoRetried) -> State:
    """Reset every undo and release that was given up, so that it is tried again."""
    for number in state.cleanup_calls:
        call = state.calls[number - 1]
        for action in ("undo", "release"):
            if getattr(call, action).stage == "gave_up":
                call = replace(call, **{action: Cleanup()})
        state = state.with_call(call)
    return replace(state, residue=(), residue_accepted=False, undo_retried_seq=state.seq)


def run_halted(state: State, entry: RunHalted) -> State:
    """Store the phase for after the halt; the worker releases its lease later."""
    return replace(state, phase_after_halt=entry.phase_after_lift)


def run_lifted(state: State, _: RunLifted) -> State:
    """Clear the stored phase; `evolve` has restored it."""
    return replace(state, phase_after_halt=None)


def residue_accepted(state: State, _: ResidueAccepted) -> State:
    """Mark the residue as accepted; the run needs no more attention."""
    return replace(state, residue_accepted=True)


def request_noted(state: State, _: RequestNoted) -> State:
    """Change nothing: `evolve` has stored the outcome of the request."""
    return state


EVOLVE_FUNCTIONS: EvolveFunctions = {
    PauseRequested: pause_requested,
    PauseWithdrawn: pause_withdrawn,
    RunPaused: run_paused,
    RunResumed: run_resumed,
    CapRaised: cap_raised,
    CapReached: cap_reached,
    StopReached: stop_reached,
    StopEvaluated: stop_evaluated,
    RedirectRequested: redirect_requested,
    RedirectApplied: redirect_applied,
    RedirectClosed: redirect_closed,
    CancelRequested: cancel_requested,
    RunCancelled: run_cancelled,
    UndoRetried: undo_retried,
    ResidueAccepted: residue_accepted,
    RunHalted: run_halted,
    RunLifted: run_lifted,
    RequestNoted: request_noted,
}
