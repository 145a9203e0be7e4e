"""The writer: groups, who commits where, and nobody left without an answer."""

import gc
import weakref
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread, get_ident
from types import ModuleType

import anyio
import apsw
import pytest

from midrun.codec.hash_chain import HashChain
from midrun.errors import RunNotFound, StoreClosed, StoreError, StoreUnreachable
from midrun.ports.store import Store
from midrun.stores import validation
from midrun.stores.sqlite.connection import WAL_MAX_BYTES, open_file
from midrun.stores.sqlite.row_cache import RowCache
from midrun.stores.sqlite.store import SqliteStore
from midrun.stores.sqlite.writer import (
    DETOUR_MIN_GROUPS,
    GROUP_MAX_REQUESTS,
    INLINE_COMMIT_MAX_S,
    WARMUP_COMMITS,
    SqliteWriter,
)
from midrun.stores.watchers import Watchers
from midrun.testing.store_suite import ManualClock, StoreSuite
from midrun.testing.store_suite.fixtures import RUN, append_message, create_run


class TestSqliteStoreByThread(StoreSuite):
    """The same contract when every commit is left to the thread, as on a slow disk."""

    @pytest.fixture
    async def store(self, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Store]:
        store = SqliteStore(tmp_path / "runs.db", clock=clock)
        store._writer._detours_left = 1_000_000
        yield store
        await store.close()


class Stopwatch:
    """A timer whose every second reading is `took` later."""

    def __init__(self) -> None:
        self.took = 0.0
        self._now = 0.0

    def __call__(self) -> float:
        self._now += self.took
        return self._now


@pytest.fixture
def timer() -> Stopwatch:
    """Give the timer that commits are measured by."""
    return Stopwatch()


@pytest.fixture
async def writer(tmp_path: Path, timer: Stopwatch) -> AsyncIterator[SqliteWriter]:
    """Give a writer on a fresh file."""
    path = tmp_path / "runs.db"
    db = open_file(path, durability="full", busy_ms=5000)
    writer = SqliteWriter(db, path, busy_ms=5000, watchers=Watchers(), timer=timer)
    yield writer
    await writer.close()


def here(at: RowCache) -> int:
    """Return which thread carries out a request."""
    at.db.execute("UPDATE latches SET turns = turns + 1")
    return get_ident()


async def test_quick_commits_stay_in_the_loops_thread(writer: SqliteWriter) -> None:
    """A hop to a thread and back would cost as much again."""
    for _ in range(WARMUP_COMMITS - 1):
        assert await writer.write(here) == get_ident()


async def test_after_a_slow_commit_the_next_ones_are_left_to_the_thread(
    writer: SqliteWriter, timer: Stopwatch
) -> None:
    """The loop is blocked once by a slow disk, not every time."""
    timer.took = INLINE_COMMIT_MAX_S * 2
    assert await writer.write(here) == get_ident()
    for _ in range(DETOUR_MIN_GROUPS):
        assert await writer.write(here) != get_ident()
    assert await writer.write(here) == get_ident()
    for _ in range(2 * DETOUR_MIN_GROUPS):
        assert await writer.write(here) != get_ident()
    timer.took = 0
    assert await writer.write(here) == get_ident()
    assert await writer.write(here) == get_ident()


async def test_writes_that_come_together_are_committed_together(writer: SqliteWriter) -> None:
    """That is what makes a thousand runs share one fsync."""
    before = writer._commit_count
    async with anyio.create_task_group() as group:
        for _ in range(GROUP_MAX_REQUESTS):
            group.start_soon(writer.write, here)
    assert writer._commit_count == before + 1


async def test_a_crowd_beyond_one_group_is_answered_too(writer: SqliteWriter) -> None:
    """In several groups, in whatever thread."""
    answered = []

    async def one(n: int) -> None:
        await writer.write(here)
        answered.append(n)

    async with anyio.create_task_group() as group:
        for n in range(3 * GROUP_MAX_REQUESTS + 1):
            group.start_soon(one, n)
    assert sorted(answered) == [*range(3 * GROUP_MAX_REQUESTS + 1)]


async def test_what_was_written_is_let_go_of_at_once(writer: SqliteWriter) -> None:
    """A crowd that left its requests to the garbage collector would pay for each once more."""

    def work(at: RowCache) -> int:
        return here(at)

    left = weakref.ref(work)
    gc.disable()
    try:
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(writer.write, work)
        del work
        assert left() is None
    finally:
        gc.enable()


