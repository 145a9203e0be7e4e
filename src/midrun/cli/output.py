"""Output of commands: styled lines for people, or JSON for programs; and the exit codes.

`CommandOutput` writes to standard output. The other functions turn views, asks and receipts
into lines of styled pieces, without writing them.
"""

import os
import sys
from errno import EDQUOT, EIO, ENOSPC, EPIPE
from shutil import get_terminal_size
from textwrap import wrap
from typing import Final, TextIO

import msgspec

from midrun.cli.tables import ago, asked, count, spell
from midrun.core.ids import Micros
from midrun.core.journaled_text import line
from midrun.runs.values import CallView, OpenAsk, Receipt, RunView
from midrun.text.buttons import Offer
from midrun.tui.escape import exact, flat, json_line, printable
from midrun.tui.phrases import place
from midrun.tui.style import SGR, Line, emphasised

UNWRITABLE: Final = frozenset({EPIPE, ENOSPC, EDQUOT, EIO})
"""Error numbers of an output that cannot be written: closed pipe, full disk, lost terminal.

An `OSError` that reaches the command is about its output: errors of stores and of the network
are `MidrunError`s by then.
"""


class Sayer:
    """Writes coloured lines to a terminal, plain lines to a file, or JSON for programs.

    Escape sequences in text from models and tools are made visible, so that they cannot control
    the terminal. `can_move_cursor` is True for a terminal with a movable cursor, which the
    control bar needs.
    """

    def __init__(self, out: TextIO | None = None, *, as_json: bool = False) -> None:
        self._out = out or sys.stdout
        self.as_json = as_json
        self.on_terminal = self._out.isatty()
        self.moves = self.on_terminal and os.environ.get("TERM") != "dumb"
        self.colours = self.moves and not as_json and not os.environ.get("NO_COLOR")

    @property
    def columns(self) -> int | None:
        """Width of the terminal; None if the output is not a terminal."""
        return get_terminal_size().columns if self.on_terminal else None

    def json(self, value: object) -> None:
        """Write `value` as one line of JSON."""
        self.raw(json_line(msgspec.json.encode(value).decode()) + "\n")

    def line(self, pieces: Line) -> None:
        """Write a line of styled pieces, with colours if the output shows them."""
        self.raw("".join(self._look(look, printable(text)) for look, text in pieces) + "\n")

    def text(self, text: str) -> None:
        """Write unstyled text."""
        self.line([("", text)])

    def prose(self, text: str, *, indent: int = 0) -> None:
        """Write text; on a terminal, wrap its lines between words.

        The second and following lines of a wrapped line are indented by `indent` columns.
        """
        if (columns := self.columns) is None:
            self.text(text)
            return
        for written in printable(text).split("\n"):
            self.text("\n".join(_broken(written, columns, indent)))

    def say(self, value: object, *lines: Line | str) -> None:
        """Write `value` for programs, or `lines` for people."""
        if self.as_json:
            self.json(value)
            return
        for line_ in lines:
            self.line([("", line_)] if isinstance(line_, str) else line_)

    def raw(self, text: str) -> None:
        """Write text that needs no escaping, and flush."""
        self._out.write(text)
        self._out.flush()

    def hush(self) -> None:
        """Discard all further output, because the stream cannot be written any more.

        The file descriptor is redirected, not only this object: the interpreter flushes
        `sys.stdout` at exit and would fail there again.
        """
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._out.fileno())

    def _look(self, look: str, text: str) -> str:
        return f"\x1b[{SGR[look]}m{text}\x1b[0m" if look and self.colours else text


