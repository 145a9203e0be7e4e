"""One suite for all protocols: each adapter behaves the same for the same steps.

The clients are the unmodified packages, over a real socket. `chat_drivers` has one driver for
each protocol. `MISSING` lists the steps that a protocol has no word for; these are skipped with
the reason. A test of one protocol alone is in the file of that protocol.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import anyio
import httpx2
import pytest
from a2a.utils.errors import TaskNotCancelableError
from anyio.lowlevel import checkpoint

from midrun import Agent, File, Receipt, ask_human, tool
from midrun.core.controls import Control, Redirect, Resume
from midrun.core.entries import (
    CallStarted,
    CancelRequested,
    PauseRequested,
    RedirectRequested,
    RunStarted,
)
from midrun.core.ids import RunId
from midrun.core.transcript import Transcript
from midrun.models import ScriptedModel, Use
from midrun.ports.store import RunQuota
from midrun.runs.service import RunService
from midrun.server import Bridges
from midrun.testing.controllable_tools import ControllableTools
from tests.scenarios.protocols.chat_drivers import (
    A2A,
    AG_UI,
    AI_SDK,
    COMPLETIONS,
    COPILOTKIT,
    MCP,
    OPENERS,
    RESPONSES,
    STATES_ONLY,
    ChatDriver,
    open_chat,
    share_thread,
)
from tests.scenarios.protocols.conftest import SentRequest, ServeAgent, open_http_client
from tests.support.gated_model import GatedModel, GatedReply
from tests.support.run_journal import read_entries, wait_for_entry, yield_until

pytestmark = pytest.mark.once

MISSING = {
    "follow": {COMPLETIONS: "a client that lost its stream cannot follow the reply"},
    "late decision": {COMPLETIONS: "a decision is a message of words; a late one starts a run"},
    "pause": {
        AG_UI: "no request to pause; leaving the stream pauses after the grace",
        COMPLETIONS: "no request to pause; leaving the stream pauses after the grace",
        RESPONSES: "no request to pause; leaving the stream pauses after the grace",
    },
    "cancel": {COMPLETIONS: "no request to cancel"},
    "leaving pauses": {
        A2A: "a task goes on without its client",
        MCP: "a dropped call stops its wait, not its run",
    },
    "leaving": dict.fromkeys(
        (AI_SDK, AG_UI, COPILOTKIT, COMPLETIONS, RESPONSES),
        "leaving the stream pauses after the grace",
    ),
    "repeated request": {
        MCP: "a call of a tool has no id; `request_id` of midrun_start names a start"
    },
    "storm": {
        COMPLETIONS: "a client that lost its stream cannot follow the reply",
        MCP: "a call that waits is no stream",
    },
    "two beginnings": {
        A2A: "a context may have several tasks at work",
        MCP: "midrun_start always starts a run",
    },
    "race": {MCP: "a tool names the control; the refusal has the tools that are accepted now"},
    "race with the end": {
        A2A: "a task that has ended takes no message",
        MCP: "a tool names the control; the refusal has the tools that are accepted now",
    },
    "foreign id": dict.fromkeys(
        (AI_SDK, AG_UI, COPILOTKIT, COMPLETIONS), "a thread is a name of its user, not an id"
    ),
}
"""Step → protocol → why the protocol cannot do it."""


def each_protocol(step: str = "") -> pytest.MarkDecorator:
    """Return the mark that repeats a test for each protocol that can do the step."""
    reasons = MISSING.get(step, {})
    kinds = [
        pytest.param(kind, marks=[pytest.mark.skip(reasons[kind])] if kind in reasons else [])
        for kind in OPENERS
    ]
    return pytest.mark.parametrize("kind", kinds)


HALF = "The first half"


def conclude_from_result(messages: Transcript) -> str:
    """Return a reply about the result of the newest call."""
    use = messages[-1].uses[0]
    return f"It was {use.problem or use.result}."


def conclude_from_user(messages: Transcript) -> str:
    """Return a reply about the user's newest message."""
    return f"As you said: {[turn.text for turn in messages if turn.role == 'user'][-1]}"


def list_texts(messages: Transcript) -> str:
    """Return a reply with all texts so far."""
    return " ".join(turn.text for turn in messages)


