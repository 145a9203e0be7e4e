"""The messages of `midrun_write`: requests that are built from operations, and answers.

The change that an operation makes from the cached row of a run becomes a `WriteRequest`:
stamped lines, hashes and the new row. The server applies it if the row still matches, else it
answers with the current row (`WriteAnswer`), and the operation is applied to that row. The
field names of the messages are those of the SQL function.
"""

from collections.abc import Mapping

from msgspec import Struct

from midrun.core.ids import SEQ_ZERO, Epoch, Micros, RunId, Seq
from midrun.core.run_head import Head
from midrun.errors import NotJson
from midrun.ports.store import RunQuota
from midrun.stores.chunks import split_line
from midrun.stores.operations import (
    CreateRunWrite,
    JournalWrite,
    RowChange,
    StoredRow,
    TakeLeaseWrite,
)
from midrun.stores.validation import FIXED_NAMES, StoredHead, decode_head


class WriteRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One append or new run in the form that `midrun_write` takes.

    `after` is 0 for a new run.
    """

    run: RunId
    after: Seq
    seq: Seq
    hash: str
    at: Micros
    lines: tuple[tuple[str, str], ...]
    starts: bool = False
    taker: str | None = None
    limits: Mapping[str, int] | None = None
    epoch: Epoch
    holder: str
    head: str
    phase: str
    attention: str
    wake_at: Micros | None = None
    # Only for new runs. These columns never change.
    agent: str | None = None
    thread: str | None = None
    parent: str | None = None
    owner: str | None = None
    tenant: str | None = None
    team: str | None = None
    labels: tuple[str, ...] | None = None
    chunks: tuple[str, ...] | None = None
    started_at: Micros | None = None
    files: tuple[str, ...] | None = None  # hashes
    words: str | None = None  # for the search; only at the start and the end of a run
    quotas: tuple[RunQuota, ...] | None = None


class WriteAnswer(Struct, frozen=True, kw_only=True):
    """The server's answer to one request: done, or the current row."""

    done: bool
    seq: Seq | None = None  # None: no such run
    hash: str = ""
    at: Micros = Micros(0)
    epoch: Epoch = Epoch(0)
    holder: str = ""
    head: str = ""
    alive: bool = False  # the present holder, if another one wants the lease
    scope: str = ""  # of the halt that forbids the write
    by: str = ""
    reason: str = ""
    full: str = ""  # scope of the limit that is reached
    quota: int | None = None  # the place of the quota that is reached
    quota_name: str = ""
    lost_file: str = ""  # hash of a file that the store does not have
    lost_chunks: bool = False  # a deletion has removed a chunk of the new run: store it again
    erased_by: str = ""  # the tombstone of the run, if it was deleted
    erased_at: Micros = Micros(0)
    erased_why: str = ""

    def get_row_state(self, run: RunId) -> StoredRow | None:
        """Return the current row of the run; None if there is no such run."""
        if self.seq is None:
            return None
        body = self.head.encode()
        return StoredRow(
            run=run,
            seq=self.seq,
            hash=bytes.fromhex(self.hash),
            at=self.at,
            epoch=self.epoch,
            holder=self.holder,
            stored_head=StoredHead(decode_head(body), body),
        )


class WriteAnswers(Struct, frozen=True, kw_only=True):
    """The answers to all requests of one call, and the server's time in microseconds."""

    now: Micros
    answers: tuple[WriteAnswer, ...]


def build_request(
    operation: JournalWrite, current: StoredRow | None, change: RowChange
) -> WriteRequest:
    """Build the request that applies `change` if the row is still `current`."""
    row, head, lines = change.row, change.row.stored_head.head, change.lines
    taken = operation if isinstance(operation, TakeLeaseWrite) else None
    created = operation if isinstance(operation, CreateRunWrite) else None
    is_new = current is None
    chunks: tuple[str, ...] = ()
    if is_new:
        # The hash is that of the complete line. The stored line refers to its chunks, which are
        # already in the store, see `stores/chunks.py`.
        (first, link), *rest = lines
        stored, bodies = split_line(first)
        lines = ((stored, link), *rest)
        chunks = tuple(digest.hex() for digest in bodies)
    return WriteRequest(
        run=row.run,
        after=SEQ_ZERO if current is None else current.seq,
        seq=row.seq,
        hash=row.hash.hex(),
        at=row.at,
        lines=tuple((data.decode(), link.hex()) for data, link in lines),
        starts=operation.starts,
        taker=taken.holder if taken else None,
        limits=(taken.limits or None) if taken else None,
        epoch=row.epoch,
        holder=row.holder,
        head=row.stored_head.body.decode(),
        phase=head.phase.value,
        attention=head.attention,
        wake_at=head.wake_at,
        agent=head.agent if is_new else None,
        thread=head.thread if is_new else None,
        parent=head.parent if is_new else None,
        owner=head.owner if is_new else None,
        tenant=head.tenant if is_new else None,
        team=head.team if is_new else None,
        labels=head.labels if is_new else None,
        chunks=chunks or None,
        started_at=change.started_at,
        files=operation.files.hashes or None,
        words=operation.search_words or None,
        quotas=tuple(created.quotas) or None if created else None,
    )


def check_storable_head(head: Head) -> None:
    """Refuse a head with the character NUL, which Postgres cannot store."""
    for name in (*FIXED_NAMES, "attention"):
        if "\0" in getattr(head, name):
            raise NotJson(f"$.head.{name}", "the character NUL, which Postgres cannot store")
    for name in ("labels", "addressees"):
        if any("\0" in text for text in getattr(head, name)):
            raise NotJson(f"$.head.{name}", "the character NUL, which Postgres cannot store")


def check_no_nul(name: str, text: str) -> None:
    """Refuse text with the character NUL, which Postgres cannot store."""
    if "\0" in text:
        raise ValueError(f"{name} must not contain the character NUL: Postgres cannot store it")
