"""Which entries may stand in a journal in each phase, and the phase that follows them.

The second half of the table. What is not here cannot happen: `evolve` refuses it, and
`check_journal` reports it.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from midrun.core import entries as e
from midrun.core.entries import Entry
from midrun.core.table import (
    CANCELLED,
    CANCELLING,
    COMPLETED,
    FAILED,
    HALTED,
    PAUSED,
    PAUSING,
    QUEUED,
    RUNNING,
    WAITING,
)
from midrun.core.values import Phase


def _stays(*phases: Phase) -> Mapping[Phase, Phase]:
    return {phase: phase for phase in phases}


def _leads(to: Phase, phases: Iterable[Phase]) -> Mapping[Phase, Phase]:
    return dict.fromkeys(phases, to)


_LIVE = (QUEUED, RUNNING, PAUSING, PAUSED, WAITING, FAILED)
_DRIVEN = (RUNNING, PAUSING, CANCELLING, HALTED)
_OPEN = (*_LIVE, CANCELLING, HALTED)

FOLLOWS: Final[Mapping[type[Entry], Mapping[Phase, Phase]]] = {
    e.RunStarted: {QUEUED: QUEUED},
    e.RunImported: _stays(PAUSED, WAITING, FAILED, HALTED, COMPLETED, CANCELLED),
    e.LeaseTaken: {**_stays(RUNNING, PAUSING, CANCELLING), QUEUED: RUNNING},
    e.StoodDown: {**_stays(PAUSING, CANCELLING, HALTED), RUNNING: QUEUED},
    e.RunWaiting: _leads(WAITING, (RUNNING, QUEUED)),
    e.RunWoken: _leads(QUEUED, (WAITING, PAUSED)),
    e.RunCompleted: {RUNNING: COMPLETED},
    e.RunFailed: _leads(FAILED, (RUNNING, PAUSING)),
    e.PauseRequested: _leads(PAUSING, (QUEUED, RUNNING, PAUSING, PAUSED, WAITING, FAILED)),
    e.PauseWithdrawn: {PAUSING: RUNNING},
    e.RunPaused: _leads(PAUSED, (PAUSING, RUNNING)),
    e.RunResumed: _leads(QUEUED, (PAUSED, FAILED)),
    e.CapRaised: _stays(*_OPEN),
    e.CapReached: {RUNNING: PAUSING},
    e.EndReached: _stays(RUNNING),
    e.VerdictGiven: _stays(RUNNING),
    e.RedirectRequested: _stays(*_LIVE),
    e.RedirectApplied: _stays(RUNNING),
    e.RedirectClosed: _stays(*_OPEN),
    # Of a run that is over only by its parent, which takes everything back.
    e.CancelRequested: {
        **_leads(CANCELLING, (*_LIVE, COMPLETED, CANCELLED)),
        HALTED: HALTED,
    },
    e.RunCancelled: {CANCELLING: CANCELLED},
    e.UndoRetried: {CANCELLED: CANCELLING},
    e.ResidueAccepted: _stays(CANCELLED, COMPLETED),
    e.RunHalted: _leads(HALTED, (*_LIVE, CANCELLING)),
    e.RunLifted: {HALTED: HALTED},  # the one exception: it leads to the state's `then`
    e.RequestNoted: _stays(*Phase),
    e.CallProposed: _stays(RUNNING, PAUSED),
    e.CallStarted: _stays(RUNNING),
    e.CallDone: _stays(*_DRIVEN),
    e.CallFailed: _stays(*_DRIVEN),
    e.CallAborted: _stays(*_DRIVEN),
    e.CallUnknown: _stays(*_DRIVEN),
    e.CallSettled: _stays(*_LIVE),
    e.CallSealed: _stays(*_OPEN),
    e.ProgressSaved: _stays(*_DRIVEN),
    e.LateResult: _stays(*Phase),
    e.UndoStarted: _stays(RUNNING, CANCELLING),
    e.UndoDone: _stays(*_DRIVEN),
    e.UndoFailed: _stays(*_DRIVEN),
    e.UndoUnknown: _stays(*_DRIVEN),
    e.UndoGaveUp: _stays(*_DRIVEN),
    e.AskOpened: _stays(RUNNING, PAUSING),
    e.AskAnswered: _stays(*_LIVE),
    e.AskClosed: _stays(*_OPEN),
    e.MessageReceived: _stays(QUEUED, RUNNING, PAUSING, PAUSED, WAITING),
    e.MessageDue: _stays(*_LIVE),
    e.MessageTaken: _stays(RUNNING),
    e.MessageClosed: _stays(*_OPEN),
    e.FramePushed: _stays(RUNNING),
    e.FrameResumed: _stays(QUEUED, RUNNING, PAUSING, PAUSED, WAITING),
    e.FrameReconstructed: _stays(QUEUED, RUNNING, PAUSING, PAUSED, WAITING),
    e.FrameAbandoned: _stays(*_OPEN),
    e.PlanMade: _stays(RUNNING, PAUSING),
    e.HistoryCondensed: _stays(*_DRIVEN),
    e.AnswerGiven: _stays(RUNNING, PAUSING, CANCELLING),
    e.TakenOver: _stays(*_LIVE),
    e.PersonWrote: _stays(PAUSED),
    e.ToolUsed: _stays(PAUSED),
    e.HandedBack: _stays(PAUSED, FAILED),
}

STARTS: Final = (e.CallStarted, e.UndoStarted)
"""The entries after which something leaves the process."""
