"""What a request for a segment asks of the run that its thread has."""

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
"""What the id of an interrupt begins with that is a pause and not somebody's question."""

NO_ANSWER: Final = "The user did not want to answer."


class Joined(Struct, frozen=True, kw_only=True):
    """A run, and what a client that joins it has seen: entries up to `state`.

    `unused` names what the client sent and the run was not given.
    """

    run: Run
    state: State
    unused: dict[str, list[str]] = {}


async def newest(context: Visit, agent: str, thread: str) -> RunRow | None:
    """Return the newest run of a thread that the caller may see, if there is one.

    Raises:
        Misconfigured: `thread` is no name that a thread could have.
    """
    thread = name("thread", thread)
    query = Query(thread=thread, agent=agent, owner=context.own_runs_only, limit=1)
    return next(iter((await context.lobby.store.runs(query)).items), None)


async def joined(context: Visit, agent: str, given: RunAgentInput) -> Joined:
    """Start a run for what the person said, or do with the thread's run what they mean.

    Raises:
        Problem: 404, no such agent; 422, nothing was said.
        ControlRefused: it does not fit where the run stands.
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
        state = await context.lobby.views.state(run.id)
        known = [message.text for message in state.messages]
        if not await _steer(context, run, state, given, asking) and (
            left := given.list_new_context(known)
        ):
            unused["context"] = [item.description for item in left]
        return Joined(run=run, state=state, unused=unused)
    if agent not in mid.agents:
        raise Problem("agent_not_found", 404, f"known here: {', '.join(mid.agents) or 'none'}")
    if not given.wish:
        raise Problem("invalid_body", 422, "there is no user message to start from")
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
    """Do what the request means; tell whether the run was given words, with their context."""
    if given.resume:
        for number, one in enumerate(given.resume):
            own = f"{asking.get('request_id')}:{number}"
            await _resumed(run, state, one, Asking(actor=asking.get("actor"), request_id=own))
        return False
    wish = given.add_context(message.text for message in state.messages)
    match state.phase:
        case Phase.PAUSED | Phase.FAILED:
            await run.resume(wish or None, **asking)
        case Phase.WAITING if wish and _asks_one(state):
            await run.answer(wish, **asking)
        case Phase.WAITING | Phase.RUNNING | Phase.QUEUED | Phase.PAUSING if wish:
            await context.redirected(run, wish, asking)
        case _:
            return False  # nothing new, or it is being cancelled, or halted: only to look at
    return bool(wish)


def _asks_one(state: State) -> bool:
    """Tell whether a plain message is the answer: one question is open, and nothing else."""
    if len(state.open_asks) != 1:
        return False
    ask = state.asks[state.open_asks[0] - 1]
    return ask.kind == "question"


async def _resumed(run: Run, state: State, one: Resumption, asking: Asking) -> None:
    said = one.payload if isinstance(one.payload, dict) else {}
    if one.interrupt_id.startswith(PAUSE):
        if one.status == "cancelled":
            await run.cancel(**asking)
        else:
            await run.resume(str(said.get("instruction") or "") or None, **asking)
        return
    own = one.interrupt_id.removeprefix(f"{run.id}-")
    ask = next((a for a in state.asks if a.id == own), None)
    if ask is None:
        raise Problem("ask_not_found", 404, f"run {run.id} has no interrupt {own}")
    if ask.kind == "approval":
        if one.status == "resolved" and said.get("approved") is True:
            await run.approve(ask=own, args=said.get("editedArgs"), **asking)
        else:
            reason = str(said.get("reason") or "")
            actor, request = asking.get("actor"), asking.get("request_id")
            await run.decline(reason, ask=own, actor=actor, request_id=request)
        return
    if ask.continuation is not None and one.status != "resolved":
        actor, request = asking.get("actor"), asking.get("request_id")
        await run.decline("", ask=own, actor=actor, request_id=request)
        return
    value: Json = said.get("answer", one.payload)
    await run.answer(value if one.status == "resolved" else NO_ANSWER, ask=own, **asking)
