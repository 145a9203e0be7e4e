"""Handlers for controls. Each calls one method of `Run`.

All have the same shape: find the run (404 if the caller may not see it), decode the body, send
the control with the caller's actor, request id and revision, and return the receipt with the
run. The core decides; its refusal (`ControlRefused`) becomes a problem in `App`.
"""

from datetime import timedelta

from starlette.responses import Response

from midrun.runs.validation import Asking
from midrun.runs.values import Receipt
from midrun.server.problem_details import Problem
from midrun.server.request_context import Visit, told
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


async def pause(context: Visit) -> Response:
    """Pause the run; `If-Match` is not needed, because a stop is never refused as stale."""
    run, body = await context.run(), await context.body(PauseBody)
    hold = None if body.hold_s is None else timedelta(seconds=body.hold_s)
    now = body.mode == "now"
    return await told(
        context, run, await run.pause(now=now, hold=hold, **context.asking(body.reason))
    )


async def resume(context: Visit) -> Response:
    """Resume the run; while it is pausing, withdraw the pause."""
    run, body = await context.run(), await context.body(ResumeBody)
    if body.caps.given() and context.actor.role != "operator":
        problem = f"Cannot raise caps as {context.actor.role}: only operators may."
        raise Problem("not_allowed", 403, problem)
    asking = context.asking(body.reason)
    receipt = await run.resume(body.instruction or None, caps=body.caps.given(), **asking)
    return await told(context, run, receipt)


async def redirect(context: Visit) -> Response:
    """Redirect the run; a paused run resumes with the instruction."""
    run, body = await context.run(), await context.body(RedirectBody)
    asking = context.asking(body.reason)
    receipt = await context.redirected(run, body.instruction, asking, when=body.when)
    return await told(context, run, receipt)


async def say(context: Visit) -> Response:
    """Send a message to the run while it works."""
    run, body = await context.run(), await context.body(MessageBody)

    async def send(asking: Asking) -> Receipt:
        return await run.say(body.text, urgency=body.urgency, at=body.at, **asking)

    receipt = await context.words(run.id, context.asking(body.reason), send)
    return await told(context, run, receipt)


async def cancel(context: Visit) -> Response:
    """Cancel the run; as for pause, `If-Match` is not needed."""
    run, body = await context.run(), await context.body(CancelBody)
    return await told(
        context, run, await run.cancel(undo=body.undo, **context.asking(body.reason))
    )


async def withdraw(context: Visit) -> Response:
    """Withdraw a pause, redirect or message that has not been applied."""
    run = await context.run()
    command = context.path["command"]
    name, _, number = command.partition("_")
    if name != "cmd" or not (number.isascii() and number.isdecimal()) or len(number) > 15:  # noqa: PLR2004 - longer than any seq
        raise Problem("command_not_found", 404, f"Cannot find command {command} in this run.")
    return await told(context, run, await run.withdraw(int(number), **_why(context)))


async def drop_frame(context: Visit) -> Response:
    """Drop the newest held thought; the path names it."""
    run = await context.run()
    return await told(
        context, run, await run.drop_frame(context.path["frame"], **_why(context))
    )


def _why(context: Visit) -> Asking:
    """Return the arguments of a control without a body; the reason is in the query."""
    reason = context.request.query_params.get("reason", "")
    if len(reason) > REASON_MAX:
        problem = f"reason must have at most {REASON_MAX} characters, got {len(reason)}"
        raise Problem("bad_query", 400, problem)
    return context.asking(reason)


async def resume_frame(context: Visit) -> Response:
    """Return to the newest held thought; the path names it."""
    run, body = await context.run(), await context.body(Empty)
    asking = context.asking(body.reason)
    return await told(context, run, await run.resume_frame(context.path["frame"], **asking))


async def force_pause(context: Visit) -> Response:
    """Pause without waiting for calls that do not respond."""
    run, body = await context.run(), await context.body(Empty)
    return await told(context, run, await run.force_pause(**context.asking(body.reason)))


async def retry_undo(context: Visit) -> Response:
    """Retry the undo of calls that could not be undone."""
    run, body = await context.run(), await context.body(Empty)
    return await told(context, run, await run.retry_undo(**context.asking(body.reason)))


async def accept_residue(context: Visit) -> Response:
    """Accept the effects that could not be undone."""
    run, body = await context.run(), await context.body(Empty)
    return await told(context, run, await run.accept_residue(**context.asking(body.reason)))


async def take_over(context: Visit) -> Response:
    """Take over from the agent once no call is in flight."""
    run, body = await context.run(), await context.body(Empty)
    return await told(context, run, await run.take_over(**context.asking(body.reason)))


async def write(context: Visit) -> Response:
    """Write as the assistant, after taking over."""
    run, body = await context.run(), await context.body(WriteBody)
    return await told(context, run, await run.write(body.text, **context.asking(body.reason)))


async def use_tool(context: Visit) -> Response:
    """Call one of the agent's tools, after taking over."""
    run, body = await context.run(), await context.body(UseToolBody)
    asking = context.asking(body.reason)
    return await told(context, run, await run.use_tool(body.tool, body.args, **asking))


async def hand_back(context: Visit) -> Response:
    """Hand the run back to its agent."""
    run, body = await context.run(), await context.body(HandBackBody)
    asking = context.asking(body.reason)
    return await told(context, run, await run.hand_back(body.instruction or None, **asking))
