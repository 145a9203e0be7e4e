"""Any graph of LangGraph, hosted: the contract of hosts, and what graphs add."""

import operator
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import anyio
import anyio.lowlevel
import msgspec
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models import BaseChatModel, FakeListLLM
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    ToolMessage,
)
from langchain_core.messages.tool import ToolCallChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.runtime import Runtime
from langgraph.types import Command, RetryPolicy, Send, interrupt

from midrun import Agent, Cancelled, Completed, Failed, Misconfigured, host, traits
from midrun.core.entries import CallProposed
from midrun.core.ids import RunId
from midrun.driver.live import Delta
from midrun.hosts import host_graph
from midrun.hosts.function import INTERRUPTED_TEXT
from midrun.runs.midrun import Midrun
from midrun.runs.run import Run
from tests.support.store_choice import get_store_url
from tests.unit.hosts.suite_provider import HostContract
from tests.unit.runs.conftest import OpenMidrun, opened, path

__all__ = ["opened", "path"]

Values = dict[str, object]
Script = Callable[[list[BaseMessage]], str | AIMessage]


class TestContract(HostContract):
    agent_factory = "tests.unit.hosts.foreign_agents:make_graph"
    framework = "LangGraph graph"
    package = "langgraph"


class Played(BaseChatModel):  # type: ignore[explicit-any]  # of its base
    """A chat model that answers by a script; its second piece waits at a gate, if any."""

    script: Script
    prompts: list[list[str]] = []  # noqa: RUF012 - pydantic copies it
    gates: dict[str, anyio.Event] = {}  # noqa: RUF012 - the last text of a prompt → its gate
    reached: dict[str, anyio.Event] = {}  # noqa: RUF012
    closed: list[str] = []  # noqa: RUF012

    @property
    def _llm_type(self) -> str:
        return "played"

    def bind_tools(self, tools: object, **options: object) -> "Played":
        del tools, options
        return self

    def _generate(self, messages: list[BaseMessage], *_: object, **__: object) -> ChatResult:
        reply = self._answer(messages)
        return ChatResult(generations=[ChatGeneration(message=reply)])

    def _answer(self, messages: list[BaseMessage]) -> AIMessage:
        self.prompts.append([str(message.text) for message in messages])
        reply = self.script(messages)
        return AIMessage(reply) if isinstance(reply, str) else reply

    async def _astream(
        self, messages: list[BaseMessage], *_: object, **__: object
    ) -> AsyncIterator[ChatGenerationChunk]:
        reply = self._answer(messages)
        key = str(messages[-1].text)
        text = str(reply.text)
        try:
            yield _make_chunk(AIMessageChunk(content=text[:1]))
            if key in self.gates:
                self.reached[key].set()
                await self.gates[key].wait()
            calls = [
                ToolCallChunk(name=c["name"], args=_to_json(c["args"]), id=c["id"], index=n)
                for n, c in enumerate(reply.tool_calls)
            ]
            yield _make_chunk(AIMessageChunk(content=text[1:], tool_call_chunks=calls))
        finally:
            self.closed.append(key)

    def hold(self, key: str) -> anyio.Event:
        """Let the stream of the prompt that ends with this text wait; return its gate."""
        self.reached[key] = anyio.Event()
        self.gates[key] = anyio.Event()
        return self.gates[key]


def _make_chunk(message: AIMessageChunk) -> ChatGenerationChunk:
    return ChatGenerationChunk(message=message)


def _to_json(args: Values) -> str:
    return msgspec.json.encode(args).decode()


def build(schema: type, **options: type) -> Any:  # type: ignore[explicit-any]  # noqa: ANN401
    """Return the builder of a graph, without types: those of its methods depend on nodes."""
    return StateGraph(schema, **options)


def play(script: Script) -> Played:
    return Played(script=script, prompts=[], gates={}, reached={}, closed=[])


def echo() -> Played:
    return play(lambda messages: f"re: {messages[0].text}")


def use(name: str, id_: str = "call-1", **args: object) -> AIMessage:
    call = {"name": name, "args": args, "id": id_, "type": "tool_call"}
    return AIMessage("", tool_calls=[call])


class Notes(TypedDict):
    topic: str
    notes: Annotated[list[str], operator.add]
    score: NotRequired[int]


