"""Many failures at once; afterwards journals, effects and receipts must agree.

Workers are killed and frozen, the server is restarted every few seconds, connections are cut
after their commit, and people send controls. `MIDRUN_CHAOS_S` is the duration in seconds,
`MIDRUN_CHAOS_SEED` the seed; 0 takes a random one. The seed is printed.
"""

import os
import secrets
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Literal
from urllib.parse import quote

import anyio
import anyio.to_thread
import pytest

from midrun import ControlRefused, Midrun, Run
from midrun.core.entries import (
    CallAborted,
    CallSealed,
    CallStarted,
    Entry,
    MessageReceived,
    RedirectRequested,
    RunCompleted,
)
from midrun.core.ids import RunId, make_call_key
from midrun.core.values import TERMINAL_PHASES
from midrun.driver.journal_writer import load_run_state
from midrun.errors import StoreError
from midrun.ports.store import RunQuery
from midrun.runs.values import Receipt
from midrun.testing.postgres import Postgres, running
from tests.scenarios.fleet.external_service import ExternalService
from tests.scenarios.fleet.worker_processes import Worker, start_workers
from tests.scenarios.fleet.worker_program import STEPS, make_agents
from tests.unit.stores.postgres.faulty_proxy import Fault, FaultyProxy, run_proxy

SECONDS = float(os.environ.get("MIDRUN_CHAOS_S", "15"))
SEED = int(os.environ.get("MIDRUN_CHAOS_SEED", "5")) or secrets.randbelow(10**6) + 1
RUNS = 200
WORKERS = 3
LEASE_S = 2.0
CALM_S = 240
"""Seconds in which all runs must end after the last failure."""

ENTRY_BY_CONTROL = {
    "pause": "PauseRequested",
    "resume": "RunResumed",
    "redirect": "RedirectRequested",
    "say": "MessageReceived",
    "cancel": "CancelRequested",
}
"""The kind of the entry at the seq of a control's receipt."""


DISTURBING_ENTRIES = (CallAborted, CallSealed, MessageReceived, RedirectRequested)
"""Entries after which a run need not make all its steps."""


