"""Webhooks: a signed POST when a run waits, pauses at a cap, fails, completes or is cancelled.

The address comes only from the configuration. No data of a run, a tool or a caller can change
it, and redirects are not followed, so a webhook cannot be used to reach other hosts.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from hashlib import sha256
from typing import Final
from urllib.parse import urlsplit

import anyio.to_thread
import httpx2

from midrun.core.entries import Record
from midrun.core.evolve import fold
from midrun.core.state import State
from midrun.driver.journal_writer import load_run_state
from midrun.errors import Misconfigured
from midrun.followers.cloudevents import (
    Delivery,
    build_delivery,
    decode_secret,
    event_type,
    sign_headers,
)
from midrun.followers.worker import PendingRun, RetryLater
from midrun.ports.environment import Environment
from midrun.ports.follower_cursors import FollowerCursor

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
