"""Decide on controls that stop or steer a run: pause, resume, redirect, cancel, halt.

A request and its fulfilment are two entries (`PauseRequested`, then `RunPaused`). If a worker
drives the run, the handler appends only the request, and the worker appends the fulfilment when
nothing is in flight. If no worker drives the run, nothing is in flight, and the handler appends
both at once, unless a cancel leaves calls to undo or release: a worker must take the run first.
"""

from midrun.core import journaled_text
from midrun.core.controls import (
    AcceptResidue,
    Cancel,
    ForcePause,
    Halt,
    Lift,
    Pause,
    RaiseCap,
    Redirect,
    Resume,
    RetryUndo,
    Withdraw,
)
from midrun.core.decide.lifecycle import (
    add_waiting,
    add_wakeup,
    make_followup_fields,
    make_request_fields,
)
from midrun.core.driver_inputs import TakeBack
from midrun.core.entries import (
    CallUnknown,
    CancelRequested,
    CapRaised,
    Entry,
    FrameAbandoned,
    MessageClosed,
    PauseRequested,
    PauseWithdrawn,
    RedirectClosed,
    RedirectRequested,
    ResidueAccepted,
    RunHalted,
    RunLifted,
    RunPaused,
    RunResumed,
    RunWoken,
    UndoRetried,
    UndoUnknown,
)
from midrun.core.evolve import apply_entries
from midrun.core.files import find_run_file_problem
from midrun.core.ids import Micros, make_call_id
from midrun.core.state import PauseState, PendingText, State
from midrun.core.step_boundary import close_asks, make_cancel_entries
from midrun.core.stops import measure_caps
from midrun.core.transitions import NoChange, Refused, Verdict, accept
from midrun.core.undo import list_remaining_cleanups
from midrun.core.values import PauseReason, Phase


def pause(state: State, control: Pause, _: Micros) -> Verdict:
    """Request a pause; pause at once if no worker drives the run."""
    current_pause = state.pause or PauseState()
    why: PauseReason = "taken_over" if state.taken_over_by else "user"
    request = PauseRequested(
        now=control.now, until=control.until, why=why, **make_request_fields(control)
    )
    if state.phase is Phase.RUNNING:
        # This entry leads to *pausing* (`transitions.ENTRY_TABLE`). The worker stops the calls
        # in flight (`scheduler.list_effects`); `scheduler.advance` then returns `RunPaused`.
        return accept(request)
    if state.phase in {Phase.QUEUED, Phase.WAITING}:
        return accept(request, RunPaused(why=why))
    # The run is pausing or paused already. A second pause counts only if it asks for more:
    # to stop calls now, or to drop the time limit of the first pause.
    drops_time_limit = current_pause.ends_at is not None and control.until is None
    aborts_calls = control.now and not current_pause.now and state.phase is Phase.PAUSING
    if not (drops_time_limit or aborts_calls):
        return NoChange(name=f"already_{state.phase}", seq=state.phase_since, by=state.phase_by)
    # A time limit applies to a user's pause only. A pause at a cap, or for a person who has
    # taken over, does not end by itself.
    until = (
        control.until
        if current_pause.reason == "user" and current_pause.ends_at is not None
        else None
    )
    request = PauseRequested(
        now=control.now, until=until, why=current_pause.reason, **make_request_fields(control)
    )
    if state.phase is Phase.PAUSED:
        return accept(request, RunPaused(why=current_pause.reason))
    return accept(request)


def resume(state: State, control: Resume, _: Micros) -> Verdict:
    """Resume the run: withdraw a requested pause, or end one in force."""
    if control.files and not control.instruction:
        return Refused(reason="empty_text")  # files belong to a text that explains them
    if find_run_file_problem(state, control.files):
        return Refused(reason="files_refused")
    raising: tuple[Entry, ...] = ()
    if control.caps:
        if (problem := find_cap_refusal(state, control.caps)) is not None:
            return problem
        raising = (CapRaised(caps=control.caps, **make_followup_fields(control)),)
    # Check the state with the raised caps: one of them may be the reason for the pause.
    if (problem := _find_resume_refusal(apply_entries(state, raising))) is not None:
        return problem
    if state.phase is Phase.PAUSING:
        entries: tuple[Entry, ...] = (*raising, PauseWithdrawn(**make_request_fields(control)))
        if control.instruction:
            entries += (
                RedirectRequested(
                    text=control.instruction,
                    files=control.files,
                    **make_followup_fields(control),
                ),
            )
        return accept(*entries)
    return accept(
        *add_waiting(state, (*raising, make_run_resumed(state, control.instruction, control)))
    )


