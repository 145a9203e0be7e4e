"""The journal of the simulated run: the real memory store, and the folded state beside it.

All threads of a schedule read and append here. An append was decided on a state that may be
outdated; then the store refuses it.
"""

from collections import Counter
from collections.abc import Coroutine, Sequence
from datetime import timedelta
from typing import Final, TypeVar

from midrun.codec.snapshot import decode_snapshot, encode_snapshot
from midrun.core.entries import Entry, Record
from midrun.core.evolve import apply_entries, evolve, fold
from midrun.core.ids import Epoch, Micros, RunId, Seq
from midrun.core.run_head import Head, build_head
from midrun.core.scheduler import MayStart, Reserve
from midrun.core.session import Batch
from midrun.core.state import State
from midrun.core.transitions import (
    ADVANCE_TABLE,
    INPUT_TABLE,
    START_ENTRY_TYPES,
    Accepted,
    Input,
    Verdict,
)
from midrun.core.values import Phase
from midrun.errors import JournalCorrupt, KindRefused, SeqConflict
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


class CheckedBatch(Batch):
    """A batch that checks each decision against the transition tables."""

    __slots__ = ()

    def add(self, new_input: Input) -> Verdict:
        """Decide the input, and check the phase that it leads to."""
        before = self.state.phase
        try:
            verdict = super().add(new_input)
        except JournalCorrupt as error:
            raise Violation("FOLD", f"{new_input} was decided, but {error}") from error
        if isinstance(verdict, Accepted) and verdict.entries:
            after = self.state.phase
            if after not in INPUT_TABLE[type(new_input)][before].next_phases:
                raise Violation("TABLE", f"{new_input} led from {before} to {after}")
        return verdict

    def advance(
        self,
        reserve: Reserve,
        may_start: MayStart,
        *,
        unjournaled_work: bool = False,
        used_quota: str = "",
    ) -> None:
        """Add everything that follows, and check the phase that it leads to."""
        before, count = self.state.phase, len(self.entries)
        try:
            super().advance(
                reserve, may_start, unjournaled_work=unjournaled_work, used_quota=used_quota
            )
        except JournalCorrupt as error:
            raise Violation("FOLD", f"after {self.entries}: {error}") from error
        if len(self.entries) > count and self.state.phase not in _list_next_phases(before):
            raise Violation(
                "TABLE", f"{self.entries[count:]} led from {before} to {self.state.phase}"
            )


def _list_next_phases(phase: Phase) -> set[Phase]:
    """Return the phases that may follow from `phase` without an input, in several steps."""
    found: set[Phase] = set()
    new = set(ADVANCE_TABLE[phase])
    while new - found:
        found |= new
        new = {after for one in found for after in ADVANCE_TABLE.get(one, ())}
    return found


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
        self.late_count = 0  # of the inputs of sessions
        self.halt_scopes: tuple[str, ...] = ()  # of the halts that cover the run
        self.halt_changes = 0  # how often halts were set or removed, as stores count it
        self.holder = ""
        self._is_drivable: bool | None = None  # None: unknown, ask the store
        self.wake_at: Micros | None = None  # from the stored head

    def make_batch(self, state: State | None = None) -> Batch:
        """Return an empty batch on top of `state`, or of the newest one."""
        return CheckedBatch(state or self.state, self.clock())

    def create(self, *entries: Entry) -> None:
        """Create the run with its first entries."""
        batch = self.make_batch()
        batch.entries = list(entries)
        batch.state = apply_entries(batch.base, entries, batch.now)
        head = build_head(batch.state)
        self._apply_append(
            batch, run_now(self.store.create(self.run, entries, head=head)), None
        )

    def commit(
        self, batch: Batch, lease: Lease | None = None, *, at: Micros | None = None
    ) -> bool:
        """Append the batch if the journal has not grown since; return whether it was appended.

        Raises:
            StaleEpoch: the lease is not in force any more.
            HaltInForce: the batch starts a call and a halt covers the run.
        """
        append = self.store.append(
            self.run,
            batch.entries,
            after=batch.base.seq,
            lease=lease,
            head=build_head(batch.state),
            at=at,
        )
        try:
            appended = run_now(append)
        except SeqConflict:
            self.conflict_count += 1
            return False
        except KindRefused as error:
            raise Violation("KIND", str(error)) from error
        self._apply_append(batch, appended, lease.epoch if lease else None)
        return True

    def take_lease(self, batch: Batch, holder: str) -> Lease:
        """Take the lease with the entries of the batch.

        Raises:
            SeqConflict, HaltInForce: as for an append.
            LeaseHeld: another holder is alive.
        """
        lease, appended = run_now(
            self.store.take_lease(
                self.run,
                batch.entries,
                after=batch.base.seq,
                holder=holder,
                head=build_head(batch.state),
                at=batch.now,
            )
        )
        self._apply_append(batch, appended, lease.epoch)
        return lease

    def record_heartbeat(self, holder: str) -> None:
        """Let the store treat the leases of `holder` as alive."""
        self._is_drivable = None
        run_now(self.store.record_heartbeat(holder, ttl=HEARTBEAT_TTL))

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
        covering = (h for h in halts if h.covers(self.run, spec))
        self.halt_scopes = tuple(h.scope for h in covering)
        self.halt_changes += 1

    def read_records(self, after: int = 0, limit: int | None = None) -> list[Record]:
        """Read entries from the store."""
        return list(run_now(self.store.read(self.run, after=Seq(after), limit=limit)))

    def read_head(self) -> Head:
        """Read the stored head."""
        return run_now(self.store.get_row(self.run)).head

    def is_alive(self, holder: str) -> bool:
        """Return whether the heartbeat of `holder` is recent."""
        return holder in run_now(self.store.list_holders())

    def check_session_state(self, state: State) -> None:
        """Check that the state of a session is the fold of the journal, if it is up to date."""
        if state.seq != self.state.seq or state is self.state:
            return
        if state != self.state:
            raise Violation("I2", f"the session has another state at {state.seq}")
        self.state = state  # an equal one: the next append of the session need not be folded

    def save_snapshot(self, state: State) -> None:
        """Store a snapshot of the state of a session, if it is up to date."""
        if state.seq == self.state.seq:
            snapshot = Snapshot(seq=state.seq, hash=self.hash, body=encode_snapshot(state))
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
        if self.halt_scopes and any(isinstance(e, START_ENTRY_TYPES) for e in batch.entries):
            raise Violation("I12", f"started under the halt {self.halt_scopes[0]}")

    def _apply_entries(self, entries: Sequence[Entry], at: Micros) -> None:
        try:
            for entry in entries:
                self.state = evolve(self.state, entry, at)
        except JournalCorrupt as error:
            raise Violation("FOLD", f"the store accepted the append, but {error}") from error
