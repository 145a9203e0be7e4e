"""Pause is not stop: what it lets finish, what it closes, what it keeps, and how it ends."""

from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core.effects import AbortCall, CallModel, CallTool, Settle, WakeAt
from midrun.core.entries import CallAborted, CallDone, RunPaused, RunWoken
from midrun.core.ids import MICROS_PER_SECOND, CallId, Epoch, Micros
from midrun.core.scheduler import plan_effects
from midrun.core.state import CallStage
from midrun.core.values import Actor, Effect, Phase, Reply, Traits, Use
from midrun.testing.scenario import LEASED_RUN, given

E1 = Epoch(1)
C1, C2, C3 = CallId("c1"), CallId("c2"), CallId("c3")
SEARCH = Use(tool="search", args={"q": "x"}, traits=Traits(effect=Effect.READ))
MAIL = Use(tool="mail", args={"to": "bo"})

begun = given(*LEASED_RUN)
two_tools = begun.replies(SEARCH, MAIL).starts("c2", "c3")


def done(call: CallId, epoch: int = 1) -> v.CloseCall:
    """Return the evidence that a call returned."""
    return v.CloseCall(epoch=Epoch(epoch), outcome=CallDone(call=call, result="ok"))


def aborted(call: CallId, text: str = "") -> v.CloseCall:
    """Return the evidence that a call was stopped within its grace."""
    return v.CloseCall(epoch=E1, outcome=CallAborted(call=call, text=text))


def test_a_pause_lets_started_tools_finish_and_starts_nothing() -> None:
    """The run says pausing for as long as something runs, and paused only then."""
    run = two_tools.when(c.Pause()).then(phase=Phase.PAUSING, plans=())
    run = run.after(done(C2)).then(phase=Phase.PAUSING, plans=())
    run = run.after(done(C3)).then(plans=(Settle(),))
    run.advances().then(phase=Phase.PAUSED, plans=())


def test_a_pause_closes_the_model_stream_and_keeps_its_text() -> None:
    """Not reading a stream is not a pause: the provider goes on and so does the bill."""
    run = begun.starts("c1").when(c.Pause())
    run.then(plans=(AbortCall(call=C1, reason="paused"),))
    run = run.after(aborted(C1, "The first ven")).advances().then(phase=Phase.PAUSED)
    said = run.state.messages[-1]
    assert (said.text, said.interrupted) == ("The first ven", True)


def test_pause_now_aborts_tools_too() -> None:
    """The user said now."""
    run = two_tools.when(c.Pause(now=True))
    aborts = (AbortCall(call=C2, reason="paused"), AbortCall(call=C3, reason="paused"))
    run.then(plans=aborts)


def test_a_second_pause_may_be_sharper_but_not_weaker() -> None:
    """After ten seconds the page offers to stop the call now."""
    run = two_tools.when(c.Pause(), c.Pause()).then(already="already_pausing")
    run = run.when(c.Pause(now=True)).then(phase=Phase.PAUSING)
    assert len(plan_effects(run.state)) == 2
    run.when(c.Pause(now=True)).then(already="already_pausing")


def test_a_tool_that_saved_its_progress_stops_there_and_is_given_it_back() -> None:
    """It asked for that by saving; the others finish."""
    saved = v.SaveProgress(epoch=E1, call=C3, progress={"page": 42})
    run = two_tools.after(saved).when(c.Pause())
    run.then(plans=(AbortCall(call=C3, reason="paused"),))
    run = run.after(aborted(C3), done(C2)).advances().when(c.Resume())
    run = run.after(v.TakeLease()).then(plans=(CallTool(call=C3),))
    again = run.state.find_call("c3")
    assert again is not None
    assert again.progress == {"page": 42}


def test_resume_repeats_nothing_that_is_done() -> None:
    """Finished calls stay finished; what was stopped and is safe to repeat goes again."""
    run = two_tools.when(c.Pause(now=True)).after(aborted(C2), done(C3)).advances()
    run = run.when(c.Resume()).then(phase=Phase.QUEUED).after(v.TakeLease())
    run.then(plans=(CallTool(call=C2),))


def test_a_once_call_stopped_midway_is_never_made_again() -> None:
    """It may have taken effect: the model is told, and decides."""
    run = two_tools.when(c.Pause(now=True)).after(done(C2), aborted(C3)).advances()
    run = run.when(c.Resume()).after(v.TakeLease())
    run.then(plans=(CallModel(call=CallId("c4")),))
    stopped = run.state.find_call("c3")
    assert stopped is not None
    assert stopped.stage is CallStage.ABORTED
    assert stopped.may_have_effect


