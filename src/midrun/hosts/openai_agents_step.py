"""Model calls of a hosted agent of the OpenAI Agents SDK: one turn of its runner for each.

The runner gets a copy of the agent whose tools all need an approval. So it stops before the
tools by its own rules, and nothing is executed or signalled by an exception. Handoffs are tools
in the copy, with the same description for the model. The copy is a plain `Agent`: a subclass
may add tools of its own, and its methods are called on the original.
"""

import asyncio
import copy
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import cached_property
from inspect import isawaitable
from typing import Any, Final, NoReturn, TypeAlias, cast

import anyio
import msgspec
from agents import (
    Agent,
    AgentHookContext,
    AgentHooks,
    CodeInterpreterTool,
    FileSearchTool,
    FunctionTool,
    FunctionToolResult,
    HostedMCPTool,
    ImageGenerationTool,
    InputGuardrail,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelRefusalError,
    ModelResponse,
    ModelRetrySettings,
    ModelSettings,
    OutputGuardrail,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    RunContextWrapper,
    Runner,
    RunResult,
    ShellTool,
    Tool,
    ToolSearchTool,
    TResponseInputItem,
    WebSearchTool,
)
from agents.agent import ToolsToFinalOutputResult
from agents.items import ToolCallOutputItem
from agents.models.interface import Model, ModelProvider
from agents.models.multi_provider import MultiProvider
from agents.usage import Usage
from msgspec.structs import replace
from openai.types.responses import Response, ResponseFunctionToolCall
from openai.types.responses.response_input_item_param import FunctionCallOutput
from pydantic_core import to_jsonable_python

from midrun.codec.safe_repr import safe_repr, safe_str
from midrun.codec.strict_json import normalize_json, parse_json
from midrun.core.transcript import Turn
from midrun.core.values import Json, Reply, RequestedCall, Spend, Traits
from midrun.errors import Misconfigured, ModelFailed, NotJson, TooLarge
from midrun.hosts.hosted_agent import (
    IDLE_TIMEOUT_S,
    OUTPUT_NAME,
    Hosting,
    make_foreign_failure,
)
from midrun.hosts.openai_agents_stream import (
    RelayModel,
    RelayProvider,
    ReplyStream,
    make_storable,
)
from midrun.hosts.openai_agents_team import (
    AGENT_KEY,
    ITEMS_KEY,
    OUTPUT_RETRY_KEY,
    Conversation,
    ForeignAgent,
    ForeignContext,
    ForeignHandoff,
    Team,
    is_output_retry,
    make_output,
)
from midrun.models.prices import NamedModelPrices, make_spend
from midrun.models.prompt_texts import CONTINUE_NOTE, mark_runtime_text
from midrun.ports.model import Finished, Piece, Prompt

FRAMEWORK: Final = "openai-agents"

OUTPUT_MAX_RETRIES: Final = 2
"""The number of times that the model is asked again for an output that is not valid."""

INVALID_OUTPUT_TEXT: Final = "{reason}. Give the output again, in the required form."

SECOND_HANDOFF_TEXT: Final = "Multiple handoffs detected, ignoring this one."
"""The words of the SDK for the second handoff of a reply."""

HookContext: TypeAlias = AgentHookContext[Any]  # type: ignore[explicit-any]
Guardrails: TypeAlias = list[InputGuardrail[Any]]  # type: ignore[explicit-any]


PROVIDER_TOOLS: Final = (
    CodeInterpreterTool,
    FileSearchTool,
    ImageGenerationTool,
    WebSearchTool,
)
"""Tools that run at the provider, whatever their settings are."""


def _is_local_shell(tool: ShellTool) -> bool:
    return tool.environment is None or tool.environment["type"] == "local"


