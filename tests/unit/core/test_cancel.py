"""Cancel really cancels, and cleans up: nothing new, everything answered, undone in order."""

import pytest

from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core.effects import AbortCall, ControlChild, Release, Settle, Undo
from midrun.core.entries import (
    CallAborted,
    CallDone,
    CallFailed,
    CallUnknown,
    RunCancelled,
    UndoDone,
    UndoFailed,
    UndoStarted,
)
from midrun.core.ids import CallId, Epoch
from midrun.core.scheduler import plan_effects
from midrun.core.values import CleanupAction, Effect, Phase, Traits, UndoSet, Use
from midrun.testing.scenario import LEASED_RUN, Scenario, given
from midrun.text.report import build_report

E1 = Epoch(1)
C2, C3 = CallId("c2"), CallId("c3")
DRAFT = Use(tool="draft", args={}, traits=Traits(undo=True))
LOCK = Use(tool="lock", args={}, traits=Traits(release=True))
MAIL = Use(tool="mail", args={})

begun = given(*LEASED_RUN)
drafting = begun.replies(DRAFT, DRAFT).starts("c2", "c3")


def ended(call: CallId, epoch: Epoch = E1) -> v.CloseCall:
    """Return the evidence that a call returned."""
    return v.CloseCall(epoch=epoch, outcome=CallDone(call=call, result="ok"))


def aborted(call: CallId) -> v.CloseCall:
    """Return the evidence that a call was stopped within its grace."""
    return v.CloseCall(epoch=E1, outcome=CallAborted(call=call))


def cleaned_up(run: Scenario) -> Scenario:
    """Perform every undo and release that is ordered, until the run has ended."""
    while orders := [o for o in plan_effects(run.state) if isinstance(o, Undo | Release)]:
        call, action, epoch = orders[0].call, orders[0].action, run.state.epoch
        run = run.after(
            v.StartUndo(epoch=epoch, call=call, action=action),
            v.CloseUndo(epoch=epoch, outcome=UndoDone(call=call, action=action)),
        )
    return run.advances()


def undone(run: Scenario) -> list[tuple[str, CleanupAction]]:
    """Return what was undone or released, in order."""
    return [(e.call, e.action) for e in run.entries if isinstance(e, UndoStarted)]


def test_a_cancel_aborts_the_calls_in_flight_and_starts_nothing() -> None:
    """From the moment it is in the journal, by any process."""
    run = drafting.when(c.Cancel()).then(phase=Phase.CANCELLING)
    aborts = (AbortCall(call=C2, reason="cancelled"), AbortCall(call=C3, reason="cancelled"))
    run.then(plans=aborts)
    start = v.StartCall(epoch=E1, call=CallId("c4"), seen_seq=run.state.seq)
    run.when(start).then(refused="is_cancelling")


def test_an_aborted_call_is_undone_because_it_may_have_taken_effect() -> None:
    """Aborted is not undone: the mail may have left before the socket closed."""
    run = drafting.after(ended(C2)).when(c.Cancel()).after(aborted(C3))
    run = cleaned_up(run).then(phase=Phase.CANCELLED)
    assert undone(run) == [("c3", "undo")]
    assert [deed.call for deed in build_report(run.state).done] == ["c2"]


def test_a_call_in_flight_that_finishes_under_a_cancel_is_undone_too() -> None:
    """It was in flight when the user said cancel."""
    run = drafting.when(c.Cancel()).after(ended(C2), ended(C3))
    assert undone(cleaned_up(run)) == [("c3", "undo"), ("c2", "undo")]


@pytest.mark.parametrize(("undo", "expected"), [("in_flight", []), ("all", ["c3", "c2"])])
def test_finished_work_is_kept_unless_everything_is_to_be_undone(
    undo: UndoSet, expected: list[str]
) -> None:
    """The default keeps what is done; undoing all goes in reverse order of completion."""
    run = drafting.after(ended(C2), ended(C3)).when(c.Cancel(undo=undo))
    assert [call for call, _ in undone(cleaned_up(run))] == expected


def test_undo_runs_in_reverse_order_of_the_last_closing() -> None:
    """What was finished last goes first, whatever was started first."""
    run = drafting.after(ended(C3), ended(C2)).when(c.Cancel(undo="all"))
    assert undone(cleaned_up(run)) == [("c2", "undo"), ("c3", "undo")]


