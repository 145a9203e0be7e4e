"""Agents: a model, instructions, tools, and when to stop."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace as replace_fields
from datetime import timedelta
from hashlib import sha256
from types import MappingProxyType
from typing import Final, NoReturn

import msgspec
from msgspec.structs import replace

from midrun.agents.checkpoint import Checkpoint
from midrun.agents.human import PauseHere
from midrun.agents.outcome import Outcome
from midrun.agents.signature import BadArguments, Function
from midrun.agents.todo_tool import PLAN
from midrun.agents.tool import Started, Tool, place_of, take_why, tool
from midrun.agents.tool_environment import EnvironmentOption, declare_environment
from midrun.codec.safe_repr import safe_repr, safe_str
from midrun.codec.strict_json import checked
from midrun.core.stops import Stop, custom_names
from midrun.core.values import CallKind, Json, Use
from midrun.errors import Misconfigured, NotJson, TooLarge
from midrun.ports.model import Model, ToolSpec

NAME_MAX: Final = 100
NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]")


class Agent:
    """What a run is driven by. It holds no run: one agent can drive any number at once.

    Args:
        name: What journals, people and other agents know it by.
        model: "provider:model", or a model.
        instructions: What the model is told before anything else.
        tools: Functions, or tools. A plain function is taken to act once and to have no undo.
        stop: When a run of this agent pauses by itself; a run may be given another.
        frame_depth: How many lines of thought can be held at a time.
        frame_ttl: How long one is held.
        grace: How long an aborted call may take to stop.
        window: Tokens in a prompt past which older messages are condensed; 0 is never.
        tool_env: Environment variables for all processes of its blocking tools: a list of
            names, a dict of values, or "inherit". `tool(env=…)` adds to them for one tool.

    `tools` are by name, the built-in `plan` among them unless there is one of that name;
    `specs` are what the model is told of them. `fingerprint` is the same
    in every process that declares the same agent: it covers the name, the instructions, the
    model's name, and each tool's name and version.

    Raises:
        Misconfigured: it cannot work as it is declared; the text says what to do.
    """

    def __init__(  # noqa: PLR0913 - the parts of an agent
        self,
        name: str,
        *,
        model: str | Model,
        instructions: str = "",
        tools: "Sequence[Tool | Function]" = (),
        stop: Stop | None = None,
        frame_depth: int = 4,
        frame_ttl: timedelta = timedelta(hours=24),
        grace: timedelta = timedelta(seconds=5),
        window: int = 120_000,
        tool_env: EnvironmentOption = None,
    ) -> None:
        self.name: Final = name
        self.model: Final = model
        self.instructions: Final = instructions
        self.stop: Final = stop
        self.frame_depth: Final = frame_depth
        self.frame_ttl: Final = frame_ttl
        self.grace: Final = grace
        self.window: Final = window
        if problem := _problem(self):
            raise Misconfigured(f"agent {safe_str(name, NAME_MAX)}", problem)
        self.tool_environment: Final = declare_environment(
            f"agent {name}", "tool_env", tool_env
        )
        self.tools: Final = _by_name(name, tools)
        self.specs: Final[tuple[ToolSpec, ...]] = tuple(t.spec for t in self.tools.values())
        self.fingerprint: Final = _fingerprint(self)

    def spec(self, stop: Stop | None = None) -> Started:
        """Return the settings of a new run; `stop` replaces the agent's own, if given.

        Raises:
            Misconfigured: `stop` has a custom condition that the agent's own does not name.
        """
        if name := self.find_undeclared_stop(stop):
            problem = (
                "Cannot start: the agent's own stop does not name this function, and a worker "
                "that reads the name in a journal does not import it. Add Custom(fn) to "
                "Agent(stop=…)."
            )
            raise Misconfigured(f"stop {name}", problem)
        return Started(
            agent=self.name,
            agent_print=self.fingerprint,
            stop=self.stop if stop is None else stop,
            frame_depth=self.frame_depth,
            frame_ttl=self.frame_ttl // timedelta(microseconds=1),
            window=self.window,
        )

    def find_undeclared_stop(self, stop: Stop | None) -> str:
        """Return the first custom condition of `stop` that the agent's `stop` lacks, or ""."""
        declared = custom_names(self.stop)
        return next((name for name in custom_names(stop) if name not in declared), "")

    def offered(self, use: Use) -> Use:
        """Return what a model asks for as it can be journaled: complete, or refused in words.

        The model's reason is taken out of the arguments, and the traits are those of a call
        with these arguments. Never raises: what does not fit is told to the model.
        """
        if use.refused:
            return use
        try:
            args = checked(use.args, "args")
        except (NotJson, TooLarge) as error:
            return replace(use, args=None, refused=f"the arguments are not JSON: {error}")
        why, args = take_why({} if args is None else args)
        return self._decided(replace(use, args=args, why=why or use.why))

    def _decided(self, use: Use) -> Use:
        """Return `use` with its traits, or refused."""
        tool = self.tools.get(use.tool)
        if tool is None:
            names = ", ".join(self.tools)
            words = f"there is no tool {safe_repr(use.tool, 80)}; the tools are: {names}"
            return replace(use, refused=words)
        try:
            tool.parse(use.args)
        except BadArguments as problem:
            return replace(use, refused=f"the arguments do not fit: {problem}")
        assert isinstance(use.args, dict)  # or it would not have fitted
        try:
            traits = tool.traits_for(use.args)
        except (Exception, PauseHere) as error:  # noqa: BLE001 - the user's code; a call nobody judged must not be made
            words = f"{type(error).__name__}: {safe_str(error)}"
            return replace(
                use, refused=f"not made: it is not known who must approve it ({words})"
            )
        kind: CallKind = "tool" if tool.agent is None else "child"
        return replace(use, traits=traits, kind=kind)

    def as_tool(self, name: str | None = None, description: str | None = None) -> Tool:
        """Return this agent as a tool of another: each call is a run of its own.

        The child run has its own journal and is controlled with its parent: paused, halted and
        cancelled with it, and ended when its parent ends. What it asks shows on the parent. A
        cancel of the parent that undoes all undoes what its children did, too.
        """
        made = tool(_delegate, name=name or NOT_IN_NAMES.sub("_", self.name))
        told = description or f"Have {self.name} do a task of its own, and return its answer."
        traits = replace(made.traits, undo=True)  # by its own run, call by call
        return replace_fields(made, description=told, agent=self, traits=traits)

    async def run(self, task: str, *, stop: Stop | None = None) -> Outcome:
        """Run the agent on `task`, in memory, until it has ended, failed, or needs somebody.

        A paused or failed outcome carries a checkpoint; nothing else is kept. Cancelling this,
        by a timeout say, cancels the run: what was in flight is undone, what it held released.
        To control a run while it works, or to have it survive this process, start it with
        `Midrun`.
        """
        # The one import that points up: a convenience for scripts, and late, so that whoever
        # only declares an agent does not load what drives it.
        from midrun.runs import in_memory  # noqa: PLC0415 - as said

        return await in_memory.run(self, task, stop=stop)

    async def resume(
        self,
        checkpoint: Checkpoint,
        answer: Json = None,
        *,
        instruction: str | None = None,
        caps: dict[str, float] | None = None,
    ) -> Outcome:
        """Go on from `checkpoint`, with the answer that it waits for; also after a failure.

        `caps` raises bounds by name, where the run paused at one.

        Without a store nobody can know whether the same checkpoint was resumed before.

        Raises:
            CheckpointRefused: it has expired, or is of another agent.
            ControlRefused: the answer or the instruction does not fit where the run stands.
        """
        from midrun.runs import in_memory  # noqa: PLC0415 - as in `run`

        return await in_memory.resume(
            self, checkpoint, answer, instruction=instruction, caps=caps
        )

    def __repr__(self) -> str:
        tools = f"{len(self.tools)} tool{'' if len(self.tools) == 1 else 's'}"
        return f"<agent {self.name}, {_model_name(self.model)}, {tools}>"


