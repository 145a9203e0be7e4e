"""An agent of LangChain, hosted: the contract of hosts, and what this framework adds."""

import asyncio
import operator
import os
from base64 import b64encode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NotRequired, cast

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    AgentState,
    ExtendedModelResponse,
    HumanInTheLoopMiddleware,
    ModelRequest,
    ModelResponse,
    ToolCallRequest,
)
from langchain.agents.structured_output import ToolStrategy
from langchain.tools import ToolException, ToolRuntime
from langchain.tools import tool as langchain_tool
from langchain_core.callbacks import BaseCallbackHandler, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    ToolMessage,
)
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.graph.message import Messages, add_messages
from langgraph.runtime import Runtime
from langgraph.types import Command

from midrun import Completed, Failed, File, Midrun, Misconfigured, Paused, host, traits
from tests.support.providers import Answer, Call, Gate, Provider, Text
from tests.support.store_choice import get_store_url
from tests.unit.hosts.blocking_tools import get_process_id
from tests.unit.hosts.foreign_agents import make_chat_model
from tests.unit.hosts.suite_provider import HostContract

Values = dict[str, object]
Result = ToolMessage | Command[object]
Script = Callable[[list[str]], str | tuple[str, dict[str, object]]]


@dataclass
class Customer:
    name: str


@dataclass
class Bill:
    total: int


class TestContract(HostContract):
    agent_factory = "tests.unit.hosts.foreign_agents:make_langchain_agent"
    framework = "LangChain agent"
    package = "langchain"


# ── middleware and state ─────────────────────────────────────────────────────


class ScriptedChatModel(BaseChatModel):  # type: ignore[explicit-any]  # of its base
    """A model that is told the results so far; it answers a text or a call."""

    script: Script
    prompts: list[str]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: object, **options: object) -> "ScriptedChatModel":
        del tools, options
        return self

    def _generate(
        self, messages: list[BaseMessage], *args: object, **options: object
    ) -> ChatResult:
        del args, options
        self.prompts.append(" | ".join(f"{m.type}: {m.text}" for m in messages))
        answer = self.script([m.text for m in messages if isinstance(m, ToolMessage)])
        if isinstance(answer, str):
            reply = AIMessage(answer)
        else:
            id_ = f"call-{len(self.prompts)}"
            call = {"name": answer[0], "args": answer[1], "id": id_, "type": "tool_call"}
            reply = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=reply)])


def make_model(script: Script) -> ScriptedChatModel:
    return ScriptedChatModel(script=script, prompts=[])


class CustomState(AgentState[object]):
    visits: Annotated[list[str], operator.add]
    customer: NotRequired[str]


class Hooks(AgentMiddleware[CustomState, Customer]):  # type: ignore[explicit-any]  # of its base
    """Counts its hooks, and adds the context to the prompt."""

    state_schema = CustomState

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    async def abefore_agent(self, state: CustomState, runtime: Runtime[Customer]) -> Values:
        del state
        self.calls.append("before_agent")
        return {"customer": runtime.context.name, "visits": ["start"]}

    async def abefore_model(self, state: CustomState, runtime: Runtime[Customer]) -> None:
        del runtime
        self.calls.append(f"before_model {state['customer']} {','.join(state['visits'])}")

    async def aafter_agent(self, state: CustomState, runtime: Runtime[Customer]) -> None:
        del state, runtime
        self.calls.append("after_agent")

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Result]]
    ) -> Result:
        self.calls.append(f"tool {request.tool_call['id']}")
        return await handler(request)


@langchain_tool
async def visit(place: str, runtime: ToolRuntime[Customer, CustomState]) -> Command[object]:
    """Visit a place."""
    customer = runtime.state["customer"]
    said = ToolMessage(f"{customer} was in {place}", tool_call_id=runtime.tool_call_id)
    return Command(update={"visits": [place], "messages": [said]})


async def test_hooks_run_as_in_a_run_of_the_framework_and_state_is_journaled() -> None:
    """Another process has the state, too: it is in the checkpoint."""
    hooks = Hooks()
    places = ["Rome", "Oslo"]
    model = make_model(
        lambda results: (
            ("visit", {"place": places[len(results)]}) if len(results) < 2 else results[-1]
        )
    )
    agent = create_agent(model, [visit], middleware=[hooks], context_schema=Customer)
    tools = {"visit": traits(approve=True)}
    hosted = host(agent, name="guide", context=lambda: Customer("ada"), tools=tools)
    first = await hosted.run("Show me two places")
    assert isinstance(first, Paused)
    elsewhere = host(agent, name="guide", context=lambda: Customer("ada"), tools=tools)
    second = await elsewhere.resume(first.checkpoint, answer=True)
    assert isinstance(second, Paused)
    outcome = await hosted.resume(second.checkpoint, answer=True)
    assert isinstance(outcome, Completed)
    assert outcome.output == "ada was in Oslo"
    assert hooks.calls == [
        "before_agent",
        "before_model ada start",
        "tool call-1",
        "before_model ada start,Rome",
        "tool call-2",
        "before_model ada start,Rome,Oslo",
        "after_agent",
    ]


