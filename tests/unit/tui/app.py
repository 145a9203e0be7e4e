"""An app for tests in real terminals: its tools wait for a file, and one model is hostile."""

import os
import time
from pathlib import Path

from anyio import Path as AsyncPath
from anyio import sleep

from midrun import Agent, Call, tool
from midrun.models import ScriptedModel, Use

GATE = os.environ.get("GATE", "")


async def discard(call: Call, args: dict[str, str], result: object) -> None:
    """Undo a draft."""


@tool(undo=discard)
async def write(title: str) -> str:
    """Write."""
    return f"wrote {title}"


@tool(read_only=True)
async def read(what: str) -> str:
    """Read, after the gate is open."""
    while not await AsyncPath(GATE).exists():  # noqa: ASYNC110 - processes share a file, not an event
        await sleep(0.005)
    return f"all of {what}"


@tool(read_only=True, env=["GATE"])
def count(what: str) -> int:
    """Count in a process of its own and print; then wait for the gate."""
    print(f"counting \x1b[2J{what}")  # noqa: T201 - the output of a tool is tested
    while not Path(GATE).exists():
        time.sleep(0.005)  # noqa: TID251 - a blocking tool is tested
    return len(what)


EVIL = "\x1b]0;owned\x07\x1b[2J\x1b[H\x9b31mI was \u202ehere"
TALK = "word " * 600

clerk = Agent(
    "clerk",
    model=ScriptedModel([Use("write", title="Memo"), Use("read", what="news"), "All read."]),
    tools=[write, read],
)
talker = Agent("talker", model=ScriptedModel([TALK, "Done."], chunk_delay=0.02))
counter = Agent(
    "counter", model=ScriptedModel([Use("count", what="cats"), "Counted."]), tools=[count]
)
evil = Agent(
    "evil", model=ScriptedModel([[EVIL, Use("read", what=EVIL)], "Well."]), tools=[read]
)
