"""A2A with the client of its own SDK, over JSON-RPC and REST."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
import httpx
import pytest
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.client.errors import A2AClientError
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    InternalError,
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value
from msgspec import Struct

from midrun import Agent, Call, Midrun, ask_human, tool
from midrun.core.entries import RunStarted
from midrun.core.ids import RunId
from midrun.core.transcript import Transcript
from midrun.core.values import Phase
from midrun.errors import StoreBusy
from midrun.models import ScriptedModel, Use
from midrun.server import serve
from midrun.server.a2a.tasks import TASK_STATES
from midrun.stops import MaxCost
from midrun.testing.controllable_tools import ControllableTools
from tests.scenarios.protocols.conftest import (
    ProtocolServer,
    ServeAgent,
    make_rpc_call,
    open_http_client,
)
from tests.unit.server.conftest import TIMEOUT_S, make_token
from tests.unit.server.http_calls import expect_status

pytestmark = pytest.mark.once


class Place(Struct):
    """An output type."""

    city: str


BINDINGS = pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])


@asynccontextmanager
async def open_a2a_client(
    server: ProtocolServer, binding: str = "JSONRPC", user: str = "olga"
) -> AsyncIterator[Client]:
    """Open the client of the SDK, which reads the agent card, with the token of `user`."""
    headers = {"Authorization": f"Bearer {make_token(user)}"}
    async with httpx.AsyncClient(headers=headers, timeout=TIMEOUT_S) as http:
        config = ClientConfig(
            streaming=True, httpx_client=http, supported_protocol_bindings=[binding]
        )
        yield await ClientFactory(config).create_from_url(f"{server.url}/a2a/actor")


def make_message(text: str, task: str = "", context: str = "") -> pb.SendMessageRequest:
    """Return a message of a user."""
    message = pb.Message(
        role=pb.Role.ROLE_USER,
        message_id=f"m-{text}",
        task_id=task,
        context_id=context,
        parts=[pb.Part(text=text)],
    )
    return pb.SendMessageRequest(message=message)


def summarize_event(event: pb.StreamResponse) -> tuple[str, str]:
    """Return the kind of the event, and its task state or artifact id."""
    kind = event.WhichOneof("payload") or ""
    if kind == "artifact_update":
        return kind, event.artifact_update.artifact.artifact_id
    status = event.task.status if kind == "task" else event.status_update.status
    return kind, pb.TaskState.Name(status.state).removeprefix("TASK_STATE_").lower()


@BINDINGS
async def test_a_task_is_started_followed_and_listed(
    serve_agent: ServeAgent, stage: ControllableTools, binding: str
) -> None:
    """The output is an artifact, and the id of the task is the id of the run."""
    agent = stage.agent(Use("quick", name="a"), "It is a.")
    async with serve_agent(agent) as server, open_a2a_client(server, binding) as client:
        seen = [
            summarize_event(event)
            async for event in client.send_message(make_message("What is it?"))
        ]
        assert seen[0][0] == "task"
        assert seen[-2:] == [("artifact_update", "output"), ("status_update", "completed")]
        run = await server.get_only_run()
        task = await client.get_task(pb.GetTaskRequest(id=run.id))
        assert [part.text for part in task.artifacts[0].parts] == ["It is a."]
        assert task.history[0].parts[0].text == "What is it?"
        for length, count in ((0, 0), (1, 1), (99, len(task.history))):
            short = await client.get_task(pb.GetTaskRequest(id=run.id, history_length=length))
            assert list(short.history) == list(task.history)[len(task.history) - count :]
        listed = await client.list_tasks(pb.ListTasksRequest())
        assert [task.id for task in listed.tasks] == [run.id]


@BINDINGS
async def test_a_message_to_a_working_task_redirects_it_at_once(
    serve_agent: ServeAgent, stage: ControllableTools, binding: str
) -> None:
    """The SDK's own executor would wait for the end of the first request."""
    agent = stage.agent(Use("slow", name="x"), "On the new course.")
    async with (
        serve_agent(agent) as server,
        open_a2a_client(server, binding) as client,
        anyio.create_task_group() as tasks,
    ):
        seen: list[tuple[str, str]] = []

        async def follow() -> None:
            seen.extend(
                [summarize_event(e) async for e in client.send_message(make_message("Go."))]
            )

        tasks.start_soon(follow)
        await stage.start("x").wait()
        run = await server.get_only_run()
        second = aiter(client.send_message(make_message("Change course.", run.id)))
        assert summarize_event(await anext(second)) == ("task", "working")
        assert [pending.text for pending in (await run.view()).pending] == ["Change course."]
        stage.gate("x").set()
        assert [summarize_event(e) async for e in second][-1] == ("status_update", "completed")
    assert seen[-1] == ("status_update", "completed")


