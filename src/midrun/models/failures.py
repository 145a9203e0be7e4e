"""What can go wrong with a provider, as `ModelFailed` with a stable reason."""

from collections.abc import Sequence
from typing import Final

from pydantic_ai import exceptions

from midrun.errors import ModelFailed

DETAIL_MAX: Final = 500

_Sorts = Sequence[tuple[type[Exception], str, bool]]

SORTS: Final[_Sorts] = (  # the first that fits: error, reason, transient
    (exceptions.ModelRateLimitError, "rate_limited", True),
    (exceptions.ModelQuotaExceededError, "refused", False),
    (exceptions.ModelUnavailableError, "overloaded", True),
    (exceptions.ModelServerError, "server_error", True),
    (exceptions.ModelTimeoutError, "timeout", True),
    (exceptions.ModelRequestTimeout, "timeout", True),
    (exceptions.ModelContextWindowExceededError, "context_too_long", False),
    (exceptions.ModelAuthenticationError, "unauthorized", False),
    (exceptions.ModelRequestRejectedError, "bad_request", False),
    (exceptions.ContentFilterError, "refused", False),
    (exceptions.UserError, "bad_request", False),
)

PASSING: Final = {408: "timeout", 409: "server_error"}  # statuses that pass, of those below 500


def failure(model: str, error: Exception, *, began: bool) -> ModelFailed:
    """Return what `error` means. `began` tells whether the reply had begun to come."""
    retry_after = getattr(error, "retry_after", None)
    reason, transient = _sorted(error, began=began)
    detail = f"{type(error).__name__}: {error}"[:DETAIL_MAX]
    return ModelFailed(model, reason, detail, transient, retry_after)


def _sorted(error: Exception, *, began: bool) -> tuple[str, bool]:
    for kind, reason, transient in SORTS:
        if isinstance(error, kind):
            return reason, transient
    if isinstance(error, exceptions.ModelHTTPError):
        return PASSING.get(error.status_code, "bad_request"), error.status_code in PASSING
    if not began and isinstance(error, exceptions.ModelConnectionError):
        return "connection", True
    # Whatever else an SDK raises over what it was sent: it was not what the protocol says.
    return "broken_stream", True
