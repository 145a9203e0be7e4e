"""Worker processes of these tests: started, killed, frozen, asked to leave."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile

import anyio
import anyio.to_thread

from tests.support.processes import ROOT


class Worker:
    """A process of `crew.py`."""

    def __init__(self, store: str, folder: Path, *, lease_s: float, flaw: str = "") -> None:
        command = [sys.executable, "-m", "tests.scenarios.fleet.crew", store, str(folder)]
        command += [str(lease_s), flaw]
        self._words = TemporaryFile("w+")  # noqa: SIM115 - what it complains of, until it ends
        self._process = subprocess.Popen(  # noqa: S603 - our own script
            command, stdout=subprocess.PIPE, stderr=self._words, text=True, cwd=ROOT
        )

    def check(self) -> None:
        """See that it is at work: nobody but us ends it."""
        if self._process.poll() is not None:
            self._words.seek(0)
            raise RuntimeError(f"a worker has ended: {self._words.read()[-4000:]}")

    async def hear(self) -> str:
        """Wait for its next line."""
        assert self._process.stdout
        line = await anyio.to_thread.run_sync(
            self._process.stdout.readline, abandon_on_cancel=True
        )
        if not line:
            self._process.wait()
            self.check()
        return line.strip()

    async def stopped(self) -> None:
        """Wait until it stands still."""
        wait = partial(os.waitid, os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)
        await anyio.to_thread.run_sync(wait, abandon_on_cancel=True)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, and see that it stands still if that was asked."""
        os.kill(self._process.pid, number)
        if number is signal.SIGSTOP:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def end(self) -> None:
        """Kill it, and wait for it."""
        self._process.kill()
        with self._process, self._words:
            pass


@contextmanager
def workers(
    store: str, folder: Path, count: int, *, lease_s: float, flaw: str = ""
) -> Iterator[list[Worker]]:
    """Give so many workers; whoever is in the list at the end is ended."""
    crew = [Worker(store, folder, lease_s=lease_s, flaw=flaw) for _ in range(count)]
    try:
        yield crew
    finally:
        for worker in crew:
            worker.end()
