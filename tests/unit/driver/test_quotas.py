"""The run loop compares quotas: a store that cannot tell, and a fence meanwhile."""

from contextlib import nullcontext
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from midrun import Agent, File, tool
from midrun.core.driver_inputs import CloseCall
from midrun.core.entries import CallDone
from midrun.core.ids import RunId
from midrun.core.values import Phase
from midrun.errors import StoreBusy, StoreDamaged, StoreError
from midrun.models import ScriptedModel, Use
from midrun.ports.store import OwnerUsage
from midrun.workers import quotas
from tests.unit.driver.driver_context import SHORT_GRACE, DispatcherTest, DriverParts


@pytest.mark.parametrize(
    ("error", "phase"),
    [
        (StoreBusy("memory", 1.0), Phase.COMPLETED),
        (StoreDamaged("memory", "a torn page"), None),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_loop_that_cannot_compare_quotas_waits_only_for_a_store_that_is_away(
    parts: DriverParts,
    monkeypatch: pytest.MonkeyPatch,
    error: StoreError,
    phase: Phase | None,
) -> None:
    """Another error ends the loop, as it does in an append; the worker reports it."""
    errors, get_usage = [error], parts.store.get_usage

    async def get_usage_or_fail(owner: str, **options: Any) -> OwnerUsage:  # type: ignore[explicit-any]  # noqa: ANN401 - as they are
        if errors:
            raise errors.pop()
        return await get_usage(owner, **options)

    monkeypatch.setattr(parts.store, "get_usage", get_usage_or_fail)
    parts.set_quotas("tenant.tokens_per_day=9999")
    loop = await parts.create_loop(Agent("actor", model=ScriptedModel(["Done."])))
    with nullcontext() if phase else pytest.raises(type(error)):
        await loop.run()
    assert not errors
    assert loop.state.phase is (phase or Phase.QUEUED)


async def test_a_call_keeps_its_outcome_if_the_store_cannot_tell_the_size_of_its_runs(
    parts: DriverParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has taken effect. As unknown it would be put to a person."""

    async def refuse(_: str, **__: object) -> OwnerUsage:
        await checkpoint()
        raise StoreBusy("memory", 1.0)

    @tool
    async def draw() -> File:
        return File("a.png", "image/png", b"PNG")

    monkeypatch.setattr(parts.store, "get_usage", refuse)
    parts.set_quotas("tenant.stored_bytes=9999")
    model = ScriptedModel([Use("draw"), "Done."])
    loop = await parts.create_loop(Agent("actor", model=model, tools=[draw]))
    await loop.run()
    assert [done.call for done in await parts.find_entries(CallDone)] == ["c1", "c2", "c3"]


async def test_a_call_that_is_stopped_while_its_files_are_compared_keeps_its_outcome(
    parts: DriverParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has taken effect, and the store takes longer than the grace of the call."""
    reached, allowed = anyio.Event(), anyio.Event()

    async def wait(_: str, **__: object) -> OwnerUsage:
        reached.set()
        await allowed.wait()
        return OwnerUsage()

    @tool
    async def draw() -> File:
        return File("a.png", "image/png", b"PNG")

    monkeypatch.setattr(parts.store, "get_usage", wait)
    parts.set_quotas("tenant.stored_bytes=9999")
    await parts.heartbeat.ensure_fresh()
    agent = Agent("actor", model=ScriptedModel([]), tools=[draw], grace=SHORT_GRACE)
    test = DispatcherTest(parts, agent)
    test.start_tools(Use("draw"))
    await reached.wait()
    test.abort("cancelled")
    (closed,) = await test.wait_for_inputs()
    allowed.set()
    assert isinstance(closed, CloseCall)
    assert isinstance(closed.outcome, CallDone)
    assert [file.name for file in closed.outcome.files] == ["a.png"]


async def test_the_last_call_of_a_run_counts_while_a_slow_measurement_is_used_again(
    parts: DriverParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with one call compares only before it; many such runs would have no bound."""
    monkeypatch.setattr(quotas, "QUICK_MEASURE_S", 0.0)
    monkeypatch.setattr(quotas, "MEASURE_COST_SHARE", 1e-9)
    parts.set_quotas("tenant.tokens_per_day=1")
    agent = Agent("actor", model=ScriptedModel(["Done.", "Done."]))
    phases = []
    for run in ("run_1", "run_2"):
        loop = await parts.create_loop(agent, RunId(run))
        await loop.run()
        phases.append(loop.state.phase)
    assert phases == [Phase.COMPLETED, Phase.PAUSED]


async def test_a_loop_that_is_fenced_while_it_compares_quotas_appends_nothing(
    parts: DriverParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    get_usage = parts.store.get_usage

    async def get_usage_after_fence(owner: str, **options: Any) -> OwnerUsage:  # type: ignore[explicit-any]  # noqa: ANN401 - as they are
        loop.fence()
        return await get_usage(owner, **options)

    monkeypatch.setattr(parts.store, "get_usage", get_usage_after_fence)
    parts.set_quotas("tenant.tokens_per_day=9999")
    loop = await parts.create_loop(Agent("actor", model=ScriptedModel(["Done."])))
    await loop.run()
    assert await parts.read_kinds() == ["RunStarted"]
