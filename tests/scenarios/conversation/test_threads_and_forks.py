"""Threads and forks: a run continues with the history of other runs, or from a boundary."""

import pytest

from midrun import Agent, Completed, ControlRefused, Midrun, Run
from midrun.core.entries import CallDone, RunStarted
from midrun.core.transcript import Transcript, Turn
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Cue, Line
from tests.scenarios.conversation.toolkit import ApprovalToolkit, expect_refusal
from tests.support.gated_model import GatedModel
from tests.support.gated_model import GatedReply as SpokenLine
from tests.support.run_journal import read_entries, read_journal, read_kinds, read_turns
from tests.unit.runs.conftest import OpenMidrun

THREAD = "t1"


class RecordingTurn:
    """A turn that records the prompt of the model, and answers."""

    def __init__(self, answer: str = "Second.") -> None:
        self.prompt: list[Turn] = []
        self._answer = answer

    def __call__(self, messages: Transcript) -> str:
        """Record the prompt."""
        self.prompt = list(messages)
        return self._answer

    @property
    def texts(self) -> list[str]:
        """The texts of the prompt, in order."""
        return [turn.text for turn in self.prompt]


def play_then_record(last_turn: RecordingTurn, *script: Line) -> Cue:
    """Return a turn function: `script` for the first run, and `last_turn` for the second."""

    def next_turn(messages: Transcript) -> Line:
        if any(turn.text == "second" for turn in messages):
            return last_turn(messages)
        return script[messages.assistant_turn_count]

    return next_turn


def make_agent(toolkit: ApprovalToolkit, next_turn: Cue) -> Agent:
    """Return an agent whose turns come from `next_turn`."""
    return Agent("actor", model=ScriptedModel(next_turn), tools=toolkit.tools())


async def test_the_second_run_of_a_thread_sees_the_conversation_of_the_first(
    opened: OpenMidrun,
) -> None:
    """Task, results and answer are in order, before its own task."""
    toolkit, last_turn = ApprovalToolkit(), RecordingTurn()
    next_turn = play_then_record(last_turn, ["Looking. ", Use("quick", name="x")], "First.")
    midrun = await opened(make_agent(toolkit, next_turn))
    first_run = await midrun.start("actor", "first", thread=THREAD)
    await first_run.until("completed")
    second_run = await midrun.start("actor", "second", thread=THREAD)
    assert (await second_run.until("completed")).output == "Second."
    texts = last_turn.texts
    assert texts[0] == "first"
    assert texts[-1] == "second"
    assert "Looking. " in texts
    assert "First." in texts
    (use,) = [use for turn in last_turn.prompt for use in turn.uses]
    assert (use.tool, use.args, use.result) == ("quick", {"name": "x"}, "x done")
    assert toolkit.completed == ["x"]


async def test_the_third_run_of_a_thread_sees_each_earlier_message_once(
    opened: OpenMidrun,
) -> None:
    toolkit, last_turn = ApprovalToolkit(), RecordingTurn()

    def next_turn(messages: Transcript) -> str:
        return last_turn(messages) if messages[-1].text == "second" else messages[-1].text + "!"

    midrun = await opened(make_agent(toolkit, next_turn))
    for task in ("zero", "first", "second"):
        await (await midrun.start("actor", task, thread=THREAD)).until("completed")
    assert last_turn.texts == ["zero", "zero!", "first", "first!", "second"]


async def test_runs_of_other_threads_or_of_no_thread_are_not_seen(opened: OpenMidrun) -> None:
    toolkit, last_turn = ApprovalToolkit(), RecordingTurn()
    next_turn = play_then_record(last_turn, "First.")
    midrun = await opened(make_agent(toolkit, next_turn))
    await (await midrun.start("actor", "first", thread="other")).until("completed")
    await (await midrun.start("actor", "first")).until("completed")
    await (await midrun.start("actor", "second", thread=THREAD)).until("completed")
    assert last_turn.texts == ["second"]


