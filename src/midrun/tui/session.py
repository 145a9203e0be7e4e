"""A terminal session: show one run with its control bar until it ends or the user leaves."""

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO, cast

import anyio
from anyio.abc import TaskStatus
from prompt_toolkit.patch_stdout import StdoutProxy

from midrun.errors import MidrunError
from midrun.ports.environment import Clock, read_wall_clock
from midrun.runs.protocols import AnyRun
from midrun.runs.validation import ActorLike
from midrun.runs.values import RunView
from midrun.tui.bar import draw_all_arguments
from midrun.tui.controller import BarController, ExitReason, Mode
from midrun.tui.feed_lines import FeedLines
from midrun.tui.screen import Screen
from midrun.tui.signals import receive_terminal_signals
from midrun.tui.stderr_capture import StderrCapture
from midrun.tui.styled_text import DEFAULT_HINTS, Hints, StyledLine, escape_controls

VIEW_REFRESH_MAX_INTERVAL_S = 2.0
"""Longest time between two refreshes of the view: a silent worker writes no entry."""

VIEW_REFRESH_MIN_INTERVAL_S = 0.05
"""Shortest time between two refreshes of the view: a burst of entries needs only one."""

FEED_RETRY_DELAY_S = 1.0
"""Delay before the feed is opened again after an error."""

ORPHAN_PAUSE_TIMEOUT_S = 5.0
"""Time limit for pausing the run after the terminal is gone."""


async def attend(
    run: AnyRun,
    *,
    actor: ActorLike = None,
    driven_here: bool = False,
    stderr_capture: StderrCapture | None = None,
    hints: Hints = DEFAULT_HINTS,
) -> ExitReason:
    """Show `run` with its bar on this terminal, and return the reason for leaving.

    If the terminal is closed, a run that is `driven_here` is paused, because its driver is
    about to exit; other runs continue. `stderr_capture` collects the output of tool processes,
    which is printed above the bar. `hints` are used for commands in messages.

    Raises:
        MidrunError: the run cannot be read.
    """
    view = await run.view()
    session = TerminalSession(run, view, actor=actor, hints=hints, clock=read_wall_clock)
    if stderr_capture is None:
        return await session.run(driven_here=driven_here)
    loop = asyncio.get_running_loop()
    stderr_capture.sink = lambda text: _call_in_loop(loop, session.print_captured, text)
    try:
        return await session.run(driven_here=driven_here)
    finally:
        stderr_capture.sink = stderr_capture.write_to_terminal


def _call_in_loop(
    loop: asyncio.AbstractEventLoop, show: Callable[[str], None], text: str
) -> None:
    """Schedule `show(text)` in the event loop.

    Called in the reader thread of the capture, which must not block: a full pipe would block
    the tools.
    """
    with suppress(RuntimeError):  # the loop is closed, so the bar is gone
        loop.call_soon_threadsafe(show, text)


