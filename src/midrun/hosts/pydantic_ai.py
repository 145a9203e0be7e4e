"""Host an agent of Pydantic AI: one graph step for a model call, one for a tool call.

A **model call** is `agent.iter` with the transcript as its history, up to and including the
model's response. The framework adds instructions, system prompts, toolsets, settings and the
hooks of capabilities. If the response is an output (text, or a call of an output tool), the
framework validates it in the same step, because validators are code of the agent. A valid
output becomes the answer, with its value as JSON. Otherwise the text of the retry is journaled
as the refusal of that output, and the loop makes the next model call.

A **tool call** is `agent.iter` with a history that ends in that one call. The framework
validates the arguments, executes the tool with its hooks, and its result is journaled. A
blocking function that another process can import, and that takes no `RunContext`, runs in such
a process instead, where it can be killed.

The framework never executes a tool in a model call: this would bypass the dispatcher. Native
tools (web search, code execution) run at the provider, inside the model call.
"""

import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext
from datetime import timedelta
from functools import cached_property
from typing import Any, Final, TypeAlias, cast

import anyio
import msgspec
from msgspec.structs import replace
from pydantic import TypeAdapter, ValidationError
from pydantic_ai import (
    Agent,
    CallToolsNode,
    ModelRequestNode,
    RunContext,
    ToolApproved,
    exceptions,
)
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.capabilities import ReinjectSystemPrompt, ToolSearch
from pydantic_ai.capabilities._pending_messages import PendingMessageDrainCapability
from pydantic_ai.capabilities.abstract import leaf_capabilities
from pydantic_ai.messages import (
    FunctionToolResultEvent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolCallPart,
    ToolReturn,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
    tool_return_content_ta,
)
from pydantic_ai.models import infer_model
from pydantic_ai.run import AgentRun
from pydantic_ai.tools import Tool as FunctionTool
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import FunctionToolset
from pydantic_core import to_jsonable_python
from pydantic_graph import End

from midrun.agents.signature import Function, SchemaArguments
from midrun.agents.tool import Tool, is_async
from midrun.agents.tool_context import Call
from midrun.codec.strict_json import normalize_json
from midrun.core.transcript import CallResult, Turn
from midrun.core.values import Json, Reply, RequestedCall, Spend
from midrun.errors import Misconfigured, ModelFailed
from midrun.hosts.hosted_agent import (
    OPEN_SCHEMA,
    OUTPUT_NAME,
    OUTPUT_WITH_CALLS_TEXT,
    HostedAgent,
    Hosting,
    find_asking_turn,
)
from midrun.models.history_cache import HistoryCache
from midrun.models.messages import MessageBuilder, ProposedCall, finish_messages
from midrun.models.provider import ProviderModel, make_failure
from midrun.ports.model import Finished, Piece, Prompt

ForeignAgent: TypeAlias = AbstractAgent[Any, Any]  # type: ignore[explicit-any]  # of any types
ForeignRun: TypeAlias = AgentRun[Any, Any]  # type: ignore[explicit-any]
ForeignTool: TypeAlias = FunctionTool[Any]  # type: ignore[explicit-any]

FRAMEWORK: Final = "pydantic-ai"

OUTPUT_RETRY_KEY: Final = "output_retry"
"""Set in the stored form of a reply whose output was not valid."""

CONTENT_KEY: Final = "pydantic_ai_content"
"""Marks a journaled result with images, audio or files, or with further content."""

HOOKLESS_CAPABILITIES: Final = {ToolSearch, PendingMessageDrainCapability}
"""Capabilities that every agent has, and that do not act in a call of a plain function."""

USER_CONTENT: Final = TypeAdapter[Sequence[UserContent]](Sequence[UserContent])


