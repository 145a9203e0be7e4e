"""Requests that depend on what was seen, or come twice: the journal decides, not the moment."""

from datetime import UTC, datetime

import anyio
import httpx2

from midrun import Agent, Midrun, ask_human
from midrun.core.entries import MessageReceived, PauseWithdrawn
from midrun.models import ScriptedModel, Use
from midrun.server import Limits
from tests.unit.runs.stage import ControllableTools
from tests.unit.server.calling import expect, reached, start_run
from tests.unit.server.conftest import KEY, Serve


async def test_of_a_crowd_that_saw_the_same_one_is_heard(
    serve: Serve, stage: ControllableTools
) -> None:
    """`If-Match` holds in the very append: nobody slips in between the look and the write."""
    served = await serve(stage.agent(Use("slow", name="x"), "Done."), limits=Limits(pending=99))
    other = await serve()  # a second server on the same store
    clients = [await served.client(), await other.client()]
    where = await start_run(clients[0])
    await stage.start("x").wait()
    match = {"If-Match": (await clients[0].get(where)).headers["etag"]}
    replies: list[httpx2.Response] = []

    async def redirect(number: int) -> None:
        said = {"instruction": f"Course {number}."}
        client = clients[number % 2]
        replies.append(await client.post(f"{where}/redirect", json=said, headers=match))

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(redirect, number)
    assert sorted(reply.status_code for reply in replies) == [202] + [412] * 19
    (kept,) = (await clients[0].get(where)).json()["pending"]
    (heard,) = [reply for reply in replies if reply.status_code == 202]
    assert kept["text"] in heard.text
    late = next(reply for reply in replies if reply.status_code == 412).json()
    assert late["type"] == "urn:midrun:problem:stale-revision"
    assert late["run"]["pending"] == [kept], "whoever was late can repaint at once"


async def test_one_who_was_late_looks_again_and_asks_again_under_the_same_key(
    serve: Serve, stage: ControllableTools
) -> None:
    """A refusal as stale is not what the key will be told for ever."""
    served = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await served.client()
    where = await start_run(client)
    await stage.start("x").wait()
    seen = (await client.get(where)).headers["etag"]
    await client.post(f"{where}/messages", json={"text": "Hello?"})
    course, key = {"instruction": "Left."}, {"Idempotency-Key": "k"}
    for tag in (seen, '"999999"', '"nonsense"'):
        headers = {**key, "If-Match": tag}
        expect(await client.post(f"{where}/redirect", json=course, headers=headers), 412)
    fresh = {**key, "If-Match": (await client.get(where)).headers["etag"]}
    expect(await client.post(f"{where}/redirect", json=course, headers=fresh), 202)
    again = await client.post(f"{where}/redirect", json=course, headers=fresh)
    assert expect(again, 200).headers["idempotency-replayed"] == "true"
    assert again.json()["command"]["receipt"]["applied"] is False, "it still waits"


async def test_of_many_words_at_once_no_more_get_in_than_there_is_room_for(
    serve: Serve, stage: ControllableTools
) -> None:
    """And who was let in, and lost the reply, is told so, though there is no room any more."""
    served = await serve(stage.agent(Use("slow", name="x"), "Done."), limits=Limits(pending=3))
    client = await served.client()
    where = await start_run(client)
    await stage.start("x").wait()
    replies: dict[int, int] = {}

    async def say(number: int) -> None:
        said, key = {"text": f"{number}", "urgency": "later"}, {"Idempotency-Key": f"{number}"}
        reply = await client.post(f"{where}/messages", json=said, headers=key)
        replies[number] = reply.status_code

    for least in (202, 200):
        async with anyio.create_task_group() as tasks:
            for number in range(12):
                tasks.start_soon(say, number)
        assert sorted(replies.values()) == [least] * 3 + [429] * 9
    assert len((await client.get(where)).json()["pending"]) == 3


async def test_of_many_words_to_two_servers_no_more_get_in_than_there_is_room_for(
    serve: Serve, stage: ControllableTools
) -> None:
    """Neither knows what the other lets in but from the journal, where there is one order."""
    one = await serve(stage.agent(Use("slow", name="x"), "Done."))
    other = await serve()
    clients = [await one.client(), await other.client()]
    where = await start_run(clients[0])
    await stage.start("x").wait()
    replies: list[int] = []

    async def speak(number: int) -> None:
        client, course = clients[number % 2], {"instruction": f"{number}"}
        said = {"text": f"{number}", "urgency": "later"}
        path, body = ("messages", said) if number % 3 else ("redirect", course)
        replies.append((await client.post(f"{where}/{path}", json=body)).status_code)

    async with anyio.create_task_group() as tasks:
        for number in range(30):
            tasks.start_soon(speak, number)
    waiting = (await clients[0].get(where)).json()["pending"]
    assert (replies.count(202), replies.count(429)) == (8, 22)
    assert len(waiting) == 8


