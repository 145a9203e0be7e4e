"""A client for server-sent events that keeps their raw bytes."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import httpx2
import msgspec


class SseEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event with its raw bytes."""

    id: str | None
    event: str
    data: dict[str, object] | list[dict[str, object]]
    raw: bytes


@asynccontextmanager
async def open_event_stream(
    client: httpx2.AsyncClient, path: str, *, last: int | None = None
) -> AsyncIterator[AsyncGenerator[SseEvent]]:
    """Open a stream, and give its events; comments and `retry` are skipped."""
    headers = {"Accept": "text/event-stream"}
    if last is not None:
        headers["Last-Event-ID"] = str(last)
    async with client.stream("GET", path, headers=headers) as reply:
        assert reply.status_code == 200, reply.status_code
        assert reply.headers["content-type"].startswith("text/event-stream")
        async with aclosing(_read_events(reply)) as events:
            yield events


async def _read_events(reply: httpx2.Response) -> AsyncGenerator[SseEvent]:
    buffer = b""
    # Closed in this task; the garbage collector would close it in another one.
    async with aclosing(reply.aiter_raw()) as pieces:
        async for data in pieces:
            buffer += data
            *blocks, buffer = buffer.split(b"\n\n")
            for block in blocks:
                if (event := _parse_event(block)) is not None:
                    yield event
    assert not buffer, "the stream ended within an event"


def _parse_event(block: bytes) -> SseEvent | None:
    assert b"\r" not in block, "a line must end in LF"
    fields = dict(line.split(b": ", 1) for line in block.split(b"\n"))
    if b"data" not in fields:
        return None
    return SseEvent(
        id=fields[b"id"].decode() if b"id" in fields else None,
        event=fields[b"event"].decode(),
        data=msgspec.json.decode(fields[b"data"]),
        raw=block,
    )