def check_provider_tool(agent: ForeignAgent, tool: Tool) -> None:
    """Refuse a tool that the runner would execute in this process, inside of a model call.

    Raises:
        Misconfigured: It is such a tool, or asks for approvals inside of the model call.
    """
    if isinstance(tool, HostedMCPTool):
        if tool.tool_config.get("require_approval") == "never":
            return
        problem = (
            f"Cannot host the MCP server {tool.tool_config.get('server_label')!r} of agent "
            f"{agent.name!r}: the provider would ask for approvals inside of the model call. "
            'Set require_approval="never", or use mcp_servers=[…] and traits(approve=True).'
        )
        raise Misconfigured("host", problem)
    is_remote = (
        isinstance(tool, PROVIDER_TOOLS)
        or (isinstance(tool, ToolSearchTool) and tool.execution != "client")
        or (isinstance(tool, ShellTool) and not _is_local_shell(tool))
    )
    if not is_remote:
        problem = (
            f"Cannot host the tool {tool.name!r} ({type(tool).__name__}) of agent "
            f"{agent.name!r}: the SDK executes it inside of a model call, where it cannot be "
            "stopped or approved. Wrap it in a function with function_tool."
        )
        raise Misconfigured("host", problem)


# ── one step ─────────────────────────────────────────────────────────────────


class StepModel(NamedModelPrices):
    """One model call of the agent that speaks: the runner prepares, asks and validates."""

    def __init__(self, team: Team, hosting: Hosting) -> None:
        self._team = team
        self._hosting = hosting
        self.priced_name = _find_model_name(team.root)
        self.name = f"{FRAMEWORK}:{self.priced_name or 'default'}"

    @cached_property
    def _provider(self) -> ModelProvider:
        """The provider of models by name. It is opened when needed: it may want an API key."""
        return MultiProvider()

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        """Stream the reply of one step.

        Raises:
            ModelFailed: The provider failed, a guardrail was triggered, or the agent gave no
                valid output.
        """
        async with aclosing(self._stream_step(prompt)) as step:
            yield step

    async def _stream_step(self, prompt: Prompt) -> AsyncGenerator[Piece | Finished]:
        async with self._hosting.open_context(prompt.run_id) as value:
            step = _Step(self._team, self._hosting, prompt, RunContextWrapper(value), self.name)
            if answer := await step.find_tool_answer():
                yield Finished(reply=answer)
                return
            stream = ReplyStream(self.name)
            run = step.run(RelayProvider(self._provider, stream), stream)
            # Not in a task group: it would be cancelled again and again; see `_stop`.
            task = asyncio.get_running_loop().create_task(run)
            task.add_done_callback(lambda _: stream.close())
            try:
                while (piece := await _take_piece(stream, self.name)) is not None:
                    yield piece
            finally:
                await _stop(task)
            if task.cancelled():  # not by us: then this line is not reached
                raise RuntimeError("code of the agent cancelled its own model call")
            reply, response = task.result()
            yield Finished(reply=reply, spent=_make_spend(step.model_name, response))


def _find_model_name(agent: ForeignAgent) -> str:
    model = agent.model
    return model if isinstance(model, str) else str(getattr(model, "model", "") or "")


def _make_spend(model: str, response: Response) -> Spend | None:
    usage = response.usage
    if not usage:
        return None
    return make_spend(
        model,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.input_tokens_details.cached_tokens or 0,
        thinking_tokens=usage.output_tokens_details.reasoning_tokens or 0,
    )


async def _take_piece(stream: ReplyStream, model: str) -> Piece | None:
    """Wait for the next piece of the reply; None at its end.

    Raises:
        ModelFailed: Nothing came in time.
    """
    try:
        with anyio.fail_after(IDLE_TIMEOUT_S):
            return await stream.pieces.get()
    except TimeoutError as error:
        detail = f"nothing came for {IDLE_TIMEOUT_S:g} s"
        raise ModelFailed(model, "timeout", detail, transient=True) from error


