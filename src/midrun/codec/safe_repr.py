"""Words for values that are not JSON: bounded, storable, and never a reason to fail.

A tool has taken effect when its result turns out not to be JSON. What is kept of the result
then must not fail in turn, whatever `__repr__` does.
"""

from itertools import islice
from reprlib import Repr
from typing import Final

LENGTH: Final = 400


def safe_repr(value: object, length: int = LENGTH) -> str:
    """Return at most `length` characters that describe `value`; never raises, always UTF-8.

    Big containers and strings are cut before they are put into words, so the cost is bounded
    too, unless the value's own `__repr__` makes it otherwise.
    """
    try:
        text = _Brief(length).repr(value)
    except Exception as error:  # noqa: BLE001 - this is the place of last resort
        text = f"<{_kind(value)}, {_kind(error)} while describing it>"
    return _storable(text, length)


def safe_str(value: object, length: int = LENGTH) -> str:
    """Return `str(value)` cut to `length`, or `safe_repr` where that raises: for exceptions."""
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - as above
        return safe_repr(value, length)
    return _storable(text, length)


class _Brief(Repr):
    """Cuts before it describes; the base class calls `repr` on whole instances."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxstring = self.maxother = length

    def repr_instance(self, x: object, level: int) -> str:
        del level
        if isinstance(x, bytes | bytearray):
            return repr(bytes(islice(x, self.maxother)))
        return repr(x)


def _kind(value: object) -> str:
    return type(value).__qualname__


def _storable(text: str, length: int) -> str:
    cut = text if len(text) <= length else text[: length - 1] + "…"
    return cut.encode(errors="backslashreplace").decode()
