"""What the bare-core machine has found, each as its smallest life. They stay found."""

from msgspec.structs import replace

from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core.effects import CallTool
from midrun.core.entries import CallAborted, CallDone, CallFailed, CallStarted, LateResult
from midrun.core.ids import AskId, CallId, Epoch
from midrun.core.scheduler import plan_effects
from midrun.core.values import Actor, Effect, Phase, Reply, Traits, Use
from midrun.testing.scenario import LEASED_RUN, Scenario, given
from midrun.verify.journal import check_journal

ANN, BOB = Actor(name="ann"), Actor(name="bob", role="operator")
C1, C2 = CallId("c1"), CallId("c2")
MAIL = Use(tool="mail", args={})
PUT = Use(tool="put", args={}, traits=Traits(effect=Effect.IDEMPOTENT, undo=True, release=True))
FIX = Use(tool="fix", args={}, traits=Traits(approve="block"))

begun = given(*LEASED_RUN)


def closed(run: Scenario, outcome: CallDone | CallFailed | CallAborted) -> Scenario:
    """Let a call end."""
    return run.after(v.CloseCall(epoch=run.state.epoch, outcome=outcome))


def sound(run: Scenario) -> bool:
    """Tell whether the journal keeps every promise."""
    return not check_journal(run.records, state=run.state)


def test_a_tool_used_by_hand_is_used_once_however_often_it_is_asked_for() -> None:
    """I20: the request id of `UseTool` was not journaled."""
    use = c.UseTool(by=ANN, use=MAIL, request="r1")
    run = begun.when(c.TakeOver(by=ANN)).advances().when(use).after(v.TakeLease()).starts("c1")
    run = closed(run, CallDone(call=C1)).advances().when(use).then(already="duplicate_request")
    assert len(run.state.calls) == 1


def test_an_attempt_that_was_stopped_counts_although_the_next_one_failed() -> None:
    """I28: the first may have taken effect; the failure of the second says nothing about it."""
    run = closed(begun.replies(PUT).starts("c2"), CallAborted(call=C2)).starts("c2")
    run = closed(run, CallFailed(call=C2, error="no")).when(c.Cancel()).advances()
    assert sound(run.then(phase=Phase.CANCELLING))


def test_what_the_model_still_wanted_is_not_made_by_the_person_at_the_wheel() -> None:
    """I11: a reply that came after the take-over was taken for the person's own wish."""
    run = begun.starts("c1").when(c.TakeOver(by=ANN))
    run = closed(run, CallDone(call=C1, reply=Reply(uses=(MAIL,)))).advances()
    run = run.when(c.UseTool(by=ANN, use=replace(MAIL, tool="look"))).after(v.TakeLease())
    run.then(plans=(CallTool(call=CallId("c3")),))


def test_an_approval_of_a_suspended_thought_does_not_outlive_a_redirect() -> None:
    """I25: the call waits in a frame, where the redirect did not look for it."""
    run = begun.replies(FIX).advances().when(c.Say(text="Why?")).after(v.TakeLease()).advances()
    run = run.when(c.Approve(ask=AskId("a1"), by=BOB), c.Redirect(text="Other")).advances()
    run = run.replies(text="Because.").advances()
    starts = [order for order in plan_effects(run.state) if isinstance(order, CallTool)]
    assert not any(isinstance(e, CallStarted) and e.call == C2 for e in run.entries)
    assert CallTool(call=C2) not in starts


def test_a_failed_run_that_only_waits_for_a_person_waits_when_resumed() -> None:
    """The table did not know that resuming a failed run may lead there."""
    run = begun.replies(FIX).after(v.CrossBoundary(epoch=Epoch(1)))
    run.after(v.FailRun(epoch=Epoch(1), error="no")).when(c.Resume()).then(phase=Phase.WAITING)


def test_a_run_whose_last_ask_was_settled_behind_the_latch_goes_on_when_it_is_lifted() -> None:
    """I26: it waited for nobody, for ever."""
    run = begun.replies(MAIL).starts("c2").after(v.TakeLease()).advances().when(c.Halt(by=BOB))
    late = LateResult(call=C2, attempt=1, epoch=Epoch(1))
    run = (
        run.after(v.ReportLateResult(result=late)).when(c.Lift(by=BOB)).then(phase=Phase.QUEUED)
    )
    assert sound(run)
