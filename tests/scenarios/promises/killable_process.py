"""Worker processes that a test kills or freezes at a known point of a call.

Each effect of their agent is a line of a file, which the test reads afterwards. A process
prints a line when it has reached its point.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import IO

import anyio

from midrun import NOT_DONE, Agent, Call, Midrun, Tool, tool
from midrun.core.ids import Micros
from midrun.models import ScriptedModel, Use
from midrun.ports.environment import Environment, read_wall_clock
from tests.support.paths import ROOT
from tests.support.run_journal import get_worker, yield_until
from tests.support.store_choice import get_store_url

HOUR_MICROS = 3_600_000_000


def read_clock_one_hour_ahead() -> Micros:
    """Return a time at which the leases of all other processes have ended."""
    return Micros(read_wall_clock() + HOUR_MICROS)


ONE_HOUR_AHEAD = Environment(clock=read_clock_one_hour_ahead, lease=timedelta(seconds=30))
"""A worker in this environment takes over the runs of a dead or frozen process at once."""


# ── the agent ─────────────────────────────────────────────────────────────────────────────

SCRIPTS: dict[str, Sequence[str | Use | list[str | Use]]] = {
    "notes": [Use("note", name="1"), Use("note", name="2"), Use("note", name="3"), "Noted."],
    "look": [Use("charge", name="a"), Use("look", name="b"), "Looked."],
    "charge": [Use("charge", name="a"), "Charged."],
    "fetch": [Use("fetch", name="a"), "Fetched."],
    "checked": [Use("checked", name="a"), "Checked."],
    "book": [Use("book", name="a"), "Booked."],
    "drafts": [Use("draft", name="1"), Use("draft", name="2"), Use("look", name="x"), "No."],
}


class EffectsFile:
    """The file of all effects, and agents whose tools write to it.

    With `stop_at` (for example `look:before`), a tool sets `reached` at that point and waits
    for `gate`.
    """

    def __init__(self, folder: Path, stop_at: str = "") -> None:
        self.reached = anyio.Event()
        self.gate = anyio.Event()
        self._file = folder / "effects.txt"
        self._stop_at = stop_at

    def read_effects(self) -> list[str]:
        """Return the tool and the name of each effect."""
        return [" ".join(line.split()[:2]) for line in self._read_lines()]

    def read_keys(self) -> list[str]:
        """Return the key of each effect."""
        return [line.split()[2] for line in self._read_lines()]

    def _read_lines(self) -> list[str]:
        return self._file.read_text().splitlines() if self._file.exists() else []

    async def add_effect(self, kind: str, name: str, call: Call) -> None:
        """Write an effect; stop before or after it if the test wants that."""
        await self._reach(f"{kind}:before")
        with self._file.open("a") as file:
            file.write(f"{kind} {name} {call.key} {call.attempt}\n")
        await self._reach(f"{kind}:after")

    async def _reach(self, point: str) -> None:
        if point == self._stop_at:
            self.reached.set()
            await self.gate.wait()

    def agent(self, script: str) -> Agent:
        """Return the agent that plays a script; every process gets the same."""
        return Agent("actor", model=ScriptedModel(SCRIPTS[script]), tools=self._tools())

    def _tools(self) -> list[Tool]:
        async def discard(call: Call, args: dict[str, str], result: object) -> None:
            del result
            await self.add_effect("discard", args["name"], call)

        async def find(call: Call, args: dict[str, str]) -> object:
            """Look for the effect of the call by its key."""
            return f"found {args['name']}" if call.key in self.read_keys() else NOT_DONE

        @tool
        async def note(call: Call, name: str) -> str:
            """Have an effect; no trait is declared."""
            await self.add_effect("note", name, call)
            return f"noted {name}"

        @tool
        async def charge(call: Call, name: str) -> str:
            """Have an effect that must not happen twice."""
            await self.add_effect("charge", name, call)
            return f"charged {name}"

        @tool(idempotent=True)
        async def fetch(call: Call, name: str) -> str:
            """Have an effect that the remote service recognises by its key."""
            await self.add_effect("fetch", name, call)
            return f"fetched {name}"

        @tool(read_only=True)
        async def look(call: Call, name: str) -> str:
            """Read only."""
            await self.add_effect("look", name, call)
            return f"saw {name}"

        @tool(check=find)
        async def checked(call: Call, name: str) -> str:
            """Have an effect that a check can find."""
            await self.add_effect("checked", name, call)
            return f"did {name}"

        @tool(undo=discard)
        async def draft(call: Call, name: str) -> str:
            """Have an effect that can be undone."""
            await self.add_effect("draft", name, call)
            return f"drafted {name}"

        @tool(idempotent=True, undo=discard)
        async def book(call: Call, name: str) -> str:
            """Have an idempotent effect that can be undone."""
            await self.add_effect("book", name, call)
            return f"booked {name}"

        return [note, charge, fetch, look, checked, draft, book]


# ── the process, as the test sees it ──────────────────────────────────────────────────────


class KillableProcess:
    """A process that drives a run, with its output."""

    def __init__(self, process: "subprocess.Popen[str]", output: IO[str]) -> None:
        self.process = process
        self._output = output

    def read_line(self) -> str:
        """Wait for its next line."""
        return self._output.readline().strip()

    def freeze(self) -> None:
        """Stop the process, and wait until it has stopped."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def thaw(self) -> None:
        """Continue the frozen process."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process, and wait until it has ended."""
        self.process.kill()
        self.process.wait()


