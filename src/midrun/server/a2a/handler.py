"""The methods of A2A, implemented with views and controls of runs.

The SDK parses a request, calls a method of `TaskHandler`, and encodes the result or the raised
`A2AError`. The `RequestContext` reaches the handler through the ASGI scope. As in AG-UI, the
meaning of a message follows from the phase of the run: resume, answer, decide or redirect.
"""

import math
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Final

import anyio
from a2a.server.context import ServerCallContext
from a2a.server.events.event_queue import Event
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.server.routes import create_jsonrpc_routes, create_rest_routes
from a2a.server.routes.common import DefaultServerCallContextBuilder
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import (
    JSON_RPC_ERROR_CODE_MAP,
    A2AError,
    ContentTypeNotSupportedError,
    InternalError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.json_format import MessageToDict
from msgspec.structs import replace
from starlette.requests import Request
from starlette.routing import Router

from midrun.agents.agent import Agent
from midrun.core.entries import Record
from midrun.core.evolve import fold
from midrun.core.ids import RunId
from midrun.core.state import State
from midrun.core.values import RESTS, TERMINAL, Json, Phase
from midrun.errors import ControlRefused, CursorRefused, MidrunError, Misconfigured, RunNotFound
from midrun.ports.store import Query
from midrun.runs import validation
from midrun.runs.run import Run
from midrun.runs.validation import Asking
from midrun.server.a2a.cards import make_card
from midrun.server.a2a.tasks import (
    STATES,
    artifacts_of,
    context_for,
    context_of,
    rejected,
    status_of,
    task_of,
)
from midrun.server.audit_log import escape_loggers
from midrun.server.problem_details import Problem, problem_of
from midrun.server.request_context import Visit
from midrun.server.run_views import UNREADABLE
from midrun.server.schemas import ID_MAX

VISIT: Final = "midrun.visit"
ENDING_S: Final = 10.0
"""Seconds to wait for a cancel before the task is shown as it is."""

TOTAL_MAX: Final = 10_000
"""The highest count of tasks in a list: counting reads a row for each of them."""

COUNTED_AT_ONCE: Final = 1_000
"""The number of rows per read while tasks are counted."""

YES: Final = frozenset({"yes", "approve", "approved", "ok", "y"})
NO: Final = frozenset({"no", "decline", "declined", "n"})

Sent = pb.Task | pb.Message


class _Rejected(Exception):
    """The agent rejects the task and no run was started; `task` is the reply."""

    def __init__(self, task: pb.Task) -> None:
        super().__init__(task.id)
        self.task = task


class Handler(RequestHandler):
    """The tasks of one agent; each request acts with the rights of its caller."""

    def __init__(self, agent: str) -> None:
        self._agent = agent

    # ── messages ──────────────────────────────────────────────────────────────────────────

    async def on_message_send(
        self, params: pb.SendMessageRequest, context: ServerCallContext
    ) -> Sent:
        """Start a task or send a message to one; return when it rests, or at once."""
        request_context = _visit(context)
        try:
            run, _ = await self._taken(request_context, params.message)
        except _Rejected as rejected:
            return rejected.task
        if not params.configuration.return_immediately:
            # If the server stops meanwhile, the wait ends and the task is returned as it is.
            with anyio.CancelScope() as waiting:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_ends_with, request_context, waiting)
                    await run.until(*RESTS)
                    tasks.cancel_scope.cancel()
        return task_of(await request_context.lobby.views.state(run.id))

    async def on_message_send_stream(
        self, params: pb.SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        """Start a task or send a message to one, and follow it until it rests."""
        request_context = _visit(context)
        try:
            run, state = await self._taken(request_context, params.message)
        except _Rejected as rejected:
            yield rejected.task
            return
        async for event in _followed(request_context, run, state):
            yield event

    async def _taken(self, request_context: Visit, message: pb.Message) -> tuple[Run, State]:
        """Apply a message; return the run and its state before the message."""
        if max(len(message.message_id), len(message.context_id)) > ID_MAX:
            problem = f"messageId and contextId must have at most {ID_MAX} characters"
            raise InvalidParamsError(problem)
        if any(part.HasField("raw") or part.HasField("url") for part in message.parts):
            problem = "Cannot take a file: agents accept only text. Send text or data parts"
            raise ContentTypeNotSupportedError(problem)
        text = "\n".join(part.text for part in message.parts if part.text)
        asking = Asking(
            actor=request_context.actor,
            request_id=request_context.own(f"a2a:{message.message_id}"),
        )
        if message.task_id:
            run = await self._run(request_context, message.task_id)
            state = await request_context.lobby.views.state(run.id)
            if message.context_id not in {"", context_of(state)}:
                problem = (
                    f"Cannot use contextId {message.context_id}: task {run.id} belongs to "
                    "another context"
                )
                raise InvalidParamsError(problem)
            try:
                await _steer(request_context, run, state, text, _data(message), asking)
            except ControlRefused as refused:
                raise UnsupportedOperationError(str(refused)) from None
            except Problem as refused:
                raise UnsupportedOperationError(refused.detail) from None
            return run, state
        run = await self._started(request_context, message.context_id, text, asking)
        return run, State(run=run.id)

    async def _started(
        self, request_context: Visit, context: str, text: str, asking: Asking
    ) -> Run:
        """Start a task, in a new context unless the message names one.

        By the specification, a malformed request is an error, and `REJECTED` is the status of a
        task that this agent will never do. So a bad argument raises `InvalidParamsError`, and a
        `Misconfigured` of the start itself becomes a rejected task.
        """
        request = asking.get("request_id") or ""
        # Two blocks, because both raise `Misconfigured`: here it means a malformed request, in
        # the start itself a task that this agent cannot do.
        try:
            thread = validation.name("context", context) or context_for(request)
            start = partial(
                request_context.lobby.mid.start,
                self._agent,
                validation.task(text),
                thread=thread,
                request_id=request,
                actor=request_context.actor,
                own_thread=bool(request_context.own_runs_only),
            )
        except Misconfigured as error:
            raise InvalidParamsError(str(error)) from None
        try:
            await request_context.check_quota(request)
            return await start()
        except Misconfigured as error:
            raise _Rejected(rejected(request, thread, str(error))) from None
        except (MidrunError, Problem) as error:
            # The SDK maps `A2AError` only. Errors of the server are internal, the rest is the
            # caller's; the text of an unknown error stays here.
            problem = problem_of(error)
            if problem is None or problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise InternalError(problem.detail if problem else "") from error
            raise InvalidParamsError(problem.detail) from None

    # ── tasks ─────────────────────────────────────────────────────────────────────────────

    async def on_get_task(
        self, params: pb.GetTaskRequest, context: ServerCallContext
    ) -> pb.Task | None:
        """Return a task."""
        request_context = _visit(context)
        run = await self._run(request_context, params.id)
        length = params.history_length if params.HasField("history_length") else None
        return task_of(await request_context.lobby.views.state(run.id), history=length)

    async def on_list_tasks(
        self, params: pb.ListTasksRequest, context: ServerCallContext
    ) -> pb.ListTasksResponse:
        """Return a page of the caller's tasks, newest first."""
        request_context = _visit(context)
        size = min(max(params.page_size or 50, 1), 100)
        try:
            thread = validation.name("context", params.context_id)
            query = Query(
                agent=self._agent,
                thread=thread,
                owner=request_context.own_runs_only,
                phases=tuple(p for p, state in STATES.items() if state == params.status),
                limit=size,
                cursor=params.page_token,
            )
            if params.status and not query.phases:  # no run is ever in that state
                return pb.ListTasksResponse(page_size=size)
            page = await request_context.list_runs(query)
        except (CursorRefused, Misconfigured) as error:
            raise InvalidParamsError(str(error)) from None
        tasks = []
        for row in page.items:
            try:
                state = await request_context.lobby.views.state(row.run)
            except UNREADABLE:
                continue  # one damaged journal must not hide the other tasks
            tasks.append(task_of(state, history=0, artifacts=params.include_artifacts))
        return pb.ListTasksResponse(
            tasks=tasks,
            next_page_token=page.cursor,
            page_size=size,
            total_size=await _count_tasks(request_context, query),
        )

    async def on_cancel_task(
        self, params: pb.CancelTaskRequest, context: ServerCallContext
    ) -> pb.Task | None:
        """Cancel a task, and wait up to `CANCEL_WAIT_S` seconds until it is cancelled."""
        request_context = _visit(context)
        run = await self._run(request_context, params.id)
        # A2A demands this error for every ended task, also for one that is cancelled already,
        # which `Run.cancel` would accept as already so.
        if (await request_context.lobby.views.state(run.id)).phase in TERMINAL:
            raise TaskNotCancelableError
        try:
            await run.cancel(actor=request_context.actor)
        except ControlRefused as refused:
            raise TaskNotCancelableError(str(refused)) from None
        with anyio.move_on_after(ENDING_S):
            await run.until("terminal")
        return task_of(await request_context.lobby.views.state(run.id))

    async def on_subscribe_to_task(
        self, params: pb.SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        """Follow a task until it rests."""
        request_context = _visit(context)
        run = await self._run(request_context, params.id)
        state = await request_context.lobby.views.state(run.id)
        if state.phase in TERMINAL:
            problem = f"Cannot subscribe to task {run.id}: it has ended"
            raise UnsupportedOperationError(problem)
        async for event in _followed(request_context, run, state):
            yield event

    async def pause(self, task: str, request_context: Visit) -> pb.Task:
        """Pause a task; a method of Midrun's extension."""
        run = await self._run(request_context, task)
        try:
            await run.pause(actor=request_context.actor)
        except ControlRefused as refused:
            raise UnsupportedOperationError(str(refused)) from None
        return task_of(await request_context.lobby.views.state(run.id))

    async def _run(self, request_context: Visit, task: str) -> Run:
        # A run of another agent or of another user is not found, like one that does not exist.
        run = RunId(task)
        try:
            head = await request_context.lobby.views.head(run)
            if head.agent == self._agent and await request_context.lobby.views.sees(
                request_context.actor, run
            ):
                return await request_context.lobby.mid.get(run)
        except RunNotFound:
            pass
        raise TaskNotFoundError

    # ── push notifications (not supported) and the extended card ──────────────────────────

    async def on_create_task_push_notification_config(
        self, params: pb.TaskPushNotificationConfig, context: ServerCallContext
    ) -> pb.TaskPushNotificationConfig:
        """Refuse: webhooks are set up by the operator of the server, never by a caller."""
        del params, context
        raise PushNotificationNotSupportedError

    async def on_get_task_push_notification_config(
        self, params: pb.GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> pb.TaskPushNotificationConfig:
        """Refuse, as above."""
        del params, context
        raise PushNotificationNotSupportedError

    async def on_list_task_push_notification_configs(
        self, params: pb.ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> pb.ListTaskPushNotificationConfigsResponse:
        """Refuse, as above."""
        del params, context
        raise PushNotificationNotSupportedError

    async def on_delete_task_push_notification_config(
        self, params: pb.DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        """Refuse, as above."""
        del params, context
        raise PushNotificationNotSupportedError

    async def on_get_extended_agent_card(
        self, params: pb.GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> pb.AgentCard:
        """Return the card with the first line of the agent's instructions added."""
        del params
        request_context = _visit(context)
        agent = request_context.lobby.mid.agents[self._agent]
        return make_card(request_context.request, agent, extended=True)


async def _count_tasks(request_context: Visit, query: Query) -> int:
    """Return the number of tasks over all pages of a list, at most `COUNTED_TASKS_MAX`."""
    found, rest = 0, replace(query, limit=COUNTED_AT_ONCE, cursor="")
    while found < TOTAL_MAX:
        page = await request_context.list_runs(rest)
        found += len(page.items)
        if not page.cursor:
            break
        rest = replace(rest, cursor=page.cursor)
    return min(found, TOTAL_MAX)


def _visit(context: ServerCallContext) -> Visit:
    request_context = context.state[VISIT]
    assert isinstance(request_context, Visit)
    return request_context


async def _ends_with(request_context: Visit, waiting: anyio.CancelScope) -> None:
    await request_context.over()
    waiting.cancel()


async def _followed(
    request_context: Visit, run: Run, state: State
) -> AsyncGenerator[Event, None]:
    """Yield the task, then each change of its status, until it rests.

    The feed is read from `state` on and not from `now`: `state` is the state before the
    message, and the fold needs every entry since then. Changes that the first task shows are
    skipped.
    """
    now = await request_context.lobby.views.state(run.id)
    yield task_of(now)
    if now.seq == state.seq and now.phase in RESTS:
        return
    async with aclosing(run.feed(state.seq)) as feed:
        async for item in feed:
            if request_context.is_over:
                return
            if item.seq is None:
                continue
            record = Record(seq=item.seq, at=item.at, entry=item.entry, epoch=item.epoch)
            before, state = state.phase, fold(run.id, [record], state)
            rests = state.phase in RESTS
            if state.seq < now.seq or not (rests or state.phase is not before):
                continue  # contained in the first task, or no change of the status
            for event in _changed(state):
                yield event
            if rests:
                return


def _changed(state: State) -> Iterator[Event]:
    run, context = state.run, context_of(state)
    for artifact in artifacts_of(state):
        yield pb.TaskArtifactUpdateEvent(
            task_id=run, context_id=context, artifact=artifact, last_chunk=True
        )
    status = status_of(state)
    yield pb.TaskStatusUpdateEvent(task_id=run, context_id=context, status=status)


async def _steer(
    request_context: Visit,
    run: Run,
    state: State,
    text: str,
    data: dict[str, object],
    asking: Asking,
) -> None:
    """Send the control that a message to a task stands for."""
    match state.phase:
        case Phase.PAUSED | Phase.FAILED:
            await run.resume(text or None, **asking)
        case Phase.WAITING if await _decided(run, state, text, data, asking):
            return
        case _:
            await request_context.redirected(run, text, asking)


async def _decided(
    run: Run, state: State, text: str, data: dict[str, object], asking: Asking
) -> bool:
    """Decide the one open ask, if the message does; return whether it did.

    An approval needs an explicit yes: `{"approved": true}` or a single word of `APPROVE_WORDS`;
    a refusal needs an explicit no. Any other text redirects the run.
    """
    if len(state.open_asks) != 1:
        return False
    ask = state.asks[state.open_asks[0] - 1]
    if ask.kind != "approval":
        await run.answer(text, ask=ask.id, **asking)
        return True
    word = text.strip().lower().rstrip(".!")
    if data.get("approved") is True or (not data and word in YES):
        args = data.get("args")
        await run.approve(ask=ask.id, args=args, **asking)
        return True
    if data.get("approved") is False or word in NO:
        actor, request = asking.get("actor"), asking.get("request_id")
        await run.decline(text, ask=ask.id, actor=actor, request_id=request)
        return True
    return False


def _data(message: pb.Message) -> dict[str, object]:
    for part in message.parts:
        if part.HasField("data"):
            found = MessageToDict(part.data)
            if isinstance(found, dict):
                return found
    return {}


# The routes of the SDK, with `TaskHandler` behind them.

KEPT = 64

STREAM_GRACE_S: Final = math.inf
"""Seconds that the SDK lets a stream go on after a signal to stop: without a limit.

`sse_starlette`, which the SDK uses, ends streams when any server of the process has received a
signal to stop. It records that once for the whole process and never resets it, so each later
stream would end after its first event. It also does not wait for the drain. Instead,
`ForwardedResponse` ends a stream when the server of this request stops.
"""

escape_loggers("a2a")  # the SDK logs ids, methods and versions as clients send them


class _Context(DefaultServerCallContextBuilder):
    """Copies the `RequestContext` from the ASGI scope to the SDK's context."""

    def build(self, request: Request) -> ServerCallContext:
        context = super().build(request)
        context.state[VISIT] = request.scope[VISIT]
        return context


@lru_cache(maxsize=KEPT)
def router(agent: Agent) -> Router:
    """Return the SDK's routes for an agent."""
    handler, context = Handler(agent.name), _Context()
    return Router(
        [
            *create_jsonrpc_routes(
                handler,
                "/",
                context,
                enable_v0_3_compat=True,
                shutdown_grace_period=STREAM_GRACE_S,
            ),
            *create_rest_routes(
                handler,
                context,
                enable_v0_3_compat=True,
                shutdown_grace_period=STREAM_GRACE_S,
            ),
        ]
    )


async def paused(
    agent: Agent, request_context: Visit, call: dict[str, Json]
) -> dict[str, Json]:
    """Answer the JSON-RPC method of Midrun's extension."""
    params = call.get("params")
    task = str(params.get("id")) if isinstance(params, dict) else ""
    reply: dict[str, Json] = {"jsonrpc": "2.0", "id": call.get("id")}
    try:
        return reply | {
            "result": MessageToDict(await Handler(agent.name).pause(task, request_context))
        }
    except A2AError as error:
        code = JSON_RPC_ERROR_CODE_MAP.get(type(error), -32603)
        return reply | {"error": {"code": code, "message": str(error) or type(error).__name__}}
