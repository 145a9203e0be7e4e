"""Runs over HTTP: starting, listing, looking, waiting."""

from contextlib import aclosing
from typing import Final, cast

import anyio
from starlette.responses import Response

from midrun.core.ids import RunId
from midrun.core.report import Report
from midrun.core.stops import CAPS, AnyOf, MaxCost, MaxTime, Stop
from midrun.core.values import Phase, Value
from midrun.embed.resuming import counted
from midrun.embed.run import Run
from midrun.embed.view import EffectView, FrameView
from midrun.errors import RunOver
from midrun.ports.store import Query, RunRow
from midrun.server.bodies import ChangeBody, ForkBody, StartBody
from midrun.server.commands import Command, commands
from midrun.server.problems import Problem
from midrun.server.views import RunLine, ShownRun, run_line
from midrun.server.visit import Visit, answer, etag, told

PAGES_MAX: Final = 20
"""How many pages of other people's runs are passed over for one page of a user's own."""


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


async def start(visit: Visit) -> Response:
    """Start a run. Whoever repeats the request gets the first one."""
    body = await visit.body(StartBody)
    mid = visit.lobby.mid
    if body.agent not in mid.agents:
        raise Problem("agent_not_found", 404, f"known here: {', '.join(mid.agents) or 'none'}")
    if body.caps.given() and visit.actor.role != "operator":
        raise Problem("not_allowed", 403, "only operators set caps")
    if body.thread_id:
        await _check_thread(visit, body.thread_id)
    run = await mid.start(
        body.agent,
        body.input,
        thread=body.thread_id or None,
        labels=body.labels,
        stop=stop_of(body.caps.given()),
        request_id=visit.request_id(),
        actor=visit.actor,
    )
    return await created(visit, run)


async def created(visit: Visit, run: Run) -> Response:
    """Return a run that was started."""
    shown = await visit.lobby.views.shown(run.id)
    root = visit.request.scope.get("root_path", "")
    headers = {"Location": f"{root}/v1/runs/{run.id}", "ETag": etag(shown)}
    return answer(shown, 201, headers)


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


async def _check_thread(visit: Visit, thread: str) -> None:
    """Refuse to continue somebody else's conversation: a run is given what was said in it."""
    page = await visit.lobby.store.runs(Query(thread=thread, limit=1))
    for row in page.items:
        if not await visit.lobby.views.sees(visit.actor, row.run):
            raise Problem("not_allowed", 403, "this thread is somebody else's")


async def listed(visit: Visit) -> Response:
    """List runs, newest first; users see their own."""
    given = visit.request.query_params
    limit = visit.number("limit", 50, least=1, most=200)
    found: list[RunRow] = []
    cursor = given.get("cursor", "")
    if (attention := given.get("attention", "")) not in {"", "true", "false"}:
        raise Problem("bad_query", 400, "attention is true or false")
    for _ in range(PAGES_MAX):
        page = await visit.lobby.store.runs(
            Query(
                phases=phases_of(given.get("phase", "")),
                agent=given.get("agent", ""),
                label=given.get("label", ""),
                thread=given.get("thread", ""),
                parent=RunId(given.get("parent", "")),
                attention=attention == "true",
                limit=limit - len(found),
                cursor=cursor,
            )
        )
        sees = visit.lobby.views.sees
        found += [row for row in page.items if await sees(visit.actor, row.run)]
        cursor = page.cursor
        if not cursor or len(found) >= limit:
            break
    counts = {} if visit.actor.role == "user" else await visit.lobby.store.counts()
    items = tuple(map(run_line, found))
    return answer(
        RunPage(
            items=items,
            next_cursor=cursor,
            counts={str(phase): count for phase, count in counts.items()},
        )
    )


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


async def look(visit: Visit) -> Response:
    """Show a run; with `Prefer: wait=N`, once it is in a phase of `until`, or has changed."""
    run = await visit.run()
    wanted = phases_of(visit.request.query_params.get("until", ""))
    wait = _wait(visit)
    headers = {}
    if wait:
        headers["Preference-Applied"] = f"wait={wait:g}"
        with anyio.move_on_after(wait):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_closing, visit, tasks.cancel_scope)
                await _changed(visit, run, wanted)
                tasks.cancel_scope.cancel()
    shown = await visit.lobby.views.shown(run.id)
    headers["ETag"] = etag(shown)
    if visit.request.headers.get("if-none-match") == etag(shown):
        return Response(status_code=304, headers=headers)
    return answer(shown, headers=headers)


