"""Hosted processes: the loop runs elsewhere, its calls are calls of the run."""

import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import anyio
import httpx2
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from midrun import Agent, Cancelled, Completed, Failed, Midrun, tool
from midrun.agents.tool import Tool
from midrun.core.entries import CallDone
from midrun.core.ids import RunId
from midrun.core.values import Json
from midrun.errors import Misconfigured, ModelFailed
from midrun.hosts import Upstream, gateway, process
from midrun.hosts.upstream_client import ModelRequest, UpstreamClient
from midrun.hosts.wire_protocols import AnthropicMessages, Fields, LiveReply
from midrun.ports.environment import Environment
from midrun.stops import MaxSteps
from midrun.testing.host_suite import (
    DONE,
    HELD_REPLY,
    Billing,
    HostSuite,
    OpenProvider,
    ScriptedReply,
    make_hosted_agent,
)
from tests.support.providers import Answer, Gate, HttpError, Provider, Text, Usage
from tests.support.store_choice import get_store_url
from tests.unit.hosts import chat_process, openai_process
from tests.unit.hosts.suite_provider import HostContract, open_provider
from tests.unit.runs.conftest import (
    LONG_LEASE,
    OpenMidrun,
    opened,
    path,
    verify_journals,
)

__all__ = ["opened", "path"]

UPSTREAM_KEY: Final = "sk-upstream-0123456789"


@asynccontextmanager
async def open_runs(path: Path, *agents: Agent) -> AsyncIterator[Midrun]:
    """Open a `Midrun` inside of a provider; verify its journals."""
    environment = Environment(lease=LONG_LEASE)
    async with Midrun(get_store_url(path), agents=agents, outside=environment) as midrun:
        yield midrun
    await verify_journals(path)


class TestContract(HostContract):
    framework = "process"
    agent_factory = "tests.unit.hosts.chat_process:make_process"

    async def test_an_approval_and_a_cap_come_before_the_untouched_tool(
        self, store_url: str, open_provider: OpenProvider, billing: Billing
    ) -> None:
        """The calls of a process arrive one by one, and so do the asks: the run rests at once.

        The process of the first ask has ended by then. A new one makes the second call.
        """
        async with open_provider(ScriptedReply(charges=(1, 2)), DONE) as provider:
            agent = make_hosted_agent(
                self.agent_factory, provider.url, billing, stop=MaxSteps(1), approve=True
            )
            async with self.open_midrun(store_url, agent) as midrun:
                run = await midrun.start(agent, "Charge 1 and 2")
                for _ in range(2):  # both may also arrive before the run rests
                    view = await run.until("waiting", "paused")
                    for ask in view.asks:
                        assert billing.read_effects() in ([], [1])
                        decide = run.decline if "2" in str(ask.args) else run.approve
                        await decide(ask=ask.id)
                assert (await run.until("paused")).reason == "cap"
                assert billing.read_effects() == [1]
                await run.resume(caps={"steps": 9})
                await run.until("completed")


# ── a process that only waits: the test itself sends the requests ────────────────────────────

WAITING_PROGRAM: Final = """
import json, os, pathlib, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
target = pathlib.Path(sys.argv[1])
part = target.with_suffix(".part")
part.write_text(json.dumps({**os.environ, "PIDS": f"{os.getpid()} {child.pid}"}))
part.rename(target)
signal.pause()
"""


