"""What a person is told of a run, and what the buttons say: true in every phase."""

import pytest

from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core.entries import (
    CallAborted,
    CallDone,
    CallFailed,
    CallUnknown,
    LeaseTaken,
    PlanMade,
    RunStarted,
    UndoFailed,
)
from midrun.core.ids import CallId, Epoch
from midrun.core.state import State
from midrun.core.stops import MaxCost, MaxSteps
from midrun.core.transitions import list_possible_controls
from midrun.core.values import Actor, Effect, Item, Phase, Traits, Use
from midrun.testing.scenario import LEASED_RUN, Scenario, given
from midrun.text.buttons import Button, build_buttons, mark_worker_lost, propose_raised_cap
from midrun.text.status import build_status_line

E1 = Epoch(1)
ANN = Actor(name="ann")
DRAFT = Use(tool="draft", args={"title": "Memo"}, traits=Traits(undo=True))
MAIL = Use(tool="mail", args={"to": "bo"})
LOCK = Use(tool="lock", traits=Traits(release=True))
SEARCH = Use(tool="search", traits=Traits(effect=Effect.READ))

begun = given(*LEASED_RUN)
PLAN = PlanMade(items=(Item(text="Look", mark="done"), Item(text="Write", mark="running")))


def closed(name: str) -> v.CloseCall:
    """Return the evidence that a call returned."""
    return v.CloseCall(epoch=E1, outcome=CallDone(call=CallId(name), result="ok"))


def pressed(state: State) -> tuple[Button, Button, Button]:
    """Return the three buttons."""
    made = build_buttons(state)
    return made["pause"], made["redirect"], made["cancel"]


def test_a_queued_run_has_not_started_and_has_nothing_to_undo() -> None:
    """Nobody should fear a cancel that cannot do harm."""
    state = given(LEASED_RUN[0]).state
    pause, redirect, cancel = pressed(state)
    assert build_status_line(state).word == "Queued"
    assert (pause.enabled, pause.consequence) == (True, "Does not start until you resume.")
    assert redirect.consequence == "Starts with your instruction."
    assert cancel.consequence == "Never starts. Nothing to undo."


def test_while_a_tool_works_a_pause_says_what_it_waits_for() -> None:
    """Asked for is not happened, and people want to know what is between."""
    run = begun.replies(DRAFT, MAIL).starts("c2", "c3")
    assert pressed(run.state)[0].consequence.startswith("Stops after draft, mail.")
    run = run.when(c.Pause(by=ANN))
    shown = build_status_line(run.state)
    assert (shown.word, shown.by, shown.note) == ("Pausing", "ann", "finishing draft, mail")
    pause, redirect, _ = pressed(run.state)
    assert (pause.command, pause.label) == ("resume", "Keep running")
    assert "draft, mail" in pause.consequence
    assert redirect.consequence == "Pauses, then follows your instruction."
    assert build_status_line(run.when(c.Pause(now=True)).state).note == "stopping draft, mail"


def test_a_call_that_saved_its_progress_is_stopped_there_and_goes_on_from_there() -> None:
    """It is not let finish, so nobody is told that it will; new words drop it."""
    run = begun.replies(SEARCH).starts("c2")
    run = run.after(v.SaveProgress(epoch=E1, call=CallId("c2"), progress={"page": 3}))
    said = "Stops now; continues from its saved progress."
    assert pressed(run.state)[0].consequence.startswith(said)
    run = run.when(c.Pause(by=ANN))
    assert build_status_line(run.state).note == "stopping search"
    run = run.after(v.CloseCall(epoch=E1, outcome=CallAborted(call=CallId("c2")))).advances()
    pause, redirect, _ = pressed(run.then(phase=Phase.PAUSED).state)
    assert pause.consequence == "Continues search from its saved progress."
    assert "Drops search, unless the agent calls it again." in redirect.consequence


