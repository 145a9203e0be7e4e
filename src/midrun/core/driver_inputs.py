"""Inputs of the driver to `decide`: outcomes of calls and effects, and the passing of time.

Controls are the other kind of input. Inputs that only the lease holder may send are
`LeasedInput`s and carry the epoch of the lease. `decide` refuses one of an older epoch, so a
worker that lost its lease changes nothing. `TakeLease`,
`ReportLateResult`, `Wake`, `CloseChildAsk` and `TakeBack` need no lease.

Nothing here is stored; `decide` turns inputs into entries.
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
from midrun.core.ids import AskId, CallId, Epoch, Micros, RunId
from midrun.core.values import (
    AskKind,
    FileRef,
    Json,
    PlanItem,
    RequestedCall,
)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class DriverInputBase(Struct, frozen=True, kw_only=True, tag=True, tag_field="input", gc=False):
    """Base of all inputs of the driver."""


class LeasedInput(DriverInputBase, kw_only=True):
    """Base of the inputs that only the lease holder may send."""

    epoch: Epoch


class TakeLease(DriverInputBase, kw_only=True):
    """Take the lease; `held_by_other` says that a live holder has it."""

    holder: str = ""
    held_by_other: bool = False
    agent_fingerprint: str = ""


class ReportLateResult(DriverInputBase, kw_only=True):
    """Record the result of a call whose worker had lost the lease meanwhile."""

    result: LateResult


class Wake(DriverInputBase, kw_only=True):
    """Do everything that is due by now: expired asks, scheduled messages, ends of pauses."""


class CloseCall(LeasedInput, kw_only=True):
    """Record the outcome of a call in flight."""

    outcome: CallDone | CallFailed | CallAborted | CallUnknown


class AskPerson(LeasedInput, kw_only=True):
    """Open an ask for a call in flight, or for the ask of its child run.

    The answer is the result of the call, unless there is a `continuation`: see `AskOpened`.
    """

    call: CallId
    question: str = ""
    data: Json = None
    child: bool = False
    child_ask_kind: AskKind | None = None  # the kind of the child's ask
    audience: str = ""
    four_eyes: bool = False
    excluded: tuple[str, ...] = ()  # people who may not decide it in the child
    expires: Micros | None = None
    continuation: Json = None
    files: tuple[FileRef, ...] = ()


class CloseChildAsk(DriverInputBase, kw_only=True):
    """Close the ask for a child's ask, because it was decided in the child."""

    ask: AskId


class TakeBack(DriverInputBase, kw_only=True):
    """Undo everything that a finished run did, because its parent is cancelled."""

    parent: RunId


class SaveProgress(LeasedInput, kw_only=True):
    """Store the progress of a long call, to continue from after an interruption."""

    call: CallId
    progress: Json


class ShowArtifact(LeasedInput, kw_only=True):
    """Record a file that a call in flight shows to the people who watch the run."""

    call: CallId
    name: str
    file: FileRef


class ProposeCall(LeasedInput, kw_only=True):
    """Propose a call that a hosted agent wants made."""

    use: RequestedCall


class SetPlan(LeasedInput, kw_only=True):
    """Set or replace the plan of the agent."""

    items: tuple[PlanItem, ...]


class RecordStopVerdict(LeasedInput, kw_only=True):
    """Record the verdict of a custom stop condition."""

    name: str
    met: bool


class SettleCall(LeasedInput, kw_only=True):
    """Record the finding of a tool's check about an unknown call."""

    call: CallId
    happened: bool
    result: Json = None


class CloseCleanup(LeasedInput, kw_only=True):
    """Record the outcome of an undo or a release."""

    outcome: UndoDone | UndoFailed | UndoUnknown


class FinishHostedAgent(LeasedInput, kw_only=True):
    """Record the output of a hosted agent."""

    output: str = ""
    value: Json = None


class FailRun(LeasedInput, kw_only=True):
    """Fail the run: code of the agent, or code that it depends on, raised."""

    error: str
    code: str = ""


class StandDown(LeasedInput, kw_only=True):
    """Give the lease back because the process shuts down or sheds load; not a pause."""

    why: str = ""


DriverInput = (
    TakeLease
    | ReportLateResult
    | Wake
    | CloseCall
    | AskPerson
    | CloseChildAsk
    | TakeBack
    | SaveProgress
    | ShowArtifact
    | ProposeCall
    | SetPlan
    | RecordStopVerdict
    | SettleCall
    | CloseCleanup
    | FinishHostedAgent
    | FailRun
    | StandDown
)
