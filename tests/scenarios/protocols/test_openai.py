"""OpenAI's protocols with the unmodified package `openai`: behavior of these protocols alone.

`test_chat_adapters.py` has the behavior that all chat protocols share.
"""

from base64 import b64decode, b64encode

import anyio
import pytest
from openai import (
    APIStatusError,
    AsyncOpenAI,
    AuthenticationError,
    NotFoundError,
    PermissionDeniedError,
    UnprocessableEntityError,
)
from openai.types.chat import ChatCompletionContentPartParam, ChatCompletionMessageParam
from openai.types.responses import (
    EasyInputMessageParam,
    Response,
    ResponseInputFileParam,
    ResponseTextDeltaEvent,
)
from openai.types.responses.response_input_param import McpApprovalResponse

from midrun import Actor, Agent, Call, Run, ask_human, tool
from midrun.core.entries import (
    AskAnswered,
    AskOpened,
    PauseRequested,
    RedirectRequested,
    RunStarted,
)
from midrun.core.transcript import Transcript
from midrun.models import ScriptedModel, Use
from midrun.server import Bridges
from midrun.testing.controllable_tools import ControllableTools
from tests.scenarios.protocols.chat_drivers import open_openai
from tests.scenarios.protocols.conftest import ServeAgent, open_http_client
from tests.support.gated_model import GatedModel, GatedReply
from tests.support.run_journal import read_entries, wait_for_entry, yield_until

pytestmark = pytest.mark.once

CHAT_HEADER = "X-OpenWebUI-Chat-Id"


async def say(client: AsyncOpenAI, *texts: str, chat: str = "t", **headers: str) -> str:
    """Send a conversation in a chat of Open WebUI; return the reply."""
    messages: list[ChatCompletionMessageParam] = [
        {"role": "assistant", "content": text}
        if number % 2
        else {"role": "user", "content": text}
        for number, text in enumerate(texts)
    ]
    reply = await client.chat.completions.create(
        model="actor",
        messages=messages,
        extra_headers={CHAT_HEADER: chat, **headers} if chat else headers,
    )
    return reply.choices[0].message.content or ""


def list_user_texts(messages: Transcript) -> str:
    """Return the texts of all messages of the user and of the agent."""
    return " | ".join(turn.text for turn in messages if turn.role in {"user", "assistant"})


async def test_the_agents_are_the_models(serve_agent: ServeAgent) -> None:
    agent = Agent("actor", model=ScriptedModel(["Done."]))
    async with serve_agent(agent) as server, open_openai(server.url, "vera") as client:
        assert [model.id async for model in client.models.list()] == ["actor"]
        assert (await client.models.retrieve("actor")).id == "actor"
        with pytest.raises(NotFoundError, match="Known agents: actor"):
            await client.models.retrieve("stranger")


async def test_tokens_and_roles_are_those_of_midrun(serve_agent: ServeAgent) -> None:
    """The errors have the form that the package reads."""
    agent = Agent("actor", model=ScriptedModel(["Done."]))
    async with serve_agent(agent) as server, open_openai(server.url, "vera") as viewer:
        with pytest.raises(PermissionDeniedError) as refused:
            await say(viewer, "Go.")
        assert refused.value.code == "not_allowed"
        with pytest.raises(AuthenticationError):
            await viewer.with_options(api_key="wrong").models.list()
        assert not (await server.mid.runs()).items


async def test_a_chat_of_open_webui_is_a_thread(serve_agent: ServeAgent) -> None:
    """The journal has the conversation: older messages of the body are not read."""
    model = ScriptedModel(["One.", list_user_texts])
    async with (
        serve_agent(Agent("actor", model=model)) as server,
        open_openai(server.url, "ann") as client,
    ):
        assert await say(client, "First.") == "One."
        assert await say(client, "Changed.", "Changed.", "Second.") == "First. | One. | Second."
        assert {view.thread for view in (await server.mid.runs()).items} == {"t"}


