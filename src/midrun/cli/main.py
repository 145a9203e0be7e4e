"""`midrun`: from what was typed to what it means."""

import importlib
import os
import sys
from argparse import Namespace
from collections.abc import Awaitable, Callable, Sequence
from errno import EADDRINUSE
from io import TextIOWrapper
from pathlib import Path
from typing import Final, cast

import anyio

from midrun.cli.hints import as_typed, next_step, typed
from midrun.cli.output import UNWRITABLE, Sayer
from midrun.cli.parser import Misused, parser
from midrun.cli.targets import opened, settle
from midrun.errors import ControlRefused, MidrunError, RunNotFound, ServerRefused
from midrun.runs.protocols import AnyMidrun
from midrun.tui.escape import printable

Command = Callable[[AnyMidrun, Namespace, Sayer], Awaitable[int]]
Driving = Callable[[Namespace, Sayer], Awaitable[int]]

COMMANDS: Final = {
    "ls": "inspect_commands.ls",
    "show": "inspect_commands.show",
    "feed": "inspect_commands.feed",
    "report": "inspect_commands.report",
    "verify": "inspect_commands.verify",
    "export": "inspect_commands.export",
    "asks": "inspect_commands.asks",
    "pause": "control_commands.pause",
    "resume": "control_commands.resume",
    "redirect": "control_commands.redirect",
    "say": "control_commands.say_to",
    "cancel": "control_commands.cancel",
    "withdraw": "control_commands.withdraw",
    "raise-cap": "control_commands.raise_cap",
    "force-pause": "control_commands.force_pause",
    "resume-frame": "control_commands.resume_frame",
    "drop-frame": "control_commands.drop_frame",
    "retry-undo": "control_commands.retry_undo",
    "accept-residue": "control_commands.accept_residue",
    "fork": "control_commands.fork",
    "take-over": "control_commands.take_over",
    "write": "control_commands.write",
    "hand-back": "control_commands.hand_back",
    "answer": "control_commands.answer",
    "approve": "control_commands.approve",
    "decline": "control_commands.decline",
    "halt": "control_commands.halt",
    "lift": "control_commands.lift",
}
"""What works on a store or a server that is open; fetched when it is typed."""

DRIVING: Final = {
    "run": "run_commands.run",
    "attach": "run_commands.attach",
    "serve": "run_commands.serve",
    "worker": "run_commands.worker",
    "demo": "demo.demo",
    "use-tool": "control_commands.use_tool",
    "completion": "completion.completion",
}
"""What opens for itself what it needs."""

NEXT: Final = {
    "store_unreachable": "say where the runs are: --store or --url",
}
"""Code of an error → what to do next, where its text does not say so."""

UNAUTHORIZED: Final = 401

MISUSED: Final = 2
INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what was typed, and return the exit code."""
    as_json = "--json" in (sys.argv if arguments is None else arguments)
    _see_to_stdout(as_json=as_json)
    try:
        args = parser().parse_args(arguments)
    except Misused as slip:
        if as_json:
            Sayer(as_json=True).json({"error": "usage", "text": slip.text})
        sys.stderr.write(f"{slip.usage}{slip.text}\n")
        return MISUSED
    say = Sayer(as_json=args.json)
    try:
        settle(args)
        return anyio.run(_do, args, say)
    except (MidrunError, OSError, BaseExceptionGroup) as raised:
        if not _is_told(_first(raised), args, say):
            raise
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


def _is_told(error: BaseException | None, args: Namespace, say: Sayer) -> bool:
    """Say what went wrong, if that is somebody else's fault than ours."""
    if isinstance(error, MidrunError):
        _complain(error, args, say)
        return True
    if not isinstance(error, OSError) or error.errno not in UNWRITABLE:
        return False
    say.hush()
    if not isinstance(error, BrokenPipeError):  # then whoever read us has had enough
        sys.stderr.write(f"midrun: the output cannot be written: {error.strerror}\n")
    return True


def _see_to_stdout(*, as_json: bool) -> None:
    """See to it that there is one, and that it takes whatever an agent may have said.

    Where the locale has no letter for something, it is shown by its number. JSON is always in
    UTF-8: whoever reads it goes by that, and not by our locale.
    """
    if sys.stdout is None:  # closed by whoever started us: nobody wants to read it
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - for good
    if isinstance(sys.stdout, TextIOWrapper):
        if as_json:
            sys.stdout.reconfigure(encoding="utf-8")
        sys.stdout.reconfigure(errors="backslashreplace")


async def _do(args: Namespace, say: Sayer) -> int:
    if args.command in DRIVING:
        return await cast("Driving", _found(DRIVING[args.command]))(args, say)
    command = cast("Command", _found(COMMANDS[args.command]))
    async with opened(args) as midrun:
        return await command(midrun, args, say)


def _first(raised: BaseException) -> BaseException | None:
    """Return the first of what went wrong side by side; None if a fault of ours is among it."""
    if not isinstance(raised, BaseExceptionGroup):
        return raised
    told, others = raised.split((MidrunError, OSError))
    return None if told is None or others is not None else _first(told.exceptions[0])


def _found(place: str) -> object:
    module, name = place.split(".")
    return getattr(importlib.import_module(f"midrun.cli.{module}"), name)


def _complain(error: MidrunError, args: Namespace, say: Sayer) -> None:
    if say.as_json:
        say.json({"error": error.code, "text": _text(error), **_refusal(error)})
        return
    hint = _hint(error, args)
    next_line = f"\nmidrun: {hint}" if hint else ""
    sys.stderr.write(f"midrun: {printable(_text(error))}{next_line}\n")


def _refusal(error: MidrunError) -> dict[str, object]:
    """Return what a program goes by where a run has refused something."""
    if not isinstance(error, ControlRefused):
        return {}
    named = ("control", "reason", "phase", "allowed", "by", "seq")
    return {"run_id": error.run, **{name: getattr(error, name) for name in named}}


def _hint(error: MidrunError, args: Namespace) -> str:
    """Return what to do next, where the text of `error` does not say so."""
    if isinstance(error, ControlRefused):
        return next_step(error, args)
    if isinstance(error, RunNotFound):
        return f"see which there are: {typed(args, 'ls')}"
    if isinstance(error.__cause__, OSError) and error.__cause__.errno == EADDRINUSE:
        return "choose another port: --port N, or --port 0 for any that is free"
    return NEXT.get(error.code, "")


def _text(error: MidrunError) -> str:
    """Return what it says, to somebody who types and does not program."""
    if isinstance(error, ServerRefused) and error.status == UNAUTHORIZED:
        give = "give its token: --token-file or $MIDRUN_TOKEN"
        return f"server {error.url}: {error.problem}; {give}"
    return as_typed(error) if isinstance(error, ControlRefused) else str(error)
