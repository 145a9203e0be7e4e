"""What the address space promises in passing: small things that clients come to rely on."""

from datetime import timedelta

import pytest

from midrun import Agent, tool
from midrun.core.entries import RunStarted
from midrun.core.ids import RunId
from midrun.errors import StoreBusy, StoreUnreachable
from midrun.models import ScriptedModel, Use
from midrun.server import Limits
from midrun.server.problem_details import to_problem
from tests.unit.runs.stage import ControllableTools
from tests.unit.server.calling import expect, reached, start_run
from tests.unit.server.conftest import Serve
from tests.unit.server.listening import heard

# ── looking ──────────────────────────────────────────────────────────────────


async def test_a_list_is_of_those_that_were_asked_for(
    serve: Serve, stage: ControllableTools
) -> None:
    """By each thing that it can be asked by, and by several."""
    guarded = tool(stage._quick, name="guarded", approve=True)
    asks = ScriptedModel([Use("guarded", name="x"), "."])
    waits = Agent("waits", model=asks, tools=[guarded])
    served = await serve(stage.agent("Done."), waits)
    client = await served.client()
    made: dict[str, str] = {}
    for agent in ("actor", "waits"):
        body = {"agent": agent, "input": "Go.", "labels": [f"by {agent}"], "thread_id": agent}
        where = expect(await client.post("/v1/runs", json=body), 201).headers["location"]
        await reached(client, where, "terminal,waiting")
        made[agent] = where.rpartition("/")[2]

    async def found(query: str) -> list[str]:
        items = expect(await client.get(f"/v1/runs?{query}"), 200).json()["items"]
        return [item["run_id"] for item in items]

    for query in ("agent={0}", "label=by {0}", "thread={0}", "agent={0}&label=by {0}"):
        for agent, run in made.items():
            assert await found(query.format(agent)) == [run], query
    assert await found("agent=actor&label=by waits") == []
    assert await found("attention=true") == [made["waits"]]
    assert await found("phase=waiting,paused") == [made["waits"]]
    assert await found("limit=1") == [made["waits"]], "the newest first"
    assert sorted(await found("attention=false")) == sorted(made.values())
    expect(await client.get("/v1/runs?attention=maybe"), 400)


async def test_nobody_is_kept_waiting_for_longer_than_the_server_will(
    serve: Serve, stage: ControllableTools
) -> None:
    """However long they would, and they are told so."""
    limits = Limits(wait=0.05)
    served = await serve(stage.agent(Use("slow", name="x"), "."), limits=limits)
    client = await served.client()
    where = await start_run(client)
    looked = await client.get(f"{where}?until=paused", headers={"Prefer": "wait=3600"})
    assert expect(looked, 200).headers["preference-applied"] == "wait=0.05"


async def test_last_event_id_counts_before_the_query_and_a_stream_has_what_was_asked_for(
    serve: Serve, stage: ControllableTools
) -> None:
    """A browser sends the one with the address that it first went to, and its query."""
    served = await serve(stage.agent(Use("quick", name="a"), "Some words."))
    client = await served.client()
    where = await start_run(client)
    ended = (await reached(client, where, "terminal")).json()["seq"]
    async with heard(client, f"{where}/events?after=1", last=ended - 1) as events:
        assert [event.id async for event in events] == [str(ended), None]
    async with heard(client, f"{where}/events?types=run.created,run.completed") as events:
        kinds = [event.event async for event in events]
    assert kinds == ["run.created", "run.completed", "stream.end"]


async def test_the_stream_of_a_list_is_of_those_that_were_asked_for(
    serve: Serve, stage: ControllableTools
) -> None:
    """Whoever shows one agent is not told of the others."""
    served = await serve(stage.agent("Done."), stage.agent("Done.", name="other"))
    client = await served.client()
    await reached(client, await start_run(client), "terminal")
    async with heard(client, "/v1/events?agent=other") as events:
        assert (await anext(events)).data == []
        await reached(client, await start_run(client), "terminal")
        where = await start_run(client, "other")
        told = (await anext(events)).data
    assert isinstance(told, dict)
    assert told["run_id"] == where.rpartition("/")[2]


async def test_the_description_is_where_people_look(
    serve: Serve, stage: ControllableTools
) -> None:
    """Under the name that the protocol has for it, too."""
    served = await serve(stage.agent("Done."))
    client = await served.client()
    one, other = [await client.get(path) for path in ("/openapi.json", "/v1/openapi.json")]
    assert expect(one, 200).json() == expect(other, 200).json()


# ── controls ─────────────────────────────────────────────────────────────────


