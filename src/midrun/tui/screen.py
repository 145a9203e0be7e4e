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
from midrun.tui.bar import (
    clip_line,
    draw_ask_dialog,
    draw_bar,
    draw_cancel_dialog,
    draw_headline,
    draw_help,
)
from midrun.tui.controller import BarController, Draft, ExitReason, Mode, build_key_bindings
from midrun.tui.feed_lines import FeedLines
from midrun.tui.styled_text import (
    StyledLine,
    build_style_rules,
    escape_controls,
    escape_to_one_line,
    style_emphasis,
)
from midrun.tui.wrap import wrap_indented

REFRESH_INTERVAL_S: Final = 0.5
REDRAW_MIN_INTERVAL_S: Final = 0.02
"""Shortest time between two redraws, in seconds: words come faster than they can be read."""

TEXT_MARGIN_ROWS: Final = 6
"""Rows that stay free for a notice, the composer and the last printed lines."""

TEXT_MIN_ROWS: Final = 3

ATTACH_KEY_HINT: Final = " · Ctrl-O: attach a file"

ESCAPE_TIMEOUT_S: Final = 0.2
"""Time to wait for another key after Escape: terminals send Alt+key as Escape and key."""


class Screen:
    """Draws the bar, and prints lines above it in order."""

    def __init__(
        self, controller: BarController, feed_lines: FeedLines, *, clock: Clock
    ) -> None:
        self._controller = controller
        self._feed_lines = feed_lines
        self._clock = clock
        self._queued_lines: list[StyledLine] = []
        self._lines_queued = anyio.Event()
        self._style = Style.from_dict(build_style_rules())
        self._bar = Window(
            FormattedTextControl(self._draw, focusable=True, show_cursor=False),
            dont_extend_height=True,
        )
        self._composer = Window(
            BufferControl(
                controller.buffer, input_processors=[BeforeInput(self._make_composer_label)]
            ),
            height=1,
            dont_extend_height=True,
        )
        composing = Condition(lambda: controller.mode is Mode.COMPOSE)
        self.app: Application[ExitReason] = Application(
            Layout(
                HSplit([self._bar, ConditionalContainer(self._composer, composing)]),
                focused_element=self._bar,
            ),
            key_bindings=build_key_bindings(controller, self._update_focus),
            style=self._style,
            full_screen=False,
            erase_when_done=True,
            refresh_interval=REFRESH_INTERVAL_S,
            min_redraw_interval=REDRAW_MIN_INTERVAL_S,
            # The mode may also change without a key, when a text returns to the composer.
            before_render=lambda _: self._update_focus(),
        )
        self.app.timeoutlen = self.app.ttimeoutlen = ESCAPE_TIMEOUT_S
        controller.on_change = self.refresh

    @property
    def width(self) -> int:
        """Width of the terminal in columns, at least 20."""
        return max(self.app.output.get_size().columns, 20)

    def refresh(self) -> None:
        """Schedule a redraw, and move the focus if the mode has changed."""
        self._update_focus()
        self.app.invalidate()

    def print_above(self, lines: list[StyledLine]) -> None:
        """Queue lines to be printed above the bar, and redraw it."""
        self._queued_lines += lines
        if lines:
            self._lines_queued.set()
        self.refresh()

    async def print_queued(self) -> None:
        """Print the queued lines while the bar is shown."""
        while True:
            await self._lines_queued.wait()
            self._lines_queued = anyio.Event()
            # Hides the bar while printing, and draws it again below the new lines.
            async with in_terminal():
                self.flush()

    def flush(self) -> None:
        """Print the queued lines now; the bar must be hidden or gone."""
        lines, self._queued_lines = self._queued_lines, []
        # Lines are wrapped here, not by the terminal, so that they break between words.
        for line in lines:
            safe = [(look, escape_controls(text)) for look, text in line]
            for row in wrap_indented(safe, self.width):
                fragments = [*_to_style_classes(row), ("", "\n")]
                print_formatted_text(self.app.output, fragments, self._style)
        self.app.output.flush()

    def _update_focus(self) -> None:
        wanted = self._composer if self._controller.mode is Mode.COMPOSE else self._bar
        if not self.app.layout.has_focus(wanted):
            self.app.layout.focus(wanted)

    def _make_composer_label(self) -> StyleAndTextTuples:
        label = self._controller.draft.label if self._controller.draft is not None else ""
        return [("bold", f"{label} ▸ ")]

    def _draw(self) -> StyleAndTextTuples:
        fragments: StyleAndTextTuples = []
        for number, line in enumerate(self.list_visible_lines()):
            fragments += [("", "\n")] if number else []
            fragments += _to_style_classes(line)
        return fragments

    def list_visible_lines(self) -> list[StyledLine]:
        """Return the lines of the bar or dialog, from top to bottom."""
        controller, width = self._controller, self.width
        body = self._draw_body(width)
        # The text gets the room that the bar leaves, and at least a few rows.
        room = self.app.output.get_size().rows - len(body) - TEXT_MARGIN_ROWS
        lines = [*self._feed_lines.draw_rows(width, max(room, TEXT_MIN_ROWS)), *body]
        if controller.notice:
            lines += wrap_indented(
                style_emphasis(escape_to_one_line(controller.notice), "bold"), width
            )
        if controller.mode is Mode.COMPOSE and controller.draft is not None:
            lines += _draw_files(controller.draft, width)
            hint = controller.draft.hint + (
                ATTACH_KEY_HINT if controller.draft.takes_files else ""
            )
            lines += wrap_indented([("dim", hint)], width)
        return lines

    def _draw_body(self, width: int) -> list[StyledLine]:
        controller, now = self._controller, self._clock()
        top = [clip_line(draw_headline(controller.view, now, viewer=controller.viewer), width)]
        if controller.mode is Mode.CONFIRM:
            button = controller.view.controls["cancel"]
            return [*top, *draw_cancel_dialog(button, held=controller.has_hold, width=width)]
        if controller.mode is Mode.ASKS and (ask := controller.current_ask) is not None:
            return [
                *top,
                *draw_ask_dialog(
                    ask,
                    controller.current_ask_number,
                    len(controller.view.asks),
                    width,
                    controller.current_change,
                ),
            ]
        if controller.mode is Mode.HELP:
            return [*top, *draw_help(width, controller.hints.after_leaving)]
        viewer = controller.viewer
        return draw_bar(controller.view, now, width, controller.hints, viewer=viewer)


def _draw_files(draft: Draft, width: int) -> list[StyledLine]:
    return [
        clip_line(
            [
                ("", f"with {escape_to_one_line(file.name)} "),
                ("dim", f"({file.media_type}, {len(file.data):,} bytes)"),
            ],
            width,
        )
        for file in draft.files
    ]


def _to_style_classes(line: StyledLine) -> StyleAndTextTuples:
    # A look may have several styles: "bold em".
    return [(" ".join(f"class:{name}" for name in look.split()), text) for look, text in line]
