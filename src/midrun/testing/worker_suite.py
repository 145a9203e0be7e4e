"""The contract of an engine as tests: each run is driven, by one process, and handed over.

    class TestMyEngine(EngineSuite):
        @pytest.fixture
        async def opened(self) -> AsyncIterator[OpenMidrun]:
            async with AsyncExitStack() as stack:
                async def open_one(*agents: Agent) -> Midrun: ...
                yield open_one

Each call of `opened` opens another `Midrun` on the same store, as another process would.
Without agents it drives nothing, and only reads and controls. It returns a context manager, so
that a test can close one of them.
"""

from contextlib import AbstractAsyncContextManager
from typing import Protocol

import anyio

from midrun.agents.agent import Agent
from midrun.agents.builtin_tools import ask_human
from midrun.agents.tool import Tool, tool
from midrun.models.scripted import ScriptedModel, Use
from midrun.runs.midrun import Midrun


class OpenMidrun(Protocol):
    """Opens a `Midrun` on the store of one test."""

    def __call__(self, *agents: Agent) -> AbstractAsyncContextManager[Midrun]: ...


class GatedTool:
    """A tool that waits until the test opens it, and a record of its calls."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.call_started = anyio.Event()
        self.may_continue = anyio.Event()

    def make_tool(self) -> Tool:
        """Return the tool."""

        async def wait(name: str) -> str:
            """Wait."""
            self.called.append(name)
            self.call_started.set()
            await self.may_continue.wait()
            return name

        return tool(wait, read_only=True)

    def make_agent(self, *turns: str | Use, name: str = "waiter") -> Agent:
        """Return an agent with this tool."""
        model = ScriptedModel(list(turns))
        return Agent(name, model=model, tools=[self.make_tool(), ask_human])


class EngineSuite:
    """The contract of an engine, wherever it drives its runs."""

    async def test_a_run_is_driven_to_its_end(self, opened: OpenMidrun) -> None:
        agent = GatedTool().make_agent("Done.")
        async with opened(agent) as midrun:
            run = await midrun.start("waiter", "Go.")
            assert (await run.until("completed")).output == "Done."

    async def test_what_one_process_resumes_another_drives(self, opened: OpenMidrun) -> None:
        agent = GatedTool().make_agent(Use("ask_human", question="Which?"), "So be it.")
        async with opened(agent) as works, opened() as looks:
            run = await works.start("waiter", "Go.")
            await run.until("waiting")
            await (await looks.get(run.id)).answer("this")
            assert (await run.until("completed")).output == "So be it."

    async def test_a_run_at_rest_has_no_holder(self, opened: OpenMidrun) -> None:
        agent = GatedTool().make_agent(Use("ask_human", question="Which?"), "So be it.")
        async with opened(agent) as midrun:
            run = await midrun.start("waiter", "Go.")
            await run.until("waiting")
            assert not (await midrun.store.get_row(run.id)).holder

    async def test_a_pause_from_elsewhere_reaches_the_call(self, opened: OpenMidrun) -> None:
        gate = GatedTool()
        async with (
            opened(gate.make_agent(Use("wait", name="x"), "Done.")) as works,
            opened() as looks,
        ):
            run = await works.start("waiter", "Go.")
            await gate.call_started.wait()
            there = await looks.get(run.id)
            await there.pause(now=True)
            await there.until("paused")
            gate.may_continue.set()
            await there.resume()
            assert (await there.until("completed")).output == "Done."

    async def test_several_processes_drive_each_run_once(self, opened: OpenMidrun) -> None:
        gates = [GatedTool(), GatedTool()]
        for gate in gates:
            gate.may_continue.set()
        first, second = (gate.make_agent(Use("wait", name="x"), "Done.") for gate in gates)
        async with opened(first) as one, opened(second):
            runs = [await one.start("waiter", f"Go {n}.") for n in range(8)]
            for run in runs:
                await run.until("completed")
        # Each run was started once; which of the two processes took it is left to them.
        assert len([*gates[0].called, *gates[1].called]) == len(runs)

    async def test_a_process_that_leaves_hands_its_runs_to_another(
        self, opened: OpenMidrun
    ) -> None:
        gate, other = GatedTool(), GatedTool()
        other.may_continue.set()
        async with opened(gate.make_agent(Use("wait", name="x"), "Done.")) as leaves:
            run = await leaves.start("waiter", "Go.")
            await gate.call_started.wait()
        async with opened(other.make_agent(Use("wait", name="x"), "Done.")) as stays:
            there = await stays.get(run.id)
            assert (await there.until("completed")).output == "Done."
            kinds = [item.kind async for item in there.feed()]
        # Leaving a process is not a pause: the run is handed over, and continues by itself.
        assert "PauseRequested" not in kinds
        assert "LeaseReleased" in kinds

    async def test_a_run_of_an_unknown_agent_waits(self, opened: OpenMidrun) -> None:
        known, later = (
            GatedTool().make_agent("Done."),
            GatedTool().make_agent("Late.", "Later.", name="later"),
        )
        async with opened(known, later) as both:
            run = await both.start("later", "Go.")
            await run.until("completed")
        async with opened(known) as one:
            queued = await one.get(run.id)
            forked = await queued.fork(instruction="Once more.")
            assert (await forked.view()).phase == "queued"
            async with opened(later) as knows:
                assert (await (await knows.get(forked.id)).until("completed")).output

    async def test_a_halt_stops_placed_runs_until_it_is_lifted(
        self, opened: OpenMidrun
    ) -> None:
        gate = GatedTool()
        async with opened(gate.make_agent(Use("wait", name="x"), "Done.")) as midrun:
            run = await midrun.start("waiter", "Go.")
            await gate.call_started.wait()
            await midrun.halt("Stop.", actor="operator:olga")
            await run.until("halted")
            gate.may_continue.set()
            await midrun.lift(actor="operator:olga")
            assert (await run.until("completed")).output == "Done."