async def test_whoever_changes_something_is_shown_the_run_and_its_revision(
    serve: Serve, stage: ControllableTools
) -> None:
    """So the next control is about what was seen, and nobody has to look in between."""
    served = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await served.client()
    made = await client.post("/v1/runs", json={"agent": "actor", "input": "Go."})
    where, tag = made.headers["location"], expect(made, 201).headers["etag"]
    await stage.start("x").wait()
    for name, body in (
        ("messages", {"text": "Hello?", "urgency": "later"}),
        ("redirect", {"instruction": "Left."}),
        ("pause", {"reason": "lunch"}),
        ("resume", {}),
        ("cancel", {}),
    ):
        match = {"If-Match": tag}
        told = expect(await client.post(f"{where}/{name}", json=body, headers=match), 202)
        tag, run = told.headers["etag"], told.json()["run"]
        assert tag.startswith(f'"{run["control_rev"]}.')
        assert run["seq"] >= told.json()["command"]["receipt"]["seq"]
        assert len(run["head_hash"]) == 64


async def test_a_pause_that_is_held_ends_by_itself(
    serve: Serve, stage: ControllableTools
) -> None:
    """Nobody has to come back to a run that was only held while they thought."""
    served = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await served.client()
    where = await start_run(client)
    await stage.start("x").wait()
    for wrong in (0, -1, 1e9, "soon"):
        expect(await client.post(f"{where}/pause", json={"hold_s": wrong}), 422)
    expect(await client.post(f"{where}/pause", json={"hold_s": 0.01}), 202)
    stage.gate("x").set()
    assert (await reached(client, where, "terminal")).json()["phase"] == "completed"
    asked = (await client.get(f"{where}/commands")).json()["items"]
    assert [(c["kind"], c["by"]) for c in asked] == [
        ("pause", "olga"),
        ("resume", "system:clock"),
    ]


async def test_a_resume_withdraws_a_pause_that_pends_and_loses_nobodys_words(
    serve: Serve, stage: ControllableTools
) -> None:
    """Running already, a bare one changes nothing; one with words is refused by name."""
    served = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await served.client()
    where = await start_run(client)
    await stage.start("x").wait()
    paused = expect(await client.post(f"{where}/pause", json={}), 202).json()["command"]["id"]
    told = expect(await client.post(f"{where}/resume", json={}), 202).json()
    assert told["run"]["phase"] == "running"
    fate = expect(await client.get(f"{where}/commands/{paused}"), 200).json()
    assert fate["status"] == "withdrawn"
    again = expect(await client.post(f"{where}/resume", json={}), 200).json()
    assert again["command"]["receipt"]["already"] == "already_running"
    refused = await client.post(f"{where}/resume", json={"instruction": "Be brief."})
    problem = expect(refused, 409).json()
    assert (problem["reason"], problem["phase"]) == ("not_paused", "running")
    assert problem["control"] == "resume"
    assert "redirect" in problem["allowed"], "where the words would go"


async def test_a_redirect_of_a_paused_run_is_one_command(
    serve: Serve, stage: ControllableTools
) -> None:
    """It resumes with the instruction: in one append, and as one thing that was asked."""
    served = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await served.client()
    where = await start_run(client)
    await stage.start("x").wait()
    expect(await client.post(f"{where}/pause", json={"mode": "now"}), 202)
    await reached(client, where, "paused")
    expect(await client.post(f"{where}/redirect", json={"instruction": "Left."}), 202)
    await reached(client, where, "terminal")
    asked = (await client.get(f"{where}/commands")).json()["items"]
    assert [(c["kind"], c["status"]) for c in asked] == [
        ("pause", "applied"),
        ("redirect", "applied"),
    ]


async def test_a_decision_on_what_was_seen_or_too_late_is_refused_as_that(
    serve: Serve, stage: ControllableTools
) -> None:
    """412 says look again, 410 that nobody can decide it any more."""
    brief = timedelta(microseconds=1)
    tools = [
        tool(stage._quick, name="guarded", approve=True),
        tool(stage._quick, name="brief", approve=True, expires=brief),
    ]
    script = ScriptedModel([Use("brief", name="a"), Use("guarded", name="b"), "Done."])
    served = await serve(Agent("actor", model=script, tools=tools))
    client = await served.client()
    where = await start_run(client)
    while True:
        asks = (await client.get("/v1/asks")).json()["items"]
        if [ask["tool"] for ask in asks] == ["guarded"]:
            break
        await reached(client, where, "waiting")
    yes = {"decision": "approve"}
    run = where.rpartition("/")[2]
    late = expect(await client.post(f"/v1/asks/{run}-a1", json=yes), 410).json()
    assert late["type"] == "urn:midrun:problem:ask-expired"
    assert late["run"]["run_id"] == run
    path, stale = f"/v1/asks/{asks[0]['ref']}", {"If-Match": '"1.1"'}
    expect(await client.post(path, json=yes, headers=stale), 412)
    fresh = {"If-Match": (await client.get(where)).headers["etag"]}
    expect(await client.post(path, json=yes, headers=fresh), 202)
    await reached(client, where, "terminal")
    assert stage.completed == ["b"]


