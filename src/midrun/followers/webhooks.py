"""Webhooks: a signed POST for a run that waits, stops at a cap, fails, ends or is cancelled.

The address comes from configuration and from nowhere else: nothing that a run, a tool or a
caller says decides where anything is sent, and a redirect is not followed.
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
from midrun.driver.journal_writer import load
from midrun.errors import Misconfigured
from midrun.followers.cloudevents import Delivery, delivery, key_of, signed, type_of
from midrun.followers.worker import Followed, Later
from midrun.ports.environment import Outside
from midrun.ports.follower_cursors import Mark

ATTEMPTS: Final = 30
"""With the waits between them: most of a day."""

TIMEOUT: Final = timedelta(seconds=10)

log = logging.getLogger("midrun.followers")

_HTTP_LOG: Final = logging.getLogger("httpx2")


class Webhook:
    """Posts to `url` what happens to runs; a `Follower`.

    `secret` signs what is sent. `name` keeps its place when the address changes; by default it
    follows from the address. Every delivery comes at least once, those of one run in order,
    each with the same id however often it comes. One that is not taken, by a 2xx within
    `timeout`, is sent again, `attempts` times at most.

    Child runs are not told of: their parents are.

    Raises:
        Misconfigured: the address is no http or https address, or the secret is too short.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: str,
        name: str = "",
        attempts: int = ATTEMPTS,
        timeout: timedelta = TIMEOUT,
        outside: Outside | None = None,
    ) -> None:
        try:
            parts, sent_to = urlsplit(url), httpx2.URL(url)
        except (ValueError, httpx2.InvalidURL) as error:
            raise Misconfigured("webhook", f"its address is none: {error}") from None
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise Misconfigured("webhook", "its address begins with https:// and names a host")
        digest = sha256(url.encode()).hexdigest()[:12]
        self.name = name or f"webhook {parts.hostname} {digest}"
        self.attempts = attempts
        self._url = str(sent_to)
        self._key = key_of(secret)
        self._timeout = timeout.total_seconds()
        self._clock = (outside or Outside()).clock
        self._client: httpx2.AsyncClient | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Keep connections for as long as the context is open."""
        made = httpx2.AsyncClient(
            timeout=self._timeout, follow_redirects=False, headers={"User-Agent": "midrun"}
        )
        async with made:
            self._client = made
            _HTTP_LOG.addFilter(self._may_be_logged)
            try:
                yield
            finally:
                _HTTP_LOG.removeFilter(self._may_be_logged)
                self._client = None

    def _may_be_logged(self, record: logging.LogRecord) -> bool:
        """Keep the address out of logs: with many far ends it is all that one must know."""
        return not isinstance(record.args, tuple) or self._url not in map(str, record.args)

    async def tell(self, followed: Followed) -> Mark:
        """Send the first delivery that there is, and return how far that was."""
        for record in followed.records:
            if type_of(record.entry) and not followed.row.head.parent:
                sent = delivery(followed.run, record, await _state_at(followed, record))
                await self._send(sent)
                return Mark(run=followed.run, seq=record.seq)
        return Mark(run=followed.run, seq=followed.records[-1].seq)

    async def _send(self, sent: Delivery) -> None:
        assert self._client is not None, "it is told while it is open"
        headers = signed(sent, self._key, self._clock())
        try:
            request = self._client.build_request(
                "POST", self._url, content=sent.body, headers=headers
            )
            reply = await self._client.send(request, stream=True)  # nobody reads the answer
            await reply.aclose()
        except httpx2.HTTPError as error:
            raise Later(type(error).__name__, sent.seq) from error
        if not reply.is_success:
            raise Later(f"status {reply.status_code}", sent.seq, _asked(reply))


def _asked(reply: httpx2.Response) -> float:
    """Return how many seconds the far end wants to be left alone."""
    try:
        return float(reply.headers.get("retry-after", "0"))
    except ValueError:
        return 0.0  # a date: then we wait as long as we would anyway


async def _state_at(followed: Followed, record: Record) -> State:
    """Return what the journal meant right after `record`."""
    state = await load(followed.store, followed.run)
    if state.seq == record.seq:
        return state
    records = await followed.store.read(followed.run, limit=record.seq)
    return await anyio.to_thread.run_sync(fold, followed.run, records)
