"""Make tools from the list of an MCP server: select, rename, and decide about its hints.

A server is not trusted. By default each of its tools is treated as having an effect that must
not happen twice, and its hints are only quoted in the description.
"""

import re
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Final, NamedTuple, cast

from mcp_types import Tool as Listed
from mcp_types import ToolAnnotations

from midrun.agents.signature import BadArguments, Function
from midrun.agents.tool import TOOL_NAME_PATTERN, Approve, Tool, choose_gate
from midrun.agents.tool_context import Call
from midrun.codec.safe_repr import safe_str
from midrun.core.values import Effect, Json, Traits
from midrun.errors import Misconfigured
from midrun.mcp.connection import McpConnection

INVALID_NAME_CHARACTER: Final = re.compile(r"[^A-Za-z0-9_-]")
"""Characters that MCP allows in the name of a tool and models do not, as in `files.read`."""


class ToolSelection(NamedTuple):
    """The options of `mcp_tools` that select and configure tools, by the server's names."""

    prefix: str
    only: Collection[str] | None
    exclude: Collection[str]
    approve: Approve | Mapping[str, Approve]
    timeout: timedelta | None
    trust_hints: bool

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


class ServerArguments:
    """The arguments of a tool, by the schema that its server declares.

    Only simple rules are checked here: the arguments are an object, required ones are present
    and forbidden ones are absent. The server checks the rest of the schema.
    """

    takes_call = True

    def __init__(self, declared: dict[str, Json]) -> None:
        properties = declared.get("properties")
        required = declared.get("required")
        self._properties = properties if isinstance(properties, dict) else {}
        self._required = required if isinstance(required, list) else []
        self._is_closed = declared.get("additionalProperties") is False
        self.schema: dict[str, Json] = {
            **declared,
            "type": "object",
            "properties": self._properties,
        }

    def parse(self, args: Json) -> dict[str, object]:
        """Check the arguments, and return them as they are sent.

        Raises:
            BadArguments: They do not match the schema. The text names up to ten problems.
        """
        values = {} if args is None else args
        names = ", ".join(self._properties) or "none"
        if not isinstance(values, dict):
            raise BadArguments(f"expected an object with the arguments: {names}")
        problems = [f"{name}: is required" for name in self._required if name not in values]
        # `patternProperties` may allow further names; the server checks those.
        if self._is_closed and "patternProperties" not in self.schema:
            problems += [
                f"{safe_str(name, 60)}: no such argument, the arguments: {names}"
                for name in values
                if name not in self._properties
            ]
        if problems:
            raise BadArguments("; ".join(problems[:10]))
        return dict(values)  # not the journaled object itself


def make_tools(connection: McpConnection, selection: ToolSelection) -> list[Tool]:
    """Return the selected tools, in the order of the server.

    Raises:
        Misconfigured: The options name a tool that the server does not have, or a tool cannot
            be offered to models.
    """
    names = [listed.name for listed in connection.listed_tools]
    if unknown := selection.list_names().difference(names):
        # Not ignored: with a typing error in `approve` or `exclude`, a tool would be available
        # without the approval that was meant for it.
        problem = (
            f"the server has no tool {', '.join(sorted(unknown))}. It has: "
            f"{', '.join(names) or 'none'}."
        )
        raise Misconfigured("mcp_tools", problem)
    return [
        _make_tool(connection, listed, selection)
        for listed in connection.listed_tools
        if selection.is_selected(listed.name)
    ]


def _make_tool(connection: McpConnection, listed: Listed, selection: ToolSelection) -> Tool:
    name = selection.prefix + INVALID_NAME_CHARACTER.sub("_", listed.name)
    arguments = ServerArguments(cast("dict[str, Json]", listed.input_schema))
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
        arguments=arguments,  # type: ignore[arg-type]  # has the attributes that a tool uses
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
