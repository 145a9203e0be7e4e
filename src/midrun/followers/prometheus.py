"""Metrics for Prometheus: a sink with a registry of its own, and a small HTTP server for it.

The server runs in a thread. So it answers while the event loop is blocked, which is one of the
things to be measured. It needs no web framework, and a worker without a server has it, too. On
an address that other machines can reach it demands a bearer token.
"""

import hmac
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from socket import AF_INET, AF_INET6, SO_REUSEADDR, SOL_SOCKET, socket
from socketserver import ThreadingMixIn
from threading import BoundedSemaphore, Thread
from typing import ClassVar, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIEnvironment

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from midrun.errors import Misconfigured
from midrun.followers import metric_definitions as m

SCRAPES_MAX_CONCURRENT: Final = 8
"""Connections at a time; further ones are closed."""

SCRAPE_TIMEOUT_S: Final = 10.0
"""Seconds until a client that does not send or read is dropped."""


class PrometheusSink(Collector):
    """A `MetricSink` that keeps all values in a registry; `render` writes them as text."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._gauges: Sequence[m.Measurement] = ()
        self._instruments: dict[str, Counter | Histogram] = {
            metric.name: _make_instrument(metric, self.registry)
            for metric in m.METRICS.values()
            if metric.kind != "gauge"
        }
        self.registry.register(self)

    def record(self, measurement: m.Measurement) -> None:
        """Add to a counter, or observe a value of a histogram."""
        instrument = self._instruments[measurement.metric.name]
        child = instrument.labels(*measurement.labels) if measurement.labels else instrument
        if isinstance(child, Histogram):
            child.observe(measurement.value)
        else:
            child.inc(measurement.value)

    def replace_gauges(self, readings: Sequence[m.Measurement]) -> None:
        """Replace all readings; one assignment, so a scrape sees the old or the new ones."""
        self._gauges = readings

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges, for the registry."""
        readings = self._gauges
        for metric in m.METRICS.values():
            if metric.kind == "gauge":
                family = GaugeMetricFamily(
                    metric.prometheus_name, metric.help, labels=metric.labels
                )
                for reading in readings:
                    if reading.metric is metric:
                        family.add_metric(reading.labels, reading.value)
                yield family

    def render(self) -> tuple[bytes, str]:
        """Return all metrics in the text format of Prometheus, and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST


def _make_instrument(metric: m.Metric, registry: CollectorRegistry) -> Counter | Histogram:
    # Counter adds the suffix `_total` itself.
    name = metric.prometheus_name.removesuffix("_total")
    if metric.kind == "histogram":
        return Histogram(
            name, metric.help, metric.labels, registry=registry, buckets=metric.buckets
        )
    return Counter(name, metric.help, metric.labels, registry=registry)


# ── the HTTP server ──────────────────────────────────────────────────────────────────────────

Render = Callable[[], tuple[bytes, str] | None]


class ScrapeServer(ThreadingMixIn, WSGIServer):
    """An HTTP server with one thread for each connection, and few of them."""

    daemon_threads = True

    def __init__(self, host: str, port: int, app: "ScrapeApp") -> None:
        self.address_family = AF_INET6 if ":" in host else AF_INET
        self._slots = BoundedSemaphore(SCRAPES_MAX_CONCURRENT)
        super().__init__((host, port), ScrapeRequestHandler)
        self.set_app(app)

    def server_bind(self) -> None:
        """Bind the address; do not look up its name, which may take seconds."""
        # The kernel keeps each connection that this side has closed for a minute. Without this
        # option, the next process could not bind the port until then.
        self.socket.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def process_request(self, request: socket, client_address: object) -> None:  # type: ignore[override]  # socketserver types them as Any
        """Serve a connection in a thread; close it if too many are open."""
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: socket, client_address: object) -> None:  # type: ignore[override]  # as above
        """Serve a connection, in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a client that went away; it has its own log."""


class ScrapeRequestHandler(WSGIRequestHandler):
    """A request handler with a timeout, and without a log line for each scrape."""

    timeout: ClassVar[float | None] = SCRAPE_TIMEOUT_S

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - overrides it
        """Log nothing."""


class ScrapeApp:
    """The WSGI app: `GET /metrics`, with a bearer token if there is one."""

    def __init__(self, render: Render, token: str) -> None:
        self._render = render
        self._token = token.encode()

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Answer one request."""
        if not self._has_valid_token(environ):
            start_response("401 Unauthorized", [("WWW-Authenticate", 'Bearer realm="midrun"')])
            return [b""]
        rendered = self._render() if environ["PATH_INFO"] == "/metrics" else None
        if rendered is None:
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"The metrics are at /metrics.\n"]
        if environ["REQUEST_METHOD"] not in {"GET", "HEAD"}:
            start_response("405 Method Not Allowed", [("Allow", "GET, HEAD")])
            return [b""]
        body, content_type = rendered
        start_response("200 OK", [("Content-Type", content_type)])
        return [body] if environ["REQUEST_METHOD"] == "GET" else [b""]

    def _has_valid_token(self, environ: WSGIEnvironment) -> bool:
        if not self._token:
            return True
        scheme, _, shown = str(environ.get("HTTP_AUTHORIZATION", "")).partition(" ")
        sent = shown.strip().encode("utf-8", "surrogateescape")
        return scheme.lower() == "bearer" and hmac.compare_digest(sent, self._token)


@contextmanager
def serve_metrics(address: str, render: Render, *, token: str = "") -> Iterator[str]:
    """Serve `/metrics` on `HOST:PORT` while the context is open; yield its URL.

    Port 0 takes any free port.

    Raises:
        Misconfigured: the address is invalid or in use, or other machines can reach it and
            there is no token.
    """
    host, port = check_metrics(address, token)
    try:
        server = ScrapeServer(host, port, ScrapeApp(render, token))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        problem = f"Cannot listen there: {reason}. Choose another address or port"
        raise Misconfigured(f"--metrics {address}", problem) from None
    thread = Thread(target=server.serve_forever, name="midrun-metrics", daemon=True)
    thread.start()
    try:
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()


def check_metrics(address: str, token: str) -> tuple[str, int]:
    """Return the host and the port of `address`; without a token it must be on loopback.

    Raises:
        Misconfigured: the address is invalid, or other machines can reach it.
    """
    host, port = parse_address(address)
    if not token and not ip_address(host).is_loopback:
        problem = "other machines can reach it; set MIDRUN_METRICS_TOKEN, or use 127.0.0.1"
        raise Misconfigured(f"--metrics {address}", problem)
    return host, port


def parse_address(address: str) -> tuple[str, int]:
    """Return the host and the port of `HOST:PORT`; the host is an IP address or `localhost`.

    Raises:
        Misconfigured: it is not of this form.
    """
    host, _, port = address.rpartition(":")
    host = "127.0.0.1" if host == "localhost" else host.strip("[]")
    try:
        return str(ip_address(host)), int(port)
    except ValueError:
        problem = "must be an IP address and a port, such as 127.0.0.1:9464"
        raise Misconfigured(f"--metrics {address}", problem) from None
