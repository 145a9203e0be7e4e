"""Host any compiled graph of LangGraph: the graph runs its own loop, as a hosted program.

`agents.program` explains hosted programs. The graph runs from its start in every process that
drives the run; its model and tool calls come here through `langchain_calls`, and are journaled,
gated and stopped like all calls. Calls that have ended are answered from the journal.

- **Positions.** A call belongs to a task of the graph: the execution of a node in a superstep.
  A task is named by superstep and node, inside of the tasks of the graphs around it, as in
  `2.research[1]/3.search`; the index tells the tasks of several `Send`s apart. LangGraph
  reports each task to `_TaskNames`, a callback. In a task, a tool call is found by the id that
  the model gave it, and other calls by `ProgramCalls.choose_position`. So the position does not
  depend on which branch is faster.
- **Executed again.** LangGraph executes a node again for a retry policy, and after an
  `interrupt`. The task is the same, and its calls are answered from the journal.
- **`interrupt`** stops the graph. The value is asked as a question of the run, and the graph
  is continued with the answer, from a checkpoint that is only held in memory.
- **Words of people** are added to the prompts; see `_AddedTurns`.
- **Supersteps** are executed in order, which shows most changes of a graph; see `_check_calls`.
"""

import asyncio
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Mapping,
    Sequence,
)
from concurrent.futures import CancelledError, Future
from contextlib import aclosing, asynccontextmanager
from functools import partial
from hashlib import sha256
from operator import is_
from typing import Any, Final, NoReturn, TypeAlias, TypeVar, cast, get_type_hints

import anyio
import anyio.to_thread
import msgspec
from anyio.lowlevel import checkpoint
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    message_chunk_to_message,
)
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel
from langgraph.types import Command, Durability, Interrupt

from midrun.agents.builtin_tools import PauseHere
from midrun.agents.program import ProgramCalls, ProgramOutput, describe_use
from midrun.agents.tool import Tool, tool
from midrun.core.transcript import Turn
from midrun.core.values import Json, Reply, RequestedCall
from midrun.errors import Misconfigured, ModelFailed, NotJson, TooLarge
from midrun.hosts import langchain
from midrun.hosts.function import INTERRUPTED_TEXT
from midrun.hosts.graph_tools import (
    GraphTools,
    decode_result,
    decode_value,
    describe_interrupt,
    encode_value,
    list_arguments,
    make_placeholder,
)
from midrun.hosts.hosted_agent import (
    IDLE_TIMEOUT_S,
    HostedAgent,
    Hosting,
    ProgramModel,
    make_foreign_failure,
    raise_lost_cancellation,
)
from midrun.hosts.langchain import ByReference
from midrun.hosts.langchain_calls import (
    HOST,
    ModelCall,
    ToolCall,
    gather_results,
    install_wrappers,
    make_message_spend,
)
from midrun.hosts.langchain_messages import get_text
from midrun.hosts.langchain_replies import check_complete
from midrun.ports.model import Finished, Piece

T = TypeVar("T")

AnyGraph: TypeAlias = Pregel[Any, Any, Any, Any]  # type: ignore[explicit-any]
Answers: TypeAlias = Command[Any] | None  # type: ignore[explicit-any]

MakeInput: TypeAlias = Callable[[str], object]
"""Makes the input of a graph from the task of the run."""

FRAMEWORK: Final = "langgraph"
MESSAGES_KEY: Final = "messages"
DURABILITY: Final[Durability] = "exit"
"""A checkpoint is only needed when the graph stops, for the answer to an `interrupt`."""

STEP_TAG: Final = "graph:step:"
"""The tag by which LangGraph marks the start of a task for callbacks."""

TASK_START_TURNS: Final = 10
"""Turns of the event loop in which LangGraph starts all tasks of a superstep."""

THREADS_MAX: Final = 1000
"""Blocking nodes that one run may execute at the same time. Most of them wait for a call."""


def host_agent(agent: object, hosting: Hosting) -> HostedAgent:
    """Return an agent of `create_agent`, or any other graph, as an `Agent`."""
    if langchain.is_agent_loop(agent):
        return langchain.host_agent(agent, hosting)
    return host_graph(agent, hosting)


