"""AG-UI, seen by its own unmodified client, of today and of before 1.0."""

import pytest

from midrun import Agent, ask_human, tool
from midrun.core.entries import AskAnswered, RunStarted
from midrun.core.transcript import Transcript
from midrun.models import ScriptedModel, Use
from midrun.server import Bridges
from tests.scenarios.promises.seen import entries
from tests.scenarios.protocols.conftest import Serving
from tests.scenarios.protocols.theirs import BEFORE, CURRENT, client
from tests.unit.runs.stage import ControllableTools

BOTH = pytest.mark.parametrize("kind", [CURRENT, BEFORE])
pytestmark = pytest.mark.once


def texts(messages: object, role: str) -> list[str]:
    """Return what was said in a role."""
    assert isinstance(messages, list)
    return [str(said["content"]) for said in messages if said["role"] == role]


def only(items: object) -> object:
    """Return the one item of a list."""
    assert isinstance(items, list)
    (item,) = items
    return item


def parent(stage: ControllableTools) -> Agent:
    """Return an agent that has another one look something up."""
    aide = stage.agent(Use("read", name="x"), "It is x.", name="aide")
    model = ScriptedModel([Use("aide", task="Look."), "All done."])
    return Agent("actor", model=model, tools=[aide.as_tool()])


@BOTH
async def test_a_run_is_streamed_and_ends_well(
    serving: Serving, stage: ControllableTools, kind: str
) -> None:
    """Text, a call with its arguments and result, and the answer; every part is closed."""
    agent = stage.agent(["Looking it up.", Use("quick", name="a")], "It is a.")
    async with serving(agent) as server, client(kind, f"{server.url}/agui/actor") as theirs:
        await theirs.tell(run={"thread": "t", "say": "What is it?"})
        done = await theirs.over()
        assert done["outcome"] in {"success", "completed"}, done
        assert texts(done["messages"], "user") == ["What is it?"]
        assert texts(done["messages"], "assistant") == ["Looking it up.", "It is a."]
        assert texts(done["messages"], "tool") == ["a done"]
        for part in ("TEXT_MESSAGE", "TOOL_CALL"):
            assert theirs.types.count(f"{part}_START") == theirs.types.count(f"{part}_END")
        assert theirs.types[0] == "RUN_STARTED"
        assert theirs.types[-3:] == ["STATE_DELTA", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
        assert theirs.events[0]["protocolVersion"] == "1.0"
        usage = theirs.events[-1]["usage"]
        assert sorted(only(usage)) == ["totalTokens"], "what the provider has said"  # type: ignore[call-overload]  # a dict
        run = await server.only()
        assert (await run.view()).thread == "t"


async def test_a_child_run_is_a_subagent_and_rests_with_its_parent(
    serving: Serving, stage: ControllableTools
) -> None:
    """It is told of in every segment that it is at work in, and ends in each of them."""
    url = "/agui/actor"
    async with serving(parent(stage)) as server, client(CURRENT, server.url + url) as theirs:
        await theirs.tell(run={"thread": "t", "say": "Go."})
        began = await theirs.until("SUBAGENT_STARTED")
        assert began["name"] == "aide"
        calls = [e["toolCallId"] for e in theirs.events if e["type"] == "TOOL_CALL_START"]
        assert [began["parentToolCallId"]] == calls
        await stage.start("x").wait()
        run = await server.mid.get(str(calls[0]).rpartition("-")[0])
        await run.pause(now=True)
        interrupt = only((await theirs.over())["pending"])
        (rested,) = [e for e in theirs.events if e["type"] == "SUBAGENT_FINISHED"]
        assert (rested["subagentRunId"], rested["outcome"]) == (
            began["subagentRunId"],
            {"type": "suspended"},
        )
        child = await server.mid.get(str(began["subagentRunId"]))
        assert (await child.view()).agent == "aide"
        stage.gate("x").set()
        theirs.events.clear()
        answer = {"interruptId": interrupt, "status": "resolved", "payload": {}}
        await theirs.tell(run={"thread": "t", "resume": [answer]})
        done = await theirs.over()
        assert texts(done["messages"], "assistant")[-1] == "All done."
        (ended,) = [e for e in theirs.events if e["type"] == "SUBAGENT_FINISHED"]
        assert ended["result"] == "It is x."


async def test_a_client_of_before_1_0_is_told_of_a_child_as_of_any_call(
    serving: Serving, stage: ControllableTools
) -> None:
    """It would throw at a word that it does not know."""
    stage.gate("x").set()
    async with serving(parent(stage)) as server:
        async with client(BEFORE, f"{server.url}/agui/actor") as theirs:
            await theirs.tell(run={"thread": "t", "say": "Go."})
            done = await theirs.over()
        assert texts(done["messages"], "assistant")[-1] == "All done."
        assert texts(done["messages"], "tool") == ["It is x."]
        assert not [kind for kind in theirs.types if kind.startswith("SUBAGENT")]


async def test_a_pause_is_an_interrupt_and_its_answer_resumes_with_an_instruction(
    serving: Serving, stage: ControllableTools
) -> None:
    """The person pauses elsewhere; the client shows it, and resumes by its own means."""
    agent = stage.agent(Use("read", name="x"), "Done as told.")
    async with serving(agent) as server, client(CURRENT, f"{server.url}/agui/actor") as theirs:
        await theirs.tell(run={"thread": "t", "say": "Go."})
        await theirs.until("TOOL_CALL_END")
        await stage.start("x").wait()
        run = await server.only()
        await run.pause(now=True, actor="ada")
        done = await theirs.over()
        assert done["outcome"] == "interrupt"
        interrupt = only(done["pending"])
        stage.gate("x").set()
        answer = {"interruptId": interrupt, "status": "resolved"}
        payload = {"instruction": "Be brief."}
        await theirs.tell(run={"thread": "t", "resume": [{**answer, "payload": payload}]})
        done = await theirs.over()
        assert texts(done["messages"], "assistant")[-1] == "Done as told."
        assert (await run.view()).phase == "completed"
        assert "Be brief." in str([item async for item in run.feed()])


async def test_a_client_of_before_1_0_hears_of_a_pause_and_resumes_by_speaking(
    serving: Serving, stage: ControllableTools
) -> None:
    """It has no box for an interrupt: the segment ends, and the next message resumes."""
    agent = stage.agent(Use("read", name="x"), "Done as told.")
    async with serving(agent) as server, client(BEFORE, f"{server.url}/agui/actor") as theirs:
        await theirs.tell(run={"thread": "t", "say": "Go."})
        await theirs.until("TOOL_CALL_END")
        await stage.start("x").wait()
        run = await server.only()
        await run.pause(now=True)
        assert not (await theirs.over())["pending"]
        assert any(event.get("name") == "midrun.run.paused" for event in theirs.events)
        stage.gate("x").set()
        await theirs.tell(run={"thread": "t", "say": "Be brief."})
        done = await theirs.over()
        assert texts(done["messages"], "assistant")[-1] == "Done as told."
        assert (await run.view()).phase == "completed"


@pytest.mark.parametrize(
    ("kind", "outcome"), [(CURRENT, "cancelled"), (BEFORE, "error STOPPED")]
)
async def test_a_cancel_is_told_in_the_words_that_the_client_knows(
    serving: Serving, stage: ControllableTools, kind: str, outcome: str
) -> None:
    """A client of before 1.0 throws at an outcome that it does not know."""
    agent = stage.agent(["Half a sen", Use("slow", name="x")])
    async with serving(agent) as server, client(kind, f"{server.url}/agui/actor") as theirs:
        await theirs.tell(run={"thread": "t", "say": "Go."})
        await theirs.until("TOOL_CALL_END")
        await stage.start("x").wait()
        await (await server.only()).cancel()
        assert (await theirs.over())["outcome"] == outcome
        assert any(event.get("name") == "midrun.report" for event in theirs.events)
        assert stage.completed == []


@BOTH
async def test_an_approval_is_an_interrupt_and_edited_arguments_are_taken(
    serving: Serving, kind: str
) -> None:
    """The result comes in the next segment, for the call of the one before."""
    paid: list[int] = []

    @tool(approve=True)
    async def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return f"paid {amount}"

    agent = Agent("actor", model=ScriptedModel([Use("pay", amount=90), "Paid."]), tools=[pay])
    async with serving(agent) as server, client(kind, f"{server.url}/agui/actor") as theirs:
        await theirs.tell(run={"thread": "t", "say": "Pay."})
        asked = await theirs.over()
        interrupt = only(asked["pending"])
        assert paid == []
        theirs.events.clear()
        payload = {"approved": True, "editedArgs": {"amount": 9}}
        answer = {"interruptId": interrupt, "status": "resolved", "payload": payload}
        await theirs.tell(run={"thread": "t", "resume": [answer]})
        done = await theirs.over()
        assert paid == [9]
        assert "TOOL_CALL_START" not in theirs.types
        assert theirs.types.count("TOOL_CALL_RESULT") == 1
        assert texts(done["messages"], "assistant")[-1] == "Paid."


def asking() -> Agent:
    """Return an agent that asks one question, and then says what it was told."""
    model = ScriptedModel([Use("ask_human", question="Which one?"), "Thanks."])
    return Agent("actor", model=model, tools=[ask_human])


@BOTH
async def test_a_request_with_nothing_new_ends_with_what_the_run_waits_for(
    serving: Serving, kind: str
) -> None:
    """A page that is opened again has no messages yet: it hears of the interrupt."""
    async with serving(asking()) as server:
        where = f"{server.url}/agui/actor"
        async with client(kind, where) as first, client(kind, where) as reopened:
            await first.tell(run={"thread": "t", "say": "Go."})
            pending = (await first.over())["pending"]
            await reopened.tell(run={"thread": "t"})
            assert (await reopened.over())["pending"] == pending
            outcome = reopened.events[-1]["outcome"]
            assert isinstance(outcome, dict)
            assert outcome["type"] == "interrupt"
        assert not await entries(await server.only(), AskAnswered)


@BOTH
async def test_the_state_of_the_client_stays_its_own(serving: Serving, kind: str) -> None:
    """Midrun adds its view under its own name, and touches nothing else."""
    agent = Agent("actor", model=ScriptedModel(["Done."]))
    async with serving(agent) as server, client(kind, f"{server.url}/agui/actor") as theirs:
        await theirs.tell(run={"thread": "t", "say": "Go.", "state": {"cart": [1, 2]}})
        state = (await theirs.over())["state"]
        assert isinstance(state, dict)
        assert state["cart"] == [1, 2]
        assert state["midrun"]["run"]["phase"] == "completed"


async def test_context_reaches_the_agent_and_tools_of_the_page_are_named_as_unused(
    serving: Serving,
) -> None:
    """What the server does not use is said to the client, not dropped in silence."""
    seen: list[str] = []

    def answer(messages: Transcript) -> str:
        seen.extend(turn.text for turn in messages)
        return "Done."

    agent = Agent("actor", model=ScriptedModel([answer]))
    page = {"name": "open_page", "description": "Open a page.", "parameters": {}}
    context = [{"description": "The open document", "value": "report.md"}]
    async with serving(agent) as server, client(CURRENT, f"{server.url}/agui/actor") as theirs:
        request = {"thread": "t", "say": "Go.", "tools": [page], "context": context}
        await theirs.tell(run=request)
        done = await theirs.over()
    assert texts(done["messages"], "user") == ["Go."]
    assert "The open document: report.md" in "\n".join(seen)
    (unused,) = [e["value"] for e in theirs.events if e.get("name") == "midrun.unused"]
    assert unused == {"tools": ["open_page"]}


async def test_a_question_is_answered_by_the_next_message(serving: Serving) -> None:
    """A chat has one box: where one question is open, what is typed there is its answer."""
    model = ScriptedModel([Use("ask_human", question="Red or blue?"), "As you like."])
    agent = Agent("actor", model=model, tools=[ask_human])
    async with serving(agent) as server, client(BEFORE, f"{server.url}/agui/actor") as theirs:
        await theirs.tell(run={"thread": "t", "say": "Paint."})
        assert (await theirs.over())["outcome"] == "interrupt"
        (interrupt,) = [ask.id for ask in (await (await server.only()).view()).asks]
        run = await server.only()
        answer = {"interruptId": f"{run.id}-{interrupt}", "status": "resolved"}
        await theirs.tell(run={"thread": "t", "resume": [{**answer, "payload": "red"}]})
        done = await theirs.over()
        assert texts(done["messages"], "tool")[-1] == "red"
        assert (await run.view()).phase == "completed"


async def test_a_dropped_stream_pauses_the_run_after_the_grace(
    serving: Serving, stage: ControllableTools
) -> None:
    """`abortRun` only drops the socket, and so does a closed tab: pause is right for both."""
    agent = stage.agent(Use("read", name="x"), "Done.")
    async with (
        serving(agent, Bridges(grace_s=0.05)) as server,
        client(CURRENT, f"{server.url}/agui/actor") as theirs,
    ):
        await theirs.tell(run={"thread": "t", "say": "Go."})
        await theirs.until("TOOL_CALL_END")
        await stage.start("x").wait()
        await theirs.tell(abort=True)
        run = await server.only()
        view = await run.until("paused")
        assert view.since_by == "olga"


async def test_a_dropped_stream_can_be_told_to_mean_nothing(
    serving: Serving, stage: ControllableTools
) -> None:
    """For runs that are started and left alone."""
    agent = stage.agent(Use("read", name="x"), "Done.")
    async with serving(agent, Bridges(on_disconnect="continue", grace_s=0)) as server:
        async with client(CURRENT, f"{server.url}/agui/actor") as theirs:
            await theirs.tell(run={"thread": "t", "say": "Go."})
            await theirs.until("TOOL_CALL_END")
            await stage.start("x").wait()
        stage.gate("x").set()
        run = await server.only()
        assert (await run.until("completed")).output == "Done."


async def test_a_thread_of_another_user_is_not_joined(
    serving: Serving, stage: ControllableTools
) -> None:
    """A thread is a conversation of its user's own, whatever others call theirs."""
    agent = stage.agent("Secret.")
    async with serving(agent) as server:
        await (await server.mid.start("actor", "Hm.", thread="t", actor="ann")).result()
        async with client(CURRENT, f"{server.url}/agui/actor", "bob") as theirs:
            await theirs.tell(run={"thread": "t", "say": "What was said?"})
            done = await theirs.over()
            assert texts(done["messages"], "user") == ["What was said?"]
            row = (await server.mid.runs()).items[0]
            (record,) = await server.mid.store.read(row.run_id, limit=1)
            assert isinstance(record.entry, RunStarted)
            assert (record.entry.by, record.entry.history) == ("bob", ())
