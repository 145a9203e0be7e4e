"""Push notifications of A2A: a POST with the task to an address that its client registered.

The operator names the origins to which notifications may be sent (`Bridges.push_to`). So the
rule of webhooks holds here, too: no client can make the server reach other hosts. The
configurations are stored beside the journal (`ports/push_targets.py`), because they have
credentials. `PushNotifications` follows the journals and delivers, as `Webhook` does.
"""

import logging
from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from hashlib import sha256
from typing import Final

import anyio
import msgspec
from a2a.types import a2a_pb2 as pb
from a2a.utils.constants import A2A_JSON_MEDIA_TYPE
from a2a.utils.errors import (
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotFoundError,
)
from google.protobuf.json_format import MessageToDict
from msgspec import Struct

from midrun.core import entries as e
from midrun.core.ids import RunId, Seq
from midrun.core.state import State
from midrun.core.values import Actor
from midrun.followers.webhooks import (
    WEBHOOK_MAX_ATTEMPTS,
    WEBHOOK_TIMEOUT,
    Delivery,
    WebhookPoster,
    load_state_at,
    parse_webhook_url,
)
from midrun.followers.worker import PendingRun, RetryLater
from midrun.ports.follower_cursors import FollowerCursor
from midrun.ports.push_targets import HasPushTargets, PushTarget, PushTargets
from midrun.ports.store import Store
from midrun.server.a2a.tasks import to_task
from midrun.server.request_checks import make_base_url, parse_push_origins
from midrun.server.request_context import RequestContext

CONFIGS_MAX_PER_TASK: Final = 10
"""The most configurations that one user may store for a task."""

URL_MAX_CHARS: Final = 2048
SECRET_MAX_CHARS: Final = 4096
CONFIG_ID_MAX_CHARS: Final = 128

TARGET_DIGEST_CHARS: Final = 12
"""The length of the digest that stands for a target in the note of a cursor."""

TOKEN_HEADER: Final = "X-A2A-Notification-Token"  # noqa: S105 - the name of a header

PUSHED_ENTRIES: Final = (
    e.RunWaiting,
    e.RunPaused,
    e.RunHalted,
    e.RunFailed,
    e.RunCompleted,
    e.RunCancelled,
)
"""The entries with which a run comes to rest: these are delivered."""

log = logging.getLogger("midrun.followers")


class PushConfig(Struct, frozen=True, kw_only=True):
    """A configuration as it is stored. Entries up to `since` are not delivered to it."""

    id: str
    owner: str
    url: str
    since: Seq
    base_url: str  # of the server, for the addresses of artifacts
    token: str = ""
    scheme: str = ""
    credentials: str = ""

    @property
    def target_id(self) -> str:
        """The id in the store. Two users may have configurations with the same id."""
        return sha256(f"{self.owner}\n{self.id}".encode()).hexdigest()

    @property
    def digest(self) -> str:
        """The id in the note of a cursor."""
        return self.target_id[:TARGET_DIGEST_CHARS]

    def make_headers(self, delivery_id: str) -> dict[str, str]:
        """Return the headers of a delivery, with the credentials of the receiver."""
        headers = {"Content-Type": A2A_JSON_MEDIA_TYPE, "webhook-id": delivery_id}
        if self.token:
            headers[TOKEN_HEADER] = self.token
        if self.scheme:
            headers["Authorization"] = f"{self.scheme} {self.credentials}"
        return headers

    def to_message(self, task: str) -> pb.TaskPushNotificationConfig:
        """Return the configuration for its owner, without the credentials."""
        message = pb.TaskPushNotificationConfig(
            id=self.id, task_id=task, url=self.url, token=self.token
        )
        if self.scheme:
            message.authentication.scheme = self.scheme
        return message


