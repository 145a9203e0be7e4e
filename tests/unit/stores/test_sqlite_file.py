"""The file: how it is made and opened, what is refused, how its lists are carried out."""

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from urllib.parse import quote

import apsw
import pytest

from midrun.core.ids import RunId, Seq
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
from midrun.stores.sqlite.store import SqliteStore
from midrun.testing.store_suite.fixtures import RUN, append_message, create_run
from tests.unit.stores.child import until_full

PAGE = 4096


async def small(path: Path) -> dict[RunId, list[bytes]]:
    """Make a database with a few runs, and return their lines."""
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
async def test_a_file_that_other_accounts_can_read_is_taken_away_from_them(
    mode: int, wanted: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A copy from a backup has the mode of the umask. A group that may write keeps access."""
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


async def test_a_file_of_something_else_keeps_its_mode(tmp_path: Path) -> None:
    """It was named by mistake."""
    path = tmp_path / "theirs.db"
    with closing(apsw.Connection(str(path))) as db:
        db.execute("CREATE TABLE theirs (x)")
    path.chmod(0o644)
    with pytest.raises(StoreForeign):
        SqliteStore(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def _open(path: Path) -> None:
    connection.open_file(path, durability="full", busy_ms=1000).close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another account, too")
def test_a_file_of_another_account_that_all_can_read_is_refused_by_name() -> None:
    """This account cannot take it away from the others; the text says who can, and how."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "runs.db"
        _open(path)
        Path(folder).chmod(0o777)  # so that the other account can get there
        path.chmod(0o666)
        pid = os.fork()
        if pid == 0:
            os.setuid(65534)
            try:
                _open(path)
            except StoreUnreachable as refused:
                os._exit(0 if f"chmod 660 {path} as its owner" in str(refused) else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


async def test_sqlite3_may_not_open_the_file_of_a_store_in_the_same_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a copy of SQLite of its own: when that closes the file, ours loses its locks."""
    path, other = tmp_path / "runs.db", tmp_path / "another name.db"
    store = SqliteStore(path)
    other.symlink_to(path)
    uri = f"file:{quote(str(other))}?mode=ro&immutable=1"
    monkeypatch.chdir(tmp_path)
    for name in (path, str(path), bytes(path), "runs.db", other, uri):
        with pytest.raises(SqliteConflict, match="with apsw, or use midrun export"):
            sqlite3.connect(name, uri=isinstance(name, str))
    locks = _locks(path)
    sqlite3.connect(":memory:").close()
    sqlite3.connect(tmp_path / "mine.db").close()
    apsw.Connection(str(path)).close()
    assert _locks(path) == locks == 1
    await store.close()
    sqlite3.connect(path).close()


def _locks(path: Path) -> int:
    """Return how many locks this process has on the file."""
    lines = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    inode, pid = str(path.stat().st_ino), str(os.getpid())
    return sum(line[4] == pid and line[5].endswith(f":{inode}") for line in lines)


FORKS = """
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
    """Also a forked copy of one that has it open: locks belong to a process."""
    command = [sys.executable, "-W", "ignore", "-c", FORKS, str(tmp_path / "runs.db")]
    subprocess.run(command, check=True)  # noqa: S603 - our own script


async def test_a_new_file_is_ours_alone_and_says_what_it_is(tmp_path: Path) -> None:
    """Other users of the machine must not read what agents were told."""
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
async def test_durability_is_what_was_asked_for(
    tmp_path: Path, durability: Durability, level: int
) -> None:
    """FULL survives a power cut; that is the default."""
    store = SqliteStore(tmp_path / "runs.db", durability=durability)
    db = store._writer._db
    assert db.pragma("synchronous") == level
    assert db.pragma("foreign_keys") == 1
    assert db.pragma("trusted_schema") == 0
    await store.close()


async def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    """`touch` and a temporary file both make one."""
    (tmp_path / "runs.db").touch()
    store = SqliteStore(tmp_path / "runs.db")
    await create_run(store)
    assert [record.seq for record in await store.read(RUN)] == [1]
    await store.close()


@pytest.mark.parametrize(
    "content", [b"x", b"x" * 99, b"not a database at all", b"x" * 5000, b"SQLite format 3\0"]
)
def test_a_file_of_something_else_is_not_touched(tmp_path: Path, content: bytes) -> None:
    """A wrong path must never cost anybody their file."""
    path = tmp_path / "diary.txt"
    path.write_bytes(content)
    with pytest.raises((StoreForeign, StoreDamaged)):
        SqliteStore(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "statement",
    ["CREATE TABLE t (x)", "PRAGMA application_id = 7", "PRAGMA user_version = 7"],
)
def test_a_database_of_something_else_is_not_touched(tmp_path: Path, statement: str) -> None:
    """It may be somebody's database with room for one more table; it is not ours."""
    path = tmp_path / "other.db"
    db = apsw.Connection(str(path))
    db.execute(statement)
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreForeign):
        SqliteStore(path)
    assert path.read_bytes() == before


async def test_a_file_of_a_newer_schema_is_not_touched(tmp_path: Path) -> None:
    """Older code does not know what it would break."""
    path = tmp_path / "runs.db"
    await small(path)
    db = apsw.Connection(str(path))
    db.pragma("user_version", connection.SCHEMA_VERSION + 1)
    db.close()
    with pytest.raises(StoreForeign, match="newer"):
        SqliteStore(path)


def test_a_path_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    """The message of the system is the useful part."""
    with pytest.raises(StoreUnreachable, match="No such file"):
        SqliteStore(tmp_path / "missing" / "runs.db")
    with pytest.raises(StoreUnreachable, match="directory"):
        SqliteStore(tmp_path)


def test_a_library_with_the_reset_bug_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With several processes on one file it loses committed pages."""
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.2")
    with pytest.raises(StoreUnreachable, match=r"3\.51\.2 can lose data"):
        SqliteStore(tmp_path / "runs.db")


async def test_entries_cannot_be_changed_or_removed_by_a_stray_hand(tmp_path: Path) -> None:
    """Not a defence against an attacker, who has the chain to fear; against a slip."""
    await small(tmp_path / "runs.db")
    db = apsw.Connection(str(tmp_path / "runs.db"))
    for statement in ("DELETE FROM entries", "UPDATE entries SET line = x'00'"):
        with pytest.raises(apsw.ConstraintError, match="never"):
            db.execute(statement)
    db.close()


@pytest.fixture
async def plans(tmp_path: Path) -> dict[str, str]:
    """Give how SQLite would carry out each list."""
    await small(tmp_path / "runs.db")
    db = apsw.Connection(str(tmp_path / "runs.db"))
    plans = {}
    takes = {"COUNTS": 0, "HALTS": 0, "HOLDERS": 1, "DUE": 2, "DRIVABLE": 3}
    takes |= {name: 10 for name in vars(queries) if name.startswith("LIST_")}
    for name, wanted in takes.items():
        rows = db.execute(f"EXPLAIN QUERY PLAN {getattr(queries, name)}", (1,) * wanted)
        plans[name] = "; ".join(str(row[3]) for row in rows)
    db.close()
    return plans


async def test_no_list_looks_at_entries_or_goes_through_all_runs(plans: dict[str, str]) -> None:
    """A page costs what is on it, however many runs and entries there are."""
    assert len(plans) == 13
    for name, plan in plans.items():
        assert "entries" not in plan, (name, plan)
        if name.startswith("LIST_"):
            # `json_each` reads the head, which is in the row.
            assert "SCAN" not in plan.replace("SCAN json_each", ""), (name, plan)
            assert "TEMP B-TREE" not in plan, (name, plan)
    assert "COVERING INDEX runs_by_phase" in plans["COUNTS"]
    assert "runs_by_wake" in plans["DUE"]
    assert "runs_by_holder" in plans["DRIVABLE"]


async def _check(path: Path, lines: dict[RunId, list[bytes]]) -> bool:
    """Tell whether everything is as it was; raise what midrun says if it noticed."""
    store = SqliteStore(path)
    try:
        await store.list_runs(RunQuery())
        await store.count_runs_by_phase()
        for run, its in lines.items():
            await store.read(run)
            await store.load_snapshot(run)
            if [data for data, _ in await store.read_lines(run)] != its:
                return False
        return True
    finally:
        await store.close()


def _remove(path: Path) -> None:
    for left in path.parent.glob(f"{path.name}*"):
        left.unlink()


@pytest.mark.slow
async def test_a_flipped_byte_anywhere_is_harmless_or_noticed(tmp_path: Path) -> None:
    """Journals are exactly what was written, or their reader is told."""
    path = tmp_path / "runs.db"
    lines = await small(path)
    sound = path.read_bytes()
    chance = Random(20261115)  # noqa: S311 - a fixed sample
    noticed = 0
    places = [*range(100), *(chance.randrange(len(sound)) for _ in range(500))]
    for place in places:
        flipped = bytearray(sound)
        flipped[place] ^= 1 << chance.randrange(8)
        copy = tmp_path / f"copy{place}.db"
        copy.write_bytes(flipped)
        try:
            assert await _check(copy, lines), place
        except MidrunError:
            noticed += 1
        _remove(copy)
    assert noticed > 50, "or this shows nothing"


async def test_a_page_that_was_written_by_half_is_harmless_or_noticed(tmp_path: Path) -> None:
    """The last one too: the end of a file is what a power cut, or a full disk, tears."""
    path = tmp_path / "runs.db"
    lines = await small(path)
    sound = path.read_bytes()
    noticed: list[int] = []
    for page in range(0, len(sound), PAGE):
        torn = bytearray(sound)
        torn[page + PAGE // 2 : page + PAGE] = bytes(PAGE // 2)
        copy = tmp_path / f"copy{page}.db"
        copy.write_bytes(torn)
        try:
            assert await _check(copy, lines), page
        except MidrunError:
            noticed.append(page)
        _remove(copy)
    assert len(noticed) > len(lines)
    (tmp_path / "short.db").write_bytes(sound[: -PAGE // 2])
    with pytest.raises(MidrunError):
        await _check(tmp_path / "short.db", lines)


@pytest.mark.parametrize("keep", [0, 1, 50, 100, 4096, 4097, 20_000])
async def test_a_file_that_was_cut_off_is_noticed(tmp_path: Path, keep: int) -> None:
    """An empty file is a new store: then the runs are not found."""
    path = tmp_path / "runs.db"
    lines = await small(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(MidrunError):
        await _check(path, lines)


async def test_without_its_log_a_file_holds_a_prefix_or_says_that_it_does_not(
    tmp_path: Path,
) -> None:
    """A copy made while it was in use, without the `-wal`: only a kept head can tell."""
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
        assert noticed.code in {"run_not_found", "store_damaged"}  # noqa: PT017 - as the name says
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
async def test_a_journal_that_somebody_edited_is_not_driven_and_others_are(
    tmp_path: Path, statement: str, noticed: int
) -> None:
    """With write access to the file anything can be changed, but not unnoticed."""
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
    """Give a folder on a disk of one megabyte; that takes root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(  # noqa: S603 - for root only
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)],  # noqa: S607 - as above
        check=False,
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip("cannot mount here; the quota test in test_sqlite_processes does the same")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)  # noqa: S603, S607 - as above


async def test_a_full_disk_loses_nothing_and_is_usable_again_with_room(
    small_disk: Path,
) -> None:
    """The transaction is rolled back; what was acknowledged stays readable."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(128 * 1024))
    store = SqliteStore(small_disk / "runs.db")
    await create_run(store)
    acknowledged = await until_full(store, 1)
    assert len(await store.read(RUN)) == acknowledged
    ballast.unlink()
    assert (await append_message(store, RUN, acknowledged)).seq == acknowledged + 1
    await store.close()
    store = SqliteStore(small_disk / "runs.db")
    assert len(await store.read(RUN)) == acknowledged + 1
    assert (await store.get_row(RUN)).seq == Seq(acknowledged + 1)
    await store.close()
