"""The journal of the simulated run: the real memory store, and the folded state beside it.

All threads of a schedule read and append here. An append was decided on a state that may be
outdated; then the store refuses it.
"""

from collections import Counter
from collections.abc import Coroutine
from datetime import timedelta
from typing import Final, TypeVar

from midrun.codec.snapshot import decode_snapshot, encode_snapshot
from midrun.core import transitions
from midrun.core.decide import decide
from midrun.core.driver_inputs import DriverInput, TakeLease
from midrun.core.entries import Entry, Record
from midrun.core.evolve import apply_entries, evolve, fold
from midrun.core.ids import Epoch, Micros, RunId, Seq
from midrun.core.run_head import Head, build_head
from midrun.core.scheduler import Reserve, advance, start_all
from midrun.core.state import State
from midrun.core.transitions import (
    ADVANCE_TABLE,
    INPUT_TABLE,
    START_ENTRY_TYPES,
    Accepted,
    Input,
    Refused,
    Verdict,
)
from midrun.errors import JournalCorrupt, LeaseHeld, SeqConflict
from midrun.ports.environment import Clock
from midrun.ports.store import AppendResult, HaltRecord, Lease, Snapshot
from midrun.stores.memory import MemoryStore
from tests.support.simulate.checks import Violation

T = TypeVar("T")

HEARTBEAT_TTL: Final = timedelta(days=36_500)
"""Leases do not expire with simulated time, only by `expire_lease`."""


class ImmediateStore(MemoryStore):
    """The memory store without its yields: the scheduler picks the next thread."""

    async def _yield_and_check_open(self) -> None:
        return


