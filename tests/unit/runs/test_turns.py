"""The turns that changed between two states: a page that applies them has all turns."""

from pathlib import Path

import pytest

from midrun.core.evolve import fold
from midrun.core.state import State
from midrun.runs.turns import TurnView, list_changed_turns, list_turns
from tests.journals.test_golden_journals import STORED, read_journal
from tools.golden.facts import RUN


@pytest.mark.parametrize("path", STORED, ids=lambda path: str(path.stem))
@pytest.mark.parametrize("step", [1, 3])
def test_the_changed_turns_add_up_to_all_turns(path: Path, step: int) -> None:
    """After every entry, and if several entries came at once."""
    records = read_journal(path)
    state, known = State(run=RUN), dict[int, TurnView]()
    for at in range(0, len(records), step):
        before, state = state, fold(RUN, records[at : at + step], state)
        changed = list_changed_turns(before, state) if at else list_turns(state, 0, 999)
        known |= {turn.number: turn for turn in changed}
        assert tuple(known.values()) == list_turns(state, 0, 999)
