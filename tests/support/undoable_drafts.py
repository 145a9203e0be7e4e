"""Tools that write drafts, whose undo fails as often as a test wants, and a fast clock."""

from collections.abc import Sequence
from datetime import timedelta

from midrun import Agent, Call, Tool, tool
from midrun.core.ids import Micros
from midrun.models import ScriptedModel, Use
from midrun.ports.environment import Environment, read_wall_clock
from midrun.testing.controllable_tools import ControllableTools
from midrun.text.report import ReportedCall

UNDO_ATTEMPTS = 5
"""The number of attempts of an undo before it is given up."""


def make_fast_environment() -> Environment:
    """Return an environment whose clock jumps by minutes, so that each wait is over at once."""
    jumps = [0]

    def clock() -> Micros:
        jumps[0] += 1
        return Micros(read_wall_clock() + jumps[0] * 120_000_000)

    return Environment(clock=clock, lease=timedelta(days=10_000))


class UndoableDrafts:
    """Tools that write drafts, with an undo that fails `fails[name]` times.

    `tries` has the name, key and result that each undo was called with, `call_keys` the key of
    each call.
    """

    def __init__(self) -> None:
        self.controllable_tools = ControllableTools()
        self.failures_left: dict[str, int] = {}
        self.undo_calls: list[tuple[str, str, object]] = []
        self.call_keys: dict[str, str] = {}

    async def discard(self, call: Call, args: dict[str, str], result: object) -> None:
        """Undo a draft, or raise."""
        name = args["name"]
        self.undo_calls.append((name, call.key, result))
        if self.failures_left.get(name, 0):
            self.failures_left[name] -= 1
            raise OSError(f"cannot reach {name}")
        self.controllable_tools.undone.append(name)

    def tools(self) -> list[Tool]:
        """Return the tools."""

        @tool(undo=self.discard)
        async def write(call: Call, name: str) -> str:
            """Write a draft."""
            self.call_keys[name] = call.key
            self.controllable_tools.completed.append(name)
            return f"{name} written"

        @tool(undo=self.discard)
        async def dictate(call: Call, name: str) -> str:
            """Write a draft when the test opens the gate."""
            self.call_keys[name] = call.key
            self.controllable_tools.start(name).set()
            await self.controllable_tools.gate(name).wait()
            self.controllable_tools.completed.append(name)
            return f"{name} dictated"

        return [write, dictate]

    def agent(self, *turns: Use | list[str | Use] | str, name: str = "actor") -> Agent:
        """Return an agent that plays `turns`."""
        tools = [*self.controllable_tools.tools(), *self.tools()]
        return Agent(name, model=ScriptedModel(list(turns)), tools=tools)


def get_names(calls: Sequence[ReportedCall]) -> list[str]:
    """Return the argument `name` of each call."""
    return [call.args.split('"')[3] for call in calls]
