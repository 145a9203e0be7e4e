"""Tenants and teams: a caller sees the runs of its tenant, its own runs and its teams' runs."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from midrun.core.entries import LeaseTaken
from midrun.core.ids import Epoch, Micros, RunId, Seq
from midrun.core.run_head import NAME_MAX_CHARS, Head
from midrun.core.values import Phase
from midrun.errors import CursorRefused, HaltInForce, NoRoom, RunErased, RunNotFound, TooLarge
from midrun.ports.audit import AuditEntry, HasAuditLog
from midrun.ports.store import EndedQuery, HaltRecord, RunQuery, Store, Visibility
from midrun.testing.store_suite.fixtures import (
    RUN,
    ManualClock,
    StoreSuiteFixtures,
    create_run,
    make_call_started,
    make_head,
    make_started,
)

LEASE_TTL = timedelta(seconds=10)

HEADS = {
    "plain": Head(phase=Phase.QUEUED, owner="ann", thread="t"),
    "acme-1": Head(phase=Phase.QUEUED, owner="ann", tenant="acme", thread="t", labels=("l",)),
    "acme-2": Head(phase=Phase.COMPLETED, owner="bob", tenant="acme", team="legal"),
    "acme-3": Head(phase=Phase.WAITING, owner="bob", tenant="acme", attention="ask", asks=1),
    "rival": Head(
        phase=Phase.COMPLETED, owner="ann", tenant="rival", team="legal", attention="ask"
    ),
}
"""Runs of the default tenant and of two others, in order of creation."""


LISTS = [
    (RunQuery(), ["rival", "acme-3", "acme-2", "acme-1", "plain"]),
    (RunQuery(tenant=""), ["plain"]),
    (RunQuery(tenant="acme"), ["acme-3", "acme-2", "acme-1"]),
    (RunQuery(tenant="nowhere"), []),
    (RunQuery(tenant="ACME"), []),
    (RunQuery(tenant="acme", owner="ann"), ["acme-1"]),
    (RunQuery(tenant="", owner="ann"), ["plain"]),
    (RunQuery(tenant="acme", owner="ann", teams=("legal",)), ["acme-2", "acme-1"]),
    (RunQuery(tenant="acme", owner="ann", teams=("sales",)), ["acme-1"]),
    (RunQuery(tenant="acme", owner="eve", teams=("", "x")), []),
    (RunQuery(tenant="acme", thread="t"), ["acme-1"]),
    (RunQuery(tenant="rival", thread="t"), []),
    (RunQuery(tenant="rival", label="l"), []),
    (RunQuery(tenant="acme", search="researcher"), ["acme-3", "acme-2", "acme-1"]),
    (RunQuery(tenant="rival", search="researcher", owner="ann"), ["rival"]),
    (RunQuery(tenant="acme", attention=True), ["acme-3"]),
    (RunQuery(tenant="acme", decider="bob", attention=True), ["acme-3"]),
    (RunQuery(tenant="acme", decider="ann", teams=("legal",)), ["acme-2", "acme-1"]),
    (RunQuery(tenant="acme", phases=(Phase.COMPLETED, Phase.QUEUED)), ["acme-2", "acme-1"]),
]
"""Queries, and the runs that they list."""


async def create_all(store: Store) -> None:
    """Create a run for each of `HEADS`."""
    for run, head in HEADS.items():
        started = replace(make_started(), by=head.owner, tenant=head.tenant, team=head.team)
        await store.create(RunId(run), [started], head=head)


async def list_names(store: Store, query: RunQuery) -> list[str]:
    """Return the ids of the runs of `query`."""
    return [row.run for row in (await store.list_runs(query)).items]


class TenantTests(StoreSuiteFixtures):
    """The tenant is part of every query."""

    async def test_a_list_has_only_runs_of_the_tenant(self, store: Store) -> None:
        await create_all(store)
        for query, expected in LISTS:
            assert await list_names(store, query) == expected, query

    async def test_a_row_is_found_only_by_those_who_may_see_it(self, store: Store) -> None:
        await create_all(store)
        run = RunId("acme-2")
        for seen_by in (
            Visibility(),
            Visibility(tenant="acme"),
            Visibility(tenant="acme", owner="bob"),
            Visibility(tenant="acme", owner="ann", teams=("legal",)),
        ):
            assert (await store.get_row(run, seen_by)).head.tenant == "acme"
        for seen_by in (
            Visibility(tenant=""),
            Visibility(tenant="rival"),
            Visibility(tenant="acme", owner="ann"),
            Visibility(tenant="rival", owner="bob", teams=("legal",)),
            Visibility(tenant="acme", owner="ann", teams=("",)),
        ):
            with pytest.raises(RunNotFound):
                await store.get_row(run, seen_by)

    async def test_a_cursor_of_another_tenant_is_unknown(self, store: Store) -> None:
        await create_all(store)
        query = RunQuery(tenant="acme", cursor="acme-3")
        assert await list_names(store, query) == ["acme-2", "acme-1"]
        for cursor in ("rival", "plain", "nothing"):
            with pytest.raises(CursorRefused):
                await store.list_runs(RunQuery(tenant="acme", cursor=cursor))

    async def test_counts_are_those_of_the_tenant(self, store: Store) -> None:
        await create_all(store)
        assert await store.count_runs_by_phase("rival") == {Phase.COMPLETED: 1}
        assert await store.count_runs_by_phase("") == {Phase.QUEUED: 1}
        assert await store.count_runs_by_phase("nowhere") == {}
        assert sum((await store.count_runs_by_phase()).values()) == len(HEADS)

    async def test_a_deletion_stays_within_the_tenant(
        self, store: Store, clock: ManualClock
    ) -> None:
        await create_all(store)
        before = Micros(clock.now + 1)
        page = await store.list_ended(EndedQuery(before=before, tenant="acme"))
        assert [row.run for row in page.items] == ["acme-2"]
        runs = [RunId("acme-2"), RunId("rival")]
        deleted = await store.delete_runs(runs, by="olga", tenant="acme")
        assert [t.run for t in deleted.tombstones] == ["acme-2"]
        assert [type(refusal) for refusal in deleted.refusals] == [RunNotFound]
        assert (await store.get_row(RunId("rival"))).head.tenant == "rival"

    async def test_a_tombstone_is_that_of_its_tenant(self, store: Store) -> None:
        await create_all(store)
        run = RunId("acme-2")
        await store.delete_runs([run], by="olga", tenant="acme")
        assert (await store.get_tombstone(run)).tenant == "acme"
        assert await store.get_tombstone(run, "acme") == await store.get_tombstone(run)
        with pytest.raises(RunNotFound):
            await store.get_tombstone(run, "rival")
        with pytest.raises(RunErased):
            await store.get_row(run, Visibility(tenant="acme"))
        for seen_by in (Visibility(tenant="rival"), Visibility(tenant="acme", owner="bob")):
            with pytest.raises(RunNotFound) as refused:
                await store.get_row(run, seen_by)
            assert not isinstance(refused.value, RunErased)
        refused_again = await store.delete_runs([run], by="olga", tenant="rival")
        assert [type(refusal) for refusal in refused_again.refusals] == [RunNotFound]

    async def test_a_halt_covers_its_tenant(self, store: Store) -> None:
        await create_all(store)
        await store.set_halt(HaltRecord(scope="all", by="olga", reason="A", tenant="acme"))
        await self._start_call(store, "plain")
        with pytest.raises(HaltInForce):
            await self._start_call(store, "acme-1")
        assert [h.reason for h in await store.list_halts("acme")] == ["A"]
        assert not await store.list_halts("rival")
        await store.set_halt(HaltRecord(scope="all", by="root", reason="all"))
        assert [h.reason for h in await store.list_halts("rival")] == ["all"]
        assert [h.tenant for h in await store.list_halts()] == ["acme", None]
        assert not await store.remove_halt("all", "rival")
        assert await store.remove_halt("all", "acme")
        assert [h.reason for h in await store.list_halts("acme")] == ["all"]
        assert await store.remove_halt("all")
        await self._start_call(store, "acme-1")

    async def _start_call(self, store: Store, run: str) -> None:
        """Take the lease of a run, and start a call under it."""
        row = await store.get_row(RunId(run))
        epoch = Epoch(row.epoch + 1)
        await store.record_heartbeat("w", ttl=LEASE_TTL)
        head = replace(row.head, phase=Phase.RUNNING, leased=True)
        await store.take_lease(
            RunId(run),
            [LeaseTaken(epoch=epoch, holder="w"), make_call_started()],
            after=Seq(row.seq),
            holder="w",
            head=head,
        )

    async def test_a_limit_counts_the_runs_of_its_tenant(self, store: Store) -> None:
        limits = {"tenant:acme": 1}
        for number, tenant in enumerate(("acme", "acme", "rival")):
            head = Head(phase=Phase.QUEUED, tenant=tenant)
            await create_run(store, RunId(f"r{number}"), head=head)

        async def take(run: str, tenant: str) -> None:
            head = replace(make_head(Phase.RUNNING, leased=True), tenant=tenant)
            entry = LeaseTaken(epoch=Epoch(1), holder="w")
            await store.record_heartbeat("w", ttl=LEASE_TTL)
            await store.take_lease(
                RunId(run), [entry], after=Seq(1), holder="w", head=head, limits=limits
            )

        await take("r0", "acme")
        with pytest.raises(NoRoom):
            await take("r1", "acme")
        await take("r2", "rival")

    async def test_the_audit_log_has_a_tenant(self, store: Store) -> None:
        if not isinstance(store, HasAuditLog):
            pytest.skip("the store has no audit log")
        for tenant in ("acme", "", "rival", "acme"):
            await store.append_audit(AuditEntry(action="sign_in", tenant=tenant))
        end = Micros(2**53 - 1)

        async def list_tenants(tenant: str | None, limit: int = 10) -> list[str]:
            found = await store.list_audit(
                since=Micros(0), until=end, after=0, limit=limit, tenant=tenant
            )
            return [entry.tenant for _, entry in found]

        assert await list_tenants("acme") == ["acme", "acme"]
        assert await list_tenants("acme", limit=1) == ["acme"]
        assert await list_tenants(None) == ["acme", "", "rival", "acme"]

    async def test_a_tenant_keeps_its_exact_name(self, store: Store) -> None:
        long = "t" * (NAME_MAX_CHARS + 1)
        for head in (
            Head(phase=Phase.QUEUED, tenant=long),
            Head(phase=Phase.QUEUED, team=long),
        ):
            with pytest.raises(TooLarge):
                await create_run(store, RUN, head=head)
        await create_run(store, RUN, head=Head(phase=Phase.QUEUED, tenant="x' OR 1=1 --"))
        assert not await list_names(store, RunQuery(tenant="x"))
        assert await list_names(store, RunQuery(tenant="x' OR 1=1 --")) == [RUN]
