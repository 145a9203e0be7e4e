"""A world on disk that outlives the processes that change it, and agents that change it.

Every effect is a line of a file. A process stops at the point that it was told to stop at, and
waits there to be let on, or killed.
"""

from collections.abc import Sequence
from pathlib import Path

import anyio

from midrun import NOT_DONE, Agent, Call, Tool, tool
from midrun.models import ScriptedModel, Use

SCRIPTS: dict[str, Sequence[str | Use | list[str | Use]]] = {
    "notes": [Use("note", name="1"), Use("note", name="2"), Use("note", name="3"), "Noted."],
    "look": [Use("charge", name="a"), Use("look", name="b"), "Looked."],
    "charge": [Use("charge", name="a"), "Charged."],
    "fetch": [Use("fetch", name="a"), "Fetched."],
    "checked": [Use("checked", name="a"), "Checked."],
    "book": [Use("book", name="a"), "Booked."],
    "drafts": [Use("draft", name="1"), Use("draft", name="2"), Use("look", name="x"), "No."],
}


class World:
    """A folder with what has happened. `stop_at` is where this process stops: `look:before`.

    There it sets `reached` and waits for `gate`.
    """

    def __init__(self, folder: Path, stop_at: str = "") -> None:
        self.reached = anyio.Event()
        self.gate = anyio.Event()
        self._file = folder / "world.txt"
        self._stop_at = stop_at

    def told(self) -> list[str]:
        """Return what has happened, without the keys."""
        return [" ".join(line.split()[:2]) for line in self._lines()]

    def keys(self) -> list[str]:
        """Return under which keys."""
        return [line.split()[2] for line in self._lines()]

    def _lines(self) -> list[str]:
        return self._file.read_text().splitlines() if self._file.exists() else []

    async def act(self, what: str, name: str, call: Call) -> None:
        """Have an effect; stop before or behind it where that is wanted."""
        await self._reach(f"{what}:before")
        with self._file.open("a") as file:
            file.write(f"{what} {name} {call.key} {call.attempt}\n")
        await self._reach(f"{what}:after")

    async def _reach(self, point: str) -> None:
        if point == self._stop_at:
            self.reached.set()
            await self.gate.wait()

    def agent(self, script: str) -> Agent:
        """Return the agent that plays this script; the same in every process."""
        return Agent("actor", model=ScriptedModel(SCRIPTS[script]), tools=self._tools())

    def _tools(self) -> list[Tool]:
        async def discard(call: Call, args: dict[str, str], result: object) -> None:
            del result
            await self.act("discard", args["name"], call)

        async def find(call: Call, args: dict[str, str]) -> object:
            """Tell what the world says of the call, by its key."""
            return f"found {args['name']}" if call.key in self.keys() else NOT_DONE

        @tool
        async def note(call: Call, name: str) -> str:
            """Note something."""
            await self.act("note", name, call)
            return f"noted {name}"

        @tool
        async def charge(call: Call, name: str) -> str:
            """Charge a card, which must not happen twice."""
            await self.act("charge", name, call)
            return f"charged {name}"

        @tool(idempotent=True)
        async def fetch(call: Call, name: str) -> str:
            """Act where the far end knows our key."""
            await self.act("fetch", name, call)
            return f"fetched {name}"

        @tool(read_only=True)
        async def look(call: Call, name: str) -> str:
            """Change nothing."""
            await self.act("look", name, call)
            return f"saw {name}"

        @tool(check=find)
        async def checked(call: Call, name: str) -> str:
            """Act so that one can find out."""
            await self.act("checked", name, call)
            return f"did {name}"

        @tool(undo=discard)
        async def draft(call: Call, name: str) -> str:
            """Act so that it can be undone."""
            await self.act("draft", name, call)
            return f"drafted {name}"

        @tool(idempotent=True, undo=discard)
        async def book(call: Call, name: str) -> str:
            """Act where the far end knows our key, so that it can be undone."""
            await self.act("book", name, call)
            return f"booked {name}"

        return [note, charge, fetch, look, checked, draft, book]
