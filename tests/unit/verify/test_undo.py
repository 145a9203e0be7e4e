"""Checks of undo and release: I18, I28, I29 and I30."""

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
from midrun.core.values import Decision, Effect, RequestedCall, Residue, Traits
from tests.unit.verify.journal_builder import (
    C2,
    C3,
    DRAFT,
    LEASE_2,
    LEASED_RUN,
    LOCK,
    MAIL,
    find_violations,
    make_call_in_flight,
    make_start,
    make_step,
)

PUT = RequestedCall(tool="put", traits=Traits(effect=Effect.IDEMPOTENT, undo=True))
CHARGE = RequestedCall(tool="charge", traits=Traits(undo=True, undo_unknown=False))
BOTH = RequestedCall(tool="both", traits=Traits(undo=True, release=True))

ONE_CALL = make_call_in_flight(DRAFT)
CANCEL_ALL = CancelRequested(undo="all")
UNDONE = (UndoStarted(call=C2), UndoDone(call=C2))
GIVEN_UP = (
    *(UndoStarted(call=C2), UndoFailed(call=C2)),
    *(UndoStarted(call=C2, attempt=2), UndoFailed(call=C2), UndoGaveUp(call=C2)),
)
RESIDUE = RunCancelled(residue=(Residue(call=C2),))


def make_undo(call: CallId) -> tuple[Entry, ...]:
    """Return the undo of `call`, done at the first attempt."""
    return (UndoStarted(call=call), UndoDone(call=call))


@pytest.mark.parametrize(
    "ending",
    [
        (CancelRequested(), CallDone(call=C2)),
        (CancelRequested(), CallAborted(call=C2)),
        (CallAborted(call=C2), CancelRequested()),
        (LEASE_2, CallUnknown(call=C2), CancelRequested()),
        (CallDone(call=C2), CANCEL_ALL),
    ],
    ids=["in flight", "aborted", "aborted before", "unknown", "finished, undo all"],
)
def test_every_call_in_the_undo_set_is_undone(ending: tuple[Entry, ...]) -> None:
    """I28: in flight, aborted or unknown at the cancel; with `all` also finished ones."""
    assert find_violations(*ONE_CALL, *ending, *UNDONE, RunCancelled()) == []
    assert find_violations(*ONE_CALL, *ending, RunCancelled()) == ["I28"]


def test_an_undo_that_was_given_up_is_listed_as_residue() -> None:
    """I28 and I30."""
    cancelling = (*ONE_CALL, CallDone(call=C2), CANCEL_ALL)
    assert find_violations(*cancelling, *GIVEN_UP, RESIDUE) == []
    assert find_violations(*cancelling, *GIVEN_UP, RunCancelled()) == ["I30"]
    assert find_violations(*cancelling, *UNDONE, RESIDUE) == ["I30"]


def test_finished_calls_are_undone_only_if_the_cancel_undoes_all() -> None:
    """I28."""
    done = (*ONE_CALL, CallDone(call=C2), CancelRequested())
    assert find_violations(*done, RunCancelled()) == []
    assert find_violations(*done, *UNDONE, RunCancelled()) == ["I28"]
    assert "I28" in find_violations(*ONE_CALL, CallDone(call=C2), *UNDONE)


def test_a_failed_call_is_undone_only_if_it_failed_after_the_cancel() -> None:
    """I28: an error after the cancel is no proof that the call had no effect."""
    failed = CallFailed(call=C2, error="no")
    assert find_violations(*ONE_CALL, failed, CancelRequested(), RunCancelled()) == []
    assert find_violations(*ONE_CALL, CancelRequested(), failed, RunCancelled()) == ["I28"]


def test_a_late_result_after_the_cancel_keeps_the_call_in_the_undo_set() -> None:
    """I28: the call was unknown at the cancel."""
    late = LateResult(call=C2, attempt=1, epoch=Epoch(1))
    cancelling = (*ONE_CALL, LEASE_2, CallUnknown(call=C2), CancelRequested(), late)
    assert find_violations(*cancelling, *UNDONE, RunCancelled()) == []
    assert find_violations(*cancelling, RunCancelled()) == ["I28"]