async def read_positions(midrun: Midrun, run: Run) -> list[str]:
    """Return the positions of all calls in the journal, in order."""
    records = await midrun.store.read(RunId(run.id))
    return [r.entry.use.position for r in records if isinstance(r.entry, CallProposed)]


# ── calls and positions ──────────────────────────────────────────────────────


def make_fan(model: Played) -> Agent:
    """Return a graph: a plan, two branches of two calls each by `Send`, a subgraph, an end."""

    async def plan(state: Notes) -> Values:
        reply = await model.ainvoke([HumanMessage(f"plan {state['topic']}")])
        return {"notes": [str(reply.text)]}

    def fan_out(_: Notes) -> list[Send]:
        return [Send("search", {"topic": topic, "notes": []}) for topic in ("a", "b")]

    async def search(state: Notes) -> Values:
        first = await model.ainvoke([HumanMessage(f"find {state['topic']}")])
        second = await model.ainvoke([HumanMessage(f"read {first.text}")])
        return {"notes": [str(second.text)]}

    def rate(state: Notes) -> Values:  # a plain function: it runs in a thread
        reply = model.invoke([HumanMessage(f"rate {len(state['notes'])}")])
        return {"notes": [str(reply.text)]}

    inner = build(Notes).add_node("rate", rate).add_edge(START, "rate").compile()

    async def finish(state: Notes) -> Values:
        return {"score": len(state["notes"])}

    graph = build(Notes).add_node("plan", plan).add_node("search", search)
    graph.add_node("inner", inner).add_node("finish", finish).add_edge(START, "plan")
    graph.add_conditional_edges("plan", fan_out, ["search"])
    graph.add_edge("search", "inner").add_edge("inner", "finish").add_edge("finish", END)
    return host(graph.compile(), name="fan")


async def test_branches_and_subgraphs_have_stable_positions(opened: OpenMidrun) -> None:
    """The first branch is held, so that the second one is faster; then both start again."""
    model = echo()
    model.hold("read re: find a")
    first = await opened(make_fan(model))
    run = await first.start("fan", "cats")
    await model.reached["read re: find a"].wait()
    while "read re: find b" not in model.closed:
        await anyio.lowlevel.checkpoint()
    await run.pause()
    await run.until("paused")
    assert model.closed[-1] == "read re: find a"  # its stream was closed
    model.gates.clear()
    prompts = len(model.prompts)
    second = await opened(make_fan(model))
    run = await second.get(run.id)
    await run.resume()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    found = ["re: plan cats", "re: read re: find a", "re: read re: find b"]
    # The subgraph returns the notes that it got, and its own.
    notes = [*found, *found, "re: rate 3"]
    assert outcome.value == {"topic": "cats", "notes": notes, "score": len(notes)}
    assert [p[0] for p in model.prompts[prompts:]] == ["read re: find a", "rate 3"]
    positions = set(await read_positions(second, run))
    assert positions == {
        "1.plan/1",
        "2.search[0]/1",
        "2.search[0]/2",
        "2.search[1]/1",
        "2.search[1]/2",
        "3.inner/1.rate/1",
    }


async def test_parallel_calls_in_one_node_are_found_in_any_order(opened: OpenMidrun) -> None:
    """After the restart the second coroutine is first; each gets its own replies."""
    model = echo()
    order = ["a", "b"]

    async def both(_: Notes) -> Values:
        results: dict[str, str] = {}

        async def refine(topic: str) -> None:
            first = await model.ainvoke([HumanMessage(f"find {topic}")])
            second = await model.ainvoke([HumanMessage(f"read {first.text}")])
            results[topic] = str(second.text)

        async with anyio.create_task_group() as group:
            for topic in order:
                group.start_soon(refine, topic)
        return {"notes": [results["a"], results["b"], interrupt("Go on?")]}

    graph = build(Notes).add_node("both", both).add_edge(START, "both").compile()
    midrun = await opened(host(graph, name="both"))
    run = await midrun.start("both", "go")
    await run.until("waiting")
    order.reverse()
    await run.answer("yes")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    notes = ["re: read re: find a", "re: read re: find b", "yes"]
    assert outcome.value == {"topic": "go", "notes": notes}
    assert len(model.prompts) == 4


