"""Output of commands: styled lines for people, or JSON for programs; and the exit codes.

`CommandOutput` writes to standard output. The other functions turn views, asks and receipts
into lines of styled pieces, without writing them.
"""

import os
import sys
from collections.abc import Sequence
from errno import EDQUOT, EIO, ENOSPC, EPIPE
from shutil import get_terminal_size
from textwrap import wrap
from typing import Final, TextIO
from unicodedata import combining, east_asian_width

import msgspec

from midrun.agents.outcome import AskView
from midrun.core.ids import MICROS_PER_SECOND, Micros
from midrun.core.journaled_text import shorten_to_line
from midrun.runs.values import CallView, EffectView, OpenAsk, Receipt, RunView, StepStyle
from midrun.text.buttons import Button
from midrun.text.hidden_characters import escape_hidden, show_hidden
from midrun.text.phrases import format_amount, format_arguments
from midrun.text.status import format_status_word
from midrun.tui.styled_text import (
    SGR_BY_STYLE,
    StyledLine,
    escape_controls,
    escape_to_one_line,
    plain_text,
    style_emphasis,
)

# Rows of the run list, fitted to the terminal, and short forms of times and numbers.

DECIMALS_BELOW: Final = 100


def format_age(now: Micros, then: Micros) -> str:
    """Return the time since `then`, as in "3 min ago"."""
    return f"{format_duration(max(0, now - then) / MICROS_PER_SECOND)} ago"


def format_duration(seconds: float) -> str:
    """Return a duration in its largest unit: 4 s, 3 min, 2 h, 5 d."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def format_count(number: int) -> str:
    """Return a number with three digits: 940, 12k, 3.4M."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        # From 0.9995 on, the smaller unit would round to 1000: 999,500 is 1M, not 1000k.
        if number >= 0.9995 * size:
            many = number / size
            return f"{many:.3g}{unit}" if many < DECIMALS_BELOW else f"{many:.0f}{unit}"
    return str(number)


PROGRESS_COLUMNS: Final = 19
WIDE_ROW_MIN_COLUMNS: Final = 108
"""Terminal width from which a row also shows the progress, the time at work and the cost."""

SHORT_ID_MIN_CHARS: Final = 6
"""Characters of a short id, without its prefix; more if two runs of a list need them."""

UNKNOWN_COST: Final = "–"  # noqa: RUF001 - a dash, as in a table
ID_PREFIX: Final = "run_"

TASK_MIN_COLUMNS: Final = 12
"""Columns reserved for the task, before parent and needs are shown in full."""


def shorten_ids(run_ids: Sequence[str]) -> dict[str, str]:
    """Return for each id the beginning that commands accept and that no other id has."""
    size = SHORT_ID_MIN_CHARS
    while len({_cut_id(run, size) for run in run_ids}) < len(set(run_ids)):
        size += 1
    return {run: _cut_id(run, size) for run in run_ids}


def _cut_id(run_id: str, size: int) -> str:
    # Only ids that Midrun made have the prefix and random characters after it.
    if not run_id.startswith(ID_PREFIX):
        return run_id
    return run_id[len(ID_PREFIX) : len(ID_PREFIX) + size]


def format_row_header(columns: int | None, id_width: int) -> StyledLine:
    """Return the header of the rows of `format_row`."""
    roomy = columns is None or columns >= WIDE_ROW_MIN_COLUMNS
    started = f"{'started':>12}" if roomy else f"{'started':>8}"
    more = f"{'at work':>9}{'cost':>8}" if roomy else ""
    place = "progress".ljust(PROGRESS_COLUMNS) if roomy else ""
    return [("dim", f"{'run':<{id_width}}  {'status':<11}{place}{started}{more}  task")]


