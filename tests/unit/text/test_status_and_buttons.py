"""The status line and the buttons of a run, in every phase."""

import pytest

from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core.entries import (
    CallAborted,
    CallDone,
    CallFailed,
    CallUnknown,
    CapReached,
    LeaseTaken,
    PlanMade,
    RunStarted,
    UndoFailed,
)
from midrun.core.ids import CallId, Epoch
from midrun.core.state import State
from midrun.core.stops import MaxCost, MaxSteps, MaxTokens
from midrun.core.transitions import list_possible_controls
from midrun.core.values import (
    Actor,
    Effect,
    Phase,
    PlanItem,
    Reply,
    RequestedCall,
    Spend,
    Traits,
)
from midrun.testing.scenario import LEASED_RUN, Scenario, given
from midrun.text.buttons import Button, build_buttons, mark_worker_lost, propose_raised_cap
from midrun.text.phrases import format_condition
from midrun.text.status import MODEL_AT_WORK, build_status_line
from tests.unit.core.scenario_steps import leased_run, report_done

E1 = Epoch(1)
C2 = CallId("c2")
ANN = Actor(name="ann")
CHILD = RequestedCall(tool="aide", kind="child", traits=Traits(undo=True))
DRAFT = RequestedCall(tool="draft", args={"title": "Memo"}, traits=Traits(undo=True))
MAIL = RequestedCall(tool="mail", args={"to": "bo"})
LOCK = RequestedCall(tool="lock", traits=Traits(release=True))
SEARCH = RequestedCall(tool="search", traits=Traits(effect=Effect.READ))
PLAN = PlanMade(
    items=(PlanItem(text="Look", state="done"), PlanItem(text="Write", state="running"))
)


def get_buttons(state: State) -> tuple[Button, Button, Button]:
    """Return the buttons for pause, redirect and cancel."""
    buttons = build_buttons(state)
    return buttons["pause"], buttons["redirect"], buttons["cancel"]


def reach_step_cap() -> Scenario:
    """Return a run that is paused at its cap on steps."""
    started = RunStarted(agent="clerk", task="Sort", by="ann", stop=MaxSteps(1) | MaxCost(2.0))
    run = (
        given(started, LeaseTaken(epoch=E1))
        .replies(SEARCH)
        .starts("c2")
        .after(report_done("c2"))
    )
    return run.advances().then(phase=Phase.PAUSED)


def fail_releases(run: Scenario) -> Scenario:
    """Let every attempt to release c2 fail, and end the run."""
    failed = UndoFailed(call=C2, action="release", error="refused")
    for _ in range(run.state.run_started.undo_attempts):
        run = run.later(3600).cleans(C2, "release")
        run = run.after(v.CloseCleanup(epoch=E1, outcome=failed))
    return run.advances()


def test_the_buttons_of_a_queued_run_say_that_it_has_not_started() -> None:
    state = given(LEASED_RUN[0]).state
    pause, redirect, cancel = get_buttons(state)
    assert build_status_line(state).word == "Queued"
    assert (pause.enabled, pause.consequence) == (True, "Does not start until you resume.")
    assert redirect.consequence == "Starts with your instruction."
    assert cancel.consequence == "Never starts. Nothing to undo."


def test_the_pause_button_names_the_tools_that_it_waits_for() -> None:
    run = leased_run.replies(DRAFT, MAIL).starts("c2", "c3")
    assert get_buttons(run.state)[0].consequence.startswith("Stops after “Draft”, “Mail”.")
    run = run.when(c.Pause(by=ANN))
    status = build_status_line(run.state)
    assert (status.word, status.by) == ("Pausing", "ann")
    assert status.note == "finishing “Draft”, “Mail”"
    pause, redirect, _ = get_buttons(run.state)
    assert (pause.command, pause.label) == ("resume", "Keep running")
    assert "“Draft”, “Mail”" in pause.consequence
    assert redirect.consequence == "Pauses, then follows your instruction."
    forced = build_status_line(run.when(c.Pause(now=True)).state)
    assert forced.note == "stopping “Draft”, “Mail”"


def test_the_pause_button_says_that_a_call_with_progress_stops_and_continues() -> None:
    """A redirect drops the call instead."""
    run = leased_run.replies(SEARCH).starts("c2")
    run = run.after(v.SaveProgress(epoch=E1, call=C2, progress={"page": 3}))
    text = "Stops now; continues from its saved progress."
    assert get_buttons(run.state)[0].consequence.startswith(text)
    run = run.when(c.Pause(by=ANN))
    assert build_status_line(run.state).note == "stopping “Search”"
    run = run.after(v.CloseCall(epoch=E1, outcome=CallAborted(call=C2))).advances()
    pause, redirect, _ = get_buttons(run.then(phase=Phase.PAUSED).state)
    assert pause.consequence == "Continues “Search” from its saved progress."
    assert "Drops “Search”, unless the agent calls it again." in redirect.consequence


