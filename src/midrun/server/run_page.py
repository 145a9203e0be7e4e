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
from midrun.core.entries import Asked, Record, RunCancelled, RunPaused
from midrun.core.ids import Micros, Seq
from midrun.core.journaled_text import own_plan
from midrun.core.state import State
from midrun.core.values import DRIVABLE, Actor, Phase, Value
from midrun.ports.store import Halt
from midrun.runs.turns import TurnView, count, turns
from midrun.runs.values import RunView
from midrun.runs.views import view_of
from midrun.server.request_context import Visit, answer, etag
from midrun.server.run_views import seen_as
from midrun.text.buttons import Offer, unheard

TURNS: Final = 40
"""The number of turns on the first page; the client pages back for earlier ones."""

EFFECTS: Final = 100
"""The number of effects in the view; the report has all."""

_SOON: Final = 64
"""The number of entries to search, after a request, for the entry that completed it."""

_NOT_YOURS: Final = "You may only view this run. Its owner and operators control it."
_FOR_OPERATORS: Final = "Only an operator may do this."


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
    thought: the current side question has no plan of its own.
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
    halt: Halt | None = None


class Turns(Value, kw_only=True):
    """A page of turns, oldest first; `total` counts all turns of the run."""

    items: tuple[TurnView, ...]
    total: int


async def seen(context: Visit) -> Response:
    """Show a run as of now, with the caller's buttons and whether it is driven."""
    run, store = await context.run(), context.lobby.store
    state = await context.lobby.views.state(run.id)
    row, holders, now = await store.row(run.id), await store.holders(), context.lobby.mid.now()
    silent = context.lobby.mid.silent_calls(run.id)
    view = view_of(state, started_at=row.started_at, recent=EFFECTS, silent=silent)
    # The journal says that a worker holds the lease, the store whether that worker is alive.
    # `lost` is the difference, in phases in which a worker has something to do.
    driven = row.holder in holders
    lost = state.leased and not driven and state.phase in DRIVABLE
    working = state.leased and driven
    began, halt = await _began(context, state), await _halt(context, state)
    asks = tuple(_seen(context.actor, state, ask) for ask in view.asks)
    # The overlay replaces these fields of the view; all others are the same for every viewer.
    fields = structs.asdict(view) | {
        "asks": asks,
        "controls": _permitted(
            context.actor, unheard(view.controls) if lost else view.controls
        ),
        "sign": seen_as(
            view.sign,
            theirs=any(ask.may_decide for ask in asks),
            lost=lost,
            workers=len(holders),
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
        since_reason=_reason(began),
        working=working,
        lost=lost,
        silent_since=context.lobby.hearing.silent_since(row.holder, holders, now),
        workers=len(holders),
        plan_held=own_plan(state) != state.plan,
        halt=halt,
    )
    return answer(page, headers={"ETag": etag(page)})


async def _halt(context: Visit, state: State) -> Halt | None:
    """Return the oldest halt that covers the run; None if the run has ended."""
    if state.ended:
        return None
    spec, halts = state.started, await context.lobby.store.halts()
    return next((h for h in halts if h.covers(state.run, spec.agent, spec.labels)), None)


async def _began(context: Visit, state: State) -> Record | None:
    """Return the entry by which the run entered its phase; None if it began there.

    `state.phase_since` is the seq of the request. A pause or a cancel is requested first and
    completed by a later entry (`RunPaused`, `RunCancelled`); then that entry counts.
    """
    if not state.since:
        return None
    found = await context.lobby.store.read(state.run, after=Seq(state.since - 1), limit=_SOON)
    if state.phase in {Phase.PAUSED, Phase.CANCELLED}:
        completed = [r for r in found if isinstance(r.entry, RunPaused | RunCancelled)]
        return completed[-1] if completed else found[0]
    return found[0]


def _reason(began: Record | None) -> str:
    entry = began.entry if began is not None else None
    return entry.reason if isinstance(entry, Asked) else ""


def _permitted(actor: Actor, offers: dict[str, Offer]) -> dict[str, Offer]:
    """Disable the buttons that the server would refuse to this actor."""
    return {name: _of(actor, offer) for name, offer in offers.items()}


def _of(actor: Actor, offer: Offer) -> Offer:
    if not offer.enabled or actor.role == "operator":
        return offer
    if actor.role == "viewer":
        return replace(offer, enabled=False, consequence=_NOT_YOURS)
    # The same rules as in `routes.py` and `controls.resume`: only operators raise caps and
    # retry an undo.
    if offer.caps or offer.command == "retry_undo":
        return replace(offer, enabled=False, consequence=_FOR_OPERATORS)
    return offer


def _seen(actor: Actor, state: State, view: AskView) -> SeenAsk:
    ask = state.ask(view.id)
    assert ask is not None  # the view is of this state
    return SeenAsk(
        **structs.asdict(view),
        ref=f"{state.run}-{view.id}",
        may_decide=may_decide(actor, ask),
    )


async def looked(context: Visit) -> Response:
    """List the turns of a run: those after the first `after`, by default the newest."""
    run = await context.run()
    state = await context.lobby.views.state(run.id)
    total = count(state)
    limit = context.number("limit", TURNS, least=1, most=200)
    after = context.number("after", max(total - limit, 0), least=0, most=2**53 - 1)
    return answer(Turns(items=turns(state, after, limit), total=total))
