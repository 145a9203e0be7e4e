"""Host an agent of LangChain's `create_agent`: one turn of its graph for each call.

The graph has the nodes `model` and `tools`, and a node for each hook of a middleware. For each
call, a fresh thread of the graph is filled from the transcript of the run:

- **Model call**: the graph runs from its start, or from the point after `tools`, and stops
  after the model and the hooks `after_model`. Its next node tells what the reply means:
  `tools`: the agent wants calls; the model again: an output or a hook asks for a retry; the
  end: the answer. Hooks `before_agent` run in the first step, `after_agent` in the last.
- **Tool call**: the graph runs from the point after the model with that one call, and stops
  after `tools`. So the graph's own `ToolNode` executes it, with the hooks `wrap_tool_call`.

Most agents have neither hooks nor state beside the messages. Then the nodes `model` and `tools`
are executed without the graph; see `_ModelNode`.

State beside the messages (keys of `state_schema` and of middleware) is stored with the replies
and with the results of tools that return a `Command`, and must be JSON.
"""

import asyncio
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, contextmanager, nullcontext
from inspect import getclosurevars, isfunction, signature
from threading import get_ident
from typing import Any, Final, TypeAlias, TypeVar, cast
from uuid import UUID

import anyio
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ToolMessage,
    messages_to_dict,
)
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import (
    get_async_callback_manager_for_config,
    merge_configs,
    var_child_runnable_config,
)
from langchain_core.tools import BaseTool
from langchain_core.tracers._streaming import _StreamingCallbackHandler
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.constants import END, START, TAG_NOSTREAM
from langgraph.errors import GraphInterrupt
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode
from langgraph.pregel.main import _coerce_context
from langgraph.runtime import ExecutionInfo, Runtime
from langgraph.types import Send
from msgspec.structs import replace
from pydantic import BaseModel

from midrun.agents.signature import SchemaArguments
from midrun.agents.tool import Tool
from midrun.agents.tool_context import Call
from midrun.core.values import Json
from midrun.errors import ModelFailed
from midrun.hosts.hosted_agent import (
    IDLE_TIMEOUT_S,
    HostedAgent,
    Hosting,
    StepHostModel,
    ToolReportedError,
    find_asking_turn,
    make_foreign_failure,
    run_in_task,
)
from midrun.hosts.langchain_messages import (
    HISTORIES,
    RESULT_KEY,
    GraphConversation,
    Values,
    combine_messages,
    get_text,
)
from midrun.hosts.langchain_replies import (
    CONTROL_KEYS,
    TOOLS_NODE,
    TurnEnd,
    dump_state,
    make_finished,
)
from midrun.models.prompt_texts import CONTINUE_NOTE, mark_runtime_text
from midrun.ports.model import Finished, Piece, Prompt

T = TypeVar("T")

Graph: TypeAlias = CompiledStateGraph[Any, Any, Any, Any]  # type: ignore[explicit-any]
Events: TypeAlias = AsyncGenerator[tuple[str, Any]]  # type: ignore[explicit-any]

FRAMEWORK: Final = "langchain"
MODEL_NODE: Final = "model"

FACTORY_MODULE: Final = "langchain.agents.factory"
"""The module of `create_agent`, in which the function of its node `model` is defined."""

THREAD: Final = {"thread_id": "call"}
RUNTIME_KEY: Final = "__pregel_runtime"
TASK_KEY: Final = "__pregel_task_id"
CHECKPOINTER_KEY: Final = "__pregel_checkpointer"
SCRATCHPAD_KEY: Final = "__pregel_scratchpad"
"""Keys under which LangGraph passes its runtime, and the state of `interrupt`, to a node."""

WRAPPERS_NAME: Final = "awrap_model_call_handler"
"""The variable of `create_agent` with the hooks `wrap_model_call`; None if there are none."""

INTERRUPT_TEXT: Final = (
    "Cannot host interrupt(): the run would wait inside of a call. Declare the tool with "
    "traits(approve=True) instead of HumanInTheLoopMiddleware, or host the agent with "
    "midrun.hosts.host_graph."
)


