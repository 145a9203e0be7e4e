"""What a person sees of a run that is under a halt, or of whose driver nobody hears."""

from datetime import timedelta

import anyio
import httpx2
import pytest

from midrun import Midrun
from midrun.core.entries import LeaseTaken, StoodDown
from midrun.core.evolve import apply_entries
from midrun.core.ids import Epoch, Micros, RunId
from midrun.core.run_head import build_head
from midrun.core.state import State
from midrun.driver.journal_writer import load_run_state
from midrun.ports.store import Lease
from midrun.server import runs
from midrun.server.request_context import HOLDERS_MAX, HolderLastSeen
from midrun.server.run_views import RunLineBuilder, RunViews
from tests.unit.runs.stage import ControllableTools, Use
from tests.unit.server.calling import expect
from tests.unit.server.conftest import PEOPLE, Serve

OLGA = PEOPLE["olga"]


async def take_run(mid: Midrun, run: RunId, holder: str = "elsewhere") -> None:
    """Take the lease of `run` for a worker that never acts on it."""
    state = await load_run_state(mid.store, run)
    entries = [LeaseTaken(holder=holder, epoch=Epoch(state.epoch + 1))]
    head = build_head(apply_entries(state, entries, mid.now()))
    await mid.store.record_heartbeat(holder, ttl=timedelta(hours=1))
    await mid.store.take_lease(run, entries, after=state.seq, holder=holder, head=head)


async def test_a_run_whose_driver_has_not_met_the_halt_is_halting(
    serve: Serve, stage: ControllableTools
) -> None:
    """It was asked for, and has not happened; nobody may be told that it has."""
    served = await serve()  # it drives nothing
    async with Midrun(served.mid.store, agents=[stage.agent("Done.")], engine=None) as idle:
        run = await idle.start("actor", "Go.", actor=OLGA)
    await take_run(served.mid, run.id)
    client = await served.client()
    before = expect(await client.get(f"/v1/runs/{run.id}/seen"), 200).json()
    assert (before["sign"]["word"], before["halt"]) == ("Running", None)
    await served.mid.halt("the far end is on fire", actor=OLGA)
    after = expect(await client.get(f"/v1/runs/{run.id}/seen"), 200).json()
    assert after["phase"] == "running", "by the journal"
    assert (after["sign"]["word"], after["sign"]["by"]) == ("Halting", "olga")
    assert after["sign"]["note"].startswith("it was Running")
    assert after["halt"]["reason"] == "the far end is on fire"


async def test_a_list_says_of_a_run_what_its_page_says(
    serve: Serve, stage: ControllableTools
) -> None:
    """Also of what no journal knows: a halt that nobody has met, and that nobody is at work."""
    served = await serve()  # it drives nothing
    async with Midrun(served.mid.store, agents=[stage.agent("Done.")], engine=None) as idle:
        queued = await idle.start("actor", "Go.", actor=OLGA)
        driven = await idle.start("actor", "Go.", actor=OLGA)
    client = await served.client()

    async def told() -> list[str]:
        lines = expect(await client.get("/v1/runs"), 200).json()["items"]
        signs = {line["run_id"]: line["work"]["sign"] for line in lines}
        for run in (queued, driven):
            page = expect(await client.get(f"/v1/runs/{run.id}/seen"), 200).json()
            assert signs[run.id] == page["sign"]
        return [signs[queued.id]["note"], signs[driven.id]["word"]]

    nobody, lifted = "no worker is available", "until the halt is lifted"
    assert await told() == [nobody, "Queued"]
    await take_run(served.mid, driven.id)
    assert await told() == ["starts as soon as a worker takes it", "Running"]
    await served.mid.halt("the far end is on fire", actor=OLGA)
    assert await told() == [f"no call starts {lifted}", "Halting"]


async def test_a_run_at_rest_says_what_a_halt_means_for_it(
    serve: Serve, stage: ControllableTools
) -> None:
    """It stands where it stood; what is over is under no halt."""
    served = await serve(stage.agent(Use("quick", name="a"), "Done."))
    over = await served.mid.start("actor", "Go.", actor=OLGA)
    await over.until("completed")
    await served.mid.halt("enough", scope="agent:actor", actor=OLGA)
    queued = await served.mid.start("actor", "Go on.", actor=OLGA)
    client = await served.client()
    seen = expect(await client.get(f"/v1/runs/{queued.id}/seen"), 200).json()
    assert seen["halt"]["scope"] == "agent:actor"
    if seen["phase"] == "queued":  # its driver may have met the latch by now
        assert "until the halt is lifted" in seen["sign"]["note"]
    assert expect(await client.get(f"/v1/runs/{over.id}/seen"), 200).json()["halt"] is None


