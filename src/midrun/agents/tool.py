"""`tool` and `Tool`: functions that an agent may call, with their declared properties.

A declaration is checked when it is made, at import: `_find_contradiction` finds options that
exclude each other, `_find_misfit` finds values of the wrong kind. The declared properties
become the `Traits` that are journaled with every call. From then on the journal decides how the
call may be retried, approved and undone, not the current declaration.
"""

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

from midrun.agents.file import check_file_name
from midrun.agents.signature import (
    Arguments,
    Function,
    SchemaArguments,
    find_secret_paths,
    parse_docstring,
)
from midrun.agents.title import Title, find_title_problem, render_title
from midrun.agents.tool_environment import (
    NOTHING_DECLARED,
    EnvironmentOption,
    ToolEnvironment,
    declare_environment,
)
from midrun.core.stops import Stop
from midrun.core.values import ApprovalMode, Effect, Json, SpeakerSettings, Traits
from midrun.errors import Misconfigured
from midrun.ports.model import ToolSpec


class RunSettings(TypedDict):
    """The fields of the entry `RunStarted` that come from the agent."""

    agent: str
    agent_fingerprint: str
    stop: Stop | None
    frame_depth: int
    frame_ttl: int
    window: int
    hosted: bool
    framework: str
    undeclared_tools: int
    output_retries: int
    max_parallel: int
    handoffs: tuple[SpeakerSettings, ...]


class ChildAgent(Protocol):
    """The agent of a tool whose calls are child runs. `Agent` implements it."""

    @property
    def name(self) -> str:
        """The name of the agent."""
        ...

    def spec(self, stop: Stop | None = None) -> RunSettings:
        """Return the settings of a new run of this agent."""
        ...


P = ParamSpec("P")
R = TypeVar("R")

Approve: TypeAlias = bool | Literal["queue"] | Function

