"""Stop conditions and caps: counted, reserved, reached and raised."""

import pytest
from msgspec.structs import replace

from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core.entries import (
    CallAborted,
    CallDone,
    CapReached,
    RunStarted,
)
from midrun.core.ids import MICROS_MAX, CallId, Epoch
from midrun.core.scheduler import (
    EvaluateStopCondition,
    RunProgram,
    find_wake_time,
)
from midrun.core.state import CallStage
from midrun.core.stops import (
    Custom,
    MaxCost,
    MaxSteps,
    MaxTime,
    MaxTokens,
    MaxToolCalls,
    Repeats,
    Stop,
    TextMention,
    has_repeats,
    measure_caps,
)
from midrun.core.values import Actor, Effect, Phase, RequestedCall, Spend, Traits
from midrun.testing.scenario import LEASED_RUN, Scenario, given
from tests.unit.core.scenario_steps import end_call, leased_run

E1 = Epoch(1)
C1, C2 = CallId("c1"), CallId("c2")
BOB = Actor(name="bob", role="operator")
SEARCH = RequestedCall(tool="search", args={"q": "x"}, traits=Traits(effect=Effect.READ))


def start_run(stop: Stop) -> Scenario:
    """Return a run with a lease and this stop condition."""
    first = LEASED_RUN[0]
    assert isinstance(first, RunStarted)
    return given(replace(first, stop=stop), LEASED_RUN[1])


def search_once(run: Scenario, query: str) -> Scenario:
    """Let the agent make one step with one search."""
    use = RequestedCall(tool="search", args={"q": query}, traits=Traits(effect=Effect.READ))
    call = CallId(f"c{len(run.state.calls) + 2}")
    run = run.replies(use).starts(call)
    return end_call(run, CallDone(call=call)).advances()


def test_a_run_at_a_cap_is_paused_and_names_the_cap() -> None:
    """Two steps are allowed; the third one needs a person."""
    run = search_once(search_once(start_run(MaxSteps(2)), "a"), "b").then(phase=Phase.PAUSED)
    reached = [e for e in run.entries if isinstance(e, CapReached)]
    assert [(e.stop, e.cap) for e in reached] == [("at most 2 steps", "steps")]


def test_resume_at_a_cap_is_refused_unless_the_cap_is_raised() -> None:
    run = search_once(start_run(MaxSteps(1)), "a").when(c.Resume()).then(refused="cap_reached")
    run.when(c.Redirect(text="hurry")).then(refused="cap_reached")
    run.when(c.Resume(caps={"steps": 5})).then(phase=Phase.QUEUED)
    run = run.when(c.RaiseCap(caps={"steps": 3})).then(phase=Phase.PAUSED)
    run.when(c.Resume()).then(phase=Phase.QUEUED)
    run.when(c.Cancel()).then(phase=Phase.CANCELLED)


@pytest.mark.parametrize(
    ("caps", "refused"),
    [({"steps": 1}, "cap_not_raised"), ({"moons": 9}, "no_such_cap"), ({}, "no_such_cap")],
)
def test_only_existing_caps_can_be_changed_and_only_raised(
    caps: dict[str, int], refused: str
) -> None:
    start_run(MaxSteps(1)).when(c.RaiseCap(caps=caps)).then(refused=refused)


def test_a_call_that_could_overrun_the_cap_is_not_started() -> None:
    """Amounts spent and amounts reserved for calls together must fit below the cap."""
    run = start_run(MaxTokens(100)).starts("c1", reserve=Spend(tokens=60))
    outcome = CallDone(call=C1, spent=Spend(tokens=50))
    run = run.after(v.CloseCall(epoch=E1, outcome=outcome))
    run = run.tries("c2", reserve=Spend(tokens=60)).then(phase=Phase.PAUSED)
    assert run.state.meter.committed_spend == Spend(tokens=50)


def test_an_aborted_call_counts_its_reservation_and_an_unknown_call_keeps_it() -> None:
    """The provider may bill both."""
    run = start_run(MaxCost(usd=1)).starts("c1", reserve=Spend(cost=300_000))
    aborted = run.after(v.CloseCall(epoch=E1, outcome=CallAborted(call=C1)))
    assert aborted.state.meter.spent == Spend(cost=300_000)
    orphaned = run.after(v.TakeLease())
    assert orphaned.state.meter.committed_spend == Spend(cost=300_000)
    again = orphaned.starts("c1", reserve=Spend(cost=300_000))
    assert again.state.meter.committed_spend == Spend(cost=600_000)


def test_the_same_call_three_times_in_a_row_pauses_the_run() -> None:
    run = search_once(search_once(search_once(start_run(Repeats(3)), "x"), "x"), "x")
    run.then(phase=Phase.PAUSED)
    run.when(c.Resume(instruction="try something else")).then(phase=Phase.QUEUED)


def test_a_cap_on_calls_stops_the_calls_of_one_reply() -> None:
    """The call in flight finishes. The others are named, and made after a raise."""
    run = start_run(MaxToolCalls(1)).replies(SEARCH, SEARCH, SEARCH).starts("c2")
    run = run.tries("c3").then(phase=Phase.PAUSING)
    assert [call.stage for call in list(run.state.calls)[2:]] == [CallStage.PROPOSED] * 2
    run = run.after(v.CloseCall(epoch=E1, outcome=CallDone(call=C2))).advances()
    run.then(phase=Phase.PAUSED).when(c.Resume()).then(refused="cap_reached")
    run = run.when(c.Resume(caps={"tool_calls": 2})).after(v.TakeLease()).starts("c3")
    run.tries("c4").then(phase=Phase.PAUSING)