async def test_two_temporary_chats_of_open_webui_are_two_threads(
    serve_agent: ServeAgent,
) -> None:
    """All temporary chats of a page have the same id; their first messages differ."""
    model = ScriptedModel(["One.", list_user_texts, list_user_texts])
    agent, page = Agent("actor", model=model), "temporary:XKWTqIm37J7-PLzfAAAV"
    async with serve_agent(agent) as server, open_openai(server.url, "ann") as client:
        assert await say(client, "First.", chat=page) == "One."
        second = await say(client, "First.", "One.", "Second.", chat=page)
        assert second == "First. | One. | Second."
        assert await say(client, "Another.", chat=page) == "One."
        assert len({view.thread for view in (await server.mid.runs()).items}) == 2


async def test_a_client_without_a_thread_brings_its_history(serve_agent: ServeAgent) -> None:
    model = ScriptedModel(["Not used.", list_user_texts])
    async with (
        serve_agent(Agent("actor", model=model)) as server,
        open_openai(server.url, "ann") as client,
    ):
        said = await say(client, "First.", "One.", "Second.", chat="")
        assert said == "First. | One. | Second."
        await server.get_only_run()


async def test_a_task_of_open_webui_does_not_reach_the_agent(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    """It asks the model of the chat for a title, under the id of the chat."""
    agent = stage.agent(Use("slow", name="x"), "Done.")
    async with serve_agent(agent) as server, open_openai(server.url, "ann") as client:
        await server.mid.start("actor", "Go.", thread="t", actor=Actor(name="ann"))
        await stage.start("x").wait()
        with pytest.raises(UnprocessableEntityError, match="task model"):
            await say(client, "### Task:\nGenerate a concise, 3-5 word title")
        run = await server.get_only_run()
        assert not await read_entries(run, RedirectRequested)
        stage.gate("x").set()
        await run.until("completed")


async def test_an_approval_needs_an_explicit_word_and_names_the_way_to_answer(
    serve_agent: ServeAgent,
) -> None:
    """With two open asks, the words name the ask; any other text redirects the run."""
    paid: list[int] = []

    @tool(approve=True)
    async def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    calls = [Use("pay", amount=1), Use("pay", amount=2)]
    agent = Agent("actor", model=ScriptedModel([calls, "Done."]), tools=[pay])
    async with serve_agent(agent) as server, open_openai(server.url, "ann") as client:
        shown = await say(client, "Pay.")
        assert '{"amount":1}' in shown
        assert "`approve a1`" in shown
        assert "`decline a2`" in shown
        left = await say(client, "Pay.", shown, "Approve a2")
        assert "`approve`, or `decline`" in left
        assert paid == [2]
        assert await say(client, "Pay.", shown, "a2", left, "decline: too much") == "Done."
        assert paid == [2]


async def test_a_late_decision_about_a_named_call_leaves_the_other_calls_open(
    serve_agent: ServeAgent,
) -> None:
    """As a redirect, it would withdraw the other call."""

    @tool(approve=True)
    async def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    calls = [Use("pay", amount=1), Use("pay", amount=2)]
    agent = Agent("actor", model=ScriptedModel([calls, "Done."]), tools=[pay])
    async with serve_agent(agent) as server, open_openai(server.url, "ann") as client:
        await say(client, "Pay.")
        await (await server.get_only_run()).approve(ask="a1", actor="ada")
        with pytest.raises(APIStatusError, match="ada"):
            await say(client, "Pay.", "Hm.", "decline a1")
        assert await say(client, "Pay.", "Hm.", "approve a2") == "Done."


async def test_a_word_decides_no_call_that_its_writer_has_not_seen(
    serve_agent: ServeAgent,
) -> None:
    """Another person has decided about the call that the word was written for."""
    paid: list[int] = []

    @tool(approve=True)
    async def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    model = ScriptedModel([Use("pay", amount=1), Use("pay", amount=2000), "Done."])
    agent = Agent("actor", model=model, tools=[pay])
    async with serve_agent(agent) as server, open_openai(server.url, "ann") as client:
        shown = await say(client, "Pay.")
        run = await server.get_only_run()
        await run.approve(ask="a1", actor="ada")
        await wait_for_entry(run, AskOpened, 2)
        await run.until("waiting")
        with pytest.raises(APIStatusError, match="approve a2") as refused:
            await say(client, "Pay.", shown, "approve")
        assert '{"amount":2000}' in str(refused.value)
        assert paid == [1]
        assert await say(client, "Pay.", shown, "approve a2") == "Done."
        assert paid == [1, 2000]


async def test_only_a_message_with_a_text_answers_a_question(serve_agent: ServeAgent) -> None:
    """*Continue response* of Open WebUI sends the reply of the agent as the newest message."""
    model = ScriptedModel([Use("ask_human", question="Which?"), "Thanks."])
    agent = Agent("actor", model=model, tools=[ask_human])
    async with serve_agent(agent) as server, open_openai(server.url, "ann") as client:
        shown = await say(client, "Go.")
        with pytest.raises(APIStatusError, match="Send a message") as refused:
            await say(client, "Go.", shown)
        assert refused.value.status_code == 409
        assert await say(client, "Go.", shown, "This.") == "Thanks."


async def test_a_paused_reply_is_not_complete_and_says_how_to_go_on(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    agent = stage.agent(Use("read", name="x"), "Done.")
    replies: list[tuple[str, str]] = []
    async with serve_agent(agent) as server, open_openai(server.url, "ann") as client:

        async def ask() -> None:
            reply = await client.chat.completions.create(
                model="actor", messages=[{"role": "user", "content": "Go."}]
            )
            choice = reply.choices[0]
            replies.append((choice.finish_reason, choice.message.content or ""))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await stage.start("x").wait()
            await (await server.get_only_run()).pause(now=True, actor="ada")
        text = (
            "*Paused by ada at turn 1. Everything is kept. The next message resumes the run.*"
        )
        assert replies == [("length", text)]


async def test_a_client_that_leaves_a_reply_without_a_stream_pauses_its_run(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    agent = stage.agent(Use("read", name="x"), "Done.")
    async with (
        serve_agent(agent, Bridges(grace_s=0.05)) as server,
        open_openai(server.url, "ann") as client,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(say, client, "Go.")
        await stage.start("x").wait()
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await (await server.get_only_run()).until("paused")


async def test_a_repeated_request_gets_the_same_reply_and_is_not_sent_twice(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    """The package repeats a request whose connection broke; it counts, but names no request."""
    agent = stage.agent("One.", "Two.", "Three.")
    async with serve_agent(agent) as server, open_openai(server.url, "ann") as client:
        again = {"x-stainless-retry-count": "1"}
        assert await say(client, "Go.") == "One."
        assert await say(client, "Go.", **again) == "One."
        key = {"Idempotency-Key": "k"}
        assert await say(client, "Go.", **key) == "Two."
        assert await say(client, "Go.", **key) == "Two."
        assert len((await server.mid.runs()).items) == 2


async def test_a_refused_request_is_not_repeated_by_the_package(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    """It would repeat a 409 and each 5xx; a failed run would be resumed by that."""

    def fail(messages: Transcript) -> str:
        del messages
        stage.called.append("model")
        raise RuntimeError("no luck")

    agent = Agent("actor", model=ScriptedModel([fail, fail, fail]))
    async with serve_agent(agent) as server, open_openai(server.url, "ann") as client:
        with pytest.raises(APIStatusError, match="no luck") as failed:
            await say(client.with_options(max_retries=2), "Go.")
        assert failed.value.status_code == 502
        assert stage.called == ["model"]
        assert (await (await server.get_only_run()).view()).phase == "failed"


# ── responses ─────────────────────────────────────────────────────────────────────────────


async def wait_for_status(client: AsyncOpenAI, own: str, status: str) -> Response:
    """Poll a response, as clients of background responses do."""
    with anyio.fail_after(60):
        while (response := await client.responses.retrieve(own)).status != status:
            pass
    return response


async def test_a_background_response_is_polled_and_leaving_it_does_not_pause(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    agent = stage.agent(Use("slow", name="x"), "Done.")
    async with (
        serve_agent(agent, Bridges(grace_s=0)) as server,
        open_openai(server.url, "ann") as client,
    ):
        response = await client.responses.create(model="actor", input="Go.", background=True)
        assert response.status in {"queued", "in_progress"}
        await stage.start("x").wait()
        stream = await client.responses.retrieve(response.id, stream=True)
        await anext(aiter(stream))
        await stream.close()
        await yield_until(lambda: not server.app.streams)
        stage.gate("x").set()
        ended = await wait_for_status(client, response.id, "completed")
        assert ended.output_text == "Done."
        assert (ended.background, ended.created_at) == (True, response.created_at)
        (call,) = [item for item in ended.output if item.type == "mcp_call"]
        assert (call.name, call.status, call.output) == ("slow", "completed", "x done")
        assert not await read_entries(await server.get_only_run(), PauseRequested)


async def test_a_response_can_be_cancelled(
    serve_agent: ServeAgent, stage: ControllableTools
) -> None:
    agent = stage.agent(Use("slow", name="x"), "Done.")
    async with serve_agent(agent) as server, open_openai(server.url, "ann") as client:
        response = await client.responses.create(model="actor", input="Go.", background=True)
        await stage.start("x").wait()
        cancelled = await client.responses.cancel(response.id)
        assert cancelled.status == "cancelled"
        assert "The run is cancelled." in cancelled.output_text
        assert stage.completed == []
        again = await client.responses.cancel(response.id)
        assert again.status == "cancelled"
        view = await (await server.get_only_run()).view()
        assert view.phase_by == "ann"


@pytest.mark.parametrize("length", [1, 9, 14, 20])
async def test_a_stream_goes_on_after_the_newest_event_that_the_client_has(
    serve_agent: ServeAgent, length: int
) -> None:
    """Live pieces are not stored; the number of a piece is a place in the text."""
    first, second = "The first half", " and the second."
    model = GatedModel(GatedReply(first, second, gate="half"), "Not used.")
    async with (
        serve_agent(Agent("actor", model=model)) as server,
        open_openai(server.url, "ann") as client,
    ):
        stream = await client.responses.create(
            model="actor", input="Go.", background=True, stream=True
        )
        seen, number, own = "", 0, ""
        async for event in stream:
            if event.type == "response.created":
                own = event.response.id
            if isinstance(event, ResponseTextDeltaEvent):
                number = event.sequence_number - len(event.delta)
                break
        await stream.close()
        model.gate("half").set()
        await (await server.get_only_run()).until("completed")
        seen = (first + second)[:length]
        rest = await client.responses.retrieve(own, stream=True, starting_after=number + length)
        kinds = []
        async for event in rest:
            kinds.append(event.type)
            if isinstance(event, ResponseTextDeltaEvent):
                seen += event.delta
        assert seen == first + second
        assert kinds == [
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]


async def test_an_earlier_response_keeps_its_end(serve_agent: ServeAgent) -> None:
    """The next message begins another response of the same run."""
    model = ScriptedModel([["Hm.", Use("ask_human", question="Which?")], "Thanks.", "More."])
    agent = Agent("actor", model=model, tools=[ask_human])
    async with serve_agent(agent) as server, open_openai(server.url, "ann") as client:
        first = await client.responses.create(model="actor", input="Go.")
        second = await client.responses.create(previous_response_id=first.id, input="This.")
        third = await client.responses.create(previous_response_id=second.id, input="More?")
        assert "Which?" in first.output_text
        assert (second.output_text, third.output_text) == ("Thanks.", "More.")
        for response in (first, second, third):
            again = await client.responses.retrieve(response.id)
            assert again.output_text == response.output_text
            assert again.status == "completed"
        assert first.conversation == second.conversation == third.conversation
        assert len((await server.mid.runs()).items) == 2


async def test_a_response_belongs_to_its_user(serve_agent: ServeAgent) -> None:
    agent = Agent("actor", model=ScriptedModel(["Swordfish."]))
    async with serve_agent(agent) as server, open_openai(server.url, "ann") as ann:
        response = await ann.responses.create(model="actor", input="Go.")
        async with open_openai(server.url, "bob") as bob:
            await expect_not_found(bob, response.id)
        await expect_not_found(ann, response.id + "9")
        await expect_not_found(ann, "resp_none")


async def expect_not_found(client: AsyncOpenAI, own: str) -> None:
    """Check that a client can neither see nor continue nor cancel a response."""
    with pytest.raises(NotFoundError):
        await client.responses.retrieve(own)
    with pytest.raises(NotFoundError):
        await client.responses.cancel(own)
    with pytest.raises(NotFoundError):
        await client.responses.create(previous_response_id=own, input="More.")


PNG = b64encode(b"\x89PNG a picture").decode()
PDF = b64encode(b"%PDF a paper").decode()


def make_viewer(*turns: object) -> Agent:
    """Return an agent whose tool shows an artifact."""

    @tool
    async def draw(call: Call, name: str) -> str:
        await call.show(name, "text/markdown", "# A chart")
        return "drawn"

    return Agent("actor", model=ScriptedModel(list(turns)), tools=[draw])  # type: ignore[arg-type]


async def list_files(run: Run) -> list[tuple[str, str, bytes]]:
    """Return the name, the type and the bytes of each file that the user sent."""
    sent = []
    for started in await read_entries(run, RunStarted):
        for ref in started.files:
            file = await run.file(ref.hash)
            sent.append((ref.name, ref.media_type, file.data))
    return sent


async def test_files_of_a_chat_completion_are_files_of_the_run(
    serve_agent: ServeAgent,
) -> None:
    """Images, audio and documents, in the newest message; the text may be missing."""
    content: list[ChatCompletionContentPartParam] = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        {"type": "input_audio", "input_audio": {"data": PDF, "format": "mp3"}},
        {
            "type": "file",
            "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"},
        },
        {"type": "file", "file": {"filename": "b.pdf", "file_data": PDF}},
    ]
    async with (
        serve_agent(make_viewer("Seen.", "Again.")) as server,
        open_openai(server.url, "ann") as client,
    ):
        for thread in ("t", "u"):
            reply = await client.chat.completions.create(
                model="actor",
                messages=[{"role": "user", "content": content}],
                metadata={"thread": thread},
            )
            assert reply.choices[0].message.content
        runs = (await server.mid.runs()).items
        for view in runs:
            run = await server.mid.get(view.run_id)
            assert view.task == "See the attached file."
            assert await list_files(run) == [
                ("image-1", "image/png", b64decode(PNG)),
                ("audio-2", "audio/mpeg", b64decode(PDF)),
                ("a.pdf", "application/pdf", b64decode(PDF)),
                ("b.pdf", "application/pdf", b64decode(PDF)),
            ]
        assert len(runs) == 2


async def test_files_of_an_answer_reach_the_agent(serve_agent: ServeAgent) -> None:
    """A decision takes none: a message with files is an instruction then."""

    @tool(approve=True)
    async def pay() -> str:
        return "paid"

    model = ScriptedModel([Use("ask_human", question="Which?"), Use("pay"), "Done."])
    agent = Agent("actor", model=model, tools=[ask_human, pay])
    async with serve_agent(agent) as server, open_openai(server.url, "ann") as client:
        await say(client, "Go.")
        for text in ("This one.", "approve"):
            await client.chat.completions.create(
                model="actor",
                messages=[
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": text},
                            {
                                "type": "image_url",
                                "image_url": {"url": f"data:image/png;base64,{PNG}"},
                            },
                        ],
                    }
                ],
                metadata={"thread": "t"},
            )
        run = await server.get_only_run()
        (answer,) = await read_entries(run, AskAnswered)
        (redirect,) = await read_entries(run, RedirectRequested)
        assert [len(each.files) for each in (answer, redirect)] == [1, 1]


async def test_a_message_beside_a_decision_is_refused_and_not_lost(
    serve_agent: ServeAgent,
) -> None:
    @tool(approve=True)
    async def pay() -> str:
        return "paid"

    agent = Agent("actor", model=ScriptedModel([Use("pay"), "Done."]), tools=[pay])
    async with serve_agent(agent) as server, open_openai(server.url, "ann") as client:
        first = await client.responses.create(model="actor", input="Go.")
        (ask,) = [item.id for item in first.output if item.type == "mcp_approval_request"]
        decision: McpApprovalResponse = {
            "type": "mcp_approval_response",
            "approval_request_id": ask,
            "approve": True,
        }
        message: EasyInputMessageParam = {"role": "user", "content": "And be quick."}
        with pytest.raises(UnprocessableEntityError, match="after the decision"):
            await client.responses.create(
                previous_response_id=first.id, input=[message, decision]
            )
        assert not await read_entries(await server.get_only_run(), AskAnswered)
        again = await client.responses.create(previous_response_id=first.id, input=[decision])
        assert again.output_text == "Done."


async def test_files_of_a_response_are_files_of_the_run(
    serve_agent: ServeAgent,
) -> None:
    """Also of a response that continues another one; its text is missing."""
    async with (
        serve_agent(make_viewer("One.", "Two.")) as server,
        open_openai(server.url, "ann") as client,
    ):
        first = await client.responses.create(
            model="actor",
            input=[
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "Look."},
                        {
                            "type": "input_image",
                            "detail": "auto",
                            "image_url": f"data:image/png;base64,{PNG}",
                        },
                    ],
                }
            ],
        )
        assert first.output_text == "One."
        document: ResponseInputFileParam = {
            "type": "input_file",
            "filename": "a.pdf",
            "file_data": f"data:application/pdf;base64,{PDF}",
        }
        second = await client.responses.create(
            previous_response_id=first.id,
            input=[{"role": "user", "content": [document]}],
        )
        assert second.output_text == "Two."
        files = [
            await list_files(await server.mid.get(view.run_id))
            for view in (await server.mid.runs()).items
        ]
        assert files == [
            [("a.pdf", "application/pdf", b64decode(PDF))],
            [("image-1", "image/png", b64decode(PNG))],
        ]


