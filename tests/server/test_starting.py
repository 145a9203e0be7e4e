"""Starting over HTTP: what is no task, and what many that ask for the same are told."""

import re

import anyio
import httpx2
import msgspec

from midrun.server.openapi import openapi
from tests.runtime.stage import Stage
from tests.server.calling import expect, reached
from tests.server.conftest import Serve
from tests.server.defences import entries_of


async def test_a_task_that_says_nothing_is_none(serve: Serve, stage: Stage) -> None:
    """Nobody means that, and the description says so."""
    served = await serve(stage.agent("Done."))
    client = await served.client()
    schemas = msgspec.json.decode(openapi())["components"]["schemas"]
    for task in ("", " \n\t", "\u00a0\u2003", "\x1c"):
        refused = await client.post("/v1/runs", json={"agent": "actor", "input": task})
        problem = expect(refused, 422).json()
        assert problem["detail"] == "task: it is empty; say what is to be done"
        assert not re.search(schemas["StartBody"]["properties"]["input"]["pattern"], task)
    assert await entries_of(served) == 0


async def test_of_many_that_ask_for_the_same_at_once_one_began_it(
    serve: Serve, stage: Stage
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
