"""The MCP server at `/mcp`: the tools of `midrun.mcp_server`, for the callers of this server.

A tool uses the client of Midrun. The requests of that client are served by this app, in this
process and for the caller of the MCP request (`_open_access`). So each tool has the rules of
the route that it uses: roles, owners, quotas, limits. Host, origin, credential and rate were
checked for the MCP request itself.

No session is kept: every MCP request is complete by itself. So a server can be restarted at any
time, and there may be several of them. The price: clients of protocols before 2026-07-28, which
need a session to show a form, get the open asks in the result of a call instead.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from midrun.errors import NotJson
from midrun.server.a2a.routes import ForwardedResponse, make_parse_error, parse_body
from midrun.server.problem_details import HttpProblem
from midrun.server.request_context import RequestContext, json_response

if TYPE_CHECKING:  # both import the optional SDK
    from midrun.mcp_server.run_tools import RunAccess
    from midrun.mcp_server.run_waits import RequestContext as McpContext

MCP_PATH: Final = "/mcp"
CONTEXT_SCOPE_KEY: Final = "midrun.visit"
IN_PROCESS_URL: Final = "http://in-process"
"""The address of this app for its own client; no name is looked up."""


async def handle_mcp(context: RequestContext) -> Response:
    """Handle a request of an MCP client: JSON-RPC over streamable HTTP."""
    if find_spec("mcp") is None:
        problem = (
            "Cannot serve MCP: its SDK is not installed. Run pip install 'midrun[mcp]' on the "
            "server."
        )
        raise HttpProblem("not_installed", 501, problem)
    text = await context.read_body()
    try:
        parse_body(context, text)
    except NotJson as error:
        return json_response(make_parse_error(error), 400)
    return ForwardedResponse(_make_asgi_app(), context, MCP_PATH, text)


@cache
def _make_asgi_app() -> ASGIApp:
    from mcp.server.streamable_http_manager import (  # noqa: PLC0415 - imports the optional SDK
        StreamableHTTPSessionManager,
    )

    from midrun.mcp_server.server import make_mcp_server  # noqa: PLC0415 - as above

    server = make_mcp_server(_open_access)

    async def serve_request(scope: Scope, receive: Receive, send: Send) -> None:
        # One manager for each request: its task group must not outlive the request.
        manager = StreamableHTTPSessionManager(server, stateless=True)
        async with manager.run():
            await manager.handle_request(scope, receive, send)

    return serve_request


@asynccontextmanager
async def _open_access(mcp_context: "McpContext") -> "AsyncIterator[RunAccess]":
    """Give the runs that the caller of an MCP request may reach."""
    from midrun.client.in_process import InProcessTransport  # noqa: PLC0415 - needs httpx2
    from midrun.client.midrun import RemoteMidrun  # noqa: PLC0415 - needs httpx2
    from midrun.mcp_server.run_tools import RunAccess  # noqa: PLC0415 - needs the SDK

    assert mcp_context.request is not None  # the transport is HTTP
    outer: Scope = mcp_context.request.scope
    context: RequestContext = outer[CONTEXT_SCOPE_KEY]
    facts = {name: outer.get(name) for name in ("scheme", "server", "client")}
    transport = InProcessTransport(partial(context.server.serve_caller, context.caller), facts)
    async with RemoteMidrun(IN_PROCESS_URL, None, patience=0, http=transport) as midrun:
        yield RunAccess(midrun)
