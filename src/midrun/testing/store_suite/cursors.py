"""The contract of follower cursors, for every store that keeps them."""

from datetime import timedelta

import pytest

from midrun.core.ids import RunId, Seq
from midrun.core.run_head import Head
from midrun.core.values import Phase
from midrun.errors import RunNotFound
from midrun.ports.follower_cursors import NOTE_MAX, Mark, Marking, Marks
from midrun.ports.store import Store
from midrun.testing.store_suite.fixtures import (
    NOBODY,
    OTHER,
    RUN,
    HandClock,
    Reopen,
    Setting,
    create,
    said,
)

TTL = timedelta(seconds=10)
DONE = Head(phase=Phase.COMPLETED)


def marks_of(store: Store) -> Marks:
    """Return the cursors of a store."""
    assert isinstance(store, Marking)
    return store.marks()


async def grow(store: Store, run: RunId, after: int, phase: Phase = Phase.COMPLETED) -> None:
    """Append an entry that leaves the run in `phase`."""
    head = Head(phase=phase)
    await store.append(run, [said()], after=Seq(after), lease=None, head=head)


class MarksSuite(Setting):
    """A follower finds every new entry once, in order, also after a restart."""

    async def test_a_follower_begins_with_what_happens_from_then_on(self, store: Store) -> None:
        marks = marks_of(store)
        await create(store, RUN, head=DONE)
        assert await marks.attend("f", holder="p", ttl=TTL)
        assert not await marks.behind("f", limit=9)
        assert await marks.marked("f", RUN) == Mark(run=RUN, seq=Seq(1))
        await grow(store, RUN, 1)
        await create(store, OTHER, head=DONE)
        assert {mark.run: mark.seq for mark in await marks.behind("f", limit=9)} == {
            RUN: 1,
            OTHER: 0,
        }

    async def test_what_was_there_is_told_of_from_where_it_stood(self, store: Store) -> None:
        """Also if the run has grown several times before the follower reads it."""
        marks = marks_of(store)
        await create(store, RUN, head=DONE)
        await grow(store, RUN, 1)
        await marks.attend("f", holder="p", ttl=TTL)
        await grow(store, RUN, 2)
        await grow(store, RUN, 3, Phase.RUNNING)
        await marks.attend("f", holder="p", ttl=TTL)  # a renewal does not move its start
        await marks.attend("g", holder="p", ttl=TTL)
        await grow(store, RUN, 4)
        assert await marks.behind("f", limit=9) == [Mark(run=RUN, seq=Seq(2))]
        assert await marks.behind("g", limit=9) == [Mark(run=RUN, seq=Seq(4))]
        told = Mark(run=RUN, seq=Seq(3), note="in between")
        await marks.mark("f", told)
        assert await marks.behind("f", limit=9) == [told]
        assert await marks.marked("g", RUN) == Mark(run=RUN, seq=Seq(4))

    async def test_what_counts_as_told_cannot_be_untold(self, store: Store) -> None:
        marks = marks_of(store)
        await create(store, RUN, head=DONE)
        await grow(store, RUN, 1)
        await marks.attend("f", holder="p", ttl=TTL)
        # The follower started after entry 2: a cursor before that is ignored.
        await marks.mark("f", Mark(run=RUN, seq=Seq(1), note="one"))
        assert await marks.marked("f", RUN) == Mark(run=RUN, seq=Seq(2))
        noted = Mark(run=RUN, seq=Seq(2), note="two")
        await marks.mark("f", noted)
        assert await marks.marked("f", RUN) == noted
        await grow(store, RUN, 2)
        assert await marks.behind("f", limit=9) == [noted]

    async def test_what_was_told_is_not_told_again(self, store: Store) -> None:
        marks = marks_of(store)
        await marks.attend("f", holder="p", ttl=TTL)
        await create(store, RUN, head=DONE)
        told = Mark(run=RUN, seq=Seq(1), note="so far")
        await marks.mark("f", told)
        assert await marks.marked("f", RUN) == told
        assert not await marks.behind("f", limit=9)
        await grow(store, RUN, 1)
        assert await marks.behind("f", limit=9) == [told]

    async def test_runs_that_are_at_work_are_not_behind(self, store: Store) -> None:
        """They are delivered when they rest, so that a follower costs a busy run nothing."""
        marks = marks_of(store)
        await marks.attend("f", holder="p", ttl=TTL)
        await create(store, RUN)
        for seq, phase in enumerate(Phase, 1):
            await grow(store, RUN, seq, phase)
            rests = phase not in {"queued", "running", "pausing", "cancelling"}
            assert bool(await marks.behind("f", limit=9)) == rests, phase

    async def test_a_mark_never_goes_back(self, store: Store) -> None:
        marks = marks_of(store)
        await marks.attend("f", holder="p", ttl=TTL)
        await create(store, RUN, head=DONE)
        await grow(store, RUN, 1)
        await marks.mark("f", Mark(run=RUN, seq=Seq(2), note="two"))
        await marks.mark("f", Mark(run=RUN, seq=Seq(1), note="one"))
        assert await marks.marked("f", RUN) == Mark(run=RUN, seq=Seq(2), note="two")

    async def test_followers_do_not_see_each_others_marks(self, store: Store) -> None:
        marks = marks_of(store)
        for name in ("f", "g"):
            await marks.attend(name, holder="p", ttl=TTL)
        await create(store, RUN, head=DONE)
        await marks.mark("f", Mark(run=RUN, seq=Seq(1)))
        assert not await marks.behind("f", limit=9)
        assert await marks.behind("g", limit=9) == [Mark(run=RUN)]

    async def test_the_one_that_rests_for_the_longest_comes_first(
        self, store: Store, clock: HandClock
    ) -> None:
        marks = marks_of(store)
        await marks.attend("f", holder="p", ttl=TTL)
        for run in (RUN, OTHER):
            await create(store, run, head=DONE)
            clock.move(1)
        await grow(store, RUN, 1)
        assert [mark.run for mark in await marks.behind("f", limit=9)] == [OTHER, RUN]
        assert [mark.run for mark in await marks.behind("f", limit=1)] == [OTHER]

    async def test_one_process_at_a_time_has_the_place(
        self, store: Store, clock: HandClock
    ) -> None:
        marks = marks_of(store)
        assert await marks.attend("f", holder="p", ttl=TTL)
        assert await marks.attend("f", holder="p", ttl=TTL)
        assert not await marks.attend("f", holder="q", ttl=TTL)
        assert await marks.attend("g", holder="q", ttl=TTL)
        clock.move(11)  # the term of p has expired
        assert await marks.attend("f", holder="q", ttl=TTL)
        assert not await marks.attend("f", holder="p", ttl=TTL)
        await marks.leave("f", holder="p")  # p does not hold it any more: no effect
        assert not await marks.attend("f", holder="p", ttl=TTL)
        await marks.leave("f", holder="q")
        assert await marks.attend("f", holder="p", ttl=TTL)

    async def test_marks_outlive_their_process(
        self, store: Store, reopen: Reopen | None
    ) -> None:
        if reopen is None:
            return
        await marks_of(store).attend("f", holder="p", ttl=TTL)
        await create(store, RUN, head=DONE)
        await marks_of(store).mark("f", Mark(run=RUN, seq=Seq(1), note="kept"))
        again = marks_of(await reopen(store))
        assert await again.marked("f", RUN) == Mark(run=RUN, seq=Seq(1), note="kept")
        assert not await again.behind("f", limit=9)

    async def test_what_cannot_be_kept_is_refused(self, store: Store) -> None:
        marks = marks_of(store)
        await marks.attend("f", holder="p", ttl=TTL)
        await create(store, RUN, head=DONE)
        with pytest.raises(RunNotFound):
            await marks.marked("f", NOBODY)
        with pytest.raises(RunNotFound):
            await marks.mark("f", Mark(run=NOBODY))
        with pytest.raises(ValueError, match="note"):
            await marks.mark("f", Mark(run=RUN, note="x" * (NOTE_MAX + 1)))
        with pytest.raises(ValueError, match="follower"):
            await marks.attend("", holder="p", ttl=TTL)
