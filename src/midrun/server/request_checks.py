"""The guard: what a request must be before anybody looks at what it wants.

In this order: the name it was sent to, the page it comes from, who sends it, how often, and
what kind of body it has. The first that does not hold is the answer, and nothing was touched.

A page in a browser can send requests to this machine. It cannot choose `Host` (unless it
rebinds its own name, which is not on our list), `Origin` or `Sec-Fetch-*`. It cannot send JSON
elsewhere without a preflight, and only the origins in `Address.allow_origins` get an answer to
one. For those a bearer token counts and a cookie never does, so the browser's own credentials
are of no use to them: there is no `Access-Control-Allow-Credentials`.
"""

import re
from collections.abc import Collection
from typing import Final

from msgspec import Struct
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Scope, Send

from midrun.errors import Misconfigured
from midrun.server.problem_details import Problem

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})

CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types lit-html"
)
"""Our own files and nothing else; text becomes markup only by Lit's own templates."""

_ON_EVERY_RESPONSE: Final = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}

_ELSEWHERE: Final = frozenset({"cross-site", "same-site"})


_ORIGIN: Final = re.compile(r"(https?)://([a-z0-9._-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_SHOWN_MAX: Final = 200
"""Characters of a refused origin that the refusal repeats."""

PREFLIGHT_MAX_AGE_S: Final = 600

EXPOSED_HEADERS: Final = (
    "Allow, ETag, Idempotency-Replayed, Location, Retry-After, WWW-Authenticate"
)
"""Response headers that scripts of an allowed origin may read, besides the harmless ones."""


class Address(Struct, frozen=True, kw_only=True):
    """The names of one server, and the origins whose pages it answers besides its own."""

    hosts: frozenset[str] = frozenset()  # lower case, with or without a port
    public_origin: str = ""  # the server's own, as browsers see it behind a proxy
    allow_origins: frozenset[str] = frozenset()


def address_of(
    hosts: Collection[str], allow_origins: Collection[str], public_url: str | None
) -> Address:
    """Return the address that these settings describe.

    Raises:
        Misconfigured: a setting is not an origin.
    """
    if isinstance(allow_origins, str):
        raise Misconfigured("allow_origins", f"must be a list of str, got {allow_origins!r}")
    public = "" if public_url is None else parse_origin("public_url", public_url)
    names = {host.lower() for host in hosts}
    if public:
        names.add(public.partition("://")[2])
    return Address(
        hosts=frozenset(names),
        public_origin=public,
        allow_origins=frozenset(parse_origin("allow_origins", url) for url in allow_origins),
    )


def parse_origin(setting: str, url: str) -> str:
    """Return `url` as browsers write an origin: lower case, without the default port.

    Raises:
        Misconfigured: it has a path, a wildcard, or anything else that no origin has.
    """
    found = _ORIGIN.fullmatch(url.lower().removesuffix("/"))
    if found is None:
        problem = (
            f"must be an origin such as https://app.example or http://localhost:3000, "
            f"without a path or a wildcard; got {url!r}"
        )
        raise Misconfigured(setting, problem)
    scheme, name, port = found.groups()
    suffix = "" if port is None or int(port) == _DEFAULT_PORTS[scheme] else f":{port}"
    return f"{scheme}://{name}{suffix}"


def with_public_scheme(scope: Scope, address: Address) -> Scope:
    """Return `scope` with the scheme of the public URL, if it was sent to its host.

    A proxy that speaks https for us need not say so in a header.
    """
    scheme, _, host = address.public_origin.partition("://")
    if host and Headers(scope=scope).get("host", "").lower() == host:
        return {**scope, "scheme": scheme}
    return scope


def check_host(scope: Scope, headers: Headers, allowed: Collection[str]) -> None:
    """Refuse a request that was sent to a name that is not ours: DNS rebinding.

    `allowed` has names with or without a port; a name alone stands for any port. Loopback
    names count with the port that the request came in by.

    Raises:
        Problem: 421.
    """
    hosts = headers.getlist("host")
    if len(hosts) == 1:
        host = hosts[0].lower()
        default = _DEFAULT_PORTS.get(scope["scheme"], 80)
        name, port = split_host(host, default)
        if host in allowed or (name in allowed and port):
            return
        server = scope.get("server") or ("", None)
        if name in LOOPBACK and port == (server[1] or default):
            return
    problem = (
        "Cannot answer under this name. Add the name in the Host header to allow_hosts "
        "(midrun serve --allow-host), or set public_url (--public-url)."
    )
    raise Problem("misdirected", 421, problem)


def split_host(host: str, default: int = 80) -> tuple[str, int]:
    """Return the name and the port of a `Host` header; the port is 0 if it is none."""
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        return host, default
    if not port:
        return name, default
    return name, int(port) if port.isdecimal() and port.isascii() else 0


def cross_origin(scope: Scope, headers: Headers, address: Address) -> str:
    """Return the allowed origin of the page that sends this; empty for all other requests."""
    origins = [origin.lower() for origin in headers.getlist("origin")]
    if len(origins) != 1 or origins[0] in _own_origins(scope, headers, address):
        return ""
    return origins[0] if origins[0] in address.allow_origins else ""


def check_page(scope: Scope, headers: Headers, address: Address) -> None:
    """Refuse a request that a page of another origin sends, unless that origin is allowed.

    Raises:
        Problem: 403.
    """
    if cross_origin(scope, headers, address):
        return
    ours = _own_origins(scope, headers, address)
    for origin in headers.getlist("origin"):
        if origin.lower() not in ours:
            raise _foreign(origin)
    navigates = headers.get("sec-fetch-mode") == "navigate" and scope["method"] in SAFE
    if headers.get("sec-fetch-site") in _ELSEWHERE and not navigates:
        raise _foreign("another origin")


def _own_origins(scope: Scope, headers: Headers, address: Address) -> frozenset[str]:
    here = f"{scope['scheme']}://{headers.get('host', '')}".lower()
    return frozenset({here, address.public_origin or here})


def _foreign(origin: str) -> Problem:
    problem = (
        f"Cannot take a request of a page of {origin[:_SHOWN_MAX]}. To let its scripts call "
        "with a bearer token, add its origin to allow_origins (midrun serve --allow-origin). "
        "If it is the server's own address behind a proxy, set public_url (--public-url)."
    )
    return Problem("foreign_origin", 403, problem)


def check_query(scope: Scope) -> None:
    """Refuse a query with a character that no name has, and that not every store takes.

    Raises:
        Problem: 400.
    """
    if b"%00" in scope["query_string"]:
        raise Problem("bad_query", 400, "nothing here has the character NUL in its name")


def check_body(scope: Scope, headers: Headers, limit: int) -> None:
    """Refuse a change whose body is not JSON, or longer than we would read.

    A request without a body and without a type counts as an empty object. A form cannot send
    one: it always names its type.

    Raises:
        Problem: 415 or 413.
    """
    if scope["method"] in SAFE:
        return
    media = headers.get("content-type", "").partition(";")[0].strip().lower()
    length = headers.get("content-length", "0")
    is_empty = length == "0" and "transfer-encoding" not in headers
    if media != "application/json" and (media or not is_empty):
        problem = f"Cannot read a body of type {media[:_SHOWN_MAX]!r}. Send application/json."
        raise Problem("not_json_body", 415, problem)
    if not (length.isdecimal() and length.isascii()) or int(length[:20]) > limit:
        raise Problem("too_large", 413, f"a body has at most {limit} bytes")


def preflight_headers(headers: Headers, methods: Collection[str]) -> dict[str, str]:
    """Return the answer to the preflight of an allowed origin.

    Every header that it asks for is allowed. Protocol clients send headers of their own, and a
    header alone is no right: what counts is the bearer token.
    """
    asked = headers.get("access-control-request-headers", "")
    return {
        "Access-Control-Allow-Methods": ", ".join(sorted(methods)),
        "Access-Control-Allow-Headers": re.sub(r"[^A-Za-z0-9_,-]", "", asked),
        "Access-Control-Max-Age": str(PREFLIGHT_MAX_AGE_S),
    }


def guarded(send: Send, address: Address, origin: str) -> Send:
    """Return `send` with our headers on every response.

    `origin` is the allowed origin whose page may read the response; empty for none.
    """

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _ON_EVERY_RESPONSE.items():
                headers[name] = value
            headers.setdefault("cache-control", "no-store")  # our own files may be kept
            if address.allow_origins:
                headers.add_vary_header("Origin")  # or a cache shows one origin's to another
            if origin:
                headers["access-control-allow-origin"] = origin
                headers["access-control-expose-headers"] = EXPOSED_HEADERS
        await send(message)

    return with_headers
