"""`Midrun`: a store, the agents this process knows, and the engine that drives their runs."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from hashlib import sha256
from types import TracebackType
from typing import Final, Literal, Self, cast

import anyio
import anyio.to_thread

from midrun.agents.agent import Agent
from midrun.agents.checkpoint import Checkpoint
from midrun.core import controls as c
from midrun.core.entries import RunStarted
from midrun.core.fork import history
from midrun.core.head import head_of
from midrun.core.ids import RunId
from midrun.core.stops import MaxCost, Stop, leaves
from midrun.core.values import Json, Message, Phase
from midrun.driver.control import bring
from midrun.driver.journal import load
from midrun.driver.live import Live
from midrun.driver.news import News
from midrun.embed.actors import Who, actor_of
from midrun.embed.desk import Desk
from midrun.embed.resuming import answers
from midrun.embed.run import Run, phase_of
from midrun.embed.verdict import Verdict, verdict_on
from midrun.engines.local import Local
from midrun.errors import Misconfigured, RunNotFound
from midrun.models.named import model_of
from midrun.ports.model import Model
from midrun.ports.outside import ID_BYTES, Outside
from midrun.ports.store import Halt, Page, Query, RunRow, Store
from midrun.stores.sqlite.connect import Durability
from midrun.stores.urls import open_store

REMEMBERED: Final = 50
"""How many of the newest runs of a thread a new one is told of."""


class Midrun:
    """Starts runs, finds them again, and drives them while it is open.

    `store` is an address (`sqlite:///runs.db`, `memory://`) or a store. `agents` are the ones
    whose runs this process drives; without any it only looks and controls. `key` signs
    checkpoints. Use it as an async context manager; leaving it stands down from every run,
    which is not a pause: they go on wherever a driver takes them next.
    """

    def __init__(
        self,
        store: str | Store = "sqlite:///midrun.db",
        *,
        agents: Iterable[Agent] = (),
        engine: Literal["local"] | None = "local",
        key: bytes | None = None,
        durability: Durability = "full",
        outside: Outside | None = None,
    ) -> None:
        self.agents = _named(agents)
        self._address = store
        self._engine = engine
        self._key = key
        self._durability = durability
        self._outside = outside or Outside()
        self._clock = self._outside.clock
        self._models: dict[str, Model] = {}
        self._open: AsyncExitStack | None = None
        self._opened = False
        self._local: Local | None = None
        self._at: Desk | None = None

    async def __aenter__(self) -> Self:
        if self._opened:
            raise Misconfigured("Midrun", "it is open already; make a second one instead")
        self._opened = True
        try:
            async with AsyncExitStack() as stack:
                store = self._address
                if isinstance(store, str):
                    store = await open_store(
                        store, durability=self._durability, clock=self._clock
                    )
                    stack.push_async_callback(store.close)
                await self._run(stack, store)
                self._open = stack.pop_all()
        finally:
            self._opened = self._open is not None
            self._at = self._at if self._opened else None
        return self

    async def _run(self, stack: AsyncExitStack, store: Store) -> None:
        news = News(store)
        live = Live()
        self._at = Desk(
            store, self.agents, news=news, live=live, outside=self._outside, key=self._key
        )
        for agent in self.agents.values():  # before any task group, which would wrap an error
            await self._take_model(stack, agent)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        await tasks.start(news.watch)
        if self._engine is None or not self.agents:
            return
        local = Local(
            store,
            news,
            self.agents,
            live=live,
            model_of=self._model_of,
            outside=self._outside,
        )
        await stack.enter_async_context(local.running())
        self._local = local
        self._desk.known, self._desk.hear = local.known, local.hear

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        opened, self._open, self._opened = self._open, None, False
        if opened is None:
            return None
        if error is not None and not isinstance(error, anyio.get_cancelled_exc_class()):
            # It is the caller's own: our task groups would only wrap it.
            await opened.aclose()
            return None
        return await opened.__aexit__(kind, error, trace)

    @property
    def store(self) -> Store:
        """The store that is open."""
        return self._desk.store

    @property
    def _desk(self) -> Desk:
        if self._at is None:
            raise Misconfigured("Midrun", "open it first: async with Midrun(…) as midrun")
        return self._at

    # ── runs ──────────────────────────────────────────────────────────────────────────────

    async def start(
        self,
        agent: str | Agent,
        task: str,
        *,
        thread: str | None = None,
        labels: Sequence[str] | None = None,
        stop: Stop | None = None,
        request_id: str | None = None,
        actor: Who = None,
    ) -> Run:
        """Start a run of one of the agents; it is driven here at once.

        `stop` takes the place of the agent's own. A repeat with the same `request_id` returns
        the first run.

        Raises:
            Misconfigured: no such agent, or a cap on money for a model without a price.
            ControlRefused: `request_id_reused`, with another task.
        """
        if isinstance(labels, str):
            raise Misconfigured("labels", f"they are a list: labels=[{labels!r}]")
        known = self._agent(agent)
        stop = known.stop if stop is None else stop
        self._check_price(known, stop)
        person = actor_of(actor)
        started = RunStarted(
            task=task,
            **known.spec(stop),
            thread=thread or "",
            history=await self._said_before(thread) if thread else (),
            labels=tuple(labels or ()),
            by=person.name,
            role=person.role,
            request=request_id or "",
        )
        run = RunId(f"run_{_told(request_id) if request_id else self._outside.ids()}")
        await self._desk.create(run, started)
        return Run(run, self._desk)

    async def _said_before(self, thread: str) -> tuple[Message, ...]:
        """Return what the runs of a thread said, oldest first, each without what it was told.

        So what an older run says after a newer one has started is not lost to the thread.
        """
        page = await self.store.runs(Query(thread=thread, limit=REMEMBERED))
        said: list[Message] = []
        for row in reversed(page.items):
            state = await load(self.store, row.run)
            said += history(state, inherited=len(state.started.history))
        return tuple(said)

    async def get(self, run_id: str) -> Run:
        """Return the handle of a run.

        Raises:
            RunNotFound: there is none of this id; it is a LookupError, too.
        """
        await self.store.row(RunId(run_id))
        return Run(RunId(run_id), self._desk)

    async def runs(
        self,
        *,
        phase: str | None = None,
        agent: str | None = None,
        label: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[RunRow]:
        """Return a page of runs, newest first; `page.cursor` leads to the next."""
        return await self.store.runs(
            Query(
                phases=() if phase is None else (phase_of(phase),),
                agent=agent or "",
                label=label or "",
                limit=limit,
                cursor=cursor or "",
            )
        )

    async def resume(
        self,
        checkpoint: Checkpoint,
        answer: Json = None,
        *,
        instruction: str | None = None,
        caps: dict[str, float] | None = None,
        actor: Who = None,
    ) -> Run:
        """Go on from a checkpoint: a run that the store does not know is imported.

        Raises:
            CheckpointRefused: stale (the run went on meanwhile), expired, or of another agent.
            ControlRefused: the answer or the instruction does not fit where the run stands.
        """
        if self._key is not None:
            checkpoint.check_signed(self._key)
        try:
            row = await self.store.row(checkpoint.run)
        except RunNotFound:
            row = None
        if row is not None:
            checkpoint.check_head(row.seq, row.hash)
        agent = self.agents.get(checkpoint.agent)
        name = ", ".join(self.agents) if agent is None else agent.name
        print_ = "" if agent is None else agent.fingerprint
        checkpoint.check_for(name, print_, self._clock())
        state = checkpoint.state()
        wishes = answers(state, answer, instruction, caps=caps or {}, by=actor_of(actor))
        self._desk.check_all(state, wishes)  # before anything is taken in
        if row is None:
            await self.store.adopt(checkpoint.run, checkpoint.journal, head=head_of(state))
        await self._desk.ask_all(checkpoint.run, wishes)
        return Run(checkpoint.run, self._desk)

    async def verify(self, run_id: str) -> Verdict:
        """Check the chain and every invariant of a run's journal; truthy when clean."""
        return await verdict_on(self.store, RunId(run_id))

    # ── latches ───────────────────────────────────────────────────────────────────────────

    async def halt(self, reason: str, *, scope: str = "all", actor: Who) -> None:
        """Set a latch: nothing of the runs it covers starts until it is lifted.

        `scope` is `all`, `agent:NAME`, `label:LABEL` or `run:ID`.
        """
        await self.store.halt(Halt(scope=scope, by=actor_of(actor).name, reason=reason))

    async def lift(self, *, scope: str = "all", actor: Who) -> bool:
        """Take a latch away; runs that no other latch covers go on where they were."""
        lifted = await self.store.lift(scope)
        halts = tuple(await self.store.halts())
        cursor = ""
        while True:
            query = Query(phases=(Phase.HALTED,), limit=200, cursor=cursor)
            page = await self.store.runs(query)
            for row in page.items:
                head = row.head
                if not any(h.covers(row.run, head.agent, head.labels) for h in halts):
                    await self._lift(row.run, actor)
            cursor = page.cursor
            if not cursor:
                return lifted

    async def _lift(self, run: RunId, actor: Who) -> None:
        control = c.Lift(by=actor_of(actor))
        ruled = await bring(self.store, await load(self.store, run), control, self._clock)
        if ruled.entries:
            self._desk.hear(run, ruled.after)

    # ── agents ────────────────────────────────────────────────────────────────────────────

    def _agent(self, agent: str | Agent) -> Agent:
        name = agent if isinstance(agent, str) else agent.name
        known = self.agents.get(name)
        if known is None or (isinstance(agent, Agent) and agent is not known):
            names = ", ".join(self.agents) or "none"
            raise Misconfigured(
                f"agent {name}", f"pass it as Midrun(agents=[…]); known here: {names}"
            )
        return known

    async def _take_model(self, stack: AsyncExitStack, agent: Agent) -> None:
        """Find the agent's model, aside: a provider's package takes a second to import.

        One that keeps connections keeps them for as long as this is open.
        """
        model: object = await anyio.to_thread.run_sync(model_of, agent.model)
        if isinstance(model, AbstractAsyncContextManager):
            await stack.enter_async_context(model)
        self._models[agent.name] = cast("Model", model)

    def _model_of(self, agent: Agent) -> Model:
        return self._models[agent.name]

    def _check_price(self, agent: Agent, stop: Stop | None) -> None:
        if any(isinstance(leaf, MaxCost) for leaf in leaves(stop)):
            model = self._model_of(agent)
            if not model.priced:
                problem = "nobody knows what it costs, so MaxCost cannot be kept; use MaxTokens"
                raise Misconfigured(f"model {model.name}", problem)


def _named(agents: Iterable[Agent]) -> dict[str, Agent]:
    """Return the agents by name, with those that are tools of others."""
    named: dict[str, Agent] = {}
    waiting = list(agents)
    while waiting:
        agent = waiting.pop(0)
        if named.setdefault(agent.name, agent) is not agent:
            raise Misconfigured(f"agent {agent.name}", "there are two of this name")
        inner = (tool.agent for tool in agent.tools.values())
        waiting += [a for a in inner if isinstance(a, Agent) and named.get(a.name) is not a]
    return named


def _told(request_id: str) -> str:
    """Return the part of a run's id that follows from the request that started it."""
    return sha256(request_id.encode()).hexdigest()[: 2 * ID_BYTES]
