"""Feeds over HTTP: the entries of one run, and the changes of all runs in a list.

The entries of a run come in three forms, chosen by `Accept`: as server-sent events that go on
with the run, as NDJSON up to now, or as one JSON page. A stream writes every entry after
`after` once, in order, with the entry's seq as its SSE id. Deltas (live text) are written
between entries and are never replayed.
"""

from collections.abc import Iterator

import msgspec
from starlette.responses import Response

from midrun.core.ids import RunId
from midrun.core.values import TERMINAL_PHASES, Phase, Value
from midrun.driver.live import Delta
from midrun.errors import RunNotFound
from midrun.ports.store import RunQuery, RunRow
from midrun.runs.run import Run
from midrun.server.broadcast import WRITE_GAP_S, Subscriber
from midrun.server.events import (
    EVENTS_PAGE_MAX,
    EncodedEvent,
    ShownEvent,
    delta_type,
    format_sse,
)
from midrun.server.problem_details import HttpProblem
from midrun.server.request_context import RequestContext, is_seq_number, json_response
from midrun.server.runs import query_phases
from midrun.server.sse import SSE_MEDIA, SseResponse, SseWriter, StreamSource

NDJSON_MEDIA = "application/x-ndjson"
RETRY_LINE = b"retry: 1000\n\n"
"""Milliseconds that a browser waits before it reconnects."""


class EventPage(Value, kw_only=True):
    """A page of events. `next_after` is the `after` of the next page, if there is `more`."""

    items: tuple[ShownEvent, ...]
    next_after: int
    more: bool


class StreamEnd(Value, kw_only=True):
    """The last event of a stream: the run has ended, and the client need not reconnect."""

    phase: Phase
    seq: int


class StreamReset(Value, kw_only=True):
    """The client's `after` is beyond the journal's end; the stream starts from the beginning.

    This happens, for example, after the store was restored from a backup.
    """

    after: int
    seq: int


async def read_events(context: RequestContext) -> Response:
    """Stream the entries of a run as SSE, or return them as NDJSON or as a page."""
    run = await context.find_run()
    after = _requested_seq(context)
    # An empty set means all types. With a filter, deltas are left out as well.
    wanted = frozenset(filter(None, context.request.query_params.get("types", "").split(",")))
    accept = context.request.headers.get("accept", "")
    if NDJSON_MEDIA in accept:
        async with context.hold_heavy_read_slot():
            return await _make_ndjson(context, run.id, after, wanted)
    if SSE_MEDIA not in accept:
        return await _make_page(context, run.id, after, wanted)
    row = await context.server.store.get_row(run.id)
    if row.head.phase in TERMINAL_PHASES and after == row.seq:
        return Response(status_code=204)  # makes an EventSource stop reconnecting
    return SseResponse(context, _make_run_source(context, run, after, wanted))


def _requested_seq(context: RequestContext) -> int:
    """Return the seq that the caller has seen; `Last-Event-ID` overrides the query.

    A browser that reconnects repeats the URL of the first connection, with the old `after`.
    """
    after = context.query_number("after", 0, minimum=0, maximum=2**53 - 1)
    last = context.request.headers.get("last-event-id")
    if not last:
        return after
    if not is_seq_number(last):
        problem = "Cannot resume the stream: Last-Event-ID must be the seq of an entry."
        raise HttpProblem("bad_query", 400, problem)
    return int(last)


