"""Refusals: invalid input is rejected before anything has changed."""

from contextlib import suppress

import anyio
import pytest
from msgspec.structs import replace

from midrun.core.entries import ENTRY_TYPES, LeaseTaken
from midrun.core.ids import Epoch, RunId, Seq
from midrun.core.run_head import NAME_MAX_CHARS, Head
from midrun.errors import JournalCorrupt, KindRefused, NotJson, RunNotFound, TooLarge
from midrun.ports.store import Snapshot, Store
from midrun.ports.write_permissions import CLOSING_ENTRY_TYPES
from midrun.testing.store_suite.fixtures import (
    OTHER_RUN,
    RUN,
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


class RefusalTests(StoreSuiteFixtures):
    """A method that raised has changed nothing."""

    async def test_only_closing_entries_may_be_appended_without_a_seq(
        self, store: Store
    ) -> None:
        """A start, an ask or a pause was decided at a seq, and must name it."""
        for kind in ENTRY_TYPES:
            run = RunId(f"run_{kind.__name__}")
            await create_run(store, run)
            lease = await take_lease(store, run, 1, "a")
            appended = store.append(
                run, [make_call_done(), make_example(kind)], after=None, lease=lease, head=None
            )
            if kind in CLOSING_ENTRY_TYPES:
                assert (await appended).seq == 4
                continue
            with pytest.raises(KindRefused):
                await appended
            assert (await store.get_row(run)).seq == 2

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("task", "\ud800"),
            ("agent", "a\udfff"),
            ("labels", ("fine", "\ud800")),
            ("attention", b"ask"),
            ("wake_at", 2**63),
            ("wake_at", -(2**53)),
            ("step", 2**64),
            ("step", "7"),
            ("asks", 2**53),
            ("parent", None),
            ("phase", "nowhere"),
        ],
    )
    async def test_a_head_that_cannot_be_stored_is_named_and_nothing_has_changed(
        self, store: Store, field: str, value: object
    ) -> None:
        """The valid entries of the same append must not be stored without it."""
        bad = replace(make_head(), **{field: value})
        with pytest.raises(NotJson) as refused:
            await store.create(RUN, [make_started()], head=bad)
        assert refused.value.path == f"$.head.{field}"
        await create_run(store)
        lines = await export_lines(store, RUN)
        with pytest.raises(NotJson):
            await store.append(RUN, [make_message()], after=Seq(1), lease=None, head=bad)
        with pytest.raises(NotJson):
            await store.take_lease(
                RUN, [LeaseTaken(epoch=Epoch(1))], after=Seq(1), holder="a", head=bad
            )
        with pytest.raises(NotJson):
            await store.adopt(OTHER_RUN, lines, make_imported(OTHER_RUN, lines), head=bad)
        assert (await store.get_row(RUN)).seq == len(await store.read(RUN)) == 1
        with pytest.raises(RunNotFound):
            await store.get_row(OTHER_RUN)
        assert (await append_message(store, RUN, 1)).seq == 2

    @pytest.mark.parametrize("field", ["agent", "thread", "parent", "owner", "labels"])
    async def test_a_name_of_a_new_run_that_is_too_long_for_an_index_is_named(
        self, store: Store, field: str
    ) -> None:
        """Also in a store that could keep it: every run can move to every other store."""

        def make_named_head(size: int) -> Head:
            name = "ä" * size
            return replace(make_head(), **{field: (name,) if field == "labels" else name})

        await store.create(RUN, [make_started()], head=make_named_head(NAME_MAX_CHARS))
        with pytest.raises(TooLarge) as refused:
            await store.create(OTHER_RUN, [make_started()], head=make_named_head(3_000_000))
        assert refused.value.path.startswith(f"$.head.{field}")
        with pytest.raises(RunNotFound):
            await store.get_row(OTHER_RUN)

    async def test_a_refused_head_does_not_spoil_those_beside_it(self, store: Store) -> None:
        runs = [RunId(f"r{n}") for n in range(8)]
        for run in runs:
            await create_run(store, run)

        async def append(run: RunId, its: Head) -> None:
            with suppress(NotJson):
                await store.append(run, [make_message()], after=Seq(1), lease=None, head=its)

        async with anyio.create_task_group() as group:
            for n, run in enumerate(runs):
                group.start_soon(
                    append, run, make_head() if n % 2 else replace(make_head(), step=2**70)
                )
        assert [(await store.get_row(run)).seq for run in runs] == [1, 2] * 4
        for run in runs:
            assert len(await store.read(run)) == (await store.get_row(run)).seq

    async def test_nothing_is_read_from_before_the_beginning(self, store: Store) -> None:
        await create_run(store)
        for after, limit in ((-1, None), (0, -1), (-(2**70), 5)):
            with pytest.raises(ValueError, match="negative"):
                await store.read(RUN, after=Seq(after), limit=limit)
            with pytest.raises(ValueError, match="negative"):
                await store.read_lines(RUN, after=Seq(after), limit=limit)
        assert len(await store.read(RUN, limit=2**63)) == 1
        assert await store.read(RUN, after=Seq(2**70), limit=2**70) == []
        assert await store.read_lines(RUN, after=Seq(2**70)) == []

    async def test_a_snapshot_of_what_cannot_be_an_entry_is_refused(self, store: Store) -> None:
        await create_run(store)
        for seq in (0, -1, 2**63):
            with pytest.raises(ValueError, match="seq"):
                await store.save_snapshot(RUN, Snapshot(seq=Seq(seq), hash=bytes(32), body=b""))

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            (b'"seq":2', b'"seq": 2'),
            (b'"text":"hello"', b'"text":"hell\\u006f"'),
            (b'"seq":2,"v":1', b'"v":1,"seq":2'),
            (b'"text":"hello"', b'"text":"hello","urgency":"next"'),
            (b'"at":18', b'"at":17'),
            (b'"at":18', b'"at":99999999918'),
            (b'"at":18', b'"at":-18'),
            (b'"seq":2', b'"seq":2.0'),
            (b'"seq":2', b'"epoch":18446744073709551616,"seq":2'),
            (b'"kind":"MessageReceived","text":"hello"', b'"kind":"RunPaused"'),
            (b'"kind":"MessageReceived","text":"hello"', b'"call":"c9","kind":"CallDone"'),
            (
                b'"kind":"MessageReceived","text":"hello"',
                b'"call":"c1","kind":"CallDone","result":' + b"[" * 5000 + b"]" * 5000,
            ),
            (
                b'"kind":"MessageReceived","text":"hello"',
                b'"call":"c1","kind":"CallDone","result":9007199254740993',
            ),
        ],
        ids=str,
    )
    async def test_a_line_that_no_store_would_have_written_is_not_adopted(
        self, store: Store, old: bytes, new: bytes
    ) -> None:
        """The bytes of a checkpoint may come from anywhere."""
        await create_run(store)
        await append_message(store, RUN, 1)
        await pause_run(store, RUN, 2)
        first, second, *rest = lines = await export_lines(store, RUN)
        assert old in second
        changed = [first, second.replace(old, new), *rest]
        with pytest.raises(JournalCorrupt) as refused:
            await store.adopt(
                OTHER_RUN, changed, make_imported(OTHER_RUN, changed), head=make_head()
            )
        assert (refused.value.run, refused.value.seq) == (OTHER_RUN, 2)
        with pytest.raises(RunNotFound):
            await store.get_row(OTHER_RUN)
        await store.adopt(OTHER_RUN, lines, make_imported(OTHER_RUN, lines), head=make_head())
