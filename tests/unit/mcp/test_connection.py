"""MCP servers that end or cannot be reached, and the end of the context."""

import os
import signal
from contextlib import suppress

import anyio
import pytest

from midrun import Call, Completed, Outcome, Tool
from midrun.core.entries import CallFailed
from midrun.errors import OutcomeUnknown, ToolsUnreachable
from midrun.mcp import mcp_tools
from midrun.mcp.tools import McpTools
from midrun.models import Use
from tests.support.run_journal import read_entries
from tests.unit.driver.subprocess.process_calls import ProcessEnd
from tests.unit.mcp.tool_servers import (
    HttpServerProcess,
    LinePipe,
    ServerVariant,
    all_variants,
    make_stdio_command,
    open_midrun,
    open_server_tools,
    read_results,
)


async def wait_until_noticed(tools: McpTools) -> None:
    """Wait until the connection has noticed the end of its server."""
    while tools._connection._session is not None:  # noqa: ASYNC110 - there is no event for it
        await anyio.sleep(0.005)


async def call_tool(
    tools: list[Tool], name: str, notes: list[str] | None = None, /, **arguments: object
) -> object:
    """Make a call outside of a run; add its notes to `notes`."""
    (tool,) = [tool for tool in tools if tool.name == name]
    notes = [] if notes is None else notes
    context = Call(
        key="k", run_id="run_1", epoch=1, attempt=1, saver=lambda _: None, noter=notes.append
    )
    return await tool.fn(context, **arguments)  # type: ignore[misc]  # an async function


@pytest.mark.slow
@all_variants
async def test_the_outcome_of_a_call_whose_server_died_is_asked_for(
    pipe: LinePipe, variant: ServerVariant
) -> None:
    """The call may have taken effect. The run then continues without the server."""
    turns = (Use("die"), Use("add", a=1), "Oh.")
    async with open_server_tools(pipe, variant) as tools, open_midrun(tools, *turns) as midrun:
        run = await midrun.start("clerk", "go")
        (ask,) = (await run.until("waiting")).asks
        assert (ask.kind, ask.tool) == ("unsure", "die")
        outcome: Outcome | None = None
        while not isinstance(outcome, Completed):  # over HTTP the next call may be lost, too
            await run.answer("yes")
            outcome = await run.result()
        failed = await read_entries(run, CallFailed)
    assert all(
        failure.error.startswith("ToolsUnreachable: Cannot reach ") for failure in failed
    )


async def kill_server(pipe: LinePipe) -> None:
    """Kill the newest server process with SIGKILL, and wait for its end."""
    pid = int(await pipe.wait_for_line("pid"))
    watch = ProcessEnd(pid)
    os.kill(pid, signal.SIGKILL)
    await watch.wait_for_end()


async def test_a_stdio_server_that_was_killed_is_started_again(pipe: LinePipe) -> None:
    """The call in flight is unknown and not repeated; the next call reaches a new process."""
    turns = (Use("hold", name="x"), Use("add", a=1), "Oh.")
    async with (
        mcp_tools(command=make_stdio_command(pipe)) as tools,
        open_midrun(tools, *turns) as midrun,
    ):
        run = await midrun.start("clerk", "go")
        await pipe.wait_for_line("began x")
        await kill_server(pipe)
        (ask,) = (await run.until("waiting")).asks
        assert (ask.kind, ask.tool) == ("unsure", "hold")
        assert "began x" not in pipe.lines
        await run.answer("yes")
        assert isinstance(await run.result(), Completed)
        assert {"sum": 2} in await read_results(run)
    assert "began x" not in pipe.lines