def _make_run_source(
    context: RequestContext, run: Run, after: int, wanted_types: frozenset[str]
) -> StreamSource:
    """Return a source that writes each entry after `after` once, with deltas between."""

    async def source(writer: SseWriter) -> None:
        await writer.write(RETRY_LINE)
        async with context.server.channels.subscribe(run) as (channel, seat):
            sent = after
            # Asked of the store: the channel's `last_seq` may be behind, and a client that is
            # ahead of the channel only must not be reset.
            head = (await context.server.store.get_row(run.id)).seq
            if sent > head:
                reset = StreamReset(after=sent, seq=head)
                await writer.write(format_sse("stream.reset", reset))
                sent = 0
            # The calls whose end this stream has written. Deltas and entries reach a stream on
            # two ways: a delta of such a call is late, and would show live text after the end.
            closed: set[str] = set()
            while True:
                while sent < channel.last_seq:
                    page = await context.server.events.read_after(run.id, sent)
                    sent = page[-1].seq
                    for event in page:
                        closed.discard(event.starts or "")  # the call is tried again
                        closed.add(event.closes or "")
                    await writer.write(
                        b"".join(e.to_sse() for e in page if _has_wanted_type(e, wanted_types))
                    )
                if channel.has_ended:
                    break
                deltas = [
                    d for d in _take_deltas(seat) if d.call not in closed and not wanted_types
                ]
                await writer.write(b"".join(format_sse(delta_type(d), d) for d in deltas))
                # First the gap, then the wait: a single change is written at once, and the
                # rest of a burst is written together after the gap.
                await writer.wait_gap(channel.write_gap_s)
                await seat.wakeup.wait()
        # A broken journal gets no end event: it would tell the client that the run has ended.
        if not channel.is_broken:
            phase = (await context.server.store.get_row(run.id)).head.phase
            await writer.write(format_sse("stream.end", StreamEnd(phase=phase, seq=sent)))

    return source


def _take_deltas(seat: Subscriber) -> Iterator[Delta]:
    while seat.deltas:
        yield seat.deltas.popleft()


def _has_wanted_type(event: EncodedEvent, wanted_types: frozenset[str]) -> bool:
    return not wanted_types or event.type in wanted_types


async def _make_page(
    context: RequestContext, run: RunId, after: int, wanted_types: frozenset[str]
) -> Response:
    limit = context.query_number("limit", 100, minimum=1, maximum=EVENTS_PAGE_MAX)
    found = await context.server.events.read_after(run, after, limit)
    # The cached bytes are copied into the page as they are, without decoding them.
    items = [
        msgspec.Raw(event.body) for event in found if _has_wanted_type(event, wanted_types)
    ]
    last = found[-1].seq if found else after
    head = (await context.server.store.get_row(run)).seq
    return json_response({"items": items, "next_after": last, "more": last < head})


async def _make_ndjson(
    context: RequestContext, run: RunId, after: int, wanted_types: frozenset[str]
) -> Response:
    found: list[bytes] = []
    while page := await context.server.events.read_after(run, after):
        after = page[-1].seq
        found += [event.body + b"\n" for event in page if _has_wanted_type(event, wanted_types)]
    return Response(b"".join(found), media_type=NDJSON_MEDIA)


# ── changes of runs in a list ────────────────────────────────────────────────


async def follow_runs(context: RequestContext) -> Response:
    """Stream the changes of all runs that the caller may see.

    The events have no ids. Each connection gets the first page again, then the changes.
    """
    params = context.request.query_params
    query = RunQuery(
        phases=query_phases(params),
        agent=params.get("agent", ""),
        label=params.get("label", ""),
        owner=context.owner_filter,
        limit=50,
    )
    return SseResponse(context, _make_list_source(context, query))


def _make_list_source(context: RequestContext, query: RunQuery) -> StreamSource:
    async def source(writer: SseWriter) -> None:
        store, sees, lines = (
            context.server.store,
            context.server.views.can_see,
            context.server.run_lines,
        )
        # The watch begins before the page is read, so no change between the two is missed.
        async with store.watch() as changed:
            page = await store.list_runs(query)
            await writer.write(
                RETRY_LINE
                + format_sse("stream.snapshot", await lines.build(page.items, context.actor))
            )
            async for change in changed:
                if not change.run:  # a change of no run is a halt that was set or lifted
                    await writer.write(format_sse("halts.changed", {}))
                # Checked per change: the watch reports the runs of all users.
                elif await sees(context.actor, change.run):
                    row = await _find_row(context, change.run)
                    if row is not None and _is_in_list(row, query):
                        (changed_line,) = await lines.build([row], context.actor)
                        await writer.write(format_sse("run.changed", changed_line))
                        await writer.wait_gap(WRITE_GAP_S)

    return source


async def _find_row(context: RequestContext, run: RunId) -> RunRow | None:
    try:
        return await context.server.store.get_row(run)
    except RunNotFound:
        return None


def _is_in_list(row: RunRow, query: RunQuery) -> bool:
    """Return whether a change of this run is sent.

    The phases of the query are left out on purpose: the client must learn that a run has left
    the phase that it lists.
    """
    return (not query.agent or row.head.agent == query.agent) and (
        not query.label or query.label in row.head.labels
    )
