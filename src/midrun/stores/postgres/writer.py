"""Group commit for Postgres: an event loop's appends go through one connection.

**Groups.** A commit costs one round trip and one fsync whether it holds one append or two
hundred. While one group is on its way, the next one collects. The writer has no task of its
own: the first caller becomes the *leader*. It sends its group, wakes the callers in it, and
hands the leadership to the first caller that waits in the next group. So nothing outlives the
callers.

**Optimistic writes.** The row of a run from the last answer is enough to build the new lines
and their hashes without asking. The server compares `after` with the row under the row's lock
and writes only the requests that match. The others are answered with the current row and
rebuilt from it. A refusal is never based on the cache: another process may have written since.
If the cached row would refuse an operation, the row is read again first.

**Lost answers.** When the connection breaks, the group may or may not have been committed. It
is sent again byte for byte on a new connection. The server finds an entry with the same seq and
the same hash and answers that it is done.

**Cancellation.** A write that was handed in is carried out even if its caller is cancelled.
"""

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import Final, TypeAlias

import anyio
import msgspec
from anyio.lowlevel import checkpoint_if_cancelled
from msgspec import Struct

from midrun.core.ids import Epoch, Micros, RunId, Seq
from midrun.errors import (
    HaltInForce,
    NoRoom,
    StoreBusy,
    StoreClosed,
    StoreDamaged,
    StoreError,
    StoreForeign,
    StoreFull,
)
from midrun.ports.store import AppendResult
from midrun.stores.cross_thread import Waiter, new_waiter, wake_waiters
from midrun.stores.postgres import queries
from midrun.stores.postgres.connection import PostgresConnection, Rows, ServerClock
from midrun.stores.postgres.operations import (
    CachedRow,
    CreateRunRequest,
    TakeLeaseRequest,
    WriteAnswer,
    WriteAnswers,
    WriteOperation,
    WriteRequest,
    WriteResult,
)
from midrun.stores.postgres.pool import ConnectionPool
from midrun.stores.validation import StoredHead, decode_head
from midrun.stores.watchers import Watchers

GROUP_MAX_REQUESTS: Final = 256
"""The most writes in one call of the procedure."""

GROUP_MAX_BYTES: Final = 4 * 1024 * 1024
"""The most bytes in one call, unless a single write is longer."""

CACHED_RUNS_MAX: Final = 4096
"""The number of runs whose row is cached."""

_ANSWERS_DECODER: Final = msgspec.json.Decoder(WriteAnswers)


class RecentRows:
    """The last known rows of runs, shared by all event loops of the process.

    It may be stale: it only saves a read. The server compares every write with the real row.
    """

    def __init__(self) -> None:
        self._cached: OrderedDict[RunId, CachedRow] = OrderedDict()

    def get(self, run: RunId) -> CachedRow | None:
        """Return the last known row of a run."""
        return self._cached.get(run)

    def put(self, row: CachedRow) -> None:
        """Cache a row unless a newer one is cached."""
        known = self._cached.get(row.run)
        if known is None or known.seq < row.seq:
            self._cached[row.run] = row
            # Threads of several event loops use this cache without a lock. Each single
            # operation is atomic, but another thread may evict the row between two of them.
            with suppress(KeyError):
                self._cached.move_to_end(row.run)
                while len(self._cached) > CACHED_RUNS_MAX:
                    self._cached.popitem(last=False)


class _CallerState(Enum):
    """The state of the caller of a pending write."""

    WAITING = auto()
    LEADING = auto()  # was woken to send the next group
    GONE = auto()  # has returned or was cancelled; cannot become the leader


class _PendingWrite(Struct, eq=False):
    """A write on its way: operation, waiter and outcome."""

    operation: WriteOperation
    waiter: Waiter
    caller_state: _CallerState = _CallerState.WAITING
    failure: Exception | None = None
    appended: AppendResult | None = None

    @property
    def has_outcome(self) -> bool:
        return self.failure is not None or self.appended is not None

    def get_result(self) -> AppendResult:
        if self.failure is not None:
            raise self.failure
        assert self.appended is not None
        return self.appended


_Round: TypeAlias = dict[RunId, tuple[_PendingWrite, WriteResult]]
"""The writes of one round: at most one for each run."""


