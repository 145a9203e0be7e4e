"""Pause, resume and redirect: calls that finish, are aborted, sealed or made again."""

from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core.entries import (
    CallAborted,
    CallDone,
    CallStarted,
    RedirectApplied,
    RedirectClosed,
    RunPaused,
    RunStarted,
    RunWoken,
)
from midrun.core.ids import MICROS_PER_SECOND, CallId, Epoch, Micros
from midrun.core.scheduler import (
    AbortCall,
    find_wake_time,
    list_effects,
)
from midrun.core.state import CallStage
from midrun.core.values import Actor, Effect, Phase, PlanItem, Reply, RequestedCall, Traits
from midrun.testing.scenario import LEASED_RUN, given
from tests.unit.core.scenario_steps import (
    get_call,
    get_stage,
    leased_run,
    report_aborted,
    report_done,
)

E1 = Epoch(1)
C1, C2, C3, C4 = CallId("c1"), CallId("c2"), CallId("c3"), CallId("c4")
SEARCH = RequestedCall(tool="search", args={"q": "x"}, traits=Traits(effect=Effect.READ))
MAIL = RequestedCall(tool="mail", args={"to": "bo"})
GATED = RequestedCall(tool="pay", args={"eur": 5}, traits=Traits(approve="block"))
REDIRECT = c.Redirect(text="Use the 2026 figures")

two_tools = leased_run.replies(SEARCH, MAIL).starts("c2", "c3")


# ── pause and resume ───────────────────────────────────────────────────────────────────


def test_a_pause_lets_started_tools_finish_and_starts_no_other_call() -> None:
    """The run is pausing while a tool runs, and paused only after that."""
    run = two_tools.when(c.Pause()).then(phase=Phase.PAUSING, starts=(), effects=())
    run = run.after(report_done(C2)).then(phase=Phase.PAUSING, starts=(), effects=())
    run.after(report_done(C3)).advances().then(phase=Phase.PAUSED, starts=(), effects=())


def test_a_pause_closes_the_model_stream_and_keeps_its_text() -> None:
    """A provider bills a stream that is open, even if the stream is not read."""
    run = leased_run.starts("c1").when(c.Pause())
    run.then(effects=(AbortCall(call=C1, reason="paused"),))
    run = run.after(report_aborted(C1, "The first ven")).advances().then(phase=Phase.PAUSED)
    message = run.state.messages[-1]
    assert (message.text, message.interrupted) == ("The first ven", True)


def test_pause_now_aborts_tools_too() -> None:
    run = two_tools.when(c.Pause(now=True))
    aborts = (AbortCall(call=C2, reason="paused"), AbortCall(call=C3, reason="paused"))
    run.then(effects=aborts)


def test_a_second_pause_can_add_now_but_not_remove_it() -> None:
    """After ten seconds the page offers to stop the call."""
    run = two_tools.when(c.Pause(), c.Pause()).then(already="already_pausing")
    run = run.when(c.Pause(now=True)).then(phase=Phase.PAUSING)
    assert len(list_effects(run.state)) == 2
    run.when(c.Pause(now=True)).then(already="already_pausing")


def test_a_pause_aborts_a_tool_with_saved_progress_and_resume_continues_it() -> None:
    """Tools without saved progress finish."""
    saved = v.SaveProgress(epoch=E1, call=C3, progress={"page": 42})
    run = two_tools.after(saved).when(c.Pause())
    run.then(effects=(AbortCall(call=C3, reason="paused"),))
    run = run.after(report_aborted(C3), report_done(C2)).advances().when(c.Resume())
    run = run.after(v.TakeLease()).then(starts=(C3,))
    assert get_call(run, "c3").progress == {"page": 42}


def test_resume_repeats_an_aborted_read_and_no_finished_call() -> None:
    run = (
        two_tools.when(c.Pause(now=True)).after(report_aborted(C2), report_done(C3)).advances()
    )
    run = run.when(c.Resume()).then(phase=Phase.QUEUED).after(v.TakeLease())
    run.then(starts=(C2,))


def test_an_aborted_call_that_is_not_safe_to_repeat_is_not_made_again() -> None:
    """It may have taken effect. The model gets that information, and decides."""
    run = (
        two_tools.when(c.Pause(now=True)).after(report_done(C2), report_aborted(C3)).advances()
    )
    run = run.when(c.Resume()).after(v.TakeLease())
    run.then(starts=(CallId("c4"),))
    stopped = get_call(run, "c3")
    assert stopped.stage is CallStage.ABORTED
    assert stopped.may_have_effect


def test_a_pause_comes_before_the_completion_and_the_answer_waits() -> None:
    """The run completes with the answer right after the resume."""
    run = leased_run.starts("c1").when(c.Pause())
    answer = v.CloseCall(epoch=E1, outcome=CallDone(call=C1, reply=Reply(text="42")))
    run = run.after(answer).advances().then(phase=Phase.PAUSED)
    run = run.when(c.Resume()).after(v.TakeLease()).advances().then(phase=Phase.COMPLETED)
    assert run.state.output == "42"


