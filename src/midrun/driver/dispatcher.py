"""The door: the one place from which calls leave the process, and where their ends come back.

The drive has asked the gate and journaled the start. Here the call is made, in a cancel scope
of its own, and whatever comes of it becomes evidence. A call that must stop is told so at once
and has its grace. One that does not stop is shown as *not responding*; a cancelled run does not
wait for it any longer, and says that its outcome is unknown.

Before anything leaves there is a last look at the clock of the lease. A freeze between that
look and the wire is the one thing that nobody but the far end can notice.
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
LATE_S: Final = 2.0
"""How long a process that is being left still tries to say what it knows."""

OVERDUE_REASON: Final = "overdue"
"""The reason to stop user code whose own time (`timeout=`) is up, without a control."""

UNWAITED: Final = frozenset({"cancelled", SHUTDOWN, OVERDUE_REASON})
"""Reasons for which a run does not wait longer than the grace for a call to stop."""


class Door:
    """One epoch's right to make calls of one run, while it lasts.

    `brought` is the evidence that the drive has not journaled yet, oldest first.
    """

    def __init__(self, means: Means, agent: Agent, run: RunId, bell: Bell) -> None:
        self.epoch = Epoch(0)
        self.brought: list[Brought] = []
        self._means = means
        self._agent = agent
        self._run = run
        self._bell = bell
        self._flights: dict[tuple[str, Form], Flight] = {}
        self._judging: set[str] = set()
        self._planned: tuple[int, tuple[Item, ...]] = (-1, ())  # since which seq, and what
        self._dropped = False

    # ── leaving ───────────────────────────────────────────────────────────────────────────

    def leave(self, entries: Iterable[Entry], state: State) -> None:
        """Make what has just been journaled as started."""
        for entry in entries:
            if isinstance(entry, CallStarted):
                self._launch(state, entry.call, "call")
            elif isinstance(entry, UndoStarted):
                self._launch(state, entry.call, entry.action, entry.attempt)

    def _launch(self, state: State, call_: CallId, form: Form, attempt: int = 0) -> None:
        call = state.call(call_)
        assert call is not None, f"{call_} was journaled as started"
        call = self._means.vault.opened(self._run, call)
        save = partial(self._save, call_) if form == "call" else _save_nothing
        flight = Flight(call, save, form, attempt)
        flight.mind_overdue = partial(self._watch_overdue, flight)
        self._flights[call_, form] = flight
        self._means.tasks.start_soon(self._fly, flight, state)

    async def _fly(self, flight: Flight, state: State) -> None:
        """Make the call, and bring what came of it."""
        alive = self._means.holder.alive()
        if not (alive or self._dropped):
            self._means.holder.on_fence()  # a beat under way could bring back all but this call
        if self._dropped or not alive:
            flight.end()
            return  # the right to act is gone: the next driver finds the call as an orphan
        try:
            again = flight.attempt > 1
            with self._means.live.under_way(self._run, flight.call.id, again=again):
                given = await self._perform(flight, state)
        except BaseException as error:
            if must_go_on(error):
                raise
            # A fault of ours: it must not end anything but this call.
            given = _failed(self.epoch, flight, words(error))
        await shake_off()
        if given is not None:
            # While it is still a flight: to the drive the call is under way until it is over.
            given = await keep(await hide(self._means.vault, self._run, given))
        flight.end()
        if self._flights.get((flight.call.id, flight.form)) is flight:
            del self._flights[flight.call.id, flight.form]
        if given is None:
            return
        if flight.given_up or self._dropped:
            await self._bring_late(flight, given)
        else:
            self._bring(given, flight)

    def _bring(self, given: Evidence, flight: Flight | None = None) -> None:
        self.brought.append(Brought(given, flight))
        self._bell.ring()

    async def _perform(self, flight: Flight, state: State) -> Evidence | None:
        means, agent, epoch = self._means, self._agent, self.epoch
        if flight.form == "call" and flight.call.call_kind == "model":
            return Close(epoch=epoch, outcome=await speak(means, agent, flight, state))
        if flight.form == "call" and flight.call.call_kind == "child":
            return await attend(means, agent, flight, state)
        if flight.form == "call" and agent.tools.get(flight.call.use.tool) is PLAN:
            return self._keep_plan(flight, state)
        if flight.form == "call":
            return await act(means, agent, flight, state)
        if flight.form == "check":
            return await check(means, agent, flight, state)
        return CloseUndo(epoch=epoch, outcome=await clean(means, agent, flight, state))

    def _keep_plan(self, flight: Flight, state: State) -> Close:
        """Bring the agent's plan, and right with it the end of the call that made it."""
        call, epoch = flight.call, self.epoch
        since, newest = self._planned  # by a sibling that left together with this one
        before = newest if state.seq <= since else state.plan
        try:
            items = planned(before, PLAN.parse(call.use.args))
        except (BadArguments, ValueError) as error:
            return Close(epoch=epoch, outcome=CallFailed(call=call.id, error=str(error)))
        self._planned = (state.seq, items)
        # At once, not in slices: the plan of a sibling must not come in between.
        self._bring(
            hide_at_once(self._means.vault, self._run, SetPlan(epoch=epoch, items=items))
        )
        return Close(epoch=epoch, outcome=CallDone(call=call.id, result=noted(items)))

    async def _save(self, call: CallId, progress: Json) -> None:
        """Save how far a long call is; it is durable when this returns.

        Raises:
            NotJson, TooLarge: it cannot be stored.
            StaleEpoch: nobody waits for this call any more; nothing was saved.
        """
        given = SaveProgress(epoch=self.epoch, call=call, progress=progress)
        given = await hide(self._means.vault, self._run, given)
        entry = await prepare(ProgressSaved(call=call, progress=given.progress))
        given = replace(given, progress=entry.progress)
        saved = Saved()
        if not self._dropped:
            self.brought.append(Brought(given, saved=saved))
            self._bell.ring()
            await saved.over.wait()
        if not saved.durable:
            raise StaleEpoch(self._run, self.epoch, self.epoch)

    # ── what the plan orders of calls that have left ──────────────────────────────────────

    def pass_on(self, orders: Sequence[Order], state: State) -> None:
        """Pass on what needs no entry: aborts, checks, and conditions to be judged."""
        told = {order.call for order in orders if isinstance(order, ControlChild)}
        for under_way in self._flights.values():
            if under_way.call.id not in told and under_way.let_go():
                # Whoever attends to the child may just have seen it paused with us.
                self._means.news.tell(child_id(self._run, under_way.call.id))
        for order in orders:
            match order:
                case AbortCall(call=call, because=because):
                    if (flight := self._flights.get((call, "call"))) is not None:
                        self._stop(flight, because)
                case ControlChild(call=call, control=control):
                    flight = self._flights.get((call, "call"))
                    if flight is not None and flight.passed_on != order:
                        flight.stop, flight.passed_on = control, order
                        self._means.tasks.start_soon(pass_on, self._means, self._run, flight)
                case CheckCall(call=call) if (call, "check") not in self._flights:
                    self._launch(state, call, "check")
                case Judge(name=name) if name not in self._judging:
                    self._judging.add(name)
                    self._means.tasks.start_soon(self._judge, name, state)
                case _:
                    continue

    async def _judge(self, name: str, state: State) -> None:
        given = await judge(self._means, name, state, agent=self._agent, epoch=self.epoch)
        await shake_off()
        self._judging.discard(name)
        self._bring(await hide(self._means.vault, self._run, given))

    # ── stopping ──────────────────────────────────────────────────────────────────────────

    def _stop(self, flight: Flight, because: str) -> None:
        if flight.abort(because):
            self._means.tasks.start_soon(self._mind, flight, because)

    def _watch_overdue(self, flight: Flight, ended: Ended) -> None:
        self._means.tasks.start_soon(self._mind, flight, OVERDUE_REASON, ended)

    async def _mind(self, flight: Flight, because: str, ended: Ended | None = None) -> None:
        """Report a call that does not stop, and after its grace continue without it.

        `ended` waits for the end of the flight, unless only a part of the flight must stop.
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
        flight.given_up = True
        del self._flights[call, flight.form]
        overdue = flight.overdue if because == OVERDUE_REASON else None
        self._bring(overdue or _unknown(self.epoch, flight))

    def wind_up(self) -> None:
        """Stop what can stop without harm at once, and the rest within its grace."""
        for flight in tuple(self._flights.values()):
            if flight.stop in UNWAITED:
                continue
            if flight.call.harmless or flight.form != "call":
                self._stop(flight, SHUTDOWN)
            elif not flight.winding:
                flight.winding = True
                self._means.tasks.start_soon(self._let_finish, flight)

    async def _let_finish(self, flight: Flight) -> None:
        with anyio.move_on_after(self._agent.grace.total_seconds()):
            await flight.ended()
            return
        self._stop(flight, SHUTDOWN)

    def drop(self) -> None:
        """The epoch is over: whatever is still under way here has lost its right to act."""
        self._dropped = True
        for one in self.brought:  # it came, but nobody could journal it any more
            self.too_late(one)
            if one.saved is not None:
                one.saved.over.set()
        self.brought.clear()
        for flight in self._flights.values():
            flight.abort(FENCED)

    # ── too late ──────────────────────────────────────────────────────────────────────────

    def too_late(self, brought: "Brought") -> None:
        """Keep a result that the journal did not wait for."""
        if brought.flight is not None:
            self._means.tasks.start_soon(self._bring_late, brought.flight, brought.given)

    async def _bring_late(self, flight: Flight, given: Evidence) -> None:
        """Say what became of a call whose end the journal has without us: nothing else.

        For as long as this process lives: a store may be away for longer than any lease.
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
            with anyio.move_on_after(LATE_S, shield=True):
                await self._insist(late, leaving=True)
            raise

    async def _insist(self, late: LateResult, *, leaving: bool = False) -> None:
        with suppress(MidrunError):
            while not await self._append_late(late, leaving=leaving):
                pass

    async def _append_late(self, late: LateResult, *, leaving: bool) -> bool:
        """Tell whether it is journaled, or need not be; if not, it is worth another attempt.

        While the journal has the call in flight under our own epoch, whoever takes the run next
        has yet to say that nobody knows: only then does it settle anything.
        """
        store = self._means.store
        with suppress(StoreBusy, StoreFull, StoreUnreachable):
            state = await load(store, self._run)
            call = state.call(late.call)
            in_flight = call is not None and call.stage is Stage.STARTED
            if leaving or not in_flight or state.epoch != late.epoch:
                await bring(store, state, Late(result=late), self._means.clock)
                return True
        await anyio.sleep(LATE_S / 10)
        return False


async def _save_nothing(_: Json) -> None:
    """Refuse to save for an undo, a release or a check: progress is that of the call."""
    raise Misconfigured(
        "call.save", "only the call itself can save, not what cleans up after it"
    )


class Saved:
    """What a tool waits for that saves its progress: the end of it, and whether it is kept."""

    __slots__ = ("durable", "over")

    def __init__(self) -> None:
        self.over = anyio.Event()
        self.durable = False


class Brought(NamedTuple):
    """Evidence, the flight that it comes from, and who waits for it, if there are such."""

    given: Evidence
    flight: Flight | None = None
    saved: "Saved | None" = None  # somebody waits until it is durable


def _failed(epoch: Epoch, flight: Flight, error: str) -> Evidence:
    call = flight.call.id
    match flight.form:
        case "call" if flight.call.harmless:
            return Close(epoch=epoch, outcome=CallFailed(call=call, error=error))
        case "call":
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
