"""Tools: their declaration, the call that they receive, and tools that ask a person."""

import math
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from inspect import signature
from types import ModuleType

import pytest

from midrun.agents.builtin_tools import PauseHere, ask_human, pause_here
from midrun.agents.signature import BadArguments, Function
from midrun.agents.tool import NOT_DONE, Tool, ToolOptions, find_import_path, split_why, tool
from midrun.agents.tool_context import Call
from midrun.core.values import Effect, Json, Traits
from midrun.errors import Misconfigured, NotJson


@tool
def fetch_page(url: str, depth: int = 1) -> str:
    """Fetch a page.

    Args:
        url: Where it is.
        depth: How often.
    """
    return url * depth


def undo_call(call: Call, args: dict[str, Json], result: Json) -> None:
    """Serve as an undo and as a release."""


def check_call(call: Call, args: dict[str, Json]) -> object:
    """Serve as a check."""
    del call, args
    return NOT_DONE


@tool(
    name="book", undo=undo_call, check=check_call, approve="queue", timeout=timedelta(seconds=3)
)
async def book_seat(call: Call, seat: str) -> str:
    """Book a seat."""
    return f"{call.key} {seat}"


def return_number(n: int) -> int:
    return n


class Service:
    @staticmethod
    def static(n: int) -> int:
        return n

    @classmethod
    def of_class(cls, n: int) -> int:
        return n

    def method(self, n: int) -> int:
        return n

    @staticmethod
    @tool
    def inner(n: int) -> int:
        return n


def test_a_bare_decorator_takes_everything_from_the_function() -> None:
    assert fetch_page.name == "fetch_page"
    assert fetch_page.description == "Fetch a page."
    assert fetch_page.schema == {
        "type": "object",
        "properties": {
            "url": {"type": "string", "description": "Where it is."},
            "depth": {"type": "integer", "description": "How often.", "default": 1},
        },
        "required": ["url"],
        "additionalProperties": False,
    }
    assert (fetch_page.is_async, fetch_page.takes_call) == (False, False)
    assert fetch_page.parse({"url": "x"}) == {"url": "x"}
    with pytest.raises(BadArguments):
        fetch_page.parse({})


def test_a_decorator_with_arguments_declares_hooks_and_traits() -> None:
    assert (book_seat.name, book_seat.undo, book_seat.check) == ("book", undo_call, check_call)
    assert (book_seat.release, book_seat.in_process) == (None, None)
    assert book_seat.timeout == timedelta(seconds=3)
    assert (book_seat.is_async, book_seat.takes_call) == (True, True)
    assert book_seat.traits == Traits(
        undo=True, check=True, approve="queue", version=book_seat.traits.version
    )


async def test_a_tool_can_be_called_like_its_function() -> None:
    """So it can be tested without Midrun."""
    assert fetch_page("ab", depth=2) == "abab"
    call = Call(key="k", run_id="r", epoch=1, attempt=1, saver=print, noter=print)
    assert await book_seat(call, "1A") == "k 1A"
    assert str(signature(fetch_page)) == "(url: str, depth: int = 1) -> str"
    assert fetch_page.__doc__ == fetch_page.fn.__doc__
    assert repr(fetch_page) == "<tool fetch_page>"


def test_a_tool_is_immutable() -> None:
    """Its fingerprint is computed when it is made."""
    with pytest.raises(AttributeError):
        fetch_page.name = "other"  # type: ignore[misc]  # that is the test


def test_a_plain_function_becomes_a_tool_and_a_tool_stays_itself() -> None:
    """`Agent(tools=[f])` accepts both."""
    new_tool = Tool.of(return_number)
    assert (new_tool.name, new_tool.fn) == ("return_number", return_number)
    assert Tool.of(new_tool) is new_tool
    assert tool(return_number, read_only=True).traits.effect is Effect.READ


