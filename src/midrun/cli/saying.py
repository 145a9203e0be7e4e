"""Saying: facts about runs as lines for people, or as JSON for programs."""

import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, TextIO

import msgspec

from midrun.core.ids import SECOND, Micros
from midrun.core.words import line
from midrun.driver.live import Delta
from midrun.embed.feed import Happened, Item
from midrun.embed.receipt import Receipt
from midrun.embed.view import RunView
from midrun.ports.store import RunRow

COLOURS: Final = {
    "running": "34",
    "queued": "2",
    "pausing": "33",
    "paused": "33",
    "waiting": "35",
    "cancelling": "31",
    "cancelled": "31",
    "failed": "31",
    "completed": "32",
    "halted": "31",
}


class Sayer:
    """Writes to a stream: lines with colours on a terminal, or JSON, one value a line."""

    def __init__(self, out: TextIO = sys.stdout, *, as_json: bool = False) -> None:
        self._out = out
        self.as_json = as_json
        self._colours = out.isatty() and not as_json

    def json(self, value: object) -> None:
        """Write a value as one line of JSON."""
        self.text(msgspec.json.encode(value).decode())

    def text(self, text: str) -> None:
        """Write a text as it is."""
        self._out.write(text + "\n")
        self._out.flush()

    def say(self, value: object, text: str) -> None:
        """Write `value` for programs, or `text` for people."""
        if self.as_json:
            self.json(value)
        else:
            self.text(text)

    def phase(self, phase: str) -> str:
        """Return a phase, coloured where that is seen."""
        return f"\x1b[{COLOURS[phase]}m{phase}\x1b[0m" if self._colours else phase


def row_line(say: Sayer, row: RunRow, now: Micros) -> str:
    """Return a run as one line of a list."""
    head = row.head
    needs = f"  ! {head.attention}" if head.attention else ""
    phase = say.phase(head.phase) + " " * (11 - len(head.phase))
    place = f"step {head.step}".ljust(9)
    return f"{row.run}  {phase}{place}{ago(now, row.changed_at):>9}  {line(head.task)}{needs}"


def view_text(say: Sayer, view: RunView, now: Micros) -> str:
    """Return where a run stands, in full."""
    lines = [
        f"{view.run_id}  {say.phase(view.phase)}  {view.place}  at work {spell(view.elapsed)}",
        f"task     {line(view.task)}",
        f"agent    {view.agent}",
    ]
    lines += [f"doing    {call.tool or 'the model'}" for call in view.in_flight]
    lines += [f"plan     [{item.mark}] {line(item.text)}" for item in view.plan]
    lines += [f"held     {frame.goal} — {frame.place}" for frame in view.frames]
    lines += [f"pending  {p.kind} at {p.seq}: {line(p.text)}" for p in view.pending]
    lines += [f"ask      {ask}" for ask in view.asks]
    lines += [f"cap      {cap.name}: {cap.used:g} of {cap.cap:g}" for cap in view.caps]
    lines += [f"error    {line(view.error)}"] if view.error else []
    lines += [f"output   {line(view.output)}"] if view.output else []
    lines += [f"changed  {ago(now, view.changed_at)}", ""]
    for name, offer in view.controls.items():
        if offer.enabled:
            lines.append(f"  {offer.label}: {offer.consequence}  ({name})")
    return "\n".join(lines)


def item_line(item: Item) -> str | None:
    """Return what happened as one line; None for what is only of the moment."""
    if isinstance(item, Delta):
        return f"         · {item.tool or 'call'} {item.text}" if item.kind == "note" else None
    return f"{item.seq:>5}  {clock_time(item.at)}  {item.kind:<18} {_gist(item)}".rstrip()


def receipt_line(say: Sayer, name: str, receipt: Receipt) -> str:
    """Return what became of a control."""
    if receipt.said:
        return receipt.said
    if receipt.already:
        by = f" (by {receipt.by})" if receipt.by else ""
        return f"{name}: {receipt.already.replace('_', ' ')}{by}; {say.phase(receipt.phase)}"
    waits = "" if receipt.applied else ", not applied yet"
    return f"{name}: in the journal at {receipt.seq}{waits}; {say.phase(receipt.phase)}"


def _gist(item: Happened) -> str:
    told = msgspec.to_builtins(item.entry)
    assert isinstance(told, dict)
    hidden = {"kind", "role", "digest", "epoch", "holder", "seen", "attempt"}
    parts = [f"{key}={_short(value)}" for key, value in told.items() if key not in hidden]
    return line(" ".join(parts))


def _short(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


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


def joined(lines: Iterable[str]) -> str:
    """Return lines as one text."""
    return "\n".join(lines)
