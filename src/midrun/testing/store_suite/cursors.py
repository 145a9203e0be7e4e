"""The contract of follower cursors and push targets, for every store that keeps them."""

from datetime import timedelta

import pytest

from midrun.core.ids import RunId, Seq
from midrun.core.run_head import Head
from midrun.core.values import Phase
from midrun.errors import RunNotFound
from midrun.ports.follower_cursors import (
    NOTE_MAX_CHARS,
    FollowerCursor,
    FollowerCursors,
    HasFollowerCursors,
)
from midrun.ports.push_targets import (
    TARGET_BODY_MAX_BYTES,
    TARGET_ID_MAX_CHARS,
    HasPushTargets,
    PushTarget,
    PushTargets,
)
from midrun.ports.store import Store
from midrun.testing.store_suite.fixtures import (
    MISSING_RUN,
    OTHER_RUN,
    RUN,
    ManualClock,
    ReopenStore,
    StoreSuiteFixtures,
    create_run,
    make_message,
)

LEASE_TTL = timedelta(seconds=10)
COMPLETED_HEAD = Head(phase=Phase.COMPLETED)


def cursors_of(store: Store) -> FollowerCursors:
    """Return the cursors of a store."""
    assert isinstance(store, HasFollowerCursors)
    return store.follower_cursors()


async def append_in_phase(
    store: Store, run: RunId, after: int, phase: Phase = Phase.COMPLETED
) -> None:
    """Append an entry that leaves the run in `phase`."""
    head = Head(phase=phase)
    await store.append(run, [make_message()], after=Seq(after), lease=None, head=head)


