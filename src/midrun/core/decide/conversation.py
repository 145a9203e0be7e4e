"""Decide on messages, held topics and take-overs.

When a message needs an answer in the middle of the work, the run holds its topic (a `Frame`
with the goal and the open calls), answers, and resumes the topic. Held topics are a stack: only
the topmost one can be resumed or dropped.

After a take-over, a person writes and calls tools in the agent's place until the hand-back.
"""

from midrun.core import journaled_text
from midrun.core.controls import DropFrame, HandBack, ResumeFrame, Say, TakeOver, UseTool, Write
from midrun.core.decide.lifecycle import (
    add_waiting,
    add_wakeup,
    make_followup_fields,
    make_request_fields,
)
from midrun.core.entries import (
    AskClosed,
    CallProposed,
    Entry,
    FrameAbandoned,
    HandedBack,
    MessageReceived,
    PauseRequested,
    PersonWrote,
    RunPaused,
    RunResumed,
    RunWoken,
    TakenOver,
    ToolUseRequested,
)
from midrun.core.files import find_run_file_problem
from midrun.core.ids import FrameId, Micros, make_call_id
from midrun.core.state import State
from midrun.core.step_boundary import resume_topic
from midrun.core.transitions import Refused, Verdict, accept
from midrun.core.values import Phase


def say(state: State, control: Say, now: Micros) -> Verdict:
    """Receive a message and acknowledge it; the agent gets it at a boundary."""
    if not control.text.strip():
        return Refused(reason="empty_text")
    if find_run_file_problem(state, control.files):
        return Refused(reason="files_refused")
    # A "later" message never has a topic held, so a full stack does not delay it. A time in the
    # past means now.
    full = len(state.frames) >= state.run_started.frame_depth and control.urgency != "later"
    due = control.due if control.due is not None and control.due > now else None
    received = MessageReceived(
        text=control.text,
        urgency=control.urgency,
        due=due,
        ack=journaled_text.format_acknowledgement(
            state, control.text, control.urgency, scheduled=due is not None, queued=full
        ),
        queued=full,
        files=control.files,
        **make_request_fields(control),
    )
    return accept(*add_wakeup(state, (received,), "message"))


def resume_frame(state: State, control: ResumeFrame, now: Micros) -> Verdict:
    """Resume the topic on top, whether or not the message in between is answered."""
    if (problem := _find_frame_refusal(state, control.frame)) is not None:
        return problem
    back = resume_topic(state, now)
    back = type(back)(frame=back.frame, text=back.text, **make_request_fields(control))
    return accept(*add_wakeup(state, (back,), "frame"))


def drop_frame(state: State, control: DropFrame, _: Micros) -> Verdict:
    """Drop the topic on top; close the asks and calls held with it."""
    if (problem := _find_frame_refusal(state, control.frame)) is not None:
        return problem
    frame = state.frames[-1]
    parked = [n for n in frame.parked_calls if state.calls[n - 1].is_open]
    asks = [
        ask
        for n in state.open_asks
        if (ask := state.asks[n - 1]).call in {make_call_id(m) for m in parked}
    ]
    entries: tuple[Entry, ...] = (
        FrameAbandoned(
            frame=frame.id,
            why="dropped",
            text=journaled_text.format_dropped_topic(frame),
            **make_request_fields(control),
        ),
        *(
            AskClosed(ask=ask.id, why="superseded", **make_followup_fields(control))
            for ask in asks
        ),
        # Closing an ask also seals its call, except for "unsure" asks: such a call stays
        # unknown when its ask closes, so it is sealed here.
        *(
            journaled_text.seal_call(state.calls[n - 1], "its held topic was dropped")
            for n in parked
            if make_call_id(n) not in {ask.call for ask in asks if ask.ask_kind != "unsure"}
        ),
    )
    return accept(*add_wakeup(state, entries, "frame"))


def _find_frame_refusal(state: State, frame_id: FrameId) -> Refused | None:
    if all(held.id != frame_id for held in state.frames):
        return Refused(reason="no_such_frame")
    if state.frames[-1].id != frame_id:
        return Refused(reason="frame_not_on_top", by=state.frames[-1].id)
    return None


def take_over(state: State, control: TakeOver, _: Micros) -> Verdict:
    """Let a person act in the agent's place once nothing is in flight.

    Only an operator may take over from a person who has taken over already.
    """
    if state.taken_over_by and control.by.role != "operator":
        return Refused(reason="taken_over", by=state.taken_over_by)
    # As with a pause: a run that a worker drives has to stop first. In the other phases no
    # worker has the run, so the pause is recorded at once.
    taken = TakenOver(**make_request_fields(control))
    request = PauseRequested(why="taken_over", **make_followup_fields(control))
    match state.phase:
        case Phase.PAUSED:
            return accept(taken)
        case Phase.RUNNING | Phase.PAUSING:
            return accept(taken, request)
        case _:
            return accept(taken, request, RunPaused(why="taken_over"))


def write(state: State, control: Write, _: Micros) -> Verdict:
    """Add a message of the assistant that the person who took over wrote."""
    if state.taken_over_by != control.by.name:
        return Refused(reason="not_taken_over", by=state.taken_over_by)
    if not control.text.strip():
        return Refused(reason="empty_text")
    return accept(PersonWrote(text=control.text, **make_request_fields(control)))


def use_tool(state: State, control: UseTool, _: Micros) -> Verdict:
    """Request one tool call by hand; a worker makes it, then the run pauses again."""
    if state.taken_over_by != control.by.name:
        return Refused(reason="not_taken_over", by=state.taken_over_by)
    # A paused run has no worker. `RunWoken` queues it for the one call; the scheduler makes
    # only calls of the person while `taken_over_by` is set, and then settles in a pause.
    used = ToolUseRequested(tool=control.use.tool, **make_request_fields(control))
    return accept(used, CallProposed(use=control.use), RunWoken(why="tool"))


def hand_back(state: State, control: HandBack, _: Micros) -> Verdict:
    """Return the run to its agent; an operator may do so for the person."""
    if state.taken_over_by != control.by.name and not (
        state.taken_over_by and control.by.role == "operator"
    ):
        return Refused(reason="not_taken_over", by=state.taken_over_by)
    plus = journaled_text.shorten_to_line(control.instruction)
    minus = journaled_text.format_upcoming(state, state.plan) if plus else ""
    resumed = RunResumed(
        instruction=control.instruction, minus=minus, plus=plus, **make_followup_fields(control)
    )
    return accept(*add_waiting(state, (HandedBack(**make_request_fields(control)), resumed)))
