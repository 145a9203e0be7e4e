"""`RemoteMidrun`: the runs of a server, over HTTP. `Midrun` documents the methods."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, Self, Unpack
from urllib.parse import quote

import httpx2
import msgspec

from midrun.agents.agent import Agent
from midrun.agents.checkpoint import Checkpoint
from midrun.agents.file import File, check_files
from midrun.client.decode import decode_value
from midrun.client.run import RemoteRun
from midrun.client.transport import HttpTransport
from midrun.codec.strict_json import normalize_json
from midrun.core.ids import RunId
from midrun.core.stops import Stop
from midrun.core.values import Json
from midrun.errors import Misconfigured
from midrun.ports.audit import AuditEntry
from midrun.ports.environment import Environment
from midrun.ports.store import Page
from midrun.runs import validation
from midrun.runs.control_bodies import make_file_bodies
from midrun.runs.validation import (
    REASON_MAX_CHARS,
    ActorLike,
    SelectionOptions,
    TimeLike,
    parse_phase,
)
from midrun.runs.values import DeletableRuns, OpenAsk, RunView, Verdict
from midrun.runs.wire import (
    AskPage,
    AuditPage,
    DeletedCount,
    EndedSessions,
    RunListItem,
    RunPage,
    SessionItem,
    SessionList,
)

PAGE_MAX_RUNS: Final = 200
"""The largest page of runs that a server returns."""

PREFIX_SEARCH_MAX_RUNS: Final = 500
"""`named` looks for a prefix among this many of the newest runs."""


class AgentName(msgspec.Struct):
    """An agent of the server; other fields are not used here."""

    name: str


class AgentNames(msgspec.Struct):
    """The reply to `GET /v1/agents`."""

    items: tuple[AgentName, ...]


class RemoteMidrun:
    """The runs of a server, with the methods of `Midrun`. Get one from `midrun.connect`.

    Use it as an async context manager. The server drives the runs, so leaving the context has
    no effect on them. Every method may raise `ServerUnreachable` and `ServerRefused`.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        patience: float,
        environment: Environment | None = None,
        http: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._transport = HttpTransport(
            url, token, patience, environment or Environment(), http
        )
        self._exit_stack: AsyncExitStack | None = None

    async def __aenter__(self) -> Self:
        if self._exit_stack is not None:
            problem = "Cannot open it twice: it is open already. Call connect again."
            raise Misconfigured("connect", problem)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._transport.connect())
            self._exit_stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        opened, self._exit_stack = self._exit_stack, None
        return None if opened is None else await opened.__aexit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"RemoteMidrun({self._transport.url!r})"

    # ── runs ──────────────────────────────────────────────────────────────────────────────

    async def start(  # noqa: PLR0913 - one keyword per setting
        self,
        agent: str | Agent,
        task: str,
        *,
        thread: str | None = None,
        labels: Sequence[str] | None = None,
        stop: Stop | None = None,
        request_id: str | None = None,
        actor: ActorLike = None,
        files: Sequence[File] | None = None,
        tenant: str | None = None,
        team: str | None = None,
    ) -> RemoteRun:
        """Start a run of one of the server's agents, and return its handle.

        Only the name of `agent` is sent. `tenant` is by default that of the token.

        Raises:
            Misconfigured: The server has no such agent, or the task is empty.
            ControlRefused: `request_id_reused`: the first call had other arguments.
        """
        self._transport.check_actor(actor)
        body = {
            "agent": agent if isinstance(agent, str) else agent.name,
            "input": validation.check_task(task),
            "thread_id": validation.check_name("thread", thread or ""),
            "labels": validation.check_labels(labels),
            "stop": msgspec.to_builtins(stop),
            "files": make_file_bodies(check_files(files)),
            "tenant": validation.check_tenant(tenant) or None,
            "team": validation.check_name("team", team or ""),
        }
        return await self._post_for_run("/v1/runs", body, request_id)

    async def get(self, run_id: str) -> RemoteRun:
        """Return the handle of an existing run.

        Raises:
            RunNotFound: The server has no run with this id. It is also a `LookupError`.
        """
        run = RemoteRun(RunId(run_id), self._transport)
        await run.view()
        return run

    async def runs(
        self,
        *,
        phase: str | None = None,
        agent: str | None = None,
        label: str | None = None,
        thread: str | None = None,
        search: str | None = None,
        tenant: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[RunView]:
        """Return a page of runs, newest first; pass `page.cursor` to get the next page."""
        params = {
            "phase": "" if phase is None else parse_phase(phase),
            "agent": agent or "",
            "label": label or "",
            "thread": thread or "",
            "search": validation.check_search(search),
        }
        if tenant is not None:
            params["tenant"] = tenant
        page = await self._fetch_items(params, limit, cursor or "")
        # The list has only a row of each run; the view of each run is a request of its own.
        views = [await RemoteRun(item.run_id, self._transport).view() for item in page.items]
        return Page(items=tuple(views), cursor=page.cursor)

    async def _fetch_items(
        self, params: dict[str, str], limit: int, cursor: str
    ) -> Page[RunListItem]:
        # The server limits a page. Ask for more pages until `limit` is reached, but never for
        # more runs than are left, so that the cursor stands right behind the last one.
        items: tuple[RunListItem, ...] = ()
        while True:
            params |= {"limit": str(min(limit - len(items), PAGE_MAX_RUNS)), "cursor": cursor}
            reply = await self._transport.get("/v1/runs", params=params)
            page = decode_value(RunPage, reply.json())
            items, cursor = (*items, *page.items), page.next_cursor
            if not cursor or len(items) >= limit:
                return Page(items=items, cursor=cursor)

    async def find_ids(self, beginning: str) -> tuple[RunId, ...]:
        """Return the ids that start with `beginning`, with or without `run_`.

        Only the newest 500 runs are searched.
        """
        begins = (beginning, f"run_{beginning}")
        items = (await self._fetch_items({}, PREFIX_SEARCH_MAX_RUNS, "")).items
        return tuple(item.run_id for item in items if item.run_id.startswith(begins))

    async def asks(self) -> tuple[OpenAsk, ...]:
        """Return all open asks: questions, approvals and unsure calls of all runs."""
        asks: tuple[OpenAsk, ...] = ()
        cursor = ""
        while True:
            reply = await self._transport.get("/v1/asks", params={"cursor": cursor})
            page = decode_value(AskPage, reply.json())
            asks += page.items
            cursor = page.next_cursor
            if not cursor:
                return asks

    async def list_agents(self) -> tuple[str, ...]:
        """Return the names of the agents that runs can be started with."""
        reply = msgspec.convert((await self._transport.get("/v1/agents")).json(), AgentNames)
        return tuple(each.name for each in reply.items)

    async def resume(
        self,
        checkpoint: Checkpoint,
        answer: Json = None,
        *,
        instruction: str | None = None,
        caps: dict[str, float] | None = None,
        actor: ActorLike = None,
        request_id: str | None = None,
    ) -> RemoteRun:
        """Continue a run from a checkpoint.

        A run that the server does not have is imported.

        Raises:
            CheckpointRefused: The run has advanced, or it expired, or the agent differs.
            ControlRefused: The run cannot take the answer or the instruction in its phase.
        """
        self._transport.check_actor(actor)
        validation.convert_caps(caps or {})  # checked here, sent in dollars and seconds
        body = {
            # As encoded by the checkpoint itself: the signature is over these very values.
            "checkpoint": msgspec.Raw(
                validation.check_checkpoint(checkpoint).to_json().encode()
            ),
            "answer": normalize_json(answer),
            "instruction": validation.check_text("instruction", instruction or ""),
            "caps": caps or {},
        }
        return await self._post_for_run("/v1/resume", body, request_id)

    async def verify(self, run_id: str) -> Verdict:
        """Check the hash chain and all invariants of a run's journal; true if clean."""
        return decode_value(
            Verdict, (await self._transport.get(f"/v1/runs/{run_id}/verify")).json()
        )

    # ── deletion ──────────────────────────────────────────────────────────────────────────

    async def count_deletable(self, **selection: Unpack[SelectionOptions]) -> DeletableRuns:
        """Count the runs that `delete_runs` would delete, and those that have not ended."""
        selected = validation.make_selection(**selection)
        body = {"runs": msgspec.to_builtins(selected)}
        reply = await self._transport.send_change("POST", "/v1/deletions/count", body)
        return decode_value(DeletableRuns, reply.json())

    async def delete_runs(
        self,
        *,
        reason: str = "",
        actor: ActorLike = None,
        **selection: Unpack[SelectionOptions],
    ) -> int:
        """Delete all runs that match and have ended; return their number. Needs an operator."""
        self._transport.check_actor(actor)
        selected = validation.make_selection(**selection)
        reason = validation.check_name("reason", reason, REASON_MAX_CHARS)
        body = {"runs": msgspec.to_builtins(selected), "reason": reason}
        deleted = 0
        while True:
            # The server deletes some hundreds of runs for each request.
            reply = await self._transport.send_change("POST", "/v1/deletions", body)
            batch = decode_value(DeletedCount, reply.json())
            deleted += batch.deleted
            if not batch.more:
                return deleted

    # ── halts ─────────────────────────────────────────────────────────────────────────────

    async def halt(
        self,
        reason: str,
        *,
        scope: str = "all",
        tenant: str | None = None,
        actor: ActorLike = None,
    ) -> None:
        """Halt all runs in `scope`: no call of them starts until the halt is lifted."""
        self._transport.check_actor(actor)
        body = {
            "scope": scope,
            "reason": validation.check_name("reason", reason, REASON_MAX_CHARS),
            "tenant": tenant,
        }
        await self._transport.send_change("POST", "/v1/halt", body)

    async def lift(
        self, *, scope: str = "all", tenant: str | None = None, actor: ActorLike = None
    ) -> bool:
        """Lift the halt of `scope`; return False if there was no such halt."""
        self._transport.check_actor(actor)
        body = {"scope": scope, "tenant": tenant}
        reply = await self._transport.send_change("POST", "/v1/lift", body)
        # If the reply to an earlier attempt was lost, that attempt may have lifted the halt,
        # and this one found none. The caller asked once, so count it as lifted.
        return reply.json().get("lifted") is True or reply.reply_was_lost

    # ── sessions ──────────────────────────────────────────────────────────────────────────

    async def list_sessions(self) -> tuple[SessionItem, ...]:
        """Return the signed-in browsers of the server, newest first. Needs an operator."""
        reply = await self._transport.get("/v1/sessions")
        return decode_value(SessionList, reply.json()).items

    async def end_sessions(self, user: str) -> int:
        """Sign out every browser of a user; return their number. Needs an operator."""
        name = validation.check_name("user", user)
        reply = await self._transport.send_change("POST", "/v1/sessions/end", {"actor": name})
        return decode_value(EndedSessions, reply.json()).ended

    async def end_session(self, session_id: str) -> None:
        """Sign out one browser, by the id in `list_sessions`. Needs an operator."""
        path = f"/v1/sessions/{quote(validation.check_name('session_id', session_id), safe='')}"
        await self._transport.send_change("DELETE", path, {})

    # ── audit ─────────────────────────────────────────────────────────────────────────────

    async def audit(
        self, *, since: TimeLike, until: TimeLike | None = None
    ) -> AsyncIterator[AuditEntry]:
        """Yield the actions of people from `since` until before `until` (now).

        The token must be that of an operator.
        """
        now = self._transport.now()
        params = {"since": str(validation.convert_time("since", since, now)), "cursor": ""}
        if until is not None:
            params["until"] = str(validation.convert_time("until", until, now))
        while True:
            reply = await self._transport.get("/v1/audit", params=params)
            page = decode_value(AuditPage, reply.json())
            for entry in page.items:
                yield entry
            params["cursor"] = page.next_cursor
            if not page.next_cursor:
                return

    # ── internals ─────────────────────────────────────────────────────────────────────────

    async def _post_for_run(
        self, path: str, body: Mapping[str, object], request_id: str | None
    ) -> RemoteRun:
        reply = await self._transport.send_change("POST", path, body, request_id=request_id)
        return RemoteRun(decode_value(RunView, reply.json()).run_id, self._transport)
