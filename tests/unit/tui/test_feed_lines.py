"""Lines above the bar: the streamed text of a model, row by row, and the lines of entries."""

from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.utils import get_cwidth

from midrun.core import entries as e
from midrun.core.evolve import evolve
from midrun.core.ids import CallId, Seq
from midrun.core.values import RequestedCall
from midrun.testing.scenario import LEASED_RUN, START_TIME
from midrun.testing.scenario import given as make_scenario
from midrun.text.phrases import format_value
from midrun.tui.entry_lines import KINDS_WITHOUT_LINES, LINES_BY_KIND, format_entry
from midrun.tui.feed_lines import INTERRUPTED_MARK, StreamedText
from midrun.tui.styled_text import StyledLine, plain_text
from midrun.tui.wrap import wrap_indented, wrap_text

C1, C2 = CallId("c1"), CallId("c2")


def get_texts(lines: list[StyledLine]) -> list[str]:
    """Return the texts of lines, without their styles."""
    return [plain_text(line) for line in lines]


@given(st.text(st.characters(categories=("L", "N", "Z", "S"))), st.integers(2, 40))
def test_a_row_is_never_wider_than_the_terminal(text: str, width: int) -> None:
    """Wide characters count as two columns; only blanks may be lost."""
    rows = wrap_text(text, width)
    assert all(get_cwidth(row) <= width or len(row) == 1 for row in rows)
    assert "".join(rows).replace(" ", "") == text.replace(" ", "")


def test_rows_break_between_words() -> None:
    """A word is broken only if it is longer than a row."""
    assert wrap_text("one two three", 8) == ["one two", "three"]
    assert wrap_text("日本語の文字", 6) == ["日本語", "の文字"]
    assert wrap_text("incomprehensible", 6) == ["incomp", "rehens", "ible"]


def test_a_styled_line_is_wrapped_with_its_styles_and_indented() -> None:
    line: StyledLine = [("good", "✓ read"), ("dim", " all of the news of today")]
    assert wrap_indented(line, 80) == [line]
    assert wrap_indented(line, 16) == [
        [("good", "✓ read"), ("dim", " all of")],
        [("", "  "), ("dim", "the news of")],
        [("", "  "), ("dim", "today")],
    ]
    assert get_texts(wrap_indented([("", "  ○ incomprehensible")], 12))[0] == "  ○"


@given(st.lists(st.text(max_size=12), max_size=20), st.integers(4, 30))
def test_streamed_pieces_make_the_same_rows_as_the_whole_text(
    pieces: list[str], width: int
) -> None:
    """However the provider splits the text."""
    text = "".join(pieces).replace("\r", "").replace("\t", " ")
    streamed, whole = StreamedText(), StreamedText()
    lines = [
        line
        for piece in pieces
        for line in streamed.add_piece(C1, piece.replace("\r", "").replace("\t", " "), width)
    ]
    lines += streamed.finish_call(C1, text, width, interrupted=False)
    expected = whole.finish_call(C1, text, width, interrupted=False)
    assert "".join(get_texts(lines)).split() == "".join(get_texts(expected)).split()
    assert not streamed.row


def test_the_end_of_a_call_prints_only_the_rest_of_its_text() -> None:
    """The entry has the whole text."""
    streamed = StreamedText()
    assert get_texts(streamed.add_piece(C1, "First line\nsecond", 40)) == ["First line"]
    assert streamed.row == "second"
    assert get_texts(
        streamed.finish_call(C1, "First line\nsecond half", 40, interrupted=False)
    ) == ["second half"]


def test_an_interrupted_text_is_marked() -> None:
    streamed = StreamedText()
    streamed.add_piece(C1, "The answer is", 40)
    (row,) = get_texts(streamed.finish_call(C1, "The answer is not", 40, interrupted=True))
    assert row == f"The answer is not{INTERRUPTED_MARK}"
    assert streamed.finish_call(C2, "", 40, interrupted=True) == []  # no text, no mark


def test_the_text_of_another_attempt_starts_on_a_new_row() -> None:
    """The text of the failed attempt stays and is marked."""
    streamed = StreamedText()
    streamed.add_piece(C1, "Cats are", 40)
    assert get_texts(streamed.add_piece(C2, "Dogs", 40)) == [f"Cats are{INTERRUPTED_MARK}"]
    assert streamed.row == "Dogs"


def test_a_text_that_was_followed_from_its_middle_is_printed_as_a_whole_at_its_end() -> None:
    """It is not marked as interrupted."""
    streamed = StreamedText()
    streamed.add_piece(C1, "the mat", 40)
    assert get_texts(
        streamed.finish_call(C1, "The cat sat on the mat.", 40, interrupted=False)
    ) == [
        "the mat",
        "The cat sat on the mat.",
    ]


