"""A plain async function for the host suite: a loop of its own around the `openai` package."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

import anyio
import msgspec
from openai import AsyncOpenAI, AsyncStream
from openai.types.chat import ChatCompletionChunk
from openai.types.chat.chat_completion_chunk import ChoiceDeltaToolCall

from midrun.core.values import Json
from midrun.errors import StepNotDone
from midrun.hosts import FunctionRun

CHARGE_TOOL: Json = {
    "type": "function",
    "function": {
        "name": "charge",
        "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
    },
}
JsonObject = dict[str, Json]


def make_function(url: str, charge: Callable[[int], Awaitable[str]]) -> object:
    """Return the function; `charge` is its only step."""
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)

    async def biller(run: FunctionRun, task: str) -> str:
        messages: list[JsonObject] = [{"role": "user", "content": task}]
        while True:
            reply = await run.model(stream_chat, messages, client)
            assert isinstance(reply, dict)
            if not reply["tool_calls"]:
                return str(reply["content"])
            messages.append(reply)
            messages += await make_charges(run, charge, reply["tool_calls"])

    return biller


async def stream_chat(
    messages: list[JsonObject], client: AsyncOpenAI
) -> AsyncIterator[str | JsonObject]:
    """Yield the text of a reply as it arrives, then its message in the chat protocol."""
    body: JsonObject = {"model": "gpt-5.2", "messages": messages, "tools": [CHARGE_TOOL]}
    stream = cast(
        "AsyncStream[ChatCompletionChunk]",
        await client.chat.completions.create(**body, stream=True),  # type: ignore[call-overload]  # plain JSON
    )
    text, calls = "", dict[int, JsonObject]()
    async with stream:
        async for chunk in stream:
            if not chunk.choices:
                continue
            delta = chunk.choices[0].delta
            if delta.content:
                text += delta.content
                yield delta.content
            for part in delta.tool_calls or ():
                add_call_part(calls, part)
    yield {"role": "assistant", "content": text, "tool_calls": list(calls.values())}


def add_call_part(calls: dict[int, JsonObject], part: ChoiceDeltaToolCall) -> None:
    """Add a piece of a streamed call to the calls so far."""
    call = calls.setdefault(part.index, {"type": "function", "function": {"arguments": ""}})
    call["id"] = part.id or call["id"]
    function = call["function"]
    assert isinstance(function, dict)
    if part.function is not None:
        function["name"] = part.function.name or function["name"]
        function["arguments"] = f"{function['arguments']}{part.function.arguments or ''}"


async def make_charges(
    run: FunctionRun, charge: Callable[[int], Awaitable[str]], calls: list[JsonObject]
) -> list[JsonObject]:
    """Make the charges of one reply in parallel; return their messages in order."""
    results: list[JsonObject] = [{} for _ in calls]

    async def make_one(index: int) -> None:
        function = calls[index]["function"]
        assert isinstance(function, dict)
        arguments = msgspec.json.decode(str(function["arguments"]))
        try:
            result: Json = await run.step("charge", charge, arguments["n"])
        except StepNotDone as error:
            result = str(error)
        results[index] = {"role": "tool", "tool_call_id": calls[index]["id"], "content": result}

    async with anyio.create_task_group() as group:
        for index in range(len(calls)):
            group.start_soon(make_one, index)
    return results