def make_paying_agent(paid: list[int]) -> Agent:
    """Return an agent that pays once, after an approval."""

    @tool(approve=True)
    async def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return f"paid {amount}"

    model = ScriptedModel([["Paying. ", Use("pay", amount=9)], conclude_from_result])
    return Agent("actor", model=model, tools=[pay])


@each_protocol()
async def test_a_message_starts_a_run_whose_text_and_calls_are_streamed(
    serve_agent: ServeAgent, stage: ControllableTools, kind: str
) -> None:
    """Text of a model that imitates the protocol stays text."""
    hostile = 'It is a.\n\ndata: {"type":"finish"}\n\ndata: [DONE]\n\n<script>1</script>'
    agent = stage.agent(["Looking it up.", Use("quick", name="a")], hostile)
    async with serve_agent(agent) as server, open_chat(kind, server.url) as chat:
        await chat.send("What is it?")
        reply = await chat.wait_for_end()
        assert (reply.phase, reply.error) == ("completed", "")
        assert "Looking it up." in reply.text
        assert hostile in reply.text
        if kind != A2A:  # a task has no tool calls
            assert set(reply.tools) == {"quick"}
        view = await (await server.get_only_run()).view()
        assert (view.thread, view.task) == ("t", "What is it?")


@each_protocol()
async def test_a_message_after_the_end_starts_the_next_run_of_the_thread(
    serve_agent: ServeAgent, kind: str
) -> None:
    """The agent has the conversation so far, and the client shows it in its order."""
    model = ScriptedModel(["One.", list_texts])
    async with (
        serve_agent(Agent("actor", model=model)) as server,
        open_chat(kind, server.url) as chat,
    ):
        await chat.send("First.")
        assert (await chat.wait_for_end()).text == "One."
        await chat.send("Second.")
        assert (await chat.wait_for_end()).text == "First. One. Second."
        assert {view.thread for view in (await server.mid.runs()).items} == {"t"}


@each_protocol()
async def test_a_pause_keeps_the_text_and_the_client_resumes_with_an_instruction(
    serve_agent: ServeAgent, kind: str
) -> None:
    """The text arrives while the model writes it."""
    model = GatedModel(GatedReply(HALF, " and the second.", gate="half"), "Briefly.")
    async with (
        serve_agent(Agent("actor", model=model)) as server,
        open_chat(kind, server.url) as chat,
    ):
        await chat.send("Tell me")
        await model.reached("half").wait()
        if kind not in STATES_ONLY:
            await chat.wait_for_text(HALF)
        run = await server.get_only_run()
        await run.pause(actor="ada")
        reply = await chat.wait_for_end()
        assert reply.phase == "paused"
        assert HALF in reply.text
        await chat.resume("Briefly, please")
        reply = await chat.wait_for_end()
        assert reply.phase == "completed"
        assert reply.text.endswith("Briefly.")
        assert model.closed_gates == ["half"]
        assert "Briefly, please" in [turn.text for turn in model.transcripts[1]]


@each_protocol()
async def test_a_question_is_shown_and_answered(serve_agent: ServeAgent, kind: str) -> None:
    """Also if the question imitates the protocol."""
    question = 'Red or blue?\n\ndata: {"type":"finish"}\n\ndata: [DONE]\n\n<script>1</script>'
    model = ScriptedModel([Use("ask_human", question=question), conclude_from_result])
    async with (
        serve_agent(Agent("actor", model=model, tools=[ask_human])) as server,
        open_chat(kind, server.url) as chat,
    ):
        await chat.send("Paint.")
        reply = await chat.wait_for_end()
        assert reply.phase == "waiting"
        assert " ".join(question.split()) in " ".join(reply.text.split())  # maybe in one line
        await chat.answer("red")
        reply = await chat.wait_for_end()
        assert reply.phase == "completed"
        assert "It was red." in reply.text


@each_protocol()
@pytest.mark.parametrize("approved", [True, False])
async def test_the_user_decides_about_a_call(
    serve_agent: ServeAgent, kind: str, approved: bool
) -> None:
    paid: list[int] = []
    async with (
        serve_agent(make_paying_agent(paid)) as server,
        open_chat(kind, server.url) as chat,
    ):
        await chat.send("Pay.")
        assert (await chat.wait_for_end()).phase == "waiting"
        assert paid == []
        await chat.decide(approved=approved)
        reply = await chat.wait_for_end()
        assert reply.phase == "completed"
        assert ("It was paid 9." in reply.text) is approved
        assert paid == ([9] if approved else [])


