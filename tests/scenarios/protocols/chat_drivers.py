"""Drivers of unmodified chat clients, with the same methods for each protocol.

`test_chat_adapters.py` is written once against `ChatDriver`. A driver is one client of one user
in one thread. It translates the steps of a test to its protocol, and the end of a reply back.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import ClassVar, Final, Protocol

import anyio
import httpx
import httpx2
import msgspec
from a2a.client import Client as A2aClient
from a2a.client import ClientConfig, ClientFactory
from a2a.client.errors import A2AClientError
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import A2AError
from anyio.abc import TaskGroup
from mcp import Client as McpClient
from mcp.client.streamable_http import streamable_http_client
from openai import APIError, AsyncOpenAI, DefaultAsyncHttpxClient
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFailedEvent,
    ResponseIncompleteEvent,
    ResponseInputParam,
)

from tests.scenarios.protocols.conftest import make_rpc_call
from tests.scenarios.protocols.node_clients import (
    CURRENT_CLIENT,
    AiSdkClient,
    JsonObject,
    NodeClient,
    run_ai_sdk,
    run_client,
)
from tests.unit.server.conftest import TIMEOUT_S, make_token


@dataclass
class Reply:
    """The end of a reply, as the client knows it."""

    text: str
    phase: str = ""
    error: str = ""
    tools: list[str] = field(default_factory=list)


class CallRpc(Protocol):
    """Calls a method of an A2A extension."""

    async def __call__(self, method: str, **params: object) -> None: ...


class ChatDriver(ABC):
    """A client of one protocol; a new reply begins with `send` and the methods after it."""

    @abstractmethod
    async def send(self, text: str) -> None:
        """Send a message."""

    async def resume(self, text: str) -> None:
        """Resume a paused run with an instruction."""
        await self.send(text)

    async def answer(self, text: str) -> None:
        """Answer the question of a run."""
        await self.send(text)

    @abstractmethod
    async def decide(self, *, approved: bool) -> None:
        """Approve or decline the call that the newest reply asks about."""

    @abstractmethod
    async def load(self) -> None:
        """Load the thread, in a client that has not sent anything."""

    async def follow(self) -> None:
        """Follow the current reply, in a client that has loaded the thread."""
        raise NotImplementedError

    @abstractmethod
    async def leave(self) -> None:
        """Drop the connection."""

    async def pause(self) -> None:
        """Pause the run with the client's own means."""
        raise NotImplementedError

    async def cancel(self) -> None:
        """Cancel the run with the client's own means."""
        raise NotImplementedError

    @abstractmethod
    async def wait_for_text(self, text: str) -> None:
        """Wait until the reply contains `text`."""

    @abstractmethod
    async def wait_for_end(self) -> Reply:
        """Wait for the end of the reply."""


# ── Vercel AI SDK ─────────────────────────────────────────────────────────────────────────


class AiSdkDriver(ChatDriver):
    """The chat of the package `ai`."""

    def __init__(self, client: AiSdkClient) -> None:
        self._client = client
        self._command = "send"

    async def send(self, text: str) -> None:
        self._client.errors.clear()
        await self._run("send", text)

    async def decide(self, *, approved: bool) -> None:
        await self._run("decide", {"approved": approved, "reason": "too much"})

    async def load(self) -> None:
        await self._client.send(open={"id": "t", "load": True})
        await self._client.wait_for_done("open")

    async def follow(self) -> None:
        await self._run("resume", None)

    async def leave(self) -> None:
        await self._client.send(leave=None)

    async def pause(self) -> None:
        await self._client.send(stop="t")

    async def cancel(self) -> None:
        """Call the stop route of a server with `Bridges(stop="cancel")`."""
        await self._client.send(stop="t")

    async def wait_for_text(self, text: str) -> None:
        await self._client.wait_for_text(text)

    async def wait_for_end(self) -> Reply:
        client = self._client
        if self._command == "decide":
            # The decision itself ends at once; the client then sends it by itself.
            while not client.errors and self._get_phase() in {"", "waiting"}:
                await client.read_change()
        else:
            await client.wait_for_done(self._command)
        return Reply(
            text=client.get_text() if client.messages else "",
            phase=self._get_phase(),
            error=" ".join(client.errors),
            tools=[name for name, _ in client.get_tools()] if client.messages else [],
        )

    async def _run(self, command: str, argument: object) -> None:
        self._command = command
        await self._client.send(**{command: argument})

    def _get_phase(self) -> str:
        data = [part["data"] for part in self._client.parts if part["type"] == "data-midrun"]
        run = data[-1]["run"] if data and isinstance(data[-1], dict) else {}
        return str(run.get("phase", ""))


