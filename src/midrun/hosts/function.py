"""Host a plain async function: its own loop, with Midrun's controls around every call.

    @midrun.hosts.function(name="biller", tools={"charge": traits(undo=refund)})
    async def biller(run, task):
        messages = [{"role": "user", "content": task}]
        while True:
            reply = await run.model(ask_model, messages)
            messages.append(reply)
            if not reply.get("calls"):
                return reply["content"]
            for amount in reply["calls"]:
                messages.append(await run.step("charge", charge, amount))

`biller` is an agent like any other: `Midrun(agents=[biller])`, `midrun serve`, `midrun run`.
After a pause or a crash the function is called again from its start, and the calls that have
ended are answered from the journal. So its code between the calls must be deterministic: times,
random numbers and reads of the outside world belong into `run.step`.
"""

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager
from functools import partial
from inspect import iscoroutinefunction, isfunction, signature
from typing import Final, NoReturn, TypeAlias, Unpack

from msgspec import Struct

from midrun.agents.builtin_tools import ask_human
from midrun.agents.program import ProgramCalls
from midrun.agents.signature import Arguments, Function, SchemaArguments
from midrun.agents.tool import ToolOptions
from midrun.codec.safe_repr import safe_repr
from midrun.codec.strict_json import normalize_json
from midrun.core.ids import RunId
from midrun.core.transcript import Turn
from midrun.core.values import NO_SPEND, Json, Reply, Spend
from midrun.errors import Misconfigured, StepNotDone
from midrun.hosts.hosted_agent import (
    OPEN_SCHEMA,
    HostedAgent,
    Hosting,
    HostOptions,
    ProgramModel,
)
from midrun.models.prices import make_spend
from midrun.ports.model import Finished, Piece

INTERRUPTED_TEXT: Final = (
    "Your reply above was stopped there. Continue from there without repeating it, unless a "
    "message below says otherwise."
)
"""The message after the partial text of a model call that was stopped midway."""


class ModelUsage(Struct, frozen=True, kw_only=True):
    """The usage of a model call; a stream yields it, so that caps on spend count it.

    Attributes:
        tokens: All tokens. Not needed with `input_tokens` and `output_tokens`.
        cost_usd: The cost, if you know it; 0 for a model that costs nothing.
        model: The name of the model. With it and the two counts of tokens, Midrun looks up the
            price (the package genai-prices). Without a price the cost is shown as unknown.
        input_tokens: The tokens of the prompt.
        output_tokens: The tokens of the reply.
    """

    tokens: int = 0
    cost_usd: float | None = None
    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0

    def make_spend(self) -> Spend:
        """Return the usage with its cost, as far as it is known."""
        counted = self.input_tokens + self.output_tokens
        tokens = self.tokens or counted
        if self.cost_usd is None and self.model and counted:
            priced = make_spend(
                self.model, input_tokens=self.input_tokens, output_tokens=self.output_tokens
            )
            if priced is not None:
                return priced
        return Spend(
            tokens=tokens,
            cost=round((self.cost_usd or 0) * 1e6),
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            unpriced_tokens=tokens if self.cost_usd is None else 0,
        )


