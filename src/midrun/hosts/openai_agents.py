"""Host an agent of the OpenAI Agents SDK: one turn of its runner for a model call.

A **model call** is `Runner.run` with the transcript as its input and one turn as its limit; see
`openai_agents_step.py`. The runner adds instructions, tools, model settings, hooks and
guardrails, and validates the output, because validators are code of the agent. It stops before
it executes a tool: this would bypass the dispatcher.

A **tool call** is the agent's own tool, invoked with its guardrails, hooks and time limit. A
blocking function that another process can import, and that takes no context, runs in such a
process instead, where it can be killed.

A **handoff** is a tool call whose result names the next agent; see `openai_agents_team.py`.

Tools of the provider (web search, code interpreter) run at the provider, inside the model call.
An agent that is a tool of another (`as_tool`) runs inside of that one call.
"""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from inspect import signature
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, cast, get_args, get_origin, get_type_hints

import anyio
from agents import (
    Agent,
    FunctionTool,
    ItemHelpers,
    RunContextWrapper,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrailData,
    ToolOutputGuardrailData,
    function_span,
    trace,
)
from agents.agent import AgentBase
from agents.tool import (
    default_tool_error_function,
    invoke_function_tool,
    resolve_function_tool_failure_error_function,
)
from agents.tool_context import ToolContext
from msgspec.structs import replace
from openai.types.responses import ResponseFunctionToolCall

from midrun.agents.signature import Function, SchemaArguments
from midrun.agents.tool import Tool, is_async, traits
from midrun.agents.tool_context import Call
from midrun.codec.strict_json import normalize_json
from midrun.core.values import Json
from midrun.errors import Misconfigured, NotJson
from midrun.hosts.hosted_agent import OPEN_SCHEMA, HostedAgent, Hosting
from midrun.hosts.openai_agents_step import FRAMEWORK, StepModel, check_provider_tool
from midrun.hosts.openai_agents_team import (
    CONTENT_KEY,
    TARGET_KEY,
    ForeignAgent,
    ForeignContext,
    ForeignHandoff,
    Team,
)

SERVER_STATE_FIELDS: Final = frozenset({"previous_response_id", "conversation"})
"""Fields of a request that let the provider keep the history."""

PLAIN_TYPES: Final = frozenset({str, int, float, bool, NoneType, dict, list, Any})
PLAIN_ORIGINS: Final = frozenset({dict, list, Union, UnionType})
"""Types of results that are JSON as they are, and their generic forms."""


class ToolGuardrailTriggered(Exception):
    """A guardrail of a tool stopped the call."""


def host_agent(agent: object, hosting: Hosting) -> HostedAgent:
    """Return an agent of the OpenAI Agents SDK as an `Agent`; see `midrun.host`."""
    if not isinstance(agent, Agent):
        problem = (
            f"Cannot host {type(agent).__name__} of the OpenAI Agents SDK: only text agents "
            "are hosted. Pass an agents.Agent."
        )
        raise Misconfigured("host", problem)
    team = Team(agent)
    for each in team.agents.values():
        _check_agent(each)
    box = _ToolBox(team, hosting)
    return HostedAgent(
        hosting.choose_name(agent.name),
        framework=FRAMEWORK,
        model=StepModel(team, hosting),
        tools=list(box.tools.values()),
        hosting=hosting,
        find_unlisted_tool=box.find_unlisted if box.is_dynamic else None,
        ungated_tools=tuple(_list_ungated_tools(team)),
    )


def _check_agent(agent: ForeignAgent) -> None:
    """Refuse an agent that needs what Midrun cannot give it.

    Raises:
        Misconfigured: It has such a feature. The text says what to do.
    """
    if type(agent).__module__.startswith("agents.sandbox"):
        problem = (
            f"Cannot host {agent.name!r}: a SandboxAgent works in a session of its runner. "
            "Pass an agents.Agent with function tools."
        )
        raise Misconfigured("host", problem)
    settings = agent.model_settings
    for extra in (settings.extra_args, settings.extra_body):
        given = SERVER_STATE_FIELDS.intersection(extra if isinstance(extra, dict) else {})
        if given:
            problem = (
                f"Cannot host {agent.name!r} with {min(given)} in its model settings: the "
                "journal is the history. Remove it."
            )
            raise Misconfigured("host", problem)
    for tool in agent.tools:
        if not isinstance(tool, FunctionTool):
            check_provider_tool(agent, tool)


def _list_ungated_tools(team: Team) -> Iterator[str]:
    """Yield the tools whose calls are not journaled: of the provider, and of inner agents."""
    for agent in team.agents.values():
        for tool in agent.tools:
            if isinstance(tool, FunctionTool):
                yield from (f"{tool.name}/{name}" for name in _list_inner_tools(tool))
            elif tool.name != "tool_search":  # it only reveals other tools
                yield tool.name


