"""An MCP server for tests, as a process: it says what it sees, in lines, to a named pipe.

    server.py PIPE stdio|PORT [old]

An old one does not know the protocol of 2026, and is spoken to as servers were before it.
"""

import os
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
import uvicorn
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.request_state import RequestStateSecurity
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp_types import (
    METHOD_NOT_FOUND,
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    ElicitResult,
    ErrorData,
    InputRequiredResult,
    JSONRPCError,
    JSONRPCRequest,
    ToolAnnotations,
)

PIPE, WHERE, OLD = sys.argv[1], sys.argv[2], "old" in sys.argv[3:]

UNHEARD_OF: Final = ErrorData(code=METHOD_NOT_FOUND, message="no such method")

gates: dict[str, anyio.Event] = {}


def say(*words: object) -> None:
    """Tell whoever reads the pipe, at once and in one piece."""
    with open(PIPE, "a", buffering=1) as pipe:  # noqa: PTH123 - `Path.open` does no more
        print(*words, file=pipe)


async def seen(
    context: ServerRequestContext[object, object],
    go_on: Callable[[ServerRequestContext[object, object]], Awaitable[object]],
) -> object:
    """Say which cancellations come in; as an old server, know nothing of discovery.

    Pretend that a tool returns what it does not.
    """
    if context.method == "notifications/cancelled":
        say("told to cancel")
    if OLD and context.method == "server/discover":
        raise MCPError.from_error_data(UNHEARD_OF)
    result = await go_on(context)
    if isinstance(result, dict) and context.method == "tools/list":
        (odd,) = (tool for tool in result["tools"] if tool["name"] == "greet")
        odd["outputSchema"] = {"type": "object", "required": ["greeting"]}
    return result


# The key is the same in every process of this server: a question outlives them.
security = RequestStateSecurity(keys=["one key of at least thirty-two bytes"])
server = MCPServer("office", middleware=[seen], request_state_security=security)  # type: ignore[list-item]  # mypy: invariance


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def add(a: int, b: int = 1) -> dict[str, int]:
    """Add two numbers."""
    return {"sum": a + b}


@server.tool(structured_output=False)
async def greet(name: str | None) -> str:
    """Say hello."""
    return f"Hello {name}."


@server.tool(
    structured_output=False,
    annotations=ToolAnnotations(idempotent_hint=True, destructive_hint=True),
)
async def key(context: Context[object, object]) -> str:
    """Tell the key that came with the call."""
    return str(dict(context.request_context.meta or {})["dev.midrun/key"])


@server.tool(structured_output=False)
async def who(context: Context[object, object]) -> str:
    """Tell what this server was given, and what came with the request."""
    return f"{os.environ.get('WHO')} {(context.headers or {}).get('x-who')}"


@server.tool()
async def fail() -> str:
    """Fail, and say why."""
    raise ToolError("the drawer is locked")


@server.tool(structured_output=False)
async def draw() -> list[str | Image]:
    """Draw something."""
    return ["A dot.", Image(data=b"12345", format="png")]


@server.tool()
async def count(to: int, context: Context[object, object]) -> str:
    """Count, and tell how far it is."""
    for n in range(1, to + 1):
        await context.report_progress(n, to, "counted" if n > 1 else None)
    return "counted"


@server.tool()
async def hold(name: str) -> str:
    """Hold something until `let_go`."""
    say("began", name)
    try:
        await gates.setdefault(name, anyio.Event()).wait()
    except anyio.get_cancelled_exc_class():
        say("stopped", name)
        raise
    return f"held {name}"


@server.tool()
async def ignore(name: str) -> str:
    """Hold something, and let nobody interrupt."""
    say("began", name)
    with anyio.CancelScope(shield=True):
        await gates.setdefault(name, anyio.Event()).wait()
    say("finished", name)
    return f"held {name}"


@server.tool(name="let.go")
async def let_go(name: str) -> str:
    """Let go of what is held."""
    gates.setdefault(name, anyio.Event()).set()
    return f"let go of {name}"


@server.tool()
async def die() -> str:
    """End the process in the middle of a call."""
    os._exit(3)


def form(message: str, **fields: dict[str, object]) -> ElicitRequest:
    """Return a question with these fields, all of them required."""
    schema = {"type": "object", "properties": fields, "required": list(fields)}
    return ElicitRequest(
        params=ElicitRequestFormParams(message=message, requested_schema=schema)
    )


@server.tool(structured_output=False)
async def book(day: str, context: Context[object, object]) -> str | InputRequiredResult:
    """Book a table; where and for how many is for a person to say."""
    if context.input_responses is None:
        place = form("Where?", place={"type": "string", "enum": ["inside", "outside"]})
        party = form("Who?", count={"type": "integer"}, vegan={"type": "boolean"})
        return InputRequiredResult(
            input_requests={"where": place, "party": party}, request_state=f"table on {day}"
        )
    said = []
    for name, response in sorted(context.input_responses.items()):
        assert isinstance(response, ElicitResult)
        said.append(f"{name} {response.action} {response.content}")
    return f"{context.request_state}: {'; '.join(said)}"


@server.tool(structured_output=False)
async def sign(context: Context[object, object]) -> str | InputRequiredResult:
    """Have a person sign elsewhere."""
    if context.input_responses is None:
        there = ElicitRequestURLParams(message="Sign.", url="https://sign.example/1")
        return InputRequiredResult(input_requests={"sign": ElicitRequest(params=there)})
    return str(context.input_responses["sign"].model_dump(exclude_none=True, mode="json"))


@server.tool(structured_output=False)
async def sample() -> str | InputRequiredResult:
    """Ask for a model's reply."""
    params = CreateMessageRequestParams(messages=[], max_tokens=1)
    return InputRequiredResult(input_requests={"m": CreateMessageRequest(params=params)})


@server.tool(structured_output=False)
async def put_off(context: Context[object, object]) -> str | InputRequiredResult:
    """Complete the call at the third request."""
    times = int(context.request_state or 0)
    return "done" if times == 2 else InputRequiredResult(request_state=str(times + 1))


@server.tool(structured_output=False)
async def capabilities(context: Context[object, object]) -> str:
    """Tell what the client has declared."""
    declared = context.client_capabilities
    return str(declared.model_dump(exclude_none=True)) if declared else "none"


async def speak_as_of_old() -> None:
    """Serve stdio so that the SDK never hears of discovery, after which it insists on 2026."""
    heard, hears = anyio.create_memory_object_stream[SessionMessage | Exception]()
    async with stdio_server() as (incoming, outgoing), anyio.create_task_group() as tasks:

        async def listen() -> None:
            async with heard:
                async for item in incoming:
                    asked = item.message if isinstance(item, SessionMessage) else None
                    if isinstance(asked, JSONRPCRequest) and asked.method == "server/discover":
                        no = JSONRPCError(jsonrpc="2.0", id=asked.id, error=UNHEARD_OF)
                        await outgoing.send(SessionMessage(no))
                    else:
                        await heard.send(item)

        tasks.start_soon(listen)
        inside = server._lowlevel_server
        await inside.run(hears, outgoing, inside.create_initialization_options())


def serve(port: int) -> None:
    """Serve HTTP on this port of the loopback, or on any; say which."""
    listening = socket.create_server(("127.0.0.1", port))
    say("port", listening.getsockname()[1])
    config = uvicorn.Config(server.streamable_http_app(), log_level="error")
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    say("pid", os.getpid())
    if WHERE == "stdio" and OLD:
        anyio.run(speak_as_of_old)
    elif WHERE == "stdio":
        server.run("stdio")
    else:
        serve(int(WHERE))
