"""Programs: start a process that makes steps, and read the report of its probe."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Final

import msgspec
from msgspec import Struct

WINDOW: Final = 100


class Resume(Struct, frozen=True):
    """The report of a program that was started again."""

    resume_ms: float


class Steps(Struct, frozen=True):
    """The report of a program, by step."""

    wall_us: list[float]
    cpu_us: list[float]
    written_bytes: int
    stored_bytes: int
    resume_ms: float | None = None

    def step_us(self, number: int) -> float:
        """Return the median time of the steps up to `number`."""
        return median(self.wall_us[max(0, number - WINDOW) : number])

    def step_cpu_us(self, number: int) -> float:
        """Return the mean CPU time of the steps up to `number`, rare work included."""
        return mean(self.cpu_us[max(0, number - 4 * WINDOW) : number])

    @property
    def written_kib(self) -> float:
        """The bytes that a step passes to `write`, in KiB."""
        return self.written_bytes / len(self.wall_us) / 1024

    @property
    def stored_kib(self) -> float:
        """The bytes that a step leaves on disk, in KiB."""
        return self.stored_bytes / len(self.wall_us) / 1024


def run_program(
    module: str,
    *arguments: str,
    steps: int,
    folder: Path | None = None,
    python: str = sys.executable,
    timeout_s: float = 600,
) -> Steps:
    """Run a program until its last step, and return its report.

    Raises:
        RuntimeError: The program has failed; the text is the end of its output.
    """
    with TemporaryDirectory(prefix="midrun-bench-", dir=".") as temporary:
        where = folder or Path(temporary)
        command = [python, "-m", module, *arguments, str(where), str(steps)]
        return msgspec.json.decode(_last_line(command, timeout_s), type=Steps)


def run_resume(
    module: str,
    *arguments: str,
    steps: int,
    folder: Path,
    python: str = sys.executable,
    timeout_s: float = 120,
) -> float:
    """Start a program again, and return the milliseconds until its next model call."""
    command = [python, "-m", module, *arguments, str(folder), str(steps), "resume"]
    return msgspec.json.decode(_last_line(command, timeout_s), type=Resume).resume_ms


def _last_line(command: Sequence[str], timeout_s: float) -> str:
    done = subprocess.run(  # noqa: S603 - our own
        command, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        ending = " ".join(done.stderr.split()[-40:]) or f"exit code {done.returncode}"
        raise RuntimeError(f"Cannot measure {command[2]}: {ending}")
    return lines[-1]