def test_what_is_held_is_released_however_the_run_ends() -> None:
    """Cancelled or completed: nobody else should wait for our lock."""
    locked = begun.replies(LOCK).starts("c2").after(ended(C2))
    assert undone(cleaned_up(locked.when(c.Cancel()))) == [("c2", "release")]
    completed = cleaned_up(locked.replies(text="done")).then(phase=Phase.COMPLETED)
    assert undone(completed) == [("c2", "release")]


def test_an_unknown_call_stays_in_the_undo_set_after_a_later_clean_end() -> None:
    """Unknown sticks: a failed second attempt says nothing about the first."""
    idempotent = Use(tool="draft", traits=Traits(undo=True, effect=Effect.IDEMPOTENT))
    run = begun.replies(idempotent).starts("c2").after(v.TakeLease())
    call = run.state.find_call("c2")
    assert call is not None
    assert call.may_have_happened
    run = run.starts("c2").when(c.Cancel())
    run = run.after(v.CloseCall(epoch=Epoch(2), outcome=CallAborted(call=C2)))
    assert undone(cleaned_up(run)) == [("c2", "undo")]


def test_an_attempt_that_was_stopped_counts_even_if_the_next_one_failed() -> None:
    """The first may have taken effect; the failure speaks only of the second."""
    idempotent = Use(tool="draft", traits=Traits(undo=True, effect=Effect.IDEMPOTENT))
    run = begun.replies(idempotent).starts("c2").when(c.Pause(now=True)).after(aborted(C2))
    run = run.advances().when(c.Resume()).after(v.TakeLease()).starts("c2")
    run = run.after(v.CloseCall(epoch=Epoch(2), outcome=CallFailed(call=C2, error="no")))
    assert undone(cleaned_up(run.when(c.Cancel()))) == [("c2", "undo")]


def test_a_tool_whose_undo_needs_certainty_is_reported_instead_of_guessed() -> None:
    """Undoing what never happened can be a second mistake."""
    careful = Use(tool="draft", traits=Traits(undo=True, undo_unknown=False))
    run = begun.replies(careful).starts("c2").when(c.Cancel())
    run = cleaned_up(run.after(v.CloseCall(epoch=E1, outcome=CallUnknown(call=C2))))
    run = run.advances().then(phase=Phase.CANCELLED)
    assert [deed.call for deed in build_report(run.state).not_undone] == ["c2"]


def test_an_undo_that_fails_for_ever_becomes_residue_and_the_others_still_run() -> None:
    """Not an endless cancelling, and not a silent cancelled."""
    run = drafting.when(c.Cancel()).after(ended(C2), ended(C3))
    failed = UndoFailed(call=C3, error="403")
    for _ in range(5):
        run = run.then(plans=(Undo(call=C3),))
        run = run.after(v.StartUndo(epoch=E1, call=C3), v.CloseUndo(epoch=E1, outcome=failed))
    run = cleaned_up(run.advances()).then(phase=Phase.CANCELLED)
    assert [left.call for left in run.state.residue] == ["c3"]
    found = build_report(run.state)
    assert ([d.call for d in found.not_undone], [d.call for d in found.undone]) == (
        ["c3"],
        ["c2"],
    )
    assert not found.clean
    retried = run.when(c.RetryUndo()).then(phase=Phase.CANCELLING).after(v.TakeLease())
    assert cleaned_up(retried).state.residue == ()


def test_an_undo_that_did_not_stop_becomes_residue_after_one_attempt() -> None:
    """A second attempt could run beside the first; the others still run."""
    run = drafting.when(c.Cancel()).after(ended(C2), ended(C3))
    assert not build_report(run.state).clean
    failed = UndoFailed(call=C3, error="it did not stop", final=True)
    run = run.after(v.StartUndo(epoch=E1, call=C3), v.CloseUndo(epoch=E1, outcome=failed))
    run = cleaned_up(run.advances()).then(phase=Phase.CANCELLED)
    assert [left.call for left in run.state.residue] == ["c3"]
    assert not build_report(run.state).clean