def test_the_resume_button_says_that_an_aborted_call_is_made_again() -> None:
    run = leased_run.replies(SEARCH).starts("c2").when(c.Pause(by=ANN, now=True))
    run = run.after(v.CloseCall(epoch=E1, outcome=CallAborted(call=C2))).advances()
    pause = get_buttons(run.then(phase=Phase.PAUSED).state)[0]
    assert pause.consequence == "Calls “Search” again; finished work is not repeated."


def test_the_pause_button_says_that_a_model_call_stops_at_once() -> None:
    run = leased_run.starts("c1")
    assert build_status_line(run.state).note == MODEL_AT_WORK
    assert get_buttons(run.state)[0].consequence.startswith("Stops now. Everything is kept;")


def test_status_and_button_name_the_current_plan_item() -> None:
    run = leased_run.replies(DRAFT).starts("c2").after(PLAN)
    assert build_status_line(run.state).note == "Write"
    run = run.when(c.Pause(by=ANN)).after(report_done("c2")).advances()
    assert build_status_line(run.state).note == "next: Write"
    assert get_buttons(run.state)[0].consequence == "Continues at “Write”; nothing is repeated."


def test_the_cancel_button_names_calls_to_undo_to_release_and_to_keep() -> None:
    """Calls that only read are left out."""
    run = leased_run.replies(DRAFT, MAIL, LOCK, SEARCH).starts("c2", "c3", "c4", "c5")
    run = run.after(report_done("c2"), report_done("c3"), report_done("c4"), report_done("c5"))
    cancel = get_buttons(run.state)[2]
    assert cancel.undo == ("Draft: title “Memo”",)
    assert cancel.irreversible == ("Mail: to “bo”",)
    assert cancel.release == ("Lock",)
    text = "Stops now, can undo 1 call, releases “Lock”, 1 call can't be undone."
    assert cancel.consequence == f"{text} Partial work is saved."


def test_a_child_run_is_not_counted_among_the_calls_that_can_be_undone() -> None:
    """Only the journal of the child has its calls. It may have only read."""
    run = (
        leased_run.replies(DRAFT, CHILD)
        .starts("c2", "c3")
        .after(report_done("c2"), report_done("c3"))
    )
    cancel = get_buttons(run.state)[2]
    assert cancel.consequence.startswith("Stops now, can undo 1 call, and the work of “Aide”.")
    assert cancel.undo == ("Draft: title “Memo”", "the work of Aide")
    assert cancel.undo_count == 1


@pytest.mark.parametrize(
    ("children", "text"), [(1, "the work of “Aide”"), (3, "the work of 3 child runs")]
)
def test_the_cancel_button_counts_child_runs_if_there_are_no_other_calls(
    children: int, text: str
) -> None:
    calls = [f"c{2 + n}" for n in range(children)]
    run = (
        leased_run.replies(*[CHILD] * children)
        .starts(*calls)
        .after(*(report_done(call) for call in calls))
    )
    cancel = get_buttons(run.state)[2]
    assert f"can undo {text}." in cancel.consequence
    assert cancel.undo_count == children


def test_a_call_in_flight_with_an_undo_can_be_undone() -> None:
    """A cancel aborts it, and an aborted call is in the undo set."""
    assert get_buttons(leased_run.replies(DRAFT).starts("c2").state)[2].undo


def test_an_unknown_call_is_listed_as_unsure() -> None:
    run = leased_run.replies(MAIL).starts("c2")
    run = run.after(CallUnknown(call=C2))
    cancel = get_buttons(run.state)[2]
    assert (cancel.irreversible, cancel.unsure) == ((), ("Mail: to “bo”",))
    assert "1 call may or may not have happened" in cancel.consequence


def test_the_status_of_a_cancel_names_the_current_action() -> None:
    run = leased_run.replies(DRAFT, MAIL).starts("c2", "c3").after(report_done("c2"))
    run = run.when(c.Cancel(undo="all", by=ANN))
    assert build_status_line(run.state).word == "Cancelling — stopping"
    pause, redirect, cancel = get_buttons(run.state)
    assert not any(button.enabled for button in (pause, redirect, cancel))
    assert cancel.consequence == "Nothing new starts. Stopping “Mail”."
    run = run.after(v.CloseCall(epoch=E1, outcome=CallAborted(call=CallId("c3"))))
    run = run.cleans(C2)
    status = build_status_line(run.state)
    assert status.word == "Cancelling — undoing 1 of 1"
    assert status.note == "Undoing Draft: title “Memo”."


