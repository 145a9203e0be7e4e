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


def _keeps_phase(*phases: Phase) -> Mapping[Phase, Phase]:
    return {phase: phase for phase in phases}


def _leads(to: Phase, phases: Iterable[Phase]) -> Mapping[Phase, Phase]:
    return dict.fromkeys(phases, to)


_UNFINISHED_PHASES = (QUEUED, RUNNING, PAUSING, PAUSED, WAITING, FAILED)
_PHASES_WITH_DRIVER = (RUNNING, PAUSING, CANCELLING, HALTED)
_PHASES_BEFORE_END = (*_UNFINISHED_PHASES, CANCELLING, HALTED)

FOLLOWS: Final[Mapping[type[Entry], Mapping[Phase, Phase]]] = {
    e.RunStarted: {QUEUED: QUEUED},
    e.RunImported: _keeps_phase(PAUSED, WAITING, FAILED, HALTED, COMPLETED, CANCELLED),
    e.LeaseTaken: {**_keeps_phase(RUNNING, PAUSING, CANCELLING), QUEUED: RUNNING},
    e.StoodDown: {**_keeps_phase(PAUSING, CANCELLING, HALTED), RUNNING: QUEUED},
    e.RunWaiting: _leads(WAITING, (RUNNING, QUEUED)),
    e.RunWoken: _leads(QUEUED, (WAITING, PAUSED)),
    e.RunCompleted: {RUNNING: COMPLETED},
    e.RunFailed: _leads(FAILED, (RUNNING, PAUSING)),
    e.PauseRequested: _leads(PAUSING, (QUEUED, RUNNING, PAUSING, PAUSED, WAITING, FAILED)),
    e.PauseWithdrawn: {PAUSING: RUNNING},
    e.RunPaused: _leads(PAUSED, (PAUSING, RUNNING)),
    e.RunResumed: _leads(QUEUED, (PAUSED, FAILED)),
    e.CapRaised: _keeps_phase(*_PHASES_BEFORE_END),
    e.CapReached: {RUNNING: PAUSING},
    e.EndReached: _keeps_phase(RUNNING),
    e.VerdictGiven: _keeps_phase(RUNNING),
    e.RedirectRequested: _keeps_phase(*_UNFINISHED_PHASES),
    e.RedirectApplied: _keeps_phase(RUNNING),
    e.RedirectClosed: _keeps_phase(*_PHASES_BEFORE_END),
    # Of a run that is over only by its parent, which takes everything back.
    e.CancelRequested: {
        **_leads(CANCELLING, (*_UNFINISHED_PHASES, COMPLETED, CANCELLED)),
        HALTED: HALTED,
    },
    e.RunCancelled: {CANCELLING: CANCELLED},
    e.UndoRetried: {CANCELLED: CANCELLING},
    e.ResidueAccepted: _keeps_phase(CANCELLED, COMPLETED),
    e.RunHalted: _leads(HALTED, (*_UNFINISHED_PHASES, CANCELLING)),
    e.RunLifted: {HALTED: HALTED},  # the one exception: it leads to the state's `then`
    e.RequestNoted: _keeps_phase(*Phase),
    e.CallProposed: _keeps_phase(RUNNING, PAUSED),
    e.CallStarted: _keeps_phase(RUNNING),
    e.CallDone: _keeps_phase(*_PHASES_WITH_DRIVER),
    e.CallFailed: _keeps_phase(*_PHASES_WITH_DRIVER),
    e.CallAborted: _keeps_phase(*_PHASES_WITH_DRIVER),
    e.CallUnknown: _keeps_phase(*_PHASES_WITH_DRIVER),
    e.CallSettled: _keeps_phase(*_UNFINISHED_PHASES),
    e.CallSealed: _keeps_phase(*_PHASES_BEFORE_END),
    e.ProgressSaved: _keeps_phase(*_PHASES_WITH_DRIVER),
    e.LateResult: _keeps_phase(*Phase),
    e.UndoStarted: _keeps_phase(RUNNING, CANCELLING),
    e.UndoDone: _keeps_phase(*_PHASES_WITH_DRIVER),
    e.UndoFailed: _keeps_phase(*_PHASES_WITH_DRIVER),
    e.UndoUnknown: _keeps_phase(*_PHASES_WITH_DRIVER),
    e.UndoGaveUp: _keeps_phase(*_PHASES_WITH_DRIVER),
    e.AskOpened: _keeps_phase(RUNNING, PAUSING),
    e.AskAnswered: _keeps_phase(*_UNFINISHED_PHASES),
    e.AskClosed: _keeps_phase(*_PHASES_BEFORE_END),
    e.MessageReceived: _keeps_phase(QUEUED, RUNNING, PAUSING, PAUSED, WAITING),
    e.MessageDue: _keeps_phase(*_UNFINISHED_PHASES),
    e.MessageTaken: _keeps_phase(RUNNING),
    e.MessageClosed: _keeps_phase(*_PHASES_BEFORE_END),
    e.FramePushed: _keeps_phase(RUNNING),
    e.FrameResumed: _keeps_phase(QUEUED, RUNNING, PAUSING, PAUSED, WAITING),
    e.FrameReconstructed: _keeps_phase(QUEUED, RUNNING, PAUSING, PAUSED, WAITING),
    e.FrameAbandoned: _keeps_phase(*_PHASES_BEFORE_END),
    e.PlanMade: _keeps_phase(RUNNING, PAUSING),
    e.HistoryCondensed: _keeps_phase(*_PHASES_WITH_DRIVER),
    e.AnswerGiven: _keeps_phase(RUNNING, PAUSING, CANCELLING),
    e.TakenOver: _keeps_phase(*_UNFINISHED_PHASES),
    e.PersonWrote: _keeps_phase(PAUSED),
    e.ToolUsed: _keeps_phase(PAUSED),
    e.HandedBack: _keeps_phase(PAUSED, FAILED),
}

STARTS: Final = (e.CallStarted, e.UndoStarted)
"""The entries after which something leaves the process."""
