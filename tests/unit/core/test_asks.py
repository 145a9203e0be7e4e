"""Asks: questions, approvals and unsure calls; people who may decide, and expiry."""

from itertools import product
from typing import get_args

import pytest

from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core.decide.asks import may_decide
from midrun.core.entries import (
    CallAborted,
    CallFailed,
    CallStarted,
    LateResult,
    RunImported,
    RunStarted,
)
from midrun.core.history import make_fork_entry
from midrun.core.ids import MICROS_PER_SECOND, AskId, CallId, Epoch, Micros
from midrun.core.scheduler import (
    CheckCall,
)
from midrun.core.state import CallStage
from midrun.core.transitions import Accepted, Refused
from midrun.core.values import Actor, Effect, Json, Phase, RequestedCall, Role, Traits
from midrun.testing.scenario import Scenario
from tests.unit.core.scenario_steps import get_call, get_stage, leased_run, report_done

E1, E2 = Epoch(1), Epoch(2)
C2, C3, C4 = CallId("c2"), CallId("c3"), CallId("c4")
A1, A2 = AskId("a1"), AskId("a2")
ANN, BOB = Actor(name="ann"), Actor(name="bob")
BO, CY, OLGA = (Actor(name=name, role="operator") for name in ("bo", "cy", "olga"))
ASK = RequestedCall(tool="ask_operator", args={"question": "ok?"})
PAY = RequestedCall(tool="pay", args={"eur": 500}, traits=Traits(approve="block"))
POST = RequestedCall(tool="post", args={"text": "hi"}, traits=Traits(approve="queue"))
SIGN = RequestedCall(
    tool="sign", args={"eur": 5}, traits=Traits(approve="block", four_eyes=True)
)
MAIL = RequestedCall(tool="mail", args={})
SEARCH = RequestedCall(tool="search", args={}, traits=Traits(effect=Effect.READ))
EXPIRING = RequestedCall(
    tool="pay", args={}, traits=Traits(approve="block", ask_ttl=60 * MICROS_PER_SECOND)
)
GATED = RequestedCall(tool="fix", args={}, traits=Traits(approve="block"))
UNDOABLE_PAYMENT = RequestedCall(tool="pay", args={}, traits=Traits(undo=True))

ask_input = v.AskPerson(epoch=E1, call=C2, question="ok?")
waiting_for_approval = leased_run.replies(PAY).advances()
unsure_payment = (
    leased_run.replies(UNDOABLE_PAYMENT).starts("c2").after(v.TakeLease()).advances()
)
late_payment = v.ReportLateResult(
    result=LateResult(call=C2, attempt=1, epoch=E1, result="paid")
)


# ── questions ──────────────────────────────────────────────────────────────────────────


def test_the_answer_is_the_result_of_the_tool_which_is_not_called_again() -> None:
    """The answer may come days later, in another process. The call is not retried."""
    run = (
        leased_run.replies(ASK)
        .starts("c2")
        .after(ask_input)
        .advances()
        .then(phase=Phase.WAITING)
    )
    run = run.when(c.Answer(ask=A1, value={"approved": True})).then(phase=Phase.QUEUED)
    call = get_call(run)
    assert (call.stage, call.result) == (CallStage.DONE, {"approved": True})
    run.after(v.TakeLease()).then(starts=(C3,))


def test_a_question_with_a_continuation_repeats_the_call_with_the_answer() -> None:
    """The answer is not the result: the next attempt sends it to the server of the tool."""
    question = v.AskPerson(epoch=E1, call=C2, question="ok?", continuation={"state": "s"})
    run = (
        leased_run.replies(MAIL)
        .starts("c2")
        .after(question)
        .advances()
        .then(phase=Phase.WAITING)
    )
    run = run.when(c.Answer(ask=A1, value="yes")).then(phase=Phase.QUEUED)
    run = run.after(v.TakeLease()).then(starts=(C2,))
    call = get_call(run)
    assert call.question_answer == {
        "continuation": {"state": "s"},
        "choice": "answer",
        "value": "yes",
    }
    started = run.starts("c2").entries[-1]
    assert isinstance(started, CallStarted)
    assert started.attempt == 2


