"""A small OpenID Connect provider on loopback: discovery, keys and signed tokens.

The tokens and the key set are made by joserfc, which Authlib is built on, and not by the
library that the server checks them with.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import anyio
import uvicorn
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from midrun.core.ids import MICROS_PER_SECOND
from midrun.ports.environment import read_wall_clock
from midrun.server.serve import open_listener

AUDIENCE: Final = "midrun"


class OidcProvider:
    """A provider whose keys can be rotated, and that can be switched off."""

    def __init__(self) -> None:
        self.issuer = ""
        self.is_down = False
        self.key_requests = 0  # of the key set
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

    @asynccontextmanager
    async def serve(self) -> "AsyncIterator[OidcProvider]":
        """Serve on a free loopback port."""
        routes = [
            Route("/.well-known/openid-configuration", self._show_discovery),
            Route("/keys", self._show_keys),
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
