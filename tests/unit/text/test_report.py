"""The report: the run, its cancel, and one note for each call."""

from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core.entries import (
    CallDone,
)
from midrun.core.ids import CallId, Epoch
from midrun.core.state import State
from midrun.core.values import Actor, Effect, RequestedCall, Traits
from midrun.text.report import build_report
from midrun.text.status import build_status_line
from tests.unit.core.scenario_steps import leased_run, perform_cleanup, report_aborted

E1 = Epoch(1)
C2 = CallId("c2")
ANN = Actor(name="ann")
CHILD = RequestedCall(
    tool="aide", args={"task": "Look"}, kind="child", traits=Traits(undo=True)
)
DRAFT = RequestedCall(tool="draft", args={}, traits=Traits(undo=True))
INDEX = RequestedCall(tool="index", args={}, traits=Traits(effect=Effect.IDEMPOTENT))
MAIL = RequestedCall(tool="mail", args={})
QUESTION = RequestedCall(tool="ask_human", args={}, traits=Traits(effect=Effect.READ))


def get_stop_notes(state: State) -> dict[str, str]:
    """Return the notes of the calls that were stopped, by tool."""
    return {item.tool: item.note for item in build_report(state).stopped}


def test_the_report_of_a_running_run_has_all_lists() -> None:
    """A missing list could mean that it is empty, or that it was forgotten."""
    text = str(build_report(leased_run.replies(DRAFT).starts("c2").state))
    for title in (
        "Done and kept",
        "Undone",
        "Could not be undone",
        "Unknown whether it happened",
    ):
        assert f"## {title}" in text


def test_a_report_names_the_run_its_agent_and_the_cancel() -> None:
    """The report is copied into tickets, without any other context."""
    run = (
        leased_run.at(1_800_000_005_000_000)
        .when(c.Cancel(by=ANN, reason="too\ndear"))
        .advances()
    )
    report = build_report(run.later(60).when(c.Cancel(by=Actor(name="bo"))).state)
    assert (report.run, report.agent) == (run.state.run, run.state.run_started.agent)
    assert (report.cancelled_by, report.reason) == ("ann", "too dear")
    assert report.cancelled_at == 1_800_000_005_000_000
    text = str(report)
    assert f"- Run: {report.run}, of agent {report.agent}\n" in text
    assert "- Cancel requested: 2027-01-15 08:00:05 UTC, by ann\n- Reason: too dear\n" in text


def test_the_report_of_a_run_that_was_not_cancelled_mentions_no_cancel() -> None:
    report = build_report(leased_run.state)
    assert (report.cancelled_at, report.cancelled_by, report.reason) == (None, "", "")
    assert "Cancel" not in str(report)
    assert "Reason" not in str(report)


def test_a_call_that_a_pause_stopped_is_not_attributed_to_the_later_cancel() -> None:
    run = leased_run.replies(INDEX).starts("c2").when(c.Pause(now=True, by=ANN))
    run = run.after(report_aborted(C2)).advances().when(c.Cancel(by=ANN))
    assert get_stop_notes(run.state) == {"index": "stopped by a pause"}


def test_a_call_that_a_redirect_or_a_halt_stopped_is_attributed_to_it() -> None:
    redirected = leased_run.replies(DRAFT).starts("c2").when(c.Redirect(text="No", when="now"))
    assert get_stop_notes(redirected.after(report_aborted(C2)).state) == {
        "draft": "stopped by a redirect"
    }
    halted = (
        leased_run.replies(INDEX).starts("c2").when(c.Halt(by=ANN)).after(report_aborted(C2))
    )
    assert get_stop_notes(halted.state) == {"index": "stopped by a halt"}


def test_a_call_that_the_cancel_stopped_is_attributed_to_it() -> None:
    run = (
        leased_run.replies(INDEX)
        .starts("c2")
        .when(c.Cancel())
        .after(report_aborted(C2))
        .advances()
    )
    assert get_stop_notes(run.state) == {"index": "the run was cancelled"}


def test_a_call_that_a_shutdown_stopped_is_not_attributed_to_a_pending_pause() -> None:
    """A pause without `now` would have let the call finish."""
    run = leased_run.replies(INDEX).starts("c2").when(c.Pause()).after(report_aborted(C2))
    assert get_stop_notes(run.state) == {"index": ""}


def test_a_question_without_an_answer_is_not_reported_as_stopped_midway() -> None:
    run = leased_run.replies(QUESTION).starts("c2")
    run = run.after(v.AskPerson(epoch=E1, call=C2, question="Which?")).advances()
    run = run.when(c.Cancel(by=ANN))
    assert get_stop_notes(run.state) == {"ask_human": "not answered: the run was cancelled"}


def test_a_child_run_that_was_released_refers_to_its_own_report() -> None:
    """Only the report of the child has the calls that were undone."""
    run = perform_cleanup(
        leased_run.replies(CHILD).starts("c2").when(c.Cancel()).after(report_aborted(C2))
    )
    assert get_stop_notes(run.state) == {"aide": "its own report has the details"}


def test_the_report_of_a_child_run_names_the_parent_that_cancelled_it() -> None:
    """The report has the id of the parent run, the status line has not."""
    run = leased_run.when(c.Cancel(by=Actor(name="run:run_1", role="system"))).advances()
    assert "UTC, by its parent, run_1\n" in str(build_report(run.state))
    assert build_status_line(run.state).by == "its parent"


def test_a_child_run_that_was_taken_back_is_listed_as_undone() -> None:
    """The child may have only read; then it had nothing to undo."""
    run = leased_run.replies(CHILD).starts("c2")
    run = run.after(v.CloseCall(epoch=E1, outcome=CallDone(call=C2, result="ok")))
    (item,) = build_report(perform_cleanup(run.when(c.Cancel(undo="all"))).state).undone
    assert item.note == "the effects of this child run; its own report lists them"
    assert f"by run {item.run} — the effects of this child run" in str(item)


def test_a_reply_prefix_alone_is_not_partial_work() -> None:
    """Midrun writes the prefix after a side question; it is not text of the agent."""
    side_question = leased_run.replies(DRAFT).when(c.Say(by=ANN, text="How far?")).starts("c2")
    run = side_question.after(v.CloseCall(epoch=E1, outcome=CallDone(call=C2))).advances()
    resumed = run.replies(text="Half.").advances()
    prefix = resumed.state.reply_prefix
    assert prefix
    for text in ("", "Next, the mail."):
        continued = resumed.replies(INDEX, text=text)
        assert continued.state.messages[-1].text == f"{prefix}\n\n{text}".rstrip()
        report = build_report(perform_cleanup(continued.when(c.Cancel(by=ANN))).state)
        assert report.phase == "cancelled"
        assert report.partial == (f"{prefix}\n\n{text}" if text else "")
        assert ("## Partial work" in str(report)) is bool(text)


def test_a_cancelled_unknown_call_is_reported_as_unsure() -> None:
    run = leased_run.replies(MAIL).starts("c2").after(v.TakeLease())
    unknown = build_report(run.when(c.Cancel()).advances().state).unsure
    (item,) = unknown
    assert item.note.endswith("the run was cancelled")
