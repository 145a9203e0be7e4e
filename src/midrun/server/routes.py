"""The table of all endpoints: path, handler, role, body and response type.

`App` matches requests against it, `openapi.py` describes it, and the tests walk it. A new
endpoint is one row here and one handler.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct
from starlette.responses import Response
from starlette.routing import Route

from midrun.core.values import Role
from midrun.runs.values import Receipt, Verdict
from midrun.server import (
    admin,
    asks,
    checkpoints,
    controls,
    feed_routes,
    run_page,
    runs,
    schemas,
)
from midrun.server.a2a import routes as a2a
from midrun.server.agui import routes as agui
from midrun.server.commands import Command
from midrun.server.request_context import Visit
from midrun.server.run_views import ShownRun
from midrun.server.schemas import Body
from midrun.server.sse import SSE
from midrun.text.report import Report

Handler = Callable[[Visit], Awaitable[Response]]

RANKS: Final[dict[Role, int]] = {"viewer": 0, "user": 1, "operator": 2}
"""The order of roles: each may do everything that the one before may. No caller has the role
`system`."""


class Endpoint(Struct, frozen=True, kw_only=True):
    """One method of one path. The handler's first docstring line is its OpenAPI summary."""

    method: str
    path: str
    handler: Handler
    role: Role = "viewer"
    takes: type[Body] | None = None
    shows: type[Struct] | None = None
    status: int = 200
    media: tuple[str, ...] = ()  # other media types that `Accept` may choose
    matches: bool = False  # uses If-Match
    keyed: bool = True  # uses Idempotency-Key
    large: bool = False  # the body may be as long as a checkpoint
    heavy: bool = False  # reads a whole journal
    audit: str = ""  # the action in the audit log; "" if it is not audited

    def route(self) -> Route:
        """Return the Starlette route that matches this endpoint."""
        return Route(self.path, self.handler, methods=[self.method])


def _get(
    path: str,
    handler: Handler,
    shows: type[Struct] | None,
    *media: str,
    heavy: bool = False,
    audit: str = "",
) -> Endpoint:
    return Endpoint(
        method="GET",
        path=path,
        handler=handler,
        shows=shows,
        media=media,
        keyed=False,
        heavy=heavy,
        audit=audit,
    )


class Told(Struct, frozen=True, kw_only=True):
    """The command that a control became, and the run as it is now."""

    command: "Noted"
    run: ShownRun


class Noted(Struct, frozen=True, kw_only=True):
    """The id of a command and its receipt."""

    id: str
    receipt: Receipt


def _control(
    name: str,
    handler: Handler,
    takes: type[Body],
    *,
    role: Role = "user",
    matches: bool = True,
) -> Endpoint:
    return Endpoint(
        method="POST",
        path=f"/v1/runs/{{run}}/{name}",
        handler=handler,
        role=role,
        takes=takes,
        shows=Told,
        status=202,
        matches=matches,
    )


def _bridge(path: str, handler: Handler) -> Endpoint:
    """Return an endpoint of another protocol, which the OpenAPI document leaves out."""
    return Endpoint(method="POST", path=path, handler=handler, role="user", keyed=False)


_RUN: Final = "/v1/runs/{run}"

