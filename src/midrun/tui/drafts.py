"""Drafts: what a person is writing, what it is for, and where it goes when it is sent."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from msgspec import Struct

from midrun.handles.receipt import Receipt

Send: TypeAlias = Callable[[str, bool], Awaitable[Receipt | None]]
"""Takes the text, and whether it was sent with Alt: now, not at the next step.

Returns what became of it; nothing if it has said so itself.
"""

SENDING: Final = "Enter: next step · Alt+Enter: now · Tab: {other} · Esc: discard"
PLAIN: Final = "Enter: send · Esc: discard"


class Draft(Struct, frozen=True, kw_only=True):
    """One line of text under way. `blank` says that nothing is something, too."""

    label: str
    send: Send
    hint: str = PLAIN
    blank: bool = False
