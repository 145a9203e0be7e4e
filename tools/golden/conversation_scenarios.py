"""Golden scenarios of conversations: side questions, reviews, children, take-over, forks."""

from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core.entries import CallAborted, CallDone, LeaseTaken, RunStarted, UndoFailed
from midrun.core.history import iter_history, make_fork_entry
from midrun.core.ids import MICROS_PER_SECOND, CallId, Epoch, Micros, RunId
from midrun.core.values import (
    Actor,
    Effect,
    Message,
    Origin,
    PlanItem,
    Reply,
    RequestedCall,
    SpeakerSettings,
    Traits,
)
from midrun.testing.scenario import Scenario, given
from tools.golden.fixtures import (
    A1,
    ANN,
    BOB,
    DRAFT,
    LOOK,
    MAIL,
    finish_call,
    run_undos,
    start_run,
    take_lease,
)

AIDE = RequestedCall(
    tool="aide", args={"task": "Read"}, kind="child", traits=Traits(undo=True, version="1")
)
SIGN = RequestedCall(
    tool="sign", args={"page": 1}, traits=Traits(approve="block", four_eyes=True)
)
POST = RequestedCall(
    tool="post",
    args={"text": "Hi"},
    why="they asked for it",
    traits=Traits(approve="queue", undo=True, ask_ttl=60 * MICROS_PER_SECOND),
)
SYSTEM = Actor(name="system:calendar", role="system")


def abort_call(run: Scenario, call: str, text: str = "") -> Scenario:
    """Let a call be aborted within its grace."""
    outcome = CallAborted(call=CallId(call), text=text)
    return run.after(v.CloseCall(epoch=run.state.epoch, outcome=outcome))


def side_questions_now_next_and_later() -> Scenario:
    """One interrupts a reply, one is asked on top of it, one waits; all are answered."""
    run = start_run().replies(LOOK, text="First the mail.").starts("c2")
    items = tuple(PlanItem(text=text) for text in ("Read", "Sort", "Answer"))
    done = (PlanItem(text="Read", state="done"), *items[1:])
    run = run.after(v.SetPlan(epoch=Epoch(1), items=items))
    run = finish_call(run.after(v.SetPlan(epoch=Epoch(1), items=done)), "c2").starts("c3")
    run = run.when(c.Say(by=ANN, text="Thanks, by the way", urgency="later"))
    run = run.when(c.Say(by=ANN, text="Who is eve?", urgency="now"))
    run = abort_call(run, "c3", "Now I so").advances().starts("c4")
    run = run.when(c.Say(by=BOB, text="And how old?"))
    run = run.after(
        v.CloseCall(
            epoch=Epoch(1), outcome=CallDone(call=CallId("c4"), reply=Reply(uses=(LOOK,)))
        )
    )
    run = finish_call(run.starts("c5"), "c5").advances()
    run = run.replies(text="Forty.").advances().replies(text="A colleague.").advances()
    run = run.replies(text="Sorted, and answered.").advances()
    return run.replies(text="You are welcome.").advances()


def a_side_question_while_the_run_waits() -> Scenario:
    """The work is held meanwhile; the ask and the held topic stay open."""
    ask = RequestedCall(tool="ask", args={"question": "Blue?"})
    run = start_run().replies(ask).starts("c2")
    question = v.AskPerson(epoch=Epoch(1), call=CallId("c2"), question="Blue?")
    run = run.after(question).advances().when(c.Say(by=BOB, text="What for?"))
    run = take_lease(run).advances().replies(text="For the cover.").advances()
    run = take_lease(run.when(c.Answer(by=BOB, ask=A1, value="blue")))
    return run.replies(text="Blue it is.").advances()


def a_handoff_and_a_cancel() -> Scenario:
    """Another agent speaks, a side question is handed back, and a cancel undoes both."""
    to_desk = RequestedCall(
        tool="hand_off_to_desk",
        why="it is about a bill",
        traits=Traits(effect=Effect.READ),
        handoff="desk",
    )
    to_clerk = RequestedCall(
        tool="hand_off_to_clerk", traits=Traits(effect=Effect.READ), handoff="clerk"
    )
    desk = SpeakerSettings(agent="desk", max_parallel=1, window=9_000)
    run = start_run(handoffs=(desk,)).replies(DRAFT, to_desk, text="Not mine.")
    run = finish_call(finish_call(run.starts("c2", "c3"), "c3"), "c2").advances()
    run = finish_call(run.replies(DRAFT, text="The bill.").starts("c5"), "c5")
    run = run.when(c.Say(by=BOB, text="Who is eve?")).advances().replies(to_clerk)
    run = finish_call(run.starts("c7"), "c7").advances().replies(text="A colleague.")
    run = finish_call(run.advances().replies(DRAFT, text="Back.").starts("c10"), "c10")
    return run_undos(run.when(c.Cancel(by=ANN, undo="all")))