async def test_the_partial_work_of_a_cancelled_run_is_seen_and_marked(
    opened: OpenMidrun,
) -> None:
    """An aborted call and an undone call are marked as such."""
    toolkit = ApprovalToolkit()
    model = GatedModel(
        SpokenLine("I begin. ", "", Use("draft", name="done"), Use("slow", name="cut")),
        "Second.",
    )
    agent = Agent("actor", model=model, tools=toolkit.tools())
    midrun = await opened(agent)
    first_run = await midrun.start("actor", "first", thread=THREAD)
    await toolkit.start("cut").wait()
    await first_run.cancel(undo="all")
    await first_run.until("cancelled")
    await (await midrun.start("actor", "second", thread=THREAD)).until("completed")
    prompt = model.transcripts[1]
    assert any("was cancelled" in turn.text for turn in prompt)
    problems = {use.tool: use.problem for turn in prompt for use in turn.uses}
    assert "undone" in problems["draft"]
    assert "stopped midway" in problems["slow"]


async def test_a_partial_text_is_marked_as_interrupted_in_the_next_run(
    opened: OpenMidrun,
) -> None:
    model = GatedModel(SpokenLine("The answer is", " 42.", gate="middle"), "Second.")
    toolkit = ApprovalToolkit()
    midrun = await opened(Agent("actor", model=model, tools=toolkit.tools()))
    first_run = await midrun.start("actor", "first", thread=THREAD)
    await model.reached("middle").wait()
    await first_run.cancel()
    await first_run.until("cancelled")
    await (await midrun.start("actor", "second", thread=THREAD)).until("completed")
    (partial,) = [turn for turn in model.transcripts[1] if turn.role == "assistant"]
    assert (partial.text, partial.interrupted) == ("The answer is", True)


async def test_overlapping_runs_of_a_thread_are_both_seen_by_the_next(
    opened: OpenMidrun,
) -> None:
    toolkit, last_turn = ApprovalToolkit(), RecordingTurn()

    def next_turn(messages: Transcript) -> Line:
        task = next(t.text for t in reversed(messages) if t.role == "user")
        if task == "second":
            return last_turn(messages)
        if task == "slow one" and not messages[-1].uses:
            return Use("slow", name="x")
        return f"{task}!"

    midrun = await opened(make_agent(toolkit, next_turn))
    slow_run = await midrun.start("actor", "slow one", thread=THREAD)
    await toolkit.start("x").wait()
    await (await midrun.start("actor", "quick one", thread=THREAD)).until("completed")
    toolkit.gate("x").set()
    await slow_run.until("completed")
    await (await midrun.start("actor", "second", thread=THREAD)).until("completed")
    assert "quick one!" in last_turn.texts
    assert "slow one!" in last_turn.texts


async def test_a_start_with_the_same_request_id_in_a_thread_returns_the_first_run(
    opened: OpenMidrun,
) -> None:
    toolkit = ApprovalToolkit()
    midrun = await opened(make_agent(toolkit, lambda _: "ok"))
    first_run = await midrun.start("actor", "first", thread=THREAD, request_id="r")
    await first_run.until("completed")
    same_run = await midrun.start("actor", "first", thread=THREAD, request_id="r")
    assert same_run.id == first_run.id


# ── forks ─────────────────────────────────────────────────────────────────────────────────


async def find_boundaries(run: Run) -> list[int]:
    """Return the seqs at which `run` can be forked."""
    boundaries = []
    for seq in range(1, len(await read_journal(run)) + 1):
        try:
            fork = await run.fork(seq)
        except ControlRefused as error:
            assert error.reason == "not_a_boundary"  # noqa: PT017 - most seqs are not boundaries
        else:
            boundaries.append(seq)
            await fork.result()
    return boundaries


async def complete_three_steps(
    opened: OpenMidrun, toolkit: ApprovalToolkit
) -> tuple[Midrun, Run]:
    """Return a completed run that has made two calls, one after the other."""
    agent = toolkit.agent(
        ["A. ", Use("quick", name="a")], ["B. ", Use("quick", name="b")], "End."
    )
    midrun = await opened(agent)
    run = await midrun.start("actor", "go")
    await run.until("completed")
    return midrun, run


async def test_a_fork_continues_from_the_given_boundary(opened: OpenMidrun) -> None:
    """The call before the boundary is not repeated; the call after it is."""
    toolkit = ApprovalToolkit()
    _, run = await complete_three_steps(opened, toolkit)
    boundary = next(
        n
        for n, entry in enumerate(await read_journal(run), 1)
        if isinstance(entry, CallDone) and entry.call == "c2"
    )
    fork = await run.fork(boundary)
    assert fork.id != run.id
    assert (await fork.until("completed")).output == "End."
    assert toolkit.completed == ["a", "b", "b"]
    (started,) = await read_entries(fork, RunStarted)
    assert started.forked is not None
    assert (started.forked.run, started.forked.seq) == (run.id, boundary)


