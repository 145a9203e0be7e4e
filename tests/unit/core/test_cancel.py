"""Cancel: the calls that are aborted, undone and released, their order, and child runs."""

import pytest

from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core.entries import (
    CallAborted,
    CallDone,
    CallFailed,
    CallUnknown,
    LeaseTaken,
    RunCancelled,
    RunStarted,
    UndoDone,
    UndoFailed,
)
from midrun.core.ids import AskId, CallId, Epoch, FrameId, RunId
from midrun.core.run_head import build_head
from midrun.core.scheduler import (
    AbortCall,
    ControlChild,
    list_effects,
)
from midrun.core.values import Actor, Effect, Origin, Phase, RequestedCall, Traits, UndoSet
from midrun.testing.scenario import LEASED_RUN, given
from midrun.text.report import build_report
from tests.unit.core.scenario_steps import (
    end_call,
    finish_call,
    get_call,
    is_sound,
    leased_run,
    list_cleanups,
    perform_cleanup,
    report_aborted,
    report_done,
)

E1, E2 = Epoch(1), Epoch(2)
C2, C3 = CallId("c2"), CallId("c3")
OLGA = Actor(name="olga", role="operator")
PARENT = RunId("run_parent")
DRAFT = RequestedCall(tool="draft", args={}, traits=Traits(undo=True))
IDEMPOTENT_DRAFT = RequestedCall(
    tool="draft", traits=Traits(undo=True, effect=Effect.IDEMPOTENT)
)
PUT = RequestedCall(
    tool="put", args={}, traits=Traits(effect=Effect.IDEMPOTENT, undo=True, release=True)
)
LOCK = RequestedCall(tool="lock", args={}, traits=Traits(release=True))
MAIL = RequestedCall(tool="mail", args={})
CHILD = RequestedCall(tool="aide", args={"task": "Do"}, kind="child", traits=Traits(undo=True))
CHILD_WITHOUT_UNDO = RequestedCall(tool="aide", args={"task": "Do"}, kind="child")

drafting = leased_run.replies(DRAFT, DRAFT).starts("c2", "c3")


# ── calls ──────────────────────────────────────────────────────────────────────────────


def test_a_cancel_aborts_the_calls_in_flight_and_no_other_call_starts() -> None:
    run = drafting.when(c.Cancel()).then(phase=Phase.CANCELLING)
    aborts = (AbortCall(call=C2, reason="cancelled"), AbortCall(call=C3, reason="cancelled"))
    run.then(starts=(), effects=aborts)


def test_an_aborted_call_is_undone() -> None:
    """It may have taken effect: a mail may have left before its connection was closed."""
    run = drafting.after(report_done(C2)).when(c.Cancel()).after(report_aborted(C3))
    run = perform_cleanup(run).then(phase=Phase.CANCELLED)
    assert list_cleanups(run) == [("c3", "undo")]
    assert [item.call for item in build_report(run.state).done] == ["c2"]


def test_a_call_that_finishes_after_the_cancel_request_is_undone_too() -> None:
    """It was in flight when the cancel was requested."""
    run = drafting.when(c.Cancel()).after(report_done(C2), report_done(C3))
    assert list_cleanups(perform_cleanup(run)) == [("c3", "undo"), ("c2", "undo")]


def test_a_call_that_fails_after_a_cancel_request_is_undone() -> None:
    """An error is no proof that the call had no effect."""
    run = leased_run.replies(DRAFT).starts("c2").when(c.Cancel())
    run = run.after(v.CloseCall(epoch=E1, outcome=CallFailed(call=C2, error="cut off")))
    run = run.then(cleans=((C2, "undo"),)).cleans(C2)
    run.after(v.CloseCleanup(epoch=E1, outcome=UndoDone(call=C2))).advances().then(
        phase=Phase.CANCELLED
    )


@pytest.mark.parametrize(("undo", "expected"), [("in_flight", []), ("all", ["c3", "c2"])])
def test_a_cancel_keeps_finished_calls_unless_it_undoes_all(
    undo: UndoSet, expected: list[str]
) -> None:
    run = drafting.after(report_done(C2), report_done(C3)).when(c.Cancel(undo=undo))
    assert [call for call, _ in list_cleanups(perform_cleanup(run))] == expected


def test_calls_are_undone_in_reverse_order_of_their_ends() -> None:
    """The order of the starts does not matter."""
    run = drafting.after(report_done(C3), report_done(C2)).when(c.Cancel(undo="all"))
    assert list_cleanups(perform_cleanup(run)) == [("c2", "undo"), ("c3", "undo")]


