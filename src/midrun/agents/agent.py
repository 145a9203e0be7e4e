"""`Agent`: a model, instructions, tools and a stop condition, checked when it is declared."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace as replace_fields
from datetime import timedelta
from functools import cached_property
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NoReturn, cast

import msgspec
from msgspec.structs import replace

from midrun.agents.builtin_tools import PLAN_TOOL, PauseHere, make_client_tool
from midrun.agents.checkpoint import Checkpoint
from midrun.agents.handoffs import (
    check_family,
    collect_family,
    find_handoff_problem,
    list_speakers,
    make_handoff_tool,
)
from midrun.agents.offered_tools import OfferedTools, declare_deferred
from midrun.agents.outcome import Outcome
from midrun.agents.output import OUTPUT_NAME, OUTPUT_RETRIES, Output
from midrun.agents.program import Program
from midrun.agents.signature import BadArguments, CallFunction, Function, FunctionFailed
from midrun.agents.tool import (
    INVALID_NAME_CHARACTER,
    RunSettings,
    Tool,
    find_import_path,
    split_why,
    strip_descriptions,
    tool,
)
from midrun.agents.tool_context import Call, ContextFactory, ContextSource
from midrun.agents.tool_environment import EnvironmentOption, declare_environment
from midrun.codec.safe_repr import safe_repr, safe_str
from midrun.codec.strict_json import normalize_json
from midrun.core.entries import RunStarted
from midrun.core.stops import Stop, list_custom_names
from midrun.core.values import CallKind, Json, ModelSettings, RequestedCall
from midrun.errors import Misconfigured, NotJson, TooLarge
from midrun.ports.model import Model, ToolSpec

if TYPE_CHECKING:  # a higher layer; see `Agent.run`
    from midrun.runs.in_memory import OpenedRun

AGENT_NAME_MAX_CHARS: Final = 100


class Agent:
    """The declaration of an agent: a model, instructions, tools and a stop condition.

    An agent has no state of its own. One agent can drive any number of runs at once.

        clerk = Agent(
            "clerk",
            model="anthropic:claude-opus-4-6",
            instructions="Sort the mail of the user.",
            tools=[list_mail, archive],
            stop=MaxSteps(40) | MaxCost(2.0),
        )
        outcome = await clerk.run("Archive everything older than a year")

    Args:
        name: A unique name, at most 100 characters. It is stored in every journal.
        model: "provider:model", a `midrun` model, or a model of pydantic-ai.
        base_url: The address of the server of a model that is given by its name, if it is not
            that of the provider.
        fallback: Models to try, in this order, when the model fails.
        model_settings: Settings of the model: temperature, thinking and others. `Midrun.start`
            can replace them for one run.
        instructions: The system prompt, or a function that returns it, sync or async. The
            function may take a `Call`, with the run and its context, and is called before each
            model call.
        tools: Functions, or tools made with `@tool`. A plain function is treated as having an
            effect that must not happen twice and that cannot be undone.
        deferred_tools: Tools that the model is told of once it has found them with the tool
            `search_tools`, which is added. For agents with very many tools.
        before_tool: Called before each tool call with its name and arguments, or with a `Call`
            before them; sync or async. `ModelRetry` refuses the call and tells the model why.
        after_tool: Called with the name, the arguments and the result of a tool call that
            returned. It returns the result to take, or None to leave it as it is. If it
            raises, the result is withheld and the model is told why.
        provider_tools: Tools that the provider of the model executes inside a model call, by
            name ("web_search", "code_execution") or as a native tool of pydantic-ai. They are
            not gated: they cannot be approved, stopped by themselves or undone. The journal
            names those that were used.
        max_parallel: The number of tool calls that run at the same time. 1: one after the
            other, in the order of the reply. 0: as many as the model asks for.
        stop: The condition at which a run pauses. `Midrun.start` can replace it for one run.
        frame_depth: The number of topics that can be held at a time, while the agent
            answers messages.
        frame_ttl: A held topic expires after this time.
        grace: The time that an aborted call has to stop.
        window: If a prompt has more tokens than this, older messages are summarized. 0: never.
        tool_env: Environment variables for the processes of all blocking tools: a list of
            names, a dict of values, or "inherit". `tool(env=…)` adds to them for one tool.
        output: The type of the answer, or its JSON Schema as a dict. `Completed.value` has
            the answer as JSON. An answer that does not fit is returned to the model with the
            problem.
        output_validators: Functions of the answer, or of a `Call` and the answer, sync or
            async. They return the answer to take, or None to leave it as it is, and raise
            `ModelRetry` to have the model try again.
        output_retries: The number of further attempts after an answer that is not valid. Then
            the run fails; it can be resumed.
        context: Makes `call.context`: a function that takes nothing, or `run_id`. Without
            `run_id` it is called once in each worker, by the first call that can use it, and
            all runs share its value. With `run_id` it is called for each call. If it returns
            an async context manager, that is entered, and left when the worker closes or the
            call ends. Nothing of it is journaled.
        handoffs: Agents to which this agent may hand the run, or their names. Each adds a tool
            `hand_off_to_<name>`. After a call of it, that agent speaks: with its own model,
            instructions and tools, in the same conversation, and under the stop condition of
            the run.
        program: The loop of a hosted agent, in place of Midrun's own. Use `midrun.hosts`.

    Attributes:
        tools: The tools by name. The built-in tool `plan` is added, unless a tool has this
            name.
        specs: The tools as the model is told of them.
        family: This agent and all agents that its handoffs reach, by name.
        fingerprint: A hash of the name, the instructions (of a function, its name), the name
            of the model, the schema of the output, and the name and version of each tool; with
            handoffs, also of those of all agents in its family. It is
            equal in every process that declares the same agent; a checkpoint is resumed only by
            an agent with the same fingerprint.

    Raises:
        Misconfigured: An argument is not valid, or a tool cannot work. The text says why.
    """

    framework = ""
    """The framework of an agent made with `midrun.host`; else ""."""

    undeclared_tools = 0
    """The number of tools of a hosted agent that have no declared traits."""

    def __init__(  # noqa: PLR0913 - one keyword per part
        self,
        name: str,
        *,
        model: str | Model,
        base_url: str | None = None,
        fallback: Sequence[str | Model] = (),
        model_settings: ModelSettings | None = None,
        instructions: str | Function = "",
        tools: "Sequence[Tool | Function]" = (),
        deferred_tools: "Sequence[Tool | Function]" = (),
        before_tool: Function | None = None,
        after_tool: Function | None = None,
        provider_tools: Sequence[object] = (),
        max_parallel: int = 0,
        stop: Stop | None = None,
        frame_depth: int = 4,
        frame_ttl: timedelta = timedelta(hours=24),
        grace: timedelta = timedelta(seconds=5),
        window: int = 120_000,
        tool_env: EnvironmentOption = None,
        output: object = None,
        output_validators: Sequence[Function] = (),
        output_retries: int = OUTPUT_RETRIES,
        context: ContextFactory | None = None,
        handoffs: "Sequence[Agent | str]" = (),
        program: Program | None = None,
    ) -> None:
        self.name: Final = name
        self.program: Final = program
        self.model: Final = model
        self.base_url: Final = base_url
        self.fallback: Final = fallback
        where = f"agent {name}"
        settings = check_model_settings(where, model_settings)
        self.model_settings: Final = settings or ModelSettings()
        self.instructions: Final = instructions
        self.stop: Final = stop
        self.frame_depth: Final = frame_depth
        self.frame_ttl: Final = frame_ttl
        self.grace: Final = grace
        self.window: Final = window
        self.output_retries: Final = output_retries
        self.provider_tools: Final = tuple(provider_tools)
        self.max_parallel: Final = max_parallel
        self.handoffs: Final = handoffs
        _check_declaration(self)
        self.tool_environment: Final = declare_environment(where, "tool_env", tool_env)
        deferred = declare_deferred(name, deferred_tools)
        self.tools: Final = _index_tools(self, (*tools, *deferred))
        self.offered_tools: Final = OfferedTools(self.tools, deferred)
        self.before_tool: Final = _declare_hook(name, "before_tool", before_tool)
        self.after_tool: Final = _declare_hook(name, "after_tool", after_tool, "result")
        self.family: Final = collect_family(self, self.handoffs)
        self.output: Final = _declare_output(self, output, output_validators)
        self.specs: Final = _list_specs(self)
        self.context_source: Final = _declare_context(self, context)
        self._instructions_function: Final = _declare_instructions(self)
        self._instructions_max_chars = 0  # of the longest text that the function returned
        self.fingerprint: Final = _make_fingerprint(self)

    def spec(self, stop: Stop | None = None) -> RunSettings:
        """Return the settings that a new run copies into its journal.

        `stop` replaces the agent's own, if given.

        Raises:
            Misconfigured: `stop` has a custom condition that the agent's own does not name, or
                a handoff names an agent that is not in the family.
        """
        if name := self.find_undeclared_stop(stop):
            # A worker must not import any function that a journal names: the journal may have
            # come with a checkpoint from elsewhere. The agent's declaration is the allow-list.
            problem = (
                "Cannot start a run: the agent's own stop does not name this function, and a "
                "worker imports only functions that it names. Add Custom(fn) to "
                "Agent(stop=…)."
            )
            raise Misconfigured(f"stop {name}", problem)
        check_family(self)
        return RunSettings(
            agent=self.name,
            agent_fingerprint=self.fingerprint,
            stop=self.stop if stop is None else stop,
            frame_depth=self.frame_depth,
            frame_ttl=self.frame_ttl // timedelta(microseconds=1),
            window=self.window,
            hosted=self.program is not None,
            framework=self.framework,
            undeclared_tools=self.undeclared_tools,
            output_retries=self.output_retries if self.output else 0,
            max_parallel=self.max_parallel,
            handoffs=list_speakers(self),
        )

    @property
    def summary(self) -> str:
        """The first line of its instructions; "" if a function makes them."""
        text = self.instructions
        return text.partition("\n")[0] if isinstance(text, str) else ""

    @cached_property
    def model_calls_need_context(self) -> bool:
        """Whether a function that takes a `Call` runs in the model calls of this agent."""
        functions = (self.offered_tools, self.output, self._instructions_function)
        return any(function.takes_call for function in functions if function)

    async def make_instructions(self, call: Call | None) -> str:
        """Return the system prompt of a model call; call the function that makes it.

        Raises:
            FunctionFailed: The function raised, or did not return a str.
        """
        if self._instructions_function is None:
            assert isinstance(self.instructions, str)
            return self.instructions
        text = await self._instructions_function.apply(call)
        if not isinstance(text, str):
            label = self._instructions_function.label
            raise FunctionFailed(f"{label} must return a str, got {safe_repr(text, 80)}")
        self._instructions_max_chars = max(self._instructions_max_chars, len(text))
        return text

    def estimate_instructions(self) -> str:
        """Return a text as long as the system prompt, to estimate the cost of a model call.

        The text of a function is not known before the call: the longest text that it returned
        in this process counts.
        """
        if isinstance(self.instructions, str):
            return self.instructions
        return "." * self._instructions_max_chars

    def find_undeclared_stop(self, stop: Stop | None) -> str:
        """Return the first custom condition of `stop` that the agent's `stop` lacks, or ""."""
        declared = list_custom_names(self.stop)
        return next((name for name in list_custom_names(stop) if name not in declared), "")

    def find_tool(self, name: str) -> Tool | None:
        """Return the tool with this name; None if there is none.

        A hosted agent may have tools that are only known while it runs; `tools` lacks them.
        """
        return self.tools.get(name)

    def list_client_tools(self, started: RunStarted) -> tuple[Tool, ...]:
        """Return the tools of the run's client, without those that the agent has itself.

        An agent of another framework gets its tools from there, and so none of these.
        """
        if self.framework:
            return ()
        tools = [each for each in started.client_tools if self.find_tool(each.name) is None]
        return tuple(map(make_client_tool, tools))

    def find_client_tool(self, started: RunStarted, name: str) -> Tool | None:
        """Return the client's tool of this name; None if there is none."""
        tools = self.list_client_tools(started) if started.client_tools else ()
        return next((tool for tool in tools if tool.name == name), None)

    def complete_use(self, use: RequestedCall, tool: Tool | None = None) -> RequestedCall:
        """Complete a proposed use with its traits; if it is not valid, mark it as refused.

        `tool` is the tool of a hosted program; by default, the agent's tool of that name.

        The model's reason (`why`) is moved out of the arguments. This never raises: the model
        proposed the use, and it reads the text of the refusal in place of a result.
        """
        if use.refused:
            return use
        try:
            args = normalize_json(use.args, "args")
        except (NotJson, TooLarge) as error:
            return replace(use, args=None, refused=f"the arguments are not JSON: {error}")
        # Some models send null instead of an empty object for a tool without arguments.
        args = {} if args is None else args
        # The model of a hosted agent is not told of `why`; its tool may have an argument `why`.
        why, args = ("", args) if self.framework else split_why(args)
        tool = tool or self.find_tool(use.tool)
        return self._complete_traits(replace(use, args=args, why=why or use.why), tool)

    def _complete_traits(self, use: RequestedCall, tool: Tool | None) -> RequestedCall:
        # The texts of refusals are journaled and read by the model.
        if tool is None:
            names = ", ".join(self.tools)
            text = f"there is no tool {safe_repr(use.tool, 80)}; the tools are: {names}"
            return replace(use, refused=text)
        try:
            tool.arguments.parse(use.args)
        except BadArguments as problem:
            return replace(use, refused=f"the arguments do not fit: {problem}")
        assert isinstance(use.args, dict)  # `parse` accepted it
        try:
            traits = tool.traits_for(use.args)
        except (Exception, PauseHere) as error:  # noqa: BLE001 - `approve` is user code
            # Without its answer it is not known whether the call needs an approval: refuse it.
            # PauseHere is a BaseException, which `except Exception` does not catch.
            text = f"{type(error).__name__}: {safe_str(error)}"
            return replace(
                use, refused=f"not made: it is not known who must approve it ({text})"
            )
        # The framework of a hosted agent may require an approval for this one call.
        if use.traits.approve and not traits.approve:
            traits = replace(traits, approve=use.traits.approve)
        kind: CallKind = "tool" if tool.agent is None else "child"
        return replace(use, traits=traits, kind=kind, handoff=tool.handoff)

    def add_title(self, use: RequestedCall, tool: Tool | None = None) -> RequestedCall:
        """Return `use` with the title that its tool declares; never raises.

        Call it with redacted arguments: a title is shown wherever the call is named.
        """
        tool = tool or self.find_tool(use.tool)
        title = "" if tool is None or use.refused else tool.make_title(use.args)
        return replace(use, title=title) if title != use.title else use

    def as_tool(self, name: str | None = None, description: str | None = None) -> Tool:
        """Return this agent as a tool for another agent; each call is a child run.

        A child run has its own journal. It is paused, halted and cancelled together with its
        parent, and ends when its parent ends. Its asks are shown on the parent. A cancel of the
        parent with `undo="all"` also undoes the effects of the child.

        Args:
            name: The name of the tool. Default: the name of the agent.
            description: The text that the model reads to decide when to use it.
        """
        child_tool = tool(_delegate, name=name or INVALID_NAME_CHARACTER.sub("_", self.name))
        text = description or f"Have {self.name} do a task of its own, and return its answer."
        # The tool has no undo hook: to undo the call, the child run undoes its own calls.
        traits = replace(child_tool.traits, undo=True)
        return replace_fields(child_tool, description=text, agent=self, traits=traits)

    async def run(
        self,
        task: str,
        *,
        stop: Stop | None = None,
        model_settings: ModelSettings | None = None,
        history: Sequence[object] | None = None,
    ) -> Outcome:
        """Run the agent on `task` in memory, until it has ended or waits for a person.

        `history` has earlier messages in the format of OpenAI, Anthropic or Pydantic AI.

            match await clerk.run("Sort the mail"):
                case Completed(output=output):
                    print(output)
                case Paused(asks=asks, checkpoint=checkpoint):
                    ...  # store checkpoint.to_json(), ask, then clerk.resume(…)

        Nothing is stored: a paused or failed outcome has a checkpoint to continue from. If this
        call is cancelled, for example by a timeout, the run is cancelled: calls in flight are
        undone and held resources are released before the cancellation continues.

        To control the run while it works, or to let it survive this process, use `Midrun`.

        Raises:
            Misconfigured: The task is empty, or the model cannot be opened.
        """
        # The only import that points up to a higher layer. It is here, and not at the top, so
        # that a process that only declares agents does not load the driver.
        from midrun.runs import in_memory  # noqa: PLC0415 - see above

        return await in_memory.run_in_memory(
            self, task, stop=stop, model_settings=model_settings, history=history
        )

    def run_sync(
        self,
        task: str,
        *,
        stop: Stop | None = None,
        model_settings: ModelSettings | None = None,
        history: Sequence[object] | None = None,
    ) -> Outcome:
        """Run the agent as `run` does, from code that is not async.

        Raises:
            Misconfigured: An event loop runs in this thread already, as in a notebook; or as
                in `run`.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            # Not `anyio.run`: it refuses to run in a thread that `asyncio.to_thread` has
            # started, because the context variables of that thread name an event loop.
            return asyncio.run(
                self.run(task, stop=stop, model_settings=model_settings, history=history)
            )
        problem = (
            "Cannot run it: an event loop runs in this thread already, as in a notebook. Write "
            "await agent.run(…)."
        )
        raise Misconfigured("run_sync", problem)

    def stream(
        self,
        task: str,
        *,
        stop: Stop | None = None,
        model_settings: ModelSettings | None = None,
        history: Sequence[object] | None = None,
    ) -> "OpenedRun":
        """Start a run in memory, to follow and control it while the context is open.

            async with clerk.stream("Sort the mail") as run:
                async for event in run.events():
                    if isinstance(event, TextDelta):
                        print(event.text, end="")
                outcome = await run.result()

        A run that still works when the context is left is cancelled, with its undos. Take the
        checkpoint of a paused run from `await run.result()` before that.

        Raises:
            Misconfigured: As in `run`; when the context is entered.
        """
        from midrun.runs import in_memory  # noqa: PLC0415 - as in `run`

        return in_memory.stream_in_memory(
            self, task, stop=stop, model_settings=model_settings, history=history
        )

    async def resume(
        self,
        checkpoint: Checkpoint,
        answer: Json = None,
        *,
        instruction: str | None = None,
        caps: dict[str, float] | None = None,
    ) -> Outcome:
        """Continue a paused or failed run from its checkpoint, in memory.

        Without a store, it cannot be detected that the same checkpoint was resumed before.

        Args:
            checkpoint: The `checkpoint` of a `Paused` or `Failed` outcome.
            answer: Settles the open ask: the answer to a question; True, False or
                `{"approved": …, "args": …, "reason": …}` for an approval; "yes", "no" or
                "unknown" for an unsure call.
            instruction: Text that the agent reads before its next step.
            caps: New caps by name, if the run paused at a cap.

        Raises:
            CheckpointRefused: It has expired, or is of another agent.
            ControlRefused: The run cannot take the answer or the instruction in its phase.
        """
        from midrun.runs import in_memory  # noqa: PLC0415 - as in `run`

        return await in_memory.resume_in_memory(
            self, checkpoint, answer, instruction=instruction, caps=caps
        )

    def __repr__(self) -> str:
        tools = f"{len(self.tools)} tool{'' if len(self.tools) == 1 else 's'}"
        names = ", ".join(self.unstoppable_tools)
        note = f", cannot stop {names}" if names else ""
        return f"<agent {self.name}, {_find_model_name(self.model)}, {tools}{note}>"

    @property
    def unstoppable_tools(self) -> tuple[str, ...]:
        """The tools that block a thread of the worker, where no control can stop them.

        They are blocking functions that another process cannot import: closures, methods, and
        functions that were defined in a cell of a notebook.
        """
        return tuple(
            tool.name
            for tool in self.tools.values()
            if not tool.is_async and tool.agent is None and _runs_in_thread(tool)
        )


async def _delegate(task: str) -> NoReturn:
    """Do a task.

    Args:
        task: What to do, with everything one must know to do it.
    """
    raise NotImplementedError(f"the driver starts a run for: {task}")


def _find_problem(agent: Agent) -> str:
    """Return a description of the first argument that is not valid, or ""."""
    name: object = agent.name
    # Printable: the name is shown in terminals and lists, where a newline would break a row.
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        return (
            "name must be a str of printable characters, got "
            f"{safe_repr(name, AGENT_NAME_MAX_CHARS)}"
        )
    if len(name) > AGENT_NAME_MAX_CHARS:
        return f"name must have at most {AGENT_NAME_MAX_CHARS} characters, got {len(name)}"
    if problem := _find_models_problem(agent) or _find_handoffs_problem(agent):
        return problem
    stop: object = agent.stop
    rules = (
        (
            isinstance(agent.instructions, str) or callable(agent.instructions),
            "instructions",
            "must be a str or a function",
        ),
        (
            stop is None or isinstance(stop, Stop),
            "stop",
            "must be a stop condition, as stop=MaxSteps(40)",
        ),
        *(
            (_is_count(getattr(agent, argument)), argument, f"must be an int >= 0{note}")
            for argument, note in _COUNT_NOTES.items()
        ),
        (
            all(isinstance(t, str) or hasattr(t, "kind") for t in agent.provider_tools),
            "provider_tools",
            'must have names, as ["web_search"]',
        ),
        (
            _is_positive_duration(agent.frame_ttl),
            "frame_ttl",
            "must be a positive timedelta, as timedelta(hours=24)",
        ),
        (
            _is_positive_duration(agent.grace),
            "grace",
            "must be a positive timedelta, as timedelta(seconds=5)",
        ),
    )
    for holds, argument, expected in rules:
        if not holds:
            return (
                f"{argument} {expected}, got "
                f"{safe_repr(getattr(agent, argument), AGENT_NAME_MAX_CHARS)}"
            )
    return ""


def check_model_settings(where: str, value: object) -> ModelSettings | None:
    """Return `value` if it is None or valid model settings.

    Raises:
        Misconfigured: It is not, or a setting has a value of another type.
    """
    if value is None:
        return None
    if not isinstance(value, ModelSettings):
        problem = f"model_settings must be ModelSettings(…), got {safe_repr(value, 80)}"
        raise Misconfigured(where, problem)
    try:
        return msgspec.convert(msgspec.to_builtins(value), ModelSettings)
    except (TypeError, msgspec.ValidationError) as error:
        raise Misconfigured(where, f"model_settings: {error}") from error


def _check_declaration(agent: Agent) -> None:
    if problem := _find_problem(agent):
        raise Misconfigured(f"agent {safe_str(agent.name, AGENT_NAME_MAX_CHARS)}", problem)


def _find_models_problem(agent: Agent) -> str:
    if problem := _find_model_problem(agent.model):
        return problem
    fallback: object = agent.fallback
    if isinstance(fallback, str) or not isinstance(fallback, Sequence):
        return f"fallback must be a list of models, got {safe_repr(fallback, 80)}"
    if problem := next(filter(None, map(_find_model_problem, fallback)), ""):
        return f"fallback: {problem}"
    if agent.base_url is not None and not isinstance(agent.model, str):
        return 'base_url must be used with model="provider:model". Set it in the model.'
    return ""


def _find_handoffs_problem(agent: Agent) -> str:
    targets: object = agent.handoffs
    if isinstance(targets, str) or not isinstance(targets, Sequence):
        return f"handoffs must be a list of agents, got {safe_repr(targets, 80)}"
    for target in targets:
        if not isinstance(target, Agent | str):
            return f"handoffs must have agents or their names, got {safe_repr(target, 80)}"
    return find_handoff_problem(agent, agent.handoffs)


def _find_model_problem(model: object) -> str:
    if isinstance(model, str):
        provider, _, rest = model.partition(":")
        has_provider = bool(provider and rest)
        return "" if has_provider else f'model must be "provider:model", got {model!r}'
    # `stream` is the method of our `Model` port, `request_stream` that of pydantic-ai models. A
    # class has these attributes, too, but a model is an instance.
    streams = any(hasattr(model, method) for method in ("stream", "request_stream"))
    if streams and not isinstance(model, type):
        return ""
    return f'model must be a model or "provider:model", got {model!r}'


_COUNT_NOTES: Final = {
    "frame_depth": "",
    "window": " (tokens; 0 never summarizes)",
    "max_parallel": " (0: no limit)",
    "output_retries": "",
}
"""Arguments that are numbers → a note on their meaning."""


def _is_count(value: object) -> bool:
    # `type(…) is int` and not `isinstance`: True is an instance of int.
    return type(value) is int and value >= 0


def _is_positive_duration(value: object) -> bool:
    return isinstance(value, timedelta) and value > timedelta(0)


def _index_tools(owner: Agent, tools: "Sequence[Tool | Function]") -> Mapping[str, Tool]:
    """Return the tools by name, with handoffs; with the plan tool, unless it is hosted.

    Some checks are made here and not when a tool is declared: a decorator runs before its
    function is bound to its name in the module, so it cannot tell whether another process can
    import it.
    """
    agent, by_name = owner.name, cast("dict[str, Tool]", {})
    for each in (*map(Tool.of, tools), *map(make_handoff_tool, owner.handoffs)):
        if each.name in by_name:
            problem = f"Two tools have the name {each.name}. Give one of them another name=…."
            raise Misconfigured(f"agent {agent}", problem)
        if each.in_process is False and find_import_path(each) is None:
            problem = (
                f"Cannot run tool {each.name} in another process: that process could not "
                "import it. Move it to the top level of a module, or drop in_process=False."
            )
            raise Misconfigured(f"agent {agent}", problem)
        if each.timeout is not None and not each.is_async and _runs_in_thread(each):
            problem = (
                f"Cannot enforce the timeout of tool {each.name}: it blocks a thread, which "
                "cannot be stopped. Make it async, or move it to the top level of a module, so "
                "that it runs in a process."
            )
            raise Misconfigured(f"agent {agent}", problem)
        if each.environment and find_import_path(each) is None:
            problem = (
                f"Cannot use env of tool {each.name}: it runs in a thread of this process, "
                "because no other process can import it. Move it to the top level of a module."
            )
            raise Misconfigured(f"agent {agent}", problem)
        by_name[each.name] = each
    if not owner.framework:
        by_name.setdefault(PLAN_TOOL.name, PLAN_TOOL)
    return MappingProxyType(by_name)


def _declare_context(owner: Agent, context: ContextFactory | None) -> ContextSource | None:
    if context is None:
        return None
    # Other frameworks give a run a context of its own, which their code changes. A shared one
    # would carry changes from one run to another.
    return ContextSource(f"agent {owner.name}", context, per_call=bool(owner.framework))


def _declare_output(
    agent: Agent, kind: object, validators: Sequence[Function]
) -> Output | None:
    where = f"agent {agent.name}"
    if kind is None:
        if validators:
            problem = "Cannot use output_validators without an output. Add output=…."
            raise Misconfigured(where, problem)
        return None
    if OUTPUT_NAME in agent.tools:
        problem = (
            f"Cannot have a tool {OUTPUT_NAME!r} and an output: the model gives its output by "
            "a tool of this name. Give the tool another name=…."
        )
        raise Misconfigured(where, problem)
    final = next((name for name, tool in agent.tools.items() if tool.traits.final), None)
    if final is not None:
        problem = (
            f"Cannot have an output and the final tool {final!r}: its result is the answer, "
            "and is not checked. Drop one."
        )
        raise Misconfigured(where, problem)
    return Output(where, kind, validators)


def _list_specs(agent: Agent) -> tuple[ToolSpec, ...]:
    specs = [tool.spec for tool in agent.tools.values()]
    return (*specs, agent.output.spec) if agent.output else tuple(specs)


def _declare_instructions(agent: Agent) -> CallFunction | None:
    if isinstance(agent.instructions, str):
        return None
    return CallFunction(f"agent {agent.name}", "instructions", agent.instructions)


def _declare_hook(
    agent: str, label: str, hook: Function | None, *parameters: str
) -> CallFunction | None:
    if hook is None:
        return None
    return CallFunction(f"agent {agent}", label, hook, "tool", "args", *parameters)


def _runs_in_thread(tool: Tool) -> bool:
    return bool(tool.in_process) or find_import_path(tool) is None


def _make_fingerprint(agent: Agent) -> str:
    # Sorted: the order of the tools does not change the behaviour. Encoded as JSON, and not
    # joined, so that two different agents cannot give the same text.
    versions = sorted((tool.name, tool.traits.version) for tool in agent.tools.values())
    instructions = agent.instructions
    if not isinstance(instructions, str):
        # A function is known by its name. Its text differs from call to call.
        module, path = (getattr(instructions, n, "") for n in ("__module__", "__qualname__"))
        instructions = f"{module}:{path}"
    parts: list[Json] = [agent.name, instructions, _find_model_name(agent.model), versions]
    if agent.output is not None:
        parts.append(strip_descriptions(agent.output.spec.schema))
    others = sorted((m.name, m.fingerprint) for m in agent.family.values() if m is not agent)
    if others:
        parts.append(others)
    return sha256(msgspec.json.encode(parts)).hexdigest()[:16]


def _find_model_name(model: object) -> str:
    # In this order: "provider:model", a model of ours, a model of pydantic-ai.
    names = (model, getattr(model, "name", None), getattr(model, "model_name", None))
    return next((name for name in names if isinstance(name, str)), type(model).__name__)
