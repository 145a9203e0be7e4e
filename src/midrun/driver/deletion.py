"""Deletion of runs and their retention: many runs, in steps that leave room for writers.

A store deletes a batch of runs in one short transaction and removes their entries in further
short ones (`stores/deletion.py`). This module makes these steps, one after the other. While
workers are alive, it pauses after each step for `PAUSE_PER_STEP` times as long as the step has
taken: an append then seldom waits for a deletion.

Retention is deletion by age. Each worker that has rules looks for ended runs that are older
than their rule allows. Two workers that find the same runs do no harm: the second one is
refused. Each worker also removes the entries that a killed process has left behind.
"""

import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import timedelta
from typing import Final

import anyio
from anyio.lowlevel import checkpoint
from msgspec import Struct
from msgspec.structs import replace

from midrun.core.ids import Micros, RunId
from midrun.core.run_head import Head
from midrun.errors import MidrunError, Misconfigured
from midrun.ports.environment import Clock
from midrun.ports.store import DeletedRuns, EndedQuery, RunRow, Store

BATCH_MAX_RUNS: Final = 10
"""The most runs that one transaction deletes, besides their children."""

PAGE_MAX_RUNS: Final = 200
"""The most runs that are listed at a time."""

PAUSE_PER_STEP: Final = 40
"""A pause is this many times as long as the step before it."""

PAUSE_MAX_S: Final = 5.0
"""The longest pause, after a step that had to wait for a lock or a slow disk."""

RETENTION_ACTOR: Final = "system:retention"
"""The name in the tombstone of a run that the retention has deleted."""

RETENTION_INTERVAL_S: Final = 600.0
"""Seconds between two looks for runs that are older than their rule allows."""

LEFTOVERS_INTERVAL_S: Final = 60.0
"""Seconds between two looks for entries that a killed process has left behind."""

_SECONDS_BY_UNIT: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}

log = logging.getLogger("midrun")


def parse_age(text: str) -> timedelta:
    """Return the age that `text` names: a number and s, m, h, d or w.

    Raises:
        Misconfigured: it has another form.
    """
    match = re.fullmatch(r"([0-9]{1,6})([smhdw])", text)
    if match is None:
        problem = f"must be a number and s, m, h, d or w, such as 90d, got {text!r}"
        raise Misconfigured("age", problem)
    return timedelta(seconds=int(match[1]) * _SECONDS_BY_UNIT[match[2]])


