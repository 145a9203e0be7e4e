"""Starting over HTTP: what is no task, and what many that ask for the same are told."""

import re

import anyio
import httpx2
import msgspec
import pytest

from midrun.server import Limits, Quota
from midrun.server.openapi import make_openapi
from tests.unit.runs.stage import ControllableTools, Use
from tests.unit.server.calling import expect, reached
from tests.unit.server.conftest import Serve
from tests.unit.server.defences import entries_of


async def test_a_task_that_says_nothing_is_none(serve: Serve, stage: ControllableTools) -> None:
    """Nobody means that, and the description says so."""
    served = await serve(stage.agent("Done."))
    client = await served.client()
    schemas = msgspec.json.decode(make_openapi())["components"]["schemas"]
    for task in ("", " \n\t", "\u00a0\u2003", "\x1c"):
        refused = await client.post("/v1/runs", json={"agent": "actor", "input": task})
        problem = expect(refused, 422).json()
        assert problem["detail"] == "task must not be empty; describe the work"
        assert not re.search(schemas["StartBody"]["properties"]["input"]["pattern"], task)
    assert await entries_of(served) == 0


async def test_of_many_that_ask_for_the_same_at_once_one_began_it(
    serve: Serve, stage: ControllableTools
) -> None:
    """By two servers on one store: each of the others is told that it had been asked for."""
    agent = stage.agent("Done.", "Again.")
    clients = [await (await serve(agent)).client() for _ in range(2)]
    body, key = {"agent": "actor", "input": "Go."}, {"Idempotency-Key": "k"}

    async def all_at_once(path: str, body: dict[str, str]) -> str:
        """Have everybody ask for it, and return where the one run is."""
        replies: list[httpx2.Response] = []

        async def ask(client: httpx2.AsyncClient) -> None:
            replies.append(expect(await client.post(path, json=body, headers=key), 201))

        async with anyio.create_task_group() as tasks:
            for number in range(12):
                tasks.start_soon(ask, clients[number % 2])
        replayed = [reply.headers.get("idempotency-replayed") for reply in replies]
        assert sorted(map(str, replayed)) == ["None"] + ["true"] * 11
        (where,) = {str(reply.headers["location"]) for reply in replies}
        return where

    where = await all_at_once("/v1/runs", body)
    await reached(clients[0], where, "terminal")
    key["Idempotency-Key"] = "another"
    assert await all_at_once(f"{where}/fork", {}) != where


@pytest.mark.parametrize(
    ("quota", "excess"),
    [
        (Quota(open_runs=1), "open_runs is at 1 of 1"),
        (Quota(runs_per_day=1), "runs_per_day is at 1 of 1"),
        (Quota(tokens_per_day=0), "tokens_per_day is at"),
        (Quota(cost_per_day=0.0), "cost_per_day is at"),
        (Quota(stored_bytes=10, open_runs=9), "stored_bytes is at"),
    ],
)
async def test_a_user_whose_quota_is_used_up_starts_nothing(
    serve: Serve, stage: ControllableTools, quota: Quota, excess: str
) -> None:
    held = stage.agent(Use("slow", name="held"), "Done.")
    served = await serve(held, limits=Limits(quota=quota))
    first = await served.mid.start("actor", "Go.", actor="ann")
    await stage.start("held").wait()
    ann = await served.client("ann")
    body = {"agent": "actor", "input": "Go."}
    problem = expect(await ann.post("/v1/runs", json=body), 429).json()
    assert problem["type"] == "urn:midrun:problem:quota-used-up"
    assert excess in problem["detail"]
    expect(await ann.post(f"/v1/runs/{first.id}/fork", json={}), 429)
    expect(await (await served.client("olga")).post("/v1/runs", json=body), 201)


async def test_a_repeated_request_finds_its_run_although_the_quota_is_used_up(
    serve: Serve, stage: ControllableTools
) -> None:
    quota = Quota(runs_per_day=1)
    served = await serve(stage.agent("Done."), limits=Limits(quota=quota))
    ann = await served.client("ann")
    body, key = {"agent": "actor", "input": "Go."}, {"Idempotency-Key": "k"}
    first = expect(await ann.post("/v1/runs", json=body, headers=key), 201)
    again = expect(await ann.post("/v1/runs", json=body, headers=key), 201)
    assert again.json()["run_id"] == first.json()["run_id"]
    expect(await ann.post("/v1/runs", json=body), 429)


async def test_a_key_of_another_run_lets_no_message_of_a_bridge_past_the_quota(
    serve: Serve, stage: ControllableTools
) -> None:
    """The bridges have request ids of their own: repeats of these are let through."""
    limits = Limits(quota=Quota(runs_per_day=1))
    served = await serve(stage.agent("Done.", "Done."), limits=limits)
    ann = await served.client("ann")
    key = {"Idempotency-Key": "k", "A2A-Version": "1.0"}
    body = {"agent": "actor", "input": "Go."}
    expect(await ann.post("/v1/runs", json=body, headers=key), 201)

    said = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Go."}]}
    call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": said}}
    refused = expect(await ann.post("/a2a/actor", json=call, headers=key), 200).json()
    assert "quota of user ann is used up" in refused["error"]["message"]
    message = {"id": "m", "role": "user", "content": "Go."}
    segment = {"threadId": "t", "runId": "r", "messages": [message]}
    expect(await ann.post("/agui/actor", json=segment, headers=key), 429)


async def test_a_repeated_message_of_a_bridge_finds_its_run_although_the_quota_is_used_up(
    serve: Serve, stage: ControllableTools
) -> None:
    limits = Limits(quota=Quota(runs_per_day=1))
    served = await serve(stage.agent("Done."), limits=limits)
    ann = await served.client("ann")
    said = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Go."}]}
    call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": said}}
    first, again = [
        expect(await ann.post("/a2a/actor", json=call, headers={"A2A-Version": "1.0"}), 200)
        for _ in range(2)
    ]
    assert again.json()["result"]["task"]["id"] == first.json()["result"]["task"]["id"]
