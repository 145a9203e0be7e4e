"""The lines of the bar: headline, buttons, pending requests and asks.

Pure functions of a view, the time and the terminal width. The texts of the buttons come from
`view.controls`, so they are the same as on the web page.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from prompt_toolkit.utils import get_cwidth

from midrun.agents.outcome import AskView
from midrun.core.ids import MICROS_PER_SECOND, Micros
from midrun.core.values import Json
from midrun.runs import control_specs as specs
from midrun.runs.values import CallView, RunView
from midrun.text.buttons import Button
from midrun.text.changes import ChangedLine, TextChange, list_changed_lines
from midrun.text.hidden_characters import show_hidden
from midrun.text.phrases import format_arguments, format_value, list_field_lines
from midrun.text.status import MODEL_AT_WORK, format_status_word
from midrun.tui.styled_text import (
    DEFAULT_HINTS,
    Hints,
    StyledLine,
    escape_to_one_line,
    plain_text,
)
from midrun.tui.wrap import wrap_text

BUTTON_ROW_MIN_COLUMNS: Final = 150
"""Terminal width from which several buttons may share a line."""

QUEUED_HINT_AFTER_S: Final = 5
"""Time in the queue after which the bar shows how to start a worker."""

BUTTON_GAP: Final = "   "
BUTTON_KEYS: Final = {
    "pause": specs.PAUSE.key,
    "redirect": specs.REDIRECT.key,
    "ask": specs.SAY.key,
    "cancel": specs.CANCEL.key,
}
BADGE_MARKS: Final = {
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
WORKING_PHASES: Final = frozenset({"running", "pausing", "cancelling"})


def draw_bar(
    view: RunView, now: Micros, width: int, hints: Hints = DEFAULT_HINTS, *, viewer: str = ""
) -> list[StyledLine]:
    """Return the whole bar: headline, buttons, pending requests and asks."""
    lines = [clip_line(draw_headline(view, now, viewer=viewer), width)]
    if is_queued_long(view, now) and hints.can_start_workers:
        command = hints.format_command("worker", "APP")
        lines.append(clip_line([("bad", f"no worker drives it: {command}")], width))
    lines += arrange_buttons(
        [draw_button(BUTTON_KEYS[name], offer) for name, offer in view.controls.items()], width
    )
    lines += [clip_line(line, width) for line in _draw_pending(view)]
    return lines


def draw_headline(view: RunView, now: Micros, *, viewer: str = "") -> StyledLine:
    """Return the badge, the time at work, the turn, the current activity and the cost."""
    status = view.status
    word = escape_to_one_line(format_status_word(status, viewer=viewer))
    badge = f" {BADGE_MARKS[status.style]} {word} "
    line: StyledLine = [
        (f"badge.{status.style}", badge),
        ("bold", f" {format_clock(compute_elapsed_s(view, now))}"),
    ]
    for look, text in (
        ("", view.position),
        ("dim", describe_activity(view, now)),
        ("dim", _format_cost(view)),
    ):
        line += [(look, f"  {escape_to_one_line(text)}")] if text else []
    return line


def compute_elapsed_s(view: RunView, now: Micros) -> float:
    """Return the seconds at work, counted up to `now` while the run is at work."""
    ticking = view.phase in WORKING_PHASES
    return view.elapsed + (max(0, now - view.changed_at) / MICROS_PER_SECOND if ticking else 0)


def format_clock(seconds: float) -> str:
    """Return seconds as 00:01:23."""
    minutes, second = divmod(int(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02}:{minute:02}:{second:02}"


def describe_activity(view: RunView, now: Micros) -> str:
    """Return the calls in flight with their durations; or the note of a run at rest."""
    if view.phase != "running":
        return view.status.note
    doing = ", ".join(_describe_call(call, now) for call in view.in_flight)
    plan = view.status.note if view.plan else ""
    return " · ".join(filter(None, (plan, doing)))


def is_queued_long(view: RunView, now: Micros) -> bool:
    """Tell whether a run is queued for so long that probably no worker drives it."""
    return (
        view.phase == "queued"
        and now - view.changed_at > QUEUED_HINT_AFTER_S * MICROS_PER_SECOND
    )


def _describe_call(call: CallView, now: Micros) -> str:
    seconds = max(0, now - call.since) // MICROS_PER_SECOND
    verb = {"undo": "undoing ", "release": "releasing "}.get(call.action, "")
    name = call.title if call.tool else MODEL_AT_WORK
    return f"{verb}{name}" + (f", {seconds} s" if seconds else "")


def _format_cost(view: RunView) -> str:
    cap = next((cap.cap for cap in view.caps if cap.name == "cost"), None)
    if cap is not None:
        return f"${view.usage.cost_usd:.2f} of ${cap:.2f}"
    return view.usage.cost_text


def draw_button(key: str, button: Button) -> StyledLine:
    """Return a button: its key, its label, and the consequence of pressing it."""
    if not button.enabled:
        return [("dim", f" {key}  {button.label} — {escape_to_one_line(button.consequence)}")]
    return [
        ("key", f" {key} "),
        ("bold", f" {button.label}"),
        ("dim", f" — {escape_to_one_line(button.consequence)}"),
    ]


def _draw_pending(view: RunView) -> Iterable[StyledLine]:
    for pending in view.pending:
        noun = "Redirect" if pending.kind == "redirect" else "Question"
        text = f"↪ {noun} waits for the next turn: “{escape_to_one_line(pending.text)}”"
        yield [("person", text), ("dim", f"  {specs.WITHDRAW.key} withdraws it")]
    for frame in view.frames[-1:]:
        more = f" (and {len(view.frames) - 1} more)" if len(view.frames) > 1 else ""
        yield [("dim", f"⋯ held: {escape_to_one_line(frame.goal)} — {frame.position}{more}")]
    if view.controls["pause"].command == "hand_back":
        key = f" {specs.WRITE.key} "
        yield [("key", key), ("bold", " Write"), ("dim", " — In the agent's place.")]
    for ask in view.asks[:1]:
        more = f"  ({len(view.asks)} open)" if len(view.asks) > 1 else ""
        yield [
            ("key", f" {specs.ANSWER.key} "),
            ("waiting", f" {escape_to_one_line(format_ask_question(ask))}"),
            ("dim", more),
        ]


def format_ask_question(ask: AskView) -> str:
    """Return the question of an ask as one line, with the call's arguments."""
    asks = {"approval": "Approve this call?", "unsure": "Did this happen?"}
    question = ask.question or f"{asks.get(ask.effective_kind, 'Decide:')} {ask.title}"
    return (
        question
        if ask.effective_kind == "question"
        else f"{question}{show_hidden(format_arguments(ask.args))}"
    )


