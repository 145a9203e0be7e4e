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
from midrun.core.values import TERMINAL, Phase, Value
from midrun.driver.live import Delta
from midrun.errors import RunNotFound
from midrun.ports.store import Query, RunRow
from midrun.runs.run import Run
from midrun.server.broadcast import GAP_S, Seat
from midrun.server.events import PAGE, Event, ShownEvent, delta_type, framed
from midrun.server.problem_details import Problem
from midrun.server.request_context import Visit, answer, is_number
from midrun.server.runs import phases_in
from midrun.server.sse import SSE, Source, Stream, Writer

NDJSON = "application/x-ndjson"
RETRY = b"retry: 1000\n\n"
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


async def events(context: Visit) -> Response:
    """Stream the entries of a run as SSE, or return them as NDJSON or as a page."""
    run = await context.run()
    after = _after(context)
    # An empty set means all types. With a filter, deltas are left out as well.
    wanted = frozenset(filter(None, context.request.query_params.get("types", "").split(",")))
    accept = context.request.headers.get("accept", "")
    if NDJSON in accept:
        async with context.heavy_read():
            return await _lines(context, run.id, after, wanted)
    if SSE not in accept:
        return await _page(context, run.id, after, wanted)
    row = await context.lobby.store.row(run.id)
    if row.head.phase in TERMINAL and after == row.seq:
        return Response(status_code=204)  # makes an EventSource stop reconnecting
    return Stream(context, _following(context, run, after, wanted))


def _after(context: Visit) -> int:
    """Return the seq that the caller has seen; `Last-Event-ID` overrides the query.

    A browser that reconnects repeats the URL of the first connection, with the old `after`.
    """
    after = context.number("after", 0, least=0, most=2**53 - 1)
    last = context.request.headers.get("last-event-id")
    if not last:
        return after
    if not is_number(last):
        problem = "Cannot resume the stream: Last-Event-ID must be the seq of an entry."
        raise Problem("bad_query", 400, problem)
    return int(last)


def _following(context: Visit, run: Run, after: int, wanted: frozenset[str]) -> Source:
    """Return a source that writes each entry after `after` once, with deltas between."""

    async def source(writer: Writer) -> None:
        await writer.write(RETRY)
        async with context.lobby.channels.joined(run) as (channel, seat):
            sent = after
            # Asked of the store: the channel's `last_seq` may be behind, and a client that is
            # ahead of the channel only must not be reset.
            head = (await context.lobby.store.row(run.id)).seq
            if sent > head:
                reset = StreamReset(after=sent, seq=head)
                await writer.write(framed("stream.reset", reset))
                sent = 0
            # The calls whose end this stream has written. Deltas and entries reach a stream on
            # two ways: a delta of such a call is late, and would show live text after the end.
            closed: set[str] = set()
            while True:
                while sent < channel.tip:
                    page = await context.lobby.events.after(run.id, sent)
                    sent = page[-1].seq
                    for event in page:
                        closed.discard(event.starts or "")  # the call is tried again
                        closed.add(event.closes or "")
                    await writer.write(b"".join(e.framed() for e in page if _fits(e, wanted)))
                if channel.over:
                    break
                deltas = [d for d in _taken(seat) if d.call not in closed and not wanted]
                await writer.write(b"".join(framed(delta_type(d), d) for d in deltas))
                # First the gap, then the wait: a single change is written at once, and the
                # rest of a burst is written together after the gap.
                await writer.breath(channel.gap)
                await seat.bell.wait()
        # A broken journal gets no end event: it would tell the client that the run has ended.
        if not channel.broken:
            phase = (await context.lobby.store.row(run.id)).head.phase
            await writer.write(framed("stream.end", StreamEnd(phase=phase, seq=sent)))

    return source


def _taken(seat: Seat) -> Iterator[Delta]:
    while seat.deltas:
        yield seat.deltas.popleft()


def _fits(event: Event, wanted: frozenset[str]) -> bool:
    return not wanted or event.type in wanted


async def _page(context: Visit, run: RunId, after: int, wanted: frozenset[str]) -> Response:
    limit = context.number("limit", 100, least=1, most=PAGE)
    found = await context.lobby.events.after(run, after, limit)
    # The cached bytes are copied into the page as they are, without decoding them.
    items = [msgspec.Raw(event.body) for event in found if _fits(event, wanted)]
    last = found[-1].seq if found else after
    head = (await context.lobby.store.row(run)).seq
    return answer({"items": items, "next_after": last, "more": last < head})


async def _lines(context: Visit, run: RunId, after: int, wanted: frozenset[str]) -> Response:
    found: list[bytes] = []
    while page := await context.lobby.events.after(run, after):
        after = page[-1].seq
        found += [event.body + b"\n" for event in page if _fits(event, wanted)]
    return Response(b"".join(found), media_type=NDJSON)


# ── changes of runs in a list ────────────────────────────────────────────────


async def changes(context: Visit) -> Response:
    """Stream the changes of all runs that the caller may see.

    The events have no ids. Each connection gets the first page again, then the changes.
    """
    params = context.request.query_params
    query = Query(
        phases=phases_in(params),
        agent=params.get("agent", ""),
        label=params.get("label", ""),
        owner=context.own_runs_only,
        limit=50,
    )
    return Stream(context, _watching(context, query))


def _watching(context: Visit, query: Query) -> Source:
    async def source(writer: Writer) -> None:
        store, sees, lines = context.lobby.store, context.lobby.views.sees, context.lobby.lines
        # The watch begins before the page is read, so no change between the two is missed.
        async with store.watch() as changed:
            page = await store.runs(query)
            await writer.write(
                RETRY + framed("stream.snapshot", await lines.of(page.items, context.actor))
            )
            async for change in changed:
                if not change.run:  # a change of no run is a halt that was set or lifted
                    await writer.write(framed("halts.changed", {}))
                # Checked per change: the watch reports the runs of all users.
                elif await sees(context.actor, change.run):
                    row = await _row(context, change.run)
                    if row is not None and _is_of(row, query):
                        (changed_line,) = await lines.of([row], context.actor)
                        await writer.write(framed("run.changed", changed_line))
                        await writer.breath(GAP_S)

    return source


async def _row(context: Visit, run: RunId) -> RunRow | None:
    try:
        return await context.lobby.store.row(run)
    except RunNotFound:
        return None


def _is_of(row: RunRow, query: Query) -> bool:
    """Return whether a change of this run is sent.

    The phases of the query are left out on purpose: the client must learn that a run has left
    the phase that it lists.
    """
    return (not query.agent or row.head.agent == query.agent) and (
        not query.label or query.label in row.head.labels
    )