TOOL_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""The names of tools that every provider accepts."""

TOOL_NAME_MAX_CHARS: Final = 64
INVALID_NAME_CHARACTER: Final = re.compile(r"[^A-Za-z0-9_-]")

WHY_SCHEMA: Final = {"type": "string", "description": "why you make this call, in a few words"}
"""The schema of `why`, an argument that is added to every tool. The model's reason is journaled
and shown to people; the function never receives it."""

_HOOK_PARAMETERS: Final = {
    "undo": "call, args, result",
    "release": "call, args, result",
    "check": "call, args",
}


class _NotDone(Enum):
    NOT_DONE = "not_done"

    def __repr__(self) -> str:
        return "NOT_DONE"


NOT_DONE: Final = _NotDone.NOT_DONE
"""A `check` hook returns this if the call had no effect."""


class ToolOptions(TypedDict, total=False):
    """The keyword arguments of `tool`. All are optional.

    Attributes:
        name: The name that the model sees. Default: the name of the function.
        undo: `undo(call, args, result)` reverses the effect of a call. `result` is None if the
            call was aborted or its outcome is unknown.
        undo_unknown: False if `undo` must not run for a call that may not have happened.
        release: `release(call, args, result)` gives up a resource that the call holds. It runs
            when the run ends.
        check: `check(call, args)` finds out whether a call of unknown outcome happened. It
            returns the result of the call, or `NOT_DONE`.
        idempotent: The remote side recognizes `call.key`, so a call can safely be repeated.
        read_only: The tool has no effect; a call can safely be repeated.
        approve: True: a person must approve each call before it is made. "queue": the agent
            continues in the meantime. A function: `approve(args)` decides for each call.
        audience: The role, or `user:NAME`, that may approve.
        four_eyes: The approval must come from a person who did not start or steer the run.
        expires: A call that is not approved within this time is declined.
        timeout: A call that takes longer is aborted.
        in_process: For a blocking function. True: run it in a thread of this process, where it
            cannot be stopped. False: require a process of its own. None: a process if another
            process can import the function, else a thread.
        env: Environment variables for its process: a list of names to copy, a dict of values,
            or "inherit".
        retries: The number of steps in a row in which the tool may raise `ModelRetry`, which
            tells the model to try again. After that, the run fails; it can be resumed.
        sequential: No other tool call of the run is made at the same time.
        final: The result is the answer of the run, which ends without another model call.
        secret: The names of arguments that hold secrets. Arguments whose names say so
            (`password`, `api_key`) need not be listed.
        title: One line for people, shown wherever the call is named: a template with the
            parameters in braces, or `title(args)`. Default: the name with the arguments.
        when: `when()` or `when(call)`, sync or async, decides before each model call whether
            the model is told of the tool. A call of a tool that is not offered is refused.
        artifact: The result is shown to people as an artifact of this name, such as
            "report.md". Files that the tool returns are shown under their own names.
    """

    name: str | None
    undo: Function | None
    undo_unknown: bool
    release: Function | None
    check: Function | None
    idempotent: bool
    read_only: bool
    approve: Approve
    audience: str | None
    four_eyes: bool
    expires: timedelta | None
    timeout: timedelta | None
    in_process: bool | None
    env: EnvironmentOption
    retries: int
    sequential: bool
    final: bool
    secret: Sequence[str]
    title: Title | None
    artifact: str
    when: Function | None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Tool:
    """A function that an agent may call. Made with `tool`; immutable.

    `traits` are the declared properties that do not depend on the arguments; `traits_for` adds
    the others. `traits.version` is a fingerprint of the name, the schema without descriptions,
    and the declared properties. It does not change when the code is formatted or a docstring is
    improved. It changes when an earlier call, or an approval of one, would now have another
    meaning.

    Raises:
        Misconfigured: The options contradict each other, or one has the wrong type.
    """

    name: str
    description: str
    fn: Function
    arguments: Arguments | SchemaArguments
    traits: Traits = field(default=Traits())
    undo: Function | None = None
    release: Function | None = None
    check: Function | None = None
    approve: Approve = False
    timeout: timedelta | None = None
    in_process: bool | None = None
    environment: ToolEnvironment = NOTHING_DECLARED  # declared for its process
    agent: ChildAgent | None = None  # if set, each call is a child run of this agent
    title: Title | None = None  # not part of the version: it changes no meaning
    artifact: str = ""  # the name under which its result is shown to people
    handoff: str = ""  # the agent that speaks after a call of it; see `agents.handoffs`
    when: Function | None = None  # whether it is offered; see `agents.offered_tools`

    def __post_init__(self) -> None:
        """Check the declaration, and compute the version."""
        if problem := _find_contradiction(self) or _find_misfit(self):
            raise Misconfigured(f"tool {self.name}", problem)
        # `inspect.signature` and `help` follow these to the function. The dataclass is frozen,
        # so fields are set through `vars`.
        vars(self).update(__wrapped__=self.fn, __doc__=self.fn.__doc__)
        by_name = find_secret_paths(self.schema)
        # Secret arguments that are found by their names follow from the schema, which is part
        # of the version already. Only the declared ones are added to it.
        declared_paths = tuple(path for path in self.traits.secret if path not in by_name)
        traits = replace(self.traits, version="", secret=declared_paths)
        # How often, beside what and before what a call is made does not change its meaning.
        plain = replace(traits, retries=Traits().retries, sequential=False, final=False)
        declared = [self.name, strip_descriptions(self.schema), plain, callable(self.approve)]
        version = sha256(msgspec.json.encode(declared, order="sorted")).hexdigest()[:12]
        secret = (*declared_paths, *by_name)
        vars(self).update(traits=replace(traits, version=version, secret=secret))

    @staticmethod
    def of(fn: "Function | Tool") -> "Tool":
        """Return `fn` as a tool without options; return a tool unchanged."""
        return fn if isinstance(fn, Tool) else tool(fn)

    @property
    def schema(self) -> dict[str, Json]:
        """The JSON Schema of the arguments that `parse` accepts."""
        return self.arguments.schema

    @property
    def takes_call(self) -> bool:
        """True if the function takes a `Call` as its first parameter."""
        return self.arguments.takes_call

    @cached_property
    def is_async(self) -> bool:
        """True if the function is async; otherwise it blocks."""
        return is_async(self.fn)

    @cached_property
    def spec(self) -> ToolSpec:
        """The tool as the model is told of it, with the additional argument `why`."""
        properties = self.schema["properties"]
        assert isinstance(properties, dict)
        schema = {**self.schema, "properties": {**properties, "why": WHY_SCHEMA}}
        return ToolSpec(name=self.name, description=self.description, schema=schema)

    def parse(self, args: Json) -> dict[str, object]:
        """Convert JSON arguments to keyword arguments for `fn`; see `Arguments.parse`.

        Raises:
            BadArguments: They do not match the schema. The text is for the model.
        """
        return self.arguments.parse(args)

    def traits_for(self, args: dict[str, Json]) -> Traits:
        """Return the traits of a call with these arguments.

        If `approve` is a function, it is called; an exception of it is raised.

        Raises:
            Misconfigured: `approve` did not return True, False or "queue". In particular, None
                from a forgotten `return` must not mean that no approval is needed.
        """
        traits = self.traits
        if not self.is_async and (self.in_process or find_import_path(self) is None):
            traits = replace(traits, unstoppable=True)  # it will block a thread
        if not callable(self.approve):
            return traits
        answer = self.approve(deepcopy(args))  # a copy: it may change its argument
        if not (isinstance(answer, bool) or answer == "queue"):
            problem = f'approve returned {answer!r}; return True, False or "queue"'
            raise Misconfigured(f"tool {self.name}", problem)
        return replace(traits, approve=choose_gate(answer))

    def make_title(self, args: Json) -> str:
        """Return the declared title of a call with these arguments; "" if there is none."""
        return render_title(self.title, args, self.schema)

    def __repr__(self) -> str:
        return f"<tool {self.name}>"


class ToolFunction(Tool, Generic[P, R]):
    """A tool that can be called like the function it was made from, for example in a test."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly; nothing is journaled."""
        return self.fn(*args, **kwargs)  # type: ignore[return-value]  # `tool` saw the function


