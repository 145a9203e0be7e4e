"""Modes of a child process for the tests of crashes; tests kill, freeze and end it.

Each mode prints a line for each event.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import ParamSpec, TypeAlias

import anyio

from midrun import Completed, Midrun, Paused, Run
from midrun.core.ids import make_call_key
from midrun.driver.delta import Delta
from midrun.ports.environment import Environment
from midrun.ports.store import AppendResult, Lease
from midrun.stores.sqlite.store import SqliteStore
from tests.crash.faulty_store import FaultyStore
from tests.crash.recording_tools import (
    BYSTANDERS,
    STORIES,
    make_bulky_agent,
    make_bystander_agent,
    make_parsing_agent,
    make_waiting_agent,
    read_actions,
)
from tests.support.conditions import make_clock_ahead, wait_until
from tests.support.sqlite_kill import kill_self_at
from tests.support.store_choice import get_store_url

P = ParamSpec("P")

DriveToEnd: TypeAlias = Callable[[str, str, str, int], Awaitable[None]]
"""Drives one run to its end. Arguments: folder, story, case, hours that the clock is ahead."""

LONG_LEASE = timedelta(seconds=60)
"""A lease that is not lost on a slow machine; the worker that takes over has another clock."""

CANCEL = "please stop"


def print_line(*words: object) -> None:
    """Print a line and flush it."""
    print(*words, flush=True)  # noqa: T201 - the test reads stdout


# ── killed at a write ────────────────────────────────────────────────────────


async def drive_to_end(folder: str, story: str, case: str, hours: int) -> None:
    """Start the run or find it, and wait until it has ended."""
    case_folder = Path(folder) / case
    agent = STORIES[story](case, case_folder)
    environment = Environment(lease=LONG_LEASE, clock=make_clock_ahead(hours=hours))
    async with Midrun(
        get_store_url(f"{folder}/runs.db"), agents=[agent], outside=environment
    ) as midrun:
        run = await midrun.start(agent, "go", request_id=case)
        if story == "held_up":
            await cancel_run(run, at_once=hours > 0)
        else:
            await answer_until_completed(run, case_folder)


async def cancel_run(run: Run, *, at_once: bool) -> None:
    """Cancel the run, at once or when it is in `hold`; a repetition is the same request."""
    if not at_once:
        async for item in run.feed():
            if isinstance(item, Delta) and item.text == "holding":
                break
    await run.cancel(undo="all", request_id=CANCEL)
    await run.until("cancelled")


async def answer_until_completed(run: Run, case_folder: Path) -> None:
    """Answer each unsure call according to the recorded actions until the run completes."""
    while isinstance(outcome := await run.result(), Paused):
        assert outcome.reason == "unsure", str(outcome)
        for ask in outcome.asks:
            has_happened = any(
                action.key == make_call_key(run.id, ask.call)
                for action in read_actions(case_folder)
            )
            await run.answer("yes" if has_happened else "no", ask=ask.id)
    assert isinstance(outcome, Completed), str(outcome)
    assert outcome.output == "Done."


def report_appends(sink: int) -> None:
    """Write a line into `sink` for each acknowledged append of this process."""

    def report(appended: AppendResult | tuple[Lease, AppendResult]) -> None:
        result = appended[1] if isinstance(appended, tuple) else appended
        os.write(sink, f"{result.seq} {result.hash.hex()}\n".encode())

    def wrap_method(
        method: Callable[P, Awaitable[AppendResult]]
        | Callable[P, Awaitable[tuple[Lease, AppendResult]]],
    ) -> Callable[P, Awaitable[AppendResult | tuple[Lease, AppendResult]]]:
        async def report_append(
            *args: P.args, **kwargs: P.kwargs
        ) -> AppendResult | tuple[Lease, AppendResult]:
            appended = await method(*args, **kwargs)
            report(appended)
            return appended

        return report_append

    for name in ("create", "append", "take_lease"):
        setattr(SqliteStore, name, wrap_method(getattr(SqliteStore, name)))


def kill_at_write(
    drive_to_end: DriveToEnd, folder: str, story: str, *kill_points: tuple[str, int]
) -> bool:
    """Kill one process after the other on the same run; return whether the last one died.

    Each of `kill_points` is a point and the number of the process's write.
    """
    case = "_".join([story, *(f"{point}-{number}" for point, number in kill_points)])
    (Path(folder) / case).mkdir()
    acks: list[str] = []
    killed = False
    for hours, (point, number) in enumerate(kill_points):
        source, sink = os.pipe()
        child = os.fork()
        if not child:
            report_appends(sink)
            kill_self_at(point, number)
            anyio.run(drive_to_end, folder, story, case, hours)
            os._exit(0)
        os.close(sink)
        _, status = os.waitpid(child, 0)
        os.set_blocking(source, False)
        with os.fdopen(source) as acknowledged:  # the zygote may still hold the other end
            acks += acknowledged.read().split("\n")[:-1]
        killed = os.WIFSIGNALED(status)
        assert killed or not os.waitstatus_to_exitcode(status), case
    print_line(json.dumps({"case": case, "story": story, "killed": killed, "acks": acks}))
    return killed


def kill_at_writes(
    drive_to_end: DriveToEnd, folder: str, story: str, *kill_points: str
) -> None:
    """Kill processes at the points `point-number`; the last one, without a number, at each."""
    anyio.run(anyio.sleep, 0)  # imports the event loop here, and not in each forked process
    parts = [kill_point.partition("-") for kill_point in kill_points]
    *first, last = [(point, int(number or 0)) for point, _, number in parts]
    if last[1]:
        kill_at_write(drive_to_end, folder, story, *first, last)
        return
    for number in count(1):
        if not kill_at_write(drive_to_end, folder, story, *first, (last[0], number)):
            return


# ── frozen, or ended by a signal ─────────────────────────────────────────────


async def drive_until_sigterm(folder: str, tool: str, lease_s: str) -> None:
    """Start a run of a waiting agent and drive it until SIGTERM; then shut down."""
    environment = Environment(lease=timedelta(seconds=float(lease_s)))
    agent = make_waiting_agent(tool, Path(folder))
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async with Midrun(
            get_store_url(f"{folder}/runs.db"), agents=[agent], outside=environment
        ) as midrun:
            run = await midrun.start(agent, "go", request_id="the run")
            print_line(run.id)
            async for _ in signals:
                break
    print_line("left")


# ── a call that kills its worker ─────────────────────────────────────────────


async def run_parser(folder: str, hours: str) -> None:
    """Start or find the run of the parser and those of the bystanders; wait for their ends."""
    parser, bystander = make_parsing_agent(Path(folder)), make_bystander_agent(Path(folder))
    environment = Environment(lease=LONG_LEASE, clock=make_clock_ahead(hours=int(hours)))
    async with Midrun(
        get_store_url(f"{folder}/runs.db"), agents=[parser, bystander], outside=environment
    ) as midrun:
        run = await midrun.start(parser, "go", request_id="the file")
        names = [f"beside {number}" for number in range(BYSTANDERS)]
        others = [await midrun.start(bystander, "go", request_id=name) for name in names]
        view = await run.until("completed", "failed")
        print_line(view.phase, view.error)
        for other in others:
            print_line((await other.until("completed", "failed")).phase)


# ── without disk space ───────────────────────────────────────────────────────


async def run_out_of_space(folder: str) -> None:
    """Drive a run while the files cannot grow; lift the limit and complete the run."""
    store, agent = FaultyStore(Path(folder) / "runs.db"), make_bulky_agent(Path(folder))
    async with Midrun(store, agents=[agent]) as midrun:
        run = await midrun.start(agent, "go")
        print_line(run.id)
        await wait_until(lambda: store.refusals > 1)
        print_line("full")
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        print_line((await run.until("completed")).phase)
    await store.close()


def main(mode: str, *rest: str) -> None:
    """Run the mode that the test named."""
    match mode:
        case "kills":
            kill_at_writes(drive_to_end, *rest)
        case "drive":
            folder, tool, lease_s = rest
            anyio.run(drive_until_sigterm, folder, tool, lease_s)
        case "parse":
            folder, hours = rest
            anyio.run(run_parser, folder, hours)
        case "full":
            anyio.run(run_out_of_space, rest[0])
        case _:
            raise ValueError(mode)


if __name__ == "__main__":
    main(*sys.argv[1:])
