"""A server in its own process, for tests that send it signals or limit its resources.

`python -m tests.unit.server.server_process FOLDER [NETWORK]` serves; NETWORK is JSON.
"""

import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

import anyio
import msgspec
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from midrun import Midrun
from midrun.models import Use
from midrun.server import Limits, Network, serve
from midrun.testing.controllable_tools import ControllableTools
from tests.support.paths import ROOT
from tests.unit.server.conftest import TIMEOUT_S


@asynccontextmanager
async def start_server_process(
    folder: Path,
    *,
    wrapper: Sequence[str] = (),
    stderr: int | IO[bytes] = subprocess.DEVNULL,
    network: Mapping[str, object] | None = None,
) -> AsyncIterator[tuple[Process, str]]:
    """Give a server process and the link that it prints; `wrapper` starts its command."""
    module = [sys.executable, "-m", "tests.unit.server.server_process"]
    command = [*wrapper, *module, str(folder), msgspec.json.encode(network or {}).decode()]
    with anyio.fail_after(TIMEOUT_S):
        process = await anyio.open_process(command, cwd=ROOT, stderr=stderr)
        async with process:
            assert process.stdout is not None
            printed = BufferedByteReceiveStream(process.stdout)
            try:
                yield process, (await printed.receive_until(b"\n", 1000)).decode().strip()
            finally:
                if process.returncode is None:
                    process.kill()


def _print_line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def _main(folder: Path, network: Network) -> None:
    agent = ControllableTools().agent(Use("read", name="for ever"), "Done.")
    mid = Midrun(f"sqlite:///{folder / 'runs.db'}", agents=[agent])
    limits = Limits(headers=3600)  # no connection ends by a timeout
    await serve(
        mid, port=0, folder=folder / "data", network=network, limits=limits, say=_print_line
    )


if __name__ == "__main__":
    network_json = sys.argv[2] if sys.argv[2:] else "{}"
    network = msgspec.json.decode(
        network_json, type=Network, dec_hook=lambda _, path: Path(path)
    )
    anyio.run(_main, Path(sys.argv[1]), network)
