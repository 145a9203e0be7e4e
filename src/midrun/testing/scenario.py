"""Scenarios over journals: given these entries, when this input comes, then this holds.

A scenario is an immutable value. Every step returns a new one, so a common start can be stored
and continued in several ways:

    given(*LEASED_RUN).when(Pause()).then(phase=Phase.PAUSED)

Entries are appended as they are if the transition table allows them there. Controls and driver
inputs pass `decide`. All entries are in `records`, ready for `check_journal`.
"""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from midrun.core.decide import decide
from midrun.core.driver_inputs import (
    CloseCall,
    DriverInput,
    LeasedInput,
    TakeLease,
)
from midrun.core.entries import (
    CallDone,
    CallStarted,
    Entry,
    EntryBase,
    LateResult,
    LeaseTaken,
    Record,
    RequestEntry,
    RunStarted,
    UndoStarted,
)
from midrun.core.evolve import evolve
from midrun.core.ids import (
    MICROS_PER_SECOND,
    CallId,
    Epoch,
    Micros,
    RunId,
    make_call_id,
    parse_call_number,
)
from midrun.core.scheduler import DriverEffect, MayStart, advance, list_effects, start_all
from midrun.core.state import State
from midrun.core.transitions import Accepted, Input, NoChange, Refused, Verdict
from midrun.core.values import NO_SPEND, CleanupAction, Json, Phase, Reply, RequestedCall, Spend

RUN: Final = RunId("run_1")
START_TIME: Final = Micros(1_800_000_000 * MICROS_PER_SECOND)
LEASED_RUN: Final[tuple[Entry, ...]] = (
    RunStarted(agent="clerk", task="Sort the mail", by="ann"),
    LeaseTaken(epoch=Epoch(1)),
)
"""A run whose lease was just taken."""


