"""Webhooks: a signed POST when a run waits, pauses at a cap, fails, completes or is cancelled.

The address comes only from the configuration. No data of a run, a tool or a caller can change
it, and redirects are not followed, so a webhook cannot be used to reach other hosts.
"""

import base64
import binascii
import hmac
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from hashlib import sha256
from typing import Final
from urllib.parse import urlsplit

import anyio.to_thread
import httpx2
import msgspec
from msgspec import Struct

from midrun.core.entries import (
    Entry,
    Record,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunWaiting,
)
from midrun.core.evolve import fold
from midrun.core.ids import Micros, RunId, Seq, micros_to_datetime
from midrun.core.state import State
from midrun.core.values import Json
from midrun.driver.journal_writer import load_run_state
from midrun.errors import Misconfigured
from midrun.followers.worker import PendingRun, RetryLater
from midrun.ports.environment import Environment
from midrun.ports.follower_cursors import FollowerCursor
from midrun.text.titles import format_title

# Bodies and signatures of webhook deliveries: CloudEvents 1.0, signed by Standard Webhooks.
#
# The signature is an HMAC-SHA256 of the id, the time and the body. A receiver with the secret
# can check that the delivery is authentic, complete and recent.

CONTENT_TYPE: Final = "application/cloudevents+json; charset=utf-8"
EVENT_SOURCE: Final = "/v1/runs"
SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - marks a secret, is none
SECRET_MIN_BYTES: Final = 16
"""Minimum length of a secret in bytes; a shorter one can be guessed."""

TEXT_MAX_CHARS: Final = 4000
"""Maximum length of each text in a delivery, in characters: task, output, error, question."""


class Delivery(Struct, frozen=True, kw_only=True):
    """One webhook request. `id` is the same for every attempt to send it."""

    id: str
    seq: Seq
    body: bytes


def event_type(entry: Entry) -> str:
    """Return the CloudEvents type of an entry; "" if the entry is not delivered."""
    match entry:
        case RunWaiting():
            word = "waiting"
        case RunPaused(why="cap"):
            word = "paused"
        case RunFailed():
            word = "failed"
        case RunCompleted():
            word = "completed"
        case RunCancelled():
            word = "cancelled"
        case _:
            return ""
    return f"dev.midrun.run.{word}.v1"


def build_delivery(run: RunId, record: Record, state: State) -> Delivery:
    """Return the delivery for an entry; `state` is the run's state right after it."""
    id_ = f"{run}:{record.seq}"
    at = micros_to_datetime(record.at).isoformat(timespec="milliseconds")
    body = {
        "specversion": "1.0",
        "id": id_,
        "source": EVENT_SOURCE,
        "type": event_type(record.entry),
        "subject": run,
        "time": at.replace("+00:00", "Z"),
        "datacontenttype": "application/json",
        "data": _build_data(run, record, state),
    }
    return Delivery(id=id_, seq=record.seq, body=msgspec.json.encode(body))


def _build_data(run: RunId, record: Record, state: State) -> dict[str, Json]:
    spec = state.run_started
    data: dict[str, Json] = {
        "run_id": run,
        "seq": record.seq,
        "phase": state.phase,
        "agent": spec.agent,
        "task": spec.task[:TEXT_MAX_CHARS],
        "labels": list(spec.labels),
        "thread": spec.thread,
    }
    match record.entry:
        case RunWaiting():
            data["asks"] = [_build_ask(state, number) for number in state.open_asks]
        case RunPaused():
            data["cap"] = state.pause.cap_name if state.pause is not None else ""
        case RunFailed(error=error, code=code):
            data |= {"error": error[:TEXT_MAX_CHARS], "code": code}
        case RunCompleted(output=output):
            data["output"] = output[:TEXT_MAX_CHARS]
        case RunCancelled(residue=residue):
            data["not_undone"] = len(residue)
        case _:
            raise AssertionError(record.entry)
    return data


def _build_ask(state: State, number: int) -> dict[str, Json]:
    ask = state.asks[number - 1]
    call = state.find_call(ask.call)
    return {
        "id": ask.id,
        "kind": ask.effective_kind,
        "question": ask.question[:TEXT_MAX_CHARS],
        "tool": call.use.tool if call is not None else "",
        "title": format_title(call.use) if call is not None else "",
        "audience": ask.audience,
    }


def decode_secret(secret: str) -> bytes:
    """Return the signing key of a secret: its bytes, or after `whsec_` its decoded base64.

    Raises:
        Misconfigured: the secret is too short, or not base64 after `whsec_`.
    """
    key = secret.encode()
    if secret.startswith(SECRET_PREFIX):
        try:
            key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
        except binascii.Error:
            raise Misconfigured("webhook secret", "must be base64 after whsec_") from None
    if len(key) < SECRET_MIN_BYTES:
        problem = f"must have at least {SECRET_MIN_BYTES} bytes, got {len(key)}"
        raise Misconfigured("webhook secret", problem)
    return key