# ── widths ────────────────────────────────────────────────────────────────────────────────


def arrange_buttons(buttons: list[StyledLine], width: int) -> list[StyledLine]:
    """Return the lines of the buttons; on a wide terminal, side by side where they fit."""
    lines: list[StyledLine] = []
    for made in buttons:
        size = get_cwidth(plain_text(made))
        if (
            lines
            and width >= BUTTON_ROW_MIN_COLUMNS
            and get_cwidth(plain_text(lines[-1])) + len(BUTTON_GAP) + size <= width
        ):
            lines[-1] += [("", BUTTON_GAP), *made]
        else:
            lines += wrap_button(made, width)
    return lines


def wrap_button(line: StyledLine, width: int) -> list[StyledLine]:
    """Wrap the line of a button: its consequence continues on indented lines."""
    *head, (look, text) = line
    indent = 4
    room = width - get_cwidth(plain_text(head))
    if get_cwidth(text) <= room or room <= indent:
        return [line]
    # The first row continues the head, so it has less room than the rows below it.
    first, *_ = wrap_text(text, room)
    rest = wrap_text(text[len(first) :].lstrip(), width - indent)
    return [[*head, (look, first)], *([(look, " " * indent + row)] for row in rest)]


def clip_line(line: StyledLine, width: int) -> StyledLine:
    """Return the part of a line that fits, with an ellipsis if it was cut."""
    room = width
    pieces: StyledLine = []
    for look, text in line:
        size = get_cwidth(text)
        if size > room:
            return [*pieces, (look, _truncate(text, room))] if room > 0 else pieces
        pieces.append((look, text))
        room -= size
    return pieces


def _truncate(text: str, width: int) -> str:
    """Return the beginning of `text` with an ellipsis."""
    while text and get_cwidth(text) > width - 1:
        text = text[:-1]
    return text + "…"


# Dialogs that replace the buttons: confirm a cancel, decide an ask, help. Pure functions.

ARGUMENTS_MAX_ROWS: Final = 8
"""Maximum number of rows for arguments; a key prints all of them."""

