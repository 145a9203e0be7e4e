"""Problem details (RFC 9457): the form of every refusal on the wire.

`type` is `urn:midrun:problem:<slug>` and stable. If the caller may see the run, the problem
carries its view, so that the client can repaint at once. A `MidrunError` adds its `code` and
`args`, from which `midrun.client` raises the same error.
"""

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from midrun.errors import ControlRefused, MidrunError
from midrun.server.schemas import encode_wire

PROBLEM_MEDIA: Final = "application/problem+json"
PROBLEM_TYPE_PREFIX: Final = "urn:midrun:problem:"

_STATUS_BY_CODE: Final[Mapping[str, int]] = {
    "not_json": 400,
    "cursor_refused": 400,
    "too_large": 413,
    "file_refused": 413,
    "file_missing": 404,
    "misconfigured": 422,
    "run_not_found": 404,
    "run_erased": 410,
    "delete_refused": 409,
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
    "journal_key_missing": 500,
    "store_encrypted": 500,
}
"""Code of an error → HTTP status. Any other error is a 500 without details."""

_STATUS_BY_REASON: Final[Mapping[str, int]] = {
    "not_allowed": 403,
    "no_such_ask": 404,
    "no_such_frame": 404,
    "ask_expired": 410,
    "empty_text": 422,
    "files_refused": 413,
    "no_files_here": 422,
    "bad_arguments": 422,
    "no_such_cap": 422,
    "cap_not_raised": 422,
    "not_an_outcome": 422,
    "request_id_reused": 422,
    "stale_revision": 412,
}
"""Reason of a refused control → HTTP status. Any other reason is a 409."""


class HttpProblem(Exception):
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


def to_problem(error: Exception) -> HttpProblem | None:
    """Return the problem for an error; None if its text must stay in the server."""
    if isinstance(error, HttpProblem):
        return error
    if isinstance(error, ControlRefused):
        # One type for all refused controls, with the `reason` as a member. Only a stale
        # revision has a type of its own, as it belongs to If-Match (412).
        status = _STATUS_BY_REASON.get(error.reason, 409)
        slug = error.reason if error.reason == "stale_revision" else error.code
        return make_problem(error, slug, status)
    if not isinstance(error, MidrunError) or error.code not in _STATUS_BY_CODE:
        return None
    return make_problem(error, error.code, _STATUS_BY_CODE[error.code])


def make_problem(error: MidrunError, slug: str, status: int) -> HttpProblem:
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
    return HttpProblem(slug, status, str(error), headers=retry, fields=fields)


def make_problem_response(problem: HttpProblem, run: object = None) -> Response:
    """Return the response for `problem`, with the view of the run if given."""
    body: dict[str, object] = {
        "type": PROBLEM_TYPE_PREFIX + problem.slug.replace("_", "-"),
        "title": problem.slug.replace("_", " "),
        "status": problem.status,
        "detail": problem.detail,
        **problem.fields,
    }
    if run is not None:
        body["run"] = run
    return Response(
        encode_wire(body),
        problem.status,
        headers=problem.headers,
        media_type=PROBLEM_MEDIA,
    )


_RETRIED_STATUSES: Final = frozenset({408, 429, 503})


def make_openai_error(problem: HttpProblem) -> dict[str, object]:
    """Return the member by which clients of OpenAI's protocols know an error."""
    kind = "server_error" if problem.status >= 500 else "invalid_request_error"  # noqa: PLR2004 - as HTTP counts
    own = {"message": problem.detail, "type": kind, "param": None, "code": problem.slug}
    return {"error": own}


def make_openai_error_response(problem: HttpProblem) -> Response:
    """Return the response for `problem` to a client of OpenAI's protocols.

    The SDKs repeat a request after every status from 500 on and after 409, unless the header
    says otherwise. A refusal would be refused again, and a failed run would be resumed.
    """
    body = {"status": problem.status, **make_openai_error(problem), **problem.fields}
    is_repeatable = problem.status in _RETRIED_STATUSES
    headers = {"x-should-retry": "true" if is_repeatable else "false"}
    return Response(
        encode_wire(body),
        problem.status,
        headers=problem.headers | headers,
        media_type="application/json",
    )
