"""Make invisible and direction-changing characters visible.

A bidirectional override makes `ACC-9876` read as another number; a zero-width character makes
two different names look the same. An approver could then approve something else than the text
on the screen. `show_hidden` replaces each such character by a symbol: `⟨U+202E⟩`.

In prose some of them are legitimate: a joiner inside an emoji or a Persian word, a variation
selector after a symbol. `prose=True` keeps them where they follow the character that they
belong to, and shows them anywhere else.

`server/static/template.js` implements the same for the page.
`tests/browser/test_hidden_characters.py` compares the two on every range below.
"""

import re
from typing import Final

HIDDEN_RANGES: Final = (
    (0x00, 0x08),  # C0, except for tab and line feed
    (0x0B, 0x1F),
    (0x7F, 0x9F),  # delete, and C1
    (0xAD, 0xAD),  # soft hyphen
    (0x34F, 0x34F),  # grapheme joiner
    (0x61C, 0x61C),  # Arabic letter mark
    (0x115F, 0x1160),  # Hangul fillers
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),  # Mongolian selectors
    (0x200B, 0x200F),  # zero-width characters, direction marks
    (0x2028, 0x202E),  # separators, embeddings and overrides of direction
    (0x2060, 0x206F),  # invisible operators, isolates
    (0x2800, 0x2800),  # blank braille pattern
    (0x3164, 0x3164),
    (0xD800, 0xDFFF),  # lone surrogates, which cannot be encoded for a terminal
    (0xFE00, 0xFE0F),  # variation selectors
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFFB),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),  # tags, more variation selectors
)

_HIDDEN_CLASS: Final = "".join(
    f"\\U{first:08x}-\\U{last:08x}" if first != last else f"\\U{first:08x}"
    for first, last in HIDDEN_RANGES
)
HIDDEN_PATTERN: Final = re.compile(f"[{_HIDDEN_CLASS}]")
# The alternatives before `hidden` match a hidden character together with the character that it
# belongs to; both are kept. It is compiled on first use: most texts have no such character.
_HIDDEN_IN_PROSE: Final = (
    f"[^\\x00-\\x7f{_HIDDEN_CLASS}](?:\ufe0e|\ufe0f\u200d?|\u200c|\u200d)"
    "|[0-9#*]\ufe0f\u20e3"  # a keycap
    "|\U0001f3f4[\U000e0020-\U000e007e]{1,16}\U000e007f"  # the flag of a region
    "|\u2800"  # a blank, as drawings use it
    f"|(?P<hidden>[{_HIDDEN_CLASS}])"
)
_FIRST_PRINTABLE: Final = 0x20
_CONTROL_PICTURES_START: Final = 0x2400
_BMP_END: Final = 0xFFFF


def show_hidden(text: str, *, prose: bool = False) -> str:
    """Return `text` with every hidden character as a visible symbol."""
    if HIDDEN_PATTERN.search(text) is None:
        return text
    text = text.replace("\r\n", "\n")
    if not prose:
        return HIDDEN_PATTERN.sub(lambda found: _format_symbol(found[0]), text)
    return re.sub(
        _HIDDEN_IN_PROSE,
        lambda found: _format_symbol(found["hidden"]) if found["hidden"] else found[0],
        text,
    )


def escape_hidden(json_text: str) -> str:
    """Return equivalent JSON in which every hidden character is an escape."""
    return HIDDEN_PATTERN.sub(_escape_match, json_text)


def _format_symbol(char: str) -> str:
    code = ord(char)
    if code < _FIRST_PRINTABLE:
        return chr(_CONTROL_PICTURES_START + code)
    return "␡" if char == "\x7f" else f"⟨U+{code:04X}⟩"


def _escape_match(found: "re.Match[str]") -> str:
    char = found[0]
    if ord(char) <= _BMP_END:
        return f"\\u{ord(char):04x}"
    pair = char.encode("utf-16-be")
    return f"\\u{pair[:2].hex()}\\u{pair[2:].hex()}"
