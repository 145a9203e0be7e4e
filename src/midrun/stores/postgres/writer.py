"""The Postgres writer: an event loop's appends go through one connection.

**Groups.** A commit costs one round trip and one fsync. The writes that arrive while one group
is on its way form the next one: see `GroupCommit`.

**Optimistic writes.** The row of a run from the last answer is enough to build the new lines
and their hashes without asking. The server compares `after` with the row under the row's lock
and writes only the requests that match. The others are answered with the current row and
rebuilt from it. A refusal is never based on the cache: another process may have written since.
If the cached row would refuse an operation, the row is read again first.

**Announcements.** Other processes are notified after the commit, by another connection, and no
writer waits for that (`ChangeAnnouncer`).

**Lost answers.** When the connection breaks, the group may or may not have been committed. It
is sent again byte for byte on a new connection. The server finds an entry with the same seq and
the same hash and answers that it is done.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock
from typing import Final, TypeAlias

import anyio
import msgspec
from anyio.lowlevel import checkpoint_if_cancelled
from msgspec import UNSET, Struct

from midrun.core.ids import Epoch, Micros, RunId, Seq
from midrun.core.lru import LruDict
from midrun.errors import (
    FileMissing,
    HaltInForce,
    NoRoom,
    QuotaReached,
    RunErased,
    RunNotFound,
    StoreError,
)
from midrun.ports.store import ALL_RUNS, AppendResult, Tombstone, Visibility
from midrun.stores.deletion import build_tombstone, explain_missing
from midrun.stores.group_commit import Failure, GroupCommit, PendingWrite
from midrun.stores.operations import (
    AppendWrite,
    CreateRunWrite,
    JournalWrite,
    RowChange,
    StoredRow,
    TakeLeaseWrite,
)
from midrun.stores.postgres import queries
from midrun.stores.postgres.connection import PostgresConnection, Rows, ServerClock
from midrun.stores.postgres.operations import (
    WriteAnswer,
    WriteAnswers,
    WriteRequest,
    build_request,
)
from midrun.stores.postgres.pool import ConnectionPool
from midrun.stores.validation import StoredHead, decode_head
from midrun.stores.watchers import Watchers

PROGRESS_DELAY_S: Final = 0.025
"""The longest time for which the progress of a driven run is not announced: a few steps."""

CACHED_RUNS_MAX: Final = 4096
"""The number of runs whose row is cached."""

_ANSWERS_DECODER: Final = msgspec.json.Decoder(WriteAnswers)


class RecentRows:
    """The last known rows of runs, shared by all event loops of the process.

    It may be stale: it only saves a read. The server compares every write with the real row.
    """

    def __init__(self) -> None:
        self._lock = Lock()  # threads of several event loops use the cache
        self._cached: LruDict[RunId, StoredRow] = LruDict(max_items=CACHED_RUNS_MAX)

    def get(self, run: RunId) -> StoredRow | None:
        """Return the last known row of a run."""
        with self._lock:
            return self._cached.get(run)

    def put(self, row: StoredRow) -> None:
        """Cache a row unless a newer one is cached."""
        with self._lock:
            known = self._cached.get(row.run)
            if known is None or known.seq < row.seq:
                self._cached.put(row.run, row)


class ChunksLost(Exception):
    """A deletion has removed a chunk between its upload and the run that uses it."""


class _PostgresWrite(PendingWrite[AppendResult], kw_only=True):
    """An operation on its way to the server."""

    operation: JournalWrite


class _SentWrite(Struct, frozen=True):
    """A write of one round, and the change that the server makes if the row matches."""

    pending: _PostgresWrite
    change: RowChange
    request: WriteRequest


_Round: TypeAlias = dict[RunId, _SentWrite]
"""The writes of one round: at most one for each run."""

_ConfirmedRows: TypeAlias = dict[RunId, StoredRow | None]
"""Rows that were read after every write of the group was handed in.

