"""Segments: a journal as spans, by a pure function; the times are those of the entries.

A segment is one stretch of a run under one lease: from where a driver took it to where it was
paused, waited for somebody, ended, or was left. No span is open across a pause; a run is one
segment after the other, under one conversation id.

The names are those of OpenTelemetry's conventions for generative AI, written out: the package
that has them calls them all deprecated.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from midrun.core import entries as e
from midrun.core.evolve import evolve
from midrun.core.ids import CallId, Micros, RunId, Seq
from midrun.core.state import State

Value = str | int | float | bool

ENDS: Final[Mapping[type[e.Entry], str]] = {
    e.RunPaused: "paused",
    e.RunWaiting: "waiting",
    e.RunCompleted: "completed",
    e.RunFailed: "failed",
    e.RunCancelled: "cancelled",
    e.RunHalted: "halted",
    e.StoodDown: "stood_down",
}
"""What ends a segment, and what its outcome is called."""

TOLD: Final[Mapping[type[e.Entry], str]] = {
    e.PauseRequested: "midrun.pausing",
    e.RunPaused: "midrun.paused",
    e.RunResumed: "midrun.resumed",
    e.RedirectRequested: "midrun.redirected",
    e.CancelRequested: "midrun.cancelling",
    e.RunCancelled: "midrun.cancelled",
    e.RunHalted: "midrun.halted",
    e.RunLifted: "midrun.lifted",
    e.CapReached: "midrun.cap_reached",
    e.AskOpened: "midrun.asked",
    e.AskAnswered: "midrun.answered",
}
"""What happened in a segment and took no time."""

Begun = tuple[str, str]
"""What is under way: a call's id, and `call`, `undo` or `release`."""


class Moment(Struct, frozen=True, kw_only=True):
    """Something that happened within a span."""

    name: str
    at: Micros
    attributes: Mapping[str, Value]


class Span(Struct, kw_only=True):
    """One span, as it is emitted. `error` is the text of its status; "" leaves it unset."""

    name: str
    start: Micros
    end: Micros
    attributes: dict[str, Value]
    moments: list[Moment] = []
    error: str = ""


class Segment(Struct, kw_only=True):
    """A segment: its own span, those of its calls, and the seq of the entry that ended it."""

    span: Span
    calls: list[Span]
    end: Seq


def segments(run: RunId, records: Sequence[e.Record], *, model: str = "") -> list[Segment]:
    """Return the segments of a journal that have ended, oldest first.

    `records` is the whole of it; `model` names the model that its agent speaks to, which the
    journal does not know.
    """
    reading = _Reading(run, model)
    for record in records:
        reading.read(record)
    return reading.found


