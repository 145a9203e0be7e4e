"""Verdicts: the possible answers of `decide`, which never raises.

Accepted (entries to append), no change (the run is already in the wanted state), or refused.
The names of the last two are in `transitions.py` and are stable: clients branch on them.
"""

from collections.abc import Callable, Mapping

from midrun.core.entries import Entry
from midrun.core.ids import Seq
from midrun.core.values import Value


class Accepted(Value, kw_only=True):
    """Append these entries, all or none, directly after the state that was decided on."""

    entries: tuple[Entry, ...]


class NoChange(Value, kw_only=True):
    """The run is already in the wanted state, since `seq`, because of `by`.

    `entries` may hold a `RequestNoted`. It records the verdict under the request id, so that a
    repeat of the request gets the same verdict.
    """

    name: str
    seq: Seq
    by: str = ""
    entries: tuple[Entry, ...] = ()


class Refused(Value, kw_only=True):
    """The input does not fit the phase, or a check failed; `reason` is its stable name.

    `seq` and `by` name the entry and the person that caused it; `entries` as in `NoChange`.
    """

    reason: str
    seq: Seq = Seq(0)
    by: str = ""
    entries: tuple[Entry, ...] = ()


Verdict = Accepted | NoChange | Refused

DecideFunctions = Mapping[type, Callable[..., Verdict]]  # type: ignore[explicit-any]  # see below
"""Type of input → the function that decides it.

Each function takes the one type that is its key, which a mapping type cannot express; a test
checks that every type has a function.
"""


def accept(*entries: Entry) -> Accepted:
    """Return a verdict that appends `entries`."""
    return Accepted(entries=entries)
