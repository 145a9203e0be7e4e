"""Scenarios over journals: given these entries, when somebody asks for that, then this holds.

A scenario is a value. Every step returns a new one, so a common beginning can be kept and
continued in many ways:

    given(*BEGUN).when(Pause()).then(phase=Phase.PAUSED)

Entries are appended as they are, as long as the table lets them stand there. Controls and
evidence pass `decide`. Everything goes into `records`, ready for `check_journal`.
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
"""A run that a driver has just taken."""


class Scenario(Struct, frozen=True, kw_only=True):
    """A run at one position of its journal, and what its last input was told."""

    state: State = State(run=RUN)
    records: tuple[Record, ...] = ()
    verdict: Verdict | None = None
    now: Micros = NOON

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The journal without its places and times."""
        return tuple(record.entry for record in self.records)

    def at(self, now: int) -> "Scenario":
        """Let everything from here on happen at `now`."""
        return replace(self, now=Micros(now))

    def later(self, seconds: float) -> "Scenario":
        """Let this much time pass."""
        return self.at(self.now + round(seconds * SECOND))

    def after(self, *given: Entry | Evidence) -> "Scenario":
        """Append entries as they are, and evidence as it is accepted.

        Raises:
            JournalCorrupt: an entry cannot stand here.
            AssertionError: a piece of evidence was not accepted.
        """
        went = self
        for one in given:
            if isinstance(one, Fact):
                went = went._with((one,), went._writer(one))
                continue
            went = went.when(one)
            assert isinstance(went.verdict, Accepted), f"{one} was told {went.verdict}"
        return went

    def when(self, *given: Input) -> "Scenario":
        """Give the inputs to `decide`, one after the other, and append what they mean."""
        went = self
        for one in given:
            verdict = decide(went.state, one, went.now)
            epoch = one.epoch if isinstance(one, Fenced) else None
            if isinstance(one, TakeLease):
                epoch = Epoch(went.state.epoch + 1)
            went = replace(went._with(verdict.entries, epoch), verdict=verdict)
        return went

    def starts(self, *calls: str, reserve: Spend = NOTHING) -> "Scenario":
        """Let the driver start these calls from what the journal says now."""
        went = self
        for call in calls:
            state = went.state
            went = went.after(
                Start(
                    epoch=state.epoch, call=CallId(call), seen=Seq(state.seq), reserve=reserve
                )
            )
        return went

    def replies(self, *uses: Use, text: str = "") -> "Scenario":
        """Let the model make one call and answer with `text` and the calls it wants made."""
        call = call_id(len(self.state.calls) + 1)
        reply = Reply(text=text, uses=uses)
        outcome = CallDone(call=call, reply=reply)
        return self.starts(call).after(Close(epoch=self.state.epoch, outcome=outcome))

    def advances(self) -> "Scenario":
        """Let the driver do all bookkeeping that needs nothing from outside, ends included."""
        went = self
        while orders := [o for o in plan(went.state) if isinstance(o, Advance | Settle)]:
            epoch = went.state.epoch
            settles = isinstance(orders[0], Settle)
            went = went.after(Settled(epoch=epoch) if settles else Advanced(epoch=epoch))
        return went

    def then(
        self,
        *,
        phase: Phase | None = None,
        plans: Iterable[Order] | None = None,
        appended: Iterable[Entry] | None = None,
        already: str | None = None,
        refused: str | None = None,
    ) -> "Scenario":
        """Assert what is so now: the phase, all orders, and what the last input was told."""
        if phase is not None:
            assert self.state.phase == phase
        if plans is not None:
            assert plan(self.state) == tuple(plans)
        if appended is not None:
            assert self.verdict is not None
            assert self.verdict.entries == tuple(appended)
        if already is not None:
            assert isinstance(self.verdict, Already), f"was told {self.verdict}"
            assert self.verdict.name == already
        if refused is not None:
            assert isinstance(self.verdict, Refused), f"was told {self.verdict}"
            assert self.verdict.reason == refused
        return self

    def _writer(self, entry: Entry) -> Epoch | None:
        """Return the epoch under which `entry` is written if nobody says otherwise."""
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
    """Return the run whose journal these entries are."""
    return Scenario(now=now).after(*entries)
