"""Connecting: who one is there, what is missing here, and what the server does not allow."""

import subprocess
import sys

import pytest

from midrun import Agent, Midrun, connect, tool
from midrun.core.stops import Custom
from midrun.errors import Misconfigured, RunNotFound, ServerRefused
from midrun.models import ScriptedModel, Use
from midrun.stops import MaxSteps
from tests.unit.client.conftest import Connected, Serve
from tests.unit.runs.stage import ControllableTools
from tests.unit.server.conftest import KEY

WITHOUT = """
import sys
sys.modules["httpx2"] = None
import midrun
try:
    midrun.connect("http://127.0.0.1:1")
except midrun.Misconfigured as error:
    print(error)
"""


def test_a_missing_package_is_named() -> None:
    """With what to type, and only when somebody connects."""
    found = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", WITHOUT], check=True, capture_output=True, text=True
    )
    assert "midrun[client]" in found.stdout


async def test_a_token_that_is_none_is_refused_when_connecting(serve: Serve) -> None:
    """By name, and with what to do."""
    served = await serve()
    for token in (None, "not-a-token-of-anybody"):
        with pytest.raises(ServerRefused) as refused:
            async with connect(served.url, token=token):
                pass
        assert (refused.value.status, refused.value.problem) == (401, "unauthorized")
        assert "token=" in str(refused.value)


async def test_what_is_no_address_is_named() -> None:
    """A slip is found before anything is sent."""
    for url in ("http://[", "localhost:8700", ""):
        with pytest.raises(Exception, match=r"url|server") as found:
            async with connect(url, patience=0.1):
                pass
        assert found.value.__class__.__module__.startswith("midrun.")


async def test_a_handle_must_be_open_and_is_open_once(
    serve: Serve, connected: Connected
) -> None:
    """As with `Midrun` itself."""
    served = await serve()
    mid = connect(served.url, token="x" * 20)
    with pytest.raises(Misconfigured, match="async with"):
        await mid.get("run_1")
    opened = await connected(served)
    with pytest.raises(Misconfigured, match="open already"):
        async with opened:
            pass


async def test_a_task_that_says_nothing_is_none_wherever_it_is_started(
    serve: Serve, connected: Connected, stage: ControllableTools
) -> None:
    """By one rule, before anything is sent or stored."""
    agent = stage.agent("Done.")
    served = await serve(agent)
    mid = await connected(served)
    for task in ("", " \n"):
        for start in (served.mid.start, mid.start):
            with pytest.raises(Misconfigured, match="task must not be empty"):
                await start("actor", task)
        with pytest.raises(Misconfigured, match="task must not be empty"):
            await agent.run(task)
    assert (await mid.runs()).items == ()


async def test_nobody_speaks_for_somebody_else(
    serve: Serve, connected: Connected, stage: ControllableTools
) -> None:
    """The journal says who asked, and over HTTP the token says who that is."""
    served = await serve(stage.agent(Use("slow", name="a"), "Done."))
    mid = await connected(served, name="ann")
    run = await mid.start("actor", "go", actor="ann")
    await stage.start("a").wait()
    for call in (run.pause, run.cancel, run.take_over, run.fork):
        with pytest.raises(Misconfigured, match="ann"):
            await call(actor="bob")
    with pytest.raises(Misconfigured, match="ann"):
        await mid.start("actor", "go", actor="bob")
    assert (await run.view()).phase == "running"
    assert (await run.say("Hello?", actor="ann")).by == "ann"


async def test_what_a_role_may_not_do_is_refused_there(
    serve: Serve, connected: Connected, stage: ControllableTools
) -> None:
    """Runs of others do not exist for a user; a viewer only looks."""
    served = await serve(stage.agent(Use("slow", name="a"), "Done."))
    ann, bob, vera = [await connected(served, name=name) for name in ("ann", "bob", "vera")]
    run = await ann.start("actor", "go")
    await stage.start("a").wait()
    with pytest.raises(RunNotFound):
        await bob.get(run.id)
    assert (await bob.runs()).items == ()
    looked = await vera.get(run.id)
    with pytest.raises(ServerRefused) as refused:
        await looked.pause()
    assert (refused.value.status, refused.value.problem) == (403, "not_allowed")
    with pytest.raises(ServerRefused):
        await ann.halt("because", actor=None)
    with pytest.raises(ServerRefused):
        await ann.start("actor", "go", stop=MaxSteps(3))


async def test_a_condition_that_names_code_stays_with_the_server(
    serve: Serve, connected: Connected, stage: ControllableTools
) -> None:
    """A stop that is data is taken over; one that would import something is not."""
    served = await serve(stage.agent("Done."))
    mid = await connected(served)
    run = await mid.start("actor", "go", stop=MaxSteps(3) | MaxSteps(5))
    assert (await run.view()).stop == str(MaxSteps(3) | MaxSteps(5))
    with pytest.raises(Misconfigured, match="names code"):
        await mid.start("actor", "go", stop=MaxSteps(3) | Custom("os:abort"))


async def test_a_signed_checkpoint_goes_to_another_server_by_way_of_the_client(
    serve: Serve, connected: Connected
) -> None:
    """The client carries it and needs no key: whoever resumes it checks the signature."""

    @tool(approve=True)
    async def send(to: str) -> str:
        """Send a letter."""
        return f"sent to {to}"

    model = ScriptedModel([Use("send", to="a"), "Done."])
    served = await serve(Agent("clerk", model=model, tools=[send]))
    mid = await connected(served)
    other = Midrun("memory://", agents=[Agent("clerk", model=model, tools=[send])], key=KEY)
    async with other:
        elsewhere = await other.start("clerk", "go")
        await elsewhere.until("waiting")
        checkpoint = await elsewhere.checkpoint()
    run = await mid.resume(checkpoint, answer=True)
    assert run.id == elsewhere.id
    assert (await run.until("terminal")).phase == "completed"
