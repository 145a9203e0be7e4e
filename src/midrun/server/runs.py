"""Runs over HTTP: starting, listing, looking, waiting."""

from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from functools import partial
from typing import Final, cast

import anyio
import anyio.to_thread
from starlette.datastructures import QueryParams
from starlette.responses import Response

from midrun.core.evolve import evolve
from midrun.core.ids import RunId
from midrun.core.state import State
from midrun.core.stops import CAPS, AnyOf, Custom, MaxCost, MaxTime, Stop, leaves
from midrun.core.values import TERMINAL, Phase, Value
from midrun.errors import Misconfigured, StoreClosed
from midrun.ports.store import Query
from midrun.runs.run import Run
from midrun.runs.validation import counted, traceparent
from midrun.runs.values import EffectView, FrameView, Happened
from midrun.server.commands import Command, commands
from midrun.server.mounting import root_of
from midrun.server.problem_details import Problem, said
from midrun.server.request_context import Visit, answer, etag, told
from midrun.server.run_views import RunLine, ShownRun
from midrun.server.schemas import ChangeBody, StartBody
from midrun.text.report import Report

SILENCE_S: Final = 2.0
"""How often one who waits for a change looks whether the run's driver is still heard of."""


class RunPage(Value, kw_only=True):
    """A page of runs; `counts` is over all, for those who may see all."""

    items: tuple[RunLine, ...]
    next_cursor: str
    counts: dict[str, int]


class AgentLine(Value, kw_only=True):
    """An agent whose runs can be started here."""

    name: str
    tools: tuple[str, ...]
    stop: str


class Agents(Value, kw_only=True):
    """The agents of this server."""

    items: tuple[AgentLine, ...]


class Commands(Value, kw_only=True):
    """What was asked of a run."""

    items: tuple[Command, ...]


class Frames(Value, kw_only=True):
    """Thoughts that are held, the oldest first."""

    items: tuple[FrameView, ...]


class Effects(Value, kw_only=True):
    """Calls that changed the world, or may have."""

    items: tuple[EffectView, ...]


async def start(context: Visit) -> Response:
    """Start a run. Whoever repeats the request gets the first one."""
    body = await context.body(StartBody)
    mid = context.lobby.mid
    if body.agent not in mid.agents:
        known = f"the server does not have it; known there: {', '.join(mid.agents) or 'none'}"
        raise said(Misconfigured(f"agent {body.agent}", known), "agent_not_found", 404)
    stop, request_id = _stop(context, body), context.request_id()
    await context.check_quota(request_id)
    run = await mid.start(
        body.agent,
        body.input,
        thread=body.thread_id or None,
        labels=body.labels,
        stop=stop,
        request_id=request_id,
        actor=context.actor,
        trace=_trace(context),
        own_thread=bool(context.own_runs_only),
    )
    return await created(context, run)


def _trace(context: Visit) -> str | None:
    """Return the caller's trace; one that is none is nobody's reason to fail."""
    try:
        return traceparent(context.request.headers.get("traceparent", ""))
    except Misconfigured:
        return None


async def created(context: Visit, run: Run) -> Response:
    """Return a run that was started, now or when the same was asked for first."""
    shown = await context.lobby.views.shown(run.id)
    root = root_of(context.request.scope)
    headers = {"Location": f"{root}/v1/runs/{run.id}", "ETag": etag(shown)}
    if run.repeated:
        headers["Idempotency-Replayed"] = "true"
    return answer(shown, 201, headers)


def _stop(context: Visit, body: StartBody) -> Stop | None:
    """Return the condition that the caller sets, if they may.

    A condition of its own names a function to import: that is for the server's agents to say.
    """
    caps = stop_of(body.caps.given())
    if (caps or body.stop) and context.actor.role != "operator":
        raise Problem("not_allowed", 403, "only operators set caps")
    if caps and body.stop:
        raise Problem("invalid_body", 422, "either caps or stop")
    if any(isinstance(leaf, Custom) for leaf in leaves(body.stop)):
        problem = "a Custom condition names code of the server's; give it to the agent there"
        raise said(Misconfigured("stop", problem), "misconfigured", 422)
    return caps or body.stop


