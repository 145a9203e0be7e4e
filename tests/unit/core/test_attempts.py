"""Attempts: a call that ends its processes, or is never done, is not made again for ever."""

import pytest

from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core.effects import CallModel, CallTool, CheckCall, Settle
from midrun.core.entries import (
    CallAborted,
    CallDone,
    CallFailed,
    CallSealed,
    CallSettled,
    CallUnknown,
    LateResult,
    LeaseTaken,
    RunFailed,
    StoodDown,
)
from midrun.core.ids import CallId, make_child_id
from midrun.core.retries import (
    CHECK_DENIALS_MAX,
    TOOL_NOT_IMPORTABLE_CODE,
    WORKER_DEATHS_MAX,
    WORKERS_DIED_CODE,
)
from midrun.core.scheduler import plan_effects
from midrun.core.state import Call, CallStage
from midrun.core.stops import MaxToolCalls, find_met_stop
from midrun.core.values import Actor, Effect, Phase, Traits, Use
from midrun.testing.scenario import LEASED_RUN, Scenario, given
from midrun.verify.journal import check_journal

C1, C2, C3 = CallId("c1"), CallId("c2"), CallId("c3")
READ, SAFE = Traits(effect=Effect.READ), Traits(effect=Effect.IDEMPOTENT)
PARSE = Use(tool="parse_pdf", args={}, traits=READ)
LOOK = Use(tool="look", args={}, traits=READ)
PAY = Use(tool="pay", args={}, traits=Traits(check=True))
MAIL = Use(tool="mail", args={})
CHILD = Use(tool="helper", kind="child", traits=Traits(release=True))
ANN = Actor(name="ann")

begun = given(*LEASED_RUN)
parsing = begun.replies(PARSE).starts("c2")
paying = begun.replies(PAY).starts("c2")


def dies(run: Scenario, times: int = 1, *calls: str) -> Scenario:
    """Let so many drivers die while these calls, or c2, are under way.

    Each but the last one starts them again.
    """
    for number in range(times):
        run = run.starts(*(calls or ("c2",))) if number else run
        run = run.after(v.TakeLease(holder=f"w{number}"))
    return run


def call_of(run: Scenario, call: str = "c2") -> Call:
    """Return the call as the journal has it."""
    found = run.state.find_call(call)
    assert found is not None
    return found


def error_of(run: Scenario) -> RunFailed:
    """Return why the run has failed."""
    assert run.state.error is not None
    return run.state.error


def test_a_call_that_ended_three_processes_is_not_made_again_by_itself() -> None:
    """The fourth is not harmed: it finds nothing to start, and the run rests by name."""
    run = dies(parsing, WORKER_DEATHS_MAX).then(plans=(Settle(),))
    start = v.StartCall(epoch=run.state.epoch, call=C2, seen_seq=run.state.seq)
    run.when(start).then(refused="not_next")
    run = run.advances().then(phase=Phase.FAILED)
    said = "parse_pdf: 3 processes ended, or fell silent, while it was under way"
    assert error_of(run) == RunFailed(error=said, code=WORKERS_DIED_CODE)
    assert not run.state.is_leased
    assert not check_journal(run.records, state=run.state)


def test_two_deaths_are_a_bad_day() -> None:
    """Machines go away; that alone is nobody's fault."""
    run = dies(parsing, WORKER_DEATHS_MAX - 1).then(plans=(CallTool(call=C2),))
    run = run.starts("c2").after(v.CloseCall(epoch=run.state.epoch, outcome=CallDone(call=C2)))
    run.then(phase=Phase.RUNNING, plans=(CallModel(call=C3),))


def test_a_resume_tries_again_and_counts_from_there() -> None:
    """Somebody has read what was, and gave it more memory."""
    run = dies(parsing, WORKER_DEATHS_MAX).advances().when(c.Resume(by=ANN))
    run = run.after(v.TakeLease()).then(plans=(CallTool(call=C2),))
    assert call_of(run).worker_deaths == 0
    run = dies(run.starts("c2"), WORKER_DEATHS_MAX - 1).then(plans=(CallTool(call=C2),))
    dies(run.starts("c2")).advances().then(phase=Phase.FAILED)


def test_a_model_call_counts_as_any_other() -> None:
    """What its client does with a reply may be what ends the process."""
    run = dies(begun.starts("c1"), WORKER_DEATHS_MAX, "c1").advances().then(phase=Phase.FAILED)
    assert error_of(run).error.startswith("the model: 3 processes")


