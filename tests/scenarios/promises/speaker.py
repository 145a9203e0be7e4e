"""A scripted model that stops at a gate inside a reply until the test opens the gate."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from midrun.core.transcript import Turn
from midrun.core.values import Reply, Spend
from midrun.core.values import Use as Wanted
from midrun.models import Use
from midrun.ports.model import Finished, Piece, Prompt

RESERVATION = Spend(tokens=100)
"""The reservation of the model for each reply."""


class Line:
    """One reply: the text `said`, the gate, the text `then`, and the calls `uses`.

    With `at="end"` the gate is at the end: the reply is complete, but its stream is open.
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
        """The complete reply."""
        uses = tuple(Wanted(tool=use.tool, args=use.args) for use in self.uses)
        return Reply(text=self.said + self.then, uses=uses)


class Speaker:
    """Plays `lines`, one for each call.

    `heard` has the transcript of each call, `closed` the gates at which its stream was closed.
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
        """Return the event that opens a gate."""
        return self._gates.setdefault(name, anyio.Event())

    def reached(self, name: str) -> anyio.Event:
        """Return the event that is set when the model waits at a gate."""
        return self._reached.setdefault(name, anyio.Event())

    def reserve(self, prompt: Prompt) -> Spend:
        """Reserve the same for every reply."""
        del prompt
        return RESERVATION

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        """Play the next line."""
        line = self._lines[len(self.heard)]
        self.heard.append(list(prompt.transcript))
        pieces = self._pieces(line)
        try:
            yield pieces
        finally:
            await pieces.aclose()  # type: ignore[attr-defined]  # an async generator

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
