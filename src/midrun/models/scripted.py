"""A model that says what it was told to say: for tests, demos and benchmarks; it needs no key.

Which turn it plays follows from the transcript alone, so a script goes on where it was after a
pause, a crash, or on another machine. A turn that was interrupted counts as played.
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
BREATH: Final = 64  # pieces between two turns of the event loop: cheap, and still interruptible


class Use:
    """A call that the script asks for: `Use("send", to="ada")`."""

    __slots__ = ("args", "tool")

    def __init__(self, /, tool: str, **args: Json) -> None:
        self.tool = tool
        self.args = args

    def __repr__(self) -> str:
        args = "".join(f", {name}={value!r}" for name, value in self.args.items())
        return f"Use({self.tool!r}{args})"


Line: TypeAlias = str | Use | Sequence[str | Use]
"""What is said in one turn: text, a call, or several of them. Texts follow without a gap."""

Cue: TypeAlias = Callable[[Transcript], Line]
"""Finds the line from the messages so far. The same messages must give the same line."""


class ScriptedModel(Unpriced):
    """A model that plays `turns`: a list, one for each reply, or a function for all of them.

    Text is streamed word by word, `chunk_delay` seconds apart; the pieces joined are the text.
    A token is a word, and an argument list is one. After the last turn of a list it fails.
    Asked for a summary by the runtime, it gives one without playing a turn.

    Raises:
        Misconfigured: a turn is none; the text says which.
    """

    name = NAME

    def __init__(self, turns: Sequence[Line | Cue] | Cue, *, chunk_delay: float = 0.0) -> None:
        if chunk_delay < 0:
            raise Misconfigured("ScriptedModel", "chunk_delay must not be negative")
        if not callable(turns) and (isinstance(turns, str) or not isinstance(turns, Sequence)):
            raise Misconfigured("ScriptedModel", "turns must be a list of turns, or a function")
        self._delay = chunk_delay
        self._turns = turns if callable(turns) else _prepared(turns)

    def stream(
        self, prompt: Prompt
    ) -> AbstractAsyncContextManager[AsyncIterator[Piece | Finished]]:
        """Play the turn that follows what has been said so far."""
        return _Playing(partial(self._performed, prompt.transcript, prompt.asked), self._delay)

    def _performed(self, messages: Transcript, asked: str) -> "_Part":
        if asked:
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
    """One turn being played. By hand, not as a generator: there is nothing to close."""

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
            if 0 < place < len(self._part) - 1:
                await anyio.sleep(self._delay)
        elif place and not place % BREATH:
            await checkpoint()
        self._place = place + 1
        return self._part[place]


def _prepared(turns: Sequence[Line | Cue]) -> tuple[_Part | Cue, ...]:
    """Return the turns as they will be streamed: a list is cut into pieces only once."""
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
    """Return a line as the pieces it is streamed in, and what they come to."""
    pieces: list[Piece] = []
    uses: list[Wanted] = []
    for said in [line] if isinstance(line, str | Use) else _listed(line):
        match said:
            case str():
                pieces += [Piece(kind="text", text=word) for word in WORDS.findall(said)]
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
