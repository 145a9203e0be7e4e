"""Fold messages, held topics, plans, answers and take-overs.

A `Frame` is a held topic: the goal, the plan and the open calls of the work that the agent has
left to answer a message. They are restored when the topic is resumed. Frames form a stack.
"""

from msgspec.structs import replace

from midrun.core import transcript
from midrun.core.entries import (
    AnswerGiven,
    FrameAbandoned,
    FramePushed,
    FrameReconstructed,
    FrameResumed,
    HandedBack,
    HandedOff,
    HistoryCondensed,
    MessageClosed,
    MessageDue,
    MessageReceived,
    MessageTaken,
    PersonWrote,
    PlanMade,
    TakenOver,
    ToolUseRequested,
)
from midrun.core.evolve.controls import remove_pending
from midrun.core.ids import CallId
from midrun.core.retries import reset_deaths
from midrun.core.state import (
    EvolveFunctions,
    Frame,
    PauseState,
    PendingText,
    State,
    find_speaker,
)
from midrun.core.values import Message, Phase
from midrun.errors import JournalCorrupt


def message_received(state: State, entry: MessageReceived) -> State:
    """Queue the message; with urgency "now", abort model calls that have not seen it."""
    waiting = PendingText(
        seq=state.seq,
        kind="message",
        text=entry.text,
        by=entry.by,
        urgency=entry.urgency,
        due_at=entry.due,
        files=entry.files,
    )
    state = state.with_files(entry.files)
    cut = (
        state.seq if entry.urgency == "now" and entry.due is None else state.prompt_outdated_seq
    )
    return replace(state, pending=(*state.pending, waiting), prompt_outdated_seq=cut)


def message_due(state: State, entry: MessageDue) -> State:
    """Make a scheduled message deliverable."""
    pending = tuple(
        replace(p, due_at=None) if p.seq == entry.message else p for p in state.pending
    )
    # An urgent message makes the current prompt outdated, so that the model call is aborted and
    # the next one has the message.
    now = any(p.seq == entry.message and p.urgency == "now" for p in pending)
    return replace(
        state,
        pending=pending,
        prompt_outdated_seq=state.seq if now else state.prompt_outdated_seq,
    )


def message_taken(state: State, entry: MessageTaken) -> State:
    """Give the message to the agent without holding a topic.

    The agent has its answer to the task and now answers a message. `main_answer` keeps the
    answer to the task meanwhile, so that the reply to the message does not replace it.
    """
    state, waiting = remove_pending(state, entry.message)
    main, value = state.main_answer, state.main_value
    if waiting.urgency == "later":
        main = None  # a "later" message extends the task: the next reply is the answer
    elif not state.frames and main is None:
        main, value = state.answer, state.answer_value
    return replace(state, answer=None, main_answer=main, main_value=value).with_messages(
        _make_message(waiting)
    )


def message_closed(state: State, entry: MessageClosed) -> State:
    """Remove the message from the pending ones."""
    return remove_pending(state, entry.message)[0]


def frame_pushed(state: State, entry: FramePushed) -> State:
    """Suspend the current topic with its goal, plan and open calls; take the message."""
    state, waiting = remove_pending(state, entry.message)
    frame = Frame(
        id=entry.frame,
        goal=entry.goal,
        done_steps=entry.done,
        total_steps=entry.total,
        next_step=entry.next,
        pushed_seq=state.seq,
        expires=entry.expires,
        # Calls of the held topic leave `open_calls`: otherwise the side question could not
        # reach a boundary before they have ended, and they may wait for a person.
        parked_calls=state.open_calls,
        plan=state.plan,
        speaker=state.speaker,
    )
    state = replace(
        state,
        frames=(*state.frames, frame),
        frames_pushed=state.frames_pushed + 1,
        open_calls=(),
        goal=waiting.text,
        answer=None,
        reply_prefix="",  # a pending "Back to …" is obsolete: this topic is held again
    )
    said = transcript.format_held_topic(entry.goal)
    return state.with_messages(
        Message(role="runtime", text=said, kind="held"), _make_message(waiting)
    )


def frame_resumed(state: State, entry: FrameResumed | FrameReconstructed) -> State:
    """Restore the held topic; the next reply announces it.

    `prompt_outdated_seq` is set, so that a model call for the message is aborted.
    """
    frame = _get_frame(state, entry.frame)
    state = replace(
        _pop_frame(state, entry.frame),
        goal=frame.goal,
        plan=frame.plan,
        speaker=frame.speaker,  # a side question may have been handed off, or be about to be
        pending_handoff=CallId(""),
        pending_final=CallId(""),
        answer=None,
        reply_prefix=entry.text,
        reply_prefix_seq=state.seq,
        prompt_outdated_seq=state.seq,
    )
    return state.with_messages(Message(role="runtime", text=entry.text, kind="back"))


