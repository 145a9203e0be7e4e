"""An agent of LangChain, hosted: the contract of hosts, and what this framework adds."""

import asyncio
import operator
import os
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, NotRequired, cast

import anyio.lowlevel
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    AgentState,
    ExtendedModelResponse,
    HumanInTheLoopMiddleware,
    ModelRequest,
    ModelResponse,
    ModelRetryMiddleware,
    ToolCallRequest,
)
from langchain.agents.structured_output import ToolStrategy
from langchain.tools import ToolException, ToolRuntime
from langchain.tools import tool as langchain_tool
from langchain_core.callbacks import (
    BaseCallbackHandler,
    CallbackManagerForLLMRun,
    adispatch_custom_event,
)
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    ToolMessage,
)
from langchain_core.messages.tool import ToolCallChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableLambda
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import Messages, add_messages
from langgraph.prebuilt import ToolNode
from langgraph.runtime import Runtime
from langgraph.types import Command, Overwrite, interrupt

from midrun import Completed, Failed, File, Midrun, Misconfigured, Paused, host, traits
from midrun.hosts import hosted_agent
from midrun.hosts.hosted_agent import IDLE_TIMEOUT_S
from midrun.hosts.langchain_calls import ModelCall
from midrun.hosts.langgraph import _stream_reply
from tests.support.conditions import wait_until
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


@pytest.mark.parametrize("observer", ["", "its own", "of the caller"])
async def test_an_agent_without_hooks_gives_the_same_with_and_without_its_graph(
    observer: str,
) -> None:
    """Only its node is executed, unless callbacks would see that."""
    model = make_model(lambda found: found[-1] if found else ("double", {"n": 4}))
    names = NodeNames()
    agent = create_agent(model, [double])
    hosted = host(
        agent.with_config(callbacks=[names] if observer == "its own" else []), name="doubler"
    )

    async def run_hosted(task: str) -> object:
        return await hosted.run(task)

    callbacks: list[BaseCallbackHandler] = [names] if observer == "of the caller" else []
    outcome = await RunnableLambda(run_hosted).ainvoke("Double 4", {"callbacks": callbacks})
    assert isinstance(outcome, Completed)
    assert outcome.output == "8"
    assert ("model" in names.seen) is bool(observer)
    assert model.prompts == ["human: Double 4", "human: Double 4 | ai:  | tool: 8"]


async def double(n: int) -> int:
    """Return twice n."""
    return 2 * n


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


