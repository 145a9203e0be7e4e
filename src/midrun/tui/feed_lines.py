"""Turn the feed of a run into lines for the terminal.

`FeedLines` prints the sentence of each event behind an icon, but never inside a sentence of the
agent. `StreamedText` lays out the Markdown that a model streams. The newest note of a running
tool is drawn with the bar and replaced by the next.
"""

import re
from collections import deque
from collections.abc import Mapping
from typing import Final

from midrun.core.ids import CallId
from midrun.core.values import Json
from midrun.events import (
    AskStarted,
    DeltaEvent,
    EntryEvent,
    ReplyFinished,
    RunEvent,
    TextDelta,
    ToolFinished,
    ToolNote,
    ToolNotResponding,
    ToolStarted,
)
from midrun.text.hidden_characters import show_hidden
from midrun.text.phrases import Tone, list_field_lines
from midrun.tui.bar import clip_line
from midrun.tui.markdown import find_open_block, render_markdown
from midrun.tui.styled_text import StyledLine, escape_to_one_line

# The text of a model, streamed word by word, as rows of rendered Markdown.
#
# A complete block (a paragraph, a list, a table) is printed into the scrollback and never
# changed again. Only the open block at the end, which more text could change, is drawn together
# with the bar. So no line is printed twice, however fast the words come.

INTERRUPTED_MARK = " ⟨interrupted⟩"

LIVE_MAX_CHARS: Final = 4_000
"""Size of an open block up to which it is parsed at each line break and drawn as a whole.

To lay out a long list takes a tenth of a second, and keys wait meanwhile. Of a larger block
only the end is drawn, and it is parsed again when it has grown by a quarter: all parses
together take no longer than a few parses of the whole block.
"""

_MARGIN_PATTERN: Final = re.compile(r"\n(?=\S)")
_FENCE_PATTERN: Final = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$", re.MULTILINE)


class StreamedText:
    """The text of one model call so far."""

    def __init__(self) -> None:
        self._call: CallId | None = None
        self._text = ""  # all text of `_call` so far
        self._open = ""  # the end of it that is not printed yet
        self._parse_size = 0  # of the open text, from which it is worth parsing it again
        self._has_printed = False  # a block of this text is in the scrollback
        self._drawn: tuple[str, int, list[StyledLine]] = ("", 0, [])

    @property
    def is_open(self) -> bool:
        """Whether a block is unfinished: a line printed now would cut a sentence in two."""
        return bool(self._open.strip())

    def draw_rows(self, width: int) -> list[StyledLine]:
        """Return the rows of the open block; of a large one, the rows of its end."""
        if self._drawn[:2] != (self._open, width):
            rows = render_markdown(_cut_to_live_part(self._open), width)
            self._drawn = (self._open, width, rows)
        return self._drawn[2]

    def add_piece(
        self, call: CallId, text: str, width: int, *, opening: bool = False
    ) -> list[StyledLine]:
        """Add a piece of the text of `call`, and return the rows of the complete blocks.

        An `opening` holds the whole text of the call so far, as a feed sends it after a
        reconnect. Only the part that is not printed yet is added.
        """
        if opening and self._call == call:
            if not text.startswith(self._text):  # the printed text is from another attempt
                return self.end_text(width, interrupted=True) + self.add_piece(
                    call, text, width
                )
            text = text[len(self._text) :]
        is_other = self._call not in {call, None}
        lines = self.end_text(width, interrupted=True) if is_other else []
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
            other = self.end_text(width, interrupted=streamed not in text)
            return [*other, *self._finish("", text, width, interrupted=interrupted)]
        return self._finish(streamed, text, width, interrupted=interrupted)

    def _finish(
        self, streamed: str, text: str, width: int, *, interrupted: bool
    ) -> list[StyledLine]:
        lines = self._add_text(text[len(streamed) :], width)
        self._text = text
        return lines + self.end_text(width, interrupted=interrupted and bool(text))

    def end_text(self, width: int, *, interrupted: bool = False) -> list[StyledLine]:
        """End the text and return its last block, with a mark if it was `interrupted`."""
        rows = self._print(self._open, width)
        if interrupted and self._text.strip():
            *rows, last = rows or [[("", "")]]
            rows = [*rows, [*last, ("dim", INTERRUPTED_MARK)]]
        self._call, self._text, self._open, self._has_printed = None, "", "", False
        self._parse_size = 0
        return rows

    def _add_text(self, text: str, width: int) -> list[StyledLine]:
        self._open += text
        # Only a line break can complete a block.
        if "\n" not in text or len(self._open) < self._parse_size:
            return []
        cut = find_open_block(self._open)
        complete, self._open = self._open[:cut], self._open[cut:]
        size = len(self._open)
        self._parse_size = size + size // 4 if size > LIVE_MAX_CHARS else 0
        return self._print(complete, width)

    def _print(self, text: str, width: int) -> list[StyledLine]:
        """Return the rows of complete blocks, after a blank row if others came before."""
        rows = render_markdown(text, width) if text.strip() else []
        gap: list[StyledLine] = [[("", "")]] if rows and self._has_printed else []
        self._has_printed = self._has_printed or bool(rows)
        return gap + rows


