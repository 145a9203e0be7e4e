"""Tool calls and hooks: run the function, and turn its end into an outcome for the journal.

`FunctionExecution` runs the function and returns how it ended: `Returned`, `NotDone`, `Raised`,
`QuestionAsked`, `Died` or `Stopped`. `call_tool` and the functions for hooks decide which
outcome the journal gets. The question is always the same: *may the call have taken effect?*

| end of the function | safe to repeat | otherwise |
|---|---|---|
| returned, also after a stop | done | done |
| raised by itself | failed | failed |
| raised `OutcomeUnknown`, or its process died | failed, or aborted with cleanup | unknown |
| stopped, or raised after a stop | aborted | aborted |
| killed, but its process does not end | unknown | unknown |
| timed out | failed, or aborted with cleanup | aborted |
| timed out and does not stop | failed, or aborted with cleanup | unknown |

An aborted call may have taken effect and is undone like a call that was done. An unknown call
is settled by its check or by a person.
"""

from collections.abc import Awaitable, Callable
from functools import cached_property, partial
from typing import Final, TypeAlias, assert_never, cast

import anyio
import anyio.to_thread
from anyio import from_thread
from msgspec import Struct
from msgspec.structs import replace

from midrun.agents import tool_context
from midrun.agents.agent import Agent
from midrun.agents.file import list_refs, make_result_file, map_bodies, split_files
from midrun.agents.signature import BadArguments, Function, SchemaArguments
from midrun.agents.tool import NOT_DONE, Tool, find_import_path, is_async
from midrun.codec.safe_repr import safe_repr
from midrun.codec.strict_json import encode_in_steps, normalize_json
from midrun.core.driver_inputs import AskPerson, CloseCall, CloseCleanup, FailRun, SettleCall
from midrun.core.entries import (
    CallAborted,
    CallDone,
    CallFailed,
    CallUnknown,
    UndoDone,
    UndoFailed,
    UndoUnknown,
)
from midrun.core.ids import make_call_key, make_child_id, make_undo_key
from midrun.core.retries import (
    MODEL_RETRY_CODE,
    TOOL_NOT_IMPORTABLE_CODE,
    compute_retry_at,
)
from midrun.core.state import Call, CallStage, State
from midrun.core.transcript import Transcript
from midrun.core.values import Json
from midrun.driver import child_runs
from midrun.driver.context import DriverContext
from midrun.driver.delta import Delta
from midrun.driver.redaction import redact_file
from midrun.driver.sanitize import QUICK_LIMITS, run_in_slices
from midrun.driver.subprocess.protocol import (
    CallFacts,
    Died,
    FunctionForm,
    FunctionOutcome,
    FunctionTask,
    NotDone,
    QuestionAsked,
    Raised,
    Returned,
    SentFile,
    find_unrun_code,
)
from midrun.driver.subprocess.zygote_client import KILL_TIMEOUT_S
from midrun.driver.user_code import (
    RUNNING_THREAD_LABELS,
    CodeStopped,
    InFlightCall,
    UserCode,
    format_exception,
    must_reraise,
    outcome_of_exception,
)
from midrun.errors import Misconfigured, ModelRetry, NotJson, OutcomeUnknown, TooLarge

OUTCOME_UNKNOWN_NAME: Final = OutcomeUnknown.__name__
"""The type of exception by which a tool says that it may have taken effect.

It is compared by name: the exception may come from another process, as text.
"""


class Stopped(Struct, frozen=True):
    """The function was stopped before it returned or raised; it may have taken effect."""


FunctionEnd: TypeAlias = FunctionOutcome | Stopped
"""The end of a function."""


ToolOutcome: TypeAlias = CallDone | CallFailed | CallAborted | CallUnknown
"""The outcome of a tool call in the journal."""


def may_result_from_stop(end: FunctionEnd) -> bool:
    """Tell whether a function that was stopped may have raised because of the stop.

    Libraries turn a cancellation into errors of their own, such as *connection closed*. The
    call has not failed by itself then: it was stopped midway and may have taken effect.
    """
    return isinstance(end, Raised) and end.kind != OUTCOME_UNKNOWN_NAME and not end.not_found