async def test_a_character_that_not_every_store_takes_is_refused_by_all(
    serve: Serve, stage: ControllableTools
) -> None:
    """Postgres keeps no NUL: with it, this would be an internal error there, and only there."""
    served = await serve(stage.agent("Done."))
    client = await served.client()
    for word in ("agent", "label", "thread", "parent", "cursor", "phase"):
        told = expect(await client.get("/v1/runs", params={word: "a\0b"}), 400).json()
        assert told["type"] == "urn:midrun:problem:bad-query"
    expect(await client.get("/v1/runs", params={"label": "%00"}), 200)  # these are letters
    start = {"agent": "actor", "input": "Go."}
    for path, body in (
        ("/v1/runs", start | {"thread_id": "a\0b"}),
        ("/v1/runs", start | {"labels": ["fine", "a\0b"]}),
        ("/v1/halt", {"scope": "label:a\0b", "reason": "fire"}),
        ("/v1/halt", {"scope": "all", "reason": "a\0b"}),
        ("/v1/lift", {"scope": "label:a\0b"}),
        ("/agui/actor", {"threadId": "a\0b", "runId": "r", "messages": []}),
    ):
        told = expect(await client.post(path, json=body), 422).json()
        assert "the character NUL" in told["detail"], path
    assert (await client.get("/v1/runs")).json()["items"] == []
    assert await served.mid.store.list_halts() == ()


# ── headers ──────────────────────────────────────────────────────────────────


async def test_a_trace_of_the_callers_is_kept_and_what_is_none_is_passed_over(
    serve: Serve, stage: ControllableTools
) -> None:
    """The spans of the run belong to it; a proxy that garbles it stops no run."""
    served = await serve(stage.agent("Done."))
    client = await served.client()
    good = f"00-{0xABC:032x}-{0xDEF:016x}-01"
    for header, kept in ((good, good), (good.upper(), ""), ("nonsense", ""), ("", "")):
        body, headers = {"agent": "actor", "input": "Go."}, {"traceparent": header}
        made = expect(await client.post("/v1/runs", json=body, headers=headers), 201)
        (first,) = await served.mid.store.read(RunId(made.json()["run_id"]), limit=1)
        assert isinstance(first.entry, RunStarted)
        assert first.entry.trace == kept


async def test_a_key_that_is_none_is_refused_before_anything_is_done(
    serve: Serve, stage: ControllableTools
) -> None:
    """Whoever sends one counts on it."""
    served = await serve(stage.agent("Done."))
    client = await served.client()
    for key in ("", '""', "with a space", "x" * 201, '"a"b"'):
        body, headers = {"agent": "actor", "input": "Go."}, {"Idempotency-Key": key}
        refused = expect(await client.post("/v1/runs", json=body, headers=headers), 400)
        assert refused.json()["type"] == "urn:midrun:problem:bad-idempotency-key"
    assert (await client.get("/v1/runs")).json()["items"] == []


async def test_a_browser_that_asks_first_is_not_told_yes(
    serve: Serve, stage: ControllableTools
) -> None:
    """A preflight, of another page or of our own: there are no CORS headers to be had."""
    served = await serve(stage.agent("Done."))
    for client in (await served.client(None), await served.client("olga")):
        for origin in ("http://evil.example", served.url):
            asked = {
                "Origin": origin,
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization, content-type",
            }
            reply = await client.options("/v1/runs", headers=asked)
            assert reply.status_code == (204 if origin == served.url else 403)
            assert not [name for name in reply.headers if name.startswith("access-control")]


@pytest.mark.parametrize("error", [StoreBusy("runs.db", 5.0), StoreUnreachable("db", "gone")])
def test_what_may_be_asked_again_says_when(error: Exception) -> None:
    """A client that waits a second is better than one that hammers, or gives up."""
    problem = to_problem(error)
    assert problem is not None
    assert (problem.status, problem.headers) == (503, {"Retry-After": "1"})
