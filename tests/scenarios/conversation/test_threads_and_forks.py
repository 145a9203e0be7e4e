"""Threads and forks: what one run knew and said, another goes on from."""

import pytest

from midrun import Agent, Completed, ControlRefused, Midrun, Run
from midrun.core.entries import CallDone, RunStarted
from midrun.core.transcript import Transcript, Turn
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Cue, Line
from tests.scenarios.conversation.workshop import Workshop
from tests.scenarios.promises.seen import entries, journal, kinds, turns
from tests.scenarios.promises.speaker import Line as Said
from tests.scenarios.promises.speaker import Speaker
from tests.unit.runs.conftest import Opener

THREAD = "t1"


class Listener:
    """A cue that keeps what it was given, and answers."""

    def __init__(self, answer: str = "Second.") -> None:
        self.heard: list[Turn] = []
        self._answer = answer

    def __call__(self, messages: Transcript) -> str:
        """Listen to everything."""
        self.heard = list(messages)
        return self._answer

    @property
    def texts(self) -> list[str]:
        """What was said, in order."""
        return [turn.text for turn in self.heard]


def first_then(listens: Listener, *script: Line) -> Cue:
    """Return a script that plays `script` for the task "first", and then listens."""

    def cue(messages: Transcript) -> Line:
        if any(turn.text == "second" for turn in messages):
            return listens(messages)
        return script[messages.assistant_turn_count]

    return cue


def agent_of(shop: Workshop, cue: Cue) -> Agent:
    """Return an agent whose every turn is found by `cue`."""
    return Agent("actor", model=ScriptedModel(cue), tools=shop.tools())


async def test_the_second_run_of_a_thread_sees_the_conversation_of_the_first(
    opened: Opener,
) -> None:
    """Task, results and answer, in order, before its own task."""
    shop, listens = Workshop(), Listener()
    cue = first_then(listens, ["Looking. ", Use("quick", name="x")], "First.")
    midrun = await opened(agent_of(shop, cue))
    one = await midrun.start("actor", "first", thread=THREAD)
    await one.until("completed")
    two = await midrun.start("actor", "second", thread=THREAD)
    assert (await two.until("completed")).output == "Second."
    texts = listens.texts
    assert texts[0] == "first"
    assert texts[-1] == "second"
    assert "Looking. " in texts
    assert "First." in texts
    (made,) = [use for turn in listens.heard for use in turn.uses]
    assert (made.tool, made.args, made.result) == ("quick", {"name": "x"}, "x done")
    assert shop.completed == ["x"]


async def test_a_third_run_sees_all_that_was_said_before(opened: Opener) -> None:
    """Each once."""
    shop, listens = Workshop(), Listener()

    def cue(messages: Transcript) -> str:
        return listens(messages) if messages[-1].text == "second" else messages[-1].text + "!"

    midrun = await opened(agent_of(shop, cue))
    for task in ("zero", "first", "second"):
        await (await midrun.start("actor", task, thread=THREAD)).until("completed")
    assert listens.texts == ["zero", "zero!", "first", "first!", "second"]


async def test_other_threads_and_runs_without_one_are_not_seen(opened: Opener) -> None:
    """A thread is a wall as well."""
    shop, listens = Workshop(), Listener()
    cue = first_then(listens, "First.")
    midrun = await opened(agent_of(shop, cue))
    await (await midrun.start("actor", "first", thread="other")).until("completed")
    await (await midrun.start("actor", "first")).until("completed")
    await (await midrun.start("actor", "second", thread=THREAD)).until("completed")
    assert listens.texts == ["second"]


async def test_the_partial_work_of_a_cancelled_run_is_seen_and_marked(opened: Opener) -> None:
    """Half a sentence, a call that was stopped, one that was undone: nothing looks finished."""
    shop = Workshop()
    model = Speaker(
        Said("I begin. ", "", Use("draft", name="done"), Use("slow", name="cut")), "Second."
    )
    agent = Agent("actor", model=model, tools=shop.tools())
    midrun = await opened(agent)
    one = await midrun.start("actor", "first", thread=THREAD)
    await shop.start("cut").wait()
    await one.cancel(undo="all")
    await one.until("cancelled")
    await (await midrun.start("actor", "second", thread=THREAD)).until("completed")
    heard = model.heard[1]
    assert "That run was cancelled; its work is partial." in [turn.text for turn in heard]
    made = {use.tool: use.problem for turn in heard for use in turn.uses}
    assert "undone" in made["draft"]
    assert "stopped midway" in made["slow"]