async def test_a_node_may_stream_its_model_and_the_text_reaches_the_feed(
    opened: OpenMidrun,
) -> None:
    model = echo()

    async def write(state: MessagesState) -> Values:
        chunks = [chunk async for chunk in model.astream(state["messages"])]
        return {"messages": [AIMessage("".join(str(chunk.text) for chunk in chunks))]}

    graph = build(MessagesState).add_node("write", write).add_edge(START, "write")
    model.hold("go")
    midrun = await opened(host(graph.compile(), name="writer"))
    run = await midrun.start("writer", "go")
    async for item in run.feed():
        if isinstance(item, Delta) and item.text == "r":
            break
    model.gates["go"].set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert (outcome.output, outcome.value) == ("re: go", None)


async def test_a_model_outside_of_the_graph_is_not_affected(opened: OpenMidrun) -> None:
    model = echo()
    midrun = await opened(make_fan(model))
    await (await midrun.start("fan", "cats")).result()
    assert (await model.ainvoke("hello")).text == "re: hello"
    assert [c.text async for c in model.astream("you")] == ["r", "e: you", ""]


# ── tools ────────────────────────────────────────────────────────────────────


class Shop:
    """A tool with effects, its undo, and a graph that calls it from a node."""

    def __init__(self) -> None:
        self.effects: list[str] = []

    async def refund(self, _: object, args: Values, __: object) -> None:
        """Undo a charge."""
        self.effects.append(f"refund {args['amount']}")

    def make_graph(self) -> "object":
        """Return a graph that charges in an async node and in a plain one, then waits."""

        @tool
        async def charge(amount: int) -> str:
            """Charge an amount."""
            self.effects.append(f"charge {amount}")
            return f"charged {amount}"

        async def first(_: Notes) -> Values:
            return {"notes": [await charge.ainvoke({"amount": 1})]}

        def second(_: Notes) -> Values:  # in a thread
            return {"notes": [charge.invoke({"amount": 2})]}

        async def third(_: Notes) -> Values:
            return {"notes": [interrupt({"question": "Keep it?", "options": ["yes", "no"]})]}

        graph = build(Notes).add_node("first", first).add_node("second", second)
        graph.add_node("third", third).add_edge(START, "first").add_edge("first", "second")
        return graph.add_edge("second", "third").compile()


async def test_tools_that_nodes_call_are_approved_journaled_and_undone(
    opened: OpenMidrun,
) -> None:
    shop = Shop()
    declared = {"charge": traits(undo=shop.refund, approve=lambda args: args["amount"] > 1)}
    midrun = await opened(host(shop.make_graph(), name="shop", tools=declared))
    run = await midrun.start("shop", "go")
    view = await run.until("waiting")
    assert shop.effects == ["charge 1"]
    await run.approve(ask=view.asks[0].id, args={"amount": 3})
    while (view := await run.until("waiting")).asks[0].question != "Keep it?":
        await anyio.lowlevel.checkpoint()
    assert shop.effects == ["charge 1", "charge 3"]
    await run.cancel(undo="all")
    assert isinstance(await run.result(), Cancelled)
    assert shop.effects[2:] == ["refund 3", "refund 1"]


async def test_a_tool_changes_the_state_and_the_next_node(opened: OpenMidrun) -> None:
    """`Command` is journaled: the graph gets it again after a restart, without the tool."""
    transfers: list[str] = []

    @tool
    async def transfer(to: str) -> Command[object]:
        """Give the conversation to another node."""
        transfers.append(to)
        said = ToolMessage("transferred", tool_call_id="call-1")
        return Command(update={"messages": [said], "owner": to}, goto=to)

    class Owned(MessagesState):
        owner: NotRequired[str]

    model = play(lambda messages: use("transfer", to="expert") if len(messages) == 1 else "ok")

    async def clerk(state: Owned) -> Values:
        return {"messages": [await model.ainvoke(state["messages"])]}

    async def expert(state: Owned) -> Values:
        interrupt("May I?")
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = build(Owned).add_node("clerk", clerk).add_node("tools", ToolNode([transfer]))
    graph.add_node("expert", expert).add_edge(START, "clerk")
    graph.add_conditional_edges("clerk", tools_condition)
    midrun = await opened(host(graph.compile(), name="desk"))
    run = await midrun.start("desk", "help")
    await run.until("waiting")
    await run.answer("yes")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert (outcome.output, outcome.value) == ("ok", {"owner": "expert"})
    assert transfers == ["expert"]
    assert model.prompts[-1] == ["help", "", "transferred"]


