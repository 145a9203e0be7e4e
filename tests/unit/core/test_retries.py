"""Repeated attempts: workers that die during a call, and checks that deny it."""

from typing import Literal

import pytest

from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core.entries import (
    CallAborted,
    CallDone,
    CallFailed,
    CallSealed,
    CallSettled,
    CallUnknown,
    LateResult,
    LeaseReleased,
    LeaseTaken,
    RunFailed,
    RunStarted,
)
from midrun.core.ids import CallId, Epoch
from midrun.core.retries import (
    CHECK_DENIALS_MAX,
    INVALID_OUTPUT_CODE,
    RETRIES_EXHAUSTED_CODE,
    TOOL_NOT_IMPORTABLE_CODE,
    WORKER_DEATHS_MAX,
    WORKERS_DIED_CODE,
    choose_model,
)
from midrun.core.scheduler import CheckCall, RunProgram
from midrun.core.state import CallStage
from midrun.core.stops import MaxToolCalls, find_met_stop
from midrun.core.values import Actor, Effect, Phase, Reply, RequestedCall, Traits
from midrun.testing.scenario import Scenario, given
from tests.unit.core.scenario_steps import end_call, get_call, get_stage, is_sound, leased_run

C1, C2, C3 = CallId("c1"), CallId("c2"), CallId("c3")
READ = Traits(effect=Effect.READ)
PARSE = RequestedCall(tool="parse_pdf", args={}, traits=READ)
LOOK = RequestedCall(tool="look", args={}, traits=READ)
PAY = RequestedCall(tool="pay", args={}, traits=Traits(check=True))
MAIL = RequestedCall(tool="mail", args={})
CHILD = RequestedCall(tool="helper", kind="child", traits=Traits(release=True))
ANN = Actor(name="ann")

parsing = leased_run.replies(PARSE).starts("c2")
paying = leased_run.replies(PAY).starts("c2")


def kill_workers(run: Scenario, times: int = 1, *calls: str) -> Scenario:
    """Let this many workers die while these calls (default: c2) are in flight.

    The calls are in flight already for the first worker. The others start them again.
    """
    for number in range(times):
        run = run.starts(*(calls or ("c2",))) if number else run
        run = run.after(v.TakeLease(holder=f"w{number}"))
    return run


def get_error(run: Scenario) -> RunFailed:
    """Return the entry with the error of a failed run."""
    assert run.state.error is not None
    return run.state.error


def test_a_call_during_which_three_workers_died_is_not_made_again() -> None:
    """The run fails with its own code before a fourth worker can start the call."""
    run = kill_workers(parsing, WORKER_DEATHS_MAX).then(starts=())
    run = run.advances().then(phase=Phase.FAILED)
    error = "parse_pdf: 3 processes ended, or fell silent, while it was under way"
    assert get_error(run) == RunFailed(error=error, code=WORKERS_DIED_CODE)
    assert not run.state.is_leased
    assert is_sound(run)


def test_a_call_during_which_two_workers_died_is_made_again() -> None:
    run = kill_workers(parsing, WORKER_DEATHS_MAX - 1).then(starts=(C2,))
    run = run.starts("c2").after(v.CloseCall(epoch=run.state.epoch, outcome=CallDone(call=C2)))
    run.then(phase=Phase.RUNNING, starts=(C3,))


def test_a_resume_makes_the_call_again_and_resets_its_count_of_deaths() -> None:
    run = kill_workers(parsing, WORKER_DEATHS_MAX).advances().when(c.Resume(by=ANN))
    run = run.after(v.TakeLease()).then(starts=(C2,))
    assert get_call(run).worker_deaths == 0
    run = kill_workers(run.starts("c2"), WORKER_DEATHS_MAX - 1).then(starts=(C2,))
    kill_workers(run.starts("c2")).advances().then(phase=Phase.FAILED)


def test_workers_that_die_during_a_model_call_are_counted_too() -> None:
    """The client of the model may crash the process when it handles the reply."""
    run = (
        kill_workers(leased_run.starts("c1"), WORKER_DEATHS_MAX, "c1")
        .advances()
        .then(phase=Phase.FAILED)
    )
    assert get_error(run).error.startswith("the model: 3 processes")


