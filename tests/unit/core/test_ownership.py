"""Leases, epochs, halts, request ids and take-overs: the actors that may change a run."""

import pytest
from msgspec.structs import replace

from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core.entries import (
    CallAborted,
    CallDone,
    CallFailed,
    LateResult,
    LeaseReleased,
    RequestNoted,
)
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
from midrun.core.scheduler import (
    AbortCall,
    find_retry_time,
)
from midrun.core.state import CallStage
from midrun.core.transitions import NoChange
from midrun.core.values import Actor, Effect, Phase, Reply, RequestedCall, Traits
from tests.unit.core.scenario_steps import end_call, get_call, get_stage, is_sound, leased_run

E1, E2 = Epoch(1), Epoch(2)
C1, C2, C3 = CallId("c1"), CallId("c2"), CallId("c3")
SEARCH = RequestedCall(tool="search", args={}, traits=Traits(effect=Effect.READ))
MAIL = RequestedCall(tool="mail", args={})
ANN, BO = Actor(name="ann"), Actor(name="bo")
OLGA = Actor(name="olga", role="operator")

with_mail = leased_run.replies(MAIL).starts("c2")


# ── leases ─────────────────────────────────────────────────────────────────────────────


def test_a_new_lease_fences_the_old_worker_and_marks_its_calls_unknown() -> None:
    run = with_mail.after(v.TakeLease(holder="w2"))
    assert get_stage(run) is CallStage.UNKNOWN
    result = v.CloseCall(epoch=E1, outcome=CallDone(call=C2))
    run.when(result).then(refused="fenced")


def test_a_lease_that_another_worker_holds_is_not_taken() -> None:
    with_mail.when(v.TakeLease(holder="w2", held_by_other=True)).then(refused="leased")


def test_an_orphaned_model_call_is_made_again_as_another_attempt() -> None:
    """Both attempts count as one step."""
    run = leased_run.starts("c1").after(v.TakeLease()).then(starts=(C1,))
    run = run.starts("c1")
    again = get_call(run, "c1")
    assert (again.attempt, run.state.meter.steps) == (2, 1)


def test_an_orphaned_read_is_made_again() -> None:
    leased_run.replies(SEARCH).starts("c2").after(v.TakeLease()).then(starts=(C2,))


def test_keys_depend_on_run_and_call_alone_and_differ_by_purpose() -> None:
    """Every attempt in every process has the same key; undo has its own."""
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


def test_a_transient_model_failure_is_retried_and_then_fails_the_run() -> None:
    """The failed run can be resumed at its last boundary."""
    at = Micros(leased_run.now + 5)
    failed = CallFailed(call=C1, error="529", transient=True, retry_at=at)
    run = leased_run.starts("c1").after(v.CloseCall(epoch=E1, outcome=failed))
    assert find_retry_time(run.state, run.now) == at
    run = run.then(starts=()).at(at).then(starts=(C1,))
    for _ in range(5):
        run = run.starts("c1").after(v.CloseCall(epoch=E1, outcome=failed))
    run = run.advances().then(phase=Phase.FAILED)
    run.when(c.Resume()).after(v.TakeLease()).then(starts=(C2,))


def test_the_model_is_called_again_after_a_failed_tool_call() -> None:
    """The agent decides about the error."""
    failed = CallFailed(call=C2, error="no such address")
    run = with_mail.after(v.CloseCall(epoch=E1, outcome=failed))
    run.then(phase=Phase.RUNNING, starts=(C3,))


# ── halts ──────────────────────────────────────────────────────────────────────────────


def test_a_halt_aborts_calls_in_flight_and_a_lift_queues_the_run() -> None:
    run = with_mail.when(c.Halt(reason="incident 7"))
    run = run.then(phase=Phase.HALTED, effects=(AbortCall(call=C2, reason="halted"),))
    run = run.then(starts=()).after(v.CloseCall(epoch=E1, outcome=CallAborted(call=C2)))
    run = run.advances().then(phase=Phase.HALTED)
    assert run.entries[-1] == LeaseReleased(why="halted")
    run.when(c.Lift()).then(phase=Phase.QUEUED)


