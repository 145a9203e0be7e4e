"""Probe of a process that makes steps: time, CPU and written bytes, and the time of a resume.

A program of this benchmark calls `StepProbe.mark` in every call of its scripted model. A step
is the time between two marks. At the last step the probe prints its report and kills the
process with SIGKILL, as a crash would. Started again with `resume`, the program prints the time
from its opening to its next model call instead.

Only the standard library is imported here: the programs of `bench.peers` run in environments
that have neither midrun nor its dependencies.
"""

import json
import os
import signal
import sys
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import Final, NoReturn

REPLY_TEXT: Final = "x" * 300
RESULT_TEXT: Final = "y" * 500


class StepProbe:
    """Measures the steps of this process. Arguments: `FOLDER STEPS [resume]`."""

    def __init__(self, folder: Path, last_step: int, *, is_resumed: bool) -> None:
        self.folder = folder
        self.last_step = last_step
        self.is_resumed = is_resumed
        self._walls_ns: list[int] = []
        self._cpus_ns: list[int] = []
        self._opened_ns = 0
        self._marked_ns = (0, 0)
        self._written_before = -1

    @classmethod
    def from_arguments(cls) -> "StepProbe":
        """Return the probe that the arguments of this process describe."""
        folder, steps, *resume = sys.argv[-3:] if sys.argv[-1] == "resume" else sys.argv[-2:]
        return cls(Path(folder), int(steps), is_resumed=bool(resume))

    def open(self) -> None:
        """Start the clock of a resume. Call it after all imports, before anything is opened."""
        self._opened_ns = perf_counter_ns()

    def mark(self) -> int:
        """Note the start of a model call, and return the number of steps before it."""
        now = (perf_counter_ns(), process_time_ns())
        if self.is_resumed:
            self.finish_resume()
        if self._written_before < 0:
            self.start_counting_bytes()
        else:
            self.add(now[0] - self._marked_ns[0], now[1] - self._marked_ns[1])
        if len(self._walls_ns) >= self.last_step:
            self.finish()
        self._marked_ns = (perf_counter_ns(), process_time_ns())
        return len(self._walls_ns)

    def start_counting_bytes(self) -> None:
        """Count the bytes that this process writes from now on."""
        self._written_before = read_written_bytes()

    def add(self, wall_ns: int, cpu_ns: int) -> None:
        """Add one step, for programs that measure it themselves."""
        self._walls_ns.append(wall_ns)
        self._cpus_ns.append(cpu_ns)

    def finish(self) -> NoReturn:
        """Print the report, and end this process as a crash would."""
        written = read_written_bytes() - self._written_before
        files = (path for path in self.folder.rglob("*") if path.is_file())
        report = {
            "wall_us": [wall / 1e3 for wall in self._walls_ns],
            "cpu_us": [cpu / 1e3 for cpu in self._cpus_ns],
            "written_bytes": written,
            "stored_bytes": sum(path.stat().st_size for path in files),
        }
        print(json.dumps(report), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("A process goes on after SIGKILL.")

    def finish_resume(self) -> NoReturn:
        """Print the time since `open`, and end this process."""
        print(
            json.dumps({"resume_ms": (perf_counter_ns() - self._opened_ns) / 1e6}), flush=True
        )
        os._exit(0)


def read_written_bytes() -> int:
    """Return the bytes that this process has passed to `write` (Linux)."""
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["wchar"])
