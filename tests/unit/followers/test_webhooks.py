"""Webhooks: signed, in order, at least once, whatever happens to sender and receiver."""

import logging
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from anyio.abc import TaskGroup
from starlette.responses import RedirectResponse, Response

from midrun import Agent, Midrun
from midrun.cli.run_commands import split_webhook
from midrun.errors import Misconfigured
from midrun.followers import following
from midrun.followers import worker as module
from midrun.followers.webhooks import Webhook
from midrun.models import Use
from midrun.ports.follower_cursors import HasFollowerCursors
from midrun.stops import MaxSteps
from midrun.testing.controllable_tools import ControllableTools
from tests.support.paths import ROOT
from tests.support.secret_tools import PASSWORD, SecretTools
from tests.unit.followers.child import make_command
from tests.unit.followers.receiver import SECRET, Delivery, Receiver

Answer = Callable[[int], Response]


def fail_first(times: int, status: int = 503) -> Answer:
    """Return answers that fail for the first requests."""
    return lambda number: Response(status_code=status if number <= times else 200)


def make_webhook(receiver: Receiver, **options: object) -> Webhook:
    """Return a webhook that posts to the receiver."""
    return Webhook(receiver.url, secret=SECRET, **options)  # type: ignore[arg-type]  # passed on unchanged


async def wait_until_delivered(midrun: Midrun, name: str) -> None:
    """Wait until the cursors of this follower have reached the end of every run."""
    assert isinstance(midrun.store, HasFollowerCursors)
    for _ in range(3000):
        if not await midrun.store.follower_cursors().list_behind(name, limit=1):
            return
        await anyio.sleep(0.01)
    raise AssertionError("a cursor was not moved")


async def test_the_end_of_a_run_is_posted_as_a_signed_cloudevent(
    path: Path, receiver: Receiver
) -> None:
    """The event has the structured form; its id names the run and the entry."""
    agent = ControllableTools().agent("All sorted.")
    async with (
        Midrun(f"sqlite:///{path}", agents=[agent]) as midrun,
        following(midrun, make_webhook(receiver)),
    ):
        run = await midrun.start(agent, "Sort it.", labels=["desk"], thread="t1")
        view = await run.until("completed")
        (delivery,) = await receiver.wait_for(1)
        assert delivery.headers["content-type"].startswith("application/cloudevents+json")
        assert delivery.is_signed()
        assert delivery.event | {"time": "", "data": {}} == {
            "specversion": "1.0",
            "id": f"{run.id}:{view.seq}",
            "source": "/v1/runs",
            "type": "dev.midrun.run.completed.v1",
            "subject": run.id,
            "time": "",
            "datacontenttype": "application/json",
            "data": {},
        }
        assert delivery.headers["webhook-id"] == delivery.event["id"]
        assert delivery.data == {
            "run_id": run.id,
            "seq": view.seq,
            "phase": "completed",
            "agent": "actor",
            "task": "Sort it.",
            "labels": ["desk"],
            "thread": "t1",
            "tenant": "",
            "output": "All sorted.",
        }


async def test_a_webhook_of_a_tenant_gets_only_the_runs_of_that_tenant(
    path: Path, receiver: Receiver
) -> None:
    """Two webhooks with one address are told apart by their tenants."""
    agent = ControllableTools().agent(*["Done."] * 4)
    acme, plain = [make_webhook(receiver, tenant=tenant) for tenant in ("acme", "")]
    assert acme.name != plain.name
    async with (
        Midrun(f"sqlite:///{path}", agents=[agent]) as midrun,
        following(midrun, acme, plain),
    ):
        runs: dict[str, str] = {}
        for tenant in ("rival", "acme", "ACME", ""):
            run = await midrun.start(agent, "Go.", tenant=tenant)
            await run.until("completed")
            runs[tenant] = run.id
        await receiver.wait_for(2)
        for hook in (acme, plain):  # both have passed all runs
            await wait_until_delivered(midrun, hook.name)
    sent = {str(each.data["tenant"]): each.data["run_id"] for each in receiver.deliveries}
    assert sent == {tenant: runs[tenant] for tenant in ("acme", "")}
    assert len(receiver.deliveries) == 2


