"""The table is total, and the machine does what it says: every phase against every input."""

from itertools import product
from typing import get_args

import pytest

from midrun.core.controls import ControlBase, RetryUndo
from midrun.core.decide import DECIDE_FUNCTIONS, decide
from midrun.core.driver_inputs import TakeBack
from midrun.core.entries import ENTRY_TYPES, CancelRequested, UndoRetried
from midrun.core.evolve import EVOLVE_FUNCTIONS, apply_entries
from midrun.core.scheduler import plan_effects
from midrun.core.transitions import (
    ENTRY_TABLE,
    GUARD_REFUSALS,
    INPUT_TABLE,
    Accepted,
    Input,
    NoChange,
    get_input_name,
    list_phase_controls,
)
from midrun.core.values import Phase
from midrun.testing.scenario import Scenario
from tests.unit.core.phases import INPUTS, RUNS

CASES = [
    pytest.param(run, given, id=f"{phase}-{number}-{type(given).__name__}-{n}")
    for phase, runs in RUNS.items()
    for (number, run), (n, given) in product(enumerate(runs), enumerate(INPUTS))
]
COMMON = {"fenced", "lease_lost", "request_id_reused"}


@pytest.mark.parametrize(("run", "given"), CASES)
def test_every_input_is_accepted_or_a_no_op_or_refused(run: Scenario, given: Input) -> None:
    """Ten phases, every input: never an exception, and never a surprise to the table."""
    cell = INPUT_TABLE[type(given)][run.state.phase]
    verdict = decide(run.state, given, run.now)
    if isinstance(verdict, Accepted):
        after = apply_entries(run.state, verdict.entries)
        assert after.phase in cell.next_phases
        plan_effects(after)
    elif isinstance(verdict, NoChange):
        assert verdict.name == cell.no_change_name
    else:
        assert verdict.reason in {
            cell.refusal_name,
            *GUARD_REFUSALS.get(type(given), ()),
            *COMMON,
        }


def test_every_phase_has_a_run_to_walk_the_table_with() -> None:
    """A phase without a run would make the test above pass without having looked."""
    assert set(RUNS) == set(Phase)
    assert {run.state.phase for runs in RUNS.values() for run in runs} == set(Phase)
    for phase, runs in RUNS.items():
        assert {run.state.phase for run in runs} == {phase}


def test_every_kind_of_input_is_tried_and_has_a_row_and_a_ruling() -> None:
    """A new control that nobody rules on is found here, not in production."""
    kinds = set(get_args(Input))
    assert (
        {type(given) for given in INPUTS} == kinds == set(INPUT_TABLE) == set(DECIDE_FUNCTIONS)
    )
    assert set(GUARD_REFUSALS) <= kinds
    for row in INPUT_TABLE.values():
        assert set(row) == set(Phase)
        assert all(
            bool(c.next_phases or c.no_change_name) != bool(c.refusal_name)
            for c in row.values()
        )


def test_every_kind_of_entry_has_an_arm_and_a_place_in_the_table() -> None:
    """The fold knows every fact, and every fact knows where it may stand."""
    assert set(ENTRY_TYPES) == set(EVOLVE_FUNCTIONS) == set(ENTRY_TABLE)


def test_terminal_phases_lead_nowhere_but_to_an_undo() -> None:
    """An end is left only to try the residue again, or because a parent takes all back."""
    for kind, row in ENTRY_TABLE.items():
        if kind is CancelRequested:
            continue
        assert row.get(Phase.COMPLETED, Phase.COMPLETED) is Phase.COMPLETED, kind
        if kind is not UndoRetried:
            assert row.get(Phase.CANCELLED, Phase.CANCELLED) is Phase.CANCELLED, kind
    over = {Phase.COMPLETED, Phase.CANCELLED}
    leaving = {
        k for k, row in INPUT_TABLE.items() for p in over if set(row[p].next_phases) - over
    }
    assert leaving == {RetryUndo, TakeBack}


@pytest.mark.parametrize("phase", Phase)
def test_the_enabled_controls_are_those_the_table_accepts(phase: Phase) -> None:
    """Web page, terminal and refusals read the same row."""
    wishes = [kind for kind in INPUT_TABLE if issubclass(kind, ControlBase)]
    assert set(list_phase_controls(phase)) == {
        get_input_name(k) for k in wishes if INPUT_TABLE[k][phase].next_phases
    }


def test_cancel_is_possible_wherever_a_run_has_not_ended() -> None:
    """There is no phase a person cannot get out of."""
    for phase in set(Phase) - {Phase.CANCELLING, Phase.CANCELLED, Phase.COMPLETED}:
        assert "cancel" in list_phase_controls(phase)
