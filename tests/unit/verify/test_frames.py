"""Frames and messages: I34, I35, I36."""

import pytest
from msgspec.structs import replace

from midrun.core.entries import (
    CancelRequested,
    Entry,
    FrameAbandoned,
    FramePushed,
    FrameReconstructed,
    FrameResumed,
    LeaseTaken,
    MessageClosed,
    MessageReceived,
    MessageTaken,
    PauseRequested,
    RedirectApplied,
    RedirectClosed,
    RedirectRequested,
    RunCancelled,
    RunCompleted,
    RunPaused,
    RunResumed,
)
from midrun.core.ids import MICROS_PER_SECOND, Epoch, FrameId, Micros, Seq
from tests.unit.verify.books import BEGUN, C2, NOON, RUN, TAKEN, at, broken, step

E2 = LeaseTaken(epoch=Epoch(2))


def push(number: int, message: int) -> FramePushed:
    """Return the push that suspends the task for a message."""
    return FramePushed(
        frame=FrameId(f"f{number}"),
        message=Seq(message),
        goal="Sort the mail",
        expires=Micros(NOON + 60 * MICROS_PER_SECOND),
    )


F1, F2 = FrameId("f1"), FrameId("f2")
BACK = "Back to *Sort the mail* — step 1"
ASIDE = (*BEGUN, MessageReceived(text="Why?"), push(1, 3))
DEEP = (*ASIDE, MessageReceived(text="And then?"), push(2, 5))


def test_every_frame_is_resumed_or_abandoned_before_the_end() -> None:
    """I34: a thought does not vanish without being named."""
    answered = (*ASIDE, *step(text="So."))
    back = (FrameResumed(frame=F1, words=BACK), *step(call=C2, text="Done."))
    assert broken(*answered, *back, RunCompleted()) == []
    assert broken(*answered, RunCompleted()) == ["I34"]
    dropped = FrameAbandoned(frame=F1, why="cancelled")
    assert broken(*ASIDE, CancelRequested(), dropped, RunCancelled()) == []
    assert broken(*ASIDE, CancelRequested(), RunCancelled()) == ["I34"]


def test_frames_are_closed_last_in_first_out() -> None:
    """I34: the run goes back the way it came."""
    words = BACK
    assert broken(*DEEP, FrameResumed(frame=F2, words=words)) == []
    assert broken(*DEEP, FrameResumed(frame=F1, words=words)) == ["I34"]


def test_a_frame_is_closed_once() -> None:
    """I34: what was resumed cannot be abandoned, nor resumed again."""
    resumed = (*ASIDE, FrameResumed(frame=F1, words=BACK))
    assert broken(*resumed, FrameAbandoned(frame=F1, why="dropped")) == ["I34"]


def test_the_stack_is_never_deeper_than_its_cap() -> None:
    """I35: nobody keeps five thoughts in mind."""
    begun = (replace(RUN, frame_depth=1), TAKEN)
    one = (*begun, MessageReceived(text="Why?"), push(1, 3))
    assert broken(*one, MessageReceived(text="And?", queued=True)) == []
    assert broken(*one, MessageReceived(text="And?"), push(2, 5)) == ["I35"]


@pytest.mark.parametrize(
    ("said", "gone"),
    [
        (MessageReceived(text="Why?"), MessageTaken(message=Seq(3))),
        (MessageReceived(text="Why?"), MessageClosed(message=Seq(3), why="returned")),
        (RedirectRequested(text="Go"), RedirectApplied(redirect=Seq(3))),
        (RedirectRequested(text="Go"), RedirectClosed(redirect=Seq(3), why="returned")),
    ],
)
def test_what_somebody_said_is_taken_up_or_comes_back(said: Entry, gone: Entry) -> None:
    """I35: nobody's words are lost, and nobody's are used twice."""
    answered = step(text="Done.")
    assert broken(*BEGUN, said, gone, *answered, RunCompleted()) == []
    assert broken(*BEGUN, said, *answered, RunCompleted()) == ["I35"]
    assert broken(*BEGUN, said, gone, gone)[0] == "I35"


def test_an_instruction_that_came_with_the_resume_is_applied_before_the_end() -> None:
    """I35: it waits for its boundary as a redirect does."""
    resumed = (PauseRequested(), RunPaused(), RunResumed(instruction="Be brief"), E2)
    applied = RedirectApplied(redirect=Seq(5))
    assert broken(*BEGUN, *resumed, applied, *step(text="Done."), RunCompleted()) == []
    assert broken(*BEGUN, *resumed, *step(text="Done."), RunCompleted()) == ["I35"]


def test_a_frame_that_was_held_for_too_long_is_not_simply_resumed() -> None:
    """I36: the run admits that it reconstructs."""
    resumed = FrameResumed(frame=F1, words=BACK)
    rebuilt = FrameReconstructed(frame=F1, words=BACK + ", as a reconstruction")
    assert broken(*ASIDE, at(60, resumed)) == []
    assert broken(*ASIDE, at(62, resumed)) == ["I36"]
    assert broken(*ASIDE, at(62, rebuilt)) == []


def test_the_way_back_is_said_by_name() -> None:
    """I36: "Back to what?" must not be a question."""
    assert broken(*ASIDE, FrameResumed(frame=F1, words="Back to it")) == ["I36"]
