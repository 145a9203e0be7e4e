"""Marks: how far each follower has got with each run, kept with the journals but not in them.

A follower tells others what happened: it delivers webhooks, or emits spans. What it has not
told yet is in the journals, however long that takes; where it is, is a mark. A run is followed
when it has come to rest.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, Protocol, runtime_checkable

from msgspec import Struct

from midrun.core.ids import START, RunId, Seq

NOTE_MAX: Final = 1000
"""How many characters a follower may keep with a mark."""


class Mark(Struct, frozen=True, kw_only=True):
    """A follower has told of everything up to `seq`. `note` is its own, for the next time."""

    run: RunId
    seq: Seq = START
    note: str = ""


class Marks(Protocol):
    """Keeps the marks of all followers of one store. What was acknowledged is durable."""

    async def attend(self, follower: str, *, holder: str, ttl: timedelta) -> bool:
        """Have the follower's place for `ttl` from now; False: another process has it.

        The first time a follower comes, everything up to now counts as told: it follows what
        happens from then on. Two may believe to have the place when clocks jump; then things
        are told twice.
        """
        ...

    async def leave(self, follower: str, *, holder: str) -> None:
        """Give the place up, if it is the holder's."""
        ...

    async def behind(self, follower: str, *, limit: int) -> Sequence[Mark]:
        """Return the marks of runs that rest and have grown past them, the oldest first.

        A run that began after the follower first came has a mark at its start.
        """
        ...

    async def marked(self, follower: str, run: RunId) -> Mark:
        """Return the mark of a run.

        Raises:
            RunNotFound: no such run.
        """
        ...

    async def mark(self, follower: str, mark: Mark) -> None:
        """Move a mark; it never goes back.

        Raises:
            RunNotFound: no such run.
            ValueError: the note is longer than a note.
        """
        ...


@runtime_checkable
class Marking(Protocol):
    """A store that keeps marks."""

    def marks(self) -> Marks:
        """Return what keeps them."""
        ...
