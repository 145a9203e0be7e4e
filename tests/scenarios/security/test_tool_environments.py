"""The environment of tool processes: secrets of the server do not reach them."""

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path

import pytest

import midrun
from midrun import Agent, Completed, Failed, Midrun, Misconfigured, Tool, tool
from midrun.agents.builtin_tools import shell
from midrun.agents.tool_environment import EnvironmentOption
from midrun.mcp import mcp_tools
from midrun.models import ScriptedModel, Use

SOURCES = Path(midrun.__file__).parent
MIDRUN_NAMES = sorted(
    {
        name
        for path in SOURCES.rglob("*.py")
        for name in re.findall(r"\bMIDRUN_[A-Z_]*[A-Z]\b", path.read_text())
    }
)
OTHER_NAMES = [
    *("OPENAI_API_KEY", "OPENAI_ORG_ID", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "DATABASE_URL"),
    *("GITHUB_TOKEN", "SSH_AUTH_SOCK", "HTTPS_PROXY"),
]

DUMP = "env; tr '\\0' '\\n' < /proc/self/environ; tr '\\0' '\\n' < /proc/$PPID/environ"

MCP_SERVER = """
import os, subprocess
from mcp.server import MCPServer
server = MCPServer("dump")

@server.tool(structured_output=False)
async def dump() -> str:
    "Dump."
    return str(dict(os.environ)) + subprocess.check_output(["sh", "-c", {dump!r}], text=True)

server.run()
"""


def _dump() -> str:
    """Return all variables that this process and a child of it can see."""
    started = Path("/proc/self/environ").read_text()
    child = subprocess.check_output(["/bin/sh", "-c", DUMP], text=True)  # noqa: S603 - our own
    return f"{dict(os.environ)}\n{started}\n{child}"


def dump() -> str:
    """Dump the environment."""
    return _dump()


@tool(env=["OPENAI_ORG_ID", "NOT_SET"])
def dump_with_names() -> str:
    """Dump an environment with a variable that is passed by name."""
    return _dump()


@tool(env={"OPENAI_ORG_ID": "another", "MIDRUN_STORE": "memory://"})
def dump_with_values() -> str:
    """Dump an environment with variables that are given."""
    return _dump()


@tool(env="inherit")
def dump_inherited() -> str:
    """Dump an environment that is inherited."""
    return _dump()


def require_variable() -> str:
    """Read a variable that is not set."""
    return os.environ["OPENAI_API_KEY"]