def children_are_undone_with_their_parent() -> Scenario:
    """One had completed, one was in flight and cannot be ended; the last is undone first."""
    run = start_run(undo_attempts=1).replies(DRAFT, AIDE, AIDE, text="With two aides.")
    run = finish_call(finish_call(run.starts("c2", "c3", "c4"), "c2"), "c3", "Read.")
    run = abort_call(run.when(c.Cancel(by=ANN, undo="all", reason="wrong book")), "c4")
    left = UndoFailed(
        call=CallId("c4"), action="release", error="run x could not undo 1 of its calls"
    )
    run = run.cleans("c4", "release")
    return run_undos(run.after(v.CloseCleanup(epoch=run.state.epoch, outcome=left)))


def a_completed_child_is_taken_back() -> Scenario:
    """Its parent is cancelled with undo="all": the completed child is reopened and undone."""
    parent = RunId("run_parent")
    spec = RunStarted(agent="aide", task="Read", parent=Origin(run=parent, call=CallId("c3")))
    run = given(spec, LeaseTaken(epoch=Epoch(1), holder="here"))
    run = finish_call(run.replies(DRAFT).starts("c2"), "c2").replies(text="Read.").advances()
    return run_undos(take_lease(run.later(60).when(v.TakeBack(parent=parent))))


def a_child_at_its_cap() -> Scenario:
    """The parent reports the cap and waits; the answer lets the child continue."""
    run = start_run().replies(AIDE).starts("c2")
    stands = v.AskPerson(
        epoch=Epoch(1),
        call=CallId("c2"),
        question="Child run_x is paused at its step cap: raise it there, or answer here.",
        data={"run": "run_x", "ask": "", "data": {"phase": "paused", "cap": "steps"}},
        child=True,
        child_ask_kind="question",
    )
    run = run.after(stands).advances().when(c.Answer(by=ANN, ask=A1, value={"steps": 20}))
    return (
        finish_call(take_lease(run).starts("c2"), "c2", "Read.")
        .replies(text="It is read.")
        .advances()
    )


def a_child_that_is_left_behind() -> Scenario:
    """A redirect abandons its call; the child is ended before the next step."""
    run = start_run().replies(AIDE).starts("c2")
    asked = v.AskPerson(epoch=Epoch(1), call=CallId("c2"), question="Which?", child=True)
    run = run.after(asked).advances().when(c.Redirect(by=ANN, text="Do it yourself"))
    run = run_undos(take_lease(run).advances())
    return run.replies(text="I did it myself.").advances()


def a_review_edited_and_one_that_expires() -> Scenario:
    """The agent continues; one call is made with edited arguments, one approval expires."""
    run = start_run().replies(POST, POST, text="Two proposals.").advances()
    run = run.when(c.Approve(by=BOB, ask=A1, args={"text": "Hello"}))
    run = finish_call(run.starts("c2"), "c2", {"id": 7}).replies(text="One is out.").advances()
    run = run.later(61).when(v.Wake())
    return take_lease(run).replies(text="The other is not.").advances()


def a_person_uses_a_tool_that_another_must_allow() -> Scenario:
    """After a take-over the same rules hold: ask, approval and side question."""
    run = start_run().replies(LOOK).starts("c2").when(c.TakeOver(by=ANN, request_id="t1"))
    run = finish_call(run, "c2").advances().when(c.UseTool(by=ANN, use=SIGN, request_id="t2"))
    run = take_lease(run).advances().when(c.Approve(by=ANN, ask=A1), c.Approve(by=BOB, ask=A1))
    run = finish_call(take_lease(run).starts("c3"), "c3", "signed").advances()
    run = run.when(c.Say(by=BOB, text="Is it signed?"), c.Write(by=ANN, text="I signed it."))
    run = take_lease(run.when(c.HandBack(by=ANN))).advances().replies(text="It is.").advances()
    return run.replies(text="All done.").advances()


