"""Host an agent of Strands Agents: one turn of its event loop for each call.

Each call works with a copy of the agent, which has its own messages, state, metrics and cancel
signal. So concurrent runs do not mix, and no object of a run lives in a process.

- **Model call**: the event loop runs from the transcript, with all hooks, middleware and
  plugins, and stops at its own checkpoint after the model. If the reply is a call of the
  structured output tool only, the loop executes it in the same step, because it validates the
  output. Where Strands would ask the model again, the turn limit stops it: the reason is
  journaled as a refused call, and the next step asks.
- **Tool call**: the messages end in that one call, so the event loop begins with its tools. The
  turn limit stops it before the model.

`agent.state` is stored with the replies, and its changes with the results of tools. An agent
that is a tool of another is hosted, too: each of its calls is a child run.
"""

import copy
import dataclasses
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, nullcontext
from inspect import isasyncgenfunction, iscoroutinefunction, signature
from typing import Any, Final, TypeAlias, cast

import anyio
import msgspec
from msgspec.structs import replace
from pydantic import BaseModel, ValidationError
from strands import Agent
from strands.agent import AgentResult, NullConversationManager
from strands.agent._agent_as_tool import _AgentAsTool
from strands.agent._agent_delegation import AgentDelegation
from strands.agent.state import AgentState
from strands.handlers import PrintingCallbackHandler, null_callback_handler
from strands.hooks import (
    AfterInvocationEvent,
    AfterToolCallEvent,
    AfterToolsEvent,
    BeforeToolCallEvent,
    BeforeToolsEvent,
    HookRegistry,
)
from strands.interrupt import Interrupt
from strands.middleware import ExecuteToolStage, InvokeModelStage
from strands.middleware.stages import InvokeModelContext
from strands.telemetry.metrics import EventLoopMetrics
from strands.tools.registry import ToolRegistry
from strands.tools.structured_output.structured_output_tool import StructuredOutputTool
from strands.tools.tools import PythonAgentTool
from strands.types.content import Message
from strands.types.exceptions import (
    ContextWindowOverflowException,
    EventLoopException,
    MaxTokensReachedException,
    ModelThrottledException,
)
from strands.types.session import encode_bytes_values
from strands.types.tools import AgentTool

from midrun.agents.signature import Function, SchemaArguments
from midrun.agents.tool import Tool
from midrun.agents.tool_context import Call
from midrun.codec.safe_repr import safe_repr, safe_str
from midrun.codec.strict_json import normalize_json, parse_json
from midrun.core.transcript import Turn
from midrun.core.values import Json, Reply, RequestedCall
from midrun.errors import Misconfigured, ModelFailed, NotJson, TooLarge
from midrun.hosts.hosted_agent import (
    OUTPUT_NAME,
    OUTPUT_WITH_CALLS_TEXT,
    HostedAgent,
    Hosting,
    QuestionAnswers,
    StepHostModel,
    ToolReportedError,
    find_asking_turn,
    make_foreign_failure,
    stream_in_task,
)
from midrun.hosts.strands_messages import RESULT_KEY, Blocks, State, StrandsConversation
from midrun.models.prices import make_bedrock_spend
from midrun.models.prompt_texts import (
    CONTINUE_NOTE,
    format_result,
    mark_runtime_text,
)
from midrun.ports.model import Finished, Piece, Prompt

Events: TypeAlias = AsyncGenerator[dict[str, Any]]  # type: ignore[explicit-any]  # of Strands

FRAMEWORK: Final = "strands"
DEFAULT_NAME: Final = "Strands Agents"
"""The name of an agent that was given none."""

FORCED_OUTPUT_KEY: Final = "forced_output"
"""Set in the stored form of a reply after which Strands forces the structured output."""

ONE_TURN: Final[Mapping[str, int]] = {"turns": 1}

LAST_ORDER: Final = float("inf")
"""The order of a hook that runs after all others."""

TOOL_EVENTS: Final = (
    BeforeToolCallEvent,
    AfterToolCallEvent,
    BeforeToolsEvent,
    AfterToolsEvent,
)

