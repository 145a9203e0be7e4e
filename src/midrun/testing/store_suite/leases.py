"""Leases and halts: which writer may append, and when nothing may start."""

from datetime import timedelta

import pytest

from midrun.core.entries import CallUnknown, Entry, LeaseTaken, UndoStarted
from midrun.core.ids import CallId, Epoch, Micros, Seq
from midrun.core.run_head import Head
from midrun.core.values import Phase
from midrun.errors import HaltInForce, KindRefused, LeaseHeld, SeqConflict, StaleEpoch
from midrun.ports.store import Halt, Lease, Store
from midrun.testing.store_suite.fixtures import (
    OTHER,
    RUN,
    HandClock,
    Setting,
    create,
    done,
    head,
    said,
    say,
    started,
    starts,
    take,
)

TTL = timedelta(seconds=10)
RUNNING = head(Phase.RUNNING, leased=True)


class Leases(Setting):
    """One holder at a time. The epoch decides; clocks only tell when to check."""

    async def test_taking_a_free_lease_is_an_entry_of_its_epoch(self, store: Store) -> None:
        await create(store)
        # A new holder settles the calls of the last one in the same append, so that no reader
        # sees the lease without them.
        orphan = CallUnknown(call=CallId("c1"))
        taken = LeaseTaken(epoch=Epoch(1), holder="a")
        lease, appended = await store.take(
            RUN, [taken, orphan], after=Seq(1), holder="a", head=RUNNING
        )
        assert lease == Lease(run=RUN, holder="a", epoch=Epoch(1))
        assert [(r.entry, r.epoch) for r in await store.read(RUN, after=Seq(1))] == [
            (taken, 1),
            (orphan, 1),
        ]
        row = await store.row(RUN)
        assert (row.holder, row.epoch, row.seq) == ("a", 1, appended.seq)

    async def test_a_lease_whose_holder_is_alive_is_not_given_to_another(
        self, store: Store, clock: HandClock
    ) -> None:
        await create(store)
        await store.beat("a", ttl=TTL)
        await take(store, RUN, 1, "a")
        clock.move(9)  # one second before the end of the TTL
        with pytest.raises(LeaseHeld) as refused:
            await take(store, RUN, 2, "b", epoch=2)
        assert refused.value.holder == "a"
        await store.beat("a", ttl=TTL)
        clock.move(9)
        with pytest.raises(LeaseHeld):
            await take(store, RUN, 2, "b", epoch=2)
        assert (await store.row(RUN)).seq == 2

    async def test_a_holder_that_fell_silent_is_fenced_off(
        self, store: Store, clock: HandClock
    ) -> None:
        await create(store)
        await store.beat("a", ttl=TTL)
        old = await take(store, RUN, 1, "a")
        clock.move(10.1)
        new = await take(store, RUN, 2, "b", epoch=2)
        await store.beat("a", ttl=TTL)  # it was only slow, and beats again
        # With the right seq, without a seq, and with a stale one: the epoch is checked first.
        for after, its_head in ((Seq(3), RUNNING), (None, None), (Seq(2), RUNNING)):
            with pytest.raises(StaleEpoch) as refused:
                await store.append(RUN, [done()], after=after, lease=old, head=its_head)
            assert (refused.value.held, refused.value.current) == (1, 2)
        await store.append(RUN, [done()], after=Seq(3), lease=new, head=RUNNING)

    async def test_a_holder_may_take_its_own_lease_again_and_loses_the_older_epoch(
        self, store: Store
    ) -> None:
        await create(store)
        await store.beat("a", ttl=TTL)
        old = await take(store, RUN, 1, "a")
        new = await take(store, RUN, 2, "a", epoch=2)
        with pytest.raises(StaleEpoch):
            await store.append(RUN, [done()], after=None, lease=old, head=None)
        await store.append(RUN, [done()], after=None, lease=new, head=None)

    async def test_a_head_without_a_driver_gives_the_lease_back(self, store: Store) -> None:
        await create(store)
        await store.beat("a", ttl=TTL)
        lease = await take(store, RUN, 1, "a")
        await store.append(RUN, [done()], after=Seq(2), lease=lease, head=head(Phase.PAUSED))
        assert (await store.row(RUN)).holder == ""
        with pytest.raises(StaleEpoch) as refused:
            await store.append(RUN, [done()], after=None, lease=lease, head=None)
        assert "given back" in str(refused.value)
        # The epoch grows with the next holder, although the lease was free.
        await store.beat("b", ttl=TTL)
        assert (await take(store, RUN, 3, "b", epoch=2)).epoch == 2

    async def test_a_holder_that_rests_frees_all_it_holds_at_once(self, store: Store) -> None:
        await store.beat("a", ttl=TTL)
        for run in (RUN, OTHER):
            await create(store, run)
            await take(store, run, 1, "a")
        await store.rest("a")
        for run in (RUN, OTHER):
            assert (await take(store, run, 2, "b", epoch=2)).holder == "b"

    async def test_evidence_of_the_holder_is_taken_whatever_happened_since(
        self, store: Store
    ) -> None:
        await create(store)
        lease = await take(store, RUN, 1, "a")
        pausing = head(Phase.PAUSING, leased=True)
        await store.append(RUN, [said()], after=Seq(2), lease=None, head=pausing)
        # The end of a call is true whatever was appended meanwhile, so it names no seq. It has
        # no head, which would be computed from an older state.
        appended = await store.append(RUN, [done()], after=None, lease=lease, head=None)
        assert appended.seq == 4
        assert (await store.row(RUN)).head == pausing

    async def test_only_evidence_may_leave_out_what_it_has_seen(self, store: Store) -> None:
        await create(store)
        lease = await take(store, RUN, 1, "a")
        for its_lease, its_head, its_start in (
            (None, None, False),
            (lease, RUNNING, False),
            (lease, None, True),
        ):
            with pytest.raises(ValueError, match="after"):
                await store.append(
                    RUN, [done()], after=None, lease=its_lease, head=its_head, starts=its_start
                )
        assert (await store.row(RUN)).seq == 2

    async def test_a_fenced_writer_learns_that_before_anything_else(self, store: Store) -> None:
        """A conflict means *try again*, which the holder of an old epoch must not do."""
        await create(store)
        old = await take(store, RUN, 1, "a")
        await take(store, RUN, 2, "b", epoch=2)
        with pytest.raises(StaleEpoch):
            await store.append(RUN, [done()], after=Seq(2), lease=old, head=RUNNING)

    async def test_a_lease_is_taken_after_what_was_seen_or_not_at_all(
        self, store: Store
    ) -> None:
        await create(store)
        await say(store, RUN, 1)
        with pytest.raises(SeqConflict):
            await take(store, RUN, 1, "a")
        with pytest.raises(ValueError, match="epoch must be 1"):
            await take(store, RUN, 2, "a", epoch=2)
        for entries in ([], [said()], [LeaseTaken(epoch=Epoch(1), holder="other")]):
            with pytest.raises(ValueError, match="LeaseTaken"):
                await store.take(RUN, entries, after=Seq(2), holder="a", head=RUNNING)
        with pytest.raises(KindRefused):
            await store.take(
                RUN,
                [LeaseTaken(epoch=Epoch(1)), said()],
                after=Seq(2),
                holder="a",
                head=RUNNING,
            )
        row = await store.row(RUN)
        assert (row.seq, row.holder, row.epoch) == (2, "", 0)

    async def test_a_lease_is_good_for_its_own_run_only(self, store: Store) -> None:
        await create(store)
        await create(store, OTHER)
        lease = await take(store, RUN, 1, "a")
        with pytest.raises(ValueError, match="lease"):
            await store.append(OTHER, [done()], after=None, lease=lease, head=None)

    async def test_a_forged_holder_of_the_right_epoch_is_refused(self, store: Store) -> None:
        await create(store)
        await take(store, RUN, 1, "a")
        forged = Lease(run=RUN, holder="b", epoch=Epoch(1))
        with pytest.raises(StaleEpoch):
            await store.append(RUN, [done()], after=None, lease=forged, head=None)

    async def test_holders_are_listed_while_they_are_alive(
        self, store: Store, clock: HandClock
    ) -> None:
        await store.beat("a", ttl=TTL, lag=0.25)
        await store.beat("b", ttl=2 * TTL)
        assert await store.holders() == {"a": 0.25, "b": 0.0}
        clock.move(15)
        assert await store.holders() == {"b": 0.0}
        await store.rest("b")
        await store.rest("b")
        assert await store.holders() == {}

    async def test_a_clock_set_back_does_not_keep_the_dead_alive(
        self, store: Store, clock: HandClock
    ) -> None:
        """Otherwise its lease would last as long as the clock was set back."""
        await create(store)
        await store.beat("a", ttl=TTL)
        await take(store, RUN, 1, "a")
        clock.move(-3600)
        # The last beat is in the future now, by more than a TTL: the holder counts as gone.
        assert await store.holders() == {}
        assert await store.drivable(limit=1) == [RUN]
        assert (await take(store, RUN, 2, "b", epoch=2)).epoch == 2

    async def test_the_dead_do_not_rise_when_the_clock_comes_to_their_last_beat_again(
        self, store: Store, clock: HandClock
    ) -> None:
        await store.beat("a", ttl=TTL)
        clock.move(-3600)
        await store.beat("b", ttl=TTL)
        clock.move(+3600)
        assert await store.holders() == {}

    async def test_a_clock_set_back_a_little_costs_nobody_a_lease(
        self, store: Store, clock: HandClock
    ) -> None:
        """Clocks are corrected all the time; a holder that keeps beating is alive."""
        await create(store)
        await store.beat("a", ttl=TTL)
        await take(store, RUN, 1, "a")
        for step in (-0.001, -3.0, -6.0):  # less than a TTL in all
            clock.move(step)
            with pytest.raises(LeaseHeld):
                await take(store, RUN, 2, "b", epoch=2)
            assert await store.holders() == {"a": 0.0}
        clock.move(-3600)
        await store.beat("a", ttl=TTL)  # the next beat makes it alive again
        with pytest.raises(LeaseHeld):
            await take(store, RUN, 2, "b", epoch=2)
        clock.move(10)
        assert await store.holders() == {}

    async def test_nobody_and_what_cannot_be_written_down_hold_nothing(
        self, store: Store
    ) -> None:
        await create(store)
        for holder in ("", "\ud800"):  # a lone surrogate has no UTF-8 form
            for attempt in (
                store.beat(holder, ttl=TTL),
                store.rest(holder),
                take(store, RUN, 1, holder),
            ):
                with pytest.raises(ValueError, match=r"holder|LeaseTaken"):
                    await attempt
        for ttl, lag in ((-TTL, 0.0), (timedelta.max, 0.0), (TTL, float("nan"))):
            with pytest.raises(ValueError, match=r"ttl|lag"):
                await store.beat("a", ttl=ttl, lag=lag)
        assert await store.holders() == {}
        assert await store.drivable(limit=9) == [RUN]


