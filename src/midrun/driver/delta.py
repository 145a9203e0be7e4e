"""Deltas: what is said or shown between two entries, and what was said so far."""

from collections.abc import Iterator
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from midrun.core.ids import CallId, RunId

SPOKEN: Final = frozenset({"text", "thinking", "args"})
"""Kinds that go on where the last one ended."""


class Delta(Struct, frozen=True, kw_only=True):
    """Something that was said or shown between two entries.

    `kind` is text, thinking or args for a model that speaks (args are those of the call that it
    is about to ask for, and `tool` is its name), note for a tool's own line, and not_responding
    for a call that should have stopped by now.

    `text` goes on where the last delta of the same call and kind ended. With `opening` it is
    everything so far instead: whoever begins to watch in the middle is given that first,
    whoever could not be told everything is given it again, and another attempt begins with it.
    """

    run: RunId
    call: CallId
    kind: Literal["text", "thinking", "args", "note", "not_responding"]
    text: str = ""
    tool: str = ""
    opening: bool = False
    seq: None = None  # an entry has one; this is none


class Saying:
    """What one call has said and shown so far, for whoever comes in the middle of it.

    `again`: it is not its first attempt. Somebody may still have the words of the one before.
    """

    __slots__ = ("_begun", "_stale", "_texts")

    def __init__(self, *, again: bool = False) -> None:
        self._stale = set(SPOKEN) if again else set()
        self._begun: dict[str, Delta] = {}
        self._texts: dict[str, list[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._begun)

    @property
    def is_silent(self) -> bool:
        """Whether the call was shown as not responding."""
        return "not_responding" in self._begun

    def add(self, delta: Delta) -> None:
        """Add what was said or shown last."""
        begun = self._begun.get(delta.kind)
        goes_on = begun is not None and begun.tool == delta.tool and delta.kind in SPOKEN
        if goes_on and not delta.opening:
            self._texts[delta.kind].append(delta.text)
        else:
            self._begun[delta.kind] = delta
            self._texts[delta.kind] = [delta.text]

    def told(self, delta: Delta) -> Delta:
        """Return the delta that was added last as it is told; in place of stale words, all."""
        return self._opening(delta.kind) if delta.kind in self._stale else delta

    def shown(self, delta: Delta) -> None:
        """Take note that `delta` was told: nobody has stale words of its kind any more."""
        self._stale.discard(delta.kind)

    def openings(self) -> Iterator[Delta]:
        """Give all of it, one delta for each kind."""
        for kind in self._begun:
            yield self._opening(kind)

    def _opening(self, kind: str) -> Delta:
        return replace(self._begun[kind], text="".join(self._texts[kind]), opening=True)
