"""Deletion: a deleted run leaves a tombstone and nothing else."""

import pytest
from msgspec.structs import replace

from midrun.core.entries import RunStarted
from midrun.core.ids import Micros, RunId, Seq
from midrun.core.run_head import Head
from midrun.core.values import DELETABLE_PHASES, Message, Phase
from midrun.errors import CursorRefused, DeleteRefused, FileMissing, RunErased, RunNotFound
from midrun.ports.follower_cursors import FollowerCursor
from midrun.ports.store import EndedQuery, RunQuery, Snapshot, Store, Tombstone
from midrun.testing.store_suite.cursors import LEASE_TTL, cursors_of
from midrun.testing.store_suite.files import PICTURE, make_bodies, make_ref
from midrun.testing.store_suite.fixtures import (
    MISSING_RUN,
    OTHER_RUN,
    RUN,
    ManualClock,
    ReopenStore,
    StoreSuiteFixtures,
    append_message,
    create_run,
    make_head,
    make_message,
    make_started,
    take_lease,
)

CHILD = RunId("run_child")
GRANDCHILD = RunId("run_grandchild")
COMPLETED = Head(phase=Phase.COMPLETED, agent="clerk", labels=("gpu",), owner="ann")


async def delete_run(store: Store, run: RunId = RUN, reason: str = "GDPR") -> Tombstone:
    """Delete one run with everything that is left of it; return its tombstone."""
    deleted = await store.delete_runs([run], by="ann", reason=reason)
    assert not deleted.refusals
    while await store.remove_leftovers():
        pass
    return deleted.tombstones[0]


def make_child(phase: Phase, parent: RunId = RUN) -> Head:
    """Return the head of a child run."""
    return Head(phase=phase, parent=parent)


