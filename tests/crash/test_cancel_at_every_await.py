"""A control at every moment of a run: after every entry, and at every turn of the event loop.

Wherever it comes, the run settles, nothing is started after it, what the report says is what
the world has seen, and the journal keeps every invariant.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import anyio
import pytest
from anyio.lowlevel import checkpoint

from midrun import Agent, Call, ControlRefused, Midrun, Report, Run, Tool, tool
from midrun.core.entries import CallStarted, CancelRequested, PauseRequested, Record, RunResumed
from midrun.core.ids import CallId, make_call_key
from midrun.core.values import Json
from midrun.models import ScriptedModel, Use
from midrun.ports.store import Store
from midrun.stores.memory import MemoryStore
from midrun.stores.sqlite.store import SqliteStore
from tests.crash.conftest import PATIENCE

Wish: TypeAlias = Literal["cancel", "cancel all", "pause", "pause now"]
WISHES: tuple[Wish, ...] = ("cancel", "cancel all", "pause", "pause now")


class World:
    """What tools change: what was done under which key, and is it still there."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.there: list[str] = []
        self.held: list[str] = []

    def tools(self) -> list[Tool]:
        """Return tools that have an effect halfway, between two turns of the loop."""

        async def unmake(call: Call, args: Json, result: Json) -> None:
            del args, result
            await checkpoint()
            self.there = [key for key in self.there if key != call.original]
            await checkpoint()

        async def let_go(call: Call, args: Json, result: Json) -> None:
            del args, result
            await checkpoint()
            self.held = [key for key in self.held if key != call.original]

        @tool(undo=unmake)
        async def make(call: Call, name: str) -> str:
            """Make something; can be undone."""
            self.began.append(call.key)
            await checkpoint()
            self.there.append(call.key)
            await checkpoint()
            return name

        @tool
        async def send(call: Call, name: str) -> str:
            """Send something; cannot be undone."""
            self.began.append(call.key)
            await checkpoint()
            self.there.append(call.key)
            await checkpoint()
            return name

        @tool(release=let_go)
        async def hold(call: Call, name: str) -> str:
            """Hold something until the run ends."""
            self.began.append(call.key)
            self.held.append(call.key)
            await checkpoint()
            return name

        @tool(read_only=True)
        async def look(call: Call, name: str) -> str:
            """Look at something."""
            del call
            await checkpoint()
            return name

        return [make, send, hold, look]


TURNS: list[object] = [
    ["First this. ", Use("make", name="a"), Use("hold", name="b"), Use("look", name="c")],
    ["Then that. ", Use("send", name="d"), Use("make", name="e")],
    ["And one more. ", Use("make", name="f")],
    "Done.",
]


def actor(world: World) -> Agent:
    """Return an agent that makes, sends, holds and looks."""
    return Agent("actor", model=ScriptedModel(TURNS), tools=world.tools())  # type: ignore[arg-type]  # a script


async def ask(run: Run, wish: Wish) -> bool:
    """Ask for it; False if the run has ended before."""
    try:
        match wish:
            case "cancel":
                await run.cancel()
            case "cancel all":
                await run.cancel(undo="all")
            case "pause":
                await run.pause()
            case "pause now":
                await run.pause(now=True)
    except ControlRefused as refused:
        if refused.phase != "completed":
            raise
        return False
    return True


Place: TypeAlias = tuple[str | Store, str | Store]
"""Where the run is driven, and where somebody asks: the same store, seen from two processes."""


async def one(wish: Wish, moment: Callable[[Run], Awaitable[None]], place: Place) -> bool:
    """Play the run, ask at the moment, and see what becomes of it; False if it was over."""
    world = World()
    agent = actor(world)
    with anyio.fail_after(PATIENCE):
        async with (
            Midrun(place[0], agents=[agent]) as midrun,
            Midrun(place[1]) as elsewhere,
        ):
            run = await midrun.start(agent, "go")
            asking = run if place[0] is place[1] else await elsewhere.get(run.id)
            await moment(asking)
            asked = await ask(asking, wish)
            if asked and wish.startswith("pause"):
                await see_pause(midrun, run, world, now=wish == "pause now")
            elif asked:
                await see_cancel(midrun, run, world, everything=wish == "cancel all")
            else:
                await run.until("completed")
                assert len(world.there) == 4
            assert not world.held
            verdict = await midrun.verify(run.id)
            assert verdict, str(verdict)
    return asked


# ── what must be so ──────────────────────────────────────────────────────────


