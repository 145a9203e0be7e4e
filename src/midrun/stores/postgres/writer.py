"""The writer: everything that one event loop appends goes through one link, in groups.

**Groups.** A commit costs a round trip and an fsync whether it holds one append or two hundred.
While one group is on its way, the next one gathers. The first who waits then leads it: it sends
the group, answers everybody in it, and hands over to the first of the next. So there is no task
of the writer's own, and nothing that outlives its callers.

**Compare, then write.** What is known of a run from the last answer is enough to make the lines
and their hashes. The server compares under the lock of the row, and writes only what fits; the
rest is decided again on what it answers. A refusal is only as good as what it rests on: nobody
is refused on what was known before they asked.

**Lost answers.** A group whose answer was lost is sent again, word for word: what is there
already by its seq and its hash is done.

**Cancellation.** A write that was handed in is carried out, whatever becomes of its caller.
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
"""How many writes are sent together, at most."""

GROUP_BYTES: Final = 4 * 1024 * 1024
"""Nor are they longer than this, but for a single one that is."""

REMEMBERED: Final = 4096
"""Of how many runs it is remembered where they stand."""

_ANSWERS: Final = msgspec.json.Decoder(Answers)


class Standings:
    """Where runs stand, as far as this process knows; shared by all its event loops."""

    def __init__(self) -> None:
        self._known: OrderedDict[RunId, Found] = OrderedDict()

    def get(self, run: RunId) -> Found | None:
        """Return where a run stood when it was last heard of."""
        return self._known.get(run)

    def put(self, found: Found) -> None:
        """Remember where a run stands, unless more is known."""
        known = self._known.get(found.run)
        if known is None or known.seq < found.seq:
            self._known[found.run] = found
            with suppress(KeyError):  # another thread may have made room already
                self._known.move_to_end(found.run)
                while len(self._known) > REMEMBERED:
                    self._known.popitem(last=False)


class _Place(Enum):
    """Where the caller of a request is."""

    WAITS = auto()
    LEADS = auto()  # has been told to carry out its group
    LEFT = auto()  # was cancelled; its write is carried out all the same


class _Request(Struct, eq=False):
    """One write on its way: who waits for it, and what came of it."""

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
"""What goes out together: one write of each run."""


class Writer:
    """Carries out writes in groups; see the module for how."""

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
        self._over: list[Waiter] = []  # who waits until nothing is under way
        self._closed = False

    async def write(self, wanted: Write) -> Appended:
        """Return what was appended, once it is committed; or raise why nothing was."""
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
            if request.place is _Place.LEADS:  # also when it is cancelled: others rely on it
                await self._lead()
            request.place = _Place.LEFT
        return request.result()

    async def close(self) -> None:
        """Take nothing more, and wait until what was handed in is answered."""
        self._closed = True
        if self._led:
            self._over.append(new_waiter())
            await self._over[-1]

    async def _lead(self) -> None:
        """Carry out the next group, answer it, and hand over to the first who waits."""
        heir: _Request | None = None
        with anyio.CancelScope(shield=True):
            while self._led and heir is None:
                group = self._group()
                await self._carry_out(group)
                heir = next((r for r in self._waiting if r.place is _Place.WAITS), None)
                self._led = bool(self._waiting)
                wake(request.waiter for request in group)
        if heir is not None:
            heir.place = _Place.LEADS
            wake([heir.waiter])
        else:
            wake(self._over)

    def _group(self) -> list[_Request]:
        """Take what has gathered, as much of it as may be sent together."""
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
        """Send what fits, round by round, until everybody has an answer."""
        sure: dict[RunId, Found | None] = {}  # heard of after the group was handed in
        left = group
        try:
            while left:
                left = await self._round(left, sure)
        except Exception as failure:  # noqa: BLE001 - whatever it is, they must hear of it
            for request in group:
                if not request.answered:
                    request.failure = failure

    async def _round(
        self, left: list[_Request], sure: dict[RunId, Found | None]
    ) -> list[_Request]:
        """Send the first write of each run; return those that are to be decided again."""
        sent: _Sent = {}
        unsure: set[RunId] = set()
        for request in left:
            wanted, run = request.wanted, request.wanted.run
            if run in sent or run in unsure:
                continue
            believed = sure[run] if run in sure else self._believed(wanted)
            try:
                sent[run] = request, wanted.bid(believed, self._time.clock())
            except (StoreError, ValueError) as refusal:
                if run in sure:
                    request.failure = refusal
                else:
                    unsure.add(run)
        if unsure:
            sure |= await self._looked_up(unsure)
        if sent:
            await self._send(sent, sure)
        return [request for request in left if not request.answered]

    def _believed(self, wanted: Write) -> Found | None:
        return None if isinstance(wanted, Create) else self._standings.get(wanted.run)

    async def _looked_up(self, runs: set[RunId]) -> dict[RunId, Found | None]:
        """Return where runs stand now."""
        stands: dict[RunId, Found | None] = dict.fromkeys(runs)
        for row in await self._links.ask(queries.STANDINGS, {"runs": sorted(runs)}):
            found = found_of(*row)
            stands[found.run] = found
            self._standings.put(found)
        return stands

    async def _send(self, sent: _Sent, sure: dict[RunId, Found | None]) -> None:
        """Have the server write what fits; who does not fit is decided on its answer."""
        # In one order everywhere, so that no two processes wait for each other's locks.
        order = sorted(sent, key=lambda run: (sent[run][1].bid.after > 0, run))
        try:
            answers = await self._answers([sent[run][1].bid for run in order])
        except StoreError as failure:
            if len(sent) == 1:
                ((request, _),) = sent.values()
                request.failure = failure
                return
            for run in order:  # one of them may be to blame: each gets a chance of its own
                await self._send({run: sent[run]}, sure)
            return
        news: list[tuple[RunId, Seq]] = []
        held: set[RunId] = set()
        for run, answer in zip(order, answers, strict=True):
            request, written = sent[run]
            if not answer.done:
                sure[run] = answer.found(run)
                request.failure = _refusal(request.wanted, answer, self._time.clock())
                continue
            request.appended = written.appended
            sure[run] = written.stands
            self._standings.put(written.stands)
            news.append((run, written.stands.seq))
            if written.stands.holder:
                held.add(run)
        self._watchers.tell(news, held=held)

    async def _answers(self, bids: Sequence[Bid]) -> Sequence[Answer]:
        """Return what the server answers, to the same words again if an answer was lost.

        What the server refuses may still have been committed, if it stumbled over what comes
        after. So it is asked again, too, once.
        """
        words = msgspec.json.encode(bids).decode()
        try:
            answer = await self._sent(words, again=False)
        except (StoreBusy, StoreFull, StoreDamaged, StoreForeign):
            answer = await self._sent(words, again=True)
        told = _ANSWERS.decode(answer)
        self._time.said(told.now)
        return told.answers

    async def _sent(self, bids: str, *, again: bool) -> str:
        async def one(link: Link, lost_ones: int) -> Rows:
            now, repeated = self._time.by_hand(), again or lost_ones > 0
            return await link.ask(queries.WRITE, {"bids": bids, "again": repeated, "now": now})

        ((answer,),) = await self._links.insist(one)
        return str(answer)


def _refusal(wanted: Write, answer: Answer, now: Micros) -> Exception | None:
    """Return why `wanted` does not fit; None if it may be tried again where the run stands."""
    try:
        wanted.bid(answer.found(wanted.run), now, alive=answer.alive)
    except (StoreError, ValueError) as refusal:
        return refusal
    if answer.scope:
        return HaltInForce(wanted.run, answer.scope, answer.reason, answer.by)
    if answer.full and isinstance(wanted, Take):
        return NoRoom(wanted.run, answer.full, wanted.limits[answer.full])
    return None


def found_of(
    run: RunId, seq: Seq, link: bytes, at: Micros, epoch: Epoch, holder: str, body: bytes
) -> Found:
    """Return where a run stands, from its row."""
    return Found(
        run=run,
        seq=seq,
        hash=link,
        at=at,
        epoch=epoch,
        holder=holder,
        top=StoredHead(read_head(body), body),
    )
