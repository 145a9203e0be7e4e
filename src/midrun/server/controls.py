"""Handlers for controls. Each calls one method of `Run`.

All have the same shape: find the run (404 if the caller may not see it), decode the body, send
the control with the caller's actor, request id and revision, and return the receipt with the
run. The core decides; its refusal (`ControlRefused`) becomes a problem in `App`.
"""

from datetime import timedelta

from msgspec import structs
from starlette.responses import Response

from midrun.agents.outcome import AskView, make_ask_views
from midrun.core.decide.asks import may_decide
from midrun.core.ids import AskId, RunId
from midrun.core.state import Ask, State
from midrun.core.values import Value
from midrun.errors import ControlRefused, RunNotFound
from midrun.ports.store import RunQuery
from midrun.runs.run import Run
from midrun.runs.validation import ControlOptions
from midrun.runs.values import Receipt
from midrun.server.problem_details import HttpProblem, problem_from_error
from midrun.server.request_context import RequestContext, control_response, json_response
from midrun.server.run_views import UNREADABLE_ERRORS
from midrun.server.schemas import (
    REASON_MAX,
    CancelBody,
    DecisionBody,
    Empty,
    HandBackBody,
    MessageBody,
    PauseBody,
    RedirectBody,
    ResumeBody,
    UseToolBody,
    WriteBody,
)

# Handlers for asks: list the asks of all runs, and decide one.
#
# A client sends only an id and a decision. The question, the call and its arguments are read
# from the journal, so a client cannot approve anything but the recorded call.
#
# A user may be asked about a run of another user (`audience="user:ann"`). Such a user sees the
# ask, but neither the run nor whether other runs exist.


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


async def list_asks(context: RequestContext) -> Response:
    """List the open asks of runs that the caller may see or is asked about."""
    return await _make_page(context, kinds=("question", "approval", "unsure", "child"))


async def list_approvals(context: RequestContext) -> Response:
    """List the open approvals."""
    return await _make_page(context, kinds=("approval",))


async def _make_page(context: RequestContext, kinds: tuple[str, ...]) -> Response:
    limit = context.query_number("limit", 50, minimum=1, maximum=200)
    cursor = context.request.query_params.get("cursor", "")
    query = RunQuery(attention=True, decider=context.owner_filter, limit=limit, cursor=cursor)
    # A page of runs, not of asks: each run has all its asks on the same page, so the number of
    # asks per page varies.
    page = await context.list_runs(query)
    found: list[ShownAsk] = []
    for row in page.items:
        if row.head.asks:
            sees = await context.server.views.can_see(context.actor, row.run)
            try:
                state = await context.server.views.read_state(row.run)
            except UNREADABLE_ERRORS:
                continue  # one damaged journal must not hide the other asks
            found += [
                shown
                for view in make_ask_views(state)
                if view.kind in kinds and (sees or _is_addressed(context, view.audience))
                for shown in [_show_ask(context, state, view)]
            ]
    return json_response(AskPage(items=tuple(found), next_cursor=page.cursor))


def _show_ask(context: RequestContext, state: State, view: AskView) -> ShownAsk:
    ask = state.find_ask(view.id)
    assert ask is not None  # the view is of this state
    return ShownAsk(
        **structs.asdict(view),
        ref=f"{state.run}-{view.id}",
        run_id=state.run,
        task=state.run_started.task,
        may_decide=may_decide(context.actor, ask),
    )


def _is_addressed(context: RequestContext, audience: str) -> bool:
    return audience == f"user:{context.actor.name}"


async def decide_ask(context: RequestContext) -> Response:
    """Decide an ask; a second decision is refused and names the first actor."""
    name, _, ask_id = context.path["ask"].rpartition("-")
    if not name:
        problem = "Cannot find the ask: the path must end with its `ref`. See /v1/asks."
        raise HttpProblem("ask_not_found", 404, problem)
    run_id, server = RunId(name), context.server
    sees = await server.views.can_see(context.actor, run_id)
    try:
        state = await server.views.read_state(run_id)
    except UNREADABLE_ERRORS:
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
        receipt = await _send_decision(context, run, AskId(ask_id), body)
    except ControlRefused as refusal:
        # The core refuses any closed ask alike. HTTP tells 410 Gone (expired) from 409.
        closed = (await server.views.read_state(run_id)).find_ask(ask_id)
        if refusal.reason == "ask_closed" and closed is not None and _has_expired(closed):
            raise problem_from_error(refusal, "ask_expired", 410) from None
        raise
    if not sees:  # asked about one call of another user's run: no view of that run
        return json_response({"receipt": receipt}, 202)
    return await control_response(context, run, receipt)


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


async def _send_decision(
    context: RequestContext, run: Run, ask: AskId, body: DecisionBody
) -> Receipt:
    asking = context.control_arguments(body.comment)
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
                seen=context.if_match_revision(),
            )
        case "answer":
            return await run.answer(body.value, ask=ask, **asking)


async def pause(context: RequestContext) -> Response:
    """Pause the run; `If-Match` is not needed, because a stop is never refused as stale."""
    run, body = await context.find_run(), await context.decode_body(PauseBody)
    hold = None if body.hold_s is None else timedelta(seconds=body.hold_s)
    now = body.mode == "now"
    return await control_response(
        context,
        run,
        await run.pause(now=now, hold=hold, **context.control_arguments(body.reason)),
    )


