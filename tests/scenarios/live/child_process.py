"""Child processes on the same store; the test and the child exchange lines."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.support.paths import ROOT


class ChildProcess:
    """A running child process."""

    def __init__(self, process: Process) -> None:
        assert process.stdout is not None
        self.process = process
        self._lines = BufferedByteReceiveStream(process.stdout)

    async def send_lines(self, *lines: str) -> None:
        """Write lines to its standard input."""
        assert self.process.stdin is not None
        for line in lines:
            await self.process.stdin.send(f"{line}\n".encode())

    async def read_line(self) -> str:
        """Return the next line of its standard output."""
        return (await self._lines.receive_until(b"\n", 1_000_000)).decode()


@asynccontextmanager
async def start_child(*arguments: object) -> AsyncIterator[ChildProcess]:
    """Start a child process; it is killed at the end unless it has ended."""
    command = [sys.executable, "-m", "tests.scenarios.live.child_main", *map(str, arguments)]
    async with await anyio.open_process(command, cwd=ROOT, stderr=None) as process:
        try:
            yield ChildProcess(process)
        finally:
            if process.returncode is None:
                process.kill()
