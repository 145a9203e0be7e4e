"""Entries: the closed set of facts a journal can hold.

Past tense, immutable, never removed. *Asked for* and *happened* are two entries:
`PauseRequested` and `RunPaused`, `CancelRequested` and `RunCancelled`.

A new entry needs five things: a class in `facts/`, its place in `Entry`, a row in
`follows.FOLLOWS`, an arm in `evolve` and a sentence in `sentences/`. The type checker,
`tests/core/test_table.py` and `tests/journals` stay red until all five exist. A changed entry
needs an upcast and a stored journal.
"""

from typing import get_args

from msgspec import Struct

from midrun.core.facts.asks import (
    AskAnswered,
    AskClosed,
    AskOpened,
)
from midrun.core.facts.calls import (
    CallAborted,
    CallDone,
    CallFailed,
    CallProposed,
    CallSealed,
    CallSettled,
    CallStarted,
    CallUnknown,
    LateResult,
    ProgressSaved,
    UndoDone,
    UndoFailed,
    UndoGaveUp,
    UndoStarted,
    UndoUnknown,
)
from midrun.core.facts.life import (
    LeaseTaken,
    RunCompleted,
    RunFailed,
    RunImported,
    RunStarted,
    RunWaiting,
    RunWoken,
    StoodDown,
)
from midrun.core.facts.steering import (
    CancelRequested,
    CapRaised,
    CapReached,
    EndReached,
    PauseRequested,
    PauseWithdrawn,
    RedirectApplied,
    RedirectClosed,
    RedirectRequested,
    RequestNoted,
    ResidueAccepted,
    RunCancelled,
    RunHalted,
    RunLifted,
    RunPaused,
    RunResumed,
    UndoRetried,
    VerdictGiven,
)
from midrun.core.facts.thought import (
    AnswerGiven,
    FrameAbandoned,
    FramePushed,
    FrameReconstructed,
    FrameResumed,
    HandedBack,
    HistoryCondensed,
    MessageClosed,
    MessageDue,
    MessageReceived,
    MessageTaken,
    PersonWrote,
    PlanMade,
    TakenOver,
    ToolUsed,
)
from midrun.core.ids import Epoch, Micros, Seq

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