async def _closing(visit: Visit, waiting: anyio.CancelScope) -> None:
    """Let nobody wait for a server that is going away."""
    await visit.lobby.closing.wait()
    waiting.cancel()


async def _changed(visit: Visit, run: Run, wanted: tuple[Phase, ...]) -> None:
    if wanted:
        try:
            await run.until(*wanted)
        except RunOver:
            return
        return
    shown = await visit.lobby.views.shown(run.id)
    if visit.request.headers.get("if-none-match") != etag(shown):
        return
    async with aclosing(run.feed(shown.seq)) as feed:
        async for item in feed:
            if item.seq is not None:
                return


def _wait(visit: Visit) -> float:
    for part in visit.request.headers.get("prefer", "").split(","):
        name, _, value = part.strip().partition("=")
        if name.lower() == "wait" and value.isascii() and value.isdecimal():
            return min(float(value[:6]), visit.lobby.limits.wait)
    return 0.0


async def change(visit: Visit) -> Response:
    """Raise bounds of a run, on what the caller has seen of it."""
    run = await visit.run()
    body = await visit.body(ChangeBody)
    await visit.match(run, required=True)
    asking = visit.asking(body.reason)
    receipt = await run.raise_cap(
        actor=asking.get("actor"),
        reason=asking.get("reason"),
        request_id=asking.get("request_id"),
        **body.caps.given(),
    )
    return await told(visit, run, receipt)


async def fork(visit: Visit) -> Response:
    """Continue from a boundary of the run as a new one."""
    run = await visit.run()
    body = await visit.body(ForkBody)
    made = await run.fork(body.seq, instruction=body.instruction or None, actor=visit.actor)
    return await created(visit, made)


async def asked(visit: Visit) -> Response:
    """List what was asked of the run, and what became of it."""
    return answer(Commands(items=await _commands(visit)))


async def asked_one(visit: Visit) -> Response:
    """Show one thing that was asked of the run."""
    for command in await _commands(visit):
        if command.id == visit.path["command"]:
            return answer(command)
    raise Problem("command_not_found", 404)


async def _commands(visit: Visit) -> tuple[Command, ...]:
    run = await visit.run()
    return commands(await visit.lobby.store.read(run.id))


async def frames(visit: Visit) -> Response:
    """List the thoughts that the run holds."""
    return answer(Frames(items=(await _shown(visit)).frames))


async def effects(visit: Visit) -> Response:
    """List what the run changed in the world."""
    return answer(Effects(items=(await _shown(visit)).effects))


async def _shown(visit: Visit) -> ShownRun:
    return await visit.lobby.views.shown((await visit.run()).id)


async def report(visit: Visit) -> Response:
    """Say what became of everything the run did, so far or in the end; also as Markdown."""
    found: Report = await (await visit.run()).report()
    if "text/markdown" in visit.request.headers.get("accept", ""):
        return Response(str(found), media_type="text/markdown")
    return answer(found)


async def checkpoint(visit: Visit) -> Response:
    """Return a parked run as portable JSON, signed where there is a key."""
    found = await (await visit.run()).checkpoint()
    return Response(found.to_json(), media_type="application/json")


async def export(visit: Visit) -> Response:
    """Return the journal, line by line as it is stored: what the chain was computed over."""
    run = await visit.run()
    pairs = await visit.lobby.store.lines(run.id)
    return Response(
        b"".join(line + b"\n" for line, _ in pairs), media_type="application/x-ndjson"
    )


async def verify(visit: Visit) -> Response:
    """Check the chain and the invariants of the run's journal."""
    return answer(await visit.lobby.mid.verify((await visit.run()).id))


async def agents(visit: Visit) -> Response:
    """List the agents whose runs can be started here."""
    known = visit.lobby.mid.agents.values()
    return answer(
        Agents(
            items=tuple(
                AgentLine(name=a.name, tools=tuple(a.tools), stop=str(a.stop or ""))
                for a in known
            )
        )
    )
