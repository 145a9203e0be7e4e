"""Attempts: a run rests for what ended its drivers only if enough of them ended (I41).

That such a call is not made again is no rule for a journal: those of before may have it made
again for as long as it takes, and are as true as ever. The simulator looks at it.
"""

from midrun.core.attempts import DEATHS, DIED
from midrun.core.entries import LeaseTaken, Record, RunFailed, RunResumed, TakenOver
from midrun.verify.ledger import Ledger
from midrun.verify.problems import Problem, Watch, arms


class Attempts(Watch):
    """Watches how many drivers of the run did not give their lease back."""

    __slots__ = ("_lost",)

    def __init__(self, ledger: Ledger, found: list[Problem]) -> None:
        super().__init__(ledger, found)
        self._lost = 0  # since a person let the run go on

    def leased(self, *_: object) -> None:
        """A driver has the run; the last one may not have given it back."""
        self._lost += self.ledger.leased

    def let_go_on(self, *_: object) -> None:
        """A person has read what was; it counts from here."""
        self._lost = 0

    def failed(self, record: Record, entry: RunFailed) -> None:
        """A run does not rest for deaths that were none."""
        if entry.code == DIED and self._lost < DEATHS:
            text = f"The run failed of drivers that died, but only {self._lost} had."
            self.report("I41", record.seq, text)

    ARMS = arms(
        {LeaseTaken: leased, RunFailed: failed},
        dict.fromkeys((RunResumed, TakenOver), let_go_on),
    )