async def _stop(task: "asyncio.Task[Any]") -> None:  # type: ignore[explicit-any]
    """Cancel a task, and wait for its end: then its connection to the provider is closed.

    The runner is foreign code. It is cancelled once; again only when this wait is cancelled.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        task.cancel()
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


class _Step:
    """One turn of the runner, for the agent that speaks."""

    def __init__(
        self, team: Team, hosting: Hosting, prompt: Prompt, context: ForeignContext, model: str
    ) -> None:
        self._team = team
        self._hosting = hosting
        self._prompt = prompt
        self._context = context
        self._model = model
        self._is_summary = bool(prompt.runtime_request)
        self._agent = team.find_speaker(prompt.transcript)
        self._functions: dict[str, FunctionTool] = {}
        self._handoffs: dict[str, ForeignHandoff] = {}

    @property
    def model_name(self) -> str:
        """The name of the model of the agent that speaks; "" if it is not known."""
        return _find_model_name(self._agent)

    async def run(self, provider: RelayProvider, stream: ReplyStream) -> tuple[Reply, Response]:
        """Make the model call; return the reply as the loop takes it, and the response.

        Raises:
            ModelFailed: See `StepModel.stream`.
        """
        result: RunResult | None = None
        refused = ""
        try:
            result = await self._run_turn(provider, stream)
        except MaxTurnsExceeded:
            refused = CONTINUE_NOTE  # the runner would ask the model again
        except ModelBehaviorError as error:
            refused = INVALID_OUTPUT_TEXT.format(reason=safe_str(error, 2_000))
        except Exception as error:
            failure = stream.failure or _explain_failure(self._model, error)
            if failure is None:
                raise
            raise failure from error
        if stream.failure:
            raise stream.failure
        if (response := stream.response) is None:
            raise ModelFailed(self._model, "broken_stream", refused, transient=True)
        calls = [i for i in response.output if isinstance(i, ResponseFunctionToolCall)]
        reply = self._make_reply(response, stream.thinking)
        if self._is_summary:
            return reply, response
        if calls:
            return replace(reply, uses=await self._make_uses(calls)), response
        if result is None:
            return self._make_retry(reply, refused), response
        return _make_answer(reply, result.final_output, self._agent), response

    async def _run_turn(self, provider: RelayProvider, stream: ReplyStream) -> RunResult:
        conversation = Conversation(self._team, self._prompt.files)
        await conversation.add_turns(self._prompt.transcript, self._context)
        if self._is_summary:
            conversation.add_text(mark_runtime_text(self._prompt.runtime_request))
        elif conversation.ends_with_reply or not conversation.items:
            conversation.add_text(mark_runtime_text(CONTINUE_NOTE))
        agent = await self._make_step_agent(stream)
        return await Runner.run(
            agent,
            cast("list[TResponseInputItem]", conversation.items),
            context=self._context,
            # One turn is one model call. The next one is decided by the core, after its calls
            # have ended.
            max_turns=1,
            run_config=RunConfig(
                model_provider=provider,
                workflow_name=self._team.root.name,
                group_id=self._prompt.run_id or None,
                tool_not_found_behavior="return_error_to_model",
            ),
        )

    async def _make_step_agent(self, stream: ReplyStream) -> ForeignAgent:
        """Return the copy of the agent for the runner; see the top of this module."""
        agent, turns = self._agent, self._prompt.transcript
        tools = await self._list_tools()
        model = agent.model

        async def read_instructions(context: ForeignContext, _: ForeignAgent) -> str:
            # There may be none: the runner accepts None, although its types do not say so.
            return cast("str", await agent.get_system_prompt(context))

        return Agent(
            name=agent.name,
            handoff_description=agent.handoff_description,
            tools=tools,
            instructions=read_instructions,
            prompt=agent.prompt,
            model=RelayModel(model, stream) if isinstance(model, Model) else model,
            model_settings=self._make_settings(),
            output_type=None if self._is_summary else agent.output_type,
            hooks=None if self._is_summary else _StepHooks(agent, self._team, turns),
            input_guardrails=[] if self._is_summary else self._list_input_guardrails(),
            output_guardrails=[]
            if self._is_summary
            else [_bind_output_guardrail(each, agent) for each in agent.output_guardrails],
        )

    async def _list_tools(self) -> list[Tool]:
        """Return the enabled tools, so that the runner executes none of them."""
        agent, made = self._agent, list[Tool]()
        for tool in await agent.get_all_tools(self._context):
            if isinstance(tool, FunctionTool):
                self._functions[tool.name] = tool
                gated = copy.copy(tool)
                # The runner stops at a call that needs approval and returns it. So the copy
                # makes the runner prepare and validate the call, and the driver makes it. If
                # the runner executed it after all, the replaced function would refuse.
                gated.needs_approval = True
                gated.on_invoke_tool = _refuse_to_execute
                made.append(gated)
            else:
                check_provider_tool(agent, tool)
                made.append(tool)
        for declared in self._team.list_handoffs(agent):
            enabled = declared.is_enabled
            if callable(enabled):
                answer = enabled(self._context, agent)
                enabled = bool(await answer if isawaitable(answer) else answer)
            if enabled:
                self._handoffs[declared.tool_name] = declared
                made.append(_make_handoff_tool(declared))
        return made

    def _make_settings(self) -> ModelSettings:
        """Return the settings of the agent, without retries: the driver journals each."""
        settings = dataclasses.replace(
            self._agent.model_settings, retry=ModelRetrySettings(max_retries=0)
        )
        has_used_tools = any(
            turn.uses for turn in self._prompt.transcript if turn.role == "assistant"
        )
        # The runner resets a forced choice after the first call. Each step is a new runner.
        # A forced choice of a tool would otherwise be forced in every step, without an end.
        if self._is_summary or (has_used_tools and self._agent.reset_tool_choice):
            settings = dataclasses.replace(settings, tool_choice=None)
        return settings

    def _list_input_guardrails(self) -> Guardrails:
        """Return the guardrails for new input: those of the hosted agent and of the speaker."""
        if not self._team.has_new_input(self._prompt.transcript):
            return []
        owners = dict.fromkeys([self._team.root.name, self._agent.name])
        return [
            _bind_input_guardrail(each, self._team.agents[name])
            for name in owners
            for each in self._team.agents[name].input_guardrails
        ]

    # the end of a step

    def _make_reply(self, response: Response, thinking: str) -> Reply:
        texts = [
            str(getattr(part, "text", None) or "")
            for item in response.output
            if item.type == "message"
            for part in item.content
        ]
        opaque: dict[str, Json] = {AGENT_KEY: self._agent.name}
        whole = ModelResponse(output=response.output, usage=Usage(), response_id=None)
        try:
            items = to_jsonable_python(whole.to_input_items())
            opaque[ITEMS_KEY] = normalize_json(items, "reply")
        except (NotJson, TooLarge):  # then it is built from the journal
            pass
        return Reply(
            text=make_storable("".join(texts)),
            thinking=thinking,
            opaque=opaque,
            prompt_tokens=response.usage.input_tokens if response.usage else 0,
        )

    async def _make_uses(
        self, calls: Sequence[ResponseFunctionToolCall]
    ) -> tuple[RequestedCall, ...]:
        """Return the calls that the model wants; those of a second handoff are refused."""
        uses: list[RequestedCall] = []
        has_handoff = False
        for call in calls:
            use = _make_use(call)
            if call.name in self._handoffs and not use.refused:
                if has_handoff:
                    use = replace(use, refused=SECOND_HANDOFF_TEXT)
                has_handoff = True
            elif call.name in self._functions and not use.refused:
                use = await self._require_approval(use, self._functions[call.name])
            elif not use.refused:
                names = ", ".join([*self._functions, *self._handoffs]) or "none"
                text = f"there is no tool {safe_repr(call.name, 80)}; the tools are: {names}"
                use = replace(use, refused=text)
            uses.append(use)
        return tuple(uses)

    async def _require_approval(self, use: RequestedCall, tool: FunctionTool) -> RequestedCall:
        """Return the call with the approval that the SDK requires for it, if any."""
        if "approve" in self._hosting.declared.get(use.tool, {}):
            return use
        needed = tool.needs_approval
        if callable(needed):
            try:
                args = cast("dict[str, Any]", use.args)  # type: ignore[explicit-any]
                needed = await needed(self._context, args, use.tool_call_id)
            except Exception as error:  # noqa: BLE001 - code of the agent
                text = f"{type(error).__name__}: {safe_str(error)}"
                problem = f"not made: it is not known whether it needs an approval ({text})"
                return replace(use, refused=problem)
        return replace(use, traits=Traits(approve="block")) if needed else use

    def _make_retry(self, reply: Reply, refused: str) -> Reply:
        """Return a reply without a valid output as a refused call, with the reason.

        Raises:
            ModelFailed: It was not valid several times.
        """
        count = 0
        for turn in reversed(self._prompt.transcript):
            if turn.role == "user":
                break
            count += is_output_retry(turn)
        if count >= OUTPUT_MAX_RETRIES:
            raise ModelFailed(self._model, "bad_output", refused)
        opaque = cast("dict[str, Json]", reply.opaque)
        return replace(
            reply,
            uses=(RequestedCall(tool=OUTPUT_NAME, refused=refused),),
            opaque={**opaque, OUTPUT_RETRY_KEY: True},
        )

    # an answer that is the result of a tool

    async def find_tool_answer(self) -> Reply | None:
        """Return the answer if `tool_use_behavior` takes it from the last calls.

        Raises:
            ModelFailed: An output guardrail was triggered.
        """
        agent = self._agent
        last = self._prompt.transcript[-1] if self._prompt.transcript else None
        if self._is_summary or last is None or agent.tool_use_behavior == "run_llm_again":
            return None
        if self._team.find_author(last) is not agent or not last.uses:
            return None
        chosen = await self._choose_final(last)
        if not chosen.is_final_output:
            return None
        output = chosen.final_output
        if agent.output_type is None or agent.output_type is str:
            output = str(output)
        for guardrail in agent.output_guardrails:
            checked = await guardrail.run(self._context, agent, output)
            if checked.output.tripwire_triggered:
                error = OutputGuardrailTripwireTriggered(checked)
                raise _make_guardrail_failure(self._model, error)
        if agent.hooks is not None:
            end_context = AgentHookContext(context=self._context.context)
            await agent.hooks.on_end(end_context, agent, output)
        return _make_answer(Reply(opaque={AGENT_KEY: agent.name}), output, agent)

    async def _choose_final(self, turn: Turn) -> ToolsToFinalOutputResult:
        agent, behavior = self._agent, self._agent.tool_use_behavior
        tools = {t.name: t for t in await agent.get_all_tools(self._context)}
        results = [
            FunctionToolResult(
                tool=tool,
                output=made.result,
                run_item=ToolCallOutputItem(
                    agent=agent,
                    raw_item=cast("FunctionCallOutput", make_output(made.call, made)),
                    output=made.result,
                ),
            )
            for made in turn.uses
            if not made.problem and isinstance(tool := tools.get(made.tool), FunctionTool)
        ]
        if isinstance(behavior, dict):
            names = behavior["stop_at_tool_names"]
            results = [each for each in results if each.tool.name in names]
        if not results:
            return ToolsToFinalOutputResult(is_final_output=False)
        if callable(behavior):
            chosen = behavior(self._context, results)
            return await chosen if isawaitable(chosen) else chosen
        return ToolsToFinalOutputResult(is_final_output=True, final_output=results[0].output)


def _make_use(call: ResponseFunctionToolCall) -> RequestedCall:
    try:
        args = parse_json(call.arguments or "{}")
    except (NotJson, TooLarge) as error:
        problem = f"the arguments are not acceptable JSON: {error}"
        return RequestedCall(tool=call.name, tool_call_id=call.call_id, refused=problem)
    if not isinstance(args, dict):
        problem = "the arguments are not a JSON object"
        return RequestedCall(tool=call.name, tool_call_id=call.call_id, refused=problem)
    return RequestedCall(tool=call.name, args=args, tool_call_id=call.call_id)


def _make_answer(reply: Reply, output: object, agent: ForeignAgent) -> Reply:
    """Return the answer: text, and its value if the agent has an output type."""
    if agent.output_type is None or agent.output_type is str:
        return replace(reply, text=make_storable(str(output)))
    value = normalize_json(to_jsonable_python(output, serialize_unknown=True), "output")
    if _is_json_of(reply.text, value):  # the text stays as the model wrote it
        return replace(reply, value=value)
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return replace(reply, text=text, value=value)


def _is_json_of(text: str, value: Json) -> bool:
    try:
        return parse_json(text) == value
    except (NotJson, TooLarge):
        return False


def _explain_failure(model: str, error: Exception) -> ModelFailed | None:
    """Return the failure of a model call; None for an error of the agent's own code."""
    if isinstance(error, InputGuardrailTripwireTriggered | OutputGuardrailTripwireTriggered):
        return _make_guardrail_failure(model, error)
    if isinstance(error, ModelRefusalError):
        return ModelFailed(model, "refused", safe_str(error))
    return make_foreign_failure(model, error)