def test_a_question_can_be_declined_only_if_it_has_a_continuation() -> None:
    """Without one the answer is the result, and no tool would read the refusal."""
    run = leased_run.replies(ASK).starts("c2").after(ask_input).advances()
    run.when(c.Decline(ask=A1)).then(refused="not_an_approval")
    question = v.AskPerson(epoch=E1, call=C2, continuation={})
    run = leased_run.replies(ASK).starts("c2").after(question).advances()
    run = run.when(c.Decline(ask=A1, reason="no")).then(phase=Phase.QUEUED)
    call = get_call(run)
    assert call.question_answer == {"continuation": {}, "choice": "decline", "value": None}


def test_other_calls_run_while_one_call_asks_and_the_next_model_call_waits() -> None:
    """A question in the middle of a step repeats no other call and drops none."""
    run = leased_run.replies(ASK, MAIL, SEARCH).starts("c2", "c3").after(ask_input)
    run = run.then(phase=Phase.RUNNING, starts=(C4,))
    run = run.starts("c4").after(report_done(C3), report_done(C4)).advances()
    run = run.then(phase=Phase.WAITING).when(c.Answer(ask=A1, value="yes"))
    run.after(v.TakeLease()).then(starts=(CallId("c5"),))


def test_only_the_first_answer_counts_and_the_second_gets_the_name_of_its_actor() -> None:
    run = leased_run.replies(ASK).starts("c2").after(ask_input).advances()
    run = run.when(c.Answer(ask=A1, value=1, by=Actor(name="bo")), c.Answer(ask=A1, value=2))
    run.then(refused="already_answered")
    assert run.verdict is not None
    assert run.verdict.by == "bo"  # type: ignore[union-attr]  # Refused has it


def test_an_ask_without_an_answer_expires_and_seals_its_call() -> None:
    """It counts as declined, by the clock of the store."""
    expires = Micros(leased_run.now + 60 * MICROS_PER_SECOND)
    question = v.AskPerson(epoch=E1, call=C2, expires=expires)
    run = (
        leased_run.replies(ASK).starts("c2").after(question).advances().later(61).when(v.Wake())
    )
    run.then(phase=Phase.QUEUED)
    assert get_stage(run) is CallStage.SEALED
    run.when(c.Answer(ask=A1, value=1)).then(refused="ask_closed")


def test_a_parent_calls_its_child_again_after_the_ask_of_the_child_is_closed() -> None:
    """Wherever it is answered, the parent attaches to the child run again."""
    child = RequestedCall(tool="helper", kind="child")
    child_ask = v.AskPerson(epoch=E1, call=C2, question="child asks", child=True)
    run = leased_run.replies(child).starts("c2").after(child_ask)
    run.advances().then(phase=Phase.WAITING)
    closed = run.after(v.CloseChildAsk(ask=A1))
    assert get_stage(closed, "c2") is CallStage.PROPOSED


def test_an_answer_while_paused_is_kept_for_the_resume() -> None:
    run = leased_run.replies(ASK).starts("c2").after(ask_input).advances().when(c.Pause())
    run = run.when(c.Answer(ask=A1, value=7)).then(phase=Phase.PAUSED)
    run.when(c.Resume()).then(phase=Phase.QUEUED)
    assert get_stage(run) is CallStage.DONE


def test_resume_with_an_open_ask_goes_back_to_waiting() -> None:
    run = leased_run.replies(ASK).starts("c2").after(ask_input).advances().when(c.Pause())
    run.when(c.Resume()).then(phase=Phase.WAITING)


def test_a_failed_run_with_an_open_ask_waits_after_a_resume() -> None:
    asked = leased_run.replies(GATED, SEARCH).starts("c3")  # the ask opens at the same boundary
    run = asked.after(report_done(C3))
    run.after(v.FailRun(epoch=Epoch(1), error="no")).when(c.Resume()).then(phase=Phase.WAITING)