async def resume(context: RequestContext) -> Response:
    """Resume the run; while it is pausing, withdraw the pause."""
    run, body = await context.find_run(), await context.decode_body(ResumeBody)
    if body.caps.list_set_caps() and context.actor.role != "operator":
        problem = f"Cannot raise caps as {context.actor.role}: only operators may."
        raise HttpProblem("not_allowed", 403, problem)
    asking = context.control_arguments(body.reason)
    receipt = await run.resume(
        body.instruction or None, caps=body.caps.list_set_caps(), **asking
    )
    return await control_response(context, run, receipt)


async def redirect(context: RequestContext) -> Response:
    """Redirect the run; a paused run resumes with the instruction."""
    run, body = await context.find_run(), await context.decode_body(RedirectBody)
    asking = context.control_arguments(body.reason)
    receipt = await context.redirect(run, body.instruction, asking, when=body.when)
    return await control_response(context, run, receipt)


async def say(context: RequestContext) -> Response:
    """Send a message to the run while it works."""
    run, body = await context.find_run(), await context.decode_body(MessageBody)

    async def send(asking: ControlOptions) -> Receipt:
        return await run.say(body.text, urgency=body.urgency, at=body.at, **asking)

    receipt = await context.send_with_pending_limit(
        run.id, context.control_arguments(body.reason), send
    )
    return await control_response(context, run, receipt)


async def cancel(context: RequestContext) -> Response:
    """Cancel the run; as for pause, `If-Match` is not needed."""
    run, body = await context.find_run(), await context.decode_body(CancelBody)
    return await control_response(
        context, run, await run.cancel(undo=body.undo, **context.control_arguments(body.reason))
    )


async def withdraw(context: RequestContext) -> Response:
    """Withdraw a pause, redirect or message that has not been applied."""
    run = await context.find_run()
    command = context.path["command"]
    name, _, number = command.partition("_")
    if name != "cmd" or not (number.isascii() and number.isdecimal()) or len(number) > 15:  # noqa: PLR2004 - longer than any seq
        raise HttpProblem(
            "command_not_found", 404, f"Cannot find command {command} in this run."
        )
    return await control_response(
        context, run, await run.withdraw(int(number), **_control_arguments_from_query(context))
    )


async def drop_frame(context: RequestContext) -> Response:
    """Drop the topmost held topic; the path names it."""
    run = await context.find_run()
    return await control_response(
        context,
        run,
        await run.drop_frame(context.path["frame"], **_control_arguments_from_query(context)),
    )


def _control_arguments_from_query(context: RequestContext) -> ControlOptions:
    """Return the arguments of a control without a body; the reason is in the query."""
    reason = context.request.query_params.get("reason", "")
    if len(reason) > REASON_MAX:
        problem = f"reason must have at most {REASON_MAX} characters, got {len(reason)}"
        raise HttpProblem("bad_query", 400, problem)
    return context.control_arguments(reason)


async def resume_frame(context: RequestContext) -> Response:
    """Return to the topmost held topic; the path names it."""
    run, body = await context.find_run(), await context.decode_body(Empty)
    asking = context.control_arguments(body.reason)
    return await control_response(
        context, run, await run.resume_frame(context.path["frame"], **asking)
    )


async def force_pause(context: RequestContext) -> Response:
    """Pause without waiting for calls that do not respond."""
    run, body = await context.find_run(), await context.decode_body(Empty)
    return await control_response(
        context, run, await run.force_pause(**context.control_arguments(body.reason))
    )


async def retry_undo(context: RequestContext) -> Response:
    """Retry the undo of calls that could not be undone."""
    run, body = await context.find_run(), await context.decode_body(Empty)
    return await control_response(
        context, run, await run.retry_undo(**context.control_arguments(body.reason))
    )


async def accept_residue(context: RequestContext) -> Response:
    """Accept the effects that could not be undone."""
    run, body = await context.find_run(), await context.decode_body(Empty)
    return await control_response(
        context, run, await run.accept_residue(**context.control_arguments(body.reason))
    )


async def take_over(context: RequestContext) -> Response:
    """Take over from the agent once no call is in flight."""
    run, body = await context.find_run(), await context.decode_body(Empty)
    return await control_response(
        context, run, await run.take_over(**context.control_arguments(body.reason))
    )


async def write(context: RequestContext) -> Response:
    """Write as the assistant, after taking over."""
    run, body = await context.find_run(), await context.decode_body(WriteBody)
    return await control_response(
        context, run, await run.write(body.text, **context.control_arguments(body.reason))
    )


async def use_tool(context: RequestContext) -> Response:
    """Call one of the agent's tools, after taking over."""
    run, body = await context.find_run(), await context.decode_body(UseToolBody)
    asking = context.control_arguments(body.reason)
    return await control_response(
        context, run, await run.use_tool(body.tool, body.args, **asking)
    )


async def hand_back(context: RequestContext) -> Response:
    """Hand the run back to its agent."""
    run, body = await context.find_run(), await context.decode_body(HandBackBody)
    asking = context.control_arguments(body.reason)
    return await control_response(
        context, run, await run.hand_back(body.instruction or None, **asking)
    )