class FollowerCursorSuite(StoreSuiteFixtures):
    """A follower finds every new entry once, in order, also after a restart."""

    async def test_a_follower_begins_with_what_happens_from_then_on(self, store: Store) -> None:
        marks = cursors_of(store)
        await create_run(store, RUN, head=COMPLETED_HEAD)
        assert await marks.acquire_leadership("f", holder="p", ttl=LEASE_TTL)
        assert not await marks.list_behind("f", limit=9)
        assert await marks.get_cursor("f", RUN) == FollowerCursor(run=RUN, seq=Seq(1))
        await append_in_phase(store, RUN, 1)
        await create_run(store, OTHER_RUN, head=COMPLETED_HEAD)
        assert {mark.run: mark.seq for mark in await marks.list_behind("f", limit=9)} == {
            RUN: 1,
            OTHER_RUN: 0,
        }

    async def test_what_was_there_is_told_of_from_where_it_stood(self, store: Store) -> None:
        """Also if the run has grown several times before the follower reads it."""
        marks = cursors_of(store)
        await create_run(store, RUN, head=COMPLETED_HEAD)
        await append_in_phase(store, RUN, 1)
        await marks.acquire_leadership("f", holder="p", ttl=LEASE_TTL)
        await append_in_phase(store, RUN, 2)
        await append_in_phase(store, RUN, 3, Phase.RUNNING)
        await marks.acquire_leadership(
            "f", holder="p", ttl=LEASE_TTL
        )  # a renewal does not move its start
        await marks.acquire_leadership("g", holder="p", ttl=LEASE_TTL)
        await append_in_phase(store, RUN, 4)
        assert await marks.list_behind("f", limit=9) == [FollowerCursor(run=RUN, seq=Seq(2))]
        assert await marks.list_behind("g", limit=9) == [FollowerCursor(run=RUN, seq=Seq(4))]
        told = FollowerCursor(run=RUN, seq=Seq(3), note="in between")
        await marks.advance_cursor("f", told)
        assert await marks.list_behind("f", limit=9) == [told]
        assert await marks.get_cursor("g", RUN) == FollowerCursor(run=RUN, seq=Seq(4))

    async def test_what_counts_as_told_cannot_be_untold(self, store: Store) -> None:
        marks = cursors_of(store)
        await create_run(store, RUN, head=COMPLETED_HEAD)
        await append_in_phase(store, RUN, 1)
        await marks.acquire_leadership("f", holder="p", ttl=LEASE_TTL)
        # The follower started after entry 2: a cursor before that is ignored.
        await marks.advance_cursor("f", FollowerCursor(run=RUN, seq=Seq(1), note="one"))
        assert await marks.get_cursor("f", RUN) == FollowerCursor(run=RUN, seq=Seq(2))
        noted = FollowerCursor(run=RUN, seq=Seq(2), note="two")
        await marks.advance_cursor("f", noted)
        assert await marks.get_cursor("f", RUN) == noted
        await append_in_phase(store, RUN, 2)
        assert await marks.list_behind("f", limit=9) == [noted]

    async def test_what_was_told_is_not_told_again(self, store: Store) -> None:
        marks = cursors_of(store)
        await marks.acquire_leadership("f", holder="p", ttl=LEASE_TTL)
        await create_run(store, RUN, head=COMPLETED_HEAD)
        told = FollowerCursor(run=RUN, seq=Seq(1), note="so far")
        await marks.advance_cursor("f", told)
        assert await marks.get_cursor("f", RUN) == told
        assert not await marks.list_behind("f", limit=9)
        await append_in_phase(store, RUN, 1)
        assert await marks.list_behind("f", limit=9) == [told]

    async def test_runs_that_are_at_work_are_not_behind(self, store: Store) -> None:
        """They are delivered when they rest, so that a follower costs a busy run nothing."""
        marks = cursors_of(store)
        await marks.acquire_leadership("f", holder="p", ttl=LEASE_TTL)
        await create_run(store, RUN)
        for seq, phase in enumerate(Phase, 1):
            await append_in_phase(store, RUN, seq, phase)
            rests = phase not in {"queued", "running", "pausing", "cancelling"}
            assert bool(await marks.list_behind("f", limit=9)) == rests, phase

    async def test_a_mark_never_goes_back(self, store: Store) -> None:
        marks = cursors_of(store)
        await marks.acquire_leadership("f", holder="p", ttl=LEASE_TTL)
        await create_run(store, RUN, head=COMPLETED_HEAD)
        await append_in_phase(store, RUN, 1)
        await marks.advance_cursor("f", FollowerCursor(run=RUN, seq=Seq(2), note="two"))
        await marks.advance_cursor("f", FollowerCursor(run=RUN, seq=Seq(1), note="one"))
        assert await marks.get_cursor("f", RUN) == FollowerCursor(
            run=RUN, seq=Seq(2), note="two"
        )

    async def test_followers_do_not_see_each_others_marks(self, store: Store) -> None:
        marks = cursors_of(store)
        for name in ("f", "g"):
            await marks.acquire_leadership(name, holder="p", ttl=LEASE_TTL)
        await create_run(store, RUN, head=COMPLETED_HEAD)
        await marks.advance_cursor("f", FollowerCursor(run=RUN, seq=Seq(1)))
        assert not await marks.list_behind("f", limit=9)
        assert await marks.list_behind("g", limit=9) == [FollowerCursor(run=RUN)]

    async def test_the_one_that_rests_for_the_longest_comes_first(
        self, store: Store, clock: ManualClock
    ) -> None:
        marks = cursors_of(store)
        await marks.acquire_leadership("f", holder="p", ttl=LEASE_TTL)
        for run in (RUN, OTHER_RUN):
            await create_run(store, run, head=COMPLETED_HEAD)
            clock.move(1)
        await append_in_phase(store, RUN, 1)
        assert [mark.run for mark in await marks.list_behind("f", limit=9)] == [OTHER_RUN, RUN]
        assert [mark.run for mark in await marks.list_behind("f", limit=1)] == [OTHER_RUN]

    async def test_one_process_at_a_time_has_the_place(
        self, store: Store, clock: ManualClock
    ) -> None:
        marks = cursors_of(store)
        assert await marks.acquire_leadership("f", holder="p", ttl=LEASE_TTL)
        assert await marks.acquire_leadership("f", holder="p", ttl=LEASE_TTL)
        assert not await marks.acquire_leadership("f", holder="q", ttl=LEASE_TTL)
        assert await marks.acquire_leadership("g", holder="q", ttl=LEASE_TTL)
        clock.move(11)  # the term of p has expired
        assert await marks.acquire_leadership("f", holder="q", ttl=LEASE_TTL)
        assert not await marks.acquire_leadership("f", holder="p", ttl=LEASE_TTL)
        await marks.release_leadership(
            "f", holder="p"
        )  # p does not hold it any more: no effect
        assert not await marks.acquire_leadership("f", holder="p", ttl=LEASE_TTL)
        await marks.release_leadership("f", holder="q")
        assert await marks.acquire_leadership("f", holder="p", ttl=LEASE_TTL)

    async def test_marks_outlive_their_process(
        self, store: Store, reopen: ReopenStore | None
    ) -> None:
        if reopen is None:
            return
        await cursors_of(store).acquire_leadership("f", holder="p", ttl=LEASE_TTL)
        await create_run(store, RUN, head=COMPLETED_HEAD)
        await cursors_of(store).advance_cursor(
            "f", FollowerCursor(run=RUN, seq=Seq(1), note="kept")
        )
        again = cursors_of(await reopen(store))
        assert await again.get_cursor("f", RUN) == FollowerCursor(
            run=RUN, seq=Seq(1), note="kept"
        )
        assert not await again.list_behind("f", limit=9)

    async def test_what_cannot_be_kept_is_refused(self, store: Store) -> None:
        marks = cursors_of(store)
        await marks.acquire_leadership("f", holder="p", ttl=LEASE_TTL)
        await create_run(store, RUN, head=COMPLETED_HEAD)
        with pytest.raises(RunNotFound):
            await marks.get_cursor("f", MISSING_RUN)
        with pytest.raises(RunNotFound):
            await marks.advance_cursor("f", FollowerCursor(run=MISSING_RUN))
        with pytest.raises(ValueError, match="note"):
            await marks.advance_cursor(
                "f", FollowerCursor(run=RUN, note="x" * (NOTE_MAX_CHARS + 1))
            )
        with pytest.raises(ValueError, match="follower"):
            await marks.acquire_leadership("", holder="p", ttl=LEASE_TTL)