INTERRUPT_TEXT: Final = (
    "Cannot host an interrupt before or around a model call: the run would wait inside of it. "
    "Interrupt a tool call, or declare the tool with traits(approve=True)."
)
SESSION_TEXT: Final = (
    "Cannot host a session manager: the journal is the history. Remove session_manager=…; a "
    "run is resumed by its id."
)
CONTEXT_MANAGER_TEXT: Final = (
    "Cannot host a context manager: it would change a history that the journal keeps. Remove "
    "context_manager=… and pass window=… to host."
)
MEMORY_TEXT: Final = (
    "Cannot host a memory manager: it reads the messages of a whole invocation. Remove "
    "memory_manager=… and give the agent a tool for its memory."
)
BACKGROUND_TEXT: Final = (
    "Cannot host background tasks: their calls would not be journaled. Remove "
    "background_tasks=…; Midrun makes the calls of one reply at the same time."
)
STATEFUL_TEXT: Final = (
    "Cannot host a stateful model: the provider keeps the history, so the journal could not be "
    "resumed. Use a model that is sent all messages."
)
NO_OUTPUT_TEXT: Final = "the model gave no structured output, also when it was asked for it"


def host_agent(agent: object, hosting: Hosting) -> HostedAgent:
    """Return an agent of Strands as an `Agent`; see `midrun.host`."""
    if not isinstance(agent, Agent):
        problem = (
            f"Cannot host {type(agent).__name__} of strands: only agents are hosted. Pass a "
            "strands.Agent. For a graph or a swarm, host a function that calls its agents."
        )
        raise Misconfigured("host", problem)
    hosting.check_tool_names(_list_tool_names(agent))
    return _host(agent, hosting, hosting.choose_name(_get_own_name(agent)))


def _host(agent: Agent, hosting: Hosting, name: str) -> HostedAgent:
    if problem := _find_unsupported(agent):
        raise Misconfigured(f"host {name}", problem)
    box = _ToolBox(agent, hosting, name)
    return HostedAgent(
        name,
        framework=FRAMEWORK,
        model=_StepModel(agent, hosting, box),
        tools=list(box.tools.values()),
        hosting=hosting,
    )


def _get_own_name(agent: Agent) -> str | None:
    return agent.name if agent.name != DEFAULT_NAME else None


def _list_tool_names(agent: Agent) -> list[str]:
    """Return the names of the tools of the agent and of the agents among them."""
    names = []
    for name, tool in agent.tool_registry.registry.items():
        names.append(name)
        if isinstance(tool, _AgentAsTool):
            names += _list_tool_names(tool.agent)
    return names


def _find_unsupported(agent: Agent) -> str:
    """Return the reason why the agent cannot be hosted, with the remedy; "" if it can."""
    private = vars(agent)  # some of the parts have no public property
    unsupported = {
        SESSION_TEXT: private["_session_manager"],
        CONTEXT_MANAGER_TEXT: agent.context_manager,
        MEMORY_TEXT: agent.memory_manager,
        BACKGROUND_TEXT: private["_background_tasks"],
        STATEFUL_TEXT: agent.model.stateful or None,
    }
    return next((text for text, part in unsupported.items() if part is not None), "")


# ── the copy of the agent for one call ───────────────────────────────────────


def _copy_agent(agent: Agent, conversation: StrandsConversation) -> Agent:
    """Return the agent for one call, with everything of its own that a call changes."""
    made = copy.copy(agent)
    made.messages = conversation.messages
    made.state = AgentState(conversation.state)
    made.event_loop_metrics = EventLoopMetrics()
    made.tool_caller = Agent.ToolCaller(made)
    # The history is the journal's, and the driver makes the retries: it journals each attempt.
    made.conversation_manager = NullConversationManager()
    if isinstance(agent.callback_handler, PrintingCallbackHandler):
        made.callback_handler = null_callback_handler
    tools = ToolRegistry()  # without tool providers, which its clean-up would close
    tools.registry = dict(agent.tool_registry.registry)
    tools.dynamic_tools = dict(agent.tool_registry.dynamic_tools)
    made.tool_registry = tools
    _copy_private_parts(agent, made)
    return made