def test_workers_that_die_under_a_hosted_program_are_counted_too() -> None:
    """No call is in flight: the code between two calls ends the process."""
    run = given(RunStarted(agent="guest", task="t", hosted=True), LeaseTaken(epoch=Epoch(1)))
    for _ in range(WORKER_DEATHS_MAX):
        run = run.advances().then(phase=Phase.RUNNING).after(v.TakeLease())
    run = run.advances().then(phase=Phase.FAILED)
    assert get_error(run).code == WORKERS_DIED_CODE
    assert is_sound(run)
    run = run.when(c.Resume(by=ANN)).after(v.TakeLease()).then(effects=(RunProgram(),))


def test_all_calls_in_flight_at_the_deaths_are_named_in_the_error() -> None:
    """The core cannot know which one of them ended the workers."""
    run = kill_workers(
        leased_run.replies(PARSE, LOOK).starts("c2", "c3"), WORKER_DEATHS_MAX, "c2", "c3"
    ).advances()
    assert get_error(run).error.startswith("parse_pdf, look: 3 processes")
    assert "while they were under way" in get_error(run).error


def test_a_call_that_ended_before_the_last_death_is_not_named_in_the_error() -> None:
    run = kill_workers(
        leased_run.replies(PARSE, LOOK).starts("c2", "c3"), WORKER_DEATHS_MAX - 1, "c2", "c3"
    )
    run = run.starts("c2", "c3")
    run = end_call(run, CallDone(call=C3))
    assert "look" not in get_error(kill_workers(run).advances()).error


def test_a_worker_that_stands_down_is_not_counted_as_dead() -> None:
    """A rolling deploy aborts the call and returns the lease, any number of times."""
    run = parsing
    for _ in range(WORKER_DEATHS_MAX + 1):
        stopped = v.CloseCall(epoch=run.state.epoch, outcome=CallAborted(call=C2))
        run = run.after(stopped, v.StandDown(epoch=run.state.epoch)).then(phase=Phase.QUEUED)
        run = run.after(v.TakeLease()).starts("c2")
    assert get_call(run).worker_deaths == 0
    assert LeaseReleased in {type(entry) for entry in run.entries}


@pytest.mark.parametrize("why", ["not_responding", "forced"])
def test_an_unresponsive_call_that_a_live_worker_gave_up_counts_no_death(
    why: Literal["not_responding", "forced"],
) -> None:
    run = parsing.after(CallUnknown(call=C2, why=why))
    assert get_call(run).worker_deaths == 0


def test_an_aborted_attempt_does_not_reset_the_count_of_deaths() -> None:
    run = kill_workers(parsing, WORKER_DEATHS_MAX - 1).starts("c2")
    run = end_call(run, CallAborted(call=C2)).starts("c2")
    kill_workers(run).advances().then(phase=Phase.FAILED)


def test_new_progress_resets_the_count_of_deaths() -> None:
    """A long call can finish on machines that live for a shorter time."""
    run = parsing
    for page in range(WORKER_DEATHS_MAX + 2):
        saved = v.SaveProgress(epoch=run.state.epoch, call=C2, progress={"page": page})
        run = kill_workers(run.after(saved)).then(starts=(C2,)).starts("c2")


def test_the_same_progress_again_does_not_reset_the_count_of_deaths() -> None:
    run = parsing
    for _ in range(WORKER_DEATHS_MAX - 1):
        saved = v.SaveProgress(epoch=run.state.epoch, call=C2, progress={"page": 6})
        run = kill_workers(run.after(saved)).starts("c2")
    kill_workers(run).advances().then(phase=Phase.FAILED)


def test_deaths_during_the_call_of_a_child_run_are_not_counted_in_the_parent() -> None:
    """The journal of the child run counts them."""
    run = leased_run.replies(CHILD).starts("c2")
    for _ in range(WORKER_DEATHS_MAX + 2):
        run = kill_workers(run).then(starts=(C2,)).starts("c2")


def test_a_call_that_is_not_safe_to_repeat_is_put_to_a_person_after_one_death() -> None:
    """It is not repeated, so there are no deaths to count."""
    run = (
        kill_workers(leased_run.replies(MAIL).starts("c2")).advances().then(phase=Phase.WAITING)
    )
    assert get_call(run).worker_deaths == 0


