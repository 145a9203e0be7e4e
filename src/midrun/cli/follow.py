"""Show a run until it rests: with its control bar on a terminal, else as plain lines.

`show_run` chooses the form. The bar is `midrun.tui`; it returns the reason why it was left,
which decides the exit code. The plain form runs two tasks: `_FeedPrinter` prints the feed, and
a signal receiver pauses the run on Ctrl-C. When the run rests, the command prints its outcome
and the command that continues it.
"""

import signal
import sys
from argparse import Namespace
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from datetime import date, tzinfo
from errno import EIO
from math import inf
from typing import Final

import anyio
from anyio.abc import TaskStatus

from midrun.agents.outcome import AskView, Cancelled, Completed
from midrun.cli.hints import build_hints, format_command
from midrun.cli.output import (
    EXIT_CODE_BY_PHASE,
    PAUSED_EXIT_CODE,
    UNWRITABLE_ERRNOS,
    CommandOutput,
)
from midrun.core.entries import RunFailed
from midrun.core.ids import micros_to_datetime
from midrun.core.journaled_text import shorten_to_line
from midrun.core.values import RESTING_PHASES, TERMINAL_PHASES, Phase
from midrun.driver.delta import Delta
from midrun.errors import ControlRefused, Misconfigured
from midrun.events import DeltaEvent, RunEvent, ToolNote, ToolNotResponding
from midrun.runs.protocols import AnyRun
from midrun.runs.values import FeedEntry, FeedItem, RunView
from midrun.text.report import Report
from midrun.tui.signals import receive_terminal_signals
from midrun.tui.stderr_capture import StderrCapture

# The feed as lines: number of the entry, time, sentence.

SENTENCE_INDENT_COLUMNS: Final = 17
"""Columns before the sentence: the number of the entry and its time."""


class PlainFeed:
    """Turns events into lines.

    Times are in `zone`, by default local. The date is printed on a line of its own before the
    first entry of each day.
    """

    def __init__(self, zone: tzinfo | None = None) -> None:
        self._zone = zone
        self._day: date | None = None

    def format_event(self, event: RunEvent) -> list[str]:
        """Return the lines of the next event; none for streamed tokens."""
        if isinstance(event, ToolNote | ToolNotResponding):
            return [f"{'':{SENTENCE_INDENT_COLUMNS}}· {event.sentence}"]
        if isinstance(event, DeltaEvent):
            return []
        at = micros_to_datetime(event.at).astimezone(self._zone)
        day = [] if at.date() == self._day else [f"{at:%Y-%m-%d}"]
        self._day = at.date()
        return [*day, f"{event.seq:>5}  {at:%H:%M:%S}  {event.sentence}"]


def open_feed(
    run: AnyRun, after: int, out: CommandOutput
) -> AsyncGenerator[FeedItem | RunEvent, None]:
    """Follow a run after the entry `after`: the raw feed for JSON, else its events."""
    return run.feed(after) if out.as_json else run.events(after)


def print_item(item: FeedItem | RunEvent, lines: PlainFeed, out: CommandOutput) -> None:
    """Print one item of `open_feed`: as JSON, or as the lines of its sentence."""
    if isinstance(item, FeedEntry | Delta):
        out.write_json(item)
        return
    for text in lines.format_event(item):
        out.write_wrapped(text, indent=SENTENCE_INDENT_COLUMNS)


DECISION_COMMANDS: Final = {
    "question": ("answer {} VALUE", ""),
    "approval": ("approve {}", " (or decline)"),
    "unsure": ("answer {} yes", " (or no, unknown)"),
    "child": ("answer {} VALUE", " (or approve, decline)"),
}
"""Kind of an ask → the command that decides it, and the alternatives."""


def has_bar(args: Namespace, out: CommandOutput) -> bool:
    """Tell whether the run gets a control bar: on a terminal, without --plain or --json."""
    return out.can_move_cursor and sys.stdin.isatty() and not (args.plain or out.as_json)


