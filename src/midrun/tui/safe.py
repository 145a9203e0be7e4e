"""Text of others on a terminal: no model, tool or journal can send it an escape sequence.

Whatever could move the cursor, change a title, answer a query or turn the reading direction is
shown as a picture of itself instead. Everything that is printed passes here, last.
"""

import re
from typing import Final

TAB: Final = 4
_BIDI = "\u061c\u202a-\u202e\u2066-\u2069"
_ACTIVE: Final = re.compile(
    f"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff{_BIDI}\ud800-\udfff]"
)
_IN_JSON: Final = re.compile(f"[\x7f-\x9f\u2028\u2029\ufeff{_BIDI}]")
_PICTURES: Final = 0x2400
_SPACE: Final = 0x20
_DELETE: Final = 0x7F
_BYTE: Final = 0xFF


def printable(text: str) -> str:
    """Return `text` with newlines as they are, tabs as blanks, and nothing else that acts."""
    if _ACTIVE.search(text) is None:
        return text
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join(_ACTIVE.sub(_picture, line.expandtabs(TAB)) for line in lines)


def flat(text: str) -> str:
    """Return `text` as one line."""
    return printable(" ".join(text.split()))


def json_line(text: str) -> str:
    """Return JSON that means the same, and that a terminal only shows."""
    return _IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _picture(found: "re.Match[str]") -> str:
    code = ord(found[0])
    if code < _SPACE:
        return chr(_PICTURES + code)
    if code == _DELETE:
        return "␡"
    return f"\\x{code:02x}" if code <= _BYTE else f"\\u{code:04x}"
