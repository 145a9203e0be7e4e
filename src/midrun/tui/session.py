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
from midrun.ports.environment import Clock, wall
from midrun.runs.protocols import AnyRun
from midrun.runs.validation import Who
from midrun.runs.values import RunView
from midrun.tui.controller import Hand, Left
from midrun.tui.escape import printable
from midrun.tui.feed_lines import Watching
from midrun.tui.phrases import MIDRUN, Hints
from midrun.tui.screen import Screen
from midrun.tui.stderr_capture import Spill
from midrun.tui.style import Line

LOOK_S = 2.0
"""Longest time between two refreshes of the view: a silent worker writes no entry."""

REST_S = 0.05
"""Shortest time between two refreshes of the view: a burst of entries needs only one."""

AGAIN_S = 1.0
"""Delay before the feed is opened again after an error."""

PAUSE_S = 5.0
"""Time limit for pausing the run after the terminal is gone."""


async def attend(
    run: AnyRun,
    *,
    actor: Who = None,
    driven_here: bool = False,
    spill: Spill | None = None,
    hints: Hints = MIDRUN,
    clock: Clock = wall,
) -> Left:
    """Show `run` with its bar on this terminal, and return the reason for leaving.

    If the terminal is closed, a run that is `driven_here` is paused, because its driver is
    about to exit; other runs go on. `stderr_capture` collects the output of tool processes,
    which is printed above the bar. `hints` are used for commands in messages.

    Raises:
        MidrunError: the run cannot be read.
    """
    view = await run.view()
    session = _Attending(run, view, actor=actor, hints=hints, clock=clock)
    if spill is None:
        return await session.shown(driven_here=driven_here)
    loop = asyncio.get_running_loop()
    spill.sink = lambda text: _later(loop, session.spilt, text)
    try:
        return await session.shown(driven_here=driven_here)
    finally:
        spill.sink = spill.pass_on


def _later(loop: asyncio.AbstractEventLoop, show: Callable[[str], None], text: str) -> None:
    """Schedule `show(text)` in the event loop.

    Called in the reader thread of the capture, which must not block: a full pipe would block
    the tools.
    """
    with suppress(RuntimeError):  # the loop is closed, so the bar is gone
        loop.call_soon_threadsafe(show, text)


class _Attending:
    """The tasks of one session, and the state they share."""

    def __init__(
        self, run: AnyRun, view: RunView, *, actor: Who, hints: Hints, clock: Clock
    ) -> None:
        self._run = run
        self._hand = Hand(run, view, actor=actor, clock=clock, leave=self._leave, hints=hints)
        self._watching = Watching(run.id, known=view.seq)
        self._screen = Screen(self._hand, self._watching, clock=clock)
        self._grown = anyio.Event()
        self._spilt = ""  # the unfinished last line of captured output
        self._alarm = ""  # the message about a lost connection, while it is shown
        self._orphaned = self._hand.detach  # the reaction to SIGHUP

    def spilt(self, text: str) -> None:
        """Print captured output above the bar, in whole lines."""
        *whole, self._spilt = (self._spilt + text).split("\n")
        self._screen.above([[("", line)] for line in whole])

    async def shown(self, *, driven_here: bool) -> Left:
        """Show the bar until it is left; make sure that a run driven here is paused then."""
        if not driven_here:
            return await self._barred() or Left.DETACHED
        self._orphaned = self._hand.quit
        try:
            reason = await self._barred()
        except Exception:  # such as an OSError from a terminal that is gone
            await self._pause_first()
            raise
        if reason is None:
            await self._pause_first()
        return reason or Left.QUIT

    async def _pause_first(self) -> None:
        """Pause the run, because the terminal is gone and this driver is about to exit."""
        reason = "the terminal was closed"  # journaled: format
        with anyio.move_on_after(PAUSE_S, shield=True), suppress(MidrunError):
            await self._run.pause(actor=self._hand.actor, reason=reason)

    async def _barred(self) -> Left | None:
        """Show the bar until the user leaves; return None if the terminal is gone."""
        app, reason = self._screen.app, None
        async with anyio.create_task_group() as tasks:
            # Before the bar appears, so that a signal in between is not lost or fatal.
            await tasks.start(self._hear_signals)
            for task in (self._follow, self._look, self._screen.printing, self._hand.working):
                tasks.start_soon(task)
            with _prints_above(), suppress(EOFError):  # EOFError: the terminal is gone
                reason = await app.run_async(handle_sigint=False, set_exception_handler=False)
            tasks.cancel_scope.cancel()
        # The bar is erased and the printing task is gone: print the rest directly.
        rest: list[Line] = [[("", self._spilt)]] if self._spilt else []
        self._screen.above([*rest, *self._watching.speech.stop(), *self._unsent(reason)])
        self._screen.flush()
        return reason

    def _unsent(self, left: Left | None) -> list[Line]:
        """Return the text that the user was writing or sending, so that it is not lost."""
        text = self._hand.sending if self._hand.draft is None else self._hand.buffer.text
        why = "it finished first" if left is Left.ENDED else "it was not sent"
        return [[("bad", f"! {why}. Your text: {text}")]] if text else []

    def _leave(self, left: Left) -> None:
        # Several tasks may want to leave at the same time; `exit` may be called only once.
        app = self._screen.app
        if app.is_running and not app.is_done:
            app.exit(result=left)

    async def _follow(self) -> None:
        """Print the feed until the run ends; after an error, continue at the last entry."""
        while True:
            try:
                async for item in self._run.feed(after=self._watching.state.seq):
                    self._screen.above(self._watching.take(item, self._screen.width))
                    self._grown.set()
                self._hand.see(await self._run.view())
                break
            except MidrunError as error:
                self._lost(error)
                await anyio.sleep(AGAIN_S)
        self._leave(Left.ENDED)

    async def _look(self) -> None:
        """Refresh the view after each burst of entries, and at regular intervals."""
        while True:
            with anyio.move_on_after(LOOK_S):
                await self._grown.wait()
            # Replaced before the view is read: entries that come during the read set the new
            # event, and cause one more refresh.
            self._grown = anyio.Event()
            try:
                view = await self._run.view()
            except MidrunError as error:
                self._lost(error)
            else:
                self._hand.see(view)
                self._found()
            self._screen.refresh()
            await anyio.sleep(REST_S)

    def _lost(self, error: MidrunError) -> None:
        """Show that the connection is lost and the bar may be out of date."""
        self._hand.notice = self._alarm = f"no answer; the run may still be working: {error}"

    def _found(self) -> None:
        """Remove the message about the lost connection; keep any other notice."""
        if self._alarm and self._hand.notice == self._alarm:
            self._hand.notice = ""
        self._alarm = ""

    async def _hear_signals(self, *, task_status: TaskStatus[None]) -> None:
        handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        with anyio.open_signal_receiver(*handled) as signals:
            task_status.started()
            async for number in signals:
                if number == signal.SIGINT:
                    self._hand.interrupt()
                elif number == signal.SIGHUP:
                    self._orphaned()
                else:
                    self._hand.quit()
                self._screen.refresh()


class _Above(StdoutProxy):
    """Replaces standard output and error while the bar is shown: escapes, and prints above."""

    def write(self, data: str) -> int:
        super().write(printable(data))
        return len(data)


@contextmanager
def _prints_above() -> Iterator[None]:
    before = sys.stdout, sys.stderr
    with _Above(sleep_between_writes=0.05) as proxy:
        sys.stdout = sys.stderr = cast("TextIO", proxy)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before