def test_a_call_that_was_stopped_without_a_trace_is_made_again() -> None:
    """Then "nothing is repeated" would not be true."""
    run = begun.replies(SEARCH).starts("c2").when(c.Pause(by=ANN, now=True))
    run = run.after(v.CloseCall(epoch=E1, outcome=CallAborted(call=CallId("c2")))).advances()
    pause = pressed(run.then(phase=Phase.PAUSED).state)[0]
    assert pause.consequence == "Calls search again; finished work is not repeated."


def test_while_the_model_speaks_a_pause_is_at_once() -> None:
    """A stream is closed; a tool would be let finish."""
    run = begun.starts("c1")
    assert build_status_line(run.state).note == "thinking"
    assert pressed(run.state)[0].consequence.startswith("Stops now. Everything is kept;")


def test_the_plan_says_what_is_at_work_and_where_it_goes_on() -> None:
    """The agent's own words say more than a step's number."""
    run = begun.replies(DRAFT).starts("c2").after(PLAN)
    assert build_status_line(run.state).note == "Write"
    run = run.when(c.Pause(by=ANN)).after(closed("c2")).advances()
    assert build_status_line(run.state).note == "next: Write"
    assert pressed(run.state)[0].consequence == "Continues at “Write”; nothing is repeated."


def test_a_cancel_names_what_it_undoes_releases_and_cannot_undo() -> None:
    """What only read is not named: there is nothing to decide about it."""
    run = begun.replies(DRAFT, MAIL, LOCK, SEARCH).starts("c2", "c3", "c4", "c5")
    run = run.after(closed("c2"), closed("c3"), closed("c4"), closed("c5"))
    cancel = pressed(run.state)[2]
    assert cancel.undo == ('draft {"title":"Memo"}',)
    assert cancel.never == ('mail {"to":"bo"}',)
    assert cancel.release == ("lock",)
    said = "Stops now, can undo 1 call, releases lock, 1 call can't be undone."
    assert cancel.consequence == f"{said} Partial work is saved."


def test_a_child_run_is_not_counted_among_the_calls_that_can_be_undone() -> None:
    """What it did, if anything, its own journal knows: a child may only have read."""
    aide = Use(tool="aide", kind="child", traits=Traits(undo=True))
    run = begun.replies(DRAFT, aide).starts("c2", "c3").after(closed("c2"), closed("c3"))
    cancel = pressed(run.state)[2]
    assert cancel.consequence.startswith("Stops now, can undo 1 call, and the work of aide.")
    assert cancel.undo == ('draft {"title":"Memo"}', "the work of aide")
    assert cancel.undoes == 1


@pytest.mark.parametrize(
    ("children", "said"), [(1, "the work of aide"), (3, "the work of 3 child runs")]
)
def test_where_only_children_have_worked_their_work_can_be_undone(
    children: int, said: str
) -> None:
    """The button must offer it all the same."""
    aides = [Use(tool="aide", kind="child", traits=Traits(undo=True))] * children
    calls = [f"c{2 + n}" for n in range(children)]
    run = begun.replies(*aides).starts(*calls).after(*(closed(call) for call in calls))
    cancel = pressed(run.state)[2]
    assert f"can undo {said}." in cancel.consequence
    assert cancel.undoes == children


def test_a_call_in_flight_that_has_an_undo_counts_as_undoable() -> None:
    """It will have been aborted by then, and is in the undo set."""
    assert pressed(begun.replies(DRAFT).starts("c2").state)[2].undo


def test_a_call_nobody_knows_about_is_neither_done_nor_not_done() -> None:
    """Saying either would be a guess."""
    run = begun.replies(MAIL).starts("c2")
    run = run.after(CallUnknown(call=CallId("c2")))
    cancel = pressed(run.state)[2]
    assert (cancel.never, cancel.unsure) == ((), ('mail {"to":"bo"}',))
    assert "1 call may or may not have happened" in cancel.consequence


