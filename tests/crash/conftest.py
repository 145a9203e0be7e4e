"""What tests of crashes share: a file of runs that is verified in the end, other processes."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread
import pytest

from tests.support.processes import ROOT
from tests.unit.runs.conftest import verify_all

T = TypeVar("T")

PATIENCE = 240
"""Seconds after which something that should have happened counts as never happening.

Some of these tests start a process for each write of a run: some thirty, one after the other.
"""


@pytest.fixture
async def path(kept: Path) -> AsyncIterator[Path]:
    """Give the path of the test's store; afterwards every journal in it is verified."""
    with anyio.fail_after(PATIENCE):
        yield kept
        await verify_all(kept)


class Process:
    """A process of `child.py`."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.pid = process.pid

    async def hear(self) -> str:
        """Wait for its next line."""
        assert self._process.stdout
        return (await _aside(self._process.stdout.readline)).strip()

    async def hear_all(self) -> list[str]:
        """Wait for its end, and return every line."""
        assert self._process.stdout
        return (await _aside(self._process.stdout.read)).splitlines()

    async def end(self) -> int:
        """Wait for its end, and return its exit code."""
        return await _aside(self._process.wait)

    def freeze(self) -> None:
        """Stop all its threads where they are, and see that they are."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        """Let it go on as if nothing had happened."""
        os.kill(self.pid, signal.SIGCONT)

    def terminate(self) -> None:
        """Ask it to leave."""
        os.kill(self.pid, signal.SIGTERM)

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        os.kill(self.pid, signal.SIGINT)


async def _aside(wait: Callable[[], T]) -> T:
    """Wait in a thread, for no longer than the test does."""
    return await anyio.to_thread.run_sync(wait, abandon_on_cancel=True)


@contextmanager
def child(*arguments: object) -> Iterator[Process]:
    """Run `child.py`, and end it."""
    command = [sys.executable, "-m", "tests.crash.child", *map(str, arguments)]
    with subprocess.Popen(  # noqa: S603 - our own script
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            yield Process(process)
        finally:
            process.kill()