def _make_guardrail_failure(
    model: str, error: InputGuardrailTripwireTriggered | OutputGuardrailTripwireTriggered
) -> ModelFailed:
    result = error.guardrail_result
    kind = "input" if isinstance(error, InputGuardrailTripwireTriggered) else "output"
    info = safe_repr(result.output.output_info)
    detail = f"the {kind} guardrail {result.guardrail.get_name()!r} was triggered: {info}"
    return ModelFailed(model, "guardrail", detail)


# ── parts of the copy of the agent ───────────────────────────────────────────


class _StepHooks(AgentHooks[Any]):  # type: ignore[explicit-any]
    """The hooks of the agent in one step. They get the agent itself, not its copy."""

    def __init__(self, agent: ForeignAgent, team: Team, turns: Sequence[Turn]) -> None:
        self._agent = agent
        self._hooks = agent.hooks or AgentHooks[Any]()
        self._takes_over = team.find_last_author(turns) is not agent

    async def on_start(self, context: HookContext, agent: ForeignAgent) -> None:
        """Pass on the start if the agent has just taken over: each step is a new runner."""
        del agent
        if self._takes_over:
            await self._hooks.on_start(context, self._agent)

    async def on_end(self, context: HookContext, agent: ForeignAgent, output: object) -> None:
        """Pass on the end."""
        del agent
        await self._hooks.on_end(context, self._agent, output)

    async def on_llm_start(
        self,
        context: ForeignContext,
        agent: ForeignAgent,
        system_prompt: str | None,
        input_items: list[TResponseInputItem],
    ) -> None:
        """Pass on the start of the model call."""
        del agent
        await self._hooks.on_llm_start(context, self._agent, system_prompt, input_items)

    async def on_llm_end(
        self, context: ForeignContext, agent: ForeignAgent, response: ModelResponse
    ) -> None:
        """Pass on the end of the model call."""
        del agent
        await self._hooks.on_llm_end(context, self._agent, response)


