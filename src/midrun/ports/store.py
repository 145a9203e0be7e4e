"""What a store is: journals, leases, lists and latches behind one small Protocol.

The order of a journal decides every race. A writer says *after seq n, under lease e, or not at
all*, and the store checks that, stamps the entries (`seq`, `at`, epoch), ties them into the
chain and moves the run's head, all in one transaction. It does not fold what it appends: what
it knows about a run is the `Head` that the caller computed from the very entries.

`midrun.testing.store_suite` is this contract as tests; an implementation is a store when it
passes.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Generic, Literal, Protocol, TypeVar, runtime_checkable

from msgspec import Struct

from midrun.core.entries import Entry, Record, RunImported
from midrun.core.ids import START, Epoch, Micros, RunId, Seq
from midrun.core.run_head import Head
from midrun.core.values import Phase

T = TypeVar("T")

Durability = Literal["full", "relaxed"]
"""What a crash of the machine may cost: nothing, or the newest entries."""


class Lease(Struct, frozen=True, kw_only=True):
    """The right to drive one run, until somebody takes the next epoch."""

    run: RunId
    holder: str
    epoch: Epoch


class Appended(Struct, frozen=True, kw_only=True):
    """What an append led to: the new head of the journal, and when the store says it was."""

    seq: Seq
    at: Micros
    hash: bytes


class Snapshot(Struct, frozen=True, kw_only=True):
    """A cached state at a seq. `hash` is the chain's at that seq; `body` is the caller's."""

    seq: Seq
    hash: bytes
    body: bytes


class RunRow(Struct, frozen=True, kw_only=True):
    """A run as lists show it."""

    run: RunId
    head: Head
    seq: Seq
    hash: bytes
    epoch: Epoch
    holder: str  # empty: nobody has the lease
    started_at: Micros
    changed_at: Micros


class Halt(Struct, frozen=True, kw_only=True):
    """An operator's latch. `scope` is `all`, `agent:NAME`, `label:LABEL` or `run:ID`."""

    scope: str
    by: str
    reason: str = ""
    at: Micros = Micros(0)  # stamped by the store

    def covers(self, run: RunId, agent: str, labels: Sequence[str]) -> bool:
        """Tell whether nothing of this run may start while the latch holds."""
        kind, _, name = self.scope.partition(":")
        match kind:
            case "all":
                return True
            case "agent":
                return name == agent
            case "label":
                return name in labels
            case _:
                return kind == "run" and name == run


def covering(limits: Mapping[str, int] | None, head: Head) -> dict[str, int]:
    """Return those of `limits` that a run with this head counts for, by scope.

    A limit is how many runs may be held at once by those who are alive; its scope is `all`,
    `agent:NAME` or `label:LABEL`.
    """
    scopes = ("all", f"agent:{head.agent}", *(f"label:{label}" for label in head.labels))
    return {scope: limits[scope] for scope in scopes if scope in limits} if limits else {}


class Change(Struct, frozen=True, kw_only=True):
    """A run has grown to `seq`, at least. An empty `run` says that the latches changed.

    `held` is said where the store knows it at once: somebody has the lease, so that whoever
    only looks for runs to drive need not look at this one.
    """

    run: RunId
    seq: Seq
    held: bool = False


class Query(Struct, frozen=True, kw_only=True):
    """Which runs to list. A filter that is left empty does not apply; all others must hold.

    `owner` is the user whose runs these are. `decider` is a user who may look for asks: runs
    of their own, and runs with an open ask that names them.
    """

    phases: tuple[Phase, ...] = ()
    agent: str = ""
    label: str = ""
    thread: str = ""
    parent: RunId = RunId("")
    owner: str = ""
    decider: str = ""
    attention: bool = False
    limit: int = 50
    cursor: str = ""


class Page(Struct, Generic[T], frozen=True, kw_only=True):
    """Some of a list. An empty `cursor` says that this is the end of it."""

    items: tuple[T, ...]
    cursor: str = ""


class Usage(Struct, frozen=True, kw_only=True):
    """The resources that the runs of one owner use, for quotas."""

    open_runs: int = 0  # that have not ended
    runs: int = 0  # started since the time that was asked about, and ...
    cost: int = 0  # ... spent by those, in millionths of a dollar
    tokens: int = 0
    stored_bytes: int = 0  # of the journals of all runs; 0 where it was not asked for


