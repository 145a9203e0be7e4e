"""Refusals: from a server's problem+json back to the very error that it was there."""

from collections.abc import Mapping
from inspect import signature
from typing import Final, get_type_hints

import msgspec

from midrun import errors
from midrun.errors import MidrunError, ServerRefused

_PREFIX: Final = "urn:midrun:problem:"
_ERRORS: Final[Mapping[str, type[MidrunError]]] = {
    kind.code: kind
    for name in errors.__all__
    for kind in [getattr(errors, name)]
    if "__init__" in vars(kind)  # the bases are nobody's error
}


def refusal(url: str, status: int, body: bytes) -> MidrunError:
    """Return the error that a response says; one of HTTP's own is `ServerRefused`."""
    try:
        problem = msgspec.json.decode(body, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = {}  # somebody in between answered
    known = _ERRORS.get(str(problem.get("code")))
    if known is not None:
        try:
            return _made(known, problem.get("args"))
        except (ValueError, msgspec.ValidationError):
            pass  # a newer server, whose error says more than ours
    slug = str(problem.get("type", "")).removeprefix(_PREFIX).replace("-", "_")
    return ServerRefused(url, status, slug or "no_problem", str(problem.get("detail", "")))


def _made(kind: type[MidrunError], args: object) -> MidrunError:
    given = msgspec.convert(args, list[object])
    hints = get_type_hints(kind.__init__)
    names = list(signature(kind.__init__).parameters)[1:]
    pairs = zip(given, (hints[name] for name in names), strict=True)
    return kind(*(msgspec.convert(arg, hint) for arg, hint in pairs))