def host_agent(agent: object, hosting: Hosting) -> HostedAgent:
    """Return an agent of Pydantic AI as an `Agent`; see `midrun.host`."""
    if not isinstance(agent, AbstractAgent):
        problem = (
            f"Cannot host {type(agent).__name__} of pydantic_ai: only agents are hosted. "
            "Pass a pydantic_ai.Agent."
        )
        raise Misconfigured("host", problem)
    if agent.model is None:
        problem = "Cannot host an agent without a model. Set model=… when it is created."
        raise Misconfigured("host", problem)
    box = _ToolBox(agent, hosting)
    # There is no public list. `tool_search` only reveals other tools, in every agent.
    kinds = [getattr(t, "kind", "a function") for t in getattr(agent, "_cap_native_tools", ())]
    return HostedAgent(
        hosting.choose_name(agent.name),
        framework=FRAMEWORK,
        model=_StepModel(agent, hosting, box),
        tools=list(box.tools.values()),
        hosting=hosting,
        find_unlisted_tool=box.find_unlisted if box.is_dynamic else None,
        ungated_tools=tuple(kind for kind in kinds if kind != "tool_search"),
    )


# ── tools ────────────────────────────────────────────────────────────────────


class _ToolBox:
    """The tools of the agent. Those of its function toolsets are known when it is hosted.

    Other toolsets (MCP servers, filtered, prefixed or dynamic ones) list their tools for each
    step. `learn` takes note of them.
    """

    def __init__(self, agent: ForeignAgent, hosting: Hosting) -> None:
        self._agent = agent
        self._hosting = hosting
        self._learned: dict[str, ToolDefinition] = {}
        self.is_dynamic = not all(isinstance(ts, FunctionToolset) for ts in agent.toolsets)
        toolsets = [each for each in agent.toolsets if isinstance(each, FunctionToolset)]
        functions = [function for each in toolsets for function in each.tools.values()]
        if not self.is_dynamic:
            hosting.check_tool_names([function.name for function in functions])
        # A model reveals such tools by a search. What it has revealed is in the history.
        self.has_hidden = any(function.defer_loading for function in functions)
        self.has_own_code = not all(map(_is_plain_toolset, toolsets))
        self.tools = {
            function.name: self._make_tool(function, toolset)
            for toolset in toolsets
            for function in toolset.tools.values()
        }
        self._unlisted: dict[str, Tool] = {}

    def learn(self, definitions: Sequence[ToolDefinition]) -> frozenset[str]:
        """Take note of the tools of a step; return the names of the output tools."""
        self._learned |= {each.name: each for each in definitions}
        return frozenset(each.name for each in definitions if each.kind == "output")

    def find_unlisted(self, name: str) -> Tool | None:
        """Return a tool of a toolset that lists its tools for each step.

        Another process may have made the model call: without a step in this process, every
        name counts as known, and the framework refuses a wrong one.
        """
        if self._learned and name not in self._learned:
            return None
        if name not in self._unlisted:
            # The schema is not part of it: the version of the tool must be the same in every
            # process, or an approval would not count.
            self._unlisted[name] = self._make_framework_tool(name, is_blocking=False)
        return self._unlisted[name]

    def _make_tool(self, function: ForeignTool, toolset: FunctionToolset[Any]) -> Tool:  # type: ignore[explicit-any]
        fn, name = cast("Function", function.function), function.name
        description, is_blocking = function.description or "", not is_async(fn)
        timeout_s = function.timeout if function.timeout is not None else toolset.timeout
        # The process gets the arguments only, so the function must not need the framework.
        needs_framework = function.takes_ctx or function.args_validator is not None
        if is_blocking and not needs_framework and _is_plain_toolset(toolset):
            timeout = None if timeout_s is None else timedelta(seconds=timeout_s)
            gate = self._make_gate(name)
            made = self._hosting.make_process_tool(name, fn, description, gate, timeout)
            if made is not None:
                return made
        schema = cast("dict[str, Json]", function.function_schema.json_schema)
        return self._make_framework_tool(
            name,
            description=description,
            schema=schema,
            is_blocking=is_blocking,
            plain=function
            if not is_blocking and timeout_s is None and self._is_plain(function)
            else None,
        )

    def _is_plain(self, function: ForeignTool) -> bool:
        """Tell whether a call of this function involves no other code of the user.

        Then the function is called without a run of the agent: such a run reads the whole
        history, but nothing could see it.
        """
        return (
            not self.is_dynamic
            and not self.has_own_code
            and not function.takes_ctx
            and function.args_validator is None
            and function.prepare is None
            and function.max_retries != 0
            and not function.requires_approval
            and not function.defer_loading
        )

    def _make_framework_tool(
        self,
        name: str,
        *,
        description: str = "",
        schema: dict[str, Json] | None = None,
        is_blocking: bool,
        plain: ForeignTool | None = None,
    ) -> Tool:
        # `call` is positional-only: the tool may have an argument of that name.
        async def call_framework(call: Call, /, **arguments: object) -> Json:
            # The framework runs a blocking function in a thread, which nothing can stop. A
            # cancellation would only abandon it, so the call waits for its end.
            with anyio.CancelScope(shield=True) if is_blocking else nullcontext():
                if plain is not None and _has_no_hooks(self._agent):
                    valid = _validate(plain, arguments)
                    if valid is not None:
                        async with self._hosting.open_context(call.run_id):
                            return await _call_plain(plain, valid, call)
                return await self._call_tool(name, arguments, call)

        tool = self._hosting.make_tool(
            name,
            call_framework,
            description=description,
            arguments=SchemaArguments(schema or OPEN_SCHEMA),
            needs_approval=self._make_gate(name),
        )
        if is_blocking:
            vars(tool).update(traits=replace(tool.traits, unstoppable=True))
        return tool

    def _make_gate(self, name: str) -> Function:
        """Return the function that decides whether the framework requires an approval."""

        def needs_approval(_: dict[str, Json]) -> bool:
            known = self._learned.get(name)
            return known is not None and known.kind == "unapproved"

        return needs_approval

    async def _call_tool(self, name: str, arguments: dict[str, object], call: Call) -> Json:
        """Execute one tool call as the framework does, with its hooks; return the result."""
        id_ = call.tool_call_id or call.key
        asked = ModelResponse(parts=[ToolCallPart(name, arguments, tool_call_id=id_)])
        history = [*_make_earlier_messages(call), asked]
        async with (
            self._hosting.open_context(call.run_id) as deps,
            self._agent.iter(
                None, message_history=history, deps=deps, conversation_id=call.run_id
            ) as run,
        ):
            node = await run.next(cast("Any", run.next_node))  # type: ignore[explicit-any]
            assert isinstance(node, CallToolsNode)
            known = run.ctx.deps.tool_manager.get_tool_def(name)
            if known is not None and known.kind == "external":
                raise NotImplementedError(f"{name} is executed outside: it cannot be hosted")
            if known is not None and known.kind == "unapproved":
                # A person has approved the call before it was started; see `_make_gate`.
                node = CallToolsNode(asked, tool_call_results={id_: ToolApproved()})
            async with node.stream(run.ctx) as events:
                async for event in events:
                    if isinstance(event, FunctionToolResultEvent):
                        return _encode_result(event)
        raise RuntimeError(f"Pydantic AI returned no result of {name}")


