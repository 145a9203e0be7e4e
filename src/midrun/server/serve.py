"""Binding: the app on a socket, with uvicorn; on loopback unless `host` is given."""

import ipaddress
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Collection
from pathlib import Path
from types import FrameType
from typing import Final

import anyio
import uvicorn
from msgspec import Struct

from midrun.errors import Misconfigured
from midrun.runs.midrun import Midrun
from midrun.server.app import App, app
from midrun.server.auth import Auth, token_for, token_in
from midrun.server.connections import Connections, Listener, patient
from midrun.server.limits import Limits

PORT: Final = 8700
BACKLOG: Final = 2048
GRACE_S: Final = 5
"""How long requests under way are waited for when the server is told to stop."""

DRAIN_S: Final = 5.0
"""How long a server beyond loopback goes on answering after SIGTERM, with `/readyz` at 503."""

DRAIN_LOOK_S: Final = 0.1
"""How often the drain looks whether a second signal ends it, as uvicorn's own loop does."""

PROXIES_BELIEVED: Final = "127.0.0.1,::1"
"""Where no proxy is declared. Uvicorn would ask the variable FORWARDED_ALLOW_IPS."""

FORMER_TOKEN: Final = Path(".midrun", "token")
"""Where earlier versions kept the token: in the folder in which tools work."""

_LOG: Final = logging.getLogger("midrun.server")


class Network(Struct, frozen=True, kw_only=True):
    """How a server meets the network.

    `tls_cert` and `tls_key` are PEM files; with them it speaks https. Behind a proxy,
    `forwarded_allow_ips` are the addresses, separated by commas, of proxies whose
    `X-Forwarded-*` headers are believed (those of loopback unless it is given), and `root_path`
    is the prefix that the proxy cuts off.

    On SIGTERM the server goes on answering for `drain_s` seconds, with `/readyz` at 503, so
    that a load balancer can leave it first: 5 seconds beyond loopback, none on it. A second
    signal, or Ctrl-C, ends that at once.
    """

    tls_cert: Path | None = None
    tls_key: Path | None = None
    forwarded_allow_ips: str | None = None
    root_path: str = ""
    drain_s: float | None = None

    def check(self) -> None:
        """Refuse settings that cannot hold, before a socket is opened.

        Raises:
            Misconfigured: a certificate that does not load, or a prefix that no path has.
        """
        check_tls(self.tls_cert, self.tls_key)
        root = self.root_path
        if root and (not root.startswith("/") or root.endswith("/") or not root.isascii()):
            raise Misconfigured("root_path", f"must be like /midrun, got {root!r}")


_PLAIN: Final = Network()


async def serve(  # noqa: PLR0913 - all of them are settings of the command
    mid: Midrun,
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    folder: Path | None = None,
    token: str | None = None,
    auth: Auth | None = None,
    allow_hosts: Collection[str] = (),
    allow_origins: Collection[str] = (),
    public_url: str | None = None,
    network: Network = _PLAIN,
    limits: Limits | None = None,
    session_key: bytes | None = None,
    unsigned_checkpoints: bool = False,
    say: Callable[[str], None] = print,
) -> None:
    """Serve the runs of `mid` until the process is told to stop.

    `say` is given the address. Without `token` and `auth` a token is made once and kept in
    `folder`, by default in the user's state folder, and the address is a link that signs one
    browser in as an operator. All else is as `app` has it.

    Raises:
        Misconfigured: `host` is not loopback and nobody configured who may do what, or which
            names the server goes by; or another setting that will not do.
    """
    if not is_loopback(host):
        if token is None and auth is None:
            raise Misconfigured(f"host {host}", "others can reach it: pass token= or auth=")
        if not allow_hosts and public_url is None:
            problem = "pass allow_hosts=, the names it goes by, or public_url="
            raise Misconfigured(f"host {host}", problem)
    network.check()
    is_own_token = token is None and auth is None
    if is_own_token:
        token = token_in(folder) if folder else token_for(Path.cwd(), formerly=FORMER_TOKEN)
    made = app(
        mid,
        token=token,
        auth=auth,
        allow_hosts=allow_hosts,
        allow_origins=allow_origins,
        public_url=public_url,
        limits=limits,
        session_key=session_key,
        unsigned_checkpoints=unsigned_checkpoints,
    )
    _warn_of_plain_http(host, public_url, network)
    server = Server(made, network, drain_s=0.0 if is_loopback(host) else DRAIN_S)
    # Whoever is told where we are may tell us to stop; it must not be lost.
    with bound(host, port) as listening, server.capture_signals():
        base = public_url or _address(host, listening.getsockname()[1], network)
        # A code makes its reader an operator, and this line may go to a log. Where a token is
        # configured, those who may sign in have it.
        code = f"/#code={made.code()}" if is_own_token else ""
        say(f"{base.rstrip('/')}{network.root_path}{code}")
        await server.serve(sockets=[listening])