def format_row(
    view: RunView, now: Micros, columns: int | None = None, shown_id: str = ""
) -> StyledLine:
    """Return a run as one line that fits into `columns`; None for no limit.

    The id, or `shown_id`, is never cut, because users paste it. If space is short, the parent
    shrinks first, then the needs, and the task gets the rest.
    """
    roomy = columns is None or columns >= WIDE_ROW_MIN_COLUMNS
    age = format_age(now, view.started_at)
    cost = f"${view.usage.cost_usd:.2f}" if view.usage.cost_usd else UNKNOWN_COST
    worked = f"{format_duration(view.elapsed):>9}{cost:>8}  "
    head: StyledLine = [
        ("", f"{shown_id or view.run_id}  "),
        (view.phase, f"{view.phase:<11}"),
        ("", view.position.ljust(PROGRESS_COLUMNS) if roomy else ""),
        ("dim", f"{age:>12}{worked}" if roomy else f"{age.removesuffix(' ago'):>8}  "),
    ]
    wanted = escape_controls(describe_need(view))
    needs = f"  ! {wanted}" if wanted else ""
    parent = f"  part of {view.parent}" if view.parent else ""
    task = escape_controls(shorten_to_line(view.task))
    if columns is not None:
        # `left` is the room after the fixed columns. Parent, needs and task share it.
        room = columns - measure_text_width(plain_text(head))
        if room - measure_text_width(parent) - measure_text_width(needs) < TASK_MIN_COLUMNS:
            parent = "  (child)" if view.parent else ""
        needs = truncate(
            needs,
            room - measure_text_width(parent) - min(TASK_MIN_COLUMNS, measure_text_width(task)),
        )
        task = truncate(task, room - measure_text_width(parent) - measure_text_width(needs))
    return [*head, ("", task), ("dim", parent), ("waiting", needs)]


def describe_need(view: RunView) -> str:
    """Return the reason why a run needs attention, or ""."""
    if view.asks:
        count = len(view.asks)
        return f"{count} to decide" if count > 1 else format_question(view.asks[0])
    if view.status.style == "lost":
        return view.status.word
    if view.phase == "failed":
        return "failed"
    return "at a cap" if view.phase == "paused" and view.reason == "cap" else ""


def format_question(ask: AskView) -> str:
    """Return the text of an ask as one line."""
    return shorten_to_line(ask.question or f"{ask.kind}: {ask.title}")


def measure_text_width(text: str) -> int:
    """Return the number of terminal columns that a text takes.

    The bar uses prompt_toolkit for this, but that is an optional dependency, and a list must
    work without it.
    """
    return sum(map(_measure_character, text))


def _measure_character(character: str) -> int:
    if combining(character):
        return 0
    return 2 if east_asian_width(character) in {"W", "F"} else 1


def truncate(text: str, columns: int) -> str:
    """Return `text` cut to `columns` with an ellipsis; "" if not even one letter fits."""
    if measure_text_width(text) <= columns:
        return text
    shortened, used = "", 1  # one column for the ellipsis
    for character in text:
        used += _measure_character(character)
        if used > columns:
            break
        shortened += character
    return f"{shortened.rstrip()}…" if shortened.strip() else ""


UNWRITABLE_ERRNOS: Final = frozenset({EPIPE, ENOSPC, EDQUOT, EIO})
"""Error numbers of an output that cannot be written: closed pipe, full disk, lost terminal.

An `OSError` without a file name that reaches the command is about its output: errors of stores
and of the network are `MidrunError`s by then.
"""


class CommandOutput:
    """Writes coloured lines to a terminal, plain lines to a file, or JSON for programs.

    Escape sequences in text from models and tools are made visible, so that they cannot control
    the terminal. `can_move_cursor` is True for a terminal with a movable cursor, which the
    control bar needs.
    """

    def __init__(self, stream: TextIO | None = None, *, as_json: bool = False) -> None:
        self._stream = stream or sys.stdout
        self.as_json = as_json
        self.is_terminal = self._stream.isatty()
        self.can_move_cursor = self.is_terminal and os.environ.get("TERM") != "dumb"
        self.has_colours = (
            self.can_move_cursor and not as_json and not os.environ.get("NO_COLOR")
        )

    @property
    def columns(self) -> int | None:
        """Width of the terminal; None if the output is not a terminal."""
        return get_terminal_size().columns if self.is_terminal else None

    @property
    def rows(self) -> int:
        """Height of the terminal."""
        return get_terminal_size().lines

    def write_json(self, value: object) -> None:
        """Write `value` as one line of JSON."""
        self.write_raw(escape_hidden(msgspec.json.encode(value).decode()) + "\n")

    def write_line(self, pieces: StyledLine) -> None:
        """Write a line of styled pieces, with colours if the output shows them."""
        self.write_raw(
            "".join(self._apply_style(look, escape_controls(text)) for look, text in pieces)
            + "\n"
        )

    def write_text(self, text: str) -> None:
        """Write unstyled text."""
        self.write_line([("", text)])

    def write_wrapped(self, text: str, *, indent: int = 0) -> None:
        """Write text; on a terminal, wrap its lines between words.

        The second and following lines of a wrapped line are indented by `indent` columns.
        """
        if (columns := self.columns) is None:
            self.write_text(text)
            return
        for written in escape_controls(text).split("\n"):
            self.write_text("\n".join(_wrap_line(written, columns, indent)))

    def write(self, value: object, *lines: StyledLine | str) -> None:
        """Write `value` for programs, or `lines` for people."""
        if self.as_json:
            self.write_json(value)
            return
        for line_ in lines:
            self.write_line([("", line_)] if isinstance(line_, str) else line_)

    def write_raw(self, text: str) -> None:
        """Write text that needs no escaping, and flush."""
        self._stream.write(text)
        self._stream.flush()

    def discard_output(self) -> None:
        """Discard all further output, because the stream cannot be written any more.

        The file descriptor is redirected, not only this object: the interpreter flushes
        `sys.stdout` at exit and would fail there again.
        """
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def _apply_style(self, style: str, text: str) -> str:
        if not style or not self.has_colours:
            return text
        codes = ";".join(SGR_BY_STYLE[name] for name in style.split())
        return f"\x1b[{codes}m{text}\x1b[0m"


