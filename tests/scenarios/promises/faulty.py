"""A model that fails where a test says so, and tools that fail in every way there is."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio

from midrun import tool
from midrun.core.values import Spend
from midrun.errors import ModelFailed
from midrun.models import ScriptedModel
from midrun.models.scripted import Cue, Line
from midrun.ports.model import Finished, Piece, Prompt, Unpriced

OVERLOADED = ModelFailed("faulty", "overloaded", "come back later", transient=True)
REFUSED = ModelFailed("faulty", "bad_request", "no such model")


def limited(retry_after: float) -> ModelFailed:
    """Return the failure of a provider that says when to come back."""
    return ModelFailed(
        "faulty", "rate_limited", "too many", transient=True, retry_after=retry_after
    )


class Faulty(Unpriced):
    """Plays `turns`, one for each time it is asked; a turn that is an exception is raised."""

    name = "faulty"

    def __init__(self, *turns: Line | Cue | Exception) -> None:
        self.asked = 0
        self._turns = turns

    def stream(
        self, prompt: Prompt
    ) -> AbstractAsyncContextManager[AsyncIterator[Piece | Finished]]:
        """Play the next turn, whatever it is."""
        return self._stream(prompt)

    @asynccontextmanager
    async def _stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        turn = self._turns[self.asked]
        self.asked += 1
        if isinstance(turn, Exception):
            yield _broken(turn)
            return
        line = turn(prompt.transcript) if callable(turn) else turn
        async with ScriptedModel(lambda _: line).stream(prompt) as pieces:
            yield pieces


async def _broken(error: Exception) -> AsyncIterator[Piece | Finished]:
    yield Piece(kind="text", text="Well, ")
    raise error


class Careless(Faulty):
    """Fails to say what it may cost, until it is mended."""

    broken = True

    def reserve(self, prompt: Prompt) -> Spend:
        """Raise."""
        if self.broken:
            raise LookupError("price list not found")
        return super().reserve(prompt)


@tool
async def fails_async(how: str) -> str:
    """Fail in the event loop."""
    await _fail_in_loop(how)
    return "never"


async def _fail_in_loop(how: str) -> None:
    if how == "cancelled":
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lost.cancel()  # as when a library's own task was cancelled
        await lost
    if how == "group":
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_fail_in_loop, "error")
    _fail(how)


def _fail(how: str) -> None:
    if how == "exit":
        sys.exit("bye")  # as the `main` of somebody's script does
    raise RuntimeError("out of paper")


@tool
def fails_blocking(how: str) -> str:
    """Fail in a process of its own."""
    _fail(how)
    return "never"


@tool(in_process=True)
def fails_thread(how: str) -> str:
    """Fail in a thread."""
    _fail(how)
    return "never"
