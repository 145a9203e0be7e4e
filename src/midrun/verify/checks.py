"""What a check reports, and the shape that every subject of the checks has."""

from collections.abc import Callable, Mapping
from typing import ClassVar, Final

from msgspec import Struct

from midrun.core.entries import KINDS, Asked, Entry, Record
from midrun.verify.ledger import Ledger

ASKED: Final = tuple(kind for kind in KINDS if issubclass(kind, Asked))
"""The entries that record what somebody asked for."""


class Problem(Struct, frozen=True, kw_only=True):
    """A promise that a journal breaks: which one, at which entry, in a sentence."""

    invariant: str
    seq: int
    text: str

    def __str__(self) -> str:
        return f"{self.invariant} at {self.seq}: {self.text}"


class Watch:
    """One subject: it sees every record of the kinds in `ARMS`, in order, then the end.

    A subject that every record concerns has its look at it first, in `look`. Meanwhile
    `self.ledger` is what the journal said before the record.
    """

    ARMS: ClassVar["Arms"] = {}
    CONCERNS_ALL: ClassVar[bool] = False

    __slots__ = ("found", "ledger")

    def __init__(self, ledger: Ledger, found: list[Problem]) -> None:
        self.ledger = ledger
        self.found = found

    def report(self, invariant: str, seq: int, text: str) -> None:
        """Add a problem."""
        self.found.append(Problem(invariant=invariant, seq=seq, text=text))

    def look(self, record: Record, entry: Entry) -> None:
        """Look at a record of any kind."""

    def end(self) -> None:
        """Look back: the journal has no more records."""


Arm = Callable[[Watch, Record, Entry], None]
Arms = Mapping[type[Entry], Arm]


def arms(*given: Mapping[type[Entry], object]) -> Arms:
    """Return the arms of a subject, each a method filed under the one entry it takes."""
    merged: dict[type[Entry], object] = {}
    for some in given:
        merged |= some
    return merged  # type: ignore[return-value]  # what a mapping of methods cannot say
