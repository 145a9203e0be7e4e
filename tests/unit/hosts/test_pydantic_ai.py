"""An agent of Pydantic AI, hosted: the contract of hosts, and what this framework adds."""

import os
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import anyio
import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import (
    BinaryContent,
    FunctionToolset,
    ModelRetry,
    PromptedOutput,
    RunContext,
    ToolReturn,
)
from pydantic_ai.capabilities import NativeTool
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.native_tools import WebSearchTool
from pydantic_ai.toolsets import ToolsetTool

from midrun import Agent, Completed, Failed, File, Midrun, Misconfigured, Paused, host, traits
from midrun.cli.output import format_view
from midrun.hosts import function
from midrun.models import ScriptedModel, Use
from midrun.ports.environment import Environment
from tests.support.conditions import draw_no_delay
from tests.support.providers import Answer, HttpError, Provider, Text
from tests.unit.hosts.blocking_tools import get_process_id
from tests.unit.hosts.foreign_agents import make_pydantic_ai_agent
from tests.unit.hosts.suite_provider import HostContract


class TestContract(HostContract):
    agent_factory = "tests.unit.hosts.foreign_agents:make_pydantic_ai_agent"
    framework = "Pydantic AI agent"
    package = "pydantic-ai-slim"


async def test_the_model_gets_the_image_of_a_message() -> None:
    image = b"\x89PNG\r\n\x1a\n" + bytes(range(16))

    async def charge(n: int) -> str:
        return str(n)

    async with Provider(Answer(Text("A cat."))) as provider:
        agent = host(make_pydantic_ai_agent(provider.url, charge), name="viewer")
        async with Midrun("memory://", agents=[agent]) as midrun:
            files = [File("cat.png", "image/png", image)]
            run = await midrun.start(agent, "What is it?", files=files)
            assert await run.result() == Completed(run_id=run.id, output="A cat.")
        assert b64encode(image).decode() in str(provider.exchanges[0].body)


# ── deps, instructions, output ───────────────────────────────────────────────


@dataclass
class Bill:
    total: int
    customer: str


@dataclass
class Deps:
    run_id: str


Script = Callable[[list[str]], str | tuple[str, str]]


