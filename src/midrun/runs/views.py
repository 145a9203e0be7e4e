"""Views of runs, computed from their states. A view is never stored.

`make_view` translates a `State` to the `RunView` that every surface shows. Two facts are not in
the journal and are added here: calls that do not respond, and whether the worker that holds the
lease is alive.
"""

from collections.abc import Collection

from msgspec import structs

from midrun.agents.outcome import ask_views
from midrun.core.ids import CallId, Micros
from midrun.core.journaled_text import fate, goal, line, place, place_of
from midrun.core.state import Call, Stage, State
from midrun.core.stops import caps
from midrun.core.transitions import possible
from midrun.core.values import DRIVABLE
from midrun.driver.journal_writer import load
from midrun.errors import JournalCorrupt, JournalTooNew
from midrun.ports.store import Page, Query, RunRow, Store
from midrun.runs.turns import count, rows, text_of
from midrun.runs.values import (
    CallView,
    CapView,
    EffectView,
    FrameView,
    OpenAsk,
    PendingView,
    RunView,
    Usage,
)
from midrun.text.buttons import SCALES, acts, offers, raised_cap, unheard
from midrun.text.status import Sign, sign, unheard_of


async def heard(store: Store, row: RunRow, view: RunView) -> RunView:
    """Mark `view` as lost if the worker that holds the lease is not alive any more.

    The journal cannot say so: a worker that died appended nothing about it.
    """
    # A view older than the row stays as it is: an entry has just come, so a worker is alive.
    is_driven = row.head.leased and view.phase in DRIVABLE and view.seq == row.seq
    if not is_driven or row.holder in await store.holders():
        return view
    return structs.replace(view, sign=unheard_of(view.sign), controls=unheard(view.controls))


def view_of(
    state: State,
    *,
    started_at: Micros,
    recent: int | None = None,
    silent: Collection[CallId] = (),
) -> RunView:
    """Return the view of a run in `state`.

    Only the newest `max_effects` effects are included; None includes all. `silent` are the
    calls that do not respond.
    """
    spec, spent, reserved = state.started, state.meter.spent, state.meter.reserved
    return RunView(
        run_id=state.run,
        seq=state.seq,
        control_rev=state.control_rev,
        agent=spec.agent,
        task=spec.task,
        phase=state.phase,
        sign=sign(state),
        since_by=state.since_by,
        reason=state.hold.why if state.hold is not None else "",
        hold_until=state.hold.until if state.hold is not None else None,
        hold_now=state.hold is not None and state.hold.now,
        step=state.meter.steps,
        place=place(state.plan, state.meter.steps),
        plan=state.plan,
        rows=rows(state),
        turns=count(state),
        goal=goal(state),
        wheel=state.wheel,
        elapsed=state.worked / 1e6,
        started_at=started_at,
        changed_at=state.at,
        usage=Usage(
            tokens=spent.tokens,
            cost_usd=spent.cost / 1e6,
            reserved_tokens=reserved.tokens,
            reserved_usd=reserved.cost / 1e6,
            held_tokens=state.meter.held,
        ),
        stop="" if state.stop is None else str(state.stop),
        caps=_caps(state),
        frames=_frames(state),
        frames_max=spec.frame_depth,
        asks=ask_views(state),
        pending=_pending(state),
        in_flight=_in_flight(state, silent),
        effects=_effects(state, recent),
        controls=offers(state),
        allowed=possible(state),
        output=state.output,
        error=state.error.error if state.error is not None else "",
        labels=spec.labels,
        thread=spec.thread,
        parent="" if spec.parent is None else spec.parent.run,
    )


def open_asks(state: State) -> tuple[OpenAsk, ...]:
    """Return the open asks of a run in `state`."""
    run, task = state.run, line(state.started.task)
    return tuple(
        OpenAsk(**structs.asdict(ask), ref=f"{run}-{ask.id}", run_id=run, task=task)
        for ask in ask_views(state)
    )


def _caps(state: State) -> tuple[CapView, ...]:
    cap_views: list[CapView] = []
    for name, (used, bound) in caps(state.stop, state.metered).items():
        scale = SCALES.get(name, 1)  # cost and time are stored in millionths
        cap = bound / scale
        cap_views.append(
            CapView(name=name, used=used / scale, cap=cap, raised=raised_cap(name, cap))
        )
    return tuple(cap_views)


