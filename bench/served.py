"""`python -m bench.served FOLDER`: serve two agents: one waits, one makes steps.

It prints its port. Its token is `TOKEN`.
"""

import sys
from pathlib import Path

import anyio

from midrun import Agent, Midrun, tool
from midrun.core.transcript import Transcript
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Line
from midrun.server import Limits, app
from midrun.server.serve import UvicornServer, open_listener

TOKEN = "a-token-for-the-bench-1234"  # noqa: S105 - of a server that runs for a minute
STEPS = 500
"""Each step writes four entries: 2,000 in total."""


@tool(read_only=True)
async def wait_for_cancel() -> None:
    """Wait until cancelled."""
    await anyio.sleep_forever()


@tool
async def look(n: int) -> str:
    """Return a text as long as a search result."""
    return f"{n}" + "y" * 500


def _turn(messages: Transcript) -> Line:
    n = messages.assistant_turn_count
    return ["x" * 300, Use("look", n=n)] if n < STEPS else "Done."


async def _main(folder: Path) -> None:
    agents = [
        Agent(
            "waiter",
            model=ScriptedModel(lambda _: Use("wait_for_cancel")),
            tools=[wait_for_cancel],
        ),
        Agent("stepper", model=ScriptedModel(_turn), tools=[look]),
    ]
    mid = Midrun(f"sqlite:///{folder / 'served.db'}", agents=agents)
    made = app(mid, token=TOKEN, limits=Limits(rate=1e6, burst=10**6))
    with open_listener("127.0.0.1", 0) as listening:
        print(listening.getsockname()[1], flush=True)
        await UvicornServer(made).serve([listening])


if __name__ == "__main__":
    anyio.run(_main, Path(sys.argv[1]))