def host_graph(
    graph: object, hosting: Hosting, make_input: MakeInput | None = None
) -> HostedAgent:
    """Return a compiled graph as an `Agent`; see `midrun.hosts.host_graph`."""
    if not isinstance(graph, Pregel):
        problem = (
            f"Cannot host {type(graph).__name__} of LangGraph: only compiled graphs are "
            "hosted. Pass graph.compile()."
        )
        raise Misconfigured("host", problem)
    make_input = make_input or _choose_input(graph)
    install_wrappers()
    own_name = graph.name if graph.name != "LangGraph" else None
    name = hosting.choose_name(own_name)

    async def run_program(calls: ProgramCalls, task: str) -> ProgramOutput:
        async with hosting.open_context(calls.run_id) as context:
            host = _GraphHost(calls, hosting)
            HOST.set(host)
            try:
                return await host.run(graph, make_input(task), context)
            finally:
                await host.close()

    return HostedAgent(
        name,
        framework=FRAMEWORK,
        model=ProgramModel(f"{FRAMEWORK}:{graph.name}"),
        tools=_list_tools(graph, hosting),
        hosting=hosting,
        program=run_program,
    )


def _list_tools(graph: AnyGraph, hosting: Hosting) -> list[Tool]:
    """Return the tools that are declared, and those of the `ToolNode`s, without functions."""
    found = dict.fromkeys(hosting.declared, "")
    for part in (graph, *(subgraph for _, subgraph in graph.get_subgraphs(recurse=True))):
        for node in getattr(part, "nodes", {}).values():
            if isinstance(node.bound, ToolNode):
                found |= {t.name: t.description for t in node.bound.tools_by_name.values()}
    return [make_placeholder(hosting, name, text) for name, text in found.items()]


def _choose_input(graph: AnyGraph) -> MakeInput:
    """Return the function that makes the input: a message, or the only key with a text."""
    if not isinstance(graph, CompiledStateGraph):  # of `entrypoint`
        return lambda task: task
    schema = graph.builder.input_schema
    hints = get_type_hints(schema)
    if MESSAGES_KEY in hints:
        return lambda task: {MESSAGES_KEY: [HumanMessage(task)]}
    required = getattr(schema, "__required_keys__", None) or hints
    texts = [key for key in hints if hints[key] is str and key in required]
    if len(texts) != 1:
        problem = (
            f"Cannot choose the input of graph {graph.name}: it has no key {MESSAGES_KEY!r}, "
            f"and {len(texts)} keys that require a text. Use midrun.hosts.host_graph with "
            "make_input=lambda task: {…}."
        )
        raise Misconfigured("host", problem)
    return lambda task: {texts[0]: task}


# ── the graph ────────────────────────────────────────────────────────────────


class _Task:
    """A task of the graph: an execution of a node in a superstep, perhaps more than once."""

    __slots__ = ("name", "node", "step")

    def __init__(self, name: str, node: str, step: int) -> None:
        self.name = name
        self.node = node
        self.step = step  # of the outermost graph


NO_TASK: Final = _Task("graph", "", 0)
"""Code that runs outside of the tasks of a graph."""