def test_deaths_of_a_call_with_a_check_are_counted_too() -> None:
    """Its check denies the call after each death, and the next worker makes it again."""
    run = paying
    for _ in range(WORKER_DEATHS_MAX - 1):
        run = kill_workers(run).then(effects=(CheckCall(call=C2),))
        run = run.after(v.SettleCall(epoch=run.state.epoch, call=C2, happened=False))
        run = run.starts("c2")
    run = kill_workers(run).then(starts=(), effects=()).advances().then(phase=Phase.FAILED)
    run.when(c.Resume()).after(v.TakeLease()).then(effects=(CheckCall(call=C2),))


def test_a_worker_that_dies_during_a_check_counts_as_a_death_of_the_call() -> None:
    """The check is not journaled as started, but the lost lease is."""
    run = kill_workers(paying)
    for _ in range(WORKER_DEATHS_MAX - 1):
        run = run.then(effects=(CheckCall(call=C2),)).after(v.TakeLease())
    run.advances().then(phase=Phase.FAILED)


def test_a_worker_that_stands_down_during_a_check_is_not_counted_as_dead() -> None:
    run = kill_workers(paying)
    for _ in range(WORKER_DEATHS_MAX + 1):
        run = run.after(v.StandDown(epoch=run.state.epoch), v.TakeLease())
    run.then(effects=(CheckCall(call=C2),))


def test_an_unknown_outcome_reported_by_a_live_worker_counts_no_death() -> None:
    run = paying
    for _ in range(WORKER_DEATHS_MAX + 1):
        run = end_call(run, CallUnknown(call=C2))
        run = run.after(v.SettleCall(epoch=run.state.epoch, call=C2, happened=False))
        run = run.starts("c2")
    assert get_call(run).worker_deaths == 0


def test_a_late_result_ends_the_call_after_three_deaths() -> None:
    """The worker was only slow."""
    run = kill_workers(parsing, WORKER_DEATHS_MAX)
    late = LateResult(call=C2, attempt=WORKER_DEATHS_MAX, epoch=run.state.epoch)
    run.after(v.ReportLateResult(result=late)).then(starts=(C3,))


def test_a_redirected_run_does_not_fail_for_a_call_that_it_no_longer_makes() -> None:
    run = (
        kill_workers(parsing, WORKER_DEATHS_MAX - 1)
        .starts("c2")
        .when(c.Redirect(text="Leave the PDF.", by=ANN))
    )
    run = kill_workers(run).advances().then(phase=Phase.RUNNING, starts=(C3,))
    assert get_call(run).error == "outcome unknown, and not made again: the run was redirected"


def test_a_redirect_of_the_failed_run_does_not_make_the_call_again() -> None:
    run = (
        kill_workers(parsing, WORKER_DEATHS_MAX)
        .advances()
        .when(c.Redirect(text="Leave the PDF.", by=ANN))
    )
    run.after(v.TakeLease()).advances().then(starts=(C3,))


def test_a_requested_pause_comes_before_the_failure_and_its_resume_makes_the_call() -> None:
    run = kill_workers(parsing, WORKER_DEATHS_MAX - 1).starts("c2").when(c.Pause(by=ANN))
    run = kill_workers(run).advances().then(phase=Phase.PAUSED)
    run.when(c.Resume(by=ANN)).after(v.TakeLease()).then(starts=(C2,))


def test_a_cancel_ends_the_run_after_three_deaths_as_usual() -> None:
    run = kill_workers(parsing, WORKER_DEATHS_MAX - 1).starts("c2").when(c.Cancel(by=ANN))
    kill_workers(run).advances().then(phase=Phase.CANCELLED)


def test_a_call_with_three_deaths_does_not_stop_the_person_who_took_over() -> None:
    """The call waits until the person hands back; their own tool call starts."""
    run = kill_workers(parsing, WORKER_DEATHS_MAX - 1).starts("c2").when(c.TakeOver(by=ANN))
    run = kill_workers(run).advances().then(phase=Phase.PAUSED)
    run = run.when(c.UseTool(use=LOOK, by=ANN)).after(v.TakeLease())
    run.then(starts=(C3,))


