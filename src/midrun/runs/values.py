"""Views: a run as people look at it, in one piece, whoever computed it."""

from typing import Literal, TypeAlias

from msgspec import Struct

from midrun.agents.outcome import AskView
from midrun.core.entries import Entry
from midrun.core.ids import CallId, Epoch, FrameId, Micros, RunId, Seq
from midrun.core.values import Item, Phase, Value
from midrun.driver.live import Delta
from midrun.text.buttons import Offer
from midrun.text.status import Sign
from midrun.verify.checks import Problem

# Items of a feed: an entry in its place, or what is live between two of them.


class Happened(Struct, frozen=True, kw_only=True):
    """An entry of the journal, in its place."""

    seq: Seq
    at: Micros
    kind: str
    entry: Entry
    epoch: Epoch | None = None


FeedItem: TypeAlias = Happened | Delta

# Receipts: what somebody who asked something of a run gets back.


class Receipt(Value, kw_only=True):
    """A control is in the journal, or was so already.

    `applied` is False while it waits for its boundary: a pause whose call still finishes, a
    redirect or a message that the agent has not been given yet. `already` names the no-op if
    nothing changed, and `by` who had asked for it first.
    """

    seq: Seq
    phase: Phase
    applied: bool = True
    already: str | None = None
    by: str = ""
    said: str = ""  # what the runtime says to it at once: "Hold on — finishing *X* first"


# Verdicts of `verify`: whether a stored journal keeps the promises.


class Import(Value, kw_only=True):
    """Entries 1 to `upto` came with a checkpoint: this store did not write them."""

    upto: Seq
    checkpoint: RunId  # the run that the checkpoint is of
    head: str  # the hash of entry `upto` in a chain without a key
    by: str
    at: Micros
    kid: str = ""  # the key that signed the checkpoint; empty: it was not signed

    def __str__(self) -> str:
        entries = "entry 1 was" if self.upto == 1 else f"entries 1-{self.upto} were"
        rests = (
            f"their authenticity rests on the checkpoint's signature (key {self.kid})"
            if self.kid
            else "the checkpoint was not signed, so nothing shows that they are authentic"
        )
        return f"{entries} imported from run {self.checkpoint} by {self.by}; {rests}"


class Verdict(Value, kw_only=True):
    """The problems that were found; truthy when there are none.

    A clean journal may have been imported: `imported` says which entries this store only
    copied, and by whom.
    """

    run_id: RunId
    entries: int
    problems: tuple[Problem, ...] = ()
    imported: Import | None = None

    def __bool__(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        lines = [f"  {problem}" for problem in self.problems]
        if self.imported is not None:
            lines.append(f"  {self.imported}")
        many = f"{len(self.problems)} problems in {self.entries}"
        first = many if self.problems else f"{self.entries} entries, clean"
        return "\n".join([f"run {self.run_id}: {first}", *lines])


class Usage(Value, kw_only=True):
    """What the run has used. `reserved` is set aside for calls in flight, or lost with them."""

    tokens: int = 0
    cost_usd: float = 0.0
    reserved_tokens: int = 0
    reserved_usd: float = 0.0
    held_tokens: int = 0  # of the prompts, about: what they said of held thoughts


class CapView(Value, kw_only=True):
    """A bound, and how much of it is used; money in dollars, time in seconds."""

    name: str
    used: float
    cap: float
    raised: float = 0.0  # what one press of *raise* would make of it


class FrameView(Value, kw_only=True):
    """A thought that is held while something else is answered."""

    id: FrameId
    goal: str
    place: str
    held_at: Micros = Micros(0)
    expires_at: Micros  # after this, going back to it is a reconstruction


class CallView(Value, kw_only=True):
    """A call that is in flight now, or the undo or release of one."""

    id: CallId
    tool: str  # empty for the model
    since: Micros
    attempt: int
    form: str = "call"  # or undo, or release
    why: str = ""  # the agent makes it
    unstoppable: bool = False  # it blocks a thread: a cancel will not wait for it
    not_responding: bool = False  # told to stop, and half of its grace is over


class EffectView(Value, kw_only=True):
    """A call that changed the world, or may have."""

    id: CallId
    tool: str
    args: str = ""  # cut to a line
    stage: str
    can_undo: bool
    held: bool = False  # it is released when the run ends
    release: str = ""  # how far that is
    undo: str = ""  # how far its undo is
    note: str = ""
    why: str = ""  # the agent made it


class OpenAsk(AskView, kw_only=True):
    """An ask, and the run that waits for it. `ref` names it over all runs."""

    ref: str
    run_id: RunId
    task: str


class PendingView(Value, kw_only=True):
    """Words that wait for their boundary; can be withdrawn by their seq."""

    seq: Seq
    kind: str
    text: str
    by: str
    when: str = "next_step"  # of a redirect
    urgency: str = "next"  # of a message


StepLook = Literal[
    "queued",
    "running",
    "held",
    "needs_you",
    "done",
    "undone",
    "stopped",
    "not_started",
    "dropped",
    "left_open",
    "failed",
]
"""Where a plan item, a turn or a call stands, at a glance."""


class Row(Value, kw_only=True):
    """One plan item as people see it; `tool` is what was used for it last."""

    text: str
    look: StepLook
    tool: str = ""


class RunView(Value, kw_only=True):
    """Where a run stands, in one piece, as of `seq`.

    `control_rev` grows with what people ask and with the phase, not with every step. Whether a
    call responds is not journaled: the process that drives the run knows, and so does one that
    follows its feed.
    """

    run_id: RunId
    seq: Seq
    control_rev: Seq
    agent: str
    task: str
    phase: Phase
    sign: Sign
    since_by: str = ""  # who brought it into this phase
    reason: str = ""  # why it is paused
    hold_until: Micros | None = None  # when a held pause lets go by itself
    hold_now: bool = False  # the pause does not let calls finish
    step: int = 0
    place: str = ""  # "step 4 of 7", or "step 4"
    plan: tuple[Item, ...] = ()
    rows: tuple[Row, ...] = ()  # the plan as the task list
    turns: int = 0  # how many there are to look at
    goal: str = ""  # what it is at: its task, or a side question
    wheel: str = ""  # the person who has taken over, if anyone
    elapsed: float = 0.0  # seconds at work
    started_at: Micros = Micros(0)
    changed_at: Micros = Micros(0)
    usage: Usage = Usage()
    stop: str = ""
    caps: tuple[CapView, ...] = ()
    frames: tuple[FrameView, ...] = ()
    frames_max: int = 0
    asks: tuple[AskView, ...] = ()
    pending: tuple[PendingView, ...] = ()
    in_flight: tuple[CallView, ...] = ()
    effects: tuple[EffectView, ...] = ()
    controls: dict[str, Offer] = {}  # noqa: RUF012 - msgspec copies an empty default
    allowed: tuple[str, ...] = ()  # every control that it would take as it stands
    output: str = ""
    error: str = ""
    labels: tuple[str, ...] = ()
    thread: str = ""
    parent: str = ""  # the run whose child it is
