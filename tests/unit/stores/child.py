"""What the tests of the SQLite store run in processes of their own.

Each mode talks in lines: it prints what happened, and reads a line where it must wait.
"""

import fcntl
import json
import os
import resource
import signal
import sys
from contextlib import suppress

import anyio
import apsw

from midrun.core.entries import MessageReceived, RunStarted
from midrun.core.ids import RunId, Seq
from midrun.core.run_head import Head
from midrun.core.values import Phase
from midrun.errors import RunExists, SeqConflict, StoreFull
from midrun.stores.sqlite.store import SqliteStore

RUN = RunId("run_1")
HEAD = Head(phase=Phase.QUEUED)
WRITES = 5


def say(*words: object) -> None:
    """Print a line at once."""
    print(*words, flush=True)  # noqa: T201 - this is how it talks


async def crash(path: str, sink: int, by_thread: bool) -> None:
    """Write, and tell of every acknowledged append; somebody else has arranged the end."""

    def tell(seq: Seq, link: bytes) -> None:
        os.write(sink, f"{seq} {link.hex()}\n".encode())

    store = SqliteStore(path)
    if by_thread:
        store._writer._detours_left = 1_000_000
    appended = await store.create(RUN, [RunStarted(agent="a", task="t")], head=HEAD)
    tell(appended.seq, appended.hash)
    for n in range(WRITES):
        two = [MessageReceived(text=f"{n}a"), MessageReceived(text=f"{n}b")]
        appended = await store.append(RUN, two, after=appended.seq, lease=None, head=HEAD)
        tell(appended.seq, appended.hash)
    await store.close()


def arrange_the_end(point: str, number: int) -> None:
    """Have the process killed at the `number`-th time that a connection passes `point`."""
    wanted = {"insert": "INSERT INTO entries", "commit": "COMMIT", "reply": "COMMIT"}[point]
    code = apsw.SQLITE_TRACE_PROFILE if point == "reply" else apsw.SQLITE_TRACE_STMT
    passed = 0

    def look(step: dict[str, object]) -> None:
        nonlocal passed
        # Making the schema commits too, before the first table of ours has an entry.
        if str(step.get("sql", "")).strip().startswith(wanted) and opened:
            passed += 1
            if passed == number:
                os.kill(os.getpid(), signal.SIGKILL)

    opened: list[bool] = []
    apsw.connection_hooks.append(lambda db: db.trace_v2(code, look))
    prepare = SqliteStore.__init__

    def prepared(self: SqliteStore, path: str) -> None:
        prepare(self, path)
        opened.append(True)

    SqliteStore.__init__ = prepared  # type: ignore[method-assign, assignment]  # only in this process


def crashes(folder: str) -> None:
    """Fork a writer for every point of every write, and print what each had acknowledged."""
    for by_thread in (False, True):
        for point in ("insert", "commit", "reply"):
            for number in range(1, WRITES + 2):
                name = f"{point}-{number}-{by_thread}.db"
                source, sink = os.pipe()
                child = os.fork()
                if not child:
                    arrange_the_end(point, number)
                    anyio.run(crash, f"{folder}/{name}", sink, by_thread)
                    os._exit(0)
                os.close(sink)
                with os.fdopen(source) as acknowledged:
                    lines = acknowledged.read().split("\n")[:-1]
                _, ending = os.waitpid(child, 0)
                killed = os.WIFSIGNALED(ending)
                say(json.dumps({"name": name, "point": point, "killed": killed, "acks": lines}))


async def write(path: str, name: str, count: int) -> None:
    """Append `count` messages against whoever else does the same."""
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


def make(folder: str, count: int) -> None:
    """Open one new store after the other, each when told to."""
    for n in range(count):
        say("ready")
        sys.stdin.readline()
        SqliteStore(f"{folder}/{n}.db")
        say("made")


def lock(path: str) -> None:
    """Tell whether anybody keeps this process from locking a database for itself."""
    with open(path, "r+b") as file:  # noqa: PTH123 - its descriptor is what counts
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x4000_0002)
        except BlockingIOError:
            say("in use")
        else:
            say("free")


async def watch(path: str) -> None:
    """Print what a watch tells."""
    store = SqliteStore(path)
    async with store.watch() as changes:
        say("ready")
        async for change in changes:
            say(change.run or "latches", change.seq)


def hold(path: str) -> None:
    """Hold the write lock until told to let go."""
    db = apsw.Connection(path)
    db.execute("BEGIN IMMEDIATE")
    say("held")
    sys.stdin.readline()
    db.execute("ROLLBACK")
    say("free")


async def fill(path: str, limit: int) -> None:
    """Append until files may not grow any more; then let them, and append once more."""
    store = SqliteStore(path)
    first = await store.create(RUN, [RunStarted(agent="a", task="t")], head=HEAD)
    sys.dont_write_bytecode = True  # Python 3.11 would leave half a file, and call it whole
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    acknowledged = await until_full(store, first.seq)
    say(acknowledged)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    text = MessageReceived(text="room again")
    last = await store.append(RUN, [text], after=Seq(acknowledged), lease=None, head=HEAD)
    say(last.seq)
    await store.close()


async def until_full(store: SqliteStore, seq: int) -> int:
    """Append until there is no room, and return the last seq that was acknowledged."""
    entry = MessageReceived(text="x" * 4000)
    for _ in range(100_000):
        try:
            appended = await store.append(RUN, [entry], after=Seq(seq), lease=None, head=HEAD)
        except StoreFull:
            return seq
        seq = appended.seq
    raise AssertionError


def main(mode: str, path: str, *rest: str) -> None:
    """Do what the test asked for."""
    match mode:
        case "crashes":
            crashes(path)
        case "write":
            anyio.run(write, path, rest[0], int(rest[1]))
        case "make":
            make(path, int(rest[0]))
        case "lock":
            lock(path)
        case "watch":
            anyio.run(watch, path)
        case "hold":
            hold(path)
        case "fill":
            anyio.run(fill, path, int(rest[0]))
        case _:
            raise ValueError(mode)


if __name__ == "__main__":
    main(*sys.argv[1:])
