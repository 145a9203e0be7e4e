"""Undo: I18, I28, I29, I30."""

import pytest
from msgspec.structs import replace

from midrun.core.entries import (
    AskAnswered,
    AskClosed,
    AskOpened,
    CallAborted,
    CallDone,
    CallFailed,
    CallUnknown,
    CancelRequested,
    Entry,
    LateResult,
    LeaseTaken,
    RunCancelled,
    RunCompleted,
    UndoDone,
    UndoFailed,
    UndoGaveUp,
    UndoRetried,
    UndoStarted,
    UndoUnknown,
)
from midrun.core.ids import AskId, CallId, Epoch
from midrun.core.values import Decision, Effect, Residue, Traits, Use
from tests.unit.verify.books import BEGUN, C2, C3, DRAFT, LOCK, MAIL, broken, start, step

E2 = LeaseTaken(epoch=Epoch(2))
PUT = Use(tool="put", traits=Traits(effect=Effect.IDEMPOTENT, undo=True))
CHARGE = Use(tool="charge", traits=Traits(undo=True, undo_unknown=False))
BOTH = Use(tool="both", traits=Traits(undo=True, release=True))

ONE = (*BEGUN, *step(DRAFT), start(C2))
ALL = CancelRequested(undo="all")
UNDONE = (UndoStarted(call=C2), UndoDone(call=C2))
LEFT = (
    *(UndoStarted(call=C2), UndoFailed(call=C2)),
    *(UndoStarted(call=C2, attempt=2), UndoFailed(call=C2), UndoGaveUp(call=C2)),
)
RESIDUE = RunCancelled(residue=(Residue(call=C2),))


def undo(call: CallId) -> tuple[Entry, ...]:
    """Return the undo of `call`, done at the first attempt."""
    return (UndoStarted(call=call), UndoDone(call=call))


@pytest.mark.parametrize(
    "ending",
    [
        (CancelRequested(), CallDone(call=C2)),
        (CancelRequested(), CallAborted(call=C2)),
        (CallAborted(call=C2), CancelRequested()),
        (E2, CallUnknown(call=C2), CancelRequested()),
        (CallDone(call=C2), ALL),
    ],
    ids=["in flight", "aborted by it", "aborted before", "unknown", "finished, of all"],
)
def test_what_is_in_the_undo_set_is_undone(ending: tuple[Entry, ...]) -> None:
    """I28: in flight, aborted or unknown at the cancel; with `all` what was finished, too."""
    assert broken(*ONE, *ending, *UNDONE, RunCancelled()) == []
    assert broken(*ONE, *ending, RunCancelled()) == ["I28"]


def test_what_could_not_be_undone_is_listed() -> None:
    """I28: tried as often as declared, then given up by name."""
    cancelling = (*ONE, CallDone(call=C2), ALL)
    assert broken(*cancelling, *LEFT, RESIDUE) == []
    assert broken(*cancelling, *LEFT, RunCancelled()) == ["I30"]
    assert broken(*cancelling, *UNDONE, RESIDUE) == ["I30"]


def test_finished_work_is_kept_unless_somebody_wants_it_undone() -> None:
    """I28: cancel keeps changes; undoing them anyway destroys work."""
    done = (*ONE, CallDone(call=C2), CancelRequested())
    assert broken(*done, RunCancelled()) == []
    assert broken(*done, *UNDONE, RunCancelled()) == ["I28"]
    assert "I28" in broken(*ONE, CallDone(call=C2), *UNDONE)


def test_a_call_that_failed_before_the_cancel_needs_no_undo_and_one_under_it_does() -> None:
    """I28: an error under a cancel is no proof that nothing happened."""
    failed = CallFailed(call=C2, error="no")
    assert broken(*ONE, failed, CancelRequested(), RunCancelled()) == []
    assert broken(*ONE, CancelRequested(), failed, RunCancelled()) == ["I28"]