class TerminalSession:
    """The tasks of one session, and the state they share."""

    def __init__(
        self, run: AnyRun, view: RunView, *, actor: ActorLike, hints: Hints, clock: Clock
    ) -> None:
        self._run = run
        self._controller = BarController(
            run, view, actor=actor, clock=clock, leave=self._leave, hints=hints
        )
        self._feed_lines = FeedLines(known_seq=view.seq)
        self._controller.expand = self._expand  # before the keys are bound
        self._screen = Screen(self._controller, self._feed_lines, clock=clock)
        self._journal_grew = anyio.Event()
        self._captured_rest = ""  # the unfinished last line of captured output
        self._lost_message = ""  # the message about a lost connection, while it is shown
        self._on_hangup = self._controller.detach  # the reaction to SIGHUP

    def print_captured(self, text: str) -> None:
        """Print captured output above the bar, in whole lines."""
        *whole, self._captured_rest = (self._captured_rest + text).split("\n")
        self._screen.print_above([[("", line)] for line in whole])

    def _expand(self) -> None:
        """Print the newest result in full; in the dialog of an ask, the call's arguments."""
        ask = self._controller.current_ask if self._controller.mode is Mode.ASKS else None
        if ask is not None:
            lines = draw_all_arguments(ask, self._screen.width)
        else:
            lines = self._feed_lines.expand_result()
        self._screen.print_above(lines)

    async def run(self, *, driven_here: bool) -> ExitReason:
        """Show the bar until it is left; make sure that a run driven here is paused then."""
        if not driven_here:
            return await self._show_bar() or ExitReason.DETACHED
        self._on_hangup = self._controller.quit
        try:
            reason = await self._show_bar()
        except Exception:  # such as an OSError from a terminal that is gone
            await self._pause_run()
            raise
        if reason is None:
            await self._pause_run()
        return reason or ExitReason.QUIT

    async def _pause_run(self) -> None:
        """Pause the run, because the terminal is gone and this driver is about to exit."""
        reason = "the terminal was closed"  # journaled: format
        with anyio.move_on_after(ORPHAN_PAUSE_TIMEOUT_S, shield=True), suppress(MidrunError):
            await self._run.pause(actor=self._controller.actor, reason=reason)

    async def _show_bar(self) -> ExitReason | None:
        """Show the bar until the user leaves; return None if the terminal is gone."""
        app, reason = self._screen.app, None
        async with anyio.create_task_group() as tasks:
            # Before the bar appears, so that a signal in between is not lost or fatal.
            await tasks.start(self._handle_signals)
            for task in (
                self._follow_feed,
                self._refresh_view,
                self._screen.print_queued,
                self._controller.send_queued,
            ):
                tasks.start_soon(task)
            with _print_above_bar(), suppress(EOFError):  # EOFError: the terminal is gone
                reason = await app.run_async(handle_sigint=False, set_exception_handler=False)
            tasks.cancel_scope.cancel()
        # The bar is erased and the printing task is gone: print the rest directly.
        rest: list[StyledLine] = [[("", self._captured_rest)]] if self._captured_rest else []
        self._screen.print_above(
            [*rest, *self._feed_lines.end(self._screen.width), *self._list_unsent_text(reason)]
        )
        self._screen.flush()
        return reason

    def _list_unsent_text(self, reason: ExitReason | None) -> list[StyledLine]:
        """Return the text that the user was writing or sending, so that it is not lost."""
        text = (
            self._controller.unconfirmed_text
            if self._controller.draft is None
            else self._controller.buffer.text
        )
        why = "it finished first" if reason is ExitReason.ENDED else "it was not sent"
        return [[("bad", f"! {why}. Your text: {text}")]] if text else []

    def _leave(self, reason: ExitReason) -> None:
        # Several tasks may want to leave at the same time; `exit` may be called only once.
        app = self._screen.app
        if app.is_running and not app.is_done:
            app.exit(result=reason)

    async def _follow_feed(self) -> None:
        """Print the feed until the run ends; after an error, continue at the last entry."""
        while True:
            try:
                async for event in self._run.events(after=self._feed_lines.seq):
                    self._screen.print_above(
                        self._feed_lines.format_event(event, self._screen.width)
                    )
                    self._journal_grew.set()
                self._controller.update_view(await self._run.view())
                break
            except MidrunError as error:
                self._show_lost(error)
                await anyio.sleep(FEED_RETRY_DELAY_S)
        self._leave(ExitReason.ENDED)

    async def _refresh_view(self) -> None:
        """Refresh the view after each burst of entries, and at regular intervals."""
        while True:
            with anyio.move_on_after(VIEW_REFRESH_MAX_INTERVAL_S):
                await self._journal_grew.wait()
            # Replaced before the view is read: entries that come during the read set the new
            # event, and cause one more refresh.
            self._journal_grew = anyio.Event()
            try:
                view = await self._run.view()
            except MidrunError as error:
                self._show_lost(error)
            else:
                self._controller.update_view(view)
                self._clear_lost()
            self._screen.refresh()
            await anyio.sleep(VIEW_REFRESH_MIN_INTERVAL_S)

    def _show_lost(self, error: MidrunError) -> None:
        """Show that the connection is lost and the bar may be out of date."""
        self._controller.notice = self._lost_message = (
            f"no answer; the run may still be working: {error}"
        )

    def _clear_lost(self) -> None:
        """Remove the message about the lost connection; keep any other notice."""
        if self._lost_message and self._controller.notice == self._lost_message:
            self._controller.notice = ""
        self._lost_message = ""

    async def _handle_signals(self, *, task_status: TaskStatus[None]) -> None:
        with receive_terminal_signals() as signals:
            task_status.started()
            async for number in signals:
                if number == signal.SIGINT:
                    self._controller.interrupt()
                elif number == signal.SIGHUP:
                    self._on_hangup()
                else:
                    self._controller.quit()
                self._screen.refresh()


class _EscapingStdout(StdoutProxy):
    """Replaces standard output and error while the bar is shown: escapes, and prints above."""

    def write(self, data: str) -> int:
        super().write(escape_controls(data))
        return len(data)


@contextmanager
def _print_above_bar() -> Iterator[None]:
    before = sys.stdout, sys.stderr
    with _EscapingStdout(sleep_between_writes=0.05) as proxy:
        sys.stdout = sys.stderr = cast("TextIO", proxy)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before