def test_the_command_splits_the_tenant_from_the_address() -> None:
    assert split_webhook("https://host/x?a=http://b") == (None, "https://host/x?a=http://b")
    assert split_webhook("acme=https://host/x?a=b") == ("acme", "https://host/x?a=b")
    assert split_webhook("=http://host") == ("", "http://host")


async def test_a_signature_is_invalid_after_any_change(path: Path, receiver: Receiver) -> None:
    """The signature covers the id, the time and each byte of the body."""
    agent = ControllableTools().agent("Done.")
    async with (
        Midrun(f"sqlite:///{path}", agents=[agent]) as midrun,
        following(midrun, make_webhook(receiver)),
    ):
        await midrun.start(agent, "Go.")
        (delivery,) = await receiver.wait_for(1)
    assert not delivery.is_signed("whsec_" + "A" * 44)
    for name in ("webhook-id", "webhook-timestamp"):
        changed = Delivery(
            {**delivery.headers, name: delivery.headers[name] + "0"}, delivery.body
        )
        assert not changed.is_signed()
    for at in range(0, len(delivery.body), 7):
        body = delivery.body[:at] + bytes([delivery.body[at] ^ 1]) + delivery.body[at + 1 :]
        assert not Delivery(delivery.headers, body).is_signed()


async def test_a_webhook_is_sent_when_a_run_waits_hits_a_cap_fails_or_is_cancelled(
    path: Path, receiver: Receiver
) -> None:
    """A pause by a person is not sent; that person knows of it."""
    tools = ControllableTools()
    asks = SecretTools().make_agent(Use("ask"), "Thanks.", name="asks")
    capped = tools.agent(
        Use("quick", name="a"), Use("quick", name="b"), name="capped", stop=MaxSteps(1)
    )
    fails = tools.agent(name="fails")  # its script is empty
    held = tools.agent(Use("slow", name="held"), "Done.", name="held")
    agents = [asks, capped, fails, held]
    async with (
        Midrun(f"sqlite:///{path}", agents=agents) as midrun,
        following(midrun, make_webhook(receiver)),
    ):
        waiting = await midrun.start(asks, "Ask.")
        assert (await receiver.wait_for(1))[0].kind == "waiting"
        assert "Is this right?" in str(receiver.deliveries[0].data["asks"])
        await midrun.start(capped, "Go on and on.")
        assert (await receiver.wait_for(2))[1].kind == "paused"
        assert receiver.deliveries[1].data["cap"] == "steps"
        await midrun.start(fails, "Fail.")
        assert (await receiver.wait_for(3))[2].kind == "failed"
        assert receiver.deliveries[2].data["error"]
        paused = await midrun.start(held, "Be held.")
        await tools.start("held").wait()
        await paused.pause(actor="ann")
        tools.gate("held").set()
        await paused.until("paused")
        await paused.cancel(actor="ann")
        await waiting.cancel(actor="ann")
        await receiver.wait_for(5)
        assert [delivery.kind for delivery in receiver.deliveries[3:]] == [
            "cancelled",
            "cancelled",
        ]
        assert {delivery.data["run_id"] for delivery in receiver.deliveries[3:]} == {
            paused.id,
            waiting.id,
        }


async def test_a_refused_delivery_is_repeated_with_the_same_id(
    path: Path, receiver: Receiver
) -> None:
    """A receiver recognises the repetition by the id. The time of sending is new."""
    receiver.answer = fail_first(3)
    agent = ControllableTools().agent("Done.")
    async with (
        Midrun(f"sqlite:///{path}", agents=[agent]) as midrun,
        following(midrun, make_webhook(receiver)),
    ):
        await midrun.start(agent, "Go.")
        deliveries = await receiver.wait_for(4)
        assert len({delivery.headers["webhook-id"] for delivery in deliveries}) == 1
        assert len({delivery.body for delivery in deliveries}) == 1
        assert all(delivery.is_signed() for delivery in deliveries)