def _copy_private_parts(agent: Agent, made: Agent) -> None:
    """Replace the parts of a copy for which Strands has no public setter."""
    replaced = (agent.conversation_manager, agent._retry_strategy)  # noqa: SLF001 - see above
    hooks = HookRegistry()
    hooks._registered_callbacks = {  # noqa: SLF001
        kind: [e for e in entries if getattr(e.callback, "__self__", None) not in replaced]
        for kind, entries in agent.hooks._registered_callbacks.items()  # noqa: SLF001
    }
    middleware = copy.copy(agent._middleware_registry)  # noqa: SLF001
    middleware._handlers = {k: list(v) for k, v in middleware._handlers.items()}  # noqa: SLF001
    concurrency = agent._concurrency  # noqa: SLF001
    vars(made).update(
        hooks=hooks,
        trace_span=None,
        _middleware_registry=middleware,
        _concurrency=type(concurrency)(concurrency.mode),
        _interrupt_state=type(agent._interrupt_state)(),  # noqa: SLF001
        _cancel_signal=threading.Event(),
        _checkpoint=None,
        _model_state={},
    )


class _Step:
    """One call of the agent: its copy, and what the event loop ended with."""

    def __init__(
        self,
        agent: Agent,
        conversation: StrandsConversation,
        context: object,
        answers: QuestionAnswers | None = None,
    ) -> None:
        self.agent = _copy_agent(agent, conversation)
        known = {
            id_: Interrupt(id_, "", response=v)
            for id_, v in (answers.by_key if answers else {}).items()
        }
        self.agent._interrupt_state.interrupts.update(known)  # noqa: SLF001 - no public way
        self._invocation_state = _make_invocation_state(context)
        self.resume_text = ""
        self.stop_after_model(is_wanted=False)
        self.agent.add_hook(self._take_resume, AfterInvocationEvent, order=LAST_ORDER)
        self.agent.add_hook(_prevent_retry, AfterToolCallEvent, order=LAST_ORDER)

    def _take_resume(self, event: AfterInvocationEvent) -> None:
        """Take the input with which a hook wants to continue: the next step does it."""
        if event.resume is not None and not isinstance(event.resume, str):
            raise NotImplementedError(
                "Cannot host AfterInvocationEvent.resume with content blocks. Set a text."
            )
        self.resume_text, event.resume = event.resume or "", None

    def stop_after_model(self, *, is_wanted: bool) -> None:
        """Let the event loop stop at its checkpoint between the model and the tools."""
        vars(self.agent).update(_checkpointing=is_wanted)

    async def stream(self) -> Events:
        """Run one turn of the event loop, and yield its events. The last one is the result.

        A tool call that is interrupted has a result with the stop reason `interrupt`.
        """
        events = self.agent.stream_async(
            None,
            invocation_state=self._invocation_state,
            limits=cast("Any", ONE_TURN),  # type: ignore[explicit-any]
        )
        async for event in events:
            yield event


def _prevent_retry(event: AfterToolCallEvent) -> None:
    """Prevent a second execution of the tool, which would be part of one journaled call."""
    event.retry = False


def _make_invocation_state(context: object) -> dict[str, Any]:  # type: ignore[explicit-any]
    if context is None:
        return {}
    if not isinstance(context, Mapping):
        problem = (
            "context must return a dict for an agent of Strands: it is the invocation_state. "
            f"Got {safe_repr(context, 80)}."
        )
        raise Misconfigured("host", problem)
    return dict(context)


# ── tools ────────────────────────────────────────────────────────────────────