# The order matters only where two paths match the same request: the first row wins.
ENDPOINTS: Final = (
    # ── runs ──
    Endpoint(
        method="POST",
        path="/v1/runs",
        handler=runs.start,
        role="user",
        takes=schemas.StartBody,
        shows=ShownRun,
        status=201,
    ),
    _get("/v1/runs", runs.listed, runs.RunPage),
    _get(_RUN, runs.look, ShownRun),
    Endpoint(
        method="PATCH",
        path=_RUN,
        handler=runs.change,
        role="operator",
        takes=schemas.ChangeBody,
        shows=Told,
        status=202,
        matches=True,
    ),
    # ── controls; pause and cancel ignore If-Match, because a stop is never stale ──
    _control("pause", controls.pause, schemas.PauseBody, matches=False),
    _control("resume", controls.resume, schemas.ResumeBody),
    _control("redirect", controls.redirect, schemas.RedirectBody),
    _control("messages", controls.say, schemas.MessageBody),
    _control("cancel", controls.cancel, schemas.CancelBody, matches=False),
    _control("force_pause", controls.force_pause, schemas.Empty),
    _control("retry_undo", controls.retry_undo, schemas.Empty, role="operator"),
    _control("accept_residue", controls.accept_residue, schemas.Empty, role="operator"),
    _control("take_over", controls.take_over, schemas.Empty),
    _control("write", controls.write, schemas.WriteBody),
    _control("use_tool", controls.use_tool, schemas.UseToolBody),
    _control("hand_back", controls.hand_back, schemas.HandBackBody),
    _control("frames/{frame}/resume", controls.resume_frame, schemas.Empty),
    # ── parts of a run ──
    _get(f"{_RUN}/seen", run_page.seen, run_page.SeenRun),
    _get(f"{_RUN}/turns", run_page.looked, run_page.Turns),
    _get(f"{_RUN}/commands", runs.asked, runs.Commands, heavy=True),
    _get(f"{_RUN}/commands/{{command}}", runs.asked_one, Command, heavy=True),
    Endpoint(
        method="DELETE",
        path=f"{_RUN}/commands/{{command}}",
        handler=controls.withdraw,
        role="user",
        shows=Told,
        status=202,
        matches=True,
    ),
    _get(f"{_RUN}/frames", runs.frames, runs.Frames),
    Endpoint(
        method="DELETE",
        path=f"{_RUN}/frames/{{frame}}",
        handler=controls.drop_frame,
        role="user",
        shows=Told,
        status=202,
        matches=True,
    ),
    _get(f"{_RUN}/effects", runs.effects, runs.Effects),
    _get(f"{_RUN}/report", runs.report, Report, "text/markdown"),
    # ── feeds; NDJSON takes its heavy-read slot in the handler, a stream takes none ──
    _get(f"{_RUN}/events", feed_routes.events, feed_routes.EventPage, SSE, feed_routes.NDJSON),
    _get("/v1/events", feed_routes.changes, None, SSE),
    # ── forks, checkpoints, journals ──
    _get(f"{_RUN}/boundaries", checkpoints.boundaries, checkpoints.Boundaries, heavy=True),
    Endpoint(
        method="POST",
        path=f"{_RUN}/fork",
        handler=checkpoints.fork,
        role="user",
        heavy=True,
        takes=schemas.ForkBody,
        shows=ShownRun,
        status=201,
    ),
    Endpoint(
        method="POST",
        path="/v1/resume",
        handler=checkpoints.bring,
        role="operator",
        takes=schemas.CheckpointBody,
        shows=ShownRun,
        status=201,
        large=True,
        audit="import",
    ),
    _get(f"{_RUN}/verify", runs.verify, Verdict, heavy=True),
    _get(
        f"{_RUN}/checkpoint",
        checkpoints.checkpoint,
        None,
        "application/json",
        heavy=True,
        audit="export",
    ),
    _get(
        f"{_RUN}/export",
        checkpoints.export,
        None,
        feed_routes.NDJSON,
        heavy=True,
        audit="export",
    ),
    # ── asks; /v1/approvals is the same, but lists approvals only ──
    _get("/v1/asks", asks.waiting, asks.AskPage),
    _get("/v1/approvals", asks.approvals, asks.AskPage),
    *(
        Endpoint(
            method="POST",
            path=f"/v1/{name}/{{ask}}",
            handler=asks.decide,
            role="user",
            takes=schemas.DecisionBody,
            shows=Told,
            status=202,
            matches=True,
        )
        for name in ("asks", "approvals")
    ),
    # ── operators, agents, sessions ──
    Endpoint(
        method="POST",
        path="/v1/halt",
        handler=admin.halt,
        role="operator",
        takes=schemas.HaltBody,
        shows=admin.Halts,
        status=202,
        keyed=False,
        audit="halt",
    ),
    Endpoint(
        method="POST",
        path="/v1/lift",
        handler=admin.lift,
        role="operator",
        takes=schemas.LiftBody,
        shows=admin.Lifted,
        keyed=False,
        audit="lift",
    ),
    _get("/v1/halts", admin.halts, admin.Halts),
    _get("/v1/agents", runs.agents, runs.Agents),
    _get("/v1/session", admin.who, admin.Signed),
    Endpoint(
        method="POST",
        path="/v1/session",
        handler=admin.sign_in,
        takes=schemas.Empty,
        shows=admin.SignedIn,
        keyed=False,
        audit="sign_in",
    ),
    Endpoint(
        method="DELETE",
        path="/v1/session",
        handler=admin.sign_out,
        status=204,
        keyed=False,
        audit="sign_out",
    ),
    # ── other protocols ──
    _bridge("/agui/{agent}", agui.run_agent),
    _get("/copilotkit/info", agui.info, None),
    _bridge("/copilotkit/agent/{agent}/run", agui.run_agent),
    _bridge("/copilotkit/agent/{agent}/connect", agui.connect),
    _bridge("/copilotkit/agent/{agent}/stop/{thread}", agui.stop),
    _bridge("/a2a/{agent}", a2a.rpc),
    _get("/a2a/{agent}/{rest:path}", a2a.rest, None),
    _bridge("/a2a/{agent}/{rest:path}", a2a.rest),
)
