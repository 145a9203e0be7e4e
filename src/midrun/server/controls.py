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


async def pause(visit: Visit) -> Response:
    """Pause. A stop is never refused as stale, so `If-Match` is not looked at."""
    run, body = await visit.run(), await visit.body(PauseBody)
    hold = None if body.hold_s is None else timedelta(seconds=body.hold_s)
    now = body.mode == "now"
    return await told(
        visit, run, await run.pause(now=now, hold=hold, **visit.asking(body.reason))
    )


async def resume(visit: Visit) -> Response:
    """Go on; while the run is pausing, this withdraws the pause."""
    run, body = await visit.run(), await visit.body(ResumeBody)
    if body.caps.given() and visit.actor.role != "operator":
        raise Problem("not_allowed", 403, "only operators raise caps")
    asking = visit.asking(body.reason)
    receipt = await run.resume(body.instruction or None, caps=body.caps.given(), **asking)
    return await told(visit, run, receipt)


async def redirect(visit: Visit) -> Response:
    """Change course; a paused run goes on with the instruction."""
    run, body = await visit.run(), await visit.body(RedirectBody)
    asking = visit.asking(body.reason)
    receipt = await visit.redirected(run, body.instruction, asking, when=body.when)
    return await told(visit, run, receipt)


async def say(visit: Visit) -> Response:
    """Speak to the run while it works."""
    run, body = await visit.run(), await visit.body(MessageBody)

    async def send(asking: Asking) -> Receipt:
        return await run.say(body.text, urgency=body.urgency, at=body.at, **asking)

    receipt = await visit.words(run.id, visit.asking(body.reason), send)
    return await told(visit, run, receipt)


async def cancel(visit: Visit) -> Response:
    """Cancel. As with pause, `If-Match` is not looked at."""
    run, body = await visit.run(), await visit.body(CancelBody)
    return await told(visit, run, await run.cancel(undo=body.undo, **visit.asking(body.reason)))


async def withdraw(visit: Visit) -> Response:
    """Take back a pause, redirect or message that has not been applied."""
    run = await visit.run()
    name, _, number = visit.path["command"].partition("_")
    if name != "cmd" or not (number.isascii() and number.isdecimal()) or len(number) > 15:  # noqa: PLR2004 - longer than any seq
        raise Problem("command_not_found", 404)
    return await told(visit, run, await run.withdraw(int(number), **_why(visit)))


async def drop_frame(visit: Visit) -> Response:
    """Give up the held thought on top, by name."""
    run = await visit.run()
    return await told(visit, run, await run.drop_frame(visit.path["frame"], **_why(visit)))


def _why(visit: Visit) -> Asking:
    """Return who asks; where there is no body, the query says why."""
    reason = visit.request.query_params.get("reason", "")
    if len(reason) > REASON_MAX:
        raise Problem("bad_query", 400, f"a reason has at most {REASON_MAX} characters")
    return visit.asking(reason)


async def resume_frame(visit: Visit) -> Response:
    """Go back to the held thought on top."""
    run, body = await visit.run(), await visit.body(Empty)
    asking = visit.asking(body.reason)
    return await told(visit, run, await run.resume_frame(visit.path["frame"], **asking))


async def force_pause(visit: Visit) -> Response:
    """Stop waiting for calls that do not respond."""
    run, body = await visit.run(), await visit.body(Empty)
    return await told(visit, run, await run.force_pause(**visit.asking(body.reason)))


async def retry_undo(visit: Visit) -> Response:
    """Try again to undo what could not be undone."""
    run, body = await visit.run(), await visit.body(Empty)
    return await told(visit, run, await run.retry_undo(**visit.asking(body.reason)))


async def accept_residue(visit: Visit) -> Response:
    """Take what could not be undone as it is."""
    run, body = await visit.run(), await visit.body(Empty)
    return await told(visit, run, await run.accept_residue(**visit.asking(body.reason)))


async def take_over(visit: Visit) -> Response:
    """Become the assistant once nothing is in flight."""
    run, body = await visit.run(), await visit.body(Empty)
    return await told(visit, run, await run.take_over(**visit.asking(body.reason)))


async def write(visit: Visit) -> Response:
    """Say something as the assistant, after taking over."""
    run, body = await visit.run(), await visit.body(WriteBody)
    return await told(visit, run, await run.write(body.text, **visit.asking(body.reason)))


async def use_tool(visit: Visit) -> Response:
    """Make one call of the agent's tools, after taking over."""
    run, body = await visit.run(), await visit.body(UseToolBody)
    asking = visit.asking(body.reason)
    return await told(visit, run, await run.use_tool(body.tool, body.args, **asking))


async def hand_back(visit: Visit) -> Response:
    """Return the run to its agent."""
    run, body = await visit.run(), await visit.body(HandBackBody)
    asking = visit.asking(body.reason)
    return await told(visit, run, await run.hand_back(body.instruction or None, **asking))
