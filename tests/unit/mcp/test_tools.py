"""Tools of an MCP server: selection, names, schemas, hints and approvals."""

import sys

import pytest
from mcp_types import Tool as McpTool

from midrun import Completed, Misconfigured, Tool
from midrun.agents.signature import BadArguments, SchemaArguments
from midrun.core.values import Effect, Json
from midrun.mcp import mcp_tools
from midrun.mcp.connection import McpConnection, make_server_address
from midrun.mcp.tools import ToolSelection, make_tools
from midrun.models import Use
from tests.unit.mcp.tool_servers import open_midrun, read_results

DEFAULT_SELECTION = ToolSelection(
    prefix="",
    only=None,
    exclude=(),
    approve=False,
    timeout=None,
    trust_hints=False,
    with_resources=False,
)


def index_by_name(tools: list[Tool]) -> dict[str, Tool]:
    """Index the tools by name."""
    return {tool.name: tool for tool in tools}


async def convert_tools(
    *listed: McpTool, selection: ToolSelection = DEFAULT_SELECTION
) -> list[Tool]:
    """Return the tools of a server that lists these."""
    connection = McpConnection(
        make_server_address(command=["never"], env=None, url=None, headers=None)
    )
    connection.listed_tools = list(listed)
    return make_tools(connection, selection)


async def test_a_tool_has_the_description_and_the_schema_of_the_server(url: str) -> None:
    """Each tool also gets the argument `why`."""
    async with mcp_tools(url=url) as tools:
        spec = index_by_name(tools)["add"].spec
    assert spec.description == "Add two numbers.\n\n(The server says: it changes nothing.)"
    assert isinstance(spec.schema, dict)
    properties = spec.schema["properties"]
    assert isinstance(properties, dict)
    assert properties["b"] == {"default": 1, "title": "B", "type": "integer"}
    assert list(properties) == ["a", "b", "why"]
    assert spec.schema["required"] == ["a"]


async def test_hints_are_ignored_unless_they_are_trusted(url: str) -> None:
    """A claim of the server must not decide which calls may be repeated."""
    async with mcp_tools(url=url) as tools:
        assert {tool.traits.effect for tool in tools} == {Effect.ONCE}
    async with mcp_tools(url=url, trust_hints=True) as tools:
        effects = {name: tool.traits.effect for name, tool in index_by_name(tools).items()}
    assert (effects["add"], effects["key"]) == (Effect.READ, Effect.IDEMPOTENT)
    assert effects["hold"] is Effect.ONCE


async def test_tools_are_selected_by_the_names_of_the_server(url: str) -> None:
    """Names that models do not accept are changed; the server gets its own names."""
    async with mcp_tools(url=url, only=["add", "let.go"], prefix="office_") as tools:
        assert [tool.name for tool in tools] == ["office_add", "office_let_go"]
    async with mcp_tools(url=url, exclude=["die"]) as tools:
        assert "die" not in index_by_name(tools)
        assert "add" in index_by_name(tools)


@pytest.mark.slow
@pytest.mark.parametrize(
    "choice", [{"only": ["ad"]}, {"exclude": ["did"]}, {"approve": {"dye": True}}]
)
async def test_an_unknown_tool_name_in_an_option_is_refused(
    url: str, choice: dict[str, object]
) -> None:
    """An approval with a typing error would have no effect."""
    with pytest.raises(Misconfigured, match="the server has no tool"):
        async with mcp_tools(url=url, **choice):  # type: ignore[arg-type]  # one of each kind
            pass


async def test_only_calls_of_the_named_tools_need_approval(url: str) -> None:
    turns = (Use("add", a=1), Use("greet", name="Ada"), "Done.")
    options = mcp_tools(url=url, approve={"greet": True})
    async with options as tools, open_midrun(tools, *turns) as midrun:
        run = await midrun.start("clerk", "go")
        (ask,) = (await run.until("waiting")).asks
        assert ask.kind == "approval"
        assert await read_results(run) == [{"sum": 2}]
        await run.approve()
        assert isinstance(await run.result(), Completed)
        assert await read_results(run) == [{"sum": 2}, "Hello Ada."]


async def test_approve_may_be_a_function_or_apply_to_all_tools(url: str) -> None:
    async with mcp_tools(url=url, approve=lambda args: "a" in args) as tools:
        assert index_by_name(tools)["add"].traits_for({"a": 1}).approve == "block"
        assert index_by_name(tools)["greet"].traits_for({"name": "Ada"}).approve == ""
    async with mcp_tools(url=url, approve="queue") as tools:
        assert {tool.traits.approve for tool in tools} == {"queue"}


async def test_a_tool_that_cannot_be_converted_is_refused() -> None:
    """The user did not write the server, and can only exclude the tool."""
    with_why = McpTool(name="x", input_schema={"type": "object", "properties": {"why": {}}})
    with_long_name = McpTool(name="x" * 65, input_schema={"type": "object"})
    with pytest.raises(Misconfigured, match="an argument `why`"):
        await convert_tools(with_why)
    with pytest.raises(Misconfigured, match="64 letters"):
        await convert_tools(with_long_name)
    assert (
        await convert_tools(with_why, selection=DEFAULT_SELECTION._replace(exclude=["x"])) == []
    )


async def test_a_minimal_schema_is_accepted() -> None:
    """Many servers declare a tool without arguments as a bare object."""
    (tool,) = await convert_tools(McpTool(name="now", input_schema={"type": "object"}))
    assert tool.schema == {"type": "object", "properties": {}}
    assert tool.parse(None) == {}
    assert tool.parse({"call": 1, "self": 2}) == {"call": 1, "self": 2}


def test_required_and_unknown_arguments_are_checked_before_the_call() -> None:
    """The server checks the rest of the schema."""
    schema: dict[str, Json] = {
        "properties": {"a": {"type": "integer"}, "b": {}},
        "required": ["a"],
    }
    arguments = SchemaArguments({**schema, "additionalProperties": False})
    assert arguments.parse({"a": "not a number", "b": None}) == {"a": "not a number", "b": None}
    with pytest.raises(BadArguments, match=r"a: is required; c: no such argument.*: a, b"):
        arguments.parse({"c": 1})
    with pytest.raises(BadArguments, match="expected an object"):
        arguments.parse([1])
    assert SchemaArguments(schema).parse({"a": 1, "c": 2}) == {"a": 1, "c": 2}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"command": ["x"], "url": "http://x"},
        {"command": ["x"], "headers": {}},
        {"url": "http://x", "env": {}},
        {"command": "python server.py"},
        {"command": []},
    ],
)
async def test_options_that_do_not_name_one_server_are_refused(
    options: dict[str, object],
) -> None:
    """They are refused before anything is started."""
    with pytest.raises(Misconfigured, match="command"):
        async with mcp_tools(**options):  # type: ignore[arg-type]  # one of each kind
            pass


async def test_a_missing_package_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("connection", "results", "tools"):
        monkeypatch.delitem(sys.modules, f"midrun.mcp.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(Misconfigured, match=r"Install midrun\[mcp\]"):
        async with mcp_tools(command=["never"]):
            pass
