"""Attending a run: the bar under its output, until the run is over or somebody leaves."""

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
"""How often the run is looked at when nothing happens: its driver may have gone silent."""

REST_S = 0.05
"""Between two looks, at least: a burst of entries is one look."""

AGAIN_S = 1.0

PAUSE_S = 5.0
"""How long a process whose terminal is gone tries to leave its run paused."""


async def attend(
    run: AnyRun,
    *,
    actor: Who = None,
    driven_here: bool = False,
    spill: Spill | None = None,
    hints: Hints = MIDRUN,
    clock: Clock = wall,
) -> Left:
    """Show `run` with its bar on this terminal, and return how it was left.

    A terminal that goes away is no reason to stop a run that others drive; one that is
    `driven_here` is paused, because its driver is about to go, too. What the tools of such a
    run write in processes of their own comes out of `spill`, above the bar. `hints` say how
    commands are typed here.

    Raises:
        MidrunError: the run cannot be looked at.
    """
    view = await run.view()
    attending = _Attending(run, view, actor=actor, hints=hints, clock=clock)
    if spill is None:
        return await attending.shown(driven_here=driven_here)
    loop = asyncio.get_running_loop()
    spill.sink = lambda text: _later(loop, attending.spilt, text)
    try:
        return await attending.shown(driven_here=driven_here)
    finally:
        spill.sink = spill.pass_on


def _later(loop: asyncio.AbstractEventLoop, tell: Callable[[str], None], text: str) -> None:
    """Have `tell` called in the loop; this is the thread that reads, and must not wait."""
    with suppress(RuntimeError):  # the loop is closed: nobody draws any more
        loop.call_soon_threadsafe(tell, text)


class _Attending:
    def __init__(
        self, run: AnyRun, view: RunView, *, actor: Who, hints: Hints, clock: Clock
    ) -> None:
        self._run = run
        self._hand = Hand(run, view, actor=actor, clock=clock, leave=self._leave, hints=hints)
        self._watching = Watching(run.id, known=view.seq)
        self._screen = Screen(self._hand, self._watching, clock=clock)
        self._grown = anyio.Event()
        self._spilt = ""
        self._alarm = ""  # what was said of a connection that is lost
        self._orphaned = self._hand.detach

    def spilt(self, text: str) -> None:
        """Print above the bar what a tool of ours has written, line by line."""
        *whole, self._spilt = (self._spilt + text).split("\n")
        self._screen.above([[("", line)] for line in whole])

    async def shown(self, *, driven_here: bool) -> Left:
        if not driven_here:
            return await self._barred() or Left.DETACHED
        self._orphaned = self._hand.quit
        try:
            left = await self._barred()
        except Exception:  # as the output does that goes nowhere any more
            await self._pause_first()
            raise
        if left is None:
            await self._pause_first()
        return left or Left.QUIT

    async def _pause_first(self) -> None:
        """Pause: the terminal is gone, and whoever drives the run is about to go, too."""
        with anyio.move_on_after(PAUSE_S, shield=True), suppress(MidrunError):
            await self._run.pause(actor=self._hand.actor, reason="the terminal was closed")

    async def _barred(self) -> Left | None:
        """Show the bar until somebody leaves it; None if the terminal is gone."""
        app, left = self._screen.app, None
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._hear_signals)  # before there is a bar to act at
            for task in (self._follow, self._look, self._screen.printing, self._hand.working):
                tasks.start_soon(task)
            with _prints_above(), suppress(EOFError):  # the terminal is gone
                left = await app.run_async(handle_sigint=False, set_exception_handler=False)
            tasks.cancel_scope.cancel()
        rest: list[Line] = [[("", self._spilt)]] if self._spilt else []
        self._screen.above([*rest, *self._watching.speech.stop(), *self._unsent(left)])
        self._screen.flush()
        return left

    def _unsent(self, left: Left | None) -> list[Line]:
        """Return what somebody was writing: under a sheet, too, it is theirs."""
        text = self._hand.sending if self._hand.draft is None else self._hand.buffer.text
        why = "it finished first" if left is Left.ENDED else "it was not sent"
        return [[("bad", f"! {why}. Your text: {text}")]] if text else []

    def _leave(self, left: Left) -> None:
        app = self._screen.app
        if app.is_running and not app.is_done:
            app.exit(result=left)

    async def _follow(self) -> None:
        """Tell what happens; over a broken connection, from where it broke."""
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
        """Keep the view fresh."""
        while True:
            with anyio.move_on_after(LOOK_S):
                await self._grown.wait()
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
        """Say that what is drawn is old."""
        self._hand.notice = self._alarm = f"no answer; the run may still be working: {error}"

    def _found(self) -> None:
        """Take that back; whatever else is said meanwhile stays."""
        if self._alarm and self._hand.notice == self._alarm:
            self._hand.notice = ""
        self._alarm = ""

    async def _hear_signals(self, *, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as heard:
            task_status.started()
            async for number in heard:
                if number == signal.SIGINT:
                    self._hand.interrupt()
                elif number == signal.SIGHUP:
                    self._orphaned()
                else:
                    self._hand.quit()
                self._screen.refresh()


class _Above(StdoutProxy):
    """Where prints go while the bar is there: above it, as text and nothing else."""

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
