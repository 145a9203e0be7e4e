"""What happened, in words for whoever watches: every kind of entry that people care about."""

from midrun.core import entries as e
from midrun.core.evolve import evolve
from midrun.core.ids import CallId, Seq
from midrun.core.values import Use
from midrun.testing.scenario import LEASED_RUN, START_TIME, given
from midrun.text.phrases import format_value
from midrun.tui.entry_lines import KINDS_WITHOUT_LINES, LINES_BY_KIND, format_entry
from midrun.tui.styled_text import plain_text

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
    assert LINES_BY_KIND.keys() | KINDS_WITHOUT_LINES == set(e.ENTRY_TYPES)
    assert KINDS_WITHOUT_LINES == NOBODY_WATCHES | THE_NEXT_REPLY_SAYS_IT


def test_long_values_are_cut_and_end_in_a_sign_of_that() -> None:
    """A result of a megabyte is one line; the journal has the rest."""
    assert len(format_value("x" * 10_000)) == 400
    assert format_value("x" * 10_000).endswith("…")
    assert format_value({"a": [1, 2]}) == '{"a":[1,2]}'
    assert format_value("two\nlines") == "two lines"


def test_the_plan_is_told_as_a_list_and_not_as_the_call_that_made_it() -> None:
    """Nor a question as the call that asks it; any other tool is, also without arguments."""
    lines = {}
    for tool, args in (("plan", {"marks": {}}), ("ask_human", {"question": "?"}), ("look", {})):
        state = given(*LEASED_RUN).replies(Use(tool=tool, args=args)).state
        started = e.CallStarted(call=CallId("c2"), call_kind="tool", attempt=1, seen=state.seq)
        lines[tool] = format_entry(started, state, evolve(state, started, state.at))
    assert lines["plan"] == lines["ask_human"] == []
    assert plain_text(lines["look"][0]) == "→ look {}"


def test_a_failure_of_the_last_attempt_is_not_said_to_be_tried_again() -> None:
    """The provider says that it may pass; how often it is tried is bounded."""
    started = e.CallStarted(call=CallId("c1"), call_kind="model", attempt=1, seen=Seq(2))
    first, later = e.RunStarted(agent="clerk", task="Go", model_attempts=2), LEASED_RUN[1:]
    failed = e.CallFailed(call=CallId("c1"), error="busy", transient=True, retry_at=START_TIME)
    before = given(first, *later, started)
    after = before.after(failed)
    assert plain_text(format_entry(failed, before.state, after.state)[0]).endswith(
        "; it is retried"
    )
    again = e.CallStarted(call=CallId("c1"), call_kind="model", attempt=2, seen=Seq(4))
    before = after.after(again)
    last = format_entry(failed, before.state, before.after(failed).state)[0]
    assert plain_text(last).endswith("busy")


def test_resuming_with_a_redirect_that_waits_is_not_said_to_change_nothing() -> None:
    """Its words stand right above; they are applied next."""
    resumed = e.RunResumed(by="ada")
    before = given(*LEASED_RUN).state
    (line,) = format_entry(resumed, before, before)
    assert plain_text(line) == "= resumed by ada, no changes"
    redirect = e.RedirectRequested(text="Be brief.", by="ada")
    waiting = evolve(before, redirect, before.at)
    (line,) = format_entry(resumed, waiting, waiting)
    assert plain_text(line) == "= resumed by ada, with a new instruction"
