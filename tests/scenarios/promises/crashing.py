"""Processes that drive a run and are killed, or frozen, in the middle of it.

Each mode talks in lines: it prints what happened, and reads a line where it must wait.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import IO

import anyio

from midrun import Midrun
from midrun.core.ids import Micros
from midrun.ports.environment import Environment, read_wall_clock
from tests.scenarios.promises.seen import engine, true
from tests.scenarios.promises.world import World
from tests.support.processes import ROOT
from tests.support.store_choice import kept_at

HOUR = 3_600_000_000


def an_hour_later() -> Micros:
    """Tell the time by which every lease of a process that does not beat any more is over."""
    return Micros(read_wall_clock() + HOUR)


LATER = Environment(clock=an_hour_later, lease=timedelta(seconds=30))
"""The outside of a process that may take over at once what a dead or frozen one has held."""


class Talk:
    """A process that one can talk to."""

    def __init__(self, process: "subprocess.Popen[str]", to: IO[str], of: IO[str]) -> None:
        self.process = process
        self._to = to
        self._of = of

    def hear(self) -> str:
        """Wait for its next line."""
        return self._of.readline().strip()

    def go_on(self) -> None:
        """Let it go on where it waits for a line."""
        self._to.write("\n")
        self._to.flush()

    def freeze(self) -> None:
        """Stop it where it is, and see that it has stopped."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def thaw(self) -> None:
        """Let it go on as if nothing had been."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it, as a power cut would, and see that it is gone."""
        self.process.kill()
        self.process.wait()


@contextmanager
def child(*arguments: object) -> Iterator[Talk]:
    """Run this module in a process of its own, and end it."""
    command = [sys.executable, "-m", "tests.scenarios.promises.crashing", *map(str, arguments)]
    with subprocess.Popen(  # noqa: S603 - our own script
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        try:
            yield Talk(process, process.stdin, process.stdout)
        finally:
            process.kill()


# ── in the process ────────────────────────────────────────────────────────────────────────


def say(*words: object) -> None:
    """Print a line at once."""
    print(*words, flush=True)  # noqa: T201 - this is how it talks


async def pause(path: str, folder: str) -> None:
    """Pause in the middle of the first of three notes, and end."""
    world = World(Path(folder), stop_at="note:before")
    async with Midrun(kept_at(path), agents=[world.agent("notes")]) as midrun:
        run = await midrun.start("actor", "go")
        await world.reached.wait()
        await run.pause()
        world.gate.set()
        await run.until("paused")
        say(run.id)


async def drive(path: str, folder: str, script: str, stop_at: str) -> None:
    """Drive a run to the point where it stops, and be killed there."""
    world = World(Path(folder), stop_at=stop_at)
    outside = Environment(lease=timedelta(seconds=60))
    address = kept_at(path)
    async with Midrun(address, agents=[world.agent(script)], outside=outside) as midrun:
        run = await midrun.start("actor", "go")
        await world.reached.wait()
        say(run.id)
        await anyio.sleep_forever()


async def drive_until_let_go(path: str, folder: str, script: str, stop_at: str) -> None:
    """Drive a run to the point where it stops; say so once this process has let go of it."""
    world = World(Path(folder), stop_at=stop_at)
    outside = Environment(lease=timedelta(seconds=60))
    address = kept_at(path)
    async with Midrun(address, agents=[world.agent(script)], outside=outside) as midrun:
        run = await midrun.start("actor", "go")
        await world.reached.wait()
        say(run.id)
        await true(lambda: run.id not in engine(midrun)._active_runs)
        say("let go")


async def cancel(path: str, folder: str, script: str, stop_at: str) -> None:
    """Make two drafts, cancel while a third tool looks, and stop in the first undo."""
    looking, world = World(Path(folder), "look:before"), World(Path(folder), stop_at)
    outside = Environment(lease=timedelta(seconds=60))
    address = kept_at(path)
    async with Midrun(address, agents=[looking.agent(script)], outside=outside) as midrun:
        run = await midrun.start("actor", "go")
        await looking.reached.wait()
        await run.pause(now=True)
        await run.until("paused")
    async with Midrun(address, agents=[world.agent(script)], outside=outside) as midrun:
        await (await midrun.get(run.id)).cancel(undo="all")
        await world.reached.wait()
        say(run.id)
        await anyio.sleep_forever()


MODES = {
    "pause": pause,
    "drive": drive,
    "drive_until_let_go": drive_until_let_go,
    "cancel": cancel,
}


def main(mode: str, *rest: str) -> None:
    """Do what the test asked for."""
    anyio.run(MODES[mode], *rest)  # type: ignore[arg-type]  # by name


if __name__ == "__main__":
    main(*sys.argv[1:])
