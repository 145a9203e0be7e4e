"""`Call`: the context that a tool gets as its first parameter, if it asks for it.

`ContextSource` opens the value that a function finds in `call.context`; in the process of a
blocking function, `ProcessContext` does.
"""

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ContextDecorator,
    ExitStack,
    asynccontextmanager,
)
from dataclasses import dataclass, field
from inspect import Parameter, isawaitable, signature
from types import TracebackType
from typing import Final, Never, TypeAlias, TypeGuard, cast

from midrun.agents.file import File
from midrun.agents.tool_environment import DECLARE_HINT, is_missing_variable
from midrun.codec.safe_repr import safe_repr, safe_str
from midrun.codec.strict_json import normalize_json
from midrun.core.transcript import Turn
from midrun.core.values import Json
from midrun.errors import ContextFailed, Misconfigured

ContextFactory: TypeAlias = Callable[..., object]  # type: ignore[explicit-any]  # 0 or 1 arguments
"""Makes the context of a call: takes nothing, or `run_id`."""


class ContextSource:
    """Makes contexts: database pools, clients, the user's own objects.

    The result of the factory is awaited if it is awaitable. An async context manager is entered
    and left. So is a context manager that `contextlib.contextmanager` makes.

    Args:
        where: The declaration that has the factory, for errors.
        factory: A function without parameters, or with the parameter `run_id`.
        per_call: Open a context for each call, also if the factory does not take `run_id`.

    Attributes:
        where: The declaration that has the factory.
        factory: The function.
        is_shared: All calls of a worker share one context. Otherwise each call has its own.

    Raises:
        Misconfigured: `factory` is not such a function.
    """

    def __init__(self, where: str, factory: ContextFactory, *, per_call: bool = False) -> None:
        self.where: Final = where
        self.factory: Final = factory
        self._takes_run_id = _takes_run_id(where, factory)
        self.is_shared: Final = not (per_call or self._takes_run_id)

    @asynccontextmanager
    async def open(self, run_id: str) -> AsyncIterator[object]:
        """Open a context, and close it afterwards."""
        made = self.factory(run_id) if self._takes_run_id else self.factory()
        if isawaitable(made):
            made = await made
        if isinstance(made, AbstractAsyncContextManager):
            async with made as value:
                yield value
        elif _is_generator_context(made):
            with made as value:
                yield value
        else:
            yield made


WHERE: Final = "call.context"

ASYNC_CONTEXT_PROBLEM: Final = (
    "Cannot use it here: a blocking function runs in a process of its own, and the function of "
    "context= is async. Make the tool async, or declare tool(in_process=True)."
)

NO_FACTORY_PROBLEM: Final = (
    "Cannot use it here: a blocking function runs in a process of its own, which cannot import "
    "the function of context=. Put that function at the top level of a module, make the tool "
    "async, or declare tool(in_process=True)."
)


class ProcessContext:
    """The context of a blocking function in a process of its own, opened when it is used.

    A process makes one call, so it opens at most one. It is closed when this object, which is
    a context manager, is left.

    Args:
        find_factory: Returns the factory in this process; raises if it cannot be found.
        run_id: The run of the call.
    """

    def __init__(self, find_factory: Callable[[], object], run_id: str) -> None:
        self._find_factory = find_factory
        self._run_id = run_id
        self._lock = threading.RLock()  # several threads of a tool may use the context
        self._stack = ExitStack()
        self._opened: list[object] = []  # the value, once it is opened

    def open(self) -> object:
        """Return the context; open it when this is called first.

        Raises:
            Misconfigured: The factory makes an async object, or it is not a valid factory.
            ContextFailed: The factory raised. The next use opens it again.
        """
        with self._lock:
            if not self._opened:
                self._opened.append(self._open())
            return self._opened[0]

    def _open(self) -> object:
        factory = cast("ContextFactory", self._find_factory())
        takes_run_id = _takes_run_id(WHERE, factory)
        try:
            made = factory(self._run_id) if takes_run_id else factory()
            value = self._stack.enter_context(made) if _is_generator_context(made) else made
        except Exception as error:
            advice = f". {DECLARE_HINT}" if is_missing_variable(error) else ""
            problem = f"{type(error).__name__}: {safe_str(error)}{advice}"
            raise ContextFailed("a blocking function", problem) from error
        if isinstance(value, Coroutine):
            value.close()  # or Python warns that it was never awaited
        if isawaitable(value) or isinstance(value, AbstractAsyncContextManager):
            raise Misconfigured(WHERE, ASYNC_CONTEXT_PROBLEM)
        return value

    def __enter__(self) -> None:
        """Do nothing: the context is opened when it is used."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        """Close the context if it is open, and tell it about an error of the function."""
        return self._stack.__exit__(kind, error, trace)


def refuse_context() -> Never:
    """Refuse a context whose factory no other process can import."""
    raise Misconfigured(WHERE, NO_FACTORY_PROBLEM)


def _is_generator_context(made: object) -> TypeGuard[AbstractContextManager[object]]:
    """Tell whether `contextlib.contextmanager` made it.

    Other objects that have `__enter__`, such as connections and files, are left alone: entering
    them may begin a transaction.
    """
    return isinstance(made, ContextDecorator) and isinstance(made, AbstractContextManager)


def _takes_run_id(where: str, context: object) -> bool:
    if not callable(context):
        problem = (
            "context must be a function that makes the dependencies, got "
            f"{safe_repr(context, 80)}. Write context=lambda: …."
        )
        raise Misconfigured(where, problem)
    try:
        parameters = list(signature(context).parameters.values())
    except (TypeError, ValueError):  # a class or function without a signature
        return False
    takes = bool(parameters) and parameters[0].name == "run_id"
    required = [
        p
        for p in parameters[takes:]
        if p.default is Parameter.empty and p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD}
    ]
    if required:
        problem = (
            "context must be callable as context() or context(run_id), but it has the "
            f"parameter {required[0].name!r}. Wrap it in a function."
        )
        raise Misconfigured(where, problem)
    return takes


class _CompletedAwaitable:
    """An awaitable that completes at once, for tools that run in another process."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