class PostgresWriter:
    """Send writes in groups; the module docstring explains the mechanism."""

    def __init__(
        self,
        pool: ConnectionPool,
        rows: RecentRows,
        watchers: Watchers,
        *,
        server_clock: ServerClock,
    ) -> None:
        self._pool = pool
        self._rows = rows
        self._watchers = watchers
        self._server_clock = server_clock
        self._pending: list[_PendingWrite] = []
        self._has_leader = False
        self._close_waiters: list[
            Waiter
        ] = []  # callers of `close` that wait for the last group
        self._closed = False

    async def write(self, operation: WriteOperation) -> AppendResult:
        """Return the result of a write once it is committed, or raise its refusal."""
        await checkpoint_if_cancelled()
        if self._closed:
            raise StoreClosed(self._pool.address.name)
        request = _PendingWrite(operation, new_waiter())
        self._pending.append(request)
        if not self._has_leader:
            self._has_leader = True
            await self._lead_group()
            return request.get_result()
        try:
            await request.waiter
        finally:
            # The leadership may arrive together with a cancellation. It is accepted all the
            # same: without a leader no pending write would ever be sent. `_lead_group` is
            # shielded.
            if request.caller_state is _CallerState.LEADING:
                await self._lead_group()
            request.caller_state = _CallerState.GONE
        return request.get_result()

    async def close(self) -> None:
        """Refuse new writes and wait until the pending ones are answered."""
        self._closed = True
        if self._has_leader:
            self._close_waiters.append(new_waiter())
            await self._close_waiters[-1]

    async def _lead_group(self) -> None:
        """Send the next group, wake its callers, hand over to the next leader.

        The new leader is the first caller that still waits. If every caller of the pending
        writes was cancelled, this leader sends them as well.
        """
        next_leader: _PendingWrite | None = None
        with anyio.CancelScope(shield=True):
            while self._has_leader and next_leader is None:
                group = self._take_group()
                await self._run_group(group)
                next_leader = next(
                    (
                        pending
                        for pending in self._pending
                        if pending.caller_state is _CallerState.WAITING
                    ),
                    None,
                )
                # No await between here and the hand-over below. A caller that arrives later
                # sees either a leader or an empty list, and leads itself in the second case.
                self._has_leader = bool(self._pending)
                wake_waiters(request.waiter for request in group)
        if next_leader is not None:
            next_leader.caller_state = _CallerState.LEADING
            wake_waiters([next_leader.waiter])
        else:
            wake_waiters(self._close_waiters)

    def _take_group(self) -> list[_PendingWrite]:
        """Take the pending writes that fit into one call."""
        count = size = 0
        for request in self._pending[:GROUP_MAX_REQUESTS]:
            size += sum(map(len, request.operation.bodies))
            if count and size > GROUP_MAX_BYTES:
                break
            count += 1
        group, self._pending = self._pending[:count], self._pending[count:]
        return group

    # ── one group ─────────────────────────────────────────────────────────────────────────

    async def _run_group(self, group: list[_PendingWrite]) -> None:
        """Send `group` round by round until every write has an outcome."""
        # Rows that were read after every write of the group was handed in. Only these may
        # refuse a write: its caller then conflicts with something that really happened.
        confirmed: dict[RunId, CachedRow | None] = {}
        pending = group
        try:
            while pending:
                pending = await self._run_round(pending, confirmed)
        except Exception as failure:  # noqa: BLE001 - every caller must get an outcome
            for request in group:
                if not request.has_outcome:
                    request.failure = failure

    async def _run_round(
        self, pending: list[_PendingWrite], confirmed: dict[RunId, CachedRow | None]
    ) -> list[_PendingWrite]:
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
                sent[run] = (
                    request,
                    operation.build_write(row, self._server_clock.estimate_now()),
                )
            except (StoreError, ValueError) as refusal:
                # Refused by a row that is certain: final. Refused by a cached row: read the row
                # below and decide in the next round.
                if run in confirmed:
                    request.failure = refusal
                else:
                    unconfirmed.add(run)
        if unconfirmed:
            confirmed |= await self._read_rows(unconfirmed)
        if sent:
            await self._send_round(sent, confirmed)
        return [request for request in pending if not request.has_outcome]

    def _get_cached_row(self, operation: WriteOperation) -> CachedRow | None:
        return (
            None if isinstance(operation, CreateRunRequest) else self._rows.get(operation.run)
        )

    async def _read_rows(self, runs: set[RunId]) -> dict[RunId, CachedRow | None]:
        """Read the current rows of `runs`; None for a run that does not exist."""
        rows: dict[RunId, CachedRow | None] = dict.fromkeys(runs)
        for row in await self._pool.execute(queries.RUN_ROW_STATES, {"runs": sorted(runs)}):
            row_state = build_row_state(*row)
            rows[row_state.run] = row_state
            self._rows.put(row_state)
        return rows

    async def _send_round(self, sent: _Round, confirmed: dict[RunId, CachedRow | None]) -> None:
        """Send one round and distribute its answers."""
        # Every process locks the rows in the same order, new runs first and then by id, so two
        # groups cannot deadlock.
        order = sorted(sent, key=lambda run: (sent[run][1].request.after > 0, run))
        try:
            answers = await self._request_answers([sent[run][1].request for run in order])
        except StoreError as failure:
            if len(sent) == 1:
                ((request, _),) = sent.values()
                request.failure = failure
                return
            # One write may be the cause, too large for the disk, say. Sent one by one, the
            # others succeed.
            for run in order:
                await self._send_round({run: sent[run]}, confirmed)
            return
        changes: list[tuple[RunId, Seq]] = []
        held: set[RunId] = set()
        for run, answer in zip(order, answers, strict=True):
            request, result = sent[run]
            if not answer.done:
                # The answer has the row as it was under the lock. No refusal (None) means that
                # the row has moved on but the operation still fits: it is rebuilt in the next
                # round.
                confirmed[run] = answer.get_row_state(run)
                request.failure = _explain_refusal(
                    request.operation, answer, self._server_clock.estimate_now()
                )
                continue
            request.appended = result.appended
            confirmed[run] = result.row
            self._rows.put(result.row)
            changes.append((run, result.row.seq))
            if result.row.holder:
                held.add(run)
        self._watchers.notify(changes, held=held)

    async def _request_answers(self, requests: Sequence[WriteRequest]) -> Sequence[WriteAnswer]:
        """Call the procedure; repeat the call if its answer is lost or it fails.

        The procedure notifies listeners after its commit. An error of that second part arrives
        as a refusal although the entries are committed. So a refused call is repeated once with
        `again`, which finds committed entries by their hash.
        """
        payload = msgspec.json.encode(requests).decode()
        try:
            answer = await self._call_procedure(payload, again=False)
        except (StoreBusy, StoreFull, StoreDamaged, StoreForeign):
            answer = await self._call_procedure(payload, again=True)
        reply = _ANSWERS_DECODER.decode(answer)
        self._server_clock.observe(reply.now)
        return reply.answers

    async def _call_procedure(self, requests: str, *, again: bool) -> str:
        async def call_once(connection: PostgresConnection, lost_count: int) -> Rows:
            now = self._server_clock.get_override()
            is_retry = again or lost_count > 0
            return await connection.execute(
                queries.WRITE, {"requests": requests, "is_retry": is_retry, "now": now}
            )

        ((answer,),) = await self._pool.run_with_retry(call_once)
        return str(answer)


def _explain_refusal(
    operation: WriteOperation, answer: WriteAnswer, now: Micros
) -> Exception | None:
    """Return the reason of a refusal; None if the operation can be rebuilt."""
    try:
        operation.build_write(
            answer.get_row_state(operation.run), now, holder_alive=answer.alive
        )
    except (StoreError, ValueError) as refusal:
        return refusal
    # The row itself allows the write. Then a halt or a limit has refused it.
    if answer.scope:
        return HaltInForce(operation.run, answer.scope, answer.reason, answer.by)
    if answer.full and isinstance(operation, TakeLeaseRequest):
        return NoRoom(operation.run, answer.full, operation.limits[answer.full])
    return None


def build_row_state(
    run: RunId, seq: Seq, link: bytes, at: Micros, epoch: Epoch, holder: str, body: bytes
) -> CachedRow:
    """Build the state of a run from the columns of its row."""
    return CachedRow(
        run=run,
        seq=seq,
        hash=link,
        at=at,
        epoch=epoch,
        holder=holder,
        stored_head=StoredHead(decode_head(body), body),
    )
