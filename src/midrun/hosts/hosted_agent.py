"""`HostedAgent`: an agent of another framework as an `Agent`; declared traits and context."""

import asyncio
import logging
import re
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import replace as replace_fields
from datetime import timedelta
from typing import Final, NoReturn, TypedDict, TypeVar, cast

import anyio
from msgspec import Struct
from msgspec.structs import replace

from midrun.agents import output
from midrun.agents.agent import Agent
from midrun.agents.builtin_tools import PauseHere
from midrun.agents.file import is_text_type
from midrun.agents.program import Program
from midrun.agents.signature import Arguments, Function, SchemaArguments, parse_docstring
from midrun.agents.tool import (
    TOOL_NAME_PATTERN,
    Tool,
    ToolOptions,
    find_import_path,
    make_tool_fields,
)
from midrun.agents.tool_context import Call, ContextFactory, ContextSource
from midrun.agents.tool_environment import EnvironmentOption
from midrun.codec.safe_repr import safe_repr, safe_str
from midrun.core.stops import Stop
from midrun.core.transcript import Turn
from midrun.core.values import FileRef, Json
from midrun.errors import Misconfigured, ModelFailed
from midrun.models.prices import NamedModelPrices
from midrun.models.prompt_texts import format_file_name, format_unread_file
from midrun.ports.model import Finished, Model, Piece, Prompt, Unpriced

T = TypeVar("T")

OPEN_SCHEMA: Final[dict[str, Json]] = {"type": "object", "properties": {}}
"""The schema of a tool that is only known while the agent runs: the framework checks it."""

# The names under which the hosts use them.
OUTPUT_NAME: Final = output.OUTPUT_NAME
OUTPUT_WITH_CALLS_TEXT: Final = output.OUTPUT_WITH_CALLS_TEXT

IDLE_TIMEOUT_S: Final = 120.0
"""Seconds to wait for the next event of a framework during a model call."""

CANCEL_AGAIN_AFTER_S: Final = 1.0
CANCEL_AGAIN_MAX_S: Final = 5.0
"""Seconds until a cancellation is repeated; each wait is twice as long as the one before."""

CLOSE_TIMEOUT_S: Final = 10.0
"""Seconds to wait until a framework has closed a model call that no control has stopped."""

SERVER_ERROR: Final = 500
TRANSIENT_STATUS: Final = {408: "timeout", 409: "server_error", 429: "rate_limited"}
"""Response codes below 500 that are transient, with their reasons."""

LOST_CONNECTION: Final = re.compile("Connection|Connect|Timeout|ProtocolError|ReadError")
"""Names of exceptions by which SDKs report a lost connection; they share no base class."""


log = logging.getLogger("midrun.hosts")


class ToolReportedError(Exception):
    """The framework reported an error of a tool as its result."""


