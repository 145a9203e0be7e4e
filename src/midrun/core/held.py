"""Held thoughts in a prompt: what a model is told of them, and what telling it costs.

A frame costs tokens in every model call that is made while it is held. What is said of it is
short whatever its goal is, and counted with each call.
"""

from math import ceil
from typing import Final

from midrun.core.state import State
from midrun.core.words import line

TOKEN: Final = 4
"""Characters that count as one token: providers differ, and this is an estimate."""

FRAME_TOKENS: Final = 60
"""No held thought costs more than this in one call."""


def told(goal: str) -> str:
    """Return what a model is told when a chain of thought is suspended."""
    return f"Held: {line(goal)}. Answer this first; the run comes back to it."


def reminder(goal: str) -> str:
    """Return what a summary of the history says of a thought that is held meanwhile."""
    return f"Held: {line(goal)}"


def tokens(state: State) -> int:
    """Return about how many tokens of the next prompt are there because thoughts are held."""
    said = [told(frame.goal) for frame in state.frames]
    if state.summary:
        said += [reminder(frame.goal) for frame in state.frames]
    return sum(ceil(len(text) / TOKEN) for text in said)
