"""The viewer's overlay of a run, and the rows of a list.

The view of a run follows from its journal and is the same for all viewers. The overlay has the
facts that no journal has: the viewer's rights, the live workers, the halt that covers the run,
and the current time. `Overlays` builds it for one run, and the rows of a list, which are the
head of each run with the part of the overlay that a list shows.
"""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from midrun.core.decide.asks import may_decide
from midrun.core.entries import Record, RequestEntry, RunCancelled, RunPaused
from midrun.core.ids import Micros, RunId, Seq
from midrun.core.journaled_text import shorten_to_line
from midrun.core.lru import LruDict
from midrun.core.state import Ask, State
from midrun.core.values import Actor, Phase
from midrun.errors import JournalUnreadable
from midrun.ports.store import HaltRecord, RunRow
from midrun.runs.midrun import Midrun
from midrun.runs.turns import format_progress
from midrun.runs.views import is_worker_lost
from midrun.runs.wire import RunListItem, RunOverlay
from midrun.server.run_views import RunViews, count_bytes
from midrun.text.buttons import Button, build_buttons, mark_worker_lost
from midrun.text.phrases import preview_output
from midrun.text.status import StatusLine, build_status_line, mark_halting, mark_lost

HOLDERS_MAX: Final = 4096
"""The number of lease holders whose last sign of life is remembered."""

CACHED_FACTS_MAX: Final = 8192
CACHED_FACTS_MAX_BYTES: Final = 16 * 1024 * 1024
"""The bound on the asks of the cached runs: they hold arguments, which may be long."""

_PHASE_SEARCH_MAX_ENTRIES: Final = 64
"""The number of entries to search, after a request, for the entry that completed it."""

_VIEWERS_CANNOT_CONTROL: Final = (
    "You may only view this run. Its owner and operators control it."
)
_OPERATORS_ONLY: Final = "Only an operator may do this."


class HolderLastSeen:
    """Remembers when each lease holder (a worker process) was last seen alive.

    The store lists only the holders that are alive now. A holder that this server has never
    seen alive counts as silent from the first query on. The true silence is longer, so the
    reported time is a lower bound.
    """

    def __init__(self) -> None:
        self._last_seen_at: LruDict[str, Micros] = LruDict(max_items=HOLDERS_MAX)

    def silent_since(self, holder: str, alive: Collection[str], now: Micros) -> Micros:
        """Return since when `holder` has been silent; `now` if it is alive."""
        for each in (*alive, holder):
            if each in alive or each not in self._last_seen_at:
                self._last_seen_at.put(each, now)
        return self._last_seen_at.get(holder) or now


class _ListFacts(NamedTuple):
    """The facts of a run up to `seq` that a list shows and that are not in the run's row."""

    seq: Seq
    status: StatusLine
    button: Button
    asks: tuple[Ask, ...] = ()  # the open ones
    worked_s: float = 0.0
    is_leased: bool = False
    cost_usd: float = 0.0
    position: str = ""
    output: str = ""


class Overlays:
    """Builds overlays and list rows for one viewer at this moment."""

    def __init__(self, mid: Midrun, views: RunViews) -> None:
        self._mid = mid
        self._views = views
        self._holder_last_seen = HolderLastSeen()
        self._list_facts: LruDict[RunId, _ListFacts] = LruDict(
            max_items=CACHED_FACTS_MAX, max_weight=CACHED_FACTS_MAX_BYTES
        )

    async def build(self, state: State, actor: Actor) -> RunOverlay:
        """Return the overlay of a run in `state`, as `actor` sees it now."""
        store, now = self._mid.store, self._mid.now()
        row, holders = await store.get_row(state.run), await store.list_holders()
        halt = None if state.has_ended else _find_halt(row, await store.list_halts())
        lost = is_worker_lost(row, state.seq, holders)
        working = state.is_leased and row.holder in holders
        entered = await self._find_phase_entry(state)
        open_asks = [state.asks[number - 1] for number in state.open_asks]
        decidable = tuple(ask.id for ask in open_asks if may_decide(actor, ask))
        return RunOverlay(
            seq=state.seq,
            now=now,
            you=actor.name,
            role=actor.role,
            status=_address_status(
                build_status_line(state),
                may_decide_ask=bool(decidable),
                worker_lost=lost,
                worker_count=len(holders),
                halt=halt,
            ),
            controls=build_permitted_buttons(state, actor, worker_lost=lost),
            decidable_asks=decidable,
            elapsed=state.worked_micros / 1e6 + max(now - state.at, 0) / 1e6 * working,
            working=working,
            worker_lost=lost,
            worker_silent_since=self._holder_last_seen.silent_since(row.holder, holders, now),
            worker_count=len(holders),
            phase_at=row.started_at if entered is None else entered.at,
            phase_reason=_describe_reason(entered),
            halt=halt,
        )

    async def _find_phase_entry(self, state: State) -> Record | None:
        """Return the entry by which the run entered its phase; None if it began there.

        `state.phase_since` is the seq of the request. A pause or a cancel is requested first
        and completed by a later entry (`RunPaused`, `RunCancelled`); then that entry counts.
        """
        if not state.phase_since:
            return None
        found = await self._mid.store.read(
            state.run, after=Seq(state.phase_since - 1), limit=_PHASE_SEARCH_MAX_ENTRIES
        )
        if state.phase in {Phase.PAUSED, Phase.CANCELLED}:
            completed = [r for r in found if isinstance(r.entry, RunPaused | RunCancelled)]
            return completed[-1] if completed else found[0]
        return found[0]

    async def build_items(
        self, rows: Sequence[RunRow], actor: Actor
    ) -> tuple[RunListItem, ...]:
        """Return the list items of `rows`, in their order, as `actor` sees them now."""
        # Live workers and halts are read once for the whole list.
        store, now = self._mid.store, self._mid.now()
        holders, halts = await store.list_holders(), await store.list_halts()
        return tuple(
            [
                _make_item(row, await self._read_facts(row), actor, holders, halts, now)
                for row in rows
            ]
        )

    async def _read_facts(self, row: RunRow) -> _ListFacts:
        # Cached by seq, so that a list does not read a run again that has not changed.
        cached = self._list_facts.get(row.run)
        if cached is None or cached.seq < row.seq:
            try:
                state = await self._views.read_state(row.run)
            except JournalUnreadable as error:
                return _make_unreadable_facts(row, str(error))
            cached = _ListFacts(
                seq=state.seq,
                status=build_status_line(state),
                button=build_buttons(state)["pause"],
                asks=tuple(state.asks[number - 1] for number in state.open_asks),
                worked_s=state.worked_micros / 1e6,
                is_leased=state.is_leased,
                cost_usd=state.meter.spent.cost / 1e6,
                position=format_progress(state),
                output=preview_output(state.output, state.value),
            )
            self._list_facts.put(row.run, cached, weight=count_bytes(*cached.asks))
        return cached


