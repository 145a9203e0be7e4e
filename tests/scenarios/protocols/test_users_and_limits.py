"""A2A and AG-UI separate the users of a server and enforce its limits, over plain HTTP."""

import anyio
import httpx2
import pytest

from midrun import Agent
from midrun.core.entries import RunStarted
from midrun.core.ids import RunId
from midrun.models import ScriptedModel, Use
from midrun.ports.store import RunQuery
from midrun.server import Limits
from midrun.server.admin import PROOF_HEADER
from midrun.testing.controllable_tools import ControllableTools
from tests.scenarios.protocols.conftest import make_rpc_call
from tests.unit.server.conftest import ACTORS, StartServer, serve, stage
from tests.unit.server.http_calls import expect_status

__all__ = ["serve", "stage"]

pytestmark = pytest.mark.once


AI_SDK_MESSAGE = {"id": "1", "role": "user", "parts": [{"type": "text", "text": "Go."}]}
OPENAI_MESSAGE = {"role": "user", "content": "Go."}


async def send_a2a_message(
    client: httpx2.AsyncClient,
    text: str,
    *,
    name: str = "m1",
    agent: str = "actor",
    **more: str,
) -> str:
    """Send a message by A2A; return the id of its task, or the error message."""
    message = {"messageId": name, "role": "ROLE_USER", "parts": [{"text": text}], **more}
    call = make_rpc_call("SendMessage", message=message)
    reply = await client.post(f"/a2a/{agent}", json=call, headers={"A2A-Version": "1.0"})
    body = expect_status(reply, 200).json()
    return str(body["error"]["message"] if "error" in body else body["result"]["task"]["id"])


def make_agui_request(thread: str, text: str) -> dict[str, object]:
    """Return the request body of an AG-UI segment."""
    message = {"id": "1", "role": "user", "content": text}
    more: dict[str, object] = {"tools": [], "context": [], "state": {}, "forwardedProps": {}}
    return {"threadId": thread, "runId": "r1", "messages": [message], **more}


async def test_the_a2a_contexts_of_two_users_with_the_same_name_are_separate(
    serve: StartServer, stage: ControllableTools
) -> None:
    """A run gets the history of its thread, and its starter can read it."""
    served = await serve(stage.agent("The password is swordfish.", "Yes.", "No."))
    run = await served.mid.start("actor", "Tell.", thread="secrets", actor="ann")
    await run.until("terminal")
    histories = {}
    for name in ("bob", "ann"):
        task = await send_a2a_message(
            await served.client(name), "What was said?", contextId="secrets"
        )
        assert (await (await served.mid.get(task)).view()).thread == "secrets"
        (record,) = await served.mid.store.read(RunId(task), limit=1)
        assert isinstance(record.entry, RunStarted)
        histories[name] = [message.text for message in record.entry.history]
    assert histories == {"bob": [], "ann": ["Tell.", "The password is swordfish."]}


async def test_the_ag_ui_threads_of_two_users_with_the_same_name_are_separate(
    serve: StartServer, stage: ControllableTools
) -> None:
    """Also for another agent than the one in the other user's thread."""
    other = Agent("other", model=ScriptedModel(["Hm."]))
    served = await serve(stage.agent("The password is swordfish."), other)
    run = await served.mid.start("actor", "Tell.", thread="secrets", actor="ann")
    await run.until("terminal")
    bob = await served.client("bob")
    reply = await bob.post("/agui/other", json=make_agui_request("secrets", "What was said?"))
    assert reply.status_code == 200, reply.text
    assert "swordfish" not in reply.text
    (row,) = (await served.mid.store.list_runs(RunQuery(owner="bob"))).items
    (record,) = await served.mid.store.read(row.run, limit=1)
    assert isinstance(record.entry, RunStarted)
    assert record.entry.history == ()


async def test_a_user_cannot_stop_or_message_the_run_of_an_operator_in_the_same_thread(
    serve: StartServer, stage: ControllableTools
) -> None:
    """The message of the user starts a new run in the user's own thread."""
    served = await serve(stage.agent(Use("slow", name="a"), "Done."))
    run_of_ann = await served.mid.start("actor", "Tell.", thread="t", actor=ACTORS["ann"])
    await run_of_ann.cancel(actor="ann")
    await run_of_ann.until("cancelled")
    run_of_olga = await served.mid.start("actor", "Help.", thread="t", actor=ACTORS["olga"])
    await stage.start("a").wait()
    ann = await served.client("ann")
    stopped = expect_status(await ann.post("/copilotkit/agent/actor/stop/t", json={}), 200)
    assert stopped.json()["stopped"] is False
    stage.gate("a").set()
    expect_status(await ann.post("/agui/actor", json=make_agui_request("t", "Go on.")), 200)
    await run_of_olga.until("completed")
    records = await served.mid.store.read(run_of_olga.id)
    assert "ann" not in {getattr(record.entry, "by", "") for record in records}
    lines = (await ann.get("/v1/runs?thread=t")).json()["items"]
    assert [line["task"] for line in lines] == ["Go on.", "Tell."]


async def test_two_users_can_send_messages_with_the_same_id(
    serve: StartServer, stage: ControllableTools
) -> None:
    """A message id belongs to its sender: a repeat finds the run of the same user only."""
    served = await serve(stage.agent("Hers.", "His."))
    people = [await served.client(name) for name in ("ann", "bob", "ann")]
    run_of_ann, run_of_bob, repeated = [
        await send_a2a_message(client, "Go.", name="1") for client in people
    ]
    assert run_of_ann == repeated != run_of_bob
    assert run_of_bob.startswith("run_")


