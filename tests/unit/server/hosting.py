"""Applications of other people, each with our app at `/agents`: what their users write."""

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

WHERE = "/agents"
OWN = "/hello"
"""A route of the host's own; each says `Hello.` there."""

MARK = ("x-host", "was here")
"""What the host's middleware puts on every response, ours included."""

Host = Callable[[Midrun, App], object]


def starlette(mid: Midrun, made: App) -> Starlette:
    """Return a Starlette application, with both kinds of middleware that touch a body."""
    middleware = [Middleware(GZipMiddleware, minimum_size=1), Middleware(Marking)]
    routes = [Route(OWN, _hello), Mount(WHERE, made)]
    return Starlette(routes=routes, middleware=middleware, lifespan=_opens(mid))


def fastapi(mid: Midrun, made: App) -> FastAPI:
    """Return a FastAPI application; `@middleware("http")` is a `BaseHTTPMiddleware`."""
    host = FastAPI(lifespan=_opens(mid))
    host.add_middleware(GZipMiddleware, minimum_size=1)

    @host.middleware("http")
    async def mark(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        return _marked(await call_next(request))

    @host.get(OWN, response_class=PlainTextResponse)
    async def hello() -> str:
        return "Hello."

    host.mount(WHERE, made)
    return host


def litestar(mid: Midrun, made: App) -> Litestar:
    """Return a Litestar application that compresses everything, streams as well."""
    return Litestar(
        [_hello_there, asgi(WHERE, is_mount=True, copy_scope=True)(made)],
        lifespan=[_opens(mid)],
        middleware=[MarkingThere()],
        logging_config=None,  # it would set up the whole process
        compression_config=CompressionConfig(backend="gzip", minimum_size=1),
    )


HOSTS: dict[str, Host] = {"starlette": starlette, "fastapi": fastapi, "litestar": litestar}


@asynccontextmanager
async def hosted(host: object) -> AsyncIterator[tuple[uvicorn.Server, str]]:
    """Serve an application with uvicorn as it comes: it waits for connections for ever."""
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
    """Return an application as a server sees it; each framework has its own types for that."""
    assert callable(host)
    return host


class Marking(BaseHTTPMiddleware):
    """Starlette's own way to write middleware: the response goes through a queue."""

    async def dispatch(
        self, request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """Let the request pass, and mark what comes of it."""
        return _marked(await call_next(request))


class MarkingThere(ASGIMiddleware):
    """The same for Litestar."""

    async def handle(
        self,
        scope: LitestarScope,
        receive: LitestarReceive,
        send: LitestarSend,
        next_app: LitestarApp,
    ) -> None:
        """Let the request pass, and mark what comes of it."""

        async def marked(message: LitestarMessage) -> None:
            if message["type"] == "http.response.start":
                name, value = (part.encode() for part in MARK)
                message["headers"] = [*message["headers"], (name, value)]
            await send(message)

        await next_app(scope, receive, marked)


def _opens(mid: Midrun) -> Callable[[object], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        async with mid:
            yield

    return lifespan


def _marked(response: Response) -> Response:
    name, value = MARK
    response.headers[name] = value
    return response


async def _hello(_: Request) -> Response:
    return PlainTextResponse("Hello.")


@litestar_get(OWN)
async def _hello_there() -> str:
    return "Hello."
