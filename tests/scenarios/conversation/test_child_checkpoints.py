"""Checkpoints of runs with children: the journals of the children are part of them."""

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
from tests.scenarios.conversation.toolkit import ApprovalToolkit, make_parent
from tests.support.gated_model import repeat_results
from tests.support.run_journal import read_entries, wait_for_child
from tests.unit.runs.conftest import OpenMidrun, verify_journals

KEY = b"a key of the deployment"
TIME_LIMIT_SECONDS = 60


def make_family(toolkit: ApprovalToolkit, *turns: object) -> Agent:
    """Return a parent whose child plays `turns`; the parent answers with its result."""
    child_agent = toolkit.agent(*turns, name="aide")
    return make_parent(
        child_agent, turns=[Use("aide", task="Do"), repeat_results], toolkit=toolkit
    )


async def start_waiting_run(midrun: Midrun) -> Run:
    """Start a run of the parent, and wait until it waits for a person."""
    run = await midrun.start("parent", "go")
    await run.until("waiting")
    return run


def open_other_store(path: Path, agent: Agent, *, key: bytes | None = None) -> Midrun:
    """Return a `Midrun` on another store."""
    return Midrun(f"sqlite:///{path}/other.db", agents=[agent], key=key)


async def test_a_resume_on_another_store_repeats_no_call_of_the_child(
    opened: OpenMidrun, tmp_path: Path
) -> None:
    """The answer reaches the child, which continues from its question."""
    toolkit = ApprovalToolkit()
    agent = make_family(
        toolkit, Use("quick", name="paid"), Use("ask_human", question="Ok?"), repeat_results
    )
    run = await start_waiting_run(await opened(agent, key=KEY))
    text = (await run.checkpoint()).to_json()
    async with open_other_store(tmp_path, agent, key=KEY) as other_midrun:
        resumed_run = await other_midrun.resume(
            Checkpoint.from_json(text, key=KEY), "yes", actor="ada"
        )
        outcome = await resumed_run.result()
        assert isinstance(outcome, Completed)
        assert outcome.output == "aide: ask_human: yes"
        assert toolkit.completed == ["paid"]
        (answered,) = await read_entries(
            await wait_for_child(other_midrun, resumed_run), AskAnswered
        )
        assert answered.by == "ada"
    await verify_journals(tmp_path / "other.db")


async def test_a_checkpoint_without_a_store_contains_child_and_grandchild() -> None:
    """Promises 6 and 9, for a child and for a child of its own."""
    toolkit = ApprovalToolkit()
    script = [Use("quick", name="deep"), Use("ask_human", question="Ok?"), repeat_results]
    inner = toolkit.agent(*script, name="inner")
    turns: list[Line | Cue] = [
        Use("quick", name="middle"),
        Use("inner", task="deeper"),
        repeat_results,
    ]
    tools = [inner.as_tool(), *toolkit.tools()]
    middle = Agent("middle", model=ScriptedModel(turns), tools=tools)
    agent = make_parent(middle, turns=[Use("middle", task="deep"), repeat_results])
    with anyio.fail_after(TIME_LIMIT_SECONDS):
        paused = await agent.run("go")
        assert isinstance(paused, Paused)
        assert len(paused.checkpoint.children) == 2
        checkpoint = Checkpoint.from_json(paused.checkpoint.to_json())
        outcome = await agent.resume(checkpoint, "red")
    assert isinstance(outcome, Completed)
    assert outcome.output == "middle: inner: ask_human: red"
    assert toolkit.completed == ["middle", "deep"]


@pytest.mark.parametrize(
    ("answer", "completed"), [(True, ["bill"]), ({"approved": False, "reason": "no"}, [])]
)
async def test_an_approval_of_a_child_is_given_with_the_checkpoint_of_its_parent(
    answer: Json, completed: list[str]
) -> None:
    toolkit = ApprovalToolkit()
    agent = make_family(toolkit, Use("pay", name="bill"), "Done.")
    with anyio.fail_after(TIME_LIMIT_SECONDS):
        paused = await agent.run("go")
        assert isinstance(paused, Paused)
        assert paused.reason == "approval"
        outcome = await agent.resume(paused.checkpoint, answer)
    assert isinstance(outcome, Completed)
    assert toolkit.completed == completed


async def test_a_completed_child_can_be_undone_on_another_store(
    opened: OpenMidrun, tmp_path: Path
) -> None:
    """The undo needs the journal of the child, which is part of the checkpoint."""
    toolkit = ApprovalToolkit()
    child_agent = toolkit.agent(Use("draft", name="inner"), "Done.", name="aide")
    turns = [Use("aide", task="Do"), Use("ask_human", question="Go on?"), repeat_results]
    agent = make_parent(child_agent, turns=turns, toolkit=toolkit)
    midrun = await opened(agent)
    run = await start_waiting_run(midrun)
    await run.pause()
    checkpoint = await run.checkpoint()
    async with open_other_store(tmp_path, agent) as other_midrun:
        resumed_run = await other_midrun.resume(checkpoint)
        await resumed_run.cancel(undo="all")
        outcome = await resumed_run.result()
        assert isinstance(outcome, Cancelled)
        assert outcome.report.clean
        assert toolkit.undone == ["inner"]


