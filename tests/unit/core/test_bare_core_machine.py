"""The bare core under everything at once: random controls, evidence, crashes, and time.

No store, no driver: `decide`, `evolve` and `plan` alone, fed with what people, live drivers,
dead ones and the clock may bring, in turn and out of turn. After every input the table must
have foreseen the answer; in the end the journal must be sound, and a live driver must be able
to bring the run to rest.
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

from tests.unit.core.game import Game
from tests.unit.core.wild import Pick

T = TypeVar("T")
GAMES, MOVES = 400, 100


def drawing(data: st.DataObject) -> Pick:
    """Let Hypothesis choose, so that it can look for the smallest failure."""

    def pick(items: Sequence[T]) -> T:
        return data.draw(st.sampled_from(list(items)))

    return pick


class BareCore(RuleBasedStateMachine):
    """One run, and everything that may be done to it."""

    game: Game

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.game = Game(drawing(data))

    @rule(data=st.data())
    def somebody_asks(self, data: st.DataObject) -> None:
        self.game.ask(drawing(data))

    @precondition(lambda self: self.game.told)
    @rule(data=st.data())
    def somebody_asks_again(self, data: st.DataObject) -> None:
        self.game.ask_again(drawing(data))

    @rule(data=st.data())
    def the_driver_goes_on(self, data: st.DataObject) -> None:
        self.game.drive(drawing(data))

    @rule(data=st.data(), steps=st.integers(min_value=1, max_value=6))
    def the_driver_goes_on_for_a_while(self, data: st.DataObject, steps: int) -> None:
        for _ in range(steps):
            self.game.drive(drawing(data))

    @precondition(lambda self: self.game.state.is_leased)
    @rule(data=st.data())
    def the_driver_dies(self, data: st.DataObject) -> None:
        self.game.crash(drawing(data))

    @rule(data=st.data())
    def evidence_comes_out_of_turn(self, data: st.DataObject) -> None:
        self.game.disturb(drawing(data))

    @rule(data=st.data())
    def a_dead_driver_was_only_slow(self, data: st.DataObject) -> None:
        self.game.come_late(drawing(data))

    @rule(data=st.data())
    def time_passes(self, data: st.DataObject) -> None:
        self.game.wait(drawing(data))

    def teardown(self) -> None:
        """Whatever happened: the journal is sound, and a live driver brings the run to rest."""
        if hasattr(self, "game"):
            self.game.check()
            self.game.bring_to_rest(lambda items: items[0])
            self.game.check()


@pytest.mark.once
@pytest.mark.slow
def test_no_short_life_breaks_a_promise() -> None:
    """Shrinks what it finds; bounded to about ten seconds."""
    bounds = settings(max_examples=200, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(BareCore, settings=bounds)


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_a_long_random_life_leaves_a_sound_journal(seed: int) -> None:
    """Deeper than Hypothesis goes in the same time; a failure names its seed and its game."""
    chance = Random(seed)  # noqa: S311 - tests want the same chance every time
    for _ in range(GAMES):
        game = Game(chance.choice)
        rare = (game.disturb, game.come_late, game.wait, game.crash, game.ask_again)
        moves = chance.choices((game.ask, game.drive, *rare), (6, 20, 2, 2, 2, 1, 1), k=MOVES)
        for move in moves:
            move(chance.choice)
        game.check()
        game.bring_to_rest(lambda items: items[0])
        game.check()