@contextmanager
def capture_stderr(args: Namespace, out: CommandOutput) -> Iterator[StderrCapture | None]:
    """Capture standard error while a bar is shown; yield None without a bar.

    Must be entered before the store is opened and left after it is closed: processes that
    tools start inherit the redirected file descriptor.
    """
    if not has_bar(args, out):
        yield None
        return
    with StderrCapture() as captured:
        yield captured


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """Options of `show_run`."""

    driven_here: bool  # this process drives the run, so leaving it must pause the run
    stderr_capture: StderrCapture | None = None
    first_text: str = ""  # printed before the first entry


async def show_run(
    run: AnyRun, args: Namespace, out: CommandOutput, options: ShowOptions
) -> int:
    """Show a run until it rests or the user leaves; return the exit code."""
    if not has_bar(args, out):
        printing = _FeedPrinter(run, out, first_text=options.first_text)
        return await _show_plainly(printing, args, driven_here=options.driven_here)
    try:
        from midrun.tui.controller import ExitReason  # noqa: PLC0415 - needs the extra `tui`
        from midrun.tui.session import attend  # noqa: PLC0415 - needs the extra `tui`
    except ImportError as error:
        problem = f"install midrun[tui] for the control bar ({error}), or add --plain"
        raise Misconfigured("midrun", problem) from error
    if options.first_text:
        out.write_text(options.first_text)
    reason = await attend(
        run,
        actor=args.actor,
        driven_here=options.driven_here,
        stderr_capture=options.stderr_capture,
        hints=build_hints(args),
    )
    if reason is ExitReason.ENDED:
        return await _print_end(run, out)
    if reason is ExitReason.QUIT:
        return _print_resume_hint(run, args, out, driven_here=options.driven_here)
    if not options.driven_here:
        return await _print_detached(run, args, out)
    # The user detached from a run that this process drives. The process must stay, so the run
    # is shown as plain lines from here on.
    first = "detached: the run continues in this process; Ctrl-C pauses it"
    printing = _FeedPrinter(run, out, after=(await run.view()).seq, first_text=first)
    return await _show_plainly(printing, args, driven_here=True)


async def _print_detached(run: AnyRun, args: Namespace, out: CommandOutput) -> int:
    """Print that the bar was left, and whether a worker still drives the run."""
    status = (await run.view()).status
    stands = " — ".join(filter(None, (status.word, status.note)))
    goes_on = status.style in {"running", "pausing"}
    out.write_text("detached: the run continues" if goes_on else f"detached: {stands}")
    out.write_text(f"attach again with: {format_command(args, 'attach', run.id)}")
    return 0


async def _print_end(run: AnyRun, out: CommandOutput) -> int:
    """Return the exit code; print the report of a cancel, which the bar does not show."""
    phase = (await run.until(*RESTING_PHASES)).phase
    if phase is Phase.CANCELLED:
        out.write_wrapped(str(await run.report()))
    return EXIT_CODE_BY_PHASE.get(phase, PAUSED_EXIT_CODE)


def _print_resume_hint(
    run: AnyRun, args: Namespace, out: CommandOutput, *, driven_here: bool
) -> int:
    out.write_text(f"resume with: {format_command(args, 'resume', run.id)}")
    if driven_here:
        out.write_text(
            f"and drive it: {format_command(args, 'attach', run.id, '--app', args.app)}"
        )
    return PAUSED_EXIT_CODE


# ── without a terminal ────────────────────────────────────────────────────────────────────


