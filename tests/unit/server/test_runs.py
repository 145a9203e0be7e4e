"""Runs over HTTP: what is accepted, what is shown, and what a refusal says."""

import anyio
import httpx2
from anyio.lowlevel import checkpoint

from midrun.core.ids import RunId
from midrun.models import Use
from midrun.server import Limits
from midrun.stops import MaxSteps
from tests.unit.runs.stage import ControllableTools
from tests.unit.server.calling import expect, reached, start_run
from tests.unit.server.conftest import Serve


async def test_a_run_is_started_watched_and_reported(
    serve: Serve, stage: ControllableTools
) -> None:
    """The whole way of a client that wants nothing special."""
    served = await serve(stage.agent(Use("draft", name="memo"), "All done."))
    client = await served.client()
    started = await client.post("/v1/runs", json={"agent": "actor", "input": "Write."})
    run = expect(started, 201).json()
    where = started.headers["location"]
    assert where == f"/v1/runs/{run['run_id']}"
    ended = await reached(client, where, "terminal")
    view = expect(ended, 200).json()
    assert (view["phase"], view["output"], view["started_by"]) == (
        "completed",
        "All done.",
        "olga",
    )
    assert ended.headers["preference-applied"] == "wait=60"
    report = expect(await client.get(f"{where}/report"), 200).json()
    assert [deed["tool"] for deed in report["done"]] == ["draft"]
    markdown = await client.get(f"{where}/report", headers={"Accept": "text/markdown"})
    assert "## Done and kept" in markdown.text
    verdict = expect(await client.get(f"{where}/verify"), 200).json()
    assert verdict["problems"] == []


async def test_a_view_has_every_field_and_times_that_can_be_read(
    serve: Serve, stage: ControllableTools
) -> None:
    """A client that never saw our classes must not have to know our defaults."""
    served = await serve(stage.agent("Done."))
    client = await served.client()
    view = expect(
        await client.post("/v1/runs", json={"agent": "actor", "input": "Go."}), 201
    ).json()
    assert {"asks", "frames", "plan", "pending", "error", "controls"} <= view.keys()
    assert str(view["started_at"]).endswith("Z")
    controls = view["controls"]
    assert isinstance(controls, dict)
    assert {"enabled", "label", "consequence", "undo", "never"} <= controls["cancel"].keys()


async def test_a_control_is_accepted_first_and_applied_later(
    serve: Serve, stage: ControllableTools
) -> None:
    """202 says that the journal has it; the view and the commands say whether it happened."""
    served = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await served.client()
    where = await start_run(client)
    await stage.start("x").wait()
    told = expect(await client.post(f"{where}/pause", json={"reason": "lunch"}), 202).json()
    assert told["run"]["phase"] == "pausing"
    command = told["command"]
    assert isinstance(command, dict)
    assert command["receipt"]["applied"] is False
    one = f"{where}/commands/{command['id']}"
    pending = expect(await client.get(one), 200).json()
    assert (pending["status"], pending["reason"]) == ("accepted", "lunch")
    stage.gate("x").set()
    await reached(client, where, "paused")
    assert expect(await client.get(one), 200).json()["status"] == "applied"
    again = expect(await client.post(f"{where}/pause", json={}), 200).json()
    assert again["command"]["receipt"]["already"] == "already_paused"


async def test_what_pends_can_be_withdrawn_and_comes_back_with_its_text(
    serve: Serve, stage: ControllableTools
) -> None:
    """Nobody's words are lost, and nobody has to live with words they took back."""
    served = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await served.client()
    where = await start_run(client)
    await stage.start("x").wait()
    said = {"instruction": "Only the first page."}
    told = expect(await client.post(f"{where}/redirect", json=said), 202).json()
    command = told["command"]["id"]
    expect(await client.delete(f"{where}/commands/{command}"), 202)
    kept = expect(
        await client.post(f"{where}/redirect", json={"instruction": "Stop here."}), 202
    ).json()
    expect(await client.post(f"{where}/cancel", json={}), 202)
    listed = expect(await client.get(f"{where}/commands"), 200).json()["items"]
    fates = {c["text"]: c["status"] for c in listed if c["kind"] == "redirect"}
    assert fates == {"Only the first page.": "withdrawn", "Stop here.": "returned"}
    late = await client.delete(f"{where}/commands/{kept['command']['id']}")
    assert late.status_code == 409
    assert late.json()["run"]["phase"] in {"cancelling", "cancelled"}


