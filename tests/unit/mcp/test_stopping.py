"""A call that is aborted here is aborted there; the session outlives it.

The four ways differ in how the server is told: over HTTP since 2026 by closing the stream of
the response, and otherwise in so many words.
"""

import pytest

from midrun import Completed
from midrun.core.entries import CallAborted
from midrun.core.transcript import Transcript
from midrun.models import Use
from tests.scenarios.promises.seen import entries
from tests.unit.mcp.office import WAYS, Pipe, Way, clerk, results, served

ways = pytest.mark.parametrize("way", WAYS, ids=str)


@ways
async def test_pause_now_reaches_the_server(pipe: Pipe, way: Way) -> None:
    """Resumed, the run calls the same server over the same session."""
    turns = (Use("hold", name="x"), Use("add", a=1), "Done.")
    async with served(pipe, way) as tools, clerk(tools, *turns) as midrun:
        run = await midrun.start("clerk", "go")
        await pipe.hear("began x")
        await run.pause(now=True)
        await pipe.hear("stopped x")
        if way != Way(http=True, old=False):
            await pipe.hear("told to cancel")
        await run.until("paused")
        assert len(await entries(run, CallAborted)) == 1
        await run.resume()
        assert isinstance(await run.result(), Completed)
        assert await results(run) == [{"sum": 2}]
    assert "told to cancel" not in pipe.heard


@ways
async def test_cancel_reaches_the_server(pipe: Pipe, way: Way) -> None:
    """And only for its own call: that of another run goes on, and ends as it should."""

    def turn(said: Transcript) -> Use:
        task = said[0].text
        return Use("let_go", name="y") if task == "let go" else Use("hold", name=task)

    async with served(pipe, way) as tools, clerk(tools, turn, "Done.") as midrun:
        one = await midrun.start("clerk", "x")
        other = await midrun.start("clerk", "y")
        await pipe.hear("began x")
        await pipe.hear("began y")
        await one.cancel()
        await pipe.hear("stopped x")
        await one.until("cancelled")
        assert [deed.tool for deed in (await one.report()).stopped] == ["hold"]
        await midrun.start("clerk", "let go")
        assert isinstance(await other.result(), Completed)
        assert await results(other) == [{"result": "held y"}]


@pytest.mark.parametrize("way", [way for way in WAYS if not way.old], ids=str)
async def test_a_server_that_does_not_listen_is_not_waited_for(pipe: Pipe, way: Way) -> None:
    """The call has ended here, and may have taken effect, as any that was aborted."""
    turns = (Use("ignore", name="x"), Use("let_go", name="x"), "Done.")
    async with served(pipe, way) as tools, clerk(tools, *turns) as midrun:
        run = await midrun.start("clerk", "go")
        await pipe.hear("began x")
        await run.pause(now=True)
        await run.until("paused")
        assert len(await entries(run, CallAborted)) == 1
        assert "finished x" not in pipe.heard
        await run.resume()
        await pipe.hear("finished x")
        assert isinstance(await run.result(), Completed)
