"""What a hostile reader found, each as the shortest run that shows it."""

import pytest

from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core.effects import (
    AbortCall,
    CallModel,
    CallTool,
    EvaluateStopCondition,
    Release,
    Undo,
)
from midrun.core.entries import (
    CallAborted,
    CallDone,
    CallFailed,
    LateResult,
    RunStarted,
    UndoDone,
    UndoFailed,
)
from midrun.core.history import make_fork_entry
from midrun.core.ids import MICROS_MAX, MICROS_PER_SECOND, AskId, CallId, Epoch
from midrun.core.run_head import build_head
from midrun.core.scheduler import find_wake_time, plan_effects
from midrun.core.state import CallStage
from midrun.core.stops import Custom, MaxSteps, MaxTime, measure_caps
from midrun.core.transitions import NoChange, Refused
from midrun.core.values import Actor, Effect, Item, Phase, Traits, Use
from midrun.testing.scenario import LEASED_RUN, Scenario, given
from midrun.text.report import build_report

E1, E2 = Epoch(1), Epoch(2)
C1, C2, C3 = CallId("c1"), CallId("c2"), CallId("c3")
A1, A2 = AskId("a1"), AskId("a2")
PAY = Use(tool="pay", args={}, traits=Traits(undo=True))
MAIL = Use(tool="mail", args={})
ANN, BOB = Actor(name="ann"), Actor(name="bob")
OPS = Actor(name="olga", role="operator")

begun = given(*LEASED_RUN)
orphaned = begun.replies(PAY).starts("c2").after(v.TakeLease()).advances()
late = v.ReportLateResult(result=LateResult(call=C2, attempt=1, epoch=E1, result="paid"))


def stage(run: Scenario, call: str) -> CallStage:
    """Return where a call stands."""
    found = run.state.find_call(call)
    assert found is not None
    return found.stage


def test_a_decision_after_the_time_is_up_is_refused_even_if_nobody_looked_yet() -> None:
    """The clock decides, not whoever wakes the run."""
    hasty = Use(
        tool="pay", args={}, traits=Traits(approve="block", ask_ttl=60 * MICROS_PER_SECOND)
    )
    run = begun.replies(hasty).advances().later(61)
    run.when(c.Approve(ask=A1)).then(refused="ask_closed", phase=Phase.WAITING)


def test_a_result_that_comes_after_somebody_said_no_is_believed() -> None:
    """A call whose result is journaled is never made again."""
    run = orphaned.when(c.Answer(ask=A1, value="no"), late)
    assert stage(run, "c2") is CallStage.DONE
    run.after(v.TakeLease()).then(plans=(CallModel(call=C3),))


def test_a_late_result_of_a_call_made_again_leaves_it_in_the_undo_set() -> None:
    """It happened once at least, however the second attempt ends."""
    run = orphaned.when(c.Answer(ask=A1, value="no")).after(v.TakeLease()).starts("c2")
    run = run.when(late)
    run = run.after(v.CloseCall(epoch=Epoch(3), outcome=CallFailed(call=C2, error="no")))
    run.when(c.Cancel()).then(plans=(Undo(call=C2),))


def test_an_audience_is_a_role_and_not_a_name_that_sounds_like_one() -> None:
    """Names are chosen by people; roles come with a credential."""
    gated = Use(tool="pay", args={}, traits=Traits(approve="block", audience="operator"))
    run = begun.replies(gated).advances()
    run.when(c.Approve(ask=A1, by=Actor(name="operator"))).then(refused="not_allowed")
    mine = Use(tool="pay", args={}, traits=Traits(approve="block", audience="user:bob"))
    begun.replies(mine).advances().when(c.Approve(ask=A1, by=BOB)).then(phase=Phase.QUEUED)


def test_an_unsure_call_is_put_to_those_who_may_approve_it() -> None:
    """Who may let it happen may say whether it did."""
    traits = Traits(audience="operator", four_eyes=True)
    run = begun.replies(Use(tool="pay", args={}, traits=traits)).starts("c2")
    run = run.after(v.TakeLease()).advances()
    run.when(c.Answer(ask=A1, value="no", by=ANN)).then(refused="not_allowed")
    run.when(c.Answer(ask=A1, value="no", by=OPS)).then(phase=Phase.QUEUED)


@pytest.mark.parametrize(
    ("first", "second", "already"),
    [
        (c.Resume(by=ANN), c.Resume(by=BOB), "already_running"),
        (c.Pause(by=ANN), c.Pause(by=BOB), "already_paused"),
        (c.Cancel(by=ANN), c.Cancel(by=BOB), "already_cancelled"),
    ],
)
def test_who_comes_second_learns_who_was_first_also_when_it_has_happened(
    first: c.Control, second: c.Control, already: str
) -> None:
    """A driver that carries out the wish does not make it its own."""
    run = begun if not isinstance(first, c.Resume) else begun.when(c.Pause()).advances()
    run = run.when(first)
    run = run.after(v.TakeLease()) if isinstance(first, c.Resume) else run.advances()
    run = run.when(second).then(already=already)
    assert isinstance(run.verdict, NoChange)
    assert run.verdict.by == "ann"


