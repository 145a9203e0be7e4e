"""Servers that tests talk to, and what they say that they see."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, Self

import anyio

from midrun import Agent, Midrun, Run, Tool
from midrun.core.values import Json
from midrun.mcp import mcp_tools
from midrun.models import ScriptedModel
from midrun.models.scripted import Cue, Line
from midrun.ports.environment import Environment
from midrun.ports.store import RunQuery
from tests.scenarios.promises.seen import turns
from tests.unit.runs.conftest import LEASE

SERVER = Path(__file__).with_name("server.py")
PATIENCE = 120.0


class Pipe:
    """What servers say, in lines."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._rest = ""
        self.heard: list[str] = []

    async def hear(self, start: str) -> str:
        """Wait for a line that starts like this; return what follows, and take it away."""
        with anyio.fail_after(PATIENCE):
            while True:
                for line in self.heard:
                    if line.startswith(start):
                        self.heard.remove(line)
                        return line.removeprefix(start).strip()
                await anyio.wait_readable(self._fd)
                self._rest += os.read(self._fd, 4096).decode()
                *lines, self._rest = self._rest.split("\n")
                self.heard += lines

    def close(self) -> None:
        """Let go of it."""
        os.close(self._fd)


class Process:
    """A server over HTTP, as a process of its own."""

    def __init__(self, pipe: Pipe, *options: str, port: int = 0) -> None:
        command = [sys.executable, str(SERVER), str(pipe.path), str(port), *options]
        self._process = subprocess.Popen(command)  # noqa: S603 - our own script
        self._pipe = pipe
        self.port = port

    async def url(self) -> str:
        """Wait until it listens, and return where."""
        self.port = self.port or int(await self._pipe.hear("port"))
        return f"http://127.0.0.1:{self.port}/mcp"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()


class Way(NamedTuple):
    """How a server is spoken to."""

    http: bool
    old: bool

    def __str__(self) -> str:
        return f"{'http' if self.http else 'stdio'} {'2025' if self.old else '2026'}"


WAYS: Sequence[Way] = [Way(http, old) for http in (False, True) for old in (False, True)]


def command(pipe: Pipe, *options: str) -> list[str]:
    """Return what starts the server over stdio."""
    return [sys.executable, str(SERVER), str(pipe.path), "stdio", *options]


@asynccontextmanager
async def served(pipe: Pipe, way: Way) -> AsyncIterator[list[Tool]]:
    """Give the tools of a server that is spoken to in this way."""
    options = ["old"] if way.old else []
    if not way.http:
        async with mcp_tools(command=command(pipe, *options)) as tools:
            yield tools
        return
    with Process(pipe, *options) as process:
        async with mcp_tools(url=await process.url()) as tools:
            yield tools


@asynccontextmanager
async def clerk(tools: Sequence[Tool], *lines: Line | Cue) -> AsyncIterator[Midrun]:
    """Give a `Midrun` whose agent plays `lines` with these tools; its journals are verified."""
    agent = Agent("clerk", model=ScriptedModel(lines), tools=tools)
    with anyio.fail_after(PATIENCE):
        async with Midrun(
            "memory://", agents=[agent], outside=Environment(lease=LEASE)
        ) as midrun:
            yield midrun
            for row in (await midrun.store.list_runs(RunQuery())).items:
                verdict = await midrun.verify(row.run)
                assert verdict, str(verdict)


async def results(run: Run) -> list[Json]:
    """Return what the tool calls of `run` have returned, in order."""
    return [made.result for turn in await turns(run) for made in turn.uses if made.result]
