"""`If-Match` and `Idempotency-Key`: stale controls and repeated requests."""

import anyio
import httpx2

from midrun.models import Use
from midrun.server import Limits
from midrun.testing.controllable_tools import ControllableTools
from tests.unit.server.conftest import StartServer
from tests.unit.server.http_calls import expect_status, start_run, wait_for_phase


async def test_a_stale_if_match_is_refused_except_for_pause_and_cancel(
    serve: StartServer, stage: ControllableTools
) -> None:
    """A redirect was written for an earlier state of the run; a stop is valid in any state."""
    server = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await server.client()
    run_path = await start_run(client)
    await stage.start("x").wait()
    old_etag = (await client.get(run_path)).headers["etag"]
    message = await client.post(f"{run_path}/messages", json={"text": "Hello?"})
    fresh, stale = {"If-Match": message.headers["etag"]}, {"If-Match": old_etag}
    redirect = {"instruction": "Go left."}
    expect_status(await client.post(f"{run_path}/redirect", json=redirect, headers=stale), 412)
    expect_status(await client.post(f"{run_path}/redirect", json=redirect, headers=fresh), 202)
    expect_status(await client.patch(run_path, json={"caps": {"steps": 9}}), 428)
    expect_status(await client.post(f"{run_path}/pause", json={}, headers=stale), 202)
    expect_status(await client.post(f"{run_path}/cancel", json={}, headers=stale), 202)


async def test_progress_of_the_run_does_not_make_if_match_stale(
    serve: StartServer, stage: ControllableTools
) -> None:
    """The ETag changes with every entry, but the control revision in it does not."""
    turns = [Use("slow", name="a"), Use("quick", name="b"), Use("slow", name="c"), "Done."]
    server = await serve(stage.agent(*turns))
    client = await server.client()
    run_path = await start_run(client)
    await stage.start("a").wait()
    first = await client.get(run_path)
    stage.gate("a").set()
    await stage.start("c").wait()
    later = await client.get(run_path, headers={"If-None-Match": first.headers["etag"]})
    assert later.status_code == 200, "the view has changed"
    match = {"If-Match": first.headers["etag"]}
    response = await client.post(
        f"{run_path}/redirect", json={"instruction": "Stop."}, headers=match
    )
    expect_status(response, 202)


async def test_of_many_controls_with_one_if_match_exactly_one_is_applied(
    serve: StartServer, stage: ControllableTools
) -> None:
    """`If-Match` is compared in the append itself, also with two servers on one store."""
    server = await serve(stage.agent(Use("slow", name="x"), "Done."), limits=Limits(pending=99))
    other = await serve()  # a second server on the same store
    clients = [await server.client(), await other.client()]
    run_path = await start_run(clients[0])
    await stage.start("x").wait()
    headers = {"If-Match": (await clients[0].get(run_path)).headers["etag"]}
    replies: list[httpx2.Response] = []

    async def redirect(number: int) -> None:
        body = {"instruction": f"Course {number}."}
        client = clients[number % 2]
        replies.append(await client.post(f"{run_path}/redirect", json=body, headers=headers))

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(redirect, number)
    assert sorted(reply.status_code for reply in replies) == [202] + [412] * 19
    (pending,) = (await clients[0].get(run_path)).json()["pending"]
    (accepted,) = [reply for reply in replies if reply.status_code == 202]
    assert pending["text"] in accepted.text
    stale = next(reply for reply in replies if reply.status_code == 412).json()
    assert stale["type"] == "urn:midrun:problem:stale-revision"
    assert stale["run"]["pending"] == [pending], "a refusal shows the current run"


async def test_a_stale_control_can_be_repeated_under_the_same_key(
    serve: StartServer, stage: ControllableTools
) -> None:
    """A refusal as stale is not stored under the key."""
    server = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await server.client()
    run_path = await start_run(client)
    await stage.start("x").wait()
    old_etag = (await client.get(run_path)).headers["etag"]
    await client.post(f"{run_path}/messages", json={"text": "Hello?"})
    body, key = {"instruction": "Left."}, {"Idempotency-Key": "k"}
    for etag in (old_etag, '"999999"', '"nonsense"'):
        headers = {**key, "If-Match": etag}
        expect_status(
            await client.post(f"{run_path}/redirect", json=body, headers=headers), 412
        )
    current_headers = {**key, "If-Match": (await client.get(run_path)).headers["etag"]}
    expect_status(
        await client.post(f"{run_path}/redirect", json=body, headers=current_headers), 202
    )
    repeated = await client.post(f"{run_path}/redirect", json=body, headers=current_headers)
    assert expect_status(repeated, 200).headers["idempotency-replayed"] == "true"
    assert repeated.json()["command"]["receipt"]["applied"] is False, "the redirect still waits"


async def test_a_number_with_thousands_of_digits_is_refused(
    serve: StartServer, stage: ControllableTools
) -> None:
    """Python refuses to parse it; that must not become an internal error."""
    server = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await server.client()
    run_path, nines = await start_run(client), "9" * 5000
    body = {"instruction": "Left."}
    for etag in (f'"{nines}"', f'"{nines}.1"', f"W/{nines}"):
        headers = {"If-Match": etag}
        expect_status(
            await client.post(f"{run_path}/redirect", json=body, headers=headers), 412
        )
    expect_status(await client.get(f"{run_path}/events", headers={"Last-Event-ID": nines}), 400)
    expect_status(await client.get(f"{run_path}/events", headers={"Last-Event-ID": ""}), 200)
    for query in (f"{run_path}/events?after={nines}", f"/v1/runs?limit={nines}"):
        expect_status(await client.get(query), 400)


