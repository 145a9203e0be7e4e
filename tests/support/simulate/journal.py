"""The desk: the real store, stepped by hand, and what its journal means at every moment.

Everybody in a schedule reads and appends here and nowhere else. What somebody appends was
decided on a state they had read, which may be old by now; the store says so.
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
from midrun.core.state import State
from midrun.core.transitions import (
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
"""Heartbeats count for as long as nobody makes them lapse: time alone must not decide."""


class ImmediateStore(MemoryStore):
    """The store without its pauses: here the scheduler says who is next."""

    async def _yield_and_check_open(self) -> None:
        return


def run_now(coroutine: Coroutine[object, None, T]) -> T:
    """Return what `work` returns, which never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # what the coroutine returned
    raise RuntimeError("the store waited for something")


class Batch:
    """What one append is to hold: every part is decided on what the parts before it led to."""

    __slots__ = ("base", "entries", "now", "state")

    def __init__(self, base: State, now: Micros) -> None:
        self.base = base
        self.state = base
        self.now = now
        self.entries: tuple[Entry, ...] = ()

    def add(self, run_input: Input) -> Verdict:
        """Decide `given`, and add what it means."""
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


class SimulatedJournal:
    """The journal of one run, and the means to make it longer."""

    def __init__(self, run: RunId, clock: Clock) -> None:
        self.run = run
        self.clock = clock
        self.store = ImmediateStore(clock=clock)
        self.state = State(run=run)
        self.entry_counts: Counter[type[Entry]] = Counter()
        self.written: list[tuple[Entry, Epoch | None]] = []
        self.hash = b""
        self.conflict_count = 0
        self.refusal_counts: Counter[str] = Counter()
        self.halt_scopes: tuple[str, ...] = ()  # scopes of the latches that cover the run
        self.holder = ""
        self._is_drivable: bool | None = (
            None  # whether it can be taken; None: ask the store again
        )
        self.wake_at: Micros | None = None  # as the store's index has it

    def make_batch(self, state: State | None = None) -> Batch:
        """Return an empty batch on top of `state`, or of the newest one."""
        return Batch(state or self.state, self.clock())

    def create(self, batch: Batch, *entries: Entry) -> None:
        """Begin the journal."""
        batch.entries = entries
        batch.state = apply_entries(batch.base, entries, batch.now)
        head = build_head(batch.state)
        self._apply_append(
            batch, run_now(self.store.create(self.run, entries, head=head)), None
        )

    def add_driver_input(self, batch: Batch, driver_input: DriverInput) -> Verdict:
        """Add a driver's evidence to `batch`; refusals are counted, since they must be few."""
        verdict = batch.add(driver_input)
        if isinstance(verdict, Refused):
            self.refusal_counts[f"{type(driver_input).__name__}: {verdict.reason}"] += 1
        return verdict

    def commit(self, batch: Batch, lease: Lease | None = None) -> bool:
        """Append the batch after exactly what it was decided on; tell whether that was so.

        Raises:
            StaleEpoch: the lease is not in force any more.
            HaltInForce: the batch starts something and a latch covers the run.
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
            raise Violation("I12", f"started under the latch {self.halt_scopes[0]}")
        return True

    def commit_anywhere(self, batch: Batch, lease: Lease) -> None:
        """Append evidence that is true whatever happened since it was decided on.

        Raises:
            StaleEpoch: the lease is not in force any more.
        """
        append = self.store.append(
            self.run, batch.entries, after=None, lease=lease, head=None, starts=False
        )
        self._apply_append(batch, run_now(append), lease.epoch)

    def take_lease(self, holder: str) -> Lease | None:
        """Take the lease, if it can be had."""
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
        """Let the heartbeat of `holder` be too old, as far as the store can tell."""
        self._is_drivable = None
        run_now(self.store.release_leases(holder))

    def is_drivable(self) -> bool:
        """Tell whether the run needs a driver and has none that is alive."""
        if self._is_drivable is None:
            self._is_drivable = bool(run_now(self.store.list_drivable(limit=1)))
        return self._is_drivable

    def set_halt(self, scope: str, by: str) -> None:
        """Set a latch."""
        run_now(self.store.set_halt(HaltRecord(scope=scope, by=by, reason="drill")))
        self._refresh_halt_scopes()

    def remove_halt(self, scope: str) -> None:
        """Take a latch away."""
        run_now(self.store.remove_halt(scope))
        self._refresh_halt_scopes()

    def _refresh_halt_scopes(self) -> None:
        spec = self.state.run_started
        halts = run_now(self.store.list_halts())
        covering = (h for h in halts if h.covers(self.run, spec.agent, spec.labels))
        self.halt_scopes = tuple(h.scope for h in covering)

    def read_records(self, after: int = 0, limit: int | None = None) -> list[Record]:
        """Return what the store hands out to anybody who reads."""
        return list(run_now(self.store.read(self.run, after=Seq(after), limit=limit)))

    def read_head(self) -> Head:
        """Return what the store keeps beside the journal, for lists and wake-ups."""
        return run_now(self.store.get_row(self.run)).head

    def is_alive(self, holder: str) -> bool:
        """Tell whether the store has heard of `holder` lately."""
        return holder in run_now(self.store.list_holders())

    def save_snapshot(self) -> None:
        """Store the state as it is now."""
        snapshot = Snapshot(
            seq=Seq(self.state.seq), hash=self.hash, body=encode_snapshot(self.state)
        )
        run_now(self.store.save_snapshot(self.run, snapshot))

    def check_recovery(self) -> None:
        """Do what a process does that knows nothing: snapshot, rest, fold; compare."""
        found = run_now(self.store.load_snapshot(self.run))
        state = decode_snapshot(found.body) if found else None
        rest = self.read_records(after=state.seq if state else 0)
        try:
            same = fold(self.run, rest, state) == self.state
        except (JournalCorrupt, StopIteration) as error:
            raise Violation("I2", f"snapshot and the rest do not fit: {error!r}") from error
        if not same:
            raise Violation("I2", f"snapshot at {state and state.seq} and the rest differ")

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
            self.written.append((entry, epoch))
        row = run_now(self.store.get_row(self.run))
        head, self.holder, self.wake_at = row.head, row.holder, row.head.wake_at
        if (head.phase, head.leased) != (self.state.phase, self.state.is_leased):
            raise Violation("I2", f"the stored head says {head.phase}, not {self.state.phase}")

    def _apply_entries(self, entries: tuple[Entry, ...], at: Micros) -> None:
        try:
            for entry in entries:
                self.state = evolve(self.state, entry, at)
        except JournalCorrupt as error:
            raise Violation("FOLD", f"accepted, but {error}") from error
