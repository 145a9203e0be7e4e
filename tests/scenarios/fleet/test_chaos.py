"""Chaos: everything goes wrong at once, for a while; in the end every account is in order.

Workers are killed and frozen, the server is restarted every few seconds, connections are cut
after their commit, and people ask for this and that. `MIDRUN_CHAOS_S` is for how long,
`MIDRUN_CHAOS_SEED` chooses the seed; 0 takes a fresh one, and prints it.
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
from tests.scenarios.fleet.crew import STEPS, agents
from tests.scenarios.fleet.workers import Worker, workers
from tests.scenarios.fleet.world import World
from tests.unit.stores.postgres.cutting import Cut, Cutter, cutting

SECONDS = float(os.environ.get("MIDRUN_CHAOS_S", "15"))
SEED = int(os.environ.get("MIDRUN_CHAOS_SEED", "5")) or secrets.randbelow(10**6) + 1
RUNS = 200
WORKERS = 3
LEASE_S = 2.0
CALM_S = 240
"""How long everything may take to come to its end once nothing goes wrong any more."""

KINDS = {
    "pause": "PauseRequested",
    "resume": "RunResumed",
    "redirect": "RedirectRequested",
    "say": "MessageReceived",
    "cancel": "CancelRequested",
}
"""What stands in the journal where a receipt says that a control is."""


DISTURBED = (CallAborted, CallSealed, MessageReceived, RedirectRequested)
"""What takes the agent off its course: a call that was stopped midway is not made again."""


@dataclass
class Chaos:
    """What happens, and what everybody was told."""

    server: Postgres
    desk: Midrun
    world: World
    chance: Random
    runs: list[RunId] = field(default_factory=list)
    told: list[tuple[RunId, str, Receipt]] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    over: bool = False

    # ── what goes wrong ───────────────────────────────────────────────────────────────────

    async def restart_the_server(self) -> None:
        """Every few seconds, in an orderly way or not."""
        while not self.over:
            await anyio.sleep(self.chance.uniform(2, 6))
            ways: list[Literal["fast", "immediate"]] = ["fast", "immediate"]
            how = self.chance.choice(ways)
            self.happened[f"restart {how}"] += 1
            await anyio.to_thread.run_sync(self.server.restart, how)

    async def molest(self, crew: list[Worker], start: Callable[[], Worker]) -> None:
        """Kill a worker and hire another, or freeze one for longer than its lease."""
        while not self.over:
            await anyio.sleep(self.chance.uniform(0.5, 2))
            n = self.chance.randrange(len(crew))
            if self.chance.random() < 0.5:
                self.happened["kill"] += 1
                crew[n].end()
                crew[n] = start()
                continue
            self.happened["freeze"] += 1
            crew[n].send(signal.SIGSTOP)
            await anyio.sleep(self.chance.uniform(0.5, 2 * LEASE_S))
            crew[n].send(signal.SIGCONT)

    async def cut(self, cutter: Cutter) -> None:
        """Lose the answer to a commit now and then."""
        while not self.over:
            await anyio.sleep(self.chance.uniform(0.05, 0.4))
            cutter.next = self.chance.choice([Cut.AFTER, Cut.BEFORE])
        cutter.next = Cut.NONE
        self.happened["cut"] = cutter.cuts

    # ── what people ask for ───────────────────────────────────────────────────────────────

    async def start(self, number: int) -> None:
        """Start a run, and again with the same request if nobody answers."""
        while True:
            try:
                run = await self.desk.start("busy", f"run {number}", request_id=f"r{number}")
            except StoreError:
                self.happened["start repeated"] += 1
                continue
            self.runs.append(run.id)
            return

    async def people(self, name: str) -> None:
        """Ask something of some run, over and over."""
        asked = 0
        while not self.over:
            await anyio.sleep(self.chance.uniform(0.0, 0.1))
            if self.runs:
                asked += 1
                control = self.chance.choice([*KINDS, "resume", "resume", "say"])
                await self.ask(self.chance.choice(self.runs), control, f"{name}-{asked}")

    async def ask(self, run: RunId, control: str, request: str) -> None:
        """Ask, and repeat the same request until somebody says what became of it."""
        handle = Run(run, self.desk._service)
        asks: dict[str, Callable[[], Awaitable[Receipt]]] = {
            "pause": lambda: handle.pause(request_id=request, now=self.chance.random() < 0.5),
            "resume": lambda: handle.resume(request_id=request),
            "redirect": lambda: handle.redirect("Go on.", request_id=request),
            "say": lambda: handle.say("How is it?", urgency="later", request_id=request),
            "cancel": lambda: handle.cancel(undo="all", request_id=request),
        }
        while True:
            try:
                receipt = await asks[control]()
            except ControlRefused:
                self.happened["refused"] += 1
            except StoreError:
                self.happened["asked again"] += 1
                continue
            else:
                self.happened[control] += 1
                self.told.append((run, control, receipt))
            return

    async def decide(self) -> None:
        """Look at the world for whoever is unsure, until everything has ended."""
        while True:
            await anyio.sleep(0.2)
            try:
                page = await self.desk.store.list_runs(RunQuery(attention=True, limit=500))
                for row in page.items:
                    await self._decide(row.run)
            except (StoreError, ControlRefused):
                continue

    async def _decide(self, run: RunId) -> None:
        state = await load_run_state(self.desk.store, run)
        for number in state.open_asks:
            ask = state.asks[number - 1]
            call = state.find_call(ask.call)
            assert call is not None
            self.happened["unsure"] += 1
            done = self.world.settle(make_call_key(run, ask.call), call.attempt)
            await Run(run, self.desk._service).answer("yes" if done else "no", ask=ask.id)

    # ── how it ends ───────────────────────────────────────────────────────────────────────

    async def calm_down(self, crew: list[Worker]) -> None:
        """Have every run come to its end."""
        for run in self.runs:
            handle = Run(run, self.desk._service)
            while (phase := (await handle.view()).phase) not in TERMINAL_PHASES:
                for worker in crew:
                    worker.check()
                if phase in {"paused", "failed"}:
                    await self.ask(run, "resume", f"calm-{run}-{self.chance.random()}")
                with anyio.move_on_after(5):
                    await handle.until("terminal", "paused", "failed")


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.timeout(900)
async def test_whatever_goes_wrong_every_account_is_in_order(tmp_path: Path) -> None:
    """The journals, the world and what people were told are three accounts of one history."""
    print(f"MIDRUN_CHAOS_SEED={SEED}")  # noqa: T201 - to repeat it
    with running() as server, TemporaryDirectory(prefix="cut-", dir="/tmp") as folder:
        async with cutting(Path(folder), server.folder) as cutter:
            url = server.url()
            there, here = quote(str(server.folder), safe=""), quote(folder, safe="")
            through = url.replace(there, here)
            chaos = await _play(server, through, url, cutter, tmp_path)
        print(dict(chaos.happened))  # noqa: T201 - so that one sees that something has happened


async def _play(
    server: Postgres, through: str, url: str, cutter: Cutter, folder: Path
) -> Chaos:
    with workers(through, folder, WORKERS, lease_s=LEASE_S) as crew:
        async with Midrun(through, agents=agents(folder), engine=None) as desk:
            chaos = Chaos(server, desk, World(folder), Random(SEED))  # noqa: S311 - to repeat it
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(chaos.decide)
                async with anyio.create_task_group() as trouble:
                    for n in range(RUNS):
                        trouble.start_soon(chaos.start, n)
                    trouble.start_soon(chaos.restart_the_server)
                    trouble.start_soon(
                        chaos.molest, crew, lambda: Worker(through, folder, lease_s=LEASE_S)
                    )
                    trouble.start_soon(chaos.cut, cutter)
                    for name in ("ann", "bob", "cem"):
                        trouble.start_soon(chaos.people, name)
                    await anyio.sleep(SECONDS)
                    chaos.over = True
                with anyio.fail_after(CALM_S):
                    await chaos.calm_down(crew)
                tasks.cancel_scope.cancel()
    async with Midrun(url) as desk:
        await _check(chaos, desk)
    chaos.world.close()
    return chaos


async def _check(chaos: Chaos, desk: Midrun) -> None:
    """Hold the three accounts against each other."""
    assert len(set(chaos.runs)) == RUNS
    deeds = chaos.world.deeds()
    often = Counter(deed.key for deed in deeds if deed.what in {"pay", "order"})
    assert max(often.values()) == 1, [key for key, times in often.items() if times > 1]
    journals: dict[RunId, list[Entry]] = {}
    started: set[str] = set()
    for run in chaos.runs:
        verdict = await desk.verify(run)
        assert verdict, f"{run}: {verdict}"
        journals[run] = [record.entry for record in await desk.store.read(run)]
        started |= {
            make_call_key(run, e.call) for e in journals[run] if isinstance(e, CallStarted)
        }
        if isinstance(journals[run][-1], RunCompleted) and not any(
            isinstance(entry, DISTURBED) for entry in journals[run]
        ):
            done = Counter(d.what for d in deeds if d.run == run)
            wanted = Counter(STEPS)
            done_well = (done["pay"], done["order"]) == (wanted["pay"], wanted["order"])
            assert done_well, "\n".join(map(str, [run, done, *journals[run]]))
            chaos.happened["undisturbed"] += 1
    assert {deed.key for deed in deeds} <= started  # nothing was done that was not journaled
    for run, control, receipt in chaos.told:
        if receipt.already is None:
            entry = journals[run][receipt.seq - 1]
            withdrawn = control == "resume" and type(entry).__name__ == "PauseWithdrawn"
            assert type(entry).__name__ == KINDS[control] or withdrawn, (run, control, receipt)
