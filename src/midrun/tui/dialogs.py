"""Dialogs that replace the buttons: confirm a cancel, decide an ask, help. Pure functions."""

from collections.abc import Iterable
from typing import Final

import msgspec

from midrun.agents.outcome import AskView
from midrun.text.buttons import Button
from midrun.tui.bar import format_ask_question
from midrun.tui.escape import escape_to_one_line, show_hidden_characters
from midrun.tui.style import StyledLine
from midrun.tui.wrap import wrap_text

ARGUMENTS_MAX_ROWS: Final = 8
"""Maximum number of rows for arguments; `midrun asks` prints all of them."""

QUIT_HINT: Final = " ^C again leaves it paused"

KEY_HELP: Final = (
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


def draw_cancel_dialog(button: Button, *, held: bool, width: int) -> list[StyledLine]:
    """Return the dialog that confirms a cancel, with all effects that it would undo."""
    lines: list[StyledLine] = [[("bold", "Cancel? "), ("dim", _describe_hold(held=held))]]
    for title, names, look in (
        ("will undo", button.undo, "good"),
        ("cannot undo", button.never, "bad"),
        ("unsure", button.unsure, "waiting"),
        ("will release", button.release, "dim"),
    ):
        if names:
            shown = [escape_to_one_line(show_hidden_characters(name)) for name in names]
            text = f"  {title}: {'; '.join(shown)}"
            lines += [[(look, row)] for row in wrap_text(text, width)]
    if len(lines) == 1:
        lines.append([("dim", "  It has changed nothing that a cancel could undo.")])
    return [*lines, draw_keys(list_confirm_keys(button)), [("dim", QUIT_HINT)]]


def _describe_hold(*, held: bool) -> str:
    return "Nothing new starts meanwhile; after a minute the run goes on." if held else ""


def list_confirm_keys(button: Button) -> dict[str, str]:
    """Return the keys of the cancel dialog, with their meanings."""
    back = {"n": "back"}
    if not button.undo:
        return {"y": "cancel", **back}
    return {"y": f"cancel and undo {len(button.undo)}", "k": "cancel, keep changes", **back}


def draw_ask_dialog(ask: AskView, number: int, count: int, width: int) -> list[StyledLine]:
    """Return the dialog of an ask: its question, its call, and its keys."""
    head = f"{ask.id}" + (f"  ({number} of {count}, Tab for the next)" if count > 1 else "")
    lines: list[StyledLine] = [
        [("waiting", row)]
        for row in wrap_text(f"? {escape_to_one_line(format_ask_question(ask))}  {head}", width)
    ]
    if ask.why:
        lines += [
            [("dim", row)] for row in wrap_text(f"  why: {escape_to_one_line(ask.why)}", width)
        ]
    if ask.kind != "question" and ask.args is not None:
        lines += _draw_arguments(ask, width)
    if ask.hidden:
        lines += [
            [("waiting", row)]
            for row in wrap_text(
                f"  {escape_to_one_line(show_hidden_characters(ask.hidden))}", width
            )
        ]
    lines += [
        [("", f"  {n}  {escape_to_one_line(show_hidden_characters(str(o)))}")]
        for n, o in enumerate(list_options(ask), 1)
    ]
    return [*lines, draw_keys(list_ask_keys(ask))]


def _draw_arguments(ask: AskView, width: int) -> list[StyledLine]:
    pretty = msgspec.json.format(msgspec.json.encode(ask.args), indent=2).decode()
    rows = [
        row
        for line in show_hidden_characters(pretty).split("\n")
        for row in wrap_text(f"  {line}", width)
    ]
    more: list[StyledLine] = [[("dim", "  …")]] if len(rows) > ARGUMENTS_MAX_ROWS else []
    return [[("dim", row)] for row in rows[:ARGUMENTS_MAX_ROWS]] + more


def list_options(ask: AskView) -> list[str]:
    """Return the answers that the question proposes, at most nine: one per digit key."""
    proposed = ask.data.get("options") if isinstance(ask.data, dict) else None
    return [str(option) for option in proposed[:9]] if isinstance(proposed, list) else []


def list_ask_keys(ask: AskView) -> dict[str, str]:
    """Return the keys that decide `ask`, with their meanings."""
    approval = {"y": "approve", "e": "edit the arguments", "n": "decline"}
    answer = {"t": "type an answer"}
    if list_options(ask):
        answer = {f"1–{len(list_options(ask))}": "choose", **answer}  # noqa: RUF001 - a range
    if ask.kind == "question" and ask.declinable:
        answer["n"] = "decline"
    unsure = {"y": "it did", "n": "it did not", "u": "unknown"}
    meanings = {"approval": approval, "question": answer, "unsure": unsure}.get(ask.kind)
    return {**(meanings or {"y": "approve", "n": "decline", **answer}), "Esc": "back"}


def draw_help(width: int, leaving: str) -> list[StyledLine]:
    """Return the help for all keys; `leaving` says how the run continues without the bar."""
    return [
        [("bold", f"  {key:>2}  "), ("dim", row)]
        for key, text in KEY_HELP
        # One row per key: the help must not push the bar out of a small terminal.
        for row in wrap_text(text.format(leaving=leaving), width - 6)[:1]
    ]


def draw_keys(meanings: dict[str, str]) -> StyledLine:
    """Return keys and their meanings as one line."""
    return list(_iterate_key_pieces(meanings))


def _iterate_key_pieces(meanings: dict[str, str]) -> Iterable[tuple[str, str]]:
    for key, meaning in meanings.items():
        yield ("key", f" {key} ")
        yield ("", f" {meaning}   ")
