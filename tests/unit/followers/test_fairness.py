"""What a far end never takes does not hold up what it would."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from starlette.requests import Request
from starlette.responses import Response

from midrun import Midrun
from midrun.followers import following
from midrun.followers import worker as module
from midrun.followers.webhooks import Webhook
from tests.unit.followers.receiving import SECRET, FarEnd
from tests.unit.runs.stage import ControllableTools

FEW = 4
BAD = 3 * FEW


def refusing(there: FarEnd) -> Callable[[int], Response]:
    """Return the answers of a far end that takes nothing of runs whose task is bad."""

    def answer(number: int) -> Response:
        bad = "bad" in str(there.got[number - 1].data["task"])
        return Response(status_code=400 if bad else 204)

    return answer


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where many would hold up the others, a few do."""
    monkeypatch.setattr(module, "DELIVERY_QUEUE_MAX_RUNS", FEW)


async def test_runs_that_are_refused_do_not_hold_up_others(
    path: Path, there: FarEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many: those wait for their next attempt, and the others are told meanwhile."""
    monkeypatch.setattr(module, "RETRY_FIRST_DELAY_S", 3600.0)
    there.answer = refusing(there)
    agent = ControllableTools().agent("Done.")
    async with Midrun(f"sqlite:///{path}", agents=[agent]) as midrun:
        async with following(midrun, Webhook(there.url, secret=SECRET)):
            for _ in range(BAD):
                await (await midrun.start(agent, "bad")).until("completed")
            await there.hears(BAD)
            for number in range(FEW):
                run = await midrun.start(agent, "good")
                got = await there.hears(BAD + 1 + number)
                assert got[-1].data["run_id"] == run.id
        there.got.clear()
        # In a new process all of them are behind, and those that are refused are the oldest.
        run = await midrun.start(agent, "good")
        await run.until("completed")
        monkeypatch.setattr(module, "SCAN_INTERVAL_S", 0.05)
        async with following(midrun, Webhook(there.url, secret=SECRET)):
            while run.id not in {got.data["run_id"] for got in there.got}:
                await there.hears(len(there.got) + 1)


async def test_attempts_that_hang_do_not_hold_up_others(
    path: Path, there: FarEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A far end may take its time over what it has refused before."""
    monkeypatch.setattr(module, "FIRST_ATTEMPTS_MAX_CONCURRENT", 1)
    over, take = anyio.Event(), there.take
    tried: set[str] = set()
    hanging = 0

    async def taking(request: Request) -> Response:
        nonlocal hanging
        reply, got = await take(request), there.got[-1]
        if got.data["task"] == "bad" and str(got.data["run_id"]) in tried:
            hanging += 1
            await over.wait()
        tried.add(str(got.data["run_id"]))
        return reply

    there.answer = refusing(there)
    there.taking = taking
    agent = ControllableTools().agent("Done.")
    # None of the attempts that hang gives up, however long the test takes.
    webhook = Webhook(there.url, secret=SECRET, timeout=timedelta(hours=1))
    async with (
        Midrun(f"sqlite:///{path}", agents=[agent]) as midrun,
        following(midrun, webhook),
    ):
        for _ in range(BAD):
            await (await midrun.start(agent, "bad")).until("completed")
        while hanging < module.RETRIES_MAX_CONCURRENT or len(tried) < BAD:
            await there.hears(len(there.got) + 1)
        run = await midrun.start(agent, "good")
        while there.got[-1].data["run_id"] != run.id:
            await there.hears(len(there.got) + 1)
        assert hanging == module.RETRIES_MAX_CONCURRENT
        over.set()
