"""Other processes on the same store, which are told and tell in lines."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.support.processes import ROOT


class Other:
    """A process that runs."""

    def __init__(self, process: Process) -> None:
        assert process.stdout is not None
        self.process = process
        self._lines = BufferedByteReceiveStream(process.stdout)

    async def tell(self, *lines: str) -> None:
        """Tell it something."""
        assert self.process.stdin is not None
        for line in lines:
            await self.process.stdin.send(f"{line}\n".encode())

    async def hear(self) -> str:
        """Return the next line that it says."""
        return (await self._lines.receive_until(b"\n", 1_000_000)).decode()


@asynccontextmanager
async def other(*arguments: object) -> AsyncIterator[Other]:
    """Give another process; it is killed at the end unless it has ended."""
    command = [sys.executable, "-m", "tests.scenarios.live.child", *map(str, arguments)]
    async with await anyio.open_process(command, cwd=ROOT, stderr=None) as process:
        try:
            yield Other(process)
        finally:
            if process.returncode is None:
                process.kill()