@BINDINGS
async def test_a_cancel_ends_the_task_and_a_second_cancel_is_refused(
    serve_agent: ServeAgent, stage: ControllableTools, binding: str
) -> None:
    """The report of the cancel is an artifact."""
    agent = stage.agent(Use("draft", name="d"), Use("slow", name="x"))
    async with (
        serve_agent(agent) as server,
        open_a2a_client(server, binding) as client,
        anyio.create_task_group() as tasks,
    ):
        seen: list[tuple[str, str]] = []

        async def follow() -> None:
            seen.extend(
                [summarize_event(e) async for e in client.send_message(make_message("Go."))]
            )

        tasks.start_soon(follow)
        await stage.start("x").wait()
        run = await server.get_only_run()
        task = await client.cancel_task(pb.CancelTaskRequest(id=run.id))
        assert task.status.state == pb.TaskState.TASK_STATE_CANCELED
        assert "Done and kept" in task.artifacts[0].parts[0].text
        with pytest.raises(TaskNotCancelableError):
            await client.cancel_task(pb.CancelTaskRequest(id=run.id))
    assert seen[-1] == ("status_update", "canceled")


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (pb.Part(url="https://example.com/a.pdf"), "behind an address"),
        (pb.Part(raw=b"PK", media_type="application/zip"), "application/zip"),
    ],
)
async def test_a_file_that_no_model_reads_is_refused_and_no_run_is_started(
    serve_agent: ServeAgent, stage: ControllableTools, part: pb.Part, reason: str
) -> None:
    async with serve_agent(stage.agent("Done.")) as server, open_a2a_client(server) as client:
        request = make_message("Read this.")
        request.message.parts.append(part)
        with pytest.raises(ContentTypeNotSupportedError, match=reason):
            async for _ in client.send_message(request):
                pass
        assert not (await server.mid.runs()).items


async def test_files_reach_the_agent_and_artifacts_the_client(
    serve_agent: ServeAgent,
) -> None:
    """An artifact is the address of its file, which the client gets with its token."""
    seen: list[str] = []

    @tool
    async def draw(call: Call) -> str:
        """Draw a plan."""
        await call.show("plan.md", "text/markdown", "# Plan")
        return "drawn"

    def look(messages: Transcript) -> Use:
        seen.extend(file.name for file in messages[-1].files)
        return Use("draw")

    agent = Agent("actor", model=ScriptedModel([look, "Done."]), tools=[draw])
    async with serve_agent(agent) as server, open_a2a_client(server) as client:
        request = make_message("Plan it.")
        image = pb.Part(raw=b"PNG", media_type="image/png", filename="site.png")
        request.message.parts.append(image)
        events = [event async for event in client.send_message(request)]
        kinds = [summarize_event(event) for event in events]
        assert ("artifact_update", "shown:plan.md") in kinds
        run = await server.get_only_run()
        task = await client.get_task(pb.GetTaskRequest(id=run.id))
        assert [artifact.name for artifact in task.artifacts] == ["plan.md", "output"]
        async with open_http_client(server) as http:
            reply = expect_status(await http.get(task.artifacts[0].parts[0].url), 200)
        assert reply.text == "# Plan"
    assert seen == ["site.png"]


