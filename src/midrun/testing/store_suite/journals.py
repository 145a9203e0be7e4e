"""Journals: appended, refused and read back."""

import pytest

from midrun.codec.hash_chain import chain_of
from midrun.codec.journal import checked_entry, decode_line
from midrun.core.entries import KINDS, Entry, LeaseTaken, PauseRequested, RunStarted
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
from midrun.ports.store import Query, Snapshot, Store
from midrun.ports.write_permissions import PERSONAL, UNLEASED
from midrun.testing.store_suite.fixtures import (
    NOBODY,
    OTHER,
    RUN,
    HandClock,
    Reopen,
    Setting,
    create,
    done,
    example,
    head,
    imported,
    pause,
    said,
    say,
    started,
    take,
)


class Journals(Setting):
    """A journal only grows, by a whole append or not at all."""

    async def test_a_new_run_has_one_entry_stamped_by_the_stores_clock(
        self, store: Store, clock: HandClock
    ) -> None:
        appended = await store.create(RUN, [started()], head=head())
        (record,) = await store.read(RUN)
        assert (appended.seq, appended.at) == (1, clock.now)
        assert (record.seq, record.at, record.epoch) == (1, clock.now, None)
        assert record.entry == started()

    async def test_a_second_run_of_the_same_id_is_refused(self, store: Store) -> None:
        await create(store)
        with pytest.raises(RunExists):
            await store.create(RUN, [started("else")], head=head())
        (record,) = await store.read(RUN)
        assert record.entry == started()

    async def test_a_journal_begins_with_the_start_of_its_run(self, store: Store) -> None:
        wrong: list[list[Entry]] = [[], [said()], [said(), started()]]
        for entries in wrong:
            with pytest.raises(ValueError, match="RunStarted"):
                await store.create(RUN, entries, head=head())
        with pytest.raises(RunNotFound):
            await store.row(RUN)

    @pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 65, "é", "\ud800", "a\0"])
    async def test_an_id_that_does_not_fit_in_an_address_is_refused(
        self, store: Store, name: str
    ) -> None:
        with pytest.raises(ValueError, match="id"):
            await store.create(RunId(name), [started()], head=head())
        with pytest.raises(RunNotFound):
            await store.read(RunId(name))

    async def test_entries_of_one_append_follow_each_other_and_share_their_time(
        self, store: Store, clock: HandClock
    ) -> None:
        await create(store)
        clock.move(1)
        texts = [said("a"), said("b"), said("c")]
        appended = await store.append(RUN, texts, after=Seq(1), lease=None, head=head())
        records = await store.read(RUN, after=Seq(1))
        assert [r.entry for r in records] == texts
        assert [r.seq for r in records] == [2, 3, 4]
        assert {r.at for r in records} == {clock.now}
        assert appended.seq == 4

    async def test_an_append_after_a_stale_seq_is_refused(self, store: Store) -> None:
        await create(store)
        await say(store, RUN, 1)
        for after in (0, 1, 3):
            with pytest.raises(SeqConflict) as refused:
                await say(store, RUN, after, "late")
            assert (refused.value.after, refused.value.head) == (after, 2)
        assert len(await store.read(RUN)) == 2

    async def test_a_run_that_does_not_exist_is_not_found(self, store: Store) -> None:
        snapshot = Snapshot(seq=Seq(1), hash=bytes(32), body=b"")
        for attempt in (
            store.read(NOBODY),
            store.lines(NOBODY),
            store.row(NOBODY),
            say(store, NOBODY, 1),
            take(store, NOBODY, 1, "a"),
            store.load_snapshot(NOBODY),
            store.save_snapshot(NOBODY, snapshot),
            store.drop_snapshots(NOBODY),
        ):
            with pytest.raises(RunNotFound):
                await attempt

    async def test_one_bad_entry_keeps_the_whole_append_out(self, store: Store) -> None:
        await create(store)
        lease = await take(store, RUN, 1, "a")
        for bad, refusal in ((float("nan"), NotJson), ("x" * 9_000_000, TooLarge)):
            with pytest.raises(refusal):
                await store.append(
                    RUN, [done(), done(result=bad)], after=None, lease=lease, head=None
                )
        with pytest.raises(ValueError, match="empty"):
            await store.append(RUN, [], after=None, lease=lease, head=None)
        assert (await store.row(RUN)).seq == 2

    async def test_time_never_runs_backwards_in_a_journal(
        self, store: Store, clock: HandClock
    ) -> None:
        first = await create(store)
        clock.move(-3600)
        second = await say(store, RUN, 1)
        clock.move(+7200)
        third = await say(store, RUN, 2)
        assert first.at == second.at < third.at == clock.now

    async def test_every_read_is_a_stretch_of_the_same_journal(self, store: Store) -> None:
        await create(store)
        for seq in range(1, 80):
            await say(store, RUN, seq, f"text {seq}")
        whole = list(await store.read(RUN))
        assert [r.seq for r in whole] == [*range(1, 81)]
        for after in (0, 1, 40, 79, 80, 81, 2**60):
            assert list(await store.read(RUN, after=Seq(after))) == whole[after:]
            for limit in (0, 1, 70):
                part = await store.read(RUN, after=Seq(after), limit=limit)
                assert list(part) == whole[after : after + limit]

    async def test_the_chain_ties_every_line_to_all_before_it(self, store: Store) -> None:
        await create(store)
        appended = await say(store, RUN, 1)
        chain = chain_of(store)
        link = chain.first(RUN)
        for data, stored in await store.lines(RUN):
            link = chain.next(link, data)
            assert stored == link
        assert link == appended.hash == (await store.row(RUN)).hash

    async def test_what_is_read_back_is_what_was_checked(self, store: Store) -> None:
        await create(store)
        lease = await take(store, RUN, 1, "a")
        # Values that JSON encoders are known to change.
        odd = {"f": [-0.0, 1.0, 1, 1e22, 5e-324], "t": ("é\u2028\0", "😀"), "n": 2**53 - 1}
        entry = done(result=odd)
        await store.append(RUN, [entry], after=None, lease=lease, head=None)
        (record,) = await store.read(RUN, after=Seq(2))
        assert record.entry == checked_entry(entry)
        assert record.epoch == lease.epoch

    async def test_the_head_moves_with_the_append_that_brings_it(
        self, store: Store, clock: HandClock
    ) -> None:
        born = await create(store)
        clock.move(5)
        paused = head(Phase.PAUSED)
        appended = await store.append(RUN, [said()], after=Seq(1), lease=None, head=paused)
        row = await store.row(RUN)
        assert row.head == paused
        assert (row.seq, row.hash, row.changed_at) == (2, appended.hash, clock.now)
        assert row.started_at == born.at
        await store.append(RUN, [said()], after=Seq(2), lease=None, head=None)  # keeps the head
        assert (await store.row(RUN)).head == paused

    @pytest.mark.parametrize("kind", [*KINDS])
    async def test_each_writer_may_append_only_its_own_kinds(
        self, store: Store, kind: type[Entry]
    ) -> None:
        """A driver cannot write a person's entry, nor a control a driver's."""
        await create(store)
        entry, seq = example(kind), Seq(1)
        if kind in UNLEASED:
            await store.append(RUN, [entry], after=seq, lease=None, head=None)
            seq = Seq(2)
        else:
            with pytest.raises(KindRefused):
                await store.append(RUN, [entry], after=seq, lease=None, head=None)
        lease = await take(store, RUN, seq, "a")
        seq = Seq(seq + 1)
        if kind in PERSONAL or kind is LeaseTaken:
            with pytest.raises(KindRefused):
                await store.append(RUN, [entry], after=seq, lease=lease, head=None)
            return
        await store.append(RUN, [entry], after=seq, lease=lease, head=None)
        assert (await store.read(RUN))[-1].entry == entry

    async def test_a_new_run_may_not_bring_a_drivers_entries(self, store: Store) -> None:
        with pytest.raises(KindRefused):
            await store.create(RUN, [started(), done()], head=head())
        with pytest.raises(RunNotFound):
            await store.read(RUN)

    async def test_a_journal_from_elsewhere_is_kept_byte_for_byte(
        self, store: Store, clock: HandClock
    ) -> None:
        await create(store)
        await take(store, RUN, 1, "a")
        clock.move(1)
        await say(store, RUN, 2)
        await pause(store, RUN, 3)
        lines = [data for data, _ in await store.lines(RUN)]
        clock.move(-999)  # the clock of the new store is behind the journal
        with pytest.raises(RunExists):
            await store.adopt(RUN, lines, imported(RUN, lines), head=head())
        brought = imported(OTHER, lines)
        adopted = await store.adopt(OTHER, lines, brought, head=head(Phase.PAUSED))
        pairs = await store.lines(OTHER)
        assert [data for data, _ in pairs[:-1]] == lines
        assert (await store.read(OTHER))[-1].entry == brought  # appended in the same write
        chain = chain_of(store)
        assert pairs[0][1] == chain.next(
            chain.first(OTHER), lines[0]
        )  # the chain is bound to the run's id
        row = await store.row(OTHER)
        assert (row.seq, row.epoch, row.holder, row.hash) == (6, 1, "", adopted.hash)
        again = await take(store, OTHER, 6, "b", epoch=2)
        assert again.epoch == 2
        assert (await store.read(OTHER))[-1].at == decode_line(lines[-1]).at

    async def test_what_is_not_a_journal_is_not_adopted(self, store: Store) -> None:
        await create(store)
        await say(store, RUN, 1)
        first, second = [data for data, _ in await store.lines(RUN)]
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
                await store.adopt(OTHER, lines, imported(OTHER, lines), head=head())
        newer = [first, second.replace(b"MessageReceived", b"MessageSung")]
        with pytest.raises(JournalTooNew):
            await store.adopt(OTHER, newer, imported(OTHER, newer), head=head())
        with pytest.raises(RunNotFound):
            await store.row(OTHER)
        with pytest.raises(ValueError, match="id"):
            await store.adopt(RunId("a/b"), [first], imported(OTHER, [first]), head=head())

    async def test_an_import_names_the_lines_that_it_is_about(self, store: Store) -> None:
        """Its head can be compared with the one in the store of origin."""
        await create(store)
        await pause(store, RUN, 1)
        lines = [data for data, _ in await store.lines(RUN)]
        with pytest.raises(ValueError, match="head"):
            await store.adopt(OTHER, lines, imported(OTHER, lines[:1]), head=head())
        with pytest.raises(KindRefused):
            await store.append(RUN, [imported(RUN, lines)], after=Seq(3), lease=None, head=None)

    async def test_a_snapshot_is_given_back_while_it_fits_the_chain(self, store: Store) -> None:
        born = await create(store)
        assert await store.load_snapshot(RUN) is None
        second = await say(store, RUN, 1)
        old = Snapshot(seq=born.seq, hash=born.hash, body=b"old")
        new = Snapshot(seq=second.seq, hash=second.hash, body=bytes(range(256)))
        await store.save_snapshot(RUN, new)
        await store.save_snapshot(RUN, old)  # an older one does not replace it
        assert await store.load_snapshot(RUN) == new
        await store.drop_snapshots(RUN)
        assert await store.load_snapshot(RUN) is None
        await store.save_snapshot(RUN, Snapshot(seq=Seq(2), hash=bytes(32), body=b"forged"))
        assert await store.load_snapshot(RUN) is None
        await store.save_snapshot(RUN, Snapshot(seq=Seq(9), hash=second.hash, body=b"future"))
        assert await store.load_snapshot(RUN) is None

    async def test_everything_is_there_after_opening_again(
        self, store: Store, reopen: Reopen | None
    ) -> None:
        if reopen is None:
            return
        await create(store)
        await say(store, RUN, 1)
        lease = await take(store, RUN, 2, "a")
        before = await store.lines(RUN), await store.row(RUN)
        store = await reopen(store)
        assert (await store.lines(RUN), await store.row(RUN)) == before
        await store.append(RUN, [done()], after=None, lease=lease, head=None)

    async def test_a_closed_store_says_so(self, store: Store) -> None:
        await create(store)
        await store.close()
        await store.close()
        pause = PauseRequested()
        for attempt in (
            store.read(RUN),
            store.row(RUN),
            store.runs(Query()),
            store.append(RUN, [pause], after=Seq(1), lease=None, head=None),
            store.create(OTHER, [RunStarted(agent="a", task="t")], head=head()),
            store.halts(),
        ):
            with pytest.raises(StoreClosed):
                await attempt
        with pytest.raises(StoreClosed):
            async with store.watch():
                pass
