"""The transition tables: which inputs and entries each phase allows.

- `INPUT_TABLE` has a cell for each pair of input and phase: accepted (with the phases that may
  follow), no change by name, or refused by name. `decide` consults it first.
- `ADVANCE_TABLE` says which phases may follow without an input; see `scheduler.advance`.
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
from midrun.core.driver_inputs import DriverInput
from midrun.core.entries import Entry
from midrun.core.ids import Seq
from midrun.core.state import State
from midrun.core.stops import measure_caps
from midrun.core.values import Phase, Value

# Verdicts: the possible answers of `decide`, which never raises.
#
# Accepted (entries to append), no change (the run is already in the wanted state), or refused.
# The names of the last two are in the tables below and are stable: clients branch on them.


class Accepted(Value, kw_only=True):
    """Append these entries, all or none, directly after the state that was decided on."""

    entries: tuple[Entry, ...]


class NoChange(Value, kw_only=True):
    """The run is already in the wanted state, since `seq`, because of `by`.

    `entries` may hold a `RequestNoted`. It records the verdict under the request id, so that a
    repeat of the request gets the same verdict.
    """

    name: str
    seq: Seq
    by: str = ""
    entries: tuple[Entry, ...] = ()


class Refused(Value, kw_only=True):
    """The input does not fit the phase, or a check failed; `reason` is its stable name.

    `seq` and `by` name the entry and the person that caused it; `entries` as in `NoChange`.
    """

    reason: str
    seq: Seq = Seq(0)
    by: str = ""
    entries: tuple[Entry, ...] = ()


Verdict = Accepted | NoChange | Refused


def accept(*entries: Entry) -> Accepted:
    """Return a verdict that appends `entries`."""
    return Accepted(entries=entries)


QUEUED, RUNNING, PAUSING, PAUSED, WAITING = list(Phase)[:5]
CANCELLING, CANCELLED, COMPLETED, FAILED, HALTED = list(Phase)[5:]

Input = Control | DriverInput


class TableCell(Value, kw_only=True):
    """The meaning of one input in one phase."""

    next_phases: tuple[Phase, ...] = ()  # accepted: the phases that may follow
    no_change_name: str = ""  # the name of "no change"; with `next_phases`, `decide` chooses
    refusal_name: str = ""  # the name of the refusal

    def __str__(self) -> str:
        ways = [f"→ {' or '.join(self.next_phases)}"] if self.next_phases else []
        ways += [f"= {self.no_change_name}"] if self.no_change_name else []
        return " / ".join(ways) or f"✗ {self.refusal_name}"


TableRow = Mapping[Phase, TableCell]


def _allow(*phases: Phase, no_change_name: str = "") -> TableCell:
    return TableCell(next_phases=phases, no_change_name=no_change_name)


def _no_change(name: str) -> TableCell:
    return TableCell(no_change_name=name)


def _fill_row(
    cells: Mapping[Phase, TableCell], refused: Mapping[Phase, str] | None = None
) -> TableRow:
    """Return `cells` and, for other phases, the refusal of `refused` or `is_<phase>`."""
    named = {phase: f"is_{phase}" for phase in Phase} | dict(refused or {})
    return {phase: cells.get(phase, TableCell(refusal_name=named[phase])) for phase in Phase}


def _accept_and_stay(phases: Iterable[Phase]) -> dict[Phase, TableCell]:
    return {phase: _allow(phase) for phase in phases}


def _allow_no_change(no_change_name: str, row: TableRow) -> TableRow:
    """Return `row` with "no change" as a second outcome of every accepted cell."""
    return {
        phase: TableCell(next_phases=cell.next_phases, no_change_name=no_change_name)
        if cell.next_phases
        else cell
        for phase, cell in row.items()
    }


_OPEN_PHASES = (QUEUED, RUNNING, PAUSING, PAUSED, WAITING, FAILED)
_LEASED_PHASES = (RUNNING, PAUSING, CANCELLING, HALTED)
_ENDED_REFUSALS = {CANCELLED: "already_cancelled", COMPLETED: "already_completed"}
_ASK_CLOSED_REFUSALS = dict.fromkeys((CANCELLING, CANCELLED, COMPLETED), "ask_closed")
_DECIDE_ASK_ROW = _fill_row(
    {
        **_accept_and_stay(_OPEN_PHASES),
        WAITING: _allow(QUEUED, WAITING),
        PAUSED: _allow(PAUSED, QUEUED),
    },
    _ASK_CLOSED_REFUSALS,
)
_NOT_HALTED_REFUSALS = dict.fromkeys(set(Phase) - {HALTED}, "not_halted")
_NO_RESIDUE_REFUSALS = dict.fromkeys(set(Phase) - {CANCELLED, COMPLETED}, "no_residue")

INPUT_TABLE: Final[Mapping[type[Input], TableRow]] = {
    # Controls: requests of people.
    c.Pause: _fill_row(
        {
            QUEUED: _allow(PAUSED),
            RUNNING: _allow(PAUSING),
            # A second pause counts if it asks for more: `now`, or a pause without an end.
            PAUSING: _allow(PAUSING, no_change_name="already_pausing"),
            PAUSED: _allow(PAUSED, no_change_name="already_paused"),
            WAITING: _allow(PAUSED),
        }
    ),
    c.Resume: _fill_row(
        {
            QUEUED: _no_change("already_queued"),
            RUNNING: _no_change("already_running"),
            PAUSING: _allow(RUNNING),
            PAUSED: _allow(QUEUED, WAITING),
            WAITING: _no_change("already_waiting"),
            FAILED: _allow(QUEUED, WAITING),
        }
    ),
    c.Redirect: _fill_row(
        {
            QUEUED: _allow(QUEUED),
            RUNNING: _allow(RUNNING),
            PAUSING: _allow(PAUSING),
            PAUSED: _allow(QUEUED),
            WAITING: _allow(QUEUED),
            FAILED: _allow(QUEUED),
        }
    ),
    c.Say: _fill_row(
        {
            **_accept_and_stay((QUEUED, RUNNING, PAUSING, PAUSED)),
            WAITING: _allow(QUEUED, WAITING),
        }
    ),
    c.Answer: _DECIDE_ASK_ROW,
    c.Approve: _DECIDE_ASK_ROW,
    c.Decline: _DECIDE_ASK_ROW,
    c.Cancel: _fill_row(
        {
            # Without a driver: cancelled at once if nothing has to be undone or released.
            **dict.fromkeys((QUEUED, PAUSED, WAITING, FAILED), _allow(CANCELLED, CANCELLING)),
            RUNNING: _allow(CANCELLING),
            PAUSING: _allow(CANCELLING),
            CANCELLING: _no_change("already_cancelling"),
            CANCELLED: _no_change("already_cancelled"),
            # The cancel is recorded; its undos start only after the halt is lifted.
            HALTED: _allow(HALTED, no_change_name="already_cancelling"),
        },
        {COMPLETED: "already_completed"},
    ),
    c.Halt: _fill_row(
        {
            **dict.fromkeys((*_OPEN_PHASES, CANCELLING), _allow(HALTED)),
            HALTED: _no_change("already_halted"),
        },
        _ENDED_REFUSALS,
    ),
    # Back to the phase before the halt, whichever it was.
    c.Lift: _fill_row({HALTED: _allow(*_OPEN_PHASES, CANCELLING)}, _NOT_HALTED_REFUSALS),
    c.RaiseCap: _fill_row(_accept_and_stay((*_OPEN_PHASES, CANCELLING, HALTED))),
    c.Withdraw: _fill_row(
        {**_accept_and_stay(_OPEN_PHASES), PAUSING: _allow(PAUSING, RUNNING)}
    ),
    c.ForcePause: _fill_row({PAUSING: _allow(PAUSED), PAUSED: _no_change("already_paused")}),
    c.RetryUndo: _fill_row({CANCELLED: _allow(CANCELLING)}, _NO_RESIDUE_REFUSALS),
    c.AcceptResidue: _fill_row(_accept_and_stay((CANCELLED, COMPLETED)), _NO_RESIDUE_REFUSALS),
    c.ResumeFrame: _fill_row(
        {
            **_accept_and_stay((QUEUED, RUNNING, PAUSING, PAUSED)),
            WAITING: _allow(QUEUED, WAITING),
        }
    ),
    c.DropFrame: _fill_row(
        {**_accept_and_stay(_OPEN_PHASES), WAITING: _allow(WAITING, QUEUED)}
    ),
    c.TakeOver: _fill_row(
        {
            RUNNING: _allow(PAUSING),
            PAUSING: _allow(PAUSING),
            **dict.fromkeys((QUEUED, PAUSED, WAITING, FAILED), _allow(PAUSED)),
        }
    ),
    c.Write: _fill_row({PAUSED: _allow(PAUSED)}),
    c.UseTool: _fill_row({PAUSED: _allow(QUEUED)}),
    c.HandBack: _fill_row(dict.fromkeys((PAUSED, FAILED), _allow(QUEUED, WAITING))),
    # Inputs that need no lease: time has passed, or a result comes from an older epoch.
    v.Wake: _allow_no_change(
        "nothing_due",
        _fill_row(
            {
                **_accept_and_stay((QUEUED, RUNNING, CANCELLING)),
                RUNNING: _allow(RUNNING, PAUSING),
                PAUSING: _allow(PAUSING, RUNNING),
                PAUSED: _allow(PAUSED, QUEUED, WAITING),
                WAITING: _allow(WAITING, QUEUED),
                FAILED: _allow(FAILED),
            }
        ),
    ),
    v.ReportLateResult: _allow_no_change(
        "already_known",
        _fill_row(_accept_and_stay(Phase) | {WAITING: _allow(WAITING, QUEUED)}),
    ),
    # Inputs of a driver. All need its lease, except `TakeLease`, `CloseChildAsk`, `TakeBack`.
    v.TakeLease: _fill_row(
        {
            QUEUED: _allow(RUNNING),
            RUNNING: _allow(RUNNING),
            PAUSING: _allow(PAUSING),
            CANCELLING: _allow(CANCELLING),
        }
    ),
    # The outcome of a call is accepted in every phase in which a driver can hold the run, also
    # while it stops: a call that ended must not be forgotten.
    v.CloseCall: _fill_row(_accept_and_stay(_LEASED_PHASES)),
    v.AskPerson: _fill_row(_accept_and_stay((RUNNING, PAUSING))),
    v.CloseChildAsk: _fill_row(
        {
            **_accept_and_stay((QUEUED, RUNNING, PAUSING, PAUSED, FAILED, HALTED)),
            WAITING: _allow(WAITING, QUEUED),
        }
    ),
    v.TakeBack: _allow_no_change(
        "nothing_to_undo",
        _fill_row(dict.fromkeys((CANCELLED, COMPLETED), _allow(CANCELLING))),
    ),
    v.SaveProgress: _fill_row(_accept_and_stay(_LEASED_PHASES)),
    v.ShowArtifact: _allow_no_change(
        "already_shown", _fill_row(_accept_and_stay(_LEASED_PHASES))
    ),
    v.ProposeCall: _fill_row({RUNNING: _allow(RUNNING)}),
    v.SetPlan: _fill_row(_accept_and_stay((RUNNING, PAUSING))),
    v.RecordStopVerdict: _fill_row({RUNNING: _allow(RUNNING)}),
    v.SettleCall: _fill_row(_accept_and_stay((RUNNING, PAUSING))),
    v.CloseCleanup: _fill_row(_accept_and_stay(_LEASED_PHASES)),
    v.FinishHostedAgent: _fill_row(_accept_and_stay((RUNNING, PAUSING, CANCELLING))),
    v.FailRun: _fill_row({RUNNING: _allow(FAILED), PAUSING: _allow(FAILED)}),
    v.StandDown: _fill_row(
        {**_accept_and_stay((PAUSING, CANCELLING, HALTED)), RUNNING: _allow(QUEUED)}
    ),
}

ADVANCE_TABLE: Final[Mapping[Phase, tuple[Phase, ...]]] = {
    RUNNING: (RUNNING, PAUSING, PAUSED, WAITING, COMPLETED, FAILED),
    PAUSING: (PAUSED, QUEUED),
    CANCELLING: (CANCELLING, CANCELLED),
    HALTED: (HALTED,),
}
"""Phase → the phases that the entries of `scheduler.advance` may lead to."""

GUARD_REFUSALS: Final[Mapping[type[Input], tuple[str, ...]]] = {
    c.Resume: (
        "not_paused",
        "cap_reached",
        "taken_over",
        "no_such_cap",
        "cap_not_raised",
        "empty_text",
        "files_refused",
    ),
    c.Redirect: ("empty_text", "cap_reached", "taken_over", "files_refused"),
    c.Say: ("empty_text", "files_refused"),
    c.Answer: (
        "no_such_ask",
        "ask_closed",
        "already_answered",
        "not_a_question",
        "not_allowed",
        "not_an_outcome",
        "no_files_here",
        "files_refused",
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
    v.ReportLateResult: ("no_such_call",),
    v.CloseCall: ("not_in_flight",),
    v.ProposeCall: ("taken_over",),
    v.AskPerson: ("not_in_flight",),
    v.CloseChildAsk: ("no_such_ask", "ask_closed", "already_answered"),
    v.TakeBack: ("not_its_parent",),
    v.SaveProgress: ("not_in_flight",),
    v.ShowArtifact: ("not_in_flight", "files_refused"),
    v.SettleCall: ("not_unknown",),
    v.CloseCleanup: ("not_in_flight",),
    v.FinishHostedAgent: ("in_flight", "unseen_control", "already_ended"),
    v.FailRun: ("in_flight",),
    v.StandDown: ("in_flight",),
}
"""Input → the refusals that depend on more than the phase.