def test_an_opening_prints_only_the_text_that_is_new() -> None:
    """Printed rows cannot be changed, so the text continues after them."""
    streamed = StreamedText()
    assert get_texts(streamed.add_piece(C1, "one\ntwo ", 80, opening=True)) == ["one"]
    assert get_texts(streamed.add_piece(C1, "one\ntwo three\nfour", 80, opening=True)) == [
        "two three"
    ]
    assert get_texts(
        streamed.finish_call(C1, "one\ntwo three\nfour", 80, interrupted=False)
    ) == ["four"]


def test_an_opening_of_another_attempt_is_printed_from_its_beginning() -> None:
    """The text of the first attempt is marked."""
    streamed = StreamedText()
    streamed.add_piece(C1, "one two", 80)
    rows = get_texts(streamed.add_piece(C1, "Well,\nno", 80, opening=True))
    assert rows == [f"one two{INTERRUPTED_MARK}", "Well,"]
    assert streamed.row == "no"


def test_the_prefix_of_the_runtime_is_shown_with_emphasis() -> None:
    """Asterisks in the text of the model itself stay as they are."""
    streamed = StreamedText()
    streamed.prefix = "Back to *Sort the mail* — step 2"
    lines = streamed.add_piece(C1, f"{streamed.prefix}\n\nIt is *not* mail.\n", 24)
    assert get_texts(lines) == ["Back to Sort the mail —", "step 2", "", "It is *not* mail."]
    assert lines[0] == [("", "Back to "), ("em", "Sort the mail"), ("", " —")]


# ── lines of entries ─────────────────────────────────────────────────────────


KINDS_WITHOUT_NEWS = {
    e.LeaseTaken,
    e.RunWaiting,
    e.RunWoken,
    e.StopReached,
    e.StopEvaluated,
    e.UndoRetried,
    e.ResidueAccepted,
    e.RequestNoted,
    e.CallProposed,
    e.ProgressSaved,
    e.LateResult,
    e.UndoUnknown,
    e.MessageDue,
    e.MessageTaken,
    e.ToolUseRequested,
}

KINDS_IN_THE_NEXT_REPLY = {e.FrameResumed, e.FrameReconstructed}


def test_each_kind_of_entry_has_lines_or_is_listed_as_silent() -> None:
    """The author of a new kind must decide."""
    assert LINES_BY_KIND.keys() | KINDS_WITHOUT_LINES == set(e.ENTRY_TYPES)
    assert KINDS_WITHOUT_LINES == KINDS_WITHOUT_NEWS | KINDS_IN_THE_NEXT_REPLY


def test_long_values_are_truncated_with_an_ellipsis() -> None:
    """A result of a megabyte is one line; the journal has the rest."""
    assert len(format_value("x" * 10_000)) == 400
    assert format_value("x" * 10_000).endswith("…")
    assert format_value({"a": [1, 2]}) == '{"a":[1,2]}'
    assert format_value("two\nlines") == "two lines"


def test_calls_of_plan_and_ask_human_have_no_line() -> None:
    """The plan and the ask have lines of their own; other calls have one."""
    lines = {}
    for tool, args in (("plan", {"marks": {}}), ("ask_human", {"question": "?"}), ("look", {})):
        state = make_scenario(*LEASED_RUN).replies(RequestedCall(tool=tool, args=args)).state
        started = e.CallStarted(call=CallId("c2"), call_kind="tool", attempt=1, seen=state.seq)
        lines[tool] = format_entry(started, state, evolve(state, started, state.at))
    assert lines["plan"] == lines["ask_human"] == []
    assert plain_text(lines["look"][0]) == "→ look {}"


def test_only_a_failure_before_the_last_attempt_is_shown_as_retried() -> None:
    """A transient failure is retried a limited number of times."""
    started = e.CallStarted(call=CallId("c1"), call_kind="model", attempt=1, seen=Seq(2))
    first, later = e.RunStarted(agent="clerk", task="Go", model_attempts=2), LEASED_RUN[1:]
    failed = e.CallFailed(call=CallId("c1"), error="busy", transient=True, retry_at=START_TIME)
    before = make_scenario(first, *later, started)
    after = before.after(failed)
    assert plain_text(format_entry(failed, before.state, after.state)[0]).endswith(
        "; it is retried"
    )
    again = e.CallStarted(call=CallId("c1"), call_kind="model", attempt=2, seen=Seq(4))
    before = after.after(again)
    last = format_entry(failed, before.state, before.after(failed).state)[0]
    assert plain_text(last).endswith("busy")


def test_a_resume_with_a_pending_redirect_is_shown_with_a_new_instruction() -> None:
    resumed = e.RunResumed(by="ada")
    before = make_scenario(*LEASED_RUN).state
    (line,) = format_entry(resumed, before, before)
    assert plain_text(line) == "= resumed by ada, no changes"
    redirect = e.RedirectRequested(text="Be brief.", by="ada")
    waiting = evolve(before, redirect, before.at)
    (line,) = format_entry(resumed, waiting, waiting)
    assert plain_text(line) == "= resumed by ada, with a new instruction"
