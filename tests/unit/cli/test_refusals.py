"""A refusal names the run, what was refused and why, and what to type next."""

import shlex
from argparse import Namespace

import pytest

from midrun.cli.hints import format_refusal, next_step
from midrun.cli.parser import build_parser
from midrun.core.controls import Control
from midrun.core.transitions import GUARD_REFUSALS
from midrun.errors import ControlRefused

REASONS = sorted(
    {
        reason
        for kind, names in GUARD_REFUSALS.items()
        if issubclass(kind, Control)
        for reason in names
    }
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
        build_parser().parse_args([word.replace("AMOUNT", "20") for word in words])


def test_controls_are_spelt_as_they_are_typed() -> None:
    """`take_over` is no command."""
    said = format_refusal(refused("no_such_frame", by=""))
    assert said == (
        "Cannot drop-frame run_1: there is no such suspended task (no_such_frame). "
        "Allowed now: take-over."
    )


@pytest.mark.parametrize(
    ("reason", "by", "said"),
    [
        ("is_cancelled", "ada", "it was cancelled by ada at seq 7 (is_cancelled)."),
        ("is_running", "ada", "it is running, requested by ada at seq 7 (is_running)."),
        ("not_paused", "ada", "it is not paused; ada was first at seq 7 (not_paused)."),
        ("cap_reached", "steps", "it has reached its cap on steps (cap_reached)."),
        ("not_allowed", "operator", "only operator may decide this (not_allowed)."),
        ("frame_not_on_top", "f2", "the suspended task f2 is on top (frame_not_on_top)."),
        ("taken_over", "ada", "ada has taken it over (taken_over)."),
    ],
)
def test_only_a_person_is_named_as_first(reason: str, by: str, said: str) -> None:
    """For some reasons `by` is a cap, a role or a suspended task."""
    assert said in str(refused(reason, by=by))