def _warn_of_plain_http(host: str, public_url: str | None, network: Network) -> None:
    """Log a warning where credentials would cross a network unencrypted."""
    has_tls = network.tls_cert is not None or (public_url or "").startswith("https:")
    if is_loopback(host) or has_tls or network.forwarded_allow_ips is not None:
        return
    _LOG.warning(
        "Tokens and sessions travel unencrypted: host %s is beyond loopback, without TLS. Pass "
        "tls_cert= and tls_key= (--tls-cert, --tls-key). If a proxy speaks https for this "
        "server, pass public_url= (--public-url).",
        host,
    )


def check_tls(cert: Path | None, key: Path | None) -> None:
    """Refuse a certificate that cannot be used.

    Raises:
        Misconfigured: a file is missing, or the key is not that of the certificate.
    """
    if cert is None:
        if key is not None:
            raise Misconfigured("tls_key", "needs the certificate, too: pass tls_cert=")
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except OSError as error:  # an SSLError is one
        files = f"{cert} with {key or 'the key in the same file'}"
        raise Misconfigured("tls_cert", f"cannot load {files}: {error}") from error


def _address(host: str, port: int, network: Network) -> str:
    scheme = "http" if network.tls_cert is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class Server(uvicorn.Server):
    """Uvicorn with four differences.

    It does not wait for slow headers. It bounds its connections. It drains before it stops.
    When it stops, streams end first.
    """

    def __init__(self, served: App, network: Network = _PLAIN, *, drain_s: float = 0.0) -> None:
        limits = served.limits
        self.connections = Connections(limits.connections, limits.connections_per_address)
        if network.forwarded_allow_ips is not None and not limits.connections_per_address:
            self.connections.most_per_address = self.connections.most
        proxies = network.forwarded_allow_ips
        super().__init__(
            uvicorn.Config(
                served,
                http=patient(limits.headers, self.connections),
                lifespan="on",
                ws="none",
                access_log=False,  # the journal says who asked for what
                log_config=None,
                server_header=False,
                timeout_graceful_shutdown=GRACE_S,
                root_path=network.root_path,
                forwarded_allow_ips=PROXIES_BELIEVED if proxies is None else proxies,
                ssl_certfile=network.tls_cert,
                ssl_keyfile=network.tls_key,
            )
        )
        self._served = served
        self._drain_s = drain_s if network.drain_s is None else network.drain_s
        self._is_hurried = False
        served.will_be_closed()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; a second signal, or Ctrl-C, does not wait for the drain."""
        self._is_hurried = self.should_exit or sig == signal.SIGINT
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; a `Listener` counts for this server from now on."""
        for sock in sockets or ():
            if isinstance(sock, Listener):
                sock.connections = self.connections
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, stop listening, end the streams, wait for the rest.

        While it drains the socket stays open and everything is answered, but `/readyz` says
        503: a load balancer learns it from there, and sends nothing more. Uvicorn would close
        the socket at once, and wait for streams until its own patience is over.
        """
        self._served.drain()
        until = anyio.current_time() + self._drain_s
        # A signal handler cannot wake the loop by an event; so it is polled, as uvicorn does.
        while not self._is_hurried and anyio.current_time() < until:  # noqa: ASYNC110 - as said
            await anyio.sleep(DRAIN_LOOK_S)
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
    listening = Listener(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
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
