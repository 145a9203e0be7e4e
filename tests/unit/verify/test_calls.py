"""Checks of calls and their starts: I10 to I13, I15 to I17, I19 and I41."""

import pytest
from msgspec.structs import replace

from midrun.core.entries import (
    AskOpened,
    CallAborted,
    CallDone,
    CallFailed,
    CallProposed,
    CallSealed,
    CallSettled,
    CallStarted,
    CallUnknown,
    CancelRequested,
    CapReached,
    Entry,
    FramePushed,
    LateResult,
    LeaseReleased,
    LeaseTaken,
    MessageReceived,
    PauseRequested,
    PauseWithdrawn,
    ProgressSaved,
    RunFailed,
    RunHalted,
    RunLifted,
    RunPaused,
    RunResumed,
    RunWoken,
    TakenOver,
    ToolUseRequested,
    UndoFailed,
    UndoStarted,
)
from midrun.core.ids import AskId, CallId, Epoch, FrameId, Micros, Seq
from midrun.core.retries import CHECK_DENIALS_MAX, WORKER_DEATHS_MAX, WORKERS_DIED_CODE
from midrun.core.values import Phase, RequestedCall, Traits
from tests.unit.verify.journal_builder import (
    C1,
    C2,
    C3,
    C4,
    DRAFT,
    LEASE_2,
    LEASED_RUN,
    LOOK,
    MAIL,
    find_violations,
    make_call_in_flight,
    make_start,
    make_step,
    with_epoch,
)

PROPOSED = (*LEASED_RUN, *make_step(MAIL, LOOK))
PAY = RequestedCall(tool="pay", args={}, traits=Traits(check=True))
DENIED = CallSettled(call=C2, happened=False, by="check:pay")
FAILED = RunFailed(error="look: 3 processes ended", code=WORKERS_DIED_CODE)


def test_no_call_starts_after_a_cancel() -> None:
    """I10: this includes calls that were proposed before."""
    assert find_violations(*PROPOSED, make_start(C2), CancelRequested()) == []
    assert find_violations(*PROPOSED, CancelRequested(), make_start(C2)) == ["I10"]


@pytest.mark.parametrize("pause", [PauseRequested(), CapReached(stop="at most 1 steps")])
def test_no_call_starts_between_a_pause_and_its_resume(pause: Entry) -> None:
    """I11: reaching a cap is a pause, too."""
    resumed = (*PROPOSED, pause, RunPaused(), RunResumed(), LEASE_2)
    assert find_violations(*resumed, make_start(C2)) == []
    assert find_violations(*PROPOSED, pause, make_start(C2)) == ["I11"]


def test_calls_start_again_after_a_pause_was_withdrawn() -> None:
    """I11."""
    assert find_violations(*PROPOSED, PauseRequested(), PauseWithdrawn(), make_start(C2)) == []


def test_only_calls_of_the_person_start_during_a_take_over() -> None:
    """I11: calls that the agent proposed wait for the hand-back."""
    taken_over = (
        TakenOver(by="bob"),
        PauseRequested(why="taken_over"),
        RunPaused(why="taken_over"),
    )
    tool_used = (
        ToolUseRequested(tool="mail", by="bob"),
        CallProposed(use=MAIL),
        RunWoken(),
        LEASE_2,
    )
    run = (*PROPOSED, *taken_over, *tool_used)
    assert find_violations(*run, make_start(C4)) == []
    assert find_violations(*run, make_start(C2)) == ["I11"]


def test_no_call_starts_while_halted() -> None:
    """I12."""
    halted = (*PROPOSED, RunHalted(phase_after_lift=Phase.QUEUED))
    assert find_violations(*halted, RunLifted(), make_start(C2)) == []
    assert find_violations(*halted, make_start(C2)) == ["I12"]


def test_no_undo_starts_while_halted() -> None:
    """I12."""
    cancelling = (*make_call_in_flight(DRAFT), CancelRequested(), CallDone(call=C2))
    halted = (*cancelling, RunHalted(phase_after_lift=Phase.CANCELLING))
    assert find_violations(*halted, RunLifted(), UndoStarted(call=C2)) == []
    assert find_violations(*halted, UndoStarted(call=C2)) == ["I12"]


def test_a_start_must_have_seen_the_last_control() -> None:
    """I13: otherwise the prompt of the call lacks the control."""
    with_message = (*PROPOSED, MessageReceived(text="Hurry"))
    assert find_violations(*with_message, make_start(C2, seen=5)) == []
    assert find_violations(*with_message, make_start(C2, seen=4)) == ["I13"]


def test_a_start_cannot_have_seen_a_later_seq() -> None:
    """I13."""
    assert find_violations(*PROPOSED, make_start(C2, seen=5)) == ["I13"]


