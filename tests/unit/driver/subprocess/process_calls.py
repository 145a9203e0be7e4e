"""Helpers for tests of blocking tools: fifos, process ends, and calls that wait at a gate."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Literal

import anyio

from midrun.core.values import Json
from midrun.driver.subprocess.protocol import CallFacts, FunctionOutcome, FunctionTask
from midrun.driver.subprocess.zygote_client import ProcessCall, Zygote

TOOLS_MODULE = "tests.unit.driver.subprocess.blocking_tools"
LONG_GRACE = timedelta(minutes=1)
NO_GRACE = timedelta(0)
TIMEOUT_S = 120.0  # seconds before a test that waits for a fact gives up


def make_task(
    deed: str, args: Json = None, form: Literal["tool", "hook"] = "tool", progress: Json = None
) -> FunctionTask:
    """Return the task to run a tool of `deeds`; a name with a colon is an import path."""
    call = CallFacts(key="k1", run_id="run_1", epoch=3, attempt=2, progress=progress)
    target = deed if ":" in deed else f"{TOOLS_MODULE}:{deed}"
    return FunctionTask(target=target, form=form, args=args, call=call)


async def ignore_callback(value: object) -> None:
    """Ignore a saved progress or a note."""
    del value


async def run_to_end(
    zygote: Zygote,
    task: FunctionTask,
    *,
    save: Callable[[Json], Awaitable[None]] = ignore_callback,
    note: Callable[[str], Awaitable[None]] = ignore_callback,
    grace: timedelta = NO_GRACE,
) -> FunctionOutcome:
    """Run a task to its end, and return its outcome."""
    async with zygote.run_process(task, save=save, note=note, grace=grace) as call:
        return await call.wait_for_outcome()


async def run_task(
    zygote: Zygote,
    it: FunctionTask,
    *,
    save: Callable[[Json], Awaitable[None]] = ignore_callback,
    note: Callable[[str], Awaitable[None]] = ignore_callback,
) -> FunctionOutcome:
    """Run a task to its end, for a limited time."""
    with anyio.fail_after(TIMEOUT_S):
        return await run_to_end(zygote, it, save=save, note=note)


class Fifo:
    """A named pipe at which one process waits for another."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = str(path)
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    async def read_numbers(self) -> list[int]:
        """Wait for a line of numbers, and return them."""
        with anyio.fail_after(TIMEOUT_S):
            await anyio.wait_readable(self._fd)
        return [int(word) for word in os.read(self._fd, 1000).split()]

    def let_one_through(self) -> None:
        """Let one reader continue, now or later."""
        os.write(self._fd, b"\n")

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._fd)


@asynccontextmanager
async def run_to_gate(
    zygote: Zygote, folder: Path, deed: str, grace: timedelta = LONG_GRACE, **args: Json
) -> AsyncIterator["GatedCall"]:
    """Run a tool until it waits at its gate; cancel it when the context is left."""
    middle = GatedCall(folder)

    async def run() -> None:
        it = make_task(deed, {**middle.args, **args})
        async with zygote.run_process(
            it, save=ignore_callback, note=ignore_callback, grace=grace
        ) as running:
            middle.running = running
            await running.wait_for_outcome()
            middle.ended.set()

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        middle.pids = await middle.fifo.read_numbers()
        with anyio.fail_after(TIMEOUT_S):
            yield middle
            group.cancel_scope.cancel()


class GatedCall:
    """A tool call that waits at a gate; its effect comes after the gate."""

    running: ProcessCall

    def __init__(self, folder: Path) -> None:
        self.fifo = Fifo(folder / "begun")
        self.gate = Fifo(folder / "gate")
        self.effect = folder / "effect"
        self.pids: list[int] = []
        self.ended = anyio.Event()

    async def wait_for_outcome(self) -> FunctionOutcome | None:
        """Wait until the call has ended by itself, and return its outcome."""
        await self.ended.wait()
        return self.running.final_outcome

    @property
    def args(self) -> dict[str, Json]:
        """The arguments of a tool that waits at a gate."""
        return {
            "begun": self.fifo.path,
            "gate": self.gate.path,
            "effect": str(self.effect),
        }


def process_exists(pid: int) -> bool:
    """Tell whether the process exists; a zombie does."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class ProcessEnd:
    """Waits for the end of a process that need not be a child."""

    def __init__(self, pid: int) -> None:
        self._fd = os.pidfd_open(pid)

    async def wait_for_end(self) -> None:
        """Wait until the process has ended."""
        with anyio.fail_after(TIMEOUT_S):
            await anyio.wait_readable(self._fd)
        os.close(self._fd)
