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

An aborted call may have taken effect. It is undone like a call that was done, unless its undo
is unsafe for a call that may not have happened (`undo_unknown=False`); then it is residue. An
unknown call is settled by its check or by a person.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final, TypeAlias, assert_never

import anyio
import anyio.to_thread
from msgspec.structs import replace

from midrun.agents.agent import Agent
from midrun.agents.file import File, list_refs, make_result_file, map_bodies
from midrun.agents.signature import BadArguments
from midrun.agents.tool import Tool
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
from midrun.core.ids import make_child_id
from midrun.core.journaled_text import WITHHELD_PREFIX
from midrun.core.retries import (
    MODEL_RETRY_CODE,
    TOOL_NOT_IMPORTABLE_CODE,
    compute_retry_at,
)
from midrun.core.state import CallStage, CallState, State
from midrun.core.values import Json
from midrun.driver import child_runs
from midrun.driver.context import DriverContext
from midrun.driver.function_execution import (
    OUTCOME_UNKNOWN_NAME,
    FunctionEnd,
    FunctionExecution,
    Stopped,
    may_result_from_stop,
)
from midrun.driver.redaction import redact_file
from midrun.driver.subprocess.protocol import (
    Died,
    NotDone,
    QuestionAsked,
    Raised,
    Returned,
)
from midrun.driver.user_code import (
    InFlightCall,
)
from midrun.errors import Misconfigured, ModelRetry

ToolOutcome: TypeAlias = CallDone | CallFailed | CallAborted | CallUnknown
"""The outcome of a tool call in the journal."""


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
    failed = _find_call_problem(context, agent, in_flight, state)
    if failed is not None or tool is None:
        return CloseCall(epoch=epoch, outcome=failed or CallFailed(call=call.id, error=""))
    try:
        arguments = tool.arguments.parse(call.use.args)
    except BadArguments as error:  # an approver edited them, or the tool changed
        failed = CallFailed(call=call.id, error=str(error), code="bad_arguments")
        return CloseCall(epoch=epoch, outcome=failed)
    has_agent_hooks = agent.before_tool is not None or agent.after_tool is not None
    hooks = _AgentHooks(context, agent, tool, in_flight, state) if has_agent_hooks else None
    refusal = None if hooks is None else await hooks.run_before()
    if refusal is not None:
        return CloseCall(epoch=epoch, outcome=refusal)
    execution = FunctionExecution(context, agent, tool, in_flight, state)
    if tool.timeout is not None:
        # The outcome if the time is up and the function does not stop within its grace.
        overdue = _make_unstopped_outcome(call, tool)
        in_flight.overdue_input = CloseCall(epoch=epoch, outcome=overdue)
        execution.timeout_s = tool.timeout.total_seconds()
    # `run_tool` never raises for the function: it returns how the function ended. That end, the
    # reason of a stop and the time limit decide about the outcome; see the table in the module
    # docstring.
    end = await execution.run_tool(arguments)
    end = end if hooks is None else await hooks.run_after(end)
    # A pause does not withdraw a question: the run pauses with the question open. Under every
    # other stop the call is aborted instead.
    if isinstance(end, QuestionAsked) and in_flight.stop_reason in {"", "paused"}:
        return await _make_question(context, in_flight, state, end)
    if execution.timed_out:
        return CloseCall(epoch=epoch, outcome=_make_timeout_outcome(call, tool))
    outcome = _make_outcome(call, in_flight, end)
    if isinstance(outcome, CallDone):
        assert isinstance(end, Returned)
        has_files = bool(end.files or tool.artifact)
        outcome = (
            await _add_files(context, in_flight, state, end, outcome) if has_files else outcome
        )
    # A framework counts the retries of its own tools.
    elif isinstance(end, Raised) and not agent.framework:
        outcome = _mark_retry(outcome, end)
    return CloseCall(epoch=epoch, outcome=outcome)


