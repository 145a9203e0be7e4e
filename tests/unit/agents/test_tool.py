"""Declaring tools."""

import sys
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from functools import partial
from inspect import signature
from types import ModuleType

import pytest

from midrun.agents.signature import BadArguments, Function
from midrun.agents.tool import NOT_DONE, Tool, ToolOptions, find_import_path, split_why, tool
from midrun.agents.tool_context import Call
from midrun.core.values import Effect, Json, Traits
from midrun.errors import Misconfigured


@tool
def fetch_page(url: str, depth: int = 1) -> str:
    """Fetch a page.

    Args:
        url: Where it is.
        depth: How often.
    """
    return url * depth


def take_back(call: Call, args: dict[str, Json], result: Json) -> None:
    """Undo, or release."""


def look(call: Call, args: dict[str, Json]) -> object:
    """Check."""
    del call, args
    return NOT_DONE


@tool(name="book", undo=take_back, check=look, approve="queue", timeout=timedelta(seconds=3))
async def book_seat(call: Call, seat: str) -> str:
    """Book a seat."""
    return f"{call.key} {seat}"


def plain(n: int) -> int:
    """Return it."""
    return n


class Desk:
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
    """One word above a function that was there already."""
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


def test_a_called_decorator_declares_more() -> None:
    """Each hook and trait is visible to whoever makes the call, and to the core."""
    assert (book_seat.name, book_seat.undo, book_seat.check) == ("book", take_back, look)
    assert (book_seat.release, book_seat.in_process) == (None, None)
    assert book_seat.timeout == timedelta(seconds=3)
    assert (book_seat.is_async, book_seat.takes_call) == (True, True)
    assert book_seat.traits == Traits(
        undo=True, check=True, approve="queue", version=book_seat.traits.version
    )


async def test_a_tool_is_still_the_function_it_was() -> None:
    """So that it can be tested without us."""
    assert fetch_page("ab", depth=2) == "abab"
    call = Call(key="k", run_id="r", epoch=1, attempt=1, saver=print, noter=print)
    assert await book_seat(call, "1A") == "k 1A"
    assert str(signature(fetch_page)) == "(url: str, depth: int = 1) -> str"
    assert fetch_page.__doc__ == fetch_page.fn.__doc__
    assert repr(fetch_page) == "<tool fetch_page>"


def test_a_tool_cannot_be_changed() -> None:
    """Its fingerprint was taken when it was made."""
    with pytest.raises(AttributeError):
        fetch_page.name = "other"  # type: ignore[misc]  # that is the test


def test_a_plain_function_becomes_a_tool_and_a_tool_stays_itself() -> None:
    """`Agent(tools=[f])` takes either."""
    made = Tool.of(plain)
    assert (made.name, made.fn) == ("plain", plain)
    assert Tool.of(made) is made
    assert tool(plain, read_only=True).traits.effect is Effect.READ


def test_a_bound_method_is_a_tool_without_its_self() -> None:
    """What a tool needs, a connection say, can live in an object."""
    made = Tool.of(Desk().method)
    assert made.name == "method"
    assert made.schema["required"] == ["n"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, Traits()),
        ({"read_only": True}, Traits(effect=Effect.READ)),
        ({"idempotent": True}, Traits(effect=Effect.IDEMPOTENT)),
        ({"idempotent": True, "read_only": True}, Traits(effect=Effect.READ)),
        ({"undo": take_back, "undo_unknown": False}, Traits(undo=True, undo_unknown=False)),
        ({"release": take_back}, Traits(release=True)),
        ({"check": look}, Traits(check=True)),
        ({"approve": True}, Traits(approve="block")),
        ({"approve": "queue"}, Traits(approve="queue")),
        (
            {"approve": True, "audience": "operator", "four_eyes": True},
            Traits(approve="block", audience="operator", four_eyes=True),
        ),
    ],
)
def test_what_is_declared_becomes_traits(options: ToolOptions, expected: Traits) -> None:
    """The core sees traits, and no functions."""
    made = tool(plain, **options).traits
    assert made == Traits(
        effect=expected.effect,
        undo=expected.undo,
        undo_unknown=expected.undo_unknown,
        release=expected.release,
        check=expected.check,
        approve=expected.approve,
        audience=expected.audience,
        four_eyes=expected.four_eyes,
        version=made.version,
    )