async def test_an_error_of_a_tool_reaches_the_handler_of_the_graph() -> None:
    @tool
    async def divide(by: int) -> str:
        """Divide."""
        raise ZeroDivisionError(f"by {by}")

    def handle(error: ZeroDivisionError) -> str:
        return f"handled {error}"

    model = play(lambda ms: str(ms[-1].text) if len(ms) > 1 else use("divide", by=0))

    async def think(state: MessagesState) -> Values:
        return {"messages": [await model.ainvoke(state["messages"])]}

    node = ToolNode([divide], handle_tool_errors=handle)
    graph = build(MessagesState).add_node("think", think).add_node("tools", node)
    graph.add_edge(START, "think").add_conditional_edges("think", tools_condition)
    graph.add_edge("tools", "think")
    outcome = await host(graph.compile(), name="divider").run("go")
    assert isinstance(outcome, Completed)
    assert outcome.output == "handled by 0"


async def test_a_node_that_is_tried_again_repeats_no_call(opened: OpenMidrun) -> None:
    model = echo()
    tries: list[str] = []

    async def shaky(_: Notes) -> Values:
        reply = await model.ainvoke([HumanMessage("hi")])
        tries.append(str(reply.text))
        if len(tries) < 3:
            raise ConnectionError("lost")
        return {"notes": tries}

    graph = build(Notes)
    policy = RetryPolicy(max_attempts=3, initial_interval=0, jitter=False)
    graph.add_node("shaky", shaky, retry_policy=policy).add_edge(START, "shaky")
    midrun = await opened(host(graph.compile(), name="shaky"))
    outcome = await (await midrun.start("shaky", "go")).result()
    assert isinstance(outcome, Completed)
    assert (len(tries), len(model.prompts)) == (3, 1)


# ── questions ────────────────────────────────────────────────────────────────


async def test_interrupts_are_questions_of_the_run(opened: OpenMidrun) -> None:
    """Two nodes ask at once, one of them twice; the answers are the values."""
    model = echo()

    async def left(_: Notes) -> Values:
        reply = await model.ainvoke([HumanMessage("left")])
        first = interrupt(f"First after {reply.text}?")
        second = interrupt({"question": "Second?", "hint": first})
        return {"notes": [f"left {first} {second}"]}

    def right(_: Notes) -> Values:
        return {"notes": [f"right {interrupt({'form': [1]})}"]}

    def make() -> Agent:
        graph = build(Notes).add_node("left", left).add_node("right", right)
        graph.add_edge(START, "left").add_edge(START, "right")
        return host(graph.compile(checkpointer=InMemorySaver()), name="asker")

    first = await opened(make())
    run = await first.start("asker", "go")
    view = await run.until("waiting")
    assert {ask.question for ask in view.asks} == {
        "First after re: left?",
        "The graph asks for an input.",
    }
    by_question = {ask.question: ask for ask in view.asks}
    assert by_question["The graph asks for an input."].data == {"value": {"form": [1]}}
    second = await opened(make())
    run = await second.get(run.id)
    await run.answer("one", ask=by_question["First after re: left?"].id)
    await run.answer({"x": 2}, ask=by_question["The graph asks for an input."].id)
    while (view := await run.until("waiting")).asks[0].question != "Second?":
        await anyio.lowlevel.checkpoint()
    assert view.asks[0].data == {"hint": "one"}
    await run.answer("two")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    notes = ["left one two", "right {'x': 2}"]
    assert outcome.value == {"topic": "go", "notes": notes}
    assert len(model.prompts) == 1


async def test_a_redirect_leaves_the_question_open_for_the_graph(opened: OpenMidrun) -> None:
    model = echo()

    async def asker(_: MessagesState) -> Values:
        choice = interrupt("Which?")
        return {"messages": [await model.ainvoke([HumanMessage(f"chose {choice}")])]}

    graph = build(MessagesState).add_node("asker", asker).add_edge(START, "asker")
    midrun = await opened(host(graph.compile(), name="asker"))
    run = await midrun.start("asker", "go")
    first = (await run.until("waiting")).asks[0].id
    await run.redirect("Cheap ones only.")
    while not (view := await run.view()).asks or view.asks[0].id == first:
        await anyio.lowlevel.checkpoint()
    await run.answer("b")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert model.prompts == [["chose b", "Cheap ones only."]]


