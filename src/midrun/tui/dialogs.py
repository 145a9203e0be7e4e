"""Dialogs that replace the buttons: confirm a cancel, decide an ask, help. Pure functions."""

from collections.abc import Iterable
from typing import Final

import msgspec

from midrun.agents.outcome import AskView
from midrun.text.buttons import Offer
from midrun.tui.bar import asked
from midrun.tui.escape import exact, flat
from midrun.tui.style import Line
from midrun.tui.wrap import folded

ROWS: Final = 8
"""Maximum number of rows for arguments; `midrun asks` prints all of them."""

AGAIN: Final = " ^C again leaves it paused"

HELP: Final = (
    ("p", "pause, keep running or resume, as the first button says"),
    ("r", "redirect: Enter at the next step, Alt+Enter now, Esc discards"),
    ("s", "side question: the run answers, then returns to its task"),
    ("c", "cancel: lists what would be undone, and asks first"),
    ("a", "decide an open ask: approve, decline, edit, answer"),
    ("w", "withdraw the pending redirect or message"),
    ("t", "take over, and write in the agent's place; p or r hands back"),
    ("f", "fork: a new run goes on from here, this run does not change"),
    ("d", "detach: the bar closes, {leaving}"),
    ("^C", "pause; again: cancel?; again: quit, the run stays paused"),
    ("?", "close this help"),
)


def confirming(offer: Offer, *, held: bool, width: int) -> list[Line]:
    """Return the dialog that confirms a cancel, with all effects that it would undo."""
    lines: list[Line] = [[("bold", "Cancel? "), ("dim", _held(held=held))]]
    for title, names, look in (
        ("will undo", offer.undo, "good"),
        ("cannot undo", offer.never, "bad"),
        ("unsure", offer.unsure, "waiting"),
        ("will release", offer.release, "dim"),
    ):
        if names:
            text = f"  {title}: {'; '.join(flat(exact(name)) for name in names)}"
            lines += [[(look, row)] for row in folded(text, width)]
    if len(lines) == 1:
        lines.append([("dim", "  It has changed nothing that a cancel could undo.")])
    return [*lines, keys(confirm_keys(offer)), [("dim", AGAIN)]]


def _held(*, held: bool) -> str:
    return "Nothing new starts meanwhile; after a minute the run goes on." if held else ""


def confirm_keys(offer: Offer) -> dict[str, str]:
    """Return the keys of the cancel dialog, with their meanings."""
    back = {"n": "back"}
    if not offer.undo:
        return {"y": "cancel", **back}
    return {"y": f"cancel and undo {len(offer.undo)}", "k": "cancel, keep changes", **back}


def deciding(ask: AskView, number: int, count: int, width: int) -> list[Line]:
    """Return the dialog of an ask: its question, its call, and its keys."""
    head = f"{ask.id}" + (f"  ({number} of {count}, Tab for the next)" if count > 1 else "")
    lines: list[Line] = [
        [("waiting", row)] for row in folded(f"? {flat(asked(ask))}  {head}", width)
    ]
    if ask.why:
        lines += [[("dim", row)] for row in folded(f"  why: {flat(ask.why)}", width)]
    if ask.kind != "question" and ask.args is not None:
        lines += _arguments(ask, width)
    if ask.hidden:
        lines += [[("waiting", row)] for row in folded(f"  {flat(exact(ask.hidden))}", width)]
    lines += [[("", f"  {n}  {flat(exact(str(o)))}")] for n, o in enumerate(options(ask), 1)]
    return [*lines, keys(ask_keys(ask))]


def _arguments(ask: AskView, width: int) -> list[Line]:
    pretty = msgspec.json.format(msgspec.json.encode(ask.args), indent=2).decode()
    rows = [row for line in exact(pretty).split("\n") for row in folded(f"  {line}", width)]
    more: list[Line] = [[("dim", "  …")]] if len(rows) > ROWS else []
    return [[("dim", row)] for row in rows[:ROWS]] + more


def options(ask: AskView) -> list[str]:
    """Return the answers that the question proposes, at most nine: one per digit key."""
    proposed = ask.data.get("options") if isinstance(ask.data, dict) else None
    return [str(option) for option in proposed[:9]] if isinstance(proposed, list) else []


def ask_keys(ask: AskView) -> dict[str, str]:
    """Return the keys that decide `ask`, with their meanings."""
    approval = {"y": "approve", "e": "edit the arguments", "n": "decline"}
    answer = {"t": "type an answer"}
    if options(ask):
        answer = {f"1–{len(options(ask))}": "choose", **answer}  # noqa: RUF001 - a range
    if ask.kind == "question" and ask.declinable:
        answer["n"] = "decline"
    unsure = {"y": "it did", "n": "it did not", "u": "unknown"}
    meanings = {"approval": approval, "question": answer, "unsure": unsure}.get(ask.kind)
    return {**(meanings or {"y": "approve", "n": "decline", **answer}), "Esc": "back"}


def helping(width: int, leaving: str) -> list[Line]:
    """Return the help for all keys; `leaving` says how the run continues without the bar."""
    return [
        [("bold", f"  {key:>2}  "), ("dim", row)]
        for key, text in HELP
        # One row per key: the help must not push the bar out of a small terminal.
        for row in folded(text.format(leaving=leaving), width - 6)[:1]
    ]


def keys(meanings: dict[str, str]) -> Line:
    """Return keys and their meanings as one line."""
    return list(_keys(meanings))


def _keys(meanings: dict[str, str]) -> Iterable[tuple[str, str]]:
    for key, meaning in meanings.items():
        yield ("key", f" {key} ")
        yield ("", f" {meaning}   ")
