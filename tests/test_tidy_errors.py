"""Rules for `midrun.errors`: one tree, stable codes, and every error can be pickled."""

import enum
import inspect
import pickle  # noqa: TID251 - to show that errors survive it; nothing stored is read
import re
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta

import pytest

import midrun.errors as errors  # noqa: PLR0402 - mypy loses submodules of a package without code

PLAIN: typing.Final[Mapping[object, object]] = {
    bool: True,
    bytes: b"bytes",
    datetime: datetime(2026, 11, 15, tzinfo=UTC),
    float: 1.5,
    int: 7,
    object: "anything",
    str: "text",
    timedelta: timedelta(seconds=3),
    type(None): None,
}


def _descendants(cls: type[errors.MidrunError]) -> Iterator[type[errors.MidrunError]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from _descendants(sub)


ALL: typing.Final = sorted(
    {e for e in _descendants(errors.MidrunError) if e.__module__.startswith(errors.__name__)},
    key=lambda e: e.__name__,
)
LEAVES: typing.Final = [e for e in ALL if not set(e.__subclasses__()) & set(ALL)]


def sample(hint: object) -> object:
    """Return a sample value for an annotation; fail if the annotation is not known here."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, typing.NewType):
        return sample(hint.__supertype__)
    if hint in PLAIN:
        return PLAIN[hint]
    if origin is typing.Literal:
        return args[0]
    if origin in {types.UnionType, typing.Union}:
        return sample(args[0])
    if origin is tuple:
        return tuple(sample(arg) for arg in args if arg is not ...)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return next(iter(hint))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {sample(args[0]): sample(args[1])}
    if isinstance(origin, type) and issubclass(origin, Collection):
        return (sample(args[0]),)
    pytest.fail(f"no sample for {hint!r}: add one to PLAIN or sample() in this file")


def build(error: type[errors.MidrunError]) -> errors.MidrunError:
    """Return an instance with a sample for every field."""
    fields = inspect.signature(error).parameters.values()
    return error(*(sample(field.annotation) for field in fields))


@pytest.mark.parametrize("error", LEAVES)
def test_an_error_comes_out_of_a_pickle_as_it_went_in(error: type[errors.MidrunError]) -> None:
    """Errors are passed between processes; one that cannot be unpickled would be lost there."""
    before = build(error)
    after = pickle.loads(pickle.dumps(before))  # noqa: S301 - made in the line itself
    assert type(after) is error
    assert (after.args, vars(after), str(after)) == (before.args, vars(before), str(before))


@pytest.mark.parametrize("error", LEAVES)
def test_an_error_has_its_arguments_as_fields(error: type[errors.MidrunError]) -> None:
    """Callers branch on fields. They should not have to parse the message."""
    built = build(error)
    assert list(vars(built)) == list(inspect.signature(error).parameters)
    assert str(built).strip(), "the message of the error is empty"


def test_codes_are_unique_and_well_formed() -> None:
    """Clients in other languages identify an error by its code."""
    codes = [leaf.code for leaf in LEAVES]
    assert sorted(set(codes)) == sorted(codes)
    assert [code for code in codes if not re.fullmatch(r"[a-z]+(_[a-z]+)*", code)] == []


def test_the_tree_at_the_top_names_every_error() -> None:
    """The docstring of `errors` lists all errors, so that users know which ones to catch."""
    drawn = set(re.findall(r"\w+", errors.__doc__ or ""))
    assert [error.__name__ for error in ALL if error.__name__ not in drawn] == []


@pytest.mark.parametrize("error", ALL)
def test_an_error_has_a_docstring_of_its_own(error: type[errors.MidrunError]) -> None:
    """Every error has a docstring of its own; otherwise `help` shows that of the base class."""
    assert vars(error).get("__doc__")