class Store(Protocol):
    """Keeps journals, snapshots, leases and halts.

    Every method is atomic and may be called concurrently, from any event loop of the process.
    What was acknowledged is durable. A method that raised has changed nothing. A caller that is
    cancelled while it waits cannot know: its append may have happened, all of it, or not.

    Every method that is handed what no store could keep says so before it changes anything:
    `NotJson` or `TooLarge` for entries and heads, `ValueError` for the rest (a negative
    `after` or `limit`, an empty holder, text that is not Unicode).
    """

    async def create(self, run: RunId, entries: Sequence[Entry], *, head: Head) -> Appended:
        """Begin the journal of `run`; the first entry is a `RunStarted`.

        The agent, thread, labels, parent and owner of `head` are those of the run for ever.

        Raises:
            RunExists: there is one of this id; nothing was changed.
            TooLarge: a name in `head` is longer than `NAME_MAX_CHARS`.
            KindRefused: an entry that only a driver may write.
            NotJson, TooLarge: see `codec`.
        """
        ...

    async def adopt(
        self, run: RunId, lines: Sequence[bytes], imported: RunImported, *, head: Head
    ) -> Appended:
        """Begin the journal of `run` with lines of another store, byte for byte.

        Every line must be canonical, its time no earlier than the one before, and each entry
        one that can follow. The store cannot check who wrote them. It appends `imported`,
        which says who brought them, in the same transaction.

        Raises:
            RunExists: there is one of this id; nothing was changed.
            JournalCorrupt, JournalTooNew: the lines are not a journal that can be read.
            NotJson: a field of `head` cannot be stored.
        """
        ...

    async def append(
        self,
        run: RunId,
        entries: Sequence[Entry],
        *,
        after: Seq | None,
        lease: Lease | None,
        head: Head | None,
        starts: bool = False,
        at: Micros | None = None,
    ) -> Appended:
        """Add all of `entries` or none of them, and move the head.

        `after` is the newest entry that the decision had seen. Only the holder of the lease may
        leave it out, and only for `CLOSINGS`, which are true whatever happened since; then
        `head` must be None and the head stays as it is. A head that is not `leased` gives the
        lease back.

        `at` is when it was decided, by the clock that decisions on its runs go by: that of a
        `Timed` store, else this process's. The entries are stamped with it, so that the caller
        knows their time before.

        Halts are checked in the same transaction if any of the entries starts something. The
        store sees that for itself; `starts` asks for the check besides.

        Raises:
            RunNotFound: no such run.
            StaleEpoch: the lease is not in force any more. Checked before everything else.
            SeqConflict: the journal does not end at `after`; read on and decide again.
            HaltInForce: something would start, and a latch covers the run.
            KindRefused: this writer may not append such an entry, or not without `after`.
            NotJson, TooLarge: see `codec`.
        """
        ...

    async def take(
        self,
        run: RunId,
        entries: Sequence[Entry],
        *,
        after: Seq,
        holder: str,
        head: Head,
        limits: Mapping[str, int] | None = None,
    ) -> tuple[Lease, Appended]:
        """Take the lease and append `entries` under it, in one transaction.

        The first entry is a `LeaseTaken` whose epoch is the next one: the row's plus one. It
        succeeds when the lease is free, when its holder has not been heard of in time, and when
        it is the caller's own, whose older epoch is fenced off then like any other. Let the
        holder `beat` first, or its new lease is as good as free.

        `limits` are counted in the same transaction, see `covering`: however many take at once,
        no more are held. What is the caller's own already has its place.

        Raises:
            RunNotFound: no such run.
            LeaseHeld: somebody else holds it and is alive.
            NoRoom: a limit is reached.
            SeqConflict: the journal does not end at `after`.
            HaltInForce: something would start, and a latch covers the run.
            KindRefused, NotJson, TooLarge: as with `append`.
        """
        ...

    async def read(
        self, run: RunId, *, after: Seq = START, limit: int | None = None
    ) -> Sequence[Record]:
        """Return the entries that follow `after`, oldest first.

        The chain is checked on the way, so that nothing is driven on a changed journal.

        Raises:
            RunNotFound: no such run.
            JournalCorrupt, JournalTooNew: the journal cannot be read by this process.
        """
        ...

    async def lines(
        self, run: RunId, *, after: Seq = START, limit: int | None = None
    ) -> Sequence[tuple[bytes, bytes]]:
        """Return the stored lines that follow `after` with their stored hashes, unchecked."""
        ...

    async def row(self, run: RunId) -> RunRow:
        """Return what lists show of one run.

        Raises:
            RunNotFound: no such run.
        """
        ...

    async def save_snapshot(self, run: RunId, snapshot: Snapshot) -> None:
        """Keep `snapshot` unless a newer one is kept already."""
        ...

    async def load_snapshot(self, run: RunId) -> Snapshot | None:
        """Return the newest snapshot whose hash is the chain's at its seq; else None."""
        ...

    async def drop_snapshots(self, run: RunId) -> None:
        """Forget the snapshots of `run`. Nothing but time is lost."""
        ...

    async def beat(self, holder: str, *, ttl: timedelta, lag: float = 0.0) -> None:
        """Keep all leases of `holder` alive for `ttl` from now, by the store's clock.

        A clock that is set back by less than `ttl` costs nobody a lease, one that is set back
        further those who do not beat again soon; no silent holder gains more than `ttl`.

        `lag` is how far the holder's event loop is behind, in seconds, for those who look.
        """
        ...

    async def rest(self, holder: str) -> None:
        """Let go: whatever `holder` still holds is free to be taken at once."""
        ...

    async def holders(self) -> Mapping[str, float]:
        """Return the holders that are alive, each with its lag."""
        ...

    async def runs(self, query: Query) -> Page[RunRow]:
        """Return a page of runs, newest first by creation.

        Paging is stable: a run that is there throughout is seen exactly once, whatever is
        created or changed meanwhile.

        Raises:
            CursorRefused: the cursor is not one of ours.
        """
        ...

    async def usage(self, owner: str, *, since: Micros, sizes: bool = True) -> Usage:
        """Return how much the runs of `owner` take.

        Without `sizes` no journal is looked at: their sizes take time to sum up.
        """
        ...

    async def counts(self) -> Mapping[Phase, int]:
        """Return how many runs there are in each phase; phases without runs are left out."""
        ...

    async def drivable(self, *, limit: int, agents: Sequence[str] = ()) -> Sequence[RunId]:
        """Return runs that need a driver and have none that is alive, oldest first.

        With `agents`, only theirs: runs of agents that a process does not know must not keep
        it from those that it does.
        """
        ...

    async def due(self, *, limit: int) -> Sequence[RunId]:
        """Return runs whose `wake_at` has come by the store's clock, the longest due first."""
        ...

    async def halt(self, halt: Halt) -> None:
        """Set a latch; one that is set already stays as it is, with who set it first.

        Raises:
            ValueError: the scope is none of the four forms.
        """
        ...

    async def lift(self, scope: str) -> bool:
        """Take a latch away, and tell whether there was one."""
        ...

    async def halts(self) -> Sequence[Halt]:
        """Return the latches that hold now, oldest first."""
        ...

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[Change]]:
        """Watch every run of the store for as long as the context is open.

        Appends of this process come at once, those of others within milliseconds. A slow
        watcher misses steps in between but never the newest seq of any run. A change may come
        twice. The iteration ends when the store is closed.
        """
        ...

    async def close(self) -> None:
        """Finish what was handed over, then let go of everything. A second time is a no-op."""
        ...


@runtime_checkable
class Indexed(Protocol):
    """A store that selects runs by columns that it keeps beside the head."""

    async def indexed_row(self, run: RunId) -> tuple[RunRow, Mapping[str, object]]:
        """Return the row of `run` and, from the same read, those columns by name.

        Each has the name of the field of `Head` that it is a copy of.

        Raises:
            RunNotFound: no such run.
        """
        ...


@runtime_checkable
class Timed(Protocol):
    """A store that has a time of its own, which all processes that share it go by."""

    def clock(self) -> Micros:
        """Return what time it is in the store; close enough, and never asked of anybody."""
        ...