HOOK_TIMEOUT_S: Final = 60.0
"""Seconds for one attempt to undo, release or check, if the tool declares no `timeout`."""

SECRETS_LOST: Final = (
    "not executed: some of its arguments, or of the answer that it asked for, were redacted, "
    "and the process that knew them is gone; ask for it again, with all of its arguments"
)

CHECK_MAX_ATTEMPTS: Final = 3
"""The attempts of a check that raises, before the run fails. It can be resumed then."""


async def call_tool(
    context: DriverContext, agent: Agent, in_flight: InFlightCall, state: State
) -> CloseCall | AskPerson:
    """Make a call of a tool; return its end, or its question to a person."""
    epoch, call, tool = state.epoch, in_flight.call, in_flight.tool
    if tool is None:
        problem = f"agent {agent.name} has no tool {call.use.tool} any more"
        return CloseCall(epoch=epoch, outcome=CallFailed(call=call.id, error=problem))
    # An approval is for the tool as the approver saw it.
    if call.approval is not None and call.traits.version != tool.traits.version:
        problem = "not executed: the tool has changed since a person approved this call"
        return CloseCall(epoch=epoch, outcome=CallFailed(call=call.id, error=problem))
    if context.secret_registry.has_lost_secrets(state.run, call.use.args) or (
        call.question_answer is not None
        and context.secret_registry.has_lost_secrets(state.run, call.question_answer)
    ):
        failed = CallFailed(call=call.id, error=SECRETS_LOST, code="redacted")
        return CloseCall(epoch=epoch, outcome=failed)
    try:
        arguments = tool.parse(call.use.args)
    except BadArguments as error:  # an approver edited them, or the tool changed
        failed = CallFailed(call=call.id, error=str(error), code="bad_arguments")
        return CloseCall(epoch=epoch, outcome=failed)
    execution = FunctionExecution(context, agent, tool, in_flight, state)
    if tool.timeout is not None:
        # The outcome if the time is up and the function does not stop within its grace.
        overdue = _make_unstopped_outcome(call, tool)
        in_flight.overdue_input = CloseCall(epoch=epoch, outcome=overdue)
        execution.timeout_s = tool.timeout.total_seconds()
    end = await execution.run_tool(arguments)
    # A pause does not withdraw a question: the run pauses with the question open. Under every
    # other stop the call is aborted instead.
    if isinstance(end, QuestionAsked) and in_flight.stop_reason in {"", "paused"}:
        return await _make_question(context, in_flight, state, end)
    if execution.timed_out:
        return CloseCall(epoch=epoch, outcome=_make_timeout_outcome(call, tool))
    outcome = _make_outcome(call, in_flight, end)
    if isinstance(outcome, CallDone):
        outcome = await _add_files(context, in_flight, state, end, outcome)
    # A framework counts the retries of its own tools.
    elif isinstance(end, Raised) and not agent.framework:
        outcome = _mark_retry(outcome, end)
    return CloseCall(epoch=epoch, outcome=outcome)


async def _make_question(
    context: DriverContext, in_flight: InFlightCall, state: State, asked: QuestionAsked
) -> CloseCall | AskPerson:
    """Return the question of a tool, with its redacted files."""
    try:
        files = [sent.to_file() for sent in asked.files]
    except Misconfigured as problem:  # the process of a tool may send anything
        error = f"its question cannot be kept: {problem}"
        failed = CallFailed(call=in_flight.call.id, error=error)
        return CloseCall(epoch=state.epoch, outcome=failed)
    secrets = context.secret_registry
    files = [await redact_file(secrets, state.run, file) for file in files]
    in_flight.files = map_bodies(files)
    return AskPerson(
        epoch=state.epoch,
        call=in_flight.call.id,
        question=asked.question,
        data=asked.data,
        continuation=asked.continuation,
        files=list_refs(files),
    )


