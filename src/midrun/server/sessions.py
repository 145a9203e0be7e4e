"""Browser sessions: a cookie and a proof in place of the token.

A link with a code in its fragment, good for one use, is exchanged for a session, which has two
parts. The cookie is `HttpOnly` and `SameSite=Strict`, so no script can read it and no other
site can send it. But a browser sends a cookie to every port of a host, and on one machine the
ports belong to different users: a server on another port gets ours, and could replay it. So the
reply carries a second part, the proof, which the page keeps in `localStorage` and sends as a
header. Storage belongs to an origin, port included, so another port never has it. It is
`localStorage` and not `sessionStorage`, because a new tab of the same origin is to be signed
in, too; alone, without the cookie, the proof is worth nothing.

The proof is an HMAC of the cookie, so that nothing more has to be stored; a reader of the
cookie cannot compute it without the key.

With a key the cookie says itself whom it is for and until when, and is signed: a server that
starts again with the same key takes it, so that no open page is signed out by a restart. The
key of a server with one token is made from that token; whoever changes it ends every session.
Who signed out is remembered by the process where that happened, and by no other. Memory is
bounded, and nobody can use it up for others: who signs in and out too often signs only
themselves out.

Without a key the cookie is a random word and the session is in memory: it ends with the
process. So does one that was opened with a token that `auth` must be asked about again, which
is written down nowhere. Codes always do.
"""

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from secrets import token_bytes, token_urlsafe
from typing import Final
from weakref import WeakValueDictionary

import anyio
import msgspec

from midrun.core.ids import SECOND, Micros
from midrun.core.values import Actor, Value
from midrun.ports.environment import Clock

SESSION_S: Final = 12 * 3600
CODE_S: Final = 600.0
SESSIONS_MAX: Final = 256
"""How many are in memory. One that says itself what it is may be left out, and goes on."""

ENDED_MAX: Final = 4096
SECRET_MAX: Final = 2048
"""Characters of a cookie that is looked at; browsers keep twice as many."""

KEY_MIN: Final = 32
"""Bytes of a key."""

_PURPOSE: Final = b"midrun session v1"
_PROOF: Final = b"midrun session proof v1:"
_BYTES: Final = 32


class _Said(Value, kw_only=True):
    """What a signed cookie says. `id` makes each of its kind the only one."""

    actor: Actor
    until: Micros
    id: str


@dataclass(frozen=True, kw_only=True)
class Session:
    """One browser. `token` is what `auth` must be asked about again; it ends with that."""

    actor: Actor
    token: str = field(repr=False, default="")
    until: Micros
    signed: bool = False  # the cookie says all of this itself
    ended: anyio.Event = field(default_factory=anyio.Event)


