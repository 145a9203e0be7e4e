"""Agents: their parts, their fingerprint, and what becomes of a model's wishes."""

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
from midrun.core.values import Json, Traits, Use
from midrun.errors import Misconfigured
from midrun.ports.model import Finished, Piece, Prompt, Unpriced

Stream: TypeAlias = AbstractAsyncContextManager[AsyncIterator[Piece | Finished]]


class Mute(Unpriced):
    """A model that says nothing."""

    name = "mute"

    def stream(self, prompt: Prompt) -> Stream:
        raise NotImplementedError


def add(a: int, b: int = 1) -> int:
    """Add."""
    return a + b


@tool(approve=lambda args: args["usd"] > 10, audience="operator")
def pay(usd: float) -> None:
    """Pay."""


@tool(approve=lambda args: args.clear() or False)
def careless(n: int) -> None:
    """Judge badly."""


@tool(approve=lambda _: 1 / 0)
def broken(n: int) -> None:
    """Cannot be judged."""


def agent(**changes: object) -> Agent:
    """Return an agent with some parts changed."""
    parts = {"name": "clerk", "model": "openai:gpt-x", "tools": [add, pay, careless, broken]}
    return Agent(**(parts | changes))  # type: ignore[arg-type]  # also wrong ones, on purpose


def test_an_agent_keeps_its_parts() -> None:
    """The driver takes everything from here."""
    clerk = agent(stop=MaxSteps(3), instructions="Be brief.")
    assert list(clerk.tools) == ["add", "pay", "careless", "broken", "plan"]
    assert isinstance(clerk.tools["add"], Tool)
    assert clerk.tools["pay"] is pay
    assert [spec.name for spec in clerk.specs] == list(clerk.tools)
    assert (clerk.instructions, clerk.stop) == ("Be brief.", MaxSteps(3))
    assert (clerk.frame_depth, clerk.grace) == (4, timedelta(seconds=5))
    assert repr(clerk) == "<agent clerk, openai:gpt-x, 5 tools>"


def test_a_run_starts_with_what_the_agent_says() -> None:
    """And with a stop of its own where it was given one."""
    clerk = agent(stop=MaxSteps(3), frame_depth=2, frame_ttl=timedelta(seconds=1))
    entry = RunStarted(task="add", **clerk.spec())
    assert entry == RunStarted(
        agent="clerk",
        agent_print=clerk.fingerprint,
        task="add",
        stop=MaxSteps(3),
        frame_depth=2,
        frame_ttl=1_000_000,
        window=120_000,
    )
    assert clerk.spec(MaxSteps(9))["stop"] == MaxSteps(9)


def test_the_fingerprint_is_of_what_a_resumed_run_relies_on() -> None:
    """The same in every process; another as soon as the agent is another."""
    same = agent().fingerprint
    assert agent(tools=[broken, careless, pay, add]).fingerprint == same
    assert agent(stop=MaxSteps(1), grace=timedelta(seconds=9)).fingerprint == same
    others = [
        agent(name="other"),
        agent(instructions="Be brief."),
        agent(model="openai:gpt-y"),
        agent(model=Mute()),
        agent(tools=[add]),
        agent(tools=[tool(add, read_only=True), pay, careless, broken]),
    ]
    known = {other.fingerprint for other in others} | {same}
    assert len(known) == len(others) + 1


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"name": " "}, "name must be a str"),
        ({"name": 3}, "agent 3: name must be a str"),
        ({"name": "a\nb"}, "name must be a str"),
        ({"name": "n" * 101}, "at most 100 characters, got 101"),
        ({"model": "gpt-x"}, "agent clerk: model must be .*, got 'gpt-x'"),
        ({"model": None}, "model must be .*, got None"),
        ({"model": Mute}, "model must be .*Mute"),
        ({"instructions": None}, "instructions must be a str, got None"),
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
def test_an_agent_that_cannot_work_is_refused_with_advice(
    changes: dict[str, object], advice: str
) -> None:
    """Where it is declared, and by its name."""
    with pytest.raises(Misconfigured, match=advice):
        agent(**changes)


def test_an_offered_use_is_complete() -> None:
    """With the reason apart, and the traits of a call with these very arguments."""
    offered = agent().complete_use(Use(tool="pay", args={"usd": 20, "why": "rent"}))
    assert offered == Use(
        tool="pay",
        args={"usd": 20},
        why="rent",
        traits=Traits(approve="block", audience="operator", version=pay.traits.version),
    )
    assert agent().complete_use(Use(tool="pay", args={"usd": 5})).traits.approve == ""


def test_no_arguments_are_an_empty_object() -> None:
    """Hooks are always given an object."""

    def now() -> str:
        return ""

    assert agent(tools=[now]).complete_use(Use(tool="now")).args == {}


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (Use(tool="sub"), "there is no tool 'sub'; the tools are: add, pay, careless, broken"),
        (Use(tool="add", args={"a": "1"}), "the arguments do not fit: a: expected `int`"),
        (Use(tool="add", args=[1]), "the arguments do not fit: expected an object with the"),
        (
            Use(tool="add", args={"a": math.nan}),
            "the arguments are not JSON: Cannot use args.a",
        ),
        (Use(tool="broken", args={"n": 1}), "not made: .*ZeroDivisionError: division by zero"),
        (Use(tool="add", refused="cut short"), "cut short"),
    ],
)
def test_what_does_not_fit_is_refused_in_words_and_never_raises(use: Use, words: str) -> None:
    """The model is told, the journal keeps it, and the run goes on."""
    clerk = agent()
    refused = clerk.complete_use(use).refused
    assert re.match(words, refused), refused


def test_a_judge_cannot_change_what_is_journaled() -> None:
    """What was judged and what is made must be the same arguments."""
    args: dict[str, Json] = {"n": 1}
    offered = agent().complete_use(Use(tool="careless", args=args))
    assert (offered.args, args, offered.refused) == ({"n": 1}, {"n": 1}, "")


def test_an_agent_without_tools_of_its_own_says_so() -> None:
    """A model may make up a tool all the same."""
    refused = agent(tools=()).complete_use(Use(tool="add")).refused
    assert refused == "there is no tool 'add'; the tools are: plan"


def test_the_ready_made_question_is_a_tool_like_any_other() -> None:
    """Nothing about it is special to the agent."""
    use = agent(tools=[ask_human]).complete_use(Use(tool="ask_human", args={"question": "?"}))
    assert (use.refused, use.traits) == ("", ask_human.traits)
