"""Follower cursors: the position of each follower in each journal, stored beside the journals.

A follower reports runs to other systems: it delivers webhooks, or emits spans. The journals are
its queue, and its cursor in a run is the last entry that it has reported. A run is reported
whenever it has come to rest and has grown past the cursor. Delivery is at least once: a crash
between a delivery and the update of the cursor repeats the delivery.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, Protocol, runtime_checkable

from msgspec import Struct

from midrun.core.ids import SEQ_ZERO, RunId, Seq

NOTE_MAX_CHARS: Final = 1000
"""The longest note of a cursor."""


class FollowerCursor(Struct, frozen=True, kw_only=True):
    """A follower has reported a run up to `seq`; `note` is data of the follower itself."""

    run: RunId
    seq: Seq = SEQ_ZERO
    note: str = ""


class FollowerCursors(Protocol):
    """Stores the cursors of all followers of one store. Acknowledged changes are durable."""

    async def acquire_leadership(self, follower: str, *, holder: str, ttl: timedelta) -> bool:
        """Become, or stay, the one process that works for the follower, for `ttl` from now.

        Returns False if another process is. The first call for a follower sets its cursors to
        the ends of all journals: it reports only later entries. When clocks jump, two processes
        may believe that they are the one; then entries are reported twice.
        """
        ...

    async def release_leadership(self, follower: str, *, holder: str) -> None:
        """Let another process work for the follower, if `holder` does now."""
        ...

    async def list_behind(self, follower: str, *, limit: int) -> Sequence[FollowerCursor]:
        """Return the cursors of resting runs that have grown past them, oldest first.

        A run that was created after the first `acquire_leadership` has a cursor at its start.
        """
        ...

    async def get_cursor(self, follower: str, run: RunId) -> FollowerCursor:
        """Return the cursor of a run.

        Raises:
            RunNotFound: no such run.
        """
        ...

    async def advance_cursor(self, follower: str, cursor: FollowerCursor) -> None:
        """Move a cursor forward; a lower seq than before changes nothing.

        Raises:
            RunNotFound: no such run.
            ValueError: the note is longer than `NOTE_MAX_CHARS`.
        """
        ...


@runtime_checkable
class HasFollowerCursors(Protocol):
    """A store that has follower cursors."""

    def follower_cursors(self) -> FollowerCursors:
        """Return the cursors of all followers."""
        ...
