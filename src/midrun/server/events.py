"""Events: journal entries encoded for the wire, one event per entry, under the entry's seq.

`EventReader` reads and encodes entries and caches the result, so that an entry is encoded about
once however many streams send it. `EVENT_TYPES` maps each kind of entry to a stable name.

Each event carries the text of its entry for people. The text depends on the state before the
entry, so the reader folds a journal from its beginning, once, and keeps a state per page.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from midrun.codec.journal import decode_line, decode_lines
from midrun.core import entries as e
from midrun.core.evolve import fold
from midrun.core.ids import CallId, RunId, Seq
from midrun.core.lru import LruDict
from midrun.core.state import State
from midrun.driver.delta import Delta
from midrun.runs.midrun import Midrun
from midrun.runs.wire import FeedEvent
from midrun.server.schemas import to_wire
from midrun.stores.encryption import read_decrypted_lines
from midrun.text.entries import JournalDescriber
from midrun.text.phrases import EntryText

EVENTS_PAGE_MAX: Final = 256
CACHED_EVENTS_MAX: Final = 65_536
CACHED_EVENTS_MAX_BYTES: Final = 16 * 1024 * 1024
"""The bound on the cached events of all runs together."""

CACHED_STATES_MAX: Final = 1024
CACHED_STATES_MAX_BYTES: Final = 32 * 1024 * 1024
"""The bound on the journals of all cached states; a state needs about as much memory."""

EVENT_TYPES: Final[Mapping[type[e.Entry], str]] = {
    e.RunStarted: "run.created",
    e.RunImported: "run.imported",
    e.LeaseTaken: "lease.taken",
    e.LeaseReleased: "lease.released",
    e.RunWaiting: "run.waiting",
    e.RunWoken: "run.woken",
    e.RunCompleted: "run.completed",
    e.RunFailed: "run.failed",
    e.PauseRequested: "run.pausing",
    e.PauseWithdrawn: "run.unpaused",
    e.RunPaused: "run.paused",
    e.RunResumed: "run.resumed",
    e.CapRaised: "cap.raised",
    e.CapReached: "cap.reached",
    e.StopReached: "stop.reached",
    e.StopEvaluated: "stop.evaluated",
    e.RedirectRequested: "redirect.requested",
    e.RedirectApplied: "redirect.applied",
    e.RedirectClosed: "redirect.closed",
    e.CancelRequested: "run.cancelling",
    e.RunCancelled: "run.cancelled",
    e.UndoRetried: "undo.retried",
    e.ResidueAccepted: "residue.accepted",
    e.RunHalted: "run.halted",
    e.RunLifted: "run.lifted",
    e.RequestNoted: "request.noted",
    e.CallProposed: "call.proposed",
    e.CallStarted: "call.started",
    e.CallDone: "call.done",
    e.CallFailed: "call.failed",
    e.CallAborted: "call.aborted",
    e.CallUnknown: "call.unknown",
    e.CallSettled: "call.settled",
    e.CallSealed: "call.sealed",
    e.ProgressSaved: "call.saved",
    e.ArtifactShown: "artifact.shown",
    e.LateResult: "call.late",
    e.UndoStarted: "undo.started",
    e.UndoDone: "undo.done",
    e.UndoFailed: "undo.failed",
    e.UndoUnknown: "undo.unknown",
    e.UndoGaveUp: "undo.gave_up",
    e.AskOpened: "ask.opened",
    e.AskAnswered: "ask.answered",
    e.AskClosed: "ask.closed",
    e.MessageReceived: "message.received",
    e.MessageDue: "message.due",
    e.MessageTaken: "message.taken",
    e.MessageClosed: "message.closed",
    e.FramePushed: "frame.pushed",
    e.FrameResumed: "frame.resumed",
    e.FrameReconstructed: "frame.reconstructed",
    e.FrameAbandoned: "frame.abandoned",
    e.PlanMade: "plan.made",
    e.HandedOff: "agent.handed_off",
    e.HistoryCondensed: "history.condensed",
    e.AnswerGiven: "answer.given",
    e.TakenOver: "takeover.started",
    e.PersonWrote: "takeover.wrote",
    e.ToolUseRequested: "takeover.tool_requested",
    e.HandedBack: "takeover.ended",
}
"""Kind of entry → type of its event. The types are part of the API."""

DELTA_TYPES: Final = {"note": "call.note", "not_responding": "call.not_responding"}
"""Kind of delta → type of its event; text of a model is `model.delta`."""

_CALL_ENDS: Final = (e.CallDone, e.CallFailed, e.CallAborted, e.CallUnknown)


class EncodedEvent(Struct, frozen=True, kw_only=True):
    """An encoded event. `starts` or `closes` is the call that the entry starts or ends."""

    seq: Seq
    type: str
    body: bytes
    starts: CallId | None = None
    closes: CallId | None = None

    def to_sse(self) -> bytes:
        """Format the event as SSE, with its seq as the id."""
        # The JSON has no line breaks, so one data line is enough.
        return b"id: %d\nevent: %b\ndata: %b\n\n" % (self.seq, self.type.encode(), self.body)


class EventReader:
    """Reads and encodes entries; caches them for all streams of the same run."""

    def __init__(self, mid: Midrun) -> None:
        self._mid = mid
        self._cached: LruDict[tuple[RunId, int], EncodedEvent] = LruDict(
            max_items=CACHED_EVENTS_MAX, max_weight=CACHED_EVENTS_MAX_BYTES
        )
        # By run and seq. States of one run share their structure, so the weight of a state is
        # the part of the journal that was folded since the cached state before it.
        self._states: LruDict[tuple[RunId, int], State] = LruDict(
            max_items=CACHED_STATES_MAX, max_weight=CACHED_STATES_MAX_BYTES
        )

    async def read_after(
        self, run: RunId, seq: int, limit: int = EVENTS_PAGE_MAX
    ) -> Sequence[EncodedEvent]:
        """Return events after `seq`, oldest first; empty if there is no newer entry.

        It may return fewer than `limit` although there are more: either cached events up to the
        first gap in the cache, or one page of the store. Callers read on from the last seq.

        Raises:
            RunNotFound: no such run.
            JournalUnreadable: this process cannot read the journal.
        """
        # An entry never changes, so a cached event is never outdated. All streams of a run read
        # about the same entries: the first stream fills the cache, the others find it full. No
        # stream waits for the store only to complete a page: cached events go out at once.
        found: list[EncodedEvent] = []
        while len(found) < limit:
            cached = self._cached.get((run, seq + 1 + len(found)))
            if cached is None:
                break
            found.append(cached)
        return found or await self._read_page(run, seq, limit)

    async def _read_page(self, run: RunId, seq: int, limit: int) -> Sequence[EncodedEvent]:
        pairs = await read_decrypted_lines(self._mid.store, run, after=Seq(seq), limit=limit)
        if not pairs:
            return []
        describer = JournalDescriber(run, await self.load_state(run, seq))
        read: list[EncodedEvent] = []
        for at, (line, link) in enumerate(pairs, seq + 1):
            record = decode_line(line, run=run, seq=Seq(at))
            text = describer.describe_next(record.entry, record.at)
            read.append(_encode_event(run, record, link, text))
            self._cached.put((run, at), read[-1], weight=len(read[-1].body))
        self._keep_state(describer.state, pairs)
        return read

    async def load_state(self, run: RunId, seq: int) -> State:
        """Return the state of `run` after the entry `seq`."""
        state = self._states.get((run, seq))
        start = seq // EVENTS_PAGE_MAX * EVENTS_PAGE_MAX
        while state is None and start > 0:
            state = self._states.get((run, start))
            start -= EVENTS_PAGE_MAX
        state = State(run=run) if state is None else state
        # Page by page: other tasks can run in between, and later reads start at these states.
        while state.seq < seq:
            page = min(EVENTS_PAGE_MAX, seq - state.seq)
            pairs = await read_decrypted_lines(
                self._mid.store, run, after=state.seq, limit=page
            )
            records = decode_lines(run, [line for line, _ in pairs], after=state.seq)
            state = fold(run, records, state)
            self._keep_state(state, pairs)
        return state

    def _keep_state(self, state: State, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        weight = sum(len(line) for line, _ in pairs)
        self._states.put((state.run, state.seq), state, weight=weight)


def format_sse(kind: str, value: object) -> bytes:
    """Format a value that is not an entry as SSE; without an id, it is never replayed."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode(to_wire(value)))


