"""Serve tools to a program in another process, as an MCP server over streamable HTTP.

`open_tool_server` yields an ASGI app. It lists the tools, and hands each call to a function of
the caller, which journals and makes it. The server keeps no session: every request is complete
by itself, so a process can be started again at any time and continue.

The app checks no credential; its caller does.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeAlias, cast

import anyio
from mcp.server import streamable_http
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    ToolAnnotations,
)
from mcp_types import Tool as Listed
from sse_starlette import EventSourceResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from midrun.agents.tool import Tool
from midrun.codec.strict_json import normalize_json
from midrun.core.values import CallResult, Effect, Json
from midrun.errors import NotJson, TooLarge
from midrun.models.prompt_texts import format_result

SERVER_NAME: Final = "midrun"

CallTool: TypeAlias = Callable[[Tool, dict[str, Json]], Awaitable[CallResult]]
"""Makes a call, and returns its result or the problem."""

RequestContext: TypeAlias = ServerRequestContext[Any, Any]  # type: ignore[explicit-any]  # of the SDK


@asynccontextmanager
async def open_tool_server(
    tools: Sequence[Tool], call_tool: CallTool
) -> AsyncGenerator[ASGIApp, None]:
    """Serve `tools` while the context is open; yield the ASGI app."""
    by_name = {tool.name: tool for tool in tools}

    async def list_tools(
        _: RequestContext, __: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return ListToolsResult(tools=[_describe_tool(tool) for tool in tools])

    async def make_call(_: RequestContext, params: CallToolRequestParams) -> CallToolResult:
        tool = by_name.get(params.name)
        if tool is None:
            names = ", ".join(by_name) or "none"
            return _make_problem(f"there is no tool {params.name!r}; the tools are: {names}")
        try:
            args = normalize_json(params.arguments or {}, "arguments")
        except (NotJson, TooLarge) as error:
            return _make_problem(f"the arguments are not JSON: {error}")
        return _convert_outcome(await call_tool(tool, cast("dict[str, Json]", args)))

    server = Server(SERVER_NAME, on_list_tools=list_tools, on_call_tool=make_call)
    # Replies are streamed as events: the SDK sends pings while a call takes long, so that no
    # client gives it up.
    manager = StreamableHTTPSessionManager(server, stateless=True)

    async def handle_request(scope: Scope, receive: Receive, send: Send) -> None:
        _ignores_signals.set(True)  # in the context of this request
        await manager.handle_request(scope, receive, send)

    async with manager.run():
        yield handle_request


_ignores_signals: Final = ContextVar("midrun_ignores_signals", default=False)


class _EventStream(EventSourceResponse):
    """A response of the SDK; in requests to `open_tool_server`, it does not end at a signal.

    `sse_starlette`, which the SDK uses, ends streams when any server of the process has
    received a signal to stop, and never resets that. A worker that drains still waits for its
    calls: the process of a run would see its tool call broken off, and fail. The gateway ends
    its requests itself when the program has stopped.
    """

    @staticmethod
    async def _listen_for_exit_signal() -> None:
        if _ignores_signals.get():
            await anyio.sleep_forever()
        await EventSourceResponse._listen_for_exit_signal()  # noqa: SLF001 - overridden here


streamable_http.EventSourceResponse = _EventStream  # type: ignore[attr-defined]  # no option


def _describe_tool(tool: Tool) -> Listed:
    effect = tool.traits.effect
    return Listed(
        name=tool.name,
        description=tool.description,
        input_schema=tool.schema,
        annotations=ToolAnnotations(
            read_only_hint=effect is Effect.READ,
            idempotent_hint=effect is not Effect.ONCE,
        ),
    )


def _convert_outcome(outcome: CallResult) -> CallToolResult:
    if outcome.problem:
        return _make_problem(format_result(outcome))
    structured = outcome.result if isinstance(outcome.result, dict) else None
    text = TextContent(type="text", text=format_result(outcome))
    return CallToolResult(content=[text], structured_content=structured)


def _make_problem(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)
