"""Worker processes that a test starts, kills, freezes and shuts down."""

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

from tests.support.paths import ROOT


class Worker:
    """A process of `worker_program.py`."""

    def __init__(self, store: str, folder: Path, *, lease_s: float, fault: str = "") -> None:
        command = [
            sys.executable,
            "-m",
            "tests.scenarios.fleet.worker_program",
            store,
            str(folder),
        ]
        command += [str(lease_s), fault]
        self._stderr = TemporaryFile("w+")  # noqa: SIM115 - closed in `end`
        self._process = subprocess.Popen(  # noqa: S603 - our own script
            command, stdout=subprocess.PIPE, stderr=self._stderr, text=True, cwd=ROOT
        )

    def check(self) -> None:
        """Raise if the process has ended by itself."""
        if self._process.poll() is not None:
            self._stderr.seek(0)
            raise RuntimeError(f"a worker process has ended: {self._stderr.read()[-4000:]}")

    async def read_line(self) -> str:
        """Wait for the next line of its output."""
        assert self._process.stdout
        line = await anyio.to_thread.run_sync(
            self._process.stdout.readline, abandon_on_cancel=True
        )
        if not line:
            self._process.wait()
            self.check()
        return line.strip()

    async def wait_stopped(self) -> None:
        """Wait until the process is stopped by SIGSTOP."""
        wait = partial(os.waitid, os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)
        await anyio.to_thread.run_sync(wait, abandon_on_cancel=True)

    def send(self, number: signal.Signals) -> None:
        """Send a signal; after SIGSTOP, wait until the process is stopped."""
        os.kill(self._process.pid, number)
        if number is signal.SIGSTOP:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def end(self) -> None:
        """Kill the process, and wait for its end."""
        self._process.kill()
        with self._process, self._stderr:
            pass


@contextmanager
def start_workers(
    store: str, folder: Path, count: int, *, lease_s: float, fault: str = ""
) -> Iterator[list[Worker]]:
    """Start `count` workers; end all workers that are in the list when the context is left."""
    started = [Worker(store, folder, lease_s=lease_s, fault=fault) for _ in range(count)]
    try:
        yield started
    finally:
        for worker in started:
            worker.end()
