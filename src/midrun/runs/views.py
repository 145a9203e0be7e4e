"""Views of runs, computed from their states. A view is never stored.

`make_view` translates a `State` to the `RunView` that every surface shows. Two facts are not in
the journal: calls that do not respond, and whether the worker that holds the lease is alive.
`load_view` adds them.
"""

from collections.abc import Collection

from msgspec import structs

from midrun.agents.outcome import find_paused_reason, make_ask_views
from midrun.core.ids import CallId, Micros, Seq
from midrun.core.journaled_text import (
    format_frame_position,
    format_goal,
    format_outcome_phrase,
    shorten_to_line,
)
from midrun.core.state import CallStage, CallState, State
from midrun.core.stops import Meter, measure_caps
from midrun.core.transitions import list_possible_controls
from midrun.core.values import DRIVABLE_PHASES, Phase
from midrun.driver.journal_writer import load_run_state
from midrun.errors import JournalUnreadable
from midrun.ports.store import Page, RunQuery, RunRow, Store
from midrun.runs.turns import count_turns, format_json, format_progress, make_plan_rows
from midrun.runs.values import (
    ArtifactView,
    CallView,
    CapView,
    EffectView,
    FrameView,
    OpenAsk,
    PendingView,
    RunView,
    Usage,
)
from midrun.text.buttons import (
    CAP_SCALES,
    build_buttons,
    has_effect,
    mark_worker_lost,
    propose_raised_cap,
)
from midrun.text.status import StatusLine, build_status_line, mark_lost
from midrun.text.titles import format_title


def is_worker_lost(row: RunRow, seq: Seq, holders: Collection[str]) -> bool:
    """Return whether the worker that should drive the run, as of `seq`, is not alive any more.

    `holders` are the live workers. The row, the state and the holders are separate reads. If
    the row is at another seq than the state, an entry was appended between the reads, and the
    row's lease says nothing about that state; the reader of the view will get a newer one.
    """
    is_driven = row.head.leased and row.head.phase in DRIVABLE_PHASES
    return is_driven and row.seq == seq and row.holder not in holders


async def load_view(
    store: Store,
    state: State,
    *,
    max_effects: int | None = None,
    silent: Collection[CallId] = (),
) -> RunView:
    """Return the view of a run in `state`, with the facts that only the store has.

    These are its start, the hash of the chain, and whether the worker that holds the lease is
    alive. Only the newest `max_effects` effects are included; None includes all. `silent` are
    the calls that do not respond.
    """
    row = await store.get_row(state.run)
    head_hash = row.hash
    if row.seq != state.seq:  # the row, which is read later, may be ahead of the state
        (_, head_hash), *_ = await store.read_lines(
            state.run, after=Seq(state.seq - 1), limit=1
        )
    view = make_view(
        state,
        started_at=row.started_at,
        head_hash=head_hash,
        max_effects=max_effects,
        silent=silent,
    )
    # Most runs in a list are at rest: only a run with a lease costs the second query.
    if not row.head.leased or not is_worker_lost(row, view.seq, await store.list_holders()):
        return view
    return structs.replace(
        view, status=mark_lost(view.status), controls=mark_worker_lost(view.controls)
    )


def make_view(
    state: State,
    *,
    started_at: Micros,
    head_hash: bytes = b"",
    max_effects: int | None = None,
    silent: Collection[CallId] = (),
) -> RunView:
    """Return the view of a run in `state`; for the other arguments see `load_view`."""
    spec = state.run_started
    return RunView(
        run_id=state.run,
        seq=state.seq,
        control_rev=state.control_rev,
        agent=spec.agent,
        framework=spec.framework,
        undeclared_tools=spec.undeclared_tools,
        task=spec.task,
        phase=state.phase,
        status=build_status_line(state),
        phase_by=state.phase_by,
        reason=_find_reason(state),
        hold_until=state.pause.ends_at if state.pause is not None else None,
        hold_now=state.pause is not None and state.pause.now,
        step=state.meter.steps,
        position=format_progress(state),
        plan=state.plan,
        plan_rows=make_plan_rows(state),
        turns=count_turns(state),
        goal=format_goal(state),
        taken_over_by=state.taken_over_by,
        elapsed=state.worked_micros / 1e6,
        started_at=started_at,
        changed_at=state.at,
        usage=_make_usage(state.meter),
        stop="" if state.stop is None else str(state.stop),
        caps=list_caps(state),
        frames=_list_frames(state),
        frames_max=spec.frame_depth,
        asks=make_ask_views(state),
        pending=_list_pending(state),
        in_flight=_list_in_flight(state, silent),
        effects=_list_effects(state, max_effects),
        artifacts=list_artifacts(state),
        controls=build_buttons(state),
        allowed=list_possible_controls(state),
        output=state.output,
        value=state.value,
        error=state.error.error if state.error is not None else "",
        labels=spec.labels,
        speaker="" if state.speaker is None else state.speaker.agent,
        thread=spec.thread,
        parent="" if spec.parent is None else spec.parent.run,
        started_by=spec.by,
        head_hash=head_hash.hex(),
    )


def _make_usage(meter: Meter) -> Usage:
    spent, reserved = meter.spent, meter.reserved
    return Usage(
        tokens=spent.tokens,
        cost_usd=spent.cost / 1e6,
        reserved_tokens=reserved.tokens,
        reserved_usd=reserved.cost / 1e6,
        input_tokens=spent.input_tokens,
        output_tokens=spent.output_tokens,
        cached_tokens=spent.cached_tokens,
        thinking_tokens=spent.thinking_tokens,
        unpriced_tokens=spent.unpriced_tokens,
        held_tokens=meter.held_tokens,
    )