class HostOptions(TypedDict, total=False):
    """The options of `Agent` that `host` passes on. All are optional.

    Attributes:
        stop: The condition under which a run pauses and asks: `MaxSteps(40) | MaxCost(2)`.
        frame_depth: The number of topics that can be held at a time, while the agent answers
            messages (4).
        frame_ttl: A held topic expires after this time (24 hours).
        grace: The time that an aborted call has to stop (5 seconds).
        window: If a prompt has more tokens than this, older messages are summarized (120,000).
            0: never.
        tool_env: Environment variables for the processes of all tools, besides PATH, HOME and a
            few more: a list of names to copy, a dict of values, or "inherit".
    """

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
        self.declared: Final = _check_declared(declared)  # tool name → options
        self.options = options
        self.context = context
        self._source = (
            None if context is None else ContextSource("host", context, per_call=True)
        )

    def choose_name(self, own_name: str | None) -> str:
        """Return the name of the hosted agent; `own_name` is its name in its framework."""
        if name := self.name or own_name:
            return name
        raise Misconfigured("host", "Cannot host an agent without a name. Pass name=….")

    def declare_default(self, name: str, options: ToolOptions) -> None:
        """Declare a tool that the caller did not declare, because its traits are known."""
        self.declared.setdefault(name, options)

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
        if self._source is None:
            yield None
            return
        async with self._source.open(run_id) as value:
            yield value

    def make_tool(
        self,
        name: str,
        fn: Function,
        *,
        description: str = "",
        arguments: Arguments | SchemaArguments,
        needs_approval: Function | None = None,
        timeout: timedelta | None = None,
    ) -> Tool:
        """Return a tool of the foreign agent, with its declared traits.

        The framework may have declarations of its own. `needs_approval` decides about approvals
        if `approve` is not declared, and `timeout` is the limit if none is declared.
        """
        options = self.declared.get(name, ToolOptions())
        if needs_approval is not None and "approve" not in options:
            options = ToolOptions(**{**options, "approve": needs_approval})
        if timeout is not None and "timeout" not in options:
            options = ToolOptions(**{**options, "timeout": timeout})
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

    def narrow(self, names: Sequence[str]) -> "Hosting":
        """Return the arguments for an agent of the agent, with the traits of these tools.

        The conditions in `stop` are those of the outer agent only.
        """
        declared = {name: each for name, each in self.declared.items() if name in names}
        options = self.options.copy()
        options.pop("stop", None)
        return Hosting(name=None, context=self.context, declared=declared, options=options)

    def make_child_tool(self, name: str, child: Agent, description: str, argument: str) -> Tool:
        """Return an agent of the foreign agent as a tool; each call is a child run.

        `argument` is the name that the framework gives to the task.
        """
        schema: dict[str, Json] = {
            "properties": {argument: {"type": "string"}},
            "required": [argument],
            "additionalProperties": False,
        }

        async def start_run(call: Call, /, **arguments: object) -> Json:
            raise NotImplementedError(f"the driver starts a run for: {call.key} {arguments}")

        made = self.make_tool(
            name, start_run, description=description, arguments=SchemaArguments(schema)
        )
        # The tool has no undo hook: to undo the call, the child run undoes its own calls.
        return replace_fields(made, agent=child, traits=replace(made.traits, undo=True))

    def make_process_tool(
        self,
        name: str,
        fn: Function,
        description: str,
        needs_approval: Function | None = None,
        timeout: timedelta | None = None,
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
            timeout=timeout,
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
        # The tools of a framework run with the environment of their program, and the module of
        # a tool often makes the agent as well, with a model that needs a key (ADR 0059).
        # The tools of a process are declared in Midrun.
        options = HostOptions() if framework == "process" else HostOptions(tool_env="inherit")
        options.update(hosting.options)
        super().__init__(
            name,
            model=model,
            tools=tools,
            program=program,
            context=hosting.context,  # for the hooks: undo, release and check
            **options,
        )

    def find_tool(self, name: str) -> Tool | None:
        """Return the tool with this name, also one that is only known while the agent runs."""
        found = super().find_tool(name)
        if found is None and self._find_unlisted_tool is not None:
            return self._find_unlisted_tool(name)
        return found


class QuestionAnswers(Struct, frozen=True):
    """The answers of people to the questions that a tool call of a framework has asked.

    A call that asks ends with `PauseHere`, and the run waits without a process. When there is
    an answer, the call is made again, and the framework gets all answers so far, by key.
    `carried` is data of the host that an earlier attempt left for the next one.
    """

    by_key: dict[str, Json]
    carried: Json = None

    @classmethod
    def read(cls, call: Call) -> "QuestionAnswers":
        """Read the answers that the call has; a declined question is answered with False."""
        if not isinstance(call.answered, dict):
            return cls({})
        before = cast("dict[str, Json]", call.answered["continuation"])
        value = False if call.answered["choice"] == "decline" else call.answered["value"]
        earlier = cast("dict[str, Json]", before["answers"])
        return cls({**earlier, str(before["key"]): value}, before["carried"])

    def ask(
        self, key: str, question: str, data: dict[str, Json], carried: Json = None
    ) -> NoReturn:
        """Ask a person; end this attempt of the call.

        Raises:
            PauseHere: Always.
        """
        continuation: dict[str, Json] = {
            "key": key,
            "answers": dict(self.by_key),
            "carried": carried,
        }
        raise PauseHere(question, data, continuation)


def format_file(file: FileRef, data: bytes | None) -> str:
    """Return a file as text for a model: with its text if it has one, else its name."""
    if data is not None and is_text_type(file.media_type):
        return f"{format_file_name(file)}\n{data.decode(errors='replace')}"
    return format_unread_file(file)


def find_asking_turn(turns: Sequence[Turn]) -> int | None:
    """Return the index of the last turn with calls; None if there is none."""
    return next((n for n in reversed(range(len(turns))) if turns[n].uses), None)


def stream_in_task(events: AsyncGenerator[T]) -> AbstractAsyncContextManager[AsyncIterator[T]]:
    """Read `events` of a framework in a task of its own; cancel the task at the end.

    Frameworks nest async generators and do not close the inner ones when the outer one is
    closed. So the generator is never closed from outside.
    """

    async def read_events(put: Callable[[T], None]) -> None:
        async for event in events:
            put(event)

    return run_in_task(read_events)


@asynccontextmanager
async def run_in_task(
    run: Callable[[Callable[[T], None]], Coroutine[None, None, None]],
) -> AsyncIterator[AsyncIterator[T]]:
    """Run code of a framework in a task of its own, and iterate over the items that it puts.

    The queue has no limit, so the task only waits inside of the framework, and a cancellation
    is raised where it waits, at the provider's connection. When the context is left, that
    connection is closed.

    A framework may lose a cancellation: `asyncio.wait_for` of Python 3.11 does, if a result
    arrives at the same moment. Then the provider would go on. So the task is cancelled again
    when it puts another item, and at growing intervals until it has ended.
    """
    queue: asyncio.Queue[T | None] = asyncio.Queue()
    is_left = False

    def put_item(item: T) -> None:
        if is_left:
            task.cancel()
        queue.put_nowait(item)

    async def run_code() -> None:
        try:
            await run(put_item)
        finally:
            queue.put_nowait(None)

    task = asyncio.get_running_loop().create_task(run_code())

    async def take_items() -> AsyncGenerator[T]:
        while True:
            if queue.empty():
                with anyio.fail_after(IDLE_TIMEOUT_S):
                    item = await queue.get()
            else:
                item = queue.get_nowait()
            if item is None:
                await task  # raises its error
                return
            yield item

    close_timeout_s: float | None = CLOSE_TIMEOUT_S
    try:
        yield take_items()
    except asyncio.CancelledError:
        # A control or a shutdown has stopped the call. There is no limit here: the dispatcher
        # shows a call that does not stop, and abandons it as unknown if the run cannot wait.
        close_timeout_s = None
        raise
    finally:
        is_left = True
        await _close_task(task, close_timeout_s)


async def _close_task(task: asyncio.Task[None], timeout_s: float | None) -> None:
    """Cancel `task`, and wait until it has ended; see `run_in_task`."""
    # The order matters. First the cancellation reaches the place where the framework waits,
    # then this waits until the connection is closed. A pause must not be reported before that.
    wait_s = CANCEL_AGAIN_AFTER_S
    with anyio.move_on_after(timeout_s, shield=True):
        while not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=wait_s)
            wait_s = min(2 * wait_s, CANCEL_AGAIN_MAX_S)
    if not task.done():
        text = "A framework did not close its model call within %g s. It may still act."
        log.warning(text, timeout_s)
    elif not task.cancelled():
        task.exception()  # seen: the reader has it, or has given up before it came


