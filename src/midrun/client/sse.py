"""Following a run over HTTP: its feed, over any number of connections.

A connection that breaks off is made again with the seq of the last entry as `Last-Event-ID`:
no entry is missed, and none comes twice. Whoever knew more than the journal has (its store was
restored from a backup, say) is given all of it from its beginning, as it is now.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator

import httpx2
import msgspec

from midrun.client.decode import delta, happened
from midrun.client.transport import Link
from midrun.core.ids import RunId
from midrun.runs.values import FeedItem

END = "stream.end"
RESET = "stream.reset"
DELTAS = frozenset({"model.delta", "call.note", "call.not_responding"})


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream. One without an `id` is not an entry."""

    name: str
    id: str
    data: str


async def follow(link: Link, run: RunId, after: int) -> AsyncGenerator[FeedItem, None]:
    """Yield what happens to `run` after `after`, until it has ended.

    Raises:
        RunNotFound: no such run.
        ServerUnreachable: the server went away, and did not come back in time.
    """
    path, last, away = f"/v1/runs/{run}/events", after, link.away()
    while True:
        problem: httpx2.TransportError | None = None
        try:
            async with link.stream(path, last) as reply:
                if reply is None:
                    return
                async for event in _events(reply.aiter_bytes()):
                    away.back()
                    if event.name == END:
                        return
                    if event.name == RESET:
                        last = 0
                    elif event.name in DELTAS:
                        yield delta(msgspec.json.decode(event.data))
                    elif event.id and int(event.id) > last:
                        item = happened(msgspec.json.decode(event.data))
                        last = item.seq
                        yield item
        except httpx2.TransportError as error:
            problem = error
        if not await away.waited():
            raise link.unreachable(problem or EOFError("the stream ended before the run"))


async def _events(chunks: AsyncIterator[bytes]) -> AsyncIterator[Event]:
    """Yield events as they are complete; what was cut off within one comes again."""
    buffer = b""
    async for chunk in chunks:
        *blocks, buffer = (buffer + chunk).split(b"\n\n")
        for block in blocks:
            fields = dict(_fields(block.decode()))
            if "data" in fields:
                yield Event(
                    name=fields.get("event", ""), id=fields.get("id", ""), data=fields["data"]
                )


def _fields(block: str) -> Iterator[tuple[str, str]]:
    for line in block.split("\n"):
        name, colon, value = line.partition(":")
        if name and colon:
            yield name, value.removeprefix(" ")
