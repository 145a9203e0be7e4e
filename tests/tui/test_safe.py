"""What a model, a tool or a journal says cannot act on the terminal that shows it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midrun.tui.safe import flat, json_line, printable

HARMLESS = {"\n"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;owned\x07", "␛]0;owned␇"),  # a title
        ("\x1b[2J\x1b[H", "␛[2J␛[H"),  # a clean screen, and a lie on it
        ("\x9b31m", "\\x9b31m"),  # the same in one C1 character
        ("abc\rxyz", "abc␍xyz"),  # writes over what was shown
        ("a\x08b\x7f", "a␈b␡"),
        ("\u202egnp.exe", "\\u202egnp.exe"),  # reads backwards
        ("\ud83d", "\\ud83d"),  # half a character, which no terminal can be sent
        ("one\r\ntwo\tthree", "one\ntwo three"),
        ("Grüße, 日本語 👩‍🚀", "Grüße, 日本語 👩‍🚀"),
    ],
)
def test_what_acts_is_shown_as_a_picture_of_itself(text: str, shown: str) -> None:
    """And what is only text stays as it is, in every script."""
    assert printable(text) == shown


@given(st.text(st.characters(exclude_categories=())))
def test_nothing_that_acts_ever_gets_through(text: str) -> None:
    """Neither C0 nor C1, but for the end of a line; and it can always be sent."""
    shown = printable(text)
    assert all(c in HARMLESS or (c >= " " and not "\x7f" <= c <= "\x9f") for c in shown)
    assert printable(shown) == shown
    assert "\n" not in flat(text)
    shown.encode()


@given(st.text())
def test_json_for_a_terminal_means_the_same(text: str) -> None:
    """Programs read what they would have read; people see no character act."""
    line = json_line(json.dumps(text, ensure_ascii=False))
    assert json.loads(line) == text
    assert all(not "\x7f" <= c <= "\x9f" for c in line)
