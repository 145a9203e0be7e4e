"""What steering a run means for its state."""

from msgspec.structs import replace

from midrun.core.entries import (
    CancelRequested,
    CapRaised,
    CapReached,
    EndReached,
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
    UndoRetried,
    VerdictGiven,
)
from midrun.core.ids import Seq
from midrun.core.retries import forgiven
from midrun.core.state import Arms, Call, Cleanup, Hold, Pending, Stage, State
from midrun.core.stops import Meter, raised
from midrun.core.values import Message, Phase
from midrun.errors import JournalCorrupt


def pause_requested(state: State, entry: PauseRequested) -> State:
    """A pause pends. A second one may make it sharper, never weaker."""
    before = state.hold or Hold()
    hold = Hold(
        why=entry.why,
        now=entry.now or before.now,
        cap=before.cap if entry.why == "cap" else "",
        until=entry.until,
        seq=state.seq,
        by=entry.by,
    )
    return replace(state, hold=hold)


def pause_withdrawn(state: State, _: PauseWithdrawn) -> State:
    """The run goes on as if nobody had asked."""
    return replace(state, hold=None, meter=_afresh(state.meter))


def run_paused(state: State, entry: RunPaused) -> State:
    """The run leaves memory."""
    hold = state.hold or Hold(seq=state.seq)
    return replace(state, leased=False, hold=replace(hold, why=entry.why))


def run_resumed(state: State, entry: RunResumed) -> State:
    """The run may go on. An instruction waits for the boundary, as a redirect does."""
    state = forgiven(replace(state, hold=None, error=None, meter=_afresh(state.meter)))
    if not entry.instruction:
        return state
    waiting = Pending(seq=state.seq, kind="redirect", text=entry.instruction, by=entry.by)
    return _without_approvals(replace(state, pending=(*state.pending, waiting), cut=state.seq))


def _afresh(meter: Meter) -> Meter:
    """Forget what conditions without a bound look at: they would only be met again by it."""
    spoken = dict.fromkeys(meter.verdicts, False)  # for this boundary; the next step asks anew
    return replace(meter, text="", trail=(), verdicts=spoken)


def cap_raised(state: State, entry: CapRaised) -> State:
    """The bounds have moved; a pause at one of them is an ordinary pause from now on."""
    hold = state.hold
    if hold is not None and hold.cap in entry.caps:
        hold = replace(hold, why="user", cap="")
    stop = raised(state.stop, entry.caps) if state.stop else None
    return replace(state, stop=stop, hold=hold)


def cap_reached(state: State, entry: CapReached) -> State:
    """The run pauses at its cap."""
    return replace(state, hold=Hold(why="cap", cap=entry.cap, seq=state.seq))


def end_reached(state: State, _: EndReached) -> State:
    """A condition says that the run is done: what the agent said last is its answer."""
    return replace(state, answer=state.meter.text)


def verdict_given(state: State, entry: VerdictGiven) -> State:
    """A custom condition has spoken."""
    verdicts = state.meter.verdicts | {entry.name: entry.met}
    return replace(state, meter=replace(state.meter, verdicts=verdicts))


def redirect_requested(state: State, entry: RedirectRequested) -> State:
    """An instruction waits for its boundary; a model call that does not know it is closed."""
    waiting = Pending(
        seq=state.seq, kind="redirect", text=entry.text, by=entry.by, when=entry.when
    )
    return _without_approvals(replace(state, pending=(*state.pending, waiting), cut=state.seq))


def _without_approvals(state: State) -> State:
    """Void every yes that was not used: it was given for the old course."""
    parked = (n for frame in state.frames for n in frame.parked)
    for number in (*state.open, *parked):
        call = state.calls[number - 1]
        if call.approval is not None and call.stage is not Stage.STARTED:
            state = state.with_call(replace(call, approval=None))
    return state