@contextmanager
def start_process(*arguments: object) -> Iterator[KillableProcess]:
    """Run this module in a process, and kill it at the end."""
    command = [sys.executable, "-m", "tests.scenarios.promises.killable_process"]
    with subprocess.Popen(  # noqa: S603 - our own script
        [*command, *map(str, arguments)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        try:
            yield KillableProcess(process, process.stdout)
        finally:
            process.kill()


# ── code that runs in the process ─────────────────────────────────────────────────────────


def print_line(line: str) -> None:
    """Print a line without buffering."""
    print(line, flush=True)  # noqa: T201 - the test reads it


async def pause(path: str, folder: str) -> None:
    """Pause the run during the first of three notes, and exit."""
    effects = EffectsFile(Path(folder), stop_at="note:before")
    async with Midrun(get_store_url(path), agents=[effects.agent("notes")]) as midrun:
        run = await midrun.start("actor", "go")
        await effects.reached.wait()
        await run.pause()
        effects.gate.set()
        await run.until("paused")
        print_line(run.id)


async def drive(path: str, folder: str, script: str, stop_at: str) -> None:
    """Drive a run to `stop_at`, and wait to be killed."""
    effects = EffectsFile(Path(folder), stop_at=stop_at)
    outside = Environment(lease=timedelta(seconds=60))
    address = get_store_url(path)
    async with Midrun(address, agents=[effects.agent(script)], outside=outside) as midrun:
        run = await midrun.start("actor", "go")
        await effects.reached.wait()
        print_line(run.id)
        await anyio.sleep_forever()


async def drive_until_released(path: str, folder: str, script: str, stop_at: str) -> None:
    """Drive a run to `stop_at`; print a second line when the worker has dropped the run."""
    effects = EffectsFile(Path(folder), stop_at=stop_at)
    outside = Environment(lease=timedelta(seconds=60))
    address = get_store_url(path)
    async with Midrun(address, agents=[effects.agent(script)], outside=outside) as midrun:
        run = await midrun.start("actor", "go")
        await effects.reached.wait()
        print_line(run.id)
        await yield_until(lambda: run.id not in get_worker(midrun)._active_runs)
        print_line("released")


async def cancel(path: str, folder: str, script: str, stop_at: str) -> None:
    """Pause the run during `look`, cancel it, and stop in the first undo."""
    paused = EffectsFile(Path(folder), "look:before")
    effects = EffectsFile(Path(folder), stop_at)
    outside = Environment(lease=timedelta(seconds=60))
    address = get_store_url(path)
    async with Midrun(address, agents=[paused.agent(script)], outside=outside) as midrun:
        run = await midrun.start("actor", "go")
        await paused.reached.wait()
        await run.pause(now=True)
        await run.until("paused")
    async with Midrun(address, agents=[effects.agent(script)], outside=outside) as midrun:
        await (await midrun.get(run.id)).cancel(undo="all")
        await effects.reached.wait()
        print_line(run.id)
        await anyio.sleep_forever()


COMMANDS = {
    "pause": pause,
    "drive": drive,
    "drive_until_released": drive_until_released,
    "cancel": cancel,
}


def main(name: str, *arguments: str) -> None:
    """Execute a command by its name."""
    anyio.run(COMMANDS[name], *arguments)  # type: ignore[arg-type]  # by name


if __name__ == "__main__":
    main(*sys.argv[1:])
