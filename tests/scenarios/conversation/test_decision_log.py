"""The decision log: thinking, text and reason of each call in journal and views."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from midrun import Agent
from midrun.core.entries import CallAborted, CallDone
from midrun.core.values import Reply
from midrun.core.values import RequestedCall as ToolUse
from midrun.models import Use
from midrun.ports.model import Finished, Piece, Prompt, Unpriced
from tests.scenarios.conversation.toolkit import ApprovalToolkit
from tests.support.run_journal import read_entries
from tests.unit.runs.conftest import OpenMidrun


class ThinkingModel(Unpriced):
    """A model that thinks, speaks and makes one call with a reason; then it ends.

    With `blocks` it does not continue after its thinking.
    """

    name = "thinker"

    def __init__(self) -> None:
        self.blocks = False
        self.thinking = anyio.Event()

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        """Stream the next turn."""
        pieces = self._pieces(prompt)
        try:
            yield pieces
        finally:
            await pieces.aclose()  # type: ignore[attr-defined]  # it is a generator

    async def _pieces(self, prompt: Prompt) -> AsyncIterator[Piece | Finished]:
        if prompt.transcript.assistant_turn_count:
            yield Finished(reply=Reply(text="Done."))
            return
        yield Piece(kind="thinking", text="It is still unread. ")
        if self.blocks:
            self.thinking.set()
            await anyio.sleep_forever()
        yield Piece(kind="text", text="I will read it.")
        use = ToolUse(tool="quick", args={"name": "x", "why": "it is the newest"})
        reply = Reply(text="I will read it.", thinking="It is still unread. ", uses=(use,))
        yield Finished(reply=reply)


async def test_thinking_text_and_reason_are_in_the_journal_with_the_call(
    opened: OpenMidrun,
) -> None:
    toolkit = ApprovalToolkit()
    run = await (
        await opened(Agent("actor", model=ThinkingModel(), tools=toolkit.tools()))
    ).start("actor", "go")
    await run.until("completed")
    reply = next(e.reply for e in await read_entries(run, CallDone) if e.reply is not None)
    assert (reply.thinking, reply.text) == ("It is still unread. ", "I will read it.")
    (use,) = reply.uses
    assert (use.why, use.args) == ("it is the newest", {"name": "x"})
    assert toolkit.completed == ["x"]


async def test_the_journal_keeps_the_thinking_of_an_aborted_model_call(
    opened: OpenMidrun,
) -> None:
    """The model call was aborted before it had any text."""
    toolkit, model = ApprovalToolkit(), ThinkingModel()
    model.blocks = True
    run = await (await opened(Agent("actor", model=model, tools=toolkit.tools()))).start(
        "actor", "go"
    )
    await model.thinking.wait()
    await run.pause()
    await run.until("paused")
    (aborted,) = await read_entries(run, CallAborted)
    assert aborted.thinking == "It is still unread. "


async def test_the_report_has_the_reason_of_a_call(opened: OpenMidrun) -> None:
    """As a field, and in its text."""
    toolkit = ApprovalToolkit()
    agent = toolkit.agent(Use("quick", name="x", why="it is the newest"), "Done.")
    run = await (await opened(agent)).start("actor", "go")
    await run.until("completed")
    report = await run.report()
    assert [call.why for call in report.done] == ["it is the newest"]
    assert "it is the newest" in str(report)


async def test_the_view_has_the_reasons_of_asks_and_calls_in_flight(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    agent = toolkit.agent(
        Use("pay", name="x", why="the invoice is due"), Use("slow", name="y", why="to be sure")
    )
    run = await (await opened(agent)).start("actor", "go")
    view = await run.until("waiting")
    assert "the invoice is due" in repr(view.asks)
    await run.approve()
    await toolkit.start("y").wait()
    assert "to be sure" in repr((await run.view()).in_flight)
    await run.cancel()
    await run.until("cancelled")