@overload
def tool(fn: Callable[P, R], **options: Unpack[ToolOptions]) -> ToolFunction[P, R]: ...
@overload
def tool(
    fn: None = None, **options: Unpack[ToolOptions]
) -> Callable[[Callable[P, R]], ToolFunction[P, R]]: ...
def tool(
    fn: Callable[P, R] | None = None, **options: Unpack[ToolOptions]
) -> ToolFunction[P, R] | Callable[[Callable[P, R]], ToolFunction[P, R]]:
    """Make a tool from a function: `@tool`, `@tool(undo=…)` or `tool(fn, undo=…)`.

    The description and the schema come from the docstring (Google, NumPy or Sphinx style) and
    the annotations. `ToolOptions` documents the keyword arguments.

    Raises:
        Misconfigured: The function or the options cannot work. The text says why.
    """
    _check_option_names("tool", options)

    def declare(fn: Callable[P, R]) -> ToolFunction[P, R]:
        called = _check_name(fn, options.get("name"))
        doc = parse_docstring(fn.__doc__)
        return ToolFunction(
            name=called,
            description=doc.text,
            fn=fn,
            arguments=Arguments(f"tool {called}", fn, doc.parameters),
            **make_tool_fields(called, options),
        )

    return declare if fn is None else declare(fn)


def traits(**options: Unpack[ToolOptions]) -> ToolOptions:
    """Return the options of `tool` for a tool of another framework; see `midrun.host`.

        midrun.host(agent, tools={"charge": traits(undo=refund, approve=True)})

    Raises:
        Misconfigured: `name` or `when` is given. The tool keeps the name that it has, and the
            framework decides which tools it offers.
    """
    _check_option_names("traits", options)
    if "name" in options:
        problem = "Cannot rename the tool of another framework. Drop name=…."
        raise Misconfigured("traits", problem)
    if "when" in options:
        problem = "Cannot set when: the framework decides which tools it offers. Drop when=…."
        raise Misconfigured("traits", problem)
    return options


class ToolFields(TypedDict):
    """The fields of a `Tool` that follow from its options."""

    traits: Traits
    undo: Function | None
    release: Function | None
    check: Function | None
    approve: Approve
    timeout: timedelta | None
    in_process: bool | None
    environment: ToolEnvironment
    title: Title | None
    artifact: str
    when: Function | None


