"""A control at each moment of a run: after each entry, and at each turn of the event loop.

In each case the run settles, no call starts after the control, the report agrees with the
effects of the tools, and the journal is valid.
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
from tests.crash.conftest import TIMEOUT_S

ControlName: TypeAlias = Literal["cancel", "cancel all", "pause", "pause now"]
CONTROL_NAMES: tuple[ControlName, ...] = ("cancel", "cancel all", "pause", "pause now")


class Effects:
    """Effects of the tools, by call key: which calls started, and what exists now."""

    def __init__(self) -> None:
        self.started_keys: list[str] = []
        self.made_keys: list[str] = []
        self.held_keys: list[str] = []

    def tools(self) -> list[Tool]:
        """Return tools that take effect between two turns of the event loop."""

        async def undo_make(call: Call, args: Json, result: Json) -> None:
            del args, result
            await checkpoint()
            self.made_keys = [key for key in self.made_keys if key != call.original]
            await checkpoint()

        async def release_hold(call: Call, args: Json, result: Json) -> None:
            del args, result
            await checkpoint()
            self.held_keys = [key for key in self.held_keys if key != call.original]

        @tool(undo=undo_make)
        async def make(call: Call, name: str) -> str:
            """Make something; can be undone."""
            self.started_keys.append(call.key)
            await checkpoint()
            self.made_keys.append(call.key)
            await checkpoint()
            return name

        @tool
        async def send(call: Call, name: str) -> str:
            """Send something; cannot be undone."""
            self.started_keys.append(call.key)
            await checkpoint()
            self.made_keys.append(call.key)
            await checkpoint()
            return name

        @tool(release=release_hold)
        async def hold(call: Call, name: str) -> str:
            """Hold something until the run ends."""
            self.started_keys.append(call.key)
            self.held_keys.append(call.key)
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


def make_agent(effects: Effects) -> Agent:
    """Return an agent that makes, sends, holds and looks."""
    return Agent("actor", model=ScriptedModel(TURNS), tools=effects.tools())  # type: ignore[arg-type]  # a script


async def send_control(run: Run, control: ControlName) -> bool:
    """Send the control; return False if the run has completed before."""
    try:
        match control:
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


Stores: TypeAlias = tuple[str | Store, str | Store]
"""The worker's view of the store, and that of the process that sends the control."""


async def run_with_control(
    control: ControlName, wait_for_moment: Callable[[Run], Awaitable[None]], stores: Stores
) -> bool:
    """Run the agent, send the control at the moment, and check the outcome.

    Return False if the run had completed before.
    """
    effects = Effects()
    agent = make_agent(effects)
    with anyio.fail_after(TIMEOUT_S):
        async with (
            Midrun(stores[0], agents=[agent]) as midrun,
            Midrun(stores[1]) as other_midrun,
        ):
            run = await midrun.start(agent, "go")
            controlling = run if stores[0] is stores[1] else await other_midrun.get(run.id)
            await wait_for_moment(controlling)
            was_sent = await send_control(controlling, control)
            if was_sent and control.startswith("pause"):
                await check_pause(midrun, run, effects, now=control == "pause now")
            elif was_sent:
                await check_cancel(midrun, run, effects, undo_all=control == "cancel all")
            else:
                await run.until("completed")
                assert len(effects.made_keys) == 4
            assert not effects.held_keys
            verdict = await midrun.verify(run.id)
            assert verdict, str(verdict)
    return was_sent


# ── checks ───────────────────────────────────────────────────────────────────


async def check_cancel(midrun: Midrun, run: Run, effects: Effects, *, undo_all: bool) -> None:
    """Check that the run is cancelled and that the report agrees with the effects."""
    await run.until("cancelled")
    records = await midrun.store.read(run.id)
    control_seq = next(
        record.seq for record in records if isinstance(record.entry, CancelRequested)
    )
    assert not list_starts(records, after=control_seq)
    report = await run.report()
    assert report.clean, str(report)
    made_keys, done_keys = set(effects.made_keys), get_keys(run, report, "done")
    assert done_keys & made_keys == done_keys - get_keys_of_tools(run, report, "hold")
    assert not get_keys(run, report, "undone") & made_keys
    assert not get_keys(run, report, "never_started") & {*made_keys, *effects.started_keys}
    assert made_keys <= done_keys | get_keys(run, report, "stopped")
    if undo_all:
        assert made_keys <= get_keys_of_tools(run, report, "send")
    assert {
        record.entry.call for record in records if isinstance(record.entry, CallStarted)
    } >= {call.call for call in (*report.done, *report.undone, *report.stopped)}


