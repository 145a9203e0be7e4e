"""The quick-start agents of all frameworks, hosted, and a worker in a process of its own."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Final

import anyio

from midrun import Agent, Call, Midrun, host, tool, traits
from midrun.agents.tool import ToolOptions
from midrun.core.values import Json
from midrun.hosts import Upstream, process
from midrun.stops import MaxSteps

FOLDER: Final = Path(__file__).parent / "quick_starts"


@dataclass(frozen=True, kw_only=True)
class QuickStart:
    """An agent of a quick start, and one call that its model makes.

    Attributes:
        task: The task of its documentation.
        tool: The name of the tool that the model calls.
        args: The arguments of the call, as JSON text.
        result: A part of the result that the model must get.
        make_agent: Hosts the agent with these options for the tool.
    """

    task: str
    tool: str
    result: str
    make_agent: Callable[[ToolOptions, str], Agent]
    args: str = "{}"
    model_tool: str = ""
    """The name of the tool for the model, if it is another."""


def host_module(
    options: ToolOptions,
    tool_name: str,
    *,
    module: str,
    agent: str = "agent",
    name: str | None = None,
    context: Callable[[], object] | None = None,
) -> Agent:
    """Host the agent at the top of a module, as `midrun serve` finds it."""
    found = getattr(import_module(f"tests.unit.hosts.quick_starts.{module}"), agent)
    tools = {tool_name: options}
    return host(found, name=name, context=context, tools=tools, stop=MaxSteps(STEPS))


def open_bank() -> object:
    """Return the dependencies of the bank agent."""
    bank = import_module("tests.unit.hosts.quick_starts.pydantic_ai_bank")
    made: object = bank.SupportDependencies(customer_id=123, db=bank.DatabaseConn())
    return made


def open_forecaster() -> object:
    """Return the context of LangChain's forecaster."""
    module = import_module("tests.unit.hosts.quick_starts.langchain_forecaster")
    made: object = module.Context(user_id="1")
    return made


async def get_horoscope(sign: str) -> str:
    """Get today's horoscope for an astrological sign."""
    return f"{sign}: Next Tuesday you will befriend a baby otter."


def host_openai(options: ToolOptions, tool_name: str) -> Agent:
    """Host the process with the `openai` package."""
    url = os.environ["OPENAI_BASE_URL"].removesuffix("/v1")
    return process(
        name=tool_name,
        command=[sys.executable, str(FOLDER / "openai_horoscope.py")],
        tools=[tool(**options)(get_horoscope)],
        upstream=Upstream("openai", url=url, key="none"),
        stop=MaxSteps(STEPS),
    )


def host_claude(options: ToolOptions, tool_name: str) -> Agent:
    """Host the process with the Claude Agent SDK and its CLI."""
    home = os.environ["CLAUDE_TEST_HOME"]
    return process(
        name=tool_name,
        command=[sys.executable, str(FOLDER.parent / "claude_process.py"), "resume"],
        tools=[tool(**options)(get_horoscope)],
        upstream=Upstream("anthropic", url=os.environ["ANTHROPIC_BASE_URL"], key="none"),
        keeps_history=True,
        parallel=True,
        cwd=home,
        env={"HOME": home},
        stop=MaxSteps(STEPS),
    )


STEPS: Final = 3
"""The cap: the model calls the tool, is paused, and calls the tool again."""

QUICK_STARTS: Final = {
    "pydantic-ai": QuickStart(
        task="What is my balance?",
        tool="customer_balance",
        result="123.45",
        make_agent=partial(
            host_module,
            module="pydantic_ai_bank",
            agent="support_agent",
            name="bank",
            context=open_bank,
        ),
    ),
    "langchain": QuickStart(
        task="what is the weather in sf",
        tool="get_weather",
        args='{"city": "sf"}',
        result="It's always sunny in sf!",
        make_agent=partial(host_module, module="langchain_weather", name="weather"),
    ),
    "langchain-real-world": QuickStart(
        task="what is the weather outside?",
        tool="get_user_location",
        result="Florida",
        make_agent=partial(
            host_module,
            module="langchain_forecaster",
            name="forecaster",
            context=open_forecaster,
        ),
    ),
    "langgraph": QuickStart(
        task="Add 3 and 4.",
        tool="add",
        args='{"a": 3, "b": 4}',
        result="7",
        make_agent=partial(host_module, module="langgraph_calculator", name="calculator"),
    ),
    "openai-agents": QuickStart(
        task="Tell me something surprising about ancient life on Earth.",
        tool="history_fun_fact",
        result="Sharks are older than trees.",
        make_agent=partial(host_module, module="openai_agents_tutor"),
    ),
    "strands": QuickStart(
        task="How many letter R's are in the word strawberry?",
        tool="letter_counter",
        args='{"word": "strawberry", "letter": "r"}',
        result="3",
        make_agent=partial(host_module, module="strands_counter", name="counter"),
    ),
    "adk": QuickStart(
        task="What is the weather in New York?",
        tool="get_weather",
        args='{"city": "New York"}',
        result="25 degrees",
        make_agent=partial(host_module, module="adk_weather", agent="root_agent"),
    ),
    "function": QuickStart(
        task="What is my horoscope? I am an Aquarius.",
        tool="get_horoscope",
        args='{"sign": "Aquarius"}',
        result="baby otter",
        make_agent=partial(host_module, module="function_horoscope", agent="horoscope"),
    ),
    "openai-process": QuickStart(
        task="What is my horoscope? I am an Aquarius.",
        tool="get_horoscope",
        args='{"sign": "Aquarius"}',
        result="baby otter",
        make_agent=host_openai,
    ),
    "claude-process": QuickStart(
        task="What is my horoscope? I am an Aquarius.",
        tool="get_horoscope",
        args='{"sign": "Aquarius"}',
        result="baby otter",
        make_agent=host_claude,
        model_tool="mcp__midrun__get_horoscope",
    ),
}


def host_quick_start(name: str, undo_log: Path) -> Agent:
    """Host an agent: a person approves its tool, and each undo is written to `undo_log`."""

    async def forget(call: Call, args: dict[str, Json], result: Json) -> None:
        del call
        with undo_log.open("a") as file:
            file.write(f"{args} {result}\n")

    case = QUICK_STARTS[name]
    return case.make_agent(traits(approve=True, undo=forget), case.tool)


async def drive(*arguments: str) -> None:
    """Drive the runs of a store until this process is killed; start one if there is a task."""
    name, store, undo_log, task = arguments
    agent = host_quick_start(name, Path(undo_log))
    async with Midrun(store, agents=[agent]) as midrun:
        if task:
            await midrun.start(agent, task)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(drive, *sys.argv[1:])
