"""Verdicts: what `decide` answers. It never raises."""

from collections.abc import Callable, Mapping

from midrun.core.entries import Entry
from midrun.core.ids import Seq
from midrun.core.values import Value


class Accepted(Value, kw_only=True):
    """These entries, all or none, after exactly the state they were decided on."""

    entries: tuple[Entry, ...]


class Already(Value, kw_only=True):
    """Nothing changes: it is so already, since `seq`, because of `by`.

    `entries` may hold a note of the request, so that a repeat of it hears the same.
    """

    name: str
    seq: Seq
    by: str = ""
    entries: tuple[Entry, ...] = ()


class Refused(Value, kw_only=True):
    """Nothing changes: not in this phase, or a guard stands in the way; by name.

    `seq` and `by` say since when and because of whom; `entries` as in `Already`.
    """

    reason: str
    seq: Seq = Seq(0)
    by: str = ""
    entries: tuple[Entry, ...] = ()


Verdict = Accepted | Already | Refused

Rulings = Mapping[type, Callable[..., Verdict]]  # type: ignore[explicit-any]  # see below
"""Kind of input → what it means now. Each ruling takes the one kind that it is filed under,
which a mapping type cannot say; a test checks that every kind has its ruling."""


def accept(*entries: Entry) -> Accepted:
    """Return the entries as a verdict."""
    return Accepted(entries=entries)
