"""What the bridges say to any client, word by word: plain HTTP, without anybody's package."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Literal

import anyio
import httpx2
import msgspec
import pytest
from anyio.lowlevel import checkpoint

from midrun import Agent, ask_human, tool
from midrun.core.ids import CallId, RunId
from midrun.core.state import State
from midrun.core.values import Phase
from midrun.driver.live import Delta
from midrun.models import ScriptedModel, Use
from midrun.server import Bridges
from midrun.server.a2a.tasks import TASK_STATES
from midrun.server.agui.translate import AguiSegment
from midrun.stops import MaxSteps, MaxTime
from tests.scenarios.protocols.conftest import Bridged, Serving
from tests.unit.runs.stage import ControllableTools
from tests.unit.server.calling import expect
from tests.unit.server.conftest import PATIENCE, token_of
from tests.unit.server.listening import heard

pytestmark = pytest.mark.once

Event = dict[str, object]


@asynccontextmanager
async def signed_in_client(server: Bridged) -> AsyncIterator[httpx2.AsyncClient]:
    """Give a client with a token."""
    headers = {"Authorization": f"Bearer {token_of('olga')}"}
    async with httpx2.AsyncClient(
        base_url=server.url, headers=headers, timeout=PATIENCE
    ) as client:
        yield client


def asked(text: str = "", *, version: str = "1.0", **more: object) -> Event:
    """Return a request for a segment."""
    said = [{"id": "1", "role": "user", "content": text}] if text else []
    own = {"threadId": "t", "runId": f"r-{text}", "protocolVersion": version}
    return {**own, "messages": said, **more}


async def segment(client: httpx2.AsyncClient, body: Event) -> list[Event]:
    """Return a whole segment."""
    reply = expect(await client.post("/agui/actor", json=body), 200)
    assert "\r" not in reply.text, "lines end in LF alone"
    lines = [line for line in reply.text.split("\n\n") if line and not line.startswith(":")]
    return [msgspec.json.decode(line.removeprefix("data: ")) for line in lines]


def outcome(events: list[Event]) -> dict[str, object]:
    """Return how a segment ended."""
    found = events[-1]["outcome"]
    assert isinstance(found, dict)
    return found


def interrupt(events: list[Event]) -> dict[str, object]:
    """Return the one thing that a segment ended for."""
    found = outcome(events)["interrupts"]
    assert isinstance(found, list)
    (one,) = found
    assert isinstance(one, dict)
    return one


def calls(stage: ControllableTools) -> Agent:
    """Return an agent whose one call must be approved."""
    model = ScriptedModel([Use("guarded", name="x"), "Done."])
    return Agent("actor", model=model, tools=[tool(stage._quick, name="guarded", approve=True)])


async def test_an_approval_names_its_call_and_what_an_answer_looks_like(
    serving: Serving, stage: ControllableTools
) -> None:
    """And the state that goes with it has the run's view, and where it is controlled."""
    async with serving(calls(stage)) as server, signed_in_client(server) as client:
        events = await segment(client, asked("Go."))
        one, run = interrupt(events), await server.only()
        assert one["reason"] == "tool_call"
        assert one["toolCallId"] in [event.get("toolCallId") for event in events]
        schema = msgspec.convert(one["responseSchema"], dict[str, object])
        assert schema["properties"] == {"approved": {"type": "boolean"}, "editedArgs": {}}
        (state,) = [event for event in events if event["type"] == "STATE_SNAPSHOT"]
        assert not [event for event in events if event["type"] == "STATE_DELTA"]
        shown = msgspec.convert(state["snapshot"], dict[str, dict[str, object]])["midrun"]
        assert shown["control_url"] == f"/v1/runs/{run.id}"
        view = msgspec.convert(shown["run"], dict[str, object])
        assert (view["run_id"], view["phase"]) == (run.id, "waiting")


async def test_an_answer_to_one_of_two_interrupts_ends_with_the_other(
    serving: Serving,
) -> None:
    """The run still waits: the segment is over, and says for what."""
    questions = [Use("ask_human", question="Which?"), Use("ask_human", question="When?")]
    agent = Agent("actor", model=ScriptedModel([questions, "Thanks."]), tools=[ask_human])
    async with serving(agent) as server, signed_in_client(server) as client:
        first, second = _ids(await segment(client, asked("Go.")))
        for one, left in ((first, [second]), (second, [])):
            answer = {"interruptId": one, "status": "resolved", "payload": {"answer": "x"}}
            assert _ids(await segment(client, asked(resume=[answer], runId=f"r-{one}"))) == left


