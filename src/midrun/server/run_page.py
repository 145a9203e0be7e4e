"""A run as its page shows it to one viewer, at this moment.

The view of the journal is the same for all viewers. The handler adds the viewer's overlay,
which is not in the journal: the buttons that this actor may press, whether the worker is
silent, the halt that covers the run, and the current time.
"""

from typing import Final

from msgspec import structs
from msgspec.structs import replace
from starlette.responses import Response

from midrun.agents.outcome import AskView
from midrun.core.decide.asks import may_decide
from midrun.core.entries import Record, RequestEntry, RunCancelled, RunPaused
from midrun.core.ids import Micros, Seq
from midrun.core.journaled_text import get_topic_plan
from midrun.core.state import State
from midrun.core.values import Actor, Phase, Value
from midrun.ports.store import HaltRecord
from midrun.runs.turns import TurnView, count_turns
from midrun.runs.turns import list_turns as list_turn_views
from midrun.runs.values import RunView
from midrun.runs.views import is_worker_lost, make_view
from midrun.server.request_context import RequestContext, json_response, make_etag
from midrun.server.run_views import status_for_viewer
from midrun.text.buttons import Button, mark_worker_lost

TURNS_PER_PAGE: Final = 40
"""The number of turns on the first page; the client pages back for earlier ones."""

EFFECTS_MAX: Final = 100
"""The number of effects in the view; the report has all."""

_PHASE_SEARCH_MAX_ENTRIES: Final = 64
"""The number of entries to search, after a request, for the entry that completed it."""

_VIEWERS_CANNOT_CONTROL: Final = (
    "You may only view this run. Its owner and operators control it."
)
_OPERATORS_ONLY: Final = "Only an operator may do this."


class SeenAsk(AskView, kw_only=True):
    """An ask. `ref` is unique over all runs; `may_decide` is for the viewer."""

    ref: str
    may_decide: bool


class SeenRun(RunView, kw_only=True):
    """A run as the viewer sees it at `now`, with the viewer's `asks` and `controls`.

    `effects` has only the newest. `elapsed` is as of `now` and grows while the run is
    `working`. `lost` is true if a worker holds the lease and its heartbeat is overdue;
    `silent_since` is a lower bound of that time. `workers` is the number of live workers.
    `halt` is the halt that covers the run, if any, also before the worker has noticed it and
    when no worker drives the run. With `plan_held`, the plan and `place` belong to a held
    topic: the current side question has no plan of its own.
    """

    asks: tuple[SeenAsk, ...] = ()
    you: str
    role: str
    now: Micros
    since_at: Micros
    since_reason: str
    working: bool
    lost: bool
    silent_since: Micros
    workers: int
    plan_held: bool
    halt: HaltRecord | None = None


class Turns(Value, kw_only=True):
    """A page of turns, oldest first; `total` counts all turns of the run."""

    items: tuple[TurnView, ...]
    total: int


async def show_run_page(context: RequestContext) -> Response:
    """Show a run as of now, with the caller's buttons and whether it is driven."""
    run, store = await context.find_run(), context.server.store
    state = await context.server.views.read_state(run.id)
    row, holders, now = (
        await store.get_row(run.id),
        await store.list_holders(),
        context.server.mid.now(),
    )
    silent = context.server.mid.silent_calls(run.id)
    view = make_view(state, started_at=row.started_at, max_effects=EFFECTS_MAX, silent=silent)
    lost = is_worker_lost(row, state.seq, holders)
    working = state.is_leased and row.holder in holders
    began, halt = await _find_phase_entry(context, state), await _find_halt(context, state)
    asks = tuple(_show_ask(context.actor, state, ask) for ask in view.asks)
    # The overlay replaces these fields of the view; all others are the same for every viewer.
    fields = structs.asdict(view) | {
        "asks": asks,
        "controls": _permit_buttons(
            context.actor, mark_worker_lost(view.controls) if lost else view.controls
        ),
        "sign": status_for_viewer(
            view.sign,
            may_decide_ask=any(ask.may_decide for ask in asks),
            is_worker_lost=lost,
            worker_count=len(holders),
            halt=halt,
        ),
        "elapsed": view.elapsed + max(now - state.at, 0) / 1e6 * working,
    }
    page = SeenRun(
        **fields,
        you=context.actor.name,
        role=context.actor.role,
        now=now,
        since_at=view.started_at if began is None else began.at,
        since_reason=_reason_of(began),
        working=working,
        lost=lost,
        silent_since=context.server.holder_last_seen.silent_since(row.holder, holders, now),
        workers=len(holders),
        plan_held=get_topic_plan(state) != state.plan,
        halt=halt,
    )
    return json_response(page, headers={"ETag": make_etag(page)})


async def _find_halt(context: RequestContext, state: State) -> HaltRecord | None:
    """Return the oldest halt that covers the run; None if the run has ended."""
    if state.has_ended:
        return None
    spec, halts = state.run_started, await context.server.store.list_halts()
    return next((h for h in halts if h.covers(state.run, spec.agent, spec.labels)), None)


async def _find_phase_entry(context: RequestContext, state: State) -> Record | None:
    """Return the entry by which the run entered its phase; None if it began there.

    `state.phase_since` is the seq of the request. A pause or a cancel is requested first and
    completed by a later entry (`RunPaused`, `RunCancelled`); then that entry counts.
    """
    if not state.phase_since:
        return None
    found = await context.server.store.read(
        state.run, after=Seq(state.phase_since - 1), limit=_PHASE_SEARCH_MAX_ENTRIES
    )
    if state.phase in {Phase.PAUSED, Phase.CANCELLED}:
        completed = [r for r in found if isinstance(r.entry, RunPaused | RunCancelled)]
        return completed[-1] if completed else found[0]
    return found[0]


def _reason_of(record: Record | None) -> str:
    entry = record.entry if record is not None else None
    return entry.reason if isinstance(entry, RequestEntry) else ""


def _permit_buttons(actor: Actor, buttons: dict[str, Button]) -> dict[str, Button]:
    """Disable the buttons that the server would refuse to this actor."""
    return {name: _permit_button(actor, offer) for name, offer in buttons.items()}


def _permit_button(actor: Actor, button: Button) -> Button:
    if not button.enabled or actor.role == "operator":
        return button
    if actor.role == "viewer":
        return replace(button, enabled=False, consequence=_VIEWERS_CANNOT_CONTROL)
    # The same rules as in `routes.py` and `controls.resume`: only operators raise caps and
    # retry an undo.
    if button.caps or button.command == "retry_undo":
        return replace(button, enabled=False, consequence=_OPERATORS_ONLY)
    return button


def _show_ask(actor: Actor, state: State, view: AskView) -> SeenAsk:
    ask = state.find_ask(view.id)
    assert ask is not None  # the view is of this state
    return SeenAsk(
        **structs.asdict(view),
        ref=f"{state.run}-{view.id}",
        may_decide=may_decide(actor, ask),
    )


async def list_turns(context: RequestContext) -> Response:
    """List the turns of a run: those after the first `after`, by default the newest."""
    run = await context.find_run()
    state = await context.server.views.read_state(run.id)
    total = count_turns(state)
    limit = context.query_number("limit", TURNS_PER_PAGE, minimum=1, maximum=200)
    after = context.query_number("after", max(total - limit, 0), minimum=0, maximum=2**53 - 1)
    return json_response(Turns(items=list_turn_views(state, after, limit), total=total))