def _find_call_problem(
    context: DriverContext, agent: Agent, in_flight: InFlightCall, state: State
) -> CallFailed | None:
    """Return the failure of a call that cannot be made: its tool or its secrets are gone."""
    call, tool, secrets = in_flight.call, in_flight.tool, context.secret_registry
    if tool is None:
        problem = f"agent {agent.name} has no tool {call.use.tool} any more"
        return CallFailed(call=call.id, error=problem)
    # An approval is for the tool as the approver saw it.
    if call.approval is not None and call.traits.version != tool.traits.version:
        problem = "not executed: the tool has changed since a person approved this call"
        return CallFailed(call=call.id, error=problem)
    if secrets.has_lost_secrets(state.run, call.use.args) or (
        call.question_answer is not None
        and secrets.has_lost_secrets(state.run, call.question_answer)
    ):
        return CallFailed(call=call.id, error=SECRETS_LOST, code="redacted")
    return None


class _AgentHooks:
    """Calls `before_tool` and `after_tool` of an agent for one call of a tool.

    They are part of the attempt: the journal has its outcome, and no later attempt of a call
    that is done calls them again.
    """

    def __init__(
        self,
        context: DriverContext,
        agent: Agent,
        tool: Tool,
        in_flight: InFlightCall,
        state: State,
    ) -> None:
        is_handoff = bool(tool.handoff)
        self._before = None if is_handoff else agent.before_tool
        self._after = None if is_handoff else agent.after_tool
        self._in_flight = in_flight
        self._make_execution = partial(
            FunctionExecution, context, agent, tool, in_flight, state
        )
        self._arguments: tuple[Json, Json] = (tool.name, in_flight.call.use.args)

    async def run_before(self) -> CallFailed | CallAborted | None:
        """Call `before_tool`; return the outcome of a call that it did not let pass."""
        if self._before is None:
            return None
        call = self._in_flight.call.id
        end = await self._make_execution().run_agent_hook(self._before, *self._arguments)
        match end:
            case Returned() | NotDone():
                return None
            case Stopped():
                return CallAborted(call=call)
            case Raised() if self._in_flight.stop_reason and may_result_from_stop(end):
                return CallAborted(call=call)
            case Raised(kind=kind, message=message) if kind == ModelRetry.__name__:
                return CallFailed(call=call, error=message, code=MODEL_RETRY_CODE)
            case _:
                return CallFailed(call=call, error=f"not executed: {_describe_end(end)}")

    async def run_after(self, end: FunctionEnd) -> FunctionEnd:
        """Call `after_tool` if the tool has returned; return the end with its final result.

        The tool has taken effect. If the hook raises or is stopped, the result is withheld,
        because the hook may be there to keep a part of it from the model.
        """
        if self._after is None or not isinstance(end, Returned) or end.problem:
            return end
        execution = self._make_execution()
        changed = await execution.run_agent_hook(self._after, *self._arguments, end.value)
        match changed:
            case NotDone() | Returned(problem="", value=None, files=()):
                return end
            case Returned(problem=""):
                return Returned(value=changed.value, files=(*end.files, *changed.files))
            case Returned(problem=problem):
                pass
            case Raised(kind=kind, message=message) if kind == ModelRetry.__name__:
                problem = message
            case _:
                problem = _describe_end(changed)
        return Returned(problem=f"{WITHHELD_PREFIX}{problem}")


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
    if excess := await _find_storage_problem(context, in_flight, state, files):
        failed = CallFailed(call=in_flight.call.id, error=excess)
        return CloseCall(epoch=state.epoch, outcome=failed)
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
    end: Returned,
    done: CallDone,
) -> CallDone:
    """Add the files that a tool returned to its outcome, and to its artifacts if declared."""
    tool, secrets = in_flight.tool, context.secret_registry
    try:
        files = [sent.to_file() for sent in end.files]
    except Misconfigured as problem:  # the process of a tool may send anything
        return replace(done, encoding_error=str(problem))
    files = [await redact_file(secrets, state.run, file) for file in files]
    shown: list[File] = []
    if tool is not None and tool.artifact and not end.problem:
        made = make_result_file(tool.artifact, end.value)
        shown = [] if made is None else [await redact_file(secrets, state.run, made)]
    if excess := await _find_storage_problem(context, in_flight, state, (*files, *shown)):
        return replace(done, encoding_error=excess)
    in_flight.files = map_bodies(files)
    if tool is not None and tool.artifact:
        in_flight.artifacts = (*shown, *files)
    return replace(done, files=list_refs(files)) if files else done


