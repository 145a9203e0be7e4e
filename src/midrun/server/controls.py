"""Handlers for controls, which call the method of `Run`, and for asks.

`send_control` is the handler of every control of `CONTROL_SPECS`: find the run (404 if the
caller may not see it), decode the body, send the control with the caller's actor, request id
and revision, and return the receipt with the run. Only decisions about asks have a handler of
their own. The core decides; its refusal (`ControlRefused`) becomes a problem in `App`.
"""

from msgspec.structs import replace
from starlette.responses import Response

from midrun.core.decide.asks import may_decide
from midrun.core.ids import RunId
from midrun.core.state import Ask, State
from midrun.errors import ControlRefused, JournalUnreadable, RunNotFound
from midrun.ports.store import RunQuery
from midrun.runs.control_bodies import ControlBody, DecisionBody, ResumeBody
from midrun.runs.control_specs import DECISIONS, ControlSpec, ControlTarget
from midrun.runs.validation import REASON_MAX_CHARS, ControlOptions
from midrun.runs.values import OpenAsk, Receipt
from midrun.runs.views import list_open_asks
from midrun.runs.wire import AskPage, ControlReply
from midrun.server.problem_details import HttpProblem, make_problem
from midrun.server.request_context import (
    RequestContext,
    json_response,
    make_command_receipt,
    make_control_response,
)


async def send_control(spec: ControlSpec, context: RequestContext) -> Response:
    """Send a control to the run that the path names."""
    run = await context.find_run()
    target = ControlTarget(run, _find_part(context))
    body = await _read_body(spec, context)
    if isinstance(body, ResumeBody) and body.caps.list_set_caps():
        _check_may_raise_caps(context)
    if spec.route.if_match == "required":
        context.read_if_match(required=True)

    async def send(options: ControlOptions) -> Receipt:
        return await spec.send(target, body, options)

    options = context.make_control_options(body.reason)
    if spec.route.is_queued:
        receipt = await context.send_with_pending_limit(run.id, options, send)
    else:
        receipt = await send(options)
    return await make_control_response(context, run, receipt)


def _find_part(context: RequestContext) -> str:
    """Return the part of the run that the path names; "" if it names none.

    Raises:
        HttpProblem: 404, the id of a command has another form than `cmd_41`.
    """
    command = context.path.get("command")
    if command is None:
        return context.path.get("frame", "")
    name, _, seq = command.partition("_")
    if name != "cmd" or not (seq.isascii() and seq.isdecimal()) or len(seq) > 15:  # noqa: PLR2004 - longer than any seq
        raise HttpProblem(
            "command_not_found", 404, f"Cannot find command {command} in this run."
        )
    return seq


async def _read_body(spec: ControlSpec, context: RequestContext) -> ControlBody:
    """Return the body of the request; a DELETE has none, but a reason in its query.

    Raises:
        HttpProblem: 400, the reason in the query is too long; else as `decode_body`.
    """
    if spec.route.method != "DELETE":
        return await context.decode_body(spec.body)
    reason = context.request.query_params.get("reason", "")
    if len(reason) > REASON_MAX_CHARS:
        problem = f"reason must have at most {REASON_MAX_CHARS} characters, got {len(reason)}"
        raise HttpProblem("bad_query", 400, problem)
    return spec.body().with_reason(reason)


def _check_may_raise_caps(context: RequestContext) -> None:
    if context.actor.role != "operator":
        problem = f"Cannot raise caps as {context.actor.role}: only operators may."
        raise HttpProblem("not_allowed", 403, problem)


# Handlers for asks: list the asks of all runs, and decide one.
#
# A client sends only an id and a decision. The question, the call and its arguments are read
# from the journal, so a client cannot approve anything but the recorded call.
#
# A user may be asked about a run of another user (`audience="user:ann"`). Such a user sees the
# ask, but neither the run nor whether other runs exist.


async def list_asks(context: RequestContext) -> Response:
    """List the open asks of runs that the caller may see or is asked about."""
    return await _make_page(context, kinds=("question", "approval", "unsure", "child"))


async def list_approvals(context: RequestContext) -> Response:
    """List the open approvals."""
    return await _make_page(context, kinds=("approval",))


