"""`midrun`: from what was typed to what it means."""

import importlib
import os
import sys
from argparse import Namespace
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, cast

import anyio

from midrun.cli.opening import opened, settle
from midrun.cli.parsing import parser
from midrun.cli.saying import Sayer
from midrun.errors import ControlRefused, MidrunError, ServerRefused
from midrun.handles.interface import AnyMidrun
from midrun.tui.safe import printable

Command = Callable[[AnyMidrun, Namespace, Sayer], Awaitable[int]]
Driving = Callable[[Namespace, Sayer], Awaitable[int]]

COMMANDS: Final = {
    "ls": "looking.ls",
    "show": "looking.show",
    "feed": "looking.feed",
    "report": "looking.report",
    "verify": "looking.verify",
    "export": "looking.export",
    "asks": "looking.asks",
    "pause": "steering.pause",
    "resume": "steering.resume",
    "redirect": "steering.redirect",
    "say": "steering.say_to",
    "cancel": "steering.cancel",
    "answer": "steering.answer",
    "approve": "steering.approve",
    "decline": "steering.decline",
    "halt": "steering.halt",
    "lift": "steering.lift",
}
"""What works on a store or a server that is open; fetched when it is typed."""

DRIVING: Final = {
    "run": "driving.run",
    "attach": "driving.attach",
    "serve": "driving.serve",
    "worker": "driving.worker",
    "demo": "demo.demo",
    "completion": "completing.completion",
}
"""What opens for itself what it needs."""

NEXT: Final = {
    "run_not_found": "see which there are: midrun ls",
    "store_unreachable": "say where the runs are: --store or --url",
}
"""Code of an error → what to type next, where its text does not say so."""

INSTEAD: Final = {
    "not_a_question": "it asks for an approval: use approve or decline",
    "not_an_approval": "it asks a question: use answer",
}
"""Reason of a refusal → which command was meant."""

UNAUTHORIZED: Final = 401

INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what was typed, and return the exit code."""
    args = parser().parse_args(arguments)
    say = Sayer(as_json=args.json)
    try:
        settle(args)
        return anyio.run(_do, args, say)
    except MidrunError as error:
        _complain(error, say)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever read us has had enough; nothing more must be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


async def _do(args: Namespace, say: Sayer) -> int:
    if args.command in DRIVING:
        return await cast("Driving", _found(DRIVING[args.command]))(args, say)
    command = cast("Command", _found(COMMANDS[args.command]))
    async with opened(args) as midrun:
        return await command(midrun, args, say)


def _found(place: str) -> object:
    module, name = place.split(".")
    return getattr(importlib.import_module(f"midrun.cli.{module}"), name)


def _complain(error: MidrunError, say: Sayer) -> None:
    if say.as_json:
        say.json({"error": error.code, "text": _text(error)})
        return
    hint = NEXT.get(error.code, "")
    if isinstance(error, ControlRefused):
        hint = INSTEAD.get(error.reason, "")
    next_line = f"\nmidrun: {hint}" if hint else ""
    sys.stderr.write(f"midrun: {printable(_text(error))}{next_line}\n")


def _text(error: MidrunError) -> str:
    """Return what it says, to somebody who types and does not program."""
    if isinstance(error, ServerRefused) and error.status == UNAUTHORIZED:
        return f"server {error.url}: {error.problem}; give its token: --token or $MIDRUN_TOKEN"
    return str(error)
