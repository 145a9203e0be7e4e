"""What a hostile reviewer found: each of these once broke a promise."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from midrun import (
    Agent,
    Call,
    Completed,
    ControlRefused,
    Failed,
    Midrun,
    Misconfigured,
    ask_human,
    pause_here,
    tool,
)
from midrun.core.entries import CallDone, CallSettled, RunStarted
from midrun.core.values import Reply, Spend
from midrun.driver.model_calls import REPLY_MAX_CALLS
from midrun.errors import OutcomeUnknown, StoreClosed
from midrun.models import ScriptedModel, Use
from midrun.ports.model import Finished, Piece, Prompt, Unpriced
from midrun.stops import Custom, MaxSteps, MaxTokens
from tests.scenarios.promises.seen import entries
from tests.support.hands import by_hand, replaced
from tests.support.store_choice import kept_at
from tests.unit.runs.conftest import Opener
from tests.unit.runs.stage import ControllableTools


class Said(Unpriced):
    """A model that streams what it is given."""

    name = "said"

    def __init__(self, *said: Piece | Finished) -> None:
        self.said = said
        self.calls = 0
        self.again = anyio.Event()

    @asynccontextmanager
    async def stream(self, _: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        self.calls += 1
        if self.calls > 1:
            self.again.set()

        async def pieces() -> AsyncIterator[Piece | Finished]:
            for one in self.said:
                yield one

        yield pieces()


async def test_a_result_that_is_too_long_is_done_and_said_in_words(opened: Opener) -> None:
    """It happened: the run goes on, and is not left between two entries for ever."""

    @tool
    async def read_log() -> str:
        """Return 5 MB of text, which is 10 MB as JSON."""
        return "\n" * 5_000_000

    model = ScriptedModel([Use("read_log"), "Done."])
    midrun = await opened(Agent("actor", model=model, tools=[read_log]))
    run = await midrun.start("actor", "go")
    assert isinstance(await run.result(), Completed)
    done = [entry for entry in await entries(run, CallDone) if entry.encoding_error]
    assert len(done) == 1


async def test_what_a_check_found_out_that_is_too_long_is_said_in_words(opened: Opener) -> None:
    """The call happened, and the run goes on: it is not stuck with what cannot be stored."""

    async def look(_: Call, __: object) -> str:
        return "\n" * 5_000_000

    @tool(check=look)
    async def act() -> str:
        """Act, and lose the answer."""
        raise OutcomeUnknown("the line was cut")

    midrun = await opened(Agent("a", model=ScriptedModel([Use("act"), "Done."]), tools=[act]))
    run = await midrun.start("a", "go")
    assert isinstance(await run.result(), Completed)
    (settled,) = await entries(run, CallSettled)
    assert settled.happened
    assert len(str(settled.result)) < 10_000


async def test_what_a_model_says_that_cannot_be_kept_fails_the_run_resumably(
    opened: Opener,
) -> None:
    """Half of an emoji, say; a cancel still ends it."""
    model = Said(Finished(reply=Reply(text="\ud83d")))
    midrun = await opened(Agent("actor", model=model))
    run = await midrun.start("actor", "go")
    assert isinstance(await run.result(), Failed)
    await run.cancel()
    await run.until("cancelled")


async def test_a_stream_that_just_ends_is_tried_again_with_patience(opened: Opener) -> None:
    """Not at once and for ever: each attempt costs money."""
    model = Said(Piece(kind="text", text="Hm"))
    midrun = await opened(Agent("actor", model=model))
    run = await midrun.start("actor", "go")
    await model.again.wait()
    await run.cancel()
    await run.until("cancelled")
    assert model.calls < 10


async def test_nobody_gives_money_back(opened: Opener) -> None:
    """A provider that reports less than nothing has not said what it used."""
    stage = ControllableTools()
    spent = Spend(tokens=-50)
    model = Said(Finished(reply=Reply(text="Hm", uses=()), spent=spent))
    midrun = await opened(Agent("actor", model=model, tools=stage.tools()))
    run = await midrun.start("actor", "go", stop=MaxTokens(10))
    await run.result()
    assert (await run.view()).usage.tokens >= 0


class Odd(BaseException):
    """What nobody expects from a tool."""


def asks_in_the_wrong_place(_: object) -> bool:
    """Ask a person where nobody can."""
    pause_here("May I?")


async def is_cancelled(_: object) -> bool:
    """Await something that others have cancelled."""
    raise asyncio.CancelledError


@pytest.mark.parametrize("stop", [asks_in_the_wrong_place, is_cancelled])
async def test_a_condition_that_raises_fails_its_run_and_no_other(
    opened: Opener, stop: object
) -> None:
    """Whatever it raises."""
    stage = ControllableTools()
    judged = Custom(stop)  # type: ignore[arg-type]  # it is one
    agent = stage.agent(Use("slow", name="a"), "Done.", stop=judged)
    midrun = await opened(agent)
    other = await midrun.start("actor", "other", stop=MaxSteps(9))
    await stage.start("a").wait()
    run = await midrun.start("actor", "go")
    assert isinstance(await run.result(), Failed)
    stage.gate("a").set()
    assert isinstance(await other.result(), Completed)


async def test_whatever_a_tool_raises_ends_its_call_and_nothing_else(opened: Opener) -> None:
    """Also what is no Exception, what looks like Ctrl-C and cannot be, and a misplaced ask."""

    @tool
    async def odd() -> None:
        """Raise what nobody expects."""
        raise Odd

    @tool(approve=asks_in_the_wrong_place)
    async def gated() -> None:
        """Be judged by a function that asks."""

    @tool(in_process=True)
    def pressed() -> None:
        """Raise, in a thread, what Ctrl-C raises in the main one."""
        raise KeyboardInterrupt

    model = ScriptedModel([[Use("odd"), Use("gated"), Use("pressed")], "Told so."])
    midrun = await opened(Agent("actor", model=model, tools=[odd, gated, pressed]))
    run = await midrun.start("actor", "go")
    assert isinstance(await run.result(), Completed)


async def test_a_hook_that_returns_a_coroutine_has_undone_nothing(opened: Opener) -> None:
    """The report must not say *undone* of what nobody awaited."""
    stage = ControllableTools()

    async def take_back() -> None:
        stage.undone.append("never")

    @tool(undo=lambda call, args, result: take_back())  # noqa: ARG005 - as it is called
    async def put(call: Call) -> str:
        """Put."""
        stage.start("put").set()
        await stage.gate("put").wait()
        return call.key

    model = ScriptedModel([Use("put")])
    midrun = await opened(Agent("actor", model=model, tools=[put]))
    run = await midrun.start("actor", "go")
    await stage.start("put").wait()
    await run.cancel()
    await run.until("cancelling", "cancelled")
    assert not (await run.report()).undone
    assert stage.undone == []


def test_a_timeout_for_what_blocks_a_thread_is_refused() -> None:
    """Nobody could keep it."""

    @tool(in_process=True, timeout=timedelta(seconds=1))
    def block() -> None:
        """Block."""

    with pytest.raises(Misconfigured, match="Cannot enforce the timeout"):
        Agent("actor", model=ScriptedModel(["x"]), tools=[block])


async def test_many_blocked_threads_hold_up_nobody_else(opened: Opener) -> None:
    """Neither the store nor other runs wait for them."""
    gate, stage = threading.Event(), ControllableTools()

    @tool(in_process=True)
    def block() -> None:
        """Block until the test says so."""
        gate.wait()

    blocked = Agent("blocked", model=ScriptedModel([Use("block"), "Ok."]), tools=[block])
    midrun = await opened(blocked, stage.agent(Use("quick", name="a"), "Done."))
    try:
        for n in range(45):
            await midrun.start("blocked", f"{n}")
        run = await midrun.start("actor", "go")
        assert isinstance(await run.result(), Completed)
        assert len((await midrun.runs(limit=100)).items) == 46
    finally:
        gate.set()


async def test_one_journal_that_cannot_be_read_is_nobody_elses_problem(
    opened: Opener, path: Path
) -> None:
    """Its run is left alone; the others are driven."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(Use("slow", name="a"), "Done."))
    bad = await midrun.start("actor", "bad")
    await stage.start("a").wait()
    await bad.pause(now=True, hold=timedelta(milliseconds=1))
    by_hand(path, replaced("bad", "sad", where="seq = 1"))
    other = await opened(ControllableTools().agent("Fine.", name="other"))
    run = await other.start("other", "go")
    assert isinstance(await run.result(), Completed)
    by_hand(path, replaced("sad", "bad", where="seq = 1"))


