"""`python -m bench.peers`: measure every peer, and print one table."""

import argparse
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bench.figures import format_table
from bench.program import Steps, run_program, run_resume

ENVIRONMENTS: Final = Path(".venv-peers")
REQUIREMENTS: Final = Path(__file__).with_name("requirements")
STEPS: Final = 1000
EARLY: Final = 100
TEMPORAL_STARTS_WITHIN_S: Final = 60


class Peer(Struct, frozen=True, kw_only=True):
    """A library, or a raw limit, and the program that makes its steps."""

    name: str
    module: str
    arguments: tuple[str, ...] = ()
    environment: str = ""  # the environment of this process, if empty
    can_resume: bool = True
    has_server: bool = False

    @property
    def python(self) -> str:
        """The interpreter that runs the program."""
        return str(_bin(self.environment) / "python") if self.environment else sys.executable


RAW: Final = Peer(
    name="raw SQLite, one commit", module="bench.raw", arguments=("one",), can_resume=False
)
PROGRAMS: Final = "bench.peers.programs"
PEERS: Final = (
    RAW,
    Peer(
        name="raw SQLite, two commits", module="bench.raw", arguments=("two",), can_resume=False
    ),
    Peer(name="floor loop", module="bench.floor", can_resume=False),
    Peer(name="Midrun", module="bench.midrun_steps"),
    Peer(
        name="LangGraph, delta channel",
        environment="langgraph",
        module=f"{PROGRAMS}.langgraph_steps",
        arguments=("delta",),
    ),
    Peer(
        name="LangGraph, standard channel",
        environment="langgraph",
        module=f"{PROGRAMS}.langgraph_steps",
        arguments=("standard",),
    ),
    Peer(name="DBOS", environment="dbos", module=f"{PROGRAMS}.dbos_steps"),
    Peer(
        name="Pydantic AI, not durable",
        environment="pydantic-ai",
        module=f"{PROGRAMS}.pydantic_ai_steps",
        can_resume=False,
    ),
    Peer(
        name="OpenAI Agents, session",
        environment="openai-agents",
        module=f"{PROGRAMS}.openai_agents_steps",
    ),
    Peer(
        name="Temporal, development server",
        environment="temporal",
        module=f"{PROGRAMS}.temporal_steps",
        has_server=True,
    ),
)

HEADINGS: Final = (
    "",
    f"step {EARLY}",
    "last step",
    "CPU per step",
    "stored / written per step",
    "resume after SIGKILL",
)


def main() -> int:
    """Measure the peers, and print their table and the ones that could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("names", nargs="*", help="beginnings of names; default: all peers")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of each run")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    args = parser.parse_args()
    rows: list[Sequence[str]] = [HEADINGS]
    failures: list[str] = []
    for peer in PEERS:
        if args.names and not peer.name.lower().startswith(tuple(map(str.lower, args.names))):
            continue
        try:
            rows.append(_measure(peer, args.steps))
            sys.stderr.write(f"  {'  '.join(rows[-1][1:])}\n")
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            failures.append(f"{peer.name} could not be measured: {error}")
    print(format_table(rows, markdown=args.markdown))
    print(
        "\nSteps are ratios to a raw commit, measured right before each peer. The last step is "
        f"step {args.steps:,}. CPU of the process that makes the steps, without a server. "
        "Stored bytes include the log of the database."
    )
    print("".join(f"\n{failure}" for failure in failures))
    return 1 if failures else 0


def _measure(peer: Peer, steps: int) -> Sequence[str]:
    """Run the program of a peer, start it again, and return its row."""
    sys.stderr.write(f"{peer.name} …\n")
    if peer.environment:
        _make_environment(peer.environment)
    raw = run_program(RAW.module, *RAW.arguments, steps=steps)
    with TemporaryDirectory(prefix="midrun-bench-", dir=".") as name:
        folder = Path(name)
        with _serving(peer, folder):
            measured = run_program(
                peer.module, *peer.arguments, steps=steps, folder=folder, python=peer.python
            )
            if peer.can_resume:
                took = run_resume(
                    peer.module, *peer.arguments, steps=steps, folder=folder, python=peer.python
                )
                measured = replace(measured, resume_ms=took)
    return _format_row(peer.name, measured, raw, steps)


def _format_row(name: str, measured: Steps, raw: Steps, steps: int) -> Sequence[str]:
    early, late = (measured.step_us(n) / raw.step_us(n) for n in (EARLY, steps))
    resume = "-" if measured.resume_ms is None else f"{measured.resume_ms:,.0f} ms"
    return (
        name,
        f"{early:.1f}",
        f"{late:.1f}",
        f"{measured.step_cpu_us(EARLY) / 1e3:.2f} → {measured.step_cpu_us(steps) / 1e3:.2f} ms",
        f"{measured.stored_kib:.1f} / {measured.written_kib:.0f} KiB",
        resume,
    )


# ── environments ─────────────────────────────────────────────────────────────


def _bin(environment: str) -> Path:
    return (ENVIRONMENTS / environment / "bin").absolute()


def _make_environment(name: str) -> None:
    """Create the environment of a peer, unless it has the packages already.

    Raises:
        RuntimeError: The packages cannot be installed.
    """
    pins = REQUIREMENTS / f"{name}.txt"
    installed = ENVIRONMENTS / name / "installed.txt"
    if installed.exists() and installed.read_text() == pins.read_text():
        return
    commands = (
        [sys.executable, "-m", "venv", "--clear", str(ENVIRONMENTS / name)],
        [str(_bin(name) / "python"), "-m", "pip", "install", "--quiet", "-r", str(pins)],
    )
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own
        if done.returncode:
            reason = " ".join(done.stderr.split()[-40:])
            raise RuntimeError(f"Cannot install {pins.name}: {reason}")
    installed.write_text(pins.read_text())


@contextmanager
def _serving(peer: Peer, folder: Path) -> Iterator[None]:
    """Run the server of a peer that has one."""
    if not peer.has_server:
        yield
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(_bin(peer.environment) / "temporal"), "server", "start-dev", "--headless"]
    command += ["--port", str(port), "--log-level", "error"]
    command += ["--db-filename", str(folder / "temporal.db")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:  # noqa: S603 - our own
        try:
            _wait_for_port(port)
            os.environ["BENCH_TEMPORAL_ADDRESS"] = f"127.0.0.1:{port}"
            yield
        finally:
            server.terminate()


def _wait_for_port(port: int) -> None:
    end = time.monotonic() + TEMPORAL_STARTS_WITHIN_S
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.1)  # noqa: TID251 - another process starts
        else:
            return
    raise RuntimeError("Cannot reach the development server of Temporal: it did not start.")


if __name__ == "__main__":
    sys.exit(main())