def test_a_bound_method_is_a_tool_without_its_self() -> None:
    """A resource that a tool needs, such as a connection, can be in an object."""
    new_tool = Tool.of(Service().method)
    assert new_tool.name == "method"
    assert new_tool.schema["required"] == ["n"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, Traits()),
        ({"read_only": True}, Traits(effect=Effect.READ)),
        ({"idempotent": True}, Traits(effect=Effect.IDEMPOTENT)),
        ({"idempotent": True, "read_only": True}, Traits(effect=Effect.READ)),
        ({"undo": undo_call, "undo_unknown": False}, Traits(undo=True, undo_unknown=False)),
        ({"release": undo_call}, Traits(release=True)),
        ({"check": check_call}, Traits(check=True)),
        ({"approve": True}, Traits(approve="block")),
        ({"approve": "queue"}, Traits(approve="queue")),
        (
            {"approve": True, "audience": "operator", "four_eyes": True},
            Traits(approve="block", audience="operator", four_eyes=True),
        ),
    ],
)
def test_options_become_traits(options: ToolOptions, expected: Traits) -> None:
    """The core sees traits, not functions."""
    traits = tool(return_number, **options).traits
    assert traits == Traits(
        effect=expected.effect,
        undo=expected.undo,
        undo_unknown=expected.undo_unknown,
        release=expected.release,
        check=expected.check,
        approve=expected.approve,
        audience=expected.audience,
        four_eyes=expected.four_eyes,
        version=traits.version,
    )


def test_approval_may_depend_on_the_arguments() -> None:
    """Before the arguments are known, the trait says that each call needs approval."""

    def judge(args: dict[str, int]) -> object:
        return {1: False, 2: True, 3: "queue"}.get(args["n"])

    new_tool = tool(return_number, approve=judge)
    assert new_tool.traits.approve == "block"
    assert [new_tool.traits_for({"n": n}).approve for n in (1, 2, 3)] == ["", "block", "queue"]
    with pytest.raises(
        Misconfigured, match=r"tool return_number: approve returned None; return True"
    ):
        new_tool.traits_for({"n": 4})
    assert fetch_page.traits_for({}) is fetch_page.traits


def test_the_version_depends_on_the_schema_and_not_on_the_docstring() -> None:
    """A better docstring must not invalidate a checkpoint or an approval."""

    def make_version(fn: Function, **options: object) -> str:
        return tool(fn, name="t", **options).traits.version  # type: ignore[call-overload, no-any-return]

    def before(n: int = 1) -> None:
        """Do.

        Args:
            n: How many.
        """

    def after(
        n: int = 1,  # a comment
    ) -> None:
        """Do it, better explained."""

    def wider(n: int | str = 1) -> None: ...
    def other_default(n: int = 2) -> None: ...
    def more(n: int = 1, m: int = 1) -> None: ...
    def described(description: int = 1) -> None: ...
    def judge(args: Json) -> bool:
        return bool(args)

    def titled(title: int = 1) -> None: ...

    assert make_version(before) == make_version(after)
    versions = [
        make_version(fn) for fn in (before, wider, other_default, more, described, titled)
    ]
    versions += [make_version(before, approve=True), make_version(before, approve=judge)]
    versions += [make_version(before, read_only=True), tool(before).traits.version]
    assert len(set(versions)) == len(versions)


def test_the_schema_for_models_has_an_argument_for_the_reason() -> None:
    """Timeline and report show the reason; the tool does not receive it."""
    assert fetch_page.spec.name == "fetch_page"
    schema = fetch_page.spec.schema
    assert isinstance(schema, dict)
    assert schema["properties"]["why"]["type"] == "string"
    assert schema["required"] == ["url"]
    properties = fetch_page.schema["properties"]
    assert isinstance(properties, dict)
    assert "why" not in properties


@pytest.mark.parametrize(
    ("args", "why", "rest"),
    [
        ({"n": 1, "why": " because "}, "because", {"n": 1}),
        ({"n": 1, "why": None}, "", {"n": 1}),
        ({"n": 1}, "", {"n": 1}),
        (None, "", None),
        ([1], "", [1]),
    ],
)
def test_split_why_removes_the_reason_from_the_arguments(
    args: Json, why: str, rest: Json
) -> None:
    before = repr(args)
    assert split_why(args) == (why, rest)
    assert repr(args) == before


