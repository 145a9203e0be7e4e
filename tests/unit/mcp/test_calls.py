"""Calls of MCP tools: results, errors and notes, and calls that are aborted."""

import base64
from datetime import timedelta

import pytest
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from midrun import Completed
from midrun.core.entries import CallAborted, CallDone, CallFailed, CallStarted
from midrun.core.ids import make_call_key
from midrun.core.transcript import Transcript
from midrun.core.values import Json
from midrun.driver.delta import Delta
from midrun.mcp import mcp_tools
from midrun.mcp.results import RESOURCE_TEXT_MAX_CHARS, ToolFailed, convert_result
from midrun.models import Use
from tests.support.run_journal import read_entries
from tests.unit.mcp.tool_servers import (
    LinePipe,
    ServerVariant,
    all_variants,
    current_variants,
    make_stdio_command,
    open_midrun,
    open_server_tools,
    read_results,
)


async def call_tools(url: str, *uses: Use) -> list[Json]:
    """Make these calls in a run, and return their results."""
    async with mcp_tools(url=url) as tools, open_midrun(tools, *uses, "Done.") as midrun:
        run = await midrun.start("clerk", "go")
        assert isinstance(await run.result(), Completed)
        return await read_results(run)


async def test_a_result_is_the_structured_content_or_else_the_text(url: str) -> None:
    """The result need not fit the declared schema. An argument that is null is sent."""
    uses = (Use("add", a=1, b=2), Use("greet", name="Ada"), Use("greet", name=None))
    assert await call_tools(url, *uses) == [{"sum": 3}, "Hello Ada.", "Hello None."]


async def test_an_image_is_a_file_of_the_result(url: str) -> None:
    """The journal has a reference; the model is given the image."""
    image = {"type": "image", "mime_type": "image/png", "bytes": 5}
    async with mcp_tools(url=url) as tools, open_midrun(tools, Use("draw"), "Done.") as midrun:
        run = await midrun.start("clerk", "go")
        assert isinstance(await run.result(), Completed)
        assert await read_results(run) == [{"result": "A dot.", "attached": [image]}]
        done = await read_entries(run, CallDone)
        (ref,) = [file for entry in done for file in entry.files]
        assert (ref.media_type, ref.size) == ("image/png", 5)
        assert len((await run.file(ref.hash)).data) == 5


async def test_the_server_gets_the_key_of_the_call(url: str) -> None:
    """It can recognise a repeated call by it."""
    async with mcp_tools(url=url) as tools, open_midrun(tools, Use("key"), "Done.") as midrun:
        run = await midrun.start("clerk", "go")
        await run.until("completed")
        keys = [
            make_call_key(run.id, started.call)
            for started in await read_entries(run, CallStarted)
        ]
        (received_key,) = await read_results(run)
    assert received_key in keys


async def test_an_error_of_the_tool_or_of_its_arguments_fails_the_call(url: str) -> None:
    turns = (Use("fail"), Use("add", a="many"), "Oh.")
    async with mcp_tools(url=url) as tools, open_midrun(tools, *turns) as midrun:
        run = await midrun.start("clerk", "go")
        await run.until("completed")
        tool_error, argument_error = [
            failed.error for failed in await read_entries(run, CallFailed)
        ]
    assert tool_error == "ToolFailed: Error executing tool fail: the drawer is locked"
    assert argument_error.startswith("ToolFailed: ")
    assert "valid integer" in argument_error


async def test_a_call_is_aborted_after_the_timeout_of_its_server(url: str) -> None:
    """The tools have no decorator, so `mcp_tools` has the timeout."""
    options = mcp_tools(url=url, timeout=timedelta(milliseconds=50))
    turns = (Use("hold", name="too long"), "Oh.")
    async with options as tools, open_midrun(tools, *turns) as midrun:
        run = await midrun.start("clerk", "go")
        await run.until("completed")
        assert len(await read_entries(run, CallAborted)) == 1


@pytest.mark.slow
async def test_a_server_gets_its_environment_variables_or_headers(
    pipe: LinePipe, url: str
) -> None:
    """They contain its credentials."""
    who = Use("who")
    for options, expected in (
        (mcp_tools(command=make_stdio_command(pipe), env={"WHO": "Ada"}), "Ada None"),
        (mcp_tools(url=url, headers={"x-who": "Bob"}), "None Bob"),
    ):
        async with options as tools, open_midrun(tools, who, "Done.") as midrun:
            run = await midrun.start("clerk", "go")
            await run.until("completed")
            assert await read_results(run) == [expected]


