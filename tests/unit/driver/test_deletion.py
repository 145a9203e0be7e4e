"""Deletion of many runs: nothing of them is left, and retention deletes them by age."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import anyio
import apsw
import pytest

from midrun import Agent, File, Midrun, tool
from midrun.core.ids import Micros, RunId
from midrun.core.run_head import Head
from midrun.core.values import Phase
from midrun.driver import deletion
from midrun.driver.deletion import (
    RetentionRules,
    enforce_retention,
    parse_age,
    run_retention,
)
from midrun.errors import Misconfigured
from midrun.models import ScriptedModel, Use
from midrun.ports.push_targets import HasPushTargets, PushTarget
from midrun.ports.store import DeletedRuns, RunQuery
from midrun.stops import MaxSteps
from midrun.stores.memory import MemoryStore
from midrun.testing.controllable_tools import ControllableTools
from midrun.testing.store_suite.fixtures import ManualClock, create_run
from tests.support.conditions import wait_until
from tests.support.store_choice import get_store_url
from tests.support.store_dump import dump_store, find_texts

DAY = timedelta(days=1)
DAY_S = DAY.total_seconds()


def make_head(agent: str = "clerk", *labels: str, phase: Phase = Phase.COMPLETED) -> Head:
    return Head(phase=phase, agent=agent, labels=labels)


@pytest.mark.parametrize(
    ("head", "age"),
    [
        (make_head("other"), 90 * DAY),
        (make_head("clerk"), 10 * DAY),
        (make_head("clerk", "short"), DAY),
        (make_head("clerk", "short", "long"), 30 * DAY),
        (make_head("clerk", "short", "hold"), None),
        (make_head("clerk", "unknown"), 10 * DAY),
    ],
)
def test_a_label_counts_more_than_the_agent_and_that_more_than_all(
    head: Head, age: timedelta | None
) -> None:
    rules = RetentionRules(
        {
            "all": 90 * DAY,
            "agent:clerk": 10 * DAY,
            "label:short": DAY,
            "label:long": 30 * DAY,
            "label:hold": None,
        }
    )
    assert rules.find_age(head) == age


async def list_runs(store: MemoryStore) -> set[str]:
    return {row.run for row in (await store.list_runs(RunQuery())).items}


async def test_only_runs_older_than_their_rule_are_deleted() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    heads = {
        "run_old": make_head(),
        "run_held": make_head("clerk", "hold"),
        "run_paused": make_head(phase=Phase.PAUSED),
        "run_other": make_head("other"),
    }
    for run, head in heads.items():
        await create_run(store, RunId(run), head=head)
    clock.move(11 * DAY_S)
    await create_run(store, RunId("run_new"), head=make_head())
    rules = RetentionRules({"agent:clerk": 10 * DAY, "label:hold": None})
    assert await enforce_retention(store, rules, clock.now) == 1
    assert await list_runs(store) == {*heads, "run_new"} - {"run_old"}
    assert (await store.get_tombstone(RunId("run_old"))).by == "system:retention"
    assert await enforce_retention(store, rules, clock.now) == 0


async def test_a_worker_deletes_in_batches_until_it_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deletion, "LEFTOVERS_INTERVAL_S", 0.0)
    monkeypatch.setattr(deletion, "RETENTION_INTERVAL_S", 0.0)
    clock, sizes = ManualClock(), list[int]()

    class MeasuredStore(MemoryStore):
        async def delete_runs(
            self, runs: Sequence[RunId], *, by: str, reason: str = "", tenant: str | None = None
        ) -> DeletedRuns:
            sizes.append(len(runs))
            return await super().delete_runs(runs, by=by, reason=reason, tenant=tenant)

    store = MeasuredStore(clock=clock)
    rules = RetentionRules({"all": DAY})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_retention, store, rules, clock, lambda: 0.5)
        for _ in range(2):
            for number in range(60):
                await create_run(store, RunId(f"run_{clock.now}_{number}"), head=make_head())
            clock.move(2 * DAY_S)
            await wait_until(lambda: not store._runs)
        tasks.cancel_scope.cancel()
    assert (max(sizes), sum(sizes)) == (deletion.BATCH_MAX_RUNS, 120)


async def test_a_midrun_deletes_runs_of_an_agent_but_not_those_with_a_label(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deletion, "LEFTOVERS_INTERVAL_S", 0.01)
    monkeypatch.setattr(deletion, "RETENTION_INTERVAL_S", 0.01)
    brief, other = (
        ControllableTools().agent("Done.", "Done.", name=name) for name in ("brief", "other")
    )
    rules = {"agent:brief": timedelta(microseconds=1), "label:hold": None}
    with anyio.fail_after(60):
        async with Midrun("memory://", agents=[brief, other], retention=rules) as midrun:
            held = await midrun.start(brief, "go", labels=["hold"])
            kept = await midrun.start(other, "go")
            for run in (held, kept):
                await run.until("completed")
            gone = await midrun.start(brief, "go")
            while (erasure := (await midrun.verify(gone.id)).erased) is None:  # noqa: ASYNC110 - the worker deletes it
                await anyio.sleep(0.005)
            assert erasure.by == "system:retention"
            left = {view.run_id for view in (await midrun.runs()).items}
            assert left == {held.id, kept.id}


# ── nothing is left ──────────────────────────────────────────────────────────

SECRET = "the patient Quillfeather has gallstones"


@tool(artifact="letter.md")
async def write_letter(text: str) -> str:
    """Write a letter."""
    return f"A letter: {text}."


def make_clerk() -> Agent:
    """Return an agent with a child agent; all their texts have the secret."""
    child = Agent("researcher", model=ScriptedModel([f"I know that {SECRET}."] * 9))
    turns: list[str | Use] = [Use("researcher", task=SECRET)]
    turns += [Use("write_letter", text=SECRET), SECRET]
    model = ScriptedModel(lambda m: turns[m.assistant_turn_count])
    return Agent("clerk", model=model, tools=[write_letter, child.as_tool()])


@pytest.mark.parametrize(
    "store_path", ["sqlite", pytest.param("postgres", marks=pytest.mark.once)], indirect=True
)
async def test_nothing_of_a_deleted_run_is_left_in_the_store(
    store_path: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Child runs, images, artifacts, a checkpoint taken in, words, addresses: all are gone."""
    on_postgres = store_path.with_suffix(".url").exists()
    postgres = request.getfixturevalue("postgres") if on_postgres else None
    agent = make_clerk()
    async with Midrun("memory://", agents=[agent]) as elsewhere:
        moving = await elsewhere.start(agent, SECRET, stop=MaxSteps(1))
        await moving.until("paused")
        checkpoint = await moving.checkpoint()
    image = File("scan.png", "image/png", b"\x89PNG\r\n\x1a\n" + SECRET.encode())
    with anyio.fail_after(60):
        async with Midrun(get_store_url(store_path), agents=[agent]) as midrun:
            run = await midrun.start(agent, f"{SECRET}?", files=[image], thread="t")
            await run.until("completed")
            moved = await midrun.resume(checkpoint, caps={"steps": 9})
            await moved.until("completed")
            assert isinstance(midrun.store, HasPushTargets)
            target = PushTarget(id="a", body=SECRET.encode())
            await midrun.store.push_targets().put_target(RunId(run.id), target)
            assert (await midrun.runs(search="quillfeather")).items
            assert find_texts(dump_store(store_path, postgres), SECRET)
            ids = [view.run_id for view in (await midrun.runs()).items]
            assert len(ids) == 4
            assert await midrun.delete_runs(agent="clerk", actor="operator:olga") == 4
            for run_id in ids:
                assert "erased by olga" in str(await midrun.verify(run_id))
            assert not (await midrun.runs(search="quillfeather")).items
    whole = store_path
    if not on_postgres:  # the free pages of the file may still have old bytes
        whole = tmp_path / "copy" / "runs.db"
        whole.parent.mkdir()
        db = apsw.Connection(str(store_path))
        db.execute("VACUUM INTO ?", (str(whole),))
        db.close()
    assert find_texts(dump_store(whole, postgres), SECRET) == []


@pytest.mark.parametrize(
    ("text", "age"),
    [
        ("90d", 90 * DAY),
        ("12h", DAY / 2),
        ("2w", 14 * DAY),
        ("30m", DAY / 48),
        ("1s", DAY / DAY_S),
    ],
)
def test_an_age_is_a_number_and_a_unit(text: str, age: timedelta) -> None:
    assert parse_age(text) == age


@pytest.mark.parametrize("text", ["", "90", "d", "-1d", "1.5d", "90 d", "٣d"])
def test_another_age_is_refused(text: str) -> None:
    with pytest.raises(Misconfigured, match="such as 90d"):
        parse_age(text)


@pytest.mark.parametrize(
    "ages", [{"agent:": DAY}, {"run:x": DAY}, {"all": timedelta()}, {"all": -DAY}, {"all": 90}]
)
def test_a_rule_without_effect_is_refused(ages: dict[str, timedelta]) -> None:
    with pytest.raises(Misconfigured, match="retention"):
        RetentionRules(ages)


def test_a_query_reaches_back_to_the_epoch_at_most() -> None:
    (query,) = RetentionRules({"all": 90 * DAY}).list_queries(Micros(5))
    assert query.before == 0
