"""Handlers for the files and artifacts of a run.

The bytes of a file come from a person, a model or a tool, so a browser must never run them in
the origin of this server. A response with a file therefore has four defences: the media type is
the one in the journal and may not be guessed (`nosniff`), only a few types that cannot have
scripts are shown inside the browser, all others are downloads, and a policy of its own forbids
everything. The caller must be allowed to see the run, and the journal of the run must name the
file: a hash alone, without the run, opens nothing.
"""

from typing import Final
from urllib.parse import quote

from starlette.responses import Response

from midrun.agents.file import is_text_type
from midrun.runs.views import list_artifacts
from midrun.runs.wire import ArtifactPage
from midrun.server.request_context import RequestContext, json_response

INLINE_IMAGE_TYPES: Final = frozenset(
    {"image/avif", "image/gif", "image/jpeg", "image/png", "image/webp"}
)
"""Images without scripts. SVG is not among them: it is a download."""

ACTIVE_TEXT_TYPES: Final = frozenset(
    {"text/html", "text/javascript", "text/xml", "application/xml", "image/svg+xml"}
)
"""Text that a browser may run or render as markup: a download."""

FILE_POLICY: Final = "default-src 'none'; sandbox; frame-ancestors 'none'"

CACHE_S: Final = 31_536_000
"""Seconds that a browser may keep a file: its bytes cannot change under its hash."""


async def list_run_artifacts(context: RequestContext) -> Response:
    """List the artifacts that tools of the run have shown, with all versions."""
    run = await context.find_run()
    state = await context.server.views.read_state(run.id)
    return json_response(ArtifactPage(items=list_artifacts(state)))


async def serve_file(context: RequestContext) -> Response:
    """Send a file that an entry of the run names."""
    run = await context.find_run()
    etag = f'"{context.path["hash"]}"'
    file = await run.file(context.path["hash"])
    headers = {
        "Content-Disposition": _format_disposition(file.name, file.media_type),
        "Content-Security-Policy": FILE_POLICY,
        "Cache-Control": f"private, max-age={CACHE_S}, immutable",
        "ETag": etag,
    }
    # Checked after the run was found: a cached file of a run that is gone stays refused.
    if etag in context.request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    response = Response(file.data, headers=headers)
    response.headers["Content-Type"] = _choose_media_type(file.media_type)
    return response


def is_inline(media_type: str) -> bool:
    """Tell whether a browser may show a file of this type instead of storing it."""
    plain = media_type.partition(";")[0]
    is_passive = plain not in ACTIVE_TEXT_TYPES and not plain.endswith("+xml")
    return plain in INLINE_IMAGE_TYPES or (is_text_type(plain) and is_passive)


def _choose_media_type(media_type: str) -> str:
    """Return the type for the response; text has a charset, so that none is guessed."""
    if is_inline(media_type) and is_text_type(media_type) and ";" not in media_type:
        return f"{media_type}; charset=utf-8"
    return media_type


def _format_disposition(name: str, media_type: str) -> str:
    """Return the header with the name of the file, in ASCII and, by RFC 6266, in UTF-8."""
    kind = "inline" if is_inline(media_type) else "attachment"
    plain = "".join(c if c.isascii() and c not in '"\\/' else "_" for c in name)
    return f"{kind}; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
