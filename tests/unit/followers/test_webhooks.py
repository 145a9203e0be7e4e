"""Webhooks: signed, in order, at least once, whatever becomes of either end."""

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from anyio.abc import TaskGroup
from starlette.responses import RedirectResponse, Response

from midrun import Midrun
from midrun.errors import Misconfigured
from midrun.followers import following
from midrun.followers import worker as module
from midrun.followers.webhooks import Webhook
from midrun.models import Use
from midrun.ports.follower_cursors import HasFollowerCursors
from midrun.stops import MaxSteps
from tests.scenarios.redaction.office import PASSWORD, Office
from tests.support.processes import ROOT
from tests.unit.followers.receiving import SECRET, FarEnd, Got
from tests.unit.runs.stage import ControllableTools

Answer = Callable[[int], Response]


def failing(times: int, status: int = 503) -> Answer:
    """Return answers of a far end that is out of order for so many requests."""
    return lambda number: Response(status_code=status if number <= times else 200)


def hook(there: FarEnd, **options: object) -> Webhook:
    """Return a webhook that posts to the far end."""
    return Webhook(there.url, secret=SECRET, **options)  # type: ignore[arg-type]  # as given


async def marked(midrun: Midrun, name: str) -> None:
    """Wait until the follower of this name has told everything, and the store knows it."""
    assert isinstance(midrun.store, HasFollowerCursors)
    for _ in range(3000):
        if not await midrun.store.follower_cursors().list_behind(name, limit=1):
            return
        await anyio.sleep(0.01)
    raise AssertionError("something was never marked")


async def test_an_end_is_posted_as_a_signed_cloudevent(path: Path, there: FarEnd) -> None:
    """In the structured form, with an id that says which entry of which run it is."""
    agent = ControllableTools().agent("All sorted.")
    async with (
        Midrun(f"sqlite:///{path}", agents=[agent]) as midrun,
        following(midrun, hook(there)),
    ):
        run = await midrun.start(agent, "Sort it.", labels=["desk"], thread="t1")
        view = await run.until("completed")
        (got,) = await there.hears(1)
        assert got.headers["content-type"].startswith("application/cloudevents+json")
        assert got.is_signed()
        assert got.told | {"time": "", "data": {}} == {
            "specversion": "1.0",
            "id": f"{run.id}:{view.seq}",
            "source": "/v1/runs",
            "type": "dev.midrun.run.completed.v1",
            "subject": run.id,
            "time": "",
            "datacontenttype": "application/json",
            "data": {},
        }
        assert got.headers["webhook-id"] == got.told["id"]
        assert got.data == {
            "run_id": run.id,
            "seq": view.seq,
            "phase": "completed",
            "agent": "actor",
            "task": "Sort it.",
            "labels": ["desk"],
            "thread": "t1",
            "output": "All sorted.",
        }


async def test_a_signature_is_no_longer_good_when_anything_is_changed(
    path: Path, there: FarEnd
) -> None:
    """The id, the time, or any byte of the body."""
    agent = ControllableTools().agent("Done.")
    async with (
        Midrun(f"sqlite:///{path}", agents=[agent]) as midrun,
        following(midrun, hook(there)),
    ):
        await midrun.start(agent, "Go.")
        (got,) = await there.hears(1)
    assert not got.is_signed("whsec_" + "A" * 44)
    for name in ("webhook-id", "webhook-timestamp"):
        changed = Got({**got.headers, name: got.headers[name] + "0"}, got.body)
        assert not changed.is_signed()
    for at in range(0, len(got.body), 7):
        body = got.body[:at] + bytes([got.body[at] ^ 1]) + got.body[at + 1 :]
        assert not Got(got.headers, body).is_signed()


