"""A model that stops in the middle of what it says until a test lets it go on."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from midrun.core.transcript import Turn
from midrun.core.values import Reply, Spend
from midrun.core.values import Use as Wanted
from midrun.models import Use
from midrun.ports.model import Finished, Piece, Prompt

RESERVED = Spend(tokens=100)
"""What this model wants set aside for each of its replies."""


class Line:
    """One reply: `said`, then a gate if there is one, then `then` and the calls it asks for.

    With `at="end"` the gate is behind everything: the reply is whole, but its stream is open.
    """

    def __init__(
        self, said: str = "", then: str = "", *uses: Use, gate: str = "", at: str = "middle"
    ) -> None:
        self.said = said
        self.then = then
        self.uses = uses
        self.gate = gate
        self.at = at

    @property
    def reply(self) -> Reply:
        """The whole of it."""
        uses = tuple(Wanted(tool=use.tool, args=use.args) for use in self.uses)
        return Reply(text=self.said + self.then, uses=uses)


class Speaker:
    """Plays `lines`, one for each call; which of them follows from how often it was called.

    `heard` is what it was given each time, `closed` the gates at which its stream was closed.
    """

    name = "speaker"
    priced = False

    def __init__(self, *lines: Line | str) -> None:
        self.heard: list[list[Turn]] = []
        self.closed: list[str] = []
        self._lines = [Line(line) if isinstance(line, str) else line for line in lines]
        self._gates: dict[str, anyio.Event] = {}
        self._reached: dict[str, anyio.Event] = {}

    def gate(self, name: str) -> anyio.Event:
        """Return what opens the gate of this name."""
        return self._gates.setdefault(name, anyio.Event())

    def reached(self, name: str) -> anyio.Event:
        """Return what is set once the model waits at the gate of this name."""
        return self._reached.setdefault(name, anyio.Event())

    def reserve(self, prompt: Prompt) -> Spend:
        """Set the same aside for every reply."""
        del prompt
        return RESERVED

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        """Say the next line."""
        line = self._lines[len(self.heard)]
        self.heard.append(list(prompt.transcript))
        pieces = self._pieces(line)
        try:
            yield pieces
        finally:
            await pieces.aclose()  # type: ignore[attr-defined]  # it is a generator

    async def _pieces(self, line: Line) -> AsyncIterator[Piece | Finished]:
        if line.said:
            yield Piece(kind="text", text=line.said)
        for number, use in enumerate(line.uses):
            yield Piece(kind="args", text="{", tool=use.tool, call=number)
        if line.at == "middle":
            await self._wait(line.gate)
        if line.then:
            yield Piece(kind="text", text=line.then)
        yield Finished(reply=line.reply, spent=Spend(tokens=7))
        if line.at == "end":
            await self._wait(line.gate)

    async def _wait(self, gate: str) -> None:
        if not gate:
            return
        self.reached(gate).set()
        try:
            await self.gate(gate).wait()
        except BaseException:
            self.closed.append(gate)
            raise