async def see_cancel(midrun: Midrun, run: Run, world: World, *, everything: bool) -> None:
    """The run is cancelled, and the report is the truth about the world."""
    await run.until("cancelled")
    records = await midrun.store.read(run.id)
    asked = next(r.seq for r in records if isinstance(r.entry, CancelRequested))
    assert not started(records, after=asked)
    report = await run.report()
    assert report.clean, str(report)
    there, done = set(world.there), told(run, report, "done")
    assert done & there == done - told_of(run, report, "hold")
    assert not told(run, report, "undone") & there
    assert not told(run, report, "never_started") & {*there, *world.began}
    assert there <= done | told(run, report, "stopped")
    if everything:
        assert there <= told_of(run, report, "send")
    assert {r.entry.call for r in records if isinstance(r.entry, CallStarted)} >= {
        deed.call for deed in (*report.done, *report.undone, *report.stopped)
    }


async def see_pause(midrun: Midrun, run: Run, world: World, *, now: bool) -> None:
    """The run is paused with nothing in flight; it goes on, and makes nothing twice."""
    view = await run.until("paused")
    assert not view.in_flight
    records = await midrun.store.read(run.id)
    asked = next(r.seq for r in records if isinstance(r.entry, PauseRequested))
    assert not started(records, after=asked)
    began = list(world.began)
    for _ in range(5):
        await checkpoint()
    assert world.began == began
    await run.resume()
    await run.until("completed")
    assert len(set(world.began)) == len(world.began)  # none of these may be made again
    assert len(set(world.there)) == len(world.there)
    records = await midrun.store.read(run.id)
    resumed = next(r.seq for r in records if isinstance(r.entry, RunResumed))
    assert not [r for r in started(records, after=asked) if r.seq < resumed]
    if not now:
        assert not (await run.report()).stopped


def started(records: Sequence[Record], *, after: int) -> list[Record]:
    """Return what was started after that seq."""
    return [r for r in records if isinstance(r.entry, CallStarted) and r.seq > after]


def told(run: Run, report: Report, name: str) -> set[str]:
    """Return the keys of the calls in one list of the report."""
    return {make_call_key(run.id, CallId(deed.call)) for deed in getattr(report, name)}


def told_of(run: Run, report: Report, *tools: str) -> set[str]:
    """Return the keys of the calls of these tools, wherever the report has them."""
    lists = (report.done, report.stopped, report.undone, report.unsure, report.not_undone)
    return {
        make_call_key(run.id, CallId(deed.call))
        for deeds in lists
        for deed in deeds
        if deed.tool in tools
    }


# ── moments ──────────────────────────────────────────────────────────────────


def at_seq(seq: int) -> Callable[[Run], Awaitable[None]]:
    """Return the moment at which the journal has grown to `seq`."""

    async def moment(run: Run) -> None:
        async for item in run.feed():
            if item.seq is not None and item.seq >= seq:
                return

    return moment


def after_turns(turns: int) -> Callable[[Run], Awaitable[None]]:
    """Return the moment so many turns of the event loop after the start."""

    async def moment(run: Run) -> None:
        del run
        for _ in range(turns):
            await checkpoint()

    return moment


MOMENTS = 12
"""How many moments are tried at least, however slow the machine is."""


async def play(
    wish: Wish, place: Place, moments: Callable[[int], Callable[[Run], Awaitable[None]]]
) -> int:
    """Ask at one moment after the other until the run is over before; return how many.

    One late moment proves little: a machine that is slow just then must not end the play.
    """
    late = count = in_time = 0
    while late < 3 or count < MOMENTS:
        asked = await one(wish, moments(count), place)
        late = 0 if asked else late + 1
        in_time += asked
        count += 1
    return in_time


@pytest.fixture(
    params=["memory", pytest.param("file", marks=pytest.mark.slow), "two processes"],
)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    """Give a store that is here, one in a file, and one in a file that is seen twice."""
    if request.param == "memory":
        memory = MemoryStore()
        yield memory, memory
        return
    path = tmp_path / "runs.db"
    first = SqliteStore(path, durability="relaxed")
    second = first if request.param == "file" else SqliteStore(path, durability="relaxed")
    yield first, second
    await first.close()
    await second.close()


@pytest.mark.parametrize("wish", WISHES)
async def test_a_control_after_every_entry_is_obeyed(wish: Wish, place: Place) -> None:
    """The order of the journal decides: what follows the control has seen it."""
    assert await play(wish, place, at_seq) > 5


@pytest.mark.parametrize("wish", WISHES)
async def test_a_control_at_every_turn_of_the_event_loop_is_obeyed(
    wish: Wish, place: Place
) -> None:
    """Between any two awaits: while a call is on its way out, on its way back, or neither."""
    assert await play(wish, place, after_turns) > 0
