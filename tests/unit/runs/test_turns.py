"""The turns that changed between two states: a page that applies them has all turns."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from midrun.core.evolve import fold
from midrun.core.state import State
from midrun.core.values import Phase
from midrun.runs.turns import (
    TurnView,
    format_progress,
    list_changed_turns,
    list_turns,
    make_plan_rows,
)
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


@pytest.mark.parametrize(
    ("journal", "shown"),
    [
        (
            "the_demo_interrupted",
            (
                "turn 1; plan 1/7; plan 0/7 done; plan 1/7; plan 2/7; plan 3/5; plan 4/5; "
                "plan 5/5; plan 4/5 done; plan 5/5; plan 2/5 done"
            ),
        ),
        (
            "side_questions_now_next_and_later",
            "turn 1; plan 1/3; plan 2/3; held at plan 2/3; plan 2/3; plan 1/3 done",
        ),
        ("a_side_question_with_frames", "turn 1; turn 2; turn 3; turn 4; 4 turns"),
    ],
)
def test_the_progress_is_the_current_item_and_at_rest_the_items_that_are_done(
    journal: str, shown: str
) -> None:
    """All surfaces show this text. Undone items no longer count as done."""
    state, seen = State(run=RUN), [""]
    for record in read_journal(*(path for path in STORED if path.stem == journal)):
        state = fold(RUN, [record], state)
        if (progress := format_progress(state)) != seen[-1]:
            seen.append(progress)
    assert "; ".join(seen[1:]) == shown


@pytest.mark.parametrize(
    "phase", [Phase.QUEUED, Phase.RUNNING, Phase.PAUSING, Phase.WAITING, Phase.FAILED]
)
def test_the_current_item_of_a_held_plan_is_held(phase: Phase) -> None:
    """The run works on a side question, so the item neither runs nor waits for a person."""
    state = State(run=RUN)
    for record in read_journal(*(p for p in STORED if p.stem == "the_literature_synthesis")):
        state = fold(RUN, [record], state)
        if format_progress(state).startswith("held"):
            break
    rows = make_plan_rows(replace(state, phase=phase))
    assert [row.style for row in rows].count("held") == 1
