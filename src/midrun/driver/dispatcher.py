"""The call dispatcher: starts calls, stops them, and returns their outcomes to the run loop.

All calls of a run go through its `CallDispatcher`: model calls, tool calls, child runs, and the
hooks of tools (undo, release, check). Each is an `InFlightCall` with a cancel scope of its own,
in a task of the worker's task group. It is not a task of the run loop: a call that ignores its
abort must not hold up the run.

**Start.** The run loop has journaled `CallStarted` and calls `start`. Before the call is made,
`_run` checks once more that the lease is alive. If the process freezes between that check and
the first byte on the wire, another worker may take the run and make the call as well; only the
remote service can notice that, by the call's idempotency key.

**End.** The outcome becomes a driver input: `CloseCall`, `CloseUndo`, or a question. It is
redacted, reduced to a size that can be stored, put into `pending_inputs`, and the loop is
woken. The loop journals it and removes it from the list.

**Stop and grace.** `apply` receives `AbortCall` from the run loop. It cancels the scope of the
call at once and starts `_watch_grace` beside it:

- After half of the agent's grace, a call that is still running is shown as *not responding*.
- After all of it, a run that is being cancelled, or given back at shutdown, stops waiting, and
  so does a run whose call has exceeded its own `timeout` (`NO_WAIT_REASONS`). The dispatcher
  abandons the call: it submits `CallUnknown` in its place, and the call may run on. A run that
  is being paused, redirected or halted keeps waiting: it must not say *paused* while a call
  runs.

**Late results.** An abandoned call may still return, and so may a call whose lease was lost.
The journal has closed such a call without its result. If the call was done, the result is
recorded as `LateResult`, which settles whether it took effect and starts nothing. It needs no
lease. It is retried for as long as the process lives.

**Shutdown** (`begin_shutdown`) stops calls that are safe to repeat at once, and others after a
grace in which they may finish. **Lease lost** (`close`) cancels all calls and waits for none:
another worker may drive the run by now, and none of the outcomes can be journaled under this
epoch.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

import anyio
from msgspec.structs import replace

from midrun.agents.agent import Agent
from midrun.agents.signature import BadArguments
from midrun.agents.todo_tool import PLAN, noted, planned
from midrun.core.driver_inputs import (
    Close,
    CloseUndo,
    Evidence,
    Fail,
    Late,
    SaveProgress,
    SetPlan,
)
from midrun.core.effects import AbortCall, CheckCall, ControlChild, Judge, Order
from midrun.core.entries import (
    CallDone,
    CallFailed,
    CallStarted,
    CallUnknown,
    Entry,
    LateResult,
    ProgressSaved,
    UndoFailed,
    UndoStarted,
    UndoUnknown,
)
from midrun.core.ids import CallId, Epoch, RunId, child_id
from midrun.core.state import Stage, State
from midrun.core.values import Item, Json
from midrun.driver.child_runs import attend, pass_on
from midrun.driver.context import Means
from midrun.driver.in_flight_call import FENCED, Ended, Flight, Form
from midrun.driver.journal_writer import bring, load
from midrun.driver.live import Delta
from midrun.driver.model_calls import speak
from midrun.driver.notifications import Bell
from midrun.driver.redaction import hide, hide_at_once
from midrun.driver.sanitize import keep, prepare
from midrun.driver.stop_conditions import judge
from midrun.driver.tool_calls import act, check, clean
from midrun.driver.user_code_errors import must_go_on, shake_off, words
from midrun.errors import (
    MidrunError,
    Misconfigured,
    StaleEpoch,
    StoreBusy,
    StoreFull,
    StoreUnreachable,
)

SHUTDOWN: Final = "shutdown"
"""The reason to stop a call because this worker gives the run back."""

LATE_S: Final = 2.0
"""Seconds for which a process that shuts down still tries to record a late result."""

OVERDUE_REASON: Final = "overdue"
"""The reason to stop user code whose own time (`timeout=`) is up, without a control."""

UNWAITED: Final = frozenset({"cancelled", SHUTDOWN, OVERDUE_REASON})
"""Reasons to stop a call for which the run waits no longer than the grace."""


class Door:
    """Makes the calls of one run under one epoch.

    `epoch` is set by the run loop when it has the lease. `pending_inputs` has the inputs that
    the run loop has not journaled yet, oldest first; the run loop removes them.
    """

    def __init__(self, means: Means, agent: Agent, run: RunId, bell: Bell) -> None:
        self.epoch = Epoch(0)
        self.brought: list[Brought] = []
        self._means = means
        self._agent = agent
        self._run = run
        self._bell = bell
        # Without abandoned calls. The key has the operation, as a call and its check or undo
        # have the same call id.
        self._flights: dict[tuple[str, Form], Flight] = {}
        self._judging: set[str] = set()
        self._planned: tuple[int, tuple[Item, ...]] = (-1, ())  # see `_set_plan`
        self._dropped = False

    # ── starting calls ────────────────────────────────────────────────────────────────────

    def leave(self, entries: Iterable[Entry], state: State) -> None:
        """Start the calls and undos that `entries` have just recorded as started."""
        for entry in entries:
            if isinstance(entry, CallStarted):
                self._launch(state, entry.call, "call")
            elif isinstance(entry, UndoStarted):
                self._launch(state, entry.call, entry.action, entry.attempt)

    def _launch(self, state: State, call_: CallId, form: Form, attempt: int = 0) -> None:
        call = state.call(call_)
        assert call is not None, f"{call_} was journaled as started"
        # The state has placeholders for secrets. Only the call itself gets the secrets.
        call = self._means.vault.opened(self._run, call)
        save = partial(self._save, call_) if form == "call" else _save_nothing
        in_flight = Flight(call, save, form, attempt)
        in_flight.mind_overdue = partial(self._watch_overdue, in_flight)
        self._flights[call_, form] = in_flight
        self._means.tasks.start_soon(self._fly, in_flight, state)

    async def _fly(self, flight: Flight, state: State) -> None:
        """Make the call, and submit its outcome to the run loop."""
        # The last check before the call is made. Without a live lease it is not made: the next
        # worker finds it in flight in the journal and closes it as unknown.
        alive = self._means.holder.alive()
        if not (alive or self._dropped):
            # Give up all leases of this process, not only this call. A heartbeat that is on its
            # way may renew the leases, and then this run loop would go on waiting for a call
            # that was never made.
            self._means.holder.on_fence()
        if self._dropped or not alive:
            flight.end()
            return
        try:
            is_retry = flight.attempt > 1
            with self._means.live.under_way(self._run, flight.call.id, again=is_retry):
                driver_input = await self._perform(flight, state)
        except BaseException as error:
            if must_go_on(error):
                raise
            # Errors of user code are outcomes by now, so this is a bug in Midrun. It must not
            # end the task group, and with it all runs of the worker: it ends this call only.
            driver_input = _failed(self.epoch, flight, words(error))
        # User code may have left a `Task.cancel()` pending on this task; see the function.
        await shake_off()
        if driver_input is not None:
            # Redacting and encoding a large result takes many turns of the event loop. Until it
            # is done the call stays in `_in_flight`: for the run loop it is still running.
            driver_input = await keep(await hide(self._means.vault, self._run, driver_input))
        flight.end()
        if self._flights.get((flight.call.id, flight.form)) is flight:
            del self._flights[flight.call.id, flight.form]
        if driver_input is None:
            return
        # In both cases the journal has closed, or will close, the call without this outcome.
        if flight.given_up or self._dropped:
            await self._bring_late(flight, driver_input)
        else:
            self._bring(driver_input, flight)

    def _bring(self, given: Evidence, flight: Flight | None = None) -> None:
        self.brought.append(Brought(given, flight))
        self._bell.ring()

    async def _perform(self, flight: Flight, state: State) -> Evidence | None:
        context, agent, epoch = self._means, self._agent, self.epoch
        if flight.form == "call" and flight.call.call_kind == "model":
            return Close(epoch=epoch, outcome=await speak(context, agent, flight, state))
        if flight.form == "call" and flight.call.call_kind == "child":
            return await attend(context, agent, flight, state)
        if flight.form == "call" and agent.tools.get(flight.call.use.tool) is PLAN:
            return self._keep_plan(flight, state)
        if flight.form == "call":
            return await act(context, agent, flight, state)
        if flight.form == "check":
            return await check(context, agent, flight, state)
        return CloseUndo(epoch=epoch, outcome=await clean(context, agent, flight, state))

    def _keep_plan(self, flight: Flight, state: State) -> Close:
        """Submit the agent's new plan, and return the end of the call that set it."""
        call, epoch = flight.call, self.epoch
        # Two calls of the plan tool in one reply start from the same `state`. The second must
        # build on the plan of the first, which is submitted but not journaled yet.
        since, newest = self._planned
        before = newest if state.seq <= since else state.plan
        try:
            items = planned(before, PLAN.parse(call.use.args))
        except (BadArguments, ValueError) as error:
            return Close(epoch=epoch, outcome=CallFailed(call=call.id, error=str(error)))
        self._planned = (state.seq, items)
        # Redact without yielding to the event loop: the plan of another call must not be
        # submitted in between.
        self._bring(
            hide_at_once(self._means.vault, self._run, SetPlan(epoch=epoch, items=items))
        )
        return Close(epoch=epoch, outcome=CallDone(call=call.id, result=noted(items)))

    async def _save(self, call: CallId, progress: Json) -> None:
        """Save the progress of a long call; it is durable when this returns.

        Raises:
            NotJson, TooLarge: the progress cannot be stored.
            StaleEpoch: the journal has closed this call; nothing was saved.
        """
        driver_input = SaveProgress(epoch=self.epoch, call=call, progress=progress)
        driver_input = await hide(self._means.vault, self._run, driver_input)
        entry = await prepare(ProgressSaved(call=call, progress=driver_input.progress))
        driver_input = replace(driver_input, progress=entry.progress)
        saved = Saved()
        if not self._dropped:
            self.brought.append(Brought(driver_input, saved=saved))
            self._bell.ring()
            await saved.over.wait()  # set by the run loop, or by `close`
        if not saved.durable:
            raise StaleEpoch(self._run, self.epoch, self.epoch)

    # ── effects that need no entry ────────────────────────────────────────────────────────

    def pass_on(self, orders: Sequence[Order], state: State) -> None:
        """Carry out the effects that need no entry: aborts, checks, custom stop conditions.

        The run loop calls this in every iteration, with the same effects as long as the state
        is the same. Everything here happens once only, however often it is asked for.
        """
        # A pause is passed on to child runs. If it is withdrawn, `plan_effects` returns no more
        # `ControlChild` for the call, and the child has to be resumed.
        controlled = {effect.call for effect in orders if isinstance(effect, ControlChild)}
        for candidate in self._flights.values():
            if candidate.call.id not in controlled and candidate.let_go():
                # The task that waits for the child may have seen it paused, and waits for the
                # next change: have it look again, so that it resumes the child.
                self._means.news.tell(child_id(self._run, candidate.call.id))
        for effect in orders:
            match effect:
                case AbortCall(call=call, because=because):
                    if (in_flight := self._flights.get((call, "call"))) is not None:
                        self._stop(in_flight, because)
                case ControlChild(call=call, control=control):
                    in_flight = self._flights.get((call, "call"))
                    if in_flight is not None and in_flight.passed_on != effect:
                        in_flight.stop, in_flight.passed_on = control, effect
                        self._means.tasks.start_soon(pass_on, self._means, self._run, in_flight)
                case CheckCall(call=call) if (call, "check") not in self._flights:
                    self._launch(state, call, "check")
                case Judge(name=name) if name not in self._judging:
                    self._judging.add(name)
                    self._means.tasks.start_soon(self._judge, name, state)
                case _:
                    continue

    async def _judge(self, name: str, state: State) -> None:
        driver_input = await judge(
            self._means, name, state, agent=self._agent, epoch=self.epoch
        )
        await shake_off()
        self._judging.discard(name)
        self._bring(await hide(self._means.vault, self._run, driver_input))

    # ── stopping calls ────────────────────────────────────────────────────────────────────

    def _stop(self, flight: Flight, because: str) -> None:
        if flight.abort(because):  # False: stopped for the same reason in an earlier iteration
            self._means.tasks.start_soon(self._mind, flight, because)

    def _watch_overdue(self, flight: Flight, ended: Ended) -> None:
        self._means.tasks.start_soon(self._mind, flight, OVERDUE_REASON, ended)

    async def _mind(self, flight: Flight, because: str, ended: Ended | None = None) -> None:
        """Show a call that does not stop as not responding; abandon it after its grace.

        One such task runs for each reason to stop: a cancel that follows a pause starts a grace
        of its own. `wait_ended` waits for the end of the call, or of the user code that must
        stop.
        """
        half, call = self._agent.grace.total_seconds() / 2, flight.call.id
        ended = ended or flight.ended
        with anyio.move_on_after(half):
            await ended()
            return
        self._means.live.tell(Delta(run=self._run, call=call, kind="not_responding"))
        with anyio.move_on_after(half):
            await ended()
            return
        if because not in UNWAITED or flight.given_up or self._dropped:
            return
        # From here on the journal has this call as unknown. Its task runs on; an outcome that
        # it may still return is recorded as late.
        flight.given_up = True
        del self._flights[call, flight.form]
        overdue = flight.overdue if because == OVERDUE_REASON else None
        self._bring(overdue or _unknown(self.epoch, flight))

    def wind_up(self) -> None:
        """Stop calls that are safe to repeat at once, and let others finish for a grace.

        The run loop calls this in every iteration until nothing is in flight.
        """
        for in_flight in tuple(self._flights.values()):
            if in_flight.stop in UNWAITED:
                continue
            # The next worker makes these again: a call that is safe to repeat, and every hook.
            # Another call would become unknown if it was cut off, so it may finish first.
            if in_flight.call.harmless or in_flight.form != "call":
                self._stop(in_flight, SHUTDOWN)
            elif not in_flight.winding:
                in_flight.winding = True
                self._means.tasks.start_soon(self._let_finish, in_flight)

    async def _let_finish(self, flight: Flight) -> None:
        with anyio.move_on_after(self._agent.grace.total_seconds()):
            await flight.ended()
            return
        self._stop(flight, SHUTDOWN)

    def drop(self) -> None:
        """Cancel all calls because the epoch is over; start and submit nothing more."""
        self._dropped = True
        # These inputs were not journaled in time, and the lease that they need is gone.
        for pending in self.brought:
            self.too_late(pending)
            if pending.saved is not None:
                pending.saved.over.set()
        self.brought.clear()
        for in_flight in self._flights.values():
            in_flight.abort(FENCED)

    # ── late results ──────────────────────────────────────────────────────────────────────

    def too_late(self, brought: "Brought") -> None:
        """Record the result of a call that the journal has closed without it."""
        if brought.flight is not None:
            self._means.tasks.start_soon(self._bring_late, brought.flight, brought.given)

    async def _bring_late(self, flight: Flight, given: Evidence) -> None:
        """Append a `LateResult` for a call that was done; ignore every other outcome.

        Only *done* says something new: the call took effect. A late failure or abort does not
        tell whether it did, and a late reply of a model has no effect to report. It is tried
        for as long as this process lives: a store may be unreachable for longer than a lease.
        """
        outcome = given.outcome if isinstance(given, Close) else None
        if not isinstance(outcome, CallDone) or flight.call.call_kind == "model":
            return
        late = LateResult(
            call=outcome.call, attempt=flight.attempt, epoch=self.epoch, result=outcome.result
        )
        try:
            await self._insist(late)
        except anyio.get_cancelled_exc_class():
            # The worker shuts down. One more attempt, behind a shield and for a short time.
            with anyio.move_on_after(LATE_S, shield=True):
                await self._insist(late, leaving=True)
            raise

    async def _insist(self, late: LateResult, *, leaving: bool = False) -> None:
        with suppress(MidrunError):
            while not await self._append_late(late, leaving=leaving):
                pass

    async def _append_late(self, late: LateResult, *, leaving: bool) -> bool:
        """Append `late` if the journal is ready for it; False: try again.

        A late result settles a call that the journal has as unknown. While the journal has the
        call in flight under our own epoch, it is too early: the next worker that takes the run
        closes the call as unknown first. A process that is `leaving` cannot wait for that.
        """
        store = self._means.store
        with suppress(StoreBusy, StoreFull, StoreUnreachable):
            state = await load(store, self._run)
            call = state.call(late.call)
            is_in_flight = call is not None and call.stage is Stage.STARTED
            if leaving or not is_in_flight or state.epoch != late.epoch:
                await bring(store, state, Late(result=late), self._means.clock)
                return True
        await anyio.sleep(LATE_S / 10)
        return False


