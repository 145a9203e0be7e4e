"""Seeing: a run as its page shows it, to one person, at this moment.

What the journal says is the same for everybody. Who may press what, whether anybody hears from
the run's driver, and what time it is, are not in the journal.
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
"""How many turns are shown at first; earlier ones are a page away."""

EFFECTS: Final = 100
"""How many effects are shown; the report has all."""

_SOON: Final = 64
"""Among this many entries after somebody asked for it, a phase has come about."""

_NOT_YOURS: Final = "You may look at this run; controlling it is for its owner and operators."
_FOR_OPERATORS: Final = "Only an operator may do this."


class SeenAsk(AskView, kw_only=True):
    """An ask; `ref` names it over all runs, `may_decide` is for whoever looks."""

    ref: str
    may_decide: bool


class SeenRun(RunView, kw_only=True):
    """A run as whoever looks sees it at `now`. `asks` and `controls` are theirs.

    Of the `effects` it has the newest.

    `elapsed` is as of `now`, and goes on while it is `working`. `lost` says that a driver has
    the run and has not been heard of in time, and `silent_since`, since when at least;
    `workers`, how many drivers there are. `halt` is the latch that the run is under, if any:
    also before its driver has met it, and when nobody drives it. With `plan_held` the plan, and
    so `place`, is that of a held thought: the side question that is at hand made none.
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
    """Some turns, the oldest first, of `total`."""

    items: tuple[TurnView, ...]
    total: int


async def seen(context: Visit) -> Response:
    """Show a run to the caller, as of now: with their buttons, and whether it is driven."""
    run, store = await context.run(), context.lobby.store
    state = await context.lobby.views.state(run.id)
    row, holders, now = await store.row(run.id), await store.holders(), context.lobby.mid.now()
    silent = context.lobby.mid.silent_calls(run.id)
    view = view_of(state, started_at=row.started_at, recent=EFFECTS, silent=silent)
    driven = row.holder in holders
    lost = state.leased and not driven and state.phase in DRIVABLE
    working = state.leased and driven
    began, halt = await _began(context, state), await _halt(context, state)
    asks = tuple(_seen(context.actor, state, ask) for ask in view.asks)
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
    made = SeenRun(
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
    return answer(made, headers={"ETag": etag(made)})


async def _halt(context: Visit, state: State) -> Halt | None:
    """Return the oldest latch that the run is under, unless it is over."""
    if state.ended:
        return None
    spec, halts = state.started, await context.lobby.store.halts()
    return next((h for h in halts if h.covers(state.run, spec.agent, spec.labels)), None)


async def _began(context: Visit, state: State) -> Record | None:
    """Return the entry by which the run came into its phase; None if it began there.

    A pause is asked for, and then comes about: what counts is when it did.
    """
    if not state.since:
        return None
    found = await context.lobby.store.read(state.run, after=Seq(state.since - 1), limit=_SOON)
    if state.phase in {Phase.PAUSED, Phase.CANCELLED}:
        made = [r for r in found if isinstance(r.entry, RunPaused | RunCancelled)]
        return made[-1] if made else found[0]
    return found[0]


def _reason(began: Record | None) -> str:
    entry = began.entry if began is not None else None
    return entry.reason if isinstance(entry, Asked) else ""


def _permitted(actor: Actor, offers: dict[str, Offer]) -> dict[str, Offer]:
    """Return the offers as this actor has them: a button that would be refused is not live."""
    return {name: _of(actor, offer) for name, offer in offers.items()}


def _of(actor: Actor, offer: Offer) -> Offer:
    if not offer.enabled or actor.role == "operator":
        return offer
    if actor.role == "viewer":
        return replace(offer, enabled=False, consequence=_NOT_YOURS)
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
    """List what the agent said and did: turns after the first `after`, else the newest."""
    run = await context.run()
    state = await context.lobby.views.state(run.id)
    total = count(state)
    limit = context.number("limit", TURNS, least=1, most=200)
    after = context.number("after", max(total - limit, 0), least=0, most=2**53 - 1)
    return answer(Turns(items=turns(state, after, limit), total=total))
