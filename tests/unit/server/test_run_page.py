"""A run as its page and the list show it to one caller: status, buttons, halts, turns."""

from datetime import timedelta

import anyio
import httpx2
import pytest

from midrun import Agent, Midrun, ask_human, tool
from midrun.core.entries import LeaseReleased, LeaseTaken
from midrun.core.evolve import apply_entries
from midrun.core.ids import Epoch, Micros, RunId
from midrun.core.lru import LruDict
from midrun.core.run_head import build_head
from midrun.core.state import State
from midrun.driver.journal_writer import load_run_state
from midrun.models import ScriptedModel, Use
from midrun.ports.store import Lease
from midrun.server import app, runs
from midrun.server.overlays import HOLDERS_MAX, HolderLastSeen, Overlays
from midrun.server.run_views import RunViews
from midrun.stores.memory import MemoryStore
from midrun.testing.controllable_tools import ControllableTools
from tests.unit.server.conftest import ACTORS, StartServer, make_token, make_tokens
from tests.unit.server.http_calls import (
    expect_status,
    make_in_process_client,
    start_run,
    wait_for_phase,
)


async def test_all_buttons_are_disabled_for_a_viewer(
    serve: StartServer, stage: ControllableTools
) -> None:
    server = await serve(stage.agent(Use("slow", name="work"), "Done."))
    ann, vera = await server.client("ann"), await server.client("vera")
    run_path = await start_run(ann)
    await stage.start("work").wait()
    owner_page = expect_status(await ann.get(f"{run_path}/overlay"), 200).json()
    assert (owner_page["you"], owner_page["role"]) == ("ann", "user")
    assert all(button["enabled"] for button in owner_page["controls"].values())
    viewer_page = expect_status(await vera.get(f"{run_path}/overlay"), 200).json()
    assert not any(button["enabled"] for button in viewer_page["controls"].values())
    assert viewer_page["controls"]["pause"]["consequence"].startswith("You may only view")
    stage.gate("work").set()


async def test_the_elapsed_time_grows_between_entries_and_stops_in_a_pause(
    serve: StartServer, stage: ControllableTools
) -> None:
    """The journal has the elapsed time up to its last entry only."""
    server = await serve(stage.agent(Use("slow", name="work"), "Done."))
    client = await server.client()
    run_path = await start_run(client)
    await stage.start("work").wait()
    first = (await client.get(f"{run_path}/overlay")).json()
    later = (await client.get(f"{run_path}/overlay")).json()
    assert (first["seq"], first["working"], first["worker_lost"]) == (later["seq"], True, False)
    assert later["elapsed"] > first["elapsed"] > (await client.get(run_path)).json()["elapsed"]
    await client.post(f"{run_path}/pause", json={"reason": "lunch"})
    stage.gate("work").set()
    await wait_for_phase(client, run_path, "paused")
    paused = (await client.get(f"{run_path}/overlay")).json()
    assert not paused["working"]
    assert paused["phase_at"] > first["now"]
    assert (await client.get(f"{run_path}/overlay")).json()["elapsed"] == paused["elapsed"]


async def test_with_four_eyes_a_run_does_not_wait_for_the_user_who_started_it(
    serve: StartServer, stage: ControllableTools
) -> None:
    guarded = tool(stage._quick, name="guarded", approve=True, four_eyes=True)
    model = ScriptedModel([Use("guarded", name="x"), "Done."])
    server = await serve(Agent("actor", model=model, tools=[guarded]))
    ann, olga = await server.client("ann"), await server.client("olga")
    run_path = await start_run(ann)
    await wait_for_phase(ann, run_path, "waiting")
    starter_page = (await ann.get(f"{run_path}/overlay")).json()
    assert starter_page["status"]["word"].endswith("another person")
    operator_page = (await olga.get(f"{run_path}/overlay")).json()
    assert operator_page["status"]["word"].endswith("you")
    (ask_id,) = operator_page["decidable_asks"]
    ask = f"{run_path.rpartition('/')[2]}-{ask_id}"
    expect_status(await olga.post(f"/v1/asks/{ask}", json={"decision": "approve"}), 202)
    await wait_for_phase(ann, run_path, "completed")


