"""Messages and frames: side questions hold the task, and the run returns to it."""

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st
from msgspec.structs import replace

from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core import journaled_text
from midrun.core.entries import (
    CallAborted,
    CallDone,
    FramePushed,
    FrameReconstructed,
    LeaseTaken,
    MessageReceived,
    RunStarted,
)
from midrun.core.ids import MICROS_PER_SECOND, AskId, CallId, Epoch, FrameId, Micros
from midrun.core.scheduler import (
    AbortCall,
)
from midrun.core.transcript import (
    CHARS_PER_TOKEN,
    FRAME_MAX_TOKENS,
    Transcript,
    estimate_frame_tokens,
)
from midrun.core.values import (
    Actor,
    Effect,
    Phase,
    PlanItem,
    PlanItemState,
    RequestedCall,
    Traits,
)
from midrun.testing.scenario import LEASED_RUN, Scenario, given
from midrun.text.buttons import build_buttons
from midrun.text.status import build_status_line
from tests.unit.core.scenario_steps import end_call, leased_run

E1 = Epoch(1)
C1, C2, C3, C4 = CallId("c1"), CallId("c2"), CallId("c3"), CallId("c4")
LOOK = RequestedCall(tool="look", args={})
SEARCH = RequestedCall(tool="search", args={}, traits=Traits(effect=Effect.READ))
ASK = RequestedCall(tool="ask_human", args={})
PLAN = tuple(
    PlanItem(text=f"part {n}", state="done" if n < 4 else "queued") for n in range(1, 8)
)
SIDE_QUESTION = c.Say(text="What was that paper from Tuesday?")

with_plan = leased_run.after(v.SetPlan(epoch=E1, items=PLAN))


def get_ack(run: Scenario) -> str:
    """Return the acknowledgement of the last message."""
    return next(e.ack for e in reversed(run.entries) if isinstance(e, MessageReceived))


def search_once(run: Scenario) -> Scenario:
    """Let the agent make one search."""
    number = len(run.state.calls) + 2
    call = CallId(f"c{number}")
    run = run.replies(SEARCH).starts(call)
    return end_call(run, CallDone(call=call))


def test_a_message_is_acknowledged_before_any_model_call() -> None:
    assert get_ack(with_plan.when(SIDE_QUESTION)) == "Hold on — finishing *part 4* first"
    assert (
        get_ack(leased_run.when(SIDE_QUESTION)) == "Hold on — finishing *Sort the mail* first"
    )
    assert get_ack(leased_run.when(c.Say(text="Stop the press", urgency="now"))) == (
        "Switching: *Stop the press*"
    )
    assert get_ack(leased_run.when(c.Say(text="later", urgency="later"))).startswith("Noted")


def test_the_acknowledgement_names_the_reason_of_a_delay() -> None:
    """A tool runs, the run is paused, or the message is not due yet."""
    urgent = c.Say(text="Stop the press", urgency="now")
    searching = leased_run.replies(SEARCH).starts("c2")
    assert get_ack(searching.when(urgent)).endswith(" — once *Search* is done")
    for message in (urgent, SIDE_QUESTION):
        paused = searching.when(c.Pause()).when(message)
        assert get_ack(paused) == "Noted — for when the run is resumed"
    note = replace(urgent, due=Micros(searching.state.at + 1))
    assert get_ack(searching.when(note)) == "Noted — it waits for its time"


def test_a_side_question_holds_the_task_and_returns_to_the_same_step() -> None:
    run = with_plan.when(SIDE_QUESTION).advances()
    pushed = run.entries[-1]
    assert isinstance(pushed, FramePushed)
    assert (pushed.goal, pushed.done, pushed.total) == ("Sort the mail", 3, 7)
    assert pushed.next == "part 4"
    assert run.state.messages[-1].text == SIDE_QUESTION.text
    run = run.replies(text="It was Lamport 1978.").advances().then(phase=Phase.RUNNING)
    assert run.state.reply_prefix == "Back to *Sort the mail* — plan 4/7"
    run.then(starts=(C2,))


