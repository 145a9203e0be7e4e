"""Notes from outside: what a system says to a run, now or at its time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio

from midrun import Agent, Midrun
from midrun.core.entries import FramePushed, MessageClosed, MessageDue, MessageReceived
from midrun.models import Use
from midrun.ports.environment import Environment
from tests.scenarios.conversation.workshop import Workshop
from tests.scenarios.promises.clocks import FAR, Hand
from tests.scenarios.promises.seen import entries, recorded, turns
from tests.support.store_choice import kept_at
from tests.unit.runs.conftest import verify_all

HOUR = timedelta(hours=1)
CRON = "system:cron"


@asynccontextmanager
async def at_hand(path: Path, clock: Hand, *agents: Agent) -> AsyncIterator[Midrun]:
    """Give a `Midrun` whose time a test moves; its journals are verified."""
    outside = Environment(clock=clock, lease=FAR)
    with anyio.fail_after(60):
        async with Midrun(kept_at(path), agents=agents, outside=outside) as midrun:
            yield midrun
        await verify_all(path)


def due(clock: Hand, by: timedelta = HOUR) -> datetime:
    """Return the time that is `by` from now."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=clock.now) + by


async def test_a_scheduled_note_wakes_a_run_that_waits_at_its_time(path: Path) -> None:
    """Not before; the run answers it, and waits again."""
    shop, clock = Workshop(), Hand()
    agent = shop.agent(Use("ask_human", question="Which?"), "Noted.", "Red it is.")
    async with at_hand(path, clock, agent) as midrun:
        run = await midrun.start("actor", "go")
        await run.until("waiting")
        receipt = await run.say("The shop closes.", at=due(clock), actor=CRON)
        assert (receipt.applied, receipt.phase) == (False, "waiting")
        assert not await entries(run, FramePushed)
        clock.move(2 * HOUR)
        woken = await recorded(run, MessageDue)
        assert woken.by == "system:clock"
        while (view := await run.until("waiting")).frames or view.step < 2:
            pass
        assert [ask.question for ask in view.asks] == ["Which?"]
        (note,) = [turn for turn in await turns(run) if turn.text == "The shop closes."]
        assert (note.role, note.by) == ("user", CRON)
        await run.answer("red")
        assert (await run.until("completed")).output.endswith("Red it is.")


async def test_a_scheduled_note_reaches_a_run_at_work_at_its_time(path: Path) -> None:
    """Between two steps, like any message."""
    shop, clock = Workshop(), Hand()
    agent = shop.agent(Use("slow", name="x"), "Noted.", "Done.", "Looked.")
    async with at_hand(path, clock, agent) as midrun:
        run = await midrun.start("actor", "go")
        await shop.start("x").wait()
        await run.say("The shop closes.", at=due(clock), actor=CRON)
        clock.move(2 * HOUR)
        await run.say("Look at the clock", urgency="later")  # whatever makes the drive look
        await recorded(run, MessageDue)
        shop.gate("x").set()
        await run.until("completed")
        assert "The shop closes." in [turn.text for turn in await turns(run)]


async def test_a_note_does_not_resume_a_paused_run(path: Path) -> None:
    """It is due, and waits for whoever resumes it."""
    shop, clock = Workshop(), Hand()
    agent = shop.agent(Use("slow", name="x"), "Noted.", "Done.")
    async with at_hand(path, clock, agent) as midrun:
        run = await midrun.start("actor", "go")
        await shop.start("x").wait()
        await run.pause()
        shop.gate("x").set()
        await run.until("paused")
        await run.say("The shop closes.", at=due(clock), actor=CRON)
        clock.move(2 * HOUR)
        await recorded(run, MessageDue)
        assert (await run.view()).phase == "paused"
        await run.resume()
        await run.until("completed")
        assert "The shop closes." in [turn.text for turn in await turns(run)]


async def test_a_note_whose_time_never_came_is_given_back_at_the_end(path: Path) -> None:
    """The run does not wait for it, and it does not vanish."""
    shop, clock = Workshop(), Hand()
    agent = shop.agent(Use("slow", name="x"), "Done.")
    async with at_hand(path, clock, agent) as midrun:
        run = await midrun.start("actor", "go")
        await shop.start("x").wait()
        await run.say("The shop closes.", at=due(clock), actor=CRON)
        shop.gate("x").set()
        await run.until("completed")
        (closed,) = await entries(run, MessageClosed)
        assert (closed.why, closed.text) == ("returned", "The shop closes.")


async def test_a_note_can_be_withdrawn_before_its_time(path: Path) -> None:
    """Then nobody is woken."""
    shop, clock = Workshop(), Hand()
    agent = shop.agent(Use("ask_human", question="Which?"), "Red it is.")
    async with at_hand(path, clock, agent) as midrun:
        run = await midrun.start("actor", "go")
        await run.until("waiting")
        receipt = await run.say("The shop closes.", at=due(clock), actor=CRON)
        await run.withdraw(receipt.seq)
        clock.move(2 * HOUR)
        await run.answer("red")
        await run.until("completed")
        assert not await entries(run, MessageDue)


async def test_a_note_in_the_past_counts_at_once(path: Path) -> None:
    """There is nothing to wait for."""
    shop, clock = Workshop(), Hand()
    agent = shop.agent(Use("slow", name="x"), "Noted.", "Done.")
    async with at_hand(path, clock, agent) as midrun:
        run = await midrun.start("actor", "go")
        await shop.start("x").wait()
        await run.say("It closed.", at=due(clock, -HOUR), actor=CRON)
        shop.gate("x").set()
        await run.until("completed")
        (received,) = await entries(run, MessageReceived)
        assert received.due is None
        assert (received.by, received.role) == (CRON, "system")
        assert "It closed." in [turn.text for turn in await turns(run)]


async def test_notes_come_in_the_order_of_their_times(path: Path) -> None:
    """However they were scheduled."""
    shop, clock = Workshop(), Hand()
    agent = shop.agent(Use("ask_human", question="Which?"), "One.", "Two.", "Red it is.")
    async with at_hand(path, clock, agent) as midrun:
        run = await midrun.start("actor", "go")
        await run.until("waiting")
        await run.say("second", at=due(clock, 3 * HOUR), actor=CRON)
        await run.say("first", at=due(clock, HOUR), actor=CRON)
        clock.move(2 * HOUR)
        await recorded(run, MessageDue)
        clock.move(2 * HOUR)
        await recorded(run, MessageDue, count=2)
        while (view := await run.until("waiting")).pending or view.frames:
            pass
        said = [turn.text for turn in await turns(run) if turn.by == CRON]
        assert said == ["first", "second"]


async def test_a_note_wakes_a_run_that_was_scheduled_in_another_process(path: Path) -> None:
    """The time is in the store: whoever drives the run next keeps it."""
    shop, clock = Workshop(), Hand()
    turns_ = (Use("ask_human", question="Which?"), "Noted.", "Red it is.")
    async with at_hand(path, clock, shop.agent(*turns_)) as first:
        run = await first.start("actor", "go")
        await run.until("waiting")
    async with at_hand(path, clock) as desk:
        await (await desk.get(run.id)).say("The shop closes.", at=due(clock), actor=CRON)
    clock.move(2 * HOUR)
    async with at_hand(path, clock, shop.agent(*turns_)) as third:
        run = await third.get(run.id)
        await recorded(run, MessageDue)
        while (view := await run.until("waiting")).frames or view.step < 2:
            pass
        assert len(view.asks) == 1
