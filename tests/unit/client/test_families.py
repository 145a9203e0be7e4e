"""Families over HTTP: a checkpoint that goes from one server to another has its children."""

from contextlib import AsyncExitStack
from pathlib import Path

from midrun import Agent, Completed, Paused, ask_human
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Line
from tests.unit.client.conftest import Connected
from tests.unit.runs.stage import ControllableTools
from tests.unit.server.conftest import Serve, server_on


async def test_a_family_goes_on_on_another_server(
    stack: AsyncExitStack,
    serve: Serve,
    connected: Connected,
    stage: ControllableTools,
    tmp_path: Path,
) -> None:
    """What the child has done is not done again there, and the answer reaches it."""
    script: list[Line] = [Use("quick", name="paid"), Use("ask_human", question="Ok?"), "Done."]
    tools = [ask_human, *stage.tools()]
    aide = Agent("aide", model=ScriptedModel(script), tools=tools)
    turns: list[Line] = [Use("aide", task="Do"), "All done."]
    agent = Agent("parent", model=ScriptedModel(turns), tools=[aide.as_tool()])
    here = await connected(await serve(agent))
    paused = await (await here.start("parent", "go")).result()
    assert isinstance(paused, Paused)
    assert len(paused.checkpoint.children) == 1
    elsewhere = server_on(stack, f"sqlite:///{tmp_path / 'other.db'}", ["127.0.0.1"])
    there = await connected(await elsewhere(agent))
    outcome = await (await there.resume(paused.checkpoint, "yes")).result()
    assert isinstance(outcome, Completed)
    assert stage.completed == ["paid"]
