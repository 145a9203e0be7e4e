"""A stage with more on it: tools that ask, that need a yes, and that are slow to stop."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NoReturn

import anyio

from midrun import Call, Run, Tool, pause_here, tool
from midrun.core.transcript import Transcript, Turn
from midrun.driver.live import Delta
from midrun.models import ScriptedModel
from midrun.models.scripted import Line
from midrun.ports.model import Finished, Piece, Prompt
from tests.unit.runs.stage import ControllableTools, Use

__all__ = ["Cast", "Tapped", "Use", "entry", "first_words", "journal"]

HOURS = 3600.0
"""Between two words of a model that will not come to its end in this test."""


class Cast(ControllableTools):
    """The tools of the stage, and five more; `heard` is what the model was given, by call."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[list[Turn]] = []

    def says(self, line: Line) -> Callable[[Transcript], Line]:
        """Return a turn that notes what the model is given, and says `line`."""

        def turn(messages: Transcript) -> Line:
            self.heard.append(list(messages))
            return line

        return turn

    def tools(self) -> list[Tool]:
        """Return the tools of this stage."""

        @tool
        async def ask(call: Call, name: str) -> NoReturn:
            """Do something, then ask about it."""
            self.called.append(name)
            self.keys.append(call.key)
            pause_here(f"What about {name}?", name=name)

        @tool
        async def ask_badly(name: str) -> NoReturn:
            """Ask with something that is no data."""
            self.called.append(name)
            pause_here("How?", how=lambda: name)

        @tool(approve=True)
        async def pay(amount: int, to: str) -> str:
            """Pay, once a person has said yes."""
            self.called.append(to)
            self.start(to).set()
            await self.gate(to).wait()
            self.completed.append(f"{amount} to {to}")
            return f"paid {amount}"

        @tool
        async def tidy(name: str) -> str:
            """Wait; told to stop, tidy up for as long as the test says."""
            self.start(name).set()
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    self.start(f"{name} stopping").set()
                    await self.gate(name).wait()
                    self.stopped.append(name)
            return "never"

        @tool
        async def crawl(call: Call, pages: int) -> str:
            """Read page after page, and save how far it is."""
            first = call.progress if isinstance(call.progress, int) else 0
            for page in range(first, pages):
                self.called.append(f"page {page}")
                await call.save(page + 1)
                self.start(f"page {page}").set()
                await self.gate(f"page {page}").wait()
            return f"{pages} pages"

        return [*super().tools(), ask, ask_badly, pay, tidy, crawl]


class Tapped(ScriptedModel):
    """A model that says one word and then takes hours; `streams` tells open and closed."""

    def __init__(self, turns: list[Line]) -> None:
        super().__init__(turns, chunk_delay=HOURS)
        self.streams: list[str] = []

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        """Stream the next turn."""
        self.streams.append("open")
        try:
            async with super().stream(prompt) as pieces:
                yield pieces
        finally:
            self.streams[-1] = "closed"


async def first_words(run: Run) -> str:
    """Wait until the model says something, and return it."""
    async for item in run.feed():
        if isinstance(item, Delta) and item.kind == "text":
            return item.text
    raise AssertionError("it said nothing")


async def journal(run: Run) -> list[str]:
    """Return the kinds of a run's entries, in order."""
    return [type(r.entry).__name__ for r in await run._service.store.read(run.id)]


async def entry(run: Run, kind: str, times: int = 1) -> None:
    """Wait for so many entries of that kind, whatever phase the run is in."""
    with run._service.change_notifier.subscribe(run.id) as bell:
        while (await journal(run)).count(kind) < times:
            await bell.wait()
