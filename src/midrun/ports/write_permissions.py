"""Who may append what: the allow-list by writer, checked by every store.

A tool, a model or a driver that has gone wrong cannot put words into a person's mouth, and a
control cannot claim that a call has ended.
"""

from typing import Final

from midrun.core.entries import (
    KINDS,
    AskAnswered,
    Asked,
    CallAborted,
    CallDone,
    CallFailed,
    CallProposed,
    CallSealed,
    CallUnknown,
    CancelRequested,
    CapRaised,
    CapReached,
    Entry,
    HandedBack,
    HistoryCondensed,
    LateResult,
    MessageReceived,
    PauseRequested,
    PauseWithdrawn,
    PersonWrote,
    ProgressSaved,
    RedirectApplied,
    RedirectRequested,
    ResidueAccepted,
    RunCancelled,
    RunImported,
    RunPaused,
    RunResumed,
    RunWaiting,
    RunWoken,
    TakenOver,
    ToolUsed,
    UndoDone,
    UndoFailed,
    UndoRetried,
    UndoUnknown,
)

UNLEASED: Final[frozenset[type[Entry]]] = frozenset(
    {kind for kind in KINDS if issubclass(kind, Asked) and kind is not RunImported}
    | {
        CallProposed,
        CallSealed,
        CallUnknown,
        CapReached,
        LateResult,
        RedirectApplied,
        RunCancelled,
        RunPaused,
        RunWaiting,
        RunWoken,
        UndoUnknown,
    }
)
"""What may be appended without a lease: what was asked for, and what follows at once."""

PERSONAL: Final[frozenset[type[Entry]]] = frozenset(
    {
        AskAnswered,
        CancelRequested,
        CapRaised,
        HandedBack,
        MessageReceived,
        PauseRequested,
        PauseWithdrawn,
        PersonWrote,
        RedirectRequested,
        ResidueAccepted,
        RunImported,
        RunResumed,
        TakenOver,
        ToolUsed,
        UndoRetried,
    }
)
"""What the holder of a lease may not append: only people ask for these.

`RunImported` may not be appended at all: `Store.adopt` writes it with the lines it brings in.
"""

CLOSINGS: Final[frozenset[type[Entry]]] = frozenset(
    {
        CallAborted,
        CallDone,
        CallFailed,
        CallUnknown,
        HistoryCondensed,
        ProgressSaved,
        UndoDone,
        UndoFailed,
        UndoUnknown,
    }
)
"""What the holder of a lease may append without naming what it has seen.

Each says how something ended, or how far it got: that is true whatever happened since. All
else depends on what it was decided on.
"""