async def _together(writer: SqliteWriter, bad: Callable[[RowCache], int]) -> list[object]:
    """Write something bad between two good things, and return what came of each."""
    outcomes: list[object] = [None] * 3

    async def one(n: int, work: Callable[[RowCache], int]) -> None:
        try:
            outcomes[n] = await writer.write(work)
        except Exception as error:  # noqa: BLE001 - looked at by the test
            outcomes[n] = error

    async with anyio.create_task_group() as group:
        for n, work in enumerate((here, bad, here)):
            group.start_soon(one, n, work)
    return outcomes


async def test_a_refusal_reaches_the_one_who_asked_and_no_other(writer: SqliteWriter) -> None:
    """The rest of its group is committed."""

    def refuse(_: RowCache) -> int:
        raise RunNotFound("r")

    first, refused, third = await _together(writer, refuse)
    assert isinstance(refused, RunNotFound)
    assert first == third == get_ident()


async def test_an_error_of_the_file_fails_only_what_causes_it(writer: SqliteWriter) -> None:
    """Each request of a group that failed is tried again alone."""

    def breaks(at: RowCache) -> int:
        at.db.execute("UPDATE latches SET turns = 'a lot'")
        return 0

    first, broken, third = await _together(writer, breaks)
    assert isinstance(broken, StoreError)
    assert isinstance(first, int)
    assert isinstance(third, int)
    turns = await writer.write(lambda at: at.db.execute("SELECT turns FROM latches").get)
    assert turns == 2


@pytest.mark.parametrize("detours", [0, 1_000_000])
async def test_what_fails_after_its_first_write_is_taken_back_and_alone(
    writer: SqliteWriter, detours: int
) -> None:
    """Whatever it is: half a request must never be committed with the rest of its group."""

    def tears(at: RowCache) -> int:
        at.db.execute("UPDATE latches SET turns = turns + 100")
        raise OverflowError("beyond")

    writer._detours_left = detours
    first, torn, third = await _together(writer, tears)
    assert isinstance(torn, OverflowError)
    assert isinstance(first, int)
    assert isinstance(third, int)
    with pytest.raises(OverflowError):
        await writer.write(tears)
    turns = await writer.write(lambda at: at.db.execute("SELECT turns FROM latches").get)
    assert turns == 2


async def test_what_is_known_of_a_run_is_forgotten_with_what_was_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next append must not be tied to an entry that is not there."""
    store = SqliteStore(tmp_path / "runs.db")
    await create_run(store)
    move = RowCache.update_row

    def tears(self: RowCache, *rest: object) -> None:
        move(self, *rest)  # type: ignore[arg-type]  # as it came
        raise OverflowError("beyond")

    monkeypatch.setattr(RowCache, "update_row", tears)
    with pytest.raises(OverflowError):
        await append_message(store, RUN, 1)
    monkeypatch.setattr(RowCache, "update_row", move)
    assert (await append_message(store, RUN, 1)).seq == 2
    assert len(await store.read(RUN)) == 2
    await store.close()


async def test_what_is_large_is_written_and_read_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight megabytes to hash and to decode would stop everything else in the loop."""
    threads: dict[str, list[bool]] = {"stamp": [], "verified": [], "encode": []}
    loop = get_ident()

    def noting(owner: ModuleType | type, name: str, what: str) -> None:
        original = getattr(owner, name)

        def note(*given: object, **named: object) -> object:
            threads[what].append(get_ident() == loop)
            return original(*given, **named)

        monkeypatch.setattr(owner, name, note)

    store = SqliteStore(tmp_path / "runs.db")
    store._writer._timer = lambda: 0.0  # no commit is slow
    await create_run(store)
    noting(validation, "stamp_lines", "stamp")
    noting(validation, "encode_entry", "encode")
    noting(HashChain, "verify_lines", "verified")
    await append_message(store, RUN, 1, "x" * 1000)
    await store.read(RUN)
    assert threads == {"stamp": [True], "verified": [True], "encode": [True]}
    await append_message(store, RUN, 2, "x" * 1_000_000)
    assert [len(data) > 1_000_000 for data, _ in await store.read_lines(RUN)] == [
        False,
        False,
        True,
    ]
    assert len(await store.read(RUN)) == 3
    assert threads == {
        "stamp": [True, False],
        "verified": [True, False],
        "encode": [True, True, False],  # the first try is what finds out
    }
    await store.read(RUN, limit=2)
    assert threads["verified"][-1]
    await store.close()


