"""Asks over HTTP: the lists of open asks, and decisions on them."""

from datetime import timedelta

from httpx2 import AsyncClient

from midrun import Agent, ask_human, tool
from midrun.models import ScriptedModel, Use
from midrun.stops import MaxSteps
from midrun.testing.controllable_tools import ControllableTools
from tests.unit.server.conftest import StartServer
from tests.unit.server.http_calls import expect_status, start_run, wait_for_phase


async def test_an_ask_is_answered_once_by_its_reference(serve: StartServer) -> None:
    """The client sends the reference and a decision; the question is in the journal."""
    model = ScriptedModel([Use("ask_human", question="Which one?"), "Done."])
    server = await serve(Agent("asker", model=model, tools=[ask_human]))
    client = await server.client()
    run_path = await start_run(client, "asker")
    await wait_for_phase(client, run_path, "waiting")
    (ask,) = expect_status(await client.get("/v1/asks"), 200).json()["items"]
    assert (ask["question"], ask["may_decide"]) == ("Which one?", True)
    assert expect_status(await client.get("/v1/approvals"), 200).json()["items"] == []
    decision = {"decision": "answer", "value": "the left"}
    path = f"/v1/asks/{ask['ref']}"
    expect_status(await client.post(path, json=decision), 202)
    repeated = expect_status(await client.post(path, json=decision), 409).json()
    assert repeated["by"] == "olga"
    final = await wait_for_phase(client, run_path, "terminal")
    assert final.json()["phase"] == "completed"


async def start_run_that_asks_for_approval(
    serve: StartServer, recipients: list[str]
) -> tuple[AsyncClient, str, str]:
    """Start a run that needs approval; return a client, the run's path and the ask's path."""

    @tool(approve=True)
    async def send(to: str) -> str:
        """Send a letter."""
        recipients.append(to)
        return "sent"

    model = ScriptedModel([Use("send", to="a"), "."])
    client = await (await serve(Agent("clerk", model=model, tools=[send]))).client()
    run_path = await start_run(client, "clerk")
    await wait_for_phase(client, run_path, "waiting")
    (ask,) = expect_status(await client.get("/v1/approvals"), 200).json()["items"]
    return client, run_path, f"/v1/approvals/{ask['ref']}"


async def test_an_approval_with_edited_arguments_uses_them(serve: StartServer) -> None:
    """Arguments that do not fit the tool are refused first."""
    recipients: list[str] = []
    client, run_path, path = await start_run_that_asks_for_approval(serve, recipients)
    unknown_argument = {"decision": "edit", "args": {"unknown": 1}}
    assert (
        expect_status(await client.post(path, json=unknown_argument), 422).json()["reason"]
        == "bad_arguments"
    )
    expect_status(await client.post(path, json={"decision": "edit", "args": {"to": "b"}}), 202)
    await wait_for_phase(client, run_path, "terminal")
    assert recipients == ["b"]


async def test_a_user_cannot_raise_the_cap_of_a_child_run_by_an_answer(
    serve: StartServer, stage: ControllableTools
) -> None:
    """PATCH and resume refuse it; an answer on the parent must not get around them."""
    turns = (Use("quick", name="x"), "Found.")
    aide = stage.agent(*turns, name="aide", stop=MaxSteps(1))
    model = ScriptedModel([Use("aide", task="Do"), "Done."])
    server = await serve(Agent("parent", model=model, tools=[aide.as_tool()]))
    client, ann = await server.client(), await server.client("ann")
    run_path = await start_run(ann, "parent")
    await wait_for_phase(ann, run_path, "waiting")
    (ask,) = expect_status(await ann.get("/v1/asks"), 200).json()["items"]
    assert (ask["audience"], ask["may_decide"]) == ("operator", False)
    decision = {"decision": "answer", "value": {"steps": 1000}}
    expect_status(await ann.post(f"/v1/asks/{ask['ref']}", json=decision), 403)
    expect_status(await client.post(f"/v1/asks/{ask['ref']}", json=decision), 202)
    assert (await wait_for_phase(ann, run_path, "terminal")).json()["phase"] == "completed"


async def test_an_ambiguous_decision_is_refused(serve: StartServer) -> None:
    """An approval with other arguments does not mean the arguments that were asked about."""
    recipients: list[str] = []
    client, run_path, path = await start_run_that_asks_for_approval(serve, recipients)
    for body in (
        {"decision": "approve", "args": {"to": "b"}},
        {"decision": "decline", "args": {"to": "b"}},
        {"decision": "edit"},
        {"decision": "approve", "value": True},
    ):
        problem = expect_status(await client.post(path, json=body), 422).json()
        assert problem["type"] == "urn:midrun:problem:invalid-body"
        assert problem["run"]["phase"] == "waiting"
    unknown = expect_status(
        await client.post("/v1/asks/a1", json={"decision": "approve"}), 404
    ).json()
    assert unknown["type"] == "urn:midrun:problem:ask-not-found"
    expect_status(await client.post(path, json={"decision": "approve"}), 202)
    await wait_for_phase(client, run_path, "terminal")
    assert recipients == ["a"]


async def test_a_decision_is_refused_if_the_ask_expired_or_the_run_changed(
    serve: StartServer, stage: ControllableTools
) -> None:
    """410: the ask has expired. 412: the client has to read the run again."""
    expires_after = timedelta(microseconds=1)
    tools = [
        tool(stage._quick, name="guarded", approve=True),
        tool(stage._quick, name="brief", approve=True, expires=expires_after),
    ]
    model = ScriptedModel([Use("brief", name="a"), Use("guarded", name="b"), "Done."])
    server = await serve(Agent("actor", model=model, tools=tools))
    client = await server.client()
    run_path = await start_run(client)
    while True:
        asks = (await client.get("/v1/asks")).json()["items"]
        if [ask["tool"] for ask in asks] == ["guarded"]:
            break
        await wait_for_phase(client, run_path, "waiting")
    approval = {"decision": "approve"}
    run = run_path.rpartition("/")[2]
    problem = expect_status(await client.post(f"/v1/asks/{run}-a1", json=approval), 410).json()
    assert problem["type"] == "urn:midrun:problem:ask-expired"
    assert problem["run"]["run_id"] == run
    path, stale = f"/v1/asks/{asks[0]['ref']}", {"If-Match": '"1.1"'}
    expect_status(await client.post(path, json=approval, headers=stale), 412)
    fresh = {"If-Match": (await client.get(run_path)).headers["etag"]}
    expect_status(await client.post(path, json=approval, headers=fresh), 202)
    await wait_for_phase(client, run_path, "terminal")
    assert stage.completed == ["b"]
