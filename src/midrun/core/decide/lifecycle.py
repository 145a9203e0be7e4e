"""Decide on failures, the end of a lease, and timers.

`wake` handles timers: expired asks, scheduled messages, pauses with a time limit, and the cap
on time. The module also holds the helpers that the handlers of all modules have in common.
"""

from hashlib import sha256
from typing import TypedDict

import msgspec
from msgspec.structs import replace

from midrun.core.controls import Approve, Control
from midrun.core.driver_inputs import (
    FailRun,
    FinishHostedAgent,
    RecordStopVerdict,
    StandDown,
    Wake,
)
from midrun.core.entries import (
    AnswerGiven,
    AskClosed,
    CapReached,
    Entry,
    LeaseReleased,
    MessageDue,
    PauseWithdrawn,
    RunFailed,
    RunResumed,
    RunWaiting,
    RunWoken,
    StopEvaluated,
)
from midrun.core.evolve import apply_entries
from midrun.core.ids import Micros, Seq
from midrun.core.state import State
from midrun.core.stops import get_work_limit_micros
from midrun.core.transitions import NoChange, Refused, Verdict, accept
from midrun.core.undo import find_orphaned_child
from midrun.core.values import Phase

# Helpers of the handlers: actor fields, and wake-ups of waiting runs.


class ActorFields(TypedDict):
    """The actor fields of an entry that follows from a control."""

    by: str
    role: str


class RequestFields(ActorFields):
    """The fields of the entry that records a control itself."""

    request_id: str
    digest: str
    reason: str


def make_request_fields(control: Control) -> RequestFields:
    """Return the fields of the entry that records `control` itself."""
    return RequestFields(
        **make_followup_fields(control),
        request_id=control.request_id,
        digest=compute_digest(control) if control.request_id else "",
        reason=control.reason,
    )


def make_followup_fields(control: Control) -> ActorFields:
    """Return the fields of an entry that only follows from `control`."""
    return ActorFields(by=control.by.name, role=control.by.role)


def compute_digest(control: Control) -> str:
    """Return a digest of the control's content, to detect a reused request id."""
    # `seen` is left out: a client that retries a request may have seen a newer revision.
    plain = replace(control, request_id="", seen=None)
    # So is the title, which only a process that has the agent can make.
    if isinstance(plain, Approve):
        plain = replace(plain, title="")
    return sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()[:16]


def add_wakeup(state: State, entries: tuple[Entry, ...], reason: str) -> tuple[Entry, ...]:
    """Append `RunWoken` if `entries` give a waiting run something to do."""
    # Asked of the state with the entries: the answer to one of two open asks may not be enough.
    if state.phase is Phase.WAITING and can_continue(apply_entries(state, entries)):
        return (*entries, RunWoken(why=reason))
    return entries


def add_waiting(state: State, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Append `RunWaiting` if `entries` queue the run but a worker could do nothing.

    Without this, a worker would take the run, find only open asks, and let it go again.
    """
    after = apply_entries(state, entries)
    if after.phase is Phase.QUEUED and not can_continue(after):
        return (*entries, RunWaiting())
    return entries


def can_continue(state: State) -> bool:
    """Tell whether a worker would find something to do although asks are open.

    This mirrors the scheduler: a redirect, a child run to end, a call that does not wait for a
    person, a message that can be taken now, or the next model call.
    """
    if state.pending_redirects or not state.open_asks or find_orphaned_child(state) is not None:
        return True
    if any(not state.is_waiting_for_person(state.calls[n - 1]) for n in state.open_calls):
        return True
    # The same rules as for messages in `step_boundary`: with an answer a message is taken
    # without holding a topic; without one it needs room on the stack.
    room = len(state.frames) < state.run_started.frame_depth
    at_hand = state.answer is not None and not state.open_calls
    takeable = (
        p.kind == "message"
        and p.due_at is None
        and (at_hand or (p.urgency != "later" and room))
        for p in state.pending
    )
    can_call_model = not state.open_calls and (state.answer is None or bool(state.frames))
    return can_call_model or any(takeable)


CLOCK_ACTOR = "system:clock"


def fail_run(state: State, driver_input: FailRun, _: Micros) -> Verdict:
    """Fail the run at its last boundary; it can be resumed from there."""
    if state.in_flight or state.cleanup_in_flight:
        return Refused(reason="in_flight")
    return accept(RunFailed(error=driver_input.error, code=driver_input.code))


def stand_down(state: State, driver_input: StandDown, _: Micros) -> Verdict:
    """Give the lease back; any worker may take the run next."""
    if state.in_flight or state.cleanup_in_flight:
        return Refused(reason="in_flight")
    return accept(LeaseReleased(why=driver_input.why))


def finish_hosted_agent(state: State, driver_input: FinishHostedAgent, _: Micros) -> Verdict:
    """Record the output of a hosted agent; the run completes when nothing is open."""
    if state.has_ended:
        return Refused(reason="already_ended", seq=state.phase_since)
    if state.in_flight or state.open_calls:
        return Refused(reason="in_flight")
    if state.pending_redirects:
        return Refused(reason="unseen_control", seq=state.last_control_seq)
    return accept(AnswerGiven(text=driver_input.output, value=driver_input.value))


def record_stop_verdict(_: State, driver_input: RecordStopVerdict, __: Micros) -> Verdict:
    """Record the verdict of a custom stop condition."""
    return accept(StopEvaluated(name=driver_input.name, met=driver_input.met))


def wake(state: State, _: Wake, now: Micros) -> Verdict:
    """Apply timers that are due: asks, scheduled messages, timed pauses, the time cap."""
    entries: tuple[Entry, ...] = (
        *(
            AskClosed(ask=ask.id, why="expired", by=CLOCK_ACTOR)
            for n in state.open_asks
            if (ask := state.asks[n - 1]).expires is not None
            and ask.expires <= now
            and ask.ask_kind != "child"  # expires in the child run, which closes this one
        ),
        *(
            MessageDue(message=p.seq, by=CLOCK_ACTOR)
            for p in state.pending
            if p.due_at is not None and p.due_at <= now
        ),
    )
    # The time limit of a pause is checked on the state after the entries above, because a
    # wake-up may have ended the pause already.
    entries = add_wakeup(state, entries, "time")
    entries += _end_timed_pause(apply_entries(state, entries), now)
    limit = get_work_limit_micros(state.stop)
    # `worked_micros` is as of the newest entry. Add the time since then if a worker holds the
    # lease; otherwise the run does no work.
    worked = state.worked_micros + (now - state.at if state.is_leased else 0)
    if state.phase is Phase.RUNNING and state.is_leased and limit and worked >= limit:
        entries += (CapReached(stop=f"{limit / 1e6:g} s of work", cap="time"),)
    return accept(*entries) if entries else NoChange(name="nothing_due", seq=Seq(state.seq))


def _end_timed_pause(state: State, now: Micros) -> tuple[Entry, ...]:
    pause = state.pause
    if pause is None or pause.ends_at is None or pause.ends_at > now or pause.reason != "user":
        return ()
    if state.phase is Phase.PAUSING:
        return (PauseWithdrawn(by=CLOCK_ACTOR),)
    if state.phase is Phase.PAUSED:
        return add_waiting(state, (RunResumed(by=CLOCK_ACTOR),))
    return ()