def make_tool_fields(name: str, options: ToolOptions) -> ToolFields:
    """Return the fields of the tool `name` that follow from its options."""
    undo, release, check = options.get("undo"), options.get("release"), options.get("check")
    approve = options.get("approve", False)
    expires, secret = options.get("expires"), options.get("secret", ())
    effect = Effect.IDEMPOTENT if options.get("idempotent") else Effect.ONCE
    traits = Traits(
        effect=Effect.READ if options.get("read_only") else effect,
        undo=undo is not None,
        undo_unknown=options.get("undo_unknown", True),
        release=release is not None,
        check=check is not None,
        approve=choose_gate(approve),
        audience=options.get("audience") or "",
        four_eyes=options.get("four_eyes", False),
        ask_ttl=0 if expires is None else expires // timedelta(microseconds=1),
        secret=(secret,) if isinstance(secret, str) else tuple(secret),
        retries=options.get("retries", Traits().retries),
        sequential=options.get("sequential", False),
        final=options.get("final", False),
    )
    return ToolFields(
        traits=traits,
        undo=undo,
        release=release,
        check=check,
        approve=approve,
        timeout=options.get("timeout"),
        in_process=options.get("in_process"),
        environment=declare_environment(f"tool {name}", "env", options.get("env")),
        title=options.get("title"),
        artifact=_check_artifact(options.get("artifact", "")),
        when=options.get("when"),
    )


def _check_artifact(name: object) -> str:
    return "" if name == "" else check_file_name("artifact", name)


def _check_option_names(function: str, options: ToolOptions) -> None:
    # A misspelt option must not be ignored: `aprove=True` would approve nothing.
    if unknown := options.keys() - ToolOptions.__annotations__.keys():
        raise TypeError(f"{function}() got an unexpected keyword argument {min(unknown)!r}")


def split_why(args: Json) -> tuple[str, Json]:
    """Return the model's reason for a call, and the arguments without it."""
    if not isinstance(args, dict) or "why" not in args:
        return "", args
    why = args["why"]  # written by a model, so it may be anything
    rest = {name: value for name, value in args.items() if name != "why"}
    return why.strip() if isinstance(why, str) else "", rest


def is_async(fn: Function) -> bool:
    """Tell whether `fn`, a function or an object with `__call__`, is async."""
    return iscoroutinefunction(fn) or iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004 - asks how it is called, not whether


def find_import_path(tool: Function | Tool) -> str | None:
    """Return the "module:qualname" by which another process can import this function.

    None if it cannot be imported: closures, lambdas, bound methods, functions of an interactive
    session.
    """
    fn = tool.fn if isinstance(tool, Tool) else tool
    module, path = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    home = sys.modules.get(module) if module else None
    if home is None or not path or (module == "__main__" and not hasattr(home, "__file__")):
        return None
    # Do now what the other process will do, and see whether it finds this very function. The
    # name may have been bound to something else, or to a tool that wraps the function.
    try:
        found = attrgetter(path)(home)
    except AttributeError:
        return None
    inner = found.fn if isinstance(found, Tool) else found
    # Not `is`: each access to a class method makes a new object, equal to the others.
    if inner == fn:
        return f"{module}:{path}"
    # A decorator of another framework may keep the function that it has wrapped.
    return f"{module}:{path}.__wrapped__" if getattr(found, "__wrapped__", None) == fn else None


# ── checks of a declaration ──────────────────────────────────────────────────


def choose_gate(approve: object) -> ApprovalMode:
    """Return the gate for a value of `approve`: "block", "queue" or "" for no approval."""
    if approve == "queue":
        return "queue"
    return "block" if approve else ""


def _check_name(fn: object, name: str | None) -> str:
    if isinstance(fn, Tool):
        problem = "It is a tool already. Pass all options in one declaration."
        raise Misconfigured(f"tool {fn.name}", problem)
    tool_name = name or getattr(fn, "__name__", "")
    if not callable(fn) or isinstance(fn, type) or not tool_name:
        problem = "must be a function; wrap it in one"
        raise Misconfigured(f"tool {tool_name or repr(fn)}", problem)
    if not TOOL_NAME_PATTERN.fullmatch(tool_name):
        problem = (
            "Models accept names of 1 to 64 letters, digits, _ and - only. Set another name=…."
        )
        raise Misconfigured(f"tool {tool_name}", problem)
    return tool_name