async def test_a_refusal_says_why_and_shows_the_run(
    serve: Serve, stage: ControllableTools
) -> None:
    """Whoever was refused can repaint without asking again."""
    served = await serve(stage.agent("Done."))
    client = await served.client()
    where = await start_run(client)
    await reached(client, where, "terminal")
    refused = await client.post(f"{where}/pause", json={})
    problem = expect(refused, 409).json()
    assert refused.headers["content-type"] == "application/problem+json"
    assert problem["type"] == "urn:midrun:problem:control-refused"
    assert problem["reason"] == "is_completed"
    assert problem["run"]["phase"] == "completed"


async def test_a_repeat_under_the_same_key_changes_nothing(
    serve: Serve, stage: ControllableTools
) -> None:
    """A reply that got lost must not start a second run, or pause a run twice."""
    served = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await served.client()
    key = {"Idempotency-Key": '"abc"'}
    start = {"agent": "actor", "input": "Go."}
    first = expect(await client.post("/v1/runs", json=start, headers=key), 201).json()
    again = await client.post("/v1/runs", json=start, headers=key)
    assert first["run_id"] == expect(again, 201).json()["run_id"]
    assert again.headers["idempotency-replayed"] == "true"
    other = await client.post("/v1/runs", json={**start, "input": "Else."}, headers=key)
    assert expect(other, 422).json()["reason"] == "request_id_reused"
    where = f"/v1/runs/{first['run_id']}"
    await stage.start("x").wait()
    said, key = {"text": "How is it going?"}, {"Idempotency-Key": "def"}
    expect(await client.post(f"{where}/messages", json=said, headers=key), 202)
    again = await client.post(f"{where}/messages", json=said, headers=key)
    assert expect(again, 200).json()["command"]["receipt"]["already"] == "duplicate_request"
    assert again.headers["idempotency-replayed"] == "true"
    assert len(expect(await client.get(where), 200).json()["pending"]) == 1


async def test_two_people_with_the_same_key_do_not_meet(
    serve: Serve, stage: ControllableTools
) -> None:
    """A key that somebody else used must not hand out their run."""
    served = await serve(stage.agent("Done."))
    ann, bob = await served.client("ann"), await served.client("bob")
    key, start = {"Idempotency-Key": "k"}, {"agent": "actor", "input": "Go."}
    first = expect(await ann.post("/v1/runs", json=start, headers=key), 201).json()
    second = expect(await bob.post("/v1/runs", json=start, headers=key), 201).json()
    assert first["run_id"] != second["run_id"]


async def test_old_news_are_noticed_but_never_keep_a_run_from_stopping(
    serve: Serve, stage: ControllableTools
) -> None:
    """A redirect written for what one saw must not hit something else; a stop always may."""
    served = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await served.client()
    where = await start_run(client)
    await stage.start("x").wait()
    seen = (await client.get(where)).headers["etag"]
    said = await client.post(f"{where}/messages", json={"text": "Hello?"})
    fresh, stale = {"If-Match": said.headers["etag"]}, {"If-Match": seen}
    course = {"instruction": "Go left."}
    expect(await client.post(f"{where}/redirect", json=course, headers=stale), 412)
    expect(await client.post(f"{where}/redirect", json=course, headers=fresh), 202)
    expect(await client.patch(where, json={"caps": {"steps": 9}}), 428)
    expect(await client.post(f"{where}/pause", json={}, headers=stale), 202)
    expect(await client.post(f"{where}/cancel", json={}, headers=stale), 202)


async def test_steps_do_not_make_a_revision_stale(
    serve: Serve, stage: ControllableTools
) -> None:
    """Who composes a redirect for a while must not lose to the run's own progress."""
    turns = [Use("slow", name="a"), Use("quick", name="b"), Use("slow", name="c"), "Done."]
    served = await serve(stage.agent(*turns))
    client = await served.client()
    where = await start_run(client)
    await stage.start("a").wait()
    seen = await client.get(where)
    stage.gate("a").set()
    await stage.start("c").wait()
    later = await client.get(where, headers={"If-None-Match": seen.headers["etag"]})
    assert later.status_code == 200, "a view that has changed is not the same view"
    match = {"If-Match": seen.headers["etag"]}
    told = await client.post(f"{where}/redirect", json={"instruction": "Stop."}, headers=match)
    expect(told, 202)


async def test_one_who_has_seen_everything_can_wait_for_the_next_change(
    serve: Serve, stage: ControllableTools
) -> None:
    """Long-polling without a phase in mind."""
    served = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await served.client()
    where = await start_run(client)
    await stage.start("x").wait()
    seen = (await client.get(where)).headers["etag"]
    found: list[httpx2.Response] = []
    run = RunId(where.rpartition("/")[2])

    async def wait() -> None:
        headers = {"If-None-Match": seen, "Prefer": "wait=60"}
        found.append(await client.get(where, headers=headers))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        while not served.mid._service.live.is_watched(run):  # until it waits
            await checkpoint()
        await client.post(f"{where}/messages", json={"text": "Hello?"})
    assert found[0].status_code == 200
    same = {"If-None-Match": (await client.get(where)).headers["etag"]}
    assert (await client.get(where, headers=same)).status_code == 304


