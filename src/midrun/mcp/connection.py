"""`McpConnection`: a connection to one MCP server that survives broken sessions.

The MCP SDK uses task groups that cancel the task which entered them when the connection breaks;
over HTTP one failed request is enough. If a worker's task entered such a group, a broken server
would cancel the worker. So each session lives in a task of its own (`_hold_session`), which
catches the failure. Calls run in the tasks of the worker and only exchange messages with the
session. A call that is cancelled tells the server (with a message, or by closing the response
stream, depending on the transport), and the session continues.
"""

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, NamedTuple, Protocol, Self, TypeAlias, TypeVar, cast
from urllib.parse import urlsplit

import anyio
from anyio.abc import TaskStatus
from httpx2 import AsyncClient, Timeout
from mcp import Client, ClientSession, MCPError, StdioServerParameters, stdio_client
from mcp.client import ClientRequestContext, Transport
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_REQUEST,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    ElicitRequestParams,
    ElicitResult,
    GetPromptResult,
    InputRequiredResult,
    InputResponses,
    PaginatedRequestParams,
    PaginatedResult,
    ReadResourceRequest,
    ReadResourceRequestParams,
    ReadResourceResult,
    RequestParamsMeta,
    ServerCapabilities,
)
from mcp_types import Prompt as ListedPrompt
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
    convert_resource,
    convert_result,
    describe_resource,
    describe_template,
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

SESSION_LOST_CODES: Final = frozenset({INVALID_REQUEST, -32001})
"""The codes with which servers refuse a request of a session that they do not know: Python's
SDK sends the first, the one for TypeScript the second. The message then names the session."""

ServerRequest: TypeAlias = CallToolRequest | ReadResourceRequest
CallResponse: TypeAlias = CallToolResult | InputRequiredResult
ResourceResponse: TypeAlias = ReadResourceResult | InputRequiredResult
CALL_ADAPTER: Final[TypeAdapter[CallResponse]] = TypeAdapter(CallResponse)
RESOURCE_ADAPTER: Final[TypeAdapter[ResourceResponse]] = TypeAdapter(ResourceResponse)
ResultT = TypeVar("ResultT", CallToolResult, ReadResourceResult)
PageT_co = TypeVar("PageT_co", bound=PaginatedResult, covariant=True)

META_KEY_NAME: Final = "dev.midrun/key"
"""The name in the `_meta` of a request under which a server finds `Call.key`."""


class SessionLost(Exception):
    """The server does not know the session, so it has not looked at the request."""


class McpServerAddress(NamedTuple):
    """The address of a server.

    `display_name` names it in errors, which models read and journals store, so it contains no
    arguments, passwords or queries. `open_transport` opens a connection. `is_process` is True
    for a process that this connection starts: its state is lost when it ends.
    """

    display_name: str
    open_transport: Callable[[], Transport]
    is_process: bool


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
        Path(command[0]).name, lambda: stdio_client(parameters), is_process=True
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

    return McpServerAddress(display_name, open_transport, is_process=False)  # type: ignore[arg-type]  # it yields the SDK's streams


