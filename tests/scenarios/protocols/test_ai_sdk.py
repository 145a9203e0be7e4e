"""The Vercel AI SDK: the unmodified package `ai`, versions 6 and 7, and plain HTTP.

`test_chat_adapters.py` has the behavior that all chat protocols share.
"""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import anyio
import anyio.lowlevel
import pytest

from midrun import Actor, Agent, Call, tool
from midrun.core.entries import PauseRequested, RedirectRequested, RunStarted
from midrun.core.transcript import Transcript
from midrun.errors import StoreBusy
from midrun.models import ScriptedModel, Use
from midrun.ports.model import Finished, Piece
from midrun.runs.service import RunService
from midrun.server import Bridges
from midrun.stops import MaxSteps, MaxToolCalls
from midrun.testing.controllable_tools import ControllableTools
from tests.scenarios.protocols.conftest import ServeAgent, open_http_client
from tests.scenarios.protocols.node_clients import JsonObject, run_ai_sdk
from tests.support.gated_model import GatedModel, GatedReply
from tests.support.run_journal import read_entries, yield_until
from tests.unit.server.conftest import make_token

pytestmark = pytest.mark.once

AI_6 = "ai-6"
AI_7 = "ai"
BOTH_VERSIONS = pytest.mark.parametrize("kind", [AI_7, AI_6])

HALF = "The first half"


def make_paying_agent(paid: list[int]) -> Agent:
    """Return an agent that pays once, after an approval."""

    @tool(approve=True)
    async def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return f"paid {amount}"

    def conclude(messages: Transcript) -> str:
        return f"It was {messages[-1].uses[0].problem or 'paid'}."

    model = ScriptedModel([["Paying. ", Use("pay", amount=9)], conclude])
    return Agent("actor", model=model, tools=[pay])


@BOTH_VERSIONS
async def test_stop_is_a_pause_that_keeps_the_text_and_the_next_message_resumes(
    serve_agent: ServeAgent, kind: str
) -> None:
    model = GatedModel(GatedReply(HALF, " and the second.", gate="half"), "Briefly.")
    async with (
        serve_agent(Agent("actor", model=model)) as server,
        run_ai_sdk(kind, f"{server.url}/ai/actor") as client,
    ):
        await client.send(open={"id": "t"})
        await client.send(send="Tell me")
        await client.wait_for_text(HALF)
        await client.send(stop="t")
        await client.wait_for_done("send")
        run = await server.get_only_run()
        assert (await run.view()).phase == "paused"
        assert (client.status, client.get_text()) == ("ready", HALF)
        await client.send(send="Briefly, please")
        await client.wait_for_done("send")
        roles = [message["role"] for message in client.messages]
        assert roles == ["user", "assistant", "user", "assistant"]
        assert client.get_text() == "Briefly."
        assert model.closed_gates == ["half"]
        assert "Briefly, please" in [turn.text for turn in model.transcripts[1]]


@BOTH_VERSIONS
async def test_a_reloaded_client_gets_the_current_message_again_and_follows_it(
    serve_agent: ServeAgent, stage: ControllableTools, kind: str
) -> None:
    """It loads the messages from the server; the replay has the id of the last one."""
    agent = stage.agent(["Looking.", Use("quick", name="a")], Use("slow", name="x"), "Done.")
    async with serve_agent(agent) as server:
        url = f"{server.url}/ai/actor"
        async with run_ai_sdk(kind, url) as first, run_ai_sdk(kind, url) as reloaded:
            await first.send(open={"id": "t"})
            await first.send(send="Go.")
            await stage.start("x").wait()
            await reloaded.send(open={"id": "t", "load": True})
            await reloaded.wait_for_done("open")
            assert reloaded.get_text() == "Looking."
            await reloaded.send(resume=None)
            while ("slow", "input-available") not in reloaded.get_tools():
                await reloaded.read_change()
            stage.gate("x").set()
            await reloaded.wait_for_done("resume")
            await first.wait_for_done("send")
            assert reloaded.get_text() == first.get_text() == "Looking.Done."
            states = [("quick", "output-available"), ("slow", "output-available")]
            assert reloaded.get_tools() == first.get_tools() == states
            assert reloaded.messages[-1]["id"] == first.messages[-1]["id"]
            assert [m["role"] for m in reloaded.messages] == ["user", "assistant"]
        assert stage.called == ["a", "x"]


