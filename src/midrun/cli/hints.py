"""Hints: what to type next, so that it can be pasted as it stands."""

import os
import shutil
import sys
from argparse import Namespace
from contextlib import aclosing
from pathlib import Path
from shlex import join
from typing import Final

import anyio

from midrun.cli.output import Sayer, spelt
from midrun.core.ids import SECOND
from midrun.core.values import DRIVABLE
from midrun.errors import ControlRefused
from midrun.ports.environment import wall
from midrun.runs.protocols import AnyMidrun
from midrun.runs.values import RunView
from midrun.tui.phrases import Hints

NAME: Final = "midrun"

NOTICED_S: Final = 1.5
"""By then a worker that has nothing else to do has taken a run: it looks once a second."""


def typed(args: Namespace, *words: str) -> str:
    """Return a command as it is typed here: with the program that runs, and where the runs are.

    `words` stand as they are given, so that one may say APP or RUN. A token is not repeated:
    what is printed is read by others.
    """
    return hints(args).typed(*words)


def hints(args: Namespace) -> Hints:
    """Return how commands are typed here, for a bar that wants to say so."""
    workers = not getattr(args, "url", None)  # a server drives its own
    return Hints(program=program(), where=where(args), workers=workers)


def program() -> str:
    """Return how this very midrun is started: by its name, if a shell would find it."""
    ours = Path(sys.executable).with_name(NAME)
    if not ours.exists():
        return f"{_short(Path(sys.executable))} -m {NAME}"
    found = shutil.which(NAME)
    return NAME if found and Path(found).resolve() == ours.resolve() else _short(ours)


def where(args: Namespace) -> str:
    """Return where the runs are, if that was typed: then it must be typed again."""
    return join(getattr(args, "where", ()))


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
    if lost or not await _anybody(midrun, view):
        worker = typed(args, "worker", "APP")
        say.line([("dim", f"it goes on as soon as a worker takes it: {worker}")])


async def _anybody(midrun: AnyMidrun, view: RunView) -> bool:
    """Tell whether somebody drives runs here: one is alive, or takes this one in a moment.

    Who has nothing to drive gives no sign of life; what was asked for is what wakes them.
    """
    from midrun.runs.midrun import Midrun  # noqa: PLC0415 - not needed for a server

    if not isinstance(midrun, Midrun) or await midrun.store.holders():
        return True
    if wall() - view.changed_at > NOTICED_S * SECOND:
        return False
    run = await midrun.get(view.run_id)
    with anyio.move_on_after(NOTICED_S):
        async with aclosing(run.feed(after=view.seq)) as items:
            async for _ in items:
                return True
    return False


# Refusing: what to do next where a run has refused something, in words that can be typed.

_NEXT: Final = {
    "not_a_question": "it asks for an approval: use approve or decline",
    "not_an_approval": "it asks a question: use answer",
    "not_an_outcome": "say whether it happened: yes, no or unknown",
    "already_attempted": "it was made with its arguments once: approve it without --args",
    "empty_text": "say something",
    "hidden_argument": "decline it, or approve it with other --args",
}
"""Reason of a refusal → what else to type."""

_TYPE: Final = {
    "cap_reached": "raise the cap: resume {run} --cap {by}=AMOUNT",
    "no_such_cap": "see its caps: show {run}",
    "cap_not_raised": "see how high it is now: show {run}",
    "no_such_ask": "see what is asked: asks",
    "ask_closed": "see what became of it: feed {run}",
    "already_answered": "see what was decided: feed {run}",
    "not_allowed": "see what else is asked: asks",
    "not_pending": "see what waits: show {run}",
    "no_such_frame": "see what is held: show {run}",
    "frame_not_on_top": "begin with the one on top: {control} {run} {by}",
    "no_residue": "see what became of everything: report {run}",
    "taken_over": "end that first: hand-back {run}",
    "not_taken_over": "do that first: take-over {run}",
    "not_paused": "see where it stands: show {run}",
}
"""Reason of a refusal → a command that helps, or that says more."""


def next_step(error: ControlRefused, args: Namespace) -> str:
    """Return what to do next; nothing where the list of what is possible says it."""
    if error.reason not in _TYPE:
        return _NEXT.get(error.reason, "")
    what, command = _TYPE[error.reason].split(": ")
    fields = {"run": error.run, "by": error.by, "control": spelt(error.control)}
    return f"{what}: {typed(args, *command.format_map(fields).split())}"


def as_typed(error: ControlRefused) -> str:
    """Return the text of a refusal with its controls as they are typed."""
    return str(
        ControlRefused(
            error.run,
            spelt(error.control),
            error.reason,
            error.phase,
            tuple(map(spelt, error.allowed)),
            error.by,
            error.seq,
            error.detail,
        )
    )
