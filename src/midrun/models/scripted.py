"""`ScriptedModel`: a model that plays a fixed script. For tests, demos and benchmarks.

It needs no API key. The turn to play is computed from the transcript alone (the number of
assistant turns in it), so a script continues at the right place after a pause, after a crash or
on another machine. An interrupted turn counts as played.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final, TypeAlias

import anyio
import msgspec
from anyio.lowlevel import checkpoint

from midrun.codec.strict_json import normalize_json
from midrun.core.transcript import Transcript
from midrun.core.values import Json, Reply, RequestedCall, Spend
from midrun.errors import Misconfigured, ModelFailed, NotJson, TooLarge
from midrun.ports.model import Finished, Piece, Prompt, Unpriced

MODEL_NAME: Final = "scripted"
WORD_PATTERN: Final = re.compile(r"\S+\s*|\s+")
PIECES_PER_CHECKPOINT: Final = 64
"""Without a delay, yield to the event loop after this many pieces. Often enough for a pause to
get in, seldom enough not to dominate a benchmark."""


class Use:
    """A tool call in a script: `Use("send", to="ada")`."""

    __slots__ = ("args", "tool")

    def __init__(self, /, tool: str, **args: Json) -> None:
        self.tool = tool
        self.args = args

    def __repr__(self) -> str:
        args = "".join(f", {name}={value!r}" for name, value in self.args.items())
        return f"Use({self.tool!r}{args})"


class Thinking(str):
    """The thinking before a reply in a script: `[Thinking("Hm."), "Yes."]`."""

    __slots__ = ()


Line: TypeAlias = str | Use | Sequence[str | Use]
"""One reply: a text, a call, or a list of these. Texts are joined without a separator."""

Cue: TypeAlias = Callable[[Transcript], Line]
"""Computes a reply from the messages so far. Equal messages must give equal replies."""


class ScriptedModel(Unpriced):
    """A model that plays a fixed script, without a provider.

        model = ScriptedModel([Use("search", query="flights"), "The flight costs 90 EUR."])

    Text is streamed word by word. Each word, and each list of arguments, counts as one token.
    After the last turn of a list the model fails with `script_ended`. When the runtime asks for
    a summary of the conversation, the model returns one without playing a turn.

    Args:
        turns: A list with one item per reply, or a function that computes every reply from the
            messages so far. An item may be such a function, too.
        chunk_delay: Seconds between two words.

    Raises:
        Misconfigured: A turn is not valid; the text says which.
    """

    name = MODEL_NAME

    def __init__(self, turns: Sequence[Line | Cue] | Cue, *, chunk_delay: float = 0.0) -> None:
        if chunk_delay < 0:
            problem = f"chunk_delay must be >= 0, got {chunk_delay}"
            raise Misconfigured("ScriptedModel", problem)
        if not callable(turns) and (isinstance(turns, str) or not isinstance(turns, Sequence)):
            problem = f"turns must be a list or a function, got {type(turns).__name__}"
            raise Misconfigured("ScriptedModel", problem)
        self._delay = chunk_delay
        self._turns = turns if callable(turns) else _prepare_turns(turns)

    def stream(
        self, prompt: Prompt
    ) -> AbstractAsyncContextManager[AsyncIterator[Piece | Finished]]:
        """Stream the turn that follows the transcript of `prompt`."""
        return _TurnStream(
            partial(self._find_turn, prompt.transcript, prompt.runtime_request), self._delay
        )

    def _find_turn(self, messages: Transcript, summary_request: str) -> "_PlayedTurn":
        if summary_request:  # the runtime wants a summary; it is not a turn of the script
            return _make_turn(f"In short: {len(messages)} messages so far.")
        place = messages.assistant_turn_count
        if callable(self._turns):
            return _call_cue(self._turns, messages, place)
        if place >= len(self._turns):
            detail = f"all turns of the script have been played; there are {len(self._turns)}"
            raise ModelFailed(MODEL_NAME, "script_ended", detail)
        turn = self._turns[place]
        return _call_cue(turn, messages, place) if callable(turn) else turn


_PlayedTurn: TypeAlias = tuple[Piece | Finished, ...]


class _TurnStream(
    AbstractAsyncContextManager[AsyncIterator[Piece | Finished]],
    AsyncIterator[Piece | Finished],
):
    """The stream of one turn.

    A class and not an async generator, so that there is nothing to close when the reply is
    interrupted.
    """

    def __init__(self, find_turn: Callable[[], _PlayedTurn], delay: float) -> None:
        self._find_turn = find_turn
        self._turn: _PlayedTurn = ()
        self._delay = delay
        self._position = 0

    async def __aenter__(self) -> AsyncIterator[Piece | Finished]:
        self._turn = self._find_turn()
        await asyncio.sleep(0)  # a real model lets the event loop run, too
        return self

    async def __aexit__(self, *_: object) -> None:
        self._position = len(self._turn)

    async def __anext__(self) -> Piece | Finished:
        place = self._position
        if place >= len(self._turn):
            raise StopAsyncIteration
        if self._delay:
            # Between two pieces: not before the first, nor before the final `Finished`.
            if 0 < place < len(self._turn) - 1:
                await anyio.sleep(self._delay)
        elif place and not place % PIECES_PER_CHECKPOINT:
            await checkpoint()
        self._position = place + 1
        return self._turn[place]


def _prepare_turns(turns: Sequence[Line | Cue]) -> tuple[_PlayedTurn | Cue, ...]:
    """Split the turns of a list into pieces, once for all runs of the model."""
    prepared: list[_PlayedTurn | Cue] = []
    for index, turn in enumerate(turns):
        try:
            prepared.append(turn if callable(turn) else _make_turn(turn))
        except (TypeError, NotJson, TooLarge) as error:
            raise Misconfigured(f"ScriptedModel turns[{index}]", str(error)) from error
    return tuple(prepared)


def _call_cue(cue: Cue, messages: Transcript, number: int) -> _PlayedTurn:
    try:
        return _make_turn(cue(messages))
    except Exception as error:
        detail = f"turn {number}: {type(error).__name__}: {error}"
        raise ModelFailed(MODEL_NAME, "script_failed", detail) from error


def _make_turn(line: Line) -> _PlayedTurn:
    """Split a line into pieces, followed by the complete reply."""
    pieces: list[Piece] = []
    uses: list[RequestedCall] = []
    texts: list[str] = []
    thoughts: list[str] = []
    if not isinstance(line, str | Use | list | tuple):
        raise TypeError(f"a turn is text, a Use(...) or a list of them, not {line!r}")
    for item in [line] if isinstance(line, str | Use) else line:
        match item:
            case Thinking():
                words = WORD_PATTERN.findall(item)
                thoughts += words
                pieces += [Piece(kind="thinking", text=word) for word in words]
            case str():
                words = WORD_PATTERN.findall(item)
                texts += words
                pieces += [Piece(kind="text", text=word) for word in words]
            case Use(tool=tool, args=args):
                plain = normalize_json(args)
                text = msgspec.json.encode(plain).decode()
                pieces.append(Piece(kind="args", text=text, tool=tool, call=len(uses)))
                uses.append(RequestedCall(tool=tool, args=plain))
            case other:
                raise TypeError(f"a turn is made of text and Use(...), not {other!r}")
    reply = Reply(text="".join(texts), thinking="".join(thoughts), uses=tuple(uses))
    return (*pieces, Finished(reply=reply, spent=Spend(tokens=len(pieces))))
