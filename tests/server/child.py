"""A server in a process of its own, for tests that tell it to stop."""

import sys
from pathlib import Path

import anyio

from midrun import Midrun
from midrun.server import serve
from tests.runtime.stage import Stage, Use


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def _main(folder: Path) -> None:
    agent = Stage().agent(Use("read", name="for ever"), "Done.")
    mid = Midrun(f"sqlite:///{folder / 'runs.db'}", agents=[agent])
    await serve(mid, port=0, folder=folder / "data", say=_say)


if __name__ == "__main__":
    anyio.run(_main, Path(sys.argv[1]))
