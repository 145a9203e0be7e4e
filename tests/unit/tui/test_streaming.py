"""Words come one by one; rows go up one by one, and none is ever written twice."""

from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.utils import get_cwidth

from midrun.core.ids import CallId
from midrun.tui.feed_lines import INTERRUPTED_MARK, StreamedText
from midrun.tui.styled_text import StyledLine, plain_text, style_emphasis
from midrun.tui.wrap import wrap_indented, wrap_text

C1, C2 = CallId("c1"), CallId("c2")


def rows(lines: list[StyledLine]) -> list[str]:
    """Return lines without their looks."""
    return [plain_text(line) for line in lines]


@given(st.text(st.characters(categories=("L", "N", "Z", "S"))), st.integers(2, 40))
def test_a_row_is_never_wider_than_the_terminal(text: str, width: int) -> None:
    """Wide characters count as two columns; nothing but blanks is lost."""
    made = wrap_text(text, width)
    assert all(get_cwidth(row) <= width or len(row) == 1 for row in made)
    assert "".join(made).replace(" ", "") == text.replace(" ", "")


def test_rows_break_between_words() -> None:
    """And inside one only if it alone is too long."""
    assert wrap_text("one two three", 8) == ["one two", "three"]
    assert wrap_text("日本語の文字", 6) == ["日本語", "の文字"]
    assert wrap_text("incomprehensible", 6) == ["incomp", "rehens", "ible"]


def test_a_line_is_folded_with_its_looks_and_moved_in_below_its_mark() -> None:
    """No word is cut in two, and none loses its look."""
    line: StyledLine = [("good", "✓ read"), ("dim", " all of the news of today")]
    assert wrap_indented(line, 80) == [line]
    assert wrap_indented(line, 16) == [
        [("good", "✓ read"), ("dim", " all of")],
        [("", "  "), ("dim", "the news of")],
        [("", "  "), ("dim", "today")],
    ]
    assert rows(wrap_indented([("", "  ○ incomprehensible")], 12))[0] == "  ○"


@given(st.lists(st.text(max_size=12), max_size=20), st.integers(4, 30))
def test_the_pieces_of_a_speech_make_the_same_rows_as_the_whole(
    pieces: list[str], width: int
) -> None:
    """However the provider cuts it, and whatever was heard before the end came."""
    text = "".join(pieces).replace("\r", "").replace("\t", " ")
    streamed, whole = StreamedText(), StreamedText()
    lines = [
        line
        for piece in pieces
        for line in streamed.add_piece(C1, piece.replace("\r", "").replace("\t", " "), width)
    ]
    lines += streamed.finish_call(C1, text, width, interrupted=False)
    expected = whole.finish_call(C1, text, width, interrupted=False)
    assert "".join(rows(lines)).split() == "".join(rows(expected)).split()
    assert not streamed.row


def test_what_was_heard_is_not_told_again() -> None:
    """The entry has all of it; only the rest is new."""
    speech = StreamedText()
    assert rows(speech.add_piece(C1, "First line\nsecond", 40)) == ["First line"]
    assert speech.row == "second"
    assert rows(speech.finish_call(C1, "First line\nsecond half", 40, interrupted=False)) == [
        "second half"
    ]


def test_a_speech_that_was_cut_short_says_so() -> None:
    """A half sentence must not pass for a whole one."""
    speech = StreamedText()
    speech.add_piece(C1, "The answer is", 40)
    (row,) = rows(speech.finish_call(C1, "The answer is not", 40, interrupted=True))
    assert row == f"The answer is not{INTERRUPTED_MARK}"
    assert speech.finish_call(C2, "", 40, interrupted=True) == []  # nothing said, nothing cut


def test_another_attempt_begins_anew() -> None:
    """What the first said before it broke stays, and is marked."""
    speech = StreamedText()
    speech.add_piece(C1, "Cats are", 40)
    assert rows(speech.add_piece(C2, "Dogs", 40)) == [f"Cats are{INTERRUPTED_MARK}"]
    assert speech.row == "Dogs"


def test_a_speech_that_was_heard_from_its_middle_is_told_from_its_beginning() -> None:
    """Whoever comes late has missed something; nobody was interrupted."""
    speech = StreamedText()
    speech.add_piece(C1, "the mat", 40)
    assert rows(speech.finish_call(C1, "The cat sat on the mat.", 40, interrupted=False)) == [
        "the mat",
        "The cat sat on the mat.",
    ]


def test_an_opening_tells_only_what_was_not_heard() -> None:
    """A row that went up cannot be taken back; the words go on where they were cut off."""
    speech = StreamedText()
    assert rows(speech.add_piece(C1, "one\ntwo ", 80, opening=True)) == ["one"]
    assert rows(speech.add_piece(C1, "one\ntwo three\nfour", 80, opening=True)) == ["two three"]
    assert rows(speech.finish_call(C1, "one\ntwo three\nfour", 80, interrupted=False)) == [
        "four"
    ]


def test_an_opening_that_is_another_is_told_from_its_beginning() -> None:
    """Another attempt says something else: what was heard of the first is marked."""
    speech = StreamedText()
    speech.add_piece(C1, "one two", 80)
    made = rows(speech.add_piece(C1, "Well,\nno", 80, opening=True))
    assert made == [f"one two{INTERRUPTED_MARK}", "Well,"]
    assert speech.row == "no"


def test_the_way_back_is_shown_with_its_name_marked_and_without_the_marks() -> None:
    """The runtime writes *so*; what a model marks is its own, and is left alone."""
    speech = StreamedText()
    speech.prefix = "Back to *Sort the mail* — step 2"
    lines = speech.add_piece(C1, f"{speech.prefix}\n\nIt is *not* mail.\n", 24)
    assert rows(lines) == ["Back to Sort the mail —", "step 2", "", "It is *not* mail."]
    assert lines[0] == [("", "Back to "), ("em", "Sort the mail"), ("", " —")]


def test_what_the_runtime_marks_is_emphasised() -> None:
    """In the look of the line around it."""
    assert style_emphasis("Noted — after *a* and *b*", "dim") == [
        ("dim", "Noted — after "),
        ("em", "a"),
        ("dim", " and "),
        ("em", "b"),
    ]
    assert style_emphasis("nothing * to mark") == [("", "nothing * to mark")]
