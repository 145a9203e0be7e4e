"""A `Midrun` belongs to the event loop that it was opened in; from others it says so.

A web framework that gives each request a loop of its own, in a thread, once ended the engine
with that loop, or waited in it for a bell that rings elsewhere.
"""

import asyncio
from collections.abc import Awaitable, Callable

import anyio
import anyio.to_thread
import pytest
from anyio import from_thread

from midrun import Agent, Completed, Midrun, Misconfigured, Run
from midrun.models import ScriptedModel
from tests.scenarios.promises.seen import PATIENCE

ASKED: dict[str, Callable[[Midrun, Run], Awaitable[object]]] = {
    "start": lambda mid, _: mid.start("actor", "go"),
    "cancel": lambda _, run: run.cancel(),
    "until": lambda _, run: run.until("completed"),
    "result": lambda _, run: run.result(),
}


@pytest.mark.parametrize("asked", ASKED)
async def test_what_is_asked_in_another_loop_is_refused_by_name(asked: str) -> None:
    """Nothing has happened, and the runs go on."""
    agent = Agent("actor", model=ScriptedModel(["Done."]))
    with anyio.fail_after(PATIENCE):
        async with Midrun("memory://", agents=[agent]) as midrun:
            run = await midrun.start("actor", "go", request_id="first")
            with pytest.raises(Misconfigured, match="open in another event loop"):
                await anyio.to_thread.run_sync(_elsewhere, lambda: ASKED[asked](midrun, run))
            assert isinstance(await run.result(), Completed)


async def test_from_a_thread_one_goes_to_the_loop_that_it_is_open_in() -> None:
    """As the refusal says."""
    agent = Agent("actor", model=ScriptedModel(["Done."]))
    with anyio.fail_after(PATIENCE):
        async with Midrun("memory://", agents=[agent]) as midrun:
            run = await midrun.start("actor", "go")
            ended = await anyio.to_thread.run_sync(from_thread.run, run.result)
    assert isinstance(ended, Completed)


def _elsewhere(ask: Callable[[], Awaitable[object]]) -> None:
    async def main() -> None:
        await ask()

    asyncio.run(main())


def test_without_an_asyncio_loop_it_is_refused_by_name() -> None:
    """As under Trio, where no loop of asyncio runs either."""
    opening = Midrun("memory://").__aenter__()
    with pytest.raises(Misconfigured, match="Trio is not supported"):
        opening.send(None)