class McpConnection:
    """A connection to a server, while the context is open. Reconnects if it broke.

    `listed_tools` are the tools of the server, from the newest session; `capabilities` are
    those that the server declared. Entering the context raises `ToolsUnreachable` if the server
    does not answer.
    """

    def __init__(self, server: McpServerAddress) -> None:
        self.listed_tools: list[Listed] = []
        self.capabilities = ServerCapabilities()
        self._server = server
        self._session: ClientSession | None = None
        self._session_end = anyio.Event()  # set: the newest session is broken
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
        self._session_end.set()
        # The close runs to its end even if the caller is being cancelled, but not longer than
        # its limit.
        self._tasks.cancel_scope.shield = True
        self._tasks.cancel_scope.deadline = anyio.current_time() + CLOSE_TIMEOUT_S
        # Without the caller's exception: the task group would wrap it.
        await self._tasks.__aexit__(None, None, None)

    # ── requests of a run ─────────────────────────────────────────────────────────────────

    async def call(self, tool: str, arguments: dict[str, object], call: Call) -> Json:
        """Make a call in the server, and return its result. May be called from any task.

        Raises:
            ToolFailed: The tool reports an error, or the server refuses the call.
            ToolsUnreachable: There is no connection; the call was not sent.
            OutcomeUnknown: The call was sent, and the connection broke before the response.
            PauseHere: The server needs input from a person to complete the call.
        """
        meta = cast("RequestParamsMeta", {META_KEY_NAME: call.key})

        def make_request(responses: InputResponses | None, state: str | None) -> ServerRequest:
            params = CallToolRequestParams(
                name=tool,
                arguments=arguments,
                input_responses=responses,
                request_state=state,
                _meta=meta,
            )
            return CallToolRequest(params=params)

        # Not `call_tool` of the SDK: it validates the result against the tool's output schema
        # and raises if it does not match. The result of a call that has had its effect would be
        # lost.
        result = await self._complete(make_request, CALL_ADAPTER, call)
        value, files = convert_result(result), extract_files(result)
        return [value, *files] if files else value

    async def read_resource(self, uri: str, call: Call) -> Json:
        """Read a resource of the server; raises as `call` does."""

        def make_request(responses: InputResponses | None, state: str | None) -> ServerRequest:
            params = ReadResourceRequestParams(
                uri=uri, input_responses=responses, request_state=state
            )
            return ReadResourceRequest(params=params)

        return convert_resource(await self._complete(make_request, RESOURCE_ADAPTER, call))

    async def list_resources(self, call: Call) -> Json:
        """List the resources of the server, and the templates of their addresses."""
        session = await self._require_session(call)
        listed: list[Json] = []
        with self._translate_errors(session):
            async for page in _iter_pages(session.list_resources):
                listed += [describe_resource(resource) for resource in page.resources]
            async for templates in _iter_pages(session.list_resource_templates):
                listed += [describe_template(each) for each in templates.resource_templates]
        return listed

    async def _complete(
        self,
        make_request: Callable[[InputResponses | None, str | None], ServerRequest],
        adapter: TypeAdapter[ResultT | InputRequiredResult],
        call: Call,
    ) -> ResultT:
        """Send a request until the server has completed it, with a person's answers."""
        # After a question of the server: the answers, and the state that it sent with it.
        responses, state = read_responses(call.answered)
        for attempt in range(RETRIES_MAX):
            result = await self._send_request(make_request(responses, state), adapter, call)
            if not isinstance(result, InputRequiredResult):
                return result
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
        request: ServerRequest,
        adapter: TypeAdapter[ResultT | InputRequiredResult],
        call: Call,
    ) -> ResultT | InputRequiredResult:
        """Send one request; if the server has lost the session, once more in a new one."""

        async def note(progress: float, total: float | None, message: str | None) -> None:
            await call.note(_format_progress(progress, total, message))

        session = await self._require_session(call)
        try:
            with self._translate_errors(session):
                return await session.send_request(request, adapter, progress_callback=note)
        except SessionLost:
            # The server refused the request because it does not know the session: nothing has
            # happened there. This is the only error after which a request is sent again.
            session = await self._require_session(call)
        with self._translate_errors(session):
            return await session.send_request(request, adapter, progress_callback=note)

    @contextmanager
    def _translate_errors(self, session: ClientSession) -> Iterator[None]:
        """Turn an error of the SDK into the one that tells whether the call may have acted.

        Raises:
            SessionLost: The server does not know the session; the next call opens a new one.
            ToolFailed: The server refuses the request.
            OutcomeUnknown: The connection broke, or the response cannot be read.
        """
        try:
            yield
        except MCPError as error:
            # Both codes have other uses, too, hence the look at the text.
            if error.code in SESSION_LOST_CODES and "session" in error.message.lower():
                self._drop_session(session)
                raise SessionLost(error.message) from error
            if error.code != CONNECTION_CLOSED:
                raise ToolFailed(error.message) from error
            # The request may have reached the server, so the outcome is unknown.
            self._drop_session(session)
            raise OutcomeUnknown(
                f"server {self._server.display_name}: {error.message}"
            ) from error
        except ValidationError as error:
            # A response came, but it cannot be read: the call may have had its effect.
            problem = f"the server's answer is not one of MCP: {safe_str(error)}"
            raise OutcomeUnknown(problem) from error

    # ── prompts ───────────────────────────────────────────────────────────────────────────

    async def list_prompts(self) -> list[ListedPrompt]:
        """Return the prompts that the server lists."""
        session = await self._require_session()
        listed: list[ListedPrompt] = []
        with self._translate_errors(session):
            async for page in _iter_pages(session.list_prompts):
                listed += page.prompts
        return listed

    async def get_prompt(self, name: str, arguments: dict[str, str]) -> GetPromptResult:
        """Return a prompt of the server, with its arguments filled in."""
        session = await self._require_session()
        with self._translate_errors(session):
            return await session.get_prompt(name, arguments)

    # ── the session ───────────────────────────────────────────────────────────────────────

    async def _require_session(self, call: Call | None = None) -> ClientSession:
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
                if call is not None and self._server.is_process:
                    await call.note(
                        f"{self._server.display_name} was started again; it has lost the state "
                        "that it had in memory"
                    )
            if self._session is None:  # it broke between its start and here
                raise ToolsUnreachable(self._server.display_name, "it went away at once")
            return self._session

    def _drop_session(self, session: ClientSession | None) -> None:
        """End a broken session, unless a newer one has taken its place already."""
        if session is not None and session is self._session:
            self._session = None
            self._session_end.set()

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
        session_end = anyio.Event()
        session: ClientSession | None = None
        transport = _watch_transport(self._server.open_transport(), session_end)
        try:
            async with Client(transport, cache=None) as client:
                _declare_elicitation(client.session)
                self.listed_tools = await _list_tools(client)
                self.capabilities = client.server_capabilities
                session = client.session
                self._session, self._session_end = session, session_end
                task_status.started()
                if not self._closed.is_set():
                    await session_end.wait()
                self._drop_session(session)
        except Exception:
            if session is None:
                raise  # it never started: `tasks.start` raises this to `_open_session`
            # It broke later. The SDK has failed each call in flight with CONNECTION_CLOSED, so
            # there is nothing to do. Raised here, it would end the task group and this
            # connection with it.
        finally:
            self._drop_session(session)


