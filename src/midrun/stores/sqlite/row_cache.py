"""The write transaction of the SQLite store, with a cache of its rows.

An append needs the run's row: its seq, hash, time, epoch, holder and head. Usually this process
wrote that row itself a moment ago, so `RowCache` keeps the rows that it has written and saves
the read.

A cached row is valid only if no other connection has committed since. SQLite can tell: the data
version of a connection changes with every commit to the file, its own or another's. `commit`
notes the version after its own commit; `begin` compares it once it holds the write lock. If
they differ, another process has written, and the whole cache is dropped. So the cache is never
trusted across a foreign write, and no invalidation message is needed.
"""

from typing import Final

import apsw

from midrun.core.ids import START, Epoch, Micros, RunId, Seq
from midrun.errors import RunNotFound
from midrun.ports.store import Appended, Halt
from midrun.stores import validation
from midrun.stores.chunks import split_line
from midrun.stores.sqlite import queries
from midrun.stores.sqlite.connection import check_version
from midrun.stores.validation import Stamped, Standing, StoredHead, read_head
from midrun.stores.watchers import LATCHES

REMEMBERED: Final = 4096
"""The cache is dropped at the next transaction when it holds more rows than this."""

FIRST: Final = START + 1
"""The seq of a run's first entry, the only one that is split into chunks."""


class Found(Standing, frozen=True, kw_only=True, gc=False):
    """The row of a run, with its number and its head."""

    number: int
    top: StoredHead


class Standings:
    """The writer's connection, its open transaction, and the rows it has written.

    Not thread-safe: the writer's connection lock guards it.
    """

    def __init__(self, db: apsw.Connection) -> None:
        self.db = db
        self.news: list[tuple[RunId, Seq]] = []  # for the watchers, after the commit
        # One cursor serves every statement that returns no rows. That saves creating one each
        # time.
        self._execute = db.cursor().execute
        self._known: dict[RunId, Found] = {}
        self._halts: tuple[Halt, ...] | None = None
        self._version = -1

    def begin(self) -> None:
        """Begin a write transaction; drop the cache if another connection has written.

        Raises:
            SchemaTooNew: the other connection has upgraded the schema.
        """
        self._execute("BEGIN IMMEDIATE")
        self.news.clear()
        # The comparison comes after BEGIN IMMEDIATE. From here until the commit no other
        # connection can write, so a version that matches now cannot become stale in this
        # transaction. A newer midrun that upgraded the file also changed the version: the
        # schema is checked only then.
        if self.db.data_version() != self._version:
            self._forget()
            check_version(self.db)
        elif len(self._known) > REMEMBERED:
            self._forget()

    def commit(self) -> None:
        """Commit the transaction and note the data version that it led to."""
        self._execute("COMMIT")
        # The version is that of the pages in this connection's own cache. A commit by another
        # process between these two statements does not change it; the next `begin` loads the
        # new pages, and the version moves then.
        self._version = self.db.data_version()

    def abandon(self) -> None:
        """Roll back everything since `begin` and drop the cache."""
        self._forget()
        if self.db.in_transaction:
            self._execute("ROLLBACK")

    def _forget(self) -> None:
        self._known.clear()
        self._halts = None

    def find(self, run: RunId) -> Found:
        """Return the row of `run` as this transaction sees it.

        Raises:
            RunNotFound: no such run.
        """
        cached = self._known.get(run)
        if cached is not None:
            return cached
        validation.check_id(run)
        row = self.db.execute(queries.STANDING, (run,)).get
        if row is None:
            raise RunNotFound(run)
        number, seq, link, at, epoch, holder, body = row
        return Found(
            run=run,
            seq=seq,
            hash=link,
            at=at,
            epoch=epoch,
            holder=holder,
            number=number,
            top=StoredHead(read_head(body), body),
        )

    def add(self, run: RunId, number: int, stamped: Stamped) -> None:
        """Insert stamped entries of `run`; `number` is its primary key."""
        end = stamped.appended.seq
        for seq, (data, link) in enumerate(stamped.lines, end - len(stamped.lines) + 1):
            line = self._share_chunks(data) if seq == FIRST else data
            self._execute(queries.ADD_ENTRY, (number, seq, line, link))
        self.news.append((run, end))

    def _share_chunks(self, data: bytes) -> bytes:
        """Store the chunks of a first line; return the line in its stored form."""
        line, chunks = split_line(data)
        for digest, body in chunks.items():
            self._execute(queries.ADD_CHUNK, (digest, body))
        return line

    def move(
        self, found: Found, new: Appended, top: StoredHead, epoch: Epoch, holder: str
    ) -> None:
        """Update the row of a run to `new`; write only the columns that changed."""
        head, old = top.head, found.top.head
        # Three statements of growing cost. Most appends change neither the lease nor a column
        # with an index; then no index page is written.
        if (
            epoch != found.epoch
            or holder != found.holder
            or head.phase != old.phase
            or head.attention != old.attention
            or head.wake_at != old.wake_at
        ):
            indexed = (head.phase.value, head.attention, head.wake_at)
            row = (new.seq, new.hash, new.at, top.body, epoch, holder, *indexed)
            self._execute(queries.MOVE, (*row, found.number))
        elif top.body != found.top.body:
            grown = (new.seq, new.hash, new.at, top.body, found.number)
            self._execute(queries.GROW_HEAD, grown)
        else:
            self._execute(queries.GROW, (new.seq, new.hash, new.at, found.number))
        self._known[found.run] = Found(
            run=found.run,
            seq=new.seq,
            hash=new.hash,
            at=new.at,
            epoch=epoch,
            holder=holder,
            number=found.number,
            top=top,
        )

    def held(self, scope: str, but: RunId, now: Micros) -> int:
        """Count the other runs of `scope` that are held by a live holder."""
        return int(self.db.execute(queries.HELD, (now, but, scope)).get)

    def halts(self) -> tuple[Halt, ...]:
        """Return the halts that are in force in this transaction, oldest first."""
        if self._halts is None:
            self._halts = all_halts(self.db)
        return self._halts

    def turn_latch(self) -> None:
        """Record that the halts have changed, for the pollers of all processes."""
        self._halts = None
        self._execute(queries.TURN_LATCH)
        self.news.append((LATCHES, START))


def all_halts(db: apsw.Connection) -> tuple[Halt, ...]:
    """Return the halts that are in force, oldest first."""
    return tuple(
        Halt(scope=scope, by=by, reason=reason, at=at)
        for scope, by, reason, at in db.execute(queries.HALTS)
    )