async def test_a_number_that_is_longer_than_any_is_none(
    serve: Serve, stage: ControllableTools
) -> None:
    """Python itself refuses to read it, and that must not be our failure."""
    served = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await served.client()
    where, nines = await start_run(client), "9" * 5000
    course = {"instruction": "Left."}
    for tag in (f'"{nines}"', f'"{nines}.1"', f"W/{nines}"):
        match = {"If-Match": tag}
        expect(await client.post(f"{where}/redirect", json=course, headers=match), 412)
    expect(await client.get(f"{where}/events", headers={"Last-Event-ID": nines}), 400)
    expect(await client.get(f"{where}/events", headers={"Last-Event-ID": ""}), 200)
    for query in (f"{where}/events?after={nines}", f"/v1/runs?limit={nines}"):
        expect(await client.get(query), 400)


async def test_a_list_may_be_asked_for_a_phase_after_the_other(
    serve: Serve, stage: ControllableTools
) -> None:
    """As the other half of the world writes it: neither is passed over."""
    served = await serve(stage.agent("Done."))
    client = await served.client()
    await reached(client, await start_run(client), "terminal")
    for query in ("phase=completed&phase=paused", "state=paused&state=completed,failed"):
        found = expect(await client.get(f"/v1/runs?{query}"), 200).json()
        assert len(found["items"]) == 1, query
    expect(await client.get("/v1/runs?phase=paused&phase=nonsense"), 400)


async def test_a_fork_under_one_key_is_one_run(serve: Serve, stage: ControllableTools) -> None:
    """Also if the run has gone on meanwhile."""
    served = await serve(stage.agent("Done.", "Again."))
    client = await served.client()
    where = await start_run(client)
    await reached(client, where, "terminal")
    key = {"Idempotency-Key": "k"}
    first = await client.post(f"{where}/fork", json={}, headers=key)
    second = await client.post(f"{where}/fork", json={}, headers=key)
    assert expect(first, 201).headers["location"] == expect(second, 201).headers["location"]
    assert "idempotency-replayed" not in first.headers
    assert second.headers["idempotency-replayed"] == "true"
    other = await client.post(f"{where}/fork", json={"instruction": "Else."}, headers=key)
    assert expect(other, 422).json()["reason"] == "request_id_reused"


async def test_every_boundary_that_is_listed_can_be_continued_from_and_no_other_seq(
    serve: Serve, stage: ControllableTools
) -> None:
    """The last entry of each stretch; what was told of it is where the fork says it is from."""
    served = await serve(stage.agent(Use("draft", name="x"), Use("draft", name="y"), "Done."))
    client = await served.client()
    where = await start_run(client)
    ended = (await reached(client, where, "terminal")).json()
    listed = expect(await client.get(f"{where}/boundaries"), 200).json()["items"]
    assert [item["step"] for item in listed] == [0, 1, 2, 3]
    assert (listed[-1]["seq"], listed[-1]["phase"]) == (ended["seq"], "completed")
    could = set()
    for seq in range(1, ended["seq"] + 1):
        made = await client.post(f"{where}/fork", json={"seq": seq})
        if made.status_code == 201:
            could.add(seq)
        else:
            assert expect(made, 409).json()["reason"] == "not_a_boundary"
    assert {item["seq"] for item in listed} <= could
    assert {seq for seq in could if seq + 1 not in could} == {item["seq"] for item in listed}


async def test_a_whole_number_may_be_written_with_a_point(
    serve: Serve, stage: ControllableTools
) -> None:
    """To JSON Schema 5.0 is an integer, and some languages have no other numbers.

    What is somebody's data stays as it was said.
    """
    served = await serve(stage.agent("Done."))
    client = await served.client()
    told = {"agent": "actor", "input": "Go."}
    either = [{"stop": "MaxSteps", "n": 5.0}, {"stop": "MaxTime", "seconds": 1.5}]
    for more in ({"caps": {"steps": 5.0}}, {"stop": {"stop": "AnyOf", "parts": either}}):
        made = expect(await client.post("/v1/runs", json=told | more), 201)
        assert made.json()["caps"][0]["cap"] == 5
    where = await start_run(client)
    expect(await client.post(f"{where}/fork", json={"seq": 1.0}), 201)
    for wrong in (
        {"caps": {"steps": 5.5}},
        {"caps": {"steps": 1e300}},
        {"caps": {"steps": "5"}},
    ):
        expect(await client.post("/v1/runs", json=told | wrong), 422)