class PushConfigs:
    """The configurations of one caller.

    Raises:
        PushNotificationNotSupportedError: the operator has named no origin, or the store
            cannot keep configurations.
    """

    def __init__(self, request_context: RequestContext) -> None:
        self._context = request_context
        self._origins = request_context.server.push_origins
        store = request_context.server.store
        if not self._origins or not isinstance(store, HasPushTargets):
            raise PushNotificationNotSupportedError
        self._targets = store.push_targets()
        self._owner = _name_owner(request_context.actor)

    def parse(self, message: pb.TaskPushNotificationConfig, task: str) -> PushConfig:
        """Return a configuration of the request for `task`.

        Raises:
            InvalidParamsError: the address is not allowed, or a field is malformed.
        """
        authentication = message.authentication
        scheme, credentials = authentication.scheme, authentication.credentials
        if bool(scheme) != bool(credentials):
            problem = "authentication must have both scheme and credentials, or neither"
            raise InvalidParamsError(problem)
        for name, text, longest in (
            ("id", message.id, CONFIG_ID_MAX_CHARS),
            ("url", message.url, URL_MAX_CHARS),
            ("token", message.token, SECRET_MAX_CHARS),
            ("scheme", scheme, CONFIG_ID_MAX_CHARS),
            ("credentials", credentials, SECRET_MAX_CHARS),
        ):
            # They are sent as headers: a line break would start another one.
            if len(text) > longest or not (text.isascii() and text.isprintable()):
                problem = f"{name} must have at most {longest} printable ASCII characters"
                raise InvalidParamsError(problem)
        return PushConfig(
            id=message.id or task,
            owner=self._owner,
            url=self._check_url(message.url),
            since=Seq(0),
            base_url=make_base_url(self._context.request),
            token=message.token,
            scheme=scheme,
            credentials=credentials,
        )

    def _check_url(self, url: str) -> str:
        try:
            sent_to, origin = parse_webhook_url(url)
        except ValueError as error:
            raise InvalidParamsError(f"Cannot send to url: {error}") from None
        if origin not in self._origins:
            problem = (
                f"Cannot send to {origin}: the operator of this server has not allowed it. "
                f"Allowed: {', '.join(sorted(self._origins))}"
            )
            raise InvalidParamsError(problem)
        return sent_to

    async def put(self, run: RunId, config: PushConfig) -> None:
        """Store a configuration, or replace the one with the same id.

        Raises:
            InvalidParamsError: the task has too many configurations.
        """
        known = {each.id for each in await self.list_configs(run)}
        if config.id not in known and len(known) >= CONFIGS_MAX_PER_TASK:
            problem = f"A task must have at most {CONFIGS_MAX_PER_TASK} configurations"
            raise InvalidParamsError(problem)
        body = msgspec.json.encode(config)
        await self._targets.put_target(run, PushTarget(id=config.target_id, body=body))

    async def list_configs(self, run: RunId) -> Sequence[PushConfig]:
        """Return the caller's configurations for a task, ordered by id."""
        every = await _read_configs(self._targets, run)
        own = [config for config in every if config.owner == self._owner]
        return sorted(own, key=lambda config: config.id)

    async def get(self, run: RunId, config_id: str) -> PushConfig:
        """Return one of the caller's configurations.

        Raises:
            TaskNotFoundError: there is none with this id.
        """
        for config in await self.list_configs(run):
            if config.id == (config_id or run):
                return config
        raise TaskNotFoundError(f"Cannot find the push configuration {config_id} of {run}")

    async def remove(self, run: RunId, config_id: str) -> None:
        """Remove one of the caller's configurations; without effect if there is none."""
        for config in await self.list_configs(run):
            if config.id == (config_id or run):
                await self._targets.remove_target(run, config.target_id)


def _name_owner(actor: Actor) -> str:
    return f"{actor.tenant}\n{actor.name}"


async def _read_configs(targets: PushTargets, run: RunId) -> list[PushConfig]:
    return [
        msgspec.json.decode(target.body, type=PushConfig)
        for target in await targets.list_targets(run)
    ]


