"""Watching a run: its control bar on a terminal, or one line per fact."""

import signal
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from datetime import date, tzinfo
from errno import EIO
from math import inf
from typing import Final

import anyio
from anyio.abc import TaskStatus

from midrun.agents.outcome import AskView, Cancelled, Completed, Failed, Outcome, Paused
from midrun.cli.hints import hints, typed
from midrun.cli.output import CODES, PAUSED, UNWRITABLE, Sayer
from midrun.core.ids import RunId, date_of
from midrun.driver.live import Delta
from midrun.errors import ControlRefused, Misconfigured
from midrun.runs.protocols import AnyRun
from midrun.runs.values import FeedItem
from midrun.text.entries import Reader
from midrun.text.phrases import flat
from midrun.tui.stderr_capture import Spill

# Reading: a feed as lines for people, each with its place, its time, and a sentence.

INDENT: Final = 17
"""Columns before the sentence: its entry's number and its time."""


class Reading:
    """Reads a feed from its beginning, and says what came after the entry `after`.

    An entry alone does not say what it is about, so those before it are read, too. Times are
    told as they are in `zone`, or here; a day is said once, before what happened on it.
    """

    def __init__(self, run: str, *, after: int = 0, zone: tzinfo | None = None) -> None:
        self._reader = Reader(RunId(run))
        self._after = after
        self._zone = zone
        self._day: date | None = None

    def lines(self, item: FeedItem) -> list[str]:
        """Return what is to be said of the next item; nothing for what is of the moment."""
        if isinstance(item, Delta):
            return [f"{'':{INDENT}}{said}"] if (said := _noted(item)) else []
        told = self._reader.read(item.entry, item.at)
        if item.seq <= self._after:
            return []
        at = date_of(item.at).astimezone(self._zone)
        day = [] if at.date() == self._day else [f"{at:%Y-%m-%d}"]
        self._day = at.date()
        return [*day, f"{item.seq:>5}  {at:%H:%M:%S}  {told}"]


def _noted(delta: Delta) -> str:
    tool = delta.tool or "a call"
    if delta.kind == "note":
        return f"· {tool}: {flat(delta.text)}"
    return f"· {tool} does not respond" if delta.kind == "not_responding" else ""


DECIDING: Final = {
    "question": ("answer {} VALUE", ""),
    "approval": ("approve {}", " (or decline)"),
    "unsure": ("answer {} yes", " (or no, unknown)"),
    "child": ("answer {} VALUE", " (or approve, decline)"),
}
"""Kind of an ask → what to type, and what else would do."""


def has_bar(args: Namespace, say: Sayer) -> bool:
    """Tell whether a run is shown with its bar: on a terminal, unless told otherwise."""
    return say.moves and sys.stdin.isatty() and not (args.plain or say.as_json)


@contextmanager
def spilling(args: Namespace, say: Sayer) -> Iterator[Spill | None]:
    """Keep what tools write off the bar, if there is to be one; around all that drives."""
    if not has_bar(args, say):
        yield None
        return
    with Spill() as spill:
        yield spill


@dataclass(frozen=True, kw_only=True)
class Watch:
    """How a run is watched: by the process that drives it, or not; and what is said first."""

    driven_here: bool
    spill: Spill | None = None
    first: str = ""


