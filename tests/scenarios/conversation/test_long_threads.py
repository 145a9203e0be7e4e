"""Threads and forks with more to tell than one entry holds."""

from pathlib import Path

import pytest

from midrun import Agent, Midrun, Misconfigured, tool
from midrun.core.entries import RunStarted
from midrun.core.transcript import Transcript
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Line
from tests.scenarios.promises.seen import entries
from tests.support.store_choice import kept_at
from tests.unit.runs.conftest import Opener

THREAD = "t1"


def talkative(results: int, size: int) -> Agent:
    """Return an agent that reads much, and says what it is given when it is asked again."""

    @tool(read_only=True)
    async def read(number: int) -> str:
        """Read a long text."""
        return f"{number} " + "x" * size

    def cue(messages: Transcript) -> Line:
        if messages.assistant_turn_count < results:
            return Use("read", number=messages.assistant_turn_count)
        return "Read."

    return Agent("actor", model=ScriptedModel(cue), tools=[read])


async def test_a_thread_goes_on_however_much_was_said_in_it(opened: Opener) -> None:
    """What is too long is cut short and says so: a thread never becomes a dead end."""
    midrun = await opened(talkative(3, 3_000_000))
    first = await midrun.start("actor", "first", thread=THREAD)
    await first.until("completed")
    second = await midrun.start("actor", "second", thread=THREAD)
    forked = await first.fork(instruction="Again")
    for run in (second, forked):
        await run.until("completed")
        (started,) = await entries(run, RunStarted)
        made = [made for message in started.history for made in message.made]
        assert [str(one.result)[:2] for one in made] == ["0 ", "1 ", "2 "]
        assert all(str(one.result).endswith("… (3000002 characters)") for one in made)
        assert started.history[0].text == "first"


async def test_a_thread_says_that_its_oldest_runs_are_left_out(path: Path) -> None:
    """How many a new run is told of is a setting; the model and the journal are told."""
    async with Midrun(kept_at(path), agents=[talkative(0, 0)], thread_runs=2) as midrun:
        for task in ("first", "second"):
            await (await midrun.start("actor", task, thread=THREAD)).until("completed")
        third = await midrun.start("actor", "third", thread=THREAD)
        (started,) = await entries(third, RunStarted)
        assert [message.text for message in started.history] == [
            *("first", "Read."),
            *("second", "Read."),
        ]
        await third.until("completed")
        fourth = await midrun.start("actor", "fourth", thread=THREAD)
        (started,) = await entries(fourth, RunStarted)
        left_out, *kept = started.history
        assert (left_out.role, kept[0].text) == ("runtime", "second")
        assert left_out.text == (
            "Messages from before the newest 2 runs of this thread are left out."
        )
        await fourth.until("completed")
    with pytest.raises(Misconfigured, match="thread_runs"):
        Midrun(kept_at(path), thread_runs=0)


async def test_of_a_history_that_is_too_long_in_all_the_oldest_is_left_out(
    opened: Opener,
) -> None:
    """How much that is, is said in its place."""
    midrun = await opened(talkative(300, 15_000))
    first = await midrun.start("actor", "first", thread=THREAD)
    await first.until("completed")
    second = await midrun.start("actor", "second", thread=THREAD)
    (started,) = await entries(second, RunStarted)
    left_out, *kept = started.history
    assert left_out.text.startswith(f"{302 - len(kept)} earlier messages are left out")
    assert kept[-1].text == "Read."
    assert len(kept) > 200
