"""Checks that need only the headers of a request: host, origin, query, body.

`App` runs them before the handler: host, origin, then (elsewhere) credential and rate, then
query and body. The first check that fails is the answer, and nothing has been changed.

They protect a server on loopback from pages in a browser of the same machine. Such a page can
send requests here, but it cannot choose `Host`, `Origin` or `Sec-Fetch-*`. If it rebinds its
own DNS name to 127.0.0.1, `Host` carries that name, which is not in `ServerAddress.hosts`. It
cannot send JSON to another origin without a preflight, and only the origins in
`ServerAddress.allow_origins` get an answer to one. For those a bearer token counts and a cookie
never does (there is no `Access-Control-Allow-Credentials`), so the credentials that the browser
holds are of no use to them.
"""

import re
from collections.abc import Collection
from typing import Final
from urllib.parse import quote, unquote

from msgspec import Struct
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Scope, Send

from midrun.errors import Misconfigured
from midrun.server.problem_details import HttpProblem

# Find the path at which the app is mounted in another application.
#
# In ASGI, `path` is the whole path and `root_path` is the prefix at which the app is mounted.
# Litestar removes the prefix from `path`, does not set `root_path`, and appends a slash. The
# path that the client sent is still in `raw_path`, from which both are restored.


def restore_mount_path(scope: Scope) -> Scope:
    """Return `scope` with the whole `path` and the `root_path` that ASGI requires.

    `scope` is returned unchanged if it has them already, or if they cannot be derived.
    """
    path: str = scope["path"]
    sent = unquote((scope.get("raw_path") or b"").decode("ascii", "replace"))
    below = path.rstrip("/")
    root = sent.rstrip("/").removesuffix(below)
    # Cut off: the sent path is a prefix followed by `path`, which begins at a slash. With "//"
    # in the path, the host may have normalised it, and the comparison proves nothing.
    was_cut = sent != path and root + below == sent.rstrip("/") and f"{below}/"[0] == "/"
    if not was_cut or "//" in sent:
        return scope
    return {**scope, "path": sent, "root_path": root}


def mount_path(scope: Scope) -> str:
    """Return the path at which the app is mounted, without a final slash."""
    root: str = scope.get("root_path", "")
    return root.rstrip("/")


def path_below_mount(scope: Scope) -> str:
    """Return the path below the mount path; "" for the mount path itself."""
    path: str = scope["path"]
    return path.removeprefix(mount_path(scope))


def redirect_to_slash(scope: Scope) -> Response:
    """Redirect to the same path with a final slash.

    The links of the page are relative, and need it.
    """
    # Relative: the client may see the host application below yet another prefix.
    name = scope["path"].rpartition("/")[2]
    return Response(status_code=307, headers={"Location": f"{quote(name)}/"})


SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK_NAMES: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})

CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types lit-html"
)
"""Allows only the server's own files; text becomes markup only through Lit's templates."""

_SECURITY_HEADERS: Final = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}

# Values of `Sec-Fetch-Site` for a request of a page that has another origin. "same-site" is
# one of them: another port or subdomain belongs to another server.
_FOREIGN_SITES: Final = frozenset({"cross-site", "same-site"})

_ORIGIN_PATTERN: Final = re.compile(
    r"(https?)://([a-z0-9._-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?"
)
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_REPEATED_MAX_CHARS: Final = 200
"""Characters of a refused origin or media type that the refusal repeats."""

PREFLIGHT_MAX_AGE_S: Final = 600

EXPOSED_HEADERS: Final = (
    "Allow, ETag, Idempotency-Replayed, Location, Retry-After, WWW-Authenticate"
)
"""Response headers that scripts of an allowed origin may read, besides the safelisted ones."""


class ServerAddress(Struct, frozen=True, kw_only=True):
    """The host names of one server, and the foreign origins whose pages it answers."""

    hosts: frozenset[str] = frozenset()  # lower case, with or without a port
    public_origin: str = ""  # the server's own origin, as browsers see it behind a proxy
    allow_origins: frozenset[str] = frozenset()


