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
    CrossBoundary,
    DriverInput,
    LeasedInput,
    SettlePhase,
    StartCall,
    TakeLease,
)
from midrun.core.effects import Advance, DriverEffect, Settle
from midrun.core.entries import (
    CallDone,
    Entry,
    EntryBase,
    LateResult,
    LeaseTaken,
    Record,
    RequestEntry,
    RunStarted,
)
from midrun.core.evolve import evolve
from midrun.core.ids import MICROS_PER_SECOND, CallId, Epoch, Micros, RunId, Seq, make_call_id
from midrun.core.scheduler import plan_effects
from midrun.core.state import State
from midrun.core.transitions import Accepted, Input, NoChange, Refused, Verdict
from midrun.core.values import NO_SPEND, Phase, Reply, RequestedCall, Spend

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

    def starts(self, *calls: str, reserve: Spend = NO_SPEND) -> "Scenario":
        """Start these calls, as a driver that has read the journal to its end."""
        scenario = self
        for call in calls:
            state = scenario.state
            scenario = scenario.after(
                StartCall(
                    epoch=state.epoch,
                    call=CallId(call),
                    seen_seq=Seq(state.seq),
                    reserved=reserve,
                )
            )
        return scenario

    def replies(self, *uses: RequestedCall, text: str = "") -> "Scenario":
        """Complete one model call with `text` and these tool uses."""
        call = make_call_id(len(self.state.calls) + 1)
        reply = Reply(text=text, uses=uses)
        outcome = CallDone(call=call, reply=reply)
        return self.starts(call).after(CloseCall(epoch=self.state.epoch, outcome=outcome))

    def advances(self) -> "Scenario":
        """Append everything that follows from the journal alone, the run's end included."""
        scenario = self
        # Each step may make another one possible, so plan again until none is left.
        while orders := [
            o for o in plan_effects(scenario.state) if isinstance(o, Advance | Settle)
        ]:
            epoch = scenario.state.epoch
            settles = isinstance(orders[0], Settle)
            scenario = scenario.after(
                SettlePhase(epoch=epoch) if settles else CrossBoundary(epoch=epoch)
            )
        return scenario

    def then(
        self,
        *,
        phase: Phase | None = None,
        plans: Iterable[DriverEffect] | None = None,
        appended: Iterable[Entry] | None = None,
        already: str | None = None,
        refused: str | None = None,
    ) -> "Scenario":
        """Assert the phase, all effects, and the decision on the last input."""
        if phase is not None:
            assert self.state.phase == phase
        if plans is not None:
            assert plan_effects(self.state) == tuple(plans)
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
