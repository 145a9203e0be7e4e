"""Decide on messages, frames and take-overs.

A frame is a suspended topic: when a message needs an answer in the middle of the work, the
run pushes a frame with its goal and its open calls, answers, and resumes the frame. Only the
top of the stack can be resumed or dropped.

After a take-over, a person writes and calls tools in the agent's place until the hand-back.
"""

from midrun.core import journaled_text
from midrun.core.controls import DropFrame, HandBack, ResumeFrame, Say, TakeOver, UseTool, Write
from midrun.core.decide.shared import asked, by, parking, waking
from midrun.core.decision import Refused, Rulings, Verdict, accept
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
    ToolUsed,
)
from midrun.core.ids import FrameId, Micros, call_id
from midrun.core.state import State
from midrun.core.step_boundary import way_back
from midrun.core.values import Phase


def say(state: State, control: Say, now: Micros) -> Verdict:
    """Receive a message and acknowledge it; the agent gets it at a boundary."""
    if not control.text.strip():
        return Refused(reason="empty_text")
    # A "later" message never pushes a frame, so a full stack does not delay it. A time in the
    # past means now.
    full = len(state.frames) >= state.started.frame_depth and control.urgency != "later"
    due = control.due if control.due is not None and control.due > now else None
    received = MessageReceived(
        text=control.text,
        urgency=control.urgency,
        due=due,
        ack=journaled_text.acknowledgement(
            state, control.text, control.urgency, scheduled=due is not None, queued=full
        ),
        queued=full,
        **asked(control),
    )
    return accept(*waking(state, (received,), "message"))


def resume_frame(state: State, control: ResumeFrame, now: Micros) -> Verdict:
    """Resume the frame on top, whether or not the message in between is answered."""
    if (problem := _off_top(state, control.frame)) is not None:
        return problem
    back = way_back(state, now)
    back = type(back)(frame=back.frame, words=back.words, **asked(control))
    return accept(*waking(state, (back,), "frame"))


def drop_frame(state: State, control: DropFrame, _: Micros) -> Verdict:
    """Abandon the frame on top; close the asks and calls suspended with it."""
    if (problem := _off_top(state, control.frame)) is not None:
        return problem
    frame = state.frames[-1]
    parked = [n for n in frame.parked if state.calls[n - 1].unclosed]
    asks = [
        ask
        for n in state.open_asks
        if (ask := state.asks[n - 1]).call in {call_id(m) for m in parked}
    ]
    entries: tuple[Entry, ...] = (
        FrameAbandoned(
            frame=frame.id, why="dropped", words=journaled_text.dropped(frame), **asked(control)
        ),
        *(AskClosed(ask=ask.id, why="superseded", **by(control)) for ask in asks),
        # Closing an ask also seals its call, except for "unsure" asks: such a call stays
        # unknown when its ask closes, so it is sealed here.
        *(
            journaled_text.seal(state.calls[n - 1], "its line of thought was dropped")
            for n in parked
            if call_id(n) not in {ask.call for ask in asks if ask.ask_kind != "unsure"}
        ),
    )
    return accept(*waking(state, entries, "frame"))


def _off_top(state: State, frame: FrameId) -> Refused | None:
    if all(held.id != frame for held in state.frames):
        return Refused(reason="no_such_frame")
    if state.frames[-1].id != frame:
        return Refused(reason="frame_not_on_top", by=state.frames[-1].id)
    return None


def take_over(state: State, control: TakeOver, _: Micros) -> Verdict:
    """Let a person act in the agent's place once nothing is in flight.

    Only an operator may take over from a person who has taken over already.
    """
    if state.wheel and control.by.role != "operator":
        return Refused(reason="taken_over", by=state.wheel)
    # As with a pause: a run that a worker drives has to stop first. In the other phases no
    # worker has the run, so the pause is recorded at once.
    taken = TakenOver(**asked(control))
    request = PauseRequested(why="taken_over", **by(control))
    match state.phase:
        case Phase.PAUSED:
            return accept(taken)
        case Phase.RUNNING | Phase.PAUSING:
            return accept(taken, request)
        case _:
            return accept(taken, request, RunPaused(why="taken_over"))


def write(state: State, control: Write, _: Micros) -> Verdict:
    """Add a message of the assistant that the person who took over wrote."""
    if state.wheel != control.by.name:
        return Refused(reason="not_taken_over", by=state.wheel)
    if not control.text.strip():
        return Refused(reason="empty_text")
    return accept(PersonWrote(text=control.text, **asked(control)))


def use_tool(state: State, control: UseTool, _: Micros) -> Verdict:
    """Request one tool call by hand; a worker makes it, then the run pauses again."""
    if state.wheel != control.by.name:
        return Refused(reason="not_taken_over", by=state.wheel)
    # A paused run has no worker. `RunWoken` queues it for the one call; the scheduler makes
    # only calls of the person while `operator_name` is set, and then settles in a pause.
    used = ToolUsed(tool=control.use.tool, **asked(control))
    return accept(used, CallProposed(use=control.use), RunWoken(why="tool"))


def hand_back(state: State, control: HandBack, _: Micros) -> Verdict:
    """Return the run to its agent; an operator may do so for the person."""
    if state.wheel != control.by.name and not (state.wheel and control.by.role == "operator"):
        return Refused(reason="not_taken_over", by=state.wheel)
    plus = journaled_text.line(control.instruction)
    minus = journaled_text.upcoming(state, state.plan) if plus else ""
    resumed = RunResumed(instruction=control.instruction, minus=minus, plus=plus, **by(control))
    return accept(*parking(state, (HandedBack(**asked(control)), resumed)))


RULINGS: Rulings = {
    Say: say,
    ResumeFrame: resume_frame,
    DropFrame: drop_frame,
    TakeOver: take_over,
    Write: write,
    UseTool: use_tool,
    HandBack: hand_back,
}