def test_what_was_under_way_together_is_named_together() -> None:
    """Nobody can tell which of them it was."""
    run = dies(
        begun.replies(PARSE, LOOK).starts("c2", "c3"), WORKER_DEATHS_MAX, "c2", "c3"
    ).advances()
    assert error_of(run).error.startswith("parse_pdf, look: 3 processes")
    assert "while they were under way" in error_of(run).error


def test_what_had_ended_in_between_is_not_named() -> None:
    """A sibling that was done before the last death has nothing to do with it."""
    run = dies(begun.replies(PARSE, LOOK).starts("c2", "c3"), WORKER_DEATHS_MAX - 1, "c2", "c3")
    run = run.starts("c2", "c3")
    run = run.after(v.CloseCall(epoch=run.state.epoch, outcome=CallDone(call=C3)))
    assert "look" not in error_of(dies(run).advances()).error


def test_an_orderly_end_of_a_process_is_no_death() -> None:
    """A rolling deploy stops the call and gives the lease back, as often as it likes."""
    run = parsing
    for _ in range(WORKER_DEATHS_MAX + 1):
        stopped = v.CloseCall(epoch=run.state.epoch, outcome=CallAborted(call=C2))
        run = run.after(stopped, v.StandDown(epoch=run.state.epoch)).then(phase=Phase.QUEUED)
        run = run.after(v.TakeLease()).starts("c2")
    assert call_of(run).worker_deaths == 0
    assert StoodDown in {type(entry) for entry in run.entries}


@pytest.mark.parametrize("why", ["not_responding", "forced"])
def test_a_call_that_was_given_up_has_ended_no_process(why: str) -> None:
    """Its driver lived to tell."""
    given_up = CallUnknown(
        call=C2, why="not_responding" if why == "not_responding" else "forced"
    )
    run = parsing.after(given_up)
    assert call_of(run).worker_deaths == 0


def test_a_call_that_stopped_in_between_has_not_ended() -> None:
    """Being stopped in time says nothing about what it would have done."""
    run = dies(parsing, WORKER_DEATHS_MAX - 1).starts("c2")
    run = run.after(v.CloseCall(epoch=run.state.epoch, outcome=CallAborted(call=C2))).starts(
        "c2"
    )
    dies(run).advances().then(phase=Phase.FAILED)


def test_a_call_that_gets_further_each_time_may_go_on() -> None:
    """An hour's work on machines that live for twenty minutes: it saves, and arrives."""
    run = parsing
    for page in range(WORKER_DEATHS_MAX + 2):
        saved = v.SaveProgress(epoch=run.state.epoch, call=C2, progress={"page": page})
        run = dies(run.after(saved)).then(plans=(CallTool(call=C2),)).starts("c2")


def test_a_call_that_comes_no_further_than_before_has_not_got_further() -> None:
    """It saves that it is at page 6, and dies of page 6."""
    run = parsing
    for _ in range(WORKER_DEATHS_MAX - 1):
        saved = v.SaveProgress(epoch=run.state.epoch, call=C2, progress={"page": 6})
        run = dies(run.after(saved)).starts("c2")
    dies(run).advances().then(phase=Phase.FAILED)


def test_a_parent_does_not_fail_with_the_drivers_of_its_child() -> None:
    """The child has a journal of its own; what ends its drivers is counted there."""
    run = begun.replies(CHILD).starts("c2")
    for _ in range(WORKER_DEATHS_MAX + 2):
        child = make_child_id(run.state.run, C2)
        run = dies(run).then(plans=(CallTool(call=C2, child=child),)).starts("c2")


def test_an_unsafe_call_goes_to_a_person_after_the_first_death() -> None:
    """As before: nobody repeats it, so that there is nothing to count."""
    run = dies(begun.replies(MAIL).starts("c2")).advances().then(phase=Phase.WAITING)
    assert call_of(run).worker_deaths == 0


def test_a_call_with_a_check_is_counted_too() -> None:
    """Not done, says its check, and the next process dies of it: that is the same pill."""
    run = paying
    for _ in range(WORKER_DEATHS_MAX - 1):
        run = dies(run).then(plans=(CheckCall(call=C2),))
        run = run.after(v.SettleCall(epoch=run.state.epoch, call=C2, happened=False))
        run = run.starts("c2")
    run = dies(run).then(plans=(Settle(),)).advances().then(phase=Phase.FAILED)
    run.when(c.Resume()).after(v.TakeLease()).then(plans=(CheckCall(call=C2),))


