"""Checks of caps: I37."""

import pytest
from msgspec.structs import replace

from midrun.core.entries import (
    CallAborted,
    CallDone,
    CallFailed,
    CallStarted,
    CallUnknown,
    CapRaised,
    CapReached,
    Entry,
    RunPaused,
    RunResumed,
)
from midrun.core.ids import CallId, Seq
from midrun.core.stops import (
    MaxCost,
    MaxSteps,
    MaxTokens,
    MaxToolCalls,
    Repeats,
    Stop,
    TextMention,
)
from midrun.core.values import Reply, Spend
from tests.unit.verify.journal_builder import (
    C1,
    C2,
    C3,
    C4,
    LEASE,
    LEASE_2,
    MAIL,
    STARTED,
    find_violations,
    make_start,
    make_step,
)


def start_run(stop: Stop) -> tuple[Entry, ...]:
    """Return a run with this stop condition."""
    return (replace(STARTED, stop=stop), LEASE)


def start_model(call: CallId, tokens: int = 0, cost: int = 0) -> CallStarted:
    """Return the start of a model call with this reservation."""
    spend = Spend(tokens=tokens, cost=cost)
    return CallStarted(call=call, call_kind="model", attempt=1, seen=Seq(-1), reserved=spend)


def end_model(call: CallId, tokens: int) -> CallDone:
    """Return the end of a model call that spent this many tokens."""
    return CallDone(call=call, reply=Reply(text="So."), spent=Spend(tokens=tokens))


def test_a_reservation_must_fit_below_the_cap() -> None:
    """I37: a call starts only if its highest possible cost is allowed."""
    assert find_violations(*start_run(MaxTokens(100)), start_model(C1, tokens=100)) == []
    assert find_violations(*start_run(MaxTokens(100)), start_model(C1, tokens=101)) == ["I37"]
    assert find_violations(*start_run(MaxCost(usd=0.5)), start_model(C1, cost=500_000)) == []
    assert find_violations(*start_run(MaxCost(usd=0.5)), start_model(C1, cost=500_001)) == [
        "I37"
    ]


def test_the_amount_spent_replaces_the_reservation() -> None:
    """I37."""
    cheap = (
        *start_run(MaxTokens(100)),
        start_model(C1, tokens=60),
        end_model(C1, 10),
    )
    assert find_violations(*cheap, start_model(C2, tokens=90)) == []
    expensive = (
        *start_run(MaxTokens(100)),
        start_model(C1, tokens=60),
        end_model(C1, 130),
    )
    assert find_violations(*expensive) == []
    assert find_violations(*expensive, start_model(C2, tokens=1)) == ["I37"]


@pytest.mark.parametrize("ending", [CallAborted(call=C1), CallFailed(call=C1, error="529")])
def test_a_call_without_a_reported_amount_counts_its_reservation(ending: Entry) -> None:
    """I37: a provider may bill a stream that was closed."""
    ended = (*start_run(MaxTokens(100)), start_model(C1, tokens=60), ending)
    assert find_violations(*ended, start_model(C2, tokens=40)) == []
    assert find_violations(*ended, start_model(C2, tokens=41)) == ["I37"]


def test_an_unknown_call_keeps_its_reservation() -> None:
    """I37: the next attempt needs another one."""
    lost = (
        *start_run(MaxTokens(100)),
        start_model(C1, tokens=60),
        LEASE_2,
    )
    again = replace(start_model(C1, tokens=40), attempt=2)
    assert find_violations(*lost, CallUnknown(call=C1), again) == []
    too_much = replace(start_model(C1, tokens=41), attempt=2)
    assert find_violations(*lost, CallUnknown(call=C1), too_much) == ["I37"]


def test_a_raised_cap_allows_a_higher_reservation() -> None:
    """I37."""
    full = (
        *start_run(MaxTokens(100)),
        start_model(C1, tokens=100),
        end_model(C1, 100),
    )
    raised = CapRaised(caps={"tokens": 150})
    assert find_violations(*full, raised, start_model(C2, tokens=50)) == []
    assert find_violations(*full, raised, start_model(C2, tokens=51)) == ["I37"]


def test_no_step_starts_beyond_the_cap_on_steps() -> None:
    """I37: a cap pauses the run before the step."""
    one = (
        *start_run(MaxSteps(1) | MaxTokens(1000)),
        start_model(C1),
        end_model(C1, 1),
    )
    assert find_violations(*one) == []
    assert find_violations(*one, start_model(C2)) == ["I37"]
    assert find_violations(*one, CapRaised(caps={"steps": 2}), start_model(C2)) == []


def test_no_step_starts_after_the_last_tool_call_that_is_allowed() -> None:
    """I37."""
    one = (
        *start_run(MaxToolCalls(1)),
        *make_step(MAIL),
        make_start(C2),
        CallDone(call=C2),
    )
    assert find_violations(*one) == []
    assert find_violations(*one, start_model(C3)) == ["I37"]


def test_no_call_of_a_reply_starts_beyond_the_cap_on_calls() -> None:
    """I37."""
    two = (*start_run(MaxToolCalls(1)), *make_step(MAIL, MAIL), make_start(C2))
    assert find_violations(*two) == []
    assert find_violations(*two, make_start(C3)) == ["I37"]
    assert find_violations(*two, CapRaised(caps={"tool_calls": 2}), make_start(C3)) == []


def test_no_call_is_repeated_more_often_than_its_cap_allows() -> None:
    """I37: a resume resets the count."""
    twice = (
        *start_run(Repeats(2)),
        *make_step(MAIL, MAIL, MAIL),
        make_start(C2),
        make_start(C3),
    )
    assert find_violations(*twice) == []
    assert find_violations(*twice, make_start(C4)) == ["I37"]
    ended = (CallDone(call=C2), CallDone(call=C3), CapReached(stop="twice"), RunPaused())
    resumed = (*ended, RunResumed(by="ann"), LEASE_2)
    assert find_violations(*twice, *resumed, make_start(C4)) == []


def test_a_cap_inside_a_combined_condition_is_no_bound() -> None:
    """Inside `&` and `~` a cap alone does not stop the run."""
    combined = start_run(MaxTokens(100) & TextMention("almost"))
    assert find_violations(*combined, start_model(C1, tokens=500)) == []
