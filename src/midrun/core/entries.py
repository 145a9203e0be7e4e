"""Entries: the closed set of facts that a journal can hold.

Entries are in the past tense, immutable and never removed. A request and its fulfilment are two
entries: `PauseRequested` and `RunPaused`, `CancelRequested` and `RunCancelled`.

The class name of an entry is its `kind` in every stored line, so names of classes and fields
are part of the format. A changed entry needs an upcast and a stored journal in
`tests/journals`. A new entry needs a class here, a place in the union `Entry`, a row in
`transitions.ENTRY_TABLE`, a function in `evolve/` and a text in `midrun.text`. The type
checker, `tests/unit/core/test_transitions.py` and `tests/journals` fail until all five exist.
"""

from typing import Literal, dataclass_transform, get_args

from msgspec import Struct, field

from midrun.core.ids import AskId, CallId, Epoch, FrameId, Micros, RunId, Seq
from midrun.core.stops import Stop
from midrun.core.values import (
    NO_SPEND,
    Approval,
    AskKind,
    CallKind,
    CallPurpose,
    CleanupAction,
    ClientTool,
    Decision,
    FileLimits,
    FileRef,
    Json,
    Message,
    ModelSettings,
    Origin,
    PauseReason,
    Phase,
    PlanItem,
    RedirectTiming,
    Reply,
    RequestedCall,
    Residue,
    SpeakerSettings,
    Spend,
    UndoSet,
    Urgency,
)

# Base classes.


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class EntryBase(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag=True,
    tag_field="kind",
    forbid_unknown_fields=True,
    gc=False,  # as in `Value`: cannot be part of a reference cycle
):
    """Base of every entry."""


class RequestEntry(EntryBase, kw_only=True):
    """Base of the entries that record a request of a person, or of the system."""

    by: str = ""
    role: str = ""
    request_id: str = ""  # the request id, if the sender gave one
    digest: str = ""  # of the control: another control under the same id is refused
    reason: str = ""


# Asks: decisions that a run needs from people.

AskCloseReason = Literal["superseded", "cancelled", "expired", "evidence", "elsewhere"]
"""The reason why an ask was closed without a decision.

`evidence`: a check or a late result settled the call. `elsewhere`: it was decided in the child
run.
"""


class AskOpened(EntryBase, kw_only=True):
    """A person must decide: a question, an approval, an unknown call, or a child's ask."""

    ask: AskId
    ask_kind: AskKind
    call: CallId
    question: str = ""
    data: Json = None
    blocking: bool = True
    child_ask_kind: AskKind | None = None  # for the ask of a child run: its kind in the child
    audience: str = ""
    four_eyes: bool = False
    excluded: tuple[str, ...] = ()  # for a child's ask: people who may not decide it there
    args_hash: str = ""  # the arguments that an approval is for
    expires: Micros | None = None
    # Data of the call that asked. With it, the call is made again after the decision and gets
    # both. Without it, the answer is the result of the call.
    continuation: Json = None
    files: tuple[FileRef, ...] = ()  # shown with the question


class AskAnswered(RequestEntry, kw_only=True):
    """A person decided the ask. The first decision counts; there is no second entry."""

    ask: AskId
    decision: Decision
    args_hash: str = ""
    title: str = ""  # of an approved call with other arguments: its new title
    files: tuple[FileRef, ...] = ()  # files of an answer; they become files of the call


class AskClosed(RequestEntry, kw_only=True):
    """The ask was closed without a decision."""

    ask: AskId
    why: AskCloseReason


# Calls, and their undos and releases.


class CallProposed(EntryBase, kw_only=True):
    """A hosted agent, or the person who took over, wants a call made."""

    use: RequestedCall


class CallStarted(EntryBase, kw_only=True):
    """An attempt of a call is about to start, as checked against the fields here.

    Stored before the call leaves the process: after a crash, the next worker knows that the
    call may have happened.
    """

    call: CallId
    call_kind: CallKind
    attempt: int
    seen: Seq  # the newest entry that the decision to start knew
    purpose: CallPurpose = "step"
    reserved: Spend = NO_SPEND
    approval: Approval | None = None


class CallDone(EntryBase, kw_only=True):
    """The call returned. It is not made again."""

    call: CallId
    result: Json = None
    reply: Reply | None = None
    spent: Spend | None = None
    encoding_error: str = ""  # the call took effect, but its result is not JSON
    steered_by: tuple[str, ...] = ()  # people who steered the child run to its result
    files: tuple[FileRef, ...] = ()  # files that a tool returned beside its result