def _is_plain_toolset(toolset: FunctionToolset[Any]) -> bool:  # type: ignore[explicit-any]
    """Tell whether a toolset only calls its functions, and is no subclass that does more."""
    names = ("for_run", "for_run_step", "get_tools", "call_tool")
    kind = type(toolset)
    return all(getattr(kind, name) is getattr(FunctionToolset, name) for name in names)


def _has_no_hooks(agent: ForeignAgent) -> bool:
    """Tell whether a tool call of the agent runs no hook, handler or instrumentation."""
    kinds = {type(each) for each in leaf_capabilities(agent.root_capability)}
    return (
        type(agent) is Agent
        and kinds <= HOOKLESS_CAPABILITIES
        and not (agent.instrument or Agent._instrument_default)  # noqa: SLF001 - no public name
        and agent.event_stream_handler is None
        and not getattr(getattr(agent, "_event_hooks", None), "has_on_event", True)
        and getattr(agent, "_max_tool_retries", 0) > 0
        and not getattr(agent, "_validation_context", None)
    )


def _validate(function: ForeignTool, arguments: dict[str, object]) -> dict[str, object] | None:
    """Return the validated arguments; None if the framework must explain why they are wrong."""
    try:
        valid: dict[str, object] = function.function_schema.validator.validate_python(arguments)
    except ValidationError:
        return None
    return valid


