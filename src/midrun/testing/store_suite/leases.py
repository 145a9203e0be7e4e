"""Leases and halts: which writer may append, and when nothing may start."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from midrun.core.entries import CallUnknown, Entry, LeaseTaken, UndoStarted
from midrun.core.ids import CallId, Epoch, Micros, Seq
from midrun.core.run_head import Head
from midrun.core.values import Phase
from midrun.errors import HaltInForce, KindRefused, LeaseHeld, SeqConflict, StaleEpoch
from midrun.ports.store import HaltRecord, Lease, RunQuery, Store
from midrun.testing.store_suite.fixtures import (
    OTHER_RUN,
    RUN,
    ManualClock,
    StoreSuiteFixtures,
    append_message,
    create_run,
    make_call_done,
    make_call_started,
    make_head,
    make_message,
    make_started,
    take_lease,
)

LEASE_TTL = timedelta(seconds=10)
RUNNING_HEAD = make_head(Phase.RUNNING, leased=True)


class LeaseTests(StoreSuiteFixtures):
    """One holder at a time. The epoch decides; clocks only tell when to check."""

    async def test_taking_a_free_lease_is_an_entry_of_its_epoch(self, store: Store) -> None:
        await create_run(store)
        # A new holder settles the calls of the last one in the same append, so that no reader
        # sees the lease without them.
        orphan = CallUnknown(call=CallId("c1"))
        taken = LeaseTaken(epoch=Epoch(1), holder="a")
        lease, appended = await store.take_lease(
            RUN, [taken, orphan], after=Seq(1), holder="a", head=RUNNING_HEAD
        )
        assert lease == Lease(run=RUN, holder="a", epoch=Epoch(1))
        assert [(r.entry, r.epoch) for r in await store.read(RUN, after=Seq(1))] == [
            (taken, 1),
            (orphan, 1),
        ]
        row = await store.get_row(RUN)
        assert (row.holder, row.epoch, row.seq) == ("a", 1, appended.seq)

    async def test_dropped_leases_are_free_although_their_holder_is_alive(
        self, store: Store
    ) -> None:
        """A restored store must not wait for workers of the old one, nor obey them."""
        await create_run(store)
        await store.record_heartbeat("a", ttl=LEASE_TTL)
        lease = await take_lease(store, RUN, 1, "a")
        await store.append(
            RUN, [make_call_done("c1")], after=Seq(2), lease=lease, head=RUNNING_HEAD
        )
        assert not await store.list_drivable(limit=9)
        await store.drop_leases()
        assert not await store.list_holders()
        assert list(await store.list_drivable(limit=9)) == [RUN]
        assert (await store.get_row(RUN)).seq == 3
        await take_lease(store, RUN, 3, "b", epoch=2)
        with pytest.raises(StaleEpoch):
            await store.append(
                RUN, [make_call_done("c2")], after=Seq(4), lease=lease, head=RUNNING_HEAD
            )

    async def test_the_row_of_a_driven_run_has_the_end_and_the_meter_of_each_append(
        self, store: Store
    ) -> None:
        await create_run(store, head=replace(make_head(), owner="ann"))
        lease = await take_lease(store, RUN, 1, "a")
        for step, phase in ((1, Phase.RUNNING), (2, Phase.RUNNING), (3, Phase.PAUSED)):
            head = make_head(phase, leased=phase is Phase.RUNNING)
            head = replace(head, owner="ann", step=step, cost=step * 10, tokens=step * 100)
            appended = await store.append(
                RUN, [make_call_done(f"c{step}")], after=Seq(step + 1), lease=lease, head=head
            )
            row = await store.get_row(RUN)
            assert (row.head, row.seq, row.hash) == (head, appended.seq, appended.hash)
            assert row.changed_at == appended.at
            assert (await store.list_runs(RunQuery())).items == (row,)
            usage = await store.get_usage("ann", since=Micros(0))
            assert (usage.cost, usage.tokens) == (head.cost, head.tokens)

    async def test_a_lease_whose_holder_is_alive_is_not_given_to_another(
        self, store: Store, clock: ManualClock
    ) -> None:
        await create_run(store)
        await store.record_heartbeat("a", ttl=LEASE_TTL)
        await take_lease(store, RUN, 1, "a")
        clock.move(9)  # one second before the end of the TTL
        with pytest.raises(LeaseHeld) as refused:
            await take_lease(store, RUN, 2, "b", epoch=2)
        assert refused.value.holder == "a"
        await store.record_heartbeat("a", ttl=LEASE_TTL)
        clock.move(9)
        with pytest.raises(LeaseHeld):
            await take_lease(store, RUN, 2, "b", epoch=2)
        assert (await store.get_row(RUN)).seq == 2

    async def test_a_holder_that_fell_silent_is_fenced_off(
        self, store: Store, clock: ManualClock
    ) -> None:
        await create_run(store)
        await store.record_heartbeat("a", ttl=LEASE_TTL)
        old = await take_lease(store, RUN, 1, "a")
        clock.move(10.1)
        new = await take_lease(store, RUN, 2, "b", epoch=2)
        await store.record_heartbeat("a", ttl=LEASE_TTL)  # it was only slow, and beats again
        # With the right seq, without a seq, and with a stale one: the epoch is checked first.
        for after, its_head in ((Seq(3), RUNNING_HEAD), (None, None), (Seq(2), RUNNING_HEAD)):
            with pytest.raises(StaleEpoch) as refused:
                await store.append(
                    RUN, [make_call_done()], after=after, lease=old, head=its_head
                )
            assert (refused.value.held, refused.value.current) == (1, 2)
        await store.append(RUN, [make_call_done()], after=Seq(3), lease=new, head=RUNNING_HEAD)

    async def test_a_holder_may_take_its_own_lease_again_and_loses_the_older_epoch(
        self, store: Store
    ) -> None:
        await create_run(store)
        await store.record_heartbeat("a", ttl=LEASE_TTL)
        old = await take_lease(store, RUN, 1, "a")
        new = await take_lease(store, RUN, 2, "a", epoch=2)
        with pytest.raises(StaleEpoch):
            await store.append(RUN, [make_call_done()], after=None, lease=old, head=None)
        await store.append(RUN, [make_call_done()], after=None, lease=new, head=None)

    async def test_entries_have_the_time_of_their_decision(
        self, store: Store, clock: ManualClock
    ) -> None:
        """An approval that expires between the decision and the append was still valid."""
        await create_run(store)
        decided_at = Micros(clock() + 1)
        clock.move(2)
        taken = LeaseTaken(epoch=Epoch(1), holder="a")
        lease, appended = await store.take_lease(
            RUN, [taken], after=Seq(1), holder="a", head=RUNNING_HEAD, at=decided_at
        )
        assert appended.at == decided_at
        for at in (decided_at, Micros(decided_at - 1)):  # the time of a journal never decreases
            appended = await store.append(
                RUN,
                [make_call_done()],
                after=appended.seq,
                lease=lease,
                head=RUNNING_HEAD,
                at=at,
            )
            assert appended.at == decided_at

    async def test_a_head_without_a_driver_gives_the_lease_back(self, store: Store) -> None:
        await create_run(store)
        await store.record_heartbeat("a", ttl=LEASE_TTL)
        lease = await take_lease(store, RUN, 1, "a")
        await store.append(
            RUN, [make_call_done()], after=Seq(2), lease=lease, head=make_head(Phase.PAUSED)
        )
        assert (await store.get_row(RUN)).holder == ""
        with pytest.raises(StaleEpoch) as refused:
            await store.append(RUN, [make_call_done()], after=None, lease=lease, head=None)
        assert "given back" in str(refused.value)
        # The epoch grows with the next holder, although the lease was free.
        await store.record_heartbeat("b", ttl=LEASE_TTL)
        assert (await take_lease(store, RUN, 3, "b", epoch=2)).epoch == 2

    async def test_a_holder_that_rests_frees_all_it_holds_at_once(self, store: Store) -> None:
        await store.record_heartbeat("a", ttl=LEASE_TTL)
        for run in (RUN, OTHER_RUN):
            await create_run(store, run)
            await take_lease(store, run, 1, "a")
        await store.release_leases("a")
        for run in (RUN, OTHER_RUN):
            assert (await take_lease(store, run, 2, "b", epoch=2)).holder == "b"

    async def test_evidence_of_the_holder_is_taken_whatever_happened_since(
        self, store: Store
    ) -> None:
        await create_run(store)
        lease = await take_lease(store, RUN, 1, "a")
        pausing = make_head(Phase.PAUSING, leased=True)
        await store.append(RUN, [make_message()], after=Seq(2), lease=None, head=pausing)
        # The end of a call is true whatever was appended meanwhile, so it names no seq. It has
        # no head, which would be computed from an older state.
        appended = await store.append(
            RUN, [make_call_done()], after=None, lease=lease, head=None
        )
        assert appended.seq == 4
        assert (await store.get_row(RUN)).head == pausing

    async def test_only_evidence_may_leave_out_what_it_has_seen(self, store: Store) -> None:
        await create_run(store)
        lease = await take_lease(store, RUN, 1, "a")
        for its_lease, its_head, its_start in (
            (None, None, False),
            (lease, RUNNING_HEAD, False),
            (lease, None, True),
        ):
            with pytest.raises(ValueError, match="after"):
                await store.append(
                    RUN,
                    [make_call_done()],
                    after=None,
                    lease=its_lease,
                    head=its_head,
                    starts=its_start,
                )
        assert (await store.get_row(RUN)).seq == 2

    async def test_a_fenced_writer_learns_that_before_anything_else(self, store: Store) -> None:
        """A conflict means *try again*, which the holder of an old epoch must not do."""
        await create_run(store)
        old = await take_lease(store, RUN, 1, "a")
        await take_lease(store, RUN, 2, "b", epoch=2)
        with pytest.raises(StaleEpoch):
            await store.append(
                RUN, [make_call_done()], after=Seq(2), lease=old, head=RUNNING_HEAD
            )

    async def test_a_lease_is_taken_after_what_was_seen_or_not_at_all(
        self, store: Store
    ) -> None:
        await create_run(store)
        await append_message(store, RUN, 1)
        with pytest.raises(SeqConflict):
            await take_lease(store, RUN, 1, "a")
        with pytest.raises(ValueError, match="epoch must be 1"):
            await take_lease(store, RUN, 2, "a", epoch=2)
        for entries in ([], [make_message()], [LeaseTaken(epoch=Epoch(1), holder="other")]):
            with pytest.raises(ValueError, match="LeaseTaken"):
                await store.take_lease(
                    RUN, entries, after=Seq(2), holder="a", head=RUNNING_HEAD
                )
        with pytest.raises(KindRefused):
            await store.take_lease(
                RUN,
                [LeaseTaken(epoch=Epoch(1)), make_message()],
                after=Seq(2),
                holder="a",
                head=RUNNING_HEAD,
            )
        row = await store.get_row(RUN)
        assert (row.seq, row.holder, row.epoch) == (2, "", 0)

    async def test_a_lease_is_good_for_its_own_run_only(self, store: Store) -> None:
        await create_run(store)
        await create_run(store, OTHER_RUN)
        lease = await take_lease(store, RUN, 1, "a")
        with pytest.raises(ValueError, match="lease"):
            await store.append(
                OTHER_RUN, [make_call_done()], after=None, lease=lease, head=None
            )

    async def test_a_forged_holder_of_the_right_epoch_is_refused(self, store: Store) -> None:
        await create_run(store)
        await take_lease(store, RUN, 1, "a")
        forged = Lease(run=RUN, holder="b", epoch=Epoch(1))
        with pytest.raises(StaleEpoch):
            await store.append(RUN, [make_call_done()], after=None, lease=forged, head=None)

    async def test_holders_are_listed_while_they_are_alive(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.record_heartbeat("a", ttl=LEASE_TTL, lag=0.25)
        await store.record_heartbeat("b", ttl=2 * LEASE_TTL)
        assert await store.list_holders() == {"a": 0.25, "b": 0.0}
        clock.move(15)
        assert await store.list_holders() == {"b": 0.0}
        await store.release_leases("b")
        await store.release_leases("b")
        assert await store.list_holders() == {}

    async def test_a_clock_set_back_does_not_keep_the_dead_alive(
        self, store: Store, clock: ManualClock
    ) -> None:
        """Otherwise its lease would last as long as the clock was set back."""
        await create_run(store)
        await store.record_heartbeat("a", ttl=LEASE_TTL)
        await take_lease(store, RUN, 1, "a")
        clock.move(-3600)
        # The last beat is in the future now, by more than a TTL: the holder counts as gone.
        assert await store.list_holders() == {}
        assert await store.list_drivable(limit=1) == [RUN]
        assert (await take_lease(store, RUN, 2, "b", epoch=2)).epoch == 2

    async def test_an_expired_holder_stays_expired_after_the_clock_was_set_back(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.record_heartbeat("a", ttl=LEASE_TTL)
        clock.move(-3600)
        await store.record_heartbeat("b", ttl=LEASE_TTL)
        clock.move(+3600)
        assert await store.list_holders() == {}

    async def test_a_clock_set_back_a_little_ends_no_lease(
        self, store: Store, clock: ManualClock
    ) -> None:
        """Clocks are corrected all the time; a holder that keeps beating is alive."""
        await create_run(store)
        await store.record_heartbeat("a", ttl=LEASE_TTL)
        await take_lease(store, RUN, 1, "a")
        for step in (-0.001, -3.0, -6.0):  # less than a TTL in all
            clock.move(step)
            with pytest.raises(LeaseHeld):
                await take_lease(store, RUN, 2, "b", epoch=2)
            assert await store.list_holders() == {"a": 0.0}
        clock.move(-3600)
        await store.record_heartbeat("a", ttl=LEASE_TTL)  # the next beat makes it alive again
        with pytest.raises(LeaseHeld):
            await take_lease(store, RUN, 2, "b", epoch=2)
        clock.move(10)
        assert await store.list_holders() == {}

    async def test_an_invalid_holder_is_refused(self, store: Store) -> None:
        await create_run(store)
        for holder in ("", "\ud800"):  # a lone surrogate has no UTF-8 form
            for attempt in (
                store.record_heartbeat(holder, ttl=LEASE_TTL),
                store.release_leases(holder),
                take_lease(store, RUN, 1, holder),
            ):
                with pytest.raises(ValueError, match=r"holder|LeaseTaken"):
                    await attempt
        for ttl, lag in ((-LEASE_TTL, 0.0), (timedelta.max, 0.0), (LEASE_TTL, float("nan"))):
            with pytest.raises(ValueError, match=r"ttl|lag"):
                await store.record_heartbeat("a", ttl=ttl, lag=lag)
        assert await store.list_holders() == {}
        assert await store.list_drivable(limit=9) == [RUN]


class HaltTests(StoreSuiteFixtures):
    """Nothing starts under a halt."""

    @pytest.mark.parametrize(
        ("scope", "holds"),
        [
            ("all", True),
            ("agent:researcher", True),
            ("agent:other", False),
            ("label:urgent", True),
            ("label:researcher", False),
            ("run:run_1", True),
            ("run:run_2", False),
        ],
    )
    async def test_a_halt_refuses_starts_in_its_scope(
        self, store: Store, *, scope: str, holds: bool
    ) -> None:
        ours = Head(phase=Phase.RUNNING, leased=True, agent="researcher", labels=("urgent",))
        await create_run(store, head=ours)
        lease = await take_lease(store, RUN, 1, "a")
        await store.append(RUN, [make_message()], after=Seq(2), lease=None, head=ours)
        await store.set_halt(HaltRecord(scope=scope, by="ops", reason="fire"))
        started = [make_call_started()]
        start = store.append(RUN, started, after=Seq(3), lease=lease, head=ours, starts=True)
        if not holds:
            await start
            return
        with pytest.raises(HaltInForce) as refused:
            await start
        assert (refused.value.scope, refused.value.by, refused.value.reason) == (
            scope,
            "ops",
            "fire",
        )
        # Calls in flight may still end under a halt.
        await store.append(RUN, [make_call_done()], after=None, lease=lease, head=None)
        assert await store.remove_halt(scope)
        await store.append(
            RUN, [make_call_started()], after=Seq(4), lease=lease, head=ours, starts=True
        )

    @pytest.mark.parametrize(
        "entry", [make_call_started(), UndoStarted(call=CallId("c1"), attempt=1)]
    )
    async def test_a_halt_is_enforced_by_the_entries_themselves(
        self, store: Store, entry: Entry
    ) -> None:
        """The store sees from the entries themselves that a call starts."""
        await create_run(store)
        lease = await take_lease(store, RUN, 1, "a")
        await store.set_halt(HaltRecord(scope="all", by="ops"))
        with pytest.raises(HaltInForce):
            await store.append(
                RUN, [make_call_done(), entry], after=Seq(2), lease=lease, head=RUNNING_HEAD
            )
        with pytest.raises(HaltInForce):
            await store.take_lease(
                RUN,
                [LeaseTaken(epoch=Epoch(2)), entry],
                after=Seq(2),
                holder="a",
                head=RUNNING_HEAD,
            )
        with pytest.raises(HaltInForce):
            await store.append(
                RUN,
                [make_call_done()],
                after=Seq(2),
                lease=lease,
                head=RUNNING_HEAD,
                starts=True,
            )
        assert (await store.get_row(RUN)).seq == 2
        await store.append(
            RUN, [make_call_done()], after=Seq(2), lease=lease, head=RUNNING_HEAD
        )

    async def test_a_halt_that_cannot_be_stored_is_refused(self, store: Store) -> None:
        for halt in (
            HaltRecord(scope="agent:\ud800", by="ops"),
            HaltRecord(scope="all", by="\ud800"),
            HaltRecord(scope="all", by="ops", reason="\ud800"),
        ):
            with pytest.raises(ValueError, match="surrogate"):
                await store.set_halt(halt)
        with pytest.raises(ValueError, match="surrogate"):
            await store.remove_halt("\ud800")
        assert not await store.list_halts()

    async def test_a_conflict_is_reported_before_a_halt(self, store: Store) -> None:
        await create_run(store)
        lease = await take_lease(store, RUN, 1, "a")
        await store.set_halt(HaltRecord(scope="all", by="ops"))
        # A driver that has not seen the newest entries must read them before it obeys the halt.
        with pytest.raises(SeqConflict):
            await store.append(
                RUN,
                [make_call_started()],
                after=Seq(1),
                lease=lease,
                head=RUNNING_HEAD,
                starts=True,
            )

    async def test_a_halt_keeps_its_first_actor(self, store: Store, clock: ManualClock) -> None:
        first = clock.now
        # The store sets `at` by its own clock.
        await store.set_halt(HaltRecord(scope="all", by="ann", reason="smoke", at=Micros(7)))
        clock.move(5)
        await store.set_halt(HaltRecord(scope="all", by="bob"))
        await store.set_halt(HaltRecord(scope="agent:x", by="bob"))
        assert [(h.scope, h.by, h.reason, h.at) for h in await store.list_halts()] == [
            ("all", "ann", "smoke", first),
            ("agent:x", "bob", "", clock.now),
        ]
        assert await store.remove_halt("all")
        assert not await store.remove_halt("all")
        assert [h.scope for h in await store.list_halts()] == ["agent:x"]

    @pytest.mark.parametrize("scope", ["", "agent", "agent:", "tenant:x", "ALL", "all:x"])
    async def test_a_halt_without_effect_is_refused(self, store: Store, scope: str) -> None:
        with pytest.raises(ValueError, match="scope"):
            await store.set_halt(HaltRecord(scope=scope, by="ops"))
        assert not await store.list_halts()

    async def test_a_run_can_be_created_and_taken_under_a_halt(self, store: Store) -> None:
        """Only the start of calls is stopped; a driver must be able to record the halt."""
        await store.set_halt(HaltRecord(scope="all", by="ops"))
        await store.create(RUN, [make_started()], head=make_head())
        await take_lease(store, RUN, 1, "a")
