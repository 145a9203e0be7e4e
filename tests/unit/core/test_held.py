"""What is sent to a model for held thoughts: bounded whatever they are about, and counted."""

from hypothesis import given as drawn
from hypothesis import strategies as st

from midrun.core import controls as c
from midrun.core.entries import LeaseTaken, RunStarted
from midrun.core.ids import Epoch
from midrun.core.transcript import (
    CHARS_PER_TOKEN,
    FRAME_MAX_TOKENS,
    Transcript,
    estimate_frame_tokens,
)
from midrun.core.values import Use
from midrun.testing.scenario import Scenario, given

LOOK = Use(tool="look", args={})


def asked(run: Scenario, *questions: str) -> Scenario:
    """Ask one thing after the other, each in the middle of the one before."""
    for question in questions:
        run = run.when(c.Say(text=question, urgency="now")).advances()
    return run


def begun(task: str = "Sort the mail", depth: int = 4) -> Scenario:
    """Return a run that a driver has just taken."""
    started = RunStarted(agent="clerk", task=task, frame_depth=depth)
    return given(started, LeaseTaken(epoch=Epoch(1)))


@drawn(st.lists(st.text(min_size=1, max_size=4000).filter(str.strip), min_size=1, max_size=6))
def test_a_held_thought_costs_no_more_than_its_share_whatever_it_is_about(
    texts: list[str],
) -> None:
    """A goal of many pages is told in a line."""
    task, *questions = texts
    run = asked(begun(task, depth=3), *questions)
    assert len(run.state.frames) == min(len(questions), 3)
    assert estimate_frame_tokens(run.state) <= len(run.state.frames) * FRAME_MAX_TOKENS
    held = [turn.text for turn in Transcript(run.state) if turn.kind == "held"]
    assert estimate_frame_tokens(run.state) * CHARS_PER_TOKEN >= sum(map(len, held))


def test_every_model_call_counts_what_it_was_told_of_held_thoughts() -> None:
    """Nothing without one; with one, the same again for each call that is made meanwhile."""
    run = begun().replies(LOOK).starts("c2")
    assert run.state.meter.held_tokens == 0
    run = asked(begun(), "And Tuesday?", "And Wednesday?")
    two = estimate_frame_tokens(run.state)
    assert two > 0
    run = run.replies(text="Wednesday is fine.")
    assert run.state.meter.held_tokens == two
    run = run.advances()
    one = estimate_frame_tokens(run.state)
    assert 0 < one < two
    run = run.replies(text="So is Tuesday.").advances()
    assert run.state.meter.held_tokens == two + one
    assert run.replies(text="Sorted.").advances().state.meter.held_tokens == two + one