async def test_a_worker_is_not_lost_if_an_entry_came_between_the_reads(
    serve: Serve, stage: ControllableTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state and the row are two reads; the run may be taken or released between them."""
    served = await serve()  # it drives nothing
    async with Midrun(served.mid.store, agents=[stage.agent("Done.")], engine=None) as idle:
        run = await idle.start("actor", "Go.", actor=OLGA)
    queued = await served.mid.store.get_row(run.id)
    await take_run(served.mid, run.id)
    driven = await load_run_state(served.mid.store, run.id)
    views = RunViews(served.mid)
    (line,) = await RunLineBuilder(served.mid, views).build([queued], OLGA)
    assert line.work.sign.word == "Running"
    released = StoodDown()
    head = build_head(apply_entries(driven, [released], served.mid.now()))
    lease = Lease(run=run.id, holder="elsewhere", epoch=driven.epoch)
    await served.mid.store.append(run.id, [released], after=driven.seq, lease=lease, head=head)

    async def read_earlier_state(_views: RunViews, _run: RunId) -> State:
        return driven

    monkeypatch.setattr(RunViews, "read_state", read_earlier_state)
    page = expect(await (await served.client()).get(f"/v1/runs/{run.id}/seen"), 200).json()
    assert (page["lost"], page["sign"]["word"]) == (False, "Running")


async def test_a_view_that_a_driver_left_by_falling_silent_is_another(
    serve: Serve, stage: ControllableTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No entry says so; whoever has the view of before must not hear that it is the same."""
    monkeypatch.setattr(runs, "SILENCE_POLL_S", 0.01)
    served = await serve()  # it drives nothing
    async with Midrun(served.mid.store, agents=[stage.agent("Done.")], engine=None) as idle:
        run = await idle.start("actor", "Go.", actor=OLGA)
    await take_run(served.mid, run.id)
    client, where = await served.client(), f"/v1/runs/{run.id}"
    alive = expect(await client.get(where), 200)
    known = {"If-None-Match": alive.headers["etag"]}
    expect(await client.get(where, headers=known), 304)
    replies: list[httpx2.Response] = []

    async def wait() -> None:
        replies.append(await client.get(where, headers={**known, "Prefer": "wait=60"}))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await served.mid.store.release_leases("elsewhere")
    (lost,) = replies
    assert (lost.status_code, lost.json()["sign"]["look"]) == (200, "lost")
    assert lost.json()["seq"] == alive.json()["seq"]
    again = {"If-None-Match": f"W/{lost.headers['etag']}, {alive.headers['etag']}"}
    expect(await client.get(where, headers=again), 304)
    seen = {"If-Match": f"W/{lost.headers['etag']}"}  # as a proxy leaves it
    said = {"instruction": "Be brief."}
    expect(await client.post(f"{where}/redirect", json=said, headers=seen), 202)


def test_silence_is_counted_from_the_last_sign_of_life() -> None:
    """By what this server has heard: it may be longer, and is never less."""
    hearing = HolderLastSeen()
    assert hearing.silent_since("a", {"a", "b"}, Micros(10)) == 10
    assert hearing.silent_since("a", {"b"}, Micros(20)) == 10
    assert hearing.silent_since("b", {"a"}, Micros(30)) == 20
    assert hearing.silent_since("a", (), Micros(40)) == 30
    assert hearing.silent_since("stranger", (), Micros(50)) == 50
    assert hearing.silent_since("stranger", (), Micros(60)) == 50


def test_holders_that_are_long_gone_are_forgotten() -> None:
    """A server lives for months, and every process of a fleet has a name of its own."""
    hearing = HolderLastSeen()
    for number in range(HOLDERS_MAX + 10):
        hearing.silent_since(f"p{number}", (), Micros(number))
    assert len(hearing._last_seen_at) == HOLDERS_MAX