def refuse_show(_: File) -> Awaitable[None] | None:
    """Refuse `call.show` outside of a tool call."""
    problem = "Cannot show an artifact here: only a tool call has them. Show it in the tool."
    raise Misconfigured("call.show", problem)


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """The context of a call: its idempotency key, its progress, and notes for watchers.

    A tool gets it if its first parameter is annotated with `Call`, or is called `call` and has
    no annotation:

        @tool(idempotent=True)
        async def pay(call: Call, amount: int) -> str:
            return await bank.transfer(amount, idempotency_key=call.key)

    In an async tool, await `save`, `note` and `show`. In a blocking tool, which runs in its own
    process, just call them: they return when the work is done.

    Attributes:
        key: The idempotency key: equal for every attempt at this call, in every process. Send
            it to the remote side. An undo or a release has its own key.
        run_id: The id of the run.
        epoch: Increases each time another worker takes over the run. A remote side that
            remembers the highest epoch can refuse requests from a worker that was replaced.
        attempt: The number of the attempt, from 1.
        progress: The value that an earlier attempt saved last, or None. It does not change
            while the tool runs.
        original: In an undo or a release, the key of the call that it belongs to.
        tool_call_id: In an agent made with `midrun.host`, the id of the call in its framework.
        answered: The decision of a person on a question that an earlier attempt asked with a
            continuation; see `midrun.agents.builtin_tools.PauseHere`.
        transcript: The conversation so far, as the model sees it. Empty in a blocking tool that
            runs in its own process.
        context: The value that `Agent(context=…)` makes; None without it. It is never
            journaled. All calls in a worker share it, unless its function takes `run_id`.
    """

    key: str
    run_id: str
    epoch: int
    attempt: int
    progress: Json = None
    original: str = field(default="", repr=False)
    tool_call_id: str = field(default="", repr=False)
    answered: Json = field(default=None, repr=False)
    transcript: Sequence[Turn] = field(default=(), repr=False)
    saver: Callable[[Json], Awaitable[None] | None] = field(repr=False)
    noter: Callable[[str], Awaitable[None] | None] = field(repr=False)
    shower: Callable[[File], Awaitable[None] | None] = field(default=refuse_show, repr=False)
    _context: object = field(default=None, repr=False)  # or a `ProcessContext`

    @property
    def context(self) -> object:
        """The value that `Agent(context=…)` makes; None without it.

        Raises:
            Misconfigured: The function runs in a process of its own, which cannot make it.
            ContextFailed: It was opened in that process, and that failed.
        """
        if isinstance(self._context, ProcessContext):
            return self._context.open()
        return self._context

    def save(self, progress: Json) -> Awaitable[None]:
        """Save the progress of the tool; it is stored durably when this completes.

        After the first `save`, a pause may abort the call at any point. The next attempt then
        starts with `call.progress` set to the value that was saved last.

        Raises:
            NotJson, TooLarge: `progress` cannot be stored; nothing was saved.
            Misconfigured: It is None, which stands for no progress.
        """
        plain = normalize_json(progress, "progress")
        if plain is None:
            raise Misconfigured(
                "call.save", "None says that nothing is done yet; save a number or an object"
            )
        # In a blocking tool `saver` has done the work when it returns, and returns None.
        return self.saver(plain) or _CompletedAwaitable()

    def note(self, text: str) -> Awaitable[None]:
        """Show a line of progress to all who watch the run; it is not stored.

        Raises:
            Misconfigured: `text` is not a str.
            NotJson: It contains a lone surrogate.
        """
        plain = normalize_json(text, "text")
        if not isinstance(plain, str):
            raise Misconfigured("call.note", "a note is one string; use save for data")
        return self.noter(plain) or _CompletedAwaitable()

    def show(self, name: str, media_type: str, content: str | bytes) -> Awaitable[None]:
        """Show a file to all who watch the run, as an artifact; it is stored durably.

        The first file of a name is version 1; another content under the same name is the next
        version. The model does not see it.

            await call.show("report.md", "text/markdown", text)

        Raises:
            FileRefused: It is beyond a limit of the run; nothing was stored.
            Misconfigured: An argument has the wrong type or form, or the function is an undo, a
                release, a check or part of a model call.
        """
        data = content.encode() if isinstance(content, str) else content
        return self.shower(File(name, media_type, data)) or _CompletedAwaitable()
