"""A server that needs input ends the call; a person is asked, and the call goes on after."""

import sys
from pathlib import Path

import anyio
import pytest
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

from midrun import Agent, Completed, ControlRefused, Midrun
from midrun.agents.builtin_tools import PauseHere
from midrun.core.entries import AskOpened, CallFailed, CallStarted, CallUnknown
from midrun.core.values import Json
from midrun.mcp import mcp_tools
from midrun.mcp.results import ask_for_input, read_responses
from midrun.models import ScriptedModel, Use
from midrun.ports.store import RunQuery
from tests.scenarios.promises.seen import entries
from tests.unit.mcp.office import PATIENCE, WAYS, Pipe, Way, clerk, results, served

ways = pytest.mark.parametrize("way", WAYS, ids=str)
modern = pytest.mark.parametrize("way", [way for way in WAYS if not way.old], ids=str)

BOOK = Use("book", day="Monday")
BOOKED = (
    "table on Monday: party accept {'count': 4, 'vegan': True};"
    " where accept {'place': 'inside'}"
)


@modern
async def test_a_person_is_asked_what_the_server_wants_to_know(pipe: Pipe, way: Way) -> None:
    """One question after the other; then the server has all answers, and what it had kept."""
    async with served(pipe, way) as tools, clerk(tools, BOOK, "Done.") as midrun:
        run = await midrun.start("clerk", "go")
        (where,) = (await run.until("waiting")).asks
        assert (where.kind, where.question, where.declinable) == ("question", "Where?", True)
        assert isinstance(where.data, dict)
        assert where.data["options"] == ["inside", "outside"]
        assert "table on" not in str(where.data)
        await run.answer("inside")
        (party,) = (await run.until("waiting")).asks
        assert party.question == "Who?"
        await run.answer({"count": 4, "vegan": True})
        assert isinstance(await run.result(), Completed)
        assert await results(run) == [BOOKED]
        assert not await entries(run, CallUnknown)


@modern
async def test_an_answer_of_another_process_counts_after_a_restart(
    tmp_path: Path, pipe: Pipe, way: Way
) -> None:
    """Worker and server have gone; the state is in the journal, and the answer comes there."""
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    model = ScriptedModel([BOOK, "Done."])
    run_id = ""
    with anyio.fail_after(PATIENCE):
        for question, answer in (("Where?", '"inside"'), ("Who?", '{"count":4,"vegan":true}')):
            async with served(pipe, way) as tools:
                agent = Agent("clerk", model=model, tools=tools)
                async with Midrun(store, agents=[agent]) as midrun:
                    run = await (midrun.get(run_id) if run_id else midrun.start("clerk", "go"))
                    view = await run.until("waiting")
                    run_id = run.id
                    assert [ask.question for ask in view.asks] == [question]
            pipe.heard.clear()
            command = [sys.executable, "-m", "midrun", "answer", run_id, answer]
            await anyio.run_process([*command, "--store", store])
        async with served(pipe, way) as tools:
            agent = Agent("clerk", model=model, tools=tools)
            async with Midrun(store, agents=[agent]) as midrun:
                run = await midrun.get(run_id)
                assert isinstance(await run.result(), Completed)
                assert await results(run) == [BOOKED]
                assert await midrun.verify(run_id)


async def test_a_person_may_decline(url: str) -> None:
    """The server is told so, and decides what that means. A plain question has no decline."""
    async with mcp_tools(url=url) as tools, clerk(tools, BOOK, "Done.") as midrun:
        run = await midrun.start("clerk", "go")
        assert "decline" in (await run.until("waiting")).allowed
        await run.decline("no idea")
        await run.until("waiting")
        await run.decline()
        assert isinstance(await run.result(), Completed)
        assert await results(run) == [
            "table on Monday: party decline None; where decline None",
        ]


