"""Give the model and tool calls of LangChain to the hosted graph that makes them.

LangChain has no public way to replace a call: callbacks observe calls, middleware belongs to
`create_agent`, and a graph keeps its models in closures. So this module does what instrumentors
of OpenTelemetry do: `install_wrappers` wraps a few methods of `BaseChatModel` and `BaseTool`,
once in a process. A wrapper looks for a `CallHost` in a context variable. If there is none, it
calls the original method at once, so that other code of the process is not affected. If there
is one, the host makes the call, and calls the original method when the call may start.

A node that is a plain function runs in a thread. Its blocking calls (`model.invoke`) are made
in the event loop as well, by the async methods of the model, so that they can be stopped; the
thread waits. `run_in_executor` of LangChain gets other code to know these threads: a thread
cannot be stopped, so the run must not rest before it has ended.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextvars import ContextVar
from functools import partial, wraps
from types import FunctionType
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast

import anyio
import msgspec
from langchain_core.language_models import BaseChatModel, BaseLLM
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.prompt_values import ChatPromptValue
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables import config as config_module
from langchain_core.tools import BaseTool
from msgspec import Struct

from midrun.core.values import Spend
from midrun.models.prices import make_spend

T = TypeVar("T")

Method: TypeAlias = Callable[..., Any]  # type: ignore[explicit-any]  # of LangChain
Options: TypeAlias = dict[str, Any]  # type: ignore[explicit-any]  # of LangChain


def make_message_spend(reply: AIMessage) -> Spend | None:
    """Return the tokens and the price of a reply; None if its provider reported no tokens."""
    usage = reply.usage_metadata
    if not usage:
        return None
    known = reply.response_metadata
    read = usage.get("input_token_details", {})
    return make_spend(
        str(known.get("model_name") or known.get("model") or known.get("model_id") or ""),
        input_tokens=usage["input_tokens"],
        output_tokens=usage["output_tokens"],
        cached_tokens=read.get("cache_read", 0),
        cache_write_tokens=read.get("cache_creation", 0),
        thinking_tokens=usage.get("output_token_details", {}).get("reasoning", 0),
    )


class ModelCall(Struct, frozen=True, kw_only=True):
    """A model call of a graph: the model, its prompt and its options."""

    model: BaseChatModel
    messages: Sequence[BaseMessage]
    config: RunnableConfig
    options: Options

    def stream(self, messages: Sequence[BaseMessage]) -> AsyncGenerator[BaseMessage]:
        """Make the call with these messages, by the original method."""
        # A prompt value is taken as it is. Each message of a list would be converted, although
        # LangChain has converted them before this call.
        prompt = ChatPromptValue.model_construct(messages=list(messages))
        return cast(
            "AsyncGenerator[BaseMessage]",
            ORIGINALS["astream"](self.model, prompt, self.config, **self.options),
        )


class ToolCall(Struct, frozen=True, kw_only=True):
    """A tool call of a graph: the tool, its input and the original method."""

    tool: BaseTool
    given: str | dict[str, object]
    tool_call_id: str
    options: Options

    async def execute(self, given: str | dict[str, object], config: RunnableConfig) -> object:
        """Make the call with this input, by the original method."""
        options = {**self.options, "config": config, "tool_call_id": self.tool_call_id or None}
        result: object = await ORIGINALS["arun"](self.tool, given, **options)
        return result


class CallHost(Protocol):
    """Makes the calls of one hosted graph."""

    async def call_model(self, call: ModelCall) -> AIMessage:
        """Make a model call, or return its reply from the journal."""
        ...

    async def call_tool(self, call: ToolCall) -> object:
        """Make a tool call, or return its result from the journal."""
        ...

    def run_blocking(self, make: Callable[[], Coroutine[None, None, T]], name: str) -> T:
        """Make a call for a thread, which waits for it. `name` is for errors."""
        ...

    async def run_thread(self, function: Callable[[], T]) -> T:
        """Run a blocking part of the graph in a thread."""
        ...


HOST: ContextVar[CallHost | None] = ContextVar("midrun_call_host", default=None)
"""The host of the graph that the current code belongs to."""

ORIGINALS: Final[dict[str, Method]] = {}
"""The wrapped methods, by name; empty until `install_wrappers`."""


def install_wrappers() -> None:
    """Wrap the methods of LangChain, unless they are wrapped already."""
    if ORIGINALS:
        return
    for owner, name, make_hosted in (
        (BaseChatModel, "agenerate", _agenerate),
        (BaseChatModel, "generate", _generate),
        (BaseChatModel, "astream", _astream),
        (BaseChatModel, "stream", _stream),
        (BaseTool, "arun", _arun),
        (BaseTool, "run", _run),
    ):
        ORIGINALS[name] = original = getattr(owner, name)
        setattr(owner, name, _wrap(original, make_hosted))
    for name in ("agenerate", "generate", "astream", "stream"):
        setattr(BaseLLM, name, _wrap(getattr(BaseLLM, name), _refuse_completion))
    # A graph that was built before holds this function itself, in a partial for each blocking
    # node. No name in a module leads to these, so the code of the function is replaced.
    function = cast("FunctionType", config_module.run_in_executor)
    ORIGINALS["run_in_executor"] = FunctionType(function.__code__, function.__globals__)
    function.__code__ = _call_in_thread.__code__


def _wrap(original: Method, hosted: Method) -> Method:
    @wraps(original)
    def choose(*args: Any, **options: Any) -> Any:  # type: ignore[explicit-any]  # noqa: ANN401 - of LangChain
        host = HOST.get()
        if host is None:
            return original(*args, **options)
        return hosted(host, *args, **options)

    return choose


async def gather_results(makers: Sequence[Callable[[], Coroutine[None, None, T]]]) -> list[T]:
    """Await all coroutines at the same time; return their results in order."""
    results: dict[int, T] = {}

    async def run_one(number: int) -> None:
        results[number] = await makers[number]()

    async with anyio.create_task_group() as group:
        for number in range(len(makers)):
            group.start_soon(run_one, number)
    return [results[number] for number in range(len(makers))]


# ── models ───────────────────────────────────────────────────────────────────


async def _agenerate(  # type: ignore[explicit-any]
    host: CallHost,
    model: BaseChatModel,
    messages: list[list[BaseMessage]],
    stop: list[str] | None = None,
    callbacks: Any = None,  # noqa: ANN401 - of LangChain
    **options: Any,  # noqa: ANN401
) -> LLMResult:
    config = RunnableConfig(callbacks=callbacks)
    for key in ("tags", "metadata", "run_name", "run_id"):
        if (value := options.pop(key, None)) is not None:
            config[key] = value
    if stop is not None:
        options["stop"] = stop
    calls = [
        ModelCall(model=model, messages=prompt, config=config, options=options)
        for prompt in messages
    ]
    if len(calls) == 1:
        replies = [await host.call_model(calls[0])]
    else:
        replies = await gather_results([partial(host.call_model, call) for call in calls])
    return LLMResult(generations=[[ChatGeneration(message=reply)] for reply in replies])


def _generate(  # type: ignore[explicit-any]
    host: CallHost,
    model: BaseChatModel,
    *args: Any,  # noqa: ANN401
    **options: Any,  # noqa: ANN401
) -> LLMResult:
    name = f"{type(model).__name__}.invoke"
    return host.run_blocking(lambda: _agenerate(host, model, *args, **options), name)


async def _astream(  # type: ignore[explicit-any]
    host: CallHost,
    model: BaseChatModel,
    input: Any,  # noqa: A002, ANN401 - of LangChain
    config: RunnableConfig | None = None,
    **options: Any,  # noqa: ANN401
) -> AsyncGenerator[AIMessageChunk]:
    """Yield the whole reply as one chunk: its pieces were shown while they arrived."""
    yield make_chunk(await host.call_model(_make_model_call(model, input, config, options)))


def _stream(  # type: ignore[explicit-any]
    host: CallHost,
    model: BaseChatModel,
    input: Any,  # noqa: A002, ANN401
    config: RunnableConfig | None = None,
    **options: Any,  # noqa: ANN401
) -> Iterator[AIMessageChunk]:
    call = _make_model_call(model, input, config, options)
    name = f"{type(model).__name__}.stream"
    yield make_chunk(host.run_blocking(lambda: host.call_model(call), name))


def _make_model_call(  # type: ignore[explicit-any]
    model: BaseChatModel,
    input_: Any,  # noqa: ANN401
    config: RunnableConfig | None,
    options: Options,
) -> ModelCall:
    messages = model._convert_input(input_).to_messages()  # noqa: SLF001 - as `astream` does
    found = config_module.ensure_config(config)
    return ModelCall(model=model, messages=messages, config=found, options=options)


def make_chunk(message: AIMessage) -> AIMessageChunk:
    """Return a whole message as the only chunk of a stream."""
    return AIMessageChunk(
        content=message.content,
        id=message.id,
        response_metadata=message.response_metadata,
        additional_kwargs=message.additional_kwargs,
        usage_metadata=message.usage_metadata,
        tool_call_chunks=[
            {
                "name": call["name"],
                "args": msgspec.json.encode(call["args"]).decode(),
                "id": call["id"],
                "index": index,
                "type": "tool_call_chunk",
            }
            for index, call in enumerate(message.tool_calls)
        ],
        chunk_position="last",
    )


def _refuse_completion(_: CallHost, model: BaseLLM, *__: object, **___: object) -> None:
    name = type(model).__name__
    raise NotImplementedError(
        f"Cannot host {name}: it is a model for text completion, whose calls are not "
        "journaled. Use a chat model."
    )


# ── tools ────────────────────────────────────────────────────────────────────


def _arun(  # type: ignore[explicit-any]
    host: CallHost,
    tool: BaseTool,
    tool_input: str | dict[str, object],
    *args: object,
    **options: Any,  # noqa: ANN401
) -> Awaitable[object]:
    return host.call_tool(_make_tool_call(tool, tool_input, args, options))


def _run(  # type: ignore[explicit-any]
    host: CallHost,
    tool: BaseTool,
    tool_input: str | dict[str, object],
    *args: object,
    **options: Any,  # noqa: ANN401
) -> object:
    call = _make_tool_call(tool, tool_input, args, options)
    return host.run_blocking(lambda: host.call_tool(call), f"{tool.name}.invoke")


def _make_tool_call(
    tool: BaseTool,
    tool_input: str | dict[str, object],
    args: tuple[object, ...],
    options: Options,
) -> ToolCall:
    # The other arguments by position are colours for a terminal, and callbacks.
    positional = dict(zip(("verbose", "start_color", "color", "callbacks"), args, strict=False))
    options = {**positional, **options}
    id_ = options.pop("tool_call_id", None) or ""
    return ToolCall(tool=tool, given=tool_input, tool_call_id=id_, options=options)


# ── threads ──────────────────────────────────────────────────────────────────


async def _call_in_thread(  # type: ignore[explicit-any]
    executor_or_config: Any,  # noqa: ANN401 - of LangChain
    func: Callable[..., T],
    *args: Any,  # noqa: ANN401
    **kwargs: Any,  # noqa: ANN401
) -> T:
    # This code is executed with the globals of LangChain, which do not have these names.
    from midrun.hosts.langchain_calls import HOST, ORIGINALS  # noqa: PLC0415

    host = HOST.get()
    if host is None:
        found: T = await ORIGINALS["run_in_executor"](executor_or_config, func, *args, **kwargs)
        return found

    def call_function() -> T:
        try:
            return func(*args, **kwargs)
        except StopIteration as error:
            raise RuntimeError from error  # it cannot be set on a future

    # A thread of the host: the executor may be full of waiting nodes.
    return await host.run_thread(call_function)