class RetentionRules(Struct, frozen=True):
    """The age at which ended runs are deleted, by scope; None means never.

    A scope is `all`, `agent:NAME` or `label:LABEL`. The rule of a label counts more than that
    of the agent, and that counts more than the rule for all runs. Of several labels the longest
    time counts: a deletion cannot be taken back.

    Raises:
        Misconfigured: a scope that covers no run, or an age that is not positive.
    """

    ages: Mapping[str, timedelta | None]

    def __post_init__(self) -> None:
        for scope, age in self.ages.items():
            kind, _, name = scope.partition(":")
            if scope != "all" and not (kind in {"agent", "label"} and name):
                problem = "the scope must be all, agent:NAME or label:LABEL"
                raise Misconfigured(f"retention {scope!r}", problem)
            given: object = age  # of a caller without a type checker
            if given is not None and not (isinstance(given, timedelta) and given > timedelta()):
                problem = f"must be a timedelta above 0, or None to keep the runs, got {age!r}"
                raise Misconfigured(f"retention {scope!r}", problem)

    def find_age(self, head: Head) -> timedelta | None:
        """Return the age at which a run with this head is deleted; None: it is kept."""
        labels = [
            self.ages[f"label:{label}"]
            for label in head.labels
            if f"label:{label}" in self.ages
        ]
        # One label without a limit keeps the run, whatever the others say.
        if labels:
            ages = [age for age in labels if age is not None]
            return max(ages) if len(ages) == len(labels) else None
        return self.ages.get(f"agent:{head.agent}", self.ages.get("all"))

    def list_queries(self, now: Micros) -> list[EndedQuery]:
        """Return a query for each rule, which finds all runs that the rule may apply to."""
        queries: list[EndedQuery] = []
        for scope, age in self.ages.items():
            if age is not None:
                kind, _, name = scope.partition(":")
                # The query finds more runs than the rule deletes: a label of the run may have
                # a longer age. `is_due` decides on each of them.
                before = Micros(max(0, now - age // timedelta(microseconds=1)))
                query = EndedQuery(before=before, limit=PAGE_MAX_RUNS)
                names = {} if scope == "all" else {kind: name}
                queries.append(replace(query, **names))
        return queries

    def is_due(self, row: RunRow, now: Micros) -> bool:
        """Tell whether the run is older than its rule allows."""
        age = self.find_age(row.head)
        return age is not None and row.changed_at < now - age // timedelta(microseconds=1)


async def list_ended_rows(store: Store, query: EndedQuery) -> AsyncIterator[RunRow]:
    """Yield all runs of `query`, page by page."""
    while True:
        page = await store.list_ended(query)
        for row in page.items:
            yield row
        if not page.cursor:
            return
        # The cursor names a moment and a number, so it stays valid although the caller deletes
        # the runs of this page before it asks for the next.
        query = replace(query, cursor=page.cursor)


async def delete_matching(
    store: Store,
    query: EndedQuery,
    *,
    by: str,
    reason: str,
    is_due: Callable[[RunRow], bool] = lambda _: True,
    max_runs: int | None = None,
) -> int:
    """Delete the runs of `query` in batches; return the number of tombstones.

    A run that is refused, because a child of it has not ended, is skipped. With `max_runs`,
    this ends with the batch that reaches it; then there may be more.
    """
    deleted, batch, pause = 0, list[RunId](), await StepPause.create(store)
    async for row in list_ended_rows(store, replace(query, limit=PAGE_MAX_RUNS)):
        if is_due(row):
            # Only collected here. The rule is decided by the row of this moment; `delete_runs`
            # checks again, in its transaction, that the run and its children have ended.
            batch.append(row.run)
        if len(batch) == BATCH_MAX_RUNS:
            # The pause is inside: while it lasts, no transaction of this deletion is open.
            deleted += await _delete_batch(store, batch, by, reason, pause)
            batch = []
        if max_runs is not None and deleted >= max_runs:
            return deleted
    return deleted + await _delete_batch(store, batch, by, reason, pause)


async def _delete_batch(
    store: Store, runs: list[RunId], by: str, reason: str, pause: "StepPause"
) -> int:
    if not runs:
        return 0
    started = anyio.current_time()
    result: DeletedRuns = await store.delete_runs(runs, by=by, reason=reason)
    await pause.wait_after_step(started)
    return len(result.tombstones)


async def remove_all_leftovers(store: Store, *, max_steps: int | None = None) -> None:
    """Remove the entries of deleted runs and free their space, in at most `max_steps`."""
    pause, steps = await StepPause.create(store), 0
    while max_steps is None or steps < max_steps:
        steps, started = steps + 1, anyio.current_time()
        if not await store.remove_leftovers():
            return
        await pause.wait_after_step(started)


class StepPause(Struct, frozen=True):
    """Pauses between the steps of a deletion, if other processes write at the same time."""

    has_writers: bool

    @classmethod
    async def create(cls, store: Store) -> "StepPause":
        """Return pauses that fit the processes which are alive now."""
        return cls(bool(await store.list_holders()))

    async def wait_after_step(self, started: float) -> None:
        """Pause after the step that began at `started`, by AnyIO's clock."""
        if not self.has_writers:
            await checkpoint()
            return
        # In proportion to the step, so that the share of the disk is the same on slow and on
        # fast machines. `started` is before the step, so time spent waiting for a lock counts,
        # too: a busy store gets longer pauses.
        took_s = anyio.current_time() - started
        await anyio.sleep(min(PAUSE_PER_STEP * took_s, PAUSE_MAX_S))


async def enforce_retention(store: Store, rules: RetentionRules, now: Micros) -> int:
    """Delete all runs that are older than their rule allows; return the number."""
    deleted = 0
    for query in rules.list_queries(now):
        deleted += await delete_matching(
            store,
            query,
            by=RETENTION_ACTOR,
            reason="older than the retention",
            is_due=lambda row: rules.is_due(row, now),
        )
    return deleted


async def run_retention(
    store: Store, rules: RetentionRules, clock: Clock, random_unit: Callable[[], float]
) -> None:
    """Enforce `rules` and remove leftovers until cancelled."""
    next_look_at = 0.0
    while True:
        try:
            if rules.ages and anyio.current_time() >= next_look_at:
                # At a random time, so that the workers of a fleet do not look at once.
                delay_s = RETENTION_INTERVAL_S * (0.5 + random_unit())
                next_look_at = anyio.current_time() + delay_s
                if deleted := await enforce_retention(store, rules, clock()):
                    log.info("The retention has deleted %d runs", deleted)
            # Also without rules: these entries may be of a deletion by command whose process
            # was killed.
            await remove_all_leftovers(store)
        except MidrunError as error:
            log.warning("Cannot delete old runs for now: %s", error)
        await anyio.sleep(LEFTOVERS_INTERVAL_S)
