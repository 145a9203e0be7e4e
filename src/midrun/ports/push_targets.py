"""Push targets: addresses that a client has registered for one run, stored beside its journal.

A target has credentials of its receiver, so it is not an entry: entries are never changed, are
shown to every reader of the run, and are part of its exports. A target can be replaced and
removed, and is removed with its run.
"""

from collections.abc import Sequence
from typing import Final, Protocol, runtime_checkable

from msgspec import Struct

from midrun.core.ids import RunId

TARGET_BODY_MAX_BYTES: Final = 16_384
"""The longest body of a target."""

TARGET_ID_MAX_CHARS: Final = 128
"""The longest id of a target."""


class PushTarget(Struct, frozen=True, kw_only=True):
    """A target of one run. `body` is opaque to the store, and encrypted if its entries are."""

    id: str
    body: bytes


class PushTargets(Protocol):
    """Stores the push targets of all runs. Acknowledged changes are durable."""

    async def put_target(self, run: RunId, target: PushTarget) -> None:
        """Add a target, or replace the one with the same id.

        The run need not exist yet. A target that is stored before the run is started misses
        none of its entries.

        Raises:
            ValueError: the id or the body is empty or too long.
        """
        ...

    async def list_targets(self, run: RunId) -> Sequence[PushTarget]:
        """Return the targets of a run, ordered by id; none if there is no such run.

        Raises:
            JournalKeyMissing: a target is encrypted with a key that this process does not have.
        """
        ...

    async def remove_target(self, run: RunId, target_id: str) -> None:
        """Remove a target; without effect if there is none."""
        ...


@runtime_checkable
class HasPushTargets(Protocol):
    """A store that keeps push targets."""

    def push_targets(self) -> PushTargets:
        """Return the targets of all runs."""
        ...
