"""Short texts that bar and command line share: progress, typed values, command hints."""

from typing import Final

from msgspec import Struct

from midrun.codec.strict_json import parse_json
from midrun.core.values import Json
from midrun.errors import NotJson
from midrun.runs.values import RunView


def format_progress(view: RunView) -> str:
    """Return the progress of a run, such as "plan step 4 of 7"; "" before its first step.

    With a plan, plan items are counted, and the text says "plan". A cap on steps never counts
    plan items, but steps of the agent: one model call and its tool calls.
    """
    if view.plan:
        return f"plan {view.place}"
    return view.place if view.step else ""


def parse_typed_value(text: str) -> Json:
    """Return the value of a typed answer: parsed JSON, or the text if it is not JSON."""
    try:
        return parse_json(text)
    except NotJson:
        return text


class Hints(Struct, frozen=True, kw_only=True):
    """The program and its store or server options, to build commands for messages.

    `target_options` is empty if the options need not be typed.
    """

    program: str = "midrun"
    target_options: str = ""
    can_start_workers: bool = True  # whether one can be started: a server drives its own runs
    driven_after_leaving: bool = True  # whether the run is still driven when this bar is left

    @property
    def after_leaving(self) -> str:
        """State of the run after the bar is left with `d`, as a clause."""
        return (
            "the run goes on"
            if self.driven_after_leaving
            else "the run waits until it is driven again"
        )

    def format_command(self, *words: str) -> str:
        """Return a command line; `words` are not quoted, so APP and RUN stay readable."""
        return " ".join(filter(None, (self.program, *words, self.target_options)))


DEFAULT_HINTS: Final = Hints()
"""Default hints: the program by its name, without options."""
