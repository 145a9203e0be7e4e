"""A worker in a process of its own, whose agent acts in the world outside.

python -m tests.scenarios.fleet.crew STORE FOLDER LEASE_S FLAW
"""

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Final, LiteralString

import anyio

from midrun import Agent, Call, Midrun, Tool, tool
from midrun.core.transcript import Transcript
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Line
from midrun.ports.environment import Environment
from midrun.stores.postgres import queries
from midrun.stores.postgres.connection import PostgresConnection, Rows, Values
from midrun.workers.concurrency_limits import Fleet
from tests.scenarios.fleet.world import Deed, World

TAKES_S = 0.02
"""How long an act takes: long enough to be interrupted in."""


STARTS: Final = json.dumps('"call":"c6","call_kind":"tool","kind":"CallStarted"')[1:-1]
"""What stands in the write that starts the second payment of the patient agent."""


class Acts:
    """The tools of the crew: one of each class."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._world = World(folder)

    def tools(self) -> list[Tool]:
        """Return a tool for each way to act, and one that waits until a file is there."""
        return [
            tool(self._look, name="look", read_only=True),
            tool(self._pay, name="pay"),
            tool(self._order, name="order", idempotent=True),
            tool(self._draft, name="draft", undo=self._undo),
            tool(self._wait, name="wait", read_only=True),
        ]

    async def _look(self, n: int) -> str:
        """Change nothing."""
        await anyio.sleep(TAKES_S)
        return "x" * n

    async def _pay(self, call: Call, n: int) -> str:
        """Act, once, for good."""
        return await self._act("pay", call, n)

    async def _order(self, call: Call, n: int) -> str:
        """Act where the far end knows our keys."""
        return await self._act("order", call, n, knows_keys=True)

    async def _draft(self, call: Call, n: int) -> str:
        """Act in a way that can be taken back."""
        return await self._act("draft", call, n)

    async def _undo(self, call: Call, _: object, __: object) -> None:
        self._world.do(Deed("undo", call.run_id, call.original, 1), knows_keys=True)

    async def _act(self, what: str, call: Call, n: int, *, knows_keys: bool = False) -> str:
        await anyio.sleep(TAKES_S)
        self._world.do(Deed(what, call.run_id, call.key, call.attempt), knows_keys=knows_keys)
        await anyio.sleep(TAKES_S)
        return f"{what} {n}"

    async def _wait(self, call: Call, name: str) -> str:
        """Wait for a file; say that the waiting has begun."""
        self._world.do(Deed("wait", call.run_id, call.key, call.attempt))
        while not (self._folder / name).exists():  # noqa: ASYNC110 - processes share a folder
            await anyio.sleep(0.01)
        return name


STEPS = ("look", "pay", "order", "draft", "look", "pay")


def _busy(messages: Transcript) -> Line:
    n = messages.assistant_turn_count
    return Use(STEPS[n], n=n) if n < len(STEPS) else "Done."


def _patient(messages: Transcript) -> Line:
    turns: list[Line] = [Use("pay", n=1), Use("wait", name="gate"), Use("pay", n=2), "Done."]
    return turns[min(messages.assistant_turn_count, 3)]


def agents(folder: Path) -> list[Agent]:
    """Return one agent that is always busy, and one that waits for a file midway."""
    tools = Acts(folder).tools()
    return [
        Agent("busy", model=ScriptedModel(_busy), tools=tools),
        Agent("patient", model=ScriptedModel(_patient), tools=tools),
    ]


FLEET = Fleet(limits={"agent:busy": 100})
"""Whatever happens to workers, no run may wait for ever for a place of theirs."""


def an_hour_ahead() -> None:
    """Have this machine's clock be wrong."""
    right, hour = time.time_ns, 3600 * 10**9
    setattr(time, "time_ns", lambda: right() + hour)  # noqa: B010 - only in this process


def freeze_at_the_second_payment() -> None:
    """Freeze this process when the start of that payment is committed, and not known here."""
    ask = PostgresConnection.execute

    async def freezing(
        link: PostgresConnection,
        statement: LiteralString,
        values: Values | None = None,
        *,
        prepare: bool | None = None,
    ) -> Rows:
        rows = await ask(link, statement, values, prepare=prepare)
        if statement == queries.WRITE and STARTS in str((values or {})["bids"]):
            setattr(PostgresConnection, ask.__name__, ask)
            os.kill(os.getpid(), signal.SIGSTOP)
        return rows

    setattr(PostgresConnection, ask.__name__, freezing)  # only in this process


FLAWS = {"": lambda: None, "clock": an_hour_ahead, "freezes": freeze_at_the_second_payment}


async def main(store: str, folder: str, lease_s: str) -> None:
    """Drive what there is until asked to leave."""
    outside = Environment(lease=timedelta(seconds=float(lease_s)))
    crew = agents(Path(folder))
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async with Midrun(store, agents=crew, outside=outside, fleet=FLEET):
            print("ready", flush=True)  # noqa: T201 - this is how it talks
            async for _ in signals:
                break
    print("left", flush=True)  # noqa: T201


if __name__ == "__main__":
    FLAWS[sys.argv[4]]()
    anyio.run(main, sys.argv[1], sys.argv[2], sys.argv[3])