async def _delegate(task: str) -> NoReturn:
    """Do a task.

    Args:
        task: What to do, with everything one must know to do it.
    """
    raise NotImplementedError(f"the driver starts a run for: {task}")


def _problem(agent: Agent) -> str:
    """Return which part of an agent is not what it should be, and what to do; or ""."""
    name: object = agent.name
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        return "needs a name that can be read"
    if len(name) > NAME_MAX:
        return f"its name is longer than {NAME_MAX} characters"
    if problem := _model_problem(agent.model):
        return problem
    stop: object = agent.stop
    rules = (
        (isinstance(agent.instructions, str), "instructions are one string"),
        (stop is None or isinstance(stop, Stop), "stop is a condition: stop=MaxSteps(40)"),
        (
            type(agent.frame_depth) is int and agent.frame_depth >= 0,
            "frame_depth is how many thoughts can be held, 0 or more",
        ),
        (
            type(agent.window) is int and agent.window >= 0,
            "window is a number of tokens, or 0 to condense nothing",
        ),
        (_is_time(agent.frame_ttl), "frame_ttl is a time: timedelta(hours=24)"),
        (_is_time(agent.grace), "grace is a time: timedelta(seconds=5)"),
    )
    return next((words for holds, words in rules if not holds), "")


def _model_problem(model: object) -> str:
    if isinstance(model, str):
        provider, _, rest = model.partition(":")
        named = bool(provider and rest)
        return "" if named else f'model {model!r} names no provider; write "openai:gpt-…"'
    # A model of ours streams; one of pydantic-ai's, which `models` takes too, is asked to.
    streams = any(hasattr(model, verb) for verb in ("stream", "request_stream"))
    return "" if streams and not isinstance(model, type) else f"{model!r} is not a model"


