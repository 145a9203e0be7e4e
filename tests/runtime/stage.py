"""A stage for tests: tools that stop where a test wants them, and a world that they change."""

from collections.abc import Awaitable, Callable

import anyio

from midrun import Agent, Call, Tool, tool
from midrun.models import ScriptedModel, Use

__all__ = ["Stage", "Use"]


class Stage:
    """Tools whose progress a test controls, and the record of what they did.

    `began` and `did` hold what the tools were entered with, and what took effect, in order.
    """

    def __init__(self) -> None:
        self.began: list[str] = []
        self.did: list[str] = []
        self.undone: list[str] = []
        self.released: list[str] = []
        self.keys: list[str] = []
        self.stopped: list[str] = []
        self._gates: dict[str, anyio.Event] = {}
        self._starts: dict[str, anyio.Event] = {}

    def gate(self, name: str) -> anyio.Event:
        """Return the gate that `slow(name)` waits for."""
        return self._gates.setdefault(name, anyio.Event())

    def start(self, name: str) -> anyio.Event:
        """Return what is set once `slow(name)` or `quick(name)` was entered."""
        return self._starts.setdefault(name, anyio.Event())

    def agent(self, *turns: object, name: str = "actor", **options: object) -> Agent:
        """Return an agent that plays `turns` with this stage's tools."""
        model = ScriptedModel(list(turns))  # type: ignore[arg-type]  # checked there
        return Agent(name, model=model, tools=self.tools(), **options)  # type: ignore[arg-type]  # as above

    def tools(self) -> list[Tool]:
        """Return the tools of this stage."""

        async def undo(call: Call, args: dict[str, str], result: object) -> None:
            del call, result
            self.undone.append(args["name"])

        async def release(call: Call, args: dict[str, str], result: object) -> None:
            del call, result
            self.released.append(args["name"])

        async def act(call: Call, name: str) -> str:
            self.began.append(name)
            self.keys.append(call.key)
            self.start(name).set()
            return name

        @tool
        async def quick(call: Call, name: str) -> str:
            """Act at once."""
            await act(call, name)
            self.did.append(name)
            return f"{name} done"

        async def wait(call: Call, name: str) -> str:
            await act(call, name)
            try:
                await self.gate(name).wait()
            except BaseException:
                self.stopped.append(name)
                raise
            self.did.append(name)
            return f"{name} done"

        @tool
        async def slow(call: Call, name: str) -> str:
            """Act when the test says so."""
            return await wait(call, name)

        @tool(undo=undo)
        async def draft(call: Call, name: str) -> str:
            """Act at once; can be undone."""
            await act(call, name)
            self.did.append(name)
            return f"{name} drafted"

        @tool(undo=undo)
        async def slow_draft(call: Call, name: str) -> str:
            """Act when the test says so; can be undone."""
            return await wait(call, name)

        @tool(release=release)
        async def lock(call: Call, name: str) -> str:
            """Hold something until the run ends."""
            await act(call, name)
            self.did.append(name)
            return f"{name} locked"

        @tool(read_only=True)
        async def read(call: Call, name: str) -> str:
            """Look at something when the test says so."""
            return await wait(call, name)

        return [quick, slow, draft, slow_draft, lock, read]
