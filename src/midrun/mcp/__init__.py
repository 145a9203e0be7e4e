"""Tools of MCP servers, over stdio or streamable HTTP. Needs `midrun[mcp]`.

`mcp_tools` opens an `McpConnection` (`connection.py`) and makes a `Tool` of each tool that the
server lists (`tools.py`); two more tools list and read its resources. A call of such a tool
sends one request to the server; `results.py` converts the response to JSON for the journal. If
the server needs input from a person first, `results.py` turns its questions into asks, and the
call is sent again with the answers.

Invariants: an error of the server or of the connection fails a call, never the run; a call that
may have reached the server and was not answered is reported as unknown, never as failed; a call
carries its idempotency key in `_meta`. Descriptions and hints of a server are untrusted: they
do not change how a call is retried or approved, unless `trust_hints` is set. Start reading at
`McpConnection.call`.
"""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING

import anyio.to_thread

from midrun.agents.tool import Approve
from midrun.agents.tool_environment import EnvironmentOption, declare_environment
from midrun.errors import Misconfigured

if TYPE_CHECKING:  # it imports the optional SDK
    from midrun.mcp.tools import McpTools

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
    resources: bool = False,
) -> AsyncGenerator["McpTools", None]:
    """Open a connection to an MCP server, and give its tools while the context is open.

    The tools are a list, which also has the prompts of the server (`get_prompt`). Aborting a
    call cancels it in the server. Progress reports of the server become notes.

    If the connection breaks, the outcome of calls in flight is unknown. The next call connects
    again; the process of a `command` is started again, without its state in memory.

    Args:
        command: The command line of a server to start, connected over stdio. It ends with the
            context.
        env: Variables for it, besides PATH, HOME and a few more: a list of names to copy, a
            dict of values, or "inherit" for all but MIDRUN_*.
        url: The address of a running server, as http://127.0.0.1:8000/mcp.
        headers: HTTP headers for each request to the `url`.
        prefix: Added before each name, to tell the tools of two servers apart.
        only: The tools to take, by the names that the server uses. Default: all.
        exclude: The tools to leave out.
        approve: As in `tool`, for all tools; or a dict with a value for each name.
        timeout: A call that takes longer is aborted.
        trust_hints: Trust the server's hints that a tool is read-only or idempotent. Calls of
            such tools may be repeated. Without it, hints are only shown to the model.
        resources: Add the tools `list_resources` and `read_resource`.

    Raises:
        Misconfigured: The arguments are not valid, or the server has no such tool.
        ToolsUnreachable: The server cannot be started, or does not answer.
    """
    try:
        # In a thread: the MCP SDK takes a second to import. The dependency is optional.
        await anyio.to_thread.run_sync(import_module, "midrun.mcp.tools")
        from midrun.mcp.connection import McpConnection, make_server_address  # noqa: PLC0415 - see above
        from midrun.mcp.tools import ToolSelection, make_tools  # noqa: PLC0415 - see above
    except ImportError as error:
        problem = f"Cannot import the MCP SDK: {error}. Install midrun[mcp]."
        raise Misconfigured("mcp_tools", problem) from error
    declared = None if env is None else declare_environment("mcp_tools", "env", env)
    server = make_server_address(command=command, env=declared, url=url, headers=headers)
    choice = ToolSelection(
        prefix, only, exclude, approve, timeout, trust_hints, with_resources=resources
    )
    async with McpConnection(server) as connection:
        yield make_tools(connection, choice)
