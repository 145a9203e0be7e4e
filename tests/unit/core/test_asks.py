"""A person in the loop: questions, approvals, unsure calls; who may decide, and once."""

from itertools import product
from typing import get_args

import pytest

from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core.decide.asks import may_decide
from midrun.core.effects import CallModel, CallTool, CheckCall, Settle
from midrun.core.entries import CallDone, CallStarted, LateResult, RunImported, RunStarted
from midrun.core.history import make_fork_entry
from midrun.core.ids import MICROS_PER_SECOND, AskId, CallId, Epoch, Micros, Seq
from midrun.core.state import CallStage
from midrun.core.transitions import Accepted, Refused
from midrun.core.values import Actor, Effect, Json, Phase, Role, Traits, Use
from midrun.testing.scenario import LEASED_RUN, Scenario, given

E1, E2 = Epoch(1), Epoch(2)
C2, C3, C4 = CallId("c2"), CallId("c3"), CallId("c4")
A1 = AskId("a1")
ASK = Use(tool="ask_operator", args={"question": "ok?"})
PAY = Use(tool="pay", args={"eur": 500}, traits=Traits(approve="block"))
POST = Use(tool="post", args={"text": "hi"}, traits=Traits(approve="queue"))
MAIL = Use(tool="mail", args={})
SEARCH = Use(tool="search", args={}, traits=Traits(effect=Effect.READ))

begun = given(*LEASED_RUN)
asked = v.AskPerson(epoch=E1, call=C2, question="ok?")
paying = begun.replies(PAY).advances()


def stage(run: Scenario, call: str) -> CallStage:
    """Return where a call stands."""
    found = run.state.find_call(call)
    assert found is not None
    return found.stage


def done(call: CallId, epoch: Epoch = E1) -> v.CloseCall:
    """Return the evidence that a call returned."""
    return v.CloseCall(epoch=epoch, outcome=CallDone(call=call))


def test_the_answer_is_the_tools_result_and_the_tool_is_not_entered_again() -> None:
    """Days later, in another process: the call is done, not retried."""
    run = begun.replies(ASK).starts("c2").after(asked).advances().then(phase=Phase.WAITING)
    run = run.when(c.Answer(ask=A1, value={"approved": True})).then(phase=Phase.QUEUED)
    call = run.state.find_call("c2")
    assert call is not None
    assert (call.stage, call.result) == (CallStage.DONE, {"approved": True})
    run.after(v.TakeLease()).then(plans=(CallModel(call=C3),))


def test_an_approval_that_was_imported_does_not_count_and_its_bearer_cannot_renew_it() -> None:
    """Also for a call that a halt stopped midway: it is made again only with a new yes."""
    traits = Traits(approve="block", four_eyes=True, effect=Effect.READ)
    asking = begun.replies(Use(tool="pay", args={}, traits=traits)).advances()
    yes, eve = c.Approve(ask=A1, by=Actor(name="bo")), Actor(name="eve")
    imported = RunImported(checkpoint=asking.state.run, head="", by="eve")
    paused = asking.when(c.Pause(), yes)
    halted = asking.when(yes).after(v.TakeLease()).starts("c2").when(c.Halt(by=eve))
    for resting, wake in ((paused, c.Resume()), (halted, c.Lift(by=eve))):
        run = resting.after(imported).when(wake).after(v.TakeLease()).advances()
        assert stage(run, "c2") is CallStage.ASKING
        run = run.then(phase=Phase.WAITING)
        again = AskId("a2")
        run.when(c.Approve(ask=again, by=eve)).then(refused="not_allowed")
        run.when(c.Approve(ask=again, by=Actor(name="bo"))).then(phase=Phase.QUEUED)


def test_every_bearer_of_a_run_is_excluded_from_what_follows_from_it() -> None:
    """Also after a second import, in a fork, and in the child runs that its calls begin."""
    run = begun.replies(SEARCH).starts("c2").when(c.Pause()).after(done(C2)).advances()
    for name in ("eve", "bo"):
        run = run.after(RunImported(checkpoint=run.state.run, head="", by=name))
    forked = make_fork_entry(run.state, by=Actor(name="cy"))
    assert isinstance(forked, RunStarted)
    assert forked.steered_by == ("eve", "bo")  # the history names ann
    run = taken(run.when(c.Resume())).replies(SIGN).advances()
    assert run.state.asks[-1].excluded == ("ann", "eve", "bo")
    call = run.state.find_call(run.state.asks[-1].call)
    assert call is not None
    assert call.steered_by == ("ann", "eve", "bo")  # as a child run is told


