"""Play a plan: start runs, disturb everything for some seconds, then let all runs come to rest.

Disturbers are tasks of this process. Each waits a random time, does one thing, and repeats that
until `is_over`. After that the faults are taken back, and `come_to_rest` resumes what rests.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from random import Random
from typing import Final, Literal, TypeVar, cast

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from midrun import ControlRefused, File, Midrun, Run
from midrun.core.entries import Record
from midrun.core.ids import RunId, make_call_key
from midrun.core.state import State
from midrun.core.values import TERMINAL_PHASES, Json, Phase
from midrun.driver.deletion import RetentionRules, enforce_retention, remove_all_leftovers
from midrun.driver.journal_writer import load_run_state
from midrun.errors import DeleteRefused, RunErased, RunNotFound, StoreError
from midrun.ports.store import RunQuery, RunRow
from midrun.runs.values import Receipt
from midrun.testing.postgres import Postgres
from tests.scenarios.fleet.chaos.agents import make_agents
from tests.scenarios.fleet.chaos.plan import Plan, Task
from tests.scenarios.fleet.chaos.processes import WorkerProcess
from tests.scenarios.fleet.chaos.tools import SHARED_TEXT
from tests.scenarios.fleet.chaos.worker import RETENTION, WorkerSettings
from tests.scenarios.fleet.external_service import ExternalService
from tests.support.newer_version import make_newer_version
from tests.unit.stores.postgres.faulty_proxy import Fault, FaultyProxy

T = TypeVar("T")

LEASE_S: Final = 2.0
REST_MAX_S: Final = 240
"""Seconds in which all runs must end after the last fault."""

RESUMES_MAX: Final = 40
"""A run that rests again and again after this many resumes is reported."""

USERS: Final = ("ann", "bob", "cem")
KEYS: Final = (bytes(range(32)), bytes(range(32, 64)))
FILL_BLOCK_BYTES: Final = 65_536

ENTRY_BY_CONTROL: Final = {
    "pause": "PauseRequested",
    "resume": "RunResumed",
    "redirect": "RedirectRequested",
    "say": "MessageReceived",
    "cancel": "CancelRequested",
}
"""The kind of the entry at the seq of a control's receipt."""

CONTROLS: Final = (
    *ENTRY_BY_CONTROL,
    *("resume", "resume", "say", "pause now", "redirect now", "say at", "hold", "fork"),
    *("take over", "cancel in flight", "force pause", "retry undo"),
)


