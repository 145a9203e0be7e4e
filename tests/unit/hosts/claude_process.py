"""An agent of the Claude Agent SDK in a process of its own, with the CLI of that package.

The test imports `make_process`. The worker starts this file as a program.
"""

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import NAMESPACE_URL, uuid5

import anyio

if TYPE_CHECKING:
    from midrun import Agent
    from midrun.agents.tool import Tool
    from midrun.stops import Stop


def make_process(url: str, _: object) -> "partial[Agent]":
    """Return a function that makes the hosted agent, with a provider at `url`."""
    return partial(_make_agent, url, True)  # noqa: FBT003 - by position, of a partial


def make_replayed_process(url: str, _: object) -> "partial[Agent]":
    """Return the same for a process that begins anew after a restart."""
    return partial(_make_agent, url, False)  # noqa: FBT003 - by position, of a partial


def _make_agent(url: str, keeps_history: bool, charge: "Tool", stop: "Stop | None") -> "Agent":
    from midrun.hosts import Upstream, process  # noqa: PLC0415 - not in the started program

    home = os.environ["CLAUDE_TEST_HOME"]
    return process(
        name="biller",
        command=[sys.executable, __file__, "resume" if keeps_history else "replay"],
        tools=[charge],
        upstream=Upstream("anthropic", url=url, key="sk-upstream"),
        keeps_history=keeps_history,
        parallel=True,
        cwd=home,
        env={"HOME": home},
        stop=stop,
    )


async def main(*, keeps_history: bool) -> None:
    """Run the agent; continue the session of the run if there is one."""
    from claude_agent_sdk import (  # noqa: PLC0415 - only in the started program
        ClaudeAgentOptions,
        ResultMessage,
        get_session_info,
        query,
    )

    session = str(uuid5(NAMESPACE_URL, os.environ["MIDRUN_RUN_ID"]))
    known = keeps_history and get_session_info(session, directory=str(Path.cwd())) is not None
    headers = {"Authorization": f"Bearer {os.environ['MIDRUN_KEY']}"}
    options = ClaudeAgentOptions(
        model="claude-sonnet-4-5",
        tools=[],
        mcp_servers={
            "midrun": {
                "type": "http",
                "url": os.environ["MIDRUN_MCP_URL"],
                "headers": headers,
            }
        },
        allowed_tools=["mcp__midrun"],
        setting_sources=[],
        resume=session if known else None,
        session_id=session if keeps_history and not known else None,
    )
    task = sys.stdin.read()
    prompt = "Continue." if known else task
    async for message in query(prompt=prompt, options=options):
        if isinstance(message, ResultMessage):
            sys.stdout.write(message.result or "")


if __name__ == "__main__":
    anyio.run(partial(main, keeps_history=sys.argv[1] == "resume"))