class FunctionRun:
    """The first argument of a hosted function: makes its calls, journaled and controlled.

    Attributes:
        id: The id of the run.
    """

    def __init__(self, calls: ProgramCalls, hosting: Hosting, path: str = "") -> None:
        self.id: Final[RunId] = calls.run_id
        self._calls = calls
        self._hosting = hosting
        self._path = path
        self._count = 0

    def branch(self, name: str) -> "FunctionRun":
        """Return a run with positions of its own, for code that runs in parallel.

        Calls are recognized by their order. If two coroutines make several calls each at the
        same time, their order can differ after a restart: give each of them a branch.
        """
        return FunctionRun(self._calls, self._hosting, f"{self._path}{name}/")

    async def step(self, name: str, fn: Function, *args: Json, **kwargs: Json) -> Json:
        """Call `fn` once, as a tool call that is journaled, gated and undone by its name.

        Undo, approval and other options are declared for the name, in `tools=`. Without them
        the call must not happen twice and cannot be undone. The arguments and the result must
        be JSON; bind other objects with a closure.

        Raises:
            StepNotDone: The call failed, was declined or stopped. The text says why.
            Misconfigured: The arguments do not fit the function.
        """
        made = self._hosting.make_tool(name, fn, arguments=Arguments(f"step {name}", fn, {}))
        position = self._next_position()
        outcome = await self._calls.call_tool(
            position, made, _bind_arguments(name, fn, args, kwargs)
        )
        if outcome.problem:
            raise StepNotDone(name, outcome.problem)
        return outcome.result

    async def model(
        self, ask: Function, messages: list[dict[str, Json]], *args: object, **kwargs: object
    ) -> Json:
        """Call a model with `ask(messages, …)`, and return its reply as JSON.

        `ask` is an async generator that yields pieces of text (`str`) as they arrive, a
        `ModelUsage` if it knows it, and last the reply as JSON. Without such a last value the
        reply is the whole text. Or it is an async function that returns the reply. It is
        cancelled when a person pauses or redirects the run; then it must close its connection.

        Texts of people, and the text of a reply that was stopped midway, are added to
        `messages`, as `{"role": …, "content": …}`.
        """
        open_stream = partial(_open_stream, ask, tuple(messages), args, kwargs)
        outcome = await self._calls.call_model(self._next_position(), open_stream)
        messages.extend(_format_turns(outcome.added))
        return outcome.reply.opaque

    async def read_messages(self) -> list[dict[str, Json]]:
        """Return the texts of people that no model call has read, as messages for a model.

        Call it before the function returns, if it makes steps after its last model call. If a
        text arrives later than that and before the end of the run, the function is run again
        from its start, and this call returns that text as well. It counts as a turn.
        """
        outcome = await self._calls.call_model(
            self._next_position(), _open_messages, {"reads": "messages"}
        )
        texts = outcome.reply.opaque
        assert isinstance(texts, list), "see `_open_messages`"
        return [{"role": "user", "content": text} for text in texts]

    async def ask(self, question: str, options: Sequence[str] | None = None) -> Json:
        """Ask a person and wait for the answer; the run rests meanwhile, without a process.

        Raises:
            StepNotDone: The question was withdrawn, for example by a redirect.
        """
        args: dict[str, Json] = {"question": question}
        if options is not None:
            args["options"] = list(options)
        outcome = await self._calls.call_tool(self._next_position(), ask_human, args)
        if outcome.problem:
            raise StepNotDone("ask", outcome.problem)
        return outcome.result

    def _next_position(self) -> str:
        # The position is the number of the call in its branch. It is taken when the call is
        # made, before any await, so that coroutines which start in a fixed order get fixed
        # numbers.
        self._count += 1
        return f"{self._path}{self._count}"


HostedFunction: TypeAlias = Callable[[FunctionRun, str], Awaitable[str]]


def function(
    *,
    name: str | None = None,
    tools: Mapping[str, ToolOptions] | None = None,
    **options: Unpack[HostOptions],
) -> Callable[[HostedFunction], HostedAgent]:
    """Make an agent of an async function `f(run, task)` with a loop of its own.

    After a pause or a crash the function is called again from its start, and the calls that
    have ended are answered from the journal. So it must make the same calls in the same order.

    Args:
        name: The name of the agent. Default: the name of the function.
        tools: What is known about the steps of the function, by name, as `traits(undo=…)`.
        options: `stop`, `grace` and the other options of `Agent`.

    Raises:
        Misconfigured: The function is not async, or does not take `(run, task)`.
    """
    hosting = Hosting(name=name, context=None, declared=tools, options=options)
    # After a restart, an undo may run before the function has made its steps again. So the
    # agent has a tool for each declared name, with its hooks and without its function.
    declared = [
        hosting.make_tool(step, _refuse_step, arguments=SchemaArguments(OPEN_SCHEMA))
        for step in hosting.declared
    ]

    def host(fn: HostedFunction) -> HostedAgent:
        agent_name = hosting.choose_name(getattr(fn, "__name__", None))
        _check_function(agent_name, fn)

        async def run_program(calls: ProgramCalls, task: str) -> str:
            output: object = await fn(FunctionRun(calls, hosting), task)
            if not isinstance(output, str):
                problem = f"{agent_name} must return a str, got {safe_repr(output, 80)}"
                raise TypeError(problem)
            return output

        return HostedAgent(
            agent_name,
            framework="function",
            model=ProgramModel(f"{fn.__module__}:{fn.__qualname__}"),
            tools=declared,
            hosting=hosting,
            program=run_program,
        )

    return host


