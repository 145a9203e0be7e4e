"""The worker processes of a chaos run, and the search for processes that outlive them."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import anyio
import msgspec

from tests.scenarios.fleet.chaos.worker import JumpingClock, WorkerSettings
from tests.support.paths import ROOT

DRAIN_MAX_S: Final = 60
"""Seconds in which a worker must end after SIGTERM."""

ORPHANS_MAX_S: Final = 30
"""Seconds in which the processes of dead workers must end."""

_PR_SET_CHILD_SUBREAPER: Final = 36


class WorkerProcess:
    """A process of `worker.py`; its log is a file of the folder."""

    def __init__(self, name: str, settings: WorkerSettings, package: Path | None) -> None:
        self.name = name
        self.clock = JumpingClock(Path(settings.clock))
        self.log = Path(settings.folder) / f"{name}.log"
        command = [sys.executable, "-m", "tests.scenarios.fleet.chaos.worker"]
        paths = os.pathsep.join(map(str, [package, ROOT] if package else [ROOT]))
        with self.log.open("w") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own script
                [*command, msgspec.json.encode(settings).decode()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": paths},
            )

    @property
    def is_ready(self) -> bool:
        """Whether the worker drives runs."""
        return "ready\n" in self.log.read_text()

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while the process runs."""
        return self._process.poll()

    def freeze(self) -> None:
        """Stop the process, and wait until it is stopped."""
        os.kill(self._process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        """Let a frozen process go on."""
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process, and wait for its end."""
        self._process.kill()
        self._process.wait()

    async def wait_ready(self) -> None:
        """Wait until the worker, which is another process, drives runs or has ended."""
        while not self.is_ready and self.exit_code is None:  # noqa: ASYNC110 - see above
            await anyio.sleep(0.05)

    async def drain(self) -> str:
        """Send SIGTERM and wait for the end; return a problem, or "" if it left in order."""
        with anyio.move_on_after(DRAIN_MAX_S):
            await self.wait_ready()
            self._process.terminate()
            while self.exit_code is None:  # noqa: ASYNC110 - of another process
                await anyio.sleep(0.02)
        if self.exit_code is None:
            self.kill()
            return f"{self.name} did not end within {DRAIN_MAX_S} s after SIGTERM"
        if self.exit_code or "left\n" not in self.log.read_text():
            return f"{self.name} ended with {self.exit_code} after SIGTERM: {self.read_end()}"
        return ""

    def read_end(self) -> str:
        """Return the end of the log."""
        return self.log.read_text()[-3000:]


def adopt_orphans() -> None:
    """Make this process the parent of all descendants whose own parent dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def list_descendants() -> list[str]:
    """Return the Python processes below this one that are alive, with their commands."""
    return [
        f"{pid}: {command}" for pid, command in _walk(os.getpid()) if "python" in command[:200]
    ]


def _walk(pid: int) -> Iterator[tuple[int, str]]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for task in Path(f"/proc/{pid}/task").iterdir():
            if task.name != str(pid):
                children += (task / "children").read_text().split()
    except OSError:
        return
    for child in map(int, children):
        try:
            command = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            continue
        if command:  # a zombie has none
            yield child, command.decode(errors="replace")[:300]
        yield from _walk(child)


async def wait_for_orphans() -> str:
    """Wait until no process is left; return the problem, or "" if all have ended."""
    with anyio.move_on_after(ORPHANS_MAX_S):
        while list_descendants():  # noqa: ASYNC110 - of other processes
            await anyio.sleep(0.05)
    left = list_descendants()
    return f"processes outlive their workers: {left}" if left else ""