def _find_contradiction(tool: Tool) -> str:
    """Return a description of the first two options that exclude each other, or ""."""
    traits = tool.traits
    needs_approval = callable(tool.approve) or bool(traits.approve)
    rules = (
        (
            traits.undo and traits.effect is Effect.READ,
            "Cannot have undo and read_only: a tool without effects needs no undo. Drop one.",
        ),
        (
            not traits.undo_unknown and not traits.undo,
            "Cannot set undo_unknown without undo. Add undo=… or drop it.",
        ),
        (
            traits.four_eyes and not needs_approval,
            "Cannot set four_eyes without an approval. Add approve=True.",
        ),
        (
            traits.ask_ttl != 0 and not needs_approval,
            "Cannot set expires without an approval. Add approve=True.",
        ),
        (
            traits.final and traits.approve == "queue",
            "Cannot set final with approve='queue': the agent does not wait. Use approve=True.",
        ),
        (
            type(traits.final) is not bool,
            f"final must be a bool, got {traits.final!r}",
        ),
        (
            traits.ask_ttl < 0,
            "expires must be a positive timedelta, as timedelta(hours=1)",
        ),
        (
            type(traits.retries) is not int or traits.retries < 0,
            f"retries must be an int >= 0, got {traits.retries!r}",
        ),
        (
            tool.in_process is False and tool.is_async,
            "Cannot set in_process=False for an async tool. Drop it, or use a plain function.",
        ),
        (
            bool(tool.environment) and (tool.is_async or bool(tool.in_process)),
            "Cannot set env: the tool runs in this process. Drop env, async and in_process",
        ),
    )
    return next((problem for is_broken, problem in rules if is_broken), "")


def _find_misfit(tool: Tool) -> str:
    """Return a description of the first option with a value of the wrong kind, or ""."""
    if isgeneratorfunction(tool.fn) or isasyncgenfunction(tool.fn):
        return (
            "Cannot use a generator as a tool. Return a list, and report progress with "
            "call.note."
        )
    properties = tool.schema["properties"]
    assert isinstance(properties, dict)
    names = {path.split(".")[0] for path in tool.traits.secret}
    if unknown := names.difference(properties):
        expected = ", ".join(properties)
        return f"secret must name arguments of the tool ({expected}), got {min(unknown)!r}"
    if problem := _find_hook_problem(tool) or find_title_problem(tool.title, properties):
        return problem
    if callable(tool.approve):
        if is_async(tool.approve) or not _accepts_positional(tool.approve, 1):
            return "approve must be callable as approve(args), and must not be async"
    elif tool.approve not in (True, False, "queue"):
        expected = 'True, False, "queue" or a function of the arguments'
        return f"approve must be {expected}, got {tool.approve!r}"
    when: object = tool.when
    if when is not None and not callable(when):
        return f"when must be callable as when() or when(call), got {when!r}"
    timeout: object = tool.timeout
    if timeout is None or (isinstance(timeout, timedelta) and timeout > timedelta(0)):
        return ""
    return f"timeout must be a positive timedelta, as timedelta(seconds=30), got {timeout!r}"


def _find_hook_problem(tool: Tool) -> str:
    """Return a description of the first hook that cannot be called, or ""."""
    for hook, parameters in _HOOK_PARAMETERS.items():
        fn = getattr(tool, hook)
        if fn is not None and not _accepts_positional(fn, parameters.count(",") + 1):
            return f"{hook} must be callable as {hook}({parameters}), got {fn!r}"
        # Calling a generator function only makes a generator; its body would never run.
        if isgeneratorfunction(fn) or isasyncgenfunction(fn):
            return f"{hook} must not be a generator. Remove its yield."
    return ""


def _accepts_positional(fn: object, count: int) -> bool:
    if not callable(fn):
        return False
    try:
        signature(fn).bind(*range(count))  # only the number of arguments counts here
    except (TypeError, ValueError):
        return False
    return True


def strip_descriptions(schema: Json) -> Json:
    """Return `schema` without descriptions and titles, which do not change its meaning."""
    match schema:
        case list():
            return [strip_descriptions(part) for part in schema]
        case dict():
            return {
                key: {name: strip_descriptions(part) for name, part in value.items()}
                # Here the keys are names of fields, and a field may be called `title`.
                if key in {"properties", "$defs"}
                else strip_descriptions(value)
                for key, value in schema.items()
                if key not in {"description", "title"}
            }
        case _:
            return schema