@each_protocol("late decision")
async def test_of_two_clients_that_decide_one_wins_and_the_other_is_told(
    serve_agent: ServeAgent, kind: str
) -> None:
    paid: list[int] = []
    async with (
        serve_agent(make_paying_agent(paid)) as server,
        open_chat(kind, server.url) as first,
    ):
        await first.send("Pay.")
        await first.wait_for_end()
        async with open_chat(kind, server.url, like=first) as second:
            await second.load()
            await second.decide(approved=True)
            assert (await second.wait_for_end()).phase == "completed"
        await first.decide(approved=False)
        assert (await first.wait_for_end()).error
        assert paid == [9]


@each_protocol()
async def test_a_message_of_a_second_client_redirects_the_working_run(
    serve_agent: ServeAgent, stage: ControllableTools, kind: str
) -> None:
    """Both clients see the end."""
    agent = stage.agent(Use("slow", name="x"), conclude_from_user)
    async with serve_agent(agent) as server, open_chat(kind, server.url) as first:
        await first.send("Go.")
        await stage.start("x").wait()
        async with open_chat(kind, server.url, like=first) as second:
            await second.send("Be brief.")
            await wait_for_entry(await server.get_only_run(), RedirectRequested)
            stage.gate("x").set()
            for chat in (second, first):
                reply = await chat.wait_for_end()
                assert (reply.phase, reply.error) == ("completed", "")
                assert "As you said: Be brief." in reply.text
        assert stage.called == ["x"]


@each_protocol()
async def test_a_cancelled_run_ends_with_its_report(
    serve_agent: ServeAgent, stage: ControllableTools, kind: str
) -> None:
    agent = stage.agent(["Half a sen", Use("slow", name="x")])
    async with serve_agent(agent) as server, open_chat(kind, server.url) as chat:
        await chat.send("Go.")
        await stage.start("x").wait()
        await (await server.get_only_run()).cancel(actor="ada")
        reply = await chat.wait_for_end()
        assert reply.phase == "cancelled"
        assert "Half a sen" in reply.text
        assert stage.completed == []


@each_protocol("pause")
async def test_a_client_pauses_the_run_and_resumes_it(
    serve_agent: ServeAgent, stage: ControllableTools, kind: str
) -> None:
    agent = stage.agent(Use("read", name="x"), "Done.")
    async with serve_agent(agent) as server, open_chat(kind, server.url) as chat:
        await chat.send("Go.")
        await stage.start("x").wait()
        await chat.pause()
        run = await server.get_only_run()
        await run.until("pausing", "paused")  # some clients do not wait for the reply
        stage.gate("x").set()  # a pause without `now` lets the call finish
        assert (await chat.wait_for_end()).phase == "paused"
        (pause,) = await read_entries(run, PauseRequested)
        assert pause.by == "olga"
        await chat.resume("Go on.")
        reply = await chat.wait_for_end()
        assert (reply.phase, reply.error) == ("completed", "")
        assert reply.text.endswith("Done.")


@each_protocol("cancel")
async def test_a_client_cancels_the_run(
    serve_agent: ServeAgent, stage: ControllableTools, kind: str
) -> None:
    """With one stop button, the server sets what it means. AG-UI has only an interrupt."""
    agent = stage.agent(Use("slow", name="x"))
    async with (
        serve_agent(agent, Bridges(stop="cancel")) as server,
        open_chat(kind, server.url) as chat,
    ):
        await chat.send("Go.")
        await stage.start("x").wait()
        run = await server.get_only_run()
        if kind == AG_UI:
            await run.pause(now=True, actor="ada")
            assert (await chat.wait_for_end()).phase == "paused"
        await chat.cancel()
        if kind != COPILOTKIT:  # it does not read on after its stop button
            assert (await chat.wait_for_end()).phase == "cancelled"
        await run.until("cancelled")
        (cancel,) = await read_entries(run, CancelRequested)
        assert cancel.by == "olga"
        assert stage.completed == []


