"""Host an `LlmAgent` of Google ADK: one step of its flow for each call.

Each call opens an invocation of its own: a session in memory with the transcript as its events,
and the state that the journal has.

- **Model call**: `agent.run_async` until the reply of the model. The framework builds the
  request with its instructions, tools and callbacks. It executes calls only when the next event
  is read, so the step ends by not reading on. It reads on for a call of `set_model_response`
  only, which validates the output.
- **Tool call**: the framework's own execution of one function call, with its callbacks.

Changes of the state are stored with the replies and the results of tools. A transfer is a call
like any other: its result names the agent that the next model call asks. An agent in an
`AgentTool` is hosted, too: each of its calls is a child run.
"""

import copy
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from inspect import iscoroutinefunction, signature
from typing import Any, Final, cast

import anyio
import msgspec
from google.adk.agents import InvocationContext, LlmAgent, RunConfig
from google.adk.agents._streaming_mode import StreamingMode
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.agents.run_config import ToolThreadPoolConfig
from google.adk.apps import App
from google.adk.artifacts import BaseArtifactService
from google.adk.code_executors import BuiltInCodeExecutor
from google.adk.events import Event
from google.adk.flows.llm_flows import auto_flow  # noqa: F401 - else the first call waits for it
from google.adk.flows.llm_flows.core._function_call_postprocessor import get_agent_to_run
from google.adk.flows.llm_flows.extensions._agent_transfer import _get_transfer_targets
from google.adk.flows.llm_flows.functions import handle_function_calls_async
from google.adk.memory import BaseMemoryService
from google.adk.models.google_llm import Gemini
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.plugins.plugin_manager import PluginManager
from google.adk.sessions import InMemorySessionService, Session
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.adk.tools.transfer_to_agent_tool import TransferToAgentTool
from google.adk.utils._schema_utils import validate_schema
from google.genai import types
from msgspec.structs import replace
from pydantic import TypeAdapter, ValidationError

from midrun.agents.signature import Function, SchemaArguments
from midrun.agents.tool import Tool, ToolOptions, is_async
from midrun.agents.tool_context import Call
from midrun.codec.safe_repr import safe_repr, safe_str
from midrun.codec.strict_json import normalize_json
from midrun.core.transcript import Turn
from midrun.core.values import Json, Reply, RequestedCall
from midrun.errors import Misconfigured, ModelFailed
from midrun.hosts.adk_session import RESULT_KEY, AdkConversation, State, find_transfer
from midrun.hosts.hosted_agent import (
    OPEN_SCHEMA,
    OUTPUT_WITH_CALLS_TEXT,
    HostedAgent,
    Hosting,
    QuestionAnswers,
    StepHostModel,
    find_asking_turn,
    make_foreign_failure,
    stream_in_task,
)
from midrun.models.prices import make_gemini_spend
from midrun.models.prompt_texts import (
    CONTINUE_NOTE,
    format_result,
    mark_runtime_text,
)
from midrun.ports.model import Finished, Piece, Prompt

FRAMEWORK: Final = "adk"
OUTPUT_TOOL: Final = "set_model_response"
"""The tool by which an agent with other tools gives its `output_schema`."""

TRANSFER_TOOL: Final = "transfer_to_agent"
THREADS_MAX: Final = 32
"""Threads for blocking tools that no other process can import."""

LOCAL_TOOLS: Final = frozenset({"preload_memory", "example_tool"})
"""Tools without a declaration that only change the request."""

REFUSAL_CODES: Final = frozenset(
    {"SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY"}
)
"""Reasons by which Gemini ends a reply that it would not give."""

ANY_VALUE: Final = TypeAdapter(object)

NO_AGENT_TEXT: Final = (
    "Cannot host {kind} of google.adk: only LlmAgent and App are hosted. For a workflow, host "
    "an async function that starts its agents."
)
MODE_TEXT: Final = (
    "Cannot host {name} in the mode {mode}: it ends by a tool of ADK's own loop. Put it in an "
    "AgentTool: each of its calls is a child run."
)
CODE_EXECUTOR_TEXT: Final = (
    "Cannot host the code executor of {name}: it runs code inside of the model call. Give the "
    "agent a tool that runs the code, or BuiltInCodeExecutor."
)
INPUT_SCHEMA_TEXT: Final = (
    "Cannot host the AgentTool {name} with an input_schema: the task of a child run is a text. "
    "Remove input_schema=…."
)
CREDENTIALS_TEXT: Final = (
    "Cannot host a request for credentials: the run would wait inside of a call. Open the "
    "credentials in the context."
)
CONFIRM_QUESTION: Final = "May {name} be executed?"
RESULT_QUESTION: Final = "{name} was started. What is its result?"

