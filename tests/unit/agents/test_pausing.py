"""Asking a person from inside a tool."""

from contextlib import suppress

import pytest

from midrun.agents.builtin_tools import PauseHere, ask_human, pause_here
from midrun.core.values import Effect
from midrun.errors import NotJson


def test_pausing_carries_the_question_and_its_data_past_every_handler() -> None:
    """A tool full of `except Exception` can still ask."""
    with pytest.raises(PauseHere) as pause, suppress(Exception):
        pause_here("Which one?", seats=("1A", "2B"), price=30)
    assert pause.value.question == "Which one?"
    assert pause.value.data == {"seats": ["1A", "2B"], "price": 30}


def test_data_that_cannot_be_stored_is_refused_where_it_is_given() -> None:
    """Later, nobody would know which line made it."""
    with pytest.raises(NotJson) as refusal:
        pause_here("Which?", seats=[object()])
    assert refusal.value.path == "seats[0]"


async def test_the_ready_made_tool_asks_with_options_or_without() -> None:
    """An agent that may ask needs no code of its own for it."""
    with pytest.raises(PauseHere) as pause:
        await ask_human("Which?", options=["a", "b"])
    assert (pause.value.question, pause.value.data) == ("Which?", {"options": ["a", "b"]})
    with pytest.raises(PauseHere) as pause:
        await ask_human("What now?")
    assert pause.value.data == {}


def test_the_ready_made_tool_can_be_asked_again_after_a_crash() -> None:
    """Asking changes nothing in the world, so nobody need be asked whether it happened."""
    assert ask_human.traits.effect is Effect.READ
    assert ask_human.name == "ask_human"
    assert ask_human.schema["required"] == ["question"]
    assert ask_human.is_async
