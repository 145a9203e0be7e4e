"""Midrun: pause, redirect, resume and cancel for Python agents that are already running."""

from midrun.agents.agent import Agent
from midrun.agents.call import Call
from midrun.agents.checkpoint import Checkpoint
from midrun.agents.outcome import Cancelled, Completed, Failed, Outcome, Paused, is_paused
from midrun.agents.pausing import ask_human, pause_here
from midrun.agents.tool import NOT_DONE, Tool, tool
from midrun.core.report import Report
from midrun.core.values import Actor
from midrun.embed.midrun import Midrun
from midrun.embed.receipt import Receipt
from midrun.embed.run import Run
from midrun.embed.view import RunView
from midrun.errors import (
    CheckpointRefused,
    ControlRefused,
    MidrunError,
    Misconfigured,
    NotJson,
    RunNotFound,
)

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
    "Paused",
    "Receipt",
    "Report",
    "Run",
    "RunNotFound",
    "RunView",
    "Tool",
    "ask_human",
    "is_paused",
    "pause_here",
    "tool",
]
