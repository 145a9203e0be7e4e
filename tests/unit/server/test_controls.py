"""Controls over HTTP: receipts, commands, refusals, and races between controls."""

from datetime import UTC, datetime

import anyio
import httpx2
import pytest

from midrun.core import entries as e
from midrun.core.entries import Entry, MessageReceived, PauseWithdrawn, Record
from midrun.core.ids import Micros, Seq
from midrun.core.values import TERMINAL_PHASES, Decision
from midrun.errors import StoreBusy, StoreUnreachable
from midrun.models import Use
from midrun.server.commands import read_commands
from midrun.server.problem_details import to_problem
from midrun.stops import MaxSteps
from midrun.testing.controllable_tools import ControllableTools
from tests.unit.server.conftest import StartServer
from tests.unit.server.http_calls import expect_status, start_run, wait_for_phase


async def test_a_control_is_accepted_first_and_applied_later(
    serve: StartServer, stage: ControllableTools
) -> None:
    """202 means that the journal has it; run and command show whether it was applied."""
    server = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await server.client()
    run_path = await start_run(client)
    await stage.start("x").wait()
    reply = expect_status(
        await client.post(f"{run_path}/pause", json={"reason": "lunch"}), 202
    ).json()
    assert reply["run"]["phase"] == "pausing"
    command = reply["command"]
    assert isinstance(command, dict)
    assert command["receipt"]["applied"] is False
    command_path = f"{run_path}/commands/{command['id']}"
    pending = expect_status(await client.get(command_path), 200).json()
    assert (pending["status"], pending["reason"]) == ("accepted", "lunch")
    stage.gate("x").set()
    await wait_for_phase(client, run_path, "paused")
    assert expect_status(await client.get(command_path), 200).json()["status"] == "applied"
    repeated = expect_status(await client.post(f"{run_path}/pause", json={}), 200).json()
    assert repeated["command"]["receipt"]["already"] == "already_paused"


async def test_a_control_needs_no_body(serve: StartServer, stage: ControllableTools) -> None:
    """`curl -X POST …/pause` has to work."""
    server = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await server.client("olga")
    run_path = await start_run(client)
    await stage.start("x").wait()
    expect_status(await client.post(f"{run_path}/pause"), 202)
    expect_status(await client.post(f"{run_path}/cancel", headers={"Content-Length": "0"}), 202)
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    expect_status(await client.post(f"{run_path}/cancel", headers=form), 415)
    openapi_paths = (await client.get("/v1/openapi.json")).json()["paths"]
    for path, needed in (("/v1/runs/{run}/pause", False), ("/v1/runs", True)):
        assert openapi_paths[path]["post"]["requestBody"]["required"] is needed


async def test_a_pending_redirect_is_withdrawn_or_returned_by_a_cancel(
    serve: StartServer, stage: ControllableTools
) -> None:
    server = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await server.client()
    run_path = await start_run(client)
    await stage.start("x").wait()
    body = {"instruction": "Only the first page."}
    reply = expect_status(await client.post(f"{run_path}/redirect", json=body), 202).json()
    command_id = reply["command"]["id"]
    expect_status(await client.delete(f"{run_path}/commands/{command_id}"), 202)
    second = expect_status(
        await client.post(f"{run_path}/redirect", json={"instruction": "Stop here."}), 202
    ).json()
    expect_status(await client.post(f"{run_path}/cancel", json={}), 202)
    listed = expect_status(await client.get(f"{run_path}/commands"), 200).json()["items"]
    statuses = {c["text"]: c["status"] for c in listed if c["kind"] == "redirect"}
    assert statuses == {"Only the first page.": "withdrawn", "Stop here.": "returned"}
    late = await client.delete(f"{run_path}/commands/{second['command']['id']}")
    assert late.status_code == 409
    assert late.json()["run"]["phase"] in {"cancelling", "cancelled"}


