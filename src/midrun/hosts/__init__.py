"""Agents of other frameworks, hosted unchanged. `midrun.host` makes an `Agent` of them.

Midrun runs the loop. A model call is one step of the foreign agent with the run's transcript as
its history: the framework adds its instructions, tools, settings and hooks, and the step ends
with the reply of the model. A tool call is the agent's own tool, executed by the framework and
made through the dispatcher like every other call. So the journal is the history, nothing is
replayed, and every promise holds because it is the ordinary loop.

`HostedAgent` (`hosted_agent.py`) is the part that all frameworks share: declared traits,
the context factory, and tools that are only known while the agent runs. Each framework has one
module with a function `host_agent`, which is imported when one of its agents is hosted. Start
reading at `pydantic_ai.py`.

A plain async function (`function.py`) and a graph of LangGraph that is not a loop of
`create_agent` (`langgraph.py`) are different: the loop is their own, and they make their calls
through the driver. After a restart they are run again, and finished calls are answered from the
journal; see `agents/program.py`.

An agent in another process (`process.py`) is such a program, too: its code runs elsewhere, and
makes its calls through a gateway that speaks the protocols of model providers and MCP. Start
reading at `gateway_calls.py`.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import iscoroutinefunction, isfunction
from types import ModuleType
from typing import Final, Unpack

from midrun.agents.agent import Agent
from midrun.agents.tool import ToolOptions
from midrun.agents.tool_context import ContextFactory
from midrun.codec.safe_repr import safe_repr
from midrun.errors import Misconfigured
from midrun.hosts.function import FunctionRun, ModelUsage, function
from midrun.hosts.hosted_agent import HostedAgent, Hosting, HostOptions
from midrun.hosts.process import process
from midrun.hosts.upstream import Upstream

__all__ = [
    "FunctionRun",
    "HostedAgent",
    "ModelUsage",
    "Upstream",
    "function",
    "host",
    "host_graph",
    "is_foreign_agent",
    "process",
]

ADAPTER_BY_PACKAGE: Final = {
    "agents": "openai_agents",
    "google": "adk",
    "langgraph": "langgraph",
    "pydantic_ai": "pydantic_ai",
    "strands": "strands",
}
"""The adapter of each framework, by the top-level package of its agents."""

EXTRAS: Final = {"langgraph": "langchain"}
"""The extra that installs the framework of an adapter, if it has another name."""

AGENT_TYPES: Final = {
    ("agents", "Agent"),
    ("google", "LlmAgent"),
    ("langgraph", "Pregel"),
    ("pydantic_ai", "AbstractAgent"),
    ("strands", "Agent"),
}
"""Package and name of the types of agents.

Names, because a framework must not be imported to find out that it is not used.
"""


def host(
    agent: object,
    *,
    name: str | None = None,
    context: ContextFactory | None = None,
    tools: Mapping[str, ToolOptions] | None = None,
    **options: Unpack[HostOptions],
) -> HostedAgent:
    """Host an agent of another framework, unchanged, and return it as an `Agent`.

        billing = midrun.host(
            billing_agent,  # of Pydantic AI
            context=open_context,
            tools={"charge": traits(undo=refund, approve=True)},
            stop=MaxCost(2.0),
        )

    Args:
        agent: An agent of Pydantic AI, of LangChain's `create_agent`, of the OpenAI Agents SDK,
            of Strands Agents or of Google ADK, a compiled graph of LangGraph, or an async
            function `f(run, task)` with a loop of its own; see `midrun.hosts.function`.
        name: A unique name. Default: the name of the agent.
        context: Makes the dependencies of the agent: a function that takes nothing, or
            `run_id`. It is called for each model call and each tool call, in the process that
            makes the call. If it returns an async context manager, that is entered for the
            call. A graph gets it once for each process that runs it.
        tools: What is known about the tools of the agent, by name, as `traits(undo=…)`. An
            undeclared tool counts as having an effect that must not happen twice and that
            cannot be undone.
        options: `stop`, `grace`, `window` and the other options of `Agent`.

    Raises:
        Misconfigured: The agent cannot be hosted, or an argument is not valid. The text says
            what to do.
    """
    if iscoroutinefunction(agent):
        if context is not None:
            problem = "Cannot pass a context to a function. Open it in the function."
            raise Misconfigured("host", problem)
        return function(name=name, tools=tools, **options)(agent)
    packages = (package for package, _ in _list_types(agent))
    module = next((ADAPTER_BY_PACKAGE[p] for p in packages if p in ADAPTER_BY_PACKAGE), None)
    if module is None:
        problem = f"Cannot host {safe_repr(agent, 80)}: {_explain_refusal(agent)}"
        raise Misconfigured("host", problem)
    hosting = Hosting(name=name, context=context, declared=tools, options=options)
    hosted: HostedAgent = _import_adapter(module).host_agent(agent, hosting)
    return hosted


def host_graph(
    graph: object,
    *,
    make_input: Callable[[str], object] | None = None,
    name: str | None = None,
    context: ContextFactory | None = None,
    tools: Mapping[str, ToolOptions] | None = None,
    **options: Unpack[HostOptions],
) -> HostedAgent:
    """Host a compiled graph of LangGraph that runs its own loop, and return it as an `Agent`.

    `midrun.host` does the same for a graph that is not a loop of `create_agent`. Use this
    function to choose the input, or for an agent of `create_agent` that calls `interrupt`.

    Args:
        graph: The compiled graph.
        make_input: Makes the input of the graph from the task. Default: a message, if its state
            has `messages`; otherwise the only key that requires a text.
        name: A unique name. Default: the name of the graph.
        context: Makes the `context` of the graph, as for `midrun.host`.
        tools: What is known about the tools of the graph, as for `midrun.host`.
        options: `stop`, `grace` and the other options of `Agent`.

    Raises:
        Misconfigured: The graph cannot be hosted, or an argument is not valid.
    """
    hosting = Hosting(name=name, context=context, declared=tools, options=options)
    hosted: HostedAgent = _import_adapter("langgraph").host_graph(graph, hosting, make_input)
    return hosted


def _explain_refusal(value: object) -> str:
    """Return the reason why `value` is no agent that can be hosted, with the remedy."""
    if isinstance(value, Agent):
        return "it is an agent of Midrun already. Pass it to Midrun(agents=[…]) as it is."
    if isinstance(value, type):
        return "it is a class. Pass an instance, the agent itself."
    if isfunction(value):
        return f"it is not async. Write async def {value.__name__}(run, task)."
    return (
        f"a value of type {type(value).__name__} is not an agent of a known framework. Pass an "
        "agent of Pydantic AI, of LangChain's create_agent, of the OpenAI Agents SDK, of "
        "Strands Agents or of Google ADK, a compiled graph of LangGraph, or an async function "
        "f(run, task). For another framework, host its program with midrun.hosts.process."
    )


def _import_adapter(module: str) -> ModuleType:
    try:
        return import_module(f"midrun.hosts.{module}")
    except ImportError as error:  # an older or incomplete installation of the framework
        extra = EXTRAS.get(module, module.replace("_", "-"))
        problem = f"Cannot import the adapter: {error}. Install midrun[{extra}]."
        raise Misconfigured("host", problem) from error


def is_foreign_agent(value: object) -> bool:
    """Tell whether `value` is an agent of a framework that can be hosted."""
    return not isinstance(value, type) and not AGENT_TYPES.isdisjoint(_list_types(value))


def _list_types(value: object) -> list[tuple[str, str]]:
    """Return the package and the name of the type of `value`, and of all its bases."""
    return [(t.__module__.partition(".")[0], t.__name__) for t in type(value).__mro__]