async def test_a_checkpoint_is_brought_by_an_operator(serve: Serve) -> None:
    """It says who did what, and is believed: that is not for everybody to bring."""
    model = ScriptedModel([Use("ask_human", question="Which?"), "Done."])
    agent = Agent("asker", model=model, tools=[ask_human])
    served = await serve(agent)
    client, ann = await served.client(), await served.client("ann")
    async with Midrun("memory://", agents=[agent], key=KEY) as elsewhere:
        run = await elsewhere.start("asker", "Go.", actor="ann")
        await run.until("waiting")
        checkpoint = (await run.checkpoint()).to_json()
    body = f'{{"checkpoint":{checkpoint},"answer":"left"}}'
    headers = {"Content-Type": "application/json", "Idempotency-Key": "k"}
    expect(await ann.post("/v1/resume", content=body, headers=headers), 403)
    for _ in range(2):
        made = await client.post("/v1/resume", content=body, headers=headers)
        assert expect(made, 201).headers["location"] == f"/v1/runs/{run.id}"
    ended = await reached(client, f"/v1/runs/{run.id}", "terminal")
    assert (ended.json()["phase"], ended.json()["started_by"]) == ("completed", "ann")
    stale = await client.post("/v1/resume", content=body, headers={**headers, **_key("other")})
    assert expect(stale, 409).json()["args"][0] == "stale_checkpoint"
    tampered = body.replace('"task":"Go."', '"task":"Stop."').replace("Go.", "No.")
    forged = await client.post("/v1/resume", content=tampered, headers=headers)
    assert expect(forged, 409).json()["args"][0] == "checkpoint_invalid"


def _key(name: str) -> dict[str, str]:
    return {"Idempotency-Key": name}


async def test_why_and_when_are_kept_wherever_they_can_be_said(
    serve: Serve, stage: ControllableTools
) -> None:
    """Also by what has no body, and of what is said for another day."""
    served = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await served.client()
    where = await start_run(client)
    await stage.start("x").wait()
    at = datetime(2099, 1, 2, 3, 4, 5, 600, tzinfo=UTC)
    said = {"text": "Happy new year.", "at": at.isoformat(), "reason": "a custom"}
    expect(await client.post(f"{where}/messages", json=said), 202)
    told = expect(await client.post(f"{where}/pause", json={}), 202).json()
    command = f"{where}/commands/{told['command']['id']}"
    expect(await client.delete(command, params={"reason": "x" * 1001}), 400)
    expect(await client.delete(command, params={"reason": "no need"}), 202)
    records = await served.mid.store.read(where.rpartition("/")[2])  # type: ignore[arg-type]  # an id
    message = next(r.entry for r in records if isinstance(r.entry, MessageReceived))
    assert (message.reason, message.due) == ("a custom", round(at.timestamp() * 1e6))
    withdrawn = next(r.entry for r in records if isinstance(r.entry, PauseWithdrawn))
    assert withdrawn.reason == "no need"


async def test_a_phase_that_lasts_for_a_moment_is_not_overlooked(
    serve: Serve, stage: ControllableTools
) -> None:
    """Whoever waits for it is shown the run as it was then, however quickly it went on."""
    served = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await served.client()
    where = await start_run(client)
    await stage.start("x").wait()
    found: list[httpx2.Response] = []

    async def wait() -> None:
        found.append(await reached(client, where, "pausing"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        while not served.mid._service.live.is_watched(where.rpartition("/")[2]):  # type: ignore[arg-type]  # an id
            await anyio.lowlevel.checkpoint()
        expect(await client.post(f"{where}/pause", json={"mode": "now"}), 202)
    assert found[0].json()["phase"] == "pausing"


async def test_lists_take_the_other_word_for_a_phase(
    serve: Serve, stage: ControllableTools
) -> None:
    """The wire has said *state* before, and clients remember."""
    served = await serve(stage.agent("Done."))
    client = await served.client()
    await reached(client, await start_run(client), "terminal")
    for word in ("phase", "state"):
        page = expect(await client.get("/v1/runs", params={word: "completed"}), 200).json()
        assert len(page["items"]) == 1
        none = expect(await client.get("/v1/runs", params={word: "paused"}), 200).json()
        assert none["items"] == []
        assert page["counts"] == {"completed": 1}
