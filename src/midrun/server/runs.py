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
from midrun.core.stops import CAP_TYPES, AnyOf, Custom, MaxCost, MaxTime, Stop, flatten_stop
from midrun.core.values import TERMINAL_PHASES, Json, Phase, Value
from midrun.errors import Misconfigured, RunErased, RunNotFound, StoreClosed
from midrun.ports.store import Page, RunQuery, RunRow
from midrun.runs.control_bodies import BODY_MAX_FILES, make_files
from midrun.runs.run import Run
from midrun.runs.turns import count_turns
from midrun.runs.turns import list_turns as list_turn_views
from midrun.runs.validation import SEARCH_MAX_CHARS, check_traceparent, convert_caps
from midrun.runs.values import EffectView, FeedEntry, FrameView, RunView
from midrun.runs.wire import RunPage, TurnPage
from midrun.server.commands import Command, read_commands
from midrun.server.problem_details import HttpProblem, make_problem
from midrun.server.request_checks import mount_path
from midrun.server.request_context import (
    RequestContext,
    json_response,
    make_etag,
)
from midrun.server.schemas import StartBody
from midrun.text.report import Report

LISTED_IDS_MAX: Final = 50
"""The number of run ids in one query of the list."""

TURNS_PER_PAGE: Final = 40
"""The number of turns on the first page; the client pages back for earlier ones."""

SILENCE_POLL_S: Final = 2.0
"""Seconds between two checks, in a long poll, whether the run's worker is alive."""


class AgentLine(Value, kw_only=True):
    """An agent whose runs can be started here; `parameters` has a JSON Schema by tool."""

    name: str
    tools: tuple[str, ...]
    parameters: dict[str, Json]
    stop: str
    framework: str = ""  # of an agent made with `midrun.host`
    undeclared_tools: int = 0


class UploadLimits(Value, kw_only=True):
    """The bounds on the files of one request.

    Attributes:
        files: The most files.
        file_bytes: The most bytes of one file.
        total_bytes: The most bytes of all files together.
    """

    files: int
    file_bytes: int
    total_bytes: int


class Agents(Value, kw_only=True):
    """The agents of this server, and the files that can be sent to their runs."""

    items: tuple[AgentLine, ...]
    uploads: UploadLimits


class Commands(Value, kw_only=True):
    """The commands that a run has received."""

    items: tuple[Command, ...]


class Frames(Value, kw_only=True):
    """The held topics of a run, oldest first."""

    items: tuple[FrameView, ...]


class Effects(Value, kw_only=True):
    """The calls of a run that had, or may have had, an effect."""

    items: tuple[EffectView, ...]


async def start_run(context: RequestContext) -> Response:
    """Start a run; a repeated request returns the first run."""
    body = await context.decode_body(StartBody)
    mid = context.server.mid
    if body.agent not in mid.agents:
        known = ", ".join(mid.agents) or "none, it has no agents"
        problem = f"must be one of this server ({known}), got {body.agent!r}"
        raise make_problem(Misconfigured("agent", problem), "agent_not_found", 404)
    # The quota check knows the request id: a repeat of a request that has already started its
    # run must return that run, even if the caller has no room for another one.
    stop, request_id = _stop_condition(context, body), context.request_id()
    start = partial(
        mid.start,
        body.agent,
        body.input,
        thread=body.thread_id or None,
        labels=body.labels,
        stop=stop,
        request_id=request_id,
        actor=context.actor,
        trace=_read_trace_parent(context),
        own_thread=bool(context.owner_filter),
        files=make_files(body.files),
        tenant=body.tenant,
        team=context.check_team(body.team),
    )
    run = await context.start_within_quotas(request_id, lambda quotas: start(quotas=quotas))
    return await make_created_response(context, run)


def _read_trace_parent(context: RequestContext) -> str | None:
    """Return the caller's `traceparent`; None if it is missing or malformed."""
    # The specification of Trace Context says to ignore a malformed header. A broken tracer in
    # front of the server must not prevent runs.
    try:
        return check_traceparent(context.request.headers.get("traceparent", ""))
    except Misconfigured:
        return None


