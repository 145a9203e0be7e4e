"""Words come one by one; rows go up one by one, and none is ever written twice."""

from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.utils import get_cwidth

from midrun.core.ids import CallId
from midrun.tui.folding import folded, wrapped
from midrun.tui.streaming import INTERRUPTED, Speech
from midrun.tui.style import Line, words

C1, C2 = CallId("c1"), CallId("c2")


def rows(lines: list[Line]) -> list[str]:
    """Return lines without their looks."""
    return [words(line) for line in lines]


@given(st.text(st.characters(categories=("L", "N", "Z", "S"))), st.integers(2, 40))
def test_a_row_is_never_wider_than_the_terminal(text: str, width: int) -> None:
    """Wide characters count as two columns; nothing but blanks is lost."""
    made = folded(text, width)
    assert all(get_cwidth(row) <= width or len(row) == 1 for row in made)
    assert "".join(made).replace(" ", "") == text.replace(" ", "")


def test_rows_break_between_words() -> None:
    """And inside one only if it alone is too long."""
    assert folded("one two three", 8) == ["one two", "three"]
    assert folded("日本語の文字", 6) == ["日本語", "の文字"]
    assert folded("incomprehensible", 6) == ["incomp", "rehens", "ible"]


def test_a_line_is_folded_with_its_looks_and_moved_in_below_its_mark() -> None:
    """No word is cut in two, and none loses its look."""
    line: Line = [("good", "✓ read"), ("dim", " all of the news of today")]
    assert wrapped(line, 80) == [line]
    assert wrapped(line, 16) == [
        [("good", "✓ read"), ("dim", " all of")],
        [("", "  "), ("dim", "the news of")],
        [("", "  "), ("dim", "today")],
    ]
    assert rows(wrapped([("", "  ○ incomprehensible")], 12))[0] == "  ○"


@given(st.lists(st.text(max_size=12), max_size=20), st.integers(4, 30))
def test_the_pieces_of_a_speech_make_the_same_rows_as_the_whole(
    pieces: list[str], width: int
) -> None:
    """However the provider cuts it, and whatever was heard before the end came."""
    text = "".join(pieces).replace("\r", "").replace("\t", " ")
    streamed, whole = Speech(), Speech()
    lines = [
        line
        for piece in pieces
        for line in streamed.heard(C1, piece.replace("\r", "").replace("\t", " "), width)
    ]
    lines += streamed.whole(C1, text, width, interrupted=False)
    expected = whole.whole(C1, text, width, interrupted=False)
    assert "".join(rows(lines)).split() == "".join(rows(expected)).split()
    assert not streamed.row


def test_what_was_heard_is_not_told_again() -> None:
    """The entry has all of it; only the rest is new."""
    speech = Speech()
    assert rows(speech.heard(C1, "First line\nsecond", 40)) == ["First line"]
    assert speech.row == "second"
    assert rows(speech.whole(C1, "First line\nsecond half", 40, interrupted=False)) == [
        "second half"
    ]


def test_a_speech_that_was_cut_short_says_so() -> None:
    """A half sentence must not pass for a whole one."""
    speech = Speech()
    speech.heard(C1, "The answer is", 40)
    (row,) = rows(speech.whole(C1, "The answer is not", 40, interrupted=True))
    assert row == f"The answer is not{INTERRUPTED}"
    assert speech.whole(C2, "", 40, interrupted=True) == []  # nothing said, nothing cut


def test_another_attempt_begins_anew() -> None:
    """What the first said before it broke stays, and is marked."""
    speech = Speech()
    speech.heard(C1, "Cats are", 40)
    assert rows(speech.heard(C2, "Dogs", 40)) == [f"Cats are{INTERRUPTED}"]
    assert speech.row == "Dogs"


def test_a_speech_that_was_heard_from_its_middle_is_told_from_its_beginning() -> None:
    """Whoever comes late has missed something; nobody was interrupted."""
    speech = Speech()
    speech.heard(C1, "the mat", 40)
    assert rows(speech.whole(C1, "The cat sat on the mat.", 40, interrupted=False)) == [
        "the mat",
        "The cat sat on the mat.",
    ]