def _cut_to_live_part(text: str) -> str:
    """Return the end of a large text, from the start of a line; inside code, with its fence."""
    if len(text) <= LIVE_MAX_CHARS:
        return text
    start = len(text) - LIVE_MAX_CHARS
    # Best at a line without an indent: alone, an indented line would be shown as code.
    found = _MARGIN_PATTERN.search(text, start)
    start = found.end() if found is not None else text.find("\n", start) + 1 or start
    opening = ""
    for fence in _FENCE_PATTERN.finditer(text, 0, start):
        if not opening:
            opening = fence[1]
        elif fence[1].startswith(opening) and not fence[2].strip():
            opening = ""
    return f"{opening}\n{text[start:]}" if opening else text[start:]


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


NOTES_MAX_ROWS: Final = 4
"""Calls whose newest note is shown at the same time."""

EXPANDABLE_MAX_CALLS: Final = 20
"""Finished calls whose result can be shown in full."""

EXPANDED_MAX_CHARS: Final = 20_000
"""Characters of a result that are shown in full; the journal has the rest."""


class FeedLines:
    """Turns the events of a run into lines.

    Of the events up to the entry `known_seq`, only the last lines are printed.
    """

    def __init__(self, known_seq: int = 0) -> None:
        self.seq = 0  # of the last entry
        self.streamed = StreamedText()
        self._known_seq = known_seq
        self._recalled_lines: deque[StyledLine] = deque(maxlen=RECALLED_MAX_LINES)
        self._held_lines: list[StyledLine] = []  # of entries, until the paragraph is finished
        self._notes: dict[CallId, str] = {}  # the newest note of each call in flight
        # Finished calls with their arguments, and the arguments of calls in flight.
        self._finished: deque[tuple[ToolFinished, Json]] = deque(maxlen=EXPANDABLE_MAX_CALLS)
        self._args: dict[CallId, Json] = {}

    def format_event(self, event: RunEvent, width: int) -> list[StyledLine]:
        """Process the next event, and return the lines to print for it."""
        if isinstance(event, DeltaEvent):
            return [*self._format_delta(event, width), *self._release_lines()]
        self.seq = event.seq
        lines = self._finish_reply(event, width)
        self._held_lines += [*self._finish_call(event), *format_entry(event, width)]
        lines += self._release_lines()
        if event.seq > self._known_seq:
            return lines
        # Collect the lines up to the known entry, and print the last of them when it comes.
        self._recalled_lines.extend(lines)
        if event.seq < self._known_seq:
            return []
        return list(self._recalled_lines)

    def draw_rows(self, width: int, max_rows: int) -> list[StyledLine]:
        """Return the rows that still change: the end of the text, and the newest notes."""
        rows = self.streamed.draw_rows(width)[-max_rows:]
        newest = list(self._notes.values())[-NOTES_MAX_ROWS:]
        return [*rows, *(clip_line([("dim", f"  · {note}")], width) for note in newest)]

    def expand_result(self) -> list[StyledLine]:
        """Return the newest result in full; called again, the one before it."""
        if not self._finished:
            return [[("dim", "no results to show")]]
        event, event_args = self._finished.pop()
        shown = show_hidden(_format_in_full(event.result if event.result is not None else ""))
        text = event.error or shown or "no result"
        args = show_hidden(_format_in_full(event_args))
        lines = [f"  {line}" for line in [*args.split("\n"), "→", *text.split("\n")]]
        return [[("bold", f"▾ {event.title}")], *([("dim", line)] for line in lines)]

    def end(self, width: int) -> list[StyledLine]:
        """Return the lines that are not printed yet."""
        lines = self.streamed.end_text(width)
        return [*lines, *self._release_lines()]

    def _release_lines(self) -> list[StyledLine]:
        """Return the held lines, unless a sentence is unfinished."""
        if self.streamed.is_open:
            return []
        lines, self._held_lines = self._held_lines, []
        return lines

    def _format_delta(self, delta: DeltaEvent, width: int) -> list[StyledLine]:
        match delta:
            case TextDelta():
                return self.streamed.add_piece(
                    delta.call, delta.text, width, opening=delta.opening
                )
            case ToolNote():
                self._notes.pop(delta.call, None)  # the newest note is drawn last
                self._notes[delta.call] = escape_to_one_line(show_hidden(delta.sentence))
                return []
            case ToolNotResponding():
                self._held_lines.append([("bad", f"! {delta.sentence}")])
                return []
            case _:
                return []

    def _finish_call(self, event: EntryEvent) -> list[StyledLine]:
        """Forget the note of a call that ended; a stopped call keeps it as its last line."""
        if isinstance(event, ToolStarted):
            self._args[event.call] = event.args
        if not isinstance(event, ToolFinished):
            return []
        note = self._notes.pop(event.call, "")
        self._finished.append((event, self._args.pop(event.call, None)))
        return [[("dim", f"  · {note}")]] if note and event.outcome != "done" else []

    def _finish_reply(self, event: EntryEvent, width: int) -> list[StyledLine]:
        """Return the rest of a model's text, if this event ends its call."""
        if not isinstance(event, ReplyFinished):
            return []
        return self.streamed.finish_call(
            event.call, event.reply, width, interrupted=event.outcome != "done"
        )


def _format_in_full(value: Json) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else "\n".join(list_field_lines(value))
    more = len(text) - EXPANDED_MAX_CHARS
    return text if more <= 0 else f"{text[:EXPANDED_MAX_CHARS]}\n… {more} more characters"


def format_entry(event: EntryEvent, width: int) -> list[StyledLine]:
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
    line: StyledLine = [(event.tone, f"{icon} {head}"), *([("dim", rest)] if rest else [])]
    # A result is one line; a key shows all of it. An error is not cut.
    is_short = isinstance(event, ToolFinished) and event.outcome == "done"
    return [clip_line(line, width) if is_short else line]
