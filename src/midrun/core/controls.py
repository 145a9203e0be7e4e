"""Controls: requests of people to a run, in the imperative.

`decide` answers a control with entries, no change, or a refusal. The digest of a control, its
class name included, is stored with its request id: names of classes and fields are format.
"""

from typing import dataclass_transform

from msgspec import Struct, field

from midrun.core.ids import AskId, FrameId, Micros, Seq
from midrun.core.values import (
    Actor,
    FileRef,
    Json,
    RedirectTiming,
    RequestedCall,
    UndoSet,
    Urgency,
)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class ControlBase(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True, tag_field="control"
):
    """Base of every control: sender, reason and request id.

    `request_id` makes a control safe to repeat: it is applied once, and a repeat gets the first
    verdict. `seen` is the revision (`State.control_rev`) that the sender decided on; the
    control is refused if the run has another one by now. `Pause` and `Cancel` ignore it.
    """

    by: Actor = Actor()
    reason: str = ""
    request_id: str = ""
    seen: Seq | None = None


class Pause(ControlBase, kw_only=True):
    """Start no further call, and stop when none is in flight; with `now`, abort them."""

    now: bool = False
    until: Micros | None = None


class Resume(ControlBase, kw_only=True):
    """Continue, with an instruction or raised caps if given; withdraws a pending pause."""

    instruction: str = ""
    caps: dict[str, int] = {}
    files: tuple[FileRef, ...] = ()  # files of the instruction


class Redirect(ControlBase, kw_only=True):
    """Give the agent a new instruction at the next step, or now; finished work stays."""

    text: str
    when: RedirectTiming = "next_step"
    files: tuple[FileRef, ...] = ()


class Say(ControlBase, kw_only=True):
    """Send a message to a working run: a side question, a notice, a scheduled note."""

    text: str
    urgency: Urgency = "next"
    due: Micros | None = None
    files: tuple[FileRef, ...] = ()


class Answer(ControlBase, kw_only=True):
    """Answer a question, or settle an unknown call with "yes", "no" or "unknown"."""

    ask: AskId
    value: Json = None
    files: tuple[FileRef, ...] = ()


class Approve(ControlBase, kw_only=True):
    """Permit a call, with other arguments if given."""

    ask: AskId
    args: Json = None
    title: str = ""  # of the call with other arguments; made by the runtime


class Decline(ControlBase, kw_only=True):
    """Forbid a call, or decline to answer a question that allows it."""

    ask: AskId


class Cancel(ControlBase, kw_only=True):
    """Stop all calls, undo those in the undo set, and report."""

    undo: UndoSet = "in_flight"


class Halt(ControlBase, kw_only=True):
    """Stop the run because an operator's halt covers it."""

    scope: str = "run"


class Lift(ControlBase, kw_only=True):
    """Let the run continue after the halt was lifted."""


class RaiseCap(ControlBase, kw_only=True):
    """Raise caps of the stop condition."""

    caps: dict[str, int]


class Withdraw(ControlBase, kw_only=True):
    """Withdraw the pause, redirect or message at `seq` if it has not been applied."""

    seq: Seq


class ForcePause(ControlBase, kw_only=True):
    """Pause without waiting for calls that do not respond; they become unknown."""


class RetryUndo(ControlBase, kw_only=True):
    """Retry the undos and releases that failed."""


class AcceptResidue(ControlBase, kw_only=True):
    """Accept the residue: the calls that could not be undone."""


class ResumeFrame(ControlBase, kw_only=True):
    """Return to the held topic on top of the stack."""

    frame: FrameId


class DropFrame(ControlBase, kw_only=True):
    """Give up the held topic on top of the stack."""

    frame: FrameId


class TakeOver(ControlBase, kw_only=True):
    """Take the place of the agent as soon as nothing is in flight."""


class Write(ControlBase, kw_only=True):
    """Write a message as the assistant, after taking over."""

    text: str


class UseTool(ControlBase, kw_only=True):
    """Call a tool of the agent, after taking over; approvals and caps apply as usual."""

    use: RequestedCall


class HandBack(ControlBase, kw_only=True):
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