class DeletionTests(StoreSuiteFixtures):
    """Runs are deleted as a whole, once they have ended, and never come back."""

    async def test_a_deleted_run_leaves_its_tombstone(
        self, store: Store, clock: ManualClock
    ) -> None:
        created = await create_run(store, head=COMPLETED)
        clock.move(5)
        tombstone = await delete_run(store)
        assert (tombstone.run, tombstone.seq, tombstone.hash) == (RUN, 1, created.hash)
        assert (tombstone.by, tombstone.reason, tombstone.at) == ("ann", "GDPR", clock.now)
        assert await store.get_tombstone(RUN) == tombstone

    async def test_every_method_names_the_deletion(self, store: Store) -> None:
        await create_run(store, head=COMPLETED)
        await append_message(store, RUN, 1)
        await store.append(
            RUN, [make_message()], after=Seq(2), lease=None, head=make_head(Phase.COMPLETED)
        )
        await delete_run(store)
        snapshot = Snapshot(seq=Seq(1), hash=b"h", body=b"{}")
        for call in (
            lambda: store.get_row(RUN),
            lambda: store.read(RUN),
            lambda: store.read(RUN, after=Seq(1)),
            lambda: store.read_lines(RUN),
            lambda: store.load_snapshot(RUN),
            lambda: store.save_snapshot(RUN, snapshot),
            lambda: append_message(store, RUN, 3),
            lambda: take_lease(store, RUN, 3, "p"),
            lambda: create_run(store, RUN),
        ):
            with pytest.raises(RunErased) as refused:
                await call()
            assert (refused.value.by, refused.value.why) == ("ann", "GDPR")

    async def test_a_deleted_run_is_in_no_list(self, store: Store) -> None:
        await create_run(store, head=COMPLETED)
        await create_run(store, OTHER_RUN)
        await delete_run(store)
        assert [row.run for row in (await store.list_runs(RunQuery())).items] == [OTHER_RUN]
        for query in (RunQuery(label="gpu"), RunQuery(owner="ann"), RunQuery(agent="clerk")):
            assert not (await store.list_runs(query)).items
        found = (await store.list_runs(RunQuery(search="researcher"))).items
        assert [row.run for row in found] == [OTHER_RUN]
        assert await store.count_runs_by_phase() == {Phase.QUEUED: 1}

    @pytest.mark.parametrize("phase", [p for p in Phase if p not in DELETABLE_PHASES])
    async def test_a_run_that_has_not_ended_is_refused(
        self, store: Store, phase: Phase
    ) -> None:
        await create_run(store, head=make_head(phase))
        deleted = await store.delete_runs([RUN], by="ann")
        (refusal,) = deleted.refusals
        assert isinstance(refusal, DeleteRefused)
        assert refusal.reason == f"is_{phase}"
        assert not deleted.tombstones
        assert len(await store.read(RUN)) == 1

    async def test_children_go_with_their_parent(self, store: Store) -> None:
        await create_run(store, head=COMPLETED)
        await create_run(store, CHILD, head=make_child(Phase.COMPLETED))
        await create_run(store, GRANDCHILD, head=make_child(Phase.FAILED, CHILD))
        deleted = await store.delete_runs([RUN], by="ann")
        assert {t.run for t in deleted.tombstones} == {RUN, CHILD, GRANDCHILD}
        with pytest.raises(RunErased):
            await store.get_row(GRANDCHILD)

    async def test_a_child_that_has_not_ended_keeps_the_family(self, store: Store) -> None:
        await create_run(store, head=COMPLETED)
        await create_run(store, CHILD, head=make_child(Phase.PAUSED))
        (refusal,) = (await store.delete_runs([RUN], by="ann")).refusals
        assert refusal.args == (RUN, "is_paused", CHILD)
        assert (await store.get_row(RUN)).seq == 1

    async def test_a_child_is_not_deleted_without_its_parent(self, store: Store) -> None:
        await create_run(store, head=COMPLETED)
        await create_run(store, CHILD, head=make_child(Phase.COMPLETED))
        (refusal,) = (await store.delete_runs([CHILD], by="ann")).refusals
        assert refusal.args == (CHILD, "has_parent", RUN)

    async def test_a_refused_run_does_not_keep_the_others(self, store: Store) -> None:
        await create_run(store, head=COMPLETED)
        await create_run(store, OTHER_RUN)
        deleted = await store.delete_runs([MISSING_RUN, OTHER_RUN, RUN], by="ann")
        assert [t.run for t in deleted.tombstones] == [RUN]
        assert {type(refusal) for refusal in deleted.refusals} == {RunNotFound, DeleteRefused}
        (again,) = (await store.delete_runs([RUN], by="bob")).refusals
        assert isinstance(again, RunErased)
        assert (await store.get_tombstone(RUN)).by == "ann"

    async def test_without_a_tombstone_there_is_none(self, store: Store) -> None:
        await create_run(store)
        for run in (RUN, MISSING_RUN):
            with pytest.raises(RunNotFound):
                await store.get_tombstone(run)

    async def test_a_run_that_is_created_next_is_seen(self, store: Store) -> None:
        """The newest run and the newest entry were deleted: their numbers are not reused."""
        await create_run(store, head=COMPLETED)
        async with store.watch() as changes:
            await delete_run(store)
            change = await anext(changes)
            assert (change.run, change.seq) == (RUN, 2)
            await create_run(store, OTHER_RUN)
            assert (await anext(changes)).run == OTHER_RUN
        assert len(await store.read(OTHER_RUN)) == 1

    async def test_a_page_follows_a_run_that_was_deleted(self, store: Store) -> None:
        for number in range(4):
            await create_run(store, RunId(f"run_{number}"), head=COMPLETED)
        first = await store.list_runs(RunQuery(limit=2))
        await store.delete_runs([first.items[-1].run], by="ann")
        rest = await store.list_runs(RunQuery(limit=2, cursor=first.cursor))
        assert [row.run for row in rest.items] == ["run_1", "run_0"]

    async def test_a_shared_history_stays_for_the_other_run(self, store: Store) -> None:
        history = tuple(
            Message(role="user", text=f"message {number} {'word ' * 100}")
            for number in range(100)
        )
        entry = RunStarted(agent="clerk", task="t", history=history)
        for run in (RUN, OTHER_RUN):
            await store.create(run, [entry], head=COMPLETED)
        await delete_run(store)
        (record,) = await store.read(OTHER_RUN)
        assert getattr(record.entry, "history", ()) == history
        await delete_run(store, OTHER_RUN)
        third = RunId("run_3")
        await store.create(third, [entry], head=COMPLETED)
        assert len(await store.read(third)) == 1

    async def test_a_file_goes_with_the_last_run_that_has_it(self, store: Store) -> None:
        ref = make_ref(PICTURE)
        entry = replace(make_started(), files=(ref,))
        for run in (RUN, OTHER_RUN):
            await store.create(run, [entry], head=COMPLETED, files=make_bodies(PICTURE))
        await delete_run(store)
        assert await store.read_file(OTHER_RUN, ref.hash) == PICTURE
        await delete_run(store, OTHER_RUN)
        with pytest.raises(FileMissing):  # the body is not given, and not stored any more
            await store.create(RunId("run_3"), [entry], head=COMPLETED)
        with pytest.raises(RunErased):
            await store.read_file(RUN, ref.hash)

    async def test_follower_cursors_go_with_the_run(self, store: Store) -> None:
        marks = cursors_of(store)
        assert await marks.acquire_leadership("f", holder="p", ttl=LEASE_TTL)
        await create_run(store, head=COMPLETED)
        await create_run(store, OTHER_RUN, head=COMPLETED)
        await marks.advance_cursor("f", FollowerCursor(run=RUN, seq=Seq(1)))
        await store.delete_runs([RUN], by="ann")
        assert [mark.run for mark in await marks.list_behind("f", limit=9)] == [OTHER_RUN]
        with pytest.raises(RunNotFound):
            await marks.get_cursor("f", RUN)
        with pytest.raises(RunNotFound):
            await marks.advance_cursor("f", FollowerCursor(run=RUN, seq=Seq(2)))

    async def test_ended_runs_are_listed_by_their_end(
        self, store: Store, clock: ManualClock
    ) -> None:
        for number, phase in enumerate((Phase.FAILED, Phase.PAUSED, Phase.COMPLETED)):
            await create_run(store, RunId(f"run_{number}"), head=make_head(phase))
            clock.move(1)
        await create_run(store, CHILD, head=make_child(Phase.COMPLETED, RunId("run_0")))
        orphan = RunId("run_orphan")
        await create_run(store, orphan, head=make_child(Phase.COMPLETED, MISSING_RUN))
        clock.move(1)
        page = await store.list_ended(EndedQuery(before=clock.now, limit=2))
        assert [row.run for row in page.items] == ["run_0", "run_2"]
        await store.delete_runs([RunId("run_2")], by="ann")
        rest = await store.list_ended(EndedQuery(before=clock.now, limit=2, cursor=page.cursor))
        assert [row.run for row in rest.items] == [orphan]
        assert not rest.cursor
        early = EndedQuery(before=page.items[0].changed_at)
        assert not (await store.list_ended(early)).items
        with pytest.raises(CursorRefused):
            await store.list_ended(EndedQuery(before=clock.now, cursor="run_0"))

    async def test_ended_runs_are_filtered(self, store: Store, clock: ManualClock) -> None:
        await create_run(store, head=COMPLETED)
        thread = Head(phase=Phase.COMPLETED, agent="other", thread="t", owner="bob")
        await create_run(store, OTHER_RUN, head=thread)
        before = Micros(clock.now + 1)
        for query, run in (
            (EndedQuery(before=before, agent="clerk"), RUN),
            (EndedQuery(before=before, label="gpu"), RUN),
            (EndedQuery(before=before, owner="ann"), RUN),
            (EndedQuery(before=before, thread="t"), OTHER_RUN),
            (EndedQuery(before=before, owner="bob", agent="other"), OTHER_RUN),
        ):
            found = (await store.list_ended(query)).items
            assert [row.run for row in found] == [run]

    async def test_a_tombstone_survives_a_restart(
        self, store: Store, reopen: ReopenStore | None
    ) -> None:
        if reopen is None:
            pytest.skip("the store is volatile")
        await create_run(store, head=COMPLETED)
        deleted = await store.delete_runs([RUN], by="ann", reason="GDPR")
        again = await reopen(store)
        assert await again.get_tombstone(RUN) == deleted.tombstones[0]
        while await again.remove_leftovers():
            pass
        with pytest.raises(RunErased):
            await again.read(RUN)

    async def test_a_long_journal_is_removed_in_steps(self, store: Store) -> None:
        await create_run(store)
        for after in range(1, 601, 100):
            entries = [make_message(str(number)) for number in range(100)]
            head = Head(phase=Phase.COMPLETED)
            await store.append(RUN, entries, after=Seq(after), lease=None, head=head)
        await store.delete_runs([RUN], by="ann")
        with pytest.raises(RunErased):
            await store.read(RUN)
        while await store.remove_leftovers():
            pass
        assert (await store.get_tombstone(RUN)).seq == 601

    async def test_arguments_are_checked(self, store: Store) -> None:
        await create_run(store, head=COMPLETED)
        for by, reason in (("", "r"), ("\ud800", ""), ("ann", "\ud800")):
            with pytest.raises(ValueError, match="must"):
                await store.delete_runs([RUN], by=by, reason=reason)
        assert (await store.get_row(RUN)).seq == 1