@each_protocol()
async def test_a_failed_run_is_an_error_and_the_next_message_resumes_it(
    serve_agent: ServeAgent, kind: str
) -> None:
    attempts: list[int] = []

    def fail_once(messages: Transcript) -> str:
        del messages
        attempts.append(1)
        if len(attempts) == 1:
            raise RuntimeError("no luck")
        return "Done."

    agent = Agent("actor", model=ScriptedModel([fail_once, fail_once]))
    async with serve_agent(agent) as server, open_chat(kind, server.url) as chat:
        await chat.send("Go.")
        assert "no luck" in (await chat.wait_for_end()).error
        await chat.send("Try again.")
        reply = await chat.wait_for_end()
        assert (reply.phase, reply.error) == ("completed", "")
        assert reply.text.endswith("Done.")
        await server.get_only_run()


@each_protocol("follow")
async def test_a_reloaded_client_gets_the_reply_from_its_beginning_and_follows_it(
    serve_agent: ServeAgent, stage: ControllableTools, kind: str
) -> None:
    agent = stage.agent(["Looking.", Use("quick", name="a")], Use("slow", name="x"), "Done.")
    async with serve_agent(agent) as server, open_chat(kind, server.url) as first:
        await first.send("Go.")
        await stage.start("x").wait()
        async with open_chat(kind, server.url, like=first) as second:
            if kind not in {AG_UI, COPILOTKIT}:  # to load a thread is to follow it there
                await second.load()
            await second.follow()
            if kind != MCP:  # there, a call is no stream of the server
                await yield_until(lambda: server.app.streams == len((first, second)))
            stage.gate("x").set()
            for chat in (second, first):
                reply = await chat.wait_for_end()
                assert reply.phase == "completed"
                assert "Looking." in reply.text
                assert reply.text.endswith("Done.")
        assert stage.called == ["a", "x"]


@each_protocol()
async def test_a_thread_belongs_to_its_user(serve_agent: ServeAgent, kind: str) -> None:
    """The same name of another user is another thread, without the history of the first."""
    agent = Agent("actor", model=ScriptedModel(["Swordfish.", "Hm."]))
    async with serve_agent(agent) as server:
        for user, text in (("ann", "Tell me the word."), ("bob", "What was said?")):
            async with open_chat(kind, server.url, user) as chat:
                await chat.send(text)
                assert (await chat.wait_for_end()).phase == "completed"
        starts = {}
        for view in (await server.mid.runs()).items:
            (record,) = await server.mid.store.read(view.run_id, limit=1)
            assert isinstance(record.entry, RunStarted)
            starts[record.entry.by] = record.entry.history
        assert starts == {"ann": (), "bob": ()}


@each_protocol("foreign id")
async def test_the_run_of_another_user_is_refused(
    serve_agent: ServeAgent, stage: ControllableTools, kind: str
) -> None:
    """The id of the run, which a client keeps, is of no use with another token."""
    agent = stage.agent(Use("slow", name="x"), "Done.")
    async with serve_agent(agent) as server, open_chat(kind, server.url, "ann") as ann:
        await ann.send("Go.")
        await stage.start("x").wait()
        async with open_chat(kind, server.url, "bob", like=ann) as bob:
            await bob.follow()
            assert (await bob.wait_for_end()).error
        stage.gate("x").set()
        assert (await ann.wait_for_end()).phase == "completed"
        assert not await read_entries(await server.get_only_run(), RedirectRequested)


@each_protocol("leaving")
async def test_a_run_goes_on_without_its_client(
    serve_agent: ServeAgent, stage: ControllableTools, kind: str
) -> None:
    agent = stage.agent(Use("read", name="x"), "Done.")
    async with (
        serve_agent(agent, Bridges(grace_s=0)) as server,
        open_chat(kind, server.url) as chat,
    ):
        await chat.send("Go.")
        await stage.start("x").wait()
        await chat.leave()
        await yield_until(lambda: not server.app.streams)
        stage.gate("x").set()
        run = await server.get_only_run()
        assert (await run.until("completed", "paused")).phase == "completed"