async def _show_plainly(printer: "_FeedPrinter", args: Namespace, *, driven_here: bool) -> int:
    """Print one line per entry until the run rests, and return the exit code.

    The first interrupt pauses the run, the second ends the watching. If the output cannot be
    written any more and this process drives the run, the run is paused as well, because its
    driver is about to exit. The remaining messages then go to standard error.
    """
    run, say = printer.run, printer.out
    # `view` stays None if the watching ended before the run rested. `paused` is then False
    # if the run continues. `unread`: the output failed.
    view: RunView | None = None
    paused, unread = True, False
    async with anyio.create_task_group() as tasks:

        async def leave(*, task_status: TaskStatus[None]) -> None:
            nonlocal paused
            pausing = _choose_pausing_signals(args, driven_here=driven_here)
            paused = await _pause_on_signals(run, args, pausing, task_status)
            tasks.cancel_scope.cancel()

        async def go_on() -> None:
            nonlocal unread
            try:
                await printer.print_feed()
            except OSError as error:
                if not driven_here or error.errno not in UNWRITABLE_ERRNOS:
                    raise
                unread = True
                printer.stop()
                reason = "the output pipe was closed"  # journaled: format
                await _request_pause(run, args, reason)
                # EIO: the terminal is gone, and with it the user who could interrupt a second
                # time, so leave now. After other errors, wait until the run is paused.
                if error.errno == EIO:
                    tasks.cancel_scope.cancel()

        # `start` waits until the signal receiver is installed: a Ctrl-C right after the first
        # line must pause the run, not kill the process.
        await tasks.start(leave)
        tasks.start_soon(go_on)
        view = await _wait_for_rest(run)
        # The phase is known before the feed has delivered the last entries. Print those first,
        # so that the outcome comes last.
        await printer.wait_until_printed(view.seq)
        tasks.cancel_scope.cancel()
    if view is None:
        return await _report_leaving(run, args, say, paused=paused)
    if unread and (following := _list_next_commands(view, args)):
        why = f"midrun: the output cannot be written, so the run is {view.phase}"
        sys.stderr.write("\n".join([why, *following, ""]))
    await _print_outcome(printer, view, args)
    return EXIT_CODE_BY_PHASE.get(view.phase, PAUSED_EXIT_CODE)


async def _wait_for_rest(run: AnyRun) -> RunView:
    """Wait until the run cannot continue by itself, and return its view."""
    while True:
        # Not `result()`: its checkpoint holds the whole journal, which a server records in its
        # audit log as an export.
        view = await run.until(*RESTING_PHASES)
        if not any(ask.kind == "child" for ask in view.asks):
            return view
        # A decision may have just continued the child run that asked. `result` waits for it.
        await run.result()
        view = await run.view()
        if view.phase in RESTING_PHASES:
            return view


async def _print_outcome(printer: "_FeedPrinter", view: RunView, args: Namespace) -> None:
    report = await printer.run.report() if view.phase is Phase.CANCELLED else None
    if printer.out.as_json:
        printer.out.write_json(_make_outcome_fields(view, report, printer.error_code))
        return
    for line in (*_list_outcome_lines(view, report), *_list_next_commands(view, args)):
        printer.out.write_text(line)


async def _report_leaving(
    run: AnyRun, args: Namespace, out: CommandOutput, *, paused: bool
) -> int:
    if out.as_json:
        out.write_json({"run_id": run.id, "phase": (await run.view()).phase})
        return PAUSED_EXIT_CODE if paused else 0
    if paused:
        return _print_resume_hint(run, args, out, driven_here=False)
    return await _print_detached(run, args, out)


class _FeedPrinter:
    """Prints the feed of a run, and lets other tasks wait until an entry is printed."""

    def __init__(
        self, run: AnyRun, out: CommandOutput, *, after: int = 0, first_text: str = ""
    ) -> None:
        self.run = run
        self.out = out
        self.error_code = ""  # of the newest `RunFailed`
        self._first_text = first_text
        self._printed_seq: float = after
        self._progressed = anyio.Event()

    async def print_feed(self) -> None:
        if self._first_text:
            self.out.write_text(self._first_text)
        lines = PlainFeed()
        async with aclosing(open_feed(self.run, int(self._printed_seq), self.out)) as items:
            async for item in items:
                # Of the live items, only notes are useful in a log; tokens would flood it.
                if not isinstance(item, Delta) or item.kind == "note":
                    print_item(item, lines, self.out)
                if isinstance(item, FeedEntry) and isinstance(item.entry, RunFailed):
                    self.error_code = item.entry.code
                if item.seq is not None:
                    self._mark_printed(max(self._printed_seq, item.seq))

    def stop(self) -> None:
        """Stop printing, and release every task that waits in `wait_until_printed`."""
        self.out.discard_output()
        self._mark_printed(inf)

    async def wait_until_printed(self, seq: int) -> None:
        # An AnyIO event cannot be cleared, so each wait uses a new one.
        while self._printed_seq < seq:
            self._progressed = anyio.Event()
            await self._progressed.wait()

    def _mark_printed(self, seq: float) -> None:
        # Infinity stands for "as much as will ever be printed": see `stop`.
        self._printed_seq = seq
        self._progressed.set()