# ── approvals ──────────────────────────────────────────────────────────────────────────


def test_a_gated_call_starts_only_with_its_approval_and_cites_it() -> None:
    """The approval names the call and the hash of its arguments."""
    waiting_for_approval.then(phase=Phase.WAITING)
    run = waiting_for_approval.when(c.Approve(ask=A1)).after(v.TakeLease()).starts("c2")
    started = run.entries[-1]
    assert isinstance(started, CallStarted)
    assert started.approval is not None
    assert started.approval.ask == "a1"
    assert started.approval.args_hash == run.state.asks[0].args_hash


def test_a_call_is_made_with_the_arguments_that_the_approver_edited() -> None:
    """The approval has the hash of the edited arguments."""
    run = waiting_for_approval.when(c.Approve(ask=A1, args={"eur": 50})).after(v.TakeLease())
    call = get_call(run)
    assert call.use.args == {"eur": 50}
    assert call.approval is not None
    assert call.approval.args_hash != run.state.asks[0].args_hash


def test_a_declined_call_is_never_made_and_the_agent_is_told_why() -> None:
    run = waiting_for_approval.when(c.Decline(ask=A1, reason="too much", by=Actor(name="bo")))
    call = get_call(run)
    assert (call.stage, call.error) == (CallStage.SEALED, "declined by bo: too much")
    run.after(v.TakeLease()).then(starts=(C3,))


def test_an_approval_still_counts_after_a_question_of_the_call() -> None:
    """The next attempt is the same call with the same arguments."""
    run = waiting_for_approval.when(c.Approve(ask=A1)).after(v.TakeLease()).starts("c2")
    run = run.after(v.AskPerson(epoch=run.state.epoch, call=C2, continuation={})).advances()
    run = run.when(c.Answer(ask=A2, value="yes")).after(v.TakeLease())
    run.then(starts=(C2,))
    started = run.starts("c2").entries[-1]
    assert isinstance(started, CallStarted)
    assert started.approval is not None
    assert started.approval.ask == A1


def test_a_queued_approval_lets_the_agent_go_on_and_its_outcome_comes_as_a_message() -> None:
    run = leased_run.replies(POST).advances().then(starts=(C3,))
    run = run.when(c.Approve(ask=A1)).then(starts=(C2,))
    run = run.starts("c2").after(report_done(C2))
    assert run.state.messages[-1].kind == "outcome"
    assert run.state.messages[-1].calls == ("c2",)


def test_a_run_that_would_complete_waits_for_its_queued_approvals() -> None:
    run = leased_run.replies(POST).advances().replies(text="done").advances()
    run = run.then(phase=Phase.WAITING).when(c.Decline(ask=A1)).then(phase=Phase.QUEUED)
    run.after(v.TakeLease()).then(starts=(C4,))


def test_an_undecided_approval_expires_after_the_ask_ttl_of_its_tool() -> None:
    run = (
        leased_run.replies(EXPIRING)
        .advances()
        .then(phase=Phase.WAITING)
        .later(61)
        .when(v.Wake())
    )
    run.then(phase=Phase.QUEUED).when(c.Approve(ask=A1)).then(refused="ask_closed")


def test_an_approval_that_expires_before_the_start_is_asked_for_again() -> None:
    """The call was approved, but no worker drove the run in time."""
    run = leased_run.replies(EXPIRING).advances().when(c.Approve(ask=A1)).later(61)
    run = run.when(v.TakeLease()).tries("c2").then(phase=Phase.WAITING)
    assert [ask.id for ask in run.state.asks] == ["a1", "a2"]
    assert get_stage(run) is CallStage.ASKING


def test_a_decision_after_the_expiry_of_its_ask_is_refused() -> None:
    """The clock decides, even if no wake has closed the ask yet."""
    run = leased_run.replies(EXPIRING).advances().later(61)
    run.when(c.Approve(ask=A1)).then(refused="ask_closed", phase=Phase.WAITING)