async def _save_nothing(_: Json) -> None:
    """Refuse `call.save` in an undo, a release or a check."""
    raise Misconfigured(
        "call.save",
        "cannot save progress in an undo, a release or a check. Save it in the tool itself.",
    )


class Saved:
    """Lets a tool wait in `call.save` for the append of its progress.

    `done` is set after the append, or when there will be none; `is_durable` says which.
    """

    __slots__ = ("durable", "over")

    def __init__(self) -> None:
        self.over = anyio.Event()
        self.durable = False


class Brought(NamedTuple):
    """A driver input on its way to the journal, and the call that it comes from."""

    given: Evidence
    flight: Flight | None = None
    saved: "Saved | None" = None  # of saved progress: a tool waits for it


def _failed(epoch: Epoch, flight: Flight, error: str) -> Evidence:
    call = flight.call.id
    match flight.form:
        case "call" if flight.call.harmless:
            return Close(epoch=epoch, outcome=CallFailed(call=call, error=error))
        case "call":  # our own bug says nothing about the effect of the call
            return Close(epoch=epoch, outcome=CallUnknown(call=call))
        case "check":
            return Fail(epoch=epoch, error=error, code="check_failed")
        case _:
            failed = UndoFailed(call=call, action=flight.action, error=error)
            return CloseUndo(epoch=epoch, outcome=failed)


def _unknown(epoch: Epoch, flight: Flight) -> Close | CloseUndo:
    call = flight.call.id
    if flight.form == "call":
        outcome = CallUnknown(call=call, why="not_responding")
        return Close(epoch=epoch, outcome=outcome)
    return CloseUndo(epoch=epoch, outcome=UndoUnknown(call=call, action=flight.action))
