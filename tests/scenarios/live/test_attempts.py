"""What a model says in a second attempt is live, too."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import anyio

from midrun import Agent, Midrun
from midrun.core.values import Reply
from midrun.driver.live import Delta
from midrun.errors import ModelFailed
from midrun.ports.model import Finished, Piece, Prompt, Unpriced


class Stumbling(Unpriced):
    """A model whose first attempt breaks off; the second does not end before it is heard."""

    name = "stumbling"

    def __init__(self) -> None:
        self.calls = 0
        self.heard = anyio.Event()

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        """Break off, or speak."""
        del prompt
        yield self._pieces()

    async def _pieces(self) -> AsyncIterator[Piece | Finished]:
        self.calls += 1
        if self.calls == 1:
            raise ModelFailed("stumbling", "overloaded", "come back", True)  # noqa: FBT003 - transient
        yield Piece(kind="text", text="Said at last.")
        await self.heard.wait()
        yield Finished(reply=Reply(text="Said at last."))


async def test_the_words_of_a_second_attempt_are_shown(tmp_path: Path) -> None:
    """The first one has ended, but the call has not."""
    model = Stumbling()
    agent = Agent("actor", model=model)
    with anyio.fail_after(60):
        async with Midrun(f"sqlite:///{tmp_path / 'runs.db'}", agents=[agent]) as midrun:
            run = await midrun.start(agent, "Go.")
            async with aclosing(run.feed()) as feed:
                async for item in feed:
                    if isinstance(item, Delta):
                        assert item.text == "Said at last."
                        model.heard.set()
            assert model.calls == 2
