"""Describe entries about calls, undo and the conversation in sentences.

The sentences for one call name it in the same way each time (`phrases.format_call`), so that
a reader can follow it from its start to its undo.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from midrun.core import entries as e
from midrun.core.evolve.calls import can_settle_late, get_call
from midrun.core.ids import Micros, Seq
from midrun.core.journaled_text import (
    WITHHELD_PREFIX,
    format_frame_position,
    format_position,
    quote_title,
)
from midrun.core.retries import find_failure
from midrun.core.state import CallState, PendingText, State
from midrun.core.values import (
    CleanupAction,
    Effect,
    Json,
    Phase,
    PlanItem,
    Reply,
    RequestedCall,
)
from midrun.text.phrases import (
    AGENT_SUBJECT,
    RESULT_MAX_CHARS,
    RUN_SUBJECT,
    Clause,
    DescribeFunctions,
    describe_request,
    flatten,
    format_actor,
    format_agent,
    format_arguments,
    format_call,
    format_caller,
    format_child_call,
    format_child_run,
    format_count,
    format_error,
    format_files,
    format_reason,
    format_time_until,
    is_automatic,
    is_described_elsewhere,
    is_empty,
    join_names,
    quote,
    quote_markdown,
    quote_value,
    strip_emphasis,
)

_UNKNOWN_TEXTS: Final = {
    "orphaned": "was in flight when its worker was lost",
    "not_responding": "did not stop in time",
    "forced": "was in flight when the pause was forced",
}
_HAPPENED_FORMATS: Final = {
    True: "{} took effect",
    False: "{} did not take effect",
    None: "it is unknown whether {} took effect",
}
# Prefix of `CallSealed.why`, as `journaled_text.seal_call` writes it → predicate.
_SEALED_TEXTS: Final = {
    "not executed": "was not executed",
    "stopped midway": "is not continued after its stop",
    "failed": "is not retried after its failure",
    "outcome unknown, and not made again": "is not retried, and its outcome is unknown",
}
CHECK_ACTOR_PREFIX: Final = "check:"
NAMED_MAX: Final = 10
"""Maximum number of calls that a sentence about a reply names."""

_ACTION_VERBS: Final = {"undo": ("undo", "undid"), "release": ("release", "released")}


def _describe_call_proposed(entry: e.CallProposed, before: State, _: State) -> Clause:
    if entry.use.kind == "model":
        return Clause(AGENT_SUBJECT, "wants to call its model")
    if entry.use.title:
        return Clause(AGENT_SUBJECT, f"wants to make the call {quote_title(entry.use.title)}")
    wanted = f"{entry.use.tool}{format_arguments(entry.use.args)}"
    if before.taken_over_by:
        return Clause(RUN_SUBJECT, f"will call {wanted}")
    return Clause(AGENT_SUBJECT, f"wants to call {wanted}")


def _describe_call_started(entry: e.CallStarted, _: State, after: State) -> Clause:
    call = get_call(after, entry.call)
    again = f", attempt {entry.attempt}" if entry.attempt > 1 else ""
    if entry.call_kind == "model":
        what = f"began turn {call.step}"
        if entry.purpose == "condense":
            what = "began to summarize its older messages"
        return Clause(format_agent(after, call.agent), f"{what}{again}", tone="detail")
    use = call.use
    if is_described_elsewhere(use):
        what = "began to update its plan" if use.tool == "plan" else "began to ask a person"
        return Clause(format_caller(call, after), f"{what}{again}", tone="detail")
    named, child = format_call(after, entry.call), call.call_kind == "child"
    if again:
        what = (
            f"continued {format_child_call(after, call)}" if child else f"called {named} again"
        )
        return Clause(RUN_SUBJECT, f"{what}{again}")
    verb = "started" if use.title or child else "called"
    what = f"{verb} {named}" + (f" as {format_child_run(after, call)}" if child else "")
    yes = after.find_ask(entry.approval.ask) if entry.approval is not None else None
    let = f", approved by {format_actor(yes.decided_by)}" if yes is not None else ""
    args = "" if use.title else format_arguments(use.args)  # a title has the main arguments
    more = f"{args}{let}{format_reason(use.why)}"
    return Clause(format_caller(call, after), what, more)


def _describe_call_done(entry: e.CallDone, before: State, after: State) -> Clause:
    call = get_call(after, entry.call)
    named = format_call(before, entry.call)
    if entry.reply is not None:
        agent = format_agent(after, call.agent)
        return Clause(agent, _format_reply(call, entry.reply), tone="detail")
    if entry.encoding_error:
        problem = flatten(entry.encoding_error)
        what = f"is done, but its result could not be stored: {problem}"
        if problem.startswith(WITHHELD_PREFIX):
            what = f"is done, but its result is {problem}"
        return Clause(named, what, tone="bad")
    if not is_described_elsewhere(call.use):
        return Clause(named, _format_result(entry.result) + format_files(entry.files))
    if call.use.tool == "plan":
        return Clause(AGENT_SUBJECT, "finished updating its plan", tone="detail")
    return Clause(named, _format_result(entry.result), tone="detail")


def _format_result(result: Json) -> str:
    if is_empty(result):
        return "returned without a result"
    return f"returned {quote_value(result, RESULT_MAX_CHARS)}"


def _format_reply(call: CallState, reply: Reply) -> str:
    if call.purpose == "condense":
        return "finished the summary"
    intents = _list_intents(use for use in reply.uses if not use.refused)
    by = f" with the fallback {reply.model}" if reply.model else ""
    said = f"said {quote_markdown(reply.text)}{by}" if reply.text.strip() else ""
    wants = f"wants to {join_names(intents)}" if intents else ""
    refused = [f"{use.tool} ({flatten(use.refused)})" for use in reply.uses if use.refused]
    cannot = f"cannot call {join_names(refused)}" if refused else ""
    # The refusal of the output tool names the problem; a text that is no output does not.
    invalid = "" if reply.uses else flatten(reply.invalid_output)
    said += f", which is not a valid output ({invalid})" if invalid else ""
    ungated = Counter(reply.ungated)
    used = f"used {_join_counted(ungated)} at the provider" if ungated else ""
    parts = list(filter(None, (used, said, wants, cannot)))
    return join_names(parts) if parts else "said nothing"


def _list_intents(uses: Iterable[RequestedCall]) -> list[str]:
    """Return what a reply requests, as verbs with objects: "make the call “Pay Ann”"."""
    counts: dict[str, Counter[str]] = {}
    for use in uses:
        if is_described_elsewhere(use):
            verb, name = ("update its plan" if use.tool == "plan" else "ask a person"), ""
        elif use.title:
            verb, name = "make the call", quote_title(use.title)
        else:
            verb, name = "call", use.tool
        counts.setdefault(verb, Counter())[name] += 1
    if len(titles := counts.get("make the call", Counter())) > 1:
        counts["make the calls"] = titles
        del counts["make the call"]
    return [f"{verb} {_join_counted(names)}".rstrip() for verb, names in counts.items()]


def _join_counted(names: Counter[str]) -> str:
    """Join names: "a, b 2 times and 3 more"."""
    every = [name if n == 1 else f"{name} {n} times".lstrip() for name, n in names.items()]
    more = len(every) - NAMED_MAX
    return join_names([*every[:NAMED_MAX], f"{more} more"] if more > 0 else every)


def _describe_call_failed(entry: e.CallFailed, _: State, after: State) -> Clause:
    call = get_call(after, entry.call)
    said = f" after saying {quote_markdown(entry.text)}" if entry.text.strip() else ""
    again = ""
    if call.must_retry:
        again = "; it is retried" + _format_delay(after, entry.retry_at)
    named = "the agent's model" if call.call_kind == "model" else format_call(after, entry.call)
    return Clause(named, f"failed{said}: {format_error(entry.error)}", again)


def _format_delay(state: State, at: Micros | None) -> str:
    return "" if at is None or at <= state.at else f" in {format_time_until(state, at)}"


def _describe_call_aborted(entry: e.CallAborted, _: State, after: State) -> Clause:
    call = get_call(after, entry.call)
    if call.call_kind == "model":
        said = f" after saying {quote_markdown(entry.text)}" if entry.text.strip() else ""
        return Clause(format_agent(after, call.agent), f"was stopped{said}", tone="detail")
    how = "timed out and was stopped" if entry.final else "was stopped midway"
    by = f" by {call.stopped_by}" if call.stopped_by else ""
    # A read has no effect, and a child run reports its own effects.
    tool = call.call_kind == "tool" and call.traits.effect is not Effect.READ
    doubt = "; it may have taken effect in part" if tool else ""
    return Clause(format_call(after, entry.call), f"{how}{by}", doubt)


def _describe_call_unknown(entry: e.CallUnknown, _: State, after: State) -> Clause:
    call = get_call(after, entry.call)
    then = "it is unknown whether it took effect"
    # Too many workers died during this call: it would be retried, but the run fails first.
    if call.must_retry and find_failure(after, after.active_calls) is not None:
        then = "it is not retried automatically"
    elif call.must_retry:
        then = "it is retried"
    model = call.call_kind == "model"
    named = "the agent's model call" if model else format_call(after, entry.call)
    return Clause(named, _UNKNOWN_TEXTS[entry.why], f"; {then}")


def _describe_call_settled(entry: e.CallSettled, _: State, after: State) -> Clause:
    named = format_call(after, entry.call)
    found = _HAPPENED_FORMATS[entry.happened].format(named)
    if entry.by.startswith(CHECK_ACTOR_PREFIX):
        return Clause(f"the check of {named}", f"found that {found}")
    return Clause(RUN_SUBJECT, f"recorded the answer of {format_actor(entry.by)}: {found}")


def _describe_call_sealed(entry: e.CallSealed, _: State, after: State) -> Clause:
    fate = next((fate for fate in _SEALED_TEXTS if entry.why.startswith(f"{fate}: ")), "")
    what = (
        f"{_SEALED_TEXTS.get(fate, 'is closed')}: "
        f"{flatten(entry.why.removeprefix(f'{fate}: '))}"
    )
    return Clause(format_call(after, entry.call), what)


def _describe_progress_saved(entry: e.ProgressSaved, _: State, after: State) -> Clause:
    far = format_arguments(entry.progress)
    return Clause(format_call(after, entry.call), "saved its progress", far)


def _describe_artifact_shown(entry: e.ArtifactShown, _: State, after: State) -> Clause:
    version = f", version {entry.version}" if entry.version > 1 else ""
    what = f"showed {quote(entry.name)}{version}"
    return Clause(format_call(after, entry.call), what)


def _describe_late_result(entry: e.LateResult, before: State, after: State) -> Clause:
    named = format_call(after, entry.call)
    news = "this settles the call"
    if not can_settle_late(before, get_call(before, entry.call), entry.attempt):
        news = "this is too late to count"
    what = f"reported late: {named} {_format_result(entry.result)}"
    return Clause("a worker that was lost", what, f"; {news}")


# ── undo and release ──────────────────────────────────────────────────────────────────────


def _format_cleanup_target(state: State, call_id: str, action: CleanupAction) -> str:
    call = get_call(state, call_id)
    if call.call_kind == "child":
        return f"the work of {format_child_call(state, call)}"
    named = format_call(state, call_id)
    return named if action == "undo" else f"the resource held by {named}"


def _describe_undo_started(entry: e.UndoStarted, _: State, after: State) -> Clause:
    again = f", attempt {entry.attempt}" if entry.attempt > 1 else ""
    return Clause(
        RUN_SUBJECT, f"began to {_format_cleanup(after, entry.call, entry.action)}{again}"
    )


def _describe_undo_done(entry: e.UndoDone, _: State, after: State) -> Clause:
    if _is_child_end(after, entry.call, entry.action):
        return Clause(RUN_SUBJECT, f"ended {_format_child(after, entry.call)}")
    verb = _ACTION_VERBS[entry.action][1]
    return Clause(
        RUN_SUBJECT, f"{verb} {_format_cleanup_target(after, entry.call, entry.action)}"
    )


def _describe_undo_failed(entry: e.UndoFailed, _: State, after: State) -> Clause:
    again = f"; it will retry{_format_delay(after, entry.retry_at)}"
    # After the last attempt `UndoGaveUp` follows, so do not promise a retry.
    attempts = get_call(after, entry.call).get_cleanup(entry.action).attempts
    if entry.final or attempts >= after.run_started.undo_attempts:
        again = ""
    what = (
        f"could not {_format_cleanup(after, entry.call, entry.action)}: "
        f"{format_error(entry.error)}"
    )
    return Clause(RUN_SUBJECT, what, again)


def _describe_undo_unknown(entry: e.UndoUnknown, _: State, after: State) -> Clause:
    action = _format_cleanup(after, entry.call, entry.action)
    return Clause(RUN_SUBJECT, f"was interrupted while it tried to {action}", "; it will retry")


def _describe_undo_gave_up(entry: e.UndoGaveUp, before: State, after: State) -> Clause:
    action = _format_cleanup(after, entry.call, entry.action)
    clean = get_call(before, entry.call).get_cleanup(entry.action)
    tries = f" after {format_count(clean.attempts, 'attempt')}" if clean.attempts else ""
    # The error of the last attempt is in the sentence above. Do not repeat it.
    why = (
        ""
        if clean.attempts and clean.error == entry.error
        else f": {format_error(entry.error)}"
    )
    return Clause(RUN_SUBJECT, f"gave up{tries} and did not {action}{why}")


def _format_cleanup(state: State, call_id: str, action: CleanupAction) -> str:
    if _is_child_end(state, call_id, action):
        return f"end {_format_child(state, call_id)}"
    return f"{_ACTION_VERBS[action][0]} {_format_cleanup_target(state, call_id, action)}"


def _is_child_end(state: State, call_id: str, action: CleanupAction) -> bool:
    return action == "release" and get_call(state, call_id).call_kind == "child"


def _format_child(state: State, call_id: str) -> str:
    return format_child_call(state, get_call(state, call_id))


CALL_DESCRIBE_FUNCTIONS: DescribeFunctions = {
    e.CallProposed: ("detail", _describe_call_proposed),
    e.CallStarted: ("work", _describe_call_started),
    e.CallDone: ("good", _describe_call_done),
    e.CallFailed: ("bad", _describe_call_failed),
    e.CallAborted: ("quiet", _describe_call_aborted),
    e.CallUnknown: ("wait", _describe_call_unknown),
    e.CallSettled: ("quiet", _describe_call_settled),
    e.CallSealed: ("quiet", _describe_call_sealed),
    e.ProgressSaved: ("detail", _describe_progress_saved),
    e.ArtifactShown: ("good", _describe_artifact_shown),
    e.LateResult: ("detail", _describe_late_result),
    e.UndoStarted: ("undo", _describe_undo_started),
    e.UndoDone: ("undo", _describe_undo_done),
    e.UndoFailed: ("bad", _describe_undo_failed),
    e.UndoUnknown: ("detail", _describe_undo_unknown),
    e.UndoGaveUp: ("bad", _describe_undo_gave_up),
}

# ── conversation: messages, held topics, the plan, and take-overs ─────────────────────────

_ITEM_SUFFIXES: Final = {
    "queued": "",
    "running": " (in progress)",
    "done": " (done)",
    "failed": " (failed)",
    "dropped": " (dropped)",
}


def _describe_message_received(entry: e.MessageReceived, _: State, after: State) -> Clause:
    text = quote(entry.text) + format_files(entry.files)
    said = f"said {text}"
    if entry.due is not None:
        wait = format_time_until(after, entry.due)
        said = f"scheduled a message for the agent in {wait}: {text}"
    ack = f"; the run replied {quote(strip_emphasis(entry.ack))}" if entry.ack else ""
    return describe_request(entry, said, ack)


def _describe_message_due(entry: e.MessageDue, before: State, _: State) -> Clause:
    message = _get_pending(before, entry.message)
    what = (
        f"reached the scheduled time of {_format_possessive(message)} message "
        f"{quote(message.text)}"
    )
    return Clause(RUN_SUBJECT, what)


def _describe_message_taken(entry: e.MessageTaken, before: State, _: State) -> Clause:
    message = _get_pending(before, entry.message)
    return Clause(
        AGENT_SUBJECT, f"received {_format_possessive(message)} message {quote(message.text)}"
    )


def _describe_message_closed(entry: e.MessageClosed, before: State, _: State) -> Clause:
    if entry.why == "withdrawn":
        what = f"withdrew the message {quote(entry.text)} before the agent received it"
        return describe_request(entry, what, tone="quiet")
    sender = format_actor(_get_pending(before, entry.message).by)
    # Not cut: the sender may want to use the text again.
    said = quote(entry.text, len(entry.text))
    what = f"returned the message {said} to {sender}: the agent will not receive it"
    return Clause(RUN_SUBJECT, what)


def _get_pending(state: State, seq: Seq) -> PendingText:
    return next(pending for pending in state.pending if pending.seq == seq)


def _format_possessive(pending: PendingText) -> str:
    return f"{format_actor(pending.by)}'s"


def _describe_frame_pushed(entry: e.FramePushed, before: State, after: State) -> Clause:
    held = after.frames[-1]
    message = _get_pending(before, entry.message)
    what = f"put {quote(entry.goal)} aside at {format_frame_position(held)}"
    more = f" to answer {_format_possessive(message)} {quote(message.text)}"
    return Clause(AGENT_SUBJECT, what, more)


def _describe_frame_resumed(
    entry: e.FrameResumed | e.FrameReconstructed, before: State, after: State
) -> Clause:
    # A side question may have been handed off. The topic belongs to the agent that held it.
    has_changed = before.speaker_name != after.speaker_name
    speaker = f"; {after.speaker_name} speaks again" if has_changed else ""
    text = quote(strip_emphasis(entry.text))
    if is_automatic(entry.by):
        return Clause(RUN_SUBJECT, f"said {text}", speaker)
    return describe_request(entry, f"sent the agent back: {text}", speaker)


def _describe_frame_abandoned(entry: e.FrameAbandoned, before: State, _: State) -> Clause:
    frame = next(one for one in before.frames if one.id == entry.frame)
    topic, where = quote(frame.goal), f", which was put aside at {format_frame_position(frame)}"
    if entry.why == "cancelled" or is_automatic(entry.by):
        return Clause(RUN_SUBJECT, f"dropped {topic}", where)
    return describe_request(entry, f"made the agent drop {topic}", where)


def _describe_plan_made(entry: e.PlanMade, before: State, after: State) -> Clause:
    if not entry.items:
        return Clause(AGENT_SUBJECT, "removed its plan")
    where = format_position(entry.items, after.meter.steps)
    # The same items with other marks: describe only the items that changed.
    if [item.text for item in entry.items] == [item.text for item in before.plan]:
        known = set(before.plan)
        changed = "; ".join(_format_item(item) for item in entry.items if item not in known)
        marked = f"updated its plan: {changed}" if changed else "kept its plan unchanged"
        return Clause(AGENT_SUBJECT, flatten(marked), f"; it is at {where}")
    items = "; ".join(f"{n}. {_format_item(item)}" for n, item in enumerate(entry.items, 1))
    how = "made a new plan of" if before.plan else "made a plan of"
    return Clause(
        AGENT_SUBJECT, flatten(f"{how} {format_count(len(entry.items), 'item')}: {items}")
    )


def _format_item(item: PlanItem) -> str:
    return f"{flatten(item.text, RESULT_MAX_CHARS)}{_ITEM_SUFFIXES[item.state]}"


def _describe_handed_off(entry: e.HandedOff, before: State, _: State) -> Clause:
    call = before.find_call(entry.call)
    why = f": {flatten(call.use.why)}" if call is not None and call.use.why else ""
    agent = format_agent(before, before.speaker_name)
    return Clause(agent, f"handed over to {entry.agent}", why)


def _describe_history_condensed(entry: e.HistoryCondensed, _: State, __: State) -> Clause:
    older = "message" if entry.message_count == 1 else f"{entry.message_count} messages"
    summed = quote(entry.summary, RESULT_MAX_CHARS)
    kept = "the journal keeps the full text"
    what = f"continues with a summary of the first {older}"
    return Clause(AGENT_SUBJECT, what, f": {summed}; {kept}")


def _describe_answer_given(entry: e.AnswerGiven, _: State, __: State) -> Clause:
    return Clause(AGENT_SUBJECT, f"answered {quote(entry.text)}")


def _describe_taken_over(entry: e.TakenOver, before: State, _: State) -> Clause:
    # A paused run is taken over at once; otherwise the run has to pause first.
    taken = "took" if before.phase is Phase.PAUSED else "asked to take"
    return describe_request(entry, f"{taken} over from the agent")


def _describe_person_wrote(entry: e.PersonWrote, _: State, __: State) -> Clause:
    return Clause(format_actor(entry.by), f"wrote in the agent's place: {quote(entry.text)}")


def _describe_tool_used(entry: e.ToolUseRequested, _: State, __: State) -> Clause:
    return describe_request(entry, f"requested a call of {entry.tool} in the agent's place")


def _describe_handed_back(entry: e.HandedBack, _: State, __: State) -> Clause:
    return describe_request(entry, "handed the run back to the agent")


CONVERSATION_DESCRIBE_FUNCTIONS: DescribeFunctions = {
    e.MessageReceived: ("person", _describe_message_received),
    e.MessageDue: ("detail", _describe_message_due),
    e.MessageTaken: ("detail", _describe_message_taken),
    e.MessageClosed: ("bad", _describe_message_closed),
    e.FramePushed: ("quiet", _describe_frame_pushed),
    e.FrameResumed: ("detail", _describe_frame_resumed),
    e.FrameReconstructed: ("detail", _describe_frame_resumed),
    e.FrameAbandoned: ("quiet", _describe_frame_abandoned),
    e.PlanMade: ("quiet", _describe_plan_made),
    e.HandedOff: ("go", _describe_handed_off),
    e.HistoryCondensed: ("quiet", _describe_history_condensed),
    e.AnswerGiven: ("detail", _describe_answer_given),
    e.TakenOver: ("person", _describe_taken_over),
    e.PersonWrote: ("person", _describe_person_wrote),
    e.ToolUseRequested: ("detail", _describe_tool_used),
    e.HandedBack: ("person", _describe_handed_back),
}