def test_the_status_of_a_cancel_without_a_worker_says_that_it_waits() -> None:
    run = (
        leased_run.replies(DRAFT)
        .starts("c2")
        .after(report_done("c2"))
        .when(c.Pause())
        .advances()
    )
    run = run.when(c.Cancel(undo="all", by=ANN)).then(phase=Phase.CANCELLING)
    status = build_status_line(run.state)
    assert (status.word, status.note) == (
        "Cancelling",
        "cleans up as soon as a worker takes it",
    )


def test_the_buttons_say_what_happens_to_an_open_question() -> None:
    """A redirect drops it in every phase."""
    asking = leased_run.replies(DRAFT).starts("c2")
    asking = asking.after(v.AskPerson(epoch=E1, call=C2, question="Which?"))
    dropped = "Drops the question and follows your instruction from the next turn"
    assert get_buttons(asking.state)[1].consequence.startswith(dropped)
    dropped = "Pauses, then drops the question and follows your instruction."
    pausing = asking.when(c.Pause()).then(phase=Phase.PAUSING)
    assert get_buttons(pausing.state)[1].consequence == dropped
    run = asking.advances().then(phase=Phase.WAITING).when(c.Pause())
    pause, redirect, _ = get_buttons(run.state)
    assert pause.consequence == "Waits for the answer again; the question stays open."
    assert redirect.consequence.startswith("Drops the question and follows your")


def test_a_number_in_the_quotation_of_a_condition_stays_as_it_is() -> None:
    said = format_condition("the agent says 'code 123456' or at most 400000 tokens")
    assert said == "the agent says “code 123456” or at most 400,000 tokens"


def test_the_resume_button_at_a_cap_raises_it() -> None:
    """A resume that does not raise the cap would be refused."""
    state = reach_step_cap().state
    assert build_status_line(state).word == "Paused at the turn cap (1)"
    pause, redirect, _ = get_buttons(state)
    assert (pause.label, pause.command) == ("Raise cap", "resume")
    assert pause.caps == {"steps": 11}
    assert pause.consequence == "Adds 10 turns, then continues; nothing is repeated."
    assert (redirect.command, redirect.caps) == ("resume", {"steps": 11})
    reach_step_cap().when(c.Resume(caps={"steps": 11})).then(phase=Phase.QUEUED)


def test_a_large_cap_is_shown_in_full() -> None:
    started = RunStarted(agent="clerk", task="Sort", by="ann", stop=MaxTokens(2_000_000))
    reply = Reply(uses=(SEARCH,))
    done = CallDone(call=CallId("c1"), reply=reply, spent=Spend(tokens=2_000_000))
    run = given(started, LeaseTaken(epoch=E1)).starts("c1")
    run = run.after(v.CloseCall(epoch=E1, outcome=done)).starts("c2").after(report_done("c2"))
    state = run.advances().then(phase=Phase.PAUSED).state
    assert build_status_line(state).word == "Paused at the token cap (2,000,000)"
    assert get_buttons(state)[0].consequence.startswith("Adds 1,000,000 tokens, then")


def test_a_second_pause_keeps_the_condition_of_the_first() -> None:
    """A person stops the call that is in flight; the run has no stop condition of its own."""
    quota = "the quota of user ann is used up, tokens_per_day is at 9 of 5"
    run = leased_run.replies(MAIL).starts("c2").after(CapReached(stop=quota))
    run = run.when(c.Pause(now=True, by=ANN)).after(report_done("c2")).advances()
    status = build_status_line(run.then(phase=Phase.PAUSED).state)
    assert (status.word, quota in status.note) == ("Paused by a quota", True)


def test_a_run_at_work_can_be_asked_and_a_paused_one_resumes_for_it() -> None:
    """At a cap, and for a person who has taken over, a resume needs another decision."""
    at_work, paused = build_buttons(leased_run.state), leased_run.when(c.Pause()).advances()
    assert at_work["ask"].enabled
    assert list(at_work) == ["pause", "redirect", "ask", "cancel"]
    ask = build_buttons(paused.then(phase=Phase.PAUSED).state)["ask"]
    assert (ask.label, ask.command, ask.enabled) == ("Ask", "say", True)
    assert ask.consequence.startswith("Resumes the run: it answers first")
    taken_over = leased_run.when(c.TakeOver(by=ANN)).advances()
    cancelling = leased_run.starts("c1").when(c.Cancel())
    for run in (reach_step_cap(), taken_over, cancelling):
        ask = build_buttons(run.state)["ask"]
        assert not ask.enabled
        assert ask.consequence == "A run that is at work can be asked something."