def make_run_resumed(state: State, instruction: str, control: Resume) -> RunResumed:
    """Build `RunResumed` with a one-line difference: old plan item, new instruction."""
    minus = journaled_text.format_upcoming(state, state.plan) if instruction else ""
    plus = journaled_text.shorten_to_line(instruction)
    return RunResumed(
        instruction=instruction,
        minus=minus,
        plus=plus,
        files=control.files,
        **make_request_fields(control),
    )


def _find_resume_refusal(state: State) -> Refused | None:
    """Return a refusal if a cap holds the run, or a person has taken over."""
    current_pause = state.pause or PauseState()
    if state.taken_over_by:
        return Refused(reason="taken_over", seq=current_pause.seq, by=state.taken_over_by)
    if current_pause.reason == "cap" and current_pause.cap_name:
        return Refused(reason="cap_reached", seq=current_pause.seq, by=current_pause.cap_name)
    return None


def redirect(state: State, control: Redirect, _: Micros) -> Verdict:
    """Give the run a new instruction; close its open asks as superseded."""
    if not control.text.strip():
        return Refused(reason="empty_text")
    if state.taken_over_by:
        return Refused(reason="taken_over", by=state.taken_over_by)
    if find_run_file_problem(state, control.files):
        return Refused(reason="files_refused")
    request = RedirectRequested(
        text=control.text,
        when=control.when,
        files=control.files,
        **make_request_fields(control),
    )
    # The asks are closed in the append of the request, not when the redirect is applied: an
    # approval that comes in between must not start a call of the old plan.
    entries: tuple[Entry, ...] = (request, *close_asks(state, "superseded", control.by.name))
    # A redirect of a paused or failed run also resumes it, unless a cap holds it: the redirect
    # must not be a way around the cap.
    if state.phase in {Phase.PAUSED, Phase.FAILED}:
        if (problem := _find_resume_refusal(state)) is not None:
            return problem
        return accept(*entries, RunResumed(**make_followup_fields(control)))
    if state.phase is Phase.WAITING:
        return accept(*entries, RunWoken(why="redirected"))
    return accept(*entries)


def cancel(state: State, control: Cancel, _: Micros) -> Verdict:
    """Request a cancel; end the run at once if no cleanup is left.

    Open asks are closed, held topics are dropped, and texts that were not applied go back to
    their senders. These entries come in the same append as the request.
    """
    # In other phases the table answers a second cancel. A halted run may have a cancel pending
    # that takes effect when the halt is lifted.
    if state.cancel_request is not None:
        at = state.cancel_seq
        return NoChange(name="already_cancelling", seq=at, by=state.cancel_request.by)
    entries: tuple[Entry, ...] = (
        CancelRequested(undo=control.undo, **make_request_fields(control)),
        *close_asks(state, "cancelled", control.by.name),
        *(
            FrameAbandoned(
                frame=frame.id,
                why="cancelled",
                text=journaled_text.format_dropped_topic(frame),
            )
            for frame in reversed(state.frames)
        ),
        *return_pending(state.pending),
    )
    after = apply_entries(state, entries)
    # A worker that may still have calls in flight must stop them first. Without a worker, and
    # with nothing to undo or release, no process has anything to do: end the run here.
    driven = state.phase in {Phase.RUNNING, Phase.PAUSING, Phase.HALTED}
    if not (driven or after.in_flight or list_remaining_cleanups(after)):
        entries += make_cancel_entries(after)
    return accept(*entries)


def take_back(state: State, driver_input: TakeBack, _: Micros) -> Verdict:
    """Undo everything that a finished child run did, because its parent is cancelled."""
    origin = state.run_started.parent
    if origin is None or origin.run != driver_input.parent:
        return Refused(reason="not_its_parent")
    request = CancelRequested(
        undo="all", by=f"run:{origin.run}", role="system", reason="its parent is cancelled"
    )
    # Asked of the state with the request in it: the undo set is computed when the cancel is
    # folded.
    if not list_remaining_cleanups(apply_entries(state, (request,))):
        return NoChange(name="nothing_to_undo", seq=state.phase_since, by=state.phase_by)
    return accept(request)