def test_a_second_attempt_does_not_count_against_the_cap_on_calls() -> None:
    """After a crash the call is made again, although the cap is reached."""
    run = start_run(MaxToolCalls(1)).replies(SEARCH).starts("c2").after(v.TakeLease())
    run.starts("c2").then(phase=Phase.RUNNING)


def test_a_person_who_took_over_may_make_a_call_beyond_the_cap() -> None:
    """The agent meets the cap again after the hand-back."""
    run = (
        start_run(MaxToolCalls(1)).replies(SEARCH, SEARCH).starts("c2").when(c.TakeOver(by=BOB))
    )
    run = run.after(v.CloseCall(epoch=E1, outcome=CallDone(call=C2))).advances()
    run = run.when(c.UseTool(by=BOB, use=SEARCH)).after(v.TakeLease()).starts("c4")
    run = (
        end_call(run, CallDone(call=CallId("c4")))
        .advances()
        .when(c.HandBack(by=BOB))
        .after(v.TakeLease())
    )
    run.tries("c3").then(phase=Phase.PAUSED)


@pytest.mark.parametrize(
    ("history", "n", "expected"),
    [
        ("aaa", 3, True),
        ("abab", 2, True),
        ("abcabc", 2, True),
        ("abcdabcd", 2, True),
        ("abcdeabcde", 2, False),
        ("aab", 2, False),
        ("ababa", 3, False),
        ("", 1, False),
    ],
)
def test_cycles_of_up_to_four_calls_are_repetition(
    history: str, n: int, expected: bool
) -> None:
    assert has_repeats(tuple(history), n) is expected


def test_the_time_cap_counts_only_while_a_worker_drives_the_run() -> None:
    run = start_run(MaxTime(minutes=1)).starts("c1").later(30)
    run = run.after(v.CloseCall(epoch=E1, outcome=CallDone(call=C1))).when(c.Pause()).advances()
    run = run.later(86_400).when(c.Resume()).after(v.TakeLease()).starts("c2")
    assert find_wake_time(run.state) == run.now + 30_000_000
    run.later(29).when(v.Wake()).then(already="nothing_due")
    run.later(31).when(v.Wake()).then(phase=Phase.PAUSING)


def test_a_text_mention_can_complete_the_run() -> None:
    """The last text becomes the output."""
    use = RequestedCall(tool="log", args={}, traits=Traits(effect=Effect.READ))
    run = start_run(TextMention("all done", then="complete")).replies(use, text="ALL DONE.")
    run = run.starts("c2").after(v.CloseCall(epoch=E1, outcome=CallDone(call=C2))).advances()
    run.then(phase=Phase.COMPLETED)
    assert run.state.output == "ALL DONE."


def test_a_custom_condition_is_evaluated_before_every_step_and_journaled() -> None:
    """The driver evaluates it; the core knows only its name."""
    run = start_run(Custom("shop:too_expensive")).then(
        effects=(EvaluateStopCondition(name="shop:too_expensive"),)
    )
    verdict = v.RecordStopVerdict(epoch=E1, name="shop:too_expensive", met=False)
    run = run.after(verdict).then(starts=(C1,))
    run = search_once(run, "x").after(replace(verdict, met=True))
    run.advances().then(phase=Phase.PAUSED).when(c.Resume()).then(phase=Phase.QUEUED)


def test_conditions_can_be_combined_and_have_a_text() -> None:
    stop = MaxSteps(40) | MaxCost(usd=2) & ~TextMention("almost")
    assert str(stop) == "at most 40 steps or (at most $2 and not the agent says 'almost')"
    run = start_run(MaxSteps(40) | MaxToolCalls(3))
    assert measure_caps(run.state.stop, run.state.meter) == {
        "steps": (0, 40),
        "tool_calls": (0, 3),
    }
    run = search_once(start_run(MaxToolCalls(1) & MaxSteps(2)), "a").then(phase=Phase.RUNNING)
    search_once(run, "b").then(phase=Phase.PAUSED)


def test_a_custom_condition_of_a_hosted_agent_is_evaluated_too() -> None:
    started = RunStarted(agent="guest", task="t", hosted=True, stop=Custom("m:f"))
    evaluate = EvaluateStopCondition(name="m:f")
    run = given(started, LEASED_RUN[1]).then(effects=(evaluate, RunProgram()))
    # The program may propose its model call meanwhile: it starts after the verdict.
    use = RequestedCall(tool="", kind="model", position="1")
    run = run.after(v.ProposeCall(epoch=Epoch(1), use=use)).advances()
    run.then(effects=(evaluate, RunProgram()))
    run = run.after(v.RecordStopVerdict(epoch=Epoch(1), name="m:f", met=False)).starts("c1")
    assert run.state.in_flight == (1,)


def test_raising_a_cap_does_not_lower_another_cap_of_the_same_name() -> None:
    started = RunStarted(agent="clerk", task="t", stop=MaxSteps(5) | MaxSteps(10))
    run = given(started, LEASED_RUN[1]).when(c.RaiseCap(caps={"steps": 11}))
    assert measure_caps(run.state.stop, run.state.meter_with_time) == {"steps": (0, 11)}


def test_a_time_beyond_the_largest_timestamp_becomes_that_timestamp() -> None:
    """A larger number could not be stored."""
    started = RunStarted(agent="clerk", task="t", stop=MaxTime(seconds=1e13))
    run = given(started, LEASED_RUN[1]).starts("c1")
    assert find_wake_time(run.state) == MICROS_MAX
    slow = RequestedCall(tool="pay", args={}, traits=Traits(approve="block", ask_ttl=2**53 - 1))
    asking = leased_run.replies(slow).advances()
    assert asking.state.asks[0].expires == MICROS_MAX
