"""The scripted model: streams prepared lines word by word, with short pauses."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Final, TypeAlias

import anyio
import msgspec
from anyio.lowlevel import checkpoint

from midrun.codec.strict_json import normalize_json
from midrun.core.transcript import Transcript
from midrun.core.values import Reply, Spend
from midrun.core.values import RequestedCall as Wanted
from midrun.demo.script import ScriptLine
from midrun.errors import ModelFailed
from midrun.ports.model import Finished, Piece, Prompt, Unpriced

SCRIPTED_MODEL_NAME: Final = "scripted"
WORD_PATTERN: Final = re.compile(r"\S+\s*|\s+")

FIRST_WORD_DELAY_S: Final = 0.6  # before the first word: a model has to read the transcript
WORD_DELAY_S: Final = 0.07
THINKING_WORD_DELAY_S: Final = 0.04
SENTENCE_DELAY_S: Final = 0.25  # at the end of a sentence
DELAY_VARIATION: Final = 0.6  # random variation of a pause, as a share of it

FindLine: TypeAlias = Callable[[Transcript], ScriptLine]
"""Returns the next line for a transcript. The same transcript must give the same line."""


@dataclass(frozen=True)
class Pace:
    """The speed of the stream: 1 is natural, 2 is twice as fast, infinity never waits."""

    speed: float = 1.0

    def compute_delays(self, pieces: list[Piece]) -> list[float]:
        """Return the seconds before each piece: irregular, but the same for the same words."""
        chance = Random("".join(piece.text for piece in pieces[:40]))  # noqa: S311 - for looks
        waits, wait = [], FIRST_WORD_DELAY_S
        for piece in pieces:
            varied = wait * (1 + DELAY_VARIATION * (2 * chance.random() - 1))
            waits.append(varied / self.speed)
            wait = THINKING_WORD_DELAY_S if piece.kind == "thinking" else WORD_DELAY_S
            wait += (
                SENTENCE_DELAY_S if piece.text.rstrip().endswith((".", "!", "?", ":")) else 0
            )
        return waits

    async def wait_before(self, piece: Piece | Finished, wait: float) -> None:
        """Wait before a piece; tests override this."""
        del piece
        await anyio.sleep(wait)


class DemoModel(Unpriced):
    """A model that streams the line that `find` returns for the transcript.

    Each word and each list of arguments counts as one token. If the runtime asks for a summary,
    the model gives one without advancing the script.
    """

    name = SCRIPTED_MODEL_NAME

    def __init__(self, find: FindLine, pace: Pace) -> None:
        self._find = find
        self._pace = pace

    def stream(
        self, prompt: Prompt
    ) -> AbstractAsyncContextManager[AsyncIterator[Piece | Finished]]:
        """Stream the next line."""
        return _LineStream(self._pace, lambda: self._next_line(prompt))

    def _next_line(self, prompt: Prompt) -> ScriptLine:
        if prompt.runtime_request:
            return ScriptLine(f"In short: {len(prompt.transcript)} messages so far.")
        try:
            return self._find(prompt.transcript)
        except Exception as error:
            detail = f"{type(error).__name__}: {error}"
            raise ModelFailed(SCRIPTED_MODEL_NAME, "script_failed", detail) from error


class _LineStream(
    AbstractAsyncContextManager[AsyncIterator[Piece | Finished]],
    AsyncIterator[Piece | Finished],
):
    """The stream of one line; not a generator, because a generator would have to be closed."""

    def __init__(self, pace: Pace, find: Callable[[], ScriptLine]) -> None:
        self._pace = pace
        self._find = find
        self._parts: list[tuple[float, Piece | Finished]] = []
        self._place = 0

    async def __aenter__(self) -> AsyncIterator[Piece | Finished]:
        line = self._find()
        pieces = _split_into_pieces(line)
        said = _build_finished(line, len(pieces))
        self._parts = [
            *zip(self._pace.compute_delays(pieces), pieces, strict=True),
            (0.0, said),
        ]
        await checkpoint()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        self._parts = []

    async def __anext__(self) -> Piece | Finished:
        if self._place >= len(self._parts):
            raise StopAsyncIteration
        wait, piece = self._parts[self._place]
        self._place += 1
        await self._pace.wait_before(piece, wait)
        return piece


def _split_into_pieces(line: ScriptLine) -> list[Piece]:
    """Split a line into the pieces of its stream."""
    return [
        *(Piece(kind="thinking", text=word) for word in WORD_PATTERN.findall(line.thinking)),
        *(Piece(kind="text", text=word) for word in WORD_PATTERN.findall(line.text)),
        *(
            Piece(kind="args", text=_encode_args(use.args), tool=use.tool, call=number)
            for number, use in enumerate(line.uses)
        ),
    ]


def _build_finished(line: ScriptLine, tokens: int) -> Finished:
    uses = tuple(Wanted(tool=use.tool, args=normalize_json(use.args)) for use in line.uses)
    reply = Reply(text=line.text, thinking=line.thinking, uses=uses)
    return Finished(reply=reply, spent=Spend(tokens=tokens))


def _encode_args(args: object) -> str:
    return msgspec.json.encode(args).decode()
