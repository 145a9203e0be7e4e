"""A runtime whose blocking tool waits at a gate, for a test to kill."""

import os
import signal
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path

import anyio

from midrun.driver.subprocess.zygote_client import Zygote
from midrun.ports import platform
from tests.unit.driver.subprocess.process_calls import make_task, run_to_end


def write_pids(fifo: str, pids: list[int]) -> None:
    """Write process ids to a fifo."""
    Path(fifo).write_text(" ".join(map(str, pids)))


async def main(
    begun: str, gate: str, effect: str, others: str, copies: str, system: str
) -> None:
    """Run the tool until this process is killed."""
    platform.CURRENT = platform.PLATFORMS[system]
    async with Zygote() as zygote:
        await run_to_end(zygote, make_task("add", {"a": 1}))
        (link,) = zygote._processes.values()
        pids = [link._process.pid]
        for _ in range(int(copies)):
            pid = os.fork()
            if not pid:
                signal.pause()
            pids.append(pid)
        write_pids(others, pids)
        it = make_task("hold_with_family", {"begun": begun, "gate": gate, "effect": effect})
        await run_to_end(zygote, it, grace=timedelta(seconds=5))


if __name__ == "__main__":
    anyio.run(partial(main, *sys.argv[1:]))
