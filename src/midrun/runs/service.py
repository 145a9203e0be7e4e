"""`RunService`: submit controls, read states and wait for changes of the runs of one store.

All handles of one `Midrun` share one service. A control goes through `submit`: load the state,
redact secrets, decide and append with a retry on conflict (`driver/journal_writer.py`), tell
the local worker, return the receipt. A waiter subscribes to changes of its run first and reads
the journal afterwards, so that no change falls between the two.
"""

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

# Receipts: the answer to a control.


def receipt(control: c.Control, ruled: Ruled) -> Receipt:
    """Return the receipt for `control`.

    Raises:
        ControlRefused: The control was refused; the journal is unchanged.
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
        pausing = True  # it is journaled now, and carried out when the halt is lifted
    # `after.pending` holds redirects and messages that wait for a step boundary. A no-op
    # (`Already`) refers to the entry of the earlier control; an accepted one may have appended
    # several entries, from `ruled.seq` on.
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
    """Return the decision that closed the ask first, or the arguments that are hidden."""
    verdict, ask = ruled.verdict, ruled.after.ask(getattr(control, "ask", ""))
    if isinstance(control, c.Approve) and getattr(verdict, "reason", "") == "hidden_argument":
        call = None if ask is None else ruled.after.call(ask.call)
        return (
            "" if ask is None or call is None else check_hidden(ask, call.use, control.args)[0]
        )
    lost = isinstance(verdict, Refused) and verdict.reason in LOST_ASK
    return describe_closure(ask) if lost and ask is not None else ""


class Desk:
    """Reads and controls the runs of one store, for all handles of a `Midrun`.

    `find_live_state` returns the state of a run that is driven in this process, and
    `on_appended` tells the worker of this process that a journal has grown. `Midrun` sets both
    when it starts a worker; without one they do nothing.
    """

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
        # One lock per run, for as long as a control of the run holds or awaits it.
        self._turns: WeakValueDictionary[RunId, anyio.Lock] = WeakValueDictionary()

    async def ask(self, run: RunId, control: Control) -> Receipt:
        """Append `control` to the journal of `run`, and wake its worker if it is local.

        Raises:
            ControlRefused: The run cannot take it in its phase.
            RunNotFound: There is no such run.
        """
        self.news.check_loop()
        # Controls of one run from this process take turns. Without the lock, n concurrent ones
        # would decide on the same seq, all but one would conflict, and each round would cost
        # n - 1 wasted appends. The lock is not needed for correctness: the store compares the
        # seq, and controls from other processes do not hold it.
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
        """Check that a run in `state` would accept `controls`, in this order.

        Raises:
            ControlRefused: The first control that it would refuse.
        """
        # Deciding stops at the first refusal, so there may be fewer results than controls.
        for control, ruled in zip(
            controls, rule(Batch(state, self.now()), controls), strict=False
        ):
            receipt(control, ruled)

    async def ask_all(self, run: RunId, controls: Sequence[Control]) -> None:
        """Append all of `controls` to the journal in one transaction, or none of them.

        Raises:
            ControlRefused: The run cannot take one of them.
        """
        self.news.check_loop()
        state = self.known(run) or await load(self.store, run)
        controls = [await hide_control(self._vault, state, one) for one in controls]
        every = await bring_all(self.store, state, controls, self.now)
        for control, ruled in zip(controls, every, strict=False):
            receipt(control, ruled)
        self.hear(run, every[-1].after)

    async def _check_edited(self, state: State, control: Approve) -> None:
        """Check edited arguments against the tool's schema, while the ask is still open.

        This process may not have the agent. Then the arguments are not checked here, and the
        call fails in the worker if they do not match.

        Raises:
            ControlRefused: `bad_arguments`; the ask stays open, so the person can correct them.
        """
        ask, agent = state.ask(control.ask), self.agents.get(state.started.agent)
        if ask is not None and ask.ask_kind == "child" and isinstance(ask.data, dict):
            # The ask belongs to a child run and is only shown on this one: check it there.
            child = await load(self.store, RunId(str(ask.data.get("run"))))
            child_ask = AskId(str(ask.data.get("ask")))
            await self._check_edited(child, replace(control, ask=child_ask))
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
        """Return the state of `run` as of its newest entry.

        Raises:
            RunNotFound: There is no such run.
        """
        state = self.known(run)
        if state is None:
            return await load(self.store, run)
        # The worker's state may be older than the newest entry; fold the rest.
        return await read_on(self.store, state)

    async def create(self, run: RunId, started: RunStarted) -> bool:
        """Create the journal of `run`; return False if an equal request created it before.

        If several processes race with the same request id, exactly one returns True.

        Raises:
            ControlRefused: `request_id_reused`: the run exists, with other arguments.
        """
        self.news.check_loop()
        empty, started = State(run=run), await hide(self._vault, run, started)
        head = head_of(apply(empty, [started], self.now()))
        try:
            appended = await self.store.create(run, [started], head=head)
        except RunExists:
            state = await load(self.store, run)
            if _same(state.started) != _same(started):
                detail = "this run has the same request id, and was started otherwise"
                control = "start" if started.forked is None else "fork"
                raise ControlRefused(
                    run, control, "request_id_reused", state.phase, (control,), detail=detail
                ) from None
            return False
        self.hear(run, apply(empty, [started], appended.at))
        return True

    def id_for(self, request_id: str) -> RunId:
        """Return the id for a new run, derived from the request id if there is one."""
        return run_for(request_id) if request_id else RunId(f"run_{self.new_id()}")

    async def fork(
        self, run: RunId, seq: int | None, *, instruction: str, by: Actor, request: str
    ) -> tuple[RunId, bool]:
        """Start a run that continues `run` from its boundary at `seq`, or the newest one.

        Return its id, and False if an earlier request with the same id created it.

        Raises:
            ControlRefused: `not_a_boundary`: a call was in flight at `seq`, or the journal has
                no such entry.
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
        # Folding a long journal takes long enough to delay the event loop.
        state, found = await anyio.to_thread.run_sync(_find_boundary, run, records, seq)
        forked = None if found is None else fork(found, by=by, instruction=instruction)
        if forked is None or isinstance(forked, Refused):
            ends = f"the journal ends at {state.seq}"
            amid = f"a call was in flight at {seq}"
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
        """Wait until the run is in one of `phases`, and return its state at that moment."""

        # A run in progress appends many entries per second. If the local worker drives it, its
        # state in memory is enough to see that the phase is still another one; the filter then
        # saves waking the waiter and reading the store. If another process drives it, every
        # change has to be looked at.
        def may_have_reached() -> bool:
            live_state = self.known(run)
            return live_state is None or live_state.phase in phases

        # Subscribe before the first read: a change between the two sets the wakeup.
        with self.news.of(run, may_have_reached) as wakeup:
            while True:
                if may_have_reached():
                    state = await self.state_of(run)
                    if state.phase in phases:
                        return state
                await self.rung(wakeup)

    async def rung(self, bell: Bell) -> None:
        """Wait until the subscribed run has changed.

        Raises:
            StoreClosed: The `Midrun` was left; there will be no further notifications.
        """
        # Checked twice: the notifier may have ended before this wait, and its end is also
        # signalled by waking all waiters.
        if not self.news.over:
            await bell.wait()
        if self.news.over:
            raise StoreClosed("midrun")

    async def checkpoint_of(self, state: State, *, expires: Micros | None = None) -> Checkpoint:
        """Return a checkpoint of a parked run, signed if there is a key.

        Raises:
            CheckpointRefused: The run, or one of its children, is not at rest.
        """
        return Checkpoint.of(
            state.run,
            # The journal may have grown since `state` was read: cut it there.
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
        """Complete a person's tool use with the traits that the agent's tool declares.

        Raises:
            ControlRefused: `unknown_agent`: this process does not have the agent, so it cannot
                find out whether the call needs an approval. `bad_arguments`: there is no such
                tool, or the arguments do not match its schema.
        """
        agent, phase = self.agents.get(state.started.agent), state.phase
        reason = "unknown_agent"
        detail = f"this process does not have agent {state.started.agent}"
        if agent is not None:
            use = agent.offered(use)
            reason, detail = "bad_arguments", use.refused
        if detail:
            raise ControlRefused(
                state.run, "use_tool", reason, phase, possible(state), detail=detail
            )
        return use


def _same(started: RunStarted) -> tuple[object, ...]:
    """Return the fields in which a repeated request must be equal to the first one.

    Of a fork only the run counts, not the boundary: a repeat of a fork from the newest boundary
    may find a newer one.
    """
    origin = started.forked.run if started.forked is not None else ""
    return (
        started.agent,
        started.task,
        started.thread,
        started.labels,
        started.by,
        origin,
    )


def _nothing(_: RunId) -> None:
    return None


def _ignored(_: RunId, __: State) -> None:
    return None


def run_for(request_id: str) -> RunId:
    """Return the id of the run that a request with this id starts.

    The id is a hash of the request id. A repeat, from any process, computes the same run id and
    fails to create it, so no table of request ids is needed.
    """
    return RunId(f"run_{sha256(request_id.encode()).hexdigest()[: 2 * ID_BYTES]}")


def _find_boundary(
    run: RunId, records: Sequence[Record], seq: int | None
) -> tuple[State, State | None]:
    """Return the last state, and the state at the newest boundary, or at `seq` if given.

    The second one is None if there is no such boundary.
    """
    state, found = State(run=run), None
    for record in records:
        state = fold(run, [record], state)
        if (seq is None or record.seq == seq) and is_boundary(state):
            found = state
    return state, found


# Halts: the effect of lifting one on the runs that it covered.


async def let_go(desk: Desk, by: Actor) -> None:
    """Lift the halt from every halted run that no halt in the store covers any more.

    A run whose journal cannot be read stays halted.
    """
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
                continue
            if ruled.entries:
                desk.hear(row.run, ruled.after)
        cursor = page.cursor
        if not cursor:
            return


# Threads: conversations of several runs.

THREAD_RUNS: Final = 50
"""The default of `Midrun(thread_runs=…)`: how many runs of a thread its history covers."""


async def said_before(
    store: Store, thread: str, *, owner: str = "", runs: int = THREAD_RUNS
) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """Return the messages of the newest runs of a thread, and the people who steered them.

    The oldest messages come first. Each run contributes only its own messages, without the
    history that it started with. So a message is included even if an older run wrote it after
    a newer run of the thread had started. With an `owner`, only runs of this owner count: two
    owners may use the same thread name for different threads.
    """
    if not thread:
        return (), ()
    page = await store.runs(Query(thread=thread, owner=owner, limit=runs))
    messages: list[Message] = []
    people: list[str] = []
    for row in reversed(page.items):  # the page has the newest run first
        try:
            state = await load(store, row.run)
        except (JournalCorrupt, JournalTooNew):
            unreadable = f"What was said in run {row.run} cannot be read any more."
            messages.append(Message(role="runtime", text=unreadable))
            continue
        messages += history(state, inherited=len(state.started.history))
        people += state.steered_by
    shortened = bounded(messages)
    if page.cursor:  # the thread has more runs than one page
        left_out = f"Messages from before the newest {runs} runs of this thread are left out."
        shortened = (Message(role="runtime", text=left_out), *shortened)
    return shortened, tuple(people)
