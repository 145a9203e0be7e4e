"""Scheduled messages: a system sends a message to a run, now or at a later time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio

from midrun import Agent, Midrun
from midrun.core.entries import FramePushed, MessageClosed, MessageDue, MessageReceived
from midrun.models import Use
from midrun.ports.environment import Environment
from tests.scenarios.conversation.toolkit import HOUR, ApprovalToolkit
from tests.support.clocks import YEAR_LEASE, ManualClock
from tests.support.run_journal import read_entries, read_turns, wait_for_entry
from tests.support.store_choice import get_store_url
from tests.unit.runs.conftest import verify_journals

SYSTEM = "system:cron"


@asynccontextmanager
async def open_midrun(path: Path, clock: ManualClock, *agents: Agent) -> AsyncIterator[Midrun]:
    """Open a `Midrun` with a clock that the test moves; verify its journals at the end."""
    outside = Environment(clock=clock, lease=YEAR_LEASE)
    with anyio.fail_after(60):
        async with Midrun(get_store_url(path), agents=agents, outside=outside) as midrun:
            yield midrun
        await verify_journals(path)


def time_from_now(clock: ManualClock, by: timedelta = HOUR) -> datetime:
    """Return the time of the clock plus `by`."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=clock.now) + by


async def test_a_scheduled_message_wakes_a_waiting_run_at_its_time(path: Path) -> None:
    """The run answers it, and waits again."""
    toolkit, clock = ApprovalToolkit(), ManualClock()
    agent = toolkit.agent(Use("ask_human", question="Which?"), "Noted.", "Red it is.")
    async with open_midrun(path, clock, agent) as midrun:
        run = await midrun.start("actor", "go")
        await run.until("waiting")
        receipt = await run.say("The shop closes.", at=time_from_now(clock), actor=SYSTEM)
        assert (receipt.applied, receipt.phase) == (False, "waiting")
        assert not await read_entries(run, FramePushed)
        clock.advance(2 * HOUR)
        woken = await wait_for_entry(run, MessageDue)
        assert woken.by == "system:clock"
        while (view := await run.until("waiting")).frames or view.step < 2:
            pass
        assert [ask.question for ask in view.asks] == ["Which?"]
        (note,) = [turn for turn in await read_turns(run) if turn.text == "The shop closes."]
        assert (note.role, note.by) == ("user", SYSTEM)
        await run.answer("red")
        assert (await run.until("completed")).output.endswith("Red it is.")


async def test_a_scheduled_message_reaches_a_running_run_at_its_time(path: Path) -> None:
    toolkit, clock = ApprovalToolkit(), ManualClock()
    agent = toolkit.agent(Use("slow", name="x"), "Noted.", "Done.", "Looked.")
    async with open_midrun(path, clock, agent) as midrun:
        run = await midrun.start("actor", "go")
        await toolkit.start("x").wait()
        await run.say("The shop closes.", at=time_from_now(clock), actor=SYSTEM)
        clock.advance(2 * HOUR)
        # This message wakes the run loop, which then reads the clock.
        await run.say("Look at the clock", urgency="later")
        await wait_for_entry(run, MessageDue)
        toolkit.gate("x").set()
        await run.until("completed")
        assert "The shop closes." in [turn.text for turn in await read_turns(run)]


async def test_a_scheduled_message_does_not_resume_a_paused_run(path: Path) -> None:
    """It becomes due, and is delivered after the resume."""
    toolkit, clock = ApprovalToolkit(), ManualClock()
    agent = toolkit.agent(Use("slow", name="x"), "Noted.", "Done.")
    async with open_midrun(path, clock, agent) as midrun:
        run = await midrun.start("actor", "go")
        await toolkit.start("x").wait()
        await run.pause()
        toolkit.gate("x").set()
        await run.until("paused")
        await run.say("The shop closes.", at=time_from_now(clock), actor=SYSTEM)
        clock.advance(2 * HOUR)
        await wait_for_entry(run, MessageDue)
        assert (await run.view()).phase == "paused"
        await run.resume()
        await run.until("completed")
        assert "The shop closes." in [turn.text for turn in await read_turns(run)]


