"""Limits: concurrent takers never hold more leases than allowed."""

from collections.abc import Mapping
from datetime import timedelta

import anyio
import pytest

from midrun.core.entries import Entry, LeaseTaken
from midrun.core.ids import Epoch, RunId, Seq
from midrun.core.run_head import Head
from midrun.core.values import Phase
from midrun.errors import HaltInForce, LeaseHeld, NoRoom
from midrun.ports.store import HaltRecord, Lease, Store
from midrun.testing.store_suite.fixtures import (
    ManualClock,
    StoreSuiteFixtures,
    create_run,
    make_call_started,
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
