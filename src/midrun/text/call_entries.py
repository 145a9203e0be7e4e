"""Describe entries about calls, undo and the conversation in sentences.

The sentences for one call name it in the same way each time (`phrases.format_call`), so that
a reader can follow it from its start to its undo.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from midrun.core.entries import (
    AnswerGiven,
    CallAborted,
    CallDone,
    CallFailed,
    CallProposed,
    CallSealed,
    CallSettled,
    CallStarted,
    CallUnknown,
    FrameAbandoned,
    FramePushed,
    FrameReconstructed,
    FrameResumed,
    HandedBack,
    HistoryCondensed,
    LateResult,
    MessageClosed,
    MessageDue,
    MessageReceived,
    MessageTaken,
    PersonWrote,
    PlanMade,
    ProgressSaved,
    TakenOver,
    ToolUsed,
    UndoDone,
    UndoFailed,
    UndoGaveUp,
    UndoStarted,
    UndoUnknown,
)
from midrun.core.evolve.calls import call_of, settles
from midrun.core.ids import Micros, Seq
from midrun.core.journaled_text import place
from midrun.core.retries import failure
from midrun.core.state import Call, Pending, State
from midrun.core.values import Action, Effect, Item, Json, Phase, Reply
from midrun.text.phrases import (
    AGENT,
    GLIMPSE,
    RUN,
    Sentences,
    Told,
    arguments,
    because,
    by_itself,
    call_named,
    caller,
    child_named,
    child_of,
    fault,
    flat,
    held_at,
    is_empty,
    is_told_elsewhere,
    listed,
    person,
    quoted,
    several,
    spoken,
    unmarked,
    until,
)

_UNKNOWN: Final = {
    "orphaned": "was in flight when its worker was lost",
    "not_responding": "did not stop in time",
    "forced": "was in flight when the pause was forced",
}
_HAPPENED: Final = {
    True: "{} took effect",
    False: "{} did not take effect",
    None: "it is unknown whether {} took effect",
}
# Prefix of `CallSealed.why`, as `journaled_text.seal_call` writes it → predicate.
_FATES: Final = {
    "not executed": "was not executed",
    "stopped midway": "is not continued after its stop",
    "failed": "is not retried after its failure",
    "outcome unknown, and not made again": "is not retried, and its outcome is unknown",
}
CHECK: Final = "check:"
_ACTIONS: Final = {"undo": ("undo", "undid"), "release": ("release", "released")}


def _call_proposed(entry: CallProposed, before: State, _: State) -> Told:
    wanted = f"{entry.use.tool}{arguments(entry.use.args)}"
    if before.wheel:
        return Told(who=RUN, what=f"will call {wanted}")
    return Told(who=AGENT, what=f"wants to call {wanted}")


def _call_started(entry: CallStarted, _: State, after: State) -> Told:
    call = call_of(after, entry.call)
    again = f", attempt {entry.attempt}" if entry.attempt > 1 else ""
    if entry.call_kind == "model":
        if entry.purpose == "condense":
            return Told(who=AGENT, what=f"began to summarize its older messages{again}")
        return Told(who=AGENT, what=f"began step {call.step}{again}")
    use = call.use
    if is_told_elsewhere(use):
        what = "began to update its plan" if use.tool == "plan" else "began to ask a person"
        return Told(who=caller(call, after), what=f"{what}{again}")
    named, child = call_named(after, entry.call), call.call_kind == "child"
    if again:
        what = f"continued {child_named(after, call)}" if child else f"called {named} again"
        return Told(who=RUN, what=f"{what}{again}")
    what = f"started {named} as {child_of(after, call)}" if child else f"called {named}"
    yes = after.ask(entry.approval.ask) if entry.approval is not None else None
    let = f", approved by {person(yes.by)}" if yes is not None else ""
    what = f"{what}{arguments(use.args)}{let}{because(use.why)}"
    return Told(who=caller(call, after), what=what)


def _call_done(entry: CallDone, before: State, after: State) -> Told:
    call = call_of(after, entry.call)
    named = call_named(before, entry.call)
    if entry.reply is not None:
        return Told(who=AGENT, what=_said(call, entry.reply))
    if entry.encoding_error:
        problem = flat(entry.encoding_error)
        return Told(who=named, what=f"is done, but its result could not be stored: {problem}")
    if is_told_elsewhere(call.use) and call.use.tool == "plan":
        return Told(who=AGENT, what="finished updating its plan")
    return Told(who=named, what=_returned(entry.result))


def _returned(result: Json) -> str:
    if is_empty(result):
        return "returned without a result"
    return f"returned {spoken(result, GLIMPSE)}"


def _said(call: Call, reply: Reply) -> str:
    if call.purpose == "condense":
        return "finished the summary"
    uses = _counted(use.tool for use in reply.uses if not use.refused)
    said = f"said {quoted(reply.text)}" if reply.text.strip() else ""
    wants = f"wants to call {listed(uses)}" if uses else ""
    refused = [f"{use.tool} ({flat(use.refused)})" for use in reply.uses if use.refused]
    cannot = f"cannot call {listed(refused)}" if refused else ""
    parts = list(filter(None, (said, wants, cannot)))
    return listed(parts) if parts else "said nothing"


def _counted(tools: Iterable[str]) -> list[str]:
    return [tool if n == 1 else f"{tool} {n} times" for tool, n in Counter(tools).items()]


def _call_failed(entry: CallFailed, _: State, after: State) -> Told:
    call = call_of(after, entry.call)
    said = f" after saying {quoted(entry.text)}" if entry.text.strip() else ""
    again = ""
    if call.again:
        again = "; it is retried" + _in(after, entry.retry_at)
    named = "the agent's model" if call.call_kind == "model" else call_named(after, entry.call)
    return Told(who=named, what=f"failed{said}: {fault(entry.error)}{again}")


def _in(state: State, at: Micros | None) -> str:
    return "" if at is None or at <= state.at else f" in {until(state, at)}"


def _call_aborted(entry: CallAborted, _: State, after: State) -> Told:
    call = call_of(after, entry.call)
    if call.call_kind == "model":
        said = f" after saying {quoted(entry.text)}" if entry.text.strip() else ""
        return Told(who=AGENT, what=f"was stopped{said}")
    how = "timed out and was stopped" if entry.final else "was stopped midway"
    by = f" by {call.stopped_by}" if call.stopped_by else ""
    # A read has no effect, and a child run reports its own effects.
    tool = call.call_kind == "tool" and call.traits.effect is not Effect.READ
    doubt = "; it may have taken effect in part" if tool else ""
    return Told(who=call_named(after, entry.call), what=f"{how}{by}{doubt}")


def _call_unknown(entry: CallUnknown, _: State, after: State) -> Told:
    call = call_of(after, entry.call)
    then = "it is unknown whether it took effect"
    # Too many workers died during this call: it would be retried, but the run fails first.
    if call.again and failure(after) is not None:
        then = "it is not retried automatically"
    elif call.again:
        then = "it is retried"
    model = call.call_kind == "model"
    named = "the agent's model call" if model else call_named(after, entry.call)
    return Told(who=named, what=f"{_UNKNOWN[entry.why]}; {then}")


def _call_settled(entry: CallSettled, _: State, after: State) -> Told:
    named = call_named(after, entry.call)
    found = _HAPPENED[entry.happened].format(named)
    if entry.by.startswith(CHECK):
        return Told(who=f"the check of {named}", what=f"found that {found}")
    return Told(who=RUN, what=f"recorded the answer of {person(entry.by)}: {found}")


def _call_sealed(entry: CallSealed, _: State, after: State) -> Told:
    fate = next((fate for fate in _FATES if entry.why.startswith(f"{fate}: ")), "")
    what = f"{_FATES.get(fate, 'is closed')}: {flat(entry.why.removeprefix(f'{fate}: '))}"
    return Told(who=call_named(after, entry.call), what=what)


def _progress_saved(entry: ProgressSaved, _: State, after: State) -> Told:
    far = arguments(entry.progress)
    return Told(who=call_named(after, entry.call), what=f"saved its progress{far}")


def _late_result(entry: LateResult, before: State, after: State) -> Told:
    named = call_named(after, entry.call)
    news = "this settles the call"
    if not settles(before, call_of(before, entry.call), entry.attempt):
        news = "this is too late to count"
    what = f"reported late: {named} {_returned(entry.result)}; {news}"
    return Told(who="a worker that was lost", what=what)


# ── undo and release ──────────────────────────────────────────────────────────────────────


def _thing(state: State, call_: str, action: Action) -> str:
    call = call_of(state, call_)
    if call.call_kind == "child":
        return f"the work of {child_named(state, call)}"
    named = call_named(state, call_)
    return named if action == "undo" else f"the resource held by {named}"


def _undo_started(entry: UndoStarted, _: State, after: State) -> Told:
    again = f", attempt {entry.attempt}" if entry.attempt > 1 else ""
    return Told(who=RUN, what=f"began to {_deed(after, entry.call, entry.action)}{again}")


def _undo_done(entry: UndoDone, _: State, after: State) -> Told:
    if _ends_a_child(after, entry.call, entry.action):
        return Told(who=RUN, what=f"ended {_child(after, entry.call)}")
    verb = _ACTIONS[entry.action][1]
    return Told(who=RUN, what=f"{verb} {_thing(after, entry.call, entry.action)}")


def _undo_failed(entry: UndoFailed, _: State, after: State) -> Told:
    again = f"; it will retry{_in(after, entry.retry_at)}"
    # After the last attempt `UndoGaveUp` follows, so do not promise a retry.
    attempts = call_of(after, entry.call).cleanup(entry.action).attempts
    if entry.final or attempts >= after.started.undo_attempts:
        again = ""
    what = f"could not {_deed(after, entry.call, entry.action)}: {fault(entry.error)}{again}"
    return Told(who=RUN, what=what)


def _undo_unknown(entry: UndoUnknown, _: State, after: State) -> Told:
    deed = _deed(after, entry.call, entry.action)
    return Told(who=RUN, what=f"was interrupted while it tried to {deed}; it will retry")


def _undo_gave_up(entry: UndoGaveUp, before: State, after: State) -> Told:
    deed = _deed(after, entry.call, entry.action)
    clean = call_of(before, entry.call).cleanup(entry.action)
    tries = f" after {several(clean.attempts, 'attempt')}" if clean.attempts else ""
    # The error of the last attempt is in the sentence above. Do not repeat it.
    why = "" if clean.attempts and clean.error == entry.error else f": {fault(entry.error)}"
    return Told(who=RUN, what=f"gave up{tries} and did not {deed}{why}")


def _deed(state: State, call_: str, action: Action) -> str:
    if _ends_a_child(state, call_, action):
        return f"end {_child(state, call_)}"
    return f"{_ACTIONS[action][0]} {_thing(state, call_, action)}"


def _ends_a_child(state: State, call_: str, action: Action) -> bool:
    return action == "release" and call_of(state, call_).call_kind == "child"


def _child(state: State, call_: str) -> str:
    return child_named(state, call_of(state, call_))


CALL_TEXTS: Sentences = {
    CallProposed: _call_proposed,
    CallStarted: _call_started,
    CallDone: _call_done,
    CallFailed: _call_failed,
    CallAborted: _call_aborted,
    CallUnknown: _call_unknown,
    CallSettled: _call_settled,
    CallSealed: _call_sealed,
    ProgressSaved: _progress_saved,
    LateResult: _late_result,
    UndoStarted: _undo_started,
    UndoDone: _undo_done,
    UndoFailed: _undo_failed,
    UndoUnknown: _undo_unknown,
    UndoGaveUp: _undo_gave_up,
}

# ── conversation: messages, frames, the plan, and take-overs ──────────────────────────────

_MARKS: Final = {
    "queued": "",
    "running": " (in progress)",
    "done": " (done)",
    "failed": " (failed)",
    "dropped": " (dropped)",
}


def _message_received(entry: MessageReceived, _: State, after: State) -> Told:
    said = f"said {quoted(entry.text)}"
    if entry.due is not None:
        wait = until(after, entry.due)
        said = f"scheduled a message for the agent in {wait}: {quoted(entry.text)}"
    ack = f"; the run replied {quoted(unmarked(entry.ack))}" if entry.ack else ""
    return Told(who=person(entry.by), what=f"{said}{ack}{because(entry.reason)}")


def _message_due(entry: MessageDue, before: State, _: State) -> Told:
    message = _waiting(before, entry.message)
    what = f"reached the scheduled time of {_whose(message)} message {quoted(message.text)}"
    return Told(who=RUN, what=what)


def _message_taken(entry: MessageTaken, before: State, _: State) -> Told:
    message = _waiting(before, entry.message)
    return Told(who=AGENT, what=f"received {_whose(message)} message {quoted(message.text)}")


def _message_closed(entry: MessageClosed, before: State, _: State) -> Told:
    said = quoted(entry.text)
    if entry.why == "withdrawn":
        what = f"withdrew the message {said} before the agent received it"
        return Told(who=person(entry.by), what=f"{what}{because(entry.reason)}")
    sender = person(_waiting(before, entry.message).by)
    what = f"returned the message {said} to {sender}: the agent will not receive it"
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
    topic = f"{quoted(frame.goal)}, which was put aside at {held_at(frame)}"
    if entry.why == "cancelled" or by_itself(entry.by):
        return Told(who=RUN, what=f"dropped {topic}")
    what = f"made the agent drop {topic}{because(entry.reason)}"
    return Told(who=person(entry.by), what=what)


def _plan_made(entry: PlanMade, before: State, after: State) -> Told:
    if not entry.items:
        return Told(who=AGENT, what="removed its plan")
    where = f"plan {place(entry.items, after.meter.steps)}"
    # The same items with other marks: describe only the items that changed.
    if [item.text for item in entry.items] == [item.text for item in before.plan]:
        known = set(before.plan)
        changed = "; ".join(_item(item) for item in entry.items if item not in known)
        marked = f"updated its plan: {changed}" if changed else "kept its plan unchanged"
        return Told(who=AGENT, what=flat(f"{marked}; it is at {where}"))
    items = "; ".join(f"{n}. {_item(item)}" for n, item in enumerate(entry.items, 1))
    how = "made a new plan of" if before.plan else "made a plan of"
    return Told(who=AGENT, what=flat(f"{how} {several(len(entry.items), 'step')}: {items}"))


def _item(item: Item) -> str:
    return f"{flat(item.text, GLIMPSE)}{_MARKS[item.mark]}"


def _history_condensed(entry: HistoryCondensed, _: State, __: State) -> Told:
    older = "message" if entry.upto == 1 else f"{entry.upto} messages"
    summed = quoted(entry.summary, GLIMPSE)
    kept = "the journal keeps the full text"
    what = f"continues with a summary of the first {older}: {summed}; {kept}"
    return Told(who=AGENT, what=what)


def _answer_given(entry: AnswerGiven, _: State, __: State) -> Told:
    return Told(who=AGENT, what=f"answered {quoted(entry.text)}")


def _taken_over(entry: TakenOver, before: State, _: State) -> Told:
    # A paused run is taken over at once; otherwise the run has to pause first.
    taken = "took" if before.phase is Phase.PAUSED else "asked to take"
    what = f"{taken} over from the agent{because(entry.reason)}"
    return Told(who=person(entry.by), what=what)


def _person_wrote(entry: PersonWrote, _: State, __: State) -> Told:
    return Told(who=person(entry.by), what=f"wrote in the agent's place: {quoted(entry.text)}")


def _tool_used(entry: ToolUsed, _: State, __: State) -> Told:
    what = f"requested a call of {entry.tool} in the agent's place{because(entry.reason)}"
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
