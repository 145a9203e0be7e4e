"""What the tests of crashes run in processes of their own, to be killed, frozen and ended.

They talk in lines: each prints what happened.
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
import apsw

from midrun import Completed, Midrun, Paused, Run
from midrun.core.ids import make_call_key
from midrun.driver.live import Delta
from midrun.ports.environment import Environment
from midrun.ports.store import AppendResult, Lease
from midrun.stores.sqlite.store import SqliteStore
from tests.crash.deeds import BYSTANDERS, STORIES, beside, bulky, deeds, parsing, waiting
from tests.crash.facts import becomes, later
from tests.crash.troubled import Watched
from tests.support.store_choice import kept_at

P = ParamSpec("P")

Live: TypeAlias = Callable[[str, str, str, int], Awaitable[None]]
"""Sees one run through: the folder, the story, the case, and so many hours later."""

LONG = timedelta(seconds=60)
"""A lease that nobody loses because the machine is slow; who takes over has another clock."""

CANCEL = "please stop"


def say(*words: object) -> None:
    """Print a line at once."""
    print(*words, flush=True)  # noqa: T201 - this is how it talks


# ── killed at a write ────────────────────────────────────────────────────────


async def live(folder: str, story: str, case: str, hours: int) -> None:
    """Start a run, or find it, and stay until it has ended."""
    place = Path(folder) / case
    agent = STORIES[story](case, place)
    outside = Environment(lease=LONG, clock=later(hours=hours))
    async with Midrun(kept_at(f"{folder}/runs.db"), agents=[agent], outside=outside) as midrun:
        run = await midrun.start(agent, "go", request_id=case)
        if story == "held_up":
            await cancel_it(run, at_once=hours > 0)
        else:
            await answer_it(run, place)


async def cancel_it(run: Run, *, at_once: bool) -> None:
    """Cancel the run, at once or when it is held up; a repeat is the same request."""
    if not at_once:
        async for item in run.feed():
            if isinstance(item, Delta) and item.text == "holding":
                break
    await run.cancel(undo="all", request_id=CANCEL)
    await run.until("cancelled")


async def answer_it(run: Run, place: Path) -> None:
    """Say of every unsure call whether it has left a line, until the run has completed."""
    while isinstance(outcome := await run.result(), Paused):
        assert outcome.reason == "unsure", str(outcome)
        for ask in outcome.asks:
            happened = any(deed.key == make_call_key(run.id, ask.call) for deed in deeds(place))
            await run.answer("yes" if happened else "no", ask=ask.id)
    assert isinstance(outcome, Completed), str(outcome)
    assert outcome.output == "Done."


def arrange_the_end(point: str, number: int) -> None:
    """Have the process killed at the `number`-th time that a connection passes `point`."""
    wanted = {"insert": "INSERT INTO entries", "commit": "COMMIT", "reply": "COMMIT"}[point]
    code = apsw.SQLITE_TRACE_PROFILE if point == "reply" else apsw.SQLITE_TRACE_STMT
    passed = 0

    def look(step: dict[str, object]) -> None:
        nonlocal passed
        # Opening the file may commit too, before there is anything of ours to write.
        if str(step.get("sql", "")).strip().startswith(wanted) and opened:
            passed += 1
            if passed == number:
                os.kill(os.getpid(), signal.SIGKILL)

    opened: list[bool] = []
    apsw.connection_hooks.append(lambda db: db.trace_v2(code, look))
    prepare = SqliteStore.__init__

    def prepared(self: SqliteStore, *args: object, **options: object) -> None:
        prepare(self, *args, **options)  # type: ignore[arg-type]  # passed on as they came
        opened.append(True)

    SqliteStore.__init__ = prepared  # type: ignore[method-assign]  # only in this process


def tell_of_appends(sink: int) -> None:
    """Write a line into `sink` for every append of this process that was acknowledged."""

    def tell(appended: AppendResult | tuple[Lease, AppendResult]) -> None:
        one = appended[1] if isinstance(appended, tuple) else appended
        os.write(sink, f"{one.seq} {one.hash.hex()}\n".encode())

    def telling(
        method: Callable[P, Awaitable[AppendResult]]
        | Callable[P, Awaitable[tuple[Lease, AppendResult]]],
    ) -> Callable[P, Awaitable[AppendResult | tuple[Lease, AppendResult]]]:
        async def told(
            *args: P.args, **kwargs: P.kwargs
        ) -> AppendResult | tuple[Lease, AppendResult]:
            appended = await method(*args, **kwargs)
            tell(appended)
            return appended

        return told

    for name in ("create", "append", "take_lease"):
        setattr(SqliteStore, name, telling(getattr(SqliteStore, name)))


def kill_one(live: Live, folder: str, story: str, *ends: tuple[str, int]) -> bool:
    """Kill one process after the other over the same run; tell whether the last one died.

    Each of `ends` is a point and which of the process's writes it is at.
    """
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


def kills(live: Live, folder: str, story: str, *ends: str) -> None:
    """Kill processes at these ends, `point-number`; the last, without a number, at each."""
    parts = [end.partition("-") for end in ends]
    *first, last = [(point, int(number or 0)) for point, _, number in parts]
    if last[1]:
        kill_one(live, folder, story, *first, last)
        return
    for number in count(1):
        if not kill_one(live, folder, story, *first, (last[0], number)):
            return


# ── frozen, or asked to go ───────────────────────────────────────────────────


async def drive(folder: str, tool: str, lease_s: str) -> None:
    """Start a run of a waiting agent and drive runs until SIGTERM; then leave in good order."""
    outside = Environment(lease=timedelta(seconds=float(lease_s)))
    agent = waiting(tool, Path(folder))
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async with Midrun(
            kept_at(f"{folder}/runs.db"), agents=[agent], outside=outside
        ) as midrun:
            run = await midrun.start(agent, "go", request_id="the run")
            say(run.id)
            async for _ in signals:
                break
    say("left")


# ── a call that ends its process ─────────────────────────────────────────────


async def parse(folder: str, hours: str) -> None:
    """Start a run of the parser, or find it, and others that are driven beside it."""
    agent, other = parsing(Path(folder)), beside(Path(folder))
    outside = Environment(lease=LONG, clock=later(hours=int(hours)))
    async with Midrun(
        kept_at(f"{folder}/runs.db"), agents=[agent, other], outside=outside
    ) as midrun:
        run = await midrun.start(agent, "go", request_id="the file")
        names = [f"beside {number}" for number in range(BYSTANDERS)]
        bystanders = [await midrun.start(other, "go", request_id=name) for name in names]
        view = await run.until("completed", "failed")
        say(view.phase, view.error)
        for bystander in bystanders:
            say((await bystander.until("completed", "failed")).phase)


# ── without room ─────────────────────────────────────────────────────────────


async def full(folder: str) -> None:
    """Drive a run whose process has no room to write for a while; make room, and finish it."""
    store, agent = Watched(Path(folder) / "runs.db"), bulky(Path(folder))
    async with Midrun(store, agents=[agent]) as midrun:
        run = await midrun.start(agent, "go")
        say(run.id)
        await becomes(lambda: store.noes > 1)
        say("full")
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        say((await run.until("completed")).phase)
    await store.close()


def main(mode: str, *rest: str) -> None:
    """Do what the test asked for."""
    match mode:
        case "kills":
            kills(live, *rest)
        case "drive":
            folder, tool, lease_s = rest
            anyio.run(drive, folder, tool, lease_s)
        case "parse":
            folder, hours = rest
            anyio.run(parse, folder, hours)
        case "full":
            anyio.run(full, rest[0])
        case _:
            raise ValueError(mode)


if __name__ == "__main__":
    # A shell that runs tests in the background has them ignore Ctrl-C, and so their children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(*sys.argv[1:])