async def test_a_scheduled_message_that_is_not_due_is_returned_at_the_end(path: Path) -> None:
    """The run does not wait for it."""
    toolkit, clock = ApprovalToolkit(), ManualClock()
    agent = toolkit.agent(Use("slow", name="x"), "Done.")
    async with open_midrun(path, clock, agent) as midrun:
        run = await midrun.start("actor", "go")
        await toolkit.start("x").wait()
        await run.say("The shop closes.", at=time_from_now(clock), actor=SYSTEM)
        toolkit.gate("x").set()
        await run.until("completed")
        (closed,) = await read_entries(run, MessageClosed)
        assert (closed.why, closed.text) == ("returned", "The shop closes.")


async def test_a_scheduled_message_can_be_withdrawn_before_its_time(path: Path) -> None:
    toolkit, clock = ApprovalToolkit(), ManualClock()
    agent = toolkit.agent(Use("ask_human", question="Which?"), "Red it is.")
    async with open_midrun(path, clock, agent) as midrun:
        run = await midrun.start("actor", "go")
        await run.until("waiting")
        receipt = await run.say("The shop closes.", at=time_from_now(clock), actor=SYSTEM)
        await run.withdraw(receipt.seq)
        clock.advance(2 * HOUR)
        await run.answer("red")
        await run.until("completed")
        assert not await read_entries(run, MessageDue)


async def test_a_message_with_a_time_in_the_past_is_delivered_at_once(path: Path) -> None:
    toolkit, clock = ApprovalToolkit(), ManualClock()
    agent = toolkit.agent(Use("slow", name="x"), "Noted.", "Done.")
    async with open_midrun(path, clock, agent) as midrun:
        run = await midrun.start("actor", "go")
        await toolkit.start("x").wait()
        await run.say("It closed.", at=time_from_now(clock, -HOUR), actor=SYSTEM)
        toolkit.gate("x").set()
        await run.until("completed")
        (received,) = await read_entries(run, MessageReceived)
        assert received.due is None
        assert (received.by, received.role) == (SYSTEM, "system")
        assert "It closed." in [turn.text for turn in await read_turns(run)]


async def test_scheduled_messages_are_delivered_in_the_order_of_their_times(path: Path) -> None:
    toolkit, clock = ApprovalToolkit(), ManualClock()
    agent = toolkit.agent(Use("ask_human", question="Which?"), "One.", "Two.", "Red it is.")
    async with open_midrun(path, clock, agent) as midrun:
        run = await midrun.start("actor", "go")
        await run.until("waiting")
        await run.say("second", at=time_from_now(clock, 3 * HOUR), actor=SYSTEM)
        await run.say("first", at=time_from_now(clock, HOUR), actor=SYSTEM)
        clock.advance(2 * HOUR)
        await wait_for_entry(run, MessageDue)
        clock.advance(2 * HOUR)
        await wait_for_entry(run, MessageDue, count=2)
        while (view := await run.until("waiting")).pending or view.frames:
            pass
        texts = [turn.text for turn in await read_turns(run) if turn.by == SYSTEM]
        assert texts == ["first", "second"]


async def test_a_message_that_another_process_scheduled_wakes_the_run(path: Path) -> None:
    """The time is in the store, so the next worker of the run delivers the message."""
    toolkit, clock = ApprovalToolkit(), ManualClock()
    script = (Use("ask_human", question="Which?"), "Noted.", "Red it is.")
    async with open_midrun(path, clock, toolkit.agent(*script)) as first:
        run = await first.start("actor", "go")
        await run.until("waiting")
    async with open_midrun(path, clock) as second:
        await (await second.get(run.id)).say(
            "The shop closes.", at=time_from_now(clock), actor=SYSTEM
        )
    clock.advance(2 * HOUR)
    async with open_midrun(path, clock, toolkit.agent(*script)) as third:
        run = await third.get(run.id)
        await wait_for_entry(run, MessageDue)
        while (view := await run.until("waiting")).frames or view.step < 2:
            pass
        assert len(view.asks) == 1
