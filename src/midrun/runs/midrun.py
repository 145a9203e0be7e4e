"""`Midrun`: one open store, the agents of this process, and the worker that drives their runs.

Opening a `Midrun` stacks its parts in one `AsyncExitStack`: the store, connections of the
models, a task group for the change notifier and the live deltas, and last the worker. Leaving
unwinds them in reverse order, so that the worker gives its runs back while the store still
accepts appends.
"""

import asyncio
import os
import sys
import traceback
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, NoReturn, Self, Unpack, cast

import anyio
import anyio.to_thread
from msgspec.structs import replace

from midrun.agents.agent import Agent, check_model_settings
from midrun.agents.builtin_tools import check_client_tools
from midrun.agents.checkpoint import Checkpoint
from midrun.agents.file import File, check_file_limits, check_files
from midrun.codec.redaction import FindSecrets
from midrun.codec.strict_json import INTEGER_MAX
from midrun.core.entries import RunStarted
from midrun.core.evolve import apply_entries
from midrun.core.history import find_unnamed_authors, limit_history
from midrun.core.ids import CallId, Micros, RunId
from midrun.core.stops import MaxCost, Stop, flatten_stop
from midrun.core.values import ClientTool, FileLimits, Json, Message, ModelSettings
from midrun.driver.deletion import RetentionRules
from midrun.driver.live import LiveOutput
from midrun.driver.notifications import ChangeNotifier
from midrun.driver.redaction import LiveRedactor, SecretRegistry
from midrun.errors import EngineLost, Misconfigured
from midrun.models.registry import model_of
from midrun.ports.audit import AuditEntry
from midrun.ports.environment import Environment
from midrun.ports.model import Model
from midrun.ports.platform import check_platform
from midrun.ports.relay import open_relay
from midrun.ports.store import Durability, HaltRecord, HasClock, Page, RunQuery, RunQuota, Store
from midrun.runs import validation
from midrun.runs.audit import make_halt_audit, read_audit, store_audit
from midrun.runs.checkpoints import (
    check_agents,
    check_approval_rules,
    check_tenants,
    import_family,
    load_state,
    make_import_entry,
    make_resume_controls,
    read_heads,
)
from midrun.runs.deletion import count_deletable, delete_selected
from midrun.runs.message_import import import_history
from midrun.runs.run import Run
from midrun.runs.service import (
    THREAD_MAX_RUNS,
    RunService,
    lift_halted_runs,
    load_thread_history,
)
from midrun.runs.validation import (
    REASON_MAX_CHARS,
    SCOPE_MAX_CHARS,
    ActorLike,
    SelectionOptions,
    TimeLike,
    choose_tenant,
    convert_time,
    parse_actor,
    parse_phase,
)
from midrun.runs.values import DeletableRuns, OpenAsk, RunView, Verdict
from midrun.runs.views import list_all_asks, list_views
from midrun.stores.urls import open_store

if TYPE_CHECKING:  # imported by a process that drives runs, see `_start_worker`
    from midrun.workers.concurrency_limits import Fleet
    from midrun.workers.local import RunPlacement

# A process that was forked while a `Midrun` was open runs the same `async with` block to its
# end. It must not unwind it: only the forking thread exists in the child, so joining a worker
# thread would block for ever, and closing a socket or the store would close it for the parent.

FORKED_PROCESS_MESSAGE: Final = """\
midrun: Cannot close a Midrun in process {child}: it was forked from process {parent} while the
Midrun was open there. Threads are not copied by a fork, and sockets are shared with {parent}.
Process {child} ends here; the runs of {parent} go on. Fork before you open a Midrun, or end
the forked process with os._exit().
"""


def end_forked_process(parent: int, error: BaseException | None) -> NoReturn:
    """End this forked process at once; print `error` and the reason first.

    The exit code is the one of `SystemExit`, otherwise 1.
    """
    code = error.code if isinstance(error, SystemExit) else 1
    try:
        if error is not None and not isinstance(error, SystemExit):
            traceback.print_exception(error)
        sys.stderr.write(FORKED_PROCESS_MESSAGE.format(child=os.getpid(), parent=parent))
        sys.stderr.flush()
        sys.stdout.flush()
    finally:
        # `os._exit` skips atexit handlers and finalizers. They would close what belongs to the
        # parent. As in `sys.exit`, a code that is None means 0, and one that is text means 1.
        os._exit(code if isinstance(code, int) else int(code is not None))