def is_agent_loop(agent: object) -> bool:
    """Tell whether `agent` is a graph of `create_agent` without declared breakpoints.

    Other graphs have nodes of these names as well, but edges of their own. They are hosted as
    graphs (`langgraph.py`), and so is an agent with breakpoints: there, each is a question.
    """
    if not isinstance(agent, CompiledStateGraph) or MODEL_NODE not in agent.nodes:
        return False
    code = getattr(agent.nodes[MODEL_NODE].bound, "afunc", None)
    if getattr(code, "__module__", "") != FACTORY_MODULE:
        return False
    if agent.interrupt_before_nodes or agent.interrupt_after_nodes:
        return False
    nodes = set(agent.nodes) - {"__start__", MODEL_NODE, TOOLS_NODE}
    hooks = tuple(f".{w}_{o}" for w in ("before", "after") for o in ("agent", "model"))
    return all(name.endswith(hooks) for name in nodes)


def host_agent(agent: object, hosting: Hosting) -> HostedAgent:
    """Return an agent of `create_agent` as an `Agent`; see `midrun.host`."""
    assert isinstance(agent, CompiledStateGraph), "see `is_agent_loop`"
    box = _ToolBox(agent, hosting)
    own_name = agent.name if agent.name != "LangGraph" else None
    return HostedAgent(
        hosting.choose_name(own_name),
        framework=FRAMEWORK,
        model=_StepModel(agent, hosting),
        tools=list(box.tools.values()),
        hosting=hosting,
    )


# ── the graph and its state ──────────────────────────────────────────────────


class ByReference:
    """Holds the values of a checkpoint in memory as they are: they need not be serializable.

    Lists and dictionaries are copied, because the graph changes them later.
    """

    def dumps_typed(self, value: object) -> tuple[str, object]:
        """Return the value."""
        return "reference", _copy_containers(value)

    def loads_typed(self, data: tuple[str, object]) -> object:
        """Return the value."""
        return _copy_containers(data[1])


CONTAINERS: Final = frozenset({dict, list, tuple, deque, set})


def _copy_containers(value: object) -> object:
    kind = type(value)
    if kind is dict:
        items = cast("dict[object, object]", value).items()
        return {k: _copy_containers(v) if type(v) in CONTAINERS else v for k, v in items}
    if kind is list or kind is tuple or kind is deque:
        parts = cast("Sequence[object]", value)
        return kind([_copy_containers(p) if type(p) in CONTAINERS else p for p in parts])
    return set(cast("set[object]", value)) if kind is set else value


class _NoCheckpoints(BaseCheckpointSaver[int]):
    """Stores nothing. A graph with a checkpointer says after each step which node is next."""

    async def aget_tuple(self, config: RunnableConfig) -> None:
        """Return no checkpoint: each call starts anew."""
        del config

    async def aput(self, config: RunnableConfig, *_: object) -> RunnableConfig:
        """Store nothing."""
        return config

    async def aput_writes(self, *_: object) -> None:
        """Store nothing."""

    def get_next_version(self, current: int | None, channel: None) -> int:
        """Return the next version of a channel."""
        del channel
        return (current or 0) + 1


def copy_graph(graph: Graph) -> Graph:
    """Return the graph with a checkpointer of its own in memory, for one call.

    A checkpointer of the user is not used: the journal is the history.
    """
    saver = InMemorySaver(serde=cast("SerializerProtocol", ByReference()))
    return graph.copy({"checkpointer": saver})


def _make_configurable(graph: Graph, context: object, task: str) -> Values:
    """Return what a node reads, as the graph makes it for a node that it executes itself."""
    return {
        **THREAD,
        RUNTIME_KEY: Runtime(
            context=_coerce_context(graph.context_schema, context),
            store=graph.store,
            execution_info=ExecutionInfo(
                checkpoint_id="", checkpoint_ns="", task_id=task, thread_id=THREAD["thread_id"]
            ),
        ),
        # A graph that code of the node runs sees by these that it is inside of another one. So
        # it passes its interrupts on, and may have `checkpointer=True`.
        TASK_KEY: task,
        CHECKPOINTER_KEY: None,
    }


@contextmanager
def _refuse_interrupts() -> Iterator[None]:
    """Refuse the `interrupt` of a node that is executed without its graph.

    Raises:
        NotImplementedError: Code of the node called it, or a graph in the node did.
    """
    try:
        yield
    except GraphInterrupt as stop:
        raise NotImplementedError(INTERRUPT_TEXT) from stop
    except KeyError as error:
        if error.args != (SCRATCHPAD_KEY,):
            raise
        raise NotImplementedError(INTERRUPT_TEXT) from error


