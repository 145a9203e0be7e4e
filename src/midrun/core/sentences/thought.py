"""How thought is told: messages, held thoughts, the plan, and a person in the agent's place."""

from typing import Final

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
from midrun.core.ids import Seq
from midrun.core.sentences.phrases import (
    AGENT,
    GLIMPSE,
    RUN,
    Sentences,
    Told,
    because,
    by_itself,
    flat,
    held_at,
    person,
    quoted,
    several,
    unmarked,
    until,
)
from midrun.core.state import Pending, State
from midrun.core.values import Item, Phase
from midrun.core.words import place

_MARKS: Final = {
    "queued": "",
    "running": " (at work on it)",
    "done": " (done)",
    "failed": " (failed)",
    "dropped": " (dropped)",
}


def _message_received(entry: MessageReceived, _: State, after: State) -> Told:
    said = f"said {quoted(entry.text)}"
    if entry.due is not None:
        said = f"left a note for the agent in {until(after, entry.due)}: {quoted(entry.text)}"
    ack = f", and was told: {quoted(unmarked(entry.ack))}" if entry.ack else ""
    return Told(who=person(entry.by), what=f"{said}{ack}{because(entry.reason)}")


def _message_due(entry: MessageDue, before: State, _: State) -> Told:
    note = _waiting(before, entry.message)
    what = f"has come to the time of {_whose(note)} note {quoted(note.text)}"
    return Told(who=RUN, what=what)


def _message_taken(entry: MessageTaken, before: State, _: State) -> Told:
    message = _waiting(before, entry.message)
    return Told(who=AGENT, what=f"heard {_whose(message)} words {quoted(message.text)}")


def _message_closed(entry: MessageClosed, before: State, _: State) -> Told:
    said = quoted(entry.text)
    if entry.why == "withdrawn":
        what = f"took back the words {said} before the agent heard them"
        return Told(who=person(entry.by), what=f"{what}{because(entry.reason)}")
    asker = person(_waiting(before, entry.message).by)
    what = f"gave {asker} the words {said} back: the agent will not hear them"
    return Told(who=RUN, what=what)


def _waiting(state: State, seq: Seq) -> Pending:
    return next(pending for pending in state.pending if pending.seq == seq)


def _whose(pending: Pending) -> str:
    return f"{person(pending.by)}'s"


def _frame_pushed(entry: FramePushed, before: State, after: State) -> Told:
    held = after.frames[-1]
    message = _waiting(before, entry.message)
    what = (
        f"put {quoted(entry.goal)} aside at {held_at(held)}"
        f" to answer {_whose(message)} {quoted(message.text)}"
    )
    return Told(who=AGENT, what=what)


def _frame_resumed(entry: FrameResumed | FrameReconstructed, _: State, __: State) -> Told:
    if by_itself(entry.by):
        return Told(who=RUN, what=f"said {quoted(unmarked(entry.words))}")
    what = f"sent the agent back: {quoted(unmarked(entry.words))}{because(entry.reason)}"
    return Told(who=person(entry.by), what=what)


def _frame_abandoned(entry: FrameAbandoned, before: State, _: State) -> Told:
    frame = next(one for one in before.frames if one.id == entry.frame)
    thought = f"{quoted(frame.goal)}, which was put aside at {held_at(frame)}"
    if entry.why == "cancelled" or by_itself(entry.by):
        return Told(who=RUN, what=f"let go of {thought}")
    what = f"had the agent drop {thought}{because(entry.reason)}"
    return Told(who=person(entry.by), what=what)


def _plan_made(entry: PlanMade, before: State, after: State) -> Told:
    if not entry.items:
        return Told(who=AGENT, what="has no plan any more")
    where = f"plan {place(entry.items, after.meter.steps)}"
    if [item.text for item in entry.items] == [item.text for item in before.plan]:
        known = set(before.plan)
        changed = "; ".join(_item(item) for item in entry.items if item not in known)
        marked = f"marked its plan: {changed}" if changed else "kept its plan as it is"
        return Told(who=AGENT, what=flat(f"{marked}; it is at {where}"))
    items = "; ".join(f"{n}. {_item(item)}" for n, item in enumerate(entry.items, 1))
    how = "made a new plan of" if before.plan else "made a plan of"
    return Told(who=AGENT, what=flat(f"{how} {several(len(entry.items), 'step')}: {items}"))


def _item(item: Item) -> str:
    return f"{flat(item.text, GLIMPSE)}{_MARKS[item.mark]}"


def _history_condensed(entry: HistoryCondensed, _: State, __: State) -> Told:
    older = "message" if entry.upto == 1 else f"{entry.upto} messages"
    summed = quoted(entry.summary, GLIMPSE)
    what = f"goes on with a summary of the first {older}: {summed}; the journal keeps all"
    return Told(who=AGENT, what=what)


def _answer_given(entry: AnswerGiven, _: State, __: State) -> Told:
    return Told(who=AGENT, what=f"answered {quoted(entry.text)}")


def _taken_over(entry: TakenOver, before: State, _: State) -> Told:
    taken = "took" if before.phase is Phase.PAUSED else "asked to take"
    return Told(who=person(entry.by), what=f"{taken} the agent's place{because(entry.reason)}")


def _person_wrote(entry: PersonWrote, _: State, __: State) -> Told:
    return Told(who=person(entry.by), what=f"wrote in the agent's place: {quoted(entry.text)}")


def _tool_used(entry: ToolUsed, _: State, __: State) -> Told:
    what = f"asked for a call of {entry.tool} in the agent's place{because(entry.reason)}"
    return Told(who=person(entry.by), what=what)


def _handed_back(entry: HandedBack, _: State, __: State) -> Told:
    what = f"handed the run back to the agent{because(entry.reason)}"
    return Told(who=person(entry.by), what=what)


CONVERSATION_TEXTS: Sentences = {
    MessageReceived: _message_received,
    MessageDue: _message_due,
    MessageTaken: _message_taken,
    MessageClosed: _message_closed,
    FramePushed: _frame_pushed,
    FrameResumed: _frame_resumed,
    FrameReconstructed: _frame_resumed,
    FrameAbandoned: _frame_abandoned,
    PlanMade: _plan_made,
    HistoryCondensed: _history_condensed,
    AnswerGiven: _answer_given,
    TakenOver: _taken_over,
    PersonWrote: _person_wrote,
    ToolUsed: _tool_used,
    HandedBack: _handed_back,
}