class _ToolBox:
    """The tools of the agent. `delegates` are agents whose answer is the answer of the run."""

    def __init__(self, agent: Agent, hosting: Hosting, agent_name: str) -> None:
        self._agent = agent
        self._hosting = hosting
        self._agent_name = agent_name
        self._has_hooks = _has_tool_hooks(agent)
        found = agent.tool_registry.registry
        self.tools = {name: self._make_tool(name, tool) for name, tool in found.items()}
        self.delegates = frozenset(
            n for n, t in found.items() if isinstance(t, _AgentAsTool) and t.delegate
        )

    def _make_tool(self, name: str, tool: AgentTool) -> Tool:
        if isinstance(tool, _AgentAsTool):
            return self._make_child_tool(name, tool)
        description, function = tool.tool_spec["description"], _get_function(tool)
        schema = cast("dict[str, Json]", tool.tool_spec["inputSchema"])
        schema = cast("dict[str, Json]", schema.get("json", schema))
        is_blocking = function is not None and not (
            iscoroutinefunction(function) or isasyncgenfunction(function)
        )
        properties = cast("dict[str, Json]", schema.get("properties") or {})
        # Injected arguments (agent, tool_context) are not in the schema: it needs the agent.
        if is_blocking and function and set(signature(function).parameters) == set(properties):
            # The tool itself can be imported; the function under its decorator cannot.
            made = self._hosting.make_process_tool(name, cast("Function", tool), description)
            if made is not None and not self._has_hooks:
                return made

        async def call_agent(call: Call, /, **arguments: object) -> Json:
            # Strands runs a blocking function in a thread, which nothing can stop.
            with anyio.CancelScope(shield=True) if is_blocking else nullcontext():
                return await self._call_tool(name, arguments, call)

        made = self._hosting.make_tool(
            name, call_agent, description=description, arguments=SchemaArguments(schema)
        )
        if is_blocking:
            vars(made).update(traits=replace(made.traits, unstoppable=True))
        return made

    def _make_child_tool(self, name: str, tool: _AgentAsTool) -> Tool:
        """Return the tool for an agent of the agent: each call is a child run."""
        if tool._preserve_context:  # noqa: SLF001 - no public property
            problem = (
                f"Cannot host preserve_context of {name}: no object of a run lives in a "
                "process. Use as_tool() without it, and pass the context in its input."
            )
            raise Misconfigured("host", problem)
        names = _list_tool_names(tool.agent)
        child = _host(tool.agent, self._hosting.narrow(names), f"{self._agent_name}.{name}")
        return self._hosting.make_child_tool(
            name, child, tool.tool_spec["description"], "input"
        )

    async def _call_tool(self, name: str, arguments: dict[str, object], call: Call) -> Json:
        last = find_asking_turn(call.transcript)
        turn = None if last is None else call.transcript[last]
        conversation = StrandsConversation(self._agent, call.transcript[:last])
        if turn is not None and isinstance(turn.opaque, dict) and "state" in turn.opaque:
            conversation.state = cast("State", copy.deepcopy(turn.opaque["state"]))
        conversation.apply_changes(turn.uses if turn else ())
        id_ = call.tool_call_id or call.key
        conversation.add_call(turn, name, arguments, id_)
        async with self._hosting.open_context(call.run_id) as context:
            before, result = copy.deepcopy(conversation.state), None
            answers = QuestionAnswers.read(call)
            conversation.change_state(answers.carried)
            step = _Step(self._agent, conversation, context, answers)
            async with aclosing(step.stream()) as events:
                async for event in events:
                    result = event.get("result", result)
        assert isinstance(result, AgentResult)  # the last event
        if result.stop_reason == "interrupt":
            first = next(each for each in result.interrupts or () if each.response is None)
            changes = _find_changes(before, step.agent.state.get())
            answers.ask(first.id, *_describe_interrupt(first), carried=changes)
        return _encode_result(step.agent, id_, before, result)


def _describe_interrupt(interrupt: Interrupt) -> tuple[str, dict[str, Json]]:
    """Return the question of an interrupt, and the data that is shown with it."""
    reason = normalize_json(interrupt.reason, "reason")
    data: dict[str, Json] = {"interrupt": interrupt.name}
    if isinstance(reason, str) and reason:
        return reason, data
    if isinstance(reason, dict):
        question = reason.get("question") or reason.get("message")
        if isinstance(question, str):
            return question, {**reason, **data}
    return f"The agent asks: {interrupt.name}.", {"reason": reason, **data}


def _get_function(tool: AgentTool) -> Function | None:
    """Return the Python function of a tool; None for tools of another kind."""
    if isinstance(tool, PythonAgentTool):
        return tool._tool_func  # noqa: SLF001 - no public property
    return cast("Function | None", getattr(tool, "__wrapped__", None))


def _has_tool_hooks(agent: Agent) -> bool:
    """Tell whether hooks or middleware of the user must see each tool call."""
    callbacks = [
        entry.callback
        for kind in TOOL_EVENTS
        for entry in agent.hooks._registered_callbacks.get(kind, ())  # noqa: SLF001 - no list
    ]
    wrappers = agent._middleware_registry._handlers.get(ExecuteToolStage, ())  # noqa: SLF001
    callbacks += [tagged.handler for tagged in wrappers]
    return not all(isinstance(getattr(c, "__self__", None), AgentDelegation) for c in callbacks)


