"""From what an MCP server lists to tools: which, by which names, and how far it is believed."""

import re
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Final, NamedTuple, cast

from mcp_types import Tool as Listed
from mcp_types import ToolAnnotations

from midrun.agents.signature import BadArguments, Function
from midrun.agents.tool import NAME, Approve, Tool, gate_of
from midrun.agents.tool_context import Call
from midrun.codec.safe_repr import safe_str
from midrun.core.values import Effect, Json, Traits
from midrun.errors import Misconfigured
from midrun.mcp.connection import Connection

UNFIT: Final = re.compile(r"[^A-Za-z0-9_-]")
"""What MCP allows in the name of a tool, and models do not: `files.read`, for one."""


class Choice(NamedTuple):
    """What is wanted of a server; see `mcp_tools`. Names are those of the server."""

    prefix: str
    only: Collection[str] | None
    exclude: Collection[str]
    approve: Approve | Mapping[str, Approve]
    timeout: timedelta | None
    trust_hints: bool

    def takes(self, name: str) -> bool:
        """Tell whether the tool of this name is wanted."""
        return name not in self.exclude and (self.only is None or name in self.only)

    def approval(self, name: str) -> Approve:
        """Return who decides on its calls."""
        if isinstance(self.approve, Mapping):
            return self.approve.get(name, False)
        return self.approve

    def named(self) -> set[str]:
        """Return every name that the choice mentions."""
        approved = self.approve if isinstance(self.approve, Mapping) else ()
        return {*(self.only or ()), *self.exclude, *approved}


class ServerArguments:
    """What a tool takes, as its server declares it.

    Only what costs nothing is checked here: that it is an object, with what is required and
    without what is ruled out. The rest of the schema is for the server to hold it against.
    """

    takes_call = True

    def __init__(self, declared: dict[str, Json]) -> None:
        properties = declared.get("properties")
        required = declared.get("required")
        self._known = properties if isinstance(properties, dict) else {}
        self._required = required if isinstance(required, list) else []
        self._closed = declared.get("additionalProperties") is False
        self.schema: dict[str, Json] = {
            **declared,
            "type": "object",
            "properties": self._known,
        }

    def parse(self, args: Json) -> dict[str, object]:
        """Return the arguments to send.

        Raises:
            BadArguments: they do not fit; every problem is named.
        """
        given = {} if args is None else args
        names = ", ".join(self._known) or "none"
        if not isinstance(given, dict):
            raise BadArguments(f"expected an object with the arguments: {names}")
        problems = [f"{name}: is required" for name in self._required if name not in given]
        if self._closed and "patternProperties" not in self.schema:
            problems += [
                f"{safe_str(name, 60)}: no such argument, the arguments: {names}"
                for name in given
                if name not in self._known
            ]
        if problems:
            raise BadArguments("; ".join(problems[:10]))
        return dict(given)


def tools_of(connection: Connection, choice: Choice) -> list[Tool]:
    """Return the tools that are wanted, in the order of the server.

    Raises:
        Misconfigured: one that is mentioned does not exist, or one cannot be offered.
    """
    names = [listed.name for listed in connection.listed]
    if unknown := choice.named().difference(names):
        # An approval, or an exclusion, with a slip of the pen in it must not be passed over.
        problem = f"the server has no tool {', '.join(sorted(unknown))}"
        raise Misconfigured("mcp_tools", f"{problem}; it has: {', '.join(names) or 'none'}")
    return [_tool(connection, it, choice) for it in connection.listed if choice.takes(it.name)]


def _tool(connection: Connection, listed: Listed, choice: Choice) -> Tool:
    name = choice.prefix + UNFIT.sub("_", listed.name)
    arguments = ServerArguments(cast("dict[str, Json]", listed.input_schema))
    if not NAME.fullmatch(name):
        problem = "models need a name of up to 64 letters, digits, _ and -; exclude it, or"
        raise Misconfigured(f"tool {name}", f"{problem} change the prefix")
    if "why" in arguments.schema["properties"]:  # type: ignore[operator]  # a dict, always
        problem = "has an argument why, under which every call may say why it is made"
        raise Misconfigured(f"tool {name}", f'{problem}; exclude it: exclude=["{listed.name}"]')
    approve = choice.approval(listed.name)
    effect = _effect(listed.annotations) if choice.trust_hints else Effect.ONCE
    return Tool(
        name=name,
        description=_described(listed),
        fn=_function(connection, listed.name),
        arguments=arguments,  # type: ignore[arg-type]  # has all that a tool asks of them
        traits=Traits(effect=effect, approve=gate_of(approve)),
        approve=approve,
        timeout=choice.timeout,
    )


def _function(connection: Connection, name: str) -> Function:
    async def call_the_server(call: Call, /, **arguments: object) -> Json:
        return await connection.call(name, arguments, call)

    return call_the_server


def _effect(hints: ToolAnnotations | None) -> Effect:
    if hints and hints.read_only_hint:
        return Effect.READ
    return Effect.IDEMPOTENT if hints and hints.idempotent_hint else Effect.ONCE


def _described(listed: Listed) -> str:
    """Return what the server says of the tool, and which hints it gives."""
    hints = listed.annotations or ToolAnnotations()
    given = {
        "it changes nothing": hints.read_only_hint,
        "making a call twice is making it once": hints.idempotent_hint,
        "it may destroy something": hints.destructive_hint,
    }
    said = "; ".join(words for words, so in given.items() if so)
    text = listed.description or listed.title or ""
    return "\n\n".join(part for part in (text, said and f"(The server says: {said}.)") if part)