def test_nobody_is_told_not_executed_of_a_call_that_may_have_happened() -> None:
    """Aborted is not undone, and unknown is not never."""
    run = begun.replies(MAIL).starts("c2").after(v.TakeLease())
    unknown = build_report(run.when(c.Cancel()).advances().state).unsure
    assert [deed.note for deed in unknown] == [
        "outcome unknown, and not made again: the run was cancelled"
    ]
    read = Use(tool="read", args={}, traits=Traits(effect=Effect.IDEMPOTENT))
    paused = begun.replies(read).starts("c2").when(c.Pause(now=True))
    stopped = paused.after(v.CloseCall(epoch=E1, outcome=CallAborted(call=C2))).advances()
    found = build_report(stopped.when(c.Cancel()).state).stopped
    assert [deed.note for deed in found] == ["stopped by a pause"]


def test_a_redirect_from_before_does_not_abort_the_call_of_a_person_at_the_wheel() -> None:
    """It waits until they hand back."""
    run = begun.replies(MAIL).starts("c2").when(c.Redirect(text="other", when="now"))
    run = run.when(c.TakeOver(by=ANN))
    run = run.after(v.CloseCall(epoch=E1, outcome=CallAborted(call=C2))).advances()
    run = run.when(c.UseTool(use=MAIL, by=ANN)).after(v.TakeLease()).starts("c3")
    assert not [order for order in plan_effects(run.state) if isinstance(order, AbortCall)]


def test_a_model_that_fails_while_a_person_takes_over_does_not_fail_their_run() -> None:
    """They are at the wheel; the failure is history."""
    run = begun.starts("c1").when(c.TakeOver(by=ANN))
    run = run.after(v.CloseCall(epoch=E1, outcome=CallFailed(call=C1, error="529"))).advances()
    run = run.when(c.UseTool(use=MAIL, by=ANN)).after(v.TakeLease())
    run.then(plans=(CallTool(call=C2),))


def test_accepted_residue_asks_for_nobodys_attention_any_more() -> None:
    """Also where a completed run could not release what it held."""
    lock = Use(tool="lock", args={}, traits=Traits(release=True))
    run = begun.replies(lock).starts("c2")
    run = run.after(v.CloseCall(epoch=E1, outcome=CallDone(call=C2))).replies(text="done")
    failed = UndoFailed(call=C2, action="release", error="403")
    for _ in range(5):
        run = run.then(plans=(Release(call=C2),)).after(
            v.StartUndo(epoch=E1, call=C2, action="release"),
            v.CloseUndo(epoch=E1, outcome=failed),
        )
    run = run.advances().then(phase=Phase.COMPLETED)
    assert build_head(run.state).attention == "residue"
    run = run.when(c.AcceptResidue(by=OPS))
    assert build_head(run.state).attention == ""
    run.when(c.AcceptResidue()).then(refused="no_residue")


def test_a_side_question_with_a_plan_of_its_own_does_not_cost_the_main_one() -> None:
    """Back to step 1 of 2 means the two that were planned."""
    mine, side = (Item(text="one"), Item(text="two")), (Item(text="look it up"),)
    run = begun.after(v.SetPlan(epoch=E1, items=mine)).when(c.Say(text="when?")).advances()
    run = run.after(v.SetPlan(epoch=E1, items=side)).replies(text="noon").advances()
    assert run.state.plan == mine


def test_a_question_at_the_last_moment_does_not_replace_the_runs_answer() -> None:
    """The output is the answer to the task."""
    run = begun.replies(text="THE REPORT").when(c.Say(text="when was that?")).advances()
    run = run.replies(text="noon").advances().then(phase=Phase.COMPLETED)
    assert run.state.output == "THE REPORT"


def test_a_call_that_fails_under_a_cancel_is_undone_like_the_others_in_flight() -> None:
    """An error is not proof that nothing happened."""
    run = begun.replies(PAY).starts("c2").when(c.Cancel())
    run = run.after(v.CloseCall(epoch=E1, outcome=CallFailed(call=C2, error="cut off")))
    run = run.then(plans=(Undo(call=C2),)).after(v.StartUndo(epoch=E1, call=C2))
    run.after(v.CloseUndo(epoch=E1, outcome=UndoDone(call=C2))).advances().then(
        phase=Phase.CANCELLED
    )


