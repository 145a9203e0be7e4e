"""Hints: the next command to type, complete enough to be pasted.

A hint names the program as the user's shell finds it, and repeats `--store` or `--url` if they
were typed. The second half of the module maps the reasons of refused controls to hints.
"""

import os
import shutil
import sys
from argparse import Namespace
from contextlib import aclosing
from pathlib import Path
from shlex import join
from typing import Final

import anyio

from midrun.cli.output import CommandOutput, command_name
from midrun.core.ids import MICROS_PER_SECOND
from midrun.core.values import DRIVABLE_PHASES
from midrun.errors import ControlRefused
from midrun.ports.environment import read_wall_clock
from midrun.runs.protocols import AnyMidrun
from midrun.runs.values import RunView
from midrun.tui.styled_text import Hints

PROGRAM_NAME: Final = "midrun"

IDLE_WORKER_PICKUP_S: Final = 1.5
"""Seconds in which an idle worker has taken a run: workers look for runs once a second."""


def format_command(args: Namespace, *words: str) -> str:
    """Return a complete command line: program, `words`, and the store or server.

    `words` are not quoted, so that a placeholder such as APP or RUN stays readable. A token is
    never repeated, because terminal output is often shared.
    """
    return build_hints(args).format_command(*words)


def build_hints(args: Namespace) -> Hints:
    """Return the program and the store or server, for the hints of the control bar."""
    workers = not getattr(args, "url", None)  # a server drives its own runs
    return Hints(
        program=find_program(),
        target_options=format_target_options(args),
        can_start_workers=workers,
    )


def find_program() -> str:
    """Return the command that starts this installation of midrun.

    This is `midrun` only if the shell's PATH leads to the same file, else the path of the
    script, or `python -m midrun`.
    """
    installed = Path(sys.executable).with_name(PROGRAM_NAME)
    if not installed.exists():
        return f"{_shorten_path(Path(sys.executable))} -m {PROGRAM_NAME}"
    on_path = shutil.which(PROGRAM_NAME)
    return (
        PROGRAM_NAME
        if on_path and Path(on_path).resolve() == installed.resolve()
        else _shorten_path(installed)
    )


def format_target_options(args: Namespace) -> str:
    """Return `--store` or `--url` as typed; nothing if it came from the environment."""
    return join(getattr(args, "where", ()))


def format_demo_command(*words: str) -> str:
    """Return the command that starts the demo again: `make demo` if make started it."""
    if "MAKELEVEL" not in os.environ:
        return " ".join((find_program(), "demo", *words))
    return f'make demo ARGS="{join(words)}"' if words else "make demo"


def _shorten_path(path: Path) -> str:
    """Return `path` relative to the working directory if it is inside, else absolute."""
    here = Path.cwd()
    return join([str(path.relative_to(here) if path.is_relative_to(here) else path)])


async def print_worker_hint(
    midrun: AnyMidrun, view: RunView, args: Namespace, out: CommandOutput
) -> None:
    """Print a hint if the run should be driven but no worker drives it."""
    if out.as_json or view.phase not in DRIVABLE_PHASES:
        return
    lost = view.status.style == "lost"
    if lost:
        text = f"{view.status.word}: requests take effect when a worker drives the run again"
        out.write_line([("bad", text)])
    if args.url:  # a server drives its own runs
        return
    if lost or not await _has_worker(midrun, view):
        worker = format_command(args, "worker", "APP")
        out.write_line([("dim", f"the run continues when a worker takes it: {worker}")])


async def _has_worker(midrun: AnyMidrun, view: RunView) -> bool:
    """Tell whether a worker of this store is alive, or takes this run within a moment.

    A worker sends heartbeats only while it drives runs, so an idle one is not in the list of
    holders. It shows itself when it takes the run: the journal grows.
    """
    from midrun.runs.midrun import Midrun  # noqa: PLC0415 - not needed for a server

    if not isinstance(midrun, Midrun) or await midrun.store.list_holders():
        return True
    # The run has waited for longer than an idle worker needs, so there is none.
    if read_wall_clock() - view.changed_at > IDLE_WORKER_PICKUP_S * MICROS_PER_SECOND:
        return False
    run = await midrun.get(view.run_id)
    with anyio.move_on_after(IDLE_WORKER_PICKUP_S):
        async with aclosing(run.feed(after=view.seq)) as items:
            async for _ in items:
                return True
    return False


# Refused controls: the next step for each reason.

_ADVICE_BY_REASON: Final = {
    "not_a_question": "the run asks for an approval: use approve or decline",
    "not_an_approval": "the run asks a question: use answer",
    "not_an_outcome": "answer whether the call happened: yes, no or unknown",
    "already_attempted": "the call was attempted with its arguments: leave --args out",
    "unknown_agent": "name the app that defines the agent: --app APP",
    "empty_text": "the text must not be empty",
    "files_refused": "send smaller or fewer files",
    "no_files_here": "answer without --file",
    "hidden_argument": "decline the call, or approve it with other --args",
}
"""Reason of a refusal → advice."""

_COMMAND_BY_REASON: Final = {
    "cap_reached": "raise the cap: resume {run} --cap {by}=AMOUNT",
    "no_such_cap": "list the caps: show {run}",
    "cap_not_raised": "show the current cap: show {run}",
    "no_such_ask": "list the open asks: asks",
    "ask_closed": "show how it was closed: feed {run}",
    "already_answered": "show the decision: feed {run}",
    "not_allowed": "list the other asks: asks",
    "not_pending": "list the pending requests: show {run}",
    "no_such_frame": "list the held topics: show {run}",
    "frame_not_on_top": "begin with the topmost topic: {control} {run} {by}",
    "no_residue": "show the outcome of every call: report {run}",
    "taken_over": "hand the run back first: hand-back {run}",
    "not_taken_over": "take the run over first: take-over {run}",
    "not_paused": "show its status: show {run}",
}
"""Reason of a refusal → advice and a command, separated by a colon."""


def next_step(error: ControlRefused, args: Namespace) -> str:
    """Return the next step after a refusal; "" if the error's own list of controls says it."""
    if error.reason not in _COMMAND_BY_REASON:
        return _ADVICE_BY_REASON.get(error.reason, "")
    advice, command = _COMMAND_BY_REASON[error.reason].split(": ")
    fields = {"run": error.run, "by": error.by, "control": command_name(error.control)}
    return f"{advice}: {format_command(args, *command.format_map(fields).split())}"


def format_refusal(error: ControlRefused) -> str:
    """Return the text of a refusal with command names instead of control names."""
    return str(
        ControlRefused(
            error.run,
            command_name(error.control),
            error.reason,
            error.phase,
            tuple(map(command_name, error.allowed)),
            error.by,
            error.seq,
            error.detail,
        )
    )
