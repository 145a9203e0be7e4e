"""Fixtures of the store suite: a manual clock, and helpers that make entries and heads."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Literal, NewType, get_args, get_origin, get_type_hints

import pytest
from msgspec import Struct
from msgspec.structs import fields

from midrun.codec.hash_chain import PLAIN
from midrun.core.entries import (
    CallDone,
    CallStarted,
    Entry,
    LeaseTaken,
    MessageReceived,
    PauseRequested,
    RunImported,
    RunPaused,
    RunStarted,
)
from midrun.core.ids import SECOND, CallId, Epoch, Micros, RunId, Seq
from midrun.core.run_head import Head
from midrun.core.values import Decision, Phase, Use
from midrun.ports.store import Appended, Lease, Store

RUN = RunId("run_1")
OTHER = RunId("run_2")
NOBODY = RunId("run_nobody")

Reopen = Callable[[Store], Awaitable[Store]]


class HandClock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = Micros(1_800_000_000 * SECOND)

    def __call__(self) -> Micros:
        return self.now

    def move(self, seconds: float) -> None:
        """Move the time, backwards too."""
        self.now = Micros(self.now + round(seconds * SECOND))


class Setting:
    """Fixtures of all tests of the store suite."""

    @pytest.fixture
    def clock(self) -> HandClock:
        """Return the clock that the store must use for all times."""
        return HandClock()

    @pytest.fixture
    def store(self, clock: HandClock) -> Store:
        """Return an empty store; override it."""
        raise NotImplementedError

    @pytest.fixture
    def reopen(self) -> Reopen | None:
        """Return a function that closes a store and opens it again; None if it is volatile."""
        return None


def started(agent: str = "researcher", task: str = "compare") -> RunStarted:
    """Return the first entry of a run."""
    return RunStarted(agent=agent, task=task)


def head(
    phase: Phase = Phase.QUEUED, *, leased: bool = False, agent: str = "researcher"
) -> Head:
    """Return a head with these fields."""
    return Head(phase=phase, leased=leased, agent=agent)


def said(text: str = "hello") -> MessageReceived:
    """Return an entry that every writer may append at any time."""
    return MessageReceived(text=text)


def done(call: str = "c1", result: object = None) -> CallDone:
    """Return an entry that only a driver may append."""
    return CallDone(call=CallId(call), result=result)


def starts(call: str = "c1") -> CallStarted:
    """Return the start of a call."""
    return CallStarted(call=CallId(call), call_kind="tool", attempt=1, seen=Seq(1))


def imported(run: RunId, lines: Iterable[bytes]) -> RunImported:
    """Return the entry that records the import of `lines` as the journal of `run`."""
    return RunImported(checkpoint=run, head=PLAIN.head(run, lines).hex(), by="ann")


async def pause(store: Store, run: RunId, after: int) -> Appended:
    """Bring a run to rest; only then can it leave with a checkpoint."""
    entries = (PauseRequested(), RunPaused())
    return await store.append(
        run, entries, after=Seq(after), lease=None, head=head(Phase.PAUSED)
    )


async def create(store: Store, run: RunId = RUN, *, head: Head | None = None) -> Appended:
    """Create a run."""
    return await store.create(run, [started()], head=head or Head(phase=Phase.QUEUED))


async def say(store: Store, run: RunId, after: int, text: str = "hello") -> Appended:
    """Append a message after `after`."""
    return await store.append(
        run, [said(text)], after=Seq(after), lease=None, head=Head(phase=Phase.QUEUED)
    )


async def take(store: Store, run: RunId, after: int, holder: str, epoch: int = 1) -> Lease:
    """Take the lease of a run whose last seq is `after`."""
    taken = LeaseTaken(epoch=Epoch(epoch), holder=holder)
    running = head(Phase.RUNNING, leased=True)
    lease, _ = await store.take(run, [taken], after=Seq(after), holder=holder, head=running)
    return lease


def example(kind: type[Entry]) -> Entry:
    """Return an entry of `kind` with a value in every required field."""
    hints = get_type_hints(kind)
    needed = {
        field.name: _something(hints[field.name]) for field in fields(kind) if field.required
    }
    return kind(**needed)  # type: ignore[arg-type]  # built from the type hints themselves


def _something(hint: object) -> object:
    while isinstance(hint, NewType):
        hint = hint.__supertype__
    if get_origin(hint) is Literal:
        return get_args(hint)[0]
    if get_args(hint) and get_origin(hint) not in {dict, tuple}:
        return None if type(None) in get_args(hint) else _something(get_args(hint)[0])
    made: dict[object, object] = {
        str: "x",
        int: 1,
        bool: True,
        get_type_hints(Use)["args"]: {"a": [1, 2.5, None]},
        Use: Use(tool="t", args={"n": 1}),
        Decision: Decision(choice="answer", value="yes"),
        Phase: Phase.PAUSED,
    }
    if isinstance(hint, type) and issubclass(hint, Struct) and hint not in made:
        return hint()
    return made[hint] if hint in made else (get_origin(hint) or tuple)()