async def make_created_response(context: RequestContext, run: Run) -> Response:
    """Return the response for a run that was started by this or an earlier request."""
    shown = await context.server.views.show_run(run.id)
    root = mount_path(context.request.scope)
    headers = {"Location": f"{root}/v1/runs/{run.id}", "ETag": make_etag(shown)}
    if run.repeated:
        headers["Idempotency-Replayed"] = "true"
    return json_response(shown, 201, headers)


def _stop_condition(context: RequestContext, body: StartBody) -> Stop | None:
    """Return the stop condition of the body; None if it has none.

    A `Custom` condition names a function that the server would import. Only the code of the
    server may choose that, never a request.

    Raises:
        HttpProblem: 403, the caller is not an operator; 422, the conditions are not allowed.
    """
    caps = caps_to_stop(body.caps.list_set_caps())
    if (caps or body.stop) and context.actor.role != "operator":
        problem = f"Cannot set caps as {context.actor.role}: only operators may."
        raise HttpProblem("not_allowed", 403, problem)
    if caps and body.stop:
        problem = "Cannot use both caps and stop. Send one of them."
        raise HttpProblem("invalid_body", 422, problem)
    if any(isinstance(leaf, Custom) for leaf in flatten_stop(body.stop)):
        problem = (
            "Cannot accept a Custom condition: it names code of the server. Set it on the agent"
        )
        raise make_problem(Misconfigured("stop", problem), "misconfigured", 422)
    return caps or body.stop


def caps_to_stop(caps: dict[str, float]) -> Stop | None:
    """Return the stop condition for caps by name; None if there are none."""
    stops: list[Stop] = []
    for name, value in convert_caps(
        caps
    ).items():  # cost in micro-dollars, time in microseconds
        if name == "cost":
            stops.append(MaxCost(value / 1e6))
        elif name == "time":
            stops.append(MaxTime(value / 1e6))
        else:
            stops.append(cast("Stop", CAP_TYPES[name](value)))
    return AnyOf(tuple(stops)) if len(stops) > 1 else next(iter(stops), None)


async def list_runs(context: RequestContext) -> Response:
    """List runs, newest first; users see only their own."""
    params = context.request.query_params
    limit = context.read_number("limit", 50, minimum=1, maximum=200)
    if (attention := params.get("attention", "")) not in {"", "true", "false"}:
        raise HttpProblem("bad_query", 400, "attention must be true or false")
    query = RunQuery(
        phases=read_phases(params),
        agent=params.get("agent", ""),
        label=params.get("label", ""),
        thread=params.get("thread", ""),
        parent=RunId(params.get("parent", "")),
        attention=attention == "true",
        search=read_search(params),
        tenant=params.get("tenant"),
        limit=limit,
        cursor=params.get("cursor", ""),
    )
    page = await context.list_runs(query)
    if ids := params.get("run", ""):
        page = Page(items=await _find_rows(context, ids.split(",")), cursor="")
    counts = {}
    if not context.owner_filter:
        tenant = context.visibility.tenant
        counts = dict(await context.server.store.count_runs_by_phase(tenant))
    items = await context.server.overlays.build_items(page.items, context.actor)
    return json_response(
        RunPage(
            items=items,
            next_cursor=page.cursor,
            counts={str(phase): count for phase, count in counts.items()},
        )
    )


async def _find_rows(context: RequestContext, ids: list[str]) -> tuple[RunRow, ...]:
    """Return the rows of these runs, without those that the caller may not see.

    Raises:
        HttpProblem: 400, there are too many ids.
    """
    if len(ids) > LISTED_IDS_MAX:
        problem = f"run must have at most {LISTED_IDS_MAX} ids, got {len(ids)}"
        raise HttpProblem("bad_query", 400, problem)
    rows: list[RunRow] = []
    for run in map(RunId, ids):
        with suppress(RunNotFound):
            if await context.can_see(run):
                rows.append(await context.server.store.get_row(run))
    return tuple(rows)