async def test_a_fork_does_not_change_the_original(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    midrun, run = await complete_three_steps(opened, toolkit)
    before = await midrun.store.read_lines(run.id)
    fork = await run.fork(instruction="Differently")
    await fork.until("failed", "completed")
    assert await midrun.store.read_lines(run.id) == before


async def test_a_fork_with_an_instruction_sees_it_and_the_history(opened: OpenMidrun) -> None:
    toolkit, last_turn = ApprovalToolkit(), RecordingTurn("Forked.")
    agent = toolkit.agent(["A. ", Use("quick", name="a")], "End.", last_turn, last_turn)
    midrun = await opened(agent)
    run = await midrun.start("actor", "go")
    await run.until("completed")
    fork = await run.fork(instruction="Do it differently", actor="ada")
    assert (await fork.until("completed")).output == "Forked."
    assert last_turn.texts[0] == "go"
    assert "End." in last_turn.texts
    assert "Do it differently" in last_turn.texts
    assert (await fork.view()).task == "Do it differently"


@pytest.mark.parametrize("seq", [0, -1, 10_000])
async def test_a_fork_at_a_seq_that_does_not_exist_is_refused(
    opened: OpenMidrun, seq: int
) -> None:
    toolkit = ApprovalToolkit()
    midrun, run = await complete_three_steps(opened, toolkit)
    with pytest.raises(ControlRefused, match="not_a_boundary"):
        await run.fork(seq)
    assert len((await midrun.runs()).items) == 1


async def test_a_fork_during_a_step_is_refused(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    _, run = await complete_three_steps(opened, toolkit)
    kinds_of_entries = [type(entry).__name__ for entry in await read_journal(run)]
    boundaries = await find_boundaries(run)
    assert boundaries
    assert all(kinds_of_entries[seq - 1] != "CallStarted" for seq in boundaries)


async def test_a_fork_of_a_running_run_starts_from_its_newest_boundary(
    opened: OpenMidrun,
) -> None:
    """The fork makes the call in flight again, as its own."""
    toolkit = ApprovalToolkit()
    agent = toolkit.agent(
        ["A. ", Use("quick", name="a")], ["B. ", Use("slow", name="b")], "End."
    )
    run = await (await opened(agent)).start("actor", "go")
    await toolkit.start("b").wait()
    fork = await run.fork()
    toolkit.gate("b").set()
    await run.until("completed")
    await fork.until("completed")
    assert toolkit.called == ["a", "b", "b"]
    assert "slow" not in [
        use.tool for turn in (await read_turns(fork))[:2] for use in turn.uses
    ]


async def test_a_fork_of_a_cancelled_run_says_that_its_work_is_partial(
    opened: OpenMidrun,
) -> None:
    """The fork undoes nothing of the first run."""
    toolkit, last_turn = ApprovalToolkit(), RecordingTurn("Forked.")
    agent = toolkit.agent(
        ["A. ", Use("draft", name="a")], ["B. ", Use("slow", name="b")], last_turn, last_turn
    )
    run = await (await opened(agent)).start("actor", "go")
    await toolkit.start("b").wait()
    await run.cancel(undo="all")
    await run.until("cancelled")
    fork = await run.fork(instruction="Again")
    outcome = await fork.result()
    assert isinstance(outcome, Completed)
    assert any("partial" in text for text in last_turn.texts)
    assert toolkit.undone == ["a"]


async def test_a_fork_keeps_the_plan(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    items = ["One", "Two", "Three"]
    agent = toolkit.agent(
        ["P. ", Use("plan", items=items, marks={"1": "done"})],
        ["B. ", Use("slow", name="b")],
        "End.",
    )
    run = await (await opened(agent)).start("actor", "go")
    await toolkit.start("b").wait()
    fork = await run.fork()
    assert (await fork.view()).position == "plan 2/3"
    toolkit.gate("b").set()
    await fork.until("completed")
    await run.until("completed")


async def test_a_fork_does_not_copy_the_open_review(opened: OpenMidrun) -> None:
    """The approval on the first run makes the call once."""
    toolkit = ApprovalToolkit()
    agent = toolkit.agent(["P. ", Use("post", name="x")], "Hm.", "Good.", "Good.", "Good.")
    run = await (await opened(agent)).start("actor", "go")
    await run.until("waiting")
    fork = await run.fork(instruction="Differently")
    assert not (await fork.until("completed")).asks
    await run.approve()
    await run.until("completed")
    assert toolkit.completed == ["x"]


async def test_the_messages_of_a_child_are_not_part_of_its_parents_thread(
    opened: OpenMidrun,
) -> None:
    """The next run sees only the result of the child."""
    toolkit, last_turn = ApprovalToolkit(), RecordingTurn()
    child_agent = toolkit.agent(["Private. ", Use("quick", name="x")], "Found.", name="aide")

    def next_turn(messages: Transcript) -> Line:
        if any(turn.text == "second" for turn in messages):
            return last_turn(messages)
        return "First." if messages[-1].uses else Use("aide", task="Find")

    parent = Agent("actor", model=ScriptedModel(next_turn), tools=[child_agent.as_tool()])
    midrun = await opened(parent)
    await (await midrun.start("actor", "first", thread=THREAD)).until("completed")
    await (await midrun.start("actor", "second", thread=THREAD)).until("completed")
    assert "Private. " not in last_turn.texts
    assert [use.result for turn in last_turn.prompt for use in turn.uses] == ["Found."]


async def test_a_fork_continues_after_turns_that_only_made_calls(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    script = [Use("quick", name=name) for name in ("a", "b", "c")]
    run = await (await opened(toolkit.agent(*script, "End."))).start("actor", "go")
    await run.until("completed")
    ends = [n for n, kind in enumerate(await read_kinds(run), 1) if kind == "CallDone"]
    fork = await run.fork(ends[3])  # after the model, `a`, the model and `b`
    assert (await fork.until("completed")).output == "End."
    assert toolkit.completed == ["a", "b", "c", "c"]
    uses = [(use.tool, use.result) for turn in await read_turns(fork) for use in turn.uses]
    assert uses == [("quick", f"{name} done") for name in ("a", "b", "c")]
    assert len({use.call for turn in await read_turns(fork) for use in turn.uses}) == 3


async def test_a_call_in_flight_in_an_earlier_run_is_shown_as_under_way(
    opened: OpenMidrun,
) -> None:
    """Otherwise the next run could make it again."""
    toolkit, last_turn = ApprovalToolkit(), RecordingTurn()
    midrun = await opened(
        make_agent(toolkit, play_then_record(last_turn, Use("slow", name="x"), "First."))
    )
    first_run = await midrun.start("actor", "first", thread=THREAD)
    await toolkit.start("x").wait()
    await (await midrun.start("actor", "second", thread=THREAD)).until("completed")
    assert [u.problem for t in last_turn.prompt for u in t.uses] == ["still under way there"]
    toolkit.gate("x").set()
    await first_run.until("completed")


@pytest.mark.parametrize("continuation", ["thread", "fork"])
async def test_an_actor_who_answered_in_an_earlier_run_cannot_approve_in_a_later_run(
    opened: OpenMidrun, continuation: str
) -> None:
    """The history has the answer without its author; four eyes know the author."""
    toolkit = ApprovalToolkit()

    def next_turn(messages: Transcript) -> Line:
        if any(turn.text == "second" for turn in messages):
            return Use("sign", name="x")
        return (
            "First."
            if messages.assistant_turn_count
            else Use("ask_human", question="Which account?")
        )

    agent = Agent("actor", model=ScriptedModel(next_turn), tools=toolkit.tools())
    midrun = await opened(agent)
    first_run = await midrun.start("actor", "first", thread=THREAD, actor="ada")
    await first_run.until("waiting")
    await first_run.answer("DE89", actor="bob")
    await first_run.until("completed")
    if continuation == "fork":
        second_run = await first_run.fork(instruction="second", actor="cyd")
    else:
        second_run = await midrun.start("actor", "second", thread=THREAD, actor="cyd")
    await second_run.until("waiting")
    assert (await expect_refusal(second_run.approve(actor="bob"))).reason == "not_allowed"
    assert toolkit.completed == []
    assert await midrun.verify(second_run.id)