def test_evidence_after_the_cancel_does_not_take_a_call_out_of_the_undo_set() -> None:
    """I28: it was unknown at the cancel; that it happened after all is no reason to keep it."""
    late = LateResult(call=C2, attempt=1, epoch=Epoch(1))
    cancelling = (*ONE, E2, CallUnknown(call=C2), CancelRequested(), late)
    assert broken(*cancelling, *UNDONE, RunCancelled()) == []
    assert broken(*cancelling, RunCancelled()) == ["I28"]


def test_a_doubt_outlives_a_later_attempt_that_failed() -> None:
    """I18: the first attempt may have happened, whatever became of the second."""
    lost = (*BEGUN, *step(PUT), start(C2), E2, CallUnknown(call=C2))
    failed = (*lost, start(C2, attempt=2), CallFailed(call=C2, error="no"), CancelRequested())
    assert broken(*failed, *UNDONE, RunCancelled()) == []
    assert broken(*failed, RunCancelled()) == ["I18"]


def test_a_stop_midway_outlives_a_later_attempt_that_failed() -> None:
    """I28: an aborted attempt may have taken effect; a failure of the next one says nothing."""
    stopped = (*BEGUN, *step(PUT), start(C2), CallAborted(call=C2))
    failed = (*stopped, start(C2, attempt=2), CallFailed(call=C2, error="no"))
    assert broken(*failed, CancelRequested(), *UNDONE, RunCancelled()) == []
    assert broken(*failed, CancelRequested(), RunCancelled()) == ["I28"]


def test_a_call_that_asked_from_within_may_have_done_something_before() -> None:
    """I28: it was entered, and never finished."""
    asking = (*ONE, AskOpened(ask=AskId("a1"), ask_kind="question", call=C2))
    closed = (CancelRequested(), AskClosed(ask=AskId("a1"), why="cancelled"))
    assert broken(*asking, *closed, *UNDONE, RunCancelled()) == []
    assert broken(*asking, *closed, RunCancelled()) == ["I28"]
    answer = AskAnswered(ask=AskId("a1"), decision=Decision(choice="answer"))
    assert broken(*asking, answer, CancelRequested(), RunCancelled()) == []


@pytest.mark.parametrize(
    "end",
    [(CancelRequested(), RunCancelled()), (RunCompleted(),)],
    ids=["cancel", "completion"],
)
def test_what_is_held_is_released_at_every_end(end: tuple[Entry, ...]) -> None:
    """I28: a lock outlives nobody."""
    held = (*BEGUN, *step(LOCK), start(C2), CallDone(call=C2))
    freed = (UndoStarted(call=C2, action="release"), UndoDone(call=C2, action="release"))
    assert broken(*held, *end[:-1], *freed, end[-1]) == []
    assert broken(*held, *end) == ["I28"]


def test_nothing_is_in_flight_in_a_cancelled_run() -> None:
    """I28: cancelled is said when it is true."""
    flying = (*BEGUN, *step(MAIL), start(C2), CancelRequested())
    assert broken(*flying, CallAborted(call=C2), RunCancelled()) == []
    assert broken(*flying, RunCancelled()) == ["I28"]


def test_what_ended_last_is_undone_first() -> None:
    """I29: later work stands on earlier work."""
    two = (*BEGUN, *step(DRAFT, DRAFT), start(C2), start(C3))
    done = (*two, CallDone(call=C3), CallDone(call=C2), ALL)
    assert broken(*done, *undo(C2), *undo(C3), RunCancelled()) == []
    assert broken(*done, *undo(C3), *undo(C2), RunCancelled()) == ["I29"]


def test_the_order_starts_anew_when_the_residue_is_tried_again() -> None:
    """I29: what was given up last time is taken up in its own order."""
    two = (*BEGUN, *step(DRAFT, DRAFT), start(C2), start(C3))
    done = (*two, CallDone(call=C3), CallDone(call=C2), ALL)
    first = (*done, *LEFT, *undo(C3), RESIDUE)
    assert broken(*first, UndoRetried(), E2, *UNDONE, RunCancelled()) == []


