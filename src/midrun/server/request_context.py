"""A context: one request, with who makes it and what all requests of a server share."""

import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar, get_args, get_type_hints
from urllib.parse import quote
from weakref import WeakValueDictionary

import anyio
import msgspec
import uvicorn
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from midrun.codec.strict_json import Limits as JsonLimits
from midrun.codec.strict_json import parse
from midrun.core.ids import SECOND, Micros, RunId
from midrun.core.lru import LruDict
from midrun.core.values import Actor, When
from midrun.errors import ControlRefused, CursorRefused, Misconfigured, RunNotFound
from midrun.ports.environment import boottime, wall
from midrun.ports.store import Page, Query, RunRow, Store
from midrun.runs.midrun import Midrun
from midrun.runs.run import Run
from midrun.runs.service import run_for
from midrun.runs.validation import Asking
from midrun.runs.values import Receipt, RunView
from midrun.server.audit_log import AuditRecord
from midrun.server.auth import Auth
from midrun.server.broadcast import Channels
from midrun.server.events import Events
from midrun.server.limits import AddressLimit, Allowance, FailedSignIns, Limits, Quota
from midrun.server.problem_details import Problem
from midrun.server.run_views import Lines, Views
from midrun.server.schemas import encoded, whole
from midrun.server.sessions import Session, Sessions

# Who attends to a run right now by a protocol in which leaving means something.


class Attending:
    """Counts the streams of each run."""

    def __init__(self) -> None:
        self._count: Counter[RunId] = Counter()

    @contextmanager
    def of(self, run: RunId) -> Iterator[None]:
        """Attend for as long as the context is open."""
        self._count[run] += 1
        try:
            yield
        finally:
            self._count[run] -= 1
            if not self._count[run]:
                del self._count[run]

    def anybody(self, run: RunId) -> bool:
        """Tell whether somebody attends."""
        return run in self._count


# Hearing: since when nothing was heard of a driver, as far as this server can say.

HOLDERS_MAX: Final = 4096
"""Of how many holders it is remembered."""


class Hearing:
    """Remembers when each holder was last known to be alive.

    The store only says who is. Somebody of whom this server has never heard is silent from the
    moment at which it is first asked: longer, in truth, but never less.
    """

    def __init__(self) -> None:
        self._heard: LruDict[str, Micros] = LruDict(max_items=HOLDERS_MAX)

    def silent_since(self, holder: str, alive: Collection[str], now: Micros) -> Micros:
        """Return since when nothing is heard of `holder`; it is `now` if it is alive."""
        for one in (*alive, holder):
            if one in alive or one not in self._heard:
                self._heard.put(one, now)
        return self._heard.get(holder) or now


# Stopping: whether the web server that called us has been told to stop.
#
# ASGI says so only when every connection has ended, and a stream does not end by itself: each
# would wait for the other, and Ctrl-C would do nothing for as long as somebody has the page
# open. The server of `midrun serve` closes our streams first. Uvicorn with an application that
# we are mounted in knows nothing of us, but it has taken the signals of the process, and we can
# look.


def is_stopping(scope: Scope) -> bool:
    """Tell whether the server that this request came in by is about to stop.

    Another server that stops in the same process is none of our business.
    """
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    if not isinstance(server, uvicorn.Server) or not server.should_exit:
        return False
    ours, connections = scope.get("server"), server.server_state.connections
    return any(getattr(each, "server", None) == ours for each in connections)


# Bridges: settings for protocols that have fewer words than we do.


class Bridges(Struct, frozen=True, kw_only=True):
    """How midrun shows itself to clients that know nothing of pausing.

    `on_disconnect` is what happens to a run whose AG-UI stream was dropped and that nobody else
    watches for `grace_s` seconds: such a client has no other way to say stop, and a closed tab
    looks the same. `pause_as` is what a pause is to AG-UI: an interrupt, or an end; `auto` asks
    the client's version. `stop` is what CopilotKit's one button does.
    """

    on_disconnect: Literal["pause", "cancel", "continue"] = "pause"
    grace_s: float = 10.0
    pause_as: Literal["auto", "interrupt", "success"] = "auto"
    stop: Literal["pause", "cancel"] = "pause"


DAY_MICROS: Final = 86_400 * SECOND

B = TypeVar("B", bound=Struct)

