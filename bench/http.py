"""Cost over HTTP: the round trip of a control, and a burst of entries with many watchers.

The server is a separate process with a database file; this process is the client.
"""

import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import anyio
import httpx2
from anyio.streams.buffered import BufferedByteReceiveStream

from bench.figures import Figure, print_figures
from bench.processes import TOKEN
from midrun import connect

CONTROLS = 300
WATCHERS = 50
SERVER_STEPS = 500
"""Each step writes four entries: 2,000 in total."""


def figures() -> Sequence[Figure]:
    """Measure controls, then a burst without and with watchers."""
    with TemporaryDirectory(prefix="midrun-bench-", dir=".") as folder:
        return anyio.run(_measure, f"sqlite:///{Path(folder) / 'served.db'}")


async def _measure(store: str) -> list[Figure]:
    async with serve(store, SERVER_STEPS) as url:
        return [*await _controls(url), *await measure_burst(url, WATCHERS)]


@asynccontextmanager
async def serve(store: str, steps: int) -> AsyncIterator[str]:
    """Start a server whose agent makes `steps` steps, and return its address."""
    command = [sys.executable, "-m", "bench.processes", "server", store, str(steps)]
    async with await anyio.open_process(command, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        port = await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", 10)
        try:
            yield f"http://127.0.0.1:{port.decode()}"
        finally:
            process.terminate()


async def _controls(url: str) -> list[Figure]:
    """Measure pauses and resumes, from the call to the receipt of a durable entry."""
    times: list[float] = []
    async with connect(url, token=TOKEN) as mid:
        run = await mid.start("waiter", "wait")
        async for item in run.feed():
            if item.seq is not None and getattr(item.entry, "call_kind", "") == "tool":
                break
        for n in range(CONTROLS):
            control = run.resume if n % 2 else run.pause
            started = perf_counter()
            receipt = await control()
            times.append(perf_counter() - started)
            assert receipt.phase == ("running" if n % 2 else "pausing")
        await run.cancel()
        await run.until("cancelled")
    ordered = sorted(times)
    return [
        Figure(
            name="control over HTTP, from call to receipt",
            value=median(times) * 1e3,
            unit="ms",
            at_most=10,
            detail=f"median of {CONTROLS}; 95 % within {ordered[-CONTROLS // 20] * 1e3:.1f} ms",
        )
    ]


async def measure_burst(url: str, watchers: int) -> list[Figure]:
    """Measure a burst of entries without watchers, then with many."""
    alone = await _run_burst(url, 0, [])
    received: list[tuple[list[int], int]] = []
    watched = await _run_burst(url, watchers, received)
    whole = list(range(1, max(seqs[-1] for seqs, _ in received) + 1))
    wrong = sum(seqs != whole for seqs, _ in received)
    chunks = median(count for _, count in received)
    return [
        Figure(
            name=f"of {watchers} watchers, those with a lost or repeated entry of {len(whole)}",
            value=wrong,
            unit="",
            at_most=0,
            detail=f"{len(whole) * len(received) / watched / 1e3:.0f} thousand entries/s",
        ),
        Figure(
            name="entries per chunk during a burst",
            value=len(whole) / chunks,
            unit="",
            at_least=4,
            detail="median over the watchers: writes are coalesced",
        ),
        Figure(
            name=f"a burst with {watchers} watchers, compared with none",
            value=watched / alone,
            detail=f"{alone:.2f} s alone, {watched:.2f} s until all watchers have it",
        ),
    ]


async def _run_burst(url: str, watchers: int, received: list[tuple[list[int], int]]) -> float:
    """Return the seconds until a run has ended and all watchers have all of its entries."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    limits = httpx2.Limits(max_connections=None)
    wire = httpx2.AsyncClient(base_url=url, headers=headers, limits=limits, timeout=120)
    async with connect(url, token=TOKEN) as mid, wire:
        await mid.halt("wait for the watchers", scope="agent:stepper", actor=None)
        run = await mid.start("stepper", "burst")
        await run.until("halted")
        ready = [anyio.Event() for _ in range(watchers)]
        async with anyio.create_task_group() as tasks:
            for event in ready:
                tasks.start_soon(_watch, wire, f"/v1/runs/{run.id}/events", event, received)
            for event in ready:
                await event.wait()
            started = perf_counter()
            await mid.lift(scope="agent:stepper", actor=None)
            await run.until("completed")
    return perf_counter() - started


async def _watch(
    wire: httpx2.AsyncClient,
    path: str,
    ready: anyio.Event,
    received: list[tuple[list[int], int]],
) -> None:
    """Read the events of a whole run; store their seqs and the number of chunks."""
    headers = {"Accept": "text/event-stream"}
    text, chunks = bytearray(), 0
    async with wire.stream("GET", path, headers=headers) as reply:
        async for chunk in reply.aiter_raw():
            text += chunk
            chunks += 1
            if b"event: run.halted" in chunk:
                ready.set()
    seqs = [int(line[4:]) for line in text.split(b"\n") if line.startswith(b"id: ")]
    received.append((seqs, chunks))


if __name__ == "__main__":
    sys.exit(print_figures(figures()))
