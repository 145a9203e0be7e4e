"""Fixtures for the tests of crashes: a store whose journals are verified, child processes."""

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

from tests.support.paths import ROOT
from tests.unit.runs.conftest import verify_journals

T = TypeVar("T")

TIMEOUT_S = 240
"""Seconds after which a test fails. Some tests start about thirty processes in sequence."""


@pytest.fixture
async def path(store_path: Path) -> AsyncIterator[Path]:
    """Return the path of the test's store; afterwards verify all its journals."""
    with anyio.fail_after(TIMEOUT_S):
        yield store_path
        await verify_journals(store_path)


class ChildProcess:
    """A process of `child.py`."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.pid = process.pid

    async def read_line(self) -> str:
        """Wait for the next line."""
        assert self._process.stdout
        return (await wait_in_thread(self._process.stdout.readline)).strip()

    async def read_all_lines(self) -> list[str]:
        """Wait for the end of the process and return all lines."""
        assert self._process.stdout
        return (await wait_in_thread(self._process.stdout.read)).splitlines()

    async def wait(self) -> int:
        """Wait for the end of the process and return its exit code."""
        return await wait_in_thread(self._process.wait)

    def freeze(self) -> None:
        """Stop all threads of the process and wait until they have stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        """Let a frozen process continue."""
        os.kill(self.pid, signal.SIGCONT)

    def terminate(self) -> None:
        """Send SIGTERM."""
        os.kill(self.pid, signal.SIGTERM)

    def interrupt(self) -> None:
        """Send SIGINT, as Ctrl-C does."""
        os.kill(self.pid, signal.SIGINT)


async def wait_in_thread(wait: Callable[[], T]) -> T:
    """Call a blocking function in a thread; the timeout of the test can cancel it."""
    return await anyio.to_thread.run_sync(wait, abandon_on_cancel=True)


@contextmanager
def start_child(*arguments: object) -> Iterator[ChildProcess]:
    """Run `child.py`; kill it at the end of the block."""
    command = [sys.executable, "-m", "tests.crash.child", *map(str, arguments)]
    with subprocess.Popen(  # noqa: S603 - our own script
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            yield ChildProcess(process)
        finally:
            process.kill()
