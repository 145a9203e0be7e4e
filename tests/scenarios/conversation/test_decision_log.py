"""The decision log: thinking, text and why, with each call."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from midrun import Agent
from midrun.core.entries import CallAborted, CallDone
from midrun.core.values import Reply
from midrun.core.values import Use as Wanted
from midrun.models import Use
from midrun.ports.model import Finished, Piece, Prompt, Unpriced
from tests.scenarios.conversation.workshop import Workshop
from tests.scenarios.promises.seen import entries
from tests.unit.runs.conftest import Opener


class Thinker(Unpriced):
    """Thinks, says something, and makes one call with its reason; then ends."""

    name = "thinker"

    def __init__(self) -> None:
        self.cut = False
        self.thinking = anyio.Event()

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        """Think aloud."""
        pieces = self._pieces(prompt)
        try:
            yield pieces
        finally:
            await pieces.aclose()  # type: ignore[attr-defined]  # it is a generator

    async def _pieces(self, prompt: Prompt) -> AsyncIterator[Piece | Finished]:
        if prompt.transcript.assistant_turn_count:
            yield Finished(reply=Reply(text="Done."))
            return
        yield Piece(kind="thinking", text="Nobody read it yet. ")
        if self.cut:
            self.thinking.set()
            await anyio.sleep_forever()
        yield Piece(kind="text", text="I will read it.")
        use = Wanted(tool="quick", args={"name": "x", "why": "it is the newest"})
        reply = Reply(text="I will read it.", thinking="Nobody read it yet. ", uses=(use,))
        yield Finished(reply=reply)


async def test_thinking_text_and_reason_are_in_the_journal_with_the_call(
    opened: Opener,
) -> None:
    """Why did it do that? The entry before the call says so."""
    shop = Workshop()
    run = await (await opened(Agent("actor", model=Thinker(), tools=shop.tools()))).start(
        "actor", "go"
    )
    await run.until("completed")
    reply = next(e.reply for e in await entries(run, CallDone) if e.reply is not None)
    assert (reply.thinking, reply.text) == ("Nobody read it yet. ", "I will read it.")
    (use,) = reply.uses
    assert (use.why, use.args) == ("it is the newest", {"name": "x"})
    assert shop.completed == ["x"]


async def test_thinking_that_was_cut_short_is_kept(opened: Opener) -> None:
    """Also of a call that never came to say anything."""
    shop, model = Workshop(), Thinker()
    model.cut = True
    run = await (await opened(Agent("actor", model=model, tools=shop.tools()))).start(
        "actor", "go"
    )
    await model.thinking.wait()
    await run.pause()
    await run.until("paused")
    (aborted,) = await entries(run, CallAborted)
    assert aborted.thinking == "Nobody read it yet. "


async def test_the_report_says_why(opened: Opener) -> None:
    """As data, and in the text that people read."""
    shop = Workshop()
    agent = shop.agent(Use("quick", name="x", why="it is the newest"), "Done.")
    run = await (await opened(agent)).start("actor", "go")
    await run.until("completed")
    report = await run.report()
    assert [deed.why for deed in report.done] == ["it is the newest"]
    assert "it is the newest" in str(report)


async def test_the_views_say_why(opened: Opener) -> None:
    """Whoever is asked, and whoever watches a call, sees the agent's reason."""
    shop = Workshop()
    agent = shop.agent(
        Use("pay", name="x", why="the invoice is due"), Use("slow", name="y", why="to be sure")
    )
    run = await (await opened(agent)).start("actor", "go")
    view = await run.until("waiting")
    assert "the invoice is due" in repr(view.asks)
    await run.approve()
    await shop.start("y").wait()
    assert "to be sure" in repr((await run.view()).in_flight)
    await run.cancel()
    await run.until("cancelled")
