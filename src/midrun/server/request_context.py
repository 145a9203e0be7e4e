"""The context of one request, and the state that all requests of a server share.

`ServerState` is made once per app. `App` makes one `RequestContext` per request, after the
credential and the path are known; it is the only argument of every handler. Through it a
handler reads the body, finds the run if the caller may see it, and builds the arguments of a
control: actor, reason, request id (`Idempotency-Key`) and revision (`If-Match`).
"""

import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, Protocol, TypeVar, get_args, get_type_hints
from urllib.parse import quote
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread
import msgspec
import uvicorn
from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from midrun.agents.file import File
from midrun.codec.strict_json import JsonLimits, parse_json
from midrun.core.ids import Micros, RunId
from midrun.core.lru import LruDict
from midrun.core.values import Actor
from midrun.errors import (
    ControlRefused,
    CursorRefused,
    Misconfigured,
    QuotaReached,
    RunErased,
    RunNotFound,
)
from midrun.ports.environment import read_wall_clock
from midrun.ports.platform import read_boot_clock
from midrun.ports.store import OwnerUsage, Page, RunQuery, RunQuota, RunRow, Store, Visibility
from midrun.runs.midrun import Midrun
from midrun.runs.run import Run
from midrun.runs.service import make_run_id
from midrun.runs.validation import ControlOptions
from midrun.runs.values import Receipt, RunView
from midrun.runs.wire import CommandReceipt, ControlReply
from midrun.server.audit_log import AuditRecord
from midrun.server.auth import Auth, Sessions, SignInSession
from midrun.server.broadcast import RunChannels
from midrun.server.events import EventReader
from midrun.server.limits import (
    CALLERS_MAX,
    AddressLimit,
    Allowance,
    FailedSignIns,
    Limits,
)
from midrun.server.overlays import Overlays
from midrun.server.problem_details import HttpProblem
from midrun.server.request_checks import parse_push_origins
from midrun.server.run_views import RunViews
from midrun.server.schemas import encode_wire, normalize_integers
from midrun.workers.quotas import (
    DAY_MICROS,
    Quota,
    QuotaScope,
    UsedQuota,
    find_retry_after_s,
    list_used,
)

# Open AG-UI streams. A client of that protocol stops a run by closing its stream.


class ChatStreamCounter:
    """Counts the streams of chat clients by run; a dropped one may pause the run."""

    def __init__(self) -> None:
        self._count: Counter[RunId] = Counter()
        self._ends: LruDict[RunId, float] = LruDict(max_items=CALLERS_MAX)

    @contextmanager
    def count_stream(self, run: RunId) -> Iterator[None]:
        """Count one stream of `run` while the block runs."""
        self._count[run] += 1
        try:
            yield
        finally:
            self._count[run] -= 1
            if not self._count[run]:
                del self._count[run]
            self._ends.put(run, anyio.current_time())

    def get_end(self, run: RunId) -> float:
        """Return the time at which the newest stream of `run` ended; 0 if it is long ago."""
        return self._ends.get(run) or 0.0

    def has_stream(self, run: RunId) -> bool:
        """Return whether `run` has an open stream of a chat client."""
        return run in self._count


# Detect that the web server is about to stop.
#
# An ASGI server announces its shutdown to an app only after every connection has ended, and a
# stream does not end by itself. Each would wait for the other: Ctrl-C would have no effect
# while a browser has the page open. The server of `midrun serve` ends the streams first. Where
# the app is mounted in another application under uvicorn, uvicorn does not know of the streams.
# But its handler is installed for SIGTERM, and is a bound method of the `uvicorn.Server`, so
# the server object and its flag `should_exit` can be found there.


def is_stopping(scope: Scope) -> bool:
    """Return whether the uvicorn server of this request is about to stop.

    Another uvicorn server of the same process may have installed the handler. It counts only if
    one of its connections has the local address that this request came in by.
    """
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    if not isinstance(server, uvicorn.Server) or not server.should_exit:
        return False
    address, connections = scope.get("server"), server.server_state.connections
    return any(getattr(each, "server", None) == address for each in connections)


# Settings for protocols that have no notion of a pause.


