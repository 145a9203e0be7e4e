"""The guard: what a request must be before anybody looks at what it wants.

In this order: the name it was sent to, the page it comes from, who sends it, how often, and
what kind of body it has. The first that does not hold is the answer, and nothing was touched.

A page in somebody's browser can send requests to this machine. It cannot choose `Host` (unless
it rebinds its own name, which is not on our list), `Origin` or `Sec-Fetch-*`; it cannot send
JSON elsewhere without asking first, and we answer no such question: there are no CORS headers.
"""

from collections.abc import Collection
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Scope, Send

from midrun.server.problems import Problem

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
        name, port = split_host(host)
        if host in allowed or name in allowed:
            return
        server = scope.get("server") or ("", None)
        if name in LOOPBACK and port == (server[1] or 80):
            return
    raise Problem("misdirected", 421, "this server does not go by that name; see allow_hosts")


def split_host(host: str) -> tuple[str, int]:
    """Return the name and the port of a `Host` header; the port is 0 if it is none."""
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        return host, 80
    return name, int(port) if port.isdecimal() and port.isascii() else 0


def check_page(scope: Scope, headers: Headers) -> None:
    """Refuse what a page of another origin sends.

    Raises:
        Problem: 403.
    """
    ours = f"{scope['scheme']}://{headers.get('host', '')}".lower()
    if any(origin.lower() != ours for origin in headers.getlist("origin")):
        raise Problem("foreign_origin", 403, "requests of other pages are not taken")
    navigates = headers.get("sec-fetch-mode") == "navigate" and scope["method"] in SAFE
    if headers.get("sec-fetch-site") in _ELSEWHERE and not navigates:
        raise Problem("foreign_origin", 403, "requests of other pages are not taken")


def check_query(scope: Scope) -> None:
    """Refuse a query with a character that no name has, and that not every store takes.

    Raises:
        Problem: 400.
    """
    if b"%00" in scope["query_string"]:
        raise Problem("bad_query", 400, "nothing here has the character NUL in its name")


def check_body(scope: Scope, headers: Headers, limit: int) -> None:
    """Refuse a change whose body is not JSON, or longer than we would read.

    Raises:
        Problem: 415 or 413.
    """
    if scope["method"] in SAFE:
        return
    media = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json" and (scope["method"] != "DELETE" or media):
        raise Problem("not_json_body", 415, "send application/json")
    length = headers.get("content-length", "0")
    if not (length.isdecimal() and length.isascii()) or int(length[:20]) > limit:
        raise Problem("too_large", 413, f"a body has at most {limit} bytes")


def guarded(send: Send) -> Send:
    """Return `send` with our headers on every response, whoever makes it."""

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _ON_EVERY_RESPONSE.items():
                headers[name] = value
            headers.setdefault("cache-control", "no-store")  # our own files may be kept
        await send(message)

    return with_headers
