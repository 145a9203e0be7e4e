"""`ScriptedModel`: a model that plays a fixed script. For tests, demos and benchmarks.

It needs no API key. The turn to play is computed from the transcript alone (the number of
assistant turns in it), so a script continues at the right place after a pause, after a crash or
on another machine. An interrupted turn counts as played.
"""

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Final, TypeAlias

import anyio
import msgspec
from anyio.lowlevel import checkpoint

from midrun.codec.strict_json import checked
from midrun.core.transcript import Transcript
from midrun.core.values import Json, Reply, Spend
from midrun.core.values import Use as Wanted
from midrun.errors import Misconfigured, ModelFailed, NotJson, TooLarge
from midrun.ports.model import Finished, Piece, Prompt, Unpriced

NAME: Final = "scripted"
WORDS: Final = re.compile(r"\S+\s*|\s+")
BREATH: Final = 64
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

    name = NAME

    def __init__(self, turns: Sequence[Line | Cue] | Cue, *, chunk_delay: float = 0.0) -> None:
        if chunk_delay < 0:
            problem = f"chunk_delay must be >= 0, got {chunk_delay}"
            raise Misconfigured("ScriptedModel", problem)
        if not callable(turns) and (isinstance(turns, str) or not isinstance(turns, Sequence)):
            problem = f"turns must be a list or a function, got {type(turns).__name__}"
            raise Misconfigured("ScriptedModel", problem)
        self._delay = chunk_delay
        self._turns = turns if callable(turns) else _prepared(turns)

    def stream(
        self, prompt: Prompt
    ) -> AbstractAsyncContextManager[AsyncIterator[Piece | Finished]]:
        """Stream the turn that follows the transcript of `prompt`."""
        return _Playing(partial(self._performed, prompt.transcript, prompt.asked), self._delay)

    def _performed(self, messages: Transcript, asked: str) -> "_Part":
        if asked:  # the runtime wants a summary; it is not a turn of the script
            return _part(f"In short: {len(messages)} messages so far.")
        place = messages.spoken
        if callable(self._turns):
            return _improvised(self._turns, messages, place)
        if place >= len(self._turns):
            detail = f"all turns of the script have been played; there are {len(self._turns)}"
            raise ModelFailed(NAME, "script_ended", detail)
        turn = self._turns[place]
        return _improvised(turn, messages, place) if callable(turn) else turn


_Part: TypeAlias = tuple[Piece | Finished, ...]


class _Playing(
    AbstractAsyncContextManager[AsyncIterator[Piece | Finished]],
    AsyncIterator[Piece | Finished],
):
    """The stream of one turn.

    A class and not an async generator, so that there is nothing to close when the reply is
    interrupted.
    """

    def __init__(self, find: Callable[[], _Part], delay: float) -> None:
        self._find = find
        self._part: _Part = ()
        self._delay = delay
        self._place = 0

    async def __aenter__(self) -> AsyncIterator[Piece | Finished]:
        self._part = self._find()
        await checkpoint()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        self._place = len(self._part)

    async def __anext__(self) -> Piece | Finished:
        place = self._place
        if place >= len(self._part):
            raise StopAsyncIteration
        if self._delay:
            # Between two pieces: not before the first, nor before the final `Finished`.
            if 0 < place < len(self._part) - 1:
                await anyio.sleep(self._delay)
        elif place and not place % BREATH:
            await checkpoint()
        self._place = place + 1
        return self._part[place]


def _prepared(turns: Sequence[Line | Cue]) -> tuple[_Part | Cue, ...]:
    """Split the turns of a list into pieces, once for all runs of the model."""
    prepared: list[_Part | Cue] = []
    for index, turn in enumerate(turns):
        try:
            prepared.append(turn if callable(turn) else _part(turn))
        except (TypeError, NotJson, TooLarge) as error:
            raise Misconfigured(f"ScriptedModel turns[{index}]", str(error)) from error
    return tuple(prepared)


def _improvised(cue: Cue, messages: Transcript, place: int) -> _Part:
    try:
        return _part(cue(messages))
    except Exception as error:
        detail = f"turn {place}: {type(error).__name__}: {error}"
        raise ModelFailed(NAME, "script_failed", detail) from error


def _part(line: Line) -> _Part:
    """Split a line into pieces, followed by the complete reply."""
    pieces: list[Piece] = []
    uses: list[Wanted] = []
    for item in [line] if isinstance(line, str | Use) else _listed(line):
        match item:
            case str():
                pieces += [Piece(kind="text", text=word) for word in WORDS.findall(item)]
            case Use(tool=tool, args=args):
                plain = checked(args)
                text = msgspec.json.encode(plain).decode()
                pieces.append(Piece(kind="args", text=text, tool=tool, call=len(uses)))
                uses.append(Wanted(tool=tool, args=plain))
            case other:
                raise TypeError(f"a turn is made of text and Use(...), not {other!r}")
    text = "".join(piece.text for piece in pieces if piece.kind == "text")
    reply = Reply(text=text, uses=tuple(uses))
    return (*pieces, Finished(reply=reply, spent=Spend(tokens=len(pieces))))


def _listed(line: Sequence[str | Use]) -> Sequence[str | Use]:
    if not isinstance(line, list | tuple):
        raise TypeError(f"a turn is text, a Use(...) or a list of them, not {line!r}")
    return line