async def _add_files(
    context: DriverContext,
    in_flight: InFlightCall,
    state: State,
    end: FunctionEnd,
    done: CallDone,
) -> CallDone:
    """Add the files that a tool returned to its outcome, and to its artifacts if declared."""
    assert isinstance(end, Returned)
    tool, secrets = in_flight.tool, context.secret_registry
    try:
        files = [sent.to_file() for sent in end.files]
    except Misconfigured as problem:  # the process of a tool may send anything
        return replace(done, encoding_error=str(problem))
    files = [await redact_file(secrets, state.run, file) for file in files]
    in_flight.files = map_bodies(files)
    if tool is not None and tool.artifact:
        made = None if end.problem else make_result_file(tool.artifact, end.value)
        shown = [] if made is None else [await redact_file(secrets, state.run, made)]
        in_flight.artifacts = (*shown, *files)
    return replace(done, files=list_refs(files)) if files else done


def _mark_retry(outcome: ToolOutcome, end: Raised) -> ToolOutcome:
    """Return the outcome of a tool; its failure as a retry if it raised `ModelRetry`.

    The exception is compared by name: it may come from another process, as text.
    """
    if end.kind != ModelRetry.__name__ or not isinstance(outcome, CallFailed):
        return outcome
    return replace(outcome, error=end.message, code=MODEL_RETRY_CODE)


def _make_outcome(call: Call, in_flight: InFlightCall, end: FunctionEnd) -> ToolOutcome:
    match end:
        case Returned(value=value, problem=problem, shown=shown):
            result = shown if problem else value
            return CallDone(call=call.id, result=result, encoding_error=problem)
        case Raised(kind=kind) if kind == OUTCOME_UNKNOWN_NAME:
            return _make_uncertain_outcome(call, _describe_end(end))
        case Raised() if in_flight.stop_reason and may_result_from_stop(end):
            return CallAborted(call=call.id)
        case Raised(not_found=not_found):
            code = TOOL_NOT_IMPORTABLE_CODE if not_found else ""
            return CallFailed(call=call.id, error=_describe_end(end), code=code)
        case Died(is_gone=False):
            return CallUnknown(call=call.id, why="not_responding")
        case Died(started=False):
            return CallFailed(call=call.id, error=_describe_end(end))
        case Died():  # it may have acted before it died
            return _make_uncertain_outcome(call, _describe_end(end))
        case NotDone():
            problem = "it returned NOT_DONE, which only a check can"
            return CallFailed(call=call.id, error=problem)
        # A question that the function asked while it was being stopped is dropped.
        case Stopped() | QuestionAsked():
            return CallAborted(call=call.id)
        case _:
            assert_never(end)


def _make_uncertain_outcome(call: Call, error: str) -> CallFailed | CallAborted | CallUnknown:
    """Return the outcome of a call that ended by itself and may have taken effect.

    A call that is safe to repeat is not repeated automatically: it may end like this every
    time. If it needs cleanup, it counts as aborted, so that it is undone or released.
    """
    if not call.safe_to_repeat:
        return CallUnknown(call=call.id)
    if call.needs_cleanup:
        return CallAborted(call=call.id, final=True)
    return CallFailed(call=call.id, error=error)


def _make_timeout_outcome(call: Call, tool: Tool) -> CallFailed | CallAborted:
    """Return the outcome of a call that timed out; it is not repeated automatically."""
    if call.safe_to_repeat and not call.needs_cleanup:
        seconds = tool.timeout.total_seconds() if tool.timeout else 0.0
        return CallFailed(call=call.id, error=f"timed out after {seconds:g} s")
    return CallAborted(call=call.id, final=True)


def _make_unstopped_outcome(call: Call, tool: Tool) -> CallFailed | CallAborted | CallUnknown:
    """Return the outcome of a call that timed out and does not stop: it may still act."""
    if call.safe_to_repeat:
        return _make_timeout_outcome(call, tool)
    return CallUnknown(call=call.id, why="not_responding")


