"""Tools under a condition, tools that the model has to find, and hooks around tool calls."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from midrun import (
    Agent,
    Call,
    Completed,
    Failed,
    Midrun,
    Misconfigured,
    ModelRetry,
    Run,
    Tool,
    tool,
)
from midrun.agents.offered_tools import rank_tools
from midrun.agents.signature import Function
from midrun.core.entries import CallAborted, CallDone, CallFailed
from midrun.core.transcript import Transcript
from midrun.core.values import Json
from midrun.models import ScriptedModel, Use
from midrun.ports.model import Finished, Piece, Prompt
from midrun.testing.controllable_tools import ControllableTools
from tests.support.run_journal import read_entries
from tests.support.store_choice import get_store_url
from tests.unit.runs.conftest import OpenMidrun


class PromptRecorder(ScriptedModel):
    """A scripted model that records the names of the tools in each prompt."""

    def __init__(self, turns: Sequence[object]) -> None:
        super().__init__(turns)  # type: ignore[arg-type]  # checked there
        self.offered: list[set[str]] = []

    def stream(
        self, prompt: Prompt
    ) -> AbstractAsyncContextManager[AsyncIterator[Piece | Finished]]:
        self.offered.append({spec.name for spec in prompt.tools} - {"plan"})
        return super().stream(prompt)


def read_results(transcript: Transcript) -> str:
    """Return the outcomes of the calls of the last step."""
    return "; ".join(str(made.problem or made.result) for made in transcript[-1].uses)


# ── conditions ────────────────────────────────────────────────────────────────────────────


async def test_a_tool_is_offered_only_while_its_condition_holds(opened: OpenMidrun) -> None:
    """The model reads why a call of a hidden tool was not made; nothing was executed."""
    made: list[str] = []

    async def is_signed_in(call: Call) -> bool:
        return any(use.tool == "sign_in" for turn in call.transcript for use in turn.uses)

    @tool
    async def sign_in() -> str:
        """Sign in."""
        return "ok"

    @tool(when=is_signed_in)
    async def pay(amount: int) -> str:
        """Pay."""
        made.append(f"{amount}")
        return "paid"

    model = PromptRecorder(
        [Use("pay", amount=1), Use("sign_in"), Use("pay", amount=2), "Done."]
    )
    run = await (await opened(Agent("actor", model=model, tools=[sign_in, pay]))).start(
        "actor", "go"
    )
    assert isinstance(await run.result(), Completed)
    assert made == ["2"]
    assert model.offered == [{"sign_in"}, {"sign_in"}, {"sign_in", "pay"}, {"sign_in", "pay"}]
    replies = [done.reply for done in await read_entries(run, CallDone) if done.reply]
    assert replies[0].uses[0].refused == "the tool pay is not available now"


async def test_a_call_that_was_asked_for_is_made_although_the_condition_ended(
    path: Path,
) -> None:
    """The journal has the call. Another worker does not ask the condition again for it."""
    tools, is_open = ControllableTools(), [True]

    def make_agent(*turns: object) -> Agent:
        pay = tool(tools._quick, name="pay", approve=True, when=lambda: is_open[0])
        return Agent("actor", model=ScriptedModel(list(turns)), tools=[pay])  # type: ignore[arg-type]

    script = (Use("pay", name="x"), "Done.")
    async with Midrun(get_store_url(path), agents=[make_agent(*script)]) as midrun:
        run_id = (await midrun.start("actor", "go")).id
        await (await midrun.get(run_id)).until("waiting")
    is_open[0] = False
    async with Midrun(get_store_url(path), agents=[make_agent(*script)]) as midrun:
        run = await midrun.get(run_id)
        await run.approve()
        await run.until("completed")
    assert tools.completed == ["x"]


@pytest.mark.parametrize(
    ("condition", "problem"),
    [(lambda: None, "must return True or False, got None"), (lambda: 1 / 0, "ZeroDivision")],
)
async def test_a_condition_that_fails_fails_the_run_with_its_name(
    condition: Function, problem: str
) -> None:
    """A forgotten `return` must not hide a tool. The run can be resumed."""
    pay = tool(lambda: "paid", name="pay", when=condition)
    outcome = await Agent("actor", model=ScriptedModel(["Done."]), tools=[pay]).run("go")
    assert isinstance(outcome, Failed)
    assert outcome.code == "agent_code_failed"
    assert problem in outcome.error
    assert "when <lambda>" in outcome.error


def test_a_condition_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(Misconfigured, match=r"when must be callable"):
        tool(lambda: "", name="pay", when=True)  # type: ignore[call-overload]
    pay = tool(lambda: "", name="pay", when=lambda _, __: True)
    with pytest.raises(Misconfigured, match=r"tool pay.*must be a function that takes"):
        Agent("actor", model=ScriptedModel([]), tools=[pay])


# ── search ────────────────────────────────────────────────────────────────────────────────


def make_library(*names: str) -> list[Tool]:
    """Return tools of these names; the description is the name in words."""

    def declare(name: str) -> Tool:
        async def act() -> str:
            return f"{name} done"

        act.__doc__ = f"{name.replace('_', ' ').capitalize()} of the customer."
        return tool(act, name=name)

    return [declare(name) for name in names]


async def test_deferred_tools_are_offered_after_the_model_has_found_them(
    opened: OpenMidrun,
) -> None:
    library = make_library("list_invoices", "send_invoice", "book_flight")
    model = PromptRecorder(
        [Use("search_tools", query="an invoice"), Use("send_invoice"), read_results]
    )
    agent = Agent("actor", model=model, deferred_tools=library)
    run = await (await opened(agent)).start("actor", "go")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "send_invoice done"
    found = {"search_tools", "list_invoices", "send_invoice"}
    assert model.offered == [{"search_tools"}, found, found]
    assert "book_flight" in agent.tools["search_tools"].description


async def test_a_search_without_a_match_lists_the_names(opened: OpenMidrun) -> None:
    library = make_library("list_invoices", "book_flight")
    model = ScriptedModel([Use("search_tools", query="weather"), read_results])
    agent = Agent("actor", model=model, deferred_tools=library)
    outcome = await (await (await opened(agent)).start("actor", "go")).result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "{'found': [], 'names': ['list_invoices', 'book_flight']}"


def test_names_count_more_than_descriptions_in_a_search() -> None:
    library = make_library("getWeather", "flight_list", "pay")
    assert [t.name for t in rank_tools(library, "weather of the customer")] == [
        "getWeather",
        "flight_list",
        "pay",
    ]
    assert [t.name for t in rank_tools(library, "Flights")] == ["flight_list"]


# ── hooks ─────────────────────────────────────────────────────────────────────────────────


def block_briefly(name: str) -> str:
    """Return at once, in a process of its own."""
    return f"secret of {name}"


async def test_before_tool_refuses_and_after_tool_changes_the_result(
    opened: OpenMidrun,
) -> None:
    """For async tools and for tools in a process; the journal has the changed result."""
    seen: list[object] = []

    @asynccontextmanager
    async def open_tenant(run_id: str) -> AsyncIterator[str]:
        yield f"tenant of {run_id}"

    async def check(call: Call, tool: str, args: dict[str, str]) -> None:
        seen.append((call.context, tool))
        if args["name"] == "eve":
            raise ModelRetry("Not for eve.")

    def mask(tool: str, _: Json, result: str) -> str | None:
        return result.replace("secret", "***") if tool == "block_briefly" else None

    model = ScriptedModel(
        [
            [Use("block_briefly", name="eve"), Use("quick", name="ada")],
            Use("block_briefly", name="ada"),
            read_results,
        ]
    )
    tools = ControllableTools()
    agent = Agent(
        "actor",
        model=model,
        tools=[tool(block_briefly), *tools.tools()],
        context=open_tenant,
        before_tool=check,
        after_tool=mask,
    )
    run = await (await opened(agent)).start("actor", "go")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "*** of ada"
    assert set(seen) == {
        (f"tenant of {run.id}", "block_briefly"),
        (f"tenant of {run.id}", "quick"),
    }
    (failed,) = await read_entries(run, CallFailed)
    assert (failed.error, failed.code) == ("Not for eve.", "model_retry")
    results = [done.result for done in await read_entries(run, CallDone) if not done.reply]
    assert results == ["ada done", "*** of ada"]


@pytest.mark.parametrize("error", [ModelRetry("Too long."), ValueError("Too long.")])
async def test_a_result_is_withheld_if_after_tool_raises(
    opened: OpenMidrun, error: Exception
) -> None:
    """The tool has taken effect, so the call is done and is undone by a cancel."""
    tools = ControllableTools()

    async def refuse(*_: Json) -> None:
        raise error

    agent = tools.agent(Use("draft", name="a"), read_results, after_tool=refuse)
    run = await (await opened(agent)).start("actor", "go")
    view = await run.until("completed")
    assert tools.completed == ["a"]
    assert view.output.startswith("done; its result is withheld: ")
    assert view.output.endswith("Too long.")
    assert "a done" not in str([entry async for entry in run.feed()])
    sentences = [event.sentence async for event in run.events()]
    assert any("is done, but its result is withheld:" in line for line in sentences)


async def test_before_tool_that_raises_another_error_fails_the_call(opened: OpenMidrun) -> None:
    tools = ControllableTools()

    async def break_down(*_: Json) -> None:
        raise ValueError("no policy")

    agent = tools.agent(Use("quick", name="a"), read_results, before_tool=break_down)
    run = await (await opened(agent)).start("actor", "go")
    view = await run.until("completed")
    assert not tools.called
    assert "not executed: FunctionFailed: before_tool break_down: ValueError" in view.output


@pytest.mark.parametrize("name", ["quick", "block_briefly"])
async def test_a_cancel_stops_a_hook_and_the_tool_is_not_called(
    opened: OpenMidrun, name: str
) -> None:
    tools, entered = ControllableTools(), anyio.Event()

    async def wait(*_: Json) -> None:
        entered.set()
        await anyio.sleep_forever()

    agent = Agent(
        "actor",
        model=ScriptedModel([Use(name, name="a")]),
        tools=[tool(block_briefly), *tools.tools()],
        before_tool=wait,
    )
    run: Run = await (await opened(agent)).start("actor", "go")
    await entered.wait()
    await run.cancel()
    await run.until("cancelled")
    assert len(await read_entries(run, CallAborted)) == 1
    assert not tools.called


def test_a_hook_with_other_parameters_is_refused() -> None:
    with pytest.raises(Misconfigured, match=r"before_tool <lambda> must be a function"):
        Agent("actor", model=ScriptedModel([]), before_tool=lambda: None)
    with pytest.raises(Misconfigured, match="deferred_tools must be a list of tools"):
        Agent("actor", model=ScriptedModel([]), deferred_tools="search")  # type: ignore[arg-type]
