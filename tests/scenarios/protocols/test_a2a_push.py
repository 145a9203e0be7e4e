"""Push notifications of A2A, with the client of its SDK and a receiver on a real socket."""

from collections.abc import AsyncIterator

import anyio
import pytest
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import (
    A2AError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotFoundError,
)
from google.protobuf.json_format import Parse
from starlette.responses import RedirectResponse, Response

from midrun import Agent, ask_human
from midrun.errors import Misconfigured
from midrun.followers import following
from midrun.followers import worker as worker_module
from midrun.models import ScriptedModel, Use
from midrun.ports.follower_cursors import HasFollowerCursors
from midrun.ports.push_targets import HasPushTargets
from midrun.server import Bridges
from midrun.server.a2a.push import CONFIGS_MAX_PER_TASK, PushNotifications
from midrun.testing.controllable_tools import ControllableTools
from tests.scenarios.protocols.conftest import ProtocolServer, ServeAgent, open_http_client
from tests.scenarios.protocols.test_a2a import BINDINGS, make_message, open_a2a_client
from tests.unit.followers.receiver import Delivery, Receiver, run_receiver

pytestmark = pytest.mark.once

TIMEOUT_S = 60.0

TOKEN = "token-of-the-client"
CREDENTIALS = "secret-of-the-receiver"


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """Run a receiver."""
    with anyio.fail_after(TIMEOUT_S):
        async with run_receiver() as running:
            yield running


ASK = Use("ask_human", question="Which?")


def make_asking_agent(stage: ControllableTools, *turns: object) -> Agent:
    """Return an agent with the controllable tools that can ask, too."""
    model = ScriptedModel(list(turns))  # type: ignore[arg-type]  # checked there
    return Agent("actor", model=model, tools=[*stage.tools(), ask_human])


def allow(receiver: Receiver) -> Bridges:
    """Return the settings of a server that may send to the receiver."""
    return Bridges(push_to=(find_origin(receiver),))


def find_origin(receiver: Receiver) -> str:
    """Return the origin of the receiver."""
    return receiver.url.removesuffix("/hook")


def make_config(
    url: str, task: str = "", config_id: str = "", token: str = TOKEN
) -> pb.TaskPushNotificationConfig:
    """Return a configuration with a token and credentials."""
    return pb.TaskPushNotificationConfig(
        id=config_id,
        task_id=task,
        url=url,
        token=token,
        authentication=pb.AuthenticationInfo(scheme="Bearer", credentials=CREDENTIALS),
    )


def make_pushed_message(text: str, url: str, task: str = "") -> pb.SendMessageRequest:
    """Return a message that asks for notifications."""
    request = make_message(text, task)
    request.configuration.task_push_notification_config.CopyFrom(make_config(url))
    return request


def read_task(delivery: Delivery) -> pb.Task:
    """Return the task in a notification, parsed by the SDK's own types."""
    assert delivery.headers["content-type"] == "application/a2a+json"
    response = Parse(delivery.body, pb.StreamResponse())
    assert response.WhichOneof("payload") == "task"
    return response.task


def name_state(delivery: Delivery) -> str:
    """Return the state of the task in a notification."""
    return pb.TaskState.Name(read_task(delivery).status.state).removeprefix("TASK_STATE_")


async def wait_until_delivered(server: ProtocolServer) -> None:
    """Wait until the follower has passed the end of every run."""
    assert isinstance(server.mid.store, HasFollowerCursors)
    cursors = server.mid.store.follower_cursors()
    for _ in range(3000):
        if not await cursors.list_behind(PushNotifications.name, limit=1):
            return
        await anyio.sleep(0.01)
    raise AssertionError("a cursor was not moved")


async def list_targets(server: ProtocolServer, run: str) -> int:
    """Return the number of addresses that the store has for a run."""
    assert isinstance(server.mid.store, HasPushTargets)
    return len(await server.mid.store.push_targets().list_targets(run))  # type: ignore[arg-type]