class CallFailed(EntryBase, kw_only=True):
    """The call ended with an error."""

    call: CallId
    error: str
    code: str = ""
    transient: bool = False
    lasting: bool = False  # the same model would fail again: retried with another one
    retry_at: Micros | None = None
    spent: Spend | None = None
    text: str = ""  # the text that a model had streamed before the error


class CallAborted(EntryBase, kw_only=True):
    """The call was stopped within its grace. It may have taken effect nevertheless."""

    call: CallId
    text: str = ""  # the text that a model had streamed so far
    thinking: str = ""
    spent: Spend | None = None
    final: bool = False  # not retried: timed out, its process died, or its outcome is unknown


class CallUnknown(EntryBase, kw_only=True):
    """The outcome of the call is lost.

    It stays unknown until a check, a person or a late result settles it, or a cancel undoes it.
    `orphaned`: its worker lost the lease, or the call lost its answer. `not_responding`: it did
    not stop within its grace. `forced`: a person forced the pause.
    """

    call: CallId
    why: Literal["orphaned", "not_responding", "forced"] = "orphaned"


class CallSettled(RequestEntry, kw_only=True):
    """The tool's check, or a person, said whether an unknown call took effect."""

    call: CallId
    happened: bool | None  # None: cannot be found out; it stays unknown, without another ask
    result: Json = None


class CallSealed(EntryBase, kw_only=True):
    """The call will not be made, or not again; the agent is told the reason."""

    call: CallId
    why: str


class ProgressSaved(EntryBase, kw_only=True):
    """A long call saved its progress; the next attempt gets it."""

    call: CallId
    progress: Json


class ArtifactShown(EntryBase, kw_only=True):
    """A call showed a file to the people who watch the run, as a version of an artifact.

    The versions of a name are numbered from 1, in the order of the journal.
    """

    call: CallId
    name: str
    version: int
    file: FileRef


class LateResult(EntryBase, kw_only=True):
    """A worker that had lost the lease reported a result: all that it may still append."""

    call: CallId
    attempt: int
    epoch: Epoch
    result: Json = None
    files: tuple[FileRef, ...] = ()


class UndoStarted(EntryBase, kw_only=True):
    """An attempt of a cleanup is about to start; `Undo…` entries record undos and releases."""

    call: CallId
    action: CleanupAction = "undo"
    attempt: int = 1


class UndoDone(EntryBase, kw_only=True):
    """The effect is undone, or the resource released."""

    call: CallId
    action: CleanupAction = "undo"


class UndoFailed(EntryBase, kw_only=True):
    """The attempt failed. It is retried under the same key, unless it is `final`."""

    call: CallId
    action: CleanupAction = "undo"
    error: str = ""
    retry_at: Micros | None = None
    final: bool = False  # it did not stop in time: a retry could run beside it


class UndoUnknown(EntryBase, kw_only=True):
    """The attempt was interrupted; it is retried under the same key."""

    call: CallId
    action: CleanupAction = "undo"


class UndoGaveUp(EntryBase, kw_only=True):
    """There will be no further attempt; the effect stays and is reported as residue."""

    call: CallId
    action: CleanupAction = "undo"
    error: str = ""


# The lifecycle of a run: start, lease, wait, wake, end.


class RunStarted(RequestEntry, kw_only=True):
    """A run exists and waits for a driver."""

    agent: str
    task: str
    agent_fingerprint: str = ""
    thread: str = ""
    labels: tuple[str, ...] = ()
    stop: Stop | None = None
    hosted: bool = False  # the agent is a program of the user; see `scheduler.RunProgram`
    framework: str = ""  # the framework of an agent made with `midrun.host`
    undeclared_tools: int = 0  # its tools without declared traits, when the run was started
    history: tuple[Message, ...] = ()
    plan: tuple[PlanItem, ...] = ()
    frame_depth: int = 4
    frame_ttl: int = 86_400_000_000
    undo_attempts: int = 5
    model_attempts: int = 6
    output_retries: int = 0  # further attempts at an output that was not valid
    max_parallel: int = 0  # tool calls in flight at a time; 0: as many as the model asks for
    model_settings: ModelSettings | None = None  # of this run, over those of its agent
    window: int = 0  # condense the history above this many prompt tokens; 0: never
    parent: Origin | None = None
    steered_by: tuple[str, ...] = ()  # people whose text led to the run, beside `history`
    forked: Origin | None = None
    handoffs: tuple[SpeakerSettings, ...] = ()  # the agents that a handoff can reach
    speaker: str = ""  # of a fork: the agent that spoke there; empty: `agent`
    trace: str = ""  # the W3C traceparent that its spans belong to
    files: tuple[FileRef, ...] = ()  # files of the task
    file_limits: FileLimits | None = None  # None: the limits of `FileLimits()`
    tenant: str = ""  # the run is invisible to callers of other tenants; "": the default one
    team: str = ""  # users of this team see and control the run like its owner
    client_tools: tuple[ClientTool, ...] = ()  # tools that the client makes the calls of