async def test_a_checkpoint_with_missing_or_foreign_children_is_refused(
    opened: OpenMidrun,
) -> None:
    """Without its child, the work of the child would be done again."""
    toolkit = ApprovalToolkit()
    midrun = await opened(
        make_family(toolkit, Use("ask_human", question="Ok?"), repeat_results)
    )
    run = await start_waiting_run(midrun)
    checkpoint = await run.checkpoint()
    (child,) = checkpoint.children
    assert child.run == (await wait_for_child(midrun, run)).id
    for children, problem in (
        ((), "is missing"),
        ((child, child), "twice"),
        ((child, msgspec.structs.replace(child, run=RunId("run_x"))), "not one of its"),
        ((msgspec.structs.replace(child, lines=child.lines[:-1]),), "head"),
    ):
        changed_checkpoint = msgspec.structs.replace(checkpoint, children=children)
        with pytest.raises(CheckpointRefused, match=problem):
            Checkpoint.from_json(changed_checkpoint.to_json())


async def test_a_checkpoint_is_refused_while_a_child_is_running(opened: OpenMidrun) -> None:
    """The parent was forced to pause; the call of the child is still in flight."""
    toolkit = ApprovalToolkit()
    midrun = await opened(make_family(toolkit, Use("slow", name="x"), repeat_results))
    run = await midrun.start("parent", "go")
    await toolkit.start("x").wait()
    child = await wait_for_child(midrun, run)
    await run.pause()
    await child.until("pausing")
    await run.force_pause()
    await run.until("paused")
    with pytest.raises(CheckpointRefused, match="pausing"):
        await run.checkpoint()
    toolkit.gate("x").set()
    outcome = await run.result()
    assert isinstance(outcome, Paused)
    assert len(outcome.checkpoint.children) == 1
    await run.resume()
    await run.until("completed")
    assert toolkit.completed == ["x"]


async def test_a_child_that_continued_makes_the_checkpoint_of_its_parent_stale(
    opened: OpenMidrun, tmp_path: Path
) -> None:
    """The store has the child, and never had the parent."""
    toolkit = ApprovalToolkit()
    agent = make_family(
        toolkit, Use("ask_human", question="Ok?"), Use("quick", name="x"), repeat_results
    )
    midrun = await opened(agent)
    run = await start_waiting_run(midrun)
    checkpoint, child_checkpoint = (
        await run.checkpoint(),
        await (await wait_for_child(midrun, run)).checkpoint(),
    )
    async with open_other_store(tmp_path, agent) as other_midrun:
        await (await other_midrun.resume(child_checkpoint, "yes")).until("completed")
        with pytest.raises(CheckpointRefused, match="child run"):
            await other_midrun.resume(checkpoint, "yes")
        assert len((await other_midrun.runs()).items) == 1
    assert toolkit.completed == ["x"]


async def test_a_checkpoint_is_refused_if_the_agent_of_the_child_has_changed(
    opened: OpenMidrun,
) -> None:
    """The agent of the parent is unchanged."""
    toolkit = ApprovalToolkit()
    midrun = await opened(
        make_family(toolkit, Use("ask_human", question="Ok?"), repeat_results)
    )
    run = await start_waiting_run(midrun)
    checkpoint = await run.checkpoint()
    child_agent = toolkit.agent(
        Use("ask_human", question="Ok?"), repeat_results, name="aide", instructions="Hm."
    )
    changed = make_parent(
        child_agent, turns=[Use("aide", task="Do"), repeat_results], toolkit=toolkit
    )
    with pytest.raises(CheckpointRefused, match="aide") as refusal:
        await changed.resume(checkpoint, "yes")
    assert refusal.value.reason == "agent_mismatch"


async def test_a_partly_imported_checkpoint_is_completed_by_the_next_resume(
    opened: OpenMidrun, tmp_path: Path
) -> None:
    """The first process died after it had imported the child, and before the parent."""
    toolkit = ApprovalToolkit()
    agent = make_family(
        toolkit, Use("quick", name="x"), Use("ask_human", question="Ok?"), repeat_results
    )
    run = await start_waiting_run(await opened(agent))
    checkpoint = await run.checkpoint()
    async with open_other_store(tmp_path, agent) as other_midrun:
        for child, state in checkpoint.family():
            imported = RunImported(checkpoint=run.id, head=child.head_hash)
            head = build_head(state)
            await other_midrun.store.adopt(child.run, child.journal, imported, head=head)
        await (await other_midrun.resume(checkpoint, "yes")).until("completed")
    assert toolkit.completed == ["x"]