async def test_the_output_of_an_agent_with_an_output_type_is_data(
    serve_agent: ServeAgent,
) -> None:
    model = ScriptedModel([Use("output", city="Graz")])
    agent = Agent("actor", model=model, output=Place)
    async with serve_agent(agent) as server, open_a2a_client(server) as client:
        async for _ in client.send_message(make_message("Where?")):
            pass
        run = await server.get_only_run()
        (artifact,) = (await client.get_task(pb.GetTaskRequest(id=run.id))).artifacts
        (data,) = [part.data for part in artifact.parts if part.HasField("data")]
        assert data.struct_value["city"] == "Graz"


async def test_a_repeated_message_is_one_task_and_a_reused_id_another(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    """A client repeats a message whose reply was lost."""
    async with (
        serve_agent(stage.agent("One.", "Two.")) as server,
        open_a2a_client(server) as client,
    ):
        tasks = []
        for text in ("Go.", "Go.", "Go on."):
            request = make_message(text)
            request.message.message_id = "m-1"
            events = [event async for event in client.send_message(request)]
            tasks.append(events[0].task.id)
        assert tasks[0] == tasks[1] != tasks[2]


async def test_a_paused_task_is_input_required_and_a_message_resumes_it(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    """The pause is a Midrun extension; A2A has no such method."""
    agent = stage.agent(Use("read", name="x"), "Done.")
    async with serve_agent(agent) as server, open_a2a_client(server) as client:
        async with httpx.AsyncClient(
            headers={"Authorization": f"Bearer {make_token('olga')}"}, timeout=TIMEOUT_S
        ) as http:
            run = await server.mid.start("actor", "Go.", actor="olga")
            await stage.start("x").wait()
            call = make_rpc_call("midrun/PauseTask", id=run.id)
            reply = await http.post(f"{server.url}/a2a/actor", json=call)
            assert reply.json()["result"]["id"] == run.id
            stage.gate("x").set()
            await run.until("paused")
        task = await client.get_task(pb.GetTaskRequest(id=run.id))
        assert task.status.state == pb.TaskState.TASK_STATE_INPUT_REQUIRED
        assert task.status.message.parts[0].text.startswith("Paused by olga ")
        assert task.metadata["midrun.dev/state"] == "paused"
        seen = [
            summarize_event(e)
            async for e in client.send_message(make_message("Go on.", run.id))
        ]
        assert seen[-1] == ("status_update", "completed")


async def test_a_message_answers_a_question_and_gives_an_approval(
    serve_agent: ServeAgent,
) -> None:
    paid: list[int] = []

    @tool(approve=True)
    async def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    model = ScriptedModel([Use("ask_human", question="Whom?"), Use("pay", amount=5), "Done."])
    agent = Agent("actor", model=model, tools=[pay, ask_human])
    async with serve_agent(agent) as server, open_a2a_client(server) as client:
        seen = [summarize_event(e) async for e in client.send_message(make_message("Pay."))]
        assert seen[-1] == ("status_update", "input_required")
        run = await server.get_only_run()
        seen = [
            summarize_event(e) async for e in client.send_message(make_message("Ann", run.id))
        ]
        assert seen[-1] == ("status_update", "input_required")
        assert paid == []
        task = await client.get_task(pb.GetTaskRequest(id=run.id))
        shown = task.status.message.parts[0].text
        assert '{"amount":5}' in shown, "an approval needs the arguments"
        assert "Reply `approve`" in shown
        seen = [
            summarize_event(e) async for e in client.send_message(make_message("Yes.", run.id))
        ]
        assert seen[-1] == ("status_update", "completed")
        assert paid == [5]
        task = await client.get_task(pb.GetTaskRequest(id=run.id))
        history = [message.parts[0].text for message in task.history]
        question = history.index("Whom?")
        assert history[question + 1] == "Ann", "the history has what the client sent"
        assert history[-2:] == ["approve", "Done."]
        assert len({message.message_id for message in task.history}) == len(history)


async def test_a_data_part_answers_a_question(serve_agent: ServeAgent) -> None:
    """The answer is the member `answer`, or all of the data."""
    questions = [Use("ask_human", question="Whom?"), Use("ask_human", question="How?")]

    def list_answers(messages: Transcript) -> str:
        return str([use.result for turn in messages for use in turn.uses])

    model = ScriptedModel([*questions, list_answers])
    agent = Agent("actor", model=model, tools=[ask_human])
    async with serve_agent(agent) as server, open_a2a_client(server) as client:
        async for _ in client.send_message(make_message("Pay.")):
            pass
        run = await server.get_only_run()
        for data in ({"answer": "Ann"}, {"by": "mail"}):
            answer = make_message(str(data), run.id)
            del answer.message.parts[:]
            answer.message.parts.append(pb.Part(data=ParseDict(data, Value())))
            async for _ in client.send_message(answer):
                pass
        assert (await run.until("completed")).output == "['Ann', {'by': 'mail'}]"


@BINDINGS
async def test_a_subscription_goes_on_while_the_task_needs_input(
    serve_agent: ServeAgent, binding: str
) -> None:
    """It ends with the task."""
    model = ScriptedModel([Use("ask_human", question="Which?"), "Thanks."])
    agent = Agent("actor", model=model, tools=[ask_human])
    async with (
        serve_agent(agent) as server,
        open_a2a_client(server, binding) as client,
    ):
        seen = [summarize_event(e) async for e in client.send_message(make_message("Go."))]
        assert seen[-1] == ("status_update", "input_required")
        run = await server.get_only_run()
        subscribed = aiter(client.subscribe(pb.SubscribeToTaskRequest(id=run.id)))
        assert summarize_event(await anext(subscribed)) == ("task", "input_required")
        async for _ in client.send_message(make_message("This one.", run.id)):
            pass
        rest = [summarize_event(event) async for event in subscribed]
        assert rest[-1] == ("status_update", "completed")
        with pytest.raises(UnsupportedOperationError):
            await anext(aiter(client.subscribe(pb.SubscribeToTaskRequest(id=run.id))))


async def test_the_task_of_another_user_is_not_found(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    async with serve_agent(stage.agent("Secret.")) as server:
        run = await server.mid.start("actor", "Hm.", actor="ann")
        await run.until("completed")
        async with open_a2a_client(server, user="bob") as client:
            with pytest.raises(TaskNotFoundError):
                await client.get_task(pb.GetTaskRequest(id=run.id))


@BINDINGS
async def test_a_task_that_cannot_be_started_is_rejected_with_the_reason(
    serve_agent: ServeAgent, binding: str
) -> None:
    """No run was started, so the rejected task is not found later."""
    agent = Agent("actor", model=ScriptedModel(["So."]), stop=MaxCost(1))
    async with serve_agent(agent) as server, open_a2a_client(server, binding) as client:
        for context in ("", "c1"):
            request = make_message(f"Go{context}.", context=context)
            (event,) = [event async for event in client.send_message(request)]
            assert summarize_event(event) == ("task", "rejected")
            assert event.task.context_id.startswith(context or "ctx_")
            assert "Cannot enforce MaxCost" in event.task.status.message.parts[0].text
            with pytest.raises(TaskNotFoundError):
                await client.get_task(pb.GetTaskRequest(id=event.task.id))
        assert not (await server.mid.runs()).items


@BINDINGS
async def test_an_invalid_message_is_an_error_and_starts_no_task(
    serve_agent: ServeAgent, stage: ControllableTools, binding: str
) -> None:
    async with (
        serve_agent(stage.agent("So.")) as server,
        open_a2a_client(server, binding, user="bob") as client,
    ):
        with pytest.raises(InvalidParamsError, match="empty"):
            await anext(aiter(client.send_message(make_message(" "))))
        (task, *_) = [e.task async for e in client.send_message(make_message("Mine."))]
        with pytest.raises(InvalidParamsError, match="another context"):
            await anext(aiter(client.send_message(make_message("More.", task.id, "hers"))))


async def test_a_busy_store_is_an_internal_error_that_asks_for_a_retry(
    serve_agent: ServeAgent, stage: ControllableTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client would not retry a request that is reported as invalid."""
    async with serve_agent(stage.agent("So.")) as server, open_a2a_client(server) as client:

        async def busy(*_: object, **__: object) -> None:
            raise StoreBusy("runs.db", 5)

        with monkeypatch.context() as patched:
            patched.setattr(type(server.mid.store), "create", busy)
            with pytest.raises(InternalError, match="Try again"):
                await anext(aiter(client.send_message(make_message("Go."))))
        seen = [
            summarize_event(event) async for event in client.send_message(make_message("Go."))
        ]
        assert seen[-1] == ("status_update", "completed")


async def test_a_task_without_a_context_starts_one_that_a_second_task_continues(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    """The second run has the messages of the first as its history."""
    async with serve_agent(stage.agent("It is blue.", "As I said.")) as server:
        async with open_a2a_client(server, user="ann") as client:
            (first, *_) = [e.task async for e in client.send_message(make_message("Which?"))]
            assert first.context_id
            follows = make_message("Sure?", context=first.context_id)
            (second, *_) = [e.task async for e in client.send_message(follows)]
            assert second.context_id == first.context_id
            listed = pb.ListTasksRequest(context_id=first.context_id)
            tasks = (await client.list_tasks(listed)).tasks
            assert [task.id for task in tasks] == [second.id, first.id]
        (record,) = await server.mid.store.read(RunId(second.id), limit=1)
        assert isinstance(record.entry, RunStarted)
        assert "It is blue." in [message.text for message in record.entry.history]


async def test_the_agent_card_is_public_and_requires_a_token_for_calls(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    """The instructions are only in the extended card, which needs a token."""
    agent = stage.agent("So.", instructions="Handle the secret project.")
    async with serve_agent(agent) as server, httpx.AsyncClient(timeout=TIMEOUT_S) as http:
        for under in ("", "/a2a/actor"):
            reply = await http.get(f"{server.url}{under}/.well-known/agent-card.json")
            card = reply.json()
            assert card["name"] == "actor"
            assert card["supportedInterfaces"][0]["url"] == f"{server.url}/a2a/actor"
            assert card["capabilities"]["extensions"][0]["uri"] == "urn:midrun:a2a:pause:v1"
            scheme = card["securitySchemes"]["bearer"]["httpAuthSecurityScheme"]
            assert scheme["scheme"] == "Bearer"
            requirements = card["securityRequirements"]
            assert [list(needed["schemes"]) for needed in requirements] == [["bearer"]]
            assert "secret project" not in reply.text
        call = make_rpc_call("GetTask", id="x")
        assert (await http.post(f"{server.url}/a2a/actor", json=call)).status_code == 401
        async with open_a2a_client(server, user="ann") as client:
            card = await client.get_extended_agent_card(pb.GetExtendedAgentCardRequest())
        assert card.description == "Handle the secret project."
        missing = f"{server.url}/a2a/unknown_agent/.well-known/agent-card.json"
        assert (await http.get(missing)).status_code == 404


async def test_a_card_is_cached_until_it_changes(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    async with serve_agent(stage.agent("So.")) as server, open_http_client(server) as http:
        path = "/a2a/actor/.well-known/agent-card.json"
        reply = expect_status(await http.get(path), 200)
        assert "max-age=" in reply.headers["cache-control"]
        again = await http.get(path, headers={"If-None-Match": reply.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


async def test_json_rpc_errors_have_their_standard_codes(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    headers = {
        "Authorization": f"Bearer {make_token('olga')}",
        "Content-Type": "application/json",
    }
    pause = b'{"jsonrpc":"2.0","id":7,"method":"midrun/PauseTask","params":{"id":"run_0"}}'
    async with (
        serve_agent(stage.agent("So.")) as server,
        httpx.AsyncClient(timeout=TIMEOUT_S, headers=headers) as http,
    ):
        for text, request_id, code in ((b"{nonsense", None, -32700), (pause, 7, -32001)):
            reply = await http.post(f"{server.url}/a2a/actor", content=text)
            assert reply.status_code == 200
            body = reply.json()
            assert (body["id"], body["error"]["code"]) == (request_id, code)
        for text in (b"\xff\xfe", b"[" * 100_000):
            reply = await http.post(f"{server.url}/a2a/actor/message:send", content=text)
            assert reply.status_code == 400, "in REST, bytes that are no JSON are refused, too"


async def test_a_page_of_tasks_has_the_total_number_of_matching_tasks(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    """Matching are the tasks of the caller in the requested state."""
    agent = stage.agent("So.")
    async with serve_agent(agent) as server, open_a2a_client(server, user="ann") as client:
        for number in range(3):
            async for _ in client.send_message(make_message(f"Go {number}.")):
                pass
        page = await client.list_tasks(pb.ListTasksRequest(page_size=2))
        assert (len(page.tasks), page.total_size) == (2, 3)
        done = pb.TaskState.TASK_STATE_COMPLETED
        page = await client.list_tasks(pb.ListTasksRequest(page_size=1, status=done))
        assert (len(page.tasks), page.total_size) == (1, 3)
        failed = pb.TaskState.TASK_STATE_FAILED
        page = await client.list_tasks(pb.ListTasksRequest(status=failed))
        assert (len(page.tasks), page.total_size) == (0, 0)


async def test_a_stream_ends_when_the_server_closes(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    """An open stream must not delay the shutdown; the run itself continues."""
    agent = stage.agent(Use("read", name="x"), "Done.")
    async with serve_agent(agent) as server, open_a2a_client(server) as client:
        stream = aiter(client.send_message(make_message("Go.")))
        assert summarize_event(await anext(stream))[0] == "task"
        await stage.start("x").wait()
        server.close()
        with suppress(A2AClientError):  # the stream may end properly or be cut off
            async for _ in stream:
                pass
        stage.gate("x").set()
        assert (await (await server.get_only_run()).until("completed")).output == "Done."


@BINDINGS
async def test_a_stream_works_after_a_signal_to_another_server_of_the_process(
    serve_agent: ServeAgent, stage: ControllableTools, binding: str
) -> None:
    """The SSE library of the SDK remembers a signal for the whole process."""
    agent = stage.agent("One.", Use("quick", name="a"), "Two.")
    async with serve_agent(agent) as server, open_a2a_client(server, binding) as client:
        first = [
            summarize_event(event) async for event in client.send_message(make_message("One?"))
        ]
        with anyio.open_signal_receiver(signal.SIGTERM):
            async with Midrun("memory://") as other:
                await serve(
                    other,
                    port=0,
                    token=make_token("olga"),
                    say=lambda _: signal.raise_signal(signal.SIGTERM),
                )
        second = [
            summarize_event(event) async for event in client.send_message(make_message("Two?"))
        ]
        assert first[-1] == second[-1] == ("status_update", "completed")


async def test_a_client_of_a2a_0_3_is_answered_in_its_version(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    """Version 0.3 has other names for methods, roles, parts and states."""
    async with (
        serve_agent(stage.agent("It is a.")) as server,
        open_http_client(server) as client,
    ):
        parts = [{"kind": "text", "text": "Go."}]
        message = {"role": "user", "messageId": "1", "kind": "message", "parts": parts}
        shortened = {"blocking": True, "historyLength": 1}
        call = make_rpc_call("message/send", message=message, configuration=shortened)
        task = expect_status(await client.post("/a2a/actor", json=call), 200).json()["result"]
        assert (task["kind"], task["status"]["state"]) == ("task", "completed")
        assert len(task["history"]) == 1
        assert task["artifacts"][0]["parts"][0]["text"] == "It is a."


def test_every_phase_has_a_task_state() -> None:
    """Paused, waiting and halted are *input required*; pausing and cancelling are *working*."""
    states = {phase: TASK_STATES[phase] for phase in Phase}
    input_required = {p for p, state in states.items() if state == TASK_STATES[Phase.PAUSED]}
    working = {p for p, state in states.items() if state == TASK_STATES[Phase.RUNNING]}
    assert input_required == {Phase.PAUSED, Phase.WAITING, Phase.HALTED}
    assert working == {Phase.RUNNING, Phase.PAUSING, Phase.CANCELLING}
    assert len(set(states.values())) == 6
