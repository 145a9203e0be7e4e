"""A process that runs a follower, and optionally a run, until a test kills it."""

import sys
from datetime import timedelta

import anyio

from midrun import Midrun
from midrun.followers import following, worker
from midrun.followers.webhooks import Webhook
from midrun.testing.controllable_tools import ControllableTools
from tests.unit.followers.receiver import SECRET


def make_command(store_url: str, webhook_url: str, task: str = "") -> list[str]:
    """Return the command that runs this process; without a task it starts no run."""
    return [sys.executable, "-m", __name__, store_url, webhook_url, task]


async def _main(store_url: str, webhook_url: str, task: str) -> None:
    worker.LEADERSHIP_TTL = timedelta(seconds=1)  # type: ignore[misc]  # the next process need not wait for long
    agent = ControllableTools().agent("Done.")
    async with (
        Midrun(store_url, agents=[agent]) as midrun,
        following(midrun, Webhook(webhook_url, secret=SECRET)),
    ):
        run = (await midrun.start(agent, task)).id if task else ""
        print(run, flush=True)  # noqa: T201 - the test reads stdout
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(_main, sys.argv[1], sys.argv[2], sys.argv[3])
