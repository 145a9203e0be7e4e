"""`connect`: tokens, URLs, roles and checkpoints, and the suite for handles over HTTP."""

import subprocess
import sys
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import pytest

from midrun import Agent, Completed, Midrun, Paused, ask_human, connect, tool
from midrun.core.stops import Custom
from midrun.errors import Misconfigured, RunNotFound, ServerRefused
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Line
from midrun.ports.environment import Environment
from midrun.runs.protocols import AnyMidrun
from midrun.stops import MaxSteps
from midrun.testing.controllable_tools import ControllableTools
from midrun.testing.run_suite import OpenHandle, RunSuite
from tests.unit.client.conftest import ConnectClient
from tests.unit.server.conftest import (
    KEY,
    StartServer,
    make_server_starter,
    verify_all_journals,
)

CONNECT_WITHOUT_HTTPX = """
import sys
sys.modules["httpx2"] = None
import midrun
try:
    midrun.connect("http://127.0.0.1:1")
except midrun.Misconfigured as error:
    print(error)
"""


def test_connect_without_httpx_names_the_extra() -> None:
    """The error is raised when a program connects, not when it imports midrun."""
    result = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", CONNECT_WITHOUT_HTTPX],
        check=True,
        capture_output=True,
        text=True,
    )
    assert "midrun[client]" in result.stdout


async def test_an_unknown_token_is_refused_when_connecting(serve: StartServer) -> None:
    server = await serve()
    for token in (None, "an-unknown-token-0123456789"):
        with pytest.raises(ServerRefused) as refused:
            async with connect(server.url, token=token):
                pass
        assert (refused.value.status, refused.value.problem) == (401, "unauthorized")
        assert "token=" in str(refused.value)


async def test_an_invalid_url_is_refused() -> None:
    for url in ("http://[", "localhost:8700", ""):
        with pytest.raises(Exception, match=r"url|server") as error:
            async with connect(url, patience=0.1):
                pass
        assert error.value.__class__.__module__.startswith("midrun.")


async def test_a_handle_must_be_opened_and_can_be_opened_once(
    serve: StartServer, connect_client: ConnectClient
) -> None:
    """`Midrun` itself behaves in the same way."""
    server = await serve()
    mid = connect(server.url, token="x" * 20)
    with pytest.raises(Misconfigured, match="async with"):
        await mid.get("run_1")
    open_mid = await connect_client(server)
    with pytest.raises(Misconfigured, match="open already"):
        async with open_mid:
            pass


async def test_an_empty_task_is_refused_by_every_way_to_start_a_run(
    serve: StartServer, connect_client: ConnectClient, stage: ControllableTools
) -> None:
    """It is refused before anything is sent or stored."""
    agent = stage.agent("Done.")
    server = await serve(agent)
    mid = await connect_client(server)
    for task in ("", " \n"):
        for start in (server.mid.start, mid.start):
            with pytest.raises(Misconfigured, match="task must not be empty"):
                await start("actor", task)
        with pytest.raises(Misconfigured, match="task must not be empty"):
            await agent.run(task)
    assert (await mid.runs()).items == ()


async def test_a_client_cannot_act_as_another_actor(
    serve: StartServer, connect_client: ConnectClient, stage: ControllableTools
) -> None:
    """The journal names the actor, and over HTTP the token decides who that is."""
    server = await serve(stage.agent(Use("slow", name="a"), "Done."))
    mid = await connect_client(server, name="ann")
    run = await mid.start("actor", "go", actor="ann")
    await stage.start("a").wait()
    for call in (run.pause, run.cancel, run.take_over, run.fork):
        with pytest.raises(Misconfigured, match="ann"):
            await call(actor="bob")
    with pytest.raises(Misconfigured, match="ann"):
        await mid.start("actor", "go", actor="bob")
    assert (await run.view()).phase == "running"
    assert (await run.say("Hello?", actor="ann")).by == "ann"


async def test_the_server_enforces_the_role_of_the_client(
    serve: StartServer, connect_client: ConnectClient, stage: ControllableTools
) -> None:
    """For a user, runs of others do not exist; a viewer can only read."""
    server = await serve(stage.agent(Use("slow", name="a"), "Done."))
    ann, bob, vera = [
        await connect_client(server, name=name) for name in ("ann", "bob", "vera")
    ]
    run = await ann.start("actor", "go")
    await stage.start("a").wait()
    with pytest.raises(RunNotFound):
        await bob.get(run.id)
    assert (await bob.runs()).items == ()
    viewed = await vera.get(run.id)
    with pytest.raises(ServerRefused) as refused:
        await viewed.pause()
    assert (refused.value.status, refused.value.problem) == (403, "not_allowed")
    with pytest.raises(ServerRefused):
        await ann.halt("because", actor=None)
    with pytest.raises(ServerRefused):
        await ann.start("actor", "go", stop=MaxSteps(3))


