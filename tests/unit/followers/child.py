"""A process that follows, and perhaps drives, a run, and is killed at some moment."""

import sys
from datetime import timedelta

import anyio

from midrun import Midrun
from midrun.followers import following, worker
from midrun.followers.webhooks import Webhook
from tests.unit.followers.receiving import SECRET
from tests.unit.runs.stage import ControllableTools


async def _main(address: str, url: str, task: str) -> None:
    worker.LEADERSHIP_TTL = timedelta(seconds=1)  # type: ignore[misc]  # nobody waits for the dead for long
    agent = ControllableTools().agent("Done.")
    async with (
        Midrun(address, agents=[agent]) as midrun,
        following(midrun, Webhook(url, secret=SECRET)),
    ):
        run = (await midrun.start(agent, task)).id if task else ""
        print(run, flush=True)  # noqa: T201 - this is how it talks
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(_main, sys.argv[1], sys.argv[2], sys.argv[3])
