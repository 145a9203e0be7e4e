"""MCP server processes, and a `Midrun` with their tools."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, Self

import anyio
import pytest

from midrun import Agent, Midrun, Run, Tool
from midrun.core.values import Json
from midrun.mcp import mcp_tools
from midrun.models import ScriptedModel
from midrun.models.scripted import Cue, Line
from midrun.ports.environment import Environment
from tests.support.run_journal import read_turns
from tests.unit.runs.conftest import LONG_LEASE
from tests.unit.server.conftest import verify_all_journals

SERVER = Path(__file__).with_name("server.py")
TIMEOUT_S = 120.0


class LinePipe:
    """A named pipe to which servers write lines."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._rest = ""
        self.lines: list[str] = []

    async def wait_for_line(self, start: str) -> str:
        """Wait for a line that starts like this; remove it, and return the rest of it."""
        with anyio.fail_after(TIMEOUT_S):
            while True:
                for line in self.lines:
                    if line.startswith(start):
                        self.lines.remove(line)
                        return line.removeprefix(start).strip()
                await anyio.wait_readable(self._fd)
                self._rest += os.read(self._fd, 4096).decode()
                *lines, self._rest = self._rest.split("\n")
                self.lines += lines

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._fd)


class HttpServerProcess:
    """A server over HTTP in its own process."""

    def __init__(self, pipe: LinePipe, *options: str, port: int = 0) -> None:
        command = [sys.executable, str(SERVER), str(pipe.path), str(port), *options]
        self._process = subprocess.Popen(command)  # noqa: S603 - our own script
        self._pipe = pipe
        self.port = port

    async def url(self) -> str:
        """Wait until the server listens, and return its URL."""
        self.port = self.port or int(await self._pipe.wait_for_line("port"))
        return f"http://127.0.0.1:{self.port}/mcp"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()


class ServerVariant(NamedTuple):
    """The transport and the protocol version of a server."""

    is_http: bool
    is_old: bool

    def __str__(self) -> str:
        return f"{'http' if self.is_http else 'stdio'} {'2025' if self.is_old else '2026'}"


VARIANTS: Sequence[ServerVariant] = [
    ServerVariant(is_http, is_old) for is_http in (False, True) for is_old in (False, True)
]

all_variants = pytest.mark.parametrize("variant", VARIANTS, ids=str)
current_variants = pytest.mark.parametrize(
    "variant", [variant for variant in VARIANTS if not variant.is_old], ids=str
)


def make_stdio_command(pipe: LinePipe, *options: str) -> list[str]:
    """Return the command that starts a server over stdio."""
    return [sys.executable, str(SERVER), str(pipe.path), "stdio", *options]


@asynccontextmanager
async def open_server_tools(
    pipe: LinePipe, variant: ServerVariant
) -> AsyncIterator[list[Tool]]:
    """Start a server of this variant, and give its tools."""
    options = ["old"] if variant.is_old else []
    if not variant.is_http:
        async with mcp_tools(command=make_stdio_command(pipe, *options)) as tools:
            yield tools
        return
    with HttpServerProcess(pipe, *options) as process:
        async with mcp_tools(url=await process.url()) as tools:
            yield tools


@asynccontextmanager
async def open_midrun(tools: Sequence[Tool], *lines: Line | Cue) -> AsyncIterator[Midrun]:
    """Give a `Midrun` with an agent `clerk` that follows `lines`; journals are verified."""
    agent = Agent("clerk", model=ScriptedModel(lines), tools=tools)
    with anyio.fail_after(TIMEOUT_S):
        async with Midrun(
            "memory://", agents=[agent], outside=Environment(lease=LONG_LEASE)
        ) as midrun:
            yield midrun
            await verify_all_journals(midrun)


async def read_results(run: Run) -> list[Json]:
    """Return the results of the tool calls of `run`, in order."""
    return [call.result for turn in await read_turns(run) for call in turn.uses if call.result]
