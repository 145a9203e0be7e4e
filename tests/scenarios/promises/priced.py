"""A model with a price: every reply costs the same, and wants more set aside than it costs."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
from msgspec.structs import replace

from midrun.core.values import Spend
from midrun.models import ScriptedModel
from midrun.models.scripted import Cue, Line
from midrun.ports.model import Finished, Piece, Prompt

SPENT = Spend(tokens=100, cost=10_000)  # one cent
RESERVED = Spend(tokens=150, cost=15_000)


class Priced:
    """Plays `turns` for money. `spoken` counts how often it was asked.

    With a `gate` it stops before its reply until the test opens it; `began` is set by then.
    """

    name = "priced"
    priced = True

    def __init__(self, turns: Sequence[Line | Cue], gate: anyio.Event | None = None) -> None:
        self.spoken = 0
        self.began = anyio.Event()
        self._gate = gate
        self._script = ScriptedModel(turns)

    def stream(
        self, prompt: Prompt
    ) -> AbstractAsyncContextManager[AsyncIterator[Piece | Finished]]:
        """Play the next turn."""
        return self._stream(prompt)

    @asynccontextmanager
    async def _stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        self.spoken += 1
        self.began.set()
        if self._gate is not None:
            await self._gate.wait()
        async with self._script.stream(prompt) as pieces:
            yield self._dear(pieces)

    async def _dear(
        self, pieces: AsyncIterator[Piece | Finished]
    ) -> AsyncIterator[Piece | Finished]:
        async for piece in pieces:
            yield replace(piece, spent=SPENT) if isinstance(piece, Finished) else piece

    def reserve(self, prompt: Prompt) -> Spend:
        """Set more aside than a reply costs."""
        del prompt
        return RESERVED
