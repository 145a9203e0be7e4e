"""Turn the feed of a run into typed events, for local and remote handles alike.

An entry holds ids and not names, so its event depends on the entries before it. `EventBuilder`
folds the journal for that. A local handle starts with the state at `after`, which a snapshot
makes cheap to load. A remote handle has only the feed: it reads it from the beginning and drops
the events up to `after`. Both yield the same events.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Final, TypeAlias, TypedDict

from midrun import events as ev
from midrun.codec.strict_json import INTEGER_MAX
from midrun.core import entries as e
from midrun.core.evolve import evolve
from midrun.core.evolve.calls import get_call
from midrun.core.ids import CallId, Micros, RunId, Seq
from midrun.core.state import CallState, State, find_asked_use
from midrun.core.values import Phase, humanize_name
from midrun.driver.delta import Delta
from midrun.runs.values import FeedEntry, FeedItem
from midrun.text.entries import describe_delta, describe_entry
from midrun.text.phrases import Tone
from midrun.text.titles import format_title

OpenFeed: TypeAlias = Callable[[int], AsyncGenerator[FeedItem, None]]

_CallEnd: TypeAlias = e.CallDone | e.CallFailed | e.CallAborted | e.CallUnknown

_AnyDelta: TypeAlias = (
    ev.TextDelta | ev.ThinkingDelta | ev.ArgumentsDelta | ev.ToolNote | ev.ToolNotResponding
)
_DELTA_CLASSES: Final[Mapping[str, type[_AnyDelta]]] = {
    "text": ev.TextDelta,
    "thinking": ev.ThinkingDelta,
    "args": ev.ArgumentsDelta,
    "note": ev.ToolNote,
    "not_responding": ev.ToolNotResponding,
}


async def stream_events(
    open_feed: OpenFeed,
    run: RunId,
    after: int,
    load_state: Callable[[Seq], Awaitable[State]] | None = None,
) -> AsyncGenerator[ev.RunEvent, None]:
    """Yield the events of `run` after `after` until the run has ended.

    An event describes its entry with the state before it. `load_state` loads the state after an
    entry; without it, the feed is read from its start.
    """
    state = State(run=run)
    if load_state is not None and after > 0:
        state = await load_state(Seq(min(after, INTEGER_MAX)))
    # A sentence may depend on any earlier entry. Without `load_state`, the entries before
    # `after` are folded here, too; they are only not yielded.
    builder = EventBuilder(run, state)
    async with aclosing(open_feed(state.seq)) as feed:
        async for item in feed:
            event = builder.build_next(item)
            if item.seq is None or item.seq > after:
                yield event


class EventBuilder:
    """Builds the events of one feed, item by item; `state` is the one before the first."""

    def __init__(self, run: RunId, state: State | None = None) -> None:
        self._state = state or State(run=run)

    @property
    def state(self) -> State:
        """The state after the newest item."""
        return self._state

    def build_next(self, item: FeedItem) -> ev.RunEvent:
        """Return the event of the next item.

        Raises:
            JournalCorrupt: The entry may not follow the entries before it.
        """
        before = self._state
        if isinstance(item, Delta):
            return _DELTA_CLASSES[item.kind](
                seq=before.seq,
                sentence=describe_delta(item.kind, self._name_call(item), item.text),
                call=item.call,
                text=item.text,
                tool=item.tool,
                opening=item.opening,
            )
        if item.seq == 1:  # or again: the server's store was restored from a backup
            before = State(run=before.run)
        self._state = evolve(before, item.entry, item.at)
        return _make_event(item, before, self._state)

    def _name_call(self, delta: Delta) -> str:
        """Return the declared title of a running tool, else its name as words."""
        call = self._state.find_call(delta.call) if delta.tool else None
        # The call may be that of the model, which writes the arguments for the tool.
        return (call.use.label if call is not None else "") or humanize_name(delta.tool)


class _Common(TypedDict):
    """The fields of every `EntryEvent`."""

    seq: Seq
    at: Micros
    kind: str
    by: str
    phase: Phase
    who: str
    sentence: str
    short: str
    tone: Tone


def _make_event(item: FeedEntry, before: State, after: State) -> ev.RunEvent:
    # An entry has only what is new: the end of a call does not repeat its tool. The rest of an
    # event comes from the two states around the entry. Most of it is the same in both; what the
    # entry itself removes, such as the prefix of a reply, is only in `before`.
    entry = item.entry
    text = describe_entry(entry, before, after)
    common = _Common(
        seq=item.seq,
        at=item.at,
        kind=item.kind,
        by=getattr(entry, "by", ""),
        phase=after.phase,
        who=text.who,
        sentence=text.sentence,
        short=text.short,
        tone=text.tone,
    )
    match entry:
        case e.CallStarted():
            return _make_call_started(entry, after, common)
        case e.CallDone() | e.CallFailed() | e.CallAborted() | e.CallUnknown():
            return _make_call_finished(entry, before, after, common)
        case e.UndoDone() | e.UndoGaveUp():
            return ev.CleanupFinished(
                **common,
                call=entry.call,
                tool=get_call(after, entry.call).use.tool,
                title=format_title(get_call(after, entry.call).use),
                action=entry.action,
                succeeded=isinstance(entry, e.UndoDone),
                error=getattr(entry, "error", ""),
            )
        case e.AskOpened():
            return _make_ask_started(entry, after, common)
        case e.AnswerGiven():  # without a model call: of a hosted agent, or of a tool
            return ev.ReplyFinished(**common, call=CallId(""), outcome="done", reply=entry.text)
        case e.PlanMade():
            return ev.PlanChanged(**common, items=entry.items)
        case e.ArtifactShown():
            return _make_artifact_changed(entry, common)
        case e.HandedOff():
            return ev.HandoffFinished(
                **common,
                agent=entry.agent,
                previous=before.speaker_name,
                reason=get_call(after, entry.call).use.why,
            )
        case e.RedirectApplied():
            return ev.InstructionChanged(**common, instruction=entry.plus, previous=entry.minus)
        case _:
            return _make_ask_finished(entry, after, common) or _make_phase_event(before, common)


def _make_ask_started(entry: e.AskOpened, after: State, common: _Common) -> ev.AskStarted:
    ask = after.find_ask(entry.ask)
    assert ask is not None, "evolve has opened this ask"
    use = find_asked_use(ask, get_call(after, entry.call))
    return ev.AskStarted(
        **common,
        ask=entry.ask,
        ask_kind=entry.ask_kind,
        question=entry.question,
        data=entry.data,
        audience=entry.audience,
        call=entry.call,
        tool=use.tool,
        args=use.args,
        title=format_title(use),
        files=entry.files,
    )


def _make_artifact_changed(entry: e.ArtifactShown, common: _Common) -> ev.ArtifactChanged:
    return ev.ArtifactChanged(
        **common, call=entry.call, name=entry.name, version=entry.version, file=entry.file
    )


def _make_call_started(entry: e.CallStarted, after: State, common: _Common) -> ev.RunEvent:
    call = get_call(after, entry.call)
    if entry.call_kind == "model":
        return ev.ReplyStarted(
            **common,
            call=call.id,
            step=call.step,
            attempt=entry.attempt,
            purpose=entry.purpose,
            prefix=_find_prefix(after, call),
        )
    return ev.ToolStarted(
        **common,
        call=call.id,
        tool=call.use.tool,
        args=call.use.args,
        title=format_title(call.use),
        attempt=entry.attempt,
        why=call.use.why,
    )


def _make_call_finished(
    entry: _CallEnd, before: State, after: State, common: _Common
) -> ev.RunEvent:
    call = get_call(after, entry.call)
    outcome: ev.CallOutcome = "unknown"
    result, reply, error = None, "", ""
    match entry:
        case e.CallDone():
            outcome, result, error = "done", entry.result, entry.encoding_error
            reply = entry.reply.text if entry.reply is not None else ""
        case e.CallFailed():
            outcome, reply, error = "failed", entry.text, entry.error
        case e.CallAborted():
            outcome, reply = "stopped", entry.text
        case e.CallUnknown():
            pass
    if call.call_kind != "model":
        return ev.ToolFinished(
            **common,
            call=call.id,
            tool=call.use.tool,
            title=format_title(call.use),
            outcome=outcome,
            result=result,
            error=error,
            will_retry=call.must_retry,
            files=getattr(entry, "files", ()),
        )
    # The entry has the text of the model alone; the stream had the prefix before it.
    prefix = _find_prefix(before, call) if reply or outcome == "done" else ""
    return ev.ReplyFinished(
        **common,
        call=call.id,
        outcome=outcome,
        reply=f"{prefix}\n\n{reply}".rstrip() if prefix else reply,
        error=error,
        will_retry=call.must_retry,
    )


def _find_prefix(state: State, call: CallState) -> str:
    """Return the text that the run puts before a reply, such as "Back to …", or ""."""
    return state.reply_prefix if call.seen_seq >= state.reply_prefix_seq else ""


def _make_ask_finished(entry: e.Entry, after: State, common: _Common) -> ev.AskFinished | None:
    """Return the event of an entry that closes an ask, else None."""
    if isinstance(entry, e.AskClosed):
        return ev.AskFinished(**common, ask=entry.ask, choice="")
    # Under four eyes, a changed approval does not close the ask: another person must approve.
    if not isinstance(entry, e.AskAnswered) or _is_open(after, entry.ask):
        return None
    decision = entry.decision
    return ev.AskFinished(
        **common,
        ask=entry.ask,
        choice=decision.choice,
        value=decision.value,
        files=entry.files,
    )


def _is_open(state: State, ask_id: str) -> bool:
    ask = state.find_ask(ask_id)
    return ask is not None and not ask.close_reason


def _make_phase_event(before: State, common: _Common) -> ev.PhaseChanged | ev.EntryAppended:
    if not before.seq:
        return ev.PhaseChanged(**common, previous=None)
    if before.phase is common["phase"]:
        return ev.EntryAppended(**common)
    return ev.PhaseChanged(**common, previous=before.phase)
