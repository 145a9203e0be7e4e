"""`McpConnection`: a connection to one MCP server that survives broken sessions.

The MCP SDK uses task groups that cancel the task which entered them when the connection breaks;
over HTTP one failed request is enough. If a worker's task entered such a group, a broken server
would cancel the worker. So each session lives in a task of its own (`_hold_session`), which
catches the failure. Calls run in the tasks of the worker and only exchange messages with the
session. A call that is cancelled tells the server (with a message, or by closing the response
stream, depending on the transport), and the session continues.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple, Self, TypeAlias, cast
from urllib.parse import urlsplit

import anyio
from anyio.abc import TaskStatus
from httpx2 import AsyncClient, Timeout
from mcp import Client, ClientSession, MCPError, StdioServerParameters, stdio_client
from mcp.client import ClientRequestContext, Transport
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CONNECTION_CLOSED,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    ElicitRequestParams,
    ElicitResult,
    InputRequiredResult,
    InputResponses,
    RequestParamsMeta,
)
from mcp_types import Tool as Listed
from pydantic import TypeAdapter, ValidationError

from midrun.agents.tool_context import Call
from midrun.agents.tool_environment import NOTHING_DECLARED, ToolEnvironment
from midrun.codec.safe_repr import safe_str
from midrun.core.values import Json
from midrun.errors import Misconfigured, OutcomeUnknown, ToolsUnreachable
from midrun.mcp.results import (
    ToolFailed,
    ask_for_input,
    convert_result,
    extract_files,
    read_responses,
)

CONNECT_TIMEOUT_S: Final = 60.0
"""Seconds for a server to start and to list its tools. Some are downloaded at their start."""

CLOSE_TIMEOUT_S: Final = 5.0
"""Seconds for a session to close."""

REQUEST_TIMEOUT_S: Final = 30.0
"""Seconds to connect, and to send one request, over HTTP. The response has no time limit here:
a call is bounded by its own `timeout`."""

MESSAGE_MAX_BYTES: Final = 16 * 1024 * 1024
"""Bytes of one message over HTTP: a result that can be journaled, and its attachments."""

PAGES_MAX: Final = 100
"""Pages of the list of tools that are read, in case a server sends an endless list."""

RETRIES_MAX: Final = 100
"""The number of times that a server may postpone a call: ask to send it again later, without a
question for a person."""

RETRY_DELAY_MAX_S: Final = 2.0
"""The longest delay in seconds before a postponed call is sent again."""

CallResponse: TypeAlias = CallToolResult | InputRequiredResult

CALL_RESPONSE_ADAPTER: Final[TypeAdapter[CallResponse]] = TypeAdapter(CallResponse)

META_KEY_NAME: Final = "dev.midrun/key"
"""The name in the `_meta` of a request under which a server finds `Call.key`."""


class McpServerAddress(NamedTuple):
    """The address of a server.

    `display_name` names it in errors, which models read and journals store, so it contains no
    arguments, passwords or queries. `open_transport` opens a connection. `can_reconnect` is
    False for a process that this connection started: its state is lost when it ends.
    """

    display_name: str
    open_transport: Callable[[], Transport]
    can_reconnect: bool


def make_server_address(
    *,
    command: Sequence[str] | None,
    env: ToolEnvironment | None,
    url: str | None,
    headers: Mapping[str, str] | None,
) -> McpServerAddress:
    """Return the server for the arguments of `mcp_tools`.

    Raises:
        Misconfigured: The arguments name no server, or more than one.
    """
    if command is not None and url is None and headers is None:
        return _make_stdio_address(command, env or NOTHING_DECLARED)
    if url is not None and command is None and env is None:
        return _make_http_address(url, headers or {})
    problem = "Pass either a command (with env) or a url (with headers)."
    raise Misconfigured("mcp_tools", problem)


def _make_stdio_address(command: Sequence[str], env: ToolEnvironment) -> McpServerAddress:
    if isinstance(command, str) or not command:
        problem = f'command must be a list, as ["python", "server.py"], got {command!r}'
        raise Misconfigured("mcp_tools", problem)
    parameters = StdioServerParameters(
        command=command[0], args=list(command[1:]), env=env.variables()
    )
    return McpServerAddress(
        Path(command[0]).name, lambda: stdio_client(parameters), can_reconnect=False
    )


def _make_http_address(url: str, headers: Mapping[str, str]) -> McpServerAddress:
    parts = urlsplit(url)
    # Without user, password and query.
    display_name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @asynccontextmanager
    async def open_transport() -> AsyncGenerator[object, None]:
        timeout = Timeout(REQUEST_TIMEOUT_S, read=None)
        async with (
            AsyncClient(headers=dict(headers), timeout=timeout) as http,
            streamable_http_client(
                url, http_client=http, max_sse_event_size=MESSAGE_MAX_BYTES
            ) as streams,
        ):
            yield streams

    return McpServerAddress(display_name, open_transport, can_reconnect=True)  # type: ignore[arg-type]  # it yields the SDK's streams


class McpConnection:
    """A connection to a server, while the context is open. Reconnects if it may.

    `listed_tools` are the tools of the server, from the newest session. Entering the context
    raises `ToolsUnreachable` if the server does not answer.
    """

    def __init__(self, server: McpServerAddress) -> None:
        self.listed_tools: list[Listed] = []
        self._server = server
        self._session: ClientSession | None = None
        self._open_lock = anyio.Lock()
        self._closed = anyio.Event()
        self._tasks = anyio.create_task_group()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        # `__aexit__` is not called if entering fails, so clean up here.
        try:
            await self._require_session()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def _close(self) -> None:
        """End the session, and the server process if this connection started it."""
        self._closed.set()
        # The close runs to its end even if the caller is being cancelled, but not longer than
        # its limit.
        self._tasks.cancel_scope.shield = True
        self._tasks.cancel_scope.deadline = anyio.current_time() + CLOSE_TIMEOUT_S
        # Without the caller's exception: the task group would wrap it.
        await self._tasks.__aexit__(None, None, None)

    async def call(self, tool: str, arguments: dict[str, object], call: Call) -> Json:
        """Make a call in the server, and return its result. May be called from any task.

        Raises:
            ToolFailed: The tool reports an error, or the server refuses the call.
            ToolsUnreachable: There is no connection; the call was not sent.
            OutcomeUnknown: The call was sent, and the connection broke before the response.
            PauseHere: The server needs input from a person to complete the call.
        """
        # After a question of the server: the answers, and the state that it sent with it.
        responses, state = read_responses(call.answered)
        for attempt in range(RETRIES_MAX):
            result = await self._send_request(tool, arguments, call, responses, state)
            if isinstance(result, CallToolResult):
                value, files = convert_result(result), extract_files(result)
                return [value, *files] if files else value
            if result.input_requests:
                ask_for_input(result)  # raises PauseHere
            # Without questions, the server only asks to send the call again later.
            responses, state = None, result.request_state
            await anyio.sleep(min(0.05 * 2**attempt, RETRY_DELAY_MAX_S))
        raise ToolFailed(
            f"Cannot complete the call: the server put it off {RETRIES_MAX} times."
        )

    async def _send_request(
        self,
        tool: str,
        arguments: dict[str, object],
        call: Call,
        responses: InputResponses | None,
        state: str | None,
    ) -> CallResponse:
        """Send one request for the call, with the answers to the server's questions."""

        async def note(progress: float, total: float | None, message: str | None) -> None:
            await call.note(_format_progress(progress, total, message))

        session = await self._require_session()
        meta = cast("RequestParamsMeta", {META_KEY_NAME: call.key})
        params = CallToolRequestParams(
            name=tool,
            arguments=arguments,
            input_responses=responses,
            request_state=state,
            _meta=meta,
        )
        try:
            # Not `call_tool` of the SDK: it validates the result against the tool's output
            # schema and raises if it does not match. The result of a call that has had its
            # effect would be lost.
            return await session.send_request(
                CallToolRequest(params=params), CALL_RESPONSE_ADAPTER, progress_callback=note
            )
        except MCPError as error:
            if error.code != CONNECTION_CLOSED:
                raise ToolFailed(error.message) from error
            # The request may have reached the server, so the outcome is unknown. A process that
            # we started is gone for good: refuse later calls.
            if not self._server.can_reconnect:
                self._closed.set()
            raise OutcomeUnknown(
                f"server {self._server.display_name}: {error.message}"
            ) from error
        except ValidationError as error:
            # A response came, but it cannot be read: the call may have had its effect.
            problem = f"the server's answer is not one of MCP: {safe_str(error)}"
            raise OutcomeUnknown(problem) from error

    async def _require_session(self) -> ClientSession:
        """Return the session; open one if there is none.

        Raises:
            ToolsUnreachable: The server does not answer, or the connection was closed.
        """
        async with self._open_lock:  # of several calls at once, one connects
            if self._closed.is_set():
                problem = "the connection has ended, and the call was not made"
                raise ToolsUnreachable(self._server.display_name, problem)
            if self._session is None:
                await self._open_session()
            if self._session is None:  # it broke between its start and here
                raise ToolsUnreachable(self._server.display_name, "it went away at once")
            return self._session

    async def _open_session(self) -> None:
        try:
            with anyio.fail_after(CONNECT_TIMEOUT_S):
                await self._tasks.start(self._hold_session)
        except TimeoutError as error:
            problem = f"no answer within {CONNECT_TIMEOUT_S:g} s"
            raise ToolsUnreachable(self._server.display_name, problem) from error
        except Exception as error:
            raise ToolsUnreachable(self._server.display_name, _format_error(error)) from error

    async def _hold_session(self, *, task_status: TaskStatus[None]) -> None:
        """Hold a session open until the connection is closed or the session breaks."""
        try:
            async with Client(self._server.open_transport(), cache=None) as client:
                _declare_elicitation(client.session)
                self.listed_tools = await _list_tools(client)
                self._session = client.session
                task_status.started()
                await self._closed.wait()
        except Exception:
            if self._session is None:
                raise  # it never started: `tasks.start` raises this to `_open_session`
            # It broke later. The SDK has failed each call in flight with CONNECTION_CLOSED, so
            # there is nothing to do. Raised here, it would end the task group and this
            # connection with it.
        finally:
            self._session = None


