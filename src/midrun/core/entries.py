"""Entries: the closed set of facts a journal can hold.

Past tense, immutable, never removed. *Asked for* and *happened* are two entries:
`PauseRequested` and `RunPaused`, `CancelRequested` and `RunCancelled`.

A new entry needs five things: a class below, its place in `Entry`, a row in
`transitions.FOLLOWS`, an arm in `evolve` and a sentence in `text/`. The type checker,
`tests/unit/core/test_table.py` and `tests/journals` fail until all five exist. A changed
entry needs an upcast and a stored journal.
"""

from typing import Literal, dataclass_transform, get_args

from msgspec import Struct, field

from midrun.core.ids import AskId, CallId, Epoch, FrameId, Micros, RunId, Seq
from midrun.core.stops import Stop
from midrun.core.values import (
    NOTHING,
    Action,
    Approval,
    AskKind,
    CallKind,
    Decision,
    Item,
    Json,
    Message,
    Origin,
    PauseReason,
    Phase,
    Purpose,
    Reply,
    Residue,
    Spend,
    UndoSet,
    Urgency,
    Use,
    When,
)

# What every entry has in common.


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Fact(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag=True,
    tag_field="kind",
    forbid_unknown_fields=True,
    gc=False,  # as values: there is nothing to collect
):
    """Base of every entry."""


class Asked(Fact, kw_only=True):
    """Base of what a person, or the system in their place, asked for."""

    by: str = ""
    role: str = ""
    request: str = ""  # the request id, if the sender gave one
    digest: str = ""  # of what was asked, so that a reused id is noticed
    reason: str = ""


# Asks: where a run needs a person.

Unanswered = Literal["superseded", "cancelled", "expired", "evidence", "elsewhere"]
"""Why nobody decides an ask any more."""


class AskOpened(Fact, kw_only=True):
    """A person is needed: a question, an approval, an unsure call, or a child's ask."""

    ask: AskId
    ask_kind: AskKind
    call: CallId
    question: str = ""
    data: Json = None
    blocking: bool = True
    of: AskKind | None = None  # of a child's: what kind of ask it is there
    audience: str = ""
    four_eyes: bool = False
    excluded: tuple[str, ...] = ()  # of a child's: people who may not decide it there
    args_hash: str = ""
    expires: Micros | None = None
    # With it the call is made again once there is a decision, and given both. Without it the
    # answer is the result of the call.
    continuation: Json = None


class AskAnswered(Asked, kw_only=True):
    """Somebody decided. The first decision counts, and it is this one."""

    ask: AskId
    decision: Decision
    args_hash: str = ""


class AskClosed(Asked, kw_only=True):
    """The ask no longer needs anyone; nobody decided it."""

    ask: AskId
    why: Unanswered


# Calls that leave the process, and their undoing.


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


# The life of a run: it starts, is driven, waits, wakes and ends.


class RunStarted(Asked, kw_only=True):
    """A run exists and waits for a driver."""

    agent: str
    task: str
    agent_print: str = ""
    thread: str = ""
    labels: tuple[str, ...] = ()
    stop: Stop | None = None
    hosted: bool = False
    history: tuple[Message, ...] = ()
    plan: tuple[Item, ...] = ()
    frame_depth: int = 4
    frame_ttl: int = 86_400_000_000
    undo_attempts: int = 5
    model_attempts: int = 6
    window: int = 0  # condense when a prompt grew past this many tokens; 0 is never
    parent: Origin | None = None
    steered_by: tuple[str, ...] = ()  # people who led to it, but are not in `history`
    forked: Origin | None = None
    trace: str = ""  # the W3C traceparent that its spans belong to


class RunImported(Asked, kw_only=True):
    """Every entry before this one was written elsewhere and came with a checkpoint.

    Only `Store.adopt` appends it, in the transaction that stores those entries.
    """

    checkpoint: RunId  # the run that the checkpoint is of: this one, or its parent
    head: str  # the hash of the entry before this one, as checkpoints have it: without a key
    kid: str = ""  # the key that signed the checkpoint and was checked; empty: none was


class LeaseTaken(Fact, kw_only=True):
    """A driver holds the run. Older epochs are fenced off from here on."""

    epoch: Epoch
    holder: str = ""
    agent_print: str = ""  # of the agent that drives from here on, where it is another version


class StoodDown(Fact, kw_only=True):
    """The driver gave the lease back without anyone having asked the run to stop."""

    why: str = ""


class RunWaiting(Fact, kw_only=True):
    """Nothing is in flight and a person is needed."""


class RunWoken(Fact, kw_only=True):
    """What the run waited for has come; it can be driven again."""

    why: str = ""


class RunCompleted(Fact, kw_only=True):
    """The run reached its end."""

    output: str = ""


class RunFailed(Fact, kw_only=True):
    """The run stopped at its last boundary because of an error; it can be resumed."""

    error: str
    code: str = ""


# What people do to a run: pause, resume, redirect, cancel, halt; and what came of it.


class PauseRequested(Asked, kw_only=True):
    """Somebody wants the run to stop at its next boundary, or now."""

    now: bool = False
    why: PauseReason = "user"
    until: Micros | None = None  # a held pause lets go by itself


class PauseWithdrawn(Asked, kw_only=True):
    """The pause was taken back before it took hold; the run goes on."""


class RunPaused(Fact, kw_only=True):
    """Nothing is in flight, nothing is spent, the lease is given back."""

    why: PauseReason = "user"


