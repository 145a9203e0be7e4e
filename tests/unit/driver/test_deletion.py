"""Retention: runs are deleted at the age that their rule names."""

from datetime import timedelta

import anyio
import pytest

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
from midrun.ports.store import RunQuery
from midrun.stores.memory import MemoryStore
from midrun.testing.store_suite.fixtures import ManualClock, create_run
from tests.support.conditions import wait_until

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
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    rules = RetentionRules({"all": DAY})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_retention, store, rules, clock, lambda: 0.5)
        for _ in range(2):
            for number in range(60):
                await create_run(store, RunId(f"run_{clock.now}_{number}"), head=make_head())
            clock.move(2 * DAY_S)
            await wait_until(lambda: not store._runs)
        tasks.cancel_scope.cancel()


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