@BINDINGS
async def test_each_rest_of_a_task_is_posted_to_the_address_of_its_message(
    serve_agent: ServeAgent, stage: ControllableTools, receiver: Receiver, binding: str
) -> None:
    """A question, a pause, the end; with the token and the credentials of the receiver."""
    agent = make_asking_agent(stage, ASK, Use("slow", name="x"), "Done.")
    async with (
        serve_agent(agent, allow(receiver)) as server,
        open_a2a_client(server, binding) as client,
        following(server.mid, PushNotifications([find_origin(receiver)])),
    ):
        asked = [e async for e in client.send_message(make_pushed_message("Go.", receiver.url))]
        task = asked[0].task.id
        await receiver.wait_for(1)
        answer = make_message("That one.", task)
        answer.configuration.return_immediately = True
        async with anyio.create_task_group() as tasks:

            async def answer_it() -> None:
                async for _ in client.send_message(answer):
                    pass

            tasks.start_soon(answer_it)
            await stage.start("x").wait()
            run = await server.get_only_run()
            await run.pause(now=True)
            await run.until("paused")
        await receiver.wait_for(2)
        stage.gate("x").set()
        await run.resume()
        view = await run.until("completed")
        deliveries = await receiver.wait_for(3)
        states = [name_state(each) for each in deliveries]
        assert states == ["INPUT_REQUIRED", "INPUT_REQUIRED", "COMPLETED"]
        for delivery in deliveries:
            assert read_task(delivery).id == task == run.id
            assert delivery.headers["x-a2a-notification-token"] == TOKEN
            assert delivery.headers["authorization"] == f"Bearer {CREDENTIALS}"
        assert "Which?" in read_task(deliveries[0]).status.message.parts[0].text
        assert read_task(deliveries[2]).artifacts[0].parts[0].text == "Done."
        assert deliveries[2].headers["webhook-id"] == f"{run.id}:{view.seq}"


@BINDINGS
async def test_configurations_are_created_read_listed_and_deleted(
    serve_agent: ServeAgent, stage: ControllableTools, receiver: Receiver, binding: str
) -> None:
    """A deleted one gets nothing. Credentials are never returned."""
    agent = make_asking_agent(stage, ASK, "Done.")
    async with (
        serve_agent(agent, allow(receiver)) as server,
        open_a2a_client(server, binding) as client,
        following(server.mid, PushNotifications([find_origin(receiver)])),
    ):
        assert (await read_card(server))["capabilities"]["pushNotifications"] is True
        async for _ in client.send_message(make_message("Go.")):
            pass
        run = await server.get_only_run()
        for name in ("one", "two"):
            sent = make_config(f"{receiver.url}/{name}", run.id, name)
            created = await client.create_task_push_notification_config(sent)
            assert (created.id, created.url) == (name, sent.url)
            assert created.authentication == pb.AuthenticationInfo(scheme="Bearer")
        get = pb.GetTaskPushNotificationConfigRequest(task_id=run.id, id="one")
        assert (await client.get_task_push_notification_config(get)).url.endswith("/one")
        listing = pb.ListTaskPushNotificationConfigsRequest(task_id=run.id)
        listed = await client.list_task_push_notification_configs(listing)
        assert [config.id for config in listed.configs] == ["one", "two"]
        assert CREDENTIALS not in str(listed)
        for _ in range(2):  # the second time it is gone already
            await client.delete_task_push_notification_config(
                pb.DeleteTaskPushNotificationConfigRequest(task_id=run.id, id="one")
            )
        with pytest.raises(TaskNotFoundError):
            await client.get_task_push_notification_config(get)
        await run.answer("That one.")
        (delivery,) = await receiver.wait_for(1)
        assert name_state(delivery) == "COMPLETED"  # the question came before the address
        await wait_until_delivered(server)
        assert len(receiver.deliveries) == 1


async def read_card(server: ProtocolServer) -> dict[str, dict[str, object]]:
    """Return the public card of the agent."""
    async with open_http_client(server) as client:
        reply = await client.get("/a2a/actor/.well-known/agent-card.json")
        card = reply.json()
        assert isinstance(card, dict)
        return card


