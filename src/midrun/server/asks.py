"""Handlers for asks: list the asks of all runs, and decide one.

A client sends only an id and a decision. The question, the call and its arguments are read from
the journal, so a client cannot approve anything but the recorded call.

A user may be asked about a run of another user (`audience="user:ann"`). Such a user sees the
ask, but neither the run nor whether other runs exist.
"""

from msgspec import structs
from starlette.responses import Response

from midrun.agents.outcome import AskView, ask_views
from midrun.core.decide.asks import may_decide
from midrun.core.ids import AskId, RunId
from midrun.core.state import Ask, State
from midrun.core.values import Value
from midrun.errors import ControlRefused, RunNotFound
from midrun.ports.store import Query
from midrun.runs.run import Run
from midrun.runs.values import Receipt
from midrun.server.problem_details import Problem, said
from midrun.server.request_context import Visit, answer, told
from midrun.server.run_views import UNREADABLE
from midrun.server.schemas import DecisionBody


class ShownAsk(AskView, kw_only=True):
    """An ask and its run. `ref` is unique over all runs."""

    ref: str
    run_id: RunId
    task: str
    may_decide: bool


class AskPage(Value, kw_only=True):
    """A page of open asks."""

    items: tuple[ShownAsk, ...]
    next_cursor: str


async def waiting(context: Visit) -> Response:
    """List the open asks of runs that the caller may see or is asked about."""
    return await _page(context, kinds=("question", "approval", "unsure", "child"))


async def approvals(context: Visit) -> Response:
    """List the open approvals."""
    return await _page(context, kinds=("approval",))


async def _page(context: Visit, kinds: tuple[str, ...]) -> Response:
    limit = context.number("limit", 50, least=1, most=200)
    cursor = context.request.query_params.get("cursor", "")
    query = Query(attention=True, decider=context.own_runs_only, limit=limit, cursor=cursor)
    # A page of runs, not of asks: each run has all its asks on the same page, so the number of
    # asks per page varies.
    page = await context.list_runs(query)
    found: list[ShownAsk] = []
    for row in page.items:
        if row.head.asks:
            sees = await context.lobby.views.sees(context.actor, row.run)
            try:
                state = await context.lobby.views.state(row.run)
            except UNREADABLE:
                continue  # one damaged journal must not hide the other asks
            found += [
                shown
                for view in ask_views(state)
                if view.kind in kinds and (sees or _addressed(context, view.audience))
                for shown in [_shown(context, state, view)]
            ]
    return answer(AskPage(items=tuple(found), next_cursor=page.cursor))


def _shown(context: Visit, state: State, view: AskView) -> ShownAsk:
    ask = state.ask(view.id)
    assert ask is not None  # the view is of this state
    return ShownAsk(
        **structs.asdict(view),
        ref=f"{state.run}-{view.id}",
        run_id=state.run,
        task=state.started.task,
        may_decide=may_decide(context.actor, ask),
    )


def _addressed(context: Visit, audience: str) -> bool:
    return audience == f"user:{context.actor.name}"


async def decide(context: Visit) -> Response:
    """Decide an ask; a second decision is refused and names the first actor."""
    name, _, ask_id = context.path["ask"].rpartition("-")
    if not name:
        problem = "Cannot find the ask: the path must end with its `ref`. See /v1/asks."
        raise Problem("ask_not_found", 404, problem)
    run_id, server = RunId(name), context.lobby
    sees = await server.views.sees(context.actor, run_id)
    try:
        state = await server.views.state(run_id)
    except UNREADABLE:
        if not sees:  # the caller must not learn that the run exists
            raise RunNotFound(run_id) from None
        raise
    ask = state.ask(ask_id)
    # The same answer for a run that does not exist, for one of another user, and for an ask of
    # such a run that is addressed to others. Whether this actor may decide is for the core.
    if not sees and (ask is None or not _addressed(context, ask.audience)):
        raise RunNotFound(run_id)
    run = await server.mid.get(run_id)
    body = await context.body(DecisionBody)
    _check_fit(body)
    try:
        receipt = await _decided(context, run, AskId(ask_id), body)
    except ControlRefused as refusal:
        # The core refuses any closed ask alike. HTTP tells 410 Gone (expired) from 409.
        closed = (await server.views.state(run_id)).ask(ask_id)
        if refusal.reason == "ask_closed" and closed is not None and _expired(closed):
            raise said(refusal, "ask_expired", 410) from None
        raise
    if not sees:  # asked about one call of another user's run: no view of that run
        return answer({"receipt": receipt}, 202)
    return await told(context, run, receipt)


def _expired(ask: Ask) -> bool:
    # Open, and yet refused as closed: its time is up, and the worker has not recorded it yet.
    return ask.closed in {"", "expired"}


def _check_fit(body: DecisionBody) -> None:
    """Refuse a field that does not belong to the decision, rather than ignore it.

    Raises:
        HttpProblem: 422.
    """
    if (body.decision == "edit") == (body.args is None):
        problem = (
            "Cannot read the decision: `args` belongs to the decision `edit`, and `edit` "
            "needs it."
        )
        raise Problem("invalid_body", 422, problem)
    if body.value is not None and body.decision != "answer":
        problem = "Cannot read the decision: `value` belongs to the decision `answer` only."
        raise Problem("invalid_body", 422, problem)


async def _decided(context: Visit, run: Run, ask: AskId, body: DecisionBody) -> Receipt:
    asking = context.asking(body.comment)
    match body.decision:
        case "approve":
            return await run.approve(ask=ask, **asking)
        case "edit":
            return await run.approve(ask=ask, args=body.args, **asking)
        case "decline":
            return await run.decline(
                body.comment,
                ask=ask,
                actor=context.actor,
                request_id=context.request_id(),
                seen=context.seen(),
            )
        case "answer":
            return await run.answer(body.value, ask=ask, **asking)
