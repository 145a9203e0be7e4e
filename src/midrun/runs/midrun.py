"""`Midrun`: a store, the agents this process knows, and the engine that drives their runs."""

import asyncio
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Final, Literal, NoReturn, Self, cast

import anyio
import anyio.to_thread
from msgspec.structs import replace

from midrun.agents.agent import Agent
from midrun.agents.checkpoint import Checkpoint
from midrun.codec.redaction import Find
from midrun.core.entries import RunStarted
from midrun.core.evolve import apply
from midrun.core.history import find_unnamed
from midrun.core.ids import CallId, Micros, RunId
from midrun.core.stops import MaxCost, Stop, leaves
from midrun.core.values import Json
from midrun.driver.live import Live
from midrun.driver.notifications import News
from midrun.driver.redaction import Screen, Vault
from midrun.errors import EngineLost, Misconfigured
from midrun.models.registry import model_of
from midrun.ports.environment import Outside
from midrun.ports.model import Model
from midrun.ports.relay import relay_of
from midrun.ports.store import Durability, Halt, Page, Query, Store, Timed
from midrun.runs import validation
from midrun.runs.checkpoints import (
    answers,
    check_agents,
    check_gates,
    load_state,
    make_import_entry,
    read_heads,
    take_in,
)
from midrun.runs.run import Run
from midrun.runs.service import THREAD_RUNS, Desk, let_go, said_before
from midrun.runs.validation import REASON_MAX_CHARS, SCOPE_MAX_CHARS, Who, actor_of, phase_of
from midrun.runs.values import OpenAsk, RunView, Verdict
from midrun.runs.verification import verdict_on
from midrun.runs.views import asked, views
from midrun.stores.urls import open_store
from midrun.workers.concurrency_limits import Fleet
from midrun.workers.local import Local
from midrun.workers.placement import Placing

# A process that was forked from one with an open `Midrun`: how it leaves.

FORKED: Final = """\
midrun: process {child} was forked from {parent} inside an open Midrun, and leaves it.
Its threads stayed with {parent}, and its event loop shares that one's sockets: it can close
nothing, and ends here; the runs of {parent} go on. Fork before a Midrun is opened, or end the
fork with os._exit().
"""


def end_forked_process(parent: int, error: BaseException | None) -> NoReturn:
    """End this process and say why, after `error` if it left by one.

    Whatever it would close, it would wait for for ever, or take away from its parent.
    """
    code = error.code if isinstance(error, SystemExit) else 1
    try:
        if error is not None and not isinstance(error, SystemExit):
            traceback.print_exception(error)
        sys.stderr.write(FORKED.format(child=os.getpid(), parent=parent))
        sys.stderr.flush()
        sys.stdout.flush()
    finally:
        os._exit(code if isinstance(code, int) else int(code is not None))


LISTED: Final = 500
"""Among how many of the newest runs one is found by the beginning of its id."""