async def test_an_interrupt_in_a_commit_leaves_nobody_waiting(writer: SqliteWriter) -> None:
    """Ctrl-C can hit the leader of a group; the others must hear of it."""

    class Interrupt(BaseException):
        pass

    def interrupt(_: RowCache) -> int:
        raise Interrupt

    outcomes: list[BaseException] = []

    async def one(work: Callable[[RowCache], int]) -> None:
        try:
            await writer.write(work)
        except (Interrupt, StoreUnreachable) as error:
            outcomes.append(error)

    async with anyio.create_task_group() as group:
        for work in (here, interrupt, here):
            group.start_soon(one, work)
    assert sorted(type(o).__name__ for o in outcomes) == [
        "Interrupt",
        "StoreUnreachable",
        "StoreUnreachable",
    ]
    assert await writer.write(here) == get_ident()


async def test_a_heartbeat_from_another_thread_does_not_wait_for_a_blocked_loop(
    tmp_path: Path,
) -> None:
    """A tool that blocks the loop must not cost the process its leases."""
    store = SqliteStore(tmp_path / "runs.db")
    beaten = Event()

    async def beat() -> None:
        await create_run(store)
        beaten.set()

    async def blocked() -> None:
        Thread(target=anyio.run, args=(beat,)).start()
        assert beaten.wait(timeout=60)  # blocks the loop, while a group of it gathers

    async with anyio.create_task_group() as group:
        group.start_soon(store.list_halts)
        group.start_soon(store.release_leases, "nobody")
        group.start_soon(blocked)
    assert (await store.get_row(RUN)).seq == 1
    await store.close()


async def test_closing_answers_everything_that_was_handed_in(tmp_path: Path) -> None:
    """Done, or refused as closed; nobody hangs."""
    store = SqliteStore(tmp_path / "runs.db")
    await create_run(store)
    outcomes: list[str] = []

    async def one(n: int) -> None:
        try:
            await store.list_halts()
            await store.record_heartbeat(f"h{n}", ttl=timedelta(seconds=1))
            outcomes.append("done")
        except StoreClosed:
            outcomes.append("closed")

    async with anyio.create_task_group() as group:
        for n in range(50):
            group.start_soon(one, n)
        group.start_soon(store.close)
    assert len(outcomes) == 50
    with pytest.raises(StoreClosed):
        await append_message(store, RUN, 1)


async def test_the_log_is_grown_once_a_process_has_come_to_stay(tmp_path: Path) -> None:
    """While it grows commit by commit, every fsync costs nearly twice as much."""
    store = SqliteStore(tmp_path / "runs.db")
    await create_run(store)
    for seq in range(1, 2 * WARMUP_COMMITS):
        await append_message(store, RUN, seq)
    # What is handed to the thread after the chore is answered after it.
    store._writer._detours_left = 1
    await append_message(store, RUN, 2 * WARMUP_COMMITS)
    assert (tmp_path / "runs.db-wal").stat().st_size > 4_000_000
    assert len(await store.read(RUN)) == 2 * WARMUP_COMMITS + 1
    await store.close()
    store = SqliteStore(tmp_path / "runs.db")
    assert len(await store.read(RUN)) == 2 * WARMUP_COMMITS + 1
    await store.close()


async def test_a_log_that_has_grown_is_carried_over_into_the_file(tmp_path: Path) -> None:
    """Checkpoints are ours to make: the log must not grow for ever."""
    store = SqliteStore(tmp_path / "runs.db")
    await create_run(store)
    for seq in range(1, 60):
        await append_message(store, RUN, seq, "x" * 100_000)
    store._writer._detours_left = 2
    await append_message(store, RUN, 60)
    assert (tmp_path / "runs.db").stat().st_size > 3_000_000
    await store.close()


async def test_a_log_that_a_long_reader_has_made_large_is_cut_back_after_it(
    tmp_path: Path,
) -> None:
    """Nothing can be carried over while somebody reads what was; the disk has it back later."""
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