async def test_words_that_the_agent_has_answered_are_not_taken_for_new_ones(
    serving: Serving, stage: ControllableTools
) -> None:
    """Clients send the whole conversation each time; its last words may be old."""
    async with serving(calls(stage)) as server, signed_in_client(server) as client:
        one = interrupt(await segment(client, asked("Go.")))
        said = [{"id": "1", "role": "user", "content": "Go."}]
        said += [{"id": "2", "role": "assistant", "content": "May I?"}]
        again = await segment(client, asked(runId="r2", messages=said))
        assert interrupt(again) == one


def _ids(events: list[Event]) -> list[object]:
    shown = outcome(events).get("interrupts", ())
    return [one["id"] for one in msgspec.convert(shown, list[dict[str, object]])]


@pytest.mark.parametrize("kind", ["image", "binary", "audio"])
async def test_a_message_with_a_picture_is_refused_by_name(serving: Serving, kind: str) -> None:
    """An answer to half of a message would be wrong, and the client would not know why."""
    parts = [{"type": "text", "text": "What is it?"}, {"type": kind, "source": {}}]
    body = asked("") | {"messages": [{"id": "u", "role": "user", "content": parts}]}
    agent = Agent("actor", model=ScriptedModel(["Done."]))
    async with serving(agent) as server, signed_in_client(server) as client:
        refused = await client.post("/agui/actor", json=body)
        assert refused.status_code == 422
        assert kind in refused.json()["detail"]
        assert not (await server.mid.runs()).items


async def paused(
    server: Bridged, client: httpx2.AsyncClient, stage: ControllableTools
) -> list[Event]:
    """Return the segment of a run that somebody pauses elsewhere."""
    found: list[Event] = []

    async def ask() -> None:
        found.extend(await segment(client, asked("Go.")))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await stage.start("x").wait()
        await (await server.only()).pause(now=True, actor="ada")
    return found


async def test_an_interrupt_that_is_cancelled_cancels_the_run(
    serving: Serving, stage: ControllableTools
) -> None:
    """It says who paused, and takes an instruction; no is the other answer there is."""
    agent = stage.agent(Use("read", name="x"), "Done.")
    async with serving(agent) as server, signed_in_client(server) as client:
        one = interrupt(await paused(server, client, stage))
        assert (one["reason"], str(one["id"])[:6]) == ("midrun:paused", "pause_")
        assert one["message"] == "Paused by ada at step 1. Resume keeps context."
        no = {"interruptId": one["id"], "status": "cancelled"}
        ended = await segment(client, asked(resume=[no]))
        assert outcome(ended) == {"type": "cancelled"}
        assert "result" not in ended[-1]
        assert [e["type"] for e in ended if e.get("name") == "midrun.report"] == ["CUSTOM"]


@pytest.mark.parametrize(
    ("how", "ends"), [("interrupt", "interrupt"), ("success", "success"), ("auto", "interrupt")]
)
async def test_what_a_pause_is_to_a_client_can_be_said(
    serving: Serving,
    stage: ControllableTools,
    how: Literal["auto", "interrupt", "success"],
    ends: str,
) -> None:
    """Where a chat has no box for an interrupt, it is the end of a segment."""
    agent = stage.agent(Use("read", name="x"), "Done.")
    async with (
        serving(agent, Bridges(pause_as=how)) as server,
        signed_in_client(server) as client,
    ):
        events = await paused(server, client, stage)
        assert outcome(events)["type"] == ends
        told = [event for event in events if event.get("name") == "midrun.run.paused"]
        assert len(told) == 1 + (ends == "success")  # the entry, and where it is the end


