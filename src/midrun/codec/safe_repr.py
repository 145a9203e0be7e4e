"""Describe any value in a bounded text, without ever raising.

A tool has already taken effect when its result turns out not to be JSON. The journal then keeps
a description of the result. This description must not fail, even if `__repr__` raises.
"""

from itertools import islice
from reprlib import Repr
from typing import Final

TEXT_MAX_CHARS: Final = 400


def safe_repr(value: object, max_chars: int = TEXT_MAX_CHARS) -> str:
    """Describe `value` in at most `max_chars` characters that UTF-8 can encode.

    Large containers and strings are cut before they are formatted, so the cost is bounded, too,
    unless the `__repr__` of the value itself is expensive.
    """
    try:
        text = _BoundedRepr(max_chars).repr(value)
    except Exception as error:  # noqa: BLE001 - `__repr__` is user code and may raise anything
        text = f"<{_get_type_name(value)}, {_get_type_name(error)} while describing it>"
    return _make_storable(text, max_chars)


def safe_str(value: object, max_chars: int = TEXT_MAX_CHARS) -> str:
    """Return `str(value)`, cut; `safe_repr` if that raises. For the texts of exceptions."""
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - as above
        return safe_repr(value, max_chars)
    return _make_storable(text, max_chars)


class _BoundedRepr(Repr):
    """Cuts bytes before it formats them; the base class formats whole instances."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxstring = self.maxother = length

    def repr_instance(self, x: object, level: int) -> str:
        del level
        if isinstance(x, bytes | bytearray):
            return repr(bytes(islice(x, self.maxother)))
        return repr(x)


def _get_type_name(value: object) -> str:
    return type(value).__qualname__


def _make_storable(text: str, length: int) -> str:
    cut = text if len(text) <= length else text[: length - 1] + "…"
    # Lone surrogates cannot be encoded: they become escapes.
    return cut.encode(errors="backslashreplace").decode()
