"""CopilotKit's own core, unmodified, against the four routes that it needs."""

import pytest

from midrun import Agent
from midrun.models import ScriptedModel, Use
from midrun.server import Bridges
from midrun.stops import MaxSteps, MaxTime
from tests.scenarios.protocols.conftest import ServeAgent, open_http_client
from tests.scenarios.protocols.node_clients import run_client
from tests.scenarios.protocols.test_agui import get_texts
from tests.unit.runs.stage import ControllableTools
from tests.unit.server.calling import expect

pytestmark = pytest.mark.once


async def test_it_connects_finds_the_agents_and_runs_one(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    """What it is told of the runtime is what it asks before anything else."""
    agent = stage.agent(["Looking.", Use("quick", name="a")], "It is a.")
    async with (
        serve_agent(agent) as server,
        run_client("copilotkit", f"{server.url}/copilotkit") as copilotkit,
    ):
        assert (await copilotkit.read_line())["agents"] == ["actor"]
        await copilotkit.send(run={"thread": "t", "name": "actor", "say": "What is it?"})
        done = await copilotkit.wait_for_end()
        assert get_texts(done["messages"], "assistant") == ["Looking.", "It is a."]


@pytest.mark.parametrize(("how", "phase"), [("pause", "paused"), ("cancel", "cancelled")])
async def test_its_one_button_stops_the_run_as_the_server_was_told(
    serve_agent: ServeAgent, stage: ControllableTools, how: str, phase: str
) -> None:
    """Pause unless told otherwise: it has one button, and a pause can be taken back."""
    agent = stage.agent(["Half a sen", Use("read", name="x")], "Done.")
    bridges = Bridges(stop=how)  # type: ignore[arg-type]  # it is one of the two
    async with (
        serve_agent(agent, bridges) as server,
        run_client("copilotkit", f"{server.url}/copilotkit") as copilotkit,
    ):
        await copilotkit.read_line()
        await copilotkit.send(run={"thread": "t", "name": "actor", "say": "Go."})
        await copilotkit.wait_for_event("TOOL_CALL_END")
        await stage.start("x").wait()
        await copilotkit.send(stop="actor")
        done = await copilotkit.wait_for_end()
        run = await server.get_only_run()
        assert (await run.until("paused", "cancelled")).phase == phase
        assert "Half a sen" in get_texts(done["messages"], "assistant")


async def test_a_page_that_is_opened_again_is_given_the_conversation(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    """What was said while nobody looked is there, and the agent can be spoken to."""
    agent = stage.agent("It is a.")
    async with serve_agent(agent) as server:
        run = await server.mid.start("actor", "What is it?", thread="t", actor="olga")
        await run.until("completed")
        async with run_client("copilotkit", f"{server.url}/copilotkit") as copilotkit:
            await copilotkit.read_line()
            await copilotkit.send(run={"thread": "t", "name": "actor", "connect": True})
            done = await copilotkit.wait_for_end()
            assert get_texts(done["messages"], "user") == ["What is it?"]
            assert get_texts(done["messages"], "assistant") == ["It is a."]


async def test_a_runtime_says_what_its_agents_can_do(serve_agent: ServeAgent) -> None:
    """Their caps are bounds that a client can show; those within an *and* are none."""
    either = (MaxSteps(9) | MaxSteps(7)) | (MaxTime(minutes=1) & MaxSteps(2))
    agent = Agent("actor", model=ScriptedModel(["Hm."]), stop=either | MaxTime(seconds=90))
    async with serve_agent(agent) as server, open_http_client(server) as client:
        told = expect(await client.get("/copilotkit/info"), 200).json()
        can = told["agents"]["actor"]["capabilities"]
        assert can["execution"] == {"maxIterations": 7, "maxExecutionTime": 90_000}
        assert can["humanInTheLoop"]["approveWithEdits"] is True
        assert can["transport"] == {"streaming": True, "resumable": True}
        assert told["mode"] == "sse"
        assert not any(told["threadEndpoints"].values())