class Bridges(Struct, frozen=True, kw_only=True):
    """Settings for clients whose protocol (AG-UI, CopilotKit, AI SDK) has no pause.

    `on_disconnect` is applied to a run whose stream such a client dropped, if no other client
    watches the run within `grace_s` seconds. Such a client has no other way to stop a run, and
    a closed tab looks the same. `pause_as` is how a pause is sent to AG-UI: as an interrupt, or
    as a successful end; `auto` chooses by the client's protocol version. `stop` is the control
    that the stop button of CopilotKit and the stop route of the AI SDK send.

    `push_to` are the origins (`https://hooks.example`) to which clients of A2A may have push
    notifications sent. Run `midrun.server.a2a.push.PushNotifications` with the same origins.
    """

    on_disconnect: Literal["pause", "cancel", "continue"] = "pause"
    grace_s: float = 10.0
    pause_as: Literal["auto", "interrupt", "success"] = "auto"
    stop: Literal["pause", "cancel"] = "pause"
    push_to: tuple[str, ...] = ()


class MetricsSource(Protocol):
    """The metrics of a process, as `midrun.followers.metrics.Metrics` has them."""

    def add_gauge(self, name: str, read: Callable[[], float]) -> None:
        """Measure `name` with `read`."""
        ...

    def render(self) -> tuple[bytes, str] | None:
        """Return all metrics as text and its content type; None if there is no such text."""
        ...


TENANT_SIZE_LIFETIME_S: Final = 60.0
"""Seconds after which the journals and files of a tenant are measured again."""


class MeasuredSize(NamedTuple):
    """The bytes of a tenant, and the time until which they are not measured again."""

    stored_bytes: int
    until: float


QUERY_SHOWN_MAX_CHARS: Final = 40
"""Characters of a refused query parameter that the refusal repeats."""

BodyT = TypeVar("BodyT", bound=Struct)

STOP_POLL_S: Final = 1.0
"""Seconds between two polls of `is_stopping`."""

SEQ_MAX_DIGITS: Final = 16
"""The maximum number of digits of a seq in a header or a query."""

IDEMPOTENCY_KEY_PATTERN: Final = r'"?([!#-~]{1,200})"?'
"""An `Idempotency-Key`, with the quotes that the IETF draft demands, or without."""


EFFECTS_MAX: Final = 100
"""The number of effects in the reply to a control and in the feed; the report has all."""

HEAVY_READS_MAX_CONCURRENT: Final = 2
"""Reads of whole journals at once, of all callers together.

They compute in threads, which compete with the event loop for the interpreter lock."""


