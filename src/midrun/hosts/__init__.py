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

A plain async function is different (`function.py`): the loop is its own, and it makes its calls
through the driver. After a restart it is run again, and finished calls are answered from the
journal; see `agents/program.py`.
"""

from collections.abc import Mapping
from importlib import import_module
from inspect import iscoroutinefunction
from typing import Final, Unpack

from midrun.agents.tool import ToolOptions
from midrun.codec.safe_repr import safe_repr
from midrun.errors import Misconfigured
from midrun.hosts.function import FunctionRun, ModelUsage, function
from midrun.hosts.hosted_agent import ContextFactory, HostedAgent, Hosting, HostOptions

__all__ = [
    "FunctionRun",
    "HostedAgent",
    "ModelUsage",
    "function",
    "host",
    "is_foreign_agent",
]

ADAPTER_BY_PACKAGE: Final = {"pydantic_ai": "pydantic_ai", "langgraph": "langchain"}
"""The adapter of each framework, by the top-level package of its agents."""

AGENT_TYPES: Final = {("pydantic_ai", "AbstractAgent"), ("langgraph", "Pregel")}
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
        agent: An agent of Pydantic AI or of LangChain's `create_agent`, or an async function
            `f(run, task)` with a loop of its own; see `midrun.hosts.function`.
        name: A unique name. Default: the name of the agent.
        context: Makes the dependencies of the agent: a function that takes nothing, or
            `run_id`. It is called for each model call and each tool call, in the process that
            makes the call. If it returns an async context manager, that is entered for the
            call.
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
        problem = (
            f"Cannot host {safe_repr(agent, 80)} ({type(agent).__name__}): it is not an agent "
            "of a known framework. Pass an agent of Pydantic AI or of LangChain's "
            "create_agent, or an async function f(run, task)."
        )
        raise Misconfigured("host", problem)
    hosting = Hosting(name=name, context=context, declared=tools, options=options)
    try:
        adapter = import_module(f"midrun.hosts.{module}")
    except ImportError as error:  # an older or incomplete installation of the framework
        extra = module.replace("_", "-")
        problem = f"Cannot import the adapter: {error}. Install midrun[{extra}]."
        raise Misconfigured("host", problem) from error
    hosted: HostedAgent = adapter.host_agent(agent, hosting)
    return hosted


def is_foreign_agent(value: object) -> bool:
    """Tell whether `value` is an agent of a framework that can be hosted."""
    return not isinstance(value, type) and not AGENT_TYPES.isdisjoint(_list_types(value))


def _list_types(value: object) -> list[tuple[str, str]]:
    """Return the package and the name of the type of `value`, and of all its bases."""
    return [(t.__module__.partition(".")[0], t.__name__) for t in type(value).__mro__]