async def test_a_run_that_cannot_be_read_is_listed_as_that_among_the_others(
    path: Path,
) -> None:
    """F7: others go on, and so do those who look at them, decide for them, and halt them."""
    agent = Agent("a", model=ScriptedModel([Use("ask_human", question="?")]), tools=[ask_human])
    async with Midrun(kept_at(path), agents=[agent]) as midrun:
        broken = await midrun.start(agent, "first", thread="t")
        await broken.until("waiting")
        sound = await midrun.start(agent, "second")
        await sound.until("waiting")
        await midrun.halt("a look", actor="olga")
    by_hand(path, replaced("first", "wurst", where="seq = 1"))
    async with Midrun(kept_at(path), agents=[agent]) as midrun:
        views = {view.run_id: view for view in (await midrun.runs()).items}
        assert views.keys() == {broken.id, sound.id}
        assert (views[broken.id].sign.word, views[sound.id].error) == ("Cannot be read", "")
        assert "corrupt" in views[broken.id].error
        assert [ask.run_id for ask in await midrun.asks()] == [sound.id]
        assert await midrun.lift(actor="olga")
        assert (await (await midrun.get(sound.id)).view()).phase == "waiting"
        told = await midrun.start(agent, "third", thread="t")
        (started,) = await entries(told, RunStarted)
        assert broken.id in started.history[0].text
    by_hand(path, replaced("wurst", "first", where="seq = 1"))