class Door:
    """The environment of a hosted process that waits, and a client with its key."""

    def __init__(self, variables: dict[str, str]) -> None:
        self.variables = variables
        self.url = variables["ANTHROPIC_BASE_URL"]
        self.key = variables["ANTHROPIC_API_KEY"]

    async def post(
        self, path: str, body: object, key: str | None = None, retries: int = 0
    ) -> httpx2.Response:
        headers = {
            "x-api-key": self.key if key is None else key,
            "accept": "application/json, text/event-stream",
            "x-stainless-retry-count": str(retries),  # as the SDKs of the providers have it
        }
        async with httpx2.AsyncClient(timeout=60) as client:
            return await client.post(f"{self.url}{path}", json=body, headers=headers)

    async def call_charge(self, n: int) -> str:
        """Call the tool `charge`, and return the answer; "" if the process was stopped."""
        params = {"name": "charge", "arguments": {"n": n}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        with suppress(httpx2.HTTPError):
            return (await self.post("/mcp", body)).text
        return ""

    @property
    def pids(self) -> list[int]:
        """The process and its own child."""
        return [int(pid) for pid in self.variables["PIDS"].split()]


class DoorAgents:
    """Makes agents whose process only waits, and finds the doors of their runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def make(self, name: str, url: str, *tools: Tool, keeps_history: bool = False) -> Agent:
        command = [sys.executable, "-c", WAITING_PROGRAM, str(self._folder / name)]
        upstreams = [Upstream(p, url=url, key=UPSTREAM_KEY) for p in ("anthropic", "openai")]
        return process(
            name=name,
            command=command,
            tools=tools,
            upstream=upstreams,
            keeps_history=keeps_history,
        )

    async def wait(self, name: str) -> Door:
        file = self._folder / name
        while not file.exists():  # noqa: ASYNC110 - written by another process
            await anyio.sleep(0.005)
        variables = json.loads(file.read_text())
        file.unlink()
        return Door(variables)


@pytest.fixture
def doors(tmp_path: Path) -> DoorAgents:
    return DoorAgents(tmp_path)


def make_request(text: str = "Hello") -> dict[str, Json]:
    messages = [{"role": "user", "content": text}]
    return {"model": "claude-sonnet-4-5", "max_tokens": 9, "stream": True, "messages": messages}


def is_alive(pid: int) -> bool:
    """Tell whether a process exists that does not only wait to be reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


async def wait_for_death(pid: int) -> None:
    while is_alive(pid):  # noqa: ASYNC110 - the end of a process that is not ours
        await anyio.sleep(0.005)


async def test_a_cancel_ends_the_process_and_its_children(
    opened: OpenMidrun, doors: DoorAgents
) -> None:
    midrun = await opened(doors.make("waiter", "http://127.0.0.1:9"))
    run = await midrun.start("waiter", "go")
    door = await doors.wait("waiter")
    await run.cancel()
    assert isinstance(await run.result(), Cancelled)
    for pid in door.pids:
        await wait_for_death(pid)
    with pytest.raises(httpx2.ConnectError):  # a key of a run that has ended opens nothing
        await door.post("/v1/messages", make_request())


async def test_the_process_sees_no_secret_and_only_its_run_takes_its_key(
    path: Path, doors: DoorAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", "hunter2")
    async with (
        Provider() as provider,
        open_runs(
            path, doors.make("one", provider.url), doors.make("two", provider.url)
        ) as midrun,
    ):
        for name in ("one", "two"):
            await midrun.start(name, "go")
        one, two = [await doors.wait(name) for name in ("one", "two")]
        assert not {"DATABASE_PASSWORD"} & one.variables.keys()
        assert UPSTREAM_KEY not in one.variables.values()
        for door_path in ("/v1/messages", "/v1/chat/completions", "/mcp"):
            for key in (two.key, "", UPSTREAM_KEY):
                answer = await one.post(door_path, make_request(), key=key)
                assert answer.status_code == 401
                assert "not the key of this run" in answer.json()["error"]["message"]
        assert provider.exchanges == []


async def test_errors_have_the_format_of_the_protocol(
    opened: OpenMidrun, doors: DoorAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "REQUEST_MAX_BYTES", 2000)
    midrun = await opened(doors.make("waiter", "http://127.0.0.1:9"))
    run = await midrun.start("waiter", "go")
    door = await doors.wait("waiter")
    cases: list[tuple[str, object, int, str]] = [
        ("/v1/messages/count_tokens", make_request(), 404, "POST /v1/messages/count_tokens"),
        ("/v1/embeddings", {}, 404, "POST /v1/embeddings"),
        ("/v1/messages", make_request("x" * 3000), 413, "larger than 2000 bytes"),
        ("/v1/messages", [], 400, "not a JSON object"),
        ("/v1/messages", {"model": "m"}, 400, "messages must be a list"),
        ("/v1/chat/completions", {"messages": []}, 400, "messages must be a list"),
        ("/v1/responses", {"input": "x", "background": True}, 400, "background must be false"),
    ]
    for door_path, body, status, text in cases:
        answer = await door.post(door_path, body)
        error = answer.json()
        assert (answer.status_code, text in error["error"]["message"]) == (status, True)
        assert (error.get("type") == "error") is door_path.startswith("/v1/messages")
    async with httpx2.AsyncClient(headers={"authorization": f"Bearer {door.key}"}) as client:
        models = await client.get(f"{door.url}/v1/models")
    assert "GET /v1/models" in models.json()["error"]["message"]
    kinds = [type(r.entry).__name__ for r in await midrun.store.read(RunId(run.id))]
    assert "CallProposed" not in kinds


async def test_a_request_that_is_sent_again_gets_the_reply_of_the_first(
    path: Path, doors: DoorAgents
) -> None:
    """A client lost its connection. The model is not called twice, and its tokens count."""
    gate = Gate(after=1)
    async with (
        Provider(Answer(Text("Hel", "lo"), usage=Usage(), fault=gate)) as provider,
        open_runs(path, doors.make("waiter", provider.url)) as midrun,
    ):
        run = await midrun.start("waiter", "go")
        door = await doors.wait("waiter")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(door.post, "/v1/messages", make_request())
            await gate.wait_until_reached()
            tasks.cancel_scope.cancel()
        gate.open()
        answer = await door.post("/v1/messages", make_request(), retries=1)
        assert answer.headers["content-type"] == "text/event-stream"
        assert all(text in answer.text for text in ('"text":"Hel"', '"text":"lo"'))
        assert len(provider.exchanges) == 1
        assert provider.exchanges[0].headers["x-api-key"] == UPSTREAM_KEY
        usage = (await run.view()).usage
        assert usage.tokens == 18
        assert usage.cost_usd > 0


async def test_the_key_of_the_run_is_redacted_from_its_journal(
    path: Path, doors: DoorAgents
) -> None:
    async with (
        Provider(Answer(Text("ok")), Answer(Text("ok"))) as provider,
        open_runs(path, doors.make("waiter", provider.url)) as midrun,
    ):
        run = await midrun.start("waiter", "go")
        door = await doors.wait("waiter")
        for secret in (door.key, UPSTREAM_KEY):
            await door.post("/v1/messages", make_request(f"My key is {secret}"))
        lines = [str(r.entry) for r in await midrun.store.read(RunId(run.id))]
        assert sum("My key is [redacted:" in line for line in lines) == 2
        assert not [line for line in lines if door.key in line or UPSTREAM_KEY in line]


async def test_an_error_about_the_request_reaches_the_process_and_others_are_retried(
    path: Path, doors: DoorAgents
) -> None:
    replies = (
        HttpError(400, kind="invalid_request_error", message="prompt is too long"),
        HttpError(529, kind="overloaded_error", message="busy", headers={"retry-after": "0"}),
        Answer(Text("ok")),
        HttpError(401, kind="authentication_error", message="no such key"),
    )
    async with (
        Provider(*replies) as provider,
        open_runs(path, doors.make("waiter", provider.url)) as midrun,
    ):
        run = await midrun.start("waiter", "go")
        door = await doors.wait("waiter")
        answer = await door.post("/v1/messages", make_request("long"))
        assert (answer.status_code, "too long" in answer.text) == (400, True)
        answer = await door.post("/v1/messages", make_request("short"))
        assert (answer.status_code, "ok" in answer.text) == (200, True)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(door.post, "/v1/messages", make_request("last"))
            outcome = await run.result()
            tasks.cancel_scope.cancel()
        assert isinstance(outcome, Failed)
        assert "no such key" in outcome.error


@pytest.mark.parametrize(
    ("status", "raw"),
    [(302, b"{}"), (200, b"<html>Log in</html>"), (200, b"")],
    ids=["redirect", "page", "nothing"],
)
async def test_an_answer_that_is_no_reply_is_a_failure_of_the_model(
    status: int, raw: bytes
) -> None:
    """As a reply it would be journaled, and given to the process after each restart."""
    transport = httpx2.MockTransport(lambda _: httpx2.Response(status, content=raw))
    async with httpx2.AsyncClient(transport=transport) as http:
        upstream = Upstream("anthropic", url="http://provider", key=UPSTREAM_KEY)
        request = ModelRequest(AnthropicMessages(), make_request(), {}, "")
        live = LiveReply(request.protocol, request.body)
        client = UpstreamClient(http, [upstream])
        with pytest.raises(ModelFailed):
            async with client.stream(request, request.body, live) as pieces:
                _ = [piece async for piece in pieces]


# ── which call of the journal a request is ───────────────────────────────────────────────────


async def test_a_stopped_model_call_is_completed_once_by_a_process_with_a_history(
    path: Path, doors: DoorAgents
) -> None:
    gate = Gate(after=1)
    replies = (
        Answer(Text("a", "b"), fault=gate),
        Answer(Text("first reply")),
        Answer(Text("second reply")),
    )
    async with (
        Provider(*replies) as provider,
        open_runs(path, doors.make("waiter", provider.url, keeps_history=True)) as midrun,
        anyio.create_task_group() as tasks,
    ):
        run = await midrun.start("waiter", "go")
        door = await doors.wait("waiter")

        async def send_stopped_request() -> None:
            with suppress(httpx2.HTTPError):
                await door.post("/v1/messages", make_request())

        tasks.start_soon(send_stopped_request)
        await gate.wait_until_reached()
        for text in ("first reply", "second reply"):
            await run.pause()
            await run.until("paused")
            await run.resume()
            door = await doors.wait("waiter")
            assert text in (await door.post("/v1/messages", make_request())).text
        assert len(provider.exchanges) == 3


@pytest.mark.parametrize("approved", [5, 9], ids=["as_proposed", "edited"])
async def test_a_call_does_not_take_the_approval_of_another_call_of_its_tool(
    path: Path, tmp_path: Path, doors: DoorAgents, approved: int
) -> None:
    """The call that the approval is for is known by the arguments that were proposed."""
    billing = Billing(tmp_path)
    agent = doors.make("waiter", "http://127.0.0.1:9", tool(approve=True)(billing.charge))
    async with open_runs(path, agent) as midrun, anyio.create_task_group() as tasks:
        run = await midrun.start("waiter", "go")
        tasks.start_soon((await doors.wait("waiter")).call_charge, 5)
        (ask,) = (await run.until("waiting")).asks
        await run.approve(ask=ask.id, args={"n": approved})
        tasks.start_soon((await doors.wait("waiter")).call_charge, 9)
        outcome = await run.result()
        assert isinstance(outcome, Failed)
        assert (outcome.code, billing.read_effects()) == ("program_departed", [])
        await run.resume()
        door = await doors.wait("waiter")
        assert f"charged {approved}" in await door.call_charge(5)
        tasks.start_soon(door.call_charge, 9)
        (ask,) = (await run.until("waiting")).asks
        assert (ask.args, billing.read_effects()) == ({"n": 9}, [approved])
        await run.cancel()


async def test_another_worker_knows_a_request_with_a_secret_by_its_digest(
    path: Path, doors: DoorAgents
) -> None:
    """Without a key of its own, each worker has other placeholders for secrets."""
    request = make_request(f"My key is {UPSTREAM_KEY}")
    async with Provider(Answer(Text("the reply"))) as provider:
        agent = doors.make("waiter", provider.url)
        async with open_runs(path, agent) as midrun:
            run = await midrun.start("waiter", "go")
            await (await doors.wait("waiter")).post("/v1/messages", request)
            await run.pause()
            await run.until("paused")
        async with open_runs(path, agent) as midrun:
            await (await midrun.get(run.id)).resume()
            door = await doors.wait("waiter")
            assert "the reply" in (await door.post("/v1/messages", request)).text
        assert len(provider.exchanges) == 1


# ── what a process does wrong ────────────────────────────────────────────────────────────────

CHANGING_PROGRAM: Final = """
import json, os, pathlib, sys, urllib.request
starts = pathlib.Path(sys.argv[1])
starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
text = f"start {len(starts.read_text())}" if sys.argv[2] == "departs" else "the same"
for number in (1, 2):
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": text}]}
    request = urllib.request.Request(
            os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
            {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    text = "more"
    urllib.request.urlopen(request).read()
print("done")
"""


async def test_a_process_that_departs_fails_the_run_and_the_error_names_both_calls(
    path: Path, tmp_path: Path
) -> None:
    gate = Gate(after=1)
    async with Provider(Answer(Text("a")), Answer(Text("b", "c"), fault=gate)) as provider:
        command = [sys.executable, "-c", CHANGING_PROGRAM, str(tmp_path / "starts"), "departs"]
        upstream = Upstream("openai", url=provider.url, key=UPSTREAM_KEY)
        agent = process(name="fickle", command=command, upstream=upstream)
        async with open_runs(path, agent) as midrun:
            run = await midrun.start(agent, "go")
            await gate.wait_until_reached()
            await run.pause()
            await run.until("paused")
            await run.resume()
            outcome = await run.result()
    assert isinstance(outcome, Failed)
    assert outcome.code == "program_departed"
    assert "last='start 1'" in outcome.error
    assert "last='start 2'" in outcome.error


async def test_a_process_that_lost_its_history_is_stopped_before_it_begins_anew(
    path: Path, tmp_path: Path
) -> None:
    """It was hosted as one that keeps its history; the model would charge again."""
    billing = Billing(tmp_path)
    replies = (ScriptedReply(charges=(1,)), ScriptedReply(charges=(2,)), HELD_REPLY)
    async with open_provider(*replies) as provider:
        agent = process(
            name="forgetful",
            command=[sys.executable, "-I", chat_process.__file__],
            tools=[tool(billing.charge)],
            upstream=Upstream("openai", url=provider.url, key=UPSTREAM_KEY),
            keeps_history=True,
        )
        async with open_runs(path, agent) as midrun:
            run = await midrun.start(agent, "Charge 1")
            await provider.wait_for_hold(2)
            await run.pause()
            await run.until("paused")
            await run.resume()
            outcome = await run.result()
            assert isinstance(outcome, Failed)
            assert "without its history" in outcome.error
            assert (billing.read_effects(), len(provider.read_requests())) == ([1, 2], 3)


async def test_the_exit_code_and_the_error_output_are_the_error_of_the_run(
    opened: OpenMidrun,
) -> None:
    program = "import sys; print('half'); sys.exit('no paper')"
    agent = process(name="breaker", command=[sys.executable, "-c", program])
    missing = process(name="missing", command=["/no/such/program"])
    midrun = await opened(agent, missing)
    for name, text in (
        ("breaker", "code 1. Its error output ends with: no paper"),
        ("missing", "Cannot start /no/such/program"),
    ):
        run = await midrun.start(name, "go")
        outcome = await run.result()
        assert isinstance(outcome, Failed)
        assert text in outcome.error


async def test_the_output_of_the_process_is_the_answer_and_the_task_its_input(
    opened: OpenMidrun,
) -> None:
    program = "import sys; print(sys.stdin.read().upper())"
    midrun = await opened(process(name="shouter", command=[sys.executable, "-c", program]))
    run = await midrun.start("shouter", "schöne Grüße")
    assert await run.result() == Completed(run_id=run.id, output="SCHÖNE GRÜSSE")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"command": "agent.py"}, "command must be a list of str"),
        ({"command": []}, "command must be a list of str"),
        ({"command": ["x"], "upstream": "https://x"}, "upstream must be Upstream"),
        ({"command": ["x"], "upstream": [Upstream("openai")] * 2}, "once each"),
        ({"command": ["x"], "upstream": Upstream("openai", url="x")}, "must begin with https"),
        ({"command": ["x"], "env": ["MIDRUN_TOKEN"]}, "env cannot name MIDRUN_TOKEN"),
    ],
)
def test_wrong_options_are_refused_by_name(options: Fields, text: str) -> None:
    with pytest.raises(Misconfigured, match=text):
        process(name="wrong", **options)