@asynccontextmanager
async def _open_ai_sdk(url: str, user: str) -> AsyncIterator[ChatDriver]:
    async with run_ai_sdk("ai", f"{url}/ai/actor", user) as client:
        await client.send(open={"id": "t"})
        await client.wait_for_done("open")
        yield AiSdkDriver(client)


# ── AG-UI ─────────────────────────────────────────────────────────────────────────────────


class AguiDriver(ChatDriver):
    """The `HttpAgent` of the package `@ag-ui/client`."""

    def __init__(self, client: NodeClient) -> None:
        self._client = client
        self._pending: object = None

    async def send(self, text: str) -> None:
        await self._run(say=text)

    async def resume(self, text: str) -> None:
        await self._resolve({"instruction": text})

    async def answer(self, text: str) -> None:
        await self._resolve({"answer": text})

    async def decide(self, *, approved: bool) -> None:
        await self._resolve({"approved": approved, "reason": "too much"})

    async def load(self) -> None:
        """Send a request with nothing new: it ends with the interrupt of a waiting run."""
        await self._run()
        await self._read_end()

    async def follow(self) -> None:
        await self._run()

    async def leave(self) -> None:
        await self._client.send(abort=True)

    async def cancel(self) -> None:
        """Cancel the interrupt of a pause."""
        assert isinstance(self._pending, list)
        (interrupt,) = self._pending
        await self._run(resume=[{"interruptId": interrupt, "status": "cancelled"}])

    async def wait_for_text(self, text: str) -> None:
        while text not in "".join(str(e.get("delta", "")) for e in self._client.events):
            await self._client.wait_for_event("TEXT_MESSAGE_CONTENT")

    async def wait_for_end(self) -> Reply:
        done = await self._read_end()
        turn: list[JsonObject] = []
        messages = done["messages"]
        assert isinstance(messages, list)
        for message in messages:
            turn = [] if message["role"] == "user" else [*turn, message]
        own = msgspec.convert(done["state"], dict[str, JsonObject]).get("midrun", {})
        run = msgspec.convert(own.get("run", {}), JsonObject)
        starts = [e for e in self._client.events if e["type"] == "TOOL_CALL_START"]
        errors = [e for e in self._client.events if e["type"] == "RUN_ERROR"]
        reports = [e["value"] for e in self._client.events if e.get("name") == "midrun.report"]
        texts = [str(m["content"]) for m in turn if m["role"] == "assistant"]
        questions = [str(i["message"]) for i in self._list_interrupts()]
        return Reply(
            text="\n".join([*texts, *questions, *map(str, reports)]),
            phase=str(run.get("phase", "")),
            error=" ".join(str(event["message"]) for event in errors),
            tools=[str(event["toolCallName"]) for event in starts],
        )

    def _list_interrupts(self) -> list[JsonObject]:
        outcome = self._client.events[-1].get("outcome") or {} if self._client.events else {}
        assert isinstance(outcome, dict)
        return msgspec.convert(outcome.get("interrupts", []), list[JsonObject])

    async def _run(self, **more: object) -> None:
        self._client.events.clear()
        await self._client.send(run={"thread": "t", **more})

    async def _resolve(self, payload: JsonObject) -> None:
        assert isinstance(self._pending, list)
        (interrupt,) = self._pending
        answer = {"interruptId": interrupt, "status": "resolved", "payload": payload}
        await self._run(resume=[answer])

    async def _read_end(self) -> JsonObject:
        while True:
            line = await self._client.read_line()
            if "thrown" in line:
                self._client.events.append({"type": "RUN_ERROR", "message": line["thrown"]})
            elif "event" in line:
                assert isinstance(line["event"], dict)
                self._client.events.append(line["event"])
            else:
                done = line["done"]
                assert isinstance(done, dict)
                self._pending = done["pending"]
                return done