async def test_a_person_takes_over_and_hands_back(
    serve: StartServer, stage: ControllableTools
) -> None:
    server = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await server.client()
    run_path = await start_run(client)
    await stage.start("x").wait()
    expect_status(await client.post(f"{run_path}/take_over", json={}), 202)
    stage.gate("x").set()
    await wait_for_phase(client, run_path, "paused")
    expect_status(
        await client.post(f"{run_path}/write", json={"text": "Hello, a person."}), 202
    )
    body = {"tool": "quick", "args": {"name": "by hand"}}
    expect_status(await client.post(f"{run_path}/use_tool", json=body), 202)
    await wait_for_phase(client, run_path, "paused")
    expect_status(await client.post(f"{run_path}/hand_back", json={}), 202)
    await wait_for_phase(client, run_path, "terminal")
    assert stage.completed == ["x", "by hand"]


async def test_only_an_operator_raises_a_cap(
    serve: StartServer, stage: ControllableTools
) -> None:
    """The run at its cap continues after that."""
    turns = [Use("quick", name="a"), Use("quick", name="b"), "Done."]
    server = await serve(stage.agent(*turns, stop=MaxSteps(1)))
    client, ann = await server.client(), await server.client("ann")
    run_path = await start_run(ann)
    capped = await wait_for_phase(client, run_path, "paused")
    assert capped.json()["reason"] == "cap"
    expect_status(await client.post(f"{run_path}/resume", json={}), 409)
    expect_status(await ann.post(f"{run_path}/resume", json={"caps": {"steps": 9}}), 403)
    headers = {"If-Match": capped.headers["etag"]}
    expect_status(await ann.patch(run_path, json={"caps": {"steps": 9}}, headers=headers), 403)
    expect_status(
        await client.patch(run_path, json={"caps": {"steps": 9}}, headers=headers), 202
    )
    expect_status(await client.post(f"{run_path}/resume", json={}), 202)
    final = await wait_for_phase(client, run_path, "terminal")
    assert final.json()["phase"] == "completed"


async def test_an_operator_halts_an_agent_and_lifts_the_halt(
    serve: StartServer, stage: ControllableTools
) -> None:
    """No call starts while the halt is set; after that the run continues."""
    server = await serve(stage.agent(Use("quick", name="a"), "Done."))
    client = await server.client()
    response = await client.post("/v1/halt", json={"scope": "agent:actor", "reason": "fire"})
    assert [h["by"] for h in expect_status(response, 202).json()["items"]] == ["olga"]
    run_path = await start_run(client)
    await wait_for_phase(client, run_path, "halted")
    assert stage.called == []
    assert expect_status(
        await client.post("/v1/lift", json={"scope": "agent:actor"}), 200
    ).json()["lifted"]
    final = await wait_for_phase(client, run_path, "terminal")
    assert final.json()["phase"] == "completed"


async def test_a_control_response_has_the_run_and_its_revision(
    serve: StartServer, stage: ControllableTools
) -> None:
    """The next control can use the ETag without another read."""
    server = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await server.client()
    created = await client.post("/v1/runs", json={"agent": "actor", "input": "Go."})
    run_path, etag = created.headers["location"], expect_status(created, 201).headers["etag"]
    await stage.start("x").wait()
    for name, body in (
        ("messages", {"text": "Hello?", "urgency": "later"}),
        ("redirect", {"instruction": "Left."}),
        ("pause", {"reason": "lunch"}),
        ("resume", {}),
        ("cancel", {}),
    ):
        match = {"If-Match": etag}
        reply = expect_status(
            await client.post(f"{run_path}/{name}", json=body, headers=match), 202
        )
        etag, run = reply.headers["etag"], reply.json()["run"]
        assert etag.startswith(f'"{run["control_rev"]}.')
        assert run["seq"] >= reply.json()["command"]["receipt"]["seq"]
        assert len(run["head_hash"]) == 64


