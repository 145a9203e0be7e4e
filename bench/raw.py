"""Raw SQLite, with the settings of midrun's store: the least that durability costs.

`python -m bench.raw one|two|spaced|load FOLDER STEPS`. A step is one commit of the bytes of a
step, or two commits of half of them. `spaced` computes for some time between the commits and
does not count it: the caches of the processor are then as cold as in a program that works.
`load` reads and decodes the journal that `bench.midrun_steps` left in FOLDER.
"""

import sys
from pathlib import Path
from time import perf_counter, perf_counter_ns, process_time_ns
from typing import Final

import apsw
import msgspec

from bench.probe import StepProbe

STEP_BYTES: Final = 1300
SPACE_S: Final = 0.0004
"""A durable step of midrun computes for about this long."""


class RawTable:
    """A table of lines in a file of its own; every append is one durable commit."""

    def __init__(self, path: Path) -> None:
        self._db = apsw.Connection(str(path))
        self._db.execute("PRAGMA journal_mode = WAL").fetchall()
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("CREATE TABLE lines (run TEXT, seq INTEGER, line BLOB)")
        self._seq = 0

    def commit(self, line: bytes) -> float:
        """Commit one line, and return the duration in seconds."""
        self._seq += 1
        started = perf_counter()
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute("INSERT INTO lines VALUES (?, ?, ?)", ("run", self._seq, line))
        self._db.execute("COMMIT")
        return perf_counter() - started

    def close(self) -> None:
        """Close the file."""
        self._db.close()


def measure_steps(probe: StepProbe, commits: int, space_s: float) -> None:
    """Make the steps of `probe`; compute for `space_s` before each commit."""
    table = RawTable(probe.folder / "raw.db")
    line = b"x" * (STEP_BYTES // commits)
    probe.start_counting_bytes()
    for _ in range(probe.last_step):
        wall = cpu = 0
        for _ in range(commits):
            _compute(space_s)
            started, busy = perf_counter_ns(), process_time_ns()
            table.commit(line)
            wall += perf_counter_ns() - started
            cpu += process_time_ns() - busy
        probe.add(wall, cpu)
    probe.finish()


def _compute(seconds: float) -> None:
    """Use the processor for some time, and replace the contents of its caches."""
    end = perf_counter() + seconds
    while perf_counter() < end:
        sorted(msgspec.json.decode(msgspec.json.encode({str(n): n for n in range(50)})))


def measure_load(probe: StepProbe) -> None:
    """Read the lines of a journal from a new connection, and decode them as JSON."""
    probe.open()
    db = apsw.Connection(str(probe.folder / "runs.db"))
    for (line,) in db.execute("SELECT line FROM entries ORDER BY no, seq"):
        msgspec.json.decode(line)
    probe.finish_resume()


if __name__ == "__main__":
    match sys.argv[1]:
        case "load":
            measure_load(StepProbe.from_arguments())
        case "two":
            measure_steps(StepProbe.from_arguments(), 2, 0)
        case "spaced":
            measure_steps(StepProbe.from_arguments(), 1, SPACE_S)
        case _:
            measure_steps(StepProbe.from_arguments(), 1, 0)
