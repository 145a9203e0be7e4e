"""The SQLite writer: group commits, the choice of thread, errors, and the write-ahead log."""

import asyncio
import gc
import math
import sys
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread, get_ident
from types import ModuleType

import anyio
import apsw
import pytest

from midrun.codec.hash_chain import HashChain
from midrun.core.ids import Seq
from midrun.errors import RunNotFound, StoreClosed, StoreError, StoreUnreachable
from midrun.stores import cross_thread, validation
from midrun.stores.cross_thread import may_be_cancelled
from midrun.stores.group_commit import GROUP_MAX_REQUESTS
from midrun.stores.sqlite.connection import PAGE_BYTES, WAL_MAX_BYTES, open_file
from midrun.stores.sqlite.row_cache import RowCache
from midrun.stores.sqlite.store import SqliteStore
from midrun.stores.sqlite.writer import (
    DETOUR_MIN_GROUPS,
    GROWTH_FIRST_PAGES,
    INLINE_COMMIT_MAX_S,
    SqliteWriter,
)
from midrun.stores.watchers import Watchers
from midrun.testing.store_suite.fixtures import RUN, append_message, create_run


class Stopwatch:
    """A timer that advances by `duration_s` at each reading."""

    def __init__(self) -> None:
        self.duration_s = 0.0
        self._now = 0.0

    def __call__(self) -> float:
        self._now += self.duration_s
        return self._now


@pytest.fixture
def timer() -> Stopwatch:
    """Return the timer that measures commits."""
    return Stopwatch()


@pytest.fixture
async def writer(tmp_path: Path, timer: Stopwatch) -> AsyncIterator[SqliteWriter]:
    """Open a writer on a new file."""
    path = tmp_path / "runs.db"
    db = open_file(path, durability="full", busy_ms=5000)
    writer = SqliteWriter(db, path, busy_ms=5000, watchers=Watchers(), timer=timer)
    yield writer
    await writer.close()


def count_write(cache: RowCache) -> int:
    """Write one row and return the id of the thread that does it."""
    cache.db.execute("UPDATE halt_counter SET changes = changes + 1")
    return get_ident()