async def run_cleanup(
    context: DriverContext, agent: Agent, in_flight: InFlightCall, state: State
) -> UndoDone | UndoFailed | UndoUnknown:
    """Undo the effect of a call, or release the resources that it holds."""
    call, action = in_flight.call, in_flight.action
    if call.call_kind == "child":
        with in_flight.scope:
            residue = await child_runs.end_child(
                context, state, make_child_id(state.run, call.id)
            )
            if residue:  # the child has used up its own attempts: no retry here
                return UndoFailed(call=call.id, action=action, error=residue)
            return UndoDone(call=call.id, action=action)
        return UndoUnknown(call=call.id, action=action)
    problem = f"it took too long and did not stop, so this {action} may still be at work"
    failed = UndoFailed(call=call.id, action=action, error=problem, final=True)
    in_flight.overdue_input = CloseCleanup(epoch=state.epoch, outcome=failed)
    end = await _run_hook(context, agent, in_flight, state, action)
    if isinstance(end, Returned | NotDone):
        return UndoDone(call=call.id, action=action)
    if in_flight.stop_reason and (isinstance(end, Stopped) or may_result_from_stop(end)):
        # Only a shutdown stops an undo. The next worker makes it again, with the same
        # idempotency key; this attempt must not count as a failed one.
        return UndoUnknown(call=call.id, action=action)
    retry_time = compute_retry_at(
        context.clock(), in_flight.attempt, chance=context.random_unit()
    )
    return UndoFailed(
        call=call.id, action=action, error=_describe_end(end), retry_at=retry_time
    )


async def run_check(
    context: DriverContext, agent: Agent, in_flight: InFlightCall, state: State
) -> SettleCall | FailRun | None:
    """Run the tool's check for an unknown call; None if it was stopped.

    If the check says *not done*, the call is made again. If that attempt becomes unknown as
    well, the check first waits, longer with each attempt: the remote service may be down, or
    may show a late effect only after a while.
    """
    epoch, call = state.epoch, in_flight.call
    unsettled = f"cannot find out whether {call.use.tool} took effect"
    problem = f"{unsettled}: its check took too long and did not stop"
    in_flight.overdue_input = FailRun(epoch=epoch, error=problem, code="check_failed")
    if call.attempt > 1:
        await _wait_for_backoff(context, in_flight, call.attempt - 1)
        if in_flight.stop_reason:
            return None
    attempt = 0
    while True:
        attempt += 1
        end = await _run_hook(context, agent, in_flight, state, "check")
        if isinstance(end, Returned | NotDone):
            happened = isinstance(end, Returned)
            result = end.value if isinstance(end, Returned) else None
            return SettleCall(epoch=epoch, call=call.id, happened=happened, result=result)
        # Stopped: no verdict. The call stays unknown, and the next worker checks it again.
        if in_flight.stop_reason:
            return None
        if attempt == CHECK_MAX_ATTEMPTS:
            problem = f"{unsettled}: {_describe_end(end)}"
            return FailRun(epoch=epoch, error=problem, code="check_failed")
        await _wait_for_backoff(context, in_flight, attempt)


async def _wait_for_backoff(
    context: DriverContext, in_flight: InFlightCall, attempt: int
) -> None:
    """Wait for the backoff after `attempt` attempts, or until the call is stopped."""
    now = context.clock()
    with in_flight.scope:
        await anyio.sleep(
            (compute_retry_at(now, attempt, chance=context.random_unit()) - now) / 1e6
        )


async def _run_hook(
    context: DriverContext, agent: Agent, in_flight: InFlightCall, state: State, name: str
) -> FunctionEnd:
    """Run the hook `name`; return its end."""
    call = in_flight.call
    tool = agent.find_tool(call.use.tool)
    function = getattr(tool, name, None)
    if tool is None or function is None:
        problem = f"agent {agent.name} has no {name} for {call.use.tool} any more"
        return Raised(kind="LookupError", message=problem)
    execution = FunctionExecution(context, agent, tool, in_flight, state)
    hook_args = (call.use.args,) if name == "check" else (call.use.args, _get_result(call))
    # No time limit in a thread: it cannot be stopped, and the next attempt would run beside it.
    if not execution.is_threaded(function):
        execution.timeout_s = (
            HOOK_TIMEOUT_S if tool.timeout is None else tool.timeout.total_seconds()
        )
    return await execution.run_hook(function, *hook_args)


def _get_result(call: Call) -> Json:
    """Return the result of a call that is done; None for any other."""
    return call.result if call.stage is CallStage.DONE else None


def _describe_end(end: Raised | Died | QuestionAsked | Stopped) -> str:
    match end:
        case Raised(kind=kind, message=message):
            return f"{kind}: {message}"
        case Died(detail=detail):
            return f"its process died: {detail}"
        case QuestionAsked():
            return "it asked a person, which an undo, a release or a check cannot"
        case Stopped():  # by its time limit; another stop is no failure to describe
            return "it took too long"
        case _:
            assert_never(end)