class ServerState:
    """The state that all requests of one server share: caches, counters, sessions."""

    def __init__(
        self, mid: Midrun, auth: Auth, limits: Limits, bridges: Bridges, key: bytes | None
    ) -> None:
        self.mid = mid
        self.bridges = bridges
        self.push_origins = parse_push_origins(bridges.push_to)
        self.chat_streams = ChatStreamCounter()
        self.auth = auth
        self.limits = limits
        self.allowance = Allowance(limits, anyio.current_time)
        self.failures = FailedSignIns(limits, read_boot_clock)
        self.unknown_callers = AddressLimit(
            limits.failures, limits.failure_rate, read_boot_clock
        )
        self.sessions = Sessions(read_boot_clock, read_wall_clock, key=key)
        self.views = RunViews(mid)
        self.overlays = Overlays(mid, self.views)
        self.events = EventReader(mid)
        self.channels = RunChannels(mid, self.events)
        self.heavy_reads = anyio.CapacityLimiter(HEAVY_READS_MAX_CONCURRENT)
        self.tenant_sizes: LruDict[str, MeasuredSize] = LruDict(max_items=CALLERS_MAX)
        # One lock per thread in which a run is being started, and one per run to which a
        # message is being sent. Weak: a lock disappears with the last request that uses it.
        self.thread_locks: WeakValueDictionary[tuple[str, ...], anyio.Lock] = (
            WeakValueDictionary()
        )
        self.message_locks: WeakValueDictionary[RunId, anyio.Lock] = WeakValueDictionary()
        self.closing = anyio.Event()  # set: all streams and long polls end
        self.unsigned_checkpoints = False  # whether `POST /v1/resume` takes them
        self.metrics: MetricsSource | None = None
        self.is_draining = False  # whether `/readyz` answers 503
        # Serves a request for a caller that is authenticated already; `App` sets it.
        self.serve_caller: Callable[[Caller, Scope, Receive, Send], Awaitable[None]]
        self.is_close_promised = (
            False  # whether the web server calls `App.close` before it stops
        )

    @property
    def store(self) -> Store:
        """The store of the `Midrun`.

        Raises:
            HttpProblem: 503, the `Midrun` is not open.
        """
        try:
            return self.mid.store
        except Misconfigured:
            problem = (
                "Cannot reach the store: the Midrun is not open. Open it in the lifespan of "
                "the application that this server is mounted in."
            )
            raise HttpProblem("not_open", 503, problem) from None


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The actor that makes a request, with its credential."""

    actor: Actor
    token: str = field(repr=False, default="")
    session: SignInSession | None = None
    secret: str = field(repr=False, default="")  # the session's, from the cookie

    @property
    def key(self) -> str:
        """The key under which limits count the caller; no other caller has it."""
        tenant = quote(self.actor.tenant, safe="")
        return f"{tenant}/{self.actor.name}" if tenant else self.actor.name

    async def has_valid_credential(self, server: ServerState) -> bool:
        """Return whether the credential is still valid; streams check it again and again."""
        if self.session is not None and server.sessions.find(self.secret) is None:
            return False
        return not self.token or await server.auth(self.token) == self.actor

    async def wait_until_invalid(self, server: ServerState) -> None:
        """Wait until the credential is no longer valid.

        The end of a session is noticed at once. A token that `auth` no longer accepts, and a
        session that expires, are noticed at the next check, every `Limits.ping` seconds.
        """
        ended = anyio.Event() if self.session is None else self.session.ended
        while not ended.is_set() and await self.has_valid_credential(server):
            with anyio.move_on_after(server.limits.ping):
                await ended.wait()


def find_visibility(actor: Actor) -> Visibility:
    """Return the runs that `actor` may see.

    A user sees the runs that they own, and those of their teams. Other roles see all runs of
    their tenant, or of all tenants if they belong to none.
    """
    if actor.role == "user":
        return Visibility(tenant=actor.tenant, owner=actor.name, teams=actor.teams)
    return Visibility(tenant=actor.tenant or None)


INLINE_BODY_MAX_BYTES: Final = 256 * 1024
"""A longer body, with files, is decoded in a thread: ten megabytes take about 100 ms."""


def _decode_body(text: bytes, limits: JsonLimits, body_type: type[BodyT]) -> BodyT:
    return msgspec.convert(normalize_integers(parse_json(text, limits), body_type), body_type)


@dataclass(frozen=True, kw_only=True)
class RequestContext:
    """One request of an authenticated caller; the argument of every handler."""

    server: ServerState
    request: Request
    caller: Caller
    path: Mapping[str, str]
    body_max_bytes: int  # the maximum length of the body, in bytes
    audit: AuditRecord

    @property
    def actor(self) -> Actor:
        """The actor that makes the request."""
        return self.caller.actor

    @property
    def owner_filter(self) -> str:
        """The owner to restrict lists to: the name of a user, "" for other roles."""
        return self.actor.name if self.actor.role == "user" else ""

    @property
    def visibility(self) -> Visibility:
        """The runs that the caller may see."""
        return find_visibility(self.actor)

    def restrict_query(self, query: RunQuery) -> RunQuery:
        """Return `query` for the runs that the caller may see.

        A `decider` stays, and so does the tenant that a caller of no tenant has chosen.
        """
        seen_by = self.visibility
        owner = "" if query.decider else seen_by.owner
        tenant = query.tenant if seen_by.tenant is None else seen_by.tenant
        return replace(query, tenant=tenant, owner=owner, teams=seen_by.teams)

    async def decode_body(self, body_type: type[BodyT]) -> BodyT:
        """Decode the body as a `kind`. An empty body counts as an empty object.

        Raises:
            HttpProblem: 408, the body did not arrive; 413, it is too long; 422, a field is
                wrong.
            NotJson: the body is not strict JSON.
        """
        limits = JsonLimits(max_depth=self.server.limits.depth, max_bytes=self.body_max_bytes)
        text = await self.read_body() or b"{}"
        try:
            if len(text) > INLINE_BODY_MAX_BYTES:
                return await anyio.to_thread.run_sync(_decode_body, text, limits, body_type)
            return _decode_body(text, limits, body_type)
        except msgspec.ValidationError as error:
            known = find_known_fields(body_type, str(error))
            problem = f"Cannot read the body: {error}. Known fields: {', '.join(known)}."
            raise HttpProblem("invalid_body", 422, problem, fields={"known": known}) from None

    async def read_body(self) -> bytes:
        """Read the whole body, within `Limits.patience` seconds.

        Raises:
            HttpProblem: 408, the body did not arrive in time; 413, it is too long.
        """
        text = bytearray()
        with anyio.move_on_after(self.server.limits.patience) as slow:
            async for chunk in self.request.stream():
                text += chunk
                # Counted while it arrives: a chunked body has no Content-Length to check.
                if len(text) > self.body_max_bytes:
                    problem = (
                        f"Cannot read the body: it may have at most {self.body_max_bytes} "
                        "bytes."
                    )
                    raise HttpProblem("too_large", 413, f"{problem} Send less.")
        if slow.cancelled_caught:
            problem = (
                "Cannot read the body: it did not arrive within "
                f"{self.server.limits.patience:g} s. Send the request again."
            )
            raise HttpProblem("too_slow", 408, problem)
        return bytes(text)

    async def find_run(self) -> Run:
        """Return the run that the path names, if the caller may see it.

        Raises:
            RunNotFound: the run does not exist, or belongs to another user. Both look the same,
                so that a user cannot find out which run ids exist. So does a run of another
                tenant. For a user, so does a run that was deleted: its owner is not known any
                more.
            RunErased: the run was deleted, and the caller may see all runs of its tenant.
        """
        run = RunId(self.path["run"])
        try:
            if not await self.can_see(run):
                raise RunNotFound(run)
            if self.audit.is_due and not self.audit.tenant:
                self.audit.tenant = (await self.server.views.read_head(run)).tenant
            return await self.server.mid.get(run)
        except RunErased:
            if self.owner_filter:
                raise RunNotFound(run) from None
            raise

    @asynccontextmanager
    async def hold_heavy_read_slot(self) -> AsyncIterator[None]:
        """Wait for one of the few slots for reads of whole journals, and hold it.

        Raises:
            HttpProblem: 429, the caller has too many such reads running or waiting.
        """
        # Counted per caller before the wait, so that one caller cannot fill the queue.
        with self.server.allowance.count_heavy_read(self.caller.key):
            async with self.server.heavy_reads:
                yield

    async def list_runs(self, query: RunQuery) -> Page[RunRow]:
        """Return a page of the runs of `query` that the caller may see.

        A cursor is the id of a run. The id of a run that no list can have shown to this user is
        refused like an id that does not exist. Otherwise a user could find out which runs of
        other users exist.

        Raises:
            CursorRefused: no list has given the cursor to this caller.
        """
        # The store refuses an unknown cursor itself, so `_may_be_listed` finds the run.
        page = await self.server.store.list_runs(self.restrict_query(query))
        if query.cursor and not await self._may_be_listed(RunId(query.cursor)):
            raise CursorRefused(query.cursor)
        return page

    async def _may_be_listed(self, run: RunId) -> bool:
        """Return whether a list may have shown `run` to the caller, now or earlier."""
        if await self.can_see(run):
            return True
        if not self.owner_filter:
            return False
        # The list of asks shows runs of other users that have asked this user. Asks that are
        # decided count, too: the cursor may be from before the decision.
        asks = (await self.server.views.read_state(run)).asks
        return any(ask.audience == f"user:{self.actor.name}" for ask in asks)

    def make_control_options(self, reason: str = "") -> ControlOptions:
        """Return the arguments that every control takes: actor, reason, id, revision."""
        return ControlOptions(
            actor=self.actor,
            reason=reason,
            request_id=self.request_id(),
            seen=self.read_if_match(),
        )

    def request_id(self) -> str | None:
        """Return the request id of the `Idempotency-Key`; None without that header.

        Raises:
            HttpProblem: 400, the header is not a valid key.
        """
        key = self.request.headers.get("idempotency-key")
        if key is None:
            return None
        found = re.fullmatch(IDEMPOTENCY_KEY_PATTERN, key)
        if found is None:
            problem = (
                "Cannot use the Idempotency-Key: it must have 1 to 200 printable ASCII "
                "characters without spaces."
            )
            raise HttpProblem("bad_idempotency_key", 400, problem)
        return self.make_request_id(found[1])

    def make_request_id(self, key: str) -> str:
        """Return a request id for `key` that no other caller can produce."""
        # The name is quoted, so it contains no colon: "a:b" + "c" and "a" + "b:c" differ. Two
        # users of different tenants may have the same name.
        name, tenant = (quote(text, safe="") for text in (self.actor.name, self.actor.tenant))
        return f"{tenant}/{name}:{key}" if tenant else f"{name}:{key}"

    async def can_see(self, run: RunId) -> bool:
        """Return whether the caller may see `run`."""
        return await self.server.views.can_see(self.visibility, run)

    async def is_in_tenant(self, run: RunId) -> bool:
        """Return whether the run is one of the caller's tenant, of whichever owner."""
        tenant = Visibility(tenant=self.visibility.tenant)
        try:
            return await self.server.views.can_see(tenant, run)
        except RunErased:
            return False

    @property
    def is_server_stopping(self) -> bool:
        """Whether the server is about to stop, so that streams and waits must end."""
        server = self.server
        return server.closing.is_set() or (
            not server.is_close_promised and is_stopping(self.request.scope)
        )

    async def wait_until_stopping(self) -> None:
        """Wait until the server is about to stop."""
        # Without a promise that `App.close` is called, the event may never be set: then the
        # wait ends every STOP_POLL_S seconds, to look at the web server.
        while not self.is_server_stopping:
            with anyio.move_on_after(None if self.server.is_close_promised else STOP_POLL_S):
                await self.server.closing.wait()

    def check_stream(self) -> None:
        """Refuse one more stream of the caller, if too many are open.

        Raises:
            HttpProblem: 429.
        """
        self.server.allowance.check_stream(self.caller.key, self.actor)

    def check_team(self, team: str) -> str:
        """Return the team that a new run is shared with, if the caller may choose it.

        Raises:
            HttpProblem: 403, the caller is a user who is not in the team.
        """
        if team and self.owner_filter and team not in self.actor.teams:
            teams = ", ".join(self.actor.teams) or "none"
            problem = f"Cannot share the run with team {team!r}: it is none of your teams"
            raise HttpProblem("not_allowed", 403, f"{problem} ({teams}).")
        return team

    async def start_within_quotas(
        self,
        request_id: str | None,
        start: Callable[[Sequence[RunQuota]], Awaitable[Run]],
    ) -> Run:
        """Start a run with `start`, unless a quota of the caller or its tenant is used up.

        `request_id` is the id that the run is started with. A client whose first reply was lost
        repeats the request; its run exists already, so the repetition is let through.

        All quotas are checked here first. Between this check and the start, other requests may
        start runs. So the bounds on the number of runs are passed to `start`: the store counts
        them again in the transaction that creates the run.

        Raises:
            HttpProblem: 429, with the bound that is reached.
        """
        await self._check_quotas(request_id)
        since = Micros(self.server.mid.now() - DAY_MICROS)
        rules = self.server.limits.quota_rules.list_scopes(self.actor)
        bounds = [quota.make_run_quota(scope, self.actor, since) for scope, _, quota in rules]
        try:
            return await start([bound for bound in bounds if bound is not None])
        except QuotaReached as refusal:
            await self._check_quotas(request_id)  # has the time after which a retry may succeed
            scope: QuotaScope = "user" if refusal.owner else "tenant"
            name = refusal.owner or refusal.tenant
            quota = "runs_per_day" if refusal.quota == "recent_runs" else refusal.quota
            most = refusal.most
            used = UsedQuota(scope=scope, name=name, quota=quota, limit=most, used=most)
            raise self.server.allowance.make_quota_problem(
                "Cannot start a run", used, None
            ) from refusal

    async def _check_quotas(self, request_id: str | None) -> None:
        """Refuse a new run of a user, or in a tenant, whose quota is used up.

        Raises:
            HttpProblem: 429, with the bound that is reached.
        """
        for scope, name, quota in self.server.limits.quota_rules.list_scopes(self.actor):
            usage = await self._read_usage(scope, quota)
            for used in list_used(scope, name, quota, usage):
                if used.is_used_up and used.quota != "streams":
                    if await self._is_repeated(request_id):
                        return
                    retry_after_s = find_retry_after_s(used, usage, self.server.mid.now())
                    raise self.server.allowance.make_quota_problem(
                        "Cannot start a run", used, retry_after_s
                    )

    async def _is_repeated(self, request_id: str | None) -> bool:
        """Return whether an earlier request with this id has started its run."""
        if not request_id:
            return False
        # The id of a run follows from its request id, so a repetition finds the row.
        try:
            await self.server.store.get_row(make_run_id(request_id))
        except RunNotFound:
            return False
        return True

    async def _read_usage(self, scope: QuotaScope, quota: Quota) -> OwnerUsage:
        """Return the usage of the caller, or of its tenant, as far as `quota` needs it."""
        server, actor = self.server, self.actor
        since = Micros(server.mid.now() - DAY_MICROS)
        sizes = quota.stored_bytes is not None  # sizes cost a scan of the journals
        if scope == "user":
            return await server.store.get_usage(
                actor.name, since=since, sizes=sizes, tenant=actor.tenant
            )
        # The journals of a tenant are many: their size is measured once a minute.
        size = server.tenant_sizes.get(actor.tenant) if sizes else None
        is_fresh = size is not None and size.until > anyio.current_time()
        usage = await server.store.get_usage(
            "", since=since, sizes=sizes and not is_fresh, tenant=actor.tenant
        )
        if size is not None and is_fresh:
            return replace(usage, stored_bytes=size.stored_bytes)
        if sizes:
            until = anyio.current_time() + TENANT_SIZE_LIFETIME_S
            server.tenant_sizes.put(actor.tenant, MeasuredSize(usage.stored_bytes, until))
        return usage

    async def list_used_quotas(self) -> tuple[UsedQuota, ...]:
        """Return the quotas of the caller and of its tenant, with how much is used."""
        found: list[UsedQuota] = []
        allowance, key = self.server.allowance, self.caller.key
        for scope, name, quota in self.server.limits.quota_rules.list_scopes(self.actor):
            usage = await self._read_usage(scope, quota)
            streams = allowance.count_open_streams(scope, key, self.actor)
            found += list_used(scope, name, quota, usage, streams)
        return tuple(found)

    async def send_with_pending_limit(
        self,
        run: RunId,
        options: ControlOptions,
        send: Callable[[ControlOptions], Awaitable[Receipt]],
    ) -> Receipt:
        """Send a message or redirect unless too many wait for their boundary already.

        The count must hold when the entry is appended, even if several processes count at the
        same time. So `send` is called with the revision of the counted state: if another
        control was appended meanwhile, it is refused as stale, and the loop counts again.
        Within this process a lock per run makes the requests take turns, because otherwise
        they would make each other stale. A repetition of a request that was taken is let
        through: the core answers it from the journal.

        Raises:
            HttpProblem: 429, `Limits.pending` texts are pending.
        """
        most = self.server.limits.pending
        async with self.server.message_locks.setdefault(run, anyio.Lock()):
            while True:
                state = await self.server.views.read_state(run)
                known = options.get("request_id") in state.requests
                if len(state.pending) >= most and not known:
                    text = (
                        f"Cannot send to run {run}: {most} messages wait for their boundary "
                        "already. Withdraw one, or wait until the run takes one."
                    )
                    raise HttpProblem(
                        "too_many_pending", 429, text, headers={"Retry-After": "5"}
                    )
                if options.get("seen") is not None:
                    # The client named a revision itself (If-Match): a conflict is its answer.
                    return await send(options)
                counted = options.copy()
                counted["seen"] = state.control_rev
                try:
                    return await send(counted)
                except ControlRefused as refused:
                    if refused.reason != "stale_revision":
                        raise
                    # Another process was first. Count again on the state that it left.

    async def redirect(
        self, run: Run, text: str, options: ControlOptions, files: Sequence[File] = ()
    ) -> Receipt:
        """Redirect a run, within the limit on pending texts."""

        async def send(counted: ControlOptions) -> Receipt:
            return await run.redirect(text, files=files, **counted)

        return await self.send_with_pending_limit(run.id, options, send)

    def read_if_match(self, *, required: bool = False) -> int | None:
        """Return the revision of the run in `If-Match`; None without it, or for `*`.

        The core compares it with the journal in the same append, so a control that was decided
        on an outdated view is refused. Of several tags the newest counts. A tag that is not a
        revision counts as 0, which is older than every revision. A proxy that compresses turns
        a tag into a weak one, which names the same revision.

        Raises:
            HttpProblem: 428, the header is missing and `required`.
        """
        header = self.request.headers.get("if-match")
        if header is None:
            if required:
                problem = (
                    "Cannot change the run: If-Match is missing. Send the ETag of the run that "
                    "you saw."
                )
                raise HttpProblem("precondition_required", 428, problem)
            return None
        tags = (tag.strip().removeprefix("W/") for tag in header.split(","))
        revs = {tag.strip('"').partition(".")[0] for tag in tags}
        numbers = [int(rev) for rev in revs if is_seq_number(rev)]
        return None if "*" in revs else max(numbers, default=0)

    def read_number(self, name: str, default: int, *, minimum: int, maximum: int) -> int:
        """Return the query parameter `name` as an integer, or `default` without it.

        Raises:
            HttpProblem: 400, not a number, or out of bounds.
        """
        text = self.request.query_params.get(name, "")
        if not text:
            return default
        value = int(text) if is_seq_number(text) else -1
        if not minimum <= value <= maximum:
            shown = text[:QUERY_SHOWN_MAX_CHARS]
            problem = f"{name} must be an integer from {minimum} to {maximum}, got {shown!r}"
            raise HttpProblem("bad_query", 400, problem)
        return value


