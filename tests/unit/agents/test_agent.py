"""Agents: their parts, their fingerprint, and the checks of the calls that a model asks for."""

import math
import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import TypeAlias

import pytest

from midrun.agents.agent import Agent
from midrun.agents.builtin_tools import ask_human
from midrun.agents.tool import Tool, tool
from midrun.core.entries import RunStarted
from midrun.core.stops import MaxSteps
from midrun.core.values import Json, RequestedCall, Traits
from midrun.errors import Misconfigured
from midrun.ports.model import Finished, Piece, Prompt, Unpriced

Stream: TypeAlias = AbstractAsyncContextManager[AsyncIterator[Piece | Finished]]


class SilentModel(Unpriced):
    """A model that cannot be called."""

    name = "mute"

    def stream(self, prompt: Prompt) -> Stream:
        raise NotImplementedError


def add(a: int, b: int = 1) -> int:
    """Add."""
    return a + b


@tool(approve=lambda args: args["usd"] > 10, audience="operator")
def pay(usd: float) -> None:
    """Pay."""


@tool(name="careless", approve=lambda args: args.clear() or False)
def clear_arguments(n: int) -> None:
    """Has an approval function that changes the arguments."""


@tool(name="broken", approve=lambda _: 1 / 0)
def fail_approval(n: int) -> None:
    """Has an approval function that raises."""


def make_agent(**changes: object) -> Agent:
    """Return an agent with some parts replaced."""
    parts = {
        "name": "clerk",
        "model": "openai:gpt-x",
        "tools": [add, pay, clear_arguments, fail_approval],
    }
    return Agent(**(parts | changes))  # type: ignore[arg-type]  # also wrong ones, on purpose


def test_an_agent_keeps_its_parts() -> None:
    clerk = make_agent(stop=MaxSteps(3), instructions="Be brief.")
    assert list(clerk.tools) == ["add", "pay", "careless", "broken", "plan"]
    assert isinstance(clerk.tools["add"], Tool)
    assert clerk.tools["pay"] is pay
    assert [spec.name for spec in clerk.specs] == list(clerk.tools)
    assert (clerk.instructions, clerk.stop) == ("Be brief.", MaxSteps(3))
    assert (clerk.frame_depth, clerk.grace) == (4, timedelta(seconds=5))
    assert repr(clerk) == "<agent clerk, openai:gpt-x, 5 tools>"


def test_the_spec_of_an_agent_fills_run_started() -> None:
    """A stop condition of the run replaces the one of the agent."""
    clerk = make_agent(stop=MaxSteps(3), frame_depth=2, frame_ttl=timedelta(seconds=1))
    entry = RunStarted(task="add", **clerk.spec())
    assert entry == RunStarted(
        agent="clerk",
        agent_fingerprint=clerk.fingerprint,
        task="add",
        stop=MaxSteps(3),
        frame_depth=2,
        frame_ttl=1_000_000,
        window=120_000,
    )
    assert clerk.spec(MaxSteps(9))["stop"] == MaxSteps(9)