# ── import paths ─────────────────────────────────────────────────────────────


def test_a_function_of_a_module_has_an_import_path() -> None:
    """Another process imports the module and finds it."""
    here = __name__
    assert find_import_path(return_number) == f"{here}:return_number"
    assert find_import_path(fetch_page) == f"{here}:fetch_page"
    assert find_import_path(fetch_page.fn) == f"{here}:fetch_page"
    assert find_import_path(tool(return_number, name="other")) == f"{here}:return_number"
    assert find_import_path(Service.static) == f"{here}:Service.static"
    assert find_import_path(Service.of_class) == f"{here}:Service.of_class"
    assert find_import_path(Service.inner) == f"{here}:Service.inner"


def test_a_closure_lambda_method_or_partial_has_no_import_path() -> None:
    """No other process can find it, so it has to run in this one."""

    def closure() -> None: ...

    renamed = partial(return_number, 1)
    for fn in (closure, lambda: None, Service().method, renamed):
        assert find_import_path(fn) is None
    gone = tool(closure)
    gone.fn.__module__ = "no_such_module"
    assert find_import_path(gone) is None


@pytest.mark.parametrize("file", [None, "script.py"])
def test_a_function_of_the_main_script_has_an_import_path_and_of_a_prompt_has_none(
    monkeypatch: pytest.MonkeyPatch, file: str | None
) -> None:
    """Code that was typed at a prompt cannot be loaded again."""

    def typed() -> None: ...

    typed.__module__, typed.__qualname__ = "__main__", "typed"
    main = ModuleType("__main__")
    vars(main).update({"typed": typed} | ({"__file__": file} if file else {}))
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert find_import_path(typed) == ("__main__:typed" if file else None)


# ── refusals ─────────────────────────────────────────────────────────────────


def _generator() -> Iterator[int]:
    yield 1


def _yields(_: Call, __: object, ___: object) -> Iterator[int]:
    yield 1


async def _yields_later(_: Call, __: object, ___: object) -> AsyncIterator[int]:
    yield 1


async def _async_generator() -> AsyncIterator[int]:
    yield 1


async def _async() -> None: ...


async def _async_judge(args: Json) -> bool:
    return bool(args)


@pytest.mark.parametrize(
    ("fn", "options", "advice"),
    [
        (return_number, {"undo": undo_call, "read_only": True}, "return_number: .*Drop one"),
        (return_number, {"undo_unknown": False}, "Add undo="),
        (return_number, {"four_eyes": True}, "Add approve=True"),
        (_async, {"in_process": False}, "use a plain function"),
        (_generator, {}, "Return a list"),
        (_async_generator, {}, "Return a list"),
        (
            return_number,
            {"undo": check_call},
            r"undo must be callable as undo\(call, args, result\)",
        ),
        (return_number, {"release": check_call}, r"release must be callable as"),
        (return_number, {"check": undo_call}, r"check must be callable as check\(call, args\)"),
        (return_number, {"check": "look"}, "got 'look'"),
        (return_number, {"undo": _yields}, "undo must not be a generator"),
        (return_number, {"release": _yields_later}, "release must not be a generator"),
        (return_number, {"approve": "later"}, "approve must be True, False"),
        (return_number, {"approve": _async_judge}, "must not be async"),
        (return_number, {"approve": undo_call}, r"approve\(args\)"),
        (return_number, {"timeout": 30}, r"timedelta\(seconds=30\)"),
        (return_number, {"timeout": timedelta(0)}, r"timedelta\(seconds=30\)"),
        (return_number, {"name": "book a seat"}, "tool book a seat: .*name=…"),
        (return_number, {"name": "n" * 65}, "1 to 64"),
        (lambda: None, {}, "tool <lambda>: .*name=…"),
        (fetch_page, {}, "It is a tool already"),
        (partial(return_number, 1), {}, "wrap it in one"),
        (Service, {}, "tool Service must be a function"),
        (3, {}, "tool 3 must be a function"),
    ],
)
def test_an_invalid_declaration_is_refused_with_advice(
    fn: Function, options: dict[str, object], advice: str
) -> None:
    """At import, where the author sees the error, and not during a run."""
    with pytest.raises(Misconfigured, match=advice):
        tool(fn, **options)  # type: ignore[call-overload]  # wrong on purpose


