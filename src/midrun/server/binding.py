"""Binding: the app on a socket, with uvicorn; loopback unless somebody says otherwise."""

import ipaddress
import socket
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

import uvicorn

from midrun.embed.midrun import Midrun
from midrun.errors import Misconfigured
from midrun.server.asgi import App, app
from midrun.server.credentials import Auth, token_in
from midrun.server.limits import Limits
from midrun.server.patience import patient

PORT: Final = 8700
BACKLOG: Final = 2048
GRACE_S: Final = 5
"""How long requests under way are waited for when the server is told to stop."""


async def serve(  # noqa: PLR0913 - all of them are settings of the command
    mid: Midrun,
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    folder: Path = Path(".midrun"),
    token: str | None = None,
    auth: Auth | None = None,
    allow_hosts: Collection[str] = (),
    allow_origins: Collection[str] = (),
    limits: Limits | None = None,
    session_key: bytes | None = None,
    unsigned_checkpoints: bool = False,
    say: Callable[[str], None] = print,
) -> None:
    """Serve the runs of `mid` until the process is told to stop.

    Without `token` and `auth`, the token is that of `folder`, and `say` is given a link that
    signs one browser in. All else is as `app` has it.

    Raises:
        Misconfigured: `host` is not loopback and nobody configured who may do what, or which
            names the server goes by; or a `session_key` that will not do.
    """
    if not is_loopback(host):
        if token is None and auth is None:
            raise Misconfigured(f"host {host}", "others can reach it: pass token= or auth=")
        if not allow_hosts:
            raise Misconfigured(f"host {host}", "pass allow_hosts=, the names it goes by")
    if token is None and auth is None:
        token = token_in(folder)
    made = app(
        mid,
        token=token,
        auth=auth,
        allow_hosts=allow_hosts,
        allow_origins=allow_origins,
        limits=limits,
        session_key=session_key,
        unsigned_checkpoints=unsigned_checkpoints,
    )
    server = Server(made)
    # Whoever is told where we are may tell us to stop; it must not be lost.
    with bound(host, port) as listening, server.capture_signals():
        if token is not None:
            name = f"[{host}]" if ":" in host else host
            say(f"http://{name}:{listening.getsockname()[1]}/#code={made.code()}")
        await server.serve(sockets=[listening])


class Server(uvicorn.Server):
    """Uvicorn, but slow headers are not waited for, and when it stops streams end first."""

    def __init__(self, served: App) -> None:
        super().__init__(
            uvicorn.Config(
                served,
                http=patient(served.limits.headers),
                lifespan="on",
                ws="none",
                access_log=False,  # the journal says who asked for what
                log_config=None,
                server_header=False,
                timeout_graceful_shutdown=GRACE_S,
            )
        )
        self._served = served
        served.will_be_closed()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, end the streams, wait for the rest.

        Uvicorn would wait for streams, too, until its patience is over.
        """
        self._served.close()
        await super().shutdown(sockets)


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 takes any that is free.

    Raises:
        Misconfigured: the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named: asyncio turns Nagle's delay off for no other, and a reply in two
    # writes would wait 40 ms for the other side's acknowledgement.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise Misconfigured(f"address {host}:{port}", str(error)) from error
    return listening


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
