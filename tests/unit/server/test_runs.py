"""Runs over HTTP: start, read, list, wait, fork, export and resume."""

import re
from datetime import timedelta

import anyio
import httpx2
import msgspec
from anyio.lowlevel import checkpoint

from midrun import Agent, Midrun, ask_human, tool
from midrun.core.entries import RunStarted
from midrun.core.ids import RunId
from midrun.models import ScriptedModel, Use
from midrun.server import Limits
from midrun.server.openapi import make_openapi
from midrun.testing.controllable_tools import ControllableTools
from tests.unit.server.conftest import KEY, StartServer
from tests.unit.server.endpoints import count_entries
from tests.unit.server.http_calls import expect_status, start_run, wait_for_phase


async def test_a_run_is_started_waited_for_and_reported(
    serve: StartServer, stage: ControllableTools
) -> None:
    server = await serve(stage.agent(Use("draft", name="memo"), "All done."))
    client = await server.client()
    created = await client.post("/v1/runs", json={"agent": "actor", "input": "Write."})
    run = expect_status(created, 201).json()
    run_path = created.headers["location"]
    assert run_path == f"/v1/runs/{run['run_id']}"
    final = await wait_for_phase(client, run_path, "terminal")
    view = expect_status(final, 200).json()
    assert (view["phase"], view["output"], view["started_by"]) == (
        "completed",
        "All done.",
        "olga",
    )
    assert final.headers["preference-applied"] == "wait=60"
    report = expect_status(await client.get(f"{run_path}/report"), 200).json()
    assert [call["tool"] for call in report["done"]] == ["draft"]
    markdown = await client.get(f"{run_path}/report", headers={"Accept": "text/markdown"})
    assert "## Done and kept" in markdown.text
    verdict = expect_status(await client.get(f"{run_path}/verify"), 200).json()
    assert verdict["problems"] == []


async def test_a_view_has_every_field_and_rfc_3339_times(
    serve: StartServer, stage: ControllableTools
) -> None:
    """A client does not have to know our defaults."""
    server = await serve(stage.agent("Done."))
    client = await server.client()
    view = expect_status(
        await client.post("/v1/runs", json={"agent": "actor", "input": "Go."}), 201
    ).json()
    assert {"asks", "frames", "plan", "pending", "error", "controls"} <= view.keys()
    assert str(view["started_at"]).endswith("Z")
    controls = view["controls"]
    assert isinstance(controls, dict)
    assert {"enabled", "label", "consequence", "undo", "irreversible"} <= controls[
        "cancel"
    ].keys()


async def test_only_an_operator_starts_a_run_with_caps(
    serve: StartServer, stage: ControllableTools
) -> None:
    """The names of the caps are those of the view."""
    server = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client, ann = await server.client(), await server.client("ann")
    body = {"agent": "actor", "input": "Go.", "caps": {"steps": 3, "time": 60.5, "tokens": 9}}
    expect_status(await ann.post("/v1/runs", json=body), 403)
    view = expect_status(await client.post("/v1/runs", json=body), 201).json()
    await stage.start("x").wait()
    assert {cap["name"]: cap["cap"] for cap in view["caps"]} == {
        "steps": 3,
        "time": 60.5,
        "tokens": 9,
    }


async def test_an_empty_task_is_refused(serve: StartServer, stage: ControllableTools) -> None:
    """The pattern in the OpenAPI document excludes the same tasks."""
    server = await serve(stage.agent("Done."))
    client = await server.client()
    schemas = msgspec.json.decode(make_openapi())["components"]["schemas"]
    for task in ("", " \n\t", "\u00a0\u2003", "\x1c"):
        refused = await client.post("/v1/runs", json={"agent": "actor", "input": task})
        assert expect_status(refused, 422).json()["code"] == "misconfigured"
        assert not re.search(schemas["StartBody"]["properties"]["input"]["pattern"], task)
    assert await count_entries(server) == 0