async def test_a_client_that_reloads_a_run_at_rest_follows_nothing(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    async with serve_agent(stage.agent("Done.")) as server, open_http_client(server) as http:
        assert (await http.get("/ai/actor/none/stream")).status_code == 204
        body = {"id": "t", "messages": [make_user_message("Go.")]}
        assert "[DONE]" in (await http.post("/ai/actor", json=body)).text
        assert (await http.get("/ai/actor/t/stream")).status_code == 204


@BOTH_VERSIONS
@pytest.mark.parametrize("approved", [True, False])
async def test_a_decision_about_an_approval_continues_the_message(
    serve_agent: ServeAgent, kind: str, approved: bool
) -> None:
    paid: list[int] = []
    async with (
        serve_agent(make_paying_agent(paid)) as server,
        run_ai_sdk(kind, f"{server.url}/ai/actor") as client,
    ):
        await client.send(open={"id": "t"})
        await client.send(send="Pay.")
        await client.wait_for_done("send")
        assert client.get_tools() == [("pay", "approval-requested")]
        assert paid == []
        await client.send(decide={"approved": approved, "reason": "too much"})
        await client.wait_for_text("It was")
        assert paid == ([9] if approved else [])
        state = "output-available" if approved else "output-denied"
        assert client.get_tools() == [("pay", state)]
        assert [message["role"] for message in client.messages] == ["user", "assistant"]
        await (await server.get_only_run()).until("completed")


async def test_a_failed_run_is_an_error_and_regenerate_resumes_it(
    serve_agent: ServeAgent,
) -> None:
    attempts: list[int] = []

    def fail_once(messages: Transcript) -> str:
        del messages
        attempts.append(1)
        if len(attempts) == 1:
            raise RuntimeError("no luck")
        return "Done."

    agent = Agent("actor", model=ScriptedModel([fail_once, fail_once]))
    async with (
        serve_agent(agent) as server,
        run_ai_sdk(AI_7, f"{server.url}/ai/actor") as client,
    ):
        await client.send(open={"id": "t"})
        await client.send(send="Go.")
        await client.wait_for_done("send")
        assert client.status == "error"
        assert "no luck" in client.errors[0]
        await client.send(regenerate=None)
        await client.wait_for_done("regenerate")
        assert client.get_text() == "Done."
        assert (await (await server.get_only_run()).view()).phase == "completed"


async def test_a_message_that_is_sent_again_gets_the_same_reply_and_no_second_run(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    """A client that lost the reply repeats its request; also after the end of the run."""
    agent = stage.agent("Done.")
    async with serve_agent(agent) as server, open_http_client(server) as http:
        body = {"id": "t", "messages": [make_user_message("Go.")]}
        first = (await http.post("/ai/actor", json=body)).text
        again = (await http.post("/ai/actor", json=body)).text
        assert first.splitlines()[0] == again.splitlines()[0]
        assert '"delta":"Done."' in again
        await server.get_only_run()


async def test_a_message_that_comes_again_during_the_next_run_does_not_redirect_it(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    agent = stage.agent("One.", Use("slow", name="x"), "Two.")
    async with serve_agent(agent) as server, open_http_client(server) as http:
        first = {"id": "t", "messages": [make_user_message("Go.")]}
        second = {"id": "t", "messages": [make_user_message("On.")]}
        assert '"delta":"One."' in (await http.post("/ai/actor", json=first)).text
        async with http.stream("POST", "/ai/actor", json=second) as stream:
            await stage.start("x").wait()
            assert '"delta":"One."' in (await http.post("/ai/actor", json=first)).text
            stage.gate("x").set()
            assert '"delta":"Two."' in (await stream.aread()).decode()
        for view in (await server.mid.runs()).items:
            run = await server.mid.get(view.run_id)
            assert not await read_entries(run, RedirectRequested)


@BOTH_VERSIONS
async def test_an_edited_message_is_a_new_one(serve_agent: ServeAgent, kind: str) -> None:
    """The client sends it with the id of the message that it replaces."""
    model = ScriptedModel(["One.", lambda messages: f"As you said: {messages[-1].text}"])
    async with (
        serve_agent(Agent("actor", model=model)) as server,
        run_ai_sdk(kind, f"{server.url}/ai/actor") as client,
    ):
        await client.send(open={"id": "t"})
        await client.send(send="Go.")
        await client.wait_for_done("send")
        await client.send(edit="Stay.")
        await client.wait_for_done("edit")
        assert (client.get_text(), client.errors) == ("As you said: Stay.", [])


async def test_a_long_id_of_a_message_is_not_kept(serve_agent: ServeAgent) -> None:
    """The journal and the state of a run have the ids of all its requests."""
    agent = Agent("actor", model=ScriptedModel(["Done."]))
    message = make_user_message("Go.") | {"id": "x" * 100_000}
    async with serve_agent(agent) as server, open_http_client(server) as http:
        reply = await http.post("/ai/actor", json={"id": "t", "messages": [message]})
        assert "[DONE]" in reply.text
        (started,) = await read_entries(await server.get_only_run(), RunStarted)
        assert len(started.request_id) < 100


async def test_an_approval_that_a_halt_has_refused_is_given_after_the_halt(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    """The client sends the same decision again; a refusal is not repeated for ever."""
    paid: list[int] = []

    @tool(approve=True)
    async def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    model = ScriptedModel([[Use("pay", amount=9), Use("slow", name="x")], "Done."])
    agent = Agent("actor", model=model, tools=[pay, *stage.tools()])
    olga = Actor(name="olga", role="operator")
    async with serve_agent(agent) as server, open_http_client(server) as http:
        run = await server.mid.start("actor", "Go.", thread="t")
        await stage.start("x").wait()
        part: JsonObject = {"toolCallId": f"{run.id}-c2", "state": "approval-responded"}
        part["approval"] = {"id": f"{run.id}-a1", "approved": True}
        body = {"id": "t", "messages": [{"id": "m2", "role": "assistant", "parts": [part]}]}
        await server.mid.halt("drill", actor=olga)
        await run.until("halted")
        assert (await http.post("/ai/actor", json=body)).status_code == 409
        await server.mid.lift(actor=olga)
        stage.gate("x").set()
        await run.until("waiting")
        assert "[DONE]" in (await http.post("/ai/actor", json=body)).text
        assert paid == [9]


class ThinkingModel(GatedModel):
    """Thinks before each reply."""

    async def _pieces(self, line: GatedReply) -> AsyncIterator[Piece | Finished]:
        yield Piece(kind="thinking", text="Red, or ")
        yield Piece(kind="thinking", text="blue?")
        async for piece in super()._pieces(line):
            yield piece


@BOTH_VERSIONS
async def test_the_thinking_the_plan_and_the_phase_are_parts_of_the_message(
    serve_agent: ServeAgent, kind: str
) -> None:
    plan = Use("plan", items=["Paint", "Look"], marks={"1": "running"})
    model = ThinkingModel(GatedReply("Red", ".", plan, gate="red"), "Done.")
    async with (
        serve_agent(Agent("actor", model=model)) as server,
        run_ai_sdk(kind, f"{server.url}/ai/actor") as client,
    ):
        await client.send(open={"id": "t"})
        await client.send(send="Paint.")
        await client.wait_for_text("Red")
        (thinking,) = [part for part in client.parts if part["type"] == "reasoning"]
        assert thinking["text"] == "Red, or blue?"
        assert client.get_data("phase")["phase"] == "running"
        model.gate("red").set()
        await client.wait_for_done("send")
        states = [(item["text"], item["state"]) for item in client.get_data("plan")["items"]]  # type: ignore[attr-defined]  # a list of objects
        assert states == [("Paint", "running"), ("Look", "queued")]
        phase = client.get_data("phase")
        assert (phase["phase"], "ompleted" in str(phase["sentence"])) == ("completed", True)


@pytest.mark.parametrize("path", ["/ai/actor/t/stop", "/copilotkit/agent/actor/stop/t"])
async def test_a_stop_that_the_store_does_not_take_is_an_error(
    serve_agent: ServeAgent,
    stage: ControllableTools,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
) -> None:
    """The run works on, and its user must know."""

    async def be_busy(*_: object) -> None:
        raise StoreBusy("runs.db", 5)

    agent = stage.agent(Use("read", name="x"), "Done.")
    async with serve_agent(agent) as server, open_http_client(server) as http:
        run = await server.mid.start("actor", "Go.", thread="t")
        await stage.start("x").wait()
        with monkeypatch.context() as patched:
            patched.setattr(RunService, "submit", be_busy)
            assert (await http.post(path, json={})).status_code == 503
        assert (await http.post(path, json={})).json()["stopped"] is True
        await run.until("paused")


async def test_a_viewer_who_stops_watching_does_not_pause_the_run(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    agent = stage.agent(Use("slow", name="x"), "Done.")
    async with serve_agent(agent, Bridges(grace_s=0)) as server:
        run = await server.mid.start("actor", "Go.", thread="t")
        await stage.start("x").wait()
        async with open_http_client(server) as http:
            http.headers["Authorization"] = f"Bearer {make_token('vera')}"
            async with http.stream("GET", "/ai/actor/t/stream") as stream:
                await anext(stream.aiter_lines())
        while server.app._server.chat_streams.has_stream(run.id):
            await anyio.lowlevel.checkpoint()
        stage.gate("x").set()
        await run.until("completed")
        assert not await read_entries(run, PauseRequested)


async def test_the_grace_begins_again_when_a_client_that_came_back_leaves(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    """A bad connection breaks again and again, and each time only for a moment."""
    grace_s = 0.4
    agent = stage.agent(Use("read", name="x"), "Done.")
    async with (
        serve_agent(agent, Bridges(grace_s=grace_s)) as server,
        open_http_client(server) as http,
    ):
        async with AsyncExitStack() as back:
            body = {"id": "t", "messages": [make_user_message("Go.")]}
            async with http.stream("POST", "/ai/actor", json=body):
                await stage.start("x").wait()
                follow = http.stream("GET", "/ai/actor/t/stream")
                # Without a reference, the iterator would be collected, and close the stream.
                followed = (await back.enter_async_context(follow)).aiter_raw()
                await anext(followed)
            await yield_until(lambda: server.app.streams == 1)
            await anyio.sleep(grace_s / 2)  # a part of the first grace
            left_at = anyio.current_time()
        await (await server.get_only_run()).until("paused")
        assert anyio.current_time() - left_at >= grace_s


async def test_regenerate_sends_a_message_that_was_refused_before(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    """The run was at a cap, which is raised meanwhile."""

    def conclude(messages: Transcript) -> str:
        return f"As you said: {messages[-1].text}"

    agent = stage.agent(Use("quick", name="a"), conclude, stop=MaxSteps(1))
    async with serve_agent(agent) as server, open_http_client(server) as http:
        body = {"id": "t", "messages": [make_user_message("Go.")]}
        assert "[DONE]" in (await http.post("/ai/actor", json=body)).text
        run = await server.get_only_run()
        assert (await run.view()).phase == "paused"
        body = {"id": "t", "messages": [make_user_message("More.")]}
        assert "cap_reached" in (await http.post("/ai/actor", json=body)).text
        await run.raise_cap(steps=5, actor="operator:olga")
        again = await http.post("/ai/actor", json=body | {"trigger": "regenerate-message"})
        assert "As you said: More." in again.text


async def test_a_message_to_a_run_that_ends_is_refused_and_not_lost_silently(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    agent = stage.agent(Use("slow", name="x"), "Done.")
    async with serve_agent(agent) as server, open_http_client(server) as http:
        run = await server.mid.start("actor", "Go.", thread="t")
        await stage.start("x").wait()
        await server.mid.halt("drill", actor=Actor(name="olga", role="operator"))
        await run.until("halted")
        body = {"id": "t", "messages": [make_user_message("More.")]}
        reply = await http.post("/ai/actor", json=body)
        assert reply.status_code == 409
        assert "halted" in reply.text


async def test_a_chat_belongs_to_its_user(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    """The same id of another user is another thread."""
    agent = stage.agent("Done.")
    async with serve_agent(agent) as server, open_http_client(server) as http:
        for name in ("ann", "bob"):
            http.headers["Authorization"] = f"Bearer {make_token(name)}"
            assert (await http.get("/ai/actor/t")).json() == {"messages": []}
            body = {"id": "t", "messages": [make_user_message(f"I am {name}.")]}
            assert "[DONE]" in (await http.post("/ai/actor", json=body)).text
            messages = (await http.get("/ai/actor/t")).json()["messages"]
            assert messages[0]["parts"] == [{"type": "text", "text": f"I am {name}."}]


@BOTH_VERSIONS
async def test_caps_and_the_consequences_of_each_control_change_in_place(
    serve_agent: ServeAgent, stage: ControllableTools, kind: str
) -> None:
    """While a call works, and after the end; a page that is opened later has them, too."""
    turns = (Use("draft", name="mail"), Use("slow", name="x"), "Done.")
    agent = stage.agent(*turns, stop=MaxSteps(7) | MaxToolCalls(5))
    async with (
        serve_agent(agent) as server,
        run_ai_sdk(kind, f"{server.url}/ai/actor", user="ann") as client,
    ):
        await client.send(open={"id": "t"})
        await client.send(send="Go.")
        await stage.start("x").wait()
        await client.wait_for_data("caps", lambda data: find_used(data, "tool_calls") == 2)
        await client.wait_for_data(
            "consequences", lambda data: get_button(data, "cancel")["undo_count"] == 1
        )
        shown = client.get_data("consequences")
        assert get_button(shown, "pause")["enabled"] is True
        stage.gate("x").set()
        await client.wait_for_done("send")
        assert get_button(client.get_data("consequences"), "cancel")["enabled"] is False
        assert find_used(client.get_data("caps"), "steps") == 3
        ended = [client.get_data(name) for name in ("caps", "consequences")]
        await client.send(open={"id": "t", "load": True})
        await client.wait_for_done("open")
        assert [client.get_data(name) for name in ("caps", "consequences")] == ended


def get_button(consequences: JsonObject, name: str) -> JsonObject:
    """Return a button of the part with the consequences."""
    button = consequences[name]
    assert isinstance(button, dict)
    return button


def find_used(caps: JsonObject, name: str) -> object:
    """Return the used amount of the cap with this name."""
    listed = caps["caps"]
    assert isinstance(listed, list)
    (used,) = [cap["used"] for cap in listed if cap["name"] == name]
    return used


@pytest.mark.parametrize(
    ("body", "status", "problem"),
    [
        ({"messages": []}, 422, "id"),
        ({"id": "t", "messages": []}, 422, "no new user message"),
        (
            {
                "id": "t",
                "messages": [
                    {
                        "role": "user",
                        "parts": [
                            {
                                "type": "file",
                                "mediaType": "image/png",
                                "url": "https://example.com/a.png",
                            }
                        ],
                    }
                ],
            },
            422,
            "must be a data URL",
        ),
    ],
)
async def test_a_request_that_cannot_be_used_is_refused_by_name(
    serve_agent: ServeAgent, body: dict[str, object], status: int, problem: str
) -> None:
    agent = Agent("actor", model=ScriptedModel(["Done."]))
    async with serve_agent(agent) as server, open_http_client(server) as http:
        reply = await http.post("/ai/actor", json=body)
        assert reply.status_code == status
        assert problem in reply.text
        named = {"id": "t", "messages": [make_user_message("Go.")]}
        unknown = await http.post("/ai/stranger", json=named)
        assert (unknown.status_code, "Known agents: actor" in unknown.text) == (404, True)


async def test_files_of_a_message_reach_the_run_and_artifacts_reach_the_client(
    serve_agent: ServeAgent,
) -> None:
    @tool
    async def draw(call: Call) -> str:
        """Draw."""
        await call.show("plan.md", "text/markdown", "# Plan")
        return "drawn"

    agent = Agent("actor", model=ScriptedModel([Use("draw"), "Done."]), tools=[draw])
    file = {"type": "file", "mediaType": "image/png", "filename": "a.png"}
    file["url"] = "data:image/png;base64,iVBORw=="
    body = {"id": "t", "messages": [{"id": "m1", "role": "user", "parts": [file]}]}
    async with serve_agent(agent) as server, open_http_client(server) as http:
        stream = (await http.post("/ai/actor", json=body)).text
        chunks = [json.loads(line[6:]) for line in stream.splitlines() if line[:7] == "data: {"]
        (shown,) = [chunk for chunk in chunks if chunk["type"] == "data-artifact"]
        assert (shown["data"]["name"], shown["data"]["version"]) == ("plan.md", 1)
        assert (await http.get(shown["data"]["url"])).text == "# Plan"
        messages = (await http.get("/ai/actor/t")).json()["messages"]
        text, sent = messages[0]["parts"]
        assert text["text"] == "See the attached file."
        assert (await http.get(sent["url"])).content == b"\x89PNG"


def make_user_message(text: str) -> dict[str, object]:
    """Return a message as `useChat` sends it."""
    return {"id": f"u {text}", "role": "user", "parts": [{"type": "text", "text": text}]}