class Play:
    """One chaos run: its processes, its users, and everything that the checks need later."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        store_url: str,
        *,
        disk: Path | None = None,
        server: Postgres | None = None,
        proxy: FaultyProxy | None = None,
    ) -> None:
        self.plan, self.folder, self.store_url = plan, folder, store_url
        self._disk, self._server, self._proxy = disk, server, proxy
        self.random = Random(plan.seed)  # noqa: S311 - to repeat it
        self.service = ExternalService(folder)
        self.runs: dict[RunId, Task] = {}
        self.receipts: list[tuple[RunId, str, Receipt]] = []
        self.archive: dict[RunId, list[Record]] = {}
        self.problems: list[str] = []
        self.counts: Counter[str] = Counter()
        self._workers: list[WorkerProcess] = []
        self._numbers = count(1)
        self._version, self._package = 1, cast("Path | None", None)
        self._max_offset = timedelta()
        self._is_over = False
        self._midrun_or_none: Midrun | None = None

    @property
    def midrun(self) -> Midrun:
        """The `Midrun` of the users; it drives no runs."""
        assert self._midrun_or_none is not None
        return self._midrun_or_none

    @asynccontextmanager
    async def _open_midrun(self) -> AsyncIterator[None]:
        keys = KEYS if self.plan.is_encrypted else ()
        agents = make_agents(str(self.folder), has_guest=self.plan.has_guest)
        async with Midrun(
            self.store_url, agents=agents, engine=None, encryption_keys=keys
        ) as opened:
            self._midrun_or_none = opened
            yield

    async def run(self, check: Callable[["Play"], Awaitable[None]]) -> None:
        """Play the plan, and call `check` while the store is still open."""
        async with self._open_midrun():
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._answer_asks)
                    tasks.start_soon(self._archive_journals)
                    async with anyio.create_task_group() as faults:
                        await self._start_disturbers(faults)
                        await anyio.sleep(self.plan.seconds)
                        self._is_over = True
                    await self._take_faults_back()
                    calm_since = anyio.current_time()
                    with anyio.move_on_after(REST_MAX_S) as scope:
                        await self._come_to_rest()
                    self.counts["seconds to rest"] = round(anyio.current_time() - calm_since)
                    if scope.cancelled_caught:
                        await self._report_restless()
                    tasks.cancel_scope.cancel()
                for worker in self._workers:
                    self._note(await worker.drain())
                await remove_all_leftovers(self.midrun.store)
            finally:
                for worker in self._workers:
                    worker.kill()
            await check(self)

    async def _start_disturbers(self, tasks: TaskGroup) -> None:
        for _ in range(self.plan.workers):
            self._start_worker()
        for worker in self._workers:
            await worker.wait_ready()
        for task in self.plan.tasks:
            tasks.start_soon(self._start_run, task)
        for name in USERS:
            tasks.start_soon(self._send_controls, name)
        for disturb in (self._disturb_workers, self._delete_runs, self._set_halts):
            tasks.start_soon(disturb)
        if self.plan.has_clock_jumps:
            tasks.start_soon(self._jump_clocks)
        if self.plan.has_upgrade:
            tasks.start_soon(self._upgrade)
        self._start_store_faults(tasks)

    def _start_store_faults(self, tasks: TaskGroup) -> None:
        if self._disk is not None:
            tasks.start_soon(self._fill_disk, self._disk)
        if self._server is not None and self.plan.has_server_faults:
            tasks.start_soon(self._restart_server, self._server)
        if self._proxy is not None and self.plan.has_server_faults:
            tasks.start_soon(self._cut_connections, self._proxy)

    def _note(self, problem: str) -> None:
        if problem:
            self.problems.append(problem)

    async def _pause(self, least_s: float, most_s: float) -> bool:
        """Wait for a random time; tell whether the disturbances go on."""
        await anyio.sleep(self.random.uniform(least_s, most_s))
        return not self._is_over

    # ── workers ───────────────────────────────────────────────────────────────────────────

    def _start_worker(self) -> None:
        name = f"worker-{next(self._numbers)}"
        # Every process knows both keys; which one encrypts differs, as during a rotation.
        keys = self.random.sample(KEYS, k=2) if self.plan.is_encrypted else []
        settings = WorkerSettings(
            store=self.store_url,
            folder=str(self.folder),
            clock=str(self.folder / f"{name}.clock"),
            lease_s=LEASE_S,
            version=self._version,
            has_guest=self.plan.has_guest,
            keys=keys,
        )
        self._workers.append(WorkerProcess(name, settings, self._package))

    async def _disturb_workers(self) -> None:
        """Kill, drain or freeze a worker; start another one for one that has ended."""
        while await self._pause(0.3, 1.5):
            worker = self.random.choice(self._workers)
            if worker.exit_code is not None:
                problem = f"{worker.name} ended by itself with {worker.exit_code}"
                self._note(f"{problem}: {worker.read_end()}")
                self._replace(worker)
                continue
            if not worker.is_ready:
                continue
            match self.random.choice(["kill", "kill", "freeze", "freeze", "drain"]):
                case "kill":
                    self.counts["kill"] += 1
                    worker.kill()
                    self._replace(worker)
                case "drain":
                    self.counts["drain"] += 1
                    self._note(await worker.drain())
                    self._replace(worker)
                case _:
                    self.counts["freeze"] += 1
                    worker.freeze()
                    await anyio.sleep(self.random.uniform(0.3, 2 * LEASE_S))
                    worker.thaw()

    def _replace(self, worker: WorkerProcess) -> None:
        self._workers.remove(worker)
        self._start_worker()

    async def _upgrade(self) -> None:
        """Half-way, let all further workers be of the newer version."""
        await anyio.sleep(self.plan.seconds / 3)
        if self.plan.store == "postgres":
            self._package = await anyio.to_thread.run_sync(
                make_newer_version, self.folder / "newer"
            )
        self._version = 2
        self.counts["upgrade"] += 1
        self._start_worker()  # beside those of the older version

    async def _jump_clocks(self) -> None:
        """Set the clock of a worker ahead or back."""
        while await self._pause(0.5, 2):
            jump = self.random.choice([-3600, -20, -3, 0, 0, 3, 20, 3600])
            self.counts["clock jump"] += 1
            self._max_offset = max(self._max_offset, offset := timedelta(seconds=jump))
            self.random.choice(self._workers).clock.set_offset(offset)

    # ── the store ─────────────────────────────────────────────────────────────────────────

    async def _fill_disk(self, disk: Path) -> None:
        """Fill the file system of the store for a while."""
        while await self._pause(1, 4):
            self.counts["disk full"] += 1
            filler = disk / "filler"
            try:
                with suppress(OSError), filler.open("wb", buffering=0) as file:
                    while True:
                        file.write(bytes(FILL_BLOCK_BYTES))
                with suppress(OSError), filler.open("ab", buffering=0) as file:
                    while True:
                        file.write(bytes(512))
                await anyio.sleep(self.random.uniform(0.1, 2))
            finally:
                filler.unlink(missing_ok=True)

    async def _restart_server(self, server: Postgres) -> None:
        """Restart the server, in an orderly way or not."""
        while await self._pause(2, 6):
            ways: list[Literal["fast", "immediate"]] = ["fast", "immediate"]
            self.counts["server restart"] += 1
            await anyio.to_thread.run_sync(server.restart, self.random.choice(ways))

    async def _cut_connections(self, proxy: FaultyProxy) -> None:
        """Cut a connection before or after a commit."""
        while await self._pause(0.05, 0.4):
            proxy.next_fault = self.random.choice([Fault.LOSE_REPLY, Fault.DROP_WRITE])
        proxy.next_fault = Fault.NONE
        self.counts["cut connection"] = proxy.fault_count

    async def _delete_runs(self) -> None:
        """Delete runs that have ended, one by one, by thread and by age."""
        rules = RetentionRules(RETENTION)
        while await self._pause(0.2, 1.5):
            with suppress(StoreError):
                match self.random.choice(["one", "one", "one", "thread", "retention"]):
                    case "one":
                        run = await self._choose_run()
                        if run is not None:
                            await self._delete_run(run)
                    case "thread":
                        thread = self.random.choice(["north", "south"])
                        deleted = await self.midrun.delete_runs(thread=thread, actor="op:eve")
                        self.counts["deleted by thread"] += deleted
                    case _:
                        swept = await enforce_retention(
                            self.midrun.store, rules, self.midrun.now()
                        )
                        self.counts["deleted by age"] += swept

    async def _delete_run(self, run: RunId) -> None:
        try:
            await self._archive(await self.midrun.store.get_row(run))
            await Run(run, self.midrun._service).delete("chaos", actor="operator:eve")
            self.counts["deleted"] += 1
        except DeleteRefused:
            self.counts["delete refused"] += 1

    # ── users ─────────────────────────────────────────────────────────────────────────────

    async def _start_run(self, task: Task) -> None:
        """Start a run at a random time; after a store error, repeat the same request."""
        await anyio.sleep(self.random.uniform(0, self.plan.seconds * 0.7))
        files = [File("shared.txt", "text/plain", SHARED_TEXT.encode())]
        while True:
            try:
                run = await self.midrun.start(
                    task.agent,
                    task.text,
                    thread=task.thread or None,
                    labels=task.labels,
                    files=files if task.has_file else None,
                    request_id=f"r{task.number}",
                )
            except RunErased as erased:  # the reply of the first request was lost
                self.runs[RunId(erased.run)] = task
                return
            except (StoreError, ControlRefused) as error:
                # A repeated request of a thread has another history, and so another digest.
                if isinstance(error, ControlRefused) and error.reason != "request_id_reused":
                    raise
                self.counts["start repeated"] += 1
                if isinstance(error, ControlRefused):
                    return
                await anyio.sleep(0.01)
                continue
            self.runs[run.id] = task
            return

    async def _choose_run(self) -> RunId | None:
        """Return a random run of the store, a child run included."""
        page = await self.midrun.store.list_runs(RunQuery(limit=500))
        return self.random.choice(page.items).run if page.items else None

    async def _send_controls(self, name: str) -> None:
        """Send random controls to random runs."""
        for number in count():
            if not await self._pause(0, 0.15):
                return
            with suppress(StoreError):
                run = await self._choose_run()
                if run is not None:
                    control = self.random.choice(CONTROLS)
                    await self.send(run, control, f"{name}-{number}")

    async def send(self, run: RunId, control: str, request: str) -> bool:
        """Send a control; repeat the same request until it is accepted or refused."""
        handle = Run(run, self.midrun._service)
        while True:
            try:
                receipt = await self._submit(handle, control, request)
            except (ControlRefused, RunNotFound):
                self.counts["refused"] += 1
                return False
            except StoreError:
                self.counts["request repeated"] += 1
                await anyio.sleep(0.01)
                continue
            self.counts[control] += 1
            if receipt is not None:
                self.receipts.append((run, control, receipt))
            return True

    async def _submit(self, run: Run, control: str, request: str) -> Receipt | None:
        second = timedelta(seconds=1)
        submit: dict[str, Callable[[], Awaitable[Receipt]]] = {
            "pause": lambda: run.pause(request_id=request),
            "pause now": lambda: run.pause(now=True, request_id=request),
            "hold": lambda: run.pause(hold=second, request_id=request),
            "resume": lambda: run.resume(request_id=request),
            "redirect": lambda: run.redirect("Go on.", request_id=request),
            "redirect now": lambda: run.redirect("Go on.", when="now", request_id=request),
            "say": lambda: run.say("How is it?", urgency="later", request_id=request),
            "say at": lambda: run.say("Still there?", at=second, request_id=request),
            "cancel": lambda: run.cancel(undo="all", request_id=request),
            "cancel in flight": lambda: run.cancel(request_id=request),
            "take over": lambda: run.take_over(request_id=request),
            "hand back": lambda: run.hand_back(request_id=request),
            "force pause": lambda: run.force_pause(request_id=request),
            "retry undo": lambda: run.retry_undo(request_id=request),
        }
        if control == "fork":
            await run.fork(instruction="Try it again.", request_id=f"fork-{request}")
            return None
        return await submit[control]()

    async def _set_halts(self) -> None:
        """Halt the runs of an agent for a short time."""
        while await self._pause(2, 5):
            scope = self.random.choice(["all", "agent:clerk", "agent:biller", "label:brief"])
            with suppress(StoreError):
                await self.midrun.halt("chaos", scope=scope, actor="operator:eve")
                self.counts["halt"] += 1
            await anyio.sleep(self.random.uniform(0.1, 1))
            await self._lift(scope)

    async def _lift(self, scope: str) -> None:
        while True:
            try:
                await self.midrun.lift(scope=scope, actor="operator:eve")
            except StoreError:
                await anyio.sleep(0.05)
                continue
            return

    async def _answer_asks(self) -> None:
        """Answer questions and approvals, and settle unknown calls, until cancelled."""
        while True:
            await anyio.sleep(0.1)
            with suppress(StoreError, ControlRefused):
                page = await self.midrun.store.list_runs(RunQuery(attention=True, limit=500))
                for row in page.items:
                    with suppress(RunNotFound, ControlRefused):
                        await self._answer_asks_of(row.run)

    async def _answer_asks_of(self, run: RunId) -> None:
        state = await load_run_state(self.midrun.store, run)
        handle = Run(run, self.midrun._service)
        for number in state.open_asks:
            ask = state.asks[number - 1]
            self.counts[f"ask {ask.ask_kind}"] += 1
            match ask.ask_kind:
                case "question":
                    await handle.answer("Yes.", ask=ask.id)
                case "approval" if self.random.random() < 0.3:
                    await handle.decline("no", ask=ask.id)
                case "approval":
                    await handle.approve(ask=ask.id)
                case "unsure":
                    await self._settle(handle, state, number)
                case "child":  # it is answered in the child run
                    continue

    async def _settle(self, handle: Run, state: State, number: int) -> None:
        """Answer an unsure call with what the service knows about it."""
        ask = state.asks[number - 1]
        call = state.find_call(ask.call)
        assert call is not None
        key = find_effect_key(make_call_key(handle.id, ask.call), call.use.args)
        done = self.service.settle(key, call.attempt)
        await handle.answer("yes" if done else "no", ask=ask.id)

    # ── the archive ───────────────────────────────────────────────────────────────────────

    async def _archive_journals(self) -> None:
        """Keep a copy of the journals of runs that have ended, until cancelled."""
        while True:
            await anyio.sleep(0.1)
            with suppress(StoreError):
                for row in await self.list_rows(*TERMINAL_PHASES, Phase.FAILED):
                    await self._archive(row)

    async def _archive(self, row: RunRow) -> None:
        known = self.archive.get(row.run)
        if known is None or len(known) != row.seq:
            with suppress(RunNotFound):
                self.archive[row.run] = list(await self.midrun.store.read(row.run))

    async def list_rows(self, *phases: Phase) -> list[RunRow]:
        """Return the rows of all runs in `phases`, or of all runs."""
        rows: list[RunRow] = []
        query = RunQuery(phases=phases, limit=200)
        while True:
            page = await self.midrun.store.list_runs(query)
            rows += page.items
            if not page.cursor:
                return rows
            query = RunQuery(phases=phases, limit=200, cursor=page.cursor)

    # ── the end ───────────────────────────────────────────────────────────────────────────

    async def _take_faults_back(self) -> None:
        """Lift halts, and let the time of the furthest clock have come for all workers."""
        for halt in await self._retry(self.midrun.store.list_halts):
            await self._lift(halt.scope)
        for worker in list(self._workers):
            if worker.exit_code is not None:
                self._note(f"{worker.name} ended by itself: {worker.read_end()}")
                self._replace(worker)
        for worker in self._workers:
            worker.clock.set_offset(self._max_offset)

    async def _retry(self, read: Callable[[], Awaitable[Sequence[T]]]) -> list[T]:
        while True:
            try:
                return list(await read())
            except StoreError:
                await anyio.sleep(0.05)

    async def _come_to_rest(self) -> None:
        """Resume runs until all of them have ended."""
        resumes: Counter[RunId] = Counter()
        open_phases = tuple(frozenset(Phase) - TERMINAL_PHASES)
        while rows := await self._retry(lambda: self.list_rows(*open_phases)):
            for row in rows:
                if row.head.phase in {Phase.PAUSED, Phase.FAILED}:
                    resumes[row.run] += 1
                    request = f"rest-{row.run}-{resumes[row.run]}"
                    if not await self.send(row.run, "resume", request):
                        await self.send(row.run, "hand back", f"{request}-b")
                if resumes[row.run] > RESUMES_MAX:
                    await self._report_restless()
                    return
            for worker in list(self._workers):
                if worker.exit_code is not None:
                    self._note(f"{worker.name} ended by itself: {worker.read_end()}")
                    self._replace(worker)
            await anyio.sleep(0.2)

    async def _report_restless(self) -> None:
        """Report each run that has not ended, with the end of its journal."""
        for row in await self.list_rows():
            if row.head.phase not in TERMINAL_PHASES:
                records = (await self.midrun.store.read(row.run))[-12:]
                lines = "\n    ".join(f"{r.seq} {r.entry}"[:400] for r in records)
                name = self.runs.get(row.run)
                self._note(
                    f"{row.run} does not come to rest; it is {row.head.phase}, held by "
                    f"{row.holder!r}, parent {row.head.parent!r}, {name}:\n    {lines}"
                )


def find_effect_key(call_key: str, args: Json) -> str:
    """Return the key under which the service knows the effect of a call."""
    ticket = args.get("ticket") if isinstance(args, dict) else None
    return ticket if isinstance(ticket, str) else call_key
