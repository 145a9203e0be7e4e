"""Another process, without agents, that pauses and resumes a run of the test."""

import sys

import anyio

from midrun import Midrun


async def main(store: str, run_id: str) -> None:
    """Pause the run, wait until it is paused, and resume it with an instruction."""
    async with Midrun(store) as midrun:
        run = await midrun.get(run_id)
        print((await run.pause(actor="far away")).phase, flush=True)  # noqa: T201 - the test reads it
        print((await run.until("paused")).phase, flush=True)  # noqa: T201
        print((await run.resume("Now sum up")).phase, flush=True)  # noqa: T201


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2])