class _TaskNames(BaseCallbackHandler):
    """Names each task when LangGraph starts it; the calls of the task find it by namespace.

    The namespace has an id for each task, which differs in every run of the graph.
    """

    run_inline = True
    raise_error = True
    # LangChain would prepare a text of the whole prompt for each call, for this handler.
    ignore_llm = True
    ignore_chat_model = True

    def __init__(self, on_start: Callable[[_Task], None]) -> None:
        self._on_start = on_start
        self._tasks: dict[str, _Task] = {}

    def on_chain_start(  # type: ignore[explicit-any]
        self,
        serialized: object,
        inputs: object,
        *,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **_: Any,  # noqa: ANN401 - of LangChain
    ) -> None:
        """Note the start of a task; other parts of a graph do not have its tag."""
        del serialized, inputs
        if not any(tag.startswith(STEP_TAG) for tag in tags or ()):
            return
        facts = metadata or {}
        namespace = facts.get("langgraph_checkpoint_ns", "")
        path = facts.get("langgraph_path") or ()
        step, node = facts.get("langgraph_step", 0), str(facts.get("langgraph_node", ""))
        # A task of a `Send` has its index in the path; one of the functional API its number.
        index = next((part for part in path[1:3] if type(part) is int), None)
        # LangGraph's own ids of tasks are random. Superstep, node and index are the same in
        # every process, so the journal can be compared with them.
        around, name = self._find_around(namespace)
        label = f"{step}.{node.replace('/', '_')}" + ("" if index is None else f"[{index}]")
        task = _Task(f"{name}/{label}" if name else label, node, around.step or step)
        self._tasks[namespace] = task
        self._on_start(task)

    def _find_around(self, namespace: str) -> tuple[_Task, str]:
        """Return the task around a task, and its name with the number of the subgraph."""
        parts = namespace.split("|")[:-1]
        numbers: list[str] = []  # a node that calls a graph a second time: `node:id|1`
        while parts:
            found = self._tasks.get("|".join(parts))
            if found is not None:
                return found, "/".join([found.name, *reversed(numbers)])
            numbers.append(parts.pop().partition(":")[0])
        return NO_TASK, "/".join(reversed(numbers))

    def find(self, config: RunnableConfig) -> _Task:
        """Return the task of the code that has this configuration."""
        namespace = (config.get("metadata") or {}).get("langgraph_checkpoint_ns", "")
        return self._tasks.get(namespace, NO_TASK)


@tool(name="interrupt", read_only=True)
async def _ask(question: str, data: dict[str, Json] | None = None) -> NoReturn:
    """Ask the question of an `interrupt`."""
    raise PauseHere(question, data or {})