def targets_of(store: Store) -> PushTargets:
    """Return the push targets of a store."""
    assert isinstance(store, HasPushTargets)
    return store.push_targets()


class PushTargetSuite(StoreSuiteFixtures):
    """The addresses of a run are kept until they are removed, or the run is."""

    async def test_a_target_is_put_replaced_and_removed(self, store: Store) -> None:
        targets = targets_of(store)
        assert await targets.list_targets(MISSING_RUN) == []
        await create_run(store, RUN)
        first, second = PushTarget(id="a", body=b"1"), PushTarget(id="b", body=b"\x002")
        await targets.put_target(RUN, second)
        await targets.put_target(RUN, PushTarget(id="a", body=b"0"))
        await targets.put_target(RUN, first)
        await targets.put_target(OTHER_RUN, first)  # before this run exists
        assert await targets.list_targets(RUN) == [first, second]
        for _ in range(2):
            await targets.remove_target(RUN, "a")
        assert await targets.list_targets(RUN) == [second]
        await create_run(store, OTHER_RUN)
        assert await targets.list_targets(OTHER_RUN) == [first]

    async def test_targets_go_with_the_run(self, store: Store) -> None:
        targets, target = targets_of(store), PushTarget(id="a", body=b"1")
        for run in (RUN, OTHER_RUN):
            await create_run(store, run, head=COMPLETED_HEAD)
            await targets.put_target(run, target)
        await store.delete_runs([RUN], by="ann")
        assert await targets.list_targets(RUN) == []
        assert await targets.list_targets(OTHER_RUN) == [target]

    async def test_targets_survive_a_restart(
        self, store: Store, reopen: ReopenStore | None
    ) -> None:
        if reopen is None:
            pytest.skip("the store is volatile")
        target = PushTarget(id="a", body=b"1")
        await targets_of(store).put_target(RUN, target)
        assert await targets_of(await reopen(store)).list_targets(RUN) == [target]

    async def test_a_target_has_bounds(self, store: Store) -> None:
        longest = PushTarget(id="i" * TARGET_ID_MAX_CHARS, body=b"b" * TARGET_BODY_MAX_BYTES)
        await targets_of(store).put_target(RUN, longest)
        assert await targets_of(store).list_targets(RUN) == [longest]
        for wrong in (
            PushTarget(id="", body=b"1"),
            PushTarget(id=longest.id + "i", body=b"1"),
            PushTarget(id="a", body=b""),
            PushTarget(id="a", body=longest.body + b"b"),
        ):
            with pytest.raises(ValueError, match="must have"):
                await targets_of(store).put_target(RUN, wrong)