def get_delta_type(delta: Delta) -> str:
    """Return the event type of a delta."""
    return DELTA_TYPES.get(delta.kind, "model.delta")


def _encode_event(run: RunId, record: e.Record, link: bytes, text: EntryText) -> EncodedEvent:
    entry = _remove_opaque(record.entry)
    kind = EVENT_TYPES[type(entry)]
    shown = FeedEvent(
        seq=record.seq,
        type=kind,
        ts=record.at,
        run_id=run,
        by=getattr(entry, "by", ""),
        epoch=record.epoch,
        hash=link.hex(),
        text=text,
        data=to_wire(entry),
    )
    # Streams drop live text of a call that has ended; these two fields tell them which call,
    # without a second decoding of the body.
    closes = entry.call if isinstance(entry, _CALL_ENDS) else None
    return EncodedEvent(
        seq=record.seq,
        type=kind,
        body=msgspec.json.encode(to_wire(shown)),
        starts=entry.call if isinstance(entry, e.CallStarted) else None,
        closes=closes,
    )


def _remove_opaque(entry: e.Entry) -> e.Entry:
    """Remove the provider's own form of messages: large, and of use to the provider only."""
    if isinstance(entry, e.CallDone) and entry.reply is not None and entry.reply.opaque:
        return replace(entry, reply=replace(entry.reply, opaque=None))
    if isinstance(entry, e.RunStarted) and entry.history:
        return replace(entry, history=tuple(replace(m, opaque=None) for m in entry.history))
    return entry
