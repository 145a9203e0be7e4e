"""A side question does not cost the thread: frames are pushed, named, resumed, never lost."""

import pytest
from msgspec.structs import replace

from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core import journaled_text
from midrun.core.effects import AbortCall, CallModel, CallTool
from midrun.core.entries import (
    CallAborted,
    CallDone,
    FramePushed,
    FrameReconstructed,
    MessageReceived,
    RunStarted,
)
from midrun.core.ids import MICROS_PER_SECOND, AskId, CallId, Epoch, FrameId, Micros
from midrun.core.values import Actor, Effect, Item, Phase, PlanItemState, Traits, Use
from midrun.testing.scenario import LEASED_RUN, Scenario, given
from midrun.text.buttons import build_buttons
from midrun.text.status import build_status_line

E1 = Epoch(1)
C1, C2, C3, C4 = CallId("c1"), CallId("c2"), CallId("c3"), CallId("c4")
SEARCH = Use(tool="search", args={}, traits=Traits(effect=Effect.READ))
ASK = Use(tool="ask_human", args={})
PLAN = tuple(Item(text=f"part {n}", mark="done" if n < 4 else "queued") for n in range(1, 8))

begun = given(*LEASED_RUN)
planned = begun.after(v.SetPlan(epoch=E1, items=PLAN))
TUESDAY = c.Say(text="What was that paper from Tuesday?")


def ack(run: Scenario) -> str:
    """Return what the last speaker was told at once."""
    return next(e.ack for e in reversed(run.entries) if isinstance(e, MessageReceived))


def searching(run: Scenario) -> Scenario:
    """Let the agent make one search."""
    number = len(run.state.calls) + 2
    call = CallId(f"c{number}")
    run = run.replies(SEARCH).starts(call)
    return run.after(v.CloseCall(epoch=run.state.epoch, outcome=CallDone(call=call)))


def test_a_side_question_is_acknowledged_in_the_runtimes_own_words() -> None:
    """At once, before any model has spoken, and true."""
    assert ack(planned.when(TUESDAY)) == "Hold on — finishing *part 4* first"
    assert ack(begun.when(TUESDAY)) == "Hold on — finishing *Sort the mail* first"
    assert ack(begun.when(c.Say(text="Stop the press", urgency="now"))) == (
        "Switching: *Stop the press*"
    )
    assert ack(begun.when(c.Say(text="later", urgency="later"))).startswith("Noted")


def test_what_comes_before_a_switch_is_said() -> None:
    """A tool may be at it for minutes, a paused run for days, a note until its time."""
    press = c.Say(text="Stop the press", urgency="now")
    switching = "Switching: *Stop the press*"
    at_work = begun.replies(SEARCH).starts("c2")
    assert ack(at_work.when(press)) == f"{switching} — once *search* is done"
    for said in (press, TUESDAY):
        held = at_work.when(c.Pause()).when(said)
        assert ack(held) == "Noted — for when the run is resumed"
    note = replace(press, due=Micros(at_work.state.at + 1))
    assert ack(at_work.when(note)) == "Noted — it waits for its time"


def test_a_side_question_suspends_the_chain_and_comes_back_to_its_place() -> None:
    """Step 4 of 7 is step 4 of 7 afterwards."""
    run = planned.when(TUESDAY).advances()
    pushed = run.entries[-1]
    assert isinstance(pushed, FramePushed)
    assert (pushed.goal, pushed.done, pushed.total) == ("Sort the mail", 3, 7)
    assert pushed.next == "part 4"
    assert run.state.messages[-1].text == TUESDAY.text
    run = run.replies(text="It was Lamport 1978.").advances().then(phase=Phase.RUNNING)
    assert run.state.reply_prefix == "Back to *Sort the mail* — step 4 of 7"
    run.then(plans=(CallModel(call=C2),))