def _encode_result(agent: Agent, id_: str, before: State, result: AgentResult) -> Json:
    """Return the result of a tool for the journal: a text, or a marked object.

    Raises:
        ToolReportedError: The tool failed; the text says why.
    """
    results = [
        block["toolResult"]
        for message in agent.messages
        for block in message["content"]
        if "toolResult" in block
    ]
    found = next(each for each in reversed(results) if each["toolUseId"] == id_)
    content = cast("Blocks", found["content"])
    if found["status"] == "error":
        raise ToolReportedError("\n".join(str(b.get("text", b)) for b in content))
    changes = _find_changes(before, agent.state.get())
    is_over = result.stop_reason != "limit_turns"  # a hook or the tool ended the turn
    if [list(block) for block in content] == [["text"]] and not changes and not is_over:
        return str(content[0]["text"])
    encoded: dict[str, Json] = {RESULT_KEY: normalize_json(encode_bytes_values(content))}
    if changes:
        encoded["state"] = changes
    if is_over:
        encoded["end_turn"] = _join_text(result.message)
    return encoded


def _find_changes(before: State, after: State) -> State:
    changed = {k: v for k, v in after.items() if k not in before or before[k] != v}
    deleted: list[Json] = [key for key in before if key not in after]
    changes: State = {"set": changed} if changed else {}
    return changes | ({"deleted": deleted} if deleted else {})


def _join_text(message: Message) -> str:
    return "".join(block["text"] for block in message["content"] if "text" in block)


# ── model calls ──────────────────────────────────────────────────────────────


class _StepModel(StepHostModel):
    """One model call of the agent: a turn of its event loop up to its tools."""

    def __init__(self, agent: Agent, hosting: Hosting, box: _ToolBox) -> None:
        self._agent = agent
        self._hosting = hosting
        self._box = box
        config = agent.model.get_config()
        model_id = config.get("model_id") if isinstance(config, Mapping) else None
        self.priced_name = str(model_id or "")
        self.name = f"{FRAMEWORK}:{model_id or type(agent.model).__name__}"

    async def _stream_step(self, prompt: Prompt) -> AsyncGenerator[Piece | Finished]:
        last = prompt.transcript[-1] if len(prompt.transcript) else None
        if not prompt.runtime_request and (end := self._find_end(last)) is not None:
            yield Finished(reply=Reply(text=end))
            return
        conversation = StrandsConversation(self._agent, prompt.transcript, prompt.files)
        if prompt.runtime_request:
            conversation.add_text(mark_runtime_text(prompt.runtime_request))
        elif conversation.messages[-1]["role"] == "assistant":
            conversation.add_text(mark_runtime_text(CONTINUE_NOTE))
        try:
            async with self._hosting.open_context(prompt.run_id) as context:
                step = _ModelStep(self._agent, conversation, context, self.name)
                if prompt.runtime_request:  # a summary is no structured output
                    step.ignore_output()
                elif last is not None and _is_forcing(last):
                    step.force_output()
                try:
                    async with stream_in_task(step.run()) as pieces:
                        async for piece in pieces:
                            yield piece
                finally:
                    # A provider that reads in a thread (Bedrock) stops at this signal. Strands
                    # clears the signal at the end of its event loop, so it is set after that.
                    step.agent.cancel()
        except (ModelFailed, Misconfigured):
            raise
        except Exception as error:
            if (failure := _make_failure(self.name, error)) is None:
                raise
            raise failure from error

    def _find_end(self, last: Turn | None) -> str | None:
        """Return the answer if the last calls have ended the turn."""
        if last is None or last.role != "assistant":
            return None
        for use in last.uses:
            if use.tool in self._box.delegates and len(last.uses) == 1 and not use.problem:
                return format_result(use)
            if isinstance(use.result, dict) and RESULT_KEY in use.result:
                end = use.result.get("end_turn")
                if isinstance(end, str):
                    return end
        return None