class _Reading:
    """One pass over a journal."""

    def __init__(self, run: RunId, model: str) -> None:
        self.found: list[Segment] = []
        self._state = State(run=run)
        self._model = model
        self._open: Segment | None = None
        self._begun: dict[Begun, Span] = {}
        self._between: list[Moment] = []  # what happened while nobody drove

    def read(self, record: e.Record) -> None:
        """Read the next entry."""
        entry = record.entry
        self._state = evolve(self._state, entry, record.at)
        if isinstance(entry, e.LeaseTaken):
            self._end(record, "lost")  # its driver never said a word
            self._begin(record, entry)
        self._tell(record)
        self._call(record)
        if (outcome := ENDS.get(type(entry))) is not None:
            self._end(record, outcome)

    # ── the segment ───────────────────────────────────────────────────────────────────────

    def _begin(self, record: e.Record, entry: e.LeaseTaken) -> None:
        spec, run = self._state.started, self._state.run
        span = Span(
            name=f"invoke_agent {spec.agent}",
            start=record.at,
            end=record.at,
            attributes={
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": spec.agent,
                "gen_ai.conversation.id": spec.thread or run,
                **self._speaks_to(),
                "midrun.run.id": run,
                "midrun.segment": len(self.found) + 1,
                "midrun.epoch": entry.epoch,
            },
        )
        span.moments = [
            Moment(name=told.name, at=record.at, attributes=told.attributes)
            for told in self._between
        ]
        self._between = []
        self._open = Segment(span=span, calls=[], end=record.seq)

    def _end(self, record: e.Record, outcome: str) -> None:
        ended, self._open = self._open, None
        if ended is None:
            return
        for begun in self._begun.values():  # what was under way is closed by whoever comes next
            begun.end = record.at
            begun.attributes["midrun.outcome"] = "unknown"
        self._begun.clear()
        span = ended.span
        span.end, ended.end = record.at, record.seq
        span.attributes["midrun.outcome"] = outcome
        if isinstance(record.entry, e.RunFailed):
            span.error = record.entry.error or "failed"
            span.attributes["error.type"] = record.entry.code or "failed"
        self.found.append(ended)

    def _tell(self, record: e.Record) -> None:
        name = TOLD.get(type(record.entry))
        if name is None:
            return
        attributes: dict[str, Value] = {"midrun.seq": record.seq}
        if isinstance(record.entry, e.RunPaused):
            attributes["midrun.why"] = record.entry.why
        if by := getattr(record.entry, "by", ""):
            attributes["midrun.by"] = by
        told = Moment(name=name, at=record.at, attributes=attributes)
        moments = self._between if self._open is None else self._open.span.moments
        moments.append(told)

    def _speaks_to(self) -> dict[str, Value]:
        provider, _, _ = self._model.rpartition(":")
        named: dict[str, Value] = {"gen_ai.request.model": self._model} if self._model else {}
        return {**named, **({"gen_ai.provider.name": provider} if provider else {})}

    # ── its calls ─────────────────────────────────────────────────────────────────────────

    def _call(self, record: e.Record) -> None:  # noqa: C901 - one arm per kind
        """Begin or end the span of a call, an undo or a release."""
        match record.entry:
            case e.CallStarted(call=call, call_kind="model"):
                self._start(record, (call, "call"), self._chat(record.entry))
            case e.CallStarted(call=call, attempt=attempt):
                self._start(record, (call, "call"), self._tool(call, attempt))
            case e.UndoStarted(call=call, action=action, attempt=attempt):
                begun = self._tool(call, attempt)
                begun["midrun.action"] = action
                self._start(record, (call, action), begun)
            case e.CallDone(call=call):
                self._stop(record, (call, "call"), "done")
            case e.CallFailed(call=call, error=error, code=code):
                self._stop(record, (call, "call"), "failed", error, code)
            case e.CallAborted(call=call):
                self._stop(record, (call, "call"), "aborted")
            case e.CallUnknown(call=call):
                self._stop(record, (call, "call"), "unknown")
            case e.AskOpened(call=call):
                self._stop(record, (call, "call"), "asked")
            case e.UndoDone(call=call, action=action):
                self._stop(record, (call, action), "done")
            case e.UndoFailed(call=call, action=action, error=error):
                self._stop(record, (call, action), "failed", error)
            case e.UndoUnknown(call=call, action=action):
                self._stop(record, (call, action), "unknown")
            case _:
                return

    def _chat(self, started: e.CallStarted) -> dict[str, Value]:
        return {
            "gen_ai.operation.name": "chat",
            **self._speaks_to(),
            "midrun.attempt": started.attempt,
            "midrun.purpose": started.purpose,
        }

    def _tool(self, call: CallId, attempt: int) -> dict[str, Value]:
        made = self._state.call(call)
        return {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": made.use.tool if made is not None else "",
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": call,
            "midrun.attempt": attempt,
        }

    def _start(self, record: e.Record, key: Begun, attributes: dict[str, Value]) -> None:
        if self._open is None:
            return
        attributes["gen_ai.conversation.id"] = self._state.started.thread or self._state.run
        about = attributes.get("gen_ai.tool.name", self._model)
        name = f"{attributes['gen_ai.operation.name']} {about}".strip()
        span = Span(name=name, start=record.at, end=record.at, attributes=attributes)
        self._begun[key] = span
        self._open.calls.append(span)

    def _stop(
        self, record: e.Record, key: Begun, outcome: str, error: str = "", code: str = ""
    ) -> None:
        span = self._begun.pop(key, None)
        if span is None:
            return  # it was not under way: late evidence, or the next driver's word
        span.end = record.at
        span.attributes["midrun.outcome"] = outcome
        if isinstance(record.entry, e.CallDone):
            span.attributes |= _used(record.entry)
        if outcome == "failed":
            span.error = error or "failed"
            span.attributes["error.type"] = code or error.partition(":")[0] or "failed"


def _used(done: e.CallDone) -> dict[str, Value]:
    """Return what a model call used, as far as the provider has said."""
    spent, reply = done.spent, done.reply
    if spent is None or reply is None:
        return {}
    used: dict[str, Value] = {"midrun.usage.cost_usd": spent.cost / 1e6} if spent.cost else {}
    if 0 < reply.window <= spent.tokens:
        used["gen_ai.usage.input_tokens"] = reply.window
        used["gen_ai.usage.output_tokens"] = spent.tokens - reply.window
    elif spent.tokens:
        used["midrun.usage.tokens"] = spent.tokens
    return used