@pytest.fixture
def canaries(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Give each variable that may hold a secret a value of its own."""
    planted = {name: f"canary-{name.lower()}" for name in (*MIDRUN_NAMES, *OTHER_NAMES)}
    for name, value in planted.items():
        monkeypatch.setenv(name, value)
    return planted


@asynccontextmanager
async def _mcp_server(folder: Path, env: EnvironmentOption = None) -> AsyncIterator[list[Tool]]:
    script = folder / "server.py"
    script.write_text(MCP_SERVER.format(dump=DUMP))
    async with mcp_tools(command=[sys.executable, str(script)], env=env) as tools:
        yield tools


async def _call_tool(used: Use, *tools: object, **options: object) -> str:
    """Return the result of one call of a tool as the model gets it, or its error."""
    model = ScriptedModel([used, lambda messages: str(messages[-1].uses[0])])
    agent = Agent("actor", model=model, tools=list(tools), **options)  # type: ignore[arg-type]
    # Not redacted: a secret must be absent, not hidden.
    async with Midrun("memory://", agents=[agent], redact=False) as mid:
        outcome = await (await mid.start(agent, "Go.")).result()
    assert isinstance(outcome, Completed)
    return outcome.output


def _find_canaries(planted: dict[str, str], text: str) -> set[str]:
    return {name for name, value in planted.items() if value in text}


def test_every_variable_that_midrun_reads_is_planted() -> None:
    """The names are collected from the source; these must be among them."""
    assert {"MIDRUN_TOKEN", "MIDRUN_KEY", "MIDRUN_CHAIN_KEY"} <= set(MIDRUN_NAMES)
    assert {"MIDRUN_STORE", "MIDRUN_WEBHOOK_SECRET", "MIDRUN_URL"} <= set(MIDRUN_NAMES)


async def test_a_blocking_tool_and_its_children_see_no_secret(canaries: dict[str, str]) -> None:
    """Neither in `os.environ` nor in the initial environment of their processes."""
    output = await _call_tool(Use("dump"), dump)
    assert "PATH" in output
    assert os.environ["PATH"] in output
    assert not _find_canaries(canaries, output)


async def test_a_command_of_shell_sees_no_secret(canaries: dict[str, str]) -> None:
    """Neither the command nor its parent process."""
    output = await _call_tool(Use("shell", command=DUMP), shell())
    assert "PATH=" in output
    assert not _find_canaries(canaries, output)


async def test_an_mcp_server_that_is_started_sees_no_secret(
    canaries: dict[str, str], tmp_path: Path
) -> None:
    """Over stdio, where Midrun starts the server."""
    async with _mcp_server(tmp_path) as tools:
        output = await _call_tool(Use("dump"), *tools)
    assert "PATH" in output
    assert not _find_canaries(canaries, output)


async def test_declared_variables_reach_their_tool_and_no_other(
    canaries: dict[str, str], tmp_path: Path
) -> None:
    """They are declared by name or by value, for one tool or for all tools of an agent."""
    all_tools = (dump, dump_with_names, dump_with_values)
    named = await _call_tool(Use("dump_with_names"), *all_tools)
    assert _find_canaries(canaries, named) == {"OPENAI_ORG_ID"}
    assert "NOT_SET" not in named
    given = await _call_tool(Use("dump_with_values"), *all_tools)
    assert not _find_canaries(canaries, given)
    assert "OPENAI_ORG_ID=another" in given
    assert "MIDRUN_STORE=memory://" in given
    assert not _find_canaries(canaries, await _call_tool(Use("dump"), *all_tools))
    of_agent = await _call_tool(Use("dump_with_names"), *all_tools, tool_env=["DATABASE_URL"])
    assert _find_canaries(canaries, of_agent) == {"OPENAI_ORG_ID", "DATABASE_URL"}
    command = Use("shell", command=DUMP)
    of_shell = await _call_tool(command, shell(env=["AWS_SESSION_TOKEN"]))
    assert _find_canaries(canaries, of_shell) == {"AWS_SESSION_TOKEN"}
    async with _mcp_server(tmp_path, ["GITHUB_TOKEN"]) as tools:
        of_mcp = await _call_tool(Use("dump"), *tools)
    assert _find_canaries(canaries, of_mcp) == {"GITHUB_TOKEN"}


async def test_inherit_passes_all_but_the_credentials_of_midrun(
    canaries: dict[str, str], tmp_path: Path
) -> None:
    """With these credentials a tool could approve its own calls."""
    assert _find_canaries(
        canaries, await _call_tool(Use("dump_inherited"), dump_inherited)
    ) == set(OTHER_NAMES)
    of_agent = await _call_tool(Use("dump"), dump, tool_env="inherit")
    assert _find_canaries(canaries, of_agent) == set(OTHER_NAMES)
    async with _mcp_server(tmp_path, "inherit") as tools:
        of_mcp = await _call_tool(Use("dump"), *tools)
    assert _find_canaries(canaries, of_mcp) == set(OTHER_NAMES)


async def test_the_error_of_a_missing_variable_names_the_option(
    canaries: dict[str, str],
) -> None:
    """The option by which the variable can be declared."""
    del canaries
    output = await _call_tool(Use("require_variable"), require_variable)
    assert "OPENAI_API_KEY" in output
    assert 'tool(env=["NAME"])' in output


async def test_a_module_that_needs_a_missing_variable_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process imports it with the whole environment, the zygote without the variable."""
    source = 'import os\nKEY = os.environ["PAY_KEY"]\n\ndef pay() -> str:\n    return KEY\n'
    (tmp_path / "payment_module.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PAY_KEY", "canary")
    pay = import_module("payment_module").pay
    model = ScriptedModel([Use("pay"), "Done."])
    failed = await Agent("clerk", model=model, tools=[pay]).run("Pay.")
    assert isinstance(failed, Failed)
    assert failed.code == "tool_not_importable"
    assert "KeyError: 'PAY_KEY'" in failed.error
    assert 'Agent(tool_env=["NAME"])' in failed.error
    declared = Agent("clerk", model=model, tools=[pay], tool_env=["PAY_KEY"])
    assert isinstance(await declared.run("Pay."), Completed)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ("OPENAI_API_KEY", 'must be a list, a dict or "inherit"'),
        (["A=B"], "names of variables, got 'A=B'"),
        ([1], "names of variables, got 1"),
        ({"A": 1}, "must have str values, not for A"),
        ({"A": "x\0y"}, "a character for A that no variable can hold"),
        ({"A": "\ud800"}, "a character for A that no variable can hold"),
        (["MIDRUN_TOKEN"], "cannot name MIDRUN_TOKEN"),
    ],
)
def test_an_invalid_environment_is_refused(
    environment: EnvironmentOption, message: str
) -> None:
    """The same for a tool and an agent."""
    with pytest.raises(Misconfigured, match=re.escape(message)):
        tool(dump, env=environment)
    with pytest.raises(Misconfigured, match=re.escape(message)):
        Agent("actor", model=ScriptedModel([]), tool_env=environment)


def test_an_environment_for_a_tool_in_this_process_is_refused() -> None:
    """Such a tool shares the memory and the environment of the runtime."""

    async def async_tool() -> None:
        """Wait."""

    with pytest.raises(Misconfigured, match="env"):
        tool(async_tool, env=["A"])
    with pytest.raises(Misconfigured, match="env"):
        tool(dump, env=["A"], in_process=True)
    with pytest.raises(Misconfigured, match="env"):
        Agent("actor", model=ScriptedModel([]), tools=[tool(lambda: None, name="a", env=["A"])])