async def test_a_pause_with_a_hold_time_ends_by_itself(
    serve: StartServer, stage: ControllableTools
) -> None:
    server = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await server.client()
    run_path = await start_run(client)
    await stage.start("x").wait()
    for invalid in (0, -1, 1e9, "soon"):
        expect_status(await client.post(f"{run_path}/pause", json={"hold_s": invalid}), 422)
    expect_status(await client.post(f"{run_path}/pause", json={"hold_s": 0.01}), 202)
    stage.gate("x").set()
    assert (await wait_for_phase(client, run_path, "terminal")).json()["phase"] == "completed"
    commands = (await client.get(f"{run_path}/commands")).json()["items"]
    assert [(c["kind"], c["by"]) for c in commands] == [
        ("pause", "olga"),
        ("resume", "system:clock"),
    ]


async def test_a_resume_withdraws_a_pending_pause(
    serve: StartServer, stage: ControllableTools
) -> None:
    """In a running run, a bare resume is a no-op, and one with an instruction is refused."""
    server = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await server.client()
    run_path = await start_run(client)
    await stage.start("x").wait()
    pause_id = expect_status(await client.post(f"{run_path}/pause", json={}), 202).json()[
        "command"
    ]["id"]
    reply = expect_status(await client.post(f"{run_path}/resume", json={}), 202).json()
    assert reply["run"]["phase"] == "running"
    command = expect_status(await client.get(f"{run_path}/commands/{pause_id}"), 200).json()
    assert command["status"] == "withdrawn"
    repeated = expect_status(await client.post(f"{run_path}/resume", json={}), 200).json()
    assert repeated["command"]["receipt"]["already"] == "already_running"
    refused = await client.post(f"{run_path}/resume", json={"instruction": "Be brief."})
    problem = expect_status(refused, 409).json()
    assert (problem["reason"], problem["phase"]) == ("not_paused", "running")
    assert problem["control"] == "resume"
    assert "redirect" in problem["allowed"], "the instruction can be sent as a redirect"


async def test_a_redirect_of_a_paused_run_is_one_command(
    serve: StartServer, stage: ControllableTools
) -> None:
    """It resumes the run with the instruction in one append."""
    server = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await server.client()
    run_path = await start_run(client)
    await stage.start("x").wait()
    expect_status(await client.post(f"{run_path}/pause", json={"mode": "now"}), 202)
    await wait_for_phase(client, run_path, "paused")
    expect_status(await client.post(f"{run_path}/redirect", json={"instruction": "Left."}), 202)
    await wait_for_phase(client, run_path, "terminal")
    commands = (await client.get(f"{run_path}/commands")).json()["items"]
    assert [(c["kind"], c["status"]) for c in commands] == [
        ("pause", "applied"),
        ("redirect", "applied"),
    ]


async def test_the_reason_and_the_due_time_of_a_control_are_stored(
    serve: StartServer, stage: ControllableTools
) -> None:
    """A withdrawal has no body; its reason is a query parameter."""
    server = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await server.client()
    run_path = await start_run(client)
    await stage.start("x").wait()
    at = datetime(2099, 1, 2, 3, 4, 5, 600, tzinfo=UTC)
    body = {"text": "Happy new year.", "at": at.isoformat(), "reason": "a custom"}
    expect_status(await client.post(f"{run_path}/messages", json=body), 202)
    reply = expect_status(await client.post(f"{run_path}/pause", json={}), 202).json()
    command_path = f"{run_path}/commands/{reply['command']['id']}"
    expect_status(await client.delete(command_path, params={"reason": "x" * 1001}), 400)
    expect_status(await client.delete(command_path, params={"reason": "no need"}), 202)
    records = await server.mid.store.read(run_path.rpartition("/")[2])  # type: ignore[arg-type]  # an id
    message = next(r.entry for r in records if isinstance(r.entry, MessageReceived))
    assert (message.reason, message.due) == ("a custom", round(at.timestamp() * 1e6))
    withdrawn = next(r.entry for r in records if isinstance(r.entry, PauseWithdrawn))
    assert withdrawn.reason == "no need"