async def test_progress_of_a_call_becomes_notes(pipe: LinePipe) -> None:
    """The server uses stdio, so that one run completes over that transport, too."""
    turns = (Use("count", to=3), "Done.")
    async with (
        mcp_tools(command=make_stdio_command(pipe)) as tools,
        open_midrun(tools, *turns) as midrun,
    ):
        run = await midrun.start("clerk", "go")
        deltas = [item async for item in run.feed() if isinstance(item, Delta)]
    notes = [delta.text for delta in deltas if delta.kind == "note"]
    assert notes == ["1 of 3", "counted (2 of 3)", "counted (3 of 3)"]


def test_an_error_without_a_text_is_an_error() -> None:
    """A model would take an empty text for a success."""
    with pytest.raises(ToolFailed, match="did not say why"):
        convert_result(CallToolResult(content=[], is_error=True))


def test_attachments_are_described_by_type_and_size() -> None:
    """Binary data is left out, and texts are cut."""
    blob = base64.b64encode(b"1234").decode()
    text = "ä" * (RESOURCE_TEXT_MAX_CHARS + 1)
    blocks: list[ContentBlock] = [
        TextContent(text="a"),
        TextContent(text="b"),
        AudioContent(data=blob, mime_type="audio/wav"),
        ResourceLink(uri="file:///x", name="x"),
        EmbeddedResource(resource=TextResourceContents(uri="file:///y", text=text)),
        EmbeddedResource(resource=BlobResourceContents(uri="file:///z", blob=blob)),
    ]
    result = convert_result(CallToolResult(content=blocks))
    assert isinstance(result, dict)
    assert result["result"] == "a\nb"
    assert result["attached"] == [
        {"type": "audio", "mime_type": "audio/wav", "bytes": 4},
        {"type": "resource_link", "uri": "file:///x", "name": "x"},
        {
            "type": "resource",
            "uri": "file:///y",
            "bytes": 2 * len(text),
            "text": text[: RESOURCE_TEXT_MAX_CHARS - 1] + "…",
        },
        {"type": "resource", "uri": "file:///z", "bytes": 4},
    ]


# ── aborted calls ────────────────────────────────────────────────────────────


@pytest.mark.slow
@all_variants
async def test_pause_now_reaches_the_server(pipe: LinePipe, variant: ServerVariant) -> None:
    """The session outlives the aborted call.

    Over HTTP with the protocol of 2026, the client closes the stream of the response; otherwise
    it sends a notification.
    """
    turns = (Use("hold", name="x"), Use("add", a=1), "Done.")
    async with open_server_tools(pipe, variant) as tools, open_midrun(tools, *turns) as midrun:
        run = await midrun.start("clerk", "go")
        await pipe.wait_for_line("began x")
        await run.pause(now=True)
        await pipe.wait_for_line("stopped x")
        if variant != ServerVariant(is_http=True, is_old=False):
            await pipe.wait_for_line("told to cancel")
        await run.until("paused")
        assert len(await read_entries(run, CallAborted)) == 1
        await run.resume()
        assert isinstance(await run.result(), Completed)
        assert await read_results(run) == [{"sum": 2}]
    assert "told to cancel" not in pipe.lines


@pytest.mark.slow
@all_variants
async def test_cancel_reaches_the_server(pipe: LinePipe, variant: ServerVariant) -> None:
    """Only its own call is stopped; the call of another run completes."""

    def choose_tool(transcript: Transcript) -> Use:
        task = transcript[0].text
        return Use("let_go", name="y") if task == "let go" else Use("hold", name=task)

    async with (
        open_server_tools(pipe, variant) as tools,
        open_midrun(tools, choose_tool, "Done.") as midrun,
    ):
        cancelled_run = await midrun.start("clerk", "x")
        other_run = await midrun.start("clerk", "y")
        await pipe.wait_for_line("began x")
        await pipe.wait_for_line("began y")
        await cancelled_run.cancel()
        await pipe.wait_for_line("stopped x")
        await cancelled_run.until("cancelled")
        assert [call.tool for call in (await cancelled_run.report()).stopped] == ["hold"]
        await midrun.start("clerk", "let go")
        assert isinstance(await other_run.result(), Completed)
        assert await read_results(other_run) == [{"result": "held y"}]


@pytest.mark.slow
@current_variants
async def test_a_server_that_ignores_a_cancellation_is_not_waited_for(
    pipe: LinePipe, variant: ServerVariant
) -> None:
    """The call is aborted, and may have taken effect."""
    turns = (Use("ignore", name="x"), Use("let_go", name="x"), "Done.")
    async with open_server_tools(pipe, variant) as tools, open_midrun(tools, *turns) as midrun:
        run = await midrun.start("clerk", "go")
        await pipe.wait_for_line("began x")
        await run.pause(now=True)
        await run.until("paused")
        assert len(await read_entries(run, CallAborted)) == 1
        assert "finished x" not in pipe.lines
        await run.resume()
        await pipe.wait_for_line("finished x")
        assert isinstance(await run.result(), Completed)
