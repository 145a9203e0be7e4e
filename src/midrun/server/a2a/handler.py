"""The methods of A2A, implemented with views and controls of runs.

The SDK parses a request, calls a method of `TaskHandler`, and encodes the result or the raised
`A2AError`. The `RequestContext` reaches the handler through the ASGI scope. As in AG-UI, the
meaning of a message follows from the phase of the run: resume, answer, decide or redirect.
"""

import math
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from functools import lru_cache
from hashlib import sha256
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
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.json_format import MessageToDict
from msgspec.structs import replace
from starlette.requests import Request
from starlette.routing import Router

from midrun.agents.agent import Agent
from midrun.agents.file import File, is_media_type, is_text_type
from midrun.core.entries import ArtifactShown, Record
from midrun.core.evolve import fold
from midrun.core.ids import RunId
from midrun.core.state import State
from midrun.core.values import RESTING_PHASES, TERMINAL_PHASES, Json, Phase
from midrun.errors import (
    ControlRefused,
    CursorRefused,
    JournalUnreadable,
    MidrunError,
    Misconfigured,
    RunNotFound,
)
from midrun.ports.store import RunQuery
from midrun.runs import validation
from midrun.runs.control_bodies import ID_MAX_CHARS
from midrun.runs.run import Run
from midrun.runs.service import make_run_id
from midrun.runs.validation import ControlOptions
from midrun.server.a2a.push import PushConfigs
from midrun.server.a2a.tasks import (
    TASK_STATES,
    get_context_id,
    iter_final_artifacts,
    make_card,
    make_context_id,
    make_metadata,
    make_rejected_task,
    make_shown_artifact,
    to_status,
    to_task,
)
from midrun.server.audit_log import escape_loggers
from midrun.server.chat_threads import (
    CONTENT_DIGEST_CHARS,
    ONLY_FILES_TEXT,
    ChatMessage,
    ReplyEnd,
    cancel_and_wait,
    check_was_shown,
    decide_approval,
    find_earlier_request,
    make_attempt_id,
    send_to_run,
    start_run,
)
from midrun.server.problem_details import HttpProblem, to_problem
from midrun.server.request_checks import make_base_url
from midrun.server.request_context import RequestContext

CONTEXT_SCOPE_KEY: Final = "midrun.visit"
UNDO_TIMEOUT_S: Final = 2.0
"""Seconds to undo the push configuration of a message that failed."""

COUNTED_TASKS_MAX: Final = 10_000
"""The highest count of tasks in a list: counting reads a row for each of them."""

COUNT_PAGE_ROWS: Final = 1_000
"""The number of rows per read while tasks are counted."""


ENDED_PHASES: Final = TERMINAL_PHASES | {Phase.FAILED}
"""Phases that A2A calls terminal. A message still resumes a failed run."""

SendResult = pb.Task | pb.Message


class _TaskRejected(Exception):
    """The agent rejects the task and no run was started; `task` is the reply."""

    def __init__(self, task: pb.Task) -> None:
        super().__init__(task.id)
        self.task = task


