"""Turn an AG-UI request into a control of the thread's run, or start a run.

AG-UI has one request for everything. Its meaning follows from the phase of the newest run of
the thread: no open run starts one; paused or failed resumes it; waiting with one open question
answers it; otherwise a new message redirects it. A `resume` list decides interrupts.
"""

from typing import Final

from msgspec import Struct

from midrun.core.state import State
from midrun.core.values import TERMINAL, Json, Phase
from midrun.ports.store import Query, RunRow
from midrun.runs.run import Run
from midrun.runs.validation import Asking, name
from midrun.server.agui.inputs import Resumption, RunAgentInput
from midrun.server.problem_details import Problem
from midrun.server.request_context import Visit

PAUSE: Final = "pause_"
"""The prefix of an interrupt id that stands for a pause and not for an ask."""

NO_ANSWER: Final = "The user did not want to answer."


class Joined(Struct, frozen=True, kw_only=True):
    """A run, with the state up to which the client has seen it.

    `unused` names the parts of the request that the run was not given.
    """

    run: Run
    state: State
    unused: dict[str, list[str]] = {}


async def newest(context: Visit, agent: str, thread: str) -> RunRow | None:
    """Return the newest run of a thread that the caller may see, or None.

    Raises:
        Misconfigured: `thread` is not a valid name.
    """
    thread = name("thread", thread)
    query = Query(thread=thread, agent=agent, owner=context.own_runs_only, limit=1)
    return next(iter((await context.lobby.store.runs(query)).items), None)


async def joined(context: Visit, agent: str, given: RunAgentInput) -> Joined:
    """Send the request's control to the thread's open run, or start a run.

    Raises:
        HttpProblem: 404, no such agent; 422, there is no new message.
        ControlRefused: the control does not fit the phase of the run.
    """
    if given.newest is not None and (kinds := given.newest.other_parts):
        problem = f"Cannot take message {given.newest.id!r}: it has parts of type"
        raise Problem("invalid_body", 422, f"{problem} {', '.join(kinds)}. Send text only.")
    mid, row = context.lobby.mid, await newest(context, agent, given.thread_id)
    unused = {"tools": [tool.name for tool in given.tools]} if given.tools else {}
    request = context.own(f"agui:{given.thread_id}:{given.run_id}")
    asking = Asking(actor=context.actor, request_id=request)
    if row is not None and row.head.phase not in TERMINAL:
        run = await mid.get(row.run)
        # Read before the control is sent: the stream begins after this state, and so includes
        # the entries of the control itself.
        state = await context.lobby.views.state(run.id)
        known = [message.text for message in state.messages]
        if not await _steer(context, run, state, given, asking) and (
            left := given.list_new_context(known)
        ):
            unused["context"] = [item.description for item in left]
        return Joined(run=run, state=state, unused=unused)
    if agent not in mid.agents:
        known_agents = ", ".join(mid.agents) or "none"
        problem = f"Cannot find agent {agent}. Known agents: {known_agents}."
        raise Problem("agent_not_found", 404, problem)
    if not given.wish:
        problem = "Cannot start a run: there is no new user message. Send one."
        raise Problem("invalid_body", 422, problem)
    await context.check_quota(request)
    run = await mid.start(
        agent,
        given.add_context(),
        thread=given.thread_id,
        request_id=request,
        actor=context.actor,
        own_thread=bool(context.own_runs_only),
    )
    return Joined(run=run, state=State(run=run.id), unused=unused)


async def _steer(
    context: Visit, run: Run, state: State, given: RunAgentInput, asking: Asking
) -> bool:
    """Send the control of the request; return whether the run was given a text."""
    if given.resume:
        for number, resumption in enumerate(given.resume):
            # One request decides several interrupts; each control needs its own request id.
            own = f"{asking.get('request_id')}:{number}"
            own_asking = Asking(actor=asking.get("actor"), request_id=own)
            await _resumed(run, state, resumption, own_asking)
        return False
    text = given.add_context(message.text for message in state.messages)
    match state.phase:
        case Phase.PAUSED | Phase.FAILED:
            await run.resume(text or None, **asking)
        case Phase.WAITING if text and _asks_one(state):
            await run.answer(text, **asking)
        case Phase.WAITING | Phase.RUNNING | Phase.QUEUED | Phase.PAUSING if text:
            await context.redirected(run, text, asking)
        case _:
            # No new message, or the run is cancelling or halted: the client only follows it.
            return False
    return bool(text)


def _asks_one(state: State) -> bool:
    """Return whether exactly one ask is open and it is a question.

    Only then is a plain message the answer: an approval must not be given by chance.
    """
    if len(state.open_asks) != 1:
        return False
    ask = state.asks[state.open_asks[0] - 1]
    return ask.kind == "question"


async def _resumed(run: Run, state: State, one: Resumption, asking: Asking) -> None:
    payload = one.payload if isinstance(one.payload, dict) else {}
    if one.interrupt_id.startswith(PAUSE):
        if one.status == "cancelled":
            await run.cancel(**asking)
        else:
            await run.resume(str(payload.get("instruction") or "") or None, **asking)
        return
    own = one.interrupt_id.removeprefix(f"{run.id}-")
    ask = next((a for a in state.asks if a.id == own), None)
    if ask is None:
        problem = f"Cannot find interrupt {own}: run {run.id} has no such ask."
        raise Problem("ask_not_found", 404, problem)
    if ask.kind == "approval":
        # Everything but an explicit `"approved": true` declines.
        if one.status == "resolved" and payload.get("approved") is True:
            await run.approve(ask=own, args=payload.get("editedArgs"), **asking)
        else:
            reason = str(payload.get("reason") or "")
            actor, request = asking.get("actor"), asking.get("request_id")
            await run.decline(reason, ask=own, actor=actor, request_id=request)
        return
    if ask.continuation is not None and one.status != "resolved":
        actor, request = asking.get("actor"), asking.get("request_id")
        await run.decline("", ask=own, actor=actor, request_id=request)
        return
    value: Json = payload.get("answer", one.payload)
    await run.answer(value if one.status == "resolved" else NO_ANSWER, ask=own, **asking)