def test_an_operator_can_end_a_take_over_whose_owner_is_gone() -> None:
    """A person may leave; the run must not be theirs for ever."""
    run = begun.when(c.TakeOver(by=ANN)).advances()
    run.when(c.HandBack(by=BOB)).then(refused="not_taken_over")
    run.when(c.HandBack(by=OPS)).then(phase=Phase.QUEUED)


def test_a_custom_condition_of_a_hosted_agent_is_judged_too() -> None:
    """Hosted or not, the same stops."""
    first = RunStarted(agent="guest", task="t", hosted=True, stop=Custom("m:f"))
    given(first, LEASED_RUN[1]).then(plans=(EvaluateStopCondition(name="m:f"),))


def test_what_a_hosted_agent_returned_while_pausing_completes_after_the_resume() -> None:
    """And under a cancel it is kept as partial work."""
    first = RunStarted(agent="guest", task="t", hosted=True)
    run = (
        given(first, LEASED_RUN[1])
        .when(c.Pause())
        .after(v.FinishHostedAgent(epoch=E1, output="42"))
    )
    run = run.advances().when(c.Resume()).after(v.TakeLease()).advances()
    assert (run.state.phase, run.state.output) == (Phase.COMPLETED, "42")
    cut = (
        given(first, LEASED_RUN[1])
        .when(c.Cancel())
        .after(v.FinishHostedAgent(epoch=E1, output="42"))
    )
    assert cut.advances().state.output == "42"


def test_raising_one_cap_does_not_lower_another_of_the_same_name() -> None:
    """Only up."""
    first = RunStarted(agent="clerk", task="t", stop=MaxSteps(5) | MaxSteps(10))
    run = given(first, LEASED_RUN[1]).when(c.RaiseCap(caps={"steps": 11}))
    assert measure_caps(run.state.stop, run.state.meter_with_time) == {"steps": (0, 11)}


def test_a_fork_in_the_middle_of_a_step_is_refused_and_the_task_is_told_once() -> None:
    """A boundary is where nothing waits to be made."""
    run = begun.replies(MAIL)
    assert isinstance(make_fork_entry(run.state, by=ANN), Refused)
    entry = make_fork_entry(begun.state, by=ANN)
    assert isinstance(entry, RunStarted)
    assert [m.text for m in given(entry).state.messages] == ["Sort the mail"]


def test_an_approval_is_void_after_a_redirect_even_if_that_was_withdrawn() -> None:
    """The person said yes to the plan as it was."""
    gated = Use(tool="pay", args={}, traits=Traits(approve="block"))
    run = begun.replies(gated).advances().when(c.Approve(ask=A1), c.Redirect(text="other"))
    run = run.when(c.Withdraw(seq=run.state.pending[0].seq)).after(v.TakeLease()).advances()
    run.then(phase=Phase.WAITING)
    assert [ask.id for ask in run.state.asks] == [A1, A2]


def test_a_child_that_is_still_there_is_ended_with_its_parent() -> None:
    """It is held by its parent, whatever its tool declares."""
    child = Use(tool="aide", kind="child")
    asked = v.AskPerson(epoch=E1, call=C2, question="ok?", child=True)
    run = begun.replies(child).starts("c2").after(asked).advances().when(c.Cancel())
    run = run.then(phase=Phase.CANCELLING).after(v.TakeLease())
    run.then(plans=(Release(call=C2),))


def test_times_beyond_all_clocks_are_never_and_not_an_overflow() -> None:
    """A cap of a million years must not make a line that nobody can store."""
    first = RunStarted(agent="clerk", task="t", stop=MaxTime(seconds=1e13))
    run = given(first, LEASED_RUN[1]).starts("c1")
    assert find_wake_time(run.state) == MICROS_MAX
    slow = Use(tool="pay", args={}, traits=Traits(approve="block", ask_ttl=2**53 - 1))
    asked = begun.replies(slow).advances()
    assert asked.state.asks[0].expires == MICROS_MAX


def test_asking_again_forgets_nothing_and_changes_no_arguments() -> None:
    """Found by the simulator: stopped midway, then the yes expired and was asked for again."""
    traits = Traits(
        effect=Effect.IDEMPOTENT, undo=True, approve="block", ask_ttl=60 * MICROS_PER_SECOND
    )
    run = begun.replies(Use(tool="pay", args={"eur": 5}, traits=traits)).advances()
    run = run.when(c.Approve(ask=A1)).after(v.TakeLease()).starts("c2").when(c.Pause(now=True))
    run = run.after(v.CloseCall(epoch=E2, outcome=CallAborted(call=C2))).advances().later(61)
    run = run.when(c.Resume()).after(v.TakeLease()).advances().then(phase=Phase.WAITING)
    run.when(c.Approve(ask=A2, args={"eur": 9})).then(refused="already_attempted")
    run = run.when(c.Cancel()).then(phase=Phase.CANCELLING).after(v.TakeLease())
    run.then(plans=(Undo(call=C2),))