def test_a_repeated_ask_keeps_the_undo_and_allows_no_other_arguments() -> None:
    """The call was aborted midway, then its approval expired."""
    traits = Traits(
        effect=Effect.IDEMPOTENT, undo=True, approve="block", ask_ttl=60 * MICROS_PER_SECOND
    )
    run = leased_run.replies(
        RequestedCall(tool="pay", args={"eur": 5}, traits=traits)
    ).advances()
    run = run.when(c.Approve(ask=A1)).after(v.TakeLease()).starts("c2").when(c.Pause(now=True))
    run = run.after(v.CloseCall(epoch=E2, outcome=CallAborted(call=C2))).advances().later(61)
    run = run.when(c.Resume()).after(v.TakeLease()).advances().then(phase=Phase.WAITING)
    run.when(c.Approve(ask=A2, args={"eur": 9})).then(refused="already_attempted")
    run = run.when(c.Cancel()).then(phase=Phase.CANCELLING).after(v.TakeLease())
    run.then(cleans=((C2, "undo"),))


def test_an_approval_is_void_after_a_redirect_even_if_that_was_withdrawn() -> None:
    run = leased_run.replies(GATED).advances().when(c.Approve(ask=A1), c.Redirect(text="other"))
    run = run.when(c.Withdraw(seq=run.state.pending[0].seq)).after(v.TakeLease()).advances()
    run.then(phase=Phase.WAITING)
    assert [ask.id for ask in run.state.asks] == [A1, A2]


def test_a_redirect_voids_the_approval_of_a_call_in_a_held_topic() -> None:
    """I25: the call belongs to a frame below the side question."""
    run = (
        leased_run.replies(GATED)
        .advances()
        .when(c.Say(text="Why?"))
        .after(v.TakeLease())
        .advances()
    )
    run = run.when(c.Approve(ask=A1, by=BO), c.Redirect(text="Other")).advances()
    run = run.replies(text="Because.").advances()
    assert not any(isinstance(e, CallStarted) and e.call == C2 for e in run.entries)
    assert (C2, "call") not in run.next_starts


# ── audience and four eyes ─────────────────────────────────────────────────────────────


def take_and_advance(run: Scenario) -> Scenario:
    """Take the lease, and append everything that follows from the journal."""
    return run.after(v.TakeLease()).advances()


def steer_by_control(control: c.Control) -> Scenario:
    """Return a run that proposes to sign after a control of bo."""
    run = (
        leased_run.replies(SEARCH).starts("c2").when(control).after(report_done(C2)).advances()
    )
    if run.state.frames:  # the agent answers the side question, and returns to its task
        run = run.replies(text="Because.").advances()
    return run.replies(SIGN).advances().then(phase=Phase.WAITING)


def steer_by_answer() -> Scenario:
    """Return a run that proposes to sign after bo answered a question."""
    run = leased_run.replies(ASK).starts("c2").after(ask_input).advances()
    return (
        take_and_advance(run.when(c.Answer(ask=A1, value="to DE89", by=BO)))
        .replies(SIGN)
        .advances()
    )


def steer_by_decline() -> Scenario:
    """Return a run that proposes to sign again after bo declined with a reason."""
    run = leased_run.replies(SIGN).advances()
    return (
        take_and_advance(run.when(c.Decline(ask=A1, reason="To DE89!", by=BO)))
        .replies(SIGN)
        .advances()
    )


def steer_by_resume() -> Scenario:
    """Return a run that proposes to sign after bo resumed it with an instruction."""
    run = (
        leased_run.replies(SEARCH)
        .starts("c2")
        .when(c.Pause())
        .after(report_done(C2))
        .advances()
    )
    return (
        take_and_advance(run.when(c.Resume(instruction="Sign it", by=BO)))
        .replies(SIGN)
        .advances()
    )