def a_summary_that_was_interrupted() -> Scenario:
    """A pause, then a crash interrupt it; it is made again, and held topics are kept."""
    run = start_run(window=5, history=_long_ago())
    done = CallDone(call=CallId("c1"), reply=Reply(text="On.", uses=(LOOK,), prompt_tokens=9))
    run = run.starts("c1").after(v.CloseCall(epoch=Epoch(1), outcome=done))
    run = finish_call(run.starts("c2"), "c2").when(c.Say(by=ANN, text="How far?")).advances()
    run = abort_call(run.starts("c3").when(c.Pause(by=ANN)), "c3", "In sh").advances()
    run = take_lease(take_lease(run.when(c.Resume(by=ANN))).starts("c4").later(30))
    summary = CallDone(call=CallId("c4"), reply=Reply(text="Much was said."))
    run = run.starts("c4").after(v.CloseCall(epoch=run.state.epoch, outcome=summary))
    return run.replies(text="Half.").advances().replies(text="All of it.").advances()


def _long_ago() -> tuple[Message, ...]:
    return tuple(Message(role="user", text=f"Long ago {n}") for n in range(12))


def a_fork() -> Scenario:
    """It continues from a boundary of another run, with its messages and calls."""
    first = start_run(thread="t1").replies(LOOK).starts("c2")
    first = finish_call(first, "c2", {"found": 3}).replies(DRAFT, text="Three.").starts("c4")
    first = finish_call(first, "c4").replies(text="Drafted.").advances()
    entry = make_fork_entry(first.state, by=BOB, instruction="Shorter, please")
    assert isinstance(entry, RunStarted)
    run = given(entry, LeaseTaken(epoch=Epoch(1), holder="here"))
    return run.replies(text="Shorter.").advances()


def a_thread_after_a_cancelled_run() -> Scenario:
    """The next run is told which calls were done, undone or aborted, and the partial text."""
    first = finish_call(start_run(thread="t1").replies(DRAFT, MAIL).starts("c2", "c3"), "c2")
    first = run_undos(abort_call(first.when(c.Cancel(by=ANN, undo="all")), "c3"))
    said = tuple(iter_history(first.state))
    return start_run(thread="t1", history=said).replies(text="From the start, then.").advances()


def a_scheduled_note_wakes_a_run_that_waits() -> Scenario:
    """It arrives from a system actor when it is due; the run answers and waits again."""
    ask = RequestedCall(
        tool="ask", args={"question": "Blue?"}, traits=Traits(effect=Effect.READ)
    )
    run = start_run().replies(ask).starts("c2")
    run = run.after(v.AskPerson(epoch=Epoch(1), call=CallId("c2"), question="Blue?")).advances()
    due = Micros(run.now + 3600 * MICROS_PER_SECOND)
    run = run.when(c.Say(by=SYSTEM, text="The shop closes at six", due=due))
    run = take_lease(run.later(3600).when(v.Wake())).advances()
    run = run.replies(text="I will hurry.").advances()
    run = take_lease(run.when(c.Answer(by=ANN, ask=A1, value="blue")))
    return run.replies(text="Bought the blue one.").advances()


def a_cancel_under_a_halt() -> Scenario:
    """It is recorded at once and carried out after the lift; a second one is a no-op."""
    run = finish_call(start_run().replies(DRAFT, LOOK).starts("c2", "c3"), "c2")
    run = abort_call(run.when(c.Halt(by=BOB, reason="incident")), "c3")
    run = run.after(v.StandDown(epoch=Epoch(1), why="halted"))
    run = run.when(c.Cancel(by=ANN, undo="all"), c.Cancel(by=BOB, request_id="c9"))
    return run_undos(take_lease(run.later(60).when(c.Lift(by=BOB))))


SCENARIOS = (
    side_questions_now_next_and_later,
    a_side_question_while_the_run_waits,
    children_are_undone_with_their_parent,
    a_completed_child_is_taken_back,
    a_child_at_its_cap,
    a_child_that_is_left_behind,
    a_review_edited_and_one_that_expires,
    a_person_uses_a_tool_that_another_must_allow,
    a_summary_that_was_interrupted,
    a_fork,
    a_thread_after_a_cancelled_run,
    a_scheduled_note_wakes_a_run_that_waits,
    a_cancel_under_a_halt,
    a_handoff_and_a_cancel,
)
