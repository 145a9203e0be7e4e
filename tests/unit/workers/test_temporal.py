"""Temporal keeps the engine's contract, against its real server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from temporalio.client import Client

from midrun import Agent, Midrun
from midrun.models import Use
from midrun.ports.environment import Environment
from midrun.testing.postgres import Postgres
from midrun.testing.temporal import TemporalServer
from midrun.testing.worker_suite import EngineSuite, GatedTool, OpenMidrun
from midrun.workers.temporal import Temporal
from tests.crash.facts import becomes

pytestmark = [pytest.mark.once, pytest.mark.slow]


@pytest.fixture
async def opened(
    server: TemporalServer, postgres: Postgres, tmp_path: Path
) -> AsyncIterator[OpenMidrun]:
    """Give what opens a `Midrun` on one Postgres, with runs placed by Temporal."""
    address = postgres.url()

    @asynccontextmanager
    async def open_one(*agents: Agent) -> AsyncIterator[Midrun]:
        outside = Environment(lease=timedelta(seconds=30))
        engine = Temporal(server.address, queue=tmp_path.name)
        async with Midrun(address, agents=agents, outside=outside, engine=engine) as midrun:
            yield midrun

    with anyio.fail_after(120):
        yield open_one


class TestTemporal(EngineSuite):
    """All of it; `opened` is the module's."""


async def test_a_run_that_rests_costs_temporal_a_closed_workflow(
    opened: OpenMidrun, server: TemporalServer
) -> None:
    """Parked for a year, it is rows in Postgres."""
    agent = GatedTool().make_agent(Use("ask_human", question="Which?"), "So be it.")
    async with opened(agent) as midrun:
        run = await midrun.start("waiter", "Go.")
        await run.until("waiting")
        client = await Client.connect(server.address)
        await client.get_workflow_handle(f"midrun:{run.id}").result()
        await run.answer("this")
        assert (await run.until("completed")).output == "So be it."


async def test_an_outage_of_temporal_disturbs_nothing_that_is_at_work(
    opened: OpenMidrun, server: TemporalServer
) -> None:
    """The lease is the store's, and so are controls; new runs wait, and are placed later."""
    gate = GatedTool()
    async with opened(gate.make_agent(Use("wait", name="x"), "Done.")) as midrun:
        run, busy = await midrun.start("waiter", "Go."), await midrun.start("waiter", "Go on.")
        await becomes(lambda: len(gate.called) == 2)
        server.kill()
        try:
            await run.pause(now=True)
            await run.until("paused")
            late = await midrun.start("waiter", "Go, too.")
            gate.may_continue.set()
            assert (await busy.until("completed")).output == "Done."
            assert (await late.view()).phase == "queued"
            await run.resume()
        finally:
            server.start()
        assert (await run.until("completed")).output == "Done."
        assert (await late.until("completed")).output == "Done."
        assert await midrun.verify(run.id)