async def test_a_server_that_was_killed_while_idle_costs_no_call(pipe: LinePipe) -> None:
    """No call was in flight, so none is unknown. A note tells that the state is lost."""
    notes: list[str] = []
    async with mcp_tools(command=make_stdio_command(pipe)) as tools:
        assert await call_tool(tools, "add", notes, a=1) == {"sum": 2}
        await kill_server(pipe)
        await wait_until_noticed(tools)
        assert await call_tool(tools, "add", notes, a=2) == {"sum": 3}
        assert await call_tool(tools, "add", notes, a=3) == {"sum": 4}
    (note,) = notes
    assert "was started again" in note


@pytest.mark.slow
async def test_a_session_that_the_server_has_lost_is_opened_again(pipe: LinePipe) -> None:
    """The old protocol has sessions; the new process refuses the session of the killed one."""
    with HttpServerProcess(pipe, "old") as process:
        url = await process.url()
        async with mcp_tools(url=url) as tools:
            assert await call_tool(tools, "add", a=1) == {"sum": 2}
            await kill_server(pipe)
            with HttpServerProcess(pipe, "old", port=process.port):
                await pipe.wait_for_line("port")
                assert await call_tool(tools, "add", a=2) == {"sum": 3}


@pytest.mark.slow
async def test_an_http_server_that_was_restarted_is_used_again(pipe: LinePipe) -> None:
    with HttpServerProcess(pipe) as process:
        url = await process.url()
        async with mcp_tools(url=url) as tools:
            with pytest.raises(OutcomeUnknown):
                await call_tool(tools, "die")
            with pytest.raises((ToolsUnreachable, OutcomeUnknown)):
                await call_tool(tools, "add", a=1)
            with HttpServerProcess(pipe, port=process.port):
                await pipe.wait_for_line("port")
                assert await call_tool(tools, "add", a=1) == {"sum": 2}


@pytest.mark.slow
@pytest.mark.parametrize("end", ["left", "raised", "cancelled"])
async def test_a_stdio_server_ends_with_its_context(pipe: LinePipe, end: str) -> None:
    """It does not matter how the context is left; an exception is passed on."""
    tools: list[Tool] = []
    with anyio.CancelScope() as scope, suppress(LookupError):
        async with mcp_tools(command=make_stdio_command(pipe)) as listed:
            tools += listed
            watch = ProcessEnd(int(await pipe.wait_for_line("pid")))
            if end == "raised":
                raise LookupError
            if end == "cancelled":
                scope.cancel()
                await anyio.sleep_forever()
    assert scope.cancelled_caught == (end == "cancelled")
    await watch.wait_for_end()
    with pytest.raises(ToolsUnreachable, match="was not made"):
        await call_tool(tools, "add", a=1)


@pytest.mark.slow
async def test_a_call_in_flight_ends_with_the_context(pipe: LinePipe) -> None:
    """Its caller must not wait forever."""
    async with anyio.create_task_group() as tasks:
        errors: list[str] = []

        async def hold() -> None:
            try:
                await call_tool(tools, "hold", name="x")
            except OutcomeUnknown as error:
                errors.append(str(error))

        async with mcp_tools(command=make_stdio_command(pipe)) as tools:
            tasks.start_soon(hold)
            await pipe.wait_for_line("began x")
    assert [text.rpartition(". ")[2] for text in errors] == ["The call may have taken effect."]


async def test_an_unreachable_server_is_reported_without_its_secrets() -> None:
    with pytest.raises(ToolsUnreachable, match="server nowhere: FileNotFoundError"):
        async with mcp_tools(command=["/nowhere", "--token=secret"]):
            pass
    with pytest.raises(ToolsUnreachable) as unreachable:
        async with mcp_tools(url="http://me:secret@127.0.0.1:1/mcp?token=secret"):
            pass
    assert "secret" not in str(unreachable.value)
    assert "tool server http://127.0.0.1:1/mcp: ConnectError" in str(unreachable.value)


async def test_a_server_that_exits_immediately_is_reported_when_it_is_opened() -> None:
    with pytest.raises(ToolsUnreachable, match="Connection closed"):
        async with mcp_tools(command=["true"], env=dict(os.environ)):
            pass