async def test_quick_commits_run_in_the_event_loops_thread(writer: SqliteWriter) -> None:
    """A thread switch would take as long as the commit."""
    for _ in range(GROWTH_FIRST_PAGES // 8):
        assert await writer.write(count_write) == get_ident()


async def test_after_slow_commits_the_next_ones_run_in_the_writer_thread(
    writer: SqliteWriter, timer: Stopwatch
) -> None:
    """A slow disk must not block the event loop each time."""
    writer._pages_at_growth = sys.maxsize  # the log does not grow, which the thread would do
    timer.duration_s = INLINE_COMMIT_MAX_S * 2
    for _ in range(2):  # together longer than three times the limit
        assert await writer.write(count_write) == get_ident()
    for _ in range(DETOUR_MIN_GROUPS):
        assert await writer.write(count_write) != get_ident()
    assert await writer.write(count_write) == get_ident()
    for _ in range(2 * DETOUR_MIN_GROUPS):
        assert await writer.write(count_write) != get_ident()
    timer.duration_s = 0
    assert await writer.write(count_write) == get_ident()
    assert await writer.write(count_write) == get_ident()


async def test_a_single_slow_commit_does_not_move_the_next_ones_to_the_thread(
    writer: SqliteWriter, timer: Stopwatch
) -> None:
    for duration_s in [INLINE_COMMIT_MAX_S * 2, 0] * DETOUR_MIN_GROUPS:
        timer.duration_s = duration_s
        assert await writer.write(count_write) == get_ident()


async def test_concurrent_writes_share_one_commit(writer: SqliteWriter) -> None:
    """Many runs share one fsync."""
    before = writer._commit_count
    async with anyio.create_task_group() as group:
        for _ in range(GROUP_MAX_REQUESTS):
            group.start_soon(writer.write, count_write)
    assert writer._commit_count == before + 1


async def test_more_writes_than_one_group_holds_are_all_answered(writer: SqliteWriter) -> None:
    """The writes are committed in several groups."""
    answered = []

    async def write(n: int) -> None:
        await writer.write(count_write)
        answered.append(n)

    async with anyio.create_task_group() as group:
        for n in range(3 * GROUP_MAX_REQUESTS + 1):
            group.start_soon(write, n)
    assert sorted(answered) == [*range(3 * GROUP_MAX_REQUESTS + 1)]


async def test_a_finished_write_is_freed_without_the_garbage_collector(
    writer: SqliteWriter,
) -> None:
    """Reference cycles of many requests would cost a collection."""

    def work(cache: RowCache) -> int:
        return count_write(cache)

    reference = weakref.ref(work)
    gc.disable()
    try:
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(writer.write, work)
        del work
        assert reference() is None
    finally:
        gc.enable()


async def write_between_two(
    writer: SqliteWriter, failing_work: Callable[[RowCache], int]
) -> list[object]:
    """Write `failing_work` in one group between two good writes; return the three outcomes."""
    outcomes: list[object] = [None] * 3

    async def write(n: int, work: Callable[[RowCache], int]) -> None:
        try:
            outcomes[n] = await writer.write(work)
        except Exception as error:  # noqa: BLE001 - the test inspects it
            outcomes[n] = error

    async with anyio.create_task_group() as group:
        for n, work in enumerate((count_write, failing_work, count_write)):
            group.start_soon(write, n, work)
    return outcomes


async def test_a_refused_write_fails_alone_and_the_rest_of_its_group_is_committed(
    writer: SqliteWriter,
) -> None:
    def refuse(_: RowCache) -> int:
        raise RunNotFound("r")

    first, refused, third = await write_between_two(writer, refuse)
    assert isinstance(refused, RunNotFound)
    assert first == third == get_ident()


async def test_a_database_error_fails_only_the_write_that_causes_it(
    writer: SqliteWriter,
) -> None:
    """After a failed group commit, each request is tried again alone."""

    def violate_constraint(cache: RowCache) -> int:
        cache.db.execute("UPDATE halt_counter SET changes = 'a lot'")
        return 0

    first, failed, third = await write_between_two(writer, violate_constraint)
    assert isinstance(failed, StoreError)
    assert isinstance(first, int)
    assert isinstance(third, int)
    turns = await writer.write(
        lambda cache: cache.db.execute("SELECT changes FROM halt_counter").get
    )
    assert turns == 2


@pytest.mark.parametrize("detours", [0, 1_000_000])
async def test_a_write_that_raises_halfway_is_rolled_back_alone(
    writer: SqliteWriter, detours: int
) -> None:
    """Half of a request must never be committed with the rest of its group."""

    def update_and_raise(cache: RowCache) -> int:
        cache.db.execute("UPDATE halt_counter SET changes = changes + 100")
        raise OverflowError("beyond")

    writer._detours_left = detours
    first, failed, third = await write_between_two(writer, update_and_raise)
    assert isinstance(failed, OverflowError)
    assert isinstance(first, int)
    assert isinstance(third, int)
    with pytest.raises(OverflowError):
        await writer.write(update_and_raise)
    turns = await writer.write(
        lambda cache: cache.db.execute("SELECT changes FROM halt_counter").get
    )
    assert turns == 2


async def test_a_rollback_clears_the_cached_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next append must not follow an entry that was rolled back."""
    store = SqliteStore(tmp_path / "runs.db")
    await create_run(store)
    write_change = RowCache.write_change

    def write_and_raise(self: RowCache, *rest: object) -> None:
        write_change(self, *rest)  # type: ignore[arg-type]  # passed on unchanged
        raise OverflowError("beyond")

    monkeypatch.setattr(RowCache, "write_change", write_and_raise)
    with pytest.raises(OverflowError):
        await append_message(store, RUN, 1)
    monkeypatch.setattr(RowCache, "write_change", write_change)
    assert (await append_message(store, RUN, 1)).seq == 2
    assert len(await store.read(RUN)) == 2
    await store.close()


async def test_large_entries_are_encoded_and_verified_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hashing and decoding eight megabytes would block the event loop."""
    threads: dict[str, list[bool]] = {"stamp": [], "verify": [], "encode": []}
    loop = get_ident()

    def record_thread(owner: ModuleType | type, name: str, operation: str) -> None:
        original = getattr(owner, name)

        def wrapper(*args: object, **kwargs: object) -> object:
            threads[operation].append(get_ident() == loop)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, wrapper)

    store = SqliteStore(tmp_path / "runs.db")
    store._writer._timer = lambda: 0.0  # no commit is slow
    await create_run(store)
    record_thread(validation, "stamp_lines", "stamp")
    record_thread(validation, "encode_entry", "encode")
    record_thread(HashChain, "verify_lines", "verify")
    await append_message(store, RUN, 1, "x" * 1000)
    await store.read(RUN)
    assert threads == {"stamp": [True], "verify": [True], "encode": [True]}
    await append_message(store, RUN, 2, "x" * 1_000_000)
    assert [len(data) > 1_000_000 for data, _ in await store.read_lines(RUN)] == [
        False,
        False,
        True,
    ]
    assert len(await store.read(RUN)) == 3
    assert threads == {
        "stamp": [True, False],
        "verify": [True, False],
        "encode": [True, True, False],  # the first try finds out the size
    }
    await store.read(RUN, limit=2)
    assert threads["verify"][-1]
    await store.close()


