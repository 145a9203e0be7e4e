"""Deletion in a SQLite file: killed processes, guards, free space, and other processes."""

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import apsw
import pytest

from midrun.codec.hash_chain import HashChain
from midrun.core.entries import RunStarted
from midrun.core.ids import RunId, Seq
from midrun.core.run_head import Head
from midrun.core.values import Message, Phase
from midrun.errors import RunErased
from midrun.ports.push_targets import PushTarget
from midrun.ports.store import RunQuery
from midrun.runs.verification import verify_run
from midrun.stores.sqlite import operations
from midrun.stores.sqlite.store import SqliteStore
from midrun.testing.store_suite.fixtures import OTHER_RUN, RUN, create_run, make_message
from tests.support.raw_sql import count_rows
from tests.support.sqlite_kill import kill_self_at

pytestmark = pytest.mark.about_sqlite("deletion inside of the file")

COMPLETED = Head(phase=Phase.COMPLETED, labels=("x",))
RUNS = [RunId(f"run_d{number}") for number in range(6)]
ENTRIES = 150  # two runs are more than one step


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "runs.db")
    yield store
    await store.close()


async def fill(store: SqliteStore, runs: list[RunId], entries: int = ENTRIES) -> None:
    """Create completed runs with this many entries."""
    for run in runs:
        await create_run(store, run, head=COMPLETED)
        more = [make_message(f"{number} " + 100 * "x") for number in range(entries - 1)]
        await store.append(run, more, after=Seq(1), lease=None, head=COMPLETED)


async def delete_all(store: SqliteStore, runs: list[RunId]) -> None:
    await store.delete_runs(runs[:3], by="ann")
    await store.delete_runs(runs[3:], by="ann")
    while await store.remove_leftovers():
        pass


def run_killed_at(path: Path, point: str, number: int) -> bool:
    """Delete the runs in a forked process that dies at `point`; tell whether it did."""
    child = os.fork()
    if not child:
        kill_self_at(point, number)
        try:

            async def delete() -> None:
                await delete_all(SqliteStore(path), RUNS)

            anyio.run(delete)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["tombstone", "remove", "commit", "reply"])
def test_a_killed_deletion_leaves_whole_runs_or_tombstones(tmp_path: Path, point: str) -> None:
    """At each statement of the deletion; another process then finishes it."""

    async def prepare() -> None:
        store = SqliteStore(tmp_path / "full.db")
        await fill(store, RUNS)
        await store.close()

    async def check(path: Path) -> None:
        store = SqliteStore(path)
        rows = {row.run for row in (await store.list_runs(RunQuery())).items}
        assert len(rows) in {0, 3, 6}  # one transaction deletes three runs
        for run in RUNS:
            if run in rows:
                assert len(await store.read(run)) == ENTRIES  # with their hash chain
            else:
                verdict = await verify_run(store, run)
                assert verdict
                assert verdict.erased
                assert verdict.entries == ENTRIES
        await delete_all(store, RUNS)
        await store.close()
        assert count_rows(path, "entries WHERE no > 0") == 0

    anyio.run(prepare)
    number, was_killed = 1, True
    while was_killed:
        path = tmp_path / f"{number}.db"
        shutil.copy(tmp_path / "full.db", path)
        was_killed = run_killed_at(path, point, number)
        anyio.run(check, path)
        number += 9 if point == "remove" else 2
    assert number > 5


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM entries",
        "UPDATE tombstones SET \"by\" = 'bob'",
        "DELETE FROM tombstones",
    ],
)
async def test_the_file_refuses_other_deletions(
    store: SqliteStore, tmp_path: Path, statement: str
) -> None:
    """Also of the run whose number follows that of a deleted run."""
    await fill(store, RUNS[:1], 2)
    await delete_all(store, RUNS[:1])
    await fill(store, RUNS[1:2], 2)
    db = apsw.Connection(str(tmp_path / "runs.db"))
    with pytest.raises(apsw.ConstraintError, match="never"):
        db.execute(statement)
    db.close()
    assert len(await store.read(RUNS[1])) == 2


async def test_everything_of_the_run_is_gone(store: SqliteStore, tmp_path: Path) -> None:
    history = tuple(
        Message(role="user", text=f"message {number} {'word ' * 100}") for number in range(100)
    )
    started = RunStarted(agent="a", task="secret plan", history=history)
    await store.create(RUN, [started], head=COMPLETED)
    await store.push_targets().put_target(RUN, PushTarget(id="a", body=b"secret"))
    assert count_rows(tmp_path / "runs.db", "chunks") > 1
    await delete_all(store, [RUN])
    for table in (
        "chunks",
        "chunk_uses",
        "labels",
        "snapshots",
        "runs",
        "cursors",
        "push_targets",
    ):
        assert count_rows(tmp_path / "runs.db", table) == 0


async def test_the_file_becomes_shorter_while_another_connection_writes(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "FREE_PAGES_KEPT", 16)
    await fill(store, RUNS, 1000)
    db = apsw.Connection(str(tmp_path / "runs.db"))
    before = db.pragma("page_count")
    await store.delete_runs(RUNS, by="ann")
    other = SqliteStore(tmp_path / "runs.db")
    await create_run(other, OTHER_RUN)
    seq = 1
    while await store.remove_leftovers():
        head = Head(phase=Phase.QUEUED)
        await other.append(OTHER_RUN, [make_message()], after=Seq(seq), lease=None, head=head)
        seq += 1
    assert db.pragma("page_count") < before / 5
    assert db.pragma("freelist_count") <= 16
    assert db.pragma("integrity_check") == "ok"
    assert len(await other.read(OTHER_RUN)) == seq
    await other.close()
    db.close()


async def test_another_process_hears_of_the_deletion_and_of_what_follows(
    store: SqliteStore, tmp_path: Path
) -> None:
    """Its position is an entry that is gone: the id of that entry is not used again."""
    other = SqliteStore(tmp_path / "runs.db")
    await create_run(store, RUN, head=COMPLETED)
    async with other.watch() as changes:
        await delete_all(store, [RUN])
        change = await anext(changes)
        assert (change.run, change.seq) == (RUN, 2)
        await create_run(store, OTHER_RUN)
        assert (await anext(changes)).run == OTHER_RUN
    with pytest.raises(RunErased):
        await other.read(RUN)
    await other.close()


async def test_a_forged_tombstone_is_a_problem(tmp_path: Path) -> None:
    """Only a holder of the key of the store can make one."""
    store = SqliteStore(tmp_path / "runs.db", key=b"a key that is long enough")
    await create_run(store, RUN, head=COMPLETED)
    await store.delete_runs([RUN], by="ann")
    assert await verify_run(store, RUN)
    forger = HashChain()
    db = apsw.Connection(str(tmp_path / "runs.db"))
    db.execute("DROP TRIGGER tombstones_do_not_change")
    proof = forger.make_next_link(b"", b"")
    db.execute("UPDATE tombstones SET proof = ?", (proof,))
    db.close()
    verdict = await verify_run(store, RUN)
    assert not verdict
    assert "tombstone was changed" in str(verdict)
    await store.close()
