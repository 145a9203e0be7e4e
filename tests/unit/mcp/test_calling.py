"""Calls that a server makes: their results, errors and notes."""

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
from midrun.core.entries import CallAborted, CallFailed, CallStarted
from midrun.core.ids import make_call_key
from midrun.core.values import Json
from midrun.driver.live import Delta
from midrun.mcp import mcp_tools
from midrun.mcp.results import RESOURCE_TEXT_MAX_CHARS, ToolFailed, convert_result
from midrun.models import Use
from tests.scenarios.promises.seen import entries
from tests.unit.mcp.office import Pipe, clerk, command, results


async def returned(url: str, *uses: Use) -> list[Json]:
    """Return what these calls return, made by a run."""
    async with mcp_tools(url=url) as tools, clerk(tools, *uses, "Done.") as midrun:
        run = await midrun.start("clerk", "go")
        assert isinstance(await run.result(), Completed)
        return await results(run)


async def test_a_run_is_given_structured_content_or_else_the_text(url: str) -> None:
    """Also where the result is not what was declared. A null argument is not left out."""
    uses = (Use("add", a=1, b=2), Use("greet", name="Ada"), Use("greet", name=None))
    assert await returned(url, *uses) == [{"sum": 3}, "Hello Ada.", "Hello None."]


async def test_an_image_is_a_reference_in_the_result(url: str) -> None:
    """A journal is no place for pictures."""
    image = {"type": "image", "mime_type": "image/png", "bytes": 5}
    assert await returned(url, Use("draw")) == [{"result": "A dot.", "attached": [image]}]


async def test_the_server_is_given_the_key_of_the_call(url: str) -> None:
    """So that it can know a call that it has seen before."""
    async with mcp_tools(url=url) as tools, clerk(tools, Use("key"), "Done.") as midrun:
        run = await midrun.start("clerk", "go")
        await run.until("completed")
        keys = [
            make_call_key(run.id, started.call) for started in await entries(run, CallStarted)
        ]
        (told,) = await results(run)
    assert told in keys


async def test_an_error_is_told_to_the_model(url: str) -> None:
    """The tool's own, and that of a server that finds the arguments wanting."""
    turns = (Use("fail"), Use("add", a="many"), "Oh.")
    async with mcp_tools(url=url) as tools, clerk(tools, *turns) as midrun:
        run = await midrun.start("clerk", "go")
        await run.until("completed")
        locked, wanting = [failed.error for failed in await entries(run, CallFailed)]
    assert locked == "ToolFailed: Error executing tool fail: the drawer is locked"
    assert wanting.startswith("ToolFailed: ")
    assert "valid integer" in wanting


async def test_a_call_that_takes_too_long_is_aborted(url: str) -> None:
    """How long is for whoever opened the server to say: its tools are not decorated."""
    options = mcp_tools(url=url, timeout=timedelta(milliseconds=50))
    turns = (Use("hold", name="too long"), "Oh.")
    async with options as tools, clerk(tools, *turns) as midrun:
        run = await midrun.start("clerk", "go")
        await run.until("completed")
        assert len(await entries(run, CallAborted)) == 1


async def test_a_server_is_given_its_variables_or_its_headers(pipe: Pipe, url: str) -> None:
    """Where its credentials are."""
    who = Use("who")
    for options, told in (
        (mcp_tools(command=command(pipe), env={"WHO": "Ada"}), "Ada None"),
        (mcp_tools(url=url, headers={"x-who": "Bob"}), "None Bob"),
    ):
        async with options as tools, clerk(tools, who, "Done.") as midrun:
            run = await midrun.start("clerk", "go")
            await run.until("completed")
            assert await results(run) == [told]


async def test_progress_becomes_notes(pipe: Pipe) -> None:
    """Over stdio, so that a run was driven over it to its end, too."""
    turns = (Use("count", to=3), "Done.")
    async with mcp_tools(command=command(pipe)) as tools, clerk(tools, *turns) as midrun:
        run = await midrun.start("clerk", "go")
        seen = [item async for item in run.feed() if isinstance(item, Delta)]
    notes = [delta.text for delta in seen if delta.kind == "note"]
    assert notes == ["1 of 3", "counted (2 of 3)", "counted (3 of 3)"]


def test_an_error_without_words_is_still_one() -> None:
    """A model that is told nothing takes it for a success."""
    with pytest.raises(ToolFailed, match="did not say why"):
        convert_result(CallToolResult(content=[], is_error=True))


def test_what_is_attached_is_told_by_kind_and_size() -> None:
    """Bytes are counted and left out, texts are cut."""
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
    told = convert_result(CallToolResult(content=blocks))
    assert isinstance(told, dict)
    assert told["result"] == "a\nb"
    assert told["attached"] == [
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
