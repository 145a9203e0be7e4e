"""Input requests of a server: the call ends, and is repeated with the answers of a person."""

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
from tests.support.run_journal import read_entries
from tests.unit.mcp.tool_servers import (
    TIMEOUT_S,
    LinePipe,
    ServerVariant,
    all_variants,
    current_variants,
    open_midrun,
    open_server_tools,
    read_results,
)

BOOK = Use("book", day="Monday")

BOOKED = (
    "table on Monday: party accept {'count': 4, 'vegan': True};"
    " where accept {'place': 'inside'}"
)


@pytest.mark.slow
@current_variants
async def test_input_requests_of_a_server_become_asks(
    pipe: LinePipe, variant: ServerVariant
) -> None:
    """They are asked one by one; then the server gets all answers and its own state."""
    async with (
        open_server_tools(pipe, variant) as tools,
        open_midrun(tools, BOOK, "Done.") as midrun,
    ):
        run = await midrun.start("clerk", "go")
        (place_ask,) = (await run.until("waiting")).asks
        assert (place_ask.kind, place_ask.question, place_ask.declinable) == (
            "question",
            "Where?",
            True,
        )
        assert isinstance(place_ask.data, dict)
        assert place_ask.data["options"] == ["inside", "outside"]
        assert "table on" not in str(place_ask.data)
        await run.answer("inside")
        (party_ask,) = (await run.until("waiting")).asks
        assert party_ask.question == "Who?"
        await run.answer({"count": 4, "vegan": True})
        assert isinstance(await run.result(), Completed)
        assert await read_results(run) == [BOOKED]
        assert not await read_entries(run, CallUnknown)


@pytest.mark.slow
@current_variants
async def test_an_input_request_is_answered_by_another_process_after_a_restart(
    tmp_path: Path, pipe: LinePipe, variant: ServerVariant
) -> None:
    """Worker and server have ended; the state of the server is in the journal."""
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    model = ScriptedModel([BOOK, "Done."])
    run_id = ""
    with anyio.fail_after(TIMEOUT_S):
        for question, answer in (("Where?", '"inside"'), ("Who?", '{"count":4,"vegan":true}')):
            async with open_server_tools(pipe, variant) as tools:
                agent = Agent("clerk", model=model, tools=tools)
                async with Midrun(store, agents=[agent]) as midrun:
                    run = await (midrun.get(run_id) if run_id else midrun.start("clerk", "go"))
                    view = await run.until("waiting")
                    run_id = run.id
                    assert [ask.question for ask in view.asks] == [question]
            pipe.lines.clear()
            command = [sys.executable, "-m", "midrun", "answer", run_id, answer]
            await anyio.run_process([*command, "--store", store])
        async with open_server_tools(pipe, variant) as tools:
            agent = Agent("clerk", model=model, tools=tools)
            async with Midrun(store, agents=[agent]) as midrun:
                run = await midrun.get(run_id)
                assert isinstance(await run.result(), Completed)
                assert await read_results(run) == [BOOKED]
                assert await midrun.verify(run_id)


async def test_an_input_request_can_be_declined(url: str) -> None:
    """The server is told, and decides on the result of the call."""
    async with mcp_tools(url=url) as tools, open_midrun(tools, BOOK, "Done.") as midrun:
        run = await midrun.start("clerk", "go")
        assert "decline" in (await run.until("waiting")).allowed
        await run.decline("no idea")
        await run.until("waiting")
        await run.decline()
        assert isinstance(await run.result(), Completed)
        assert await read_results(run) == [
            "table on Monday: party decline None; where decline None",
        ]


async def test_an_invalid_answer_is_asked_for_again(url: str) -> None:
    """The server never sees it."""
    async with mcp_tools(url=url) as tools, open_midrun(tools, BOOK, "Done.") as midrun:
        run = await midrun.start("clerk", "go")
        await run.until("waiting")
        await run.answer("upstairs")
        (again,) = (await run.until("waiting")).asks
        assert again.question.startswith("Cannot use the last answer: place ")
        assert again.question.endswith("Where?")


async def test_an_approved_call_is_not_approved_again_after_its_input_request(
    url: str,
) -> None:
    """It is the same call, with the same arguments."""
    options = mcp_tools(url=url, approve={"sign": True})
    async with options as tools, open_midrun(tools, Use("sign"), "Done.") as midrun:
        run = await midrun.start("clerk", "go")
        await run.until("waiting")
        await run.approve()
        (ask,) = (await run.until("waiting")).asks
        assert ask.data == {"url": "https://sign.example/1", "options": ["done"]}
        await run.answer("done")
        assert isinstance(await run.result(), Completed)
        assert await read_results(run) == ["{'action': 'accept'}"]
        assert [opened.ask_kind for opened in await read_entries(run, AskOpened)] == [
            "approval",
            "question",
        ]
        attempts = [started.attempt for started in await read_entries(run, CallStarted)]
        assert 2 in attempts


