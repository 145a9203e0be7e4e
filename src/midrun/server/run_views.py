"""Views of runs: cached states, the view of one run, the lines of a list.

`RunViews` folds journals into states and keeps the most recent ones: a state that was read
before is folded on from its last seq. From a state follow the view of one run (`ShownRun`) and
the part of a list line that the row in the store does not have (`Work`).

Two facts are in no journal and are applied last, for one viewer at one moment: whether the
worker that holds the lease is alive, and who the viewer is. `status_for_viewer` and
`_work_for_viewer` do that.
"""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import structs
from msgspec.structs import replace

from midrun.core.decide.asks import may_decide
from midrun.core.evolve import fold
from midrun.core.ids import Epoch, Micros, RunId, Seq
from midrun.core.journaled_text import format_position, get_topic_plan, shorten_to_line
from midrun.core.lru import LruDict
from midrun.core.run_head import Head
from midrun.core.state import Ask, State
from midrun.core.values import Actor, Phase, Value
from midrun.driver.journal_writer import load_run_state
from midrun.errors import JournalCorrupt, JournalTooNew
from midrun.ports.store import HaltRecord, RunRow
from midrun.runs.midrun import Midrun
from midrun.runs.values import RunView
from midrun.runs.views import is_worker_lost, make_view, mark_lost_worker
from midrun.text.buttons import Button, build_buttons
from midrun.text.status import StatusLine, build_status_line, mark_halting, mark_lost

CACHED_STATES_MAX: Final = 128
CACHED_STATES_MAX_BYTES: Final = 64 * 1024 * 1024
"""The bound on the journals of all cached states; a state needs about as much memory."""

CACHED_HEADS_MAX: Final = 8192

UNREADABLE_ERRORS: Final = (JournalCorrupt, JournalTooNew)
"""Errors of one unreadable journal: damaged, or of a newer Midrun. Other runs are fine."""


class ShownRun(RunView, kw_only=True):
    """A run as the API shows it. `head_hash` is the hash of the chain at `seq`."""

    head_hash: str
    started_by: str


class _CachedState(NamedTuple):
    state: State
    journal_bytes: int  # bytes of its journal, as JSON


class RunViews:
    """Reads states and views of runs. Cached states are folded on from their last seq."""

    def __init__(self, mid: Midrun) -> None:
        self._mid = mid
        self._states: LruDict[RunId, _CachedState] = LruDict(
            max_items=CACHED_STATES_MAX, max_weight=CACHED_STATES_MAX_BYTES
        )
        self._heads: LruDict[RunId, Head] = LruDict(max_items=CACHED_HEADS_MAX)

    async def read_state(self, run: RunId) -> State:
        """Return the current state of `run`.

        Raises:
            RunNotFound: no such run.
        """
        cached = self._states.get(run)
        if cached is None:
            state = await load_run_state(self._mid.store, run)
            size = count_bytes([*state.messages], [*state.calls])
        else:
            state = cached.state
            records = await self._mid.store.read(run, after=state.seq)
            state = fold(run, records, state)
            size = cached.journal_bytes + count_bytes(*(record.entry for record in records))
        # Other requests may have stored a state during the awaits. A newer one must not be
        # replaced by an older one.
        newest = self._states.get(run)
        if newest is not None and newest.state.seq > state.seq:
            return newest.state
        self._states.put(run, _CachedState(state, size), weight=size)
        return state

    async def show_run(self, run: RunId) -> ShownRun:
        """Return the current view of a run."""
        return await self.show_state(await self.read_state(run))

    async def show_state(self, state: State) -> ShownRun:
        """Return the view of a run as of `state`."""
        run, store = state.run, self._mid.store
        row = await store.get_row(run)
        # The hash of the state's own last entry; the row may be ahead of the state.
        (_, head_hash), *_ = await store.read_lines(run, after=Seq(state.seq - 1), limit=1)
        silent = self._mid.silent_calls(run)
        view = make_view(state, started_at=row.started_at, silent=silent)
        view = await mark_lost_worker(store, row, view)
        return ShownRun(
            **structs.asdict(view),
            head_hash=head_hash.hex(),
            started_by=state.run_started.by,
        )

    async def read_head(self, run: RunId) -> Head:
        """Return a possibly outdated head of `run`; use only its agent and owner.

        Those two never change, so the head is cached without any invalidation.

        Raises:
            RunNotFound: no such run.
        """
        found = self._heads.get(run)
        if found is None:
            found = (await self._mid.store.get_row(run)).head
            self._heads.put(run, found)
        return found

    async def can_see(self, actor: Actor, run: RunId) -> bool:
        """Return whether `actor` may see `run`: a user sees their own, other roles see all.

        A child run belongs to the owner of its parent.
        """
        return actor.role != "user" or (await self.read_head(run)).owner == actor.name


def count_bytes(*values: object) -> int:
    """Return the length of `values` as JSON: an estimate of their size in memory."""
    return sum(len(msgspec.json.encode(value)) for value in values)


# The status line for one viewer: waiting for you or for others, worker lost, halted.


