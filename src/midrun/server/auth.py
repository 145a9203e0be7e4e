"""Authentication: map a bearer token to an actor, and keep the token file.

The name and the role of a caller come only from here (or from a session that was opened with
such a credential). No other part of a request can claim either.
"""

import hmac
import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from secrets import token_bytes, token_urlsafe
from typing import Final, Protocol, TypeAlias, cast
from weakref import WeakValueDictionary

import anyio
import msgspec

from midrun.core.ids import MICROS_PER_SECOND, Micros
from midrun.core.run_head import NAME_MAX_CHARS
from midrun.core.values import Actor, Value
from midrun.errors import Misconfigured
from midrun.ports.environment import Clock
from midrun.runs.token_file import TOKEN_FILE_NAME, find_token_folder

Auth: TypeAlias = Callable[[str], Awaitable[Actor | None]]
"""Maps a token to its actor; None rejects the token.

It is called on every request, and again at intervals while a stream is open."""

TOKEN_BYTES: Final = 32
TOKEN_MIN_CHARS: Final = 16
"""The minimum length of a token, in characters. A shorter one can be guessed, and an unset
environment variable gives an empty one."""

_PRIVATE_FILE_MODE: Final = 0o600
_PRIVATE_FOLDER_MODE: Final = 0o700
_OTHERS_MODE_BITS: Final = 0o077


def find_name_problem(actor: Actor) -> str:
    """Return the reason why `actor` cannot sign in, or "" if it can.

    A run that is started without an actor is recorded as started by `user`, so an account with
    that name and the role user would own all of them. (The bearer of a server's single token
    has the name, but is an operator.) An empty owner in a query means all owners, so an account
    without a name would see the runs of all users.
    """
    if not actor.name:
        return "Cannot sign in: the account has no name. Give the Actor a name."
    if (actor.name, actor.role) != (Actor().name, Actor().role):
        return _find_tenant_problem(actor)
    return (
        f"Cannot sign in as the user {actor.name!r}: this name stands for runs that were "
        "started without an actor. Give the account another name."
    )


def _find_tenant_problem(actor: Actor) -> str:
    """Return the reason why the tenant or a team of `actor` is no name, or ""."""
    for name in (actor.tenant, *actor.teams):
        if name == "*" or len(name) > NAME_MAX_CHARS or not name.isprintable():
            return f"Cannot sign in: {name[:NAME_MAX_CHARS]!r} is no name of a tenant or team."
    return "" if all(actor.teams) else "Cannot sign in: a team has no name."


class Tokens:
    """A fixed list of tokens, each with its actor.

    Only hashes are kept. A token is compared with all of them, each in constant time, so the
    time of a refusal reveals nothing.
    """

    def __init__(self, actors: Mapping[str, Actor]) -> None:
        if not actors or any(len(token) < TOKEN_MIN_CHARS for token in actors):
            problem = (
                f"each token must have at least {TOKEN_MIN_CHARS} characters. Let token_in() "
                "make one"
            )
            raise Misconfigured("server", problem)
        for actor in actors.values():
            if problem := find_name_problem(actor):
                raise Misconfigured("server", problem)
        self._actors = tuple((hash_token(token), actor) for token, actor in actors.items())

    async def __call__(self, token: str) -> Actor | None:
        """Return the actor of `token`, or None."""
        shown = hash_token(token)
        found = None
        for known, actor in self._actors:  # no early return: see the class
            if compare_digest(known, shown):
                found = actor
        return found


class BrowserSignIn(Protocol):
    """An `auth` that also signs browsers in, on the page of an identity provider."""

    @property
    def signs_browsers_in(self) -> bool:
        """Whether it is configured to do so."""

    async def begin(self, callback_url: str) -> tuple[str, str]:
        """Return the address to send the browser to, and the secret for its cookie."""

    async def finish(
        self, secret: str, query: Mapping[str, str], callback_url: str
    ) -> Actor | None:
        """Return the actor with whom the provider sent the browser back, or None."""


def find_browser_sign_in(auth: Auth) -> BrowserSignIn | None:
    """Return the way of `auth` that signs browsers in, or None."""
    for way in auth.ways if isinstance(auth, FirstOf) else (auth,):
        if getattr(way, "signs_browsers_in", False):
            return cast("BrowserSignIn", way)
    return None


