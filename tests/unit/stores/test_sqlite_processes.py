"""Several real processes on one SQLite file: killed at every write, concurrent, locked out."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import IO

import pytest

from midrun.core.files import iter_file_refs
from midrun.core.ids import RunId, Seq
from midrun.errors import StoreBusy
from midrun.ports.store import HaltRecord
from midrun.stores.sqlite.store import SqliteStore
from midrun.testing.store_suite.fixtures import RUN, append_message, create_run
from tests.support.paths import ROOT
from tests.support.raw_sql import count_rows


class ChildProcess:
    """A process of `child.py`, with its stdin and stdout."""

    def __init__(
        self, process: "subprocess.Popen[str]", stdin: IO[str], stdout: IO[str]
    ) -> None:
        self._process = process
        self._stdin = stdin
        self._stdout = stdout

    def read_line(self) -> str:
        return self._stdout.readline().strip()

    def send_line(self) -> None:
        """Let the process continue where it waits for a line."""
        self._stdin.write("\n")
        self._stdin.flush()

    def wait(self) -> int:
        """Wait for the end of the process and return its exit code."""
        return self._process.wait()


@contextmanager
def start_child(*arguments: object) -> Iterator[ChildProcess]:
    """Run `child.py`; kill it at the end of the block."""
    command = [sys.executable, "-m", "tests.unit.stores.child", *map(str, arguments)]
    with subprocess.Popen(  # noqa: S603 - our own script
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdin
        assert process.stdout
        try:
            yield ChildProcess(process, process.stdin, process.stdout)
        finally:
            process.kill()


@pytest.mark.slow
async def test_acknowledged_entries_survive_a_kill_at_any_point_of_any_write(
    tmp_path: Path,
) -> None:
    """The process is killed before an insert, before a commit, or between commit and reply."""
    with start_child("crashes", tmp_path) as process:
        cases = [json.loads(line) for line in iter(process.read_line, "")]
    assert len(cases) == 36
    for case in cases:
        assert case["killed"], case
        await _check_survivor(tmp_path / case["name"], case["point"], case["acks"])


async def _check_survivor(path: Path, point: str, acks: list[str]) -> None:
    store = SqliteStore(path)
    try:
        rows = (await store.count_runs_by_phase()).values()
        if not acks and point != "reply":
            assert not rows
            return
        seqs = [int(ack.split()[0]) for ack in acks]
        stored = await store.read_lines(RUN)
        for ack in acks:
            seq, link = ack.split()
            assert stored[int(seq) - 1][1].hex() == link
        last = seqs[-1] if seqs else 0
        lost_reply = (2 if acks else 1) if point == "reply" else 0
        assert len(stored) == last + lost_reply
        records = await store.read(RUN)  # checks the chain and the head
        assert [r.seq for r in records] == [*range(1, len(stored) + 1)]
        # Every entry that is there has its file, and no file is there without its entry.
        named = {ref.hash for r in records for ref in iter_file_refs(r.entry)}
        for key in named:
            assert sha256(await store.read_file(RUN, key)).hexdigest() == key
        assert count_rows(path, "files") == count_rows(path, "run_files") == len(named)
        await append_message(store, RUN, len(stored))
    finally:
        await store.close()


async def test_two_processes_that_append_to_one_run_lose_and_repeat_no_entry(
    tmp_path: Path,
) -> None:
    """Each seq has one winner; the other process reads and retries."""
    path = tmp_path / "runs.db"
    with (
        start_child("write", path, "a", 100) as one,
        start_child("write", path, "b", 100) as two,
    ):
        assert one.wait() == 0
        assert two.wait() == 0
    store = SqliteStore(path)
    records = await store.read(RUN, after=Seq(1))
    await store.close()
    texts = [getattr(r.entry, "text", "") for r in records]
    assert sorted(texts) == sorted(f"{name}{n}" for name in "ab" for n in range(100))
    for name in "ab":
        assert [t for t in texts if t[0] == name] == [f"{name}{n}" for n in range(100)]


def test_processes_that_create_one_file_at_the_same_moment_all_open_it(tmp_path: Path) -> None:
    """A process must not take a half-created file for a foreign one."""
    rounds = 20
    with ExitStack() as stack:
        processes = [
            stack.enter_context(start_child("make", tmp_path, rounds)) for _ in range(4)
        ]
        for _ in range(rounds):
            assert [process.read_line() for process in processes] == ["ready"] * 4
            for process in processes:
                process.send_line()
            assert [process.read_line() for process in processes] == ["made"] * 4


async def test_a_second_store_on_the_file_keeps_the_locks_of_the_first(tmp_path: Path) -> None:
    """In POSIX, closing any descriptor of a file drops all locks of the process."""
    store = SqliteStore(tmp_path / "runs.db")
    await create_run(store)
    second = SqliteStore(tmp_path / "runs.db")
    with start_child("lock", tmp_path / "runs.db") as process:
        assert process.read_line() == "in use"
    await second.close()
    await store.close()


async def test_another_process_notices_appends_and_halts(tmp_path: Path) -> None:
    """The server appends controls; the worker that must obey them is another process."""
    store = SqliteStore(tmp_path / "runs.db")
    await create_run(store)
    with start_child("watch", store.path) as other:
        assert other.read_line() == "ready"
        await append_message(store, RUN, 1)
        assert other.read_line() == "run_1 2"
        await create_run(store, RunId("second"))
        assert other.read_line() == "second 1"
        await store.set_halt(HaltRecord(scope="all", by="ops"))
        assert other.read_line() == "halts 0"
    await store.close()


async def test_a_lock_that_is_held_too_long_raises_busy_and_nothing_is_appended(
    tmp_path: Path,
) -> None:
    """Reads work meanwhile, and writes work again once the lock is free."""
    store = SqliteStore(tmp_path / "runs.db", busy=timedelta(milliseconds=30))
    await create_run(store)
    with start_child("hold", store.path) as other:
        assert other.read_line() == "held"
        for _ in range(3):
            with pytest.raises(StoreBusy):
                await append_message(store, RUN, 1)
        assert (await store.get_row(RUN)).seq == 1
        assert len(await store.read(RUN)) == 1
        other.send_line()
        assert other.read_line() == "free"
        assert (await append_message(store, RUN, 1)).seq == 2
    await store.close()


async def test_a_write_waits_for_a_lock_that_is_released_in_time(tmp_path: Path) -> None:
    """The writer thread waits, so the event loop is not blocked."""
    store = SqliteStore(tmp_path / "runs.db")
    await create_run(store)
    with start_child("hold", store.path) as other:
        assert other.read_line() == "held"
        other.send_line()
        assert (await append_message(store, RUN, 1)).seq == 2
    await store.close()


async def test_a_file_size_limit_raises_full_and_loses_nothing(tmp_path: Path) -> None:
    """A size limit stands for a full disk and does not need root."""
    path = tmp_path / "runs.db"
    with start_child("fill", path, 300_000) as other:
        acknowledged = int(other.read_line())
        assert int(other.read_line()) == acknowledged + 1
        assert other.wait() == 0
    store = SqliteStore(path)
    assert len(await store.read(RUN)) == acknowledged + 1
    await store.close()
