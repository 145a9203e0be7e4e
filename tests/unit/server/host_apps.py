"""Host applications in three frameworks, each with the app mounted at `/agents`."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
import uvicorn
from fastapi import FastAPI
from litestar import Litestar, asgi
from litestar import get as litestar_get
from litestar.config.compression import CompressionConfig
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp as LitestarApp
from litestar.types import Message as LitestarMessage
from litestar.types import Receive as LitestarReceive
from litestar.types import Scope as LitestarScope
from litestar.types import Send as LitestarSend
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from midrun import Midrun
from midrun.server import App
from midrun.server.serve import open_listener

MOUNT_PATH = "/agents"
HOST_ROUTE = "/hello"
"""A route of the host itself; it answers `Hello.`."""

HOST_HEADER = ("x-host", "was here")
"""The header that the middleware of the host adds to every response, ours included."""

HostFactory = Callable[[Midrun, App], object]


def make_starlette_host(mid: Midrun, asgi_app: App) -> Starlette:
    """Return a Starlette application, with both kinds of middleware that touch a body."""
    middleware = [Middleware(GZipMiddleware, minimum_size=1), Middleware(HeaderMiddleware)]
    routes = [Route(HOST_ROUTE, _hello), Mount(MOUNT_PATH, asgi_app)]
    return Starlette(routes=routes, middleware=middleware, lifespan=_make_lifespan(mid))


def make_fastapi_host(mid: Midrun, asgi_app: App) -> FastAPI:
    """Return a FastAPI application; `@middleware("http")` is a `BaseHTTPMiddleware`."""
    host = FastAPI(lifespan=_make_lifespan(mid))
    host.add_middleware(GZipMiddleware, minimum_size=1)

    @host.middleware("http")
    async def add_header(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        return _add_header(await call_next(request))

    @host.get(HOST_ROUTE, response_class=PlainTextResponse)
    async def hello() -> str:
        return "Hello."

    host.mount(MOUNT_PATH, asgi_app)
    return host


def make_litestar_host(mid: Midrun, asgi_app: App) -> Litestar:
    """Return a Litestar application that compresses everything, streams included."""
    return Litestar(
        [_hello_litestar, asgi(MOUNT_PATH, is_mount=True, copy_scope=True)(asgi_app)],
        lifespan=[_make_lifespan(mid)],
        middleware=[LitestarHeaderMiddleware()],
        logging_config=None,  # it would configure the logging of the process
        compression_config=CompressionConfig(backend="gzip", minimum_size=1),
    )


HOST_APPS: dict[str, HostFactory] = {
    "starlette": make_starlette_host,
    "fastapi": make_fastapi_host,
    "litestar": make_litestar_host,
}


@asynccontextmanager
async def serve_host(host: object) -> AsyncIterator[tuple[uvicorn.Server, str]]:
    """Serve an application with uvicorn's default, which waits for connections forever."""
    config = uvicorn.Config(as_asgi(host), lifespan="on", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    with open_listener("127.0.0.1", 0) as sock:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [sock])
            try:
                yield server, f"http://127.0.0.1:{sock.getsockname()[1]}"
            finally:
                server.should_exit = True


def as_asgi(host: object) -> ASGIApp:
    """Return an application as the ASGI type of Starlette; each framework has its own type."""
    assert callable(host)
    return host


class HeaderMiddleware(BaseHTTPMiddleware):
    """Middleware in the style of Starlette: the response passes a queue."""

    async def dispatch(
        self, request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """Pass the request on, and mark the response."""
        return _add_header(await call_next(request))


class LitestarHeaderMiddleware(ASGIMiddleware):
    """The same middleware for Litestar."""

    async def handle(
        self,
        scope: LitestarScope,
        receive: LitestarReceive,
        send: LitestarSend,
        next_app: LitestarApp,
    ) -> None:
        """Pass the request on, and mark the response."""

        async def send_with_header(message: LitestarMessage) -> None:
            if message["type"] == "http.response.start":
                name, value = (part.encode() for part in HOST_HEADER)
                message["headers"] = [*message["headers"], (name, value)]
            await send(message)

        await next_app(scope, receive, send_with_header)


def _make_lifespan(mid: Midrun) -> Callable[[object], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        async with mid:
            yield

    return lifespan


def _add_header(response: Response) -> Response:
    name, value = HOST_HEADER
    response.headers[name] = value
    return response


async def _hello(_: Request) -> Response:
    return PlainTextResponse("Hello.")


@litestar_get(HOST_ROUTE)
async def _hello_litestar() -> str:
    return "Hello."