def find_known_fields(kind: type[Struct], problem: str) -> tuple[str, ...]:
    """Return the fields of the object that a validation error is about.

    The message of msgspec ends with a JSON path, such as "at `$.caps.steps`". The loop follows
    it through the nested structs.
    """
    _, _, path = problem.partition(" - at `$.")
    for part in path.rstrip("`").split("."):
        hint = get_type_hints(kind).get(part)
        # The hint itself, or the members of a union such as `Caps | None`.
        kinds = [each for each in (hint, *get_args(hint)) if isinstance(each, type)]
        inner = [each for each in kinds if issubclass(each, Struct)]
        if not inner:
            break
        kind = inner[0]
    return kind.__struct_encode_fields__


def is_seq_number(text: str) -> bool:
    """Return whether `text` is a decimal number short enough to be a seq."""
    return text.isascii() and text.isdecimal() and len(text) <= SEQ_MAX_DIGITS


def make_etag(run: RunView) -> str:
    """Return the ETag of a view: `control_rev`, a dot, then the seq.

    `If-Match` compares only the part before the dot, so steps of the agent do not make a
    control stale. `If-None-Match` compares the whole tag.
    """
    # A worker that dies appends no entry, and yet the view changes: the run is shown as lost.
    silent = ".lost" if run.status.style == "lost" else ""
    return f'"{run.control_rev}.{run.seq}{silent}"'


def json_response(
    value: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return `value` as a JSON response."""
    return Response(encode_wire(value), status, headers=headers, media_type="application/json")


async def make_control_response(
    context: RequestContext, run: Run, receipt: Receipt
) -> Response:
    """Return the receipt of a control and the run: 202 accepted, 200 already so."""
    server = context.server
    state = await server.views.read_state(run.id)
    view = await server.views.show_state(state, EFFECTS_MAX)
    headers = {"ETag": make_etag(view)}
    if receipt.already == "duplicate_request":
        headers["Idempotency-Replayed"] = "true"
    reply = ControlReply(
        command=make_command_receipt(receipt),
        run=view,
        overlay=await server.overlays.build(state, context.actor),
    )
    return json_response(reply, 200 if receipt.already else 202, headers)


def make_command_receipt(receipt: Receipt) -> CommandReceipt:
    """Return a receipt with the id of its command."""
    return CommandReceipt(id=f"cmd_{receipt.seq}", receipt=receipt)