async def test_turns_are_paged_from_the_newest_or_after_a_number(
    serve: StartServer, stage: ControllableTools
) -> None:
    turns = [Use("quick", name=f"n{n}") for n in range(50)]
    server = await serve(stage.agent(*turns, "Done."))
    client = await server.client()
    run_path = await start_run(client)
    await wait_for_phase(client, run_path, "completed")
    page = expect_status(await client.get(f"{run_path}/turns"), 200).json()
    numbers = [turn["number"] for turn in page["items"]]
    assert numbers == list(range(page["total"] - 39, page["total"] + 1))
    assert page["items"][0]["calls"][0]["result"].endswith("done")
    first_page = (await client.get(f"{run_path}/turns?after=0&limit=2")).json()
    assert [turn["kind"] or turn["role"] for turn in first_page["items"]] == [
        "task",
        "assistant",
    ]
    assert (
        expect_status(await client.get(f"{run_path}/turns?after=9999"), 200).json()["items"]
        == []
    )


async def test_cached_states_are_limited_by_their_bytes() -> None:
    """All callers share the cache."""
    agent = Agent("writer", model=ScriptedModel(["Done."] * 9))
    async with Midrun("memory://", agents=[agent], engine=None) as mid:
        views = RunViews(mid)
        runs = [await mid.start(agent, letter * 1_000_000) for letter in "abc"]
        views._states = LruDict(max_items=9, max_weight=2_500_000)
        for run in runs:
            await views.read_state(RunId(run.id))
        assert 2_000_000 < views._states.weight < 2_500_000
        assert RunId(runs[0].id) not in views._states
        await runs[2].say("d" * 400_000)
        state = await views.read_state(RunId(runs[2].id))  # it grows, and the oldest is dropped
        assert state.seq == 2
        assert 1_400_000 < views._states.weight < 2_500_000


async def test_a_run_waits_for_you_or_for_another_person(serve: StartServer) -> None:
    """The list, which is cached, and the page of the run agree."""

    @tool(approve=True, audience="operator")
    async def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    model = ScriptedModel([Use("pay", amount=3), "Done."])
    server = await serve(Agent("payer", model=model, tools=[pay]))
    run = await server.mid.start("payer", "Pay.", actor="ann")
    await run.until("waiting")
    texts: dict[str, list[str]] = {}
    is_yours: dict[str, bool] = {}
    note = (await run.view()).status.note
    for name in ("olga", "ann", "vera"):
        client = await server.client(name)
        (line,) = (await client.get("/v1/runs")).json()["items"]
        page = (await client.get(f"/v1/runs/{run.id}/overlay")).json()
        is_yours[name] = line["needs_you"]
        status = page["status"]
        texts[name] = [line["status"]["word"], status["word"], status["announcement"]]
    you, other = "Waiting for you", "Waiting for another person"
    assert texts == {
        "olga": [you, you, f"{you}: {note}"],
        "ann": [other, other, f"{other}: {note}"],
        "vera": [other, other, f"{other}: {note}"],
    }
    assert is_yours == {"olga": True, "ann": False, "vera": False}


@pytest.mark.spoils_journals
@pytest.mark.parametrize("change", [(b"Which", b"Witch"), (b'"v":1', b'"v":9')])
async def test_an_unreadable_journal_does_not_hide_other_runs(
    change: tuple[bytes, bytes],
) -> None:
    """It was tampered with, or written by a newer version. The list shows the run as lost."""
    model = ScriptedModel([Use("ask_human", question="Which?"), "Done."])
    store = MemoryStore()
    async with Midrun(store, agents=[Agent("asker", model=model, tools=[ask_human])]) as mid:
        bad, good = [await mid.start("asker", "Go.", actor="ann") for _ in range(2)]
        for run in (bad, good):
            await run.until("waiting")
        lines = store._runs[RunId(bad.id)].lines
        lines[:] = [(line.replace(*change), link) for line, link in lines]
        asgi_app = app(mid, auth=make_tokens(), allow_hosts=["testserver"])
        for name in ("olga", "vera", "ann", "bob"):
            headers = {"Authorization": f"Bearer {make_token(name)}"}
            async with make_in_process_client(asgi_app, headers) as client:
                listed = expect_status(await client.get("/v1/runs"), 200).json()["items"]
                asks = expect_status(await client.get("/v1/asks"), 200).json()["items"]
                reply = await client.get(f"/v1/runs/{bad.id}")
                if name == "bob":
                    body = {"decision": "answer", "value": "?"}
                    replies = [await client.post(f"/v1/asks/{bad.id}-a1", json=body), reply]
                    assert [reply.status_code for reply in replies] == [404, 404]
                    continue
            looks = {line["run_id"]: line["status"]["style"] for line in listed}
            assert looks == {good.id: "waiting", bad.id: "lost"}
            assert [ask["run_id"] for ask in asks] == [good.id]
            assert reply.status_code == 500, reply.text