@asynccontextmanager
async def _open_agui(url: str, user: str) -> AsyncIterator[ChatDriver]:
    async with run_client(CURRENT_CLIENT, f"{url}/agui/actor", user) as client:
        yield AguiDriver(client)


class CopilotKitDriver(AguiDriver):
    """The package `@copilotkit/core`, which is a client of AG-UI with routes of its own."""

    async def resume(self, text: str) -> None:
        await self.send(text)

    async def load(self) -> None:
        await self._run(connect=True)
        await self._read_end()

    async def follow(self) -> None:
        await self._run(connect=True)

    async def leave(self) -> None:
        """End the process: the client drops a stream only with its page."""
        self._client.kill()

    async def pause(self) -> None:
        await self._client.send(stop="actor")

    async def cancel(self) -> None:
        """Press the stop button of a server with `Bridges(stop="cancel")`."""
        await self.pause()

    async def _run(self, **more: object) -> None:
        await super()._run(name="actor", **more)


@asynccontextmanager
async def _open_copilotkit(url: str, user: str) -> AsyncIterator[ChatDriver]:
    async with run_client("copilotkit", f"{url}/copilotkit", user) as client:
        await client.read_line()  # the agents
        yield CopilotKitDriver(client)


# ── clients in Python ────────────────────────────────────────────────────────────────────


