"""Agents of the OpenAI Agents SDK that hand off to each other, or are tools of each other."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest
from agents import Agent, Handoff, RunContextWrapper, Usage, function_tool, handoff
from agents.extensions import handoff_filters
from agents.items import TResponseOutputItem
from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call
from pydantic import BaseModel

from midrun import Completed, Midrun, Misconfigured, host, traits
from midrun.core.values import Effect
from midrun.stops import MaxSteps
from tests.support.store_choice import get_store_url

AnyAgent: TypeAlias = Agent[Any]  # type: ignore[explicit-any]
Context: TypeAlias = RunContextWrapper[Any]  # type: ignore[explicit-any]
Reply: TypeAlias = list[TResponseOutputItem]

MATH = "You explain math step by step and include worked examples."


def call(name: str, arguments: str = "{}", id_: str = "") -> Reply:
    return [function_call(name, arguments, call_id=id_ or f"call-{name}")]


def say(text: str) -> Reply:
    return [assistant_message(text)]


class Tutors:
    """The agents of the quick start of the SDK. Another process would make them again."""

    def __init__(self, triage: list[Reply], math: list[Reply]) -> None:
        self.triage_model = ScriptedModel(triage)
        self.math_model = ScriptedModel(math)
        math_tutor_agent = AnyAgent(
            name="Math Tutor",
            handoff_description="Specialist agent for math questions",
            instructions=MATH,
            model=self.math_model,
        )
        self.math = math_tutor_agent
        self.triage = AnyAgent(
            name="Triage Agent",
            instructions="Route each homework question to the right specialist.",
            model=self.triage_model,
            handoffs=[math_tutor_agent],
        )


async def test_the_agent_that_took_over_speaks_after_a_restart(store_path: Path) -> None:
    """The handoff is a call in the journal, and its result names the next agent."""
    url = get_store_url(store_path)
    tutors = Tutors([call("transfer_to_math_tutor")], [])
    hosted = host(tutors.triage, stop=MaxSteps(1))
    assert hosted.undeclared_tools == 0
    assert hosted.tools["transfer_to_math_tutor"].traits.effect is Effect.READ
    async with Midrun(url, agents=[hosted]) as midrun:
        run = await midrun.start(hosted, "What is 2 + 2?")
        await run.until("paused")
    shown = tutors.triage_model.calls[0].tools[0]
    assert (shown.name, tutors.triage_model.calls[0].handoffs) == ("transfer_to_math_tutor", [])
    assert "Specialist agent for math questions" in str(getattr(shown, "description", ""))
    other = Tutors([], [say("It is 4.")])
    hosted = host(other.triage, stop=MaxSteps(1))
    async with Midrun(url, agents=[hosted]) as midrun:
        run = await midrun.get(run.id)
        await run.resume("Show the steps.", caps={"steps": 9})
        assert (await run.until("completed")).output == "It is 4."
        assert await midrun.verify(run.id)
    (request,) = other.math_model.calls
    assert request.system_instructions == MATH
    assert [item.get("output") or item.get("content") for item in request.input] == [
        "What is 2 + 2?",
        None,
        '{"assistant": "Math Tutor"}',
        "Show the steps.",
    ]


async def test_a_handoff_counts_after_the_history_is_summarized() -> None:
    """The call is no longer in the prompt, but it is in the journal."""

    @function_tool
    async def add(a: int, b: int) -> int:
        return a + b

    steps = [call("add", f'{{"a": {n}, "b": 1}}', f"call-{n}") for n in range(9)]

    def reply(request: ModelCall) -> Reply:
        if "Summarise this conversation" in str(request.input[-1]):
            return say("Some numbers were added.")
        return steps.pop() if steps else say("done")

    tutors = Tutors([call("transfer_to_math_tutor")], [])
    tutors.math_model.extend([ModelStep.respond(reply)] * 20)
    tutors.math.tools = [add]
    for model in (tutors.triage_model, tutors.math_model):
        model.set_default_usage(Usage(requests=1, input_tokens=100, total_tokens=110))
    hosted = host(tutors.triage, window=50)
    outcome = await hosted.run("Add")
    assert isinstance(outcome, Completed), outcome
    prompts = [str(c.input) for c in tutors.math_model.calls]
    assert "Some numbers were added." in prompts[-1]
    assert "transfer_to_math_tutor" not in prompts[-1]
    assert len(tutors.triage_model.calls) == 1


async def test_an_approval_comes_before_a_handoff() -> None:
    """A handoff that a person declines does not take place."""
    tutors = Tutors([call("transfer_to_math_tutor"), say("I stay.")], [])
    hosted = host(tutors.triage, tools={"transfer_to_math_tutor": traits(approve=True)})
    async with Midrun("memory://", agents=[hosted]) as midrun:
        run = await midrun.start(hosted, "What is 2 + 2?")
        view = await run.until("waiting")
        assert [ask.tool for ask in view.asks] == ["transfer_to_math_tutor"]
        await run.decline()
        assert (await run.until("completed")).output == "I stay."


async def test_the_second_handoff_of_a_reply_is_refused() -> None:
    """The tools of the same reply belong to the agent that asked for them."""

    @function_tool
    async def look() -> str:
        return "seen"

    both = [
        *call("transfer_to_math_tutor", id_="call-1"),
        *call("transfer_to_history_tutor", id_="call-2"),
        *call("look"),
    ]
    history = AnyAgent(name="History Tutor", model=ScriptedModel())
    tutors = Tutors([both], [say("4")])
    tutors.triage.handoffs.append(history)
    tutors.triage.tools = [look]
    assert isinstance(await host(tutors.triage).run("Go"), Completed)
    outputs = [item["output"] for item in tutors.math_model.calls[0].input[-3:]]
    assert outputs == [
        '{"assistant": "Math Tutor"}',
        "No result. Multiple handoffs detected, ignoring this one.",
        "seen",
    ]


class Reason(BaseModel):  # type: ignore[explicit-any]  # of its base
    why: str


async def test_a_handoff_has_its_callback_and_its_filter() -> None:
    """The callback is made once; the filter applies to each step of the next agent."""
    reasons: list[str] = []

    @function_tool
    async def look() -> str:
        return "seen"

    async def note(context: Context, given: Reason) -> None:
        reasons.append(f"{given.why} in {context.context}")

    triage = [call("look"), call("escalate", '{"why": "hard"}')]
    tutors = Tutors(triage, [call("look", id_="call-2"), say("4")])
    tutors.triage.tools = tutors.math.tools = [look]
    tutors.triage.handoffs = [
        handoff(
            tutors.math,
            tool_name_override="escalate",
            on_handoff=note,
            input_type=Reason,
            input_filter=handoff_filters.remove_all_tools,
        )
    ]
    hosted = host(tutors.triage, context=lambda: "desk")
    assert hosted.undeclared_tools == 2  # its callback may have an effect
    assert isinstance(await hosted.run("Go"), Completed)
    assert reasons == ["hard in desk"]
    first, second = (c.input for c in tutors.math_model.calls)
    assert first == [{"role": "user", "content": "Go"}]
    assert [item.get("type") for item in second] == [
        None,
        "function_call",
        "function_call_output",
    ]


async def test_a_handoff_that_is_not_enabled_is_not_shown() -> None:
    tutors = Tutors([call("transfer_to_math_tutor"), say("I stay.")], [])
    tutors.triage.handoffs = [
        handoff(tutors.math, is_enabled=lambda _, agent: agent.name == "x")
    ]
    assert isinstance(await host(tutors.triage).run("Go"), Completed)
    assert tutors.triage_model.calls[0].tools == []


# ── agents as tools ──────────────────────────────────────────────────────────


async def test_an_agent_that_is_a_tool_runs_inside_of_one_call() -> None:
    """Its own calls are not journaled, so they are listed as ungated."""

    @function_tool
    async def look_up(word: str) -> str:
        return f"{word}!"

    inner = ScriptedModel([call("look_up", '{"word": "hola"}'), say("hola!")])
    translator = AnyAgent(name="translator", model=inner, tools=[look_up])
    tool = translator.as_tool("translate", "Translate a text.")
    outer = ScriptedModel([call("translate", '{"input": "hello"}'), say("done")])
    hosted = host(AnyAgent(name="boss", model=outer, tools=[tool]))
    assert hosted.ungated_tools == ("translate/look_up",)
    assert isinstance(await hosted.run("Say hello in Spanish"), Completed)
    assert outer.calls[1].input[-1]["output"] == "hola!"


async def test_a_cancel_stops_the_agent_inside_of_a_call() -> None:
    tutors = Tutors([], [])

    async def hang(_: object) -> Reply:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()
        raise AssertionError

    started, stopped = anyio.Event(), anyio.Event()
    tutors.math_model.enqueue(ModelStep.respond(hang))
    tool = tutors.math.as_tool("ask_math", "Ask about math.")
    outer = ScriptedModel([call("ask_math", '{"input": "2 + 2"}')])
    hosted = host(AnyAgent(name="boss", model=outer, tools=[tool]))
    async with Midrun("memory://", agents=[hosted]) as midrun:
        run = await midrun.start(hosted, "Go")
        await started.wait()
        await run.cancel()
        await run.until("cancelled")
        assert stopped.is_set()


# ── errors ───────────────────────────────────────────────────────────────────


def make_namesakes() -> object:
    return host(AnyAgent(name="a", handoffs=[AnyAgent(name="a")]))


def make_foreign_handoff() -> object:
    async def choose(context: Context, arguments: str) -> AnyAgent:
        raise AssertionError(context, arguments)

    chosen: Handoff[Any, AnyAgent] = Handoff(  # type: ignore[explicit-any]
        tool_name="choose",
        tool_description="",
        input_json_schema={},
        on_invoke_handoff=choose,
        agent_name="b",
    )
    return host(AnyAgent(name="a", handoffs=[chosen]))


def make_clash() -> object:
    @function_tool
    async def transfer_to_b() -> str:
        return ""

    return host(AnyAgent(name="a", tools=[transfer_to_b], handoffs=[AnyAgent(name="b")]))


def make_inner_approval() -> object:
    @function_tool(needs_approval=True)
    async def wipe() -> str:
        return ""

    inmost = AnyAgent(name="c", tools=[wipe])
    inner = AnyAgent(name="b", tools=[inmost.as_tool("ask_c", "Ask c.")])
    return host(AnyAgent(name="a", tools=[inner.as_tool("ask_b", "Ask b.")]))


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (make_namesakes, "two agents with the name 'a'"),
        (make_foreign_handoff, r"Make it with agents\.handoff\(agent\)"),
        (make_clash, "a tool with the name of the handoff 'transfer_to_b'"),
        (make_inner_approval, "its tool 'wipe' needs an approval"),
    ],
)
def test_a_team_that_cannot_be_hosted_is_refused_by_name(
    make: Callable[[], object], problem: str
) -> None:
    with pytest.raises(Misconfigured, match=problem):
        make()
