"""The quick-start agent of the OpenAI Agents SDK, unmodified, gets every control."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Unpack

import anyio
import pytest

from midrun import Call, Cancelled, Midrun, host, traits
from midrun.agents.tool import ToolOptions
from midrun.core.ids import Micros
from midrun.core.values import Json
from midrun.hosts.hosted_agent import HostedAgent
from midrun.ports.environment import Environment, read_wall_clock
from midrun.stops import MaxSteps
from tests.support.paths import ROOT
from tests.support.providers import Answer, Gate, Provider, Text
from tests.support.providers import Call as ModelCall
from tests.support.store_choice import get_store_url
from tests.unit.hosts import openai_quick_start

TASK = "Tell me something surprising about ancient life on Earth."
HALF = "Sharks are"
WORDS = "Only one sentence."


def read_clock_ahead() -> Micros:
    """Return a time at which the lease of the killed process has ended."""
    return Micros(read_wall_clock() + timedelta(hours=1) // timedelta(microseconds=1))


def host_tutor(**declared: Unpack[ToolOptions]) -> HostedAgent:
    """Host the agent with these traits of its tool."""
    tools = {"history_fun_fact": traits(**declared)}
    return host(openai_quick_start.agent, tools=tools, stop=MaxSteps(3))


async def drive_until_killed(store: str) -> None:
    """Start a run and drive it; the test kills this process."""
    tutor = host_tutor()
    async with Midrun(store, agents=[tutor]) as midrun:
        await (await midrun.start(tutor, TASK)).result()


@contextmanager
def kill_at_end(store: str) -> Iterator[None]:
    """Drive a run in another process; kill it with SIGKILL at the end."""
    command = [sys.executable, "-m", __name__, store]
    with subprocess.Popen(command, cwd=ROOT) as process:  # noqa: S603 - this module
        try:
            yield
        finally:
            process.kill()


@pytest.mark.slow
async def test_the_agent_of_the_quick_start_gets_every_control(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed, taken over, approved, paused, resumed with words, capped, cancelled, undone."""
    store, forgotten = get_store_url(store_path), list[tuple[str, Json]]()

    async def forget(call: Call, args: dict[str, Json], result: Json) -> None:
        forgotten.append((call.original, result))
        assert args == {}

    gates = [Gate(after=1), Gate(after=1)]
    held = [Answer(Text(HALF, " older than trees."), fault=gate) for gate in gates]
    fact = Answer(ModelCall("history_fun_fact", "{}"))
    environment = Environment(clock=read_clock_ahead)
    async with Provider(held[0], fact, held[1], fact) as provider:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{provider.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        with kill_at_end(store):
            await gates[0].wait_until_reached()
        tutor = host_tutor(approve=True, undo=forget)
        async with Midrun(store, agents=[tutor], outside=environment) as midrun:
            run = await midrun.get((await midrun.runs()).items[0].run_id)
            await run.until("waiting")
            await run.approve(actor="ada")
            await gates[1].wait_until_reached()
            await run.pause(actor="ada")
            await run.until("paused")
            await provider.wait_for_disconnect(2)
        tutor = host_tutor(approve=True, undo=forget)
        async with Midrun(store, agents=[tutor], outside=environment) as midrun:
            run = await midrun.get(run.id)
            await run.resume(WORDS, actor="ada")
            await run.until("waiting")
            await run.approve(actor="ada")
            assert (await run.until("paused")).reason == "cap"
            await run.cancel(undo="all", actor="ada")
            assert isinstance(await run.result(), Cancelled)
            assert await midrun.verify(run.id)
        last = str(provider.exchanges[3].body)
    assert (HALF in last, WORDS in last, "Sharks are older than trees." in last) == (
        True,
        True,
        True,
    )
    assert [result for _, result in forgotten] == ["Sharks are older than trees."] * 2


if __name__ == "__main__":
    anyio.run(drive_until_killed, sys.argv[1])
