"""Decide on calls: leases, outcomes, late results, undo.

Calls are started by `scheduler.advance`. Here the driver reports what became of them.
"""

from msgspec.structs import replace

from midrun.core.decide.lifecycle import add_wakeup
from midrun.core.driver_inputs import (
    CloseCall,
    CloseCleanup,
    ProposeCall,
    ReportLateResult,
    SaveProgress,
    SetPlan,
    SettleCall,
    ShowArtifact,
    TakeLease,
)
from midrun.core.entries import (
    ArtifactShown,
    AskClosed,
    CallDone,
    CallFailed,
    CallProposed,
    CallSealed,
    CallSettled,
    CallUnknown,
    Entry,
    HistoryCondensed,
    LateResult,
    LeaseTaken,
    PlanMade,
    ProgressSaved,
    UndoUnknown,
)
from midrun.core.evolve.calls import can_settle_late
from midrun.core.files import find_run_file_problem
from midrun.core.ids import Epoch, Micros, Seq, make_call_id, parse_call_number
from midrun.core.retries import CHECK_DENIALS_MAX
from midrun.core.state import CallStage, State
from midrun.core.transcript import CONDENSE_KEEP_MESSAGES
from midrun.core.transitions import Accepted, NoChange, Refused, Verdict, accept
from midrun.core.values import Reply


def take_lease(state: State, driver_input: TakeLease, _: Micros) -> Verdict:
    """Take the lease; mark the calls of the previous worker as unknown."""
    if driver_input.held_by_other:
        return Refused(reason="leased")
    # The fingerprint is journaled only when the agent's version changed.
    same = driver_input.agent_fingerprint == state.agent_fingerprint
    taken = LeaseTaken(
        epoch=Epoch(state.epoch + 1),
        holder=driver_input.holder,
        agent_fingerprint="" if same else driver_input.agent_fingerprint,
    )
    # In the same append as the lease. A worker can never see a state in which it has the lease
    # and the journal still has calls of its predecessor in flight.
    #
    # This is all that recovery does. The phase is not changed: a run that was being cancelled
    # when its worker was killed is still cancelling. Whether an unknown call is repeated,
    # checked, put to a person or undone follows from the state, as after any other loss of an
    # outcome. If the worker was not dead but frozen, its late outcome has the old epoch; it is
    # refused, and comes back as `ReportLateResult`.
    return accept(taken, *close_lost_calls(state))


def close_lost_calls(state: State) -> tuple[Entry, ...]:
    """Close every call and undo that the previous worker left in flight."""
    lost: tuple[Entry, ...] = tuple(CallUnknown(call=make_call_id(n)) for n in state.in_flight)
    if state.cleanup_in_flight is None:
        return lost
    number, action = state.cleanup_in_flight
    return (*lost, UndoUnknown(call=make_call_id(number), action=action))


def close_call(state: State, driver_input: CloseCall, _: Micros) -> Verdict:
    """Record the outcome of a call in flight."""
    outcome = driver_input.outcome
    call = state.find_call(outcome.call)
    # The call was closed without this outcome: its lease lapsed, or a person forced a pause.
    # The driver reports a result that is refused here as late.
    if call is None or call.stage is not CallStage.STARTED:
        return Refused(reason="not_in_flight")
    if call.purpose == "condense" and isinstance(outcome, CallDone) and outcome.reply:
        if not outcome.reply.text.strip():
            # An empty summary must not replace the history. Record a transient failure, so
            # that the call is retried.
            failed = CallFailed(call=call.id, error="the summary was empty", transient=True)
            return accept(replace(failed, spent=outcome.spent))
        # The newest messages stay word for word, and `upto` never moves back.
        upto = max(state.condensed_count, len(state.messages) - CONDENSE_KEEP_MESSAGES)
        summary = HistoryCondensed(call=call.id, message_count=upto, summary=outcome.reply.text)
        return accept(outcome, summary)
    if isinstance(outcome, CallDone):
        if outcome.reply is not None and outcome.reply.invalid_output:
            outcome = _drop_needless_problem(state, outcome, outcome.reply)
        if outcome.files:
            outcome = _drop_excess_files(state, outcome)
    return Accepted(entries=(outcome,))


def _drop_excess_files(state: State, outcome: CallDone) -> CallDone:
    """Return the outcome; without its files, but with the reason, if they exceed a bound.

    The call took effect, so it must not fail. The agent reads the reason with its result.
    """
    problem = find_run_file_problem(state, outcome.files)
    if not problem:
        return outcome
    return replace(outcome, files=(), encoding_error=problem)


