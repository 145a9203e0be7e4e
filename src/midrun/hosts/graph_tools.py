"""Tools of a hosted graph: from LangChain's call to a tool of Midrun, and its result as JSON.

The result of a call is journaled, and the graph gets what the journal has, also the first time.
So code of the graph sees the same after a restart. Messages, `Command` and `Send` are stored as
marked objects; other values must be JSON, or models of pydantic, which become JSON.
"""

import builtins
import re
from collections.abc import Mapping
from contextlib import nullcontext
from copy import copy
from dataclasses import replace as replace_fields
from inspect import signature
from typing import Any, Final, TypeAlias, cast

import anyio
import msgspec
from langchain_core.messages import BaseMessage, ToolMessage, messages_from_dict
from langchain_core.messages import messages_to_dict as dump_messages
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool, ToolException
from langgraph.errors import GraphInterrupt
from langgraph.types import Command, Interrupt, Send
from msgspec.structs import replace

from midrun.agents.builtin_tools import PauseHere
from midrun.agents.signature import Function, SchemaArguments
from midrun.agents.tool import Tool
from midrun.agents.tool_context import Call
from midrun.codec.strict_json import normalize_json
from midrun.core.values import CallResult, Json
from midrun.errors import StepNotDone
from midrun.hosts.hosted_agent import OPEN_SCHEMA, Hosting
from midrun.hosts.langchain import SCRATCHPAD_KEY, get_schema
from midrun.hosts.langchain_calls import HOST, ToolCall

AnyCommand: TypeAlias = Command[Any]  # type: ignore[explicit-any]

TEXT_ARGUMENT: Final = "input"
"""The journaled name of the argument of a tool that is called with a plain text."""

MESSAGE_KEY: Final = "$message"
COMMAND_KEY: Final = "$command"
SEND_KEY: Final = "$send"

ERROR_PATTERN: Final = re.compile(r"(\w+): (.*)", re.DOTALL)
"""The journaled error of a tool: the type and the text of its exception."""


class GraphTools:
    """Makes tools of Midrun for the tool calls of a graph."""

    def __init__(self, hosting: Hosting) -> None:
        self._hosting = hosting
        self._tools: dict[int, tuple[BaseTool, Tool]] = {}  # by the id of the tool of the graph

    def make_tool(self, call: ToolCall) -> Tool:
        """Return the tool that makes `call`, with the traits declared for its name."""
        known = self._tools.get(id(call.tool))
        # The tool of the graph is held, so its id is not used again.
        made = self._declare_tool(call) if known is None else known[1]
        self._tools[id(call.tool)] = (call.tool, made)
        if not made.is_async:  # a function for a process: it takes the arguments only
            return made
        # To declare a tool takes time. The calls of a tool differ in their function only.
        made = copy(made)
        vars(made).update(fn=_make_function(call))
        return made

    def _declare_tool(self, call: ToolCall) -> Tool:
        tool = call.tool
        function, is_blocking = getattr(tool, "func", None), _is_blocking(tool)
        if is_blocking and function and set(signature(function).parameters) == set(tool.args):
            made = self._hosting.make_process_tool(tool.name, function, tool.description)
            if made is not None and tool.response_format == "content":
                return made
        # LangChain checks the arguments itself, also those that are not in the schema.
        schema: dict[str, Json] = {
            **get_schema(tool),
            "required": [],
            "additionalProperties": True,
        }
        made = self._hosting.make_tool(
            tool.name,
            _make_function(call),
            description=tool.description,
            arguments=SchemaArguments(schema),
        )
        if is_blocking:
            vars(made).update(traits=replace(made.traits, unstoppable=True))
        return made


def _is_blocking(tool: BaseTool) -> bool:
    return getattr(tool, "coroutine", None) is None and (
        getattr(tool, "func", None) is not None or type(tool)._arun is BaseTool._arun  # noqa: SLF001 - no public test
    )


def _make_function(call: ToolCall) -> Function:
    """Return the function that makes `call` when the run loop has started it."""

    async def execute(context: Call, /, **arguments: object) -> Json:
        HOST.set(None)  # the calls of a tool belong to the tool
        with anyio.CancelScope(shield=True) if _is_blocking(call.tool) else nullcontext():
            return await _execute(call, arguments, context)

    return execute


def make_placeholder(hosting: Hosting, name: str, description: str = "") -> Tool:
    """Return a declared tool without its function.

    After a restart, an undo may run before the graph has made its calls again.
    """

    async def refuse(*_: object, **__: object) -> None:
        raise NotImplementedError("only the hosted graph itself can make this call")

    arguments = SchemaArguments(OPEN_SCHEMA)
    return hosting.make_tool(name, refuse, description=description, arguments=arguments)


def list_arguments(call: ToolCall) -> dict[str, Json]:
    """Return the arguments of a call as they are journaled: without injected ones."""
    if isinstance(call.given, str):
        return {TEXT_ARGUMENT: call.given}
    shown = call.tool._filter_injected_args(call.given)  # noqa: SLF001 - as its callbacks get them
    return {key: encode_value(value, key) for key, value in shown.items()}


async def _execute(call: ToolCall, arguments: dict[str, object], context: Call) -> Json:
    """Make the call; an `interrupt` in the tool becomes a question of the run."""
    config = ensure_config(call.options.get("config"))
    answers = _read_answers(context)
    if answers:
        config = _give_answers(config, answers)
    # A person who approves the call may change its arguments.
    given = (
        str(arguments[TEXT_ARGUMENT])
        if isinstance(call.given, str)
        else {**call.given, **arguments}
    )
    try:
        result = await call.execute(given, config)
    except GraphInterrupt as stop:
        interrupt = stop.args[0][0]
        question, data = describe_interrupt(interrupt)
        raise PauseHere(question, data, continuation={"answers": answers}) from None
    return encode_result(result)