class TaskHandler(RequestHandler):
    """The tasks of one agent; each request acts with the rights of its caller."""

    def __init__(self, agent: str) -> None:
        self._agent = agent

    # ── messages ──────────────────────────────────────────────────────────────────────────

    async def on_message_send(
        self, params: pb.SendMessageRequest, context: ServerCallContext
    ) -> SendResult:
        """Start a task or send a message to one; return when it rests, or at once."""
        request_context = _get_request_context(context)
        try:
            run, _ = await self._apply_message(request_context, params)
        except _TaskRejected as rejected:
            return rejected.task
        if not params.configuration.return_immediately:
            # If the server stops meanwhile, the wait ends and the task is returned as it is.
            with anyio.CancelScope() as waiting:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_cancel_when_stopping, request_context, waiting)
                    await run.until(*RESTING_PHASES)
                    tasks.cancel_scope.cancel()
        length = _get_history_length(params.configuration)
        return await _read_task(request_context, run.id, history=length)

    async def on_message_send_stream(
        self, params: pb.SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        """Start a task or send a message to one, and follow it until it rests."""
        request_context = _get_request_context(context)
        try:
            # The stream starts from the state before the message, so that it also shows the
            # entries that the message itself caused.
            run, state = await self._apply_message(request_context, params)
        except _TaskRejected as rejected:
            yield rejected.task
            return
        async for event in _follow(request_context, run, state):
            yield event

    async def _apply_message(
        self, request_context: RequestContext, params: pb.SendMessageRequest
    ) -> tuple[Run, State]:
        """Apply a message; return the run and its state before the message."""
        message = params.message
        if max(len(message.message_id), len(message.context_id)) > ID_MAX_CHARS:
            problem = f"messageId and contextId must have at most {ID_MAX_CHARS} characters"
            raise InvalidParamsError(problem)
        sent = self._read_message(request_context, message)
        if not message.task_id:
            state = State(run=make_run_id(sent.request_id or ""))
            async with _register_push(request_context, params.configuration, state):
                return await self._start_task(request_context, sent), state
        run = await self._find_run(request_context, message.task_id)
        state = await request_context.server.views.read_state(run.id)
        if message.context_id not in {"", get_context_id(state)}:
            problem = (
                f"Cannot use contextId {message.context_id}: task {run.id} belongs to another "
                "context"
            )
            raise InvalidParamsError(problem)
        async with _register_push(request_context, params.configuration, state):
            try:
                if await _decide_by_data(request_context, run, state, sent, message):
                    return run, state
                taken = await send_to_run(request_context, run, sent, by_words=True)
            except ControlRefused as refused:
                raise UnsupportedOperationError(str(refused)) from None
            except HttpProblem as refused:
                raise UnsupportedOperationError(refused.detail) from None
            if taken is None:
                problem = f"Cannot take the message: task {run.id} has ended. Start a new one"
                raise UnsupportedOperationError(problem)
        return run, taken.state

    def _read_message(
        self, request_context: RequestContext, message: pb.Message
    ) -> ChatMessage:
        """Return the text and the files of a message.

        The request id has the message id and a digest of the content. A client that repeats a
        message after a lost reply gets the same task, and a control is not applied twice. A
        client that uses an id for another message, as the compatibility kit of A2A does, or
        for a message to another agent, is not refused.
        """
        text = "\n".join(part.text for part in message.parts if part.text)
        files = tuple(_read_files(message))
        content = message.SerializeToString(deterministic=True)
        digest = sha256(self._agent.encode() + content).hexdigest()[:CONTENT_DIGEST_CHARS]
        return ChatMessage(
            agent=self._agent,
            thread=message.context_id,
            text=text or (ONLY_FILES_TEXT if files else ""),
            files=files,
            request_id=request_context.make_request_id(f"a2a:{message.message_id}:{digest}"),
        )

    async def _start_task(self, request_context: RequestContext, sent: ChatMessage) -> Run:
        """Start a task, in a new context unless the message names one.

        By the specification, a malformed request is an error, and `REJECTED` is the status of a
        task that this agent will never do. So a bad argument raises `InvalidParamsError`, and a
        `Misconfigured` of the start itself becomes a rejected task.
        """
        request = sent.request_id or ""
        # Two blocks, because both raise `Misconfigured`: here it means a malformed request, in
        # the start itself a task that this agent cannot do.
        try:
            thread = validation.check_name("context", sent.thread) or make_context_id(request)
            task = replace(sent, thread=thread, text=validation.check_task(sent.text))
        except Misconfigured as error:
            raise InvalidParamsError(str(error)) from None
        try:
            return (await start_run(request_context, task)).run
        except Misconfigured as error:
            raise _TaskRejected(make_rejected_task(request, thread, str(error))) from None
        except (MidrunError, HttpProblem) as error:
            # The SDK maps `A2AError` only. Errors of the server are internal, the rest is the
            # caller's; the text of an unknown error stays here.
            problem = to_problem(error)
            if problem is None or problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise InternalError(problem.detail if problem else "") from error
            raise InvalidParamsError(problem.detail) from None

    # ── tasks ─────────────────────────────────────────────────────────────────────────────

    async def on_get_task(
        self, params: pb.GetTaskRequest, context: ServerCallContext
    ) -> pb.Task | None:
        """Return a task."""
        request_context = _get_request_context(context)
        run = await self._find_run(request_context, params.id)
        return await _read_task(request_context, run.id, history=_get_history_length(params))

    async def on_list_tasks(
        self, params: pb.ListTasksRequest, context: ServerCallContext
    ) -> pb.ListTasksResponse:
        """Return a page of the caller's tasks, newest first."""
        request_context = _get_request_context(context)
        size = min(max(params.page_size or 50, 1), 100)
        try:
            thread = validation.check_name("context", params.context_id)
            query = RunQuery(
                agent=self._agent,
                thread=thread,
                phases=tuple(p for p, state in TASK_STATES.items() if state == params.status),
                limit=size,
                cursor=params.page_token,
            )
            if params.status and not query.phases:  # no run is ever in that state
                return pb.ListTasksResponse(page_size=size)
            page = await request_context.list_runs(query)
        except (CursorRefused, Misconfigured) as error:
            raise InvalidParamsError(str(error)) from None
        tasks, with_artifacts = [], params.include_artifacts
        for row in page.items:
            with suppress(JournalUnreadable):  # a damaged journal must not hide other tasks
                task = _read_task(request_context, row.run, history=0, artifacts=with_artifacts)
                tasks.append(await task)
        return pb.ListTasksResponse(
            tasks=tasks,
            next_page_token=page.cursor,
            page_size=size,
            total_size=await _count_tasks(request_context, query),
        )

    async def on_cancel_task(
        self, params: pb.CancelTaskRequest, context: ServerCallContext
    ) -> pb.Task | None:
        """Cancel a task, and wait a few seconds until it is cancelled."""
        request_context = _get_request_context(context)
        run = await self._find_run(request_context, params.id)
        # A2A demands this error for every ended task, also for one that is cancelled already,
        # which `Run.cancel` would accept as already so.
        if (await request_context.server.views.read_state(run.id)).phase in TERMINAL_PHASES:
            raise TaskNotCancelableError
        try:
            await cancel_and_wait(request_context, run)
        except ControlRefused as refused:
            raise TaskNotCancelableError(str(refused)) from None
        return await _read_task(request_context, run.id)

    async def on_subscribe_to_task(
        self, params: pb.SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        """Follow a task until it has ended or failed, also while it needs input."""
        request_context = _get_request_context(context)
        run = await self._find_run(request_context, params.id)
        state = await request_context.server.views.read_state(run.id)
        if state.phase in ENDED_PHASES:
            problem = f"Cannot subscribe to task {run.id}: it is {state.phase}"
            raise UnsupportedOperationError(problem)
        async for event in _follow(request_context, run, state, ENDED_PHASES):
            yield event

    async def pause(self, task: str, request_context: RequestContext) -> pb.Task:
        """Pause a task; a method of Midrun's extension."""
        run = await self._find_run(request_context, task)
        try:
            await run.pause(actor=request_context.actor)
        except ControlRefused as refused:
            raise UnsupportedOperationError(str(refused)) from None
        return await _read_task(request_context, run.id)

    async def _find_run(self, request_context: RequestContext, task: str) -> Run:
        # A run of another agent or of another user is not found, like one that does not exist.
        run = RunId(task)
        try:
            if await request_context.can_see(run) and (
                (await request_context.server.views.read_head(run)).agent == self._agent
            ):
                return await request_context.server.mid.get(run)
        except RunNotFound:
            pass
        raise TaskNotFoundError

    # ── push notifications and the extended card ──────────────────────────────────────────

    async def on_create_task_push_notification_config(
        self, params: pb.TaskPushNotificationConfig, context: ServerCallContext
    ) -> pb.TaskPushNotificationConfig:
        """Send the task to an address whenever it comes to rest from now on."""
        request_context = _get_request_context(context)
        configs = PushConfigs(request_context)
        run = await self._find_run(request_context, params.task_id)
        config = configs.parse(params, run.id)
        state = await request_context.server.views.read_state(run.id)
        await configs.put(run.id, replace(config, since=state.seq))
        return config.to_message(run.id)

    async def on_get_task_push_notification_config(
        self, params: pb.GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> pb.TaskPushNotificationConfig:
        """Return a configuration of the caller, without its credentials."""
        request_context = _get_request_context(context)
        configs = PushConfigs(request_context)
        run = await self._find_run(request_context, params.task_id)
        return (await configs.get(run.id, params.id)).to_message(run.id)

    async def on_list_task_push_notification_configs(
        self, params: pb.ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> pb.ListTaskPushNotificationConfigsResponse:
        """Return all configurations of the caller for a task, on one page."""
        request_context = _get_request_context(context)
        configs = PushConfigs(request_context)
        run = await self._find_run(request_context, params.task_id)
        found = await configs.list_configs(run.id)
        return pb.ListTaskPushNotificationConfigsResponse(
            configs=[config.to_message(run.id) for config in found]
        )

    async def on_delete_task_push_notification_config(
        self, params: pb.DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        """Remove a configuration of the caller."""
        request_context = _get_request_context(context)
        configs = PushConfigs(request_context)
        run = await self._find_run(request_context, params.task_id)
        await configs.remove(run.id, params.id)

    async def on_get_extended_agent_card(
        self, params: pb.GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> pb.AgentCard:
        """Return the card with the first line of the agent's instructions added."""
        del params
        request_context = _get_request_context(context)
        agent = request_context.server.mid.agents[self._agent]
        return make_card(
            request_context.request,
            agent,
            has_push=bool(request_context.server.push_origins),
            is_extended=True,
        )


@asynccontextmanager
async def _register_push(
    request_context: RequestContext, configuration: pb.SendMessageConfiguration, state: State
) -> AsyncIterator[None]:
    """Store the push configuration of a message; undo that if the message fails.

    It is stored before the message is sent, also if the message starts the run: then no entry
    comes too early for it.
    """
    if not configuration.HasField("task_push_notification_config"):
        yield
        return
    configs = PushConfigs(request_context)
    config = configs.parse(configuration.task_push_notification_config, state.run)
    earlier = [each for each in await configs.list_configs(state.run) if each.id == config.id]
    await configs.put(state.run, replace(config, since=state.seq))
    try:
        yield
    except BaseException:
        with anyio.CancelScope(shield=True), anyio.move_on_after(UNDO_TIMEOUT_S):
            await configs.remove(state.run, config.id)
            for replaced in earlier:
                await configs.put(state.run, replaced)
        raise


def _get_history_length(params: pb.GetTaskRequest | pb.SendMessageConfiguration) -> int | None:
    return params.history_length if params.HasField("history_length") else None


async def _read_task(
    request_context: RequestContext,
    run: RunId,
    *,
    history: int | None = None,
    artifacts: bool = True,
) -> pb.Task:
    state = await request_context.server.views.read_state(run)
    base = make_base_url(request_context.request)
    return to_task(state, base, history=history, artifacts=artifacts)


async def _count_tasks(request_context: RequestContext, query: RunQuery) -> int:
    """Return the number of tasks over all pages of a list, at most `COUNTED_TASKS_MAX`."""
    found, rest = 0, replace(query, limit=COUNT_PAGE_ROWS, cursor="")
    while found < COUNTED_TASKS_MAX:
        page = await request_context.list_runs(rest)
        found += len(page.items)
        if not page.cursor:
            break
        rest = replace(rest, cursor=page.cursor)
    return min(found, COUNTED_TASKS_MAX)


def _get_request_context(context: ServerCallContext) -> RequestContext:
    request_context = context.state[CONTEXT_SCOPE_KEY]
    assert isinstance(request_context, RequestContext)
    return request_context


async def _cancel_when_stopping(
    request_context: RequestContext, scope: anyio.CancelScope
) -> None:
    await request_context.wait_until_stopping()
    scope.cancel()


async def _follow(
    request_context: RequestContext,
    run: Run,
    state: State,
    last_phases: frozenset[Phase] = RESTING_PHASES,
) -> AsyncGenerator[Event, None]:
    """Yield the task, then its artifacts and changes of its status, until `last_phases`.

    The feed is read from `state` on and not from `now`: `state` is the state before the
    message, and the fold needs every entry since then. Changes that the first task shows are
    skipped.
    """
    end = await ReplyEnd.read(request_context, run, last_phases)
    now, base = end.newest, make_base_url(request_context.request)
    yield to_task(now, base)
    if end.is_reached(state):
        return
    async with aclosing(run.feed(state.seq)) as feed:
        async for item in feed:
            if request_context.is_server_stopping:
                return
            if item.seq is None:
                continue
            record = Record(seq=item.seq, at=item.at, entry=item.entry, epoch=item.epoch)
            before, state = state.phase, fold(run.id, [record], state)
            if state.seq < now.seq:
                continue  # contained in the first task
            if isinstance(item.entry, ArtifactShown) and state.seq > now.seq:
                yield _make_artifact_event(
                    state, make_shown_artifact(run.id, state.artifacts[-1], base)
                )
            is_last = end.is_reached(state)
            if is_last or state.phase is not before:
                for event in _change_events(state):
                    yield event
            if is_last:
                return


def _change_events(state: State) -> Iterator[Event]:
    for artifact in iter_final_artifacts(state):
        yield _make_artifact_event(state, artifact)
    yield pb.TaskStatusUpdateEvent(
        task_id=state.run,
        context_id=get_context_id(state),
        status=to_status(state),
        metadata=make_metadata(state),
    )


def _make_artifact_event(state: State, artifact: pb.Artifact) -> Event:
    return pb.TaskArtifactUpdateEvent(
        task_id=state.run,
        context_id=get_context_id(state),
        artifact=artifact,
        last_chunk=True,
    )


async def _decide_by_data(
    request_context: RequestContext,
    run: Run,
    state: State,
    sent: ChatMessage,
    message: pb.Message,
) -> bool:
    """Decide the one open ask by data; return whether it did.

    `{"approved": true}` decides an approval. A question is answered by `{"answer": …}`, or by
    all of the data; a text beside it is the answer itself.
    """
    approved = (data := _find_data(message)).get("approved")
    if not data or state.phase is not Phase.WAITING or len(state.open_asks) != 1:
        return False
    earlier = find_earlier_request(state, sent.request_id)
    if earlier is not None and not earlier.refused:
        return False  # it was about an ask before this one
    ask = state.asks[state.open_asks[0] - 1]
    request_id = make_attempt_id(state, sent.request_id)
    options = ControlOptions(actor=request_context.actor, request_id=request_id)
    if ask.effective_kind == "approval" and isinstance(approved, bool):
        check_was_shown(request_context, state, ask)
        details: dict[str, Json] = {"editedArgs": data.get("args"), "reason": sent.text}
        await decide_approval(run, ask, options, approved=approved, details=details)
        return True
    if ask.effective_kind == "question" and not sent.text:
        await run.answer(data.get("answer", data), ask=ask.id, **options)
        return True
    return False


def _read_files(message: pb.Message) -> Iterator[File]:
    """Yield the files of a message.

    Raises:
        ContentTypeNotSupportedError: A part is an address, or of a type that no model reads.
    """
    for number, part in enumerate(message.parts, 1):
        if part.HasField("url"):
            problem = "Cannot take a file behind an address. Send its bytes as a raw part"
            raise ContentTypeNotSupportedError(problem)
        if part.HasField("raw"):
            if not is_text_type(part.media_type) and not is_media_type(part.media_type):
                problem = f"Cannot take a file of type {part.media_type or 'unknown'}"
                raise ContentTypeNotSupportedError(f"{problem}. Send text, media or PDF")
            try:
                yield File(part.filename or f"file-{number}", part.media_type, part.raw)
            except Misconfigured as error:
                raise InvalidParamsError(str(error)) from None


def _find_data(message: pb.Message) -> dict[str, Json]:
    for part in message.parts:
        if part.HasField("data"):
            found = MessageToDict(part.data)
            if isinstance(found, dict):
                return found
    return {}


# The routes of the SDK, with `TaskHandler` behind them.

CACHED_ROUTERS_MAX = 64

STREAM_GRACE_S: Final = math.inf
"""Seconds for which the SDK lets a stream continue after a signal to stop: without a limit.

`sse_starlette`, which the SDK uses, ends streams when any server of the process has received a
signal to stop. It records that once for the whole process and never resets it, so each later
stream would end after its first event. It also does not wait for the drain. Instead,
`ForwardedResponse` ends a stream when the server of this request stops.
"""

escape_loggers("a2a")  # the SDK logs ids, methods and versions as clients send them


class _ContextBuilder(DefaultServerCallContextBuilder):
    """Copies the `RequestContext` from the ASGI scope to the SDK's context."""

    def build(self, request: Request) -> ServerCallContext:
        context = super().build(request)
        context.state[CONTEXT_SCOPE_KEY] = request.scope[CONTEXT_SCOPE_KEY]
        return context


@lru_cache(maxsize=CACHED_ROUTERS_MAX)
def make_router(agent: Agent) -> Router:
    """Return the SDK's routes for an agent."""
    handler, context = TaskHandler(agent.name), _ContextBuilder()
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


async def pause_task(
    agent: Agent, request_context: RequestContext, call: dict[str, Json]
) -> dict[str, Json]:
    """Answer the JSON-RPC method of Midrun's extension."""
    params = call.get("params")
    task = str(params.get("id")) if isinstance(params, dict) else ""
    reply: dict[str, Json] = {"jsonrpc": "2.0", "id": call.get("id")}
    try:
        return reply | {
            "result": MessageToDict(await TaskHandler(agent.name).pause(task, request_context))
        }
    except A2AError as error:
        code = JSON_RPC_ERROR_CODE_MAP.get(type(error), -32603)
        return reply | {"error": {"code": code, "message": str(error) or type(error).__name__}}
