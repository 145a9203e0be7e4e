"""A small reverse proxy: it strips a prefix, adds `X-Forwarded-*`, and streams replies."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio
import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from midrun.server.serve import open_listener

HOP_BY_HOP: Final = frozenset({b"connection", b"content-length", b"transfer-encoding"})
METHODS: Final = ["GET", "HEAD", "POST", "PATCH", "DELETE", "OPTIONS"]


class ReverseProxy:
    """Forwards `<prefix>/…` to a server; `/` is a page of its own, for the same origin."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.upstream = ""  # the URL of the server, once it is known
        self.page = ""  # the HTML of `/`
        self._client = httpx2.AsyncClient(timeout=None)

    async def home(self, _: Request) -> Response:
        """Return the page of the proxy's own origin."""
        return HTMLResponse(self.page)

    async def redirect(self, _: Request) -> Response:
        """Redirect the bare prefix to the prefix with a slash, as nginx does."""
        return RedirectResponse(f"{self.prefix}/")

    async def forward(self, request: Request) -> Response:
        """Send the request to the server, and stream the reply."""
        path = request.url.path.removeprefix(self.prefix)
        client = request.client
        headers = [
            (name, value) for name, value in request.headers.raw if name != b"connection"
        ]
        headers += [
            (b"x-forwarded-for", (client.host if client else "").encode()),
            (b"x-forwarded-proto", request.url.scheme.encode()),
        ]
        sent = self._client.build_request(
            request.method,
            f"{self.upstream}{path}?{request.url.query}",
            headers=headers,
            content=await request.body(),
        )
        reply = await self._client.send(sent, stream=True)

        async def stream() -> AsyncIterator[bytes]:
            try:
                async for part in reply.aiter_raw():
                    yield part
            except httpx2.HTTPError:  # the server has closed the stream
                return
            finally:
                with anyio.CancelScope(shield=True):
                    await reply.aclose()

        answer = StreamingResponse(stream(), reply.status_code)
        kept = [(n.lower(), v) for n, v in reply.headers.raw if n.lower() not in HOP_BY_HOP]
        answer.raw_headers = kept
        return answer

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Serve on a free loopback port, and yield the origin."""
        routes = [
            Route("/", self.home),
            Route(self.prefix, self.redirect),
            Route(f"{self.prefix}/{{rest:path}}", self.forward, methods=METHODS),
        ]
        config = uvicorn.Config(
            Starlette(routes=routes), log_config=None, timeout_graceful_shutdown=1
        )
        with open_listener("127.0.0.1", 0) as sock:
            server = uvicorn.Server(config)
            async with self._client, anyio.create_task_group() as tasks:
                tasks.start_soon(server.serve, [sock])
                try:
                    yield f"http://127.0.0.1:{sock.getsockname()[1]}"
                finally:
                    server.should_exit = True
