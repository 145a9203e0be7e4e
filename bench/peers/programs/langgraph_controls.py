"""Control a graph of LangGraph from outside while it runs, and print what happened.

.venv/bin/python -m bench.peers.programs.langgraph_controls
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from importlib.metadata import version

import anyio
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphDrained
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.runtime import RunControl

CONFIG = {"configurable": {"thread_id": "1"}}
CHUNKS = 9


class EndlessModel(BaseChatModel):
    """A model that streams some chunks and then nothing more."""

    @property
    def _llm_type(self) -> str:
        return "endless"

    def _generate(self, *_: object, **__: object) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage("whole"))])

    async def _astream(self, *_: object, **__: object) -> AsyncIterator[ChatGenerationChunk]:
        for number in range(CHUNKS):
            yield ChatGenerationChunk(message=AIMessageChunk(f"word{number} "))
        await anyio.sleep_forever()


def compile_graph(first: object, second: object) -> object:
    """Return a graph of two nodes, with a checkpointer."""
    builder = StateGraph(MessagesState)
    builder.add_node("first", first)
    builder.add_node("second", second)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    builder.add_edge("second", END)
    return builder.compile(checkpointer=InMemorySaver())


async def finish(_: MessagesState) -> dict:
    """Return a message."""
    return {"messages": [AIMessage("second")]}


async def drain_a_run() -> str:
    """Request a pause while the first node works."""
    control, began = RunControl(), anyio.Event()

    async def first(_: MessagesState) -> dict:
        began.set()
        await anyio.sleep(0.2)
        return {"messages": [AIMessage("first")]}

    graph, drained = compile_graph(first, finish), []
    async with anyio.create_task_group() as group:

        async def run() -> None:
            try:
                await graph.ainvoke({"messages": []}, CONFIG, control=control)
            except GraphDrained:
                drained.append(True)

        group.start_soon(run)
        await began.wait()
        control.request_drain()
    stored = [message.content for message in graph.get_state(CONFIG).values["messages"]]
    ended = [m.content for m in (await graph.ainvoke(None, CONFIG))["messages"]]
    return f"drained: {bool(drained)}; stored {stored}; after the resume {ended}"


async def update_a_run() -> str:
    """Write a message to the thread while a node works."""
    began, go_on = anyio.Event(), anyio.Event()

    async def first(_: MessagesState) -> dict:
        began.set()
        await go_on.wait()
        return {"messages": [AIMessage("first")]}

    graph = compile_graph(first, finish)
    async with anyio.create_task_group() as group:
        group.start_soon(graph.ainvoke, {"messages": []}, CONFIG)
        await began.wait()
        await graph.aupdate_state(CONFIG, {"messages": [("user", "the new instruction")]})
        go_on.set()
    stored = [message.content for message in graph.get_state(CONFIG).values["messages"]]
    return f"stored {stored}"


async def cancel_a_stream() -> str:
    """Cancel the run when all chunks of the model have arrived."""

    async def first(state: MessagesState) -> dict:
        return {"messages": [await EndlessModel().ainvoke(state["messages"] or "go")]}

    graph, arrived = compile_graph(first, finish), []

    async def read() -> None:
        async for chunk, _ in graph.astream({"messages": []}, CONFIG, stream_mode="messages"):
            arrived.append(chunk.content)

    task = asyncio.ensure_future(read())  # noqa: TID251 - what users of the framework do
    with anyio.move_on_after(3):
        while len(arrived) < CHUNKS:  # noqa: ASYNC110 - the reader is a callback of the framework
            await anyio.sleep(0.01)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    stored = graph.get_state(CONFIG).values.get("messages", [])
    return f"{len(arrived)} chunks arrived; stored messages: {len(stored)}"


async def main() -> None:
    """Print one line for each control."""
    print(f"langgraph {version('langgraph')}")
    print("request_drain:", await drain_a_run())
    print("update_state during a run:", await update_a_run())
    print("cancel of a stream:", await cancel_a_stream())


if __name__ == "__main__":
    anyio.run(main)