async def test_a_tool_may_interrupt(opened: OpenMidrun) -> None:
    calls: list[str] = []

    @tool
    async def book(city: str) -> str:
        """Book a hotel."""
        calls.append("began")
        stars = interrupt({"question": f"How many stars in {city}?"})
        name = interrupt("Which name?")
        calls.append("booked")
        return f"{stars} stars for {name}"

    model = play(lambda ms: str(ms[-1].text) if len(ms) > 1 else use("book", city="Rome"))

    async def think(state: MessagesState) -> Values:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = build(MessagesState).add_node("think", think)
    graph.add_node("tools", ToolNode([book])).add_edge(START, "think")
    graph.add_conditional_edges("think", tools_condition).add_edge("tools", "think")
    midrun = await opened(host(graph.compile(), name="booker"))
    run = await midrun.start("booker", "go")
    assert (await run.until("waiting")).asks[0].question == "How many stars in Rome?"
    await run.answer(3)
    while (view := await run.until("waiting")).asks[0].question != "Which name?":
        await anyio.lowlevel.checkpoint()
    await run.answer("Ada", ask=view.asks[0].id)
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "3 stars for Ada"
    assert calls.count("booked") == 1


async def test_an_agent_with_interrupts_can_be_hosted_as_a_graph(opened: OpenMidrun) -> None:
    """`host_graph` chooses the mechanism for an agent of `create_agent`."""
    sent: list[str] = []

    @tool
    async def send(to: str) -> str:
        """Send a mail."""
        sent.append(to)
        return f"sent to {to}"

    model = play(lambda ms: str(ms[-1].text) if len(ms) > 1 else use("send", to="ada"))
    middleware = [HumanInTheLoopMiddleware(interrupt_on={"send": True})]
    agent = create_agent(model, [send], middleware=middleware)
    midrun = await opened(host_graph(agent, name="mailer"))
    run = await midrun.start("mailer", "go")
    await run.until("waiting")
    assert sent == []
    await run.answer({"decisions": [{"type": "approve"}]})
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert (outcome.output, sent) == ("sent to ada", ["ada"])


async def test_a_declared_breakpoint_is_a_question(opened: OpenMidrun) -> None:
    graph = build(Notes).add_node("one", lambda _: {"notes": ["1"]})
    graph.add_node("two", lambda _: {"notes": ["2"]}).add_edge(START, "one")
    compiled = graph.add_edge("one", "two").compile(interrupt_before=["two"])
    midrun = await opened(host(compiled, name="stepper"))
    run = await midrun.start("stepper", "go")
    assert (await run.until("waiting")).asks[0].question == "Continue with two?"
    await run.answer("yes")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.value == {"topic": "go", "notes": ["1", "2"]}


async def test_a_breakpoint_of_an_agent_is_a_question(opened: OpenMidrun) -> None:
    """An agent of `create_agent` with breakpoints is hosted as a graph."""
    sent: list[str] = []

    async def send(to: str) -> str:
        """Send a mail."""
        sent.append(to)
        return f"sent to {to}"

    model = play(lambda ms: str(ms[-1].text) if len(ms) > 1 else use("send", to="ada"))
    agent = create_agent(model, [send], interrupt_before=["tools"])
    midrun = await opened(host(agent, name="mailer"))
    run = await midrun.start("mailer", "go")
    assert (await run.until("waiting")).asks[0].question == "Continue with tools?"
    assert sent == []
    await run.answer("yes")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert (outcome.output, sent) == ("sent to ada", ["ada"])


# ── words of people ──────────────────────────────────────────────────────────