class _GraphHost:
    """Runs a graph once, and makes its calls; implements `CallHost`."""

    def __init__(self, calls: ProgramCalls, hosting: Hosting) -> None:
        self._calls = calls
        self._tools = GraphTools(hosting)
        self._tasks = _TaskNames(self._start_task)
        self._added = _AddedTurns()
        self._threads = _Threads()
        self._step = 0  # the superstep of the outermost graph
        self._started: set[str] = set()  # names of its tasks in this superstep
        self._names: set[str] = set()  # of all tasks so far
        self._digests = _Digests()

    async def run(self, graph: AnyGraph, given: object, context: object) -> ProgramOutput:
        """Run the graph to its end; ask the questions of its interrupts."""
        # A checkpointer of the user is not used: the journal is the history.
        saver = InMemorySaver(serde=cast("SerializerProtocol", ByReference()))
        graph = graph.copy({"checkpointer": saver})
        config: RunnableConfig = {
            "configurable": {"thread_id": self._calls.run_id},
            "callbacks": [self._tasks],
        }
        rounds = 0
        while True:
            output = await graph.ainvoke(
                given,
                config,
                context=context,
                durability=DURABILITY,
            )
            # The graph has stopped: at its end, or at an `interrupt`. With an answer it
            # continues from the checkpoint in memory, so that nodes of earlier supersteps are
            # not executed again.
            snapshot = await graph.aget_state(config)
            if not snapshot.next:
                break
            rounds += 1
            interrupts = [each for task in snapshot.tasks for each in task.interrupts]
            given = await self._ask_interrupts(interrupts, snapshot.next, rounds)
        for position in self._calls.get_unanswered():
            self._calls.stop_departed(position, "ends without it")
            break
        return _make_output(output)

    async def _ask_interrupts(  # type: ignore[explicit-any]
        self, interrupts: Sequence[Interrupt], following: Sequence[str], rounds: int
    ) -> Answers:
        """Ask all questions of a superstep at once; return the input with their answers."""
        if not interrupts:  # `interrupt_before` or `interrupt_after`, declared at `compile`
            question = f"Continue with {', '.join(following)}?"
            await self._ask(f"ask/{rounds}", question, {})
            return None
        answers = await gather_results(
            [
                partial(self._ask, f"ask/{rounds}.{number}", *describe_interrupt(each))
                for number, each in enumerate(interrupts, 1)
            ]
        )
        pairs = zip(interrupts, answers, strict=True)
        return Command(resume={each.id: answer for each, answer in pairs})

    async def _ask(self, branch: str, question: str, data: dict[str, Json]) -> Json:
        args: dict[str, Json] = {"question": question}
        if data:
            args["data"] = data
        number = 1
        while True:
            outcome = await self._calls.call_tool(f"{branch}/{number}", _ask, args)
            if not outcome.problem:
                return outcome.result
            number += 1  # a redirect has closed the question, but the graph needs an answer

    async def close(self) -> None:
        """Stop the calls of threads, and wait for the threads: nothing can stop those."""
        self._threads.close()
        with anyio.CancelScope(shield=True):
            await self._threads.wait_ended()

    # ── tasks ────────────────────────────────────────────────────────────────

    def _start_task(self, task: _Task) -> None:
        # A retry policy, or the continuation after an `interrupt`, executes the node from its
        # start. It makes its calls once more, and each is answered from the journal: forget
        # that it had them.
        if task.name in self._names:
            self._calls.rewind(task.name)  # it is executed again
        self._names.add(task.name)
        if task.step > self._step:  # all tasks of the supersteps before have ended
            self._step = task.step
            self._started.clear()
            self._check_calls(
                lambda step, _: step < task.step,
                f"goes on with node {task.node} in step {task.step}",
            )
        self._started.add(task.name.partition("/")[0])

    def _check_calls(self, is_passed: Callable[[int, str], bool], action: str) -> None:
        """Stop a graph that does something else than a journaled call that it has passed.

        `is_passed` gets the superstep and the name of the outermost task of the call.
        """
        for position in self._calls.get_unanswered():
            label = position.partition("/")[0]
            step = label.partition(".")[0]
            if step.isdecimal() and is_passed(int(step), label):
                self._calls.stop_departed(position, action)
                return

    async def _check_new_call(self, task: _Task, position: str, action: str) -> None:
        """Stop a graph that makes a new call in place of a journaled one.

        The journal must not have a call of a later superstep; nor one of a task of this
        superstep that was not started: all its tasks are started together.
        """
        unanswered = self._calls.get_unanswered()
        if not unanswered or not task.step or position in unanswered:
            return
        # LangGraph starts the tasks of a superstep one after the other. A task that is not
        # started yet must not be taken for one that the graph does not have any more.
        for _ in range(TASK_START_TURNS):
            await checkpoint()
        starts_all = "max_concurrency" not in ensure_config()
        self._check_calls(
            lambda step, label: (
                step > task.step
                or (step == task.step and starts_all and label not in self._started)
            ),
            f"{action} in step {task.step}",
        )

    def _find_task(self) -> _Task:
        return self._tasks.find(ensure_config())

    # ── calls ────────────────────────────────────────────────────────────────

    async def call_model(self, call: ModelCall) -> AIMessage:
        """Make a model call, or return its reply from the journal."""
        task = self._find_task()
        facts: dict[str, Json] = {
            "node": task.node,
            "prompt": self._digests.compute(call.messages),
        }
        use = RequestedCall(tool="", kind="model", args=facts)
        position = self._calls.choose_position(task.name, use)
        await self._check_new_call(task, position, f"calls a model in node {task.node}")
        prompt = self._added.insert(call.messages)
        outcome = await self._calls.call_model(
            position, partial(_open_stream, call, self._added, prompt), facts
        )
        message = cast("AIMessage", decode_value(outcome.reply.opaque))
        self._added.note(message, outcome.added)
        return message

    async def call_tool(self, call: ToolCall) -> object:
        """Make a tool call, or return its result from the journal."""
        task = self._find_task()
        args = list_arguments(call)
        use = RequestedCall(tool=call.tool.name, args=args)
        if call.tool_call_id:
            position = f"{task.name}/call:{call.tool_call_id}"
        else:
            position = self._calls.choose_position(task.name, use)
        await self._check_new_call(task, position, f"calls {describe_use(use)}")
        made = self._tools.make_tool(call)
        return decode_result(call, await self._calls.call_tool(position, made, args))

    # ── blocking nodes ───────────────────────────────────────────────────────

    def run_blocking(self, make: Callable[[], Coroutine[None, None, T]], name: str) -> T:
        """Make a call for a blocking node, whose thread waits for it."""
        return self._threads.run_call(make, name)

    async def run_thread(self, function: Callable[[], T]) -> T:
        """Run a blocking node in a thread."""
        return await self._threads.run(function)


