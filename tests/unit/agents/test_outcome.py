"""Outcomes: the values that describe a run at rest."""

import pytest

from midrun.agents.checkpoint import PARKED_PHASES
from midrun.agents.outcome import (
    AskView,
    Cancelled,
    Completed,
    Failed,
    Outcome,
    Paused,
    find_paused_reason,
    is_paused,
    make_ask_views,
    make_outcome,
)
from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core.entries import CallDone, RunStarted
from midrun.core.ids import MICROS_PER_SECOND, AskId, CallId, Epoch, Micros
from midrun.core.stops import MaxSteps
from midrun.core.values import TERMINAL_PHASES, Actor, Phase, RequestedCall, Traits
from midrun.testing.scenario import LEASED_RUN, RUN, START_TIME, Scenario, given
from midrun.text.report import build_report
from tests.unit.agents.checkpoints import make_checkpoint
from tests.unit.core.phases import ASK, MAIL, RUNS_BY_PHASE, idle_run, paused_run, waiting_run

E1 = Epoch(1)
C2, C3, C4 = CallId("c2"), CallId("c3"), CallId("c4")
PAY = RequestedCall(
    tool="pay", args={"eur": 500}, traits=Traits(approve="block", audience="operator")
)
POST = RequestedCall(tool="post", args={"text": "hi"}, traits=Traits(approve="queue"))

mail_done = v.CloseCall(epoch=E1, outcome=CallDone(call=C2))
capped_start = given(RunStarted(agent="clerk", task="Sort", stop=MaxSteps(1)), LEASED_RUN[1])
at_cap = capped_start.replies(MAIL).starts("c2").after(mail_done).advances()
waiting_for_approval = idle_run.replies(PAY).advances()
waiting_for_outcome = (
    idle_run.replies(RequestedCall(tool="fax", args={}))
    .starts("c2")
    .after(v.TakeLease())
    .advances()
)
child_question = v.AskPerson(epoch=E1, call=C2, question="Pay the child's bill?", child=True)
waiting_for_child = idle_run.replies(ASK).starts("c2").after(child_question).advances()
approval_queued = idle_run.replies(POST).advances()
only_approval_left = approval_queued.replies(text="Posted, I hope.").advances()
question_and_approval = (
    approval_queued.replies(ASK).starts("c4").after(v.AskPerson(epoch=E1, call=C4)).advances()
)


def outcome_of(run: Scenario) -> Outcome:
    """Return the outcome of `run`, with its checkpoint if the run is parked."""
    parked = run.state.phase in PARKED_PHASES
    return make_outcome(run.state, make_checkpoint(run) if parked else None)


@pytest.mark.parametrize(
    ("phase", "kind"),
    [
        (Phase.COMPLETED, Completed),
        (Phase.CANCELLED, Cancelled),
        (Phase.FAILED, Failed),
        (Phase.PAUSED, Paused),
        (Phase.WAITING, Paused),
        (Phase.HALTED, Paused),
    ],
)
def test_each_phase_at_rest_has_its_outcome_type(phase: Phase, kind: type[Outcome]) -> None:
    """The outcome contains the phase, and its text is one line."""
    for run in RUNS_BY_PHASE[phase]:
        outcome = outcome_of(run)
        assert type(outcome) is kind
        assert (outcome.run_id, outcome.phase) == (RUN, phase)
        assert str(outcome).startswith(f"run run_1 {phase}")
        assert "\n" not in str(outcome)
        assert is_paused(outcome) == (kind is Paused)


@pytest.mark.parametrize("phase", sorted(set(Phase) - PARKED_PHASES - TERMINAL_PHASES))
def test_a_run_that_is_not_at_rest_has_no_outcome(phase: Phase) -> None:
    """A driver that asks too early has a bug, and gets an error."""
    state = RUNS_BY_PHASE[phase][0].state
    with pytest.raises(ValueError, match="needs its checkpoint"):
        make_outcome(state)
    with pytest.raises(ValueError, match="not come to rest"):
        find_paused_reason(state)


def test_an_outcome_is_refused_with_the_checkpoint_of_another_state() -> None:
    """An older checkpoint of the same run would be resumed at the wrong place."""
    for other in (None, make_checkpoint(waiting_run)):
        with pytest.raises(ValueError, match="needs its checkpoint"):
            make_outcome(paused_run.state, other)


