"""Feeds over HTTP: the entries of one run, and the changes of all runs in a list.

The entries of a run come in three forms, chosen by `Accept`: as server-sent events that
continue with the run, as NDJSON up to now, or as one JSON page. A stream writes every entry
after `after` once, in order, with the entry's seq as its SSE id. Deltas (live text) are written
between entries and are never replayed.
"""

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import ClassVar, Final, TypeAlias

import anyio
import msgspec
from anyio.lowlevel import checkpoint
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from midrun.core.ids import RunId
from midrun.core.values import TERMINAL_PHASES
from midrun.driver.delta import Delta
from midrun.errors import RunErased, RunNotFound
from midrun.ports.store import RunQuery, RunRow, Store
from midrun.runs.run import Run
from midrun.runs.wire import RunDeleted, StreamEnd, StreamReset
from midrun.server.broadcast import WRITE_GAP_S, RunChannel, Subscriber
from midrun.server.events import (
    EVENTS_PAGE_MAX,
    EncodedEvent,
    format_sse,
    get_delta_type,
)
from midrun.server.problem_details import HttpProblem
from midrun.server.request_context import (
    RequestContext,
    is_seq_number,
    json_response,
)
from midrun.server.run_updates import DRIVEN_POLL_S, RunUpdates
from midrun.server.runs import read_phases

# Server-sent events: a response that a source writes until the stream ends.
#
# The journal is the buffer. A stream holds at most one page of events and reads the next page
# when the client has taken the first. A client that does not read for `Limits.patience` seconds
# is disconnected; it resumes by `Last-Event-ID`. No other stream waits for it.

SSE_MEDIA: Final = "text/event-stream"


class SseWriter:
    """Writes to one client; ends the stream of a client that does not read."""

    def __init__(self, send: Send, timeout_s: float, stream_scope: anyio.CancelScope) -> None:
        self._send = send
        self._timeout_s = timeout_s
        self._stream_scope = stream_scope
        self._write_lock = anyio.Lock()  # the source and the pings write from two tasks
        self.wrote_at = anyio.current_time()

    async def write(self, data: bytes) -> None:
        """Write `data` unless it is empty; wait until the client can take more.

        If the client does not read in time, the stream is cancelled, this call included.
        """
        if not data:
            return
        async with self._write_lock:
            with anyio.move_on_after(self._timeout_s) as waiting:
                await self._send(_make_body_message(data, more=True))
            if waiting.cancelled_caught:
                self._stream_scope.cancel()
                await checkpoint()  # raises the cancellation here: nothing more is written
            self.wrote_at = anyio.current_time()

    async def wait_gap(self, gap_s: float) -> None:
        """Sleep until `gap_s` seconds after the last write: a burst is then sent together."""
        await anyio.sleep(max(self.wrote_at + gap_s - anyio.current_time(), 0))


StreamSource: TypeAlias = Callable[[SseWriter], Awaitable[None]]
"""Writes the body of a stream; the stream ends when it returns."""


class SseResponse(Response):
    """A response of server-sent events that `source` writes.

    It ends when the source returns, the client disconnects, the server stops, or the caller's
    credential is no longer valid. The run is not affected.

    Raises:
        HttpProblem: 429, the caller has too many streams; unless `checks_count` is false.
    """

    checks_count: ClassVar[bool] = True

    def __init__(self, context: RequestContext, source: StreamSource) -> None:
        # Checked here and not in `__call__`: a refusal must come before the headers are sent.
        if self.checks_count:
            context.check_stream()
        # The header keeps nginx from buffering the stream.
        super().__init__(headers={"X-Accel-Buffering": "no"}, media_type=SSE_MEDIA)
        del self.headers["content-length"]  # Starlette sets it to the length of an empty body
        self._context = context
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the headers, then run the source beside the tasks that can end the stream."""
        del scope
        server, caller = self._context.server, self._context.caller
        status, headers = self.status_code, self.raw_headers
        await send({"type": "http.response.start", "status": status, "headers": headers})
        with server.allowance.count_stream(caller.key, caller.actor):
            with anyio.CancelScope() as scope_of_stream:
                writer = SseWriter(send, server.limits.patience, scope_of_stream)
                ends: list[Callable[[], Awaitable[object]]] = [
                    partial(wait_for_disconnect, receive),
                    self._context.wait_until_stopping,
                    partial(self._send_pings, writer),
                    partial(self._source, writer),
                ]
                if caller.session is not None:
                    ends.append(caller.session.ended.wait)
                await run_until_first(*ends)
        # The last chunk ends the response in order. A client that does not read must not hold
        # this task, so the write has a bound, too.
        with anyio.move_on_after(server.limits.patience):
            await send(_make_body_message(b"", more=False))

    async def _send_pings(self, writer: SseWriter) -> None:
        """Ping an idle stream; return when the caller's credential is no longer valid."""
        server = self._context.server
        # The comment line keeps proxies from closing an idle connection, and lets a client
        # notice a dead one. The credential is checked at the same interval.
        while True:
            await anyio.sleep(server.limits.ping)
            if not await self._context.caller.has_valid_credential(server):
                return
            if anyio.current_time() - writer.wrote_at >= server.limits.ping:
                await writer.write(b": ping\n\n")


