"""A follower that emits OpenTelemetry spans for runs.

`span_builder` divides a run into segments, one for each stretch under one lease. Each segment
becomes a trace of its own, linked to the trace of the segment before it. So a run that waited
for a week shows as two short traces, not as one that stays open. A cancel is not an error.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import anyio.to_thread
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TracerProvider,
)

from midrun.agents.agent import Agent
from midrun.core.ids import Micros
from midrun.followers import span_builder as s
from midrun.followers.worker import PendingRun
from midrun.ports.follower_cursors import FollowerCursor
from midrun.runs.midrun import Midrun

SPAN_MAX_ATTEMPTS: Final = 10


class Spans:
    """A `Follower` that emits a span per segment of a run, with a child span per call.

    Spans are emitted when a run rests: paused, waiting, failed or ended. `provider` replaces
    the global tracer provider. The journal does not name models, so their names come from the
    agents of `midrun`. After a crash, the newest segment of a run may be emitted twice.
    """

    name = "spans"
    attempts = SPAN_MAX_ATTEMPTS

    def __init__(self, midrun: Midrun, *, provider: TracerProvider | None = None) -> None:
        self._agents: Mapping[str, Agent] = midrun.agents
        self._tracer = trace.get_tracer("midrun", tracer_provider=provider)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Hold no resources: the application sets OpenTelemetry up and shuts it down."""
        yield

    async def deliver(self, pending: PendingRun) -> FollowerCursor:
        """Emit the first segment that is not delivered yet; return the cursor after it."""
        run, row = pending.run, pending.row
        # Segments need the whole journal: an undelivered segment may end a call, or be of an
        # agent, that only earlier entries describe.
        records = await pending.store.read(run, limit=row.seq)
        models = {name: s.find_model_name(agent) for name, agent in self._agents.items()}
        segments = await anyio.to_thread.run_sync(
            lambda: s.build_segments(run, records, models=models)
        )
        before = pending.records[0].seq - 1
        for segment in segments:
            if segment.end > before:
                # `RunStarted` stores the trace context of the program that started the run. The
                # cursor's note stores that of the segment emitted last, for the link.
                run_started = records[0].entry
                caller = _parse_span_context(getattr(run_started, "trace", ""))
                context = self._emit_segment(segment, _parse_span_context(pending.note), caller)
                return FollowerCursor(
                    run=run, seq=segment.end, note=_format_span_context(context)
                )
        return FollowerCursor(run=run, seq=row.seq, note=pending.note)

    def _emit_segment(
        self, segment: s.Segment, previous: SpanContext | None, caller: SpanContext | None
    ) -> SpanContext:
        links = [] if previous is None else [Link(previous)]
        around = caller and trace.set_span_in_context(NonRecordingSpan(caller))
        root = self._start_span(segment.span, SpanKind.INTERNAL, links=links, context=around)
        inside = trace.set_span_in_context(root)
        for call in segment.calls:
            kind = SpanKind.CLIENT if call.name.startswith("chat") else SpanKind.INTERNAL
            _end_span(self._start_span(call, kind, context=inside), call)
        _end_span(root, segment.span)
        return root.get_span_context()

    def _start_span(
        self,
        span: s.SpanData,
        kind: SpanKind,
        *,
        links: list[Link] | None = None,
        context: Context | None = None,
    ) -> Span:
        otel_span = self._tracer.start_span(
            span.name,
            # An explicit empty context: else the span that happens to be current in this
            # process would become the parent.
            context=context or trace.set_span_in_context(trace.INVALID_SPAN),
            kind=kind,
            attributes=span.attributes,
            links=links,
            start_time=_micros_to_nanos(span.start),
        )
        for moment in span.events:
            otel_span.add_event(
                moment.name, dict(moment.attributes), _micros_to_nanos(moment.at)
            )
        return otel_span


def _end_span(otel_span: Span, span: s.SpanData) -> None:
    if span.error:
        otel_span.set_status(Status(StatusCode.ERROR, span.error))
    otel_span.end(_micros_to_nanos(span.end))


def _micros_to_nanos(at: Micros) -> int:
    return at * 1000


def _format_span_context(context: SpanContext) -> str:
    """Return a span context in the form of the W3C `traceparent` header."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def _parse_span_context(note: str) -> SpanContext | None:
    """Parse a span context written by `_format_span_context`; None if there is none."""
    parts = note.split("-")
    if len(parts) != 4:  # noqa: PLR2004 - version, trace, span, flags
        return None
    trace_id, span_id, flags = (int(part, 16) for part in parts[1:])
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return context if context.is_valid else None
