"""The port of a store: journals, leases, snapshots, lists and halts.

The order of a journal decides every race. A writer appends *after seq n, under lease e, or not
at all*. In one transaction the store checks both, stamps the entries (`seq`, `at`, epoch),
links them into the hash chain, and replaces the head of the run. The head (`core.run_head`) is
the row that lists, timers and leases need. The caller computes it from the same entries, so a
store never folds a journal.

`midrun.testing.store_suite` is this contract as tests; an implementation that passes it is a
store.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Final, Generic, Literal, Protocol, TypeVar, runtime_checkable

from msgspec import Struct

from midrun.core.entries import Entry, Record, RunImported, RunStarted
from midrun.core.ids import SEQ_ZERO, Epoch, Micros, RunId, Seq
from midrun.core.run_head import Head
from midrun.core.values import Phase
from midrun.errors import StoreError

T = TypeVar("T")

Durability = Literal["full", "relaxed"]
"""The loss after a crash of the machine: nothing, or the newest entries."""


class Lease(Struct, frozen=True, kw_only=True):
    """The right to drive one run, until another holder takes the next epoch."""

    run: RunId
    holder: str
    epoch: Epoch


class AppendResult(Struct, frozen=True, kw_only=True):
    """The result of an append: seq, time and hash of its last entry."""

    seq: Seq
    at: Micros
    hash: bytes


class Snapshot(Struct, frozen=True, kw_only=True):
    """A cached state at a seq. `hash` is that of the chain; `body` is opaque to the store."""

    seq: Seq
    hash: bytes
    body: bytes


class RunRow(Struct, frozen=True, kw_only=True):
    """A run as shown in lists: its head, and the position and lease of its journal."""

    run: RunId
    head: Head
    seq: Seq
    hash: bytes
    epoch: Epoch
    holder: str  # empty: the lease is free
    started_at: Micros
    changed_at: Micros


class HaltRecord(Struct, frozen=True, kw_only=True):
    """An operator's halt. `scope` is `all`, `agent:NAME`, `label:LABEL` or `run:ID`.

    It covers runs of its tenant; a halt whose tenant is None covers runs of all tenants. A
    tenant and a scope have at most one halt.
    """

    scope: str
    by: str
    reason: str = ""
    at: Micros = Micros(0)  # stamped by the store
    tenant: str | None = None

    def covers(self, run: RunId, traits: Head | RunStarted) -> bool:
        """Tell whether the halt covers this run, so that no call of it may start."""
        # A halt of one tenant's operator must not stop another tenant, whatever its scope
        # names.
        if self.tenant not in {None, traits.tenant}:
            return False
        kind, _, name = self.scope.partition(":")
        match kind:
            case "all":
                return True
            case "agent":
                return name == traits.agent
            case "label":
                return name in traits.labels
            case _:  # a scope of an unknown form covers nothing; stores refuse to set one
                return kind == "run" and name == run


def select_limits(limits: Mapping[str, int] | None, head: Head) -> dict[str, int]:
    """Select the concurrency limits that a run with this head counts for, by scope.

    A limit is the number of runs that live holders may lease at the same time; its scope is
    `all`, `agent:NAME`, `label:LABEL` or `tenant:NAME`.
    """
    scopes = [*("all", f"agent:{head.agent}"), *(f"label:{label}" for label in head.labels)]
    scopes += [f"tenant:{head.tenant}"] if head.tenant else []
    return {scope: limits[scope] for scope in scopes if scope in limits} if limits else {}


class Change(Struct, frozen=True, kw_only=True):
    """A run has grown to at least `seq`; an empty `run` means that the halts changed.

    `held` is True if the store knows, without a query, that the run is leased. A worker that
    looks for runs to drive can then skip it.
    """

    run: RunId
    seq: Seq
    held: bool = False


class Visibility(Struct, frozen=True, kw_only=True):
    """The runs that a caller may see; the others do not exist for the caller.

    With a `tenant`, only its runs; "" is the default tenant, and None means all tenants. With
    an `owner`, only the runs of this user and those that are shared with one of `teams`.
    """

    tenant: str | None = None
    owner: str = ""
    teams: tuple[str, ...] = ()

    def includes(self, head: Head) -> bool:
        """Tell whether a run with this head is visible; the SQL queries agree."""
        # The tenant comes first and has no exception: a team of the same name in another tenant
        # is another team.
        if self.tenant not in {None, head.tenant}:
            return False
        return self.owner in {"", head.owner} or (head.team != "" and head.team in self.teams)


ALL_RUNS: Final = Visibility()
"""All runs are visible: to workers, to commands on the store, and to operators of no tenant."""


class RunQuery(Struct, frozen=True, kw_only=True):
    """Selects runs for a list. An empty filter does not apply; all others must match.

    `search` selects the runs whose task, agent, labels or output have, for each of its words, a
    word that begins with it. `owner` selects the runs of a user, and with `teams` also those
    that are shared with one of these teams. `decider` selects the same runs as `owner`, and all
    runs with an open ask that names this user. `tenant` selects the runs of one tenant; "" is
    the default tenant, and None means all tenants. Tenant, owner and teams also bound which
    cursors are accepted.
    """

    phases: tuple[Phase, ...] = ()
    agent: str = ""
    label: str = ""
    thread: str = ""
    parent: RunId = RunId("")
    tenant: str | None = None
    owner: str = ""
    teams: tuple[str, ...] = ()
    decider: str = ""
    attention: bool = False
    search: str = ""
    limit: int = 50
    cursor: str = ""


class Page(Struct, Generic[T], frozen=True, kw_only=True):
    """A page of a list. An empty `cursor` means that it is the last one."""

    items: tuple[T, ...]
    cursor: str = ""


class EndedQuery(Struct, frozen=True, kw_only=True):
    """Selects runs that may be deleted, for deletion and retention.

    It selects runs in a phase of `DELETABLE_PHASES` that are no child of a stored run and whose
    last entry is older than `before`. An empty filter does not apply; all others must match.
    """

    before: Micros
    agent: str = ""
    label: str = ""
    thread: str = ""
    tenant: str | None = None  # None: of all tenants
    owner: str = ""
    limit: int = 50
    cursor: str = ""


class Tombstone(Struct, frozen=True, kw_only=True):
    """The rest of a deleted run. `seq` and `hash` are those of its last entry.

    `proof` links the other fields to `hash`, by the hash chain of the store: with a key, only
    a holder of the key can make a tombstone.
    """

    run: RunId
    seq: Seq
    hash: bytes
    by: str
    at: Micros
    reason: str
    proof: bytes
    tenant: str = ""


class DeletedRuns(Struct, frozen=True, kw_only=True):
    """The tombstones of runs that were deleted, and the reasons of runs that were not."""

    tombstones: tuple[Tombstone, ...] = ()
    refusals: tuple[StoreError, ...] = ()


class OwnerUsage(Struct, frozen=True, kw_only=True):
    """The resources that the runs of one tenant, or of one owner in it, use, for quotas."""

    open_runs: int = 0  # runs that have not ended
    runs: int = 0  # runs started since the given time ...
    cost: int = 0  # ... and their cost, in millionths of a dollar
    tokens: int = 0
    oldest_start: Micros | None = None  # of those runs
    stored_bytes: int = 0  # journals and files of all runs; 0 if `sizes` was False


class RunQuota(Struct, frozen=True, kw_only=True):
    """A bound on the runs of one tenant, or of one owner in it, for the creation of one more.

    None means no bound.
    """

    tenant: str
    owner: str = ""  # "": of all owners
    open_runs: int | None = None  # runs that have not ended
    recent_runs: int | None = None  # runs that were started at `since` or later
    since: Micros = Micros(0)


class RunGroup(Struct, frozen=True, kw_only=True):
    """The runs of one agent in one phase, for monitoring.

    `oldest_change` is the time of the newest entry of the run that has not changed for the
    longest time, `oldest_asking` the same among the runs with open asks. While a run is driven,
    the store may know an earlier time than that of its newest entry.
    """

    agent: str
    phase: Phase
    runs: int
    asks: int  # open asks of these runs
    oldest_change: Micros
    oldest_asking: Micros | None = None


class Store(Protocol):
    """Stores journals, snapshots, leases and halts.

    Every method is atomic and may be called concurrently, from any event loop of the process.
    An acknowledged change is durable. A method that raised has changed nothing, except for
    `StoreUnreachable`: a lost connection, like a cancelled caller, leaves open whether the
    append happened. It happened as a whole or not at all; the journal tells.

    Every method validates its arguments before it changes anything. It raises `NotJson` or
    `TooLarge` for entries and heads, `ValueError` for the rest (a negative `after` or `limit`,
    an empty holder, text that is not Unicode).
    """

    async def create(
        self,
        run: RunId,
        entries: Sequence[Entry],
        *,
        head: Head,
        files: Mapping[str, bytes] | None = None,
        quotas: Sequence[RunQuota] = (),
    ) -> AppendResult:
        """Create the journal of `run`; the first entry is a `RunStarted`.

        The agent, thread, labels, parent, owner, tenant and team of `head` never change
        afterwards.

        `files` has bodies by hash, the SHA-256 in hex. Those that the entries name
        (`core.files`) are stored with the entries, as a whole or not at all, and once however
        many runs have them. A body that the store has already may be left out.

        The runs of each of `quotas` are counted in the same transaction, so that concurrent
        calls cannot exceed one of them.

        Raises:
            RunExists: a run of this id exists. Checked before the quotas.
            QuotaReached: the run would exceed one of `quotas`.
            RunErased: a run of this id was deleted.
            TooLarge: a name in `head` is longer than `NAME_MAX_CHARS`.
            KindRefused: only a driver may write one of the entries.
            FileMissing: an entry names a file that is neither given nor stored.
            NotJson, TooLarge: see `codec`.
        """
        ...

    async def adopt(
        self,
        run: RunId,
        lines: Sequence[bytes],
        imported: RunImported,
        *,
        head: Head,
        files: Mapping[str, bytes] | None = None,
    ) -> AppendResult:
        """Create the journal of `run` from the lines of another store, byte for byte.

        Every line must be canonical, times must not decrease, and each entry must fit the phase
        before it. The store cannot check who wrote the lines. In the same transaction it
        appends `imported`, which names the person who imported them. `files` as with `create`.

        Raises:
            RunExists: a run of this id exists.
            FileMissing: as with `create`.
            JournalCorrupt, JournalTooNew: the lines are not a readable journal.
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
        files: Mapping[str, bytes] | None = None,
    ) -> AppendResult:
        """Append all of `entries` or none of them, and replace the head.

        `after` is the newest entry that the decision has seen. Only the lease holder may pass
        None, and only for `CLOSING_ENTRY_TYPES`, which are true whatever was appended
        meanwhile. Then `head` must be None, and the head stays as it is. A head that is not
        `leased` gives the lease back.

        `at` is the time of the decision by the clock of the store (`HasClock`), else of this
        process. The entries are stamped with it, so that the caller knows their time in
        advance. The store never stamps an earlier time than that of the entry before.

        If one of the entries starts a call or an undo, halts are checked in the same
        transaction; `starts=True` demands the check for other entries, too.

        `files` as with `create`.

        Raises:
            RunNotFound: no such run.
            StaleEpoch: the lease is no longer in force. Checked before everything else.
            SeqConflict: the journal does not end at `after`; read on and decide again.
            HaltInForce: something would start, and a halt covers the run.
            KindRefused: this writer may not append such an entry, or not without `after`.
            FileMissing: as with `create`.
            NotJson, TooLarge: see `codec`.
        """
        ...

    async def take_lease(
        self,
        run: RunId,
        entries: Sequence[Entry],
        *,
        after: Seq,
        holder: str,
        head: Head,
        limits: Mapping[str, int] | None = None,
        at: Micros | None = None,
    ) -> tuple[Lease, AppendResult]:
        """Take the lease and append `entries` under it, in one transaction.

        The first entry is a `LeaseTaken` with the next epoch: that of the row plus one. It
        succeeds if the lease is free, if the heartbeats of its holder have expired, and if the
        caller holds it already. In each case appends of the older epoch are refused from then
        on. Record a heartbeat of the holder first: without one, the new lease counts as expired
        and another process may take it.

        `limits` are counted in the same transaction (`select_limits`), so that concurrent calls
        cannot exceed them. A run that the caller holds already is counted once. `at` is the
        time of the decision, as with `append`.

        Raises:
            RunNotFound: no such run.
            LeaseHeld: another holder has it and is alive.
            NoRoom: a limit is reached.
            SeqConflict: the journal does not end at `after`.
            HaltInForce: something would start, and a halt covers the run.
            KindRefused, NotJson, TooLarge: as with `append`.
        """
        ...

    async def read(
        self, run: RunId, *, after: Seq = SEQ_ZERO, limit: int | None = None
    ) -> Sequence[Record]:
        """Return the entries that follow `after`, oldest first.

        The hash chain is verified, so that no worker acts on a changed journal.

        Raises:
            RunNotFound: no such run.
            JournalCorrupt, JournalTooNew: this process cannot read the journal.
        """
        ...

    async def read_lines(
        self, run: RunId, *, after: Seq = SEQ_ZERO, limit: int | None = None
    ) -> Sequence[tuple[bytes, bytes]]:
        """Return the stored lines that follow `after` with their hashes, not verified."""
        ...

    async def read_file(self, run: RunId, file_hash: str) -> bytes:
        """Return the body of a file that an entry of `run` names.

        Raises:
            RunNotFound: no such run.
            FileMissing: no entry of the run names a file of this hash.
        """
        ...

    async def get_row(self, run: RunId, seen_by: Visibility = ALL_RUNS) -> RunRow:
        """Return the row of one run.

        Raises:
            RunNotFound: no such run, or none that `seen_by` includes.
            RunErased: the run was deleted, and `seen_by` includes all owners of its tenant.
        """
        ...

    async def save_snapshot(self, run: RunId, snapshot: Snapshot) -> None:
        """Store `snapshot`, unless there is a newer one."""
        ...

    async def load_snapshot(self, run: RunId) -> Snapshot | None:
        """Return the newest snapshot whose hash equals the chain's at its seq; else None."""
        ...

    async def record_heartbeat(self, holder: str, *, ttl: timedelta, lag: float = 0.0) -> None:
        """Record a heartbeat: all leases of `holder` live for `ttl` from now.

        Time is that of the store's clock. If that is set back by less than `ttl`, no holder
        loses a lease. If it is set back further, holders lose theirs unless they send a
        heartbeat soon. A silent holder never gains more than `ttl`.

        `lag` is the delay of the holder's event loop in seconds, for monitoring.
        """
        ...

    async def release_leases(self, holder: str) -> None:
        """Free all leases of `holder` at once."""
        ...

    async def drop_leases(self) -> None:
        """Take every lease from its holder, alive or not, for a store that was restored.

        A holder that is still alive gets `StaleEpoch` for its next append.
        """
        ...

    async def list_holders(self) -> Mapping[str, float]:
        """Return the live holders, each with its lag in seconds."""
        ...

    async def list_runs(self, query: RunQuery) -> Page[RunRow]:
        """Return a page of runs, newest first by creation.

        Paging is stable: a run that exists from the first page to the last is returned exactly
        once, whatever is created or changed meanwhile.

        Raises:
            CursorRefused: no list returned this cursor.
        """
        ...

    async def get_usage(
        self, owner: str, *, since: Micros, sizes: bool = True, tenant: str = ""
    ) -> OwnerUsage:
        """Return the resources that the runs of `owner` in `tenant` use; "" means all owners.

        `sizes=False` skips the sizes of journals and files, which take time to add up.
        """
        ...

    async def count_runs_by_phase(self, tenant: str | None = None) -> Mapping[Phase, int]:
        """Return the number of runs in each phase; phases without runs are left out.

        `tenant` selects the runs of one tenant.
        """
        ...

    async def count_open_runs(self) -> Sequence[RunGroup]:
        """Return the runs that have not ended, grouped by agent and phase.

        It does not read runs that are completed or cancelled, so that it is fast however many
        of them are stored.
        """
        ...

    async def list_drivable(self, *, limit: int, agents: Sequence[str] = ()) -> Sequence[RunId]:
        """Return runs that need a driver and have no live one, oldest first.

        `agents` selects the runs of these agents. Otherwise runs of agents that a process does
        not know could fill every page and hide those that it could drive.
        """
        ...

    async def list_due(self, *, limit: int) -> Sequence[RunId]:
        """Return runs whose `wake_at` has passed by the store's clock, oldest first."""
        ...

    async def set_halt(self, halt: HaltRecord) -> None:
        """Set a halt; if the scope is halted already, nothing changes.

        Raises:
            ValueError: the scope has none of the four forms.
        """
        ...

    async def remove_halt(self, scope: str, tenant: str | None = None) -> bool:
        """Remove the halt of `scope` and `tenant`, and tell whether there was one."""
        ...

    async def list_halts(self, tenant: str | None = None) -> Sequence[HaltRecord]:
        """Return the halts in force, oldest first; with a tenant, those that concern it."""
        ...

    async def list_ended(self, query: EndedQuery) -> Page[RunRow]:
        """Return a page of runs that may be deleted, by the time of their last entry.

        Raises:
            CursorRefused: no list returned this cursor.
        """
        ...

    async def delete_runs(
        self, runs: Sequence[RunId], *, by: str, reason: str = "", tenant: str | None = None
    ) -> DeletedRuns:
        """Delete runs with all their child runs, in one transaction; leave tombstones.

        From then on every method raises `RunErased` for these runs, and no run of their ids can
        be created. Rows, labels, snapshots and follower cursors are removed at once; entries
        and chunks by `remove_leftovers`. A watch reports each run with the seq after its last
        entry.

        A run that is refused does not keep the others from being deleted. Its reason is
        `RunNotFound`, `RunErased`, or `DeleteRefused`: the run or a child of it has not ended,
        or it is the child of a stored run. With a tenant, a run of another one is not found.
        """
        ...

    async def remove_leftovers(self) -> bool:
        """Remove a bounded part of the entries of deleted runs, and free their space.

        Returns False if nothing is left to do. A process that was killed between `delete_runs`
        and this leaves entries behind that no method returns; any process can continue it.
        """
        ...

    async def get_tombstone(self, run: RunId, tenant: str | None = None) -> Tombstone:
        """Return the tombstone of a deleted run.

        Raises:
            RunNotFound: the store has no tombstone of this run, or not of this tenant.
        """
        ...

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[Change]]:
        """Watch every run of the store while the context is open.

        Appends of this process arrive at once, those of other processes within milliseconds. A
        slow watcher misses intermediate changes, but never the newest seq of a run. A change
        may arrive twice. The iteration ends when the store is closed.
        """
        ...

    async def close(self) -> None:
        """Finish pending writes, then free all resources. A second call does nothing."""
        ...


@runtime_checkable
class HasIndexedRow(Protocol):
    """A store that selects runs by columns which repeat fields of the head."""

    async def get_indexed_row(self, run: RunId) -> tuple[RunRow, Mapping[str, object]]:
        """Return the row of `run` and, from the same read, these columns by name.

        A column has the name of the field of `Head` that it repeats. `Midrun.verify` compares
        them.

        Raises:
            RunNotFound: no such run.
        """
        ...


@runtime_checkable
class HasWriteTimes(Protocol):
    """A store that reports how long its writes of journals take."""

    on_write: Callable[[float], None] | None
    """Called after each write with its seconds, also if it was refused; None: not measured."""


@runtime_checkable
class HasClock(Protocol):
    """A store with a clock of its own, which all processes that share it use."""

    def clock(self) -> Micros:
        """Return the estimated time of the store, without a request to the server."""
        ...
