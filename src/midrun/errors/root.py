"""The root of the tree of errors."""

from typing import ClassVar


class MidrunError(Exception):
    """Base of everything that midrun raises on purpose."""

    code: ClassVar[str] = "midrun"