class PushNotifications:
    """A `Follower` that posts each task that comes to rest to the addresses of its clients.

    `push_to` are the origins to which it may send, as in `Bridges`. A notification is sent at
    least once; a repeated one has the same `webhook-id`. One without a 2xx reply within
    `timeout` is retried, up to `attempts` attempts. The notifications of a task are in order:
    the next one waits until each address has the one before, or has used up its attempts.

    Raises:
        Misconfigured: an item of `push_to` is not an origin.
    """

    name = "a2a push notifications"

    def __init__(
        self,
        push_to: Collection[str],
        *,
        attempts: int = WEBHOOK_MAX_ATTEMPTS,
        timeout: timedelta = WEBHOOK_TIMEOUT,
    ) -> None:
        self.attempts = attempts
        self._origins = parse_push_origins(push_to)
        self._poster = WebhookPoster(timeout)

    def open(self) -> AbstractAsyncContextManager[None]:
        """Keep an HTTP client, and its connections, while the context is open."""
        return self._poster.open()

    async def deliver(self, pending: PendingRun) -> FollowerCursor:
        """Send the first notification of `pending` to each address that lacks it."""
        configs = await self._list_allowed(pending.store, pending.run)
        for record in pending.records if configs else ():
            if not isinstance(record.entry, PUSHED_ENTRIES):
                continue
            # A cursor has one position, but an entry goes to several addresses. While some of
            # them lack the entry, the cursor stays before it, and its note names those that
            # have it. A note about another entry is void.
            done = _parse_note(pending.note, record.seq)
            due = [c for c in configs if c.since < record.seq and c.digest not in done]
            if due:
                state = await load_state_at(pending, record)
                # Send the task as it was at this entry. Its newest state may be another one:
                # a receiver must not get *working* in place of *input required*.
                failed = await self._send_to_all(due, state)
                if len(failed) == len(due):
                    raise failed[0]
                if failed:
                    # The cursor stays before the entry. Its note has the addresses that have
                    # it, so a retry does not repeat it for them.
                    unsent = {failure.config.digest for failure in failed}
                    done |= {config.digest for config in due} - unsent
                    note = _format_note(record.seq, done)
                    return FollowerCursor(run=pending.run, seq=Seq(record.seq - 1), note=note)
            return FollowerCursor(run=pending.run, seq=record.seq)
        return FollowerCursor(run=pending.run, seq=pending.records[-1].seq)

    async def _list_allowed(self, store: Store, run: RunId) -> list[PushConfig]:
        """Return the configurations whose origin is allowed now; it was, when they came."""
        if not isinstance(store, HasPushTargets):
            return []
        configs = await _read_configs(store.push_targets(), run)
        allowed = [c for c in configs if parse_webhook_url(c.url)[1] in self._origins]
        if len(allowed) < len(configs):
            text = "%s: run %s has %d addresses that are not allowed any more"
            log.warning(text, self.name, run, len(configs) - len(allowed))
        return allowed

    async def _send_to_all(
        self, configs: Sequence[PushConfig], state: State
    ) -> "list[_NotSent]":
        """Send the task in `state` to each address; return the failures."""
        failed: list[_NotSent] = []

        async def send(config: PushConfig) -> None:
            response = pb.StreamResponse(task=to_task(state, config.base_url))
            body = msgspec.json.encode(MessageToDict(response))
            delivery = Delivery(id=f"{state.run}:{state.seq}", seq=state.seq, body=body)
            try:
                await self._poster.post(config.url, delivery, config.make_headers(delivery.id))
            except RetryLater as later:
                failed.append(_NotSent(config, later))

        async with anyio.create_task_group() as tasks:
            for config in configs:
                tasks.start_soon(send, config)
        return failed


class _NotSent(RetryLater):
    """A notification that one address did not accept."""

    def __init__(self, config: PushConfig, later: RetryLater) -> None:
        super().__init__(str(later), later.seq, later.seconds)
        self.config = config


def _format_note(seq: Seq, digests: Collection[str]) -> str:
    return " ".join([str(seq), *sorted(digests)])


def _parse_note(note: str, seq: Seq) -> set[str]:
    """Return the digests of the addresses that have the entry `seq`."""
    noted_seq, *digests = note.split(" ")
    return set(digests) if noted_seq == str(seq) else set()
