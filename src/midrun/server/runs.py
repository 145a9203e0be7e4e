"""Handlers for runs: start, list, show (with long poll), raise caps, and read parts."""

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
"""Seconds between two checks, in a long poll, whether the run's worker is alive."""


class RunPage(Value, kw_only=True):
    """A page of runs. `counts` is runs per phase, for callers who may see all runs."""

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
    """The commands that a run has received."""

    items: tuple[Command, ...]


class Frames(Value, kw_only=True):
    """The held thoughts of a run, oldest first."""

    items: tuple[FrameView, ...]


class Effects(Value, kw_only=True):
    """The calls of a run that had, or may have had, an effect."""

    items: tuple[EffectView, ...]


async def start(context: Visit) -> Response:
    """Start a run; a repeated request returns the first run."""
    body = await context.body(StartBody)
    mid = context.lobby.mid
    if body.agent not in mid.agents:
        known = ", ".join(mid.agents) or "none"
        problem = f"Cannot find it on this server. Known agents: {known}"
        raise said(Misconfigured(f"agent {body.agent}", problem), "agent_not_found", 404)
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
    """Return the caller's `traceparent`; None if it is missing or malformed."""
    try:
        return traceparent(context.request.headers.get("traceparent", ""))
    except Misconfigured:
        return None


async def created(context: Visit, run: Run) -> Response:
    """Return the response for a run that was started by this or an earlier request."""
    shown = await context.lobby.views.shown(run.id)
    root = root_of(context.request.scope)
    headers = {"Location": f"{root}/v1/runs/{run.id}", "ETag": etag(shown)}
    if run.repeated:
        headers["Idempotency-Replayed"] = "true"
    return answer(shown, 201, headers)


def _stop(context: Visit, body: StartBody) -> Stop | None:
    """Return the stop condition of the body; None if it has none.

    A `Custom` condition names a function that the server would import. Only the code of the
    server may choose that, never a request.

    Raises:
        HttpProblem: 403, the caller is not an operator; 422, the conditions are not allowed.
    """
    caps = stop_of(body.caps.given())
    if (caps or body.stop) and context.actor.role != "operator":
        problem = f"Cannot set caps as {context.actor.role}: only operators may."
        raise Problem("not_allowed", 403, problem)
    if caps and body.stop:
        problem = "Cannot use both caps and stop. Send one of them."
        raise Problem("invalid_body", 422, problem)
    if any(isinstance(leaf, Custom) for leaf in leaves(body.stop)):
        problem = (
            "Cannot accept a Custom condition: it names code of the server. Set it on the agent"
        )
        raise said(Misconfigured("stop", problem), "misconfigured", 422)
    return caps or body.stop


def stop_of(caps: dict[str, float]) -> Stop | None:
    """Return the stop condition for caps by name; None if there are none."""
    stops: list[Stop] = []
    for name, value in counted(caps).items():  # cost in micro-dollars, time in microseconds
        if name == "cost":
            stops.append(MaxCost(value / 1e6))
        elif name == "time":
            stops.append(MaxTime(value / 1e6))
        else:
            stops.append(cast("Stop", CAPS[name](value)))
    return AnyOf(tuple(stops)) if len(stops) > 1 else next(iter(stops), None)