Any input of a lease holder may also be refused as `fenced` or `lease_lost`, any control as
`request_id_reused` or `stale_revision`.
"""


@cache  # every view of a run needs it
def list_phase_controls(phase: Phase) -> tuple[str, ...]:
    """Return the names of the controls that a run in `phase` may accept, in table order."""
    return tuple(
        get_input_name(kind)
        for kind, row in INPUT_TABLE.items()
        if issubclass(kind, c.ControlBase) and row[phase].next_phases
    )


def get_input_name(kind: type[Input]) -> str:
    """Return the name of an input for people and refusals: `raise_cap` for `RaiseCap`."""
    return "".join(f"_{x.lower()}" if x.isupper() else x for x in kind.__name__)[1:]


# The third table: in which phases an entry may be appended, and the phase that follows.
#
# It is wider than the first one. One decision appends several entries, and each must fit the
# phase after the one before: a pause of a queued run is `PauseRequested` (→ pausing) followed
# by `RunPaused` (→ paused). `evolve` raises for an entry that does not fit, and
# `verify.check_journal` reports it.


def _keep_phase(*phases: Phase) -> Mapping[Phase, Phase]:
    return {phase: phase for phase in phases}


def _lead_to(to: Phase, phases: Iterable[Phase]) -> Mapping[Phase, Phase]:
    return dict.fromkeys(phases, to)


_PHASES_BEFORE_END = (*_OPEN_PHASES, CANCELLING, HALTED)

ENTRY_TABLE: Final[Mapping[type[Entry], Mapping[Phase, Phase]]] = {
    e.RunStarted: {QUEUED: QUEUED},
    e.RunImported: _keep_phase(PAUSED, WAITING, FAILED, HALTED, COMPLETED, CANCELLED),
    e.LeaseTaken: {**_keep_phase(RUNNING, PAUSING, CANCELLING), QUEUED: RUNNING},
    e.LeaseReleased: {**_keep_phase(PAUSING, CANCELLING, HALTED), RUNNING: QUEUED},
    e.RunWaiting: _lead_to(WAITING, (RUNNING, QUEUED)),
    e.RunWoken: _lead_to(QUEUED, (WAITING, PAUSED)),
    e.RunCompleted: {RUNNING: COMPLETED},
    e.RunFailed: _lead_to(FAILED, (RUNNING, PAUSING)),
    e.PauseRequested: _lead_to(PAUSING, (QUEUED, RUNNING, PAUSING, PAUSED, WAITING, FAILED)),
    e.PauseWithdrawn: {PAUSING: RUNNING},
    e.RunPaused: _lead_to(PAUSED, (PAUSING, RUNNING)),
    e.RunResumed: _lead_to(QUEUED, (PAUSED, FAILED)),
    e.CapRaised: _keep_phase(*_PHASES_BEFORE_END),
    e.CapReached: {RUNNING: PAUSING},
    e.StopReached: _keep_phase(RUNNING),
    e.StopEvaluated: _keep_phase(RUNNING),
    e.RedirectRequested: _keep_phase(*_OPEN_PHASES),
    e.RedirectApplied: _keep_phase(RUNNING),
    e.RedirectClosed: _keep_phase(*_PHASES_BEFORE_END),
    # From completed and cancelled only through the parent run, which undoes everything.
    e.CancelRequested: {
        **_lead_to(CANCELLING, (*_OPEN_PHASES, COMPLETED, CANCELLED)),
        HALTED: HALTED,
    },
    e.RunCancelled: {CANCELLING: CANCELLED},
    e.UndoRetried: {CANCELLED: CANCELLING},
    e.ResidueAccepted: _keep_phase(CANCELLED, COMPLETED),
    e.RunHalted: _lead_to(HALTED, (*_OPEN_PHASES, CANCELLING)),
    # The one exception: `evolve` takes the next phase from `State.phase_after_halt`.
    e.RunLifted: {HALTED: HALTED},
    e.RequestNoted: _keep_phase(*Phase),
    e.CallProposed: _keep_phase(RUNNING, PAUSED),
    e.CallStarted: _keep_phase(RUNNING),
    e.CallDone: _keep_phase(*_LEASED_PHASES),
    e.CallFailed: _keep_phase(*_LEASED_PHASES),
    e.CallAborted: _keep_phase(*_LEASED_PHASES),
    e.CallUnknown: _keep_phase(*_LEASED_PHASES),
    e.CallSettled: _keep_phase(*_OPEN_PHASES),
    e.CallSealed: _keep_phase(*_PHASES_BEFORE_END),
    e.ProgressSaved: _keep_phase(*_LEASED_PHASES),
    e.ArtifactShown: _keep_phase(*_LEASED_PHASES),
    e.LateResult: _keep_phase(*Phase),
    e.UndoStarted: _keep_phase(RUNNING, CANCELLING),
    e.UndoDone: _keep_phase(*_LEASED_PHASES),
    e.UndoFailed: _keep_phase(*_LEASED_PHASES),
    e.UndoUnknown: _keep_phase(*_LEASED_PHASES),
    e.UndoGaveUp: _keep_phase(*_LEASED_PHASES),
    e.AskOpened: _keep_phase(RUNNING, PAUSING),
    e.AskAnswered: _keep_phase(*_OPEN_PHASES),
    e.AskClosed: _keep_phase(*_PHASES_BEFORE_END),
    e.MessageReceived: _keep_phase(QUEUED, RUNNING, PAUSING, PAUSED, WAITING),
    e.MessageDue: _keep_phase(*_OPEN_PHASES),
    e.MessageTaken: _keep_phase(RUNNING),
    e.MessageClosed: _keep_phase(*_PHASES_BEFORE_END),
    e.FramePushed: _keep_phase(RUNNING),
    e.FrameResumed: _keep_phase(QUEUED, RUNNING, PAUSING, PAUSED, WAITING),
    e.FrameReconstructed: _keep_phase(QUEUED, RUNNING, PAUSING, PAUSED, WAITING),
    e.FrameAbandoned: _keep_phase(*_PHASES_BEFORE_END),
    e.PlanMade: _keep_phase(RUNNING, PAUSING),
    e.HandedOff: _keep_phase(RUNNING),
    e.HistoryCondensed: _keep_phase(*_LEASED_PHASES),
    e.AnswerGiven: _keep_phase(RUNNING, PAUSING, CANCELLING),
    e.TakenOver: _keep_phase(*_OPEN_PHASES),
    e.PersonWrote: _keep_phase(PAUSED),
    e.ToolUseRequested: _keep_phase(PAUSED),
    e.HandedBack: _keep_phase(PAUSED, FAILED),
}

START_ENTRY_TYPES: Final = (e.CallStarted, e.UndoStarted)
"""The entries that let a call, an undo or a release leave the process. Stores check halts
before they append one of these."""

# Possible controls. The table decides by phase alone; the preconditions below add the parts of
# the state that a control needs: `answer` needs an open question, `retry_undo` a residue.


def list_possible_controls(state: State) -> tuple[str, ...]:
    """Return the names of the controls that a run in `state` accepts, in table order.

    The sender is not known here. `decide` may still refuse a person who lacks the role, or who
    is not the one that took over. "fork" is the last one in every phase: it creates a new run
    and changes nothing in this one, so it is not in the table.
    """
    # The table alone would offer *approve* in every running run. A button that is always
    # refused would be worse than none.
    accepted = (
        name
        for name in list_phase_controls(state.phase)
        if name not in CONTROL_PRECONDITIONS or CONTROL_PRECONDITIONS[name](state)
    )
    return (*accepted, "fork")


# Each of these repeats one check of `decide/` on the state alone. If a check there changes, the
# button of the control would be wrong: `tests/unit/core/test_transitions.py` compares both.


def _has_open_ask(state: State, *kinds: str) -> bool:
    return any(state.asks[number - 1].effective_kind in kinds for number in state.open_asks)


def _has_ask_to_answer(state: State) -> bool:
    return _has_open_ask(state, "question", "unsure", "child")


def _has_ask_to_approve(state: State) -> bool:
    return _has_open_ask(state, "approval", "child")


def _has_ask_to_decline(state: State) -> bool:
    return any(state.asks[number - 1].can_be_declined for number in state.open_asks)


def _has_input_to_withdraw(state: State) -> bool:
    pause = state.pause
    is_pausing = state.phase is Phase.PAUSING and pause is not None and pause.reason == "user"
    return bool(state.pending) or is_pausing


def _has_caps(state: State) -> bool:
    return bool(measure_caps(state.stop, state.meter_with_time))


def _has_frames(state: State) -> bool:
    return bool(state.frames)


def _is_agent_in_control(state: State) -> bool:
    return not state.taken_over_by


def _can_redirect(state: State) -> bool:
    pause = state.pause
    at_cap = state.phase is Phase.PAUSED and pause is not None and bool(pause.cap_name)
    # At a cap, a run would not continue after a redirect: `resume` raises the cap and takes
    # text.
    return not (state.taken_over_by or at_cap)


def _is_operator_in_control(state: State) -> bool:
    return bool(state.taken_over_by)


def _has_residue(state: State) -> bool:
    return bool(state.residue)


def _has_open_residue(state: State) -> bool:
    return bool(state.residue) and not state.residue_accepted


CONTROL_PRECONDITIONS: Final[Mapping[str, Callable[[State], bool]]] = {
    "answer": _has_ask_to_answer,
    "approve": _has_ask_to_approve,
    "decline": _has_ask_to_decline,
    "withdraw": _has_input_to_withdraw,
    "raise_cap": _has_caps,
    "resume_frame": _has_frames,
    "drop_frame": _has_frames,
    "resume": _is_agent_in_control,
    "redirect": _can_redirect,
    "write": _is_operator_in_control,
    "use_tool": _is_operator_in_control,
    "hand_back": _is_operator_in_control,
    "retry_undo": _has_residue,
    "accept_residue": _has_open_residue,
}
"""Control → whether the run has the parts that it needs.

These repeat checks of `decide/` that do not depend on the sender. A test compares both.
"""