class _Threads:
    """The threads in which the blocking nodes of a graph run, and the calls that they make."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._limiter = anyio.CapacityLimiter(THREADS_MAX)
        self._lock = threading.Lock()
        self._running = 0
        self._is_closed = False
        self._ended = anyio.Event()
        self._calls: set[Future[Any]] = set()  # type: ignore[explicit-any]

    async def run(self, function: Callable[[], T]) -> T:
        """Run `function` in a thread, with the context of the caller."""

        def run_counted() -> T:
            with self._lock:
                if self._is_closed:
                    raise RuntimeError("Cannot start this node: the graph is being stopped.")
                self._running += 1
            try:
                return function()
            finally:
                self._end_thread()

        return await anyio.to_thread.run_sync(
            run_counted, abandon_on_cancel=True, limiter=self._limiter
        )

    def _end_thread(self) -> None:
        with self._lock:
            self._running -= 1
            is_last = self._is_closed and not self._running
        if is_last:
            self._loop.call_soon_threadsafe(self._ended.set)

    def run_call(self, make: Callable[[], Coroutine[None, None, T]], name: str) -> T:
        """Make a call in the event loop; the current thread waits for its result."""
        if threading.get_ident() == self._loop_thread:
            raise NotImplementedError(
                f"Cannot make the blocking call {name} in an async node: it would stop the "
                "event loop. Await the async method, such as ainvoke."
            )
        with self._lock:
            if self._is_closed:
                raise CancelledError
            # The task that it starts has a copy of the context of this thread.
            future = asyncio.run_coroutine_threadsafe(make(), self._loop)
            self._calls.add(future)
        try:
            return future.result()
        finally:
            self._calls.discard(future)

    def close(self) -> None:
        """Cancel the calls, and let no more thread start."""
        with self._lock:
            self._is_closed = True
            if not self._running:
                self._ended.set()
            calls = list(self._calls)
        for future in calls:
            future.cancel()

    async def wait_ended(self) -> None:
        """Wait until no thread runs code of the graph."""
        await self._ended.wait()


# ── model calls ──────────────────────────────────────────────────────────────


class _AddedTurns:
    """Texts of people, and unfinished replies, that the prompts of the graph do not have.

    The turns that were added to a call stand before its reply. So they are inserted again in
    each later prompt that has that reply, at the same place. A prompt without it, of another
    node for example, gets the texts of people at its end, by `ProgramCalls`: its branch has not
    read them.
    """

    def __init__(self) -> None:
        self._before: dict[str, tuple[Turn, ...]] = {}  # id of a reply → the turns before it

    def note(self, reply: AIMessage, added: tuple[Turn, ...]) -> None:
        """Note the turns that were added to the call with this reply."""
        if added and reply.id:
            self._before[reply.id] = added

    def insert(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Return the prompt with the turns of earlier calls."""
        if not self._before:
            return list(messages)
        prompt: list[BaseMessage] = []
        for message in messages:
            if turns := self._before.get(message.id or ""):
                self.append(prompt, turns)
            prompt.append(message)
        return prompt

    def append(self, prompt: list[BaseMessage], turns: Sequence[Turn]) -> None:
        """Add turns to a prompt, except the texts that it has already."""
        texts = {get_text(m) for m in prompt if isinstance(m, HumanMessage)}
        for turn in turns:
            if turn.role == "assistant":
                if turn.text:
                    prompt.append(AIMessage(turn.text))
                    if turn.interrupted:
                        prompt.append(HumanMessage(INTERRUPTED_TEXT))
            elif turn.text not in texts:
                prompt.append(HumanMessage(turn.text))


