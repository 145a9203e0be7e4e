"""Thought: messages, frames, the plan, the history, and a person at the wheel."""

from typing import Literal

from midrun.core.facts.fact import Asked, Fact
from midrun.core.ids import CallId, FrameId, Micros, Seq
from midrun.core.values import Item, Urgency


class MessageReceived(Asked, kw_only=True):
    """Somebody spoke to the run while it works; `ack` is what they were told at once."""

    text: str
    urgency: Urgency = "next"
    due: Micros | None = None
    ack: str = ""
    queued: bool = False  # the stack of frames was full when it came


class MessageDue(Asked, kw_only=True):
    """The time of a scheduled message has come."""

    message: Seq


class MessageTaken(Fact, kw_only=True):
    """The message reached the agent without suspending anything."""

    message: Seq


class MessageClosed(Asked, kw_only=True):
    """The message was withdrawn, or came back because the run ended first."""

    message: Seq
    why: Literal["withdrawn", "returned"]
    text: str = ""


class FramePushed(Fact, kw_only=True):
    """A chain of thought was suspended to answer a message."""

    frame: FrameId
    message: Seq
    goal: str
    done: int = 0
    total: int = 0
    next: str = ""
    expires: Micros


class FrameResumed(Asked, kw_only=True):
    """The suspended chain goes on where it stood."""

    frame: FrameId
    words: str


class FrameReconstructed(Asked, kw_only=True):
    """The chain was held for too long: it goes on as a reconstruction, and says so."""

    frame: FrameId
    words: str


class FrameAbandoned(Asked, kw_only=True):
    """The suspended chain was given up, by name."""

    frame: FrameId
    why: Literal["dropped", "cancelled"]
    words: str = ""


class PlanMade(Fact, kw_only=True):
    """The agent set or revised its plan."""

    items: tuple[Item, ...]


class HistoryCondensed(Fact, kw_only=True):
    """Older messages are given to the model as a summary; the journal keeps them all."""

    call: CallId
    upto: int
    summary: str


class AnswerGiven(Fact, kw_only=True):
    """A hosted agent returned: this is what the run would end with."""

    text: str


class TakenOver(Asked, kw_only=True):
    """A person becomes the assistant once nothing is in flight."""


class PersonWrote(Asked, kw_only=True):
    """The person at the wheel said something as the assistant."""

    text: str


class ToolUsed(Asked, kw_only=True):
    """The person at the wheel wants one of the agent's calls made; `CallProposed` follows."""

    tool: str


class HandedBack(Asked, kw_only=True):
    """The person returned the run to its agent."""