async def test_waiting_a_cap_a_failure_and_a_cancel_are_told_and_a_persons_pause_is_not(
    path: Path, there: FarEnd
) -> None:
    """Where somebody is needed, or it is over; who paused it knows that it is paused."""
    office, stage = Office(), ControllableTools()
    asks = office.agent(Use("ask"), "Thanks.", name="asks")
    capped = stage.agent(
        Use("quick", name="a"), Use("quick", name="b"), name="capped", stop=MaxSteps(1)
    )
    fails = stage.agent(name="fails")  # its script is empty
    held = stage.agent(Use("slow", name="held"), "Done.", name="held")
    agents = [asks, capped, fails, held]
    async with (
        Midrun(f"sqlite:///{path}", agents=agents) as midrun,
        following(midrun, hook(there)),
    ):
        waiting = await midrun.start(asks, "Ask.")
        assert (await there.hears(1))[0].kind == "waiting"
        assert "Is this right?" in str(there.got[0].data["asks"])
        await midrun.start(capped, "Go on and on.")
        assert (await there.hears(2))[1].kind == "paused"
        assert there.got[1].data["cap"] == "steps"
        await midrun.start(fails, "Fail.")
        assert (await there.hears(3))[2].kind == "failed"
        assert there.got[2].data["error"]
        paused = await midrun.start(held, "Be held.")
        await stage.start("held").wait()
        await paused.pause(actor="ann")
        stage.gate("held").set()
        await paused.until("paused")
        await paused.cancel(actor="ann")
        await waiting.cancel(actor="ann")
        await there.hears(5)
        assert [got.kind for got in there.got[3:]] == ["cancelled", "cancelled"]
        assert {got.data["run_id"] for got in there.got[3:]} == {paused.id, waiting.id}


async def test_what_is_not_taken_is_sent_again_with_the_same_id(
    path: Path, there: FarEnd
) -> None:
    """A receiver knows it by its id; the time of sending is new."""
    there.answer = failing(3)
    agent = ControllableTools().agent("Done.")
    async with (
        Midrun(f"sqlite:///{path}", agents=[agent]) as midrun,
        following(midrun, hook(there)),
    ):
        await midrun.start(agent, "Go.")
        got = await there.hears(4)
        assert len({one.headers["webhook-id"] for one in got}) == 1
        assert len({one.body for one in got}) == 1
        assert all(one.is_signed() for one in got)


async def test_what_was_not_delivered_is_delivered_after_a_restart(
    path: Path, there: FarEnd
) -> None:
    """Also what happened while nobody was there to deliver it."""
    there.answer = failing(10_000)
    stage = ControllableTools()
    agent = stage.agent("Done.")
    address = f"sqlite:///{path}"
    async with Midrun(address, agents=[agent]) as midrun, following(midrun, hook(there)):
        first = await midrun.start(agent, "Go.")
        await there.hears(2)
    async with Midrun(address, agents=[agent]) as midrun:
        second = await midrun.start(agent, "Go again.")
        await second.until("completed")
    there.got.clear()
    there.answer = failing(0)
    async with Midrun(address) as midrun, following(midrun, hook(there)):
        got = await there.hears(2)
        assert {one.data["run_id"] for one in got} == {first.id, second.id}
        await marked(midrun, hook(there).name)
    there.got.clear()
    async with Midrun(address, agents=[agent]) as midrun, following(midrun, hook(there)):
        third = await midrun.start(agent, "And again.")
        got = await there.hears(1)
        assert got[0].data["run_id"] == third.id, "what was taken does not come again"


async def test_those_of_one_run_come_in_order_though_the_first_fails(
    path: Path, there: FarEnd
) -> None:
    """A receiver that is told *completed* was told before that it waited."""
    there.answer = failing(5)
    office = Office()
    agent = office.agent(Use("ask"), "Thanks.")
    async with (
        Midrun(f"sqlite:///{path}", agents=[agent]) as midrun,
        following(midrun, hook(there)),
    ):
        run = await midrun.start(agent, "Ask.")
        await run.until("waiting")
        await there.hears(1)
        await run.answer("yes", actor="ann")
        await run.until("completed")
        got = await there.hears(7)
        assert [one.kind for one in got] == ["waiting"] * 6 + ["completed"]