def test_an_accepted_pause_beats_a_completion_and_the_answer_waits() -> None:
    """An accepted control is never overtaken; the answer completes right after resume."""
    run = begun.starts("c1").when(c.Pause())
    finished = v.CloseCall(epoch=E1, outcome=CallDone(call=C1, reply=Reply(text="42")))
    run = run.after(finished).advances().then(phase=Phase.PAUSED)
    run = run.when(c.Resume()).after(v.TakeLease()).advances().then(phase=Phase.COMPLETED)
    assert run.state.output == "42"


def test_resume_while_pausing_takes_the_pause_back() -> None:
    """Keep running: nothing was lost, and the run says so."""
    two_tools.when(c.Pause(), c.Resume()).then(phase=Phase.RUNNING)


def test_a_second_resume_is_a_no_op_and_says_who_was_first() -> None:
    """One resume per pause; with words it is refused, so that they are not lost."""
    paused = two_tools.when(c.Pause()).after(done(C2), done(C3)).advances()
    bo = Actor(name="bo")
    run = paused.when(c.Resume(by=bo), c.Resume()).then(already="already_queued")
    run.when(c.Resume(instruction="and hurry")).then(refused="not_paused")
    assert run.verdict is not None
    assert run.verdict.by == "bo"  # type: ignore[union-attr]  # Already has it


def test_a_held_pause_lets_go_by_itself() -> None:
    """While somebody thinks about a cancel the run stands still, but not for ever."""
    until = Micros(begun.now + 30 * MICROS_PER_SECOND)
    run = two_tools.when(c.Pause(until=until)).then(plans=(WakeAt(at=until),))
    run = run.after(done(C2), done(C3)).advances().then(phase=Phase.PAUSED)
    run.when(v.Wake()).then(already="nothing_due", phase=Phase.PAUSED)
    run.later(31).when(v.Wake()).then(phase=Phase.QUEUED)


def test_a_held_pause_that_still_pends_is_withdrawn_when_its_time_is_up() -> None:
    """It never took hold; the run goes on."""
    until = Micros(begun.now + MICROS_PER_SECOND)
    two_tools.when(c.Pause(until=until)).later(2).when(v.Wake()).then(phase=Phase.RUNNING)


def test_a_plain_pause_on_top_of_a_held_one_stays() -> None:
    """Somebody means it."""
    until = Micros(begun.now + MICROS_PER_SECOND)
    paused = begun.when(c.Pause(until=until)).advances()
    run = paused.when(c.Pause()).then(phase=Phase.PAUSED).later(5)
    run.when(v.Wake()).then(phase=Phase.PAUSED, already="nothing_due")


def test_a_pause_where_nobody_drives_holds_at_once() -> None:
    """Queued and waiting runs have nothing in flight."""
    given(LEASED_RUN[0]).when(c.Pause()).then(phase=Phase.PAUSED)


def test_a_forced_pause_makes_what_did_not_respond_unknown() -> None:
    """The user stops waiting; nobody pretends to know what the call did."""
    run = two_tools.when(c.Pause()).after(done(C2)).when(c.ForcePause())
    run.then(phase=Phase.PAUSED)
    forced = run.state.find_call("c3")
    assert forced is not None
    assert (forced.stage, forced.may_have_happened) == (CallStage.UNKNOWN, True)


def test_a_pause_is_withdrawn_by_its_seq() -> None:
    """The command can be taken back as long as it pends, and not after."""
    pausing = two_tools.when(c.Pause())
    hold = pausing.state.pause
    assert hold is not None
    pausing.when(c.Withdraw(seq=hold.seq)).then(phase=Phase.RUNNING)
    paused = pausing.after(done(C2), done(C3)).advances()
    paused.when(c.Withdraw(seq=hold.seq)).then(refused="not_pending", phase=Phase.PAUSED)


def test_a_redirect_while_pausing_pauses_and_then_goes_on_with_the_text() -> None:
    """Both wishes count, in their order."""
    run = two_tools.when(c.Pause(), c.Redirect(text="Use the 2026 figures"))
    run = run.then(phase=Phase.PAUSING).after(done(C2), done(C3)).advances()
    kinds = [type(entry) for entry in run.entries[-2:]]
    assert kinds == [RunPaused, RunWoken]
    run.then(phase=Phase.QUEUED)


def test_standing_down_is_not_a_pause_by_anyone() -> None:
    """A deploy puts the run back in the queue."""
    begun.after(v.StandDown(epoch=E1, why="shutdown")).then(phase=Phase.QUEUED)
    two_tools.when(v.StandDown(epoch=E1)).then(refused="in_flight")