@pytest.mark.parametrize("completes_at", [0, 25, 50])
async def test_fifty_cancels_and_a_completion_have_one_winner(
    serve: StartServer, stage: ControllableTools, completes_at: int
) -> None:
    """Every reply agrees with the journal.

    The run completes before, between or after the cancels.
    """
    server = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await server.client()
    run = await server.mid.start("actor", "Go.", actor="olga")
    await stage.start("x").wait()
    replies: list[httpx2.Response] = []

    async def cancel() -> None:
        replies.append(await client.post(f"/v1/runs/{run.id}/cancel", json={}))

    async with anyio.create_task_group() as tasks:
        for number in range(50):
            if number == completes_at:
                stage.gate("x").set()
                if not number:
                    await run.until("completed")
            tasks.start_soon(cancel)
    stage.gate("x").set()
    view = await run.until("terminal")
    assert view.phase in {0: ["completed"], 50: ["cancelled"]}.get(
        completes_at, [*TERMINAL_PHASES]
    )
    chain = await server.mid.store.read_lines(run.id)
    entries = await server.mid.store.read(run.id)
    cancel_seqs = [
        record.seq for record in entries if type(record.entry).__name__ == "CancelRequested"
    ]
    accepted = [reply.json() for reply in replies if reply.status_code == 202]
    if view.phase == "completed":
        assert {reply.status_code for reply in replies} == {409}
        assert not cancel_seqs
        return
    assert [body["command"]["receipt"]["seq"] for body in accepted] == cancel_seqs
    for reply in replies:
        body = reply.json()
        assert reply.status_code in {200, 202}
        assert body["run"]["phase"] in {"cancelling", "cancelled"}
        seq = body["run"]["seq"]
        assert seq >= body["command"]["receipt"]["seq"], (
            "a reply shows at least its own control"
        )
        assert body["run"]["head_hash"] == chain[seq - 1][1].hex()


# ── refusals ─────────────────────────────────────────────────────────────────


async def test_a_refusal_has_the_reason_and_the_run(
    serve: StartServer, stage: ControllableTools
) -> None:
    """The client can show the run without another request."""
    server = await serve(stage.agent("Done."))
    client = await server.client()
    run_path = await start_run(client)
    await wait_for_phase(client, run_path, "terminal")
    refused = await client.post(f"{run_path}/pause", json={})
    problem = expect_status(refused, 409).json()
    assert refused.headers["content-type"] == "application/problem+json"
    assert problem["type"] == "urn:midrun:problem:control-refused"
    assert problem["reason"] == "is_completed"
    assert problem["run"]["phase"] == "completed"


async def test_a_refusal_has_the_allowed_controls_in_its_text_and_in_a_field(
    serve: StartServer, stage: ControllableTools
) -> None:
    server = await serve(stage.agent("Done."))
    client = await server.client("olga")
    run_path = await start_run(client)
    expect_status(await wait_for_phase(client, run_path, "completed"), 200)
    refused = expect_status(await client.post(f"{run_path}/pause", json={}), 409).json()
    assert refused["detail"].endswith(f"Allowed now: {', '.join(refused['allowed'])}.")
    shown = expect_status(await client.get(run_path), 200).json()
    assert refused["allowed"] == shown["allowed"] == ["fork"]


async def test_an_unknown_run_command_frame_or_ask_is_refused(
    serve: StartServer, stage: ControllableTools
) -> None:
    server = await serve(stage.agent("Done."))
    client = await server.client()
    run_path = await start_run(client)
    await wait_for_phase(client, run_path, "terminal")
    expect_status(await client.get("/v1/runs/run_none"), 404)
    expect_status(await client.get(f"{run_path}/commands/cmd_99"), 404)
    expect_status(await client.delete(f"{run_path}/commands/nonsense"), 404)
    expect_status(await client.delete(f"{run_path}/frames/f1"), 409)
    expect_status(await client.post(f"{run_path}/frames/f1/resume", json={}), 409)
    expect_status(await client.post(f"{run_path}/retry_undo", json={}), 409)
    answer = await client.post(
        f"/v1/asks/{run_path.rpartition('/')[2]}-a1", json={"decision": "decline"}
    )
    assert expect_status(answer, 409).json()["run"]["phase"] == "completed"


