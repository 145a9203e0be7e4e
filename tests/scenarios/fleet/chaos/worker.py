"""A worker of the chaos run, in a process of its own.

python -m tests.scenarios.fleet.chaos.worker SETTINGS

`SETTINGS` is the JSON of `WorkerSettings`. The worker prints `ready`, drives runs until
SIGTERM, and prints `left`.
"""

import mmap
import signal
import struct
import sys
from datetime import timedelta
from pathlib import Path
from typing import Final

import anyio
import msgspec
from msgspec import Struct

from midrun import Midrun
from midrun.core.ids import Micros
from midrun.ports.environment import Clock, Environment, read_wall_clock
from midrun.workers.concurrency_limits import Fleet
from tests.scenarios.fleet.chaos.agents import make_agents

RETENTION: Final = {"label:brief": timedelta(seconds=3), "label:hold": None}
"""Each worker enforces it once, when it starts."""

FLEET: Final = Fleet(limits={"agent:clerk": 20})
"""A limit whose places must become free again when workers die."""


class WorkerSettings(Struct, kw_only=True):
    """The arguments of the process."""

    store: str
    folder: str
    clock: str  # a file with the offset of the clock, in microseconds
    lease_s: float
    version: int = 1
    has_guest: bool = False
    keys: list[bytes] = []


class JumpingClock:
    """The wall clock plus an offset that another process may change at any time."""

    SIZE: Final = 8

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(self.SIZE))
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), self.SIZE)

    def set_offset(self, offset: timedelta) -> None:
        """Let the clock jump to this distance from the wall clock."""
        self._shared[:] = struct.pack("q", offset // timedelta(microseconds=1))

    def __call__(self) -> Micros:
        """Return the time."""
        return Micros(read_wall_clock() + struct.unpack("q", self._shared[:])[0])


async def main(settings: WorkerSettings) -> None:
    """Drive runs until SIGTERM."""
    clock: Clock = JumpingClock(Path(settings.clock))
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async with Midrun(
            settings.store,
            agents=make_agents(
                settings.folder, version=settings.version, has_guest=settings.has_guest
            ),
            outside=Environment(lease=timedelta(seconds=settings.lease_s), clock=clock),
            fleet=FLEET,
            encryption_keys=settings.keys,
            retention=RETENTION,
        ):
            print("ready", flush=True)
            async for _ in signals:
                break
    print("left", flush=True)


if __name__ == "__main__":
    anyio.run(main, msgspec.json.decode(sys.argv[1], type=WorkerSettings))