def read_search(params: QueryParams) -> str:
    """Return the search in a query.

    Raises:
        HttpProblem: 400, it is too long.
    """
    search = params.get("search", "")
    if len(search) > SEARCH_MAX_CHARS:
        problem = f"search must have at most {SEARCH_MAX_CHARS} characters, got {len(search)}"
        raise HttpProblem("bad_query", 400, problem)
    return search


def read_phases(params: QueryParams) -> tuple[Phase, ...]:
    """Return the phases in a query, from one parameter `phase` (or `state`) or several.

    Raises:
        HttpProblem: 400, no such phase.
    """
    return parse_phases(",".join(params.getlist("phase") or params.getlist("state")))


def parse_phases(text: str) -> tuple[Phase, ...]:
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
        raise HttpProblem("bad_query", 400, problem) from None


async def show_run(context: RequestContext) -> Response:
    """Show a run; `Prefer: wait=N` waits until it reaches a phase of `until` or changes.

    A long poll ends at the first of these: the phase or the change, N seconds, the end of the
    server, or the end of the caller's credential. In each case but the last it shows the run.
    """
    run = await context.find_run()
    wanted = parse_phases(context.request.query_params.get("until", ""))
    wait = _wait_seconds(context)
    headers, found = {}, None
    if wait:
        # A long poll holds a connection as a stream does, and counts as one.
        allowance, caller = context.server.allowance, context.caller
        context.check_stream()
        headers["Preference-Applied"] = f"wait={wait:g}"
        with allowance.count_stream(caller.key, caller.actor), anyio.move_on_after(wait):
            async with anyio.create_task_group() as tasks:
                # Each task cancels the whole wait when its condition holds. `found` then stays
                # None, and the current state is shown.
                waiting = tasks.cancel_scope
                tasks.start_soon(_cancel_after, context.wait_until_stopping, waiting)
                tasks.start_soon(
                    _cancel_after,
                    partial(context.caller.wait_until_invalid, context.server),
                    waiting,
                )
                if not wanted:
                    tasks.start_soon(
                        _cancel_after, partial(_wait_for_other_view, context, run), waiting
                    )
                found = await _wait_for_phase(context, run, wanted)
                waiting.cancel()
        # The wait may have outlived the session: check before any data is shown.
        if not await context.caller.has_valid_credential(context.server):
            problem = "Cannot show the run: the session has ended. Sign in again."
            raise HttpProblem("unauthorized", 401, problem)
    shown = await context.server.views.show_state(
        found or await context.server.views.read_state(run.id)
    )
    headers["ETag"] = make_etag(shown)
    if _has_current_view(context, shown):
        return Response(status_code=304, headers=headers)
    return json_response(shown, headers=headers)


def _has_current_view(context: RequestContext, view: RunView) -> bool:
    """Return whether `If-None-Match` names this view."""
    known = context.request.headers.get("if-none-match", "")
    tags = {tag.strip().removeprefix("W/") for tag in known.split(",")}
    return not tags.isdisjoint({make_etag(view), "*"})


async def _cancel_after(wait: Callable[[], Awaitable[None]], scope: anyio.CancelScope) -> None:
    await wait()
    scope.cancel()


async def _wait_for_other_view(context: RequestContext, run: Run) -> None:
    """Wait until the view differs from the caller's, even without a new entry.

    A worker that falls silent, or is heard of again, appends no entry: only polling finds out.
    """
    while _has_current_view(context, await context.server.views.show_run(run.id)):  # noqa: ASYNC110 - see above
        await anyio.sleep(SILENCE_POLL_S)


async def _wait_for_phase(
    context: RequestContext, run: Run, phases: tuple[Phase, ...]
) -> State:
    """Wait until the run enters a phase of `wanted`, or changes; return that state.

    The state is folded entry by entry, so a phase that lasts only a moment is not missed.
    """
    state = await context.server.views.read_state(run.id)
    if state.phase in TERMINAL_PHASES or state.phase in phases:
        return state
    with suppress(StoreClosed):  # the caller's next read of the store raises it again
        async with aclosing(run.feed(state.seq)) as feed:
            async for item in feed:
                if isinstance(item, FeedEntry):
                    state = evolve(state, item.entry, item.at)
                    if not phases or state.phase in phases:
                        break
    return state