# Functions of tools run in the event loop, in a process, or in a thread:
#
# - **async**: in the event loop, in the asyncio task of its call. It is stopped by cancelling
#   that task (`user_code.UserCode`).
# - **blocking, importable by name**: in a child process of the zygote (`subprocess`). It is
#   stopped by SIGTERM, and SIGKILL after the grace.
# - **blocking otherwise** (a closure, a method, `in_process=True`): in a thread. Nothing can
#   stop a thread. If the run is cancelled or given back, its outcome is unknown after the
#   grace; otherwise the run waits for its end.
#
# In all three the end of the function is a value (`FunctionEnd`), also if it raises. A function
# that returns or raises within its grace has that end. Otherwise its end is `Stopped`; a thread
# has no such end, as it runs on.


BindFunction: TypeAlias = Callable[[object], Callable[[], object]]
"""Takes the opened context of the call, and returns the function with all its arguments."""


class FunctionExecution:
    """Runs one function of a tool for one call in flight.

    `timeout_s` is its time limit, if any; `timed_out` says afterwards that it was stopped by
    that limit.
    """

    def __init__(
        self,
        context: DriverContext,
        agent: Agent,
        tool: Tool,
        in_flight: InFlightCall,
        state: State,
    ) -> None:
        self.timeout_s: float | None = None
        self.timed_out = False
        self._context = context
        self._tool = tool
        self._agent = agent
        self._in_flight = in_flight
        self._run_id = state.run
        self._state = state
        self._context_source = agent.context_source

    @cached_property
    def _call_facts(self) -> CallFacts:
        """The facts about the call that a function gets through its `Call` argument."""
        run, in_flight = self._run_id, self._in_flight
        original = make_call_key(run, in_flight.call.id)
        # A cleanup has an idempotency key of its own, the same for all its attempts. It also
        # gets the key of the call that it cleans up after, as `original`.
        is_cleanup = in_flight.operation in {"undo", "release"}
        return CallFacts(
            key=make_undo_key(run, in_flight.call.id, in_flight.action)
            if is_cleanup
            else original,
            original=original,
            run_id=run,
            epoch=self._state.epoch,
            attempt=in_flight.attempt,
            progress=in_flight.call.progress,
        )

    @property
    def _label(self) -> str:
        """The name of the function in the log."""
        in_flight = self._in_flight
        hook = "" if in_flight.operation == "call" else f"{in_flight.operation} of "
        return f"{hook}tool {self._tool.name} (call {in_flight.call.id} of run {self._run_id})"

    # The next three methods are not coroutines: when the function is woken, the event loop
    # passes through every coroutine that waits for it.

    def run_tool(self, arguments: dict[str, object]) -> Awaitable[FunctionEnd]:
        """Run the tool's own function with `arguments`."""
        tool = self._tool
        # A tool of an MCP server or of a framework has only a schema: it gets a `Call`, but
        # never the context. A framework opens that itself.
        if not tool.takes_call or isinstance(tool.arguments, SchemaArguments):
            self._context_source = None

        def bind(opened: object) -> Callable[[], object]:
            call_args = (self._make_call(tool.fn, opened),) if tool.takes_call else ()
            return partial(tool.fn, *call_args, **arguments)

        return self._run_function(tool, bind, "tool", self._in_flight.call.use.args)

    def run_hook(self, function: Function, *args: Json) -> Awaitable[FunctionEnd]:
        """Run an undo, a release or a check with a `Call`, then `args`."""

        def bind(opened: object) -> Callable[[], object]:
            return partial(function, self._make_call(function, opened), *args)

        return self._run_function(function, bind, "hook", list(args))

    def is_threaded(self, function_or_tool: Function | Tool) -> bool:
        """Tell whether the function runs in a thread, which cannot be stopped."""
        # The same decision as in `_run_function`, made before the function runs.
        function = (
            function_or_tool.fn if isinstance(function_or_tool, Tool) else function_or_tool
        )
        if is_async(function):
            return False
        return bool(self._tool.in_process) or find_import_path(function_or_tool) is None

    def _run_function(
        self,
        function_or_tool: Function | Tool,
        bind: BindFunction,
        form: FunctionForm,
        args: Json,
    ) -> Awaitable[FunctionEnd]:
        in_loop = (
            function_or_tool.is_async
            if isinstance(function_or_tool, Tool)
            else is_async(function_or_tool)
        )
        if in_loop and self._context_source is None:
            return self._run_in_loop(bind(None), form)  # type: ignore[arg-type]  # it is async
        if in_loop:
            return self._run_in_loop(partial(self._run_with_context, bind), form)
        # A closure or a method has no importable name, so no other process can find it.
        target = None if self._tool.in_process else find_import_path(function_or_tool)
        if target is None:
            end = self._run_in_thread(bind, form)
        else:
            task = FunctionTask(target=target, form=form, args=args, call=self._call_facts)
            end = self._run_in_process(task)
        return end if self.timeout_s is None else self._await_within_time(end)

    async def _await_within_time(self, work: Awaitable[FunctionEnd]) -> FunctionEnd:
        with anyio.move_on_after(self.timeout_s) as limit:
            end = await work
            # It may have ended by itself in the same moment in which its time was up. A value
            # that it returned counts; an error may be a consequence of the cancellation.
            self.timed_out = limit.cancel_called and may_result_from_stop(end)
            return end
        self.timed_out = True
        return Stopped()

    async def _run_with_context(self, bind: BindFunction) -> object:
        """Await an async function, with the context of its agent open meanwhile."""
        assert self._context_source is not None
        value, has_returned = None, False
        try:
            async with self._context_source.open(self._run_id) as opened:
                value = await cast("Awaitable[object]", bind(opened)())
                has_returned = True
        except Exception as error:
            if not has_returned:
                raise
            # The function has done its work, and the end of its context may have undone it.
            problem = f"Cannot close the context of the call: {format_exception(error)}."
            raise OutcomeUnknown(problem) from error
        return value

    async def _run_in_loop(
        self, work: Callable[[], Awaitable[object]], form: FunctionForm
    ) -> FunctionEnd:
        in_flight = self._in_flight
        code = UserCode(self._context.user_tasks, self._label, self._agent.grace)
        if self.timeout_s is not None and in_flight.on_overdue is not None:
            code.stop_at_timeout(self.timeout_s, in_flight.on_overdue)
        end: FunctionEnd
        try:
            end = await _make_return_outcome_in_slices(await code.run(work, in_flight), form)
        except CodeStopped:
            end = Stopped()
        except BaseException as error:
            if must_reraise(error):
                raise
            end = outcome_of_exception(error)
        self.timed_out = code.is_overdue and (
            isinstance(end, Stopped) or may_result_from_stop(end)
        )
        return end

    async def _run_in_process(self, task: FunctionTask) -> FunctionEnd:
        process_call = None
        self._in_flight.kill_time_s = KILL_TIMEOUT_S
        with self._in_flight.scope:
            async with self._context.zygote.run_process(
                task,
                environment=self._agent.tool_environment | self._tool.environment,
                save=self._in_flight.save,
                note=self._send_note,
                show=self._in_flight.show,
                grace=self._agent.grace,
            ) as process_call:
                await process_call.wait_for_outcome()
        # Leaving the context of `run_process` has stopped the process and waited for its end.
        # A function that finished within its grace has its outcome, cancelled or not.
        outcome = None if process_call is None else process_call.final_outcome
        if outcome is None:  # it was stopped before its process had started
            return Stopped()
        if not isinstance(outcome, Died):
            return outcome
        if self._in_flight.stop_reason and outcome.is_gone:
            return Stopped()
        if not (self._in_flight.stop_reason or self._context.heartbeat.is_alive()):
            # The zygote has killed it because the lease lapsed (see `protocol.Deadline`). The
            # call did not crash, so its death must not become its outcome: the run loop is
            # dropped, and the next lease closes the call as unknown.
            self._context.heartbeat.on_lease_lost()
        return outcome

    async def _run_in_thread(self, bind: BindFunction, form: FunctionForm) -> FunctionEnd:
        if self._context_source is None:
            return await self._run_work_in_thread(bind(None), form)
        end, may_act = cast("FunctionEnd", Stopped()), False
        try:
            # The scope stays open until the context is closed: scopes and task groups that the
            # context has entered are inside of it, and must be left first.
            with self._in_flight.scope:
                async with self._context_source.open(self._run_id) as opened:
                    # A stop ends the opening, but neither the thread nor the closing.
                    self._in_flight.detach_scope()
                    may_act = True
                    end = await self._run_work_in_thread(bind(opened), form)
        except Exception as error:  # noqa: BLE001 - user code opens and closes the context
            # An error of a task of the context ends the wait for the thread, which goes on.
            is_unknown = isinstance(end, Returned) or (may_act and isinstance(end, Stopped))
            problem = f"Cannot close the context of the call: {format_exception(error)}."
            end = outcome_of_exception(OutcomeUnknown(problem) if is_unknown else error)
        return end

    async def _run_work_in_thread(
        self, work: Callable[[], object], form: FunctionForm
    ) -> FunctionEnd:
        # Outside of the scope of the call: cancelling the wait would not stop the thread. Only
        # the shutdown of the worker ends the wait, and leaves the thread behind.
        return await anyio.to_thread.run_sync(
            partial(_run_blocking, work, form, self._label),
            abandon_on_cancel=True,
            limiter=self._context.thread_limiter,
        )

    def _make_call(self, function: Function, opened: object) -> tool_context.Call:
        facts, save, note = self._call_facts, self._in_flight.save, self._send_note
        show = self._in_flight.show
        # A blocking function cannot await: its `save`, `note` and `show` hop to the event loop
        # and return when they are done.
        blocks = not is_async(function)
        return tool_context.Call(
            key=facts.key,
            original=facts.original,
            run_id=facts.run_id,
            epoch=facts.epoch,
            attempt=facts.attempt,
            progress=facts.progress,
            tool_call_id=self._in_flight.call.use.tool_call_id,
            answered=self._in_flight.call.question_answer,
            transcript=Transcript(self._state),
            saver=(lambda progress: from_thread.run(save, progress)) if blocks else save,
            noter=(lambda text: from_thread.run(note, text)) if blocks else note,
            shower=(lambda file: from_thread.run(show, file)) if blocks else show,
            _context=opened,
        )

    async def _send_note(self, text: str) -> None:
        call = self._in_flight.call
        self._context.live_output.send(
            Delta(run=self._run_id, call=call.id, kind="note", text=text, tool=call.use.tool)
        )