async def test_a_resume_that_is_refused_in_part_is_refused_as_a_whole(opened: Opener) -> None:
    """The answer is not applied without the instruction that came with it."""
    model = ScriptedModel([Use("ask_human", question="Which?"), "Done."])
    agent = Agent("actor", model=model, tools=[ask_human])
    paused = await agent.run("go")
    midrun = await opened(agent)
    with pytest.raises(ControlRefused):
        await midrun.resume(paused.checkpoint, "red", instruction="   ")  # type: ignore[union-attr]  # it asks
    assert not (await midrun.runs()).items


async def test_whoever_waits_is_told_when_the_store_is_left() -> None:
    """Not left waiting for ever."""
    stage = ControllableTools()
    async with anyio.create_task_group() as tasks:
        told: list[str] = []

        async with Midrun("memory://", agents=[stage.agent(Use("slow", name="a"))]) as midrun:
            run = await midrun.start("actor", "go")

            async def wait() -> None:
                try:
                    await run.until("completed")
                except StoreClosed as error:
                    told.append(error.code)

            tasks.start_soon(wait)
            await stage.start("a").wait()
    assert told == ["store_closed"]


async def test_a_word_that_no_control_knows_is_an_error(opened: Opener) -> None:
    """`undoo="all"` must not quietly undo less than was asked."""
    stage = ControllableTools()
    midrun = await opened(stage.agent("Done."))
    run = await midrun.start("actor", "go")
    with pytest.raises(TypeError, match="undoo"):
        await run.cancel(undoo="all")  # type: ignore[call-arg]  # that is the point
    with pytest.raises(Misconfigured, match="in_flight or all"):
        await run.cancel(undo="some")  # type: ignore[arg-type]  # as above


async def test_what_goes_wrong_while_opening_comes_as_it_is() -> None:
    """The first thing that a new user meets must be readable; and it can be opened again."""
    midrun = Midrun("memory://", agents=[Agent("a", model="nosuch:model")])
    for _ in range(2):
        with pytest.raises(Misconfigured, match="nosuch"):
            await midrun.__aenter__()
    with pytest.raises(Misconfigured, match="it is not open"):
        await midrun.runs()


async def test_a_reply_that_asks_for_too_many_calls_has_the_first_of_them(
    opened: Opener,
) -> None:
    """A provider that lost count holds nobody up; the model hears how many were left out."""
    made: list[int] = []

    @tool
    async def count(n: int) -> int:
        """Count."""
        made.append(n)
        return n

    many = [Use("count", n=n) for n in range(REPLY_MAX_CALLS + 50)]
    model = ScriptedModel([many, "Done."])
    run = await (await opened(Agent("actor", model=model, tools=[count]))).start("actor", "go")
    assert isinstance(await run.result(), Completed)
    assert sorted(made) == list(range(REPLY_MAX_CALLS))
    asked = (await entries(run, CallDone))[0].reply
    assert asked is not None
    assert "nor were 49 more" in asked.uses[-1].refused
