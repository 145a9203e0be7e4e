"""LangGraph with the SQLite checkpointer: `standard` or `delta` channel for the messages."""

import sys
from operator import add
from typing import Annotated, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph

from bench.probe import REPLY_TEXT, RESULT_TEXT, StepProbe

probe = StepProbe.from_arguments()

if sys.argv[1] == "delta":
    from langgraph.channels.delta import DeltaChannel

    def join(messages: list[AnyMessage], writes: list[list[AnyMessage]]) -> list[AnyMessage]:
        """Append all written messages."""
        return [*messages, *(message for write in writes for message in write)]

    reducer = DeltaChannel(join)
else:
    reducer = add


class Conversation(TypedDict):
    """The state of the graph."""

    messages: Annotated[list[AnyMessage], reducer]


def call_model(_: Conversation) -> dict[str, list[AnyMessage]]:
    """Return the scripted reply: a text and a tool call."""
    number = probe.mark()
    call = {"name": "look", "args": {"n": number}, "id": f"c{number}"}
    return {"messages": [AIMessage(REPLY_TEXT, tool_calls=[call])]}


def call_tool(conversation: Conversation) -> dict[str, list[AnyMessage]]:
    """Call the tool that the newest message requests."""
    call = conversation["messages"][-1].tool_calls[0]
    text = f"{call['args']['n']}{RESULT_TEXT}"
    return {"messages": [ToolMessage(text, tool_call_id=call["id"])]}


def main() -> None:
    """Run the graph until the probe ends the process."""
    builder = StateGraph(Conversation)
    builder.add_node("model", call_model)
    builder.add_node("tool", call_tool)
    builder.add_edge(START, "model")
    builder.add_edge("model", "tool")
    builder.add_edge("tool", "model")
    probe.open()
    with SqliteSaver.from_conn_string(str(probe.folder / "graph.db")) as saver:
        saver.conn.execute("PRAGMA synchronous = FULL")
        graph = builder.compile(checkpointer=saver)
        first = None if probe.is_resumed else {"messages": []}
        config = {"configurable": {"thread_id": "run"}, "recursion_limit": 10**9}
        graph.invoke(first, config, durability="sync")


main()