class _ModelStep(_Step):
    """The step of a model call: pieces of the reply, then the reply as the loop takes it."""

    def __init__(
        self, agent: Agent, conversation: StrandsConversation, context: object, model: str
    ) -> None:
        super().__init__(agent, conversation, context)
        self._model = model
        self._reader = _PieceReader()
        self._is_forced = False
        output = agent._default_structured_output_model  # noqa: SLF001 - no public property
        self._output: type[BaseModel] | None = output
        self.stop_after_model(is_wanted=True)

    def ignore_output(self) -> None:
        """Ask for a text, also if the agent has a structured output."""
        self._output = None
        vars(self.agent).update(_default_structured_output_model=None)

    def force_output(self) -> None:
        """Ask for the structured output only, as Strands does after a text."""
        if self._output is None:
            return
        self._is_forced = True
        choice = {"tool": {"name": StructuredOutputTool(self._output).tool_name}}

        def add_choice(context: InvokeModelContext) -> InvokeModelContext:
            return dataclasses.replace(
                context,
                tool_choice=cast("Any", choice),  # type: ignore[explicit-any]
                structured_output_model=self._output,
            )

        self.agent.add_middleware(InvokeModelStage.Input, add_choice)

    async def run(self) -> AsyncGenerator[Piece | Finished]:
        """Yield the pieces of the reply, and the reply."""
        result: AgentResult | None = None
        async for event in self.stream():
            result = event.get("result", result)
            if isinstance(chunk := event.get("event"), Mapping):
                for piece in self._reader.read(chunk):
                    yield piece
        assert isinstance(result, AgentResult)  # the last event
        if result.stop_reason == "interrupt":
            raise NotImplementedError(INTERRUPT_TEXT)
        if result.stop_reason == "content_filtered":
            raise ModelFailed(self._model, "refused", "the provider would not answer this")
        yield await self._settle(result)

    async def _settle(self, result: AgentResult) -> Finished:
        """Return the reply: with calls, to be continued, or as the answer."""
        message = _find_reply(self.agent, result)
        reply = Reply(text=_join_text(message), opaque=self._dump_reply(message))
        usage = message.get("metadata", {}).get("usage")
        if usage:
            reply = replace(reply, prompt_tokens=usage["inputTokens"])
        if result.stop_reason == "checkpoint":
            reply = await self._settle_calls(reply, message)
        elif result.stop_reason == "limit_turns":
            reply = self._settle_text(reply)
        elif self.resume_text:
            # A hook wants the agent to continue. A text alone would be the answer.
            use = RequestedCall(tool=OUTPUT_NAME, refused=self.resume_text)
            reply = replace(reply, uses=(use,))
        spent = self.agent.event_loop_metrics.accumulated_usage
        model = self._model.removeprefix(f"{FRAMEWORK}:")
        return Finished(reply=reply, spent=make_bedrock_spend(model, spent))

    def _dump_reply(self, message: Message) -> dict[str, Json]:
        content = normalize_json(encode_bytes_values(message["content"]), "reply")
        # Also an empty state: without it, the state of an earlier reply would count.
        return {"content": content, "state": self.agent.state.get()}

    async def _settle_calls(self, reply: Reply, message: Message) -> Reply:
        wanted = [block["toolUse"] for block in message["content"] if "toolUse" in block]
        uses = tuple(
            _make_use(use["name"], use["input"], use["toolUseId"], raw)
            for use, raw in zip(wanted, self._reader.read_arguments(len(wanted)), strict=True)
        )
        output = StructuredOutputTool(self._output).tool_name if self._output else None
        outputs = [use for use in uses if use.tool == output]
        if not outputs:
            return replace(reply, uses=uses)
        if len(outputs) < len(uses):  # an output beside calls would end the agent
            refused = OUTPUT_WITH_CALLS_TEXT
            kept = (replace(u, refused=refused) if u.tool == output else u for u in uses)
            return replace(reply, uses=tuple(kept))
        self.stop_after_model(is_wanted=False)
        value: object = None
        async for event in self.stream():  # executes the output tool: it validates
            if "result" in event:
                value = event["result"].structured_output
        if isinstance(value, BaseModel):
            return _make_answer(reply, value)
        reasons = [
            _join_text(cast("Message", block["toolResult"]))
            for block in self.agent.messages[-1]["content"]
            if "toolResult" in block
        ]
        text = "\n".join(reasons) or "the output is not valid"
        return replace(reply, uses=tuple(replace(use, refused=text) for use in uses))

    def _settle_text(self, reply: Reply) -> Reply:
        """Settle a text instead of the structured output: Strands wants to ask again."""
        assert self._output is not None  # only then the event loop continues after a text
        if not self._is_forced:
            prompt = _join_text(self.agent.messages[-1])  # added by Strands
            opaque = {**cast("State", reply.opaque), FORCED_OUTPUT_KEY: True}
            use = RequestedCall(tool=OUTPUT_NAME, refused=prompt)
            return replace(reply, uses=(use,), opaque=opaque)
        try:
            value = self._output.model_validate_json(reply.text)
        except ValidationError as error:
            detail = f"{NO_OUTPUT_TEXT}: {safe_str(error, 500)}"
            raise ModelFailed(self._model, "bad_output", detail) from error
        return _make_answer(reply, value)