async def _call_plain(function: ForeignTool, arguments: dict[str, object], call: Call) -> Json:
    """Call a function that needs nothing but its arguments, as the framework does."""
    made: object = await function.function_schema.call(arguments, cast("RunContext", None))
    id_ = call.tool_call_id or call.key
    if not isinstance(made, ToolReturn):
        return _encode_result(FunctionToolResultEvent(ToolReturnPart(function.name, made, id_)))
    part = ToolReturnPart(function.name, made.return_value, id_)
    return _encode_result(FunctionToolResultEvent(part, content=made.content))


def _encode_result(event: FunctionToolResultEvent) -> Json:
    """Return the result of a tool for the journal.

    Raises:
        ModelRetry: The framework asks the model to make the call again; the text says why.
    """
    part = event.part
    if part.outcome != "success":
        raise exceptions.ModelRetry(part.model_response_str(wrap_if_error=False))
    content: Json = tool_return_content_ta.dump_python(part.content, mode="json")
    if not part.files and event.content is None:
        return content
    added = [event.content] if isinstance(event.content, str) else event.content or []
    return {
        CONTENT_KEY: content,
        "added": USER_CONTENT.dump_python(added, mode="json"),
    }


# ── model calls ──────────────────────────────────────────────────────────────


class _HistoryBuilder(MessageBuilder):
    """Builds the history of a hosted agent, with rich results and retries of its output.

    `output_retries` is the number of outputs that were not valid since the last message of a
    person.
    """

    def __init__(self) -> None:
        super().__init__()
        self.output_retries = 0

    def add_turns(self, turns: Iterable[Turn]) -> None:
        """Add turns of the transcript, oldest first."""
        for turn in turns:
            super().add_turns((turn,))
            is_retry = _is_output_retry(turn)
            self.output_retries = 0 if turn.role == "user" else self.output_retries + is_retry

    def add_assistant_turn(self, turn: Turn) -> None:
        """Add a reply; a text that was no valid output is followed by the reason."""
        if _is_output_retry(turn) and [made.tool for made in turn.uses] == [OUTPUT_NAME]:
            super().add_assistant_turn(replace(turn, uses=()))
            self.add_request_part(UserPromptPart(turn.uses[0].problem))
        else:
            super().add_assistant_turn(turn)

    def add_result(self, call: ProposedCall, result: CallResult) -> None:
        """Add the result of a call; images, audio and files in their own form."""
        found = result.result
        if result.problem or not isinstance(found, dict) or CONTENT_KEY not in found:
            super().add_result(call, result)
            return
        content = tool_return_content_ta.validate_python(found[CONTENT_KEY])
        self.add_request_part(ToolReturnPart(call.tool_name, content, call.tool_call_id))
        if added := USER_CONTENT.validate_python(found.get("added") or []):
            self.add_request_part(UserPromptPart(added))


HISTORIES: Final = HistoryCache(_HistoryBuilder)


def _open_history(prompt: Prompt) -> _HistoryBuilder:
    """Return the history of a model call."""
    if not (prompt.files or prompt.transcript.has_files):
        return HISTORIES.open(prompt.run_id, prompt.transcript)
    builder = _HistoryBuilder()
    builder.files = prompt.files
    builder.add_turns(prompt.transcript)
    return builder


def _make_earlier_messages(call: Call) -> list[ModelMessage]:
    """Return the messages before the reply that made the call."""
    turns = call.transcript
    return HISTORIES.open(call.run_id, turns, find_asking_turn(turns)).messages


