"""`midrun`: from what was typed to what it means."""

import sys
from argparse import Namespace
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio

from midrun.cli import driving, looking, steering
from midrun.cli.parsing import parser
from midrun.cli.saying import Sayer
from midrun.embed.midrun import Midrun
from midrun.errors import MidrunError

Command = Callable[[Midrun, Namespace, Sayer], Awaitable[int]]

COMMANDS: Final[dict[str, Command]] = {
    "ls": looking.ls,
    "show": looking.show,
    "feed": looking.feed,
    "report": looking.report_of,
    "verify": looking.verify,
    "export": looking.export,
    "asks": looking.asks,
    "pause": steering.pause,
    "resume": steering.resume,
    "redirect": steering.redirect,
    "say": steering.say_to,
    "cancel": steering.cancel,
    "answer": steering.answer,
    "approve": steering.approve,
    "decline": steering.decline,
    "halt": steering.halt,
    "lift": steering.lift,
}
DRIVING: Final = {"run": driving.run, "serve": driving.serve, "worker": driving.worker}


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what was typed, and return the exit code."""
    args = parser().parse_args(arguments)
    say = Sayer(as_json=args.json)
    try:
        return anyio.run(_do, args, say)
    except MidrunError as error:
        if say.as_json:
            say.json({"error": error.code, "text": str(error)})
        else:
            sys.stderr.write(f"midrun: {error}\n")
        return 1


async def _do(args: Namespace, say: Sayer) -> int:
    if args.command in DRIVING:
        return await DRIVING[args.command](args, say)
    async with Midrun(args.store, engine=None) as midrun:
        return await COMMANDS[args.command](midrun, args, say)