async def listed(context: Visit) -> Response:
    """List runs, newest first; users see only their own."""
    params = context.request.query_params
    limit = context.number("limit", 50, least=1, most=200)
    if (attention := params.get("attention", "")) not in {"", "true", "false"}:
        raise Problem("bad_query", 400, "attention must be true or false")
    query = Query(
        phases=phases_in(params),
        agent=params.get("agent", ""),
        label=params.get("label", ""),
        thread=params.get("thread", ""),
        parent=RunId(params.get("parent", "")),
        owner=context.own_runs_only,
        attention=attention == "true",
        limit=limit,
        cursor=params.get("cursor", ""),
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
    """Return the phases in a query, from one parameter `phase` (or `state`) or several.

    Raises:
        HttpProblem: 400, no such phase.
    """
    return phases_of(",".join(given.getlist("phase") or given.getlist("state")))


def phases_of(text: str) -> tuple[Phase, ...]:
    """Parse phases separated by commas; "terminal" stands for the two final phases.

    Raises:
        HttpProblem: 400, no such phase.
    """
    names = [name for part in text.split(",") if (name := part.strip())]
    terminal = [Phase.COMPLETED, Phase.CANCELLED] if "terminal" in names else []
    try:
        return (*(Phase(name) for name in names if name != "terminal"), *terminal)
    except ValueError:
        known = ", ".join(Phase)
        problem = f"Cannot find one of the phases. Known phases: {known}, terminal."
        raise Problem("bad_query", 400, problem) from None


async def look(context: Visit) -> Response:
    """Show a run; `Prefer: wait=N` waits until it reaches a phase of `until` or changes.

    A long poll ends at the first of these: the phase or the change, N seconds, the end of the
    server, or the end of the caller's credential. In each case but the last it shows the run.
    """
    run = await context.run()
    wanted = phases_of(context.request.query_params.get("until", ""))
    wait = _wait(context)
    headers, found = {}, None
    if wait:
        # A long poll holds a connection as a stream does, and counts as one.
        allowance, caller = context.lobby.allowance, context.actor.name
        allowance.check_stream(caller)
        headers["Preference-Applied"] = f"wait={wait:g}"
        with allowance.stream(caller), anyio.move_on_after(wait):
            async with anyio.create_task_group() as tasks:
                # Each task cancels the whole wait when its condition holds. `found` then stays
                # None, and the current state is shown.
                waiting = tasks.cancel_scope
                tasks.start_soon(_until, context.over, waiting)
                tasks.start_soon(_until, partial(context.caller.leaves, context.lobby), waiting)
                if not wanted:
                    tasks.start_soon(_until, partial(_otherwise, context, run), waiting)
                found = await _changed(context, run, wanted)
                waiting.cancel()
        # The wait may have outlived the session: check before any data is shown.
        if not await context.caller.holds(context.lobby):
            problem = "Cannot show the run: the session has ended. Sign in again."
            raise Problem("unauthorized", 401, problem)
    shown = await context.lobby.views.shown_in(found or await context.lobby.views.state(run.id))
    headers["ETag"] = etag(shown)
    if _has(context, shown):
        return Response(status_code=304, headers=headers)
    return answer(shown, headers=headers)


def _has(context: Visit, shown: ShownRun) -> bool:
    """Return whether `If-None-Match` names this view."""
    known = context.request.headers.get("if-none-match", "")
    tags = {tag.strip().removeprefix("W/") for tag in known.split(",")}
    return not tags.isdisjoint({etag(shown), "*"})


async def _until(over: Callable[[], Awaitable[None]], waiting: anyio.CancelScope) -> None:
    await over()
    waiting.cancel()


async def _otherwise(context: Visit, run: Run) -> None:
    """Wait until the view differs from the caller's, even without a new entry.

    A worker that falls silent, or is heard of again, appends no entry: only polling finds out.
    """
    while _has(context, await context.lobby.views.shown(run.id)):  # noqa: ASYNC110 - see above
        await anyio.sleep(SILENCE_S)


async def _changed(context: Visit, run: Run, wanted: tuple[Phase, ...]) -> State:
    """Wait until the run enters a phase of `wanted`, or changes; return that state.

    The state is folded entry by entry, so a phase that lasts only a moment is not missed.
    """
    state = await context.lobby.views.state(run.id)
    if state.phase in TERMINAL or state.phase in wanted:
        return state
    with suppress(StoreClosed):  # the caller's next read of the store raises it again
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
            # A preference may be shortened (RFC 7240); `Preference-Applied` says so.
            return min(float(value[:6]), context.lobby.limits.wait)
    return 0.0


async def change(context: Visit) -> Response:
    """Raise caps of a run; `If-Match` is required."""
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
    """List the commands that the run has received, each with its status."""
    return answer(Commands(items=await _commands(context)))


async def asked_one(context: Visit) -> Response:
    """Show one command of the run."""
    wanted = context.path["command"]
    for command in await _commands(context):
        if command.id == wanted:
            return answer(command)
    raise Problem("command_not_found", 404, f"Cannot find command {wanted} in this run.")


async def _commands(context: Visit) -> tuple[Command, ...]:
    run = await context.run()
    records = await context.lobby.store.read(run.id)
    # A long journal takes a while to walk: in a thread, so that the event loop stays free.
    return await anyio.to_thread.run_sync(commands, records)


async def frames(context: Visit) -> Response:
    """List the held thoughts of the run."""
    return answer(Frames(items=(await _shown(context)).frames))


async def effects(context: Visit) -> Response:
    """List the effects of the run."""
    return answer(Effects(items=(await _shown(context)).effects))


async def _shown(context: Visit) -> ShownRun:
    return await context.lobby.views.shown((await context.run()).id)


async def report(context: Visit) -> Response:
    """Report what the run did and what was undone, as JSON or Markdown."""
    found: Report = await (await context.run()).report()
    if "text/markdown" in context.request.headers.get("accept", ""):
        return Response(str(found), media_type="text/markdown")
    return answer(found)


async def verify(context: Visit) -> Response:
    """Verify the hash chain and the invariants of the run's journal."""
    return answer(await context.lobby.mid.verify((await context.run()).id))


async def agents(context: Visit) -> Response:
    """List the agents of this server."""
    known = context.lobby.mid.agents.values()
    return answer(
        Agents(
            items=tuple(
                AgentLine(name=a.name, tools=tuple(a.tools), stop=str(a.stop or ""))
                for a in known
            )
        )
    )
