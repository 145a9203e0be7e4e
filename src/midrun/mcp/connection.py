"""A connection to one MCP server, kept apart from whoever uses it.

The SDK's task groups cancel the task that entered them when a connection breaks, and over HTTP
one request that fails is enough. So a session lives in a task of its own, where that is caught.
Calls come from the tasks of drivers and only exchange messages with it: a call that is
cancelled tells the server (in so many words, or by closing the stream of its response, as the
protocol wants it), and the session goes on.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
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
from midrun.mcp.elicitation import ask_for_input, read_responses
from midrun.mcp.results import ToolFailed, json_of

CONNECT_S: Final = 60.0
"""How long a server may take to start and to list its tools; some are downloaded first."""

CLOSE_S: Final = 5.0
"""How long saying goodbye may take."""

REQUEST_S: Final = 30.0
"""How long connecting, and sending one request, may take. How long a call may take is for its
timeout and for people to say."""

FRAME_MAX: Final = 16 * 1024 * 1024
"""Bytes of one message over HTTP: a result that can be journaled, and its attachments."""

PAGES_MAX: Final = 100
"""Pages of a list of tools: a server that never comes to an end does not hold us for ever."""

RETRIES_MAX: Final = 100
"""How often a server may put a call off: ask for it to be made again, without a question."""

RETRY_MAX_S: Final = 2.0
"""The longest wait before a call is made again that the server has put off."""

Called: TypeAlias = CallToolResult | InputRequiredResult

CALLED: Final[TypeAdapter[Called]] = TypeAdapter(Called)

KEY: Final = "dev.midrun/key"
"""Where in a request's `_meta` a server finds the key of the call; see `Call.key`."""


class Server(NamedTuple):
    """A server: what it is called in errors, how to reach it, and whether to do so again.

    `shown` has no arguments, passwords or queries in it: models and journals get to see it.
    """

    shown: str
    reach: Callable[[], Transport]
    again: bool


def server_of(
    *,
    command: Sequence[str] | None,
    env: ToolEnvironment | None,
    url: str | None,
    headers: Mapping[str, str] | None,
) -> Server:
    """Return the server that is meant: one to start, or one that is there.

    Raises:
        Misconfigured: neither or both are meant.
    """
    if command is not None and url is None and headers is None:
        return _started_by(command, env or NOTHING_DECLARED)
    if url is not None and command is None and env is None:
        return _found_at(url, headers or {})
    raise Misconfigured("mcp_tools", "give it a command (and env), or a url (and headers)")


def _started_by(command: Sequence[str], env: ToolEnvironment) -> Server:
    if isinstance(command, str) or not command:
        raise Misconfigured("mcp_tools", 'a command is a list: ["python", "server.py"]')
    started = StdioServerParameters(
        command=command[0], args=list(command[1:]), env=env.variables()
    )
    return Server(Path(command[0]).name, lambda: stdio_client(started), again=False)


def _found_at(url: str, headers: Mapping[str, str]) -> Server:
    parts = urlsplit(url)
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @asynccontextmanager
    async def reach() -> AsyncGenerator[object, None]:
        timeout = Timeout(REQUEST_S, read=None)
        async with (
            AsyncClient(headers=dict(headers), timeout=timeout) as http,
            streamable_http_client(
                url, http_client=http, max_sse_event_size=FRAME_MAX
            ) as streams,
        ):
            yield streams

    return Server(shown, reach, again=True)  # type: ignore[arg-type]  # yields what the SDK's does