def make_model(script: Script, prompts: list[str]) -> FunctionModel:
    """Return a model that is told the results so far; it answers a text or a call."""

    async def stream(
        messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[str | DeltaToolCalls]:
        prompts.append(ModelMessagesTypeAdapter.dump_json(messages).decode())
        results = [
            str(part.content)
            for message in messages
            for part in message.parts
            if isinstance(part, ToolReturnPart)
        ]
        answer = script(results)
        if isinstance(answer, str):
            yield answer
        else:
            tool, args = answer
            name = info.output_tools[0].name if tool == "output" else tool
            yield {0: DeltaToolCall(name, args, tool_call_id=f"call-{len(prompts)}")}

    return FunctionModel(stream_function=stream)


async def test_deps_instructions_and_typed_output_are_those_of_the_agent() -> None:
    """A validator's retry is a refused call of the output; the value arrives as JSON."""
    prompts: list[str] = []
    seen: list[str | None] = []

    def script(results: list[str]) -> tuple[str, str]:
        if not results:
            return "price", '{"item": "cat", "why": "an argument of the tool"}'
        total = 42 if any("too little" in result for result in results) else 1
        return "output", f'{{"total": {total}, "customer": "ada"}}'

    agent = PydanticAgent(
        make_model(script, prompts),
        name="biller",
        deps_type=Deps,
        output_type=Bill,
        system_prompt="Always be polite.",
        instructions=lambda ctx: f"You work in {ctx.deps.run_id}.",
    )

    @agent.tool
    async def price(ctx: RunContext[Deps], item: str, why: str) -> str:
        seen.append(ctx.tool_call_id)
        return f"{item}, {why}: 42 in {ctx.deps.run_id}"

    @agent.output_validator
    async def check_total(bill: Bill) -> Bill:
        if bill.total < 10:
            raise ModelRetry("too little")
        return bill

    hosted = host(agent, context=Deps)
    async with Midrun("memory://", agents=[hosted]) as midrun:
        run = await midrun.start(hosted, "Bill for a cat")
        outcome = await run.result()
        assert isinstance(outcome, Completed)
        assert outcome.value == {"total": 42, "customer": "ada"}
        assert outcome.output == '{"total":42,"customer":"ada"}'
        view = await run.view()
        assert (view.framework, view.undeclared_tools, view.value) == (
            "pydantic-ai",
            1,
            outcome.value,
        )
        assert '"total": 42' in str(await run.report())
        shown = "".join(text for line in format_view(view, view.changed_at) for _, text in line)
        assert "from pydantic-ai; 1 tool undeclared" in shown
    assert seen == ["call-1"]
    assert len(prompts) == 3
    for prompt in prompts:
        assert f"You work in {run.id}." in prompt
        assert "Always be polite." in prompt
    assert f"cat, an argument of the tool: 42 in {run.id}" in prompts[-1]


async def test_an_output_that_is_never_valid_fails_the_run() -> None:
    """The agent's own limit of retries counts over the steps of the run."""
    prompts: list[str] = []
    agent = PydanticAgent(make_model(lambda _: "no number", prompts), name="counter", retries=2)

    @agent.output_validator
    async def check_number(text: str) -> str:
        raise ModelRetry(f"{text!r} is not a number")

    outcome = await host(agent).run("Count")
    assert isinstance(outcome, Failed)
    assert outcome.code == "bad_output"
    assert len(prompts) == 3
    assert prompts[2].count("'no number' is not a number") == 2


async def test_a_text_output_stays_as_it_was_written() -> None:
    agent = PydanticAgent(
        make_model(lambda _: '{"total": 7, "customer": "b"}', []),
        name="native",
        output_type=PromptedOutput(Bill),
    )
    outcome = await host(agent).run("Bill")
    assert isinstance(outcome, Completed)
    assert outcome.output == '{"total": 7, "customer": "b"}'
    assert outcome.value == {"total": 7, "customer": "b"}


async def test_instructions_see_the_history_as_in_the_loop_of_the_framework() -> None:
    """After results of tools, the start of a run of the framework is skipped."""
    seen: list[list[str]] = []
    script = lambda results: "done" if len(results) == 2 else ("look", "{}")  # noqa: E731 - a short script
    agent = PydanticAgent(make_model(script, []), name="reader")

    @agent.tool_plain
    async def look() -> str:
        return "nothing"

    @agent.instructions
    def note(ctx: RunContext[object]) -> str:
        kinds = [type(part).__name__ for message in ctx.messages for part in message.parts]
        seen.append([*kinds, str(ctx.run_step)])
        return f"{len(kinds)} parts"

    async with agent.run_stream_events("Look") as events:
        assert [event async for event in events]
    own = [kinds[:-1] for kinds in seen]
    seen.clear()
    assert isinstance(await host(agent).run("Look"), Completed)
    assert [kinds[:-1] for kinds in seen] == own
    assert {kinds[-1] for kinds in seen} == {"1"}


async def test_metadata_is_made_from_the_history_in_each_step() -> None:
    """Its function sees the start of a run of the framework, so that is not skipped."""
    seen: list[int] = []
    script = lambda results: "done" if results else ("look", "{}")  # noqa: E731 - as above

    def make_metadata(ctx: RunContext[object]) -> dict[str, object]:
        seen.append(len(ctx.messages))
        return {}

    async def look() -> str:
        return "nothing"

    model = make_model(script, [])
    agent = PydanticAgent(model, name="reader", tools=[look], metadata=make_metadata)
    assert isinstance(await host(agent).run("Look"), Completed)
    assert 0 not in seen


# ── tools ────────────────────────────────────────────────────────────────────


class Loud(FunctionToolset[object]):
    """A toolset with code of its own around each call."""

    async def call_tool(  # type: ignore[explicit-any]  # of its base
        self,
        name: str,
        tool_args: dict[str, Any],
        ctx: RunContext[object],
        tool: ToolsetTool[object],
    ) -> str:
        """Execute the call, and write its result in capital letters."""
        return str(await super().call_tool(name, tool_args, ctx, tool)).upper()


async def test_the_code_of_a_toolset_runs_around_its_functions() -> None:
    async def greet() -> str:
        return "hello"

    script = lambda results: results[-1] if results else ("greet", "{}")  # noqa: E731 - as above
    agent = PydanticAgent(make_model(script, []), name="greeter", toolsets=[Loud([greet])])
    outcome = await host(agent).run("Greet")
    assert isinstance(outcome, Completed)
    assert outcome.output == "HELLO"


async def test_the_time_limit_of_a_toolset_holds() -> None:
    async def wait() -> str:
        await anyio.sleep_forever()
        return "never"

    script = lambda results: results[-1] if results else ("wait", "{}")  # noqa: E731 - as above
    toolset: FunctionToolset[object] = FunctionToolset([wait], timeout=0.01)
    agent = PydanticAgent(make_model(script, []), name="waiter", toolsets=[toolset])
    outcome = await host(agent).run("Wait")
    assert isinstance(outcome, Completed)
    assert "Timed out" in outcome.output


def test_the_time_limit_of_a_blocking_tool_holds_in_its_process() -> None:
    """A declared limit takes precedence."""
    agent = PydanticAgent(TestModel(), name="pid", tools=[get_process_id], tool_timeout=5)
    limit = timedelta(seconds=7)
    declared = host(agent, tools={"get_process_id": traits(timeout=limit)})
    found = [each.find_tool("get_process_id") for each in (host(agent), declared)]
    assert [tool.timeout for tool in found if tool] == [timedelta(seconds=5), limit]


async def test_a_toolset_may_name_its_tools_while_the_agent_runs() -> None:
    """They are found without a list; an approval that the framework requires is asked for."""

    async def wipe(disk: str) -> str:
        return f"wiped {disk}"

    toolset = FunctionToolset([wipe], requires_approval=True).prefixed("admin")
    script = lambda results: results[-1] if results else ("admin_wipe", '{"disk": "sda"}')  # noqa: E731 - a short script
    agent = PydanticAgent(make_model(script, []), name="admin", toolsets=[toolset])
    hosted = host(agent, tools={"admin_wipe": traits(idempotent=True)})
    paused = await hosted.run("Wipe sda")
    assert isinstance(paused, Paused)
    assert [(ask.kind, ask.tool) for ask in paused.asks] == [("approval", "admin_wipe")]
    elsewhere = host(agent, tools={"admin_wipe": traits(idempotent=True)})
    outcome = await elsewhere.resume(paused.checkpoint, answer=True)
    assert isinstance(outcome, Completed)
    assert outcome.output == "wiped sda"


async def test_an_image_that_a_tool_returns_is_journaled_and_given_back() -> None:
    prompts: list[str] = []
    script = lambda results: "seen" if results else ("draw", "{}")  # noqa: E731 - as above
    agent = PydanticAgent(make_model(script, prompts), name="painter")

    @agent.tool_plain
    async def draw() -> ToolReturn[object]:
        picture = BinaryContent(b"pixels", media_type="image/png")
        return ToolReturn(return_value=["a cat", picture], content=["painted today"])

    outcome = await host(agent).run("Draw a cat")
    assert isinstance(outcome, Completed)
    last = ModelMessagesTypeAdapter.validate_json(prompts[-1])
    returned = [p for m in last for p in m.parts if isinstance(p, ToolReturnPart)]
    files = [file for part in returned for file in part.files]
    assert [file.data for file in files if isinstance(file, BinaryContent)] == [b"pixels"]
    assert "painted today" in prompts[-1]


async def test_a_blocking_function_runs_in_a_process_that_can_be_killed() -> None:
    script = lambda results: results[-1] if results else ("get_process_id", "{}")  # noqa: E731 - as above
    agent = PydanticAgent(make_model(script, []), name="pid", tools=[get_process_id])
    outcome = await host(agent).run("Which process?")
    assert isinstance(outcome, Completed)
    assert int(outcome.output) != os.getpid()


def test_a_blocking_function_with_a_context_counts_as_unstoppable() -> None:
    agent = PydanticAgent(TestModel(), name="pid")

    @agent.tool
    def block(ctx: RunContext[object]) -> str:
        return str(ctx.run_step)

    assert host(agent).tools["block"].traits.unstoppable


def test_a_tool_of_the_provider_is_listed_as_ungated() -> None:
    search = NativeTool(WebSearchTool())
    agent = PydanticAgent(TestModel(), name="searcher", capabilities=[search])
    assert host(agent).ungated_tools == ("web_search",)


async def test_a_hosted_agent_is_a_tool_of_another_agent() -> None:
    """Each call is a child run."""
    hosted = host(PydanticAgent(make_model(lambda _: "42", []), name="thinker"))
    script: list[str | Use] = [Use("thinker", task="Think"), "It thought."]
    parent = Agent("boss", model=ScriptedModel(script), tools=[hosted.as_tool()])
    async with Midrun("memory://", agents=[parent]) as midrun:
        run = await midrun.start(parent, "Have it think")
        await run.until("completed")
        views = (await midrun.runs()).items
        assert [(v.agent, v.output) for v in views if v.parent] == [("thinker", "42")]


# ── errors ───────────────────────────────────────────────────────────────────


async def test_the_worker_retries_and_not_the_framework() -> None:
    """Each attempt is one request."""
    async with Provider(HttpError(500), Answer(Text("Hello"))) as provider:

        async def charge(n: int) -> str:
            return str(n)

        hosted = host(make_pydantic_ai_agent(provider.url, charge), name="greeter")
        environment = Environment(random_unit=draw_no_delay)
        async with Midrun("memory://", agents=[hosted], outside=environment) as midrun:
            run = await midrun.start(hosted, "Greet")
            assert (await run.until("completed")).output == "Hello"
        assert len(provider.exchanges) == 2


def make_blocking(run: object, task: str) -> str:
    del run
    return task


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: host("agent"), "not an agent of a known framework"),
        (lambda: host(PydanticAgent), "it is a class. Pass an instance"),
        (lambda: host(Agent("a", model=ScriptedModel([]))), "an agent of Midrun already"),
        (lambda: host(make_blocking), "Write async def make_blocking"),
        (lambda: function(name="a")(cast("Any", make_blocking)), "must be async"),  # type: ignore[explicit-any]
        (lambda: host(TestModel(), name="m"), "only agents are hosted"),
        (lambda: host(PydanticAgent(name="a")), "without a model"),
        (lambda: host(PydanticAgent(TestModel())), "without a name"),
        (
            lambda: host(PydanticAgent(TestModel()), name="a", tools={"pay": traits()}),
            "tools must name tools of the agent",
        ),
        (
            lambda: host(PydanticAgent(TestModel()), name="a", context=Bill),
            "context must be callable as context",
        ),
        (
            lambda: host(PydanticAgent(TestModel()), name="a", context=cast("Any", 1)),  # type: ignore[explicit-any]
            "context must be a function",
        ),
        (lambda: traits(name="pay"), "Cannot rename the tool"),
        (lambda: traits(when=bool), "Cannot set when"),
    ],
)
def test_a_wrong_declaration_is_refused(make: Callable[[], object], problem: str) -> None:
    with pytest.raises(Misconfigured, match=problem):
        make()


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="'aprove'"):
        traits(aprove=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'model'"):
        host(PydanticAgent(TestModel()), name="a", model="x")  # type: ignore[call-arg]