class _PieceReader:
    """Converts stream events to pieces, and keeps the text of the arguments of each call."""

    def __init__(self) -> None:
        self._tools: list[str] = []
        self._arguments: list[str] = []

    def read(self, chunk: Mapping[str, Any]) -> Iterator[Piece]:  # type: ignore[explicit-any]
        """Yield the piece of a stream event; none for others."""
        start = chunk.get("contentBlockStart", {}).get("start") or {}
        if "toolUse" in start:
            self._tools.append(str(start["toolUse"]["name"]))
            self._arguments.append("")
            yield self._make_args_piece("")
        delta = chunk.get("contentBlockDelta", {}).get("delta") or {}
        if text := delta.get("text"):
            yield Piece(kind="text", text=text)
        if text := (delta.get("reasoningContent") or {}).get("text"):
            yield Piece(kind="thinking", text=text)
        if self._tools and (text := (delta.get("toolUse") or {}).get("input")):
            self._arguments[-1] += text
            yield self._make_args_piece(text)

    def _make_args_piece(self, text: str) -> Piece:
        call = len(self._tools) - 1
        return Piece(kind="args", text=text, tool=self._tools[-1], call=call)

    def read_arguments(self, count: int) -> list[str]:
        """Return the arguments of the last `count` calls as text, "" if they are not known."""
        return [""] * (count - len(self._arguments)) + self._arguments[-count:]


def _find_reply(agent: Agent, result: AgentResult) -> Message:
    """Return the last message of the assistant: a stop of the event loop may name another."""
    replies = (m for m in reversed(agent.messages) if m["role"] == "assistant")
    return next(replies, result.message)


def _make_use(name: str, args: object, id_: str, raw: str) -> RequestedCall:
    """Return a call; refused if its arguments are not JSON: Strands would send none."""
    try:
        parse_json(raw or "{}")
    except (NotJson, TooLarge) as error:
        refused = f"the arguments are not acceptable JSON: {error}"
        return RequestedCall(tool=name, refused=refused, tool_call_id=id_)
    return RequestedCall(tool=name, args=normalize_json(args, "args"), tool_call_id=id_)


def _make_answer(reply: Reply, output: BaseModel) -> Reply:
    value = normalize_json(output.model_dump(mode="json"), "output")
    text = msgspec.json.encode(value).decode()
    return replace(reply, text=text, uses=(), value=value)


def _is_forcing(turn: Turn) -> bool:
    return isinstance(turn.opaque, dict) and bool(turn.opaque.get(FORCED_OUTPUT_KEY))


def _make_failure(model: str, error: Exception) -> ModelFailed | None:
    """Convert an exception of the event loop; None for an error of the agent's own code."""
    if isinstance(error, EventLoopException):
        return _make_failure(model, error.original_exception)
    detail = f"{type(error).__name__}: {safe_str(error, 500)}"
    match error:
        case ModelThrottledException():
            return ModelFailed(model, "rate_limited", detail, transient=True)
        case ContextWindowOverflowException():
            return ModelFailed(model, "context_too_long", detail)
        case MaxTokensReachedException():
            return ModelFailed(model, "bad_output", "the reply was longer than max_tokens")
        case _:
            return make_foreign_failure(model, error)
