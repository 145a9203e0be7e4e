"""The public door to the stop conditions."""

import msgspec
import pytest

from midrun import stops
from midrun.core.stops import Custom as Stored
from midrun.core.stops import Stop
from midrun.errors import Misconfigured
from midrun.stops import Custom, MaxCost, MaxSteps, resolve_custom


def enough(view: object) -> bool:
    """Say so."""
    return bool(view)


class Rules:
    @staticmethod
    def enough(view: object) -> bool:
        return bool(view)

    def bound(self, view: object) -> bool:
        return bool(view)


@pytest.mark.parametrize("fn", [enough, Rules.enough])
def test_a_custom_condition_is_kept_by_name_and_found_again(fn: stops.Condition) -> None:
    """It survives a restart, which a function does not."""
    stop = MaxSteps(3) | Custom(fn, then="complete") & ~MaxCost(usd=1)
    stored = msgspec.json.decode(msgspec.json.encode(stop), type=Stop)
    assert stored == stop
    made = Custom(fn)
    assert made == Stored(f"{__name__}:{fn.__qualname__}")
    assert resolve_custom(made.fn) is fn


def test_a_function_that_cannot_be_found_again_is_refused() -> None:
    """Here, and not when the run is resumed elsewhere."""

    def closure(view: object) -> bool:
        return bool(view)

    for fn in (closure, lambda _: True, Rules().bound, print):
        with pytest.raises(Misconfigured, match="move it to the top of a module"):
            Custom(fn)


@pytest.mark.parametrize(
    "name", ["no_such_module:fn", "json:no_such", "json", "", ":x", "os:abort", "json:decoder"]
)
def test_a_name_that_means_nothing_here_is_refused(name: str) -> None:
    """A journal may come from a machine with other code on it."""
    with pytest.raises(Misconfigured, match="stop "):
        resolve_custom(name)