@pytest.mark.parametrize(
    "phase", [Phase.PAUSING, Phase.PAUSED, Phase.WAITING, Phase.CANCELLING, Phase.FAILED]
)
def test_a_lift_returns_the_run_to_the_phase_it_was_halted_in(phase: Phase) -> None:
    runs = {
        Phase.PAUSING: with_mail.when(c.Pause()),
        Phase.PAUSED: leased_run.when(c.Pause()).advances(),
        Phase.WAITING: with_mail.after(v.TakeLease()).advances(),
        Phase.CANCELLING: with_mail.when(c.Cancel()),
        Phase.FAILED: leased_run.after(v.FailRun(epoch=E1, error="boom")),
    }
    runs[phase].when(c.Halt()).then(phase=Phase.HALTED).when(c.Lift()).then(phase=phase)


def test_a_run_whose_ask_was_closed_while_halted_is_queued_after_the_lift() -> None:
    """A late result closed the ask. The run would wait for ever otherwise (I26)."""
    run = with_mail.after(v.TakeLease()).advances().then(phase=Phase.WAITING).when(c.Halt())
    result = LateResult(call=C2, attempt=1, epoch=E1, result="sent")
    run = run.when(v.ReportLateResult(result=result)).then(phase=Phase.HALTED)
    assert is_sound(run.when(c.Lift()).then(phase=Phase.QUEUED))


# ── request ids ────────────────────────────────────────────────────────────────────────


def test_a_request_id_is_applied_once_and_a_repeat_gets_the_same_seq() -> None:
    """The client repeats a request whose reply was lost."""
    pause = c.Pause(request_id="req-1")
    run = with_mail.when(pause, pause)
    verdict = run.verdict
    assert isinstance(verdict, NoChange)
    assert verdict.seq == run.state.requests["req-1"].seq
    run.when(c.Pause(now=True, request_id="req-1")).then(refused="request_id_reused")


def test_a_repeated_request_gets_the_same_refusal_later() -> None:
    resume = c.Resume(request_id="req-2", instruction="go")
    run = with_mail.when(resume).then(refused="not_paused")
    assert isinstance(run.entries[-1], RequestNoted)
    run = run.when(c.Pause()).after(v.CloseCall(epoch=E1, outcome=CallDone(call=C2))).advances()
    run.then(phase=Phase.PAUSED).when(resume).then(refused="not_paused", phase=Phase.PAUSED)


def test_a_repeated_request_to_use_a_tool_uses_it_once() -> None:
    """I20: the request id of `UseTool` is journaled."""
    use = c.UseTool(by=ANN, use=MAIL, request_id="r1")
    run = (
        leased_run.when(c.TakeOver(by=ANN))
        .advances()
        .when(use)
        .after(v.TakeLease())
        .starts("c1")
    )
    run = (
        end_call(run, CallDone(call=C1)).advances().when(use).then(already="duplicate_request")
    )
    assert len(run.state.calls) == 1


@pytest.mark.parametrize(
    ("first", "second", "already"),
    [
        (c.Resume(by=ANN), c.Resume(by=BO), "already_running"),
        (c.Pause(by=ANN), c.Pause(by=BO), "already_paused"),
        (c.Cancel(by=ANN), c.Cancel(by=BO), "already_cancelled"),
    ],
)
def test_a_repeated_control_names_the_first_actor_after_it_has_taken_effect(
    first: c.Control, second: c.Control, already: str
) -> None:
    """The driver that carries out a control is not its actor."""
    if isinstance(first, c.Resume):
        run = leased_run.when(c.Pause()).advances().when(first).after(v.TakeLease())
    else:
        run = leased_run.when(first).advances()
    run = run.when(second).then(already=already)
    assert isinstance(run.verdict, NoChange)
    assert run.verdict.by == "ann"


