"""Another process: it has the store and none of the agents, and pauses and resumes a run."""

import sys

import anyio

from midrun import Midrun


async def main(store: str, run_id: str) -> None:
    """Pause the run, wait for the fact, and have it go on with an instruction."""
    async with Midrun(store) as midrun:
        run = await midrun.get(run_id)
        print((await run.pause(actor="far away")).phase, flush=True)  # noqa: T201 - the test reads it
        print((await run.until("paused")).phase, flush=True)  # noqa: T201
        print((await run.resume("Now sum up")).phase, flush=True)  # noqa: T201


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2])
