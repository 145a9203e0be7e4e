"""The table: what may happen to a run in each phase. Everything else is derived from it.

Two halves. `ACCEPTS`, here, says what an input means in a phase: accepted (and where that may
lead), a no-op by name, or a refusal by name. `follows.FOLLOWS` says which entries may stand in
a journal in a phase, and the phase after them. The machine obeys both, `enabled` lights the
buttons of every surface, the documentation is drawn from them, and the tests walk every cell.

What a table cannot say (nothing in flight, an open ask) is a guard in `rulings/`; `GUARDS`
lists their names per input, so that every refusal a caller can meet is on this page.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Final

from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core import entries as e
from midrun.core.controls import Control
from midrun.core.driver_inputs import Evidence
from midrun.core.entries import Entry
from midrun.core.state import State
from midrun.core.stops import caps
from midrun.core.values import Phase, Value

QUEUED, RUNNING, PAUSING, PAUSED, WAITING = list(Phase)[:5]
CANCELLING, CANCELLED, COMPLETED, FAILED, HALTED = list(Phase)[5:]

Input = Control | Evidence


class Cell(Value, kw_only=True):
    """What one input means in one phase."""

    to: tuple[Phase, ...] = ()  # accepted: the phases it may lead to
    already: str = ""  # a no-op, by name; with `to`, one of the two by guard
    refused: str = ""

    def __str__(self) -> str:
        ways = [f"→ {' or '.join(self.to)}"] if self.to else []
        ways += [f"= {self.already}"] if self.already else []
        return " / ".join(ways) or f"✗ {self.refused}"


Row = Mapping[Phase, Cell]


def _to(*phases: Phase, already: str = "") -> Cell:
    return Cell(to=phases, already=already)


def _already(name: str) -> Cell:
    return Cell(already=name)


def _row(cells: Mapping[Phase, Cell], refused: Mapping[Phase, str] | None = None) -> Row:
    """Fill a row: what is not listed is refused as `is_<phase>`."""
    named = {phase: f"is_{phase}" for phase in Phase} | dict(refused or {})
    return {phase: cells.get(phase, Cell(refused=named[phase])) for phase in Phase}


def _stays(phases: Iterable[Phase]) -> dict[Phase, Cell]:
    return {phase: _to(phase) for phase in phases}


def _or(already: str, row: Row) -> Row:
    """Say that every accepted cell of `row` may also be the no-op `already`."""
    return {
        phase: Cell(to=cell.to, already=already) if cell.to else cell
        for phase, cell in row.items()
    }


_LIVE = (QUEUED, RUNNING, PAUSING, PAUSED, WAITING, FAILED)
_DRIVEN = (RUNNING, PAUSING, CANCELLING, HALTED)
_ENDED = {CANCELLED: "already_cancelled", COMPLETED: "already_completed"}
_CLOSED = dict.fromkeys((CANCELLING, CANCELLED, COMPLETED), "ask_closed")
_DECIDING = _row(
    {**_stays(_LIVE), WAITING: _to(QUEUED, WAITING), PAUSED: _to(PAUSED, QUEUED)}, _CLOSED
)
_NOT_HALTED = dict.fromkeys(set(Phase) - {HALTED}, "not_halted")
_NO_RESIDUE = dict.fromkeys(set(Phase) - {CANCELLED, COMPLETED}, "no_residue")

ACCEPTS: Final[Mapping[type[Input], Row]] = {
    # what people ask
    c.Pause: _row(
        {
            QUEUED: _to(PAUSED),
            RUNNING: _to(PAUSING),
            PAUSING: _to(PAUSING, already="already_pausing"),
            PAUSED: _to(PAUSED, already="already_paused"),
            WAITING: _to(PAUSED),
        }
    ),
    c.Resume: _row(
        {
            QUEUED: _already("already_queued"),
            RUNNING: _already("already_running"),
            PAUSING: _to(RUNNING),
            PAUSED: _to(QUEUED, WAITING),
            WAITING: _already("already_waiting"),
            FAILED: _to(QUEUED, WAITING),
        }
    ),
    c.Redirect: _row(
        {
            QUEUED: _to(QUEUED),
            RUNNING: _to(RUNNING),
            PAUSING: _to(PAUSING),
            PAUSED: _to(QUEUED),
            WAITING: _to(QUEUED),
            FAILED: _to(QUEUED),
        }
    ),
    c.Say: _row({**_stays((QUEUED, RUNNING, PAUSING, PAUSED)), WAITING: _to(QUEUED, WAITING)}),
    c.Answer: _DECIDING,
    c.Approve: _DECIDING,
    c.Decline: _DECIDING,
    c.Cancel: _row(
        {
            **dict.fromkeys((QUEUED, PAUSED, WAITING, FAILED), _to(CANCELLED, CANCELLING)),
            RUNNING: _to(CANCELLING),
            PAUSING: _to(CANCELLING),
            CANCELLING: _already("already_cancelling"),
            CANCELLED: _already("already_cancelled"),
            HALTED: _to(HALTED, already="already_cancelling"),
        },
        {COMPLETED: "already_completed"},
    ),
    c.Halt: _row(
        {
            **dict.fromkeys((*_LIVE, CANCELLING), _to(HALTED)),
            HALTED: _already("already_halted"),
        },
        _ENDED,
    ),
    c.Lift: _row({HALTED: _to(*_LIVE, CANCELLING)}, _NOT_HALTED),
    c.RaiseCap: _row(_stays((*_LIVE, CANCELLING, HALTED))),
    c.Withdraw: _row({**_stays(_LIVE), PAUSING: _to(PAUSING, RUNNING)}),
    c.ForcePause: _row({PAUSING: _to(PAUSED), PAUSED: _already("already_paused")}),
    c.RetryUndo: _row({CANCELLED: _to(CANCELLING)}, _NO_RESIDUE),
    c.AcceptResidue: _row(_stays((CANCELLED, COMPLETED)), _NO_RESIDUE),
    c.ResumeFrame: _row(
        {**_stays((QUEUED, RUNNING, PAUSING, PAUSED)), WAITING: _to(QUEUED, WAITING)}
    ),
    c.DropFrame: _row({**_stays(_LIVE), WAITING: _to(WAITING, QUEUED)}),
    c.TakeOver: _row(
        {
            RUNNING: _to(PAUSING),
            PAUSING: _to(PAUSING),
            **dict.fromkeys((QUEUED, PAUSED, WAITING, FAILED), _to(PAUSED)),
        }
    ),
    c.Write: _row({PAUSED: _to(PAUSED)}),
    c.UseTool: _row({PAUSED: _to(QUEUED)}),
    c.HandBack: _row(dict.fromkeys((PAUSED, FAILED), _to(QUEUED, WAITING))),
    # what time, and workers that come late, bring
    v.Wake: _or(
        "nothing_due",
        _row(
            {
                **_stays((QUEUED, RUNNING, CANCELLING)),
                RUNNING: _to(RUNNING, PAUSING),
                PAUSING: _to(PAUSING, RUNNING),
                PAUSED: _to(PAUSED, QUEUED, WAITING),
                WAITING: _to(WAITING, QUEUED),
                FAILED: _to(FAILED),
            }
        ),
    ),
    v.Late: _or("already_known", _row(_stays(Phase) | {WAITING: _to(WAITING, QUEUED)})),
    # what the driver brings
    v.TakeLease: _row(
        {
            QUEUED: _to(RUNNING),
            RUNNING: _to(RUNNING),
            PAUSING: _to(PAUSING),
            CANCELLING: _to(CANCELLING),
        }
    ),
    v.Advanced: _or(
        "nothing_due", _row({RUNNING: _to(RUNNING, PAUSING), CANCELLING: _to(CANCELLING)})
    ),
    v.Start: _row({RUNNING: _to(RUNNING, PAUSING)}),
    v.Close: _row(_stays(_DRIVEN)),
    v.AskPerson: _row(_stays((RUNNING, PAUSING))),
    v.AskMoot: _row(
        {
            **_stays((QUEUED, RUNNING, PAUSING, PAUSED, FAILED, HALTED)),
            WAITING: _to(WAITING, QUEUED),
        }
    ),
    v.TakeBack: _or(
        "nothing_to_undo",
        _row(dict.fromkeys((CANCELLED, COMPLETED), _to(CANCELLING))),
    ),
    v.SaveProgress: _row(_stays(_DRIVEN)),
    v.Propose: _row({RUNNING: _to(RUNNING)}),
    v.SetPlan: _row(_stays((RUNNING, PAUSING))),
    v.GiveVerdict: _row({RUNNING: _to(RUNNING)}),
    v.SettleCall: _row(_stays((RUNNING, PAUSING))),
    v.StartUndo: _row(_stays((RUNNING, CANCELLING))),
    v.CloseUndo: _row(_stays(_DRIVEN)),
    v.Finish: _row(_stays((RUNNING, PAUSING, CANCELLING))),
    v.Settled: _row(
        {
            RUNNING: _to(COMPLETED, WAITING, PAUSED, FAILED),
            PAUSING: _to(PAUSED, QUEUED, WAITING),
            CANCELLING: _to(CANCELLED),
        }
    ),
    v.Fail: _row({RUNNING: _to(FAILED), PAUSING: _to(FAILED)}),
    v.StandDown: _row({**_stays((PAUSING, CANCELLING, HALTED)), RUNNING: _to(QUEUED)}),
}

GUARDS: Final[Mapping[type[Input], tuple[str, ...]]] = {
    c.Resume: ("not_paused", "cap_reached", "taken_over", "no_such_cap", "cap_not_raised"),
    c.Redirect: ("empty_text", "cap_reached", "taken_over"),
    c.Say: ("empty_text",),
    c.Answer: (
        "no_such_ask",
        "ask_closed",
        "already_answered",
        "not_a_question",
        "not_allowed",
        "not_an_outcome",
    ),
    c.Approve: (
        "no_such_ask",
        "ask_closed",
        "already_answered",
        "not_an_approval",
        "not_allowed",
        "already_attempted",
        "hidden_argument",
    ),
    c.Decline: (
        "no_such_ask",
        "ask_closed",
        "already_answered",
        "not_an_approval",
        "not_allowed",
    ),
    c.RaiseCap: ("no_such_cap", "cap_not_raised"),
    c.Withdraw: ("not_pending",),
    c.RetryUndo: ("no_residue",),
    c.AcceptResidue: ("no_residue",),
    c.ResumeFrame: ("no_such_frame", "frame_not_on_top"),
    c.DropFrame: ("no_such_frame", "frame_not_on_top"),
    c.TakeOver: ("taken_over",),
    c.Write: ("not_taken_over", "empty_text"),
    c.UseTool: ("not_taken_over",),
    c.HandBack: ("not_taken_over",),
    v.TakeLease: ("leased",),
    v.Late: ("no_such_call",),
    v.Start: (
        "no_such_call",
        "call_asking",
        "call_started",
        "call_done",
        "call_failed",
        "call_aborted",
        "call_unknown",
        "call_sealed",
        "unseen_control",
        "redirected",
        "not_approved",
        "not_next",
    ),
    v.Close: ("not_in_flight",),
    v.Propose: ("taken_over",),
    v.AskPerson: ("not_in_flight",),
    v.AskMoot: ("no_such_ask", "ask_closed", "already_answered"),
    v.TakeBack: ("not_its_parent",),
    v.SaveProgress: ("not_in_flight",),
    v.SettleCall: ("not_unknown",),
    v.StartUndo: ("not_next", "in_flight"),
    v.CloseUndo: ("not_in_flight",),
    v.Finish: ("in_flight", "unseen_control", "already_ended"),
    v.Settled: ("not_settled", "in_flight"),
    v.Fail: ("in_flight",),
    v.StandDown: ("in_flight",),
}
"""Refusals that depend on more than the phase, by input.