# ── unmodified clients ───────────────────────────────────────────────────────────────────────

QUESTION = "Say hello"


class AnthropicReader:
    """Reads a streamed message with the package of Anthropic."""

    final_text = "H|Bonjour"  # the unfinished block, and that of the next attempt

    @asynccontextmanager
    async def open(self, door: Door) -> AsyncGenerator[AsyncIterator[str]]:
        async with AsyncAnthropic(base_url=door.url, api_key=door.key) as client:
            asked: Any = [{"role": "user", "content": QUESTION}]  # type: ignore[explicit-any]
            made = client.messages.stream(model="claude", max_tokens=9, messages=asked)
            async with made as self._stream:
                yield self._stream.text_stream

    async def get_text(self) -> str:
        message = await self._stream.get_final_message()
        return "|".join(block.text for block in message.content if block.type == "text")


class ChatReader:
    """Reads a streamed chat completion with the package of OpenAI."""

    final_text = "H\n\nBonjour"

    @asynccontextmanager
    async def open(self, door: Door) -> AsyncGenerator[AsyncIterator[str]]:
        async with AsyncOpenAI(base_url=f"{door.url}/v1", api_key=door.key) as client:
            asked: Any = [{"role": "user", "content": QUESTION}]  # type: ignore[explicit-any]
            made = client.chat.completions.stream(model="gpt", messages=asked)
            async with made as self._stream:
                yield self._read()

    async def _read(self) -> AsyncIterator[str]:
        async for event in self._stream:
            if event.type == "content.delta" and event.delta:
                yield event.delta

    async def get_text(self) -> str:
        completion = await self._stream.get_final_completion()
        message = completion.choices[0].message
        assert message.role == "assistant"
        return message.content or ""


