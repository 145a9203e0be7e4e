"""Deltas: the live output of a call, and a transcript of it for new watchers."""

from collections.abc import Iterator
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from midrun.core.ids import CallId, RunId

STREAMED_KINDS: Final = frozenset({"text", "thinking", "args"})
"""Kinds whose text continues the delta before it."""


class Delta(Struct, frozen=True, kw_only=True):
    """A piece of live output between two journal entries.

    `kind` is text, thinking or args for the stream of a model (args are the arguments of the
    call that the model is writing, and `tool` is the name of its tool), note for a line of a
    tool, and not_responding for a call that should have stopped by now.

    `text` continues the last delta of the same call and kind. With `opening` it replaces it: it
    is all of the text so far. A new watcher gets that first, a watcher that was too slow gets
    it again, and the second attempt of a call begins with it.
    """

    run: RunId
    call: CallId
    kind: Literal["text", "thinking", "args", "note", "not_responding"]
    text: str = ""
    tool: str = ""
    opening: bool = False
    seq: None = None  # a delta is no entry; clients tell them apart by this


class LiveTranscript:
    """The live output of one call so far, for watchers that begin in the middle of it.

    `is_retry` says that it is not the first attempt: watchers may still show the text of the
    attempt before. Until a kind has been shown once with `opening`, it is *stale*: its next
    delta must replace the old text.
    """

    __slots__ = ("_first_deltas", "_stale_kinds", "_texts", "is_empty")

    def __init__(self, *, is_retry: bool = False) -> None:
        self.is_empty = True
        self._stale_kinds = set(STREAMED_KINDS) if is_retry else set()
        self._first_deltas: dict[
            str, Delta
        ] = {}  # by kind: the delta with which its text began
        self._texts: dict[str, list[str]] = {}  # by kind: all pieces since then

    @property
    def is_not_responding(self) -> bool:
        """Whether the call was shown as not responding."""
        return "not_responding" in self._first_deltas

    def add(self, delta: Delta) -> None:
        """Add the newest delta."""
        self.is_empty = False
        # Arguments of another tool begin a new text: the model has begun its next call.
        begun = self._first_deltas.get(delta.kind)
        goes_on = (
            begun is not None and begun.tool == delta.tool and delta.kind in STREAMED_KINDS
        )
        if goes_on and not delta.opening:
            self._texts[delta.kind].append(delta.text)
        else:
            self._first_deltas[delta.kind] = delta
            self._texts[delta.kind] = [delta.text]

    def get_delta_to_send(self, delta: Delta) -> Delta:
        """Return the delta to send for `delta`, just added: all of the text if it is stale."""
        return self._snapshot_kind(delta.kind) if delta.kind in self._stale_kinds else delta

    def mark_sent(self, delta: Delta) -> None:
        """Note that `delta` was sent, so that its kind is not stale any more."""
        self._stale_kinds.discard(delta.kind)

    def snapshot(self) -> Iterator[Delta]:
        """Yield the whole output so far, one delta for each kind."""
        for kind in self._first_deltas:
            yield self._snapshot_kind(kind)

    def _snapshot_kind(self, kind: str) -> Delta:
        return replace(self._first_deltas[kind], text="".join(self._texts[kind]), opening=True)
