"""The OpenAPI 3.1 document, made from the table of endpoints and their types.

Summaries are those of the control specs, or the first lines of the handlers' docstrings.
Descriptions of schemas are the docstrings of the classes. Endpoints of other protocols (AG-UI,
A2A) are left out.
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
from midrun.driver.delta import Delta
from midrun.runs.control_bodies import Body
from midrun.runs.control_specs import CONTROL_SPECS
from midrun.runs.validation import REASON_MAX_CHARS, SEARCH_MAX_CHARS
from midrun.runs.wire import RunUpdate
from midrun.server.checkpoints import EXPIRY_MAX_S
from midrun.server.events import EVENTS_PAGE_MAX
from midrun.server.problem_details import PROBLEM_MEDIA
from midrun.server.request_checks import mount_path
from midrun.server.request_context import IDEMPOTENCY_KEY_PATTERN, RequestContext
from midrun.server.routes import ENDPOINTS, Endpoint
from midrun.server.schemas import encode_wire, make_schemas

Schema: TypeAlias = Mapping[str, object]

_TEXT_SCHEMA: Final[Schema] = {"type": "string"}
_ID_SCHEMA: Final[Schema] = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}
_REASON_SCHEMA: Final[Schema] = {"type": "string", "maxLength": REASON_MAX_CHARS}
_SEQ_SCHEMA: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 2**53 - 1}
_PHASES_SCHEMA: Final[Schema] = {
    "type": "string",
    "description": "phases, separated by commas",
    "pattern": "^(?:{0})?(?:,(?:{0}))*$".format("|".join([*Phase, "terminal"])),
}


def _make_bounded_int_schema(maximum: int) -> Schema:
    return {"type": "integer", "minimum": 1, "maximum": maximum}


_PAGE_PARAMETERS: Final[Mapping[str, Schema]] = {
    "limit": _make_bounded_int_schema(200),
    "cursor": _TEXT_SCHEMA,
}
_QUERY_PARAMETERS: Final[Mapping[str, Mapping[str, Schema]]] = {
    "/v1/runs": {
        "phase": _PHASES_SCHEMA,
        "state": _PHASES_SCHEMA,
        "agent": _TEXT_SCHEMA,
        "label": _TEXT_SCHEMA,
        "thread": _TEXT_SCHEMA,
        "parent": _TEXT_SCHEMA,
        "run": {"type": "string", "description": "only these runs: ids, separated by commas"},
        "attention": {"type": "boolean", "description": "true: only runs that need a person"},
        "search": {
            "type": "string",
            "maxLength": SEARCH_MAX_CHARS,
            "description": "words of the task, the agent, the labels or the output",
        },
        **_PAGE_PARAMETERS,
    },
    "/v1/runs/{run}": {"until": _PHASES_SCHEMA},
    "/v1/runs/{run}/events": {
        "after": _SEQ_SCHEMA,
        "types": _TEXT_SCHEMA,
        "limit": _make_bounded_int_schema(EVENTS_PAGE_MAX),
        "view": {
            "type": "boolean",
            "description": "true: also send the run as the caller sees it, whenever it changes",
        },
    },
    "/v1/runs/{run}/checkpoint": {"expires_s": _make_bounded_int_schema(EXPIRY_MAX_S)},
    **{
        spec.route.path: {"reason": _REASON_SCHEMA}
        for spec in CONTROL_SPECS
        if spec.route.method == "DELETE"
    },
    "/v1/events": {
        "phase": _PHASES_SCHEMA,
        "state": _PHASES_SCHEMA,
        "agent": _TEXT_SCHEMA,
        "label": _TEXT_SCHEMA,
    },
    "/v1/asks": _PAGE_PARAMETERS,
    "/v1/approvals": _PAGE_PARAMETERS,
}
"""Query parameters by path. A reason is for a DELETE, which has no body."""

_HEADER_PARAMETERS: Final[Mapping[str, Mapping[str, Schema]]] = {
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


async def show_openapi(context: RequestContext) -> Response:
    """Return the OpenAPI document."""
    return Response(
        make_openapi(mount_path(context.request.scope)), media_type="application/json"
    )


@lru_cache(maxsize=8)
def make_openapi(root: str = "") -> bytes:
    """Return the document as JSON, for an app that is mounted at `root`."""
    native = [e for e in ENDPOINTS if e.path.startswith("/v1/")]
    # Sorted by name: sets have no order, and the document must be the same in every process.
    body_types: set[type[Body]] = {e.body_type for e in native if e.body_type is not None}
    response_types: set[type[Struct]] = {RunUpdate, Delta}  # of the feed
    response_types |= {e.response_type for e in native if e.response_type is not None}
    paths: dict[str, dict[str, object]] = {}
    for endpoint in native:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _make_operation(endpoint)
    components = make_schemas(_sort_by_name(body_types), _sort_by_name(response_types))
    components["Problem"] = {
        "type": "object",
        "required": ["type", "title", "status"],
        "properties": {
            "type": {"type": "string", "pattern": "^urn:midrun:problem:"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "run": {"$ref": "#/components/schemas/RunView"},
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
    return encode_wire(description)


def _sort_by_name(types: "Iterable[type[Struct]]") -> list[type[Struct]]:
    return sorted(types, key=lambda kind: kind.__name__)


def _make_operation(endpoint: Endpoint) -> dict[str, object]:
    summary = endpoint.summary or (endpoint.handler.__doc__ or "").partition("\n")[0]
    operation: dict[str, object] = {
        "operationId": f"{endpoint.method.lower()} {endpoint.path}",
        "summary": summary,
        "description": f"For {endpoint.role}s and above.",
        "parameters": _make_parameters(endpoint),
        "responses": _make_responses(endpoint),
    }
    if endpoint.body_type is not None:
        schema = {"$ref": f"#/components/schemas/{endpoint.body_type.__name__}"}
        content = {"application/json": {"schema": schema}}
        # A body whose fields all have defaults may be left out.
        needed = any(each.required for each in fields(endpoint.body_type))
        operation["requestBody"] = {"required": needed, "content": content}
    return operation


def _make_parameters(endpoint: Endpoint) -> list[object]:
    found = [
        _make_parameter("path", name, _ID_SCHEMA)
        for name in re.findall(r"\{(\w+)\}", endpoint.path)
    ]
    for name, schema in _QUERY_PARAMETERS.get(endpoint.path, {}).items():
        if endpoint.method == ("DELETE" if name == "reason" else "GET"):
            found.append(_make_parameter("query", name, schema))
    if endpoint.method == "GET":
        headers = _HEADER_PARAMETERS.get(endpoint.path, {})
        found += [_make_parameter("header", name, schema) for name, schema in headers.items()]
    if endpoint.uses_idempotency_key:
        key = {"type": "string", "pattern": f"^{IDEMPOTENCY_KEY_PATTERN}$"}
        found.append(_make_parameter("header", "Idempotency-Key", key))
    if endpoint.if_match != "ignored":
        needed = endpoint.if_match == "required"  # without it, the request is refused with 428
        found.append(_make_parameter("header", "If-Match", _TEXT_SCHEMA, required=needed))
    return found


def _make_parameter(
    location: str, name: str, schema: Schema, *, required: bool = False
) -> object:
    needed = required or location == "path"
    return {"name": name, "in": location, "required": needed, "schema": schema}


def _make_responses(endpoint: Endpoint) -> dict[str, object]:
    content: dict[str, object] = {media: {} for media in endpoint.other_media}
    if endpoint.response_type is not None:
        schema = {"$ref": f"#/components/schemas/{endpoint.response_type.__name__}"}
        content["application/json"] = {"schema": schema}
    problem = {"content": {PROBLEM_MEDIA: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
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