@pytest.mark.parametrize("detours", [0, 1])
async def test_an_interrupt_during_a_transaction_rolls_it_back(
    writer: SqliteWriter, detours: int
) -> None:
    """No part of the group is committed by the next transaction, and all its callers learn it.

    The writer thread survives an interrupt.
    """

    class Interrupt(BaseException):
        pass

    outcomes: list[str] = []

    def interrupt(_: RowCache) -> int:
        raise Interrupt

    async def write(work: Callable[[RowCache], int]) -> None:
        try:
            await writer.write(work)
        except StoreUnreachable as error:
            outcomes.append(str(error))

    writer._detours_left = detours
    async with anyio.create_task_group() as group:
        for work in (count_write, interrupt, count_write):
            group.start_soon(write, work)
    assert len(outcomes) == 3
    assert all("Interrupt interrupted a commit" in outcome for outcome in outcomes)
    changes = "SELECT changes FROM halt_counter"
    assert await writer.write(lambda cache: cache.db.execute(changes).get) == 0


async def test_a_heartbeat_from_another_thread_does_not_wait_for_a_blocked_loop(
    tmp_path: Path,
) -> None:
    """A tool that blocks the event loop must not cost the process its leases."""
    store = SqliteStore(tmp_path / "runs.db")
    written = Event()

    async def write_from_thread() -> None:
        await create_run(store)
        written.set()

    async def block_loop() -> None:
        Thread(target=anyio.run, args=(write_from_thread,)).start()
        assert written.wait(timeout=60)  # blocks the loop while one of its groups is open

    async with anyio.create_task_group() as group:
        group.start_soon(store.list_halts)
        group.start_soon(store.release_leases, "missing")
        group.start_soon(block_loop)
    assert (await store.get_row(RUN)).seq == 1
    await store.close()


async def test_close_answers_every_pending_request(tmp_path: Path) -> None:
    """Each request is done or refused with StoreClosed; none hangs."""
    store = SqliteStore(tmp_path / "runs.db")
    await create_run(store)
    outcomes: list[str] = []

    async def call_store(n: int) -> None:
        try:
            await store.list_halts()
            await store.record_heartbeat(f"h{n}", ttl=timedelta(seconds=1))
            outcomes.append("done")
        except StoreClosed:
            outcomes.append("closed")

    async with anyio.create_task_group() as group:
        for n in range(50):
            group.start_soon(call_store, n)
        group.start_soon(store.close)
    assert len(outcomes) == 50
    with pytest.raises(StoreClosed):
        await append_message(store, RUN, 1)


