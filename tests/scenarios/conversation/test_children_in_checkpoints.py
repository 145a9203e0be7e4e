"""Checkpoints of families: what a child has done goes along, and is not done again."""

from pathlib import Path

import anyio
import msgspec
import pytest

from midrun import (
    Agent,
    Cancelled,
    Checkpoint,
    CheckpointRefused,
    Completed,
    Midrun,
    Paused,
    Run,
)
from midrun.core.entries import AskAnswered, RunImported
from midrun.core.ids import RunId
from midrun.core.run_head import build_head
from midrun.core.values import Json
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Cue, Line
from tests.scenarios.conversation.workshop import Workshop, child_of, delegating, told
from tests.scenarios.promises.seen import entries
from tests.unit.runs.conftest import Opener, verify_all

KEY = b"a key of the deployment"
PATIENCE = 60


def family(shop: Workshop, *turns: object) -> Agent:
    """Return a parent whose child plays `turns`; the parent says what it was told of it."""
    aide = shop.agent(*turns, name="aide")
    return delegating(aide, turns=[Use("aide", task="Do"), told], stage=shop)


async def asking(midrun: Midrun) -> Run:
    """Return a run of the parent once somebody is asked something."""
    run = await midrun.start("parent", "go")
    await run.until("waiting")
    return run


def elsewhere(path: Path, agent: Agent, *, key: bytes | None = None) -> Midrun:
    """Return a Midrun on another store."""
    return Midrun(f"sqlite:///{path}/other.db", agents=[agent], key=key)


async def test_what_a_child_did_is_not_done_again_where_its_parent_goes_on(
    opened: Opener, tmp_path: Path
) -> None:
    """The answer, given elsewhere, reaches the child, which goes on from where it asked."""
    shop = Workshop()
    agent = family(shop, Use("quick", name="paid"), Use("ask_human", question="Ok?"), told)
    run = await asking(await opened(agent, key=KEY))
    text = (await run.checkpoint()).to_json()
    async with elsewhere(tmp_path, agent, key=KEY) as other:
        again = await other.resume(Checkpoint.from_json(text, key=KEY), "yes", actor="ada")
        outcome = await again.result()
        assert isinstance(outcome, Completed)
        assert outcome.output == "aide: ask_human: yes"
        assert shop.completed == ["paid"]
        (answered,) = await entries(await child_of(other, again), AskAnswered)
        assert answered.by == "ada"
    await verify_all(tmp_path / "other.db")


async def test_a_family_without_a_store_goes_on_in_another_process() -> None:
    """Promises 6 and 9, for a child and for a child of its own."""
    shop = Workshop()
    script = [Use("quick", name="deep"), Use("ask_human", question="Ok?"), told]
    inner = shop.agent(*script, name="inner")
    turns: list[Line | Cue] = [
        Use("quick", name="middle"),
        Use("inner", task="deeper"),
        told,
    ]
    tools = [inner.as_tool(), *shop.tools()]
    middle = Agent("middle", model=ScriptedModel(turns), tools=tools)
    agent = delegating(middle, turns=[Use("middle", task="deep"), told])
    with anyio.fail_after(PATIENCE):
        paused = await agent.run("go")
        assert isinstance(paused, Paused)
        assert len(paused.checkpoint.children) == 2
        checkpoint = Checkpoint.from_json(paused.checkpoint.to_json())
        outcome = await agent.resume(checkpoint, "red")
    assert isinstance(outcome, Completed)
    assert outcome.output == "middle: inner: ask_human: red"
    assert shop.completed == ["middle", "deep"]


@pytest.mark.parametrize(
    ("answer", "made"), [(True, ["bill"]), ({"approved": False, "reason": "no"}, [])]
)
async def test_a_childs_approval_is_given_with_its_parents_checkpoint(
    answer: Json, made: list[str]
) -> None:
    """What is asked decides what an answer means, whoever asks it."""
    shop = Workshop()
    agent = family(shop, Use("pay", name="bill"), "Done.")
    with anyio.fail_after(PATIENCE):
        paused = await agent.run("go")
        assert isinstance(paused, Paused)
        assert paused.reason == "approval"
        outcome = await agent.resume(paused.checkpoint, answer)
    assert isinstance(outcome, Completed)
    assert shop.completed == made


