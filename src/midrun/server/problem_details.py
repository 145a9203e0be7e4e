"""Problem details (RFC 9457): the form of every refusal on the wire.

`type` is `urn:midrun:problem:<slug>` and stable. If the caller may see the run, the problem
carries its view, so that the client can repaint at once. A `MidrunError` adds its `code` and
`args`, from which `midrun.client` raises the same error.
"""

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from midrun.errors import ControlRefused, MidrunError
from midrun.server.schemas import encoded

MEDIA: Final = "application/problem+json"
PREFIX: Final = "urn:midrun:problem:"

_BY_CODE: Final[Mapping[str, int]] = {
    "not_json": 400,
    "cursor_refused": 400,
    "too_large": 413,
    "misconfigured": 422,
    "run_not_found": 404,
    "control_refused": 409,
    "checkpoint_refused": 409,
    "halt_in_force": 409,
    "run_over": 409,
    "store_busy": 503,
    "store_unreachable": 503,
    "store_closed": 503,
    "store_full": 507,
    "journal_corrupt": 500,
    "journal_too_new": 500,
}
"""Code of an error → HTTP status. Any other error is a 500 without details."""

_BY_REASON: Final[Mapping[str, int]] = {
    "not_allowed": 403,
    "no_such_ask": 404,
    "no_such_frame": 404,
    "ask_expired": 410,
    "empty_text": 422,
    "bad_arguments": 422,
    "no_such_cap": 422,
    "cap_not_raised": 422,
    "not_an_outcome": 422,
    "request_id_reused": 422,
    "stale_revision": 412,
}
"""Reason of a refused control → HTTP status. Any other reason is a 409."""


class Problem(Exception):
    """A refusal of the HTTP layer. `slug` ends the `type`; `fields` are additional members."""

    def __init__(
        self,
        slug: str,
        status: int,
        detail: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        fields: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(slug, status, detail)
        self.slug = slug
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})
        self.fields = dict(fields or {})


def problem_of(error: Exception) -> Problem | None:
    """Return the problem for an error; None if its text must stay in the server."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, ControlRefused):
        # One type for all refused controls, with the `reason` as a member. Only a stale
        # revision has a type of its own, as it belongs to If-Match (412).
        status = _BY_REASON.get(error.reason, 409)
        slug = error.reason if error.reason == "stale_revision" else error.code
        return said(error, slug, status)
    if not isinstance(error, MidrunError) or error.code not in _BY_CODE:
        return None
    return said(error, error.code, _BY_CODE[error.code])


def said(error: MidrunError, slug: str, status: int) -> Problem:
    """Return a `MidrunError` as a problem with this slug and status."""
    fields: dict[str, object] = {"code": error.code, "args": error.args}
    if isinstance(error, ControlRefused):
        fields |= {
            "reason": error.reason,
            "control": error.control,
            "phase": error.phase,
            "allowed": error.allowed,
            "by": error.by,
            "seq": error.seq,
        }
    retry = {"Retry-After": "1"} if status == 503 else {}  # noqa: PLR2004 - as HTTP counts
    return Problem(slug, status, str(error), headers=retry, fields=fields)


def reply(problem: Problem, run: object = None) -> Response:
    """Return the response for `problem`, with the view of the run if given."""
    body: dict[str, object] = {
        "type": PREFIX + problem.slug.replace("_", "-"),
        "title": problem.slug.replace("_", " "),
        "status": problem.status,
        "detail": problem.detail,
        **problem.fields,
    }
    if run is not None:
        body["run"] = run
    return Response(
        encoded(body),
        problem.status,
        headers=problem.headers,
        media_type=MEDIA,
    )
