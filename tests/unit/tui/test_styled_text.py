"""Text of a model, a tool or a journal cannot act on the terminal that shows it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midrun.text.hidden_characters import HIDDEN_PATTERN, escape_hidden, show_hidden
from midrun.tui.styled_text import escape_controls, escape_to_one_line, style_emphasis

HARMLESS = {"\n"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;owned\x07", "␛]0;owned␇"),  # sets the title
        ("\x1b[2J\x1b[H", "␛[2J␛[H"),  # clears the screen
        ("\x9b31m", "⟨U+009B⟩31m"),  # sets a colour, with a C1 character
        ("abc\rxyz", "abc␍xyz"),  # overwrites the line
        ("a\x08b\x7f", "a␈b␡"),
        ("\u202egnp.exe", "⟨U+202E⟩gnp.exe"),  # reverses the reading direction
        ("\ud83d", "⟨U+D83D⟩"),  # half a surrogate pair, which cannot be encoded
        ("one\r\ntwo\tthree", "one\ntwo three"),
        ("Grüße, 日本語 👩‍🚀", "Grüße, 日本語 👩‍🚀"),
        ("شارع الملك، שלום 12", "شارع الملك، שלום 12"),  # a right-to-left script
        ("می\u200cخو ❤️‍🔥 1️⃣ 🏴\U000e0067\U000e0062\U000e007f",) * 2,
        ("pay\u200bpal ad\u00admin a\u200db", "pay⟨U+200B⟩pal ad⟨U+00AD⟩min a⟨U+200D⟩b"),
        ("x\U000e0061\U000e0062", "x⟨U+E0061⟩⟨U+E0062⟩"),  # invisible tag characters
    ],
)
def test_control_characters_are_shown_as_symbols(text: str, shown: str) -> None:
    """Plain text of each script is unchanged."""
    assert escape_controls(text) == shown


@given(st.text(st.characters(exclude_categories=())))
def test_no_control_character_passes(text: str) -> None:
    """No C0 or C1 character but the line feed, and the result can be encoded."""
    shown = escape_controls(text)
    assert all(c in HARMLESS or (c >= " " and not "\x7f" <= c <= "\x9f") for c in shown)
    assert escape_controls(shown) == shown
    assert "\n" not in escape_to_one_line(text)
    shown.encode()


@given(st.text())
def test_escaped_json_has_the_same_value(text: str) -> None:
    line = escape_hidden(json.dumps(text, ensure_ascii=False))
    assert json.loads(line) == text
    assert all(not "\x7f" <= c <= "\x9f" for c in line)
    assert HIDDEN_PATTERN.search(line) is None


@given(st.text(st.characters(exclude_categories=())))
def test_hidden_characters_in_arguments_are_shown(text: str) -> None:
    """Joiners as well: two different names look different."""
    assert HIDDEN_PATTERN.search(show_hidden(text)) is None
    assert show_hidden("a\u200db") != show_hidden("ab")


def test_text_between_asterisks_is_emphasised() -> None:
    """The rest has the style of the line."""
    assert style_emphasis("Noted — after *a* and *b*", "dim") == [
        ("dim", "Noted — after "),
        ("em", "a"),
        ("dim", " and "),
        ("em", "b"),
    ]
    assert style_emphasis("nothing * to mark") == [("", "nothing * to mark")]