def test_a_question_with_a_continuation_has_the_call_made_again_with_the_answer() -> None:
    """Its far end has said how to go on; its answer is not the result, but what is sent."""
    asks = v.AskPerson(epoch=E1, call=C2, question="ok?", continuation={"state": "s"})
    run = begun.replies(MAIL).starts("c2").after(asks).advances().then(phase=Phase.WAITING)
    run = run.when(c.Answer(ask=A1, value="yes")).then(phase=Phase.QUEUED)
    run = run.after(v.TakeLease()).then(plans=(CallTool(call=C2),))
    call = run.state.find_call("c2")
    assert call is not None
    assert call.question_answer == {
        "continuation": {"state": "s"},
        "choice": "answer",
        "value": "yes",
    }
    started = run.starts("c2").entries[-1]
    assert isinstance(started, CallStarted)
    assert started.attempt == 2


def test_a_question_can_be_declined_only_where_the_call_goes_on_with_that() -> None:
    """Where the answer would be the result, no tool is there to read the refusal."""
    run = begun.replies(ASK).starts("c2").after(asked).advances()
    run.when(c.Decline(ask=A1)).then(refused="not_an_approval")
    asks = v.AskPerson(epoch=E1, call=C2, continuation={})
    run = begun.replies(ASK).starts("c2").after(asks).advances()
    run = run.when(c.Decline(ask=A1, reason="no")).then(phase=Phase.QUEUED)
    call = run.state.find_call("c2")
    assert call is not None
    assert call.question_answer == {"continuation": {}, "choice": "decline", "value": None}


def test_an_approval_still_counts_after_a_question_of_the_call() -> None:
    """It is the same call with the same arguments, and goes on where it was."""
    run = paying.when(c.Approve(ask=A1)).after(v.TakeLease()).starts("c2")
    run = run.after(v.AskPerson(epoch=run.state.epoch, call=C2, continuation={})).advances()
    run = run.when(c.Answer(ask=AskId("a2"), value="yes")).after(v.TakeLease())
    run.then(plans=(CallTool(call=C2),))
    started = run.starts("c2").entries[-1]
    assert isinstance(started, CallStarted)
    assert started.approval is not None
    assert started.approval.ask == A1


def test_siblings_run_while_one_call_asks_and_the_next_model_call_waits_for_all() -> None:
    """A question in the middle repeats no sibling and drops none."""
    run = begun.replies(ASK, MAIL, SEARCH).starts("c2", "c3").after(asked)
    run = run.then(phase=Phase.RUNNING, plans=(CallTool(call=C4),))
    run = run.starts("c4").after(done(C3), done(C4)).then(plans=(Settle(),)).advances()
    run = run.then(phase=Phase.WAITING).when(c.Answer(ask=A1, value="yes"))
    run.after(v.TakeLease()).then(plans=(CallModel(call=CallId("c5")),))


def test_only_the_first_answer_counts_and_the_second_learns_who_was_first() -> None:
    """Two people, two browsers."""
    run = begun.replies(ASK).starts("c2").after(asked).advances()
    run = run.when(c.Answer(ask=A1, value=1, by=Actor(name="bo")), c.Answer(ask=A1, value=2))
    run.then(refused="already_answered")
    assert run.verdict is not None
    assert run.verdict.by == "bo"  # type: ignore[union-attr]  # Refused has it


def test_a_gated_call_starts_only_with_its_approval_and_cites_it() -> None:
    """The approval names the call and the hash of its arguments."""
    paying.then(phase=Phase.WAITING)
    run = paying.when(c.Approve(ask=A1)).after(v.TakeLease()).starts("c2")
    started = run.entries[-1]
    assert isinstance(started, CallStarted)
    assert started.approval is not None
    assert started.approval.ask == "a1"
    assert started.approval.args_hash == run.state.asks[0].args_hash


def test_edited_arguments_are_what_is_executed() -> None:
    """The person changed the amount; the hash is of what they approved."""
    run = paying.when(c.Approve(ask=A1, args={"eur": 50})).after(v.TakeLease())
    call = run.state.find_call("c2")
    assert call is not None
    assert call.use.args == {"eur": 50}
    assert call.approval is not None
    assert call.approval.args_hash != run.state.asks[0].args_hash


def test_a_declined_call_is_never_made_and_the_agent_is_told_why() -> None:
    """No is an answer."""
    run = paying.when(c.Decline(ask=A1, reason="too much", by=Actor(name="bo")))
    call = run.state.find_call("c2")
    assert call is not None
    assert (call.stage, call.error) == (CallStage.SEALED, "declined by bo: too much")
    run.after(v.TakeLease()).then(plans=(CallModel(call=C3),))


