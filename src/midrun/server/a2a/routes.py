"""Handlers for A2A: a public card for each agent, and forwarded calls with a credential.

The body is read and checked here, then given to the SDK's routes as a new ASGI request
(`ForwardedResponse`), so that all limits of the server hold for A2A, too.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from typing import Final

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from midrun.agents.agent import Agent
from midrun.codec.strict_json import JsonLimits, parse_json
from midrun.core.values import Json
from midrun.errors import NotJson
from midrun.server.a2a import A2A_PATH_PREFIX, PAUSE_METHOD
from midrun.server.problem_details import HttpProblem
from midrun.server.request_checks import path_below_mount
from midrun.server.request_context import RequestContext, ServerState, json_response
from midrun.server.schemas import encode_wire

CARD_PATH: Final = "/.well-known/agent-card.json"
CARD_MAX_AGE_S: Final = 300
"""Seconds for which a client may keep a card: an agent changes only with its server."""

CARD_TAG_CHARS: Final = 32
"""The length of the ETag of a card."""

PARSE_ERROR: Final = -32700
"""The JSON-RPC error code for a request that is not JSON."""


async def handle_rpc(context: RequestContext) -> Response:
    """Handle a JSON-RPC call for an agent."""
    agent = _find_agent(context)
    from midrun.server.a2a import handler  # noqa: PLC0415 - imports the optional SDK

    text = await context.read_body()
    try:
        call = parse_body(context, text)
    except NotJson as error:
        return json_response(make_parse_error(error))
    if isinstance(call, dict) and call.get("method") == PAUSE_METHOD:
        return json_response(await handler.pause_task(agent, context, call))
    return ForwardedResponse(handler.make_router(agent), context, "/", text)


async def handle_rest(context: RequestContext) -> Response:
    """Handle a call in the HTTP+JSON form of A2A."""
    agent = _find_agent(context)
    from midrun.server.a2a import handler  # noqa: PLC0415 - imports the optional SDK

    text = await context.read_body()
    if text:
        try:
            parse_body(context, text)
        except NotJson as error:
            problem = {"code": 400, "status": "INVALID_ARGUMENT", "message": str(error)}
            return json_response({"error": problem}, 400)
    path = f"/{context.path['rest']}"
    return ForwardedResponse(handler.make_router(agent), context, path, text)


def parse_body(context: RequestContext, text: bytes) -> Json:
    """Parse a body that is then given to an SDK, which has no limits of its own.

    Raises:
        NotJson: it is not JSON, or nested too deeply.
    """
    limits = JsonLimits(max_depth=context.server.limits.depth, max_bytes=context.body_max_bytes)
    return parse_json(text, limits)


def make_parse_error(error: NotJson) -> dict[str, object]:
    """Return the JSON-RPC response to a request that cannot be parsed."""
    problem = {"code": PARSE_ERROR, "message": f"Cannot parse the request: {error}"}
    return {"jsonrpc": "2.0", "id": None, "error": problem}


def find_card(request: Request, server: ServerState) -> Response | None:
    """Return the public card of an agent; None for other requests.

    A client reads it before it has a token, to learn that it needs one. The card holds only the
    agent's name and address.

    Raises:
        HttpProblem: 404, no such agent, or the path names none and there are several; 501, the
            SDK is not installed.
    """
    path = path_below_mount(request.scope)
    if request.method not in {"GET", "HEAD"} or not path.endswith(CARD_PATH):
        return None
    under = path.removesuffix(CARD_PATH)
    if under and not under.startswith(A2A_PATH_PREFIX):
        return None
    agents = server.mid.agents
    agent = agents.get(under.removeprefix(A2A_PATH_PREFIX))
    # A2A clients look at the root of a host first. With one agent it is clear which is meant.
    if not under and len(agents) == 1:
        (agent,) = agents.values()
    if agent is None:
        problem = f"Cannot find the card. Get it from {A2A_PATH_PREFIX}NAME{CARD_PATH}."
        raise HttpProblem("not_found", 404, problem)
    _check_installed()
    from midrun.server.a2a.tasks import card_to_json  # noqa: PLC0415 - imports the optional SDK

    body = encode_wire(card_to_json(request, agent, has_push=bool(server.push_origins)))
    etag = f'"{sha256(body).hexdigest()[:CARD_TAG_CHARS]}"'
    headers = {"Cache-Control": f"public, max-age={CARD_MAX_AGE_S}", "ETag": etag}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type="application/json")


def _check_installed() -> None:
    if find_spec("a2a") is None:
        problem = (
            "Cannot serve A2A: its SDK is not installed. Run pip install 'midrun[a2a]' on the "
            "server."
        )
        raise HttpProblem("not_installed", 501, problem)


def _find_agent(context: RequestContext) -> Agent:
    _check_installed()
    known = context.server.mid.agents
    agent = known.get(context.path["agent"])
    if agent is None:
        problem = f"Cannot find the agent. Known agents: {', '.join(known) or 'none'}."
        raise HttpProblem("agent_not_found", 404, problem)
    return agent


class ForwardedResponse(Response):
    """The response of another ASGI app, to a request whose body was read here.

    It counts as a stream, and ends like one: when the server stops or the caller's credential
    is no longer valid.
    """

    def __init__(
        self, asgi_app: ASGIApp, context: RequestContext, path: str, body: bytes
    ) -> None:
        context.check_stream()
        super().__init__()
        self._asgi_app = asgi_app
        self._context = context
        self._path = path
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the other app, until it is done or the stream has to end."""
        forwarded = {
            **scope,
            "path": self._path,
            "raw_path": self._path.encode(),
            "root_path": "",
            "midrun.visit": self._context,
        }
        server, caller = self._context.server, self._context.caller
        # Type of ASGI message → whether the last message of this type ended the response. The
        # code below the task group needs it to complete a response that was cut off.
        sent = {"http.response.body": False}

        async def record_and_send(message: Message) -> None:
            sent[message["type"]] = not message.get("more_body", False)
            await send(message)

        with server.allowance.count_stream(caller.key, caller.actor):
            async with anyio.create_task_group() as tasks:

                async def cancel_after(wait: Callable[[], Awaitable[object]]) -> None:
                    await wait()
                    tasks.cancel_scope.cancel()

                tasks.start_soon(cancel_after, self._context.wait_until_stopping)
                tasks.start_soon(cancel_after, partial(caller.wait_until_invalid, server))
                await self._asgi_app(
                    forwarded, _replay_body(self._body, receive), record_and_send
                )
                tasks.cancel_scope.cancel()
        # A response that was cut off is completed: a 503 if it had not started, else the last
        # chunk. Otherwise the client would see a broken connection.
        with anyio.move_on_after(server.limits.patience):
            if "http.response.start" not in sent:
                await Response(status_code=503, headers={"Retry-After": "1"})(
                    scope, receive, send
                )
            elif not sent["http.response.body"]:
                await send({"type": "http.response.body", "body": b"", "more_body": False})


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives `body` once, then the messages of `receive`."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return left.pop() if left else await receive()

    return receive_again