PREFIX_SEARCH_MAX_RUNS: Final = 500
"""`named` looks for a prefix among this many of the newest runs."""


class Midrun:
    """Start runs, find them again, and drive them while it is open.

    Use it as an async context manager:

        async with Midrun("sqlite:///runs.db", agents=[clerk]) as midrun:
            run = await midrun.start(clerk, "Sort the mail")
            await run.pause()
            await run.until("paused")

    Leaving the context does not pause a run. The worker of this process gives its runs back,
    and another process on the same store, or the next `Midrun`, continues them.

    Args:
        store: An address (`sqlite:///runs.db`, `postgresql://…`, `memory://`), or a `Store`
            that is already open.
        agents: The agents whose runs this process drives. Without agents it can only list,
            watch and control runs.
        engine: Decides which process drives a run. "local": the process that takes the lease
            first. None: not this process. `midrun.workers.temporal.Temporal(…)`: Temporal.
        key: Signs checkpoints, and checks the signature of those that are resumed.
        chain_key: Makes the hash chain of every journal keyed, so that only a holder of the key
            can write a journal that `verify` accepts. It must be set when the store is created
            and cannot be added later.
        encryption_keys: Encrypts the content of the store: the first key encrypts, all of them
            decrypt. Each has 32 random bytes. Needs `midrun[encryption]`.
        durability: "full", or "relaxed": a crash of the machine may lose the newest entries. A
            crash of the process never does.
        redact: True redacts the values of fields whose names stand for secrets, before
            anything is stored or shown. A function finds further secrets in text. False
            redacts nothing.
        fleet: Limits which runs, and how many at a time, this process drives.
        thread_runs: A new run of a thread sees the messages of this many earlier runs of it. A
            note in its history says if older ones were left out.
        file_limits: The bounds on the files of each run that is started here.
        retention: Deletes runs this long after they have ended, by scope: `all`, `agent:NAME`
            or `label:LABEL`; None keeps them. A label counts more than the agent, and that more
            than `all`. A process without agents deletes nothing.
        outside: The clock, the random source and the source of ids. For tests.

    Raises:
        Misconfigured: Two agents have the same name, or `thread_runs` is not an int >= 1.
            Entering the context raises it for a store or a model that cannot be opened.
    """

    def __init__(  # noqa: PLR0913 - one keyword per part of a process
        self,
        store: str | Store = "sqlite:///midrun.db",
        *,
        agents: Iterable[Agent] = (),
        engine: "Literal['local'] | RunPlacement | None" = "local",
        key: bytes | None = None,
        chain_key: bytes | None = None,
        encryption_keys: Sequence[bytes] = (),
        durability: Durability = "full",
        redact: bool | FindSecrets = True,
        fleet: "Fleet | None" = None,
        thread_runs: int = THREAD_MAX_RUNS,
        file_limits: FileLimits | None = None,
        retention: Mapping[str, timedelta | None] | None = None,
        outside: Environment | None = None,
    ) -> None:
        check_platform("Midrun")
        self.agents = _collect_agents(agents)
        self._store_option = store
        self._engine = engine
        self._key = key
        self._chain_key = chain_key
        self._encryption_keys = tuple(encryption_keys)
        self._durability = durability
        self._redact = redact
        self._fleet = fleet
        self._retention = RetentionRules(retention or {})
        self._thread_runs = validation.check_positive_int("thread_runs", thread_runs)
        self._file_limits = check_file_limits(file_limits)
        self._environment = outside or Environment()
        self._clock = self._environment.clock
        self._models: dict[str, tuple[Model, ...]] = {}
        self._exit_stack: AsyncExitStack | None = None
        self._is_open = False
        self._opener_pid = 0  # of the process that opened it
        self._service_or_none: RunService | None = None

    async def __aenter__(self) -> Self:
        if self._is_open:
            problem = "Cannot open it twice: it is open already. Create a second Midrun."
            raise Misconfigured("Midrun", problem)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            problem = (
                "Cannot open it: no asyncio event loop is running, and Trio is not supported. "
                'Use asyncio.run(main()) or anyio.run(main, backend="asyncio").'
            )
            raise Misconfigured("Midrun", problem) from None
        self._is_open, self._opener_pid = True, os.getpid()
        try:
            async with AsyncExitStack() as stack:
                store = self._store_option
                if isinstance(store, str):
                    store = await open_store(
                        store,
                        durability=self._durability,
                        clock=self._clock,
                        key=self._chain_key,
                        encryption_keys=self._encryption_keys,
                    )
                    stack.push_async_callback(store.close)
                elif self._chain_key is not None or self._encryption_keys:
                    name = "encryption_keys" if self._encryption_keys else "chain_key"
                    given = name if self._encryption_keys else "key"
                    problem = (
                        "Cannot use it with a store that is already open. Pass it to "
                        f"open_store(…, {given}=…) instead."
                    )
                    raise Misconfigured(name, problem)
                await self._start_components(stack, store)
                # Everything is open. `pop_all` moves the callbacks out of `stack`, so that the
                # end of this block closes nothing; `__aexit__` does that.
                self._exit_stack = stack.pop_all()
        finally:
            # After a failure the object can be opened again.
            self._is_open = self._exit_stack is not None
            self._service_or_none = self._service_or_none if self._is_open else None
        return self

    async def _start_components(self, stack: AsyncExitStack, store: Store) -> None:
        """Start the parts that need the store, and put their closing on `stack`."""
        change_notifier = ChangeNotifier(store)
        if isinstance(store, HasClock):
            # Processes on several machines share this store. All of them must compare times by
            # the same clock, the one of the database server, or deadlines would disagree.
            self._environment = self._environment.with_clock(store.clock)
            self._clock = store.clock
        outside, key = self._environment, self._key
        secrets = SecretRegistry(self._redact, key or outside.make_id().encode())
        live = LiveOutput(open_relay(store), LiveRedactor(secrets))
        self._service_or_none = RunService(
            store,
            self.agents,
            change_notifier=change_notifier,
            live=live,
            environment=outside,
            secrets=secrets,
            key=key,
            quotas=self._fleet.make_quota_limiter(store, self._clock) if self._fleet else None,
        )
        # A process that drives no runs needs no API key, so it does not open its models. They
        # are opened before the task group exists: a task group would wrap a Misconfigured in an
        # exception group.
        if self._engine is not None:
            for agent in self.agents.values():
                await self._open_model(stack, agent)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        await tasks.start(change_notifier.watch_store)
        await tasks.start(live.run_relay)
        if self._engine is not None and self.agents:
            await self._start_worker(stack, self._engine, change_notifier, secrets)

    async def _start_worker(
        self,
        stack: AsyncExitStack,
        engine: "Literal['local'] | RunPlacement",
        change_notifier: ChangeNotifier,
        secrets: SecretRegistry,
    ) -> None:
        """Start the worker of this process, and with another engine its connection to that."""
        # Half of the package. A command that lists runs or sends a control never needs it.
        from midrun.workers.local import LocalWorker  # noqa: PLC0415 - see above

        service, store = self._service, self.store
        local = LocalWorker(
            store,
            change_notifier,
            self.agents,
            live_output=service.live,
            secret_registry=secrets,
            get_models=self._get_models,
            environment=self._environment,
            place_run=None if isinstance(engine, str) else engine.place,
            fleet=self._fleet,
            retention=self._retention,
        )
        await stack.enter_async_context(local.running())
        if not isinstance(engine, str):
            placed = engine.running(local, store, self.agents)
            await stack.enter_async_context(placed)
        service.worker = local

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        opened, self._exit_stack, self._is_open = self._exit_stack, None, False
        if opened is None:
            return None
        if self._opener_pid != os.getpid():
            end_forked_process(self._opener_pid, error)
        if error is not None and not isinstance(error, anyio.get_cancelled_exc_class()):
            # An exception from the caller's block. Our task groups do not see it: they would
            # raise it again, wrapped in an exception group.
            await opened.aclose()
            return None
        if await opened.__aexit__(kind, error, trace):
            # A task group of ours swallowed the cancellation: it came from our own scope,
            # which this class does not cancel before the exit stack is unwound. So other code
            # ended our tasks, for example by cancelling `asyncio.all_tasks()`.
            raise EngineLost
        return None

    @property
    def store(self) -> Store:
        """The open store.

        Raises:
            Misconfigured: The `Midrun` is not open.
        """
        return self._service.store

    def now(self) -> Micros:
        """Return the time in microseconds since 1970, by the store's clock if it has one."""
        return self._clock()

    @property
    def file_limits(self) -> FileLimits:
        """The bounds on the files of each run that is started here."""
        return self._file_limits or FileLimits()

    @property
    def _service(self) -> RunService:
        if self._service_or_none is None:
            problem = "Cannot use it: it is not open. Write `async with Midrun(…) as midrun:`."
            raise Misconfigured("Midrun", problem)
        return self._service_or_none

    # ── runs ──────────────────────────────────────────────────────────────────────────────

    async def start(  # noqa: PLR0913 - one keyword per setting
        self,
        agent: str | Agent,
        task: str,
        *,
        thread: str | None = None,
        labels: Sequence[str] | None = None,
        stop: Stop | None = None,
        model_settings: ModelSettings | None = None,
        history: Sequence[object] | None = None,
        request_id: str | None = None,
        actor: ActorLike = None,
        trace: str | None = None,
        own_thread: bool = False,
        files: Sequence[File] | None = None,
        tenant: str | None = None,
        team: str | None = None,
        client_tools: Sequence[ClientTool] = (),
        quotas: Sequence[RunQuota] = (),
    ) -> Run:
        """Start a run of one of the agents, and return its handle.

        `stop` and `model_settings` replace those of the agent. `history` has earlier messages
        in the format of OpenAI, Anthropic or Pydantic AI. A second call with the same
        `request_id` returns the first run. `thread` adds the messages of its earlier runs; with
        `own_thread`, only of runs of the same actor. `trace` is a W3C traceparent for the spans
        of the run. `files` belong to the task. `tenant` is by default that of the actor; each
        has its own threads. `team` shares the run. Calls of `client_tools` ask. `quotas` hold.

        Raises:
            Misconfigured: Unknown agent, empty task, `MaxCost` for a model without a price, a
                secret in `model_settings`, or a `tenant` that is not the actor's.
            FileRefused: A file is beyond a limit; see `file_limits`.
            ControlRefused: `request_id_reused`: the first call had other arguments.
        """
        known = self._require_agent(agent)
        self._check_price(known, stop := known.stop if stop is None else stop)
        person, thread = parse_actor(actor), validation.check_name("thread", thread or "")
        tenant, owner = choose_tenant(tenant, person), person.name if own_thread else ""
        messages, people = await self._load_history(thread, history, tenant, owner)
        started = RunStarted(
            task=validation.check_task(task),
            **known.spec(stop),
            thread=thread,
            history=messages,
            steered_by=find_unnamed_authors(people, messages, person.name),
            labels=validation.check_labels(labels),
            model_settings=check_model_settings("start", model_settings),
            by=person.name,
            role=person.role,
            request_id=validation.check_text("request_id", request_id or ""),
            trace=validation.check_traceparent(trace or ""),
            file_limits=self._file_limits,
            tenant=tenant,
            team=validation.check_name("team", team or ""),
            client_tools=check_client_tools(client_tools),
        )
        run, attached = self._service.choose_run_id(started.request_id), check_files(files)
        began = await self._service.create_run(run, started, attached, quotas)
        return Run(run, self._service, repeated=not began)

    async def _load_history(
        self, thread: str, history: Sequence[object] | None, tenant: str, owner: str
    ) -> tuple[tuple[Message, ...], tuple[str, ...]]:
        """Return the messages before the task, and the people who steered their runs."""
        if history is None:
            return await load_thread_history(
                self.store,
                thread,
                tenant=tenant,
                owner=owner,
                max_runs=self._thread_runs,
            )
        if thread:
            problem = "Cannot use it with a thread: that has a history already. Drop one."
            raise Misconfigured("history", problem)
        return limit_history(import_history(history)), ()

    async def get(self, run_id: str) -> Run:
        """Return the handle of an existing run.

        Raises:
            RunNotFound: The store has no run with this id. It is also a `LookupError`.
            RunErased: The run was deleted. It is also a `RunNotFound`.
        """
        await self.store.get_row(RunId(run_id))
        return Run(RunId(run_id), self._service)

    async def runs(
        self,
        *,
        phase: str | None = None,
        agent: str | None = None,
        label: str | None = None,
        thread: str | None = None,
        search: str | None = None,
        tenant: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[RunView]:
        """Return a page of runs, newest first, that match all given filters.

        `search` finds runs by words of their task, agent, labels and output: for each of its
        words, one must begin with it. Case and accents do not matter. `tenant` selects the runs
        of one tenant; "" is the default tenant.

        Pass `page.cursor` as `cursor` to get the next page; it is empty on the last one. A run
        whose journal cannot be read is listed, with the reason in its `error`.

        Raises:
            Misconfigured: `phase` is not a phase, or `limit` is not an int >= 1.
        """
        query = RunQuery(
            phases=() if phase is None else (parse_phase(phase),),
            agent=validation.check_name("agent", agent or ""),
            label=validation.check_name("label", label or ""),
            thread=validation.check_name("thread", thread or ""),
            search=validation.check_search(search),
            tenant=validation.check_tenant(tenant),
            limit=validation.check_positive_int("limit", limit),
            cursor=validation.check_text("cursor", cursor or ""),
        )
        return await list_views(self.store, query)

    async def find_ids(self, beginning: str) -> tuple[RunId, ...]:
        """Return the ids that start with `beginning`, with or without `run_`.

        Only the newest 500 runs are searched.
        """
        rows = (await self.store.list_runs(RunQuery(limit=PREFIX_SEARCH_MAX_RUNS))).items
        begins = (beginning, f"run_{beginning}")
        return tuple(row.run for row in rows if row.run.startswith(begins))

    async def asks(self) -> tuple[OpenAsk, ...]:
        """Return all open asks: questions, approvals and unsure calls of all runs."""
        return await list_all_asks(self.store)

    async def list_agents(self) -> tuple[str, ...]:
        """Return the names of the agents that runs can be started with."""
        return tuple(self.agents)

    def find_silent_calls(self, run_id: str) -> frozenset[CallId]:
        """Return the calls that were told to stop and did not respond.

        This is not stored. It is known in the process that drives the run, and in processes
        that receive its live deltas.
        """
        return self._service.live.find_unresponsive_calls(RunId(run_id))

    async def resume(
        self,
        checkpoint: Checkpoint,
        answer: Json = None,
        *,
        instruction: str | None = None,
        caps: dict[str, float] | None = None,
        actor: ActorLike = None,
        request_id: str | None = None,
    ) -> Run:
        """Continue a run from a checkpoint.

        A run that the store does not have is imported. `answer` settles the one open ask. A
        repeat with the same `request_id` changes nothing.

        Raises:
            CheckpointRefused: The run has advanced, or it expired, or the agent differs.
            ControlRefused: The run cannot take the answer or the instruction in its phase.
        """
        checkpoint = validation.check_checkpoint(checkpoint)
        if self._key is not None:
            checkpoint.check_signed(self._key)
        by, known = parse_actor(actor), await load_state(self.store, checkpoint.run)
        check_tenants(checkpoint, known, by)
        if known is not None:
            if request_id and request_id in known.requests:
                return Run(known.run, self._service, repeated=True)
            heads = await read_heads(self.store, known.run)
            if checkpoint.head_hash not in {head.hex() for _, head in heads}:
                checkpoint.check_head(*heads[0])
        agent = self.agents.get(checkpoint.agent)
        name = ", ".join(self.agents) if agent is None else agent.name
        print_ = "" if agent is None else agent.fingerprint
        checkpoint.check_for(name, print_, self._clock())
        family, state = checkpoint.family(), checkpoint.state()
        check_agents(family, self.agents)
        if agent is not None:
            check_approval_rules(agent, state)
        *before, last = make_resume_controls(state, answer, instruction, caps=caps or {}, by=by)
        # The last control carries the request id: if it is recorded, all of them are.
        request = validation.check_text("request_id", request_id or "")
        controls = (*before, replace(last, request_id=request))
        kid = checkpoint.kid if self._key is not None else ""  # without a key it is unchecked
        entry = make_import_entry(checkpoint, by, kid)
        # Check the controls as if the run were imported, before anything is written.
        self._service.check_controls(known or apply_entries(state, [entry]), controls)
        if known is None and not await import_family(self.store, checkpoint, family, entry):
            # Another process imported it first. Now the store has the run: start again.
            then = partial(self.resume, checkpoint, answer, instruction=instruction, caps=caps)
            return await then(actor=actor, request_id=request_id)
        await self._service.submit_all(checkpoint.run, controls)
        return Run(checkpoint.run, self._service)

    def checkpoint_in(self, text: str | bytes) -> Checkpoint:
        """Decode a checkpoint from JSON, and check its signature with this object's key.

        Raises:
            CheckpointRefused: The text is not a checkpoint, was changed, or is not signed
                although there is a key.
        """
        return Checkpoint.from_json(text, key=self._key)

    async def verify(self, run_id: str) -> Verdict:
        """Check the hash chain and all invariants of a run's journal.

        The result is true if no problem was found; `result.problems` lists them.

        Raises:
            RunNotFound: The store has no run with this id.
        """
        from midrun.runs.verification import verify_run  # noqa: PLC0415 - needs all of `verify`

        return await verify_run(self.store, RunId(run_id))

    # ── deletion ──────────────────────────────────────────────────────────────────────────

    async def count_deletable(self, **selection: Unpack[SelectionOptions]) -> DeletableRuns:
        """Count the runs that `delete_runs` would delete, and those that have not ended.

        Raises:
            Misconfigured: No argument is given, or one has the wrong type.
        """
        selected = validation.make_selection(**selection)
        return await count_deletable(self.store, selected, self.now())

    async def delete_runs(
        self, *, reason: str = "", actor: ActorLike, **selection: Unpack[SelectionOptions]
    ) -> int:
        """Delete all runs that match all arguments and have ended; return their number.

        Runs are selected by `thread`, `agent`, `label`, `tenant`, `user` (who started them) and
        `older_than` (a `timedelta`: the time since their last entry). Each run is deleted with
        its child runs, as by `Run.delete`; the number includes them. Runs that have not ended
        are kept. Other writers continue: while workers are alive, this takes many short steps
        with pauses.

        Raises:
            Misconfigured: No argument is given, or one has the wrong type.
        """
        selected = validation.make_selection(**selection)
        return await delete_selected(
            self.store, selected, self.now(), by=parse_actor(actor), reason=reason
        )

    # ── halts ─────────────────────────────────────────────────────────────────────────────

    async def halt(
        self, reason: str, *, scope: str = "all", tenant: str | None = None, actor: ActorLike
    ) -> None:
        """Halt all runs in `scope`: no call of them starts until the halt is lifted.

        `scope` is `all`, `agent:NAME`, `label:LABEL` or `run:ID`. The halt also covers runs
        that are started later. With a `tenant`, or an actor of one, it covers only runs of that
        tenant.

        Raises:
            Misconfigured: `scope` has another form, or `tenant` is not the actor's.
        """
        scope, reason = (
            validation.check_scope(scope),
            validation.check_name("reason", reason, REASON_MAX_CHARS),
        )
        who = parse_actor(actor)
        covered = validation.restrict_tenant(tenant, who)
        halt = HaltRecord(scope=scope, by=who.name, reason=reason, tenant=covered)
        await self.store.set_halt(halt)
        await self.record_audit(make_halt_audit("halt", halt, who))

    async def lift(
        self, *, scope: str = "all", tenant: str | None = None, actor: ActorLike
    ) -> bool:
        """Lift the halt of `scope`; runs that no other halt covers continue.

        A halt that was set for a tenant is lifted with the same `tenant`, or by an actor of it.
        Return False if there was no such halt.
        """
        scope = validation.check_name("scope", scope, SCOPE_MAX_CHARS)
        who = parse_actor(actor)
        covered = validation.restrict_tenant(tenant, who)
        lifted = await self.store.remove_halt(scope, covered)
        await lift_halted_runs(self._service, who)
        if lifted:
            halt = HaltRecord(scope=scope, by=who.name, tenant=covered)
            await self.record_audit(make_halt_audit("lift", halt, who))
        return lifted

    # ── audit ─────────────────────────────────────────────────────────────────────────────

    def audit(
        self, *, since: TimeLike, until: TimeLike | None = None
    ) -> AsyncIterator[AuditEntry]:
        """Yield the actions of people from `since` until before `until` (now).

        A time is a `datetime`, or a `timedelta` from now: `timedelta(days=-7)`.

        They come from the journals of all runs (controls, approvals) and from the audit log of
        the store (sign-ins, refusals, exports, halts). The entries of the audit log come first,
        then those of each run, in order; sort them by `at` if you need one order of all.
        """
        now = self._clock()
        # Without an end, not `now`: the store may have stamped the newest entry a little later.
        end = Micros(INTEGER_MAX) if until is None else convert_time("until", until, now)
        return read_audit(self.store, since=convert_time("since", since, now), until=end)

    async def record_audit(self, entry: AuditEntry) -> None:
        """Append an action of a person to the audit log of the store.

        If the store cannot be written, a warning is logged and the action continues.
        """
        await store_audit(self.store, entry)

    # ── agents ────────────────────────────────────────────────────────────────────────────

    def _require_agent(self, agent: str | Agent) -> Agent:
        name = agent if isinstance(agent, str) else agent.name
        known = self.agents.get(name)
        if known is None or (isinstance(agent, Agent) and agent is not known):
            names = ", ".join(self.agents) or "none, it has no agents"
            given = repr(name) if known is None else f"another agent of the name {name!r}"
            problem = f"must be one of this Midrun ({names}), got {given}"
            raise Misconfigured("agent", f"{problem}; pass it as Midrun(agents=[…])")
        return known

    async def _open_model(self, stack: AsyncExitStack, agent: Agent) -> None:
        """Open the model of `agent`, and its fallbacks, until `stack` is closed."""
        # In a thread: importing the package of a provider takes about a second.
        models = await anyio.to_thread.run_sync(_make_models, agent)
        for model in cast("tuple[object, ...]", models):
            if isinstance(model, AbstractAsyncContextManager):
                # The model keeps its connections open from one reply to the next.
                await stack.enter_async_context(model)
        self._models[agent.name] = models

    def _get_models(self, agent: Agent) -> tuple[Model, ...]:
        return self._models[agent.name]

    def _check_price(self, agent: Agent, stop: Stop | None) -> None:
        if any(isinstance(leaf, MaxCost) for leaf in flatten_stop(stop)):
            for member in agent.family.values():
                for model in self._models.get(member.name) or _make_models(member):
                    if not model.priced:
                        problem = (
                            "Cannot enforce MaxCost: it has no known price. Use MaxTokens."
                        )
                        raise Misconfigured(f"model {model.name}", problem)


def _make_models(agent: Agent) -> tuple[Model, ...]:
    """Return the model of `agent`, and its fallbacks.

    Raises:
        Misconfigured: A model cannot be opened, or lacks a provider tool of the agent.
    """
    models = (
        model_of(agent.model, agent.base_url),
        *(model_of(fallback) for fallback in agent.fallback),
    )
    for model in models if agent.provider_tools else ():
        check = getattr(model, "check_provider_tools", None)
        if check is None:
            problem = "Cannot use provider_tools: it has no provider. Drop them."
            raise Misconfigured(f"model {model.name}", problem)
        check(agent.provider_tools)
    return models


def _collect_agents(agents: Iterable[Agent]) -> dict[str, Agent]:
    """Return the agents by name, with the agents of their tools and of their handoffs.

    Raises:
        Misconfigured: Two different agents have the same name.
    """
    by_name: dict[str, Agent] = {}
    queue = _check_agents(agents)
    while queue:
        agent = queue.pop(0)
        if by_name.setdefault(agent.name, agent) is not agent:
            raise Misconfigured(f"agent {agent.name}", "Two agents have this name. Rename one.")
        # An agent may be a tool of itself, directly or through others: visit each one once.
        inner = [tool.agent for tool in agent.tools.values()]
        inner += agent.family.values()
        queue += [a for a in inner if isinstance(a, Agent) and by_name.get(a.name) is not a]
    return by_name


def _check_agents(agents: object) -> list[Agent]:
    # A single agent without brackets is the usual mistake.
    checked: list[Agent] = []
    for one in agents if isinstance(agents, Iterable) else [agents]:
        if not isinstance(agents, Iterable) or not isinstance(one, Agent):
            got = type(one).__name__
            problem = f"must be a list of Agent, got {got}; write agents=[…]"
            raise Misconfigured("agents", problem)
        checked.append(one)
    return checked
