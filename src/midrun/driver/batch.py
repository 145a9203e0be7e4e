"""A batch: what one append will hold. Each part is decided on what the parts before led to."""

from midrun.core.entries import Entry
from midrun.core.ids import Micros
from midrun.core.machine import apply, decide
from midrun.core.state import State
from midrun.core.table import Input
from midrun.core.verdicts import Verdict


class Batch:
    """Grows on top of `base`; must be appended after exactly that, all of it or nothing."""

    __slots__ = ("base", "entries", "now", "state")

    def __init__(self, base: State, now: Micros) -> None:
        self.base = base
        self.now = now
        self.state = base
        self.entries: list[Entry] = []

    def add(self, given: Input) -> Verdict:
        """Decide `given` on what the batch has led to so far, and add what it means."""
        verdict = decide(self.state, given, self.now)
        if verdict.entries:
            self.entries += verdict.entries
            self.state = apply(self.state, verdict.entries, self.now)
        return verdict