def test_a_driver_that_dies_in_an_undo_leaves_it_to_the_next_under_the_same_order() -> None:
    """The key is the same, so a second attempt is safe."""
    run = drafting.when(c.Cancel()).after(ended(C2), ended(C3))
    run = run.after(v.StartUndo(epoch=E1, call=C3), v.TakeLease())
    run.then(phase=Phase.CANCELLING, plans=(Undo(call=C3),))


def test_a_cancel_where_nobody_drives_and_nothing_is_left_is_done_at_once() -> None:
    """Paused, waiting, queued and failed runs need no driver to end."""
    run = given(LEASED_RUN[0]).when(c.Cancel()).then(phase=Phase.CANCELLED)
    assert isinstance(run.entries[-1], RunCancelled)


def test_a_second_cancel_is_a_no_op_and_a_late_one_learns_who_was_first() -> None:
    """Races have one winner, and both sides learn who."""
    drafting.when(c.Cancel(), c.Cancel()).then(already="already_cancelling")
    begun.replies(text="done").advances().when(c.Cancel()).then(refused="already_completed")


def test_a_result_that_loses_the_race_is_kept_as_partial_work() -> None:
    """The cancel was first; the text is not lost."""
    run = begun.replies(MAIL, text="I will mail Bo").starts("c2")
    run = run.when(c.Cancel()).after(aborted(C2)).advances()
    assert run.state.output == "I will mail Bo"


def test_calls_that_never_started_are_sealed_so_that_no_message_is_left_unanswered() -> None:
    """A provider refuses a history with an open tool call."""
    run = begun.replies(MAIL, MAIL).starts("c2").when(c.Cancel())
    run = run.after(aborted(C2)).advances().then(phase=Phase.CANCELLED)
    assert [deed.call for deed in build_report(run.state).never_started] == ["c3"]
    assert run.state.open_calls == ()


def test_a_cancel_gives_back_words_that_were_never_applied() -> None:
    """Nobody's text is lost, not even the one that waited."""
    run = drafting.when(c.Redirect(text="other way"), c.Say(text="why?"), c.Cancel())
    assert run.state.pending == ()
    texts = [
        getattr(entry, "text", "") for entry in run.entries if "Closed" in str(type(entry))
    ]
    assert texts == ["other way", "why?"]


def test_a_cancel_reaches_children_first_with_its_undo_set() -> None:
    """The child undoes its own work before the parent undoes around it."""
    helper = Use(tool="helper", kind="child")
    run = begun.replies(helper).starts("c2").when(c.Cancel(undo="all"))
    order = plan_effects(run.state)[0]
    assert isinstance(order, ControlChild)
    assert (order.control, order.undo, order.now) == ("cancel", "all", True)


def test_a_cancel_while_halted_is_journaled_at_once_and_undone_after_the_lift() -> None:
    """Asks and frames are closed now; undo waits for the latch."""
    run = drafting.after(ended(C2), ended(C3)).when(c.Halt(), c.Cancel(undo="all"))
    run = run.then(phase=Phase.HALTED).when(c.Cancel()).then(already="already_cancelling")
    run = run.when(c.Lift()).then(phase=Phase.CANCELLING)
    assert undone(cleaned_up(run)) == [("c3", "undo"), ("c2", "undo")]


def test_no_control_interrupts_the_undo() -> None:
    """Only the operator's halt holds it."""
    run = drafting.when(c.Cancel()).after(ended(C2), ended(C3))
    run = run.after(v.StartUndo(epoch=E1, call=C3))
    for control in (c.Pause(), c.Resume(), c.Redirect(text="x"), c.Say(text="x")):
        run.when(control).then(refused="is_cancelling")
    run.when(c.Halt()).then(phase=Phase.HALTED)


def test_a_report_says_what_is_true_while_the_run_goes_on() -> None:
    """Three lists are always there; a missing one could mean nothing, or forgotten."""
    text = str(build_report(drafting.state))
    for title in ("Done and kept", "Undone", "Could not be undone", "Unsure"):
        assert f"## {title}" in text


def test_settling_is_refused_while_something_is_in_flight() -> None:
    """Cancelled is said only when it is true."""
    run = drafting.when(c.Cancel())
    run.when(v.SettlePhase(epoch=E1)).then(refused="in_flight")
    run.after(aborted(C2), aborted(C3)).when(v.SettlePhase(epoch=E1)).then(
        refused="not_settled"
    )
    assert Settle() not in plan_effects(run.state)
