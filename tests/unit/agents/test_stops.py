"""The public module `midrun.stops`: custom conditions are stored by name."""

import msgspec
import pytest

from midrun import stops
from midrun.core.stops import Custom as StoredCustom
from midrun.core.stops import Stop
from midrun.errors import Misconfigured
from midrun.stops import Custom, MaxCost, MaxSteps, resolve_custom


def has_enough(view: object) -> bool:
    return bool(view)


class Rules:
    @staticmethod
    def has_enough(view: object) -> bool:
        return bool(view)

    def bound(self, view: object) -> bool:
        return bool(view)


@pytest.mark.parametrize("fn", [has_enough, Rules.has_enough])
def test_a_custom_condition_is_stored_by_name_and_resolved_again(fn: stops.Condition) -> None:
    """A name survives a restart of the process, a function does not."""
    stop = MaxSteps(3) | Custom(fn, then="complete") & ~MaxCost(usd=1)
    stored = msgspec.json.decode(msgspec.json.encode(stop), type=Stop)
    assert stored == stop
    custom = Custom(fn)
    assert custom == StoredCustom(f"{__name__}:{fn.__qualname__}")
    assert resolve_custom(custom.fn) is fn


def test_a_function_that_cannot_be_imported_by_name_is_refused() -> None:
    """The error comes at the declaration, not when the run is resumed on another machine."""

    def closure(view: object) -> bool:
        return bool(view)

    for fn in (closure, lambda _: True, Rules().bound, print):
        with pytest.raises(Misconfigured, match="move it to the top of a module"):
            Custom(fn)


@pytest.mark.parametrize(
    "name", ["no_such_module:fn", "json:no_such", "json", "", ":x", "os:abort", "json:decoder"]
)
def test_a_name_that_cannot_be_resolved_is_refused(name: str) -> None:
    """A journal may come from a machine with other code."""
    with pytest.raises(Misconfigured, match="stop "):
        resolve_custom(name)