async def _refuse_step(*_: object, **__: object) -> NoReturn:
    raise NotImplementedError("only the hosted function itself can make this step")


def _check_function(name: str, fn: object) -> None:
    problem = ""
    if isfunction(fn) and not iscoroutinefunction(fn):
        problem = "must be async: write async def"
    elif not callable(fn):
        problem = f"must be an async function f(run, task), got {safe_repr(fn, 80)}"
    else:
        try:
            signature(fn).bind(None, "")
        except (TypeError, ValueError):
            problem = "must take two arguments, (run, task)"
    if problem:
        raise Misconfigured(f"function {name or safe_repr(fn, 40)}", problem)


def _bind_arguments(
    name: str, fn: Function, args: tuple[Json, ...], kwargs: dict[str, Json]
) -> dict[str, Json]:
    """Return the arguments by name, as they are journaled and shown to an approver."""
    try:
        bound = signature(fn).bind(*args, **kwargs).arguments
    except TypeError as error:
        raise Misconfigured(f"step {name}", f"the arguments do not fit: {error}") from None
    return {key: normalize_json(value, key) for key, value in bound.items()}


@asynccontextmanager
async def _open_messages(
    added: Sequence[Turn],
) -> AsyncGenerator[AsyncIterator[Piece | Finished]]:
    """Open the "reply" of a call that only reads: the texts of people, as its data.

    To the driver it is a model call, because that is how a program reads texts: they count as
    read, and the call is repeated if others arrive before the end.
    """

    async def stream() -> AsyncGenerator[Piece | Finished]:
        texts: list[Json] = [turn.text for turn in added if turn.role != "assistant"]
        yield Finished(reply=Reply(opaque=texts), spent=NO_SPEND)

    async with aclosing(stream()) as reply:
        yield reply


@asynccontextmanager
async def _open_stream(
    ask: Function,
    messages: tuple[dict[str, Json], ...],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    added: Sequence[Turn],
) -> AsyncGenerator[AsyncIterator[Piece | Finished]]:
    prompt = [*messages, *_format_turns(added)]
    async with aclosing(_stream_reply(ask, prompt, args, kwargs)) as stream:
        yield stream


async def _stream_reply(
    ask: Function,
    prompt: list[dict[str, Json]],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> AsyncGenerator[Piece | Finished]:
    """Yield the pieces of a reply, and at last the whole."""
    pieces: list[str] = []
    reply: Json = None
    spent: Spend | None = None
    answer = ask(prompt, *args, **kwargs)
    if isinstance(answer, Awaitable):
        reply = normalize_json(await answer, "reply")
        yield _finish_reply([reply] if isinstance(reply, str) else [], reply, spent)
        return
    if not isinstance(answer, AsyncGenerator):
        problem = (
            "ask must be an async generator or an async function, got "
            f"{safe_repr(answer, 80)} from it"
        )
        raise Misconfigured("run.model", problem)
    async with aclosing(answer) as stream:
        async for item in stream:
            if isinstance(item, str):
                pieces.append(item)
                yield Piece(kind="text", text=item)
            elif isinstance(item, ModelUsage):
                spent = item.make_spend()
            else:
                reply = normalize_json(item, "reply")
    yield _finish_reply(pieces, reply, spent)


def _finish_reply(pieces: list[str], reply: Json, spent: Spend | None) -> Finished:
    text = "".join(pieces)
    return Finished(
        reply=Reply(text=text, opaque=text if reply is None else reply), spent=spent
    )


def _format_turns(turns: Sequence[Turn]) -> list[dict[str, Json]]:
    messages: list[dict[str, Json]] = []
    for turn in turns:
        role = "assistant" if turn.role == "assistant" else "user"
        messages.append({"role": role, "content": turn.text})
        if turn.interrupted:
            messages.append({"role": "user", "content": INTERRUPTED_TEXT})
    return messages
