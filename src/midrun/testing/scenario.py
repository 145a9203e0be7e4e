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
from midrun.core.decision import Accepted, Already, Refused, Verdict
from midrun.core.driver_inputs import (
    Advanced,
    Close,
    Evidence,
    Fenced,
    Settled,
    Start,
    TakeLease,
)
from midrun.core.effects import Advance, Order, Settle
from midrun.core.entries import (
    Asked,
    CallDone,
    Entry,
    Fact,
    LateResult,
    LeaseTaken,
    Record,
    RunStarted,
)
from midrun.core.evolve import evolve
from midrun.core.ids import SECOND, CallId, Epoch, Micros, RunId, Seq, call_id
from midrun.core.scheduler import plan
from midrun.core.state import State
from midrun.core.transitions import Input
from midrun.core.values import NOTHING, Phase, Reply, Spend, Use

RUN: Final = RunId("run_1")
NOON: Final = Micros(1_800_000_000 * SECOND)
BEGUN: Final[tuple[Entry, ...]] = (
    RunStarted(agent="clerk", task="Sort the mail", by="ann"),
    LeaseTaken(epoch=Epoch(1)),
)
"""A run whose lease was just taken."""


class Scenario(Struct, frozen=True, kw_only=True):
    """A run at one position of its journal, and the decision on its last input."""

    state: State = State(run=RUN)
    records: tuple[Record, ...] = ()
    verdict: Verdict | None = None
    now: Micros = NOON

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The journal without seqs and times."""
        return tuple(record.entry for record in self.records)

    def at(self, now: int) -> "Scenario":
        """Return the scenario with the time set to `now`."""
        return replace(self, now=Micros(now))

    def later(self, seconds: float) -> "Scenario":
        """Return the scenario with this much time passed."""
        return self.at(self.now + round(seconds * SECOND))

    def after(self, *given: Entry | Evidence) -> "Scenario":
        """Append entries as they are; decide driver inputs, which must be accepted.

        Raises:
            JournalCorrupt: an entry is not allowed here.
            AssertionError: a driver input was not accepted.
        """
        scenario = self
        for value in given:
            if isinstance(value, Fact):
                scenario = scenario._with((value,), scenario._writer(value))
                continue
            scenario = scenario.when(value)
            assert isinstance(scenario.verdict, Accepted), f"{value}: {scenario.verdict}"
        return scenario

    def when(self, *given: Input) -> "Scenario":
        """Decide the inputs one after another, and append the resulting entries."""
        scenario = self
        for value in given:
            verdict = decide(scenario.state, value, scenario.now)
            # Driver inputs are written under their epoch, a lease under the next one, and
            # controls under none.
            epoch = value.epoch if isinstance(value, Fenced) else None
            if isinstance(value, TakeLease):
                epoch = Epoch(scenario.state.epoch + 1)
            scenario = replace(scenario._with(verdict.entries, epoch), verdict=verdict)
        return scenario

    def starts(self, *calls: str, reserve: Spend = NOTHING) -> "Scenario":
        """Start these calls, as a driver that has read the journal to its end."""
        scenario = self
        for call in calls:
            state = scenario.state
            scenario = scenario.after(
                Start(
                    epoch=state.epoch, call=CallId(call), seen=Seq(state.seq), reserve=reserve
                )
            )
        return scenario

    def replies(self, *uses: Use, text: str = "") -> "Scenario":
        """Complete one model call with `text` and these tool uses."""
        call = call_id(len(self.state.calls) + 1)
        reply = Reply(text=text, uses=uses)
        outcome = CallDone(call=call, reply=reply)
        return self.starts(call).after(Close(epoch=self.state.epoch, outcome=outcome))

    def advances(self) -> "Scenario":
        """Append everything that follows from the journal alone, the run's end included."""
        scenario = self
        # Each step may make another one possible, so plan again until none is left.
        while orders := [o for o in plan(scenario.state) if isinstance(o, Advance | Settle)]:
            epoch = scenario.state.epoch
            settles = isinstance(orders[0], Settle)
            scenario = scenario.after(
                Settled(epoch=epoch) if settles else Advanced(epoch=epoch)
            )
        return scenario

    def then(
        self,
        *,
        phase: Phase | None = None,
        plans: Iterable[Order] | None = None,
        appended: Iterable[Entry] | None = None,
        already: str | None = None,
        refused: str | None = None,
    ) -> "Scenario":
        """Assert the phase, all effects, and the decision on the last input."""
        if phase is not None:
            assert self.state.phase == phase
        if plans is not None:
            assert plan(self.state) == tuple(plans)
        if appended is not None:
            assert self.verdict is not None
            assert self.verdict.entries == tuple(appended)
        if already is not None:
            assert isinstance(self.verdict, Already), f"decision: {self.verdict}"
            assert self.verdict.name == already
        if refused is not None:
            assert isinstance(self.verdict, Refused), f"decision: {self.verdict}"
            assert self.verdict.reason == refused
        return self

    def _writer(self, entry: Entry) -> Epoch | None:
        """Return the epoch under which `entry` is usually written."""
        if isinstance(entry, LeaseTaken):
            return entry.epoch
        by_driver = self.state.leased and not isinstance(entry, Asked | LateResult)
        return self.state.epoch if by_driver else None

    def _with(self, entries: Iterable[Entry], epoch: Epoch | None) -> "Scenario":
        state, records = self.state, self.records
        for entry in entries:
            state = evolve(state, entry, self.now)
            records += (Record(seq=state.seq, at=state.at, entry=entry, epoch=epoch),)
        return replace(self, state=state, records=records)


def given(*entries: Entry | Evidence, now: Micros = NOON) -> Scenario:
    """Return the scenario of a run with this journal."""
    return Scenario(now=now).after(*entries)