def stop_of(caps: dict[str, float]) -> Stop | None:
    """Return the condition that caps by name are; None if there are none."""
    made: list[Stop] = []
    for name, value in counted(caps).items():
        if name == "cost":
            made.append(MaxCost(value / 1e6))
        elif name == "time":
            made.append(MaxTime(value / 1e6))
        else:
            made.append(cast("Stop", CAPS[name](value)))
    return AnyOf(tuple(made)) if len(made) > 1 else next(iter(made), None)


async def listed(context: Visit) -> Response:
    """List runs, newest first; users see their own."""
    given = context.request.query_params
    limit = context.number("limit", 50, least=1, most=200)
    if (attention := given.get("attention", "")) not in {"", "true", "false"}:
        raise Problem("bad_query", 400, "attention is true or false")
    query = Query(
        phases=phases_in(given),
        agent=given.get("agent", ""),
        label=given.get("label", ""),
        thread=given.get("thread", ""),
        parent=RunId(given.get("parent", "")),
        owner=context.own_runs_only,
        attention=attention == "true",
        limit=limit,
        cursor=given.get("cursor", ""),
    )
    page = await context.list_runs(query)
    counts = {} if context.own_runs_only else await context.lobby.store.counts()
    items = await context.lobby.lines.of(page.items, context.actor)
    return answer(
        RunPage(
            items=items,
            next_cursor=page.cursor,
            counts={str(phase): count for phase, count in counts.items()},
        )
    )


def phases_in(given: QueryParams) -> tuple[Phase, ...]:
    """Return the phases that a list is asked for, said once or several times.

    Raises:
        Problem: 400, no such phase.
    """
    return phases_of(",".join(given.getlist("phase") or given.getlist("state")))


def phases_of(text: str) -> tuple[Phase, ...]:
    """Return the phases that a query names; "terminal" stands for the two that are final.

    Raises:
        Problem: 400, no such phase.
    """
    names = [name for part in text.split(",") if (name := part.strip())]
    terminal = [Phase.COMPLETED, Phase.CANCELLED] if "terminal" in names else []
    try:
        return (*(Phase(name) for name in names if name != "terminal"), *terminal)
    except ValueError:
        known = ", ".join(Phase)
        raise Problem("bad_query", 400, f"phases are: {known}, terminal") from None


async def look(context: Visit) -> Response:
    """Show a run; with `Prefer: wait=N`, once it is in a phase of `until`, or has changed."""
    run = await context.run()
    wanted = phases_of(context.request.query_params.get("until", ""))
    wait = _wait(context)
    headers, found = {}, None
    if wait:
        allowance, caller = context.lobby.allowance, context.actor.name
        allowance.check_stream(caller)
        headers["Preference-Applied"] = f"wait={wait:g}"
        with allowance.stream(caller), anyio.move_on_after(wait):
            async with anyio.create_task_group() as tasks:
                waiting = tasks.cancel_scope
                tasks.start_soon(_until, context.over, waiting)
                tasks.start_soon(_until, partial(context.caller.leaves, context.lobby), waiting)
                if not wanted:
                    tasks.start_soon(_until, partial(_otherwise, context, run), waiting)
                found = await _changed(context, run, wanted)
                waiting.cancel()
        if not await context.caller.holds(context.lobby):
            raise Problem("unauthorized", 401, "Cannot show the run: the session has ended.")
    shown = await context.lobby.views.shown_in(found or await context.lobby.views.state(run.id))
    headers["ETag"] = etag(shown)
    if _has(context, shown):
        return Response(status_code=304, headers=headers)
    return answer(shown, headers=headers)


