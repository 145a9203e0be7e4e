"""Random controls, driver inputs, crashes and times for `decide`, `evolve` and `advance`.

There is no store and no driver. Inputs come in turn and out of turn. After each one the
transition table must allow the answer. In the end the journal must be sound, and a live
worker must be able to bring the run to rest.
"""

from collections.abc import Sequence
from random import Random
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.unit.core.random_runs import Choose, RandomRun

T = TypeVar("T")
RUNS, RUN_MOVES = 400, 100


def make_chooser(data: st.DataObject) -> Choose:
    """Let Hypothesis choose, so that it can shrink a failure."""

    def choose(items: Sequence[T]) -> T:
        return data.draw(st.sampled_from(list(items)))

    return choose


class RandomRunMachine(RuleBasedStateMachine):
    """One run and its moves as Hypothesis rules."""

    run: RandomRun

    @initialize(data=st.data())
    def start_run(self, data: st.DataObject) -> None:
        self.run = RandomRun(make_chooser(data))

    @rule(data=st.data())
    def send_control(self, data: st.DataObject) -> None:
        self.run.send_control(make_chooser(data))

    @precondition(lambda self: self.run.answers)
    @rule(data=st.data())
    def repeat_request(self, data: st.DataObject) -> None:
        self.run.repeat_request(make_chooser(data))

    @rule(data=st.data())
    def drive(self, data: st.DataObject) -> None:
        self.run.drive(make_chooser(data))

    @rule(data=st.data(), steps=st.integers(min_value=1, max_value=6))
    def drive_several_times(self, data: st.DataObject, steps: int) -> None:
        for _ in range(steps):
            self.run.drive(make_chooser(data))

    @precondition(lambda self: self.run.state.is_leased)
    @rule(data=st.data())
    def crash_worker(self, data: st.DataObject) -> None:
        self.run.crash_worker(make_chooser(data))

    @rule(data=st.data())
    def send_unplanned_input(self, data: st.DataObject) -> None:
        self.run.send_unplanned_input(make_chooser(data))

    @rule(data=st.data())
    def report_late_result(self, data: st.DataObject) -> None:
        self.run.report_late_result(make_chooser(data))

    @rule(data=st.data())
    def wait(self, data: st.DataObject) -> None:
        self.run.wait(make_chooser(data))

    def teardown(self) -> None:
        """Check the journal, and bring the run to rest."""
        if hasattr(self, "run"):
            self.run.assert_sound()
            self.run.bring_to_rest(lambda items: items[0])
            self.run.assert_sound()


@pytest.mark.once
@pytest.mark.slow
def test_short_random_runs_keep_the_invariants() -> None:
    """Hypothesis shrinks a failure. The bounds allow about ten seconds."""
    bounds = settings(max_examples=200, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(RandomRunMachine, settings=bounds)


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_long_random_runs_leave_a_sound_journal(seed: int) -> None:
    """These are deeper than Hypothesis gets in the same time. A failure names its seed."""
    random = Random(seed)  # noqa: S311 - the same seed must give the same run
    for _ in range(RUNS):
        run = RandomRun(random.choice)
        rare = (
            run.send_unplanned_input,
            run.report_late_result,
            run.wait,
            run.crash_worker,
            run.repeat_request,
        )
        moves = random.choices(
            (run.send_control, run.drive, *rare), (6, 20, 2, 2, 2, 1, 1), k=RUN_MOVES
        )
        for move in moves:
            move(random.choice)
        run.assert_sound()
        run.bring_to_rest(lambda items: items[0])
        run.assert_sound()