def test_completed_contains_the_output_of_the_agent() -> None:
    """The field has the whole output, the text one line of it."""
    outcome = outcome_of(idle_run.replies(text="All sorted.\nTwo letters.").advances())
    assert outcome == Completed(run_id=RUN, output="All sorted.\nTwo letters.")
    assert str(outcome) == "run run_1 completed: All sorted. Two letters."
    assert str(Completed(run_id=RUN, output="")).endswith("it said nothing")


def test_failed_contains_error_code_and_checkpoint() -> None:
    run = idle_run.after(v.FailRun(epoch=E1, error="no\nroom", code="store_full"))
    outcome = outcome_of(run)
    expected = Failed(
        run_id=RUN, error="no\nroom", code="store_full", checkpoint=make_checkpoint(run)
    )
    assert outcome == expected
    assert str(outcome) == "run run_1 failed: no room; it can be resumed"


def test_cancelled_contains_the_report() -> None:
    """Its text counts the calls of the report."""
    run = paused_run.when(c.Cancel()).then(phase=Phase.CANCELLED)
    outcome = outcome_of(run)
    assert outcome == Cancelled(run_id=RUN, report=build_report(run.state))
    assert str(outcome) == "run run_1 cancelled: 1 done and kept"
    assert str(outcome_of(given(LEASED_RUN[0]).when(c.Cancel()))).endswith(
        "it had changed nothing"
    )


@pytest.mark.parametrize(
    ("run", "phase", "reason"),
    [
        (paused_run, Phase.PAUSED, "user"),
        (waiting_run.when(c.Pause()), Phase.PAUSED, "user"),
        (paused_run.when(c.TakeOver(by=Actor(name="ann"))), Phase.PAUSED, "taken_over"),
        (at_cap, Phase.PAUSED, "cap"),
        (waiting_run, Phase.WAITING, "question"),
        (waiting_for_approval, Phase.WAITING, "approval"),
        (waiting_for_outcome, Phase.WAITING, "unsure"),
        (waiting_for_child, Phase.WAITING, "question"),
        (only_approval_left, Phase.WAITING, "approval"),
        (question_and_approval, Phase.WAITING, "question"),
        (waiting_run.when(c.Halt()), Phase.HALTED, "halted"),
        (paused_run.when(c.Halt()), Phase.HALTED, "halted"),
    ],
)
def test_the_reason_of_paused_names_what_the_run_waits_for(
    run: Scenario, phase: Phase, reason: str
) -> None:
    """Blocking asks come first; queued approvals count only if nothing else is left."""
    outcome = outcome_of(run.then(phase=phase))
    assert is_paused(outcome)
    assert outcome.reason == reason


def test_an_ask_view_contains_the_call_its_arguments_and_the_audience() -> None:
    """An interface can draw the dialog without the journal."""
    outcome = outcome_of(waiting_for_approval)
    assert is_paused(outcome)
    expected = AskView(
        id=AskId("a1"),
        kind="approval",
        question="Approve “Pay”?",
        data={"eur": 500},
        call=C2,
        tool="pay",
        args={"eur": 500},
        audience="operator",
        declinable=True,
        title="Pay: eur 500",
    )
    assert outcome.asks == (expected,)
    text = "run run_1 waiting (approval): approval a1 'pay': Approve “Pay”?"
    assert str(outcome) == text
    assert str(outcome_of(paused_run.when(c.Halt()))) == "run run_1 halted"


def test_an_ask_view_of_a_question_contains_its_data_and_expiry() -> None:
    expires = Micros(START_TIME + 60 * MICROS_PER_SECOND)
    ask = v.AskPerson(
        epoch=E1, call=C2, question="Which?", data={"options": [1, 2]}, expires=expires
    )
    run = idle_run.replies(ASK, PAY).advances().starts("c2").after(ask).advances()
    approval, question = make_ask_views(run.state)
    assert (question.kind, question.question) == ("question", "Which?")
    assert (question.data, question.expires_at) == ({"options": [1, 2]}, expires)
    assert (approval.kind, approval.call) == ("approval", C3)
    assert [ask.id for ask in make_ask_views(run.state)] == ["a1", "a2"]


def test_open_asks_are_listed_and_settled_asks_are_not() -> None:
    """A person who pauses a waiting run still sees its question."""
    (ask,) = make_ask_views(waiting_run.when(c.Pause()).state)
    assert (ask.kind, ask.tool) == ("question", "ask_human")
    assert make_ask_views(waiting_run.when(c.Answer(ask=AskId("a1"), value=1)).state) == ()
    assert make_ask_views(paused_run.state) == ()
