"""Watching: from the feed of a run to lines of text, and to the newest view of it."""

from collections import deque
from typing import Final

from midrun.core import entries as e
from midrun.core.ids import CallId, RunId
from midrun.core.machine import evolve
from midrun.core.state import State
from midrun.driver.live import Delta
from midrun.handles.item import Item
from midrun.tui.streaming import Speech
from midrun.tui.style import Line
from midrun.tui.telling import told

RECALLED: Final = 20
"""How many lines of what was before are told to somebody who comes late."""


class Watching:
    """Folds a feed from its beginning, because an entry alone does not say what it is about.

    What happened up to the entry `known` is recalled in short.
    """

    def __init__(self, run: str, known: int = 0) -> None:
        self.state = State(run=RunId(run))
        self.speech = Speech()
        self._known = known
        self._recalled: deque[Line] = deque(maxlen=RECALLED)

    def take(self, item: Item, width: int) -> list[Line]:
        """Take in what happened, and return what is to be printed for it."""
        before = self.state
        self.speech.lead = before.prefix
        if isinstance(item, Delta):
            return self._delta(item, width)
        self.state = evolve(before, item.entry, item.at)
        lines = [
            *self._spoken(item.entry, before, width),
            *told(item.entry, before, self.state),
        ]
        if item.seq > self._known:
            return lines
        self._recalled.extend(lines)
        if item.seq < self._known:
            return []
        recalled, self._recalled = list(self._recalled), deque(maxlen=RECALLED)
        return recalled

    def _delta(self, delta: Delta, width: int) -> list[Line]:
        match delta.kind:
            case "text":
                return self.speech.heard(delta.call, delta.text, width, opening=delta.opening)
            case "note":
                return [*self.speech.stop(), [("dim", f"  · {delta.tool}: {delta.text}")]]
            case "not_responding":
                tool = delta.tool or "a call"
                return [[("bad", f"! {tool} does not respond")]]
            case _:
                return []

    def _spoken(self, entry: e.Entry, before: State, width: int) -> list[Line]:
        """Return what a model has said in the end, if this ends one of its calls."""
        match entry:
            case e.CallDone(call=call, reply=reply) if reply is not None:
                text = _led(before, call, reply.text)
                return self.speech.whole(call, text, width, interrupted=False)
            case e.CallAborted(call=call, text=text) | e.CallFailed(call=call, text=text):
                text = _led(before, call, text) if text else ""
                return self.speech.whole(call, text, width, interrupted=True)
            case _:
                return []


def _led(state: State, call: CallId, text: str) -> str:
    """Return what a model said after what the runtime says first: the way back, in words.

    Whoever hears a reply word by word hears both; the entry has the model's own words only.
    """
    made = state.call(call)
    if not state.prefix or made is None or made.seen < state.prefixed:
        return text
    return f"{state.prefix}\n\n{text}".rstrip()