async def test_files_of_earlier_messages_come_along_if_the_client_keeps_the_history(
    serve_agent: ServeAgent,
) -> None:
    """A history has no files: they are given with the newest message, and named in it."""
    image: ChatCompletionContentPartParam = {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;base64,{PNG}"},
    }
    async with (
        serve_agent(make_viewer("A picture.", "Red.")) as server,
        open_openai(server.url, "ann") as client,
    ):
        await client.chat.completions.create(
            model="actor",
            messages=[
                {"role": "user", "content": [{"type": "text", "text": "Look."}, image]},
                {"role": "assistant", "content": "A picture."},
                {"role": "user", "content": "Which color?"},
            ],
        )
        run = await server.get_only_run()
        assert await list_files(run) == [("image-1", "image/png", b64decode(PNG))]
        (started,) = await read_entries(run, RunStarted)
        assert started.history[0].text == "Look.\n[image-1]"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://169.254.169.254/a.png"}},
        {"type": "image_url", "image_url": {"url": "data:,"}},
        {"type": "input_image", "image_url": "https://example.com/a.png"},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "input_file", "file_url": "https://example.com/a.pdf"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "not base64!"},
        {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{PNG}"}},
    ],
)
async def test_a_file_that_is_not_in_the_message_is_refused(
    serve_agent: ServeAgent, part: dict[str, object]
) -> None:
    """Nothing is fetched: the server would reach hosts that the client cannot."""
    async with (
        serve_agent(make_viewer("Done.")) as server,
        open_openai(server.url, "ann") as client,
    ):
        for path, field in (("/chat/completions", "messages"), ("/responses", "input")):
            body = {"model": "actor", field: [{"role": "user", "content": [part]}]}
            with pytest.raises(UnprocessableEntityError, match="Cannot take"):
                await client.post(path, body=body, cast_to=object)
        assert not (await server.mid.runs()).items


async def test_artifacts_are_links_at_the_end_of_the_reply(serve_agent: ServeAgent) -> None:
    """The token of the client gets them. Only those of this reply; a name is no Markdown."""
    turns = (Use("draw", name="a](x)"), "One.", "Two.")
    async with (
        serve_agent(make_viewer(*turns)) as server,
        open_openai(server.url, "olga") as client,
        open_http_client(server) as http,
    ):
        first = await say(client, "Draw.")
        text, _, link = first.partition("\n\n")
        assert text == "One."
        assert link.startswith("- [a\\]\\(x\\)](")
        assert (await http.get(link.rpartition("(")[2][:-1])).text == "# A chart"
        assert await say(client, "Go on.") == "Two."
        response = await client.responses.create(model="actor", input="Draw.")
        assert response.output_text.startswith("One.- [a\\]\\(x\\)](http")