class FirstOf:
    """Several ways to authenticate: the first that accepts a token decides."""

    def __init__(self, *ways: Auth) -> None:
        self.ways = ways

    async def __call__(self, token: str) -> Actor | None:
        """Return the actor of `token`, or None."""
        for way in self.ways:
            if (actor := await way(token)) is not None:
                return actor
        return None


def token_in(folder: Path) -> str:
    """Return the token in `folder`; make one on the first call.

    It is kept in a file that only its owner can read. Choose a folder in which no tool works.

    Raises:
        Misconfigured: other users can read the file, or it holds no token, or this account
            cannot write there.
    """
    path = folder / TOKEN_FILE_NAME
    # O_EXCL: of two processes that start at once, one creates the file and the other reads it.
    # O_NOFOLLOW: a symbolic link that another user placed here is not followed.
    only_new = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        folder.mkdir(mode=_PRIVATE_FOLDER_MODE, parents=True, exist_ok=True)
        handle = os.open(path, only_new, _PRIVATE_FILE_MODE)
    except FileExistsError:
        return _read_token(path)
    except OSError as error:
        problem = (
            f"Cannot store a token: {error.strerror}. Set MIDRUN_TOKEN, or set XDG_STATE_HOME "
            "to a folder that only this account can read and write"
        )
        raise Misconfigured(f"token file {path}", problem) from error
    with os.fdopen(handle, "w") as file:
        file.write(token := token_urlsafe(TOKEN_BYTES))
    return token


def token_for(working_folder: Path, *, former_path: Path) -> str:
    """Return the token for servers in `working_folder`; its file is outside of that folder.

    Raises:
        Misconfigured: a token file of an earlier version is at `former_path`, or other users
            can read the token file.
    """
    folder = find_token_folder(working_folder)
    if former_path.exists():
        problem = (
            "Cannot use it: tools work in this folder and may have read it. Delete it. A new "
            f"token is then made in {folder}, and browsers have to sign in again"
        )
        raise Misconfigured(f"token file {former_path}", problem)
    return token_in(folder)


def _read_token(path: Path) -> str:
    # The mode is read from the open file, not from the path, which could change in between.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW)) as file:
        mode = os.fstat(file.fileno()).st_mode
        token = file.read().strip()
    if mode & _OTHERS_MODE_BITS:
        problem = "Cannot use it: other users can read it. Delete it and start again"
        raise Misconfigured(f"token file {path}", problem)
    if len(token) < TOKEN_MIN_CHARS:
        problem = "Cannot use it: it holds no token. Delete it and start again"
        raise Misconfigured(f"token file {path}", problem)
    return token


def hash_token(token: str) -> bytes:
    """Return the hash under which a token is known."""
    return sha256(token.encode(errors="surrogateescape")).digest()


# Browser sessions: a cookie and a proof in place of the token.
#
# A link carries a one-time code in its fragment. The page exchanges the code for a session,
# which has two parts. The cookie is `HttpOnly` and `SameSite=Strict`, so no script can read it
# and no other site can send it. But a browser sends a cookie to every port of a host, and on
# one machine the ports may belong to different users: a server on another port receives the
# cookie and could replay it. So the reply carries a second part, the proof. The page keeps it
# in `localStorage` and sends it as a header. Storage belongs to an origin, port included, so no
# other port has it. It is `localStorage` and not `sessionStorage`, because a new tab of the
# same origin must be signed in, too. Without the cookie the proof is worth nothing.
#
# The proof is an HMAC of the cookie, so it need not be stored, and a reader of the cookie
# cannot compute it without the key.
#
# With a key, the cookie itself states the actor and the expiry, and is signed. A server that
# starts again with the same key accepts it, so a restart signs no open page out. The key of a
# server with one token is derived from that token, so a new token ends every session. A
# sign-out is remembered only by the process in which it happened. That memory is bounded per
# actor: an actor that signs in and out too often loses only its own sessions.
#
# A signed cookie is valid by itself until it expires, so the end of a session must be enforced
# by refusing its cookie. `_ended` has the cookies of single sign-outs. To end *all* sessions of
# an actor is harder: some may have been opened before a restart, and this process has never
# seen their cookies. They are fenced by time. `_ended_up_to` has a moment for the actor, and
# every cookie that expires by then is refused. A session that is opened later expires later,
# and is accepted. The expiry serves as the epoch does for leases.
#
# Without a key, the cookie is a random string and the session is in memory: it ends with the
# process. So does a session that was opened with a token of `auth`: the token must be checked
# again from time to time, and it is never put into a cookie. Codes always end with the process.

