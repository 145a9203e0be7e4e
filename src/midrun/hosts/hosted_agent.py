"""`HostedAgent`: an agent of another framework as an `Agent`; declared traits and context."""

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from inspect import Parameter, isawaitable, signature
from typing import Final, TypeAlias, TypedDict

from midrun.agents.agent import Agent
from midrun.agents.program import Program
from midrun.agents.signature import Arguments, Function, SchemaArguments, parse_docstring
from midrun.agents.tool import (
    TOOL_NAME_PATTERN,
    Tool,
    ToolOptions,
    find_import_path,
    make_tool_fields,
)
from midrun.agents.tool_environment import EnvironmentOption
from midrun.codec.safe_repr import safe_repr, safe_str
from midrun.core.stops import Stop
from midrun.core.values import Json
from midrun.errors import Misconfigured, ModelFailed
from midrun.ports.model import Model

ContextFactory: TypeAlias = Callable[..., object]  # type: ignore[explicit-any]  # 0 or 1 arguments
"""Makes the dependencies of a foreign agent: takes nothing, or `run_id`."""

OPEN_SCHEMA: Final[dict[str, Json]] = {"type": "object", "properties": {}}
"""The schema of a tool that is only known while the agent runs: the framework checks it."""


OUTPUT_NAME: Final = "output"
"""The tool that the journal names for an output that is not the call of an output tool."""

OUTPUT_WITH_CALLS_TEXT: Final = (
    "not taken: the same reply made other calls; give the output again when they have ended"
)

SERVER_ERROR: Final = 500
TRANSIENT_STATUS: Final = {408: "timeout", 409: "server_error", 429: "rate_limited"}
"""Response codes below 500 that are transient, with their reasons."""

LOST_CONNECTION: Final = re.compile("Connection|Connect|Timeout|ProtocolError|ReadError")
"""Names of exceptions by which SDKs report a lost connection; they share no base class."""


class HostOptions(TypedDict, total=False):
    """The options of `Agent` that `host` passes on. All are optional."""

    stop: Stop | None
    frame_depth: int
    frame_ttl: timedelta
    grace: timedelta
    window: int
    tool_env: EnvironmentOption


class Hosting:
    """The arguments of `midrun.host` besides the agent, checked."""

    def __init__(
        self,
        *,
        name: str | None,
        context: ContextFactory | None,
        declared: Mapping[str, ToolOptions] | None,
        options: HostOptions,
    ) -> None:
        if unknown := options.keys() - HostOptions.__annotations__.keys():
            raise TypeError(f"host() got an unexpected keyword argument {min(unknown)!r}")
        self.name = name
        self.declared: Final = _check_declared(declared)
        self.options = options
        self._context = context
        self._takes_run_id = context is not None and _takes_run_id(context)

    def choose_name(self, own_name: str | None) -> str:
        """Return the name of the hosted agent; `own_name` is its name in its framework."""
        if name := self.name or own_name:
            return name
        raise Misconfigured("host", "Cannot host an agent without a name. Pass name=….")

    def check_tool_names(self, names: Sequence[str]) -> None:
        """Refuse declarations for tools that the agent does not have.

        They are not ignored: with a typing error, a tool would lack its approval or its undo.
        """
        if unknown := sorted(self.declared.keys() - set(names)):
            problem = (
                f"tools must name tools of the agent ({', '.join(names) or 'it has none'}), "
                f"got {unknown[0]!r}"
            )
            raise Misconfigured("host", problem)

    @asynccontextmanager
    async def open_context(self, run_id: str) -> AsyncIterator[object]:
        """Open the agent's dependencies for one call; None without a factory."""
        if self._context is None:
            yield None
            return
        made = self._context(run_id) if self._takes_run_id else self._context()
        if isawaitable(made):
            made = await made
        if isinstance(made, AbstractAsyncContextManager):
            async with made as value:
                yield value
        else:
            yield made

    def make_tool(
        self,
        name: str,
        fn: Function,
        *,
        description: str = "",
        arguments: Arguments | SchemaArguments,
        needs_approval: Function | None = None,
    ) -> Tool:
        """Return a tool of the foreign agent, with its declared traits.

        `needs_approval` decides about approvals if `approve` is not declared: the framework may
        have such declarations of its own.
        """
        options = self.declared.get(name, ToolOptions())
        if needs_approval is not None and "approve" not in options:
            options = ToolOptions(**{**options, "approve": needs_approval})
        if not TOOL_NAME_PATTERN.fullmatch(name):
            problem = "Models accept names of 1 to 64 letters, digits, _ and - only. Rename it."
            raise Misconfigured(f"tool {name}", problem)
        return Tool(
            name=name,
            description=description,
            fn=fn,
            arguments=arguments,
            **make_tool_fields(name, options),
        )

    def make_process_tool(
        self, name: str, fn: Function, description: str, needs_approval: Function | None = None
    ) -> Tool | None:
        """Return a blocking function as a tool that runs in a process, which can be killed.

        None if it cannot: another process cannot import it, only its framework understands its
        annotations, or `in_process=True` is declared for it.
        """
        if self.declared.get(name, {}).get("in_process") or find_import_path(fn) is None:
            return None
        try:
            arguments = Arguments(f"tool {name}", fn, parse_docstring(fn.__doc__).parameters)
        except Misconfigured:
            return None
        return self.make_tool(
            name,
            fn,
            description=description,
            arguments=arguments,
            needs_approval=needs_approval,
        )