def test_a_nested_question_holds_the_first_question_and_no_plan_item() -> None:
    """The plan belongs to the task below both."""
    run = with_plan.when(SIDE_QUESTION).advances()
    assert (
        get_ack(run.when(c.Say(text="And Monday?")))
        == f"Hold on — finishing *{SIDE_QUESTION.text}* first"
    )
    run = run.when(c.Say(text="And Monday?")).advances()
    frame = run.state.frames[-1]
    assert frame.goal == SIDE_QUESTION.text
    assert frame.next_step not in {item.text for item in run.state.plan}
    paused = run.when(c.Pause(by=Actor(name="ann"))).advances()
    assert build_status_line(paused.state).note == "next: answering And Monday?"
    assert build_buttons(paused.state)["pause"].consequence.startswith(
        "Continues at “And Monday?”"
    )


def test_a_failed_plan_item_counts_as_passed() -> None:
    """The position, the frame and the reply prefix name the item in progress."""
    marks: tuple[PlanItemState, ...] = ("done", "dropped", "failed", "running", "queued")
    items = tuple(PlanItem(text=f"part {n}", state=mark) for n, mark in enumerate(marks, 1))
    assert journaled_text.format_position(items, steps=9) == "plan 3/4"
    run = leased_run.after(v.SetPlan(epoch=E1, items=items)).when(SIDE_QUESTION).advances()
    assert journaled_text.format_frame_position(run.state.frames[-1]) == "plan 3/4"
    run = run.replies(text="It was Lamport 1978.").advances()
    assert run.state.reply_prefix == "Back to *Sort the mail* — plan 3/4"


@pytest.mark.parametrize(
    ("marks", "position"),
    [
        (("failed",), "plan 1/1"),
        (("done", "failed"), "plan 2/2"),
        (("queued", "running"), "plan 2/2"),
        (("dropped",), "turn 9"),
        ((), "turn 9"),
    ],
)
def test_the_position_is_that_of_the_plan_item_in_progress(
    marks: tuple[PlanItemState, ...], position: str
) -> None:
    """After the last item it stays there. A plan without open items counts steps."""
    items = tuple(PlanItem(text="part", state=mark) for mark in marks)
    assert journaled_text.format_position(items, steps=9) == position


def test_only_a_message_with_urgency_now_aborts_the_model_call() -> None:
    writing = leased_run.starts("c1")
    writing.when(SIDE_QUESTION).then(starts=(), effects=())
    run = writing.when(c.Say(text="now!", urgency="now"))
    run = run.then(effects=(AbortCall(call=C1, reason="redirected"),))
    run = run.after(v.CloseCall(epoch=E1, outcome=CallAborted(call=C1, text="Half"))).advances()
    assert len(run.state.frames) == 1


def test_a_later_message_waits_for_the_answer_and_pushes_no_frame() -> None:
    """The same run takes it up before it completes."""
    run = search_once(
        leased_run.when(c.Say(text="and translate it", urgency="later"))
    ).advances()
    assert run.state.frames == ()
    run = run.replies(text="Here it is.").advances().then(phase=Phase.RUNNING)
    assert run.state.messages[-1].text == "and translate it"
    run.replies(text="Voilà.").advances().then(phase=Phase.COMPLETED)


def test_a_message_at_the_moment_of_completion_is_answered_before_the_end() -> None:
    """No frame is pushed, because the task is finished."""
    run = (
        leased_run.replies(text="done").when(SIDE_QUESTION).advances().then(phase=Phase.RUNNING)
    )
    assert run.state.frames == ()
    run.replies(text="Lamport").advances().then(phase=Phase.COMPLETED)


def test_nested_side_questions_return_in_reverse_order() -> None:
    run = leased_run.when(SIDE_QUESTION).advances()
    run = search_once(run).when(c.Say(text="And its author?")).advances()
    assert [frame.goal for frame in run.state.frames] == ["Sort the mail", SIDE_QUESTION.text]
    run = run.replies(text="Leslie.").advances()
    assert run.state.reply_prefix.startswith("Back to *What was that paper")
    run = run.replies(text="Lamport 1978.").advances()
    assert run.state.reply_prefix.startswith("Back to *Sort the mail*")
    assert run.state.frames == ()