def _is_time(value: object) -> bool:
    return isinstance(value, timedelta) and value > timedelta(0)


def _by_name(agent: str, tools: "Sequence[Tool | Function]") -> Mapping[str, Tool]:
    made: dict[str, Tool] = {}
    for one in map(Tool.of, tools):
        if one.name in made:
            problem = f"two tools are called {one.name}; give one of them another name=…"
            raise Misconfigured(f"agent {agent}", problem)
        if one.in_process is False and place_of(one) is None:
            problem = (
                f"tool {one.name} cannot run in another process, which finds it by its name; "
                "move it to the top of a module, or drop in_process=False"
            )
            raise Misconfigured(f"agent {agent}", problem)
        if one.timeout is not None and not one.is_async and _threaded(one):
            problem = (
                f"tool {one.name} blocks a thread, which no timeout can stop; make it async, "
                "or move it to the top of a module so that it can be killed"
            )
            raise Misconfigured(f"agent {agent}", problem)
        if one.environment and place_of(one) is None:
            problem = (
                f"Cannot use env of tool {one.name}: it runs in a thread of this process, as "
                "no other process can import it. Move it to the top of a module"
            )
            raise Misconfigured(f"agent {agent}", problem)
        made[one.name] = one
    made.setdefault(PLAN.name, PLAN)
    return MappingProxyType(made)


def _threaded(tool: Tool) -> bool:
    return bool(tool.in_process) or place_of(tool) is None


def _fingerprint(agent: Agent) -> str:
    versions = sorted((tool.name, tool.traits.version) for tool in agent.tools.values())
    parts = [agent.name, agent.instructions, _model_name(agent.model), versions]
    return sha256(msgspec.json.encode(parts)).hexdigest()[:16]


def _model_name(model: object) -> str:
    known = (model, getattr(model, "name", None), getattr(model, "model_name", None))
    return next((name for name in known if isinstance(name, str)), type(model).__name__)
