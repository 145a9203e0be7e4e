"""The OpenAPI 3.1 document, made from the table of endpoints and their types.

Summaries are the first lines of the handlers' docstrings; descriptions of schemas are the
docstrings of the classes. Endpoints of other protocols (AG-UI, A2A) are left out.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.metadata import version
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import fields
from starlette.responses import Response

from midrun.core.values import Phase
from midrun.server.checkpoints import EXPIRY_MAX
from midrun.server.events import PAGE
from midrun.server.mounting import root_of
from midrun.server.problem_details import MEDIA
from midrun.server.request_context import KEY, Visit
from midrun.server.routes import ENDPOINTS, Endpoint
from midrun.server.schemas import REASON_MAX, Body, encoded, schemas

Schema: TypeAlias = Mapping[str, object]

_TEXT: Final[Schema] = {"type": "string"}
_ID: Final[Schema] = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}
_REASON: Final[Schema] = {"type": "string", "maxLength": REASON_MAX}
_SEQ: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 2**53 - 1}
_PHASES: Final[Schema] = {
    "type": "string",
    "description": "phases, separated by commas",
    "pattern": "^(?:{0})?(?:,(?:{0}))*$".format("|".join([*Phase, "terminal"])),
}


def _up_to(most: int) -> Schema:
    return {"type": "integer", "minimum": 1, "maximum": most}


_PAGED: Final[Mapping[str, Schema]] = {"limit": _up_to(200), "cursor": _TEXT}
_QUERIES: Final[Mapping[str, Mapping[str, Schema]]] = {
    "/v1/runs": {
        "phase": _PHASES,
        "state": _PHASES,
        "agent": _TEXT,
        "label": _TEXT,
        "thread": _TEXT,
        "parent": _TEXT,
        "attention": {"type": "boolean", "description": "true: only runs that need a person"},
        **_PAGED,
    },
    "/v1/runs/{run}": {"until": _PHASES},
    "/v1/runs/{run}/events": {"after": _SEQ, "types": _TEXT, "limit": _up_to(PAGE)},
    "/v1/runs/{run}/checkpoint": {"expires_s": _up_to(EXPIRY_MAX)},
    "/v1/runs/{run}/commands/{command}": {"reason": _REASON},
    "/v1/runs/{run}/frames/{frame}": {"reason": _REASON},
    "/v1/events": {"phase": _PHASES, "state": _PHASES, "agent": _TEXT, "label": _TEXT},
    "/v1/asks": _PAGED,
    "/v1/approvals": _PAGED,
}
"""Query parameters by path. A reason is for a DELETE, which has no body."""

_HEADERS: Final[Mapping[str, Mapping[str, Schema]]] = {
    "/v1/runs/{run}": {
        "Prefer": {
            "type": "string",
            "description": "wait=N: wait N seconds for a phase of `until`, or for a change",
        },
        "If-None-Match": {"type": "string", "description": "the ETag of the last view"},
    },
    "/v1/runs/{run}/events": {"Last-Event-ID": {"type": "string", "pattern": "^[0-9]{1,16}$"}},
}
"""Request headers of a GET, by path."""


async def described(context: Visit) -> Response:
    """Return the OpenAPI document."""
    return Response(openapi(root_of(context.request.scope)), media_type="application/json")


@lru_cache(maxsize=8)
def openapi(root: str = "") -> bytes:
    """Return the document as JSON, for an app that is mounted at `root`."""
    native = [e for e in ENDPOINTS if e.path.startswith("/v1/")]
    # Sorted by name: sets have no order, and the document must be the same in every process.
    body_types: set[type[Body]] = {e.takes for e in native if e.takes is not None}
    response_types: set[type[Struct]] = {e.shows for e in native if e.shows is not None}
    paths: dict[str, dict[str, object]] = {}
    for endpoint in native:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    components = schemas(_sorted(body_types), _sorted(response_types))
    components["Problem"] = {
        "type": "object",
        "required": ["type", "title", "status"],
        "properties": {
            "type": {"type": "string", "pattern": "^urn:midrun:problem:"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "run": {"$ref": "#/components/schemas/ShownRun"},
        },
    }
    description = {
        "openapi": "3.1.0",
        "info": {"title": "midrun", "version": version("midrun")},
        "servers": [{"url": root or "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
    return encoded(description)


def _sorted(kinds: "Iterable[type[Struct]]") -> list[type[Struct]]:
    return sorted(kinds, key=lambda kind: kind.__name__)


def _operation(endpoint: Endpoint) -> dict[str, object]:
    summary = (endpoint.handler.__doc__ or "").partition("\n")[0]
    operation: dict[str, object] = {
        "operationId": f"{endpoint.method.lower()} {endpoint.path}",
        "summary": summary,
        "description": f"For {endpoint.role}s and above.",
        "parameters": _parameters(endpoint),
        "responses": _responses(endpoint),
    }
    if endpoint.takes is not None:
        schema = {"$ref": f"#/components/schemas/{endpoint.takes.__name__}"}
        content = {"application/json": {"schema": schema}}
        # A body whose fields all have defaults may be left out.
        needed = any(each.required for each in fields(endpoint.takes))
        operation["requestBody"] = {"required": needed, "content": content}
    return operation


def _parameters(endpoint: Endpoint) -> list[object]:
    found = [_parameter("path", name, _ID) for name in re.findall(r"\{(\w+)\}", endpoint.path)]
    for name, schema in _QUERIES.get(endpoint.path, {}).items():
        if endpoint.method == ("DELETE" if name == "reason" else "GET"):
            found.append(_parameter("query", name, schema))
    if endpoint.method == "GET":
        headers = _HEADERS.get(endpoint.path, {})
        found += [_parameter("header", name, schema) for name, schema in headers.items()]
    if endpoint.keyed:
        key = {"type": "string", "pattern": f"^{KEY}$"}
        found.append(_parameter("header", "Idempotency-Key", key))
    if endpoint.matches:
        needed = endpoint.method == "PATCH"  # without it, a PATCH is refused with 428
        found.append(_parameter("header", "If-Match", _TEXT, required=needed))
    return found


def _parameter(where: str, name: str, schema: Schema, *, required: bool = False) -> object:
    needed = required or where == "path"
    return {"name": name, "in": where, "required": needed, "schema": schema}


def _responses(endpoint: Endpoint) -> dict[str, object]:
    content: dict[str, object] = {media: {} for media in endpoint.media}
    if endpoint.shows is not None:
        schema = {"$ref": f"#/components/schemas/{endpoint.shows.__name__}"}
        content["application/json"] = {"schema": schema}
    problem = {"content": {MEDIA: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
    responses: dict[str, object] = {
        str(endpoint.status): {"description": "done, or accepted", "content": content},
        "default": {"description": "refused; nothing was changed", **problem},
    }
    if endpoint.status == 202:  # noqa: PLR2004 - the status "Accepted"
        responses["200"] = {
            "description": "already so; nothing was changed",
            "content": content,
        }
    if endpoint.path == "/v1/runs/{run}" and endpoint.method == "GET":
        responses["304"] = {"description": "the view has not changed"}
    if endpoint.path == "/v1/runs/{run}/events":
        responses["204"] = {"description": "the run has ended; the client has every entry"}
    return responses