async def test_an_invalid_body_is_refused_with_the_known_fields(
    serve: StartServer, stage: ControllableTools
) -> None:
    """For an object inside of the body, the fields of that object are listed."""
    server = await serve(stage.agent("Done."))
    client = await server.client("olga")
    run = {"agent": "actor", "input": "Go."}
    run_fields = "agent, input, thread_id, labels, caps, stop, files, tenant, team"
    cap_fields = "steps, tokens, cost, time, tool_calls, repeats"
    for body, known in (
        (run | {"task": "Go."}, run_fields),
        ({"agent": "actor"}, run_fields),
        (run | {"labels": "x"}, run_fields),
        (run | {"caps": {"money": 1}}, cap_fields),
        (run | {"caps": {"steps": "x"}}, cap_fields),
    ):
        refused = expect_status(await client.post("/v1/runs", json=body), 422).json()
        assert refused["detail"].endswith(f" Known fields: {known}.")
        assert refused["known"] == known.split(", ")


async def test_an_integral_float_is_accepted_as_an_integer(
    serve: StartServer, stage: ControllableTools
) -> None:
    """To JSON Schema 5.0 is an integer, and some languages have no other numbers."""
    server = await serve(stage.agent("Done."))
    client = await server.client()
    body = {"agent": "actor", "input": "Go."}
    parts = [{"stop": "MaxSteps", "n": 5.0}, {"stop": "MaxTime", "seconds": 1.5}]
    for extra in ({"caps": {"steps": 5.0}}, {"stop": {"stop": "AnyOf", "parts": parts}}):
        created = expect_status(await client.post("/v1/runs", json=body | extra), 201)
        assert created.json()["caps"][0]["cap"] == 5
    run_path = await start_run(client)
    expect_status(await client.post(f"{run_path}/fork", json={"seq": 1.0}), 201)
    for invalid in (
        {"caps": {"steps": 5.5}},
        {"caps": {"steps": 1e300}},
        {"caps": {"steps": "5"}},
    ):
        expect_status(await client.post("/v1/runs", json=body | invalid), 422)


async def test_a_valid_traceparent_is_stored_and_an_invalid_one_is_ignored(
    serve: StartServer, stage: ControllableTools
) -> None:
    """A proxy that corrupts the header must not stop a run."""
    server = await serve(stage.agent("Done."))
    client = await server.client()
    valid = f"00-{0xABC:032x}-{0xDEF:016x}-01"
    for header, stored in ((valid, valid), (valid.upper(), ""), ("nonsense", ""), ("", "")):
        body, headers = {"agent": "actor", "input": "Go."}, {"traceparent": header}
        created = expect_status(await client.post("/v1/runs", json=body, headers=headers), 201)
        (first,) = await server.mid.store.read(RunId(created.json()["run_id"]), limit=1)
        assert isinstance(first.entry, RunStarted)
        assert first.entry.trace == stored


# ── lists ────────────────────────────────────────────────────────────────────


async def test_the_list_of_runs_can_be_filtered(
    serve: StartServer, stage: ControllableTools
) -> None:
    """Each filter works alone and together with others."""
    guarded = tool(stage._quick, name="guarded", approve=True)
    model = ScriptedModel([Use("guarded", name="x"), "."])
    waiting_agent = Agent("waits", model=model, tools=[guarded])
    server = await serve(stage.agent("Done."), waiting_agent)
    client = await server.client()
    run_ids: dict[str, str] = {}
    for agent in ("actor", "waits"):
        body = {"agent": agent, "input": "Go.", "labels": [f"by {agent}"], "thread_id": agent}
        run_path = expect_status(await client.post("/v1/runs", json=body), 201).headers[
            "location"
        ]
        await wait_for_phase(client, run_path, "terminal,waiting")
        run_ids[agent] = run_path.rpartition("/")[2]

    async def list_ids(query: str) -> list[str]:
        items = expect_status(await client.get(f"/v1/runs?{query}"), 200).json()["items"]
        return [item["run_id"] for item in items]

    for query in ("agent={0}", "label=by {0}", "thread={0}", "agent={0}&label=by {0}"):
        for agent, run in run_ids.items():
            assert await list_ids(query.format(agent)) == [run], query
    assert await list_ids("agent=actor&label=by waits") == []
    assert await list_ids("attention=true") == [run_ids["waits"]]
    assert await list_ids("phase=waiting,paused") == [run_ids["waits"]]
    assert await list_ids("limit=1") == [run_ids["waits"]], "the newest first"
    assert sorted(await list_ids("attention=false")) == sorted(run_ids.values())
    expect_status(await client.get("/v1/runs?attention=maybe"), 400)
    assert await list_ids("search=don") == [run_ids["actor"]], "by its output"
    assert await list_ids("search=WAITS go") == [run_ids["waits"]]
    expect_status(await client.get("/v1/runs", params={"search": "x" * 501}), 400)