async def _find_storage_problem(
    context: DriverContext, in_flight: InFlightCall, state: State, files: Sequence[File]
) -> str:
    """Say which quota leaves no room for `files` of a call that has ended; "" if they fit.

    If the call is stopped, they are taken: it would become unknown if its grace passed before
    the store has answered.
    """
    problem = ""
    with in_flight.scope:
        problem = await context.find_storage_problem(state.run_started, files)
    in_flight.detach_scope()
    return problem


def _mark_retry(outcome: ToolOutcome, end: Raised) -> ToolOutcome:
    """Return the outcome of a tool; its failure as a retry if it raised `ModelRetry`.

    The exception is compared by name: it may come from another process, as text.
    """
    if end.kind != ModelRetry.__name__ or not isinstance(outcome, CallFailed):
        return outcome
    return replace(outcome, error=end.message, code=MODEL_RETRY_CODE)


def _make_outcome(call: CallState, in_flight: InFlightCall, end: FunctionEnd) -> ToolOutcome:
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


def _make_uncertain_outcome(
    call: CallState, error: str
) -> CallFailed | CallAborted | CallUnknown:
    """Return the outcome of a call that ended by itself and may have taken effect.

    A call that is safe to repeat is not repeated automatically: it may end like this every
    time. If it needs cleanup, it counts as aborted, so that it is undone or released.
    """
    if not call.safe_to_repeat:
        return CallUnknown(call=call.id)
    if call.needs_cleanup:
        return CallAborted(call=call.id, final=True)
    return CallFailed(call=call.id, error=error)


def _make_timeout_outcome(call: CallState, tool: Tool) -> CallFailed | CallAborted:
    """Return the outcome of a call that timed out; it is not repeated automatically."""
    if call.safe_to_repeat and not call.needs_cleanup:
        seconds = tool.timeout.total_seconds() if tool.timeout else 0.0
        return CallFailed(call=call.id, error=f"timed out after {seconds:g} s")
    return CallAborted(call=call.id, final=True)


def _make_unstopped_outcome(
    call: CallState, tool: Tool
) -> CallFailed | CallAborted | CallUnknown:
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
    end = await _run_tool_hook(context, agent, in_flight, state, action)
    # The result of an undo is not used. `NOT_DONE` says something only as the result of a
    # check.
    if isinstance(end, Returned | NotDone):
        return UndoDone(call=call.id, action=action)
    if in_flight.stop_reason and (isinstance(end, Stopped) or may_result_from_stop(end)):
        # Only a shutdown or a lost lease stops an undo. The next worker makes it again, with
        # the same idempotency key; this attempt must not count as a failed one.
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
        end = await _run_tool_hook(context, agent, in_flight, state, "check")
        if isinstance(end, Returned | NotDone):
            # A check says that the call happened by returning its result, which may be None.
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


async def _run_tool_hook(
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


def _get_result(call: CallState) -> Json:
    """Return the result of a call that is done; None for any other."""
    return call.result if call.stage is CallStage.DONE else None


def _describe_end(end: Raised | Died | QuestionAsked | Stopped) -> str:
    match end:
        case Raised(kind=kind, message=message):
            return f"{kind}: {message}"
        case Died(detail=detail):
            return f"its process died: {detail}"
        case QuestionAsked():
            return "it asked a person, which only a tool can"
        case Stopped():  # by its time limit; another stop is no failure to describe
            return "it took too long"
        case _:
            assert_never(end)