def _pending(state: State) -> tuple[PendingView, ...]:
    return tuple(
        PendingView(
            seq=p.seq, kind=p.kind, text=p.text, by=p.by, when=p.when, urgency=p.urgency
        )
        for p in state.pending
    )


def _frames(state: State) -> tuple[FrameView, ...]:
    return tuple(
        FrameView(
            id=frame.id,
            goal=frame.goal,
            place=place_of(frame),
            held_at=Micros(frame.expires - state.started.frame_ttl),  # not stored itself
            expires_at=frame.expires,
        )
        for frame in state.frames
    )


def _in_flight(state: State, silent: Collection[CallId]) -> tuple[CallView, ...]:
    calls = (state.calls[n - 1] for n in state.in_flight)
    in_flight = tuple(
        CallView(
            id=call.id,
            tool=call.use.tool,
            since=call.started_at,
            attempt=call.attempt,
            why=call.use.why,
            unstoppable=call.traits.unstoppable,
            not_responding=call.id in silent,
        )
        for call in calls
    )
    if state.cleaning is None:
        return in_flight
    # At most one undo or release runs at a time; `action` says which of the two.
    number, action = state.cleaning
    call = state.calls[number - 1]
    attempt = call.cleanup(action).attempts
    cleanup = CallView(
        id=call.id,
        tool=call.use.tool,
        since=state.at,
        attempt=attempt,
        form=action,
        not_responding=call.id in silent,
    )
    return (*in_flight, cleanup)


def _effects(state: State, recent: int | None) -> tuple[EffectView, ...]:
    # `[0:]` is the whole list, `[-n:]` the newest n.
    calls = [call for call in state.calls if acts(call)][-recent if recent else 0 :]
    return tuple(
        EffectView(
            id=call.id,
            tool=call.use.tool,
            args=line(text_of(call.use.args)),
            stage=call.stage,
            can_undo=call.traits.undo,
            held=call.traits.release,
            release=call.release.stage,
            undo=call.undo.stage,
            note=line(call.undo.error or call.error or _fate(call)),
            why=call.use.why,
        )
        for call in calls
    )


def _fate(call: Call) -> str:
    return "" if call.stage in {Stage.DONE, Stage.STARTED, Stage.ASKING} else fate(call)


# Lists of runs. A run whose journal cannot be read is listed with the reason.

MANY = 200
"""Runs per page when all runs with open asks are read."""


async def views(store: Store, query: Query) -> Page[RunView]:
    """Return a page of views.

    Each run is read on its own, so the views of a page may be of different moments.
    """
    page = await store.runs(query)
    items = [await _view(store, row) for row in page.items]
    return Page(items=tuple(items), cursor=page.cursor)


async def _view(store: Store, row: RunRow) -> RunView:
    try:
        state = await load(store, row.run)
    except (JournalCorrupt, JournalTooNew) as error:
        return _unread(row, str(error))
    return await heard(store, row, view_of(state, started_at=row.started_at))


def _unread(row: RunRow, error: str) -> RunView:
    """Return a view with the fields of the row only."""
    head = row.head
    return RunView(
        run_id=row.run,
        seq=row.seq,
        control_rev=row.seq,
        agent=head.agent,
        task=head.task,
        phase=head.phase,
        sign=Sign(look="lost", word="Cannot be read", note=line(error)),
        step=head.step,
        started_at=row.started_at,
        changed_at=row.changed_at,
        error=error,
        labels=head.labels,
        thread=head.thread,
        parent=head.parent,
    )


async def asked(store: Store) -> tuple[OpenAsk, ...]:
    """Return the open asks of all runs whose journals can be read."""
    asks: tuple[OpenAsk, ...] = ()
    cursor = ""
    while True:
        page = await store.runs(Query(attention=True, limit=MANY, cursor=cursor))
        for row in page.items:
            if row.head.asks:
                try:
                    asks += open_asks(await load(store, row.run))
                except (JournalCorrupt, JournalTooNew):
                    continue
        cursor = page.cursor
        if not cursor:
            return asks