async def test_a_stop_condition_that_names_code_is_refused(
    serve: StartServer, connect_client: ConnectClient, stage: ControllableTools
) -> None:
    """A condition that is data is sent to the server; one that would import code is not."""
    server = await serve(stage.agent("Done."))
    mid = await connect_client(server)
    run = await mid.start("actor", "go", stop=MaxSteps(3) | MaxSteps(5))
    assert (await run.view()).stop == str(MaxSteps(3) | MaxSteps(5))
    with pytest.raises(Misconfigured, match="names code"):
        await mid.start("actor", "go", stop=MaxSteps(3) | Custom("os:abort"))


async def test_a_client_passes_a_signed_checkpoint_to_another_server(
    serve: StartServer, connect_client: ConnectClient
) -> None:
    """The client needs no key; the server that resumes the checkpoint checks the signature."""

    @tool(approve=True)
    async def send(to: str) -> str:
        """Send a letter."""
        return f"sent to {to}"

    model = ScriptedModel([Use("send", to="a"), "Done."])
    server = await serve(Agent("clerk", model=model, tools=[send]))
    mid = await connect_client(server)
    other = Midrun("memory://", agents=[Agent("clerk", model=model, tools=[send])], key=KEY)
    async with other:
        elsewhere = await other.start("clerk", "go")
        await elsewhere.until("waiting")
        checkpoint = await elsewhere.checkpoint()
    run = await mid.resume(checkpoint, answer=True)
    assert run.id == elsewhere.id
    assert (await run.until("terminal")).phase == "completed"


async def test_a_checkpoint_with_a_child_run_continues_on_another_server(
    stack: AsyncExitStack,
    serve: StartServer,
    connect_client: ConnectClient,
    stage: ControllableTools,
    tmp_path: Path,
) -> None:
    """Completed calls of the child run are not repeated, and the answer reaches it."""
    child_script: list[Line] = [
        Use("quick", name="paid"),
        Use("ask_human", question="Ok?"),
        "Done.",
    ]
    tools = [ask_human, *stage.tools()]
    child = Agent("aide", model=ScriptedModel(child_script), tools=tools)
    parent_script: list[Line] = [Use("aide", task="Do"), "All done."]
    agent = Agent("parent", model=ScriptedModel(parent_script), tools=[child.as_tool()])
    first = await connect_client(await serve(agent))
    paused = await (await first.start("parent", "go")).result()
    assert isinstance(paused, Paused)
    assert len(paused.checkpoint.children) == 1
    start_second_server = make_server_starter(
        stack, f"sqlite:///{tmp_path / 'other.db'}", ["127.0.0.1"]
    )
    second = await connect_client(await start_second_server(agent))
    outcome = await (await second.resume(paused.checkpoint, "yes")).result()
    assert isinstance(outcome, Completed)
    assert stage.completed == ["paid"]


# ── the contract of the handles ──────────────────────────────────────────────


class TestInProcess(RunSuite):
    @pytest.fixture
    def opened(self, stack: AsyncExitStack, tmp_path: Path) -> OpenHandle:
        """Return a function that opens a `Midrun`; every journal is verified at the end."""
        address = f"sqlite:///{tmp_path / 'runs.db'}"

        async def open_midrun(*agents: Agent) -> AnyMidrun:
            outside = Environment(lease=timedelta(seconds=30))
            mid = Midrun(address, agents=agents, outside=outside)
            await stack.enter_async_context(mid)
            stack.push_async_callback(verify_all_journals, mid)
            return mid

        return open_midrun


class TestOverHttp(RunSuite):
    checkpoint_key: ClassVar[bytes | None] = KEY

    @pytest.fixture
    def opened(self, serve: StartServer, connect_client: ConnectClient) -> OpenHandle:
        """Return a function that serves agents and connects to the server as Olga."""

        async def open_midrun(*agents: Agent) -> AnyMidrun:
            return await connect_client(await serve(*agents))

        return open_midrun
