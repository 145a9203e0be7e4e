"""Many clients of one run: concurrent controls from several processes, and slow streams."""

import socket
import subprocess
import sys
from collections import defaultdict

import anyio
import httpx2
import msgspec
import pytest

from midrun.core.entries import RequestEntry
from midrun.models import Use
from midrun.server import Limits
from midrun.testing.controllable_tools import ControllableTools
from tests.support.paths import ROOT
from tests.unit.client.conftest import ConnectClient, StartServer
from tests.unit.server.conftest import make_token, serve_on_loopback
from tests.unit.server.sse_stream import open_event_stream

SLOW_CLIENTS = 200

SOCKET_BUFFER_BYTES = 4096
"""Bytes that the system buffers for a client that does not read."""


@pytest.mark.slow
async def test_requests_from_several_processes_in_any_order_are_each_applied_once(
    serve: StartServer, stage: ControllableTools
) -> None:
    """Two servers share the store. All requests under one id get the outcome of the first."""
    limits = Limits(pending=100, rate=1e6, burst=10**6)
    server = await serve(stage.agent(Use("slow", name="a"), "Done."), limits=limits)
    other = await serve(limits=limits)  # it has no agent
    run = await server.mid.start("actor", "go", actor="olga")
    await stage.start("a").wait()
    replies: dict[int, list[tuple[str, str | None, int]]] = defaultdict(list)

    async def send_controls(url: str, seed: int) -> None:
        module = [sys.executable, "-m", "tests.unit.client.control_sender"]
        command = [*module, url, make_token("olga"), run.id, str(seed)]
        process = await anyio.run_process(command, cwd=ROOT, stderr=subprocess.STDOUT)
        for line in process.stdout.splitlines():
            number, kind, name, seq = msgspec.json.decode(
                line, type=tuple[int, str, str | None, int]
            )
            replies[number].append((kind, name, seq))

    async with anyio.create_task_group() as tasks:
        for seed, url in enumerate((server.url, other.url, server.url)):
            tasks.start_soon(send_controls, url, seed)
    records = await server.mid.store.read(run.id)
    request_ids = [
        r.entry.request_id
        for r in records
        if isinstance(r.entry, RequestEntry) and r.entry.request_id
    ]
    assert sorted(request_ids) == sorted(set(request_ids)), "a request was applied twice"
    assert len(request_ids) == len(replies)
    for number, outcomes in replies.items():
        assert len(outcomes) == 6
        applied = [outcome for outcome in outcomes if outcome[:2] == ("receipt", None)]
        if applied:  # applied: one reply says so, the others are duplicates
            assert len(applied) == 1, number
            assert {outcome[2] for outcome in outcomes} == {applied[0][2]}
            assert {outcome[1] for outcome in outcomes} == {None, "duplicate_request"}
        else:  # refused, or a no-op: all replies are the same
            assert len(set(outcomes)) == 1, number


@pytest.mark.slow
async def test_two_hundred_slow_streams_do_not_delay_a_quick_one(
    serve: StartServer, connect_client: ConnectClient, stage: ControllableTools
) -> None:
    """They read nothing until the run has ended, and then all of it.

    The socket buffers are tiny, so that the server itself has to wait for each of them.
    """
    turns = [
        Use("slow", name="a"),
        *(Use("quick", name="x" * 20_000) for _ in range(6)),
        "Done.",
    ]
    server = await serve(stage.agent(*turns), limits=Limits(patience=300))
    mid = await connect_client(server)
    run = await mid.start("actor", "go")
    await stage.start("a").wait()
    path, run_ended = f"/v1/runs/{run.id}/events", anyio.Event()
    slow_streams: list[list[str | None]] = []
    started = 0

    async def read_slowly(client: httpx2.AsyncClient) -> None:
        nonlocal started
        async with open_event_stream(client, path) as events:
            event_ids = [(await anext(events)).id]
            started += 1
            if started == SLOW_CLIENTS:
                stage.gate("a").set()
            await run_ended.wait()
            event_ids += [event.id async for event in events if event.id is not None]
        slow_streams.append(event_ids)

    async with (
        serve_on_loopback(server.app, send_buffer_bytes=SOCKET_BUFFER_BYTES) as port,
        _make_client_with_small_buffers(port) as client,
        anyio.create_task_group() as tasks,
    ):
        for _ in range(SLOW_CLIENTS):
            tasks.start_soon(read_slowly, client)
        quick_stream = [str(item.seq) async for item in run.feed() if item.seq is not None]
        assert server.app.streams >= SLOW_CLIENTS, "the server waits for each of them"
        run_ended.set()
    assert quick_stream == [str(n) for n in range(1, len(quick_stream) + 1)]
    assert slow_streams == [quick_stream] * SLOW_CLIENTS


def _make_client_with_small_buffers(port: int) -> httpx2.AsyncClient:
    """Return a client of many connections that buffer next to nothing."""
    transport = httpx2.AsyncHTTPTransport(
        limits=httpx2.Limits(max_connections=None),
        socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)],
    )
    headers = {"Authorization": f"Bearer {make_token('olga')}"}
    url = f"http://127.0.0.1:{port}"
    return httpx2.AsyncClient(base_url=url, headers=headers, transport=transport, timeout=120)
