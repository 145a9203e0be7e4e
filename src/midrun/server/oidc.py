"""OpenID Connect: accept the tokens of an identity provider as bearer tokens.

`oidc(issuer, audience=…)` is an `auth`. It reads the provider's discovery document and its
signing keys, checks the signature, issuer, audience and times of each token, and maps its
claims to an actor. PyJWT checks the token; only asymmetric algorithms are accepted, so the
public keys cannot be used as the secret of an HMAC.

The keys are cached. A token with an unknown key id makes the server fetch them again, at most
once in `KEYS_RETRY_S`: providers rotate their keys, and a client must not be able to make the
server send a request for each invented key id. If the provider does not answer, known keys stay
in use.

With a `client_id`, browsers sign in on the provider's own page: the authorization code flow
with PKCE. `state`, `nonce` and the verifier are in a cookie of the browser, so any server
process can finish a sign-in that another began.
"""

import logging
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from hashlib import sha256
from hmac import compare_digest
from secrets import token_urlsafe
from typing import Final
from urllib.parse import urlencode, urlsplit

import anyio
import httpx2
import jwt
import msgspec

from midrun.core.values import Actor, Role
from midrun.errors import Misconfigured
from midrun.server.problem_details import HttpProblem
from midrun.server.routes import ROLE_RANKS

_LOG: Final = logging.getLogger("midrun.server")

ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
)
DISCOVERY_PATH: Final = "/.well-known/openid-configuration"
KEYS_LIFETIME_S: Final = 600.0
KEYS_RETRY_S: Final = 10.0
FETCH_TIMEOUT_S: Final = 10.0
CLOCK_LEEWAY_S: Final = 30
"""Seconds by which the clocks of the provider and of this server may differ."""

LOOPBACK_NAMES: Final = frozenset({"127.0.0.1", "::1", "localhost"})


SIGN_IN_SCOPE: Final = "openid profile email"


class _Discovery(msgspec.Struct):
    issuer: str
    jwks_uri: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""


class _TokenReply(msgspec.Struct):
    id_token: str


def oidc(  # noqa: PLR0913 - one keyword per setting
    issuer: str,
    *,
    audience: str,
    role_claim: str = "role",
    name_claim: str = "sub",
    roles: Mapping[str, Role] | None = None,
    tenant_claim: str = "",
    team_claim: str = "",
    client_id: str = "",
    client_secret: str = "",
) -> "OidcAuth":
    """Return an `auth` that accepts the tokens of one provider.

    `role_claim` names the claim with a role or a list of roles; a dot leads into an object
    (`realm_access.roles`). `roles` maps its values to roles, by default each to the role of its
    own name. If several match, the highest counts. A token without a matching value is
    rejected. `name_claim` names the claim that becomes the actor's name. Choose one that users
    cannot change.

    `tenant_claim` names the claim with the tenant; with it, a token without a tenant is
    rejected. `team_claim` names the claim with a team or a list of teams, such as `groups`.

    With a `client_id`, browsers sign in on the provider's page. Register the address of the
    server followed by `/sign-in/callback` there. A client without a secret is protected by
    PKCE alone.

    Raises:
        Misconfigured: a setting is unusable.
    """
    return OidcAuth(
        issuer,
        audience=audience,
        role_claim=role_claim,
        name_claim=name_claim,
        roles=roles,
        tenant_claim=tenant_claim,
        team_claim=team_claim,
        client_id=client_id,
        client_secret=client_secret,
    )


