"""Attempts: what ends its processes, or is never done, is not made again for ever (I41)."""

from collections import Counter

from midrun.core.attempts import DEATHS, DENIALS, DIED
from midrun.core.entries import (
    CallSettled,
    CallStarted,
    CallUnknown,
    LeaseTaken,
    ProgressSaved,
    Record,
    RunFailed,
    RunResumed,
    TakenOver,
)
from midrun.core.values import Json
from midrun.verify.ledger import Ledger
from midrun.verify.problems import Problem, Watch, arms


class Attempts(Watch):
    """Watches how many drivers a call has cost, and how often its check said: not done.

    Drivers that died while a check was under way are not counted for its call, but for the run:
    when it was asked, the journal does not say.
    """

    __slots__ = ("_begun", "_deaths", "_denials", "_lost", "_progress", "_taken")

    def __init__(self, ledger: Ledger, found: list[Problem]) -> None:
        super().__init__(ledger, found)
        self._taken = 0  # seq of the last lease
        self._lost = 0  # leases that nobody gave back, since a person let the run go on
        self._begun: dict[str, int] = {}  # seq of the last attempt
        self._deaths: Counter[str] = Counter()
        self._denials: Counter[str] = Counter()
        self._progress: dict[str, Json] = {}

    def leased(self, record: Record, _: LeaseTaken) -> None:
        """A driver has the run; the last one may not have given it back."""
        self._taken = record.seq
        self._lost += self.ledger.leased

    def started(self, record: Record, entry: CallStarted) -> None:
        """An attempt begins."""
        made = self.ledger.calls.get(entry.call) or entry.call
        if (deaths := self._deaths[entry.call]) >= DEATHS:
            text = f"{made} was started again although {deaths} drivers had died under it."
            self.report("I41", record.seq, text)
        if (denials := self._denials[entry.call]) >= DENIALS:
            text = f"{made} was started again although it was not done {denials} times."
            self.report("I41", record.seq, text)
        self._begun[entry.call] = record.seq

    def unknown(self, _: Record, entry: CallUnknown) -> None:
        """An attempt of an earlier lease died with its driver, unless a person is asked."""
        made = self.ledger.calls.get(entry.call)
        if made is None or made.kind == "child" or not (made.harmless or made.traits.check):
            return
        if self._begun.get(entry.call, 0) < self._taken:
            self._deaths[entry.call] += 1

    def saved(self, _: Record, entry: ProgressSaved) -> None:
        """A call that got further is not what ends its drivers."""
        if self._progress.get(entry.call) != entry.progress:
            self._deaths.pop(entry.call, None)
        self._progress[entry.call] = entry.progress

    def settled(self, _: Record, entry: CallSettled) -> None:
        """A check, or a person, says what happened; a person may say no as often as asked."""
        made = self.ledger.calls.get(entry.call)
        if made is not None and made.traits.check and entry.happened is False:
            self._denials[entry.call] += 1

    def let_go_on(self, *_: object) -> None:
        """A person has read what was; it counts from here."""
        self._deaths.clear()
        self._lost = 0

    def failed(self, record: Record, entry: RunFailed) -> None:
        """A run does not rest for deaths that were none."""
        if entry.code == DIED and self._lost < DEATHS:
            text = f"The run failed of drivers that died, but only {self._lost} had."
            self.report("I41", record.seq, text)

    ARMS = arms(
        {
            LeaseTaken: leased,
            CallStarted: started,
            CallUnknown: unknown,
            ProgressSaved: saved,
            CallSettled: settled,
            RunFailed: failed,
        },
        dict.fromkeys((RunResumed, TakenOver), let_go_on),
    )