class TaskDriver(ChatDriver):
    """A client in Python; a task reads the newest reply."""

    error_types: ClassVar[tuple[type[Exception], ...]]

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._reading = anyio.CancelScope()
        self._changed = anyio.Event()
        self._is_over = False
        self._reply = Reply("")

    async def send(self, text: str) -> None:
        self._begin(text)

    async def leave(self) -> None:
        self._reading.cancel()

    async def wait_for_text(self, text: str) -> None:
        await self._wait_until(lambda: text in self._reply.text)

    async def wait_for_end(self) -> Reply:
        await self._wait_until(lambda: self._is_over)
        return self._reply

    def _begin(self, content: object) -> None:
        self._reading, self._is_over, self._reply = anyio.CancelScope(), False, Reply("")
        self._tasks.start_soon(self._read_reply, content, self._reading, self._reply)

    async def _read_reply(
        self, content: object, reading: anyio.CancelScope, reply: Reply
    ) -> None:
        with reading:
            try:
                await self._stream(content, reply)
            except self.error_types as error:
                reply.error = str(error) or type(error).__name__
            self._is_over = True
            self._signal()

    @abstractmethod
    async def _stream(self, content: object, reply: Reply) -> None:
        """Send `content`, and read its reply."""

    def _signal(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(TIMEOUT_S):
            while not condition():
                await self._changed.wait()


# ── OpenAI ────────────────────────────────────────────────────────────────────────────────


class OpenAiDriver(TaskDriver):
    """The package `openai`."""

    error_types: ClassVar[tuple[type[Exception], ...]] = (APIError,)

    def __init__(self, client: AsyncOpenAI, tasks: TaskGroup) -> None:
        super().__init__(tasks)
        self._client = client


TOOLS: Final = ("quick", "slow", "pay")


class CompletionsDriver(OpenAiDriver):
    """Chat completions. The client keeps nothing, so that it cannot load a thread."""

    async def load(self) -> None:
        """Load nothing: the protocol cannot."""

    async def decide(self, *, approved: bool) -> None:
        self._begin("approve" if approved else "decline too much")

    async def _stream(self, content: object, reply: Reply) -> None:
        stream = await self._client.chat.completions.create(
            model="actor",
            messages=[{"role": "user", "content": str(content)}],
            metadata={"thread": "t"},
            stream=True,
        )
        async for chunk in stream:
            delta = chunk.choices[0].delta
            reply.text += delta.content or ""
            thought: str = (delta.model_extra or {}).get("reasoning_content") or ""
            reply.tools += [name for name in TOOLS if name in thought.lower()]
            link = (chunk.model_extra or {}).get("midrun") or {}
            reply.phase = str(link.get("phase", ""))
            self._signal()


END_EVENTS: Final = (ResponseCompletedEvent, ResponseFailedEvent, ResponseIncompleteEvent)


class ResponsesDriver(OpenAiDriver):
    """Responses. `previous` is the id of the newest response, which another client may get."""

    previous: str | None = None
    _approvals: list[str]

    async def decide(self, *, approved: bool) -> None:
        (name,) = self._approvals
        item = {"type": "mcp_approval_response", "approval_request_id": name}
        decision = {**item, "approve": approved, "reason": "too much"}
        self._begin([decision])

    async def load(self) -> None:
        assert self.previous is not None
        response = await self._client.responses.retrieve(self.previous)
        self._read_end(response, Reply(""))

    async def follow(self) -> None:
        self._begin(None)

    async def send(self, text: str) -> None:
        await super().send(text)
        await self._wait_until(lambda: self.previous is not None or self._is_over)

    async def cancel(self) -> None:
        assert self.previous is not None
        await self._client.responses.cancel(self.previous)

    async def _stream(self, content: object, reply: Reply) -> None:
        sent: ResponseInputParam | str = content  # type: ignore[assignment]  # text or items
        if content is None:
            assert self.previous is not None
            stream = await self._client.responses.retrieve(self.previous, stream=True)
        elif self.previous is None:
            stream = await self._client.responses.create(
                model="actor", input=sent, conversation="t", stream=True
            )
        else:
            stream = await self._client.responses.create(
                previous_response_id=self.previous, input=sent, stream=True
            )
        numbers = [0]
        async for event in stream:
            numbers.append(event.sequence_number)
            assert numbers[-1] > numbers[-2], "the numbers grow"
            if event.type == "response.created":
                self.previous = event.response.id
            if event.type == "response.output_text.delta":
                reply.text += event.delta
            if isinstance(event, END_EVENTS):
                self._read_end(event.response, reply)
            self._signal()

    def _read_end(self, response: Response, reply: Reply) -> None:
        items = response.output
        reply.phase = (response.metadata or {})["phase"]
        reply.error = response.error.message if response.error else ""
        reply.tools = [item.name for item in items if item.type == "mcp_call"]
        self._approvals = [item.id for item in items if item.type == "mcp_approval_request"]


@asynccontextmanager
async def open_openai(url: str, user: str) -> AsyncIterator[AsyncOpenAI]:
    """Open the client of OpenAI with the token of a user. It does not repeat requests."""
    async with AsyncOpenAI(
        base_url=f"{url}/openai/v1",
        api_key=make_token(user),
        max_retries=0,
        timeout=TIMEOUT_S,
        http_client=DefaultAsyncHttpxClient(verify=False),
    ) as client:
        yield client


@asynccontextmanager
async def _open_completions(url: str, user: str) -> AsyncIterator[ChatDriver]:
    async with open_openai(url, user) as client, anyio.create_task_group() as tasks:
        yield CompletionsDriver(client, tasks)
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def _open_responses(url: str, user: str) -> AsyncIterator[ChatDriver]:
    async with open_openai(url, user) as client, anyio.create_task_group() as tasks:
        yield ResponsesDriver(client, tasks)
        tasks.cancel_scope.cancel()


# ── A2A ───────────────────────────────────────────────────────────────────────────────────


_MESSAGE_NUMBERS: Final = count(1)


class A2aDriver(TaskDriver):
    """The package `a2a-sdk`. `task` is the id of the newest task, all that a client keeps."""

    error_types: ClassVar[tuple[type[Exception], ...]] = (A2AError, A2AClientError)
    task = ""

    def __init__(self, client: A2aClient, call: CallRpc, tasks: TaskGroup) -> None:
        super().__init__(tasks)
        self._client = client
        self._call = call

    async def send(self, text: str) -> None:
        self._begin(pb.Part(text=text))
        await self._wait_until(lambda: bool(self.task) or self._is_over)

    async def decide(self, *, approved: bool) -> None:
        self._begin(pb.Part(text="yes" if approved else "decline too much"))

    async def load(self) -> None:
        listed = await self._client.list_tasks(pb.ListTasksRequest(context_id="t"))
        self.task = listed.tasks[0].id

    async def follow(self) -> None:
        self._begin(None)

    async def pause(self) -> None:
        await self._call("midrun/PauseTask", id=self.task)

    async def cancel(self) -> None:
        await self._client.cancel_task(pb.CancelTaskRequest(id=self.task))

    async def _stream(self, content: object, reply: Reply) -> None:
        if content is None:
            events = self._client.subscribe(pb.SubscribeToTaskRequest(id=self.task))
        else:
            assert isinstance(content, pb.Part)
            message = pb.Message(
                role=pb.Role.ROLE_USER,
                message_id=f"m-{next(_MESSAGE_NUMBERS)}",
                context_id="t",
                task_id=await self._find_open_task(),
                parts=[content],
            )
            events = self._client.send_message(pb.SendMessageRequest(message=message))
        async for event in events:
            if event.WhichOneof("payload") == "task":
                self.task = event.task.id
            self._signal()
        self._read_task(await self._client.get_task(pb.GetTaskRequest(id=self.task)), reply)

    async def _find_open_task(self) -> str:
        """Return the task that takes the message; "" for a new one."""
        if not self.task:
            return ""
        task = await self._client.get_task(pb.GetTaskRequest(id=self.task))
        ended = (pb.TaskState.TASK_STATE_COMPLETED, pb.TaskState.TASK_STATE_CANCELED)
        return "" if task.status.state in ended and task.HasField("metadata") else self.task

    @staticmethod
    def _read_task(task: pb.Task, reply: Reply) -> None:
        texts: list[str] = []
        for message in task.history:
            own = [part.text for part in message.parts]
            texts = [] if message.role == pb.Role.ROLE_USER else [*texts, *own]
        reply.phase = str(task.metadata["midrun.dev/state"])
        status = "".join(part.text for part in task.status.message.parts)
        if reply.phase == "failed":
            reply.error = status
        elif reply.phase != "completed":
            texts.append(status)
        reply.text = "\n".join(texts)


@asynccontextmanager
async def _open_a2a(url: str, user: str) -> AsyncIterator[ChatDriver]:
    headers = {"Authorization": f"Bearer {make_token(user)}"}
    async with (
        httpx.AsyncClient(headers=headers, timeout=TIMEOUT_S) as http,
        anyio.create_task_group() as tasks,
    ):

        async def call(method: str, **params: object) -> None:
            reply = await http.post(f"{url}/a2a/actor", json=make_rpc_call(method, **params))
            assert "result" in reply.json(), reply.text

        config = ClientConfig(streaming=True, httpx_client=http)
        client = await ClientFactory(config).create_from_url(f"{url}/a2a/actor")
        yield A2aDriver(client, call, tasks)
        tasks.cancel_scope.cancel()


# ── MCP ───────────────────────────────────────────────────────────────────────────────────


class ToolRefused(Exception):
    """The result of a tool is an error."""


class McpDriver(TaskDriver):
    """The client of the package `mcp`, with the tools that a model would choose.

    `run` is the id of the newest run, all that a client keeps.
    """

    error_types: ClassVar[tuple[type[Exception], ...]] = (ToolRefused,)
    run = ""

    def __init__(self, client: McpClient, tasks: TaskGroup) -> None:
        super().__init__(tasks)
        self._client = client
        self._read = 0  # the newest entry of the reply before

    async def send(self, text: str) -> None:
        status = await self._use("status") if self.run else {}
        tools = msgspec.convert(status.get("tools", []), list[str])
        if "midrun_resume" in tools:
            self._begin({"resume": {"text": text}})
        elif "midrun_redirect" in tools:
            self._begin({"redirect": {"text": text}})
        else:
            started = await self._use("start", agent="actor", task=text, thread="t")
            self.run, self._read = str(started["run"]), 0
            self._begin({})

    async def answer(self, text: str) -> None:
        self._begin({"answer": {"value": text}})

    async def decide(self, *, approved: bool) -> None:
        self._begin({"approve": {}} if approved else {"decline": {"reason": "too much"}})

    async def load(self) -> None:
        assert (await self._use("status"))["run"] == self.run

    async def follow(self) -> None:
        self._begin({})

    async def pause(self) -> None:
        await self._use("pause")

    async def cancel(self) -> None:
        await self._use("cancel")

    async def _use(self, tool: str, **arguments: object) -> JsonObject:
        own = {"run": self.run} if tool != "start" else {}
        result = await self._client.call_tool(f"midrun_{tool}", {**own, **arguments})
        if result.is_error:
            raise ToolRefused(str(result.content))
        return msgspec.convert(result.structured_content, JsonObject)

    async def _stream(self, content: object, reply: Reply) -> None:
        assert isinstance(content, dict)
        for tool, arguments in content.items():
            await self._use(tool, **arguments)
        status = await self._use("wait", wait_s=TIMEOUT_S)
        entries: list[JsonObject] = []
        newest = self._read + 1
        while self._read < newest:
            page = await self._use("history", after=self._read)
            entries += msgspec.convert(page["entries"], list[JsonObject])
            newest = msgspec.convert(page["newest"], int)
            self._read = msgspec.convert(entries[-1]["seq"], int)
        asks = msgspec.convert(status.get("asks", []), list[JsonObject])
        texts = [str(entry["reply"]) for entry in entries if "reply" in entry]
        reply.text = "\n".join([*texts, *(str(ask.get("question", "")) for ask in asks)])
        reply.phase, reply.error = str(status["phase"]), str(status.get("error", ""))
        sentences = " ".join(str(entry["text"]) for entry in entries)
        reply.tools = [name for name in TOOLS if name in sentences]


@asynccontextmanager
async def _open_mcp(url: str, user: str) -> AsyncIterator[ChatDriver]:
    headers = {"Authorization": f"Bearer {make_token(user)}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=TIMEOUT_S) as http,
        McpClient(streamable_http_client(f"{url}/mcp", http_client=http)) as client,
        anyio.create_task_group() as tasks,
    ):
        yield McpDriver(client, tasks)
        tasks.cancel_scope.cancel()


# ── all protocols ─────────────────────────────────────────────────────────────────────────

AI_SDK: Final = "ai-sdk"
AG_UI: Final = "ag-ui"
COMPLETIONS: Final = "chat-completions"
RESPONSES: Final = "responses"
A2A: Final = "a2a"
MCP: Final = "mcp"
COPILOTKIT: Final = "copilotkit"

OPENERS: Final = {
    AI_SDK: _open_ai_sdk,
    AG_UI: _open_agui,
    COPILOTKIT: _open_copilotkit,
    COMPLETIONS: _open_completions,
    RESPONSES: _open_responses,
    A2A: _open_a2a,
    MCP: _open_mcp,
}

STATES_ONLY: Final = frozenset({A2A, MCP})
"""Protocols that tell the states of a run, and its text only when it rests."""


@asynccontextmanager
async def open_chat(
    kind: str, url: str, user: str = "olga", *, like: ChatDriver | None = None
) -> AsyncIterator[ChatDriver]:
    """Open a client of a protocol in the thread t; `like` is another client of the thread."""
    async with OPENERS[kind](url, user) as driver:
        if like is not None:
            share_thread(like, driver)
        yield driver


def share_thread(known: ChatDriver, other: ChatDriver) -> None:
    """Give the other client what the first knows of its thread."""
    if isinstance(known, ResponsesDriver) and isinstance(other, ResponsesDriver):
        other.previous = known.previous
    if isinstance(known, A2aDriver) and isinstance(other, A2aDriver):
        other.task = known.task
    if isinstance(known, McpDriver) and isinstance(other, McpDriver):
        other.run = known.run