def _list_inner_tools(tool: FunctionTool, seen: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the tools of the agent that is this tool, and of agents that are tools of it.

    Raises:
        Misconfigured: One needs an approval, which cannot be asked for inside of a call.
    """
    inner = tool._agent_instance  # noqa: SLF001 - there is no public way to it
    if not isinstance(inner, Agent) or inner.name in seen:
        return
    for agent in Team(inner).agents.values():
        for each in agent.tools:
            if getattr(each, "needs_approval", False):
                problem = (
                    f"Cannot host agent {inner.name!r} as the tool {tool.name!r}: its tool "
                    f"{each.name!r} needs an approval, which cannot be asked for inside of a "
                    f"call. Hand off to the agent, or set needs_approval for {tool.name!r}."
                )
                raise Misconfigured("host", problem)
            yield each.name
            if isinstance(each, FunctionTool):
                deeper = _list_inner_tools(each, seen | {inner.name})
                yield from (f"{each.name}/{name}" for name in deeper)


# ── tools ────────────────────────────────────────────────────────────────────


class _ToolBox:
    """The tools and handoffs of all agents of a team, by name.

    A call belongs to the agent that asked for it, so a name must stand for one tool. MCP
    servers and subclasses of `Agent` list their tools while the agent runs.
    """

    def __init__(self, team: Team, hosting: Hosting) -> None:
        self._team = team
        self._hosting = hosting
        self._unlisted: dict[str, Tool] = {}
        self.is_dynamic = any(
            agent.mcp_servers or type(agent).get_all_tools is not AgentBase.get_all_tools
            for agent in team.agents.values()
        )
        functions = self._collect_functions()
        handoffs = {each.tool_name: each for each in team.list_all_handoffs()}
        if clash := sorted(functions.keys() & handoffs.keys()):
            problem = (
                f"Cannot host a tool with the name of the handoff {clash[0]!r}. Rename it."
            )
            raise Misconfigured("host", problem)
        if not self.is_dynamic:
            hosting.check_tool_names([*functions, *handoffs])
        for name in team.pure_handoffs:
            hosting.declare_default(name, traits(read_only=True))
        self.tools = {name: self._make_tool(tool) for name, tool in functions.items()}
        self.tools |= {name: self._make_handoff(each) for name, each in handoffs.items()}

    def _collect_functions(self) -> dict[str, FunctionTool]:
        found: dict[str, FunctionTool] = {}
        for agent in self._team.agents.values():
            for tool in agent.tools:
                if not isinstance(tool, FunctionTool):
                    continue
                if found.setdefault(tool.name, tool) is not tool:
                    problem = (
                        f"Cannot host two tools with the name {tool.name!r} (one of agent "
                        f"{agent.name!r}): traits are declared by name. Rename one."
                    )
                    raise Misconfigured("host", problem)
        return found

    def find_unlisted(self, name: str) -> Tool:
        """Return a tool that is only known while the agent runs.

        The step has refused names that the agent does not have. The schema is not part of the
        tool: its version must be the same in every process, or an approval would not count.
        """
        if name not in self._unlisted:
            self._unlisted[name] = self._make_framework_tool(name, is_blocking=False)
        return self._unlisted[name]

    def _make_tool(self, tool: FunctionTool) -> Tool:
        gate = _always_approve if tool.needs_approval is True else None
        function: Function | None = getattr(tool, "__wrapped__", None)
        is_blocking = function is not None and not is_async(function)
        if function is not None and is_blocking and self._is_plain(tool, function):
            made = self._hosting.make_process_tool(tool.name, function, tool.description, gate)
            if made is not None:
                if made.timeout is None and tool.timeout_seconds is not None:
                    vars(made).update(timeout=timedelta(seconds=tool.timeout_seconds))
                return made
        return self._make_framework_tool(
            tool.name,
            description=tool.description,
            schema=tool.params_json_schema,
            is_blocking=is_blocking,
            gate=gate,
        )

    def _is_plain(self, tool: FunctionTool, function: Function) -> bool:
        """Tell whether a call needs nothing but the function and its arguments."""
        owners = [agent for agent in self._team.agents.values() if tool in agent.tools]
        failure = resolve_function_tool_failure_error_function(tool)
        properties = tool.params_json_schema.get("properties", {})
        return (
            set(signature(function).parameters) == set(properties)  # no context
            and _returns_json(function)
            and failure is default_tool_error_function
            and tool.timeout_error_function is None
            and not (tool.tool_input_guardrails or tool.tool_output_guardrails)
            and all(agent.hooks is None for agent in owners)
        )

    def _make_framework_tool(
        self,
        name: str,
        *,
        description: str = "",
        schema: dict[str, Json] | None = None,
        is_blocking: bool,
        gate: Function | None = None,
    ) -> Tool:
        # `call` is positional-only: the tool may have an argument of that name.
        async def call_framework(call: Call, /, **arguments: object) -> Json:
            # The SDK runs a blocking function in a thread, which nothing can stop. A
            # cancellation would only abandon it, so the call waits for its end.
            with anyio.CancelScope(shield=True) if is_blocking else nullcontext():
                return await self._call(name, arguments, call)

        tool = self._hosting.make_tool(
            name,
            call_framework,
            description=description,
            arguments=SchemaArguments(schema or OPEN_SCHEMA),
            needs_approval=gate,
        )
        if is_blocking:
            vars(tool).update(traits=replace(tool.traits, unstoppable=True))
        return tool

    def _make_handoff(self, declared: ForeignHandoff) -> Tool:
        return self._make_framework_tool(
            declared.tool_name,
            description=declared.tool_description,
            schema=declared.input_json_schema,
            is_blocking=False,
        )

    async def _call(self, name: str, arguments: dict[str, object], call: Call) -> Json:
        """Make one call for the agent that asked for it; return the result."""
        agent = self._team.find_caller(call.transcript, call.tool_call_id)
        text = json.dumps(arguments)
        async with self._hosting.open_context(call.run_id) as value:
            context = RunContextWrapper(value)
            declared = self._team.find_handoff(agent, name)
            with trace(self._team.root.name, group_id=call.run_id):
                if declared is not None:
                    return await self._hand_off(declared, agent, context, text)
                tools = await agent.get_all_tools(context)
                functions = {t.name: t for t in tools if isinstance(t, FunctionTool)}
                if (tool := functions.get(name)) is None:
                    raise LookupError(f"agent {agent.name} has no tool {name} at the moment")
                with function_span(name, input=text):
                    return await _invoke(tool, agent, value, text, call)

    async def _hand_off(
        self,
        declared: ForeignHandoff,
        agent: ForeignAgent,
        context: ForeignContext,
        arguments: str,
    ) -> Json:
        target: ForeignAgent = await declared.on_invoke_handoff(context, arguments)
        if self._team.agents.get(target.name) is not target:
            raise NotImplementedError(
                f"Cannot hand off to {target.name!r}: the handoff {declared.tool_name!r} was "
                f"made for {declared.agent_name!r}. Always return the same agent."
            )
        if agent.hooks is not None:
            await agent.hooks.on_handoff(context, agent=target, source=agent)
        return {TARGET_KEY: target.name}


def _always_approve(arguments: dict[str, Json]) -> bool:
    """Require an approval, as the tool's `needs_approval=True` does."""
    del arguments
    return True


def _returns_json(function: Function) -> bool:
    try:
        hint = get_type_hints(function).get("return", Any)
    except (NameError, TypeError):  # an annotation that cannot be resolved
        return False
    return _is_json_type(hint)


def _is_json_type(hint: object) -> bool:
    if hint in PLAIN_TYPES or get_origin(hint) is Literal:
        return True
    return get_origin(hint) in PLAIN_ORIGINS and all(map(_is_json_type, get_args(hint)))


async def _invoke(
    tool: FunctionTool, agent: ForeignAgent, context: object, arguments: str, call: Call
) -> Json:
    """Invoke a tool as the runner does: guardrails, hooks, time limit, error function.

    Raises:
        ToolGuardrailTriggered: A guardrail of the tool stopped the call.
    """
    id_ = call.tool_call_id or call.key
    asked = ResponseFunctionToolCall(
        type="function_call", call_id=id_, name=tool.name, arguments=arguments
    )
    tool_context = ToolContext(
        context,
        tool_name=tool.name,
        tool_call_id=id_,
        tool_arguments=arguments,
        tool_call=asked,
        agent=agent,
    )
    for guardrail in tool.tool_input_guardrails or ():
        data = ToolInputGuardrailData(context=tool_context, agent=agent)
        if text := _read_verdict(guardrail.get_name(), await guardrail.run(data)):
            return text
    if agent.hooks is not None:
        await agent.hooks.on_tool_start(tool_context, agent, tool)
    output = await invoke_function_tool(
        function_tool=tool, context=tool_context, arguments=arguments
    )
    for check in tool.tool_output_guardrails or ():
        result = ToolOutputGuardrailData(context=tool_context, agent=agent, output=output)
        output = _read_verdict(check.get_name(), await check.run(result)) or output
    if agent.hooks is not None:
        await agent.hooks.on_tool_end(tool_context, agent, tool, output)
    return _encode_output(asked, output)


def _read_verdict(name: str, verdict: ToolGuardrailFunctionOutput) -> str:
    """Return the text that replaces the call or its output; "" if the guardrail allows it."""
    match verdict.behavior:
        case {"type": "reject_content", "message": message}:
            return str(message)
        case {"type": "raise_exception"}:
            raise ToolGuardrailTriggered(f"the guardrail {name!r} was triggered")
        case _:
            return ""


def _encode_output(asked: ResponseFunctionToolCall, output: object) -> Json:
    """Return the result of a tool for the journal: JSON, a text, or marked content."""
    content = ItemHelpers.tool_call_output_item(asked, output)["output"]
    if not isinstance(content, str):
        return {CONTENT_KEY: normalize_json(cast("Json", content), "result")}
    if output is None or isinstance(output, dict | list | int | float):
        try:
            return normalize_json(output, "result")
        except NotJson:
            pass  # such as a list of objects: the SDK gives its text to the model
    return content
