"""Calls that wait until a run rests: `midrun_start` and `midrun_wait`.

While such a call waits, each entry of the journal is reported as progress. When the run waits
for a person, and the client can ask one, the call asks:

- Since the protocol of 2026-07-28 the call ends with the forms (`InputRequiredResult`), and the
  client makes it again with the responses. `request_state` then names the run, so that the
  repeated `midrun_start` starts no second one. It comes back from the client and is not
  trusted: it can only name a run that the caller may reach anyway.
- In older protocols the form is sent during the call, if the connection allows it (stdio).

Without either, the result lists the asks, and the model decides them with the other tools.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, Final, TypeAlias, cast

import anyio
from mcp.server.context import ServerRequestContext
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequests,
    InputRequiredResult,
    TextContent,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from midrun.core.ids import parse_ask_number
from midrun.core.values import RESTING_PHASES, Json, Phase
from midrun.errors import ControlRefused
from midrun.events import ArgumentsDelta, EntryEvent, TextDelta, ThinkingDelta
from midrun.mcp_server.ask_forms import find_decidable_asks, make_form, send_response
from midrun.mcp_server.run_tools import (
    WAIT_TOOL,
    RunAccess,
    RunArguments,
    StartArguments,
    WaitArguments,
    describe_run,
    describe_status,
)
from midrun.runs.protocols import AnyRun
from midrun.runs.values import RunView

WAIT_DEFAULT_S: Final = 50.0
"""Seconds that `midrun_wait` waits by default: many clients give up a call after a minute."""

RequestContext: TypeAlias = ServerRequestContext[Any, Any]  # type: ignore[explicit-any]  # of the SDK


WaitingArguments: TypeAlias = StartArguments | WaitArguments

OpenAccess: TypeAlias = Callable[[RequestContext], AbstractAsyncContextManager[RunAccess]]
"""Opens the runs that the caller of a request may reach."""


def make_result(fields: dict[str, Json], *, is_error: bool = False) -> CallToolResult:
    """Return fields as the result of a tool: as data, and as JSON text for older clients."""
    text = json.dumps(fields, ensure_ascii=False)
    return CallToolResult(
        content=[TextContent(type="text", text=text)],
        structured_content=fields,
        is_error=is_error,
    )


async def find_or_start_run(
    access: RunAccess, params: CallToolRequestParams, given: WaitingArguments
) -> AnyRun:
    """Return the run of a call, with the responses of the call applied to it.

    Raises:
        MidrunError: The run cannot be started or found, or a response was refused.
    """
    # The client calls the same tool again with the answers of a person. The state names the
    # run, so the call continues with it, and does not start a second one.
    if params.request_state:
        name = WAIT_TOOL.read_arguments({"run": params.request_state})
        assert isinstance(name, RunArguments)
        run = await access.midrun.get(name.run)
        await apply_responses(access, run, params.input_responses or {}, must_be_open=True)
        return run
    if isinstance(given, StartArguments):
        return await access.midrun.start(
            given.agent,
            given.task,
            thread=given.thread or None,
            labels=given.labels,
            request_id=given.request_id or None,
            actor=access.actor,
        )
    return await access.midrun.get(given.run)


async def apply_responses(
    access: RunAccess, run: AnyRun, responses: Mapping[str, object], *, must_be_open: bool
) -> None:
    """Send the decisions of a person to the run, each to its ask.

    Raises:
        ControlRefused: A decision was refused; or the ask is closed, and `must_be_open`.
    """
    view = await run.view()
    asks = {str(ask.id): ask for ask in view.asks}
    for ask_id, response in responses.items():
        if not isinstance(response, ElicitResult):
            continue
        if ask_id in asks:
            await send_response(access, run, asks[ask_id], response)
        elif must_be_open and response.action != "cancel":
            # The client sends the id, and a request to the server has it in its path.
            if not parse_ask_number(ask_id):
                raise ControlRefused(run.id, "answer", "no_such_ask", view.phase, view.allowed)
            # The ask is closed, so the core refuses any decision, with the name of the person
            # who was first.
            await run.answer(None, ask=ask_id, actor=access.actor)


async def wait_for_run(
    access: RunAccess,
    context: RequestContext,
    run: AnyRun,
    params: CallToolRequestParams,
    given: WaitingArguments,
) -> CallToolResult | InputRequiredResult:
    """Wait until the run rests, and return its status or the forms for its open asks."""
    wait_s = given.wait_s
    if wait_s is None:
        wait_s = WAIT_DEFAULT_S if isinstance(given, WaitArguments) else 0.0
    if _has_dismissed_all(params):
        return make_result(describe_run(await run.view()))  # not asked again at once
    # A form may be answered, and the run may wait for the next decision a moment later. In the
    # older protocols both happen within one call, hence the loop.
    while True:
        view = await _wait_until_rest(context, run, wait_s)
        if not wait_s or view.phase is not Phase.WAITING:
            return make_result(describe_run(view))
        requests = await list_forms(access, context, run, view)
        if not requests:
            return make_result(describe_run(view))
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return InputRequiredResult(input_requests=requests, request_state=run.id)
        if not await _ask_during_call(access, context, run, requests):
            return make_result(describe_run(await run.view()))


def _has_dismissed_all(params: CallToolRequestParams) -> bool:
    """Tell whether the person closed every form of the call without a decision."""
    responses = (params.input_responses or {}).values()
    return bool(responses) and all(
        isinstance(each, ElicitResult) and each.action == "cancel" for each in responses
    )


async def _wait_until_rest(context: RequestContext, run: AnyRun, wait_s: float) -> RunView:
    """Wait until the run rests or the time is up; report each entry as progress.

    The first report names the run, so that a client can pause it while the call waits.
    """
    view, reported = await run.view(), 1
    if not wait_s or view.phase in RESTING_PHASES:
        return view
    first = f"{run.id}: {describe_status(view)}"
    await context.session.report_progress(reported, message=first)
    with anyio.move_on_after(wait_s):
        async with aclosing(run.events(view.seq)) as events:
            async for event in events:
                if isinstance(event, TextDelta | ThinkingDelta | ArgumentsDelta):
                    continue  # a notification for every word would be too many
                reported += 1
                await context.session.report_progress(reported, message=event.sentence)
                if isinstance(event, EntryEvent) and event.phase in RESTING_PHASES:
                    break
    return await run.view()


async def list_forms(
    access: RunAccess, context: RequestContext, run: AnyRun, view: RunView
) -> InputRequests:
    """Return a form for each ask that the caller may decide; none if it cannot be shown."""
    # A client without forms gets the status with the open asks, and can decide with the other
    # tools.
    if not _can_show_forms(context):
        return {}
    asks = await find_decidable_asks(access, run, view.asks)
    return {str(ask.id): make_form(ask) for ask in asks}


def _can_show_forms(context: RequestContext) -> bool:
    """Tell whether the client can show a form; one without sub-capabilities can."""
    declared = context.session.client_capabilities
    elicitation = declared.elicitation if declared is not None else None
    if elicitation is None:
        return False
    is_modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
    has_channel = is_modern or context.session.can_send_request
    return has_channel and (elicitation.form is not None or elicitation.url is None)


async def _ask_during_call(
    access: RunAccess, context: RequestContext, run: AnyRun, requests: InputRequests
) -> bool:
    """Show each form on the connection; return whether a person decided anything."""
    is_decided = False
    for ask_id, request in requests.items():
        params = cast("ElicitRequest", request).params
        assert isinstance(params, ElicitRequestFormParams)
        response = await context.session.elicit_form(
            params.message, params.requested_schema, context.request_id
        )
        await apply_responses(access, run, {ask_id: response}, must_be_open=True)
        is_decided = is_decided or response.action != "cancel"
    return is_decided
