"""The session of a worker with one run: everything about driving a run, except I/O.

A `Session` holds the state of the run as far as it was read, and the batch that is being
appended. `receive(result, now)` takes the result of the last operation and returns a `Step`:
the one operation that comes next (read the journal, append a batch, wait, or end), and the work
that can be done now. The shell (`driver.run_loop`) performs the operation and calls `receive`
again. The simulator in the tests is another shell around the same class. News that come in
between, such as `JournalGrew`, go to `take_notice`. They start no turn; they end a wait.

One turn of a session:

1. `Ready` brings the inputs of calls that have ended. If the journal is known to have grown,
   the step is `ReadJournal`, and the turn begins again with the new entries.
2. The session builds one `Batch`: first timers that are due, then the inputs, a halt, and
   everything that follows from the journal alone (`scheduler.advance`). The step is
   `AppendBatch`. The end of one call and the start of the next are one append.
3. After `Appended` the step has the entries whose calls are to be made (`appended`), the
   inputs that are recorded, and the effects that need no entry. Then the session waits.

If another writer appended first (`NotAppended`), nothing of the batch was applied: the session
reads on and decides everything again on the new state. If the store did not answer, the batch
may have been appended: the session reads on, and recognizes its own entries. It may also be
appended later, by a server that has lost its client. So the session remembers the batch until
the journal has grown.

Invariants: `appended` has no start of a call that is not in the journal. And no control is
overlooked: a control that was appended before the start of a call makes that append conflict.
"""

from collections.abc import Sequence
from typing import Literal, assert_never

from msgspec import Struct

from midrun.core.controls import Halt
from midrun.core.decide import decide
from midrun.core.driver_inputs import (
    AskPerson,
    CloseCall,
    DriverInput,
    StandDown,
    TakeLease,
    Wake,
)
from midrun.core.entries import CallAborted, CallStarted, CapReached, Entry, Record
from midrun.core.evolve import apply_entries, evolve, fold
from midrun.core.ids import Epoch, Micros, Seq
from midrun.core.scheduler import (
    AbortCall,
    ControlChild,
    DriverEffect,
    MayStart,
    Reserve,
    advance,
    find_retry_time,
    find_wake_time,
    list_effects,
)
from midrun.core.state import State
from midrun.core.transitions import Accepted, Input, Refused, Verdict
from midrun.core.values import Value

# ── the entries of one append ─────────────────────────────────────────────────────────────────


class Batch:
    """The entries of one append, decided on top of `base`.

    Each input is decided on the state that the inputs before it led to. The batch is valid only
    if it is appended directly after `base.seq`, as a whole.
    """

    __slots__ = ("base", "entries", "now", "state")

    def __init__(self, base: State, now: Micros) -> None:
        self.base = base
        self.now = now
        self.state = base
        self.entries: list[Entry] = []

    def add(self, new_input: Input) -> Verdict:
        """Decide `new_input` on the state so far, and add the entries if it is accepted."""
        verdict = decide(self.state, new_input, self.now)
        for entry in verdict.entries:
            self.entries.append(entry)
            self.state = evolve(self.state, entry, self.now)
        return verdict

    def advance(
        self,
        reserve: Reserve,
        may_start: MayStart,
        *,
        unjournaled_work: bool = False,
        used_quota: str = "",
    ) -> None:
        """Add everything that follows from the state alone; see `scheduler.advance`.

        With a quota that is used up, the run pauses in place of its next model call.
        """
        while entries := advance(
            self.state, self.now, reserve, may_start, unjournaled_work=unjournaled_work
        ):
            if used_quota and starts_model_call(entries):
                entries = (CapReached(stop=used_quota),)
            for entry in entries:
                self.entries.append(entry)
                self.state = evolve(self.state, entry, self.now)


def starts_model_call(entries: Sequence[Entry]) -> bool:
    """Tell whether `entries` start a model call."""
    for entry in entries:
        if isinstance(entry, CallStarted) and entry.call_kind == "model":
            return True
    return False


# ── notices, which may come at any time ───────────────────────────────────────────────────


