"""Run the app with uvicorn on a socket, on loopback unless `host` is given.

`serve` checks the settings, makes the app and the socket, prints the address, and runs
`UvicornServer` until a signal. On SIGTERM a server beyond loopback first drains: `/readyz`
answers 503 while everything else is served, so that a load balancer stops sending requests.
Then the streams end, and uvicorn waits for the remaining requests.
"""

import ipaddress
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Collection
from ipaddress import ip_network
from math import inf
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
from midrun.server.connections import BoundedListener, Connections, make_protocol
from midrun.server.limits import Limits
from midrun.server.request_context import Bridges, MetricsSource

DEFAULT_PORT: Final = 8700
LISTEN_BACKLOG: Final = 2048
SHUTDOWN_GRACE_S: Final = 5
"""Seconds that uvicorn waits for open requests when the server stops."""

DRAIN_S: Final = 5.0
"""Seconds that a server beyond loopback serves after SIGTERM, with `/readyz` at 503."""

DRAIN_POLL_S: Final = 0.1
"""Seconds between two checks for a second signal during the drain, as in uvicorn's loop."""

DEFAULT_TRUSTED_PROXIES: Final = "127.0.0.1,::1"
"""The trusted proxies if none is declared. Given None, uvicorn would take them from the
environment variable FORWARDED_ALLOW_IPS."""

FORMER_TOKEN_PATH: Final = Path(".midrun", "token")
"""The token file of earlier versions: in the folder in which tools work."""

_LOG: Final = logging.getLogger("midrun.server")


class Network(Struct, frozen=True, kw_only=True):
    """TLS, proxy and shutdown settings of a server.

    `tls_cert` and `tls_key` are PEM files; with them the server speaks https. Behind a proxy,
    `forwarded_allow_ips` are the addresses, separated by commas, of the proxies whose
    `X-Forwarded-*` headers are trusted (by default those of loopback), and `root_path` is the
    prefix that the proxy removes.

    On SIGTERM the server keeps serving for `drain_s` seconds, with `/readyz` at 503, so that
    a load balancer can stop using it: by default 5 seconds beyond loopback, none on it. A
    second signal, or Ctrl-C, ends the drain at once.
    """

    tls_cert: Path | None = None
    tls_key: Path | None = None
    forwarded_allow_ips: str | None = None
    root_path: str = ""
    drain_s: float | None = None

    def check(self) -> None:
        """Refuse unusable settings before a socket is opened.

        Raises:
            Misconfigured: the certificate does not load or is not valid now, `root_path` is
                not a path prefix, a proxy has no address, or `drain_s` is negative.
        """
        check_tls(self.tls_cert, self.tls_key)
        _check_proxies(self.forwarded_allow_ips or "")
        if self.drain_s is not None and not 0 <= self.drain_s < inf:
            raise Misconfigured("drain_s", f"must be 0 or more seconds, got {self.drain_s:g}")
        root = self.root_path
        if root and (not root.startswith("/") or root.endswith("/") or not root.isascii()):
            raise Misconfigured("root_path", f"must be like /midrun, got {root!r}")


_DEFAULT_NETWORK: Final = Network()