def test_the_repr_of_not_done_is_its_name() -> None:
    """It appears in logs of checks."""
    assert repr(NOT_DONE) == "NOT_DONE"


# ── the call that a tool receives ────────────────────────────────────────────


def make_call(record: Callable[[Json], Awaitable[None] | None]) -> Call:
    """Return a call that saves and notes through `record`."""
    return Call(
        key="r1:c3", run_id="r1", epoch=2, attempt=1, progress=[1], saver=record, noter=record
    )


async def test_in_an_async_tool_save_and_note_are_done_after_the_await() -> None:
    """The progress is durable before the next line of the tool runs."""
    recorded: list[Json] = []

    async def record(value: Json) -> None:
        recorded.append(value)

    call = make_call(record)
    saving = call.save({"page": 3})
    assert recorded == []
    await saving
    await call.note("page 3")
    assert recorded == [{"page": 3}, "page 3"]


async def test_in_a_blocking_tool_save_and_note_are_done_on_return() -> None:
    """There is no event loop in a blocking tool. An unnecessary await does no harm."""
    recorded: list[Json] = []
    call = make_call(recorded.append)
    _ = call.save((1, 2))
    _ = call.note("half")
    assert recorded == [[1, 2], "half"]
    await call.save(5)
    await call.note("done")
    assert recorded == [[1, 2], "half", 5, "done"]


def test_save_and_note_refuse_values_that_are_not_json() -> None:
    """The error is raised in the line that made the value and contains its path."""
    recorded: list[Json] = []
    call = make_call(recorded.append)
    with pytest.raises(NotJson) as refusal:
        _ = call.save({"seen": [1, math.nan]})
    assert refusal.value.path == "progress.seen[1]"
    with pytest.raises(Misconfigured, match="save a number or an object"):
        _ = call.save(None)
    with pytest.raises(Misconfigured, match="a note is one string"):
        _ = call.note(3)  # type: ignore[arg-type]  # as an untyped tool would
    with pytest.raises(NotJson):
        _ = call.note("\ud800")
    assert recorded == []


def test_a_call_has_its_identity_and_is_immutable() -> None:
    """Tools send the key to other systems; it must stay the same."""
    call = make_call(lambda _: None)
    assert (call.key, call.run_id, call.epoch, call.attempt, call.progress) == (
        "r1:c3",
        "r1",
        2,
        1,
        [1],
    )
    assert repr(call) == "Call(key='r1:c3', run_id='r1', epoch=2, attempt=1, progress=[1])"
    with pytest.raises(AttributeError):
        call.key = "other"  # type: ignore[misc]  # that is the test


# ── tools that ask a person ──────────────────────────────────────────────────


def test_pause_here_passes_except_exception_with_its_question_and_data() -> None:
    with pytest.raises(PauseHere) as pause, suppress(Exception):
        pause_here("Which one?", seats=("1A", "2B"), price=30)
    assert pause.value.question == "Which one?"
    assert pause.value.data == {"seats": ["1A", "2B"], "price": 30}


def test_pause_here_refuses_data_that_is_not_json() -> None:
    with pytest.raises(NotJson) as refusal:
        pause_here("Which?", seats=[object()])
    assert refusal.value.path == "seats[0]"


async def test_ask_human_pauses_with_and_without_options() -> None:
    with pytest.raises(PauseHere) as pause:
        await ask_human("Which?", options=["a", "b"])
    assert (pause.value.question, pause.value.data) == ("Which?", {"options": ["a", "b"]})
    with pytest.raises(PauseHere) as pause:
        await ask_human("What now?")
    assert pause.value.data == {}


def test_ask_human_is_read_only() -> None:
    """A question changes nothing, so it can be asked again after a crash."""
    assert ask_human.traits.effect is Effect.READ
    assert ask_human.name == "ask_human"
    assert ask_human.schema["required"] == ["question"]
    assert ask_human.is_async
