"""Hints: how a command is typed where a bar is shown, so that it can be pasted as it stands."""

from typing import Final

from msgspec import Struct

from midrun.codec.strict_json import parse
from midrun.core.values import Json
from midrun.errors import NotJson
from midrun.runs.values import RunView

# Places: where a run is, in words that tell the steps of its plan from those of its agent.


def place(view: RunView) -> str:
    """Return where a run is; nothing before it has begun.

    With a plan the items of that are counted. A cap on steps counts those of the agent: model
    calls, each with the tools it asked for.
    """
    if view.plan:
        return f"plan {view.place}"
    return view.place if view.step else ""


# What somebody typed as an answer, as a value.


def value_of(text: str) -> Json:
    """Return JSON where it is JSON, and the plain text where it is not."""
    try:
        return parse(text)
    except NotJson:
        return text


class Hints(Struct, frozen=True, kw_only=True):
    """Which program it is, and where it finds the runs; nothing, if that need not be typed."""

    program: str = "midrun"
    where: str = ""
    workers: bool = True  # whether one can be started: a server drives its own runs
    goes_on: bool = True  # whether the run is still driven when this bar is left

    @property
    def leaving(self) -> str:
        """How the run continues when the bar is left with `d`."""
        return "the run goes on" if self.goes_on else "the run waits until it is driven again"

    def typed(self, *words: str) -> str:
        """Return a command; `words` stand as they are, so that one may say APP or RUN."""
        return " ".join(filter(None, (self.program, *words, self.where)))


MIDRUN: Final = Hints()
"""Where nothing else is known: the program by its name, and the runs where it looks itself."""