class RunResumed(Asked, kw_only=True):
    """The run may go on; a driver will take it."""

    instruction: str = ""
    minus: str = ""  # what would have come next ...
    plus: str = ""  # ... and what comes instead: the one-line difference


class CapRaised(Asked, kw_only=True):
    """A bound of the stop condition was moved."""

    caps: dict[str, int]


class CapReached(Fact, kw_only=True):
    """A stop condition was met; the run pauses and asks."""

    stop: str
    cap: str = ""  # the bound to raise; empty if the condition has none


class EndReached(Fact, kw_only=True):
    """A stop condition was met that says: the run is done."""

    stop: str


class VerdictGiven(Fact, kw_only=True):
    """A custom stop condition was evaluated at a boundary."""

    name: str
    met: bool


class RedirectRequested(Asked, kw_only=True):
    """A new instruction waits for its boundary."""

    text: str
    when: When = "next_step"


class RedirectApplied(Fact, kw_only=True):
    """The instruction that waited since `redirect` reached the agent."""

    redirect: Seq
    minus: str = ""
    plus: str = ""


class RedirectClosed(Asked, kw_only=True):
    """The instruction was withdrawn, or came back because the run ended first."""

    redirect: Seq
    why: Literal["withdrawn", "returned"]
    text: str = ""


class CancelRequested(Asked, kw_only=True):
    """From here on no model or tool call of this run is started, by anyone."""

    undo: UndoSet = "in_flight"


class RunCancelled(Fact, kw_only=True):
    """Everything is stopped; what was in the undo set is undone or listed."""

    residue: tuple[Residue, ...] = ()
    partial: str = ""


class UndoRetried(Asked, kw_only=True):
    """An operator wants the residue tried again."""


class ResidueAccepted(Asked, kw_only=True):
    """An operator has seen what could not be undone and takes it as it is."""


class RunHalted(Asked, kw_only=True):
    """An operator's latch holds the run; lifted, it goes on where `then` says."""

    then: Phase
    scope: str = "run"


class RunLifted(Asked, kw_only=True):
    """The latch no longer holds the run."""


class RequestNoted(Asked, kw_only=True):
    """A request changed nothing; what it was told is kept, so that a repeat hears the same."""

    verdict: str
    refused: bool = False
    since: Seq = Seq(0)
    since_by: str = ""


# Thought: messages, frames, the plan, the history, and a person at the wheel.


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


Entry = (
    RunStarted
    | RunImported
    | LeaseTaken
    | StoodDown
    | RunWaiting
    | RunWoken
    | RunCompleted
    | RunFailed
    | PauseRequested
    | PauseWithdrawn
    | RunPaused
    | RunResumed
    | CapRaised
    | CapReached
    | EndReached
    | VerdictGiven
    | RedirectRequested
    | RedirectApplied
    | RedirectClosed
    | CancelRequested
    | RunCancelled
    | UndoRetried
    | ResidueAccepted
    | RunHalted
    | RunLifted
    | RequestNoted
    | CallProposed
    | CallStarted
    | CallDone
    | CallFailed
    | CallAborted
    | CallUnknown
    | CallSettled
    | CallSealed
    | ProgressSaved
    | LateResult
    | UndoStarted
    | UndoDone
    | UndoFailed
    | UndoUnknown
    | UndoGaveUp
    | AskOpened
    | AskAnswered
    | AskClosed
    | MessageReceived
    | MessageDue
    | MessageTaken
    | MessageClosed
    | FramePushed
    | FrameResumed
    | FrameReconstructed
    | FrameAbandoned
    | PlanMade
    | HistoryCondensed
    | AnswerGiven
    | TakenOver
    | PersonWrote
    | ToolUsed
    | HandedBack
)
"""Everything a journal can hold."""


KINDS: tuple[type[Entry], ...] = get_args(Entry)


class Record(Struct, frozen=True, kw_only=True, gc=False):
    """An entry in its place: the store adds where, when, and under which lease."""

    seq: Seq
    at: Micros
    entry: Entry
    epoch: Epoch | None = None  # None: appended without a lease, by a control or the system


__all__ = [
    "KINDS",
    "AnswerGiven",
    "AskAnswered",
    "AskClosed",
    "AskOpened",
    "CallAborted",
    "CallDone",
    "CallFailed",
    "CallProposed",
    "CallSealed",
    "CallSettled",
    "CallStarted",
    "CallUnknown",
    "CancelRequested",
    "CapRaised",
    "CapReached",
    "EndReached",
    "Entry",
    "FrameAbandoned",
    "FramePushed",
    "FrameReconstructed",
    "FrameResumed",
    "HandedBack",
    "HistoryCondensed",
    "LateResult",
    "LeaseTaken",
    "MessageClosed",
    "MessageDue",
    "MessageReceived",
    "MessageTaken",
    "PauseRequested",
    "PauseWithdrawn",
    "PersonWrote",
    "PlanMade",
    "ProgressSaved",
    "Record",
    "RedirectApplied",
    "RedirectClosed",
    "RedirectRequested",
    "RequestNoted",
    "ResidueAccepted",
    "RunCancelled",
    "RunCompleted",
    "RunFailed",
    "RunHalted",
    "RunImported",
    "RunLifted",
    "RunPaused",
    "RunResumed",
    "RunStarted",
    "RunWaiting",
    "RunWoken",
    "StoodDown",
    "TakenOver",
    "ToolUsed",
    "UndoDone",
    "UndoFailed",
    "UndoGaveUp",
    "UndoRetried",
    "UndoStarted",
    "UndoUnknown",
    "VerdictGiven",
]
