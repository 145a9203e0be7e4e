"""Runs the functions of tools: in the event loop, in a process, or in a thread.

- **async**: in the event loop, in an asyncio task of its own. It is stopped by cancelling that
  task (`user_tasks`).
- **blocking, importable by name**: in a child process of the zygote (`subprocess`). It is
  stopped by SIGTERM, and SIGKILL after the grace.
- **blocking otherwise** (a closure, a method, `in_process=True`): in a thread. Nothing can stop
  a thread. It has its grace to end by itself; after that its outcome is unknown.

In all three the function ends as one `FunctionOutcome`, and an exception that it raises is one,
too.
"""

from collections.abc import Awaitable, Callable
from functools import cached_property, partial
from typing import TypeAlias, cast

import anyio
import anyio.to_thread
from anyio import from_thread

from midrun.agents.agent import Agent
from midrun.agents.signature import Function
from midrun.agents.tool import NOT_DONE, Tool, is_async, place_of
from midrun.agents.tool_context import Call
from midrun.codec.safe_repr import safe_repr
from midrun.codec.strict_json import checked, encode_in_steps
from midrun.core.ids import call_key, undo_key
from midrun.core.state import State
from midrun.core.values import Json
from midrun.driver.context import Means
from midrun.driver.in_flight_call import Flight
from midrun.driver.live import Delta
from midrun.driver.slices import QUICK, run_in_slices
from midrun.driver.subprocess.protocol import (
    CallFacts,
    Died,
    Errand,
    ErrandForm,
    NotDone,
    Outcome,
    Raised,
    Returned,
    unrun,
)
from midrun.driver.user_code_errors import end_of, must_go_on
from midrun.driver.user_tasks import THREADS
from midrun.errors import NotJson, TooLarge

End: TypeAlias = Outcome | None
"""The end of a function; None if it was stopped before it returned or raised."""