async def test_caps_are_raised_on_what_was_seen(serve: Serve, stage: ControllableTools) -> None:
    """A run that stands at its cap goes on when somebody with the right to raises it."""
    turns = [Use("quick", name="a"), Use("quick", name="b"), "Done."]
    served = await serve(stage.agent(*turns, stop=MaxSteps(1)))
    client, ann = await served.client(), await served.client("ann")
    where = await start_run(ann)
    capped = await reached(client, where, "paused")
    assert capped.json()["reason"] == "cap"
    expect(await client.post(f"{where}/resume", json={}), 409)
    expect(await ann.post(f"{where}/resume", json={"caps": {"steps": 9}}), 403)
    match = {"If-Match": capped.headers["etag"]}
    expect(await ann.patch(where, json={"caps": {"steps": 9}}, headers=match), 403)
    expect(await client.patch(where, json={"caps": {"steps": 9}}, headers=match), 202)
    expect(await client.post(f"{where}/resume", json={}), 202)
    ended = await reached(client, where, "terminal")
    assert ended.json()["phase"] == "completed"


async def test_a_run_continues_from_a_boundary_as_another(
    serve: Serve, stage: ControllableTools
) -> None:
    """Continue from here: a new run, and the old one stays what it was."""
    served = await serve(stage.agent(Use("quick", name="a"), "Done.", "Again."))
    client = await served.client()
    where = await start_run(client)
    await reached(client, where, "terminal")
    forked = await client.post(f"{where}/fork", json={"instruction": "And now?"})
    there = expect(forked, 201).headers["location"]
    assert there != where
    ended = await reached(client, there, "terminal")
    assert ended.json()["phase"] == "completed"


async def test_an_operator_halts_and_lifts(serve: Serve, stage: ControllableTools) -> None:
    """Nothing starts while the latch holds; lifted, the run goes on where it was."""
    served = await serve(stage.agent(Use("quick", name="a"), "Done."))
    client = await served.client()
    halted = await client.post("/v1/halt", json={"scope": "agent:actor", "reason": "fire"})
    assert [h["by"] for h in expect(halted, 202).json()["items"]] == ["olga"]
    where = await start_run(client)
    await reached(client, where, "halted")
    assert stage.called == []
    assert expect(await client.post("/v1/lift", json={"scope": "agent:actor"}), 200).json()[
        "lifted"
    ]
    ended = await reached(client, where, "terminal")
    assert ended.json()["phase"] == "completed"


async def test_words_that_wait_are_bounded(serve: Serve, stage: ControllableTools) -> None:
    """Nobody buries a run in messages that it never gets to."""
    served = await serve(stage.agent(Use("slow", name="x"), "Done."), limits=Limits(pending=2))
    client = await served.client()
    where = await start_run(client)
    await stage.start("x").wait()
    for text in ("one", "two"):
        expect(await client.post(f"{where}/redirect", json={"instruction": text}), 202)
    third = await client.post(f"{where}/redirect", json={"instruction": "three"})
    assert expect(third, 429).json()["type"] == "urn:midrun:problem:too-many-pending"


async def test_a_person_takes_over_and_hands_back(
    serve: Serve, stage: ControllableTools
) -> None:
    """Every control of a run has its route, also the rare ones."""
    served = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await served.client()
    where = await start_run(client)
    await stage.start("x").wait()
    expect(await client.post(f"{where}/take_over", json={}), 202)
    stage.gate("x").set()
    await reached(client, where, "paused")
    expect(await client.post(f"{where}/write", json={"text": "Hello, a person."}), 202)
    wanted = {"tool": "quick", "args": {"name": "by hand"}}
    expect(await client.post(f"{where}/use_tool", json=wanted), 202)
    await reached(client, where, "paused")
    expect(await client.post(f"{where}/hand_back", json={}), 202)
    await reached(client, where, "terminal")
    assert stage.completed == ["x", "by hand"]


async def test_a_parked_run_is_exported_and_its_chain_can_be_checked(
    serve: Serve, stage: ControllableTools
) -> None:
    """What one server gives out, another place can verify and resume."""
    served = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await served.client()
    started = await client.post("/v1/runs", json={"agent": "actor", "input": "Go."})
    run = expect(started, 201).json()["run_id"]
    await stage.start("x").wait()
    await client.post(f"/v1/runs/{run}/pause", json={"mode": "now"})
    paused = await client.get(f"/v1/runs/{run}?until=paused", headers={"Prefer": "wait=60"})
    checkpoint = (await client.get(f"/v1/runs/{run}/checkpoint")).json()
    assert checkpoint["head_hash"] == paused.json()["head_hash"]
    lines = (await client.get(f"/v1/runs/{run}/export")).text.splitlines()
    assert lines == checkpoint["lines"]


