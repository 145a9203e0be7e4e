"""Limits on the number of runs that are driven at once."""

import pytest

from midrun.core.controls import Pause, Withdraw
from midrun.core.run_head import build_head
from midrun.errors import NoRoom
from midrun.testing.scenario import LEASED_RUN, given
from midrun.workers.concurrency_limits import ConcurrencyLimiter, Fleet


def test_a_run_that_is_limited_again_before_its_lease_is_taken_waits() -> None:
    """A run that pauses is exempt from limits. The pause may be withdrawn before the append."""
    limiter = ConcurrencyLimiter(Fleet(limits={"agent:clerk": 1}))
    working = given(*LEASED_RUN).starts("c1")
    pausing = working.when(Pause())
    limiter.add_run(pausing.state.run, build_head(pausing.state))
    assert limiter.limits_for_lease(pausing.state) == {}
    limiter.limit_reached(NoRoom("run_2", "agent:clerk", 1))
    with pytest.raises(NoRoom) as refused:
        limiter.limits_for_lease(pausing.when(Withdraw(seq=pausing.state.seq)).state)
    assert not limiter.limit_reached(refused.value)