class Midrun:
    """Starts runs, finds them again, and drives them while it is open.

    `store` is an address (`sqlite:///runs.db`, `postgresql://…`, `memory://`) or a store.
    `agents` are the ones whose runs this process drives; without any it only looks and
    controls. `engine` is who decides where runs are driven: "local" is whoever is there first,
    None is nobody here, and `midrun.workers.temporal.Temporal(…)` is Temporal. `key` signs
    checkpoints; with `chain_key` nobody who does not have it can write a journal that passes,
    and a store has it from its beginning, or never. Secrets are redacted before anything is
    journaled or shown: those in fields that are named for one, with `redact` as a function also
    what it finds, with False none. `durability="relaxed"` lets a crash of the machine, never
    that of a process, cost the newest entries. `fleet` says which runs this process takes, and
    how many, where others share the store. `thread_runs` is how many of the newest runs of a
    thread a new one is told of; the history says so where older ones are left out. `outside` is
    time, chance and ids, for tests.

    Use it as an async context manager; leaving it stands down from every run, which is not a
    pause: they go on wherever a driver takes them next.
    """

    def __init__(  # noqa: PLR0913 - what a process brings, one by one
        self,
        store: str | Store = "sqlite:///midrun.db",
        *,
        agents: Iterable[Agent] = (),
        engine: Literal["local"] | Placing | None = "local",
        key: bytes | None = None,
        chain_key: bytes | None = None,
        durability: Durability = "full",
        redact: bool | Find = True,
        fleet: Fleet | None = None,
        thread_runs: int = THREAD_RUNS,
        outside: Outside | None = None,
    ) -> None:
        self.agents = _named(agents)
        self._address = store
        self._engine = engine
        self._key = key
        self._chain_key = chain_key
        self._durability = durability
        self._redact = redact
        self._fleet = fleet
        self._thread_runs = validation.count("thread_runs", thread_runs)
        self._outside = outside or Outside()
        self._clock = self._outside.clock
        self._models: dict[str, Model] = {}
        self._open: AsyncExitStack | None = None
        self._opened = False
        self._pid = 0  # of the process that opened it
        self._local: Local | None = None
        self._at: Desk | None = None

    async def __aenter__(self) -> Self:
        if self._opened:
            raise Misconfigured("Midrun", "it is open already; make a second one instead")
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            problem = (
                "cannot open: no event loop of asyncio is running, and Trio is not supported. "
                'Use asyncio.run(main()) or anyio.run(main, backend="asyncio")'
            )
            raise Misconfigured("Midrun", problem) from None
        self._opened, self._pid = True, os.getpid()
        try:
            async with AsyncExitStack() as stack:
                store = self._address
                if isinstance(store, str):
                    store = await open_store(
                        store,
                        durability=self._durability,
                        clock=self._clock,
                        key=self._chain_key,
                    )
                    stack.push_async_callback(store.close)
                elif self._chain_key is not None:
                    raise Misconfigured("chain_key", "open the store with it, as its key")
                await self._run(stack, store)
                self._open = stack.pop_all()
        finally:
            self._opened = self._open is not None
            self._at = self._at if self._opened else None
        return self

    async def _run(self, stack: AsyncExitStack, store: Store) -> None:
        news = News(store)
        if isinstance(store, Timed):  # all who decide on its runs go by its time
            self._outside = self._outside.by(store.clock)
            self._clock = store.clock
        outside, key = self._outside, self._key
        vault = Vault(self._redact, key or outside.ids().encode())
        live = Live(relay_of(store), Screen(vault))
        self._at = Desk(
            store, self.agents, news=news, live=live, outside=outside, vault=vault, key=key
        )
        if self._engine is not None:  # a process that drives nothing needs no provider's key
            for agent in self.agents.values():  # before task groups, which would wrap an error
                await self._take_model(stack, agent)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        await tasks.start(news.watch)
        await tasks.start(live.carry)
        if self._engine is None or not self.agents:
            return
        local = Local(
            store,
            news,
            self.agents,
            live=live,
            vault=vault,
            model_of=self._model_of,
            outside=outside,
            place=None if isinstance(self._engine, str) else self._engine.place,
            fleet=self._fleet,
        )
        await stack.enter_async_context(local.running())
        if not isinstance(self._engine, str):
            placed = self._engine.running(local, store, self.agents)
            await stack.enter_async_context(placed)
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
        if self._pid != os.getpid():
            end_forked_process(self._pid, error)
        if error is not None and not isinstance(error, anyio.get_cancelled_exc_class()):
            # It is the caller's own: our task groups would only wrap it.
            await opened.aclose()
            return None
        if await opened.__aexit__(kind, error, trace):
            raise EngineLost  # a scope of ours cancelled it, and not by our will
        return None

    @property
    def store(self) -> Store:
        """The store that is open."""
        return self._desk.store

    def now(self) -> Micros:
        """Return what time it is for the runs: by the store's clock, where it has one."""
        return self._clock()

    @property
    def _desk(self) -> Desk:
        if self._at is None:
            raise Misconfigured("Midrun", "open it first: async with Midrun(…) as midrun")
        return self._at

    # ── runs ──────────────────────────────────────────────────────────────────────────────

    async def start(  # noqa: PLR0913 - each is said by name
        self,
        agent: str | Agent,
        task: str,
        *,
        thread: str | None = None,
        labels: Sequence[str] | None = None,
        stop: Stop | None = None,
        request_id: str | None = None,
        actor: Who = None,
        trace: str | None = None,
        own_thread: bool = False,
    ) -> Run:
        """Start a run of one of the agents; it is driven here at once.

        `stop` takes the place of the agent's own. A repeat with the same `request_id` returns
        the first run. `trace` is a W3C traceparent: all spans of the run belong to it, however
        often it is paused. It is told what was said in its thread; with `own_thread`, only in
        runs that the same actor started.

        Raises:
            Misconfigured: no such agent, an empty task, or a cap on money without a price.
            ControlRefused: `request_id_reused`, with another task, thread, label or actor.
        """
        known = self._agent(agent)
        stop = known.stop if stop is None else stop
        self._check_price(known, stop)
        person, thread = actor_of(actor), validation.name("thread", thread or "")
        owner = person.name if own_thread else ""
        history, people = await said_before(
            self.store, thread, owner=owner, runs=self._thread_runs
        )
        started = RunStarted(
            task=validation.task(task),
            **known.spec(stop),
            thread=thread,
            history=history,
            steered_by=find_unnamed(people, history, person.name),
            labels=validation.labels(labels),
            by=person.name,
            role=person.role,
            request=validation.text("request_id", request_id or ""),
            trace=validation.traceparent(trace or ""),
        )
        run = self._desk.id_for(started.request)
        began = await self._desk.create(run, started)
        return Run(run, self._desk, repeated=not began)

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
        thread: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[RunView]:
        """Return a page of runs, newest first; `page.cursor` leads to the next."""
        query = Query(
            phases=() if phase is None else (phase_of(phase),),
            agent=validation.name("agent", agent or ""),
            label=validation.name("label", label or ""),
            thread=validation.name("thread", thread or ""),
            limit=validation.count("limit", limit),
            cursor=validation.text("cursor", cursor or ""),
        )
        return await views(self.store, query)

    async def named(self, beginning: str) -> tuple[RunId, ...]:
        """Return which of the newest runs have ids that begin so, with or without `run_`."""
        rows = (await self.store.runs(Query(limit=LISTED))).items
        begins = (beginning, f"run_{beginning}")
        return tuple(row.run for row in rows if row.run.startswith(begins))

    async def asks(self) -> tuple[OpenAsk, ...]:
        """Return everything that runs wait for somebody to decide."""
        return await asked(self.store)

    def silent_calls(self, run_id: str) -> frozenset[CallId]:
        """Return the calls of a run that do not respond, as far as this process was told."""
        return self._desk.live.silent_calls(RunId(run_id))

    async def resume(
        self,
        checkpoint: Checkpoint,
        answer: Json = None,
        *,
        instruction: str | None = None,
        caps: dict[str, float] | None = None,
        actor: Who = None,
        request_id: str | None = None,
    ) -> Run:
        """Go on from a checkpoint: a run that the store does not know is imported.

        A repeat with the same `request_id` finds the run where the first one took it.

        Raises:
            CheckpointRefused: stale (the run went on meanwhile), expired, or of another agent.
            ControlRefused: the answer or the instruction does not fit where the run stands.
        """
        checkpoint = validation.checkpoint(checkpoint)
        if self._key is not None:
            checkpoint.check_signed(self._key)
        known = await load_state(self.store, checkpoint.run)
        if known is not None:
            if request_id and request_id in known.heard:
                return Run(known.run, self._desk, repeated=True)
            heads = await read_heads(self.store, known.run)
            if checkpoint.head_hash not in {head.hex() for _, head in heads}:
                checkpoint.check_head(*heads[0])
        agent, by = self.agents.get(checkpoint.agent), actor_of(actor)
        name = ", ".join(self.agents) if agent is None else agent.name
        print_ = "" if agent is None else agent.fingerprint
        checkpoint.check_for(name, print_, self._clock())
        family, state = checkpoint.family(), checkpoint.state()
        check_agents(family, self.agents)
        if agent is not None:
            check_gates(agent, state)
        wishes = answers(state, answer, instruction, caps=caps or {}, by=by)
        *before, last = wishes
        wishes = (
            *before,
            replace(last, request=validation.text("request_id", request_id or "")),
        )
        kid = checkpoint.kid if self._key is not None else ""  # only a checked one counts
        entry = make_import_entry(checkpoint, by, kid)
        # Before anything is taken in, the wishes are checked as if it had been.
        self._desk.check_all(known or apply(state, [entry]), wishes)
        if known is None and not await take_in(self.store, checkpoint, family, entry):
            then = partial(self.resume, checkpoint, answer, instruction=instruction, caps=caps)
            return await then(actor=actor, request_id=request_id)  # it is known by now
        await self._desk.ask_all(checkpoint.run, wishes)
        return Run(checkpoint.run, self._desk)

    def checkpoint_in(self, text: str | bytes) -> Checkpoint:
        """Return the checkpoint that `text` is, checked by the key that this has.

        Raises:
            CheckpointRefused: it is not what was issued.
        """
        return Checkpoint.from_json(text, key=self._key)

    async def verify(self, run_id: str) -> Verdict:
        """Check the chain and every invariant of a run's journal; truthy when clean."""
        return await verdict_on(self.store, RunId(run_id))

    # ── latches ───────────────────────────────────────────────────────────────────────────

    async def halt(self, reason: str, *, scope: str = "all", actor: Who) -> None:
        """Set a latch: nothing of the runs it covers starts until it is lifted.

        `scope` is `all`, `agent:NAME`, `label:LABEL` or `run:ID`.
        """
        scope, reason = (
            validation.scope(scope),
            validation.name("reason", reason, REASON_MAX_CHARS),
        )
        await self.store.halt(Halt(scope=scope, by=actor_of(actor).name, reason=reason))

    async def lift(self, *, scope: str = "all", actor: Who) -> bool:
        """Take a latch away; runs that no other latch covers go on where they were."""
        lifted = await self.store.lift(validation.name("scope", scope, SCOPE_MAX_CHARS))
        await let_go(self._desk, actor_of(actor))
        return lifted

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
            model = self._models.get(agent.name) or model_of(agent.model)
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