class JournalGrew(Value, kw_only=True):
    """The journal has an entry `seq`, appended by any writer."""

    seq: Seq


class HaltSet(Value, kw_only=True):
    """A halt of an operator covers the run."""

    halt: Halt


class StandDownRequested(Value, kw_only=True):
    """The worker gives the run back soon, so that another one can continue it."""

    reason: str


class LeaseLost(Value, kw_only=True):
    """The lease may be lost: nothing may be appended under it any more."""


Notice = JournalGrew | HaltSet | StandDownRequested | LeaseLost


# ── the results of operations ─────────────────────────────────────────────────────────────


class Ready(Value, kw_only=True):
    """The wait is over, or was not necessary: these inputs are not journaled yet.

    `unjournaled_work` says that the worker runs a check, a custom stop condition, or the
    program of a hosted agent. The journal does not show those, and a run must not rest
    meanwhile.
    """

    inputs: tuple[DriverInput, ...] = ()
    unjournaled_work: bool = False


class JournalRead(Value, kw_only=True):
    """The entries after `State.seq`."""

    records: Sequence[Record]


class ReadFailed(Value, kw_only=True):
    """The store cannot read at present."""


class Appended(Value, kw_only=True):
    """The batch was appended at the time `at`, under the lease of `epoch` or without one."""

    at: Micros
    epoch: Epoch | None


class NotAppended(Value, kw_only=True):
    """The batch was not appended, or it is unknown whether it was.

    - `conflict`: another writer was first.
    - `halted`: `halt` covers the run, and the batch starts a call.
    - `quota`: the batch starts a model call, and `quota` says which quota is used up.
    - `unavailable`: the store cannot write at present; nothing was applied.
    - `unknown`: the store did not answer; the batch may have been appended.
    - `leased`: another worker holds the lease.
    """

    reason: Literal["conflict", "halted", "quota", "unavailable", "unknown", "leased"]
    halt: Halt | None = None
    quota: str = ""


Result = Ready | JournalRead | ReadFailed | Appended | NotAppended


# ── steps ─────────────────────────────────────────────────────────────────────────────────


class ReadJournal(Value, kw_only=True):
    """Read the entries after `after`; answer with `JournalRead` or `ReadFailed`."""

    after: Seq


class AppendBatch(Struct, frozen=True, kw_only=True):
    """Append `batch`; answer with `Appended` or `NotAppended`.

    `lease` says under which lease: the one that the worker holds, a new one that this append
    takes, or none.
    """

    batch: Batch
    lease: Literal["held", "take", "none"]


class Proceed(Value, kw_only=True):
    """Answer with `Ready` at once."""


class WaitForStore(Value, kw_only=True):
    """Answer with `Ready` after a short delay: the store is not available."""


class WaitForNews(Value, kw_only=True):
    """Answer with `Ready` at the time `until`, or when something has happened."""

    until: Micros | None


class Finish(Value, kw_only=True):
    """The session is over."""


Operation = ReadJournal | AppendBatch | Proceed | WaitForStore | WaitForNews | Finish


class Step(Struct, frozen=True, kw_only=True):
    """The next operation, and the work to do before it."""

    operation: Operation
    appended: tuple[Entry, ...] = ()  # make the calls, undos and releases that these start
    effects: tuple[DriverEffect, ...] = ()
    recorded_count: int = 0  # the number of oldest inputs that are recorded or late
    late: frozenset[int] = frozenset()  # positions of those whose call was closed without them
    has_changed: bool = False  # `Session.state` is a new one: notify the subscribers
    is_leaving: bool = False  # the worker gives the run back: stop the calls in flight


class _Turn(Struct, frozen=True, kw_only=True):
    """The decisions of one turn: a batch, and the halt and the inputs that it settles."""

    batch: Batch
    halt: Halt | None = None
    input_count: int = 0
    late: frozenset[int] = frozenset()  # the inputs that `decide` has refused


