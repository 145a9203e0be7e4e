"""Limits and quotas: concurrent callers never get more leases or runs than allowed."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

import anyio
import pytest

from midrun.core.entries import Entry, LeaseTaken
from midrun.core.ids import Epoch, Micros, RunId, Seq
from midrun.core.run_head import Head
from midrun.core.values import Phase
from midrun.errors import (
    HaltInForce,
    LeaseHeld,
    NoRoom,
    QuotaReached,
    RunExists,
    RunNotFound,
)
from midrun.ports.store import HaltRecord, Lease, RunQuota, Store
from midrun.testing.store_suite.fixtures import (
    ManualClock,
    StoreSuiteFixtures,
    create_run,
    make_call_started,
    make_started,
)

LEASE_TTL = timedelta(seconds=10)
ONE_CLERK_RUN = {"agent:clerk": 1}


def _make_head(agent: str = "clerk", *labels: str, leased: bool = True) -> Head:
    phase = Phase.RUNNING if leased else Phase.QUEUED
    return Head(phase=phase, agent=agent, labels=labels, leased=leased)


async def _create_run(store: Store, name: str, agent: str = "clerk", *labels: str) -> None:
    await create_run(store, RunId(name), head=_make_head(agent, *labels, leased=False))


async def _take_lease(
    store: Store,
    name: str,
    limits: Mapping[str, int],
    *,
    holder: str = "a",
    starting: bool = False,
) -> Lease:
    """Take the lease of a run at its current seq."""
    row = await store.get_row(RunId(name))
    taken = LeaseTaken(epoch=Epoch(row.epoch + 1), holder=holder)
    entries: list[Entry] = [taken, make_call_started()] if starting else [taken]
    head = _make_head(row.head.agent, *row.head.labels)
    lease, _ = await store.take_lease(
        row.run, entries, after=row.seq, holder=holder, head=head, limits=limits
    )
    return lease


class LimitTests(StoreSuiteFixtures):
    """Leases are counted in the transaction that takes one more."""

    async def test_a_lease_beyond_the_limit_is_refused_and_nothing_is_changed(
        self, store: Store
    ) -> None:
        await store.record_heartbeat("a", ttl=LEASE_TTL)
        await store.record_heartbeat("b", ttl=LEASE_TTL)
        for name in ("r1", "r2"):
            await _create_run(store, name)
        await _take_lease(store, "r1", ONE_CLERK_RUN)
        with pytest.raises(NoRoom) as refused:
            await _take_lease(store, "r2", ONE_CLERK_RUN, holder="b")
        assert (refused.value.scope, refused.value.most) == ("agent:clerk", 1)
        row = await store.get_row(RunId("r2"))
        assert (row.seq, row.epoch, row.holder) == (1, 0, "")
        await _take_lease(store, "r2", {"agent:clerk": 2}, holder="b")

    async def test_only_runs_of_the_same_scope_are_counted(self, store: Store) -> None:
        await store.record_heartbeat("a", ttl=LEASE_TTL)
        await _create_run(store, "r1", "clerk", "gpu", "night")
        await _create_run(store, "r2", "other", "gpu")
        await _create_run(store, "r3", "other", "agent:clerk", "all")
        await _take_lease(store, "r1", {"all": 1})
        # r2 shares only the label gpu with r1, so only that limit applies to it.
        with pytest.raises(NoRoom, match="label:gpu"):
            await _take_lease(store, "r2", {"agent:clerk": 1, "label:gpu": 1, "label:night": 1})
        with pytest.raises(NoRoom, match="all"):
            await _take_lease(store, "r3", {"all": 1})
        # Labels that look like scopes are only labels.
        await _take_lease(store, "r3", {"agent:clerk": 1, "label:gpu": 1, "agent:other": 1})

    async def test_a_lease_that_is_given_back_makes_room(self, store: Store) -> None:
        await store.record_heartbeat("a", ttl=LEASE_TTL)
        for name in ("r1", "r2"):
            await _create_run(store, name)
        lease = await _take_lease(store, "r1", ONE_CLERK_RUN)
        rests = Head(phase=Phase.COMPLETED, agent="clerk")
        await store.append(
            RunId("r1"), [make_call_started()], after=Seq(2), lease=lease, head=rests
        )
        await _take_lease(store, "r2", ONE_CLERK_RUN)

    async def test_a_holder_that_fell_silent_takes_up_no_room(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.record_heartbeat("a", ttl=LEASE_TTL)
        for name in ("r1", "r2", "r3"):
            await _create_run(store, name)
        await _take_lease(store, "r1", ONE_CLERK_RUN)
        clock.move(10.1)
        await store.record_heartbeat("b", ttl=LEASE_TTL)
        await _take_lease(store, "r2", ONE_CLERK_RUN, holder="b")
        with pytest.raises(NoRoom):
            await _take_lease(store, "r3", ONE_CLERK_RUN, holder="b")

    async def test_what_is_the_holders_own_has_its_place(self, store: Store) -> None:
        """Otherwise processes that were cut off together would wait for each other for ever."""
        await store.record_heartbeat("a", ttl=LEASE_TTL)
        for name in ("r1", "r2"):
            await _create_run(store, name)
            await _take_lease(store, name, {})
        # Both are held without a limit; retaking one of its own does not count as one more.
        await _take_lease(store, "r1", ONE_CLERK_RUN)
        with pytest.raises(LeaseHeld):
            await _take_lease(store, "r2", ONE_CLERK_RUN, holder="b")

    async def test_a_holder_that_comes_back_goes_beyond_the_limit_with_its_own(
        self, store: Store, clock: ManualClock
    ) -> None:
        """While both work: a run that a holder has begun cannot be taken from it."""
        await store.record_heartbeat("a", ttl=LEASE_TTL)
        for name in ("r1", "r2", "r3"):
            await _create_run(store, name)
        await _take_lease(store, "r1", ONE_CLERK_RUN)
        clock.move(10.1)
        await store.record_heartbeat("b", ttl=LEASE_TTL)
        await _take_lease(store, "r2", ONE_CLERK_RUN, holder="b")
        # Holder a is alive again while b has used its place: two leases under a limit of one.
        await store.record_heartbeat("a", ttl=LEASE_TTL)
        await _take_lease(store, "r1", ONE_CLERK_RUN)
        with pytest.raises(NoRoom):
            await _take_lease(store, "r3", ONE_CLERK_RUN)

    async def test_a_halt_is_reported_before_a_limit(self, store: Store) -> None:
        """A halted run is reported as halted, not as waiting."""
        await store.record_heartbeat("a", ttl=LEASE_TTL)
        for name in ("r1", "r2"):
            await _create_run(store, name)
        await _take_lease(store, "r1", ONE_CLERK_RUN)
        await store.set_halt(HaltRecord(scope="agent:clerk", by="olga"))
        with pytest.raises(HaltInForce):
            await _take_lease(store, "r2", ONE_CLERK_RUN, starting=True)

    async def test_a_limit_of_nothing_is_refused(self, store: Store) -> None:
        await _create_run(store, "r1")
        with pytest.raises(ValueError, match="1 or more"):
            await _take_lease(store, "r1", {"agent:clerk": 0})

    async def test_however_many_take_at_once_no_more_are_held(self, store: Store) -> None:
        """In two scopes that overlap, by several holders."""
        holders = ("a", "b", "c")
        for holder in holders:
            await store.record_heartbeat(holder, ttl=LEASE_TTL)
        for n in range(24):
            await _create_run(store, f"r{n}", "clerk" if n % 2 else "other", "gpu")
        limits = {"agent:clerk": 3, "label:gpu": 5}
        taken: list[str] = []

        async def one(name: str, holder: str) -> None:
            try:
                await _take_lease(store, name, limits, holder=holder)
            except NoRoom:
                return
            taken.append(name)

        async with anyio.create_task_group() as tasks:
            for n in range(24):
                tasks.start_soon(one, f"r{n}", holders[n % 3])
        # All runs have the label, so its limit is reached exactly; the agent's may not be.
        assert len(taken) == 5
        assert sum(int(name[1:]) % 2 for name in taken) <= 3


async def create_under_quotas(
    store: Store,
    name: str,
    quotas: Sequence[RunQuota],
    *,
    owner: str = "ann",
    tenant: str = "acme",
    phase: Phase = Phase.QUEUED,
) -> bool:
    """Create a run unless a quota is reached; return whether it was created."""
    head = Head(phase=phase, owner=owner, tenant=tenant)
    try:
        await store.create(RunId(name), [make_started()], head=head, quotas=quotas)
    except QuotaReached:
        return False
    return True


async def race_under_quotas(stores: Sequence[Store], quotas: Sequence[RunQuota]) -> int:
    """Create many runs at once through all of `stores`; return how many were created."""
    created: list[str] = []

    async def create(store: Store, name: str) -> None:
        if await create_under_quotas(store, name, quotas):
            created.append(name)

    async with anyio.create_task_group() as tasks:
        for number in range(24):
            tasks.start_soon(create, stores[number % len(stores)], f"r{number}")
    return len(created)


class QuotaTests(StoreSuiteFixtures):
    """Runs are counted in the transaction that creates one more."""

    async def test_a_run_beyond_a_quota_is_not_created(self, store: Store) -> None:
        quota = RunQuota(tenant="acme", owner="ann", open_runs=1)
        assert await create_under_quotas(store, "r1", [quota])
        head = Head(phase=Phase.QUEUED, owner="ann", tenant="acme")
        with pytest.raises(QuotaReached) as refused:
            await store.create(RunId("r2"), [make_started()], head=head, quotas=[quota])
        fields = ("tenant", "owner", "quota", "most")
        assert [getattr(refused.value, name) for name in fields] == [
            "acme",
            "ann",
            "open_runs",
            1,
        ]
        with pytest.raises(RunNotFound):
            await store.get_row(RunId("r2"))
        # The id is still free.
        assert await create_under_quotas(store, "r2", [])

    async def test_a_quota_counts_the_runs_of_its_tenant_and_owner(self, store: Store) -> None:
        for number, (tenant, owner) in enumerate(
            (("acme", "ann"), ("acme", "bob"), ("rival", "ann"), ("", "ann"))
        ):
            await create_under_quotas(store, f"r{number}", [], owner=owner, tenant=tenant)
        of_ann, of_all = (
            RunQuota(tenant="acme", owner="ann", open_runs=2),
            RunQuota(tenant="acme", open_runs=3),
        )
        assert not await create_under_quotas(
            store, "a", [of_ann, RunQuota(tenant="acme", open_runs=2)]
        )
        assert await create_under_quotas(store, "b", [of_ann, of_all])
        assert not await create_under_quotas(store, "c", [of_ann])
        assert not await create_under_quotas(store, "d", [of_all], owner="eve")
        assert await create_under_quotas(
            store, "e", [RunQuota(tenant="", open_runs=2)], tenant="", owner="eve"
        )

    async def test_runs_that_ended_are_not_open_but_recent(
        self, store: Store, clock: ManualClock
    ) -> None:
        await create_under_quotas(store, "old", [], phase=Phase.COMPLETED)
        clock.move(10.0)
        since = Micros(clock.now)
        await create_under_quotas(store, "new", [], phase=Phase.CANCELLED)
        for owner in ("ann", ""):
            none_open = RunQuota(tenant="acme", owner=owner, open_runs=0)
            assert not await create_under_quotas(store, "x", [none_open])
            recent = RunQuota(tenant="acme", owner=owner, recent_runs=1, since=since)
            assert not await create_under_quotas(store, "x", [recent])
        both = RunQuota(tenant="acme", owner="ann", recent_runs=2, since=since, open_runs=1)
        assert await create_under_quotas(store, "x", [both])

    async def test_a_run_that_exists_is_reported_before_a_quota(self, store: Store) -> None:
        """A repeated request finds the run that its first attempt has created."""
        quota = RunQuota(tenant="acme", recent_runs=1)
        assert await create_under_quotas(store, "r1", [quota])
        with pytest.raises(RunExists):
            await create_under_quotas(store, "r1", [quota])

    async def test_however_many_start_at_once_no_more_are_created(self, store: Store) -> None:
        quotas = [
            RunQuota(tenant="acme", owner="ann", open_runs=7),
            RunQuota(tenant="acme", recent_runs=5),
        ]
        assert await race_under_quotas([store], quotas) == 5

    async def test_a_negative_quota_is_refused(self, store: Store) -> None:
        with pytest.raises(ValueError, match="open_runs must be from 0"):
            await create_under_quotas(store, "r1", [RunQuota(tenant="", open_runs=-1)])