class _Thread:
    """A fresh thread of the graph, for one call."""

    def __init__(self, graph: Graph, context: object) -> None:
        self._graph = graph
        self._context = context
        self._config: RunnableConfig = {"configurable": {**THREAD}}
        names = list(graph.nodes)
        self.exit_node = next((n for n in names if n.endswith(".after_model")), MODEL_NODE)
        self._start_hooks = [n for n in names if n.endswith(".before_agent")]
        self.has_tools = TOOLS_NODE in names

    async def update(self, values: Mapping[str, object], as_node: str) -> None:
        """Change the state as if `as_node` had done it; the next node follows from it."""
        await self._graph.aupdate_state(self._config, dict(values), as_node=as_node)

    async def fill(self, conversation: GraphConversation) -> Values | None:
        """Fill the state for the next model call; return the input if it starts anew."""
        state: Values = {**conversation.state, "messages": conversation.messages}
        updates = [*conversation.updates, *conversation.results]
        if updates and self.has_tools:
            await self.update(state, self.exit_node)
            for update in updates:  # one by one: reducers combine them with the state
                await self.update(update, TOOLS_NODE)
            return None
        if not conversation.has_replies or not self._start_hooks:
            return state
        await self.update(state, self._start_hooks[-1])
        return None

    def stream(
        self, given: Values | None, *, before: Sequence[str] = (), after: Sequence[str] = ()
    ) -> Events:
        """Run the graph until one of these nodes, or its end."""
        return cast(
            "Events",
            self._graph.astream(
                given,
                self._config,
                context=self._context,
                stream_mode=["messages", "updates"],
                interrupt_before=list(before),
                interrupt_after=list(after),
            ),
        )

    def stream_to_end(self, given: Values) -> Events:
        """Run the graph from its start to the end of the model's part, with its state."""
        events = self._graph.astream(
            given,
            self._config,
            context=self._context,
            stream_mode=["messages", "updates", "checkpoints"],
            interrupt_before=[TOOLS_NODE] if self.has_tools else [],
            interrupt_after=[self.exit_node],
            durability="exit",
        )
        return _read_events(cast("Events", events))

    async def read(self) -> TurnEnd:
        """Return the state and the next nodes.

        Raises:
            NotImplementedError: A hook or a tool called `interrupt`.
        """
        snapshot = await self._graph.aget_state(self._config)
        if snapshot.interrupts:
            raise NotImplementedError(INTERRUPT_TEXT)
        return TurnEnd(cast("Values", snapshot.values), snapshot.next)


# ── tools ────────────────────────────────────────────────────────────────────


class _ToolBox:
    """The tools of the graph's `ToolNode`, also those of its middleware."""

    def __init__(self, graph: Graph, hosting: Hosting) -> None:
        self._graph = graph
        self._hosting = hosting
        node = graph.nodes[TOOLS_NODE].bound if TOOLS_NODE in graph.nodes else None
        found = node.tools_by_name if isinstance(node, ToolNode) else {}
        self._has_wrappers = getattr(node, "_awrap_tool_call", None) is not None
        hosting.check_tool_names(list(found))
        self.tools = {name: self._make_tool(tool) for name, tool in found.items()}

    def _make_tool(self, tool: BaseTool) -> Tool:
        function = getattr(tool, "func", None)
        is_blocking = getattr(tool, "coroutine", None) is None and (
            function is not None or type(tool)._arun is BaseTool._arun  # noqa: SLF001 - no public test
        )
        # Injected arguments (state, store, runtime) are not in the schema: it needs the graph.
        code = function or getattr(tool, "coroutine", None)
        is_plain = code is not None and set(signature(code).parameters) == set(tool.args)
        needs_state = self._has_wrappers or not is_plain
        if is_blocking and function and is_plain:
            made = self._hosting.make_process_tool(tool.name, function, tool.description)
            if made is not None and not self._has_wrappers:
                return made

        async def call_graph(call: Call, /, **arguments: object) -> Json:
            # LangChain runs a blocking function in a thread, which nothing can stop.
            with anyio.CancelScope(shield=True) if is_blocking else nullcontext():
                if needs_state:
                    return await self._call_tool(tool.name, arguments, call)
                return await self._call_node(tool.name, arguments, call)

        made = self._hosting.make_tool(
            tool.name,
            call_graph,
            description=tool.description,
            arguments=SchemaArguments(get_schema(tool)),
        )
        if is_blocking:
            vars(made).update(traits=replace(made.traits, unstoppable=True))
        return made

    async def _call_node(self, name: str, arguments: dict[str, object], call: Call) -> Json:
        """Let the node `tools` execute one call, without the graph: it needs no state."""
        id_ = call.tool_call_id or call.key
        wanted = {"name": name, "args": arguments, "id": id_, "type": "tool_call"}
        async with self._hosting.open_context(call.run_id) as context:
            own: RunnableConfig = {
                "configurable": _make_configurable(self._graph, context, id_)
            }
            config = merge_configs(self._graph.config, own)
            with _refuse_interrupts():
                update = await self._graph.nodes[TOOLS_NODE].bound.ainvoke([wanted], config)
        if isinstance(update, list):  # of commands; there is one call
            update = update[0].update
        return _encode_result(name, id_, cast("Values", update))

    async def _call_tool(self, name: str, arguments: dict[str, object], call: Call) -> Json:
        """Let the graph execute one call, with the state of the run."""
        id_ = call.tool_call_id or call.key
        wanted = {"name": name, "args": arguments, "id": id_, "type": "tool_call"}
        turns = call.transcript
        asking = find_asking_turn(turns)
        conversation = HISTORIES.open(call.run_id, turns, asking)
        conversation.add_turns(turns[asking:] if asking is not None else ())
        message = next(
            (m for m in reversed(conversation.messages) if isinstance(m, AIMessage)),
            AIMessage(""),
        )
        alone = message.model_copy(update={"tool_calls": [wanted]})
        before = [m for m in conversation.messages if m is not message]
        async with self._hosting.open_context(call.run_id) as context:
            thread = _Thread(copy_graph(self._graph), context)
            state = {**conversation.state, "messages": [*before, alone]}
            await thread.update(state, thread.exit_node)
            for earlier in conversation.updates:
                await thread.update(earlier, TOOLS_NODE)
            if conversation.updates:  # go back to the point after the model
                await thread.update({"messages": []}, thread.exit_node)
            update: Values = {}
            async with aclosing(thread.stream(None, after=[TOOLS_NODE])) as events:
                async for kind, event in events:
                    if kind == "updates" and TOOLS_NODE in event:
                        update = event[TOOLS_NODE] or {}
            await thread.read()
        return _encode_result(name, id_, update)