class Session:
    """Drives one run under one lease, from taking the lease to its end.

    `state` is the fold of the journal, as far as it was read.
    """

    def __init__(
        self, state: State, take_lease: TakeLease, reserve: Reserve, may_start: MayStart
    ) -> None:
        self.state = state
        self._take_lease = take_lease
        self._reserve = reserve
        self._may_start = may_start
        self._epoch: Epoch | None = None  # of our lease
        self._known_seq = state.seq  # the highest seq known to exist, read or not
        self._pending_halt: Halt | None = None  # a halt that is not in the journal yet
        self._used_quota = ""  # the quota that has kept the last batch from the journal
        self._stand_down_reason = ""  # why the worker gives the run back ...
        self._is_leaving = False  # ... which it does
        self.is_lease_lost = False  # nothing may be appended under it any more
        self._turn: _Turn | None = None  # its batch is being appended
        self._unanswered: list[_Turn] = []  # their batches may be appended after `state.seq`
        self._must_read = False  # the last read failed

    @property
    def is_behind(self) -> bool:
        """Whether the journal is known to have entries that were not read yet."""
        return self._must_read or self._known_seq > self.state.seq

    @property
    def holds_lease(self) -> bool:
        """Whether the journal, as far as it was read, has our lease as the current one.

        A lease ends with an entry: when the run rests, or when another worker takes it.
        """
        is_ours = self.state.is_leased and self.state.epoch == self._epoch
        return is_ours and not self.is_lease_lost

    def take_notice(self, notice: Notice) -> bool:
        """Take a notice; return whether a wait must end because of it."""
        match notice:
            case JournalGrew(seq=seq):
                is_news = seq > self._known_seq
                self._known_seq = max(self._known_seq, seq)
                return is_news
            case HaltSet(halt=halt):
                self._pending_halt = halt
            case StandDownRequested(reason=reason):
                self._stand_down_reason, self._is_leaving = reason, bool(reason)
            case LeaseLost():
                self.is_lease_lost = True
            case _:
                assert_never(notice)
        return True

    def receive(self, result: Result, now: Micros) -> Step:
        """Take the result of the last operation, and return the next step."""
        match result:
            case Ready():
                return self._begin_turn(result, now)
            case JournalRead(records=records):
                return self._fold(records)
            case ReadFailed():
                self._must_read = True
                return Step(operation=WaitForStore())
            case Appended(at=at, epoch=epoch):
                return self._apply_batch(at, epoch)
            case NotAppended():
                return self._drop_batch(result)
            case _:
                assert_never(result)

    # ── one turn ──────────────────────────────────────────────────────────────────────────

    def _begin_turn(self, ready: Ready, now: Micros) -> Step:
        # The order matters. Without a lease nothing may be appended. A decision on an outdated
        # state would only conflict, so reading comes before every decision. And only what was
        # read tells whether the lease is still ours.
        if self.is_lease_lost:
            return Step(operation=Finish())
        if self._must_read or self._known_seq > self.state.seq:  # as `is_behind`
            return self._read()
        if self._epoch is None:
            return Step(operation=Finish()) if self._is_leaving else self._take(now)
        # The entries that were just read may have ended the lease.
        if not self.holds_lease:
            return Step(operation=Finish())
        due_at = find_wake_time(self.state)
        if due_at is not None and due_at <= now:
            timers = Batch(self.state, now)
            timers.add(Wake())
            if timers.entries:
                # An input of the clock, not of the lease holder: it has an append of its own.
                return self._append(_Turn(batch=timers), "none")
        return self._decide(ready, Batch(self.state, now))

    def _decide(self, ready: Ready, batch: Batch) -> Step:
        """Decide everything of this turn into `batch`, and append it."""
        # `decide` refuses an input whose call the journal has closed by now. Its outcome may
        # still show that the call took effect, so the shell records it as late. It does that
        # only after the append: until then the decision rests on a state that may be outdated.
        late: list[int] = []
        for number, one in enumerate(ready.inputs):
            if isinstance(batch.add(one), Refused):
                _close_refused_question(batch, one)
                late.append(number)
        # The order within a batch: first the ends of calls, which are facts whatever comes
        # next. Then the halt, if there is one. Then everything that follows from both: under a
        # halt `advance` starts nothing, so a call that would have been next is not made.
        if self._pending_halt is not None:
            batch.add(self._pending_halt)
        turn = _Turn(
            batch=batch,
            halt=self._pending_halt,
            input_count=len(ready.inputs),
            late=frozenset(late),
        )
        if not self._is_leaving:
            batch.advance(
                self._reserve,
                self._may_start,
                unjournaled_work=ready.unjournaled_work,
                used_quota=self._used_quota,
            )
        elif not ready.unjournaled_work:
            # Every turn tries again: `decide` refuses it while a call is in flight.
            batch.add(StandDown(epoch=batch.state.epoch, why=self._stand_down_reason))
        if batch.entries:
            return self._append(turn, "held")
        return self._end_turn(turn)

    def _read(self) -> Step:
        # A failed append leaves `_known_seq` at a seq that does not exist. Lower it before the
        # read: then a notice that comes during the read raises it again. If it were lowered
        # afterwards, the entry of that notice would be overlooked.
        self._known_seq, self._must_read = self.state.seq, False
        return Step(operation=ReadJournal(after=self.state.seq), is_leaving=self._is_leaving)

    def _take(self, now: Micros) -> Step:
        """Take the lease and start the first calls, in one append."""
        batch = Batch(self.state, now)
        if self._pending_halt is not None:
            batch.add(self._pending_halt)
        turn = _Turn(batch=batch, halt=self._pending_halt)
        if batch.entries:  # without a lease there is no call to stop: the run is halted at once
            return self._append(turn, "none")
        if not isinstance(batch.add(self._take_lease), Accepted):
            return Step(operation=Finish())
        batch.advance(self._reserve, self._may_start, used_quota=self._used_quota)
        return self._append(turn, "take")

    def _append(self, turn: _Turn, lease: Literal["held", "take", "none"]) -> Step:
        # The store announces every append, ours too, and the announcement may overtake the
        # reply. Raise `_known_seq` first, so that it ends no wait. If the append fails,
        # `_known_seq` is ahead of `state`, and the next turn reads on.
        self._known_seq = turn.batch.state.seq
        self._turn = turn
        return Step(
            operation=AppendBatch(batch=turn.batch, lease=lease), is_leaving=self._is_leaving
        )

    def _end_turn(self, turn: _Turn, *, changed: bool = False) -> Step:
        """Return the step at the end of `turn`: make the calls of its batch, then wait."""
        if self._pending_halt is not None:
            self._forget_halt(turn)
        state, until = self.state, find_wake_time(self.state)
        # No call waits for a retry while all open calls are in flight.
        waits = state.in_flight and len(state.in_flight) == len(state.open_calls)
        if not (waits or self._is_leaving):
            # Retry times that had passed when the batch was decided are left out: such a call
            # waits for something else, perhaps for its turn among the suspect calls. They would
            # make the loop spin. A time that has passed since then counts: no decision has seen
            # it.
            retry_at = find_retry_time(state, turn.batch.now)
            if retry_at is not None:
                until = retry_at if until is None else min(until, retry_at)
        return Step(
            # The state is that after the batch. An entry of the batch itself ends the lease
            # when the run pauses, waits or ends: then there is nothing left to wait for.
            operation=WaitForNews(until=until) if self.holds_lease else Finish(),
            appended=tuple(turn.batch.entries),
            effects=self._list_leaving_effects()
            if self._is_leaving
            else list_effects(self.state),
            recorded_count=turn.input_count,
            late=turn.late,
            has_changed=changed,
            is_leaving=self._is_leaving,
        )

    def _list_leaving_effects(self) -> tuple[DriverEffect, ...]:
        # The next worker runs checks and stop conditions.
        effects = list_effects(self.state)
        return tuple(e for e in effects if isinstance(e, AbortCall | ControlChild))

    # ── results of operations ─────────────────────────────────────────────────────────────

    def _fold(self, records: Sequence[Record]) -> Step:
        """Add the entries that were read to the state."""
        matches = [turn for turn in self._unanswered if _starts_with(records, turn)]
        # A batch often begins with the entries of an earlier one: the longest was appended.
        found = max(matches, key=lambda turn: len(turn.batch.entries), default=None)
        if records:
            self._unanswered.clear()
        self.state = fold(self.state.run, records, self.state)
        self._known_seq = max(self._known_seq, self.state.seq)
        if found is None:
            return Step(operation=Proceed(), has_changed=True)
        # Its calls must be made: the journal has them as started, and the run would wait for
        # them for ever.
        self._forget_halt(found)
        return Step(
            operation=Proceed(),
            # Another worker that has taken the lease meanwhile has closed these calls. And the
            # epoch of a batch that was to take the lease is unknown: take it again.
            appended=tuple(found.batch.entries) if self.holds_lease else (),
            recorded_count=found.input_count,
            late=found.late,
            has_changed=True,
        )

    def _forget_halt(self, turn: _Turn) -> None:
        # A halt that was set during the append is kept: the batch does not have it.
        if self._pending_halt is turn.halt:
            self._pending_halt = None

    def _apply_batch(self, at: Micros, epoch: Epoch | None) -> Step:
        """Take over the state after the batch, and act."""
        turn = self._turn
        assert turn is not None
        batch = turn.batch
        # The next batch with a model call is compared with the quotas again: a day may have
        # passed, or an operator may have raised the quota.
        self._used_quota = ""
        self._unanswered.clear()  # the store appends none of them any more
        # The store stamps the entries. Usually it takes our time; with another one, apply the
        # entries again at that time, so that the state is the one every reader computes.
        is_leased = epoch is not None
        is_same_time = at == max(batch.now, batch.base.at)
        self.state = (
            batch.state if is_same_time else apply_entries(batch.base, batch.entries, at)
        )
        changed = self.state.phase is not batch.base.phase
        # Timers and halts are appended without the lease and start no call. What follows from
        # them is decided in a new turn, in an append under the lease.
        if not is_leased:
            self._forget_halt(turn)
            return Step(operation=Proceed(), has_changed=changed)
        self._epoch = epoch
        return self._end_turn(turn, changed=changed)

    def _drop_batch(self, result: NotAppended) -> Step:
        """Decide again after a batch that was not appended, or perhaps not."""
        match result.reason:
            # In all cases `_known_seq` is ahead of `state` (see `_append`), so the next turn
            # reads first. Nothing has to be undone: neither the state nor the inputs were
            # changed by the batch. The inputs stay with the shell until a step counts them as
            # settled.
            case "conflict":
                return Step(operation=Proceed())
            case "halted":
                self._pending_halt = result.halt
                return Step(operation=Proceed())
            # Decided again, this batch pauses the run in place of the model call.
            case "quota":
                self._used_quota = result.quota
                return Step(operation=Proceed())
            # The store wrote nothing, so the same decision can be made again.
            case "unavailable":
                return Step(operation=WaitForStore())
            # The store has not answered. The batch is remembered, because a later read may
            # find it. Its inputs are not lost either way: if it was not appended, they are
            # decided again.
            case "unknown":
                assert self._turn is not None
                self._unanswered.append(self._turn)
                return Step(operation=WaitForStore())
            # Only an append that takes the lease gets this answer: the session ends before it
            # began.
            case "leased":
                return Step(operation=Finish())
            case _:
                assert_never(result.reason)


def _starts_with(records: Sequence[Record], turn: _Turn) -> bool:
    """Tell whether `records` begin with the batch of `turn`; it is one append, or none."""
    entries = turn.batch.entries
    return [record.entry for record in records[: len(entries)]] == entries


def _close_refused_question(batch: Batch, refused: DriverInput) -> None:
    """Close the call that asked a question which `decide` has refused."""
    if isinstance(refused, AskPerson):
        # The call asked a question and is over, but the run takes no questions any more: it is
        # being cancelled, say. The journal still has the call in flight and waits for its end.
        stopped = CallAborted(call=refused.call)
        batch.add(CloseCall(epoch=refused.epoch, outcome=stopped))
