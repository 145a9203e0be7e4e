"""A small OpenID Connect provider on loopback: discovery, keys, tokens and sign-in.

Its sign-in page asks nothing: it sends the browser back with a code for `claims`. The tokens
and the key set are made by joserfc, and not by the library that the server checks them with.
"""

from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from secrets import token_urlsafe
from typing import Final
from urllib.parse import parse_qsl, urlencode

import anyio
import uvicorn
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from midrun.core.ids import MICROS_PER_SECOND
from midrun.ports.environment import read_wall_clock
from midrun.server.serve import open_listener

AUDIENCE: Final = "midrun"


def hash_verifier(verifier: str) -> str:
    """Return the code challenge of a verifier, as RFC 7636 defines S256."""
    return urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=").decode()


class OidcProvider:
    """A provider whose keys can be rotated, and that can be switched off."""

    def __init__(self) -> None:
        self.issuer = ""
        self.is_down = False
        self.key_requests = 0  # of the key set
        self.claims: Mapping[str, object] = {}  # of the person at the browser
        self.nonce = ""  # instead of the right one, if set
        self._codes: dict[str, Mapping[str, str]] = {}  # code → the request that it is for
        self.keys: list[RSAKey | ECKey] = []
        self.rotate_keys(keep=0)

    def rotate_keys(self, *, keep: int = 1) -> None:
        """Sign with a new key; `keep` of the earlier ones stay in the key set."""
        number = len(self.keys)
        new: RSAKey | ECKey
        if number % 2:
            new = ECKey.generate_key("P-256", {"kid": f"key-{number}", "alg": "ES256"})
        else:
            new = RSAKey.generate_key(2048, {"kid": f"key-{number}", "alg": "RS256"})
        self.keys = [*(self.keys[-keep:] if keep else []), new]

    def make_token(self, claims: Mapping[str, object], **header: str) -> str:
        """Return a signed token with the usual claims, and those given."""
        signer = self.keys[-1]
        now = read_wall_clock() // MICROS_PER_SECOND
        usual = {"iss": self.issuer, "aud": AUDIENCE, "iat": now, "exp": now + 300}
        top = {"alg": str(signer.as_dict().get("alg")), "kid": str(signer.kid), **header}
        return jwt.encode(top, {**usual, **claims}, signer, algorithms=[top["alg"]])

    async def _show_discovery(self, _: Request) -> Response:
        if self.is_down:
            return Response(status_code=503)
        return JSONResponse(
            {
                "issuer": self.issuer,
                "jwks_uri": f"{self.issuer}/keys",
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "response_types_supported": ["code"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["RS256", "ES256"],
            }
        )

    async def _show_keys(self, _: Request) -> Response:
        self.key_requests += 1
        if self.is_down:
            return Response(status_code=503)
        return JSONResponse(KeySet(list(self.keys)).as_dict(private=False))

    async def _authorize(self, request: Request) -> Response:
        query = request.query_params
        if query["response_type"] != "code" or query["code_challenge_method"] != "S256":
            return Response(status_code=400)
        code = token_urlsafe(16)
        self._codes[code] = dict(query)
        answer = urlencode({"code": code, "state": query["state"], "iss": self.issuer})
        return RedirectResponse(f"{query['redirect_uri']}?{answer}", 302)

    async def _exchange(self, request: Request) -> Response:
        form = dict(parse_qsl((await request.body()).decode()))
        asked = self._codes.pop(form["code"], None)  # a code works once
        is_right = (
            asked is not None
            and form["grant_type"] == "authorization_code"
            and form["redirect_uri"] == asked["redirect_uri"]
            and form["client_id"] == asked["client_id"]
            and hash_verifier(form["code_verifier"]) == asked["code_challenge"]
        )
        if not is_right or asked is None:
            return JSONResponse({"error": "invalid_grant"}, 400)
        claims = {"aud": asked["client_id"], "nonce": self.nonce or asked["nonce"]}
        token = self.make_token({**claims, **self.claims})
        return JSONResponse({"access_token": "a", "token_type": "Bearer", "id_token": token})

    @asynccontextmanager
    async def serve(self) -> "AsyncIterator[OidcProvider]":
        """Serve on a free loopback port."""
        routes = [
            Route("/.well-known/openid-configuration", self._show_discovery),
            Route("/keys", self._show_keys),
            Route("/authorize", self._authorize),
            Route("/token", self._exchange, methods=["POST"]),
        ]
        config = uvicorn.Config(Starlette(routes=routes), log_config=None, lifespan="off")
        with open_listener("127.0.0.1", 0) as sock:
            self.issuer = f"http://127.0.0.1:{sock.getsockname()[1]}"
            server = uvicorn.Server(config)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(server.serve, [sock])
                try:
                    yield self
                finally:
                    server.should_exit = True
