"""A stage for tests of the page: every state can be reached, and held until a test goes on."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import anyio
import msgspec

from midrun import Agent, Call, OutcomeUnknown, Tool, pause_here, tool
from midrun.core.values import NOTHING, Reply, Spend
from midrun.core.values import Use as Wanted
from midrun.models import Use
from midrun.ports.model import Finished, Piece, Prompt
from tests.unit.runs.stage import Stage as Acting

__all__ = ["Hold", "Stage", "Use"]

PRICE: Final = 12_000  # millionths of a dollar, for each reply


class Hold(msgspec.Struct, frozen=True):
    """A place in a reply where the model stops to think, until the test opens the gate."""

    name: str


Said: TypeAlias = str | Use | Hold
Turn: TypeAlias = Said | Sequence[Said]


class Stage(Acting):
    """Tools and a model whose progress a test controls, and the record of what they did.

    `gate(name)` lets go what waits under a name, a tool or the model in the middle of a
    sentence; `start(name)` tells that it has come there.
    """

    def play(self, *turns: Turn, name: str = "actor", **options: object) -> Agent:
        """Return an agent whose model costs money, and holds where a turn says `Hold`."""
        model = HeldModel(self, turns)
        return Agent(name, model=model, tools=self.tools(), **options)  # type: ignore[arg-type]  # checked there

    def tools(self) -> list[Tool]:
        """Return the tools of every stage, those that ask or need approval, and worse ones."""
        return [
            *super().tools(),
            tool(self._quick, name="mail", approve=True),
            tool(_ask, name="ask"),
            tool(_fail, name="fail"),
            tool(self._slow, name="stuck_draft", undo=_cannot),
            tool(self._quick, name="dear_draft", undo=self._take_back),
            tool(self._stubborn, name="stubborn"),
            tool(_doubt, name="doubt"),
        ]

    async def held(self, name: str) -> None:
        """Wait at the gate `name`, having said that somebody does."""
        self.start(name).set()
        await self.gate(name).wait()

    async def _stubborn(self, name: str) -> str:
        """Do not stop before the gate is open, whoever asks."""
        with anyio.CancelScope(shield=True):
            await self.held(name)
        return f"{name} done"

    async def _take_back(self, _: Call, args: dict[str, str], __: object) -> None:
        await self.held(f"undo {args['name']}")
        self.undone.append(args["name"])

    def let_go(self) -> None:
        """Open every gate."""
        for gate in self._gates.values():
            gate.set()


async def _ask(question: str) -> str:
    """Ask a person."""
    pause_here(question)


async def _fail(text: str) -> str:
    """Fail."""
    raise RuntimeError(text)


async def _doubt(name: str) -> str:
    """Do something, or not."""
    raise OutcomeUnknown(f"the answer about {name} got lost")


async def _cannot(call: Call, args: object, result: object) -> None:
    raise RuntimeError(f"the far end refused to undo {call.key}: {args} {result}")


class HeldModel:
    """A model that plays turns word by word, and stops at each `Hold` until it is let go."""

    name = "held"
    priced = True

    def __init__(self, stage: Stage, turns: Sequence[Turn]) -> None:
        self._stage = stage
        self._turns = turns

    def reserve(self, prompt: Prompt) -> Spend:
        """Set nothing aside."""
        del prompt
        return NOTHING

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        """Play the turn that follows what has been said so far."""
        turn = self._turns[prompt.transcript.spoken]
        yield self._spoken([turn] if isinstance(turn, str | Use | Hold) else turn)

    async def _spoken(self, turn: Sequence[Said]) -> AsyncIterator[Piece | Finished]:
        text = ""
        uses: list[Wanted] = []
        for said in turn:
            match said:
                case str():
                    text += said
                    for word in said.split(" "):
                        yield Piece(kind="text", text=word + " ")
                case Hold(name=name):
                    await self._stage.held(name)
                case Use(tool=name, args=args):
                    body = msgspec.json.encode(args).decode()
                    yield Piece(kind="args", text=body, tool=name, call=len(uses))
                    uses.append(Wanted(tool=name, args=args))
        await anyio.lowlevel.checkpoint()
        spent = Spend(tokens=len(text.split()) + len(uses), cost=PRICE)
        yield Finished(reply=Reply(text=text, uses=tuple(uses)), spent=spent)
