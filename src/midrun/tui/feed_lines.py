"""Watching: from the feed of a run to lines of text, and to the newest view of it."""

from collections import deque
from typing import Final

from midrun.core import entries as e
from midrun.core.evolve import evolve
from midrun.core.ids import CallId, RunId
from midrun.core.state import State
from midrun.driver.live import Delta
from midrun.runs.values import FeedItem
from midrun.tui.entry_lines import told
from midrun.tui.escape import printable
from midrun.tui.style import Line, emphasised
from midrun.tui.wrap import folded, rows

# Streaming: what a model says, word by word, as rows that fit the terminal.
#
# A row that is full goes up into the scrollback and is never touched again; only the last one,
# which still grows, is drawn with the bar. So nothing tears, however fast words come.

INTERRUPTED = " ⟨interrupted⟩"


class Speech:
    """What one model call has said so far. `row` is the last row, which may still grow.

    `lead` is what the runtime says first, in its own words.
    """

    def __init__(self) -> None:
        self.row = ""
        self.lead = ""
        self._call: CallId | None = None
        self._said = ""

    def heard(
        self, call: CallId, text: str, width: int, *, opening: bool = False
    ) -> list[Line]:
        """Take in a piece of what `call` says, and return the rows that are complete.

        An opening is everything so far: only what was not heard of it is told.
        """
        if opening and self._call == call:
            if not text.startswith(self._said):  # what is above is of another attempt
                return self.stop(interrupted=True) + self.heard(call, text, width)
            text = text[len(self._said) :]
        lines = self.stop(interrupted=True) if self._call not in {call, None} else []
        self._call = call
        self._said += text
        return lines + self._grow(text, width)

    def whole(self, call: CallId, text: str, width: int, *, interrupted: bool) -> list[Line]:
        """Take in all that `call` has said in the end; some of it may have been heard."""
        heard = self._said if self._call == call else ""
        if not text.startswith(heard.rstrip()):  # another attempt; or the beginning was missed
            other = self.stop(interrupted=heard not in text)
            return [*other, *self._whole("", text, width, interrupted)]
        return self._whole(heard, text, width, interrupted)

    def _whole(self, heard: str, text: str, width: int, cut: bool) -> list[Line]:  # noqa: FBT001 - inside only
        said = self._grow(text[len(heard) :], width)
        return said + self.stop(interrupted=cut and bool(text))

    def stop(self, *, interrupted: bool = False) -> list[Line]:
        """Return the last row as it is; `interrupted` marks it."""
        row, self.row = self.row.rstrip(), ""
        said, self._said, self._call = self._said, "", None
        if interrupted and (row or said):
            return [[("", row), ("dim", INTERRUPTED)]]
        return [[("", row)]] if row else []

    def _grow(self, text: str, width: int) -> list[Line]:
        *whole, self.row = printable(self.row + text).split("\n")
        done = [row for part in whole for row in rows(self._line(part), width)]
        *more, self.row = folded(self.row, width)
        return [*done, *([("", row)] for row in more)]

    def _line(self, part: str) -> Line:
        leads = part and part == printable(self.lead)
        return emphasised(part) if leads else [("", part)]


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

    def take(self, item: FeedItem, width: int) -> list[Line]:
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
