"""`RemoteMidrun`: the runs of a server. What it promises, `Midrun` says."""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, Self

import msgspec
from msgspec import Struct

from midrun.agents.agent import Agent
from midrun.agents.checkpoint import Checkpoint
from midrun.client.decode import RunLine, read, row
from midrun.client.run import RemoteRun
from midrun.client.transport import Link
from midrun.codec.strict_json import checked
from midrun.core.ids import RunId
from midrun.core.stops import Stop
from midrun.core.values import Json
from midrun.errors import Misconfigured
from midrun.ports.environment import Outside
from midrun.ports.store import Page, RunRow
from midrun.runs import validation
from midrun.runs.validation import REASON_MAX_CHARS, Who, phase_of
from midrun.runs.values import OpenAsk, RunView, Verdict

PAGE_MAX: Final = 200
"""How many runs a server lists at once."""

LISTED: Final = 500
"""Among how many of the newest runs one is found by the beginning of its id."""


class RunPage(Struct, frozen=True, kw_only=True):
    """A page of runs."""

    items: tuple[RunLine, ...]
    next_cursor: str


class AskPage(Struct, frozen=True, kw_only=True):
    """A page of asks."""

    items: tuple[OpenAsk, ...]
    next_cursor: str


class RemoteMidrun:
    """The runs of a server, with the methods of `Midrun`. Use it as an async context manager.

    The server drives them: leaving this changes nothing for any run.
    """

    def __init__(
        self, url: str, token: str | None, *, patience: float, outside: Outside | None = None
    ) -> None:
        self._link = Link(url, token, patience, outside or Outside())
        self._open: AsyncExitStack | None = None

    async def __aenter__(self) -> Self:
        if self._open is not None:
            raise Misconfigured("connect", "it is open already; connect a second time instead")
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._link.opened())
            self._open = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        opened, self._open = self._open, None
        return None if opened is None else await opened.__aexit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"RemoteMidrun({self._link.url!r})"

    # ── runs ──────────────────────────────────────────────────────────────────────────────

    async def start(
        self,
        agent: str | Agent,
        task: str,
        *,
        thread: str | None = None,
        labels: Sequence[str] | None = None,
        stop: Stop | None = None,
        request_id: str | None = None,
        actor: Who = None,
    ) -> RemoteRun:
        """Start a run of one of the server's agents, by its name.

        Raises:
            Misconfigured: the server has no such agent.
            ControlRefused: `request_id_reused`, with another task.
        """
        self._link.check_actor(actor)
        body = {
            "agent": agent if isinstance(agent, str) else agent.name,
            "input": validation.task(task),
            "thread_id": validation.name("thread", thread or ""),
            "labels": validation.labels(labels),
            "stop": msgspec.to_builtins(stop),
        }
        return await self._made("/v1/runs", body, request_id)

    async def get(self, run_id: str) -> RemoteRun:
        """Return the handle of a run.

        Raises:
            RunNotFound: there is none of this id; it is a LookupError, too.
        """
        run = RemoteRun(RunId(run_id), self._link)
        await run.view()
        return run

    async def runs(
        self,
        *,
        phase: str | None = None,
        agent: str | None = None,
        label: str | None = None,
        thread: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[RunView]:
        """Return a page of runs, newest first; `page.cursor` leads to the next."""
        params = {
            "phase": "" if phase is None else phase_of(phase),
            "agent": agent or "",
            "label": label or "",
            "thread": thread or "",
        }
        page = await self._rows(params, limit, cursor or "")
        found = [await RemoteRun(row.run, self._link).view() for row in page.items]
        return Page(items=tuple(found), cursor=page.cursor)

    async def _rows(self, params: dict[str, str], limit: int, cursor: str) -> Page[RunRow]:
        found: tuple[RunRow, ...] = ()
        while True:
            params |= {"limit": str(min(limit - len(found), PAGE_MAX)), "cursor": cursor}
            reply = await self._link.get("/v1/runs", params=params)
            page = read(RunPage, reply.json())
            found, cursor = (*found, *map(row, page.items)), page.next_cursor
            if not cursor or len(found) >= limit:
                return Page(items=found, cursor=cursor)

    async def named(self, beginning: str) -> tuple[RunId, ...]:
        """Return which of the newest runs have ids that begin so, with or without `run_`."""
        begins = (beginning, f"run_{beginning}")
        rows = (await self._rows({}, LISTED, "")).items
        return tuple(row.run for row in rows if row.run.startswith(begins))

    async def asks(self) -> tuple[OpenAsk, ...]:
        """Return everything that runs wait for somebody to decide."""
        found: tuple[OpenAsk, ...] = ()
        cursor = ""
        while True:
            reply = await self._link.get("/v1/asks", params={"cursor": cursor})
            page = read(AskPage, reply.json())
            found += page.items
            cursor = page.next_cursor
            if not cursor:
                return found

    async def resume(
        self,
        checkpoint: Checkpoint,
        answer: Json = None,
        *,
        instruction: str | None = None,
        caps: dict[str, float] | None = None,
        actor: Who = None,
        request_id: str | None = None,
    ) -> RemoteRun:
        """Go on from a checkpoint; a run that the server does not know is taken in there.

        Raises:
            CheckpointRefused: stale (the run went on meanwhile), expired, or of another agent.
            ControlRefused: the answer or the instruction does not fit where the run stands.
        """
        self._link.check_actor(actor)
        validation.counted(caps or {})
        body = {
            "checkpoint": msgspec.Raw(validation.checkpoint(checkpoint).to_json().encode()),
            "answer": checked(answer),
            "instruction": validation.text("instruction", instruction or ""),
            "caps": caps or {},
        }
        return await self._made("/v1/resume", body, request_id)

    async def verify(self, run_id: str) -> Verdict:
        """Check the chain and every invariant of a run's journal; truthy when clean."""
        return read(Verdict, (await self._link.get(f"/v1/runs/{run_id}/verify")).json())

    # ── latches ───────────────────────────────────────────────────────────────────────────

    async def halt(self, reason: str, *, scope: str = "all", actor: Who = None) -> None:
        """Set a latch: nothing of the runs it covers starts until it is lifted."""
        self._link.check_actor(actor)
        body = {"scope": scope, "reason": validation.name("reason", reason, REASON_MAX_CHARS)}
        await self._link.change("POST", "/v1/halt", body)

    async def lift(self, *, scope: str = "all", actor: Who = None) -> bool:
        """Take a latch away; runs that no other latch covers go on where they were."""
        self._link.check_actor(actor)
        reply = await self._link.change("POST", "/v1/lift", {"scope": scope})
        # Where a reply was lost, the latch that is gone now was lifted by what it replied to.
        return reply.json().get("lifted") is True or reply.lost

    # ── inside ────────────────────────────────────────────────────────────────────────────

    async def _made(
        self, path: str, body: Mapping[str, object], request_id: str | None
    ) -> RemoteRun:
        reply = await self._link.change("POST", path, body, request_id=request_id)
        return RemoteRun(read(RunView, reply.json()).run_id, self._link)
