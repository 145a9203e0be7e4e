"""A parent that undoes all takes back what its children did, also after they had ended."""

import pytest

from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core.effects import CallModel, Release, Undo
from midrun.core.entries import (
    CallAborted,
    CallDone,
    CallFailed,
    CallUnknown,
    LeaseTaken,
    RunStarted,
    UndoDone,
    UndoStarted,
)
from midrun.core.ids import AskId, CallId, Epoch, FrameId, RunId
from midrun.core.scheduler import plan_effects
from midrun.core.values import Origin, Phase, Traits, UndoSet, Use
from midrun.testing.scenario import LEASED_RUN, Scenario, given
from midrun.text.report import build_report
from midrun.verify.journal import check_journal

PARENT = RunId("run_parent")
DRAFT = Use(tool="draft", args={}, traits=Traits(undo=True))
AIDE = Use(tool="aide", args={"task": "Do"}, kind="child", traits=Traits(undo=True))
OLD_AIDE = Use(tool="aide", args={"task": "Do"}, kind="child")

child = given(
    RunStarted(agent="aide", task="Do", parent=Origin(run=PARENT)), LeaseTaken(epoch=Epoch(1))
)


def done(run: Scenario, call: str) -> Scenario:
    """Let a call return."""
    outcome = CallDone(call=CallId(call), result="ok")
    return run.after(v.CloseCall(epoch=run.state.epoch, outcome=outcome))


def cleaned_up(run: Scenario) -> Scenario:
    """Perform every undo and release that is ordered, until the run has ended."""
    run = run.advances()
    while orders := [o for o in plan_effects(run.state) if isinstance(o, Undo | Release)]:
        call, action, epoch = orders[0].call, orders[0].action, run.state.epoch
        run = run.after(
            v.StartUndo(epoch=epoch, call=call, action=action),
            v.CloseUndo(epoch=epoch, outcome=UndoDone(call=call, action=action)),
        ).advances()
    assert check_journal(run.records) == ()
    return run


def undone(run: Scenario) -> list[tuple[str, str]]:
    """Return what was undone or released, in order."""
    return [(e.call, e.action) for e in run.entries if isinstance(e, UndoStarted)]


# ── the child ─────────────────────────────────────────────────────────────────────────────


def test_what_a_completed_child_did_is_undone_in_reverse_order() -> None:
    """It ends as cancelled, with its output kept; its journal says who took it back."""
    run = done(done(child.replies(DRAFT, DRAFT).starts("c2", "c3"), "c2"), "c3")
    run = run.replies(text="Done.").advances().then(phase=Phase.COMPLETED)
    run = run.when(v.TakeBack(parent=PARENT)).then(phase=Phase.CANCELLING)
    run = cleaned_up(run.after(v.TakeLease())).then(phase=Phase.CANCELLED)
    assert undone(run) == [("c3", "undo"), ("c2", "undo")]
    assert (run.state.output, run.state.phase_by) == ("Done.", f"run:{PARENT}")
    assert [deed.call for deed in build_report(run.state).undone] == ["c3", "c2"]


def test_a_child_that_was_cancelled_alone_gives_up_what_it_had_kept() -> None:
    """That cancel kept finished work; the parent's wants nothing kept."""
    run = done(child.replies(DRAFT).starts("c2"), "c2").when(c.Cancel()).advances()
    assert undone(run) == []
    run = run.when(v.TakeBack(parent=PARENT)).then(phase=Phase.CANCELLING)
    assert undone(cleaned_up(run.after(v.TakeLease()))) == [("c2", "undo")]


def test_there_may_be_nothing_to_take_back() -> None:
    """Then its end stays its end, however often it is asked."""
    run = child.replies(text="Done.").advances().when(v.TakeBack(parent=PARENT))
    run.then(phase=Phase.COMPLETED, already="nothing_to_undo")
    run = done(child.replies(DRAFT).starts("c2"), "c2").when(c.Cancel(undo="all"))
    run = cleaned_up(run).when(v.TakeBack(parent=PARENT))
    run.then(phase=Phase.CANCELLED, already="nothing_to_undo")


def test_nobody_but_its_parent_takes_a_completed_run_back() -> None:
    """For everybody else what is completed is over."""
    run = done(child.replies(DRAFT).starts("c2"), "c2").replies(text="Done.").advances()
    run.when(v.TakeBack(parent=RunId("run_other"))).then(refused="not_its_parent")
    run.when(c.Cancel(undo="all")).then(refused="already_completed")
    alone = (
        done(given(*LEASED_RUN).replies(DRAFT).starts("c2"), "c2").replies(text="x").advances()
    )
    alone.when(v.TakeBack(parent=PARENT)).then(refused="not_its_parent")


# ── the parent ────────────────────────────────────────────────────────────────────────────

began = done(given(*LEASED_RUN).replies(DRAFT, AIDE).starts("c2", "c3"), "c2")


@pytest.mark.parametrize(
    ("undo", "expected"), [("all", [("c3", "undo"), ("c2", "undo")]), ("in_flight", [])]
)
def test_a_child_that_had_completed_is_undone_with_all_and_kept_otherwise(
    undo: UndoSet, expected: list[tuple[str, str]]
) -> None:
    """In its place in the order of everything."""
    assert undone(cleaned_up(done(began, "c3").when(c.Cancel(undo=undo)))) == expected


def test_a_child_in_flight_is_ended_once_and_undoes_as_it_is_ended() -> None:
    """Its release passes the undo set on: a second order would say the same."""
    run = began.when(c.Cancel(undo="all"))
    run = run.after(v.CloseCall(epoch=Epoch(1), outcome=CallAborted(call=CallId("c3"))))
    assert undone(cleaned_up(run)) == [("c3", "release"), ("c2", "undo")]


