"""Streaming: what a model says, word by word, as rows that fit the terminal.

A row that is full goes up into the scrollback and is never touched again; only the last one,
which still grows, is drawn with the bar. So nothing tears, however fast words come.
"""

from midrun.core.ids import CallId
from midrun.tui.folding import folded, rows
from midrun.tui.safe import printable
from midrun.tui.style import Line, emphasised

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
