"""Crowds: many who watch, and many who press, from several processes and servers."""

import socket
import subprocess
import sys
from collections import defaultdict

import anyio
import httpx2
import msgspec
import pytest

from midrun.core.entries import RequestEntry
from midrun.server import Limits
from tests.support.processes import ROOT
from tests.unit.client.conftest import Connected, Serve
from tests.unit.runs.stage import ControllableTools, Use
from tests.unit.server.conftest import listening, token_of
from tests.unit.server.listening import heard

SLOW = 200
ROOM = 4096
"""Bytes that the system keeps for somebody who does not read."""


@pytest.mark.slow
async def test_requests_from_several_processes_in_any_order_are_each_applied_once(
    serve: Serve, stage: ControllableTools
) -> None:
    """By two servers on one store: whoever asks under an id hears what the first one heard."""
    limits = Limits(pending=100, rate=1e6, burst=10**6)
    served = await serve(stage.agent(Use("slow", name="a"), "Done."), limits=limits)
    other = await serve(limits=limits)  # it drives nothing
    run = await served.mid.start("actor", "go", actor="olga")
    await stage.start("a").wait()
    replies: dict[int, list[tuple[str, str | None, int]]] = defaultdict(list)

    async def pressed(url: str, seed: int) -> None:
        module = [sys.executable, "-m", "tests.unit.client.presser"]
        command = [*module, url, token_of("olga"), run.id, str(seed)]
        found = await anyio.run_process(command, cwd=ROOT, stderr=subprocess.STDOUT)
        for line in found.stdout.splitlines():
            number, kind, name, seq = msgspec.json.decode(
                line, type=tuple[int, str, str | None, int]
            )
            replies[number].append((kind, name, seq))

    async with anyio.create_task_group() as tasks:
        for seed, url in enumerate((served.url, other.url, served.url)):
            tasks.start_soon(pressed, url, seed)
    records = await served.mid.store.read(run.id)
    noted = [
        r.entry.request
        for r in records
        if isinstance(r.entry, RequestEntry) and r.entry.request
    ]
    assert sorted(noted) == sorted(set(noted)), "a request was applied twice"
    assert len(noted) == len(replies)
    for number, told in replies.items():
        assert len(told) == 6
        first = [one for one in told if one[:2] == ("receipt", None)]
        if first:  # applied: one of them was told so, the others that it had been
            assert len(first) == 1, number
            assert {one[2] for one in told} == {first[0][2]}
            assert {one[1] for one in told} == {None, "duplicate_request"}
        else:  # refused, or so already: all of them were told the same
            assert len(set(told)) == 1, number


@pytest.mark.slow
async def test_two_hundred_who_are_slow_cost_nobody_anything(
    serve: Serve, connected: Connected, stage: ControllableTools
) -> None:
    """They hold still until the run is over, then hear all of it; the quick hear it live.

    The system keeps next to nothing for them, so that the server itself has to wait for each.
    """
    turns = [
        Use("slow", name="a"),
        *(Use("quick", name="x" * 20_000) for _ in range(6)),
        "Done.",
    ]
    served = await serve(stage.agent(*turns), limits=Limits(patience=300))
    mid = await connected(served)
    run = await mid.start("actor", "go")
    await stage.start("a").wait()
    path, over = f"/v1/runs/{run.id}/events", anyio.Event()
    slow: list[list[str | None]] = []
    began = 0

    async def dawdle(client: httpx2.AsyncClient) -> None:
        nonlocal began
        async with heard(client, path) as events:
            found = [(await anext(events)).id]
            began += 1
            if began == SLOW:
                stage.gate("a").set()
            await over.wait()
            found += [event.id async for event in events if event.id is not None]
        slow.append(found)

    async with (
        listening(served.app, room=ROOM) as port,
        _narrow(port) as client,
        anyio.create_task_group() as tasks,
    ):
        for _ in range(SLOW):
            tasks.start_soon(dawdle, client)
        quick = [str(item.seq) async for item in run.feed() if item.seq is not None]
        assert served.app.streams >= SLOW, "the server waits for every one of them"
        over.set()
    assert quick == [str(n) for n in range(1, len(quick) + 1)]
    assert slow == [quick] * SLOW


def _narrow(port: int) -> httpx2.AsyncClient:
    """Return a client of many connections, none of which takes more than is read."""
    transport = httpx2.AsyncHTTPTransport(
        limits=httpx2.Limits(max_connections=None),
        socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, ROOM)],
    )
    headers = {"Authorization": f"Bearer {token_of('olga')}"}
    url = f"http://127.0.0.1:{port}"
    return httpx2.AsyncClient(base_url=url, headers=headers, transport=transport, timeout=120)