@pytest.mark.parametrize(
    ("name", "cap", "raised"),
    [("steps", 12, 22), ("steps", 40, 60), ("cost", 2.0, 3.0), ("time", 60, 90)],
)
def test_the_proposed_cap_is_higher_by_half_or_by_a_minimum(
    name: str, cap: float, raised: float
) -> None:
    assert propose_raised_cap(name, cap) == raised


def test_the_resume_button_of_a_failed_run_retries_its_step() -> None:
    failed = CallFailed(call=CallId("c1"), error="no such model")
    run = leased_run.starts("c1").after(v.CloseCall(epoch=E1, outcome=failed)).advances()
    status = build_status_line(run.then(phase=Phase.FAILED).state)
    assert (status.word, status.note) == ("Failed at turn 1", "no such model")
    pause, redirect, cancel = get_buttons(run.state)
    assert (pause.label, pause.command) == ("Retry", "resume")
    assert redirect.enabled
    assert cancel.enabled


def test_the_button_of_a_run_that_was_taken_over_hands_back() -> None:
    """A resume would be refused."""
    run = leased_run.when(c.TakeOver(by=ANN)).advances()
    assert (build_status_line(run.state).word, build_status_line(run.state).by) == (
        "Taken over",
        "ann",
    )
    pause, redirect, _ = get_buttons(run.state)
    assert (pause.label, pause.command) == ("Hand back", "hand_back")
    assert not redirect.enabled


def test_a_halted_run_allows_only_a_cancel_that_takes_effect_after_the_lift() -> None:
    run = leased_run.when(c.Halt(by=Actor(name="olga", role="operator"), reason="fire"))
    assert (build_status_line(run.state).word, build_status_line(run.state).by) == (
        "Halted",
        "olga",
    )
    pause, redirect, cancel = get_buttons(run.state)
    assert (pause.enabled, redirect.enabled, cancel.enabled) == (False, False, True)
    assert cancel.consequence == "Takes effect when the halt is lifted."
    cancel = get_buttons(run.when(c.Cancel()).state)[2]
    assert not cancel.enabled
    assert cancel.consequence == "Requested; takes effect when the halt is lifted."


def test_failed_undos_can_be_retried_until_the_residue_is_accepted() -> None:
    run = (
        leased_run.replies(DRAFT)
        .starts("c2")
        .after(report_done("c2"))
        .when(c.Cancel(undo="all"))
    )
    failed = UndoFailed(call=C2, error="refused")
    for attempt in range(run.state.run_started.undo_attempts):
        if attempt:
            assert "it is retried" in build_status_line(run.state).note
        run = run.later(3600).cleans(C2)
        run = run.after(v.CloseCleanup(epoch=E1, outcome=failed))
    run = run.advances()
    assert build_status_line(run.state).word == "Cancelled — 1 undo failed"
    pause = get_buttons(run.state)[0]
    assert (pause.command, pause.label) == ("retry_undo", "Retry undo")
    assert get_buttons(run.when(c.AcceptResidue()).state)[0].enabled is False


def test_a_completed_run_shows_a_failed_release_until_it_is_accepted() -> None:
    """A completed run is final, so the release is not retried."""
    run = leased_run.replies(LOCK).starts("c2").after(report_done("c2")).replies(text="Done.")
    run = fail_releases(run)
    status = build_status_line(run.state)
    assert (status.style, status.word) == ("completed", "Completed — 1 release failed")
    assert status.announcement == "Completed. 1 could not be released."
    assert "retry_undo" not in list_possible_controls(run.state)
    assert build_status_line(run.when(c.AcceptResidue()).state).word == "Completed"


def test_a_failed_release_is_not_shown_as_a_failed_undo() -> None:
    run = leased_run.replies(LOCK).starts("c2").after(report_done("c2")).when(c.Cancel())
    run = fail_releases(run)
    status = build_status_line(run.state)
    assert (status.word, status.announcement) == (
        "Cancelled — 1 release failed",
        "Cancelled. 1 could not be released.",
    )
    assert get_buttons(run.state)[0].consequence == "Tries again to release 1 call."


def test_the_buttons_of_a_run_with_a_lost_worker_say_that_they_take_effect_later() -> None:
    """A button that is disabled is left as it is."""
    buttons = mark_worker_lost(build_buttons(leased_run.state))
    assert "when the worker returns" in buttons["pause"].consequence
    cancelled = build_buttons(leased_run.when(c.Cancel()).state)
    assert mark_worker_lost(cancelled)["pause"] == cancelled["pause"]


def test_the_status_names_the_side_question_and_not_the_held_plan() -> None:
    run = leased_run.after(PLAN).when(c.Say(text="What time is it?", by=ANN)).advances()
    assert run.state.frames
    assert build_status_line(run.state).note == "answering: What time is it?"
