"""What a server lists becomes tools: as it describes them, and as far as it is believed."""

import sys

import pytest
from mcp_types import Tool as Listed

from midrun import Completed, Misconfigured, Tool
from midrun.agents.signature import BadArguments
from midrun.core.values import Effect, Json
from midrun.mcp import mcp_tools
from midrun.mcp.connection import McpConnection, make_server_address
from midrun.mcp.tools import ServerArguments, ToolSelection, make_tools
from midrun.models import Use
from tests.unit.mcp.office import clerk, results

ALL = ToolSelection(
    prefix="", only=None, exclude=(), approve=False, timeout=None, trust_hints=False
)


def named(tools: list[Tool]) -> dict[str, Tool]:
    """Return the tools by name."""
    return {tool.name: tool for tool in tools}


async def offered(*listed: Listed, choice: ToolSelection = ALL) -> list[Tool]:
    """Return the tools of a server that lists these."""
    connection = McpConnection(
        make_server_address(command=["never"], env=None, url=None, headers=None)
    )
    connection.listed_tools = list(listed)
    return make_tools(connection, choice)


async def test_a_model_is_offered_what_the_server_declares(url: str) -> None:
    """With a place to say why, as every tool has it."""
    async with mcp_tools(url=url) as tools:
        spec = named(tools)["add"].spec
    assert spec.description == "Add two numbers.\n\n(The server says: it changes nothing.)"
    assert isinstance(spec.schema, dict)
    properties = spec.schema["properties"]
    assert isinstance(properties, dict)
    assert properties["b"] == {"default": 1, "title": "B", "type": "integer"}
    assert list(properties) == ["a", "b", "why"]
    assert spec.schema["required"] == ["a"]


async def test_hints_decide_nothing_unless_they_are_trusted(url: str) -> None:
    """A server's word about itself must not decide what may be made twice."""
    async with mcp_tools(url=url) as tools:
        assert {tool.traits.effect for tool in tools} == {Effect.ONCE}
    async with mcp_tools(url=url, trust_hints=True) as tools:
        effects = {name: tool.traits.effect for name, tool in named(tools).items()}
    assert (effects["add"], effects["key"]) == (Effect.READ, Effect.IDEMPOTENT)
    assert effects["hold"] is Effect.ONCE


async def test_one_takes_what_one_wants_by_the_server_s_names(url: str) -> None:
    """Names that models do not take are mended; the server gets its own."""
    async with mcp_tools(url=url, only=["add", "let.go"], prefix="office_") as tools:
        assert [tool.name for tool in tools] == ["office_add", "office_let_go"]
    async with mcp_tools(url=url, exclude=["die"]) as tools:
        assert "die" not in named(tools)
        assert "add" in named(tools)


@pytest.mark.parametrize(
    "choice", [{"only": ["ad"]}, {"exclude": ["did"]}, {"approve": {"dye": True}}]
)
async def test_a_name_that_the_server_does_not_have_is_refused(
    url: str, choice: dict[str, object]
) -> None:
    """An approval with a slip of the pen in it would be none."""
    with pytest.raises(Misconfigured, match="the server has no tool"):
        async with mcp_tools(url=url, **choice):  # type: ignore[arg-type]  # one of each kind
            pass


async def test_a_person_approves_the_calls_that_one_names(url: str) -> None:
    """And only those."""
    turns = (Use("add", a=1), Use("greet", name="Ada"), "Done.")
    options = mcp_tools(url=url, approve={"greet": True})
    async with options as tools, clerk(tools, *turns) as midrun:
        run = await midrun.start("clerk", "go")
        (ask,) = (await run.until("waiting")).asks
        assert ask.kind == "approval"
        assert await results(run) == [{"sum": 2}]
        await run.approve()
        assert isinstance(await run.result(), Completed)
        assert await results(run) == [{"sum": 2}, "Hello Ada."]


async def test_an_approval_may_be_for_all_and_depend_on_the_arguments(url: str) -> None:
    """As that of any tool."""
    async with mcp_tools(url=url, approve=lambda args: "a" in args) as tools:
        assert named(tools)["add"].traits_for({"a": 1}).approve == "block"
        assert named(tools)["greet"].traits_for({"name": "Ada"}).approve == ""
    async with mcp_tools(url=url, approve="queue") as tools:
        assert {tool.traits.approve for tool in tools} == {"queue"}


async def test_a_tool_that_cannot_be_offered_is_named() -> None:
    """Whoever opened the server did not write it, and can only leave the tool out."""
    why = Listed(name="x", input_schema={"type": "object", "properties": {"why": {}}})
    long = Listed(name="x" * 65, input_schema={"type": "object"})
    with pytest.raises(Misconfigured, match="an argument `why`"):
        await offered(why)
    with pytest.raises(Misconfigured, match="64 letters"):
        await offered(long)
    assert await offered(why, choice=ALL._replace(exclude=["x"])) == []


async def test_a_schema_may_say_next_to_nothing() -> None:
    """Many servers declare a tool without arguments as an object, and no more."""
    (tool,) = await offered(Listed(name="now", input_schema={"type": "object"}))
    assert tool.schema == {"type": "object", "properties": {}}
    assert tool.parse(None) == {}
    assert tool.parse({"call": 1, "self": 2}) == {"call": 1, "self": 2}


def test_what_costs_nothing_is_checked_before_the_server_is_asked() -> None:
    """The rest of the schema is the server's to check."""
    schema: dict[str, Json] = {
        "properties": {"a": {"type": "integer"}, "b": {}},
        "required": ["a"],
    }
    arguments = ServerArguments({**schema, "additionalProperties": False})
    assert arguments.parse({"a": "not a number", "b": None}) == {"a": "not a number", "b": None}
    with pytest.raises(BadArguments, match=r"a: is required; c: no such argument.*: a, b"):
        arguments.parse({"c": 1})
    with pytest.raises(BadArguments, match="expected an object"):
        arguments.parse([1])
    assert ServerArguments(schema).parse({"a": 1, "c": 2}) == {"a": 1, "c": 2}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"command": ["x"], "url": "http://x"},
        {"command": ["x"], "headers": {}},
        {"url": "http://x", "env": {}},
        {"command": "python server.py"},
        {"command": []},
    ],
)
async def test_what_names_no_server_is_refused(given: dict[str, object]) -> None:
    """Before anything is started."""
    with pytest.raises(Misconfigured, match="command"):
        async with mcp_tools(**given):  # type: ignore[arg-type]  # one of each kind
            pass


async def test_without_the_extra_one_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As for a provider of models."""
    for module in ("connection", "elicitation", "results", "tools"):
        monkeypatch.delitem(sys.modules, f"midrun.mcp.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(Misconfigured, match=r"Install midrun\[mcp\]"):
        async with mcp_tools(command=["never"]):
            pass
