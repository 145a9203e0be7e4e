"""Tool calls and hooks: run the function, and turn its end into an outcome for the journal.

`function_runner` runs the function and returns how it ended: `Returned`, `Raised`,
`QuestionAsked`, `Died`, or None if it was stopped. This module decides which outcome the
journal gets. The question is always the same: *may the call have taken effect?*

| end of the function | safe to repeat | otherwise |
|---|---|---|
| returned, also after a stop | done | done |
| raised by itself | failed | failed |
| raised `OutcomeUnknown`, or its process died | failed, or aborted with cleanup | unknown |
| stopped, or raised after a stop | aborted | aborted |
| timed out | failed, or aborted with cleanup | aborted |
| timed out and does not stop | failed, or aborted with cleanup | unknown |

An aborted call may have taken effect and is undone like a call that was done. An unknown call
is settled by its check or by a person.
"""

from collections.abc import Awaitable
from typing import Final

import anyio

from midrun.agents.agent import Agent
from midrun.agents.signature import BadArguments
from midrun.agents.tool import Tool
from midrun.core.driver_inputs import AskPerson, Close, CloseUndo, Fail, SettleCall
from midrun.core.entries import (
    CallAborted,
    CallDone,
    CallFailed,
    CallUnknown,
    UndoDone,
    UndoFailed,
    UndoUnknown,
)
from midrun.core.ids import child_id
from midrun.core.retries import NOT_IMPORTABLE, retry_at
from midrun.core.state import Call, Stage, State
from midrun.core.values import Json
from midrun.driver import child_runs
from midrun.driver.context import Means
from midrun.driver.function_runner import End, Performance
from midrun.driver.in_flight_call import Flight
from midrun.driver.subprocess.protocol import Asked, Died, NotDone, Raised, Returned
from midrun.errors import OutcomeUnknown

HOOK_S: Final = 60.0
"""Seconds for one attempt to undo, release or check, if the tool declares no `timeout`."""

UNKNOWN: Final = OutcomeUnknown.__name__
"""The type of exception by which a tool says that it may have taken effect.

It is compared by name: the exception may come from another process, as text.
"""

REDACTED: Final = (
    "not executed: some of its arguments, or of the answer that it asked for, were redacted, "
    "and the process that knew them is gone; ask for it again, with all of its arguments"
)

CHECKS: Final = 3
"""The attempts of a check that raises, before the run fails. It can be resumed then."""


async def act(means: Means, agent: Agent, flight: Flight, state: State) -> Close | AskPerson:
    """Make a tool call; return its end, or its question to a person."""
    epoch, call = state.epoch, flight.call
    tool = agent.tools.get(call.use.tool)
    if tool is None:
        problem = f"agent {agent.name} has no tool {call.use.tool} any more"
        return Close(epoch=epoch, outcome=CallFailed(call=call.id, error=problem))
    # An approval is for the tool as the approver saw it.
    if call.approval is not None and call.traits.version != tool.traits.version:
        problem = "not executed: the tool has changed since a person approved this call"
        return Close(epoch=epoch, outcome=CallFailed(call=call.id, error=problem))
    if means.vault.is_lost(state.run, [call.use.args, call.answered]):
        failed = CallFailed(call=call.id, error=REDACTED, code="redacted")
        return Close(epoch=epoch, outcome=failed)
    try:
        arguments = tool.parse(call.use.args)
    except BadArguments as error:  # an approver edited them, or the tool changed
        failed = CallFailed(call=call.id, error=str(error), code="bad_arguments")
        return Close(epoch=epoch, outcome=failed)
    if tool.timeout is not None:
        # The outcome if the time is up and the function does not stop within its grace.
        flight.overdue = Close(epoch=epoch, outcome=_not_stopped(call, tool))
    execution = Performance(means, agent, tool, flight, state)
    end, timed_out = await _within(_seconds(tool), execution.tool(arguments))
    # A pause does not withdraw a question: the run pauses with the question open. Under every
    # other stop the call is aborted instead.
    if isinstance(end, Asked) and flight.stop in {"", "paused"}:
        return AskPerson(
            epoch=epoch,
            call=call.id,
            question=end.question,
            data=end.data,
            continuation=end.continuation,
        )
    outcome = _timed_out(call, tool) if timed_out else _outcome(call, flight, end)
    return Close(epoch=epoch, outcome=outcome)