CONFIRMATION_KEY: Final = "confirmation"
LONG_RUNNING_KEY: Final = "result"
"""Keys of the two questions that a call of ADK can ask; see `QuestionAnswers`."""

AFFIRMATIVES: Final = frozenset({"yes", "y", "true", "confirm", "confirmed", "approve"})


@dataclass(frozen=True, kw_only=True)
class AdkContext:
    """The return value of a `context` function for an agent of ADK that needs services.

    Attributes:
        state: The state of the session at the start of each call; the journal wins over it.
        artifact_service: Where tools save artifacts. It must be durable: artifacts in the
            memory of a process do not survive it. None: tools cannot save artifacts.
        memory_service: For tools that load memories.
        user_id: The user of the session.
    """

    state: Mapping[str, object] = field(default_factory=dict)
    artifact_service: BaseArtifactService | None = None
    memory_service: BaseMemoryService | None = None
    user_id: str = "midrun"


def host_agent(agent: object, hosting: Hosting) -> HostedAgent:
    """Return an agent or an app of ADK as an `Agent`; see `midrun.host`."""
    root = agent.root_agent if isinstance(agent, App) else agent
    if not isinstance(root, LlmAgent):
        raise Misconfigured("host", NO_AGENT_TEXT.format(kind=type(root).__name__))
    plugins = agent.plugins if isinstance(agent, App) else []
    name = hosting.choose_name(root.name)
    names = [tool.name for tool, _ in _list_tools(root)]
    if not _has_toolsets(root):
        hosting.check_tool_names([*names, TRANSFER_TOOL])
    return _host(root, hosting, name, plugins)


def _host(
    root: LlmAgent, hosting: Hosting, name: str, plugins: Sequence[BasePlugin]
) -> HostedAgent:
    for agent in _list_agents(root):
        if problem := _find_unsupported(agent):
            raise Misconfigured(f"host {name}", problem)
    opener = _Opener(root, hosting, name, plugins)
    box = _ToolBox(opener, plugins)
    return HostedAgent(
        name,
        framework=FRAMEWORK,
        model=_StepModel(opener, box),
        tools=list(box.tools.values()),
        hosting=hosting,
        find_unlisted_tool=box.find_unlisted if _has_toolsets(root) else None,
        ungated_tools=tuple(_list_ungated(root)),
    )


def _list_agents(root: LlmAgent) -> list[LlmAgent]:
    """Return the agent and all agents that it may transfer to.

    Raises:
        Misconfigured: One of them is not an `LlmAgent`.
    """
    found, queue = [], [root.root_agent]
    while queue:
        agent = queue.pop(0)
        if not isinstance(agent, LlmAgent):
            raise Misconfigured("host", NO_AGENT_TEXT.format(kind=type(agent).__name__))
        found.append(agent)
        queue += agent.sub_agents
    return found


def _list_tools(root: LlmAgent) -> list[tuple[BaseTool, LlmAgent]]:
    """Return the tools that are known when the agent is hosted, also those of child runs."""
    found = []
    for agent in _list_agents(root):
        for each in agent.tools:
            if isinstance(each, BaseToolset):
                continue
            tool = each if isinstance(each, BaseTool) else FunctionTool(cast("Function", each))
            found.append((tool, agent))
            if isinstance(tool, AgentTool) and isinstance(tool.agent, LlmAgent):
                found += _list_tools(tool.agent)
    return found


def _has_toolsets(root: LlmAgent) -> bool:
    return any(isinstance(t, BaseToolset) for agent in _list_agents(root) for t in agent.tools)