def test_the_fingerprint_covers_name_instructions_model_and_tools() -> None:
    """The order of the tools, the stop condition and the grace do not change it."""
    same = make_agent().fingerprint
    assert make_agent(tools=[fail_approval, clear_arguments, pay, add]).fingerprint == same
    assert make_agent(stop=MaxSteps(1), grace=timedelta(seconds=9)).fingerprint == same
    others = [
        make_agent(name="other"),
        make_agent(instructions="Be brief."),
        make_agent(model="openai:gpt-y"),
        make_agent(model=SilentModel()),
        make_agent(tools=[add]),
        make_agent(tools=[tool(add, read_only=True), pay, clear_arguments, fail_approval]),
    ]
    fingerprints = {other.fingerprint for other in others} | {same}
    assert len(fingerprints) == len(others) + 1


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"name": " "}, "name must be a str"),
        ({"name": 3}, "agent 3: name must be a str"),
        ({"name": "a\nb"}, "name must be a str"),
        ({"name": "n" * 101}, "at most 100 characters, got 101"),
        ({"model": "gpt-x"}, "agent clerk: model must be .*, got 'gpt-x'"),
        ({"model": None}, "model must be .*, got None"),
        ({"model": SilentModel}, "model must be .*SilentModel"),
        ({"instructions": None}, "instructions must be a str or a function, got None"),
        ({"stop": MaxSteps}, r"stop=MaxSteps\(40\)"),
        ({"stop": 40}, r"stop=MaxSteps\(40\)"),
        ({"frame_depth": -1}, "frame_depth must be an int >= 0, got -1"),
        ({"frame_depth": True}, "an int >= 0, got True"),
        ({"frame_ttl": 24}, "frame_ttl must be a positive timedelta"),
        ({"grace": timedelta(0)}, "grace must be a positive timedelta"),
        (
            {"tools": [add, tool(pay.fn, name="add")]},
            "agent clerk: Two tools have the name add",
        ),
        ({"tools": [3]}, "tool 3 must be a function"),
        (
            {"tools": [tool(lambda: None, name="here", in_process=False)]},
            "Cannot run tool here in another process",
        ),
    ],
)
def test_an_invalid_agent_is_refused_with_advice(
    changes: dict[str, object], advice: str
) -> None:
    """The error names the agent and is raised where the agent is declared."""
    with pytest.raises(Misconfigured, match=advice):
        make_agent(**changes)


def test_complete_use_separates_why_and_adds_the_traits() -> None:
    """The traits are computed for these arguments: `approve` depends on the amount."""
    completed = make_agent().complete_use(
        RequestedCall(tool="pay", args={"usd": 20, "why": "rent"})
    )
    assert completed == RequestedCall(
        tool="pay",
        args={"usd": 20},
        why="rent",
        traits=Traits(approve="block", audience="operator", version=pay.traits.version),
    )
    assert (
        make_agent().complete_use(RequestedCall(tool="pay", args={"usd": 5})).traits.approve
        == ""
    )


def test_missing_arguments_become_an_empty_object() -> None:
    """The hooks of a tool always receive an object."""

    def now() -> str:
        return ""

    assert make_agent(tools=[now]).complete_use(RequestedCall(tool="now")).args == {}


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (
            RequestedCall(tool="sub"),
            "there is no tool 'sub'; the tools are: add, pay, careless, broken",
        ),
        (
            RequestedCall(tool="add", args={"a": "1"}),
            "the arguments do not fit: a: expected `int`",
        ),
        (
            RequestedCall(tool="add", args=[1]),
            "the arguments do not fit: expected an object with the",
        ),
        (
            RequestedCall(tool="add", args={"a": math.nan}),
            "the arguments are not JSON: Cannot use args.a",
        ),
        (
            RequestedCall(tool="broken", args={"n": 1}),
            "not made: .*ZeroDivisionError: division by zero",
        ),
        (RequestedCall(tool="add", refused="cut short"), "cut short"),
    ],
)
def test_an_invalid_use_is_marked_as_refused_and_does_not_raise(
    use: RequestedCall, words: str
) -> None:
    """The model reads the reason, the journal keeps it, and the run goes on."""
    clerk = make_agent()
    refused = clerk.complete_use(use).refused
    assert re.match(words, refused), refused


def test_an_approve_function_cannot_change_the_journaled_arguments() -> None:
    """The approved arguments and the arguments of the call must be the same."""
    args: dict[str, Json] = {"n": 1}
    completed = make_agent().complete_use(RequestedCall(tool="careless", args=args))
    assert (completed.args, args, completed.refused) == ({"n": 1}, {"n": 1}, "")


def test_an_agent_without_own_tools_lists_only_plan() -> None:
    """A model may ask for a tool that does not exist."""
    refused = make_agent(tools=()).complete_use(RequestedCall(tool="add")).refused
    assert refused == "there is no tool 'add'; the tools are: plan"


def test_ask_human_is_completed_like_any_other_tool() -> None:
    use = make_agent(tools=[ask_human]).complete_use(
        RequestedCall(tool="ask_human", args={"question": "?"})
    )
    assert (use.refused, use.traits) == ("", ask_human.traits)