def test_a_tool_call_by_a_person_who_took_over_counts_deaths_too() -> None:
    """Handing the failed run back makes the call again."""
    run = leased_run.when(c.TakeOver(by=ANN)).advances().when(c.UseTool(use=PARSE, by=ANN))
    run = kill_workers(
        run.after(v.TakeLease()).starts("c1"), WORKER_DEATHS_MAX, "c1"
    ).advances()
    run = run.then(phase=Phase.FAILED).when(c.HandBack(by=ANN)).after(v.TakeLease())
    run.then(starts=(C1,))


def test_a_stored_journal_with_a_fourth_attempt_keeps_its_meaning() -> None:
    """Older versions made the call again. It returned, so the run does not fail now."""
    run = kill_workers(parsing, WORKER_DEATHS_MAX - 1)
    fourth_start = run.starts("c2").entries[-1]
    run = kill_workers(run.starts("c2")).after(fourth_start)
    run = end_call(run, CallDone(call=C2))
    run.then(phase=Phase.RUNNING, starts=(C3,))


def test_the_state_has_the_seq_at_which_the_lease_was_taken() -> None:
    """Calls that started before it are orphans; later ones are not."""
    run = parsing.after(v.TakeLease())
    assert isinstance(run.entries[run.state.lease_seq - 1], LeaseTaken)
    run.advances().then(phase=Phase.RUNNING)


# ── checks that deny a call ────────────────────────────────────────────────────────────


def deny_call(run: Scenario) -> Scenario:
    """Report the call as unknown, and let its check deny it."""
    run = end_call(run, CallUnknown(call=C2))
    return run.after(v.SettleCall(epoch=run.state.epoch, call=C2, happened=False))


def test_a_call_that_its_check_denies_eight_times_is_sealed() -> None:
    """The service behind the tool may be down. The agent gets the error, and decides."""
    run = paying
    for _ in range(CHECK_DENIALS_MAX - 1):
        run = deny_call(run).then(starts=(C2,)).starts("c2")
    run = deny_call(run).then(phase=Phase.RUNNING, starts=(C3,))
    why = "not executed: tried 8 times, and each time its check found nothing done"
    assert run.entries[-2:] == (
        CallSettled(call=C2, happened=False, by="check:pay"),
        CallSealed(call=C2, why=why),
    )
    assert get_stage(run) is CallStage.SEALED
    assert not get_call(run).may_have_happened
    assert is_sound(run)
    assert get_call(run).error == why


def test_the_last_attempt_counts_if_its_check_finds_it_done() -> None:
    run = paying
    for _ in range(CHECK_DENIALS_MAX - 1):
        run = deny_call(run).starts("c2")
    run = end_call(run, CallUnknown(call=C2))
    run = run.after(v.SettleCall(epoch=run.state.epoch, call=C2, happened=True, result="paid"))
    assert (get_call(run).stage, get_call(run).result) == (CallStage.DONE, "paid")


def test_a_failure_that_the_call_reports_ends_it_at_once() -> None:
    run = deny_call(paying).starts("c2")
    run = end_call(run, CallFailed(call=C2, error="no"))
    run.then(starts=(C3,))


def test_all_attempts_of_a_call_are_one_tool_call_for_a_cap() -> None:
    run = paying
    for _ in range(CHECK_DENIALS_MAX - 1):
        run = deny_call(run).starts("c2")
    assert run.state.meter.tool_calls == 1
    assert find_met_stop(MaxToolCalls(2), run.state.meter_with_time) is None


# ── tools that cannot be imported ──────────────────────────────────────────────────────


def fail_import(run: Scenario) -> Scenario:
    failed = CallFailed(call=C2, error="ImportError: no", code=TOOL_NOT_IMPORTABLE_CODE)
    return end_call(run, failed)


def test_a_tool_that_cannot_be_imported_fails_the_run() -> None:
    """No other call of the reply starts. After a resume the model gets the error."""
    run = fail_import(leased_run.replies(MAIL, LOOK).starts("c2")).then(starts=(), effects=())
    run = run.advances().then(phase=Phase.FAILED)
    assert get_error(run) == RunFailed(error="ImportError: no", code=TOOL_NOT_IMPORTABLE_CODE)
    assert is_sound(run)
    run = run.when(c.Resume(by=ANN)).after(v.TakeLease(holder="w2"))
    run.then(starts=(C3,))
    assert is_sound(run)