async def test_words_reach_every_branch_and_later_nodes(opened: OpenMidrun) -> None:
    """Both branches are held; the words are added to both, and to the node that follows."""
    model = echo()

    def make_branch(name: str) -> Callable[[Notes], object]:
        async def branch(_: Notes) -> Values:
            reply = await model.ainvoke([HumanMessage(name)])
            return {"notes": [str(reply.text)]}

        return branch

    async def join(state: Notes) -> Values:
        reply = await model.ainvoke([HumanMessage(f"join {len(state['notes'])}")])
        return {"notes": [str(reply.text)]}

    graph = build(Notes).add_node("join", join)
    for name in ("left", "right"):
        graph.add_node(name, make_branch(name)).add_edge(START, name)
        model.hold(name)
    graph.add_edge(["left", "right"], "join")
    midrun = await opened(host(graph.compile(), name="two"))
    run = await midrun.start("two", "go")
    for name in ("left", "right"):
        await model.reached[name].wait()
    await run.redirect("In French.")
    assert isinstance(await run.result(), Completed)
    for name in ("left", "right"):
        assert model.prompts.count([name, "r", INTERRUPTED_TEXT, "In French."]) == 1
    assert model.prompts[-1] == ["join 2", "In French."]


# ── blocking nodes ───────────────────────────────────────────────────────────


class Blocker:
    def __init__(self) -> None:
        self.entered, self.leave = threading.Event(), threading.Event()
        self.done: list[str] = []

    def block(self, _: Notes) -> Values:
        """Wait until the test lets it leave."""
        self.entered.set()
        self.leave.wait()
        self.done.append("done")
        return {"notes": ["done"]}


BLOCKER = Blocker()
EARLY_BUILDER = build(Notes).add_node("block", BLOCKER.block).add_edge(START, "block")
"""Built when this module is imported, before any graph is hosted, as in a user's module."""


async def test_a_pause_waits_for_a_blocking_node(opened: OpenMidrun) -> None:
    """A thread cannot be stopped: the run is paused when the node has ended, not before."""
    midrun = await opened(host(EARLY_BUILDER.compile(), name="blocker"))
    run = await midrun.start("blocker", "go")
    await anyio.to_thread.run_sync(BLOCKER.entered.wait)
    try:
        await run.pause()
        for _ in range(1000):  # without the thread, the run would rest in a few turns
            await anyio.lowlevel.checkpoint()
        assert (await run.view()).phase == "pausing"
    finally:
        BLOCKER.leave.set()
    await run.until("paused")
    assert BLOCKER.done == ["done"]
    await run.resume()
    assert isinstance(await run.result(), Completed)


async def test_a_blocking_model_call_is_stopped_by_a_pause(opened: OpenMidrun) -> None:
    model = echo()
    model.hold("hi")

    def block(_: Notes) -> Values:
        return {"notes": [str(model.invoke([HumanMessage("hi")]).text)]}

    graph = build(Notes).add_node("block", block).add_edge(START, "block").compile()
    midrun = await opened(host(graph, name="blocker"))
    run = await midrun.start("blocker", "go")
    await model.reached["hi"].wait()
    await run.pause()
    await run.until("paused")
    assert model.closed == ["hi"]
    model.gates.clear()
    await run.resume("Be brief.")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert model.prompts[-1] == ["hi", "r", INTERRUPTED_TEXT, "Be brief."]


async def test_many_blocking_nodes_wait_for_their_calls_at_once() -> None:
    """More than the default executor has threads: their blocking tools need threads, too."""

    @tool
    def look_up(number: int) -> str:
        """Look up."""
        return f"found {number}"

    def search(state: Notes) -> Values:
        return {"notes": [look_up.invoke({"number": int(state["topic"])})]}

    def fan_out(_: Notes) -> list[Send]:
        return [Send("search", {"topic": str(n), "notes": []}) for n in range(40)]

    graph = build(Notes).add_node("search", search)
    compiled = graph.add_conditional_edges(START, fan_out, ["search"]).compile()
    outcome = await host(compiled, name="many").run("go")
    assert isinstance(outcome, Completed)
    assert isinstance(outcome.value, dict)
    assert outcome.value["notes"] == [f"found {n}" for n in range(40)]


# ── a changed graph, and refusals ────────────────────────────────────────────


def make_stages(names: list[str], model: Played) -> Agent:
    """Return a graph of nodes with a model call each; the last node asks a person."""

    def make_node(name: str) -> Callable[[Notes], object]:
        async def node(_: Notes) -> Values:
            return {"notes": [str((await model.ainvoke([HumanMessage(name)])).text)]}

        return node

    graph = build(Notes)
    for before, name in zip([START, *names], names, strict=False):
        graph.add_node(name, make_node(name)).add_edge(before, name)
    graph.add_node("ask", lambda _: {"notes": [interrupt("Go on?")]}).add_edge(names[-1], "ask")
    return host(graph.compile(), name="stages")


