"""Refusing: what to do next where a run has refused something, in words that can be typed."""

from argparse import Namespace
from typing import Final

from midrun.cli.hinting import typed
from midrun.cli.saying import spelt
from midrun.errors import ControlRefused

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