def test_an_unknown_call_stays_in_the_undo_set_after_a_failed_attempt() -> None:
    """I18: the failure says nothing about the first attempt."""
    lost = (*make_call_in_flight(PUT), LEASE_2, CallUnknown(call=C2))
    failed = (
        *lost,
        make_start(C2, attempt=2),
        CallFailed(call=C2, error="no"),
        CancelRequested(),
    )
    assert find_violations(*failed, *UNDONE, RunCancelled()) == []
    assert find_violations(*failed, RunCancelled()) == ["I18"]


def test_an_aborted_call_stays_in_the_undo_set_after_a_failed_attempt() -> None:
    """I28: the failure says nothing about the first attempt."""
    stopped = (*make_call_in_flight(PUT), CallAborted(call=C2))
    failed = (*stopped, make_start(C2, attempt=2), CallFailed(call=C2, error="no"))
    assert find_violations(*failed, CancelRequested(), *UNDONE, RunCancelled()) == []
    assert find_violations(*failed, CancelRequested(), RunCancelled()) == ["I28"]


def test_a_call_with_an_open_question_is_undone() -> None:
    """I28: its function started and did not finish. An answer is its result."""
    asking = (*ONE_CALL, AskOpened(ask=AskId("a1"), ask_kind="question", call=C2))
    closed = (CancelRequested(), AskClosed(ask=AskId("a1"), why="cancelled"))
    assert find_violations(*asking, *closed, *UNDONE, RunCancelled()) == []
    assert find_violations(*asking, *closed, RunCancelled()) == ["I28"]
    answer = AskAnswered(ask=AskId("a1"), decision=Decision(choice="answer"))
    assert find_violations(*asking, answer, CancelRequested(), RunCancelled()) == []


@pytest.mark.parametrize(
    "end",
    [(CancelRequested(), RunCancelled()), (RunCompleted(),)],
    ids=["cancel", "completion"],
)
def test_every_resource_is_released_before_the_end_of_the_run(end: tuple[Entry, ...]) -> None:
    """I28."""
    held = (*make_call_in_flight(LOCK), CallDone(call=C2))
    released = (UndoStarted(call=C2, action="release"), UndoDone(call=C2, action="release"))
    assert find_violations(*held, *end[:-1], *released, end[-1]) == []
    assert find_violations(*held, *end) == ["I28"]


def test_a_cancelled_run_has_no_call_in_flight() -> None:
    """I28."""
    in_flight = (*make_call_in_flight(MAIL), CancelRequested())
    assert find_violations(*in_flight, CallAborted(call=C2), RunCancelled()) == []
    assert find_violations(*in_flight, RunCancelled()) == ["I28"]


def test_the_call_that_ended_last_is_undone_first() -> None:
    """I29: later calls may depend on earlier ones."""
    two = (*LEASED_RUN, *make_step(DRAFT, DRAFT), make_start(C2), make_start(C3))
    done = (*two, CallDone(call=C3), CallDone(call=C2), CANCEL_ALL)
    assert find_violations(*done, *make_undo(C2), *make_undo(C3), RunCancelled()) == []
    assert find_violations(*done, *make_undo(C3), *make_undo(C2), RunCancelled()) == ["I29"]


def test_the_order_starts_again_when_the_residue_is_retried() -> None:
    """I29."""
    two = (*LEASED_RUN, *make_step(DRAFT, DRAFT), make_start(C2), make_start(C3))
    done = (*two, CallDone(call=C3), CallDone(call=C2), CANCEL_ALL)
    first = (*done, *GIVEN_UP, *make_undo(C3), RESIDUE)
    assert find_violations(*first, UndoRetried(), LEASE_2, *UNDONE, RunCancelled()) == []


def test_no_undo_starts_while_a_call_is_in_flight() -> None:
    """I29: the call that ends last is not known yet."""
    two = (
        *LEASED_RUN,
        *make_step(DRAFT, DRAFT),
        make_start(C2),
        make_start(C3),
        CancelRequested(),
    )
    early = (CallDone(call=C3), UndoStarted(call=C3))
    assert find_violations(*two, *early) == ["I29"]


