"""Outcomes: what a run that has come to rest is told as."""

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
from midrun.core.values import TERMINAL_PHASES, Actor, Phase, Traits, Use
from midrun.testing.scenario import LEASED_RUN, RUN, START_TIME, Scenario, given
from midrun.text.report import build_report
from tests.unit.agents.parked import checkpoint_of
from tests.unit.core.phases import ASK, MAIL, RUNS, begun, paused, waiting

E1 = Epoch(1)
C2, C3, C4 = CallId("c2"), CallId("c3"), CallId("c4")
PAY = Use(tool="pay", args={"eur": 500}, traits=Traits(approve="block", audience="operator"))
POST = Use(tool="post", args={"text": "hi"}, traits=Traits(approve="queue"))

done = v.CloseCall(epoch=E1, outcome=CallDone(call=C2))
capped = given(RunStarted(agent="clerk", task="Sort", stop=MaxSteps(1)), LEASED_RUN[1])
at_cap = capped.replies(MAIL).starts("c2").after(done).advances()
paying = begun.replies(PAY).advances()
unsure = begun.replies(Use(tool="fax", args={})).starts("c2").after(v.TakeLease()).advances()
child = v.AskPerson(epoch=E1, call=C2, question="Pay the child's bill?", child=True)
parent = begun.replies(ASK).starts("c2").after(child).advances()
posting = begun.replies(POST).advances()
posted = posting.replies(text="Posted, I hope.").advances()
both = posting.replies(ASK).starts("c4").after(v.AskPerson(epoch=E1, call=C4)).advances()


def told(run: Scenario) -> Outcome:
    """Return the outcome of a run, with its checkpoint if it has one."""
    parked = run.state.phase in PARKED_PHASES
    return make_outcome(run.state, checkpoint_of(run) if parked else None)


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
def test_every_phase_in_which_a_run_rests_has_its_outcome(
    phase: Phase, kind: type[Outcome]
) -> None:
    """And the outcome keeps the true phase, in words of one line."""
    for run in RUNS[phase]:
        outcome = told(run)
        assert type(outcome) is kind
        assert (outcome.run_id, outcome.phase) == (RUN, phase)
        assert str(outcome).startswith(f"run run_1 {phase}")
        assert "\n" not in str(outcome)
        assert is_paused(outcome) == (kind is Paused)


@pytest.mark.parametrize("phase", sorted(set(Phase) - PARKED_PHASES - TERMINAL_PHASES))
def test_a_run_that_still_moves_has_no_outcome(phase: Phase) -> None:
    """A driver that asks too early has a fault, and must not be told something plausible."""
    state = RUNS[phase][0].state
    with pytest.raises(ValueError, match="needs its checkpoint"):
        make_outcome(state)
    with pytest.raises(ValueError, match="not come to rest"):
        find_paused_reason(state)


def test_an_outcome_carries_the_checkpoint_of_its_own_state_and_no_other() -> None:
    """An older one of the same run would be resumed from the wrong place."""
    for other in (None, checkpoint_of(waiting)):
        with pytest.raises(ValueError, match="needs its checkpoint"):
            make_outcome(paused.state, other)


def test_a_completed_run_says_what_the_agent_said() -> None:
    """The whole text in the field, a line of it in words."""
    outcome = told(begun.replies(text="All sorted.\nTwo letters.").advances())
    assert outcome == Completed(run_id=RUN, output="All sorted.\nTwo letters.")
    assert str(outcome) == "run run_1 completed: All sorted. Two letters."
    assert str(Completed(run_id=RUN, output="")).endswith("it said nothing")


def test_a_failed_run_says_why_and_can_go_on() -> None:
    """The code is for programs, the text for people."""
    run = begun.after(v.FailRun(epoch=E1, error="no\nroom", code="store_full"))
    outcome = told(run)
    expected = Failed(
        run_id=RUN, error="no\nroom", code="store_full", checkpoint=checkpoint_of(run)
    )
    assert outcome == expected
    assert str(outcome) == "run run_1 failed: no room; it can be resumed"


def test_a_cancelled_run_says_what_it_leaves_behind() -> None:
    """The report in the field, its counts in words."""
    run = paused.when(c.Cancel()).then(phase=Phase.CANCELLED)
    outcome = told(run)
    assert outcome == Cancelled(run_id=RUN, report=build_report(run.state))
    assert str(outcome) == "run run_1 cancelled: 1 done and kept"
    assert str(told(given(LEASED_RUN[0]).when(c.Cancel()))).endswith("it had changed nothing")


@pytest.mark.parametrize(
    ("run", "phase", "reason"),
    [
        (paused, Phase.PAUSED, "user"),
        (waiting.when(c.Pause()), Phase.PAUSED, "user"),
        (paused.when(c.TakeOver(by=Actor(name="ann"))), Phase.PAUSED, "taken_over"),
        (at_cap, Phase.PAUSED, "cap"),
        (waiting, Phase.WAITING, "question"),
        (paying, Phase.WAITING, "approval"),
        (unsure, Phase.WAITING, "unsure"),
        (parent, Phase.WAITING, "question"),
        (posted, Phase.WAITING, "approval"),
        (both, Phase.WAITING, "question"),
        (waiting.when(c.Halt()), Phase.HALTED, "halted"),
        (paused.when(c.Halt()), Phase.HALTED, "halted"),
    ],
)
def test_the_reason_says_what_the_run_needs(run: Scenario, phase: Phase, reason: str) -> None:
    """What blocks comes first; queued approvals count only when nothing else is left."""
    outcome = told(run.then(phase=phase))
    assert is_paused(outcome)
    assert outcome.reason == reason


def test_an_ask_shows_what_is_to_be_decided_and_by_whom() -> None:
    """Enough to draw the dialogue from, without the journal."""
    outcome = told(paying)
    assert is_paused(outcome)
    expected = AskView(
        id=AskId("a1"),
        kind="approval",
        question="Let the agent call pay?",
        data={"eur": 500},
        call=C2,
        tool="pay",
        args={"eur": 500},
        audience="operator",
        declinable=True,
    )
    assert outcome.asks == (expected,)
    said = "run run_1 waiting (approval): approval a1 'pay': Let the agent call pay?"
    assert str(outcome) == said
    assert str(told(paused.when(c.Halt()))) == "run run_1 halted"


def test_a_question_shows_its_data_and_until_when_it_can_be_answered() -> None:
    """Options, a form, a link: whatever the tool passed along."""
    until = Micros(START_TIME + 60 * MICROS_PER_SECOND)
    asked = v.AskPerson(
        epoch=E1, call=C2, question="Which?", data={"options": [1, 2]}, expires=until
    )
    run = begun.replies(ASK, PAY).advances().starts("c2").after(asked).advances()
    approval, question = make_ask_views(run.state)
    assert (question.kind, question.question) == ("question", "Which?")
    assert (question.data, question.expires_at) == ({"options": [1, 2]}, until)
    assert (approval.kind, approval.call) == ("approval", C3)
    assert [ask.id for ask in make_ask_views(run.state)] == ["a1", "a2"]


def test_open_asks_are_listed_whatever_the_reason_and_settled_ones_are_not() -> None:
    """Somebody who pauses a waiting run still sees what it asked."""
    (ask,) = make_ask_views(waiting.when(c.Pause()).state)
    assert (ask.kind, ask.tool) == ("question", "ask_human")
    assert make_ask_views(waiting.when(c.Answer(ask=AskId("a1"), value=1)).state) == ()
    assert make_ask_views(paused.state) == ()
