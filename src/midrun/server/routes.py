"""The table of all endpoints: path, handler, role, body and response type.

`App` matches requests against it, `openapi.py` describes it, and the tests walk it. A new
endpoint is one row here and one handler. The rows of controls are made from `CONTROL_SPECS`.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from starlette.responses import Response
from starlette.routing import Route

from midrun.core.values import Role
from midrun.runs.control_bodies import Body, Empty
from midrun.runs.control_specs import (
    APPROVE,
    CONTROL_SPECS,
    DECISION_ROUTE,
    ControlSpec,
    IfMatch,
)
from midrun.runs.values import DeletableRuns, Erasure, RunView, Verdict
from midrun.runs.wire import (
    ArtifactPage,
    AskPage,
    AuditPage,
    ControlReply,
    DeletedCount,
    EndedSessions,
    EventPage,
    RunOverlay,
    RunPage,
    SessionActor,
    SessionList,
    TurnPage,
)
from midrun.server import (
    admin,
    ai_sdk,
    checkpoints,
    controls,
    feed_routes,
    files,
    runs,
    schemas,
)
from midrun.server.a2a import routes as a2a
from midrun.server.agui import routes as agui
from midrun.server.commands import Command
from midrun.server.feed_routes import SSE_MEDIA
from midrun.server.mcp_routes import handle_mcp
from midrun.server.openai import chat_completions, responses
from midrun.server.request_context import RequestContext
from midrun.text.report import Report

Handler = Callable[[RequestContext], Awaitable[Response]]

ROLE_RANKS: Final[dict[Role, int]] = {"viewer": 0, "user": 1, "operator": 2}
"""The order of roles: each may do everything that the one before may. No caller has the role
`system`."""


class Endpoint(Struct, frozen=True, kw_only=True):
    """One method of one path.

    `summary` is its line in the OpenAPI document; by default the handler's docstring has it.
    """

    method: str
    path: str
    handler: Handler
    summary: str = ""
    role: Role = "viewer"
    body_type: type[Body] | None = None
    response_type: type[Struct] | None = None
    status: int = 200
    other_media: tuple[str, ...] = ()  # other media types that `Accept` may choose
    if_match: IfMatch = "ignored"
    uses_idempotency_key: bool = True  # uses Idempotency-Key
    has_large_body: bool = False  # the body may be as long as a checkpoint
    takes_files: bool = False  # the body may be as long as an upload
    reads_whole_journal: bool = False  # reads a whole journal
    audit_action: str = ""  # the action in the audit log; "" if it is not audited

    def to_route(self) -> Route:
        """Return the Starlette route that matches this endpoint."""
        return Route(self.path, self.handler, methods=[self.method])


def _get_endpoint(
    path: str,
    handler: Handler,
    response_type: type[Struct] | None,
    *media: str,
    reads_whole_journal: bool = False,
    audit_action: str = "",
) -> Endpoint:
    return Endpoint(
        method="GET",
        path=path,
        handler=handler,
        response_type=response_type,
        other_media=media,
        uses_idempotency_key=False,
        reads_whole_journal=reads_whole_journal,
        audit_action=audit_action,
    )


def _make_control_endpoint(spec: ControlSpec) -> Endpoint:
    route = spec.route
    return Endpoint(
        method=route.method,
        path=route.path,
        handler=partial(controls.send_control, spec),
        summary=route.summary,
        role=route.role,
        body_type=None if route.method == "DELETE" else spec.body,
        response_type=ControlReply,
        status=202,
        if_match=route.if_match,
        takes_files=route.takes_files,
    )


def _make_protocol_endpoint(
    path: str, handler: Handler, *, takes_files: bool = False
) -> Endpoint:
    """Return an endpoint of another protocol, which the OpenAPI document leaves out."""
    return Endpoint(
        method="POST",
        path=path,
        handler=handler,
        role="user",
        uses_idempotency_key=False,
        takes_files=takes_files,
    )


_RUN_PATH: Final = "/v1/runs/{run}"

OPENAI_PATH: Final = "/openai/v1"
"""The base of OpenAI's protocols, whose errors have a form of their own."""

_RESPONSE_PATH: Final = f"{OPENAI_PATH}/responses/{{response}}"