@pytest.mark.parametrize("error", [StoreBusy("runs.db", 5.0), StoreUnreachable("db", "gone")])
def test_a_busy_or_unreachable_store_is_a_503_with_retry_after(error: Exception) -> None:
    problem = to_problem(error)
    assert problem is not None
    assert (problem.status, problem.headers) == (503, {"Retry-After": "1"})


# ── commands, read from a journal ────────────────────────────────────────────


STARTED = e.RunStarted(agent="a", task="t", by="ann")


def _make_records(*entries: Entry) -> list[Record]:
    """Return a journal in which every entry has its own time."""
    return [
        Record(seq=Seq(n), at=Micros(n), entry=entry)
        for n, entry in enumerate((STARTED, *entries), 1)
    ]


def _read_statuses(*entries: Entry) -> list[tuple[str, str]]:
    return [
        (command.kind, command.status) for command in read_commands(_make_records(*entries))
    ]


def test_a_pause_command_is_applied_only_when_the_run_is_paused() -> None:
    request = e.PauseRequested(by="ann")
    assert _read_statuses(request) == [("pause", "accepted")]
    assert _read_statuses(request, e.RunPaused()) == [("pause", "applied")]


def test_a_pause_command_that_was_withdrawn_or_superseded_is_not_applied() -> None:
    request = e.PauseRequested(by="ann")
    withdrawn = e.PauseWithdrawn(by="bob")
    assert _read_statuses(request, withdrawn) == [("pause", "withdrawn"), ("resume", "applied")]
    assert _read_statuses(request, e.CancelRequested(by="bob")) == [
        ("pause", "superseded"),
        ("cancel", "accepted"),
    ]


def test_a_redirect_command_is_applied_or_returned() -> None:
    """A redirect is identified by its seq, so that two of them are not confused."""
    first, second = e.RedirectRequested(text="1", by="a"), e.RedirectRequested(text="2", by="a")
    applied = e.RedirectApplied(redirect=Seq(3))
    returned = e.RedirectClosed(redirect=Seq(2), why="returned", text="1")
    commands = read_commands(_make_records(first, second, applied, returned))
    assert [(c.text, c.status, c.settled) for c in commands] == [
        ("1", "returned", 5),
        ("2", "applied", 4),
    ]


def test_a_message_command_is_applied_when_the_message_is_taken() -> None:
    message = e.MessageReceived(text="?", by="a")
    assert _read_statuses(message, e.MessageTaken(message=Seq(2))) == [("say", "applied")]


def test_the_resume_that_a_redirect_causes_is_not_a_command() -> None:
    """Both entries are in one append, and the user sent one control."""
    entries: list[Entry] = [
        STARTED,
        e.RedirectRequested(text="go", by="ann"),
        e.RunResumed(by="ann"),
    ]
    records = [
        Record(seq=Seq(n), at=Micros(1), entry=entry) for n, entry in enumerate(entries, 1)
    ]
    assert [c.kind for c in read_commands(records)] == ["redirect"]


def test_entries_that_midrun_appends_by_itself_are_not_commands() -> None:
    """Examples are a timed pause that ends and a cap that was reached."""
    assert (
        _read_statuses(e.RunResumed(), e.CapReached(stop="x"), e.PauseRequested(why="cap"))
        == []
    )


def test_a_refused_request_is_a_failed_command_with_its_reason() -> None:
    entry = e.RequestNoted(verdict="is_completed", refused=True, by="ann", request_id="r")
    (command,) = read_commands(_make_records(entry))
    assert (command.status, command.problem) == ("failed", "is_completed")


def test_an_answer_command_is_applied_immediately() -> None:
    answer = e.AskAnswered(
        ask="a1",  # type: ignore[arg-type]  # an id is a string with a name
        decision=Decision(choice="approve"),
        by="ann",
    )
    assert _read_statuses(answer) == [("answer", "applied")]