@pytest.mark.parametrize(
    ("traits", "person", "allowed"),
    [
        (Traits(approve="block", audience="operator"), Actor(name="bo"), False),
        (Traits(approve="block", audience="operator"), Actor(name="cy", role="operator"), True),
        (Traits(approve="block", four_eyes=True), Actor(name="ann"), False),
        (Traits(approve="block", four_eyes=True), Actor(name="bo"), True),
    ],
)
def test_only_the_audience_decides_and_four_eyes_exclude_the_requester(
    traits: Traits, person: Actor, allowed: bool
) -> None:
    """The run was started by ann."""
    run = begun.replies(Use(tool="pay", args={}, traits=traits)).advances()
    run = run.when(c.Approve(ask=A1, by=person))
    if allowed:
        run.then(phase=Phase.QUEUED)
    else:
        run.then(refused="not_allowed", phase=Phase.WAITING)


SIGN = Use(tool="sign", args={"eur": 5}, traits=Traits(approve="block", four_eyes=True))
BO, CY = Actor(name="bo", role="operator"), Actor(name="cy", role="operator")


def taken(run: Scenario) -> Scenario:
    """Have a driver take the run and open what it has to ask."""
    return run.after(v.TakeLease()).advances()


def steered(control: c.Control) -> Scenario:
    """Return a run to which bo has said something, and which then wants to sign."""
    run = begun.replies(SEARCH).starts("c2").when(control).after(done(C2)).advances()
    if run.state.frames:  # a side question: the agent goes back to its task
        run = run.replies(text="Because.").advances()
    return run.replies(SIGN).advances().then(phase=Phase.WAITING)


def answered_by_bo() -> Scenario:
    """Return a run in which bo has answered a question, and which then wants to sign."""
    run = begun.replies(ASK).starts("c2").after(asked).advances()
    return taken(run.when(c.Answer(ask=A1, value="to DE89", by=BO))).replies(SIGN).advances()


def declined_by_bo() -> Scenario:
    """Return a run in which bo has declined a call in words, and which then wants another."""
    run = begun.replies(SIGN).advances()
    return taken(run.when(c.Decline(ask=A1, reason="To DE89!", by=BO))).replies(SIGN).advances()


def resumed_by_bo() -> Scenario:
    """Return a run that bo has resumed with an instruction, and which then wants to sign."""
    run = begun.replies(SEARCH).starts("c2").when(c.Pause()).after(done(C2)).advances()
    return taken(run.when(c.Resume(instruction="Sign it", by=BO))).replies(SIGN).advances()


def driven_by_bo(*controls: c.Control) -> Scenario:
    """Return a run that bo has taken over and steered by hand."""
    run = begun.replies(SEARCH).starts("c2").when(c.TakeOver(by=BO)).after(done(C2)).advances()
    return run.when(*controls)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(steered(c.Redirect(text="Sign it", by=BO)), id="redirected"),
        pytest.param(steered(c.Say(text="Sign it", by=BO)), id="said"),
        pytest.param(resumed_by_bo(), id="resumed with an instruction"),
        pytest.param(answered_by_bo(), id="answered a question"),
        pytest.param(declined_by_bo(), id="declined with a reason"),
        pytest.param(taken(driven_by_bo(c.UseTool(use=SIGN, by=BO))), id="called the tool"),
        pytest.param(
            taken(driven_by_bo(c.Write(text="I sign.", by=BO), c.HandBack(by=BO)))
            .replies(SIGN)
            .advances(),
            id="wrote in its place",
        ),
    ],
)
def test_four_eyes_exclude_everybody_who_steered_the_run_to_the_call(run: Scenario) -> None:
    """A person whose words the agent was given cannot approve the call that followed."""
    ask = run.state.asks[-1]
    assert ask.excluded == ("ann", "bo")
    for decision in (c.Approve(ask=ask.id, by=BO), c.Decline(ask=ask.id, by=BO)):
        run.when(decision).then(refused="not_allowed")
    assert isinstance(run.when(c.Approve(ask=ask.id, by=CY)).verdict, Accepted)


def test_words_that_come_after_the_call_do_not_exclude() -> None:
    """An approver may ask the agent why, and then decide."""
    run = begun.replies(SIGN).advances().when(c.Say(text="Why?", by=BO)).after(v.TakeLease())
    run = run.advances().replies(text="Because.").advances().when(c.Approve(ask=A1, by=BO))
    assert isinstance(run.verdict, Accepted)


