"""Controls: what a person may ask of a run. Imperative; nothing has happened yet."""

from typing import dataclass_transform

from msgspec import Struct, field

from midrun.core.ids import AskId, FrameId, Micros, Seq
from midrun.core.values import Actor, Json, UndoSet, Urgency, Use, When


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Wish(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True, tag_field="control"
):
    """Base of every control: who asks, why, and under which request id.

    With `seen`, a revision of the run, it is refused if anybody asked something since.
    """

    by: Actor = Actor()
    reason: str = ""
    request: str = ""
    seen: Seq | None = None


class Pause(Wish, kw_only=True):
    """Stop at the next boundary; with `now`, abort what is in flight."""

    now: bool = False
    until: Micros | None = None


class Resume(Wish, kw_only=True):
    """Go on, with a new instruction or raised caps if given; takes back a pause that pends."""

    instruction: str = ""
    caps: dict[str, int] = {}


class Redirect(Wish, kw_only=True):
    """Change course at the next step, or now; finished work stays."""

    text: str
    when: When = "next_step"


class Say(Wish, kw_only=True):
    """Speak to the run while it works: a side question, a notice, a scheduled note."""

    text: str
    urgency: Urgency = "next"
    due: Micros | None = None


class Answer(Wish, kw_only=True):
    """Answer a question, or say whether an unsure call happened: yes, no, or unknown."""

    ask: AskId
    value: Json = None


class Approve(Wish, kw_only=True):
    """Let the call be made, with other arguments if given."""

    ask: AskId
    args: Json = None


class Decline(Wish, kw_only=True):
    """Do not let the call be made."""

    ask: AskId


class Cancel(Wish, kw_only=True):
    """Stop everything, undo, and report."""

    undo: UndoSet = "in_flight"


class Halt(Wish, kw_only=True):
    """The operator's latch holds this run."""

    scope: str = "run"


class Lift(Wish, kw_only=True):
    """The latch no longer holds this run."""


class RaiseCap(Wish, kw_only=True):
    """Move bounds of the stop condition."""

    caps: dict[str, int]


class Withdraw(Wish, kw_only=True):
    """Take back the pause, redirect or message at `seq` if it has not been applied."""

    seq: Seq


class ForcePause(Wish, kw_only=True):
    """Stop waiting for calls that do not respond; their outcome becomes unknown."""


class RetryUndo(Wish, kw_only=True):
    """Try again to undo what could not be undone."""


class AcceptResidue(Wish, kw_only=True):
    """Take what could not be undone as it is."""


class ResumeFrame(Wish, kw_only=True):
    """Go back to the suspended thought on top of the stack."""

    frame: FrameId


class DropFrame(Wish, kw_only=True):
    """Give up the suspended thought on top of the stack, by name."""

    frame: FrameId


class TakeOver(Wish, kw_only=True):
    """Become the assistant once nothing is in flight."""


class Write(Wish, kw_only=True):
    """Say something as the assistant, after taking over."""

    text: str


class UseTool(Wish, kw_only=True):
    """Make one call of the agent's tools, after taking over, by the same door."""

    use: Use


class HandBack(Wish, kw_only=True):
    """Return the run to its agent, with an instruction if given."""

    instruction: str = ""


Control = (
    Pause
    | Resume
    | Redirect
    | Say
    | Answer
    | Approve
    | Decline
    | Cancel
    | Halt
    | Lift
    | RaiseCap
    | Withdraw
    | ForcePause
    | RetryUndo
    | AcceptResidue
    | ResumeFrame
    | DropFrame
    | TakeOver
    | Write
    | UseTool
    | HandBack
)
