"""Modes of a child process for the tests of the SQLite store.

Each mode prints a line for each event, and reads a line from stdin where it must wait.
"""

import fcntl
import json
import os
import resource
import sys
from contextlib import suppress
from hashlib import sha256

import anyio
import apsw

from midrun.core.entries import MessageReceived, RunStarted
from midrun.core.ids import RunId, Seq
from midrun.core.run_head import Head
from midrun.core.values import FileRef, Phase
from midrun.errors import RunExists, SeqConflict, StoreFull
from midrun.stores.sqlite.store import SqliteStore
from tests.support.sqlite_kill import kill_self_at

RUN = RunId("run_1")
HEAD = Head(phase=Phase.QUEUED)
WRITES = 5


def print_line(*words: object) -> None:
    """Print a line and flush it."""
    print(*words, flush=True)  # noqa: T201 - the test reads stdout


async def write_entries(path: str, sink: int, by_thread: bool) -> None:
    """Append entries and report each acknowledged append to `sink`."""

    def report_ack(seq: Seq, link: bytes) -> None:
        os.write(sink, f"{seq} {link.hex()}\n".encode())

    store = SqliteStore(path)
    if by_thread:
        store._writer._detours_left = 1_000_000
    appended = await store.create(RUN, [RunStarted(agent="a", task="t")], head=HEAD)
    report_ack(appended.seq, appended.hash)
    for n in range(WRITES):
        body = f"file {n}".encode() * 1000
        digest = sha256(body).hexdigest()
        file = FileRef(name="f", media_type="text/plain", size=len(body), hash=digest)
        two = [MessageReceived(text=f"{n}a"), MessageReceived(text=f"{n}b", files=(file,))]
        appended = await store.append(
            RUN, two, after=appended.seq, lease=None, head=HEAD, files={digest: body}
        )
        report_ack(appended.seq, appended.hash)
    await store.close()


def run_crash_cases(folder: str) -> None:
    """Fork a writer for each point of each write; print the appends that it acknowledged."""
    for by_thread in (False, True):
        for point in ("insert", "commit", "reply"):
            for number in range(1, WRITES + 2):
                name = f"{point}-{number}-{by_thread}.db"
                source, sink = os.pipe()
                child = os.fork()
                if not child:
                    kill_self_at(point, number)
                    anyio.run(write_entries, f"{folder}/{name}", sink, by_thread)
                    os._exit(0)
                os.close(sink)
                with os.fdopen(source) as acknowledged:
                    lines = acknowledged.read().split("\n")[:-1]
                _, status = os.waitpid(child, 0)
                killed = os.WIFSIGNALED(status)
                print_line(
                    json.dumps({"name": name, "point": point, "killed": killed, "acks": lines})
                )


async def append_messages(path: str, name: str, count: int) -> None:
    """Append `count` messages while other processes do the same."""
    store = SqliteStore(path)
    with suppress(RunExists):
        await store.create(RUN, [RunStarted(agent="a", task="t")], head=HEAD)
    for n in range(count):
        while True:
            after = (await store.get_row(RUN)).seq
            try:
                entry = MessageReceived(text=f"{name}{n}")
                await store.append(RUN, [entry], after=after, lease=None, head=HEAD)
            except SeqConflict:
                continue
            break
    await store.close()


def create_stores(folder: str, count: int) -> None:
    """Create new stores one by one, each after a line on stdin."""
    for n in range(count):
        print_line("ready")
        sys.stdin.readline()
        SqliteStore(f"{folder}/{n}.db")
        print_line("made")


def try_exclusive_lock(path: str) -> None:
    """Print whether another process holds a lock on the database."""
    with open(path, "r+b") as file:  # noqa: PTH123 - lockf needs the descriptor
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x4000_0002)
        except BlockingIOError:
            print_line("in use")
        else:
            print_line("free")


async def print_changes(path: str) -> None:
    """Print each change that the store reports."""
    store = SqliteStore(path)
    async with store.watch() as changes:
        print_line("ready")
        async for change in changes:
            print_line(change.run or "halts", change.seq)


def hold_write_lock(path: str) -> None:
    """Hold the write lock until a line arrives on stdin."""
    db = apsw.Connection(path)
    db.execute("BEGIN IMMEDIATE")
    print_line("held")
    sys.stdin.readline()
    db.execute("ROLLBACK")
    print_line("free")


async def fill_to_limit(path: str, limit: int) -> None:
    """Append until the file size limit is reached; lift it and append once more."""
    store = SqliteStore(path)
    first = await store.create(RUN, [RunStarted(agent="a", task="t")], head=HEAD)
    sys.dont_write_bytecode = True  # Python 3.11 would leave a truncated .pyc
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    acknowledged = await append_until_full(store, first.seq)
    print_line(acknowledged)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    text = MessageReceived(text="room again")
    last = await store.append(RUN, [text], after=Seq(acknowledged), lease=None, head=HEAD)
    print_line(last.seq)
    await store.close()


async def append_until_full(store: SqliteStore, seq: int) -> int:
    """Append until the disk is full; return the last acknowledged seq."""
    entry = MessageReceived(text="x" * 4000)
    for _ in range(100_000):
        try:
            appended = await store.append(RUN, [entry], after=Seq(seq), lease=None, head=HEAD)
        except StoreFull:
            return seq
        seq = appended.seq
    raise AssertionError


def main(mode: str, path: str, *rest: str) -> None:
    """Run the mode that the test named."""
    match mode:
        case "crashes":
            run_crash_cases(path)
        case "write":
            anyio.run(append_messages, path, rest[0], int(rest[1]))
        case "make":
            create_stores(path, int(rest[0]))
        case "lock":
            try_exclusive_lock(path)
        case "watch":
            anyio.run(print_changes, path)
        case "hold":
            hold_write_lock(path)
        case "fill":
            anyio.run(fill_to_limit, path, int(rest[0]))
        case _:
            raise ValueError(mode)


if __name__ == "__main__":
    main(*sys.argv[1:])
