"""The screen: the bar at the bottom of the terminal, and printed lines scrolling above it.

The application is inline, not full-screen, so that printed lines stay in the scrollback. Either
the bar or the composer has the focus; single-letter keys act only while the bar has it.
"""

from typing import Final

import anyio
from prompt_toolkit.application import Application, in_terminal
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.layout import ConditionalContainer, HSplit, Layout, Window
from prompt_toolkit.layout.controls import BufferControl, FormattedTextControl
from prompt_toolkit.layout.processors import BeforeInput
from prompt_toolkit.renderer import print_formatted_text
from prompt_toolkit.styles import Style

from midrun.ports.environment import Clock
from midrun.tui.bar import clipped, drawn, headline
from midrun.tui.controller import Hand, Left, Mode
from midrun.tui.dialogs import confirming, deciding, helping
from midrun.tui.escape import flat, printable
from midrun.tui.feed_lines import Watching
from midrun.tui.keys import bindings
from midrun.tui.style import Line, emphasised, rules
from midrun.tui.wrap import wrapped

TICK_S: Final = 0.5
REDRAW_S: Final = 0.02
"""Shortest time between two redraws, in seconds: words come faster than they can be read."""

ESCAPE_S: Final = 0.2
"""Time to wait for another key after Escape: terminals send Alt+key as Escape and key."""


class Screen:
    """Draws the bar, and prints lines above it in order."""

    def __init__(self, hand: Hand, watching: Watching, *, clock: Clock) -> None:
        self._hand = hand
        self._watching = watching
        self._clock = clock
        self._above: list[Line] = []
        self._wake = anyio.Event()
        self._style = Style.from_dict(rules())
        self._bar = Window(
            FormattedTextControl(self._drawn, focusable=True, show_cursor=False),
            dont_extend_height=True,
        )
        self._composer = Window(
            BufferControl(hand.buffer, input_processors=[BeforeInput(self._label)]),
            height=1,
            dont_extend_height=True,
        )
        composing = Condition(lambda: hand.mode is Mode.COMPOSE)
        self.app: Application[Left] = Application(
            Layout(
                HSplit([self._bar, ConditionalContainer(self._composer, composing)]),
                focused_element=self._bar,
            ),
            key_bindings=bindings(hand, self._focus),
            style=self._style,
            full_screen=False,
            erase_when_done=True,
            refresh_interval=TICK_S,
            min_redraw_interval=REDRAW_S,
            # The mode may also change without a key, when a text returns to the composer.
            before_render=lambda _: self._focus(),
        )
        self.app.timeoutlen = self.app.ttimeoutlen = ESCAPE_S
        hand.changed = self.refresh

    @property
    def width(self) -> int:
        """Width of the terminal in columns, at least 20."""
        return max(self.app.output.get_size().columns, 20)

    def refresh(self) -> None:
        """Schedule a redraw, and move the focus if the mode has changed."""
        self._focus()
        self.app.invalidate()

    def above(self, lines: list[Line]) -> None:
        """Queue lines to be printed above the bar, and redraw it."""
        self._above += lines
        if lines:
            self._wake.set()
        self.refresh()

    async def printing(self) -> None:
        """Print the queued lines while the bar is shown."""
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            # Hides the bar while printing, and draws it again below the new lines.
            async with in_terminal():
                self.flush()

    def flush(self) -> None:
        """Print the queued lines now; the bar must be hidden or gone."""
        lines, self._above = self._above, []
        # Lines are wrapped here, not by the terminal, so that they break between words.
        for line in lines:
            safe = [(look, printable(text)) for look, text in line]
            for row in wrapped(safe, self.width):
                fragments = [*_classes(row), ("", "\n")]
                print_formatted_text(self.app.output, fragments, self._style)
        self.app.output.flush()

    def _focus(self) -> None:
        wanted = self._composer if self._hand.mode is Mode.COMPOSE else self._bar
        if not self.app.layout.has_focus(wanted):
            self.app.layout.focus(wanted)

    def _label(self) -> StyleAndTextTuples:
        label = self._hand.draft.label if self._hand.draft is not None else ""
        return [("bold", f"{label} ▸ ")]

    def _drawn(self) -> StyleAndTextTuples:
        fragments: StyleAndTextTuples = []
        for number, line in enumerate(self.lines()):
            fragments += [("", "\n")] if number else []
            fragments += _classes(line)
        return fragments

    def lines(self) -> list[Line]:
        """Return the lines of the bar or dialog, from top to bottom."""
        hand, width = self._hand, self.width
        row = self._watching.speech.row
        lines: list[Line] = [[("", row)]] if row else []
        lines += self._sheet(width)
        if hand.notice:
            lines += wrapped(emphasised(flat(hand.notice), "bold"), width)
        if hand.mode is Mode.COMPOSE and hand.draft is not None:
            lines.append(clipped([("dim", hand.draft.hint)], width))
        return lines

    def _sheet(self, width: int) -> list[Line]:
        hand, now = self._hand, self._clock()
        top = [clipped(headline(hand.view, now), width)]
        if hand.mode is Mode.CONFIRM:
            offer = hand.view.controls["cancel"]
            return [*top, *confirming(offer, held=hand.held, width=width)]
        if hand.mode is Mode.ASKS and (ask := hand.ask) is not None:
            return [*top, *deciding(ask, hand.ask_number, len(hand.view.asks), width)]
        if hand.mode is Mode.HELP:
            return [*top, *helping(width, hand.hints.leaving)]
        return drawn(hand.view, now, width, hand.hints)


def _classes(line: Line) -> StyleAndTextTuples:
    return [(f"class:{look}" if look else "", text) for look, text in line]