def test_a_question_about_a_question_finishes_that_and_no_item_of_the_plan() -> None:
    """The plan is of the thought below: nobody is at its next item now."""
    run = planned.when(TUESDAY).advances()
    assert (
        ack(run.when(c.Say(text="And Monday?")))
        == f"Hold on — finishing *{TUESDAY.text}* first"
    )
    run = run.when(c.Say(text="And Monday?")).advances()
    held = run.state.frames[-1]
    assert (held.goal, held.next_step) == (TUESDAY.text, "the next step as planned")
    paused = run.when(c.Pause(by=Actor(name="ann"))).advances()
    assert build_status_line(paused.state).note == "next: answering And Monday?"
    assert build_buttons(paused.state)["pause"].consequence.startswith(
        "Continues at “And Monday?”"
    )


def test_a_plan_item_that_failed_lies_behind_as_one_that_is_done_does() -> None:
    """The step is the row that is worked at, in the words, in the view, and on the way back."""
    marks: tuple[PlanItemState, ...] = ("done", "dropped", "failed", "running", "queued")
    items = tuple(Item(text=f"part {n}", mark=mark) for n, mark in enumerate(marks, 1))
    assert journaled_text.format_position(items, steps=9) == "step 3 of 4"
    run = begun.after(v.SetPlan(epoch=E1, items=items)).when(TUESDAY).advances()
    assert journaled_text.format_frame_position(run.state.frames[-1]) == "step 3 of 4"
    run = run.replies(text="It was Lamport 1978.").advances()
    assert run.state.reply_prefix == "Back to *Sort the mail* — step 3 of 4"


@pytest.mark.parametrize(
    ("marks", "place"),
    [
        (("failed",), "step 1 of 1"),
        (("done", "failed"), "step 2 of 2"),
        (("queued", "running"), "step 2 of 2"),
        (("dropped",), "step 9"),
        ((), "step 9"),
    ],
)
def test_the_step_is_that_of_the_item_at_hand(
    marks: tuple[PlanItemState, ...], place: str
) -> None:
    """Or the last one of a plan that is through; a plan of nothing counts as none."""
    items = tuple(Item(text="part", mark=mark) for mark in marks)
    assert journaled_text.format_position(items, steps=9) == place


def test_a_side_question_now_closes_the_model_stream_and_next_does_not() -> None:
    """Not every message deserves to cut a sentence short."""
    writing = begun.starts("c1")
    writing.when(TUESDAY).then(plans=())
    run = writing.when(c.Say(text="now!", urgency="now"))
    run = run.then(plans=(AbortCall(call=C1, reason="redirected"),))
    run = run.after(v.CloseCall(epoch=E1, outcome=CallAborted(call=C1, text="Half"))).advances()
    assert len(run.state.frames) == 1


def test_a_later_message_waits_for_the_answer_and_pushes_nothing() -> None:
    """When the agent is done it takes the message up, in the same run."""
    run = searching(begun.when(c.Say(text="and translate it", urgency="later"))).advances()
    assert run.state.frames == ()
    run = run.replies(text="Here it is.").advances().then(phase=Phase.RUNNING)
    assert run.state.messages[-1].text == "and translate it"
    run.replies(text="Voilà.").advances().then(phase=Phase.COMPLETED)


def test_a_message_at_the_moment_of_completion_is_answered_before_the_end() -> None:
    """The answer was ready; nothing had to be suspended."""
    run = begun.replies(text="done").when(TUESDAY).advances().then(phase=Phase.RUNNING)
    assert run.state.frames == ()
    run.replies(text="Lamport").advances().then(phase=Phase.COMPLETED)


def test_questions_nest_and_come_back_in_reverse_order() -> None:
    """An interrupt during an interrupt: last in, first out."""
    run = begun.when(TUESDAY).advances()
    run = searching(run).when(c.Say(text="And its author?")).advances()
    assert [frame.goal for frame in run.state.frames] == ["Sort the mail", TUESDAY.text]
    run = run.replies(text="Leslie.").advances()
    assert run.state.reply_prefix.startswith("Back to *What was that paper")
    run = run.replies(text="Lamport 1978.").advances()
    assert run.state.reply_prefix.startswith("Back to *Sort the mail*")
    assert run.state.frames == ()


