"""Asks over HTTP: what waits for a person, and what they decide."""

from httpx2 import AsyncClient

from midrun import Agent, ask_human, tool
from midrun.models import ScriptedModel, Use
from midrun.stops import MaxSteps
from tests.unit.runs.stage import ControllableTools
from tests.unit.server.calling import expect, reached, start_run
from tests.unit.server.conftest import Serve


async def test_a_run_that_asks_is_answered_by_reference(serve: Serve) -> None:
    """The client sends an id and a decision; what was asked is in the journal."""
    model = ScriptedModel([Use("ask_human", question="Which one?"), "Done."])
    served = await serve(Agent("asker", model=model, tools=[ask_human]))
    client = await served.client()
    where = await start_run(client, "asker")
    await reached(client, where, "waiting")
    (ask,) = expect(await client.get("/v1/asks"), 200).json()["items"]
    assert (ask["question"], ask["may_decide"]) == ("Which one?", True)
    assert expect(await client.get("/v1/approvals"), 200).json()["items"] == []
    decided = {"decision": "answer", "value": "the left"}
    path = f"/v1/asks/{ask['ref']}"
    expect(await client.post(path, json=decided), 202)
    second = expect(await client.post(path, json=decided), 409).json()
    assert second["by"] == "olga"
    ended = await reached(client, where, "terminal")
    assert ended.json()["phase"] == "completed"


async def waiting_to_send(serve: Serve, made: list[str]) -> tuple[AsyncClient, str, str]:
    """Start a run that asks before it writes to `made`; return where it, and its ask, are."""

    @tool(approve=True)
    async def send(to: str) -> str:
        """Send a letter."""
        made.append(to)
        return "sent"

    model = ScriptedModel([Use("send", to="a"), "."])
    client = await (await serve(Agent("clerk", model=model, tools=[send]))).client()
    where = await start_run(client, "clerk")
    await reached(client, where, "waiting")
    (ask,) = expect(await client.get("/v1/approvals"), 200).json()["items"]
    return client, where, f"/v1/approvals/{ask['ref']}"


async def test_an_approval_is_given_once_with_edited_arguments(serve: Serve) -> None:
    """What is approved is what is made, and nobody approves it twice."""
    made: list[str] = []
    client, where, path = await waiting_to_send(serve, made)
    bad = {"decision": "edit", "args": {"nobody": 1}}
    assert expect(await client.post(path, json=bad), 422).json()["reason"] == "bad_arguments"
    expect(await client.post(path, json={"decision": "edit", "args": {"to": "b"}}), 202)
    await reached(client, where, "terminal")
    assert made == ["b"]


async def test_a_user_raises_no_cap_of_a_child_by_an_answer(
    serve: Serve, stage: ControllableTools
) -> None:
    """PATCH and resume refuse it; the answer on the parent is no way round."""
    turns = (Use("quick", name="x"), "Found.")
    aide = stage.agent(*turns, name="aide", stop=MaxSteps(1))
    model = ScriptedModel([Use("aide", task="Do"), "Done."])
    served = await serve(Agent("parent", model=model, tools=[aide.as_tool()]))
    client, ann = await served.client(), await served.client("ann")
    where = await start_run(ann, "parent")
    await reached(ann, where, "waiting")
    (ask,) = expect(await ann.get("/v1/asks"), 200).json()["items"]
    assert (ask["audience"], ask["may_decide"]) == ("operator", False)
    raised = {"decision": "answer", "value": {"steps": 1000}}
    expect(await ann.post(f"/v1/asks/{ask['ref']}", json=raised), 403)
    expect(await client.post(f"/v1/asks/{ask['ref']}", json=raised), 202)
    assert (await reached(ann, where, "terminal")).json()["phase"] == "completed"


async def test_a_decision_that_could_be_read_in_two_ways_is_none(serve: Serve) -> None:
    """Whoever sends other arguments does not mean those that were asked about."""
    made: list[str] = []
    client, where, path = await waiting_to_send(serve, made)
    for body in (
        {"decision": "approve", "args": {"to": "b"}},
        {"decision": "decline", "args": {"to": "b"}},
        {"decision": "edit"},
        {"decision": "approve", "value": True},
    ):
        refused = expect(await client.post(path, json=body), 422).json()
        assert refused["type"] == "urn:midrun:problem:invalid-body"
        assert refused["run"]["phase"] == "waiting"
    nobodys = expect(await client.post("/v1/asks/a1", json={"decision": "approve"}), 404).json()
    assert nobodys["type"] == "urn:midrun:problem:ask-not-found"
    expect(await client.post(path, json={"decision": "approve"}), 202)
    await reached(client, where, "terminal")
    assert made == ["a"]