def test_a_cancel_in_progress_says_what_it_is_at() -> None:
    """There is nothing to press, so there must be something to read."""
    run = begun.replies(DRAFT, MAIL).starts("c2", "c3").after(closed("c2"))
    run = run.when(c.Cancel(undo="all", by=ANN))
    assert build_status_line(run.state).word == "Cancelling — stopping"
    pause, redirect, cancel = pressed(run.state)
    assert not any(offer.enabled for offer in (pause, redirect, cancel))
    assert cancel.consequence == "Nothing new starts. Stopping mail."
    run = run.after(v.CloseCall(epoch=E1, outcome=CallAborted(call=CallId("c3"))))
    run = run.after(v.StartUndo(epoch=E1, call=CallId("c2"), action="undo"))
    shown = build_status_line(run.state)
    assert shown.word == "Cancelling — undoing 1 of 1"
    assert shown.note == 'Undoing draft {"title":"Memo"}.'


def test_a_cancel_that_nobody_drives_does_not_say_that_it_is_at_it() -> None:
    """Pressed where no worker is up, it waits for one."""
    run = begun.replies(DRAFT).starts("c2").after(closed("c2")).when(c.Pause()).advances()
    run = run.when(c.Cancel(undo="all", by=ANN)).then(phase=Phase.CANCELLING)
    shown = build_status_line(run.state)
    assert (shown.word, shown.note) == (
        "Cancelling",
        "cleans up as soon as a worker takes it",
    )


def test_a_paused_run_says_what_becomes_of_its_question() -> None:
    """Resumed it waits again, and a new course needs no answer."""
    asking = begun.replies(DRAFT).starts("c2")
    asking = asking.after(v.AskPerson(epoch=E1, call=CallId("c2"), question="Which?"))
    run = asking.advances().then(phase=Phase.WAITING).when(c.Pause())
    pause, redirect, _ = pressed(run.state)
    assert pause.consequence == "Waits for the answer again; the question stays open."
    assert redirect.consequence.startswith("Drops the question and follows your")


def at_cap() -> Scenario:
    """Return a run that has used up its steps."""
    started = RunStarted(agent="clerk", task="Sort", by="ann", stop=MaxSteps(1) | MaxCost(2.0))
    run = given(started, LeaseTaken(epoch=E1)).replies(SEARCH).starts("c2").after(closed("c2"))
    return run.advances().then(phase=Phase.PAUSED)


def test_at_a_cap_the_button_raises_it_and_goes_on() -> None:
    """A bare resume would be refused; the button is what would be taken."""
    state = at_cap().state
    assert build_status_line(state).word == "Paused at the step cap (1)"
    pause, redirect, _ = pressed(state)
    assert (pause.label, pause.command) == ("Raise cap, resume", "resume")
    assert pause.caps == {"steps": 11}
    assert pause.consequence == "Adds 10 steps, then continues; nothing is repeated."
    assert (redirect.command, redirect.caps) == ("resume", {"steps": 11})
    at_cap().when(c.Resume(caps={"steps": 11})).then(phase=Phase.QUEUED)


@pytest.mark.parametrize(
    ("name", "cap", "raised"),
    [("steps", 12, 22), ("steps", 40, 60), ("cost", 2.0, 3.0), ("time", 60, 90)],
)
def test_a_cap_is_raised_by_half_or_by_a_few(name: str, cap: float, raised: float) -> None:
    """One press must be worth something, at any size."""
    assert propose_raised_cap(name, cap) == raised


def test_a_failed_run_offers_to_try_its_step_again() -> None:
    """Any failure is resumable, and can still be cancelled and undone."""
    failed = CallFailed(call=CallId("c1"), error="no such model")
    run = begun.starts("c1").after(v.CloseCall(epoch=E1, outcome=failed)).advances()
    shown = build_status_line(run.then(phase=Phase.FAILED).state)
    assert (shown.word, shown.note) == ("Failed at step 1", "no such model")
    pause, redirect, cancel = pressed(run.state)
    assert (pause.label, pause.command) == ("Retry step 1", "resume")
    assert redirect.enabled
    assert cancel.enabled


def test_who_has_taken_over_hands_back() -> None:
    """A resume would be refused while somebody is at the wheel."""
    run = begun.when(c.TakeOver(by=ANN)).advances()
    assert (build_status_line(run.state).word, build_status_line(run.state).by) == (
        "Taken over",
        "ann",
    )
    pause, redirect, _ = pressed(run.state)
    assert (pause.label, pause.command) == ("Hand back", "hand_back")
    assert not redirect.enabled