LONG_TEXT_CHARS: Final = 60
"""Longer arguments are shown after the others."""

MIN_ROOM_COLUMNS: Final = 10
"""Columns for a wrapped row, however deep its field is."""

_FIELD_MARGIN_PATTERN: Final = re.compile(r" *(?:│ ?)?")

CHANGES_MAX_ROWS: Final = 14
"""Maximum number of rows for the lines that a call changes."""

CHANGE_MARKS: Final = {
    "same": ("dim", "  "),
    "added": ("good", "+ "),
    "removed": ("bad", "− "),  # noqa: RUF001 - as on the page
    "gap": ("dim", "  "),
}
"""Kind of a line → its style and the mark before it. The mark says it without colours, too."""

QUIT_HINT: Final = " ^C again leaves it paused"

KEY_HELP: Final = (
    *((spec.key, spec.key_help) for spec in specs.CONTROL_SPECS if spec.key_help),
    ("o", "show the newest result in full; again: the one before"),
    ("f", "fork: a new run continues from here, this run does not change"),
    ("d", "detach: the bar closes, {leaving}"),
    ("^C", "pause; again: cancel?; again: quit, the run stays paused"),
    ("?", "close this help"),
)


def draw_cancel_dialog(button: Button, *, held: bool, width: int) -> list[StyledLine]:
    """Return the dialog that confirms a cancel, with all effects that it would undo."""
    hold = "Nothing new starts while you decide, for up to a minute." if held else ""
    lines: list[StyledLine] = [[("bold", "Cancel this run? "), ("dim", hold)]]
    for title, names, look in (
        ("It can undo", button.undo, "good"),
        ("It cannot undo", button.irreversible, "bad"),
        ("Released in any case", button.release, "dim"),
        ("Unknown whether it happened", button.unsure, "waiting"),
    ):
        if names:
            shown = [escape_to_one_line(show_hidden(name)) for name in names]
            lines += _wrap_in_style(look, f"  {title}: {'; '.join(shown)}", width)
    if len(lines) == 1:
        lines.append([("dim", "  It has changed nothing that a cancel could undo.")])
    return [*lines, draw_keys(list_confirm_keys(button, held=held)), [("dim", QUIT_HINT)]]


def list_confirm_keys(button: Button, *, held: bool) -> dict[str, str]:
    """Return the keys of the cancel dialog, with their meanings."""
    back = {"n": "keep running" if held else "leave it as it is"}
    if not button.undo:
        return {"y": "end the run", **back}
    return {"y": f"cancel and undo {len(button.undo)}", "k": "cancel, keep changes", **back}


def draw_ask_dialog(
    ask: AskView,
    number: int,
    count: int,
    width: int,
    change: TextChange | None = None,
) -> list[StyledLine]:
    """Return the dialog of an ask: its question, its call, and its keys.

    The lines that differ in `change` take the place of the arguments that have its texts.
    """
    head = f"{ask.id}" + (f"  ({number} of {count}, Tab for the next)" if count > 1 else "")
    asked = ask.question or format_ask_question(ask)  # the arguments are listed below
    question = f"? {escape_to_one_line(asked)}  {head}"
    lines = _wrap_in_style("waiting", question, width)
    if ask.why:
        lines += _wrap_in_style("dim", f"  why: {escape_to_one_line(ask.why)}", width)
    if ask.effective_kind != "question" and ask.args is not None:
        lines += _draw_child_tool(ask, width)
        changed = list_changed_lines(change.before, change.after) if change else None
        shown = change.rest if change and changed else ask.args
        lines += _draw_arguments(shown, width)
        lines += _draw_changed_lines(changed or [], width)
    for file in ask.files:
        about = f"{escape_to_one_line(file.name)} ({file.media_type}, {file.size:,} bytes)"
        lines += _wrap_in_style("dim", f"  file: {about}", width)
    if ask.hidden:
        hidden = escape_to_one_line(show_hidden(ask.hidden))
        lines += _wrap_in_style("waiting", f"  {hidden}", width)
    lines += [
        [("", f"  {n}  {escape_to_one_line(show_hidden(option))}")]
        for n, option in enumerate(list_options(ask), 1)
    ]
    return [*lines, draw_keys(list_ask_keys(ask))]


def _wrap_in_style(style: str, text: str, width: int) -> list[StyledLine]:
    return [[(style, row)] for row in wrap_text(text, width)]