@pytest.mark.parametrize(
    "settled",
    [
        (CallDone(call=C2),),
        (LEASE_2, CallUnknown(call=C2), LateResult(call=C2, attempt=1, epoch=Epoch(1))),
        (LEASE_2, CallUnknown(call=C2), CallSettled(call=C2, happened=True)),
    ],
    ids=["by its result", "by a late result", "by a person"],
)
def test_a_call_that_is_done_is_never_made_again(settled: tuple[Entry, ...]) -> None:
    """I15: a result, a late result or a person can say that the call is done."""
    done = (*make_call_in_flight(LOOK), *settled)
    assert find_violations(*done) == []
    assert find_violations(*done, make_start(C2, attempt=2)) == ["I15"]


def test_a_sealed_call_is_never_made() -> None:
    """I15: the agent was told that the call is not made."""
    assert find_violations(*PROPOSED, CallSealed(call=C2, why="redirected")) == []
    assert find_violations(
        *PROPOSED, CallSealed(call=C2, why="redirected"), make_start(C2)
    ) == ["I15"]


def test_one_attempt_of_a_call_is_in_flight_at_a_time() -> None:
    """I16: both attempts would run under the same key."""
    assert find_violations(*PROPOSED, make_start(C2), make_start(C2, attempt=2)) == ["I16"]


def test_only_a_call_in_flight_can_end() -> None:
    """I16: every attempt starts once and ends once."""
    assert find_violations(*PROPOSED, make_start(C2), CallDone(call=C2), CallDone(call=C2)) == [
        "I16"
    ]
    assert find_violations(*PROPOSED, CallAborted(call=C2)) == ["I16"]
    assert find_violations(*PROPOSED, CallAborted(call=CallId("c9"))) == ["I16"]
    assert find_violations(*PROPOSED, CallAborted(call=CallId("nonsense"))) == ["I16"]


def test_an_unknown_call_is_made_again_only_if_that_is_safe() -> None:
    """I17: a read is safe to repeat, a mail is not."""
    lost = (
        *PROPOSED,
        make_start(C2),
        make_start(C3),
        LEASE_2,
        CallUnknown(call=C2),
        CallUnknown(call=C3),
    )
    assert find_violations(*lost, make_start(C3, attempt=2)) == []
    assert find_violations(*lost, make_start(C2, attempt=2)) == ["I17"]
    settled = CallSettled(call=C2, happened=False, by="ann")
    assert find_violations(*lost, settled, make_start(C2, attempt=2)) == []
    unsettled = CallSettled(call=C2, happened=None, by="ann")
    assert find_violations(*lost, unsettled, make_start(C2, attempt=2)) == ["I17"]


def test_only_an_unknown_call_can_be_settled() -> None:
    """I17."""
    settled = CallSettled(call=C2, happened=True, by="ann")
    assert find_violations(*PROPOSED, settled) == ["I17"]
    assert find_violations(*PROPOSED, make_start(C2), CallDone(call=C2), settled) == ["I17"]


def test_an_aborted_call_is_made_again_only_if_that_is_safe() -> None:
    """I17: it may have taken effect. With saved progress it can continue from there."""
    again = make_start(C2, attempt=2)
    assert find_violations(*PROPOSED, make_start(C2), CallAborted(call=C2), again) == ["I17"]
    saved = ProgressSaved(call=C2, progress=3)
    assert find_violations(*PROPOSED, make_start(C2), saved, CallAborted(call=C2), again) == []
    assert find_violations(*make_call_in_flight(LOOK), CallAborted(call=C2), again) == []


def test_a_failed_tool_call_is_not_made_again() -> None:
    """I17: only a model call with a transient failure is retried."""
    failed = CallFailed(call=C2, error="no", transient=True)
    assert find_violations(*PROPOSED, make_start(C2), failed, make_start(C2, attempt=2)) == [
        "I17"
    ]
    first = CallStarted(call=C1, call_kind="model", attempt=1, seen=Seq(-1))
    again = replace(first, attempt=2)
    transient = CallFailed(call=C1, error="529", transient=True)
    assert find_violations(*LEASED_RUN, first, transient, again) == []
    assert find_violations(*LEASED_RUN, first, replace(transient, transient=False), again) == [
        "I17"
    ]


def test_attempts_are_numbered_without_gaps() -> None:
    """I19."""
    assert find_violations(*PROPOSED, make_start(C2, attempt=2)) == ["I19"]
    lost = (*make_call_in_flight(LOOK), LEASE_2, CallUnknown(call=C2))
    assert find_violations(*lost, make_start(C2, attempt=3)) == ["I19"]


