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
from midrun.ports.store import Appended
from midrun.stores.cross_thread import Waiter, new_waiter, wake
from midrun.stores.postgres import queries
from midrun.stores.postgres.connection import Link, Rows
from midrun.stores.postgres.operations import (
    Answer,
    Answers,
    Bid,
    Create,
    Found,
    Take,
    Write,
    Written,
)
from midrun.stores.postgres.pool import Links
from midrun.stores.postgres.server_clock import StoreTime
from midrun.stores.validation import StoredHead, read_head
from midrun.stores.watchers import Watchers

GROUP_MAX: Final = 256
"""The most writes in one call of the procedure."""

GROUP_BYTES: Final = 4 * 1024 * 1024
"""The most bytes in one call, unless a single write is longer."""

REMEMBERED: Final = 4096
"""The number of runs whose row is cached."""

_ANSWERS: Final = msgspec.json.Decoder(Answers)


class Standings:
    """The last known rows of runs, shared by all event loops of the process.

    It may be stale: it only saves a read. The server compares every write with the real row.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[RunId, Found] = OrderedDict()

    def get(self, run: RunId) -> Found | None:
        """Return the last known row of a run."""
        return self._known.get(run)

    def put(self, found: Found) -> None:
        """Cache a row unless a newer one is cached."""
        known = self._known.get(found.run)
        if known is None or known.seq < found.seq:
            self._known[found.run] = found
            # Threads of several event loops use this cache without a lock. Each single
            # operation is atomic, but another thread may evict the row between two of them.
            with suppress(KeyError):
                self._known.move_to_end(found.run)
                while len(self._known) > REMEMBERED:
                    self._known.popitem(last=False)


class _Place(Enum):
    """The state of the caller of a pending write."""

    WAITS = auto()
    LEADS = auto()  # was woken to send the next group
    LEFT = auto()  # has returned or was cancelled; cannot become the leader


class _Request(Struct, eq=False):
    """A write on its way: operation, waiter and outcome."""

    wanted: Write
    waiter: Waiter
    place: _Place = _Place.WAITS
    failure: Exception | None = None
    appended: Appended | None = None

    @property
    def answered(self) -> bool:
        return self.failure is not None or self.appended is not None

    def result(self) -> Appended:
        if self.failure is not None:
            raise self.failure
        assert self.appended is not None
        return self.appended


_Sent: TypeAlias = dict[RunId, tuple[_Request, Written]]
"""The writes of one round: at most one for each run."""


class Writer:
    """Send writes in groups; the module docstring explains the mechanism."""

    def __init__(
        self,
        links: Links,
        standings: Standings,
        watchers: Watchers,
        *,
        time: StoreTime,
    ) -> None:
        self._links = links
        self._standings = standings
        self._watchers = watchers
        self._time = time
        self._waiting: list[_Request] = []
        self._led = False
        self._over: list[Waiter] = []  # callers of `close` that wait for the last group
        self._closed = False

    async def write(self, wanted: Write) -> Appended:
        """Return the result of a write once it is committed, or raise its refusal."""
        await checkpoint_if_cancelled()
        if self._closed:
            raise StoreClosed(self._links.address.name)
        request = _Request(wanted, new_waiter())
        self._waiting.append(request)
        if not self._led:
            self._led = True
            await self._lead()
            return request.result()
        try:
            await request.waiter
        finally:
            # The leadership may arrive together with a cancellation. It is accepted all the
            # same: without a leader no pending write would ever be sent. `_lead_group` is
            # shielded.
            if request.place is _Place.LEADS:
                await self._lead()
            request.place = _Place.LEFT
        return request.result()

    async def close(self) -> None:
        """Refuse new writes and wait until the pending ones are answered."""
        self._closed = True
        if self._led:
            self._over.append(new_waiter())
            await self._over[-1]

    async def _lead(self) -> None:
        """Send the next group, wake its callers, hand over to the next leader.

        The new leader is the first caller that still waits. If every caller of the pending
        writes was cancelled, this leader sends them as well.
        """
        next_leader: _Request | None = None
        with anyio.CancelScope(shield=True):
            while self._led and next_leader is None:
                group = self._group()
                await self._carry_out(group)
                next_leader = next(
                    (pending for pending in self._waiting if pending.place is _Place.WAITS),
                    None,
                )
                # No await between here and the hand-over below. A caller that arrives later
                # sees either a leader or an empty list, and leads itself in the second case.
                self._led = bool(self._waiting)
                wake(request.waiter for request in group)
        if next_leader is not None:
            next_leader.place = _Place.LEADS
            wake([next_leader.waiter])
        else:
            wake(self._over)

    def _group(self) -> list[_Request]:
        """Take the pending writes that fit into one call."""
        count = size = 0
        for request in self._waiting[:GROUP_MAX]:
            size += sum(map(len, request.wanted.bodies))
            if count and size > GROUP_BYTES:
                break
            count += 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        return group

    # ── one group ─────────────────────────────────────────────────────────────────────────

    async def _carry_out(self, group: list[_Request]) -> None:
        """Send `group` round by round until every write has an outcome."""
        # Rows that were read after every write of the group was handed in. Only these may
        # refuse a write: its caller then conflicts with something that really happened.
        confirmed: dict[RunId, Found | None] = {}
        pending = group
        try:
            while pending:
                pending = await self._round(pending, confirmed)
        except Exception as failure:  # noqa: BLE001 - every caller must get an outcome
            for request in group:
                if not request.answered:
                    request.failure = failure

    async def _round(
        self, left: list[_Request], sure: dict[RunId, Found | None]
    ) -> list[_Request]:
        """Send the first write of each run; return the writes that need another round."""
        sent: _Sent = {}
        unconfirmed: set[RunId] = set()
        for request in left:
            operation, run = request.wanted, request.wanted.run
            # Only one write of a run per round: the next one builds on the row that the first
            # leads to. It is built in the next round from the answer.
            if run in sent or run in unconfirmed:
                continue
            row = sure[run] if run in sure else self._believed(operation)
            try:
                sent[run] = request, operation.bid(row, self._time.clock())
            except (StoreError, ValueError) as refusal:
                # Refused by a row that is certain: final. Refused by a cached row: read the row
                # below and decide in the next round.
                if run in sure:
                    request.failure = refusal
                else:
                    unconfirmed.add(run)
        if unconfirmed:
            sure |= await self._looked_up(unconfirmed)
        if sent:
            await self._send(sent, sure)
        return [request for request in left if not request.answered]

    def _believed(self, wanted: Write) -> Found | None:
        return None if isinstance(wanted, Create) else self._standings.get(wanted.run)

    async def _looked_up(self, runs: set[RunId]) -> dict[RunId, Found | None]:
        """Read the current rows of `runs`; None for a run that does not exist."""
        rows: dict[RunId, Found | None] = dict.fromkeys(runs)
        for row in await self._links.ask(queries.STANDINGS, {"runs": sorted(runs)}):
            row_state = found_of(*row)
            rows[row_state.run] = row_state
            self._standings.put(row_state)
        return rows

    async def _send(self, sent: _Sent, sure: dict[RunId, Found | None]) -> None:
        """Send one round and distribute its answers."""
        # Every process locks the rows in the same order, new runs first and then by id, so two
        # groups cannot deadlock.
        order = sorted(sent, key=lambda run: (sent[run][1].bid.after > 0, run))
        try:
            answers = await self._answers([sent[run][1].bid for run in order])
        except StoreError as failure:
            if len(sent) == 1:
                ((request, _),) = sent.values()
                request.failure = failure
                return
            # One write may be the cause, too large for the disk, say. Sent one by one, the
            # others succeed.
            for run in order:
                await self._send({run: sent[run]}, sure)
            return
        changes: list[tuple[RunId, Seq]] = []
        held: set[RunId] = set()
        for run, answer in zip(order, answers, strict=True):
            request, result = sent[run]
            if not answer.done:
                # The answer has the row as it was under the lock. No refusal (None) means that
                # the row has moved on but the operation still fits: it is rebuilt in the next
                # round.
                sure[run] = answer.found(run)
                request.failure = _refusal(request.wanted, answer, self._time.clock())
                continue
            request.appended = result.appended
            sure[run] = result.stands
            self._standings.put(result.stands)
            changes.append((run, result.stands.seq))
            if result.stands.holder:
                held.add(run)
        self._watchers.tell(changes, held=held)

    async def _answers(self, bids: Sequence[Bid]) -> Sequence[Answer]:
        """Call the procedure; repeat the call if its answer is lost or it fails.

        The procedure notifies listeners after its commit. An error of that second part arrives
        as a refusal although the entries are committed. So a refused call is repeated once with
        `again`, which finds committed entries by their hash.
        """
        payload = msgspec.json.encode(bids).decode()
        try:
            answer = await self._sent(payload, again=False)
        except (StoreBusy, StoreFull, StoreDamaged, StoreForeign):
            answer = await self._sent(payload, again=True)
        reply = _ANSWERS.decode(answer)
        self._time.said(reply.now)
        return reply.answers

    async def _sent(self, bids: str, *, again: bool) -> str:
        async def call_once(connection: Link, lost_count: int) -> Rows:
            now, repeated = self._time.by_hand(), again or lost_count > 0
            return await connection.ask(
                queries.WRITE, {"bids": bids, "again": repeated, "now": now}
            )

        ((answer,),) = await self._links.insist(call_once)
        return str(answer)


def _refusal(wanted: Write, answer: Answer, now: Micros) -> Exception | None:
    """Return the reason of a refusal; None if the operation can be rebuilt."""
    try:
        wanted.bid(answer.found(wanted.run), now, alive=answer.alive)
    except (StoreError, ValueError) as refusal:
        return refusal
    # The row itself allows the write. Then a halt or a limit has refused it.
    if answer.scope:
        return HaltInForce(wanted.run, answer.scope, answer.reason, answer.by)
    if answer.full and isinstance(wanted, Take):
        return NoRoom(wanted.run, answer.full, wanted.limits[answer.full])
    return None


def found_of(
    run: RunId, seq: Seq, link: bytes, at: Micros, epoch: Epoch, holder: str, body: bytes
) -> Found:
    """Build the state of a run from the columns of its row."""
    return Found(
        run=run,
        seq=seq,
        hash=link,
        at=at,
        epoch=epoch,
        holder=holder,
        top=StoredHead(read_head(body), body),
    )
