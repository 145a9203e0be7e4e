"""Spans: segments of runs, emitted through whatever OpenTelemetry is set up with.

Each segment is a trace of its own that is linked to the one before; a backend shows a run that
waited for a week as what it was, two short traces and not one that was never finished. A cancel
by a person is no error.
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
from midrun.followers.worker import Followed
from midrun.ports.follower_cursors import Mark
from midrun.runs.midrun import Midrun

ATTEMPTS: Final = 10


class Spans:
    """Emits a span for each segment of a run, with spans for its calls in it; a `Follower`.

    They come when a run rests: paused, waiting, failed or ended. `provider` is the tracer
    provider to use instead of the global one. The names of models are those of the agents that
    `midrun` knows. After a crash, the newest segment of a run may be emitted twice.
    """

    name = "spans"
    attempts = ATTEMPTS

    def __init__(self, midrun: Midrun, *, provider: TracerProvider | None = None) -> None:
        self._agents: Mapping[str, Agent] = midrun.agents
        self._tracer = trace.get_tracer("midrun", tracer_provider=provider)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Need nothing: whoever set OpenTelemetry up shuts it down."""
        yield

    async def tell(self, followed: Followed) -> Mark:
        """Emit the first segment that ended since, and return how far that was."""
        run, row = followed.run, followed.row
        records = await followed.store.read(run, limit=row.seq)
        model = _model(self._agents.get(row.head.agent))
        found = await anyio.to_thread.run_sync(lambda: s.segments(run, records, model=model))
        before = followed.records[0].seq - 1
        for segment in found:
            if segment.end > before:
                began = records[0].entry
                caller = _context(getattr(began, "trace", ""))
                made = self._emit(segment, _context(followed.note), caller)
                return Mark(run=run, seq=segment.end, note=_kept(made))
        return Mark(run=run, seq=row.seq, note=followed.note)

    def _emit(
        self, segment: s.Segment, previous: SpanContext | None, caller: SpanContext | None
    ) -> SpanContext:
        links = [] if previous is None else [Link(previous)]
        around = caller and trace.set_span_in_context(NonRecordingSpan(caller))
        root = self._started(segment.span, SpanKind.INTERNAL, links=links, context=around)
        inside = trace.set_span_in_context(root)
        for call in segment.calls:
            kind = SpanKind.CLIENT if call.name.startswith("chat") else SpanKind.INTERNAL
            _ended(self._started(call, kind, context=inside), call)
        _ended(root, segment.span)
        return root.get_span_context()

    def _started(
        self,
        span: s.Span,
        kind: SpanKind,
        *,
        links: list[Link] | None = None,
        context: Context | None = None,
    ) -> Span:
        made = self._tracer.start_span(
            span.name,
            # A context of its own: what this process happens to be doing is not its parent.
            context=context or trace.set_span_in_context(trace.INVALID_SPAN),
            kind=kind,
            attributes=span.attributes,
            links=links,
            start_time=_nanos(span.start),
        )
        for moment in span.moments:
            made.add_event(moment.name, dict(moment.attributes), _nanos(moment.at))
        return made


def _ended(made: Span, span: s.Span) -> None:
    if span.error:
        made.set_status(Status(StatusCode.ERROR, span.error))
    made.end(_nanos(span.end))


def _nanos(at: Micros) -> int:
    return at * 1000


def _kept(context: SpanContext) -> str:
    """Return a span's context as text, in the form that HTTP headers have it."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def _context(note: str) -> SpanContext | None:
    """Return the context that was kept; None if there was none."""
    parts = note.split("-")
    if len(parts) != 4:  # noqa: PLR2004 - version, trace, span, flags
        return None
    trace_id, span_id, flags = (int(part, 16) for part in parts[1:])
    found = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return found if found.is_valid else None


def _model(agent: Agent | None) -> str:
    """Return the name of an agent's model, as far as it has one."""
    model: object = None if agent is None else agent.model
    known = (model, getattr(model, "name", None), getattr(model, "model_name", None))
    return next((name for name in known if isinstance(name, str)), "")