def _drop_needless_problem(state: State, outcome: CallDone, reply: Reply) -> CallDone:
    """Return the outcome; the text that answers a message need not be a valid output.

    Only the answer to the task has the declared form. While a topic is held, or the task is
    answered already, the agent talks to a person.
    """
    is_aside = bool(state.frames) or state.main_answer is not None
    if not is_aside or reply.uses:
        return outcome
    return replace(outcome, reply=replace(reply, invalid_output=""))


def report_late_result(state: State, driver_input: ReportLateResult, _: Micros) -> Verdict:
    """Record a result from a fenced worker; it can only settle an unknown outcome."""
    result = driver_input.result
    call = state.find_call(result.call)
    # The worker is fenced and its input is not checked against a lease. Accept only a result
    # for an attempt and an epoch that this journal knows.
    if call is None or not 0 < result.attempt <= call.attempt or result.epoch > state.epoch:
        return Refused(reason="no_such_call")
    if call.late_attempt >= result.attempt or call.stage is CallStage.DONE:
        return NoChange(name="already_known", seq=call.closed_seq)
    entries: tuple[Entry, ...] = (
        LateResult(
            call=result.call,
            attempt=result.attempt,
            epoch=result.epoch,
            result=result.result,
            files=() if find_run_file_problem(state, result.files) else result.files,
        ),
    )
    if can_settle_late(state, call, result.attempt):
        # The result answers "did the call take effect?", so the ask is obsolete.
        entries += tuple(
            AskClosed(ask=ask.id, why="evidence")
            for n in state.open_asks
            if (ask := state.asks[n - 1]).call == call.id
        )
    return accept(*add_wakeup(state, entries, "evidence"))


def save_progress(state: State, driver_input: SaveProgress, _: Micros) -> Verdict:
    """Record the progress of a long call."""
    call = state.find_call(driver_input.call)
    if call is None or call.stage is not CallStage.STARTED:
        return Refused(reason="not_in_flight")
    return accept(ProgressSaved(call=call.id, progress=driver_input.progress))


def show_artifact(state: State, driver_input: ShowArtifact, _: Micros) -> Verdict:
    """Record the next version of an artifact; the same content again changes nothing."""
    call = state.find_call(driver_input.call)
    if call is None or call.stage is not CallStage.STARTED:
        return Refused(reason="not_in_flight")
    versions = [shown for shown in state.artifacts if shown.name == driver_input.name]
    file = driver_input.file
    # An attempt that is repeated after a crash shows its files again.
    if versions and versions[-1].file == file:
        return NoChange(name="already_shown", seq=versions[-1].seq)
    if find_run_file_problem(state, (file,)):
        return Refused(reason="files_refused")
    version = versions[-1].version + 1 if versions else 1
    return accept(
        ArtifactShown(call=call.id, name=driver_input.name, version=version, file=file)
    )


def propose_call(state: State, driver_input: ProposeCall, _: Micros) -> Verdict:
    """Propose a call of a hosted agent; `scheduler` gates its start like that of any call."""
    if state.taken_over_by:
        return Refused(reason="taken_over", by=state.taken_over_by)
    return accept(CallProposed(use=driver_input.use))


def set_plan(_: State, driver_input: SetPlan, __: Micros) -> Verdict:
    """Record the agent's plan."""
    return accept(PlanMade(items=driver_input.items))


def settle_call(state: State, driver_input: SettleCall, _: Micros) -> Verdict:
    """Record whether the tool's check found that an unknown call happened.

    After `CHECK_DENIALS_MAX` denials the call is sealed: without a limit, a call that always
    dies before it takes effect would be made for ever.
    """
    call = state.find_call(driver_input.call)
    # Without a check, a person was asked, and the answer settles the call.
    if call is None or not call.needs_settling or not call.is_open or not call.traits.check:
        return Refused(reason="not_unknown")
    settled = CallSettled(
        call=call.id,
        happened=driver_input.happened,
        result=driver_input.result,
        by=f"check:{call.use.tool}",
    )
    denials = call.check_denials + (not driver_input.happened)
    if driver_input.happened or denials < CHECK_DENIALS_MAX:
        return accept(settled)
    why = f"not executed: tried {denials} times, and each time its check found nothing done"
    return accept(settled, CallSealed(call=call.id, why=why))


def close_cleanup(state: State, driver_input: CloseCleanup, _: Micros) -> Verdict:
    """Record the outcome of an undo or a release."""
    outcome = driver_input.outcome
    if state.cleanup_in_flight != (parse_call_number(outcome.call), outcome.action):
        return Refused(reason="not_in_flight", seq=Seq(state.seq))
    return accept(outcome)