async def test_half_a_sentence_stays_half_a_sentence_in_the_next_run(opened: Opener) -> None:
    """It is marked as interrupted, so that nobody takes it for an answer."""
    model = Speaker(Said("The answer is", " 42.", gate="middle"), "Second.")
    shop = Workshop()
    midrun = await opened(Agent("actor", model=model, tools=shop.tools()))
    one = await midrun.start("actor", "first", thread=THREAD)
    await model.reached("middle").wait()
    await one.cancel()
    await one.until("cancelled")
    await (await midrun.start("actor", "second", thread=THREAD)).until("completed")
    (half,) = [turn for turn in model.heard[1] if turn.role == "assistant"]
    assert (half.text, half.interrupted) == ("The answer is", True)


async def test_runs_of_a_thread_that_overlap_are_both_seen_by_the_next(opened: Opener) -> None:
    """What the older one said last is part of the conversation, too."""
    shop, listens = Workshop(), Listener()

    def cue(messages: Transcript) -> Line:
        task = next(t.text for t in reversed(messages) if t.role == "user")
        if task == "second":
            return listens(messages)
        if task == "slow one" and not messages[-1].uses:
            return Use("slow", name="x")
        return f"{task}!"

    midrun = await opened(agent_of(shop, cue))
    slow = await midrun.start("actor", "slow one", thread=THREAD)
    await shop.start("x").wait()
    await (await midrun.start("actor", "quick one", thread=THREAD)).until("completed")
    shop.gate("x").set()
    await slow.until("completed")
    await (await midrun.start("actor", "second", thread=THREAD)).until("completed")
    assert "quick one!" in listens.texts
    assert "slow one!" in listens.texts


async def test_a_repeated_start_in_a_thread_is_the_first_run(opened: Opener) -> None:
    """The request id counts, whatever was said in the thread meanwhile."""
    shop = Workshop()
    midrun = await opened(agent_of(shop, lambda _: "ok"))
    one = await midrun.start("actor", "first", thread=THREAD, request_id="r")
    await one.until("completed")
    again = await midrun.start("actor", "first", thread=THREAD, request_id="r")
    assert again.id == one.id


# ── forks ─────────────────────────────────────────────────────────────────────────────────


async def boundaries(run: Run) -> list[int]:
    """Return the seqs at which `run` can be forked."""
    found = []
    for seq in range(1, len(await journal(run)) + 1):
        try:
            fork = await run.fork(seq)
        except ControlRefused as error:
            assert error.reason == "not_a_boundary"  # noqa: PT017 - most seqs are none
        else:
            found.append(seq)
            await fork.result()
    return found


async def three_steps(
    opened: Opener, shop: Workshop, last: object = "End."
) -> tuple[Midrun, Run]:
    """Let a run make two calls, one after the other, and complete."""
    agent = shop.agent(["A. ", Use("quick", name="a")], ["B. ", Use("quick", name="b")], last)
    midrun = await opened(agent)
    run = await midrun.start("actor", "go")
    await run.until("completed")
    return midrun, run


async def test_a_fork_goes_on_from_the_boundary_it_is_given(opened: Opener) -> None:
    """After the first call: the second is made again by the new run, the first is not."""
    shop = Workshop()
    _, run = await three_steps(opened, shop)
    done = next(
        n
        for n, entry in enumerate(await journal(run), 1)
        if isinstance(entry, CallDone) and entry.call == "c2"
    )
    fork = await run.fork(done)
    assert fork.id != run.id
    assert (await fork.until("completed")).output == "End."
    assert shop.completed == ["a", "b", "b"]
    (started,) = await entries(fork, RunStarted)
    assert started.forked is not None
    assert (started.forked.run, started.forked.seq) == (run.id, done)