async def test_state_of_tools_is_combined_after_a_pause_in_mid_stream(store_path: Path) -> None:
    """The interrupted reply stores no state: the reducers of the graph combine it again."""
    gate = Gate(after=1)
    call = Call("visit", '{"place": "Rome"}')
    answers = Answer(call), Answer(Text("Half", "way"), fault=gate), Answer(Text("Done"))
    hooks = Hooks()
    async with Provider(*answers) as provider:
        model = make_chat_model(provider.url)
        agent = create_agent(model, [visit], middleware=[hooks], context_schema=Customer)
        hosted = host(agent, name="guide", context=lambda: Customer("ada"))
        async with Midrun(get_store_url(store_path), agents=[hosted]) as midrun:
            run = await midrun.start(hosted, "Show me Rome")
            await gate.wait_until_reached()
            await run.pause()
            await run.until("paused")
            await run.resume()
            await run.until("completed")
    assert hooks.calls[-2:] == ["before_model ada start,Rome", "after_agent"]


class NodeNames(BaseCallbackHandler):
    """Notes which parts of a graph start."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_chain_start(self, *_: object, **facts: object) -> None:
        self.seen.append(str(facts["name"]))


@pytest.mark.parametrize("is_observed", [False, True])
async def test_an_agent_without_hooks_gives_the_same_with_and_without_its_graph(
    *, is_observed: bool
) -> None:
    """Only its node is executed, unless callbacks would see that."""
    model = make_model(lambda found: found[-1] if found else ("double", {"n": 4}))
    names = NodeNames()
    agent = create_agent(model, [double], middleware=[AddNote()])
    agent = agent.with_config(callbacks=[names] if is_observed else [])
    outcome = await host(agent, name="doubler").run("Double 4")
    assert isinstance(outcome, Completed)
    assert outcome.output == "8"
    assert ("model" in names.seen) is is_observed
    assert model.prompts == [
        "human: Double 4 | human: Be quick.",
        "human: Double 4 | ai:  | tool: 8 | human: Be quick.",
    ]


async def double(n: int) -> int:
    """Return twice n."""
    return 2 * n


class AddNote(AgentMiddleware[AgentState[object]]):  # type: ignore[explicit-any]  # of its base
    """Adds a text to each request."""

    async def awrap_model_call(
        self,
        request: ModelRequest[None],
        handler: Callable[[ModelRequest[None]], Awaitable[ModelResponse[object]]],
    ) -> ModelResponse[object]:
        note = HumanMessage("Be quick.")
        return await handler(request.override(messages=[*request.messages, note]))


def keep_two(left: list[AnyMessage], right: list[AnyMessage]) -> list[AnyMessage]:
    """Return the last two messages: the prompt of an agent that forgets."""
    both = add_messages(cast("Messages", left), cast("Messages", right))
    return cast("list[AnyMessage]", both)[-2:]


class ShortState(AgentState[object]):
    messages: Annotated[list[AnyMessage], keep_two]


class AddFacts(AgentMiddleware[AgentState[object], Customer]):  # type: ignore[explicit-any]  # of its base
    """Adds facts of the runtime to each request, and a message to the first reply."""

    async def awrap_model_call(
        self,
        request: ModelRequest[Customer],
        handler: Callable[[ModelRequest[Customer]], Awaitable[ModelResponse[object]]],
    ) -> ExtendedModelResponse[object]:
        runtime = request.runtime
        assert runtime.execution_info is not None
        facts = f"{runtime.context.name} {runtime.execution_info.thread_id}"
        added: Values = {"unknown": object()}  # dropped
        if len(request.messages) == 1:
            added["messages"] = HumanMessage("Checked.")
        response = await handler(
            request.override(messages=[*request.messages, HumanMessage(facts)])
        )
        return ExtendedModelResponse(model_response=response, command=Command(update=added))


@pytest.mark.parametrize("is_observed", [False, True])
@pytest.mark.parametrize("state_schema", [None, ShortState])
async def test_a_middleware_sees_and_adds_the_same_with_and_without_the_graph(
    *, state_schema: type[AgentState[object]] | None, is_observed: bool
) -> None:
    """The context as its type, a reducer of the agent, a message beside the reply."""
    model = make_model(lambda found: found[-1] if found else ("double", {"n": 4}))
    agent = create_agent(
        model,
        [double],
        middleware=[AddFacts()],
        context_schema=Customer,
        state_schema=state_schema,
    )
    agent = agent.with_config(callbacks=[NodeNames()] if is_observed else [])
    hosted = host(agent, name="doubler", context=lambda: {"name": "ada"})
    outcome = await hosted.run("Double 4")
    assert isinstance(outcome, Completed), outcome
    assert outcome.output == "8"
    task = [] if state_schema else ["human: Double 4"]
    assert [prompt.split(" | ") for prompt in model.prompts] == [
        ["human: Double 4", "human: ada call"],
        [*task, "ai: ", "tool: 8", "human: ada call"],
    ]


class ThreadedChatModel(ScriptedChatModel):  # type: ignore[explicit-any]  # of its base
    """A model that is not asynchronous: it reports its tokens in the thread that runs it."""

    def _generate(
        self, messages: list[BaseMessage], *args: object, **options: object
    ) -> ChatResult:
        run_manager = args[1]
        assert isinstance(run_manager, CallbackManagerForLLMRun)
        for word in ("It ", "is ", "sunny."):
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=word))
            run_manager.on_llm_new_token(word, chunk=chunk)
        return super()._generate(messages, *args, **options)


async def test_a_model_in_a_thread_wakes_the_event_loop_of_its_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A queue of asyncio is not thread-safe; in its debug mode the loop says so."""
    model = ThreadedChatModel(script=lambda _: "It is sunny.", prompts=[])
    asyncio.get_running_loop().set_debug(True)
    outcome = await host(create_agent(model), name="weather").run("Look")
    assert isinstance(outcome, Completed)
    assert outcome.output == "It is sunny."
    assert "Non-thread-safe" not in caplog.text