def test_a_message_beyond_the_frame_limit_waits_until_a_frame_is_closed() -> None:
    first = replace(LEASED_RUN[0], frame_depth=1)
    assert isinstance(first, RunStarted)
    run = given(first, LEASED_RUN[1]).when(SIDE_QUESTION).advances()
    run = search_once(run).when(c.Say(text="And another")).advances()
    assert len(run.state.frames) == 1
    assert "next in line" in get_ack(run)
    run = run.replies(text="Lamport").advances()
    assert run.state.messages[-1].text == "And another"
    run = run.replies(text="Sure").advances()
    assert (run.state.frames, run.state.pending) == ((), ())


def test_an_expired_frame_is_reconstructed_and_the_reply_says_so() -> None:
    run = (
        leased_run.when(SIDE_QUESTION)
        .advances()
        .later(25 * 3600)
        .replies(text="Lamport")
        .advances()
    )
    assert isinstance(run.entries[-1], FrameReconstructed)
    assert "reconstruction, not a continuation" in run.state.reply_prefix


def test_only_the_top_frame_can_be_resumed_or_dropped() -> None:
    run = leased_run.when(SIDE_QUESTION).advances()
    assert run.when(c.ResumeFrame(frame=FrameId("f1"))).state.frames == ()
    dropped = run.when(c.DropFrame(frame=FrameId("f1")))
    assert dropped.state.reply_prefix == "Dropped *Sort the mail* at the beginning"
    run.when(c.DropFrame(frame=FrameId("f9"))).then(refused="no_such_frame")
    deeper = search_once(run).when(c.Say(text="more?")).advances()
    deeper.when(c.DropFrame(frame=FrameId("f1"))).then(refused="frame_not_on_top")


def test_a_side_question_while_waiting_is_answered_and_the_run_waits_again() -> None:
    """The ask stays open, and the held call keeps its place."""
    ask_input = v.AskPerson(epoch=E1, call=C2, question="ok?")
    waiting = leased_run.replies(ASK).starts("c2").after(ask_input).advances()
    run = waiting.when(SIDE_QUESTION).then(phase=Phase.QUEUED).after(v.TakeLease()).advances()
    run = run.then(starts=(C3,)).replies(text="Lamport").advances()
    run = run.then(phase=Phase.WAITING)
    run = run.when(c.Answer(ask=AskId("a1"), value="yes")).after(v.TakeLease())
    run.then(starts=(C4,))


def test_a_call_approved_during_a_side_question_starts_after_its_answer() -> None:
    gated = RequestedCall(tool="pay", args={}, traits=Traits(approve="block"))
    waiting = leased_run.replies(gated).advances()
    run = waiting.when(SIDE_QUESTION).after(v.TakeLease()).advances()
    run = run.when(c.Approve(ask=AskId("a1"))).then(starts=(C3,))
    run = run.replies(text="Lamport").advances().then(starts=(C2,))


def test_a_message_while_paused_is_taken_up_after_the_resume() -> None:
    run = leased_run.when(c.Pause()).advances().when(SIDE_QUESTION).then(phase=Phase.PAUSED)
    run = run.when(c.Resume()).after(v.TakeLease()).advances()
    assert run.state.messages[-1].text == SIDE_QUESTION.text


def test_a_scheduled_message_wakes_a_waiting_run_when_it_is_due() -> None:
    note = c.Say(
        text="Market opens",
        by=Actor(name="system:clock", role="system"),
        due=Micros(leased_run.now + 60 * MICROS_PER_SECOND),
    )
    ask_input = v.AskPerson(epoch=E1, call=C2, question="ok?")
    waiting = leased_run.replies(ASK).starts("c2").after(ask_input).advances().when(note)
    waiting.then(phase=Phase.WAITING).when(v.Wake()).then(already="nothing_due")
    run = waiting.later(61).when(v.Wake()).then(phase=Phase.QUEUED).after(v.TakeLease())
    assert run.advances().state.messages[-1].text == "Market opens"


