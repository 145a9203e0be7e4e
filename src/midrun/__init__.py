"""Midrun: pause, redirect, resume and cancel Python agents while they run.

Start with `Agent`, `tool` and `Midrun`. `Run` is the handle of one run; `connect` opens the
same interface over HTTP. The layers, from the bottom: `core` (the pure state machine);
`codec`, `ports` and `verify`; `agents`; `driver`, `stores`, `mcp` and `models`; `workers`;
`runs` (this API) and `client`; `server`, `tui` and `followers`; `cli`. Imports point down.

The names below are imported when they are first used.
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:  # for type checkers, which cannot follow `__getattr__`
    from midrun.agents.agent import Agent
    from midrun.agents.builtin_tools import ask_human, pause_here
    from midrun.agents.checkpoint import Checkpoint
    from midrun.agents.file import File
    from midrun.agents.outcome import Cancelled, Completed, Failed, Outcome, Paused, is_paused
    from midrun.agents.tool import NOT_DONE, Tool, tool, traits
    from midrun.agents.tool_context import Call
    from midrun.client import connect
    from midrun.core.values import Actor, FileLimits
    from midrun.errors import (
        CheckpointRefused,
        ControlRefused,
        MidrunError,
        Misconfigured,
        ModelRetry,
        NotJson,
        OutcomeUnknown,
        RunNotFound,
    )
    from midrun.hosts import host
    from midrun.runs.midrun import Midrun
    from midrun.runs.run import Run
    from midrun.runs.values import Receipt, RunView
    from midrun.text.report import Report

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
    "File",
    "FileLimits",
    "Midrun",
    "MidrunError",
    "Misconfigured",
    "ModelRetry",
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
    "host",
    "is_paused",
    "pause_here",
    "tool",
    "traits",
]

_MODULE_BY_NAME = {
    "Agent": "agents.agent",
    "Call": "agents.tool_context",
    "Checkpoint": "agents.checkpoint",
    "File": "agents.file",
    **dict.fromkeys(
        ("Cancelled", "Completed", "Failed", "Outcome", "Paused", "is_paused"), "agents.outcome"
    ),
    **dict.fromkeys(("ask_human", "pause_here"), "agents.builtin_tools"),
    **dict.fromkeys(("NOT_DONE", "Tool", "tool", "traits"), "agents.tool"),
    "connect": "client",
    "host": "hosts",
    "Report": "text.report",
    **dict.fromkeys(("Actor", "FileLimits"), "core.values"),
    "Midrun": "runs.midrun",
    "Receipt": "runs.values",
    "Run": "runs.run",
    "RunView": "runs.values",
}
"""Public name → its module, unless that is `errors`.

Modules are imported on first use: a process that runs one blocking tool, or a command that
sends one control, must start fast and not load everything.
"""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'midrun' has no attribute {name!r}")
    return getattr(
        _importlib.import_module(f"midrun.{_MODULE_BY_NAME.get(name, 'errors')}"), name
    )