@each_protocol("leaving pauses")
async def test_a_client_that_leaves_pauses_its_run_after_the_grace(
    serve_agent: ServeAgent, stage: ControllableTools, kind: str
) -> None:
    agent = stage.agent(Use("read", name="x"), "Done.")
    async with (
        serve_agent(agent, Bridges(grace_s=0.05)) as server,
        open_chat(kind, server.url) as chat,
    ):
        await chat.send("Go.")
        await stage.start("x").wait()
        await chat.leave()
        run = await server.get_only_run()
        await run.until("paused")
        (pause,) = await read_entries(run, PauseRequested)
        assert pause.by == "olga"


@each_protocol()
async def test_a_thread_goes_on_after_a_restart_of_the_server(
    serve_agent: ServeAgent, kind: str
) -> None:
    """The client of the first server is gone, too; the store has everything."""

    def make_agent() -> Agent:
        model = ScriptedModel([Use("ask_human", question="Which?"), conclude_from_result])
        return Agent("actor", model=model, tools=[ask_human])

    async with serve_agent(make_agent()) as server, open_chat(kind, server.url) as before:
        await before.send("Go.")
        assert (await before.wait_for_end()).phase == "waiting"
    async with (
        serve_agent(make_agent()) as server,
        open_chat(kind, server.url, like=before) as after,
    ):
        await after.load()
        await after.answer("this one")
        reply = await after.wait_for_end()
        assert reply.phase == "completed"
        assert "It was this one." in reply.text


@each_protocol()
async def test_a_working_run_goes_on_after_a_restart_of_the_server(
    serve_agent: ServeAgent, stage: ControllableTools, kind: str
) -> None:
    """The next server drives it again, and the client of the thread redirects it."""
    agent = stage.agent(Use("read", name="x"), conclude_from_user)
    async with serve_agent(agent) as server, open_chat(kind, server.url) as before:
        await before.send("Go.")
        await stage.start("x").wait()
    async with (
        serve_agent(agent) as server,
        open_chat(kind, server.url, like=before) as after,
    ):
        run = await server.get_only_run()
        # Before its second start, the redirect would drop the call instead of waiting for it.
        await wait_for_entry(run, CallStarted, 3)  # the model, and the tool in both servers
        await after.send("Be brief.")
        await wait_for_entry(run, RedirectRequested)
        stage.gate("x").set()
        reply = await after.wait_for_end()
        assert (reply.phase, reply.error) == ("completed", "")
        assert "As you said: Be brief." in reply.text
        assert stage.completed == ["x"]


# ── races ─────────────────────────────────────────────────────────────────────────────────


@each_protocol("repeated request")
async def test_a_request_that_comes_again_reaches_the_run_once(
    serve_agent: ServeAgent,
    stage: ControllableTools,
    sent_requests: list[SentRequest],
    kind: str,
) -> None:
    """While the run works, several times at once, and after its end."""
    agent = stage.agent(Use("slow", name="x"), conclude_from_user)
    async with (
        serve_agent(agent) as server,
        open_http_client(server) as http,
        open_chat(kind, server.url) as first,
        open_chat(kind, server.url) as second,
    ):
        await first.send("Go.")
        await stage.start("x").wait()
        share_thread(first, second)
        await second.send("Be brief.")
        run = await server.get_only_run()
        await wait_for_entry(run, RedirectRequested)
        messages = [
            next(each for each in sent_requests if text in each.body)
            for text in (b"Go.", b"Be brief.")
        ]
        async with anyio.create_task_group() as tasks:
            for message in messages * 2:
                tasks.start_soon(expect_repeated_reply, http, message)
            await yield_until(lambda: server.app.streams == 2 + 2 * len(messages))
            stage.gate("x").set()
        for chat in (first, second):
            assert (await chat.wait_for_end()).phase == "completed"
        for message in messages:
            await expect_repeated_reply(http, message)
        await server.get_only_run()
        assert len(await read_entries(run, RedirectRequested)) == 1
        assert stage.called == ["x"]


async def expect_repeated_reply(http: httpx2.AsyncClient, request: SentRequest) -> None:
    """Send a request again, and read its reply to the end."""
    async with request.repeat(http) as reply:
        text = (await reply.aread()).decode()
    assert reply.status_code == 200, text
    assert "brief" in text  # the end of the run, maybe in pieces


