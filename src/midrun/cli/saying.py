"""Saying: facts about runs as lines for people, or as JSON for programs."""

import os
import sys
from datetime import UTC, datetime
from errno import EDQUOT, EIO, ENOSPC, EPIPE
from shutil import get_terminal_size
from textwrap import wrap
from typing import Final, TextIO

import msgspec

from midrun.core.ids import SECOND, Micros
from midrun.core.offers import Offer
from midrun.core.words import line
from midrun.driver.live import Delta
from midrun.handles.item import Happened, Item
from midrun.handles.receipt import Receipt
from midrun.handles.view import OpenAsk, RunView
from midrun.tui.places import place
from midrun.tui.safe import flat, json_line, printable
from midrun.tui.style import SGR, Line, emphasised

THREE_DIGITS: Final = 100
UNWRITABLE: Final = frozenset({EPIPE, ENOSPC, EDQUOT, EIO})
"""Of the output: the store's errors, and the network's, have names of their own by then."""


class Sayer:
    """Writes to a stream: lines with colours on a terminal, or JSON, one value a line.

    Whatever a model or a tool said, a terminal gets it as text: nothing in it acts. `moves`
    tells whether there is one that knows more than lines: where a cursor can be put.
    """

    def __init__(self, out: TextIO | None = None, *, as_json: bool = False) -> None:
        self._out = out or sys.stdout
        self.as_json = as_json
        self.on_terminal = self._out.isatty()
        self.moves = self.on_terminal and os.environ.get("TERM") != "dumb"
        self.colours = self.moves and not as_json and not os.environ.get("NO_COLOR")

    def json(self, value: object) -> None:
        """Write a value as one line of JSON."""
        self.raw(json_line(msgspec.json.encode(value).decode()) + "\n")

    def line(self, pieces: Line) -> None:
        """Write a line, with its looks where they can be seen."""
        self.raw("".join(self._look(look, printable(text)) for look, text in pieces) + "\n")

    def text(self, text: str) -> None:
        """Write text."""
        self.line([("", text)])

    def prose(self, text: str) -> None:
        """Write long lines: on a terminal broken between words, as they are into a file."""
        if not self.on_terminal:
            self.text(text)
            return
        columns = get_terminal_size().columns
        for written in printable(text).split("\n"):
            self.text("\n".join(_broken(written, columns)))

    def say(self, value: object, *lines: Line | str) -> None:
        """Write `value` for programs, or `lines` for people."""
        if self.as_json:
            self.json(value)
            return
        for told in lines:
            self.line([("", told)] if isinstance(told, str) else told)

    def raw(self, text: str) -> None:
        """Write what is known to be safe."""
        self._out.write(text)
        self._out.flush()

    def hush(self) -> None:
        """Write nowhere from here on: what takes our output does not take it any more."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._out.fileno())

    def _look(self, look: str, text: str) -> str:
        return f"\x1b[{SGR[look]}m{text}\x1b[0m" if look and self.colours else text


def _broken(text: str, columns: int) -> list[str]:
    """Return a line as lines that fit; below an item of a list they are moved in."""
    return wrap(
        text,
        columns,
        subsequent_indent="  " if text.startswith("- ") else "",
        break_on_hyphens=False,
        replace_whitespace=False,
    ) or [""]


# ── runs ──────────────────────────────────────────────────────────────────────────────────


def row_line(view: RunView, now: Micros) -> Line:
    """Return a run as one line of a list."""
    needs = needing(view)
    return [
        ("", f"{view.run_id}  "),
        (view.phase, f"{view.phase:<11}"),
        ("", place(view).ljust(18)),
        ("dim", f"{ago(now, view.changed_at):>10}  "),
        ("", line(view.task)),
        ("dim", f"  part of {view.parent}" if view.parent else ""),
        ("waiting", f"  ! {needs}" if needs else ""),
    ]


def needing(view: RunView) -> str:
    """Return why a person should look at a run, or nothing."""
    if view.asks:
        return f"{len(view.asks)} to decide" if len(view.asks) > 1 else line(str(view.asks[0]))
    if view.sign.look == "lost":
        return view.sign.word
    if view.phase == "failed":
        return "failed"
    return "at a cap" if view.phase == "paused" and view.reason == "cap" else ""


def view_lines(view: RunView, now: Micros) -> list[Line]:
    """Return where a run stands, in full."""
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
    """Return what else the run would take, in the words of the command."""
    offered = OFFERED | {offer.command for offer in view.controls.values()}
    more = [spelt(name) for name in view.allowed if name not in offered | OPERATED]
    return [[("dim", f"  also: {', '.join([*more, 'fork'])}")]]


def spelt(control: str) -> str:
    """Return a control as it is typed: `take_over` is `midrun take-over`."""
    return control.replace("_", "-")


def _typed(offer: Offer) -> str:
    """Return what to type for an offer: what it means now, not where its button is."""
    caps = (f" --cap {name}={cap:g}" for name, cap in offer.caps.items())
    return "".join((spelt(offer.command), *caps))


def _facts(view: RunView, now: Micros) -> list[tuple[str, str]]:
    money = f", ${view.usage.cost_usd:.2f}" if view.usage.cost_usd else ""
    facts = [("task", line(view.task)), ("agent", view.agent)]
    facts += [("parent", view.parent)] if view.parent else []
    facts += [("doing", call.tool or "the model") for call in view.in_flight]
    facts += [("plan", f"[{item.mark}] {line(item.text)}") for item in view.plan]
    facts += [("held", f"{frame.id}  {frame.goal} — {frame.place}") for frame in view.frames]
    facts += [("pending", f"{p.kind} at {p.seq}: {line(p.text)}") for p in view.pending]
    facts += [("ask", f"{view.run_id}-{ask.id}  {ask}") for ask in view.asks]
    facts += [("cap", f"{cap.name}: {cap.used:g} of {cap.cap:g}") for cap in view.caps]
    facts += (
        [("used", f"{count(view.usage.tokens)} tokens{money}")] if view.usage.tokens else []
    )
    facts += [("error", line(view.error))] if view.error else []
    facts += [("output", line(view.output))] if view.output else []
    return [*facts, ("changed", ago(now, view.changed_at))]


def ask_line(ask: OpenAsk) -> Line:
    """Return what somebody has to decide."""
    args = "" if ask.args is None or ask.kind == "question" else f" {flat(_short(ask.args))}"
    said = ask.question or f"{ask.kind} of {ask.tool}"
    about = f"  ({line(ask.task)})"
    return [("bold", ask.ref), ("waiting", f"  {line(said)}"), ("", args), ("dim", about)]


# ── what happened ─────────────────────────────────────────────────────────────────────────


def item_line(item: Item) -> str | None:
    """Return what happened as one line; None for what is only of the moment."""
    if isinstance(item, Delta):
        return f"         · {item.tool or 'call'} {item.text}" if item.kind == "note" else None
    return f"{item.seq:>5}  {clock_time(item.at)}  {item.kind:<18} {_gist(item)}".rstrip()


def receipt_line(name: str, receipt: Receipt, *, lost: bool = False) -> Line:
    """Return what became of a control; if the driver is `lost`, nothing that it would do."""
    now: Line = [] if lost else [("", "; the run is "), (receipt.phase, receipt.phase)]
    if receipt.said and not lost:
        return emphasised(receipt.said)
    if receipt.already:
        by = f" (by {receipt.by})" if receipt.by else ""
        return [("", f"{name}: {receipt.already.replace('_', ' ')}{by}"), *now]
    waits = "" if receipt.applied else ", not applied yet"
    return [("", f"{name}: in the journal at {receipt.seq}{waits}"), *now]


def _gist(item: Happened) -> str:
    told = msgspec.to_builtins(item.entry)
    assert isinstance(told, dict)
    hidden = {"kind", "role", "digest", "epoch", "holder", "seen", "attempt"}
    parts = [f"{key}={_short(value)}" for key, value in told.items() if key not in hidden]
    return line(" ".join(parts))


def _short(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


# ── for people ────────────────────────────────────────────────────────────────────────────


def clock_time(at: Micros) -> str:
    """Return a moment as a time of day, here."""
    return datetime.fromtimestamp(at / SECOND, tz=UTC).astimezone().strftime("%H:%M:%S")


def ago(now: Micros, then: Micros) -> str:
    """Return how long ago something was."""
    return f"{spell(max(0, now - then) / SECOND)} ago"


def spell(seconds: float) -> str:
    """Return a time for people: 4 s, 3 min, 2 h, 5 d."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def count(number: int) -> str:
    """Return a number for people: 940, 12k, 3.4M."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if number >= 0.9995 * size:  # what would be rounded to 1000 of the smaller one
            many = number / size
            return f"{many:.3g}{unit}" if many < THREE_DIGITS else f"{many:.0f}{unit}"
    return str(number)