# The order matters only where two paths match the same request: the first row wins.
ENDPOINTS: Final = (
    # ── runs ──
    Endpoint(
        method="POST",
        path="/v1/runs",
        handler=runs.start_run,
        role="user",
        body_type=schemas.StartBody,
        response_type=RunView,
        status=201,
        takes_files=True,
    ),
    _get_endpoint("/v1/runs", runs.list_runs, RunPage),
    _get_endpoint(_RUN_PATH, runs.show_run, RunView),
    # ── controls; those that decide asks are below ──
    *(_make_control_endpoint(spec) for spec in CONTROL_SPECS if spec.route.part != "ask"),
    # ── parts of a run ──
    _get_endpoint(f"{_RUN_PATH}/overlay", runs.show_overlay, RunOverlay),
    _get_endpoint(f"{_RUN_PATH}/turns", runs.list_turns, TurnPage),
    _get_endpoint(
        f"{_RUN_PATH}/commands", runs.list_commands, runs.Commands, reads_whole_journal=True
    ),
    _get_endpoint(
        f"{_RUN_PATH}/commands/{{command}}",
        runs.show_command,
        Command,
        reads_whole_journal=True,
    ),
    _get_endpoint(f"{_RUN_PATH}/frames", runs.list_frames, runs.Frames),
    _get_endpoint(f"{_RUN_PATH}/effects", runs.list_effects, runs.Effects),
    _get_endpoint(f"{_RUN_PATH}/artifacts", files.list_run_artifacts, ArtifactPage),
    _get_endpoint(f"{_RUN_PATH}/files/{{hash}}", files.serve_file, None, "*/*"),
    _get_endpoint(f"{_RUN_PATH}/report", runs.show_report, Report, "text/markdown"),
    # ── feeds; NDJSON takes its heavy-read slot in the handler, a stream takes none ──
    _get_endpoint(
        f"{_RUN_PATH}/events",
        feed_routes.read_events,
        EventPage,
        SSE_MEDIA,
        feed_routes.NDJSON_MEDIA,
    ),
    _get_endpoint("/v1/events", feed_routes.follow_runs, None, SSE_MEDIA),
    # ── forks, checkpoints, journals ──
    _get_endpoint(
        f"{_RUN_PATH}/boundaries",
        checkpoints.list_boundaries,
        checkpoints.Boundaries,
        reads_whole_journal=True,
    ),
    Endpoint(
        method="POST",
        path=f"{_RUN_PATH}/fork",
        handler=checkpoints.fork_run,
        role="user",
        reads_whole_journal=True,
        body_type=schemas.ForkBody,
        response_type=RunView,
        status=201,
        takes_files=True,
    ),
    Endpoint(
        method="POST",
        path="/v1/resume",
        handler=checkpoints.import_checkpoint,
        role="operator",
        body_type=schemas.CheckpointBody,
        response_type=RunView,
        status=201,
        has_large_body=True,
        audit_action="import",
    ),
    _get_endpoint(f"{_RUN_PATH}/verify", runs.verify_run, Verdict, reads_whole_journal=True),
    _get_endpoint(
        f"{_RUN_PATH}/checkpoint",
        checkpoints.export_checkpoint,
        None,
        "application/json",
        reads_whole_journal=True,
        audit_action="export",
    ),
    _get_endpoint(
        f"{_RUN_PATH}/export",
        checkpoints.export_journal,
        None,
        feed_routes.NDJSON_MEDIA,
        reads_whole_journal=True,
        audit_action="export",
    ),
    # ── asks; /v1/approvals is the same, but lists approvals only ──
    _get_endpoint("/v1/asks", controls.list_asks, AskPage),
    _get_endpoint("/v1/approvals", controls.list_approvals, AskPage),
    *(
        replace(_make_control_endpoint(APPROVE), path=path, handler=controls.decide_ask)
        for path in (DECISION_ROUTE.path, "/v1/approvals/{ask}")
    ),
    # ── operators, agents, sessions ──
    Endpoint(
        method="POST",
        path="/v1/halt",
        handler=admin.set_halt,
        role="operator",
        body_type=schemas.HaltBody,
        response_type=admin.Halts,
        status=202,
        uses_idempotency_key=False,
        audit_action="halt",
    ),
    Endpoint(
        method="POST",
        path="/v1/lift",
        handler=admin.lift_halt,
        role="operator",
        body_type=schemas.LiftBody,
        response_type=admin.LiftReply,
        uses_idempotency_key=False,
        audit_action="lift",
    ),
    Endpoint(
        method="POST",
        path="/v1/deletions",
        handler=admin.delete_runs,
        role="operator",
        body_type=schemas.DeletionBody,
        response_type=DeletedCount,
        uses_idempotency_key=False,
        audit_action="delete",
    ),
    Endpoint(
        method="POST",
        path="/v1/deletions/count",
        handler=admin.count_deletable,
        role="operator",
        body_type=schemas.DeletionBody,
        response_type=DeletableRuns,
        uses_idempotency_key=False,
    ),
    Endpoint(
        method="DELETE",
        path=_RUN_PATH,
        handler=admin.delete_run,
        role="operator",
        response_type=Erasure,
        uses_idempotency_key=False,
        audit_action="delete",
    ),
    Endpoint(
        method="GET",
        path="/v1/audit",
        handler=admin.list_audit,
        role="operator",
        response_type=AuditPage,
        uses_idempotency_key=False,
        reads_whole_journal=True,
        audit_action="audit",
    ),
    _get_endpoint("/v1/halts", admin.list_halts, admin.Halts),
    Endpoint(
        method="GET",
        path="/metrics",
        handler=admin.show_metrics,
        role="operator",
        other_media=("text/plain",),
        uses_idempotency_key=False,
    ),
    _get_endpoint("/v1/agents", runs.list_agents, runs.Agents),
    _get_endpoint("/v1/session", admin.show_actor, SessionActor),
    _get_endpoint("/v1/quotas", admin.list_quotas, admin.QuotaList),
    Endpoint(
        method="POST",
        path="/v1/session",
        handler=admin.sign_in,
        body_type=Empty,
        response_type=admin.NewSession,
        uses_idempotency_key=False,
        audit_action="sign_in",
    ),
    Endpoint(
        method="DELETE",
        path="/v1/session",
        handler=admin.sign_out,
        status=204,
        uses_idempotency_key=False,
        audit_action="sign_out",
    ),
    Endpoint(
        method="GET",
        path="/v1/sessions",
        handler=admin.list_sessions,
        role="operator",
        response_type=SessionList,
        uses_idempotency_key=False,
    ),
    Endpoint(
        method="POST",
        path="/v1/sessions/end",
        handler=admin.end_sessions,
        role="operator",
        body_type=schemas.EndSessionsBody,
        response_type=EndedSessions,
        uses_idempotency_key=False,
        audit_action="end_sessions",
    ),
    Endpoint(
        method="DELETE",
        path="/v1/sessions/{session}",
        handler=admin.end_session,
        role="operator",
        status=204,
        uses_idempotency_key=False,
        audit_action="end_sessions",
    ),
    # ── other protocols ──
    _make_protocol_endpoint("/agui/{agent}", agui.run_agent, takes_files=True),
    _get_endpoint("/copilotkit/info", agui.show_info, None),
    _make_protocol_endpoint("/copilotkit/agent/{agent}/run", agui.run_agent, takes_files=True),
    _make_protocol_endpoint("/copilotkit/agent/{agent}/connect", agui.connect),
    _make_protocol_endpoint("/copilotkit/agent/{agent}/stop/{thread}", agui.stop_run),
    _make_protocol_endpoint("/ai/{agent}", ai_sdk.send_chat, takes_files=True),
    _get_endpoint("/ai/{agent}/{chat}", ai_sdk.list_messages, None),
    _get_endpoint("/ai/{agent}/{chat}/stream", ai_sdk.resume_stream, None),
    _make_protocol_endpoint("/ai/{agent}/{chat}/stop", ai_sdk.stop_chat),
    _get_endpoint(f"{OPENAI_PATH}/models", chat_completions.list_models, None),
    _get_endpoint(f"{OPENAI_PATH}/models/{{agent}}", chat_completions.show_model, None),
    _make_protocol_endpoint(
        f"{OPENAI_PATH}/chat/completions", chat_completions.create_completion, takes_files=True
    ),
    _make_protocol_endpoint(
        f"{OPENAI_PATH}/responses", responses.create_response, takes_files=True
    ),
    _get_endpoint(_RESPONSE_PATH, responses.show_response, None),
    _make_protocol_endpoint(f"{_RESPONSE_PATH}/cancel", responses.cancel_response),
    _make_protocol_endpoint("/a2a/{agent}", a2a.handle_rpc, takes_files=True),
    _get_endpoint("/a2a/{agent}/{rest:path}", a2a.handle_rest, None),
    replace(_make_protocol_endpoint("/mcp", handle_mcp), role="viewer"),  # tools check the role
    _make_protocol_endpoint("/a2a/{agent}/{rest:path}", a2a.handle_rest, takes_files=True),
    replace(
        _make_protocol_endpoint("/a2a/{agent}/{rest:path}", a2a.handle_rest), method="DELETE"
    ),
)