def frame_abandoned(state: State, entry: FrameAbandoned) -> State:
    """Drop a held topic; the next reply announces it if the entry has words."""
    state = _pop_frame(state, entry.frame)
    if not entry.text:
        return state
    # Several topics may be dropped before the agent speaks again; each is announced.
    state = replace(state, reply_prefix=f"{state.reply_prefix} {entry.text}".strip())
    return state.with_messages(Message(role="runtime", text=entry.text, kind="dropped"))


def _pop_frame(state: State, frame_id: str) -> State:
    frame = _get_frame(state, frame_id)
    # Calls held with the topic may have been closed meanwhile, for example by an expired
    # ask. Only open ones return to the open calls, before those of the current topic.
    back = tuple(n for n in frame.parked_calls if state.calls[n - 1].is_open)
    frames = tuple(f for f in state.frames if f is not frame)
    return replace(state, frames=frames, open_calls=(*back, *state.open_calls))


def _get_frame(state: State, frame_id: str) -> Frame:
    for one in state.frames:
        if one.id == frame_id:
            return one
    raise JournalCorrupt(state.run, state.seq, f"there is no held topic {frame_id}")


def plan_made(state: State, entry: PlanMade) -> State:
    """Replace the agent's plan."""
    return replace(state, plan=entry.items)


def handed_off(state: State, entry: HandedOff) -> State:
    """Let another agent speak; its attempts at an output are counted from zero."""
    return replace(
        state,
        speaker=find_speaker(state.run_started, entry.agent),
        pending_handoff=CallId(""),
        invalid_outputs=0,
        tool_retries={},
    )


def history_condensed(state: State, entry: HistoryCondensed) -> State:
    """Replace the oldest messages in the prompt by a summary."""
    # The size of the next prompt is not known before it was sent. With the old number the
    # scheduler would condense again at once.
    return replace(
        state, condensed_count=entry.message_count, summary=entry.summary, prompt_tokens=0
    )


def answer_given(state: State, entry: AnswerGiven) -> State:
    """Store the answer of a hosted agent, or the result that is the answer."""
    meter = replace(state.meter, last_text=entry.text, is_output_invalid=False)
    kind = "result" if state.pending_final else ""  # no model wrote it
    state = replace(
        state,
        answer=entry.text,
        answer_value=entry.value,
        pending_final=CallId(""),
        meter=meter,
    )
    return state.with_messages(Message(role="assistant", text=entry.text, kind=kind))


def taken_over(state: State, entry: TakenOver) -> State:
    """Let a person act in the agent's place; clear a failure."""
    pause = state.pause
    # A pause that is in force becomes the pause of this person: it has no time limit, and only
    # the hand-back ends it. A running run pauses first; `PauseRequested` follows for that.
    if state.phase is Phase.PAUSED:
        pause = replace(
            pause or PauseState(seq=state.seq, by=entry.by), reason="taken_over", ends_at=None
        )
    return reset_deaths(replace(state, taken_over_by=entry.by, pause=pause, error=None))


def person_wrote(state: State, entry: PersonWrote) -> State:
    """Add the person's text as a message of the assistant, under their name."""
    return replace(state, answer=entry.text, answer_value=None).with_messages(
        Message(role="assistant", text=entry.text, by=entry.by, kind="person")
    )


def tool_used(state: State, _: ToolUseRequested) -> State:
    """Change nothing: `CallProposed` follows in the same append."""
    return state


def handed_back(state: State, _: HandedBack) -> State:
    """Return control to the agent."""
    return replace(
        state,
        taken_over_by="",
        answer=None,
        pending_final=CallId(""),
        invalid_outputs=0,
        tool_retries={},
    )


def _make_message(waiting: PendingText) -> Message:
    return Message(
        role="user", text=waiting.text, by=waiting.by, kind="message", files=waiting.files
    )


EVOLVE_FUNCTIONS: EvolveFunctions = {
    MessageReceived: message_received,
    MessageDue: message_due,
    MessageTaken: message_taken,
    MessageClosed: message_closed,
    FramePushed: frame_pushed,
    FrameResumed: frame_resumed,
    FrameReconstructed: frame_resumed,
    FrameAbandoned: frame_abandoned,
    PlanMade: plan_made,
    HandedOff: handed_off,
    HistoryCondensed: history_condensed,
    AnswerGiven: answer_given,
    TakenOver: taken_over,
    PersonWrote: person_wrote,
    ToolUseRequested: tool_used,
    HandedBack: handed_back,
}
