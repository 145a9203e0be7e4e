"""A scripted model that stops at a gate inside a reply, and a turn that repeats results."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from midrun.core.transcript import Transcript, Turn
from midrun.core.values import Reply, RequestedCall, Spend
from midrun.models import Use
from midrun.ports.model import Finished, Piece, Prompt

RESERVATION = Spend(tokens=100)
"""The reservation of the model for each reply."""


class GatedReply:
    """One reply: the text `said`, the gate, the text `then`, and the calls `uses`.

    With `at="end"` the gate is at the end: the reply is complete, but its stream is open.
    """

    def __init__(
        self,
        text: str = "",
        text_after_gate: str = "",
        *uses: Use,
        gate: str = "",
        gate_at: str = "middle",
    ) -> None:
        self.text = text
        self.text_after_gate = text_after_gate
        self.uses = uses
        self.gate = gate
        self.gate_at = gate_at

    @property
    def reply(self) -> Reply:
        """The complete reply."""
        uses = tuple(RequestedCall(tool=use.tool, args=use.args) for use in self.uses)
        return Reply(text=self.text + self.text_after_gate, uses=uses)


class GatedModel:
    """Plays `lines`, one for each call.

    `heard` has the transcript of each call, `closed` the gates at which its stream was closed.
    """

    name = "speaker"
    priced = False

    def __init__(self, *lines: GatedReply | str) -> None:
        self.prompts: list[Prompt] = []
        self.transcripts: list[list[Turn]] = []
        self.closed_gates: list[str] = []
        self._lines = [GatedReply(line) if isinstance(line, str) else line for line in lines]
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
        line = self._lines[len(self.transcripts)]
        self.prompts.append(prompt)
        self.transcripts.append(list(prompt.transcript))
        pieces = self._pieces(line)
        try:
            yield pieces
        finally:
            await pieces.aclose()  # type: ignore[attr-defined]  # an async generator

    async def _pieces(self, line: GatedReply) -> AsyncIterator[Piece | Finished]:
        if line.text:
            yield Piece(kind="text", text=line.text)
        for number, use in enumerate(line.uses):
            yield Piece(kind="args", text="{", tool=use.tool, call=number)
        if line.gate_at == "middle":
            await self._wait(line.gate)
        if line.text_after_gate:
            yield Piece(kind="text", text=line.text_after_gate)
        yield Finished(reply=line.reply, spent=Spend(tokens=7))
        if line.gate_at == "end":
            await self._wait(line.gate)

    async def _wait(self, gate: str) -> None:
        if not gate:
            return
        self.reached(gate).set()
        try:
            await self.gate(gate).wait()
        except BaseException:
            self.closed_gates.append(gate)
            raise


def repeat_results(messages: Transcript) -> str:
    """Return the results of the last calls, as the turn of the model."""
    last = next(turn for turn in reversed(messages) if turn.uses)
    return "; ".join(f"{made.tool}: {made.problem or made.result}" for made in last.uses)
