"""AG-UI with its unmodified clients (current, and before 1.0), and over plain HTTP.

`test_chat_adapters.py` has the behavior that all chat protocols share.
"""

from base64 import b64encode
from contextlib import AsyncExitStack
from typing import Literal

import anyio
import httpx2
import msgspec
import pytest
from anyio.lowlevel import checkpoint

from midrun import Agent, ask_human, pause_here, tool
from midrun.core.entries import AskAnswered
from midrun.core.ids import CallId, RunId
from midrun.core.state import State
from midrun.core.transcript import Transcript
from midrun.driver.delta import Delta
from midrun.models import ScriptedModel, Use
from midrun.server import Bridges
from midrun.server.agui.translate import AguiSegment
from midrun.testing.controllable_tools import ControllableTools
from tests.scenarios.protocols.conftest import ProtocolServer, ServeAgent, open_http_client
from tests.scenarios.protocols.node_clients import CLIENT_BEFORE_1_0, CURRENT_CLIENT, run_client
from tests.support.gated_model import GatedModel, GatedReply
from tests.support.run_journal import read_entries
from tests.unit.server.http_calls import expect_status
from tests.unit.server.sse_stream import open_event_stream

pytestmark = pytest.mark.once

Event = dict[str, object]

BOTH_CLIENTS = pytest.mark.parametrize("kind", [CURRENT_CLIENT, CLIENT_BEFORE_1_0])


def get_texts(messages: object, role: str) -> list[str]:
    """Return the texts of the messages with this role."""
    assert isinstance(messages, list)
    return [str(message["content"]) for message in messages if message["role"] == role]


def get_single_item(items: object) -> object:
    """Return the only item of a list."""
    assert isinstance(items, list)
    (item,) = items
    return item


def make_parent_agent(stage: ControllableTools) -> Agent:
    """Return an agent with a child agent as its tool."""
    aide = stage.agent(Use("read", name="x"), "It is x.", name="aide")
    model = ScriptedModel([Use("aide", task="Look."), "All done."])
    return Agent("actor", model=model, tools=[aide.as_tool()])