def _read_answers(context: Call) -> list[Json]:
    """Return the answers to the interrupts that earlier attempts of the call have asked."""
    if not isinstance(context.answered, dict):
        return []
    before = context.answered.get("continuation")
    answers = before.get("answers") if isinstance(before, dict) else None
    earlier = answers if isinstance(answers, list) else []
    return [*earlier, context.answered.get("value")]


def _give_answers(config: RunnableConfig, answers: list[Json]) -> RunnableConfig:
    """Return the configuration in which `interrupt` returns these answers, one by one."""
    configurable = config.get("configurable") or {}
    pad = configurable.get(SCRATCHPAD_KEY)
    if pad is None:
        return config
    counter = iter(range(len(answers) + 1))
    fresh = replace_fields(pad, resume=list(answers), interrupt_counter=lambda: next(counter))
    return {**config, "configurable": {**configurable, SCRATCHPAD_KEY: fresh}}


def describe_interrupt(interrupt: Interrupt) -> tuple[str, dict[str, Json]]:  # type: ignore[explicit-any]
    """Return the question of an interrupt, and the data that is shown with it."""
    value = encode_value(interrupt.value, "interrupt")
    schema = interrupt.response_schema
    data: dict[str, Json] = {"response_schema": encode_value(schema)} if schema else {}
    if isinstance(value, str):
        return value, data
    if isinstance(value, dict):
        question = value.get("question")
        rest = {k: v for k, v in value.items() if k not in {"question", "continuation"}}
        if isinstance(question, str):
            return question, {**rest, **data}
    return "The graph asks for an input.", {"value": value, **data}


# ── results ──────────────────────────────────────────────────────────────────


def encode_value(value: object, path: str = "$") -> Json:
    """Return a value of a graph as JSON.

    Raises:
        NotJson: It is neither JSON nor one of the types above.
    """
    return normalize_json(_mark_values(value), path)


def _mark_values(value: object) -> object:
    if isinstance(value, BaseMessage):
        return {MESSAGE_KEY: dump_messages([value])[0]}
    if isinstance(value, Command):
        fields = {"graph": value.graph, "update": value.update, "goto": value.goto}
        return {COMMAND_KEY: {k: _mark_values(v) for k, v in fields.items() if v}}
    if isinstance(value, Send):
        return {SEND_KEY: [value.node, _mark_values(value.arg)]}
    if isinstance(value, Mapping):
        return {key: _mark_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mark_values(item) for item in value]
    dump = getattr(value, "model_dump", None)
    if dump is not None and not isinstance(value, type):
        return dump(mode="json")
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        return msgspec.to_builtins(value)
    return value


def decode_value(value: Json) -> object:
    """Return a value that `encode_value` has stored."""
    if isinstance(value, list):
        return [decode_value(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((key, inner),) = value.items()
        if key == MESSAGE_KEY and isinstance(inner, dict):
            return messages_from_dict([inner])[0]
        if key == COMMAND_KEY and isinstance(inner, dict):
            return _make_command(inner)
        if key == SEND_KEY and isinstance(inner, list):
            return Send(str(inner[0]), decode_value(inner[1]))
    return {key: decode_value(item) for key, item in value.items()}


def _make_command(fields: dict[str, Json]) -> AnyCommand:
    update = decode_value(fields.get("update"))
    if isinstance(fields.get("update"), list):  # pairs of a key and a value
        update = [tuple(cast("list[object]", pair)) for pair in cast("list[object]", update)]
    goto = cast("Any", decode_value(fields.get("goto", ())))  # type: ignore[explicit-any]
    return Command(graph=cast("str | None", fields.get("graph")), update=update, goto=goto)


def encode_result(result: object) -> Json:
    """Return the result of a tool for the journal; a message with a text is its text."""
    if (
        isinstance(result, ToolMessage)
        and isinstance(result.content, str)
        and result.status == "success"
        and result.artifact is None
        and not result.additional_kwargs
    ):
        return result.content
    return encode_value(result, "result")


def decode_result(call: ToolCall, outcome: CallResult) -> object:
    """Return the outcome of a call as the tool would: a result, a message or an exception.

    Raises:
        StepNotDone, Exception: The call has no result. The exception of a tool is raised again
            if it is one of Python's own types or a `ToolException`.
    """
    if outcome.problem:
        return _decode_problem(call, outcome.problem)
    value = decode_value(outcome.result)
    if not call.tool_call_id or isinstance(value, BaseMessage | Command):
        return value
    items = value if isinstance(value, list) else []
    if items and all(isinstance(item, BaseMessage | Command) for item in items):
        return items
    text = value if isinstance(value, str) else msgspec.json.encode(outcome.result).decode()
    return ToolMessage(text, tool_call_id=call.tool_call_id, name=call.tool.name)


def _decode_problem(call: ToolCall, problem: str) -> ToolMessage:
    if match := ERROR_PATTERN.fullmatch(problem):
        name, text = match.groups()
        kind = ToolException if name == "ToolException" else getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            try:
                error = kind(text)
            except TypeError:  # it needs other arguments
                error = StepNotDone(call.tool.name, problem)
            raise error
    if not call.tool_call_id:
        raise StepNotDone(call.tool.name, problem)
    return ToolMessage(
        problem, tool_call_id=call.tool_call_id, name=call.tool.name, status="error"
    )