def _run_blocking(
    work: Callable[[], object], form: FunctionForm, label: str
) -> FunctionOutcome:
    """Run `work` in a thread and return its outcome; Ctrl-C is never raised there."""
    RUNNING_THREAD_LABELS.add(label)
    try:
        return _make_return_outcome(work(), form)
    except BaseException as error:  # noqa: BLE001 - user code: all that it raises is its own
        return outcome_of_exception(error)
    finally:
        RUNNING_THREAD_LABELS.discard(label)


async def _make_return_outcome_in_slices(
    value: object, form: FunctionForm
) -> Returned | NotDone | Raised:
    """Check a returned value as `_make_return_outcome` does, and a large one in slices.

    A large value would block the event loop: first try with a small size limit.
    """
    try:
        return Returned(value=normalize_json(value, "result", QUICK_LIMITS))
    except NotJson:  # or no value at all: a coroutine, files, or `NOT_DONE`
        return _make_return_outcome(value, form)
    except TooLarge:
        try:
            value, _ = await run_in_slices(encode_in_steps(value, "result"))
        except (NotJson, TooLarge) as problem:
            return Returned(problem=str(problem), shown=safe_repr(value))
        return Returned(value=value)


def _make_return_outcome(value: object, form: FunctionForm) -> Returned | NotDone | Raised:
    """Return the outcome for a returned value.

    A value that is not JSON does not make the call a failure: its effect has happened. The
    outcome describes the value in words then.
    """
    if (not_run := find_unrun_code(value, form)) is not None:
        return not_run
    if value is NOT_DONE:
        return NotDone()
    value, files = split_files(value)
    sent = tuple(map(SentFile.from_file, files))
    try:
        return Returned(value=normalize_json(value, "result"), files=sent)
    except (NotJson, TooLarge) as problem:
        return Returned(problem=str(problem), shown=safe_repr(value), files=sent)
