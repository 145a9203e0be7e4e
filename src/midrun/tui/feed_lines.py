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
from midrun.tui.entry_lines import format_entry
from midrun.tui.styled_text import StyledLine, escape_controls, style_emphasis
from midrun.tui.wrap import wrap_styled, wrap_text

# The text of a model, streamed word by word, as rows that fit the terminal.
#
# A full row is printed into the scrollback and never changed again. Only the last row, which
# still grows, is drawn together with the bar. So the screen does not flicker or tear, however
# fast the words come.

INTERRUPTED_MARK = " ⟨interrupted⟩"


class StreamedText:
    """The text of one model call so far. `row` is the last row, which may still grow.

    `prefix` is a text that the runtime puts before the model's own.
    """

    def __init__(self) -> None:
        self.row = ""
        self.prefix = ""
        self._call: CallId | None = None
        self._text = ""  # all text of `_call` so far

    def add_piece(
        self, call: CallId, text: str, width: int, *, opening: bool = False
    ) -> list[StyledLine]:
        """Add a piece of the text of `call`, and return the rows that are complete.

        An `opening` holds the whole text of the call so far, as a feed sends it after a
        reconnect. Only the part that is not printed yet is added.
        """
        if opening and self._call == call:
            if not text.startswith(self._text):  # the printed text is from another attempt
                return self.end_text(interrupted=True) + self.add_piece(call, text, width)
            text = text[len(self._text) :]
        lines = self.end_text(interrupted=True) if self._call not in {call, None} else []
        self._call = call
        self._text += text
        return lines + self._add_text(text, width)

    def finish_call(
        self, call: CallId, text: str, width: int, *, interrupted: bool
    ) -> list[StyledLine]:
        """Finish `call` with its whole text, of which a part may have been streamed."""
        streamed = self._text if self._call == call else ""
        # The streamed text differs if it is from another attempt, or if its beginning was
        # missed. Then the whole text is printed below it.
        if not text.startswith(streamed.rstrip()):
            other = self.end_text(interrupted=streamed not in text)
            return [*other, *self._finish("", text, width, interrupted=interrupted)]
        return self._finish(streamed, text, width, interrupted=interrupted)

    def _finish(
        self, streamed: str, text: str, width: int, *, interrupted: bool
    ) -> list[StyledLine]:
        lines = self._add_text(text[len(streamed) :], width)
        return lines + self.end_text(interrupted=interrupted and bool(text))

    def end_text(self, *, interrupted: bool = False) -> list[StyledLine]:
        """End the text and return its last row, with a mark if it was `interrupted`."""
        row, self.row = self.row.rstrip(), ""
        text, self._text, self._call = self._text, "", None
        if interrupted and (row or text):
            return [[("", row), ("dim", INTERRUPTED_MARK)]]
        return [[("", row)]] if row else []

    def _add_text(self, text: str, width: int) -> list[StyledLine]:
        # Finished lines are wrapped and printed. Of the last one, all rows but the last are
        # full: more text cannot change them, so they are printed, too.
        *whole, self.row = escape_controls(self.row + text).split("\n")
        done = [row for part in whole for row in wrap_styled(self._style_row(part), width)]
        *more, self.row = wrap_text(self.row, width)
        return [*done, *([("", row)] for row in more)]

    def _style_row(self, part: str) -> StyledLine:
        leads = part and part == escape_controls(self.prefix)
        return style_emphasis(part) if leads else [("", part)]


RECALLED_MAX_LINES: Final = 20
"""Number of earlier lines that are printed when the user attaches to a running run."""


class FeedLines:
    """Folds a feed from its beginning and turns its items into lines.

    The text of an entry depends on the state before it, so all entries must be read. Of those
    up to the entry `known_seq`, only the last lines are printed.
    """

    def __init__(self, run: str, known_seq: int = 0) -> None:
        self.state = State(run=RunId(run))
        self.streamed = StreamedText()
        self._known_seq = known_seq
        self._recalled_lines: deque[StyledLine] = deque(maxlen=RECALLED_MAX_LINES)

    def format_item(self, item: FeedItem, width: int) -> list[StyledLine]:
        """Process the next item, and return the lines to print for it."""
        before = self.state
        self.streamed.prefix = before.reply_prefix
        if isinstance(item, Delta):
            return self._format_delta(item, width)
        self.state = evolve(before, item.entry, item.at)
        lines = [
            *self._finish_model_text(item.entry, before, width),
            *format_entry(item.entry, before, self.state),
        ]
        if item.seq > self._known_seq:
            return lines
        # Collect the lines up to the known entry, and print the last of them when it comes.
        self._recalled_lines.extend(lines)
        if item.seq < self._known_seq:
            return []
        recalled, self._recalled_lines = (
            list(self._recalled_lines),
            deque(maxlen=RECALLED_MAX_LINES),
        )
        return recalled

    def _format_delta(self, delta: Delta, width: int) -> list[StyledLine]:
        match delta.kind:
            case "text":
                return self.streamed.add_piece(
                    delta.call, delta.text, width, opening=delta.opening
                )
            case "note":
                return [*self.streamed.end_text(), [("dim", f"  · {delta.tool}: {delta.text}")]]
            case "not_responding":
                tool = delta.tool or "a call"
                return [[("bad", f"! {tool} does not respond")]]
            case _:
                return []

    def _finish_model_text(self, entry: e.Entry, before: State, width: int) -> list[StyledLine]:
        """Return the rest of a model's text, if this entry ends a model call."""
        match entry:
            case e.CallDone(call=call, reply=reply) if reply is not None:
                text = _with_prefix(before, call, reply.text)
                return self.streamed.finish_call(call, text, width, interrupted=False)
            case e.CallAborted(call=call, text=text) | e.CallFailed(call=call, text=text):
                text = _with_prefix(before, call, text) if text else ""
                return self.streamed.finish_call(call, text, width, interrupted=True)
            case _:
                return []


def _with_prefix(state: State, call: CallId, text: str) -> str:
    """Return a model's text with the runtime's prefix, such as "Back to …", before it.

    The stream contains both; the entry has only the model's own text.
    """
    model_call = state.find_call(call)
    if (
        not state.reply_prefix
        or model_call is None
        or model_call.seen_seq < state.reply_prefix_seq
    ):
        return text
    return f"{state.reply_prefix}\n\n{text}".rstrip()
