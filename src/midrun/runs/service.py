"""The desk: where the runs of one store are looked at, waited for, and asked things."""

from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256
from typing import Final
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread
from msgspec.structs import replace

from midrun.agents.agent import Agent
from midrun.agents.checkpoint import Checkpoint
from midrun.codec.hash_chain import chain_of
from midrun.core import controls as c
from midrun.core.controls import Approve, Control, Lift
from midrun.core.decision import Already, Refused
from midrun.core.entries import Record, RunStarted
from midrun.core.evolve import apply, fold
from midrun.core.history import bounded, fork, history, is_boundary
from midrun.core.ids import AskId, Micros, RunId
from midrun.core.placeholders import check_hidden
from midrun.core.run_head import head_of
from midrun.core.state import State
from midrun.core.transitions import name_of, possible
from midrun.core.values import Actor, Message, Phase, Use
from midrun.driver.journal_writer import Batch, Ruled, bring, bring_all, load, read_on, rule
from midrun.driver.live import Live
from midrun.driver.notifications import Bell, News
from midrun.driver.redaction import Vault, hide, hide_control
from midrun.errors import (
    LOST_ASK,
    ControlRefused,
    JournalCorrupt,
    JournalTooNew,
    RunExists,
    StoreClosed,
)
from midrun.ports.environment import ID_BYTES, Outside
from midrun.ports.store import Query, Store
from midrun.runs.checkpoints import members
from midrun.runs.values import Receipt
from midrun.text.entries import describe_closure

# Receipts: what somebody who asked something of a run gets back, or why not.


def receipt(control: c.Control, ruled: Ruled) -> Receipt:
    """Return the receipt for `control`.

    Raises:
        ControlRefused: it was refused, and changed nothing.
    """
    verdict, after = ruled.verdict, ruled.after
    if isinstance(verdict, Refused):
        raise ControlRefused(
            after.run,
            name_of(type(control)),
            verdict.reason,
            after.phase,
            possible(after),
            verdict.by,
            verdict.seq,
            _describe_refusal(control, ruled),
        )
    pausing = isinstance(control, c.Pause | c.TakeOver) and after.phase is Phase.PAUSING
    if isinstance(control, c.Cancel) and after.phase is Phase.HALTED:
        pausing = True  # taken down at once, and carried out when the latch is lifted
    if isinstance(verdict, Already):
        waits = pausing or any(p.seq == verdict.seq for p in after.pending)
        return Receipt(
            seq=verdict.seq,
            phase=after.phase,
            applied=not waits,
            already=verdict.name,
            by=verdict.by,
        )
    waits = pausing or any(p.seq >= ruled.seq for p in after.pending)
    said = next((ack for entry in ruled.entries if (ack := getattr(entry, "ack", ""))), "")
    return Receipt(
        seq=ruled.seq, phase=after.phase, applied=not waits, by=control.by.name, said=said
    )


def _describe_refusal(control: c.Control, ruled: Ruled) -> str:
    """Return the decision that a refused one lost to, or the arguments that are hidden."""
    verdict, ask = ruled.verdict, ruled.after.ask(getattr(control, "ask", ""))
    if isinstance(control, c.Approve) and getattr(verdict, "reason", "") == "hidden_argument":
        call = None if ask is None else ruled.after.call(ask.call)
        return (
            "" if ask is None or call is None else check_hidden(ask, call.use, control.args)[0]
        )
    lost = isinstance(verdict, Refused) and verdict.reason in LOST_ASK
    return describe_closure(ask) if lost and ask is not None else ""


