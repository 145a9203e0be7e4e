"""OpenID Connect: accept the tokens of an identity provider as bearer tokens.

`oidc(issuer, audience=…)` is an `auth`. It reads the provider's discovery document and its
signing keys, checks the signature, issuer, audience and times of each token, and maps its
claims to an actor. PyJWT checks the token; only asymmetric algorithms are accepted, so the
public keys cannot be used as the secret of an HMAC.

The keys are cached. A token with an unknown key id makes the server fetch them again, at most
once in `KEYS_RETRY_S`: providers rotate their keys, and a client must not be able to make the
server send a request for each invented key id. If the provider does not answer, known keys stay
in use.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

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


class _Discovery(msgspec.Struct):
    issuer: str
    jwks_uri: str


def oidc(
    issuer: str,
    *,
    audience: str,
    role_claim: str = "role",
    name_claim: str = "sub",
    roles: Mapping[str, Role] | None = None,
) -> "OidcAuth":
    """Return an `auth` that accepts the tokens of one provider.

    `role_claim` names the claim with a role or a list of roles; a dot leads into an object
    (`realm_access.roles`). `roles` maps its values to roles, by default each to the role of its
    own name. If several match, the highest counts. A token without a matching value is
    rejected. `name_claim` names the claim that becomes the actor's name. Choose one that users
    cannot change.

    Raises:
        Misconfigured: a setting is unusable.
    """
    return OidcAuth(
        issuer, audience=audience, role_claim=role_claim, name_claim=name_claim, roles=roles
    )


class OidcAuth:
    """Maps a token of an OpenID Connect provider to its actor; see `oidc`."""

    def __init__(
        self,
        issuer: str,
        *,
        audience: str,
        role_claim: str = "role",
        name_claim: str = "sub",
        roles: Mapping[str, Role] | None = None,
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
        self._now = now
        self._keys: dict[str, jwt.PyJWK] = {}
        self._keys_until = self._retry_at = float("-inf")
        self._lock = anyio.Lock()

    async def __call__(self, token: str) -> Actor | None:
        """Return the actor of `token`, or None.

        Raises:
            HttpProblem: 503, the provider's keys are not known yet and cannot be fetched.
        """
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            return None  # not a JWT: perhaps a token of another kind
        key = await self._find_key(str(header.get("kid", "")))
        if key is None:
            return None
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=ALGORITHMS,
                audience=self._audience,
                issuer=self._issuer,
                leeway=CLOCK_LEEWAY_S,
                options={"require": ["exp", "iss", "aud", self._name_claim]},
            )
        except jwt.PyJWTError as error:
            _LOG.info("Rejected a token of %s: %s", self._issuer, error)
            return None
        return self._to_actor(claims)

    def _to_actor(self, claims: Mapping[str, object]) -> Actor | None:
        role, name = self._find_role(claims), claims.get(self._name_claim)
        if role is None or not isinstance(name, str) or not name:
            _LOG.info("Rejected a token of %s: no role or no name in it", self._issuer)
            return None
        return Actor(name=name, role=role)

    def _find_role(self, claims: Mapping[str, object]) -> Role | None:
        value: object = claims
        for part in self._role_claim.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        values = value if isinstance(value, list) else [value]
        names = [each for each in values if isinstance(each, str)]
        found = [self._roles[name] for name in names if name in self._roles]
        return max(found, key=ROLE_RANKS.__getitem__, default=None)

    # ── keys ──────────────────────────────────────────────────────────────────────────────

    async def _find_key(self, key_id: str) -> "jwt.PyJWK | None":
        """Return the key with this id; fetch the keys if it is unknown or they are old."""
        if key_id not in self._keys or self._now() >= self._keys_until:
            async with self._lock:  # one fetch for all requests that wait
                if key_id not in self._keys or self._now() >= self._keys_until:
                    await self._refresh_keys()
        return self._keys.get(key_id)

    async def _refresh_keys(self) -> None:
        if self._now() < self._retry_at:
            return
        self._retry_at = self._now() + KEYS_RETRY_S
        try:
            self._keys = await self._fetch_keys()
        except (httpx2.HTTPError, msgspec.MsgspecError, jwt.PyJWTError, Misconfigured) as error:
            _LOG.warning("Cannot fetch the keys of %s: %s", self._issuer, error)
            if not self._keys:
                self._retry_at = float("-inf")  # without a key every request has to try
                problem = (
                    "Cannot check the token: the identity provider does not answer. Try again."
                )
                header = {"Retry-After": "5"}
                raise HttpProblem("auth_unavailable", 503, problem, headers=header) from error
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
            keys = await client.get(discovery.jwks_uri)
            found_keys = jwt.PyJWKSet.from_json(keys.raise_for_status().text).keys
        return {key.key_id or "": key for key in found_keys}


def _check_url(setting: str, url: str) -> None:
    """Refuse a URL over which keys could be replaced on their way."""
    parts = urlsplit(url)
    is_safe = parts.scheme == "https" or parts.hostname in LOOPBACK_NAMES
    if not parts.hostname or parts.scheme not in {"http", "https"} or not is_safe:
        raise Misconfigured(setting, f"must be an https URL, got {url!r}")
