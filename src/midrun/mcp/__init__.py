"""Tools that live in MCP servers, over stdio or streamable HTTP; needs `midrun[mcp]`."""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from importlib import import_module

import anyio.to_thread

from midrun.agents.tool import Approve, Tool
from midrun.agents.tool_environment import EnvironmentOption, declare_environment
from midrun.errors import Misconfigured

__all__ = ["mcp_tools"]


@asynccontextmanager
async def mcp_tools(  # noqa: PLR0913 - one keyword per choice
    *,
    command: Sequence[str] | None = None,
    env: EnvironmentOption = None,
    url: str | None = None,
    headers: Mapping[str, str] | None = None,
    prefix: str = "",
    only: Collection[str] | None = None,
    exclude: Collection[str] = (),
    approve: Approve | Mapping[str, Approve] = False,
    timeout: timedelta | None = None,  # noqa: ASYNC109 - of each call, as `tool` has it
    trust_hints: bool = False,
) -> AsyncGenerator[list[Tool], None]:
    """Give the tools of an MCP server, for as long as the context is open.

    A call that is aborted is aborted in the server, too. What the server tells about its
    progress becomes notes, and an error of a tool is told to the model. A server that is gone
    takes nobody along: calls fail, in words. One with a `url` is connected to anew by the next
    call; one with a `command` is not started again, because what it knew went with it.

    Args:
        command: Starts a server that is spoken to over stdio. It ends with the context.
        env: Variables for it, besides PATH, HOME and a few more: a list of names to copy, a
            dict of values, or "inherit" for all but MIDRUN_*.
        url: Where a server is that is there already, for instance http://127.0.0.1:8000/mcp.
        headers: Sent with each request to it.
        prefix: Put before every name, to tell the tools of two servers apart.
        only: The tools to take, by the server's own names; otherwise all.
        exclude: The tools to leave out.
        approve: Whether a person decides first, as in `tool`; or that for each name.
        timeout: After this a call is aborted.
        trust_hints: Believe the server where it says that a tool only reads, or is idempotent:
            such calls may be made twice. Otherwise its hints are shown, and decide nothing.

    Raises:
        Misconfigured: it cannot work like this; the text says what to do.
        ToolsUnreachable: the server cannot be started, or does not answer.
    """
    try:
        # Late, for those who use it; and aside, because the SDK takes a second to import.
        await anyio.to_thread.run_sync(import_module, "midrun.mcp.tools")
        from midrun.mcp.connection import Connection, server_of  # noqa: PLC0415 - as said
        from midrun.mcp.tools import Choice, tools_of  # noqa: PLC0415 - as said
    except ImportError as error:
        raise Misconfigured("mcp_tools", f"install midrun[mcp] ({error})") from error
    declared = None if env is None else declare_environment("mcp_tools", "env", env)
    server = server_of(command=command, env=declared, url=url, headers=headers)
    choice = Choice(
        prefix=prefix,
        only=only,
        exclude=exclude,
        approve=approve,
        timeout=timeout,
        trust_hints=trust_hints,
    )
    async with Connection(server) as connection:
        yield tools_of(connection, choice)
