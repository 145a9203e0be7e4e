"""Make tools from the list of an MCP server: select, rename, and decide about its hints.

A server is not trusted. By default each of its tools is treated as having an effect that must
not happen twice, and its hints are only quoted in the description.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Final, NamedTuple, cast

from mcp_types import Tool as Listed
from mcp_types import ToolAnnotations

from midrun.agents.signature import Function, SchemaArguments
from midrun.agents.tool import (
    INVALID_NAME_CHARACTER,
    TOOL_NAME_PATTERN,
    Approve,
    Tool,
    choose_gate,
)
from midrun.agents.tool_context import Call
from midrun.core.values import Effect, Json, Traits
from midrun.errors import Misconfigured
from midrun.mcp.connection import McpConnection
from midrun.mcp.results import PromptText, convert_prompt

LIST_RESOURCES: Final = "list_resources"
READ_RESOURCE: Final = "read_resource"

NO_ARGUMENTS_SCHEMA: Final[dict[str, Json]] = {"type": "object", "properties": {}}
URI_SCHEMA: Final[dict[str, Json]] = {
    "type": "object",
    "properties": {"uri": {"type": "string", "description": "the address of the resource"}},
    "required": ["uri"],
}


class McpTools(list[Tool]):
    """The tools of an MCP server, and the prompts that it offers to start runs with."""

    def __init__(self, tools: Iterable[Tool], connection: McpConnection) -> None:
        super().__init__(tools)
        self._connection = connection

    async def list_prompts(self) -> dict[str, str]:
        """Return the prompts of the server: each name with its description.

        Raises:
            ToolsUnreachable: The server does not answer.
        """
        return {
            prompt.name: prompt.description or prompt.title or ""
            for prompt in await self._connection.list_prompts()
        }

    async def get_prompt(self, name: str, /, **arguments: str) -> PromptText:
        """Return a prompt of the server: its `task`, and the `history` before it.

            prompt = await tools.get_prompt("review", file="app.py")
            run = await midrun.start(agent, prompt.task, history=prompt.history)

        Raises:
            Misconfigured: The prompt is not text that ends with a message of the user.
            ToolsUnreachable: The server does not answer.
        """
        return convert_prompt(name, await self._connection.get_prompt(name, arguments))


class ToolSelection(NamedTuple):
    """The options of `mcp_tools` that select and configure tools, by the server's names."""

    prefix: str
    only: Collection[str] | None
    exclude: Collection[str]
    approve: Approve | Mapping[str, Approve]
    timeout: timedelta | None
    trust_hints: bool
    with_resources: bool

    def is_selected(self, name: str) -> bool:
        """Tell whether the tool with this name is selected."""
        return name not in self.exclude and (self.only is None or name in self.only)

    def find_approval(self, name: str) -> Approve:
        """Return the value of `approve` for the tool with this name."""
        if isinstance(self.approve, Mapping):
            return self.approve.get(name, False)
        return self.approve

    def list_names(self) -> set[str]:
        """Return all names that the options mention."""
        approved = self.approve if isinstance(self.approve, Mapping) else ()
        return {*(self.only or ()), *self.exclude, *approved}


def make_tools(connection: McpConnection, selection: ToolSelection) -> McpTools:
    """Return the selected tools, in the order of the server.

    Raises:
        Misconfigured: The options name a tool that the server does not have, or a tool cannot
            be offered to models.
    """
    names = [listed.name for listed in connection.listed_tools]
    if selection.with_resources:
        names += [LIST_RESOURCES, READ_RESOURCE]
    if unknown := selection.list_names().difference(names):
        # Not ignored: with a typing error in `approve` or `exclude`, a tool would be available
        # without the approval that was meant for it.
        problem = (
            f"the server has no tool {', '.join(sorted(unknown))}. It has: "
            f"{', '.join(names) or 'none'}."
        )
        raise Misconfigured("mcp_tools", problem)
    tools = [
        _make_tool(connection, listed, selection)
        for listed in connection.listed_tools
        if selection.is_selected(listed.name)
    ]
    if selection.with_resources:
        if connection.capabilities.resources is None:
            raise Misconfigured("mcp_tools", "the server has no resources; drop resources=True")
        tools += _make_resource_tools(connection, selection)
    return McpTools(tools, connection)


def _make_resource_tools(connection: McpConnection, selection: ToolSelection) -> Iterator[Tool]:
    """Yield the tools that list and read resources; reading has no effect by definition."""

    async def list_resources(call: Call, /) -> Json:
        return await connection.list_resources(call)

    async def read_resource(call: Call, /, uri: str) -> Json:
        return await connection.read_resource(uri, call)

    for name, function, schema, description in (
        (LIST_RESOURCES, list_resources, NO_ARGUMENTS_SCHEMA, "List the server's resources."),
        (READ_RESOURCE, read_resource, URI_SCHEMA, "Read a resource of the server."),
    ):
        if selection.is_selected(name):
            approve = selection.find_approval(name)
            yield Tool(
                name=selection.prefix + name,
                description=description,
                fn=function,
                arguments=SchemaArguments(schema),
                traits=Traits(effect=Effect.READ, approve=choose_gate(approve)),
                approve=approve,
                timeout=selection.timeout,
            )


def _make_tool(connection: McpConnection, listed: Listed, selection: ToolSelection) -> Tool:
    name = selection.prefix + INVALID_NAME_CHARACTER.sub("_", listed.name)
    arguments = SchemaArguments(cast("dict[str, Json]", listed.input_schema))
    if not TOOL_NAME_PATTERN.fullmatch(name):
        problem = (
            "Models accept names of 1 to 64 letters, digits, _ and - only. Exclude it, or "
            "change the prefix."
        )
        raise Misconfigured(f"tool {name}", problem)
    if "why" in arguments.schema["properties"]:  # type: ignore[operator]  # always a dict
        problem = (
            "Cannot offer a tool with an argument `why`: the name is reserved for the model's "
            f'reason. Exclude it: exclude=["{listed.name}"].'
        )
        raise Misconfigured(f"tool {name}", problem)
    approve = selection.find_approval(listed.name)
    effect = _find_effect(listed.annotations) if selection.trust_hints else Effect.ONCE
    return Tool(
        name=name,
        description=_make_description(listed),
        fn=_make_function(connection, listed.name),
        arguments=arguments,
        traits=Traits(effect=effect, approve=choose_gate(approve)),
        approve=approve,
        timeout=selection.timeout,
    )


def _make_function(connection: McpConnection, name: str) -> Function:
    # `call` is positional-only, because the server's tool may have an argument of that name.
    async def call_the_server(call: Call, /, **arguments: object) -> Json:
        return await connection.call(name, arguments, call)

    return call_the_server


def _find_effect(hints: ToolAnnotations | None) -> Effect:
    if hints and hints.read_only_hint:
        return Effect.READ
    return Effect.IDEMPOTENT if hints and hints.idempotent_hint else Effect.ONCE


def _make_description(listed: Listed) -> str:
    """Return the server's description of the tool, followed by its hints."""
    hints = listed.annotations or ToolAnnotations()
    texts = {
        "it changes nothing": hints.read_only_hint,
        "making a call twice is making it once": hints.idempotent_hint,
        "it may destroy something": hints.destructive_hint,
    }
    hinted = "; ".join(text for text, is_hinted in texts.items() if is_hinted)
    text = listed.description or listed.title or ""
    quoted = hinted and f"(The server says: {hinted}.)"
    return "\n\n".join(part for part in (text, quoted) if part)