class Desk:
    """What a handle of a run needs. `known` and `hear` are the engine's, where there is one."""

    def __init__(
        self,
        store: Store,
        agents: Mapping[str, Agent],
        *,
        news: News,
        live: Live,
        outside: Outside,
        vault: Vault,
        key: bytes | None = None,
    ) -> None:
        self.store = store
        self.agents = agents
        self.news = news
        self.live = live
        self.now = outside.clock
        self.new_id = outside.ids
        self.known: Callable[[RunId], State | None] = _nothing
        self.hear: Callable[[RunId, State], None] = _ignored
        self._vault = vault
        self._key = key
        self._turns: WeakValueDictionary[RunId, anyio.Lock] = WeakValueDictionary()

    async def ask(self, run: RunId, control: Control) -> Receipt:
        """Put `control` into the journal, and have its driver hear of it at once.

        Raises:
            ControlRefused: it does not fit where the run stands.
            RunNotFound: no such run.
        """
        self.news.check_loop()
        # One after the other: a crowd that decides on the same seq would lose to itself.
        async with self._turns.setdefault(run, anyio.Lock()):
            state = self.known(run) or await load(self.store, run)
            if isinstance(control, Approve) and control.args is not None:
                await self._check_edited(state, control)
            control = await hide_control(self._vault, state, control)
            ruled = await bring(self.store, state, control, self.now)
            if ruled.entries:
                self.hear(run, ruled.after)
        return receipt(control, ruled)

    def check_all(self, state: State, controls: Sequence[Control]) -> None:
        """Refuse if any of `controls`, one after the other, does not fit a run in `state`.

        Raises:
            ControlRefused: the first that does not.
        """
        for control, ruled in zip(
            controls, rule(Batch(state, self.now()), controls), strict=False
        ):
            receipt(control, ruled)

    async def ask_all(self, run: RunId, controls: Sequence[Control]) -> None:
        """Put all of `controls` into the journal in one go, or none of them.

        Raises:
            ControlRefused: one of them does not fit where the run stands.
        """
        self.news.check_loop()
        state = self.known(run) or await load(self.store, run)
        controls = [await hide_control(self._vault, state, one) for one in controls]
        every = await bring_all(self.store, state, controls, self.now)
        for control, ruled in zip(controls, every, strict=False):
            receipt(control, ruled)
        self.hear(run, every[-1].after)

    async def _check_edited(self, state: State, control: Approve) -> None:
        """Refuse edited arguments that do not fit while the ask is still open.

        A desk that does not know the agent cannot; then the call itself fails, and says so.
        """
        ask, agent = state.ask(control.ask), self.agents.get(state.started.agent)
        if ask is not None and ask.ask_kind == "child" and isinstance(ask.data, dict):
            child = await load(self.store, RunId(str(ask.data.get("run"))))
            meant = AskId(str(ask.data.get("ask")))
            await self._check_edited(child, replace(control, ask=meant))
            return
        call = state.call(ask.call) if ask is not None else None
        if agent is None or call is None:
            return
        edited = agent.offered(Use(tool=call.use.tool, args=control.args))
        if edited.refused:
            phase, detail = state.phase, edited.refused
            raise ControlRefused(
                state.run, "approve", "bad_arguments", phase, possible(state), detail=detail
            )

    async def state_of(self, run: RunId) -> State:
        """Return what the journal of `run` means now.

        Raises:
            RunNotFound: no such run.
        """
        state = self.known(run)
        if state is None:
            return await load(self.store, run)
        return await read_on(self.store, state)

    async def create(self, run: RunId, started: RunStarted) -> bool:
        """Begin the journal of `run`, and have it driven; one that is there must be the same.

        Tell whether this began it: of many at once that ask for the same, one did.

        Raises:
            ControlRefused: `request_id_reused`, there is one that was started otherwise.
        """
        self.news.check_loop()
        empty, started = State(run=run), await hide(self._vault, run, started)
        head = head_of(apply(empty, [started], self.now()))
        try:
            appended = await self.store.create(run, [started], head=head)
        except RunExists:
            state = await load(self.store, run)
            if _same(state.started) != _same(started):
                detail = "the request id belongs to this run, which was started otherwise"
                wish = "start" if started.forked is None else "fork"
                raise ControlRefused(
                    run, wish, "request_id_reused", state.phase, (wish,), detail=detail
                ) from None
            return False
        self.hear(run, apply(empty, [started], appended.at))
        return True

    def id_for(self, request_id: str) -> RunId:
        """Return the id of a new run: one that follows from the request, if that has one."""
        return run_for(request_id) if request_id else RunId(f"run_{self.new_id()}")

    async def fork(
        self, run: RunId, seq: int | None, *, instruction: str, by: Actor, request: str
    ) -> tuple[RunId, bool]:
        """Start a run that continues from a boundary of another: at `seq`, or the newest.

        Return its id, and whether this began it.

        Raises:
            ControlRefused: `not_a_boundary`, something was under way there.
        """
        if seq is not None and seq < 1:
            raise ControlRefused(
                run,
                "fork",
                "not_a_boundary",
                (await self.state_of(run)).phase,
                ("fork",),
                detail=f"there is no entry {seq}",
            )
        records = await self.store.read(run, limit=seq)
        state, found = await anyio.to_thread.run_sync(_find_boundary, run, records, seq)
        forked = None if found is None else fork(found, by=by, instruction=instruction)
        if forked is None or isinstance(forked, Refused):
            ends = f"the journal ends at {state.seq}"
            amid = f"at {seq} something was under way"
            raise ControlRefused(
                run,
                "fork",
                "not_a_boundary",
                (await self.state_of(run)).phase,
                ("fork",),
                detail=ends if seq is not None and seq > state.seq else amid,
            )
        new = self.id_for(request)
        return new, await self.create(new, replace(forked, request=request))

    async def reached(self, run: RunId, phases: Collection[Phase]) -> State:
        """Wait until the run is in one of `phases`, and return its state then."""

        def worth() -> bool:
            driven = self.known(run)  # while a drive here has it, what it knows will do
            return driven is None or driven.phase in phases

        with self.news.of(run, worth) as bell:
            while True:
                if worth():
                    state = await self.state_of(run)
                    if state.phase in phases:
                        return state
                await self.rung(bell)

    async def rung(self, bell: Bell) -> None:
        """Wait for news.

        Raises:
            StoreClosed: there will be none, because this has been left.
        """
        if not self.news.over:
            await bell.wait()
        if self.news.over:
            raise StoreClosed("midrun")

    async def checkpoint_of(self, state: State, *, expires: Micros | None = None) -> Checkpoint:
        """Return a parked run as portable JSON, signed where there is a key.

        Raises:
            CheckpointRefused: the run is not at rest, or one of its children is not.
        """
        return Checkpoint.of(
            state.run,
            (await self.store.lines(state.run))[: state.seq],
            agent=state.started.agent,
            agent_print=state.agent_print,
            phase=state.phase,
            now=self.now(),
            expires=expires,
            key=self._key,
            chain=chain_of(self.store),
            children=await members(self.store, state),
        )

    def offered(self, state: State, use: Use) -> Use:
        """Complete a use by what the run's agent knows of its tools.

        Raises:
            ControlRefused: the agent is not known here, so nobody could say who must approve
                it; or it has no such tool, or the arguments do not fit.
        """
        agent, phase = self.agents.get(state.started.agent), state.phase
        reason, detail = "unknown_agent", f"agent {state.started.agent} is not known here"
        if agent is not None:
            use = agent.offered(use)
            reason, detail = "bad_arguments", use.refused
        if detail:
            raise ControlRefused(
                state.run, "use_tool", reason, phase, possible(state), detail=detail
            )
        return use


