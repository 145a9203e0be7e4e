"""A run of the demo for tests: the real agent with its real tools, without delays."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import anyio

from midrun import Midrun, Run
from midrun.core.entries import AskAnswered, Entry
from midrun.core.transcript import Transcript, Turn
from midrun.demo.agents import AGENT_NAME, build_researcher
from midrun.demo.model import Pace
from midrun.demo.texts import TEXTS
from midrun.driver.journal_writer import load_run_state
from midrun.ports.model import Finished, Piece
from midrun.ports.store import RunQuery
from midrun.runs.values import FeedEntry

TIMEOUT_S = 60
"""Time limit of a test, in seconds."""

NO_DELAY = Pace(float("inf"))

E = TypeVar("E", bound=Entry)


class HoldingPace(Pace):
    """A pace without delays that waits forever before one word, the first time."""

    def __init__(self, word: str) -> None:
        super().__init__(float("inf"))
        object.__setattr__(self, "word", word)
        object.__setattr__(self, "reached", anyio.Event())

    word: str
    reached: anyio.Event

    async def wait_before(self, piece: Piece | Finished, wait: float) -> None:
        """Wait forever before the word, once."""
        text = piece.text.strip() if isinstance(piece, Piece) else ""
        if text == self.word and not self.reached.is_set():
            self.reached.set()
            await anyio.sleep_forever()
        await super().wait_before(piece, wait)


class DemoRun:
    """A run of the demo, and the files that it writes."""

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
    def is_locked(self) -> bool:
        """Whether the briefing is locked."""
        return (self.folder / "briefing.lock").exists()

    @property
    def sent_mails(self) -> list[str]:
        """The mails in the outbox."""
        return [mail.read_text() for mail in (self.folder / "outbox").glob("*.eml")]

    async def read_turns(self) -> list[Turn]:
        """Return the transcript that the model would receive now."""
        return list(Transcript(await load_run_state(self.mid.store, self.run.id)))

    async def read_replies(self) -> list[str]:
        """Return the texts of the agent's replies."""
        return [turn.text for turn in await self.read_turns() if turn.role == "assistant"]

    async def wait_for_ask(self, tool: str) -> None:
        """Wait until the run waits for a decision about `tool`; approve the notice before."""
        view = await self.run.until("waiting")
        asks = {ask.tool: ask.id for ask in view.asks}
        if notice := asks.pop("correct_notice", None):
            await self.run.approve(ask=notice, actor="ada")
            await self.wait_for_entry(AskAnswered)
        assert list(asks) == [tool]

    async def wait_for_entry(self, kind: type[E], count: int = 1) -> E:
        """Wait until the journal has `count` entries of a kind, and return the last."""
        found: list[E] = []
        async for item in self.run.feed():
            if isinstance(item, FeedEntry) and isinstance(item.entry, kind):
                found.append(item.entry)
                if len(found) == count:
                    return found[-1]
        raise AssertionError(f"the run ended with {len(found)} {kind.__name__}")

    async def wait_for_call(self, tool: str) -> None:
        """Wait until a call of `tool` is in flight."""
        async for _ in self.run.feed():
            if any(call.tool == tool for call in (await self.run.view()).in_flight):
                return


@asynccontextmanager
async def start_demo(
    folder: Path, *, pace: Pace = NO_DELAY, rounds: int = 8, task: str = TEXTS.task
) -> AsyncIterator[DemoRun]:
    """Start the demo in `folder`; verify all journals at the end."""
    agent = build_researcher(folder, pace=pace, rounds=rounds)
    with anyio.fail_after(TIMEOUT_S):
        async with Midrun("memory://", agents=[agent]) as mid:
            run = await mid.start(AGENT_NAME, task, actor="ada")
            yield DemoRun(mid, run, folder)
            for row in (await mid.store.list_runs(RunQuery(limit=100))).items:
                verdict = await mid.verify(row.run)
                assert verdict, str(verdict)
