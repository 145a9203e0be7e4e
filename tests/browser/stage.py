"""Tools and models for tests of the page: a test can reach every state and hold it there."""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import anyio
import msgspec

from midrun import Agent, Call, OutcomeUnknown, Tool, pause_here, tool
from midrun.core.values import NO_SPEND, Reply, Spend
from midrun.core.values import RequestedCall as ReplyUse
from midrun.models import Use
from midrun.ports.model import Finished, Piece, Prompt
from midrun.testing.controllable_tools import ControllableTools

__all__ = ["Hold", "Stage", "Use"]

PRICE: Final = 12_000  # millionths of a dollar, for each reply


class Hold(msgspec.Struct, frozen=True):
    """A point in a reply where the model waits until the test opens the gate."""

    name: str


Part: TypeAlias = str | Use | Hold
Turn: TypeAlias = Part | Sequence[Part]


class Stage(ControllableTools):
    """Tools and a model whose progress a test controls, and a record of their calls.

    `gate(name).set()` lets a tool, or the model at a `Hold`, continue; `start(name)` is set
    once it waits there.
    """

    def play(self, *turns: Turn, name: str = "actor", **options: object) -> Agent:
        """Return an agent whose model costs money, and waits at each `Hold` of a turn."""
        model = HeldModel(self, turns)
        return Agent(name, model=model, tools=self.tools(), **options)  # type: ignore[arg-type]  # checked there

    def tools(self) -> list[Tool]:
        """Add tools that ask, need approval, fail or do not stop."""
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

    async def wait_at_gate(self, name: str) -> None:
        """Wait at the gate `name`; `start(name)` is set."""
        self.start(name).set()
        await self.gate(name).wait()

    async def _stubborn(self, name: str) -> str:
        """Ignore cancellation until the gate is open."""
        with anyio.CancelScope(shield=True):
            await self.wait_at_gate(name)
        return f"{name} done"

    async def _take_back(self, _: Call, args: dict[str, str], __: object) -> None:
        await self.wait_at_gate(f"undo {args['name']}")
        self.undone.append(args["name"])


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
    """A model that streams scripted turns word by word, and waits at each `Hold`."""

    name = "held"
    priced = True

    def __init__(self, stage: Stage, turns: Sequence[Turn]) -> None:
        self._stage = stage
        self._turns = turns

    def reserve(self, prompt: Prompt) -> Spend:
        """Set nothing aside."""
        del prompt
        return NO_SPEND

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        """Stream the turn that follows the transcript."""
        turn = self._turns[prompt.transcript.assistant_turn_count]
        yield self._stream_turn([turn] if isinstance(turn, str | Use | Hold) else turn)

    async def _stream_turn(self, turn: Sequence[Part]) -> AsyncIterator[Piece | Finished]:
        text = ""
        uses: list[ReplyUse] = []
        for said in turn:
            match said:
                case str():
                    text += said
                    for word in re.findall(r"\S+\s*", said):
                        yield Piece(kind="text", text=word)
                case Hold(name=name):
                    await self._stage.wait_at_gate(name)
                case Use(tool=name, args=args):
                    body = msgspec.json.encode(args).decode()
                    yield Piece(kind="args", text=body, tool=name, call=len(uses))
                    uses.append(ReplyUse(tool=name, args=args))
        await anyio.lowlevel.checkpoint()
        spent = Spend(tokens=len(text.split()) + len(uses), cost=PRICE)
        yield Finished(reply=Reply(text=text, uses=tuple(uses)), spent=spent)
