"""A process that forks others, which play a story and are killed at one of their writes."""

import json
import os
import sys
from itertools import count
from pathlib import Path

import anyio

from midrun import Midrun
from midrun.ports.outside import Outside
from tests.crashes.child import LONG, arrange_the_end, say, tell_of_appends
from tests.crashes.facts import at_once, later
from tests.keeping import kept_at
from tests.thought.stories import STORIES


async def live(folder: str, story: str, case: str, hours: int) -> None:
    """Start the run, or find it, and be its people until it has ended."""
    told, place = STORIES[story], Path(folder) / case
    agent = told.agent(case, place)
    outside = Outside(lease=LONG, clock=later(hours=hours), chance=at_once)
    async with Midrun(kept_at(f"{folder}/runs.db"), agents=[agent], outside=outside) as midrun:
        run = await midrun.start(agent, "go", request_id=case)
        await told.people(midrun, run, place, again=hours > 0)


def kill_one(folder: str, story: str, *ends: tuple[str, int]) -> bool:
    """Kill one process after the other over the same run; tell whether the last one died."""
    case = "_".join([story, *(f"{point}-{number}" for point, number in ends)])
    (Path(folder) / case).mkdir()
    acks: list[str] = []
    killed = False
    for hours, (point, number) in enumerate(ends):
        source, sink = os.pipe()
        child = os.fork()
        if not child:
            tell_of_appends(sink)
            arrange_the_end(point, number)
            anyio.run(live, folder, story, case, hours)
            os._exit(0)
        os.close(sink)
        _, ending = os.waitpid(child, 0)
        os.set_blocking(source, False)
        with os.fdopen(source) as acknowledged:  # its zygote may still hold the other end
            acks += acknowledged.read().split("\n")[:-1]
        killed = os.WIFSIGNALED(ending)
        assert killed or not os.waitstatus_to_exitcode(ending), case
    say(json.dumps({"case": case, "story": story, "killed": killed, "acks": acks}))
    return killed


def main(folder: str, story: str, *ends: str) -> None:
    """Kill processes at these ends, `point-number`; the last, without a number, at each."""
    parts = [end.partition("-") for end in ends]
    *first, last = [(point, int(number or 0)) for point, _, number in parts]
    if last[1]:
        kill_one(folder, story, *first, last)
        return
    for number in count(1):
        if not kill_one(folder, story, *first, (last[0], number)):
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
