"""Attempts: I41."""

from midrun.core.attempts import DEATHS, DENIALS, DIED
from midrun.core.entries import (
    CallAborted,
    CallSettled,
    CallUnknown,
    Entry,
    LeaseTaken,
    ProgressSaved,
    RunFailed,
    RunResumed,
    StoodDown,
)
from midrun.core.ids import Epoch
from midrun.core.values import Traits, Use
from tests.verify.books import BEGUN, C2, LOOK, broken, start, step

PAY = Use(tool="pay", args={}, traits=Traits(check=True))
NOT_DONE = CallSettled(call=C2, happened=False, by="check:pay")
REST = RunFailed(error="look: 3 processes ended", code=DIED)


def looking(*between: Entry, times: int = DEATHS) -> tuple[Entry, ...]:
    """Return a run in which so many drivers died under a call, and this came before each."""
    entries: tuple[Entry, ...] = (*BEGUN, *step(LOOK))
    for number in range(1, times + 1):
        entries += (start(C2, attempt=number), *between)
        entries += (LeaseTaken(epoch=Epoch(number + 1)), CallUnknown(call=C2))
    return entries


def test_a_call_that_has_cost_three_drivers_is_not_started_again() -> None:
    """I41: by nobody but a person."""
    again = start(C2, attempt=DEATHS + 1)
    assert broken(*looking()) == []
    assert broken(*looking(), REST) == []
    assert broken(*looking(), again) == ["I41"]
    resumed = (RunResumed(by="ann"), LeaseTaken(epoch=Epoch(DEATHS + 2)))
    assert broken(*looking(), REST, *resumed, again) == []


def test_only_what_gets_further_may_go_on() -> None:
    """I41: the same progress once more is none."""
    entries: tuple[Entry, ...] = (*BEGUN, *step(LOOK))
    for page in range(1, DEATHS + 2):
        entries += (start(C2, attempt=page), ProgressSaved(call=C2, progress=page))
        entries += (LeaseTaken(epoch=Epoch(page + 1)), CallUnknown(call=C2))
    assert broken(*entries, start(C2, attempt=DEATHS + 2)) == []
    same = looking(ProgressSaved(call=C2, progress=6))
    assert broken(*same, start(C2, attempt=DEATHS + 1)) == ["I41"]


def test_a_run_does_not_rest_for_deaths_that_were_none() -> None:
    """I41: a drain is not one, and neither are two."""
    assert broken(*looking(times=DEATHS - 1), REST) == ["I41"]
    drained: tuple[Entry, ...] = (*BEGUN, *step(LOOK))
    for number in range(1, DEATHS + 1):
        drained += (start(C2, attempt=number), CallAborted(call=C2), StoodDown())
        drained += (LeaseTaken(epoch=Epoch(number + 1)),)
    assert broken(*drained) == []
    assert broken(*drained, REST) == ["I41"]


def test_what_is_not_done_again_and_again_is_left() -> None:
    """I41: after so many attempts the agent hears of it."""
    entries: tuple[Entry, ...] = (*BEGUN, *step(PAY))
    for number in range(1, DENIALS + 1):
        entries += (start(C2, attempt=number), CallUnknown(call=C2), NOT_DONE)
    assert broken(*entries) == []
    assert broken(*entries, start(C2, attempt=DENIALS + 1)) == ["I41"]
