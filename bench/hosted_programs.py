"""`python -m bench.hosted_programs FRAMEWORK KIND FOLDER STEPS`: steps of a foreign agent.

The kinds: `bare` is the framework's own loop, which streams and stores nothing; `saved` is that
loop with the framework's own persistence, in memory; `hosted` is the same agent in Midrun, in
SQLite with `synchronous = FULL`. See `bench.probe` for the other arguments.
"""

import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Final, cast

import anyio

import midrun
from bench.probe import REPLY_TEXT, RESULT_TEXT, StepProbe

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langgraph.checkpoint.memory import InMemorySaver

RECURSION_LIMIT: Final = 10**9

MODEL_WAIT_S: Final = 0.01
"""The wait of the scripted model before its reply.

Every agent waits for its model, and a process that has waited runs slower for a while, because
its caches are cold. With a model that replies at once, only the hosted agent would wait, for
the disk, and the bench would compare cold caches with warm ones.
"""


async def look(n: int) -> str:
    """Return a text as long as a search result."""
    return f"{n}{RESULT_TEXT}"


def make_langchain_model(probe: StepProbe) -> "BaseChatModel":
    """Return a chat model of LangChain that streams the scripted reply in one chunk."""
    from langchain_core.language_models import BaseChatModel  # noqa: PLC0415 - of one framework
    from langchain_core.messages import AIMessageChunk, BaseMessage  # noqa: PLC0415
    from langchain_core.messages.tool import ToolCallChunk  # noqa: PLC0415
    from langchain_core.outputs import ChatGenerationChunk, ChatResult  # noqa: PLC0415

    class Scripted(BaseChatModel):  # type: ignore[explicit-any]  # of its base
        """Asks for the tool in every reply."""

        @property
        def _llm_type(self) -> str:
            return "scripted"

        def bind_tools(self, tools: object, **options: object) -> "Scripted":
            del tools, options
            return self

        def _generate(
            self, messages: list[BaseMessage], *_: object, **__: object
        ) -> ChatResult:
            raise NotImplementedError

        async def _astream(
            self, messages: list[BaseMessage], *_: object, **__: object
        ) -> AsyncIterator[ChatGenerationChunk]:
            del messages
            n = probe.mark()
            await anyio.sleep(MODEL_WAIT_S)
            call = ToolCallChunk(name="look", args=f'{{"n": {n}}}', id=f"c{n}", index=0)
            chunk = AIMessageChunk(content=REPLY_TEXT, tool_call_chunks=[call])
            yield ChatGenerationChunk(message=chunk)

    return Scripted()


def make_langchain_agent(probe: StepProbe, saver: object) -> object:
    """Return an agent of `create_agent`."""
    from langchain.agents import create_agent  # noqa: PLC0415 - of one framework

    saver = cast("InMemorySaver | None", saver)
    return create_agent(make_langchain_model(probe), [look], checkpointer=saver)


def make_graph(probe: StepProbe, saver: object) -> object:
    """Return a graph with a model node and a node of tools."""
    from langchain_core.tools import tool  # noqa: PLC0415 - of one framework
    from langgraph.graph import START, MessagesState, StateGraph  # noqa: PLC0415
    from langgraph.prebuilt import ToolNode, tools_condition  # noqa: PLC0415

    model = make_langchain_model(probe)

    async def think(state: MessagesState) -> dict[str, object]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("think", think)
    builder.add_node("tools", ToolNode([tool(look)]))
    builder.add_edge(START, "think")
    builder.add_conditional_edges("think", tools_condition)
    builder.add_edge("tools", "think")
    return builder.compile(checkpointer=cast("InMemorySaver | None", saver))


def make_pydantic_ai_agent(probe: StepProbe, _: object) -> object:
    """Return an agent of Pydantic AI."""
    from pydantic_ai import Agent  # noqa: PLC0415 - of one framework
    from pydantic_ai.models.function import DeltaToolCall, FunctionModel  # noqa: PLC0415

    async def stream(*_: object) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
        n = probe.mark()
        await anyio.sleep(MODEL_WAIT_S)
        yield REPLY_TEXT
        yield {1: DeltaToolCall(name="look", json_args=f'{{"n": {n}}}', tool_call_id=f"c{n}")}

    return Agent(FunctionModel(stream_function=stream), tools=[look])


MAKERS: Final[dict[str, Callable[[StepProbe, object], object]]] = {
    "langchain": make_langchain_agent,
    "langgraph": make_graph,
    "pydantic_ai": make_pydantic_ai_agent,
}


async def run_framework(agent: object, framework: str) -> None:
    """Run the framework's own loop, streaming, until the probe ends the process."""
    if framework == "pydantic_ai":
        from pydantic_ai.usage import UsageLimits  # noqa: PLC0415 - of one framework

        limits = UsageLimits(request_limit=None)
        async with agent.run_stream_events("measure", usage_limits=limits) as events:  # type: ignore[attr-defined]
            async for _ in events:
                pass
        return
    config = {"configurable": {"thread_id": "run"}, "recursion_limit": RECURSION_LIMIT}
    given = {"messages": [("user", "measure")]}
    async for _ in agent.astream(given, config, stream_mode=["messages", "updates"]):  # type: ignore[attr-defined]
        pass


async def run_hosted(agent: object, probe: StepProbe) -> None:
    """Run the agent in Midrun until the probe ends the process."""
    hosted = midrun.host(agent, name="stepper", window=0)
    async with midrun.Midrun(f"sqlite:///{probe.folder / 'runs.db'}", agents=[hosted]) as open_:
        await open_.start("stepper", "measure")
        await anyio.sleep_forever()


async def _main(arguments: Sequence[str]) -> None:
    framework, kind = arguments[:2]
    probe = StepProbe.from_arguments()
    saver: object = None
    if kind == "saved":
        from langgraph.checkpoint.memory import InMemorySaver  # noqa: PLC0415 - of one framework

        saver = InMemorySaver()
    agent = MAKERS[framework](probe, saver)
    probe.open()
    if kind == "hosted":
        await run_hosted(agent, probe)
    else:
        await run_framework(agent, framework)


if __name__ == "__main__":
    anyio.run(_main, sys.argv[1:])
