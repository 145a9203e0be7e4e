"""Redirect keeps the work, and nobody's words are lost."""

from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core.effects import AbortCall, Advance, CallModel
from midrun.core.entries import CallAborted, CallDone, RedirectApplied, RedirectClosed
from midrun.core.ids import CallId, Epoch
from midrun.core.state import CallStage
from midrun.core.values import Effect, Item, Phase, Traits, Use
from midrun.testing.scenario import LEASED_RUN, Scenario, given

E1 = Epoch(1)
C1, C2, C3, C4 = CallId("c1"), CallId("c2"), CallId("c3"), CallId("c4")
SEARCH = Use(tool="search", args={"q": "x"}, traits=Traits(effect=Effect.READ))
MAIL = Use(tool="mail", args={})
GATED = Use(tool="pay", args={"eur": 5}, traits=Traits(approve="block"))

begun = given(*LEASED_RUN)
NEW = c.Redirect(text="Use the 2026 figures")


def stage(run: Scenario, call: str) -> CallStage:
    """Return where a call stands."""
    found = run.state.find_call(call)
    assert found is not None
    return found.stage


def test_a_redirect_closes_the_model_stream_and_is_told_to_the_next_call() -> None:
    """The text so far stays; the instruction goes into the call that decides the next step."""
    run = begun.starts("c1").when(NEW).then(phase=Phase.RUNNING)
    run = run.then(plans=(AbortCall(call=C1, reason="redirected"),))
    run = run.after(v.CloseCall(epoch=E1, outcome=CallAborted(call=C1, text="So fa")))
    run = run.then(plans=(Advance(),)).advances().then(plans=(CallModel(call=C2),))
    assert [m.text for m in run.state.messages][-2:] == ["So fa", "Use the 2026 figures"]


def test_a_redirect_at_the_next_step_lets_started_tools_finish_and_seals_the_rest() -> None:
    """Finished work stays; what had not started never starts."""
    run = begun.replies(SEARCH, MAIL).starts("c2").when(NEW).then(plans=())
    run = run.after(v.CloseCall(epoch=E1, outcome=CallDone(call=C2, result="found")))
    run = run.advances().then(plans=(CallModel(call=C4),))
    assert (stage(run, "c2"), stage(run, "c3")) == (CallStage.DONE, CallStage.SEALED)


def test_a_redirect_now_aborts_tools_too_and_they_are_not_made_again() -> None:
    """The course has changed: even a harmless call belongs to the old one."""
    run = begun.replies(SEARCH).starts("c2").when(c.Redirect(text="stop that", when="now"))
    run = run.then(plans=(AbortCall(call=C2, reason="redirected"),))
    run = run.after(v.CloseCall(epoch=E1, outcome=CallAborted(call=C2))).advances()
    run.then(plans=(CallModel(call=C3),))
    assert stage(run, "c2") is CallStage.ABORTED


def test_the_one_line_difference_is_recorded_with_the_plan_item_it_replaces() -> None:
    """What would have come next, and what comes instead."""
    items = (Item(text="Fetch list", mark="done"), Item(text="Score churn risk"))
    run = begun.after(v.SetPlan(epoch=E1, items=items)).when(NEW).advances()
    applied = run.entries[-1]
    assert isinstance(applied, RedirectApplied)
    assert (applied.minus, applied.plus) == ("Score churn risk", "Use the 2026 figures")


def test_a_redirect_pends_until_its_boundary_and_can_be_withdrawn() -> None:
    """Accepted is not applied."""
    run = begun.replies(SEARCH).starts("c2").when(NEW)
    seq = run.state.pending[0].seq
    run = run.when(c.Withdraw(seq=seq))
    assert run.state.pending == ()
    closed = run.entries[-1]
    assert isinstance(closed, RedirectClosed)
    assert (closed.why, closed.text) == ("withdrawn", "Use the 2026 figures")
    run.when(c.Withdraw(seq=seq)).then(refused="not_pending")


def test_a_redirect_of_a_paused_run_resumes_it_with_the_text() -> None:
    """One press, not two."""
    run = begun.when(c.Pause()).advances().when(NEW).then(phase=Phase.QUEUED)
    run = run.after(v.TakeLease()).advances()
    assert run.state.messages[-1].text == "Use the 2026 figures"


def test_a_redirect_of_a_waiting_run_supersedes_its_asks() -> None:
    """A yes that was meant for the old plan must not be usable any more."""
    run = begun.replies(GATED).advances().then(phase=Phase.WAITING)
    run = run.when(NEW).then(phase=Phase.QUEUED)
    run.when(c.Approve(ask=run.state.asks[0].id)).then(refused="ask_closed")
    run = run.after(v.TakeLease(holder="w2")).advances()
    assert stage(run, "c2") is CallStage.SEALED
    run.then(plans=(CallModel(call=C3),))


def test_an_approval_given_before_a_redirect_is_not_used_after_it() -> None:
    """Approved, not started, redirected: the call belongs to the old plan."""
    run = begun.replies(GATED).advances()
    run = run.when(c.Approve(ask=run.state.asks[0].id), NEW).after(v.TakeLease())
    start = v.StartCall(epoch=Epoch(2), call=C2, seen_seq=run.state.seq)
    run.when(start).then(refused="redirected")
    assert stage(run.advances(), "c2") is CallStage.SEALED


def test_a_redirect_that_comes_too_late_is_refused_with_its_text_unapplied() -> None:
    """The caller still has the text; the page offers it again."""
    begun.replies(text="done").advances().when(NEW).then(refused="is_completed")
    begun.when(c.Redirect(text="  ")).then(refused="empty_text")


def test_resume_with_an_instruction_seals_what_had_not_started() -> None:
    """Summarise and stop: the searches that were still to come do not come."""
    run = begun.replies(SEARCH, SEARCH).starts("c2").when(c.Pause())
    run = run.after(v.CloseCall(epoch=E1, outcome=CallDone(call=C2))).advances()
    run = run.when(c.Resume(instruction="Summarise and stop")).after(v.TakeLease())
    run = run.advances().then(plans=(CallModel(call=C4),))
    assert stage(run, "c3") is CallStage.SEALED
    assert run.state.messages[-1].text == "Summarise and stop"


def test_a_start_from_a_prompt_older_than_the_last_control_is_refused() -> None:
    """The model must not act on words that somebody has just replaced."""
    run = begun.replies(SEARCH)
    seen = run.state.seq
    run = run.when(c.Say(text="psst", urgency="later"))
    run.when(v.StartCall(epoch=E1, call=C2, seen_seq=seen)).then(refused="unseen_control")


def test_an_answer_at_hand_does_not_end_a_run_that_was_redirected() -> None:
    """The redirect was first; there is more to do."""
    run = begun.replies(text="done").when(NEW).advances()
    run.then(phase=Phase.RUNNING, plans=(CallModel(call=C2),))