def test_a_resource_is_released_when_the_run_is_cancelled_or_completed() -> None:
    locked = leased_run.replies(LOCK).starts("c2").after(report_done(C2))
    assert list_cleanups(perform_cleanup(locked.when(c.Cancel()))) == [("c2", "release")]
    completed = perform_cleanup(locked.replies(text="done")).then(phase=Phase.COMPLETED)
    assert list_cleanups(completed) == [("c2", "release")]


def test_a_cancel_seals_the_calls_that_never_started() -> None:
    """A provider refuses a history with an open tool call."""
    run = leased_run.replies(MAIL, MAIL).starts("c2").when(c.Cancel())
    run = run.after(report_aborted(C2)).advances().then(phase=Phase.CANCELLED)
    assert [item.call for item in build_report(run.state).never_started] == ["c3"]
    assert run.state.open_calls == ()


def test_an_unknown_call_stays_in_the_undo_set_after_another_attempt() -> None:
    """The end of the second attempt says nothing about the first."""
    run = leased_run.replies(IDEMPOTENT_DRAFT).starts("c2").after(v.TakeLease())
    call = get_call(run)
    assert call.may_have_happened
    run = run.starts("c2").when(c.Cancel())
    run = run.after(v.CloseCall(epoch=E2, outcome=CallAborted(call=C2)))
    assert list_cleanups(perform_cleanup(run)) == [("c2", "undo")]


def test_a_call_is_undone_if_one_attempt_was_aborted_and_the_next_failed() -> None:
    """The first attempt may have taken effect."""
    run = (
        leased_run.replies(IDEMPOTENT_DRAFT)
        .starts("c2")
        .when(c.Pause(now=True))
        .after(report_aborted(C2))
    )
    run = run.advances().when(c.Resume()).after(v.TakeLease()).starts("c2")
    run = run.after(v.CloseCall(epoch=E2, outcome=CallFailed(call=C2, error="no")))
    assert list_cleanups(perform_cleanup(run.when(c.Cancel()))) == [("c2", "undo")]


def test_a_cancelled_run_waits_for_the_undo_of_an_aborted_and_then_failed_call() -> None:
    """I28: the failure of the second attempt says nothing about the first."""
    run = end_call(leased_run.replies(PUT).starts("c2"), CallAborted(call=C2)).starts("c2")
    run = end_call(run, CallFailed(call=C2, error="no")).when(c.Cancel()).advances()
    assert is_sound(run.then(phase=Phase.CANCELLING))


def test_an_unknown_call_with_undo_unknown_false_is_reported_and_not_undone() -> None:
    """The undo of a call that never happened could do damage."""
    certain_only = RequestedCall(tool="draft", traits=Traits(undo=True, undo_unknown=False))
    run = leased_run.replies(certain_only).starts("c2").when(c.Cancel())
    run = perform_cleanup(run.after(v.CloseCall(epoch=E1, outcome=CallUnknown(call=C2))))
    run = run.advances().then(phase=Phase.CANCELLED)
    assert [item.call for item in build_report(run.state).not_undone] == ["c2"]


def test_an_undo_that_fails_every_attempt_becomes_residue_and_the_others_run() -> None:
    """The cancel ends, its report is not clean, and `RetryUndo` undoes the residue."""
    run = drafting.when(c.Cancel()).after(report_done(C2), report_done(C3))
    failed = UndoFailed(call=C3, error="403")
    for _ in range(5):
        run = run.then(cleans=((C3, "undo"),))
        run = run.cleans(C3).after(v.CloseCleanup(epoch=E1, outcome=failed))
    run = perform_cleanup(run.advances()).then(phase=Phase.CANCELLED)
    assert [item.call for item in run.state.residue] == ["c3"]
    report = build_report(run.state)
    assert (
        [item.call for item in report.not_undone],
        [item.call for item in report.undone],
    ) == (
        ["c3"],
        ["c2"],
    )
    assert not report.clean
    retried = run.when(c.RetryUndo()).then(phase=Phase.CANCELLING).after(v.TakeLease())
    assert perform_cleanup(retried).state.residue == ()


def test_an_undo_that_did_not_stop_becomes_residue_after_one_attempt() -> None:
    """A second attempt could run beside the first. The other undos still run."""
    run = drafting.when(c.Cancel()).after(report_done(C2), report_done(C3))
    assert not build_report(run.state).clean
    failed = UndoFailed(call=C3, error="it did not stop", final=True)
    run = run.cleans(C3).after(v.CloseCleanup(epoch=E1, outcome=failed))
    run = perform_cleanup(run.advances()).then(phase=Phase.CANCELLED)
    assert [item.call for item in run.state.residue] == ["c3"]
    assert not build_report(run.state).clean