def steer_by_hand(*controls: c.Control) -> Scenario:
    """Return a run that bo has taken over, after these controls."""
    run = (
        leased_run.replies(SEARCH)
        .starts("c2")
        .when(c.TakeOver(by=BO))
        .after(report_done(C2))
        .advances()
    )
    return run.when(*controls)


@pytest.mark.parametrize(
    ("traits", "person", "allowed"),
    [
        (Traits(approve="block", audience="operator"), Actor(name="bo"), False),
        (Traits(approve="block", audience="operator"), Actor(name="cy", role="operator"), True),
        (Traits(approve="block", four_eyes=True), Actor(name="ann"), False),
        (Traits(approve="block", four_eyes=True), Actor(name="bo"), True),
    ],
)
def test_only_the_audience_decides_and_four_eyes_exclude_the_starter_of_the_run(
    traits: Traits, person: Actor, allowed: bool
) -> None:
    """The run was started by ann."""
    run = leased_run.replies(RequestedCall(tool="pay", args={}, traits=traits)).advances()
    run = run.when(c.Approve(ask=A1, by=person))
    if allowed:
        run.then(phase=Phase.QUEUED)
    else:
        run.then(refused="not_allowed", phase=Phase.WAITING)


def test_an_audience_is_a_role_or_a_named_user_and_not_the_name_of_a_role() -> None:
    """People choose their names; roles come with a credential."""
    gated = RequestedCall(
        tool="pay", args={}, traits=Traits(approve="block", audience="operator")
    )
    run = leased_run.replies(gated).advances()
    run.when(c.Approve(ask=A1, by=Actor(name="operator"))).then(refused="not_allowed")
    for_bob = RequestedCall(
        tool="pay", args={}, traits=Traits(approve="block", audience="user:bob")
    )
    leased_run.replies(for_bob).advances().when(c.Approve(ask=A1, by=BOB)).then(
        phase=Phase.QUEUED
    )


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(steer_by_control(c.Redirect(text="Sign it", by=BO)), id="redirected"),
        pytest.param(steer_by_control(c.Say(text="Sign it", by=BO)), id="sent a message"),
        pytest.param(steer_by_resume(), id="resumed with an instruction"),
        pytest.param(steer_by_answer(), id="answered a question"),
        pytest.param(steer_by_decline(), id="declined with a reason"),
        pytest.param(
            take_and_advance(steer_by_hand(c.UseTool(use=SIGN, by=BO))), id="called the tool"
        ),
        pytest.param(
            take_and_advance(steer_by_hand(c.Write(text="I sign.", by=BO), c.HandBack(by=BO)))
            .replies(SIGN)
            .advances(),
            id="wrote in its place",
        ),
    ],
)
def test_four_eyes_exclude_every_person_who_steered_the_run_to_the_call(run: Scenario) -> None:
    """A person whose text the agent got cannot approve the call that it proposed then."""
    ask = run.state.asks[-1]
    assert ask.excluded == ("ann", "bo")
    for decision in (c.Approve(ask=ask.id, by=BO), c.Decline(ask=ask.id, by=BO)):
        run.when(decision).then(refused="not_allowed")
    assert isinstance(run.when(c.Approve(ask=ask.id, by=CY)).verdict, Accepted)


def test_a_message_after_the_proposed_call_does_not_exclude_its_sender() -> None:
    """An approver may ask the agent for its reasons, and then decide."""
    run = (
        leased_run.replies(SIGN).advances().when(c.Say(text="Why?", by=BO)).after(v.TakeLease())
    )
    run = run.advances().replies(text="Because.").advances().when(c.Approve(ask=A1, by=BO))
    assert isinstance(run.verdict, Accepted)