def test_a_check_that_ends_its_process_is_counted_as_its_call() -> None:
    """It is not journaled as started, but that its driver did not give the run back is."""
    run = dies(paying)
    for _ in range(WORKER_DEATHS_MAX - 1):
        run = run.then(plans=(CheckCall(call=C2),)).after(v.TakeLease())
    run.advances().then(phase=Phase.FAILED)


def test_an_orderly_end_during_a_check_is_no_death() -> None:
    """The lease was given back."""
    run = dies(paying)
    for _ in range(WORKER_DEATHS_MAX + 1):
        run = run.after(v.StandDown(epoch=run.state.epoch), v.TakeLease())
    run.then(plans=(CheckCall(call=C2),))


def test_a_doubt_that_the_call_itself_reports_is_no_death() -> None:
    """Its process is alive and says so; what bounds that is its check."""
    run = paying
    for _ in range(WORKER_DEATHS_MAX + 1):
        run = run.after(v.CloseCall(epoch=run.state.epoch, outcome=CallUnknown(call=C2)))
        run = run.after(v.SettleCall(epoch=run.state.epoch, call=C2, happened=False))
        run = run.starts("c2")
    assert call_of(run).worker_deaths == 0


def test_late_evidence_ends_the_matter() -> None:
    """The process was only slow: the run goes on from its result, once somebody resumes."""
    run = dies(parsing, WORKER_DEATHS_MAX)
    late = LateResult(call=C2, attempt=WORKER_DEATHS_MAX, epoch=run.state.epoch)
    run.after(v.ReportLateResult(result=late)).then(plans=(CallModel(call=C3),))


def test_a_new_course_does_not_make_the_call_and_so_does_not_fail_of_it() -> None:
    """Whoever redirects a run that kills workers has found the way out."""
    run = (
        dies(parsing, WORKER_DEATHS_MAX - 1)
        .starts("c2")
        .when(c.Redirect(text="Leave the PDF.", by=ANN))
    )
    run = dies(run).advances().then(phase=Phase.RUNNING, plans=(CallModel(call=C3),))
    assert call_of(run).error == "outcome unknown, and not made again: the run was redirected"


def test_a_redirect_of_the_failed_run_leaves_the_call_behind() -> None:
    """Resumed with other words, it is not tried once more."""
    run = (
        dies(parsing, WORKER_DEATHS_MAX)
        .advances()
        .when(c.Redirect(text="Leave the PDF.", by=ANN))
    )
    run.after(v.TakeLease()).advances().then(plans=(CallModel(call=C3),))


def test_a_pause_that_was_asked_for_is_kept_and_its_resume_tries_again() -> None:
    """Nobody is told of a failure where they wanted a pause."""
    run = dies(parsing, WORKER_DEATHS_MAX - 1).starts("c2").when(c.Pause(by=ANN))
    run = dies(run).advances().then(phase=Phase.PAUSED)
    run.when(c.Resume(by=ANN)).after(v.TakeLease()).then(plans=(CallTool(call=C2),))


def test_a_cancel_does_not_mind_how_often_it_was_tried() -> None:
    """Nothing is started any more; the end comes as always."""
    run = dies(parsing, WORKER_DEATHS_MAX - 1).starts("c2").when(c.Cancel(by=ANN))
    dies(run).advances().then(phase=Phase.CANCELLED)


def test_the_agents_call_does_not_stop_the_person_at_the_wheel() -> None:
    """It waits with the agent; the tool of the person is another one."""
    run = dies(parsing, WORKER_DEATHS_MAX - 1).starts("c2").when(c.TakeOver(by=ANN))
    run = dies(run).advances().then(phase=Phase.PAUSED)
    run = run.when(c.UseTool(use=LOOK, by=ANN)).after(v.TakeLease())
    run.then(plans=(CallTool(call=C3),))


def test_a_tool_of_the_person_at_the_wheel_counts_and_taking_over_begins_anew() -> None:
    """It ends processes whoever wants it; who takes the failed run has it tried again."""
    run = begun.when(c.TakeOver(by=ANN)).advances().when(c.UseTool(use=PARSE, by=ANN))
    run = dies(run.after(v.TakeLease()).starts("c1"), WORKER_DEATHS_MAX, "c1").advances()
    run = run.then(phase=Phase.FAILED).when(c.HandBack(by=ANN)).after(v.TakeLease())
    run.then(plans=(CallTool(call=C1),))