def _list_ungated(root: LlmAgent) -> Iterator[str]:
    """Yield the tools that the provider executes inside of a model call."""
    for tool, _ in _list_tools(root):
        if tool._get_declaration() is None and tool.name not in LOCAL_TOOLS:  # noqa: SLF001 - no public test
            yield tool.name
    if any(agent.code_executor is not None for agent in _list_agents(root)):
        yield "code_execution"


def _find_unsupported(agent: LlmAgent) -> str:
    """Return the reason why the agent cannot be hosted, with the remedy; "" if it can."""
    if agent.mode not in {None, "chat"}:
        return MODE_TEXT.format(name=agent.name, mode=agent.mode)
    executor = agent.code_executor
    if executor is not None and not isinstance(executor, BuiltInCodeExecutor):
        return CODE_EXECUTOR_TEXT.format(name=agent.name)
    for each in agent.tools:
        if isinstance(each, AgentTool) and not isinstance(each.agent, LlmAgent):
            return NO_AGENT_TEXT.format(kind=type(each.agent).__name__)
        if isinstance(each, AgentTool) and cast("LlmAgent", each.agent).input_schema:
            return INPUT_SCHEMA_TEXT.format(name=each.name)
    return ""


# ── the session for one call ─────────────────────────────────────────────────


class _Opener:
    """Opens an invocation of the agent for one call."""

    def __init__(
        self, root: LlmAgent, hosting: Hosting, name: str, plugins: Sequence[BasePlugin]
    ) -> None:
        self.root = root
        self.hosting = hosting
        self.name = name
        self._plugins = plugins

    @asynccontextmanager
    async def open(
        self, run_id: str, attempt_id: str, conversation: AdkConversation
    ) -> AsyncIterator[InvocationContext]:
        """Open an invocation with a session in memory, and the services of the context.

        Toolsets and plugins, which all runs share, use its id as a key: each call has its own.
        """
        async with self.hosting.open_context(run_id) as opened:
            context = _convert_context(opened)
            last = next((e for e in reversed(conversation.events) if e.author == "user"), None)
            yield InvocationContext(
                invocation_id=f"{run_id}.{attempt_id}",
                agent=conversation.agent,
                session=Session(
                    id=run_id or "run",
                    app_name=self.name,
                    user_id=context.user_id,
                    state={**context.state, **conversation.state},
                    events=conversation.events,
                ),
                session_service=InMemorySessionService(),
                artifact_service=context.artifact_service,
                memory_service=context.memory_service,
                plugin_manager=PluginManager(plugins=list(self._plugins)),
                user_content=last.content if last else None,
                run_config=RunConfig(
                    streaming_mode=StreamingMode.SSE,
                    tool_thread_pool_config=ToolThreadPoolConfig(max_workers=THREADS_MAX),
                ),
            )


def _convert_context(opened: object) -> AdkContext:
    match opened:
        case None:
            return AdkContext()
        case AdkContext():
            return opened
        case Mapping():
            return AdkContext(state=opened)
        case _:
            problem = (
                "context must return a dict with the state of the session, or an AdkContext. "
                f"Got {safe_repr(opened, 80)}."
            )
            raise Misconfigured("host", problem)


# ── tools ────────────────────────────────────────────────────────────────────


