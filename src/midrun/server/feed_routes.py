"""Feeds over HTTP: a run's entries as they come, a page of them, or all; and the list's own."""

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
"""How long a browser waits before it comes back, in milliseconds."""


class EventPage(Value, kw_only=True):
    """A page of events. `next_after` is where the next one starts, if there is more."""

    items: tuple[ShownEvent, ...]
    next_after: int
    more: bool


class StreamEnd(Value, kw_only=True):
    """The run has ended: there is nothing to come back for."""

    phase: Phase
    seq: int


class StreamReset(Value, kw_only=True):
    """The caller knew more than the journal has: it starts again from the beginning."""

    after: int
    seq: int


async def events(context: Visit) -> Response:
    """Give what happened, and what happens: as SSE, as NDJSON up to now, or as a page."""
    run = await context.run()
    after = _after(context)
    wanted = frozenset(filter(None, context.request.query_params.get("types", "").split(",")))
    accept = context.request.headers.get("accept", "")
    if NDJSON in accept:
        async with context.heavy_read():
            return await _lines(context, run.id, after, wanted)
    if SSE not in accept:
        return await _page(context, run.id, after, wanted)
    row = await context.lobby.store.row(run.id)
    if row.head.phase in TERMINAL and after == row.seq:
        return Response(status_code=204)  # tells an EventSource to stay away
    return Stream(context, _following(context, run, after, wanted))


def _after(context: Visit) -> int:
    """Return the seq that the caller has seen; `Last-Event-ID` counts before the query."""
    after = context.number("after", 0, least=0, most=2**53 - 1)
    last = context.request.headers.get("last-event-id")
    if not last:
        return after
    if not is_number(last):
        raise Problem("bad_query", 400, "Last-Event-ID is the seq of an entry")
    return int(last)


def _following(context: Visit, run: Run, after: int, wanted: frozenset[str]) -> Source:
    """Return what writes every entry after `after` once, in order, and deltas between them."""

    async def source(writer: Writer) -> None:
        await writer.write(RETRY)
        async with context.lobby.channels.joined(run) as (channel, seat):
            sent = after
            head = (await context.lobby.store.row(run.id)).seq  # the channel may be behind it
            if sent > head:
                reset = StreamReset(after=sent, seq=head)
                await writer.write(framed("stream.reset", reset))
                sent = 0
            closed: set[str] = set()
            while True:
                while sent < channel.tip:
                    page = await context.lobby.events.after(run.id, sent)
                    sent = page[-1].seq
                    for event in page:
                        closed.discard(event.starts or "")  # another attempt at it
                        closed.add(event.closes or "")
                    await writer.write(b"".join(e.framed() for e in page if _fits(e, wanted)))
                if channel.over:
                    break
                said = [d for d in _taken(seat) if d.call not in closed and not wanted]
                await writer.write(b"".join(framed(delta_type(d), d) for d in said))
                await writer.breath(channel.gap)
                await seat.bell.wait()
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


# ── the list's own ───────────────────────────────────────────────────────────


async def changes(context: Visit) -> Response:
    """Tell of every run that changes, among those the caller may see: one stream for a list.

    It has no ids: on every connection the first page comes again, and then what changes.
    """
    given = context.request.query_params
    query = Query(
        phases=phases_in(given),
        agent=given.get("agent", ""),
        label=given.get("label", ""),
        owner=context.own_runs_only,
        limit=50,
    )
    return Stream(context, _watching(context, query))


def _watching(context: Visit, query: Query) -> Source:
    async def source(writer: Writer) -> None:
        store, sees, lines = context.lobby.store, context.lobby.views.sees, context.lobby.lines
        async with store.watch() as changed:  # before the page, so that nothing is overlooked
            page = await store.runs(query)
            await writer.write(
                RETRY + framed("stream.snapshot", await lines.of(page.items, context.actor))
            )
            async for change in changed:
                if not change.run:
                    await writer.write(framed("halts.changed", {}))
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
    """Tell whether a run belongs in the list; one that leaves a phase is told of, too."""
    return (not query.agent or row.head.agent == query.agent) and (
        not query.label or query.label in row.head.labels
    )