def status_for_viewer(
    status: StatusLine,
    *,
    may_decide_ask: bool,
    is_worker_lost: bool,
    worker_count: int,
    halt: HaltRecord | None,
) -> StatusLine:
    """Adjust a run's status line for one viewer at this moment.

    `may_decide_ask`: the viewer may decide the open ask. `is_worker_lost`: the worker with the
    lease is silent. `worker_count`: live workers. `halt`: the halt that covers the run, if any.
    """
    # A lost worker comes first: the other cases assume a worker that acts on them.
    if is_worker_lost:
        return mark_lost(status)
    if halt is not None and status.look in {"running", "pausing", "cancelling"}:
        return mark_halting(status, halt.by)
    if halt is not None and status.look == "queued":
        return replace(status, note="no call starts until the halt is lifted")
    if status.look == "queued" and not worker_count:
        return replace(status, note="no worker is available")
    return _address_waiting(status, may_decide_ask=may_decide_ask)


def _address_waiting(status: StatusLine, *, may_decide_ask: bool) -> StatusLine:
    if status.look != "waiting" or not status.word.endswith("a person"):
        return status
    word = "Waiting for you" if may_decide_ask else "Waiting for another person"
    return replace(status, word=word, said=f"{word}: {status.note}")


# Lines of a list of runs.
#
# Most of a line is the run's head, which the store keeps beside the journal. The time at work,
# the cost and the button follow only from the journal. They are cached by seq, so that a list
# does not read a run again that has not changed.

CACHED_WORKS_MAX: Final = 8192
CACHED_WORKS_MAX_BYTES: Final = 16 * 1024 * 1024
"""The bound on the asks of the cached runs: they hold arguments, which may be long."""


class Work(Value, kw_only=True):
    """The part of a list line that is not in the run's head.

    `elapsed` grows while the run is `working`. With `plan_held`, `place` belongs to a held
    topic: the run works on a side question, not on a step of that plan.
    """

    elapsed: float = 0.0  # seconds at work
    working: bool = False
    cost_usd: float = 0.0
    place: str = ""  # "step 4 of 7", or "step 4"
    plan_held: bool = False
    yours: bool = False  # whether the run needs a person and the viewer may act on it
    sign: StatusLine
    quick: Button  # the one button of a list: pause, keep running or resume


class RunLine(Value, kw_only=True):
    """A run in a list."""

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


class _CachedWork(NamedTuple):
    """The facts of a run up to `seq` that hold for all viewers, and its open asks."""

    seq: Seq
    work: Work
    asks: tuple[Ask, ...]


class RunLineBuilder:
    """Builds list lines from rows of the store."""

    def __init__(self, mid: Midrun, views: RunViews) -> None:
        self._mid = mid
        self._views = views
        self._cache: LruDict[RunId, _CachedWork] = LruDict(
            max_items=CACHED_WORKS_MAX, max_weight=CACHED_WORKS_MAX_BYTES
        )

    async def build(self, rows: Sequence[RunRow], actor: Actor) -> tuple[RunLine, ...]:
        """Return the lines of `rows`, in their order, as `actor` sees them."""
        # Live workers and halts are read once for the whole list.
        store, now = self._mid.store, self._mid.now()
        holders, halts = await store.list_holders(), await store.list_halts()
        lines: list[RunLine] = []
        for row in rows:
            known = await self._read_work(row)
            lines.append(
                _make_line(row, _work_for_viewer(row, known, actor, holders, halts, now))
            )
        return tuple(lines)

    async def _read_work(self, row: RunRow) -> _CachedWork:
        known = self._cache.get(row.run)
        if known is None or known.seq < row.seq:
            try:
                state = await self._views.read_state(row.run)
            except UNREADABLE_ERRORS as error:
                return _CachedWork(row.seq, _unreadable_work(str(error)), ())
            asks = tuple(state.asks[number - 1] for number in state.open_asks)
            known = _CachedWork(state.seq, _make_work(state), asks)
            self._cache.put(row.run, known, weight=count_bytes(*asks))
        return known


def _unreadable_work(error: str) -> Work:
    """Return the work of an unreadable run; the list must still show the other runs."""
    note = shorten_to_line(error)
    disabled = Button(enabled=False, command="", label="Pause", consequence=note)
    return Work(sign=StatusLine(look="lost", word="Cannot be read", note=note), quick=disabled)


def _make_work(state: State) -> Work:
    return Work(
        elapsed=state.worked_micros / 1e6,
        working=state.is_leased,
        cost_usd=state.meter.spent.cost / 1e6,
        place=format_position(state.plan, state.meter.steps),
        plan_held=get_topic_plan(state) != state.plan,
        sign=build_status_line(state),
        quick=build_buttons(state)["pause"],
    )


def _make_line(row: RunRow, work: Work) -> RunLine:
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


def _work_for_viewer(
    row: RunRow,
    cached: _CachedWork,
    actor: Actor,
    holders: Collection[str],
    halts: Sequence[HaltRecord],
    now: Micros,
) -> Work:
    """Return the work as it is now, for `actor`.

    A worker that dies appends no entry. So the lease in the journal counts only while the
    store lists its holder as alive.
    """
    work, head = cached.work, row.head
    is_decider = any(may_decide(actor, ask) for ask in cached.asks)
    working = work.working and row.holder in holders
    status = status_for_viewer(
        work.sign,
        may_decide_ask=is_decider,
        is_worker_lost=is_worker_lost(row, cached.seq, holders),
        worker_count=len(holders),
        halt=next((h for h in halts if h.covers(row.run, head.agent, head.labels)), None),
    )
    yours = is_decider if head.attention == "ask" else actor.role != "viewer"
    since = max(now - row.changed_at, 0) / 1e6 * working  # seconds; 0 unless at work
    return replace(
        work,
        elapsed=work.elapsed + since,
        working=working,
        sign=status,
        yours=yours and bool(head.attention),
    )