async def shown(run: AnyRun, args: Namespace, say: Sayer, watch: Watch) -> int:
    """Show a run until it rests, or until somebody leaves; return the exit code."""
    if not has_bar(args, say):
        printing = _Printing(run, say, first=watch.first)
        return await _plainly(printing, args, driven_here=watch.driven_here)
    try:
        from midrun.tui.controller import Left  # noqa: PLC0415 - as above
        from midrun.tui.session import attend  # noqa: PLC0415 - needs its extra
    except ImportError as error:
        problem = f"install midrun[tui] for the control bar ({error}), or add --plain"
        raise Misconfigured("midrun", problem) from error
    if watch.first:
        say.text(watch.first)
    left = await attend(
        run,
        actor=args.actor,
        driven_here=watch.driven_here,
        spill=watch.spill,
        hints=hints(args),
    )
    if left is Left.ENDED:
        return _ended(await run.result(), say)
    if left is Left.QUIT:
        return _paused(run, args, say, driven_here=watch.driven_here)
    if not watch.driven_here:
        return await _detached(run, args, say)
    first = "detached: the run goes on in this process; Ctrl-C pauses it"
    printing = _Printing(run, say, after=(await run.view()).seq, first=first)
    return await _plainly(printing, args, driven_here=True)


async def _detached(run: AnyRun, args: Namespace, say: Sayer) -> int:
    """Print that the bar was left, and whether a worker still drives the run."""
    sign = (await run.view()).sign
    stands = " — ".join(filter(None, (sign.word, sign.note)))
    goes_on = sign.look in {"running", "pausing"}
    say.text("detached: the run goes on" if goes_on else f"detached: {stands}")
    say.text(f"come back with: {typed(args, 'attach', run.id)}")
    return 0


def _ended(outcome: Outcome, say: Sayer) -> int:
    """Say how it ended, where the lines above the bar have not said it."""
    if isinstance(outcome, Cancelled):
        say.prose(str(outcome.report))
    return CODES.get(outcome.phase, PAUSED)


def _paused(run: AnyRun, args: Namespace, say: Sayer, *, driven_here: bool) -> int:
    say.text(f"resume with: {typed(args, 'resume', run.id)}")
    if driven_here:
        say.text(f"and drive it: {typed(args, 'attach', run.id, '--app', args.app)}")
    return PAUSED


# ── without a terminal ────────────────────────────────────────────────────────────────────


async def _plainly(printing: "_Printing", args: Namespace, *, driven_here: bool) -> int:
    """Print one line per fact until the run rests; an interrupt pauses it, a second leaves.

    So does an output that nobody takes any more, if the run is driven here: its driver is about
    to go. Then what is left to say is said on standard error.
    """
    run, say = printing.run, printing.say
    outcome: Outcome | None = None
    paused, unread = True, False
    async with anyio.create_task_group() as tasks:

        async def leave(*, task_status: TaskStatus[None]) -> None:
            nonlocal paused
            pausing = _pausing(args, driven_here=driven_here)
            paused = await _pause_when_told(run, args, pausing, task_status)
            tasks.cancel_scope.cancel()

        async def go_on() -> None:
            nonlocal unread
            try:
                await printing.go_on()
            except OSError as error:
                if not driven_here or error.errno not in UNWRITABLE:
                    raise
                unread = True
                printing.stop()
                await _pauses(run, args, "nobody takes the output")
                if error.errno == EIO:  # a terminal, which took along who could interrupt us
                    tasks.cancel_scope.cancel()

        await tasks.start(leave)
        tasks.start_soon(go_on)
        outcome = await run.result()
        await printing.reached((await run.view()).seq)
        tasks.cancel_scope.cancel()
    if outcome is None:
        return await _left(run, args, say, paused=paused)
    following = _next(outcome, args)
    if unread and following:
        why = f"midrun: nobody takes the output, so the run is {outcome.phase}"
        sys.stderr.write("\n".join([why, *following, ""]))
    say.say(_shape(outcome), *_lines(outcome))
    if not say.as_json:
        for line in following:
            say.text(line)
    return CODES.get(outcome.phase, PAUSED)


async def _left(run: AnyRun, args: Namespace, say: Sayer, *, paused: bool) -> int:
    if say.as_json:
        say.json({"run_id": run.id, "phase": (await run.view()).phase})
        return PAUSED if paused else 0
    if paused:
        return _paused(run, args, say, driven_here=False)
    return await _detached(run, args, say)


