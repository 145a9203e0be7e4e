"""An agent of the Claude Agent SDK, in a process of its own, approved by Midrun.

python examples/hosts/claude_agent.py

The agent is a usual program of the SDK, with its unmodified CLI. Only the model provider is
scripted, so that no key is needed; with a key, write `Upstream("anthropic")`.
"""

import json
import os
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

import anyio

from midrun import Agent, Call, Midrun, tool
from midrun.hosts import Upstream, process

# ── the agent: a program of its own ──────────────────────────────────────────────────────────


async def run_claude() -> None:
    """Read the task, work on it with the tools of the run, and print the result."""
    from claude_agent_sdk import (  # noqa: PLC0415 - only the process needs it
        ClaudeAgentOptions,
        ResultMessage,
        get_session_info,
        query,
    )

    # The process ends while a person decides. The next one continues the same session.
    session = str(uuid5(NAMESPACE_URL, os.environ["MIDRUN_RUN_ID"]))
    known = get_session_info(session, directory=str(Path.cwd())) is not None
    options = ClaudeAgentOptions(
        model="claude-sonnet-4-5",
        tools=[],  # none of the CLI's own: Midrun could not gate them
        mcp_servers={
            "midrun": {
                "type": "http",
                "url": os.environ["MIDRUN_MCP_URL"],
                "headers": {"Authorization": f"Bearer {os.environ['MIDRUN_KEY']}"},
            }
        },
        allowed_tools=["mcp__midrun"],
        setting_sources=[],
        resume=session if known else None,
        session_id=None if known else session,
    )
    task = sys.stdin.read()
    async for message in query(prompt="Continue." if known else task, options=options):
        if isinstance(message, ResultMessage):
            print(message.result)


# ── Midrun: the tools, and how to start the program ──────────────────────────────────────────

charged: list[int] = []


async def refund(call: Call, args: dict[str, int], result: object) -> None:
    """Undo a charge."""
    del call, result
    charged.remove(args["customer"])


@tool(undo=refund, approve=True)
async def charge(customer: int) -> str:
    """Charge a customer."""
    charged.append(customer)
    return f"charged {customer}"


def make_agent(upstream: Upstream, home: str) -> Agent:
    """Return the hosted agent; the CLI keeps its sessions in `home`."""
    return process(
        name="biller",
        command=[sys.executable, str(Path(__file__).resolve()), "agent"],
        tools=[charge],
        upstream=upstream,
        keeps_history=True,
        cwd=home,
        env={"HOME": home},
    )


async def main(url: str, home: str) -> None:
    """Run the agent, and approve its only charge."""
    biller = make_agent(Upstream("anthropic", url=url, key="none"), home)
    async with Midrun("memory://", agents=[biller]) as midrun:
        run = await midrun.start(biller, "Charge customer 42.")
        ask = (await run.until("waiting")).asks[0]
        print(f"waiting: {ask.tool} {ask.args}, charged: {charged}")
        await run.approve(actor="olga")
        print(f"completed: {(await run.until('completed')).output} charged: {charged}")


# ── the scripted provider ────────────────────────────────────────────────────────────────────


class ScriptedProvider(BaseHTTPRequestHandler):
    """Asks for the charge, and is done when a request says that it was made."""

    def do_POST(self) -> None:
        """Answer a request of the Messages protocol with a stream."""
        body = self.rfile.read(int(self.headers["content-length"]))
        block: dict[str, object] = {"type": "text", "text": ""}
        delta = {"type": "text_delta", "text": "Customer 42 is charged."}
        if b"charged 42" not in body:
            name = "mcp__midrun__charge"
            block = {"type": "tool_use", "id": "toolu_1", "name": name, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": '{"customer": 42}'}
        reason = "tool_use" if block["type"] == "tool_use" else "end_turn"
        usage = {"input_tokens": 9, "output_tokens": 1}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "scripted"}
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self._send("message_start", message={**message, "content": [], "usage": usage})
        self._send("content_block_start", index=0, content_block=block)
        self._send("content_block_delta", index=0, delta=delta)
        self._send("content_block_stop", index=0)
        self._send("message_delta", delta={"stop_reason": reason}, usage={"output_tokens": 7})
        self._send("message_stop")

    def _send(self, kind: str, **fields: object) -> None:
        data = json.dumps({"type": kind, **fields})
        self.wfile.write(f"event: {kind}\ndata: {data}\n\n".encode())

    def log_message(self, *_: object) -> None:
        """Print nothing."""


if __name__ == "__main__":
    if sys.argv[1:] == ["agent"]:
        anyio.run(run_claude)
    else:
        server = ThreadingHTTPServer(("127.0.0.1", 0), ScriptedProvider)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with tempfile.TemporaryDirectory() as folder:
            anyio.run(main, f"http://127.0.0.1:{server.server_port}", folder)
