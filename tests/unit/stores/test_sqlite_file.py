"""The SQLite file: creation, access rights, damage, a full disk, removal while it is open."""

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from urllib.parse import quote

import apsw
import pytest

from midrun.core.ids import RunId, Seq
from midrun.core.values import Phase
from midrun.errors import (
    JournalCorrupt,
    MidrunError,
    SqliteConflict,
    StoreDamaged,
    StoreForeign,
    StoreUnreachable,
)
from midrun.ports.store import Durability, RunQuery, Snapshot
from midrun.stores.sqlite import connection, queries
from midrun.stores.sqlite.connection import PAGE_BYTES
from midrun.stores.sqlite.store import SqliteStore
from midrun.testing.store_suite.fixtures import (
    RUN,
    append_message,
    create_run,
    make_call_done,
    make_head,
    make_started,
    take_lease,
)
from tests.unit.stores.child import append_until_full


async def create_small_store(path: Path) -> dict[RunId, list[bytes]]:
    """Create a database with a few runs and return their lines."""
    store = SqliteStore(path)
    lines = {}
    for n in range(4):
        run = RunId(f"run_{n}")
        appended = await create_run(store, run)
        for seq in range(1, 12):
            appended = await append_message(
                store, run, seq, f"message {seq} of run {n} " + "x" * 80
            )
        await store.save_snapshot(
            run, Snapshot(seq=appended.seq, hash=appended.hash, body=b"s" * 200)
        )
        lines[run] = [data for data, _ in await store.read_lines(run)]
    await store.close()
    return lines


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [(0o644, 0o600), (0o640, 0o600), (0o666, 0o660), (0o664, 0o660), (0o660, 0o660)],
)
async def test_opening_a_file_removes_the_access_of_other_accounts(
    mode: int, wanted: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A copy from a backup has the mode of the umask.

    A group that may write keeps its access.
    """
    path, log = tmp_path / "runs.db", tmp_path / "runs.db-wal"
    store = SqliteStore(path)
    await create_run(store)
    path.chmod(mode)
    log.chmod(mode)
    other = SqliteStore(path)
    for name in (path, log):
        assert stat.S_IMODE(name.stat().st_mode) == wanted
    assert (str(path) in caplog.text) is (mode != wanted)
    assert (await other.get_row(RUN)).seq == 1
    await store.close()
    await other.close()


async def test_a_foreign_file_keeps_its_mode(tmp_path: Path) -> None:
    """The path was given by mistake."""
    path = tmp_path / "theirs.db"
    with closing(apsw.Connection(str(path))) as db:
        db.execute("CREATE TABLE theirs (x)")
    path.chmod(0o644)
    with pytest.raises(StoreForeign):
        SqliteStore(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def open_and_close(path: Path) -> None:
    connection.open_file(path, durability="full", busy_ms=1000).close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another account, too")
def test_a_file_of_another_account_that_all_can_read_is_refused() -> None:
    """This account cannot change the mode. The error says that the owner can, and how."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "runs.db"
        open_and_close(path)
        Path(folder).chmod(0o777)  # so that the other account can get there
        path.chmod(0o666)
        pid = os.fork()
        if pid == 0:
            os.setuid(65534)
            try:
                open_and_close(path)
            except StoreUnreachable as refused:
                os._exit(0 if f"chmod 660 {path} as its owner" in str(refused) else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


async def test_sqlite3_may_not_open_the_file_of_a_store_in_the_same_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module `sqlite3` has its own copy of SQLite.

    When it closes the file, POSIX drops the locks of apsw's copy.
    """
    path, other = tmp_path / "runs.db", tmp_path / "another name.db"
    store = SqliteStore(path)
    other.symlink_to(path)
    uri = f"file:{quote(str(other))}?mode=ro&immutable=1"
    monkeypatch.chdir(tmp_path)
    for name in (path, str(path), bytes(path), "runs.db", other, uri):
        with pytest.raises(SqliteConflict, match="with apsw, or use midrun export"):
            sqlite3.connect(name, uri=isinstance(name, str))
    assert is_locked(path)
    sqlite3.connect(":memory:").close()
    sqlite3.connect(tmp_path / "mine.db").close()
    apsw.Connection(str(path)).close()
    assert is_locked(path)
    await store.close()
    assert not is_locked(path)
    sqlite3.connect(path).close()


LOCK_SCRIPT = """
import fcntl, sys

with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)  # SQLite: SHARED lock
    except BlockingIOError:
        sys.exit("locked")
"""


def is_locked(path: Path) -> bool:
    """Tell whether a connection has SQLite's shared lock on the file.

    Asked in a process of its own, whose attempt to lock does not touch the locks of this one.
    The list in `/proc/locks` is no snapshot: while other processes lock, lines appear twice.
    """
    command = [sys.executable, "-c", LOCK_SCRIPT, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own script
    assert done.stderr.strip() in {"", "locked"}
    return bool(done.stderr)


FORK_SCRIPT = """
import os, sqlite3, sys
from midrun.stores.sqlite.store import SqliteStore

store = SqliteStore(sys.argv[1])
child = os.fork()
if not child:
    sqlite3.connect(sys.argv[1]).close()
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_another_process_may_open_the_file_with_sqlite3(tmp_path: Path) -> None:
    """Locks belong to a process, so a forked child may open it, too."""
    command = [sys.executable, "-W", "ignore", "-c", FORK_SCRIPT, str(tmp_path / "runs.db")]
    subprocess.run(command, check=True)  # noqa: S603 - our own script


async def test_a_new_file_is_private_and_has_the_application_id(tmp_path: Path) -> None:
    """Other users of the machine must not read the journals."""
    store = SqliteStore(tmp_path / "runs.db")
    await create_run(store)
    for name in ("runs.db", "runs.db-wal", "runs.db-shm"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    await store.close()
    db = apsw.Connection(str(tmp_path / "runs.db"))
    assert db.pragma("application_id") == connection.APPLICATION_ID
    assert db.pragma("user_version") == connection.SCHEMA_VERSION
    assert db.pragma("journal_mode") == "wal"
    db.close()


@pytest.mark.parametrize(("durability", "level"), [("full", 2), ("relaxed", 1)])
async def test_durability_sets_the_synchronous_level(
    tmp_path: Path, durability: Durability, level: int
) -> None:
    """FULL survives a power cut and is the default."""
    store = SqliteStore(tmp_path / "runs.db", durability=durability)
    db = store._writer._db
    assert db.pragma("synchronous") == level
    assert db.pragma("foreign_keys") == 1
    assert db.pragma("trusted_schema") == 0
    await store.close()


async def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    """`touch` and `tempfile` create empty files."""
    (tmp_path / "runs.db").touch()
    store = SqliteStore(tmp_path / "runs.db")
    await create_run(store)
    assert [record.seq for record in await store.read(RUN)] == [1]
    await store.close()


@pytest.mark.parametrize(
    "content", [b"x", b"x" * 99, b"not a database at all", b"x" * 5000, b"SQLite format 3\0"]
)
def test_a_file_that_is_no_database_is_not_changed(tmp_path: Path, content: bytes) -> None:
    """A wrong path must not destroy the user's file."""
    path = tmp_path / "diary.txt"
    path.write_bytes(content)
    with pytest.raises((StoreForeign, StoreDamaged)):
        SqliteStore(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "statement",
    ["CREATE TABLE t (x)", "PRAGMA application_id = 7", "PRAGMA user_version = 7"],
)
def test_a_database_of_another_program_is_not_changed(tmp_path: Path, statement: str) -> None:
    """The tables of midrun must not be added to another program's database."""
    path = tmp_path / "other.db"
    db = apsw.Connection(str(path))
    db.execute(statement)
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreForeign):
        SqliteStore(path)
    assert path.read_bytes() == before


async def test_a_file_with_a_newer_schema_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    await create_small_store(path)
    db = apsw.Connection(str(path))
    db.pragma("user_version", connection.SCHEMA_VERSION + 1)
    db.close()
    with pytest.raises(StoreForeign, match="newer"):
        SqliteStore(path)


def test_a_path_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    """The error contains the message of the operating system."""
    with pytest.raises(StoreUnreachable, match="No such file"):
        SqliteStore(tmp_path / "missing" / "runs.db")
    with pytest.raises(StoreUnreachable, match="directory"):
        SqliteStore(tmp_path)


def test_a_sqlite_version_with_the_wal_reset_bug_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With several processes on one file, that version loses committed pages."""
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.2")
    with pytest.raises(StoreUnreachable, match=r"3\.51\.2 can lose data"):
        SqliteStore(tmp_path / "runs.db")


async def test_triggers_refuse_to_change_or_remove_entries(tmp_path: Path) -> None:
    """The triggers prevent mistakes. The hash chain detects intended changes."""
    await create_small_store(tmp_path / "runs.db")
    db = apsw.Connection(str(tmp_path / "runs.db"))
    for statement in ("DELETE FROM entries", "UPDATE entries SET line = x'00'"):
        with pytest.raises(apsw.ConstraintError, match="never"):
            db.execute(statement)
    db.close()


async def test_the_words_of_a_run_are_deleted_with_it(tmp_path: Path) -> None:
    """No word stays in the file: neither in the index nor in its pages."""
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    await store.create(RUN, [make_started(task="zyzzyva")], head=make_head())
    assert len((await store.list_runs(RunQuery(search="zyzz"))).items) == 1
    await store.close()
    db = apsw.Connection(str(path))
    db.execute("DROP TRIGGER entries_do_not_go")
    db.execute("DELETE FROM entries; DELETE FROM runs")
    assert db.execute("SELECT count(*) FROM search('zyzz*')").get == 0
    db.execute("VACUUM")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    assert b"zyzzyva" not in path.read_bytes()


@pytest.fixture
async def plans(tmp_path: Path) -> dict[str, str]:
    """Return the query plan of each list query by its name."""
    await create_small_store(tmp_path / "runs.db")
    db = apsw.Connection(str(tmp_path / "runs.db"))
    plans = {}
    parameter_counts = {"COUNTS": 0, "HALTS": 0, "HOLDERS": 1, "DUE": 2, "DRIVABLE": 3}
    parameter_counts |= {"CHANGED_RUNS": 1, "COUNT_HELD": 3}
    parameter_counts |= {name: 12 for name in vars(queries) if name.startswith("LIST_")}
    parameter_counts["LIST_BY_WORDS"] = 13
    for name, parameter_count in parameter_counts.items():
        rows = db.execute(
            f"EXPLAIN QUERY PLAN {getattr(queries, name)}", (1,) * parameter_count
        )
        plans[name] = "; ".join(str(row[3]) for row in rows)
    db.close()
    return plans


async def test_an_append_to_a_driven_run_does_not_write_its_row(tmp_path: Path) -> None:
    """It writes a page less; the newest entry has the values. A run at rest has them itself."""
    store, path = SqliteStore(tmp_path / "runs.db"), tmp_path / "runs.db"
    await create_run(store)
    lease = await take_lease(store, RUN, 1, "a")
    found = []
    for seq, phase in ((2, Phase.RUNNING), (3, Phase.PAUSED)):
        head = make_head(phase, leased=phase is Phase.RUNNING)
        await store.append(RUN, [make_call_done()], after=Seq(seq), lease=lease, head=head)
        with closing(apsw.Connection(str(path))) as db:
            found.append(db.execute("SELECT seq FROM runs").get)
    assert found == [2, 4]
    await store.close()


NEWEST_ENTRY_PLAN = (
    "SEARCH e USING INDEX entries_in_order (no=? AND seq=?) LEFT-JOIN",
    "SEARCH entries USING COVERING INDEX entries_in_order (no=?)",
)
"""A list looks up the newest entry of each run on its page, and reads no other entries."""


async def test_no_list_query_scans_entries_or_all_runs(plans: dict[str, str]) -> None:
    """The cost of a page must not depend on the number of runs and entries."""
    del plans["CHANGED_RUNS"], plans["COUNT_HELD"]
    assert len(plans) == 15
    assert "SCAN s VIRTUAL TABLE INDEX" in plans["LIST_BY_WORDS"]  # of FTS5, in order of rowid
    for name, whole_plan in plans.items():
        plan = whole_plan
        if name.startswith("LIST_"):
            for part in NEWEST_ENTRY_PLAN:
                assert plan.count(part) == 1, (name, plan)
                plan = plan.replace(part, "")
        assert "entries" not in plan, (name, plan)
        if name.startswith("LIST_"):
            # `json_each` reads the head, which is in the row.
            plan = plan.replace("SCAN json_each", "").replace("SCAN s VIRTUAL", "")
            assert "SCAN" not in plan, (name, plan)
            assert "TEMP B-TREE" not in plan, (name, plan)
    assert "COVERING INDEX runs_by_phase" in plans["COUNTS"]
    assert "runs_by_wake" in plans["DUE"]
    assert "runs_by_holder" in plans["DRIVABLE"]


async def test_polls_and_limits_read_only_rows_that_they_need(plans: dict[str, str]) -> None:
    """Every process polls for changes; leases with limits count runs in the write lock."""
    assert "SEARCH e USING INTEGER PRIMARY KEY (rowid>?)" in plans["CHANGED_RUNS"]
    assert "SEARCH l USING PRIMARY KEY (label=? AND no=?)" in plans["COUNT_HELD"]


async def read_everything(path: Path, lines: dict[RunId, list[bytes]]) -> bool:
    """Return whether the store has exactly these lines; a noticed damage raises."""
    store = SqliteStore(path)
    try:
        await store.list_runs(RunQuery())
        await store.count_runs_by_phase()
        for run, expected in lines.items():
            await store.read(run)
            await store.load_snapshot(run)
            if [data for data, _ in await store.read_lines(run)] != expected:
                return False
        return True
    finally:
        await store.close()


def remove_with_logs(path: Path) -> None:
    for left in path.parent.glob(f"{path.name}*"):
        left.unlink()


@pytest.mark.slow
async def test_a_flipped_byte_anywhere_is_harmless_or_noticed(tmp_path: Path) -> None:
    """The store returns the exact journals or raises an error."""
    path = tmp_path / "runs.db"
    lines = await create_small_store(path)
    intact = path.read_bytes()
    random = Random(20261115)  # noqa: S311 - a fixed sample
    noticed = 0
    offsets = [*range(100), *(random.randrange(len(intact)) for _ in range(500))]
    for offset in offsets:
        flipped = bytearray(intact)
        flipped[offset] ^= 1 << random.randrange(8)
        copy = tmp_path / f"copy{offset}.db"
        copy.write_bytes(flipped)
        try:
            assert await read_everything(copy, lines), offset
        except MidrunError:
            noticed += 1
        remove_with_logs(copy)
    assert noticed > 50, "too few flipped bits had an effect"


async def test_a_half_written_page_is_harmless_or_noticed(tmp_path: Path) -> None:
    """A power cut or a full disk can also tear the last page, at the end of the file."""
    path = tmp_path / "runs.db"
    lines = await create_small_store(path)
    intact = path.read_bytes()
    noticed: list[int] = []
    for page in range(0, len(intact), PAGE_BYTES):
        torn = bytearray(intact)
        torn[page + PAGE_BYTES // 2 : page + PAGE_BYTES] = bytes(PAGE_BYTES // 2)
        copy = tmp_path / f"copy{page}.db"
        copy.write_bytes(torn)
        try:
            assert await read_everything(copy, lines), page
        except MidrunError:
            noticed.append(page)
        remove_with_logs(copy)
    assert len(noticed) > len(lines)
    (tmp_path / "short.db").write_bytes(intact[: -PAGE_BYTES // 2])
    with pytest.raises(MidrunError):
        await read_everything(tmp_path / "short.db", lines)


@pytest.mark.parametrize("keep", [0, 1, 50, 100, PAGE_BYTES, PAGE_BYTES + 1, 20_000])
async def test_a_truncated_file_is_noticed(tmp_path: Path, keep: int) -> None:
    """A file of 0 bytes is a new store, which does not have the runs."""
    path = tmp_path / "runs.db"
    lines = await create_small_store(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(MidrunError):
        await read_everything(path, lines)


async def test_a_copy_without_its_log_holds_a_prefix_or_is_refused(
    tmp_path: Path,
) -> None:
    """Without the `-wal` file the newest entries are missing.

    The file itself does not show it.
    """
    store = SqliteStore(tmp_path / "runs.db")
    await create_run(store)
    for seq in range(1, 40):
        await append_message(store, RUN, seq)
    whole = [data for data, _ in await store.read_lines(RUN)]
    shutil.copy(tmp_path / "runs.db", tmp_path / "copy.db")
    await store.close()
    try:
        copy = SqliteStore(tmp_path / "copy.db")
    except (StoreDamaged, StoreForeign):
        return
    try:
        found = [data for data, _ in await copy.read_lines(RUN)]
        assert whole[: len(found)] == found
    except MidrunError as noticed:
        assert noticed.code in {"run_not_found", "store_damaged"}  # noqa: PT017 - an error is one of two valid results
    finally:
        await copy.close()


@pytest.mark.parametrize(
    ("statement", "noticed"),
    [
        ("UPDATE entries SET line = x'7b7d' WHERE seq = 3", 3),
        ("DELETE FROM entries WHERE seq = 3", 3),
        ("DELETE FROM entries WHERE seq = 5", 5),
        ("DELETE FROM entries", 1),
        ("UPDATE entries SET seq = 9 WHERE seq = 3", 3),
        ("UPDATE entries SET hash = zeroblob(32) WHERE seq = 4", 4),
        ("UPDATE runs SET hash = zeroblob(32)", 5),
        ("UPDATE runs SET seq = 6", 6),
    ],
)
async def test_an_edited_journal_is_refused_and_other_runs_work(
    tmp_path: Path, statement: str, noticed: int
) -> None:
    """The hash chain finds each change, whatever the editor of the file did."""
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    await create_run(store)
    for seq in range(1, 5):
        await append_message(store, RUN, seq)
    await store.close()
    db = apsw.Connection(str(path))
    db.execute("DROP TRIGGER entries_do_not_change; DROP TRIGGER entries_do_not_go")
    db.execute(statement)
    db.close()
    store = SqliteStore(path)
    with pytest.raises(JournalCorrupt) as refused:
        await store.read(RUN)
    assert refused.value.seq == noticed
    await create_run(store, RunId("another"))
    assert len(await store.read(RunId("another"))) == 1
    await store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of one megabyte and return its folder; needs root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(  # noqa: S603 - for root only
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)],  # noqa: S607 - as above
        check=False,
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip(
            "cannot mount; test_sqlite_processes.py has the same test with a size limit"
        )
    yield folder
    subprocess.run(["umount", str(folder)], check=True)  # noqa: S603, S607 - as above


async def test_a_full_disk_loses_nothing_and_takes_appends_again_with_free_space(
    small_disk: Path,
) -> None:
    """The transaction is rolled back; acknowledged entries stay readable."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(128 * 1024))
    store = SqliteStore(small_disk / "runs.db")
    await create_run(store)
    acknowledged = await append_until_full(store, 1)
    assert len(await store.read(RUN)) == acknowledged
    ballast.unlink()
    assert (await append_message(store, RUN, acknowledged)).seq == acknowledged + 1
    await store.close()
    store = SqliteStore(small_disk / "runs.db")
    assert len(await store.read(RUN)) == acknowledged + 1
    assert (await store.get_row(RUN)).seq == Seq(acknowledged + 1)
    await store.close()


# ── the file is removed or replaced while it is open ─────────────────────────


FileChange = Callable[[Path], object]


def remove_file(path: Path) -> None:
    """Remove the file, as a cleanup job does."""
    path.unlink()


def remove_log(path: Path) -> None:
    """Remove the write-ahead log, which looks like a left-over file."""
    Path(f"{path}-wal").unlink()


def remove_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


def replace_with_copy(path: Path) -> None:
    """Replace the file with a copy, as an editor or a restored backup does."""
    shutil.copy(path, path.with_suffix(".copy"))
    path.with_suffix(".copy").replace(path)


@pytest.mark.parametrize(
    "change_file", [remove_file, remove_log, remove_folder, replace_with_copy]
)
async def test_an_append_is_refused_after_the_open_file_was_removed_or_replaced(
    tmp_path: Path, change_file: FileChange
) -> None:
    """SQLite itself would go on writing to the unlinked file."""
    path = tmp_path / "folder" / "runs.db"
    path.parent.mkdir()
    store = SqliteStore(path)
    await create_run(store)
    change_file(path)
    for _ in range(2):
        with pytest.raises(StoreUnreachable, match="while it was in use"):
            await append_message(store, RUN, 1)
    await store.close()


async def test_a_file_that_is_put_back_can_be_written_again(tmp_path: Path) -> None:
    """A disk may be unmounted for a moment. The refused append was not written."""
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    await create_run(store)
    path.rename(tmp_path / "aside")
    with pytest.raises(StoreUnreachable):
        await append_message(store, RUN, 1, "refused")
    (tmp_path / "aside").rename(path)
    assert (await append_message(store, RUN, 1, "kept")).seq == 2
    await store.close()
    again = SqliteStore(path)
    assert [record.seq for record in await again.read(RUN)] == [1, 2]
    await again.close()


async def test_a_file_may_be_opened_through_a_symlink(tmp_path: Path) -> None:
    """The log is beside the file, not beside the link."""
    path, link = tmp_path / "disk" / "runs.db", tmp_path / "runs.db"
    path.parent.mkdir()
    link.symlink_to(path)
    store = SqliteStore(path)
    await create_run(store)
    await store.close()
    store = SqliteStore(link)
    assert (await append_message(store, RUN, 1)).seq == 2
    path.rename(tmp_path / "aside")
    with pytest.raises(StoreUnreachable, match="while it was in use"):
        await append_message(store, RUN, 2)
    await store.close()
