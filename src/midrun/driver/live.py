"""Live: what happens between two entries, for whoever watches. Nothing depends on it.

Tokens, notes and signs of life are not stored: a watcher that is slow or late loses them, and
finds what counts in the journal.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

from msgspec import Struct

from midrun.core.ids import CallId, RunId
from midrun.driver.bell import Bell

BACKLOG: Final = 1024
"""How many deltas a watcher may be behind before it loses the oldest."""


class Delta(Struct, frozen=True, kw_only=True):
    """Something that was said or shown between two entries.

    `kind` is text, thinking or args for a model that speaks (args are those of the call that it
    is about to ask for, and `tool` is its name), note for a tool's own line, and not_responding
    for a call that should have stopped by now.
    """

    run: RunId
    call: CallId
    kind: Literal["text", "thinking", "args", "note", "not_responding"]
    text: str = ""
    tool: str = ""
    seq: None = None  # an entry has one; this is none


class Live:
    """Hands deltas to those who watch a run right now."""

    def __init__(self) -> None:
        self._watching: dict[RunId, list[tuple[deque[Delta], Bell]]] = {}

    def tell(self, delta: Delta) -> None:
        """Tell everybody who watches; nobody is waited for."""
        for deltas, bell in self._watching.get(delta.run, ()):
            deltas.append(delta)
            bell.ring()

    def watched(self, run: RunId) -> bool:
        """Tell whether anybody watches `run`, so that it is worth telling."""
        return run in self._watching

    @contextmanager
    def watch(self, run: RunId, bell: Bell) -> Iterator[deque[Delta]]:
        """Give the deltas of `run` from now on, and ring `bell` for each."""
        watching = (deque[Delta](maxlen=BACKLOG), bell)
        self._watching.setdefault(run, []).append(watching)
        try:
            yield watching[0]
        finally:
            left = self._watching[run]
            left.remove(watching)
            if not left:
                del self._watching[run]
