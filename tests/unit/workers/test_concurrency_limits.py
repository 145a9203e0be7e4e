"""Limits on the number of runs that are driven at once."""

import pytest

from midrun.core.controls import Pause, Withdraw
from midrun.core.run_head import head_of
from midrun.errors import NoRoom
from midrun.testing.scenario import BEGUN, given
from midrun.workers.concurrency_limits import Fleet, Room


def test_a_run_that_is_limited_again_before_its_lease_is_taken_waits() -> None:
    """A run that pauses is exempt from limits. The pause may be withdrawn before the append."""
    limiter = Room(Fleet(limits={"agent:clerk": 1}))
    working = given(*BEGUN).starts("c1")
    pausing = working.when(Pause())
    limiter.enter(pausing.state.run, head_of(pausing.state))
    assert limiter.limits_on(pausing.state) == {}
    limiter.fill(NoRoom("run_2", "agent:clerk", 1))
    with pytest.raises(NoRoom) as refused:
        limiter.limits_on(pausing.when(Withdraw(seq=pausing.state.seq)).state)
    assert not limiter.fill(refused.value)
