"""Evidence: what the driver says came of an order, or is about to do. The other half of input.

Every piece but `TakeLease`, `Late`, `Wake`, `AskMoot` and `TakeBack` carries the epoch under
which it was gathered; one from an older epoch changes nothing.
"""

from typing import dataclass_transform

from msgspec import Struct, field

from midrun.core.entries import (
    CallAborted,
    CallDone,
    CallFailed,
    CallUnknown,
    LateResult,
    UndoDone,
    UndoFailed,
    UndoUnknown,
)
from midrun.core.ids import AskId, CallId, Epoch, Micros, RunId, Seq
from midrun.core.values import NOTHING, Action, AskKind, Item, Json, Spend, Use


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Finding(Struct, frozen=True, kw_only=True, tag=True, tag_field="evidence", gc=False):
    """Base of the evidence."""


class Fenced(Finding, kw_only=True):
    """Base of the evidence that only the holder of the lease may bring."""

    epoch: Epoch


class TakeLease(Finding, kw_only=True):
    """A driver wants the run; `held` tells that a live holder has it."""

    holder: str = ""
    held: bool = False
    agent_print: str = ""


class Late(Finding, kw_only=True):
    """A worker of an older epoch brings a result that nobody waited for."""

    result: LateResult


class Wake(Finding, kw_only=True):
    """Time has passed: whatever is due by now happens."""


class Advanced(Fenced, kw_only=True):
    """The driver stands at a boundary: do its bookkeeping, which needs nothing from outside."""


class Start(Fenced, kw_only=True):
    """A call is about to be made from what the journal said at `seen`."""

    call: CallId
    seen: Seq
    reserve: Spend = NOTHING


class Close(Fenced, kw_only=True):
    """A call in flight has ended."""

    outcome: CallDone | CallFailed | CallAborted | CallUnknown


class AskPerson(Fenced, kw_only=True):
    """A call in flight needs a person's answer, or its child run does.

    The answer is the result of the call, unless there is a `continuation`: see `AskOpened`.
    """

    call: CallId
    question: str = ""
    data: Json = None
    child: bool = False
    of: AskKind | None = None  # what kind of ask the child's is, and who may decide it
    audience: str = ""
    four_eyes: bool = False
    excluded: tuple[str, ...] = ()  # people who may not decide it on the child
    expires: Micros | None = None
    continuation: Json = None


class AskMoot(Finding, kw_only=True):
    """The child run's ask was answered on the child."""

    ask: AskId


class TakeBack(Finding, kw_only=True):
    """The parent of a run that is over is cancelled, and everything done for it is undone."""

    parent: RunId


class SaveProgress(Fenced, kw_only=True):
    """A long call saved how far it is."""

    call: CallId
    progress: Json


class Propose(Fenced, kw_only=True):
    """A hosted agent wants a call made."""

    use: Use


class SetPlan(Fenced, kw_only=True):
    """The agent set or revised its plan."""

    items: tuple[Item, ...]


class GiveVerdict(Fenced, kw_only=True):
    """A custom stop condition was evaluated."""

    name: str
    met: bool


class SettleCall(Fenced, kw_only=True):
    """A tool's own check says whether an unknown call happened."""

    call: CallId
    happened: bool
    result: Json = None


class StartUndo(Fenced, kw_only=True):
    """An undo or a release is about to be made."""

    call: CallId
    action: Action = "undo"


class CloseUndo(Fenced, kw_only=True):
    """An undo or a release has ended."""

    outcome: UndoDone | UndoFailed | UndoUnknown


class Finish(Fenced, kw_only=True):
    """A hosted agent returned its output."""

    output: str = ""


class Settled(Fenced, kw_only=True):
    """Nothing is left to do in this phase."""


class Fail(Fenced, kw_only=True):
    """The agent's own code, or what it stands on, raised."""

    error: str
    code: str = ""


class StandDown(Fenced, kw_only=True):
    """The process is shutting down, or sheds load."""

    why: str = ""


Evidence = (
    TakeLease
    | Late
    | Wake
    | Advanced
    | Start
    | Close
    | AskPerson
    | AskMoot
    | TakeBack
    | SaveProgress
    | Propose
    | SetPlan
    | GiveVerdict
    | SettleCall
    | StartUndo
    | CloseUndo
    | Finish
    | Settled
    | Fail
    | StandDown
)