async def check_pause(midrun: Midrun, run: Run, effects: Effects, *, now: bool) -> None:
    """Check that nothing runs while paused and that the resumed run repeats no call."""
    view = await run.until("paused")
    assert not view.in_flight
    records = await midrun.store.read(run.id)
    control_seq = next(
        record.seq for record in records if isinstance(record.entry, PauseRequested)
    )
    assert not list_starts(records, after=control_seq)
    started_keys = list(effects.started_keys)
    for _ in range(5):
        await checkpoint()
    assert effects.started_keys == started_keys
    await run.resume()
    await run.until("completed")
    # None of these tools may be called again under the same key.
    assert len(set(effects.started_keys)) == len(effects.started_keys)
    assert len(set(effects.made_keys)) == len(effects.made_keys)
    records = await midrun.store.read(run.id)
    resumed_seq = next(record.seq for record in records if isinstance(record.entry, RunResumed))
    assert not [
        record for record in list_starts(records, after=control_seq) if record.seq < resumed_seq
    ]
    if not now:
        assert not (await run.report()).stopped


def list_starts(records: Sequence[Record], *, after: int) -> list[Record]:
    """Return the starts of calls after a seq."""
    return [
        record
        for record in records
        if isinstance(record.entry, CallStarted) and record.seq > after
    ]


def get_keys(run: Run, report: Report, name: str) -> set[str]:
    """Return the keys of the calls in one list of the report."""
    return {make_call_key(run.id, CallId(call.call)) for call in getattr(report, name)}


def get_keys_of_tools(run: Run, report: Report, *tools: str) -> set[str]:
    """Return the keys of the calls of these tools in all lists of the report."""
    lists = (report.done, report.stopped, report.undone, report.unsure, report.not_undone)
    return {
        make_call_key(run.id, CallId(call.call))
        for calls in lists
        for call in calls
        if call.tool in tools
    }


# ── moments ──────────────────────────────────────────────────────────────────


def wait_for_seq(seq: int) -> Callable[[Run], Awaitable[None]]:
    """Return a function that waits until the journal has reached `seq`."""

    async def wait_for_moment(run: Run) -> None:
        async for item in run.feed():
            if item.seq is not None and item.seq >= seq:
                return

    return wait_for_moment


def wait_for_turns(turns: int) -> Callable[[Run], Awaitable[None]]:
    """Return a function that waits for some turns of the event loop."""

    async def wait_for_moment(run: Run) -> None:
        del run
        for _ in range(turns):
            await checkpoint()

    return wait_for_moment


MIN_MOMENTS = 12
"""The moments that are tried at least, also on a slow machine."""


async def try_all_moments(
    control: ControlName,
    stores: Stores,
    make_moment: Callable[[int], Callable[[Run], Awaitable[None]]],
) -> int:
    """Send the control at one moment after the other; return how many were in time.

    It ends after three late moments in a row, because one may be due to a slow machine.
    """
    late_count = count = sent_count = 0
    while late_count < 3 or count < MIN_MOMENTS:
        was_sent = await run_with_control(control, make_moment(count), stores)
        late_count = 0 if was_sent else late_count + 1
        sent_count += was_sent
        count += 1
    return sent_count


@pytest.fixture(
    params=["memory", pytest.param("file", marks=pytest.mark.slow), "two processes"],
)
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stores]:
    """Return a memory store, a file, or a file that is opened twice."""
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


@pytest.mark.parametrize("control", CONTROL_NAMES)
async def test_a_control_after_every_entry_is_obeyed(
    control: ControlName, stores: Stores
) -> None:
    """An append that does not know of the control conflicts with it."""
    assert await try_all_moments(control, stores, wait_for_seq) > 5


@pytest.mark.parametrize("control", CONTROL_NAMES)
async def test_a_control_at_every_turn_of_the_event_loop_is_obeyed(
    control: ControlName, stores: Stores
) -> None:
    """The control may arrive between any two awaits of the worker."""
    assert await try_all_moments(control, stores, wait_for_turns) > 0
