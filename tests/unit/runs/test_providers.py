"""Runs on fake providers: a control closes the connection, a resume continues the reply."""

import json
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from midrun import Agent, Completed, Midrun, Run, tool
from midrun.core.entries import CallAborted, CallFailed
from midrun.driver.delta import Delta
from midrun.models.provider import ProviderModel
from tests.support.providers import Answer, Call, Gate, HttpError, Provider, Text, Thinking
from tests.support.store_choice import get_store_url
from tests.unit.models.protocols import ALL_PROTOCOLS, WireProtocol

protocols = pytest.mark.parametrize(
    "speaks", ALL_PROTOCOLS, ids=lambda speaks: str(speaks.name)
)
WORDS = ("The ", "first ", "half, ", "and ", "the ", "rest.")


@tool
async def search(q: str) -> str:
    """Search."""
    return f"all about {q}"


def make_agent(speaks: WireProtocol, provider: Provider) -> Agent:
    """Return an agent whose model speaks to `provider`."""
    model = ProviderModel(speaks.make_model(provider))
    return Agent("clerk", model=model, instructions="Be brief.", tools=[search])


def open_midrun(path: Path, clerk: Agent) -> Midrun:
    """Return a `Midrun` on the test's own store."""
    return Midrun(get_store_url(path), agents=[clerk])


async def wait_for_text(run: Run, text: str) -> None:
    """Wait until the live output of the agent is `text`."""
    shown = ""
    async for item in run.feed():
        shown += item.text if isinstance(item, Delta) and item.kind == "text" else ""
        if shown == text:
            return


async def find_aborted(run: Run) -> CallAborted:
    """Return the entry of the one call that was aborted."""
    found = [item.entry async for item in run.feed() if item.seq is not None]
    (aborted,) = [entry for entry in found if isinstance(entry, CallAborted)]
    return aborted


@protocols
async def test_a_pause_closes_the_stream_and_a_resume_sends_the_partial_reply(
    path: Path, speaks: WireProtocol
) -> None:
    """The provider sees the closed connection, and then its own partial text."""
    gate = Gate(after=3)
    async with (
        Provider(Answer(Text(*WORDS), fault=gate), Answer(Text("and the rest."))) as provider,
        AsyncExitStack() as stack,
    ):
        midrun = await stack.enter_async_context(
            open_midrun(path, make_agent(speaks, provider))
        )
        run = await midrun.start("clerk", "Tell me")
        await wait_for_text(run, "The first half, ")
        await run.pause()
        await run.until("paused")
        assert await provider.wait_for_disconnect() == 3
        assert len(provider.exchanges) == 1
        await run.resume("Keep it short")
        outcome = await run.result()
        assert isinstance(outcome, Completed)
        request = json.dumps(provider.exchanges[1].body)
        assert "The first half, " in request
        assert "Keep it short" in request
        assert (await find_aborted(run)).text == "The first half, "


@protocols
async def test_a_cancel_closes_the_stream_and_reports_the_partial_text(
    path: Path, speaks: WireProtocol
) -> None:
    gate = Gate(after=2)
    async with (
        Provider(Answer(Thinking("Hm"), Text(*WORDS), fault=gate)) as provider,
        AsyncExitStack() as stack,
    ):
        midrun = await stack.enter_async_context(
            open_midrun(path, make_agent(speaks, provider))
        )
        run = await midrun.start("clerk", "Tell me")
        await wait_for_text(run, "The ")
        await run.cancel()
        await run.until("cancelled")
        assert await provider.wait_for_disconnect() == 2
        assert (await run.report()).partial == "The "


@protocols
async def test_the_tool_calls_of_an_unfinished_reply_are_not_made(
    path: Path, speaks: WireProtocol
) -> None:
    """Their arguments may be incomplete. The model is called again."""
    gate = Gate(after=2)
    half = Answer(Text("Let me "), Call("search", '{"q": ', '"cats"}'), fault=gate)
    async with (
        Provider(half, Answer(Text("Never mind."))) as provider,
        AsyncExitStack() as stack,
    ):
        midrun = await stack.enter_async_context(
            open_midrun(path, make_agent(speaks, provider))
        )
        run = await midrun.start("clerk", "Find cats")
        await wait_for_text(run, "Let me ")
        await run.pause()
        await run.until("paused")
        await run.resume()
        outcome = await run.result()
        assert isinstance(outcome, Completed)
        entries = [item async for item in run.feed()]
        assert not [e for e in entries if getattr(e.entry, "call_kind", "") == "tool"]  # type: ignore[union-attr]  # it has ended: no deltas


@protocols
async def test_a_tool_call_goes_to_the_tool_and_its_result_to_the_provider(
    path: Path, speaks: WireProtocol
) -> None:
    """The argument `why` is removed before the tool is called."""
    async with (
        Provider(
            Answer(Call("search", '{"q": "cats", "why": "the task"}')),
            Answer(Text("Cats it is.")),
        ) as provider,
        AsyncExitStack() as stack,
    ):
        midrun = await stack.enter_async_context(
            open_midrun(path, make_agent(speaks, provider))
        )
        run = await midrun.start("clerk", "Find cats")
        outcome = await run.result()
        assert isinstance(outcome, Completed)
        assert outcome.output == "Cats it is."
        assert "all about cats" in json.dumps(provider.exchanges[1].body)
        assert (await run.view()).usage.tokens > 0


@pytest.mark.slow
@protocols
async def test_an_overloaded_provider_is_retried_by_the_driver(
    path: Path, speaks: WireProtocol
) -> None:
    """Each attempt is in the journal; the SDK makes no retry of its own."""
    async with (
        Provider(HttpError(529), Answer(Text("Here."))) as provider,
        AsyncExitStack() as stack,
    ):
        midrun = await stack.enter_async_context(
            open_midrun(path, make_agent(speaks, provider))
        )
        run = await midrun.start("clerk", "Tell me")
        outcome = await run.result()
        assert isinstance(outcome, Completed)
        assert len(provider.exchanges) == 2
        entries = [item async for item in run.feed()]
        (failed,) = [e.entry for e in entries if isinstance(getattr(e, "entry", 0), CallFailed)]  # type: ignore[union-attr]  # as above
        assert isinstance(failed, CallFailed)
        assert failed.transient
