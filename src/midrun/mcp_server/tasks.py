"""Runs as tasks: the MCP extension `io.modelcontextprotocol/tasks` of 2026-07-28.

A call that would wait for a run returns a task to a client that declares the extension. The id
of the task is the id of the run, so a task needs no storage of its own, outlives every
connection, and takes all other tools: `midrun_pause` with the id of the task pauses it.

The extension has no word for *paused*: such a task is *working*, and its message says that it
is paused. A failed run is a completed task with an error, because *failed* is reserved for
errors of the protocol. `midrun_resume` continues it, and `midrun_wait` gives a new task.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CancelTaskRequestParams,
    ClientCapabilities,
    GetTaskRequestParams,
    InputRequests,
    InputResponses,
    RequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from midrun.core.ids import Micros, micros_to_datetime
from midrun.core.values import TERMINAL_PHASES, Phase
from midrun.errors import ControlRefused, MidrunError
from midrun.mcp_server.run_tools import (
    WAIT_TOOL,
    RunAccess,
    RunArguments,
    describe_run,
    describe_status,
)
from midrun.mcp_server.run_waits import (
    OpenAccess,
    RequestContext,
    apply_responses,
    list_forms,
    make_result,
)
from midrun.runs.protocols import AnyRun
from midrun.runs.values import RunView

TASKS_EXTENSION: Final = "io.modelcontextprotocol/tasks"

POLL_INTERVAL_MS: Final = 1000
"""Milliseconds between two polls that clients are asked to keep."""

NEEDED_CAPABILITY: Final = ClientCapabilities(extensions={TASKS_EXTENSION: {}})

WireFields: TypeAlias = dict[str, Any]  # type: ignore[explicit-any]  # JSON of the SDK's models


class UpdateTaskParams(RequestParams):  # type: ignore[explicit-any]  # in the base
    """The parameters of `tasks/update`."""

    task_id: str
    input_responses: InputResponses


def can_receive_task(context: RequestContext) -> bool:
    """Tell whether the client of this request understands tasks."""
    is_modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
    return is_modern and context.session.check_client_capability(NEEDED_CAPABILITY)


async def make_task_handle(run: AnyRun) -> WireFields:
    """Return the result of a call that became a task."""
    return {"resultType": "task", **_make_task_fields(await run.view(), {})}


def _make_task_fields(view: RunView, forms: InputRequests) -> WireFields:
    fields: WireFields = {
        "taskId": view.run_id,
        "status": "working",
        "statusMessage": describe_status(view),
        "createdAt": _format_time(view.started_at),
        "lastUpdatedAt": _format_time(view.changed_at),
        "ttlMs": None,
        "pollIntervalMs": POLL_INTERVAL_MS,
    }
    match view.phase:
        # For the protocol a failed run is a completed task whose result is an error: *failed*
        # means that the request itself could not be served.
        case Phase.COMPLETED | Phase.FAILED:
            result = make_result(describe_run(view), is_error=view.phase is Phase.FAILED)
            fields["status"] = "completed"
            fields["result"] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        case Phase.CANCELLED:
            fields["status"] = "cancelled"
        case Phase.WAITING if forms:
            fields["status"] = "input_required"
            fields["inputRequests"] = {
                key: form.model_dump(by_alias=True, mode="json", exclude_none=True)
                for key, form in forms.items()
            }
        case _:
            pass
    return fields


def _format_time(at: Micros) -> str:
    return micros_to_datetime(at).isoformat()


class TaskMethods:
    """The methods of the extension, for the server that they are added to."""

    def __init__(self, open_access: OpenAccess) -> None:
        self._open_access = open_access

    def add_to(self, server: Server[Any]) -> None:  # type: ignore[explicit-any]  # of the SDK
        """Declare the extension, and register its methods."""
        server.extensions[TASKS_EXTENSION] = {}
        server.add_request_handler("tasks/get", GetTaskRequestParams, self._get_task)
        server.add_request_handler("tasks/update", UpdateTaskParams, self._update_task)
        server.add_request_handler("tasks/cancel", CancelTaskRequestParams, self._cancel_task)

    async def _get_task(
        self, context: RequestContext, params: GetTaskRequestParams
    ) -> WireFields:
        async with self._open_task(context, params.task_id) as (access, run):
            view = await run.view()
            forms: InputRequests = {}
            if view.phase is Phase.WAITING:
                forms = await list_forms(access, context, run, view)
            return _make_task_fields(view, forms)

    async def _update_task(
        self, context: RequestContext, params: UpdateTaskParams
    ) -> WireFields:
        async with self._open_task(context, params.task_id) as (access, run):
            # The extension asks servers to ignore responses that come too late.
            await apply_responses(access, run, params.input_responses, must_be_open=False)
            return {}

    async def _cancel_task(
        self, context: RequestContext, params: CancelTaskRequestParams
    ) -> WireFields:
        async with self._open_task(context, params.task_id) as (access, run):
            try:
                await run.cancel(actor=access.actor)
            except ControlRefused:
                # A task that has ended needs no cancel, and the extension has no error for it.
                if (await run.view()).phase not in TERMINAL_PHASES:
                    raise
            return {}

    @asynccontextmanager
    async def _open_task(
        self, context: RequestContext, task_id: str
    ) -> AsyncIterator[tuple[RunAccess, AnyRun]]:
        """Give the run of a task; turn an error of Midrun into one of the protocol.

        Raises:
            MCPError: The client does not declare the extension, there is no such task, or the
                run refuses the request.
        """
        if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", context.method)
        if not can_receive_task(context):
            problem = f"Cannot use {context.method}: declare the extension {TASKS_EXTENSION}."
            needed = NEEDED_CAPABILITY.model_dump(by_alias=True, exclude_none=True)
            data = {"requiredCapabilities": needed}
            raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, problem, data)
        try:
            async with self._open_access(context) as access:
                given = WAIT_TOOL.read_arguments({"run": task_id})
                assert isinstance(given, RunArguments)
                yield access, await access.midrun.get(given.run)
        except MidrunError as error:
            raise MCPError(INVALID_PARAMS, str(error)) from error
