"""What a fake provider is told to answer, apart from any protocol.

Positions count deltas: the pieces of text, thinking and arguments that a client is streamed.
So the same script means the same on every protocol.
"""

from collections.abc import Mapping
from typing import TypeAlias

import anyio
from msgspec import Struct


class Text:
    """Text, streamed in these pieces."""

    def __init__(self, *pieces: str) -> None:
        self.pieces = pieces


class Thinking:
    """Thinking, streamed in these pieces and signed at its end where the protocol signs."""

    def __init__(self, *pieces: str, signature: str = "signed-by-the-provider") -> None:
        self.pieces = pieces
        self.signature = signature


class Call:
    """A tool call whose arguments, as JSON text, are streamed in these pieces."""

    def __init__(self, tool: str, *pieces: str, id: str = "") -> None:  # noqa: A002 - its name on the wire
        self.tool = tool
        self.pieces = pieces
        self.id = id


Part: TypeAlias = Text | Thinking | Call


class Usage(Struct, frozen=True, kw_only=True):
    """The tokens that the provider says it counted."""

    taken: int = 11
    given: int = 7


class Cut(Struct, frozen=True, kw_only=True):
    """The connection breaks after so many deltas."""

    after: int


class Ended(Struct, frozen=True, kw_only=True):
    """The response ends in good order after so many deltas, before the message is whole."""

    after: int


class Garbled(Struct, frozen=True, kw_only=True):
    """Half a chunk, which is not JSON, comes after so many deltas."""

    after: int


class Endless(Struct, frozen=True):
    """The last text part never stops: its last piece is sent for ever."""


class Gate:
    """Holds an answer back after so many deltas, or its very headers with `after=None`.

    A gate that nobody opens is a provider that stalls.
    """

    def __init__(self, *, after: int | None) -> None:
        self.after = after
        self._reached = anyio.Event()
        self._opened = anyio.Event()

    async def reached(self) -> None:
        """Wait until the answer stands at the gate."""
        await self._reached.wait()

    def open(self) -> None:
        """Let the answer go on."""
        self._opened.set()

    async def pass_through(self) -> None:
        """Stand at the gate until it is opened; for the server."""
        self._reached.set()
        await self._opened.wait()


Fault: TypeAlias = Cut | Ended | Garbled | Endless | Gate


class Answer:
    """One answer: its parts, what it counted, why it finished, and what goes wrong with it.

    `finish` is `stop`, `length` or `filtered`; with calls, `stop` is said as
    the protocol says that it stopped for them.
    """

    def __init__(
        self,
        *parts: Part,
        fault: Fault | None = None,
        usage: Usage | None = Usage(),  # noqa: B008 - frozen
        finish: str = "stop",
    ) -> None:
        self.parts = parts
        self.fault = fault
        self.usage = usage
        self.finish = finish

    @property
    def calls(self) -> bool:
        """Whether it asks for any call."""
        return any(isinstance(part, Call) for part in self.parts)


class Denied:
    """An HTTP error in place of an answer, with an error body as the protocol has it."""

    def __init__(
        self,
        code: int,
        *,
        kind: str = "some_error",
        message: str = "no",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.code = code
        self.kind = kind
        self.message = message
        self.headers = dict(headers or {})