class Sessions:
    """The sessions and codes of one server. Found by hash, so that a lookup tells nothing.

    `clock` is the world's, which browsers and the next process go by as well; `now` only goes
    forward.
    """

    def __init__(
        self, now: Callable[[], float], clock: Clock, *, key: bytes | None = None
    ) -> None:
        self._now = now
        self._clock = clock
        self._key = key
        self._proof_key = token_bytes(_BYTES) if key is None else key
        self._codes: dict[str, tuple[Actor, float]] = {}
        self._open: dict[str, Session] = {}
        self._listening: WeakValueDictionary[str, Session] = WeakValueDictionary()
        self._ended: dict[str, Session] = {}
        self._forgotten: dict[str, Micros] = {}  # name → sessions that end by then are over

    def code(self, actor: Actor) -> str:
        """Return a code that opens one session for `actor`, once, within ten minutes."""
        now, code = self._now(), token_urlsafe(_BYTES)
        for lapsed in [name for name, (_, until) in self._codes.items() if until <= now]:
            del self._codes[lapsed]
        self._codes[_hashed(code)] = (actor, now + CODE_S)
        return code

    def redeem(self, code: str) -> Actor | None:
        """Use a code up, and return whom it was for."""
        actor, until = self._codes.pop(_hashed(code), (None, 0.0))
        return actor if self._now() < until else None

    def open(self, actor: Actor, *, token: str = "") -> str:
        """Open a session and return the secret that the cookie carries."""
        until = Micros(self._clock() + SESSION_S * SECOND)
        if self._key is not None and (not token or key_of(token) == self._key):
            said = _Said(actor=actor, until=until, id=token_urlsafe(_BYTES))
            secret = _signed(_text(msgspec.json.encode(said)), self._key)
            if len(secret) <= SECRET_MAX:
                self._keep(_hashed(secret), Session(actor=actor, until=until, signed=True))
                return secret
        secret = token_urlsafe(_BYTES)
        self._keep(_hashed(secret), Session(actor=actor, token=token, until=until))
        return secret

    def proof_of(self, secret: str) -> str:
        """Return the part of a session that its page keeps, and no cookie carries."""
        text = _PROOF + secret.encode(errors="surrogateescape")
        return _text(hmac.digest(self._proof_key, text, sha256))

    def is_proven(self, secret: str, proof: str) -> bool:
        """Tell whether the page that sends this cookie has the proof that belongs to it."""
        shown = proof.encode(errors="surrogateescape")
        return hmac.compare_digest(shown, self.proof_of(secret).encode())

    def find(self, secret: str) -> Session | None:
        """Return the session of this secret, if it is still open."""
        name = _hashed(secret)
        session = self._known(name) or self._of_before(name, secret)
        if session is not None and session.until <= self._clock():
            self._end(name)
            return None
        return session

    def end_all(self, name: str) -> None:
        """End every session of the actor of this name, and void the codes that wait for it.

        A signed session that this process has not seen yet is refused by its end: none that was
        opened up to now ends later than one that would be opened now.
        """
        now = self._clock()
        for code in [each for each, (who, _) in self._codes.items() if who.name == name]:
            del self._codes[code]
        known = [*self._open.items(), *self._listening.items()]
        for each in [each for each, session in known if session.actor.name == name]:
            self._end(each)
        self._forgotten = {who: until for who, until in self._forgotten.items() if until > now}
        self._forgotten[name] = Micros(now + SESSION_S * SECOND)

    def end(self, secret: str) -> None:
        """End a session; its streams end with it."""
        self._end(_hashed(secret))

    def _known(self, name: str) -> Session | None:
        """Return a session that is in memory, be it only because somebody listens by it."""
        return self._open.get(name) or self._listening.get(name)

    def _of_before(self, name: str, secret: str) -> Session | None:
        """Take a session over that another process opened with the same key, or this one."""
        said = None if self._key is None or name in self._ended else _read(secret, self._key)
        if said is None:
            return None
        if said.until <= max(self._forgotten.get(said.actor.name, 0), self._clock()):
            return None
        session = Session(actor=said.actor, until=said.until, signed=True)
        self._keep(name, session)
        return session

    def _keep(self, name: str, session: Session) -> None:
        while len(self._open) >= SESSIONS_MAX:
            gone = _most(self._open)[0]  # so that nobody signs others out
            if self._open[gone].signed:
                self._listening[gone] = self._open.pop(gone)
            else:
                self._end(gone)
        self._open[name] = session

    def _end(self, name: str) -> None:
        session = self._known(name)
        if session is None:
            return
        for known in (self._open, self._listening):
            known.pop(name, None)
        session.ended.set()
        if session.signed and session.until > self._clock():
            self._remember(name, session)

    def _remember(self, name: str, ended: Session) -> None:
        """Keep in mind that a session has ended, for as long as its cookie says otherwise."""
        self._ended[name] = ended
        if len(self._ended) <= ENDED_MAX:
            return
        now = self._clock()
        self._ended = {n: each for n, each in self._ended.items() if each.until > now}
        self._forgotten = {who: until for who, until in self._forgotten.items() if until > now}
        while len(self._ended) > ENDED_MAX:
            theirs = _most(self._ended)
            for gone in theirs[: len(theirs) // 2 + 1]:  # one by one would take its time
                forgotten = self._ended.pop(gone)
                who = forgotten.actor.name
                before = self._forgotten.get(who, forgotten.until)
                self._forgotten[who] = max(before, forgotten.until)


def _most(sessions: Mapping[str, Session]) -> Sequence[str]:
    """Return the sessions of whoever has the most, the oldest first."""
    ((most, _),) = Counter(each.actor for each in sessions.values()).most_common(1)
    return [name for name, each in sessions.items() if each.actor == most]


def key_of(token: str) -> bytes:
    """Return the key of a server that has this one token."""
    return hmac.digest(token.encode(errors="surrogateescape"), _PURPOSE, sha256)


def _signed(text: str, key: bytes) -> str:
    return f"{text}.{_text(hmac.digest(key, text.encode(errors='surrogateescape'), sha256))}"


def _read(secret: str, key: bytes) -> _Said | None:
    """Return what a cookie says, if it was signed with this key; else it is not even parsed."""
    if len(secret) > SECRET_MAX:
        return None
    text = secret.partition(".")[0]
    # As text, of which there is one for each signature: base64 may be written in several ways.
    shown, right = (s.encode(errors="surrogateescape") for s in (secret, _signed(text, key)))
    if not hmac.compare_digest(shown, right):
        return None
    try:
        return msgspec.json.decode(urlsafe_b64decode(text + "=="), type=_Said)
    except ValueError:  # an actor of a kind that no version of ours knows
        return None


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _hashed(secret: str) -> str:
    return sha256(secret.encode(errors="surrogateescape")).hexdigest()