def _broken(text: str, columns: int, indent: int) -> list[str]:
    """Wrap one line to `columns`; an item of a list gets an indent of its own."""
    return wrap(
        text,
        columns,
        subsequent_indent="  " if text.startswith("- ") else " " * min(indent, columns // 2),
        break_on_hyphens=False,
        replace_whitespace=False,
    ) or [""]


# ── runs ──────────────────────────────────────────────────────────────────────────────────


def view_lines(view: RunView, now: Micros) -> list[Line]:
    """Return the full status of a run: facts, then the controls it accepts."""
    sign = view.sign
    by = f" by {sign.by}" if sign.by else ""
    head: Line = [
        ("bold", f"{view.run_id}  "),
        (sign.look, f"{sign.word}{by}"),
        ("", f"  {place(view)}" if place(view) else ""),
        ("", f"  at work {spell(view.elapsed)}"),
    ]
    return (
        [
            head,
            *([("dim", f"{name:<9}"), ("", text)] for name, text in _facts(view, now)),
            [],
        ]
        + [
            [("bold", f"  {offer.label}"), ("", f": {offer.consequence}  ({_typed(offer)})")]
            for offer in view.controls.values()
            if offer.enabled
        ]
        + _also(view)
    )


OFFERED: Final = frozenset({"pause", "resume", "redirect", "cancel"})
OPERATED: Final = frozenset({"halt", "lift"})


def _also(view: RunView) -> list[Line]:
    """Return the commands that the run accepts and that no button offers."""
    offered = OFFERED | {offer.command for offer in view.controls.values()}
    more = [spelt(name) for name in view.allowed if name not in offered | OPERATED]
    return [[("dim", f"  also: {', '.join([*more, 'fork'])}")]]


def spelt(control: str) -> str:
    """Return the command name of a control: `take-over` for `take_over`."""
    return control.replace("_", "-")


def _typed(offer: Offer) -> str:
    """Return the command that does the same as pressing the button now."""
    caps = (f" --cap {name}={cap:g}" for name, cap in offer.caps.items())
    return "".join((spelt(offer.command), *caps))


def _doing(call: CallView) -> str:
    name = call.tool or "the model"
    return f"{name} (not responding)" if call.not_responding else name


def _facts(view: RunView, now: Micros) -> list[tuple[str, str]]:
    money = f", ${view.usage.cost_usd:.2f}" if view.usage.cost_usd else ""
    facts = [("task", line(view.task)), ("agent", view.agent)]
    facts += [("parent", view.parent)] if view.parent else []
    facts += [("doing", _doing(call)) for call in view.in_flight]
    facts += [("plan", f"[{item.mark}] {line(item.text)}") for item in view.plan]
    facts += [("held", f"{frame.id}  {frame.goal} — {frame.place}") for frame in view.frames]
    facts += [("pending", f"{p.kind} at {p.seq}: {line(p.text)}") for p in view.pending]
    facts += [("ask", f"{view.run_id}-{ask.id}  {asked(ask)}") for ask in view.asks]
    facts += [("cap", f"{cap.name}: {cap.used:g} of {cap.cap:g}") for cap in view.caps]
    facts += (
        [("used", f"{count(view.usage.tokens)} tokens{money}")] if view.usage.tokens else []
    )
    facts += [("error", line(view.error))] if view.error else []
    facts += [("output", line(view.output))] if view.output else []
    return [*facts, ("changed", ago(now, view.changed_at))]


def ask_line(ask: OpenAsk) -> Line:
    """Return an open ask as one line: id, question, arguments and task."""
    args = (
        ""
        if ask.args is None or ask.kind == "question"
        else f" {flat(exact(_short(ask.args)))}"
    )
    about = f"  ({line(ask.task)})"
    hidden: Line = [("waiting", f"  {flat(exact(ask.hidden))}")] if ask.hidden else []
    return [
        ("bold", ask.ref), ("waiting", f"  {asked(ask)}"), ("", args), *hidden, ("dim", about),
    ]  # fmt: skip


# ── receipts ──────────────────────────────────────────────────────────────────────────────


def receipt_line(name: str, receipt: Receipt, *, lost: bool = False) -> Line:
    """Return the receipt of a control as one line.

    If the worker is `lost`, the line leaves out the phase and the announcement: both describe
    actions that no worker is there to take.
    """
    now: Line = [] if lost else [("", "; the run is "), (receipt.phase, receipt.phase)]
    if receipt.said and not lost:
        return emphasised(receipt.said)
    if receipt.already:
        by = f" (by {receipt.by})" if receipt.by else ""
        return [("", f"{name}: {receipt.already.replace('_', ' ')}{by}"), *now]
    waits = "" if receipt.applied else ", not applied yet"
    return [("", f"{name}: in the journal at {receipt.seq}{waits}"), *now]


def _short(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


# Exit codes by phase; `midrun --help` lists them.

CODES: Final = {"completed": 0, "failed": 1, "cancelled": 3}
"""Exit code of a run that has ended or failed."""

PAUSED: Final = 75
"""Exit code of a run in any other phase: it can go on later. EX_TEMPFAIL of sysexits.h."""
