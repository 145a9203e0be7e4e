"""A server in its own process with a completed, a running and a waiting run, to be fuzzed.

It prints its port and then the ids of its runs.
"""

import sys
from pathlib import Path

import anyio

from midrun import Agent, Midrun, ask_human
from midrun.models import ScriptedModel, Use
from midrun.server import Limits, app
from midrun.testing.controllable_tools import ControllableTools
from tests.unit.server.conftest import make_token, serve_on_loopback

LIMITS = Limits(rate=1e6, burst=10**6, wait=0.2, streams=10**4, failures=10**6)


async def _main(folder: Path) -> None:
    stage = ControllableTools()
    model = ScriptedModel([Use("ask_human", question="Which?"), "Done."])
    agents = [
        stage.agent("Done."),
        stage.agent(Use("read", name="for ever"), "Done.", name="waits"),
        Agent("asks", model=model, tools=[ask_human]),
    ]
    async with Midrun(f"sqlite:///{folder / 'runs.db'}", agents=agents) as mid:
        asgi_app = app(mid, token=make_token("olga"), limits=LIMITS)
        runs = [await mid.start(agent, "Go.", actor="olga") for agent in agents]
        await runs[0].until("completed")
        await runs[2].until("waiting")
        async with serve_on_loopback(asgi_app) as port:
            sys.stdout.write(f"{port} {' '.join(run.id for run in runs)}\n")
            sys.stdout.flush()
            await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(_main, Path(sys.argv[1]))