class _Printing:
    """Prints a feed, and knows how far it is: how a run ends is said after what led there."""

    def __init__(self, run: AnyRun, say: Sayer, *, after: int = 0, first: str = "") -> None:
        self.run = run
        self.say = say
        self._first = first
        self._seq: float = after
        self._grew = anyio.Event()

    async def go_on(self) -> None:
        if self._first:
            self.say.text(self._first)
        after = int(self._seq)
        reading = Reading(self.run.id, after=after)
        async with aclosing(self.run.feed(after=after if self.say.as_json else 0)) as items:
            async for item in items:
                if not self.say.as_json:
                    for text in reading.lines(item):
                        self.say.prose(text, indent=INDENT)
                elif not isinstance(item, Delta) or item.kind == "note":
                    self.say.json(item)
                if item.seq is not None:
                    self._reach(max(self._seq, item.seq))

    def stop(self) -> None:
        """Print no more, and keep nobody waiting for it."""
        self.say.hush()
        self._reach(inf)

    async def reached(self, seq: int) -> None:
        while self._seq < seq:
            self._grew = anyio.Event()
            await self._grew.wait()

    def _reach(self, seq: float) -> None:
        self._seq = seq
        self._grew.set()


def _pausing(args: Namespace, *, driven_here: bool) -> set[signal.Signals]:
    """Return the signals that pause the run; another one only ends the watching.

    Ctrl-C is a person's, who means the run. SIGTERM ends a process: that is a reason to pause
    what it started or drives, and none to pause what it only looks at. A terminal that goes
    away takes along what is driven here, and nothing else.
    """
    pausing = {signal.SIGINT}
    if driven_here or args.command == "run":
        pausing.add(signal.SIGTERM)
    if driven_here:
        pausing.add(signal.SIGHUP)
    return pausing


async def _pause_when_told(
    run: AnyRun, args: Namespace, pausing: set[signal.Signals], listening: TaskStatus[None]
) -> bool:
    """Pause at a signal that does; return at the next, or when there is nothing to pause.

    Tells whether the run is left paused, or goes on.
    """
    heard = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup: it is to outlive that
        heard.remove(signal.SIGHUP)
    with anyio.open_signal_receiver(*heard) as signals:
        listening.started()
        async for number in signals:
            if number not in pausing:
                return False
            if not await _pauses(run, args, "interrupted at the terminal"):
                return True
    return True


async def _pauses(run: AnyRun, args: Namespace, reason: str) -> bool:
    """Ask the run to pause, and tell whether there was anything to pause."""
    try:
        receipt = await run.pause(actor=args.actor, reason=reason)
    except ControlRefused:
        return False
    return not receipt.already


def _shape(outcome: Outcome) -> dict[str, object]:
    """Return an outcome for programs, without its checkpoint, which is long."""
    made: dict[str, object] = {"run_id": outcome.run_id, "phase": outcome.phase}
    for name in ("output", "reason", "asks", "report", "error", "code"):
        if hasattr(outcome, name):
            made[name] = getattr(outcome, name)
    return made


def _lines(outcome: Outcome) -> list[str]:
    if isinstance(outcome, Completed) and outcome.output:
        return [f"run {outcome.run_id} completed:", outcome.output]
    return [str(outcome)]


def _next(outcome: Outcome, args: Namespace) -> list[str]:
    """Return what to type for the run to go on."""
    run = outcome.run_id
    if isinstance(outcome, Paused) and outcome.phase == "waiting":
        return [f"decide with: {_deciding(ask, run, args)}" for ask in outcome.asks]
    rests = isinstance(outcome, Paused | Failed)
    return [f"resume with: {typed(args, 'resume', run)}"] if rests else []


def _deciding(ask: AskView, run: str, args: Namespace) -> str:
    words, others = DECIDING[ask.kind]
    if ask.kind == "question" and ask.declinable:
        others = " (or decline)"
    return typed(args, words.format(f"{run}-{ask.id}")) + others