def test_a_halt_keeps_everything_but_a_cancel_for_later() -> None:
    """The operator's latch is above all buttons."""
    run = begun.when(c.Halt(by=Actor(name="olga", role="operator"), reason="fire"))
    assert (build_status_line(run.state).word, build_status_line(run.state).by) == (
        "Halted",
        "olga",
    )
    pause, redirect, cancel = pressed(run.state)
    assert (pause.enabled, redirect.enabled, cancel.enabled) == (False, False, True)
    assert cancel.consequence == "Takes effect when the halt is lifted."
    cancel = pressed(run.when(c.Cancel()).state)[2]
    assert not cancel.enabled
    assert cancel.consequence == "Requested; takes effect when the halt is lifted."


def test_what_could_not_be_undone_can_be_tried_again() -> None:
    """Until somebody takes it as it is."""
    run = begun.replies(DRAFT).starts("c2").after(closed("c2")).when(c.Cancel(undo="all"))
    failed = UndoFailed(call=CallId("c2"), error="refused")
    for attempt in range(run.state.run_started.undo_attempts):
        if attempt:
            assert "it is retried" in build_status_line(run.state).note
        run = run.later(3600).after(v.StartUndo(epoch=E1, call=CallId("c2")))
        run = run.after(v.CloseUndo(epoch=E1, outcome=failed))
    run = run.advances()
    assert build_status_line(run.state).word == "Cancelled — 1 undo failed"
    pause = pressed(run.state)[0]
    assert (pause.command, pause.label) == ("retry_undo", "Retry undo")
    assert pressed(run.when(c.AcceptResidue()).state)[0].enabled is False


def never_released(run: Scenario) -> Scenario:
    """Let every release of c2 fail, to the end of the run."""
    failed = UndoFailed(call=CallId("c2"), action="release", error="refused")
    for _ in range(run.state.run_started.undo_attempts):
        start = v.StartUndo(epoch=E1, call=CallId("c2"), action="release")
        run = run.later(3600).after(start)
        run = run.after(v.CloseUndo(epoch=E1, outcome=failed))
    return run.advances()


def test_a_run_that_completed_says_what_is_still_held_until_somebody_accepts_it() -> None:
    """*Completed* is final, so nothing is tried again; but it is not kept quiet either."""
    run = begun.replies(LOCK).starts("c2").after(closed("c2")).replies(text="Done.")
    run = never_released(run)
    shown = build_status_line(run.state)
    assert (shown.look, shown.word) == ("completed", "Completed — 1 release failed")
    assert shown.said == "Completed. 1 could not be released."
    assert "retry_undo" not in list_possible_controls(run.state)
    assert build_status_line(run.when(c.AcceptResidue()).state).word == "Completed"


def test_what_could_not_be_released_is_not_called_an_undo() -> None:
    """Nothing was to be undone: something is still held."""
    run = begun.replies(LOCK).starts("c2").after(closed("c2")).when(c.Cancel())
    run = never_released(run)
    shown = build_status_line(run.state)
    assert (shown.word, shown.said) == (
        "Cancelled — 1 release failed",
        "Cancelled. 1 could not be released.",
    )
    assert pressed(run.state)[0].consequence == "Tries again to release 1 call."


def test_while_nobody_hears_from_the_worker_buttons_take_effect_later() -> None:
    """The journal takes the wish; the worker that would carry it out is silent."""
    made = mark_worker_lost(build_buttons(begun.state))
    assert "when the worker returns" in made["pause"].consequence
    over = build_buttons(begun.when(c.Cancel()).state)
    assert mark_worker_lost(over)["pause"] == over["pause"]


def test_what_a_side_question_holds_up_is_not_what_is_at_work() -> None:
    """The plan is of the thought that is held."""
    run = begun.after(PLAN).when(c.Say(text="What time is it?", by=ANN)).advances()
    assert run.state.frames
    assert build_status_line(run.state).note == "answering: What time is it?"
