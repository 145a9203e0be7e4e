"""A far end for webhooks: a real server that keeps what it was sent, and answers as told."""

import base64
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from midrun.server.serve import open_listener

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()


class Got(msgspec.Struct, frozen=True):
    """One request."""

    headers: dict[str, str]
    body: bytes

    @property
    def told(self) -> dict[str, object]:
        """What it says."""
        return msgspec.json.decode(self.body, type=dict[str, object])

    @property
    def data(self) -> dict[str, object]:
        """What it says of the run."""
        data = self.told["data"]
        assert isinstance(data, dict)
        return data

    @property
    def kind(self) -> str:
        """The one word of its type."""
        return str(self.told["type"]).split(".")[3]

    def is_signed(self, secret: str = SECRET) -> bool:
        """Tell whether it is signed with the secret, as a receiver would."""
        key = base64.b64decode(secret.removeprefix("whsec_"))
        content = b".".join(
            [
                self.headers["webhook-id"].encode(),
                self.headers["webhook-timestamp"].encode(),
                self.body,
            ]
        )
        mac = base64.b64encode(hmac.digest(key, content, "sha256")).decode()
        return self.headers["webhook-signature"] == f"v1,{mac}"


class FarEnd:
    """What it got, and how it answers: with `answer(n)` for the n-th request, from 1."""

    def __init__(self) -> None:
        self.got: list[Got] = []
        self.answer: Callable[[int], Response] = lambda _: Response(status_code=204)
        self.taking: Callable[[Request], Awaitable[Response]] = self.take
        self.url = ""
        self._more = anyio.Event()

    async def hears(self, number: int) -> list[Got]:
        """Wait until there were so many requests."""
        while len(self.got) < number:
            self._more = anyio.Event()
            await self._more.wait()
        return self.got

    async def take(self, request: Request) -> Response:
        """Take one request."""
        self.got.append(Got(dict(request.headers), await request.body()))
        self._more.set()
        return self.answer(len(self.got))

    async def serve(self, request: Request) -> Response:
        """Take one request as the test wants it taken."""
        return await self.taking(request)


@asynccontextmanager
async def far_end() -> AsyncIterator[FarEnd]:
    """Give a far end that listens on loopback."""
    made = FarEnd()
    site = Starlette(routes=[Route("/{rest:path}", made.serve, methods=["POST", "GET"])])
    config = uvicorn.Config(site, log_config=None, access_log=False, lifespan="off")
    server = uvicorn.Server(config)
    with open_listener("127.0.0.1", 0) as sock:
        made.url = f"http://127.0.0.1:{sock.getsockname()[1]}/hook"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [sock])
            try:
                yield made
            finally:
                server.should_exit = True
