"""Resources of an MCP server as tools, and its prompts as the start of a run."""

import pytest

from midrun import Completed
from midrun.core.entries import CallFailed
from midrun.errors import Misconfigured
from midrun.mcp import mcp_tools
from midrun.mcp.results import ToolFailed
from midrun.models import Use
from tests.support.run_journal import read_entries, read_turns
from tests.unit.mcp.tool_servers import (
    LinePipe,
    make_stdio_command,
    open_midrun,
    read_results,
)


async def test_resources_are_listed_and_read_by_tools(url: str) -> None:
    """A template is listed with the form of its address; a missing resource fails the call."""
    turns = (
        Use("list_resources"),
        Use("read_resource", uri="notes://today"),
        Use("read_resource", uri="notes://friday"),
        Use("read_resource", uri="elsewhere://x"),
        "Done.",
    )
    async with (
        mcp_tools(url=url, only=["list_resources", "read_resource"], resources=True) as tools,
        open_midrun(tools, *turns) as midrun,
    ):
        assert [tool.name for tool in tools] == ["list_resources", "read_resource"]
        run = await midrun.start("clerk", "go")
        assert isinstance(await run.result(), Completed)
        listed, today, friday = await read_results(run)
        (failed,) = await read_entries(run, CallFailed)
    assert listed == [
        {
            "uri": "notes://today",
            "name": "read_notes",
            "description": "The notes of today.",
            "mime_type": "text/plain",
        },
        {
            "uri_template": "notes://{day}",
            "name": "read_day",
            "description": "Return the notes of a day; `monday` ends the process.",
            "mime_type": "text/markdown",
        },
    ]
    assert today == [
        {"uri": "notes://today", "mime_type": "text/plain", "bytes": 9, "text": "Buy milk."}
    ]
    assert friday == [
        {"uri": "notes://friday", "mime_type": "text/markdown", "bytes": 8, "text": "# friday"}
    ]
    assert failed.error.startswith("ToolFailed: ")


async def test_a_read_whose_server_died_fails_and_the_next_one_succeeds(
    pipe: LinePipe,
) -> None:
    """Reading a resource has no effect, so no person is asked about the outcome."""
    turns = [Use("files_read_resource", uri=f"notes://{day}") for day in ("monday", "friday")]
    options = mcp_tools(command=make_stdio_command(pipe), prefix="files_", resources=True)
    async with options as tools, open_midrun(tools, *turns, "Done.") as midrun:
        run = await midrun.start("clerk", "go")
        assert isinstance(await run.result(), Completed)
        (failed,) = await read_entries(run, CallFailed)
        assert "# friday" in str(await read_results(run))
    assert "Connection closed" in failed.error


async def test_a_prompt_starts_a_run(url: str) -> None:
    """The last message of the user is the task; the messages before it are the history."""
    # The model plays the turn after those of the history.
    async with mcp_tools(url=url) as tools, open_midrun(tools, "", "Done.") as midrun:
        prompts = await tools.list_prompts()
        assert prompts["review"] == "Review a file."
        prompt = await tools.get_prompt("review", file="app.py")
        run = await midrun.start("clerk", prompt.task, history=prompt.history)
        await run.until("completed")
        texts = [turn.text for turn in await read_turns(run)]
        assert texts == ["You review code.", "Which file?", "Review app.py.", "Done."]
        with pytest.raises(Misconfigured, match="not one of the user"):
            await tools.get_prompt("open_ended")
        with pytest.raises(ToolFailed):
            await tools.get_prompt("nothing")
