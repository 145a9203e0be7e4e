"""Controls over HTTP. Each is one call of `Run`; what it means is decided in the core."""

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
    """Pause. A stop is never refused as stale, so `If-Match` is not looked at."""
    run, body = await context.run(), await context.body(PauseBody)
    hold = None if body.hold_s is None else timedelta(seconds=body.hold_s)
    now = body.mode == "now"
    return await told(
        context, run, await run.pause(now=now, hold=hold, **context.asking(body.reason))
    )


async def resume(context: Visit) -> Response:
    """Go on; while the run is pausing, this withdraws the pause."""
    run, body = await context.run(), await context.body(ResumeBody)
    if body.caps.given() and context.actor.role != "operator":
        raise Problem("not_allowed", 403, "only operators raise caps")
    asking = context.asking(body.reason)
    receipt = await run.resume(body.instruction or None, caps=body.caps.given(), **asking)
    return await told(context, run, receipt)


async def redirect(context: Visit) -> Response:
    """Change course; a paused run goes on with the instruction."""
    run, body = await context.run(), await context.body(RedirectBody)
    asking = context.asking(body.reason)
    receipt = await context.redirected(run, body.instruction, asking, when=body.when)
    return await told(context, run, receipt)


async def say(context: Visit) -> Response:
    """Speak to the run while it works."""
    run, body = await context.run(), await context.body(MessageBody)

    async def send(asking: Asking) -> Receipt:
        return await run.say(body.text, urgency=body.urgency, at=body.at, **asking)

    receipt = await context.words(run.id, context.asking(body.reason), send)
    return await told(context, run, receipt)


async def cancel(context: Visit) -> Response:
    """Cancel. As with pause, `If-Match` is not looked at."""
    run, body = await context.run(), await context.body(CancelBody)
    return await told(
        context, run, await run.cancel(undo=body.undo, **context.asking(body.reason))
    )


async def withdraw(context: Visit) -> Response:
    """Take back a pause, redirect or message that has not been applied."""
    run = await context.run()
    name, _, number = context.path["command"].partition("_")
    if name != "cmd" or not (number.isascii() and number.isdecimal()) or len(number) > 15:  # noqa: PLR2004 - longer than any seq
        raise Problem("command_not_found", 404)
    return await told(context, run, await run.withdraw(int(number), **_why(context)))


async def drop_frame(context: Visit) -> Response:
    """Give up the held thought on top, by name."""
    run = await context.run()
    return await told(
        context, run, await run.drop_frame(context.path["frame"], **_why(context))
    )


def _why(context: Visit) -> Asking:
    """Return who asks; where there is no body, the query says why."""
    reason = context.request.query_params.get("reason", "")
    if len(reason) > REASON_MAX:
        raise Problem("bad_query", 400, f"a reason has at most {REASON_MAX} characters")
    return context.asking(reason)


async def resume_frame(context: Visit) -> Response:
    """Go back to the held thought on top."""
    run, body = await context.run(), await context.body(Empty)
    asking = context.asking(body.reason)
    return await told(context, run, await run.resume_frame(context.path["frame"], **asking))


async def force_pause(context: Visit) -> Response:
    """Stop waiting for calls that do not respond."""
    run, body = await context.run(), await context.body(Empty)
    return await told(context, run, await run.force_pause(**context.asking(body.reason)))


async def retry_undo(context: Visit) -> Response:
    """Try again to undo what could not be undone."""
    run, body = await context.run(), await context.body(Empty)
    return await told(context, run, await run.retry_undo(**context.asking(body.reason)))


async def accept_residue(context: Visit) -> Response:
    """Take what could not be undone as it is."""
    run, body = await context.run(), await context.body(Empty)
    return await told(context, run, await run.accept_residue(**context.asking(body.reason)))


async def take_over(context: Visit) -> Response:
    """Become the assistant once nothing is in flight."""
    run, body = await context.run(), await context.body(Empty)
    return await told(context, run, await run.take_over(**context.asking(body.reason)))


async def write(context: Visit) -> Response:
    """Say something as the assistant, after taking over."""
    run, body = await context.run(), await context.body(WriteBody)
    return await told(context, run, await run.write(body.text, **context.asking(body.reason)))


async def use_tool(context: Visit) -> Response:
    """Make one call of the agent's tools, after taking over."""
    run, body = await context.run(), await context.body(UseToolBody)
    asking = context.asking(body.reason)
    return await told(context, run, await run.use_tool(body.tool, body.args, **asking))


async def hand_back(context: Visit) -> Response:
    """Return the run to its agent."""
    run, body = await context.run(), await context.body(HandBackBody)
    asking = context.asking(body.reason)
    return await told(context, run, await run.hand_back(body.instruction or None, **asking))