async def test_ids_of_more_than_200_characters_are_refused_by_a2a_and_ag_ui(
    serve: StartServer, stage: ControllableTools
) -> None:
    """Each row of a list shows its thread, so a long id would slow every list."""
    served = await serve(stage.agent("Done."))
    ann, long = await served.client("ann"), "x" * 201
    assert "at most 200" in await send_a2a_message(ann, "Go.", contextId=long)
    assert "at most 200" in await send_a2a_message(ann, "Go.", name=long)
    assert (
        await ann.post("/agui/actor", json=make_agui_request(long, "Go."))
    ).status_code == 422


async def test_a2a_answers_429_to_a_user_with_too_many_streams(
    serve: StartServer, stage: ControllableTools
) -> None:
    served = await serve(stage.agent("Done."), limits=Limits(streams=0))
    reply = await (await served.client("ann")).get("/a2a/actor/v1/tasks")
    assert reply.status_code == 429, reply.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/ai/actor", {"id": "t", "messages": [AI_SDK_MESSAGE]}),
        ("/agui/actor", make_agui_request("t", "Go.")),
        ("/openai/v1/chat/completions", {"model": "actor", "messages": [OPENAI_MESSAGE]}),
        ("/openai/v1/responses", {"model": "actor", "input": "Go."}),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_message_that_is_refused_for_too_many_streams_starts_no_run(
    serve: StartServer,
    stage: ControllableTools,
    path: str,
    body: dict[str, object],
    stream: bool,
) -> None:
    """The client would send it again, and start another run each time."""
    served = await serve(stage.agent("Done."), limits=Limits(streams=0))
    ann = await served.client("ann")
    expect_status(await ann.post(path, json={**body, "stream": stream}), 429)
    assert not (await served.mid.runs()).items


async def test_one_message_to_two_agents_starts_a_run_of_each(
    serve: StartServer, stage: ControllableTools
) -> None:
    """A client that compares agents sends the same ids to both."""
    other = Agent("other", model=ScriptedModel(["Hm.", "Hm."]))
    served = await serve(stage.agent("Done.", "Done."), other)
    ann = await served.client("ann")
    for agent in ("actor", "other"):
        body = {"id": "t", "messages": [AI_SDK_MESSAGE]}
        reply = expect_status(await ann.post(f"/ai/{agent}", json=body), 200)
        assert "[DONE]" in reply.text
        assert (await send_a2a_message(ann, "Go.", agent=agent)).startswith("run_")
    assert len((await served.mid.runs()).items) == 4


async def test_a2a_and_ag_ui_enforce_the_limit_of_pending_messages(
    serve: StartServer, stage: ControllableTools
) -> None:
    """The limit counts the messages of a run over all interfaces."""
    agent = stage.agent(Use("slow", name="x"), "Done.")
    served = await serve(agent, limits=Limits(pending=1))
    run = await served.mid.start("actor", "Go.", thread="t", actor="ann")
    await stage.start("x").wait()
    await run.redirect("One.")
    ann = await served.client("ann")
    refused = await send_a2a_message(ann, "Two.", taskId=run.id)
    assert "wait for their boundary" in refused
    assert (
        await ann.post("/agui/actor", json=make_agui_request("t", "Two."))
    ).status_code == 429
    assert len((await run.view()).pending) == 1


async def test_an_a2a_request_that_waits_is_answered_when_the_server_closes(
    serve: StartServer, stage: ControllableTools
) -> None:
    """The answer may be a 503, but the connection must not end without one."""
    served = await serve(stage.agent(Use("slow", name="x"), "Done."))
    ann = await served.client("ann")
    message = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "Go."}]}
    call = make_rpc_call("SendMessage", message=message)
    replies: list[int] = []

    async def ask() -> None:
        reply = await ann.post("/a2a/actor", json=call, headers={"A2A-Version": "1.0"})
        replies.append(reply.status_code)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await stage.start("x").wait()
        served.app.close()
    assert replies[0] in {200, 503}


async def test_an_a2a_stream_ends_when_its_session_is_signed_out(
    serve: StartServer, stage: ControllableTools
) -> None:
    served = await serve(stage.agent(Use("slow", name="x"), "Done."))
    run = await served.mid.start("actor", "Go.", actor="ann")
    await stage.start("x").wait()
    ann = await served.client("ann")
    signed = expect_status(await ann.post("/v1/session", json={}), 200)
    ann.headers[PROOF_HEADER] = signed.json()["proof"]
    del ann.headers["Authorization"]
    own = {"Origin": served.url, "A2A-Version": "1.0"}
    call = make_rpc_call("SubscribeToTask", id=run.id)
    async with ann.stream("POST", "/a2a/actor", json=call, headers=own) as stream:
        lines = stream.aiter_lines()
        assert "working" in (await anext(lines)).lower()
        expect_status(await ann.delete("/v1/session", headers=own), 204)
        with anyio.fail_after(60):
            assert not [line async for line in lines if line.startswith("data:")]


async def test_an_invalid_page_token_is_a_client_error(
    serve: StartServer, stage: ControllableTools
) -> None:
    """In JSON-RPC and in REST; an internal error would point to a fault of the server."""
    served = await serve(stage.agent("Done."))
    client = await served.client()
    version = {"A2A-Version": "1.0"}
    call = make_rpc_call("ListTasks", pageToken="mine")
    body = expect_status(
        await client.post("/a2a/actor", json=call, headers=version), 200
    ).json()
    assert body["error"]["code"] == -32602
    expect_status(await client.get("/a2a/actor/tasks?pageToken=mine", headers=version), 400)