def test_a_child_that_was_left_behind_gives_up_what_it_had_kept_when_all_is_undone() -> None:
    """It was ended by a redirect, which keeps what is finished."""
    run = began.when(c.Redirect(text="Not that", when="now"))
    run = run.after(v.CloseCall(epoch=Epoch(1), outcome=CallAborted(call=CallId("c3"))))
    run = cleaned_up(run)  # before the next step: its plan is gone
    assert undone(run) == [("c3", "release")]
    run = run.when(c.Cancel(undo="all"))
    assert undone(cleaned_up(run))[1:] == [("c3", "undo"), ("c2", "undo")]


def test_a_child_that_was_given_up_does_not_wait_for_what_is_released_at_the_end() -> None:
    """It is ended before the next step; the order of an end is that of one end."""
    lock = Use(tool="lock", args={}, traits=Traits(release=True))
    run = given(*LEASED_RUN).replies(AIDE, lock).starts("c2", "c3")
    run = run.when(c.Redirect(text="Not that", when="now"))
    for call in ("c2", "c3"):
        run = run.after(v.CloseCall(epoch=Epoch(1), outcome=CallAborted(call=CallId(call))))
    run = cleaned_up(cleaned_up(run).replies(text="Done."))
    run.then(phase=Phase.COMPLETED)
    assert undone(run) == [("c2", "release"), ("c3", "release")]


def test_a_model_call_made_once_more_waits_for_the_end_of_a_child_given_up_meanwhile() -> None:
    """A person dropped its thought while the call was out; then the worker was killed."""
    asks = v.AskPerson(epoch=Epoch(1), call=CallId("c3"), child=True, question="Which?")
    run = began.after(asks).when(c.Say(text="Wait", urgency="now")).advances()
    run = run.starts("c4").when(c.DropFrame(frame=FrameId("f1"))).after(v.TakeLease())
    assert run.entries[-1] == CallUnknown(call=CallId("c4"))
    assert [type(order) for order in plan_effects(run.state)] == [Release]
    run = cleaned_up(run)
    assert undone(run) == [("c3", "release")]
    assert [order for order in plan_effects(run.state) if isinstance(order, CallModel)]


def test_the_end_of_a_child_given_up_waits_for_a_call_that_was_approved_meanwhile() -> None:
    """Nothing is cleaned up while a call is in flight; an order for it would be refused."""
    mail = Use(tool="mail", args={}, traits=Traits(approve="queue"))
    asks = v.AskPerson(epoch=Epoch(1), call=CallId("c3"), child=True, question="Which?")
    run = began.after(asks).when(c.Say(text="Wait", urgency="now")).advances()
    run = run.replies(mail).advances().starts("c6").when(c.DropFrame(frame=FrameId("f1")))
    run = run.when(c.Approve(ask=AskId("a2"))).after(v.TakeLease()).starts("c5")
    assert not [o for o in plan_effects(run.state) if isinstance(o, Release | CallModel)]
    run = cleaned_up(done(run, "c5"))
    assert undone(run) == [("c3", "release")]
    assert [order for order in plan_effects(run.state) if isinstance(order, CallModel)]


def test_a_child_given_up_is_ended_although_the_run_waits_for_somebody() -> None:
    """Else whoever answers the child sets it to work for a thought that was dropped."""
    asks = v.AskPerson(epoch=Epoch(1), call=CallId("c3"), child=True, question="Which?")
    run = began.after(asks).when(c.Say(text="Wait", urgency="now")).advances()
    run = run.replies(Use(tool="ask_human", args={})).starts("c5")
    run = run.after(v.AskPerson(epoch=Epoch(1), call=CallId("c5"), question="Who?")).advances()
    run = run.then(phase=Phase.WAITING).when(c.DropFrame(frame=FrameId("f1")))
    run = run.then(phase=Phase.QUEUED).after(v.TakeLease())
    assert [type(order) for order in plan_effects(run.state)] == [Release]
    run = cleaned_up(run).then(phase=Phase.WAITING)
    assert undone(run) == [("c3", "release")]


def test_a_child_whose_end_was_under_way_when_all_was_to_be_undone_is_undone_as_well() -> None:
    """That end had been ordered by a redirect, and keeps what is finished."""
    run = began.when(c.Redirect(text="Not that", when="now"))
    run = run.after(v.CloseCall(epoch=Epoch(1), outcome=CallAborted(call=CallId("c3"))))
    run = run.advances().after(v.StartUndo(epoch=Epoch(1), call=CallId("c3"), action="release"))
    run = run.when(c.Cancel(undo="all"))
    ended = UndoDone(call=CallId("c3"), action="release")
    run = run.after(v.CloseUndo(epoch=Epoch(1), outcome=ended))
    assert undone(cleaned_up(run)) == [("c3", "release"), ("c3", "undo"), ("c2", "undo")]


def test_a_child_that_failed_is_ended_with_its_parent_and_undone_once() -> None:
    """It rests at its failure, with what it did; its parent's end is its own."""
    failed = CallFailed(call=CallId("c3"), error="no luck")
    run = began.after(v.CloseCall(epoch=Epoch(1), outcome=failed)).when(c.Cancel(undo="all"))
    assert undone(cleaned_up(run)) == [("c3", "release"), ("c2", "undo")]


def test_a_journal_from_before_children_could_be_undone_stays_sound() -> None:
    """Their calls did not say that they have an undo."""
    run = done(given(*LEASED_RUN).replies(OLD_AIDE).starts("c2"), "c2").when(
        c.Cancel(undo="all")
    )
    assert undone(cleaned_up(run)) == []