def test_an_undo_whose_worker_died_is_started_again_by_the_next_worker() -> None:
    """Both attempts have the same key, so the second is safe."""
    run = drafting.when(c.Cancel()).after(report_done(C2), report_done(C3))
    run = run.cleans(C3).after(v.TakeLease())
    run.then(phase=Phase.CANCELLING, cleans=((C3, "undo"),))


def test_accepted_residue_needs_no_attention() -> None:
    """This also holds for a completed run that could not release a resource."""
    run = leased_run.replies(LOCK).starts("c2")
    run = run.after(v.CloseCall(epoch=E1, outcome=CallDone(call=C2))).replies(text="done")
    failed = UndoFailed(call=C2, action="release", error="403")
    for _ in range(5):
        run = (
            run.then(cleans=((C2, "release"),))
            .cleans(C2, "release")
            .after(
                v.CloseCleanup(epoch=E1, outcome=failed),
            )
        )
    run = run.advances().then(phase=Phase.COMPLETED)
    assert build_head(run.state).attention == "residue"
    run = run.when(c.AcceptResidue(by=OLGA))
    assert build_head(run.state).attention == ""
    run.when(c.AcceptResidue()).then(refused="no_residue")


# ── the end of the run ─────────────────────────────────────────────────────────────────


def test_a_cancel_of_a_queued_run_ends_it_at_once() -> None:
    """There is no call to undo, so no worker is needed."""
    run = given(LEASED_RUN[0]).when(c.Cancel()).then(phase=Phase.CANCELLED)
    assert isinstance(run.entries[-1], RunCancelled)


def test_a_second_cancel_is_a_no_op_and_one_after_completion_is_refused() -> None:
    drafting.when(c.Cancel(), c.Cancel()).then(already="already_cancelling")
    leased_run.replies(text="done").advances().when(c.Cancel()).then(
        refused="already_completed"
    )


def test_the_last_text_before_a_cancel_becomes_the_output() -> None:
    run = leased_run.replies(MAIL, text="I will mail Bo").starts("c2")
    run = run.when(c.Cancel()).after(report_aborted(C2)).advances()
    assert run.state.output == "I will mail Bo"


def test_a_cancel_returns_the_texts_of_pending_redirects_and_messages() -> None:
    run = drafting.when(c.Redirect(text="other way"), c.Say(text="why?"), c.Cancel())
    assert run.state.pending == ()
    texts = [
        getattr(entry, "text", "") for entry in run.entries if "Closed" in str(type(entry))
    ]
    assert texts == ["other way", "why?"]


def test_a_cancel_while_halted_is_journaled_at_once_and_undoes_after_the_lift() -> None:
    """Asks and frames are closed at once."""
    run = drafting.after(report_done(C2), report_done(C3)).when(c.Halt(), c.Cancel(undo="all"))
    run = run.then(phase=Phase.HALTED).when(c.Cancel()).then(already="already_cancelling")
    run = run.when(c.Lift()).then(phase=Phase.CANCELLING)
    assert list_cleanups(perform_cleanup(run)) == [("c3", "undo"), ("c2", "undo")]


def test_only_a_halt_interrupts_an_undo() -> None:
    run = drafting.when(c.Cancel()).after(report_done(C2), report_done(C3))
    run = run.cleans(C3)
    for control in (c.Pause(), c.Resume(), c.Redirect(text="x"), c.Say(text="x")):
        run.when(control).then(refused="is_cancelling")
    run.when(c.Halt()).then(phase=Phase.HALTED)


def test_a_run_is_not_cancelled_while_a_call_is_in_flight_or_not_yet_undone() -> None:
    run = drafting.when(c.Cancel()).advances().then(phase=Phase.CANCELLING)
    run = run.after(report_aborted(C2), report_aborted(C3)).advances()
    run.then(phase=Phase.CANCELLING)


# ── child runs: the parent ─────────────────────────────────────────────────────────────


CHILD_ASK = v.AskPerson(epoch=E1, call=C3, child=True, question="Which?")
DROP_FRAME = c.DropFrame(frame=FrameId("f1"))
with_child = finish_call(leased_run.replies(DRAFT, CHILD).starts("c2", "c3"), "c2")


def test_a_cancel_is_sent_to_child_runs_first_with_its_undo_set() -> None:
    """A child run undoes its calls before its parent undoes other calls."""
    run = leased_run.replies(CHILD_WITHOUT_UNDO).starts("c2").when(c.Cancel(undo="all"))
    effect = list_effects(run.state)[0]
    assert isinstance(effect, ControlChild)
    assert (effect.control, effect.undo, effect.now) == ("cancel", "all", True)


