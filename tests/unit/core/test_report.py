"""The report names its run, and says of each call what is true of it and no more."""

from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core.effects import Release, Undo
from midrun.core.entries import CallAborted, CallDone, UndoDone
from midrun.core.ids import CallId, Epoch
from midrun.core.scheduler import plan_effects
from midrun.core.values import Actor, Effect, Traits, Use
from midrun.testing.scenario import LEASED_RUN, Scenario, given
from midrun.text.report import Report, build_report
from midrun.text.status import build_status_line

E1 = Epoch(1)
C2 = CallId("c2")
ANN = Actor(name="ann")
AIDE = Use(tool="aide", args={"task": "Look"}, kind="child", traits=Traits(undo=True))
DRAFT = Use(tool="draft", args={}, traits=Traits(undo=True))
INDEX = Use(tool="index", args={}, traits=Traits(effect=Effect.IDEMPOTENT))
QUESTION = Use(tool="ask_human", args={}, traits=Traits(effect=Effect.READ))

begun = given(*LEASED_RUN)


def aborted(call: CallId) -> v.CloseCall:
    """Return the evidence that a call was stopped."""
    return v.CloseCall(epoch=E1, outcome=CallAborted(call=call))


def notes(told: Report) -> dict[str, str]:
    """Return what is said of each call that was stopped."""
    return {deed.tool: deed.note for deed in told.stopped}


def cleaned_up(run: Scenario) -> Scenario:
    """Perform what a cancel orders."""
    while orders := [o for o in plan_effects(run.state) if isinstance(o, Undo | Release)]:
        call, action = orders[0].call, orders[0].action
        run = run.after(
            v.StartUndo(epoch=E1, call=call, action=action),
            v.CloseUndo(epoch=E1, outcome=UndoDone(call=call, action=action)),
        )
    return run.advances()


def test_a_report_names_the_run_and_who_cancelled_it_when_and_why() -> None:
    """It is copied into tickets, where nothing else says whose it is."""
    run = begun.at(1_800_000_005_000_000).when(c.Cancel(by=ANN, reason="too\ndear")).advances()
    told = build_report(run.later(60).when(c.Cancel(by=Actor(name="bo"))).state)
    assert (told.run, told.agent) == (run.state.run, run.state.run_started.agent)
    assert (told.cancelled_by, told.reason) == ("ann", "too dear")
    assert told.cancelled_at == 1_800_000_005_000_000
    said = str(told)
    assert f"- Run: {told.run}, of agent {told.agent}\n" in said
    assert "- Cancel requested: 2027-01-15 08:00:05 UTC, by ann\n- Reason: too dear\n" in said


def test_a_run_that_nobody_cancelled_says_nothing_of_a_cancel() -> None:
    """An empty line would read as if somebody had, and had no name."""
    told = build_report(begun.state)
    assert (told.cancelled_at, told.cancelled_by, told.reason) == (None, "", "")
    assert "Cancel" not in str(told)
    assert "Reason" not in str(told)


def test_a_call_that_a_pause_had_stopped_was_not_stopped_by_the_cancel_after_it() -> None:
    """Whoever reads the report looks for the one who stopped it."""
    run = begun.replies(INDEX).starts("c2").when(c.Pause(now=True, by=ANN))
    run = run.after(aborted(C2)).advances().when(c.Cancel(by=ANN))
    assert notes(build_report(run.state)) == {"index": "stopped by a pause"}


def test_a_call_that_a_redirect_or_a_halt_had_stopped_says_so_too() -> None:
    """A cancel that comes later changes nothing about it."""
    redirected = begun.replies(DRAFT).starts("c2").when(c.Redirect(text="No", when="now"))
    assert notes(build_report(redirected.after(aborted(C2)).state)) == {
        "draft": "stopped by a redirect"
    }
    halted = begun.replies(INDEX).starts("c2").when(c.Halt(by=ANN)).after(aborted(C2))
    assert notes(build_report(halted.state)) == {"index": "stopped by a halt"}


def test_a_call_that_the_cancel_stopped_says_that_it_did() -> None:
    """What it was sealed with is true then."""
    run = begun.replies(INDEX).starts("c2").when(c.Cancel()).after(aborted(C2)).advances()
    assert notes(build_report(run.state)) == {"index": "the run was cancelled"}


def test_a_call_that_a_shutdown_stopped_while_a_pause_let_it_finish_is_not_the_pauses() -> None:
    """That pause would have waited for it."""
    run = begun.replies(INDEX).starts("c2").when(c.Pause()).after(aborted(C2))
    assert notes(build_report(run.state)) == {"index": ""}


def test_a_question_that_nobody_answered_was_not_stopped_midway() -> None:
    """There was nothing to stop: it waited."""
    run = begun.replies(QUESTION).starts("c2")
    run = run.after(v.AskPerson(epoch=E1, call=C2, question="Which?")).advances()
    run = run.when(c.Cancel(by=ANN))
    assert notes(build_report(run.state)) == {
        "ask_human": "not answered: the run was cancelled"
    }


def test_of_a_child_that_was_ended_only_its_own_run_knows_what_it_undid() -> None:
    """Its parent's report has nothing under *Undone*, which must not read as: nothing was."""
    run = cleaned_up(begun.replies(AIDE).starts("c2").when(c.Cancel()).after(aborted(C2)))
    assert notes(build_report(run.state)) == {"aide": "its own report has the details"}


def test_the_report_of_a_child_calls_its_parent_so() -> None:
    """An actor called `run:run_1` is nobody to a person; where to look stands beside it."""
    run = begun.when(c.Cancel(by=Actor(name="run:run_1", role="system"))).advances()
    assert "UTC, by its parent, run_1\n" in str(build_report(run.state))
    assert build_status_line(run.state).by == "its parent"


def test_of_a_child_that_was_taken_back_only_its_own_run_knows_what_it_had_done() -> None:
    """It may only have read: then nothing of it was undone."""
    run = begun.replies(AIDE).starts("c2")
    run = run.after(v.CloseCall(epoch=E1, outcome=CallDone(call=C2, result="ok")))
    (deed,) = build_report(cleaned_up(run.when(c.Cancel(undo="all"))).state).undone
    assert deed.note == "all its work, if any"
    assert f"by run {deed.run} — all its work, if any" in str(deed)


def test_the_way_back_in_the_runtimes_own_words_is_no_partial_work() -> None:
    """A reply that begins with it and only makes calls has said nothing of its own."""
    asked = begun.replies(DRAFT).when(c.Say(by=ANN, text="How far?")).starts("c2")
    run = asked.after(v.CloseCall(epoch=E1, outcome=CallDone(call=C2))).advances()
    back = run.replies(text="Half.").advances()
    for text, partial in (("", ""), ("Next, the mail.", "Next, the mail.")):
        gone_on = back.replies(INDEX, text=text)
        prefix = "Back to *Sort the mail* — step 1"
        assert gone_on.state.messages[-1].text == f"{prefix}\n\n{text}".rstrip()
        told = build_report(cleaned_up(gone_on.when(c.Cancel(by=ANN))).state)
        assert told.phase == "cancelled"
        assert told.partial == (f"{prefix}\n\n{partial}" if partial else "")
        assert ("## Partial work" in str(told)) is bool(partial)