def get_schema(tool: BaseTool) -> dict[str, Json]:
    """Return the JSON Schema of the arguments that a model gives."""
    schema = tool.tool_call_schema  # without injected arguments
    if isinstance(schema, dict):
        return schema
    return schema.model_json_schema() if issubclass(schema, BaseModel) else schema.schema()


def _encode_result(name: str, id_: str, update: Values) -> Json:
    """Return the update of the `tools` node for the journal: a text, or a marked object."""
    messages = cast("list[BaseMessage]", update.get("messages") or [])
    message = next(
        (m for m in messages if isinstance(m, ToolMessage) and m.tool_call_id == id_), None
    )
    if message is None:
        raise NotImplementedError(
            f"Cannot host {name}: it did not return a result for its call"
        )
    if message.status == "error":
        raise ToolReportedError(get_text(message))
    state = dump_state(update)
    if isinstance(message.content, str) and not state and message.artifact is None:
        return message.content
    return {RESULT_KEY: messages_to_dict([message])[0], "update": state}


# ── model calls ──────────────────────────────────────────────────────────────


class _TextHandler(BaseCallbackHandler, _StreamingCallbackHandler[object]):
    """Passes on the text of chat models; a handler of this type makes them stream.

    The models of graphs that run inside of the node are left out: LangGraph marks their calls
    with a namespace.
    """

    run_inline = True
    ignore_chain = True

    def __init__(self, put: Callable[[str], None]) -> None:
        self._put = put
        self._loop, self._thread = asyncio.get_running_loop(), get_ident()
        self._shown: set[UUID] = set()

    def on_chat_model_start(  # type: ignore[explicit-any]
        self,
        serialized: object,
        messages: object,
        *,
        run_id: UUID,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **_: Any,  # noqa: ANN401 - of LangChain
    ) -> None:
        """Note whether the text of this call is part of the reply."""
        del serialized, messages
        is_nested = "langgraph_checkpoint_ns" in (metadata or {})
        if not is_nested and TAG_NOSTREAM not in (tags or ()):
            self._shown.add(run_id)

    def on_llm_new_token(  # type: ignore[explicit-any]
        self,
        token: object,
        *,
        chunk: object = None,
        run_id: UUID,
        **_: Any,  # noqa: ANN401 - of LangChain
    ) -> None:
        """Pass on the text of a chunk; an empty text says that the provider still sends."""
        del token
        text = ""
        if isinstance(chunk, ChatGenerationChunk) and run_id in self._shown:
            text = get_text(chunk.message)
        if get_ident() == self._thread:
            self._put(text)
        else:  # of a model that is not asynchronous: LangChain calls it in a thread
            self._loop.call_soon_threadsafe(self._put, text)

    def tap_output_aiter(self, run_id: UUID, output: AsyncIterator[T]) -> AsyncIterator[T]:
        """Return the output as it is."""
        del run_id
        return output

    def tap_output_iter(self, run_id: UUID, output: Iterator[T]) -> Iterator[T]:
        """Return the output as it is."""
        del run_id
        return output


