"""What messages, frames, plans and a person at the wheel mean for the state."""

from msgspec.structs import replace

from midrun.core import transcript
from midrun.core.entries import (
    AnswerGiven,
    FrameAbandoned,
    FramePushed,
    FrameReconstructed,
    FrameResumed,
    HandedBack,
    HistoryCondensed,
    MessageClosed,
    MessageDue,
    MessageReceived,
    MessageTaken,
    PersonWrote,
    PlanMade,
    TakenOver,
    ToolUsed,
)
from midrun.core.evolve.controls import without_pending
from midrun.core.retries import forgiven
from midrun.core.state import Arms, Frame, Hold, Pending, State
from midrun.core.values import Message, Phase
from midrun.errors import JournalCorrupt


def message_received(state: State, entry: MessageReceived) -> State:
    """Somebody spoke; what is said now closes a model call that has not heard it."""
    waiting = Pending(
        seq=state.seq,
        kind="message",
        text=entry.text,
        by=entry.by,
        urgency=entry.urgency,
        due=entry.due,
    )
    cut = state.seq if entry.urgency == "now" and entry.due is None else state.cut
    return replace(state, pending=(*state.pending, waiting), cut=cut)


def message_due(state: State, entry: MessageDue) -> State:
    """A scheduled message counts from now."""
    pending = tuple(
        replace(p, due=None) if p.seq == entry.message else p for p in state.pending
    )
    now = any(p.seq == entry.message and p.urgency == "now" for p in pending)
    return replace(state, pending=pending, cut=state.seq if now else state.cut)


def message_taken(state: State, entry: MessageTaken) -> State:
    """The message reaches the agent; nothing had to be suspended for it."""
    state, waiting = without_pending(state, entry.message)
    main = state.main
    if waiting.urgency == "later":
        main = None  # more of the task: what comes now is the answer
    elif not state.frames and main is None:
        main = state.answer
    return replace(state, answer=None, main=main).saying(_said(waiting))


def message_closed(state: State, entry: MessageClosed) -> State:
    """The message does not wait any more."""
    return without_pending(state, entry.message)[0]


def frame_pushed(state: State, entry: FramePushed) -> State:
    """The chain is suspended with its goal, its place, and the calls that wait with it."""
    state, waiting = without_pending(state, entry.message)
    frame = Frame(
        id=entry.frame,
        goal=entry.goal,
        done=entry.done,
        total=entry.total,
        next=entry.next,
        pushed=state.seq,
        expires=entry.expires,
        parked=state.open,
        plan=state.plan,
    )
    state = replace(
        state,
        frames=(*state.frames, frame),
        frames_pushed=state.frames_pushed + 1,
        open=(),
        goal=waiting.text,
        answer=None,
        prefix="",  # the way back was cut off; it will be said when it is gone
    )
    said = transcript.told(entry.goal)
    return state.saying(Message(role="runtime", text=said, kind="held"), _said(waiting))


def frame_resumed(state: State, entry: FrameResumed | FrameReconstructed) -> State:
    """The chain goes on, and the next reply says so."""
    frame = _frame_of(state, entry.frame)
    state = replace(
        _popped(state, entry.frame),
        goal=frame.goal,
        plan=frame.plan,
        answer=None,
        prefix=entry.words,
        prefixed=state.seq,
        cut=state.seq,
    )
    return state.saying(Message(role="runtime", text=entry.words, kind="back"))


def frame_abandoned(state: State, entry: FrameAbandoned) -> State:
    """The chain is given up by name."""
    state = _popped(state, entry.frame)
    if not entry.words:
        return state
    state = replace(state, prefix=f"{state.prefix} {entry.words}".strip())
    return state.saying(Message(role="runtime", text=entry.words, kind="dropped"))


def _popped(state: State, frame_: str) -> State:
    frame = _frame_of(state, frame_)
    back = tuple(n for n in frame.parked if state.calls[n - 1].unclosed)
    frames = tuple(f for f in state.frames if f is not frame)
    return replace(state, frames=frames, open=(*back, *state.open))


def _frame_of(state: State, frame: str) -> Frame:
    for one in state.frames:
        if one.id == frame:
            return one
    raise JournalCorrupt(state.run, state.seq, f"there is no frame {frame}")


def plan_made(state: State, entry: PlanMade) -> State:
    """The agent's own list is what it says it is."""
    return replace(state, plan=entry.items)


def history_condensed(state: State, entry: HistoryCondensed) -> State:
    """The model is given a summary in place of the oldest messages."""
    return replace(state, condensed=entry.upto, summary=entry.summary, window=0)


def answer_given(state: State, entry: AnswerGiven) -> State:
    """A hosted agent has its answer."""
    state = replace(state, answer=entry.text, meter=replace(state.meter, text=entry.text))
    return state.saying(Message(role="assistant", text=entry.text))


def taken_over(state: State, entry: TakenOver) -> State:
    """A person is at the wheel once the run is paused; a failure is theirs to mend."""
    hold = state.hold
    if state.phase is Phase.PAUSED:
        hold = replace(hold or Hold(seq=state.seq, by=entry.by), why="taken_over", until=None)
    return forgiven(replace(state, wheel=entry.by, hold=hold, error=None))


def person_wrote(state: State, entry: PersonWrote) -> State:
    """The person speaks as the assistant, under their own name."""
    return replace(state, answer=entry.text).saying(
        Message(role="assistant", text=entry.text, by=entry.by, kind="person")
    )


def tool_used(state: State, _: ToolUsed) -> State:
    """What the person wants made follows as a proposal."""
    return state


def handed_back(state: State, _: HandedBack) -> State:
    """The agent is at the wheel again."""
    return replace(state, wheel="", answer=None)


def _said(waiting: Pending) -> Message:
    return Message(role="user", text=waiting.text, by=waiting.by, kind="message")


ARMS: Arms = {
    MessageReceived: message_received,
    MessageDue: message_due,
    MessageTaken: message_taken,
    MessageClosed: message_closed,
    FramePushed: frame_pushed,
    FrameResumed: frame_resumed,
    FrameReconstructed: frame_resumed,
    FrameAbandoned: frame_abandoned,
    PlanMade: plan_made,
    HistoryCondensed: history_condensed,
    AnswerGiven: answer_given,
    TakenOver: taken_over,
    PersonWrote: person_wrote,
    ToolUsed: tool_used,
    HandedBack: handed_back,
}
