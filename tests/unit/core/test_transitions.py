"""The transition tables: complete, and obeyed by `decide`, in every phase for every input."""

from itertools import product
from pathlib import Path
from typing import get_args

import pytest

from midrun.codec.journal import decode_lines
from midrun.core import controls as c
from midrun.core.controls import ControlBase, RetryUndo
from midrun.core.decide import decide
from midrun.core.driver_inputs import TakeBack
from midrun.core.entries import ENTRY_TYPES, CancelRequested, UndoRetried
from midrun.core.evolve import EVOLVE_FUNCTIONS, apply_entries, fold
from midrun.core.ids import Micros
from midrun.core.scheduler import advance, list_effects
from midrun.core.state import State
from midrun.core.stops import measure_caps
from midrun.core.transitions import (
    ADVANCE_TABLE,
    ENTRY_TABLE,
    GUARD_REFUSALS,
    INPUT_TABLE,
    Accepted,
    Input,
    NoChange,
    Refused,
    get_input_name,
    list_phase_controls,
    list_possible_controls,
)
from midrun.core.values import Actor, Phase, RequestedCall
from midrun.testing.scenario import Scenario
from tests.support.paths import JOURNALS
from tests.unit.core.phases import INPUTS, RUNS_BY_PHASE
from tools.golden.facts import RUN

COMMON_REFUSALS = {"fenced", "lease_lost", "request_id_reused"}
JOURNAL_FILES = sorted(JOURNALS.glob("*.jsonl"))


@pytest.mark.parametrize("phase", Phase)
def test_every_input_in_every_phase_gets_the_answer_of_the_table(phase: Phase) -> None:
    """The answer is an acceptance, a no-op or a refusal, and never an exception."""
    for run, run_input in product(RUNS_BY_PHASE[phase], INPUTS):
        check_answer(run, run_input)


def check_answer(run: Scenario, run_input: Input) -> None:
    """Check that `decide` answers as the cell of the table says."""
    cell = INPUT_TABLE[type(run_input)][run.state.phase]
    verdict = decide(run.state, run_input, run.now)
    if isinstance(verdict, Accepted):
        after = apply_entries(run.state, verdict.entries)
        assert after.phase in cell.next_phases, run_input
        list_effects(after)
        check_advance(after, run.now)
    elif isinstance(verdict, NoChange):
        assert verdict.name == cell.no_change_name, run_input
    else:
        assert verdict.reason in {
            cell.refusal_name,
            *GUARD_REFUSALS.get(type(run_input), ()),
            *COMMON_REFUSALS,
        }


def check_advance(state: State, now: Micros) -> None:
    """Check that the entries that follow from `state` lead to a phase of the table."""
    entries = advance(state, now)
    if entries:
        assert apply_entries(state, entries).phase in ADVANCE_TABLE[state.phase]


def test_every_phase_has_a_run_to_test_the_table_with() -> None:
    """A phase without a run would let the test above pass without a check."""
    assert set(RUNS_BY_PHASE) == set(Phase)
    assert {run.state.phase for runs in RUNS_BY_PHASE.values() for run in runs} == set(Phase)
    for phase, runs in RUNS_BY_PHASE.items():
        assert {run.state.phase for run in runs} == {phase}


def test_every_type_of_input_has_a_sample_and_a_row() -> None:
    input_types = set(get_args(Input))
    assert {type(run_input) for run_input in INPUTS} == input_types == set(INPUT_TABLE)
    assert set(GUARD_REFUSALS) <= input_types
    for row in INPUT_TABLE.values():
        assert set(row) == set(Phase)
        assert all(
            bool(cell.next_phases or cell.no_change_name) != bool(cell.refusal_name)
            for cell in row.values()
        )


def test_every_type_of_entry_has_an_evolve_function_and_a_row() -> None:
    assert set(ENTRY_TYPES) == set(EVOLVE_FUNCTIONS) == set(ENTRY_TABLE)