Evidence may also be refused as `fenced` or `lease_lost`, a control as `request_id_reused` or
`stale_revision`.
"""


@cache  # asked for with every view
def enabled(phase: Phase) -> tuple[str, ...]:
    """Return the names of the controls that a run in `phase` may accept, in table order."""
    return tuple(
        name_of(kind)
        for kind, row in ACCEPTS.items()
        if issubclass(kind, c.Wish) and row[phase].to
    )


def name_of(kind: type[Input]) -> str:
    """Return the input's name as people and refusals spell it: `RaiseCap` is `raise_cap`."""
    return "".join(f"_{x.lower()}" if x.isupper() else x for x in kind.__name__)[1:]


# Which entries may stand in a journal in each phase, and the phase that follows them.
#
# The second half of the table. What is not here cannot happen: `evolve` refuses it, and
# `check_journal` reports it.


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

# What is possible: the controls that a run would take as it stands.
#
# The table goes by the phase alone. Here is what else a control needs: there is no answering
# without a question, and nothing to retry where nothing is left.


def possible(state: State) -> tuple[str, ...]:
    """Return the names of the controls that a run in `state` takes, in table order.

    Who asks is not known here: a person without the role, or not at the wheel, may be refused.
    """
    return tuple(
        name for name in enabled(state.phase) if name not in NEEDS or NEEDS[name](state)
    )