class RunImported(RequestEntry, kw_only=True):
    """All entries before this one were written in another store and came in a checkpoint.

    Only `Store.adopt` appends it, in the transaction that stores those entries.
    """

    checkpoint: RunId  # the run that the checkpoint was taken from: this one, or its parent
    head: str  # the hash of the entry before this one, computed without a key
    kid: str = ""  # the id of the key that verified the signature; empty: not verified


class LeaseTaken(EntryBase, kw_only=True):
    """A driver took the lease. Appends of older epochs are refused from here on."""

    epoch: Epoch
    holder: str = ""
    agent_fingerprint: str = (
        ""  # fingerprint of the agent, if it is another version than before
    )


class LeaseReleased(EntryBase, kw_only=True):
    """The driver gave the lease back; the run has not ended."""

    why: str = ""


class RunWaiting(EntryBase, kw_only=True):
    """Nothing is in flight, and the run cannot continue before a person decides."""


class RunWoken(EntryBase, kw_only=True):
    """The run does not wait any more; it can be driven again."""

    why: str = ""


class RunCompleted(EntryBase, kw_only=True):
    """The run finished its task."""

    output: str = ""
    value: Json = None  # the output as data, if the agent has a typed output


class RunFailed(EntryBase, kw_only=True):
    """The run stopped at its last boundary because of an error; it can be resumed."""

    error: str
    code: str = ""


# Controls and their results: pause, resume, redirect, cancel, halt.


class PauseRequested(RequestEntry, kw_only=True):
    """The run is to start no further call, and to pause when none is in flight.

    With `now`, calls in flight are aborted.
    """

    now: bool = False
    why: PauseReason = "user"
    until: Micros | None = None  # the run resumes by itself at this time


class PauseWithdrawn(RequestEntry, kw_only=True):
    """The pause was withdrawn before the run was paused; the run continues."""


class RunPaused(EntryBase, kw_only=True):
    """The run is paused: nothing is in flight, and the lease is given back."""

    why: PauseReason = "user"


class RunResumed(RequestEntry, kw_only=True):
    """The run may continue as soon as a driver takes it."""

    instruction: str = ""
    minus: str = ""  # the next step before the instruction ...
    plus: str = ""  # ... and after it, one line each
    files: tuple[FileRef, ...] = ()  # files of the instruction


class CapRaised(RequestEntry, kw_only=True):
    """Caps of the stop condition were raised."""

    caps: dict[str, int]


class CapReached(EntryBase, kw_only=True):
    """A stop condition was met; the run pauses."""

    stop: str
    cap: str = ""  # the cap to raise; empty if the condition has none


class StopReached(EntryBase, kw_only=True):
    """A stop condition was met that completes the run."""

    stop: str


class StopEvaluated(EntryBase, kw_only=True):
    """A custom stop condition was evaluated at a boundary."""

    name: str
    met: bool


class RedirectRequested(RequestEntry, kw_only=True):
    """A new instruction waits for the next boundary."""

    text: str
    when: RedirectTiming = "next_step"
    files: tuple[FileRef, ...] = ()


class RedirectApplied(EntryBase, kw_only=True):
    """The instruction of the entry `redirect` reached the agent."""

    redirect: Seq
    minus: str = ""
    plus: str = ""


class RedirectClosed(RequestEntry, kw_only=True):
    """The instruction was withdrawn, or returned because the run ended before it applied."""

    redirect: Seq
    why: Literal["withdrawn", "returned"]
    text: str = ""


class CancelRequested(RequestEntry, kw_only=True):
    """The run is to stop. No model or tool call of it starts after this entry."""

    undo: UndoSet = "in_flight"


class RunCancelled(EntryBase, kw_only=True):
    """The run is cancelled. Each call of the undo set is undone, or listed in `residue`."""

    residue: tuple[Residue, ...] = ()
    partial: str = ""


class UndoRetried(RequestEntry, kw_only=True):
    """An operator wants the undos and releases of the residue retried."""


class ResidueAccepted(RequestEntry, kw_only=True):
    """An operator accepted the residue."""


