"""Hints: what to type next, so that it can be pasted as it stands."""

import os
import shutil
import sys
from argparse import Namespace
from pathlib import Path
from shlex import join
from typing import Final

from midrun.cli.saying import Sayer
from midrun.core.values import DRIVABLE
from midrun.handles.interface import AnyMidrun
from midrun.handles.view import RunView

NAME: Final = "midrun"


def typed(args: Namespace, *words: str) -> str:
    """Return a command as it is typed here: with the program that runs, and where the runs are.

    `words` stand as they are given, so that one may say APP or RUN. A token is not repeated:
    what is printed is read by others.
    """
    return " ".join((program(), *words, *where(args)))


def program() -> str:
    """Return how this very midrun is started: by its name, if a shell would find it."""
    ours = Path(sys.executable).with_name(NAME)
    if not ours.exists():
        return f"{_short(Path(sys.executable))} -m {NAME}"
    found = shutil.which(NAME)
    return NAME if found and Path(found).resolve() == ours.resolve() else _short(ours)


def where(args: Namespace) -> list[str]:
    """Return where the runs are, if that was typed: then it must be typed again."""
    given = getattr(args, "where", ())
    return [join(given)] if given else []


def demo(*words: str) -> str:
    """Return how the demo is started again: as it was."""
    if "MAKELEVEL" not in os.environ:
        return " ".join((program(), "demo", *words))
    return f'make demo ARGS="{join(words)}"' if words else "make demo"


def _short(path: Path) -> str:
    """Return `path` from here, if it is below; absolute otherwise."""
    here = Path.cwd()
    return join([str(path.relative_to(here) if path.is_relative_to(here) else path)])


async def say_who_drives(midrun: AnyMidrun, view: RunView, args: Namespace, say: Sayer) -> None:
    """Say what a run waits for, if nobody is there who would go on with it."""
    if say.as_json or view.phase not in DRIVABLE:
        return
    lost = view.sign.look == "lost"
    if lost:
        say.line([("bad", f"{view.sign.word}: what is asked takes effect when one has it")])
    if args.url:  # a server drives its own
        return
    if lost or not await _anybody(midrun):
        worker = typed(args, "worker", "APP")
        say.line([("dim", f"it goes on as soon as a worker takes it: {worker}")])


async def _anybody(midrun: AnyMidrun) -> bool:
    """Tell whether somebody is alive who drives runs; a server drives its own."""
    from midrun.embed.midrun import Midrun  # noqa: PLC0415 - not needed for a server

    return not isinstance(midrun, Midrun) or bool(await midrun.store.holders())