def _find_halt(row: RunRow, halts: Sequence[HaltRecord]) -> HaltRecord | None:
    """Return the oldest halt that covers the run."""
    head = row.head
    return next((h for h in halts if h.covers(row.run, head)), None)


def _describe_reason(record: Record | None) -> str:
    entry = record.entry if record is not None else None
    return entry.reason if isinstance(entry, RequestEntry) else ""


def _address_status(
    status: StatusLine,
    *,
    may_decide_ask: bool,
    worker_lost: bool,
    worker_count: int,
    halt: HaltRecord | None,
) -> StatusLine:
    """Adjust a run's status line for one viewer at this moment.

    `may_decide_ask`: the viewer may decide the open ask. `worker_lost`: the worker with the
    lease is silent. `worker_count`: live workers. `halt`: the halt that covers the run, if any.
    """
    # A lost worker comes first: the other cases assume a worker that acts on them.
    if worker_lost:
        return mark_lost(status)
    if halt is not None and status.style in {"running", "pausing", "cancelling"}:
        return mark_halting(status, halt.by)
    if halt is not None and status.style == "queued":
        return replace(status, note="no call starts until the halt is lifted")
    if status.style == "queued" and not worker_count:
        return replace(status, note="no worker is available")
    if status.style != "waiting" or not status.word.endswith("a person"):
        return status
    word = "Waiting for you" if may_decide_ask else "Waiting for another person"
    return replace(status, word=word, announcement=f"{word}: {status.note}")


def build_permitted_buttons(
    state: State, actor: Actor, *, worker_lost: bool = False
) -> dict[str, Button]:
    """Return the buttons of a run in `state` for `actor`, each with its consequence now."""
    buttons = build_buttons(state)
    return {
        name: _permit_button(actor, button)
        for name, button in (mark_worker_lost(buttons) if worker_lost else buttons).items()
    }


def _permit_button(actor: Actor, button: Button) -> Button:
    """Disable a button that the server would refuse to this actor."""
    if not button.enabled or actor.role == "operator":
        return button
    if actor.role == "viewer":
        return replace(button, enabled=False, consequence=_VIEWERS_CANNOT_CONTROL)
    # The same rules as in `routes.py` and `controls.resume`: only operators raise caps and
    # retry an undo.
    if button.caps or button.command == "retry_undo":
        return replace(button, enabled=False, consequence=_OPERATORS_ONLY)
    return button


def _make_unreadable_facts(row: RunRow, error: str) -> _ListFacts:
    """Return the facts of an unreadable run; the list must still show the other runs."""
    note = shorten_to_line(error)
    disabled = Button(enabled=False, command="", label="Pause", consequence=note)
    return _ListFacts(
        row.seq, StatusLine(style="lost", word="Cannot be read", note=note), disabled
    )


def _make_item(
    row: RunRow,
    facts: _ListFacts,
    actor: Actor,
    holders: Collection[str],
    halts: Sequence[HaltRecord],
    now: Micros,
) -> RunListItem:
    """Return a run as `actor` sees it in a list now.

    A worker that dies appends no entry. So the lease in the journal counts only while the
    store lists its holder as alive.
    """
    head = row.head
    is_decider = any(may_decide(actor, ask) for ask in facts.asks)
    working = facts.is_leased and row.holder in holders
    may_act = is_decider if head.attention == "ask" else actor.role != "viewer"
    return RunListItem(
        run_id=row.run,
        seq=row.seq,
        head_hash=row.hash.hex(),
        phase=head.phase,
        agent=head.agent,
        task=head.task,
        thread=head.thread,
        labels=head.labels,
        parent=head.parent,
        attention=head.attention,
        asks=head.asks,
        step=head.step,
        holder=row.holder,
        epoch=row.epoch,
        wake_at=head.wake_at,
        started_at=row.started_at,
        changed_at=row.changed_at,
        status=_address_status(
            facts.status,
            may_decide_ask=is_decider,
            worker_lost=is_worker_lost(row, facts.seq, holders),
            worker_count=len(holders),
            halt=_find_halt(row, halts),
        ),
        button=facts.button,
        elapsed=facts.worked_s + max(now - row.changed_at, 0) / 1e6 * working,
        working=working,
        cost_usd=facts.cost_usd,
        position=facts.position,
        output=facts.output,
        needs_you=may_act and bool(head.attention),
    )
