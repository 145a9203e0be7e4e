"""The bridges, with people who are not each other's friends: plain HTTP, as an enemy has it."""

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
from tests.unit.runs.stage import ControllableTools
from tests.unit.server.calling import expect
from tests.unit.server.conftest import PEOPLE, Serve, serve, stage

__all__ = ["serve", "stage"]

pytestmark = pytest.mark.once


async def send_a2a_message(
    client: httpx2.AsyncClient, text: str, *, name: str = "m1", **more: str
) -> str:
    """Send a message by A2A, and return the id of its task, or why there is none."""
    message = {"messageId": name, "role": "ROLE_USER", "parts": [{"text": text}], **more}
    params = {"message": message}
    call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
    reply = await client.post("/a2a/actor", json=call, headers={"A2A-Version": "1.0"})
    told = expect(reply, 200).json()
    return str(told["error"]["message"] if "error" in told else told["result"]["task"]["id"])


def make_agui_request(thread: str, text: str) -> dict[str, object]:
    """Return a request for a segment."""
    said = {"id": "1", "role": "user", "content": text}
    more: dict[str, object] = {"tools": [], "context": [], "state": {}, "forwardedProps": {}}
    return {"threadId": thread, "runId": "r1", "messages": [said], **more}


async def test_a_context_of_the_same_name_is_another_for_another_user_of_a2a(
    serve: Serve, stage: ControllableTools
) -> None:
    """A run on a thread is given what was said in it, and shows it to its starter."""
    served = await serve(stage.agent("The password is swordfish.", "Yes.", "No."))
    run = await served.mid.start("actor", "Tell.", thread="secrets", actor="ann")
    await run.until("terminal")
    told = {}
    for name in ("bob", "ann"):
        made = await send_a2a_message(
            await served.client(name), "What was said?", contextId="secrets"
        )
        assert (await (await served.mid.get(made)).view()).thread == "secrets"
        (record,) = await served.mid.store.read(RunId(made), limit=1)
        assert isinstance(record.entry, RunStarted)
        told[name] = [message.text for message in record.entry.history]
    assert told == {"bob": [], "ann": ["Tell.", "The password is swordfish."]}


async def test_a_thread_of_the_same_name_is_another_for_another_user_of_ag_ui(
    serve: Serve, stage: ControllableTools
) -> None:
    """Whichever agents take part in it."""
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


async def test_a_run_of_an_operator_in_ones_thread_is_not_spoken_to(
    serve: Serve, stage: ControllableTools
) -> None:
    """One goes on with the thread that is one's own, and with no run that is not."""
    served = await serve(stage.agent(Use("slow", name="a"), "Done."))
    hers = await served.mid.start("actor", "Tell.", thread="t", actor=PEOPLE["ann"])
    await hers.cancel(actor="ann")
    await hers.until("cancelled")
    theirs = await served.mid.start("actor", "Help.", thread="t", actor=PEOPLE["olga"])
    await stage.start("a").wait()
    ann = await served.client("ann")
    stopped = expect(await ann.post("/copilotkit/agent/actor/stop/t", json={}), 200)
    assert stopped.json()["stopped"] is False
    stage.gate("a").set()
    expect(await ann.post("/agui/actor", json=make_agui_request("t", "Go on.")), 200)
    await theirs.until("completed")
    records = await served.mid.store.read(theirs.id)
    assert "ann" not in {getattr(record.entry, "by", "") for record in records}
    lines = (await ann.get("/v1/runs?thread=t")).json()["items"]
    assert [line["task"] for line in lines] == ["Go on.", "Tell."]


async def test_two_people_may_send_messages_of_the_same_name(
    serve: Serve, stage: ControllableTools
) -> None:
    """A message's id is its sender's; the other one is not told that there is such a run."""
    served = await serve(stage.agent("Hers.", "His."))
    people = [await served.client(name) for name in ("ann", "bob", "ann")]
    hers, his, again = [await send_a2a_message(client, "Go.", name="1") for client in people]
    assert hers == again != his
    assert his.startswith("run_")


async def test_ids_that_are_no_names_are_refused_by_every_bridge(
    serve: Serve, stage: ControllableTools
) -> None:
    """A thread stands in every line of a list: a megabyte of it would be everybody's."""
    served = await serve(stage.agent("Done."))
    ann, long = await served.client("ann"), "x" * 201
    assert "at most 200" in await send_a2a_message(ann, "Go.", contextId=long)
    assert "at most 200" in await send_a2a_message(ann, "Go.", name=long)
    assert (
        await ann.post("/agui/actor", json=make_agui_request(long, "Go."))
    ).status_code == 422


async def test_a2a_says_so_where_somebody_has_too_many_streams(
    serve: Serve, stage: ControllableTools
) -> None:
    """As a refusal, and not as a fault of the server's."""
    served = await serve(stage.agent("Done."), limits=Limits(streams=0))
    reply = await (await served.client("ann")).get("/a2a/actor/v1/tasks")
    assert reply.status_code == 429, reply.text


async def test_a2a_and_ag_ui_keep_to_how_many_words_may_wait(
    serve: Serve, stage: ControllableTools
) -> None:
    """The bound is the run's, and not that of one way in."""
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


async def test_who_waits_by_a2a_for_a_server_that_closes_is_answered(
    serve: Serve, stage: ControllableTools
) -> None:
    """Be it that it should come again: no answer at all is a fault of the server's."""
    served = await serve(stage.agent(Use("slow", name="x"), "Done."))
    ann, message = await served.client("ann"), {"messageId": "1", "role": "ROLE_USER"}
    params = {"message": {**message, "parts": [{"text": "Go."}]}}
    call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
    replies: list[int] = []

    async def ask() -> None:
        told = await ann.post("/a2a/actor", json=call, headers={"A2A-Version": "1.0"})
        replies.append(told.status_code)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await stage.start("x").wait()
        served.app.close()
    assert replies[0] in {200, 503}


async def test_a_stream_of_a2a_ends_with_the_session_it_was_opened_in(
    serve: Serve, stage: ControllableTools
) -> None:
    """Whoever signed out hears no more."""
    served = await serve(stage.agent(Use("slow", name="x"), "Done."))
    run = await served.mid.start("actor", "Go.", actor="ann")
    await stage.start("x").wait()
    ann = await served.client("ann")
    signed = expect(await ann.post("/v1/session", json={}), 200)
    ann.headers[PROOF_HEADER] = signed.json()["proof"]
    del ann.headers["Authorization"]
    own = {"Origin": served.url, "A2A-Version": "1.0"}
    params = {"id": run.id}
    call = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": params}
    async with ann.stream("POST", "/a2a/actor", json=call, headers=own) as stream:
        lines = stream.aiter_lines()
        assert "working" in (await anext(lines)).lower()
        expect(await ann.delete("/v1/session", headers=own), 204)
        with anyio.fail_after(60):
            assert not [line async for line in lines if line.startswith("data:")]


async def test_a_page_that_no_list_gave_out_is_the_callers_mistake(
    serve: Serve, stage: ControllableTools
) -> None:
    """In both forms of A2A: an internal error would have somebody look into our log."""
    served = await serve(stage.agent("Done."))
    client = await served.client()
    version = {"A2A-Version": "1.0"}
    call = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {"pageToken": "mine"}}
    told = expect(await client.post("/a2a/actor", json=call, headers=version), 200).json()
    assert told["error"]["code"] == -32602
    expect(await client.get("/a2a/actor/tasks?pageToken=mine", headers=version), 400)
