"""Deltas: what is said or shown between two entries."""

from typing import Literal

from msgspec import Struct

from midrun.core.ids import CallId, RunId


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