class _ToolBox:
    """The tools of the agent and of all agents that it may transfer to, by name.

    If two agents have different tools with one name, the agent that is asked decides. Tools of
    toolsets are only known while the agent runs.
    """

    def __init__(self, opener: _Opener, plugins: Sequence[BasePlugin]) -> None:
        self._opener = opener
        self._hosting = opener.hosting
        agents = _list_agents(opener.root)
        self._has_hooks = bool(plugins) or any(
            agent.before_tool_callback
            or agent.after_tool_callback
            or agent.on_tool_error_callback
            for agent in agents
        )
        by_name: dict[str, list[BaseTool]] = {}
        for agent in agents:
            for each in agent.tools:
                if isinstance(each, BaseToolset):
                    continue
                tool = each if isinstance(each, BaseTool) else FunctionTool(cast("Any", each))  # type: ignore[explicit-any]
                by_name.setdefault(tool.name, []).append(tool)
        self.tools = {
            name: self._make_tool(name, tools)
            for name, tools in by_name.items()
            if any(tool._get_declaration() for tool in tools)  # noqa: SLF001 - no public test
        }
        self.direct = frozenset(
            name
            for name, (tool, *_) in by_name.items()
            if isinstance(tool, AgentTool) and tool.skip_summarization
        )
        if any(_get_transfer_targets(agent) for agent in agents):
            # It changes nothing but the agent that is asked next, which the journal has.
            self._hosting.declare_default(TRANSFER_TOOL, ToolOptions(read_only=True))
            self.tools[TRANSFER_TOOL] = self._make_framework_tool(TRANSFER_TOOL)
        self._unlisted: dict[str, Tool] = {}

    def find_unlisted(self, name: str) -> Tool | None:
        """Return a tool of a toolset. The framework refuses a wrong name."""
        if name not in self._unlisted:
            self._unlisted[name] = self._make_framework_tool(name)
        return self._unlisted[name]

    def _make_tool(self, name: str, tools: Sequence[BaseTool]) -> Tool:
        tool = tools[0]
        if isinstance(tool, AgentTool):
            child = cast("LlmAgent", tool.agent)
            names = [each.name for each, _ in _list_tools(child)]
            hosted = _host(
                child, self._hosting.narrow(names), f"{self._opener.name}.{name}", ()
            )
            return self._hosting.make_child_tool(name, hosted, tool.description, "request")
        function = cast("Function | None", getattr(tool, "func", None))
        is_same = all(getattr(other, "func", other) == (function or tool) for other in tools)
        if not is_same:
            return self._make_framework_tool(name)
        schema = _get_schema(tool)
        is_blocking = function is not None and not is_async(function)
        gate = _make_gate(tool)
        properties = cast("dict[str, Json]", schema.get("properties") or {})
        # Injected arguments (tool_context) are not in the schema: it needs the framework.
        is_plain = function and set(signature(function).parameters) == set(properties)
        if is_blocking and function and is_plain and not tool.is_long_running:
            made = self._hosting.make_process_tool(name, function, tool.description, gate)
            if made is not None and not self._has_hooks:
                return made
        return self._make_framework_tool(
            name,
            description=tool.description,
            schema=schema,
            gate=gate,
            is_blocking=is_blocking,
        )

    def _make_framework_tool(
        self,
        name: str,
        *,
        description: str = "",
        schema: dict[str, Json] | None = None,
        gate: Function | None = None,
        is_blocking: bool = False,
    ) -> Tool:
        is_gated = gate is not None or bool(self._hosting.declared.get(name, {}).get("approve"))

        async def call_framework(call: Call, /, **arguments: object) -> Json:
            # ADK runs a blocking function in a thread, which nothing can stop.
            with anyio.CancelScope(shield=True) if is_blocking else nullcontext():
                return await self._call_tool(name, arguments, call, is_gated=is_gated)

        made = self._hosting.make_tool(
            name,
            call_framework,
            description=description,
            arguments=SchemaArguments(schema or OPEN_SCHEMA),
            needs_approval=gate,
        )
        if is_blocking:
            vars(made).update(traits=replace(made.traits, unstoppable=True))
        return made

    async def _call_tool(
        self, name: str, arguments: dict[str, object], call: Call, *, is_gated: bool
    ) -> Json:
        last = find_asking_turn(call.transcript)
        conversation = AdkConversation(self._opener.root, call.transcript[:last])
        if last is not None:
            conversation.apply_reply(call.transcript[last])
        id_ = call.tool_call_id or call.key
        wanted = types.FunctionCall(id=id_, name=name, args=arguments)
        conversation.add_event("model", [types.Part(function_call=wanted)])
        answers = QuestionAnswers.read(call)
        started = cast("State", answers.carried or {})
        if LONG_RUNNING_KEY in answers.by_key:
            return _encode_late_result(name, answers.by_key[LONG_RUNNING_KEY], started)
        conversation.state |= started
        # A person has approved the call before it was started, or has answered its question.
        confirmed = {id_: ToolConfirmation(confirmed=True)} if is_gated else None
        if CONFIRMATION_KEY in answers.by_key:
            confirmed = {id_: _make_confirmation(answers.by_key[CONFIRMATION_KEY])}
        attempt_id = f"{call.key}.{call.attempt}"
        async with self._opener.open(call.run_id, attempt_id, conversation) as context:
            agent = conversation.agent
            found = await agent.canonical_tools(ReadonlyContext(context))
            tools = {tool.name: tool for tool in found}
            if targets := _get_transfer_targets(agent):
                tools[TRANSFER_TOOL] = TransferToAgentTool([each.name for each in targets])
            event = await handle_function_calls_async(
                context, conversation.events[-1], tools, tool_confirmation_dict=confirmed
            )
            if event is not None and (target := event.actions.transfer_to_agent):
                get_agent_to_run(context, target)  # raises if it is not allowed
            _ask_person(tools[name], id_, event, answers, arguments)
            return _encode_result(name, event, started, has_ended=context.end_invocation)