class _ModelNode:
    """Executes the node `model` of a graph without the graph, which would take longer.

    This is enough for a graph that has no other node to execute in a model call, no state
    beside the messages, and no code that could see its graph: middleware of the node, callbacks
    or tracers.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        node = graph.nodes[MODEL_NODE]
        self._node = node.bound
        own: RunnableConfig = {"metadata": {"langgraph_node": MODEL_NODE}}
        self._config = merge_configs(graph.config, own)
        self._edges = list(graph.builder.branches[MODEL_NODE].values())
        # LangGraph's own channels are `__start__`, `__pregel_tasks` and `branch:to:NODE`.
        keys = {name for name in graph.channels if not name.startswith(("__", "branch:"))}
        # An agent may have a reducer of its own, which then sees the whole history.
        reducer = getattr(graph.channels["messages"], "operator", None)
        parts = _read_parts(graph)
        self._is_alone = (
            set(graph.nodes) <= {START, MODEL_NODE, TOOLS_NODE}
            and keys <= CONTROL_KEYS
            and reducer is add_messages
            and parts.get(WRAPPERS_NAME, "unknown") is None
            and not getattr(parts.get("model"), "callbacks", None)
            and not (node.retry_policy or node.cache_policy or node.timeout)
            and not (graph.retry_policy or graph.cache_policy or graph.step_timeout)
            and not graph.debug
        )

    def is_enough(self) -> bool:
        """Tell whether the graph would do no more than its node does."""
        # A run that is started inside of another graph or chain belongs to the run of that one.
        if not self._is_alone or var_child_runnable_config.get() is not None:
            return False
        return not get_async_callback_manager_for_config(self._config).handlers

    async def run(
        self, conversation: GraphConversation, context: object
    ) -> AsyncGenerator[str | TurnEnd]:
        """Execute the node with all messages: yield the text, then the end."""
        conversation.flush_results()
        configurable = {
            **self._config.get("configurable", {}),
            **_make_configurable(self._graph, context, MODEL_NODE),
        }

        async def execute(put: Callable[[str | TurnEnd], None]) -> None:
            config: RunnableConfig = {
                **self._config,
                "configurable": configurable,
                "callbacks": [_TextHandler(put)],
            }
            var_child_runnable_config.set(config)  # of this task; the chat model finds it there
            with _refuse_interrupts():
                put(await self._execute(conversation, config))

        async with run_in_task(execute) as parts:
            async for part in parts:
                yield part

    async def _execute(
        self, conversation: GraphConversation, config: RunnableConfig
    ) -> TurnEnd:
        values: Values = {"messages": conversation.messages}
        (command,) = await self._node.ainvoke(values, config)  # others are of middleware
        values |= command.update
        values["messages"] = combine_messages(conversation, command.update["messages"])
        following: list[str] = []
        for edge in self._edges:
            found = await edge.path.ainvoke(values, config)
            targets = found if isinstance(found, list) else [found]
            following += [t.node if isinstance(t, Send) else str(t) for t in targets]
        return TurnEnd(values, tuple(name for name in following if name != END))


class _StepModel(StepHostModel):
    """One model call of the agent: a turn of its graph up to the end of the model's part."""

    def __init__(self, graph: Graph, hosting: Hosting) -> None:
        self._graph = graph
        self._hosting = hosting
        self.name = f"{FRAMEWORK}:{graph.name}"
        self.priced_name = _find_model_name(graph)
        hooks = any(n.endswith((".before_agent", ".after_agent")) for n in graph.nodes)
        node = graph.nodes[TOOLS_NODE].bound if TOOLS_NODE in graph.nodes else None
        tools = node.tools_by_name.values() if isinstance(node, ToolNode) else ()
        # A graph without these is in the same state after its tools as at its start.
        self._is_simple = not hooks and not any(tool.return_direct for tool in tools)
        self._node = _ModelNode(graph)
        self._restarting_graph = graph.copy({"checkpointer": _NoCheckpoints()})

    async def _stream_step(self, prompt: Prompt) -> AsyncGenerator[Piece | Finished]:
        if prompt.files:  # not cached: see `HistoryCache.open`
            conversation = GraphConversation()
            conversation.files = prompt.files
            conversation.add_turns(prompt.transcript)
        else:
            conversation = HISTORIES.open(prompt.run_id, prompt.transcript)
        if prompt.runtime_request:
            conversation.add_text(mark_runtime_text(prompt.runtime_request))
        elif not conversation.results and isinstance(conversation.messages[-1], AIMessage):
            conversation.add_text(mark_runtime_text(CONTINUE_NOTE))
        run_turn = self._choose_turn(conversation)
        try:
            async with (
                self._hosting.open_context(prompt.run_id) as context,
                aclosing(run_turn(conversation, context)) as parts,
            ):
                async for part in parts:
                    if isinstance(part, TurnEnd):
                        yield make_finished(self.name, part, conversation.ids)
                    elif part:
                        yield Piece(kind="text", text=part)
        except ModelFailed:
            raise
        except Exception as error:
            if (failure := make_foreign_failure(self.name, error)) is None:
                raise
            raise failure from error

    def _choose_turn(
        self, conversation: GraphConversation
    ) -> Callable[[GraphConversation, object], AsyncGenerator[str | TurnEnd]]:
        """Return the cheapest way to a reply: run the node, restart or continue the graph."""
        has_updates = conversation.updates or any(len(r) > 1 for r in conversation.results)
        if has_updates or not self._is_simple:
            return self._run_turn
        return self._node.run if self._node.is_enough() else self._restart

    async def _restart(
        self, conversation: GraphConversation, context: object
    ) -> AsyncGenerator[str | TurnEnd]:
        """Run the graph from its start with all messages: yield the text, then the end.

        Nothing is stored for this, and the last event has the state and the next nodes.
        """
        conversation.flush_results()
        given: Values = {**conversation.state, "messages": conversation.messages}
        thread = _Thread(self._restarting_graph, context)
        end: TurnEnd | None = None
        async with aclosing(thread.stream_to_end(given)) as source:
            async for kind, event in source:
                if kind == "checkpoints":
                    end = TurnEnd(event["values"], tuple(event["next"]))
                elif kind == "updates":
                    if event.get("__interrupt__"):
                        raise NotImplementedError(INTERRUPT_TEXT)
                elif text := _get_reply_text(event):
                    yield text
        assert end is not None
        yield end

    async def _run_turn(
        self, conversation: GraphConversation, context: object
    ) -> AsyncGenerator[str | TurnEnd]:
        """Continue the graph in the state of the run: yield the text, then the end."""
        thread = _Thread(copy_graph(self._graph), context)
        given = await thread.fill(conversation)
        stops = {"before": [TOOLS_NODE] if thread.has_tools else []}
        async for text in _read_text(thread.stream(given, after=[thread.exit_node], **stops)):
            yield text
        end = await thread.read()
        if any(name.endswith(".after_agent") for name in end.following):
            async for text in _read_text(thread.stream(None)):
                yield text
            end = await thread.read()
        yield end