LOOK_S: Final = 1.0
"""How often it is looked whether a server that says nothing is about to stop."""

DIGITS_MAX: Final = 16
"""Of a seq, in a header or a query."""

KEY: Final = r'"?([!#-~]{1,200})"?'
"""An `Idempotency-Key`, with quotes, as its draft has it, or without."""


HEAVY_READS_AT_ONCE: Final = 2
"""Of all callers together. They compute in threads, which take turns with the event loop."""


class Lobby:
    """What all requests of one server share."""

    def __init__(
        self, mid: Midrun, auth: Auth, limits: Limits, bridges: Bridges, key: bytes | None
    ) -> None:
        self.mid = mid
        self.bridges = bridges
        self.attending = Attending()
        self.auth = auth
        self.limits = limits
        self.allowance = Allowance(limits, anyio.current_time)
        self.failures = FailedSignIns(limits, boottime)
        self.unknown_callers = AddressLimit(limits.failures, limits.failure_rate, boottime)
        self.sessions = Sessions(boottime, wall, key=key)
        self.views = Views(mid)
        self.lines = Lines(mid, self.views)
        self.events = Events(mid)
        self.hearing = Hearing()
        self.channels = Channels(mid, self.events)
        self.heavy_reads = anyio.CapacityLimiter(HEAVY_READS_AT_ONCE)
        self.turns: WeakValueDictionary[RunId, anyio.Lock] = WeakValueDictionary()
        self.closing = anyio.Event()
        self.unsigned_checkpoints = False  # whether `POST /v1/resume` takes them
        self.is_draining = False
        self.is_told = False  # whether whoever serves us says when that ends

    @property
    def store(self) -> Store:
        """The store of the runs.

        Raises:
            Problem: 503, the `Midrun` is not open.
        """
        try:
            return self.mid.store
        except Misconfigured:
            problem = "open the Midrun in the lifespan of the application this is mounted in"
            raise Problem("not_open", 503, problem) from None


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who makes a request, and by what right."""

    actor: Actor
    token: str = field(repr=False, default="")
    session: Session | None = None
    secret: str = field(repr=False, default="")  # of the session

    async def holds(self, server: Lobby) -> bool:
        """Tell whether the credential is still good, for what goes on while time passes."""
        if self.session is not None and server.sessions.find(self.secret) is None:
            return False
        return not self.token or await server.auth(self.token) == self.actor

    async def leaves(self, server: Lobby) -> None:
        """Wait until the credential is good no longer: at once where somebody signs out."""
        ended = anyio.Event() if self.session is None else self.session.ended
        while not ended.is_set() and await self.holds(server):
            with anyio.move_on_after(server.limits.ping):
                await ended.wait()


@dataclass(frozen=True, kw_only=True)
class Visit:
    """One request of a known caller."""

    lobby: Lobby
    request: Request
    caller: Caller
    path: Mapping[str, str]
    room: int  # bytes that its body may have
    audit: AuditRecord

    @property
    def actor(self) -> Actor:
        """Who asks."""
        return self.caller.actor

    @property
    def own_runs_only(self) -> str:
        """The name of a caller who may see their own runs only; empty for the other roles."""
        return self.actor.name if self.actor.role == "user" else ""

    async def body(self, kind: type[B]) -> B:
        """Return what the caller sent. Nothing at all is an empty object.

        Raises:
            Problem: 408, 413, or 422 with what does not fit.
            NotJson: it is not JSON as we take it.
        """
        limits = JsonLimits(depth=self.lobby.limits.depth, size=self.room)
        data = parse(await self.text() or b"{}", limits)
        try:
            return msgspec.convert(whole(data, kind), kind)
        except msgspec.ValidationError as error:
            known = known_fields(kind, str(error))
            problem = f"{error}. Known fields: {', '.join(known)}."
            raise Problem("invalid_body", 422, problem, fields={"known": known}) from None

    async def text(self) -> bytes:
        """Read the body, for as long as anybody would need to send it.

        Raises:
            Problem: 408, 413.
        """
        text = bytearray()
        with anyio.move_on_after(self.lobby.limits.patience) as slow:
            async for chunk in self.request.stream():
                text += chunk
                if len(text) > self.room:
                    raise Problem("too_large", 413, f"this body has at most {self.room} bytes")
        if slow.cancelled_caught:
            raise Problem("too_slow", 408, "the body did not come")
        return bytes(text)

    async def run(self) -> Run:
        """Return the run that the path names, if the caller may know of it.

        Raises:
            RunNotFound: there is none, or it is somebody else's: nobody is told which.
        """
        run = RunId(self.path["run"])
        if not await self.sees(run):
            raise RunNotFound(run)
        return await self.lobby.mid.get(run)

    @asynccontextmanager
    async def heavy_read(self) -> AsyncIterator[None]:
        """Wait for a turn to read a whole journal; `HEAVY_READS_AT_ONCE` have one.

        Raises:
            Problem: 429, the caller has too many under way or waiting.
        """
        with self.lobby.allowance.heavy_read(self.actor.name):
            async with self.lobby.heavy_reads:
                yield

    async def list_runs(self, query: Query) -> Page[RunRow]:
        """Return a page of runs.

        A cursor is the id of a run. One that no list has shown to a user is refused like one
        that does not exist, so that a user cannot find out which runs of others exist.

        Raises:
            CursorRefused: no list has given the cursor to this caller.
        """
        page = await self.lobby.store.runs(query)
        if query.cursor and not await self._may_be_listed(RunId(query.cursor)):
            raise CursorRefused(query.cursor)
        return page

    async def _may_be_listed(self, run: RunId) -> bool:
        """Tell whether a list may have shown `run` to the caller, now or earlier."""
        if await self.sees(run):
            return True
        asks = (await self.lobby.views.state(run)).asks
        return any(ask.audience == f"user:{self.actor.name}" for ask in asks)

    def asking(self, reason: str = "") -> Asking:
        """Return who asks, under which request id, and what they had seen of the run."""
        return Asking(
            actor=self.actor,
            reason=reason,
            request_id=self.request_id(),
            seen=self.seen(),
        )

    def request_id(self) -> str | None:
        """Return the request id that an `Idempotency-Key` means; each caller has their own.

        Raises:
            Problem: 400, it is not a key.
        """
        key = self.request.headers.get("idempotency-key")
        if key is None:
            return None
        found = re.fullmatch(KEY, key)
        if found is None:
            raise Problem("bad_idempotency_key", 400, "1 to 200 printable characters")
        return self.own(found[1])

    def own(self, key: str) -> str:
        """Return the request id that a key of this caller means, and of nobody else."""
        return f"{quote(self.actor.name, safe='')}:{key}"

    async def sees(self, run: RunId) -> bool:
        """Tell whether the caller may look at `run`."""
        return await self.lobby.views.sees(self.actor, run)

    @property
    def is_over(self) -> bool:
        """Whether the server goes away, so that nothing may go on for long."""
        server = self.lobby
        return server.closing.is_set() or (
            not server.is_told and is_stopping(self.request.scope)
        )

    async def over(self) -> None:
        """Wait until the server goes away."""
        while not self.is_over:
            with anyio.move_on_after(None if self.lobby.is_told else LOOK_S):
                await self.lobby.closing.wait()

    async def check_quota(self, request_id: str | None) -> None:
        """Refuse a new run of a user whose quota is used up.

        `request_id` is the one that the run is started with. A repeated request whose first
        reply was lost is let through: its run exists already.

        Raises:
            Problem: 429, which names the bound that is reached.
        """
        quota, owner = self.lobby.limits.quota, self.own_runs_only
        if not owner or quota == Quota():
            return
        since = Micros(self.lobby.mid.now() - DAY_MICROS)
        sizes = quota.stored_bytes is not None
        usage = await self.lobby.store.usage(owner, since=since, sizes=sizes)
        excess = quota.find_excess(usage)
        if not excess:
            return
        if request_id:
            with suppress(RunNotFound):
                await self.lobby.store.row(run_for(request_id))
                return
        text = f"Cannot start a run: the quota of user {owner} is used up, {excess}."
        hint = "Wait, end open runs, or have an operator raise Limits.quota."
        raise Problem("quota_used_up", 429, f"{text} {hint}", headers={"Retry-After": "60"})

    async def words(
        self, run: RunId, asking: Asking, send: Callable[[Asking], Awaitable[Receipt]]
    ) -> Receipt:
        """Let words to a run in, unless there are more than anybody could keep an eye on.

        However many come at once, to however many processes: `send` asks on the very revision
        of the run that was counted, and whoever was overtaken counts again. Here they come one
        after the other, or they would overtake each other. Whoever asks again for what was
        taken, because the reply was lost, finds that it was.

        Raises:
            Problem: 429.
        """
        most = self.lobby.limits.pending
        async with self.lobby.turns.setdefault(run, anyio.Lock()):
            while True:
                state = await self.lobby.views.state(run)
                known = asking.get("request_id") in state.heard
                if len(state.pending) >= most and not known:
                    text = (
                        f"{most} wait for their boundary already; withdraw one, or let it go on"
                    )
                    raise Problem("too_many_pending", 429, text, headers={"Retry-After": "5"})
                if asking.get("seen") is not None:
                    return await send(asking)
                counted = asking.copy()
                counted["seen"] = state.control_rev
                try:
                    return await send(counted)
                except ControlRefused as refused:
                    if refused.reason != "stale_revision":
                        raise

    async def redirected(
        self, run: Run, text: str, asking: Asking, *, when: When = "next_step"
    ) -> Receipt:
        """Redirect a run, as far as `words` lets it."""

        async def send(counted: Asking) -> Receipt:
            return await run.redirect(text, when=when, **counted)

        return await self.words(run.id, asking, send)

    def seen(self, *, required: bool = False) -> int | None:
        """Return which revision of the run `If-Match` says that the caller looked at.

        The core holds it against the journal in the very append, so that nobody acts on old
        news. Of several the newest counts; one that is none of ours is as old as can be. A
        proxy that compresses makes it a weak one: it names the same revision.

        Raises:
            Problem: 428, it is needed.
        """
        wanted = self.request.headers.get("if-match")
        if wanted is None:
            if required:
                raise Problem("precondition_required", 428, "send If-Match with the ETag")
            return None
        tags = (tag.strip().removeprefix("W/") for tag in wanted.split(","))
        revs = {tag.strip('"').partition(".")[0] for tag in tags}
        numbers = [int(rev) for rev in revs if is_number(rev)]
        return None if "*" in revs else max(numbers, default=0)

    def number(self, name: str, default: int, *, least: int, most: int) -> int:
        """Return a number of the query.

        Raises:
            Problem: 400, it is none, or out of bounds.
        """
        text = self.request.query_params.get(name, "")
        if not text:
            return default
        value = int(text) if is_number(text) else -1
        if not least <= value <= most:
            raise Problem("bad_query", 400, f"{name} is a number from {least} to {most}")
        return value


def known_fields(kind: type[Struct], problem: str) -> tuple[str, ...]:
    """Return the fields of the object that a validation error is about.

    The error ends with its place, such as "at `$.caps.steps`".
    """
    _, _, place = problem.partition(" - at `$.")
    for part in place.rstrip("`").split("."):
        hint = get_type_hints(kind).get(part)
        kinds = [each for each in (hint, *get_args(hint)) if isinstance(each, type)]
        inner = [each for each in kinds if issubclass(each, Struct)]
        if not inner:
            break
        kind = inner[0]
    return kind.__struct_encode_fields__


def is_number(text: str) -> bool:
    """Tell whether `text` is a number that a seq may be; longer ones are not even read."""
    return text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX


def etag(run: RunView) -> str:
    """Return what names this view; up to the dot, what was asked of the run.

    A driver that falls silent tells nobody, and yet the run is shown otherwise.
    """
    silent = ".lost" if run.sign.look == "lost" else ""
    return f'"{run.control_rev}.{run.seq}{silent}"'


def answer(
    value: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return `value` as a response."""
    return Response(encoded(value), status, headers=headers, media_type="application/json")


async def told(context: Visit, run: Run, receipt: Receipt) -> Response:
    """Return what a control got: 202 if it was taken, 200 if it was so already."""
    shown = await context.lobby.views.shown(run.id)
    replayed = receipt.already == "duplicate_request"
    headers = {"ETag": etag(shown)}
    if replayed:
        headers["Idempotency-Replayed"] = "true"
    body = {"command": {"id": f"cmd_{receipt.seq}", "receipt": receipt}, "run": shown}
    return answer(body, 200 if receipt.already else 202, headers)
