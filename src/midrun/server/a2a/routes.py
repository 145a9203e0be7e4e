"""The routes of A2A: a public card for each agent, and calls with a credential."""

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
"""The code of JSON-RPC for a request that is no JSON."""


async def rpc(context: Visit) -> Response:
    """Take a JSON-RPC call for an agent: its methods, and the one of our extension."""
    agent = _agent(context)
    from midrun.server.a2a import handler  # noqa: PLC0415 - only this needs the SDK

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
    """Take a call in A2A's other form."""
    agent = _agent(context)
    from midrun.server.a2a import handler  # noqa: PLC0415 - only this needs the SDK

    path = f"/{context.path['rest']}"
    return Forwarded(handler.router(agent), context, path, await context.text())


def find_card(request: Request, agents: Mapping[str, Agent]) -> Response | None:
    """Return the public card that a request asks for; None if it asks for something else.

    A client reads it before it has a token, to learn that it needs one. It says no more than
    the agent's name and address.

    Raises:
        Problem: 404, no such agent, or several where one is meant; 501, no SDK.
    """
    path = path_in(request.scope)
    if request.method not in {"GET", "HEAD"} or not path.endswith(WELL_KNOWN):
        return None
    under = path.removesuffix(WELL_KNOWN)
    if under and not under.startswith(UNDER):
        return None
    agent = agents.get(under.removeprefix(UNDER))
    if not under and len(agents) == 1:
        (agent,) = agents.values()
    if agent is None:
        raise Problem("not_found", 404, f"there is a card at {UNDER}NAME{WELL_KNOWN}")
    _check_installed()
    from midrun.server.a2a.cards import show_card  # noqa: PLC0415 - as above

    return answer(show_card(request, agent))


def _check_installed() -> None:
    if find_spec("a2a") is None:
        raise Problem("not_installed", 501, "A2A needs midrun[a2a] where the server runs")


def _agent(context: Visit) -> Agent:
    _check_installed()
    known = context.lobby.mid.agents
    agent = known.get(context.path["agent"])
    if agent is None:
        raise Problem("agent_not_found", 404, f"known here: {', '.join(known) or 'none'}")
    return agent


class Forwarded(Response):
    """What another ASGI app answers, to a body that was read and found fit already."""

    def __init__(self, to: ASGIApp, context: Visit, path: str, text: bytes) -> None:
        context.lobby.allowance.check_stream(context.actor.name)
        super().__init__()
        self._to = to
        self._visit = context
        self._path = path
        self._text = text

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the other app answer."""
        there = {
            **scope,
            "path": self._path,
            "raw_path": self._path.encode(),
            "root_path": "",
            "midrun.visit": self._visit,
        }
        server, caller = self._visit.lobby, self._visit.caller
        sent = {"http.response.body": False}  # kind of message → whether it was the last

        async def noted(message: Message) -> None:
            sent[message["type"]] = not message.get("more_body", False)
            await send(message)

        with server.allowance.stream(caller.actor.name):
            async with anyio.create_task_group() as tasks:

                async def end_with(over: Callable[[], Awaitable[object]]) -> None:
                    await over()
                    tasks.cancel_scope.cancel()

                tasks.start_soon(end_with, self._visit.over)
                tasks.start_soon(end_with, partial(caller.leaves, server))
                await self._to(there, _again(self._text, receive), noted)
                tasks.cancel_scope.cancel()
        with anyio.move_on_after(server.limits.patience):  # cut off, yet with a whole answer
            if "http.response.start" not in sent:
                await Response(status_code=503, headers={"Retry-After": "1"})(
                    scope, receive, send
                )
            elif not sent["http.response.body"]:
                await send({"type": "http.response.body", "body": b"", "more_body": False})


def _again(text: bytes, receive: Receive) -> Receive:
    """Return what gives the body once more, and then what comes after it."""
    left: list[Message] = [{"type": "http.request", "body": text, "more_body": False}]

    async def given() -> Message:
        return left.pop() if left else await receive()

    return given
