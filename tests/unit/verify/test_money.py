"""Caps: I37."""

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
    LeaseTaken,
    RunPaused,
    RunResumed,
)
from midrun.core.ids import CallId, Epoch, Seq
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
from tests.unit.verify.books import C1, C2, C3, MAIL, RUN, TAKEN, broken, start, step


def begun(stop: Stop) -> tuple[Entry, ...]:
    """Return a run with this stop condition."""
    return (replace(RUN, stop=stop), TAKEN)


def think(call: CallId, tokens: int = 0, cost: int = 0) -> CallStarted:
    """Return a model call that sets this much aside."""
    spend = Spend(tokens=tokens, cost=cost)
    return CallStarted(call=call, call_kind="model", attempt=1, seen=Seq(-1), reserved=spend)


def spent(call: CallId, tokens: int) -> CallDone:
    """Return the end of a model call that cost this much."""
    return CallDone(call=call, reply=Reply(text="So."), spent=Spend(tokens=tokens))


def test_what_is_set_aside_stays_within_the_cap() -> None:
    """I37: a call leaves only if the worst it can cost is still allowed."""
    assert broken(*begun(MaxTokens(100)), think(C1, tokens=100)) == []
    assert broken(*begun(MaxTokens(100)), think(C1, tokens=101)) == ["I37"]
    assert broken(*begun(MaxCost(usd=0.5)), think(C1, cost=500_000)) == []
    assert broken(*begun(MaxCost(usd=0.5)), think(C1, cost=500_001)) == ["I37"]


def test_what_was_spent_counts() -> None:
    """I37: less than was set aside makes room, more takes it."""
    cheap = (*begun(MaxTokens(100)), think(C1, tokens=60), spent(C1, 10))
    assert broken(*cheap, think(C2, tokens=90)) == []
    dear = (*begun(MaxTokens(100)), think(C1, tokens=60), spent(C1, 130))
    assert broken(*dear) == []
    assert broken(*dear, think(C2, tokens=1)) == ["I37"]


@pytest.mark.parametrize("ending", [CallAborted(call=C1), CallFailed(call=C1, error="529")])
def test_a_call_that_does_not_say_what_it_cost_cost_what_was_set_aside(ending: Entry) -> None:
    """I37: a stream that was closed may well be billed."""
    ended = (*begun(MaxTokens(100)), think(C1, tokens=60), ending)
    assert broken(*ended, think(C2, tokens=40)) == []
    assert broken(*ended, think(C2, tokens=41)) == ["I37"]


def test_an_unknown_call_keeps_what_was_set_aside_for_it() -> None:
    """I37: and so does its next attempt."""
    lost = (*begun(MaxTokens(100)), think(C1, tokens=60), LeaseTaken(epoch=Epoch(2)))
    again = replace(think(C1, tokens=40), attempt=2)
    assert broken(*lost, CallUnknown(call=C1), again) == []
    dearer = replace(think(C1, tokens=41), attempt=2)
    assert broken(*lost, CallUnknown(call=C1), dearer) == ["I37"]


def test_a_raised_cap_makes_room() -> None:
    """I37: that is what raising it is for."""
    full = (*begun(MaxTokens(100)), think(C1, tokens=100), spent(C1, 100))
    raised = CapRaised(caps={"tokens": 150})
    assert broken(*full, raised, think(C2, tokens=50)) == []
    assert broken(*full, raised, think(C2, tokens=51)) == ["I37"]


def test_no_step_begins_beyond_the_cap_on_steps() -> None:
    """I37: caps pause before the step, not after it."""
    one = (*begun(MaxSteps(1) | MaxTokens(1000)), think(C1), spent(C1, 1))
    assert broken(*one) == []
    assert broken(*one, think(C2)) == ["I37"]
    assert broken(*one, CapRaised(caps={"steps": 2}), think(C2)) == []


def test_no_step_begins_after_the_last_tool_call_that_is_allowed() -> None:
    """I37: the cap stands before the next step."""
    one = (*begun(MaxToolCalls(1)), *step(MAIL), start(C2), CallDone(call=C2))
    assert broken(*one) == []
    assert broken(*one, think(C3)) == ["I37"]


def test_no_call_of_a_reply_is_made_beyond_the_cap_on_calls() -> None:
    """I37: the cap stands before the next call of the same reply, too."""
    two = (*begun(MaxToolCalls(1)), *step(MAIL, MAIL), start(C2))
    assert broken(*two) == []
    assert broken(*two, start(C3)) == ["I37"]
    assert broken(*two, CapRaised(caps={"tool_calls": 2}), start(C3)) == []


def test_the_same_call_is_not_made_more_often_than_its_cap_says() -> None:
    """I37: a person who resumes the run lets it repeat itself anew."""
    twice = (*begun(Repeats(2)), *step(MAIL, MAIL, MAIL), start(C2), start(C3))
    assert broken(*twice) == []
    assert broken(*twice, start(CallId("c4"))) == ["I37"]
    ended = (CallDone(call=C2), CallDone(call=C3), CapReached(stop="twice"), RunPaused())
    resumed = (*ended, RunResumed(by="ann"), LeaseTaken(epoch=Epoch(2)))
    assert broken(*twice, *resumed, start(CallId("c4"))) == []


def test_a_cap_that_stops_nothing_by_itself_is_no_bound() -> None:
    """Inside `&` and `~` a cap is half of a condition."""
    half = begun(MaxTokens(100) & TextMention("almost"))
    assert broken(*half, think(C1, tokens=500)) == []