class RunHalted(RequestEntry, kw_only=True):
    """An operator's halt stops the run; after the lift it returns to `phase_after_lift`."""

    phase_after_lift: Phase
    scope: str = "run"


class RunLifted(RequestEntry, kw_only=True):
    """The halt was lifted."""


class RequestNoted(RequestEntry, kw_only=True):
    """A request changed nothing. Its verdict is kept, so that a repeat gets the same one."""

    verdict: str
    refused: bool = False
    since: Seq = Seq(0)
    since_by: str = ""


# The conversation: messages, held topics (frames), plan, history, and takeovers.


class MessageReceived(RequestEntry, kw_only=True):
    """A person sent a message to the working run; `ack` is the immediate reply to it."""

    text: str
    urgency: Urgency = "next"
    due: Micros | None = None
    ack: str = ""
    queued: bool = False  # too many topics were held when it arrived
    files: tuple[FileRef, ...] = ()


class MessageDue(RequestEntry, kw_only=True):
    """The time of a scheduled message has come."""

    message: Seq


class MessageTaken(EntryBase, kw_only=True):
    """The message reached the agent; no topic had to be held."""

    message: Seq


class MessageClosed(RequestEntry, kw_only=True):
    """The message was withdrawn, or returned because the run ended before it was read."""

    message: Seq
    why: Literal["withdrawn", "returned"]
    text: str = ""


class FramePushed(EntryBase, kw_only=True):
    """The current topic was held, to answer a message."""

    frame: FrameId
    message: Seq
    goal: str
    done: int = 0
    total: int = 0
    next: str = ""
    expires: Micros


class FrameResumed(RequestEntry, kw_only=True):
    """The held topic continues where it stopped."""

    frame: FrameId
    text: str


class FrameReconstructed(RequestEntry, kw_only=True):
    """The topic was held for too long: it continues from a summary, and says so."""

    frame: FrameId
    text: str


class FrameAbandoned(RequestEntry, kw_only=True):
    """The held topic was given up."""

    frame: FrameId
    why: Literal["dropped", "cancelled"]
    text: str = ""


class PlanMade(EntryBase, kw_only=True):
    """The agent set or revised its plan."""

    items: tuple[PlanItem, ...]


class HandedOff(EntryBase, kw_only=True):
    """Another agent of the run speaks from here on; the call `call` asked for it."""

    agent: str
    call: CallId


class HistoryCondensed(EntryBase, kw_only=True):
    """Prompts contain a summary in place of the oldest messages; the journal keeps all."""

    call: CallId
    message_count: int
    summary: str


class AnswerGiven(EntryBase, kw_only=True):
    """A hosted agent returned its output, or a tool whose result is the answer has ended."""

    text: str
    value: Json = None  # the same as JSON data, if it is more than a text


class TakenOver(RequestEntry, kw_only=True):
    """A person takes the place of the agent as soon as nothing is in flight."""


class PersonWrote(RequestEntry, kw_only=True):
    """The person who took over wrote a message as the assistant."""

    text: str


class ToolUseRequested(RequestEntry, kw_only=True):
    """The person who took over wants a tool called; `CallProposed` follows."""

    tool: str


class HandedBack(RequestEntry, kw_only=True):
    """The person gave control back to the agent."""


Entry = (
    RunStarted
    | RunImported
    | LeaseTaken
    | LeaseReleased
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
    | StopReached
    | StopEvaluated
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
    | ArtifactShown
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
    | HandedOff
    | HistoryCondensed
    | AnswerGiven
    | TakenOver
    | PersonWrote
    | ToolUseRequested
    | HandedBack
)
"""Any entry."""


ENTRY_TYPES: tuple[type[Entry], ...] = get_args(Entry)


class Record(Struct, frozen=True, kw_only=True, gc=False):
    """An entry with its position, time and lease, which the store assigns."""

    seq: Seq
    at: Micros
    entry: Entry
    epoch: Epoch | None = None  # None: appended without a lease, by a control or a timer


__all__ = [
    "ENTRY_TYPES",
    "AnswerGiven",
    "ArtifactShown",
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
    "Entry",
    "FrameAbandoned",
    "FramePushed",
    "FrameReconstructed",
    "FrameResumed",
    "HandedBack",
    "HandedOff",
    "HistoryCondensed",
    "LateResult",
    "LeaseReleased",
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
    "StopEvaluated",
    "StopReached",
    "TakenOver",
    "ToolUseRequested",
    "UndoDone",
    "UndoFailed",
    "UndoGaveUp",
    "UndoRetried",
    "UndoStarted",
    "UndoUnknown",
]