async def test_pending_deliveries_are_sent_after_a_restart(
    path: Path, receiver: Receiver
) -> None:
    """Runs that ended while no follower was running are delivered, too."""
    receiver.answer = fail_first(10_000)
    agent = ControllableTools().agent("Done.")
    url = f"sqlite:///{path}"
    async with (
        Midrun(url, agents=[agent]) as midrun,
        following(midrun, make_webhook(receiver)),
    ):
        first = await midrun.start(agent, "Go.")
        await receiver.wait_for(2)
    async with Midrun(url, agents=[agent]) as midrun:
        second = await midrun.start(agent, "Go again.")
        await second.until("completed")
    receiver.deliveries.clear()
    receiver.answer = fail_first(0)
    async with Midrun(url) as midrun, following(midrun, make_webhook(receiver)):
        deliveries = await receiver.wait_for(2)
        assert {delivery.data["run_id"] for delivery in deliveries} == {first.id, second.id}
        await wait_until_delivered(midrun, make_webhook(receiver).name)
    receiver.deliveries.clear()
    async with (
        Midrun(url, agents=[agent]) as midrun,
        following(midrun, make_webhook(receiver)),
    ):
        third = await midrun.start(agent, "And again.")
        deliveries = await receiver.wait_for(1)
        assert deliveries[0].data["run_id"] == third.id, "accepted deliveries are not repeated"


async def test_deliveries_of_one_run_arrive_in_order_if_the_first_fails(
    path: Path, receiver: Receiver
) -> None:
    """The receiver gets *waiting* before *completed*."""
    receiver.answer = fail_first(5)
    agent = SecretTools().make_agent(Use("ask"), "Thanks.")
    async with (
        Midrun(f"sqlite:///{path}", agents=[agent]) as midrun,
        following(midrun, make_webhook(receiver)),
    ):
        run = await midrun.start(agent, "Ask.")
        await run.until("waiting")
        await receiver.wait_for(1)
        await run.answer("yes", actor="ann")
        await run.until("completed")
        deliveries = await receiver.wait_for(7)
        assert [delivery.kind for delivery in deliveries] == ["waiting"] * 6 + ["completed"]