# ── halts and silent workers ─────────────────────────────────────────────────


OPERATOR = ACTORS["olga"]


async def take_run(mid: Midrun, run: RunId, holder: str = "elsewhere") -> None:
    """Take the lease of `run` for a worker that never acts on it."""
    state = await load_run_state(mid.store, run)
    entries = [LeaseTaken(holder=holder, epoch=Epoch(state.epoch + 1))]
    head = build_head(apply_entries(state, entries, mid.now()))
    await mid.store.record_heartbeat(holder, ttl=timedelta(hours=1))
    await mid.store.take_lease(run, entries, after=state.seq, holder=holder, head=head)


async def test_a_run_is_shown_as_halting_until_its_worker_has_recorded_the_halt(
    serve: StartServer, stage: ControllableTools
) -> None:
    server = await serve()  # it has no agent, so it drives no run
    async with Midrun(server.mid.store, agents=[stage.agent("Done.")], engine=None) as idle:
        run = await idle.start("actor", "Go.", actor=OPERATOR)
    await take_run(server.mid, run.id)
    client = await server.client()
    before = expect_status(await client.get(f"/v1/runs/{run.id}/overlay"), 200).json()
    assert (before["status"]["word"], before["halt"]) == ("Running", None)
    await server.mid.halt("the far end is on fire", actor=OPERATOR)
    after = expect_status(await client.get(f"/v1/runs/{run.id}/overlay"), 200).json()
    assert after["seq"] == before["seq"], "the journal has no halt yet"
    assert (after["status"]["word"], after["status"]["by"]) == ("Halting", "olga")
    assert after["status"]["note"].startswith("it was Running")
    assert after["halt"]["reason"] == "the far end is on fire"


async def test_the_list_and_the_page_show_the_same_status(
    serve: StartServer, stage: ControllableTools
) -> None:
    """Both know facts outside of the journal: a halt not recorded yet, a missing worker."""
    server = await serve()  # it has no agent, so it drives no run
    async with Midrun(server.mid.store, agents=[stage.agent("Done.")], engine=None) as idle:
        queued = await idle.start("actor", "Go.", actor=OPERATOR)
        driven = await idle.start("actor", "Go.", actor=OPERATOR)
    client = await server.client()

    async def read_statuses() -> list[str]:
        lines = expect_status(await client.get("/v1/runs"), 200).json()["items"]
        signs = {line["run_id"]: line["status"] for line in lines}
        for run in (queued, driven):
            page = expect_status(await client.get(f"/v1/runs/{run.id}/overlay"), 200).json()
            assert signs[run.id] == page["status"]
        return [signs[queued.id]["note"], signs[driven.id]["word"]]

    no_worker, until_lifted = "no worker is available", "until the halt is lifted"
    assert await read_statuses() == [no_worker, "Queued"]
    await take_run(server.mid, driven.id)
    assert await read_statuses() == ["starts as soon as a worker takes it", "Running"]
    await server.mid.halt("the far end is on fire", actor=OPERATOR)
    assert await read_statuses() == [f"no call starts {until_lifted}", "Halting"]


async def test_a_halt_is_shown_on_a_queued_run_and_not_on_a_completed_one(
    serve: StartServer, stage: ControllableTools
) -> None:
    server = await serve(stage.agent(Use("quick", name="a"), "Done."))
    completed = await server.mid.start("actor", "Go.", actor=OPERATOR)
    await completed.until("completed")
    await server.mid.halt("enough", scope="agent:actor", actor=OPERATOR)
    queued = await server.mid.start("actor", "Go on.", actor=OPERATOR)
    client = await server.client()
    page = expect_status(await client.get(f"/v1/runs/{queued.id}/overlay"), 200).json()
    assert page["halt"]["scope"] == "agent:actor"
    if page["status"]["style"] == "queued":  # its worker may have recorded the halt by now
        assert "until the halt is lifted" in page["status"]["note"]
    assert (
        expect_status(await client.get(f"/v1/runs/{completed.id}/overlay"), 200).json()["halt"]
        is None
    )


