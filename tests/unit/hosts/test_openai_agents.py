"""An agent of the OpenAI Agents SDK, hosted: the contract of hosts, and what it adds."""

import os
import sys
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, TypedDict, Unpack, cast

import anyio
import pytest
from agents import (
    Agent,
    AgentHookContext,
    AgentHooks,
    CodeInterpreterTool,
    GuardrailFunctionOutput,
    HostedMCPTool,
    LocalShellTool,
    ModelResponse,
    ModelSettings,
    RunContextWrapper,
    ShellTool,
    StopAtTools,
    Tool,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrailData,
    ToolOutputImage,
    ToolsToFinalOutputResult,
    TResponseInputItem,
    WebSearchTool,
    function_tool,
    input_guardrail,
    output_guardrail,
    set_trace_processors,
    set_tracing_disabled,
    tool_input_guardrail,
)
from agents.agent import ToolsToFinalOutputFunction
from agents.items import TResponseOutputItem
from agents.mcp import MCPServerStdio, MCPServerStdioParams
from agents.realtime import RealtimeAgent
from agents.sandbox import SandboxAgent
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from agents.tool_context import ToolContext
from agents.tracing import Span, Trace, TracingProcessor
from openai.types.responses.tool_param import Mcp

from midrun import Completed, Failed, File, Midrun, Misconfigured, Paused, host, traits
from midrun.core.transcript import Turn
from midrun.errors import ModelFailed
from midrun.hosts import openai_agents_step
from midrun.hosts.hosted_agent import HostedAgent
from midrun.ports.environment import Environment
from midrun.ports.model import Model, Piece, Prompt
from midrun.stops import MaxCost, MaxSteps
from midrun.testing.host_suite import Billing, make_hosted_agent
from tests.support.conditions import draw_no_delay
from tests.support.providers import Answer, EarlyEnd, Gate, HttpError, Provider, Text, Thinking
from tests.support.providers import Call as ModelCall
from tests.unit.hosts.foreign_agents import make_openai_agent, make_openai_chat_agent
from tests.unit.hosts.openai_tools import block_with_context, get_process_id
from tests.unit.hosts.suite_provider import HostContract
from tests.unit.models.protocols import FixedTranscript

Context: TypeAlias = RunContextWrapper[Any]  # type: ignore[explicit-any]
AnyAgent: TypeAlias = Agent[Any]  # type: ignore[explicit-any]
Reply: TypeAlias = list[TResponseOutputItem]


class AgentOptions(TypedDict, total=False):
    """Options of an agent that the tests pass on."""

    hooks: AgentHooks[Any]  # type: ignore[explicit-any]
    model_settings: ModelSettings


class TestContract(HostContract):
    agent_factory = "tests.unit.hosts.foreign_agents:make_openai_agent"
    framework = "OpenAI Agents agent"
    package = "openai-agents"


class TestContractOfChat(TestContract):
    agent_factory = "tests.unit.hosts.foreign_agents:make_openai_chat_agent"
    framework = "OpenAI Agents agent with Chat Completions"


@pytest.mark.parametrize("make_agent", [make_openai_agent, make_openai_chat_agent])
async def test_the_model_gets_the_image_and_the_pdf_of_a_message(
    make_agent: Callable[[str, Callable[[int], Awaitable[str]]], object],
) -> None:
    async def charge(n: int) -> str:
        return f"charged {n}"

    image, pdf = b"\x89PNG\r\n\x1a\n" + bytes(range(16)), b"%PDF-1.7 the bill"
    async with Provider(Answer(Text("A cat."))) as provider:
        agent = host(make_agent(provider.url, charge))
        async with Midrun("memory://", agents=[agent]) as midrun:
            files = [
                File("cat.png", "image/png", image),
                File("bill.pdf", "application/pdf", pdf),
                File("a.txt", "text/plain", b"Meow"),
            ]
            run = await midrun.start(agent, "What is it?", files=files)
            assert (await run.until("completed")).output == "A cat."
        body = str(provider.exchanges[0].body)
    for data in (image, pdf):
        assert b64encode(data).decode() in body
    assert "Meow" in body


# ── context, instructions, output ────────────────────────────────────────────


@dataclass
class Bill:
    total: int
    customer: str


@dataclass
class Deps:
    run_id: str


