"""An MCP server process for tests. It writes a line to a named pipe for each event.

    server.py PIPE stdio|PORT [old]

With `old` it does not know the protocol of 2026, and the client has to use an earlier one.
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
from mcp.server.mcpserver.prompts.base import AssistantMessage, Message, UserMessage
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

PIPE, TRANSPORT, IS_OLD = sys.argv[1], sys.argv[2], "old" in sys.argv[3:]

NO_SUCH_METHOD: Final = ErrorData(code=METHOD_NOT_FOUND, message="no such method")

gates: dict[str, anyio.Event] = {}


def write_line(*words: object) -> None:
    """Write a line to the pipe in one piece, and flush it."""
    with open(PIPE, "a", buffering=1) as pipe:  # noqa: PTH123 - `Path.open` does no more
        print(*words, file=pipe)


async def report_and_modify(
    context: ServerRequestContext[object, object],
    call_next: Callable[[ServerRequestContext[object, object]], Awaitable[object]],
) -> object:
    """Report cancellations; refuse discovery as an old server does.

    Declare an output schema for `greet` that its result does not fit.
    """
    if context.method == "notifications/cancelled":
        write_line("told to cancel")
    if IS_OLD and context.method == "server/discover":
        raise MCPError.from_error_data(NO_SUCH_METHOD)
    result = await call_next(context)
    if isinstance(result, dict) and context.method == "tools/list":
        (greet_tool,) = (tool for tool in result["tools"] if tool["name"] == "greet")
        greet_tool["outputSchema"] = {"type": "object", "required": ["greeting"]}
    return result


# All processes of this server have the same key, so that one can continue for another.
security = RequestStateSecurity(keys=["one key of at least thirty-two bytes"])
server = MCPServer("office", middleware=[report_and_modify], request_state_security=security)  # type: ignore[list-item]  # mypy: invariance


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
    """Return the key that came with the call."""
    return str(dict(context.request_context.meta or {})["dev.midrun/key"])


@server.tool(structured_output=False)
async def who(context: Context[object, object]) -> str:
    """Return an environment variable of this server and a header of the request."""
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
    """Count, and report the progress."""
    for n in range(1, to + 1):
        await context.report_progress(n, to, "counted" if n > 1 else None)
    return "counted"


@server.tool()
async def hold(name: str) -> str:
    """Hold something until `let_go`."""
    write_line("began", name)
    try:
        await gates.setdefault(name, anyio.Event()).wait()
    except anyio.get_cancelled_exc_class():
        write_line("stopped", name)
        raise
    return f"held {name}"


@server.tool()
async def ignore(name: str) -> str:
    """Hold something until `let_go`, and ignore cancellations."""
    write_line("began", name)
    with anyio.CancelScope(shield=True):
        await gates.setdefault(name, anyio.Event()).wait()
    write_line("finished", name)
    return f"held {name}"


@server.tool(name="let.go")
async def let_go(name: str) -> str:
    """End a call of `hold` or `ignore`."""
    gates.setdefault(name, anyio.Event()).set()
    return f"let go of {name}"


@server.tool()
async def die() -> str:
    """End the process in the middle of a call."""
    os._exit(3)


def form(message: str, **fields: dict[str, object]) -> ElicitRequest:
    """Return a request for a form with these fields, all of them required."""
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
    responses = []
    for name, response in sorted(context.input_responses.items()):
        assert isinstance(response, ElicitResult)
        responses.append(f"{name} {response.action} {response.content}")
    return f"{context.request_state}: {'; '.join(responses)}"


@server.tool(structured_output=False)
async def sign(context: Context[object, object]) -> str | InputRequiredResult:
    """Have a person sign elsewhere."""
    if context.input_responses is None:
        params = ElicitRequestURLParams(message="Sign.", url="https://sign.example/1")
        return InputRequiredResult(input_requests={"sign": ElicitRequest(params=params)})
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
    """Return the capabilities that the client has declared."""
    declared = context.client_capabilities
    return str(declared.model_dump(exclude_none=True)) if declared else "none"


@server.resource("notes://today", description="The notes of today.")
async def read_notes() -> str:
    """Return a text."""
    return "Buy milk."


@server.resource("notes://{day}", mime_type="text/markdown")
async def read_day(day: str) -> str:
    """Return the notes of a day; `monday` ends the process."""
    if day == "monday":
        os._exit(3)
    return f"# {day}"


@server.prompt(description="Review a file.")
def review(file: str) -> list[Message]:
    """Return a short conversation about a file."""
    return [
        UserMessage("You review code."),
        AssistantMessage("Which file?"),
        UserMessage(f"Review {file}."),
    ]


@server.prompt()
def open_ended() -> list[Message]:
    """Return a conversation whose last message is not the user's."""
    return [AssistantMessage("What now?")]


async def serve_old_stdio() -> None:
    """Serve stdio without discovery: after a discovery, the SDK insists on 2026."""
    forwarded, server_input = anyio.create_memory_object_stream[SessionMessage | Exception]()
    async with stdio_server() as (incoming, outgoing), anyio.create_task_group() as tasks:

        async def forward_messages() -> None:
            async with forwarded:
                async for item in incoming:
                    request = item.message if isinstance(item, SessionMessage) else None
                    if (
                        isinstance(request, JSONRPCRequest)
                        and request.method == "server/discover"
                    ):
                        refusal = JSONRPCError(
                            jsonrpc="2.0", id=request.id, error=NO_SUCH_METHOD
                        )
                        await outgoing.send(SessionMessage(refusal))
                    else:
                        await forwarded.send(item)

        tasks.start_soon(forward_messages)
        lowlevel = server._lowlevel_server
        await lowlevel.run(server_input, outgoing, lowlevel.create_initialization_options())


def serve_http(port: int) -> None:
    """Serve HTTP on this port of loopback (0: any free one), and report the port."""
    listener = socket.create_server(("127.0.0.1", port))
    write_line("port", listener.getsockname()[1])
    config = uvicorn.Config(server.streamable_http_app(), log_level="error")
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    write_line("pid", os.getpid())
    if TRANSPORT == "stdio" and IS_OLD:
        anyio.run(serve_old_stdio)
    elif TRANSPORT == "stdio":
        server.run("stdio")
    else:
        serve_http(int(TRANSPORT))
