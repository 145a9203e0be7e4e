"""A worker in a process of its own, whose tools have effects in an external service.

python -m tests.scenarios.fleet.worker_program STORE FOLDER LEASE_S FAULT
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
from tests.scenarios.fleet.external_service import Effect, ExternalService

EFFECT_S = 0.02
"""Seconds before and after an effect: long enough to be interrupted."""


SECOND_PAYMENT_START: Final = json.dumps('"call":"c6","call_kind":"tool","kind":"CallStarted"')[
    1:-1
]
"""Text in the write that starts the second payment of the agent `patient`."""


class EffectTools:
    """The tools of the workers: one of each kind of effect."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._service = ExternalService(folder)

    def tools(self) -> list[Tool]:
        """Return a tool for each kind of effect, and one that waits until a file exists."""
        return [
            tool(self._look, name="look", read_only=True),
            tool(self._pay, name="pay"),
            tool(self._order, name="order", idempotent=True),
            tool(self._draft, name="draft", undo=self._undo),
            tool(self._wait, name="wait", read_only=True),
        ]

    async def _look(self, n: int) -> str:
        """Change nothing."""
        await anyio.sleep(EFFECT_S)
        return "x" * n

    async def _pay(self, call: Call, n: int) -> str:
        """Have an effect that can be neither repeated nor undone."""
        return await self._have_effect("pay", call, n)

    async def _order(self, call: Call, n: int) -> str:
        """Have an effect in a service that recognises idempotency keys."""
        return await self._have_effect("order", call, n, knows_keys=True)

    async def _draft(self, call: Call, n: int) -> str:
        """Have an effect that can be undone."""
        return await self._have_effect("draft", call, n)

    async def _undo(self, call: Call, _: object, __: object) -> None:
        self._service.record(Effect("undo", call.run_id, call.original, 1), knows_keys=True)

    async def _have_effect(
        self, what: str, call: Call, n: int, *, knows_keys: bool = False
    ) -> str:
        await anyio.sleep(EFFECT_S)
        self._service.record(
            Effect(what, call.run_id, call.key, call.attempt), knows_keys=knows_keys
        )
        await anyio.sleep(EFFECT_S)
        return f"{what} {n}"

    async def _wait(self, call: Call, name: str) -> str:
        """Record that it waits, and wait for a file."""
        self._service.record(Effect("wait", call.run_id, call.key, call.attempt))
        while not (self._folder / name).exists():  # noqa: ASYNC110 - processes share a folder
            await anyio.sleep(0.01)
        return name


STEPS = ("look", "pay", "order", "draft", "look", "pay")


def _play_busy(messages: Transcript) -> Line:
    n = messages.assistant_turn_count
    return Use(STEPS[n], n=n) if n < len(STEPS) else "Done."


def _play_patient(messages: Transcript) -> Line:
    turns: list[Line] = [Use("pay", n=1), Use("wait", name="gate"), Use("pay", n=2), "Done."]
    return turns[min(messages.assistant_turn_count, 3)]


def make_agents(folder: Path) -> list[Agent]:
    """Return an agent that never waits, and one that waits for a file midway."""
    tools = EffectTools(folder).tools()
    return [
        Agent("busy", model=ScriptedModel(_play_busy), tools=tools),
        Agent("patient", model=ScriptedModel(_play_patient), tools=tools),
    ]


FLEET = Fleet(limits={"agent:busy": 100})
"""A limit whose places must become free again when workers die."""


def set_clock_ahead() -> None:
    """Set the clock of this process one hour ahead."""
    true_time_ns, hour = time.time_ns, 3600 * 10**9
    setattr(time, "time_ns", lambda: true_time_ns() + hour)  # noqa: B010 - only in this process


def freeze_at_the_second_payment() -> None:
    """Freeze this process after the commit of that start, before it reads the reply."""
    execute = PostgresConnection.execute

    async def execute_and_freeze(
        connection: PostgresConnection,
        statement: LiteralString,
        values: Values | None = None,
        *,
        prepare: bool | None = None,
    ) -> Rows:
        rows = await execute(connection, statement, values, prepare=prepare)
        if statement == queries.WRITE and SECOND_PAYMENT_START in str(
            (values or {})["requests"]
        ):
            setattr(PostgresConnection, execute.__name__, execute)
            os.kill(os.getpid(), signal.SIGSTOP)
        return rows

    setattr(PostgresConnection, execute.__name__, execute_and_freeze)  # only in this process


FAULTS = {"": lambda: None, "clock": set_clock_ahead, "freezes": freeze_at_the_second_payment}


async def main(store: str, folder: str, lease_s: str) -> None:
    """Drive runs until SIGTERM."""
    environment = Environment(lease=timedelta(seconds=float(lease_s)))
    agents = make_agents(Path(folder))
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async with Midrun(store, agents=agents, outside=environment, fleet=FLEET):
            print("ready", flush=True)  # noqa: T201 - the test reads it
            async for _ in signals:
                break
    print("left", flush=True)  # noqa: T201


if __name__ == "__main__":
    FAULTS[sys.argv[4]]()
    anyio.run(main, sys.argv[1], sys.argv[2], sys.argv[3])
