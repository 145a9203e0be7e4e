"""A theatre for tests of the demo: the real agent with its real tools, and no waiting."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import anyio

from midrun import Midrun, Run
from midrun.core.entries import Entry
from midrun.core.transcript import Transcript, Turn
from midrun.demo.agents import AGENT_NAME, build_researcher
from midrun.demo.model import Pace
from midrun.demo.texts import TASK
from midrun.driver.journal_writer import load_run_state
from midrun.ports.model import Finished, Piece
from midrun.ports.store import RunQuery
from midrun.runs.values import FeedEntry

PATIENCE = 60
"""Seconds after which something that should have happened counts as never happening."""

AT_ONCE = Pace(float("inf"))

E = TypeVar("E", bound=Entry)


class Holding(Pace):
    """A pace that does not wait, but stops for ever before one word, the first time."""

    def __init__(self, word: str) -> None:
        super().__init__(float("inf"))
        object.__setattr__(self, "word", word)
        object.__setattr__(self, "reached", anyio.Event())

    word: str
    reached: anyio.Event

    async def wait_before(self, piece: Piece | Finished, wait: float) -> None:
        """Wait for ever before the word, once."""
        said = piece.text.strip() if isinstance(piece, Piece) else ""
        if said == self.word and not self.reached.is_set():
            self.reached.set()
            await anyio.sleep_forever()
        await super().wait_before(piece, wait)


class Theatre:
    """A run of the demo, open."""

    def __init__(self, mid: Midrun, run: Run, folder: Path) -> None:
        self.mid = mid
        self.run = run
        self.folder = folder

    @property
    def draft(self) -> str:
        """The draft of the run; empty if there is none."""
        path = self.folder / "drafts" / f"{self.run.id}.md"
        return path.read_text() if path.exists() else ""

    @property
    def locked(self) -> bool:
        """The briefing is locked."""
        return (self.folder / "briefing.lock").exists()

    @property
    def mails(self) -> list[str]:
        """What is in the outbox."""
        return [mail.read_text() for mail in (self.folder / "outbox").glob("*.eml")]

    async def turns(self) -> list[Turn]:
        """Return what the model would be given now."""
        return list(Transcript(await load_run_state(self.mid.store, self.run.id)))

    async def said(self) -> list[str]:
        """Return what the agent has said, reply by reply."""
        return [turn.text for turn in await self.turns() if turn.role == "assistant"]

    async def asked(self, tool: str) -> None:
        """Wait until the run waits for a person to decide about `tool`."""
        view = await self.run.until("waiting")
        assert [ask.tool for ask in view.asks] == [tool]

    async def recorded(self, kind: type[E], count: int = 1) -> E:
        """Wait until the journal has `count` entries of a kind, and return the last."""
        found: list[E] = []
        async for item in self.run.feed():
            if isinstance(item, FeedEntry) and isinstance(item.entry, kind):
                found.append(item.entry)
                if len(found) == count:
                    return found[-1]
        raise AssertionError(f"the run ended with {len(found)} {kind.__name__}")

    async def in_flight(self, tool: str) -> None:
        """Wait until a call of `tool` is in flight."""
        async for _ in self.run.feed():
            if any(call.tool == tool for call in (await self.run.view()).in_flight):
                return


@asynccontextmanager
async def theatre(
    folder: Path, *, pace: Pace = AT_ONCE, rounds: int = 8, task: str = TASK
) -> AsyncIterator[Theatre]:
    """Start the demo in `folder`; when it is left, every journal is verified."""
    agent = build_researcher(folder, pace=pace, rounds=rounds)
    with anyio.fail_after(PATIENCE):
        async with Midrun("memory://", agents=[agent]) as mid:
            run = await mid.start(AGENT_NAME, task, actor="ada")
            yield Theatre(mid, run, folder)
            for row in (await mid.store.list_runs(RunQuery(limit=100))).items:
                verdict = await mid.verify(row.run)
                assert verdict, str(verdict)
