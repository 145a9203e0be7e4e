"""Who may act: leases, epochs, halts, request ids, a person at the wheel."""

import pytest

from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core.effects import AbortCall, CallModel, CallTool, Park
from midrun.core.entries import CallAborted, CallDone, CallFailed, LateResult, RequestNoted
from midrun.core.ids import (
    AskId,
    CallId,
    Epoch,
    Micros,
    RunId,
    make_call_key,
    make_child_id,
    make_undo_key,
)
from midrun.core.scheduler import plan_effects
from midrun.core.state import CallStage
from midrun.core.transitions import NoChange
from midrun.core.values import Actor, Effect, Phase, Traits, Use
from midrun.testing.scenario import LEASED_RUN, given

E1, E2 = Epoch(1), Epoch(2)
C1, C2, C3 = CallId("c1"), CallId("c2"), CallId("c3")
SEARCH = Use(tool="search", args={}, traits=Traits(effect=Effect.READ))
MAIL = Use(tool="mail", args={})
ANN, BO = Actor(name="ann"), Actor(name="bo")

begun = given(*LEASED_RUN)
mailing = begun.replies(MAIL).starts("c2")


def test_a_takeover_fences_the_old_holder_and_makes_its_calls_unknown() -> None:
    """One epoch at a time; whatever was in flight, nobody knows."""
    run = mailing.after(v.TakeLease(holder="w2"))
    call = run.state.find_call("c2")
    assert call is not None
    assert call.stage is CallStage.UNKNOWN
    late = v.CloseCall(epoch=E1, outcome=CallDone(call=C2))
    run.when(late).then(refused="fenced")


def test_a_lease_that_is_held_is_not_taken() -> None:
    """A duplicate wake-up finds somebody at work."""
    mailing.when(v.TakeLease(holder="w2", held_by_other=True)).then(refused="leased")


def test_an_orphaned_model_call_is_made_again_as_a_new_attempt_of_the_same_call() -> None:
    """Reading twice costs money, not truth."""
    run = begun.starts("c1").after(v.TakeLease()).then(plans=(CallModel(call=C1),))
    run = run.starts("c1")
    again = run.state.find_call("c1")
    assert again is not None
    assert (again.attempt, run.state.meter.steps) == (2, 1)


def test_an_orphaned_read_or_idempotent_call_is_made_again_under_its_key() -> None:
    """The far end knows the key, or there is nothing to know."""
    begun.replies(SEARCH).starts("c2").after(v.TakeLease()).then(plans=(CallTool(call=C2),))


def test_keys_depend_on_run_and_call_alone_and_differ_by_purpose() -> None:
    """Every attempt, every process, the same key; undo has its own."""
    run = RunId("run_1")
    keys = {
        make_call_key(run, C2),
        make_undo_key(run, C2, "undo"),
        make_undo_key(run, C2, "release"),
        make_call_key(run, C3),
        make_call_key(RunId("run_2"), C2),
        make_child_id(run, C2),
    }
    assert len(keys) == 6
    assert make_call_key(run, C2) == make_call_key(RunId("run_1"), CallId("c2"))


def test_a_failed_model_call_is_retried_while_that_may_help_and_then_fails_the_run() -> None:
    """Any failure is resumable: the run rests at its last boundary."""
    at = Micros(begun.now + 5)
    broken = CallFailed(call=C1, error="529", transient=True, retry_at=at)
    run = begun.starts("c1").after(v.CloseCall(epoch=E1, outcome=broken))
    run.then(plans=(CallModel(call=C1, not_before=at),))
    for _ in range(5):
        run = run.starts("c1").after(v.CloseCall(epoch=E1, outcome=broken))
    run = run.advances().then(phase=Phase.FAILED)
    run.when(c.Resume()).after(v.TakeLease()).then(plans=(CallModel(call=C2),))


def test_a_failed_tool_call_is_an_answer_to_the_model() -> None:
    """The agent decides what an error means."""
    failed = CallFailed(call=C2, error="no such address")
    run = mailing.after(v.CloseCall(epoch=E1, outcome=failed))
    run.then(phase=Phase.RUNNING, plans=(CallModel(call=C3),))


def test_a_halt_aborts_like_pause_now_and_a_lift_goes_on_where_it_was() -> None:
    """Out of band, by an operator, with a reason."""
    run = mailing.when(c.Halt(reason="incident 7"))
    run = run.then(phase=Phase.HALTED, plans=(AbortCall(call=C2, reason="halted"),))
    start = v.StartCall(epoch=E1, call=C3, seen_seq=run.state.seq)
    run.when(start).then(refused="is_halted")
    run = run.after(v.CloseCall(epoch=E1, outcome=CallAborted(call=C2))).then(plans=(Park(),))
    run = run.after(v.StandDown(epoch=E1)).then(phase=Phase.HALTED)
    run.when(c.Lift()).then(phase=Phase.QUEUED)


