"""One suite for all protocols: each adapter behaves the same for the same steps.

The clients are the unmodified packages, over a real socket. `chat_drivers` has one driver for
each protocol. `MISSING` lists the steps that a protocol has no word for; these are skipped with
the reason. A test of one protocol alone is in the file of that protocol.
"""

import pytest

from midrun import Agent, Run, ask_human, tool
from midrun.core.entries import (
    CallStarted,
    CancelRequested,
    PauseRequested,
    RedirectRequested,
    RunStarted,
)
from midrun.core.transcript import Transcript
from midrun.models import ScriptedModel, Use
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
    open_chat,
)
from tests.scenarios.protocols.conftest import ServeAgent
from tests.support.gated_model import GatedModel, GatedReply
from tests.support.paths import ROOT
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
        COPILOTKIT: "its client drops a stream only by the stop button or with the page",
        A2A: "a task goes on without its client",
        MCP: "a dropped call stops its wait, not its run",
    },
    "leaving": dict.fromkeys(
        (AI_SDK, AG_UI, COPILOTKIT, COMPLETIONS, RESPONSES),
        "leaving the stream pauses after the grace",
    ),
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


# ── the cases, and the table of the documentation ─────────────────────────────────────────

CASES = {
    "start": test_a_message_starts_a_run_whose_text_and_calls_are_streamed,
    "stream": test_a_message_starts_a_run_whose_text_and_calls_are_streamed,
    "tools": test_a_message_starts_a_run_whose_text_and_calls_are_streamed,
    "hostile text": test_a_message_starts_a_run_whose_text_and_calls_are_streamed,
    "ask": test_a_question_is_shown_and_answered,
    "approve": test_the_user_decides_about_a_call,
    "pause": test_a_client_pauses_the_run_and_resumes_it,
    "resume": test_a_pause_keeps_the_text_and_the_client_resumes_with_an_instruction,
    "redirect": test_a_message_of_a_second_client_redirects_the_working_run,
    "cancel": test_a_client_cancels_the_run,
    "reload": test_a_reloaded_client_gets_the_reply_from_its_beginning_and_follows_it,
    "two clients": test_of_two_clients_that_decide_one_wins_and_the_other_is_told,
    "another user": test_a_thread_belongs_to_its_user,
    "another user's id": test_the_run_of_another_user_is_refused,
    "dropped connection pauses": test_a_client_that_leaves_pauses_its_run_after_the_grace,
    "dropped connection goes on": test_a_run_goes_on_without_its_client,
    "server restart": test_a_working_run_goes_on_after_a_restart_of_the_server,
}
"""Case that each adapter must pass → its test in this suite."""

CONTROL_CASES = ("pause", "resume", "redirect", "cancel", "approve")

ROWS = {
    "MCP": MCP,
    "AI SDK": AI_SDK,
    "OpenAI responses": RESPONSES,
    "OpenAI chat completions": COMPLETIONS,
    "AG-UI": AG_UI,
    "CopilotKit": COPILOTKIT,
    "A2A": A2A,
}
"""Row of the table of controls → protocol."""

OTHER_WAYS = {
    "cancel the task": "test_mcp_server.py test_a_task_is_paused_by_a_tool_and_cancelled",
    "a form": "test_mcp_server.py test_an_approval_is_given_through_a_form",
    "`regenerate()`": "test_ai_sdk.py test_a_failed_run_is_an_error_and_regenerate_resumes_it",
    'data `{"approved": true}`': (
        "test_a2a.py test_a_message_answers_a_question_and_gives_an_approval"
    ),
    "the word `approve`": (
        "test_openai.py test_an_approval_needs_an_explicit_word_and_names_the_way_to_answer"
    ),
    "the next message": (
        "test_agui.py"
        " test_a_client_before_1_0_gets_a_custom_pause_event_and_resumes_by_a_message"
    ),
}
"""A second way in a cell of the table → the test of it."""


def list_kinds(case: str) -> dict[str, bool]:
    """Return each protocol, and whether the suite runs the case for it."""
    (mark,) = [
        mark
        for mark in CASES[case].pytestmark  # type: ignore[attr-defined]  # set by the marks
        if mark.name == "parametrize" and mark.args[0] == "kind"
    ]
    return {param.values[0]: not param.marks for param in mark.args[1]}


@pytest.mark.parametrize("case", CASES)
def test_each_case_runs_for_each_protocol_or_the_reason_is_listed(case: str) -> None:
    kinds = list_kinds(case)
    assert list(kinds) == list(OPENERS)
    if case not in {"dropped connection pauses", "dropped connection goes on"}:
        assert sum(kinds.values()) >= 3


def test_each_protocol_has_a_case_for_a_dropped_connection() -> None:
    pauses, goes_on = (
        list_kinds("dropped connection pauses"),
        list_kinds("dropped connection goes on"),
    )
    # The client of CopilotKit drops no stream but by its stop button, which is the pause.
    assert {kind for kind in OPENERS if not (pauses[kind] or goes_on[kind])} == {COPILOTKIT}


def read_control_table() -> dict[str, dict[str, str]]:
    """Return the table of controls in the documentation: row → control → cell."""
    page = (ROOT / "docs/guides/front-ends.md").read_text()
    section = page.partition("## The controls in each protocol")[2].partition("\n## ")[0]
    header, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("|")
    ]
    assert tuple(header[1:]) == CONTROL_CASES
    return {row[0].strip("*"): dict(zip(header[1:], row[1:], strict=True)) for row in rows}


def test_the_table_of_controls_has_a_cell_for_each_control_that_the_suite_uses() -> None:
    """A cell is empty if the suite skips the control for that protocol, and only then."""
    table = read_control_table()
    native = table.pop("HTTP, Python, elements")
    assert all(hasattr(Run, control) for control in native)
    assert list(table) == list(ROWS)
    for control in CONTROL_CASES:
        kinds = list_kinds(control)
        filled = {ROWS[row]: bool(cells[control]) for row, cells in table.items()}
        assert filled == {kind: kinds[kind] for kind in filled}, control


def test_each_second_way_in_the_table_of_controls_has_a_test() -> None:
    found = set()
    for row, cells in read_control_table().items():
        for cell in cells.values() if row in ROWS else ():
            found |= {way.strip() for way in cell.split(", or ")[1:]}
    assert found == set(OTHER_WAYS)
    for reference in OTHER_WAYS.values():
        file, name = reference.split()
        text = (ROOT / "tests/scenarios/protocols" / file).read_text()
        assert f"async def {name}(" in text
