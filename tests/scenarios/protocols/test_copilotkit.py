"""The unmodified core package of CopilotKit against the four routes that it needs."""

import pytest

from midrun import Agent
from midrun.models import ScriptedModel, Use
from midrun.server import Bridges
from midrun.stops import MaxSteps, MaxTime
from midrun.testing.controllable_tools import ControllableTools
from tests.scenarios.protocols.conftest import ServeAgent, open_http_client
from tests.scenarios.protocols.node_clients import run_client
from tests.scenarios.protocols.test_agui import get_texts
from tests.unit.server.http_calls import expect_status

pytestmark = pytest.mark.once


async def test_copilotkit_connects_lists_the_agents_and_runs_one(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
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
async def test_the_stop_button_of_copilotkit_pauses_or_cancels_as_configured(
    serve_agent: ServeAgent, stage: ControllableTools, how: str, phase: str
) -> None:
    """CopilotKit has one stop button. The default is a pause, because it can be resumed."""
    agent = stage.agent(["Half a sen", Use("read", name="x")], "Done.")
    bridges = Bridges(stop=how)  # type: ignore[arg-type]  # one of the two
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


async def test_a_reopened_page_gets_the_whole_conversation(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    """It also gets the messages from the time without an open page."""
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


async def test_the_runtime_info_has_the_capabilities_and_caps_of_an_agent(
    serve_agent: ServeAgent,
) -> None:
    """A cap inside an *and* is not listed, because it is not a limit on its own."""
    stop = (MaxSteps(9) | MaxSteps(7)) | (MaxTime(minutes=1) & MaxSteps(2))
    agent = Agent("actor", model=ScriptedModel(["Hm."]), stop=stop | MaxTime(seconds=90))
    async with serve_agent(agent) as server, open_http_client(server) as client:
        info = expect_status(await client.get("/copilotkit/info"), 200).json()
        capabilities = info["agents"]["actor"]["capabilities"]
        assert capabilities["execution"] == {"maxIterations": 7, "maxExecutionTime": 90_000}
        assert capabilities["humanInTheLoop"]["approveWithEdits"] is True
        assert capabilities["transport"] == {"streaming": True, "resumable": True}
        assert info["mode"] == "sse"
        assert not any(info["threadEndpoints"].values())
