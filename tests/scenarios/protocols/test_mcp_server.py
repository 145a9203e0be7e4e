"""Runs as tools of an MCP server, with the client of the official SDK.

Over HTTP on a real socket, and over stdio with a real process (`midrun mcp`).
"""

import json
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import anyio
import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client import ClientRequestContext
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CallToolResult,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
    InputRequiredResult,
    Request,
    RequestParams,
    Result,
    TextContent,
)

from midrun import Agent, Midrun, ask_human, tool
from midrun.core.values import Json
from midrun.models import ScriptedModel, Use
from midrun.testing.controllable_tools import ControllableTools
from tests.scenarios.protocols.conftest import ProtocolServer, ServeAgent
from tests.unit.server.conftest import TIMEOUT_S, make_token

pytestmark = pytest.mark.once


class FormAnswers:
    """Fills in the forms of a server, in order, and records their messages."""

    def __init__(self, *results: ElicitResult) -> None:
        self.messages: list[str] = []
        self._results = list(results)

    async def __call__(
        self, _: ClientRequestContext, params: ElicitRequestParams
    ) -> ElicitResult:
        assert isinstance(params, ElicitRequestFormParams)
        self.messages.append(params.message)
        return self._results.pop(0)


def accept(**content: str) -> ElicitResult:
    """Return the response of a person who has filled in a form."""
    return ElicitResult(action="accept", content=dict(content))


@asynccontextmanager
async def open_mcp_client(
    server: ProtocolServer,
    user: str = "olga",
    *,
    answers: FormAnswers | None = None,
    mode: str = "auto",
    extensions: Sequence[ClientExtension] = (),
) -> AsyncIterator[Client]:
    """Open the client of the SDK with the token of `user`."""
    headers = {"Authorization": f"Bearer {make_token(user)}"}
    async with httpx2.AsyncClient(headers=headers, timeout=TIMEOUT_S) as http:
        transport = streamable_http_client(f"{server.url}/mcp", http_client=http)
        async with Client(
            transport, elicitation_callback=answers, mode=mode, extensions=list(extensions)
        ) as client:
            yield client


async def call(client: Client, name: str, **arguments: Json) -> dict[str, Json]:
    """Call a tool that must succeed, and return its structured result."""
    result = await client.call_tool(f"midrun_{name}", dict(arguments))
    assert not result.is_error, result.content
    assert result.structured_content is not None
    (text,) = result.content
    assert isinstance(text, TextContent)
    assert json.loads(text.text) == result.structured_content
    return result.structured_content


async def call_in_vain(client: Client, name: str, **arguments: Json) -> str:
    """Call a tool that must fail, and return the text of the error."""
    result = await client.call_tool(f"midrun_{name}", dict(arguments))
    assert result.is_error, result.structured_content
    (text,) = result.content
    assert isinstance(text, TextContent)
    return text.text


def make_payer(effects: list[str]) -> Agent:
    """Return an agent whose only call needs an approval."""

    @tool(approve=True)
    async def pay(to: str) -> str:
        """Pay a bill."""
        effects.append(to)
        return "paid"

    return Agent("actor", model=ScriptedModel([Use("pay", to="ada"), "Paid."]), tools=[pay])


MODES = pytest.mark.parametrize("mode", ["auto", "legacy"])


@MODES
async def test_a_run_is_started_paused_redirected_and_completed(
    serve_agent: ServeAgent, stage: ControllableTools, mode: str
) -> None:
    """The pause comes while the agent works, from a second client."""
    agent = stage.agent(Use("slow", name="x"), "On the new course.")
    async with (
        serve_agent(agent) as server,
        open_mcp_client(server, mode=mode) as first,
        open_mcp_client(server, mode=mode) as second,
    ):
        assert await call(first, "list_agents") == {"agents": ["actor"]}
        run = str((await call(first, "start", agent="actor", task="Go."))["run"])
        await stage.start("x").wait()
        paused = await call(second, "pause", run=run)
        assert (paused["phase"], paused["applied"]) == ("pausing", False)
        stage.gate("x").set()
        assert (await call(first, "wait", run=run))["phase"] == "paused"
        assert "midrun_resume" in (await call(first, "status", run=run))["tools"]  # type: ignore[operator]
        await call(second, "redirect", run=run, text="Change course.")
        done = await call(first, "wait", run=run)
        assert (done["phase"], done["output"]) == ("completed", "On the new course.")
        listed = await call(second, "list_runs", phase="completed")
        assert [row["run"] for row in listed["runs"]] == [run]  # type: ignore[union-attr,index,call-overload]
        texts = json.dumps((await call(second, "history", run=run))["entries"])
        assert "Change course." in texts
        assert "On the new course." in texts
