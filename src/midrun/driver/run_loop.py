"""The drive: one run under one lease. Plan, append, let out what was started, wait for news.

It decides nothing. What came of calls and what the plan orders next are decided together, on
what the journal says, and appended in one go: the end of one call and the start of the next are
one commit. If somebody appended first, it reads on and decides again. Nothing leaves that is
not in the journal as started.
"""

from collections.abc import Sequence
from typing import Final

import anyio

from midrun.agents.agent import Agent
from midrun.codec.snapshot import due
from midrun.core import controls as c
from midrun.core.decision import Accepted, Refused
from midrun.core.driver_inputs import (
    Advanced,
    AskPerson,
    Close,
    Evidence,
    Fail,
    Settled,
    StandDown,
    Start,
    StartUndo,
    TakeLease,
    Wake,
)
from midrun.core.effects import (
    Advance,
    CallModel,
    CallTool,
    Order,
    Park,
    Release,
    Settle,
    Undo,
    WakeAt,
)
from midrun.core.entries import CallAborted
from midrun.core.evolve import apply, fold
from midrun.core.ids import START, Micros, Seq
from midrun.core.run_head import head_of
from midrun.core.scheduler import plan
from midrun.core.state import State
from midrun.core.stops import MaxCost, MaxTokens, leaves
from midrun.core.values import NOTHING, Actor, Spend
from midrun.driver.context import Means
from midrun.driver.dispatcher import Door
from midrun.driver.journal_writer import Batch, bring, read_on, snapshot_if_due
from midrun.driver.model_calls import prompt_for
from midrun.driver.notifications import Bell
from midrun.driver.suspect_calls import Place
from midrun.driver.user_code_errors import must_go_on, words
from midrun.errors import (
    HaltInForce,
    LeaseHeld,
    SeqConflict,
    StaleEpoch,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreUnreachable,
)
from midrun.ports.store import Appended, Lease

PATIENCE_S: Final = 0.25
"""How long a drive waits before it tries a store again that cannot write just now."""