SESSION_LIFETIME_S: Final = 12 * 3600
CODE_LIFETIME_S: Final = 600.0
SESSIONS_MAX: Final = 256
"""The number of sessions in memory. A signed session that is evicted stays valid."""

SESSION_ID_CHARS: Final = 16
"""Length of a session's id, in hexadecimal characters; it reveals nothing of the cookie."""

ENDED_SESSIONS_MAX: Final = 4096
SECRET_MAX_CHARS: Final = 2048
"""The maximum length of a cookie, in characters; browsers allow twice as many."""

KEY_MIN_BYTES: Final = 32
"""The minimum length of a key, in bytes."""

_KEY_LABEL: Final = b"midrun session v1"
_PROOF_LABEL: Final = b"midrun session proof v1:"
_RANDOM_BYTES: Final = 32


def check_session_key(key: bytes | None, *, has_token: bool) -> None:
    """Refuse a session key that can be guessed, or that is next to a single token.

    Raises:
        Misconfigured: it is too short; or there is a token, from which the key is derived.
    """
    if key is not None and (has_token or len(key) < KEY_MIN_BYTES):
        problem = (
            f"must have at least {KEY_MIN_BYTES} bytes, and is for several users: "
            "a single token makes its own"
        )
        raise Misconfigured("session_key", problem)


class _CookieContent(Value, kw_only=True):
    """The content of a signed cookie. `id` is random, so no two cookies are equal."""

    actor: Actor
    until: Micros
    id: str


@dataclass(frozen=True, kw_only=True)
class SignInSession:
    """One signed-in browser. If it has a `token`, it ends when `auth` rejects the token."""

    actor: Actor
    token: str = field(repr=False, default="")
    expires_at: Micros
    is_signed: bool = False  # the cookie holds the actor and the expiry
    ended: anyio.Event = field(default_factory=anyio.Event)  # streams wait for it


