"""Tools that ask the model to try again, and the number of calls at a time, in whole runs."""

from pathlib import Path

import anyio
import pytest

from midrun import Agent, Failed, Midrun, Misconfigured, ModelRetry, tool
from midrun.core.entries import CallDone, CallFailed
from midrun.models import ScriptedModel, Use
from midrun.models.provider import ProviderModel
from midrun.stops import MaxToolCalls
from midrun.testing.controllable_tools import ControllableTools
from tests.support.providers import Answer, Provider, Text
from tests.support.run_journal import read_entries, read_turns
from tests.support.store_choice import get_store_url
from tests.unit.models.protocols import ANTHROPIC, CHAT
from tests.unit.runs.conftest import OpenMidrun


@tool(read_only=True, retries=1)
async def find(year: int) -> str:
    """Find a year."""
    if year < 1900:
        raise ModelRetry("Give a year after 1900.")
    return f"found {year}"


def find_blocking(year: int) -> str:
    """Find a year in a process of its own."""
    raise ModelRetry(f"{year} is not known.")


async def test_a_tool_that_asks_for_another_try_is_read_by_the_model(
    opened: OpenMidrun,
) -> None:
    model = ScriptedModel([Use("find", year=3), Use("find", year=1999), "Done."])
    run = await (await opened(Agent("a", model=model, tools=[find]))).start("a", "go")
    await run.until("completed")
    (failed,) = await read_entries(run, CallFailed)
    assert (failed.error, failed.code) == ("Give a year after 1900.", "model_retry")
    problems = [use.problem for turn in await read_turns(run) for use in turn.uses]
    assert problems == ["Give a year after 1900.", ""]


async def test_a_blocking_tool_in_a_process_may_ask_for_another_try(opened: OpenMidrun) -> None:
    model = ScriptedModel([Use("find_blocking", year=3), "Done."])
    agent = Agent("a", model=model, tools=[tool(find_blocking, read_only=True)])
    run = await (await opened(agent)).start("a", "go")
    await run.until("completed")
    (failed,) = await read_entries(run, CallFailed)
    assert (failed.error, failed.code) == ("3 is not known.", "model_retry")


async def test_tries_are_counted_over_a_pause_and_another_process(path: Path) -> None:
    turns = [Use("find", year=1), Use("find", year=2), Use("find", year=3)]
    agent = Agent("a", model=ScriptedModel(turns), tools=[find])
    store = get_store_url(path)
    async with Midrun(store, agents=[agent]) as midrun:
        run = await midrun.start(agent, "go", stop=MaxToolCalls(1))
        await run.until("paused")
    async with Midrun(store, agents=[agent]) as midrun:
        run = await midrun.get(run.id)
        await run.resume(caps={"tool_calls": 9})
        outcome = await run.result()
    assert isinstance(outcome, Failed)
    assert outcome.code == "retries_exhausted"
    assert outcome.error == "find asked for another try in 2 steps: Give a year after 1900."


async def test_calls_of_one_reply_run_one_after_the_other(opened: OpenMidrun) -> None:
    """A pause between two of them takes effect, and the rest is made after the resume."""
    tools = ControllableTools()
    uses = [Use("slow", name="one"), Use("slow", name="two")]
    agent = tools.agent(uses, "Done.", max_parallel=1)
    run = await (await opened(agent)).start("actor", "go")
    await tools.start("one").wait()
    await run.pause()
    tools.gate("one").set()
    await run.until("paused")
    assert tools.called == ["one"]
    await run.resume()
    await tools.start("two").wait()
    tools.gate("two").set()
    await run.until("completed")
    assert tools.completed == ["one", "two"]


async def test_a_sequential_tool_runs_alone(opened: OpenMidrun) -> None:
    running: list[str] = []

    async def work(name: str) -> None:
        running.append(name)
        assert "alone" not in running or running == ["alone"]
        await anyio.lowlevel.checkpoint()
        running.remove(name)

    alone = tool(work, name="alone", sequential=True)
    uses = [Use("work", name="a"), Use("alone", name="alone"), Use("work", name="b")]
    agent = Agent("a", model=ScriptedModel([uses, "Done."]), tools=[work, alone])
    run = await (await opened(agent)).start("a", "go")
    await run.until("completed")
    assert not await read_entries(run, CallFailed)


# ── tools of the provider ────────────────────────────────────────────────────


async def test_a_provider_tool_is_declared_to_the_provider() -> None:
    async with Provider(Answer(Text("Found."))) as provider:
        model = ProviderModel(ANTHROPIC.make_model(provider))
        agent = Agent("a", model=model, provider_tools=["web_search"])
        async with Midrun("memory://", agents=[agent]) as midrun:
            run = await midrun.start(agent, "go")
            await run.until("completed")
            (done,) = await read_entries(run, CallDone)
        tools = str(provider.exchanges[0].body["tools"])
    assert "web_search" in tools
    assert done.reply is not None
    assert done.reply.ungated == ()  # declared, but not used


@pytest.mark.parametrize(
    ("tools", "advice"),
    [
        (["web_serch"], "provider_tools must be of .*web_search.*; got 'web_serch'"),
        (["code_execution"], "Cannot use the provider tool code_execution: the model has"),
    ],
)
async def test_a_provider_tool_that_the_model_lacks_is_refused_when_it_is_opened(
    tools: list[str], advice: str
) -> None:
    async with Provider() as provider:
        agent = Agent("a", model=CHAT.make_model(provider), provider_tools=tools)  # type: ignore[arg-type]
        with pytest.raises(Misconfigured, match=advice):
            async with Midrun("memory://", agents=[agent]):
                pass


async def test_a_model_without_a_provider_has_no_provider_tools() -> None:
    agent = Agent("a", model=ScriptedModel(["Done."]), provider_tools=["web_search"])
    with pytest.raises(Misconfigured, match="it has no provider"):
        await agent.run("go")
