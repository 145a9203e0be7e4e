"""A receiver of webhooks: a real server that records requests and answers as configured."""

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


class Delivery(msgspec.Struct, frozen=True):
    """One request."""

    headers: dict[str, str]
    body: bytes

    @property
    def event(self) -> dict[str, object]:
        """The decoded CloudEvent."""
        return msgspec.json.decode(self.body, type=dict[str, object])

    @property
    def data(self) -> dict[str, object]:
        """The data of the CloudEvent, which describes the run."""
        data = self.event["data"]
        assert isinstance(data, dict)
        return data

    @property
    def kind(self) -> str:
        """The word of the event type that names the phase."""
        return str(self.event["type"]).split(".")[3]

    def is_signed(self, secret: str = SECRET) -> bool:
        """Return whether the signature is valid, as a receiver checks it."""
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


class Receiver:
    """Records deliveries and answers the n-th request, from 1, with `answer(n)`."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.answer: Callable[[int], Response] = lambda _: Response(status_code=204)
        self.handler: Callable[[Request], Awaitable[Response]] = self.receive
        self.url = ""
        self._more = anyio.Event()

    async def wait_for(self, number: int) -> list[Delivery]:
        """Wait until `number` requests have arrived; return all so far."""
        while len(self.deliveries) < number:
            self._more = anyio.Event()
            await self._more.wait()
        return self.deliveries

    async def receive(self, request: Request) -> Response:
        """Record one request and answer it."""
        self.deliveries.append(Delivery(dict(request.headers), await request.body()))
        self._more.set()
        return self.answer(len(self.deliveries))

    async def serve(self, request: Request) -> Response:
        """Pass one request to the handler of the test."""
        return await self.handler(request)


@asynccontextmanager
async def run_receiver() -> AsyncIterator[Receiver]:
    """Run a receiver on loopback."""
    receiver = Receiver()
    app = Starlette(routes=[Route("/{rest:path}", receiver.serve, methods=["POST", "GET"])])
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
    server = uvicorn.Server(config)
    with open_listener("127.0.0.1", 0) as sock:
        receiver.url = f"http://127.0.0.1:{sock.getsockname()[1]}/hook"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [sock])
            try:
                yield receiver
            finally:
                server.should_exit = True