@pytest.mark.parametrize("watched", [False, True])
async def test_a_dropped_stream_can_cancel_unless_somebody_else_watches(
    serving: Serving, stage: ControllableTools, watched: bool
) -> None:
    """Who looks on by the native feed keeps the run, though the one who asked is gone."""
    agent = stage.agent(Use("read", name="x"), "Done.")
    bridges = Bridges(on_disconnect="cancel", grace_s=0)
    async with serving(agent, bridges) as server, signed_in_client(server) as client:
        async with AsyncExitStack() as looking:
            async with client.stream("POST", "/agui/actor", json=asked("Go.")):
                await stage.start("x").wait()
                run = await server.only()
                if watched:
                    events = heard(client, f"/v1/runs/{run.id}/events")
                    await anext(await looking.enter_async_context(events))
            if watched:
                while server.made.streams > 1:  # until it has noticed who left
                    await checkpoint()
                for _ in range(50):  # and could have acted on it
                    await checkpoint()
                stage.gate("x").set()
            ended = await run.until("terminal")
        assert ended.phase == ("completed" if watched else "cancelled")


def test_what_a_model_thinks_is_told_apart_once_and_closed() -> None:
    """Also to one who is given all of it again, because something was lost on the way."""
    run, call = RunId("run_1"), CallId("c1")
    told = AguiSegment(State(run=run), is_current_version=True)
    said: list[Event] = []
    deltas: tuple[tuple[Literal["thinking", "text"], str, bool], ...] = (
        ("thinking", "First", False),
        ("thinking", "First a,", True),
        ("thinking", " then b.", False),
        ("text", "It is", False),
    )
    for kind, text, opening in deltas:
        delta = Delta(run=run, call=call, kind=kind, text=text, opening=opening)
        said += told.translate(delta)
    said += told.close_all()
    assert [event["type"] for event in said] == [
        "REASONING_START",
        "REASONING_MESSAGE_START",
        *["REASONING_MESSAGE_CONTENT"] * 3,
        "REASONING_MESSAGE_END",
        "REASONING_END",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
    ]
    thoughts = [str(e["delta"]) for e in said if e["type"] == "REASONING_MESSAGE_CONTENT"]
    assert "".join(thoughts) == "First a, then b."


async def test_a_runtime_says_what_its_agents_can_do(serving: Serving) -> None:
    """Their caps are bounds that a client can show; those within an *and* are none."""
    either = (MaxSteps(9) | MaxSteps(7)) | (MaxTime(minutes=1) & MaxSteps(2))
    agent = Agent("actor", model=ScriptedModel(["Hm."]), stop=either | MaxTime(seconds=90))
    async with serving(agent) as server, signed_in_client(server) as client:
        told = expect(await client.get("/copilotkit/info"), 200).json()
        can = told["agents"]["actor"]["capabilities"]
        assert can["execution"] == {"maxIterations": 7, "maxExecutionTime": 90_000}
        assert can["humanInTheLoop"]["approveWithEdits"] is True
        assert can["transport"] == {"streaming": True, "resumable": True}
        assert told["mode"] == "sse"
        assert not any(told["threadEndpoints"].values())


async def test_a2a_is_spoken_as_it_was_before_too(
    serving: Serving, stage: ControllableTools
) -> None:
    """Version 0.3 had other names for everything, and most clients that exist are of it."""
    async with serving(stage.agent("It is a.")) as server, signed_in_client(server) as client:
        message = {"role": "user", "messageId": "1", "kind": "message"}
        params = {"message": {**message, "parts": [{"kind": "text", "text": "Go."}]}}
        call = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params}
        told = expect(await client.post("/a2a/actor", json=call), 200).json()["result"]
        assert (told["kind"], told["status"]["state"]) == ("task", "completed")
        assert told["artifacts"][0]["parts"][0]["text"] == "It is a."


def test_every_phase_is_a_state_of_a_task() -> None:
    """Paused and waiting need input; what is being stopped is still at work."""
    states = {phase: TASK_STATES[phase] for phase in Phase}
    needs = {phase for phase, state in states.items() if state == TASK_STATES[Phase.PAUSED]}
    works = {phase for phase, state in states.items() if state == TASK_STATES[Phase.RUNNING]}
    assert needs == {Phase.PAUSED, Phase.WAITING, Phase.HALTED}
    assert works == {Phase.RUNNING, Phase.PAUSING, Phase.CANCELLING}
    assert len(set(states.values())) == 6