class _Digests:
    """Computes short hashes of prompts; remembers those of messages, which come again."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[BaseMessage, bytes]] = {}
        self._last: Sequence[BaseMessage] = ()
        self._hash = sha256()  # of `_last`: most prompts begin with the one before

    def compute(self, messages: Sequence[BaseMessage]) -> str:
        """Return the hash of a prompt, without the ids of its messages."""
        count = len(self._last)
        is_longer = len(messages) >= count and all(map(is_, self._last, messages))
        hash_ = self._hash.copy() if is_longer else sha256()
        added = messages[count:] if is_longer else messages
        hash_.update(b"".join(map(self._digest, added)))
        self._last, self._hash = list(messages), hash_
        return hash_.hexdigest()[:16]

    def _digest(self, message: BaseMessage) -> bytes:
        known = self._known.get(id(message))
        if known is not None:  # the message is held, so its id is not used again
            return known[1]
        part = (message.type, message.content, getattr(message, "tool_calls", None))
        digest = sha256(msgspec.json.encode(part, enc_hook=repr)).digest()
        self._known[id(message)] = (message, digest)
        return digest


@asynccontextmanager
async def _open_stream(
    call: ModelCall, turns: _AddedTurns, prompt: list[BaseMessage], added: Sequence[Turn]
) -> AsyncGenerator[AsyncIterator[Piece | Finished]]:
    whole = list(prompt)
    turns.append(whole, added)
    async with aclosing(_stream_reply(call, whole)) as stream:
        yield stream


async def _stream_reply(
    call: ModelCall, prompt: list[BaseMessage]
) -> AsyncGenerator[Piece | Finished]:
    """Yield the pieces of a reply, and at last the whole."""
    HOST.set(None)  # the original methods of the model may call one another
    name = f"{FRAMEWORK}:{type(call.model).__name__}"
    chunks: list[BaseMessage] = []
    try:
        async with aclosing(call.stream(prompt)) as source:
            while True:
                with anyio.fail_after(IDLE_TIMEOUT_S):
                    chunk = await anext(source, None)
                raise_lost_cancellation()
                if chunk is None:
                    break
                chunks.append(chunk)
                if text := get_text(chunk):
                    yield Piece(kind="text", text=text)
    except Exception as error:
        if (failure := make_foreign_failure(name, error)) is None:
            raise
        raise failure from error
    if not chunks:
        raise ModelFailed(name, "broken_stream", "it ended without a reply", transient=True)
    yield _make_finished(name, _merge_chunks(chunks))


def _merge_chunks(chunks: Sequence[BaseMessage]) -> AIMessage:
    first, *others = chunks
    if not isinstance(first, AIMessageChunk):  # the model does not stream
        return cast("AIMessage", first)
    whole = first + others if others else first
    return cast("AIMessage", message_chunk_to_message(cast("AIMessageChunk", whole)))


def _make_finished(name: str, reply: AIMessage) -> Finished:
    check_complete(name, reply)
    usage = reply.usage_metadata
    return Finished(
        reply=Reply(
            text=get_text(reply),
            opaque=encode_value(reply, "reply"),
            prompt_tokens=usage["input_tokens"] if usage else 0,
        ),
        spent=make_message_spend(reply),
    )


# ── output ───────────────────────────────────────────────────────────────────


def _make_output(output: object) -> ProgramOutput:
    """Return the output: the text of the last message, and the rest of the state as data."""
    if isinstance(output, str):
        return ProgramOutput(text=output)
    text: str | None = None
    rest: object = output
    if isinstance(output, Mapping):
        rest = {k: v for k, v in output.items() if k not in {MESSAGES_KEY, "__interrupt__"}}
        messages = output.get(MESSAGES_KEY)
        if isinstance(messages, list) and messages and isinstance(messages[-1], BaseMessage):
            text = get_text(messages[-1])
    try:
        value = encode_value(rest, "output") if rest else None
    except (NotJson, TooLarge) as error:
        problem = (
            f"Cannot store the output of the graph: {error}. Keep JSON in its output, or "
            "choose it with StateGraph(output_schema=…)."
        )
        raise NotImplementedError(problem) from error
    if text is None:
        text = msgspec.json.encode(value).decode()
        if isinstance(value, dict) and len(value) == 1:
            (only,) = value.values()
            text = only if isinstance(only, str) else text
    return ProgramOutput(text=text, value=value)
