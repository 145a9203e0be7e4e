"""Lines: runs as lists show them.

Most of a line is the run's head, which the store keeps beside the journal. How long a run has
worked, what it cost and what may be asked of it only the journal says; a run that has not grown
since is not read again for it.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from midrun.core.ids import Epoch, Micros, RunId, Seq
from midrun.core.offers import Offer, offers
from midrun.core.signs import Sign, sign, unheard_of
from midrun.core.state import Ask, State
from midrun.core.values import DRIVABLE, Actor, Phase, Value
from midrun.core.words import line, place
from midrun.embed.midrun import Midrun
from midrun.ports.store import RunRow
from midrun.server.views import UNREADABLE, Views, keep
from midrun.server.whose import may_decide, to_whom

WORKS_MAX: Final = 8192


class Work(Value, kw_only=True):
    """What lists say of a run, beyond its head, at the moment they are asked.

    `elapsed` goes on while it is `working`.
    """

    elapsed: float = 0.0  # seconds at work
    working: bool = False
    cost_usd: float = 0.0
    place: str = ""  # "step 4 of 7", or "step 4"
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
    starter: str
    asks: tuple[Ask, ...]


class Lines:
    """Makes lines of rows."""

    def __init__(self, mid: Midrun, views: Views) -> None:
        self._mid = mid
        self._views = views
        self._known: OrderedDict[RunId, _Known] = OrderedDict()

    async def of(self, rows: Sequence[RunRow], actor: Actor) -> tuple[RunLine, ...]:
        """Return the lines of `rows`, in their order, as they are for `actor`."""
        holders = await self._mid.store.holders()
        now = self._mid.now()
        return tuple([_line(row, await self._work(row, actor), holders, now) for row in rows])

    async def _work(self, row: RunRow, actor: Actor) -> Work:
        known = self._known.get(row.run)
        if known is None or known.seq < row.seq:
            try:
                state = await self._views.state(row.run)
            except UNREADABLE as error:
                return _unread(str(error))
            asks = tuple(state.asks[number - 1] for number in state.open_asks)
            known = _Known(state.seq, _work(state), state.started.by, asks)
            keep(self._known, row.run, known, WORKS_MAX)
        theirs = any(may_decide(actor, known.starter, ask) for ask in known.asks)
        return replace(known.work, sign=to_whom(known.work.sign, theirs=theirs))


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
        sign=sign(state),
        quick=offers(state)["pause"],
    )


def _line(row: RunRow, work: Work, holders: Collection[str], now: Micros) -> RunLine:
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
        work=_at_this_moment(row, work, holders, now),
    )


def _at_this_moment(row: RunRow, work: Work, holders: Collection[str], now: Micros) -> Work:
    """Return what is true now; a driver that is gone could tell nobody."""
    if not work.working:
        return work
    if row.holder in holders:
        since = max(now - row.changed_at, 0) / 1e6
        return replace(work, elapsed=work.elapsed + since)
    lost = work.sign
    if row.head.phase in DRIVABLE:
        lost = unheard_of(lost)
    return replace(work, working=False, sign=lost)
