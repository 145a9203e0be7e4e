"""Lines above the bar: the streamed text of a model, row by row, and the lines of entries."""

from typing import get_args

from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.utils import get_cwidth

from midrun.core import entries as e
from midrun.core.ids import CallId, RunId
from midrun.runs.event_stream import EventBuilder
from midrun.runs.feed import make_feed_entry
from midrun.testing.scenario import LEASED_RUN
from midrun.testing.scenario import given as make_scenario
from midrun.text.phrases import Tone, format_value
from midrun.tui.feed_lines import ICON_BY_TONE, INTERRUPTED_MARK, FeedLines, StreamedText
from midrun.tui.styled_text import SGR_BY_STYLE, StyledLine, plain_text
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


def make_lines(*later: e.Entry) -> list[StyledLine]:
    """Return the lines of the entries of a run that has been taken by a worker."""
    builder, feed = EventBuilder(RunId("run_1")), FeedLines()
    records = make_scenario(*LEASED_RUN, *later).records
    events = [builder.build_next(make_feed_entry(record)) for record in records]
    return [line for event in events for line in feed.format_event(event, 80)]


def test_each_tone_but_detail_has_an_icon_and_a_colour() -> None:
    assert {*ICON_BY_TONE, "detail"} == set(get_args(Tone))
    assert ICON_BY_TONE.keys() <= SGR_BY_STYLE.keys()


def test_an_entry_is_its_sentence_behind_the_icon_of_its_tone() -> None:
    """The bar shows the entries of the tone `detail`, such as the lease."""
    lines = make_lines(e.PauseRequested(by="ada", reason="lunch"), e.RunPaused(why="user"))
    assert get_texts(lines)[1:] == [
        "‖ ada asked the run to pause at its next step, because: lunch",
        "‖ the run is paused",
    ]
    assert lines[1] == [
        ("hold", "‖ ada asked the run to pause at its next step"),
        ("dim", ", because: lunch"),
    ]


def test_long_values_are_truncated_with_an_ellipsis() -> None:
    """A result of a megabyte is one line; the journal has the rest."""
    assert len(format_value("x" * 10_000)) == 400
    assert format_value("x" * 10_000).endswith("…")
    assert format_value({"a": [1, 2]}) == '{"a":[1,2]}'
    assert format_value("two\nlines") == "two lines"