def test_approval_may_depend_on_the_arguments() -> None:
    """Small sums pass, large ones are looked at, and until one knows, all are."""

    def judge(args: dict[str, int]) -> object:
        return {1: False, 2: True, 3: "queue"}.get(args["n"])

    made = tool(plain, approve=judge)
    assert made.traits.approve == "block"
    assert [made.traits_for({"n": n}).approve for n in (1, 2, 3)] == ["", "block", "queue"]
    with pytest.raises(Misconfigured, match=r"tool plain: approve returned None; return True"):
        made.traits_for({"n": 4})
    assert fetch_page.traits_for({}) is fetch_page.traits


def test_the_version_follows_the_meaning_and_not_the_words() -> None:
    """A better docstring must not cost anybody their checkpoint or their approval."""

    def version(fn: Function, **options: object) -> str:
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

    assert version(before) == version(after)
    known = [version(fn) for fn in (before, wider, other_default, more, described, titled)]
    known += [version(before, approve=True), version(before, approve=judge)]
    known += [version(before, read_only=True), tool(before).traits.version]
    assert len(set(known)) == len(known)


def test_models_are_offered_a_place_to_say_why() -> None:
    """Timeline and report show it; the tool itself never sees it."""
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
def test_the_reason_is_taken_out_of_the_arguments(args: Json, why: str, rest: Json) -> None:
    """Whatever a model makes of it, the arguments are without it."""
    before = repr(args)
    assert split_why(args) == (why, rest)
    assert repr(args) == before


# ── where a tool can be found again ──────────────────────────────────────────


def test_what_stands_in_a_module_has_a_place() -> None:
    """Another process imports the module and finds it."""
    here = __name__
    assert find_import_path(plain) == f"{here}:plain"
    assert find_import_path(fetch_page) == f"{here}:fetch_page"
    assert find_import_path(fetch_page.fn) == f"{here}:fetch_page"
    assert find_import_path(tool(plain, name="other")) == f"{here}:plain"
    assert find_import_path(Desk.static) == f"{here}:Desk.static"
    assert find_import_path(Desk.of_class) == f"{here}:Desk.of_class"
    assert find_import_path(Desk.inner) == f"{here}:Desk.inner"


def test_what_exists_only_in_memory_has_none() -> None:
    """Nobody else could find it, so it has to run here."""

    def closure() -> None: ...

    renamed = partial(plain, 1)
    for fn in (closure, lambda: None, Desk().method, renamed):
        assert find_import_path(fn) is None
    gone = tool(closure)
    gone.fn.__module__ = "no_such_module"
    assert find_import_path(gone) is None


@pytest.mark.parametrize("file", [None, "script.py"])
def test_the_main_script_is_a_place_and_a_prompt_is_not(
    monkeypatch: pytest.MonkeyPatch, file: str | None
) -> None:
    """What was typed can not be loaded again."""

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
        (plain, {"undo": take_back, "read_only": True}, "plain: .*Drop one"),
        (plain, {"undo_unknown": False}, "Add undo="),
        (plain, {"four_eyes": True}, "Add approve=True"),
        (_async, {"in_process": False}, "use a plain function"),
        (_generator, {}, "Return a list"),
        (_async_generator, {}, "Return a list"),
        (plain, {"undo": look}, r"undo must be callable as undo\(call, args, result\)"),
        (plain, {"release": look}, r"release must be callable as"),
        (plain, {"check": take_back}, r"check must be callable as check\(call, args\)"),
        (plain, {"check": "look"}, "got 'look'"),
        (plain, {"undo": _yields}, "undo must not be a generator"),
        (plain, {"release": _yields_later}, "release must not be a generator"),
        (plain, {"approve": "later"}, "approve must be True, False"),
        (plain, {"approve": _async_judge}, "must not be async"),
        (plain, {"approve": take_back}, r"approve\(args\)"),
        (plain, {"timeout": 30}, r"timedelta\(seconds=30\)"),
        (plain, {"timeout": timedelta(0)}, r"timedelta\(seconds=30\)"),
        (plain, {"name": "book a seat"}, "tool book a seat: .*name=…"),
        (plain, {"name": "n" * 65}, "1 to 64"),
        (lambda: None, {}, "tool <lambda>: .*name=…"),
        (fetch_page, {}, "It is a tool already"),
        (partial(plain, 1), {}, "wrap it in one"),
        (Desk, {}, "tool Desk must be a function"),
        (3, {}, "tool 3 must be a function"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused_with_advice(
    fn: Function, options: dict[str, object], advice: str
) -> None:
    """At import, where the author sees it, and not in the middle of somebody's run."""
    with pytest.raises(Misconfigured, match=advice):
        tool(fn, **options)  # type: ignore[call-overload]  # wrong on purpose


def test_not_done_says_its_name() -> None:
    """It turns up in logs of checks."""
    assert repr(NOT_DONE) == "NOT_DONE"