def test_a_journal_of_before_in_which_it_went_on_means_what_it_meant() -> None:
    """It was made a fourth time then, and returned: nothing fails of that now."""
    run = dies(parsing, WORKER_DEATHS_MAX - 1)
    old = run.starts("c2").entries[-1]
    run = dies(run.starts("c2")).after(old)
    run = run.after(v.CloseCall(epoch=run.state.epoch, outcome=CallDone(call=C2)))
    run.then(phase=Phase.RUNNING, plans=(CallModel(call=C3),))


# ── a check that says: not done ───────────────────────────────────────────────────────────


def denied(run: Scenario) -> Scenario:
    """Let the call say that it does not know, and its check that it was not done."""
    run = run.after(v.CloseCall(epoch=run.state.epoch, outcome=CallUnknown(call=C2)))
    return run.after(v.SettleCall(epoch=run.state.epoch, call=C2, happened=False))


def test_a_call_that_is_never_done_is_not_tried_for_ever() -> None:
    """The far end is down: after eight attempts the agent hears of it, and decides."""
    run = paying
    for _ in range(CHECK_DENIALS_MAX - 1):
        run = denied(run).then(plans=(CallTool(call=C2),)).starts("c2")
    run = denied(run).then(phase=Phase.RUNNING, plans=(CallModel(call=C3),))
    why = "not executed: tried 8 times, and each time its check found nothing done"
    assert run.entries[-2:] == (
        CallSettled(call=C2, happened=False, by="check:pay"),
        CallSealed(call=C2, why=why),
    )
    assert (call_of(run).stage, call_of(run).may_have_happened) == (CallStage.SEALED, False)
    assert not check_journal(run.records, state=run.state)
    assert call_of(run).error == why


def test_the_last_attempt_counts_if_its_check_finds_it() -> None:
    """What was done in the end is done."""
    run = paying
    for _ in range(CHECK_DENIALS_MAX - 1):
        run = denied(run).starts("c2")
    run = run.after(v.CloseCall(epoch=run.state.epoch, outcome=CallUnknown(call=C2)))
    run = run.after(v.SettleCall(epoch=run.state.epoch, call=C2, happened=True, result="paid"))
    assert (call_of(run).stage, call_of(run).result) == (CallStage.DONE, "paid")


def test_what_a_call_says_itself_ends_it_at_once() -> None:
    """A failure is no doubt: it is the agent's to hear, at the first attempt."""
    run = denied(paying).starts("c2")
    run = run.after(v.CloseCall(epoch=run.state.epoch, outcome=CallFailed(call=C2, error="no")))
    run.then(plans=(CallModel(call=C3),))


def test_all_attempts_of_a_call_are_one_tool_call_to_a_cap() -> None:
    """A call is one use of a tool; how often it is tried has a bound of its own."""
    run = paying
    for _ in range(CHECK_DENIALS_MAX - 1):
        run = denied(run).starts("c2")
    assert run.state.meter.tool_calls == 1
    assert find_met_stop(MaxToolCalls(2), run.state.meter_with_time) is None


def test_a_lease_is_where_it_was_taken() -> None:
    """What was begun before it is an orphan, what came after is not."""
    run = parsing.after(v.TakeLease())
    assert isinstance(run.entries[run.state.lease_seq - 1], LeaseTaken)
    assert not [order for order in plan_effects(run.state) if isinstance(order, Settle)]


def _unimportable(run: Scenario) -> Scenario:
    failed = CallFailed(call=C2, error="ImportError: no", code=TOOL_NOT_IMPORTABLE_CODE)
    return run.after(v.CloseCall(epoch=run.state.epoch, outcome=failed))


def test_a_tool_that_cannot_be_imported_fails_the_run_and_not_the_model() -> None:
    """Nothing else of the reply is started; a resume goes on, and the model is told then."""
    run = _unimportable(begun.replies(MAIL, LOOK).starts("c2")).then(plans=(Settle(),))
    run = run.advances().then(phase=Phase.FAILED)
    assert error_of(run) == RunFailed(error="ImportError: no", code=TOOL_NOT_IMPORTABLE_CODE)
    assert not check_journal(run.records, state=run.state)
    run = run.when(c.Resume(by=ANN)).after(v.TakeLease(holder="w2"))
    run.then(plans=(CallTool(call=C3),))
    assert not check_journal(run.records, state=run.state)


def test_a_person_at_the_wheel_is_told_that_a_tool_cannot_be_imported() -> None:
    """They are there to read it, so the run does not fail under their hands."""
    taken = begun.replies(MAIL).starts("c2").when(c.TakeOver(by=ANN))
    assert _unimportable(taken).state.error is None
