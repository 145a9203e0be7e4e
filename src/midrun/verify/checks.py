"""`Problem`, the result of a check, and `JournalCheck`, the base class of all checks."""

from collections.abc import Callable, Mapping
from typing import ClassVar, Final

from msgspec import Struct

from midrun.core.entries import ENTRY_TYPES, Entry, Record, RequestEntry
from midrun.verify.ledger import Ledger

REQUEST_KINDS: Final = tuple(kind for kind in ENTRY_TYPES if issubclass(kind, RequestEntry))
"""The kinds of entries that record a request."""


class Problem(Struct, frozen=True, kw_only=True):
    """A broken invariant, the seq of the entry that breaks it, and a sentence."""

    invariant: str
    seq: int
    text: str

    def __str__(self) -> str:
        return f"{self.invariant} at {self.seq}: {self.text}"


class JournalCheck:
    """Base class of a check. It gets the records of the kinds in `HANDLERS`, in order.

    If `HANDLES_ALL` is set, every record is also passed to `check_record`, before its handler.
    During both, `self.ledger` holds the journal before the record. `check_end` is called after
    the last record.
    """

    HANDLERS: ClassVar["HandlersByKind"] = {}
    HANDLES_ALL: ClassVar[bool] = False

    def __init__(self, ledger: Ledger, problems: list[Problem]) -> None:
        self.ledger = ledger
        self.problems = problems

    def report(self, invariant: str, seq: int, text: str) -> None:
        """Add a problem."""
        self.problems.append(Problem(invariant=invariant, seq=seq, text=text))

    def check_record(self, record: Record, entry: Entry) -> None:
        """Check a record of any kind."""

    def check_end(self) -> None:
        """Check the journal as a whole, after its last record."""


RecordHandler = Callable[[JournalCheck, Record, Entry], None]
HandlersByKind = Mapping[type[Entry], RecordHandler]


def merge_handlers(*handler_maps: Mapping[type[Entry], object]) -> HandlersByKind:
    """Merge mappings from a kind of entry to the method that handles it; later ones win."""
    merged: dict[type[Entry], object] = {}
    for handlers in handler_maps:
        merged |= handlers
    return merged  # type: ignore[return-value]  # each method takes only its own kind of entry