Only these may refuse a write: its caller then conflicts with something that really happened.
"""


class PostgresWriter:
    """Send writes in groups; the module docstring explains the mechanism."""

    def __init__(
        self,
        pool: ConnectionPool,
        announcer_pool: ConnectionPool,
        rows: RecentRows,
        watchers: Watchers,
        *,
        server_clock: ServerClock,
    ) -> None:
        self._pool = pool
        self._rows = rows
        self._watchers = watchers
        self._server_clock = server_clock
        self._groups = GroupCommit(pool.address.name, self._commit_group)
        self._announcer = ChangeAnnouncer(announcer_pool)

    async def write(self, operation: JournalWrite) -> AppendResult:
        """Return the result of a write once it is committed, or raise its refusal."""
        await checkpoint_if_cancelled()
        size_bytes = sum(map(len, operation.bodies))
        request = _PostgresWrite(operation=operation, size_bytes=size_bytes)
        await self._groups.submit(request)
        return request.get_result()

    async def close(self) -> None:
        """Refuse new writes; wait until the others are answered and announced."""
        await self._groups.close()
        await self._announcer.close()

    async def _commit_group(self, group: list[_PostgresWrite]) -> None:
        """Send `group` round by round until every write has an outcome."""
        # A round gives requests their outcome, or learns the current row of their run. The next
        # round decides on that row.
        confirmed: _ConfirmedRows = {}
        pending = group
        while pending:
            pending = await self._run_round(pending, confirmed)

    async def _run_round(
        self, pending: list[_PostgresWrite], confirmed: _ConfirmedRows
    ) -> list[_PostgresWrite]:
        """Send the first write of each run; return the writes that need another round."""
        sent: _Round = {}
        unconfirmed: set[RunId] = set()
        for request in pending:
            operation, run = request.operation, request.operation.run
            # Only one write of a run per round: the next one builds on the row that the first
            # leads to. It is built in the next round from the answer.
            if run in sent or run in unconfirmed:
                continue
            row = confirmed[run] if run in confirmed else self._get_cached_row(operation)
            try:
                change = operation.apply(row, self._server_clock.estimate_now)
                sent[run] = _SentWrite(request, change, build_request(operation, row, change))
            except (StoreError, ValueError) as refusal:
                # Refused by a row that is certain: final. Refused by a cached row: read the row
                # below and decide in the next round.
                if run in confirmed:
                    request.outcome = Failure(await self._explain_missing(refusal))
                else:
                    unconfirmed.add(run)
        if unconfirmed:
            confirmed |= await self._read_rows(unconfirmed)
        if sent:
            await self._send_round(sent, confirmed)
        return [request for request in pending if request.outcome is UNSET]

    async def _explain_missing(self, refusal: Exception) -> Exception:
        """Return `RunErased` if the run of a `RunNotFound` was deleted; else the refusal."""
        if isinstance(refusal, RunNotFound):
            return await read_missing_error(self._pool, RunId(refusal.run))
        return refusal

    def _get_cached_row(self, operation: JournalWrite) -> StoredRow | None:
        return None if isinstance(operation, CreateRunWrite) else self._rows.get(operation.run)

    async def _read_rows(self, runs: set[RunId]) -> _ConfirmedRows:
        """Read the current rows of `runs`; None for a run that does not exist."""
        rows: _ConfirmedRows = dict.fromkeys(runs)
        for row in await self._pool.execute(queries.RUN_ROW_STATES, {"runs": sorted(runs)}):
            row_state = build_row_state(*row)
            rows[row_state.run] = row_state
            self._rows.put(row_state)
        return rows

    async def _send_round(self, sent: _Round, confirmed: _ConfirmedRows) -> None:
        """Send one round and distribute its answers."""
        # Every process locks the rows in the same order, new runs first and then by id, so two
        # groups cannot deadlock.
        order = sorted(sent, key=lambda run: (sent[run].request.after > 0, run))
        try:
            answers = await self._request_answers([sent[run].request for run in order])
        except StoreError as failure:
            if len(sent) == 1:
                sent[order[0]].pending.outcome = Failure(failure)
                return
            # One write may be the cause, too large for the disk, say. Sent one by one, the
            # others succeed.
            for run in order:
                await self._send_round({run: sent[run]}, confirmed)
            return
        changes: list[tuple[RunId, Seq]] = []
        # Runs with a live lease. A worker that hears of them need not look: they are driven.
        held: set[RunId] = set()
        for run, answer in zip(order, answers, strict=True):
            pending, change = sent[run].pending, sent[run].change
            if not answer.done:
                # The answer has the row as it was under the lock. No refusal (None) means that
                # the row has moved on but the operation still fits: it is applied again in the
                # next round.
                confirmed[run] = answer.get_row_state(run)
                refusal = self._explain_refusal(pending.operation, answer)
                if refusal is not None:
                    pending.outcome = Failure(refusal)
                continue
            # The new row is not read back. The server has applied the request, so the row was
            # the one that the change was made from, and now it is exactly this one: the next
            # append can be built on it.
            pending.outcome = change.appended
            confirmed[run] = change.row
            self._rows.put(change.row)
            changes.append((run, change.row.seq))
            if change.row.holder:
                held.add(run)
            self._announcer.announce(change.row, at_once=not _is_progress(pending.operation))
        self._watchers.notify(changes, held=held)

    async def _request_answers(self, requests: Sequence[WriteRequest]) -> Sequence[WriteAnswer]:
        """Have the server carry out `requests`; send them again if its answer is lost."""
        # Encoded once: a repetition must be byte for byte the same, or the server would not
        # recognize the entries that it has written already.
        payload = msgspec.json.encode(requests).decode()

        async def send_once(connection: PostgresConnection, lost_count: int) -> Rows:
            now = self._server_clock.get_override()
            return await connection.execute(
                queries.WRITE, {"requests": payload, "is_retry": lost_count > 0, "now": now}
            )

        ((answer,),) = await self._pool.run_with_retry(send_once)
        reply = _ANSWERS_DECODER.decode(answer)
        self._server_clock.observe(reply.now)
        return reply.answers

    def _explain_refusal(
        self, operation: JournalWrite, answer: WriteAnswer
    ) -> Exception | None:
        """Return the reason of a refusal; None if the operation can be applied again."""
        run, current = operation.run, answer.get_row_state(operation.run)
        if answer.erased_by:
            return RunErased(run, answer.erased_by, answer.erased_at, answer.erased_why)
        if answer.lost_chunks and current is None:
            return ChunksLost(run)
        try:
            operation.apply(current, self._server_clock.estimate_now, holder_alive=answer.alive)
        except (StoreError, ValueError) as refusal:
            return refusal
        # The row itself allows the write. Then a halt, a limit or a quota has refused it.
        if answer.scope:
            return HaltInForce(run, answer.scope, answer.reason, answer.by)
        if answer.lost_file:
            return FileMissing(run, answer.lost_file)
        if answer.full and isinstance(operation, TakeLeaseWrite):
            return NoRoom(run, answer.full, operation.limits[answer.full])
        if answer.quota is not None and isinstance(operation, CreateRunWrite):
            quota, name = operation.quotas[answer.quota], answer.quota_name
            return QuotaReached(run, quota.tenant, quota.owner, name, getattr(quota, name))
        return None


def _is_progress(operation: JournalWrite) -> bool:
    """Tell whether a worker reports progress under its lease."""
    return isinstance(operation, AppendWrite) and operation.lease is not None


class ChangeAnnouncer:
    """Notifies other processes of committed changes, several at a time.

    A control, a new run and the end of a lease are announced at once: another process waits for
    them. The progress of a driven run is only shown elsewhere, so it waits up to
    `PROGRESS_DELAY_S` for more of it. A worker thus commits little more than two transactions
    for a step, and not four. An announcement that is lost is found in the table of notices, see
    `listener`.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._lines: dict[RunId, str] = {}  # the newest line of each run
        self._sender: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    def announce(self, row: StoredRow, *, at_once: bool) -> None:
        """Announce that a run has grown to `row`; return before it is sent."""
        # Only the newest line of a run is kept. A notification says *look again*, and a reader
        # that looks finds all entries.
        self._lines[row.run] = f"{row.run} {row.seq}{' held' if row.holder else ''}"
        if at_once or not row.holder:
            self._hurry.set()
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send_lines())

    async def close(self) -> None:
        """Send the announcements that are left."""
        self._hurry.set()
        if self._sender is not None:
            await asyncio.wait([self._sender])

    async def _send_lines(self) -> None:
        try:
            # The sender ends when nothing is left, so that no task waits in an idle process.
            # There is no await between the last look at `_lines` and the `finally`: a line that
            # is added after that starts a new sender.
            while self._lines:
                with anyio.move_on_after(PROGRESS_DELAY_S):
                    await self._hurry.wait()
                self._hurry.clear()
                lines, self._lines = list(self._lines.values()), {}
                with suppress(StoreError):  # other processes find them in the table
                    await self._pool.execute(queries.ANNOUNCE, {"lines": lines})
        finally:
            self._sender = None


async def read_tombstone(pool: ConnectionPool, run: RunId) -> Tombstone | None:
    """Return the tombstone of `run`; None if it was not deleted."""
    rows = await pool.execute(queries.TOMBSTONE, {"run": run})
    if not rows:
        return None
    return build_tombstone(*rows[0])


async def read_missing_error(
    pool: ConnectionPool, run: RunId, seen_by: Visibility = ALL_RUNS
) -> RunNotFound:
    """Return the error for a run that is not in the store: it was deleted, or never there."""
    return explain_missing(run, await read_tombstone(pool, run), seen_by)


def build_row_state(
    run: RunId, seq: Seq, link: bytes, at: Micros, epoch: Epoch, holder: str, body: bytes
) -> StoredRow:
    """Build the state of a run from the columns of its row."""
    return StoredRow(
        run=run,
        seq=seq,
        hash=link,
        at=at,
        epoch=epoch,
        holder=holder,
        stored_head=StoredHead(decode_head(body), body),
    )