async def test_without_an_allowed_origin_push_notifications_are_not_supported(
    serve_agent: ServeAgent, stage: ControllableTools, receiver: Receiver
) -> None:
    """The card says so, and each method and a message with an address are refused."""
    async with (
        serve_agent(stage.agent("Done.", "Done.")) as server,
        open_a2a_client(server) as client,
    ):
        assert (await read_card(server))["capabilities"]["pushNotifications"] is False
        with pytest.raises(A2AError, match=r"(?i)push"):
            async for _ in client.send_message(make_pushed_message("Go.", receiver.url)):
                pass
        async for _ in client.send_message(make_message("Go on.")):
            pass
        run = await server.get_only_run()  # the refused message has started none
        config = pb.TaskPushNotificationConfig(task_id=run.id, url=receiver.url)
        with pytest.raises((PushNotificationNotSupportedError, A2AError), match=r"(?i)push"):
            await client.create_task_push_notification_config(config)


@pytest.mark.parametrize(
    ("url", "token", "problem"),
    [
        ("http://169.254.169.254/latest", "t", "has not allowed it"),
        ("http://127.0.0.1:1/hook", "t", "has not allowed it"),
        ("ORIGIN@evil.example/hook", "t", "user name"),
        ("ORIGIN.evil.example/hook", "t", "Cannot send to"),
        ("file:///etc/passwd", "t", "must begin with https"),
        ("", "t", "must begin with https"),
        ("ORIGIN/hook", "t\r\nX-Other: 1", "printable"),
        ("ORIGIN/" + "h" * 2100, "t", "at most"),
    ],
)
async def test_an_address_that_the_operator_has_not_allowed_is_refused(
    serve_agent: ServeAgent,
    stage: ControllableTools,
    receiver: Receiver,
    url: str,
    token: str,
    problem: str,
) -> None:
    """No client can make the server reach another host; nothing is started or stored."""
    origin = find_origin(receiver)
    async with (
        serve_agent(stage.agent("Done."), allow(receiver)) as server,
        open_a2a_client(server) as client,
    ):
        request = make_message("Go.")
        request.configuration.task_push_notification_config.CopyFrom(
            make_config(url.replace("ORIGIN", origin), token=token)
        )
        with pytest.raises(InvalidParamsError, match=problem):
            async for _ in client.send_message(request):
                pass
        assert not (await server.mid.runs()).items