def _ask_person(
    tool: BaseTool,
    id_: str,
    event: Event | None,
    answers: QuestionAnswers,
    arguments: Mapping[str, object],
) -> None:
    """Ask the question that the tool left: for a confirmation, or for its later result.

    Raises:
        PauseHere: It left one. The changes of the state so far are kept with the question.
    """
    delta = _encode_state(event.actions.state_delta) if event else {}
    carried: State = {**cast("State", answers.carried or {}), **delta}
    asked = event.actions.requested_tool_confirmations if event else {}
    if id_ in asked:
        data: State = {"options": ["yes", "no"]}
        if asked[id_].payload is not None:
            data["payload"] = normalize_json(asked[id_].payload, "payload")
        question = asked[id_].hint or CONFIRM_QUESTION.format(name=tool.name)
        answers.ask(CONFIRMATION_KEY, question, data, carried)
    if tool.is_long_running:
        given = event.get_function_responses()[0].response if event else None
        shown: State = {}
        if given:
            shown["status"] = normalize_json(ANY_VALUE.dump_python(given, mode="json"))
        options = arguments.get("options")
        if isinstance(options, list) and all(isinstance(each, str) for each in options):
            shown["options"] = cast("list[Json]", options)  # as in ADK's `get_user_choice`
        question = RESULT_QUESTION.format(name=tool.name)
        answers.ask(LONG_RUNNING_KEY, question, shown, carried)


def _make_confirmation(answer: Json) -> ToolConfirmation:
    """Return the answer of a person as a confirmation; a decline is answered with False."""
    if isinstance(answer, dict):
        payload = answer.get("payload", answer)
        return ToolConfirmation(confirmed=answer.get("confirmed") is not False, payload=payload)
    is_yes = answer is True or str(answer).strip().lower() in AFFIRMATIVES
    return ToolConfirmation(confirmed=is_yes, payload=answer)


def _encode_late_result(name: str, answer: Json, state: State) -> Json:
    """Return the result of a long-running tool, which a person has given."""
    if not state:
        return answer
    given = cast("State", answer) if isinstance(answer, dict) else {"result": answer}
    response = types.FunctionResponse(name=name, response=given)
    return {RESULT_KEY: _dump_model(response), "state": state}


def _get_schema(tool: BaseTool) -> dict[str, Json]:
    declared = tool._get_declaration()  # noqa: SLF001 - no public way
    if declared is None:
        return OPEN_SCHEMA
    if isinstance(declared.parameters_json_schema, dict):
        return declared.parameters_json_schema
    if declared.parameters is None:
        return OPEN_SCHEMA
    schema = declared.parameters.json_schema.model_dump(mode="json", exclude_none=True)
    return cast("dict[str, Json]", normalize_json(schema))


def _make_gate(tool: BaseTool) -> Function | None:
    """Return the function that decides whether the framework requires a confirmation."""
    required = getattr(tool, "_require_confirmation", False)
    if not required:
        return None

    def needs_approval(args: dict[str, Json]) -> bool:
        if not callable(required) or iscoroutinefunction(required):
            return True
        known = signature(required).parameters
        return bool(required(**{key: value for key, value in args.items() if key in known}))

    return needs_approval