class Performance:
    """Runs one function of a tool for one call in flight."""

    def __init__(
        self, means: Means, agent: Agent, tool: Tool, flight: Flight, state: State
    ) -> None:
        self._means = means
        self._grace = agent.grace
        self._tool = tool
        self._environment = agent.tool_environment | tool.environment
        self._flight = flight
        self._run = state.run
        self._epoch = state.epoch

    @cached_property
    def _facts(self) -> CallFacts:
        """The facts about the call that a function gets through its `Call` argument."""
        run, in_flight = self._run, self._flight
        original = call_key(run, in_flight.call.id)
        # A cleanup has an idempotency key of its own, the same for all its attempts. It also
        # gets the key of the call that it cleans up after, as `original`.
        is_cleanup = in_flight.form in {"undo", "release"}
        return CallFacts(
            key=undo_key(run, in_flight.call.id, in_flight.action) if is_cleanup else original,
            original=original,
            run_id=run,
            epoch=self._epoch,
            attempt=in_flight.attempt,
            progress=in_flight.call.progress,
        )

    @property
    def _label(self) -> str:
        """The name of the function in the log."""
        in_flight = self._flight
        hook = "" if in_flight.form == "call" else f"{in_flight.form} of "
        return f"{hook}tool {self._tool.name} (call {in_flight.call.id} of run {self._run})"

    async def tool(self, arguments: dict[str, object]) -> End:
        """Run the tool's own function with `arguments`."""
        tool = self._tool
        call_args = (self._call(tool.fn),) if tool.takes_call else ()
        work = partial(tool.fn, *call_args, **arguments)
        return await self._carry_out(tool, work, "tool", self._flight.call.use.args)

    async def hook(self, function: Function, *args: Json) -> End:
        """Run an undo, a release or a check with a `Call`, then `args`."""
        work = partial(function, self._call(function), *args)
        return await self._carry_out(function, work, "hook", list(args))

    def blocks_thread(self, what: Function | Tool) -> bool:
        """Tell whether the function runs in a thread, which cannot be stopped."""
        # The same decision as in `_run_function`, made before the function runs.
        function = what.fn if isinstance(what, Tool) else what
        if is_async(function):
            return False
        return bool(self._tool.in_process) or place_of(what) is None

    async def _carry_out(
        self,
        what: Function | Tool,
        work: Callable[[], object],
        form: ErrandForm,
        args: Json,
    ) -> End:
        in_loop = what.is_async if isinstance(what, Tool) else is_async(what)
        if in_loop:
            return await self._in_loop(cast("Callable[[], Awaitable[object]]", work), form)
        # A closure or a method has no importable name, so no other process can find it.
        target = None if self._tool.in_process else place_of(what)
        if target is None:
            return await self._in_thread(work, form)
        task = Errand(target=target, form=form, args=args, call=self._facts)
        return await self._in_process(task)

    async def _in_loop(self, work: Callable[[], Awaitable[object]], form: ErrandForm) -> End:
        in_flight = self._flight
        with in_flight.scope:
            try:
                value = await self._means.user_tasks.run(
                    work, label=self._label, grace=self._grace, flight=in_flight
                )
            except BaseException as error:
                if must_go_on(error):
                    raise
                return end_of(error)
            return await _returned_in_slices(value, form)
        return None  # the scope was cancelled, and the function had no outcome of its own

    async def _in_process(self, errand: Errand) -> End:
        process_call = None
        with self._flight.scope:
            async with self._means.zygote.running(
                errand,
                environment=self._environment,
                save=self._flight.save,
                note=self._note,
                grace=self._grace,
            ) as process_call:
                await process_call.outcome()
        # Leaving the context of `run_process` has stopped the process and waited for its end.
        # A function that finished within its grace has its outcome, cancelled or not.
        outcome = None if process_call is None else process_call.ended
        if isinstance(outcome, Died) and not (self._flight.stop or self._means.holder.alive()):
            # The zygote has killed it because the lease lapsed (see `protocol.Deadline`). The
            # call did not crash, so its death must not become its outcome: the run loop is
            # dropped, and the next lease closes the call as unknown.
            self._means.holder.on_fence()
        return outcome

    async def _in_thread(self, work: Callable[[], object], form: ErrandForm) -> End:
        # Outside of the scope of the call: cancelling the wait would not stop the thread. Only
        # the shutdown of the worker ends the wait, and leaves the thread behind.
        return await anyio.to_thread.run_sync(
            partial(_end, work, form, self._label),
            abandon_on_cancel=True,
            limiter=self._means.threads,
        )

    def _call(self, function: Function) -> Call:
        facts, save, note = self._facts, self._flight.save, self._note
        # A blocking function cannot await: its `save` and `note` hop to the event loop and
        # return when they are done.
        blocks = not is_async(function)
        return Call(
            key=facts.key,
            original=facts.original,
            run_id=facts.run_id,
            epoch=facts.epoch,
            attempt=facts.attempt,
            progress=facts.progress,
            answered=self._flight.call.answered,
            saver=(lambda progress: from_thread.run(save, progress)) if blocks else save,
            noter=(lambda text: from_thread.run(note, text)) if blocks else note,
        )

    async def _note(self, text: str) -> None:
        call = self._flight.call
        self._means.live.tell(
            Delta(run=self._run, call=call.id, kind="note", text=text, tool=call.use.tool)
        )


def _end(work: Callable[[], object], form: ErrandForm, label: str) -> Outcome:
    """Run `work` in a thread and return its outcome; Ctrl-C is never raised there."""
    THREADS.add(label)
    try:
        return _returned(work(), form)
    except BaseException as error:  # noqa: BLE001 - user code: all that it raises is its own
        return end_of(error)
    finally:
        THREADS.discard(label)


async def _returned_in_slices(value: object, form: ErrandForm) -> Returned | NotDone | Raised:
    """Check a returned value as `_make_return_outcome` does, and a large one in slices.

    A large value would block the event loop: first try with a small size limit.
    """
    try:
        checked(value, "result", QUICK)
    except NotJson:
        return _returned(value, form)
    except TooLarge:
        try:
            value, _ = await run_in_slices(encode_in_steps(value, "result"))
        except (NotJson, TooLarge) as problem:
            return Returned(problem=str(problem), shown=safe_repr(value))
        return Returned(value=value)
    return _returned(value, form)


def _returned(value: object, form: ErrandForm) -> Returned | NotDone | Raised:
    """Return the outcome for a returned value.

    A value that is not JSON does not make the call a failure: its effect has happened. The
    outcome describes the value in words then.
    """
    if (not_run := unrun(value, form)) is not None:
        return not_run
    if value is NOT_DONE:
        return NotDone()
    try:
        return Returned(value=checked(value, "result"))
    except (NotJson, TooLarge) as problem:
        return Returned(problem=str(problem), shown=safe_repr(value))