def test_a_cancel_abandons_every_frame() -> None:
    run = leased_run.when(SIDE_QUESTION).advances().when(c.Cancel())
    assert run.state.frames == ()
    assert any(getattr(e, "why", "") == "cancelled" for e in run.entries)


def test_a_side_question_with_its_own_plan_does_not_replace_the_main_plan() -> None:
    main_plan, side_plan = (
        (PlanItem(text="one"), PlanItem(text="two")),
        (PlanItem(text="look it up"),),
    )
    run = (
        leased_run.after(v.SetPlan(epoch=E1, items=main_plan))
        .when(c.Say(text="when?"))
        .advances()
    )
    run = run.after(v.SetPlan(epoch=E1, items=side_plan)).replies(text="noon").advances()
    assert run.state.plan == main_plan


def test_a_question_after_the_final_answer_does_not_replace_the_output() -> None:
    """The output is the answer to the task."""
    run = leased_run.replies(text="THE REPORT", value={"pages": 3})
    run = run.when(c.Say(text="when was that?")).advances()
    run = run.replies(text="noon", value="12:00").advances().then(phase=Phase.COMPLETED)
    assert (run.state.output, run.state.value) == ("THE REPORT", {"pages": 3})


def test_the_value_of_an_answer_is_dropped_with_the_answer() -> None:
    """A value belongs to the reply that is the output."""
    run = leased_run.replies(text="1", value=1).when(c.Say(text="And 2?", urgency="later"))
    run = run.advances().replies(text="two").advances().then(phase=Phase.COMPLETED)
    assert (run.state.output, run.state.value) == ("two", None)


# ── the tokens of held topics ──────────────────────────────────────────────────────────


def ask_nested(run: Scenario, *questions: str) -> Scenario:
    """Send several questions, each while the one before is being answered."""
    for question in questions:
        run = run.when(c.Say(text=question, urgency="now")).advances()
    return run


def start_run(task: str = "Sort the mail", depth: int = 4) -> Scenario:
    """Return a run with a lease."""
    started = RunStarted(agent="clerk", task=task, frame_depth=depth)
    return given(started, LeaseTaken(epoch=Epoch(1)))


@for_all(st.lists(st.text(min_size=1, max_size=4000).filter(str.strip), min_size=1, max_size=6))
def test_the_tokens_of_held_topics_are_bounded_for_any_text(texts: list[str]) -> None:
    """A long goal is shortened to one line."""
    task, *questions = texts
    run = ask_nested(start_run(task, depth=3), *questions)
    assert len(run.state.frames) == min(len(questions), 3)
    assert estimate_frame_tokens(run.state) <= len(run.state.frames) * FRAME_MAX_TOKENS
    held = [turn.text for turn in Transcript(run.state) if turn.kind == "held"]
    assert estimate_frame_tokens(run.state) * CHARS_PER_TOKEN >= sum(map(len, held))


def test_every_model_call_counts_the_tokens_of_held_topics() -> None:
    run = start_run().replies(LOOK).starts("c2")
    assert run.state.meter.held_tokens == 0
    run = ask_nested(start_run(), "And Tuesday?", "And Wednesday?")
    tokens_of_two = estimate_frame_tokens(run.state)
    assert tokens_of_two > 0
    run = run.replies(text="Wednesday is fine.")
    assert run.state.meter.held_tokens == tokens_of_two
    run = run.advances()
    tokens_of_one = estimate_frame_tokens(run.state)
    assert 0 < tokens_of_one < tokens_of_two
    run = run.replies(text="So is Tuesday.").advances()
    assert run.state.meter.held_tokens == tokens_of_two + tokens_of_one
    assert (
        run.replies(text="Sorted.").advances().state.meter.held_tokens
        == tokens_of_two + tokens_of_one
    )