def _same(started: RunStarted) -> tuple[object, ...]:
    """Return what a repeated request must agree on; a newer boundary of the run will do."""
    origin = started.forked.run if started.forked is not None else ""
    asked = (started.agent, started.task, started.thread, started.labels, started.by)
    return (*asked, origin)


def _nothing(_: RunId) -> None:
    return None


def _ignored(_: RunId, __: State) -> None:
    return None


def run_for(request_id: str) -> RunId:
    """Return the id of the run that a request with this id starts: a repeat finds it again."""
    return RunId(f"run_{sha256(request_id.encode()).hexdigest()[: 2 * ID_BYTES]}")


def _find_boundary(
    run: RunId, records: Sequence[Record], seq: int | None
) -> tuple[State, State | None]:
    """Return the last state, and the one at the newest boundary, or at `seq` if given."""
    state, found = State(run=run), None
    for record in records:
        state = fold(run, [record], state)
        if (seq is None or record.seq == seq) and is_boundary(state):
            found = state
    return state, found


# Latches: what lifting one means for the runs that it held.


async def let_go(desk: Desk, by: Actor) -> None:
    """Let every halted run go on that no latch covers any more, and whose journal is sound."""
    store = desk.store
    halts = tuple(await store.halts())
    cursor = ""
    while True:
        page = await store.runs(Query(phases=(Phase.HALTED,), limit=200, cursor=cursor))
        for row in page.items:
            head = row.head
            if any(h.covers(row.run, head.agent, head.labels) for h in halts):
                continue
            try:
                ruled = await bring(store, await load(store, row.run), Lift(by=by), desk.now)
            except (JournalCorrupt, JournalTooNew):
                continue  # it is left alone until it can be read
            if ruled.entries:
                desk.hear(row.run, ruled.after)
        cursor = page.cursor
        if not cursor:
            return


# Threads: conversations of several runs.

THREAD_RUNS: Final = 50
"""The number of runs in the history of a thread, unless `Midrun(thread_runs=…)` sets it."""


async def said_before(
    store: Store, thread: str, *, owner: str = "", runs: int = THREAD_RUNS
) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """Return the messages of the newest `runs` of a thread, and the people who steered them.

    The oldest come first. Each run contributes its own messages, without the history that it
    began with: so a message that an older run writes after a newer one has started is not lost
    to the thread. With an `owner`, runs of others under the same name are not in the thread.
    """
    if not thread:
        return (), ()
    page = await store.runs(Query(thread=thread, owner=owner, limit=runs))
    said: list[Message] = []
    people: list[str] = []
    for row in reversed(page.items):
        try:
            state = await load(store, row.run)
        except (JournalCorrupt, JournalTooNew):
            lost = f"What was said in run {row.run} cannot be read any more."
            said.append(Message(role="runtime", text=lost))
            continue
        said += history(state, inherited=len(state.started.history))
        people += state.steered_by
    told = bounded(said)
    if page.cursor:
        forgotten = f"Messages from before the newest {runs} runs of this thread are left out."
        told = (Message(role="runtime", text=forgotten), *told)
    return told, tuple(people)
