"""Servers that are gone: whoever calls them is told, and nobody is taken along."""

import os
from contextlib import suppress

import anyio
import pytest

from midrun import Call, Completed, Outcome, Tool
from midrun.core.entries import CallFailed
from midrun.errors import OutcomeUnknown, ToolsUnreachable
from midrun.mcp import mcp_tools
from midrun.models import Use
from tests.scenarios.promises.seen import entries
from tests.unit.driver.subprocess.scene import Watch
from tests.unit.mcp.office import WAYS, Pipe, Process, Way, clerk, command, served


async def call(tools: list[Tool], name: str, /, **arguments: object) -> object:
    """Make a call outside of any run."""
    (tool,) = [tool for tool in tools if tool.name == name]
    made = Call(
        key="k", run_id="run_1", epoch=1, attempt=1, saver=lambda _: None, noter=lambda _: None
    )
    return await tool.fn(made, **arguments)  # type: ignore[misc]  # an async function


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_a_call_that_is_lost_with_its_server_is_put_to_a_person(
    pipe: Pipe, way: Way
) -> None:
    """It may have taken effect; the run then goes on without the server."""
    turns = (Use("die"), Use("add", a=1), "Oh.")
    async with served(pipe, way) as tools, clerk(tools, *turns) as midrun:
        run = await midrun.start("clerk", "go")
        (ask,) = (await run.until("waiting")).asks
        assert (ask.kind, ask.tool) == ("unsure", "die")
        outcome: Outcome | None = None
        while not isinstance(outcome, Completed):  # over HTTP the next one may be lost as well
            await run.answer("yes")
            outcome = await run.result()
        failed = await entries(run, CallFailed)
    assert all(one.error.startswith("ToolsUnreachable: Cannot reach ") for one in failed)
    assert failed or str(way).startswith("http")


async def test_a_server_that_we_started_is_not_started_again(pipe: Pipe) -> None:
    """What it knew went with it; a new one would pretend that nothing had happened."""
    async with mcp_tools(command=command(pipe)) as tools:
        with pytest.raises(OutcomeUnknown, match="may have taken effect"):
            await call(tools, "die")
        with pytest.raises(ToolsUnreachable, match="was not made"):
            await call(tools, "add", a=1)


async def test_a_server_that_comes_back_is_found_again(pipe: Pipe) -> None:
    """Over HTTP, where servers are restarted without asking their clients."""
    with Process(pipe) as process:
        url = await process.url()
        async with mcp_tools(url=url) as tools:
            with pytest.raises(OutcomeUnknown):
                await call(tools, "die")
            with pytest.raises((ToolsUnreachable, OutcomeUnknown)):
                await call(tools, "add", a=1)
            with Process(pipe, port=process.port):
                await pipe.hear("port")
                assert await call(tools, "add", a=1) == {"sum": 2}


@pytest.mark.parametrize("end", ["left", "raised", "cancelled"])
async def test_a_server_that_we_started_ends_with_the_context(pipe: Pipe, end: str) -> None:
    """However that is left; and an error comes out as it was raised."""
    tools: list[Tool] = []
    with anyio.CancelScope() as scope, suppress(LookupError):
        async with mcp_tools(command=command(pipe)) as found:
            tools += found
            watch = Watch(int(await pipe.hear("pid")))
            if end == "raised":
                raise LookupError
            if end == "cancelled":
                scope.cancel()
                await anyio.sleep_forever()
    assert scope.cancelled_caught == (end == "cancelled")
    await watch.end()
    with pytest.raises(ToolsUnreachable, match="was not made"):
        await call(tools, "add", a=1)


async def test_a_call_in_flight_ends_with_the_context(pipe: Pipe) -> None:
    """Whoever waits for it must not wait for ever."""
    async with anyio.create_task_group() as tasks:
        told: list[str] = []

        async def hold() -> None:
            try:
                await call(tools, "hold", name="x")
            except OutcomeUnknown as error:
                told.append(str(error))

        async with mcp_tools(command=command(pipe)) as tools:
            tasks.start_soon(hold)
            await pipe.hear("began x")
    assert [words.rpartition(". ")[2] for words in told] == ["The call may have taken effect."]


async def test_a_server_that_is_not_there_is_told_when_it_is_opened() -> None:
    """By what was asked for, without what may be secret in it."""
    with pytest.raises(ToolsUnreachable, match="server nowhere: FileNotFoundError"):
        async with mcp_tools(command=["/nowhere", "--token=secret"]):
            pass
    with pytest.raises(ToolsUnreachable) as told:
        async with mcp_tools(url="http://me:secret@127.0.0.1:1/mcp?token=secret"):
            pass
    assert "secret" not in str(told.value)
    assert "tool server http://127.0.0.1:1/mcp: ConnectError" in str(told.value)


async def test_a_server_that_ends_at_once_is_told_when_it_is_opened() -> None:
    """It has no tools that could fail later."""
    with pytest.raises(ToolsUnreachable, match="Connection closed"):
        async with mcp_tools(command=["true"], env=dict(os.environ)):
            pass
