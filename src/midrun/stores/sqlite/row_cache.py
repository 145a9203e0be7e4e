"""Standings: where runs stand, inside a write transaction of this process's one writer.

What the writer has read or written itself it need not read again, as long as nobody else has
written since. SQLite tells: a connection's data version is the same in the next transaction as
after the last commit only if no other connection has committed in between. So what is
remembered is asked about once for each transaction, and never trusted on its own.
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
FIRST: Final = START + 1


class Found(Standing, frozen=True, kw_only=True, gc=False):
    """Where a run stands, and what of its row may have to be changed."""

    number: int
    top: StoredHead


class Standings:
    """The connection of the writer, and what it knows of the runs it writes to."""

    def __init__(self, db: apsw.Connection) -> None:
        self.db = db
        self.news: list[tuple[RunId, Seq]] = []  # what watchers hear once it is committed
        self._execute = db.cursor().execute  # one cursor for all that returns no rows
        self._known: dict[RunId, Found] = {}
        self._halts: tuple[Halt, ...] | None = None
        self._version = -1

    def begin(self) -> None:
        """Begin a transaction; whatever another process has changed is forgotten.

        Raises:
            Newer: what it has changed is the schema.
        """
        self._execute("BEGIN IMMEDIATE")
        self.news.clear()
        if self.db.data_version() != self._version:
            self._forget()
            check_version(self.db)
        elif len(self._known) > REMEMBERED:
            self._forget()

    def commit(self) -> None:
        """Commit the transaction."""
        self._execute("COMMIT")
        self._version = self.db.data_version()

    def abandon(self) -> None:
        """Take back everything since `begin`."""
        self._forget()
        if self.db.in_transaction:
            self._execute("ROLLBACK")

    def _forget(self) -> None:
        self._known.clear()
        self._halts = None

    def find(self, run: RunId) -> Found:
        """Return where `run` stands in this transaction.

        Raises:
            RunNotFound: no such run.
        """
        known = self._known.get(run)
        if known is not None:
            return known
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
        """Add entries to `run`, which has this number."""
        end = stamped.appended.seq
        for seq, (data, link) in enumerate(stamped.lines, end - len(stamped.lines) + 1):
            line = self._share_chunks(data) if seq == FIRST else data
            self._execute(queries.ADD_ENTRY, (number, seq, line, link))
        self.news.append((run, end))

    def _share_chunks(self, data: bytes) -> bytes:
        """Store the chunks of a first line; return the line as it is stored."""
        line, chunks = split_line(data)
        for digest, body in chunks.items():
            self._execute(queries.ADD_CHUNK, (digest, body))
        return line

    def move(
        self, found: Found, new: Appended, top: StoredHead, epoch: Epoch, holder: str
    ) -> None:
        """Move the row of a run to `new`, touching no more of it than has changed."""
        head, old = top.head, found.top.head
        if (
            epoch != found.epoch
            or holder != found.holder
            or head.phase != old.phase
            or head.attention != old.attention
            or head.wake_at != old.wake_at
        ):
            listed = (head.phase.value, head.attention, head.wake_at)
            row = (new.seq, new.hash, new.at, top.body, epoch, holder, *listed)
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
        """Return how many other runs of `scope` somebody holds who is alive."""
        return int(self.db.execute(queries.HELD, (now, but, scope)).get)

    def halts(self) -> tuple[Halt, ...]:
        """Return the latches that hold in this transaction, oldest first."""
        if self._halts is None:
            self._halts = all_halts(self.db)
        return self._halts

    def turn_latch(self) -> None:
        """Have everybody notice that the latches have changed."""
        self._halts = None
        self._execute(queries.TURN_LATCH)
        self.news.append((LATCHES, START))


def all_halts(db: apsw.Connection) -> tuple[Halt, ...]:
    """Return the latches that hold, oldest first."""
    return tuple(
        Halt(scope=scope, by=by, reason=reason, at=at)
        for scope, by, reason, at in db.execute(queries.HALTS)
    )