async def test_a_fork_leaves_the_original_untouched(opened: Opener) -> None:
    """Not an entry, not a byte."""
    shop = Workshop()
    midrun, run = await three_steps(opened, shop)
    before = await midrun.store.read_lines(run.id)
    fork = await run.fork(instruction="Differently")
    await fork.until("failed", "completed")
    assert await midrun.store.read_lines(run.id) == before


async def test_a_fork_with_an_instruction_follows_it(opened: Opener) -> None:
    """And knows everything that was said before."""
    shop, listens = Workshop(), Listener("Forked.")
    agent = shop.agent(["A. ", Use("quick", name="a")], "End.", listens, listens)
    midrun = await opened(agent)
    run = await midrun.start("actor", "go")
    await run.until("completed")
    fork = await run.fork(instruction="Do it differently", actor="ada")
    assert (await fork.until("completed")).output == "Forked."
    assert listens.texts[0] == "go"
    assert "End." in listens.texts
    assert "Do it differently" in listens.texts
    assert (await fork.view()).task == "Do it differently"


@pytest.mark.parametrize("seq", [0, -1, 10_000])
async def test_a_seq_that_is_not_there_is_not_a_boundary(opened: Opener, seq: int) -> None:
    """It is refused by name, and starts nothing."""
    shop = Workshop()
    midrun, run = await three_steps(opened, shop)
    with pytest.raises(ControlRefused) as refused:
        await run.fork(seq)
    assert refused.value.reason == "not_a_boundary"
    assert len((await midrun.runs()).items) == 1


async def test_in_the_middle_of_a_step_is_not_a_boundary(opened: Opener) -> None:
    """With a model or a tool in flight, or a call wanted and not made."""
    shop = Workshop()
    _, run = await three_steps(opened, shop)
    names = [type(entry).__name__ for entry in await journal(run)]
    free = await boundaries(run)
    assert free
    assert all(names[seq - 1] != "CallStarted" for seq in free)


async def test_a_fork_of_a_run_at_work_starts_from_its_newest_boundary(opened: Opener) -> None:
    """The call in flight stays the first run's own."""
    shop = Workshop()
    agent = shop.agent(["A. ", Use("quick", name="a")], ["B. ", Use("slow", name="b")], "End.")
    run = await (await opened(agent)).start("actor", "go")
    await shop.start("b").wait()
    fork = await run.fork()
    shop.gate("b").set()
    await run.until("completed")
    await fork.until("completed")
    assert shop.called == ["a", "b", "b"]
    assert "slow" not in [use.tool for turn in (await turns(fork))[:2] for use in turn.uses]


async def test_a_fork_of_a_cancelled_run_says_that_its_work_is_partial(opened: Opener) -> None:
    """And undoes nothing that the first run left."""
    shop, listens = Workshop(), Listener("Forked.")
    agent = shop.agent(
        ["A. ", Use("draft", name="a")], ["B. ", Use("slow", name="b")], listens, listens
    )
    run = await (await opened(agent)).start("actor", "go")
    await shop.start("b").wait()
    await run.cancel(undo="all")
    await run.until("cancelled")
    fork = await run.fork(instruction="Again")
    outcome = await fork.result()
    assert isinstance(outcome, Completed)
    assert any("partial" in text for text in listens.texts)
    assert shop.undone == ["a"]


async def test_a_fork_keeps_the_plan(opened: Opener) -> None:
    """Step 2 of 3 is step 2 of 3."""
    shop = Workshop()
    items = ["One", "Two", "Three"]
    agent = shop.agent(
        ["P. ", Use("plan", items=items, marks={"1": "done"})],
        ["B. ", Use("slow", name="b")],
        "End.",
    )
    run = await (await opened(agent)).start("actor", "go")
    await shop.start("b").wait()
    fork = await run.fork()
    assert (await fork.view()).place == "step 2 of 3"
    shop.gate("b").set()
    await fork.until("completed")
    await run.until("completed")


