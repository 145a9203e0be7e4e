"""A batch: the entries of one append, decided one after the other on top of a state."""

from midrun.core.decide import decide
from midrun.core.entries import Entry
from midrun.core.evolve import evolve
from midrun.core.ids import Micros
from midrun.core.scheduler import MayStart, Reserve, advance
from midrun.core.state import State
from midrun.core.transitions import Input, Verdict


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
        self, reserve: Reserve, may_start: MayStart, *, hooks_running: bool = False
    ) -> None:
        """Add everything that follows from the state alone; see `scheduler.advance`."""
        while entries := advance(
            self.state, self.now, reserve, may_start, hooks_running=hooks_running
        ):
            for entry in entries:
                self.entries.append(entry)
                self.state = evolve(self.state, entry, self.now)
