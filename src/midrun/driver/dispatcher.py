"""The call dispatcher: starts calls, stops them, and returns their outcomes to the run loop.

All calls of a run go through its `CallDispatcher`: model calls, tool calls, child runs, and the
hooks of tools (undo, release, check). Each is an `InFlightCall` in a task of its own: a task of
`user_code.UserTasks` if it calls async user code, else of the worker's task group. It is not a
task of the run loop: a call that ignores its abort must not hold up the run.

**Start.** The run loop has journaled `CallStarted` and calls `start`. Before the call is made,
`_run` checks once more that the lease is alive. If the process freezes between that check and
the first byte on the wire, another worker may take the run and make the call as well; only the
remote service can notice that, by the call's idempotency key.

**End.** The outcome becomes a driver input: `CloseCall`, `CloseCleanup`, or a question. It is
redacted, reduced to a size that can be stored, put into `pending_inputs`, and the loop is
woken. The loop journals it and removes it from the list.

**Stop and grace.** `apply` receives `AbortCall` from the run loop. It cancels the user code or
the scope of the call at once and starts `_watch_grace` beside it:

- After half of the agent's grace, a call that is still running is shown as *not responding*.
- After all of it, a run that is being cancelled, or given back at shutdown, stops waiting, and
  so does a run whose call has exceeded its own `timeout` (`NO_WAIT_REASONS`). The dispatcher
  abandons the call: it submits `CallUnknown` in its place, and the call may run on. For a
  blocking tool it first waits, 5 s at most, until the killed process has ended. A run that is
  being paused, redirected or halted keeps waiting: it must not say *paused* while a call runs.
- A child run is not stopped by a grace. It gets the control in its own journal, and the call
  waits until the child rests (`child_runs`).

**Late results.** An abandoned call may still return, and so may a call whose lease was lost.
The journal has closed such a call without its result. If the call was done, the result is
recorded as `LateResult`, which settles whether it took effect and starts nothing. It needs no
lease. It is retried for as long as the process lives.

**Shutdown** (`begin_shutdown`) stops calls that are safe to repeat at once, and others after a
grace in which they may finish. **Lease lost** (`close`) cancels all calls and waits for none:
another worker may drive the run by now, and none of the outcomes can be journaled under this
epoch.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from typing import Final

import anyio
from msgspec import Struct
from msgspec.structs import replace

from midrun.agents.agent import Agent
from midrun.agents.builtin_tools import PLAN_TOOL, apply_plan_call, format_plan
from midrun.agents.file import File, map_bodies
from midrun.agents.signature import BadArguments
from midrun.agents.tool import Tool, is_async
from midrun.core.driver_inputs import (
    CloseCall,
    CloseCleanup,
    DriverInput,
    FailRun,
    RecordStopVerdict,
    ReportLateResult,
    SaveProgress,
    SetPlan,
    ShowArtifact,
)
from midrun.core.entries import (
    CallDone,
    CallFailed,
    CallStarted,
    CallUnknown,
    Entry,
    LateResult,
    ProgressSaved,
    RunStarted,
    UndoFailed,
    UndoStarted,
    UndoUnknown,
)
from midrun.core.files import find_run_file_problem
from midrun.core.ids import CallId, Epoch, RunId, make_child_id, parse_call_number
from midrun.core.scheduler import (
    AbortCall,
    CheckCall,
    ControlChild,
    DriverEffect,
    EvaluateStopCondition,
    RunProgram,
)
from midrun.core.state import CallStage, CallState, State
from midrun.core.values import Json, Phase, PlanItem, WorkKind
from midrun.driver.child_runs import run_child, send_control
from midrun.driver.context import DriverContext
from midrun.driver.delta import Delta
from midrun.driver.journal_writer import append_input, load_run_state
from midrun.driver.model_calls import call_model
from midrun.driver.notifications import Wakeup
from midrun.driver.program_runner import ProgramRunner
from midrun.driver.redaction import (
    add_reply_titles,
    redact_file,
    redact_struct,
    redact_struct_now,
)
from midrun.driver.sanitize import make_storable, sanitize_input
from midrun.driver.stop_conditions import ConditionEvaluation, evaluate_stop
from midrun.driver.tool_calls import call_tool, run_check, run_cleanup
from midrun.driver.user_code import (
    FENCED_REASON,
    NO_WAIT_REASONS,
    OVERDUE_REASON,
    SHUTDOWN_REASON,
    CodeStopped,
    InFlightCall,
    UserCode,
    WaitEnded,
    format_exception,
    must_reraise,
)
from midrun.errors import (
    FileRefused,
    MidrunError,
    Misconfigured,
    StaleEpoch,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreUnreachable,
)
from midrun.ports.log_context import LogContext, set_log_context

LATE_START_S: Final = 0.5
"""Seconds after which a call that has not begun is checked against the store once more."""

LATE_RESULT_TIMEOUT_S: Final = 2.0
"""Seconds for which a process that shuts down still tries to record a late result."""


CHECK_STOP_REASONS: Final = {
    Phase.PAUSING: "paused",
    Phase.CANCELLING: "cancelled",
    Phase.HALTED: "halted",
}
"""Phase → the reason to stop a check that the run does not want any more."""


class CallDispatcher:
    """Makes the calls of one run under one epoch.

    `epoch` is set by the run loop when it has the lease, and `append_began` when it begins an
    append, by the clock of the heartbeat. `pending_inputs` has the inputs that the run loop has
    not journaled yet, oldest first; the run loop removes them.
    """

    def __init__(
        self, context: DriverContext, agent: Agent, run: RunId, wakeup: Wakeup
    ) -> None:
        self.epoch = Epoch(0)
        self.append_began = context.heartbeat.clock()
        self.pending_inputs: list[PendingInput] = []
        self.has_sent_control = False  # to a child run, at some time
        self._context = context
        self._agent = agent
        self._run_id = run
        self._wakeup = wakeup
        # Without abandoned calls. The key has the kind of work: a call and its check or undo
        # have the same call id.
        self._in_flight: dict[tuple[str, WorkKind], InFlightCall] = {}
        self._evaluating_conditions: dict[str, ConditionEvaluation] = {}
        self._program = (
            ProgramRunner(context, agent, run, self._submit, wakeup) if agent.program else None
        )
        self._hide_secrets = partial(context.secret_registry.redact_all_known, run)  # in logs
        self._last_plan: tuple[int, tuple[PlanItem, ...]] = (-1, ())  # see `_set_plan`
        self._is_leaving = False  # the worker gives the run back
        self._is_closed = False

    # ── starting calls ────────────────────────────────────────────────────────────────────

    def start(self, entries: Iterable[Entry], state: State) -> None:
        """Start the calls and undos that `entries` have just recorded as started."""
        for entry in entries:
            if isinstance(entry, CallStarted):
                self._start_call(state, entry.call, "call")
            elif isinstance(entry, UndoStarted):
                self._start_call(state, entry.call, entry.action, entry.attempt)

    def _start_call(
        self, state: State, call_id: CallId, work_kind: WorkKind, attempt: int = 0
    ) -> None:
        call = state.calls[parse_call_number(call_id) - 1]  # journaled as started: it exists
        # The state has placeholders for secrets. Only the call itself gets the secrets.
        if call.call_kind == "tool":
            call = self._context.secret_registry.restore_call(self._run_id, call)
        save = partial(self._save_progress, call_id) if work_kind == "call" else _refuse_save
        in_flight = InFlightCall(call, self._find_owner(call), save, work_kind, attempt)
        if work_kind == "call" and call.call_kind == "tool":
            in_flight.show = partial(self._show_artifact, state.run_started, call_id)
        self._in_flight[call_id, work_kind] = in_flight
        if call.call_kind == "tool":
            in_flight.tool = self._find_tool(in_flight, state)
        if call.call_kind == "model" or _is_async_call(in_flight):
            in_flight.on_overdue = self._watch_overdue
            # Frameworks keep their run in context variables: a hosted program has its own.
            variables = None if self._program is None else self._program.get_context(call)
            self._context.user_tasks.start(
                self._run(in_flight, state, self.append_began), variables
            )
        else:
            self._context.task_group.start_soon(self._run, in_flight, state, self.append_began)

    async def _run(self, in_flight: InFlightCall, state: State, append_began: float) -> None:
        """Make the call, and submit its outcome to the run loop."""
        set_log_context(
            LogContext(
                run=self._run_id,
                call=in_flight.call.id,
                agent=self._agent.name,
                hide_secrets=self._hide_secrets,
            )
        )
        # The last check. Without a live lease the call is not made: the next worker closes it.
        heartbeat = self._context.heartbeat
        # The append of the start has compared the epoch, usually a moment ago. To read the
        # store again would cost time for every call: only a task that runs late does it.
        is_late = heartbeat.clock() - append_began >= LATE_START_S
        if is_late and not await self._is_lease_stored():
            in_flight.mark_finished()
            return
        if self._is_closed or not heartbeat.is_alive():
            self._drop_unleased_call(in_flight)
            return
        live_output, call_id = self._context.live_output, in_flight.call.id
        transcript = live_output.begin_call(
            self._run_id, call_id, is_retry=in_flight.attempt > 1
        )
        try:
            driver_input = await self._make_call(in_flight, state)
        except BaseException as error:
            if must_reraise(error):
                raise
            # Errors of user code are outcomes by now, so this is a bug in Midrun. It must not
            # end the task group, and with it all runs of the worker: it ends this call only.
            driver_input = _make_failure(self.epoch, in_flight, format_exception(error))
        finally:
            live_output.end_call(self._run_id, call_id, transcript)
        if driver_input is not None:
            # Redacting and encoding a large result takes many turns of the event loop. Until it
            # is done the call stays in `_in_flight`: for the run loop it is still running.
            secrets = self._context.secret_registry
            driver_input = await redact_struct(secrets, self._run_id, driver_input)
            # A hosted program proposes its calls one by one, without a reply that has them.
            if in_flight.call.call_kind == "model" and self._program is None:
                driver_input = add_reply_titles(
                    secrets, self._run_id, in_flight.owner, driver_input
                )
            driver_input = await sanitize_input(driver_input)
        in_flight.mark_finished()
        if self._in_flight.get((in_flight.call.id, in_flight.work_kind)) is in_flight:
            del self._in_flight[in_flight.call.id, in_flight.work_kind]
        if driver_input is None:
            self._wakeup.set()  # a hook was stopped; the run loop may wait for its end
            return
        # In both cases the journal has closed, or will close, the call without this outcome.
        if in_flight.abandoned or self._is_closed:
            self._context.task_group.start_soon(self._record_late, in_flight, driver_input)
        else:
            self._submit_outcome(driver_input, in_flight)

    async def _is_lease_stored(self) -> bool:
        """Tell whether the store still has this process as the holder of the run.

        It is asked before a call whose start was journaled a while ago. The event loop was
        blocked since then, so this process has not read its notifications. Its heartbeats did
        not stop, because a thread sends them. If a person forced a pause meanwhile, the lease
        has ended and the call is closed as unknown. Another worker may have checked since that
        the call had no effect, and have made it again.
        """
        heartbeat = self._context.heartbeat
        try:
            row = await self._context.store.get_row(self._run_id)
        except StoreError:
            heartbeat.on_lease_lost()  # for the reason in `_drop_unleased_call`
            return False
        # If not, the journal has grown: the run loop is notified of that, and ends.
        return row.epoch == self.epoch and row.holder == heartbeat.holder_name

    def _drop_unleased_call(self, in_flight: InFlightCall) -> None:
        """Drop a call that was not made because the lease of the run is over."""
        if not self._is_closed:
            # Give up all leases of this process, not only this call. A heartbeat that is on its
            # way may renew the leases, and then this run loop would keep waiting for a call
            # that was never made.
            self._context.heartbeat.on_lease_lost()
        in_flight.mark_finished()

    def _submit_outcome(self, driver_input: DriverInput, in_flight: InFlightCall) -> None:
        """Submit the end of a call; the artifacts of its result come first, in one append."""
        for file in in_flight.artifacts:
            shown = self._make_artifact(in_flight.call.id, file)
            self.pending_inputs.append(PendingInput(shown, files=map_bodies([file])))
        self.pending_inputs.append(PendingInput(driver_input, in_flight, files=in_flight.files))
        self._wakeup.set()

    def _make_artifact(self, call: CallId, file: File) -> ShowArtifact:
        return ShowArtifact(epoch=self.epoch, call=call, name=file.name, file=file.ref)

    def _submit(self, driver_input: DriverInput) -> None:
        self.pending_inputs.append(PendingInput(driver_input))
        self._wakeup.set()

    async def _submit_and_wait(self, driver_input: DriverInput, *files: File) -> bool:
        """Submit an input of a tool that waits for its append; tell whether it is durable."""
        waiter, bodies = SaveWaiter(), map_bodies(files)
        if not self._is_closed:
            self.pending_inputs.append(PendingInput(driver_input, None, waiter, bodies))
            self._wakeup.set()
            await waiter.done.wait()  # set by the run loop, or by `close`
        return waiter.is_durable

    async def _make_call(self, in_flight: InFlightCall, state: State) -> DriverInput | None:
        context, epoch, call = self._context, self.epoch, in_flight.call
        agent = in_flight.owner
        if in_flight.work_kind == "call" and call.call_kind == "model":
            if agent.name not in self._agent.family:
                return CloseCall(epoch=epoch, outcome=self._make_agent_missing(call))
            program = self._program  # it opens the streams of its model calls itself
            stream = None if program is None else partial(program.open_stream, call, state)
            outcome = await call_model(context, agent, in_flight, state, stream)
            return CloseCall(epoch=epoch, outcome=outcome)
        if in_flight.work_kind == "call" and call.call_kind == "child":
            return await run_child(context, agent, in_flight, state)
        if in_flight.work_kind == "call" and in_flight.tool is PLAN_TOOL:
            return self._set_plan(in_flight, state)
        if in_flight.work_kind == "call":
            return await call_tool(context, agent, in_flight, state)
        if in_flight.work_kind == "check":
            return await run_check(context, agent, in_flight, state)
        return CloseCleanup(
            epoch=epoch, outcome=await run_cleanup(context, agent, in_flight, state)
        )

    def _find_owner(self, call: CallState) -> Agent:
        """Return the agent that spoke when the call was requested.

        If this version of the family lacks it, an agent without tools stands in for it: the
        outcome of the call then names the tool that is gone.
        """
        if not call.agent:
            return self._agent
        owner = self._agent.family.get(call.agent)
        return owner or Agent(call.agent, model=self._agent.model, grace=self._agent.grace)

    def _make_agent_missing(self, call: CallState) -> CallFailed:
        error = (
            f"The agent {call.agent} is not among the handoffs of {self._agent.name} any more. "
            "Add it again, then resume the run."
        )
        return CallFailed(call=call.id, error=error, code="agent_missing")

    def _find_tool(self, in_flight: InFlightCall, state: State) -> Tool | None:
        """Return the tool of a call: of the hosted program, of the agent, or of the client."""
        call, owner = in_flight.call, in_flight.owner
        own = self._program.get_tool(call) if self._program is not None else None
        return (
            own
            or owner.find_tool(call.use.tool)
            or owner.find_client_tool(state.run_started, call.use.tool)
        )

    def _set_plan(self, in_flight: InFlightCall, state: State) -> CloseCall:
        """Submit the agent's new plan, and return the end of the call that set it."""
        call, epoch = in_flight.call, self.epoch
        # Two calls of the plan tool in one reply start from the same `state`. The second must
        # build on the plan of the first, which is submitted but not journaled yet.
        since, newest = self._last_plan
        before = newest if state.seq <= since else state.plan
        try:
            items = apply_plan_call(before, PLAN_TOOL.parse(call.use.args))
        except (BadArguments, ValueError) as error:
            return CloseCall(epoch=epoch, outcome=CallFailed(call=call.id, error=str(error)))
        self._last_plan = (state.seq, items)
        # Redact without yielding to the event loop: the plan of another call must not be
        # submitted in between.
        set_plan = redact_struct_now(
            self._context.secret_registry, self._run_id, SetPlan(epoch=epoch, items=items)
        )
        self._submit(set_plan)
        return CloseCall(epoch=epoch, outcome=CallDone(call=call.id, result=format_plan(items)))

    async def _save_progress(self, call: CallId, progress: Json) -> None:
        """Save the progress of a long call; it is durable when this returns.

        Raises:
            NotJson, TooLarge: the progress cannot be stored.
            StaleEpoch: the journal has closed this call; nothing was saved.
        """
        driver_input = SaveProgress(epoch=self.epoch, call=call, progress=progress)
        driver_input = await redact_struct(
            self._context.secret_registry, self._run_id, driver_input
        )
        entry = await make_storable(ProgressSaved(call=call, progress=driver_input.progress))
        driver_input = replace(driver_input, progress=entry.progress)
        if not await self._submit_and_wait(driver_input):
            raise StaleEpoch(self._run_id, self.epoch, self.epoch)

    async def _show_artifact(self, started: RunStarted, call: CallId, file: File) -> None:
        """Store a file that a call shows; it is durable when this returns.

        Raises:
            FileRefused: it is beyond a limit of the run, or a quota.
            StaleEpoch: the journal has closed this call; nothing was stored.
        """
        file = await redact_file(self._context.secret_registry, self._run_id, file)
        if problem := await self._context.find_storage_problem(started, (file,)):
            raise FileRefused(problem)
        if await self._submit_and_wait(self._make_artifact(call, file), file):
            return
        # The core has refused it: for a limit, or because the call is closed.
        state = await load_run_state(self._context.store, self._run_id)
        if problem := find_run_file_problem(state, (file.ref,)):
            raise FileRefused(problem)
        raise StaleEpoch(self._run_id, self.epoch, self.epoch)

    # ── effects that need no entry ────────────────────────────────────────────────────────

    @property
    def has_unjournaled_work(self) -> bool:
        """Whether user code runs that the journal does not show.

        That is a check, a custom stop condition, or the program of a hosted agent.
        """
        if self._evaluating_conditions or (
            self._program is not None and self._program.is_running
        ):
            return True
        for _, work_kind in self._in_flight:  # noqa: SIM110 - asked twice in each turn of a run
            if work_kind == "check":
                return True
        return False

    def may_start(self, call: CallState | None) -> bool:
        """Tell whether a call can be made: a hosted program must wait for it."""
        return self._program is None or call is None or self._program.is_attached(call)

    def stop_unwanted_work(
        self, effects: Sequence[DriverEffect], state: State, *, is_leaving: bool
    ) -> None:
        """Stop the checks and stop conditions that `effects` do not list any more.

        The run is being paused, say. It must not come to rest while user code runs, so the run
        loop waits for their end; see `has_unjournaled_work`.
        """
        wanted = {effect.call for effect in effects if isinstance(effect, CheckCall)}
        for (call, work_kind), in_flight in self._in_flight.items():
            if work_kind == "check" and call not in wanted:
                reason = CHECK_STOP_REASONS.get(state.phase, "redirected")
                self._stop_call(in_flight, reason)
        names = {e.name for e in effects if isinstance(e, EvaluateStopCondition)}
        for name, evaluation in self._evaluating_conditions.items():
            if name in names:
                continue
            evaluation.stop()
            # As for a call: a run that is being cancelled or given back waits for one grace.
            must_wait = not is_leaving and state.phase is not Phase.CANCELLING
            if not (must_wait or evaluation.is_grace_running):
                evaluation.is_grace_running = True
                self._context.task_group.start_soon(self._abandon_condition, name, evaluation)

    def apply(self, effects: Sequence[DriverEffect], state: State) -> None:
        """Carry out the effects that need no entry: aborts, checks, custom stop conditions.

        The run loop calls this in every turn, with the same effects as long as the state
        is the same. Each effect is carried out once.
        """
        # A pause is passed on to child runs. If it is withdrawn, `list_effects` returns no more
        # `ControlChild` for the call, and the child has to be resumed.
        for candidate in self._in_flight.values():
            if candidate.sent_control is not None:
                self._forget_withdrawn_pause(candidate, effects)
        for effect in effects:
            match effect:
                case AbortCall(call=call, reason=reason):
                    if (in_flight := self._in_flight.get((call, "call"))) is not None:
                        self._stop_call(in_flight, reason)
                case ControlChild(call=call):
                    in_flight = self._in_flight.get((call, "call"))
                    if in_flight is not None and in_flight.sent_control != effect:
                        in_flight.sent_control = effect
                        self.has_sent_control = True
                        self._context.task_group.start_soon(
                            send_control, self._context, self._run_id, in_flight
                        )
                case CheckCall(call=call) if (call, "check") not in self._in_flight:
                    self._start_call(state, call, "check")
                case EvaluateStopCondition(name=name) if (
                    name not in self._evaluating_conditions
                ):
                    label = f"stop condition {name} (run {state.run})"
                    code = UserCode(self._context.user_tasks, label, self._agent.grace)
                    self._evaluating_conditions[name] = ConditionEvaluation(code)
                    self._context.user_tasks.start(self._evaluate_condition(name, state))
                case _:
                    continue

    def _forget_withdrawn_pause(
        self, in_flight: InFlightCall, effects: Sequence[DriverEffect]
    ) -> None:
        call = in_flight.call.id
        controlled = {effect.call for effect in effects if isinstance(effect, ControlChild)}
        if call not in controlled and in_flight.forget_pause():
            # The task that waits for the child may have seen it paused, and waits for the
            # next change: have it look again, so that it resumes the child.
            self._context.change_notifier.notify(make_child_id(self._run_id, call))

    def update_program(self, effects: Sequence[DriverEffect], state: State) -> None:
        """Start, stop or wake the program of a hosted agent."""
        if self._program is not None:
            self._program.update(
                state,
                is_wanted=any(isinstance(effect, RunProgram) for effect in effects),
                must_wait=not self._is_leaving and state.phase is not Phase.CANCELLING,
            )

    async def _evaluate_condition(self, name: str, state: State) -> None:
        verdict: RecordStopVerdict | FailRun | None = None
        evaluation = self._evaluating_conditions[name]
        with suppress(CodeStopped):
            verdict = await evaluate_stop(
                evaluation.code, name, state, agent=self._agent, epoch=self.epoch
            )
        if verdict is not None:
            verdict = await redact_struct(self._context.secret_registry, self._run_id, verdict)
        evaluation.ended.set()
        if self._evaluating_conditions.get(name) is not evaluation:
            return  # abandoned
        del self._evaluating_conditions[name]
        if verdict is not None and not self._is_closed:
            self.pending_inputs.append(PendingInput(verdict))
        self._wakeup.set()  # if it was stopped, the condition is evaluated again later

    async def _abandon_condition(self, name: str, evaluation: "ConditionEvaluation") -> None:
        """Wait no longer than the grace for a stop condition that does not stop."""
        with anyio.move_on_after(self._agent.grace.total_seconds()):
            await evaluation.ended.wait()
            return
        if self._evaluating_conditions.get(name) is evaluation:
            del self._evaluating_conditions[name]
            self._wakeup.set()

    # ── stopping calls ────────────────────────────────────────────────────────────────────

    def _stop_call(self, in_flight: InFlightCall, reason: str) -> None:
        # False: an earlier turn has stopped it for this reason, or for a stronger one.
        if in_flight.stop(reason):
            self._context.task_group.start_soon(self._watch_grace, in_flight, reason)

    def _watch_overdue(self, in_flight: InFlightCall, wait_ended: WaitEnded) -> None:
        # A pause may have stopped the code before its time was up. The run waits for it, but
        # not for longer than its `timeout` and one grace.
        self._context.task_group.start_soon(
            self._watch_grace, in_flight, OVERDUE_REASON, wait_ended
        )

    async def _watch_grace(
        self, in_flight: InFlightCall, reason: str, wait_ended: WaitEnded | None = None
    ) -> None:
        """Show a call that does not stop as not responding; abandon it after its grace.

        One such task runs for each reason to stop: a cancel that follows a pause starts a grace
        of its own. `wait_ended` waits for the end of the call, or of the user code that must
        stop.
        """
        half = in_flight.owner.grace.total_seconds() / 2
        call = in_flight.call.id
        wait_ended = wait_ended or in_flight.wait_finished
        if await _ends_within(half, in_flight, wait_ended):
            return
        self._context.live_output.send(
            Delta(run=self._run_id, call=call, kind="not_responding")
        )
        # The process of a blocking tool is killed at the end of the same grace. Wait until it
        # has ended: an undo must not run beside it. Beside async code or a thread that does not
        # stop, an undo does run: a cancel cannot wait for ever.
        if await _ends_within(half + in_flight.kill_time_s, in_flight, wait_ended):
            return
        if reason not in NO_WAIT_REASONS or in_flight.abandoned or self._is_closed:
            return
        # From here on the journal has this call as unknown. Its task runs on; an outcome that
        # it may still return is recorded as late.
        in_flight.abandoned = True
        del self._in_flight[call, in_flight.work_kind]
        overdue = in_flight.overdue_input if reason == OVERDUE_REASON else None
        # A check that is abandoned has no outcome: its call stays unknown.
        if in_flight.work_kind != "check" or overdue is not None:
            unknown = overdue or _make_unknown(self.epoch, in_flight)
            self.pending_inputs.append(PendingInput(unknown))
        self._wakeup.set()

    def begin_shutdown(self) -> None:
        """Stop calls that are safe to repeat at once, and let others finish for a grace.

        The run loop calls this in every turn until nothing is in flight.
        """
        self._is_leaving = True
        for in_flight in tuple(self._in_flight.values()):
            if in_flight.stop_reason in NO_WAIT_REASONS:
                continue
            # The next worker makes these again: a call that is safe to repeat, and every hook.
            # Another call would become unknown if it was cut off, so it may finish first.
            if in_flight.call.safe_to_repeat or in_flight.work_kind != "call":
                self._stop_call(in_flight, SHUTDOWN_REASON)
            elif not in_flight.shutting_down:
                in_flight.shutting_down = True
                self._context.task_group.start_soon(self._stop_after_grace, in_flight)

    async def _stop_after_grace(self, in_flight: InFlightCall) -> None:
        grace = in_flight.owner.grace
        with anyio.move_on_after(grace.total_seconds()):
            await in_flight.wait_finished()
            return
        self._stop_call(in_flight, SHUTDOWN_REASON)

    def close(self) -> None:
        """Cancel all calls because the epoch is over; start and submit nothing more."""
        self._is_closed = True
        # These inputs were not journaled in time, and the lease that they need is gone.
        for pending in self.pending_inputs:
            self.report_late(pending)
            if pending.save_waiter is not None:
                pending.save_waiter.done.set()
        self.pending_inputs.clear()
        for in_flight in self._in_flight.values():
            in_flight.stop(FENCED_REASON)
        for evaluation in self._evaluating_conditions.values():
            evaluation.stop()
        if self._program is not None:
            self._program.close()

    # ── late results ──────────────────────────────────────────────────────────────────────

    def collect_files(self) -> dict[str, bytes]:
        """Return the bodies of all files that the pending inputs name, by hash."""
        bodies: dict[str, bytes] = {}
        for pending in self.pending_inputs:
            if pending.files:
                bodies.update(pending.files)
        return bodies

    def remove_inputs(self, count: int, late: AbstractSet[int]) -> None:
        """Remove the `count` oldest inputs: they are recorded, or `late` has their position."""
        settled = self.pending_inputs[:count]
        del self.pending_inputs[:count]
        for position, pending in enumerate(settled):
            is_late = position in late
            # A tool waits in `call.save` until its progress is durable, or refused.
            if pending.save_waiter is not None:
                pending.save_waiter.is_durable = not is_late
                pending.save_waiter.done.set()
            if self._program is not None:
                self._program.note_removed_input(pending.driver_input)
            if is_late:
                self.report_late(pending)

    def report_late(self, pending: "PendingInput") -> None:
        """Record the result of a call that the journal has closed without it."""
        if pending.in_flight is not None:
            self._context.task_group.start_soon(
                self._record_late, pending.in_flight, pending.driver_input
            )

    async def _record_late(self, in_flight: InFlightCall, driver_input: DriverInput) -> None:
        """Append a `LateResult` for a call that was done; ignore every other outcome.

        Only *done* says something new: the call took effect. A late failure or abort does not
        tell whether it did, and a late reply of a model has no effect to report. It is tried
        for as long as this process lives: a store may be unreachable for longer than a lease.
        """
        outcome = driver_input.outcome if isinstance(driver_input, CloseCall) else None
        if not isinstance(outcome, CallDone) or in_flight.call.call_kind == "model":
            return
        late = LateResult(
            call=outcome.call,
            attempt=in_flight.attempt,
            epoch=self.epoch,
            result=outcome.result,
            files=outcome.files,
        )
        try:
            await self._retry_until_recorded(late, in_flight.files)
        except anyio.get_cancelled_exc_class():
            # The worker shuts down. One more attempt, behind a shield and for a short time.
            with anyio.move_on_after(LATE_RESULT_TIMEOUT_S, shield=True):
                await self._retry_until_recorded(late, in_flight.files, leaving=True)
            raise

    async def _retry_until_recorded(
        self, late: LateResult, files: Mapping[str, bytes], *, leaving: bool = False
    ) -> None:
        with suppress(MidrunError):
            while not await self._append_late(late, files, leaving=leaving):
                pass

    async def _append_late(
        self, late: LateResult, files: Mapping[str, bytes], *, leaving: bool
    ) -> bool:
        """Append `late` if the journal is ready for it; False: try again.

        A late result settles a call that the journal has as unknown. While the journal has the
        call in flight under our own epoch, it is too early: the next worker that takes the run
        closes the call as unknown first. A process that is `leaving` cannot wait for that.
        """
        store = self._context.store
        with suppress(StoreBusy, StoreFull, StoreUnreachable):
            state = await load_run_state(store, self._run_id)
            call = state.find_call(late.call)
            is_in_flight = call is not None and call.stage is CallStage.STARTED
            if leaving or not is_in_flight or state.epoch != late.epoch:
                await append_input(
                    store, state, ReportLateResult(result=late), self._context.clock, files
                )
                return True
        await anyio.sleep(LATE_RESULT_TIMEOUT_S / 10)
        return False