class Scenario(Struct, frozen=True, kw_only=True):
    """A run at one position of its journal, and the decision on its last input."""

    state: State = State(run=RUN)
    records: tuple[Record, ...] = ()
    verdict: Verdict | None = None
    now: Micros = START_TIME

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The journal without seqs and times."""
        return tuple(record.entry for record in self.records)

    def at(self, now: int) -> "Scenario":
        """Return the scenario with the time set to `now`."""
        return replace(self, now=Micros(now))

    def later(self, seconds: float) -> "Scenario":
        """Return the scenario with this much time passed."""
        return self.at(self.now + round(seconds * MICROS_PER_SECOND))

    def after(self, *inputs: Entry | DriverInput) -> "Scenario":
        """Append entries as they are; decide driver inputs, which must be accepted.

        Raises:
            JournalCorrupt: an entry is not allowed here.
            AssertionError: a driver input was not accepted.
        """
        scenario = self
        for value in inputs:
            if isinstance(value, EntryBase):
                scenario = scenario._append((value,), scenario._usual_epoch(value))
                continue
            scenario = scenario.when(value)
            assert isinstance(scenario.verdict, Accepted), f"{value}: {scenario.verdict}"
        return scenario

    def when(self, *inputs: Input) -> "Scenario":
        """Decide the inputs one after another, and append the resulting entries."""
        scenario = self
        for value in inputs:
            verdict = decide(scenario.state, value, scenario.now)
            # Driver inputs are written under their epoch, a lease under the next one, and
            # controls under none.
            epoch = value.epoch if isinstance(value, LeasedInput) else None
            if isinstance(value, TakeLease):
                epoch = Epoch(scenario.state.epoch + 1)
            scenario = replace(scenario._append(verdict.entries, epoch), verdict=verdict)
        return scenario

    def tries(self, *calls: str, reserve: Spend = NO_SPEND) -> "Scenario":
        """Start these calls, and no other, as far as the run allows it."""
        new = make_call_id(len(self.state.calls) + 1)  # of a model call that begins a step
        return self._advance(
            lambda call, _: (new if call is None else call.id) in calls, reserve
        )

    def starts(self, *calls: str, reserve: Spend = NO_SPEND) -> "Scenario":
        """Start these calls, and no other.

        Raises:
            AssertionError: one of them does not start: it must wait, or a cap is reached.
        """
        scenario = self.tries(*calls, reserve=reserve)
        started = {
            e.call for e in scenario.entries[self.state.seq :] if isinstance(e, CallStarted)
        }
        assert started == set(calls), f"started: {sorted(started)}"
        return scenario

    def cleans(self, call: str, action: CleanupAction = "undo") -> "Scenario":
        """Start the undo or the release of this call.

        Raises:
            AssertionError: it is not the next one in order.
        """
        scenario = self._advance(
            lambda given, operation: (
                given is not None and (given.id, operation) == (call, action)
            )
        )
        assert scenario.state.cleanup_in_flight == (parse_call_number(call), action)
        return scenario

    def replies(
        self,
        *uses: RequestedCall,
        text: str = "",
        value: Json = None,
        invalid_output: str = "",
    ) -> "Scenario":
        """Complete one model call with `text`, its typed `value`, and these tool uses."""
        call = make_call_id(len(self.state.calls) + 1)
        reply = Reply(text=text, uses=uses, value=value, invalid_output=invalid_output)
        outcome = CallDone(call=call, reply=reply)
        return self.starts(call).after(CloseCall(epoch=self.state.epoch, outcome=outcome))

    def advances(self) -> "Scenario":
        """Append everything that follows from the journal alone, except starts."""
        return self._advance(lambda _, __: False)

    def _advance(self, may_start: MayStart, reserve: Spend = NO_SPEND) -> "Scenario":
        scenario = self
        while entries := advance(
            scenario.state, scenario.now, lambda _, __: reserve, may_start
        ):
            scenario = scenario.follows(entries)
        return scenario

    def follows(self, entries: Iterable[Entry]) -> "Scenario":
        """Append entries of `scheduler.advance`, under the lease that the run has."""
        return self._append(entries, self.state.epoch)

    @property
    def next_starts(self) -> tuple[tuple[str, str], ...]:
        """The calls, undos and releases that would start now, in order: (id, operation)."""
        entries = self._advance(start_all).entries[self.state.seq :]
        return tuple(
            (e.call, "call" if isinstance(e, CallStarted) else e.action)
            for e in entries
            if isinstance(e, CallStarted | UndoStarted)
        )

    @property
    def next_cleanup(self) -> tuple[CallId, CleanupAction] | None:
        """The undo or release that would start now, or None."""
        entries = self._advance(start_all).entries[self.state.seq :]
        cleanups = ((e.call, e.action) for e in entries if isinstance(e, UndoStarted))
        return next(cleanups, None)

    def then(
        self,
        *,
        phase: Phase | None = None,
        starts: Iterable[str] | None = None,
        cleans: Iterable[tuple[str, CleanupAction]] | None = None,
        effects: Iterable[DriverEffect] | None = None,
        appended: Iterable[Entry] | None = None,
        already: str | None = None,
        refused: str | None = None,
    ) -> "Scenario":
        """Assert the phase, the next starts, all effects, and the decision on the last input.

        `starts` has the calls that would start now, `cleans` the undos and releases.
        """
        if phase is not None:
            assert self.state.phase == phase
        if starts is not None:
            assert [call for call, kind in self.next_starts if kind == "call"] == list(starts)
        if cleans is not None:
            assert [start for start in self.next_starts if start[1] != "call"] == list(cleans)
        if effects is not None:
            assert list_effects(self.state) == tuple(effects)
        if appended is not None:
            assert self.verdict is not None
            assert self.verdict.entries == tuple(appended)
        if already is not None:
            assert isinstance(self.verdict, NoChange), f"decision: {self.verdict}"
            assert self.verdict.name == already
        if refused is not None:
            assert isinstance(self.verdict, Refused), f"decision: {self.verdict}"
            assert self.verdict.reason == refused
        return self

    def _usual_epoch(self, entry: Entry) -> Epoch | None:
        """Return the epoch under which `entry` is usually written."""
        if isinstance(entry, LeaseTaken):
            return entry.epoch
        by_driver = self.state.is_leased and not isinstance(entry, RequestEntry | LateResult)
        return self.state.epoch if by_driver else None

    def _append(self, entries: Iterable[Entry], epoch: Epoch | None) -> "Scenario":
        state, records = self.state, self.records
        for entry in entries:
            state = evolve(state, entry, self.now)
            records += (Record(seq=state.seq, at=state.at, entry=entry, epoch=epoch),)
        return replace(self, state=state, records=records)


def given(*entries: Entry | DriverInput, now: Micros = START_TIME) -> Scenario:
    """Return the scenario of a run with this journal."""
    return Scenario(now=now).after(*entries)