def test_an_undo_is_given_up_only_after_the_declared_attempts() -> None:
    """I30: neither sooner nor later."""
    cancelling = (*ONE_CALL, CallDone(call=C2), CANCEL_ALL)
    assert find_violations(*cancelling, *GIVEN_UP[:2], UndoGaveUp(call=C2), RESIDUE) == ["I30"]
    assert find_violations(*cancelling, UndoGaveUp(call=C2), RESIDUE) == ["I30"]
    third = UndoStarted(call=C2, attempt=3)
    assert find_violations(*cancelling, *GIVEN_UP[:4], third) == ["I30"]


def test_an_undo_that_did_not_stop_is_given_up_without_another_attempt() -> None:
    """I30: another attempt could run beside the first."""
    cancelling = (*ONE_CALL, CallDone(call=C2), CANCEL_ALL)
    final = (UndoStarted(call=C2), UndoFailed(call=C2, final=True))
    assert find_violations(*cancelling, *final, UndoGaveUp(call=C2), RESIDUE) == []
    assert find_violations(*cancelling, *final, UndoStarted(call=C2, attempt=2)) == ["I30"]


def test_an_unknown_call_with_undo_unknown_false_is_given_up_at_once() -> None:
    """I30: the undo of such a tool must know that the call happened."""
    unknown = (
        *make_call_in_flight(CHARGE),
        LEASE_2,
        CallUnknown(call=C2),
        CancelRequested(),
    )
    assert find_violations(*unknown, UndoGaveUp(call=C2), RESIDUE) == []
    known = (*make_call_in_flight(CHARGE), CancelRequested(), CallDone(call=C2))
    assert find_violations(*known, UndoGaveUp(call=C2), RESIDUE) == ["I30"]


def test_an_undo_that_succeeded_or_was_given_up_is_not_started_again() -> None:
    """I30."""
    done = (*ONE_CALL, CallDone(call=C2), CANCEL_ALL, *UNDONE)
    assert find_violations(*done, UndoStarted(call=C2, attempt=2)) == ["I30"]
    given_up = (*ONE_CALL, CallDone(call=C2), CANCEL_ALL, *GIVEN_UP)
    assert set(find_violations(*given_up, UndoStarted(call=C2, attempt=3))) == {"I30"}


def test_one_undo_is_in_flight_at_a_time_and_ends_once() -> None:
    """I30."""
    both = (*make_call_in_flight(BOTH), CancelRequested(), CallDone(call=C2))
    release = UndoStarted(call=C2, action="release")
    assert find_violations(*both, *UNDONE, release) == []
    assert find_violations(*both, UndoStarted(call=C2), release) == ["I30"]
    assert find_violations(*both, UndoDone(call=C2)) == ["I30"]
    assert find_violations(
        *both, UndoStarted(call=C2), UndoUnknown(call=C2, action="release")
    ) == ["I30"]


def test_only_a_call_that_was_made_and_has_an_undo_is_undone() -> None:
    """I30."""
    mail = (*make_call_in_flight(MAIL), CancelRequested(), CallDone(call=C2))
    assert find_violations(*mail, UndoStarted(call=C2)) == ["I30"]
    unmade = (*LEASED_RUN, *make_step(DRAFT), CancelRequested())
    assert find_violations(*unmade, UndoStarted(call=C2)) == ["I30"]


def test_a_late_result_during_the_undo_does_not_change_the_order() -> None:
    """I29."""
    two = (*LEASED_RUN, *make_step(DRAFT, DRAFT), make_start(C2), make_start(C3), LEASE_2)
    lost = (*two, CallUnknown(call=C2), CallUnknown(call=C3), CancelRequested())
    late = LateResult(call=C2, attempt=1, epoch=Epoch(1))
    assert find_violations(*lost, *make_undo(C3), late, *UNDONE, RunCancelled()) == []
    again = replace(late, call=C3)
    assert find_violations(*lost, *make_undo(C3), again, *UNDONE, RunCancelled()) == []
