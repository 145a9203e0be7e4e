"""Tools that wait at gates, and a record of their calls, for tests of runs."""

import anyio

from midrun import Agent, Call, Tool, tool
from midrun.models import ScriptedModel


class ControllableTools:
    """Tools whose progress a test controls, and a record of their calls.

    `called` lists the names that the tools were called with, `completed` those that took
    effect.
    """

    def __init__(self) -> None:
        self.called: list[str] = []
        self.completed: list[str] = []
        self.undone: list[str] = []
        self.released: list[str] = []
        self.keys: list[str] = []
        self.stopped: list[str] = []
        self._gates: dict[str, anyio.Event] = {}
        self._starts: dict[str, anyio.Event] = {}

    def open_all_gates(self) -> None:
        """Open every gate, so that no tool waits any longer."""
        for gate in self._gates.values():
            gate.set()

    def gate(self, name: str) -> anyio.Event:
        """Return the gate that `slow(name)` waits for."""
        return self._gates.setdefault(name, anyio.Event())

    def start(self, name: str) -> anyio.Event:
        """Return the event that is set once a tool was called with `name`."""
        return self._starts.setdefault(name, anyio.Event())

    def agent(self, *turns: object, name: str = "actor", **options: object) -> Agent:
        """Return an agent that plays `turns` with these tools."""
        model = ScriptedModel(list(turns))  # type: ignore[arg-type]  # checked there
        return Agent(name, model=model, tools=self.tools(), **options)  # type: ignore[arg-type]  # checked there too

    def tools(self) -> list[Tool]:
        """Return the tools; the `draft`s have an undo, `lock` has a release."""
        return [
            tool(self._quick, name="quick"),
            tool(self._slow, name="slow"),
            tool(self._quick, name="draft", undo=self._undo),
            tool(self._slow, name="slow_draft", undo=self._undo),
            tool(self._quick, name="lock", release=self._release),
            tool(self._slow, name="read", read_only=True),
        ]

    def _record_call(self, call: Call, name: str) -> None:
        self.called.append(name)
        self.keys.append(call.key)
        self.start(name).set()

    async def _quick(self, call: Call, name: str) -> str:
        """Act at once."""
        self._record_call(call, name)
        self.completed.append(name)
        return f"{name} done"

    async def _slow(self, call: Call, name: str) -> str:
        """Act when the test opens the gate."""
        self._record_call(call, name)
        try:
            await self.gate(name).wait()
        except BaseException:
            self.stopped.append(name)
            raise
        self.completed.append(name)
        return f"{name} done"

    async def _undo(self, _: Call, args: dict[str, str], __: object) -> None:
        self.undone.append(args["name"])

    async def _release(self, _: Call, args: dict[str, str], __: object) -> None:
        self.released.append(args["name"])
