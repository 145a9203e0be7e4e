"""Long histories: prompts and thread histories stay limited, the journal keeps everything."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from midrun import Agent, Completed, Failed, Midrun, Misconfigured, Run, tool
from midrun.core.entries import (
    CallAborted,
    CallDone,
    CallStarted,
    FrameResumed,
    HistoryCondensed,
    RedirectApplied,
    RunStarted,
)
from midrun.core.transcript import CONDENSE_KEEP_MESSAGES, Transcript, Turn
from midrun.core.values import Reply, Spend
from midrun.core.values import RequestedCall as ToolUse
from midrun.errors import ModelFailed
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Line
from midrun.ports.model import Finished, Piece, Prompt, Unpriced
from tests.scenarios.conversation.toolkit import ApprovalToolkit
from tests.support.run_journal import read_entries, read_journal, wait_for_entry
from tests.support.store_choice import get_store_url
from tests.unit.runs.conftest import OpenMidrun, verify_journals

WINDOW_WORDS = 400
STEP_MAX_WORDS = 20  # one step adds at most so many words to a prompt


class CountingModel(Unpriced):
    """A model that makes `steps` steps, and counts the words of its prompts as tokens.

    `prompt_sizes` has the size of the prompt of each step, `summary_prompt_sizes` of each
    summary. With `holds_summary` a summary waits for `summary_gate`, with `fails_summary` it
    fails.
    """

    name = "counting"

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.prompt_sizes: list[int] = []
        self.summary_prompt_sizes: list[int] = []
        self.transcript: list[Turn] = []
        self.summary = "Summary: all steps so far went well."
        self.holds_summary = False
        self.fails_summary = False
        self.summary_started = anyio.Event()
        self.summary_gate = anyio.Event()
        self.closed_summaries = 0

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        """Stream a step, or a summary if the runtime asks for one."""
        pieces = self._summary(prompt) if prompt.runtime_request else self._step(prompt)
        try:
            yield pieces
        finally:
            await pieces.aclose()  # type: ignore[attr-defined]  # it is a generator

    async def _step(self, prompt: Prompt) -> AsyncIterator[Piece | Finished]:
        self.transcript = list(prompt.transcript)
        self.prompt_sizes.append(size := _count_words(self.transcript))
        count = prompt.transcript.assistant_turn_count
        if count >= self.steps:
            yield Finished(reply=Reply(text="The end.", prompt_tokens=size))
            return
        use = ToolUse(tool="quick", args={"name": f"x{count}"})
        text = f"Step {count} of many, which is work."
        yield Piece(kind="text", text=text)
        yield Finished(
            reply=Reply(text=text, uses=(use,), prompt_tokens=size), spent=Spend(tokens=size)
        )

    async def _summary(self, prompt: Prompt) -> AsyncIterator[Piece | Finished]:
        self.summary_prompt_sizes.append(_count_words(list(prompt.transcript)))
        yield Piece(kind="text", text="Summary")
        if self.fails_summary:
            raise ModelFailed("counting", "overloaded", "not now")
        if self.holds_summary:
            self.summary_started.set()
            try:
                await self.summary_gate.wait()
            except BaseException:
                self.closed_summaries += 1
                raise
        yield Finished(reply=Reply(text=self.summary))


def _count_words(turns: list[Turn]) -> int:
    """Count the words of everything that is sent to a provider."""
    texts = (
        f"{turn.text} {turn.thinking} "
        + " ".join(f"{use.tool} {use.args} {use.result} {use.problem}" for use in turn.uses)
        for turn in turns
    )
    return sum(len(text.split()) for text in texts)


def make_agent(
    model: CountingModel, toolkit: ApprovalToolkit, window: int = WINDOW_WORDS
) -> Agent:
    """Return an agent with a small window."""
    return Agent("actor", model=model, tools=toolkit.tools(), window=window)


async def start_run(
    opened: OpenMidrun, model: CountingModel, toolkit: ApprovalToolkit
) -> tuple[Midrun, Run]:
    """Start a run of `model` with a small window."""
    midrun = await opened(make_agent(model, toolkit))
    return midrun, await midrun.start("actor", "Count to the end of it all")


async def test_prompts_stay_limited_and_the_journal_keeps_all_replies(
    opened: OpenMidrun,
) -> None:
    model, toolkit = CountingModel(300), ApprovalToolkit()
    _, run = await start_run(opened, model, toolkit)
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "The end."
    assert max(model.prompt_sizes) <= WINDOW_WORDS + STEP_MAX_WORDS
    assert max(model.summary_prompt_sizes) <= WINDOW_WORDS + 2 * STEP_MAX_WORDS
    replies = [e.reply for e in await read_entries(run, CallDone) if e.reply is not None]
    texts = [reply.text for reply in replies if reply.text.startswith("Step")]
    assert texts == [f"Step {n} of many, which is work." for n in range(300)]
    assert toolkit.completed == [f"x{n}" for n in range(300)]
    assert len(await read_entries(run, HistoryCondensed)) == len(model.summary_prompt_sizes) > 3


@pytest.mark.slow
async def test_prompts_stay_limited_over_three_thousand_steps(path: Path) -> None:
    """The largest prompt of the last thousand steps is no larger than that of the first."""
    model, toolkit = CountingModel(3_000), ApprovalToolkit()
    with anyio.fail_after(240):
        async with Midrun(get_store_url(path), agents=[make_agent(model, toolkit)]) as midrun:
            run = await midrun.start("actor", "Count to the end of it all")
            await run.until("completed")
        await verify_journals(path)
    assert len(toolkit.completed) == 3_000
    assert (
        max(model.prompt_sizes[-1_000:])
        <= max(model.prompt_sizes[:1_000])
        <= WINDOW_WORDS + STEP_MAX_WORDS
    )


async def test_a_summary_is_a_model_call_but_not_a_step(opened: OpenMidrun) -> None:
    """It is journaled as a model call with the purpose `condense`."""
    model, toolkit = CountingModel(60), ApprovalToolkit()
    _, run = await start_run(opened, model, toolkit)
    view = await run.until("completed")
    assert view.step == 61
    starts = await read_entries(run, CallStarted)
    purposes = [start.purpose for start in starts if start.call_kind == "model"]
    assert purposes.count("condense") == len(model.summary_prompt_sizes) > 0
    assert purposes.count("step") == 61


async def test_the_newest_turns_are_not_condensed(opened: OpenMidrun) -> None:
    model, toolkit = CountingModel(60), ApprovalToolkit()
    _, run = await start_run(opened, model, toolkit)
    await run.until("completed")
    assert model.transcript[0].kind == "summary"
    assert len(model.transcript) >= CONDENSE_KEEP_MESSAGES
    last = [turn for turn in model.transcript if turn.role == "assistant"][-1]
    assert last.uses[0].result == "x59 done"


async def test_a_pause_during_a_summary_aborts_it(opened: OpenMidrun) -> None:
    """Nothing is condensed, and the resume makes the summary again."""
    model, toolkit = CountingModel(60), ApprovalToolkit()
    model.holds_summary = True
    _, run = await start_run(opened, model, toolkit)
    await model.summary_started.wait()
    await run.pause()
    await run.until("paused")
    assert model.closed_summaries == 1
    assert not await read_entries(run, HistoryCondensed)
    assert len(await read_entries(run, CallAborted)) == 1
    done = list(toolkit.completed)
    model.holds_summary = False
    await run.resume()
    await run.until("completed")
    assert toolkit.completed[: len(done)] == done
    assert len(set(toolkit.completed)) == len(toolkit.completed) == 60
    assert max(model.prompt_sizes) <= WINDOW_WORDS + STEP_MAX_WORDS


async def test_a_redirect_during_a_summary_reaches_the_next_step(opened: OpenMidrun) -> None:
    model, toolkit = CountingModel(60), ApprovalToolkit()
    model.holds_summary = True
    _, run = await start_run(opened, model, toolkit)
    await model.summary_started.wait()
    model.holds_summary = False
    model.steps = 0
    await run.redirect("Come to the end", actor="ada")
    await wait_for_entry(run, RedirectApplied)
    await run.until("completed")
    assert "Come to the end" in [turn.text for turn in model.transcript]


async def test_a_cancel_during_a_summary_aborts_it(opened: OpenMidrun) -> None:
    model, toolkit = CountingModel(60), ApprovalToolkit()
    model.holds_summary = True
    _, run = await start_run(opened, model, toolkit)
    await model.summary_started.wait()
    await run.cancel()
    await run.until("cancelled")
    assert model.closed_summaries == 1


async def test_a_failed_summary_fails_the_run_and_keeps_its_history(opened: OpenMidrun) -> None:
    """The run can be resumed."""
    model, toolkit = CountingModel(60), ApprovalToolkit()
    model.fails_summary = True
    _, run = await start_run(opened, model, toolkit)
    outcome = await run.result()
    assert isinstance(outcome, Failed)
    assert not await read_entries(run, HistoryCondensed)
    model.fails_summary = False
    await run.resume()
    await run.until("completed")
    assert len(set(toolkit.completed)) == len(toolkit.completed) == 60


async def test_an_empty_summary_does_not_replace_the_history(opened: OpenMidrun) -> None:
    model, toolkit = CountingModel(60), ApprovalToolkit()
    model.summary = ""
    _, run = await start_run(opened, model, toolkit)
    await run.until("completed", "failed")
    assert any("Count to the end of it all" in turn.text for turn in model.transcript)


async def test_the_task_and_the_instructions_stay_in_the_prompt_after_summaries(
    opened: OpenMidrun,
) -> None:
    """The summary in this test does not mention them."""
    model, toolkit = CountingModel(120), ApprovalToolkit()
    _, run = await start_run(opened, model, toolkit)
    await wait_for_entry(run, CallDone, count=5)
    await run.redirect("Use the blue ones only")
    await run.until("completed")
    assert len(model.summary_prompt_sizes) > 1
    texts = " ".join(turn.text for turn in model.transcript)
    assert "Count to the end of it all" in texts
    assert "Use the blue ones only" in texts


async def test_a_frame_that_is_held_during_a_summary_is_resumed(opened: OpenMidrun) -> None:
    """Frames are part of the state, not of the transcript."""
    model, toolkit = CountingModel(60), ApprovalToolkit()
    model.holds_summary = True
    _, run = await start_run(opened, model, toolkit)
    await model.summary_started.wait()
    model.holds_summary = False
    await run.say("How far are you?", actor="ada")
    model.summary_gate.set()
    await run.until("completed")
    (resumed,) = await read_entries(run, FrameResumed)
    assert "Back to *Count to the end of it all*" in resumed.text
    kinds = [type(entry).__name__ for entry in await read_journal(run)]
    assert "HistoryCondensed" in kinds[kinds.index("FramePushed") : kinds.index("FrameResumed")]
    assert resumed.text in [turn.text for turn in model.transcript]


async def test_a_window_of_0_turns_summaries_off(opened: OpenMidrun) -> None:
    model, toolkit = CountingModel(60), ApprovalToolkit()
    midrun = await opened(make_agent(model, toolkit, window=0))
    run = await midrun.start("actor", "go")
    await run.until("completed")
    assert not model.summary_prompt_sizes
    assert max(model.prompt_sizes) > WINDOW_WORDS + 10 * STEP_MAX_WORDS


async def test_a_window_smaller_than_the_kept_turns_still_makes_progress(
    opened: OpenMidrun,
) -> None:
    """At most one summary comes before each step."""
    model, toolkit = CountingModel(30), ApprovalToolkit()
    midrun = await opened(make_agent(model, toolkit, window=1))
    run = await midrun.start("actor", "go")
    await run.until("completed")
    assert len(toolkit.completed) == 30
    assert len(model.summary_prompt_sizes) <= 31


# ── threads and forks ─────────────────────────────────────────────────────────────────────


THREAD = "t1"


def make_reader(results: int, size: int) -> Agent:
    """Return an agent that reads `results` long texts, and then answers."""

    @tool(read_only=True)
    async def read(number: int) -> str:
        """Read a long text."""
        return f"{number} " + "x" * size

    def next_turn(messages: Transcript) -> Line:
        if messages.assistant_turn_count < results:
            return Use("read", number=messages.assistant_turn_count)
        return "Read."

    return Agent("actor", model=ScriptedModel(next_turn), tools=[read])


async def test_long_results_are_cut_in_the_history_of_a_thread_and_of_a_fork(
    opened: OpenMidrun,
) -> None:
    """A long thread can always be continued."""
    midrun = await opened(make_reader(3, 3_000_000))
    first = await midrun.start("actor", "first", thread=THREAD)
    await first.until("completed")
    second = await midrun.start("actor", "second", thread=THREAD)
    forked = await first.fork(instruction="Again")
    for run in (second, forked):
        await run.until("completed")
        (started,) = await read_entries(run, RunStarted)
        calls = [call for message in started.history for call in message.made]
        assert [str(call.result)[:2] for call in calls] == ["0 ", "1 ", "2 "]
        assert all(str(call.result).endswith("… (3000002 characters)") for call in calls)
        assert started.history[0].text == "first"


async def test_only_the_newest_runs_of_a_thread_are_in_the_history(path: Path) -> None:
    """`thread_runs` is the limit; the first message says that older ones are left out."""
    async with Midrun(get_store_url(path), agents=[make_reader(0, 0)], thread_runs=2) as midrun:
        for task in ("first", "second"):
            await (await midrun.start("actor", task, thread=THREAD)).until("completed")
        third = await midrun.start("actor", "third", thread=THREAD)
        (started,) = await read_entries(third, RunStarted)
        assert [message.text for message in started.history] == [
            *("first", "Read."),
            *("second", "Read."),
        ]
        await third.until("completed")
        fourth = await midrun.start("actor", "fourth", thread=THREAD)
        (started,) = await read_entries(fourth, RunStarted)
        note, *messages = started.history
        assert (note.role, messages[0].text) == ("runtime", "second")
        assert note.text == (
            "Messages from before the newest 2 runs of this thread are left out."
        )
        await fourth.until("completed")
    with pytest.raises(Misconfigured, match="thread_runs"):
        Midrun(get_store_url(path), thread_runs=0)


async def test_the_oldest_messages_of_a_too_long_history_are_left_out(
    opened: OpenMidrun,
) -> None:
    """The first message says how many."""
    midrun = await opened(make_reader(300, 15_000))
    first = await midrun.start("actor", "first", thread=THREAD)
    await first.until("completed")
    second = await midrun.start("actor", "second", thread=THREAD)
    (started,) = await read_entries(second, RunStarted)
    note, *messages = started.history
    assert note.text.startswith(f"{302 - len(messages)} earlier messages are left out")
    assert messages[-1].text == "Read."
    assert len(messages) > 200
