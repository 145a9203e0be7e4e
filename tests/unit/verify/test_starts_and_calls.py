"""Starts and calls: I10 to I13, I15 to I17, I19."""

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
    LeaseTaken,
    MessageReceived,
    PauseRequested,
    PauseWithdrawn,
    ProgressSaved,
    RunHalted,
    RunLifted,
    RunPaused,
    RunResumed,
    RunWoken,
    TakenOver,
    ToolUsed,
    UndoFailed,
    UndoStarted,
)
from midrun.core.ids import AskId, CallId, Epoch, FrameId, Micros, Seq
from midrun.core.values import Phase, Use
from tests.unit.verify.books import (
    BEGUN,
    C1,
    C2,
    C3,
    DRAFT,
    LOOK,
    MAIL,
    broken,
    start,
    step,
    under,
)

WANTED = (*BEGUN, *step(MAIL, LOOK))
E2 = LeaseTaken(epoch=Epoch(2))


def test_nothing_starts_after_a_cancel() -> None:
    """I10: not even what had been asked for before."""
    assert broken(*WANTED, start(C2), CancelRequested()) == []
    assert broken(*WANTED, CancelRequested(), start(C2)) == ["I10"]


@pytest.mark.parametrize("pause", [PauseRequested(), CapReached(stop="at most 1 steps")])
def test_nothing_starts_between_a_pause_and_a_resume(pause: Entry) -> None:
    """I11: reaching a cap is a pause like any other."""
    rested = (*WANTED, pause, RunPaused(), RunResumed(), E2)
    assert broken(*rested, start(C2)) == []
    assert broken(*WANTED, pause, start(C2)) == ["I11"]


def test_a_pause_that_was_taken_back_keeps_nothing_from_starting() -> None:
    """I11: the run goes on as if nobody had asked."""
    assert broken(*WANTED, PauseRequested(), PauseWithdrawn(), start(C2)) == []


def test_only_the_calls_of_the_person_at_the_wheel_start_while_they_have_it() -> None:
    """I11: what the agent wanted before waits until it is handed back."""
    taken = (TakenOver(by="bob"), PauseRequested(why="taken_over"), RunPaused(why="taken_over"))
    used = (ToolUsed(tool="mail", by="bob"), CallProposed(use=MAIL), RunWoken(), E2)
    at_the_wheel = (*WANTED, *taken, *used)
    assert broken(*at_the_wheel, start(CallId("c4"))) == []
    assert broken(*at_the_wheel, start(C2)) == ["I11"]


def test_nothing_starts_while_halted() -> None:
    """I12: the latch holds calls ..."""
    halted = (*WANTED, RunHalted(then=Phase.QUEUED))
    assert broken(*halted, RunLifted(), start(C2)) == []
    assert broken(*halted, start(C2)) == ["I12"]


def test_no_undo_starts_while_halted() -> None:
    """I12: ... and their undoing, which nothing else can stop."""
    cancelling = (*BEGUN, *step(DRAFT), start(C2), CancelRequested(), CallDone(call=C2))
    halted = (*cancelling, RunHalted(then=Phase.CANCELLING))
    assert broken(*halted, RunLifted(), UndoStarted(call=C2)) == []
    assert broken(*halted, UndoStarted(call=C2)) == ["I12"]


def test_a_start_has_seen_the_last_thing_anybody_asked_for() -> None:
    """I13: otherwise it starts from a prompt that lacks it."""
    said = (*WANTED, MessageReceived(text="Hurry"))
    assert broken(*said, start(C2, seen=5)) == []
    assert broken(*said, start(C2, seen=4)) == ["I13"]


def test_a_start_has_not_seen_the_future() -> None:
    """I13: such a number is made up."""
    assert broken(*WANTED, start(C2, seen=5)) == ["I13"]


@pytest.mark.parametrize(
    "settled",
    [
        (CallDone(call=C2),),
        (E2, CallUnknown(call=C2), LateResult(call=C2, attempt=1, epoch=Epoch(1))),
        (E2, CallUnknown(call=C2), CallSettled(call=C2, happened=True)),
    ],
    ids=["by its result", "by a late result", "by a person"],
)
def test_a_call_that_is_done_is_never_made_again(settled: tuple[Entry, ...]) -> None:
    """I15: whatever says that it is done."""
    done = (*BEGUN, *step(LOOK), start(C2), *settled)
    assert broken(*done) == []
    assert broken(*done, start(C2, attempt=2)) == ["I15"]


def test_a_call_that_was_sealed_is_never_made() -> None:
    """I15: the agent was told that it will not be."""
    assert broken(*WANTED, CallSealed(call=C2, why="redirected")) == []
    assert broken(*WANTED, CallSealed(call=C2, why="redirected"), start(C2)) == ["I15"]


def test_one_attempt_of_a_call_is_in_flight_at_a_time() -> None:
    """I16: a second one would race with the first under the same key."""
    assert broken(*WANTED, start(C2), start(C2, attempt=2)) == ["I16"]