async def test_a_fork_does_not_take_the_review_of_the_first_run_with_it(
    opened: Opener,
) -> None:
    """What was proposed is the first run's to make: approving it makes it once, there."""
    shop = Workshop()
    agent = shop.agent(["P. ", Use("post", name="x")], "Hm.", "Good.", "Good.", "Good.")
    run = await (await opened(agent)).start("actor", "go")
    await run.until("waiting")
    fork = await run.fork(instruction="Differently")
    assert not (await fork.until("completed")).asks
    await run.approve()
    await run.until("completed")
    assert shop.completed == ["x"]


async def test_a_child_is_not_part_of_its_parents_thread(opened: Opener) -> None:
    """The next run sees what the parent said and got, not the child's own conversation."""
    shop, listens = Workshop(), Listener()
    aide = shop.agent(["Private. ", Use("quick", name="x")], "Found.", name="aide")

    def cue(messages: Transcript) -> Line:
        if any(turn.text == "second" for turn in messages):
            return listens(messages)
        return "First." if messages[-1].uses else Use("aide", task="Find")

    parent = Agent("actor", model=ScriptedModel(cue), tools=[aide.as_tool()])
    midrun = await opened(parent)
    await (await midrun.start("actor", "first", thread=THREAD)).until("completed")
    await (await midrun.start("actor", "second", thread=THREAD)).until("completed")
    assert "Private. " not in listens.texts
    assert [use.result for turn in listens.heard for use in turn.uses] == ["Found."]


async def test_a_fork_goes_on_with_the_turn_that_would_have_come_next(opened: Opener) -> None:
    """Also after turns in which the agent only made calls and said nothing."""
    shop = Workshop()
    script = [Use("quick", name=name) for name in ("a", "b", "c")]
    run = await (await opened(shop.agent(*script, "End."))).start("actor", "go")
    await run.until("completed")
    done = [n for n, name in enumerate(await kinds(run), 1) if name == "CallDone"]
    fork = await run.fork(done[3])  # the model and `a`, the model and `b`
    assert (await fork.until("completed")).output == "End."
    assert shop.completed == ["a", "b", "c", "c"]
    uses = [(use.tool, use.result) for turn in await turns(fork) for use in turn.uses]
    assert uses == [("quick", f"{name} done") for name in ("a", "b", "c")]
    assert len({use.call for turn in await turns(fork) for use in turn.uses}) == 3


async def test_a_call_under_way_in_an_older_run_of_the_thread_is_not_called_unmade(
    opened: Opener,
) -> None:
    """Whoever starts next must not make it again for that."""
    shop, listens = Workshop(), Listener()
    midrun = await opened(agent_of(shop, first_then(listens, Use("slow", name="x"), "First.")))
    one = await midrun.start("actor", "first", thread=THREAD)
    await shop.start("x").wait()
    await (await midrun.start("actor", "second", thread=THREAD)).until("completed")
    assert [u.problem for t in listens.heard for u in t.uses] == ["still under way there"]
    shop.gate("x").set()
    await one.until("completed")


@pytest.mark.parametrize("goes_on", ["thread", "fork"])
async def test_who_answered_in_an_earlier_run_does_not_approve_what_follows(
    opened: Opener, goes_on: str
) -> None:
    """The history has the answer without the name of its author; four eyes know the name."""
    shop = Workshop()

    def cue(messages: Transcript) -> Line:
        if any(turn.text == "second" for turn in messages):
            return Use("sign", name="x")
        return (
            "First."
            if messages.assistant_turn_count
            else Use("ask_human", question="Which account?")
        )

    agent = Agent("actor", model=ScriptedModel(cue), tools=shop.tools())
    midrun = await opened(agent)
    one = await midrun.start("actor", "first", thread=THREAD, actor="ada")
    await one.until("waiting")
    await one.answer("DE89", actor="bob")
    await one.until("completed")
    if goes_on == "fork":
        two = await one.fork(instruction="second", actor="cyd")
    else:
        two = await midrun.start("actor", "second", thread=THREAD, actor="cyd")
    await two.until("waiting")
    with pytest.raises(ControlRefused) as refused:
        await two.approve(actor="bob")
    assert refused.value.reason == "not_allowed"
    assert shop.completed == []
    assert await midrun.verify(two.id)