def sign_headers(delivery: Delivery, key: bytes, now: Micros) -> dict[str, str]:
    """Return the headers of a delivery that is sent at `now`, with its signature."""
    # The time is that of this attempt, not of the entry: receivers refuse old signatures, and
    # a retry may come hours later.
    seconds = now // 1_000_000
    content = b"%b.%d.%b" % (delivery.id.encode(), seconds, delivery.body)
    mac = base64.b64encode(hmac.digest(key, content, "sha256")).decode()
    return {
        "Content-Type": CONTENT_TYPE,
        "webhook-id": delivery.id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": f"v1,{mac}",
    }


WEBHOOK_MAX_ATTEMPTS: Final = 30
"""Default number of attempts; with the delays between them, they span most of a day."""

WEBHOOK_TIMEOUT: Final = timedelta(seconds=10)

log = logging.getLogger("midrun.followers")

_HTTP_LOG: Final = logging.getLogger("httpx2")


class Webhook:
    """A `Follower` that posts the state changes of runs to `url`.

    `secret` signs each delivery. `name` identifies the follower's cursors in the store; set it
    if the address may change, because by default it is derived from the address. Every delivery
    is sent at least once, those of one run in order, and a repeated delivery has the same id. A
    delivery without a 2xx reply within `timeout` is retried, up to `attempts` attempts.

    Child runs are not delivered, only their parents.

    Raises:
        Misconfigured: `url` is not an http or https address, or the secret is too short.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: str,
        name: str = "",
        attempts: int = WEBHOOK_MAX_ATTEMPTS,
        timeout: timedelta = WEBHOOK_TIMEOUT,
        outside: Environment | None = None,
    ) -> None:
        try:
            parts, sent_to = urlsplit(url), httpx2.URL(url)
        except (ValueError, httpx2.InvalidURL) as error:
            raise Misconfigured("webhook", f"the address is not a URL: {error}") from None
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            problem = "the address must begin with https:// or http:// and name a host"
            raise Misconfigured("webhook", problem)
        # The name is stored and logged. It has only the host and a digest of the address,
        # because the path or the query may be a secret.
        digest = sha256(url.encode()).hexdigest()[:12]
        self.name = name or f"webhook {parts.hostname} {digest}"
        self.attempts = attempts
        self._url = str(sent_to)
        self._key = decode_secret(secret)
        self._timeout_s = timeout.total_seconds()
        self._clock = (outside or Environment()).clock
        self._client: httpx2.AsyncClient | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Keep an HTTP client, and its connections, while the context is open."""
        client = httpx2.AsyncClient(
            timeout=self._timeout_s, follow_redirects=False, headers={"User-Agent": "midrun"}
        )
        async with client:
            self._client = client
            _HTTP_LOG.addFilter(self._may_be_logged)
            try:
                yield
            finally:
                _HTTP_LOG.removeFilter(self._may_be_logged)
                self._client = None

    def _may_be_logged(self, record: logging.LogRecord) -> bool:
        """Tell whether a log record of the HTTP client is free of the address.

        Many receivers put a secret into the address, and knowing it is enough to post there.
        """
        return not isinstance(record.args, tuple) or self._url not in map(str, record.args)

    async def deliver(self, pending: PendingRun) -> FollowerCursor:
        """Send the first delivery of `pending` and return the cursor after it."""
        # One delivery per call. The worker stores the cursor after each, so after a crash at
        # most one delivery of a run is sent again, with the same id.
        for record in pending.records:
            if event_type(record.entry) and not pending.row.head.parent:
                next_delivery = build_delivery(
                    pending.run, record, await _load_state_at(pending, record)
                )
                await self._send(next_delivery)
                return FollowerCursor(run=pending.run, seq=record.seq)
        return FollowerCursor(run=pending.run, seq=pending.records[-1].seq)

    async def _send(self, delivery: Delivery) -> None:
        assert self._client is not None, "deliver is called only while the context is open"
        headers = sign_headers(delivery, self._key, self._clock())
        try:
            request = self._client.build_request(
                "POST", self._url, content=delivery.body, headers=headers
            )
            # Streamed and closed unread: only the status matters, and a body could be endless.
            reply = await self._client.send(request, stream=True)
            await reply.aclose()
        except httpx2.HTTPError as error:
            raise RetryLater(type(error).__name__, delivery.seq) from error
        if not reply.is_success:
            raise RetryLater(f"status {reply.status_code}", delivery.seq, _retry_after_s(reply))


def _retry_after_s(reply: httpx2.Response) -> float:
    """Return the delay that the receiver asked for with `Retry-After`, in seconds."""
    try:
        return float(reply.headers.get("retry-after", "0"))
    except ValueError:
        return 0.0  # a date: use the normal delay


async def _load_state_at(pending: PendingRun, record: Record) -> State:
    """Return the state of the run right after `record`."""
    # The record is usually the last one, and loading the current state is cheap thanks to
    # snapshots. Otherwise fold the journal up to the record, in a thread: it may be long.
    state = await load_run_state(pending.store, pending.run)
    if state.seq == record.seq:
        return state
    records = await pending.store.read(pending.run, limit=record.seq)
    return await anyio.to_thread.run_sync(fold, pending.run, records)
