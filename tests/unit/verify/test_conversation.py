"""Checks of messages, redirects and frames: I34 to I36, and I43."""

import pytest
from msgspec.structs import replace

from midrun.core.entries import (
    CallDone,
    CancelRequested,
    Entry,
    FrameAbandoned,
    FramePushed,
    FrameReconstructed,
    FrameResumed,
    HandedOff,
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
from midrun.core.ids import MICROS_PER_SECOND, FrameId, Micros, Seq
from midrun.core.values import RequestedCall
from tests.unit.verify.journal_builder import (
    C2,
    LEASE,
    LEASE_2,
    LEASED_RUN,
    START_TIME,
    STARTED,
    find_violations,
    make_call_in_flight,
    make_step,
    with_time,
)


def make_push(number: int, message: int) -> FramePushed:
    """Return the entry that holds the task for the message with this seq."""
    return FramePushed(
        frame=FrameId(f"f{number}"),
        message=Seq(message),
        goal="Sort the mail",
        expires=Micros(START_TIME + 60 * MICROS_PER_SECOND),
    )


F1, F2 = FrameId("f1"), FrameId("f2")
BACK_TEXT = "Back to *Sort the mail* — step 1"
HELD = (*LEASED_RUN, MessageReceived(text="Why?"), make_push(1, 3))
NESTED = (*HELD, MessageReceived(text="And then?"), make_push(2, 5))


def test_every_frame_is_resumed_or_abandoned_before_the_end() -> None:
    """I34."""
    answered = (*HELD, *make_step(text="So."))
    resumed = (FrameResumed(frame=F1, text=BACK_TEXT), *make_step(call=C2, text="Done."))
    assert find_violations(*answered, *resumed, RunCompleted()) == []
    assert find_violations(*answered, RunCompleted()) == ["I34"]
    dropped = FrameAbandoned(frame=F1, why="cancelled")
    assert find_violations(*HELD, CancelRequested(), dropped, RunCancelled()) == []
    assert find_violations(*HELD, CancelRequested(), RunCancelled()) == ["I34"]


def test_frames_are_closed_last_in_first_out() -> None:
    """I34."""
    assert find_violations(*NESTED, FrameResumed(frame=F2, text=BACK_TEXT)) == []
    assert find_violations(*NESTED, FrameResumed(frame=F1, text=BACK_TEXT)) == ["I34"]


def test_a_frame_is_closed_once() -> None:
    """I34: a frame that was resumed cannot be abandoned."""
    resumed = (*HELD, FrameResumed(frame=F1, text=BACK_TEXT))
    assert find_violations(*resumed, FrameAbandoned(frame=F1, why="dropped")) == ["I34"]


def test_the_stack_of_frames_is_never_deeper_than_its_limit() -> None:
    """I35."""
    started = (replace(STARTED, frame_depth=1), LEASE)
    one = (*started, MessageReceived(text="Why?"), make_push(1, 3))
    assert find_violations(*one, MessageReceived(text="And?", queued=True)) == []
    assert find_violations(*one, MessageReceived(text="And?"), make_push(2, 5)) == ["I35"]


@pytest.mark.parametrize(
    ("entry", "closing"),
    [
        (MessageReceived(text="Why?"), MessageTaken(message=Seq(3))),
        (MessageReceived(text="Why?"), MessageClosed(message=Seq(3), why="returned")),
        (RedirectRequested(text="Go"), RedirectApplied(redirect=Seq(3))),
        (RedirectRequested(text="Go"), RedirectClosed(redirect=Seq(3), why="returned")),
    ],
)
def test_every_message_and_every_redirect_is_used_or_returned_once(
    entry: Entry, closing: Entry
) -> None:
    """I35."""
    answered = make_step(text="Done.")
    assert find_violations(*LEASED_RUN, entry, closing, *answered, RunCompleted()) == []
    assert find_violations(*LEASED_RUN, entry, *answered, RunCompleted()) == ["I35"]
    assert find_violations(*LEASED_RUN, entry, closing, closing)[0] == "I35"


def test_an_instruction_of_a_resume_is_applied_before_the_end() -> None:
    """I35: it waits for its boundary, as a redirect does."""
    resumed = (PauseRequested(), RunPaused(), RunResumed(instruction="Be brief"), LEASE_2)
    applied = RedirectApplied(redirect=Seq(5))
    assert (
        find_violations(
            *LEASED_RUN, *resumed, applied, *make_step(text="Done."), RunCompleted()
        )
        == []
    )
    assert find_violations(*LEASED_RUN, *resumed, *make_step(text="Done."), RunCompleted()) == [
        "I35"
    ]


def test_an_expired_frame_is_reconstructed_and_not_resumed() -> None:
    """I36."""
    resumed = FrameResumed(frame=F1, text=BACK_TEXT)
    rebuilt = FrameReconstructed(frame=F1, text=BACK_TEXT + ", as a reconstruction")
    assert find_violations(*HELD, with_time(60, resumed)) == []
    assert find_violations(*HELD, with_time(62, resumed)) == ["I36"]
    assert find_violations(*HELD, with_time(62, rebuilt)) == []


def test_the_text_of_a_resumed_frame_names_its_goal() -> None:
    """I36."""
    assert find_violations(*HELD, FrameResumed(frame=F1, text="Back to it")) == ["I36"]


def test_a_handoff_follows_from_a_call_that_asked_for_it_and_has_ended() -> None:
    """I43."""
    use = RequestedCall(tool="hand_off_to_desk", handoff="desk")
    done = CallDone(call=C2)
    begun = make_call_in_flight(use)
    assert find_violations(*begun, done, HandedOff(agent="desk", call=C2)) == []
    assert find_violations(*begun, done, HandedOff(agent="front", call=C2)) == ["I43"]
    assert "I43" in find_violations(*begun, HandedOff(agent="desk", call=C2))