async def _ends_within(seconds: float, in_flight: InFlightCall, wait_ended: WaitEnded) -> bool:
    """Wait for an end for at most `seconds`; tell whether it came."""
    with anyio.move_on_after(seconds):
        await wait_ended()
        return True
    # The time may be up in the same turn of the event loop in which the call ends, when user
    # code has blocked the loop for a while. The timer then cancels this wait, and `_run` ends
    # the call before this task continues: the call has ended all the same, and is not in
    # `_in_flight` any more.
    return in_flight.finished


def _is_async_call(in_flight: InFlightCall) -> bool:
    tool = in_flight.tool
    if tool is None:
        return False
    if in_flight.work_kind == "call":
        return tool.is_async
    hook = getattr(tool, in_flight.work_kind)
    return hook is not None and is_async(hook)


async def _refuse_save(_: Json) -> None:
    """Refuse `call.save` in an undo, a release or a check."""
    raise Misconfigured(
        "call.save",
        "cannot save progress in an undo, a release or a check. Save it in the tool itself.",
    )


class SaveWaiter:
    """Lets a tool wait in `call.save` for the append of its progress.

    `done` is set after the append, or when there will be none; `is_durable` says which.
    """

    __slots__ = ("done", "is_durable")

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.is_durable = False


class PendingInput(Struct, frozen=True):
    """A driver input on its way to the journal, and the call that it comes from."""

    driver_input: DriverInput
    in_flight: InFlightCall | None = None
    save_waiter: "SaveWaiter | None" = None  # of saved progress: a tool waits for it
    files: Mapping[str, bytes] = {}  # bodies of the files that it names, by hash


def _make_failure(epoch: Epoch, in_flight: InFlightCall, error: str) -> DriverInput:
    call = in_flight.call.id
    match in_flight.work_kind:
        case "call" if in_flight.call.safe_to_repeat:
            return CloseCall(epoch=epoch, outcome=CallFailed(call=call, error=error))
        case "call":  # our own bug says nothing about the effect of the call
            return CloseCall(epoch=epoch, outcome=CallUnknown(call=call))
        case "check":
            return FailRun(epoch=epoch, error=error, code="check_failed")
        case _:
            failed = UndoFailed(call=call, action=in_flight.action, error=error)
            return CloseCleanup(epoch=epoch, outcome=failed)


def _make_unknown(epoch: Epoch, in_flight: InFlightCall) -> CloseCall | CloseCleanup:
    call = in_flight.call.id
    if in_flight.work_kind == "call":
        outcome = CallUnknown(call=call, why="not_responding")
        return CloseCall(epoch=epoch, outcome=outcome)
    return CloseCleanup(epoch=epoch, outcome=UndoUnknown(call=call, action=in_flight.action))
