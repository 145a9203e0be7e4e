"""Decide on one input of a run: a control or a driver input.

`decide(state, run_input, now)` is a pure, total function. It returns `Accepted` with the
entries to append, `NoChange` for a no-op, or `Refused` with a reason code. It never raises.

An input passes three checks, in this order:

1. Control: the request id is new, and the revision that the caller saw is current.
   Driver input: its epoch is the current one, and the run is leased.
2. The transition table (`transitions.INPUT_TABLE`) accepts this type of input in this phase.
3. The handler of the input checks everything the table cannot express: open asks, caps,
   calls in flight. It builds the entries.

The handlers are grouped by topic: `controls` (pause, resume, cancel …), `asks`,
`conversation` (messages, held topics, take-over), `calls` and `lifecycle` (boundary, end,
timers). `lifecycle` also holds the helpers that they have in common.

Invariant: the entries of a decision are valid only directly after `state.seq`. The writer
appends all of them or none, and decides again when another writer was first.
"""

from typing import assert_never

from msgspec.structs import replace

from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core.controls import Cancel, Control, ControlBase, Pause, Resume
from midrun.core.decide import asks, calls, controls, conversation, lifecycle
from midrun.core.decide.lifecycle import compute_digest, make_request_fields
from midrun.core.driver_inputs import DriverInput, LeasedInput
from midrun.core.entries import RequestNoted
from midrun.core.ids import Micros
from midrun.core.state import State
from midrun.core.transitions import (
    INPUT_TABLE,
    Accepted,
    Input,
    NoChange,
    Refused,
    TableCell,
    Verdict,
)
from midrun.core.values import Phase


def decide(state: State, run_input: Input, now: Micros) -> Verdict:
    """Decide on one input: entries to append, a no-op, or a refusal.

    The entries must be appended after exactly `state.seq`, all or none. `now` is the store's
    time, because the core has no clock. User data in `run_input` must have passed
    `codec.strict_json`.
    """
    # The times in a journal never decrease. A store clock that was set back must not make
    # a decision that is older than the newest entry.
    now = Micros(max(now, state.at))
    if isinstance(run_input, ControlBase):
        return _decide_control(state, run_input, now)
    # Fencing. A worker that lost its lease may not know it yet. Its inputs carry the old
    # epoch and are refused here. Inputs that need no lease, such as a late result or a timer,
    # do not derive from `LeasedInput`.
    if isinstance(run_input, LeasedInput) and (
        run_input.epoch != state.epoch or not state.is_leased
    ):
        reason = "fenced" if run_input.epoch != state.epoch else "lease_lost"
        return Refused(reason=reason, seq=state.phase_since, by=state.phase_by)
    cell = INPUT_TABLE[type(run_input)][state.phase]
    if cell.next_phases:
        return _apply_driver_input(state, run_input, now)
    return _answer_by_cell(state, run_input, cell)


def _decide_control(state: State, control: Control, now: Micros) -> Verdict:
    """Decide on a control; apply each request id at most once.

    A repeated request id gets the outcome of the first request. The outcome is in the journal,
    so the repeat may reach any process.
    """
    first_outcome = state.requests.get(control.request_id) if control.request_id else None
    if first_outcome is None and _is_stale(state, control):
        # This refusal is not recorded. The caller can read the new revision and send the
        # control again under the same request id.
        return Refused(reason="stale_revision", seq=state.control_rev)
    if not control.request_id:
        return _decide_by_phase(state, control, now)
    if first_outcome is None:
        verdict = _decide_by_phase(state, control, now)
        if isinstance(verdict, Accepted):
            return verdict
        name = verdict.name if isinstance(verdict, NoChange) else verdict.reason
        refused = isinstance(verdict, Refused)
        # An accepted control has its own entry, which stores the request id. A no-op or a
        # refusal has none, so `RequestNoted` stores the outcome for a repeat of the request.
        note = RequestNoted(
            verdict=name,
            refused=refused,
            since=verdict.seq,
            since_by=verdict.by,
            **make_request_fields(control),
        )
        return replace(verdict, entries=(note,))
    if first_outcome.digest != compute_digest(control):
        return Refused(reason="request_id_reused", seq=first_outcome.seq)
    if first_outcome.refused:
        return Refused(
            reason=first_outcome.verdict_name,
            seq=first_outcome.since_seq,
            by=first_outcome.since_by,
        )
    name = first_outcome.verdict_name or "duplicate_request"
    return NoChange(name=name, seq=first_outcome.since_seq, by=first_outcome.since_by)


def _is_stale(state: State, control: Control) -> bool:
    """Tell whether the control was sent for an older revision of the run.

    Pause and cancel are exempt: a request to stop always counts.
    """
    seen, stops = control.seen, isinstance(control, Pause | Cancel)
    return seen is not None and seen != state.control_rev and not stops