def _asks(state: State, *kinds: str) -> bool:
    return any(state.asks[number - 1].kind in kinds for number in state.open_asks)


def _answer(state: State) -> bool:
    return _asks(state, "question", "unsure", "child")


def _approval(state: State) -> bool:
    return _asks(state, "approval", "child")


def _declinable(state: State) -> bool:
    return any(state.asks[number - 1].declinable for number in state.open_asks)


def _withdraw(state: State) -> bool:
    hold = state.hold
    pauses = state.phase is Phase.PAUSING and hold is not None and hold.why == "user"
    return bool(state.pending) or pauses


def _caps(state: State) -> bool:
    return bool(caps(state.stop, state.metered))


def _frames(state: State) -> bool:
    return bool(state.frames)


def _agent_drives(state: State) -> bool:
    return not state.wheel


def _course_is_free(state: State) -> bool:
    hold = state.hold
    at_cap = state.phase is Phase.PAUSED and hold is not None and bool(hold.cap)
    return not (state.wheel or at_cap)  # at a cap, `resume` takes the words and raises it


def _person_drives(state: State) -> bool:
    return bool(state.wheel)


def _residue(state: State) -> bool:
    return bool(state.residue)


def _residue_open(state: State) -> bool:
    return bool(state.residue) and not state.residue_accepted


NEEDS: Final[Mapping[str, Callable[[State], bool]]] = {
    "answer": _answer,
    "approve": _approval,
    "decline": _declinable,
    "withdraw": _withdraw,
    "raise_cap": _caps,
    "resume_frame": _frames,
    "drop_frame": _frames,
    "resume": _agent_drives,
    "redirect": _course_is_free,
    "write": _person_drives,
    "use_tool": _person_drives,
    "hand_back": _person_drives,
    "retry_undo": _residue,
    "accept_residue": _residue_open,
}
"""Control → whether the run has what it needs; the guards of the table, said beforehand."""