async def test_an_answer_that_does_not_fit_is_asked_for_again(url: str) -> None:
    """With the reason; the server never sees it."""
    async with mcp_tools(url=url) as tools, clerk(tools, BOOK, "Done.") as midrun:
        run = await midrun.start("clerk", "go")
        await run.until("waiting")
        await run.answer("upstairs")
        (again,) = (await run.until("waiting")).asks
        assert again.question == (
            'Cannot use the last answer: place must be one of "inside", "outside", got '
            '"upstairs". Where?'
        )


async def test_a_call_that_was_approved_is_not_approved_again_after_its_question(
    url: str,
) -> None:
    """It is the same call, with the same arguments."""
    options = mcp_tools(url=url, approve={"sign": True})
    async with options as tools, clerk(tools, Use("sign"), "Done.") as midrun:
        run = await midrun.start("clerk", "go")
        await run.until("waiting")
        await run.approve()
        (ask,) = (await run.until("waiting")).asks
        assert ask.data == {"url": "https://sign.example/1", "options": ["done"]}
        await run.answer("done")
        assert isinstance(await run.result(), Completed)
        assert await results(run) == ["{'action': 'accept'}"]
        assert [opened.ask_kind for opened in await entries(run, AskOpened)] == [
            "approval",
            "question",
        ]
        calls = [started.attempt for started in await entries(run, CallStarted)]
        assert 2 in calls


async def test_a_run_can_be_cancelled_while_its_server_waits(url: str) -> None:
    """The question is closed; nothing is sent any more."""
    async with mcp_tools(url=url) as tools, clerk(tools, BOOK, "Done.") as midrun:
        run = await midrun.start("clerk", "go")
        await run.until("waiting")
        await run.cancel()
        await run.until("cancelled")
        with pytest.raises(ControlRefused):
            await run.answer("inside")


async def test_a_question_of_a_childs_server_is_decided_on_its_parent(url: str) -> None:
    """Answered or declined there, as on the child itself."""
    async with mcp_tools(url=url) as tools:
        waiter = Agent("waiter", model=ScriptedModel([BOOK, "Booked."]), tools=tools)
        calls = (Use("waiter", task="a table"), "Done.")
        async with clerk([waiter.as_tool()], *calls) as midrun:
            run = await midrun.start("clerk", "go")
            (where,) = (await run.until("waiting")).asks
            assert (where.kind, where.question, where.declinable) == ("child", "Where?", True)
            await run.answer("outside")
            (who,) = (await run.until("waiting")).asks
            assert who.question == "Who?"
            await run.decline("alone")
            assert isinstance(await run.result(), Completed)
            (child,) = (await midrun.store.list_runs(RunQuery(parent=run.id))).items
            assert await results(await midrun.get(child.run)) == [
                "table on Monday: party decline None; where accept {'place': 'outside'}",
            ]


async def test_a_request_that_no_person_can_answer_is_an_error_in_words(url: str) -> None:
    """The call was not completed, and that is known."""
    async with mcp_tools(url=url) as tools, clerk(tools, Use("sample"), "Oh.") as midrun:
        run = await midrun.start("clerk", "go")
        await run.until("completed")
        (failed,) = await entries(run, CallFailed)
    assert failed.error == (
        "ToolFailed: Cannot complete the call: the server asks for sampling/createMessage, "
        "which midrun does not offer."
    )


async def test_a_server_may_put_a_call_off(url: str) -> None:
    """It has no question, only a state to come back with."""
    async with mcp_tools(url=url) as tools, clerk(tools, Use("put_off"), "Done.") as midrun:
        run = await midrun.start("clerk", "go")
        assert isinstance(await run.result(), Completed)
        assert await results(run) == ["done"]


@ways
async def test_questions_are_offered_only_where_they_can_wait(pipe: Pipe, way: Way) -> None:
    """Older protocols ask in the middle of a call, which no restart would survive."""
    async with (
        served(pipe, way) as tools,
        clerk(tools, Use("capabilities"), "Done.") as midrun,
    ):
        run = await midrun.start("clerk", "go")
        await run.until("completed")
        (declared,) = await results(run)
    assert ("elicitation" in str(declared)) != way.old


