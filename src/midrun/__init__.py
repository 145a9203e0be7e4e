"""Midrun: pause, redirect, resume and cancel for Python agents that are already running."""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:  # what `__getattr__` finds, for those who only read
    from midrun.agents.agent import Agent
    from midrun.agents.call import Call
    from midrun.agents.checkpoint import Checkpoint
    from midrun.agents.outcome import Cancelled, Completed, Failed, Outcome, Paused, is_paused
    from midrun.agents.pausing import ask_human, pause_here
    from midrun.agents.tool import NOT_DONE, Tool, tool
    from midrun.client.connect import connect
    from midrun.core.report import Report
    from midrun.core.values import Actor
    from midrun.embed.midrun import Midrun
    from midrun.embed.run import Run
    from midrun.errors import (
        CheckpointRefused,
        ControlRefused,
        MidrunError,
        Misconfigured,
        NotJson,
        OutcomeUnknown,
        RunNotFound,
    )
    from midrun.handles.receipt import Receipt
    from midrun.handles.view import RunView

__all__ = [
    "NOT_DONE",
    "Actor",
    "Agent",
    "Call",
    "Cancelled",
    "Checkpoint",
    "CheckpointRefused",
    "Completed",
    "ControlRefused",
    "Failed",
    "Midrun",
    "MidrunError",
    "Misconfigured",
    "NotJson",
    "Outcome",
    "OutcomeUnknown",
    "Paused",
    "Receipt",
    "Report",
    "Run",
    "RunNotFound",
    "RunView",
    "Tool",
    "ask_human",
    "connect",
    "is_paused",
    "pause_here",
    "tool",
]

_HOMES = {
    "Agent": "agents.agent",
    "Call": "agents.call",
    "Checkpoint": "agents.checkpoint",
    **dict.fromkeys(
        ("Cancelled", "Completed", "Failed", "Outcome", "Paused", "is_paused"), "agents.outcome"
    ),
    **dict.fromkeys(("ask_human", "pause_here"), "agents.pausing"),
    **dict.fromkeys(("NOT_DONE", "Tool", "tool"), "agents.tool"),
    "connect": "client.connect",
    "Report": "core.report",
    "Actor": "core.values",
    "Midrun": "embed.midrun",
    "Receipt": "handles.receipt",
    "Run": "embed.run",
    "RunView": "handles.view",
}
"""Where each name lives, other than `errors`. It is fetched when it is asked for: a process for
one blocking tool, or a command that presses one button, must not load everything."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'midrun' has no attribute {name!r}")
    return getattr(_importlib.import_module(f"midrun.{_HOMES.get(name, 'errors')}"), name)