def _choose_pausing_signals(args: Namespace, *, driven_here: bool) -> set[signal.Signals]:
    """Return the signals that pause the run; the others only end the watching.

    Ctrl-C comes from a user and is meant for the run. SIGTERM ends the process: that pauses a
    run that the process started or drives, but not one that it only watches. SIGHUP, the loss
    of the terminal, pauses only a run that is driven here.
    """
    pausing = {signal.SIGINT}
    if driven_here or args.command == "run":
        pausing.add(signal.SIGTERM)
    if driven_here:
        pausing.add(signal.SIGHUP)
    return pausing


async def _pause_on_signals(
    run: AnyRun,
    args: Namespace,
    pausing_signals: set[signal.Signals],
    task_status: TaskStatus[None],
) -> bool:
    """Pause the run at a signal of `pausing_signals`; return at the next signal.

    Returns at once after SIGHUP, if the run cannot be paused, or at a signal that does not
    pause. The result is False if the run continues, else True.
    """
    with receive_terminal_signals() as signals:
        task_status.started()
        async for number in signals:
            if number not in pausing_signals:
                return False
            reason = "interrupted at the terminal"  # journaled: format
            is_pausing = await _request_pause(run, args, reason)
            # After SIGHUP there is no user who could interrupt a second time, so leave.
            if not is_pausing or number is signal.SIGHUP:
                return True
    return True


async def _request_pause(run: AnyRun, args: Namespace, reason: str) -> bool:
    """Request a pause; return False if the run is paused already or cannot be paused."""
    try:
        receipt = await run.pause(actor=args.actor, reason=reason)
    except ControlRefused:
        return False
    return not receipt.already


def _make_outcome_fields(view: RunView, report: Report | None, code: str) -> dict[str, object]:
    """Return the JSON fields of the outcome; `code` is the one of a failed run's error."""
    fields: dict[str, object] = {"run_id": view.run_id, "phase": view.phase}
    if view.phase is Phase.COMPLETED:
        value = {} if view.value is None else {"value": view.value}
        return fields | {"output": view.output} | value
    if view.phase is Phase.CANCELLED:
        return fields | {"report": report}
    if view.phase is Phase.FAILED:
        return fields | {"error": view.error, "code": code}
    return fields | {"reason": _rest_reason(view), "asks": view.asks}


def _list_outcome_lines(view: RunView, report: Report | None) -> list[str]:
    name = f"run {view.run_id}"
    if view.phase is Phase.COMPLETED and view.output:
        return [f"{name} completed:", view.output]
    if view.phase is Phase.COMPLETED:
        return [str(Completed(run_id=view.run_id, output=""))]
    if report is not None:
        return [str(Cancelled(run_id=view.run_id, report=report))]
    if view.phase is Phase.FAILED:
        return [f"{name} failed: {shorten_to_line(view.error)}; it can be resumed"]
    reason = _rest_reason(view)
    why = f" ({reason})" if reason and reason != view.phase else ""
    asks = "; ".join(map(str, view.asks))
    return [f"{name} {view.phase}{why}" + (asks and f": {asks}")]


def _rest_reason(view: RunView) -> str:
    return "halted" if view.phase is Phase.HALTED else view.reason


def _list_next_commands(view: RunView, args: Namespace) -> list[str]:
    """Return the commands that let the run continue."""
    if view.phase is Phase.WAITING:
        return [
            f"decide with: {_make_decision_command(a, view.run_id, args)}" for a in view.asks
        ]
    has_ended = view.phase in TERMINAL_PHASES
    return [] if has_ended else [f"resume with: {format_command(args, 'resume', view.run_id)}"]


def _make_decision_command(ask: AskView, run: str, args: Namespace) -> str:
    words, others = DECISION_COMMANDS[ask.kind]
    if ask.kind == "question" and ask.declinable:
        others = " (or decline)"
    return format_command(args, words.format(f"{run}-{ask.id}")) + others