def test_arguments_edited_under_four_eyes_need_the_approval_of_another_person() -> None:
    """An edit is a proposal: it opens a new ask that also excludes the editor."""
    run = leased_run.replies(SIGN).advances()
    run = take_and_advance(run.when(c.Approve(ask=A1, args={"eur": 900}, by=BO)))
    ask = run.then(phase=Phase.WAITING).state.asks[-1]
    assert (ask.id, ask.data, ask.excluded) == ("a2", {"eur": 900}, ("ann", "bo"))
    run.when(c.Approve(ask=ask.id, by=BO)).then(refused="not_allowed")
    approved = run.when(c.Approve(ask=ask.id, by=CY)).after(v.TakeLease())
    approved.then(starts=(C2,))
    edited_again = take_and_advance(run.when(c.Approve(ask=ask.id, args={"eur": 9}, by=CY)))
    assert edited_again.state.asks[-1].excluded == ("ann", "bo", "cy")


def test_arguments_that_are_sent_back_unchanged_are_not_an_edit() -> None:
    """A form that sends all fields does not require a third person."""
    run = leased_run.replies(SIGN).advances().when(c.Approve(ask=A1, args={"eur": 5}, by=BO))
    run.after(v.TakeLease()).then(starts=(C2,))


def test_four_eyes_exclude_every_person_who_imported_the_run() -> None:
    """This also holds after a second import, in a fork, and in child runs."""
    run = (
        leased_run.replies(SEARCH)
        .starts("c2")
        .when(c.Pause())
        .after(report_done(C2))
        .advances()
    )
    for name in ("eve", "bo"):
        run = run.after(RunImported(checkpoint=run.state.run, head="", by=name))
    forked = make_fork_entry(run.state, by=Actor(name="cy"))
    assert isinstance(forked, RunStarted)
    assert forked.steered_by == ("eve", "bo")  # the history names ann
    run = take_and_advance(run.when(c.Resume())).replies(SIGN).advances()
    assert run.state.asks[-1].excluded == ("ann", "eve", "bo")
    call = get_call(run, run.state.asks[-1].call)
    assert call.steered_by == ("ann", "eve", "bo")  # passed to child runs


def test_an_imported_approval_does_not_count_and_its_importer_cannot_renew_it() -> None:
    """A call that a halt stopped midway is also made again only with a new approval."""
    traits = Traits(approve="block", four_eyes=True, effect=Effect.READ)
    asking = leased_run.replies(RequestedCall(tool="pay", args={}, traits=traits)).advances()
    approve, eve = c.Approve(ask=A1, by=Actor(name="bo")), Actor(name="eve")
    imported = RunImported(checkpoint=asking.state.run, head="", by="eve")
    paused = asking.when(c.Pause(), approve)
    halted = asking.when(approve).after(v.TakeLease()).starts("c2").when(c.Halt(by=eve))
    for stopped, wake in ((paused, c.Resume()), (halted, c.Lift(by=eve))):
        run = stopped.after(imported).when(wake).after(v.TakeLease()).advances()
        assert get_stage(run) is CallStage.ASKING
        run = run.then(phase=Phase.WAITING)
        run.when(c.Approve(ask=A2, by=eve)).then(refused="not_allowed")
        run.when(c.Approve(ask=A2, by=Actor(name="bo"))).then(phase=Phase.QUEUED)


@pytest.mark.parametrize("audience", ["", "user", "operator", "user:ann", "user:bob"])
@pytest.mark.parametrize("four_eyes", [False, True])
@pytest.mark.parametrize("kind", [c.Approve, c.Decline])
def test_decide_accepts_exactly_the_people_for_whom_may_decide_is_true(
    audience: str, four_eyes: bool, kind: type[c.Approve | c.Decline]
) -> None:
    """Interfaces show the buttons by `may_decide`."""
    traits = Traits(approve="block", audience=audience, four_eyes=four_eyes)
    run = leased_run.replies(RequestedCall(tool="pay", args={}, traits=traits)).advances()
    (ask,) = run.state.asks
    for role, name in product(get_args(Role), ("ann", "bob", "")):
        person = Actor(name=name, role=role)
        verdict = run.when(kind(ask=A1, by=person)).verdict
        may = may_decide(person, ask)
        assert isinstance(verdict, Accepted) == may, (person, verdict)
        assert may or (isinstance(verdict, Refused) and verdict.reason == "not_allowed")