@BOTH_CLIENTS
async def test_a_run_is_streamed_to_its_end(
    serve_agent: ServeAgent, stage: ControllableTools, kind: str
) -> None:
    """Each text message and each tool call that is opened is also closed."""
    agent = stage.agent(["Looking it up.", Use("quick", name="a")], "It is a.")
    async with (
        serve_agent(agent) as server,
        run_client(kind, f"{server.url}/agui/actor") as client,
    ):
        await client.send(run={"thread": "t", "say": "What is it?"})
        done = await client.wait_for_end()
        assert done["outcome"] in {"success", "completed"}, done
        assert get_texts(done["messages"], "user") == ["What is it?"]
        assert get_texts(done["messages"], "assistant") == ["Looking it up.", "It is a."]
        assert get_texts(done["messages"], "tool") == ["a done"]
        for part in ("TEXT_MESSAGE", "TOOL_CALL"):
            starts, ends = (
                client.event_types.count(f"{part}_{end}") for end in ("START", "END")
            )
            assert starts == ends
        assert client.event_types[0] == "RUN_STARTED"
        assert client.event_types[-3:] == ["STATE_DELTA", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
        assert client.events[0]["protocolVersion"] == "1.0"
        usage = client.events[-1]["usage"]
        # The provider reports no more than the total.
        assert sorted(get_single_item(usage)) == ["totalTokens"]  # type: ignore[call-overload]  # a dict
        run = await server.get_only_run()
        assert (await run.view()).thread == "t"


async def test_a_child_run_is_a_subagent_that_is_suspended_with_its_parent(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    """Each segment in which the child works has its start and its end."""
    url = "/agui/actor"
    async with (
        serve_agent(make_parent_agent(stage)) as server,
        run_client(CURRENT_CLIENT, server.url + url) as client,
    ):
        await client.send(run={"thread": "t", "say": "Go."})
        started = await client.wait_for_event("SUBAGENT_STARTED")
        assert started["name"] == "aide"
        calls = [e["toolCallId"] for e in client.events if e["type"] == "TOOL_CALL_START"]
        assert [started["parentToolCallId"]] == calls
        await stage.start("x").wait()
        run = await server.mid.get(str(calls[0]).rpartition("-")[0])
        await run.pause(now=True)
        interrupt = get_single_item((await client.wait_for_end())["pending"])
        (suspended,) = [e for e in client.events if e["type"] == "SUBAGENT_FINISHED"]
        assert (suspended["subagentRunId"], suspended["outcome"]) == (
            started["subagentRunId"],
            {"type": "suspended"},
        )
        child = await server.mid.get(str(started["subagentRunId"]))
        assert (await child.view()).agent == "aide"
        stage.gate("x").set()
        client.events.clear()
        answer = {"interruptId": interrupt, "status": "resolved", "payload": {}}
        await client.send(run={"thread": "t", "resume": [answer]})
        done = await client.wait_for_end()
        assert get_texts(done["messages"], "assistant")[-1] == "All done."
        (ended,) = [e for e in client.events if e["type"] == "SUBAGENT_FINISHED"]
        assert ended["result"] == "It is x."


async def test_a_client_before_1_0_gets_a_child_run_as_a_tool_call(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    """It throws on SUBAGENT events, which it does not know."""
    stage.gate("x").set()
    async with serve_agent(make_parent_agent(stage)) as server:
        async with run_client(CLIENT_BEFORE_1_0, f"{server.url}/agui/actor") as client:
            await client.send(run={"thread": "t", "say": "Go."})
            done = await client.wait_for_end()
        assert get_texts(done["messages"], "assistant")[-1] == "All done."
        assert get_texts(done["messages"], "tool") == ["It is x."]
        assert not [kind for kind in client.event_types if kind.startswith("SUBAGENT")]


async def test_a_client_before_1_0_gets_a_custom_pause_event_and_resumes_by_a_message(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    """It cannot answer an interrupt: the segment ends, and the next message resumes."""
    agent = stage.agent(Use("read", name="x"), "Done as told.")
    async with (
        serve_agent(agent) as server,
        run_client(CLIENT_BEFORE_1_0, f"{server.url}/agui/actor") as client,
    ):
        await client.send(run={"thread": "t", "say": "Go."})
        await client.wait_for_event("TOOL_CALL_END")
        await stage.start("x").wait()
        run = await server.get_only_run()
        await run.pause(now=True)
        assert not (await client.wait_for_end())["pending"]
        assert any(event.get("name") == "midrun.run.paused" for event in client.events)
        stage.gate("x").set()
        await client.send(run={"thread": "t", "say": "Be brief."})
        done = await client.wait_for_end()
        assert get_texts(done["messages"], "assistant")[-1] == "Done as told."
        assert (await run.view()).phase == "completed"


@pytest.mark.parametrize(
    ("kind", "outcome"), [(CURRENT_CLIENT, "cancelled"), (CLIENT_BEFORE_1_0, "error STOPPED")]
)
async def test_a_cancel_has_an_outcome_that_the_client_version_knows(
    serve_agent: ServeAgent, stage: ControllableTools, kind: str, outcome: str
) -> None:
    """A client before 1.0 throws on an outcome that it does not know."""
    agent = stage.agent(["Half a sen", Use("slow", name="x")])
    async with (
        serve_agent(agent) as server,
        run_client(kind, f"{server.url}/agui/actor") as client,
    ):
        await client.send(run={"thread": "t", "say": "Go."})
        await client.wait_for_event("TOOL_CALL_END")
        await stage.start("x").wait()
        await (await server.get_only_run()).cancel()
        assert (await client.wait_for_end())["outcome"] == outcome
        assert any(event.get("name") == "midrun.report" for event in client.events)
        assert stage.completed == []


@BOTH_CLIENTS
async def test_an_approval_is_an_interrupt_and_edited_arguments_are_used(
    serve_agent: ServeAgent, kind: str
) -> None:
    """The next segment has the result of the call, but not its start."""
    paid: list[int] = []

    @tool(approve=True)
    async def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return f"paid {amount}"

    agent = Agent("actor", model=ScriptedModel([Use("pay", amount=90), "Paid."]), tools=[pay])
    async with (
        serve_agent(agent) as server,
        run_client(kind, f"{server.url}/agui/actor") as client,
    ):
        await client.send(run={"thread": "t", "say": "Pay."})
        waiting = await client.wait_for_end()
        interrupt = get_single_item(waiting["pending"])
        assert paid == []
        client.events.clear()
        payload = {"approved": True, "editedArgs": {"amount": 9}}
        answer = {"interruptId": interrupt, "status": "resolved", "payload": payload}
        await client.send(run={"thread": "t", "resume": [answer]})
        done = await client.wait_for_end()
        assert paid == [9]
        assert "TOOL_CALL_START" not in client.event_types
        assert client.event_types.count("TOOL_CALL_RESULT") == 1
        assert get_texts(done["messages"], "assistant")[-1] == "Paid."


def make_asking_agent() -> Agent:
    """Return an agent that asks one question."""
    model = ScriptedModel([Use("ask_human", question="Which one?"), "Thanks."])
    return Agent("actor", model=model, tools=[ask_human])


@BOTH_CLIENTS
async def test_a_request_without_a_new_message_ends_with_the_pending_interrupt(
    serve_agent: ServeAgent, kind: str
) -> None:
    """A reopened page has no messages yet, and must show the interrupt."""
    async with serve_agent(make_asking_agent()) as server:
        where = f"{server.url}/agui/actor"
        async with run_client(kind, where) as first, run_client(kind, where) as reopened:
            await first.send(run={"thread": "t", "say": "Go."})
            pending = (await first.wait_for_end())["pending"]
            await reopened.send(run={"thread": "t"})
            assert (await reopened.wait_for_end())["pending"] == pending
            outcome = reopened.events[-1]["outcome"]
            assert isinstance(outcome, dict)
            assert outcome["type"] == "interrupt"
        assert not await read_entries(await server.get_only_run(), AskAnswered)


@BOTH_CLIENTS
async def test_the_client_state_is_kept_and_extended_with_the_run_view(
    serve_agent: ServeAgent, kind: str
) -> None:
    """Midrun writes only the key `midrun`."""
    agent = Agent("actor", model=ScriptedModel(["Done."]))
    async with (
        serve_agent(agent) as server,
        run_client(kind, f"{server.url}/agui/actor") as client,
    ):
        await client.send(run={"thread": "t", "say": "Go.", "state": {"cart": [1, 2]}})
        state = (await client.wait_for_end())["state"]
        assert isinstance(state, dict)
        assert state["cart"] == [1, 2]
        assert state["midrun"]["run"]["phase"] == "completed"


PAGE_TOOL = {
    "name": "open_page",
    "description": "Open a page in the browser of the user.",
    "parameters": {"properties": {"name": {"type": "string"}}, "required": ["name"]},
}


async def test_context_reaches_the_agent_and_invalid_page_tools_are_reported_as_unused(
    serve_agent: ServeAgent,
) -> None:
    seen: list[str] = []

    def answer(messages: Transcript) -> str:
        seen.extend(turn.text for turn in messages)
        return "Done."

    agent = Agent("actor", model=ScriptedModel([answer]))
    invalid: list[Event] = [
        {"name": "open page"},
        {"name": "a", "parameters": {"properties": {"why": {}}}},
    ]
    context = [{"description": "The open document", "value": "report.md"}]
    async with (
        serve_agent(agent) as server,
        run_client(CURRENT_CLIENT, f"{server.url}/agui/actor") as client,
    ):
        tools = [{"description": "", **tool} for tool in invalid]
        request = {"thread": "t", "say": "Go.", "tools": tools, "context": context}
        await client.send(run=request)
        done = await client.wait_for_end()
    assert get_texts(done["messages"], "user") == ["Go."]
    assert "The open document: report.md" in "\n".join(seen)
    (unused,) = [e["value"] for e in client.events if e.get("name") == "midrun.unused"]
    assert unused == {"tools": ["open page", "a"]}


@pytest.mark.parametrize("is_declared", [True, False])
async def test_a_frontend_tool_is_made_by_the_client_and_its_result_is_the_answer(
    serve_agent: ServeAgent, is_declared: bool
) -> None:
    """The agent may declare the tool, or get it from the client that starts the run."""

    @tool
    async def open_page(name: str) -> str:
        """Open a page in the browser of the user."""
        pause_here(f"Open the page {name}.")

    def conclude(messages: Transcript) -> str:
        use = messages[-1].uses[0]
        return f"The page is {use.problem or use.result}."

    model = ScriptedModel([Use("open_page", name="a"), conclude])
    agent = Agent("actor", model=model, tools=[open_page] if is_declared else [])
    page = PAGE_TOOL
    async with (
        serve_agent(agent) as server,
        run_client(CURRENT_CLIENT, f"{server.url}/agui/actor") as client,
    ):
        await client.send(run={"thread": "t", "say": "Go.", "tools": [page]})
        done = await client.wait_for_end()
        assert (done["outcome"], done["pending"]) == ("success", [])
        assert not [e for e in client.events if e.get("name") == "midrun.unused"]
        assert get_texts(done["messages"], "tool") == []
        (call,) = [e["toolCallId"] for e in client.events if e["type"] == "TOOL_CALL_START"]
        await client.send(run={"thread": "t", "tools": [page]})
        assert get_texts((await client.wait_for_end())["messages"], "tool") == []
        client.events.clear()
        result = {"toolCallId": call, "content": "open"}
        await client.send(run={"thread": "t", "result": result, "tools": [page]})
        done = await client.wait_for_end()
        assert get_texts(done["messages"], "tool") == ["open"]
        assert "TOOL_CALL_RESULT" not in client.event_types
        assert get_texts(done["messages"], "assistant")[-1] == "The page is open."
        (answer,) = await read_entries(await server.get_only_run(), AskAnswered)
        assert answer.by == "olga"


async def test_the_tools_of_a_client_are_told_to_the_model_and_survive_a_restart(
    serve_agent: ServeAgent,
) -> None:
    """A client without the tool sees a question, which a person can answer."""
    model = GatedModel(GatedReply("", "", Use("open_page", name="a")), "Thanks.")
    async with (
        serve_agent(Agent("actor", model=model)) as server,
        open_http_client(server) as client,
    ):
        ended = await read_segment(client, make_request("Go.", tools=[PAGE_TOOL]))
        assert get_outcome(ended)["type"] == "success"
    spec = model.prompts[0].tools[-1]
    assert (spec.name, spec.description) == ("open_page", PAGE_TOOL["description"])
    model = GatedModel("Thanks.")
    async with (
        serve_agent(Agent("actor", model=model)) as server,
        open_http_client(server) as client,
    ):
        interrupt = get_interrupt(await read_segment(client, make_request()))
        assert "open_page" in str(interrupt["message"])
        answer = {"interruptId": interrupt["id"], "payload": {"answer": "open"}}
        ended = await read_segment(client, make_request(resume=[answer], runId="r2"))
        assert get_outcome(ended)["type"] == "success"
        assert model.prompts[0].tools[-1] == spec


async def test_a_question_is_answered_by_resuming_its_interrupt(
    serve_agent: ServeAgent,
) -> None:
    model = ScriptedModel([Use("ask_human", question="Red or blue?"), "As you like."])
    agent = Agent("actor", model=model, tools=[ask_human])
    async with (
        serve_agent(agent) as server,
        run_client(CLIENT_BEFORE_1_0, f"{server.url}/agui/actor") as client,
    ):
        await client.send(run={"thread": "t", "say": "Paint."})
        assert (await client.wait_for_end())["outcome"] == "interrupt"
        (interrupt,) = [ask.id for ask in (await (await server.get_only_run()).view()).asks]
        run = await server.get_only_run()
        answer = {"interruptId": f"{run.id}-{interrupt}", "status": "resolved"}
        await client.send(run={"thread": "t", "resume": [{**answer, "payload": "red"}]})
        done = await client.wait_for_end()
        assert get_texts(done["messages"], "tool")[-1] == "red"
        assert (await run.view()).phase == "completed"


async def test_a_dropped_stream_does_not_pause_with_on_disconnect_continue(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    agent = stage.agent(Use("read", name="x"), "Done.")
    async with serve_agent(agent, Bridges(on_disconnect="continue", grace_s=0)) as server:
        async with run_client(CURRENT_CLIENT, f"{server.url}/agui/actor") as client:
            await client.send(run={"thread": "t", "say": "Go."})
            await client.wait_for_event("TOOL_CALL_END")
            await stage.start("x").wait()
        stage.gate("x").set()
        run = await server.get_only_run()
        assert (await run.until("completed")).output == "Done."


# ── events over plain HTTP ────────────────────────────────────────────────────────────────


def make_request(text: str = "", *, version: str = "1.0", **more: object) -> Event:
    """Return the request body of a segment."""
    messages = [{"id": "1", "role": "user", "content": text}] if text else []
    fields = {"threadId": "t", "runId": f"r-{text}", "protocolVersion": version}
    return {**fields, "messages": messages, **more}


async def read_segment(client: httpx2.AsyncClient, body: Event) -> list[Event]:
    """Return all events of a segment."""
    reply = expect_status(await client.post("/agui/actor", json=body), 200)
    assert "\r" not in reply.text, "lines end in LF alone"
    lines = [line for line in reply.text.split("\n\n") if line and not line.startswith(":")]
    return [msgspec.json.decode(line.removeprefix("data: ")) for line in lines]


def get_outcome(events: list[Event]) -> dict[str, object]:
    """Return the outcome of a segment."""
    found = events[-1]["outcome"]
    assert isinstance(found, dict)
    return found


def get_interrupt(events: list[Event]) -> dict[str, object]:
    """Return the only interrupt of a segment."""
    interrupts = get_outcome(events)["interrupts"]
    assert isinstance(interrupts, list)
    (interrupt,) = interrupts
    assert isinstance(interrupt, dict)
    return interrupt


def get_interrupt_ids(events: list[Event]) -> list[object]:
    interrupts = get_outcome(events).get("interrupts", ())
    converted = msgspec.convert(interrupts, list[dict[str, object]])
    return [interrupt["id"] for interrupt in converted]


def make_approval_agent(stage: ControllableTools) -> Agent:
    """Return an agent whose only call needs an approval."""
    model = ScriptedModel([Use("guarded", name="x"), "Done."])
    return Agent("actor", model=model, tools=[tool(stage._quick, name="guarded", approve=True)])


async def read_paused_segment(
    server: ProtocolServer, client: httpx2.AsyncClient, stage: ControllableTools
) -> list[Event]:
    """Return the segment of a run that is paused by another client."""
    found: list[Event] = []

    async def ask() -> None:
        found.extend(await read_segment(client, make_request("Go.")))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await stage.start("x").wait()
        await (await server.get_only_run()).pause(now=True, actor="ada")
    return found


async def test_an_approval_interrupt_has_its_call_and_a_response_schema(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    """The state snapshot has the view of the run and the URL of its controls."""
    async with (
        serve_agent(make_approval_agent(stage)) as server,
        open_http_client(server) as client,
    ):
        events = await read_segment(client, make_request("Go."))
        interrupt, run = get_interrupt(events), await server.get_only_run()
        assert interrupt["reason"] == "tool_call"
        assert interrupt["toolCallId"] in [event.get("toolCallId") for event in events]
        schema = msgspec.convert(interrupt["responseSchema"], dict[str, object])
        assert schema["properties"] == {"approved": {"type": "boolean"}, "editedArgs": {}}
        (state,) = [event for event in events if event["type"] == "STATE_SNAPSHOT"]
        assert not [event for event in events if event["type"] == "STATE_DELTA"]
        own_state = msgspec.convert(state["snapshot"], dict[str, dict[str, object]])["midrun"]
        assert own_state["control_url"] == f"/v1/runs/{run.id}"
        view = msgspec.convert(own_state["run"], dict[str, object])
        assert (view["run_id"], view["phase"]) == (run.id, "waiting")


async def test_an_answer_to_one_of_two_interrupts_ends_the_segment_with_the_other(
    serve_agent: ServeAgent,
) -> None:
    questions = [Use("ask_human", question="Which?"), Use("ask_human", question="When?")]
    agent = Agent("actor", model=ScriptedModel([questions, "Thanks."]), tools=[ask_human])
    async with serve_agent(agent) as server, open_http_client(server) as client:
        first, second = get_interrupt_ids(await read_segment(client, make_request("Go.")))
        for interrupt, left in ((first, [second]), (second, [])):
            answer = {
                "interruptId": interrupt,
                "status": "resolved",
                "payload": {"answer": "x"},
            }
            assert (
                get_interrupt_ids(
                    await read_segment(
                        client, make_request(resume=[answer], runId=f"r-{interrupt}")
                    )
                )
                == left
            )


async def test_a_message_that_the_agent_has_answered_is_not_taken_as_new(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    """Clients send the whole conversation each time."""
    async with (
        serve_agent(make_approval_agent(stage)) as server,
        open_http_client(server) as client,
    ):
        interrupt = get_interrupt(await read_segment(client, make_request("Go.")))
        messages = [{"id": "1", "role": "user", "content": "Go."}]
        messages += [{"id": "2", "role": "assistant", "content": "May I?"}]
        again = await read_segment(client, make_request(runId="r2", messages=messages))
        assert get_interrupt(again) == interrupt


IMAGE = b64encode(b"\x89PNG").decode()

INLINE_SOURCE = {"type": "data", "value": IMAGE, "mimeType": "image/png"}


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        (CURRENT_CLIENT, {"type": "image", "source": INLINE_SOURCE}),
        (CLIENT_BEFORE_1_0, {"type": "binary", "mimeType": "image/png", "data": IMAGE}),
    ],
)
async def test_an_image_in_a_message_reaches_the_agent_as_a_file(
    serve_agent: ServeAgent, kind: str, part: Event
) -> None:
    """The client keeps its own message, and another client gets the address of the file."""
    seen: list[tuple[str, str]] = []

    def answer(messages: Transcript) -> str:
        seen.extend((file.name, file.media_type) for file in messages[-1].files)
        return "A dot."

    agent = Agent("actor", model=ScriptedModel([answer, "Yes."]))
    parts = [{"type": "text", "text": "What is it?"}, part]
    async with serve_agent(agent) as server:
        url = f"{server.url}/agui/actor"
        async with run_client(kind, url) as client, run_client(CURRENT_CLIENT, url) as other:
            await client.send(run={"thread": "t", "say": parts})
            done = await client.wait_for_end()
            sent = msgspec.convert(done["messages"], list[dict[str, object]])[0]
            assert (done["outcome"], sent["content"]) == ("success", parts)
            await other.send(run={"thread": "t", "say": "And?"})
            done = await other.wait_for_end()
            first = msgspec.convert(done["messages"], list[dict[str, object]])[0]
            assert "/files/" in str(first["content"])
    assert seen == [(f"{part['type']}-1", "image/png")]


@pytest.mark.parametrize(
    "source", [{"type": "url", "value": "http://127.0.0.1/a.png"}, {"type": "data"}, {}]
)
async def test_a_file_behind_an_address_is_refused(
    serve_agent: ServeAgent, source: Event
) -> None:
    """The server does not fetch it, and an answer to the text alone would be wrong."""
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image", "source": source}]
    body = make_request("") | {"messages": [{"id": "u", "role": "user", "content": parts}]}
    agent = Agent("actor", model=ScriptedModel(["Done."]))
    async with serve_agent(agent) as server, open_http_client(server) as client:
        refused = await client.post("/agui/actor", json=body)
        assert refused.status_code == 422
        assert "image-1" in refused.json()["detail"]
        assert not (await server.mid.runs()).items


async def test_a_cancelled_interrupt_cancels_the_run(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    """The interrupt of a pause has the actor of the pause in its message."""
    agent = stage.agent(Use("read", name="x"), "Done.")
    async with serve_agent(agent) as server, open_http_client(server) as client:
        interrupt = get_interrupt(await read_paused_segment(server, client, stage))
        assert (interrupt["reason"], str(interrupt["id"])[:6]) == ("midrun:paused", "pause_")
        assert interrupt["message"] == "Paused by ada at turn 1. Everything is kept."
        cancel = {"interruptId": interrupt["id"], "status": "cancelled"}
        ended = await read_segment(client, make_request(resume=[cancel]))
        assert get_outcome(ended) == {"type": "cancelled"}
        assert "result" not in ended[-1]
        assert [e["type"] for e in ended if e.get("name") == "midrun.report"] == ["CUSTOM"]


async def test_an_interrupt_of_a_run_that_has_ended_starts_no_other_run(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    """The newest message of the client is the one that has started the run."""
    agent = stage.agent(Use("read", name="x"), "Done.")
    async with serve_agent(agent) as server, open_http_client(server) as client:
        interrupt = get_interrupt(await read_paused_segment(server, client, stage))
        run = await server.get_only_run()
        await run.cancel(actor="ada")
        await run.until("cancelled")
        resume = [{"interruptId": interrupt["id"], "status": "resolved"}]
        late = make_request("Go.", resume=resume, runId="r2")
        expect_status(await client.post("/agui/actor", json=late), 422)
        await server.get_only_run()


async def test_a_message_that_a_run_cannot_take_is_refused_and_not_lost(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    agent = stage.agent(Use("slow", name="x"), "Done.")
    async with serve_agent(agent) as server, open_http_client(server) as client:
        run = await server.mid.start("actor", "Go.", thread="t")
        await stage.start("x").wait()
        await server.mid.halt("drill", actor="operator:olga")
        await run.until("halted")
        refused = await client.post("/agui/actor", json=make_request("More."))
        assert "lifted the halt" in expect_status(refused, 409).text
        followed = await read_segment(client, make_request())
        assert followed[-1]["code"] == "HALTED"


@pytest.mark.parametrize(
    ("how", "ends"), [("interrupt", "interrupt"), ("success", "success"), ("auto", "interrupt")]
)
async def test_pause_as_selects_the_outcome_of_a_paused_segment(
    serve_agent: ServeAgent,
    stage: ControllableTools,
    how: Literal["auto", "interrupt", "success"],
    ends: str,
) -> None:
    """Some chats cannot show an interrupt; for those the segment ends with success."""
    agent = stage.agent(Use("read", name="x"), "Done.")
    async with (
        serve_agent(agent, Bridges(pause_as=how)) as server,
        open_http_client(server) as client,
    ):
        events = await read_paused_segment(server, client, stage)
        assert get_outcome(events)["type"] == ends
        pauses = [event for event in events if event.get("name") == "midrun.run.paused"]
        # One is the entry; the other one replaces the interrupt.
        assert len(pauses) == 1 + (ends == "success")


@pytest.mark.parametrize("watched", [False, True])
async def test_on_disconnect_cancel_does_not_cancel_while_another_client_follows(
    serve_agent: ServeAgent, stage: ControllableTools, watched: bool
) -> None:
    """A reader of the native feed also counts as a client that follows the run."""
    agent = stage.agent(Use("read", name="x"), "Done.")
    bridges = Bridges(on_disconnect="cancel", grace_s=0)
    async with serve_agent(agent, bridges) as server, open_http_client(server) as client:
        async with AsyncExitStack() as looking:
            async with client.stream("POST", "/agui/actor", json=make_request("Go.")):
                await stage.start("x").wait()
                run = await server.get_only_run()
                if watched:
                    events = open_event_stream(client, f"/v1/runs/{run.id}/events")
                    await anext(await looking.enter_async_context(events))
            if watched:
                while server.app.streams > 1:  # until the server has noticed the disconnect
                    await checkpoint()
                for _ in range(50):  # and had time to cancel the run
                    await checkpoint()
                stage.gate("x").set()
            ended = await run.until("terminal")
        assert ended.phase == ("completed" if watched else "cancelled")


def test_thinking_is_streamed_once_and_closed_before_the_text() -> None:
    """A delta with `opening` repeats the text from its start, after deltas were lost."""
    run, call = RunId("run_1"), CallId("c1")
    segment = AguiSegment(State(run=run), is_current_version=True)
    events: list[Event] = []
    deltas: tuple[tuple[Literal["thinking", "text"], str, bool], ...] = (
        ("thinking", "First", False),
        ("thinking", "First a,", True),
        ("thinking", " then b.", False),
        ("text", "It is", False),
    )
    for kind, text, opening in deltas:
        delta = Delta(run=run, call=call, kind=kind, text=text, opening=opening)
        events += segment.translate(delta)
    events += segment.close_all()
    assert [event["type"] for event in events] == [
        "REASONING_START",
        "REASONING_MESSAGE_START",
        *["REASONING_MESSAGE_CONTENT"] * 3,
        "REASONING_MESSAGE_END",
        "REASONING_END",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
    ]
    thinking = [str(e["delta"]) for e in events if e["type"] == "REASONING_MESSAGE_CONTENT"]
    assert "".join(thinking) == "First a, then b."
