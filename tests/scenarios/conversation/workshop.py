"""A stage with more tools: ones that a person must let be made, and ones that block."""

import threading
from datetime import timedelta

import anyio.lowlevel

from midrun import Agent, Call, Midrun, Run, Tool, ask_human, tool
from midrun.core.ids import CallId, RunId, make_child_id
from midrun.core.transcript import Transcript
from midrun.models import ScriptedModel
from tests.unit.runs.stage import ControllableTools

REVIEW = "proposed, awaiting review"
HOUR = timedelta(hours=1)


class Workshop(ControllableTools):
    """Tools as on a stage, and ones that somebody must look at first.

    `post` is queued for review, `pay` waits for a yes, `wire` for an operator's, `sign` for
    somebody else's. `grind` blocks a thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()  # what `grind` waits for

    def tools(self) -> list[Tool]:
        """Return the tools."""
        return [
            *super().tools(),
            ask_human,
            tool(self._quick, name="post", approve="queue"),
            tool(self._quick, name="brief_post", approve="queue", expires=HOUR),
            tool(self._quick, name="post_draft", approve="queue", undo=self._undo),
            tool(self._quick, name="wire_post", approve="queue", audience="operator"),
            tool(self._quick, name="pay", approve=True),
            tool(self._quick, name="wire", approve=True, audience="operator"),
            tool(self._quick, name="sign", approve=True, four_eyes=True),
            tool(self._grind, name="grind", in_process=True),
        ]

    def _grind(self, call: Call, name: str) -> str:
        """Block a thread, whatever anybody says."""
        self._record_call(call, name)
        self.let_go.wait()
        self.completed.append(name)
        return f"{name} done"


def delegating(
    *children: Agent, turns: object, stage: ControllableTools | None = None
) -> Agent:
    """Return an agent whose tools are `children`, and those of `stage`."""
    tools = [*(child.as_tool() for child in children), *(stage.tools() if stage else [])]
    return Agent("parent", model=ScriptedModel(turns), tools=tools)  # type: ignore[arg-type]  # checked there


async def child_of(midrun: Midrun, run: Run, call: str = "c2") -> Run:
    """Return the run that a call of `run` started, once it is there."""
    child = make_child_id(RunId(run.id), CallId(call))
    while True:
        try:
            return await midrun.get(child)
        except LookupError:
            await anyio.lowlevel.checkpoint()


def told(messages: Transcript) -> str:
    """Say what the agent was told of its last calls."""
    last = next(turn for turn in reversed(messages) if turn.uses)
    return "; ".join(f"{made.tool}: {made.problem or made.result}" for made in last.uses)


def last(messages: Transcript) -> str:
    """Say the newest thing that anybody said."""
    return messages[-1].text