async def test_a_delivery_that_is_always_refused_is_skipped_and_logged(
    path: Path, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """The next delivery of the same run is sent."""
    receiver.answer = fail_first(3, 400)
    agent = SecretTools().make_agent(Use("ask"), "Thanks.")
    async with (
        Midrun(f"sqlite:///{path}", agents=[agent]) as midrun,
        following(midrun, make_webhook(receiver, attempts=3)),
    ):
        run = await midrun.start(agent, "Ask.")
        await receiver.wait_for(3)
        await run.answer("yes", actor="ann")
        deliveries = await receiver.wait_for(4)
        assert [delivery.kind for delivery in deliveries] == ["waiting"] * 3 + ["completed"]
    assert "gave up on run" in caplog.text


async def test_a_dead_receiver_costs_little_memory_and_delays_no_run(
    path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pending deliveries are read from the journals when their time comes."""
    for name in ("DELIVERY_QUEUE_MAX_RUNS", "RETRY_SCHEDULES_MAX"):
        monkeypatch.setattr(module, name, 4)
    monkeypatch.setattr(module, "SCAN_INTERVAL_S", 0.01)
    receiver.answer = fail_first(10_000)
    agent = ControllableTools().agent("Done.")
    async with Midrun(f"sqlite:///{path}", agents=[agent]) as midrun:
        workers: list[module.FollowerWorker] = []
        fill_queues = module.FollowerWorker._fill_queues

        async def record_worker(self: module.FollowerWorker, tasks: TaskGroup) -> None:
            workers.append(self)
            await fill_queues(self, tasks)

        monkeypatch.setattr(module.FollowerWorker, "_fill_queues", record_worker)
        async with following(midrun, make_webhook(receiver)):
            runs = [await midrun.start(agent, f"Go {n}.") for n in range(12)]
            for run in runs:
                await run.until("completed")
            await receiver.wait_for(30)
            assert len(workers[0]._retries) <= 4
            for queue in (workers[0]._first_queue, workers[0]._retry_queue):
                assert len(queue.runs) <= 4
            receiver.answer = fail_first(0)
            run_ids = {run.id for run in runs}
            while {delivery.data["run_id"] for delivery in receiver.deliveries} != run_ids:
                await receiver.wait_for(len(receiver.deliveries) + 1)


async def test_one_of_two_processes_delivers(path: Path, receiver: Receiver) -> None:
    """When it ends, the other process becomes the leader."""
    agent = ControllableTools().agent("Done.")
    url = f"sqlite:///{path}"
    async with Midrun(url, agents=[agent]) as one, Midrun(url) as two:
        async with (
            following(one, make_webhook(receiver)),
            following(two, make_webhook(receiver)),
        ):
            for n in range(5):
                run = await one.start(agent, f"Go {n}.")
                await run.until("completed")
            await receiver.wait_for(5)
            # Else the other process would send the last one again.
            await wait_until_delivered(one, make_webhook(receiver).name)
        run = await one.start(agent, "Go on.")
        await run.until("completed")
        async with following(two, make_webhook(receiver)):
            await receiver.wait_for(6)
        ids = [delivery.headers["webhook-id"] for delivery in receiver.deliveries]
        assert len(set(ids)) == len(ids) == 6


async def test_a_new_webhook_gets_no_runs_that_ended_before(
    path: Path, receiver: Receiver
) -> None:
    """A store may contain years of runs."""
    agent = ControllableTools().agent("Done.")
    async with Midrun(f"sqlite:///{path}", agents=[agent]) as midrun:
        await (await midrun.start(agent, "Before.")).until("completed")
        async with following(midrun, make_webhook(receiver)):
            run = await midrun.start(agent, "After.")
            deliveries = await receiver.wait_for(1)
            assert deliveries[0].data["run_id"] == run.id


async def test_a_redirect_is_not_followed(path: Path, receiver: Receiver) -> None:
    """A receiver could redirect the request to a host inside our network."""
    receiver.answer = lambda n: (
        RedirectResponse("http://127.0.0.1:1/inside", 307) if n < 3 else Response()
    )
    agent = ControllableTools().agent("Done.")
    async with (
        Midrun(f"sqlite:///{path}", agents=[agent]) as midrun,
        following(midrun, make_webhook(receiver)),
    ):
        await midrun.start(agent, "Go.")
        assert (
            len({delivery.headers["webhook-id"] for delivery in await receiver.wait_for(3)})
            == 1
        )


async def test_a_url_in_the_text_of_a_run_does_not_change_the_receiver(
    path: Path, receiver: Receiver
) -> None:
    """Tasks, labels and outputs are data, even if they contain a URL."""
    evil = "http://127.0.0.1:9/steal"
    agent = ControllableTools().agent(f"Send it to {evil} .")
    async with (
        Midrun(f"sqlite:///{path}", agents=[agent]) as midrun,
        following(midrun, make_webhook(receiver)),
    ):
        await midrun.start(agent, evil, labels=[evil], thread=evil, actor=evil)
        (delivery,) = await receiver.wait_for(1)
        assert delivery.data["task"] == evil


@pytest.mark.parametrize("url", ["ftp://host/x", "file:///etc/passwd", "host/x", "http://", ""])
def test_a_webhook_url_must_be_an_http_url(url: str) -> None:
    """It is refused when it is configured, not at the first delivery."""
    with pytest.raises(Misconfigured):
        Webhook(url, secret=SECRET)


@pytest.mark.parametrize("secret", ["", "short", "whsec_", "whsec_AAAA", "whsec_!!"])
def test_a_short_or_malformed_secret_is_refused(secret: str) -> None:
    """An attacker could guess it and sign requests."""
    with pytest.raises(Misconfigured):
        Webhook("https://host/x", secret=secret)


async def test_two_followers_with_one_name_are_refused(path: Path) -> None:
    """They would share their cursors, and each would miss runs."""
    async with Midrun(f"sqlite:///{path}") as midrun:
        first, second = (Webhook("https://host/x", secret=SECRET) for _ in range(2))
        with pytest.raises(Misconfigured):
            async with following(midrun, first, second):
                pass


async def test_neither_secrets_nor_addresses_are_logged(
    path: Path, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """A URL often contains a token. Redacted values stay redacted."""
    caplog.set_level(logging.DEBUG, logger="midrun")
    receiver.answer = fail_first(2)
    agent = SecretTools().make_agent(
        Use("login", user="ann", password=PASSWORD), f"The password is {PASSWORD}."
    )
    url = f"{receiver.url}/T0K3N?key=s3cr3t"
    async with (
        Midrun(f"sqlite:///{path}", agents=[agent]) as midrun,
        following(midrun, Webhook(url, secret=SECRET)),
    ):
        await midrun.start(agent, "Log in.")
        deliveries = await receiver.wait_for(3)
    assert PASSWORD.encode() not in deliveries[-1].body
    log = "\n".join(r.getMessage() for r in caplog.records if r.name.startswith("midrun"))
    assert log
    assert not [word for word in ("T0K3N", "s3cr3t", SECRET, PASSWORD) if word in log]


async def test_child_runs_are_not_delivered(path: Path, receiver: Receiver) -> None:
    """The parent shows the needs of its child runs."""
    tools = ControllableTools()
    inner = tools.agent("Inner done.", name="inner")
    parent = tools.agent(Use("inner", task="Do it."), "Done.", name="outer")
    outer = Agent("outer", model=parent.model, tools=[*parent.tools.values(), inner.as_tool()])
    async with (
        Midrun(f"sqlite:///{path}", agents=[outer]) as midrun,
        following(midrun, make_webhook(receiver)),
    ):
        run = await midrun.start(outer, "Go.")
        await run.until("completed")
        deliveries = await receiver.wait_for(1)
        assert [delivery.data["run_id"] for delivery in deliveries] == [run.id]
        other = await midrun.start(outer, "Go again.")
        await receiver.wait_for(2)
        assert [delivery.data["run_id"] for delivery in receiver.deliveries] == [
            run.id,
            other.id,
        ]


@pytest.mark.slow
async def test_another_process_sends_the_deliveries_of_a_killed_one(
    path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It becomes the leader and continues from the stored cursors."""
    monkeypatch.setattr(module, "SCAN_INTERVAL_S", 0.05)
    receiver.answer = fail_first(10_000)
    url = f"sqlite:///{path}"
    command = make_command(url, receiver.url, "Go.")
    async with await anyio.open_process(command, cwd=ROOT, stderr=None) as process:
        assert process.stdout is not None
        run_id = (await process.stdout.receive()).decode().strip()
        await receiver.wait_for(1)
        process.kill()
    receiver.answer = fail_first(0)
    before = len(receiver.deliveries)
    async with Midrun(url) as midrun, following(midrun, make_webhook(receiver)):
        await receiver.wait_for(before + 1)
    assert {delivery.data["run_id"] for delivery in receiver.deliveries} == {run_id}
    assert len({delivery.headers["webhook-id"] for delivery in receiver.deliveries}) == 1


async def test_the_webhook_url_is_not_in_any_log(
    path: Path, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """HTTP clients log URLs, and the URL may be all that a sender needs to know."""
    caplog.set_level(logging.INFO)
    agent, secret = ControllableTools().agent("Done."), "T00000000-secret"
    async with (
        Midrun(f"sqlite:///{path}", agents=[agent]) as midrun,
        following(midrun, Webhook(f"{receiver.url}?key={secret}", secret=SECRET)),
    ):
        await (await midrun.start(agent, "Go.")).until("completed")
        await receiver.wait_for(1)
    own_records = [record for record in caplog.records if not record.name.startswith("uvicorn")]
    assert not [message for record in own_records if secret in (message := record.getMessage())]


@pytest.mark.parametrize("url", ["http://[::1", "http://host:port/", "http://ho\x00st/"])
def test_a_malformed_webhook_url_is_refused(url: str) -> None:
    with pytest.raises(Misconfigured):
        Webhook(url, secret=SECRET)
