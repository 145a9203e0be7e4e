"""The lines of the bar: headline, buttons, pending requests and asks.

Pure functions of a view, the time and the terminal width. The texts of the buttons come from
`view.controls`, so they are the same as on the web page.
"""

from collections.abc import Iterable
from typing import Final

from prompt_toolkit.utils import get_cwidth

from midrun.agents.outcome import AskView
from midrun.core.ids import SECOND, Micros
from midrun.runs.values import CallView, RunView
from midrun.text.buttons import Offer
from midrun.text.phrases import shown
from midrun.tui.escape import exact, flat
from midrun.tui.phrases import MIDRUN, Hints, place
from midrun.tui.style import Line, words
from midrun.tui.wrap import folded

WIDE: Final = 150
"""Terminal width from which several buttons may share a line."""

PATIENCE_S: Final = 5
"""Time in the queue after which the bar shows how to start a worker."""

GAP: Final = "   "
KEYS: Final = {"pause": "p", "redirect": "r", "cancel": "c"}
MARKS: Final = {
    "queued": "○",
    "running": "▷",
    "pausing": "‖",
    "paused": "‖",
    "waiting": "?",
    "cancelling": "■",
    "cancelled": "■",
    "completed": "✓",
    "failed": "!",
    "halted": "⊘",
    "halting": "⊘",
    "lost": "⚠",
}
AT_WORK: Final = frozenset({"running", "pausing", "cancelling"})


def drawn(view: RunView, now: Micros, width: int, hints: Hints = MIDRUN) -> list[Line]:
    """Return the whole bar: headline, buttons, pending requests and asks."""
    lines = [clipped(headline(view, now), width)]
    if waits_long(view, now) and hints.workers:
        lines.append(
            clipped([("bad", f"no worker drives it: {hints.typed('worker', 'APP')}")], width)
        )
    lines += flowing(
        [button(KEYS[name], offer) for name, offer in view.controls.items()], width
    )
    lines += [clipped(line, width) for line in _waiting(view)]
    return lines


def headline(view: RunView, now: Micros) -> Line:
    """Return the badge, the time at work, the step, the current activity and the cost."""
    sign = view.sign
    by = f" by {flat(sign.by)}" if sign.by else ""
    badge = f" {MARKS[sign.look]} {flat(sign.word)}{by} "
    line: Line = [(f"badge.{sign.look}", badge), ("bold", f" {clock(elapsed(view, now))}")]
    for look, text in (("", place(view)), ("dim", current(view, now)), ("dim", _money(view))):
        line += [(look, f"  {flat(text)}")] if text else []
    return line


def elapsed(view: RunView, now: Micros) -> float:
    """Return the seconds at work, counted up to `now` while the run is at work."""
    ticking = view.phase in AT_WORK
    return view.elapsed + (max(0, now - view.changed_at) / SECOND if ticking else 0)


def clock(seconds: float) -> str:
    """Return seconds as 00:01:23."""
    minutes, second = divmod(int(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02}:{minute:02}:{second:02}"


def current(view: RunView, now: Micros) -> str:
    """Return the calls in flight with their durations; or the note of a run at rest."""
    if view.phase != "running":
        return view.sign.note
    doing = ", ".join(_doing(call, now) for call in view.in_flight)
    plan = view.sign.note if view.plan else ""
    return " · ".join(filter(None, (plan, doing)))


def waits_long(view: RunView, now: Micros) -> bool:
    """Tell whether a run is queued for so long that probably no worker drives it."""
    return view.phase == "queued" and now - view.changed_at > PATIENCE_S * SECOND


def _doing(call: CallView, now: Micros) -> str:
    seconds = max(0, now - call.since) // SECOND
    verb = {"undo": "undoing ", "release": "releasing "}.get(call.form, "")
    return f"{verb}{call.tool or 'the model'}" + (f", {seconds} s" if seconds else "")


def _money(view: RunView) -> str:
    cap = next((cap.cap for cap in view.caps if cap.name == "cost"), None)
    if cap is not None:
        return f"${view.usage.cost_usd:.2f} of ${cap:.2f}"
    return f"${view.usage.cost_usd:.2f}" if view.usage.cost_usd else ""


def button(key: str, offer: Offer) -> Line:
    """Return a button: its key, its label, and the consequence of pressing it."""
    if not offer.enabled:
        return [("dim", f" {key}  {offer.label} — {flat(offer.consequence)}")]
    return [
        ("key", f" {key} "),
        ("bold", f" {offer.label}"),
        ("dim", f" — {flat(offer.consequence)}"),
    ]


def _waiting(view: RunView) -> Iterable[Line]:
    for pending in view.pending:
        text = f"↪ {pending.kind} waits for the next step: “{flat(pending.text)}”"
        yield [("person", text), ("dim", "  w withdraws it")]
    for frame in view.frames[-1:]:
        more = f" (and {len(view.frames) - 1} more)" if len(view.frames) > 1 else ""
        yield [("dim", f"⋯ held: {flat(frame.goal)} — {frame.place}{more}")]
    if view.controls["pause"].command == "hand_back":
        yield [("key", " t "), ("bold", " Write"), ("dim", " — In the agent's place.")]
    for ask in view.asks[:1]:
        more = f"  ({len(view.asks)} open)" if len(view.asks) > 1 else ""
        yield [("key", " a "), ("waiting", f" {flat(asked(ask))}"), ("dim", more)]


def asked(ask: AskView) -> str:
    """Return the question of an ask as one line, with the call's arguments."""
    verb = {"approval": "Let it call", "unsure": "Did this happen:"}.get(ask.kind, "Decide:")
    question = ask.question or f"{verb} {ask.tool}"
    return question if ask.kind == "question" else f"{question} {exact(shown(ask.args))}"


# ── widths ────────────────────────────────────────────────────────────────────────────────


def flowing(buttons: list[Line], width: int) -> list[Line]:
    """Return the lines of the buttons; on a wide terminal, side by side where they fit."""
    lines: list[Line] = []
    for made in buttons:
        size = get_cwidth(words(made))
        if lines and width >= WIDE and get_cwidth(words(lines[-1])) + len(GAP) + size <= width:
            lines[-1] += [("", GAP), *made]
        else:
            lines += hung(made, width)
    return lines


def hung(line: Line, width: int) -> list[Line]:
    """Wrap the line of a button: its consequence continues on indented lines."""
    *head, (look, text) = line
    indent = 4
    room = width - get_cwidth(words(head))
    if get_cwidth(text) <= room or room <= indent:
        return [line]
    # The first row continues the head, so it has less room than the rows below it.
    first, *_ = folded(text, room)
    rest = folded(text[len(first) :].lstrip(), width - indent)
    return [[*head, (look, first)], *([(look, " " * indent + row)] for row in rest)]


def clipped(line: Line, width: int) -> Line:
    """Return the part of a line that fits, with an ellipsis if it was cut."""
    room = width
    pieces: Line = []
    for look, text in line:
        size = get_cwidth(text)
        if size > room:
            return [*pieces, (look, _cut(text, room))] if room > 0 else pieces
        pieces.append((look, text))
        room -= size
    return pieces


def _cut(text: str, width: int) -> str:
    """Return the beginning of `text` with an ellipsis."""
    while text and get_cwidth(text) > width - 1:
        text = text[:-1]
    return text + "…"