@pytest.mark.parametrize(
    "phase", [Phase.PAUSING, Phase.PAUSED, Phase.WAITING, Phase.CANCELLING, Phase.FAILED]
)
def test_a_lift_returns_the_run_to_the_phase_it_was_halted_in(phase: Phase) -> None:
    """A paused run is not started by lifting a latch."""
    runs = {
        Phase.PAUSING: mailing.when(c.Pause()),
        Phase.PAUSED: begun.when(c.Pause()).advances(),
        Phase.WAITING: mailing.after(v.TakeLease()).advances(),
        Phase.CANCELLING: mailing.when(c.Cancel()),
        Phase.FAILED: begun.after(v.FailRun(epoch=E1, error="boom")),
    }
    runs[phase].when(c.Halt()).then(phase=Phase.HALTED).when(c.Lift()).then(phase=phase)


def test_a_run_whose_question_was_settled_while_halted_goes_on_after_the_lift() -> None:
    """Found by the simulator: it would have waited for nobody, for ever."""
    run = mailing.after(v.TakeLease()).advances().then(phase=Phase.WAITING).when(c.Halt())
    late = LateResult(call=C2, attempt=1, epoch=E1, result="sent")
    run = run.when(v.ReportLateResult(result=late)).then(phase=Phase.HALTED)
    run.when(c.Lift()).then(phase=Phase.QUEUED)


def test_a_request_id_is_applied_once_and_a_repeat_hears_the_same() -> None:
    """The reply was lost, the client asks again, from another process."""
    pause = c.Pause(request="req-1")
    run = mailing.when(pause, pause)
    verdict = run.verdict
    assert isinstance(verdict, NoChange)
    assert verdict.seq == run.state.requests["req-1"].seq
    run.when(c.Pause(now=True, request="req-1")).then(refused="request_id_reused")


def test_a_refused_request_hears_the_same_refusal_later() -> None:
    """What a sender was told does not change behind their back."""
    resume = c.Resume(request="req-2", instruction="go")
    run = mailing.when(resume).then(refused="not_paused")
    assert isinstance(run.entries[-1], RequestNoted)
    run = run.when(c.Pause()).after(v.CloseCall(epoch=E1, outcome=CallDone(call=C2))).advances()
    run.then(phase=Phase.PAUSED).when(resume).then(refused="not_paused", phase=Phase.PAUSED)


def test_a_person_takes_over_writes_uses_a_tool_and_hands_back() -> None:
    """The whole state in view, the same door, and the agent told."""
    run = mailing.when(c.TakeOver(by=ANN)).then(phase=Phase.PAUSING)
    run = run.after(v.CloseCall(epoch=E1, outcome=CallDone(call=C2))).advances()
    run = run.then(phase=Phase.PAUSED).when(c.Resume(by=BO)).then(refused="taken_over")
    run = run.when(c.Write(text="I will do it.", by=BO)).then(refused="not_taken_over")
    run = run.when(c.Write(text="I will do it.", by=ANN))
    assert run.state.messages[-1].by == "ann"
    run = run.when(c.UseTool(use=SEARCH, by=ANN)).then(phase=Phase.QUEUED)
    run = run.after(v.TakeLease()).then(plans=(CallTool(call=C3),)).starts("c3")
    run = run.after(v.CloseCall(epoch=E2, outcome=CallDone(call=C3))).advances()
    run = run.then(phase=Phase.PAUSED)
    run = run.when(c.HandBack(by=ANN, instruction="Go on from here")).then(phase=Phase.QUEUED)
    run = run.after(v.TakeLease()).advances()
    assert run.state.messages[-1].text == "Go on from here"
    assert isinstance(plan_effects(run.state)[0], CallModel)


def test_a_tool_used_by_hand_still_needs_its_approval() -> None:
    """There is one door."""
    gated = Use(tool="pay", args={}, traits=Traits(approve="block", four_eyes=True))
    run = begun.when(c.TakeOver(by=ANN)).advances().when(c.UseTool(use=gated, by=ANN))
    run = run.after(v.TakeLease()).advances().then(phase=Phase.PAUSED)
    run.when(c.Approve(ask=AskId("a1"), by=ANN)).then(refused="not_allowed")
    run = run.when(c.Approve(ask=AskId("a1"), by=BO)).then(phase=Phase.QUEUED)
    run.after(v.TakeLease()).then(plans=(CallTool(call=C1),))
