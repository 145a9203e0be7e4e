"""Limits on connections: their number, and the time to send the headers of a request."""

import socket
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path

import anyio
import httpx2
import pytest
from anyio.abc import SocketStream

from midrun.models import Use
from midrun.server import Limits
from midrun.server.connections import Connections
from midrun.testing.controllable_tools import ControllableTools
from tests.unit.server.conftest import TIMEOUT_S, RunningServer, StartServer
from tests.unit.server.server_process import start_server_process
from tests.unit.server.sse_stream import open_event_stream

OPEN_FILES_MAX, CONNECTIONS = 200, 260
LOG_MAX_BYTES = 100_000


async def test_idle_connections_beyond_the_descriptor_limit_do_not_block_requests(
    tmp_path: Path,
) -> None:
    """With 260 connections and 200 descriptors, a request from any address is answered."""
    log = tmp_path / "log"
    limited = ("bash", "-c", f'ulimit -n {OPEN_FILES_MAX}; exec "$@"', "-")
    with log.open("wb") as stderr, ExitStack() as stack:
        async with start_server_process(tmp_path, wrapper=limited, stderr=stderr) as (_, link):
            url = link.partition("/#")[0]
            port = int(url.rpartition(":")[2])
            for _connection in range(CONNECTIONS):
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            for address in ("127.0.0.1", "127.0.0.2"):
                transport = httpx2.AsyncHTTPTransport(local_address=address)
                async with httpx2.AsyncClient(transport=transport, timeout=TIMEOUT_S) as client:
                    assert (await client.get(f"{url}/healthz")).status_code == 204
            assert log.stat().st_size < LOG_MAX_BYTES
            assert b"Traceback" not in log.read_bytes()


async def test_a_request_that_comes_with_a_burst_of_idle_connections_is_answered(
    serve: StartServer, stage: ControllableTools
) -> None:
    """All of them wait in the backlog when the server accepts, as it shares this event loop."""
    limits = Limits(connections=64, connections_per_address=16, headers=3600)
    server = await serve(stage.agent("Done."), limits=limits)
    with ExitStack() as stack:
        *_, last = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            for _ in range(CONNECTIONS)
        ]
        last.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        last.setblocking(False)  # noqa: FBT003 - the argument has no name
        await anyio.wait_readable(last)
        assert last.recv(99).startswith(b"HTTP/1.1 204")


async def test_an_open_stream_is_not_closed_for_a_new_connection(
    serve: StartServer, stage: ControllableTools
) -> None:
    """If all connections are busy, the new one is closed."""
    limits = Limits(connections=2, connections_per_address=2, headers=3600)
    server = await serve(stage.agent("Done."), limits=limits)
    client = await server.client()
    run = await server.mid.start("actor", "Go.", actor="olga")
    await run.until("completed")
    stream = ("GET", "/v1/events")
    async with client.stream(*stream) as first, client.stream(*stream) as second:
        assert (first.status_code, second.status_code) == (200, 200)
        with pytest.raises(httpx2.TransportError):
            async with httpx2.AsyncClient(timeout=TIMEOUT_S) as other:
                await other.get(f"http://127.0.0.1:{server.port}/healthz")


class FakeConnection:
    """A connection that records whether it was aborted."""

    def __init__(self) -> None:
        self.is_closed = False

    def abort(self) -> None:
        self.is_closed = True


def test_one_address_cannot_use_all_connections() -> None:
    """Its own idle connections are closed for new ones; those of other addresses stay open."""
    connections = Connections(16, 8)
    other, first, *rest = (FakeConnection() for _ in range(8))
    assert connections.admit("b")
    connections.mark_idle(other, "b")
    for connection in (first, *rest):
        assert connections.admit("a")
        connections.mark_idle(connection, "a")
    assert (first.is_closed, other.is_closed) == (True, False)
    assert [connections.admit("a") for _ in range(2)] == [True, False]
    assert connections.admit("c")