class _StepModel:
    """One model call of the agent: the framework prepares, streams and validates."""

    def __init__(self, agent: ForeignAgent, hosting: Hosting, box: _ToolBox) -> None:
        self._agent = agent
        self._hosting = hosting
        self._box = box
        model = agent.model
        self.name = model if isinstance(model, str) else getattr(model, "model_id", "")

    @cached_property
    def _provider(self) -> ProviderModel:
        """The agent's own model. It is opened when it is needed: it may want an API key."""
        model = self._agent.model
        assert model is not None  # checked by `host_agent`
        try:
            return ProviderModel(infer_model(model))
        except exceptions.UserError as error:
            raise Misconfigured(f"model {self.name!r}", str(error)) from error

    def _list_run_capabilities(self) -> list[ReinjectSystemPrompt] | None:
        """Return the capabilities of a step: the transcript has no system prompt of the agent.

        None if the agent has none: to resolve capabilities for each step takes time.
        """
        names = ("_system_prompts", "_system_prompt_functions")
        has_prompt = any(getattr(self._agent, name, True) for name in names)
        return [ReinjectSystemPrompt()] if has_prompt else None

    def _can_skip_start(self, messages: Sequence[ModelMessage]) -> bool:
        """Tell whether the start of a run of the agent would change nothing.

        It reads the whole history several times: for tools that the model has revealed, for
        calls without results, and for system prompts. The history of a transcript has none of
        these, and code that would see the start must not be there: hooks, toolsets with methods
        of their own, a function for the metadata. The start also takes note of the prompt, so
        it is only skipped if the model reads results of tools next.
        """
        last = messages[-1]
        return (
            isinstance(last, ModelRequest)
            and all(isinstance(part, ToolReturnPart) for part in last.parts)
            and not (self._box.is_dynamic or self._box.has_hidden or self._box.has_own_code)
            and not callable(getattr(self._agent, "_metadata", None))
            and self._list_run_capabilities() is None
            and _has_no_hooks(self._agent)
        )

    @property
    def priced(self) -> bool:
        """Whether the cost of a call is known."""
        return self._provider.priced

    def reserve(self, prompt: Prompt) -> Spend:
        """Estimate the most that a reply to `prompt` may use."""
        return self._provider.reserve(prompt)

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        """Stream the reply of one step.

        Raises:
            ModelFailed: The provider failed, or the agent exceeded its retries of the output.
        """
        if prompt.runtime_request:  # a summary: neither instructions nor output of the agent
            async with self._provider.stream(prompt) as pieces:
                yield pieces
            return
        async with aclosing(self._stream_step(prompt)) as step:
            yield step

    async def _stream_step(self, prompt: Prompt) -> AsyncGenerator[Piece | Finished]:
        history = _open_history(prompt)
        messages = finish_messages(prompt, history)
        skips_start = self._can_skip_start(messages)
        try:
            async with (
                self._hosting.open_context(prompt.run_id) as deps,
                self._agent.iter(
                    None,
                    message_history=[] if skips_start else messages,
                    deps=deps,
                    conversation_id=prompt.run_id or None,
                    infer_name=False,
                    model_settings=self._provider.make_settings(),
                    capabilities=self._list_run_capabilities(),
                ) as run,
            ):
                node = _skip_start(run, messages) if skips_start else run.next_node
                while not isinstance(node, ModelRequestNode):
                    node = await run.next(cast("Any", node))  # type: ignore[explicit-any]
                async with node.stream(run.ctx) as streamed:
                    pieces = self._provider.stream_pieces(streamed, lambda: streamed.response)
                    finished = None
                    async for piece in pieces:
                        if isinstance(piece, Finished):
                            finished = piece
                        else:
                            yield piece
                assert finished is not None  # `stream_pieces` ends with it, or raises
                step = _Step(run, node, self._agent, self._box, history.output_retries)
                yield replace(finished, reply=await step.settle(finished.reply))
        except exceptions.UnexpectedModelBehavior as error:
            raise ModelFailed(self.name, "bad_output", str(error)) from error
        except exceptions.AgentRunError as error:
            raise make_failure(self.name, error, reply_started=False) from error