def test_a_child_run_that_asks_is_released_when_its_parent_is_cancelled() -> None:
    """The parent holds the child run even if its tool declares no release."""
    asking = v.AskPerson(epoch=E1, call=C2, question="ok?", child=True)
    run = (
        leased_run.replies(CHILD_WITHOUT_UNDO)
        .starts("c2")
        .after(asking)
        .advances()
        .when(c.Cancel())
    )
    run = run.then(phase=Phase.CANCELLING).after(v.TakeLease())
    run.then(cleans=((C2, "release"),))


@pytest.mark.parametrize(
    ("undo", "expected"), [("all", [("c3", "undo"), ("c2", "undo")]), ("in_flight", [])]
)
def test_a_completed_child_is_undone_only_if_the_cancel_undoes_all(
    undo: UndoSet, expected: list[tuple[str, str]]
) -> None:
    assert (
        list_cleanups(perform_cleanup(finish_call(with_child, "c3").when(c.Cancel(undo=undo))))
        == expected
    )


def test_a_child_in_flight_is_released_and_not_undone_as_well() -> None:
    """The release passes the undo set to the child."""
    run = with_child.when(c.Cancel(undo="all"))
    run = run.after(v.CloseCall(epoch=E1, outcome=CallAborted(call=C3)))
    assert list_cleanups(perform_cleanup(run)) == [("c3", "release"), ("c2", "undo")]


def test_a_child_that_a_redirect_released_is_undone_by_a_later_cancel_of_all() -> None:
    """The release after a redirect keeps the finished calls of the child."""
    run = with_child.when(c.Redirect(text="Not that", when="now"))
    run = run.after(v.CloseCall(epoch=E1, outcome=CallAborted(call=C3)))
    run = perform_cleanup(run)  # between two steps
    assert list_cleanups(run) == [("c3", "release")]
    run = run.when(c.Cancel(undo="all"))
    assert list_cleanups(perform_cleanup(run))[1:] == [("c3", "undo"), ("c2", "undo")]


def test_a_child_that_a_redirect_aborted_is_released_before_the_next_step() -> None:
    """Other resources are released at the end of the run."""
    run = leased_run.replies(CHILD, LOCK).starts("c2", "c3")
    run = run.when(c.Redirect(text="Not that", when="now"))
    for call in ("c2", "c3"):
        run = run.after(v.CloseCall(epoch=E1, outcome=CallAborted(call=CallId(call))))
    run = perform_cleanup(perform_cleanup(run).replies(text="Done."))
    run.then(phase=Phase.COMPLETED)
    assert list_cleanups(run) == [("c2", "release"), ("c3", "release")]


def test_a_repeated_model_call_waits_for_the_release_of_a_dropped_child() -> None:
    """The frame of the child was dropped during the call; then the worker died."""
    run = with_child.after(CHILD_ASK).when(c.Say(text="Wait", urgency="now")).advances()
    run = run.starts("c4").when(DROP_FRAME).after(v.TakeLease())
    assert run.entries[-1] == CallUnknown(call=CallId("c4"))
    run.then(starts=(), cleans=((C3, "release"),))
    run = perform_cleanup(run)
    assert list_cleanups(run) == [("c3", "release")]
    assert run.next_starts


def test_the_release_of_a_dropped_child_waits_for_a_call_in_flight() -> None:
    """No cleanup starts while a call is in flight; `decide` would refuse it."""
    mail = RequestedCall(tool="mail", args={}, traits=Traits(approve="queue"))
    run = with_child.after(CHILD_ASK).when(c.Say(text="Wait", urgency="now")).advances()
    run = run.replies(mail).advances().starts("c6").when(DROP_FRAME)
    run = run.when(c.Approve(ask=AskId("a2"))).after(v.TakeLease()).starts("c5")
    assert not run.next_starts
    run = perform_cleanup(finish_call(run, "c5"))
    assert list_cleanups(run) == [("c3", "release")]
    assert run.next_starts


def test_a_dropped_child_is_released_although_the_run_waits_for_an_answer() -> None:
    """Otherwise an answer to the child would start work on a dropped topic."""
    run = with_child.after(CHILD_ASK).when(c.Say(text="Wait", urgency="now")).advances()
    run = run.replies(RequestedCall(tool="ask_human", args={})).starts("c5")
    run = run.after(v.AskPerson(epoch=E1, call=CallId("c5"), question="Who?")).advances()
    run = run.then(phase=Phase.WAITING).when(DROP_FRAME)
    run = run.then(phase=Phase.QUEUED).after(v.TakeLease())
    run.then(starts=(), cleans=((C3, "release"),))
    run = perform_cleanup(run).then(phase=Phase.WAITING)
    assert list_cleanups(run) == [("c3", "release")]


