"""Deletion of runs, for `Run.delete`, `Midrun.delete_runs` and the server.

A caller names one run, or selects many by thread, user, agent, label and age. Only runs that
have ended are deleted, each with its child runs.
"""

from typing import Final

from msgspec.structs import replace

from midrun.core.ids import Micros, RunId
from midrun.core.values import DELETABLE_PHASES, Actor, Phase
from midrun.driver.deletion import delete_matching, list_ended_rows, remove_all_leftovers
from midrun.errors import RunErased
from midrun.ports.audit import AuditEntry
from midrun.ports.store import RunQuery, Store
from midrun.runs import validation
from midrun.runs.audit import store_audit
from midrun.runs.validation import REASON_MAX_CHARS
from midrun.runs.values import DeletableRuns, Erasure, RunSelection

INLINE_MAX_STEPS: Final = 64
"""The most steps that `Run.delete` takes to remove entries; a worker does the rest."""

COUNT_PAGE_MAX_RUNS: Final = 500


async def delete_one(store: Store, run: RunId, by: Actor, reason: str) -> Erasure:
    """Delete `run` with its child runs; of a run that is deleted, return the erasure.

    For an actor of a tenant, a run of another tenant is not found.

    Raises:
        RunNotFound: there is no such run.
        DeleteRefused: it has not ended, or is a child run.
    """
    reason = validation.check_name("reason", reason, REASON_MAX_CHARS)
    tenant = by.tenant or None
    deleted = await store.delete_runs([run], by=by.name, reason=reason, tenant=tenant)
    for refusal in deleted.refusals:
        if not isinstance(refusal, RunErased):
            raise refusal
        return Erasure.from_tombstone(await store.get_tombstone(run, tenant))
    tombstone = next(t for t in deleted.tombstones if t.run == run)
    entry = AuditEntry(
        action="delete",
        actor=by.name,
        role=by.role,
        run=run,
        reason=reason,
        tenant=tombstone.tenant,
    )
    await store_audit(store, entry)
    await remove_all_leftovers(store, max_steps=INLINE_MAX_STEPS)
    return Erasure.from_tombstone(tombstone)


def restrict_selection(selection: RunSelection, by: Actor) -> RunSelection:
    """Return `selection`, restricted to the tenant of `by` if it has one.

    Raises:
        Misconfigured: it names another tenant.
    """
    return replace(selection, tenant=validation.restrict_tenant(selection.tenant, by))


async def count_deletable(store: Store, selection: RunSelection, now: Micros) -> DeletableRuns:
    """Count the runs that a deletion would delete, and those that have not ended."""
    runs = 0
    async for _ in list_ended_rows(store, selection.make_query(now)):
        runs += 1
    if selection.older_than is not None:
        return DeletableRuns(runs=runs)
    alive, cursor = 0, ""
    query = RunQuery(
        phases=tuple(phase for phase in Phase if phase not in DELETABLE_PHASES),
        agent=selection.agent,
        label=selection.label,
        thread=selection.thread,
        owner=selection.user,
        tenant=selection.tenant,
        limit=COUNT_PAGE_MAX_RUNS,
    )
    while True:
        page = await store.list_runs(replace(query, cursor=cursor))
        alive, cursor = alive + len(page.items), page.cursor
        if not cursor:
            return DeletableRuns(runs=runs, alive=alive)


async def delete_selected(
    store: Store,
    selection: RunSelection,
    now: Micros,
    *,
    by: Actor,
    reason: str,
    max_runs: int | None = None,
) -> int:
    """Delete the runs of `selection`; return the number of deleted runs, with children."""
    reason = validation.check_name("reason", reason, REASON_MAX_CHARS)
    selection = restrict_selection(selection, by)
    query = selection.make_query(now)
    deleted = await delete_matching(store, query, by=by.name, reason=reason, max_runs=max_runs)
    if deleted:
        entry = AuditEntry(
            action="delete",
            actor=by.name,
            role=by.role,
            target=f"{deleted} runs: {selection.describe()}",
            reason=reason,
            tenant=selection.tenant or by.tenant,
        )
        await store_audit(store, entry)
    await remove_all_leftovers(store, max_steps=None if max_runs is None else INLINE_MAX_STEPS)
    return deleted
