"""Upcasts: how lines of older versions are read as lines of today.

Stored lines are never rewritten. When the format changes, `VERSION` in `journal` grows by one
and a function that turns a line of the version before into the next one is added here, together
with a stored journal in `tests/journals/`. Reading applies as many as a line needs.
"""

from collections.abc import Callable, Mapping
from typing import Final

Line = dict[str, object]
"""One line of the journal as plain JSON, outer keys and all."""

Upcasts = Mapping[int, Callable[[Line], Line]]
"""Version → what makes a line of it one of the next version."""

UPCASTS: Final[Upcasts] = {}
"""The upcasts in force. Empty: there has been one version so far."""


def lifted(line: Line, *, version: int, to: int, upcasts: Upcasts) -> Line:
    """Return `line` of `version` as a line of version `to`.

    Raises:
        KeyError: an upcast on the way is missing.
    """
    for step in range(version, to):
        line = {**upcasts[step](line), "v": step + 1}
    return line