def test_a_child_whose_release_is_in_flight_at_a_cancel_of_all_is_undone_too() -> None:
    """A redirect caused that release, which keeps finished calls."""
    run = with_child.when(c.Redirect(text="Not that", when="now"))
    run = run.after(v.CloseCall(epoch=E1, outcome=CallAborted(call=C3)))
    run = run.advances().cleans(C3, "release")
    run = run.when(c.Cancel(undo="all"))
    released = UndoDone(call=C3, action="release")
    run = run.after(v.CloseCleanup(epoch=E1, outcome=released))
    assert list_cleanups(perform_cleanup(run)) == [
        ("c3", "release"),
        ("c3", "undo"),
        ("c2", "undo"),
    ]


def test_a_failed_child_is_released_with_its_parent_and_not_undone_as_well() -> None:
    """The release cancels the failed child, which undoes its calls."""
    failed = CallFailed(call=C3, error="no luck")
    run = with_child.after(v.CloseCall(epoch=E1, outcome=failed)).when(c.Cancel(undo="all"))
    assert list_cleanups(perform_cleanup(run)) == [("c3", "release"), ("c2", "undo")]


def test_a_journal_from_before_child_runs_had_an_undo_stays_sound() -> None:
    run = finish_call(leased_run.replies(CHILD_WITHOUT_UNDO).starts("c2"), "c2").when(
        c.Cancel(undo="all")
    )
    assert list_cleanups(perform_cleanup(run)) == []


# ── child runs: the child ──────────────────────────────────────────────────────────────


leased_child = given(
    RunStarted(agent="aide", task="Do", parent=Origin(run=PARENT)), LeaseTaken(epoch=E1)
)


def test_take_back_undoes_the_calls_of_a_completed_child_in_reverse_order() -> None:
    """The child ends as cancelled by its parent, and keeps its output."""
    run = finish_call(
        finish_call(leased_child.replies(DRAFT, DRAFT).starts("c2", "c3"), "c2"), "c3"
    )
    run = run.replies(text="Done.").advances().then(phase=Phase.COMPLETED)
    run = run.when(v.TakeBack(parent=PARENT)).then(phase=Phase.CANCELLING)
    run = perform_cleanup(run.after(v.TakeLease())).then(phase=Phase.CANCELLED)
    assert list_cleanups(run) == [("c3", "undo"), ("c2", "undo")]
    assert (run.state.output, run.state.phase_by) == ("Done.", f"run:{PARENT}")
    assert [item.call for item in build_report(run.state).undone] == ["c3", "c2"]


def test_take_back_undoes_calls_that_an_earlier_cancel_of_the_child_kept() -> None:
    run = (
        finish_call(leased_child.replies(DRAFT).starts("c2"), "c2").when(c.Cancel()).advances()
    )
    assert list_cleanups(run) == []
    run = run.when(v.TakeBack(parent=PARENT)).then(phase=Phase.CANCELLING)
    assert list_cleanups(perform_cleanup(run.after(v.TakeLease()))) == [("c2", "undo")]


def test_take_back_is_a_no_op_if_the_child_has_nothing_to_undo() -> None:
    run = leased_child.replies(text="Done.").advances().when(v.TakeBack(parent=PARENT))
    run.then(phase=Phase.COMPLETED, already="nothing_to_undo")
    run = finish_call(leased_child.replies(DRAFT).starts("c2"), "c2").when(c.Cancel(undo="all"))
    run = perform_cleanup(run).when(v.TakeBack(parent=PARENT))
    run.then(phase=Phase.CANCELLED, already="nothing_to_undo")


def test_take_back_is_refused_unless_it_comes_from_the_parent() -> None:
    """A completed run without such a parent stays completed."""
    run = (
        finish_call(leased_child.replies(DRAFT).starts("c2"), "c2")
        .replies(text="Done.")
        .advances()
    )
    run.when(v.TakeBack(parent=RunId("run_other"))).then(refused="not_its_parent")
    run.when(c.Cancel(undo="all")).then(refused="already_completed")
    without_parent = (
        finish_call(leased_run.replies(DRAFT).starts("c2"), "c2").replies(text="x").advances()
    )
    without_parent.when(v.TakeBack(parent=PARENT)).then(refused="not_its_parent")
