"""A refusal names the run, what was refused and why, and what to type next."""

import shlex
from argparse import Namespace

import pytest

from midrun.cli.hints import as_typed, next_step
from midrun.cli.parser import parser
from midrun.core.controls import Control
from midrun.core.transitions import GUARDS
from midrun.errors import ControlRefused

REASONS = sorted(
    {reason for kind, names in GUARDS.items() if issubclass(kind, Control) for reason in names}
)
HERE = Namespace(where=["--store", "sqlite:///x.db"], url=None)


def refused(reason: str, control: str = "drop_frame", by: str = "steps") -> ControlRefused:
    """Return a refusal."""
    return ControlRefused("run_1", control, reason, "paused", ("take_over",), by, 7)


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_says_what_to_do_next(reason: str) -> None:
    """And what is to be typed can be: the parser takes it."""
    said = next_step(refused(reason), HERE)
    assert said
    what, _, command = said.partition(": ")
    assert what
    if "--store" in command:
        program, *words = shlex.split(command)
        assert program.endswith("midrun")
        parser().parse_args([word.replace("AMOUNT", "20") for word in words])


def test_controls_are_spelt_as_they_are_typed() -> None:
    """`take_over` is no command."""
    said = as_typed(refused("no_such_frame", by=""))
    assert said == (
        "run run_1: drop-frame refused, no_such_frame (the run is paused); "
        "possible now: take-over"
    )


@pytest.mark.parametrize(
    ("reason", "by", "said"),
    [
        ("not_paused", "ada", "(the run is paused, first was ada at seq 7)"),
        ("cap_reached", "steps", "(the run is paused, at its cap: steps)"),
        ("not_allowed", "operator", "(the run is paused, and that is for operator)"),
        ("frame_not_on_top", "f2", "(the run is paused, and f2 is on top)"),
        ("taken_over", "ada", "(the run is paused, and ada has taken it over)"),
    ],
)
def test_who_came_first_is_said_only_of_somebody_who_did(
    reason: str, by: str, said: str
) -> None:
    """A cap, a role or a held thought is not somebody."""
    assert said in str(refused(reason, by=by))