def test_a_call_that_is_not_in_flight_does_not_end() -> None:
    """I16: every attempt starts once and ends once."""
    assert broken(*WANTED, start(C2), CallDone(call=C2), CallDone(call=C2)) == ["I16"]
    assert broken(*WANTED, CallAborted(call=C2)) == ["I16"]
    assert broken(*WANTED, CallAborted(call=CallId("c9"))) == ["I16"]
    assert broken(*WANTED, CallAborted(call=CallId("nonsense"))) == ["I16"]


def test_an_unknown_call_is_made_again_only_where_that_is_safe() -> None:
    """I17: reading twice is harmless, mailing twice is not."""
    lost = (*WANTED, start(C2), start(C3), E2, CallUnknown(call=C2), CallUnknown(call=C3))
    assert broken(*lost, start(C3, attempt=2)) == []
    assert broken(*lost, start(C2, attempt=2)) == ["I17"]
    settled = CallSettled(call=C2, happened=False, by="ann")
    assert broken(*lost, settled, start(C2, attempt=2)) == []
    unsettled = CallSettled(call=C2, happened=None, by="ann")
    assert broken(*lost, unsettled, start(C2, attempt=2)) == ["I17"]


def test_only_what_nobody_knew_is_settled_by_evidence() -> None:
    """I17: a call that never left cannot be said to have happened."""
    settled = CallSettled(call=C2, happened=True, by="ann")
    assert broken(*WANTED, settled) == ["I17"]
    assert broken(*WANTED, start(C2), CallDone(call=C2), settled) == ["I17"]


def test_a_call_stopped_midway_is_made_again_only_where_that_is_safe() -> None:
    """I17: it may have taken effect; with its progress saved it can go on from there."""
    again = start(C2, attempt=2)
    assert broken(*WANTED, start(C2), CallAborted(call=C2), again) == ["I17"]
    saved = ProgressSaved(call=C2, progress=3)
    assert broken(*WANTED, start(C2), saved, CallAborted(call=C2), again) == []
    assert broken(*BEGUN, *step(LOOK), start(C2), CallAborted(call=C2), again) == []


def test_a_tool_that_failed_is_not_made_again_behind_the_agents_back() -> None:
    """I17: only a model call whose failure may pass is tried again."""
    failed = CallFailed(call=C2, error="no", transient=True)
    assert broken(*WANTED, start(C2), failed, start(C2, attempt=2)) == ["I17"]
    first = CallStarted(call=C1, call_kind="model", attempt=1, seen=Seq(-1))
    again = replace(first, attempt=2)
    broke = CallFailed(call=C1, error="529", transient=True)
    assert broken(*BEGUN, first, broke, again) == []
    assert broken(*BEGUN, first, replace(broke, transient=False), again) == ["I17"]


def test_attempts_are_counted() -> None:
    """I19: the far end knows a retry by its key, and the journal by its number."""
    assert broken(*WANTED, start(C2, attempt=2)) == ["I19"]
    lost = (*BEGUN, *step(LOOK), start(C2), E2, CallUnknown(call=C2))
    assert broken(*lost, start(C2, attempt=3)) == ["I19"]


def test_attempts_of_an_undo_are_counted() -> None:
    """I19: as those of calls are."""
    cancelling = (*BEGUN, *step(DRAFT), start(C2), CancelRequested(), CallDone(call=C2))
    failed = (*cancelling, UndoStarted(call=C2), UndoFailed(call=C2))
    assert broken(*failed, UndoStarted(call=C2, attempt=2)) == []
    assert broken(*failed, UndoStarted(call=C2, attempt=1)) == ["I19"]


def test_calls_asks_and_frames_are_numbered_without_gaps() -> None:
    """I19: the key is made of the number; drawn or skipped ones differ between machines."""
    skipped = CallStarted(call=C2, call_kind="model", attempt=1, seen=Seq(-1))
    assert broken(*BEGUN, skipped)[0] == "I19"
    unwanted = CallStarted(call=C1, call_kind="tool", attempt=1, seen=Seq(-1))
    assert broken(*BEGUN, unwanted) == ["I19"]
    ask = AskOpened(ask=AskId("a2"), ask_kind="question", call=C2)
    assert broken(*WANTED, start(C2), ask)[0] == "I19"
    frame = FramePushed(frame=FrameId("f2"), message=Seq(3), goal="Mail", expires=Micros(0))
    assert broken(*BEGUN, MessageReceived(text="Why?"), frame) == ["I19"]


def test_a_hosted_agents_wishes_are_not_those_of_the_person_at_the_wheel() -> None:
    """I11: who proposed a call is seen by who wrote it."""
    taken = (TakenOver(by="bob"), under(1, CallProposed(use=Use(tool="x"))))
    pause = (PauseRequested(why="taken_over"), RunPaused(why="taken_over"))
    used = (ToolUsed(tool="mail", by="bob"), CallProposed(use=MAIL), RunWoken(), E2)
    assert broken(*BEGUN, *taken, *pause, *used, start(C1)) == ["I11"]
    assert broken(*BEGUN, *taken, *pause, *used, start(C2)) == []
