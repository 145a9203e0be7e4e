"""Build spans from a journal: a pure function whose times are those of the entries.

A segment is one stretch of a run under one lease: from the entry with which a worker took the
lease to the entry with which the run paused, waited, ended or was given back. No span stays
open across a pause. All segments of a run share one conversation id.

The attribute names are those of OpenTelemetry's semantic conventions for generative AI. They
are written out here because the package that defines them marks all of them as deprecated.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from midrun.agents.agent import Agent
from midrun.core import entries as e
from midrun.core.evolve import evolve
from midrun.core.ids import CallId, Micros, RunId, Seq
from midrun.core.state import State

AttributeValue = str | int | float | bool

SEGMENT_OUTCOMES: Final[Mapping[type[e.Entry], str]] = {
    e.RunPaused: "paused",
    e.RunWaiting: "waiting",
    e.RunCompleted: "completed",
    e.RunFailed: "failed",
    e.RunCancelled: "cancelled",
    e.RunHalted: "halted",
    e.LeaseReleased: "stood_down",
}
"""Entry that ends a segment → outcome of the segment."""

EVENT_NAMES: Final[Mapping[type[e.Entry], str]] = {
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
    e.HandedOff: "midrun.handed_off",
}
"""Entry without a duration → name of the span event for it."""

OpenSpanKey = tuple[str, str]
"""Key of an open span: the id of a call, and `call`, `undo` or `release`."""


class SpanEvent(Struct, frozen=True, kw_only=True):
    """A span event: an entry without a duration."""

    name: str
    at: Micros
    attributes: Mapping[str, AttributeValue]


class SpanData(Struct, kw_only=True):
    """One span to emit. `error` is the text of an error status; "" leaves it unset."""

    name: str
    start: Micros
    end: Micros
    attributes: dict[str, AttributeValue]
    events: list[SpanEvent] = []
    error: str = ""


class Segment(Struct, kw_only=True):
    """A segment: its span, the spans of its calls, and the seq of its last entry."""

    span: SpanData
    calls: list[SpanData]
    end: Seq


def build_segments(
    run: RunId, records: Sequence[e.Record], *, models: Mapping[str, str] | None = None
) -> list[Segment]:
    """Return the finished segments of a journal, oldest first.

    `records` is the whole journal. `models` has the name of each agent's model, which the
    journal does not contain.
    """
    reading = _SegmentBuilder(run, models or {})
    for record in records:
        reading.add_record(record)
    return reading.finished


class _SegmentBuilder:
    """One pass over a journal: the open segment, its open calls, the finished segments."""

    def __init__(self, run: RunId, models: Mapping[str, str]) -> None:
        self.finished: list[Segment] = []
        self._state = State(run=run)
        self._models = models
        self._open_segment: Segment | None = None
        self._open_spans: dict[OpenSpanKey, SpanData] = {}
        self._events_between: list[SpanEvent] = []  # before the next segment

    def add_record(self, record: e.Record) -> None:
        """Process the next entry."""
        entry = record.entry
        self._state = evolve(self._state, entry, record.at)
        if isinstance(entry, e.LeaseTaken):
            # A segment that is still open had a worker that died without an entry.
            self._end_segment(record, "lost")
            self._begin_segment(record, entry)
        self._add_event(record)
        self._add_call_entry(record)
        if (outcome := SEGMENT_OUTCOMES.get(type(entry))) is not None:
            self._end_segment(record, outcome)

    # ── the segment ───────────────────────────────────────────────────────────────────────

    def _begin_segment(self, record: e.Record, entry: e.LeaseTaken) -> None:
        spec, run = self._state.run_started, self._state.run
        span = SpanData(
            name=f"invoke_agent {spec.agent}",
            start=record.at,
            end=record.at,
            attributes={
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": spec.agent,
                "gen_ai.conversation.id": spec.thread or run,
                **self._make_model_attributes(),
                "midrun.run.id": run,
                "midrun.segment": len(self.finished) + 1,
                "midrun.epoch": entry.epoch,
            },
        )
        # The time of these events is before the start of the span. They get its start time,
        # because backends drop or misplace events outside of their span.
        span.events = [
            SpanEvent(name=moment.name, at=record.at, attributes=moment.attributes)
            for moment in self._events_between
        ]
        self._events_between = []
        self._open_segment = Segment(span=span, calls=[], end=record.seq)

    def _end_segment(self, record: e.Record, outcome: str) -> None:
        ended, self._open_segment = self._open_segment, None
        if ended is None:
            return
        # Calls still open belong to a worker that died or stood down. The next worker records
        # their outcome, in another segment; a span cannot stay open until then.
        for span in self._open_spans.values():
            span.end = record.at
            span.attributes["midrun.outcome"] = "unknown"
        self._open_spans.clear()
        span = ended.span
        span.end, ended.end = record.at, record.seq
        span.attributes["midrun.outcome"] = outcome
        if isinstance(record.entry, e.RunFailed):
            span.error = record.entry.error or "failed"
            span.attributes["error.type"] = record.entry.code or "failed"
        self.finished.append(ended)

    def _add_event(self, record: e.Record) -> None:
        name = EVENT_NAMES.get(type(record.entry))
        if name is None:
            return
        attributes: dict[str, AttributeValue] = {"midrun.seq": record.seq}
        if isinstance(record.entry, e.RunPaused):
            attributes["midrun.why"] = record.entry.why
        if by := getattr(record.entry, "by", ""):
            attributes["midrun.by"] = by
        segment = self._open_segment
        moments = self._events_between if segment is None else segment.span.events
        moments.append(SpanEvent(name=name, at=record.at, attributes=attributes))

    @property
    def _model(self) -> str:
        """The name of the model of the agent that speaks."""
        return self._models.get(self._state.speaker_name, "")

    def _make_model_attributes(self) -> dict[str, AttributeValue]:
        provider, _, _ = self._model.rpartition(":")
        named: dict[str, AttributeValue] = (
            {"gen_ai.request.model": self._model} if self._model else {}
        )
        return {**named, **({"gen_ai.provider.name": provider} if provider else {})}

    # ── its calls ─────────────────────────────────────────────────────────────────────────

    def _add_call_entry(self, record: e.Record) -> None:  # noqa: C901 - one arm per kind
        """Begin or end the span of a call, an undo or a release."""
        match record.entry:
            case e.CallStarted(call=call, call_kind="model"):
                self._start_span(
                    record, (call, "call"), self._make_chat_attributes(record.entry)
                )
            case e.CallStarted(call=call, attempt=attempt):
                self._start_span(
                    record, (call, "call"), self._make_tool_attributes(call, attempt)
                )
            case e.UndoStarted(call=call, action=action, attempt=attempt):
                attributes = self._make_tool_attributes(call, attempt)
                attributes["midrun.action"] = action
                self._start_span(record, (call, action), attributes)
            case e.CallDone(call=call):
                self._end_span(record, (call, "call"), "done")
            case e.CallFailed(call=call, error=error, code=code):
                self._end_span(record, (call, "call"), "failed", error, code)
            case e.CallAborted(call=call):
                self._end_span(record, (call, "call"), "aborted")
            case e.CallUnknown(call=call):
                self._end_span(record, (call, "call"), "unknown")
            case e.AskOpened(call=call):
                self._end_span(record, (call, "call"), "asked")
            case e.UndoDone(call=call, action=action):
                self._end_span(record, (call, action), "done")
            case e.UndoFailed(call=call, action=action, error=error):
                self._end_span(record, (call, action), "failed", error)
            case e.UndoUnknown(call=call, action=action):
                self._end_span(record, (call, action), "unknown")
            case _:
                return

    def _make_chat_attributes(self, started: e.CallStarted) -> dict[str, AttributeValue]:
        return {
            "gen_ai.operation.name": "chat",
            **({} if self._state.speaker is None else self._make_speaker_attributes()),
            **self._make_model_attributes(),
            "midrun.attempt": started.attempt,
            "midrun.purpose": started.purpose,
        }

    def _make_speaker_attributes(self) -> dict[str, AttributeValue]:
        return {"gen_ai.agent.name": self._state.speaker_name}

    def _make_tool_attributes(self, call: CallId, attempt: int) -> dict[str, AttributeValue]:
        tool_call = self._state.find_call(call)
        return {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": tool_call.use.tool if tool_call is not None else "",
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": call,
            "midrun.attempt": attempt,
        }

    def _start_span(
        self, record: e.Record, key: OpenSpanKey, attributes: dict[str, AttributeValue]
    ) -> None:
        if self._open_segment is None:
            return
        attributes["gen_ai.conversation.id"] = self._state.run_started.thread or self._state.run
        about = attributes.get("gen_ai.tool.name", self._model)
        name = f"{attributes['gen_ai.operation.name']} {about}".strip()
        span = SpanData(name=name, start=record.at, end=record.at, attributes=attributes)
        self._open_spans[key] = span
        self._open_segment.calls.append(span)

    def _end_span(
        self, record: e.Record, key: OpenSpanKey, outcome: str, error: str = "", code: str = ""
    ) -> None:
        span = self._open_spans.pop(key, None)
        if span is None:
            return  # closed already: a late result, or the outcome from the next worker
        span.end = record.at
        span.attributes["midrun.outcome"] = outcome
        if isinstance(record.entry, e.CallDone):
            span.attributes |= _make_usage_attributes(record.entry)
        if outcome == "failed":
            span.error = error or "failed"
            span.attributes["error.type"] = code or error.partition(":")[0] or "failed"


def _make_usage_attributes(done: e.CallDone) -> dict[str, AttributeValue]:
    """Return the usage attributes of a model call; none that the provider did not report."""
    spent, reply = done.spent, done.reply
    if spent is None or reply is None:
        return {}
    # `cost` is in millionths of a dollar. `window` is the number of input tokens.
    used: dict[str, AttributeValue] = (
        {"midrun.usage.cost_usd": spent.cost / 1e6} if spent.cost else {}
    )
    if spent.input_tokens or spent.output_tokens:
        used["gen_ai.usage.input_tokens"] = spent.input_tokens
        used["gen_ai.usage.output_tokens"] = spent.output_tokens
        if spent.cached_tokens:
            used["gen_ai.usage.cache_read.input_tokens"] = spent.cached_tokens
        if spent.thinking_tokens:
            used["gen_ai.usage.reasoning.output_tokens"] = spent.thinking_tokens
    elif 0 < reply.prompt_tokens <= spent.tokens:
        used["gen_ai.usage.input_tokens"] = reply.prompt_tokens
        used["gen_ai.usage.output_tokens"] = spent.tokens - reply.prompt_tokens
    elif spent.tokens:
        used["midrun.usage.tokens"] = spent.tokens
    return used


def find_model_name(agent: Agent | None) -> str:
    """Return the name of an agent's model; "" if it has none."""
    model: object = None if agent is None else agent.model
    known = (model, getattr(model, "name", None), getattr(model, "model_name", None))
    return next((name for name in known if isinstance(name, str)), "")