def _wrap_line(text: str, columns: int, indent: int) -> list[str]:
    """Wrap one line to `columns`; an item of a list gets an indent of its own."""
    return wrap(
        text,
        columns,
        subsequent_indent="  " if text.startswith("- ") else " " * min(indent, columns // 2),
        break_on_hyphens=False,
        replace_whitespace=False,
    ) or [""]


# ── runs ──────────────────────────────────────────────────────────────────────────────────


def format_view(view: RunView, now: Micros) -> list[StyledLine]:
    """Return the full status of a run: facts, then the controls it accepts."""
    head: StyledLine = [
        ("bold", f"{view.run_id}  "),
        (view.status.style, format_status_word(view.status)),
        ("", f"  {view.position}" if view.position else ""),
        ("", f"  at work {format_duration(view.elapsed)}"),
    ]
    return (
        [
            head,
            *([("dim", f"{name:<9}"), ("", text)] for name, text in _list_facts(view, now)),
            [],
        ]
        + [
            [
                ("bold", f"  {button.label}"),
                ("", f": {button.consequence}  ({_format_button_command(button, view)})"),
            ]
            for button in view.controls.values()
            if button.enabled
        ]
        + _format_other_commands(view)
    )


EFFECTS_MAX_ROWS: Final = 10
"""The newest effects that `show` lists; `report` has all of them."""

ARGUMENTS_MAX_CHARS: Final = 1_000_000

BUTTON_COMMANDS: Final = frozenset({"pause", "resume", "redirect", "cancel"})
OPERATOR_COMMANDS: Final = frozenset({"halt", "lift"})


def _format_other_commands(view: RunView) -> list[StyledLine]:
    """Return the commands that the run accepts and that no button offers."""
    offered = BUTTON_COMMANDS | {button.command for button in view.controls.values()}
    more = [
        command_name(name) for name in view.allowed if name not in offered | OPERATOR_COMMANDS
    ]
    return [[("dim", f"  also: {', '.join(more)}")]]


def command_name(control: str) -> str:
    """Return the command name of a control: `take-over` for `take_over`."""
    return control.replace("_", "-")


def _format_button_command(button: Button, view: RunView) -> str:
    """Return the command that does the same as pressing the button now."""
    if button.command == "say" and view.phase == "paused":
        return "say, then resume"
    caps = (f" --cap {name}={cap:.15g}" for name, cap in button.caps.items())
    return "".join((command_name(button.command), *caps))


def _describe_call(call: CallView) -> str:
    name = call.title if call.tool else "the model"
    return f"{name} (not responding)" if call.not_responding else name


GUIDES_URL: Final = "https://github.com/midrun/midrun/blob/main/docs/guides"
UNLISTED_FRAMEWORKS: Final = frozenset({"function", "langgraph"})
"""Hosts whose tools are known only when they are called."""


def _describe_hosting(view: RunView) -> list[tuple[str, str]]:
    """Return the framework and its undeclared tools, and the guide; as the page does."""
    if not view.framework:
        return []
    tools = "all tools are declared"
    if view.undeclared_tools:
        count = f"{view.undeclared_tools} tool{'' if view.undeclared_tools == 1 else 's'}"
        tools = f"{count} undeclared: no undo, never repeated"
    elif view.framework in UNLISTED_FRAMEWORKS:
        tools = "undeclared tools: no undo, never repeated"
    is_own = view.framework in {"function", "process"}
    guide = f"{GUIDES_URL}/host-{'a-' if is_own else ''}{view.framework}.md"
    return [("hosted", f"from {view.framework}; {tools}"), ("guide", guide)]


def _format_style(style: StepStyle) -> str:
    """Return the state of a plan item in the words of the page."""
    return "paused" if style == "held" else style.replace("_", " ")


def _describe_cleanup(effect: EffectView) -> str:
    """Return the cleanups of a call that are done, as a suffix."""
    cleanups = (("undone", effect.undo), ("released", effect.release))
    return "".join(f" ({word})" for word, stage in cleanups if stage == "done")


def _list_facts(view: RunView, now: Micros) -> list[tuple[str, str]]:
    money = f", {view.usage.cost_text}" if view.usage.cost_text else ""
    facts = [("task", shorten_to_line(view.task)), ("agent", view.agent)]
    facts += [("speaker", view.speaker)] if view.speaker else []
    facts += _describe_hosting(view)
    facts += [("parent", view.parent)] if view.parent else []
    facts += [("doing", _describe_call(call)) for call in view.in_flight]
    facts += [
        ("plan", f"[{_format_style(row.style)}] {shorten_to_line(row.text)}")
        for row in view.plan_rows
    ]
    facts += [
        ("aside", f"{frame.id}  {frame.goal} — {frame.position}") for frame in view.frames
    ]
    facts += [
        ("pending", f"{p.kind} at {p.seq}: {shorten_to_line(p.text)}") for p in view.pending
    ]
    for ask in view.asks:
        args = escape_to_one_line(show_hidden(_format_ask_arguments(ask)))
        question = f"{format_question(ask)} {args}".rstrip()
        facts.append(("ask", f"{view.run_id}-{ask.id}  {question}"))
    facts += [
        ("effect", f"{effect.title}{_describe_cleanup(effect)}")
        for effect in view.effects[-EFFECTS_MAX_ROWS:]
    ]
    # By the name that `raise-cap` accepts.
    facts += [
        ("cap", f"{cap.name}: {format_amount(cap.used)} of {format_amount(cap.cap)}")
        for cap in view.caps
    ]
    facts += (
        [("used", f"{format_count(view.usage.tokens)} tokens{money}")]
        if view.usage.tokens
        else []
    )
    facts += [("error", shorten_to_line(view.error))] if view.error else []
    facts += [("output", shorten_to_line(view.output))] if view.output else []
    return [*facts, ("changed", format_age(now, view.changed_at))]


def format_ask(ask: OpenAsk) -> StyledLine:
    """Return an open ask as one line: id, question, arguments and task."""
    args = _format_ask_arguments(ask)
    hidden = [("waiting", f"  {escape_to_one_line(show_hidden(ask.hidden))}")] * bool(
        ask.hidden
    )
    return [
        ("bold", ask.ref),
        ("waiting", f"  {format_question(ask)}"),
        ("", f" {escape_to_one_line(show_hidden(args))}" if args else ""),
        *hidden,
        ("dim", f"  ({shorten_to_line(ask.task)})"),
    ]


def _format_ask_arguments(ask: AskView) -> str:
    """Return all arguments of a call that is to be decided; "" for a question."""
    if ask.effective_kind == "question":
        return ""
    return format_arguments(ask.args, ARGUMENTS_MAX_CHARS)


# ── receipts ──────────────────────────────────────────────────────────────────────────────


def format_receipt(name: str, receipt: Receipt, *, lost: bool = False) -> StyledLine:
    """Return the receipt of a control as one line.

    If the worker is `lost`, the line leaves out the phase and the announcement: both describe
    actions that no worker is there to take.
    """
    now: StyledLine = [] if lost else [("", "; the run is "), (receipt.phase, receipt.phase)]
    if receipt.acknowledgement and not lost:
        return style_emphasis(receipt.acknowledgement)
    if receipt.already:
        by = f" (by {receipt.by})" if receipt.by else ""
        return [("", f"{name}: {receipt.already.replace('_', ' ')}{by}"), *now]
    waits = "" if receipt.applied else ", not applied yet"
    return [("", f"{name}: in the journal at {receipt.seq}{waits}"), *now]


# Exit codes by phase; `midrun --help` lists them.

EXIT_CODE_BY_PHASE: Final = {"completed": 0, "failed": 1, "cancelled": 3}
"""Exit code of a run that has ended or failed."""

PAUSED_EXIT_CODE: Final = 75
"""Exit code of a run in any other phase: it can continue later. EX_TEMPFAIL of sysexits.h."""