# ── idempotency keys ─────────────────────────────────────────────────────────


async def test_a_repeated_request_under_one_key_changes_nothing(
    serve: StartServer, stage: ControllableTools
) -> None:
    """A lost response must not start a second run or send a message twice."""
    server = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await server.client()
    key = {"Idempotency-Key": '"abc"'}
    start = {"agent": "actor", "input": "Go."}
    first = expect_status(await client.post("/v1/runs", json=start, headers=key), 201).json()
    repeated = await client.post("/v1/runs", json=start, headers=key)
    assert first["run_id"] == expect_status(repeated, 201).json()["run_id"]
    assert repeated.headers["idempotency-replayed"] == "true"
    other = await client.post("/v1/runs", json={**start, "input": "Else."}, headers=key)
    assert expect_status(other, 422).json()["reason"] == "request_id_reused"
    run_path = f"/v1/runs/{first['run_id']}"
    await stage.start("x").wait()
    message, key = {"text": "How is it going?"}, {"Idempotency-Key": "def"}
    expect_status(await client.post(f"{run_path}/messages", json=message, headers=key), 202)
    repeated = await client.post(f"{run_path}/messages", json=message, headers=key)
    assert (
        expect_status(repeated, 200).json()["command"]["receipt"]["already"]
        == "duplicate_request"
    )
    assert repeated.headers["idempotency-replayed"] == "true"
    assert len(expect_status(await client.get(run_path), 200).json()["pending"]) == 1


async def test_idempotency_keys_of_different_users_are_independent(
    serve: StartServer, stage: ControllableTools
) -> None:
    server = await serve(stage.agent("Done."))
    ann, bob = await server.client("ann"), await server.client("bob")
    key, start = {"Idempotency-Key": "k"}, {"agent": "actor", "input": "Go."}
    first = expect_status(await ann.post("/v1/runs", json=start, headers=key), 201).json()
    second = expect_status(await bob.post("/v1/runs", json=start, headers=key), 201).json()
    assert first["run_id"] != second["run_id"]


async def test_of_many_requests_under_one_key_exactly_one_creates_the_run(
    serve: StartServer, stage: ControllableTools
) -> None:
    """Two servers share the store. All other responses are marked as replayed."""
    agent = stage.agent("Done.", "Again.")
    clients = [await (await serve(agent)).client() for _ in range(2)]
    body, key = {"agent": "actor", "input": "Go."}, {"Idempotency-Key": "k"}

    async def send_concurrently(path: str, body: dict[str, str]) -> str:
        """Send one request 12 times, and return the path of the one run."""
        replies: list[httpx2.Response] = []

        async def send(client: httpx2.AsyncClient) -> None:
            replies.append(expect_status(await client.post(path, json=body, headers=key), 201))

        async with anyio.create_task_group() as tasks:
            for number in range(12):
                tasks.start_soon(send, clients[number % 2])
        replayed = [reply.headers.get("idempotency-replayed") for reply in replies]
        assert sorted(map(str, replayed)) == ["None"] + ["true"] * 11
        (run_path,) = {str(reply.headers["location"]) for reply in replies}
        return run_path

    run_path = await send_concurrently("/v1/runs", body)
    await wait_for_phase(clients[0], run_path, "terminal")
    key["Idempotency-Key"] = "another"
    assert await send_concurrently(f"{run_path}/fork", {}) != run_path


async def test_a_repeated_fork_under_one_key_is_one_run(
    serve: StartServer, stage: ControllableTools
) -> None:
    server = await serve(stage.agent("Done.", "Again."))
    client = await server.client()
    run_path = await start_run(client)
    await wait_for_phase(client, run_path, "terminal")
    key = {"Idempotency-Key": "k"}
    first = await client.post(f"{run_path}/fork", json={}, headers=key)
    second = await client.post(f"{run_path}/fork", json={}, headers=key)
    assert (
        expect_status(first, 201).headers["location"]
        == expect_status(second, 201).headers["location"]
    )
    assert "idempotency-replayed" not in first.headers
    assert second.headers["idempotency-replayed"] == "true"
    other = await client.post(f"{run_path}/fork", json={"instruction": "Else."}, headers=key)
    assert expect_status(other, 422).json()["reason"] == "request_id_reused"


async def test_an_invalid_idempotency_key_is_refused(
    serve: StartServer, stage: ControllableTools
) -> None:
    """The client relies on its key, so the server must not ignore it."""
    server = await serve(stage.agent("Done."))
    client = await server.client()
    for key in ("", '""', "with a space", "x" * 201, '"a"b"'):
        body, headers = {"agent": "actor", "input": "Go."}, {"Idempotency-Key": key}
        refused = expect_status(await client.post("/v1/runs", json=body, headers=headers), 400)
        assert refused.json()["type"] == "urn:midrun:problem:bad-idempotency-key"
    assert (await client.get("/v1/runs")).json()["items"] == []