async def test_the_log_is_grown_in_advance_by_what_was_written(tmp_path: Path) -> None:
    """While the log grows with each commit, an fsync takes nearly twice as long.

    The log doubles, so a process that writes little does not write megabytes to grow it.
    """
    store, log = SqliteStore(tmp_path / "runs.db"), tmp_path / "runs.db-wal"
    await create_run(store)
    seq, written = Seq(1), 0
    while written < 1.25 * GROWTH_FIRST_PAGES * PAGE_BYTES:
        seq = (await append_message(store, RUN, seq)).seq
        # As a write, because the thread may use the connection at this moment.
        pages = await store._writer.write(lambda _: store._writer._count_pages())
        written = pages * PAGE_BYTES
    # The thread works in order, so this append is answered after the log has grown.
    store._writer._detours_left = 1
    seq = (await append_message(store, RUN, seq)).seq
    assert 1.25 * written < log.stat().st_size < 3 * written
    assert len(await store.read(RUN)) == seq
    await store.close()
    store = SqliteStore(tmp_path / "runs.db")
    assert len(await store.read(RUN)) == seq
    await store.close()


async def test_a_large_log_is_checkpointed_into_the_file(tmp_path: Path) -> None:
    """Automatic checkpoints are off; the writer makes them, or the log would grow for ever."""
    store = SqliteStore(tmp_path / "runs.db")
    await create_run(store)
    for seq in range(1, 60):
        await append_message(store, RUN, seq, "x" * 100_000)
    store._writer._detours_left = 2
    await append_message(store, RUN, 60)
    assert (tmp_path / "runs.db").stat().st_size > 3_000_000
    await store.close()


async def test_the_log_is_truncated_after_a_long_reader_has_ended(
    tmp_path: Path,
) -> None:
    """An open read transaction prevents the checkpoint; the disk space is freed later."""
    path, log = tmp_path / "runs.db", tmp_path / "runs.db-wal"
    store = SqliteStore(path, durability="relaxed")
    await create_run(store)
    reader = apsw.Connection(str(path))
    reader.execute("BEGIN; SELECT * FROM runs").fetchall()
    seq = 1
    while log.stat().st_size <= WAL_MAX_BYTES:
        seq = (await append_message(store, RUN, seq, "x" * 200_000)).seq
    reader.close()
    with anyio.fail_after(30):
        while log.stat().st_size > WAL_MAX_BYTES:
            seq = (await append_message(store, RUN, seq, "x" * 200_000)).seq
    await store.close()


async def test_a_cancelled_caller_is_found_as_anyio_finds_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fields of AnyIO's scopes that it reads mean what they are taken for."""

    def check(*, expected: bool) -> None:
        assert may_be_cancelled(asyncio.current_task()) is expected
        assert (anyio.current_effective_deadline() == -math.inf) is expected

    check(expected=False)
    with ExitStack() as scopes:
        outer = scopes.enter_context(anyio.CancelScope())
        scopes.enter_context(anyio.CancelScope())
        check(expected=False)
        outer.cancel()
        check(expected=True)
        shield = scopes.enter_context(anyio.CancelScope(shield=True))
        check(expected=False)
        scopes.enter_context(anyio.CancelScope())
        check(expected=False)
        shield.shield = False
        check(expected=True)
    check(expected=False)
    monkeypatch.setattr(cross_thread, "_ANYIO_TASKS", None)
    assert may_be_cancelled(asyncio.current_task())  # not known: the writer asks AnyIO


async def test_a_cancelled_caller_writes_nothing(
    writer: SqliteWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although a commit in the event loop's thread has nothing to wait for."""
    written: list[str] = []

    async def write(name: str) -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await writer.write(lambda _: written.append(name))

    await write("asked quickly")
    monkeypatch.setattr(cross_thread, "_ANYIO_TASKS", None)
    await write("asked through AnyIO")
    await writer.write(lambda _: written.append("not cancelled"))
    assert written == ["not cancelled"]