# ── unsure calls ───────────────────────────────────────────────────────────────────────


def test_an_unknown_call_that_is_not_safe_to_repeat_is_put_to_a_person() -> None:
    run = leased_run.replies(MAIL).starts("c2").after(v.TakeLease()).advances()
    run = run.then(phase=Phase.WAITING)
    assert run.state.asks[0].ask_kind == "unsure"
    run.then(starts=())
    run.when(c.Answer(ask=A1, value="perhaps")).then(refused="not_an_outcome")


@pytest.mark.parametrize(
    ("answer", "stage"),
    [("yes", CallStage.DONE), ("no", CallStage.PROPOSED), ("unknown", CallStage.UNKNOWN)],
)
def test_the_answer_of_a_person_settles_an_unsure_call(answer: Json, stage: CallStage) -> None:
    """Yes: done. No: made now. Unknown: not made again, and reported as unsure."""
    run = leased_run.replies(MAIL).starts("c2").after(v.TakeLease()).advances()
    run = run.when(c.Answer(ask=A1, value=answer)).then(phase=Phase.QUEUED)
    assert get_stage(run) is stage
    run = run.after(v.TakeLease())
    run.then(starts=(C2 if answer == "no" else C3,))


def test_an_unknown_call_with_a_check_is_checked_before_a_person_is_asked() -> None:
    checked = RequestedCall(tool="mail", args={}, traits=Traits(check=True))
    run = leased_run.replies(checked).starts("c2").after(v.TakeLease())
    run = run.then(effects=(CheckCall(call=C2),))
    run = run.after(v.SettleCall(epoch=E2, call=C2, happened=True, result="sent"))
    run.then(starts=(C3,))


def test_an_unsure_call_is_put_to_the_audience_that_may_approve_it() -> None:
    traits = Traits(audience="operator", four_eyes=True)
    run = leased_run.replies(RequestedCall(tool="pay", args={}, traits=traits)).starts("c2")
    run = run.after(v.TakeLease()).advances()
    run.when(c.Answer(ask=A1, value="no", by=ANN)).then(refused="not_allowed")
    run.when(c.Answer(ask=A1, value="no", by=OLGA)).then(phase=Phase.QUEUED)


def test_a_late_result_closes_the_ask_about_an_unknown_call() -> None:
    """The worker was slow, not dead."""
    run = leased_run.replies(MAIL).starts("c2").after(v.TakeLease()).advances()
    late = LateResult(call=C2, attempt=1, epoch=E1, result="sent")
    run = run.when(v.ReportLateResult(result=late)).then(phase=Phase.QUEUED)
    assert get_stage(run) is CallStage.DONE
    run.when(c.Answer(ask=A1, value="no")).then(refused="ask_closed")


def test_a_late_result_of_an_earlier_attempt_does_not_end_the_current_one() -> None:
    run = leased_run.replies(SEARCH).starts("c2").after(v.TakeLease()).starts("c2")
    late = LateResult(call=C2, attempt=1, epoch=E1, result="old")
    run = run.when(v.ReportLateResult(result=late))
    assert get_stage(run) is CallStage.STARTED


def test_a_late_result_counts_after_a_person_answered_no() -> None:
    """A call whose result is journaled is never made again."""
    run = unsure_payment.when(c.Answer(ask=A1, value="no"), late_payment)
    assert get_stage(run) is CallStage.DONE
    run.after(v.TakeLease()).then(starts=(C3,))


def test_a_late_result_of_an_earlier_attempt_keeps_the_call_in_the_undo_set() -> None:
    """The call happened at least once, however the second attempt ends."""
    run = unsure_payment.when(c.Answer(ask=A1, value="no")).after(v.TakeLease()).starts("c2")
    run = run.when(late_payment)
    run = run.after(v.CloseCall(epoch=Epoch(3), outcome=CallFailed(call=C2, error="no")))
    run.when(c.Cancel()).then(cleans=((C2, "undo"),))
