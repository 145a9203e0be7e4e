"""`Gateway`: the door through which an agent in another process makes its calls.

It listens on loopback while the program of a run is running, and speaks the protocols of model
providers and MCP. Every request must carry the key of this run. A model request becomes a model
call of the run, and an MCP call a tool call: see `GatewayCalls`.

**The process gets the text of a streamed reply while it arrives**, and the rest, its calls and
its end, when the reply is journaled. Otherwise it could act on a reply that the journal does
not have: after a crash the model would be called again, with another reply, and the action
would have no reason. See `LiveReply`. A process that waits for a stream gets pings meanwhile.
"""

import secrets
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
)
from typing import Final, cast

import anyio
import msgspec
import uvicorn
from anyio.abc import TaskGroup, TaskStatus
from httpx2 import AsyncClient
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from midrun.agents.program import ProgramCalls
from midrun.agents.tool import Tool
from midrun.core.values import Json
from midrun.hosts.gateway_calls import GatewayCalls, PendingReply
from midrun.hosts.tool_server import open_tool_server
from midrun.hosts.upstream import Upstream
from midrun.hosts.upstream_client import ModelRequest, UpstreamClient
from midrun.hosts.wire_protocols import (
    PROTOCOLS,
    Fields,
    WireEvent,
    WireProtocol,
    choose_error_protocol,
)

LOOPBACK: Final = "127.0.0.1"
MCP_PATH: Final = "/mcp"
KEY_PREFIX: Final = "mrk-"

REQUEST_MAX_BYTES: Final = 32 * 1024 * 1024
"""Bytes of a model request: a long history with images."""

PING_INTERVAL_S: Final = 10.0
CLOSE_TIMEOUT_S: Final = 2.0
"""Seconds for open requests to end when the gateway closes."""

BACKLOG: Final = 128

WRONG_KEY_TEXT: Final = (
    "Cannot accept the key: it is not the key of this run. Use the variable ANTHROPIC_API_KEY "
    "or OPENAI_API_KEY of the process that the run has started."
)
UNKNOWN_PATH_TEXT: Final = (
    "Cannot serve {method} {path}: the gateway of a run has only POST /v1/messages, "
    "/v1/chat/completions and /v1/responses, and /mcp. Send other requests to the provider."
)
STOPPED_TEXT: Final = "Cannot answer: the run has stopped. It continues with a new process."