def call(name: str, arguments: str = "{}", id_: str = "") -> Reply:
    """Return a reply of the scripted model with one call."""
    return [function_call(name, arguments, call_id=id_ or f"call-{name}")]


def say(text: str) -> Reply:
    """Return a reply of the scripted model with a text."""
    return [assistant_message(text)]


def read_outputs(model: ScriptedModel) -> list[object]:
    """Return the results of tools in the last request."""
    assert model.last_call is not None
    items = model.last_call.input
    return [item["output"] for item in items if item.get("type") == "function_call_output"]


async def test_context_instructions_and_typed_output_are_those_of_the_agent() -> None:
    """An output that is not valid is a refused call; the value arrives as JSON."""
    seen: list[object] = []

    async def instruct(context: RunContextWrapper[Deps], agent: Agent[Deps]) -> str:
        seen.append(agent)
        return f"You work in {context.context.run_id}."

    @function_tool
    async def price(context: ToolContext[Deps], item: str, why: str) -> str:
        seen.append(context.tool_call_id)
        return f"{item}, {why}: 42 in {context.context.run_id}"

    order = '{"item": "cat", "why": "an argument of the tool"}'
    bill = '{"total": 42, "customer": "ada"}'
    wrapped = f'{{"response": {bill}}}'  # the SDK wraps what is no model of Pydantic
    model = ScriptedModel([call("price", order, "call-1"), say(bill), say(wrapped)])
    agent = Agent[Deps](
        name="biller", instructions=instruct, model=model, tools=[price], output_type=Bill
    )
    hosted = host(agent, context=Deps)
    async with Midrun("memory://", agents=[hosted]) as midrun:
        run = await midrun.start(hosted, "Bill for a cat")
        outcome = await run.result()
        assert isinstance(outcome, Completed)
        assert outcome.value == {"total": 42, "customer": "ada"}
        assert outcome.output == '{"total":42,"customer":"ada"}'
        view = await run.view()
        assert (view.framework, view.undeclared_tools) == ("openai-agents", 1)
    assert seen == [agent, "call-1", agent, agent]
    assert [c.system_instructions for c in model.calls] == [f"You work in {run.id}."] * 3
    assert read_outputs(model) == [f"cat, an argument of the tool: 42 in {run.id}"]
    assert "Give the output again" in str(model.calls[2].input[-1]["content"])


async def test_an_output_that_is_never_valid_fails_the_run() -> None:
    model = ScriptedModel([say("no bill")] * 3)
    outcome = await host(Agent(name="a", model=model, output_type=Bill)).run("Bill")
    assert isinstance(outcome, Failed)
    assert outcome.code == "bad_output"
    assert len(model.calls) == 3


# ── tools ────────────────────────────────────────────────────────────────────


async def run_tool(
    tool: Tool, arguments: str = "{}", **options: Unpack[AgentOptions]
) -> tuple[object, ScriptedModel]:
    """Let an agent call this tool once; return what the model reads as its result."""
    model = ScriptedModel([call(tool.name, arguments), say("done")])
    agent = AnyAgent(name="a", model=model, tools=[tool], **options)
    outcome = await host(agent).run("Go")
    assert isinstance(outcome, Completed), outcome
    return read_outputs(model)[-1], model


async def test_the_result_of_a_tool_is_given_to_the_model_as_the_sdk_does() -> None:
    @function_tool
    async def measure() -> dict[str, object]:
        return {"length": 2, "tags": ["a"]}

    @function_tool
    async def draw() -> ToolOutputImage:
        return ToolOutputImage(image_url="data:image/png;base64,cGl4ZWxz")

    result, _ = await run_tool(measure)
    assert result == "{'length': 2, 'tags': ['a']}"
    image, _ = await run_tool(draw)
    assert image == [{"type": "input_image", "image_url": "data:image/png;base64,cGl4ZWxz"}]


async def test_an_error_of_a_tool_is_told_by_its_error_function() -> None:
    """Without an error function, the call has failed, and the model reads why."""

    async def fail() -> str:
        raise ValueError("no paper")

    told, _ = await run_tool(function_tool(fail))
    assert "An error occurred while running the tool" in str(told)
    own = function_tool(fail, failure_error_function=lambda _, error: f"oh: {error}")
    assert (await run_tool(own))[0] == "oh: no paper"
    raised, _ = await run_tool(function_tool(fail, failure_error_function=None))
    assert str(raised).startswith("No result.")
    assert "no paper" in str(raised)