async def test_what_a_completed_child_did_can_be_taken_back_elsewhere(
    opened: Opener, tmp_path: Path
) -> None:
    """It needs the child's own journal, and its own undo."""
    shop = Workshop()
    aide = shop.agent(Use("draft", name="inner"), "Done.", name="aide")
    turns = [Use("aide", task="Do"), Use("ask_human", question="Go on?"), told]
    agent = delegating(aide, turns=turns, stage=shop)
    midrun = await opened(agent)
    run = await asking(midrun)
    await run.pause()
    checkpoint = await run.checkpoint()
    async with elsewhere(tmp_path, agent) as other:
        again = await other.resume(checkpoint)
        await again.cancel(undo="all")
        outcome = await again.result()
        assert isinstance(outcome, Cancelled)
        assert outcome.report.clean
        assert shop.undone == ["inner"]


async def test_a_checkpoint_that_lacks_a_child_is_refused(opened: Opener) -> None:
    """Whoever left it out would have its work done again."""
    shop = Workshop()
    midrun = await opened(family(shop, Use("ask_human", question="Ok?"), told))
    run = await asking(midrun)
    whole = await run.checkpoint()
    (child,) = whole.children
    assert child.run == (await child_of(midrun, run)).id
    for children, problem in (
        ((), "is missing"),
        ((child, child), "twice"),
        ((child, msgspec.structs.replace(child, run=RunId("run_x"))), "not one of its"),
        ((msgspec.structs.replace(child, lines=child.lines[:-1]),), "head"),
    ):
        short = msgspec.structs.replace(whole, children=children)
        with pytest.raises(CheckpointRefused, match=problem):
            Checkpoint.from_json(short.to_json())


async def test_a_child_that_is_at_work_is_not_taken_away(opened: Opener) -> None:
    """It was forced to pause with a call under way: the child's process still has it."""
    shop = Workshop()
    midrun = await opened(family(shop, Use("slow", name="x"), told))
    run = await midrun.start("parent", "go")
    await shop.start("x").wait()
    child = await child_of(midrun, run)
    await run.pause()
    await child.until("pausing")
    await run.force_pause()
    await run.until("paused")
    with pytest.raises(CheckpointRefused, match="pausing"):
        await run.checkpoint()
    shop.gate("x").set()
    outcome = await run.result()
    assert isinstance(outcome, Paused)
    assert len(outcome.checkpoint.children) == 1
    await run.resume()
    await run.until("completed")
    assert shop.completed == ["x"]


async def test_a_child_that_went_on_elsewhere_makes_its_parents_checkpoint_stale(
    opened: Opener, tmp_path: Path
) -> None:
    """The store knows better, although it never had the parent."""
    shop = Workshop()
    agent = family(shop, Use("ask_human", question="Ok?"), Use("quick", name="x"), told)
    midrun = await opened(agent)
    run = await asking(midrun)
    whole, alone = await run.checkpoint(), await (await child_of(midrun, run)).checkpoint()
    async with elsewhere(tmp_path, agent) as other:
        await (await other.resume(alone, "yes")).until("completed")
        with pytest.raises(CheckpointRefused, match="child run"):
            await other.resume(whole, "yes")
        assert len((await other.runs()).items) == 1
    assert shop.completed == ["x"]


async def test_a_child_whose_agent_has_changed_does_not_go_on_from_a_checkpoint(
    opened: Opener,
) -> None:
    """The parent's own agent is as it was, and does not know."""
    shop = Workshop()
    midrun = await opened(family(shop, Use("ask_human", question="Ok?"), told))
    run = await asking(midrun)
    checkpoint = await run.checkpoint()
    aide = shop.agent(Use("ask_human", question="Ok?"), told, name="aide", instructions="Hm.")
    changed = delegating(aide, turns=[Use("aide", task="Do"), told], stage=shop)
    with pytest.raises(CheckpointRefused, match="aide") as refused:
        await changed.resume(checkpoint, "yes")
    assert refused.value.reason == "agent_mismatch"


async def test_a_family_that_was_taken_in_by_halves_is_taken_in_by_the_next_attempt(
    opened: Opener, tmp_path: Path
) -> None:
    """A process died after the child, and before its parent."""
    shop = Workshop()
    agent = family(shop, Use("quick", name="x"), Use("ask_human", question="Ok?"), told)
    run = await asking(await opened(agent))
    checkpoint = await run.checkpoint()
    async with elsewhere(tmp_path, agent) as other:
        for child, state in checkpoint.family():
            imported = RunImported(checkpoint=run.id, head=child.head_hash)
            head = build_head(state)
            await other.store.adopt(child.run, child.journal, imported, head=head)
        await (await other.resume(checkpoint, "yes")).until("completed")
    assert shop.completed == ["x"]
