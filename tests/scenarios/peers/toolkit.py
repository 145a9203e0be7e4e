"""Tools that ask, need an approval or stop slowly; a slow model; and reads of the journal."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NoReturn

import anyio

from midrun import Call, Run, Tool, pause_here, tool
from midrun.core.transcript import Transcript, Turn
from midrun.driver.delta import Delta
from midrun.models import ScriptedModel
from midrun.models.scripted import Line
from midrun.ports.model import Finished, Piece, Prompt
from midrun.testing.controllable_tools import ControllableTools

CHUNK_DELAY_SECONDS = 3600.0
"""Between two chunks of `SlowModel`: its reply does not end during a test."""


class PeerToolkit(ControllableTools):
    """The controllable tools, and five more.

    `prompts` has the transcript that the model got, for each turn of `record_then_say`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.prompts: list[list[Turn]] = []

    def record_then_say(self, line: Line) -> Callable[[Transcript], Line]:
        """Return a turn that records the transcript of its call, and says `line`."""

        def turn(messages: Transcript) -> Line:
            self.prompts.append(list(messages))
            return line

        return turn

    def tools(self) -> list[Tool]:
        """Return the tools."""

        @tool
        async def ask(call: Call, name: str) -> NoReturn:
            """Do something, then ask about it."""
            self.called.append(name)
            self.keys.append(call.key)
            pause_here(f"What about {name}?", name=name)

        @tool
        async def ask_badly(name: str) -> NoReturn:
            """Ask with data that is not JSON."""
            self.called.append(name)
            pause_here("How?", how=lambda: name)

        @tool(approve=True)
        async def pay(amount: int, to: str) -> str:
            """Pay, after an approval."""
            self.called.append(to)
            self.start(to).set()
            await self.gate(to).wait()
            self.completed.append(f"{amount} to {to}")
            return f"paid {amount}"

        @tool
        async def tidy(name: str) -> str:
            """Wait; when stopped, clean up until the test opens the gate."""
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
            """Read page after page, and save the progress."""
            first = call.progress if isinstance(call.progress, int) else 0
            for page in range(first, pages):
                self.called.append(f"page {page}")
                await call.save(page + 1)
                self.start(f"page {page}").set()
                await self.gate(f"page {page}").wait()
            return f"{pages} pages"

        return [*super().tools(), ask, ask_badly, pay, tidy, crawl]


class SlowModel(ScriptedModel):
    """A model that says one word and then waits for hours.

    `streams` has `open` or `closed` for each call.
    """

    def __init__(self, turns: list[Line]) -> None:
        super().__init__(turns, chunk_delay=CHUNK_DELAY_SECONDS)
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


async def wait_for_text(run: Run) -> str:
    """Wait for the first live text of the model, and return it."""
    async for item in run.feed():
        if isinstance(item, Delta) and item.kind == "text":
            return item.text
    raise AssertionError("the run ended without model text")


async def read_entry_kinds(run: Run) -> list[str]:
    """Return the kinds of the run's entries, in order."""
    return [type(r.entry).__name__ for r in await run._service.store.read(run.id)]


async def wait_for_entries(run: Run, kind: str, count: int = 1) -> None:
    """Wait until the journal has `count` entries of a kind."""
    with run._service.change_notifier.subscribe(run.id) as subscription:
        while (await read_entry_kinds(run)).count(kind) < count:
            await subscription.wait()