def test_nothing_is_undone_while_something_is_in_flight() -> None:
    """I29: what ends last is not known before everything has ended."""
    two = (*BEGUN, *step(DRAFT, DRAFT), start(C2), start(C3), CancelRequested())
    early = (CallDone(call=C3), UndoStarted(call=C3))
    assert broken(*two, *early) == ["I29"]


def test_an_undo_is_given_up_only_after_the_declared_attempts() -> None:
    """I30: neither sooner nor later."""
    cancelling = (*ONE, CallDone(call=C2), ALL)
    assert broken(*cancelling, *LEFT[:2], UndoGaveUp(call=C2), RESIDUE) == ["I30"]
    assert broken(*cancelling, UndoGaveUp(call=C2), RESIDUE) == ["I30"]
    third = UndoStarted(call=C2, attempt=3)
    assert broken(*cancelling, *LEFT[:4], third) == ["I30"]


def test_an_undo_that_did_not_stop_is_given_up_without_another_attempt() -> None:
    """I30: another attempt could run beside the first."""
    cancelling = (*ONE, CallDone(call=C2), ALL)
    final = (UndoStarted(call=C2), UndoFailed(call=C2, final=True))
    assert broken(*cancelling, *final, UndoGaveUp(call=C2), RESIDUE) == []
    assert broken(*cancelling, *final, UndoStarted(call=C2, attempt=2)) == ["I30"]


def test_nobody_dares_to_undo_what_may_not_have_happened() -> None:
    """I30: a tool may say that its undo must know; then the call is listed at once."""
    unknown = (*BEGUN, *step(CHARGE), start(C2), E2, CallUnknown(call=C2), CancelRequested())
    assert broken(*unknown, UndoGaveUp(call=C2), RESIDUE) == []
    known = (*BEGUN, *step(CHARGE), start(C2), CancelRequested(), CallDone(call=C2))
    assert broken(*known, UndoGaveUp(call=C2), RESIDUE) == ["I30"]


def test_an_undo_that_succeeded_is_not_started_again() -> None:
    """I30: undoing twice may undo somebody else's work."""
    done = (*ONE, CallDone(call=C2), ALL, *UNDONE)
    assert broken(*done, UndoStarted(call=C2, attempt=2)) == ["I30"]
    left = (*ONE, CallDone(call=C2), ALL, *LEFT)
    assert set(broken(*left, UndoStarted(call=C2, attempt=3))) == {"I30"}


def test_one_undo_is_in_flight_at_a_time_and_ends_once() -> None:
    """I30: the next one waits for its turn."""
    both = (*BEGUN, *step(BOTH), start(C2), CancelRequested(), CallDone(call=C2))
    release = UndoStarted(call=C2, action="release")
    assert broken(*both, *UNDONE, release) == []
    assert broken(*both, UndoStarted(call=C2), release) == ["I30"]
    assert broken(*both, UndoDone(call=C2)) == ["I30"]
    assert broken(*both, UndoStarted(call=C2), UndoUnknown(call=C2, action="release")) == [
        "I30"
    ]


def test_only_what_has_an_undo_and_was_made_is_undone() -> None:
    """I30: there is nothing to undo about the rest."""
    mail = (*BEGUN, *step(MAIL), start(C2), CancelRequested(), CallDone(call=C2))
    assert broken(*mail, UndoStarted(call=C2)) == ["I30"]
    unmade = (*BEGUN, *step(DRAFT), CancelRequested())
    assert broken(*unmade, UndoStarted(call=C2)) == ["I30"]


def test_evidence_that_comes_during_the_undoing_does_not_change_the_order() -> None:
    """I29: the order was right when it was chosen."""
    two = (*BEGUN, *step(DRAFT, DRAFT), start(C2), start(C3), E2)
    lost = (*two, CallUnknown(call=C2), CallUnknown(call=C3), CancelRequested())
    late = LateResult(call=C2, attempt=1, epoch=Epoch(1))
    first = (UndoStarted(call=C3), UndoDone(call=C3))
    assert broken(*lost, *first, late, *UNDONE, RunCancelled()) == []
    again = replace(late, call=C3)
    assert broken(*lost, *first, again, *UNDONE, RunCancelled()) == []