def redirect_applied(state: State, entry: RedirectApplied) -> State:
    """The agent knows the instruction; what it would have ended with no longer counts."""
    state, waiting = without_pending(state, entry.redirect)
    state = replace(state, answer=None, main=None, course=waiting.text)
    return state.saying(
        Message(role="user", text=waiting.text, by=waiting.by, kind="instruction")
    )


def redirect_closed(state: State, entry: RedirectClosed) -> State:
    """The instruction does not wait any more."""
    return without_pending(state, entry.redirect)[0]


def without_pending(state: State, seq: Seq) -> tuple[State, Pending]:
    """Return the state without what waited since `seq`, and that."""
    waiting = next((p for p in state.pending if p.seq == seq), None)
    if waiting is None:
        raise JournalCorrupt(state.run, state.seq, f"nothing waits since {seq}")
    return replace(state, pending=tuple(p for p in state.pending if p is not waiting)), waiting


def cancel_requested(state: State, entry: CancelRequested) -> State:
    """Nothing new starts. What is in flight, or may have happened unfinished, is doomed.

    Doomed calls belong to the undo set whatever evidence about them comes later; a doomed
    child is one that this cancel still has to end.
    """
    for number in {*state.in_flight, *state.effects}:
        call = state.calls[number - 1]
        if (doomed := _unfinished(call)) is not call.doomed:
            state = state.with_call(replace(call, doomed=doomed))
    then = Phase.CANCELLING if state.phase is Phase.HALTED else None
    state = replace(state, cancel=entry, cancelled_at=state.seq, cancelled_on=state.at)
    return replace(state, hold=None, then=then, residue_accepted=False)


def _unfinished(call: Call) -> bool:
    """Tell whether the call is in flight, or was begun and nobody can say that it is over."""
    if call.stage in {Stage.STARTED, Stage.DONE}:
        return call.stage is Stage.STARTED or call.doomed
    if call.call_kind == "child":  # the end that is under way was ordered without this cancel
        return call.attempt > 0 and call.release.stage not in {"started", "done"}
    return call.touched


def run_cancelled(state: State, entry: RunCancelled) -> State:
    """The run is over; the residue is what could not be undone."""
    return replace(state, leased=False, ended=True, residue=entry.residue, output=entry.partial)


def undo_retried(state: State, _: UndoRetried) -> State:
    """What was given up is tried again from the start."""
    for number in state.effects:
        call = state.calls[number - 1]
        for action in ("undo", "release"):
            if getattr(call, action).stage == "gave_up":
                call = replace(call, **{action: Cleanup()})
        state = state.with_call(call)
    return replace(state, residue=(), residue_accepted=False, retried=state.seq)


def run_halted(state: State, entry: RunHalted) -> State:
    """The latch holds the run; a driver that has it lets go once nothing is in flight."""
    return replace(state, then=entry.then)


def run_lifted(state: State, _: RunLifted) -> State:
    """The run is where it was; calls nobody could close are found by the next driver."""
    return replace(state, then=None)


def residue_accepted(state: State, _: ResidueAccepted) -> State:
    """Nobody needs to look at it any more."""
    return replace(state, residue_accepted=True)


def unchanged(state: State, _: RequestNoted) -> State:
    """A note for the record."""
    return state


ARMS: Arms = {
    PauseRequested: pause_requested,
    PauseWithdrawn: pause_withdrawn,
    RunPaused: run_paused,
    RunResumed: run_resumed,
    CapRaised: cap_raised,
    CapReached: cap_reached,
    EndReached: end_reached,
    VerdictGiven: verdict_given,
    RedirectRequested: redirect_requested,
    RedirectApplied: redirect_applied,
    RedirectClosed: redirect_closed,
    CancelRequested: cancel_requested,
    RunCancelled: run_cancelled,
    UndoRetried: undo_retried,
    ResidueAccepted: residue_accepted,
    RunHalted: run_halted,
    RunLifted: run_lifted,
    RequestNoted: unchanged,
}
