"""`python -m bench.floor FOLDER STEPS`: the floor, a minimal loop that journals like midrun.

It makes the same steps with the same tools (asyncio, apsw, msgspec) and leaves the same rows:
four entries and two commits for a step, a hash chain, a row of the run with its newest head.
An append checks the length of the journal and the epoch inside the write transaction, and every
call has a task of its own that can be cancelled. It has no controls, no retries, no redaction,
no limits, no watchers and no recovery. What midrun costs beyond it pays for those.
"""

import asyncio
import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias

import apsw
import msgspec
from msgspec import Struct

from bench.probe import REPLY_TEXT, RESULT_TEXT, StepProbe

SCHEMA: Final = """
CREATE TABLE runs (no INTEGER PRIMARY KEY, run TEXT, seq INTEGER, hash BLOB, at INTEGER,
                   epoch INTEGER, head BLOB);
CREATE TABLE entries (no INTEGER, seq INTEGER, line BLOB, hash BLOB, PRIMARY KEY (no, seq))
    WITHOUT ROWID;
"""
NO: Final = 1
EPOCH: Final = 1
CHECKPOINT_COMMITS: Final = 300
LOG_BYTES: Final = 4_120_000


class Requested(Struct, frozen=True):
    """A tool call that the model requests."""

    tool: str
    args: dict[str, int]


class Reply(Struct, frozen=True):
    """A reply of the model."""

    text: str
    uses: tuple[Requested, ...]


class Started(Struct, frozen=True, tag=True):
    """Entry: a call has started."""

    call: str
    call_kind: Literal["model", "tool"]
    attempt: int
    seen: int


class Done(Struct, frozen=True, tag=True, omit_defaults=True):
    """Entry: a call has returned."""

    call: str
    result: str = ""
    reply: Reply | None = None


FloorEntry: TypeAlias = Started | Done

_encode: Final = msgspec.json.Encoder(order="sorted").encode
_decode: Final = msgspec.json.Decoder(FloorEntry).decode


class FloorStore:
    """The journal of one run."""

    def __init__(self, path: Path) -> None:
        self._db = apsw.Connection(str(path))
        self._db.execute("PRAGMA journal_mode = WAL").fetchall()
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute(SCHEMA)
        self._db.wal_autocheckpoint(0)
        self._execute = self._db.cursor().execute
        link = bytes(32)
        self._execute("INSERT INTO runs VALUES (?, 'run', 0, ?, 0, ?, x'')", (NO, link, EPOCH))
        self._known = (0, link, 0, EPOCH)
        self._version = -1
        self._commits = 0
        self._grow_log()

    def _grow_log(self) -> None:
        """Grow the write-ahead log before it is needed: growing a file makes its sync slow."""
        self._db.execute("PRAGMA cache_size = 10; BEGIN IMMEDIATE; CREATE TABLE room (z BLOB)")
        self._db.execute("INSERT INTO room VALUES (zeroblob(?))", (LOG_BYTES,))
        self._db.execute("ROLLBACK; PRAGMA cache_size = -2000")

    def append(self, entries: Sequence[FloorEntry], after: int, head: bytes | None) -> int:
        """Append entries in one commit, and return the new length of the journal."""
        bodies = [_encode(entry) for entry in entries]
        for entry, body in zip(entries, bodies, strict=True):
            assert _decode(body) == entry
        execute = self._execute
        execute("BEGIN IMMEDIATE")
        if self._db.data_version() != self._version:  # another process has written
            self._known = execute(
                "SELECT seq, hash, at, epoch FROM runs WHERE no = ?", (NO,)
            ).get
        seq, link, at, epoch = self._known
        if (seq, epoch) != (after, EPOCH):
            execute("ROLLBACK")
            raise RuntimeError("Cannot append: another process drives the run.")
        at = max(at, time.time_ns() // 1000)
        for body in bodies:
            seq += 1
            line = b'{"at":%d,"entry":%b,"epoch":%d,"seq":%d,"v":1}' % (at, body, epoch, seq)
            link = hashlib.sha256(link + line).digest()
            execute("INSERT INTO entries VALUES (?, ?, ?, ?)", (NO, seq, line, link))
        if head is None:
            execute(
                "UPDATE runs SET seq = ?, hash = ?, at = ? WHERE no = ?", (seq, link, at, NO)
            )
        else:
            execute(
                "UPDATE runs SET seq = ?, hash = ?, at = ?, head = ? WHERE no = ?",
                (seq, link, at, head, NO),
            )
        execute("COMMIT")
        self._version = self._db.data_version()
        self._known = (seq, link, at, epoch)
        self._commits += 1
        if self._commits % CHECKPOINT_COMMITS == 0:
            self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        return seq


class FloorLoop:
    """Drives the run: start a call, wait for it, append its outcome and the next start."""

    def __init__(self, probe: StepProbe, store: FloorStore) -> None:
        self._probe = probe
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._outcomes: list[Reply | str] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._bell: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Make steps until the probe ends the process."""
        number, step = 1, 0
        started = Started("c1", "model", 1, 0)
        seq = self._store.append([started], 0, b"{}")
        reply: Reply | None = None
        while True:
            outcome = await self._make_call(started, reply)
            number += 1
            head = None
            if isinstance(outcome, Reply):
                reply = outcome
                done = Done(started.call, reply=outcome)
                started = Started(f"c{number}", "tool", 1, seq)
            else:
                step += 1
                head = (
                    b'{"agent":"stepper","phase":"running","step":%d,"task":"measure"}' % step
                )
                done = Done(started.call, result=outcome)
                started = Started(f"c{number}", "model", 1, seq)
            seq = self._store.append([done, started], seq, head)

    async def _make_call(self, started: Started, reply: Reply | None) -> Reply | str:
        """Make a call in a task of its own, and wait until its outcome is there."""
        self._tasks[started.call] = self._loop.create_task(self._call(started, reply))
        while not self._outcomes:
            self._bell = self._loop.create_future()
            await self._bell
        return self._outcomes.pop()

    async def _call(self, started: Started, reply: Reply | None) -> None:
        if started.call_kind == "model":
            self._outcomes.append(await self._call_model())
        else:
            assert reply is not None
            self._outcomes.append(await look(**reply.uses[0].args))
        del self._tasks[started.call]
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)

    async def _call_model(self) -> Reply:
        return Reply(REPLY_TEXT, (Requested("look", {"n": self._probe.mark()}),))


async def look(n: int) -> str:
    """Return a text as long as a search result."""
    return f"{n}{RESULT_TEXT}"


async def _main(probe: StepProbe) -> None:
    await FloorLoop(probe, FloorStore(probe.folder / "floor.db")).run()


if __name__ == "__main__":
    asyncio.run(_main(StepProbe.from_arguments()))
