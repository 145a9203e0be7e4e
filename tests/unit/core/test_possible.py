"""What is said to be possible is what the run would take, at every moment of many runs."""

from pathlib import Path

import pytest

from midrun.codec.journal import decode_lines
from midrun.core import controls as c
from midrun.core.decide import decide
from midrun.core.evolve import fold
from midrun.core.ids import Micros
from midrun.core.state import State
from midrun.core.stops import measure_caps
from midrun.core.transitions import (
    Refused,
    get_input_name,
    list_phase_controls,
    list_possible_controls,
)
from midrun.core.values import Actor, Use
from tests.support.processes import JOURNALS
from tools.golden.facts import RUN

STORED = sorted(JOURNALS.glob("*.jsonl"))


def well_put(state: State) -> list[c.Control]:
    """Return controls that make sense of whatever the run in `state` has."""
    driver = Actor(name=state.operator_name or "ann", role="operator")
    raised = {
        name: bound + 1
        for name, (_, bound) in measure_caps(state.stop, state.meter_with_time).items()
    }
    pending = [p.seq for p in state.pending]
    pending += [state.pause.seq] if state.pause is not None else []
    made: list[c.Control] = [
        c.Pause(),
        c.Resume(caps=raised),
        c.Redirect(text="x"),
        c.Say(text="x"),
        c.Cancel(),
        c.ForcePause(),
        c.RetryUndo(),
        c.AcceptResidue(),
        c.TakeOver(by=driver),
        c.Write(text="x", by=driver),
        c.UseTool(use=Use(tool="x", args={}), by=driver),
        c.HandBack(by=driver),
        *([c.RaiseCap(caps=raised)] if raised else []),
        *(c.Withdraw(seq=seq) for seq in pending),
    ]
    for number in state.open_asks:
        ask = state.asks[number - 1]
        who = ask.audience.removeprefix("user:")
        by = Actor(name=who, role="operator") if who else Actor(name="someone", role="operator")
        made += [c.Approve(ask=ask.id, by=by), c.Decline(ask=ask.id, by=by)]
        made.append(c.Answer(ask=ask.id, value="yes", by=by))
    for frame in state.frames[-1:]:
        made += [c.ResumeFrame(frame=frame.id), c.DropFrame(frame=frame.id)]
    return made


@pytest.mark.parametrize("path", STORED, ids=lambda path: str(path.stem))
def test_a_run_takes_exactly_what_is_said_to_be_possible(path: Path) -> None:
    """A refusal that names what would be refused as well sends people in circles."""
    records = decode_lines(RUN, path.read_bytes().splitlines())
    for length in range(1, len(records) + 1):
        state = fold(RUN, records[:length])
        taken = {
            get_input_name(type(control))
            for control in well_put(state)
            if not isinstance(decide(state, control, Micros(state.at)), Refused)
        }
        said = set(list_possible_controls(state)) - {"halt", "lift"}
        assert said == taken & set(list_phase_controls(state.phase)), (length, state.phase)