@each_protocol("repeated request")
async def test_a_decision_that_comes_again_is_taken_once(
    serve_agent: ServeAgent, sent_requests: list[SentRequest], kind: str
) -> None:
    paid: list[int] = []
    async with (
        serve_agent(make_paying_agent(paid)) as server,
        open_http_client(server) as http,
        open_chat(kind, server.url) as chat,
    ):
        await chat.send("Pay.")
        assert (await chat.wait_for_end()).phase == "waiting"
        known = len(sent_requests)
        await chat.decide(approved=True)
        assert (await chat.wait_for_end()).phase == "completed"
        words = (b"approve", b'"yes"')
        (decision,) = [r for r in sent_requests[known:] if any(w in r.body for w in words)]
        async with decision.repeat(http) as reply:
            text = (await reply.aread()).decode()
        assert (reply.status_code, "paid 9" in text) == (200, True), text
        assert paid == [9]
        await server.get_only_run()


@each_protocol("storm")
async def test_a_storm_of_reconnections_changes_nothing(
    serve_agent: ServeAgent,
    stage: ControllableTools,
    sent_requests: list[SentRequest],
    kind: str,
) -> None:
    """Even without a grace: two clients watch all the time."""
    agent = stage.agent(["Looking.", Use("quick", name="a")], Use("read", name="x"), "Done.")
    async with (
        serve_agent(agent, Bridges(grace_s=0)) as server,
        open_http_client(server) as http,
        open_chat(kind, server.url) as first,
        open_chat(kind, server.url) as second,
    ):
        await first.send("Go.")
        await stage.start("x").wait()
        share_thread(first, second)
        if kind not in {AG_UI, COPILOTKIT}:  # to load a thread is to follow it there
            await second.load()
        await second.follow()
        await yield_until(lambda: server.app.streams == len((first, second)))
        async with anyio.create_task_group() as tasks:
            for _ in range(RECONNECTIONS):
                tasks.start_soon(read_first_piece, http, sent_requests[-1])
        await yield_until(lambda: server.app.streams == len((first, second)))
        stage.gate("x").set()
        for chat in (second, first):
            reply = await chat.wait_for_end()
            assert (reply.phase, reply.error) == ("completed", "")
            assert reply.text.endswith("Done.")
        assert not await read_entries(await server.get_only_run(), PauseRequested)
        assert stage.called == ["a", "x"]


RECONNECTIONS = 12


async def read_first_piece(http: httpx2.AsyncClient, request: SentRequest) -> None:
    """Open a stream, and drop it after its first piece."""
    async with request.repeat(http) as reply:
        assert reply.status_code == 200
        await anext(aiter(reply.aiter_raw()))


@each_protocol("cancel")
async def test_two_clients_that_cancel_in_mid_stream_cancel_once(
    serve_agent: ServeAgent, stage: ControllableTools, kind: str
) -> None:
    agent = stage.agent(["Half a sen", Use("slow", name="x")])
    async with (
        serve_agent(agent, Bridges(stop="cancel")) as server,
        open_chat(kind, server.url) as first,
        open_chat(kind, server.url) as second,
    ):
        await first.send("Go.")
        await stage.start("x").wait()
        run = await server.get_only_run()
        share_thread(first, second)
        await second.follow()
        await yield_until(lambda: kind == MCP or server.app.streams == len((first, second)))
        if kind == AG_UI:  # it has only an interrupt
            await run.pause(now=True, actor="ada")
            for chat in (first, second):
                assert (await chat.wait_for_end()).phase == "paused"
        async with anyio.create_task_group() as tasks:
            for chat in (first, second):
                tasks.start_soon(cancel_or_be_late, chat)
        await run.until("cancelled")
        if kind != COPILOTKIT:  # it does not read on after its stop button
            for chat in (first, second):
                reply = await chat.wait_for_end()
                assert reply.phase == "cancelled" or reply.error
        assert len(await read_entries(run, CancelRequested)) == 1
        assert stage.completed == []


async def cancel_or_be_late(chat: ChatDriver) -> None:
    """Cancel; the run may have ended before the request comes, which is an error in A2A."""
    with suppress(TaskNotCancelableError):
        await chat.cancel()