async def test_the_time_limit_of_a_tool_holds() -> None:
    @function_tool(timeout=0.01)
    async def wait() -> str:
        await anyio.sleep_forever()
        raise AssertionError

    result, _ = await run_tool(wait)
    assert "timed out" in str(result)


async def test_a_guardrail_of_a_tool_replaces_the_call() -> None:
    @tool_input_guardrail
    def check(data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
        assert data.context.tool_arguments == '{"n": 1}'
        return ToolGuardrailFunctionOutput.reject_content("not today")

    made: list[int] = []

    @function_tool(tool_input_guardrails=[check])
    async def pay(n: int) -> str:
        made.append(n)
        return "paid"

    result, _ = await run_tool(pay, '{"n": 1}')
    assert (result, made) == ("not today", [])


@pytest.mark.parametrize("is_function", [True, False])
async def test_an_approval_that_the_tool_needs_is_asked_for(*, is_function: bool) -> None:
    """A function decides for each call, with the context of the run."""

    async def decide(context: Context, args: dict[str, object], call_id: str) -> bool:
        assert (context.context, call_id) == ("desk", "call-wipe")
        return args == {"disk": "sda"}

    @function_tool(needs_approval=decide if is_function else True)
    async def wipe(disk: str) -> str:
        return f"wiped {disk}"

    def make_agent(*replies: Reply) -> HostedAgent:
        agent = AnyAgent(name="admin", model=ScriptedModel(replies), tools=[wipe])
        return host(agent, context=lambda: "desk")

    paused = await make_agent(call("wipe", '{"disk": "sda"}')).run("Wipe sda")
    assert isinstance(paused, Paused)
    assert [(ask.kind, ask.tool) for ask in paused.asks] == [("approval", "wipe")]
    outcome = await make_agent(say("done")).resume(paused.checkpoint, answer=True)
    assert isinstance(outcome, Completed)
    unasked = await make_agent(call("wipe", '{"disk": "b"}'), say("done")).run("Wipe b")
    assert isinstance(unasked, Completed if is_function else Paused)


async def test_a_tool_that_is_not_enabled_is_neither_shown_nor_called() -> None:
    @function_tool(is_enabled=lambda context, _: context.context == "desk")
    async def wipe() -> str:
        raise AssertionError

    model = ScriptedModel([call("wipe"), say("done")])
    outcome = await host(AnyAgent(name="a", model=model, tools=[wipe])).run("Wipe")
    assert isinstance(outcome, Completed)
    assert model.calls[0].tools == []
    assert read_outputs(model) == ["No result. there is no tool 'wipe'; the tools are: none"]


async def test_a_blocking_function_runs_in_a_process_that_can_be_killed() -> None:
    """Also if it is decorated: the decorator keeps the function."""
    result, _ = await run_tool(get_process_id)
    assert int(str(result)) != os.getpid()


def test_a_blocking_function_with_a_context_counts_as_unstoppable() -> None:
    agent = Agent(name="a", model=ScriptedModel(), tools=[block_with_context])
    assert host(agent).tools["block_with_context"].traits.unstoppable


def test_tools_of_the_provider_are_listed_as_ungated() -> None:
    config = {"type": "mcp", "server_label": "docs", "require_approval": "never"}
    tools: list[Tool] = [
        WebSearchTool(),
        CodeInterpreterTool(
            tool_config={"type": "code_interpreter", "container": {"type": "auto"}}
        ),
        HostedMCPTool(tool_config=cast("Mcp", config)),
    ]
    hosted = host(Agent(name="a", model=ScriptedModel(), tools=tools))
    assert hosted.ungated_tools == ("web_search", "code_interpreter", "hosted_mcp")


Behavior = StopAtTools | ToolsToFinalOutputFunction[Any] | str  # type: ignore[explicit-any]


@pytest.mark.parametrize(
    "behavior",
    [
        "stop_on_first_tool",
        {"stop_at_tool_names": ["add"]},
        lambda _, results: ToolsToFinalOutputResult(
            is_final_output=True, final_output=results[0].output
        ),
    ],
)
async def test_the_result_of_a_tool_may_be_the_answer(behavior: Behavior) -> None:
    """No model call is made for it."""

    @function_tool
    async def add(a: int, b: int) -> int:
        return a + b

    model = ScriptedModel([call("add", '{"a": 1, "b": 2}')])
    agent = Agent(
        name="a", model=model, tools=[add], tool_use_behavior=cast("StopAtTools", behavior)
    )
    outcome = await host(agent).run("Add")
    assert isinstance(outcome, Completed)
    assert (outcome.output, len(model.calls)) == ("3", 1)


async def test_a_server_of_mcp_tools_is_asked_for_each_step() -> None:
    """The application opens the server; its tools need no list."""
    server = Path(__file__).parent / "openai_mcp_server.py"
    params = {"command": sys.executable, "args": [str(server)]}
    async with MCPServerStdio(cast("MCPServerStdioParams", params)) as tools:
        model = ScriptedModel([call("double", '{"n": 21}'), say("done")])
        agent = Agent(name="a", model=model, mcp_servers=[tools])
        hosted = host(agent, tools={"double": traits(read_only=True)})
        assert isinstance(await hosted.run("Double 21"), Completed)
    assert "42" in str(read_outputs(model)[0])


# ── settings, hooks, traces ──────────────────────────────────────────────────


async def test_a_forced_choice_of_a_tool_ends_with_the_first_call() -> None:
    """Otherwise the agent would call it for ever: each step is a new runner."""

    @function_tool
    async def look() -> str:
        return "seen"

    _, model = await run_tool(
        look, model_settings=ModelSettings(tool_choice="required", temperature=0.5)
    )
    settings = [
        (c.model_settings.tool_choice, c.model_settings.temperature) for c in model.calls
    ]
    assert settings == [("required", 0.5), (None, 0.5)]
    assert [(c.previous_response_id, c.conversation_id) for c in model.calls] == [
        (None, None)
    ] * 2


HookContext: TypeAlias = AgentHookContext[Any]  # type: ignore[explicit-any]


class Diary(AgentHooks[Any]):  # type: ignore[explicit-any]
    def __init__(self) -> None:
        self.lines: list[str] = []

    async def on_start(self, context: HookContext, agent: AnyAgent) -> None:
        self.lines.append(f"start {agent.name} in {context.context}")

    async def on_llm_end(
        self, context: Context, agent: AnyAgent, response: ModelResponse
    ) -> None:
        self.lines.append(f"{agent.name}: {len(response.output)} item in {context.context}")

    async def on_tool_start(self, context: Context, agent: AnyAgent, tool: Tool) -> None:
        self.lines.append(f"{agent.name} calls {tool.name} in {context.context}")

    async def on_tool_end(
        self, context: Context, agent: AnyAgent, tool: Tool, result: object
    ) -> None:
        self.lines.append(f"{agent.name} called {tool.name} in {context.context}: {result}")

    async def on_end(self, context: HookContext, agent: AnyAgent, output: object) -> None:
        self.lines.append(f"end {agent.name} in {context.context}: {output}")


async def test_the_hooks_of_an_agent_are_called_as_in_one_run() -> None:
    diary = Diary()

    @function_tool
    async def look() -> str:
        return "seen"

    await run_tool(look, hooks=diary)
    assert diary.lines == [
        "start a in None",
        "a: 1 item in None",
        "a calls look in None",
        "a called look in None: seen",
        "a: 1 item in None",
        "end a in None: done",
    ]


class Collector(TracingProcessor):
    def __init__(self) -> None:
        self.traces: list[tuple[str, object]] = []

    def on_trace_start(self, trace: Trace) -> None:
        exported = trace.export() or {}
        self.traces.append((trace.name, exported.get("group_id")))

    def on_trace_end(self, trace: Trace) -> None: ...
    def on_span_start(self, span: Span[Any]) -> None: ...  # type: ignore[explicit-any]
    def on_span_end(self, span: Span[Any]) -> None: ...  # type: ignore[explicit-any]
    def shutdown(self) -> None: ...
    def force_flush(self) -> None: ...


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    set_trace_processors([collector])
    set_tracing_disabled(disabled=False)
    yield collector
    set_tracing_disabled(disabled=True)
    set_trace_processors([])


async def test_the_traces_of_a_run_are_one_group(collector: Collector) -> None:
    @function_tool
    async def look() -> str:
        return "seen"

    model = ScriptedModel([call("look"), say("done")])
    hosted = host(Agent(name="a", model=model, tools=[look]))
    async with Midrun("memory://", agents=[hosted]) as midrun:
        run = await midrun.start(hosted, "Look")
        await run.until("completed")
    assert collector.traces == [("a", run.id)] * 3


# ── guardrails ───────────────────────────────────────────────────────────────


async def test_an_input_guardrail_stops_the_model_and_fails_the_run() -> None:
    """It runs again when a person has written, and not for the steps between."""
    checked: list[str] = []
    asked, closed = anyio.Event(), anyio.Event()

    @input_guardrail
    async def no_math(
        context: Context,
        agent: AnyAgent,
        given: str | list[TResponseInputItem],
    ) -> GuardrailFunctionOutput:
        del context, agent
        text = str(cast("list[dict[str, object]]", given)[-1]["content"])
        checked.append(text)
        if "math" in text:
            await asked.wait()
        return GuardrailFunctionOutput(
            output_info={"said": text}, tripwire_triggered="math" in text
        )

    @function_tool
    async def look() -> str:
        return "seen"

    async def hang(_: object) -> NoReturn:
        asked.set()
        try:
            await anyio.sleep_forever()
        finally:
            closed.set()
        raise AssertionError
        raise AssertionError

    model = ScriptedModel([call("look"), ModelStep.respond(hang)])
    agent = Agent(name="a", model=model, tools=[look], input_guardrails=[no_math])
    hosted = host(agent, stop=MaxSteps(1))
    async with Midrun("memory://", agents=[hosted]) as midrun:
        run = await midrun.start(hosted, "Look around")
        await run.until("paused")
        await run.resume("Do my math.", caps={"steps": 9})
        outcome = await run.result()
    assert isinstance(outcome, Failed)
    assert outcome.code == "guardrail"
    assert "the input guardrail 'no_math' was triggered" in outcome.error
    assert checked == ["Look around", "Do my math."]
    assert closed.is_set()


async def test_an_output_guardrail_fails_the_run() -> None:
    @output_guardrail
    async def no_names(
        context: Context,
        agent: AnyAgent,
        output: str,
    ) -> GuardrailFunctionOutput:
        del context, agent
        return GuardrailFunctionOutput(output_info="a name", tripwire_triggered="Ada" in output)

    model = ScriptedModel([say("It was Ada.")])
    agent = Agent(name="a", model=model, output_guardrails=[no_names])
    outcome = await host(agent).run("Who?")
    assert isinstance(outcome, Failed)
    assert outcome.code == "guardrail"


# ── errors ───────────────────────────────────────────────────────────────────


async def charge(n: int) -> str:
    return str(n)


@pytest.mark.parametrize("is_edited", [False, True])
async def test_reasoning_is_sent_back_unless_a_person_edited_its_call(
    *, is_edited: bool
) -> None:
    """A provider refuses reasoning whose call has changed."""
    first = Answer(Thinking("Which one?"), ModelCall("charge", '{"n": 1}', id="call-7"))
    async with Provider(first, Answer(Text("done"))) as provider:
        agent = make_openai_agent(provider.url, charge)
        hosted = host(agent, tools={"charge": traits(approve=True)})
        async with Midrun("memory://", agents=[hosted]) as midrun:
            run = await midrun.start(hosted, "Charge 1")
            await run.until("waiting")
            await run.approve(args={"n": 2} if is_edited else None)
            await run.until("completed")
        sent = cast("list[dict[str, object]]", provider.exchanges[1].body["input"])
    kinds = ["function_call", "function_call_output"]
    assert [item.get("type") for item in sent[1:]] == (
        kinds if is_edited else ["reasoning", *kinds]
    )
    assert sent[-2]["arguments"] == ('{"n": 2}' if is_edited else '{"n": 1}')
    assert (sent[-2]["call_id"], sent[-1]["output"]) == ("call-7", "2" if is_edited else "1")
    assert is_edited or sent[1]["encrypted_content"] == "signed-by-the-provider"


@pytest.mark.parametrize("fault", ["status", "early end"])
async def test_the_worker_retries_and_not_the_sdk(fault: str) -> None:
    """Each attempt is one request."""
    broken = Answer(Text("Hel", "lo"), fault=EarlyEnd(after=1))
    first = HttpError(500) if fault == "status" else broken
    async with Provider(first, Answer(Text("Hello"))) as provider:
        hosted = host(make_openai_agent(provider.url, charge), name="greeter")
        environment = Environment(random_unit=draw_no_delay)
        async with Midrun("memory://", agents=[hosted], outside=environment) as midrun:
            run = await midrun.start(hosted, "Greet")
            assert (await run.until("completed")).output.endswith("Hello")
        assert len(provider.exchanges) == 2


async def test_a_provider_that_stops_sending_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is closed, and the worker may try again."""
    answer = Answer(Text("one ", "two"), fault=Gate(after=1))
    async with Provider(answer) as provider:
        hosted = host(make_openai_agent(provider.url, charge), name="greeter")
        transcript = FixedTranscript(Turn(role="user", text="Greet"))
        prompt = Prompt(instructions="", transcript=transcript)

        async def read() -> None:
            async with cast("Model", hosted.model).stream(prompt) as stream:
                assert await anext(stream) == Piece(kind="text", text="one ")
                # Short only from here: the test must not depend on speed.
                monkeypatch.setattr(openai_agents_step, "IDLE_TIMEOUT_S", 0.01)
                await anext(stream)

        with pytest.raises(ModelFailed, match="timeout") as caught:
            await read()
        assert caught.value.transient
        await provider.wait_for_disconnect()


@pytest.mark.parametrize("finish", ["length", "filtered"])
async def test_a_reply_that_the_provider_cut_off_fails_the_run(finish: str) -> None:
    async with Provider(Answer(Text("Hel"), finish=finish)) as provider:
        hosted = host(make_openai_agent(provider.url, charge), name="greeter")
        outcome = await hosted.run("Greet")
    assert isinstance(outcome, Failed)
    assert outcome.code == ("bad_output" if finish == "length" else "refused")


def make_plain(*tools: Tool, **options: Unpack[AgentOptions]) -> object:
    """Host an agent with these options."""
    return host(AnyAgent(name="a", model=ScriptedModel(), tools=list(tools), **options))


async def act() -> str:
    return "acted"


MCP_CONFIG = {"type": "mcp", "server_label": "docs", "server_url": "https://example.com"}


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: host(ModelSettings(), name="m"), "only text agents are hosted"),
        (lambda: host(RealtimeAgent(name="voice")), "only text agents are hosted"),
        (lambda: host(SandboxAgent(name="coder")), "a SandboxAgent works in a session"),
        (
            lambda: make_plain(LocalShellTool(executor=lambda _: "")),
            "the SDK executes it inside of a model call",
        ),
        (
            lambda: make_plain(ShellTool(executor=lambda _: "")),
            "the SDK executes it inside of a model call",
        ),
        (
            lambda: make_plain(HostedMCPTool(tool_config=cast("Mcp", MCP_CONFIG))),
            'Set require_approval="never"',
        ),
        (
            lambda: make_plain(
                model_settings=ModelSettings(extra_args={"previous_response_id": "resp_1"})
            ),
            "with previous_response_id in its model settings",
        ),
        (
            lambda: make_plain(model_settings=ModelSettings(extra_body={"conversation": "c"})),
            "with conversation in its model settings",
        ),
        (
            lambda: make_plain(function_tool(act), function_tool(act)),
            "two tools with the name 'act'",
        ),
        (
            lambda: host(Agent(name="a"), tools={"pay": traits()}),
            "tools must name tools of the agent",
        ),
    ],
)
def test_what_cannot_be_hosted_is_refused_by_name(
    make: Callable[[], object], problem: str
) -> None:
    with pytest.raises(Misconfigured, match=problem):
        make()


def test_an_incomplete_installation_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "midrun.hosts.openai_agents", None)
    with pytest.raises(Misconfigured, match=r"Install midrun\[openai-agents\]"):
        host(Agent(name="a"))


@pytest.mark.parametrize("framework", ["langchain", "openai", "openai_chat", "strands", "adk"])
async def test_a_cap_on_cost_stops_a_hosted_agent_before_its_model_is_called(
    framework: str,
) -> None:
    """The name of the model is known, and its price: a reply may cost more than the cap."""
    factory = f"tests.unit.hosts.foreign_agents:make_{framework}_agent"
    async with Provider() as provider:
        agent = make_hosted_agent(factory, provider.url, Billing(Path()), MaxCost(0.000_001))
        outcome = await agent.run("Charge customer 1")
        assert isinstance(outcome, Paused)
        assert outcome.reason == "cap"
        assert not provider.exchanges