async def serve(  # noqa: PLR0913 - all of them are settings of the command
    mid: Midrun,
    *,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    folder: Path | None = None,
    token: str | None = None,
    auth: Auth | None = None,
    allow_hosts: Collection[str] = (),
    allow_origins: Collection[str] = (),
    public_url: str | None = None,
    network: Network = _DEFAULT_NETWORK,
    limits: Limits | None = None,
    bridges: Bridges | None = None,
    session_key: bytes | None = None,
    unsigned_checkpoints: bool = False,
    metrics: MetricsSource | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Serve the runs of `mid` until the process receives SIGINT or SIGTERM.

    `say` is called with the address. Without `token` and `auth` a token is made once and kept
    in `folder`, by default in the user's state folder, and the address is a link that signs one
    browser in as an operator. All other settings are those of `app`.

    Raises:
        Misconfigured: `host` is not loopback, and neither `token` nor `auth` is given, or
            neither `allow_hosts` nor `public_url`; or another setting is unusable.
    """
    is_own_token = token is None and auth is None
    is_named = bool(allow_hosts) or public_url is not None
    check_exposure(host, has_credential=not is_own_token, is_named=is_named)
    network.check()
    if is_own_token:
        token = _load_own_token(folder)
    asgi_app = app(
        mid,
        token=token,
        auth=auth,
        allow_hosts=allow_hosts,
        allow_origins=allow_origins,
        public_url=public_url,
        limits=limits,
        bridges=bridges,
        session_key=session_key,
        unsigned_checkpoints=unsigned_checkpoints,
        metrics=metrics,
    )
    _warn_of_plain_http(host, public_url, network)
    server = UvicornServer(asgi_app, network, drain_s=0.0 if is_loopback(host) else DRAIN_S)
    # The signal handlers are installed before the address is printed: the reader of the address
    # may send a signal at once, and it must not be lost.
    with open_listener(host, port) as listening, server.capture_signals():
        base = public_url or _format_base_url(host, listening.getsockname()[1], network)
        # A code makes its reader an operator, and this line may go to a log. So there is none
        # if a token is configured: the people who may sign in have that token.
        code = f"#code={asgi_app.code()}" if is_own_token else ""
        say(_format_link(base, network.root_path, code))
        await server.serve(sockets=[listening])


def _format_link(base: str, root_path: str, code: str) -> str:
    # Below a prefix the final slash matters: the links of the page are relative to it.
    slash = "/" if code or root_path else ""
    return f"{base.rstrip('/')}{root_path}{slash}{code}"


def check_exposure(host: str, *, has_credential: bool, is_named: bool) -> None:
    """Refuse a host that other machines reach, without a credential or a name.

    Raises:
        Misconfigured: `host` is not loopback, and one of the two is missing.
    """
    if is_loopback(host):
        return
    if not has_credential:
        raise Misconfigured(f"host {host}", "other machines can reach it. Pass token= or auth=")
    if not is_named:
        problem = "the server's name is not known. Pass allow_hosts= or public_url="
        raise Misconfigured(f"host {host}", problem)


def _load_own_token(folder: Path | None) -> str:
    """Return the token in `folder`, or that of the working folder; make it if needed."""
    if folder:
        return token_in(folder)
    return token_for(Path.cwd(), former_path=FORMER_TOKEN_PATH)


def _warn_of_plain_http(host: str, public_url: str | None, network: Network) -> None:
    """Log a warning where credentials would cross a network unencrypted."""
    has_tls = network.tls_cert is not None or (public_url or "").startswith("https:")
    if is_loopback(host) or has_tls or network.forwarded_allow_ips is not None:
        return
    _LOG.warning(
        "Tokens and sessions are sent unencrypted: host %s is not loopback, without TLS. Pass "
        "tls_cert= and tls_key= (--tls-cert, --tls-key). If a proxy speaks https for this "
        "server, pass public_url= (--public-url).",
        host,
    )


def check_tls(cert: Path | None, key: Path | None) -> None:
    """Refuse a certificate that cannot be loaded.

    Raises:
        Misconfigured: a file is missing, the key does not belong to the certificate, or the
            certificate is not valid now.
    """
    if cert is None:
        if key is not None:
            raise Misconfigured(
                "tls_key", "Cannot use it without a certificate. Pass tls_cert="
            )
        return
    # Loaded once as a test: uvicorn would fail later, after the address was printed.
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except OSError as error:  # an SSLError is one
        files = f"{cert} with {key or 'the key in the same file'}"
        why = error.strerror or str(error)
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            why = "the key belongs to another certificate"
        elif isinstance(error, ssl.SSLError):
            why = "a certificate and its private key in PEM are expected"
        problem = f"Cannot load {files}: {why}. Check both paths"
        raise Misconfigured("tls_cert", problem) from error
    if problem := _find_certificate_problem(cert, key):
        raise Misconfigured("tls_cert", f"Cannot use {cert}: {problem}. Renew it")


def _find_certificate_problem(cert: Path, key: Path | None) -> str:
    """Say why clients would refuse the certificate at this time; "" if they would not.

    A client that trusts this very certificate shakes hands with a server that has it, in
    memory. The module `ssl` cannot read the dates of a certificate otherwise.
    """
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(cert, key)
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    client_context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client_context.load_verify_locations(cert)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server)
    for side in (client, server, client):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            # Other problems depend on the client: which authorities it trusts, for example.
            return error.verify_message if error.verify_code in CERTIFICATE_DATE_CODES else ""
        except ssl.SSLError:
            return ""
    return ""


CERTIFICATE_DATE_CODES: Final = frozenset({9, 10})
"""X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED of OpenSSL."""


def _check_proxies(addresses: str) -> None:
    """Refuse addresses of proxies that are neither addresses nor networks."""
    for word in addresses.split(","):
        address = word.strip()
        # uvicorn takes any other word for the name of a Unix socket, and trusts no proxy then.
        if address in {"", "*"} or address.startswith("/"):
            continue
        try:
            ip_network(address, strict=False)
        except ValueError:
            problem = f"must be addresses such as 10.0.0.7 or 10.0.0.0/8, or *; got {address!r}"
            raise Misconfigured("forwarded_allow_ips", problem) from None


def _format_base_url(host: str, port: int, network: Network) -> str:
    scheme = "http" if network.tls_cert is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class UvicornServer(uvicorn.Server):
    """Uvicorn with four differences.

    It has a timeout for headers, bounds its connections, drains before it stops, and ends the
    streams first when it stops.
    """

    def __init__(
        self, asgi_app: App, network: Network = _DEFAULT_NETWORK, *, drain_s: float = 0.0
    ) -> None:
        limits = asgi_app.limits
        self.connections = Connections(limits.connections, limits.connections_per_address)
        # Behind a declared proxy all connections have the proxy's address.
        if network.forwarded_allow_ips is not None and not limits.connections_per_address:
            self.connections.max_per_address = self.connections.max_open
        proxies = network.forwarded_allow_ips
        super().__init__(
            uvicorn.Config(
                asgi_app,
                http=make_protocol(limits.headers, self.connections),
                lifespan="on",
                ws="none",
                access_log=False,  # the journal and the audit log record the requests
                log_config=None,
                server_header=False,
                timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
                root_path=network.root_path,
                # Never None: see DEFAULT_TRUSTED_PROXIES.
                forwarded_allow_ips=DEFAULT_TRUSTED_PROXIES if proxies is None else proxies,
                ssl_certfile=network.tls_cert,
                ssl_keyfile=network.tls_key,
            )
        )
        self._app = asgi_app
        self._drain_s = drain_s if network.drain_s is None else network.drain_s
        self._skips_drain = False
        asgi_app.promise_close()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop the server; a second signal, or Ctrl-C, skips the drain."""
        # `should_exit` is set by the first signal, so it is still False for that one.
        self._skips_drain = self.should_exit or sig == signal.SIGINT
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept; from now on a `BoundedListener` counts for this server."""
        for sock in sockets or ():
            if isinstance(sock, BoundedListener):
                sock.connections = self.connections
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, end the streams, stop to accept, and wait for open requests.

        During the drain the socket stays open and requests are served, but `/readyz` answers
        503: a load balancer reads it and sends no more requests. Plain uvicorn closes the
        socket at once, and waits for the streams until its timeout.
        """
        self._app.drain()
        until = anyio.current_time() + self._drain_s
        # A signal handler may not set an event of the loop, so its flag is polled.
        while not self._skips_drain and anyio.current_time() < until:  # noqa: ASYNC110 - see above
            await anyio.sleep(DRAIN_POLL_S)
        self._app.close()
        await super().shutdown(sockets)


def open_listener(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes any free port.

    Raises:
        Misconfigured: the address is in use or not available, or there is no such port.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named explicitly: asyncio sets TCP_NODELAY only on such sockets. With
    # Nagle's algorithm, a reply in two writes waits 40 ms for the client's acknowledgement.
    listening = BoundedListener(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(LISTEN_BACKLOG)
    except OSError as error:
        listening.close()
        problem = (
            f"Cannot listen there: {error.strerror or error}. Choose another --port or --host"
        )
        raise Misconfigured(f"address {host}:{port}", problem) from error
    except OverflowError:
        listening.close()
        raise Misconfigured("port", f"must be from 0 to 65535, got {port}") from None
    return listening


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