@asynccontextmanager
async def _watch_transport(
    transport: Transport, session_end: anyio.Event
) -> AsyncGenerator[TransportStreams, None]:
    """Open a transport, and set the event when the server closes it.

    Without this, the death of a process would be noticed by the next call, and that call would
    count as sent.
    """
    async with transport as (incoming, outgoing):
        messages, forwarded = anyio.create_memory_object_stream[SessionMessage | Exception]()

        async def forward_messages() -> None:
            async for item in incoming:
                await messages.send(item)
            messages.close()
            session_end.set()

        async with messages, forwarded, anyio.create_task_group() as tasks:
            tasks.start_soon(forward_messages)
            yield forwarded, outgoing
            tasks.cancel_scope.cancel()


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
    if client.server_capabilities.tools is None:
        return []
    listed: list[Listed] = []
    async for page in _iter_pages(client.session.list_tools):
        listed += page.tools
    return listed


class ListPage(Protocol[PageT_co]):
    """A method of the SDK's session that reads one page of a list."""

    async def __call__(  # noqa: D102 - the SDK documents it
        self, *, params: PaginatedRequestParams | None = None
    ) -> PageT_co: ...


async def _iter_pages(list_page: ListPage[PageT_co]) -> AsyncIterator[PageT_co]:
    """Yield the pages of a list, up to a limit."""
    cursor: str | None = None
    for _ in range(PAGES_MAX):
        page = await list_page(params=PaginatedRequestParams(cursor=cursor))
        yield page
        cursor = page.next_cursor
        if cursor is None:
            return


def _format_progress(progress: float, total: float | None, message: str | None) -> str:
    amount = f"{progress:g}" if total is None else f"{progress:g} of {total:g}"
    return f"{message} ({amount})" if message else amount


def _format_error(error: BaseException) -> str:
    """Return the text of `error`; of an exception group, that of the first one inside."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {safe_str(error)}"
