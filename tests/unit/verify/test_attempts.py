"""Attempts: I41."""

from midrun.core.entries import (
    CallAborted,
    CallSettled,
    CallUnknown,
    Entry,
    LeaseTaken,
    RunFailed,
    RunResumed,
    StoodDown,
)
from midrun.core.ids import Epoch
from midrun.core.retries import CHECK_DENIALS_MAX, WORKER_DEATHS_MAX, WORKERS_DIED_CODE
from midrun.core.values import Traits, Use
from tests.unit.verify.books import BEGUN, C2, LOOK, broken, start, step

PAY = Use(tool="pay", args={}, traits=Traits(check=True))
NOT_DONE = CallSettled(call=C2, happened=False, by="check:pay")
REST = RunFailed(error="look: 3 processes ended", code=WORKERS_DIED_CODE)


def looking(*between: Entry, times: int = WORKER_DEATHS_MAX) -> tuple[Entry, ...]:
    """Return a run in which so many drivers died under a call, and this came before each."""
    entries: tuple[Entry, ...] = (*BEGUN, *step(LOOK))
    for number in range(1, times + 1):
        entries += (start(C2, attempt=number), *between)
        entries += (LeaseTaken(epoch=Epoch(number + 1)), CallUnknown(call=C2))
    return entries


def test_a_run_rests_for_three_drivers_that_died() -> None:
    """I41: and goes on when a person says so."""
    assert broken(*looking(), REST) == []
    resumed = (RunResumed(by="ann"), LeaseTaken(epoch=Epoch(WORKER_DEATHS_MAX + 2)))
    assert broken(*looking(), REST, *resumed, start(C2, attempt=WORKER_DEATHS_MAX + 1)) == []


def test_a_run_does_not_rest_for_deaths_that_were_none() -> None:
    """I41: a drain is not one, and neither are two."""
    assert broken(*looking(times=WORKER_DEATHS_MAX - 1), REST) == ["I41"]
    drained: tuple[Entry, ...] = (*BEGUN, *step(LOOK))
    for number in range(1, WORKER_DEATHS_MAX + 1):
        drained += (start(C2, attempt=number), CallAborted(call=C2), StoodDown())
        drained += (LeaseTaken(epoch=Epoch(number + 1)),)
    assert broken(*drained) == []
    assert broken(*drained, REST) == ["I41"]


def test_a_journal_of_before_is_as_true_as_ever() -> None:
    """It had calls made again for as long as it took; that is what happened."""
    assert (
        broken(
            *looking(times=2 * WORKER_DEATHS_MAX), start(C2, attempt=2 * WORKER_DEATHS_MAX + 1)
        )
        == []
    )
    entries: tuple[Entry, ...] = (*BEGUN, *step(PAY))
    for number in range(1, CHECK_DENIALS_MAX + 1):
        entries += (start(C2, attempt=number), CallUnknown(call=C2), NOT_DONE)
    assert broken(*entries, start(C2, attempt=CHECK_DENIALS_MAX + 1)) == []