def test_resume_while_pausing_withdraws_the_pause() -> None:
    two_tools.when(c.Pause(), c.Resume()).then(phase=Phase.RUNNING)


def test_a_second_resume_is_a_no_op_that_names_the_first_actor() -> None:
    """With an instruction it is refused, so that the text is not lost."""
    paused = two_tools.when(c.Pause()).after(report_done(C2), report_done(C3)).advances()
    bo = Actor(name="bo")
    run = paused.when(c.Resume(by=bo), c.Resume()).then(already="already_queued")
    run.when(c.Resume(instruction="and hurry")).then(refused="not_paused")
    assert run.verdict is not None
    assert run.verdict.by == "bo"  # type: ignore[union-attr]  # NoChange has it


def test_a_pause_with_a_time_limit_ends_by_itself() -> None:
    """The page requests one while a person decides about a cancel."""
    until = Micros(leased_run.now + 30 * MICROS_PER_SECOND)
    run = two_tools.when(c.Pause(until=until))
    assert find_wake_time(run.state) == until
    run = run.after(report_done(C2), report_done(C3)).advances().then(phase=Phase.PAUSED)
    run.when(v.Wake()).then(already="nothing_due", phase=Phase.PAUSED)
    run.later(31).when(v.Wake()).then(phase=Phase.QUEUED)


def test_a_pending_pause_is_withdrawn_when_its_time_limit_is_over() -> None:
    until = Micros(leased_run.now + MICROS_PER_SECOND)
    two_tools.when(c.Pause(until=until)).later(2).when(v.Wake()).then(phase=Phase.RUNNING)


def test_a_pause_without_a_time_limit_replaces_one_with_a_limit() -> None:
    until = Micros(leased_run.now + MICROS_PER_SECOND)
    paused = leased_run.when(c.Pause(until=until)).advances()
    run = paused.when(c.Pause()).then(phase=Phase.PAUSED).later(5)
    run.when(v.Wake()).then(phase=Phase.PAUSED, already="nothing_due")


def test_a_queued_run_is_paused_at_once() -> None:
    """No worker drives it, so no call is in flight."""
    given(LEASED_RUN[0]).when(c.Pause()).then(phase=Phase.PAUSED)


def test_a_forced_pause_marks_calls_in_flight_as_unknown() -> None:
    run = two_tools.when(c.Pause()).after(report_done(C2)).when(c.ForcePause())
    run.then(phase=Phase.PAUSED)
    forced = get_call(run, "c3")
    assert (forced.stage, forced.may_have_happened) == (CallStage.UNKNOWN, True)


def test_a_pause_is_withdrawn_by_its_seq() -> None:
    """This is possible only while the pause is pending."""
    pausing = two_tools.when(c.Pause())
    pause = pausing.state.pause
    assert pause is not None
    pausing.when(c.Withdraw(seq=pause.seq)).then(phase=Phase.RUNNING)
    paused = pausing.after(report_done(C2), report_done(C3)).advances()
    paused.when(c.Withdraw(seq=pause.seq)).then(refused="not_pending", phase=Phase.PAUSED)


def test_a_redirect_while_pausing_pauses_the_run_and_then_wakes_it() -> None:
    run = two_tools.when(c.Pause(), REDIRECT)
    run = run.then(phase=Phase.PAUSING).after(report_done(C2), report_done(C3)).advances()
    kinds = [type(entry) for entry in run.entries[-2:]]
    assert kinds == [RunPaused, RunWoken]
    run.then(phase=Phase.QUEUED)


def test_a_worker_that_stands_down_returns_the_run_to_the_queue() -> None:
    """It is refused while calls are in flight."""
    leased_run.after(v.StandDown(epoch=E1, why="shutdown")).then(phase=Phase.QUEUED)
    two_tools.when(v.StandDown(epoch=E1)).then(refused="in_flight")


def test_the_result_of_a_hosted_agent_while_pausing_completes_after_the_resume() -> None:
    """After a cancel it is kept as partial work."""
    started = RunStarted(agent="guest", task="t", hosted=True)
    run = (
        given(started, LEASED_RUN[1])
        .when(c.Pause())
        .after(v.FinishHostedAgent(epoch=E1, output="42"))
    )
    run = run.advances().when(c.Resume()).after(v.TakeLease()).advances()
    assert (run.state.phase, run.state.output) == (Phase.COMPLETED, "42")
    cancelled = (
        given(started, LEASED_RUN[1])
        .when(c.Cancel())
        .after(v.FinishHostedAgent(epoch=E1, output="42"))
    )
    assert cancelled.advances().state.output == "42"


# ── redirect ───────────────────────────────────────────────────────────────────────────


def test_a_redirect_aborts_the_model_call_and_the_next_one_has_its_text() -> None:
    """The text of the aborted call stays in the transcript."""
    run = leased_run.starts("c1").when(REDIRECT).then(phase=Phase.RUNNING)
    run = run.then(effects=(AbortCall(call=C1, reason="redirected"),))
    run = run.after(v.CloseCall(epoch=E1, outcome=CallAborted(call=C1, text="So fa")))
    run = run.advances().then(starts=(C2,))
    assert [m.text for m in run.state.messages][-2:] == ["So fa", REDIRECT.text]