class Sessions:
    """The sessions and codes of one server.

    They are looked up by the hash of the secret, so the time of a lookup reveals nothing about
    the secret. Sessions expire by `clock`, the wall clock, which browsers and the next process
    share. Codes expire by `now`, which never goes back.
    """

    def __init__(
        self, now: Callable[[], float], clock: Clock, *, key: bytes | None = None
    ) -> None:
        self._now = now
        self._clock = clock
        self._key = key
        self._proof_key = token_bytes(_RANDOM_BYTES) if key is None else key
        # The keys of these dicts are hashes of codes and of cookies.
        self._codes: dict[str, tuple[Actor, float]] = {}
        self._sessions: dict[str, SignInSession] = {}
        # Sessions that were evicted from `_sessions`, while a stream or a request still refers
        # to them. They must be found: a second session for the same cookie would have an
        # `ended` event of its own, and signing out would not end the stream of the first.
        self._evicted: WeakValueDictionary[str, SignInSession] = WeakValueDictionary()
        # Signed sessions that were ended before their expiry: their cookies are still signed.
        self._ended: dict[str, SignInSession] = {}
        # Tenant (None: any) and name of an actor → every signed session that expires by this
        # time is over. It stands for ended sessions that are not listed one by one.
        self._ended_up_to: dict[tuple[str | None, str], Micros] = {}

    def issue_code(self, actor: Actor) -> str:
        """Return a code that opens one session for `actor`, within ten minutes."""
        now, code = self._now(), token_urlsafe(_RANDOM_BYTES)
        for expired in [name for name, (_, until) in self._codes.items() if until <= now]:
            del self._codes[expired]
        self._codes[_hash_secret(code)] = (actor, now + CODE_LIFETIME_S)
        return code

    def redeem_code(self, code: str) -> Actor | None:
        """Use up a code and return its actor; None if it is unknown or expired."""
        actor, until = self._codes.pop(_hash_secret(code), (None, 0.0))
        return actor if self._now() < until else None

    def open(self, actor: Actor, *, token: str = "") -> str:
        """Open a session and return the secret that the cookie carries."""
        until = Micros(self._clock() + SESSION_LIFETIME_S * MICROS_PER_SECOND)
        if self._key is not None and (not token or derive_key(token) == self._key):
            payload = _CookieContent(actor=actor, until=until, id=token_urlsafe(_RANDOM_BYTES))
            secret = _sign(_encode_base64(msgspec.json.encode(payload)), self._key)
            # A very long name does not fit; its session is kept in memory, as without a key.
            if len(secret) <= SECRET_MAX_CHARS:
                self._store(
                    _hash_secret(secret),
                    SignInSession(actor=actor, expires_at=until, is_signed=True),
                )
                return secret
        secret = token_urlsafe(_RANDOM_BYTES)
        self._store(
            _hash_secret(secret), SignInSession(actor=actor, token=token, expires_at=until)
        )
        return secret

    def make_proof(self, secret: str) -> str:
        """Return the proof of a session: the part that the page keeps outside of cookies."""
        text = _PROOF_LABEL + secret.encode(errors="surrogateescape")
        return _encode_base64(hmac.digest(self._proof_key, text, sha256))

    def is_proven(self, secret: str, proof: str) -> bool:
        """Return whether `proof` belongs to the cookie `secret`."""
        shown = proof.encode(errors="surrogateescape")
        return hmac.compare_digest(shown, self.make_proof(secret).encode())

    def find(self, secret: str) -> SignInSession | None:
        """Return the session of the cookie `secret`; None if it has ended or expired."""
        name = _hash_secret(secret)
        session = self._find_in_memory(name) or self._adopt_signed(name, secret)
        if session is not None and session.expires_at <= self._clock():
            self._end(name)
            return None
        return session

    def end_all(self, name: str, tenant: str | None = None) -> None:
        """End every session of the actor of this name, and void its codes.

        Two tenants may have an actor of the same name; None means the actors of all tenants.

        A signed session that this process has not seen yet is recognised by its expiry: every
        session that was opened until now expires no later than one that is opened now.
        """
        now = self._clock()

        def is_meant(actor: Actor) -> bool:
            return actor.name == name and tenant in {None, actor.tenant}

        for code in [each for each, (who, _) in self._codes.items() if is_meant(who)]:
            del self._codes[code]
        known = [*self._sessions.items(), *self._evicted.items()]
        for each in [each for each, session in known if is_meant(session.actor)]:
            self._end(each)
        self._ended_up_to = {
            who: until for who, until in self._ended_up_to.items() if until > now
        }
        self._ended_up_to[tenant, name] = Micros(now + SESSION_LIFETIME_S * MICROS_PER_SECOND)

    def end(self, secret: str) -> None:
        """End a session; its streams end with it."""
        self._end(_hash_secret(secret))

    def list_open(self, tenant: str | None = None) -> list[tuple[str, SignInSession]]:
        """Return the id of each session that this process knows, with the session.

        `tenant` selects the sessions of one tenant.
        """
        now = self._clock()
        known = {**self._evicted, **self._sessions}
        return [
            (name[:SESSION_ID_CHARS], session)
            for name, session in known.items()
            if session.expires_at > now and tenant in {None, session.actor.tenant}
        ]

    def end_by_id(self, session_id: str, tenant: str | None = None) -> bool:
        """End the session with this id; return False if there is none, or not of `tenant`."""
        known = {**self._evicted, **self._sessions}
        found = [
            name
            for name, session in known.items()
            if name[:SESSION_ID_CHARS] == session_id and tenant in {None, session.actor.tenant}
        ]
        for name in found:
            self._end(name)
        return bool(found)

    @staticmethod
    def make_id(secret: str) -> str:
        """Return the id of a session: the beginning of the hash of its cookie."""
        return _hash_secret(secret)[:SESSION_ID_CHARS]

    def _find_in_memory(self, secret_hash: str) -> SignInSession | None:
        return self._sessions.get(secret_hash) or self._evicted.get(secret_hash)

    def _adopt_signed(self, secret_hash: str, secret: str) -> SignInSession | None:
        """Adopt a signed session that another process opened, or that was evicted here."""
        payload = (
            None
            if self._key is None or secret_hash in self._ended
            else _read_cookie(secret, self._key)
        )
        if payload is None:
            return None
        actor = payload.actor
        ends = [self._ended_up_to.get((each, actor.name), 0) for each in (None, actor.tenant)]
        if payload.until <= max(*ends, self._clock()):
            return None
        session = SignInSession(actor=payload.actor, expires_at=payload.until, is_signed=True)
        self._store(secret_hash, session)
        return session

    def _store(self, secret_hash: str, session: SignInSession) -> None:
        # Evict the oldest session of the actor with the most: an actor that opens many cannot
        # sign others out. A signed session is adopted again when its cookie comes back; one
        # that is only in memory has to end.
        while len(self._sessions) >= SESSIONS_MAX:
            evicted = _list_sessions_of_busiest_actor(self._sessions)[0]
            if self._sessions[evicted].is_signed:
                self._evicted[evicted] = self._sessions.pop(evicted)
            else:
                self._end(evicted)
        self._sessions[secret_hash] = session

    def _end(self, secret_hash: str) -> None:
        session = self._find_in_memory(secret_hash)
        if session is None:
            return
        for known in (self._sessions, self._evicted):
            known.pop(secret_hash, None)
        session.ended.set()
        if session.is_signed and session.expires_at > self._clock():
            self._remember_ended(secret_hash, session)

    def _remember_ended(self, secret_hash: str, ended: SignInSession) -> None:
        """Remember that a signed session has ended, until its cookie expires.

        If too many are remembered, those of the actor with the most are replaced by one time in
        `_ended_up_to`. Then all sessions of that actor that expire by this time are over: the
        actor may have to sign in again, and no other actor is affected.
        """
        self._ended[secret_hash] = ended
        if len(self._ended) <= ENDED_SESSIONS_MAX:
            return
        now = self._clock()
        self._ended = {n: each for n, each in self._ended.items() if each.expires_at > now}
        self._ended_up_to = {
            who: until for who, until in self._ended_up_to.items() if until > now
        }
        while len(self._ended) > ENDED_SESSIONS_MAX:
            oldest_first = _list_sessions_of_busiest_actor(self._ended)
            # Half of them at once: finding them walks all sessions, which must not happen for
            # each sign-out.
            for each in oldest_first[: len(oldest_first) // 2 + 1]:
                forgotten = self._ended.pop(each)
                who = (forgotten.actor.tenant, forgotten.actor.name)
                before = self._ended_up_to.get(who, forgotten.expires_at)
                self._ended_up_to[who] = max(before, forgotten.expires_at)


def _list_sessions_of_busiest_actor(sessions: Mapping[str, SignInSession]) -> Sequence[str]:
    """Return the sessions of the actor with the most sessions, oldest first."""
    ((most, _),) = Counter(each.actor for each in sessions.values()).most_common(1)
    return [name for name, each in sessions.items() if each.actor == most]


def derive_key(token: str) -> bytes:
    """Derive the session key of a server that has this single token."""
    return hmac.digest(token.encode(errors="surrogateescape"), _KEY_LABEL, sha256)


def _sign(text: str, key: bytes) -> str:
    signature = hmac.digest(key, text.encode(errors="surrogateescape"), sha256)
    return f"{text}.{_encode_base64(signature)}"


def _read_cookie(secret: str, key: bytes) -> _CookieContent | None:
    """Return the content of a cookie that was signed with `key`; None for any other."""
    if len(secret) > SECRET_MAX_CHARS:
        return None
    text = secret.partition(".")[0]
    # Compare the whole cookie as text. Decoded bytes would not do: several base64 texts decode
    # to the same bytes, so one signature would allow several cookies, with different hashes,
    # and a sign-out would end only one of them. The content is parsed only after this check.
    shown, right = (s.encode(errors="surrogateescape") for s in (secret, _sign(text, key)))
    if not hmac.compare_digest(shown, right):
        return None
    try:
        return msgspec.json.decode(urlsafe_b64decode(text + "=="), type=_CookieContent)
    except ValueError:  # signed by another version, with an actor that this one cannot read
        return None


def _encode_base64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _hash_secret(secret: str) -> str:
    return sha256(secret.encode(errors="surrogateescape")).hexdigest()