def _skip_start(run: ForeignRun, messages: list[ModelMessage]) -> object:
    """Return the node of the model request, for a run that was opened without its history."""
    *earlier, last = messages
    assert isinstance(last, ModelRequest)
    run.ctx.state.message_history = earlier
    run.ctx.deps.new_message_index = len(messages)
    request = ModelRequest(parts=last.parts)  # as the start makes it
    return ModelRequestNode[Any, Any](request=request, is_resuming_without_prompt=True)


class _Step:
    """The end of one model call: the calls that the model wants, or its validated output."""

    def __init__(
        self,
        run: ForeignRun,
        node: object,
        agent: ForeignAgent,
        box: _ToolBox,
        retries_used: int,
    ) -> None:
        self._run = run
        self._node = node
        self._ends_early = getattr(agent, "end_strategy", "") == "early"
        self._outputs = box.learn(run.ctx.deps.tool_manager.tool_defs)
        self._retries_used = retries_used

    async def settle(self, reply: Reply) -> Reply:
        """Return the reply as the loop takes it: with calls, or as the answer."""
        response = self._run.ctx.state.message_history[-1]
        assert isinstance(response, ModelResponse)
        ids = [part.tool_call_id for part in response.tool_calls]
        uses = [
            replace(use, tool_call_id=id_) for use, id_ in zip(reply.uses, ids, strict=True)
        ]
        calls = [use for use in uses if use.tool not in self._outputs]
        if calls and (len(calls) == len(uses) or not self._ends_early):
            return replace(reply, uses=tuple(map(self._refuse_output, uses)))
        if any(use.refused for use in uses):  # cut off, or not JSON: the model reads why
            return replace(reply, uses=tuple(uses))
        # Only the output is handed to the framework: it would execute the other calls.
        node = await self._run.next(cast("Any", self._node))  # type: ignore[explicit-any]
        if calls:
            kept = [
                part
                for part in response.parts
                if not isinstance(part, ToolCallPart) or part.tool_name in self._outputs
            ]
            node = CallToolsNode(dataclasses.replace(response, parts=kept))
        self._run.ctx.state.output_retries_used = self._retries_used
        after = await self._run.next(cast("Any", node))  # type: ignore[explicit-any]
        if isinstance(after, End):
            return _make_answer(reply, after.data.output)
        return self._make_retry(reply, uses, after)

    def _refuse_output(self, use: RequestedCall) -> RequestedCall:
        is_output = use.tool in self._outputs and not use.refused
        return replace(use, refused=OUTPUT_WITH_CALLS_TEXT) if is_output else use

    def _make_retry(self, reply: Reply, uses: list[RequestedCall], after: object) -> Reply:
        """Return the reply with the reason why its output is not valid, as a refused call."""
        assert isinstance(after, ModelRequestNode)
        parts = after.request.parts
        reasons = {
            part.tool_call_id: part.model_response_str(wrap_if_error=False)
            for part in parts
            if isinstance(part, ToolReturnPart)
        }
        said = [part.model_response() for part in parts if hasattr(part, "model_response")]
        general = "\n".join(map(str, said)) or "the output is not valid"
        refused = [
            replace(use, refused=reasons.get(use.tool_call_id) or general)
            if use.tool in self._outputs
            else use
            for use in uses
        ]
        opaque = reply.opaque if isinstance(reply.opaque, dict) else {}
        return replace(
            reply,
            uses=tuple(refused) or (RequestedCall(tool=OUTPUT_NAME, refused=general),),
            opaque={**opaque, OUTPUT_RETRY_KEY: True},
        )


def _make_answer(reply: Reply, output: object) -> Reply:
    value = normalize_json(to_jsonable_python(output, serialize_unknown=True), "output")
    if isinstance(value, str) and value == reply.text:
        return replace(reply, uses=())
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    # If the model wrote the output as text (`NativeOutput`), that text stays as it is.
    kept = reply.text if reply.text and not reply.uses else text
    return replace(reply, uses=(), text=kept, value=value)


def _is_output_retry(turn: Turn) -> bool:
    return isinstance(turn.opaque, dict) and bool(turn.opaque.get(OUTPUT_RETRY_KEY))