def _has(context: Visit, shown: ShownRun) -> bool:
    """Tell whether the caller has this very view, as `If-None-Match` says."""
    known = context.request.headers.get("if-none-match", "")
    tags = {tag.strip().removeprefix("W/") for tag in known.split(",")}
    return not tags.isdisjoint({etag(shown), "*"})


async def _until(over: Callable[[], Awaitable[None]], waiting: anyio.CancelScope) -> None:
    await over()
    waiting.cancel()


async def _otherwise(context: Visit, run: Run) -> None:
    """Wait until the run is shown otherwise than the caller has it, whatever its journal says.

    A driver that falls silent leaves no entry, nor does one that is heard of again.
    """
    while _has(context, await context.lobby.views.shown(run.id)):  # noqa: ASYNC110 - nobody tells
        await anyio.sleep(SILENCE_S)


async def _changed(context: Visit, run: Run, wanted: tuple[Phase, ...]) -> State:
    """Return the run as it was when it came into a phase of `wanted`, or next changed.

    Entry by entry, so that a phase that lasts for a moment is not overlooked.
    """
    state = await context.lobby.views.state(run.id)
    if state.phase in TERMINAL or state.phase in wanted:
        return state
    with suppress(StoreClosed):  # whoever answers next will say so
        async with aclosing(run.feed(state.seq)) as feed:
            async for item in feed:
                if isinstance(item, Happened):
                    state = evolve(state, item.entry, item.at)
                    if not wanted or state.phase in wanted:
                        break
    return state


def _wait(context: Visit) -> float:
    for part in context.request.headers.get("prefer", "").split(","):
        name, _, value = part.strip().partition("=")
        if name.lower() == "wait" and value.isascii() and value.isdecimal():
            return min(float(value[:6]), context.lobby.limits.wait)
    return 0.0


async def change(context: Visit) -> Response:
    """Raise bounds of a run, on what the caller has seen of it."""
    run = await context.run()
    body = await context.body(ChangeBody)
    context.seen(required=True)
    asking = context.asking(body.reason)
    receipt = await run.raise_cap(
        actor=asking.get("actor"),
        reason=asking.get("reason"),
        request_id=asking.get("request_id"),
        seen=asking.get("seen"),
        **body.caps.given(),
    )
    return await told(context, run, receipt)


async def asked(context: Visit) -> Response:
    """List what was asked of the run, and what became of it."""
    return answer(Commands(items=await _commands(context)))


async def asked_one(context: Visit) -> Response:
    """Show one thing that was asked of the run."""
    for command in await _commands(context):
        if command.id == context.path["command"]:
            return answer(command)
    raise Problem("command_not_found", 404)


async def _commands(context: Visit) -> tuple[Command, ...]:
    run = await context.run()
    records = await context.lobby.store.read(run.id)
    return await anyio.to_thread.run_sync(commands, records)


async def frames(context: Visit) -> Response:
    """List the thoughts that the run holds."""
    return answer(Frames(items=(await _shown(context)).frames))


async def effects(context: Visit) -> Response:
    """List what the run changed in the world."""
    return answer(Effects(items=(await _shown(context)).effects))


async def _shown(context: Visit) -> ShownRun:
    return await context.lobby.views.shown((await context.run()).id)


async def report(context: Visit) -> Response:
    """Say what became of everything the run did, so far or in the end; also as Markdown."""
    found: Report = await (await context.run()).report()
    if "text/markdown" in context.request.headers.get("accept", ""):
        return Response(str(found), media_type="text/markdown")
    return answer(found)


async def verify(context: Visit) -> Response:
    """Check the chain and the invariants of the run's journal."""
    return answer(await context.lobby.mid.verify((await context.run()).id))


async def agents(context: Visit) -> Response:
    """List the agents whose runs can be started here."""
    known = context.lobby.mid.agents.values()
    return answer(
        Agents(
            items=tuple(
                AgentLine(name=a.name, tools=tuple(a.tools), stop=str(a.stop or ""))
                for a in known
            )
        )
    )