class ResponsesReader:
    """Reads a streamed response with the package of OpenAI."""

    final_text = "Bonjour"  # the last event has all items that count

    @asynccontextmanager
    async def open(self, door: Door) -> AsyncGenerator[AsyncIterator[str]]:
        client = AsyncOpenAI(base_url=f"{door.url}/v1", api_key=door.key)
        async with client, client.responses.stream(model="gpt", input=QUESTION) as self._stream:
            yield self._read()

    async def _read(self) -> AsyncIterator[str]:
        async for event in self._stream:
            if event.type == "response.output_text.delta":
                yield event.delta

    async def get_text(self) -> str:
        return (await self._stream.get_final_response()).output_text


@pytest.mark.parametrize("reader", [AnthropicReader(), ChatReader(), ResponsesReader()])
async def test_the_text_of_a_reply_is_passed_on_as_it_arrives(
    path: Path, doors: DoorAgents, reader: AnthropicReader | ChatReader | ResponsesReader
) -> None:
    """The model is redirected meanwhile: the next attempt continues the stream."""
    gate = Gate(after=1)
    replies = (Answer(Text("H", "i"), fault=gate), Answer(Text("Bonjour")))
    async with Provider(*replies) as provider:
        agent = doors.make("greeter", provider.url)
        async with open_runs(path, agent) as midrun:
            run = await midrun.start(agent, QUESTION)
            async with reader.open(await doors.wait("greeter")) as texts:
                assert await anext(texts) == "H"  # the provider waits at the gate
                await run.redirect("In French", when="now")
                later = [text async for text in texts]
                assert "".join(later).strip() == "Bonjour"
                assert await reader.get_text() == reader.final_text
            await run.cancel()
            records = await midrun.store.read(RunId(run.id))
        (reply,) = (r.entry.reply for r in records if isinstance(r.entry, CallDone))
        assert reply is not None
        assert reply.text == "Bonjour"
        assert "'H'" in str(reply.opaque)  # a restarted process gets the same stream


