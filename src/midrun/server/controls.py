"""Handlers for controls. Each calls one method of `Run`.

All have the same shape: find the run (404 if the caller may not see it), decode the body, send
the control with the caller's actor, request id and revision, and return the receipt with the
run. The core decides; its refusal (`ControlRefused`) becomes a problem in `App`.
"""

from datetime import timedelta

from starlette.responses import Response

from midrun.runs.validation import ControlOptions
from midrun.runs.values import Receipt
from midrun.server.problem_details import HttpProblem
from midrun.server.request_context import RequestContext, control_response
from midrun.server.schemas import (
    REASON_MAX,
    CancelBody,
    Empty,
    HandBackBody,
    MessageBody,
    PauseBody,
    RedirectBody,
    ResumeBody,
    UseToolBody,
    WriteBody,
)


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
    """Drop the newest held thought; the path names it."""
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
    """Return to the newest held thought; the path names it."""
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
