"""Turn the feed of a run into lines for the terminal.

`FeedLines` folds the entries and asks `entry_lines` for their text. `StreamedText` lays out the
words that a model streams.
"""

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

# The text of a model, streamed word by word, as rows that fit the terminal.
#
# A full row is printed into the scrollback and never changed again. Only the last row, which
# still grows, is drawn together with the bar. So the screen does not flicker or tear, however
# fast the words come.

INTERRUPTED = " ⟨interrupted⟩"


class Speech:
    """The text of one model call so far. `row` is the last row, which may still grow.

    `prefix` is a text that the runtime puts before the model's own.
    """

    def __init__(self) -> None:
        self.row = ""
        self.lead = ""
        self._call: CallId | None = None
        self._said = ""  # all text of `_call` so far

    def heard(
        self, call: CallId, text: str, width: int, *, opening: bool = False
    ) -> list[Line]:
        """Add a piece of the text of `call`, and return the rows that are complete.

        An `opening` holds the whole text of the call so far, as a feed sends it after a
        reconnect. Only the part that is not printed yet is added.
        """
        if opening and self._call == call:
            if not text.startswith(self._said):  # the printed text is from another attempt
                return self.stop(interrupted=True) + self.heard(call, text, width)
            text = text[len(self._said) :]
        lines = self.stop(interrupted=True) if self._call not in {call, None} else []
        self._call = call
        self._said += text
        return lines + self._grow(text, width)

    def whole(self, call: CallId, text: str, width: int, *, interrupted: bool) -> list[Line]:
        """Finish `call` with its whole text, of which a part may have been streamed."""
        streamed = self._said if self._call == call else ""
        # The streamed text differs if it is from another attempt, or if its beginning was
        # missed. Then the whole text is printed below it.
        if not text.startswith(streamed.rstrip()):
            other = self.stop(interrupted=streamed not in text)
            return [*other, *self._whole("", text, width, interrupted)]
        return self._whole(streamed, text, width, interrupted)

    def _whole(self, streamed: str, text: str, width: int, cut: bool) -> list[Line]:  # noqa: FBT001 - private
        lines = self._grow(text[len(streamed) :], width)
        return lines + self.stop(interrupted=cut and bool(text))

    def stop(self, *, interrupted: bool = False) -> list[Line]:
        """End the text and return its last row, with a mark if it was `interrupted`."""
        row, self.row = self.row.rstrip(), ""
        text, self._said, self._call = self._said, "", None
        if interrupted and (row or text):
            return [[("", row), ("dim", INTERRUPTED)]]
        return [[("", row)]] if row else []

    def _grow(self, text: str, width: int) -> list[Line]:
        # Finished lines are wrapped and printed. Of the last one, all rows but the last are
        # full: more text cannot change them, so they are printed, too.
        *whole, self.row = printable(self.row + text).split("\n")
        done = [row for part in whole for row in rows(self._line(part), width)]
        *more, self.row = folded(self.row, width)
        return [*done, *([("", row)] for row in more)]

    def _line(self, part: str) -> Line:
        leads = part and part == printable(self.lead)
        return emphasised(part) if leads else [("", part)]


RECALLED: Final = 20
"""Number of earlier lines that are printed when the user attaches to a running run."""


class Watching:
    """Folds a feed from its beginning and turns its items into lines.

    The text of an entry depends on the state before it, so all entries must be read. Of those
    up to the entry `known_seq`, only the last lines are printed.
    """

    def __init__(self, run: str, known: int = 0) -> None:
        self.state = State(run=RunId(run))
        self.speech = Speech()
        self._known = known
        self._recalled: deque[Line] = deque(maxlen=RECALLED)

    def take(self, item: FeedItem, width: int) -> list[Line]:
        """Process the next item, and return the lines to print for it."""
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
        # Collect the lines up to the known entry, and print the last of them when it comes.
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
        """Return the rest of a model's text, if this entry ends a model call."""
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
    """Return a model's text with the runtime's prefix, such as "Back to …", before it.

    The stream contains both; the entry has only the model's own text.
    """
    model_call = state.call(call)
    if not state.prefix or model_call is None or model_call.seen < state.prefixed:
        return text
    return f"{state.prefix}\n\n{text}".rstrip()
