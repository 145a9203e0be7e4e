"""The transition tables: which inputs and entries each phase allows.

- `INPUT_TABLE` has a cell for each pair of input and phase: accepted (with the phases that may
  follow), no change by name, or refused by name. `decide` consults it first.
- `ENTRY_TABLE` says in which phases an entry may be appended, and which phase follows it.
  `evolve` obeys it, and `midrun.verify` reports a journal that does not.
- `GUARD_REFUSALS` lists the refusals that depend on more than the phase. The checks themselves
  are in `decide/`. A test fails if a check refuses with a name that is not listed here.
- `CONTROL_PRECONDITIONS` and `list_possible_controls` tell in advance which controls the run
  would accept. Page, terminal and command take their buttons from it.

The diagram in `docs/concepts/phases.md` is drawn from these tables, and the tests visit every
cell.
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
    """The meaning of one input in one phase."""

    to: tuple[Phase, ...] = ()  # accepted: the phases that may follow
    already: str = ""  # the name of "no change"; with `to`, a check in `decide/` chooses
    refused: str = ""  # the name of the refusal

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
    """Return `cells` and, for other phases, the refusal of `refused` or `is_<phase>`."""
    named = {phase: f"is_{phase}" for phase in Phase} | dict(refused or {})
    return {phase: cells.get(phase, Cell(refused=named[phase])) for phase in Phase}


def _stays(phases: Iterable[Phase]) -> dict[Phase, Cell]:
    return {phase: _to(phase) for phase in phases}


def _or(already: str, row: Row) -> Row:
    """Return `row` with "no change" as a second outcome of every accepted cell."""
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
    # Controls: requests of people.
    c.Pause: _row(
        {
            QUEUED: _to(PAUSED),
            RUNNING: _to(PAUSING),
            # A second pause counts if it asks for more: `now`, or a pause without an end.
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
            # Without a driver: cancelled at once if nothing has to be undone or released.
            **dict.fromkeys((QUEUED, PAUSED, WAITING, FAILED), _to(CANCELLED, CANCELLING)),
            RUNNING: _to(CANCELLING),
            PAUSING: _to(CANCELLING),
            CANCELLING: _already("already_cancelling"),
            CANCELLED: _already("already_cancelled"),
            # The cancel is recorded; its undos start only after the halt is lifted.
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
    # Back to the phase before the halt, whichever it was.
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
    # Inputs that need no lease: time has passed, or a result comes from an older epoch.
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
    # Inputs of the driver that holds the lease (`TakeLease`, `CloseChildAsk`, `TakeBack`: of
    # a driver, without one).
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
    # The outcome of a call is accepted in every phase in which a driver can hold the run, also
    # while it stops: a call that ended must not be forgotten.
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
"""Input → the refusals that depend on more than the phase.

Any input of a lease holder may also be refused as `fenced` or `lease_lost`, any control as
`request_id_reused` or `stale_revision`.
"""


@cache  # every view of a run needs it
def enabled(phase: Phase) -> tuple[str, ...]:
    """Return the names of the controls that a run in `phase` may accept, in table order."""
    return tuple(
        name_of(kind)
        for kind, row in ACCEPTS.items()
        if issubclass(kind, c.Wish) and row[phase].to
    )


def name_of(kind: type[Input]) -> str:
    """Return the name of an input for people and refusals: `raise_cap` for `RaiseCap`."""
    return "".join(f"_{x.lower()}" if x.isupper() else x for x in kind.__name__)[1:]


# The second table: in which phases an entry may be appended, and the phase that follows.
#
# It is wider than the first one. One decision appends several entries, and each must fit the
# phase after the one before: a pause of a queued run is `PauseRequested` (→ pausing) followed
# by `RunPaused` (→ paused). `evolve` raises for an entry that does not fit, and
# `verify.check_journal` reports it.


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
    # From completed and cancelled only through the parent run, which undoes everything.
    e.CancelRequested: {
        **_leads(CANCELLING, (*_UNFINISHED_PHASES, COMPLETED, CANCELLED)),
        HALTED: HALTED,
    },
    e.RunCancelled: {CANCELLING: CANCELLED},
    e.UndoRetried: {CANCELLED: CANCELLING},
    e.ResidueAccepted: _keeps_phase(CANCELLED, COMPLETED),
    e.RunHalted: _leads(HALTED, (*_UNFINISHED_PHASES, CANCELLING)),
    # The one exception: `evolve` takes the next phase from `State.phase_after_halt`.
    e.RunLifted: {HALTED: HALTED},
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
"""The entries that let a call, an undo or a release leave the process. Stores check halts
before they append one of these."""

# Possible controls. The table decides by phase alone; the preconditions below add the parts of
# the state that a control needs: `answer` needs an open question, `retry_undo` a residue.


def possible(state: State) -> tuple[str, ...]:
    """Return the names of the controls that a run in `state` accepts, in table order.

    The sender is not known here. `decide` may still refuse a person who lacks the role, or who
    is not the one that took over.
    """
    return tuple(
        name for name in enabled(state.phase) if name not in NEEDS or NEEDS[name](state)
    )


# Each of these repeats one check of `decide/` on the state alone. If a check there changes, the
# button of the control would be wrong: `tests/unit/core/test_possible.py` compares both.


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
    # At a cap, a redirect would not let the run go on: `resume` raises the cap and takes text.
    return not (state.wheel or at_cap)


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
"""Control → whether the run has the parts that it needs.

These repeat checks of `decide/` that do not depend on the sender. A test compares both.
"""