def raise_lost_cancellation() -> None:
    """Raise the cancellation of the current task that a framework has lost; see `run_in_task`.

    Raises:
        CancelledError: The task was cancelled before, and goes on.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class StepHostModel(NamedModelPrices):
    """The model of an agent whose steps are made one by one by its framework."""

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        """Stream the reply of one step.

        Raises:
            ModelFailed: The provider failed, or the reply is not complete or not valid.
        """
        async with aclosing(self._stream_step(prompt)) as step:
            yield step

    def _stream_step(self, prompt: Prompt) -> AsyncGenerator[Piece | Finished]:
        raise NotImplementedError


class ProgramModel(Unpriced):
    """The model of an agent with a loop of its own: it calls its models itself.

    Their prices are looked up with each reply. If the run has a cap on the cost, a reply
    without a price fails its call, with the code `no_price`.
    """

    priced = True

    def __init__(self, name: str) -> None:
        self.name = name

    def stream(
        self, prompt: Prompt
    ) -> AbstractAsyncContextManager[AsyncIterator[Piece | Finished]]:
        """Refuse: the driver never calls it."""
        del prompt
        raise Misconfigured(f"agent {self.name}", "a hosted program calls its models itself")


def make_foreign_failure(model: str, error: Exception) -> ModelFailed | None:
    """Convert an exception of a provider's SDK; None for an error of the agent's own code."""
    status = getattr(error, "status_code", None) or getattr(error, "code", None)
    detail = f"{type(error).__name__}: {safe_str(error, 500)}"
    if isinstance(status, int):
        reason = "server_error" if status >= SERVER_ERROR else TRANSIENT_STATUS.get(status)
        return ModelFailed(model, reason or "bad_request", detail, transient=bool(reason))
    if LOST_CONNECTION.search(type(error).__name__):
        return ModelFailed(model, "connection", detail, transient=True)
    return None


def _check_declared(declared: object) -> dict[str, ToolOptions]:
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
        if options.get("final"):
            problem = (
                f"Cannot make the tool {safe_repr(name, 40)} final: the framework of the agent "
                "decides when it has its answer. Declare it there."
            )
            raise Misconfigured("host", problem)
    return dict(declared)