class OidcAuth:
    """Maps a token of an OpenID Connect provider to its actor; see `oidc`."""

    def __init__(  # noqa: PLR0913 - one keyword per setting
        self,
        issuer: str,
        *,
        audience: str,
        role_claim: str = "role",
        name_claim: str = "sub",
        roles: Mapping[str, Role] | None = None,
        tenant_claim: str = "",
        team_claim: str = "",
        client_id: str = "",
        client_secret: str = "",
        now: Callable[[], float] = anyio.current_time,
    ) -> None:
        _check_url("issuer", issuer)
        if not audience:
            raise Misconfigured("audience", "must not be empty: tokens for others would count")
        by_name: dict[str, Role] = {role: role for role in ROLE_RANKS}
        self._roles = by_name if roles is None else dict(roles)
        for group, role in self._roles.items():
            if role not in ROLE_RANKS:
                names = ", ".join(ROLE_RANKS)
                raise Misconfigured(f"role of {group}", f"must be one of {names}, got {role!r}")
        self._issuer = issuer
        self._audience = audience
        self._role_claim = role_claim
        self._name_claim = name_claim
        self._tenant_claim = tenant_claim
        self._team_claim = team_claim
        self._client_id = client_id
        self._client_secret = client_secret
        self._now = now
        self._discovery: _Discovery | None = None
        self._keys: dict[str, jwt.PyJWK] = {}
        self._keys_until = self._retry_at = float("-inf")
        self._lock = anyio.Lock()

    async def __call__(self, token: str) -> Actor | None:
        """Return the actor of `token`, or None.

        Raises:
            HttpProblem: 503, the provider's keys are not known yet and cannot be fetched.
        """
        claims = await self._read_claims(token, self._audience)
        return None if claims is None else self._to_actor(claims)

    async def _read_claims(self, token: str, audience: str) -> Mapping[str, object] | None:
        """Return the claims of a token that is valid for `audience`, or None."""
        try:
            # Only the key id is taken from the header before the signature is checked. The
            # algorithm comes from our list: a token must not choose how it is verified.
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            return None  # not a JWT: perhaps a token of another kind
        key = await self._find_key(str(header.get("kid", "")))
        if key is None:
            return None
        try:
            claims: Mapping[str, object] = jwt.decode(
                token,
                key,
                algorithms=ALGORITHMS,
                audience=audience,
                issuer=self._issuer,
                leeway=CLOCK_LEEWAY_S,
                options={"require": ["exp", "iss", "aud", self._name_claim]},
            )
        except jwt.PyJWTError as error:
            _LOG.info("Rejected a token of %s: %s", self._issuer, error)
            return None
        return claims

    def _to_actor(self, claims: Mapping[str, object]) -> Actor | None:
        role, name = self._find_role(claims), claims.get(self._name_claim)
        if role is None or not isinstance(name, str) or not name:
            _LOG.info("Rejected a token of %s: no role or no name in it", self._issuer)
            return None
        tenants = _list_values(claims, self._tenant_claim) if self._tenant_claim else [""]
        if len(tenants) != 1 or (self._tenant_claim and not tenants[0]):
            _LOG.info("Rejected a token of %s: not one tenant in it", self._issuer)
            return None
        teams = _list_values(claims, self._team_claim) if self._team_claim else []
        named = tuple(dict.fromkeys(team for team in teams if team))
        return Actor(name=name, role=role, tenant=tenants[0], teams=named)

    def _find_role(self, claims: Mapping[str, object]) -> Role | None:
        names = _list_values(claims, self._role_claim)
        found = [self._roles[name] for name in names if name in self._roles]
        return max(found, key=ROLE_RANKS.__getitem__, default=None)

    # ── browsers ──────────────────────────────────────────────────────────────────────────

    @property
    def signs_browsers_in(self) -> bool:
        """Whether there is a client id, with which browsers can sign in."""
        return bool(self._client_id)

    async def begin(self, callback_url: str) -> tuple[str, str]:
        """Return the address of the provider's sign-in page, and the secret for a cookie.

        Raises:
            HttpProblem: 503, the provider does not answer.
        """
        discovery = await self._find_discovery()
        # All three go into a cookie of this browser, so no state is kept on the server, and any
        # process can finish the sign-in.
        state, nonce, verifier = (token_urlsafe(32) for _ in range(3))
        digest = sha256(verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": callback_url,
            "scope": SIGN_IN_SCOPE,
            "state": state,
            "nonce": nonce,
            "code_challenge": urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        address = discovery.authorization_endpoint
        joint = "&" if "?" in address else "?"
        return f"{address}{joint}{urlencode(query)}", f"{state}.{nonce}.{verifier}"

    async def _find_discovery(self) -> _Discovery:
        async with self._lock:
            if self._discovery is None:
                await self._refresh_keys()
        if self._discovery is None:  # a fetch has failed a moment ago
            raise _make_unavailable()
        return self._discovery

    async def finish(
        self, secret: str, query: Mapping[str, str], callback_url: str
    ) -> Actor | None:
        """Exchange the provider's code for an id token, and return its actor, or None.

        Raises:
            HttpProblem: 503, the provider does not answer.
        """
        state, nonce, verifier = [*secret.split("."), "", ""][:3]
        code, shown = query.get("code", ""), query.get("state", "")
        # The state ties the reply to this browser, the issuer (if named) to this provider.
        if not state or not code or not compare_digest(state.encode(), shown.encode()):
            return None
        if query.get("iss", self._issuer) != self._issuer:
            return None
        discovery = await self._find_discovery()
        body = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": callback_url,
            "client_id": self._client_id,
            "code_verifier": verifier,
        }
        login = (
            httpx2.BasicAuth(self._client_id, self._client_secret)
            if self._client_secret
            else None
        )
        try:
            async with httpx2.AsyncClient(timeout=FETCH_TIMEOUT_S, auth=login) as client:
                reply = await client.post(discovery.token_endpoint, data=body)
        except httpx2.HTTPError as error:
            raise _make_unavailable() from error
        try:
            token = msgspec.json.decode(reply.content, type=_TokenReply).id_token
        except msgspec.MsgspecError:
            _LOG.warning("%s refused a code: status %d", self._issuer, reply.status_code)
            return None
        claims = await self._read_claims(token, self._client_id)
        # The nonce ties the token to this attempt: a token of another one cannot be replayed.
        if claims is None or claims.get("nonce") != nonce:
            return None
        return self._to_actor(claims)

    # ── keys ──────────────────────────────────────────────────────────────────────────────

    async def _find_key(self, key_id: str) -> "jwt.PyJWK | None":
        """Return the key with this id; fetch the keys if it is unknown or they are old."""
        if self._get_key(key_id) is None or self._now() >= self._keys_until:
            async with self._lock:  # one fetch for all requests that wait
                if self._get_key(key_id) is None or self._now() >= self._keys_until:
                    await self._refresh_keys()
        return self._get_key(key_id)

    def _get_key(self, key_id: str) -> "jwt.PyJWK | None":
        # A token need not name its key if the provider has only one (OpenID Connect Core,
        # section 10.1).
        if not key_id and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id)

    async def _refresh_keys(self) -> None:
        # Tokens with made-up key ids must not make this server call the provider with each
        # request.
        if self._now() < self._retry_at:
            return
        self._retry_at = self._now() + KEYS_RETRY_S
        try:
            self._keys = await self._fetch_keys()
        except (httpx2.HTTPError, msgspec.MsgspecError, jwt.PyJWTError, Misconfigured) as error:
            _LOG.warning("Cannot fetch the keys of %s: %s", self._issuer, error)
            if not self._keys:
                self._retry_at = float("-inf")  # without a key every request has to try
                raise _make_unavailable() from error
            return
        self._keys_until = self._now() + KEYS_LIFETIME_S

    async def _fetch_keys(self) -> "dict[str, jwt.PyJWK]":
        async with httpx2.AsyncClient(timeout=FETCH_TIMEOUT_S) as client:
            found = await client.get(f"{self._issuer.rstrip('/')}{DISCOVERY_PATH}")
            discovery = msgspec.json.decode(found.raise_for_status().content, type=_Discovery)
            # The specification requires it: else another issuer could answer for this one.
            if discovery.issuer != self._issuer:
                problem = f"the discovery document is of {discovery.issuer}"
                raise Misconfigured("issuer", problem)
            _check_url("jwks_uri", discovery.jwks_uri)
            if self._client_id:
                _check_url("authorization_endpoint", discovery.authorization_endpoint)
                _check_url("token_endpoint", discovery.token_endpoint)
            keys = await client.get(discovery.jwks_uri)
            found_keys = jwt.PyJWKSet.from_json(keys.raise_for_status().text).keys
        self._discovery = discovery
        return {key.key_id or "": key for key in found_keys}


def _make_unavailable() -> HttpProblem:
    problem = "Cannot check the sign-in: the identity provider does not answer. Try again."
    return HttpProblem("auth_unavailable", 503, problem, headers={"Retry-After": "5"})


def _check_url(setting: str, url: str) -> None:
    """Refuse a URL over which keys could be replaced on their way."""
    parts = urlsplit(url)
    is_safe = parts.scheme == "https" or parts.hostname in LOOPBACK_NAMES
    if not parts.hostname or parts.scheme not in {"http", "https"} or not is_safe:
        raise Misconfigured(setting, f"must be an https URL, got {url!r}")


def _list_values(claims: Mapping[str, object], path: str) -> list[str]:
    """Return the text of a claim, or its list of texts; a dot leads into an object."""
    value: object = claims
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    values = value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, str)]
