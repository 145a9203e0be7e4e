"""The scripted answers and faults of a fake provider, independent of the protocol.

Positions count deltas: the pieces of text, thinking and arguments in the stream. So a script
has the same meaning in every protocol.
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
    """Thinking, streamed in these pieces; signed at its end if the protocol has signatures."""

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
    """The token counts that the provider reports; all input tokens include the cached ones."""

    input_tokens: int = 11
    output_tokens: int = 7
    cached_tokens: int = 0
    thinking_tokens: int = 0


class ConnectionCut(Struct, frozen=True, kw_only=True):
    """Close the connection after this number of deltas."""

    after: int


class EarlyEnd(Struct, frozen=True, kw_only=True):
    """End the response properly after this number of deltas, with an incomplete message."""

    after: int


class MalformedChunk(Struct, frozen=True, kw_only=True):
    """Send half a chunk, which is not valid JSON, after this number of deltas."""

    after: int


class EndlessText(Struct, frozen=True):
    """Repeat the last piece of the last text part without end."""


class Gate:
    """Holds an answer back after this number of deltas; `after=None`: before its headers.

    A gate that is never opened is a provider that stalls.
    """

    def __init__(self, *, after: int | None) -> None:
        self.after = after
        self._reached = anyio.Event()
        self._opened = anyio.Event()

    async def wait_until_reached(self) -> None:
        """Wait until the answer has reached the gate."""
        await self._reached.wait()

    def open(self) -> None:
        """Let the answer continue."""
        self._opened.set()

    async def pass_through(self) -> None:
        """Wait until the gate is open; called by the server."""
        self._reached.set()
        await self._opened.wait()


Fault: TypeAlias = ConnectionCut | EarlyEnd | MalformedChunk | EndlessText | Gate


class Answer:
    """One answer: its parts, its token counts, its finish reason, and its fault.

    `finish` is `stop`, `length` or `filtered`. An answer with calls and `stop` has the
    protocol's own finish reason for calls.
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
        """Whether the answer has tool calls."""
        return any(isinstance(part, Call) for part in self.parts)


class HttpError:
    """An HTTP error instead of an answer, with the error body of the protocol."""

    def __init__(
        self,
        status: int,
        *,
        kind: str = "some_error",
        message: str = "no",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        self.kind = kind
        self.message = message
        self.headers = dict(headers or {})