def _encode_result(name: str, event: Event | None, started: State, *, has_ended: bool) -> Json:
    """Return the result of a tool for the journal: a value, or a marked object.

    `started` are the changes of the state by earlier attempts, which asked a person.

    Raises:
        NotImplementedError: The tool wants something of ADK's own loop.
    """
    if event is None:
        raise NotImplementedError(f"Cannot host {name}: ADK has no result for its call.")
    actions = event.actions
    if actions.requested_auth_configs:
        raise NotImplementedError(CREDENTIALS_TEXT)
    (response,) = event.get_function_responses()
    facts: State = {}
    if delta := started | _encode_state(actions.state_delta):
        facts["state"] = delta
    if actions.transfer_to_agent:
        facts["transfer"] = actions.transfer_to_agent
    if actions.skip_summarization or has_ended:
        facts["end"] = True
    given = normalize_json(ANY_VALUE.dump_python(response.response or {}, mode="json"))
    if facts or response.parts:
        return {RESULT_KEY: _dump_model(response), **facts}
    if (
        isinstance(given, dict)
        and list(given) == ["result"]
        and not isinstance(given["result"], dict)
    ):
        return given["result"]
    return given


def _encode_state(delta: Mapping[str, object]) -> State:
    """Return changes of the state as JSON, without those for one invocation only."""
    kept = {key: value for key, value in delta.items() if not key.startswith("temp:")}
    return cast("State", normalize_json(ANY_VALUE.dump_python(kept, mode="json"), "state"))


def _dump_model(value: types.FunctionResponse | types.Content) -> Json:
    return normalize_json(value.model_dump(mode="json", exclude_none=True))


# ── model calls ──────────────────────────────────────────────────────────────


class _StepModel(StepHostModel):
    """One model call of the agent: its flow up to the reply of the model."""

    def __init__(self, opener: _Opener, box: _ToolBox) -> None:
        self._opener = opener
        self._box = box
        model = opener.root.model
        own_name = model if isinstance(model, str) else getattr(model, "model", "")
        self.priced_name = str(own_name)
        self.name = f"{FRAMEWORK}:{own_name or 'default'}"

    async def _stream_step(self, prompt: Prompt) -> AsyncGenerator[Piece | Finished]:
        last = prompt.transcript[-1] if len(prompt.transcript) else None
        if not prompt.runtime_request and (end := self._find_end(last)) is not None:
            yield Finished(reply=Reply(text=end))
            return
        conversation = AdkConversation(self._opener.root, prompt.transcript, prompt.files)
        changes: dict[str, object] = {}
        if last is not None and last.role != "user" and not find_transfer(last.uses):
            changes["before_agent_callback"] = None  # it has run for this message of a person
        if prompt.runtime_request:  # a summary is no output
            changes |= {"output_schema": None, "output_key": None}
            conversation.add_text(mark_runtime_text(prompt.runtime_request))
        elif last is not None and last.role == "assistant" and not last.uses:
            conversation.add_text(mark_runtime_text(CONTINUE_NOTE))
        conversation.agent = conversation.agent.model_copy(update=changes)
        try:
            opening = self._opener.open(prompt.run_id, prompt.attempt_id, conversation)
            async with opening as context:
                step = _ModelStep(conversation.agent, context, self.name)
                async with stream_in_task(step.run()) as pieces:
                    async for piece in pieces:
                        yield piece
        except (ModelFailed, Misconfigured):
            raise
        except Exception as error:
            if (failure := make_foreign_failure(self.name, error)) is None:
                raise
            raise failure from error

    def _find_end(self, last: Turn | None) -> str | None:
        """Return the answer if the last calls have ended the run."""
        if last is None or last.role != "assistant":
            return None
        for use in last.uses:
            found = use.result if isinstance(use.result, dict) else {}
            if use.tool in self._box.direct and not use.problem:
                return format_result(use)
            if RESULT_KEY in found and found.get("end"):
                response = cast("State", found[RESULT_KEY]).get("response")
                given = cast("State", response or {})
                text = given["result"] if list(given) == ["result"] else given
                return text if isinstance(text, str) else msgspec.json.encode(text).decode()
        return None