def _find_reason(state: State) -> str:
    if state.pause is not None:
        return state.pause.reason
    is_waiting = state.phase is Phase.WAITING and bool(state.open_asks)
    return find_paused_reason(state) if is_waiting else ""


def list_open_asks(state: State) -> tuple[OpenAsk, ...]:
    """Return the open asks of a run in `state`."""
    run, task = state.run, shorten_to_line(state.run_started.task)
    return tuple(
        OpenAsk(**structs.asdict(ask), ref=f"{run}-{ask.id}", run_id=run, task=task)
        for ask in make_ask_views(state)
    )


def list_caps(state: State) -> tuple[CapView, ...]:
    """Return the caps of a run in `state`, with the amounts used."""
    cap_views: list[CapView] = []
    for name, (used, bound) in measure_caps(state.stop, state.meter_with_time).items():
        scale = CAP_SCALES.get(name, 1)  # cost and time are stored in millionths
        cap = bound / scale
        cap_views.append(
            CapView(name=name, used=used / scale, cap=cap, raised=propose_raised_cap(name, cap))
        )
    return tuple(cap_views)


def _list_pending(state: State) -> tuple[PendingView, ...]:
    return tuple(
        PendingView(
            seq=p.seq,
            kind=p.kind,
            text=p.text,
            by=p.by,
            when=p.timing,
            urgency=p.urgency,
            files=p.files,
        )
        for p in state.pending
    )


def list_artifacts(state: State) -> tuple[ArtifactView, ...]:
    """Return all versions of the artifacts of a run, oldest first."""
    return tuple(
        ArtifactView(
            call=shown.call,
            name=shown.name,
            version=shown.version,
            file=shown.file,
            seq=shown.seq,
            at=shown.at,
        )
        for shown in state.artifacts
    )


def _list_frames(state: State) -> tuple[FrameView, ...]:
    return tuple(
        FrameView(
            id=frame.id,
            goal=frame.goal,
            position=format_frame_position(frame),
            held_at=Micros(frame.expires - state.run_started.frame_ttl),  # not stored itself
            expires_at=frame.expires,
        )
        for frame in state.frames
    )


def _list_in_flight(state: State, silent: Collection[CallId]) -> tuple[CallView, ...]:
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
            title=format_title(call.use),
        )
        for call in calls
    )
    if state.cleanup_in_flight is None:
        return in_flight
    # At most one undo or release runs at a time; `action` says which of the two.
    number, action = state.cleanup_in_flight
    call = state.calls[number - 1]
    attempt = call.get_cleanup(action).attempts
    cleanup = CallView(
        id=call.id,
        tool=call.use.tool,
        since=state.at,
        attempt=attempt,
        action=action,
        not_responding=call.id in silent,
        title=format_title(call.use),
    )
    return (*in_flight, cleanup)


def _list_effects(state: State, max_effects: int | None) -> tuple[EffectView, ...]:
    # `[0:]` is the whole list, `[-n:]` the newest n.
    calls = [call for call in state.calls if has_effect(call)][
        -max_effects if max_effects else 0 :
    ]
    return tuple(
        EffectView(
            id=call.id,
            tool=call.use.tool,
            args=shorten_to_line(format_json(call.use.args)),
            stage=call.stage,
            can_undo=call.traits.undo,
            holds_resource=call.traits.release,
            release=call.release.stage,
            undo=call.undo.stage,
            note=shorten_to_line(call.undo.error or call.error or _describe_outcome(call)),
            why=call.use.why,
            title=format_title(call.use),
        )
        for call in calls
    )


def _describe_outcome(call: CallState) -> str:
    return (
        ""
        if call.stage in {CallStage.DONE, CallStage.STARTED, CallStage.ASKING}
        else format_outcome_phrase(call)
    )


# Lists of runs. A run whose journal cannot be read is listed with the reason.

ASKS_PAGE_MAX_RUNS = 200
"""Runs per page when all runs with open asks are read."""


async def list_views(store: Store, query: RunQuery) -> Page[RunView]:
    """Return a page of views.

    Each run is read on its own, so the views of a page may be of different moments.
    """
    page = await store.list_runs(query)
    items = [await _load_view(store, row) for row in page.items]
    return Page(items=tuple(items), cursor=page.cursor)


async def _load_view(store: Store, row: RunRow) -> RunView:
    try:
        state = await load_run_state(store, row.run)
    except JournalUnreadable as error:
        return _make_unreadable_view(row, str(error))
    return await load_view(store, state)


def _make_unreadable_view(row: RunRow, error: str) -> RunView:
    """Return a view with the fields of the row only."""
    head = row.head
    return RunView(
        run_id=row.run,
        seq=row.seq,
        control_rev=row.seq,
        agent=head.agent,
        task=head.task,
        phase=head.phase,
        status=StatusLine(style="lost", word="Cannot be read", note=shorten_to_line(error)),
        step=head.step,
        started_at=row.started_at,
        changed_at=row.changed_at,
        error=error,
        labels=head.labels,
        thread=head.thread,
        parent=head.parent,
    )


async def list_all_asks(store: Store) -> tuple[OpenAsk, ...]:
    """Return the open asks of all runs whose journals can be read."""
    asks: tuple[OpenAsk, ...] = ()
    cursor = ""
    while True:
        page = await store.list_runs(
            RunQuery(attention=True, limit=ASKS_PAGE_MAX_RUNS, cursor=cursor)
        )
        for row in page.items:
            if row.head.asks:
                try:
                    asks += list_open_asks(await load_run_state(store, row.run))
                except JournalUnreadable:
                    continue
        cursor = page.cursor
        if not cursor:
            return asks
