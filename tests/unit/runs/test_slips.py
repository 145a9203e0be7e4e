"""Slips: what is given in the wrong form is refused by name, and nothing has happened."""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from math import inf, nan

import pytest

from midrun import Agent, Midrun, Paused, Run, ask_human
from midrun.errors import CheckpointRefused, ControlRefused, Misconfigured
from midrun.models import ScriptedModel, Use
from midrun.stops import MaxCost, MaxSteps, MaxTime, MaxTokens, Repeats

Slip = Callable[[Run], Awaitable[object]]

SLIPS: dict[str, Slip] = {
    "redirect": lambda run: run.redirect(None),  # type: ignore[arg-type]
    "say": lambda run: run.say(3),  # type: ignore[arg-type]
    "hold": lambda run: run.pause(hold=5),  # type: ignore[arg-type]
    "request_id": lambda run: run.pause(request_id=7),  # type: ignore[arg-type]
    "reason": lambda run: run.pause(reason=b"x"),  # type: ignore[arg-type]
    "actor": lambda run: run.pause(actor=5),  # type: ignore[arg-type]
    "instruction": lambda run: run.resume(7),  # type: ignore[arg-type]
    "at": lambda run: run.say("Later.", at=datetime(2030, 1, 1)),  # noqa: DTZ001 - the slip
    "caps['steps']": lambda run: run.raise_cap(steps=nan),
    "caps['time']": lambda run: run.raise_cap(time=inf),
    "caps['cost']": lambda run: run.resume(caps={"cost": "4"}),  # type: ignore[dict-item]
    "caps['tokens']": lambda run: run.raise_cap(tokens=-1),
    "expires": lambda run: run.checkpoint(expires=timedelta(0)),
    "ask": lambda run: run.answer("this", ask=5),  # type: ignore[arg-type]
    "seq": lambda run: run.fork("x"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("where", SLIPS)
async def test_a_slip_is_named_and_changes_nothing(where: str) -> None:
    """The text names the argument as the caller knows it."""
    model = ScriptedModel([Use("ask_human", question="Which?"), "So."])
    agent = Agent("asker", model=model, tools=[ask_human])
    async with Midrun("memory://", agents=[agent]) as midrun:
        run = await midrun.start(agent, "Ask.")
        before = await run.until("waiting")
        with pytest.raises(Misconfigured) as caught:
            await SLIPS[where](run)
        assert caught.value.where == where
        assert (await run.view()).seq == before.seq


@pytest.mark.parametrize("scope", ["", "agent", "label:", "tag:x", "a\0b"])
async def test_a_latch_that_would_cover_nothing_is_refused_by_name(scope: str) -> None:
    """Whoever sets one is in a hurry, and must not believe that it holds."""
    async with Midrun("memory://") as midrun:
        with pytest.raises(Misconfigured, match="scope"):
            await midrun.halt("Fire.", scope=scope, actor="operator:olga")
        assert not await midrun.store.list_halts()


LONG_NAME = "x" * 3_000_000


@pytest.mark.parametrize(
    ("where", "slip"),
    {
        "thread": lambda mid: mid.start("asker", "Go.", thread=LONG_NAME),
        "labels": lambda mid: mid.start("asker", "Go.", labels=["fine", LONG_NAME]),
        "actor": lambda mid: mid.start("asker", "Go.", actor=LONG_NAME),
        "label": lambda mid: mid.runs(label=LONG_NAME),
        "scope": lambda mid: mid.halt("Fire.", scope=f"label:{LONG_NAME}", actor="olga"),
        "reason": lambda mid: mid.halt(LONG_NAME, actor="olga"),
    }.items(),
)
async def test_a_name_that_is_too_long_is_refused_by_name(
    where: str, slip: Callable[[Midrun], Awaitable[object]]
) -> None:
    """Postgres could not index it, and every list would have to show it."""
    agent = Agent("asker", model=ScriptedModel(["So."]))
    async with Midrun("memory://", agents=[agent]) as midrun:
        with pytest.raises(Misconfigured, match="characters, got 3000") as caught:
            await slip(midrun)
        assert caught.value.where == where
        assert not (await midrun.runs()).items
        with pytest.raises(Misconfigured, match="must be at most 32, got 33"):
            await midrun.start("asker", "Go.", labels=[str(n) for n in range(33)])


@pytest.mark.parametrize("limit", [0, -1, "5", None, True])
async def test_a_list_of_no_length_is_refused_by_name(limit: int) -> None:
    """Not with what the store stumbles over."""
    async with Midrun("memory://") as midrun:
        with pytest.raises(Misconfigured, match="limit"):
            await midrun.runs(limit=limit)


@pytest.mark.parametrize("half", ["task", "thread", "request_id", "labels", "actor"])
async def test_half_a_character_is_one_error_wherever_it_stands(half: str) -> None:
    """A model or a terminal that cut an emoji in two: nobody guesses what was meant."""
    agent = Agent("a", model=ScriptedModel(["So."]))
    texts = dict.fromkeys(("task", "thread", "request_id", "actor"), "x") | {half: "\ud83d"}
    labels = [texts.pop("labels")] if half == "labels" else []
    async with Midrun("memory://", agents=[agent]) as midrun:
        with pytest.raises(Misconfigured, match="half of a character"):
            await midrun.start(agent, **texts, labels=labels)  # type: ignore[arg-type]
        assert not (await midrun.runs()).items


@pytest.mark.parametrize("seq", [-1, 0, 10**9])
async def test_a_fork_of_what_is_not_there_says_so(seq: int) -> None:
    """The phase is the run's own, and another seq may do."""
    agent = Agent("a", model=ScriptedModel(["So."]))
    async with Midrun("memory://", agents=[agent]) as midrun:
        run = await midrun.start(agent, "Go.")
        await run.until("completed")
        with pytest.raises(ControlRefused) as caught:
            await run.fork(seq)
        assert caught.value.reason == "not_a_boundary"
        assert caught.value.phase == "completed"
        assert "nothing is possible" not in str(caught.value)
        with pytest.raises(ControlRefused, match="Allowed now: fork"):
            await run.pause()


@pytest.mark.parametrize(
    ("slip", "says"),
    [("{}", r"pass Checkpoint.from_json\(text\)"), (7, "must be a Checkpoint, got int")],
)
async def test_a_checkpoint_that_is_still_text_is_named(slip: object, says: str) -> None:
    """It was stored as text, and is given as it came back."""
    agent = Agent("a", model=ScriptedModel(["So."]))
    with pytest.raises(Misconfigured, match=says):
        await agent.resume(slip)  # type: ignore[arg-type]


async def test_a_checkpoint_of_another_agent_asks_for_that_agent() -> None:
    """Without a store there is no run to take a new one from."""
    model = ScriptedModel([Use("ask_human", question="Which?"), "So."])
    paused = await Agent("asker", model=model, tools=[ask_human]).run("Ask.")
    assert isinstance(paused, Paused)
    other = Agent("other", model=model, tools=[ask_human])
    with pytest.raises(CheckpointRefused, match="Resume it with its own agent"):
        await other.resume(paused.checkpoint, "red")


def test_an_agent_with_one_tool_says_so() -> None:
    """In the singular; it is the plan, which every agent has."""
    agent = Agent("a", model=ScriptedModel(["So."]))
    assert repr(agent).endswith("1 tool>")


async def test_a_request_id_that_was_used_names_the_run_it_belongs_to() -> None:
    """The same id for something else is a mistake; the first run is not touched."""
    agent = Agent("a", model=ScriptedModel(["So."]))
    async with Midrun("memory://", agents=[agent]) as midrun:
        run = await midrun.start(agent, "Go.", request_id="r1")
        await run.until("completed")
        with pytest.raises(ControlRefused, match="started otherwise") as caught:
            await midrun.start(agent, "Else.", request_id="r1")
        assert (caught.value.run, caught.value.phase) == (run.id, "completed")


@pytest.mark.parametrize(
    "make",
    [
        lambda: MaxSteps(-1),
        lambda: MaxSteps(1.5),  # type: ignore[arg-type]
        lambda: MaxTokens("3"),  # type: ignore[arg-type]
        lambda: Repeats(0),
        lambda: MaxCost(nan),
        lambda: MaxTime(seconds=-1),
        lambda: MaxTime(minutes=inf),
    ],
)
def test_a_condition_that_cannot_be_met_is_refused_where_it_is_made(
    make: Callable[[], object],
) -> None:
    """Not when the run has started: then it would pause before its first step, or fail."""
    with pytest.raises(ValueError, match=r"must be (an int|a finite)"):
        make()