class HostedAgent(Agent):
    """An agent of another framework. Made with `midrun.host`; used like an `Agent`.

    Attributes:
        framework: The framework, as "pydantic-ai".
        undeclared_tools: The number of its tools without declared traits.
        ungated_tools: Tools that the provider executes inside a model call. They are not
            journaled as calls: they cannot be approved, stopped by themselves or undone.
    """

    def __init__(
        self,
        name: str,
        *,
        framework: str,
        model: Model,
        tools: Sequence[Tool],
        hosting: Hosting,
        find_unlisted_tool: Callable[[str], Tool | None] | None = None,
        ungated_tools: tuple[str, ...] = (),
        program: Program | None = None,
    ) -> None:
        self.framework = framework  # before `Agent.__init__`, which reads it
        self.undeclared_tools = sum(tool.name not in hosting.declared for tool in tools)
        self.ungated_tools: Final = ungated_tools
        self._find_unlisted_tool = find_unlisted_tool
        super().__init__(name, model=model, tools=tools, program=program, **hosting.options)

    def find_tool(self, name: str) -> Tool | None:
        """Return the tool with this name, also one that is only known while the agent runs."""
        found = super().find_tool(name)
        if found is None and self._find_unlisted_tool is not None:
            return self._find_unlisted_tool(name)
        return found


def make_foreign_failure(model: str, error: Exception) -> ModelFailed | None:
    """Convert an exception of a provider's SDK; None for an error of the agent's own code."""
    status = getattr(error, "status_code", None)
    detail = f"{type(error).__name__}: {safe_str(error, 500)}"
    if isinstance(status, int):
        reason = "server_error" if status >= SERVER_ERROR else TRANSIENT_STATUS.get(status)
        return ModelFailed(model, reason or "bad_request", detail, transient=bool(reason))
    if LOST_CONNECTION.search(type(error).__name__):
        return ModelFailed(model, "connection", detail, transient=True)
    return None


def _check_declared(declared: object) -> Mapping[str, ToolOptions]:
    if declared is None:
        return {}
    if not isinstance(declared, Mapping):
        problem = (
            f'tools must be a dict, as {{"charge": traits(…)}}, got {safe_repr(declared, 80)}'
        )
        raise Misconfigured("host", problem)
    for name, options in declared.items():
        if not isinstance(name, str) or not isinstance(options, dict):
            problem = (
                "tools must have names and traits(…), got "
                f"{safe_repr(name, 40)}: {safe_repr(options, 80)}"
            )
            raise Misconfigured("host", problem)
    return dict(declared)


def _takes_run_id(context: object) -> bool:
    if not callable(context):
        problem = (
            "context must be a function that makes the dependencies, got "
            f"{safe_repr(context, 80)}. Write context=lambda: …."
        )
        raise Misconfigured("host", problem)
    try:
        parameters = list(signature(context).parameters.values())
    except (TypeError, ValueError):  # a class or function without a signature
        return False
    takes = bool(parameters) and parameters[0].name == "run_id"
    required = [
        p
        for p in parameters[takes:]
        if p.default is Parameter.empty and p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD}
    ]
    if required:
        problem = (
            "context must be callable as context() or context(run_id), but it has the "
            f"parameter {required[0].name!r}. Wrap it in a function."
        )
        raise Misconfigured("host", problem)
    return takes
