"""Follow the feed of a run over HTTP, with server-sent events.

When a connection breaks, the next one starts with the seq of the last entry received as
`Last-Event-ID`, so that no entry is missed and none comes twice. If that seq is beyond the end
of the journal (the server's store was restored from a backup), the server sends
`stream.reset`, and then the whole journal from its first entry.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator

import httpx2
import msgspec

from midrun.client.decode import decode_delta, decode_feed_entry
from midrun.client.transport import HttpTransport
from midrun.core.ids import RunId
from midrun.runs.values import FeedItem

END_EVENT = "stream.end"
RESET_EVENT = "stream.reset"
DELTA_EVENTS = frozenset({"model.delta", "call.note", "call.not_responding"})


class SseEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One server-sent event. Only events that are journal entries have an `id`."""

    name: str
    id: str
    data: str


async def follow_feed(
    transport: HttpTransport, run: RunId, after: int
) -> AsyncGenerator[FeedItem, None]:
    """Yield the entries of `run` after `after`, and live deltas, until the run has ended.

    Raises:
        RunNotFound: The server has no such run.
        ServerUnreachable: The connection broke, and the server did not answer in time.
    """
    path, last, backoff = f"/v1/runs/{run}/events", after, transport.make_backoff()
    while True:
        problem: httpx2.TransportError | None = None
        try:
            async with transport.open_stream(path, last) as reply:
                if reply is None:  # the run has ended, and `last` is its last entry
                    return
                async for event in _parse_events(reply.aiter_bytes()):
                    backoff.reset()  # the server answers: the next break starts a new wait
                    if event.name == END_EVENT:
                        return
                    if event.name == RESET_EVENT:
                        last = 0
                    elif event.name in DELTA_EVENTS:
                        yield decode_delta(msgspec.json.decode(event.data))
                    elif event.id and int(event.id) > last:  # else it was received before
                        item = decode_feed_entry(msgspec.json.decode(event.data))
                        last = item.seq
                        yield item
        except httpx2.TransportError as error:
            problem = error
        # A stream that ends without `stream.end` was cut by the server or a proxy: reconnect.
        if not await backoff.wait():
            raise transport.make_unreachable_error(
                problem or EOFError("the stream ended before the run")
            )


async def _parse_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[SseEvent]:
    """Yield each complete event. An incomplete one at the end is dropped.

    It has not moved `last`, so the next connection gets it again.
    """
    buffer = b""
    async for chunk in chunks:
        *blocks, buffer = (buffer + chunk).split(b"\n\n")
        for block in blocks:
            fields = dict(_parse_fields(block.decode()))
            if "data" in fields:
                yield SseEvent(
                    name=fields.get("event", ""), id=fields.get("id", ""), data=fields["data"]
                )


def _parse_fields(block: str) -> Iterator[tuple[str, str]]:
    for line in block.split("\n"):
        name, colon, value = line.partition(":")
        if name and colon:
            yield name, value.removeprefix(" ")
