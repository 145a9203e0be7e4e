"""Late results of the dispatcher: a call that was done after the journal had closed it."""

from midrun import tool
from midrun.core.entries import LateResult
from midrun.errors import StoreBusy
from midrun.models import Use
from midrun.testing.controllable_tools import ControllableTools
from tests.unit.driver.driver_context import (
    CALL,
    SHORT_GRACE,
    Dispatch,
    DispatcherTest,
    DriverParts,
    UnstoppableTool,
    let_others_run,
    make_agent,
    open_driver_parts,
    raise_error,
    wait_until,
)


async def test_the_result_of_an_abandoned_call_is_recorded_as_late(
    parts: DriverParts, dispatch: Dispatch
) -> None:
    """Only once the journal has the call closed, and however often the store is busy."""
    stubborn = UnstoppableTool()
    test = dispatch(make_agent(stubborn.tool, grace=SHORT_GRACE))
    test.start_tools(Use("unstoppable"))
    await parts.store_journal(test.scenario)
    await stubborn.called.wait()
    test.abort("cancelled")
    await test.wait_for_inputs()
    stubborn.gate.set()
    await let_others_run()
    assert await parts.find_entries(LateResult) == []
    parts.store.before(LateResult, raise_error(StoreBusy("memory", 1.0)))
    await parts.take_lease_elsewhere()
    late = await parts.wait_for_entry(LateResult)
    assert (late.call, late.epoch, late.result) == (CALL, 1, "done after all")


async def test_a_result_that_was_not_journaled_before_the_lease_was_lost_is_late(
    parts: DriverParts, tools: ControllableTools, dispatch: Dispatch
) -> None:
    test = dispatch(make_agent(*tools.tools()))
    test.start_tools(Use("quick", name="a"))
    await parts.store_journal(test.scenario)
    await test.wait_for_inputs()
    test.dispatcher.close()
    await parts.take_lease_elsewhere()
    assert (await parts.wait_for_entry(LateResult)).result == "a done"


async def test_only_the_late_result_of_a_call_that_was_done_is_recorded(
    parts: DriverParts, tools: ControllableTools, dispatch: Dispatch
) -> None:
    """A late failure or abort does not tell whether the call took effect."""

    @tool
    async def book() -> str:
        raise ValueError("no such hotel")

    test = dispatch(make_agent(book, *tools.tools()))
    test.start_tools(Use("book"), Use("slow", name="a"))
    await parts.store_journal(test.scenario)
    await tools.start("a").wait()
    await test.wait_for_inputs()
    await parts.take_lease_elsewhere()
    test.dispatcher.close()
    await wait_until(lambda: tools.stopped == ["a"])
    await let_others_run()
    assert await parts.find_entries(LateResult) == []


async def test_a_worker_that_shuts_down_records_a_late_result_at_once() -> None:
    """It cannot wait until another worker has closed the call."""
    async with open_driver_parts() as parts:
        await parts.heartbeat.ensure_fresh()
        stubborn = UnstoppableTool()
        test = DispatcherTest(parts, make_agent(stubborn.tool, grace=SHORT_GRACE))
        test.start_tools(Use("unstoppable"))
        await parts.store_journal(test.scenario)
        await stubborn.called.wait()
        test.abort("cancelled")
        await test.wait_for_inputs()
        stubborn.gate.set()
        await let_others_run()
        assert await parts.find_entries(LateResult) == []
    assert (await parts.wait_for_entry(LateResult)).result == "done after all"


async def test_a_late_reply_of_a_model_is_not_recorded(
    parts: DriverParts, dispatch: Dispatch
) -> None:
    """It has no effect to report; the next worker calls the model again."""
    test = dispatch(make_agent())
    test.start_model()
    await parts.store_journal(test.scenario)
    await test.wait_for_inputs()
    await parts.take_lease_elsewhere()
    before = await parts.read_entries()
    test.dispatcher.close()
    await let_others_run()
    assert await parts.read_entries() == before
