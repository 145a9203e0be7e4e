"""A server in a process of its own, for tests that tell it to stop."""

import sys
from pathlib import Path

import anyio
import msgspec

from midrun import Midrun
from midrun.server import Limits, Network, serve
from tests.unit.runs.stage import ControllableTools, Use


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def _main(folder: Path, network: Network) -> None:
    agent = ControllableTools().agent(Use("read", name="for ever"), "Done.")
    mid = Midrun(f"sqlite:///{folder / 'runs.db'}", agents=[agent])
    limits = Limits(headers=3600)  # so that only a test's own facts end a connection
    await serve(mid, port=0, folder=folder / "data", network=network, limits=limits, say=_say)


if __name__ == "__main__":
    given = sys.argv[2] if sys.argv[2:] else "{}"
    network = msgspec.json.decode(given, type=Network, dec_hook=lambda _, path: Path(path))
    anyio.run(_main, Path(sys.argv[1]), network)
