"""Long runs: the model's view stays bounded, the journal keeps everything."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from midrun import Agent, Completed, Failed, Midrun, Run
from midrun.core.entries import (
    CallAborted,
    CallDone,
    CallStarted,
    FrameResumed,
    HistoryCondensed,
    RedirectApplied,
)
from midrun.core.transcript import Turn
from midrun.core.values import Reply, Spend
from midrun.core.values import Use as Wanted
from midrun.errors import ModelFailed
from midrun.ports.model import Finished, Piece, Prompt, Unpriced
from tests.scenarios.conversation.workshop import Workshop
from tests.scenarios.promises.seen import entries, journal, recorded
from tests.support.store_choice import kept_at
from tests.unit.runs.conftest import Opener, verify_all

WINDOW = 400
KEPT = 8
STEP = 20  # what one step adds at most, in words


class Counting(Unpriced):
    """Works `steps` steps, and says how many words its prompt had, as a provider counts tokens.

    A summary is asked for by the runtime; `gated`, it waits in the middle of it. `sizes` is
    what it was given for each step, `summed` what it was given for each summary.
    """

    name = "counting"

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.sizes: list[int] = []
        self.summed: list[int] = []
        self.heard: list[Turn] = []
        self.summary = "In short: so far so good, and on we go."
        self.gated = False
        self.failing = False
        self.summing = anyio.Event()
        self.gate = anyio.Event()
        self.closed = 0

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        """Make one step, or a summary."""
        pieces = self._summary(prompt) if prompt.runtime_request else self._step(prompt)
        try:
            yield pieces
        finally:
            await pieces.aclose()  # type: ignore[attr-defined]  # it is a generator

    async def _step(self, prompt: Prompt) -> AsyncIterator[Piece | Finished]:
        self.heard = list(prompt.transcript)
        self.sizes.append(size := _words(self.heard))
        count = prompt.transcript.assistant_turn_count
        if count >= self.steps:
            yield Finished(reply=Reply(text="The end.", window=size))
            return
        use = Wanted(tool="quick", args={"name": f"x{count}"})
        text = f"Step {count} of many, which is work."
        yield Piece(kind="text", text=text)
        yield Finished(
            reply=Reply(text=text, uses=(use,), window=size), spent=Spend(tokens=size)
        )

    async def _summary(self, prompt: Prompt) -> AsyncIterator[Piece | Finished]:
        self.summed.append(_words(list(prompt.transcript)))
        yield Piece(kind="text", text="In short")
        if self.failing:
            raise ModelFailed("counting", "overloaded", "not now")
        if self.gated:
            self.summing.set()
            try:
                await self.gate.wait()
            except BaseException:
                self.closed += 1
                raise
        yield Finished(reply=Reply(text=self.summary))


def _words(turns: list[Turn]) -> int:
    """Count what a provider would: everything that is sent."""
    said = (
        f"{turn.text} {turn.thinking} "
        + " ".join(f"{use.tool} {use.args} {use.result} {use.problem}" for use in turn.uses)
        for turn in turns
    )
    return sum(len(text.split()) for text in said)


def long_agent(model: Counting, shop: Workshop, window: int = WINDOW) -> Agent:
    """Return an agent with a small window."""
    return Agent("actor", model=model, tools=shop.tools(), window=window)


async def began(opened: Opener, model: Counting, shop: Workshop) -> tuple[Midrun, Run]:
    """Start a run of it."""
    midrun = await opened(long_agent(model, shop))
    return midrun, await midrun.start("actor", "Count to the end of it all")


async def test_the_view_of_the_model_stays_bounded_and_the_journal_keeps_everything(
    opened: Opener,
) -> None:
    """Three hundred steps; every word of every one is on record."""
    model, shop = Counting(300), Workshop()
    _, run = await began(opened, model, shop)
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "The end."
    assert max(model.sizes) <= WINDOW + STEP
    assert max(model.summed) <= WINDOW + 2 * STEP
    replies = [e.reply for e in await entries(run, CallDone) if e.reply is not None]
    texts = [reply.text for reply in replies if reply.text.startswith("Step")]
    assert texts == [f"Step {n} of many, which is work." for n in range(300)]
    assert shop.completed == [f"x{n}" for n in range(300)]
    assert len(await entries(run, HistoryCondensed)) == len(model.summed) > 3


@pytest.mark.slow
async def test_the_view_stays_bounded_over_three_thousand_steps(path: Path) -> None:
    """The largest prompt of the last thousand steps is no larger than that of the first."""
    model, shop = Counting(3_000), Workshop()
    with anyio.fail_after(240):
        async with Midrun(kept_at(path), agents=[long_agent(model, shop)]) as midrun:
            run = await midrun.start("actor", "Count to the end of it all")
            await run.until("completed")
        await verify_all(path)
    assert len(shop.completed) == 3_000
    assert max(model.sizes[-1_000:]) <= max(model.sizes[:1_000]) <= WINDOW + STEP


async def test_a_summary_counts_as_no_step_and_makes_no_call(opened: Opener) -> None:
    """It is through the same door, journaled as what it is."""
    model, shop = Counting(60), Workshop()
    _, run = await began(opened, model, shop)
    view = await run.until("completed")
    assert view.step == 61
    starts = await entries(run, CallStarted)
    purposes = [start.purpose for start in starts if start.call_kind == "model"]
    assert purposes.count("condense") == len(model.summed) > 0
    assert purposes.count("step") == 61


async def test_the_newest_turns_stay_word_for_word(opened: Opener) -> None:
    """Only what is older is given in short."""
    model, shop = Counting(60), Workshop()
    _, run = await began(opened, model, shop)
    await run.until("completed")
    assert model.heard[0].kind == "summary"
    assert len(model.heard) >= KEPT
    last = [turn for turn in model.heard if turn.role == "assistant"][-1]
    assert last.uses[0].result == "x59 done"


async def test_a_pause_in_the_middle_of_a_summary_is_immediate(opened: Opener) -> None:
    """Its stream is closed like any other, nothing is condensed, and a resume does it anew."""
    model, shop = Counting(60), Workshop()
    model.gated = True
    _, run = await began(opened, model, shop)
    await model.summing.wait()
    await run.pause()
    await run.until("paused")
    assert model.closed == 1
    assert not await entries(run, HistoryCondensed)
    assert len(await entries(run, CallAborted)) == 1
    done = list(shop.completed)
    model.gated = False
    await run.resume()
    await run.until("completed")
    assert shop.completed[: len(done)] == done
    assert len(set(shop.completed)) == len(shop.completed) == 60
    assert max(model.sizes) <= WINDOW + STEP


async def test_a_redirect_in_the_middle_of_a_summary_is_heard_by_the_next_step(
    opened: Opener,
) -> None:
    """It is neither lost in the summary nor left for the step after."""
    model, shop = Counting(60), Workshop()
    model.gated = True
    _, run = await began(opened, model, shop)
    await model.summing.wait()
    model.gated = False
    model.steps = 0
    await run.redirect("Come to the end", actor="ada")
    await recorded(run, RedirectApplied)
    await run.until("completed")
    assert "Come to the end" in [turn.text for turn in model.heard]


async def test_a_cancel_in_the_middle_of_a_summary_ends_it(opened: Opener) -> None:
    """It is a call in flight."""
    model, shop = Counting(60), Workshop()
    model.gated = True
    _, run = await began(opened, model, shop)
    await model.summing.wait()
    await run.cancel()
    await run.until("cancelled")
    assert model.closed == 1


async def test_a_summary_that_fails_fails_the_run_resumably(opened: Opener) -> None:
    """Nothing of the history is given up for a summary that nobody made."""
    model, shop = Counting(60), Workshop()
    model.failing = True
    _, run = await began(opened, model, shop)
    outcome = await run.result()
    assert isinstance(outcome, Failed)
    assert not await entries(run, HistoryCondensed)
    model.failing = False
    await run.resume()
    await run.until("completed")
    assert len(set(shop.completed)) == len(shop.completed) == 60


async def test_a_summary_that_says_nothing_does_not_replace_what_was_said(
    opened: Opener,
) -> None:
    """A model that answers with nothing must not cost the run its task."""
    model, shop = Counting(60), Workshop()
    model.summary = ""
    _, run = await began(opened, model, shop)
    await run.until("completed", "failed")
    assert any("Count to the end of it all" in turn.text for turn in model.heard)


async def test_the_task_and_the_course_outlive_every_summary(opened: Opener) -> None:
    """What was asked for is not left to how well a model sums up."""
    model, shop = Counting(120), Workshop()
    _, run = await began(opened, model, shop)
    await recorded(run, CallDone, count=5)
    await run.redirect("Use the blue ones only")
    await run.until("completed")
    assert len(model.summed) > 1
    texts = " ".join(turn.text for turn in model.heard)
    assert "Count to the end of it all" in texts
    assert "Use the blue ones only" in texts


async def test_a_thought_held_over_a_summary_comes_back_by_name(opened: Opener) -> None:
    """Frames are in the state, not in the words: condensing costs none of them."""
    model, shop = Counting(60), Workshop()
    model.gated = True
    _, run = await began(opened, model, shop)
    await model.summing.wait()
    model.gated = False
    await run.say("How far are you?", actor="ada")
    model.gate.set()
    await run.until("completed")
    (resumed,) = await entries(run, FrameResumed)
    assert "Back to *Count to the end of it all*" in resumed.words
    told = [type(entry).__name__ for entry in await journal(run)]
    assert "HistoryCondensed" in told[told.index("FramePushed") : told.index("FrameResumed")]
    assert resumed.words in [turn.text for turn in model.heard]


async def test_no_window_condenses_nothing(opened: Opener) -> None:
    """It is a policy, and 0 is none."""
    model, shop = Counting(60), Workshop()
    midrun = await opened(long_agent(model, shop, window=0))
    run = await midrun.start("actor", "go")
    await run.until("completed")
    assert not model.summed
    assert max(model.sizes) > WINDOW + 10 * STEP


async def test_a_window_smaller_than_what_is_kept_still_makes_progress(opened: Opener) -> None:
    """At most one summary before each step: never a run that only sums up."""
    model, shop = Counting(30), Workshop()
    midrun = await opened(long_agent(model, shop, window=1))
    run = await midrun.start("actor", "go")
    await run.until("completed")
    assert len(shop.completed) == 30
    assert len(model.summed) <= 31