def _wait_seconds(context: RequestContext) -> float:
    for part in context.request.headers.get("prefer", "").split(","):
        name, _, value = part.strip().partition("=")
        if name.lower() == "wait" and value.isascii() and value.isdecimal():
            # A preference may be shortened (RFC 7240); `Preference-Applied` says so.
            return min(float(value[:6]), context.server.limits.wait)
    return 0.0


async def list_commands(context: RequestContext) -> Response:
    """List the commands that the run has received, each with its status."""
    return json_response(Commands(items=await _read_commands(context)))


async def show_command(context: RequestContext) -> Response:
    """Show one command of the run."""
    wanted = context.path["command"]
    for command in await _read_commands(context):
        if command.id == wanted:
            return json_response(command)
    raise HttpProblem("command_not_found", 404, f"Cannot find command {wanted} in this run.")


async def _read_commands(context: RequestContext) -> tuple[Command, ...]:
    run = await context.find_run()
    records = await context.server.store.read(run.id)
    # A long journal takes a while to walk: in a thread, so that the event loop stays free.
    return await anyio.to_thread.run_sync(read_commands, records)


async def show_overlay(context: RequestContext) -> Response:
    """Show the facts about a run that depend on the caller and on the moment."""
    state = await context.server.views.read_state((await context.find_run()).id)
    return json_response(await context.server.overlays.build(state, context.actor))


async def list_turns(context: RequestContext) -> Response:
    """List the turns of a run: those after the first `after`, by default the newest."""
    state = await context.server.views.read_state((await context.find_run()).id)
    total = count_turns(state)
    limit = context.read_number("limit", TURNS_PER_PAGE, minimum=1, maximum=200)
    after = context.read_number("after", max(total - limit, 0), minimum=0, maximum=2**53 - 1)
    return json_response(TurnPage(items=list_turn_views(state, after, limit), total=total))


async def list_frames(context: RequestContext) -> Response:
    """List the held topics of the run."""
    return json_response(Frames(items=(await _read_view(context)).frames))


async def list_effects(context: RequestContext) -> Response:
    """List the effects of the run."""
    return json_response(Effects(items=(await _read_view(context)).effects))


async def _read_view(context: RequestContext) -> RunView:
    return await context.server.views.show_run((await context.find_run()).id)


async def show_report(context: RequestContext) -> Response:
    """Report what the run did and what was undone, as JSON or Markdown."""
    found: Report = await (await context.find_run()).report()
    if "text/markdown" in context.request.headers.get("accept", ""):
        return Response(str(found), media_type="text/markdown")
    return json_response(found)


async def verify_run(context: RequestContext) -> Response:
    """Verify the hash chain and the invariants of the run's journal."""
    with suppress(RunErased):  # then the tombstone is verified
        await context.find_run()
    return json_response(await context.server.mid.verify(context.path["run"]))


async def list_agents(context: RequestContext) -> Response:
    """List the agents of this server."""
    mid = context.server.mid
    limits = mid.file_limits
    # A body has its files as base64, four characters for three bytes, and other fields besides.
    room = max(0, context.server.limits.upload - context.server.limits.body) * 3 // 4
    return json_response(
        Agents(
            uploads=UploadLimits(
                files=min(BODY_MAX_FILES, limits.run_files),
                file_bytes=min(limits.file_bytes, limits.run_bytes, room),
                total_bytes=min(limits.run_bytes, room),
            ),
            items=tuple(
                AgentLine(
                    name=a.name,
                    tools=tuple(a.tools),
                    parameters={name: tool.schema for name, tool in a.tools.items()},
                    stop=str(a.stop or ""),
                    framework=a.framework,
                    undeclared_tools=a.undeclared_tools,
                )
                for a in mid.agents.values()
            ),
        )
    )