def test_terminal_phases_are_left_only_to_undo() -> None:
    """`RetryUndo` tries the residue again; with `TakeBack` a parent undoes its child."""
    for kind, row in ENTRY_TABLE.items():
        if kind is CancelRequested:
            continue
        assert row.get(Phase.COMPLETED, Phase.COMPLETED) is Phase.COMPLETED, kind
        if kind is not UndoRetried:
            assert row.get(Phase.CANCELLED, Phase.CANCELLED) is Phase.CANCELLED, kind
    ended = {Phase.COMPLETED, Phase.CANCELLED}
    leaving = {
        kind
        for kind, row in INPUT_TABLE.items()
        for phase in ended
        if set(row[phase].next_phases) - ended
    }
    assert leaving == {RetryUndo, TakeBack}


@pytest.mark.parametrize("phase", Phase)
def test_the_controls_of_a_phase_are_those_that_the_table_accepts(phase: Phase) -> None:
    """Page, terminal and refusals read the same row."""
    control_types = [kind for kind in INPUT_TABLE if issubclass(kind, ControlBase)]
    assert set(list_phase_controls(phase)) == {
        get_input_name(kind) for kind in control_types if INPUT_TABLE[kind][phase].next_phases
    }


def test_every_phase_of_an_active_run_accepts_a_cancel() -> None:
    for phase in set(Phase) - {Phase.CANCELLING, Phase.CANCELLED, Phase.COMPLETED}:
        assert "cancel" in list_phase_controls(phase)


def make_valid_controls(state: State) -> list[c.Control]:
    """Return controls with arguments that fit the asks, frames and caps in `state`."""
    operator = Actor(name=state.taken_over_by or "ann", role="operator")
    raised = {
        name: bound + 1
        for name, (_, bound) in measure_caps(state.stop, state.meter_with_time).items()
    }
    pending = [control.seq for control in state.pending]
    pending += [state.pause.seq] if state.pause is not None else []
    controls: list[c.Control] = [
        c.Pause(),
        c.Resume(caps=raised),
        c.Redirect(text="x"),
        c.Say(text="x"),
        c.Cancel(),
        c.ForcePause(),
        c.RetryUndo(),
        c.AcceptResidue(),
        c.TakeOver(by=operator),
        c.Write(text="x", by=operator),
        c.UseTool(use=RequestedCall(tool="x", args={}), by=operator),
        c.HandBack(by=operator),
        *([c.RaiseCap(caps=raised)] if raised else []),
        *(c.Withdraw(seq=seq) for seq in pending),
    ]
    for number in state.open_asks:
        ask = state.asks[number - 1]
        name = ask.audience.removeprefix("user:")
        by = Actor(name=name or "zoe", role="operator")
        controls += [c.Approve(ask=ask.id, by=by), c.Decline(ask=ask.id, by=by)]
        controls.append(c.Answer(ask=ask.id, value="yes", by=by))
    for frame in state.frames[-1:]:
        controls += [c.ResumeFrame(frame=frame.id), c.DropFrame(frame=frame.id)]
    return controls


@pytest.mark.parametrize("path", JOURNAL_FILES, ids=lambda path: str(path.stem))
def test_list_possible_controls_names_exactly_the_controls_that_decide_accepts(
    path: Path,
) -> None:
    """It is tested at every seq of every stored journal. Refusals name these controls."""
    records = decode_lines(RUN, path.read_bytes().splitlines())
    for length in range(1, len(records) + 1):
        state = fold(RUN, records[:length])
        accepted = {
            get_input_name(type(control))
            for control in make_valid_controls(state)
            if not isinstance(decide(state, control, Micros(state.at)), Refused)
        }
        listed = set(list_possible_controls(state)) - {"halt", "lift"}
        assert listed == accepted & set(list_phase_controls(state.phase)), (length, state.phase)
