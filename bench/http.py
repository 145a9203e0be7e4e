"""What it costs over HTTP: a control's round trip, and a burst that many watch.

The server is a process of its own, on a real file; the client is this one.
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

from bench.figures import Figure
from bench.served import STEPS, TOKEN
from midrun import connect

CONTROLS = 300
WATCHERS = 50
ENTRIES = 4 * STEPS


def figures() -> Sequence[Figure]:
    """Measure controls, then a burst without and with watchers."""
    with TemporaryDirectory(prefix="midrun-bench-", dir=".") as folder:
        return anyio.run(_measured, Path(folder))


async def _measured(folder: Path) -> list[Figure]:
    async with _served(folder) as url:
        return [*await _controls(url), *await _burst(url)]


@asynccontextmanager
async def _served(folder: Path) -> AsyncIterator[str]:
    command = [sys.executable, "-m", "bench.served", str(folder)]
    async with await anyio.open_process(command, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        port = await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", 10)
        try:
            yield f"http://127.0.0.1:{port.decode()}"
        finally:
            process.terminate()


async def _controls(url: str) -> list[Figure]:
    """Measure pauses and their withdrawals, from the call to the receipt, each durable."""
    times: list[float] = []
    async with connect(url, token=TOKEN) as mid:
        run = await mid.start("stands", "stand")
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
            name="control over HTTP, from the call to its receipt",
            value=median(times) * 1e3,
            unit="ms",
            at_most=10,
            detail=f"median of {CONTROLS}; 95 % within {ordered[-CONTROLS // 20] * 1e3:.1f} ms",
        )
    ]


async def _burst(url: str) -> list[Figure]:
    """Measure a burst of entries that nobody, and then many watch."""
    alone = await _ran(url, 0, [])
    heard: list[tuple[list[int], int]] = []
    watched = await _ran(url, WATCHERS, heard)
    whole = list(range(1, max(seqs[-1] for seqs, _ in heard) + 1))
    wrong = sum(seqs != whole for seqs, _ in heard)
    pieces = median(count for _, count in heard)
    return [
        Figure(
            name=f"watchers of {WATCHERS} that missed or repeated one of {len(whole)} entries",
            value=wrong,
            unit="",
            at_most=0,
            detail=f"{len(whole) * len(heard) / watched / 1e3:.0f} thousand entries a second",
        ),
        Figure(
            name="entries that came in one piece, of a burst",
            value=len(whole) / pieces,
            unit="",
            at_least=4,
            detail="median over the watchers: writes are coalesced",
        ),
        Figure(
            name=f"a burst with {WATCHERS} watchers, against one that nobody watches",
            value=watched / alone,
            detail=f"{alone:.2f} s alone, {watched:.2f} s until the last has heard all",
        ),
    ]


async def _ran(url: str, watchers: int, heard: list[tuple[list[int], int]]) -> float:
    """Return how many seconds a run of many entries takes, until everybody has heard it."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    limits = httpx2.Limits(max_connections=None)
    wire = httpx2.AsyncClient(base_url=url, headers=headers, limits=limits, timeout=120)
    async with connect(url, token=TOKEN) as mid, wire:
        await mid.halt("wait for the watchers", scope="agent:runs", actor=None)
        run = await mid.start("runs", "burst")
        await run.until("halted")
        ready = [anyio.Event() for _ in range(watchers)]
        async with anyio.create_task_group() as tasks:
            for event in ready:
                tasks.start_soon(_watch, wire, f"/v1/runs/{run.id}/events", event, heard)
            for event in ready:
                await event.wait()
            started = perf_counter()
            await mid.lift(scope="agent:runs", actor=None)
            await run.until("completed")
    return perf_counter() - started


async def _watch(
    wire: httpx2.AsyncClient,
    path: str,
    ready: anyio.Event,
    heard: list[tuple[list[int], int]],
) -> None:
    """Hear a whole run: the seqs as they come, and in how many pieces."""
    headers = {"Accept": "text/event-stream"}
    text, pieces = bytearray(), 0
    async with wire.stream("GET", path, headers=headers) as reply:
        async for piece in reply.aiter_raw():
            text += piece
            pieces += 1
            if b"event: run.halted" in piece:
                ready.set()
    seqs = [int(line[4:]) for line in text.split(b"\n") if line.startswith(b"id: ")]
    heard.append((seqs, pieces))


if __name__ == "__main__":
    from bench.figures import table

    sys.stdout.write(table(figures()) + "\n")