@pytest.mark.parametrize("state_schema", [None, ShortState])
async def test_a_middleware_sees_and_adds_the_same_as_in_the_loop_of_the_framework(
    state_schema: type[AgentState[object]] | None,
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
    hosted = host(agent, name="doubler", context=lambda: {"name": "ada"})
    outcome = await hosted.run("Double 4")
    assert isinstance(outcome, Completed), outcome
    assert outcome.output == "8"
    task = [] if state_schema else ["human: Double 4"]
    assert [prompt.split(" | ") for prompt in model.prompts] == [
        ["human: Double 4", "human: ada call"],
        [*task, "ai: ", "tool: 8", "human: ada call"],
    ]


class WithCode(AgentMiddleware[AgentState[object]]):  # type: ignore[explicit-any]  # of its base
    """Runs code in the node of the model, before each request and after each reply."""

    def __init__(
        self,
        before: Callable[[ModelRequest[None]], Awaitable[object]],
        update: Callable[[ModelResponse[object]], object],
    ) -> None:
        super().__init__()
        self._before, self._update = before, update

    async def awrap_model_call(
        self,
        request: ModelRequest[None],
        handler: Callable[[ModelRequest[None]], Awaitable[ModelResponse[object]]],
    ) -> ExtendedModelResponse[object]:
        await self._before(request)
        response = await handler(request)
        command: Command[object] = Command(update=self._update(response))
        return ExtendedModelResponse(model_response=response, command=command)


async def do_nothing(_: object) -> None:
    """Do nothing."""


async def send_event(_: object) -> None:
    await adispatch_custom_event("progress", 1)


async def check_ids(request: ModelRequest[None]) -> None:
    info = request.runtime.execution_info
    assert info is not None
    assert info.task_id
    assert info.checkpoint_ns


@pytest.mark.parametrize(
    ("before", "update"),
    [
        (send_event, lambda _: None),
        (check_ids, lambda _: None),
        (do_nothing, lambda response: [("messages", response.result)]),
        (do_nothing, lambda response: {"messages": Overwrite(response.result)}),
    ],
    ids=["event", "ids", "pairs", "overwrite"],
)
async def test_code_around_a_model_call_runs_in_the_graph(
    before: Callable[[ModelRequest[None]], Awaitable[object]],
    update: Callable[[ModelResponse[object]], object],
) -> None:
    model = make_model(lambda found: found[-1] if found else ("double", {"n": 4}))
    agent = create_agent(model, [double], middleware=[WithCode(before, update)])
    outcome = await host(agent, name="doubler").run("Double 4")
    assert isinstance(outcome, Completed), outcome
    assert outcome.output == "8"


class CallWriter(ScriptedChatModel):  # type: ignore[explicit-any]  # of its base
    """A model that writes a long call: no chunk of its reply has a text."""

    async def _astream(
        self, messages: list[BaseMessage], *_: object, **__: object
    ) -> AsyncIterator[ChatGenerationChunk]:
        is_first = isinstance(messages[-1], HumanMessage)
        for part in ('{"n"', ": 4", "4}") if is_first else ():
            call = ToolCallChunk(name="double", args=part, id="call-1", index=0)
            call["name"] = call["name"] if part == '{"n"' else None
            yield ChatGenerationChunk(
                message=AIMessageChunk(content="", tool_call_chunks=[call])
            )
            for _turn in range(100):  # the reader has waited for it, and waits again
                await anyio.lowlevel.checkpoint()
        if not is_first:
            yield ChatGenerationChunk(message=AIMessageChunk(content="Done."))


async def test_a_provider_that_sends_no_text_is_not_taken_for_a_silent_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The wait for the next chunk has a time limit. Each chunk begins it anew."""
    waits: list[float | None] = []
    fail_after = anyio.fail_after

    def note_wait(
        delay: float | None, *, shield: bool = False
    ) -> AbstractContextManager[object]:
        waits.append(delay)
        return fail_after(delay, shield=shield)

    monkeypatch.setattr(anyio, "fail_after", note_wait)
    agent = create_agent(CallWriter(script=lambda _: "", prompts=[]), [double])
    outcome = await host(agent, name="doubler").run("Double 44")
    assert isinstance(outcome, Completed)
    assert waits.count(IDLE_TIMEOUT_S) >= 4


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


@pytest.mark.parametrize("ends_with_tools", [False, True])
async def test_a_graph_with_the_nodes_of_an_agent_keeps_its_edges(
    *, ends_with_tools: bool
) -> None:
    """Its nodes have the names of those of `create_agent`, but its edges are its own."""
    model = make_model(lambda found: found[-1] if found else ("double", {"n": 4}))

    async def call_model(state: MessagesState) -> Values:
        return {"messages": [await model.ainvoke(state["messages"])]}

    def choose(state: MessagesState) -> str:
        return "go on" if cast("AIMessage", state["messages"][-1]).tool_calls else "stop"

    builder = StateGraph(MessagesState).add_node("model", call_model)
    builder.add_node("tools", ToolNode([double])).add_edge(START, "model")
    builder.add_conditional_edges("model", choose, {"go on": "tools", "stop": END})
    builder.add_edge("tools", END if ends_with_tools else "model")
    hosted = host(builder.compile(), name="doubler")
    assert hosted.framework == "langgraph"
    outcome = await hosted.run("Double 4")
    assert isinstance(outcome, Completed)
    assert outcome.output == "8"
    assert len(model.prompts) == (1 if ends_with_tools else 2)


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


@pytest.mark.parametrize("puts_item", [True, False])
async def test_a_cancellation_that_the_framework_loses_is_repeated(
    puts_item: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the provider would go on after a pause. An item shows the loss at once."""
    monkeypatch.setattr(hosted_agent, "CANCEL_AGAIN_AFTER_S", 3600 if puts_item else 0.01)
    ended: list[str] = []

    async def run(put: Callable[[str], None]) -> None:
        put("first")
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:  # lost, as `asyncio.wait_for` of Python 3.11 may do
            ended.append("first wait")
        try:
            if puts_item:
                put("second")
            await anyio.sleep_forever()
        finally:
            ended.append("second wait")

    async with hosted_agent.run_in_task(run) as items:
        assert await anext(items) == "first"
    assert ended == ["first wait", "second wait"]


async def test_a_pause_waits_for_a_framework_that_ignores_cancellations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As for a tool: until its end, the run is pausing, and the call is not responding."""
    monkeypatch.setattr(hosted_agent, "CANCEL_AGAIN_AFTER_S", 0.001)
    begun, may_end, events = anyio.Event(), anyio.Event(), list[str]()

    class DeafModel(ScriptedChatModel):  # type: ignore[explicit-any]  # of its base
        async def _astream(
            self, messages: list[BaseMessage], *_: object, **__: object
        ) -> AsyncIterator[ChatGenerationChunk]:
            del messages
            yield ChatGenerationChunk(message=AIMessageChunk(content="first"))
            begun.set()
            while not may_end.is_set():
                with suppress(asyncio.CancelledError):
                    await may_end.wait()
            events.append("ended")

    model = DeafModel(script=lambda _: "", prompts=[])
    agent = host(create_agent(model, []), name="deaf", grace=timedelta(milliseconds=20))
    async with Midrun("memory://", agents=[agent]) as midrun:
        run = await midrun.start(agent, "Go")
        try:
            await begun.wait()
            await run.pause(now=True)
            view = await run.view()
            while not view.in_flight[0].not_responding:
                await anyio.sleep(0.01)
                view = await run.view()
            events.append(view.phase)
        finally:
            may_end.set()
        await run.until("paused")
        events.append("paused")
    assert events == ["pausing", "ended", "paused"]


async def test_a_framework_that_neither_answers_nor_stops_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No control has stopped the call, so the run does not wait for it without limit."""
    monkeypatch.setattr(hosted_agent, "IDLE_TIMEOUT_S", 0.01)
    monkeypatch.setattr(hosted_agent, "CLOSE_TIMEOUT_S", 0.01)
    may_end = anyio.Event()

    async def run(_: Callable[[str], None]) -> None:
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await may_end.wait()

    with pytest.raises(TimeoutError):
        async with hosted_agent.run_in_task(run) as items:
            await anext(items)
    may_end.set()
    assert "did not close its model call" in caplog.text


async def test_a_model_of_a_graph_that_loses_a_cancellation_stops_at_its_next_chunk() -> None:
    """`asyncio.wait_for` of Python 3.11 may do so; langchain-openai uses it for each chunk."""
    seen: list[str] = []

    async def stream(_: Sequence[BaseMessage]) -> AsyncGenerator[BaseMessage]:
        yield AIMessageChunk(content="first")
        seen.append("waits")
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            seen.append("loses it")
        yield AIMessageChunk(content="second")
        seen.append("goes on")

    async def read() -> None:
        call = cast("ModelCall", SimpleNamespace(model=None, stream=stream))
        async for _ in _stream_reply(call, []):
            pass

    reading = asyncio.get_running_loop().create_task(read())
    await wait_until(lambda: bool(seen))
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert seen == ["waits", "loses it"]


# ── refusals ─────────────────────────────────────────────────────────────────


async def test_an_interrupt_of_the_framework_is_refused_with_the_remedy() -> None:
    model = make_model(lambda _: ("visit", {"place": "Rome"}))
    middleware = [HumanInTheLoopMiddleware(interrupt_on={"visit": True})]
    outcome = await host(create_agent(model, [visit], middleware=middleware), name="a").run(
        "Go"
    )
    assert isinstance(outcome, Failed)
    assert "traits(approve=True)" in outcome.error


def make_gated_graph() -> Callable[[], Awaitable[object]]:
    """Return a graph that asks a person, as a function."""
    builder = StateGraph(MessagesState)
    builder.add_node("ask", lambda _: {"messages": [AIMessage(str(interrupt("Sure?")))]})
    graph = builder.add_edge(START, "ask").compile()

    async def run_graph() -> object:
        given: Values = {"messages": [HumanMessage("Go")]}
        return await graph.ainvoke(given)  # type: ignore[call-overload]  # of its own state

    return run_graph


@pytest.mark.parametrize("retries", [0, 1])
async def test_an_interrupt_of_a_graph_in_a_middleware_is_refused(retries: int) -> None:
    """It is not taken for the end of the inner graph, nor for a failure of the model."""
    run_graph = make_gated_graph()

    async def call_graph(_: object) -> None:
        await run_graph()

    model = make_model(lambda _: "Done.")
    middleware = [
        *([ModelRetryMiddleware(initial_delay=0, jitter=False)] if retries else []),
        WithCode(call_graph, lambda _: None),
    ]
    outcome = await host(create_agent(model, [], middleware=middleware), name="a").run("Go")
    assert isinstance(outcome, Failed)
    assert "Cannot host interrupt()" in outcome.error
    assert model.prompts == []


async def test_an_interrupt_of_a_graph_in_a_tool_is_refused() -> None:
    run_graph = make_gated_graph()

    async def ask() -> str:
        """Ask a person."""
        return f"went on: {await run_graph()}"

    model = make_model(lambda found: found[-1] if found else ("ask", {}))
    outcome = await host(create_agent(model, [ask]), name="a").run("Go")
    assert isinstance(outcome, Completed)
    assert "Cannot host interrupt()" in outcome.output


def test_an_agent_that_cannot_be_hosted_is_refused() -> None:
    with pytest.raises(Misconfigured, match="without a name"):
        host(create_agent(make_model(lambda _: "")))
    with pytest.raises(Misconfigured, match="must name tools"):
        host(create_agent(make_model(lambda _: "")), name="a", tools={"pay": traits()})