# ── forms ────────────────────────────────────────────────────────────────────


def filled_in(value: Json, **fields: Json) -> Json:
    """Return what is sent for `value`, the answer to a form with these fields."""
    schema = {"type": "object", "properties": fields, "required": [*fields][:1]}
    asked = ElicitRequest(params=ElicitRequestFormParams(message="?", requested_schema=schema))
    with pytest.raises(PauseHere) as first:
        ask_for_input(InputRequiredResult(input_requests={"q": asked}))
    answer: Json = {
        "continuation": first.value.continuation,
        "choice": "answer",
        "value": value,
    }
    try:
        responses, _ = read_responses(answer)
    except PauseHere as again:
        return again.question
    assert responses
    return responses["q"].model_dump(exclude_none=True, mode="json")["content"]


TEXT: Json = {"type": "string"}
COUNT: Json = {"type": "integer"}
PRICE: Json = {"type": "number"}
FLAG: Json = {"type": "boolean"}
TITLED: Json = {"type": "string", "oneOf": [{"const": "r", "title": "Red"}]}
SOME: Json = {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}


@pytest.mark.parametrize(
    ("value", "fields", "content"),
    [
        ("Ada", {"name": TEXT}, {"name": "Ada"}),
        ({"name": "Ada"}, {"name": TEXT}, {"name": "Ada"}),
        (42, {"name": TEXT}, {"name": "42"}),
        ("4", {"count": COUNT}, {"count": 4}),
        (4.0, {"count": COUNT}, {"count": 4}),
        ("4.5", {"price": PRICE}, {"price": 4.5}),
        (" Yes", {"flag": FLAG}, {"flag": True}),
        (False, {"flag": FLAG}, {"flag": False}),
        ("r", {"colour": TITLED}, {"colour": "r"}),
        ("a, b", {"some": SOME}, {"some": ["a", "b"]}),
        (["b"], {"some": SOME}, {"some": ["b"]}),
        ('{"a": 1, "b": "x"}', {"a": COUNT, "b": TEXT}, {"a": 1, "b": "x"}),
        ({"a": 1}, {"a": COUNT, "b": TEXT}, {"a": 1}),
        ("whatever", {}, {}),
    ],
)
def test_an_answer_is_read_as_its_form_declares_it(
    value: Json, fields: dict[str, Json], content: Json
) -> None:
    """On the page and in the terminal everything is typed as text."""
    assert filled_in(value, **fields) == content


@pytest.mark.parametrize(
    ("value", "fields", "problem"),
    [
        ("many", {"count": COUNT}, 'count must be of type integer, got "many"'),
        (4.5, {"count": COUNT}, "count must be of type integer, got 4.5"),
        (True, {"count": COUNT}, "count must be of type integer, got true"),
        ("inf", {"price": PRICE}, 'price must be of type number, got "inf"'),
        ("perhaps", {"flag": FLAG}, 'flag must be of type boolean, got "perhaps"'),
        ({"x": 1}, {"name": TEXT}, 'name must be of type string, got {"x": 1}'),
        ("g", {"colour": TITLED}, 'colour must be one of "r", got "g"'),
        (["c"], {"some": SOME}, 'some must be one of "a", "b", got "c"'),
        (1, {"some": SOME}, "some must be a list, got 1"),
        (None, {"name": TEXT}, "name is required"),
        ("x", {"a": COUNT, "b": TEXT}, "expected an object with the fields a, b"),
        ({"b": "x"}, {"a": COUNT, "b": TEXT}, "a is required"),
    ],
)
def test_an_answer_that_does_not_fit_its_form_is_named(
    value: Json, fields: dict[str, Json], problem: str
) -> None:
    """The person is asked again, and told why."""
    assert filled_in(value, **fields) == f"Cannot use the last answer: {problem}. ?"
