"""Turn the feed of a run into lines for the terminal.

`FeedLines` prints the sentence of each event behind an icon. `StreamedText` lays out the words
that a model streams.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final

from midrun.codec.hidden_characters import show_hidden
from midrun.core.ids import CallId
from midrun.events import (
    AskStarted,
    DeltaEvent,
    EntryEvent,
    ReplyFinished,
    ReplyStarted,
    RunEvent,
    TextDelta,
    ToolFinished,
    ToolNote,
    ToolNotResponding,
    ToolStarted,
)
from midrun.text.phrases import Tone
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


ICON_BY_TONE: Final[Mapping[Tone, str]] = {
    "work": "→",
    "good": "✓",
    "bad": "!",
    "person": "»",
    "go": "▷",
    "hold": "‖",
    "wait": "?",
    "stop": "■",
    "undo": "↩",
    "quiet": "·",
}
"""Tone of an event → the icon of its line. Events of the tone "detail" have no line."""


class FeedLines:
    """Turns the events of a run into lines.

    Of the events up to the entry `known_seq`, only the last lines are printed.
    """

    def __init__(self, known_seq: int = 0) -> None:
        self.seq = 0  # of the last entry
        self.streamed = StreamedText()
        self._known_seq = known_seq
        self._recalled_lines: deque[StyledLine] = deque(maxlen=RECALLED_MAX_LINES)

    def format_event(self, event: RunEvent, width: int) -> list[StyledLine]:
        """Process the next event, and return the lines to print for it."""
        if isinstance(event, DeltaEvent):
            return self._format_delta(event, width)
        self.seq = event.seq
        lines = [*self._finish_reply(event, width), *format_entry(event)]
        if event.seq > self._known_seq:
            return lines
        # Collect the lines up to the known entry, and print the last of them when it comes.
        self._recalled_lines.extend(lines)
        if event.seq < self._known_seq:
            return []
        return list(self._recalled_lines)

    def _format_delta(self, delta: DeltaEvent, width: int) -> list[StyledLine]:
        match delta:
            case TextDelta():
                return self.streamed.add_piece(
                    delta.call, delta.text, width, opening=delta.opening
                )
            case ToolNote():
                return [*self.streamed.end_text(), [("dim", f"  · {delta.sentence}")]]
            case ToolNotResponding():
                return [[("bad", f"! {delta.sentence}")]]
            case _:
                return []

    def _finish_reply(self, event: EntryEvent, width: int) -> list[StyledLine]:
        """Return the rest of a model's text, if this event ends its call."""
        match event:
            case ReplyStarted():
                self.streamed.prefix = event.prefix
                return []
            case ReplyFinished():
                interrupted = event.outcome != "done"
                return self.streamed.finish_call(
                    event.call, event.reply, width, interrupted=interrupted
                )
            case _:
                return []


def format_entry(event: EntryEvent) -> list[StyledLine]:
    """Return the line of an entry, or no line if the bar or the reply shows it better."""
    icon = ICON_BY_TONE.get(event.tone)
    if icon is None:
        return []
    sentence, head = event.sentence, f"{event.who} {event.short}"
    # In the text about a call, a hidden character could change the meaning of an argument.
    if isinstance(event, ToolStarted | ToolFinished | AskStarted):
        sentence, head = show_hidden(sentence), show_hidden(head)
    # A long short form is cut, and then not the beginning of the sentence.
    if not sentence.startswith(head):
        head = sentence
    rest = sentence.removeprefix(head)
    return [[(event.tone, f"{icon} {head}"), *([("dim", rest)] if rest else [])]]
