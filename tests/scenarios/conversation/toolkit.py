"""Tools that need an approval or block a thread, parent agents, and waits for child runs."""

import threading
from collections.abc import Awaitable
from datetime import timedelta

import pytest

from midrun import (
    Actor,
    Agent,
    Call,
    ControlRefused,
    Midrun,
    Receipt,
    Run,
    Tool,
    ask_human,
    tool,
)
from midrun.agents.outcome import AskView
from midrun.core.transcript import Transcript
from midrun.models import ScriptedModel
from midrun.testing.controllable_tools import ControllableTools

REVIEW_RESULT = "proposed, awaiting review"
"""The interim result of a call that is queued for review."""

HOUR = timedelta(hours=1)
OPERATOR = Actor(name="olga", role="operator")


class ApprovalToolkit(ControllableTools):
    """The controllable tools, tools that need an approval, and one that blocks a thread.

    `post` is queued for review, `pay` waits for an approval, `wire` for one of an operator,
    `sign` for one by four eyes. `grind` blocks a thread until the test sets `grind_gate`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.grind_gate = threading.Event()

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
        """Block a thread; this cannot be stopped."""
        self._record_call(call, name)
        self.grind_gate.wait()
        self.completed.append(name)
        return f"{name} done"


def make_child(toolkit: ControllableTools, *turns: object, **options: object) -> Agent:
    """Return an agent with the name `aide`, to be used as a tool of a parent."""
    return toolkit.agent(*turns, **{"name": "aide", **options})  # type: ignore[arg-type]  # checked there


def make_parent(
    *children: Agent, turns: object, toolkit: ControllableTools | None = None
) -> Agent:
    """Return an agent whose tools are `children`, and those of `toolkit`."""
    tools = [*(child.as_tool() for child in children), *(toolkit.tools() if toolkit else [])]
    return Agent("parent", model=ScriptedModel(turns), tools=tools)  # type: ignore[arg-type]  # checked there


async def wait_for_ask(midrun: Midrun, run: Run) -> AskView:
    """Wait until the parent waits, and return its ask; its row asks for attention, too."""
    view = await run.until("waiting")
    row = await midrun.store.get_row(run.id)
    assert row.head.attention == "ask"
    (ask,) = view.asks
    return ask


async def expect_refusal(control: Awaitable[Receipt]) -> ControlRefused:
    """Assert that a control is refused, and return the refusal."""
    with pytest.raises(ControlRefused) as caught:
        await control
    return caught.value


def repeat_last_message(messages: Transcript) -> str:
    """Return the text of the newest message, as the turn of the model."""
    return messages[-1].text