def test_a_redirect_at_the_next_step_lets_started_tools_finish_and_seals_the_rest() -> None:
    """Finished calls are kept; calls that had not started are never made."""
    run = (
        leased_run.replies(SEARCH, MAIL).starts("c2").when(REDIRECT).then(starts=(), effects=())
    )
    run = run.after(v.CloseCall(epoch=E1, outcome=CallDone(call=C2, result="found")))
    run = run.advances().then(starts=(C4,))
    assert (get_stage(run), get_stage(run, "c3")) == (CallStage.DONE, CallStage.SEALED)


def test_a_redirect_now_aborts_tools_too_and_they_are_not_made_again() -> None:
    """Even a call that is safe to repeat belongs to the old instruction."""
    run = leased_run.replies(SEARCH).starts("c2").when(c.Redirect(text="stop that", when="now"))
    run = run.then(effects=(AbortCall(call=C2, reason="redirected"),))
    run = run.after(v.CloseCall(epoch=E1, outcome=CallAborted(call=C2))).advances()
    run.then(starts=(C3,))
    assert get_stage(run) is CallStage.ABORTED


def test_an_applied_redirect_records_the_plan_item_that_it_replaces() -> None:
    items = (PlanItem(text="Fetch list", state="done"), PlanItem(text="Score churn risk"))
    run = leased_run.after(v.SetPlan(epoch=E1, items=items)).when(REDIRECT).advances()
    applied = run.entries[-1]
    assert isinstance(applied, RedirectApplied)
    assert (applied.minus, applied.plus) == ("Score churn risk", REDIRECT.text)


def test_a_pending_redirect_can_be_withdrawn() -> None:
    run = leased_run.replies(SEARCH).starts("c2").when(REDIRECT)
    seq = run.state.pending[0].seq
    run = run.when(c.Withdraw(seq=seq))
    assert run.state.pending == ()
    closed = run.entries[-1]
    assert isinstance(closed, RedirectClosed)
    assert (closed.why, closed.text) == ("withdrawn", REDIRECT.text)
    run.when(c.Withdraw(seq=seq)).then(refused="not_pending")


def test_a_redirect_of_a_paused_run_resumes_it_with_the_text() -> None:
    run = leased_run.when(c.Pause()).advances().when(REDIRECT).then(phase=Phase.QUEUED)
    run = run.after(v.TakeLease()).advances()
    assert run.state.messages[-1].text == REDIRECT.text


def test_a_redirect_of_a_waiting_run_closes_its_asks() -> None:
    """An approval of the old plan must not be usable any more."""
    run = leased_run.replies(GATED).advances().then(phase=Phase.WAITING)
    run = run.when(REDIRECT).then(phase=Phase.QUEUED)
    run.when(c.Approve(ask=run.state.asks[0].id)).then(refused="ask_closed")
    run = run.after(v.TakeLease(holder="w2")).advances()
    assert get_stage(run) is CallStage.SEALED
    run.then(starts=(C3,))


def test_an_approval_given_before_a_redirect_is_not_used_after_it() -> None:
    """The approved call had not started; it belongs to the old plan."""
    run = leased_run.replies(GATED).advances()
    run = run.when(c.Approve(ask=run.state.asks[0].id), REDIRECT).after(v.TakeLease())
    assert (C2, "call") not in run.next_starts
    assert get_stage(run.advances()) is CallStage.SEALED


def test_a_redirect_of_a_completed_run_or_without_text_is_refused() -> None:
    leased_run.replies(text="done").advances().when(REDIRECT).then(refused="is_completed")
    leased_run.when(c.Redirect(text="  ")).then(refused="empty_text")


def test_resume_with_an_instruction_seals_the_calls_that_had_not_started() -> None:
    run = leased_run.replies(SEARCH, SEARCH).starts("c2").when(c.Pause())
    run = run.after(v.CloseCall(epoch=E1, outcome=CallDone(call=C2))).advances()
    run = run.when(c.Resume(instruction="Summarise and stop")).after(v.TakeLease())
    run = run.advances().then(starts=(C4,))
    assert get_stage(run, "c3") is CallStage.SEALED
    assert run.state.messages[-1].text == "Summarise and stop"


def test_a_model_call_has_seen_every_entry_before_its_start() -> None:
    """The prompt is built from the state that the start was decided on."""
    run = leased_run.when(c.Say(text="psst", urgency="later"))
    started = run.starts("c1").entries[-1]
    assert isinstance(started, CallStarted)
    assert started.seen == run.state.seq


def test_a_redirect_after_the_final_answer_keeps_the_run_running() -> None:
    run = leased_run.replies(text="done").when(REDIRECT).advances()
    run.then(phase=Phase.RUNNING, starts=(C2,))