@pytest.mark.slow
@pytest.mark.once
async def test_the_openai_package_is_redirected_in_the_middle_of_a_response(
    path: Path,
) -> None:
    gate = Gate(after=1)
    replies = (
        Answer(Text("Hel", "lo")),
        Answer(Text("H", "i"), fault=gate),
        Answer(Text("Bonjour")),
    )
    async with Provider(*replies) as provider:
        agent = process(
            name="greeter",
            command=[sys.executable, openai_process.__file__],
            upstream=Upstream("openai", url=f"{provider.url}/v1", key=UPSTREAM_KEY),
        )
        async with open_runs(path, agent) as midrun:
            run = await midrun.start(agent, "Say hello")
            await gate.wait_until_reached()
            await run.redirect("In French", when="now")
            await provider.wait_for_disconnect(1)
            outcome = await run.result()
            assert outcome == Completed(run_id=run.id, output="Hello Bonjour 18")
            assert (await run.view()).usage.tokens == 36  # of the replies that were complete
        chat, shorten, again = (exchange.body for exchange in provider.exchanges)
        assert chat["stream_options"] == {"include_usage": True}
        assert (shorten["input"], again["model"]) == ("Shorten: Hello", "gpt-5.2")
        contents = [m["content"] for m in cast("list[dict[str, str]]", again["input"])]
        assert (contents[:2], contents[-1]) == (["Shorten: Hello", "H"], "In French")