async def test_a_structured_response_is_the_value_after_a_retry() -> None:
    def script(results: list[str]) -> tuple[str, dict[str, object]]:
        return "Bill", {"total": 42} if results else {"total": "many"}

    model = make_model(script)
    agent = create_agent(model, [visit], response_format=ToolStrategy(Bill))
    outcome = await host(agent, name="biller").run("Bill")
    assert isinstance(outcome, Completed)
    assert (outcome.value, outcome.output) == ({"total": 42}, '{"total":42}')
    assert len(model.prompts) == 2


async def test_a_tool_that_returns_directly_ends_the_run() -> None:
    @langchain_tool(return_direct=True)
    async def look_up(number: int) -> str:
        """Look up a number."""
        return f"number {number}"

    model = make_model(lambda _: ("look_up", {"number": 7}))
    outcome = await host(create_agent(model, [look_up]), name="index").run("Seven")
    assert isinstance(outcome, Completed)
    assert outcome.output == "number 7"
    assert len(model.prompts) == 1


async def test_an_error_of_a_tool_is_told_to_the_model() -> None:
    @langchain_tool
    async def divide(number: int) -> str:
        """Divide by a number."""
        raise ToolException(f"cannot divide by {number}")

    model = make_model(lambda results: results[-1] if results else ("divide", {"number": 0}))
    outcome = await host(create_agent(model, [divide]), name="divider").run("Divide")
    assert isinstance(outcome, Completed)
    assert "cannot divide by 0" in outcome.output


async def test_a_blocking_function_runs_in_a_process_that_can_be_killed() -> None:
    model = make_model(lambda results: results[-1] if results else ("get_process_id", {}))
    outcome = await host(create_agent(model, [get_process_id]), name="pid").run("Which?")
    assert isinstance(outcome, Completed)
    assert int(outcome.output) != os.getpid()


async def test_the_model_gets_the_image_of_a_message() -> None:
    image = b"\x89PNG\r\n\x1a\n" + bytes(range(16))
    async with Provider(Answer(Text("A cat."))) as provider:
        agent = host(create_agent(make_chat_model(provider.url)), name="viewer")
        async with Midrun("memory://", agents=[agent]) as midrun:
            files = [File("cat.png", "image/png", image)]
            run = await midrun.start(agent, "What is it?", files=files)
            assert await run.result() == Completed(run_id=run.id, output="A cat.")
        assert b64encode(image).decode() in str(provider.exchanges[0].body)


# ── refusals ─────────────────────────────────────────────────────────────────


async def test_an_interrupt_of_the_framework_is_refused_with_the_remedy() -> None:
    model = make_model(lambda _: ("visit", {"place": "Rome"}))
    middleware = [HumanInTheLoopMiddleware(interrupt_on={"visit": True})]
    outcome = await host(create_agent(model, [visit], middleware=middleware), name="a").run(
        "Go"
    )
    assert isinstance(outcome, Failed)
    assert "traits(approve=True)" in outcome.error


def test_an_agent_that_cannot_be_hosted_is_refused() -> None:
    with pytest.raises(Misconfigured, match="without a name"):
        host(create_agent(make_model(lambda _: "")))
    with pytest.raises(Misconfigured, match="must name tools"):
        host(create_agent(make_model(lambda _: "")), name="a", tools={"pay": traits()})