async def test_one_that_is_never_taken_is_left_out_and_said_so(
    path: Path, there: FarEnd, caplog: pytest.LogCaptureFixture
) -> None:
    """The next of the same run is told all the same."""
    there.answer = failing(3, 400)
    agent = Office().agent(Use("ask"), "Thanks.")
    async with (
        Midrun(f"sqlite:///{path}", agents=[agent]) as midrun,
        following(midrun, hook(there, attempts=3)),
    ):
        run = await midrun.start(agent, "Ask.")
        await there.hears(3)
        await run.answer("yes", actor="ann")
        got = await there.hears(4)
        assert [one.kind for one in got] == ["waiting"] * 3 + ["completed"]
    assert "gave up on run" in caplog.text


async def test_a_dead_end_holds_little_and_slows_no_run(
    path: Path, there: FarEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was not told waits in the journals, not in memory."""
    for name in ("DELIVERY_QUEUE_MAX_RUNS", "RETRY_SCHEDULES_MAX"):
        monkeypatch.setattr(module, name, 4)
    monkeypatch.setattr(module, "SCAN_INTERVAL_S", 0.01)
    there.answer = failing(10_000)
    agent = ControllableTools().agent("Done.")
    async with Midrun(f"sqlite:///{path}", agents=[agent]) as midrun:
        trails: list[module.FollowerWorker] = []
        look = module.FollowerWorker._fill_queues

        async def seen(self: module.FollowerWorker, tasks: TaskGroup) -> None:
            trails.append(self)
            await look(self, tasks)

        monkeypatch.setattr(module.FollowerWorker, "_fill_queues", seen)
        async with following(midrun, hook(there)):
            runs = [await midrun.start(agent, f"Go {n}.") for n in range(12)]
            for run in runs:
                await run.until("completed")
            await there.hears(30)
            assert len(trails[0]._retries) <= 4
            assert (
                max(len(lane.runs) for lane in (trails[0]._first_queue, trails[0]._retry_queue))
                <= 4
            )
            there.answer = failing(0)
            while {str(got.data["run_id"]) for got in there.got} != {run.id for run in runs}:
                await there.hears(len(there.got) + 1)


async def test_of_two_processes_one_delivers(path: Path, there: FarEnd) -> None:
    """And when it leaves, the other takes its place."""
    agent = ControllableTools().agent("Done.")
    address = f"sqlite:///{path}"
    async with Midrun(address, agents=[agent]) as one, Midrun(address) as two:
        async with following(one, hook(there)), following(two, hook(there)):
            for n in range(5):
                run = await one.start(agent, f"Go {n}.")
                await run.until("completed")
            await there.hears(5)
            await marked(one, hook(there).name)  # or the last of them would be told again
        run = await one.start(agent, "Go on.")
        await run.until("completed")
        async with following(two, hook(there)):
            await there.hears(6)
        ids = [got.headers["webhook-id"] for got in there.got]
        assert len(set(ids)) == len(ids) == 6


async def test_a_webhook_that_is_new_is_not_told_of_the_past(path: Path, there: FarEnd) -> None:
    """A store may have years of it."""
    agent = ControllableTools().agent("Done.")
    async with Midrun(f"sqlite:///{path}", agents=[agent]) as midrun:
        await (await midrun.start(agent, "Before.")).until("completed")
        async with following(midrun, hook(there)):
            run = await midrun.start(agent, "After.")
            got = await there.hears(1)
            assert got[0].data["run_id"] == run.id


async def test_a_redirect_is_not_followed(path: Path, there: FarEnd) -> None:
    """Or whoever answers there could have us post anywhere, inside a network of ours."""
    there.answer = lambda n: (
        RedirectResponse("http://127.0.0.1:1/inside", 307) if n < 3 else Response()
    )
    agent = ControllableTools().agent("Done.")
    async with (
        Midrun(f"sqlite:///{path}", agents=[agent]) as midrun,
        following(midrun, hook(there)),
    ):
        await midrun.start(agent, "Go.")
        assert len({got.headers["webhook-id"] for got in await there.hears(3)}) == 1


async def test_nothing_that_a_run_says_decides_where_it_is_sent(
    path: Path, there: FarEnd
) -> None:
    """Tasks, labels and outputs are data, whatever address they have in them."""
    evil = "http://127.0.0.1:9/steal"
    agent = ControllableTools().agent(f"Send it to {evil} .")
    async with (
        Midrun(f"sqlite:///{path}", agents=[agent]) as midrun,
        following(midrun, hook(there)),
    ):
        await midrun.start(agent, evil, labels=[evil], thread=evil, actor=evil)
        (got,) = await there.hears(1)
        assert got.data["task"] == evil


@pytest.mark.parametrize("url", ["ftp://host/x", "file:///etc/passwd", "host/x", "http://", ""])
def test_only_addresses_of_the_web_are_taken(url: str) -> None:
    """It is said when it is configured, not when the first run ends."""
    with pytest.raises(Misconfigured):
        Webhook(url, secret=SECRET)


@pytest.mark.parametrize("secret", ["", "short", "whsec_", "whsec_AAAA", "whsec_!!"])
def test_a_secret_that_can_be_guessed_is_refused(secret: str) -> None:
    """Or the signature would say nothing."""
    with pytest.raises(Misconfigured):
        Webhook("https://host/x", secret=secret)


async def test_two_of_one_name_are_refused(path: Path) -> None:
    """They would share their marks, and each be told of half."""
    async with Midrun(f"sqlite:///{path}") as midrun:
        one, two = (Webhook("https://host/x", secret=SECRET) for _ in range(2))
        with pytest.raises(Misconfigured):
            async with following(midrun, one, two):
                pass


async def test_neither_secrets_nor_addresses_are_logged(
    path: Path, there: FarEnd, caplog: pytest.LogCaptureFixture
) -> None:
    """An address often is a secret. What was redacted stays so."""
    caplog.set_level(logging.DEBUG, logger="midrun")
    there.answer = failing(2)
    office = Office()
    agent = office.agent(
        Use("login", user="ann", password=PASSWORD), f"The password is {PASSWORD}."
    )
    url = f"{there.url}/T0K3N?key=s3cr3t"
    async with (
        Midrun(f"sqlite:///{path}", agents=[agent]) as midrun,
        following(midrun, Webhook(url, secret=SECRET)),
    ):
        await midrun.start(agent, "Log in.")
        got = await there.hears(3)
    assert PASSWORD.encode() not in got[-1].body
    told = "\n".join(r.getMessage() for r in caplog.records if r.name.startswith("midrun"))
    assert told
    assert not [word for word in ("T0K3N", "s3cr3t", SECRET, PASSWORD) if word in told]


async def test_children_are_not_told_of(path: Path, there: FarEnd) -> None:
    """What a child needs shows on its parent, and its end is nobody's news."""
    stage = ControllableTools()
    inner = stage.agent("Inner done.", name="inner")
    outer = stage.agent(Use("inner", task="Do it."), "Done.", name="outer")
    tools = [*outer.tools.values(), inner.as_tool()]
    outer = type(outer)("outer", model=outer.model, tools=tools)
    async with (
        Midrun(f"sqlite:///{path}", agents=[outer]) as midrun,
        following(midrun, hook(there)),
    ):
        run = await midrun.start(outer, "Go.")
        await run.until("completed")
        got = await there.hears(1)
        assert [one.data["run_id"] for one in got] == [run.id]
        other = await midrun.start(outer, "Go again.")
        await there.hears(2)
        assert [one.data["run_id"] for one in there.got] == [run.id, other.id]


async def test_what_a_killed_process_had_not_delivered_another_delivers(
    path: Path, there: FarEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the place of the dead one, and goes on from its marks."""
    monkeypatch.setattr(module, "SCAN_INTERVAL_S", 0.05)
    there.answer = failing(10_000)
    address = f"sqlite:///{path}"
    command = [sys.executable, "-m", "tests.unit.followers.child", address, there.url, "Go."]
    async with await anyio.open_process(command, cwd=ROOT, stderr=None) as process:
        assert process.stdout is not None
        run_id = (await process.stdout.receive()).decode().strip()
        await there.hears(1)
        process.kill()
    there.answer = failing(0)
    before = len(there.got)
    async with Midrun(address) as midrun, following(midrun, hook(there)):
        await there.hears(before + 1)
    assert {got.data["run_id"] for got in there.got} == {run_id}
    assert len({got.headers["webhook-id"] for got in there.got}) == 1