class _ModelStep:
    """The step of a model call: pieces of the reply, then the reply as the loop takes it."""

    def __init__(self, agent: LlmAgent, context: InvocationContext, model: str) -> None:
        self._agent = agent
        self._context = context
        self._model = model
        self._delta: dict[str, object] = {}

    async def run(self) -> AsyncGenerator[Piece | Finished]:
        """Yield the pieces of the reply, and the reply."""
        reply: Event | None = None
        last: Event | None = None
        async with aclosing(self._agent.run_async(self._context)) as events:
            async for event in events:
                if event.partial:
                    for piece in _make_pieces(event):
                        yield piece
                    continue
                self._check(event)
                self._delta |= event.actions.state_delta
                calls = [call.name for call in event.get_function_calls()]
                if reply is None and (calls or event.content):
                    reply = event
                if any(name != OUTPUT_TOOL for name in calls):
                    break  # the framework would execute them with the next event
                if event.get_function_responses() and not event.actions.set_model_response:
                    last = event
                    break  # the output is not valid: the framework would ask the model again
                last = event
        yield self._settle(reply, last)

    def _check(self, event: Event) -> None:
        """Raise if the provider did not complete the reply.

        Raises:
            ModelFailed: It did not.
        """
        if event.error_code and event.error_code != "MAX_TOKENS":
            detail = f"{event.error_code}: {event.error_message or 'no detail'}"
            if event.error_code in REFUSAL_CODES:
                raise ModelFailed(self._model, "refused", detail)
            raise ModelFailed(self._model, "bad_output", detail, transient=True)
        # A server that shuts down may end the stream cleanly, without a reason. Other models
        # than Gemini may give none.
        is_reply = event.model_version is not None and event.finish_reason is None
        if is_reply and isinstance(self._agent.canonical_model, Gemini):
            detail = "the reply ended before it was whole"
            raise ModelFailed(self._model, "broken_stream", detail, transient=True)

    def _settle(self, reply: Event | None, last: Event | None) -> Finished:
        if reply is None or reply.content is None:
            return Finished(reply=Reply())
        parts = reply.content.parts or []
        stored: State = {"content": _dump_model(reply.content)}
        if delta := _encode_state(self._delta):
            stored["state"] = delta
        usage = reply.usage_metadata
        made = Reply(
            text=_join_text(reply),
            thinking="".join(part.text or "" for part in parts if part.thought),
            opaque=stored,
            prompt_tokens=(usage.prompt_token_count if usage else None) or 0,
            uses=tuple(_make_use(call) for call in reply.get_function_calls()),
        )
        model = reply.model_version or self._model.removeprefix(f"{FRAMEWORK}:")
        settled = self._settle_output(made, last)
        return Finished(reply=settled, spent=make_gemini_spend(model, usage) if usage else None)

    def _settle_output(self, reply: Reply, last: Event | None) -> Reply:
        """Return the reply: with calls, with a refused output, or as the answer."""
        outputs = [use for use in reply.uses if use.tool == OUTPUT_TOOL]
        if reply.uses and len(outputs) < len(reply.uses):
            kept = (
                replace(use, refused=OUTPUT_WITH_CALLS_TEXT) if use in outputs else use
                for use in reply.uses
            )
            return replace(reply, uses=tuple(kept))
        text = _join_text(last) if last else reply.text
        if outputs and last is not None and last.get_function_responses():
            given = last.get_function_responses()[0].response or {}
            refused = str(given.get("error") or "the output is not valid")
            return replace(reply, uses=tuple(replace(use, refused=refused) for use in outputs))
        reply = replace(reply, uses=(), text=text)
        schema = self._agent.output_schema
        if schema is None or not text.strip():
            return reply
        try:
            value = validate_schema(schema, text)
        except (ValidationError, ValueError) as error:
            detail = f"the output does not fit output_schema: {safe_str(error, 500)}"
            raise ModelFailed(self._model, "bad_output", detail) from error
        return replace(reply, value=normalize_json(ANY_VALUE.dump_python(value, mode="json")))


def _make_pieces(event: Event) -> Iterator[Piece]:
    for part in (event.content.parts if event.content else None) or []:
        if part.text:
            yield Piece(kind="thinking" if part.thought else "text", text=part.text)


def _join_text(event: Event) -> str:
    parts = (event.content.parts if event.content else None) or []
    return "".join(part.text or "" for part in parts if not part.thought)


def _make_use(call: types.FunctionCall) -> RequestedCall:
    args = normalize_json(copy.deepcopy(call.args or {}), "args")
    return RequestedCall(tool=call.name or "", args=args, tool_call_id=call.id or "")