async def test_the_phase_filter_can_be_repeated(
    serve: StartServer, stage: ControllableTools
) -> None:
    server = await serve(stage.agent("Done."))
    client = await server.client()
    await wait_for_phase(client, await start_run(client), "terminal")
    for query in ("phase=completed&phase=paused", "state=paused&state=completed,failed"):
        page = expect_status(await client.get(f"/v1/runs?{query}"), 200).json()
        assert len(page["items"]) == 1, query
    expect_status(await client.get("/v1/runs?phase=paused&phase=nonsense"), 400)


async def test_lists_accept_state_as_an_alias_of_phase(
    serve: StartServer, stage: ControllableTools
) -> None:
    """Earlier versions of the API had the name *state*."""
    server = await serve(stage.agent("Done."))
    client = await server.client()
    await wait_for_phase(client, await start_run(client), "terminal")
    for parameter in ("phase", "state"):
        page = expect_status(
            await client.get("/v1/runs", params={parameter: "completed"}), 200
        ).json()
        assert len(page["items"]) == 1
        empty = expect_status(
            await client.get("/v1/runs", params={parameter: "paused"}), 200
        ).json()
        assert empty["items"] == []
        assert page["counts"] == {"completed": 1}


# ── long polls ───────────────────────────────────────────────────────────────


async def test_a_long_poll_with_if_none_match_waits_for_the_next_change(
    serve: StartServer, stage: ControllableTools
) -> None:
    server = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await server.client()
    run_path = await start_run(client)
    await stage.start("x").wait()
    etag = (await client.get(run_path)).headers["etag"]
    replies: list[httpx2.Response] = []
    run = RunId(run_path.rpartition("/")[2])

    async def wait() -> None:
        headers = {"If-None-Match": etag, "Prefer": "wait=60"}
        replies.append(await client.get(run_path, headers=headers))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        while not server.mid._service.live.is_watched(run):  # until it waits
            await checkpoint()
        await client.post(f"{run_path}/messages", json={"text": "Hello?"})
    assert replies[0].status_code == 200
    unchanged = {"If-None-Match": (await client.get(run_path)).headers["etag"]}
    assert (await client.get(run_path, headers=unchanged)).status_code == 304


async def test_a_long_poll_for_another_phase_ends_with_the_run(
    serve: StartServer, stage: ControllableTools
) -> None:
    server = await serve(stage.agent("Done."))
    client = await server.client()
    run_path = await start_run(client)
    assert (await wait_for_phase(client, run_path, "paused")).json()["phase"] == "completed"
    expect_status(await client.get(f"{run_path}?until=stopped"), 400)


