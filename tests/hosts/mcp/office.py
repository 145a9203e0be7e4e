"""Servers that tests talk to, and what they say that they see."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

import anyio

from midrun import Agent, Tool
from midrun.models import ScriptedModel, Use

SERVER = Path(__file__).with_name("server.py")
PATIENCE = 30.0


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
        self.port = self.port if self.port else int(await self._pipe.hear("port"))
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


def clerk(tools: Sequence[Tool], *turns: str | Use) -> Agent:
    """Return an agent that plays `turns` with these tools."""
    return Agent("clerk", model=ScriptedModel(turns), tools=tools)