def _draw_child_tool(ask: AskView, width: int) -> list[StyledLine]:
    """Return the line that names the child's tool: the bar shows the calls of the parent."""
    if ask.kind != "child":
        return []
    named = escape_to_one_line(show_hidden(f"a child run calls {ask.tool}: {ask.title}"))
    return _wrap_in_style("dim", f"  {named}", width)


def _draw_arguments(args: Json, width: int) -> list[StyledLine]:
    """Return the arguments name by name; the approver decides about them, not the title."""
    return _cut_rows(_list_argument_rows(args, width), ARGUMENTS_MAX_ROWS)


def _list_argument_rows(args: Json, width: int) -> list[StyledLine]:
    args = sort_arguments(args) if isinstance(args, dict) else {"arguments": args}
    return [
        [("", row)]
        for name, value in args.items()
        for line in list_field_lines(value, name=name)
        for row in _wrap_field_line(f"  {show_hidden(line)}", width)
    ]


def sort_arguments(args: dict[str, Json]) -> dict[str, Json]:
    """Return arguments with the long ones last: the recipient of a mail before its text."""

    def is_long(item: tuple[str, Json]) -> bool:
        value = item[1]
        if isinstance(value, str):
            return len(value) > LONG_TEXT_CHARS or "\n" in value
        return isinstance(value, list | dict)

    return dict(sorted(args.items(), key=is_long))


def _wrap_field_line(line: str, width: int) -> list[str]:
    """Wrap a line of a field; further rows have its indent and bar, and look like no field."""
    found = _FIELD_MARGIN_PATTERN.match(line)
    margin = found[0] if found is not None else ""
    bar = f"{margin.removesuffix(' ')} " if "│" in margin else f"{margin}  │ "
    first, *_ = wrap_text(line, width)
    rest = line[len(first) :].lstrip()
    room = max(width - get_cwidth(bar), MIN_ROOM_COLUMNS)
    return [first, *(f"{bar}{row}" for row in (wrap_text(rest, room) if rest else []))]


def _draw_changed_lines(lines: Sequence[ChangedLine], width: int) -> list[StyledLine]:
    rows: list[StyledLine] = []
    for kind, line in lines:
        style, mark = CHANGE_MARKS[kind]
        first, *more = wrap_text(show_hidden(line), width - 4) or [""]
        rows += [[(style, f"  {mark}{first}")], *([(style, f"    {row}")] for row in more)]
    return [[("dim", "  What changes:")], *_cut_rows(rows, CHANGES_MAX_ROWS)] if rows else []


def _cut_rows(rows: list[StyledLine], limit: int) -> list[StyledLine]:
    more = len(rows) - limit
    if more <= 0:
        return rows
    return [*rows[:limit], [("bad", f"  … {more} more rows: o shows all of them")]]


def draw_all_arguments(ask: AskView, width: int) -> list[StyledLine]:
    """Return all arguments of the call that an ask is about."""
    if ask.effective_kind == "question" or ask.args is None:
        return []
    title = escape_to_one_line(show_hidden(ask.title))
    return [[("bold", f"▾ {title}")], *_list_argument_rows(ask.args, width)]


def list_options(ask: AskView) -> list[str]:
    """Return the answers that the question proposes, at most nine: one per digit key."""
    data = ask.data
    if ask.kind == "child" and isinstance(data, dict):  # the data of the child's ask
        data = data.get("data")
    proposed = data.get("options") if isinstance(data, dict) else None
    return (
        [format_value(option) for option in proposed[:9]] if isinstance(proposed, list) else []
    )


def list_ask_keys(ask: AskView) -> dict[str, str]:
    """Return the keys that decide `ask`, with their meanings."""
    approval = {"y": "approve", "e": "edit the arguments", "n": "decline"}
    answer = {"t": "type an answer"}
    if list_options(ask):
        answer = {f"1–{len(list_options(ask))}": "choose", **answer}  # noqa: RUF001 - a range
    if ask.effective_kind == "question" and ask.declinable:
        answer["n"] = "decline"
    unsure = {"y": "it did", "n": "it didn't", "u": "don't know"}
    meanings = {"approval": approval, "question": answer, "unsure": unsure}.get(
        ask.effective_kind
    )
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
    return [
        piece
        for key, meaning in meanings.items()
        for piece in (("key", f" {key} "), ("", f" {meaning}   "))
    ]
