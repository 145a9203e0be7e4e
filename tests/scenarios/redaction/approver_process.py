"""A second process that approves the call of a run, and drives the run to its end."""

import sys

import anyio

from midrun import Midrun
from midrun.models import Use
from tests.support.secret_tools import PASSWORD, SecretTools


async def _main(path: str, run_id: str) -> None:
    secret_tools = SecretTools()
    turns = (Use("gated_login", user="ann", password=PASSWORD), "Told of it.")
    async with Midrun(f"sqlite:///{path}", agents=[secret_tools.make_agent(*turns)]) as midrun:
        run = await midrun.get(run_id)
        await run.approve(actor="bob")
        await run.until("completed")
    print(secret_tools.received_args)  # noqa: T201 - the test reads the output


if __name__ == "__main__":
    anyio.run(_main, sys.argv[1], sys.argv[2])