def test_attempts_of_an_undo_are_numbered_without_gaps() -> None:
    """I19."""
    cancelling = (*make_call_in_flight(DRAFT), CancelRequested(), CallDone(call=C2))
    failed = (*cancelling, UndoStarted(call=C2), UndoFailed(call=C2))
    assert find_violations(*failed, UndoStarted(call=C2, attempt=2)) == []
    assert find_violations(*failed, UndoStarted(call=C2, attempt=1)) == ["I19"]


def test_calls_asks_and_frames_are_numbered_without_gaps() -> None:
    """I19: keys contain the number, so every process must derive the same one."""
    skipped = CallStarted(call=C2, call_kind="model", attempt=1, seen=Seq(-1))
    assert find_violations(*LEASED_RUN, skipped)[0] == "I19"
    unwanted = CallStarted(call=C1, call_kind="tool", attempt=1, seen=Seq(-1))
    assert find_violations(*LEASED_RUN, unwanted) == ["I19"]
    ask = AskOpened(ask=AskId("a2"), ask_kind="question", call=C2)
    assert find_violations(*PROPOSED, make_start(C2), ask)[0] == "I19"
    frame = FramePushed(frame=FrameId("f2"), message=Seq(3), goal="Mail", expires=Micros(0))
    assert find_violations(*LEASED_RUN, MessageReceived(text="Why?"), frame) == ["I19"]


def test_a_call_of_a_hosted_agent_does_not_count_as_one_of_the_person() -> None:
    """I11: the epoch of the entry shows that the driver proposed the call."""
    taken_over = (TakenOver(by="bob"), with_epoch(1, CallProposed(use=RequestedCall(tool="x"))))
    pause = (PauseRequested(why="taken_over"), RunPaused(why="taken_over"))
    tool_used = (
        ToolUseRequested(tool="mail", by="bob"),
        CallProposed(use=MAIL),
        RunWoken(),
        LEASE_2,
    )
    assert find_violations(*LEASED_RUN, *taken_over, *pause, *tool_used, make_start(C1)) == [
        "I11"
    ]
    assert find_violations(*LEASED_RUN, *taken_over, *pause, *tool_used, make_start(C2)) == []


# ── worker deaths ──────────────────────────────────────────────────────────────────────


def make_worker_deaths(times: int = WORKER_DEATHS_MAX) -> tuple[Entry, ...]:
    """Return a run in which this many workers died during one call."""
    entries: tuple[Entry, ...] = (*LEASED_RUN, *make_step(LOOK))
    for number in range(1, times + 1):
        entries += (make_start(C2, attempt=number),)
        entries += (LeaseTaken(epoch=Epoch(number + 1)), CallUnknown(call=C2))
    return entries


def test_a_run_fails_after_three_worker_deaths_and_can_be_resumed() -> None:
    """I41."""
    assert find_violations(*make_worker_deaths(), FAILED) == []
    resumed = (RunResumed(by="ann"), LeaseTaken(epoch=Epoch(WORKER_DEATHS_MAX + 2)))
    assert (
        find_violations(
            *make_worker_deaths(),
            FAILED,
            *resumed,
            make_start(C2, attempt=WORKER_DEATHS_MAX + 1),
        )
        == []
    )


def test_a_run_does_not_fail_after_two_deaths_or_after_stand_downs() -> None:
    """I41."""
    assert find_violations(*make_worker_deaths(WORKER_DEATHS_MAX - 1), FAILED) == ["I41"]
    stood_down: tuple[Entry, ...] = (*LEASED_RUN, *make_step(LOOK))
    for number in range(1, WORKER_DEATHS_MAX + 1):
        stood_down += (make_start(C2, attempt=number), CallAborted(call=C2), LeaseReleased())
        stood_down += (LeaseTaken(epoch=Epoch(number + 1)),)
    assert find_violations(*stood_down) == []
    assert find_violations(*stood_down, FAILED) == ["I41"]


def test_an_older_journal_with_more_attempts_is_sound() -> None:
    """Older versions had no limit on the attempts of a call."""
    assert (
        find_violations(
            *make_worker_deaths(2 * WORKER_DEATHS_MAX),
            make_start(C2, attempt=2 * WORKER_DEATHS_MAX + 1),
        )
        == []
    )
    entries: tuple[Entry, ...] = (*LEASED_RUN, *make_step(PAY))
    for number in range(1, CHECK_DENIALS_MAX + 1):
        entries += (make_start(C2, attempt=number), CallUnknown(call=C2), DENIED)
    assert find_violations(*entries, make_start(C2, attempt=CHECK_DENIALS_MAX + 1)) == []