# ── take-overs ─────────────────────────────────────────────────────────────────────────


def test_a_person_takes_over_writes_uses_a_tool_and_hands_back() -> None:
    run = with_mail.when(c.TakeOver(by=ANN)).then(phase=Phase.PAUSING)
    run = run.after(v.CloseCall(epoch=E1, outcome=CallDone(call=C2))).advances()
    run = run.then(phase=Phase.PAUSED).when(c.Resume(by=BO)).then(refused="taken_over")
    run = run.when(c.Write(text="I will do it.", by=BO)).then(refused="not_taken_over")
    run = run.when(c.Write(text="I will do it.", by=ANN))
    assert run.state.messages[-1].by == "ann"
    run = run.when(c.UseTool(use=SEARCH, by=ANN)).then(phase=Phase.QUEUED)
    run = run.after(v.TakeLease()).then(starts=(C3,)).starts("c3")
    run = run.after(v.CloseCall(epoch=E2, outcome=CallDone(call=C3))).advances()
    run = run.then(phase=Phase.PAUSED)
    run = run.when(c.HandBack(by=ANN, instruction="Go on from here")).then(phase=Phase.QUEUED)
    run = run.after(v.TakeLease()).advances()
    assert run.state.messages[-1].text == "Go on from here"
    assert [operation for _, operation in run.next_starts] == ["call"]


def test_a_tool_used_during_a_take_over_still_needs_its_approval() -> None:
    gated = RequestedCall(tool="pay", args={}, traits=Traits(approve="block", four_eyes=True))
    run = leased_run.when(c.TakeOver(by=ANN)).advances().when(c.UseTool(use=gated, by=ANN))
    run = run.after(v.TakeLease()).advances().then(phase=Phase.PAUSED)
    run.when(c.Approve(ask=AskId("a1"), by=ANN)).then(refused="not_allowed")
    run = run.when(c.Approve(ask=AskId("a1"), by=BO)).then(phase=Phase.QUEUED)
    run.after(v.TakeLease()).then(starts=(C1,))


def test_calls_of_a_reply_after_a_take_over_are_not_started_for_the_person() -> None:
    """I11: the reply to an earlier model call is not a request of the person."""
    run = leased_run.starts("c1").when(c.TakeOver(by=ANN))
    run = end_call(run, CallDone(call=C1, reply=Reply(uses=(MAIL,)))).advances()
    run = run.when(c.UseTool(by=ANN, use=replace(MAIL, tool="look"))).after(v.TakeLease())
    run.then(starts=(CallId("c3"),))


def test_a_redirect_from_before_a_take_over_does_not_abort_a_call_of_the_person() -> None:
    """The redirect waits until the person hands back."""
    run = leased_run.replies(MAIL).starts("c2").when(c.Redirect(text="other", when="now"))
    run = run.when(c.TakeOver(by=ANN))
    run = run.after(v.CloseCall(epoch=E1, outcome=CallAborted(call=C2))).advances()
    run = run.when(c.UseTool(use=MAIL, by=ANN)).after(v.TakeLease()).starts("c3")
    run.then(effects=())


def test_a_model_call_that_fails_during_a_take_over_does_not_fail_the_run() -> None:
    run = leased_run.starts("c1").when(c.TakeOver(by=ANN))
    run = run.after(v.CloseCall(epoch=E1, outcome=CallFailed(call=C1, error="529"))).advances()
    run = run.when(c.UseTool(use=MAIL, by=ANN)).after(v.TakeLease())
    run.then(starts=(C2,))


def test_an_operator_can_end_the_take_over_of_another_person() -> None:
    run = leased_run.when(c.TakeOver(by=ANN)).advances()
    run.when(c.HandBack(by=BO)).then(refused="not_taken_over")
    run.when(c.HandBack(by=OLGA)).then(phase=Phase.QUEUED)