def test_what_one_person_edits_under_four_eyes_another_has_to_approve() -> None:
    """An edit by bo is a proposal of bo's: it is put to a third person as it stands then."""
    run = begun.replies(SIGN).advances()
    run = taken(run.when(c.Approve(ask=A1, args={"eur": 900}, by=BO)))
    ask = run.then(phase=Phase.WAITING).state.asks[-1]
    assert (ask.id, ask.data, ask.excluded) == ("a2", {"eur": 900}, ("ann", "bo"))
    run.when(c.Approve(ask=ask.id, by=BO)).then(refused="not_allowed")
    approved = run.when(c.Approve(ask=ask.id, by=CY)).after(v.TakeLease())
    approved.then(plans=(CallTool(call=C2),))
    again = taken(run.when(c.Approve(ask=ask.id, args={"eur": 9}, by=CY)))
    assert again.state.asks[-1].excluded == ("ann", "bo", "cy")


def test_arguments_that_are_sent_back_unchanged_are_no_edit() -> None:
    """A form that sends all fields does not ask for a third person."""
    run = begun.replies(SIGN).advances().when(c.Approve(ask=A1, args={"eur": 5}, by=BO))
    run.after(v.TakeLease()).then(plans=(CallTool(call=C2),))


@pytest.mark.parametrize("audience", ["", "user", "operator", "user:ann", "user:bob"])
@pytest.mark.parametrize("four_eyes", [False, True])
@pytest.mark.parametrize("kind", [c.Approve, c.Decline])
def test_whoever_is_offered_a_decision_may_make_it_and_nobody_else(
    audience: str, four_eyes: bool, kind: type[c.Approve | c.Decline]
) -> None:
    """Buttons go by `may_decide`: one that would be refused lies, and so does a missing one."""
    traits = Traits(approve="block", audience=audience, four_eyes=four_eyes)
    run = begun.replies(Use(tool="pay", args={}, traits=traits)).advances()
    (ask,) = run.state.asks
    for role, name in product(get_args(Role), ("ann", "bob", "")):
        person = Actor(name=name, role=role)
        verdict = run.when(kind(ask=A1, by=person)).verdict
        offered = may_decide(person, ask)
        assert isinstance(verdict, Accepted) == offered, (person, verdict)
        assert offered or (isinstance(verdict, Refused) and verdict.reason == "not_allowed")


def test_a_queued_approval_lets_the_agent_go_on_and_its_outcome_comes_as_a_message() -> None:
    """Proposed, awaiting review; then made, then reported."""
    run = begun.replies(POST).advances().then(plans=(CallModel(call=C3),))
    run = run.when(c.Approve(ask=A1)).then(plans=(CallTool(call=C2),))
    run = run.starts("c2").after(done(C2))
    assert run.state.messages[-1].kind == "outcome"
    assert run.state.messages[-1].calls == ("c2",)


def test_a_run_that_would_complete_waits_for_its_queued_approvals() -> None:
    """Nothing is forgotten at the end."""
    run = begun.replies(POST).advances().replies(text="done").advances()
    run = run.then(phase=Phase.WAITING).when(c.Decline(ask=A1)).then(phase=Phase.QUEUED)
    run.after(v.TakeLease()).then(plans=(CallModel(call=C4),))


def test_an_unanswered_ask_expires_and_counts_as_a_no() -> None:
    """By the store's clock, whoever looks first."""
    expires = Micros(begun.now + 60 * MICROS_PER_SECOND)
    asks = v.AskPerson(epoch=E1, call=C2, expires=expires)
    run = begun.replies(ASK).starts("c2").after(asks).advances().later(61).when(v.Wake())
    run.then(phase=Phase.QUEUED)
    assert stage(run, "c2") is CallStage.SEALED
    run.when(c.Answer(ask=A1, value=1)).then(refused="ask_closed")


def test_an_undecided_approval_expires_if_its_tool_says_so() -> None:
    """A yes that comes tomorrow may be for a world that has changed."""
    hasty = Use(
        tool="pay", args={}, traits=Traits(approve="block", ask_ttl=60 * MICROS_PER_SECOND)
    )
    run = begun.replies(hasty).advances().then(phase=Phase.WAITING).later(61).when(v.Wake())
    run.then(phase=Phase.QUEUED).when(c.Approve(ask=A1)).then(refused="ask_closed")


