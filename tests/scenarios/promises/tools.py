"""Tools that wait at a gate, kill their process, raise, or do not stop when cancelled.

The process of a blocking tool imports this module.
"""

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path

import anyio

from midrun import Call, Tool, tool

# ── blocking tools that wait at a gate, or are killed ─────────────────────────────────────


def start_and_wait(begun: str, gate: str) -> None:
    """Write the process id to one fifo, and wait for a line in the other."""
    Path(begun).write_text(f"{os.getpid()}\n")
    with Path(gate).open() as fifo:
        fifo.readline()


@tool
def hold(begun: str, gate: str, effect: str) -> str:
    """Wait at the gate, then have an effect."""
    start_and_wait(begun, gate)
    Path(effect).touch()
    return "held"


@tool
def crawl_pages(call: Call, begun: str, gate: str, effect: str) -> str:
    """Save progress, wait at the gate, then have an effect; with progress, return at once."""
    if call.progress is not None:
        return f"went on from page {call.progress}"
    call.save(2)  # type: ignore[unused-awaitable]  # a blocking tool does not await it
    start_and_wait(begun, gate)
    Path(effect).touch()
    return "never"


def _have_effect_and_die(effect: str) -> None:
    with Path(effect).open("a") as file:
        file.write("done\n")
    os.kill(os.getpid(), signal.SIGKILL)


@tool
def charge_and_die(effect: str) -> None:
    """Have an effect, and be killed before returning."""
    _have_effect_and_die(effect)


@tool(idempotent=True)
def fetch_and_die(effect: str) -> None:
    """Have an idempotent effect, and be killed before returning."""
    _have_effect_and_die(effect)


# ── tools that raise ──────────────────────────────────────────────────────────────────────


@tool
async def fails_async(how: str) -> str:
    """Fail in the event loop."""
    await _fail_in_loop(how)
    return "never"


async def _fail_in_loop(how: str) -> None:
    if how == "cancelled":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()  # as if a library had cancelled a task of its own
        await future
    if how == "group":
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_fail_in_loop, "error")
    _fail(how)


def _fail(how: str) -> None:
    if how == "exit":
        sys.exit("bye")  # as the `main` of a script does
    raise RuntimeError("out of paper")


@tool
def fails_blocking(how: str) -> str:
    """Fail in a process of its own."""
    _fail(how)
    return "never"


@tool(in_process=True)
def fails_thread(how: str) -> str:
    """Fail in a thread."""
    _fail(how)
    return "never"


# ── tools that do not stop at once ────────────────────────────────────────────────────────


class UnstoppableTool:
    """A tool in a thread, which no cancellation can reach; it ends when `gate` is set."""

    def __init__(self, error: Exception | None = None) -> None:
        self.started = anyio.Event()
        self.gate = threading.Event()
        self._error = error

    def build(self) -> Tool:
        """Return the tool."""

        @tool(in_process=True)
        def unstoppable() -> str:
            """Wait for the gate; then return, or raise the error of the test."""
            anyio.from_thread.run_sync(self.started.set)
            self.gate.wait()
            if self._error is not None:
                raise self._error
            return "done after all"

        return unstoppable


class SlowStopTool:
    """An async tool that, when it is cancelled, sets `stopping` and waits for `gate`."""

    def __init__(self) -> None:
        self.started = anyio.Event()
        self.stopping = anyio.Event()
        self.gate = anyio.Event()

    def build(self) -> Tool:
        """Return the tool."""

        @tool
        async def slow_stop() -> None:
            """Work until it is cancelled; then wait for the gate."""
            self.started.set()
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    self.stopping.set()
                    await self.gate.wait()

        return slow_stop
