"""Journals: appended, refused and read back."""

import pytest

from midrun.codec.hash_chain import get_chain
from midrun.codec.journal import decode_line, normalize_entry
from midrun.core.entries import ENTRY_TYPES, Entry, LeaseTaken, PauseRequested, RunStarted
from midrun.core.ids import RunId, Seq
from midrun.core.values import Phase
from midrun.errors import (
    JournalCorrupt,
    JournalTooNew,
    KindRefused,
    NotJson,
    RunExists,
    RunNotFound,
    SeqConflict,
    StoreClosed,
    TooLarge,
)
from midrun.ports.store import RunQuery, Snapshot, Store
from midrun.ports.write_permissions import PERSON_ENTRY_TYPES, UNLEASED_ENTRY_TYPES
from midrun.testing.store_suite.fixtures import (
    EMPTY_FILE_HASH,
    MISSING_RUN,
    OTHER_RUN,
    RUN,
    ManualClock,
    ReopenStore,
    StoreSuiteFixtures,
    append_message,
    create_run,
    export_lines,
    make_call_done,
    make_example,
    make_head,
    make_imported,
    make_message,
    make_started,
    pause_run,
    take_lease,
)


class JournalTests(StoreSuiteFixtures):
    """A journal only grows, by a whole append or not at all."""

    async def test_a_new_run_has_one_entry_stamped_by_the_stores_clock(
        self, store: Store, clock: ManualClock
    ) -> None:
        appended = await store.create(RUN, [make_started()], head=make_head())
        (record,) = await store.read(RUN)
        assert (appended.seq, appended.at) == (1, clock.now)
        assert (record.seq, record.at, record.epoch) == (1, clock.now, None)
        assert record.entry == make_started()

    async def test_a_second_run_of_the_same_id_is_refused(self, store: Store) -> None:
        await create_run(store)
        with pytest.raises(RunExists):
            await store.create(RUN, [make_started("else")], head=make_head())
        (record,) = await store.read(RUN)
        assert record.entry == make_started()

    async def test_a_journal_begins_with_the_start_of_its_run(self, store: Store) -> None:
        wrong: list[list[Entry]] = [[], [make_message()], [make_message(), make_started()]]
        for entries in wrong:
            with pytest.raises(ValueError, match="RunStarted"):
                await store.create(RUN, entries, head=make_head())
        with pytest.raises(RunNotFound):
            await store.get_row(RUN)

    @pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 65, "é", "\ud800", "a\0"])
    async def test_an_id_that_does_not_fit_in_an_address_is_refused(
        self, store: Store, name: str
    ) -> None:
        with pytest.raises(ValueError, match="id"):
            await store.create(RunId(name), [make_started()], head=make_head())
        with pytest.raises(RunNotFound):
            await store.read(RunId(name))

    async def test_entries_of_one_append_follow_each_other_and_share_their_time(
        self, store: Store, clock: ManualClock
    ) -> None:
        await create_run(store)
        clock.move(1)
        texts = [make_message("a"), make_message("b"), make_message("c")]
        appended = await store.append(RUN, texts, after=Seq(1), lease=None, head=make_head())
        records = await store.read(RUN, after=Seq(1))
        assert [r.entry for r in records] == texts
        assert [r.seq for r in records] == [2, 3, 4]
        assert {r.at for r in records} == {clock.now}
        assert appended.seq == 4

    async def test_an_append_after_a_stale_seq_is_refused(self, store: Store) -> None:
        await create_run(store)
        await append_message(store, RUN, 1)
        for after in (0, 1, 3):
            with pytest.raises(SeqConflict) as refused:
                await append_message(store, RUN, after, "late")
            assert (refused.value.after, refused.value.head) == (after, 2)
        assert len(await store.read(RUN)) == 2

    async def test_a_run_that_does_not_exist_is_not_found(self, store: Store) -> None:
        snapshot = Snapshot(seq=Seq(1), hash=bytes(32), body=b"")
        for attempt in (
            store.read(MISSING_RUN),
            store.read_lines(MISSING_RUN),
            store.get_row(MISSING_RUN),
            append_message(store, MISSING_RUN, 1),
            take_lease(store, MISSING_RUN, 1, "a"),
            store.load_snapshot(MISSING_RUN),
            store.save_snapshot(MISSING_RUN, snapshot),
        ):
            with pytest.raises(RunNotFound):
                await attempt

    async def test_one_bad_entry_keeps_the_whole_append_out(self, store: Store) -> None:
        await create_run(store)
        lease = await take_lease(store, RUN, 1, "a")
        for bad, refusal in ((float("nan"), NotJson), ("x" * 9_000_000, TooLarge)):
            with pytest.raises(refusal):
                await store.append(
                    RUN,
                    [make_call_done(), make_call_done(result=bad)],
                    after=None,
                    lease=lease,
                    head=None,
                )
        with pytest.raises(ValueError, match="empty"):
            await store.append(RUN, [], after=None, lease=lease, head=None)
        assert (await store.get_row(RUN)).seq == 2

    async def test_time_never_runs_backwards_in_a_journal(
        self, store: Store, clock: ManualClock
    ) -> None:
        first = await create_run(store)
        clock.move(-3600)
        second = await append_message(store, RUN, 1)
        clock.move(+7200)
        third = await append_message(store, RUN, 2)
        assert first.at == second.at < third.at == clock.now

    async def test_every_read_is_a_stretch_of_the_same_journal(self, store: Store) -> None:
        await create_run(store)
        for seq in range(1, 80):
            await append_message(store, RUN, seq, f"text {seq}")
        whole = list(await store.read(RUN))
        assert [r.seq for r in whole] == [*range(1, 81)]
        for after in (0, 1, 40, 79, 80, 81, 2**60):
            assert list(await store.read(RUN, after=Seq(after))) == whole[after:]
            for limit in (0, 1, 70):
                part = await store.read(RUN, after=Seq(after), limit=limit)
                assert list(part) == whole[after : after + limit]

    async def test_the_chain_ties_every_line_to_all_before_it(self, store: Store) -> None:
        await create_run(store)
        appended = await append_message(store, RUN, 1)
        chain = get_chain(store)
        link = chain.make_first_link(RUN)
        for data, stored in await store.read_lines(RUN):
            link = chain.make_next_link(link, data)
            assert stored == link
        assert link == appended.hash == (await store.get_row(RUN)).hash

    async def test_what_is_read_back_is_what_was_checked(self, store: Store) -> None:
        await create_run(store)
        lease = await take_lease(store, RUN, 1, "a")
        # Values that JSON encoders are known to change.
        odd = {"f": [-0.0, 1.0, 1, 1e22, 5e-324], "t": ("é\u2028\0", "😀"), "n": 2**53 - 1}
        entry = make_call_done(result=odd)
        await store.append(RUN, [entry], after=None, lease=lease, head=None)
        (record,) = await store.read(RUN, after=Seq(2))
        assert record.entry == normalize_entry(entry)
        assert record.epoch == lease.epoch

    async def test_the_head_moves_with_the_append_that_brings_it(
        self, store: Store, clock: ManualClock
    ) -> None:
        born = await create_run(store)
        clock.move(5)
        paused = make_head(Phase.PAUSED)
        appended = await store.append(
            RUN, [make_message()], after=Seq(1), lease=None, head=paused
        )
        row = await store.get_row(RUN)
        assert row.head == paused
        assert (row.seq, row.hash, row.changed_at) == (2, appended.hash, clock.now)
        assert row.started_at == born.at
        await store.append(
            RUN, [make_message()], after=Seq(2), lease=None, head=None
        )  # keeps the head
        assert (await store.get_row(RUN)).head == paused

    async def test_each_writer_may_append_only_its_own_kinds(self, store: Store) -> None:
        """A driver cannot write a person's entry, nor a control a driver's."""
        for kind in ENTRY_TYPES:
            run, entry, seq = RunId(f"run_{kind.__name__}"), make_example(kind), Seq(1)
            await create_run(store, run)
            if kind in UNLEASED_ENTRY_TYPES:
                await store.append(run, [entry], after=seq, lease=None, head=None)
                seq = Seq(2)
            else:
                with pytest.raises(KindRefused):
                    await store.append(run, [entry], after=seq, lease=None, head=None)
            lease = await take_lease(store, run, seq, "a")
            seq = Seq(seq + 1)
            if kind in PERSON_ENTRY_TYPES or kind is LeaseTaken:
                with pytest.raises(KindRefused):
                    await store.append(run, [entry], after=seq, lease=lease, head=None)
                continue
            files = {EMPTY_FILE_HASH: b""}
            await store.append(run, [entry], after=seq, lease=lease, head=None, files=files)
            assert (await store.read(run))[-1].entry == entry

    async def test_a_new_run_may_not_bring_a_drivers_entries(self, store: Store) -> None:
        with pytest.raises(KindRefused):
            await store.create(RUN, [make_started(), make_call_done()], head=make_head())
        with pytest.raises(RunNotFound):
            await store.read(RUN)

    async def test_a_journal_from_elsewhere_is_kept_byte_for_byte(
        self, store: Store, clock: ManualClock
    ) -> None:
        await create_run(store)
        await take_lease(store, RUN, 1, "a")
        clock.move(1)
        await append_message(store, RUN, 2)
        await pause_run(store, RUN, 3)
        lines = await export_lines(store, RUN)
        clock.move(-999)  # the clock of the new store is behind the journal
        with pytest.raises(RunExists):
            await store.adopt(RUN, lines, make_imported(RUN, lines), head=make_head())
        brought = make_imported(OTHER_RUN, lines)
        adopted = await store.adopt(OTHER_RUN, lines, brought, head=make_head(Phase.PAUSED))
        pairs = await store.read_lines(OTHER_RUN)
        assert (await export_lines(store, OTHER_RUN))[:-1] == lines
        assert (await store.read(OTHER_RUN))[-1].entry == brought  # appended in the same write
        chain = get_chain(store)
        assert pairs[0][1] == chain.make_next_link(
            chain.make_first_link(OTHER_RUN), pairs[0][0]
        )  # the chain is bound to the run's id
        row = await store.get_row(OTHER_RUN)
        assert (row.seq, row.epoch, row.holder, row.hash) == (6, 1, "", adopted.hash)
        again = await take_lease(store, OTHER_RUN, 6, "b", epoch=2)
        assert again.epoch == 2
        assert (await store.read(OTHER_RUN))[-1].at == decode_line(lines[-1]).at

    async def test_what_is_not_a_journal_is_not_adopted(self, store: Store) -> None:
        await create_run(store)
        await append_message(store, RUN, 1)
        first, second = await export_lines(store, RUN)
        awake = [first, second]  # only a run at rest can have left another store
        for lines in (
            [],
            [second],
            [second, first],
            [first, first],
            [first, second[:-1]],
            awake,
        ):
            with pytest.raises(JournalCorrupt):
                await store.adopt(
                    OTHER_RUN, lines, make_imported(OTHER_RUN, lines), head=make_head()
                )
        newer = [first, second.replace(b"MessageReceived", b"MessageSung")]
        with pytest.raises(JournalTooNew):
            await store.adopt(
                OTHER_RUN, newer, make_imported(OTHER_RUN, newer), head=make_head()
            )
        with pytest.raises(RunNotFound):
            await store.get_row(OTHER_RUN)
        with pytest.raises(ValueError, match="id"):
            await store.adopt(
                RunId("a/b"), [first], make_imported(OTHER_RUN, [first]), head=make_head()
            )

    async def test_an_import_names_the_lines_that_it_is_about(self, store: Store) -> None:
        """Its head can be compared with the one in the store of origin."""
        await create_run(store)
        await pause_run(store, RUN, 1)
        lines = await export_lines(store, RUN)
        with pytest.raises(ValueError, match="head"):
            await store.adopt(
                OTHER_RUN, lines, make_imported(OTHER_RUN, lines[:1]), head=make_head()
            )
        with pytest.raises(KindRefused):
            await store.append(
                RUN, [make_imported(RUN, lines)], after=Seq(3), lease=None, head=None
            )

    async def test_a_snapshot_is_given_back_while_it_fits_the_chain(self, store: Store) -> None:
        born = await create_run(store)
        assert await store.load_snapshot(RUN) is None
        second = await append_message(store, RUN, 1)
        old = Snapshot(seq=born.seq, hash=born.hash, body=b"old")
        new = Snapshot(seq=second.seq, hash=second.hash, body=bytes(range(256)))
        await store.save_snapshot(RUN, Snapshot(seq=Seq(2), hash=bytes(32), body=b"forged"))
        assert await store.load_snapshot(RUN) is None
        await store.save_snapshot(RUN, new)
        await store.save_snapshot(RUN, old)  # an older one does not replace it
        assert await store.load_snapshot(RUN) == new
        await store.save_snapshot(RUN, Snapshot(seq=Seq(9), hash=second.hash, body=b"future"))
        assert await store.load_snapshot(RUN) is None

    async def test_everything_is_there_after_opening_again(
        self, store: Store, reopen: ReopenStore | None
    ) -> None:
        if reopen is None:
            return
        await create_run(store)
        await append_message(store, RUN, 1)
        lease = await take_lease(store, RUN, 2, "a")
        before = await store.read_lines(RUN), await store.get_row(RUN)
        store = await reopen(store)
        assert (await store.read_lines(RUN), await store.get_row(RUN)) == before
        await store.append(RUN, [make_call_done()], after=None, lease=lease, head=None)

    async def test_a_closed_store_says_so(self, store: Store) -> None:
        await create_run(store)
        await store.close()
        await store.close()
        pause = PauseRequested()
        for attempt in (
            store.read(RUN),
            store.get_row(RUN),
            store.list_runs(RunQuery()),
            store.append(RUN, [pause], after=Seq(1), lease=None, head=None),
            store.create(OTHER_RUN, [RunStarted(agent="a", task="t")], head=make_head()),
            store.list_halts(),
        ):
            with pytest.raises(StoreClosed):
                await attempt
        with pytest.raises(StoreClosed):
            async with store.watch():
                pass