async def test_a_run_can_be_cancelled_while_an_input_request_is_open(url: str) -> None:
    """The ask is closed, and nothing more is sent to the server."""
    async with mcp_tools(url=url) as tools, open_midrun(tools, BOOK, "Done.") as midrun:
        run = await midrun.start("clerk", "go")
        await run.until("waiting")
        await run.cancel()
        await run.until("cancelled")
        with pytest.raises(ControlRefused):
            await run.answer("inside")


async def test_an_input_request_of_a_child_run_is_decided_on_its_parent(url: str) -> None:
    async with mcp_tools(url=url) as tools:
        waiter = Agent("waiter", model=ScriptedModel([BOOK, "Booked."]), tools=tools)
        calls = (Use("waiter", task="a table"), "Done.")
        async with open_midrun([waiter.as_tool()], *calls) as midrun:
            run = await midrun.start("clerk", "go")
            (place_ask,) = (await run.until("waiting")).asks
            assert (place_ask.kind, place_ask.question, place_ask.declinable) == (
                "child",
                "Where?",
                True,
            )
            await run.answer("outside")
            (party_ask,) = (await run.until("waiting")).asks
            assert party_ask.question == "Who?"
            await run.decline("alone")
            assert isinstance(await run.result(), Completed)
            (child,) = (await midrun.store.list_runs(RunQuery(parent=run.id))).items
            assert await read_results(await midrun.get(child.run)) == [
                "table on Monday: party decline None; where accept {'place': 'outside'}",
            ]


async def test_a_request_that_is_not_for_a_person_fails_the_call(url: str) -> None:
    """The server asks for sampling, and the error names it."""
    async with mcp_tools(url=url) as tools, open_midrun(tools, Use("sample"), "Oh.") as midrun:
        run = await midrun.start("clerk", "go")
        await run.until("completed")
        (failed,) = await read_entries(run, CallFailed)
    assert failed.error == (
        "ToolFailed: Cannot complete the call: the server asks for sampling/createMessage, "
        "which midrun does not offer."
    )


async def test_a_server_may_request_a_repeated_call_with_a_state(url: str) -> None:
    """There is no question in its result, only a state to send back."""
    async with (
        mcp_tools(url=url) as tools,
        open_midrun(tools, Use("put_off"), "Done.") as midrun,
    ):
        run = await midrun.start("clerk", "go")
        assert isinstance(await run.result(), Completed)
        assert await read_results(run) == ["done"]


@pytest.mark.slow
@all_variants
async def test_elicitation_is_declared_only_in_the_current_protocol(
    pipe: LinePipe, variant: ServerVariant
) -> None:
    """Older protocols ask in the middle of a call, which would not survive a restart."""
    async with (
        open_server_tools(pipe, variant) as tools,
        open_midrun(tools, Use("capabilities"), "Done.") as midrun,
    ):
        run = await midrun.start("clerk", "go")
        await run.until("completed")
        (declared,) = await read_results(run)
    assert ("elicitation" in str(declared)) != variant.is_old


# ── forms ────────────────────────────────────────────────────────────────────


def answer_form(value: Json, **fields: Json) -> Json:
    """Return the content that is sent for `value`, or the question that is asked again."""
    schema = {"type": "object", "properties": fields, "required": [*fields][:1]}
    request = ElicitRequest(
        params=ElicitRequestFormParams(message="?", requested_schema=schema)
    )
    with pytest.raises(PauseHere) as pause:
        ask_for_input(InputRequiredResult(input_requests={"q": request}))
    answer: Json = {
        "continuation": pause.value.continuation,
        "choice": "answer",
        "value": value,
    }
    try:
        responses, _ = read_responses(answer)
    except PauseHere as repeated:
        return repeated.question
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
def test_an_answer_is_converted_to_the_types_of_its_form(
    value: Json, fields: dict[str, Json], content: Json
) -> None:
    """On the page and in the terminal, every answer is typed as text."""
    assert answer_form(value, **fields) == content


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
def test_an_answer_that_does_not_fit_its_form_is_refused_with_the_reason(
    value: Json, fields: dict[str, Json], problem: str
) -> None:
    assert answer_form(value, **fields) == f"Cannot use the last answer: {problem}. ?"