class Halts(Setting):
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
    async def test_a_latch_refuses_starts_in_its_scope(
        self, store: Store, *, scope: str, holds: bool
    ) -> None:
        ours = Head(phase=Phase.RUNNING, leased=True, agent="researcher", labels=("urgent",))
        await create(store, head=ours)
        lease = await take(store, RUN, 1, "a")
        ours_again = {"after": Seq(2), "lease": lease, "head": ours}
        await store.append(RUN, [said()], after=Seq(2), lease=None, head=ours)
        await store.halt(Halt(scope=scope, by="ops", reason="fire"))
        start = store.append(RUN, [starts()], starts=True, **(ours_again | {"after": Seq(3)}))  # type: ignore[arg-type]  # keywords by name
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
        await store.append(RUN, [done()], after=None, lease=lease, head=None)
        assert await store.lift(scope)
        await store.append(RUN, [starts()], after=Seq(4), lease=lease, head=ours, starts=True)

    @pytest.mark.parametrize("entry", [starts(), UndoStarted(call=CallId("c1"), attempt=1)])
    async def test_a_latch_holds_for_whoever_forgets_to_say_that_something_starts(
        self, store: Store, entry: Entry
    ) -> None:
        """The store sees from the entries themselves that a call starts."""
        await create(store)
        lease = await take(store, RUN, 1, "a")
        await store.halt(Halt(scope="all", by="ops"))
        with pytest.raises(HaltInForce):
            await store.append(RUN, [done(), entry], after=Seq(2), lease=lease, head=RUNNING)
        with pytest.raises(HaltInForce):
            await store.take(
                RUN,
                [LeaseTaken(epoch=Epoch(2)), entry],
                after=Seq(2),
                holder="a",
                head=RUNNING,
            )
        with pytest.raises(HaltInForce):
            await store.append(
                RUN, [done()], after=Seq(2), lease=lease, head=RUNNING, starts=True
            )
        assert (await store.row(RUN)).seq == 2
        await store.append(RUN, [done()], after=Seq(2), lease=lease, head=RUNNING)

    async def test_a_latch_that_cannot_be_written_down_is_refused(self, store: Store) -> None:
        for halt in (
            Halt(scope="agent:\ud800", by="ops"),
            Halt(scope="all", by="\ud800"),
            Halt(scope="all", by="ops", reason="\ud800"),
        ):
            with pytest.raises(ValueError, match="surrogate"):
                await store.halt(halt)
        with pytest.raises(ValueError, match="surrogate"):
            await store.lift("\ud800")
        assert not await store.halts()

    async def test_somebody_who_must_read_on_is_told_that_before_a_halt(
        self, store: Store
    ) -> None:
        await create(store)
        lease = await take(store, RUN, 1, "a")
        await store.halt(Halt(scope="all", by="ops"))
        # A driver that has not seen the newest entries must read them before it obeys the halt.
        with pytest.raises(SeqConflict):
            await store.append(
                RUN, [starts()], after=Seq(1), lease=lease, head=RUNNING, starts=True
            )

    async def test_the_first_to_set_a_latch_is_the_one_it_names(
        self, store: Store, clock: HandClock
    ) -> None:
        first = clock.now
        # The store sets `at` by its own clock.
        await store.halt(Halt(scope="all", by="ann", reason="smoke", at=Micros(7)))
        clock.move(5)
        await store.halt(Halt(scope="all", by="bob"))
        await store.halt(Halt(scope="agent:x", by="bob"))
        assert [(h.scope, h.by, h.reason, h.at) for h in await store.halts()] == [
            ("all", "ann", "smoke", first),
            ("agent:x", "bob", "", clock.now),
        ]
        assert await store.lift("all")
        assert not await store.lift("all")
        assert [h.scope for h in await store.halts()] == ["agent:x"]

    @pytest.mark.parametrize("scope", ["", "agent", "agent:", "tenant:x", "ALL", "all:x"])
    async def test_a_latch_that_would_hold_nothing_is_refused(
        self, store: Store, scope: str
    ) -> None:
        with pytest.raises(ValueError, match="scope"):
            await store.halt(Halt(scope=scope, by="ops"))
        assert not await store.halts()

    async def test_a_run_can_be_begun_and_taken_while_a_latch_holds(self, store: Store) -> None:
        """Only the start of calls is stopped; a driver must be able to record the halt."""
        await store.halt(Halt(scope="all", by="ops"))
        await store.create(RUN, [started()], head=head())
        await take(store, RUN, 1, "a")