def test_a_whole_ipv6_network_counts_as_one_address() -> None:
    """A single machine can have all addresses of such a network."""
    connections = Connections(16, 2)
    assert [connections.admit(f"2001:db8::{n}") for n in range(3)] == [True, True, False]
    assert connections.admit("2001:db8:0:1::1")
    assert [connections.admit(f"::ffff:192.0.2.{n}") for n in range(3)] == [True, True, True]
    connections.release("2001:db8::1")
    assert connections.admit("2001:db8::9")


# ── slow headers ─────────────────────────────────────────────────────────────


SHORT_HEADER_LIMIT = Limits(headers=0.2)


async def read_until_closed(connection: SocketStream) -> bytes:
    """Return everything that the server sends until it closes the connection."""
    received = b""
    try:
        while True:
            received += await connection.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return received


def make_unfinished_request(server: RunningServer) -> bytes:
    """Return the beginning of a request whose headers never end."""
    return f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nX-Slow: ".encode()


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, 1, 40, 1000])
async def test_a_connection_without_complete_headers_is_closed(
    serve: StartServer, stage: ControllableTools, part: int
) -> None:
    """The client has sent nothing, or some part of the headers."""
    server = await serve(stage.agent("Done."), limits=SHORT_HEADER_LIMIT)
    async with await anyio.connect_tcp("127.0.0.1", server.port) as connection:
        with suppress(anyio.BrokenResourceError):  # the server may have closed it already
            await connection.send(make_unfinished_request(server)[:part])
        assert await read_until_closed(connection) == b""


async def test_sending_headers_slowly_does_not_extend_the_time_limit(
    serve: StartServer, stage: ControllableTools
) -> None:
    """The limit is for the headers as a whole, not for the time between two bytes."""
    server = await serve(stage.agent("Done."), limits=SHORT_HEADER_LIMIT)
    async with await anyio.connect_tcp("127.0.0.1", server.port) as connection:
        data, is_closed = make_unfinished_request(server), False
        while not is_closed:
            with anyio.move_on_after(SHORT_HEADER_LIMIT.headers / 4):
                assert await read_until_closed(connection) == b""
                is_closed = True
            try:
                await connection.send(data)
                data = b"x"
            except anyio.BrokenResourceError:
                is_closed = True


async def test_the_header_limit_applies_to_the_second_request_of_a_connection(
    serve: StartServer, stage: ControllableTools
) -> None:
    server = await serve(stage.agent("Done."), limits=SHORT_HEADER_LIMIT)
    first_reply = b""
    while not first_reply:  # on a slow machine the first request may time out, too
        async with await anyio.connect_tcp("127.0.0.1", server.port) as connection:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                await connection.send(make_unfinished_request(server) + b"no\r\n\r\n")
                first_reply = await connection.receive()
                await connection.send(make_unfinished_request(server))
                assert await read_until_closed(connection) == b""
    assert b" 204 " in first_reply


async def test_an_open_stream_outlives_the_header_limit(
    serve: StartServer, stage: ControllableTools
) -> None:
    server = await serve(stage.agent(Use("slow", name="x"), "Done."), limits=SHORT_HEADER_LIMIT)
    client = await server.client()
    run = await server.mid.start("actor", "Go.", actor="olga")
    await stage.start("x").wait()
    async with AsyncExitStack() as stack:
        events = None
        while events is None:  # on a slow machine the request may time out, too
            with suppress(httpx2.TransportError):
                stream = open_event_stream(client, f"/v1/runs/{run.id}/events")
                events = await stack.enter_async_context(stream)
        while (await anext(events)).event != "call.started":
            pass
        async with await anyio.connect_tcp("127.0.0.1", server.port) as connection:
            await connection.send(make_unfinished_request(server))
            # After that, the stream has been open for longer than the limit.
            await read_until_closed(connection)
        await run.cancel(actor="olga")
        assert [event.event async for event in events][-1] == "stream.end"
