"""Fixtures of the store suite: a manual clock, and helpers that make entries and heads."""

from collections.abc import Awaitable, Callable, Iterable
from hashlib import sha256
from typing import Literal, NewType, get_args, get_origin, get_type_hints

import pytest
from msgspec import Struct
from msgspec.structs import fields

from midrun.codec.hash_chain import UNKEYED_CHAIN
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
from midrun.core.ids import MICROS_PER_SECOND, CallId, Epoch, Micros, RunId, Seq
from midrun.core.run_head import Head
from midrun.core.values import Decision, FileRef, Phase, RequestedCall
from midrun.ports.store import AppendResult, Lease, Store
from midrun.stores.encryption import read_decrypted_lines

RUN = RunId("run_1")
OTHER_RUN = RunId("run_2")
MISSING_RUN = RunId("run_nobody")

EMPTY_FILE_HASH = sha256(b"").hexdigest()

ReopenStore = Callable[[Store], Awaitable[Store]]


class ManualClock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = Micros(1_800_000_000 * MICROS_PER_SECOND)

    def __call__(self) -> Micros:
        return self.now

    def move(self, seconds: float) -> None:
        """Move the time, backwards too."""
        self.now = Micros(self.now + round(seconds * MICROS_PER_SECOND))


class StoreSuiteFixtures:
    """Fixtures of all tests of the store suite."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        """Return the clock that the store must use for all times."""
        return ManualClock()

    @pytest.fixture
    def store(self, clock: ManualClock) -> Store:
        """Return an empty store; override it."""
        raise NotImplementedError

    @pytest.fixture
    def reopen(self) -> ReopenStore | None:
        """Return a function that closes a store and opens it again; None if it is volatile."""
        return None


async def export_lines(store: Store, run: RunId) -> list[bytes]:
    """Return the journal of `run` as another store can adopt it: without encryption."""
    return [line for line, _ in await read_decrypted_lines(store, run)]


def make_started(agent: str = "researcher", task: str = "compare") -> RunStarted:
    """Return the first entry of a run."""
    return RunStarted(agent=agent, task=task)


def make_head(
    phase: Phase = Phase.QUEUED, *, leased: bool = False, agent: str = "researcher"
) -> Head:
    """Return a head with these fields."""
    return Head(phase=phase, leased=leased, agent=agent)


def make_message(text: str = "hello") -> MessageReceived:
    """Return an entry that every writer may append at any time."""
    return MessageReceived(text=text)


def make_call_done(call: str = "c1", result: object = None) -> CallDone:
    """Return an entry that only a driver may append."""
    return CallDone(call=CallId(call), result=result)


def make_call_started(call: str = "c1") -> CallStarted:
    """Return the start of a call."""
    return CallStarted(call=CallId(call), call_kind="tool", attempt=1, seen=Seq(1))


def make_imported(run: RunId, lines: Iterable[bytes]) -> RunImported:
    """Return the entry that records the import of `lines` as the journal of `run`."""
    return RunImported(
        checkpoint=run, head=UNKEYED_CHAIN.compute_head(run, lines).hex(), by="ann"
    )


async def pause_run(store: Store, run: RunId, after: int) -> AppendResult:
    """Bring a run to rest; only then can it leave with a checkpoint."""
    entries = (PauseRequested(), RunPaused())
    return await store.append(
        run, entries, after=Seq(after), lease=None, head=make_head(Phase.PAUSED)
    )


async def create_run(
    store: Store, run: RunId = RUN, *, head: Head | None = None
) -> AppendResult:
    """Create a run."""
    return await store.create(run, [make_started()], head=head or Head(phase=Phase.QUEUED))


async def append_message(
    store: Store, run: RunId, after: int, text: str = "hello"
) -> AppendResult:
    """Append a message after `after`."""
    return await store.append(
        run, [make_message(text)], after=Seq(after), lease=None, head=Head(phase=Phase.QUEUED)
    )


async def take_lease(
    store: Store, run: RunId, after: int, holder: str, epoch: int = 1
) -> Lease:
    """Take the lease of a run whose last seq is `after`."""
    taken = LeaseTaken(epoch=Epoch(epoch), holder=holder)
    running = make_head(Phase.RUNNING, leased=True)
    lease, _ = await store.take_lease(
        run, [taken], after=Seq(after), holder=holder, head=running
    )
    return lease


def make_example(kind: type[Entry]) -> Entry:
    """Return an entry of `kind` with a value in every required field."""
    hints = get_type_hints(kind)
    needed = {
        field.name: _example_value(hints[field.name])
        for field in fields(kind)
        if field.required
    }
    return kind(**needed)  # type: ignore[arg-type]  # built from the type hints themselves


def _example_value(hint: object) -> object:
    while isinstance(hint, NewType):
        hint = hint.__supertype__
    if get_origin(hint) is Literal:
        return get_args(hint)[0]
    if get_args(hint) and get_origin(hint) not in {dict, tuple}:
        return None if type(None) in get_args(hint) else _example_value(get_args(hint)[0])
    made: dict[object, object] = {
        str: "x",
        int: 1,
        bool: True,
        get_type_hints(RequestedCall)["args"]: {"a": [1, 2.5, None]},
        RequestedCall: RequestedCall(tool="t", args={"n": 1}),
        Decision: Decision(choice="answer", value="yes"),
        Phase: Phase.PAUSED,
    }
    made[FileRef] = FileRef(name="x", media_type="text/plain", size=0, hash=EMPTY_FILE_HASH)
    if isinstance(hint, type) and issubclass(hint, Struct) and hint not in made:
        return hint()
    return made[hint] if hint in made else (get_origin(hint) or tuple)()