class Connection:
    """A server that is connected to as long as the context is open.

    `listed` are its tools, as it listed them last. Entering it raises `ToolsUnreachable`.
    """

    def __init__(self, server: Server) -> None:
        self.listed: list[Listed] = []
        self._server = server
        self._session: ClientSession | None = None
        self._opening = anyio.Lock()
        self._over = anyio.Event()
        self._tasks = anyio.create_task_group()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        try:
            await self._opened()
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        await self._leave()

    async def _leave(self) -> None:
        """End the session, and with it a server that we started.

        What went wrong outside is not passed on to our task group, which would wrap it.
        """
        self._over.set()
        self._tasks.cancel_scope.shield = True
        self._tasks.cancel_scope.deadline = anyio.current_time() + CLOSE_S
        await self._tasks.__aexit__(None, None, None)

    async def call(self, tool: str, arguments: dict[str, object], call: Call) -> Json:
        """Have the server make a call, and return what came of it. Any task may do so.

        Raises:
            ToolFailed: the tool says so, or the server would not call it.
            ToolsUnreachable: nobody is there to make it.
            OutcomeUnknown: it was made, and nobody came back.
            PauseHere: the server needs input before it can complete the call.
        """
        responses, state = read_responses(call.answered)
        for attempt in range(RETRIES_MAX):
            result = await self._request(tool, arguments, call, responses, state)
            if isinstance(result, CallToolResult):
                return json_of(result)
            if result.input_requests:
                ask_for_input(result)
            responses, state = None, result.request_state
            await anyio.sleep(min(0.05 * 2**attempt, RETRY_MAX_S))
        raise ToolFailed(
            f"Cannot complete the call: the server put it off {RETRIES_MAX} times."
        )

    async def _request(
        self,
        tool: str,
        arguments: dict[str, object],
        call: Call,
        responses: InputResponses | None,
        state: str | None,
    ) -> Called:
        """Send one request to make the call, with the answers to the server's questions."""

        async def note(progress: float, total: float | None, message: str | None) -> None:
            await call.note(_progress_in_words(progress, total, message))

        session = await self._opened()
        meta = cast("RequestParamsMeta", {KEY: call.key})
        params = CallToolRequestParams(
            name=tool,
            arguments=arguments,
            input_responses=responses,
            request_state=state,
            _meta=meta,
        )
        try:
            # Not `call_tool`: it raises where a result does not fit its own schema, and then
            # nobody knows the result of a call that has taken effect.
            return await session.send_request(
                CallToolRequest(params=params), CALLED, progress_callback=note
            )
        except MCPError as error:
            if error.code != CONNECTION_CLOSED:
                raise ToolFailed(error.message) from error
            if not self._server.again:
                self._over.set()
            raise OutcomeUnknown(f"server {self._server.shown}: {error.message}") from error
        except ValidationError as error:
            problem = f"the server's answer is not one of MCP: {safe_str(error)}"
            raise OutcomeUnknown(problem) from error

    async def _opened(self) -> ClientSession:
        """Return the session; connect first where there is none."""
        async with self._opening:
            if self._over.is_set():
                problem = "the connection has ended, and the call was not made"
                raise ToolsUnreachable(self._server.shown, problem)
            if self._session is None:
                await self._open()
            if self._session is None:
                raise ToolsUnreachable(self._server.shown, "it went away at once")
            return self._session

    async def _open(self) -> None:
        try:
            with anyio.fail_after(CONNECT_S):
                await self._tasks.start(self._hold)
        except TimeoutError as error:
            problem = f"no answer within {CONNECT_S:g} s"
            raise ToolsUnreachable(self._server.shown, problem) from error
        except Exception as error:
            raise ToolsUnreachable(self._server.shown, _in_words(error)) from error

    async def _hold(self, *, task_status: TaskStatus[None]) -> None:
        """Keep a session until it is over, or breaks."""
        try:
            async with Client(self._server.reach(), cache=None) as client:
                _declare_elicitation(client.session)
                self.listed = await _listing(client)
                self._session = client.session
                task_status.started()
                await self._over.wait()
        except Exception:
            if self._session is None:
                raise  # to whoever waits for it to begin
            # It broke: the calls in flight have been told, each of them.
        finally:
            self._session = None


def _declare_elicitation(session: ClientSession) -> None:
    """Tell the server that it may ask people, where its questions can be answered later.

    Older protocols ask while the call is under way: such a question cannot outlive this
    process, so there nothing is declared. The SDK declares what has a callback, for every
    protocol; so the callback is set when the protocol is known, and is never called.
    """
    if session.discover_result is not None:
        session._elicitation_callback = _refuse_elicitation  # noqa: SLF001 - as said
        session.adopt(session.discover_result)


async def _refuse_elicitation(
    context: ClientRequestContext, params: ElicitRequestParams
) -> ElicitResult:
    del context, params
    return ElicitResult(action="cancel")


async def _listing(client: Client) -> list[Listed]:
    """Return what the server lists. The session learns from it, too: which headers to send."""
    listed: list[Listed] = []
    cursor: str | None = None
    for _ in range(PAGES_MAX):
        page = await client.list_tools(cursor=cursor)
        listed += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return listed


def _progress_in_words(progress: float, total: float | None, message: str | None) -> str:
    far = f"{progress:g}" if total is None else f"{progress:g} of {total:g}"
    return f"{message} ({far})" if message else far


def _in_words(error: BaseException) -> str:
    """Return what is behind `error`: task groups wrap, and one reason says enough."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {safe_str(error)}"
