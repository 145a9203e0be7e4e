"""The SDK's routes, with our handler behind them."""

import math
from functools import lru_cache
from typing import Final

from a2a.server.context import ServerCallContext
from a2a.server.routes import (
    create_jsonrpc_routes,
    create_rest_routes,
)
from a2a.server.routes.common import DefaultServerCallContextBuilder
from a2a.utils.errors import JSON_RPC_ERROR_CODE_MAP, A2AError
from google.protobuf.json_format import MessageToDict
from starlette.requests import Request
from starlette.routing import Router

from midrun.agents.agent import Agent
from midrun.core.values import Json
from midrun.server.a2a.handler import VISIT, Handler
from midrun.server.log import escape_loggers
from midrun.server.visit import Visit

KEPT = 64

STREAM_GRACE_S: Final = math.inf
"""How long the SDK lets a stream go on after a signal to stop: until the stream has ended.

`sse_starlette`, which the SDK uses, ends streams when any server of the process was told to
stop. It notes that once for the whole process and never takes it back, so each later stream
would end after its first event; and it does not wait for the drain. `Forwarded` ends a stream
when the server that the request came in by goes away.
"""

escape_loggers("a2a")  # the SDK logs ids, methods and versions as clients send them


class _Context(DefaultServerCallContextBuilder):
    """Passes on whose request it is."""

    def build(self, request: Request) -> ServerCallContext:
        context = super().build(request)
        context.state[VISIT] = request.scope[VISIT]
        return context


@lru_cache(maxsize=KEPT)
def router(agent: Agent) -> Router:
    """Return the routes of an agent."""
    handler, context = Handler(agent.name), _Context()
    return Router(
        [
            *create_jsonrpc_routes(
                handler,
                "/",
                context,
                enable_v0_3_compat=True,
                shutdown_grace_period=STREAM_GRACE_S,
            ),
            *create_rest_routes(
                handler,
                context,
                enable_v0_3_compat=True,
                shutdown_grace_period=STREAM_GRACE_S,
            ),
        ]
    )


async def paused(agent: Agent, visit: Visit, call: dict[str, Json]) -> dict[str, Json]:
    """Answer the method of our extension, as JSON-RPC has it."""
    given = call.get("params")
    task = str(given.get("id")) if isinstance(given, dict) else ""
    told: dict[str, Json] = {"jsonrpc": "2.0", "id": call.get("id")}
    try:
        return told | {"result": MessageToDict(await Handler(agent.name).pause(task, visit))}
    except A2AError as error:
        code = JSON_RPC_ERROR_CODE_MAP.get(type(error), -32603)
        return told | {"error": {"code": code, "message": str(error) or type(error).__name__}}