def _decide_by_phase(state: State, control: Control, now: Micros) -> Verdict:
    """Look the control up in the transition table, then call its handler."""
    cell = INPUT_TABLE[type(control)][state.phase]
    if cell.next_phases:
        return _apply_control(state, control, now)
    return _answer_by_cell(state, control, cell)


def _answer_by_cell(state: State, run_input: Input, cell: TableCell) -> Verdict:
    """Return the refusal or the no-op of an input that the phase does not allow."""
    if cell.refusal_name:
        ask = state.find_ask(getattr(run_input, "ask", ""))
        # The control is about an ask that is closed. Name the actor who closed it: that tells
        # a late caller more than the actor who led the run into this phase.
        if ask is not None and ask.close_reason:
            return Refused(reason=cell.refusal_name, seq=ask.closed_seq, by=ask.decided_by)
        return Refused(reason=cell.refusal_name, seq=state.phase_since, by=state.phase_by)
    if isinstance(run_input, Resume) and run_input.instruction:
        # A no-op would lose the instruction. With a refusal, the caller can send the
        # instruction as a redirect.
        return Refused(reason="not_paused", seq=state.phase_since, by=state.phase_by)
    if state.cancel_request is not None and state.phase is Phase.CANCELLING:
        return NoChange(
            name=cell.no_change_name, seq=state.cancel_seq, by=state.cancel_request.by
        )
    return NoChange(name=cell.no_change_name, seq=state.phase_since, by=state.phase_by)


def _apply_control(state: State, control: Control, now: Micros) -> Verdict:  # noqa: C901, PLR0911 - one arm per control
    match control:
        case c.Pause():
            return controls.pause(state, control, now)
        case c.Resume():
            return controls.resume(state, control, now)
        case c.Redirect():
            return controls.redirect(state, control, now)
        case c.Say():
            return conversation.say(state, control, now)
        case c.Answer():
            return asks.answer(state, control, now)
        case c.Approve():
            return asks.approve(state, control, now)
        case c.Decline():
            return asks.decline(state, control, now)
        case c.Cancel():
            return controls.cancel(state, control, now)
        case c.Halt():
            return controls.halt(state, control, now)
        case c.Lift():
            return controls.lift(state, control, now)
        case c.RaiseCap():
            return controls.raise_cap(state, control, now)
        case c.Withdraw():
            return controls.withdraw(state, control, now)
        case c.ForcePause():
            return controls.force_pause(state, control, now)
        case c.RetryUndo():
            return controls.retry_undo(state, control, now)
        case c.AcceptResidue():
            return controls.accept_residue(state, control, now)
        case c.ResumeFrame():
            return conversation.resume_frame(state, control, now)
        case c.DropFrame():
            return conversation.drop_frame(state, control, now)
        case c.TakeOver():
            return conversation.take_over(state, control, now)
        case c.Write():
            return conversation.write(state, control, now)
        case c.UseTool():
            return conversation.use_tool(state, control, now)
        case c.HandBack():
            return conversation.hand_back(state, control, now)
        case _:
            assert_never(control)


def _apply_driver_input(state: State, driver_input: DriverInput, now: Micros) -> Verdict:  # noqa: C901, PLR0911 - one arm per input
    match driver_input:  # the ends of calls are the most frequent ones
        case v.CloseCall():
            return calls.close_call(state, driver_input, now)
        case v.CloseCleanup():
            return calls.close_cleanup(state, driver_input, now)
        case v.TakeLease():
            return calls.take_lease(state, driver_input, now)
        case v.SaveProgress():
            return calls.save_progress(state, driver_input, now)
        case v.ShowArtifact():
            return calls.show_artifact(state, driver_input, now)
        case v.AskPerson():
            return asks.ask_person(state, driver_input, now)
        case v.SetPlan():
            return calls.set_plan(state, driver_input, now)
        case v.Wake():
            return lifecycle.wake(state, driver_input, now)
        case v.ReportLateResult():
            return calls.report_late_result(state, driver_input, now)
        case v.SettleCall():
            return calls.settle_call(state, driver_input, now)
        case v.CloseChildAsk():
            return asks.close_child_ask(state, driver_input, now)
        case v.TakeBack():
            return controls.take_back(state, driver_input, now)
        case v.RecordStopVerdict():
            return lifecycle.record_stop_verdict(state, driver_input, now)
        case v.StandDown():
            return lifecycle.stand_down(state, driver_input, now)
        case v.FailRun():
            return lifecycle.fail_run(state, driver_input, now)
        case v.ProposeCall():
            return calls.propose_call(state, driver_input, now)
        case v.FinishHostedAgent():
            return lifecycle.finish_hosted_agent(state, driver_input, now)
        case _:
            assert_never(driver_input)