class RequestRefused(Exception):
    """A request that the gateway does not take, with its status and the kind of its error."""

    def __init__(self, status: int, kind: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.kind = kind


class Gateway:
    """An ASGI app with the endpoints of one run. Made with `open_gateway`.

    Attributes:
        url: The address, without a path.
        key: The key of the run, which every request must carry.
        is_restart: Whether an earlier process of this run has made calls.
    """

    def __init__(self, url: str, key: str, calls: GatewayCalls, client: UpstreamClient) -> None:
        self.url = url
        self.key = key
        self.is_restart = calls.is_restart
        self.tool_app: ASGIApp | None = None
        self._calls = calls
        self._client = client
        self._requests: set[anyio.CancelScope] = set()
        self._is_closing = False

    def list_variables(self) -> dict[str, str]:
        """Return the environment variables by which clients find the gateway."""
        return {
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": self.key,
            "OPENAI_BASE_URL": f"{self.url}/v1",
            "OPENAI_API_KEY": self.key,
            "MIDRUN_MCP_URL": f"{self.url}{MCP_PATH}",
            "MIDRUN_KEY": self.key,
            "MIDRUN_RESTARTED": "1" if self.is_restart else "",
            # The CLI of Claude would call the model for a title, besides its work.
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }

    def stop_requests(self) -> None:
        """End all open requests, and take no more: the gateway closes."""
        self._is_closing = True
        for scope in self._requests:
            scope.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        headers = Headers(scope=scope)
        path, method = scope["path"], scope["method"]
        protocol = next((p for p in PROTOCOLS if p.path == path and method == "POST"), None)
        response = _Response(protocol or choose_error_protocol(path, headers), send)
        if self._is_closing:
            await response.send_error(503, "api_error", STOPPED_TEXT)
            return
        with anyio.CancelScope() as request_scope:
            self._requests.add(request_scope)
            try:
                self._check_key(headers)
                if path == MCP_PATH and self.tool_app is not None:
                    await self.tool_app(scope, receive, response.send)
                else:
                    request = await self._read_request(protocol, scope, receive)
                    await self._serve_reply(request, receive, response)
            except RequestRefused as refused:
                await response.send_error(refused.status, refused.kind, str(refused))
            finally:
                self._requests.discard(request_scope)
        if request_scope.cancelled_caught and not response.is_complete:
            await response.send_error(503, "api_error", STOPPED_TEXT)

    def _check_key(self, headers: Headers) -> None:
        given = headers.get("x-api-key") or ""
        scheme, _, credential = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            given = credential
        # Loopback is open to all accounts of the machine. The key, which only the process of
        # this run gets, keeps the others out; it is compared in constant time.
        if not secrets.compare_digest(given.encode(), self.key.encode()):
            raise RequestRefused(401, "authentication_error", WRONG_KEY_TEXT)

    async def _read_request(
        self, protocol: WireProtocol | None, scope: Scope, receive: Receive
    ) -> ModelRequest:
        if protocol is None:
            text = UNKNOWN_PATH_TEXT.format(method=scope["method"], path=scope["path"])
            raise RequestRefused(404, "not_found_error", text)
        if not self._client.has_provider(protocol):
            text = (
                f"Cannot forward the request: the agent has no upstream for "
                f'{protocol.provider}. Pass upstream=Upstream("{protocol.provider}").'
            )
            raise RequestRefused(404, "not_found_error", text)
        try:
            body: object = msgspec.json.decode(await _read_body(receive))
        except msgspec.DecodeError as error:
            text = f"Cannot read the request: it is not JSON: {error}."
            raise RequestRefused(400, "invalid_request_error", text) from error
        if not isinstance(body, dict):
            text = "Cannot read the request: it is not a JSON object."
            raise RequestRefused(400, "invalid_request_error", text)
        if problem := protocol.find_problem(body):
            text = f"Cannot take the request: {problem}."
            raise RequestRefused(400, "invalid_request_error", text)
        query = scope["query_string"].decode("latin-1")
        return ModelRequest(protocol, cast("Fields", body), Headers(scope=scope), query)

    async def _serve_reply(
        self, request: ModelRequest, receive: Receive, response: "_Response"
    ) -> None:
        # The model call is a call of the run, and does not belong to this request. If the
        # client disconnects, the call continues, and its reply waits for the client to ask
        # again. A reply counts as delivered when its last byte was handed to the socket.
        pending = self._calls.request_reply(request)
        is_delivered = False
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_watch_for_disconnect, receive, tasks.cancel_scope)
                await response.send_reply(pending)
                is_delivered = True
                tasks.cancel_scope.cancel()
        finally:
            self._calls.end_request(pending, is_delivered=is_delivered)


class _Response:
    """The response to one request; it begins when there is something to send."""

    def __init__(self, protocol: WireProtocol, send: Send) -> None:
        self.is_complete = False
        self._protocol = protocol
        self._send = send
        self._has_begun = False

    async def send(self, message: Message) -> None:
        """Send a message of ASGI, and note how far the response is."""
        self._has_begun = True
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self.is_complete = True
        await self._send(message)

    async def send_reply(self, pending: PendingReply) -> None:
        """Send the text of a stream as it arrives, and the rest when it is journaled."""
        is_stream = bool(pending.request.body.get("stream"))
        live, sent = pending.live, 0
        while True:
            # The event is taken before the state is looked at. If it were taken afterwards, a
            # change in between would set the old event, and this loop would wait for the next
            # change.
            changed, reply = live.changed, pending.reply
            if live.released > sent:
                await self._begin_stream()
                for part in live.parts[sent : live.released]:
                    await self._send_part(part)
                    sent += 1
            if reply is not None:
                break
            with anyio.move_on_after(PING_INTERVAL_S) as timeout:
                await changed.wait()
            if timeout.cancelled_caught and is_stream:
                await self._begin_stream()
                await self._send_part(self._protocol.make_ping())
        if not reply.events:
            await self._send_json(reply.status, reply.body)
            return
        await self._begin_stream()
        if not sent:  # it was in the journal
            events = [WireEvent(name, data) for name, data in reply.events]
            for event in self._protocol.select_events(pending.request.body, events):
                await self._send_part(event.encode())
        await self._send_part(b"", is_last=True)

    async def send_error(self, status: int, kind: str, text: str) -> None:
        """Send an error in the format of the protocol."""
        await self._send_json(status, self._protocol.make_error(kind, text))

    async def _send_json(self, status: int, body: Json) -> None:
        if self._has_begun:  # pings were sent: the status cannot change any more
            event = self._protocol.make_error_event(body)
            await self._send_part(event.encode(), is_last=True)
            return
        await self._begin(status, b"application/json")
        await self._send_part(msgspec.json.encode(body), is_last=True)

    async def _begin_stream(self) -> None:
        if not self._has_begun:
            await self._begin(200, b"text/event-stream")

    async def _begin(self, status: int, kind: bytes) -> None:
        headers = [(b"content-type", kind), (b"cache-control", b"no-store")]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def _send_part(self, part: bytes, *, is_last: bool = False) -> None:
        message = {"type": "http.response.body", "body": part, "more_body": not is_last}
        await self.send(message)