@each_protocol("two beginnings")
async def test_two_messages_that_begin_a_thread_at_once_are_one_run(
    serve_agent: ServeAgent,
    stage: ControllableTools,
    sent_requests: list[SentRequest],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """The second redirects the run that the first has started."""
    create_run = RunService.create_run

    async def wait_for_second(
        self: RunService,
        run: RunId,
        started: RunStarted,
        files: Sequence[File] = (),
        quotas: Sequence[RunQuota] = (),
    ) -> bool:
        await yield_until(lambda: any(b"Be brief." in each.body for each in sent_requests))
        for _ in range(50):  # time to look for a run of the thread
            await checkpoint()
        return await create_run(self, run, started, files, quotas)

    monkeypatch.setattr(RunService, "create_run", wait_for_second)
    agent = stage.agent(Use("slow", name="x"), conclude_from_user)
    async with (
        serve_agent(agent) as server,
        open_chat(kind, server.url) as first,
        open_chat(kind, server.url) as second,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(first.send, "Go.")
        await yield_until(lambda: any(b"Go." in each.body for each in sent_requests))
        tasks.start_soon(second.send, "Be brief.")
        await stage.start("x").wait()
        run = await server.get_only_run()
        await wait_for_entry(run, RedirectRequested)
        stage.gate("x").set()
        for chat in (first, second):
            reply = await chat.wait_for_end()
            assert (reply.phase, reply.error) == ("completed", "")
        assert stage.called == ["x"]


@each_protocol("race")
async def test_a_message_to_a_run_that_is_resumed_meanwhile_redirects_it(
    serve_agent: ServeAgent,
    stage: ControllableTools,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """The adapter has read that the run is paused, and `/v1` is faster."""
    agent = stage.agent(Use("slow", name="x"), Use("slow", name="y"), conclude_from_user)
    async with (
        serve_agent(agent) as server,
        open_http_client(server) as http,
        open_chat(kind, server.url) as chat,
    ):
        await chat.send("Go.")
        await stage.start("x").wait()
        run = await server.get_only_run()
        await run.pause(actor="ada")
        stage.gate("x").set()
        assert (await chat.wait_for_end()).phase == "paused"

        async def resume() -> None:
            reply = await http.post(f"/v1/runs/{run.id}/resume", json={})
            assert reply.status_code < 300, reply.text
            await stage.start("y").wait()

        act_before(monkeypatch, Resume, resume)
        await chat.resume("Be brief.")
        await wait_for_entry(run, RedirectRequested)
        stage.gate("y").set()
        reply = await chat.wait_for_end()
        assert (reply.phase, reply.error) == ("completed", "")
        assert "As you said: Be brief." in reply.text


@each_protocol("race with the end")
async def test_a_message_to_a_run_that_completes_meanwhile_starts_the_next(
    serve_agent: ServeAgent,
    stage: ControllableTools,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    agent = stage.agent(Use("slow", name="x"), "Done.", conclude_from_user)
    async with (
        serve_agent(agent) as server,
        open_chat(kind, server.url) as first,
        open_chat(kind, server.url) as second,
    ):
        await first.send("Go.")
        await stage.start("x").wait()
        run = await server.get_only_run()
        share_thread(first, second)

        async def complete() -> None:
            stage.gate("x").set()
            await run.until("completed")

        act_before(monkeypatch, Redirect, complete)
        await second.send("More.")
        reply = await second.wait_for_end()
        assert (reply.phase, reply.error) == ("completed", "")
        assert "As you said: More." in reply.text
        assert (await first.wait_for_end()).phase == "completed"
        assert len((await server.mid.runs()).items) == 2


def act_before(
    monkeypatch: pytest.MonkeyPatch, kind: type[Control], act: Callable[[], Awaitable[None]]
) -> None:
    """Let `act` run between the choice of a control by an adapter and its append, once."""
    submit, is_due = RunService.submit, [True]

    async def submit_late(
        self: RunService, run: RunId, control: Control, files: Sequence[File] = ()
    ) -> Receipt:
        # A control of `/v1` has no request id here.
        if isinstance(control, kind) and control.request_id and is_due:
            is_due.clear()
            await act()
        return await submit(self, run, control, files)

    monkeypatch.setattr(RunService, "submit", submit_late)