def _read_parts(graph: Graph) -> Mapping[str, object]:
    """Return the parts of the node `model`, by name: the graph has them in a closure only."""
    function = getattr(graph.nodes[MODEL_NODE].bound, "afunc", None)
    return getclosurevars(function).nonlocals if isfunction(function) else {}


def _find_model_name(graph: Graph) -> str:
    """Return the name of the agent's chat model; "" if it is not known.

    A middleware may choose another model.
    """
    model = _read_parts(graph).get("model")
    names = (getattr(model, key, None) for key in ("model_name", "model", "model_id"))
    return next((name for name in names if isinstance(name, str)), "")


async def _read_events(events: Events) -> Events:
    async with aclosing(events) as source:
        while True:
            with anyio.fail_after(IDLE_TIMEOUT_S):
                item = await anext(source, None)
            if item is None:
                return
            yield item


async def _read_text(events: Events) -> AsyncGenerator[str]:
    """Yield the text of the model node as it is streamed."""
    async with aclosing(_read_events(events)) as source:
        async for kind, event in source:
            if kind == "messages" and (text := _get_reply_text(event)):
                yield text


def _get_reply_text(event: tuple[BaseMessage, Mapping[str, object]]) -> str:
    """Return the text of an event of the model node; empty for other events."""
    message, facts = event
    is_reply = facts.get("langgraph_node") == MODEL_NODE and isinstance(message, AIMessage)
    return get_text(message) if is_reply else ""
