"""A journal read aloud: one sentence for each entry, for a person who was not there.

An entry alone does not say what it is about; between the state before it and the one after it
there is a sentence that names the people, the tools and the words. Whoever follows a run line
by line is told it; the bar and the page have short words of their own.
"""

from typing import Final

from midrun.core.entries import Entry
from midrun.core.evolve import evolve
from midrun.core.ids import Micros, RunId
from midrun.core.sentences.asks import ASK_TEXTS
from midrun.core.sentences.calls import CALL_TEXTS
from midrun.core.sentences.life import LIFECYCLE_TEXTS
from midrun.core.sentences.steering import CONTROL_TEXTS
from midrun.core.sentences.thought import CONVERSATION_TEXTS
from midrun.core.sentences.phrases import Sentences, Told
from midrun.core.state import State

SENTENCES: Final[Sentences] = {
    **LIFECYCLE_TEXTS,
    **CONTROL_TEXTS,
    **CALL_TEXTS,
    **ASK_TEXTS,
    **CONVERSATION_TEXTS,
}
"""Kind of entry → how it is told. A test checks that every kind has its own."""


def aloud(entry: Entry, before: State, after: State) -> Told:
    """Return the sentence for `entry`, which led from `before` to `after`."""
    return SENTENCES[type(entry)](entry, before, after)


class Reader:
    """Reads one journal from its beginning, entry by entry."""

    def __init__(self, run: RunId) -> None:
        self.state = State(run=run)

    def read(self, entry: Entry, at: Micros) -> Told:
        """Return the sentence for the next entry.

        Raises:
            JournalCorrupt: `entry` cannot stand here.
        """
        before = self.state
        self.state = evolve(before, entry, at)
        return aloud(entry, before, self.state)