def _bind_input_guardrail(  # type: ignore[explicit-any]
    guardrail: InputGuardrail[Any], owner: ForeignAgent
) -> InputGuardrail[Any]:
    """Return a guardrail that is given the agent itself, not its copy."""
    check = guardrail.guardrail_function
    return InputGuardrail(
        guardrail_function=lambda context, _, given: check(context, owner, given),
        name=guardrail.get_name(),
        run_in_parallel=guardrail.run_in_parallel,
    )


def _bind_output_guardrail(  # type: ignore[explicit-any]
    guardrail: OutputGuardrail[Any], owner: ForeignAgent
) -> OutputGuardrail[Any]:
    check = guardrail.guardrail_function
    return OutputGuardrail(
        guardrail_function=lambda context, _, output: check(context, owner, output),
        name=guardrail.get_name(),
    )


async def _refuse_to_execute(context: ForeignContext, arguments: str) -> NoReturn:
    """Fail: the runner has executed a tool although it needs an approval."""
    del context, arguments
    raise NotImplementedError("the runner must not execute a tool: the dispatcher makes calls")


def _make_handoff_tool(declared: ForeignHandoff) -> FunctionTool:
    """Return a handoff as a tool. The SDK sends both to the model in the same form."""
    return FunctionTool(
        name=declared.tool_name,
        description=declared.tool_description,
        params_json_schema=declared.input_json_schema,
        on_invoke_tool=_refuse_to_execute,
        strict_json_schema=declared.strict_json_schema,
        needs_approval=True,
    )
