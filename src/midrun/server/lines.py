"""Lines: runs as lists show them.

Most of a line is the run's head, which the store keeps beside the journal. How long a run has
worked, what it cost and what may be asked of it only the journal says; a run that has not grown
since is not read again for it.
"""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from midrun.core.audience import may_decide
from midrun.core.ids import Epoch, Micros, RunId, Seq
from midrun.core.lru import LruDict
from midrun.core.offers import Offer, offers
from midrun.core.signs import Sign, sign
from midrun.core.state import Ask, State
from midrun.core.values import DRIVABLE, Actor, Phase, Value
from midrun.core.words import line, own_plan, place
from midrun.embed.midrun import Midrun
from midrun.ports.store import Halt, RunRow
from midrun.server.views import UNREADABLE, Views, count_bytes
from midrun.server.whose import seen_as

WORKS_MAX: Final = 8192
WORKS_MAX_BYTES: Final = 16 * 1024 * 1024
"""Of the asks of the cached runs: they hold arguments, which may be long."""


class Work(Value, kw_only=True):
    """What lists say of a run, beyond its head, at the moment they are asked.

    `elapsed` goes on while it is `working`. With `plan_held` the place is that of a held
    thought: the run is at no step of it, but at a side question.
    """

    elapsed: float = 0.0  # seconds at work
    working: bool = False
    cost_usd: float = 0.0
    place: str = ""  # "step 4 of 7", or "step 4"
    plan_held: bool = False
    yours: bool = False  # what makes it need a person is for whoever looks to settle
    sign: Sign
    quick: Offer  # the one button of a list: pause, keep running or resume


class RunLine(Value, kw_only=True):
    """A run as lists show it."""

    run_id: RunId
    phase: Phase
    agent: str
    task: str
    thread: str
    labels: tuple[str, ...]
    parent: RunId
    attention: str
    asks: int
    step: int
    driven: bool
    holder: str
    epoch: Epoch
    wake_at: Micros | None
    seq: Seq
    head_hash: str
    started_at: Micros
    changed_at: Micros
    work: Work


class _Known(NamedTuple):
    """What was read of a run up to `seq`: the same for everybody; and what waits for whom."""

    seq: Seq
    work: Work
    asks: tuple[Ask, ...]


class Lines:
    """Makes lines of rows."""

    def __init__(self, mid: Midrun, views: Views) -> None:
        self._mid = mid
        self._views = views
        self._known: LruDict[RunId, _Known] = LruDict(
            max_items=WORKS_MAX, max_weight=WORKS_MAX_BYTES
        )

    async def of(self, rows: Sequence[RunRow], actor: Actor) -> tuple[RunLine, ...]:
        """Return the lines of `rows`, in their order, as they are for `actor`."""
        store, now = self._mid.store, self._mid.now()
        holders, halts = await store.holders(), await store.halts()
        made: list[RunLine] = []
        for row in rows:
            known = await self._read(row)
            made.append(_line(row, _at_this_moment(row, known, actor, holders, halts, now)))
        return tuple(made)

    async def _read(self, row: RunRow) -> _Known:
        known = self._known.get(row.run)
        if known is None or known.seq < row.seq:
            try:
                state = await self._views.state(row.run)
            except UNREADABLE as error:
                return _Known(row.seq, _unread(str(error)), ())
            asks = tuple(state.asks[number - 1] for number in state.open_asks)
            known = _Known(state.seq, _work(state), asks)
            self._known.put(row.run, known, weight=count_bytes(*asks))
        return known


def _unread(error: str) -> Work:
    """Return what is said of a run that cannot be read: it must not hide the others."""
    note = line(error)
    nothing = Offer(enabled=False, command="", label="Pause", consequence=note)
    return Work(sign=Sign(look="lost", word="Cannot be read", note=note), quick=nothing)


def _work(state: State) -> Work:
    return Work(
        elapsed=state.worked / 1e6,
        working=state.leased,
        cost_usd=state.meter.spent.cost / 1e6,
        place=place(state.plan, state.meter.steps),
        plan_held=own_plan(state) != state.plan,
        sign=sign(state),
        quick=offers(state)["pause"],
    )


def _line(row: RunRow, work: Work) -> RunLine:
    head = row.head
    return RunLine(
        run_id=row.run,
        phase=head.phase,
        agent=head.agent,
        task=head.task,
        thread=head.thread,
        labels=head.labels,
        parent=head.parent,
        attention=head.attention,
        asks=head.asks,
        step=head.step,
        driven=bool(row.holder),
        holder=row.holder,
        epoch=row.epoch,
        wake_at=head.wake_at,
        seq=row.seq,
        head_hash=row.hash.hex(),
        started_at=row.started_at,
        changed_at=row.changed_at,
        work=work,
    )


def _at_this_moment(
    row: RunRow,
    known: _Known,
    actor: Actor,
    holders: Collection[str],
    halts: Sequence[Halt],
    now: Micros,
) -> Work:
    """Return what is true now, for `actor`; a driver that is gone could tell nobody."""
    work, head = known.work, row.head
    theirs = any(may_decide(actor, ask) for ask in known.asks)
    working = work.working and row.holder in holders
    shown = seen_as(
        work.sign,
        theirs=theirs,
        lost=work.working and not working and head.phase in DRIVABLE,
        workers=len(holders),
        halt=next((one for one in halts if one.covers(row.run, head.agent, head.labels)), None),
    )
    yours = theirs if head.attention == "ask" else actor.role != "viewer"
    since = max(now - row.changed_at, 0) / 1e6 * working
    return replace(
        work,
        elapsed=work.elapsed + since,
        working=working,
        sign=shown,
        yours=yours and bool(head.attention),
    )