@dataclass
class Chaos:
    """The failures, the controls, and the receipts of one test."""

    server: Postgres
    controller: Midrun
    service: ExternalService
    random: Random
    runs: list[RunId] = field(default_factory=list)
    receipts: list[tuple[RunId, str, Receipt]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    is_over: bool = False

    # ── failures ──────────────────────────────────────────────────────────────────────────

    async def restart_server(self) -> None:
        """Restart the server every few seconds, in an orderly way or not."""
        while not self.is_over:
            await anyio.sleep(self.random.uniform(2, 6))
            ways: list[Literal["fast", "immediate"]] = ["fast", "immediate"]
            how = self.random.choice(ways)
            self.counts[f"restart {how}"] += 1
            await anyio.to_thread.run_sync(self.server.restart, how)

    async def disturb_workers(self, workers: list[Worker], start: Callable[[], Worker]) -> None:
        """Kill a worker and start another, or freeze one for up to twice its lease."""
        while not self.is_over:
            await anyio.sleep(self.random.uniform(0.5, 2))
            n = self.random.randrange(len(workers))
            if self.random.random() < 0.5:
                self.counts["kill"] += 1
                workers[n].end()
                workers[n] = start()
                continue
            self.counts["freeze"] += 1
            workers[n].send(signal.SIGSTOP)
            await anyio.sleep(self.random.uniform(0.5, 2 * LEASE_S))
            workers[n].send(signal.SIGCONT)

    async def cut_connections(self, cutter: FaultyProxy) -> None:
        """Cut a connection before or after a commit now and then."""
        while not self.is_over:
            await anyio.sleep(self.random.uniform(0.05, 0.4))
            cutter.next_fault = self.random.choice([Fault.LOSE_REPLY, Fault.DROP_WRITE])
        cutter.next_fault = Fault.NONE
        self.counts["cut"] = cutter.fault_count

    # ── controls ──────────────────────────────────────────────────────────────────────────

    async def start_run(self, number: int) -> None:
        """Start a run; after a store error, repeat the same request."""
        while True:
            try:
                run = await self.controller.start(
                    "busy", f"run {number}", request_id=f"r{number}"
                )
            except StoreError:
                self.counts["start repeated"] += 1
                continue
            self.runs.append(run.id)
            return

    async def send_controls(self, name: str) -> None:
        """Send random controls to random runs."""
        sent = 0
        while not self.is_over:
            await anyio.sleep(self.random.uniform(0.0, 0.1))
            if self.runs:
                sent += 1
                control = self.random.choice([*ENTRY_BY_CONTROL, "resume", "resume", "say"])
                await self.send(self.random.choice(self.runs), control, f"{name}-{sent}")

    async def send(self, run: RunId, control: str, request: str) -> None:
        """Send a control; repeat the same request until it is accepted or refused."""
        handle = Run(run, self.controller._service)
        requests: dict[str, Callable[[], Awaitable[Receipt]]] = {
            "pause": lambda: handle.pause(request_id=request, now=self.random.random() < 0.5),
            "resume": lambda: handle.resume(request_id=request),
            "redirect": lambda: handle.redirect("Go on.", request_id=request),
            "say": lambda: handle.say("How is it?", urgency="later", request_id=request),
            "cancel": lambda: handle.cancel(undo="all", request_id=request),
        }
        while True:
            try:
                receipt = await requests[control]()
            except ControlRefused:
                self.counts["refused"] += 1
            except StoreError:
                self.counts["request repeated"] += 1
                continue
            else:
                self.counts[control] += 1
                self.receipts.append((run, control, receipt))
            return

    async def answer_asks(self) -> None:
        """Settle unknown calls from the records of the service, until cancelled."""
        while True:
            await anyio.sleep(0.2)
            try:
                page = await self.controller.store.list_runs(
                    RunQuery(attention=True, limit=500)
                )
                for row in page.items:
                    await self._answer_asks_of(row.run)
            except (StoreError, ControlRefused):
                continue

    async def _answer_asks_of(self, run: RunId) -> None:
        state = await load_run_state(self.controller.store, run)
        for number in state.open_asks:
            ask = state.asks[number - 1]
            call = state.find_call(ask.call)
            assert call is not None
            self.counts["unsure"] += 1
            done = self.service.settle(make_call_key(run, ask.call), call.attempt)
            await Run(run, self.controller._service).answer("yes" if done else "no", ask=ask.id)

    # ── the end ───────────────────────────────────────────────────────────────────────────

    async def complete_runs(self, workers: list[Worker]) -> None:
        """Resume runs until all of them have ended."""
        for run in self.runs:
            handle = Run(run, self.controller._service)
            while (phase := (await handle.view()).phase) not in TERMINAL_PHASES:
                for worker in workers:
                    worker.check()
                if phase in {"paused", "failed"}:
                    await self.send(run, "resume", f"calm-{run}-{self.random.random()}")
                with anyio.move_on_after(5):
                    await handle.until("terminal", "paused", "failed")


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.timeout(900)
async def test_journals_effects_and_receipts_agree_after_many_failures(tmp_path: Path) -> None:
    """Every payment is made once, every effect is journaled, every receipt is true."""
    print(f"MIDRUN_CHAOS_SEED={SEED}")  # noqa: T201 - to repeat it
    with running() as server, TemporaryDirectory(prefix="cut-", dir="/tmp") as folder:
        async with run_proxy(Path(folder), server.folder) as cutter:
            url = server.url()
            there, here = quote(str(server.folder), safe=""), quote(folder, safe="")
            through = url.replace(there, here)
            chaos = await _play(server, through, url, cutter, tmp_path)
        print(dict(chaos.counts))  # noqa: T201 - shows which failures have happened


async def _play(
    server: Postgres, through: str, url: str, cutter: FaultyProxy, folder: Path
) -> Chaos:
    with start_workers(through, folder, WORKERS, lease_s=LEASE_S) as workers:
        async with Midrun(through, agents=make_agents(folder), engine=None) as controller:
            chaos = Chaos(server, controller, ExternalService(folder), Random(SEED))  # noqa: S311 - to repeat it
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(chaos.answer_asks)
                async with anyio.create_task_group() as failures:
                    for n in range(RUNS):
                        failures.start_soon(chaos.start_run, n)
                    failures.start_soon(chaos.restart_server)
                    failures.start_soon(
                        chaos.disturb_workers,
                        workers,
                        lambda: Worker(through, folder, lease_s=LEASE_S),
                    )
                    failures.start_soon(chaos.cut_connections, cutter)
                    for name in ("ann", "bob", "cem"):
                        failures.start_soon(chaos.send_controls, name)
                    await anyio.sleep(SECONDS)
                    chaos.is_over = True
                with anyio.fail_after(CALM_S):
                    await chaos.complete_runs(workers)
                tasks.cancel_scope.cancel()
    async with Midrun(url) as controller:
        await _check(chaos, controller)
    chaos.service.close()
    return chaos


async def _check(chaos: Chaos, controller: Midrun) -> None:
    """Compare the journals, the effects and the receipts."""
    assert len(set(chaos.runs)) == RUNS
    effects = chaos.service.list_effects()
    times_made = Counter(e.key for e in effects if e.what in {"pay", "order"})
    assert max(times_made.values()) == 1, [
        key for key, times in times_made.items() if times > 1
    ]
    journals: dict[RunId, list[Entry]] = {}
    started: set[str] = set()
    for run in chaos.runs:
        verdict = await controller.verify(run)
        assert verdict, f"{run}: {verdict}"
        journals[run] = [record.entry for record in await controller.store.read(run)]
        started |= {
            make_call_key(run, e.call) for e in journals[run] if isinstance(e, CallStarted)
        }
        if isinstance(journals[run][-1], RunCompleted) and not any(
            isinstance(entry, DISTURBING_ENTRIES) for entry in journals[run]
        ):
            done = Counter(e.what for e in effects if e.run == run)
            expected = Counter(STEPS)
            has_all_steps = (done["pay"], done["order"]) == (expected["pay"], expected["order"])
            assert has_all_steps, "\n".join(map(str, [run, done, *journals[run]]))
            chaos.counts["undisturbed"] += 1
    assert {
        effect.key for effect in effects
    } <= started  # there is no effect without a journaled start
    for run, control, receipt in chaos.receipts:
        if receipt.already is None:
            entry = journals[run][receipt.seq - 1]
            withdrawn = control == "resume" and type(entry).__name__ == "PauseWithdrawn"
            assert type(entry).__name__ == ENTRY_BY_CONTROL[control] or withdrawn, (
                run,
                control,
                receipt,
            )