class ClaudeSuite(HostSuite):
    """The contract with the Claude Agent SDK. Each test takes seconds, so only some run."""

    def __init__(self, factory: str) -> None:
        # Of the instance: a class with a factory is a host of the table in docs/hosts.md.
        self.agent_factory = f"tests.unit.hosts.claude_process:{factory}"  # type: ignore[misc]  # see above


KEEPING_SUITE: Final = ClaudeSuite("make_process")
REPLAYED_SUITE: Final = ClaudeSuite("make_replayed_process")
open_claude_provider: Final = partial(open_provider, tool="mcp__midrun__charge")


@pytest.fixture
def claude_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the home and working folder of the CLI, which keeps its sessions there."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("CLAUDE_TEST_HOME", str(home))
    return home


def list_processes(home: Path) -> list[int]:
    """Return the processes that run with this home."""
    found = list[int]()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"HOME={home}\0".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return [pid for pid in found if is_alive(pid)]


@pytest.mark.slow
@pytest.mark.once
async def test_claude_is_paused_in_mid_sentence_and_continues_its_own_session(
    path: Path, tmp_path: Path, claude_home: Path
) -> None:
    del claude_home
    await (
        KEEPING_SUITE.test_a_pause_closes_the_stream_and_another_process_goes_on_with_new_words(
            get_store_url(path), open_claude_provider, Billing(tmp_path)
        )
    )


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize(
    "suite", [KEEPING_SUITE, REPLAYED_SUITE], ids=["keeps_history", "begins_anew"]
)
async def test_another_worker_continues_claude_after_a_kill(
    path: Path, tmp_path: Path, claude_home: Path, suite: HostSuite
) -> None:
    """The processes of the killed worker end with it, although no code of ours can run."""
    await suite.test_another_process_goes_on_after_a_kill_in_mid_stream(
        get_store_url(path), open_claude_provider, Billing(tmp_path), tmp_path
    )
    for pid in list_processes(claude_home):
        await wait_for_death(pid)


@pytest.mark.slow
@pytest.mark.once
async def test_claude_waits_for_an_approval_and_a_cancel_ends_its_whole_group(
    path: Path, tmp_path: Path, claude_home: Path
) -> None:
    """The process ends while a person decides; the next one reads the result of the call."""
    billing = Billing(tmp_path)
    async with open_claude_provider(ScriptedReply(charges=(1,)), HELD_REPLY) as provider:
        agent = make_hosted_agent(
            KEEPING_SUITE.agent_factory,
            provider.url,
            billing,
            approve=True,
            undo=billing.refund,
        )
        async with open_runs(path, agent) as midrun:
            run = await midrun.start(agent, "Charge 1")
            view = await run.until("waiting")
            assert (billing.read_effects("entered"), list_processes(claude_home)) == ([], [])
            await run.approve(ask=view.asks[0].id)
            await provider.wait_for_hold(1)
            assert "charged 1" in json.dumps(provider.read_requests()[1])
            assert len(list_processes(claude_home)) >= 3  # supervisor, program, CLI
            await run.cancel(undo="all")
            assert isinstance(await run.result(), Cancelled)
            assert list_processes(claude_home) == []
        assert billing.read_effects("refunded") == [1]
