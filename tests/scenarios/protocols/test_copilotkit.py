"""CopilotKit's own core, unmodified, against the four routes that it needs."""

import pytest

from midrun.models import Use
from midrun.server import Bridges
from tests.scenarios.protocols.conftest import Serving
from tests.scenarios.protocols.test_agui import texts
from tests.scenarios.protocols.theirs import client
from tests.unit.runs.stage import ControllableTools

pytestmark = pytest.mark.once


async def test_it_connects_finds_the_agents_and_runs_one(
    serving: Serving, stage: ControllableTools
) -> None:
    """What it is told of the runtime is what it asks before anything else."""
    agent = stage.agent(["Looking.", Use("quick", name="a")], "It is a.")
    async with serving(agent) as server, client("copilotkit", f"{server.url}/copilotkit") as ck:
        assert (await ck.line())["agents"] == ["actor"]
        await ck.tell(run={"thread": "t", "name": "actor", "say": "What is it?"})
        done = await ck.over()
        assert texts(done["messages"], "assistant") == ["Looking.", "It is a."]


@pytest.mark.parametrize(("how", "phase"), [("pause", "paused"), ("cancel", "cancelled")])
async def test_its_one_button_stops_the_run_as_the_server_was_told(
    serving: Serving, stage: ControllableTools, how: str, phase: str
) -> None:
    """Pause unless told otherwise: it has one button, and a pause can be taken back."""
    agent = stage.agent(["Half a sen", Use("read", name="x")], "Done.")
    bridges = Bridges(stop=how)  # type: ignore[arg-type]  # it is one of the two
    async with (
        serving(agent, bridges) as server,
        client("copilotkit", f"{server.url}/copilotkit") as ck,
    ):
        await ck.line()
        await ck.tell(run={"thread": "t", "name": "actor", "say": "Go."})
        await ck.until("TOOL_CALL_END")
        await stage.start("x").wait()
        await ck.tell(stop="actor")
        done = await ck.over()
        run = await server.only()
        assert (await run.until("paused", "cancelled")).phase == phase
        assert "Half a sen" in texts(done["messages"], "assistant")


async def test_a_page_that_is_opened_again_is_given_the_conversation(
    serving: Serving, stage: ControllableTools
) -> None:
    """What was said while nobody looked is there, and the agent can be spoken to."""
    agent = stage.agent("It is a.")
    async with serving(agent) as server:
        run = await server.mid.start("actor", "What is it?", thread="t", actor="olga")
        await run.until("completed")
        async with client("copilotkit", f"{server.url}/copilotkit") as ck:
            await ck.line()
            await ck.tell(run={"thread": "t", "name": "actor", "connect": True})
            done = await ck.over()
            assert texts(done["messages"], "user") == ["What is it?"]
            assert texts(done["messages"], "assistant") == ["It is a."]
