"""The relay: sends live text (tokens, notes) to other processes that share a store.

Delivery is best effort, and nothing depends on it: all that matters is in the journal a moment
later. A process listens to the runs that its own users watch; the process that drives a run
sends only to listeners.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from midrun.core.ids import RunId


class Listener(NamedTuple):
    """A process that listens to a run.

    `name` identifies the process within the relay. `generation` changes if the process stopped
    and started to listen again: it then needs the whole text so far. Its value has no other
    meaning.
    """

    name: str
    generation: int


class Relay(Protocol):
    """The end of a relay in one process, which sends and listens.

    A message is UTF-8 text without NUL, at most `max_message_bytes` long. It arrives once or
    not at all. A process does not receive its own messages. All methods are called in one event
    loop.
    """

    @property
    def max_message_bytes(self) -> int:
        """The largest size of a message, in bytes."""
        ...

    def listeners(self, run: RunId) -> Sequence[Listener]:
        """Return the listeners of `run` in other processes.

        Called for every token of a model, so it must be cheap. The answer may be a fraction of
        a second old.
        """
        ...

    async def send(self, name: str, message: bytes) -> bool:
        """Send to a listener without waiting; False if its buffer is full.

        Returns True if the listener is gone: there is no buffer to wait for.
        """
        ...

    def listen(self, run: RunId) -> None:
        """Receive messages about `run` from now on."""
        ...

    def stop_listening(self, run: RunId) -> None:
        """Receive no more messages about `run`."""
        ...

    async def receive(self) -> bytes:
        """Return the next message that another process has sent here."""
        ...

    def close(self) -> None:
        """Stop listening and free all resources."""
        ...


@runtime_checkable
class HasRelay(Protocol):
    """A store that other processes can share, with a relay to them."""

    def relay(self) -> Relay:
        """Open an end of the relay for this process and event loop; the caller closes it."""
        ...


def open_relay(store: object) -> Relay | None:
    """Open an end of the relay of `store`; None if it has no relay."""
    return store.relay() if isinstance(store, HasRelay) else None