def _outcome(
    call: Call, flight: Flight, end: End
) -> CallDone | CallFailed | CallAborted | CallUnknown:
    match end:
        case Returned(value=value, problem=problem, shown=shown):
            result = shown if problem else value
            return CallDone(call=call.id, result=result, encoding_error=problem)
        case Raised(kind=kind) if kind == UNKNOWN:
            return _perhaps(call, _words(end))
        case Raised() if flight.stop and _may_be_of_a_stop(end):
            return CallAborted(call=call.id)
        case Raised(not_found=not_found):
            code = NOT_IMPORTABLE if not_found else ""
            return CallFailed(call=call.id, error=_words(end), code=code)
        case Died(started=started) if not flight.stop:
            if not started:
                return CallFailed(call=call.id, error=_words(end))
            return _perhaps(call, _words(end))  # it may have acted before it died
        case _:  # stopped: None, or its process was killed, or it asked a question meanwhile
            return CallAborted(call=call.id)


def _may_be_of_a_stop(end: End) -> bool:
    """Tell whether a function that was stopped may have raised because of the stop.

    Libraries turn a cancellation into errors of their own, such as *connection closed*. The
    call has not failed by itself then: it was stopped midway and may have taken effect.
    """
    return isinstance(end, Raised) and end.kind != UNKNOWN and not end.not_found


def _perhaps(call: Call, error: str) -> CallFailed | CallAborted | CallUnknown:
    """Return the outcome of a call that ended by itself and may have taken effect.

    A call that is safe to repeat is not repeated automatically: it may end like this every
    time. If it needs cleanup, it counts as aborted, so that it is undone or released.
    """
    if not call.harmless:
        return CallUnknown(call=call.id)
    if call.lasting:
        return CallAborted(call=call.id, final=True)
    return CallFailed(call=call.id, error=error)


def _timed_out(call: Call, tool: Tool) -> CallFailed | CallAborted:
    """Return the outcome of a call that timed out; it is not repeated automatically."""
    if call.harmless and not call.lasting:
        return CallFailed(call=call.id, error=f"timed out after {_seconds(tool):g} s")
    return CallAborted(call=call.id, final=True)


def _not_stopped(call: Call, tool: Tool) -> CallFailed | CallAborted | CallUnknown:
    """Return the outcome of a call that timed out and does not stop: it may still act."""
    if call.harmless:
        return _timed_out(call, tool)
    return CallUnknown(call=call.id, why="not_responding")


async def clean(
    means: Means, agent: Agent, flight: Flight, state: State
) -> UndoDone | UndoFailed | UndoUnknown:
    """Undo the effect of a call, or release the resources that it holds."""
    call, action = flight.call, flight.action
    if call.call_kind == "child":
        with flight.scope:
            residue = await child_runs.end(means, state, child_id(state.run, call.id))
            if residue:  # the child has used up its own attempts: no retry here
                return UndoFailed(call=call.id, action=action, error=residue)
            return UndoDone(call=call.id, action=action)
        return UndoUnknown(call=call.id, action=action)
    problem = f"it took too long and did not stop, so this {action} may still be at work"
    failed = UndoFailed(call=call.id, action=action, error=problem, final=True)
    flight.overdue = CloseUndo(epoch=state.epoch, outcome=failed)
    end, timed_out = await _hook(means, agent, flight, state, action)
    if isinstance(end, Returned | NotDone):
        return UndoDone(call=call.id, action=action)
    if end is None and not timed_out:
        # Stopped. The next worker makes it again, with the same idempotency key.
        return UndoUnknown(call=call.id, action=action)
    retry_time = retry_at(means.clock(), flight.attempt, chance=means.chance())
    return UndoFailed(call=call.id, action=action, error=_words(end), retry_at=retry_time)


