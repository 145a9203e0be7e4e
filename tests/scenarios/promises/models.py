"""Scripted models that fail where a test says so, or that have a price."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
from msgspec.structs import replace

from midrun.core.values import Spend
from midrun.errors import ModelFailed
from midrun.models import ScriptedModel
from midrun.models.scripted import Cue, Line
from midrun.ports.model import Finished, Piece, Prompt, Unpriced

OVERLOADED = ModelFailed("failing", "overloaded", "try again later", transient=True)
BAD_REQUEST = ModelFailed("failing", "bad_request", "no such model")


def rate_limited(retry_after: float) -> ModelFailed:
    """Return the failure of a provider that names the time of the next attempt."""
    return ModelFailed(
        "failing", "rate_limited", "too many", transient=True, retry_after=retry_after
    )


class FailingModel(Unpriced):
    """Plays `turns`, one for each call. A turn that is an exception is raised.

    `calls` is the number of calls.
    """

    name = "failing"

    def __init__(self, *turns: Line | Cue | Exception) -> None:
        self.calls = 0
        self._turns = turns

    def stream(
        self, prompt: Prompt
    ) -> AbstractAsyncContextManager[AsyncIterator[Piece | Finished]]:
        """Play the next turn."""
        return self._stream(prompt)

    @asynccontextmanager
    async def _stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        turn = self._turns[self.calls]
        self.calls += 1
        if isinstance(turn, Exception):
            yield _raise_after_text(turn)
            return
        line = turn(prompt.transcript) if callable(turn) else turn
        async with ScriptedModel(lambda _: line).stream(prompt) as pieces:
            yield pieces


async def _raise_after_text(error: Exception) -> AsyncIterator[Piece | Finished]:
    yield Piece(kind="text", text="Well, ")
    raise error


class FailingReserveModel(FailingModel):
    """Its `reserve` raises until the test clears `broken`."""

    broken = True

    def reserve(self, prompt: Prompt) -> Spend:
        """Raise, or reserve nothing."""
        if self.broken:
            raise LookupError("price list not found")
        return super().reserve(prompt)


REPLY_COST = Spend(tokens=100, cost=10_000)  # one cent
REPLY_RESERVATION = Spend(tokens=150, cost=15_000)


class PricedModel:
    """Plays `turns`; each reply costs `REPLY_COST` and reserves `REPLY_RESERVATION`.

    `calls` is the number of calls. With a `gate`, each call sets `called` and then waits for
    the gate.
    """

    name = "priced"
    priced = True

    def __init__(self, turns: Sequence[Line | Cue], gate: anyio.Event | None = None) -> None:
        self.calls = 0
        self.called = anyio.Event()
        self._gate = gate
        self._script = ScriptedModel(turns)

    def stream(
        self, prompt: Prompt
    ) -> AbstractAsyncContextManager[AsyncIterator[Piece | Finished]]:
        """Play the next turn."""
        return self._stream(prompt)

    @asynccontextmanager
    async def _stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        self.calls += 1
        self.called.set()
        if self._gate is not None:
            await self._gate.wait()
        async with self._script.stream(prompt) as pieces:
            yield self._add_cost(pieces)

    async def _add_cost(
        self, pieces: AsyncIterator[Piece | Finished]
    ) -> AsyncIterator[Piece | Finished]:
        async for piece in pieces:
            yield replace(piece, spent=REPLY_COST) if isinstance(piece, Finished) else piece

    def reserve(self, prompt: Prompt) -> Spend:
        """Reserve more than a reply costs."""
        del prompt
        return REPLY_RESERVATION
