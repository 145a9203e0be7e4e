"""The model of the demo: streams the lines of a script word by word, with short pauses."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Final

import anyio

from midrun.demo.script import AgentScripts, find_next_line
from midrun.models.scripted import ScriptedModel
from midrun.ports.model import Finished, Piece, Prompt

FIRST_WORD_DELAY_S: Final = 0.6  # before the first word: a model has to read the transcript
WORD_DELAY_S: Final = 0.07
THINKING_WORD_DELAY_S: Final = 0.04
SENTENCE_DELAY_S: Final = 0.25  # at the end of a sentence
DELAY_VARIATION: Final = 0.6  # random variation of a pause, as a share of it


@dataclass(frozen=True)
class Pace:
    """The speed of the stream: 1 is natural, 2 is twice as fast, infinity never waits."""

    speed: float = 1.0

    def compute_delays(self, parts: Sequence[Piece | Finished]) -> list[float]:
        """Return the seconds before each part: irregular, but the same for the same words."""
        pieces = [part for part in parts if isinstance(part, Piece)]
        chance = Random("".join(piece.text for piece in pieces[:40]))  # noqa: S311 - for looks
        waits, wait = [], FIRST_WORD_DELAY_S
        for piece in pieces:
            varied = wait * (1 + DELAY_VARIATION * (2 * chance.random() - 1))
            waits.append(varied / self.speed)
            wait = THINKING_WORD_DELAY_S if piece.kind == "thinking" else WORD_DELAY_S
            if piece.text.rstrip().endswith((".", "!", "?", ":")):
                wait += SENTENCE_DELAY_S
        return waits + [0.0] * (len(parts) - len(pieces))

    async def wait_before(self, piece: Piece | Finished, wait: float) -> None:
        """Wait before a piece; tests override this."""
        del piece
        await anyio.sleep(wait)


class DemoModel(ScriptedModel):
    """A scripted model that plays the scripts of an agent, at a pace."""

    def __init__(self, make_scripts: Callable[[], AgentScripts], pace: Pace) -> None:
        super().__init__(lambda turns: find_next_line(make_scripts(), turns).to_turn())
        self._pace = pace

    @asynccontextmanager
    async def stream(
        self, prompt: Prompt
    ) -> AsyncGenerator[AsyncIterator[Piece | Finished], None]:
        """Stream the next line."""
        async with super().stream(prompt) as turn:
            parts = [part async for part in turn]
        async with aclosing(self._play(parts)) as played:
            yield played

    async def _play(
        self, parts: Sequence[Piece | Finished]
    ) -> AsyncGenerator[Piece | Finished, None]:
        for part, wait in zip(parts, self._pace.compute_delays(parts), strict=True):
            await self._pace.wait_before(part, wait)
            yield part