def test_a_full_stack_queues_the_message_until_a_frame_closes() -> None:
    """Accepted, said to be in line, and taken up; never refused into the void."""
    first = replace(LEASED_RUN[0], frame_depth=1)
    assert isinstance(first, RunStarted)
    run = given(first, LEASED_RUN[1]).when(TUESDAY).advances()
    run = searching(run).when(c.Say(text="And another")).advances()
    assert len(run.state.frames) == 1
    assert "next in line" in ack(run)
    run = run.replies(text="Lamport").advances()
    assert run.state.messages[-1].text == "And another"
    run = run.replies(text="Sure").advances()
    assert (run.state.frames, run.state.pending) == ((), ())


def test_a_frame_held_for_too_long_comes_back_as_a_reconstruction_that_says_so() -> None:
    """A day later the thread is cold, and the run admits it."""
    run = begun.when(TUESDAY).advances().later(25 * 3600).replies(text="Lamport").advances()
    back = run.entries[-1]
    assert isinstance(back, FrameReconstructed)
    assert "reconstruction, not a continuation" in run.state.reply_prefix


def test_a_person_can_go_back_to_or_drop_the_thought_on_top_by_name() -> None:
    """Held thoughts are on the page, each with its buttons."""
    run = begun.when(TUESDAY).advances()
    assert run.when(c.ResumeFrame(frame=FrameId("f1"))).state.frames == ()
    dropped = run.when(c.DropFrame(frame=FrameId("f1")))
    assert dropped.state.reply_prefix == "Dropped *Sort the mail* at the beginning"
    run.when(c.DropFrame(frame=FrameId("f9"))).then(refused="no_such_frame")
    deeper = searching(run).when(c.Say(text="more?")).advances()
    deeper.when(c.DropFrame(frame=FrameId("f1"))).then(refused="frame_not_on_top")


def test_a_side_question_while_waiting_is_answered_and_the_run_waits_again() -> None:
    """The asks stay open; the suspended call keeps its place."""
    asked = v.AskPerson(epoch=E1, call=C2, question="ok?")
    waiting = begun.replies(ASK).starts("c2").after(asked).advances()
    run = waiting.when(TUESDAY).then(phase=Phase.QUEUED).after(v.TakeLease()).advances()
    run = run.then(plans=(CallModel(call=C3),)).replies(text="Lamport").advances()
    run = run.then(phase=Phase.WAITING)
    run = run.when(c.Answer(ask=AskId("a1"), value="yes")).after(v.TakeLease())
    run.then(plans=(CallModel(call=C4),))


def test_an_approval_given_during_a_side_question_waits_for_its_own_chain() -> None:
    """The suspended chain goes on as a whole, not in pieces."""
    gated = Use(tool="pay", args={}, traits=Traits(approve="block"))
    waiting = begun.replies(gated).advances()
    run = waiting.when(TUESDAY).after(v.TakeLease()).advances()
    run = run.when(c.Approve(ask=AskId("a1"))).then(plans=(CallModel(call=C3),))
    run = run.replies(text="Lamport").advances().then(plans=(CallTool(call=C2),))


def test_a_message_while_paused_is_taken_up_after_the_resume() -> None:
    """Paused means that nothing is spent, not that nobody listens."""
    run = begun.when(c.Pause()).advances().when(TUESDAY).then(phase=Phase.PAUSED)
    run = run.when(c.Resume()).after(v.TakeLease()).advances()
    assert run.state.messages[-1].text == TUESDAY.text


def test_a_scheduled_note_wakes_a_parked_run_when_its_time_comes() -> None:
    """The store's clock decides, whoever looks."""
    note = c.Say(
        text="Market opens",
        by=Actor(name="system:clock", role="system"),
        due=Micros(begun.now + 60 * MICROS_PER_SECOND),
    )
    asked = v.AskPerson(epoch=E1, call=C2, question="ok?")
    waiting = begun.replies(ASK).starts("c2").after(asked).advances().when(note)
    waiting.then(phase=Phase.WAITING).when(v.Wake()).then(already="nothing_due")
    run = waiting.later(61).when(v.Wake()).then(phase=Phase.QUEUED).after(v.TakeLease())
    assert run.advances().state.messages[-1].text == "Market opens"


def test_a_cancel_abandons_every_frame_by_name() -> None:
    """None vanishes."""
    run = begun.when(TUESDAY).advances().when(c.Cancel())
    assert run.state.frames == ()
    assert any(getattr(e, "why", "") == "cancelled" for e in run.entries)
