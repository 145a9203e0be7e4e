"""Function execution: run a function of a tool, and return its end as a value.

A function runs in one of three places:

- **async**: in the event loop, in the asyncio task of its call. It is stopped by cancelling
  that task (`user_code.UserCode`).
- **blocking, importable by name**: in a child process of the zygote (`subprocess`). It is
  stopped by SIGTERM, and SIGKILL after the grace.
- **blocking otherwise** (a closure, a method, `in_process=True`): in a thread. Nothing can
  stop a thread. If the run is cancelled or given back, its outcome is unknown after the grace;
  otherwise the run waits for its end.

In all three the end of the function is a value (`FunctionEnd`), also if it raises. A function
that returns or raises within its grace has that end. Otherwise its end is `Stopped`; a thread
has no such end, as it runs on.
"""

from collections.abc import Awaitable, Callable
from functools import cached_property, partial
from typing import Final, TypeAlias, cast

import anyio
import anyio.to_thread
from anyio import from_thread
from msgspec import Struct

from midrun.agents import tool_context
from midrun.agents.agent import Agent
from midrun.agents.file import split_files
from midrun.agents.signature import CallFunction, Function, SchemaArguments
from midrun.agents.tool import NOT_DONE, Tool, find_import_path, is_async
from midrun.codec.safe_repr import safe_repr
from midrun.codec.strict_json import encode_in_steps, normalize_json
from midrun.core.ids import make_call_key, make_undo_key
from midrun.core.state import State
from midrun.core.transcript import Transcript
from midrun.core.values import Json
from midrun.driver.context import DriverContext
from midrun.driver.delta import Delta
from midrun.driver.sanitize import QUICK_LIMITS, run_in_slices
from midrun.driver.subprocess.protocol import (
    CallFacts,
    Died,
    FunctionForm,
    FunctionOutcome,
    FunctionTask,
    NotDone,
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
    make_exception_outcome,
    must_reraise,
)
from midrun.errors import NotJson, OutcomeUnknown, TooLarge

OUTCOME_UNKNOWN_NAME: Final = OutcomeUnknown.__name__
"""The type of exception by which a tool says that it may have taken effect.

It is compared by name: the exception may come from another process, as text.
"""


class Stopped(Struct, frozen=True):
    """The function was stopped before it returned or raised; it may have taken effect."""


FunctionEnd: TypeAlias = FunctionOutcome | Stopped
"""The end of a function."""


def may_result_from_stop(end: FunctionEnd) -> bool:
    """Tell whether a function that was stopped may have raised because of the stop.

    Libraries turn a cancellation into errors of their own, such as *connection closed*. The
    call has not failed by itself then: it was stopped midway and may have taken effect.
    """
    return isinstance(end, Raised) and end.kind != OUTCOME_UNKNOWN_NAME and not end.not_found


BoundFunction: TypeAlias = Callable[[], object]
"""A function with all its arguments. The name saves making the type for each call of a tool:
Python evaluates the annotations of an inner function whenever it defines the function."""

BindFunction: TypeAlias = Callable[[object], BoundFunction]
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
        is_cleanup = in_flight.work_kind in {"undo", "release"}
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
        hook = "" if in_flight.work_kind == "call" else f"{in_flight.work_kind} of "
        return f"{hook}tool {self._tool.name} (call {in_flight.call.id} of run {self._run_id})"

    # The next three methods are not coroutines: when the function is woken, the event loop
    # passes through every coroutine that waits for it.

    def run_tool(self, arguments: dict[str, object]) -> Awaitable[FunctionEnd]:
        """Run the tool's own function with `arguments`."""
        tool, takes_call = self._tool, self._tool.arguments.takes_call
        # A tool of an MCP server or of a framework has only a schema: it gets a `Call`, but
        # never the context. A framework opens that itself.
        if not takes_call or isinstance(tool.arguments, SchemaArguments):
            self._context_source = None

        if tool.is_async and not takes_call:
            return self._run_in_loop(partial(tool.fn, **arguments), "tool")  # type: ignore[arg-type]  # it is async

        def bind(opened: object) -> BoundFunction:
            call_args = (self._make_call(tool.fn, opened),) if takes_call else ()
            return partial(tool.fn, *call_args, **arguments)

        return self._run_function(tool, bind, "tool", self._in_flight.call.use.args)

    def run_hook(self, function: Function, *args: Json) -> Awaitable[FunctionEnd]:
        """Run an undo, a release or a check with a `Call`, then `args`."""

        def bind(opened: object) -> Callable[[], object]:
            return partial(function, self._make_call(function, opened), *args)

        return self._run_function(function, bind, "hook", list(args))

    def run_agent_hook(self, hook: CallFunction, *args: Json) -> Awaitable[FunctionEnd]:
        """Run `before_tool` or `after_tool` of the agent, in the event loop."""
        if not hook.takes_call:
            self._context_source = None

        def bind(opened: object) -> Callable[[], Awaitable[object]]:
            call = self._make_call(hook.apply, opened) if hook.takes_call else None
            return partial(hook.apply, call, *args)

        if self._tool.is_async:
            return self._run_function(hook.apply, bind, "tool", None)
        # The call of a blocking tool has no task of `UserTasks`, in which async code runs.
        return self._run_in_scope(
            bind(None)
            if self._context_source is None
            else partial(self._run_with_context, bind)
        )

    async def _run_in_scope(self, work: Callable[[], Awaitable[object]]) -> FunctionEnd:
        end: FunctionEnd = Stopped()
        try:
            with self._in_flight.scope:
                end = await _make_return_outcome_in_slices(await work(), "tool")
        except BaseException as error:
            if must_reraise(error):
                raise
            end = make_exception_outcome(error)
        finally:
            self._in_flight.detach_scope()  # the tool, and the next hook, get their own
        return end

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
            source, facts = self._context_source, self._call_facts
            factory = None if source is None else find_import_path(source.factory) or ""
            task = FunctionTask(
                target=target, form=form, args=args, call=facts, context=factory
            )
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
        source = self._context_source
        assert source is not None
        value, has_returned = None, False
        try:
            async with self._context.call_contexts.open(source, self._run_id) as opened:
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
            code.stop_at_timeout(self.timeout_s, partial(in_flight.on_overdue, in_flight))
        end: FunctionEnd
        try:
            end = await _make_return_outcome_in_slices(await code.run(work, in_flight), form)
        except CodeStopped:
            end = Stopped()
        except BaseException as error:
            if must_reraise(error):
                raise
            end = make_exception_outcome(error)
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
        source = self._context_source
        if source is None:
            return await self._run_work_in_thread(bind(None), form)
        end, may_act = cast("FunctionEnd", Stopped()), False
        try:
            # The scope stays open until the context is closed: scopes and task groups that the
            # context has entered are inside of it, and must be left first.
            with self._in_flight.scope:
                async with self._context.call_contexts.open(source, self._run_id) as opened:
                    # A stop ends the opening, but neither the thread nor the closing.
                    self._in_flight.detach_scope()
                    may_act = True
                    end = await self._run_work_in_thread(bind(opened), form)
        except Exception as error:  # noqa: BLE001 - user code opens and closes the context
            # An error of a task of the context ends the wait for the thread, which continues.
            is_unknown = isinstance(end, Returned) or (may_act and isinstance(end, Stopped))
            problem = f"Cannot close the context of the call: {format_exception(error)}."
            end = make_exception_outcome(OutcomeUnknown(problem) if is_unknown else error)
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
        return make_exception_outcome(error)
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