def parse_address(
    hosts: Collection[str], allow_origins: Collection[str], public_url: str | None
) -> ServerAddress:
    """Check the address settings and return them as a `ServerAddress`.

    Raises:
        Misconfigured: a setting is not an origin.
    """
    # A str is a collection of str: each character would count as an origin.
    if isinstance(allow_origins, str):
        raise Misconfigured("allow_origins", f"must be a list of str, got {allow_origins!r}")
    public = "" if public_url is None else parse_origin("public_url", public_url)
    names = {host.lower() for host in hosts}
    if public:
        names.add(public.partition("://")[2])
    return ServerAddress(
        hosts=frozenset(names),
        public_origin=public,
        allow_origins=frozenset(parse_origin("allow_origins", url) for url in allow_origins),
    )


def parse_origin(setting: str, url: str) -> str:
    """Return `url` as browsers write an origin: lower case, without the default port.

    Raises:
        Misconfigured: `url` has a path, a wildcard, or another part that no origin has.
    """
    found = _ORIGIN_PATTERN.fullmatch(url.lower().removesuffix("/"))
    if found is None:
        problem = (
            f"must be an origin such as https://app.example or http://localhost:3000, "
            f"without a path or a wildcard; got {url!r}"
        )
        raise Misconfigured(setting, problem)
    scheme, name, port = found.groups()
    suffix = "" if port is None or int(port) == _DEFAULT_PORTS[scheme] else f":{port}"
    return f"{scheme}://{name}{suffix}"


def parse_push_origins(push_to: Collection[str]) -> frozenset[str]:
    """Return the origins to which notifications of A2A may be sent.

    Raises:
        Misconfigured: an item is not an origin.
    """
    return frozenset(parse_origin("push_to", url) for url in push_to)


def make_base_url(request: Request) -> str:
    """Return the address of the server, as the client knows it."""
    host, scope = request.headers.get("host", ""), request.scope
    return f"{scope['scheme']}://{host}{mount_path(scope)}"


def apply_public_scheme(scope: Scope, address: ServerAddress) -> Scope:
    """Return `scope` with the scheme of `public_url` if the request was sent to its host.

    So a proxy that ends TLS need not send `X-Forwarded-Proto`.
    """
    scheme, _, host = address.public_origin.partition("://")
    if host and Headers(scope=scope).get("host", "").lower() == host:
        return {**scope, "scheme": scheme}
    return scope


def check_host(scope: Scope, headers: Headers, allowed: Collection[str]) -> None:
    """Refuse a request that was sent to an unknown host name (DNS rebinding).

    `allowed` has names with or without a port; a name alone stands for any port. A loopback
    name is allowed only with the port that the request came in by.

    Raises:
        HttpProblem: 421.
    """
    hosts = headers.getlist("host")
    if len(hosts) == 1:  # two Host headers: a proxy and this server could read different ones
        host = hosts[0].lower()
        default = _DEFAULT_PORTS.get(scope["scheme"], 80)
        name, port = split_host(host, default)
        if host in allowed or (name in allowed and port):  # port 0: not a port at all
            return
        # A browser sends the port that it has connected to. With another port the request came
        # through a forwarder, whose name must be in `allow_hosts`.
        server = scope.get("server") or ("", None)
        if name in LOOPBACK_NAMES and port == (server[1] or default):
            return
    problem = (
        "Cannot answer under this name: it is not a name of this server. Add the name in the "
        "Host header to allow_hosts (midrun serve --allow-host), or set public_url "
        "(--public-url)."
    )
    raise HttpProblem("misdirected", 421, problem)


def split_host(host: str, default: int = 80) -> tuple[str, int]:
    """Return the name and the port of a `Host` header; 0 for an invalid port."""
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):  # no port; the colon belongs to an IPv6 address
        return host, default
    if not port:
        return name, default
    return name, int(port) if port.isdecimal() and port.isascii() else 0


def find_cross_origin(scope: Scope, headers: Headers, address: ServerAddress) -> str:
    """Return the allowed foreign origin of the sending page; "" for all other requests."""
    origins = [origin.lower() for origin in headers.getlist("origin")]
    if len(origins) != 1 or origins[0] in _list_own_origins(scope, headers, address):
        return ""
    return origins[0] if origins[0] in address.allow_origins else ""


