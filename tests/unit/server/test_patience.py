"""Slow requests: whoever takes too long to say what they want is not waited for."""

from contextlib import AsyncExitStack, suppress

import anyio
import httpx2
import pytest
from anyio.abc import SocketStream

from midrun.models import Use
from midrun.server import Limits
from tests.unit.runs.stage import ControllableTools
from tests.unit.server.conftest import Serve, Served
from tests.unit.server.listening import heard

BRIEF = Limits(headers=0.2)


async def hung_up(raw: SocketStream) -> bytes:
    """Wait until the server ends the connection, and return what it said until then."""
    said = b""
    try:
        while True:
            said += await raw.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return said


def head(served: Served) -> bytes:
    """Return the beginning of a request whose headers never end."""
    return f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nX-Slow: ".encode()


@pytest.mark.parametrize("part", [0, 1, 40, 1000])
async def test_headers_that_do_not_come_are_not_waited_for(
    serve: Serve, stage: ControllableTools, part: int
) -> None:
    """None at all, and any part of them: a connection costs whoever opens it nothing."""
    served = await serve(stage.agent("Done."), limits=BRIEF)
    async with await anyio.connect_tcp("127.0.0.1", served.port) as raw:
        with suppress(anyio.BrokenResourceError):  # it may have hung up by now
            await raw.send(head(served)[:part])
        assert await hung_up(raw) == b""


async def test_a_byte_now_and_then_buys_no_time(serve: Serve, stage: ControllableTools) -> None:
    """The bound is on the headers as a whole, not on the time between two bytes of them."""
    served = await serve(stage.agent("Done."), limits=BRIEF)
    async with await anyio.connect_tcp("127.0.0.1", served.port) as raw:
        more, over = head(served), False
        while not over:
            with anyio.move_on_after(BRIEF.headers / 4):
                assert await hung_up(raw) == b""
                over = True
            try:
                await raw.send(more)
                more = b"x"
            except anyio.BrokenResourceError:
                over = True


async def test_the_second_request_of_a_connection_is_bounded_too(
    serve: Serve, stage: ControllableTools
) -> None:
    """Else one good request would be the way around it."""
    served = await serve(stage.agent("Done."), limits=BRIEF)
    replied = b""
    while not replied:  # on a machine that is slow itself, the first may be too late as well
        async with await anyio.connect_tcp("127.0.0.1", served.port) as raw:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                await raw.send(head(served) + b"no\r\n\r\n")
                replied = await raw.receive()
                await raw.send(head(served))
                assert await hung_up(raw) == b""
    assert b" 204 " in replied


async def test_a_request_that_was_made_takes_as_long_as_it_takes(
    serve: Serve, stage: ControllableTools
) -> None:
    """A stream outlives the bound, and nobody else is held up by those who are slow."""
    served = await serve(stage.agent(Use("slow", name="x"), "Done."), limits=BRIEF)
    client = await served.client()
    run = await served.mid.start("actor", "Go.", actor="olga")
    await stage.start("x").wait()
    async with AsyncExitStack() as stack:
        events = None
        while events is None:  # on a machine that is slow itself, we may be too late as well
            with suppress(httpx2.TransportError):
                stream = heard(client, f"/v1/runs/{run.id}/events")
                events = await stack.enter_async_context(stream)
        while (await anext(events)).event != "call.started":
            pass
        async with await anyio.connect_tcp("127.0.0.1", served.port) as raw:
            await raw.send(head(served))
            await hung_up(raw)  # so long has the stream been open, at least
        await run.cancel(actor="olga")
        assert [event.event async for event in events][-1] == "stream.end"
