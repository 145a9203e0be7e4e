"""The relay: carries what is live to the other processes of a store, as well as it can.

Nothing depends on it. What it loses is in the journal a moment later.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from midrun.core.ids import RunId


class Listener(NamedTuple):
    """A process that wants to hear of a run. `since` is another number when it left meanwhile.

    `name` is the relay's own for the process; `since` says nothing but that.
    """

    name: str
    since: int


class Relay(Protocol):
    """One process's end of it: sends to those who listen elsewhere, and listens itself.

    A message is UTF-8 text without a NUL, at most `limit` bytes long. It arrives once, or not
    at all. Nobody hears what they sent themselves. Everything is called in one event loop.
    """

    @property
    def limit(self) -> int:
        """How many bytes one message may have."""
        ...

    def listeners(self, run: RunId) -> Sequence[Listener]:
        """Return who elsewhere wants to hear of `run`.

        Cheap enough to be asked for every word that a model says. It may be behind by a
        fraction of a second.
        """
        ...

    async def send(self, name: str, message: bytes) -> bool:
        """Send to the listener of that name, without waiting for it; False if it has no room.

        A listener that is gone has taken everything: there is no room to wait for.
        """
        ...

    def listen(self, run: RunId) -> None:
        """Have others send what they have of `run` from now on."""
        ...

    def leave(self, run: RunId) -> None:
        """Have them stop."""
        ...

    async def receive(self) -> bytes:
        """Return the next message that another process has sent here."""
        ...

    def close(self) -> None:
        """Let go of everything; nobody hears anything any more."""
        ...


@runtime_checkable
class Relaying(Protocol):
    """A store that other processes may share, and that can reach them."""

    def relay(self) -> Relay:
        """Return an end of the relay, for one process and one event loop; close it."""
        ...


def relay_of(store: object) -> Relay | None:
    """Return an end of the relay of `store`, if it has one."""
    return store.relay() if isinstance(store, Relaying) else None
