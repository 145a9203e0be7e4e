"""Tools: functions that an agent may call, and what they declare about themselves."""

import re
import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from functools import cached_property
from hashlib import sha256
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction, signature
from operator import attrgetter
from typing import (
    Final,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

import msgspec
from msgspec.structs import replace

from midrun.agents.signature import Arguments, Function, described, secret_paths
from midrun.agents.tool_environment import (
    NOTHING_DECLARED,
    EnvironmentOption,
    ToolEnvironment,
    declare_environment,
)
from midrun.core.stops import Stop
from midrun.core.values import Effect, Gate, Json, Traits
from midrun.errors import Misconfigured
from midrun.ports.model import ToolSpec

# What a run takes from its agent when it starts.


class Started(TypedDict):
    """The fields of `RunStarted` that come from the agent."""

    agent: str
    agent_print: str
    stop: Stop | None
    frame_depth: int
    frame_ttl: int
    window: int


class Delegate(Protocol):
    """An agent, as far as a tool needs to know it whose calls are runs of that agent."""

    @property
    def name(self) -> str:
        """What journals know it by."""
        ...

    def spec(self, stop: Stop | None = None) -> Started:
        """Return what a run of this agent starts with."""
        ...


P = ParamSpec("P")
R = TypeVar("R")

Approve: TypeAlias = bool | Literal["queue"] | Function

NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What every provider accepts as the name of a tool."""

WHY: Final = {"type": "string", "description": "why you make this call, in a few words"}
"""The argument that every tool is offered with, and none is given: it is for the journal."""

_HOOKS: Final = {
    "undo": "call, args, result",
    "release": "call, args, result",
    "check": "call, args",
}


class _NotDone(Enum):
    NOT_DONE = "not_done"

    def __repr__(self) -> str:
        return "NOT_DONE"


NOT_DONE: Final = _NotDone.NOT_DONE
"""What a `check` returns where the call did not take effect."""


class Options(TypedDict, total=False):
    """What a tool can declare. Everything may be left out."""

    name: str | None  # what models know it by; otherwise the function's name
    undo: Function | None  # undo(call, args, result or None): take its effect back
    undo_unknown: bool  # False: undo is not safe for a call that may not have happened
    release: Function | None  # release(call, args, result): give up what it holds
    check: Function | None  # check(call, args): its result, or NOT_DONE
    idempotent: bool  # the far end knows our key: making it twice is making it once
    read_only: bool  # it changes nothing
    approve: Approve  # a person decides first; "queue": meanwhile the agent goes on
    audience: str | None  # who may decide: a role, or user:NAME
    four_eyes: bool  # decided by a person who did not steer the run to the call
    expires: timedelta | None  # nobody has decided by then: it is a no
    timeout: timedelta | None  # after this it is aborted
    in_process: bool | None  # of a blocking one: in this process, or in one to be killed
    env: EnvironmentOption  # variables for its process: names, values, or "inherit"
    secret: Sequence[str]  # arguments that hold secrets, besides those named for one


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Tool:
    """A function that an agent may call. Made by `tool`, or by `Tool.of`; never changed.

    `traits` are those that do not depend on the arguments; see `traits_for`. Their `version` is
    a fingerprint of the name, the schema without its descriptions, and what is declared: it
    stays the same when somebody formats the code or improves a docstring, and changes when an
    earlier call, or an approval of one, would mean something else.

    Raises:
        Misconfigured: the tool cannot work as it is declared.
    """

    name: str
    description: str
    fn: Function
    arguments: Arguments
    traits: Traits = field(default=Traits())
    undo: Function | None = None
    release: Function | None = None
    check: Function | None = None
    approve: Approve = False
    timeout: timedelta | None = None
    in_process: bool | None = None
    environment: ToolEnvironment = NOTHING_DECLARED  # of its process
    agent: Delegate | None = None  # whose run each call is, if it is one

    def __post_init__(self) -> None:
        """Check it, and let `inspect.signature` and `help` see the function."""
        if problem := _contradiction(self) or _misfit(self):
            raise Misconfigured(f"tool {self.name}", problem)
        vars(self).update(__wrapped__=self.fn, __doc__=self.fn.__doc__)
        named = secret_paths(self.schema)
        # What follows from the schema is in the version as part of it.
        more = tuple(path for path in self.traits.secret if path not in named)
        traits = replace(self.traits, version="", secret=more)
        declared = [self.name, _shape(self.schema), traits, callable(self.approve)]
        version = sha256(msgspec.json.encode(declared, order="sorted")).hexdigest()[:12]
        vars(self).update(traits=replace(traits, version=version, secret=(*more, *named)))

    @staticmethod
    def of(fn: "Function | Tool") -> "Tool":
        """Return `fn` as a tool that declares nothing; a tool is returned as it is."""
        return fn if isinstance(fn, Tool) else tool(fn)

    @property
    def schema(self) -> dict[str, Json]:
        """The JSON Schema of its arguments, as `parse` takes them."""
        return self.arguments.schema

    @property
    def takes_call(self) -> bool:
        """It wants a `Call` before its arguments."""
        return self.arguments.takes_call

    @cached_property
    def is_async(self) -> bool:
        """Calling it makes a coroutine; otherwise it blocks."""
        return is_async(self.fn)

    @cached_property
    def spec(self) -> ToolSpec:
        """The tool as a model is told of it: with a place to say why."""
        properties = self.schema["properties"]
        assert isinstance(properties, dict)
        schema = {**self.schema, "properties": {**properties, "why": WHY}}
        return ToolSpec(name=self.name, description=self.description, schema=schema)

    def parse(self, args: Json) -> dict[str, object]:
        """Return the keyword arguments for `fn`, of the types it wants; see `Arguments.parse`.

        Raises:
            BadArguments: they do not fit; the text is for the model.
        """
        return self.arguments.parse(args)

    def traits_for(self, args: dict[str, Json]) -> Traits:
        """Return the traits of a call with these arguments.

        A blocking one that cannot be killed says so, for everybody to see. `approve` is asked
        if it is a function, and what it raises is raised. It must answer
        with True, False or "queue": a forgotten `return` does not mean that nobody need look.

        Raises:
            Misconfigured: it answered otherwise.
        """
        traits = self.traits
        if not self.is_async and (self.in_process or place_of(self) is None):
            traits = replace(traits, unstoppable=True)
        if not callable(self.approve):
            return traits
        answer = self.approve(deepcopy(args))  # it may do with them what it likes
        if not (isinstance(answer, bool) or answer == "queue"):
            problem = f'approve returned {answer!r}; return True, False or "queue"'
            raise Misconfigured(f"tool {self.name}", problem)
        return replace(traits, approve=gate_of(answer))

    def __repr__(self) -> str:
        return f"<tool {self.name}>"


class ToolFunction(Tool, Generic[P, R]):
    """A tool that can still be called like the function it was made from, in a test say."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself: nothing is journaled."""
        return self.fn(*args, **kwargs)  # type: ignore[return-value]  # `tool` saw the function


@overload
def tool(fn: Callable[P, R], **options: Unpack[Options]) -> ToolFunction[P, R]: ...
@overload
def tool(
    fn: None = None, **options: Unpack[Options]
) -> Callable[[Callable[P, R]], ToolFunction[P, R]]: ...
def tool(  # noqa: PLR0913 - one keyword per trait
    fn: Callable[P, R] | None = None,
    *,
    name: str | None = None,
    undo: Function | None = None,
    undo_unknown: bool = True,
    release: Function | None = None,
    check: Function | None = None,
    idempotent: bool = False,
    read_only: bool = False,
    approve: Approve = False,
    audience: str | None = None,
    four_eyes: bool = False,
    expires: timedelta | None = None,
    timeout: timedelta | None = None,
    in_process: bool | None = None,
    env: EnvironmentOption = None,
    secret: Sequence[str] = (),
) -> ToolFunction[P, R] | Callable[[Callable[P, R]], ToolFunction[P, R]]:
    """Make a tool of a function: `@tool`, `@tool(undo=…)` or `tool(fn, undo=…)`.

    Its description and schema come from the signature and the docstring, in Google, NumPy or
    Sphinx style. `Options` says what can be declared; what is declared is believed.

    Raises:
        Misconfigured: it cannot work like this; the text names the tool and what to do.
    """
    effect = Effect.IDEMPOTENT if idempotent else Effect.ONCE
    traits = Traits(
        effect=Effect.READ if read_only else effect,
        undo=undo is not None,
        undo_unknown=undo_unknown,
        release=release is not None,
        check=check is not None,
        approve=gate_of(approve),
        audience=audience or "",
        four_eyes=four_eyes,
        ask_ttl=0 if expires is None else expires // timedelta(microseconds=1),
        secret=(secret,) if isinstance(secret, str) else tuple(secret),
    )

    def declare(fn: Callable[P, R]) -> ToolFunction[P, R]:
        called = _checked_name(fn, name)
        doc = described(fn.__doc__)
        return ToolFunction(
            name=called,
            description=doc.text,
            fn=fn,
            arguments=Arguments(f"tool {called}", fn, doc.parameters),
            traits=traits,
            undo=undo,
            release=release,
            check=check,
            approve=approve,
            timeout=timeout,
            in_process=in_process,
            environment=declare_environment(f"tool {called}", "env", env),
        )

    return declare if fn is None else declare(fn)


def take_why(args: Json) -> tuple[str, Json]:
    """Return why a model makes a call, and the arguments without it."""
    if not isinstance(args, dict) or "why" not in args:
        return "", args
    why = args["why"]
    rest = {name: value for name, value in args.items() if name != "why"}
    return why.strip() if isinstance(why, str) else "", rest


def is_async(fn: Function) -> bool:
    """Tell whether calling `fn`, a function or an object that is called as one, is awaited."""
    return iscoroutinefunction(fn) or iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004 - not whether it can be called, but how


def place_of(tool: Function | Tool) -> str | None:
    """Return where another process finds this function or tool, as "module:qualname".

    None for what cannot be found by importing its module: closures, lambdas, methods of an
    object, what was typed at a prompt.
    """
    fn = tool.fn if isinstance(tool, Tool) else tool
    module, path = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    home = sys.modules.get(module) if module else None
    if home is None or not path or (module == "__main__" and not hasattr(home, "__file__")):
        return None
    try:
        found = attrgetter(path)(home)
    except AttributeError:
        return None
    inner = found.fn if isinstance(found, Tool) else found
    return f"{module}:{path}" if inner == fn else None  # class methods are equal, not the same


# ── what a declaration may say ───────────────────────────────────────────────


def gate_of(approve: object) -> Gate:
    """Return what a call waits for: a person's yes, with or without its step; or nothing."""
    if approve == "queue":
        return "queue"
    return "block" if approve else ""


def _checked_name(fn: object, name: str | None) -> str:
    if isinstance(fn, Tool):
        raise Misconfigured(f"tool {fn.name}", "is a tool already; declare all of it at once")
    called = name or getattr(fn, "__name__", "")
    if not callable(fn) or isinstance(fn, type) or not called:
        raise Misconfigured(f"tool {called or repr(fn)}", "is not a function; wrap it in one")
    if not NAME.fullmatch(called):
        problem = "models need a name of up to 64 letters, digits, _ and -; give it name=…"
        raise Misconfigured(f"tool {called}", problem)
    return called


def _contradiction(tool: Tool) -> str:
    """Return what of the declaration contradicts itself, and what to do; or ""."""
    traits = tool.traits
    decides = callable(tool.approve) or bool(traits.approve)
    rules = (
        (
            traits.undo and traits.effect is Effect.READ,
            "read_only says that there is nothing to undo; drop one of the two",
        ),
        (
            not traits.undo_unknown and not traits.undo,
            "undo_unknown speaks of its undo, which it does not have; add undo=… or drop it",
        ),
        (
            traits.four_eyes and not decides,
            "four_eyes needs something to decide; add approve=True",
        ),
        (
            traits.ask_ttl != 0 and not decides,
            "expires needs something to decide; add approve=True",
        ),
        (traits.ask_ttl < 0, "expires is a time to wait: timedelta(hours=1)"),
        (
            tool.in_process is False and tool.is_async,
            "an async tool runs in this process; drop in_process, or make it a plain function",
        ),
        (
            bool(tool.environment) and (tool.is_async or bool(tool.in_process)),
            "Cannot set env: the tool runs in this process. Drop env, async and in_process",
        ),
    )
    return next((words for broken, words in rules if broken), "")


def _misfit(tool: Tool) -> str:
    """Return which part of the declaration is not of its kind, and what to do; or ""."""
    if isgeneratorfunction(tool.fn) or isasyncgenfunction(tool.fn):
        return "is a generator; return a list, and use call.note to tell how it is getting on"
    properties = tool.schema["properties"]
    assert isinstance(properties, dict)
    names = {path.split(".")[0] for path in tool.traits.secret}
    if unknown := names.difference(properties):
        return f"secret={min(unknown)!r} is none of its arguments: {', '.join(properties)}"
    if problem := _find_hook_problem(tool):
        return problem
    if callable(tool.approve):
        if is_async(tool.approve) or not _takes(tool.approve, 1):
            return "approve is called as approve(args), and must not be async"
    elif tool.approve not in (True, False, "queue"):
        return 'approve is True, False, "queue" or a function of the arguments'
    timeout: object = tool.timeout
    if timeout is None or (isinstance(timeout, timedelta) and timeout > timedelta(0)):
        return ""
    return "timeout is a time to wait: timedelta(seconds=30)"


def _find_hook_problem(tool: Tool) -> str:
    """Describe the first hook that cannot be called, and the remedy; "" if all can."""
    for hook, parameters in _HOOKS.items():
        fn = getattr(tool, hook)
        if fn is not None and not _takes(fn, parameters.count(",") + 1):
            return f"{hook} is called as {hook}({parameters}); {fn!r} cannot be"
        if isgeneratorfunction(fn) or isasyncgenfunction(fn):
            return f"{hook} is a generator, of which nothing would run; drop its yield"
    return ""


def _takes(fn: object, count: int) -> bool:
    if not callable(fn):
        return False
    try:
        signature(fn).bind(*range(count))
    except (TypeError, ValueError):
        return False
    return True


def _shape(schema: Json) -> Json:
    """Return `schema` without its descriptions: what it accepts, however it is explained."""
    match schema:
        case list():
            return [_shape(part) for part in schema]
        case dict():
            return {
                key: {name: _shape(part) for name, part in value.items()}
                if key in {"properties", "$defs"}  # here the keys are names, `title` for one
                else _shape(value)
                for key, value in schema.items()
                if key not in {"description", "title"}
            }
        case _:
            return schema