def test_a_tool_that_cannot_be_imported_does_not_fail_a_run_that_was_taken_over() -> None:
    """The person who took over reads the error."""
    taken_over = leased_run.replies(MAIL).starts("c2").when(c.TakeOver(by=ANN))
    assert fail_import(taken_over).state.error is None


# ── outputs that are not valid ───────────────────────────────────────────────


typed_run = given(RunStarted(agent="clerk", task="t", output_retries=1)).after(v.TakeLease())
REFUSED_OUTPUT = RequestedCall(tool="output", args={}, refused="total: is required")


def test_a_text_that_is_no_valid_output_is_returned_with_the_problem() -> None:
    """The agent reads the problem after its text, and its next step is the next attempt."""
    run = typed_run.replies(text="Ten.", invalid_output="call the tool").then(starts=(C2,))
    assert run.state.answer is None
    last = run.state.messages[-1]
    assert (last.role, last.kind, last.text) == ("runtime", "output", "call the tool")
    run = run.replies(text="10", value=10).advances().then(phase=Phase.COMPLETED)
    assert (run.state.value, run.state.invalid_outputs) == (10, 0)
    assert is_sound(run)


def test_a_call_of_the_output_tool_that_is_not_valid_has_the_problem_as_its_result() -> None:
    run = typed_run.replies(REFUSED_OUTPUT, invalid_output="total: is required")
    assert get_call(run).error == "total: is required"
    assert run.state.messages[-1].role == "assistant"
    run.then(phase=Phase.RUNNING, starts=(C3,))


def test_the_run_fails_after_its_last_invalid_output_and_a_resume_allows_as_many_again() -> (
    None
):
    run = typed_run
    for _ in range(2):
        run = run.replies(text="Ten.", invalid_output="no")
    run = run.advances().then(phase=Phase.FAILED)
    error = get_error(run)
    assert (error.code, error.error) == (
        INVALID_OUTPUT_CODE,
        "no valid output in 2 attempts: no",
    )
    assert is_sound(run)
    run = run.when(c.Resume(by=ANN)).after(v.TakeLease())
    run = run.replies(text="Ten.", invalid_output="no").then(phase=Phase.RUNNING)
    run.replies(text="Ten.", invalid_output="no").advances().then(phase=Phase.FAILED)


def test_an_instruction_allows_the_attempts_at_an_output_again() -> None:
    run = typed_run.replies(text="Ten.", invalid_output="no")
    run = run.when(c.Redirect(text="In euro.", by=ANN)).advances()
    assert run.state.invalid_outputs == 0


def test_the_answer_to_a_message_need_not_be_a_valid_output() -> None:
    """Only the answer to the task has the declared form."""
    run = typed_run.starts("c1").when(c.Say(text="How far?", by=ANN, urgency="now"))
    run = end_call(run, CallAborted(call=CallId("c1"))).advances()
    assert run.state.frames
    run = run.replies(text="Half.", invalid_output="call the tool").advances()
    assert not run.state.frames
    assert run.state.invalid_outputs == 0
    done = [e for e in run.entries if isinstance(e, CallDone)][-1]
    assert done.reply is not None
    assert done.reply.invalid_output == ""
    run.then(phase=Phase.RUNNING)


def test_a_message_after_the_answer_keeps_the_value_of_the_answer() -> None:
    run = typed_run.starts("c1").when(c.Say(text="Thanks, and why?", by=ANN))
    reply = Reply(text="10", value=10)
    run = end_call(run, CallDone(call=CallId("c1"), reply=reply)).advances()
    run = run.replies(text="Because.", invalid_output="call the tool").advances()
    run.then(phase=Phase.COMPLETED)
    assert (run.state.output, run.state.value) == ("10", 10)


# ── tools that ask for another try, and calls at the same time ───────────────


ASKED_AGAIN = "model_retry"
VAGUE = RequestedCall(tool="vague", args={}, traits=Traits(effect=Effect.READ, retries=1))


def ask_again(run: Scenario, *calls: str) -> Scenario:
    """End these calls with a request that the model tries again."""
    for call in calls:
        outcome = CallFailed(call=CallId(call), error="which year?", code=ASKED_AGAIN)
        run = end_call(run, outcome)
    return run