async def test_a_redirect_is_not_followed_and_the_notification_is_retried(
    serve_agent: ServeAgent,
    stage: ControllableTools,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The receiver cannot send it to another host either. A retry has the same id."""
    monkeypatch.setattr(worker_module, "RETRY_FIRST_DELAY_S", 0.01)
    async with run_receiver() as other:
        receiver.answer = lambda number: (
            RedirectResponse(other.url) if number == 1 else Response(status_code=204)
        )
        async with (
            serve_agent(stage.agent("Done."), allow(receiver)) as server,
            open_a2a_client(server) as client,
            following(server.mid, PushNotifications([find_origin(receiver)])),
        ):
            async for _ in client.send_message(make_pushed_message("Go.", receiver.url)):
                pass
            first, second = await receiver.wait_for(2)
            assert first.body == second.body
            assert first.headers["webhook-id"] == second.headers["webhook-id"]
            await wait_until_delivered(server)
        assert not other.deliveries


async def test_addresses_survive_a_restart_and_one_that_fails_does_not_repeat_the_other(
    serve_agent: ServeAgent,
    stage: ControllableTools,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server stops before the notification; the next one sends it, once to each."""
    monkeypatch.setattr(worker_module, "RETRY_FIRST_DELAY_S", 0.01)
    async with run_receiver() as failing:
        failing.answer = lambda number: Response(status_code=503 if number < 4 else 200)
        bridges = Bridges(push_to=(find_origin(receiver), find_origin(failing)))
        agent = make_asking_agent(stage, ASK, "Done.")
        async with (
            serve_agent(agent, bridges) as server,
            open_a2a_client(server) as client,
        ):
            async with following(server.mid, PushNotifications(bridges.push_to)):
                pass  # the follower is known to the store, and has stopped
            async for _ in client.send_message(make_pushed_message("Go.", receiver.url)):
                pass
            run = await server.get_only_run()
            await client.create_task_push_notification_config(
                make_config(failing.url, run.id, "failing")
            )
        async with (
            serve_agent(agent, bridges) as server,
            following(server.mid, PushNotifications(bridges.push_to)),
        ):
            (asked,) = await receiver.wait_for(1)
            await (await server.get_only_run()).answer("That one.")
            _, done = await receiver.wait_for(2)
            deliveries = await failing.wait_for(4)
            await wait_until_delivered(server)
            assert [name_state(each) for each in (asked, done)] == [
                "INPUT_REQUIRED",
                "COMPLETED",
            ]
            assert {each.body for each in deliveries} == {done.body}
            assert (len(receiver.deliveries), len(failing.deliveries)) == (2, 4)


async def test_users_see_and_set_only_their_own(
    serve_agent: ServeAgent, stage: ControllableTools, receiver: Receiver
) -> None:
    """Another user does not find the task; an operator does not see the address of a user."""
    async with (
        serve_agent(make_asking_agent(stage, ASK), allow(receiver)) as server,
        open_a2a_client(server, user="ann") as ann,
        open_a2a_client(server, user="bob") as bob,
        open_a2a_client(server, user="olga") as olga,
    ):
        async for _ in ann.send_message(make_pushed_message("Go.", receiver.url)):
            pass
        run = await server.get_only_run()
        listing = pb.ListTaskPushNotificationConfigsRequest(task_id=run.id)
        removal = pb.DeleteTaskPushNotificationConfigRequest(task_id=run.id, id=run.id)
        config = make_config(receiver.url, run.id)
        for refused in (
            bob.list_task_push_notification_configs(listing),
            bob.create_task_push_notification_config(config),
            bob.delete_task_push_notification_config(removal),
        ):
            with pytest.raises(TaskNotFoundError):
                await refused
        assert not (await olga.list_task_push_notification_configs(listing)).configs
        await olga.delete_task_push_notification_config(removal)
        own = await ann.list_task_push_notification_configs(listing)
        assert [each.id for each in own.configs] == [run.id]


async def test_addresses_are_bounded_and_deleted_with_the_run(
    serve_agent: ServeAgent, stage: ControllableTools, receiver: Receiver
) -> None:
    """A replaced one does not count twice. A message that fails leaves none."""
    async with (
        serve_agent(stage.agent("Done."), allow(receiver)) as server,
        open_a2a_client(server) as client,
    ):
        async for _ in client.send_message(make_pushed_message("Go.", receiver.url)):
            pass
        run = await server.get_only_run()
        for number in (*range(CONFIGS_MAX_PER_TASK - 1), 0):
            config = make_config(receiver.url, run.id, f"c{number}")
            await client.create_task_push_notification_config(config)
        with pytest.raises(InvalidParamsError, match="at most 10"):
            await client.create_task_push_notification_config(
                make_config(receiver.url, run.id, "one too many")
            )
        assert await list_targets(server, run.id) == CONFIGS_MAX_PER_TASK
        with pytest.raises(A2AError):  # the run has ended
            async for _ in client.send_message(
                make_pushed_message("More.", f"{receiver.url}/2", run.id)
            ):
                pass
        get = pb.GetTaskPushNotificationConfigRequest(task_id=run.id, id=run.id)
        kept = await client.get_task_push_notification_config(get)
        assert kept.url == receiver.url
        await server.mid.store.delete_runs([run.id], by="olga")
        assert await list_targets(server, run.id) == 0


async def test_an_origin_that_is_not_allowed_any_more_gets_nothing(
    serve_agent: ServeAgent,
    stage: ControllableTools,
    receiver: Receiver,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The rule holds when a notification is sent, not only when its address came."""
    async with (
        serve_agent(stage.agent("Done."), allow(receiver)) as server,
        open_a2a_client(server) as client,
        following(server.mid, PushNotifications(["https://hooks.example"])),
    ):
        async for _ in client.send_message(make_pushed_message("Go.", receiver.url)):
            pass
        await wait_until_delivered(server)
        assert not receiver.deliveries
        assert "1 addresses that are not allowed any more" in caplog.text
        for secret in (receiver.url, TOKEN, CREDENTIALS):
            assert secret not in caplog.text


def test_an_origin_has_no_path() -> None:
    with pytest.raises(Misconfigured, match="push_to"):
        PushNotifications(["https://hooks.example/path"])
