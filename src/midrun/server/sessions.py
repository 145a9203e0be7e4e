"""Browser sessions: a cookie in place of the token, which scripts on a page cannot read.

`EventSource` cannot set headers, and a token in an address ends up in logs. A link with a code
in its fragment, good for one use, is exchanged for a cookie that is `HttpOnly` and
`SameSite=Strict`. Sessions live in memory: a server that starts again asks for a new link.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from secrets import token_urlsafe
from typing import Final

import anyio

from midrun.core.values import Actor

SESSION_S: Final = 12 * 3600.0
CODE_S: Final = 600.0
SESSIONS_MAX: Final = 256
_BYTES: Final = 32


@dataclass(frozen=True, kw_only=True)
class Session:
    """One browser. `token` is what it was opened with, so that it ends with that."""

    actor: Actor
    token: str
    until: float
    ended: anyio.Event = field(default_factory=anyio.Event)


class Sessions:
    """The sessions and codes of one server. Found by hash, so that a lookup tells nothing."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._codes: dict[str, tuple[Actor, float]] = {}
        self._open: dict[str, Session] = {}

    def code(self, actor: Actor) -> str:
        """Return a code that opens one session for `actor`, once, within ten minutes."""
        code = token_urlsafe(_BYTES)
        self._codes[_hashed(code)] = (actor, self._now() + CODE_S)
        return code

    def redeem(self, code: str) -> Actor | None:
        """Use a code up, and return whom it was for."""
        actor, until = self._codes.pop(_hashed(code), (None, 0.0))
        return actor if self._now() < until else None

    def open(self, actor: Actor, *, token: str = "") -> str:
        """Open a session and return the secret that the cookie carries."""
        while len(self._open) >= SESSIONS_MAX:
            self._end(next(iter(self._open)))
        secret = token_urlsafe(_BYTES)
        until = self._now() + SESSION_S
        self._open[_hashed(secret)] = Session(actor=actor, token=token, until=until)
        return secret

    def find(self, secret: str) -> Session | None:
        """Return the session of this secret, if it is still open."""
        key = _hashed(secret)
        session = self._open.get(key)
        if session is not None and session.until <= self._now():
            self._end(key)
            return None
        return session

    def end(self, secret: str) -> None:
        """End a session; its streams end with it."""
        self._end(_hashed(secret))

    def _end(self, key: str) -> None:
        session = self._open.pop(key, None)
        if session is not None:
            session.ended.set()


def _hashed(secret: str) -> str:
    return sha256(secret.encode(errors="surrogateescape")).hexdigest()