async def test_a_long_poll_does_not_miss_a_short_phase(
    serve: StartServer, stage: ControllableTools
) -> None:
    """The response shows the run as it was in that phase."""
    server = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await server.client()
    run_path = await start_run(client)
    await stage.start("x").wait()
    replies: list[httpx2.Response] = []

    async def wait() -> None:
        replies.append(await wait_for_phase(client, run_path, "pausing"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        while not server.mid._service.live.is_watched(run_path.rpartition("/")[2]):  # type: ignore[arg-type]  # an id
            await anyio.lowlevel.checkpoint()
        expect_status(await client.post(f"{run_path}/pause", json={"mode": "now"}), 202)
    assert replies[0].json()["phase"] == "pausing"


async def test_the_server_limits_the_time_of_a_long_poll(
    serve: StartServer, stage: ControllableTools
) -> None:
    """`Preference-Applied` has the time that the server used."""
    limits = Limits(wait=0.05)
    server = await serve(stage.agent(Use("slow", name="x"), "."), limits=limits)
    client = await server.client()
    run_path = await start_run(client)
    reply = await client.get(f"{run_path}?until=paused", headers={"Prefer": "wait=3600"})
    assert expect_status(reply, 200).headers["preference-applied"] == "wait=0.05"


# ── forks, exports and checkpoints ───────────────────────────────────────────


async def test_a_fork_is_a_new_run(serve: StartServer, stage: ControllableTools) -> None:
    server = await serve(stage.agent(Use("quick", name="a"), "Done.", "Again."))
    client = await server.client()
    run_path = await start_run(client)
    await wait_for_phase(client, run_path, "terminal")
    fork = await client.post(f"{run_path}/fork", json={"instruction": "And now?"})
    fork_path = expect_status(fork, 201).headers["location"]
    assert fork_path != run_path
    final = await wait_for_phase(client, fork_path, "terminal")
    assert final.json()["phase"] == "completed"


async def test_a_run_can_be_forked_at_every_listed_boundary(
    serve: StartServer, stage: ControllableTools
) -> None:
    """The list has the last seq of each stretch of entries at which a fork is possible."""
    server = await serve(stage.agent(Use("draft", name="x"), Use("draft", name="y"), "Done."))
    client = await server.client()
    run_path = await start_run(client)
    final = (await wait_for_phase(client, run_path, "terminal")).json()
    listed = expect_status(await client.get(f"{run_path}/boundaries"), 200).json()["items"]
    assert [item["step"] for item in listed] == [0, 1, 2, 3]
    assert (listed[-1]["seq"], listed[-1]["phase"]) == (final["seq"], "completed")
    forkable = set()
    for seq in range(1, final["seq"] + 1):
        fork = await client.post(f"{run_path}/fork", json={"seq": seq})
        if fork.status_code == 201:
            forkable.add(seq)
        else:
            assert expect_status(fork, 409).json()["reason"] == "not_a_boundary"
    assert {item["seq"] for item in listed} <= forkable
    assert {seq for seq in forkable if seq + 1 not in forkable} == {
        item["seq"] for item in listed
    }


async def test_the_export_and_the_checkpoint_of_a_paused_run_agree(
    serve: StartServer, stage: ControllableTools
) -> None:
    """Both can be verified elsewhere."""
    server = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await server.client()
    created = await client.post("/v1/runs", json={"agent": "actor", "input": "Go."})
    run = expect_status(created, 201).json()["run_id"]
    await stage.start("x").wait()
    await client.post(f"/v1/runs/{run}/pause", json={"mode": "now"})
    paused = await client.get(f"/v1/runs/{run}?until=paused", headers={"Prefer": "wait=60"})
    checkpoint = (await client.get(f"/v1/runs/{run}/checkpoint")).json()
    assert checkpoint["head_hash"] == paused.json()["head_hash"]
    lines = (await client.get(f"/v1/runs/{run}/export")).text.splitlines()
    assert lines == checkpoint["lines"]


async def test_only_an_operator_resumes_a_checkpoint(serve: StartServer) -> None:
    """The server trusts its content: it must be signed, unchanged, and not resumed before."""
    model = ScriptedModel([Use("ask_human", question="Which?"), "Done."])
    agent = Agent("asker", model=model, tools=[ask_human])
    server = await serve(agent)
    client, ann = await server.client(), await server.client("ann")
    async with Midrun("memory://", agents=[agent], key=KEY) as elsewhere:
        run = await elsewhere.start("asker", "Go.", actor="ann")
        await run.until("waiting")
        checkpoint = (await run.checkpoint()).to_json()
    body = f'{{"checkpoint":{checkpoint},"answer":"left"}}'
    headers = {"Content-Type": "application/json", "Idempotency-Key": "k"}
    expect_status(await ann.post("/v1/resume", content=body, headers=headers), 403)
    for _ in range(2):
        resumed = await client.post("/v1/resume", content=body, headers=headers)
        assert expect_status(resumed, 201).headers["location"] == f"/v1/runs/{run.id}"
    final = await wait_for_phase(client, f"/v1/runs/{run.id}", "terminal")
    assert (final.json()["phase"], final.json()["started_by"]) == ("completed", "ann")
    audit = [entry async for entry in server.mid.audit(since=timedelta(hours=-1))]
    imports = [each for each in audit if each.action == "import"]
    assert [(each.outcome, each.run) for each in imports if not each.seq] == [
        ("not_allowed", ""),
        *[("done", run.id)] * 2,
    ]
    assert [each.run for each in imports if each.seq] == [run.id]  # in the journal
    stale = await client.post(
        "/v1/resume", content=body, headers={**headers, "Idempotency-Key": "other"}
    )
    assert expect_status(stale, 409).json()["args"][0] == "stale_checkpoint"
    tampered = body.replace('"task":"Go."', '"task":"Stop."').replace("Go.", "No.")
    forged = await client.post("/v1/resume", content=tampered, headers=headers)
    assert expect_status(forged, 409).json()["args"][0] == "checkpoint_invalid"
