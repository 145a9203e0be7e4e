"""What happened, in words for whoever watches: every kind of entry that people care about."""

from midrun.core import entries as e
from midrun.core.evolve import evolve
from midrun.core.ids import CallId, Seq
from midrun.core.values import Use
from midrun.testing.scenario import BEGUN, NOON, given
from midrun.text.phrases import shown
from midrun.tui.entry_lines import ARMS, QUIET, told
from midrun.tui.style import words

NOBODY_WATCHES = {
    e.LeaseTaken,
    e.RunWaiting,
    e.RunWoken,
    e.EndReached,
    e.VerdictGiven,
    e.UndoRetried,
    e.ResidueAccepted,
    e.RequestNoted,
    e.CallProposed,
    e.ProgressSaved,
    e.LateResult,
    e.UndoUnknown,
    e.MessageDue,
    e.MessageTaken,
    e.ToolUsed,
}

THE_NEXT_REPLY_SAYS_IT = {e.FrameResumed, e.FrameReconstructed}


def test_every_kind_of_entry_is_told_or_known_to_be_quiet() -> None:
    """A new kind must choose: silence by accident hides what a run does."""
    assert ARMS.keys() | QUIET == set(e.KINDS)
    assert QUIET == NOBODY_WATCHES | THE_NEXT_REPLY_SAYS_IT


def test_long_values_are_cut_and_end_in_a_sign_of_that() -> None:
    """A result of a megabyte is one line; the journal has the rest."""
    assert len(shown("x" * 10_000)) == 400
    assert shown("x" * 10_000).endswith("…")
    assert shown({"a": [1, 2]}) == '{"a":[1,2]}'
    assert shown("two\nlines") == "two lines"


def test_the_plan_is_told_as_a_list_and_not_as_the_call_that_made_it() -> None:
    """Nor a question as the call that asks it; any other tool is, also without arguments."""
    lines = {}
    for tool, args in (("plan", {"marks": {}}), ("ask_human", {"question": "?"}), ("look", {})):
        state = given(*BEGUN).replies(Use(tool=tool, args=args)).state
        started = e.CallStarted(call=CallId("c2"), call_kind="tool", attempt=1, seen=state.seq)
        lines[tool] = told(started, state, evolve(state, started, state.at))
    assert lines["plan"] == lines["ask_human"] == []
    assert words(lines["look"][0]) == "→ look {}"


def test_a_failure_of_the_last_attempt_is_not_said_to_be_tried_again() -> None:
    """The provider says that it may pass; how often it is tried is bounded."""
    started = e.CallStarted(call=CallId("c1"), call_kind="model", attempt=1, seen=Seq(2))
    first, later = e.RunStarted(agent="clerk", task="Go", model_attempts=2), BEGUN[1:]
    failed = e.CallFailed(call=CallId("c1"), error="busy", transient=True, retry_at=NOON)
    before = given(first, *later, started)
    after = before.after(failed)
    assert words(told(failed, before.state, after.state)[0]).endswith("; it is retried")
    again = e.CallStarted(call=CallId("c1"), call_kind="model", attempt=2, seen=Seq(4))
    before = after.after(again)
    last = told(failed, before.state, before.after(failed).state)[0]
    assert words(last).endswith("busy")


def test_resuming_with_a_redirect_that_waits_is_not_said_to_change_nothing() -> None:
    """Its words stand right above; they are applied next."""
    resumed = e.RunResumed(by="ada")
    before = given(*BEGUN).state
    (line,) = told(resumed, before, before)
    assert words(line) == "= resumed by ada, no changes"
    redirect = e.RedirectRequested(text="Be brief.", by="ada")
    waiting = evolve(before, redirect, before.at)
    (line,) = told(resumed, waiting, waiting)
    assert words(line) == "= resumed by ada, with a new instruction"
