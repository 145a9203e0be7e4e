"""An agent in a process of its own, for the host suite: only the standard library and HTTP.

The test imports `make_process`. The worker starts this file as a program.
"""

import json
import os
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from midrun import Agent
    from midrun.agents.tool import Tool
    from midrun.stops import Stop

Fields = dict[str, Any]  # type: ignore[explicit-any]  # JSON of the provider


def make_process(url: str, _: object) -> "partial[Agent]":
    """Return a function that makes the hosted agent, with a provider at `url`."""
    return partial(_make_agent, url)


def _make_agent(url: str, charge: "Tool", stop: "Stop | None") -> "Agent":
    from midrun.hosts import Upstream, process  # noqa: PLC0415 - not in the started program

    return process(
        name="biller",
        command=[sys.executable, "-I", __file__],
        tools=[charge],
        upstream=Upstream("openai", url=url, key="sk-upstream"),
        parallel=True,
        stop=stop,
    )


def post(url: str, body: Fields, **headers: str) -> Iterator[Fields]:
    """Send a request, and yield the events of its answer."""
    head = {
        "authorization": f"Bearer {os.environ['MIDRUN_KEY']}",
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        **headers,
    }
    request = urllib.request.Request(url, json.dumps(body).encode(), head)  # noqa: S310 - http
    with urllib.request.urlopen(request) as response:  # noqa: S310 - as above
        for line in response:
            data = line.decode().removeprefix("data:").strip()
            if line.startswith(b"data:") and data and data != "[DONE]":
                yield json.loads(data)


def ask_model(messages: list[Fields]) -> Fields:
    """Return the message of a streamed reply."""
    body = {"model": "gpt-5.2", "stream": True, "messages": messages}
    text, calls = "", dict[int, Fields]()
    for chunk in post(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", body):
        delta = chunk["choices"][0]["delta"]
        text += delta.get("content") or ""
        for part in delta.get("tool_calls") or ():
            call = calls.setdefault(part["index"], {"type": "function", **part})
            if call["function"] is not part["function"]:
                call["function"]["arguments"] += part["function"]["arguments"]
    return {"role": "assistant", "content": text, "tool_calls": list(calls.values())}


def call_tool(call: Fields) -> Fields:
    """Make a tool call at the MCP server of the run."""
    function = call["function"]
    params = {"name": function["name"], "arguments": json.loads(function["arguments"])}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    url, version = os.environ["MIDRUN_MCP_URL"], "2025-06-18"
    (answer,) = post(url, body, **{"mcp-protocol-version": version})
    text = answer["result"]["content"][0]["text"]
    return {"role": "tool", "tool_call_id": call["id"], "content": text}


def main() -> None:
    """Run the loop: ask the model, make its calls, until a reply has none."""
    messages: list[Fields] = [{"role": "user", "content": sys.stdin.read()}]
    while True:
        reply = ask_model(messages)
        if not reply["tool_calls"]:
            sys.stdout.write(reply["content"])
            return
        messages.append(reply)
        with ThreadPoolExecutor() as pool:
            messages += pool.map(call_tool, reply["tool_calls"])


if __name__ == "__main__":
    main()
