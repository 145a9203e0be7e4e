"""Decide on boundaries, ends and timers.

`cross_boundary` appends the entries that are due at a step boundary. `settle_phase` enters
the phase that follows when nothing is left to do. `wake` handles timers: expired asks,
scheduled messages, pauses with a time limit, and the cap on time.
"""

from midrun.core.decide.shared import parking, waking
from midrun.core.decision import Already, Refused, Rulings, Verdict, accept
from midrun.core.driver_inputs import (
    Advanced,
    Fail,
    Finish,
    GiveVerdict,
    Settled,
    StandDown,
    Wake,
)
from midrun.core.effects import Settle
from midrun.core.entries import (
    AnswerGiven,
    AskClosed,
    CapReached,
    Entry,
    MessageClosed,
    MessageDue,
    PauseWithdrawn,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunResumed,
    RunWaiting,
    RunWoken,
    StoodDown,
    VerdictGiven,
)
from midrun.core.evolve import apply
from midrun.core.ids import Micros, Seq
from midrun.core.journaled_text import seal
from midrun.core.retries import failure
from midrun.core.scheduler import plan
from midrun.core.state import Hold, State
from midrun.core.step_boundary import crossing
from midrun.core.stops import deadline
from midrun.core.values import Phase

CLOCK = "system:clock"


def advanced(state: State, _: Advanced, now: Micros) -> Verdict:
    """Append the entries that are due at this boundary."""
    entries = crossing(state, now)
    return accept(*entries) if entries else Already(name="nothing_due", seq=state.seq)


def settled(state: State, _: Settled, __: Micros) -> Verdict:
    """Enter the next phase when nothing is left to do in this one."""
    # The worker decides to settle from its own copy of the state. Plan again here, so that a
    # control that came in between refuses the input.
    if Settle() not in plan(state):
        return Refused(reason="in_flight" if state.in_flight else "not_settled")
    if state.phase is Phase.CANCELLING:
        return accept(*cancelled(state))
    if state.phase is Phase.PAUSING:
        return accept(*_paused(state))
    if (error := failure(state)) is not None:
        return accept(error)
    if state.wheel:
        return accept(RunPaused(why="taken_over"))
    # Nothing can start, but calls or asks are open: all of them wait for a person.
    if state.open or state.open_asks:
        return accept(RunWaiting())
    # A message that is scheduled for later can no longer reach the agent. Return its text.
    late = (MessageClosed(message=p.seq, why="returned", text=p.text) for p in state.pending)
    output = state.answer if state.main is None else state.main
    return accept(*late, RunCompleted(output=output or ""))


def _paused(state: State) -> tuple[Entry, ...]:
    """Pause the run; wake it at once if a redirect came after the pause request."""
    hold = state.hold or Hold()
    paused: tuple[Entry, ...] = (RunPaused(why=hold.why),)
    if hold.why == "user" and any(p.seq > hold.seq for p in state.redirects):
        return (*paused, RunWoken(why="redirected"))
    return paused


def cancelled(state: State) -> tuple[Entry, ...]:
    """End a cancelled run: seal its open calls, keep its partial answer."""
    sealed = (seal(state.calls[n - 1], "the run was cancelled") for n in state.open)
    return (*sealed, RunCancelled(residue=state.residue, partial=_partial(state)))


def _partial(state: State) -> str:
    if state.ended:  # the run ended before; this cancel only undoes, so the output stays
        return state.output
    return state.answer if state.answer is not None else _last_words(state)


def _last_words(state: State) -> str:
    for index in range(len(state.messages) - 1, -1, -1):
        message = state.messages[index]
        if message.role == "assistant" and message.text:
            return message.text
    return ""


def fail(state: State, evidence: Fail, _: Micros) -> Verdict:
    """Fail the run at its last boundary; it can be resumed from there."""
    if state.in_flight or state.cleaning:
        return Refused(reason="in_flight")
    return accept(RunFailed(error=evidence.error, code=evidence.code))


def stand_down(state: State, evidence: StandDown, _: Micros) -> Verdict:
    """Give the lease back; any worker may take the run next."""
    if state.in_flight or state.cleaning:
        return Refused(reason="in_flight")
    return accept(StoodDown(why=evidence.why))


def finish(state: State, evidence: Finish, _: Micros) -> Verdict:
    """Record the output of a hosted agent; the run completes when nothing is open."""
    if state.ended:
        return Refused(reason="already_ended", seq=state.since)
    if state.in_flight or state.open:
        return Refused(reason="in_flight")
    if state.redirects:
        return Refused(reason="unseen_control", seq=state.controls)
    return accept(AnswerGiven(text=evidence.output))


def give_verdict(_: State, evidence: GiveVerdict, __: Micros) -> Verdict:
    """Record the verdict of a custom stop condition."""
    return accept(VerdictGiven(name=evidence.name, met=evidence.met))


def wake(state: State, _: Wake, now: Micros) -> Verdict:
    """Apply timers that are due: asks, scheduled messages, timed pauses, the time cap."""
    entries: tuple[Entry, ...] = (
        *(
            AskClosed(ask=ask.id, why="expired", by=CLOCK)
            for n in state.open_asks
            if (ask := state.asks[n - 1]).expires is not None
            and ask.expires <= now
            and ask.ask_kind != "child"  # expires in the child run, which closes this one
        ),
        *(
            MessageDue(message=p.seq, by=CLOCK)
            for p in state.pending
            if p.due is not None and p.due <= now
        ),
    )
    # The time limit of a pause is checked on the state after the entries above, because a
    # wake-up may have ended the pause already.
    entries = waking(state, entries, "time")
    entries += _let_go(apply(state, entries), now)
    limit = deadline(state.stop)
    # `worked_micros` is as of the newest entry. Add the time since then if a worker holds the
    # lease; otherwise the run does no work.
    worked = state.worked + (now - state.at if state.leased else 0)
    if state.phase is Phase.RUNNING and state.leased and limit and worked >= limit:
        entries += (CapReached(stop=f"{limit / 1e6:g} s of work", cap="time"),)
    return accept(*entries) if entries else Already(name="nothing_due", seq=Seq(state.seq))


def _let_go(state: State, now: Micros) -> tuple[Entry, ...]:
    hold = state.hold
    if hold is None or hold.until is None or hold.until > now or hold.why != "user":
        return ()
    if state.phase is Phase.PAUSING:
        return (PauseWithdrawn(by=CLOCK),)
    if state.phase is Phase.PAUSED:
        return parking(state, (RunResumed(by=CLOCK),))
    return ()


RULINGS: Rulings = {
    Advanced: advanced,
    Settled: settled,
    Fail: fail,
    StandDown: stand_down,
    Finish: finish,
    GiveVerdict: give_verdict,
    Wake: wake,
}