async def _make_page(context: RequestContext, kinds: tuple[str, ...]) -> Response:
    limit = context.read_number("limit", 50, minimum=1, maximum=200)
    cursor = context.request.query_params.get("cursor", "")
    query = RunQuery(attention=True, decider=context.owner_filter, limit=limit, cursor=cursor)
    # A page of runs, not of asks: each run has all its asks on the same page, so the number of
    # asks per page varies.
    page = await context.list_runs(query)
    found: list[OpenAsk] = []
    for row in page.items:
        if row.head.asks:
            sees = await context.can_see(row.run)
            try:
                state = await context.server.views.read_state(row.run)
            except JournalUnreadable:
                continue  # one damaged journal must not hide the other asks
            found += [
                replace(ask, may_decide=_may_decide(context, state, ask.id))
                for ask in list_open_asks(state)
                if ask.kind in kinds and (sees or _is_addressed(context, ask.audience))
            ]
    return json_response(AskPage(items=tuple(found), next_cursor=page.cursor))


def _may_decide(context: RequestContext, state: State, ask_id: str) -> bool:
    ask = state.find_ask(ask_id)
    return ask is not None and may_decide(context.actor, ask)


def _is_addressed(context: RequestContext, audience: str) -> bool:
    return audience == f"user:{context.actor.name}"


async def decide_ask(context: RequestContext) -> Response:
    """Decide an ask; a second decision is refused and names the first actor."""
    name, _, ask_id = context.path["ask"].rpartition("-")
    if not name:
        problem = "Cannot find the ask: the path must end with its `ref`. See /v1/asks."
        raise HttpProblem("ask_not_found", 404, problem)
    run_id, server = RunId(name), context.server
    sees = await context.can_see(run_id)
    if not sees and not await context.is_in_tenant(run_id):
        raise RunNotFound(run_id)
    try:
        state = await server.views.read_state(run_id)
    except JournalUnreadable:
        if not sees:  # the caller must not learn that the run exists
            raise RunNotFound(run_id) from None
        raise
    ask = state.find_ask(ask_id)
    # The same answer for a run that does not exist, for one of another user, and for an ask of
    # such a run that is addressed to others. Whether this actor may decide is for the core.
    if not sees and (ask is None or not _is_addressed(context, ask.audience)):
        raise RunNotFound(run_id)
    run = await server.mid.get(run_id)
    body = await context.decode_body(DecisionBody)
    _check_decision(body)
    try:
        receipt = await DECISIONS[body.decision].send(
            ControlTarget(run, ask_id), body, context.make_control_options(body.reason)
        )
    except ControlRefused as refusal:
        # The core refuses any closed ask alike. HTTP tells 410 Gone (expired) from 409.
        closed = (await server.views.read_state(run_id)).find_ask(ask_id)
        if refusal.reason == "ask_closed" and closed is not None and _has_expired(closed):
            raise make_problem(refusal, "ask_expired", 410) from None
        raise
    if not sees:  # asked about one call of another user's run: no view of that run
        return json_response(ControlReply(command=make_command_receipt(receipt)), 202)
    return await make_control_response(context, run, receipt)


def _has_expired(ask: Ask) -> bool:
    # Open, and yet refused as closed: its time is up, and the worker has not recorded it yet.
    return ask.close_reason in {"", "expired"}


def _check_decision(body: DecisionBody) -> None:
    """Refuse a field that does not belong to the decision, rather than ignore it.

    Raises:
        HttpProblem: 422.
    """
    if (body.decision == "edit") == (body.args is None):
        problem = (
            "Cannot read the decision: `args` belongs to the decision `edit`, and `edit` "
            "needs it."
        )
        raise HttpProblem("invalid_body", 422, problem)
    if body.value is not None and body.decision != "answer":
        problem = "Cannot read the decision: `value` belongs to the decision `answer` only."
        raise HttpProblem("invalid_body", 422, problem)
    if body.files and body.decision != "answer":
        problem = "Cannot read the decision: `files` belong to the decision `answer` only."
        raise HttpProblem("invalid_body", 422, problem)