async def check(
    means: Means, agent: Agent, flight: Flight, state: State
) -> SettleCall | Fail | None:
    """Run the tool's check for an unknown call; None if it was stopped.

    If the check says *not done*, the call is made again. If that attempt becomes unknown as
    well, the check first waits, longer with each attempt: the remote service may be down, or
    may show a late effect only after a while.
    """
    epoch, call = state.epoch, flight.call
    unsettled = f"cannot find out whether {call.use.tool} took effect"
    problem = f"{unsettled}: its check took too long and did not stop"
    flight.overdue = Fail(epoch=epoch, error=problem, code="check_failed")
    end: End = None
    if call.attempt > 1:
        await _wait(means, flight, call.attempt - 1)
        if flight.stop:
            return None
    for attempt in range(1, CHECKS + 1):
        end, _ = await _hook(means, agent, flight, state, "check")
        if isinstance(end, Returned | NotDone):
            happened = isinstance(end, Returned)
            result = end.value if isinstance(end, Returned) else None
            return SettleCall(epoch=epoch, call=call.id, happened=happened, result=result)
        # Stopped: no verdict. The call stays unknown, and the next worker checks it again.
        if flight.stop:
            return None
        if attempt < CHECKS:
            await _wait(means, flight, attempt)
    return Fail(epoch=epoch, error=f"{unsettled}: {_words(end)}", code="check_failed")


async def _wait(means: Means, flight: Flight, attempt: int) -> None:
    """Wait for the backoff after `attempt` attempts, or until the call is stopped."""
    now = means.clock()
    with flight.scope:
        await anyio.sleep((retry_at(now, attempt, chance=means.chance()) - now) / 1e6)


async def _hook(
    means: Means, agent: Agent, flight: Flight, state: State, name: str
) -> tuple[End, bool]:
    """Run the hook `name`; return its end, and whether it timed out."""
    call = flight.call
    tool = agent.tools.get(call.use.tool)
    function = getattr(tool, name, None)
    if tool is None or function is None:
        problem = f"agent {agent.name} has no {name} for {call.use.tool} any more"
        return Raised(kind="LookupError", message=problem), False
    execution = Performance(means, agent, tool, flight, state)
    hook_args = (call.use.args,) if name == "check" else (call.use.args, _result(call))
    # No time limit in a thread: it cannot be stopped, and the next attempt would run beside it.
    seconds = None if execution.blocks_thread(function) else _seconds(tool) or HOOK_S
    return await _within(seconds, execution.hook(function, *hook_args))


async def _within(seconds: float | None, work: Awaitable[End]) -> tuple[End, bool]:
    """Await `work` for `seconds`; return its end, and whether it timed out."""
    if seconds is None:
        return await work, False
    with anyio.move_on_after(seconds) as limit:
        end = await work
        # It may have ended by itself in the same moment in which its time was up. A value that
        # it returned counts; an error may be a consequence of the cancellation.
        return end, limit.cancel_called and _may_be_of_a_stop(end)
    return None, True


def _result(call: Call) -> Json:
    """Return the result of a call that is done; None for any other."""
    return call.result if call.stage is Stage.DONE else None


def _seconds(tool: Tool) -> float | None:
    return None if tool.timeout is None else tool.timeout.total_seconds()


def _words(end: End) -> str:
    match end:
        case Raised(kind=kind, message=message):
            return f"{kind}: {message}"
        case Died(detail=detail):
            return f"its process died: {detail}"
        case Asked():
            return "it asked a person, which an undo, a release or a check cannot"
        case _:
            return "it took too long"
