"""Drafts that can be undone, by an undo that fails as often as a test wants."""

from collections.abc import Sequence
from datetime import timedelta

from midrun import Agent, Call, Tool, tool
from midrun.core.ids import Micros
from midrun.models import ScriptedModel
from midrun.ports.environment import Environment, read_wall_clock
from midrun.text.report import ReportedCall
from tests.unit.runs.stage import ControllableTools, Use

ATTEMPTS = 5


def hasty() -> Environment:
    """Return an outside whose clock jumps by minutes: whatever waits for a time is due."""
    jumps = [0]

    def clock() -> Micros:
        jumps[0] += 1
        return Micros(read_wall_clock() + jumps[0] * 120_000_000)

    return Environment(clock=clock, lease=timedelta(days=10_000))


class Drafts:
    """Drafts that can be undone, with an undo that fails as often as a test wants."""

    def __init__(self) -> None:
        self.stage = ControllableTools()
        self.fails: dict[str, int] = {}
        self.tries: list[tuple[str, str, object]] = []  # name, key, result
        self.call_keys: dict[str, str] = {}

    async def discard(self, call: Call, args: dict[str, str], result: object) -> None:
        """Undo a draft, or raise."""
        name = args["name"]
        self.tries.append((name, call.key, result))
        if self.fails.get(name, 0):
            self.fails[name] -= 1
            raise OSError(f"cannot reach {name}")
        self.stage.undone.append(name)

    def tools(self) -> list[Tool]:
        """Return the tools."""

        @tool(undo=self.discard)
        async def write(call: Call, name: str) -> str:
            """Write a draft."""
            self.call_keys[name] = call.key
            self.stage.completed.append(name)
            return f"{name} written"

        @tool(undo=self.discard)
        async def dictate(call: Call, name: str) -> str:
            """Write a draft when the test says so."""
            self.call_keys[name] = call.key
            self.stage.start(name).set()
            await self.stage.gate(name).wait()
            self.stage.completed.append(name)
            return f"{name} dictated"

        return [write, dictate]

    def agent(self, *turns: Use | list[str | Use] | str, name: str = "actor") -> Agent:
        """Return an agent that plays `turns`."""
        tools = [*self.stage.tools(), *self.tools()]
        return Agent(name, model=ScriptedModel(list(turns)), tools=tools)


def names(deeds: Sequence[ReportedCall]) -> list[str]:
    """Return the `name` argument of each deed."""
    return [deed.args.split('"')[3] for deed in deeds]