def run_now(coroutine: Coroutine[object, None, T]) -> T:
    """Run a coroutine that never waits, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # what the coroutine returned
    raise RuntimeError("the store waited for something")


class Batch:
    """The entries of one append; each input is decided on the state after the inputs before."""

    __slots__ = ("base", "entries", "now", "state")

    def __init__(self, base: State, now: Micros) -> None:
        self.base = base
        self.state = base
        self.now = now
        self.entries: tuple[Entry, ...] = ()

    def add(self, run_input: Input) -> Verdict:
        """Decide the input, and add its entries."""
        try:
            verdict = decide(self.state, run_input, self.now)
            after = apply_entries(self.state, verdict.entries, self.now)
        except JournalCorrupt as error:
            raise Violation("FOLD", f"{run_input} was decided, but {error}") from error
        if not verdict.entries:
            return verdict
        cell = INPUT_TABLE[type(run_input)][self.state.phase]
        if isinstance(verdict, Accepted) and after.phase not in cell.next_phases:
            raise Violation(
                "TABLE", f"{run_input} led from {self.state.phase} to {after.phase}"
            )
        self.entries += verdict.entries
        self.state = after
        return verdict

    def advance(self, reserve: Reserve) -> bool:
        """Add the next entries that follow from the journal alone; False if there are none."""
        entries = advance(self.state, self.now, reserve, start_all)
        if not entries:
            return False
        try:
            after = apply_entries(self.state, entries, self.now)
        except JournalCorrupt as error:
            raise Violation("FOLD", f"{entries} follow, but {error}") from error
        if after.phase not in ADVANCE_TABLE[self.state.phase]:
            raise Violation("TABLE", f"{entries} led from {self.state.phase} to {after.phase}")
        self.entries += entries
        self.state = after
        return True


class SimulatedJournal:
    """The journal of one run, its store and its current state."""

    def __init__(self, run: RunId, clock: Clock) -> None:
        self.run = run
        self.clock = clock
        self.store = ImmediateStore(clock=clock)
        self.state = State(run=run)
        self.entry_counts: Counter[type[Entry]] = Counter()
        self.entries_with_epochs: list[tuple[Entry, Epoch | None]] = []
        self.hash = b""
        self.conflict_count = 0
        self.refusal_counts: Counter[str] = Counter()
        self.halt_scopes: tuple[str, ...] = ()  # of the halts that cover the run
        self.holder = ""
        self._is_drivable: bool | None = None  # None: unknown, ask the store
        self.wake_at: Micros | None = None  # from the stored head

    def make_batch(self, state: State | None = None) -> Batch:
        """Return an empty batch on top of `state`, or of the newest one."""
        return Batch(state or self.state, self.clock())

    def create(self, batch: Batch, *entries: Entry) -> None:
        """Create the run with its first entries."""
        batch.entries = entries
        batch.state = apply_entries(batch.base, entries, batch.now)
        head = build_head(batch.state)
        self._apply_append(
            batch, run_now(self.store.create(self.run, entries, head=head)), None
        )

    def has_next_entries(self, state: State, reserve: Reserve) -> bool:
        """Return whether entries follow from `state` alone."""
        return Batch(state, self.clock()).advance(reserve)

    def add_driver_input(self, batch: Batch, driver_input: DriverInput) -> Verdict:
        """Add a driver input to `batch`, and count a refusal."""
        verdict = batch.add(driver_input)
        if isinstance(verdict, Refused):
            self.refusal_counts[f"{type(driver_input).__name__}: {verdict.reason}"] += 1
        return verdict

    def commit(self, batch: Batch, lease: Lease | None = None) -> bool:
        """Append the batch if the journal has not grown since; return whether it was appended.

        Raises:
            StaleEpoch: the lease is not in force any more.
            HaltInForce: the batch starts a call and a halt covers the run.
        """
        starts = any(isinstance(entry, START_ENTRY_TYPES) for entry in batch.entries)
        append = self.store.append(
            self.run,
            batch.entries,
            after=Seq(batch.base.seq),
            lease=lease,
            head=build_head(batch.state),
            starts=starts,
        )
        try:
            appended = run_now(append)
        except SeqConflict:
            self.conflict_count += 1
            return False
        self._apply_append(batch, appended, lease.epoch if lease else None)
        if self.halt_scopes and any(
            isinstance(entry, transitions.START_ENTRY_TYPES) for entry in batch.entries
        ):
            raise Violation("I12", f"started under the halt {self.halt_scopes[0]}")
        return True

    def commit_anywhere(self, batch: Batch, lease: Lease) -> None:
        """Append an outcome that stays true, whatever was appended in between.

        Raises:
            StaleEpoch: the lease is not in force any more.
        """
        append = self.store.append(
            self.run, batch.entries, after=None, lease=lease, head=None, starts=False
        )
        self._apply_append(batch, run_now(append), lease.epoch)

    def take_lease(self, holder: str) -> Lease | None:
        """Take the lease; return None if it is not free."""
        batch = self.make_batch()
        if not isinstance(batch.add(TakeLease(holder=holder)), Accepted):
            return None
        self._is_drivable = None
        run_now(self.store.record_heartbeat(holder, ttl=HEARTBEAT_TTL))
        try:
            lease, appended = run_now(
                self.store.take_lease(
                    self.run,
                    batch.entries,
                    after=Seq(batch.base.seq),
                    holder=holder,
                    head=build_head(batch.state),
                )
            )
        except LeaseHeld:
            return None
        self._apply_append(batch, appended, lease.epoch)
        return lease

    def expire_lease(self, holder: str) -> None:
        """Let the store treat the heartbeat of `holder` as expired."""
        self._is_drivable = None
        run_now(self.store.release_leases(holder))

    def is_drivable(self) -> bool:
        """Return whether the run needs a driver and has no live one."""
        if self._is_drivable is None:
            self._is_drivable = bool(run_now(self.store.list_drivable(limit=1)))
        return self._is_drivable

    def set_halt(self, scope: str, by: str) -> None:
        """Set a halt."""
        run_now(self.store.set_halt(HaltRecord(scope=scope, by=by, reason="drill")))
        self._refresh_halt_scopes()

    def remove_halt(self, scope: str) -> None:
        """Remove a halt."""
        run_now(self.store.remove_halt(scope))
        self._refresh_halt_scopes()

    def _refresh_halt_scopes(self) -> None:
        spec = self.state.run_started
        halts = run_now(self.store.list_halts())
        covering = (h for h in halts if h.covers(self.run, spec.agent, spec.labels))
        self.halt_scopes = tuple(h.scope for h in covering)

    def read_records(self, after: int = 0, limit: int | None = None) -> list[Record]:
        """Read entries from the store."""
        return list(run_now(self.store.read(self.run, after=Seq(after), limit=limit)))

    def read_head(self) -> Head:
        """Read the stored head."""
        return run_now(self.store.get_row(self.run)).head

    def is_alive(self, holder: str) -> bool:
        """Return whether the heartbeat of `holder` is recent."""
        return holder in run_now(self.store.list_holders())

    def save_snapshot(self) -> None:
        """Store a snapshot of the current state."""
        snapshot = Snapshot(
            seq=Seq(self.state.seq), hash=self.hash, body=encode_snapshot(self.state)
        )
        run_now(self.store.save_snapshot(self.run, snapshot))

    def check_recovery(self) -> None:
        """Load the snapshot, fold the entries after it, and compare with the state."""
        found = run_now(self.store.load_snapshot(self.run))
        state = decode_snapshot(found.body) if found else None
        rest = self.read_records(after=state.seq if state else 0)
        try:
            same = fold(self.run, rest, state) == self.state
        except (JournalCorrupt, StopIteration) as error:
            raise Violation("I2", f"the entries do not fit the snapshot: {error!r}") from error
        if not same:
            raise Violation(
                "I2", f"the state after the snapshot at {state and state.seq} differs"
            )

    def _apply_append(self, batch: Batch, appended: AppendResult, epoch: Epoch | None) -> None:
        self._is_drivable = None
        if batch.base is self.state and batch.state.at == appended.at:
            self.state = batch.state
        else:
            self._apply_entries(batch.entries, appended.at)
        self.hash = appended.hash
        if (self.state.seq, self.state.at) != (appended.seq, appended.at):
            raise Violation("I1", f"the store is at {appended}, the fold at {self.state.seq}")
        for entry in batch.entries:
            self.entry_counts[type(entry)] += 1
            self.entries_with_epochs.append((entry, epoch))
        row = run_now(self.store.get_row(self.run))
        head, self.holder, self.wake_at = row.head, row.holder, row.head.wake_at
        if (head.phase, head.leased) != (self.state.phase, self.state.is_leased):
            raise Violation("I2", f"the stored head says {head.phase}, not {self.state.phase}")

    def _apply_entries(self, entries: tuple[Entry, ...], at: Micros) -> None:
        try:
            for entry in entries:
                self.state = evolve(self.state, entry, at)
        except JournalCorrupt as error:
            raise Violation("FOLD", f"the store accepted the append, but {error}") from error