@pytest.mark.parametrize(
    ("names", "texts"),
    [
        (["one", "other"], ["a model call in node two", "a model in node other in step 2"]),
        (["one"], ["a model call in node two", "ends without it"]),
        (["new", "one", "two"], ["a model call in node one", "a model in node new in step 1"]),
    ],
    ids=["renamed", "removed", "added"],
)
async def test_a_changed_graph_is_stopped_and_both_calls_are_named(
    store_path: Path, names: list[str], texts: list[str]
) -> None:
    model = echo()
    url = get_store_url(store_path)
    async with Midrun(url, agents=[make_stages(["one", "two"], model)]) as midrun:
        run = await midrun.start("stages", "go")
        await run.until("waiting")
    async with Midrun(url, agents=[make_stages(names, model)]) as midrun:
        run = await midrun.get(run.id)
        await run.answer("yes")
        outcome = await run.result()
    assert isinstance(outcome, Failed)
    assert outcome.code == "program_departed"
    for text in texts:
        assert text in outcome.error
    assert len(model.prompts) == 2  # no call of the other graph was made


@pytest.mark.parametrize("kind", ["blocking", "completion"])
async def test_calls_that_cannot_be_hosted_are_refused_by_name(kind: str) -> None:
    async def node(_: Notes) -> Values:
        if kind == "blocking":
            return {"notes": [str(echo().invoke("hi").text)]}
        return {"notes": [await FakeListLLM(responses=["hi"]).ainvoke("hi")]}

    graph = build(Notes).add_node("node", node).add_edge(START, "node").compile()
    outcome = await host(graph, name="refused").run("go")
    assert isinstance(outcome, Failed)
    name = "Played.invoke" if kind == "blocking" else "FakeListLLM"
    assert f"{name}" in outcome.error


async def test_an_output_that_is_not_json_fails_by_name() -> None:
    graph = build(Notes).add_node("node", lambda _: {"notes": [object()]})
    outcome = await host(graph.add_edge(START, "node").compile(), name="odd").run("go")
    assert isinstance(outcome, Failed)
    assert "Cannot store the output of the graph" in outcome.error


def test_a_graph_that_cannot_be_hosted_is_refused() -> None:
    class Two(TypedDict):
        first: str
        second: str

    graph = build(Two).add_node("own", lambda state: state).set_entry_point("own")
    with pytest.raises(Misconfigured, match="make_input"):
        host(graph.compile(), name="a")
    with pytest.raises(Misconfigured, match=r"graph\.compile"):
        host(graph, name="a")
    agent = host_graph(
        graph.compile(), name="a", make_input=lambda t: {"first": t, "second": t}
    )
    assert agent.framework == "langgraph"


async def test_context_and_functional_graphs_are_hosted(opened: OpenMidrun) -> None:
    @dataclass
    class Customer:
        name: str

    async def greet(_: MessagesState, runtime: Runtime[Customer]) -> Values:
        return {"messages": [AIMessage(f"Hello {runtime.context.name}")]}

    graph = build(MessagesState, context_schema=Customer).add_node("greet", greet)
    compiled = graph.add_edge(START, "greet").compile()
    hosted = host(compiled, name="greeter", context=lambda: Customer("Ada"))
    outcome = await hosted.run("go")
    assert isinstance(outcome, Completed)
    assert outcome.output == "Hello Ada"
    model = echo()

    @task
    async def ask(text: str) -> str:
        return str((await model.ainvoke([HumanMessage(text)])).text)

    @entrypoint()
    async def work(text: str) -> dict[str, object]:
        first, second = ask(f"{text} 1"), ask(f"{text} 2")
        return {"replies": [await first, await second], "choice": interrupt("Which?")}

    midrun = await opened(host(work, name="work"))
    run = await midrun.start("work", "go")
    await run.until("waiting")
    await run.answer("b")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.value == {"replies": ["re: go 1", "re: go 2"], "choice": "b"}
    assert len(model.prompts) == 2
