"""The whole way to a provider: a control closes its connection, a resume goes on from there."""

import json
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from midrun import Agent, Completed, Midrun, Run, tool
from midrun.core.entries import CallAborted, CallFailed
from midrun.driver.live import Delta
from midrun.models.provider import ProviderModel
from tests.support.providers import Answer, Call, Denied, Gate, Provider, Text, Thinking
from tests.support.store_choice import kept_at
from tests.unit.models.protocols import ALL, Speaks

protocols = pytest.mark.parametrize("speaks", ALL, ids=lambda speaks: str(speaks.name))
WORDS = ("The ", "first ", "half, ", "and ", "the ", "rest.")


@tool
async def search(q: str) -> str:
    """Look something up."""
    return f"all about {q}"


def agent(speaks: Speaks, provider: Provider) -> Agent:
    """Return an agent whose model speaks to `provider`."""
    model = ProviderModel(speaks.provided(provider))
    return Agent("clerk", model=model, instructions="Be brief.", tools=[search])


def at(path: Path, clerk: Agent) -> Midrun:
    """Return a `Midrun` on the test's own store."""
    return Midrun(kept_at(path), agents=[clerk])


async def heard(run: Run, text: str) -> None:
    """Wait until the agent has said so much: the request alone takes longer than to listen."""
    said = ""
    async for item in run.feed():
        said += item.text if isinstance(item, Delta) and item.kind == "text" else ""
        if said == text:
            return


async def aborted(run: Run) -> CallAborted:
    """Return the one call that was stopped."""
    found = [item.entry async for item in run.feed() if item.seq is not None]
    (stopped,) = [entry for entry in found if isinstance(entry, CallAborted)]
    return stopped


@protocols
async def test_a_pause_closes_the_stream_and_a_resume_goes_on_from_the_sentence(
    path: Path, speaks: Speaks
) -> None:
    """The provider itself sees that nobody listens any more, and later what was said."""
    gate = Gate(after=3)
    async with (
        Provider(Answer(Text(*WORDS), fault=gate), Answer(Text("and the rest."))) as provider,
        AsyncExitStack() as stack,
    ):
        midrun = await stack.enter_async_context(at(path, agent(speaks, provider)))
        run = await midrun.start("clerk", "Tell me")
        await heard(run, "The first half, ")
        await run.pause()
        await run.until("paused")
        assert await provider.closed_midway() == 3
        assert len(provider.exchanges) == 1
        await run.resume("Keep it short")
        outcome = await run.result()
        assert isinstance(outcome, Completed)
        told = json.dumps(provider.exchanges[1].body)
        assert "The first half, " in told
        assert "Keep it short" in told
        assert (await aborted(run)).text == "The first half, "


@protocols
async def test_a_cancel_closes_the_stream_and_keeps_what_was_said(
    path: Path, speaks: Speaks
) -> None:
    """Partial work is in the report."""
    gate = Gate(after=2)
    async with (
        Provider(Answer(Thinking("Hm"), Text(*WORDS), fault=gate)) as provider,
        AsyncExitStack() as stack,
    ):
        midrun = await stack.enter_async_context(at(path, agent(speaks, provider)))
        run = await midrun.start("clerk", "Tell me")
        await heard(run, "The ")
        await run.cancel()
        await run.until("cancelled")
        assert await provider.closed_midway() == 2
        assert (await run.report()).partial == "The "


@protocols
async def test_the_calls_of_an_unfinished_message_are_never_made(
    path: Path, speaks: Speaks
) -> None:
    """Half of an argument list is nobody's wish; the model is asked again."""
    gate = Gate(after=2)
    half = Answer(Text("Let me "), Call("search", '{"q": ', '"cats"}'), fault=gate)
    async with (
        Provider(half, Answer(Text("Never mind."))) as provider,
        AsyncExitStack() as stack,
    ):
        midrun = await stack.enter_async_context(at(path, agent(speaks, provider)))
        run = await midrun.start("clerk", "Find cats")
        await heard(run, "Let me ")
        await run.pause()
        await run.until("paused")
        await run.resume()
        outcome = await run.result()
        assert isinstance(outcome, Completed)
        entries = [item async for item in run.feed()]
        assert not [e for e in entries if getattr(e.entry, "call_kind", "") == "tool"]  # type: ignore[union-attr]  # it has ended: no deltas


@protocols
async def test_a_tool_call_goes_to_the_tool_and_its_result_to_the_provider(
    path: Path, speaks: Speaks
) -> None:
    """With why it was made taken out on the way."""
    async with (
        Provider(
            Answer(Call("search", '{"q": "cats", "why": "the task"}')),
            Answer(Text("Cats it is.")),
        ) as provider,
        AsyncExitStack() as stack,
    ):
        midrun = await stack.enter_async_context(at(path, agent(speaks, provider)))
        run = await midrun.start("clerk", "Find cats")
        outcome = await run.result()
        assert isinstance(outcome, Completed)
        assert outcome.output == "Cats it is."
        assert "all about cats" in json.dumps(provider.exchanges[1].body)
        assert (await run.view()).usage.tokens > 0


@protocols
async def test_a_provider_that_is_overloaded_is_asked_again_by_us_and_on_record(
    path: Path, speaks: Speaks
) -> None:
    """Every attempt is a line in the journal; the SDK makes none of its own."""
    async with (
        Provider(Denied(529), Answer(Text("Here."))) as provider,
        AsyncExitStack() as stack,
    ):
        midrun = await stack.enter_async_context(at(path, agent(speaks, provider)))
        run = await midrun.start("clerk", "Tell me")
        outcome = await run.result()
        assert isinstance(outcome, Completed)
        assert len(provider.exchanges) == 2
        entries = [item async for item in run.feed()]
        (failed,) = [e.entry for e in entries if isinstance(getattr(e, "entry", 0), CallFailed)]  # type: ignore[union-attr]  # as above
        assert isinstance(failed, CallFailed)
        assert failed.transient
