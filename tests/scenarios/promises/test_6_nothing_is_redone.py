"""Promise 6: nothing is redone.

A call whose end is in the journal is never made again. One that was in flight when its process
died is *unknown*: made again under its key if that is declared safe, settled by its own check
if it has one, and put to a person otherwise. It is never quietly repeated, nor dropped.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from midrun import ControlRefused, Midrun, Paused, Run
from midrun.core.entries import CallSettled, CallStarted, CallUnknown
from midrun.core.transcript import Made
from tests.scenarios.promises.crashing import LATER, child
from tests.scenarios.promises.seen import entries, turns
from tests.scenarios.promises.world import World
from tests.support.store_choice import kept_at


@asynccontextmanager
async def after_a_crash(
    path: Path, folder: Path, script: str, stop_at: str
) -> AsyncIterator[tuple[Run, World]]:
    """Kill a process in the middle of a call, and give its run where another one takes it."""
    with child("drive", path, folder, script, stop_at) as talk:
        run_id = talk.hear()
        talk.kill()
    world = World(folder)
    agents = [world.agent(script)]
    with anyio.fail_after(60):
        async with Midrun(kept_at(path), agents=agents, outside=LATER) as midrun:
            yield await midrun.get(run_id), world
            assert await midrun.verify(run_id)


async def made(run: Run) -> list[Made]:
    """Return what the model is told of the tool calls of `run`."""
    return [one for turn in await turns(run) for one in turn.uses]


async def attempts(run: Run) -> list[int]:
    """Return the attempts of the tool calls of `run`."""
    started = await entries(run, CallStarted)
    return [start.attempt for start in started if start.call_kind == "tool"]


async def test_a_call_whose_end_is_journaled_is_not_made_again_after_a_crash(
    path: Path, tmp_path: Path
) -> None:
    """Nor is the one that only looks counted as done: it is looked again, under its key."""
    async with after_a_crash(path, tmp_path, "look", "look:after") as (run, world):
        await run.until("completed")
        assert world.told() == ["charge a", "look b", "look b"]
        assert len(set(world.keys())) == 2
        assert await attempts(run) == [1, 1, 2]
        (lost,) = await entries(run, CallUnknown)
        assert lost.why == "orphaned"


@pytest.mark.parametrize("point", ["fetch:before", "fetch:after"])
async def test_an_idempotent_call_is_made_again_under_the_same_key(
    path: Path, tmp_path: Path, point: str
) -> None:
    """Whether the first one arrived nobody here knows; the far end knows the key."""
    async with after_a_crash(path, tmp_path, "fetch", point) as (run, world):
        await run.until("completed")
        assert world.told() == ["fetch a"] * (1 + (point == "fetch:after"))
        assert len(set(world.keys())) == 1
        assert await attempts(run) == [1, 2]
        assert not (await run.view()).asks


async def test_a_check_that_finds_the_effect_settles_the_call(
    path: Path, tmp_path: Path
) -> None:
    """What it found is the result; the call is not made again, and nobody is asked."""
    async with after_a_crash(path, tmp_path, "checked", "checked:after") as (run, world):
        await run.until("completed")
        assert world.told() == ["checked a"]
        assert await attempts(run) == [1]
        (settled,) = await entries(run, CallSettled)
        assert (settled.happened, settled.by) == (True, "check:checked")
        assert [one.result for one in await made(run)] == ["found a"]


async def test_a_check_that_finds_nothing_has_the_call_made(path: Path, tmp_path: Path) -> None:
    """Under its key, as another attempt."""
    async with after_a_crash(path, tmp_path, "checked", "checked:before") as (run, world):
        await run.until("completed")
        assert world.told() == ["checked a"]
        assert await attempts(run) == [1, 2]
        (settled,) = await entries(run, CallSettled)
        assert settled.happened is False
        assert [one.result for one in await made(run)] == ["did a"]


async def test_otherwise_a_person_is_asked_and_nothing_happens_meanwhile(
    path: Path, tmp_path: Path
) -> None:
    """The ask says which call with which arguments, and takes no other kind of answer."""
    async with after_a_crash(path, tmp_path, "charge", "charge:after") as (run, world):
        await run.until("waiting")
        outcome = await run.result()
        assert isinstance(outcome, Paused)
        (ask,) = outcome.asks
        assert (outcome.reason, ask.kind, ask.tool) == ("unsure", "unsure", "charge")
        assert ask.args == {"name": "a"}
        assert world.told() == ["charge a"]
        with pytest.raises(ControlRefused, match="not_an_outcome"):
            await run.answer("perhaps")
        with pytest.raises(ControlRefused, match="not_an_approval"):
            await run.approve()
        assert (await run.view()).phase == "waiting"


@pytest.mark.parametrize(
    ("answer", "point", "told"),
    [
        ("yes", "charge:after", ["charge a"]),
        ("no", "charge:before", ["charge a"]),
        ("unknown", "charge:after", ["charge a"]),
        ("unknown", "charge:before", []),
    ],
)
async def test_what_a_person_says_of_an_unsure_call_decides(
    path: Path, tmp_path: Path, answer: str, point: str, told: list[str]
) -> None:
    """Yes: it counts as done. No: it is made, under its key. Unknown: it is left, and told."""
    async with after_a_crash(path, tmp_path, "charge", point) as (run, world):
        await run.until("waiting")
        await run.answer(answer, actor="ada")
        await run.until("completed")
        assert world.told() == told
        assert await attempts(run) == ([1, 2] if answer == "no" else [1])
        (settled,) = await entries(run, CallSettled)
        assert settled.by == "ada"
        assert settled.happened is {"yes": True, "no": False, "unknown": None}[answer]
        (one,) = await made(run)
        assert bool(one.problem) is (answer == "unknown")
        assert one.result == ("charged a" if answer == "no" else None)
        unsure = [deed.tool for deed in (await run.report()).unsure]
        assert unsure == (["charge"] if answer == "unknown" else [])


async def test_an_unsure_call_is_never_made_again_by_a_resume(
    path: Path, tmp_path: Path
) -> None:
    """Paused and resumed, the question is still there: nobody slips past it."""
    async with after_a_crash(path, tmp_path, "charge", "charge:after") as (run, world):
        await run.until("waiting")
        await run.pause()
        await run.resume()
        assert (await run.view()).phase == "waiting"
        await run.redirect("Never mind; go on")
        await run.until("completed")
        assert world.told() == ["charge a"]
        (one,) = await made(run)
        assert "unknown" in one.problem
        assert [deed.tool for deed in (await run.report()).unsure] == ["charge"]