async def test_a_run_is_started_with_caps_of_its_own(
    serve: Serve, stage: ControllableTools
) -> None:
    """By the names that the view shows them under; only operators say how much."""
    served = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client, ann = await served.client(), await served.client("ann")
    body = {"agent": "actor", "input": "Go.", "caps": {"steps": 3, "time": 60.5, "tokens": 9}}
    expect(await ann.post("/v1/runs", json=body), 403)
    view = expect(await client.post("/v1/runs", json=body), 201).json()
    await stage.start("x").wait()
    assert {cap["name"]: cap["cap"] for cap in view["caps"]} == {
        "steps": 3,
        "time": 60.5,
        "tokens": 9,
    }


async def test_waiting_for_what_will_never_be_ends_with_the_run(
    serve: Serve, stage: ControllableTools
) -> None:
    """A client that waits for a pause is not kept for a run that has ended."""
    served = await serve(stage.agent("Done."))
    client = await served.client()
    where = await start_run(client)
    assert (await reached(client, where, "paused")).json()["phase"] == "completed"
    expect(await client.get(f"{where}?until=stopped"), 400)


async def test_what_is_not_there_is_not_found(serve: Serve, stage: ControllableTools) -> None:
    """Each by its own name, and with the run where there is one."""
    served = await serve(stage.agent("Done."))
    client = await served.client()
    where = await start_run(client)
    await reached(client, where, "terminal")
    expect(await client.get("/v1/runs/run_none"), 404)
    expect(await client.get(f"{where}/commands/cmd_99"), 404)
    expect(await client.delete(f"{where}/commands/nonsense"), 404)
    expect(await client.delete(f"{where}/frames/f1"), 409)
    expect(await client.post(f"{where}/frames/f1/resume", json={}), 409)
    expect(await client.post(f"{where}/retry_undo", json={}), 409)
    asked = await client.post(
        f"/v1/asks/{where.rpartition('/')[2]}-a1", json={"decision": "decline"}
    )
    assert expect(asked, 409).json()["run"]["phase"] == "completed"


async def test_a_control_needs_no_body(serve: Serve, stage: ControllableTools) -> None:
    """`curl -X POST …/pause`: there is nothing to say but what the address says."""
    served = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await served.client("olga")
    where = await start_run(client)
    await stage.start("x").wait()
    expect(await client.post(f"{where}/pause"), 202)
    expect(await client.post(f"{where}/cancel", headers={"Content-Length": "0"}), 202)
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    expect(await client.post(f"{where}/cancel", headers=form), 415)
    described = (await client.get("/v1/openapi.json")).json()["paths"]
    for path, needed in (("/v1/runs/{run}/pause", False), ("/v1/runs", True)):
        assert described[path]["post"]["requestBody"]["required"] is needed


async def test_a_body_that_does_not_fit_is_answered_with_the_known_fields(
    serve: Serve, stage: ControllableTools
) -> None:
    """Also inside of another, where the field was."""
    served = await serve(stage.agent("Done."))
    client = await served.client("olga")
    run = {"agent": "actor", "input": "Go."}
    own = "agent, input, thread_id, labels, caps, stop"
    caps = "steps, tokens, cost, time, tool_calls, repeats"
    for body, known in (
        (run | {"task": "Go."}, own),
        ({"agent": "actor"}, own),
        (run | {"labels": "x"}, own),
        (run | {"caps": {"money": 1}}, caps),
        (run | {"caps": {"steps": "x"}}, caps),
    ):
        refused = expect(await client.post("/v1/runs", json=body), 422).json()
        assert refused["detail"].endswith(f" Known fields: {known}.")
        assert refused["known"] == known.split(", ")


async def test_a_refusal_says_the_same_in_words_and_in_its_fields(
    serve: Serve, stage: ControllableTools
) -> None:
    """Of a run that has ended only a fork can be made, and both say so."""
    served = await serve(stage.agent("Done."))
    client = await served.client("olga")
    where = await start_run(client)
    expect(await reached(client, where, "completed"), 200)
    refused = expect(await client.post(f"{where}/pause", json={}), 409).json()
    assert refused["detail"].endswith(f"Allowed now: {', '.join(refused['allowed'])}.")
    assert refused["allowed"] == ["fork"]
