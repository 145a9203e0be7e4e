"""Real processes on one file: killed at every write, side by side, in each other's way."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import IO

import pytest

from midrun.core.ids import RunId, Seq
from midrun.errors import StoreBusy
from midrun.ports.store import HaltRecord
from midrun.stores.sqlite.store import SqliteStore
from midrun.testing.store_suite.fixtures import RUN, append_message, create_run

CHILD = Path(__file__).with_name("child.py")


class Talk:
    """A process of `child.py` that one can talk to."""

    def __init__(self, process: "subprocess.Popen[str]", to: IO[str], of: IO[str]) -> None:
        self.process = process
        self._to = to
        self._of = of

    def hear(self) -> str:
        """Wait for its next line."""
        return self._of.readline().strip()

    def go_on(self) -> None:
        """Let it go on where it waits for a line."""
        self._to.write("\n")
        self._to.flush()


@contextmanager
def child(*arguments: object) -> Iterator[Talk]:
    """Run `child.py`, and end it."""
    command = [sys.executable, str(CHILD), *map(str, arguments)]
    with subprocess.Popen(  # noqa: S603 - our own script
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        try:
            yield Talk(process, process.stdin, process.stdout)
        finally:
            process.kill()


async def test_whatever_was_acknowledged_survives_a_kill_at_any_point_of_any_write(
    tmp_path: Path,
) -> None:
    """Before the insert, before the commit, after the commit but before the reply."""
    with child("crashes", tmp_path) as talk:
        cases = [json.loads(line) for line in iter(talk.hear, "")]
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
        await append_message(store, RUN, len(stored))
    finally:
        await store.close()


async def test_two_processes_append_to_one_run_without_losing_or_doubling_anything(
    tmp_path: Path,
) -> None:
    """Each seq has one winner, whatever process it is in."""
    path = tmp_path / "runs.db"
    with child("write", path, "a", 100) as one, child("write", path, "b", 100) as two:
        assert one.process.wait() == 0
        assert two.process.wait() == 0
    store = SqliteStore(path)
    records = await store.read(RUN, after=Seq(1))
    await store.close()
    texts = [getattr(r.entry, "text", "") for r in records]
    assert sorted(texts) == sorted(f"{name}{n}" for name in "ab" for n in range(100))
    for name in "ab":
        assert [t for t in texts if t[0] == name] == [f"{name}{n}" for n in range(100)]


def test_processes_that_make_one_file_at_the_same_moment_all_open_it(tmp_path: Path) -> None:
    """None takes the half of it that another has made for something foreign, or gives up."""
    rounds = 20
    with ExitStack() as stack:
        talks = [stack.enter_context(child("make", tmp_path, rounds)) for _ in range(4)]
        for _ in range(rounds):
            assert [talk.hear() for talk in talks] == ["ready"] * 4
            for talk in talks:
                talk.go_on()
            assert [talk.hear() for talk in talks] == ["made"] * 4


async def test_a_second_store_on_the_file_leaves_the_locks_of_the_first(tmp_path: Path) -> None:
    """Closing any descriptor of a file would drop them, and others would think it unused."""
    store = SqliteStore(tmp_path / "runs.db")
    await create_run(store)
    second = SqliteStore(tmp_path / "runs.db")
    with child("lock", tmp_path / "runs.db") as talk:
        assert talk.hear() == "in use"
    await second.close()
    await store.close()


async def test_another_process_notices_appends_and_latches(tmp_path: Path) -> None:
    """Controls come from the web server, the driver lives elsewhere."""
    store = SqliteStore(tmp_path / "runs.db")
    await create_run(store)
    with child("watch", store.path) as other:
        assert other.hear() == "ready"
        await append_message(store, RUN, 1)
        assert other.hear() == "run_1 2"
        await create_run(store, RunId("second"))
        assert other.hear() == "second 1"
        await store.set_halt(HaltRecord(scope="all", by="ops"))
        assert other.hear() == "latches 0"
    await store.close()


async def test_a_lock_that_is_held_too_long_is_busy_and_nothing_was_applied(
    tmp_path: Path,
) -> None:
    """Reading goes on all the while, and so does writing once the lock is free."""
    store = SqliteStore(tmp_path / "runs.db", busy=timedelta(milliseconds=30))
    await create_run(store)
    with child("hold", store.path) as other:
        assert other.hear() == "held"
        for _ in range(3):
            with pytest.raises(StoreBusy):
                await append_message(store, RUN, 1)
        assert (await store.get_row(RUN)).seq == 1
        assert len(await store.read(RUN)) == 1
        other.go_on()
        assert other.hear() == "free"
        assert (await append_message(store, RUN, 1)).seq == 2
    await store.close()


async def test_a_write_waits_for_a_lock_that_is_let_go_in_time(tmp_path: Path) -> None:
    """The wait is the writer thread's; nobody sees it but the one who asked."""
    store = SqliteStore(tmp_path / "runs.db")
    await create_run(store)
    with child("hold", store.path) as other:
        assert other.hear() == "held"
        other.go_on()
        assert (await append_message(store, RUN, 1)).seq == 2
    await store.close()


async def test_files_that_may_not_grow_are_full_and_lose_nothing(tmp_path: Path) -> None:
    """A quota instead of a full disk: it needs no root."""
    path = tmp_path / "runs.db"
    with child("fill", path, 300_000) as other:
        acknowledged = int(other.hear())
        assert int(other.hear()) == acknowledged + 1
        assert other.process.wait() == 0
    store = SqliteStore(path)
    assert len(await store.read(RUN)) == acknowledged + 1
    await store.close()