def _declare_elicitation(session: ClientSession) -> None:
    """Declare to the server that it may ask people, if the protocol allows late answers.

    In older protocols a question is asked during the call and must be answered by this process.
    Such a question would not survive a restart, so the capability is not declared for them.
    """
    # The SDK declares the capability if a callback is set, for every version of the protocol.
    # So it is set here, when the version is known. In the new protocol it is never called: the
    # questions come as the result of the call.
    if session.discover_result is not None:
        session._elicitation_callback = _refuse_elicitation  # noqa: SLF001 - see above
        session.adopt(session.discover_result)


async def _refuse_elicitation(
    context: ClientRequestContext, params: ElicitRequestParams
) -> ElicitResult:
    del context, params
    return ElicitResult(action="cancel")


async def _list_tools(client: Client) -> list[Listed]:
    """Return all tools that the server lists.

    The list is also needed by the SDK's session, which learns from it which headers to send.
    """
    listed: list[Listed] = []
    cursor: str | None = None
    for _ in range(PAGES_MAX):
        page = await client.list_tools(cursor=cursor)
        listed += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return listed


def _format_progress(progress: float, total: float | None, message: str | None) -> str:
    amount = f"{progress:g}" if total is None else f"{progress:g} of {total:g}"
    return f"{message} ({amount})" if message else amount


def _format_error(error: BaseException) -> str:
    """Return the text of `error`; of an exception group, that of the first one inside."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {safe_str(error)}"