def test_a_tool_may_ask_for_another_try_in_as_many_steps_as_it_declares() -> None:
    run = ask_again(leased_run.replies(VAGUE).starts("c2"), "c2").then(phase=Phase.RUNNING)
    run = ask_again(run.replies(VAGUE).starts("c4"), "c4").advances().then(phase=Phase.FAILED)
    assert get_error(run).code == RETRIES_EXHAUSTED_CODE
    assert get_error(run).error == "vague asked for another try in 2 steps: which year?"
    assert is_sound(run)
    run = run.when(c.Resume(by=ANN)).after(v.TakeLease())
    ask_again(run.replies(VAGUE).starts("c6"), "c6").advances().then(phase=Phase.RUNNING)


def test_a_result_of_the_tool_ends_the_count() -> None:
    run = ask_again(leased_run.replies(VAGUE).starts("c2"), "c2")
    run = end_call(run.replies(VAGUE).starts("c4"), CallDone(call=CallId("c4")))
    assert run.state.tool_retries == {}


def test_several_calls_of_one_step_count_once() -> None:
    """The model has not read the problem between them."""
    run = leased_run.replies(VAGUE, VAGUE, VAGUE).starts("c2", "c3", "c4")
    run = ask_again(run, "c2", "c3", "c4").then(phase=Phase.RUNNING)
    assert run.state.tool_retries["vague"][0] == 1


SOLO = RequestedCall(tool="solo", args={}, traits=Traits(effect=Effect.READ, sequential=True))


def start_run(max_parallel: int) -> Scenario:
    """Return a run that a worker drives, with so many calls at a time."""
    started = RunStarted(agent="clerk", task="t", max_parallel=max_parallel)
    return given(started).after(v.TakeLease())


def test_at_most_so_many_calls_run_at_a_time_in_the_order_of_the_reply() -> None:
    run = start_run(2).replies(LOOK, LOOK, LOOK).then(starts=("c2", "c3"))
    run = run.starts("c2", "c3").then(starts=())
    run = end_call(run, CallDone(call=CallId("c3"))).then(starts=("c4",))
    assert is_sound(run.starts("c4"))


def test_one_call_at_a_time_also_with_a_cap() -> None:
    run = given(RunStarted(agent="a", task="t", max_parallel=1, stop=MaxToolCalls(9)))
    run = run.after(v.TakeLease()).replies(LOOK, LOOK).then(starts=("c2",)).starts("c2")
    end_call(run, CallDone(call=CallId("c2"))).then(starts=("c3",))


def test_a_sequential_call_runs_alone() -> None:
    """Calls before it end first, and calls after it wait for its end."""
    run = leased_run.replies(LOOK, SOLO, LOOK).then(starts=("c2",)).starts("c2")
    run = end_call(run, CallDone(call=CallId("c2"))).then(starts=("c3",)).starts("c3")
    end_call(run, CallDone(call=CallId("c3"))).then(starts=("c4",))


def test_a_call_that_waits_for_a_person_does_not_hold_up_the_others() -> None:
    gated = RequestedCall(tool="pay", args={}, traits=Traits(approve="block"))
    run = start_run(1).replies(gated, LOOK).advances()
    run.then(phase=Phase.RUNNING, starts=("c3",))


def test_a_failure_passes_a_model_call_to_the_next_model_and_a_death_does_not() -> None:
    """The model of an attempt follows the journaled failures, not the number of attempts."""
    run = kill_workers(leased_run.starts("c1"), 1, "c1").starts("c1")
    call = run.state.calls[0]
    assert (call.attempt, choose_model(call.model_failures, 2)) == (2, 0)
    failed = CallFailed(call=C1, error="busy", transient=True, lasting=True)
    run = run.after(v.CloseCall(epoch=run.state.epoch, outcome=failed))
    assert choose_model(run.state.calls[0].model_failures, 2) == 1


@pytest.mark.parametrize(
    ("failures", "count", "chosen"),
    [
        ((), 1, 0),
        ((False, False), 1, 0),
        ((True,), 1, None),
        ((False, False), 2, 0),
        ((False, True), 2, 0),
        ((False, True, False), 2, 0),  # the second model failed for good
        ((True, False, False), 3, 1),  # the first one did
        ((True, True), 2, None),
        ((False, True, True), 2, None),
    ],
)
def test_a_model_that_failed_for_good_is_not_asked_again(
    failures: tuple[bool, ...], count: int, chosen: int | None
) -> None:
    assert choose_model(failures, count) == chosen
