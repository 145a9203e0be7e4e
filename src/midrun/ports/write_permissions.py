"""Write permissions: which writer may append which kind of entry. Every store checks them.

A faulty driver cannot write in the name of a person, and a control cannot claim that a call has
ended. `stores.validation` applies the three lists.
"""

from typing import Final

from midrun.core.entries import (
    ENTRY_TYPES,
    AskAnswered,
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
    RequestEntry,
    ResidueAccepted,
    RunCancelled,
    RunImported,
    RunPaused,
    RunResumed,
    RunWaiting,
    RunWoken,
    TakenOver,
    ToolUseRequested,
    UndoDone,
    UndoFailed,
    UndoRetried,
    UndoUnknown,
)

UNLEASED_ENTRY_TYPES: Final[frozenset[type[Entry]]] = frozenset(
    {kind for kind in ENTRY_TYPES if issubclass(kind, RequestEntry) and kind is not RunImported}
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
"""Kinds that may be appended without a lease: requests, and entries that follow from them.

A pause of a queued run, for example, appends `PauseRequested` and `RunPaused` at once.
"""

PERSON_ENTRY_TYPES: Final[frozenset[type[Entry]]] = frozenset(
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
        ToolUseRequested,
        UndoRetried,
    }
)
"""Kinds that a lease holder may not append: only people send these requests.

`RunImported` may not be appended at all: `Store.adopt` writes it with the imported lines.
"""

CLOSING_ENTRY_TYPES: Final[frozenset[type[Entry]]] = frozenset(
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
"""Kinds that a lease holder may append without `after`, the seq that it has seen.

Each of them records an outcome or progress, which is true whatever was appended meanwhile. All
other entries depend on the state that they were decided on.
"""
