"""Calls that leave the process, and their undoing."""

from typing import Literal

from midrun.core.facts.fact import Asked, Fact
from midrun.core.ids import CallId, Epoch, Micros, Seq
from midrun.core.values import (
    NOTHING,
    Action,
    Approval,
    CallKind,
    Json,
    Purpose,
    Reply,
    Spend,
    Use,
)


class CallProposed(Fact, kw_only=True):
    """A hosted agent, or a person at the wheel, wants a call made."""

    use: Use


class CallStarted(Fact, kw_only=True):
    """A call is about to leave the process. Everything the gate checked is here."""

    call: CallId
    call_kind: CallKind
    attempt: int
    seen: Seq  # the newest entry the decision to start took into account
    purpose: Purpose = "step"
    reserved: Spend = NOTHING
    approval: Approval | None = None


class CallDone(Fact, kw_only=True):
    """The call returned. It is never made again."""

    call: CallId
    result: Json = None
    reply: Reply | None = None
    spent: Spend | None = None
    encoding_error: str = ""  # the effect happened, but its result was not JSON
    steered_by: tuple[str, ...] = ()  # people who steered the child run to its result


class CallFailed(Fact, kw_only=True):
    """The call ended with an error."""

    call: CallId
    error: str
    code: str = ""
    transient: bool = False
    retry_at: Micros | None = None
    spent: Spend | None = None
    text: str = ""  # what a model had said before it broke


class CallAborted(Fact, kw_only=True):
    """The call was stopped within its grace. It may have taken effect all the same."""

    call: CallId
    text: str = ""  # what a model had said so far
    thinking: str = ""
    spent: Spend | None = None
    final: bool = False  # it took too long: it is not made again by itself


class CallUnknown(Fact, kw_only=True):
    """Nobody knows whether the call happened. This sticks until evidence settles it."""

    call: CallId
    why: Literal["orphaned", "not_responding", "forced"] = "orphaned"


class CallSettled(Asked, kw_only=True):
    """Evidence about an unknown call: its own check, or a person, says what happened."""

    call: CallId
    happened: bool | None  # None: nobody can say; it stays unknown and is not asked again
    result: Json = None


class CallSealed(Fact, kw_only=True):
    """The call will not be made; the agent is told why."""

    call: CallId
    why: str


class ProgressSaved(Fact, kw_only=True):
    """A long call saved how far it is; started again, it is given this."""

    call: CallId
    progress: Json


class LateResult(Fact, kw_only=True):
    """What an older epoch still had to say: the only thing it may append."""

    call: CallId
    attempt: int
    epoch: Epoch
    result: Json = None


class UndoStarted(Fact, kw_only=True):
    """An undo, or the release of something held, is about to leave the process."""

    call: CallId
    action: Action = "undo"
    attempt: int = 1


class UndoDone(Fact, kw_only=True):
    """The effect is taken back, or the resource released."""

    call: CallId
    action: Action = "undo"


class UndoFailed(Fact, kw_only=True):
    """The attempt failed and will be made again under the same key, unless it is `final`."""

    call: CallId
    action: Action = "undo"
    error: str = ""
    retry_at: Micros | None = None
    final: bool = False  # it did not stop in time: another attempt could run beside it


class UndoUnknown(Fact, kw_only=True):
    """The attempt was cut short; it will be made again under the same key."""

    call: CallId
    action: Action = "undo"


class UndoGaveUp(Fact, kw_only=True):
    """The declared number of attempts failed; the effect stays and is reported."""

    call: CallId
    action: Action = "undo"
    error: str = ""
