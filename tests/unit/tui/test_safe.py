"""What a model, a tool or a journal says cannot act on the terminal that shows it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midrun.codec.hidden_characters import HIDDEN_PATTERN
from midrun.tui.styled_text import (
    escape_controls,
    escape_json,
    escape_to_one_line,
    show_hidden_characters,
)

HARMLESS = {"\n"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;owned\x07", "␛]0;owned␇"),  # a title
        ("\x1b[2J\x1b[H", "␛[2J␛[H"),  # a clean screen, and a lie on it
        ("\x9b31m", "⟨U+009B⟩31m"),  # the same in one C1 character
        ("abc\rxyz", "abc␍xyz"),  # writes over what was shown
        ("a\x08b\x7f", "a␈b␡"),
        ("\u202egnp.exe", "⟨U+202E⟩gnp.exe"),  # reads backwards
        ("\ud83d", "⟨U+D83D⟩"),  # half a character, which no terminal can be sent
        ("one\r\ntwo\tthree", "one\ntwo three"),
        ("Grüße, 日本語 👩‍🚀", "Grüße, 日本語 👩‍🚀"),
        ("شارع الملك، שלום 12", "شارع الملك، שלום 12"),  # runs to the left by itself
        ("می\u200cخو ❤️‍🔥 1️⃣ 🏴\U000e0067\U000e0062\U000e007f",) * 2,
        ("pay\u200bpal ad\u00admin a\u200db", "pay⟨U+200B⟩pal ad⟨U+00AD⟩min a⟨U+200D⟩b"),
        ("x\U000e0061\U000e0062", "x⟨U+E0061⟩⟨U+E0062⟩"),  # tags, which say words unseen
    ],
)
def test_what_acts_is_shown_as_a_picture_of_itself(text: str, shown: str) -> None:
    """And what is only text stays as it is, in every script."""
    assert escape_controls(text) == shown


@given(st.text(st.characters(exclude_categories=())))
def test_nothing_that_acts_ever_gets_through(text: str) -> None:
    """Neither C0 nor C1, but for the end of a line; and it can always be sent."""
    shown = escape_controls(text)
    assert all(c in HARMLESS or (c >= " " and not "\x7f" <= c <= "\x9f") for c in shown)
    assert escape_controls(shown) == shown
    assert "\n" not in escape_to_one_line(text)
    shown.encode()


@given(st.text())
def test_json_for_a_terminal_means_the_same(text: str) -> None:
    """Programs read what they would have read; people see no character act."""
    line = escape_json(json.dumps(text, ensure_ascii=False))
    assert json.loads(line) == text
    assert all(not "\x7f" <= c <= "\x9f" for c in line)
    assert HIDDEN_PATTERN.search(line) is None


@given(st.text(st.characters(exclude_categories=())))
def test_arguments_hide_nothing(text: str) -> None:
    """Not even a joiner: two names that differ look different."""
    assert HIDDEN_PATTERN.search(show_hidden_characters(text)) is None
    assert show_hidden_characters("a\u200db") != show_hidden_characters("ab")