def test_a_yes_that_was_not_used_in_time_has_to_be_given_again() -> None:
    """Approved, then nobody drove the run until it had expired."""
    hasty = Use(
        tool="pay", args={}, traits=Traits(approve="block", ask_ttl=60 * MICROS_PER_SECOND)
    )
    run = begun.replies(hasty).advances().when(c.Approve(ask=A1)).later(61)
    start = v.StartCall(epoch=E2, call=C2, seen_seq=Seq(run.state.seq + 1))
    run = run.when(v.TakeLease()).when(start)
    run = run.advances().then(phase=Phase.WAITING)
    assert [ask.id for ask in run.state.asks] == ["a1", "a2"]
    assert stage(run, "c2") is CallStage.ASKING


def test_an_unknown_once_call_is_put_to_a_person_and_never_repeated() -> None:
    """It may have happened; only a person can say."""
    run = begun.replies(MAIL).starts("c2").after(v.TakeLease()).advances()
    run = run.then(phase=Phase.WAITING)
    assert run.state.asks[0].ask_kind == "unsure"
    run.when(v.StartCall(epoch=E2, call=C2, seen_seq=run.state.seq)).then(refused="lease_lost")
    run.when(c.Answer(ask=A1, value="perhaps")).then(refused="not_an_outcome")


@pytest.mark.parametrize(
    ("said", "left"),
    [("yes", CallStage.DONE), ("no", CallStage.PROPOSED), ("unknown", CallStage.UNKNOWN)],
)
def test_what_a_person_says_about_an_unsure_call_settles_it(
    said: Json, left: CallStage
) -> None:
    """It did: done. It didn't: made now. Don't know: left alone, and reported as unsure."""
    run = begun.replies(MAIL).starts("c2").after(v.TakeLease()).advances()
    run = run.when(c.Answer(ask=A1, value=said)).then(phase=Phase.QUEUED)
    assert stage(run, "c2") is left
    run = run.after(v.TakeLease())
    expected = CallTool(call=C2) if said == "no" else CallModel(call=C3)
    run.then(plans=(expected,))


def test_a_tool_with_a_check_is_asked_before_a_person_is() -> None:
    """The far end knows."""
    checked = Use(tool="mail", args={}, traits=Traits(check=True))
    run = begun.replies(checked).starts("c2").after(v.TakeLease())
    run = run.then(plans=(CheckCall(call=C2),))
    run = run.after(v.SettleCall(epoch=E2, call=C2, happened=True, result="sent"))
    run.then(plans=(CallModel(call=C3),))


def test_late_evidence_answers_the_question_that_was_put_to_a_person() -> None:
    """Slow, not dead: the worker had the result all along."""
    run = begun.replies(MAIL).starts("c2").after(v.TakeLease()).advances()
    late = LateResult(call=C2, attempt=1, epoch=E1, result="sent")
    run = run.when(v.ReportLateResult(result=late)).then(phase=Phase.QUEUED)
    assert stage(run, "c2") is CallStage.DONE
    run.when(c.Answer(ask=A1, value="no")).then(refused="ask_closed")


def test_late_evidence_of_an_attempt_that_was_restarted_changes_nothing() -> None:
    """It speaks of the first attempt; the second is under way."""
    run = begun.replies(SEARCH).starts("c2").after(v.TakeLease()).starts("c2")
    late = LateResult(call=C2, attempt=1, epoch=E1, result="old")
    run = run.when(v.ReportLateResult(result=late))
    assert stage(run, "c2") is CallStage.STARTED


def test_a_childs_ask_shows_on_the_parent_and_is_closed_when_answered_there() -> None:
    """Wherever it is answered, the parent attaches to the child again."""
    child = Use(tool="helper", kind="child")
    shown = v.AskPerson(epoch=E1, call=C2, question="child asks", child=True)
    run = begun.replies(child).starts("c2").after(shown)
    run.advances().then(phase=Phase.WAITING)
    moot = run.after(v.CloseChildAsk(ask=A1))
    assert stage(moot, "c2") is CallStage.PROPOSED


def test_an_answer_while_paused_is_kept_for_the_resume() -> None:
    """Paused stays paused; the answer is not lost."""
    run = begun.replies(ASK).starts("c2").after(asked).advances().when(c.Pause())
    run = run.when(c.Answer(ask=A1, value=7)).then(phase=Phase.PAUSED)
    run.when(c.Resume()).then(phase=Phase.QUEUED)
    assert stage(run, "c2") is CallStage.DONE


def test_resume_with_an_open_ask_goes_back_to_waiting() -> None:
    """There is nothing to drive until somebody answers."""
    run = begun.replies(ASK).starts("c2").after(asked).advances().when(c.Pause())
    run.when(c.Resume()).then(phase=Phase.WAITING)