async def test_a_worker_is_not_shown_as_lost_if_an_entry_came_between_the_reads(
    serve: StartServer, stage: ControllableTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state and the row are two reads; the run may be taken or released between them."""
    server = await serve()  # it has no agent, so it drives no run
    async with Midrun(server.mid.store, agents=[stage.agent("Done.")], engine=None) as idle:
        run = await idle.start("actor", "Go.", actor=OPERATOR)
    queued = await server.mid.store.get_row(run.id)
    await take_run(server.mid, run.id)
    driven = await load_run_state(server.mid.store, run.id)
    views = RunViews(server.mid)
    (item,) = await Overlays(server.mid, views).build_items([queued], OPERATOR)
    assert item.status.word == "Running"
    released = LeaseReleased()
    head = build_head(apply_entries(driven, [released], server.mid.now()))
    lease = Lease(run=run.id, holder="elsewhere", epoch=driven.epoch)
    await server.mid.store.append(run.id, [released], after=driven.seq, lease=lease, head=head)

    async def read_earlier_state(_views: RunViews, _run: RunId) -> State:
        return driven

    monkeypatch.setattr(RunViews, "read_state", read_earlier_state)
    page = expect_status(
        await (await server.client()).get(f"/v1/runs/{run.id}/overlay"), 200
    ).json()
    assert (page["worker_lost"], page["status"]["word"]) == (False, "Running")


async def test_the_etag_changes_when_the_worker_falls_silent(
    serve: StartServer, stage: ControllableTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No entry is appended, so the ETag cannot depend on the seq alone."""
    monkeypatch.setattr(runs, "SILENCE_POLL_S", 0.01)
    server = await serve()  # it has no agent, so it drives no run
    async with Midrun(server.mid.store, agents=[stage.agent("Done.")], engine=None) as idle:
        run = await idle.start("actor", "Go.", actor=OPERATOR)
    await take_run(server.mid, run.id)
    client, run_path = await server.client(), f"/v1/runs/{run.id}"
    alive = expect_status(await client.get(run_path), 200)
    cached = {"If-None-Match": alive.headers["etag"]}
    expect_status(await client.get(run_path, headers=cached), 304)
    replies: list[httpx2.Response] = []

    async def wait() -> None:
        replies.append(await client.get(run_path, headers={**cached, "Prefer": "wait=60"}))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await server.mid.store.release_leases("elsewhere")
    (lost,) = replies
    assert (lost.status_code, lost.json()["status"]["style"]) == (200, "lost")
    assert lost.json()["seq"] == alive.json()["seq"]
    both = {"If-None-Match": f"W/{lost.headers['etag']}, {alive.headers['etag']}"}
    expect_status(await client.get(run_path, headers=both), 304)
    match = {"If-Match": f"W/{lost.headers['etag']}"}  # a proxy may weaken an ETag
    body = {"instruction": "Be brief."}
    expect_status(await client.post(f"{run_path}/redirect", json=body, headers=match), 202)


def test_silence_is_counted_from_the_last_heartbeat_that_the_server_saw() -> None:
    """The worker may have been silent for longer, but not for less."""
    last_seen = HolderLastSeen()
    assert last_seen.silent_since("a", {"a", "b"}, Micros(10)) == 10
    assert last_seen.silent_since("a", {"b"}, Micros(20)) == 10
    assert last_seen.silent_since("b", {"a"}, Micros(30)) == 20
    assert last_seen.silent_since("a", (), Micros(40)) == 30
    assert last_seen.silent_since("stranger", (), Micros(50)) == 50
    assert last_seen.silent_since("stranger", (), Micros(60)) == 50


def test_the_number_of_remembered_lease_holders_is_limited() -> None:
    """A server runs for months, and every worker process has its own name."""
    last_seen = HolderLastSeen()
    for number in range(HOLDERS_MAX + 10):
        last_seen.silent_since(f"p{number}", (), Micros(number))
    assert len(last_seen._last_seen_at) == HOLDERS_MAX
