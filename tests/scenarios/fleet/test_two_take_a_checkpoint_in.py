"""Two processes resume one checkpoint into a store that does not know its run yet."""

from pathlib import Path

import anyio
import pytest

from midrun import Agent, CheckpointRefused, Midrun, ask_human, is_paused
from midrun.core.ids import RunId
from midrun.errors import RunNotFound
from midrun.models import ScriptedModel, Use
from midrun.ports.store import Snapshot


def look_too_early(midrun: Midrun) -> None:
    """Have a process look for the run just before the other one takes it in."""
    store, load = midrun.store, midrun.store.load_snapshot

    async def early(run: RunId) -> Snapshot | None:
        setattr(store, "load_snapshot", load)  # noqa: B010 - once
        raise RunNotFound(run)

    setattr(store, "load_snapshot", early)  # noqa: B010 - as above


async def test_one_wins_and_the_other_is_told_so(tmp_path: Path) -> None:
    """And one that only repeats what it was not answered finds the run where it took it."""
    model = ScriptedModel([Use("ask_human", question="Which?"), "So be it."])
    agent = Agent("asker", model=model, tools=[ask_human])
    paused = await agent.run("Go.")
    assert is_paused(paused)
    address = f"sqlite:///{tmp_path / 'runs.db'}"
    with anyio.fail_after(60):
        async with (
            Midrun(address, agents=[agent]) as one,
            Midrun(address, agents=[agent]) as two,
        ):
            first = await one.resume(paused.checkpoint, "this", request_id="a")
            look_too_early(two)
            with pytest.raises(CheckpointRefused, match="stale_checkpoint"):
                await two.resume(paused.checkpoint, "that", request_id="b")
            look_too_early(two)
            again = await two.resume(paused.checkpoint, "this", request_id="a")
            assert again.id == first.id
            assert (await again.until("completed")).output == "So be it."
            assert await two.verify(first.id)