async def _read_body(receive: Receive) -> bytes:
    parts, size = list[bytes](), 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestRefused(400, "invalid_request_error", "The request is not complete.")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > REQUEST_MAX_BYTES:
            text = (
                f"Cannot take the request: it is larger than {REQUEST_MAX_BYTES} bytes. "
                "Shorten the history."
            )
            raise RequestRefused(413, "request_too_large", text)
        if not message.get("more_body"):
            return b"".join(parts)


async def _watch_for_disconnect(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


# The listener: uvicorn on a socket of its own, for as long as the process runs.


class _LoopbackServer(uvicorn.Server):
    """Uvicorn without signal handlers, which are the worker's, and without polling."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                ws="none",
                access_log=False,
                log_config=None,
                server_header=False,
                timeout_graceful_shutdown=1,
            )
        )
        self.stop_requested = anyio.Event()
        self.scope: anyio.CancelScope | None = None  # while it serves

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]  # a context manager is one
        return nullcontext()

    async def main_loop(self) -> None:
        await self.stop_requested.wait()


@asynccontextmanager
async def open_gateway(
    calls: ProgramCalls,
    tools: Sequence[Tool],
    upstreams: Sequence[Upstream],
    *,
    keeps_history: bool,
    is_parallel: bool,
) -> AsyncGenerator[Gateway, None]:
    """Listen on loopback for the process of a run, while the context is open."""
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    calls.hide_secret(key)
    for upstream in upstreams:
        if found := upstream.find_key():
            calls.hide_secret(found)
    async with AsyncClient() as http, anyio.create_task_group() as tasks:
        client = UpstreamClient(http, upstreams)
        made = GatewayCalls(
            calls,
            tools,
            client,
            tasks,
            keeps_history=keeps_history,
            is_parallel=is_parallel,
        )
        with socket.create_server((LOOPBACK, 0), backlog=BACKLOG) as listening:
            url = f"http://{LOOPBACK}:{listening.getsockname()[1]}"
            gateway = Gateway(url, key, made, client)
            tool_server = open_tool_server(tools, made.call_tool)
            async with _serve(gateway, tool_server, listening, tasks):
                await made.adopt_open_calls()
                yield gateway
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def _serve(
    gateway: Gateway,
    tool_server: AbstractAsyncContextManager[ASGIApp],
    listening: socket.socket,
    tasks: TaskGroup,
) -> AsyncGenerator[None, None]:
    server, ended = _LoopbackServer(gateway), anyio.Event()

    async def run_server(*, task_status: TaskStatus[None]) -> None:
        # Shielded: it is not cancelled together with the program, because it closes its
        # connections itself when it is asked to stop.
        with anyio.CancelScope(shield=True) as server_scope:
            server.scope = server_scope
            async with tool_server as gateway.tool_app:
                task_status.started()
                await server.serve(sockets=[listening])
        ended.set()

    await tasks.start(run_server)
    try:
        yield
    finally:
        gateway.stop_requests()
        server.stop_requested.set()
        with anyio.move_on_after(CLOSE_TIMEOUT_S, shield=True):
            await ended.wait()
        if server.scope is not None:
            server.scope.cancel()
