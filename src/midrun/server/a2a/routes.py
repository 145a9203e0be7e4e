"""Handlers for A2A: a public card for each agent, and forwarded calls with a credential.

The body is read and checked here, then given to the SDK's routes as a new ASGI request
(`ForwardedResponse`), so that all limits of the server hold for A2A, too.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Final

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from midrun.agents.agent import Agent
from midrun.codec.strict_json import Limits as JsonLimits
from midrun.codec.strict_json import parse
from midrun.errors import NotJson
from midrun.server.a2a import PAUSE_METHOD, UNDER
from midrun.server.mounting import path_in
from midrun.server.problem_details import Problem
from midrun.server.request_context import Visit, answer

WELL_KNOWN: Final = "/.well-known/agent-card.json"
PARSE_ERROR: Final = -32700
"""The JSON-RPC error code for a request that is not JSON."""


async def rpc(context: Visit) -> Response:
    """Handle a JSON-RPC call for an agent."""
    agent = _agent(context)
    from midrun.server.a2a import handler  # noqa: PLC0415 - imports the optional SDK

    text = await context.text()
    try:
        call = parse(text, JsonLimits(depth=context.lobby.limits.depth, size=context.room))
    except NotJson as error:
        problem = {"code": PARSE_ERROR, "message": f"Cannot parse the request: {error}"}
        return answer({"jsonrpc": "2.0", "id": None, "error": problem})
    if isinstance(call, dict) and call.get("method") == PAUSE_METHOD:
        return answer(await handler.paused(agent, context, call))
    return Forwarded(handler.router(agent), context, "/", text)


async def rest(context: Visit) -> Response:
    """Handle a call in the HTTP+JSON form of A2A."""
    agent = _agent(context)
    from midrun.server.a2a import handler  # noqa: PLC0415 - imports the optional SDK

    path = f"/{context.path['rest']}"
    return Forwarded(handler.router(agent), context, path, await context.text())


def find_card(request: Request, agents: Mapping[str, Agent]) -> Response | None:
    """Return the public card of an agent; None for other requests.

    A client reads it before it has a token, to learn that it needs one. The card holds only the
    agent's name and address.

    Raises:
        HttpProblem: 404, no such agent, or the path names none and there are several; 501, the
            SDK is not installed.
    """
    path = path_in(request.scope)
    if request.method not in {"GET", "HEAD"} or not path.endswith(WELL_KNOWN):
        return None
    under = path.removesuffix(WELL_KNOWN)
    if under and not under.startswith(UNDER):
        return None
    agent = agents.get(under.removeprefix(UNDER))
    # A2A clients look at the root of a host first. With one agent it is clear which is meant.
    if not under and len(agents) == 1:
        (agent,) = agents.values()
    if agent is None:
        problem = f"Cannot find the card. Get it from {UNDER}NAME{WELL_KNOWN}."
        raise Problem("not_found", 404, problem)
    _check_installed()
    from midrun.server.a2a.cards import show_card  # noqa: PLC0415 - imports the optional SDK

    return answer(show_card(request, agent))


def _check_installed() -> None:
    if find_spec("a2a") is None:
        problem = (
            "Cannot serve A2A: its SDK is not installed. Run pip install 'midrun[a2a]' on the "
            "server."
        )
        raise Problem("not_installed", 501, problem)


def _agent(context: Visit) -> Agent:
    _check_installed()
    known = context.lobby.mid.agents
    agent = known.get(context.path["agent"])
    if agent is None:
        problem = f"Cannot find the agent. Known agents: {', '.join(known) or 'none'}."
        raise Problem("agent_not_found", 404, problem)
    return agent


class Forwarded(Response):
    """The response of another ASGI app, to a request whose body was read here.

    It counts as a stream, and ends like one: when the server stops or the caller's credential
    is no longer valid.
    """

    def __init__(self, to: ASGIApp, context: Visit, path: str, text: bytes) -> None:
        context.lobby.allowance.check_stream(context.actor.name)
        super().__init__()
        self._to = to
        self._visit = context
        self._path = path
        self._text = text

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the other app, until it is done or the stream has to end."""
        forwarded = {
            **scope,
            "path": self._path,
            "raw_path": self._path.encode(),
            "root_path": "",
            "midrun.visit": self._visit,
        }
        server, caller = self._visit.lobby, self._visit.caller
        # Type of ASGI message → whether the last message of this type ended the response. The
        # code below the task group needs it to complete a response that was cut off.
        sent = {"http.response.body": False}

        async def record_and_send(message: Message) -> None:
            sent[message["type"]] = not message.get("more_body", False)
            await send(message)

        with server.allowance.stream(caller.actor.name):
            async with anyio.create_task_group() as tasks:

                async def cancel_after(wait: Callable[[], Awaitable[object]]) -> None:
                    await wait()
                    tasks.cancel_scope.cancel()

                tasks.start_soon(cancel_after, self._visit.over)
                tasks.start_soon(cancel_after, partial(caller.leaves, server))
                await self._to(forwarded, _again(self._text, receive), record_and_send)
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


def _again(text: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives `body` once, then the messages of `receive`."""
    left: list[Message] = [{"type": "http.request", "body": text, "more_body": False}]

    async def receive_again() -> Message:
        return left.pop() if left else await receive()

    return receive_again
