"""A crowd of idle connections keeps no request out, and does not fill the log."""

import socket
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from subprocess import PIPE

import anyio
import httpx2
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from midrun.server import Limits
from midrun.server.connections import Connections
from tests.support.processes import ROOT
from tests.unit.runs.stage import ControllableTools
from tests.unit.server.conftest import PATIENCE, Serve

FILES, CROWD = 200, 260
MANY_BYTES = 100_000


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[str, int, Path]]:
    """Serve in a process that may open few files; give its address, port and log."""
    log = folder / "log"
    with log.open("wb") as written, anyio.fail_after(PATIENCE):
        command = [sys.executable, "-m", "tests.unit.server.child", str(folder)]
        process = await anyio.open_process(
            ["bash", "-c", f'ulimit -n {FILES}; exec "$@"', "-", *command],
            cwd=ROOT,
            stdout=PIPE,
            stderr=written,
        )
        async with process:
            assert process.stdout is not None
            printed = BufferedByteReceiveStream(process.stdout)
            link = (await printed.receive_until(b"\n", 1000)).decode()
            url = link.partition("/#")[0]
            try:
                yield url, int(url.rpartition(":")[2]), log
            finally:
                process.kill()


async def test_idle_connections_beyond_the_descriptor_limit_keep_no_request_out(
    tmp_path: Path,
) -> None:
    """260 of them, 200 files: the next request is answered, from whatever address."""
    async with served(tmp_path) as (url, port, log):
        with ExitStack() as crowd:
            for _ in range(CROWD):
                crowd.enter_context(socket.create_connection(("127.0.0.1", port)))
            for address in ("127.0.0.1", "127.0.0.2"):
                wire = httpx2.AsyncHTTPTransport(local_address=address)
                async with httpx2.AsyncClient(transport=wire, timeout=PATIENCE) as client:
                    assert (await client.get(f"{url}/healthz")).status_code == 204
            assert log.stat().st_size < MANY_BYTES
            assert b"Traceback" not in log.read_bytes()


async def test_a_request_that_comes_with_a_burst_of_idle_connections_is_answered(
    serve: Serve, stage: ControllableTools
) -> None:
    """All of them wait in the backlog when the server looks: it shares this event loop."""
    limits = Limits(connections=64, connections_per_address=16, headers=3600)
    made = await serve(stage.agent("Done."), limits=limits)
    with ExitStack() as crowd:
        *_, last = [
            crowd.enter_context(socket.create_connection(("127.0.0.1", made.port)))
            for _ in range(CROWD)
        ]
        last.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        last.setblocking(False)  # noqa: FBT003 - the name says it
        await anyio.wait_readable(last)
        assert last.recv(99).startswith(b"HTTP/1.1 204")


async def test_a_request_under_way_is_not_closed_for_an_idle_connection(
    serve: Serve, stage: ControllableTools
) -> None:
    """Where all are busy, a new connection is closed instead."""
    limits = Limits(connections=2, connections_per_address=2, headers=3600)
    made = await serve(stage.agent("Done."), limits=limits)
    client = await made.client()
    run = await made.mid.start("actor", "Go.", actor="olga")
    await run.until("completed")
    stream = ("GET", "/v1/events")
    async with client.stream(*stream) as first, client.stream(*stream) as second:
        assert (first.status_code, second.status_code) == (200, 200)
        with pytest.raises(httpx2.TransportError):
            async with httpx2.AsyncClient(timeout=PATIENCE) as other:
                await other.get(f"http://127.0.0.1:{made.port}/healthz")


class Some:
    """A connection that notes that it was closed."""

    def __init__(self) -> None:
        self.is_closed = False

    def abort(self) -> None:
        self.is_closed = True


def test_one_address_does_not_fill_the_server() -> None:
    """Its own idle connections make room; those of others stay."""
    connections = Connections(16, 8)
    other, first, *rest = (Some() for _ in range(8))
    assert connections.admit("b")
    connections.mark_idle(other, "b")
    for one in (first, *rest):
        assert connections.admit("a")
        connections.mark_idle(one, "a")
    assert (first.is_closed, other.is_closed) == (True, False)
    assert [connections.admit("a") for _ in range(2)] == [True, False]
    assert connections.admit("c")


def test_a_whole_ipv6_network_counts_as_one_address() -> None:
    """A single machine is given that many addresses."""
    connections = Connections(16, 2)
    assert [connections.admit(f"2001:db8::{n}") for n in range(3)] == [True, True, False]
    assert connections.admit("2001:db8:0:1::1")
    assert [connections.admit(f"::ffff:192.0.2.{n}") for n in range(3)] == [True, True, True]
    connections.release("2001:db8::1")
    assert connections.admit("2001:db8::9")