def return_pending(pending: tuple[PendingText, ...]) -> tuple[Entry, ...]:
    """Close pending redirects and messages; each entry returns the text to its sender."""
    return tuple(
        RedirectClosed(redirect=p.seq, why="returned", text=p.text)
        if p.kind == "redirect"
        else MessageClosed(message=p.seq, why="returned", text=p.text)
        for p in pending
    )


def halt(state: State, control: Halt, _: Micros) -> Verdict:
    """Halt the run; store the phase in which it continues after the halt."""
    # The worker of a running run gives its lease back during the halt, so the run is queued
    # for a worker when the halt is lifted.
    then = Phase.QUEUED if state.phase is Phase.RUNNING else state.phase
    return accept(
        RunHalted(phase_after_lift=then, scope=control.scope, **make_request_fields(control))
    )


def lift(state: State, control: Lift, _: Micros) -> Verdict:
    """Lift the halt; wake the run if its asks were settled meanwhile."""
    lifted = RunLifted(**make_request_fields(control))
    return accept(lifted, *add_wakeup(apply_entries(state, (lifted,)), (), "lifted"))


def raise_cap(state: State, control: RaiseCap, _: Micros) -> Verdict:
    """Raise one or more caps."""
    problem = find_cap_refusal(state, control.caps)
    return problem or accept(CapRaised(caps=control.caps, **make_request_fields(control)))


def find_cap_refusal(state: State, wanted: dict[str, int]) -> Refused | None:
    """Return a refusal if a cap is unknown or not raised, else None."""
    bounds = {
        name: bound
        for name, (_, bound) in measure_caps(state.stop, state.meter_with_time).items()
    }
    if not wanted or not wanted.keys() <= bounds.keys():
        return Refused(reason="no_such_cap")
    if any(new <= bounds[name] for name, new in wanted.items()):
        return Refused(reason="cap_not_raised")
    return None


def withdraw(state: State, control: Withdraw, _: Micros) -> Verdict:
    """Withdraw a pending redirect, message or pause by its seq."""
    waiting = tuple(p for p in state.pending if p.seq == control.seq)
    if waiting:
        closed = waiting[0]
        fields = make_request_fields(control)
        if closed.kind == "redirect":
            return accept(
                RedirectClosed(redirect=closed.seq, why="withdrawn", text=closed.text, **fields)
            )
        return accept(
            MessageClosed(message=closed.seq, why="withdrawn", text=closed.text, **fields)
        )
    # Not a pending text, so perhaps the requested pause. The seq must match: a later pause
    # request may come from another person. A pause at a cap cannot be withdrawn.
    current_pause = state.pause
    pends = (
        state.phase is Phase.PAUSING
        and current_pause is not None
        and current_pause.reason == "user"
    )
    if pends and current_pause is not None and current_pause.seq == control.seq:
        return accept(PauseWithdrawn(**make_request_fields(control)))
    return Refused(reason="not_pending")


def force_pause(state: State, control: ForcePause, _: Micros) -> Verdict:
    """Pause now; record every call and undo still in flight as unknown.

    The worker's calls may still run. `RunPaused` ends its lease, so their results can only
    come back as late results.
    """
    current_pause = state.pause or PauseState()
    entries: tuple[Entry, ...] = (
        PauseRequested(
            now=True,
            why=current_pause.reason,
            until=current_pause.ends_at,
            **make_request_fields(control),
        ),
        *(CallUnknown(call=make_call_id(n), why="forced") for n in state.in_flight),
    )
    if state.cleanup_in_flight is not None:
        number, action = state.cleanup_in_flight
        entries += (UndoUnknown(call=make_call_id(number), action=action),)
    return accept(*entries, RunPaused(why=current_pause.reason))


def retry_undo(state: State, control: RetryUndo, _: Micros) -> Verdict:
    """Try again to undo and release the residue."""
    if not state.residue:
        return Refused(reason="no_residue")
    return accept(UndoRetried(**make_request_fields(control)))


def accept_residue(state: State, control: AcceptResidue, _: Micros) -> Verdict:
    """Record that an operator accepts the residue as it is."""
    if not state.residue or state.residue_accepted:
        return Refused(reason="no_residue")
    return accept(ResidueAccepted(**make_request_fields(control)))
