"""Typed events of a run: the items of `run.events()`.

Each event has a `seq`, the number of the newest journal entry at that moment, and a `sentence`
for people. `run.events(after=event.seq)` continues behind the event.

An event of the journal (`EntryEvent`) also has its time, the phase of the run after it, and a
short form of its sentence. There is one for each entry. Entries that need no class of their own
are `EntryAppended`. A delta (`DeltaEvent`) is live output between two entries. It is not stored
and cannot be replayed.

`RunEvent` is the union of all classes. With `assert_never` in its last case, a `match`
statement over it is checked for completeness by a type checker.
"""

from typing import Literal, TypeAlias

from msgspec import Struct

from midrun.core.ids import AskId, CallId, Micros, Seq
from midrun.core.values import (
    AskKind,
    CallPurpose,
    CleanupAction,
    FileRef,
    Json,
    Phase,
    PlanItem,
)
from midrun.text.phrases import Tone

__all__ = [
    "ArgumentsDelta",
    "ArtifactChanged",
    "AskFinished",
    "AskStarted",
    "CallOutcome",
    "CleanupFinished",
    "DeltaEvent",
    "EntryAppended",
    "EntryEvent",
    "HandoffFinished",
    "InstructionChanged",
    "PhaseChanged",
    "PlanChanged",
    "ReplyFinished",
    "ReplyStarted",
    "RunEvent",
    "TextDelta",
    "ThinkingDelta",
    "ToolFinished",
    "ToolNotResponding",
    "ToolNote",
    "ToolStarted",
]

CallOutcome = Literal["done", "failed", "stopped", "unknown"]
"""The end of an attempt: it returned, raised, was stopped, or its outcome is not known."""


class EntryEvent(Struct, frozen=True, kw_only=True, tag=True, tag_field="event"):
    """Base of the events of journal entries.

    Attributes:
        seq: The number of the entry.
        at: The time of the entry, in microseconds since 1970.
        kind: The kind of the entry, such as "PauseRequested".
        by: The actor of a request; else "".
        phase: The phase of the run after the entry.
        who: The subject of the sentence: an actor, "the run", "the agent", or a call.
        sentence: The entry as a sentence; it begins with `who`.
        short: The short form without its subject: "asked the run to pause".
        tone: The character of the entry, from which a surface chooses a colour.
    """

    seq: Seq
    at: Micros
    kind: str
    by: str
    phase: Phase
    who: str
    sentence: str
    short: str
    tone: Tone


class PhaseChanged(EntryEvent, frozen=True, kw_only=True):
    """The run started (`previous` is None), or changed its phase."""

    previous: Phase | None


class ReplyStarted(EntryEvent, frozen=True, kw_only=True):
    """A model call started. `prefix` is the text that the run puts before the reply."""

    call: CallId
    step: int
    attempt: int
    purpose: CallPurpose
    prefix: str = ""


class ReplyFinished(EntryEvent, frozen=True, kw_only=True):
    """An attempt of a model call ended. If `will_retry`, another attempt follows.

    `reply` is its text with the prefix; of a stopped or failed attempt, the part that it wrote.
    """

    call: CallId
    outcome: CallOutcome
    reply: str
    error: str = ""
    will_retry: bool = False


class ToolStarted(EntryEvent, frozen=True, kw_only=True):
    """An attempt of a tool call started; `why` is the reason that the agent gave.

    `title` tells people about the call in one line, here and in the events below.
    """

    call: CallId
    tool: str
    args: Json
    attempt: int
    why: str = ""
    title: str = ""


class ToolFinished(EntryEvent, frozen=True, kw_only=True):
    """An attempt of a tool call ended. If `will_retry`, another attempt follows."""

    call: CallId
    tool: str
    outcome: CallOutcome
    result: Json = None
    error: str = ""
    will_retry: bool = False
    title: str = ""
    files: tuple[FileRef, ...] = ()  # files that the tool returned beside its result


class CleanupFinished(EntryEvent, frozen=True, kw_only=True):
    """The effect of a call was undone or its resource released; or the run gave up."""

    call: CallId
    tool: str
    action: CleanupAction
    succeeded: bool
    error: str = ""
    title: str = ""


class AskStarted(EntryEvent, frozen=True, kw_only=True):
    """The run needs a decision of a person. `tool` and `args` are those of the call.

    `call` is a call of this run. If a child run asks, `tool`, `args` and `title` are those of
    the child's call.
    """

    ask: AskId
    ask_kind: AskKind
    question: str
    data: Json
    audience: str
    call: CallId
    tool: str
    args: Json
    title: str = ""
    files: tuple[FileRef, ...] = ()


class AskFinished(EntryEvent, frozen=True, kw_only=True):
    """An ask was decided `by` a person, or closed without a decision (`choice` is "")."""

    ask: AskId
    choice: Literal["answer", "approve", "decline", ""]
    value: Json = None
    files: tuple[FileRef, ...] = ()


class PlanChanged(EntryEvent, frozen=True, kw_only=True):
    """The agent made or updated its plan."""

    items: tuple[PlanItem, ...]


class ArtifactChanged(EntryEvent, frozen=True, kw_only=True):
    """A call showed an artifact: its first version, or the next one. See `Run.file`."""

    call: CallId
    name: str
    version: int
    file: FileRef


class HandoffFinished(EntryEvent, frozen=True, kw_only=True):
    """The run was handed over: `agent` speaks from here on, in the place of `previous`."""

    agent: str
    previous: str
    reason: str = ""  # that the previous agent gave


class InstructionChanged(EntryEvent, frozen=True, kw_only=True):
    """The agent received a new instruction in the place of `previous`."""

    instruction: str
    previous: str


class EntryAppended(EntryEvent, frozen=True, kw_only=True):
    """Any other entry; see its `kind` and its `sentence`."""


class DeltaEvent(Struct, frozen=True, kw_only=True, tag=True, tag_field="event"):
    """Base of live output. `seq` is the number of the newest entry before it.

    `sentence` of streamed text does not repeat the text.

    `text` continues the last delta of the same call and class. With `opening` it is all of the
    text so far and replaces it: a new watcher gets that first.
    """

    seq: Seq
    sentence: str
    call: CallId
    text: str = ""
    tool: str = ""
    opening: bool = False


class TextDelta(DeltaEvent, frozen=True, kw_only=True):
    """A piece of the reply of a model."""


class ThinkingDelta(DeltaEvent, frozen=True, kw_only=True):
    """A piece of the thinking of a model."""


class ArgumentsDelta(DeltaEvent, frozen=True, kw_only=True):
    """A piece of the arguments of the call that a model is writing, as JSON."""


class ToolNote(DeltaEvent, frozen=True, kw_only=True):
    """A line that a running tool reported."""


class ToolNotResponding(DeltaEvent, frozen=True, kw_only=True):
    """A call that should have stopped by now still runs."""


RunEvent: TypeAlias = (
    PhaseChanged
    | ReplyStarted
    | ReplyFinished
    | ToolStarted
    | ToolFinished
    | CleanupFinished
    | AskStarted
    | AskFinished
    | PlanChanged
    | ArtifactChanged
    | HandoffFinished
    | InstructionChanged
    | EntryAppended
    | TextDelta
    | ThinkingDelta
    | ArgumentsDelta
    | ToolNote
    | ToolNotResponding
)
"""Every event of `run.events()`."""
