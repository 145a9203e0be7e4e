"""Slow requests: whoever takes too long to say what they want is not waited for."""

import anyio
import pytest
from anyio.abc import SocketStream

from midrun.models import Use
from midrun.server import Limits
from tests.runtime.stage import Stage
from tests.server.calling import expect, start_run
from tests.server.conftest import Serve, Served
from tests.server.listening import heard

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
    serve: Serve, stage: Stage, part: int
) -> None:
    """None at all, and any part of them: a connection costs whoever opens it nothing."""
    served = await serve(stage.agent("Done."), limits=BRIEF)
    async with await anyio.connect_tcp("127.0.0.1", served.port) as raw:
        if part:
            await raw.send(head(served)[:part])
        assert await hung_up(raw) == b""


async def test_a_byte_now_and_then_buys_no_time(serve: Serve, stage: Stage) -> None:
    """The bound is on the headers as a whole, not on the time between two bytes of them."""
    served = await serve(stage.agent("Done."), limits=BRIEF)
    async with await anyio.connect_tcp("127.0.0.1", served.port) as raw:
        await raw.send(head(served))
        over = False
        while not over:
            with anyio.move_on_after(BRIEF.headers / 4):
                assert await hung_up(raw) == b""
                over = True
            try:
                await raw.send(b"x")
            except anyio.BrokenResourceError:
                over = True


async def test_the_second_request_of_a_connection_is_bounded_too(
    serve: Serve, stage: Stage
) -> None:
    """Else one good request would be the way around it."""
    served = await serve(stage.agent("Done."), limits=BRIEF)
    async with await anyio.connect_tcp("127.0.0.1", served.port) as raw:
        await raw.send(head(served) + b"no\r\n\r\n")
        assert b" 204 " in await raw.receive()
        await raw.send(head(served))
        assert await hung_up(raw) == b""


async def test_a_request_that_was_made_takes_as_long_as_it_takes(
    serve: Serve, stage: Stage
) -> None:
    """A stream outlives the bound, and nobody else is held up by those who are slow."""
    served = await serve(stage.agent(Use("slow", name="x"), "Done."), limits=BRIEF)
    client = await served.client()
    where = await start_run(client)
    await stage.start("x").wait()
    async with heard(client, f"{where}/events") as events:
        while (await anext(events)).event != "call.started":
            pass
        async with await anyio.connect_tcp("127.0.0.1", served.port) as raw:
            await raw.send(head(served))
            await hung_up(raw)  # so long has the stream been open, at least
        expect(await client.post(f"{where}/cancel", json={}), 202)
        assert [event.event async for event in events][-1] == "stream.end"