def check_origin(scope: Scope, headers: Headers, address: ServerAddress) -> None:
    """Refuse a request that a page of another origin sends, unless that origin is allowed.

    Raises:
        HttpProblem: 403.
    """
    if find_cross_origin(scope, headers, address):
        return
    own = _list_own_origins(scope, headers, address)
    for origin in headers.getlist("origin"):
        if origin.lower() not in own:
            raise _make_foreign_origin_problem(origin)
    # Browsers send no Origin with a GET of an image or a script, but Sec-Fetch-Site. Following
    # a link to a page of this server is allowed: a navigation shows the page, and the page that
    # holds the link cannot read it.
    navigates = headers.get("sec-fetch-mode") == "navigate" and scope["method"] in SAFE_METHODS
    if headers.get("sec-fetch-site") in _FOREIGN_SITES and not navigates:
        raise _make_foreign_origin_problem("another origin")


def _list_own_origins(scope: Scope, headers: Headers, address: ServerAddress) -> frozenset[str]:
    here = f"{scope['scheme']}://{headers.get('host', '')}".lower()
    return frozenset({here, address.public_origin or here})


def _make_foreign_origin_problem(origin: str) -> HttpProblem:
    problem = (
        f"Cannot accept a request from a page of {origin[:_REPEATED_MAX_CHARS]}: its "
        "origin is not "
        "allowed. To let its scripts call with a bearer token, add its origin to allow_origins "
        "(midrun serve --allow-origin). If it is the server's own address behind a proxy, set "
        "public_url (--public-url)."
    )
    return HttpProblem("foreign_origin", 403, problem)


def check_query(scope: Scope) -> None:
    """Refuse a query with NUL: no name contains it, and Postgres does not accept it.

    Raises:
        HttpProblem: 400.
    """
    if b"%00" in scope["query_string"]:
        problem = "Cannot read the query: it contains the character NUL (%00). Remove it."
        raise HttpProblem("bad_query", 400, problem)


def check_body(scope: Scope, headers: Headers, max_bytes: int) -> None:
    """Refuse a change whose body is not JSON, or is longer than `max_bytes`.

    A request without a body and without a type counts as an empty object. A form in a browser
    cannot send one: it always names its type. This holds back cross-site forms.

    Raises:
        HttpProblem: 415, not JSON; 413, too long.
    """
    if scope["method"] in SAFE_METHODS:
        return
    media = headers.get("content-type", "").partition(";")[0].strip().lower()
    length = headers.get("content-length", "0")
    is_empty = length == "0" and "transfer-encoding" not in headers
    if media != "application/json" and (media or not is_empty):
        problem = (
            f"Cannot read a body of type {media[:_REPEATED_MAX_CHARS]!r}. Send "
            "application/json."
        )
        raise HttpProblem("not_json_body", 415, problem)
    # Only the length that the client claims; `RequestContext.read_body` counts the real bytes.
    # Python refuses to convert very long digit strings, so only 20 digits are read.
    if not (length.isdecimal() and length.isascii()) or int(length[:20]) > max_bytes:
        problem = f"Cannot read the body: it may have at most {max_bytes} bytes. Send less."
        raise HttpProblem("too_large", 413, problem)


def make_preflight_headers(headers: Headers, methods: Collection[str]) -> dict[str, str]:
    """Return the CORS headers that answer the preflight of an allowed origin.

    Every header that it asks for is allowed: protocol clients send headers of their own, and
    none of them gives any right. Only the bearer token does.
    """
    asked = headers.get("access-control-request-headers", "")
    return {
        "Access-Control-Allow-Methods": ", ".join(sorted(methods)),
        "Access-Control-Allow-Headers": re.sub(r"[^A-Za-z0-9_,-]", "", asked),
        "Access-Control-Max-Age": str(PREFLIGHT_MAX_AGE_S),
    }


def add_security_headers(send: Send, address: ServerAddress, origin: str) -> Send:
    """Return `send` with the security headers added to every response.

    `origin` is the foreign origin whose page may read the response; "" for none.
    """

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            policy = headers.get("content-security-policy", CSP)  # files have a stricter one
            for name, value in _SECURITY_HEADERS.items():
                headers[name] = value
            headers["content-security-policy"] = policy
            headers.setdefault("cache-control", "no-store")  # static files set their own
            if address.allow_origins:
                # A cache must not give the response for one origin to another.
                headers.add_vary_header("Origin")
            if origin:
                headers["access-control-allow-origin"] = origin
                headers["access-control-expose-headers"] = EXPOSED_HEADERS
        await send(message)

    return with_headers