class Drive:
    """Drives one run until it rests, ends, or somebody else has it.

    `state` is what the journal means as far as this drive has read it.
    """

    def __init__(self, means: Means, agent: Agent, state: State) -> None:
        self.state = state
        self._means = means
        self._agent = agent
        self._bell = Bell()
        self._door = Door(means, agent, state.run, self._bell)
        self._lease: Lease | None = None
        self._newest = state.seq  # as far as anybody told us
        self._latch: c.Halt | None = None
        self._snapshot = START
        self._alarm: Micros | None = None
        self._place = Place(means.alone, state.run, self._bell)
        self._leaving = ""
        self._fenced = False

    @property
    def behind(self) -> bool:
        """Whether somebody told it of more than it has read."""
        return self._newest > self.state.seq

    # ── what others tell it ───────────────────────────────────────────────────────────────

    def grew(self, seq: Seq) -> None:
        """Hear that the journal has grown to `seq`."""
        if seq > self._newest:
            self._newest = seq
            self._bell.ring()

    def meet(self, scope: str, by: str, reason: str = "") -> None:
        """Hear that an operator's latch holds the run."""
        operator = Actor(name=by, role="operator")
        self._latch = c.Halt(by=operator, scope=scope, reason=reason)
        self._bell.ring()

    def stand_down(self, why: str) -> None:
        """Let go of the run soon: it goes on wherever a driver takes it next."""
        self._leaving = why
        self._bell.ring()

    def fence(self) -> None:
        """Lose the right to act: whatever is under way here is dropped whole."""
        self._fenced = True
        self._door.drop()
        self._bell.ring()

    # ── the loop ──────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Take the lease if it can be had, and drive until there is nothing to drive.

        Raises:
            NoRoom: the fleet drives as many such runs as it may; this one waits.
        """
        await self._means.holder.ready()
        self._means.holder.took()
        try:
            while self._lease is None:
                if not await self._take():
                    return
            while self._holds():
                await self._turn()
        except StaleEpoch:
            return
        finally:
            self._door.drop()
            self._place.leave()
            self._means.holder.gave_back()

    def _holds(self) -> bool:
        state, lease = self.state, self._lease
        mine = lease is not None and state.leased and state.epoch == lease.epoch
        return mine and not self._fenced

    async def _take(self) -> bool:
        """Take the lease, with whatever can start at once; False if it cannot be had."""
        await self._read()
        batch = self._batch()
        wanted = TakeLease(holder=self._means.holder.name, agent_print=self._agent.fingerprint)
        if not isinstance(batch.add(wanted), Accepted):
            return False
        self._follow(batch)
        try:
            return await self._append(batch) or self._lease is None
        except LeaseHeld:
            return False

    async def _turn(self) -> None:
        """Take what has come in, decide what it means, append it, and pass on what follows."""
        if self._alarm is not None and self._alarm <= self._means.clock():
            await self._wake()
        await self._read()
        if not self._holds():
            return
        batch = self._batch()
        brought = tuple(self._door.brought)
        late = [one for one in brought if not self._taken_in(batch, one.given)]
        latch = self._met(batch)
        self._place.look_anew()
        if self._leaving:
            self._stand_down(batch)
            orders: Sequence[Order] = plan(batch.state)
        else:
            orders = self._follow(batch)
        if batch.entries and not await self._append(batch):
            return
        del self._door.brought[: len(brought)]
        for one in brought:
            if one.saved is not None:
                one.saved.durable = one not in late
                one.saved.over.set()
        for one in late:
            self._door.too_late(one)
        self._latch = self._latch if self._latch is not latch else None  # or another came
        self._door.pass_on(self._place.may_go(orders, self.state), self.state)
        if self._holds():
            await self._bell.wait(self._wait(orders))

    def _met(self, batch: Batch) -> c.Halt | None:
        """Add the latch that holds the run, if there is one."""
        if self._latch is not None:
            batch.add(self._latch)
        return self._latch

    async def _wake(self) -> None:
        """Do what is due, as the clock and not as the driver: it lets go of people's pauses."""
        self._alarm = None
        ruled = await bring(self._means.store, self.state, Wake(), self._means.clock)
        self.state = ruled.after
        self._means.news.tell(self.state.run)

    def _taken_in(self, batch: Batch, given: Evidence) -> bool:
        """Add evidence to the batch; False if the journal does not wait for it any more."""
        if not isinstance(batch.add(given), Refused):
            return True
        if isinstance(given, AskPerson):  # nobody is asked any more: then it was stopped
            stopped = CallAborted(call=given.call)
            batch.add(Close(epoch=given.epoch, outcome=stopped))
        return False

    def _batch(self) -> Batch:
        return Batch(self.state, self._means.clock())

    async def _read(self) -> None:
        if self.behind:
            told = self._newest
            self.state = await read_on(self._means.store, self.state)
            if self._newest == told:  # nobody has told us more meanwhile
                self._newest = self.state.seq
            self._means.news.tell(self.state.run)

    def _follow(self, batch: Batch) -> Sequence[Order]:
        """Add what the plan orders and the journal alone can do: boundaries, starts, ends.

        Returns what is left: orders for calls that have left, and waits.
        """
        while True:
            orders: Sequence[Order] = plan(batch.state)
            for order in orders:
                if self._not_yet(order, batch):
                    continue
                given = self._evidence(order, batch)
                if given is not None and isinstance(batch.add(given), Accepted):
                    break
            else:
                return orders

    def _evidence(self, order: Order, batch: Batch) -> Evidence | None:
        """Return what carrying out `order` begins with; None if that is not for the journal."""
        state, epoch = batch.state, batch.state.epoch
        match order:
            case Advance():
                return Advanced(epoch=epoch)
            case CallModel(call=call):
                try:
                    reserve = self._reserve(order, state)
                except BaseException as error:
                    if must_go_on(error):
                        raise
                    return Fail(epoch=epoch, error=words(error), code="model_error")
                return Start(epoch=epoch, call=call, seen=state.seq, reserve=reserve)
            case CallTool(call=call):
                return Start(epoch=epoch, call=call, seen=state.seq)
            case Undo(call=call, action=action) | Release(call=call, action=action):
                return StartUndo(epoch=epoch, call=call, action=action)
            case Settle():
                return Settled(epoch=epoch)
            case Park():
                return StandDown(epoch=epoch, why="halted")
            case _:
                return None

    def _not_yet(self, order: Order, batch: Batch) -> bool:
        """Tell whether an order has to wait: for its time, or for its turn."""
        after = order.after if isinstance(order, CallModel | Undo | Release) else None
        if after is not None and after > batch.now:
            return True
        if not isinstance(order, CallModel | CallTool):
            return False
        return self._place.must_wait(batch.state, order.call)

    def _reserve(self, order: CallModel, state: State) -> Spend:
        """Return what to set aside for a model call, where a cap has to know."""
        if not any(isinstance(leaf, MaxTokens | MaxCost) for leaf in leaves(state.stop)):
            return NOTHING
        prompt = prompt_for(self._agent, state, condense=order.purpose == "condense")
        return self._means.model_of(self._agent).reserve(prompt)

    def _stand_down(self, batch: Batch) -> None:
        """Give the lease back once nothing is in flight; what can stop, stops at once."""
        self._door.wind_up()
        batch.add(StandDown(epoch=batch.state.epoch, why=self._leaving))

    def _wait(self, orders: Sequence[Order]) -> float | None:
        """Return for how long nothing has to be done unless there are news."""
        times = [
            order.after
            for order in orders
            if isinstance(order, (CallModel, Undo, Release)) and order.after is not None
            if not self._place.waits(order.call)
        ]
        self._alarm = min((o.at for o in orders if isinstance(o, WakeAt)), default=None)
        if self._alarm is not None:
            times.append(self._alarm)
        waits = [(min(times) - self._means.clock()) / 1e6] if times else []
        waits += [] if self._place.wait_s is None else [self._place.wait_s]
        return min(waits, default=None)

    # ── appending ─────────────────────────────────────────────────────────────────────────

    async def _append(self, batch: Batch) -> bool:
        """Append the batch and let out what it starts; False: read on and decide again."""
        # The store's word of our own append is no news: it may come before the answer.
        self._newest = Seq(max(self._newest, batch.state.seq))
        try:
            appended = await self._commit(batch)
        except SeqConflict:
            return False
        except HaltInForce as halt:
            await self._halted(halt)
            return False
        except (StoreBusy, StoreFull, StoreUnreachable) as problem:
            # Nothing leaves that is not journaled; what came back is kept until it can be.
            await anyio.sleep(PATIENCE_S)
            return isinstance(problem, StoreUnreachable) and await self._found(batch)
        same = appended.at == max(batch.now, batch.base.at)
        self.state = batch.state if same else apply(batch.base, batch.entries, appended.at)
        if self.state.phase is not batch.base.phase:
            self._means.news.tell(self.state.run)  # the store's word may have come before ours
        self._door.leave(batch.entries, self.state)
        if due(seq=self.state.seq, snapshot=self._snapshot):
            self._snapshot = await snapshot_if_due(
                self._means.store, self.state, appended, last=self._snapshot
            )
        return True

    async def _found(self, batch: Batch) -> bool:
        """Find out whether a batch that nobody answered for was appended all the same."""
        if self._lease is None:
            return False  # a lease that we do not know of is taken anew
        try:
            records = await self._means.store.read(self.state.run, after=batch.base.seq)
        except StoreError:
            return False
        ours = records[: len(batch.entries)]
        if [record.entry for record in ours] != batch.entries:
            return False
        self.state = fold(self.state.run, ours, batch.base)
        self._means.news.tell(self.state.run)
        self._door.leave(batch.entries, self.state)
        return True

    async def _commit(self, batch: Batch) -> Appended:
        store, run, head = self._means.store, self.state.run, head_of(batch.state)
        after = batch.base.seq
        if self._lease is not None:
            return await store.append(
                run, batch.entries, after=after, lease=self._lease, head=head, at=batch.now
            )
        self._lease, appended = await store.take(
            run,
            batch.entries,
            after=after,
            holder=self._means.holder.name,
            head=head,
            limits=self._means.limits_on(batch.base),
        )
        self._door.epoch = self._lease.epoch
        return appended

    async def _halted(self, halt: HaltInForce) -> None:
        """Meet a latch; without a lease the run is halted right where it rests."""
        self.meet(halt.scope, halt.by, halt.reason)
        if self._lease is not None or self._latch is None:
            return
        batch = self._batch()
        batch.add(self._latch)
        if not batch.entries:
            return
        try:
            await self._means.store.append(
                self.state.run,
                batch.entries,
                after=batch.base.seq,
                lease=None,
                head=head_of(batch.state),
            )
        except SeqConflict as conflict:
            self._newest = Seq(max(self._newest, conflict.head))
        else:
            self._newest = Seq(batch.state.seq)