def _make_body_message(data: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def run_until_first(*functions: Callable[[], Awaitable[object]]) -> None:
    """Run functions side by side; the first that returns ends the others."""
    async with anyio.create_task_group() as tasks:

        async def cancel_after(function: Callable[[], Awaitable[object]]) -> None:
            await function()
            tasks.cancel_scope.cancel()

        for function in functions:
            tasks.start_soon(cancel_after, function)


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client has closed its connection."""
    # A request body that was not read comes first, and is skipped.
    while (await receive())["type"] != "http.disconnect":
        pass


FIRST_EVENTS_MAX: Final = 300
"""The number of entries that a page gets at first; it pages back for earlier ones."""

NDJSON_MEDIA = "application/x-ndjson"
RETRY_LINE = b"retry: 1000\n\n"
"""Milliseconds that a browser waits before it reconnects."""


async def read_events(context: RequestContext) -> Response:
    """Stream the entries of a run as SSE, or return them as NDJSON or as a page."""
    run = await context.find_run()
    after = _read_requested_seq(context)
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
    updates = None
    if context.request.query_params.get("view") == "true":
        is_first = not context.request.headers.get("last-event-id")
        after = max(row.seq - FIRST_EVENTS_MAX, 0) if is_first else after
        updates = RunUpdates(context.server, run.id, context.actor, None if is_first else after)
    return SseResponse(context, RunSource(context, run, after, wanted, updates))


# How a stream resumes.
#
# The id of an event is the seq of its entry, and the journal keeps every entry. So a connection
# needs nothing from the one before it, and may reach another server: the client names the last
# id that it has got, and the stream continues after that entry. Four cases need care.
#
# - The run has ended, and the client has everything. An EventSource would reconnect for ever;
#   the status 204 stops it.
# - The client is ahead of the journal, because the store was restored from a backup. It is told
#   to forget its entries (`stream.reset`), and gets all of them again.
# - Live text and updates have no id. Text that was lost is in the entry that ends its call. An
#   update has only what has changed, so `RunUpdates` first computes the view that the client
#   had at the seq that it names.
# - The stream breaks in the middle of a page of events. `_sent` may be ahead of the client
#   then, but it ends with the stream.


def _read_requested_seq(context: RequestContext) -> int:
    """Return the seq that the caller has seen; `Last-Event-ID` overrides the query.

    A browser that reconnects repeats the URL of the first connection, with the old `after`.
    """
    after = context.read_number("after", 0, minimum=0, maximum=2**53 - 1)
    last = context.request.headers.get("last-event-id")
    if not last:
        return after
    if not is_seq_number(last):
        problem = "Cannot resume the stream: Last-Event-ID must be the seq of an entry."
        raise HttpProblem("bad_query", 400, problem)
    return int(last)


class RunSource:
    """Writes each entry of a run after `after` once, in order, with deltas between them.

    With `updates`, it also writes the run as the caller sees it, after the entries that an
    update includes. An update is never ahead of the entries, so a client can resume after the
    last update that it has received.
    """

    def __init__(
        self,
        context: RequestContext,
        run: Run,
        after: int,
        wanted_types: frozenset[str],
        updates: RunUpdates | None,
    ) -> None:
        self._server = context.server
        self._run = run
        self._sent = after  # the seq of the newest entry that was written
        self._wanted_types = wanted_types
        self._updates = updates
        # The calls whose end this stream has written. Deltas and entries reach a stream on two
        # ways: a delta of such a call is late, and would show live text after the end.
        self._closed: set[str] = set()

    async def __call__(self, writer: SseWriter) -> None:
        """Write the run until it ends."""
        await writer.write(RETRY_LINE)
        async with self._server.channels.subscribe(self._run) as (channel, subscriber):
            await self._reset_if_ahead(writer)
            while True:
                await self._write_entries(writer, channel.last_seq)
                has_all = await self._write_update(writer, channel)
                # Entries may have come while the update was made.
                if channel.has_ended and has_all and self._sent >= channel.last_seq:
                    break
                await self._write_deltas(writer, subscriber)
                # First the gap, then the wait: a single change is written at once, and the
                # rest of a burst is written together after the gap.
                await writer.wait_gap(channel.write_gap_s)
                due_s = self._updates.wait_s(self._sent) if self._updates else None
                with anyio.move_on_after(due_s):
                    await subscriber.wakeup.wait()
        # A broken journal gets no end event: it would tell the client that the run has ended.
        if not channel.is_broken:
            phase = (await self._server.store.get_row(self._run.id)).head.phase
            await writer.write(format_sse("stream.end", StreamEnd(phase=phase, seq=self._sent)))

    async def _reset_if_ahead(self, writer: SseWriter) -> None:
        # Asked of the store: the channel's `last_seq` may be behind, and a client that is ahead
        # of the channel only must not be reset.
        head = (await self._server.store.get_row(self._run.id)).seq
        if self._sent > head:
            reset = StreamReset(after=self._sent, seq=head)
            await writer.write(format_sse("stream.reset", reset))
            self._sent = 0
            if self._updates is not None:
                self._updates.forget_client()

    async def _write_entries(self, writer: SseWriter, last_seq: int) -> None:
        while self._sent < last_seq:
            page = await self._server.events.read_after(self._run.id, self._sent)
            # Set before the write. If the write fails, the stream is over; a client that
            # reconnects says itself which entry it has.
            self._sent = page[-1].seq
            for event in page:
                self._closed.discard(event.starts or "")  # the call is tried again
                self._closed.add(event.closes or "")
            await writer.write(
                b"".join(e.to_sse() for e in page if _has_wanted_type(e, self._wanted_types))
            )

    async def _write_update(self, writer: SseWriter, channel: RunChannel) -> bool:
        """Write an update if one is due; return whether all entries are in one."""
        updates = self._updates
        if updates is None or channel.is_broken:
            return True
        if updates.is_due(self._sent):
            state = await self._server.views.read_state(self._run.id)
            # The state may be newer than the channel. The entries go first, so that no update
            # is ahead of the entries that it includes.
            await self._write_entries(writer, state.seq)
            await writer.write(await updates.format_update(state))
        return updates.has_sent(self._sent)

    async def _write_deltas(self, writer: SseWriter, subscriber: Subscriber) -> None:
        wanted = not self._wanted_types
        deltas = [d for d in _take_deltas(subscriber) if d.call not in self._closed and wanted]
        await writer.write(b"".join(format_sse(get_delta_type(d), d) for d in deltas))


def _take_deltas(subscriber: Subscriber) -> Iterator[Delta]:
    while subscriber.deltas:
        yield subscriber.deltas.popleft()


def _has_wanted_type(event: EncodedEvent, wanted_types: frozenset[str]) -> bool:
    return not wanted_types or event.type in wanted_types


async def _make_page(
    context: RequestContext, run: RunId, after: int, wanted_types: frozenset[str]
) -> Response:
    limit = context.read_number("limit", 100, minimum=1, maximum=EVENTS_PAGE_MAX)
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
        phases=read_phases(params),
        agent=params.get("agent", ""),
        label=params.get("label", ""),
        limit=50,
    )
    return SseResponse(context, _make_list_source(context, context.restrict_query(query)))


def _make_list_source(context: RequestContext, query: RunQuery) -> StreamSource:
    async def source(writer: SseWriter) -> None:
        store, build_items = context.server.store, context.server.overlays.build_items
        # The watch begins before the page is read, so no change between the two is missed.
        async with anyio.create_task_group() as tasks, store.watch() as changed:
            page = await store.list_runs(query)
            await writer.write(
                RETRY_LINE
                + format_sse("stream.snapshot", await build_items(page.items, context.actor))
            )
            tasks.start_soon(_watch_workers, store, writer)
            async for change in changed:
                if not change.run:  # a change of no run is a halt that was set or lifted
                    await writer.write(format_sse("halts.changed", {}))
                    continue
                # The watch reports the runs of all users and tenants, so the query for the row
                # has the caller's visibility.
                try:
                    row = await store.get_row(change.run, context.visibility)
                except RunErased:
                    await writer.write(format_sse("run.deleted", RunDeleted(run_id=change.run)))
                    continue
                except RunNotFound:
                    continue
                if _is_in_list(row, query):
                    (item,) = await build_items([row], context.actor)
                    await writer.write(format_sse("run.changed", item))
                    await writer.wait_gap(WRITE_GAP_S)

    return source


async def _watch_workers(store: Store, writer: SseWriter) -> None:
    """Report that workers have come or gone: that changes runs without an entry."""
    known = frozenset(await store.list_holders())
    while True:
        await anyio.sleep(DRIVEN_POLL_S)
        holders = frozenset(await store.list_holders())
        if holders != known:
            known = holders
            await writer.write(format_sse("workers.changed", {}))


def _is_in_list(row: RunRow, query: RunQuery) -> bool:
    """Return whether a change of this run is sent.

    The phases of the query are left out on purpose: the client must learn that a run has left
    the phase that it lists.
    """
    return (not query.agent or row.head.agent == query.agent) and (
        not query.label or query.label in row.head.labels
    )
